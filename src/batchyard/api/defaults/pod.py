"""Defaults of Pods beyond those of their templates: what a Pod requests, its host ports, and that it is pending.

The defaults that templates have too are in the field tables; a Pod that was made in process gets them here.
Sources: Kubernetes's pkg/apis/core/v1/defaults.go and, for the phase, pkg/registry/core/pod/strategy.go.
"""

from collections.abc import Mapping
from typing import Any, Final

from batchyard.api.meta import Obj
from batchyard.api.schema import completed

_CONTAINERS: Final = ("containers", "initContainers")
#: A spec with the defaults of templates has this field.
_OF_COMPLETE: Final = "securityContext"


def pod_defaults(pod: Obj) -> Obj:
    """A Pod with its defaults; the same object where it has them all."""
    given, status = pod.get("spec") or {}, pod.get("status") or {}
    spec = given if _OF_COMPLETE in given else completed("PodSpec", given)
    missing: dict[str, Any] = {} if spec.get("enableServiceLinks") is not None else {"enableServiceLinks": True}
    for field in _CONTAINERS:
        containers = spec.get(field) or ()
        if any(_unsaid_requests(container) for container in containers):
            missing[field] = [_requesting(container) for container in containers]
    if spec.get("hostNetwork"):
        missing |= _on_host({**spec, **missing})
    spec = {**spec, **missing} if missing else spec
    done = pod if spec is given else {**pod, "spec": spec}
    return done if status.get("phase") else {**done, "status": {**status, "phase": "Pending"}}


def _on_host(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The containers of a Pod on the network of its node, whose ports are ports of the node."""
    return {field: [_with_host_ports(each) for each in spec[field]] for field in _CONTAINERS if spec.get(field)}


def _with_host_ports(container: Mapping[str, Any]) -> Mapping[str, Any]:
    ports = container.get("ports") or ()
    if all(port.get("hostPort") for port in ports):
        return container
    return {**container, "ports": [{"hostPort": port["containerPort"], **port} for port in ports]}


def _requesting(container: Mapping[str, Any]) -> Mapping[str, Any]:
    """A container that requests what it is limited to where it says nothing of it."""
    unsaid = _unsaid_requests(container)
    if not unsaid:
        return container
    resources = container["resources"]
    return {**container, "resources": {**resources, "requests": {**(resources.get("requests") or {}), **unsaid}}}


def _unsaid_requests(container: Mapping[str, Any]) -> dict[str, Any]:
    """The limits of what a container does not request itself."""
    resources = container.get("resources") or {}
    requests = resources.get("requests") or {}
    return {name: limit for name, limit in (resources.get("limits") or {}).items() if name not in requests}
