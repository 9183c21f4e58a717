"""How the CPU time of something grows with its input."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from gc import collect, disable, enable

#: Seconds below which a time is noise.
FLOOR = 0.04
#: The most that four times the input may take, in times.
RATIO = 6
#: Rounds of measurements: other work on the machine makes single ones longer.
_ROUNDS = 5


def check_growth(named: str, run: Callable[[int], object], size: int) -> None:
    """AssertionError if four times the size takes more than six times as long, however often it is measured."""
    if _seconds(run, 4 * size) <= FLOOR:  # nearly always: a collection for each of thousands takes an hour
        return
    with _without_collections():
        most = least = float("inf")
        for _ in range(_ROUNDS):
            most = min(most, _seconds(run, 4 * size))
            if most <= FLOOR:
                return
            least = min(least, _seconds(run, size))
            if most <= RATIO * least:
                return
    raise AssertionError(f"{named}: {least:.4f} s at {size}, {most:.4f} s at {4 * size}")


def _seconds(run: Callable[[int], object], size: int) -> float:
    began = time.process_time()
    run(size)
    return time.process_time() - began


@contextmanager
def _without_collections() -> Iterator[None]:
    """Collect no garbage meanwhile, which takes time at moments of its own."""
    collect()
    disable()
    try:
        yield
    finally:
        enable()
