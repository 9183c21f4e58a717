"""A shadow on an unreliable connection, or started later, predicts the same, and detects planted decisions."""

from collections import Counter
from collections.abc import Sequence

import pytest

from batchyard.base.instant import SECOND, Duration
from batchyard.shadow.findings import Divergence, DivergenceType
from differential import injected_divergences
from differential.recorded_scenarios import packed_cases
from differential.shadow_runs import ShadowResults, shadowed, shadowed_case
from differential.unreliable_transport import ConnectionFaults, drawn_trouble
from differential.upstream_writes import read_case


def reported(name: str, trouble: ConnectionFaults | None = None, restarts_at: Sequence[Duration] = ()) -> ShadowResults:
    return shadowed_case(name, *packed_cases()[name], trouble=trouble, restarts_at=restarts_at)


def test_watches_may_have_different_delays() -> None:
    trouble = ConnectionFaults(late={"clusterqueues": 1_300_000, "localqueues": 400_000})
    assert reported("hierarchy-41", trouble).findings == []


@pytest.mark.parametrize("name", ["updates-21", "updates-9", "affinity-33"])
def test_watch_delay_may_exceed_patience(name: str) -> None:
    assert reported(name, ConnectionFaults(late={"clusterqueues": 7 * SECOND, "workloads": 3 * SECOND})).findings == []


@pytest.mark.parametrize(("name", "at"), [("cohort-5", 28), ("hierarchy-41", 14), ("fair-49", 54)])
def test_shadow_started_with_pending_workloads_predicts_their_decisions(name: str, at: int) -> None:
    assert reported(name, restarts_at=[at * SECOND]).findings == []


def test_shadow_started_after_scheduling_attempt_reports_no_divergence() -> None:
    assert reported("hierarchy-61", restarts_at=[24_476_168]).findings == []


def test_decisions_during_broken_watch_are_counted_as_unseen() -> None:
    gone = reported("refarch-1", ConnectionFaults(seed=3, breaks_after=5 * SECOND, gone=1))
    assert gone.findings == []
    assert gone.counts.unseen_count > 0


@pytest.mark.parametrize("seed", range(7))
def test_unreliable_connection_causes_no_divergence(seed: int) -> None:
    trouble, restarts = drawn_trouble(seed)
    assert reported("mixed-25", trouble, restarts).findings == []


def test_delayed_decisions_are_ordered_step_by_step() -> None:
    trouble = ConnectionFaults(6, {}, 3 * SECOND, SECOND // 2, 5, 6 * SECOND, hurry=20)
    assert reported("hierarchy-41", trouble).findings == []


def found(name: str, sort: str, seed: int) -> tuple[list[Divergence], str]:
    """Return the findings of a planted divergence over an unreliable connection, and its Workload."""
    scenario, log = read_case(name, *packed_cases()[name])
    changed, record = (
        injected_divergences.another_victim(log)
        if sort == "victim"
        else injected_divergences.another_flavor(scenario, log)
    )
    trouble, _ = drawn_trouble(seed)
    return shadowed(scenario, changed, trouble).findings, record["workload"]


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(("name", "sort"), [("fungibility-1", "flavor"), ("preempt-1", "victim")])
def test_planted_divergence_is_detected_over_unreliable_connection(name: str, sort: str, seed: int) -> None:
    findings, workload = found(name, sort, seed)
    assert findings[0].workload == workload
    assert findings[0].divergence_type in {DivergenceType.FLAVORS, DivergenceType.VICTIMS}


def test_late_admission_is_reported_once() -> None:
    findings, _ = found("partial-37", "victim", 2)
    late = Counter(each.workload for each in findings if each.divergence_type is DivergenceType.LATE)
    assert late == {"team/wl-001": 1, "team/wl-002": 1}
