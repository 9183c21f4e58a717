"""CronJobs start Jobs on time, by their concurrency policy and deadline, and keep a history."""

from collections.abc import Mapping
from typing import Any

import pytest

import make
from batchyard.api import scheme
from batchyard.api.defaults import with_defaults
from batchyard.api.meta import Obj, with_metadata
from batchyard.apps.cron_job import SCHEDULED_AT, CronJobController
from batchyard.base.instant import MINUTE
from stage import Stage

FIRST_MINUTE = make.NOW // MINUTE


def cron_job(**spec: Any) -> Obj:
    template = {"metadata": {"labels": {"kueue.x-k8s.io/queue-name": "lq"}}, "spec": make.job()["spec"]}
    fields = {"schedule": "* * * * *", "jobTemplate": template, **spec}
    return with_defaults(
        {"apiVersion": "batch/v1", "kind": "CronJob", "metadata": make.metadata("tick"), "spec": fields}
    )


def started(**spec: Any) -> Stage:
    stage = Stage(CronJobController())
    stage.put(cron_job(**spec))
    return stage


def names(stage: Stage) -> list[str]:
    """The minutes since the start in the names of the Jobs."""
    job_names = [job["metadata"]["name"] for job in stage.client.list(scheme.JOB)]
    return [f"+{int(name.rpartition('-')[2]) - FIRST_MINUTE}" for name in job_names]


def wait(stage: Stage, seconds: float) -> None:
    """Run until this many seconds after the start, also if nothing is scheduled."""
    stage.kernel.call_at(make.at(seconds), lambda: None)
    stage.run(seconds)


def finish(stage: Stage, minute: int, kind: str = "Complete", at: float = 0) -> None:
    job = stage.get(scheme.JOB, f"tick-{FIRST_MINUTE + minute}")
    status = {"conditions": [make.condition(kind)], "startTime": make.stamp(at), "completionTime": make.stamp(at)}
    stage.put({**job, "status": status})


def status(stage: Stage) -> Mapping[str, Any]:
    return stage.get(scheme.CRON_JOB, "tick")["status"]  # type: ignore[no-any-return]


def test_job_starts_at_the_scheduled_minute_with_labels_and_annotation() -> None:
    stage = started(timeZone="Europe/Berlin")
    stage.run(59)
    assert names(stage) == []
    stage.run(61)
    (job,) = stage.client.list(scheme.JOB)
    assert (names(stage), job["metadata"]["labels"]) == (["+1"], {"kueue.x-k8s.io/queue-name": "lq"})
    assert job["metadata"]["annotations"][SCHEDULED_AT] == "2026-01-01T01:01:00+01:00"
    assert [each["name"] for each in status(stage)["active"]] == [job["metadata"]["name"]]
    assert (status(stage)["lastScheduleTime"], stage.reasons()) == (make.stamp(60), ["SuccessfulCreate"])


def test_finished_job_leaves_the_active_list() -> None:
    stage = started()
    stage.run(61)
    finish(stage, 1, at=70)
    assert (status(stage).get("active"), status(stage)["lastSuccessfulTime"]) == (None, make.stamp(70))
    message = f"Saw completed job: tick-{FIRST_MINUTE + 1}, condition: Complete"
    assert message in [event.message for event in stage.events]


def test_allow_runs_jobs_beside_each_other() -> None:
    stage = started()
    stage.run(181)
    assert (names(stage), len(status(stage)["active"])) == (["+1", "+2", "+3"], 3)


def test_forbid_skips_times_until_the_job_ends_and_then_starts_the_latest() -> None:
    stage = started(concurrencyPolicy="Forbid")
    stage.run(185)
    assert (names(stage), stage.reasons().count("JobAlreadyActive")) == (["+1"], 2)
    finish(stage, 1)
    assert names(stage) == ["+1", "+3"]


def test_replace_deletes_the_active_job() -> None:
    stage = started(concurrencyPolicy="Replace")
    stage.run(121)
    assert (names(stage), "SuccessfulDelete" in stage.reasons()) == (["+2"], True)
    assert len(status(stage)["active"]) == 1


def test_history_keeps_the_last_finished_jobs() -> None:
    stage = started(successfulJobsHistoryLimit=2, failedJobsHistoryLimit=0)
    for minute in range(1, 6):
        stage.run(60 * minute + 1)
        finish(stage, minute, "Failed" if minute == 5 else "Complete", at=60 * minute)
    assert names(stage) == ["+3", "+4"]


def test_suspended_cron_job_starts_the_missed_job_when_it_resumes() -> None:
    stage = started(suspend=True)
    wait(stage, 150)
    assert names(stage) == []
    stage.put(cron_job(suspend=False))
    assert names(stage) == ["+2"]


def test_job_does_not_start_after_its_deadline() -> None:
    stage = started(suspend=True, startingDeadlineSeconds=20)
    wait(stage, 115)
    stage.put(cron_job(suspend=False, startingDeadlineSeconds=20))
    assert names(stage) == []
    stage.run(121)
    assert names(stage) == ["+2"]


def test_many_missed_times_are_reported_and_the_latest_job_starts() -> None:
    stage = started(suspend=True)
    wait(stage, 60 * 200)
    stage.put(cron_job())
    assert (names(stage), stage.reasons()) == (["+200"], ["SuccessfulCreate", "TooManyMissedTimes"])


def test_restarted_controller_starts_no_job_twice() -> None:
    stage = started()
    stage.run(61)
    stage.replace_controllers(CronJobController())
    stage.run(90)
    assert names(stage) == ["+1"]


def test_deleted_active_job_is_reported_as_missing() -> None:
    stage = started()
    stage.run(61)
    stage.delete(scheme.JOB, f"tick-{FIRST_MINUTE + 1}")
    assert (status(stage).get("active"), "MissingJob" in stage.reasons()) == (None, True)
    stage.run(90)
    assert names(stage) == []


def test_job_from_elsewhere_is_reported() -> None:
    stage = started()
    owner = {"apiVersion": "batch/v1", "kind": "CronJob", "name": "tick", "uid": "uid-tick", "controller": True}
    stage.put(with_metadata(make.job("manual"), ownerReferences=[owner]))
    assert stage.reasons() == ["UnexpectedJob"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"timeZone": "No/Where"}, 'invalid timeZone: "No/Where": unknown time zone No/Where'),
        ({"schedule": "bad"}, 'unparseable schedule: "bad" : expected exactly 5 fields, found 1: [bad]'),
    ],
)
def test_bad_schedule_is_reported_once(fields: Obj, message: str) -> None:
    stage = started(**fields)
    stage.put({**cron_job(**fields), "status": {"lastSuccessfulTime": make.stamp()}})
    assert [event.message for event in stage.events] == [message]
