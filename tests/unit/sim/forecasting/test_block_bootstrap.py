"""Block bootstrap: neighbors stay together, every place is equally likely, and errors do not cancel out."""

from itertools import pairwise
from statistics import fmean, pvariance

from batchyard.sim.forecasting.arrivals import BlockBootstrap, random_fraction, random_weights

#: A history of good days and bad days, of ten runs each.
DAYS = [float(place // 10 % 2) for place in range(100)]


def drawn_indices(seed: int, count: int = 20) -> list[int]:
    places = BlockBootstrap(100, seed, "test")
    return [places.next_index() for _ in range(count)]


def test_bootstrap_is_determined_by_seed() -> None:
    assert drawn_indices(1) == drawn_indices(1)
    assert drawn_indices(1) != drawn_indices(2)


def test_bootstrap_mostly_continues_with_next_place() -> None:
    places = drawn_indices(3, 2000)
    together = sum((before + 1) % 100 == after for before, after in pairwise(places))
    assert 0.87 < together / len(places) < 0.94


def test_bootstrap_draws_places_uniformly() -> None:
    first = [drawn_indices(seed, 1)[0] for seed in range(1000)]
    assert set(first) == set(range(100)) or len(set(first)) > 98
    assert 45 < fmean(first) < 54


def test_bootstrap_of_one_place_returns_it() -> None:
    places = BlockBootstrap(1, 5, "test")
    assert [places.next_index() for _ in range(3)] == [0, 0, 0]


def test_block_bootstrap_keeps_variance_of_days() -> None:
    in_stretches = [fmean(DAYS[place] for place in drawn_indices(seed)) for seed in range(300)]
    alone = [fmean(DAYS[int(100 * random_fraction(seed, str(each)))] for each in range(20)) for seed in range(300)]
    assert pvariance(in_stretches) > 2 * pvariance(alone)


def test_weights_average_one_and_are_constant_within_block() -> None:
    result = [random_weights(100, seed, "test") for seed in range(300)]
    assert 0.95 < fmean(map(fmean, result)) < 1.05
    assert all(each[0] == each[9] != each[10] for each in result)
    assert random_weights(0, 1, "test") == []
