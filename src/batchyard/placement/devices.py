"""Shared GPUs of a node in thousandths (`batchyard.dev/gpu-milli`): the share of each pod on each GPU.

A share below 1000 is on one GPU; whole GPUs must be entirely free. 2500 takes two whole GPUs and 500 of a third. A
share goes to the GPU with the least sufficient room, so that whole GPUs stay free. Source for the annotation that is
written with the binding: Alibaba's gpushare scheduler extender.
"""

from collections.abc import Sequence
from typing import Final

from batchyard.base.invariants import invariant

WHOLE: Final = 1000
"""One GPU in thousandths."""


class GpuShares:
    """The GPUs of a node and the shares of its pods. Pods that others bound without free GPUs are not counted."""

    __slots__ = ("_held", "left")

    def __init__(self, total: int) -> None:
        self.left = [WHOLE] * (total // WHOLE)
        """Free thousandths by GPU; negative if overcommitted."""
        self._held: dict[str, tuple[int, tuple[int, ...]]] = {}

    def fits(self, amount: int) -> bool:
        """Whether the amount fits."""
        if amount <= WHOLE:  # fast path for almost all pods that use GPUs
            return max(self.left, default=0) >= amount
        return bool(pick_devices(amount, self.left))

    def has_enough(self, amount: int) -> bool:
        """Whether the amount would fit if all GPUs were free."""
        return -(-amount // WHOLE) <= len(self.left)

    def held_by(self, uid: str) -> tuple[int, ...]:
        """Return the GPUs of a pod; one with a partial share comes last."""
        return self._held.get(uid, (0, ()))[1]

    def take(self, uid: str, amount: int, chosen: Sequence[int]) -> None:
        """Add a pod with its chosen GPUs; if those are invalid, GPUs are picked."""
        is_possible = len(chosen) == -(-amount // WHOLE) == len(dict.fromkeys(chosen))
        is_known = all(0 <= number < len(self.left) for number in chosen)
        picked = tuple(chosen) if chosen and is_possible and is_known else pick_devices(amount, self.left)
        self._held[uid] = amount, picked
        self._count(amount, picked, -1)

    def release(self, uid: str) -> tuple[int, ...]:
        """Remove a pod and return its GPUs."""
        amount, picked = self._held.pop(uid)
        self._count(amount, picked, 1)
        return picked

    def resized(self, total: int) -> "GpuShares":
        """Return devices for a node with a new total, with the same pods."""
        new = GpuShares(total)
        for uid, (amount, picked) in self._held.items():
            new.take(uid, amount, picked)
        return new

    def _count(self, amount: int, picked: Sequence[int], sign: int) -> None:
        invariant(not picked or len(picked) == -(-amount // WHOLE), "a pod has as many GPUs as it asked for")
        for number in picked:
            part = min(amount, WHOLE)
            self.left[number] += sign * part
            amount -= part


def pick_devices(amount: int, left: Sequence[int]) -> tuple[int, ...]:
    """Return the GPUs for an amount, whole ones first, given the free thousandths; empty if it does not fit."""
    whole, share = divmod(amount, WHOLE)
    free = [number for number, rest in enumerate(left) if rest == WHOLE] if whole else []
    if len(free) < whole:
        return ()
    taken = free[:whole]
    if not share:
        return tuple(taken)
    others = [(rest, number) for number, rest in enumerate(left) if rest >= share and number not in taken]
    return (*taken, min(others)[1]) if others else ()
