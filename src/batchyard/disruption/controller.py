"""Disruption controller: updates the status of PodDisruptionBudgets.

A pod with DisruptionTarget that is not deleted within two minutes loses that condition. Source: Kubernetes's
pkg/controller/disruption.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from batchyard.api import scheme
from batchyard.api.custom_kinds import DEFINITION, is_served, kind_of
from batchyard.api.meta import Key, Obj, controller_of, find_condition, selector, with_status
from batchyard.api.scheme import find_kind
from batchyard.api.times import format_time, parse_time
from batchyard.api.views.pods import (
    BY_KUBELET,
    DISRUPTION_TARGET,
    PENDING,
    is_ready,
    is_terminal,
    is_terminating,
    phase,
    with_condition,
)
from batchyard.base.instant import MINUTE, Instant
from batchyard.interfaces.client import EventType, Reader, UpdateStatus, WatchEvent
from batchyard.interfaces.controller import EventRecord, ReconcileResult

# --- budgets ---
#
# PodDisruptionBudgets: selected pods, status, and the decision on evictions.
#
# Sources: Kubernetes's pkg/controller/disruption, pkg/registry/core/pod/storage/eviction.go.


DISRUPTION_ALLOWED: Final = "DisruptionAllowed"
SUFFICIENT: Final = "SufficientPods"
INSUFFICIENT: Final = "InsufficientPods"
SYNC_FAILED: Final = "SyncFailed"
#: How long an evicted pod counts as disrupted if it is not deleted.
DELETION_TIMEOUT: Final = 2 * MINUTE
#: The maximum number of evicted pods that the controller has not confirmed.
_DISRUPTED_MAX: Final = 2000
_ALWAYS: Final = "AlwaysAllow"


class ExpectedPods(NamedTuple):
    """The expected number of pods, and the pods without a controller."""

    expected: int
    unmanaged: tuple[str, ...] = ()


class DisruptedPods(NamedTuple):
    """The evicted pods that still exist, with the time of eviction, and when the next one expires."""

    pods: Mapping[str, str]
    #: Pods that were not deleted in time.
    not_deleted: tuple[Obj, ...]
    look_at: Instant | None


class EvictionRefusal(NamedTuple):
    """Why an eviction is rejected, as an API error."""

    code: int
    reason: str
    message: str
    cause: str = ""
    retry_after: int = 0


class EvictionVerdict(NamedTuple):
    """The decision on an eviction, and the budget with one disruption less."""

    refusal: EvictionRefusal | None = None
    spent: Obj | None = None


# --- selection ---


def spec_of(budget: Obj) -> Mapping[str, Any]:
    """Return the spec of a budget; without one, which Kubernetes accepts, it selects no pods."""
    return budget.get("spec") or {}


def guards(budget: Obj, pod: Obj) -> bool:
    """Report whether a budget selects a pod of its Namespace."""
    chosen = selector(spec_of(budget).get("selector"))
    return chosen is not None and chosen.matches(pod["metadata"].get("labels") or {})


def is_guarded(pod: Obj) -> bool:
    """Report whether a budget applies to a pod: it was started, and is neither ended nor being deleted."""
    return phase(pod) != PENDING and not is_terminal(pod) and not is_terminating(pod)


# --- status ---


def counts_controllers(spec: Mapping[str, Any]) -> bool:
    """Report whether the expected number comes from the pods' controllers instead of the existing pods."""
    return spec.get("maxUnavailable") is not None or isinstance(spec.get("minAvailable"), str)


def desired_healthy(spec: Mapping[str, Any], expected: int) -> int:
    """Return the number of pods that must be healthy."""
    if spec.get("maxUnavailable") is not None:
        return max(0, expected - _share(spec["maxUnavailable"], expected))
    return 0 if spec.get("minAvailable") is None else _share(spec["minAvailable"], expected)


def _share(value: int | str, total: int) -> int:
    """Return an absolute number, or a percentage of the total, rounded up."""
    return value if isinstance(value, int) else -(-int(value.removesuffix("%")) * total // 100)


def disrupted(budget: Obj, pods: Iterable[Obj], now: Instant) -> DisruptedPods:
    """Return the evicted pods that still exist."""
    known = (budget.get("status") or {}).get("disruptedPods") or {}
    left: dict[str, str] = {}
    late: list[Obj] = []
    look_at: Instant | None = None
    for pod in pods:
        name = pod["metadata"]["name"]
        if is_terminating(pod) or name not in known:
            continue
        until = parse_time(known[name]) + DELETION_TIMEOUT
        if until < now:
            late.append(pod)
        else:
            left[name] = known[name]
            look_at = until if look_at is None else min(until, look_at)
    return DisruptedPods(left, tuple(late), look_at)


def status_of(
    budget: Obj, pods: Sequence[Obj], scale: ExpectedPods, gone: Mapping[str, str], now: Instant
) -> dict[str, Any]:
    """Return the status of a budget."""
    desired = desired_healthy(spec_of(budget), scale.expected)
    healthy = sum(is_ready(p) and not is_terminating(p) and p["metadata"]["name"] not in gone for p in pods)
    allowed = max(0, healthy - desired) if scale.expected > 0 else 0
    status = {
        "currentHealthy": healthy,
        "desiredHealthy": desired,
        "disruptionsAllowed": allowed,
        "expectedPods": scale.expected,
        "observedGeneration": budget["metadata"].get("generation", 0),
        "conditions": (budget.get("status") or {}).get("conditions") or [],
    }
    return _judged({**status, "disruptedPods": dict(gone)} if gone else status, now)


def failed_status(budget: Obj, error: str, now: Instant) -> dict[str, Any]:
    """Return the status of a budget that cannot be computed: it allows no disruption."""
    status = {"currentHealthy": 0, "desiredHealthy": 0, "expectedPods": 0, **(budget.get("status") or {})}
    return _with_condition({**status, "disruptionsAllowed": 0}, SYNC_FAILED, error, now)


def _judged(status: dict[str, Any], now: Instant) -> dict[str, Any]:
    return _with_condition(status, SUFFICIENT if status["disruptionsAllowed"] > 0 else INSUFFICIENT, "", now)


def _with_condition(status: Mapping[str, Any], reason: str, message: str, now: Instant) -> dict[str, Any]:
    """Return the status with the DisruptionAllowed condition."""
    known = find_condition({"status": status}, DISRUPTION_ALLOWED)
    word = "True" if reason == SUFFICIENT else "False"
    since = known["lastTransitionTime"] if known is not None and known["status"] == word else format_time(now)
    new = {
        "type": DISRUPTION_ALLOWED,
        "status": word,
        "observedGeneration": status.get("observedGeneration", 0),
        "lastTransitionTime": since,
        "reason": reason,
        "message": message,
    }
    others = [each for each in status.get("conditions") or () if each["type"] != DISRUPTION_ALLOWED]
    return {**status, "conditions": [*others, new]}


# --- evictions ---


def verdict(pod: Obj, budgets: Sequence[Obj], now: Instant) -> EvictionVerdict:
    """Decide on the eviction of a pod, given the budgets of its Namespace."""
    mine = [budget for budget in budgets if guards(budget, pod)] if is_guarded(pod) else []
    if not mine:
        return EvictionVerdict()
    if len(mine) > 1:
        message = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
        return EvictionVerdict(EvictionRefusal(500, "", message))
    budget = mine[0]
    if not is_ready(pod) and _allows_unready(budget):
        return EvictionVerdict()
    refusal = _refusal(budget)
    return EvictionVerdict(refusal) if refusal is not None else EvictionVerdict(spent=_spent(budget, pod, now))


def _allows_unready(budget: Obj) -> bool:
    """Report whether unready pods may be evicted regardless of the remaining disruptions."""
    if spec_of(budget).get("unhealthyPodEvictionPolicy") == _ALWAYS:
        return True
    status = budget.get("status") or {}
    return bool(0 < status.get("desiredHealthy", 0) <= status.get("currentHealthy", 0))


_VIOLATION: Final = "Cannot evict pod as it would violate the pod's disruption budget."


def _refusal(budget: Obj) -> EvictionRefusal | None:
    """Return why a budget rejects an eviction; None if it allows it."""
    status, name = budget.get("status") or {}, budget["metadata"]["name"]
    subject = f"The disruption budget {name}"
    if status.get("observedGeneration", 0) < budget["metadata"].get("generation", 0):
        return EvictionRefusal(
            429, "TooManyRequests", _VIOLATION, f"{subject} is still being processed by the server.", 10
        )
    allowed = status.get("disruptionsAllowed", 0)
    start = f'poddisruptionbudget.policy "{name}" is forbidden'
    if allowed < 0:
        why = "pdb disruptions allowed is negative"
        return EvictionRefusal(
            403, "Forbidden", f"{start}: {why}", f"{subject} does not allow evicting pods currently: {why}"
        )
    if len(status.get("disruptedPods") or ()) > _DISRUPTED_MAX:
        why = "DisruptedPods map too big - too many evictions not confirmed by PDB controller"
        cause = "too many pending evictions not confirmed by PDB controller"
        detail = f"{subject} does not allow evicting pods currently: {cause}"
        return EvictionRefusal(403, "Forbidden", f"{start}: {why}", detail)
    return None if allowed else EvictionRefusal(429, "TooManyRequests", _VIOLATION, _why_none(budget, subject))


def _why_none(budget: Obj, subject: str) -> str:
    """Describe why no disruptions are allowed."""
    status = budget.get("status") or {}
    desired, healthy = status.get("desiredHealthy", 0), status.get("currentHealthy", 0)
    condition = find_condition(budget, DISRUPTION_ALLOWED) or {}
    message = condition.get("message") if condition.get("status") == "False" else ""
    blunt = f"{subject} does not allow evicting pods currently"
    if message and condition.get("reason") == SYNC_FAILED:
        return f"{blunt} because it failed sync: {message}"
    if healthy <= desired:
        return f"{subject} needs {desired} healthy pods and has {healthy} currently"
    return f"{blunt} ({condition['reason']}): {message}" if message else blunt


def _spent(budget: Obj, pod: Obj, now: Instant) -> Obj:
    """Return a budget after an eviction."""
    status = budget["status"]
    gone = {**(status.get("disruptedPods") or {}), pod["metadata"]["name"]: format_time(now)}
    spent = {**status, "disruptionsAllowed": status["disruptionsAllowed"] - 1, "disruptedPods": gone}
    return with_status(budget, spent if spent["disruptionsAllowed"] else _judged(spent, now))


#: Built-in kinds with a scale subresource.
_SCALED: Final = frozenset({scheme.REPLICA_SET, scheme.DEPLOYMENT, scheme.STATEFUL_SET})
STALE_AFTER: Final = 2 * MINUTE
_DELETED: Final = EventType.DELETED
_UNMANAGED: Final = (
    "were found to be unmanaged. As a result, the status of the PDB cannot be calculated correctly, which may result "
    'in undefined behavior. To account for these pods please set ".spec.minAvailable" field of the PDB to an integer '
    "value."
)


class _Unknown(Exception):  # noqa: N818 - named for the condition
    """The expected number of pods cannot be determined."""


class DisruptionBudgets:
    """Runs the disruption controller, with the budgets by Namespace."""

    name = "disruption-budgets"
    rank = 0
    kinds = (scheme.POD_DISRUPTION_BUDGET, scheme.POD)

    def __init__(self) -> None:
        self._budgets: dict[str, dict[Key, Obj]] = {}

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """Return the budget, or those that select the pod; also the pod if it has DisruptionTarget and still exists."""
        key, obj = event.key, event.obj
        if key.kind == scheme.POD_DISRUPTION_BUDGET:
            known = self._budgets.setdefault(key.namespace, {})
            if event.type is _DELETED:
                known.pop(key, None)
                return ()
            known[key] = obj
            return (key,)
        marked = () if event.type is _DELETED or _marked_at(obj) is None else (key,)
        budgets = self._budgets.get(key.namespace)
        if not budgets:
            return marked
        pods = (obj,) if event.old is None else (obj, event.old)
        return [*marked, *(each for each, budget in budgets.items() if any(guards(budget, pod) for pod in pods))]

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Update the status of a budget, or remove DisruptionTarget from a pod."""
        obj = reader.get(key)
        if obj is None:
            return ReconcileResult()
        if key.kind == scheme.POD:
            return _unmarked(obj, now)
        pods = [pod for pod in reader.list(scheme.POD, key.namespace) if guards(obj, pod)]
        outcome = ReconcileResult()
        if not pods:
            outcome.events.append(EventRecord(key, "Normal", "NoPods", "No matching pods found"))
        try:
            scale = _scale(obj, pods, reader)
        except _Unknown as error:
            why = f"Failed to calculate the number of expected pods: {error}"
            outcome.events.append(EventRecord(key, "Warning", "CalculateExpectedPodCountFailed", why))
            return _with_status(outcome, obj, failed_status(obj, str(error), now))
        if scale.unmanaged:
            message = f"Pods selected by this PodDisruptionBudget (selector: {_shown(spec_of(obj))}) {_UNMANAGED}"
            outcome.events.append(EventRecord(key, "Warning", "UnmanagedPods", message))
        gone = disrupted(obj, pods, now)
        for pod in gone.not_deleted:
            message = f"Pod was expected by PDB {key.namespace}/{key.namespace} to be deleted but it wasn't"
            name = Key(scheme.POD, key.namespace, pod["metadata"]["name"])
            outcome.events.append(EventRecord(name, "Warning", "NotDeleted", message))
        outcome.requeue_at = None if gone.look_at is None else gone.look_at + 1
        return _with_status(outcome, obj, status_of(obj, pods, scale, gone.pods, now))


def _with_status(outcome: ReconcileResult, budget: Obj, status: Mapping[str, Any]) -> ReconcileResult:
    if status != budget.get("status"):
        outcome.writes.append(UpdateStatus(with_status(budget, status)))
    return outcome


# --- expected number of pods ---


def _scale(budget: Obj, pods: Iterable[Obj], reader: Reader) -> ExpectedPods:
    """Return the expected number of pods of a budget."""
    spec = spec_of(budget)
    if not counts_controllers(spec):
        return ExpectedPods(0 if spec.get("minAvailable") is None else sum(1 for _ in pods))
    scales: dict[str, int] = {}
    unmanaged: list[str] = []
    for pod in pods:
        owner = controller_of(pod)
        if owner is None:
            unmanaged.append(pod["metadata"]["name"])
        elif owner["uid"] not in scales:
            uid, scale = _scale_of(owner, pod, reader)
            scales[uid] = scale
    return ExpectedPods(sum(scales.values()), tuple(unmanaged))


def _scale_of(owner: Mapping[str, Any], pod: Obj, reader: Reader) -> tuple[str, int]:
    """Return the uid and scale of a pod's controller, or of the Deployment of its ReplicaSet."""
    namespace = pod["metadata"].get("namespace", "")
    constant, path = _scaled(owner, reader)
    found = reader.get(Key(constant, namespace, owner["name"]))
    above = None if found is None or constant != scheme.REPLICA_SET else controller_of(found)
    if above is not None and above["kind"] == "Deployment":
        owner, found = above, reader.get(Key(scheme.DEPLOYMENT, namespace, above["name"]))
    if found is None or found["metadata"]["uid"] != owner["uid"]:
        raise _Unknown(f'found no controllers for pod "{pod["metadata"]["name"]}"')
    value: Any = found
    for field in path:
        value = value.get(field) or {}
    return owner["uid"], value if isinstance(value, int) else 1 if constant in _SCALED else 0


def _scaled(owner: Mapping[str, Any], reader: Reader) -> tuple[str, tuple[str, ...]]:
    """Return the kind of a controller and the path of its replica count. Raise _Unknown if it has none."""
    group, _, version = owner["apiVersion"].rpartition("/")
    info = find_kind(owner["apiVersion"], owner["kind"])
    if info is not None:
        if info.constant not in _SCALED:
            raise _Unknown(f"{_resource(info.plural, group)} does not implement the scale subresource")
        return info.constant, ("spec", "replicas")
    for definition in reader.list(DEFINITION):
        info = kind_of(definition)
        if is_served(definition) and (info.group, info.kind) == (group, owner["kind"]) and version in info.versions:
            parts = next(each for each in definition["spec"]["versions"] if each["name"] == version)
            scale = (parts.get("subresources") or {}).get("scale")
            if scale is None:
                raise _Unknown(f"{_resource(info.plural, group)} does not implement the scale subresource")
            return info.constant, tuple(scale["specReplicasPath"].strip(".").split("."))
    raise _Unknown(f'no matches for kind "{owner["kind"]}" in version "{owner["apiVersion"]}"')


def _resource(plural: str, group: str) -> str:
    return f"{plural}.{group}" if group else plural


def _shown(spec: Mapping[str, Any]) -> str:
    """Format a label selector like Go."""
    given = spec.get("selector")
    if given is None:
        return "nil"
    labels = "".join(f"{key}: {value}," for key, value in sorted((given.get("matchLabels") or {}).items()))
    expressions = "".join(map(_expression, given.get("matchExpressions") or ()))
    matched = f"MatchLabels:map[string]string{{{labels}}},MatchExpressions:[]LabelSelectorRequirement{{{expressions}}},"
    return f"&LabelSelector{{{matched}}}"


def _expression(expression: Mapping[str, Any]) -> str:
    values = " ".join(expression.get("values") or ())
    what = f"Key:{expression['key']},Operator:{expression['operator']},Values:[{values}],"
    return f"LabelSelectorRequirement{{{what}}},"


# --- pods with DisruptionTarget ---


def _marked_at(pod: Obj) -> Instant | None:
    """Return when a pod got DisruptionTarget; None if it has none, is ending, or its kubelet set it."""
    condition = find_condition(pod, DISRUPTION_TARGET)
    if condition is None or condition["status"] != "True" or condition.get("reason") == BY_KUBELET.reason:
        return None
    if is_terminating(pod) or is_terminal(pod):
        return None
    return parse_time(condition["lastTransitionTime"])


def _unmarked(pod: Obj, now: Instant) -> ReconcileResult:
    since = _marked_at(pod)
    if since is None:
        return ReconcileResult()
    if since + STALE_AFTER > now:
        return ReconcileResult(requeue_at=since + STALE_AFTER)
    return ReconcileResult([UpdateStatus(with_condition(pod, DISRUPTION_TARGET, False, ("", ""), now))])
