"""Deletion of finished Jobs and JobSets after their TTL."""

from typing import Any

import make
from batchyard.api import scheme
from batchyard.api.meta import Key, Obj
from batchyard.housekeeping.controllers import TtlAfterFinished
from stage import Stage


def with_end_condition(obj: Obj, kind: str, since: float = 5, **status: Any) -> Obj:
    return {**obj, "status": {"conditions": [make.condition(kind, since=since)], **status}}


def exists(stage: Stage, kind: str, name: str) -> bool:
    return stage.client.get(Key(kind, "team", name)) is not None


def test_finished_job_is_deleted_after_ttl() -> None:
    stage = Stage(TtlAfterFinished())
    stage.put(with_end_condition(make.job(ttlSecondsAfterFinished=60), "Complete"))
    stage.run(64)
    assert exists(stage, scheme.JOB, "job")
    stage.run(65)
    assert not exists(stage, scheme.JOB, "job")


def test_failed_jobset_is_deleted_after_ttl() -> None:
    stage = Stage(TtlAfterFinished())
    stage.put(with_end_condition(make.jobset(ttlSecondsAfterFinished=0), "Failed", since=0))
    assert not exists(stage, scheme.JOB_SET, "js")


def test_jobset_managed_by_other_controller_is_kept() -> None:
    stage = Stage(TtlAfterFinished())
    stage.put(
        with_end_condition(make.jobset(ttlSecondsAfterFinished=0, managedBy="example.com/other"), "Completed", since=0)
    )
    assert exists(stage, scheme.JOB_SET, "js")


def test_unfinished_job_and_job_without_ttl_are_kept() -> None:
    stage = Stage(TtlAfterFinished())
    running = make.job("running", ttlSecondsAfterFinished=0)
    stage.put(with_end_condition(make.job("kept"), "Complete"), with_end_condition(running, "FailureTarget"))
    stage.run(10**6)
    assert exists(stage, scheme.JOB, "kept")
    assert exists(stage, scheme.JOB, "running")


def test_ttl_set_later_counts_from_completion_time() -> None:
    stage = Stage(TtlAfterFinished())
    done = with_end_condition(make.job(), "Complete", since=0)
    stage.put(done)
    stage.put({**done, "spec": {**done["spec"], "ttlSecondsAfterFinished": 10}})
    stage.run(9)
    assert exists(stage, scheme.JOB, "job")
    stage.run(10)
    assert not exists(stage, scheme.JOB, "job")


def test_ttl_deletion_uses_foreground_propagation() -> None:
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "job", "uid": "uid-job", "blockOwnerDeletion": True}
    held = make.metadata("p", ownerReferences=[owner], finalizers=["example.com/held"])
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": held, "spec": {}}
    stage = Stage(TtlAfterFinished())
    stage.put(pod, with_end_condition(make.job(ttlSecondsAfterFinished=0), "Complete", since=0))
    assert "deletionTimestamp" in stage.get(scheme.JOB, "job")["metadata"]
    assert "deletionTimestamp" in stage.get(scheme.POD, "p")["metadata"]
