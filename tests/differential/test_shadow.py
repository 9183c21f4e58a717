"""A shadow reports no divergence from upstream's decisions, and detects injected divergences."""

import pytest

from batchyard.api.manifests import read_manifests
from batchyard.shadow.findings import Divergence, DivergenceType
from batchyard.sim.scenario import Scenario, make_scenario
from differential import injected_divergences
from differential.recorded_scenarios import packed_cases, run
from differential.shadow_runs import ShadowResults, run_shadow, run_shadow_case
from differential.unreliable_transport import ConnectionFaults
from differential.upstream_writes import Record, read_case

#: One case of each family, and those that depend most on the order of events; `tools/shadow_oracle.py` runs all.
CASES = (
    *("single-1", "cohort-1", "preempt-1", "hierarchy-1", "fair-1", "fungibility-1", "groups-45", "podsets-1"),
    *("partial-1", "affinity-1", "updates-1", "refarch-1", "mixed-25"),
    *("preempt-45", "hierarchy-5", "groups-53", "affinity-37", "updates-29", "fair-17", "updates-33"),
    *("afs-1", "afs-29", "afs-69", "afs-85"),
)


def case(name: str) -> tuple[Scenario, list[Record]]:
    return read_case(name, *packed_cases()[name])


def count_decisions(log: list[Record]) -> int:
    return sum(record["event"] in {"QuotaReserved", "Preempted", "Evicted"} for record in log)


@pytest.mark.parametrize("name", CASES)
def test_shadow_predicts_all_upstream_decisions(name: str) -> None:
    scenario, log = case(name)
    reported = run_shadow(scenario, log)
    assert reported.findings == []
    assert sum(reported.counts.agreements.values()) == count_decisions(log)


@pytest.mark.parametrize("is_known", [False, True])
def test_shadow_follows_priority_of_waiting_preemptors(is_known: bool) -> None:
    text = packed_cases()["preempt-25"].scenario
    gated = text.replace("  fairSharing: ", "  featureGates: {PrioritizePreemptorWorkloads: true}\n  fairSharing: ", 1)
    log = [record for record in run("preempt-25", gated) if record["event"] != "Final" and "workload" in record]
    scenario = make_scenario(read_manifests([("preempt-25", gated if is_known else text)]))
    assert (run_shadow(scenario, log).findings == []) is is_known


@pytest.mark.parametrize("name", ["updates-21", "updates-1", "mixed-25"])
@pytest.mark.parametrize("late", ["clusterqueues", "workloads", "localqueues"])
def test_shadow_tolerates_delayed_watch_of_one_kind(name: str, late: str) -> None:
    assert run_shadow_case(name, *packed_cases()[name], trouble=ConnectionFaults(late={late: 1_200_000})).findings == []


def test_shadow_sends_only_get_requests() -> None:
    reported = run_shadow(*case("single-1"))
    assert {line.partition(" ")[0] for line in reported.asked} == {"GET"}


def injected_findings(scenario: Scenario, log: list[Record]) -> tuple[Divergence, ShadowResults]:
    reported = run_shadow(scenario, log)
    assert reported.findings, "nothing was found"
    return reported.findings[0], reported


@pytest.mark.parametrize("name", ["cohort-1", "fungibility-1"])
def test_different_flavor_is_detected(name: str) -> None:
    scenario, log = case(name)
    changed, record = injected_divergences.change_flavor(scenario, log)
    first, _ = injected_findings(scenario, changed)
    assert (first.divergence_type, first.workload) == (DivergenceType.FLAVORS, record["workload"])
    assert first.kueue_action["podSets"] != first.model_action["podSets"]


@pytest.mark.parametrize("name", ["preempt-1", "single-1", "hierarchy-1"])
def test_different_victim_is_detected_with_expected_victim(name: str) -> None:
    scenario, log = case(name)
    changed, record = injected_divergences.change_victim(log)
    first, _ = injected_findings(scenario, changed)
    assert (first.divergence_type, first.workload) == (DivergenceType.VICTIMS, record["workload"])
    assert first.kueue_action["by"] == record["by"]
    assert "we preempt" in first.message


@pytest.mark.parametrize("name", ["cohort-1", "single-1", "preempt-1"])
def test_admission_without_quota_is_detected_with_missing_amount(name: str) -> None:
    changed, record = injected_divergences.move_admission_earlier(case(name)[1], by=4)
    first, _ = injected_findings(case(name)[0], changed)
    assert (first.divergence_type, first.workload) == (DivergenceType.ADMITTED, record["workload"])
    assert "more needed" in first.message


@pytest.mark.parametrize("name", ["cohort-1", "fungibility-1", "hierarchy-1"])
def test_missing_admission_is_detected_with_expected_cluster_queue(name: str) -> None:
    changed, record = injected_divergences.remove_admission(case(name)[1])
    first, _ = injected_findings(case(name)[0], changed)
    assert (first.divergence_type, first.workload) == (DivergenceType.NOT_ADMITTED, record["workload"])
    assert first.model_action["clusterQueue"] == record["clusterQueue"]


def test_delayed_admission_is_reported_as_late() -> None:
    scenario, log = case("single-1")
    place = next(place for place, record in enumerate(log) if record["event"] == "QuotaReserved")
    late = {**log[place], "time": log[place]["time"] + 20}
    moved = sorted([*log[:place], late, *log[place + 1 :]], key=lambda record: float(record["time"]))
    first, reported = injected_findings(scenario, moved)
    assert first.divergence_type is DivergenceType.NOT_ADMITTED
    assert [each.divergence_type for each in reported.findings if each.workload == first.workload][
        1
    ] is DivergenceType.LATE
    assert reported.counts.late_count == 1


def test_missing_eviction_is_detected() -> None:
    scenario, log = case(_with_evictions())
    gone = next(record for record in log if record["event"] == "Evicted")
    _, reported = injected_findings(scenario, [record for record in log if record is not gone])
    of_it = next(each for each in reported.findings if each.divergence_type is DivergenceType.NOT_DONE)
    assert (of_it.workload, gone["reason"] in of_it.message) == (gone["workload"], True)


def test_eviction_without_reason_is_detected() -> None:
    scenario, log = case("single-1")
    place = next(place for place, record in enumerate(log) if record["event"] == "QuotaReserved")
    evicted = {**log[place], "event": "Evicted", "reason": "ClusterQueueStopped", "time": log[place]["time"] + 5}
    first, _ = injected_findings(scenario, sorted([*log, evicted], key=lambda record: float(record["time"])))
    assert (first.divergence_type, first.workload) == (DivergenceType.EVICTED, evicted["workload"])


def _with_evictions() -> str:
    return next(name for name in CASES if any(record["event"] == "Evicted" for record in case(name)[1]))
