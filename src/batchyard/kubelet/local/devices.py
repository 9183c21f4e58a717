"""Device allocation: whole devices such as GPUs for containers, and what containers need to use them.

A device belongs to one pod at a time. Devices of an init container are reused by later containers. Free devices with
the lowest numbers are taken first. Sources: pkg/kubelet/cm/devicemanager/manager.go (Allocate, devicesToAllocate);
NVIDIA's device plugin for the environment of a GPU container.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

from batchyard.api import quantity
from batchyard.api.meta import Obj
from batchyard.kubelet.local.errors import InputError
from batchyard.kubelet.local.security import containers_of

Allocation: TypeAlias = Mapping[str, Sequence[int]]
"""The device numbers of one pod's containers, by container name."""

GPU: Final = "nvidia.com/gpu"


class Gpu(NamedTuple):
    """A GPU of the machine."""

    number: int
    uuid: str
    model: str
    memory_bytes: int
    #: The device files that programs need to use it.
    paths: Sequence[str]


@dataclass(frozen=True, slots=True)
class ContainerDevices:
    """The device files and environment variables that a container gets."""

    paths: Sequence[str] = ()
    variables: Mapping[str, str] = field(default_factory=dict)


def allocation_of(pod: Obj, resource: str, numbers: Sequence[int], held: Mapping[str, Allocation]) -> Allocation:
    """Allocate devices to each container that requests some; InputError if too few are free.

    `numbers` are all healthy devices of the machine, `held` the allocations of pods by uid. The pod keeps its own.
    """
    uid: str = pod["metadata"]["uid"]
    own = held.get(uid, {})
    taken = {number for allocation in held.values() for given in allocation.values() for number in given}
    reusable: dict[int, None] = {}
    found: dict[str, Sequence[int]] = {}
    for container in containers_of(pod):
        wanted = _wanted(container, resource)
        if not wanted:
            continue
        name: str = container["name"]
        if name in own:
            _check_same(container, own[name], (uid, resource, wanted, numbers))
            given: Sequence[int] = own[name]
        else:
            given = _pick(resource, wanted, list(reusable), [n for n in sorted(numbers) if n not in taken])
        found[name] = given
        taken.update(given)
        for number in given:
            reusable.pop(number, None)
        if _only_starts(pod, container):
            reusable.update(dict.fromkeys(given))
    return found


def gpu_devices(gpus: Sequence[Gpu]) -> ContainerDevices:
    """Return what a container with these GPUs gets; without GPUs, variables that hide all of the machine's.

    The variables name GPUs by uuid, because indices differ in a container that sees only its own GPUs.
    """
    if not gpus:
        return ContainerDevices((), {"CUDA_VISIBLE_DEVICES": "", "NVIDIA_VISIBLE_DEVICES": "void"})
    listed = ",".join(gpu.uuid for gpu in gpus)
    paths = dict.fromkeys(path for gpu in gpus for path in gpu.paths)
    return ContainerDevices(list(paths), {"CUDA_VISIBLE_DEVICES": listed, "NVIDIA_VISIBLE_DEVICES": listed})


def _wanted(container: Mapping[str, Any], resource: str) -> int:
    limits: Mapping[str, Any] = (container.get("resources") or {}).get("limits") or {}
    return quantity.amount(resource, limits.get(resource) or "0")


def _only_starts(pod: Obj, container: Mapping[str, Any]) -> bool:
    return container in (pod["spec"].get("initContainers") or ()) and container.get("restartPolicy") != "Always"


def _check_same(container: Mapping[str, Any], had: Sequence[int], asked: tuple[str, str, int, Sequence[int]]) -> None:
    uid, resource, wanted, numbers = asked
    if len(had) != wanted:
        raise InputError(
            f'pod "{uid}" container "{container["name"]}" changed request for resource "{resource}"'
            f" from {len(had)} to {wanted}"
        )
    if not set(had) <= set(numbers):
        lost = "previously allocated devices are no longer healthy"
        raise InputError(f"{lost}; cannot allocate unhealthy devices {resource}")


def _pick(resource: str, wanted: int, reusable: Sequence[int], free: Sequence[int]) -> Sequence[int]:
    """Return devices that the pod can reuse, then free ones."""
    reused = sorted(reusable)[:wanted]
    needed = wanted - len(reused)
    if len(free) < needed:
        raise InputError(
            f"requested number of devices unavailable for {resource}. Requested: {needed}, Available: {len(free)}"
        )
    return [*reused, *free[:needed]]
