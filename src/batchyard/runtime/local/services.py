"""The variables by which containers find Services.

Source: pkg/kubelet/envvars; pkg/kubelet/kubelet_pods.go (getServiceEnvVarMap).
"""

from collections.abc import Mapping
from typing import Any, Final

from batchyard.api import scheme
from batchyard.api.meta import Key, Obj, key_of
from batchyard.ports.client import Reader

#: The Service by which all pods find the API, whatever they want of others.
_MASTER: Final = Key(scheme.SERVICE, "default", "kubernetes")
_ENDPOINTS: Final = Key(scheme.ENDPOINTS, "default", "kubernetes")


def service_variables(namespace: str, reader: Reader, *, has_links: bool, has_network: bool) -> dict[str, str]:
    """The variables of all Services of a namespace that have an address, and of the one of the API.

    `has_links` is the pod's enableServiceLinks: without it only the latter. A Service of the namespace stands before
    the API's if it has its name. A pod that `has_network` of its own finds the API there, others at the node's own.
    """
    found: dict[str, Obj] = {}
    master = reader.get(_MASTER) if has_network else _as_the_node_sees_it(reader)
    if master is not None and _address(master):
        found[_MASTER.name] = master
    for service in reader.list(scheme.SERVICE, namespace) if has_links else ():
        if _address(service) and key_of(service) != _MASTER:
            found[service["metadata"]["name"]] = service
    return {name: value for service in found.values() for name, value in _variables(service).items()}


def _as_the_node_sees_it(reader: Reader) -> Obj | None:
    """The API's Service with the address and the port at which the server listens, where clients can trust it."""
    endpoints = reader.get(_ENDPOINTS)
    for subset in (endpoints or {}).get("subsets") or ():
        if subset["ports"][0].get("name") == "https":
            spec = {"clusterIP": subset["addresses"][0]["ip"], "ports": subset["ports"]}
            return {"metadata": {"name": _MASTER.name}, "spec": spec}
    return None


def _address(service: Obj) -> str:
    address: str = service["spec"].get("clusterIP") or ""
    return "" if address == "None" else address


def _variables(service: Obj) -> dict[str, str]:
    prefix, address = _upper(service["metadata"]["name"]), _address(service)
    ports: list[Mapping[str, Any]] = list(service["spec"].get("ports") or ())
    variables = {f"{prefix}_SERVICE_HOST": address}
    if ports:
        variables[f"{prefix}_SERVICE_PORT"] = str(ports[0]["port"])
    variables.update({f"{prefix}_SERVICE_PORT_{_upper(p['name'])}": str(p["port"]) for p in ports if p.get("name")})
    for number, port in enumerate(ports):
        variables.update(_links(prefix, address, port, is_first=number == 0))
    return variables


def _links(prefix: str, address: str, port: Mapping[str, Any], *, is_first: bool) -> dict[str, str]:
    """The variables of one port, as Docker's links had them."""
    protocol: str = port.get("protocol") or "TCP"
    host = f"[{address}]" if ":" in address else address
    url = f"{protocol.lower()}://{host}:{port['port']}"
    own = f"{prefix}_PORT_{port['port']}_{protocol.upper()}"
    return {
        **({f"{prefix}_PORT": url} if is_first else {}),
        own: url,
        f"{own}_PROTO": protocol.lower(),
        f"{own}_PORT": str(port["port"]),
        f"{own}_ADDR": address,
    }


def _upper(name: str) -> str:
    return name.replace("-", "_").upper()
