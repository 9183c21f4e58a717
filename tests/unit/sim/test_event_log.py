"""The event log: the records of Workloads."""

from pathlib import Path

from batchyard.sim.event_log import Record
from batchyard.sim.simulate import PreemptionLoopAction, Simulation, SimulationOptions, read_scenario

ROOT = Path(__file__).parents[3]
LIVELOCK = Path(__file__).with_name("livelock.yaml")


def log(path: Path, on_preemption_loop: PreemptionLoopAction = PreemptionLoopAction.CONTINUE) -> list[Record]:
    """The event log of a run."""
    records: list[Record] = []
    scenario, _ = read_scenario([path])
    simulation = Simulation(scenario, SimulationOptions(sink=records.append, on_preemption_loop=on_preemption_loop))
    simulation.advance()
    simulation.result()
    return records


def job_records(records: list[Record], job: str) -> list[Record]:
    """The records of the Workload of a Job, without its name."""
    found = [record for record in records if f"/job-{job}-" in record.get("workload", "")]
    return [{key: value for key, value in record.items() if key != "workload"} for record in found]


def test_event_log_records_workload_from_creation_to_end() -> None:
    pod_sets = [{"name": "main", "count": 2, "flavors": {"cpu": "default-flavor"}}]
    assert job_records(log(ROOT / "examples" / "first-steps"), "train-c") == [
        {"time": 2, "event": "Created"},
        {"time": 30, "event": "QuotaReserved", "clusterQueue": "team-queue", "podSets": pod_sets},
        {"time": 30, "event": "Admitted", "clusterQueue": "team-queue"},
        {"time": 60, "event": "Finished"},
    ]


def test_preempted_event_has_reason_and_preemptor() -> None:
    records = log(ROOT / "examples" / "preemption")
    (preempted,) = [record for record in job_records(records, "study-2") if record["event"] == "Preempted"]
    assert (preempted["time"], preempted["reason"]) == (45, "InClusterQueue")
    assert preempted["by"].startswith("research/job-deadline-")


def test_final_event_lists_pending_and_admitted_workloads() -> None:
    records = log(LIVELOCK, on_preemption_loop=PreemptionLoopAction.STOP)
    assert records[-1] == {"time": 10, "event": "Final", "pending": ["team/elastic", "team/rigid"], "admitted": []}


def test_preemption_loop_event_lists_its_steps() -> None:
    (loop,) = [
        record
        for record in log(LIVELOCK, on_preemption_loop=PreemptionLoopAction.STOP)
        if record["event"] == "PreemptionLoop"
    ]
    assert (loop["time"], loop["cohort"]) == (10, "pair")
    assert loop["steps"][0] == {"preemptor": "team/elastic", "victim": "team/rigid", "reason": "InCohortReclamation"}
