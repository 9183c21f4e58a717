"""Forecasts of arrivals: bursts stay together, and forks differ in the number of arrivals."""

from itertools import pairwise

from batchyard.base.instant import HOUR, SECOND
from batchyard.sim.forecasting.arrivals import ArrivalModel
from batchyard.sim.forecasting.quota_only_state import queues_of
from unit.sim.forks_make import queue, state, workload

#: Ten Workloads at once, every hundred seconds.
BURSTS = [workload(f"w-{n:03}", 5, n // 10 * 100) for n in range(100)]


def gaps(seed: int, objects: list[dict[str, object]]) -> list[int]:
    """The seconds between arrivals."""
    result = state([*queue(99), *objects], 950)
    arrivals = ArrivalModel(result, queues_of(result), list(queues_of(result).trees.values()))
    steps = arrivals.steps(lambda _: SECOND, HOUR, seed)
    born = [0, *(step.at // SECOND for step in steps)]
    return [after - before for before, after in pairwise(born)]


def test_arrival_model_keeps_bursts_together() -> None:
    result = gaps(1, BURSTS)
    alone = [gap for gap in result if gap]
    assert len(alone) / len(result) < 0.25
    assert min(alone) >= 50


def test_forks_differ_in_number_of_arrivals() -> None:
    assert len({len(gaps(seed, BURSTS)) for seed in range(5)}) > 1


def test_arrivals_are_not_expected_from_short_history() -> None:
    result = state([*queue(99), *BURSTS[:3]], 10)
    assert not ArrivalModel(result, queues_of(result), list(queues_of(result).trees.values())).are_arrivals_expected
