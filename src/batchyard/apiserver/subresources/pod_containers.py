"""Lookup of pods and their containers for subresources.

Source: Kubernetes's pkg/registry/core/pod/strategy.go.
"""

from collections.abc import Mapping
from typing import Any, Final

from batchyard.api import scheme
from batchyard.api.meta import Key, Obj
from batchyard.apiserver.objects import ApiObjectReader
from batchyard.apiserver.request import StatusError, bad_request
from batchyard.interfaces.containers import Containers

_CONTAINERS: Final = ("initContainers", "containers", "ephemeralContainers")


class PodContainers:
    """The pods, and the runtime of their containers."""

    def __init__(self, objects: ApiObjectReader, runtime: Containers) -> None:
        self._objects = objects
        self.runtime = runtime

    def pod(self, namespace: str, name: str) -> Obj:
        """Return the pod. Raises Refused if it does not exist."""
        found = self._objects.get(Key(scheme.POD, namespace, name))
        if found is None:
            raise pod_not_found(name)
        return found


def pod_not_found(name: str) -> StatusError:
    """Return the 404 error of a missing pod."""
    return StatusError(404, "NotFound", f'pods "{name}" not found', {"name": name, "kind": "pods"})


def chosen_container(pod: Obj, name: str) -> str:
    """Return the container of a name, or the only one. Raises Refused if the name is invalid or missing."""
    spec, pod_name = pod["spec"], pod["metadata"]["name"]
    names = [each["name"] for field in _CONTAINERS for each in spec.get(field) or ()]
    if name:
        if name not in names:
            raise bad_request(f"container {name} is not valid for pod {pod_name}")
        return name
    if len(spec["containers"]) == 1:
        only: Mapping[str, Any] = spec["containers"][0]
        return str(only["name"])
    choice = f"[{' '.join(names)}]"
    raise bad_request(f"a container name must be specified for pod {pod_name}, choose one of: {choice}")


def is_somewhere(pod: Obj) -> bool:
    """Report whether the pod has a node, or has container statuses as in simulations without nodes."""
    return bool(pod["spec"].get("nodeName") or (pod.get("status") or {}).get("containerStatuses"))
