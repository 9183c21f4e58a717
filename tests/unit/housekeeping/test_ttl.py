"""Jobs and JobSets that are deleted some time after their end."""

from typing import Any

import make
from batchyard.api import scheme
from batchyard.api.meta import Key, Obj
from batchyard.housekeeping.controllers import TtlAfterFinished
from stage import Stage


def ended(obj: Obj, kind: str, since: float = 5, **status: Any) -> Obj:
    return {**obj, "status": {"conditions": [make.condition(kind, since=since)], **status}}


def is_there(stage: Stage, kind: str, name: str) -> bool:
    return stage.client.get(Key(kind, "team", name)) is not None


def test_a_job_goes_when_its_time_after_the_end_is_over() -> None:
    stage = Stage(TtlAfterFinished())
    stage.put(ended(make.job(ttlSecondsAfterFinished=60), "Complete"))
    stage.run(64)
    assert is_there(stage, scheme.JOB, "job")
    stage.run(65)
    assert not is_there(stage, scheme.JOB, "job")


def test_a_failed_jobset_goes_too() -> None:
    stage = Stage(TtlAfterFinished())
    stage.put(ended(make.jobset(ttlSecondsAfterFinished=0), "Failed", since=0))
    assert not is_there(stage, scheme.JOB_SET, "js")


def test_a_jobset_is_deleted_by_whoever_manages_it() -> None:
    stage = Stage(TtlAfterFinished())
    stage.put(ended(make.jobset(ttlSecondsAfterFinished=0, managedBy="example.com/other"), "Completed", since=0))
    assert is_there(stage, scheme.JOB_SET, "js")


def test_what_has_not_ended_or_has_no_time_stays() -> None:
    stage = Stage(TtlAfterFinished())
    running = make.job("running", ttlSecondsAfterFinished=0)
    stage.put(ended(make.job("kept"), "Complete"), ended(running, "FailureTarget"))
    stage.run(10**6)
    assert is_there(stage, scheme.JOB, "kept")
    assert is_there(stage, scheme.JOB, "running")


def test_a_time_that_is_set_later_counts_from_the_end() -> None:
    stage = Stage(TtlAfterFinished())
    done = ended(make.job(), "Complete", since=0)
    stage.put(done)
    stage.put({**done, "spec": {**done["spec"], "ttlSecondsAfterFinished": 10}})
    stage.run(9)
    assert is_there(stage, scheme.JOB, "job")
    stage.run(10)
    assert not is_there(stage, scheme.JOB, "job")


def test_what_it_owns_goes_first() -> None:
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "job", "uid": "uid-job", "blockOwnerDeletion": True}
    held = make.metadata("p", ownerReferences=[owner], finalizers=["example.com/held"])
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": held, "spec": {}}
    stage = Stage(TtlAfterFinished())
    stage.put(pod, ended(make.job(ttlSecondsAfterFinished=0), "Complete", since=0))
    assert "deletionTimestamp" in stage.get(scheme.JOB, "job")["metadata"]
    assert "deletionTimestamp" in stage.get(scheme.POD, "p")["metadata"]
