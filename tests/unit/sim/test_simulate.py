"""The Python API: what a run returns, and how it ends."""

import doctest
from pathlib import Path
from typing import Any

import msgspec
import pytest

import make
from batchyard import InvalidScenario, simulate
from batchyard.api import scheme
from batchyard.api.errors import Conflict
from batchyard.api.well_known import RUNTIME, SUBMIT_AT
from batchyard.interfaces.client import Create
from batchyard.sim.event_log import Event, Preempted, QuotaReserved, Record, RunEnded
from batchyard.sim.result import Result, RunEnding, describe_rejected_write
from batchyard.sim.simulate import Simulation, SimulationOptions, read_scenario

ROOT = Path(__file__).parents[3]
FIRST_STEPS = ROOT / "examples" / "first-steps"
PREEMPTION = ROOT / "examples" / "preemption"
LIVELOCK = Path(__file__).with_name("livelock.yaml")


def queue(cpu: int = 4, **spec: Any) -> list[make.Obj]:
    """A ClusterQueue of one flavor, and its LocalQueue."""
    resources = [{"name": "cpu", "nominalQuota": cpu}]
    groups = [{"coveredResources": ["cpu"], "flavors": [{"name": "spot", "resources": resources}]}]
    queues = [make.cluster_queue(active=None, resourceGroups=groups, **spec), make.local_queue()]
    return [user_object(obj) for obj in [make.flavor(), *queues]]


def free_job(runtime: str) -> make.Obj:
    """A Job of one pod that no queue manages."""
    container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "free", "annotations": {RUNTIME: runtime}},
        "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [container]}}},
    }


def one_machine() -> make.Obj:
    """A Cluster of one node."""
    pool = {"name": "p", "machineType": "e2-standard-4", "nodeCount": 1}
    return {
        "apiVersion": "cloud.batchyard.dev/v1alpha1",
        "kind": "Cluster",
        "metadata": {"name": "c"},
        "spec": {"region": "r", "zones": ["r-a"], "nodePools": [pool]},
    }


def workload(name: str, cpu: int = 1, at: str = "0s", runtime: str | None = "10s") -> make.Obj:
    """A bare Workload of one pod."""
    annotations = {SUBMIT_AT: at, **({RUNTIME: runtime} if runtime else {})}
    template = make.pod_template({"cpu": cpu}, restartPolicy="Never")
    obj = make.workload(name, pod_sets=[{"name": "main", "count": 1, "template": template}], annotations=annotations)
    return user_object(obj)


def user_object(obj: make.Obj) -> make.Obj:
    """The object as a user writes it: without the fields that the API sets at creation."""
    metadata = {name: value for name, value in obj["metadata"].items() if name not in {"uid", "creationTimestamp"}}
    return {**obj, "metadata": metadata}


def test_rows_report_result_of_each_job() -> None:
    result = simulate(FIRST_STEPS)
    assert [(job.name, job.status, job.completions, job.duration) for job in result.jobs] == [
        ("train-a", "Complete", "2/2", 30),
        ("train-b", "Complete", "2/2", 60),
        ("train-c", "Complete", "2/2", 30),
    ]
    assert [(row.owner, row.status, row.waited) for row in result.workloads] == [
        ("train-a", "finished", 0),
        ("train-b", "finished", 0),
        ("train-c", "finished", 28),
    ]


def test_rows_report_queues_at_end_of_run() -> None:
    result = simulate(*queue(2), workload("a", 2), workload("b", 2), until=5)
    (cluster_queue,), (local_queue,) = result.cluster_queues, result.local_queues
    assert (cluster_queue.name, cluster_queue.pending, cluster_queue.admitted) == ("cq", 1, 1)
    assert (local_queue.namespace, local_queue.pending, local_queue.admitted) == ("team", 1, 1)
    assert [(row.name, row.status) for row in result.workloads] == [("a", "admitted"), ("b", "pending")]
    assert "insufficient unused quota" in result.workloads[1].why


def test_rows_hold_their_objects() -> None:
    result = simulate(FIRST_STEPS)
    assert [row.obj for row in result.jobs] == list(result.objects[scheme.JOB])
    assert result.jobs[0].obj["spec"]["parallelism"] == 2


def test_events_are_typed_and_sorted_by_time() -> None:
    events = simulate(PREEMPTION).events
    preempted = [event for event in events if isinstance(event, Preempted)]
    assert [(event.time, event.reason) for event in preempted] == [
        (30, "InCohortReclamation"),
        (30, "InCohortReclamation"),
        (45, "InClusterQueue"),
    ]
    assert preempted[0].by.startswith("production/job-release-")
    assert [event.time for event in events] == sorted(event.time for event in events)
    reserved = next(event for event in events if isinstance(event, QuotaReserved))
    assert (reserved.pod_sets[0].count, reserved.pod_sets[0].flavors) == (2, {"cpu": "default-flavor"})


def test_events_callback_receives_every_event() -> None:
    reported: list[Event] = []
    result = simulate(FIRST_STEPS, events=reported.append)
    assert reported == list(result.events)
    assert isinstance(reported[-1], RunEnded)


def test_run_without_record_keeps_no_events() -> None:
    result = simulate(PREEMPTION, record=False)
    assert result.events == ()
    assert (result.counts.preemptions, result.duration) == (3, 210)


def test_waiting_time_includes_every_period_without_quota() -> None:
    rows = {row.owner: row for row in simulate(PREEMPTION).workloads}
    assert (rows["study-2"].waited, rows["study-2"].preemptions) == (30, 1)
    assert (rows["study-4"].waited, rows["study-4"].preemptions) == (60, 1)
    assert (rows["release"].waited, rows["release"].preemptions) == (0, 0)


def test_workload_never_admitted_waits_until_end_of_run() -> None:
    result = simulate(*queue(1), workload("too-large", 2, at="10s"), until="60s")
    assert result.workloads[0].waited == 50


def test_run_ends_at_last_event() -> None:
    result = simulate(*queue(), workload("short", runtime="7s"), workload("waits", 5, at="3s"))
    assert (result.duration, result.ending) == (7, RunEnding.IDLE)
    assert result.events[-1] == RunEnded(7, ("team/waits",), ())


def test_run_ends_when_unmanaged_jobs_end() -> None:
    assert simulate(free_job("2h")).duration == 7200


def test_run_ends_at_last_machine_event() -> None:
    result = simulate(one_machine(), free_job("2h"))
    times = [event.time for event in result.events]
    assert times == sorted(times)
    assert result.costs is not None
    hours = {line.use: line.machine_hours for line in result.costs.by_pool}
    assert 2 < hours["done"] + hours["idle"] == pytest.approx(result.duration / 3600)
    assert hours["idle"] >= 0


@pytest.mark.parametrize(("until", "duration"), [("90s", 90), (90, 90), (0.5, 0.5), (0, 0)])
def test_until_ends_run_and_event_log(until: str | float, duration: float) -> None:
    result = simulate(*queue(), workload("service", runtime=None), until=until)
    assert (result.duration, result.ending) == (duration, RunEnding.HORIZON)
    assert result.events[-1] == RunEnded(duration, (), ("team/service",))


def test_until_overrides_horizon_of_scenario() -> None:
    scenario = {
        "apiVersion": "sim.batchyard.dev/v1alpha1",
        "kind": "Scenario",
        "metadata": {"name": "short"},
        "spec": {"horizon": "20s"},
    }
    assert simulate(scenario, *queue()).duration == 20
    assert simulate(scenario, *queue(), until=30).duration == 30


@pytest.mark.parametrize(
    ("until", "reported"),
    [
        pytest.param(-1, "-1 is not a valid run length", id="before the start"),
        pytest.param(float("nan"), "nan is not a valid run length", id="not a number"),
        pytest.param(1e9, "ten years", id="too long"),
        pytest.param(float("inf"), "the run length inf is more than ten years; use a shorter one", id="for ever"),
        pytest.param("99999999h", "99999999h is more than ten years", id="a text that is too long"),
        pytest.param("soon", "no", id="another text"),
    ],
)
def test_invalid_until_is_rejected(until: str | float, reported: str) -> None:
    with pytest.raises(ValueError, match=reported):
        simulate(FIRST_STEPS, until=until)


def test_docstring_example_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    (example,) = doctest.DocTestFinder(recurse=False).find(simulate, globs={"simulate": simulate})
    assert doctest.DocTestRunner().run(example) == (0, 2)


def test_endless_workload_does_not_keep_run_from_ending() -> None:
    result = simulate(*queue(), workload("service", runtime=None))
    assert (result.ending, result.counts.admitted) == (RunEnding.IDLE, 1)


def test_run_ends_at_time_bound() -> None:
    result = simulate(*queue(), workload("in-eleven-years", at="100000h"))
    assert (result.ending, len(result.workloads)) == (RunEnding.BOUND, 0)


def test_preemption_loop_is_reported_and_run_continues() -> None:
    result = simulate(LIVELOCK)
    assert result.ending is RunEnding.IDLE
    steps = {(step.preemptor, step.victim, step.reason) for loop in result.loops for step in loop.steps}
    assert steps == {("team/elastic", "team/rigid", "InCohortReclamation")}
    assert "elastic preempts team/rigid (InCohortReclamation)" in result.loops[0].message


def test_preemption_loop_ends_run_with_on_loop_stop() -> None:
    result = simulate(LIVELOCK, on_preemption_loop="stop")
    assert (result.ending, result.duration, len(result.loops)) == (RunEnding.LOOP, 10, 1)
    assert [row.pending for row in result.cluster_queues] == [1, 1]


def test_preemption_loop_does_not_affect_other_workloads() -> None:
    other = [*queue(), workload("apart", at="12s")]
    result = simulate(LIVELOCK, *other)
    assert {row.name: row.status for row in result.workloads}["apart"] == "finished"


def test_texts_files_and_objects_form_one_scenario(tmp_path: Path) -> None:
    path = tmp_path / "queues.json"
    path.write_text("\n".join(map(make_json, queue())))
    text = make_json(workload("told")) + "\n"
    result = simulate(str(path), text, workload("given"))
    assert [row.name for row in result.workloads] == ["given", "told"]


def test_all_faults_are_reported_at_once(tmp_path: Path) -> None:
    with pytest.raises(InvalidScenario) as reported:
        simulate(tmp_path / "none.yaml", "kind: Jobb\napiVersion: batch/v1\n", {"kind": "Job"})
    text = str(reported.value)
    assert len(reported.value.faults) >= 3
    assert "none.yaml: cannot be read: No such file or directory" in text
    assert "<text 2>:1 Jobb: kind" in text
    assert "<object 3>:1 Job: apiVersion: Required value; set the field to batch/v1" in text


def test_rejected_write_without_name_shows_generate_name() -> None:
    nameless = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"generateName": "team-"}}
    assert (
        str(describe_rejected_write(Create(nameless), Conflict("no free name")))
        == "create Namespace team-: Conflict: no free name"
    )


def test_rejected_writes_are_reported_with_reason() -> None:
    template = make.pod_template({"cpu": 1}, restartPolicy="Never")
    job = user_object(make.job("fixed", template=template))
    later = {**job, "spec": {**job["spec"], "completions": 2}}
    later = {**later, "metadata": {**later["metadata"], "annotations": {SUBMIT_AT: "5s"}}}
    (refused,) = simulate(*queue(), job, later).refused
    assert (refused.verb, refused.key.name, refused.reason) == ("update", "fixed", "Invalid")
    assert "spec.completions" in str(refused)


@pytest.mark.parametrize("slice_of", [1, 7, 1000])
def test_slice_size_does_not_change_result(slice_of: int) -> None:
    whole = simulate(PREEMPTION, record=False)
    scenario, _ = read_scenario([PREEMPTION])
    simulation = Simulation(scenario, SimulationOptions())
    while simulation.advance(slice_of):
        pass
    assert run_values(simulation.result()) == run_values(whole)


def test_result_is_cached_and_log_ends_once() -> None:
    scenario, _ = read_scenario([FIRST_STEPS])
    records: list[Record] = []
    simulation = Simulation(scenario, SimulationOptions(sink=records.append))
    simulation.advance()
    assert simulation.result() is simulation.result()
    assert [record["event"] for record in records].count("Final") == 1


def test_seed_changes_only_names() -> None:
    first, second = simulate(FIRST_STEPS, seed=1), simulate(FIRST_STEPS, seed=2)
    assert first.workloads[0].obj["metadata"]["uid"] != second.workloads[0].obj["metadata"]["uid"]
    assert [event.time for event in first.events] == [event.time for event in second.events]


def run_values(result: Result) -> object:
    """The values that two equal runs share."""
    return result.objects, result.duration, result.counts


def make_json(obj: make.Obj) -> str:
    """An object on one line."""
    return msgspec.json.encode(obj).decode()
