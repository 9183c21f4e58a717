"""The controller of ProvisioningRequests: capacity that is asked for as a whole, before there are pods.

Requests are looked at when the cluster is: at fixed instants.
"""

from collections.abc import Iterable

from batchyard.api import scheme
from batchyard.api.meta import Key
from batchyard.api.times import parse_time
from batchyard.base.instant import Instant
from batchyard.controllers.autoscaler.capacity_requests import CapacityRequest
from batchyard.controllers.autoscaler.index import ScalingIndex
from batchyard.controllers.autoscaler.queued_requests import QueuedRequest
from batchyard.controllers.autoscaler.resize_requests import resize_request_key
from batchyard.core.scaling import request_states as states
from batchyard.core.scaling.request_pods import consumed_request
from batchyard.core.scaling.scale_up import Situation
from batchyard.ports.client import Delete, EventType, Reader, WatchEvent
from batchyard.ports.controller import Outcome


class ProvisioningRequests:
    """See the module. It comes after the Autoscaler, which feeds the index."""

    name = "provisioning-requests"
    rank = 15
    kinds = (scheme.PROVISIONING_REQUEST, scheme.RESIZE_REQUEST, scheme.POD_TEMPLATE, scheme.POD)

    def __init__(self, index: ScalingIndex) -> None:
        self._index = index

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """The request; the one that a ResizeRequest is for, or that a pod consumes; those that name a template."""
        if event.key.kind == scheme.PROVISIONING_REQUEST:
            return (event.key,)
        if not self._index.requests:
            return ()
        match event.key.kind:
            case scheme.RESIZE_REQUEST:
                found = self._index.by_resize_request.get(event.key.name)
                return () if found is None else (found,)
            case scheme.POD:
                return self._consumed(event)
            case _:
                return [key for key in self._index.requests if key.namespace == event.key.namespace]

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> Outcome:
        """Bring a request one step further, if it is time. What a request that is gone asked the cloud for goes too."""
        request = reader.get(key)
        if request is None:
            asked = resize_request_key(key)
            return Outcome([] if reader.get(asked) is None else [Delete(asked)])
        if states.is_for_another(request):
            return Outcome()
        self._index.catch_up(reader)
        cluster, settings = self._index.cluster, self._index.settings
        if cluster is None or settings is None:
            return Outcome()
        next_scan = settings.next_scan(parse_time(cluster["metadata"]["creationTimestamp"]), now)
        if next_scan > now:
            return Outcome(requeue_at=next_scan)
        situation = Situation(cluster, settings, now)
        match request["spec"]["provisioningClassName"]:
            case states.QUEUED_CLASS:
                return QueuedRequest(request, self._index, reader, situation).step()
            case states.ATOMIC_CLASS | states.CHECK_CLASS:
                return CapacityRequest(request, self._index, reader, situation).step()
        return Outcome()

    def _consumed(self, event: WatchEvent) -> Iterable[Key]:
        """The request that a pod consumes which came to a node."""
        if event.type is EventType.DELETED or not event.obj["spec"].get("nodeName"):
            return ()
        request = consumed_request(event.obj)
        key = Key(scheme.PROVISIONING_REQUEST, event.key.namespace, request)
        return (key,) if request and key in self._index.requests else ()
