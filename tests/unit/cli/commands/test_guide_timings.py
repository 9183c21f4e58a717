"""How a guide reports late Jobs and late observations."""

from dataclasses import replace

import pytest

from batchyard.api import scheme
from batchyard.api.times import parse_time
from batchyard.base.instant import MINUTE, SECOND, Duration
from batchyard.cli.commands.guide import guide_rows
from batchyard.cli.commands.live_guide import UNEXPLAINED_REASON, Timing, Timings
from batchyard.sim.guide import Guide, examples_folder, guide_steps_up_to
from batchyard.sim.world import World

STEPS = ("low-priority", "high-priority")


def guide() -> Guide:
    folder = examples_folder()
    assert folder is not None
    return Guide(folder, guide_steps_up_to(STEPS[-1]))


def late_guide(late: Duration) -> Guide:
    """Return the guide in a world where all events of the second step are late."""
    result = guide()
    first = guide_steps_up_to(STEPS[-1])[-1].starts_at
    scenario = result.world.scenario
    moved = [step._replace(at=step.at + (late if step.at >= first else 0)) for step in scenario.steps]
    result.world = World(replace(scenario, steps=moved))
    return result


def guide_with_late_job(late: Duration) -> Guide:
    """Return the guide in a world where the first Job of the second step is late; the others follow in their order."""
    result = guide()
    first = guide_steps_up_to(STEPS[-1])[-1].starts_at
    scenario = result.world.scenario
    moved = [step._replace(at=max(step.at, first + late) if step.at >= first else step.at) for step in scenario.steps]
    result.world = World(replace(scenario, steps=moved))
    return result


def test_differing_rows_name_late_job_and_delay() -> None:
    planned, late = guide(), late_guide(2 * MINUTE)
    simulated, result = guide_rows(list(planned.play()), planned), guide_rows(list(late.play()), late)
    timings = Timings(STEPS)
    due = {
        job["metadata"]["name"]: parse_time(job["metadata"]["creationTimestamp"]) for job in planned.objects(scheme.JOB)
    }
    for job in late.objects(scheme.JOB):
        name, came = job["metadata"]["name"], parse_time(job["metadata"]["creationTimestamp"])
        timings.record(Timing(STEPS["high" in name], "Job", name, came - due[name]))
    differ = timings.explain_differences(simulated, result)
    assert "high-priority: cq-team-a-hp" in {row.name for row in differ}
    assert not any(row.name.startswith("low-priority: ") for row in differ)
    reported = "step high-priority: Job team-a-high-priority-job-0 was 2m late, and 15 more were late"
    assert {row.reason.replace("120s", "2m") for row in differ} == {reported}
    assert len(timings.missed_timings) == 16
    names = {*simulated, *result}
    assert {row.name for row in differ} == {name for name in names if simulated.get(name) != result.get(name)}


def test_short_delay_explains_difference_without_missed_timing() -> None:
    timings = Timings(STEPS)
    timings.record(Timing("low-priority", "reading of", "the queues", SECOND // 2))
    timings.record(Timing("low-priority", "Job", "in-time", -SECOND))
    assert timings.missed_timings == []
    (row,) = timings.explain_differences({"low-priority: cq": "1"}, {"low-priority: cq": "2"})
    assert (
        str(row)
        == "low-priority: cq: simulated 1, live 2; reason: step low-priority: reading of the queues was 0.50s late"
    )
    assert row.is_explained


def test_delay_within_tolerance_changes_rows_and_explains_them() -> None:
    planned, late = guide(), guide_with_late_job(SECOND)
    simulated, result = guide_rows(list(planned.play()), planned), guide_rows(list(late.play()), late)
    timings = Timings(STEPS)
    timings.record(Timing("high-priority", "Job", "team-a-high-priority-job-0", SECOND))
    rows = timings.explain_differences(simulated, result)
    assert "high-priority: cq-team-a-hp" in {row.name for row in rows}
    assert all(row.is_explained for row in rows)
    assert timings.missed_timings == []


def test_late_step_explains_no_row_of_earlier_step() -> None:
    timings = Timings(STEPS)
    timings.record(Timing("high-priority", "Job", "late", MINUTE))
    rows = timings.explain_differences({"low-priority: cq": "1", "high-priority: cq": "1", "ns/job": "Complete"}, {})
    assert [row.is_explained for row in rows] == [False, True, True]
    assert rows[0].reason == UNEXPLAINED_REASON


def test_event_that_never_happened_is_reported_as_missed() -> None:
    timings = Timings(STEPS)
    timings.record(Timing("high-priority", "end of Job", "endless", 24 * 60 * MINUTE, is_reached=False))
    (missed,) = timings.missed_timings
    assert str(missed) == "step high-priority: end of Job endless did not happen within 24h of its due time"
    assert missed.document() == {
        "step": "high-priority",
        "what": "end of Job",
        "name": "endless",
        "lateSeconds": 86400.0,
        "reached": False,
    }


@pytest.mark.parametrize(("late", "speed"), [(6 * SECOND, 30.0), (10 * MINUTE, 1.0), (4 * SECOND, 45.0)])
def test_lower_speed_is_proposed_for_observed_delay(late: Duration, speed: float) -> None:
    timings = Timings(STEPS)
    timings.record(Timing("low-priority", "Job", "late", late))
    assert timings.tolerable_speed(60.0) == speed
