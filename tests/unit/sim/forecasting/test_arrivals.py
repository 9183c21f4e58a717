"""Who will come: bursts stay bursts, and forks differ in how much comes."""

from itertools import pairwise

from batchyard.base.instant import HOUR, SECOND
from batchyard.sim.forecasting.arrivals import ArrivalModel
from batchyard.sim.forecasting.quota_only_state import queues_of
from unit.sim.forks_make import queue, state, workload

#: Ten at once, every hundred seconds.
BURSTS = [workload(f"w-{n:03}", 5, n // 10 * 100) for n in range(100)]


def gaps(seed: int, objects: list[dict[str, object]]) -> list[int]:
    """The seconds between those who come."""
    found = state([*queue(99), *objects], 950)
    arrivals = ArrivalModel(found, queues_of(found), list(queues_of(found).trees.values()))
    steps = arrivals.steps(lambda _: SECOND, HOUR, seed)
    born = [0, *(step.at // SECOND for step in steps)]
    return [after - before for before, after in pairwise(born)]


def test_bursts_go_on_as_bursts() -> None:
    found = gaps(1, BURSTS)
    alone = [gap for gap in found if gap]
    assert len(alone) / len(found) < 0.25
    assert min(alone) >= 50


def test_forks_differ_in_how_much_comes() -> None:
    assert len({len(gaps(seed, BURSTS)) for seed in range(5)}) > 1


def test_of_a_few_nothing_is_foretold() -> None:
    found = state([*queue(99), *BURSTS[:3]], 10)
    assert not ArrivalModel(found, queues_of(found), list(queues_of(found).trees.values())).are_expected
