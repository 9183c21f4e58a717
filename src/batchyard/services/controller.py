"""The controllers of Endpoints and EndpointSlices: one for Services with a selector, one that mirrors Endpoints.

Changes of one Service are batched: after a write, the next one follows half a second later. Sources:
pkg/controller/{endpoint,endpointslice,endpointslicemirroring} of Kubernetes.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from batchyard.api import meta, scheme
from batchyard.api.errors import ApiError, NamespaceTerminating
from batchyard.api.times import format_time, parse_time
from batchyard.api.views.pods import READY, is_ready, is_terminal, is_terminating
from batchyard.base.instant import MILLISECOND, Instant
from batchyard.interfaces.client import Create, Delete, EventType, Reader, Update, WatchEvent, Write
from batchyard.interfaces.controller import EventRecord, ReconcileResult
from batchyard.services import endpoint_slices, endpoints

#: The minimum time between writes about one Service. Kubernetes has the option `--endpoint-updates-batch-period`.
_BATCH_PERIOD: Final = 500 * MILLISECOND
_ZONE_LABEL: Final = "topology.kubernetes.io/zone"
_DELETED: Final = EventType.DELETED


class EndpointController:
    """Controller that keeps the Endpoints object and the EndpointSlices of each Service with a selector."""

    name = "endpointslice-controller"
    rank = 0
    kinds = (scheme.SERVICE, scheme.POD, scheme.ENDPOINT_SLICE, scheme.ENDPOINTS)

    def __init__(self) -> None:
        #: The selectors of Services, by namespace and key.
        self._selectors: dict[str, dict[meta.Key, Mapping[str, str]]] = {}
        self._triggers: dict[meta.Key, TriggerTimes] = {}
        self._written_at: dict[meta.Key, Instant] = {}

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[meta.Key]:
        """Return the keys of the Services whose endpoints a change may affect."""
        match event.key.kind:
            case scheme.POD:
                return self._services_of_pod(event)
            case scheme.SERVICE:
                return self._observe_service(event)
            case scheme.ENDPOINT_SLICE:
                owner = meta.controller_of(event.obj)
                is_ours = owner is not None and owner["kind"] == "Service" and event.type is not EventType.ADDED
                return [meta.Key(scheme.SERVICE, event.key.namespace, owner["name"])] if owner and is_ours else ()
        labels = event.obj["metadata"].get("labels") or {}
        is_ours = labels.get(endpoints.ENDPOINTS_MANAGED_BY) == endpoints.ENDPOINTS_CONTROLLER
        key = meta.Key(scheme.SERVICE, event.key.namespace, event.key.name)
        return [key] if is_ours or key in self._selectors.get(key.namespace, ()) else ()

    def _observe_service(self, event: WatchEvent) -> Iterable[meta.Key]:
        selectors = self._selectors.setdefault(event.key.namespace, {})
        selector = (event.obj.get("spec") or {}).get("selector")
        if event.type is _DELETED or not selector:
            had_selector = selectors.pop(event.key, None) is not None
            self._triggers.pop(event.key, None)
            self._written_at.pop(event.key, None)
            return [event.key] if had_selector else ()
        selectors[event.key] = selector
        return [event.key]

    def _services_of_pod(self, event: WatchEvent) -> Iterable[meta.Key]:
        selectors = self._selectors.get(event.key.namespace)
        if not selectors:
            return ()
        new_labels = event.obj["metadata"].get("labels") or {}
        old_labels = new_labels if event.old is None else event.old["metadata"].get("labels") or {}
        has_same_labels = event.type is EventType.MODIFIED and new_labels == old_labels
        if has_same_labels and event.old is not None and _published_state(event.obj) == _published_state(event.old):
            return ()
        return [
            key
            for key, selector in selectors.items()
            if selector.items() <= new_labels.items() or selector.items() <= old_labels.items()
        ]

    def reconcile(self, key: meta.Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Write the Endpoints and EndpointSlices of a Service; delete the Endpoints of a deleted Service."""
        service = reader.get(key)
        stored = reader.get(meta.Key(scheme.ENDPOINTS, key.namespace, key.name))
        if service is None:
            return ReconcileResult([Delete(meta.key_of(stored))] if stored is not None else [])
        spec = service["spec"]
        if not spec.get("selector") or spec.get("type") == "ExternalName" or _is_being_deleted(service):
            return ReconcileResult()
        next_write = self._written_at.get(key, now - _BATCH_PERIOD) + _BATCH_PERIOD
        if next_write > now:
            return ReconcileResult(requeue_at=next_write)
        pods = _selected_pods(service, reader)
        trigger_time = self._triggers.setdefault(key, TriggerTimes()).observe(service, pods)
        changes = [_slice_changes(service, family, pods, reader) for family in _families(service, reader)]
        writes: list[Write] = [write for each in changes for write in _slice_writes(each, trigger_time)]
        new = endpoints.endpoints_for(service, endpoints.service_subsets(service, pods), stored, trigger_time)
        if new is not None:
            writes.append(Create(new) if stored is None else Update(new))
        if writes:
            self._written_at[key] = now
        rejection = partial(_rejection_event, key)
        return ReconcileResult(writes, independent=True, event_if_rejected=rejection)


def _is_being_deleted(obj: meta.Obj) -> bool:
    return "deletionTimestamp" in obj["metadata"]


def _families(service: meta.Obj, reader: Reader) -> Sequence[str]:
    """Return the address types of a Service, and those of its existing slices."""
    found = [each["addressType"] for each in _slices_of(service, reader)]
    return list(dict.fromkeys([*endpoint_slices.address_types(service), *found]))


def _slices_of(owner: meta.Obj, reader: Reader) -> Sequence[meta.Obj]:
    metadata = owner["metadata"]
    owned = reader.owned_by(metadata["uid"], metadata["namespace"])
    return [each for each in owned if meta.group_kind(each) == scheme.ENDPOINT_SLICE]


def _selected_pods(service: meta.Obj, reader: Reader) -> Sequence[meta.Obj]:
    selector: Mapping[str, str] = service["spec"]["selector"]
    pods = reader.list(scheme.POD, service["metadata"]["namespace"])
    return [pod for pod in pods if selector.items() <= (pod["metadata"].get("labels") or {}).items()]


def _slice_changes(
    service: meta.Obj, family: str, pods: Sequence[meta.Obj], reader: Reader
) -> endpoint_slices.SliceChanges:
    slices = [each for each in _slices_of(service, reader) if each["addressType"] == family]
    if family not in endpoint_slices.address_types(service):
        return endpoint_slices.SliceChanges(deleted=slices)
    groups: dict[endpoint_slices.PortsKey, endpoint_slices.EndpointGroup] = {}
    for pod in pods:
        if not endpoint_slices.belongs_in_endpoints(pod, includes_terminating=True):
            continue
        name = pod["spec"].get("nodeName") or ""
        node = reader.get(meta.Key(scheme.NODE, "", name)) if name else None
        if name and node is None and not service["spec"].get("publishNotReadyAddresses"):
            continue
        zone = "" if node is None else meta.label(node, _ZONE_LABEL) or ""
        endpoint = endpoint_slices.pod_endpoint(pod, service, family, zone)
        ports = endpoint_slices.slice_ports(service, pod)
        key = endpoint_slices.ports_key(ports)
        group = groups.setdefault(key, endpoint_slices.EndpointGroup(ports, {}))
        if endpoint is not None:
            group.endpoints[endpoint_slices.endpoint_key(endpoint)] = endpoint
    labels = endpoint_slices.slice_labels(service)
    create_slice = partial(endpoint_slices.new_slice, service, labels, family)
    return endpoint_slices.plan_slices(slices, groups, labels, create_slice)


def _slice_writes(changes: endpoint_slices.SliceChanges, trigger_time: str | None) -> Iterable[Write]:
    for new in changes.created:
        yield Create(_with_trigger_time(new, trigger_time))
    for new in changes.updated:
        yield Update(_with_trigger_time(new, trigger_time))
    for old in changes.deleted:
        yield Delete(meta.key_of(old))


def _with_trigger_time(obj: meta.Obj, trigger_time: str | None) -> meta.Obj:
    annotations = dict(obj["metadata"].get("annotations") or {})
    annotations.pop(endpoint_slices.TRIGGER_TIME, None)
    if trigger_time is not None:
        annotations[endpoint_slices.TRIGGER_TIME] = trigger_time
    return meta.with_metadata(obj, annotations=annotations or None)


def _published_state(pod: meta.Obj) -> tuple[Any, ...]:
    """Return the state of a pod that its endpoints show."""
    spec, status = pod["spec"], pod.get("status") or {}
    names = (spec.get("nodeName"), spec.get("hostname"), spec.get("subdomain"))
    return (status.get("podIP"), status.get("podIPs"), is_ready(pod), is_terminal(pod), is_terminating(pod), *names)


def _rejection_event(key: meta.Key, write: Write, error: ApiError) -> EventRecord | None:
    if isinstance(error, NamespaceTerminating):
        return None
    name = f"{key.namespace}/{key.name}"
    target = write.key.kind if isinstance(write, Delete) else meta.group_kind(write.obj)
    if target == scheme.ENDPOINT_SLICE:
        message = f"Error updating Endpoint Slices for Service {name}: {error}"
        return EventRecord(key, "Warning", "FailedToUpdateEndpointSlices", message)
    regarding = meta.Key(scheme.ENDPOINTS, key.namespace, key.name)
    if isinstance(write, Create):
        message = f"Failed to create endpoint for service {name}: {error}"
        return EventRecord(regarding, "Warning", "FailedToCreateEndpoint", message)
    return EventRecord(regarding, "Warning", "FailedToUpdateEndpoint", f"Failed to update endpoint {name}: {error}")


class TriggerTimes:
    """The times of the changes of a Service and its pods that the last write about its endpoints contains."""

    def __init__(self) -> None:
        self._service_time: Instant | None = None
        self._pod_times: Mapping[str, Instant] = {}

    def observe(self, service: meta.Obj, pods: Iterable[meta.Obj]) -> str | None:
        """Return the time of the earliest change since the last call; None without a change."""
        pod_times = {pod["metadata"]["name"]: time for pod in pods if (time := _ready_change_time(pod)) is not None}
        changed = [time for name, time in pod_times.items() if time > self._pod_times.get(name, -1)]
        created_at = parse_time(service["metadata"]["creationTimestamp"])
        is_new, self._pod_times = self._service_time is None, pod_times
        if self._service_time is None or created_at > self._service_time:
            changed.append(created_at)
        self._service_time = created_at
        if is_new:
            return format_time(created_at)
        return format_time(min(changed)) if changed else None


def _ready_change_time(pod: meta.Obj) -> Instant | None:
    condition = meta.find_condition(pod, READY)
    text = None if condition is None else condition.get("lastTransitionTime")
    return parse_time(text) if text else None


# Mirrors.


class EndpointsMirrorController:
    """Controller that mirrors the Endpoints objects of Services without a selector to EndpointSlices."""

    name = "endpointslice-mirroring-controller"
    rank = 0
    kinds = (scheme.ENDPOINTS, scheme.SERVICE, scheme.ENDPOINT_SLICE)

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[meta.Key]:
        """Return the key of the Endpoints object that a change concerns."""
        if event.key.kind == scheme.ENDPOINT_SLICE:
            labels = event.obj["metadata"].get("labels") or {}
            if labels.get(endpoint_slices.MANAGED_BY) != endpoint_slices.MIRROR_CONTROLLER:
                return ()
            if event.type is EventType.ADDED:
                return ()
            return [meta.Key(scheme.ENDPOINTS, event.key.namespace, labels.get(endpoint_slices.SERVICE_NAME, ""))]
        return [meta.Key(scheme.ENDPOINTS, event.key.namespace, event.key.name)]

    def reconcile(self, key: meta.Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Write the slices that mirror an Endpoints object, or delete them if it is not mirrored any more."""
        stored = reader.get(key)
        service = reader.get(meta.Key(scheme.SERVICE, key.namespace, key.name))
        if stored is None:
            return ReconcileResult()  # the garbage collector deletes the slices
        slices = _slices_of(stored, reader)
        is_served = service is not None and not service["spec"].get("selector") and not _is_being_deleted(service)
        if not is_served or not endpoint_slices.is_mirrored(stored):
            return ReconcileResult([Delete(meta.key_of(each)) for each in slices], independent=True)
        subsets = endpoints.repack_subsets(stored.get("subsets") or ())
        plan = endpoint_slices.plan_mirrors(stored, subsets, slices)
        writes = list(_slice_writes(plan.changes, None))
        return ReconcileResult(writes, events=list(_mirror_events(key, plan)) if writes else [], independent=True)


def _mirror_events(key: meta.Key, plan: endpoint_slices.MirrorPlan) -> Iterable[EventRecord]:
    if plan.invalid_count:
        message = f"Skipped {plan.invalid_count} invalid IP addresses when mirroring to EndpointSlices"
        yield EventRecord(key, "Warning", "InvalidIPAddress", message)
    if plan.skipped_count > plan.invalid_count:
        message = (
            f"A max of {endpoint_slices.MIRRORED_ADDRESSES_MAX} addresses can be mirrored to EndpointSlices per "
            f"Endpoints subset. {plan.skipped_count} addresses were skipped"
        )
        yield EventRecord(key, "Warning", "TooManyAddressesToMirror", message)
