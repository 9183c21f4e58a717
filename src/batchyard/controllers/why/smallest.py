"""The least of something that will do, found by trying."""

from collections.abc import Callable, Sequence
from functools import partial


def smallest(will_do: Callable[[Sequence[int]], bool], steps: Sequence[Sequence[int]]) -> list[int] | None:
    """Amounts that will do, of which none may be one less; None if not even the last of the steps will do.

    `steps` are ever larger guesses, the first being the likely one.
    """
    place = _first(lambda index: will_do(steps[index]), len(steps))
    if place is None:
        return None
    found = list(steps[place])
    is_new = True
    while is_new:
        is_new = False
        for dim, amount in enumerate(found):
            before, after = found[:dim], found[dim + 1 :]
            least = least_amount(partial(_with_one, will_do, before, after), amount)
            is_new |= least < amount and len(found) > 1
            found[dim] = least
    return found


def _with_one(will_do: Callable[[Sequence[int]], bool], before: list[int], after: list[int], amount: int) -> bool:
    return will_do([*before, amount, *after])


def least_amount(will_do: Callable[[int], bool], amount: int) -> int:
    """The least amount that will do while one less does not, from one that will do down to 0."""
    if amount == 0 or not will_do(amount - 1):
        return amount
    return least_between(will_do, 0, amount - 1)


def _first(will_do: Callable[[int], bool], count: int) -> int | None:
    """The first of so many that will do: the very first is asked before the last, then those between."""
    if will_do(0):
        return 0
    if count < 2 or not will_do(count - 1):
        return None
    return least_between(will_do, 1, count - 1)


def least_between(will_do: Callable[[int], bool], low: int, high: int) -> int:
    """The least number of these that will do, of those from which on all do; the last is known to."""
    while low < high:
        middle = (low + high) // 2
        if will_do(middle):
            high = middle
        else:
            low = middle + 1
    return high
