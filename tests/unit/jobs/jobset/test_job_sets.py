"""The JobSet controller creates, suspends, resumes, recreates and deletes Jobs and Services. Tests set Job status."""

from collections.abc import Sequence
from typing import Any

import make
from batchyard.api import scheme
from batchyard.api.defaults import with_defaults
from batchyard.api.meta import Key, Obj, find_condition, with_metadata, with_path, with_status
from batchyard.interfaces.client import EventType, UpdateStatus, WatchEvent, WriteResult
from batchyard.interfaces.controller import EventRecord
from batchyard.jobs.jobset.controller import JobSetController
from stage import Stage, condition_state

TWO = [make.replicated_job("driver"), make.replicated_job("worker", replicas=2, parallelism=3, completions=3)]
RUNNING = {"active": 3, "ready": 3}
KEY = Key(scheme.JOB_SET, "team", "js")


def make_jobset(jobs: Sequence[make.Obj] = TWO, **spec: Any) -> Obj:
    return with_defaults(make.jobset(queue=None, replicated_jobs=jobs, **{"suspend": False, **spec}))


def jobset_stage(jobs: Sequence[make.Obj] = TWO, **spec: Any) -> Stage:
    """A stage with a JobSet."""
    stage = Stage(JobSetController())
    stage.put(make_jobset(jobs, **spec))
    return stage


def jobset(stage: Stage) -> Obj:
    return stage.get(scheme.JOB_SET, "js")


def change(stage: Stage, *path: str, value: object) -> None:
    """Set a field of the JobSet."""
    stage.put(with_path(jobset(stage), path, value))


def jobs(stage: Stage) -> dict[str, Obj]:
    return {job["metadata"]["name"]: job for job in stage.client.list(scheme.JOB)}


def uids(stage: Stage) -> list[str]:
    return [job["metadata"]["uid"] for job in jobs(stage).values()]


def attempts(stage: Stage) -> list[str]:
    return [job["metadata"]["labels"]["jobset.sigs.k8s.io/restart-attempt"] for job in jobs(stage).values()]


def suspended_jobs(stage: Stage) -> list[str]:
    return [name for name, job in jobs(stage).items() if job["spec"]["suspend"]]


def set_job_status(stage: Stage, name: str, **status: Any) -> None:
    """Set the status of a Job."""
    stage.put(with_status(jobs(stage)[name], status))


def finish_job(stage: Stage, name: str, how: str = "Complete", **fields: Any) -> None:
    """Set the end condition of a Job."""
    set_job_status(stage, name, conditions=[make.condition(how, **fields)])


def set_finalizers(stage: Stage, name: str, *finalizers: str) -> None:
    """Set the finalizers of a Job, so that its deletion waits or completes."""
    stage.put(with_metadata(jobs(stage)[name], finalizers=list(finalizers)))


def counts(stage: Stage, name: str) -> Obj:
    """The status of a replicated job, without zeros."""
    (result,) = [each for each in jobset(stage)["status"]["replicatedJobsStatus"] if each["name"] == name]
    return {field: value for field, value in result.items() if value and field != "name"}


# --- Jobs and the Service ---


def test_jobset_creates_service_and_jobs() -> None:
    stage = jobset_stage()
    assert list(jobs(stage)) == ["js-driver-0", "js-worker-0", "js-worker-1"]
    assert stage.get(scheme.SERVICE, "js")["spec"]["clusterIP"] == "None"
    assert suspended_jobs(stage) == []
    status = jobset(stage)["status"]
    assert (status["restarts"], [each["name"] for each in status["replicatedJobsStatus"]]) == (0, ["worker", "driver"])
    assert ("conditions" in status, stage.reasons()) == (False, [])


def test_jobset_writes_service_before_jobs_and_status_last() -> None:
    stage = Stage()
    stage.put(make_jobset())
    outcome = JobSetController().reconcile(KEY, stage.client, make.NOW)
    kinds = [getattr(write, "obj", {}).get("kind") for write in outcome.writes]
    assert kinds == ["Service", "Job", "Job", "Job", "JobSet"]
    assert isinstance(outcome.writes[-1], UpdateStatus)


def test_jobset_without_dns_hostnames_has_no_service() -> None:
    assert not jobset_stage(network={"enableDNSHostnames": False}).client.list(scheme.SERVICE)


def test_existing_service_is_kept_and_deleted_service_is_recreated() -> None:
    stage = Stage(JobSetController())
    stage.put({"apiVersion": "v1", "kind": "Service", "metadata": make.metadata("js"), "spec": {}})
    stage.put(make_jobset())
    assert stage.get(scheme.SERVICE, "js")["spec"] == {}
    other = jobset_stage(network={"subdomain": "net"})
    other.delete(scheme.SERVICE, "net")
    assert other.get(scheme.SERVICE, "net")


def test_deleted_child_job_is_recreated() -> None:
    stage = jobset_stage()
    before = uids(stage)
    stage.delete(scheme.JOB, "js-worker-0")
    after = uids(stage)
    assert [a == b for a, b in zip(before, after, strict=True)] == [True, False, True]


def test_added_replicas_create_jobs() -> None:
    stage = jobset_stage()
    replicated = jobset(stage)["spec"]["replicatedJobs"]
    change(stage, "spec", "replicatedJobs", value=[replicated[0], {**replicated[1], "replicas": 3}])
    assert "js-worker-2" in jobs(stage)


def test_jobset_managed_elsewhere_or_terminating_is_ignored() -> None:
    assert not jobs(jobset_stage(managedBy="kueue.x-k8s.io/multikueue"))
    assert jobs(jobset_stage(managedBy="jobset.sigs.k8s.io/jobset-controller"))
    stage = Stage()
    stage.put(with_metadata(make_jobset(), finalizers=["held"]))
    stage.delete(scheme.JOB_SET, "js")
    outcome = JobSetController().reconcile(KEY, stage.client, make.NOW)
    assert (outcome.writes, outcome.events) == ([], [])


def test_deleted_jobset_removes_jobs_and_service() -> None:
    stage = jobset_stage()
    stage.delete(scheme.JOB_SET, "js")
    assert not jobs(stage)
    assert not stage.client.list(scheme.SERVICE)


def test_jobset_retries_after_name_conflict_is_resolved() -> None:
    stage = Stage(JobSetController())
    stage.put(make.job("js-worker-1", queue=None))
    stage.put(make_jobset())
    message = 'job "js-worker-1" creation failed with error: jobs.batch "js-worker-1" already exists'
    assert EventRecord(KEY, "Warning", "JobCreationFailed", message) in stage.events
    assert (len(jobs(stage)), "status" in jobset(stage)) == (3, False)
    stage.delete(scheme.JOB, "js-worker-1")
    assert "ownerReferences" in jobs(stage)["js-worker-1"]["metadata"]
    assert "status" in jobset(stage)


def test_jobset_creates_no_jobs_after_name_conflict() -> None:
    stage = Stage(JobSetController())
    stage.put(make.job("js-driver-0", queue=None))
    stage.put(make_jobset())
    assert list(jobs(stage)) == ["js-driver-0"]
    stage.delete(scheme.JOB, "js-driver-0")
    assert list(jobs(stage)) == ["js-driver-0", "js-worker-0", "js-worker-1"]


def test_jobset_pauses_while_child_job_has_no_restart_attempt() -> None:
    stage = jobset_stage()
    good = jobs(stage)["js-driver-0"]
    stage.put(with_metadata(good, labels={}))
    stage.delete(scheme.JOB, "js-worker-0")
    assert list(jobs(stage)) == ["js-driver-0", "js-worker-1"]
    stage.put(with_metadata(jobs(stage)["js-driver-0"], labels=good["metadata"]["labels"]))
    assert len(jobs(stage)) == 3


# --- the status ---


def test_jobset_status_counts_jobs() -> None:
    stage = jobset_stage()
    set_job_status(stage, "js-worker-0", **RUNNING)
    set_job_status(stage, "js-worker-1", active=3, ready=2)
    assert counts(stage, "worker") == {"ready": 1, "active": 2}
    finish_job(stage, "js-worker-1")
    assert counts(stage, "worker") == {"ready": 1, "active": 1, "succeeded": 1}
    assert counts(stage, "driver") == {}


def test_jobset_completes_with_its_jobs() -> None:
    stage = jobset_stage()
    for name in ("js-driver-0", "js-worker-0"):
        finish_job(stage, name)
        assert find_condition(jobset(stage), "Completed") is None
    finish_job(stage, "js-worker-1")
    assert condition_state(jobset(stage), "Completed") == ("True", "AllJobsCompleted", "jobset completed successfully")
    assert jobset(stage)["status"]["terminalState"] == "Completed"
    assert [(e.type, e.reason) for e in stage.events] == [("Normal", "AllJobsCompleted")]
    assert len(jobs(stage)) == 3


def test_completed_jobset_deletes_active_jobs() -> None:
    stage = jobset_stage(successPolicy={"operator": "All", "targetReplicatedJobs": ["driver"]})
    set_job_status(stage, "js-worker-0", **RUNNING)
    finish_job(stage, "js-worker-1")
    finish_job(stage, "js-driver-0")
    assert list(jobs(stage)) == ["js-driver-0", "js-worker-1"]
    assert (counts(stage, "worker"), counts(stage, "driver")) == ({"succeeded": 1}, {"succeeded": 1})


def test_failed_jobset_deletes_active_jobs() -> None:
    stage = jobset_stage()
    finish_job(stage, "js-worker-1", "Failed", reason="BackoffLimitExceeded")
    message = "jobset failed due to one or more job failures (first failed job: js-worker-1)"
    assert condition_state(jobset(stage), "Failed") == ("True", "FailedJobs", message)
    assert [(e.type, e.reason, e.message) for e in stage.events] == [("Warning", "FailedJobs", message)]
    assert list(jobs(stage)) == ["js-worker-1"]
    assert counts(stage, "worker") == {"failed": 1}


# --- restarts ---


def test_restart_recreates_all_jobs_with_next_attempt() -> None:
    stage = jobset_stage(failurePolicy={"maxRestarts": 1})
    before = uids(stage)
    finish_job(stage, "js-driver-0")
    finish_job(stage, "js-worker-1", "Failed")
    assert not set(before) & set(uids(stage))
    assert attempts(stage) == ["1", "1", "1"]
    status = jobset(stage)["status"]
    assert (status["restarts"], status["restartsCountTowardsMax"], "terminalState" in status) == (1, 1, False)
    message = "applying RestartJobSet failure policy action (first failed job: js-worker-1)"
    assert condition_state(jobset(stage), "RestartingJobSet") == ("True", "DefaultFailurePolicy", message)
    assert stage.reasons() == ["DefaultFailurePolicy", "RestartJobSetFailurePolicyAction"]


def test_restart_ends_after_all_jobs_are_ready() -> None:
    stage = jobset_stage(failurePolicy={"maxRestarts": 1})
    finish_job(stage, "js-worker-1", "Failed")
    for name in jobs(stage):
        set_job_status(stage, name, **RUNNING)
    assert condition_state(jobset(stage), "RestartingJobSet") == ("False", "JobsReady", "all jobs are ready")
    assert stage.reasons()[2:] == ["JobsReady"]


def test_jobset_fails_after_max_restarts() -> None:
    stage = jobset_stage(failurePolicy={"maxRestarts": 1})
    finish_job(stage, "js-worker-1", "Failed")
    finish_job(stage, "js-worker-0", "Failed")
    message = "jobset failed due to reaching max number of restarts (first failed job: js-worker-0)"
    assert condition_state(jobset(stage), "Failed") == ("True", "ReachedMaxRestarts", message)
    assert condition_state(jobset(stage), "RestartingJobSet") == ("False", "JobSetFailed", "jobset failed")
    assert stage.reasons()[2:] == ["ReachedMaxRestarts", "JobSetFailed"]


def test_restart_recreates_job_after_previous_job_is_gone() -> None:
    stage = jobset_stage(failurePolicy={"maxRestarts": 1})
    set_finalizers(stage, "js-worker-0", "held")
    finish_job(stage, "js-worker-1", "Failed")
    assert attempts(stage) == ["1", "0", "1"]
    set_finalizers(stage, "js-worker-0")
    assert attempts(stage) == ["1", "1", "1"]


def test_blocking_recreate_waits_for_deletion_of_all_jobs() -> None:
    stage = jobset_stage(failurePolicy={"maxRestarts": 1, "restartStrategy": "BlockingRecreate"})
    set_finalizers(stage, "js-worker-0", "held")
    finish_job(stage, "js-worker-1", "Failed")
    assert list(jobs(stage)) == ["js-worker-0"]
    set_finalizers(stage, "js-worker-0")
    assert attempts(stage) == ["1", "1", "1"]


def test_restart_waits_for_foreground_deletion_of_pods() -> None:
    stage = jobset_stage(failurePolicy={"maxRestarts": 1})
    job = jobs(stage)["js-worker-0"]
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "js-worker-0", "uid": job["metadata"]["uid"]}
    owner |= {"controller": True, "blockOwnerDeletion": True}
    metadata = make.metadata("p", ownerReferences=[owner], finalizers=["held"])
    stage.put({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {}})
    finish_job(stage, "js-worker-1", "Failed")
    assert jobs(stage)["js-worker-0"]["metadata"]["finalizers"] == ["foregroundDeletion"]
    assert "deletionTimestamp" in stage.get(scheme.POD, "p")["metadata"]
    stage.put(with_metadata(stage.get(scheme.POD, "p"), finalizers=[]))
    assert attempts(stage) == ["1", "1", "1"]


def crash_after_every_write(stage: Stage) -> None:
    """Apply only the first write of each reconcile, each time with a new controller."""
    for _ in range(20):
        writes = JobSetController().reconcile(KEY, stage.client, make.NOW).writes
        if not writes:
            return
        stage.client.submit([writes[0]], assert_written)
        stage.settle()
    raise AssertionError("the controller still writes after the last allowed attempt")


def assert_written(result: WriteResult) -> None:
    assert result.error is None


def test_controller_restarted_after_each_write_reaches_same_state() -> None:
    whole = jobset_stage(failurePolicy={"maxRestarts": 1})
    stage = Stage()
    stage.put(make_jobset(failurePolicy={"maxRestarts": 1}))
    crash_after_every_write(stage)
    assert (jobset(stage)["spec"], list(jobs(stage))) == (jobset(whole)["spec"], list(jobs(whole)))
    for each in (whole, stage):
        finish_job(each, "js-worker-1", "Failed")
    crash_after_every_write(stage)
    assert attempts(stage) == attempts(whole) == ["1", "1", "1"]
    assert jobset(stage)["status"] == jobset(whole)["status"]


# --- suspension ---


def test_suspended_jobset_suspends_and_resumes_jobs() -> None:
    stage = jobset_stage(suspend=True)
    assert len(suspended_jobs(stage)) == 3
    assert condition_state(jobset(stage), "Suspended") == ("True", "SuspendedJobs", "jobset is suspended")
    assert counts(stage, "worker") == {"suspended": 2}
    change(stage, "spec", "suspend", value=False)
    assert suspended_jobs(stage) == []
    assert condition_state(jobset(stage), "Suspended") == ("False", "ResumeJobs", "jobset is resumed")
    assert stage.reasons() == ["SuspendedJobs", "ResumeJobs"]


def test_jobset_suspends_unfinished_jobs_only() -> None:
    stage = jobset_stage()
    finish_job(stage, "js-worker-0")
    change(stage, "spec", "suspend", value=True)
    assert suspended_jobs(stage) == ["js-driver-0", "js-worker-1"]


def test_resumed_job_gets_node_selector_and_new_start_time() -> None:
    stage = jobset_stage()
    set_job_status(stage, "js-driver-0", startTime=make.stamp(), ready=0)
    change(stage, "spec", "suspend", value=True)
    replicated = jobset(stage)["spec"]["replicatedJobs"]
    path = ("template", "spec", "template", "spec", "nodeSelector")
    moved = [with_path(each, path, {"zone": "b"}) for each in replicated]
    change(stage, "spec", value={**jobset(stage)["spec"], "suspend": False, "replicatedJobs": moved})
    assert all(job["spec"]["template"]["spec"]["nodeSelector"] == {"zone": "b"} for job in jobs(stage).values())
    assert jobs(stage)["js-driver-0"]["status"] == {"ready": 0}
    assert suspended_jobs(stage) == []


def test_suspension_ends_restart() -> None:
    stage = jobset_stage(failurePolicy={"maxRestarts": 1})
    finish_job(stage, "js-worker-1", "Failed")
    change(stage, "spec", "suspend", value=True)
    assert condition_state(jobset(stage), "RestartingJobSet") == ("False", "JobSetSuspended", "jobset is suspended")
    assert stage.reasons()[2:] == ["SuspendedJobs", "JobSetSuspended"]


# --- order ---

IN_ORDER = {"startupPolicyOrder": "InOrder"}


def test_in_order_startup_policy_starts_jobs_sequentially() -> None:
    stage = jobset_stage(startupPolicy=IN_ORDER)
    assert list(jobs(stage)) == ["js-driver-0"]
    reported = ("True", "InOrderStartupPolicyInProgress", "in order startup policy is in progress")
    assert condition_state(jobset(stage), "StartupPolicyInProgress") == reported
    set_job_status(stage, "js-driver-0", active=1, ready=1)
    assert len(jobs(stage)) == 3
    for name in ("js-worker-0", "js-worker-1"):
        set_job_status(stage, name, **RUNNING)
    reported = ("True", "InOrderStartupPolicyCompleted", "in order startup policy has completed")
    assert condition_state(jobset(stage), "StartupPolicyCompleted") == reported
    assert condition_state(jobset(stage), "StartupPolicyInProgress")[0] == "False"
    assert stage.reasons() == ["InOrderStartupPolicyInProgress", "InOrderStartupPolicyCompleted"]


def test_in_order_startup_policy_resumes_jobs_sequentially() -> None:
    stage = jobset_stage(startupPolicy=IN_ORDER, suspend=True)
    assert len(suspended_jobs(stage)) == 3
    change(stage, "spec", "suspend", value=False)
    assert suspended_jobs(stage) == ["js-worker-0", "js-worker-1"]
    assert condition_state(jobset(stage), "Suspended")[0] == "True"
    set_job_status(stage, "js-driver-0", active=1, ready=1)
    assert suspended_jobs(stage) == []
    for name in ("js-worker-0", "js-worker-1"):
        set_job_status(stage, name, **RUNNING)
    assert condition_state(jobset(stage), "Suspended")[0] == "False"


def test_replicated_job_waits_for_its_dependencies() -> None:
    dependent = {**TWO[1], "dependsOn": [{"name": "driver", "status": "Complete"}]}
    stage = jobset_stage(jobs=[TWO[0], dependent])
    set_job_status(stage, "js-driver-0", active=1, ready=1)
    assert list(jobs(stage)) == ["js-driver-0"]
    finish_job(stage, "js-driver-0")
    assert len(jobs(stage)) == 3


def test_jobset_completes_after_dependent_jobs() -> None:
    dependent = {**TWO[1], "dependsOn": [{"name": "driver", "status": "Ready"}]}
    stage = jobset_stage(jobs=[TWO[0], dependent])
    finish_job(stage, "js-driver-0")
    assert find_condition(jobset(stage), "Completed") is None
    for name in ("js-worker-0", "js-worker-1"):
        finish_job(stage, name)
    assert condition_state(jobset(stage), "Completed")[0] == "True"


# --- watched changes ---


def watch_keys(obj: Obj, old: Obj | None, kind: str = scheme.JOB, type: EventType = EventType.MODIFIED) -> list[str]:  # noqa: A002
    event = WatchEvent(type, Key(kind, "team", obj["metadata"]["name"]), obj, old, 1)
    return [key.name for key in JobSetController().keys_for(event, make.NOW)]


def test_irrelevant_job_updates_trigger_no_reconcile() -> None:
    job = jobs(jobset_stage())["js-driver-0"]
    running = with_status(job, {"active": 1, "ready": 0, "terminating": 0})
    assert watch_keys(job, None, type=EventType.ADDED) == ["js"]
    assert watch_keys(running, job) == ["js"]
    assert watch_keys(with_path(running, ("status", "terminating"), 3), running) == []
    assert watch_keys(with_path(running, ("status", "ready"), 1), running) == ["js"]
    assert watch_keys(with_path(running, ("status", "startTime"), make.stamp()), running) == ["js"]
    assert watch_keys(with_path(running, ("spec", "suspend"), True), running) == ["js"]
    assert watch_keys(job, job, type=EventType.DELETED) == ["js"]


def test_jobset_status_counts_trigger_no_reconcile() -> None:
    stage = jobset_stage()
    js = jobset(stage)
    assert watch_keys(with_path(js, ("status", "replicatedJobsStatus"), []), js, scheme.JOB_SET) == []
    assert watch_keys(with_path(js, ("status", "restarts"), 1), js, scheme.JOB_SET) == ["js"]
    assert watch_keys(with_path(js, ("spec", "suspend"), True), js, scheme.JOB_SET) == ["js"]
    assert watch_keys(js, js, scheme.JOB_SET, EventType.DELETED) == ["js"]


def test_deleted_unowned_job_triggers_jobsets_by_name_prefix() -> None:
    gone = EventType.DELETED
    assert watch_keys(make.job("my-js-worker-0"), None, type=gone) == ["my", "my-js"]
    assert watch_keys(make.job("my-js-worker"), None, type=gone) == []
    assert watch_keys(make.job("job-0"), None, type=gone) == []
    assert watch_keys(make.job("my-js-worker-0"), None, type=EventType.ADDED) == []
