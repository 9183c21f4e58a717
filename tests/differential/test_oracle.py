"""Our decisions match upstream's, on each recorded scenario."""

import pytest

from differential.recorded_scenarios import (
    SHARED,
    TOPOLOGY_ARCHIVE,
    RecordedCase,
    difference,
    packed_cases,
    shared_cases,
)


@pytest.mark.parametrize("name", packed_cases())
def test_decisions_match_upstream(name: str) -> None:
    assert difference(name, packed_cases()[name]) == ""


@pytest.mark.parametrize("name", packed_cases(TOPOLOGY_ARCHIVE))
def test_topology_decisions_match_upstream(name: str) -> None:
    assert difference(name, packed_cases(TOPOLOGY_ARCHIVE)[name]) == ""


def test_unpacked_shared_cases_match_upstream() -> None:
    if not SHARED.is_dir():
        pytest.skip("the shared cases are not beside this repository")
    packed = packed_cases()
    fresh = {name: case for name, case in shared_cases().items() if packed.get(name) != case}
    assert {name: result for name, case in fresh.items() if (result := difference(name, case))} == {}


def test_differing_decision_is_reported_with_its_instant() -> None:
    scenario, expected = packed_cases()["single-1"]
    first, *rest = expected.splitlines()
    reported = difference("single-1", RecordedCase(scenario, "\n".join([first.replace('"time":', '"time":1'), *rest])))
    assert reported.startswith("at ")
    assert "upstream [" in reported
