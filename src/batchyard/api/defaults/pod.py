"""Defaults of Pods, and of Pods alone: their templates stay as they were written.

Of all that the API server fills in, what others read: how a pod is restarted, stopped and scheduled, what it requests,
and that it is pending. Sources: Kubernetes's pkg/apis/core/v1/defaults.go and, for the phase,
pkg/registry/core/pod/strategy.go.
"""

from collections.abc import Mapping
from typing import Any, Final

from batchyard.api.meta import Obj

_SPEC: Final[Mapping[str, Any]] = {
    "restartPolicy": "Always",
    "terminationGracePeriodSeconds": 30,
    "dnsPolicy": "ClusterFirst",
    "schedulerName": "default-scheduler",
}


def pod_defaults(pod: Obj) -> Obj:
    """A Pod with its defaults; the same object where it has them all."""
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    missing = {field: value for field, value in _SPEC.items() if spec.get(field) in (None, "")}
    for field in ("containers", "initContainers"):
        containers = spec.get(field) or ()
        if any(_unsaid_requests(container) for container in containers):
            missing[field] = [_requesting(container) for container in containers]
    done = {**pod, "spec": {**spec, **missing}} if missing else pod
    return done if status.get("phase") else {**done, "status": {**status, "phase": "Pending"}}


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
