"""The number of replicas that one metric of a HorizontalPodAutoscaler proposes, from the usage of the pods.

Amounts are in thousandths: of a core for cpu, of a byte for memory. Source: pkg/controller/podautoscaler of Kubernetes
(replica_calculator.go, metrics).
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from math import ceil
from typing import Any, Final, NamedTuple

from batchyard.api import meta
from batchyard.api.times import parse_time
from batchyard.api.views.node import total_pod_requests
from batchyard.api.views.pods import FAILED, PENDING, READY, RUNNING, is_terminating, phase
from batchyard.base.instant import MINUTE, SECOND, Duration, Instant
from batchyard.interfaces.containers import MeasuredUsage

#: The time after the start of a pod in which its CPU usage counts only while the pod is ready.
CPU_INITIALIZATION_PERIOD: Final = 5 * MINUTE
#: A pod that was ready only within this time of its start counts as never ready.
INITIAL_READINESS_DELAY: Final = 30 * SECOND
#: The share by which usage may differ from the target without a change, unless the behavior has another one.
DEFAULT_TOLERANCE: Final = 0.1
_REPLICAS_MAX: Final = 2**31 - 1
_NANO_PER_MILLI: Final = meta.NANO // 1000
_POD_LEVEL_RESOURCES: Final = ("cpu", "memory")


class MetricsError(Exception):
    """A metric cannot be computed; the message is that of Kubernetes."""


class PodMetric(NamedTuple):
    """The usage of one pod, when it was read, and the interval of the measurement."""

    amount: int
    at: Instant = 0
    window: Duration = 0


class ReplicaProposal(NamedTuple):
    """The replicas that a metric proposes, the average usage per pod, and the utilization in percent, if computed."""

    replicas: int
    average_usage: int
    utilization: int | None = None


class ScalingTolerances(NamedTuple):
    """The shares by which the usage may be below or above the target without a change of replicas."""

    down: float = DEFAULT_TOLERANCE
    up: float = DEFAULT_TOLERANCE

    def is_within(self, usage_ratio: float) -> bool:
        """Return whether a ratio of usage and target is too close to 1 for a change."""
        return 1 - self.down <= usage_ratio <= 1 + self.up


class TargetPods(NamedTuple):
    """The pods of a scaled object, the current replicas, the usage of a pod, and the time of the computation."""

    pods: Sequence[meta.Obj]
    current_replicas: int
    usage_of: Callable[[meta.Obj], MeasuredUsage | None]
    now: Instant


class ResourceMetric(NamedTuple):
    """A resource whose usage is compared with a target, of one container or ('') of all containers of a pod."""

    resource: str
    container: str = ""


def tolerances_of(behavior: Mapping[str, Any]) -> ScalingTolerances:
    """Return the tolerances of a behavior; the default of each is 0.1."""
    values = ((behavior.get(direction) or {}).get("tolerance") for direction in ("scaleDown", "scaleUp"))
    return ScalingTolerances(
        *(DEFAULT_TOLERANCE if value is None else meta.parse_quantity(value) / meta.NANO for value in values)
    )


def propose_by_utilization(
    metric: ResourceMetric, target_utilization: int, tolerances: ScalingTolerances, target: TargetPods
) -> ReplicaProposal:
    """Return the replicas whose usage is `target_utilization` percent of their requests; raise MetricsError."""
    groups, measured = _measure(metric, target)
    requests = {pod["metadata"]["name"]: pod_request(pod, metric) for pod in target.pods}
    fallback = max(100, target_utilization)

    def ratio_of(amounts: Mapping[str, int]) -> tuple[float, int]:
        requested = sum(requests[name] for name in amounts if name in requests)
        if not requested:
            raise MetricsError("no metrics returned matched known pods")
        utilization = sum(amounts.values()) * 100 // requested
        return utilization / target_utilization, utilization

    usage_ratio, utilization = ratio_of(measured)
    replicas = _scaled_replicas(
        usage_ratio,
        groups,
        lambda added: ratio_of({**measured, **added})[0],
        lambda name: requests[name] * fallback // 100,
        tolerances,
        (target.current_replicas, len(measured)),
    )
    return ReplicaProposal(replicas, sum(measured.values()) // len(measured), utilization)


def propose_by_average(
    metric: ResourceMetric, target_usage: int, tolerances: ScalingTolerances, target: TargetPods
) -> ReplicaProposal:
    """Return the replicas whose average usage is `target_usage` thousandths; raise MetricsError without metrics."""
    groups, measured = _measure(metric, target)

    def ratio_of(amounts: Mapping[str, int]) -> float:
        return sum(amounts.values()) // len(amounts) / target_usage

    replicas = _scaled_replicas(
        ratio_of(measured),
        groups,
        lambda added: ratio_of({**measured, **added}),
        lambda _: target_usage,
        tolerances,
        (target.current_replicas, len(measured)),
    )
    return ReplicaProposal(replicas, sum(measured.values()) // len(measured))


def _measure(metric: ResourceMetric, target: TargetPods) -> tuple["PodGroups", Mapping[str, int]]:
    """Return the groups of the pods, and the usage of the ready ones by name."""
    metrics = pod_metrics(metric, target)
    if not target.pods:
        raise MetricsError("no pods returned by selector while calculating replica count")
    groups = group_pods(target.pods, metrics, metric.resource, target.now)
    excluded = {*groups.ignored, *groups.unready}
    measured = {name: metric.amount for name, metric in metrics.items() if name not in excluded}
    if not measured:
        raise MetricsError("did not receive metrics for targeted pods (pods might be unready)")
    return groups, measured


def _scaled_replicas(
    usage_ratio: float,
    groups: "PodGroups",
    ratio_with: Callable[[Mapping[str, int]], float],
    amount_of_missing: Callable[[str], int],
    tolerances: ScalingTolerances,
    counts: tuple[int, int],
) -> int:
    """Return the proposed replicas; `counts` are the current replicas and the number of measured pods.

    Pods without metrics count as if they used the whole target when fewer replicas suffice, and nothing when more are
    needed. So do pods that are not ready, when more are needed.
    """
    current_replicas, measured_count = counts
    counts_unready = bool(groups.unready) and usage_ratio > 1
    if not counts_unready and not groups.missing:
        is_close = tolerances.is_within(usage_ratio)
        return current_replicas if is_close else _rounded_up(usage_ratio * groups.ready_count)
    added: dict[str, int] = {}
    if usage_ratio < 1:
        added = {name: amount_of_missing(name) for name in groups.missing}
    elif usage_ratio > 1:
        added = dict.fromkeys((*groups.missing, *(groups.unready if counts_unready else ())), 0)
    new_ratio = ratio_with(added)
    changes_direction = (usage_ratio < 1 < new_ratio) or (usage_ratio > 1 > new_ratio)
    if tolerances.is_within(new_ratio) or changes_direction:
        return current_replicas
    replicas = _rounded_up(new_ratio * (measured_count + len(added)))
    is_opposite = (new_ratio < 1 and replicas > current_replicas) or (new_ratio > 1 and replicas < current_replicas)
    return current_replicas if is_opposite else replicas


def _rounded_up(replicas: float) -> int:
    return min(ceil(replicas), _REPLICAS_MAX)


# The usage and the requests of pods.


def pod_metrics(metric: ResourceMetric, target: TargetPods) -> Mapping[str, PodMetric]:
    """Return the usage of the running pods by name; raise MetricsError if no usage is known.

    A pod whose usage is not known for each container is left out.
    """
    metrics: dict[str, PodMetric] = {}
    has_measurements = False
    for pod in target.pods:
        measurement = target.usage_of(pod) if phase(pod) == RUNNING else None
        if measurement is None:
            continue
        has_measurements = True
        usages = [
            usage.get(metric.resource)
            for container, usage in measurement.usage.items()
            if metric.container in {"", container}
        ]
        amounts = [each for each in usages if each is not None]
        if usages and len(amounts) == len(usages):
            factor = 1 if metric.resource == "cpu" else 1000
            at = target.now // SECOND * SECOND
            metrics[pod["metadata"]["name"]] = PodMetric(sum(amounts) * factor, at, measurement.window_microseconds)
    if not has_measurements:
        raise MetricsError(f"unable to get metrics for resource {metric.resource}: {_NO_METRICS_TEXT}")
    return metrics


_NO_METRICS_TEXT: Final = "no metrics returned from resource metrics API"


class PodGroups(NamedTuple):
    """The names of pods that do not count as ready, and the number of those that do."""

    ready_count: int
    unready: Collection[str]
    missing: Collection[str]
    ignored: Collection[str]


def group_pods(pods: Sequence[meta.Obj], metrics: Mapping[str, PodMetric], resource: str, now: Instant) -> PodGroups:
    """Group pods: ended or being deleted (ignored), pending or not ready (unready), without metrics, and ready."""
    ready_count, unready, missing, ignored = 0, list[str](), list[str](), list[str]()
    for pod in pods:
        name, pod_phase = pod["metadata"]["name"], phase(pod)
        if is_terminating(pod) or pod_phase == FAILED:
            ignored.append(name)
        elif pod_phase == PENDING:
            unready.append(name)
        elif name not in metrics:
            missing.append(name)
        elif resource == "cpu" and not _has_valid_cpu_usage(pod, metrics[name], now):
            unready.append(name)
        else:
            ready_count += 1
    return PodGroups(ready_count, unready, missing, ignored)


def _has_valid_cpu_usage(pod: meta.Obj, metric: PodMetric, now: Instant) -> bool:
    condition, start_text = meta.find_condition(pod, READY), (pod.get("status") or {}).get("startTime")
    if condition is None or not start_text:
        return False
    start, is_unready = parse_time(start_text), condition["status"] == "False"
    transition_text = condition.get("lastTransitionTime")
    transition = parse_time(transition_text) // SECOND * SECOND if transition_text else 0
    if start + CPU_INITIALIZATION_PERIOD > now:
        return not is_unready and metric.at >= transition + metric.window
    return not (is_unready and start + INITIAL_READINESS_DELAY > transition)


def pod_request(pod: meta.Obj, metric: ResourceMetric) -> int:
    """Return the request of a pod or of one of its containers in thousandths; raise MetricsError if it is missing."""
    name, spec, resource = pod["metadata"]["name"], pod["spec"], metric.resource
    pod_requests = (spec.get("resources") or {}).get("requests") or {}
    if not metric.container and any(
        each in _POD_LEVEL_RESOURCES or each.startswith("hugepages-") for each in pod_requests
    ):
        nano = total_pod_requests(spec).get(resource)
        if nano is None:
            raise MetricsError(f"missing pod-level request for {resource} in Pod {name}")
        return -(-nano // _NANO_PER_MILLI)
    sidecars = [each for each in spec.get("initContainers") or () if each.get("restartPolicy") == "Always"]
    total = 0
    for container in (*spec["containers"], *sidecars):
        if metric.container not in {"", container["name"]}:
            continue
        value = ((container.get("resources") or {}).get("requests") or {}).get(resource)
        if value is None:
            raise MetricsError(f"missing request for {resource} in container {container['name']} of Pod {name}")
        total += -(-meta.parse_quantity(value) // _NANO_PER_MILLI)
        if metric.container:
            return total
    if metric.container:
        raise MetricsError(f"container {metric.container} not found in Pod {name}")
    return total


def format_usage(resource: str, milli: int) -> str:
    """Format an amount in thousandths as a quantity: with binary suffixes for memory if it is a whole number."""
    is_memory = resource == "memory"
    suffix_format = meta.QuantityFormat.BINARY if is_memory else meta.QuantityFormat.DECIMAL
    return meta.format_quantity(milli * _NANO_PER_MILLI, suffix_format)
