"""Subresources and virtual resources, whose requests are answered by functions instead of from stored objects."""

from collections.abc import Callable, Iterable

from batchyard.api import scheme
from batchyard.apiserver.aggregation.proxied_requests import PortProxies
from batchyard.apiserver.resources import ApiObjectStore, Resource, with_subresource_handlers
from batchyard.apiserver.subresources.metrics import metrics_resources
from batchyard.apiserver.subresources.namespaces import with_finalize
from batchyard.apiserver.subresources.pod_actions import (
    BindingHandlers,
    EphemeralContainersHandler,
    EvictionHandler,
    PodContainers,
)
from batchyard.apiserver.subresources.pod_streams import PodLogs, PodStreams
from batchyard.apiserver.subresources.queueing import PendingQueues, VisibilityResources
from batchyard.apiserver.subresources.scale import with_scales
from batchyard.apiserver.virtual_resources import component_status_resource
from batchyard.base.instant import Instant
from batchyard.interfaces.containers import Containers


def with_subresources(
    resources: Iterable[Resource],
    objects: ApiObjectStore,
    containers: Containers,
    pending_queues: PendingQueues,
    now: Callable[[], Instant],
) -> list[Resource]:
    """Return the resources with the subresources that handler functions serve, followed by the virtual resources.

    Pods, Namespaces and the kinds with replicas get subresources. The virtual resources are bindings,
    ComponentStatuses, the metrics API and, if ClusterQueues are built in, Kueue's visibility API.
    """
    pod_containers, binding_handlers = PodContainers(objects, containers), BindingHandlers(objects, now)
    port_proxies = PortProxies(objects, containers)
    pod_handlers = {
        "binding": binding_handlers.pod_binding_handlers(),
        "eviction": EvictionHandler(objects, now).handlers(),
        "log": PodLogs(pod_containers, now).handlers(),
        **PodStreams(pod_containers).handlers(),
        "proxy": port_proxies.pod_handlers(),
    }
    resources = list(resources)
    for resource in resources:
        if resource.served_kind.constant == scheme.POD:
            ephemeral_containers = EphemeralContainersHandler(objects, containers, resource, now)
            pod_handlers["ephemeralcontainers"] = ephemeral_containers.handlers()
    service_handlers = {"proxy": port_proxies.service_handlers()}
    resources = with_subresource_handlers(resources, scheme.SERVICE, service_handlers)
    served_resources = with_finalize(with_subresource_handlers(resources, scheme.POD, pod_handlers), objects)
    has_queues = any(resource.served_kind.constant == scheme.CLUSTER_QUEUE for resource in resources)
    visibility = VisibilityResources(pending_queues, objects).resources() if has_queues else ()
    metrics = metrics_resources(objects, containers, now)
    virtual_resources = (binding_handlers.resource(), component_status_resource(now), *visibility, *metrics)
    return [*with_scales(served_resources, objects, now), *virtual_resources]
