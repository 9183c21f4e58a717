"""The disruption controller: computes the status of PodDisruptionBudgets, and decides whether pods may be evicted.

The controller also sets the condition DisruptionTarget to False on pods that are not deleted within two minutes.
Source: Kubernetes's pkg/controller/disruption.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from batchyard.api import scheme
from batchyard.api.custom_kinds import DEFINITION, is_served, kind_from_definition
from batchyard.api.meta import Key, Obj, controller_of, find_condition, parse_selector, with_status
from batchyard.api.scheme import find_kind
from batchyard.api.times import format_time, parse_time
from batchyard.api.views.pods import (
    DISRUPTION_BY_KUBELET,
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

# Sources: Kubernetes's pkg/controller/disruption, pkg/registry/core/pod/storage/eviction.go.


DISRUPTION_ALLOWED: Final = "DisruptionAllowed"
SUFFICIENT_PODS: Final = "SufficientPods"
INSUFFICIENT_PODS: Final = "InsufficientPods"
SYNC_FAILED: Final = "SyncFailed"
#: How long an evicted pod counts as disrupted if it is not deleted.
DELETION_TIMEOUT: Final = 2 * MINUTE
#: The maximum number of evicted pods that the controller has not confirmed.
_DISRUPTED_PODS_MAX: Final = 2000
_ALWAYS_ALLOW: Final = "AlwaysAllow"


class ExpectedPods(NamedTuple):
    """The number of pods that a PodDisruptionBudget expects, as in its `status.expectedPods`.

    `unmanaged_names` are the names of its pods without a controller, which a budget based on controllers cannot count.
    """

    total: int
    unmanaged_names: tuple[str, ...] = ()


class DisruptedPods(NamedTuple):
    """The evicted, but not yet terminating pods of a PodDisruptionBudget: before and after DELETION_TIMEOUT."""

    #: The eviction times of the pods within the timeout, by pod name.
    eviction_times: Mapping[str, str]
    #: The evicted pods that were not deleted in time.
    undeleted_pods: tuple[Obj, ...]
    #: When the first timeout ends; None if no pod is within the timeout.
    expires_at: Instant | None


class EvictionRefusal(NamedTuple):
    """The API error with which the API server rejects an eviction."""

    code: int
    reason: str
    message: str
    #: The message of the cause in the details of the error; '' for none.
    cause: str = ""
    #: The seconds after which the client may try again; 0 if unknown.
    retry_after: int = 0


class EvictionDecision(NamedTuple):
    """Whether a pod may be evicted: a refusal or None, and the changed PodDisruptionBudget to write or None."""

    refusal: EvictionRefusal | None = None
    new_budget: Obj | None = None


def spec_of(budget: Obj) -> Mapping[str, Any]:
    """Return the spec of a PodDisruptionBudget; {}, which selects no pods, if it has none."""
    return budget.get("spec") or {}


def selects_pod(budget: Obj, pod: Obj) -> bool:
    """Return whether a PodDisruptionBudget selects a pod of the same Namespace by its labels."""
    label_selector = parse_selector(spec_of(budget).get("selector"))
    return label_selector is not None and label_selector.matches(pod["metadata"].get("labels") or {})


def is_subject_to_budgets(pod: Obj) -> bool:
    """Return whether PodDisruptionBudgets protect a pod: it is not Pending, has not ended and is not being deleted."""
    return phase(pod) != PENDING and not is_terminal(pod) and not is_terminating(pod)


def is_based_on_controllers(spec: Mapping[str, Any]) -> bool:
    """Return whether a budget's pods are counted by the scale of their controllers instead of the existing pods."""
    return spec.get("maxUnavailable") is not None or isinstance(spec.get("minAvailable"), str)


def desired_healthy_count(spec: Mapping[str, Any], expected_count: int) -> int:
    """Return how many of the expected pods a PodDisruptionBudget requires to be healthy; 0 without a limit."""
    if spec.get("maxUnavailable") is not None:
        return max(0, expected_count - _resolve_percentage(spec["maxUnavailable"], expected_count))
    return 0 if spec.get("minAvailable") is None else _resolve_percentage(spec["minAvailable"], expected_count)


def _resolve_percentage(value: int | str, total: int) -> int:
    return value if isinstance(value, int) else -(-int(value.removesuffix("%")) * total // 100)


def find_disrupted(budget: Obj, pods: Iterable[Obj], now: Instant) -> DisruptedPods:
    """Return those of a budget's pods that were evicted and are not terminating yet."""
    eviction_times = (budget.get("status") or {}).get("disruptedPods") or {}
    pending_evictions: dict[str, str] = {}
    undeleted_pods: list[Obj] = []
    first_expiry_time: Instant | None = None
    for pod in pods:
        name = pod["metadata"]["name"]
        if is_terminating(pod) or name not in eviction_times:
            continue
        expires_at = parse_time(eviction_times[name]) + DELETION_TIMEOUT
        if expires_at < now:
            undeleted_pods.append(pod)
        else:
            pending_evictions[name] = eviction_times[name]
            first_expiry_time = expires_at if first_expiry_time is None else min(expires_at, first_expiry_time)
    return DisruptedPods(pending_evictions, tuple(undeleted_pods), first_expiry_time)


def status_of(
    budget: Obj, pods: Sequence[Obj], expected_pods: ExpectedPods, disrupted_pods: Mapping[str, str], now: Instant
) -> dict[str, Any]:
    """Return the new status of a PodDisruptionBudget from its pods, their expected number and the evicted pods."""
    desired_count = desired_healthy_count(spec_of(budget), expected_pods.total)
    healthy_count = sum(
        is_ready(p) and not is_terminating(p) and p["metadata"]["name"] not in disrupted_pods for p in pods
    )
    allowed_count = max(0, healthy_count - desired_count) if expected_pods.total > 0 else 0
    status = {
        "currentHealthy": healthy_count,
        "desiredHealthy": desired_count,
        "disruptionsAllowed": allowed_count,
        "expectedPods": expected_pods.total,
        "observedGeneration": budget["metadata"].get("generation", 0),
        "conditions": (budget.get("status") or {}).get("conditions") or [],
    }
    return _with_allowed_condition({**status, "disruptedPods": dict(disrupted_pods)} if disrupted_pods else status, now)


def failed_status(budget: Obj, error: str, now: Instant) -> dict[str, Any]:
    """Return the status of a PodDisruptionBudget whose expected pods are unknown: it allows no disruption."""
    status = {"currentHealthy": 0, "desiredHealthy": 0, "expectedPods": 0, **(budget.get("status") or {})}
    return _with_condition({**status, "disruptionsAllowed": 0}, SYNC_FAILED, error, now)


def _with_allowed_condition(status: dict[str, Any], now: Instant) -> dict[str, Any]:
    return _with_condition(status, SUFFICIENT_PODS if status["disruptionsAllowed"] > 0 else INSUFFICIENT_PODS, "", now)


def _with_condition(status: Mapping[str, Any], reason: str, message: str, now: Instant) -> dict[str, Any]:
    old = find_condition({"status": status}, DISRUPTION_ALLOWED)
    value = "True" if reason == SUFFICIENT_PODS else "False"
    changed_at = old["lastTransitionTime"] if old is not None and old["status"] == value else format_time(now)
    new = {
        "type": DISRUPTION_ALLOWED,
        "status": value,
        "observedGeneration": status.get("observedGeneration", 0),
        "lastTransitionTime": changed_at,
        "reason": reason,
        "message": message,
    }
    other_conditions = [each for each in status.get("conditions") or () if each["type"] != DISRUPTION_ALLOWED]
    return {**status, "conditions": [*other_conditions, new]}


def eviction_decision(pod: Obj, budgets: Sequence[Obj], now: Instant) -> EvictionDecision:
    """Return whether a pod may be evicted under the PodDisruptionBudgets of its Namespace."""
    matching_budgets = [budget for budget in budgets if selects_pod(budget, pod)] if is_subject_to_budgets(pod) else []
    if not matching_budgets:
        return EvictionDecision()
    if len(matching_budgets) > 1:
        message = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
        return EvictionDecision(EvictionRefusal(500, "", message))
    budget = matching_budgets[0]
    if not is_ready(pod) and _allows_evicting_unready_pods(budget):
        return EvictionDecision()
    refusal = _eviction_refusal(budget)
    return EvictionDecision(refusal) if refusal else EvictionDecision(new_budget=_record_eviction(budget, pod, now))


def _allows_evicting_unready_pods(budget: Obj) -> bool:
    """Return whether a budget lets unready pods be evicted even if it allows no disruption."""
    if spec_of(budget).get("unhealthyPodEvictionPolicy") == _ALWAYS_ALLOW:
        return True
    status = budget.get("status") or {}
    return bool(0 < status.get("desiredHealthy", 0) <= status.get("currentHealthy", 0))


_VIOLATION: Final = "Cannot evict pod as it would violate the pod's disruption budget."


def _eviction_refusal(budget: Obj) -> EvictionRefusal | None:
    status, name = budget.get("status") or {}, budget["metadata"]["name"]
    subject = f"The disruption budget {name}"
    if status.get("observedGeneration", 0) < budget["metadata"].get("generation", 0):
        refusal_detail = f"{subject} is still being processed by the server."
        return EvictionRefusal(429, "TooManyRequests", _VIOLATION, refusal_detail, 10)
    count = status.get("disruptionsAllowed", 0)
    message_start = f'poddisruptionbudget.policy "{name}" is forbidden'
    if count < 0:
        reason = "pdb disruptions allowed is negative"
        refusal_detail = f"{subject} does not allow evicting pods currently: {reason}"
        return EvictionRefusal(403, "Forbidden", f"{message_start}: {reason}", refusal_detail)
    if len(status.get("disruptedPods") or ()) > _DISRUPTED_PODS_MAX:
        reason = "DisruptedPods map too big - too many evictions not confirmed by PDB controller"
        cause = "too many pending evictions not confirmed by PDB controller"
        refusal_detail = f"{subject} does not allow evicting pods currently: {cause}"
        return EvictionRefusal(403, "Forbidden", f"{message_start}: {reason}", refusal_detail)
    return None if count else EvictionRefusal(429, "TooManyRequests", _VIOLATION, _describe_refusal(budget, subject))


def _describe_refusal(budget: Obj, subject: str) -> str:
    status = budget.get("status") or {}
    desired_count, healthy_count = status.get("desiredHealthy", 0), status.get("currentHealthy", 0)
    condition = find_condition(budget, DISRUPTION_ALLOWED) or {}
    message = condition.get("message") if condition.get("status") == "False" else ""
    default_text = f"{subject} does not allow evicting pods currently"
    if message and condition.get("reason") == SYNC_FAILED:
        return f"{default_text} because it failed sync: {message}"
    if healthy_count <= desired_count:
        return f"{subject} needs {desired_count} healthy pods and has {healthy_count} currently"
    return f"{default_text} ({condition['reason']}): {message}" if message else default_text


def _record_eviction(budget: Obj, pod: Obj, now: Instant) -> Obj:
    status = budget["status"]
    disrupted_pods = {**(status.get("disruptedPods") or {}), pod["metadata"]["name"]: format_time(now)}
    new = {**status, "disruptionsAllowed": status["disruptionsAllowed"] - 1, "disruptedPods": disrupted_pods}
    return with_status(budget, new if new["disruptionsAllowed"] else _with_allowed_condition(new, now))


STALE_CONDITION_AGE: Final = 2 * MINUTE
_DELETED: Final = EventType.DELETED
_UNMANAGED_MESSAGE: Final = (
    "were found to be unmanaged. As a result, the status of the PDB cannot be calculated correctly, which may result "
    'in undefined behavior. To account for these pods please set ".spec.minAvailable" field of the PDB to an integer '
    "value."
)


class _UnknownScaleError(Exception):
    """Raised if the expected number of a budget's pods is unknown, because the scale of a controller cannot be read."""


class DisruptionBudgets:
    """The disruption controller, which updates the status of PodDisruptionBudgets."""

    name = "disruption-budgets"
    rank = 0
    kinds = (scheme.POD_DISRUPTION_BUDGET, scheme.POD)

    def __init__(self) -> None:
        self._budgets: dict[str, dict[Key, Obj]] = {}

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """Return the key of a created or updated PodDisruptionBudget; for a pod, the keys of those that select it.

        While a pod has the condition DisruptionTarget, its own key is returned too, because the condition may become
        stale.
        """
        key, obj = event.key, event.obj
        if key.kind == scheme.POD_DISRUPTION_BUDGET:
            namespace_budgets = self._budgets.setdefault(key.namespace, {})
            if event.type is _DELETED:
                namespace_budgets.pop(key, None)
                return ()
            namespace_budgets[key] = obj
            return (key,)
        pod_keys = () if event.type is _DELETED or _disrupted_since(obj) is None else (key,)
        budgets = self._budgets.get(key.namespace)
        if not budgets:
            return pod_keys
        pods = (obj,) if event.old is None else (obj, event.old)
        return [*pod_keys, *(key for key, budget in budgets.items() if any(selects_pod(budget, pod) for pod in pods))]

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Update the status of a PodDisruptionBudget, or set a stale condition DisruptionTarget of a pod to False."""
        obj = reader.get(key)
        if obj is None:
            return ReconcileResult()
        if key.kind == scheme.POD:
            return _reset_stale_condition(obj, now)
        pods = [pod for pod in reader.list(scheme.POD, key.namespace) if selects_pod(obj, pod)]
        outcome = ReconcileResult()
        if not pods:
            outcome.events.append(EventRecord(key, "Normal", "NoPods", "No matching pods found"))
        try:
            expected_pods = _count_expected_pods(obj, pods, reader)
        except _UnknownScaleError as error:
            message = f"Failed to calculate the number of expected pods: {error}"
            outcome.events.append(EventRecord(key, "Warning", "CalculateExpectedPodCountFailed", message))
            return _with_status_update(outcome, obj, failed_status(obj, str(error), now))
        if expected_pods.unmanaged_names:
            selector_text = _format_selector(spec_of(obj)["selector"])
            message = f"Pods selected by this PodDisruptionBudget (selector: {selector_text}) {_UNMANAGED_MESSAGE}"
            outcome.events.append(EventRecord(key, "Warning", "UnmanagedPods", message))
        disrupted_pods = find_disrupted(obj, pods, now)
        for pod in disrupted_pods.undeleted_pods:
            message = f"Pod was expected by PDB {key.namespace}/{key.namespace} to be deleted but it wasn't"
            pod_key = Key(scheme.POD, key.namespace, pod["metadata"]["name"])
            outcome.events.append(EventRecord(pod_key, "Warning", "NotDeleted", message))
        outcome.requeue_at = None if disrupted_pods.expires_at is None else disrupted_pods.expires_at + 1
        return _with_status_update(
            outcome, obj, status_of(obj, pods, expected_pods, disrupted_pods.eviction_times, now)
        )


def _with_status_update(outcome: ReconcileResult, budget: Obj, status: Mapping[str, Any]) -> ReconcileResult:
    if status != budget.get("status"):
        outcome.writes.append(UpdateStatus(with_status(budget, status)))
    return outcome


def _count_expected_pods(budget: Obj, pods: Iterable[Obj], reader: Reader) -> ExpectedPods:
    spec = spec_of(budget)
    if not is_based_on_controllers(spec):
        return ExpectedPods(0 if spec.get("minAvailable") is None else sum(1 for _ in pods))
    scale_by_uid: dict[str, int] = {}
    unmanaged_names: list[str] = []
    for pod in pods:
        owner = controller_of(pod)
        if owner is None:
            unmanaged_names.append(pod["metadata"]["name"])
        elif owner["uid"] not in scale_by_uid:
            uid, replica_count = _controller_uid_and_scale(owner, pod, reader)
            scale_by_uid[uid] = replica_count
    return ExpectedPods(sum(scale_by_uid.values()), tuple(unmanaged_names))


def _controller_uid_and_scale(owner: Mapping[str, Any], pod: Obj, reader: Reader) -> tuple[str, int]:
    """Return the uid and replica count of a pod's controller, or of the Deployment that owns its ReplicaSet.

    Raise _UnknownScaleError if the controller does not exist or has no scale.
    """
    namespace = pod["metadata"].get("namespace", "")
    controller_kind, replicas_path = _controller_kind_and_scale_path(owner, reader)
    controller = reader.get(Key(controller_kind, namespace, owner["name"]))
    parent = None if controller is None or controller_kind != scheme.REPLICA_SET else controller_of(controller)
    if parent is not None and parent["kind"] == "Deployment":
        owner, controller = parent, reader.get(Key(scheme.DEPLOYMENT, namespace, parent["name"]))
    if controller is None or controller["metadata"]["uid"] != owner["uid"]:
        raise _UnknownScaleError(f'found no controllers for pod "{pod["metadata"]["name"]}"')
    value: Any = controller
    for field in replicas_path:
        value = value.get(field) or {}
    return owner["uid"], value if isinstance(value, int) else 1 if controller_kind in scheme.SCALABLE_KINDS else 0


def _controller_kind_and_scale_path(owner: Mapping[str, Any], reader: Reader) -> tuple[str, tuple[str, ...]]:
    group, _, version = owner["apiVersion"].rpartition("/")
    info = find_kind(owner["apiVersion"], owner["kind"])
    if info is not None:
        if info.constant not in scheme.SCALABLE_KINDS:
            raise _UnknownScaleError(f"{_resource(info.plural, group)} does not implement the scale subresource")
        return info.constant, ("spec", "replicas")
    for definition in reader.list(DEFINITION):
        info = kind_from_definition(definition)
        if is_served(definition) and (info.group, info.kind) == (group, owner["kind"]) and version in info.versions:
            version_spec = next(each for each in definition["spec"]["versions"] if each["name"] == version)
            scale_subresource = (version_spec.get("subresources") or {}).get("scale")
            if scale_subresource is None:
                raise _UnknownScaleError(f"{_resource(info.plural, group)} does not implement the scale subresource")
            return info.constant, tuple(scale_subresource["specReplicasPath"].strip(".").split("."))
    raise _UnknownScaleError(f'no matches for kind "{owner["kind"]}" in version "{owner["apiVersion"]}"')


def _resource(plural: str, group: str) -> str:
    return f"{plural}.{group}" if group else plural


def _format_selector(label_selector: Mapping[str, Any]) -> str:
    """Return a label selector in the text form of Go's LabelSelector.String()."""
    labels = "".join(f"{key}: {value}," for key, value in sorted((label_selector.get("matchLabels") or {}).items()))
    expressions = "".join(map(_format_selector_expression, label_selector.get("matchExpressions") or ()))
    text = f"MatchLabels:map[string]string{{{labels}}},MatchExpressions:[]LabelSelectorRequirement{{{expressions}}},"
    return f"&LabelSelector{{{text}}}"


def _format_selector_expression(expression: Mapping[str, Any]) -> str:
    values = " ".join(expression.get("values") or ())
    fields_text = f"Key:{expression['key']},Operator:{expression['operator']},Values:[{values}],"
    return f"LabelSelectorRequirement{{{fields_text}}},"


def _disrupted_since(pod: Obj) -> Instant | None:
    """Return when DisruptionTarget of a pod became True; None if it is not True or was set by the kubelet.

    The result is also None for a pod that is terminating or has ended.
    """
    condition = find_condition(pod, DISRUPTION_TARGET)
    if condition is None or condition["status"] != "True" or condition.get("reason") == DISRUPTION_BY_KUBELET.reason:
        return None
    if is_terminating(pod) or is_terminal(pod):
        return None
    return parse_time(condition["lastTransitionTime"])


def _reset_stale_condition(pod: Obj, now: Instant) -> ReconcileResult:
    disrupted_at = _disrupted_since(pod)
    if disrupted_at is None:
        return ReconcileResult()
    if disrupted_at + STALE_CONDITION_AGE > now:
        return ReconcileResult(requeue_at=disrupted_at + STALE_CONDITION_AGE)
    return ReconcileResult([UpdateStatus(with_condition(pod, DISRUPTION_TARGET, False, ("", ""), now))])
