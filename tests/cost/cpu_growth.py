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
    """Raise AssertionError if fourfold input takes more than sixfold time, from `size` and again from 4 * `size`.

    The second step is taken only after the first exceeded the ratio: time that grows with the square of the input
    exceeds it in both, the load of other processes seldom does.
    """
    if _seconds(run, 4 * size) <= FLOOR:  # nearly always: thousands of collections would take an hour
        return
    with _without_collections():
        first = _measure_step(run, size)
        second = _measure_step(run, 4 * size) if first else None
    if first and second:
        raise AssertionError(f"{named}: {first}; {second}")


def _measure_step(run: Callable[[int], object], size: int) -> str | None:
    """Return the times at `size` and 4 * `size` as text if all rounds exceeded the ratio, else None."""
    larger_time = time_at_size = float("inf")
    for _ in range(_ROUNDS):
        larger_time = min(larger_time, _seconds(run, 4 * size))
        if larger_time <= FLOOR:
            return None
        time_at_size = min(time_at_size, _seconds(run, size))
        if larger_time <= RATIO * time_at_size:
            return None
    return f"{time_at_size:.4f} s at {size}, {larger_time:.4f} s at {4 * size}"


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
