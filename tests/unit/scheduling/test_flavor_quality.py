"""The quality of a flavor as one number."""

from itertools import product

import pytest

from batchyard.api.views.workload import FlavorFungibility
from batchyard.scheduling.quota import (
    FIT,
    HOPELESS,
    NO_FIT,
    PREEMPT,
    RECLAIM,
    FlavorAssignmentMode,
    PreemptionPossibility,
    assignment_mode_of,
    borrowing_height_of,
    encode_quality,
    is_better,
    preemption_possibility_of,
    should_try_next_flavor,
    worst_quality,
)

DEFAULT, PREFERRING = FlavorFungibility(), FlavorFungibility(prefer_preemption=True)
#: Sorted from worst to best: preemption is worse than borrowing, and the reverse.
BY_POSSIBILITY = [NO_FIT, HOPELESS - 1, HOPELESS, PREEMPT - 2, PREEMPT, RECLAIM - 2, RECLAIM, FIT - 2, FIT - 1, FIT]
BY_HEIGHT = [NO_FIT, HOPELESS - 1, HOPELESS, PREEMPT - 2, RECLAIM - 2, FIT - 2, FIT - 1, PREEMPT, RECLAIM, FIT]


@pytest.mark.parametrize("height", [0, 1, 7, 1000])
@pytest.mark.parametrize("possibility", list(PreemptionPossibility))
def test_quality_encodes_possibility_and_height(possibility: PreemptionPossibility, height: int) -> None:
    created = encode_quality(possibility, height)
    assert (preemption_possibility_of(created), borrowing_height_of(created)) == (possibility, height)


def test_mode_is_fit_preempt_or_no_fit_by_possibility() -> None:
    expected = [
        FlavorAssignmentMode.NO_FIT,
        FlavorAssignmentMode.PREEMPT,
        FlavorAssignmentMode.PREEMPT,
        FlavorAssignmentMode.PREEMPT,
        FlavorAssignmentMode.FIT,
    ]
    assert [assignment_mode_of(encode_quality(possibility, 3)) for possibility in PreemptionPossibility] == expected


@pytest.mark.parametrize(("rules", "order"), [(DEFAULT, BY_POSSIBILITY), (PREFERRING, BY_HEIGHT)])
def test_qualities_are_ordered_by_preference(rules: FlavorFungibility, order: list[int]) -> None:
    for (i, a), (j, b) in product(enumerate(order), repeat=2):
        assert is_better(a, b, rules) == (i > j), (i, j)
        assert worst_quality([a, b], rules) == order[min(i, j)]


@pytest.mark.parametrize(
    ("of", "rules", "goes_on"),
    [
        (NO_FIT, DEFAULT, True),
        (HOPELESS, FlavorFungibility(try_next_when_preempting=False), True),
        (PREEMPT, DEFAULT, True),
        (PREEMPT, FlavorFungibility(try_next_when_preempting=False), False),
        (RECLAIM - 1, FlavorFungibility(try_next_when_preempting=False), False),
        (RECLAIM - 1, FlavorFungibility(try_next_when_borrowing=True, try_next_when_preempting=False), True),
        (FIT - 1, DEFAULT, False),
        (FIT - 1, FlavorFungibility(try_next_when_borrowing=True), True),
        (FIT, FlavorFungibility(try_next_when_borrowing=True), False),
    ],
)
def test_fungibility_rules_decide_whether_to_try_next_flavor(
    of: int, rules: FlavorFungibility, *, goes_on: bool
) -> None:
    assert should_try_next_flavor(of, rules) is goes_on
