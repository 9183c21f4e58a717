"""GPU fragmentation: how much of the free GPUs of a cluster its pods cannot use, as measured by FGD.

The unusable part of a node's GPUs is a mean over the mix of all pods. A pod that does not fit the node or needs no GPU
counts all that is free. Any other pod counts the GPUs of which less is left than it requests of one. Source: Weng et
al., Beware of Fragmentation (USENIX ATC 2023), section 3.2, and the simulator published with it. Amounts are integers,
so that the shares are exact.
"""

from collections.abc import Iterable
from typing import NamedTuple

from batchyard.placement.devices import WHOLE, pick_devices


class TracedPodShape(NamedTuple):
    """The requests of a pod: cpu and GPUs in thousandths, memory in bytes."""

    cpu: int
    memory: int
    gpu_milli: int
    #: The models of GPU it runs on; empty: any.
    models: tuple[str, ...] = ()


class Room(NamedTuple):
    """The free resources of a node."""

    model: str
    cpu: int
    memory: int
    #: Of each GPU.
    gpus: tuple[int, ...]


class Mix:
    """The expected pods: the number of each shape."""

    def __init__(self, shapes: Iterable[TracedPodShape]) -> None:
        self._counts: dict[TracedPodShape, int] = {}
        for shape in shapes:
            self._counts[shape] = self._counts.get(shape, 0) + 1
        self.pods = sum(self._counts.values())
        self._known: dict[Room, int] = {}

    @property
    def without_gpu(self) -> float:
        """Return the share of pods that need no GPU, which is the lower bound of the fragmentation."""
        return sum(n for shape, n in self._counts.items() if not shape.gpu_milli) / self.pods if self.pods else 0.0

    def unusable(self, room: Room) -> int:
        """Return the unusable part of a node's GPUs in thousandths, as the sum over all pods, not their mean."""
        known = self._known.get(room)
        if known is None:
            known = self._known[room] = sum(n * _unusable_by(shape, room) for shape, n in self._counts.items())
        return known


def _unusable_by(shape: TracedPodShape, room: Room) -> int:
    if not _fits(shape, room):
        return sum(room.gpus)
    least = min(shape.gpu_milli, WHOLE)
    return sum([left for left in room.gpus if left < least])


def _fits(shape: TracedPodShape, room: Room) -> bool:
    """Whether a node has room for a pod with a GPU request."""
    if not shape.gpu_milli or shape.cpu > room.cpu or shape.memory > room.memory:
        return False
    return (not shape.models or room.model in shape.models) and bool(pick_devices(shape.gpu_milli, room.gpus))
