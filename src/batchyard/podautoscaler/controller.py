"""The controller of HorizontalPodAutoscalers: sets the replicas of an object by the usage of its pods.

It computes the replicas every 15 seconds. In a simulation it also does so after each change of a pod, and otherwise
only while the answer depends on time. Metrics of pods, objects and external systems have no source here. Source:
pkg/controller/podautoscaler of Kubernetes (horizontal.go).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from batchyard.api import meta, scheme
from batchyard.api.errors import ApiError, Conflict
from batchyard.api.printing.kubernetes import format_go_selector
from batchyard.api.times import format_time
from batchyard.base.instant import SECOND, Instant
from batchyard.interfaces.client import EventType, Reader, UpdateStatus, WatchEvent, Write
from batchyard.interfaces.containers import MeasuredUsage
from batchyard.interfaces.controller import EventRecord, ReconcileResult
from batchyard.podautoscaler import replicas as replica_metrics
from batchyard.podautoscaler.behavior import AllowedReplicas, ReplicaBounds, ScalingHistory
from batchyard.podautoscaler.replicas import MetricsError, ReplicaProposal, ResourceMetric, TargetPods
from batchyard.podautoscaler.targets import ScaledNamespace, ScaleError, ScaleTarget, SelectorError, find_target

_SYNC_PERIOD: Final = 15 * SECOND
#: The most measurements of pods in one computation, unless it has few metrics.
_MEASUREMENTS_MAX: Final = 100_000
_METRICS_MIN: Final = 10
_ABLE: Final = "AbleToScale"
_ACTIVE: Final = "ScalingActive"
_LIMITED: Final = "ScalingLimited"
_NO_CUSTOM_METRICS: Final = (
    "unable to fetch metrics from custom metrics API: no custom metrics API (custom.metrics.k8s.io) registered"
)
_NO_EXTERNAL_METRICS: Final = "unable to fetch metrics from external metrics API"
#: The fields of resource metrics: the reason of a failure, and the names of the metric in messages.
_RESOURCE_FIELDS: Final = {"Resource": "resource", "ContainerResource": "containerResource"}

UsageReader = Callable[[meta.Obj], MeasuredUsage | None]


class PodMetricsError(Exception):
    """A metric of an autoscaler cannot be computed: the reason of the Event, its message, and the whole error."""

    def __init__(self, reason: str, message: str, error: str) -> None:
        super().__init__(error)
        self.reason, self.message = reason, message


class Rescale(NamedTuple):
    """A write of the target's replicas, and what the status reports after its result."""

    progress: "AutoscalerProgress"
    old: int
    new: int
    reason: str
    depends_on_time: bool
    is_finished: bool = False
    error: str = ""


class AutoscalerProgress:
    """The conditions, Events and metrics of one computation for an autoscaler."""

    def __init__(self, autoscaler: meta.Obj, now: Instant) -> None:
        self.key = meta.key_of(autoscaler)
        self.status: Mapping[str, Any] = autoscaler.get("status") or {}
        self.conditions: list[meta.Condition] = list(self.status.get("conditions") or ())
        self.events: list[EventRecord] = []
        self.metrics: Sequence[Mapping[str, Any]] = ()
        self.now = now

    def warn(self, reason: str, message: str) -> None:
        """Add a Warning."""
        self.events.append(EventRecord(self.key, "Warning", reason, message))

    def set_condition(self, condition_type: str, reason: str, message: str, *, is_true: bool) -> None:
        """Set a condition; its transition time changes with its status only."""
        status = "True" if is_true else "False"
        new: dict[str, Any] = {"type": condition_type, "status": status, "lastTransitionTime": format_time(self.now)}
        new |= {"reason": reason, "message": message}
        for index, old in enumerate(self.conditions):
            if old["type"] == condition_type:
                kept_time = old.get("lastTransitionTime") if old["status"] == status else None
                self.conditions[index] = {**new, **({"lastTransitionTime": kept_time} if kept_time else {})}
                return
        self.conditions.append(new)

    def new_status(self, current: int, desired: int, *, is_rescaled: bool = False) -> dict[str, Any]:
        """Return the status with these replicas and the metrics and conditions of this computation."""
        status: dict[str, Any] = {"currentReplicas": current, "desiredReplicas": desired}
        last_scale_time = format_time(self.now) if is_rescaled else self.status.get("lastScaleTime")
        status |= {"lastScaleTime": last_scale_time} if last_scale_time else {}
        status |= {"currentMetrics": list(self.metrics)} if self.metrics else {}
        return {**status, "conditions": self.conditions}


class AutoscalerMemory:
    """What the controller remembers of one autoscaler: its history and its last write."""

    def __init__(self) -> None:
        self.history: ScalingHistory | None = None
        self.rescale: Rescale | None = None
        #: When the replicas are computed next.
        self.next_sync: Instant = 0


class PodAutoscalerController:
    """Controller of HorizontalPodAutoscalers, with what it remembers of each of them."""

    name = "horizontal-pod-autoscaler"
    rank = 0

    def __init__(self, usage_of: UsageReader, *, is_endless: bool) -> None:
        """Create the controller; unless `is_endless`, it runs only after changes and while a limit depends on time."""
        self.kinds = (scheme.HORIZONTAL_POD_AUTOSCALER, *(() if is_endless else (scheme.POD,)))
        self._usage_of = usage_of
        self._is_endless = is_endless
        #: By namespace and key.
        self._memories: dict[str, dict[meta.Key, AutoscalerMemory]] = {}
        self._namespaces: dict[str, ScaledNamespace] = {}

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[meta.Key]:
        """Return the key of a new autoscaler; without a fixed period, also after changes of specs and of pods."""
        memories = self._memories.setdefault(event.key.namespace, {})
        if event.key.kind == scheme.POD:
            return list(memories)
        if event.type is EventType.DELETED:
            memories.pop(event.key, None)
            namespace = self.namespace(event.key.namespace)
            namespace.set_selector(event.key, None)
            if not memories and namespace.is_idle(now):
                del self._memories[event.key.namespace], self._namespaces[event.key.namespace]
            return ()
        is_new = event.key not in memories
        memories.setdefault(event.key, AutoscalerMemory())
        has_changed = event.old is not None and event.obj["spec"] != event.old["spec"]
        return (event.key,) if is_new or (has_changed and not self._is_endless) else ()

    def reconcile(self, key: meta.Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Compute the replicas, and write them to the target; after the result, write the status."""
        autoscaler, memory = reader.get(key), self._memories.get(key.namespace, {}).get(key)
        if autoscaler is None or memory is None:
            return ReconcileResult()
        rescale, memory.rescale = memory.rescale, None
        if rescale is not None and rescale.is_finished:
            return self._report_rescale(autoscaler, rescale, memory, now)
        if self._is_endless and now < memory.next_sync:
            return ReconcileResult(requeue_at=memory.next_sync)  # a change does not shorten the period
        if self._is_endless and (turn := self.namespace(key.namespace).turn(now)) > now:
            memory.next_sync = turn
            return ReconcileResult(requeue_at=turn)
        memory.next_sync = now + _SYNC_PERIOD
        progress = AutoscalerProgress(autoscaler, now)
        try:
            target = find_target(autoscaler["spec"]["scaleTargetRef"], key.namespace, reader)
        except ScaleError as error:
            progress.warn("FailedGetScale", str(error))
            message = f"the HPA controller was unable to get the target's current scale: {error}"
            progress.set_condition(_ABLE, "FailedGetScale", message, is_true=False)
            return self._result(autoscaler, progress, {**progress.status, "conditions": progress.conditions})
        message = "the HPA controller was able to get the target's current scale"
        progress.set_condition(_ABLE, "SucceededGetScale", message, is_true=True)
        if memory.history is None:
            memory.history = ScalingHistory(target.replicas, now)
        return self._scale(autoscaler, target, progress, memory, reader)

    def _scale(
        self,
        autoscaler: meta.Obj,
        target: ScaleTarget,
        progress: AutoscalerProgress,
        memory: AutoscalerMemory,
        reader: Reader,
    ) -> ReconcileResult:
        spec, current = autoscaler["spec"], target.replicas
        minimum, maximum = spec.get("minReplicas", 1), spec["maxReplicas"]
        depends_on_time = False
        if current == 0:
            desired, reason = 0, ""
            message = "scaling is disabled since the replica count of the target is zero"
            progress.set_condition(_ACTIVE, "ScalingDisabled", message, is_true=False)
        elif current > maximum:
            desired, reason = maximum, "Current number of replicas above Spec.MaxReplicas"
        elif current < minimum:
            desired, reason = minimum, "Current number of replicas below Spec.MinReplicas"
        else:
            proposal = self._proposal(autoscaler, target, progress, reader)
            if proposal is None:
                desired = progress.status.get("desiredReplicas") or 0
                return self._result(autoscaler, progress, progress.new_status(current, desired))
            allowed = _allowed_replicas(proposal[0], ReplicaBounds(current, minimum, maximum), spec, memory, progress)
            desired, depends_on_time = allowed.replicas, allowed.depends_on_time
            reason = _rescale_reason(current, proposal)
        if desired == current:
            status = progress.new_status(current, desired)
            return self._result(autoscaler, progress, status, depends_on_time=depends_on_time)
        memory.rescale = Rescale(progress, current, desired, reason, depends_on_time)
        on_result = partial(self._record_result, memory)
        return ReconcileResult([target.scaled_to(desired)], independent=True, on_result=on_result)

    def _record_result(self, memory: AutoscalerMemory, write: Write, error: ApiError | None) -> bool:
        if memory.rescale is None:
            return False
        if isinstance(error, Conflict):
            memory.rescale = None  # the target has changed: compute again
            return True
        memory.rescale = memory.rescale._replace(is_finished=True, error="" if error is None else str(error))
        return True

    def _report_rescale(
        self, autoscaler: meta.Obj, rescale: Rescale, memory: AutoscalerMemory, now: Instant
    ) -> ReconcileResult:
        progress, text = rescale.progress, f"New size: {rescale.new}; reason: {rescale.reason}"
        if rescale.error:
            progress.warn("FailedRescale", f"{text}; error: {rescale.error}")
            message = f"the HPA controller was unable to update the target scale: {rescale.error}"
            progress.set_condition(_ABLE, "FailedUpdateScale", message, is_true=False)
            status = progress.new_status(rescale.old, progress.status.get("desiredReplicas") or 0)
            return self._result(autoscaler, progress, status, depends_on_time=True)
        message = f"the HPA controller was able to update the target scale to {rescale.new}"
        progress.set_condition(_ABLE, "SucceededRescale", message, is_true=True)
        progress.events.append(EventRecord(progress.key, "Normal", "SuccessfulRescale", text))
        behavior = autoscaler["spec"].get("behavior")
        if behavior is not None and memory.history is not None:
            memory.history.record_rescale(rescale.old, rescale.new, behavior, now)
        status = progress.new_status(rescale.old, rescale.new, is_rescaled=True)
        return self._result(autoscaler, progress, status, depends_on_time=True)

    def _result(
        self,
        autoscaler: meta.Obj,
        progress: AutoscalerProgress,
        status: Mapping[str, Any],
        *,
        depends_on_time: bool = False,
    ) -> ReconcileResult:
        writes: list[Write] = []
        if status != autoscaler.get("status"):
            writes.append(UpdateStatus(meta.with_status(autoscaler, status)))
        requeue_at = progress.now + _SYNC_PERIOD if self._is_endless or depends_on_time else None
        rejection = partial(_status_rejection_event, progress.key)
        is_settled = bool(writes) and requeue_at is not None
        return ReconcileResult(writes, progress.events, requeue_at, is_settled=is_settled, event_if_rejected=rejection)

    def _proposal(
        self, autoscaler: meta.Obj, target: ScaleTarget, progress: AutoscalerProgress, reader: Reader
    ) -> tuple[int, str] | None:
        """Return the most replicas that a metric proposes, and its name; None if the metrics allow no decision."""
        try:
            pods = self._select_pods(target, progress, reader)
        except SelectorError as error:
            progress.warn("FailedComputeMetricsReplicas", str(error))
            return None
        target_pods = TargetPods(pods, target.replicas, self._usage_of, progress.now)
        specs = limited_metrics(autoscaler["spec"].get("metrics") or (), len(pods))
        self.namespace(progress.key.namespace).count_work(len(pods) * len(specs), progress.now)
        statuses: list[Mapping[str, Any]] = []
        failures: list[PodMetricsError] = []
        best, best_name = 0, ""
        for metric in specs:
            try:
                proposal, name, status = _metric_proposal(autoscaler, metric, target_pods)
            except PodMetricsError as failure:
                progress.warn(failure.reason, failure.message)
                failures.append(failure)
                statuses.append({"type": ""})
                continue
            statuses.append(status)
            if best == 0 or proposal > best:
                best, best_name = proposal, name
        progress.metrics = statuses
        if failures and (len(failures) == len(specs) or best < target.replicas):
            message = f"the HPA was unable to compute the replica count: {failures[0].message}"
            progress.set_condition(_ACTIVE, failures[0].reason, message, is_true=False)
            text = f"invalid metrics ({len(failures)} invalid out of {len(specs)}), first error is: {failures[0]}"
            progress.warn("FailedComputeMetricsReplicas", text)
            return None
        message = f"the HPA was able to successfully calculate a replica count from {best_name}"
        progress.set_condition(_ACTIVE, "ValidMetricFound", message, is_true=True)
        return best, best_name

    def _select_pods(self, target: ScaleTarget, progress: AutoscalerProgress, reader: Reader) -> Sequence[meta.Obj]:
        if not target.selector_text:
            error = "selector is required"
            progress.warn("SelectorRequired", error)
            message = "the HPA target's scale is missing a selector"
            progress.set_condition(_ACTIVE, "InvalidSelector", message, is_true=False)
            raise SelectorError(error)
        try:
            selector = target.parsed_selector()
        except SelectorError as fault:
            error = f"couldn't convert selector into a corresponding internal selector object: {fault}"
            progress.warn("InvalidSelector", error)
            progress.set_condition(_ACTIVE, "InvalidSelector", error, is_true=False)
            raise SelectorError(error) from fault
        namespace = self.namespace(progress.key.namespace)
        namespace.set_selector(progress.key, selector)
        pods = namespace.select_pods(selector, reader, progress.now, is_current=not self._is_endless)
        rivals = namespace.autoscalers_of(pods, progress.now)
        if len(rivals) > 1:
            names = " ".join(f"{{{key.name} {key.namespace}}}" for key in rivals)
            error = f"pods by selector {target.selector_text} are controlled by multiple HPAs: [{names}]"
            progress.warn("AmbiguousSelector", error)
            progress.set_condition(_ACTIVE, "AmbiguousSelector", error, is_true=False)
            raise SelectorError(error)
        return pods

    def namespace(self, name: str) -> ScaledNamespace:
        """Return what the autoscalers of a namespace share."""
        return self._namespaces.setdefault(name, ScaledNamespace(name))


def _status_rejection_event(key: meta.Key, _write: Write, error: ApiError) -> EventRecord | None:
    return EventRecord(key, "Warning", "FailedUpdateStatus", str(error))


def _allowed_replicas(
    recommendation: int,
    bounds: ReplicaBounds,
    spec: Mapping[str, Any],
    memory: AutoscalerMemory,
    progress: AutoscalerProgress,
) -> AllowedReplicas:
    history = memory.history
    assert history is not None, "the history exists before the first computation"
    behavior = spec.get("behavior")
    allowed = (
        history.allow_by_default(recommendation, bounds, progress.now)
        if behavior is None
        else history.allow_by_behavior(recommendation, bounds, behavior, progress.now)
    )
    progress.set_condition(_ABLE, *allowed.able, is_true=True)
    progress.set_condition(_LIMITED, *allowed.limit, is_true=allowed.is_limited)
    return allowed


def _rescale_reason(current: int, proposal: tuple[int, str]) -> str:
    recommendation, metric_name = proposal
    if recommendation > current:
        return f"{metric_name} above target"
    return "All metrics below target" if recommendation < current else ""


# The metrics of an autoscaler.


def limited_metrics(specs: Sequence[Mapping[str, Any]], pods: int) -> Sequence[Mapping[str, Any]]:
    """Return the metrics that are computed for so many pods: of a very long list only the first."""
    return specs[: max(_METRICS_MIN, _MEASUREMENTS_MAX // max(pods, 1))]


def _metric_proposal(
    autoscaler: meta.Obj, metric: Mapping[str, Any], target_pods: TargetPods
) -> tuple[int, str, Mapping[str, Any]]:
    """Return the replicas that a metric proposes, its name in messages, and its status; raise PodMetricsError."""
    metric_type: str = metric["type"]
    if metric_type in _RESOURCE_FIELDS:
        return _resource_proposal(autoscaler, metric, target_pods)
    raise _missing_source_error(autoscaler["metadata"]["namespace"], metric)


def _resource_proposal(
    autoscaler: meta.Obj, metric: Mapping[str, Any], target_pods: TargetPods
) -> tuple[int, str, Mapping[str, Any]]:
    metric_type: str = metric["type"]
    field = _RESOURCE_FIELDS[metric_type]
    source, container = metric[field], metric[field].get("container") or ""
    resource, target = source["name"], source["target"]
    resource_metric = ResourceMetric(resource, container)
    tolerances = replica_metrics.tolerances_of(autoscaler["spec"].get("behavior") or {})
    average_value = target.get("averageValue")
    try:
        if average_value is not None:
            milli = -(-meta.parse_quantity(average_value) // (meta.NANO // 1000))
            proposal = replica_metrics.propose_by_average(resource_metric, milli, tolerances, target_pods)
            name = f"{resource} resource"
        else:
            utilization: int = target["averageUtilization"]
            proposal = replica_metrics.propose_by_utilization(resource_metric, utilization, tolerances, target_pods)
            name = f"{resource} {'container ' if container else ''}resource utilization (percentage of request)"
    except MetricsError as error:
        message = f"failed to get {resource} {'utilization' if average_value is None else 'usage'}: {error}"
        subject = f"{container} container metric" if container else f"{resource} resource metric"
        raise PodMetricsError(
            f"FailedGet{metric_type}Metric", message, f"failed to get {subject} value: {message}"
        ) from error
    status = {"name": resource, **({"container": container} if container else {})}
    return proposal.replicas, name, {"type": metric_type, field: {**status, "current": _current(resource, proposal)}}


def _current(resource: str, proposal: ReplicaProposal) -> Mapping[str, Any]:
    average = {"averageValue": replica_metrics.format_usage(resource, proposal.average_usage)}
    return average if proposal.utilization is None else {**average, "averageUtilization": proposal.utilization}


def _missing_source_error(namespace: str, metric: Mapping[str, Any]) -> PodMetricsError:
    """Return the error of Kubernetes for a metric whose API is not installed."""
    match metric["type"]:
        case "Pods":
            name = metric["pods"]["metric"]["name"]
            message = f"unable to get metric {name}: {_NO_CUSTOM_METRICS}"
            return PodMetricsError("FailedGetPodsMetric", message, f"failed to get pods metric value: {message}")
        case "Object":
            source = metric["object"]
            name, described = source["metric"]["name"], source["describedObject"]
            place = f"{described['kind']} on {namespace} {described['name']}/{_NO_CUSTOM_METRICS}"
            message = error = f"unable to get metric {name}: {place}"
            if source["target"].get("averageValue") is not None and source["target"]["type"] == "AverageValue":
                error = f"failed to get {name} object metric: {message}"
            return PodMetricsError("FailedGetObjectMetric", message, f"failed to get object metric value: {error}")
    source = metric["external"]
    name, selector = source["metric"]["name"], source["metric"].get("selector")
    place = f"{namespace}/{name}/{'nil' if selector is None else format_go_selector(selector)}"
    message = f"unable to get external metric {place}: {_NO_EXTERNAL_METRICS}: {_not_served(name)}"
    is_average = source["target"].get("averageValue") is not None
    error = f"failed to get {name} external metric" if is_average else f"failed to get external metric {name}"
    return PodMetricsError(
        "FailedGetExternalMetric", message, f"failed to get {name} external metric value: {error}: {message}"
    )


def _not_served(name: str) -> str:
    return f"the server could not find the requested resource (get {name}.external.metrics.k8s.io)"
