"""Kueue's visibility API: pending Workloads of a queue in scheduling order.

Sources: Kueue's apis/visibility and pkg/visibility/storage. As there, an unknown queue is an error, and the summary of
an empty queue has no items.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any, Final, Protocol

from batchyard.api import scheme
from batchyard.api.meta import Key
from batchyard.api.views.workload import WorkloadView
from batchyard.api.wire_times import metadata_in_whole_seconds
from batchyard.apiserver.objects import ApiObjectReader
from batchyard.apiserver.request import ApiRequest, Response, StatusError, bad_request
from batchyard.apiserver.resources import EndpointHandlers, Resource
from batchyard.apiserver.virtual_resources import unstored, unstored_kind

GROUP: Final = "visibility.kueue.x-k8s.io"
VERSIONS: Final = ("v1beta2", "v1beta1")
_KIND: Final = "PendingWorkloadsSummary"
_PART: Final = "pendingworkloads"
_LIMIT: Final = 1000
_LIMIT_MAX: Final = 100_000
_OWNER: Final = ("apiVersion", "kind", "name", "uid")


class PendingQueues(Protocol):
    """The pending Workloads by queue."""

    def pending_in(self, cluster_queue: str) -> Sequence[WorkloadView] | None:
        """Return the pending Workloads of a ClusterQueue in scheduling order; None if the queue does not exist."""

    def cluster_queue_of(self, namespace: str, local_queue: str) -> str | None:
        """Return the ClusterQueue of a LocalQueue; None if the LocalQueue does not exist."""


class Visibility:
    """The visibility resources."""

    def __init__(self, pending: PendingQueues, objects: ApiObjectReader) -> None:
        self._pending = pending
        self._objects = objects

    def resources(self) -> list[Resource]:
        """Return the queue resources, which have only this subresource."""
        return [resource for version in VERSIONS for resource in self._of(version)]

    def _of(self, version: str) -> list[Resource]:
        about = {"kind": _KIND, "apiVersion": f"{GROUP}/{version}", "metadata": {}}

        def answers(get: Callable[[ApiRequest, str, str], Sequence[dict[str, Any]]]) -> Mapping[str, EndpointHandlers]:
            def respond(request: ApiRequest, namespace: str, name: str) -> Response:
                return Response(200, {**about, "items": get(request, namespace, name)})

            return {
                "": EndpointHandlers(GROUP, version, _KIND, {}),
                _PART: EndpointHandlers(GROUP, version, _KIND, {"GET": respond}),
            }

        cluster = unstored_kind(GROUP, version, _KIND, "clusterqueues", "clusterqueue", namespaced=False)
        local = unstored_kind(GROUP, version, _KIND, "localqueues", "localqueue", namespaced=True)
        return [unstored(cluster, answers(self._in_cluster_queue)), unstored(local, answers(self._in_local_queue))]

    def _in_cluster_queue(self, request: ApiRequest, _namespace: str, name: str) -> Sequence[dict[str, Any]]:
        limit, offset = _bounds(request)
        found = self._pending.pending_in(name)
        if found is None:
            raise _not_found("clusterqueue", name)
        positions: dict[str, int] = {}
        reported = []
        for place, view in enumerate(islice(found, offset + limit)):
            in_local = positions[view.queue] = positions.get(view.queue, -1) + 1
            if place >= offset:
                reported.append(self._reported(view, place, in_local))
        return reported

    def _in_local_queue(self, request: ApiRequest, namespace: str, name: str) -> Sequence[dict[str, Any]]:
        limit, offset = _bounds(request)
        cluster_queue = self._pending.cluster_queue_of(namespace, name)
        if cluster_queue is None:
            raise _not_found("localqueue", name)
        queue, found = f"{namespace}/{name}", self._pending.pending_in(cluster_queue) or ()
        own = ((place, view) for place, view in enumerate(found) if view.queue == queue)
        wanted = islice(enumerate(own), offset, offset + limit)
        return [self._reported(view, place, in_local) for in_local, (place, view) in wanted]

    def _reported(self, view: WorkloadView, in_cluster: int, in_local: int) -> dict[str, Any]:
        """Return a pending Workload with its positions."""
        workload = self._objects.get(Key(scheme.WORKLOAD, view.namespace, view.name)) or {"metadata": {}}
        found = metadata_in_whole_seconds(workload["metadata"])
        metadata = {"name": view.name, "namespace": view.namespace, "creationTimestamp": found.get("creationTimestamp")}
        owners = [{field: each[field] for field in _OWNER} for each in found.get("ownerReferences") or ()]
        return {
            "metadata": {**metadata, "ownerReferences": owners} if owners else metadata,
            "priority": view.priority,
            "localQueueName": view.queue.partition("/")[2],
            "positionInClusterQueue": in_cluster,
            "positionInLocalQueue": in_local,
        }


def _bounds(request: ApiRequest) -> tuple[int, int]:
    """Return limit and offset of a request; without a limit the default."""
    limit, offset = (_whole(request, name) for name in ("limit", "offset"))
    return min(max(limit or _LIMIT, 0), _LIMIT_MAX), max(offset, 0)


def _whole(request: ApiRequest, name: str) -> int:
    text = request.query.get(name) or "0"
    if not text.removeprefix("-").isdecimal() or not text.isascii() or len(text) > 18:
        raise bad_request(f'{name}: "{text}" is not a number')
    return int(text)


def _not_found(resource: str, name: str) -> StatusError:
    details = {"name": name, "group": GROUP, "kind": resource}
    return StatusError(404, "NotFound", f'{resource}.{GROUP} "{name}" not found', details)
