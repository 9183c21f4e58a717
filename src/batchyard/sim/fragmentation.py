"""How much of the free GPUs of a cluster its pods cannot use: fragmentation, as FGD measures it.

A node's unusable GPU is what a pod drawn from the mix of all pods finds useless there, on average: all that is free if
the pod does not fit the node or wants no GPU, else the GPUs of which less is left than it asks of one. Source: Weng et
al., Beware of Fragmentation (USENIX ATC 2023), section 3.2, and the simulator published with it. Amounts are whole
numbers, so that the shares are exact.
"""

from collections.abc import Iterable
from typing import NamedTuple

from batchyard.placement.devices import WHOLE, pick_devices


class Shape(NamedTuple):
    """What a pod asks for: cpu and GPUs in thousandths, memory in bytes."""

    cpu: int
    memory: int
    gpu_milli: int
    #: The models of GPU it runs on; empty: any.
    models: tuple[str, ...] = ()


class Room(NamedTuple):
    """What a node has free."""

    model: str
    cpu: int
    memory: int
    #: Of each GPU.
    gpus: tuple[int, ...]


class Mix:
    """The pods that may come: how many there are of each shape."""

    def __init__(self, shapes: Iterable[Shape]) -> None:
        self._counts: dict[Shape, int] = {}
        for shape in shapes:
            self._counts[shape] = self._counts.get(shape, 0) + 1
        self.pods = sum(self._counts.values())
        self._known: dict[Room, int] = {}

    @property
    def without_gpu(self) -> float:
        """The share of pods that want no GPU: no cluster is less fragmented than that."""
        return sum(n for shape, n in self._counts.items() if not shape.gpu_milli) / self.pods if self.pods else 0.0

    def unusable(self, room: Room) -> int:
        """What of a node's GPUs pods cannot use, in thousandths: the sum over all pods, not their mean."""
        known = self._known.get(room)
        if known is None:
            known = self._known[room] = sum(n * _unusable_by(shape, room) for shape, n in self._counts.items())
        return known


def _unusable_by(shape: Shape, room: Room) -> int:
    if not _fits(shape, room):
        return sum(room.gpus)
    least = min(shape.gpu_milli, WHOLE)
    return sum([left for left in room.gpus if left < least])


def _fits(shape: Shape, room: Room) -> bool:
    """Whether a node has room for a pod, which wants a GPU."""
    if not shape.gpu_milli or shape.cpu > room.cpu or shape.memory > room.memory:
        return False
    return (not shape.models or room.model in shape.models) and bool(pick_devices(shape.gpu_milli, room.gpus))
