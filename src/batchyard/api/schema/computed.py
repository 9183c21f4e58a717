"""Defaults of types of Kubernetes itself that follow from their other fields.

Defaults that follow from nothing else are facts of the field tables. Each function returns the fields to add to an
object of its type. Sources: Kubernetes's pkg/apis/core/v1/{defaults,conversion}.go, pkg/util/parsers.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

Computed: TypeAlias = Callable[[Mapping[str, Any]], Mapping[str, Any]]

_NONE: Final[Mapping[str, Any]] = {}
#: An image reference: maybe a host, a path, maybe a tag or a digest. Without either the tag is `latest`.
_PART: Final = r"[a-z0-9]++(?:(?:\.|__?|-++)[a-z0-9]++)*+"
_REFERENCE: Final = re.compile(
    rf"(?:[a-zA-Z0-9.\-\[\]:]++/)?+{_PART}(?:/{_PART})*+(?::(?P<tag>[\w][\w.\-]{{0,127}}+))?+(?P<digest>@[\w+.:\-]++)?+",
    re.ASCII,
)
_REFERENCE_MAX: Final = 1024
_LATEST: Final = "latest"
#: How long a Service sends a client to the same pod.
_CLIENT_IP_SECONDS: Final = 10800


def pull_policy(image: str) -> str:
    """The pull policy of an image: `Always` for the tag `latest`, which an image without tag and digest has."""
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
    """A volume without a source is an empty folder."""
    if len(volume) == 1 and "name" in volume:
        return {"emptyDir": {}}
    image = volume.get("image")
    if image is not None and not image.get("pullPolicy"):
        return {"image": {**image, "pullPolicy": pull_policy(image.get("reference") or "")}}
    return _NONE


def _pod_spec(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """The name of the service account stands in two fields; the newer one counts."""
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
    """A policy is about what comes in, and about what goes out if it has rules for that."""
    if spec.get("policyTypes"):
        return _NONE
    return {"policyTypes": ["Ingress", "Egress"] if spec.get("egress") else ["Ingress"]}


#: By type.
COMPUTED: Final[Mapping[str, Computed]] = {
    "Container": _container,
    "EphemeralContainer": _container,
    "EndpointSlice": _endpoint_slice,
    "NetworkPolicySpec": _network_policy_spec,
    "PodSpec": _pod_spec,
    "ServiceSpec": _service_spec,
    "Volume": _volume,
}
