"""A shadow that starts late or has an unreliable connection predicts the same, and detects injected divergences."""

from collections import Counter
from collections.abc import Sequence

import pytest

from batchyard.base.instant import SECOND, Duration
from batchyard.shadow.findings import Divergence, DivergenceType
from differential import injected_divergences
from differential.recorded_scenarios import packed_cases
from differential.shadow_runs import ShadowResults, run_shadow, run_shadow_case
from differential.unreliable_transport import ConnectionFaults, random_connection_faults
from differential.upstream_writes import read_case


def shadow_results(
    name: str, trouble: ConnectionFaults | None = None, restarts_at: Sequence[Duration] = ()
) -> ShadowResults:
    return run_shadow_case(name, *packed_cases()[name], trouble=trouble, restarts_at=restarts_at)


def test_watches_may_have_different_delays() -> None:
    trouble = ConnectionFaults(late={"clusterqueues": 1_300_000, "localqueues": 400_000})
    assert shadow_results("hierarchy-41", trouble).findings == []


@pytest.mark.parametrize("name", ["updates-21", "updates-9", "affinity-33"])
def test_watch_delay_may_exceed_patience(name: str) -> None:
    assert (
        shadow_results(name, ConnectionFaults(late={"clusterqueues": 7 * SECOND, "workloads": 3 * SECOND})).findings
        == []
    )


@pytest.mark.parametrize(("name", "at"), [("cohort-5", 28), ("hierarchy-41", 14), ("fair-49", 54)])
def test_shadow_started_with_pending_workloads_predicts_their_decisions(name: str, at: int) -> None:
    assert shadow_results(name, restarts_at=[at * SECOND]).findings == []


def test_shadow_started_after_scheduling_attempt_reports_no_divergence() -> None:
    assert shadow_results("hierarchy-61", restarts_at=[24_476_168]).findings == []


def test_decisions_during_broken_watch_are_counted_as_unseen() -> None:
    gone = shadow_results("refarch-1", ConnectionFaults(seed=3, breaks_after=5 * SECOND, gone=1))
    assert gone.findings == []
    assert gone.counts.unseen_count > 0


@pytest.mark.parametrize("seed", range(7))
def test_unreliable_connection_causes_no_divergence(seed: int) -> None:
    trouble, restarts = random_connection_faults(seed)
    assert shadow_results("mixed-25", trouble, restarts).findings == []


def test_delayed_decisions_are_ordered_step_by_step() -> None:
    trouble = ConnectionFaults(6, {}, 3 * SECOND, SECOND // 2, 5, 6 * SECOND, hurry=20)
    assert shadow_results("hierarchy-41", trouble).findings == []


def injected_findings(name: str, sort: str, seed: int) -> tuple[list[Divergence], str]:
    """Return the findings of an injected divergence over an unreliable connection, and its Workload."""
    scenario, log = read_case(name, *packed_cases()[name])
    changed, record = (
        injected_divergences.change_victim(log)
        if sort == "victim"
        else injected_divergences.change_flavor(scenario, log)
    )
    trouble, _ = random_connection_faults(seed)
    return run_shadow(scenario, changed, trouble).findings, record["workload"]


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(("name", "sort"), [("fungibility-1", "flavor"), ("preempt-1", "victim")])
def test_planted_divergence_is_detected_over_unreliable_connection(name: str, sort: str, seed: int) -> None:
    findings, workload = injected_findings(name, sort, seed)
    assert findings[0].workload == workload
    assert findings[0].divergence_type in {DivergenceType.FLAVORS, DivergenceType.VICTIMS}


def test_late_admission_is_reported_once() -> None:
    findings, _ = injected_findings("partial-37", "victim", 2)
    late = Counter(each.workload for each in findings if each.divergence_type is DivergenceType.LATE)
    assert late == {"team/wl-001": 1, "team/wl-002": 1}
