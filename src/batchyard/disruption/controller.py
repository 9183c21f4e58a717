"""Disruption controller: updates the status of PodDisruptionBudgets.

A pod with DisruptionTarget that is not deleted within two minutes loses that condition. Source: Kubernetes's
pkg/controller/disruption.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from batchyard.api import scheme
from batchyard.api.conditions import find_condition
from batchyard.api.custom_kinds import DEFINITION, is_served, kind_of
from batchyard.api.meta import Key, Obj, controller_of, with_status
from batchyard.api.scheme import find_kind
from batchyard.api.times import parse_time
from batchyard.api.views.pod_lifecycle import BY_KUBELET, DISRUPTION_TARGET, is_terminal, is_terminating, with_condition
from batchyard.base.instant import MINUTE, Instant
from batchyard.disruption.budgets import (
    ExpectedPods,
    counts_controllers,
    disrupted,
    failed_status,
    guards,
    spec_of,
    status_of,
)
from batchyard.interfaces.client import EventType, Reader, UpdateStatus, WatchEvent
from batchyard.interfaces.controller import EventRecord, ReconcileResult

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
