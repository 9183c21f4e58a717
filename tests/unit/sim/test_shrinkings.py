"""Partial preemptions in results: how many pods jobs lost, and for how long."""

from typing import Any

import msgspec
import pytest

from batchyard.api import scheme, well_known
from batchyard.base.instant import SECOND
from batchyard.cli.commands.compare import format_comparison
from batchyard.cli.commands.whatif import format_differences
from batchyard.cli.options import Output
from batchyard.sim.compare.comparison import ConfigurationComparison, compare_configurations
from batchyard.sim.compare.comparison import document_of as comparison_document
from batchyard.sim.compare.inputs import ComparedConfiguration, read_pair
from batchyard.sim.shrinkings import Shrinking, ShrinkTotals, totals_by_name, totals_of
from batchyard.sim.simulate import Simulation, SimulationOptions, read_scenario
from batchyard.sim.summary.run_summary import conclusion_of, summarize_run, summary_document
from batchyard.sim.summary.run_watch import RunWatch, WatchedSimulation
from batchyard.sim.whatif import Difference, RunStart, compare, difference_of, document_of, read_change, run_until_start
from batchyard.sim.world import EPOCH

Obj = dict[str, Any]
SHRINKABLE = {well_known.ELASTIC_JOB: "true", well_known.PARTIAL_PREEMPTION: "true", well_known.MIN_PARALLELISM: "2"}
KUEUE = "kueue.x-k8s.io/v1beta2"


def configuration(**gates: bool) -> list[Obj]:
    """A queue with quota for 7 pods, in which urgent jobs preempt others."""
    quota = {"name": "spot", "resources": [{"name": "cpu", "nominalQuota": 7}]}
    queue_spec = {
        "namespaceSelector": {},
        "preemption": {"withinClusterQueue": "LowerPriority"},
        "resourceGroups": [{"coveredResources": ["cpu"], "flavors": [quota]}],
    }
    return [
        {"apiVersion": "config.kueue.x-k8s.io/v1beta2", "kind": "Configuration", "featureGates": gates},
        {"apiVersion": KUEUE, "kind": "WorkloadPriorityClass", "metadata": {"name": "high"}, "value": 100},
        {"apiVersion": KUEUE, "kind": "ResourceFlavor", "metadata": {"name": "spot"}},
        {"apiVersion": KUEUE, "kind": "ClusterQueue", "metadata": {"name": "cq"}, "spec": queue_spec},
    ]


LOCAL_QUEUE: Obj = {
    "apiVersion": KUEUE,
    "kind": "LocalQueue",
    "metadata": {"name": "lq", "namespace": "team"},
    "spec": {"clusterQueue": "cq"},
}
WITH_GATE = configuration(PartialPreemption=True)


def job(name: str, at: int, parallelism: int, runtime: int, labels: Obj, annotations: Obj) -> Obj:
    containers = [{"name": "main", "image": "i", "resources": {"requests": {"cpu": "1"}}}]
    timing = {well_known.SUBMIT_AT: f"{at}s", well_known.RUNTIME: f"{runtime}s"}
    completions = 50 if annotations else parallelism
    template = {"spec": {"restartPolicy": "Never", "containers": containers}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name,
            "namespace": "team",
            "labels": {well_known.QUEUE_NAME: "lq", **labels},
            "annotations": {**timing, **annotations},
        },
        "spec": {"parallelism": parallelism, "completions": completions, "template": template},
    }


TRAIN = job("train", 0, 7, 5000, {}, SHRINKABLE)


def urgent(at: int, runtime: int = 100) -> Obj:
    return job("urgent", at, 4, runtime, {well_known.PRIORITY_CLASS: "high"}, {})


LOAD = [LOCAL_QUEUE, TRAIN, urgent(10)]


def simulated(*objects: Obj, seconds: int) -> WatchedSimulation:
    scenario, _ = read_scenario([*objects])
    simulation = Simulation(scenario, SimulationOptions(seconds * SECOND))
    watch = RunWatch(simulation.world)
    simulation.advance()
    result = simulation.result()
    return WatchedSimulation(result, watch, result.now)


def shrinkings_of(*objects: Obj, seconds: int) -> list[tuple[str, int, int, float, float | None, float]]:
    """By shrinking: the job, its pods before and after, begin and end, and the lost pod time, in seconds."""
    found = simulated(*WITH_GATE, *objects, seconds=seconds).result.shrinkings
    assert found is not None
    return [
        (
            each.job,
            each.pods_before,
            each.pods_kept,
            (each.began_at - EPOCH) / SECOND,
            None if each.ended_at is None else (each.ended_at - EPOCH) / SECOND,
            each.lost_pod_time / SECOND,
        )
        for each in found
    ]


def test_shrinking_ends_when_the_job_has_all_its_pods_again() -> None:
    """The job requests its 7 pods again after a minute, and gets them when the urgent job ends."""
    ((job_name, before, kept, begin, end, lost),) = shrinkings_of(*LOAD, seconds=300)
    assert (job_name, before, kept, begin) == ("team/train", 7, 2, 10)
    assert end == pytest.approx(110, abs=3)
    assert lost == pytest.approx(500, abs=15)


def test_shrinking_that_has_not_ended_counts_until_the_end_of_the_run() -> None:
    ((*_, end, lost),) = shrinkings_of(*LOAD, seconds=60)
    assert end is None
    assert lost == pytest.approx(250, abs=15)


def test_shrinking_ends_when_the_job_is_evicted() -> None:
    stopped = {**WITH_GATE[3], "spec": {**WITH_GATE[3]["spec"], "stopPolicy": "HoldAndDrain"}}
    stopped["metadata"] = {"name": "cq", "annotations": {well_known.SUBMIT_AT: "50s"}}
    ((*_, end, _),) = shrinkings_of(*LOAD, stopped, seconds=300)
    assert end == pytest.approx(50, abs=3)


def test_run_without_the_gate_has_no_shrinkings() -> None:
    assert simulated(*configuration(), *LOAD, seconds=60).result.shrinkings is None


def test_totals_add_times_and_name_the_first_preemptor() -> None:
    one = Shrinking("team/a", "team/j", "team/x", 0, 7, 2, 10 * SECOND, 50 * SECOND)
    other = Shrinking("team/a", "team/j", "team/y", 20 * SECOND, 5, 2, None, 30 * SECOND)
    assert totals_of([one, other], 40 * SECOND) == ShrinkTotals(2, 5, 30, 80, "team/x")
    assert totals_of([], 40 * SECOND) is None
    assert list(totals_by_name([one, other], 40 * SECOND, 15 * SECOND).items()) == [
        ("team/a", ShrinkTotals(1, 3, 20, 30, "team/y"))
    ]


def test_summary_counts_partial_preemptions() -> None:
    summary = summarize_run(simulated(*WITH_GATE, *LOAD, seconds=300))
    assert "1 partial preemption; 8m20s of pod time was lost." in conclusion_of(summary)
    document = summary_document(summary)
    assert document["overall"]["partialPreemptions"] == 1
    (row,) = document["partialPreemptions"]
    assert (row["name"], row["times"], row["podsLost"], row["shrunkSeconds"]) == ("team/train", 1, 5, 100)


def test_summary_without_the_gate_has_no_partial_preemptions() -> None:
    document = summary_document(summarize_run(simulated(*configuration(), *LOAD, seconds=60)))
    assert "partialPreemptions" not in document["overall"]
    assert "partialPreemptions" not in document


# What if an urgent job arrives.


def difference(at: int = 10, *, from_state: bool = False) -> Difference:
    scenario, _ = read_scenario([*WITH_GATE, LOCAL_QUEUE, TRAIN])
    start = RunStart(scenario, at=at * SECOND)
    if from_state:
        start = run_until_start(start, 0)
    change, _ = read_change([msgspec.json.encode(urgent(0)).decode()], (), start)
    return difference_of(compare(start, change, 300 * SECOND), EPOCH + at * SECOND)


@pytest.mark.parametrize("from_state", [False, True])
def test_whatif_reports_a_workload_that_only_the_change_shrinks(from_state: bool) -> None:
    found = difference(from_state=from_state)
    rows = {row["effect"]: row for row in document_of(found)["workloads"] if row["effect"] != "new"}
    assert list(rows) == ["shrunk"]
    assert "partialPreemptions" not in rows["shrunk"]["without"]
    shrunk = rows["shrunk"]["changed"]["partialPreemptions"]
    assert shrunk == {**shrunk, "count": 1, "podsLost": 5, "seconds": 100}
    assert shrunk["lostPodSeconds"] == pytest.approx(500, abs=15)
    assert shrunk["by"].startswith("team/job-urgent-")
    assert found.summary.endswith("1 is shrunk only with the change, 1 more partial preemption")


def test_whatif_shows_shrunk_workloads_in_a_table() -> None:
    text = format_differences(difference(), Output.TABLE)
    (line,) = [line.split() for line in text.splitlines() if line.startswith("team/job-train") and " 5 " in line]
    assert line[1:5] == ["0", "5", "-", "1m40s"]
    assert "SHRUNK WORKLOAD" in text


def test_whatif_does_not_count_what_happened_before_the_change() -> None:
    """At 20 s, the job has already been shrunk in both runs."""
    scenario, _ = read_scenario([*WITH_GATE, *LOAD])
    start = RunStart(scenario, at=20 * SECOND)
    late = msgspec.json.encode({**urgent(0), "metadata": {**urgent(0)["metadata"], "name": "late"}}).decode()
    change, _ = read_change([late], (), start)
    found = difference_of(compare(start, change, 50 * SECOND), EPOCH + 20 * SECOND)
    assert "partial preemption" not in found.summary


# Two configurations.


def compared() -> ConfigurationComparison:
    a, b = ComparedConfiguration("a", configuration()), ComparedConfiguration("b", WITH_GATE)
    return compare_configurations(("evict", "shrink"), read_pair(a, b, LOAD, 300 * SECOND))


def test_compare_counts_partial_preemptions_of_both_configurations() -> None:
    document = comparison_document(compared())
    (overall,) = document["figures"]["overall"]
    assert [overall[side]["partialPreemptions"] for side in ("a", "b", "difference")] == [0, 1, 1]
    assert [overall[side]["preemptions"] for side in ("a", "b")] == [1, 0]
    (row,) = document["figures"]["partialPreemptions"]
    assert (row["name"], row["a"]["podsLost"], row["b"]["podsLost"], row["b"]["shrunk"]) == ("team/train", 0, 5, 100)
    assert "partial preemptions: 1 more" in document["headline"]


def test_compare_shows_jobs_that_were_preempted_in_part_as_a_table() -> None:
    text = format_comparison(compared(), Output.TABLE)
    table = text.partition("# jobs that were preempted in part\n")[2].splitlines()
    assert table[0].split() == ["JOB", "TIMES", "PODS", "LOST", "SHRUNK", "FOR", "CHANGE", "LOST", "POD", "TIME"]
    assert table[1].split()[:7] == ["team/train", "0", "->", "1", "0", "->", "5"]


def test_state_with_a_shrunk_job_continues_without_a_new_shrinking() -> None:
    scenario, _ = read_scenario([*WITH_GATE, *LOAD])
    start = run_until_start(RunStart(scenario, at=20 * SECOND), 0)
    simulation = Simulation(start.scenario, SimulationOptions(30 * SECOND, state=start.state))
    simulation.advance()
    assert simulation.result().shrinkings == ()
    assert len(simulation.world.objects(scheme.JOB)) == 2
