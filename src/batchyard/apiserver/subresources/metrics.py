"""The metrics API (metrics.k8s.io): current usage of pods and nodes, as `kubectl top` reads it.

The container runtime reports the usage of pods. A simulated node uses the sum of its pods.
Source: metrics-server's pkg/api.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from batchyard.api import meta, scheme
from batchyard.api.meta import Key, Obj
from batchyard.api.printing import cells
from batchyard.api.printing.cells import Column, at, value
from batchyard.api.times import format_time
from batchyard.api.views.pods import RUNNING, node_of, phase
from batchyard.apiserver.request import StatusError
from batchyard.apiserver.resources import Resource
from batchyard.apiserver.subresources.pod_actions import pod_not_found
from batchyard.apiserver.virtual_resources import ComputedStrategy, derived, unstored_kind
from batchyard.base.instant import SECOND, Instant
from batchyard.interfaces.client import ObjectReader
from batchyard.interfaces.containers import Containers, Usage

GROUP: Final = "metrics.k8s.io"
VERSION: Final = "v1beta1"
_API_VERSION: Final = f"{GROUP}/{VERSION}"
_RESOURCES: Final = ("cpu", "memory")


def metrics_resources(objects: ObjectReader, containers: Containers, now: Callable[[], Instant]) -> list[Resource]:
    """Return pod and node metrics as resources."""
    nodes = unstored_kind(GROUP, VERSION, "NodeMetrics", "nodes", "", namespaced=False)
    pods = unstored_kind(GROUP, VERSION, "PodMetrics", "pods", "", namespaced=True)
    metrics = _Metrics(objects, containers, now)
    window = (Column("Window", format="duration"), at("window"))
    name = (Column("Name"), cells.name)
    of_node = [(Column(each, format="quantity"), at("usage", each)) for each in _RESOURCES]
    of_pod = [(Column(each, format="quantity"), _used_by_pod(each)) for each in _RESOURCES]
    return [
        derived(ComputedStrategy(nodes, [name, *of_node, window]), nodes, _Nodes(metrics), now),
        derived(ComputedStrategy(pods, [name, *of_pod, window]), pods, _Pods(metrics), now),
    ]


class _Metrics:
    """The objects and the runtime that both resources read."""

    def __init__(self, objects: ObjectReader, containers: Containers, now: Callable[[], Instant]) -> None:
        self.objects = objects
        self.containers = containers
        self._now = now

    def pods(self, namespace: str) -> Sequence[Obj]:
        """Return the running pods."""
        return [pod for pod in self.objects.list(scheme.POD, namespace or None) if phase(pod) == RUNNING]

    def reported(self, kind: str, of: Obj, window: int, fields: Mapping[str, Any]) -> Obj:
        """Return a metrics object of the given kind; the window is in microseconds."""
        stamp = format_time(self._now() // SECOND * SECOND)
        kept = ("name", "namespace", "labels")
        metadata = {field: of["metadata"][field] for field in kept if field in of["metadata"]}
        metadata["creationTimestamp"] = stamp
        about = {"kind": kind, "apiVersion": _API_VERSION, "metadata": metadata}
        return {**about, "timestamp": stamp, "window": _go_duration(window), **fields}


class _Pods:
    """The metrics of running pods."""

    def __init__(self, metrics: _Metrics) -> None:
        self._metrics = metrics

    def found(self, namespace: str) -> Sequence[Obj]:
        """Return the metrics of all pods whose usage is known."""
        return [reported for pod in self._metrics.pods(namespace) if (reported := self._reported(pod)) is not None]

    def one(self, namespace: str, name: str) -> Obj | None:
        """Return the metrics of one pod."""
        pod = self._metrics.objects.get(Key(scheme.POD, namespace, name))
        if pod is None:
            raise pod_not_found(name)
        reported = self._reported(pod) if phase(pod) == RUNNING else None
        if reported is None:
            raise _no_metrics("podmetrics", f"{namespace}/{name}")
        return reported

    def _reported(self, pod: Obj) -> Obj | None:
        measured = self._metrics.containers.usage(pod)
        if measured is None:
            return None
        containers = [{"name": name, "usage": _quantities(usage)} for name, usage in measured.usage.items()]
        return self._metrics.reported("PodMetrics", pod, measured.window, {"containers": containers})


class _Nodes:
    """The metrics of nodes."""

    def __init__(self, metrics: _Metrics) -> None:
        self._metrics = metrics

    def found(self, _namespace: str) -> Sequence[Obj]:
        """Return the metrics of all nodes."""
        on: dict[str, list[Obj]] = {}
        for pod in self._metrics.pods(""):
            on.setdefault(node_of(pod), []).append(pod)
        nodes = self._metrics.objects.list(scheme.NODE)
        return [self._reported(node, on.get(node["metadata"]["name"], ())) for node in nodes]

    def one(self, _namespace: str, name: str) -> Obj | None:
        """Return the metrics of one node."""
        node = self._metrics.objects.get(Key(scheme.NODE, "", name))
        if node is None:
            raise _no_metrics("nodemetrics", name)
        return self._reported(node, (pod for pod in self._metrics.pods("") if node_of(pod) == name))

    def _reported(self, node: Obj, pods: Iterable[Obj]) -> Obj:
        measured = self._metrics.containers.node_usage(node["metadata"]["name"])
        used, window = (self._sum(pods), 0) if measured is None else (measured.usage[""], measured.window)
        return self._metrics.reported("NodeMetrics", node, window, {"usage": _quantities(used)})

    def _sum(self, pods: Iterable[Obj]) -> Usage:
        """Return the total usage of pods."""
        total = dict.fromkeys(_RESOURCES, 0)
        for pod in pods:
            measured = self._metrics.containers.usage(pod)
            for usage in () if measured is None else measured.usage.values():
                for resource in _RESOURCES:
                    total[resource] += usage.get(resource, 0)
        return total


def _quantities(usage: Usage) -> dict[str, str]:
    return {resource: meta.format_amount(resource, usage.get(resource, 0)) for resource in _RESOURCES}


def _go_duration(microseconds: int) -> str:
    """Format a duration as Go does, in milliseconds precision."""
    minutes, rest = divmod(microseconds, 60 * SECOND)
    hours, minutes = divmod(minutes, 60)
    seconds = f"{rest / SECOND:.3f}".rstrip("0").rstrip(".")
    return f"{f'{hours}h' if hours else ''}{f'{minutes}m' if hours or minutes else ''}{seconds}s"


def _used_by_pod(resource: str) -> cells.Cell:
    """Return a cell with the usage of a resource by all containers of a pod."""

    def cell(obj: Obj, _now: Instant) -> str:
        used = (value(each, "usage", resource) for each in obj["containers"])
        return meta.format_amount(resource, sum(meta.amount(resource, each) for each in used))

    return cell


def _no_metrics(resource: str, name: str) -> StatusError:
    details = {"name": name, "group": GROUP, "kind": resource}
    return StatusError(404, "NotFound", f'{resource}.{GROUP} "{name}" not found', details)
