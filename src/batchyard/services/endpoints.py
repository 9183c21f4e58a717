"""Endpoints objects: the subsets of pods behind a Service, packed by ports, at most 1,000 addresses.

Sources: pkg/controller/endpoint of Kubernetes (endpoints_controller.go), pkg/api/v1/endpoints (RepackSubsets).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

from batchyard.api import meta
from batchyard.api.views.pods import is_ready
from batchyard.services.endpoint_slices import (
    HEADLESS,
    IPV4,
    TRIGGER_TIME,
    belongs_in_endpoints,
    find_target_port,
    has_cluster_ip,
    hostname_for,
    is_of_family,
    pod_ips,
)

ENDPOINTS_MANAGED_BY: Final = "endpoints.kubernetes.io/managed-by"
ENDPOINTS_CONTROLLER: Final = "endpoint-controller"
_OVER_CAPACITY: Final = "endpoints.kubernetes.io/over-capacity"
ADDRESSES_MAX: Final = 1000

Subset: TypeAlias = Mapping[str, Any]
_PortKey: TypeAlias = tuple[str, str, int, str]
_AddressKey: TypeAlias = tuple[str, str, str]


def service_subsets(service: meta.Obj, pods: Iterable[meta.Obj]) -> list[Subset]:
    """Return the packed subsets of the pods that a Service selects."""
    spec = service["spec"]
    publishes_all = bool(spec.get("publishNotReadyAddresses"))
    family = next(iter(spec.get("ipFamilies") or ()), IPV4)
    subsets: list[Subset] = []
    for pod in pods:
        address = _pod_address(pod, service, family)
        if address is None or not belongs_in_endpoints(pod, includes_terminating=publishes_all):
            continue
        field = "addresses" if publishes_all or is_ready(pod) else "notReadyAddresses"
        if not spec.get("ports"):
            subsets += [{field: [address]}] if spec.get("clusterIP") == "None" else []
        for port in _pod_ports(service, pod):
            subsets.append({field: [address], "ports": [port]})
    return repack_subsets(subsets)


def _pod_address(pod: meta.Obj, service: meta.Obj, family: str) -> Mapping[str, Any] | None:
    address = next((each for each in pod_ips(pod) if is_of_family(each, family)), None)
    if address is None:
        return None
    metadata = pod["metadata"]
    target = {"kind": "Pod", "namespace": metadata["namespace"], "name": metadata["name"], "uid": metadata["uid"]}
    optional_fields = {"hostname": hostname_for(pod, service), "nodeName": pod["spec"].get("nodeName")}
    return {"ip": address, "targetRef": target, **{name: text for name, text in optional_fields.items() if text}}


def _pod_ports(service: meta.Obj, pod: meta.Obj) -> Iterator[Mapping[str, Any]]:
    for service_port in service["spec"].get("ports") or ():
        number = find_target_port(pod, service_port)
        if number is not None:
            fields = {"name": service_port.get("name"), "appProtocol": service_port.get("appProtocol")}
            port = {"port": number, "protocol": service_port.get("protocol") or "TCP"}
            yield {**port, **{name: text for name, text in fields.items() if text}}


def repack_subsets(subsets: Iterable[Subset]) -> list[Subset]:
    """Return equal subsets in a canonical form: ports with the same addresses share a subset; all lists are sorted.

    An address that is ready in one of the given subsets is ready.
    """
    addresses: dict[_AddressKey, Mapping[str, Any]] = {}
    ports: dict[_PortKey | None, Mapping[str, Any] | None] = {}
    ready_by_port: dict[_PortKey | None, dict[_AddressKey, bool]] = {}
    for subset in subsets:
        for port in subset.get("ports") or [None]:
            key = None if port is None else _port_key(port)
            ports.setdefault(key, port)
            is_ready_by_address = ready_by_port.setdefault(key, {})
            for field in ("addresses", "notReadyAddresses"):
                for address in subset.get(field) or ():
                    address_key = _address_key(address)
                    addresses[address_key] = address
                    is_known_ready = is_ready_by_address.get(address_key, False)
                    is_ready_by_address[address_key] = is_known_ready or field == "addresses"
    ports_by_addresses: dict[tuple[tuple[_AddressKey, bool], ...], list[_PortKey | None]] = {}
    for key, is_ready_by_address in ready_by_port.items():
        ports_by_addresses.setdefault(tuple(sorted(is_ready_by_address.items())), []).append(key)
    packed: list[tuple[list[_PortKey], Subset]] = []
    for address_states, keys in ports_by_addresses.items():
        port_keys = sorted(key for key in keys if key is not None)
        fields = {
            "addresses": [addresses[key] for key, ready in address_states if ready],
            "notReadyAddresses": [addresses[key] for key, ready in address_states if not ready],
            "ports": [ports[key] for key in port_keys],
        }
        packed.append((port_keys, {name: values for name, values in fields.items() if values}))
    return [subset for _, subset in sorted(packed, key=lambda each: each[0])]


def _port_key(port: Mapping[str, Any]) -> _PortKey:
    return (port.get("name") or "", port.get("protocol") or "TCP", port.get("port") or 0, port.get("appProtocol") or "")


def _address_key(address: Mapping[str, Any]) -> _AddressKey:
    return (address["ip"], (address.get("targetRef") or {}).get("uid") or "", address.get("hostname") or "")


def endpoints_for(
    service: meta.Obj, subsets: Sequence[Subset], stored: meta.Obj | None, trigger_time: str | None
) -> meta.Obj | None:
    """Return the Endpoints object of a Service with these subsets; None if the stored object is up to date."""
    base: meta.Obj = stored or {"apiVersion": "v1", "kind": "Endpoints", "metadata": _new_metadata(service)}
    labels = dict(service["metadata"].get("labels") or {})
    labels.pop(HEADLESS, None)
    if not has_cluster_ip(service):
        labels[HEADLESS] = ""
    labels[ENDPOINTS_MANAGED_BY] = ENDPOINTS_CONTROLLER
    kept_subsets, is_truncated = truncated_subsets(subsets)
    annotations = dict(base["metadata"].get("annotations") or {})
    is_over_capacity = annotations.get(_OVER_CAPACITY) == "truncated"
    has_labels = (base["metadata"].get("labels") or {}) == labels
    has_metadata = has_labels and is_over_capacity == is_truncated
    if stored is not None and has_metadata and repack_subsets(stored.get("subsets") or ()) == kept_subsets:
        return None
    for name, text in ((TRIGGER_TIME, trigger_time), (_OVER_CAPACITY, "truncated" if is_truncated else None)):
        annotations.pop(name, None)
        annotations.update({name: text} if text is not None else {})
    new = {**meta.with_metadata(base, labels=labels, annotations=annotations or None), "subsets": kept_subsets}
    return new if kept_subsets else {name: value for name, value in new.items() if name != "subsets"}


def _new_metadata(service: meta.Obj) -> Mapping[str, Any]:
    return {"name": service["metadata"]["name"], "namespace": service["metadata"]["namespace"]}


def truncated_subsets(subsets: Sequence[Subset]) -> tuple[Sequence[Subset], bool]:
    """Return at most 1,000 addresses of the subsets, and whether some were left out; ready addresses stay first.

    Each subset keeps a share of its addresses.
    """
    ready_count = sum(len(subset.get("addresses") or ()) for subset in subsets)
    unready_count = sum(len(subset.get("notReadyAddresses") or ()) for subset in subsets)
    if ready_count + unready_count <= ADDRESSES_MAX:
        return subsets, False
    cuts_ready = ready_count > ADDRESSES_MAX
    field = "addresses" if cuts_ready else "notReadyAddresses"
    capacity = ADDRESSES_MAX if cuts_ready else ADDRESSES_MAX - ready_count
    total, remaining = (ready_count if cuts_ready else unready_count), capacity
    kept: list[Subset] = []
    for subset in subsets:
        count = min(-(-len(subset.get(field) or ()) * capacity // total), remaining)
        remaining -= count
        fields = {**subset, field: list(subset.get(field) or ())[:count]}
        if cuts_ready:
            fields.pop("notReadyAddresses", None)
        kept.append({name: values for name, values in fields.items() if values})
    return kept, True
