"""The GPUs of a node that are shared in thousandths (`batchyard.dev/gpu-milli`): which pod has what of which GPU.

A share of less than a GPU lies on one GPU, whole GPUs are wholly free ones; of 2,500 thousandths two GPUs are whole
and 500 lie on a third. A share goes where the least is left that suffices, so that whole GPUs stay free. Source for
how it is told to the pod, by an annotation that is written with its binding: Alibaba's gpushare scheduler extender.
"""

from collections.abc import Sequence
from typing import Final

from batchyard.base.invariants import invariant

WHOLE: Final = 1000
"""A GPU in thousandths."""


class Devices:
    """See the module. What lies on none of them, since others bound it where there was no room, is not counted here."""

    __slots__ = ("_held", "left")

    def __init__(self, total: int) -> None:
        self.left = [WHOLE] * (total // WHOLE)
        """What is left of each GPU; below zero where more is taken than there is."""
        self._held: dict[str, tuple[int, tuple[int, ...]]] = {}

    def fits(self, amount: int) -> bool:
        """Whether there are GPUs for so much."""
        if amount <= WHOLE:  # at once, for almost all pods that use GPUs
            return max(self.left, default=0) >= amount
        return bool(pick_devices(amount, self.left))

    def has_enough(self, amount: int) -> bool:
        """Whether there would be, were all of them free."""
        return -(-amount // WHOLE) <= len(self.left)

    def held_by(self, uid: str) -> tuple[int, ...]:
        """The GPUs of a pod; the one of which it has only a share comes last."""
        return self._held.get(uid, (0, ()))[1]

    def take(self, uid: str, amount: int, chosen: Sequence[int]) -> None:
        """A pod comes that has these GPUs; it gets some if they cannot be its."""
        is_possible = len(chosen) == -(-amount // WHOLE) == len(dict.fromkeys(chosen))
        is_known = all(0 <= number < len(self.left) for number in chosen)
        picked = tuple(chosen) if chosen and is_possible and is_known else pick_devices(amount, self.left)
        self._held[uid] = amount, picked
        self._count(amount, picked, -1)

    def release(self, uid: str) -> tuple[int, ...]:
        """A pod that is there goes; the GPUs it had."""
        amount, picked = self._held.pop(uid)
        self._count(amount, picked, 1)
        return picked

    def resized(self, total: int) -> "Devices":
        """The GPUs of a node that has so much now, with the same pods."""
        new = Devices(total)
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
    """The GPUs for so much, by what is left of each; whole ones first; empty if there is no room."""
    whole, share = divmod(amount, WHOLE)
    free = [number for number, rest in enumerate(left) if rest == WHOLE] if whole else []
    if len(free) < whole:
        return ()
    taken = free[:whole]
    if not share:
        return tuple(taken)
    others = [(rest, number) for number, rest in enumerate(left) if rest >= share and number not in taken]
    return (*taken, min(others)[1]) if others else ()
