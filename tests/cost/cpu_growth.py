"""Growth of CPU time with the input."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from gc import collect, disable, enable

#: Times below this number of seconds are noise.
FLOOR = 0.04
#: The maximum ratio of times for fourfold input.
RATIO = 6
#: Rounds of measurements: other work on the machine makes single ones longer.
_ROUNDS = 5


def check_growth(named: str, run: Callable[[int], object], size: int) -> None:
    """Raise AssertionError if fourfold input takes more than sixfold time in all measurements."""
    if _seconds(run, 4 * size) <= FLOOR:  # nearly always: thousands of collections would take an hour
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
    """Disable garbage collection, which takes time at arbitrary instants."""
    collect()
    disable()
    try:
        yield
    finally:
        enable()
