"""EndpointSlices: the endpoints of pods and of Endpoints objects, and how slices are filled with them.

Sources: k8s.io/endpointslice (reconciler.go, utils.go); pkg/controller/endpointslicemirroring of Kubernetes.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any, Final, NamedTuple, TypeAlias

from batchyard.api import meta
from batchyard.api.views.pods import is_ready, is_terminal, is_terminating

SERVICE_NAME: Final = "kubernetes.io/service-name"
MANAGED_BY: Final = "endpointslice.kubernetes.io/managed-by"
HEADLESS: Final = "service.kubernetes.io/headless"
SLICE_CONTROLLER: Final = "endpointslice-controller.k8s.io"
TRIGGER_TIME: Final = "endpoints.kubernetes.io/last-change-trigger-time"
_RESERVED_LABELS: Final = frozenset({SERVICE_NAME, MANAGED_BY, HEADLESS})
#: The maximum number of endpoints in a slice. Source: `--max-endpoints-per-slice`.
ENDPOINTS_PER_SLICE_MAX: Final = 100
_NAME_LENGTH_MAX: Final = 253
IPV4, IPV6 = "IPv4", "IPv6"

Endpoint: TypeAlias = Mapping[str, Any]
PortsKey: TypeAlias = tuple[tuple[str, str, int, str], ...]
"""Identifies a set of ports, in any order."""


class EndpointGroup(NamedTuple):
    """The desired endpoints with the same ports, by `endpoint_key`."""

    ports: Sequence[Mapping[str, Any]]
    endpoints: dict[object, Endpoint]


@dataclass(slots=True)
class SliceChanges:
    """The slices to create, update and delete."""

    created: list[meta.Obj] = field(default_factory=list)
    updated: list[meta.Obj] = field(default_factory=list)
    deleted: list[meta.Obj] = field(default_factory=list)

    def recycle(self) -> None:
        """Update deleted slices of the same address type instead of creating slices."""
        kept: list[meta.Obj] = []
        for old in self.deleted:
            new = self.created[-1] if self.created else None
            if new is None or old["addressType"] != new["addressType"]:
                kept.append(old)
                continue
            self.created.pop()
            self.updated.append({**new, "metadata": _merged_metadata(old, new)})
        self.deleted = kept


def _merged_metadata(old: meta.Obj, new: meta.Obj) -> Mapping[str, Any]:
    content = {name: value for name, value in new["metadata"].items() if name != "generateName"}
    return {**old["metadata"], **content}


# Fields of Services and pods.


def has_cluster_ip(service: meta.Obj) -> bool:
    """Return whether a Service has a cluster IP: it is neither headless nor without addresses."""
    return service["spec"].get("clusterIP") not in {None, "", "None"}


def address_types(service: meta.Obj) -> Sequence[str]:
    """Return the address types of a Service's slices: its IP families, by default IPv4."""
    families: Sequence[str] = service["spec"].get("ipFamilies") or ()
    return [family for family in (IPV4, IPV6) if family in families] or [IPV4]


def belongs_in_endpoints(pod: meta.Obj, *, includes_terminating: bool) -> bool:
    """Return whether a pod is an endpoint: it has an address and has not ended."""
    status = pod.get("status") or {}
    if is_terminal(pod) or not (status.get("podIP") or status.get("podIPs")):
        return False
    return includes_terminating or not is_terminating(pod)


def hostname_for(pod: meta.Obj, service: meta.Obj) -> str:
    """Return the hostname of a pod in the domain of a Service; '' if it has none there."""
    spec = pod["spec"]
    return (spec.get("hostname") or "") if spec.get("subdomain") == service["metadata"]["name"] else ""


def pod_ips(pod: meta.Obj) -> Sequence[str]:
    """Return the addresses of a pod."""
    status = pod.get("status") or {}
    addresses = [each["ip"] for each in status.get("podIPs") or () if each.get("ip")]
    return addresses or [status["podIP"]] if status.get("podIP") or addresses else []


def is_of_family(address: str, family: str) -> bool:
    """Return whether an IP address has an IP family, such as `IPv4`."""
    return (":" in address) == (family == IPV6)


def find_target_port(pod: meta.Obj, service_port: Mapping[str, Any]) -> int | None:
    """Return the number of the target port of a Service's port in a pod; None if the pod has no port of that name."""
    target = service_port.get("targetPort") or service_port["port"]
    if isinstance(target, int):
        return target
    protocol = service_port.get("protocol") or "TCP"
    for container in _serving_containers(pod["spec"]):
        for port in container.get("ports") or ():
            if port.get("name") == target and (port.get("protocol") or "TCP") == protocol:
                return int(port["containerPort"])
    return None


def _serving_containers(spec: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield from spec.get("containers") or ()
    yield from (each for each in spec.get("initContainers") or () if each.get("restartPolicy") == "Always")


def slice_ports(service: meta.Obj, pod: meta.Obj) -> list[dict[str, Any]]:
    """Return the ports of a pod for the slices of a Service; ports that the pod does not have are left out."""
    ports: list[dict[str, Any]] = []
    for service_port in service["spec"].get("ports") or ():
        number = find_target_port(pod, service_port)
        if number is not None:
            port = {
                "name": service_port.get("name") or "",
                "port": number,
                "protocol": service_port.get("protocol") or "TCP",
            }
            app_protocol = service_port.get("appProtocol")
            ports.append({**port, **({"appProtocol": app_protocol} if app_protocol else {})})
    return ports


def pod_endpoint(pod: meta.Obj, service: meta.Obj, address_type: str, zone: str) -> Endpoint | None:
    """Return the endpoint of a pod, whose node is in `zone` ('' if unknown); None without an address of the type."""
    addresses = [address for address in pod_ips(pod) if is_of_family(address, address_type)]
    if not addresses:
        return None
    is_serving, is_ending = is_ready(pod), is_terminating(pod)
    publishes_all = bool(service["spec"].get("publishNotReadyAddresses"))
    conditions = {
        "ready": publishes_all or (is_serving and not is_ending),
        "serving": is_serving,
        "terminating": is_ending,
    }
    optional_fields = {"nodeName": pod["spec"].get("nodeName"), "zone": zone, "hostname": hostname_for(pod, service)}
    metadata = pod["metadata"]
    target = {"kind": "Pod", "namespace": metadata["namespace"], "name": metadata["name"], "uid": metadata["uid"]}
    return {
        "addresses": addresses,
        "conditions": conditions,
        "targetRef": target,
        **{name: value for name, value in optional_fields.items() if value},
    }


# The contents of slices.


def ports_key(ports: Iterable[Mapping[str, Any]]) -> PortsKey:
    """Return the key of a set of ports."""
    return tuple(
        sorted(
            (p.get("name") or "", p.get("protocol") or "TCP", p.get("port") or 0, p.get("appProtocol") or "")
            for p in ports
        )
    )


def endpoint_key(endpoint: Endpoint) -> object:
    """Return what identifies an endpoint: its addresses, hostname and target."""
    target = endpoint.get("targetRef") or {}
    return (
        tuple(sorted(endpoint["addresses"])),
        endpoint.get("hostname") or "",
        target.get("namespace") or "",
        target.get("name") or "",
    )


def slice_labels(service: meta.Obj) -> dict[str, str]:
    """Return the labels of a Service's slices: those of the Service, and the controller's own ones."""
    labels = {
        name: value for name, value in (service["metadata"].get("labels") or {}).items() if name not in _RESERVED_LABELS
    }
    if not has_cluster_ip(service):
        labels[HEADLESS] = ""
    return {**labels, SERVICE_NAME: service["metadata"]["name"], MANAGED_BY: SLICE_CONTROLLER}


def new_slice(
    owner: meta.Obj, labels: Mapping[str, str], address_type: str, ports: Sequence[Mapping[str, Any]]
) -> meta.Obj:
    """Return an empty slice that an object owns."""
    metadata = owner["metadata"]
    prefix = f"{metadata['name']}-"
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "generateName": prefix if len(prefix) <= _NAME_LENGTH_MAX else metadata["name"],
            "namespace": metadata["namespace"],
            "labels": dict(labels),
            "ownerReferences": [meta.controller_reference(owner)],
        },
        "addressType": address_type,
        "endpoints": [],
        "ports": list(ports),
    }


def plan_slices(
    slices: Sequence[meta.Obj],
    groups: Mapping[PortsKey, EndpointGroup],
    labels: Mapping[str, str],
    create_slice: Callable[[Sequence[Mapping[str, Any]]], meta.Obj],
) -> SliceChanges:
    """Return the changes that make slices of one address type contain the desired endpoints.

    Existing endpoints stay in their slices. New ones fill the changed slices, then one unchanged slice that has room
    for all of them, then new slices. Without endpoints, one empty slice remains.
    """
    changes = SliceChanges()
    slices_by_ports: dict[PortsKey, list[meta.Obj]] = {}
    for each in slices:
        slices_by_ports.setdefault(ports_key(each.get("ports") or ()), []).append(each)
    for key, group in groups.items():
        _plan_group(slices_by_ports.get(key, ()), group, labels, create_slice, changes)
    for key, unused in slices_by_ports.items():
        if key not in groups:
            changes.deleted += unused
    if len(slices) == len(changes.deleted) and not changes.created:
        if len(slices) == 1 and _is_placeholder(slices[0], labels):
            changes.deleted = []
        else:
            changes.created.append(create_slice(()))
    changes.recycle()
    return changes


def _plan_group(
    slices: Sequence[meta.Obj],
    group: EndpointGroup,
    labels: Mapping[str, str],
    create_slice: Callable[[Sequence[Mapping[str, Any]]], meta.Obj],
    changes: SliceChanges,
) -> None:
    remaining = dict(group.endpoints)
    changed, unchanged = list[meta.Obj](), list[meta.Obj]()
    for old in slices:
        old_endpoints = old.get("endpoints") or ()
        kept = [wanted for each in old_endpoints if (wanted := remaining.pop(endpoint_key(each), None)) is not None]
        if kept == list(old_endpoints) and _has_labels(old, labels):
            unchanged.append(old)
        elif not kept:
            changes.deleted.append(old)
        else:
            changed.append({**meta.with_metadata(old, labels=dict(labels)), "endpoints": kept})
    new_endpoints = list(remaining.values())
    for each in sorted(changed, key=lambda each: -len(each["endpoints"])):
        count = ENDPOINTS_PER_SLICE_MAX - len(each["endpoints"])
        each["endpoints"].extend(new_endpoints[:count])
        del new_endpoints[:count]
    while new_endpoints:
        added, new_endpoints = new_endpoints[:ENDPOINTS_PER_SLICE_MAX], new_endpoints[ENDPOINTS_PER_SLICE_MAX:]
        fitting = _fullest_with_room(unchanged, len(added)) if len(added) < ENDPOINTS_PER_SLICE_MAX else None
        if fitting is None:
            changes.created.append({**create_slice(group.ports), "endpoints": added})
        else:
            unchanged.remove(fitting)
            changed.append({**fitting, "endpoints": [*fitting["endpoints"], *added]})
    changes.updated += changed


def _has_labels(old: meta.Obj, labels: Mapping[str, str]) -> bool:
    return (old["metadata"].get("labels") or {}) == labels


def _fullest_with_room(slices: Sequence[meta.Obj], count: int) -> meta.Obj | None:
    with_room = [each for each in slices if len(each.get("endpoints") or ()) + count <= ENDPOINTS_PER_SLICE_MAX]
    return max(with_room, key=lambda each: len(each.get("endpoints") or ()), default=None)


def _is_placeholder(old: meta.Obj, labels: Mapping[str, str]) -> bool:
    return not old.get("endpoints") and not old.get("ports") and _has_labels(old, labels)


# Mirrors of Endpoints objects.


MIRROR_CONTROLLER: Final = "endpointslicemirroring-controller.k8s.io"
SKIP_MIRROR: Final = "endpointslice.kubernetes.io/skip-mirror"
_LEADER_ANNOTATION: Final = "control-plane.alpha.kubernetes.io/leader"
_LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
#: The maximum number of addresses of a subset that are mirrored.
MIRRORED_ADDRESSES_MAX: Final = 1000


class MirrorPlan(NamedTuple):
    """The changes of mirrored slices, and the numbers of addresses that are invalid or too many."""

    changes: SliceChanges
    invalid_count: int
    skipped_count: int


def is_mirrored(endpoints: meta.Obj) -> bool:
    """Return whether an Endpoints object is mirrored, if its Service has no selector."""
    metadata = endpoints["metadata"]
    if (metadata.get("labels") or {}).get(SKIP_MIRROR) == "true":
        return False
    return _LEADER_ANNOTATION not in (metadata.get("annotations") or {})


def plan_mirrors(endpoints: meta.Obj, subsets: Sequence[Mapping[str, Any]], slices: Sequence[meta.Obj]) -> MirrorPlan:
    """Return the changes that make slices mirror repacked subsets: one slice for each set of ports and IP family."""
    invalid_count = skipped_count = 0
    groups: dict[tuple[str, PortsKey], EndpointGroup] = {}
    for subset in subsets:
        ports = [{**port, "name": port.get("name") or ""} for port in subset.get("ports") or ()]
        added_count = 0
        addresses = [*_with_state(subset, "addresses", True), *_with_state(subset, "notReadyAddresses", False)]
        for address, is_ready_address in addresses:
            family = _family_of(address["ip"])
            if added_count == MIRRORED_ADDRESSES_MAX:
                break
            if family is None:
                invalid_count += 1
                continue
            added_count += 1
            endpoint = _mirrored_endpoint(address, is_ready_address)
            group = groups.setdefault((family, ports_key(ports)), EndpointGroup(ports, {}))
            group.endpoints.setdefault(endpoint_key(endpoint), endpoint)
        skipped_count += len(addresses) - added_count
    return MirrorPlan(_mirror_changes(endpoints, groups, slices), invalid_count, skipped_count)


def _with_state(subset: Mapping[str, Any], name: str, state: bool) -> Iterator[tuple[Mapping[str, Any], bool]]:
    return ((address, state) for address in subset.get(name) or ())


def _family_of(address: str) -> str | None:
    try:
        return f"IPv{ip_address(address).version}"
    except ValueError:
        return None


def _mirrored_endpoint(address: Mapping[str, Any], is_ready_address: bool) -> Endpoint:
    optional_fields = {name: address.get(name) for name in ("targetRef", "nodeName", "hostname")}
    return {
        "addresses": [address["ip"]],
        "conditions": {"ready": is_ready_address},
        **{name: value for name, value in optional_fields.items() if value},
    }


def _mirror_changes(
    endpoints: meta.Obj, groups: Mapping[tuple[str, PortsKey], EndpointGroup], slices: Sequence[meta.Obj]
) -> SliceChanges:
    changes = SliceChanges()
    slices_by_key: dict[tuple[str, PortsKey], list[meta.Obj]] = {}
    for each in slices:
        slices_by_key.setdefault((each["addressType"], ports_key(each.get("ports") or ())), []).append(each)
    metadata = endpoints["metadata"]
    labels = {**(metadata.get("labels") or {}), SERVICE_NAME: metadata["name"], MANAGED_BY: MIRROR_CONTROLLER}
    annotations = {
        name: text
        for name, text in (metadata.get("annotations") or {}).items()
        if name not in {TRIGGER_TIME, _LAST_APPLIED}
    }
    for key, group in groups.items():
        existing = slices_by_key.get(key, [])
        first = existing[0] if existing else None
        changes.deleted += existing[1:]
        content = {"endpoints": list(group.endpoints.values())}
        if first is None:
            created = new_slice(endpoints, labels, key[0], group.ports)
            changes.created.append({**meta.with_metadata(created, annotations=annotations or None), **content})
            continue
        new = {**meta.with_metadata(first, labels=labels, annotations=annotations or None), **content}
        if new != first:
            changes.updated.append(new)
    changes.deleted += [each for key, unused in slices_by_key.items() if key not in groups for each in unused]
    changes.recycle()
    return changes
