"""The metrics API (metrics.k8s.io): current usage of pods and nodes, as `kubectl top` reads it.

The container runtime reports the usage of pods and of its own node. The usage of another node is the sum of its pods.
Source: metrics-server's pkg/api.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from batchyard.api import meta, scheme
from batchyard.api.meta import Key, Obj
from batchyard.api.printing import cells
from batchyard.api.printing.cells import Column, value_at, value_cell
from batchyard.api.times import format_time
from batchyard.api.views.pods import RUNNING, bound_node, phase
from batchyard.apiserver.request import StatusError
from batchyard.apiserver.resources import Resource, not_found_error
from batchyard.apiserver.virtual_resources import ComputedStrategy, computed_resource, virtual_kind
from batchyard.base.instant import SECOND, Instant
from batchyard.interfaces.client import ObjectReader
from batchyard.interfaces.containers import Containers, ResourceUsage

GROUP: Final = "metrics.k8s.io"
VERSION: Final = "v1beta1"
_API_VERSION: Final = f"{GROUP}/{VERSION}"
_MEASURED_RESOURCES: Final = ("cpu", "memory")


def metrics_resources(objects: ObjectReader, containers: Containers, now: Callable[[], Instant]) -> list[Resource]:
    """Return the resources `pods` and `nodes` of the metrics API."""
    nodes = virtual_kind(GROUP, VERSION, "NodeMetrics", "nodes", "", namespaced=False)
    pods = virtual_kind(GROUP, VERSION, "PodMetrics", "pods", "", namespaced=True)
    metrics_inputs = _MetricsInputs(objects, containers, now)
    window = (Column("Window", format="duration"), value_cell("window"))
    name = (Column("Name"), cells.name)
    node_columns = [(Column(each, format="quantity"), value_cell("usage", each)) for each in _MEASURED_RESOURCES]
    pod_columns = [(Column(each, format="quantity"), _pod_usage_cell(each)) for each in _MEASURED_RESOURCES]
    return [
        computed_resource(
            ComputedStrategy(nodes, [name, *node_columns, window]), nodes, _NodeMetricsSource(metrics_inputs), now
        ),
        computed_resource(
            ComputedStrategy(pods, [name, *pod_columns, window]), pods, _PodMetricsSource(metrics_inputs), now
        ),
    ]


class _MetricsInputs:
    def __init__(self, objects: ObjectReader, containers: Containers, now: Callable[[], Instant]) -> None:
        self.objects = objects
        self.containers = containers
        self._now = now

    def running_pods(self, namespace: str) -> Sequence[Obj]:
        return [pod for pod in self.objects.list(scheme.POD, namespace or None) if phase(pod) == RUNNING]

    def build_metrics_object(self, kind: str, subject: Obj, window_microseconds: int, fields: Mapping[str, Any]) -> Obj:
        timestamp = format_time(self._now() // SECOND * SECOND)
        copied_fields = ("name", "namespace", "labels")
        metadata = {field: subject["metadata"][field] for field in copied_fields if field in subject["metadata"]}
        metadata["creationTimestamp"] = timestamp
        type_and_metadata = {"kind": kind, "apiVersion": _API_VERSION, "metadata": metadata}
        return {**type_and_metadata, "timestamp": timestamp, "window": _go_duration(window_microseconds), **fields}


class _PodMetricsSource:
    def __init__(self, metrics_inputs: _MetricsInputs) -> None:
        self._inputs = metrics_inputs

    def list_objects(self, namespace: str) -> Sequence[Obj]:
        return [
            metrics for pod in self._inputs.running_pods(namespace) if (metrics := self._pod_metrics(pod)) is not None
        ]

    def get_object(self, namespace: str, name: str) -> Obj | None:
        pod = self._inputs.objects.get(Key(scheme.POD, namespace, name))
        if pod is None:
            raise not_found_error(scheme.kind_info(scheme.POD), name)
        pod_metrics = self._pod_metrics(pod) if phase(pod) == RUNNING else None
        if pod_metrics is None:
            raise _no_metrics_error("podmetrics", f"{namespace}/{name}")
        return pod_metrics

    def _pod_metrics(self, pod: Obj) -> Obj | None:
        measurement = self._inputs.containers.usage(pod)
        if measurement is None:
            return None
        containers = [{"name": name, "usage": _format_usage(usage)} for name, usage in measurement.usage.items()]
        return self._inputs.build_metrics_object(
            "PodMetrics", pod, measurement.window_microseconds, {"containers": containers}
        )


class _NodeMetricsSource:
    def __init__(self, metrics_inputs: _MetricsInputs) -> None:
        self._inputs = metrics_inputs

    def list_objects(self, _namespace: str) -> Sequence[Obj]:
        pods_by_node: dict[str, list[Obj]] = {}
        for pod in self._inputs.running_pods(""):
            pods_by_node.setdefault(bound_node(pod), []).append(pod)
        nodes = self._inputs.objects.list(scheme.NODE)
        return [self._node_metrics(node, pods_by_node.get(node["metadata"]["name"], ())) for node in nodes]

    def get_object(self, _namespace: str, name: str) -> Obj | None:
        node = self._inputs.objects.get(Key(scheme.NODE, "", name))
        if node is None:
            raise _no_metrics_error("nodemetrics", name)
        return self._node_metrics(node, (pod for pod in self._inputs.running_pods("") if bound_node(pod) == name))

    def _node_metrics(self, node: Obj, pods: Iterable[Obj]) -> Obj:
        sample = self._inputs.containers.node_usage(node["metadata"]["name"])
        usage, window = (
            (self._total_usage(pods), 0) if sample is None else (sample.usage[""], sample.window_microseconds)
        )
        return self._inputs.build_metrics_object("NodeMetrics", node, window, {"usage": _format_usage(usage)})

    def _total_usage(self, pods: Iterable[Obj]) -> ResourceUsage:
        total_usage = dict.fromkeys(_MEASURED_RESOURCES, 0)
        for pod in pods:
            measurement = self._inputs.containers.usage(pod)
            for usage in () if measurement is None else measurement.usage.values():
                for resource in _MEASURED_RESOURCES:
                    total_usage[resource] += usage.get(resource, 0)
        return total_usage


def _format_usage(usage: ResourceUsage) -> dict[str, str]:
    return {resource: meta.format_amount(resource, usage.get(resource, 0)) for resource in _MEASURED_RESOURCES}


def _go_duration(microseconds: int) -> str:
    """Format a duration of at least one second as Go does, rounded to milliseconds."""
    minutes, remaining_microseconds = divmod(microseconds, 60 * SECOND)
    hours, minutes = divmod(minutes, 60)
    seconds_text = f"{remaining_microseconds / SECOND:.3f}".rstrip("0").rstrip(".")
    return f"{f'{hours}h' if hours else ''}{f'{minutes}m' if hours or minutes else ''}{seconds_text}s"


def _pod_usage_cell(resource: str) -> cells.Cell:
    def cell(obj: Obj, _now: Instant) -> str:
        amounts = (value_at(each, "usage", resource) for each in obj["containers"])
        return meta.format_amount(resource, sum(meta.amount(resource, each) for each in amounts))

    return cell


def _no_metrics_error(resource: str, name: str) -> StatusError:
    details = {"name": name, "group": GROUP, "kind": resource}
    return StatusError(404, "NotFound", f'{resource}.{GROUP} "{name}" not found', details)
