"""Defaults of types of Kubernetes itself that depend on other fields.

Constant defaults are in the field tables. Each function returns the fields to add to an object of its type. Sources:
Kubernetes's pkg/apis/core/v1/{defaults,conversion}.go, pkg/util/parsers.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

Computed: TypeAlias = Callable[[Mapping[str, Any]], Mapping[str, Any]]

_NONE: Final[Mapping[str, Any]] = {}
#: An image reference: optional host, path, optional tag or digest. Without either, the tag is `latest`.
_PART: Final = r"[a-z0-9]++(?:(?:\.|__?|-++)[a-z0-9]++)*+"
_REFERENCE: Final = re.compile(
    rf"(?:[a-zA-Z0-9.\-\[\]:]++/)?+{_PART}(?:/{_PART})*+(?::(?P<tag>[\w][\w.\-]{{0,127}}+))?+(?P<digest>@[\w+.:\-]++)?+",
    re.ASCII,
)
_REFERENCE_MAX: Final = 1024
_LATEST: Final = "latest"
#: The session affinity timeout of a Service.
_CLIENT_IP_SECONDS: Final = 10800


def pull_policy(image: str) -> str:
    """Return the pull policy of an image: `Always` for the tag `latest`, which is the default without a digest."""
    found = _REFERENCE.fullmatch(image) if len(image) <= _REFERENCE_MAX else None
    if found is None:
        return "IfNotPresent"
    tag = found["tag"] or ("" if found["digest"] else _LATEST)
    return "Always" if tag == _LATEST else "IfNotPresent"


def _container(container: Mapping[str, Any]) -> Mapping[str, Any]:
    if container.get("imagePullPolicy"):
        return _NONE
    return {"imagePullPolicy": pull_policy(container.get("image") or "")}


def _volume(volume: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the source of a volume without one: an emptyDir; or the pull policy of an image volume."""
    if len(volume) == 1 and "name" in volume:
        return {"emptyDir": {}}
    image = volume.get("image")
    if image is not None and not image.get("pullPolicy"):
        return {"image": {**image, "pullPolicy": pull_policy(image.get("reference") or "")}}
    return _NONE


def _pod_spec(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the service account name in both fields; the newer field takes precedence."""
    name = spec.get("serviceAccountName") or spec.get("serviceAccount")
    if not name or (spec.get("serviceAccountName") == name and spec.get("serviceAccount") == name):
        return _NONE
    return {"serviceAccountName": name, "serviceAccount": name}


def _service_spec(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    added: dict[str, Any] = {}
    ports = spec.get("ports") or ()
    if any(port.get("targetPort") in {None, 0, ""} for port in ports):
        added["ports"] = [
            {**port, "targetPort": port["port"]} if port.get("targetPort") in {None, 0, ""} else port for port in ports
        ]
    kind, affinity = spec.get("type"), spec.get("sessionAffinityConfig")
    if (
        spec.get("sessionAffinity") == "ClientIP"
        and ((affinity or {}).get("clientIP") or {}).get("timeoutSeconds") is None
    ):
        added["sessionAffinityConfig"] = {"clientIP": {"timeoutSeconds": _CLIENT_IP_SECONDS}}
    if spec.get("internalTrafficPolicy") is None and kind != "ExternalName":
        added["internalTrafficPolicy"] = "Cluster"
    if kind in {"NodePort", "LoadBalancer"} and not spec.get("externalTrafficPolicy"):
        added["externalTrafficPolicy"] = "Cluster"
    if kind == "LoadBalancer" and spec.get("allocateLoadBalancerNodePorts") is None:
        added["allocateLoadBalancerNodePorts"] = True
    return added


def _endpoint_slice(endpoint_slice: Mapping[str, Any]) -> Mapping[str, Any]:
    ports = endpoint_slice.get("ports") or ()
    if all("name" in port for port in ports):
        return _NONE
    return {"ports": [port if "name" in port else {**port, "name": ""} for port in ports]}


def _network_policy_spec(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the default policy types: ingress, and egress if there are egress rules."""
    if spec.get("policyTypes"):
        return _NONE
    return {"policyTypes": ["Ingress", "Egress"] if spec.get("egress") else ["Ingress"]}


#: The functions by type.
COMPUTED: Final[Mapping[str, Computed]] = {
    "Container": _container,
    "EphemeralContainer": _container,
    "EndpointSlice": _endpoint_slice,
    "NetworkPolicySpec": _network_policy_spec,
    "PodSpec": _pod_spec,
    "ServiceSpec": _service_spec,
    "Volume": _volume,
}
