"""The JobSet controller: Jobs and Services are made, suspended, let go, made anew and deleted. Tests play the Jobs."""

from collections.abc import Sequence
from typing import Any

import make
from batchyard.api import scheme
from batchyard.api.defaults import with_defaults
from batchyard.api.meta import Key, Obj, find_condition, with_metadata, with_path, with_status
from batchyard.interfaces.client import EventType, UpdateStatus, WatchEvent, WriteResult
from batchyard.interfaces.controller import EventRecord
from batchyard.jobs.jobset.controller import JobSetController
from stage import Stage, stated

TWO = [make.replicated_job("driver"), make.replicated_job("worker", replicas=2, parallelism=3, completions=3)]
RUNNING = {"active": 3, "ready": 3}
KEY = Key(scheme.JOB_SET, "team", "js")


def built(jobs: Sequence[make.Obj] = TWO, **spec: Any) -> Obj:
    return with_defaults(make.jobset(queue=None, replicated_jobs=jobs, **{"suspend": False, **spec}))


def staged(jobs: Sequence[make.Obj] = TWO, **spec: Any) -> Stage:
    """A stage with a JobSet."""
    stage = Stage(JobSetController())
    stage.put(built(jobs, **spec))
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


def suspended(stage: Stage) -> list[str]:
    return [name for name, job in jobs(stage).items() if job["spec"]["suspend"]]


def play(stage: Stage, name: str, **status: Any) -> None:
    """Give a Job a status."""
    stage.put(with_status(jobs(stage)[name], status))


def end(stage: Stage, name: str, how: str = "Complete", **fields: Any) -> None:
    """Let a Job end."""
    play(stage, name, conditions=[make.condition(how, **fields)])


def hold(stage: Stage, name: str, *finalizers: str) -> None:
    """Let a Job stay when it is deleted, or let it go."""
    stage.put(with_metadata(jobs(stage)[name], finalizers=list(finalizers)))


def counts(stage: Stage, name: str) -> Obj:
    """What the status says about a replicated job, zeros left out."""
    (found,) = [each for each in jobset(stage)["status"]["replicatedJobsStatus"] if each["name"] == name]
    return {field: value for field, value in found.items() if value and field != "name"}


# --- Jobs and the Service ---


def test_a_jobset_has_its_service_and_its_jobs_at_once() -> None:
    stage = staged()
    assert list(jobs(stage)) == ["js-driver-0", "js-worker-0", "js-worker-1"]
    assert stage.get(scheme.SERVICE, "js")["spec"]["clusterIP"] == "None"
    assert suspended(stage) == []
    status = jobset(stage)["status"]
    assert (status["restarts"], [each["name"] for each in status["replicatedJobsStatus"]]) == (0, ["worker", "driver"])
    assert ("conditions" in status, stage.reasons()) == (False, [])


def test_the_service_comes_before_the_jobs_and_the_status_last() -> None:
    stage = Stage()
    stage.put(built())
    outcome = JobSetController().reconcile(KEY, stage.client, make.NOW)
    kinds = [getattr(write, "obj", {}).get("kind") for write in outcome.writes]
    assert kinds == ["Service", "Job", "Job", "Job", "JobSet"]
    assert isinstance(outcome.writes[-1], UpdateStatus)


def test_a_jobset_without_host_names_has_no_service() -> None:
    assert not staged(network={"enableDNSHostnames": False}).client.list(scheme.SERVICE)


def test_a_service_of_that_name_is_taken_as_it_is_and_a_lost_one_made_anew() -> None:
    stage = Stage(JobSetController())
    stage.put({"apiVersion": "v1", "kind": "Service", "metadata": make.metadata("js"), "spec": {}})
    stage.put(built())
    assert stage.get(scheme.SERVICE, "js")["spec"] == {}
    other = staged(network={"subdomain": "net"})
    other.delete(scheme.SERVICE, "net")
    assert other.get(scheme.SERVICE, "net")


def test_a_job_that_was_deleted_is_made_anew() -> None:
    stage = staged()
    before = uids(stage)
    stage.delete(scheme.JOB, "js-worker-0")
    after = uids(stage)
    assert [a == b for a, b in zip(before, after, strict=True)] == [True, False, True]


def test_more_replicas_mean_more_jobs() -> None:
    stage = staged()
    replicated = jobset(stage)["spec"]["replicatedJobs"]
    change(stage, "spec", "replicatedJobs", value=[replicated[0], {**replicated[1], "replicas": 3}])
    assert "js-worker-2" in jobs(stage)


def test_whoever_is_managed_elsewhere_or_is_being_deleted_is_left_alone() -> None:
    assert not jobs(staged(managedBy="kueue.x-k8s.io/multikueue"))
    assert jobs(staged(managedBy="jobset.sigs.k8s.io/jobset-controller"))
    stage = Stage()
    stage.put(with_metadata(built(), finalizers=["held"]))
    stage.delete(scheme.JOB_SET, "js")
    outcome = JobSetController().reconcile(KEY, stage.client, make.NOW)
    assert (outcome.writes, outcome.events) == ([], [])


def test_jobs_go_with_their_jobset() -> None:
    stage = staged()
    stage.delete(scheme.JOB_SET, "js")
    assert not jobs(stage)
    assert not stage.client.list(scheme.SERVICE)


def test_a_name_that_another_job_has_is_waited_for() -> None:
    stage = Stage(JobSetController())
    stage.put(make.job("js-worker-1", queue=None))
    stage.put(built())
    message = 'job "js-worker-1" creation failed with error: jobs.batch "js-worker-1" already exists'
    assert EventRecord(KEY, "Warning", "JobCreationFailed", message) in stage.events
    assert (len(jobs(stage)), "status" in jobset(stage)) == (3, False)
    stage.delete(scheme.JOB, "js-worker-1")
    assert "ownerReferences" in jobs(stage)["js-worker-1"]["metadata"]
    assert "status" in jobset(stage)


def test_those_after_one_whose_name_is_taken_wait_too() -> None:
    stage = Stage(JobSetController())
    stage.put(make.job("js-driver-0", queue=None))
    stage.put(built())
    assert list(jobs(stage)) == ["js-driver-0"]
    stage.delete(scheme.JOB, "js-driver-0")
    assert list(jobs(stage)) == ["js-driver-0", "js-worker-0", "js-worker-1"]


def test_a_job_without_its_attempt_stops_its_jobset_until_it_has_it_again() -> None:
    stage = staged()
    good = jobs(stage)["js-driver-0"]
    stage.put(with_metadata(good, labels={}))
    stage.delete(scheme.JOB, "js-worker-0")
    assert list(jobs(stage)) == ["js-driver-0", "js-worker-1"]
    stage.put(with_metadata(jobs(stage)["js-driver-0"], labels=good["metadata"]["labels"]))
    assert len(jobs(stage)) == 3


# --- the status ---


def test_the_status_counts_jobs() -> None:
    stage = staged()
    play(stage, "js-worker-0", **RUNNING)
    play(stage, "js-worker-1", active=3, ready=2)
    assert counts(stage, "worker") == {"ready": 1, "active": 2}
    end(stage, "js-worker-1")
    assert counts(stage, "worker") == {"ready": 1, "active": 1, "succeeded": 1}
    assert counts(stage, "driver") == {}


def test_the_jobset_is_complete_when_its_jobs_are() -> None:
    stage = staged()
    for name in ("js-driver-0", "js-worker-0"):
        end(stage, name)
        assert find_condition(jobset(stage), "Completed") is None
    end(stage, "js-worker-1")
    assert stated(jobset(stage), "Completed") == ("True", "AllJobsCompleted", "jobset completed successfully")
    assert jobset(stage)["status"]["terminalState"] == "Completed"
    assert [(e.type, e.reason) for e in stage.events] == [("Normal", "AllJobsCompleted")]
    assert len(jobs(stage)) == 3


def test_jobs_that_still_run_are_deleted_when_the_jobset_is_complete() -> None:
    stage = staged(successPolicy={"operator": "All", "targetReplicatedJobs": ["driver"]})
    play(stage, "js-worker-0", **RUNNING)
    end(stage, "js-worker-1")
    end(stage, "js-driver-0")
    assert list(jobs(stage)) == ["js-driver-0", "js-worker-1"]
    assert (counts(stage, "worker"), counts(stage, "driver")) == ({"succeeded": 1}, {"succeeded": 1})


def test_jobs_that_still_run_are_deleted_when_the_jobset_has_failed() -> None:
    stage = staged()
    end(stage, "js-worker-1", "Failed", reason="BackoffLimitExceeded")
    message = "jobset failed due to one or more job failures (first failed job: js-worker-1)"
    assert stated(jobset(stage), "Failed") == ("True", "FailedJobs", message)
    assert [(e.type, e.reason, e.message) for e in stage.events] == [("Warning", "FailedJobs", message)]
    assert list(jobs(stage)) == ["js-worker-1"]
    assert counts(stage, "worker") == {"failed": 1}


# --- restarts ---


def test_a_restart_makes_all_jobs_anew_under_the_next_attempt() -> None:
    stage = staged(failurePolicy={"maxRestarts": 1})
    before = uids(stage)
    end(stage, "js-driver-0")
    end(stage, "js-worker-1", "Failed")
    assert not set(before) & set(uids(stage))
    assert attempts(stage) == ["1", "1", "1"]
    status = jobset(stage)["status"]
    assert (status["restarts"], status["restartsCountTowardsMax"], "terminalState" in status) == (1, 1, False)
    message = "applying RestartJobSet failure policy action (first failed job: js-worker-1)"
    assert stated(jobset(stage), "RestartingJobSet") == ("True", "DefaultFailurePolicy", message)
    assert stage.reasons() == ["DefaultFailurePolicy", "RestartJobSetFailurePolicyAction"]


def test_a_restart_is_over_when_all_jobs_are_ready() -> None:
    stage = staged(failurePolicy={"maxRestarts": 1})
    end(stage, "js-worker-1", "Failed")
    for name in jobs(stage):
        play(stage, name, **RUNNING)
    assert stated(jobset(stage), "RestartingJobSet") == ("False", "JobsReady", "all jobs are ready")
    assert stage.reasons()[2:] == ["JobsReady"]


def test_the_last_restart_is_followed_by_failure() -> None:
    stage = staged(failurePolicy={"maxRestarts": 1})
    end(stage, "js-worker-1", "Failed")
    end(stage, "js-worker-0", "Failed")
    message = "jobset failed due to reaching max number of restarts (first failed job: js-worker-0)"
    assert stated(jobset(stage), "Failed") == ("True", "ReachedMaxRestarts", message)
    assert stated(jobset(stage), "RestartingJobSet") == ("False", "JobSetFailed", "jobset failed")
    assert stage.reasons()[2:] == ["ReachedMaxRestarts", "JobSetFailed"]


def test_a_job_is_made_anew_as_soon_as_the_last_of_its_name_is_gone() -> None:
    stage = staged(failurePolicy={"maxRestarts": 1})
    hold(stage, "js-worker-0", "held")
    end(stage, "js-worker-1", "Failed")
    assert attempts(stage) == ["1", "0", "1"]
    hold(stage, "js-worker-0")
    assert attempts(stage) == ["1", "1", "1"]


def test_no_job_is_made_anew_before_all_are_gone_if_restarts_block() -> None:
    stage = staged(failurePolicy={"maxRestarts": 1, "restartStrategy": "BlockingRecreate"})
    hold(stage, "js-worker-0", "held")
    end(stage, "js-worker-1", "Failed")
    assert list(jobs(stage)) == ["js-worker-0"]
    hold(stage, "js-worker-0")
    assert attempts(stage) == ["1", "1", "1"]


def test_pods_go_before_their_job_and_the_next_job_comes_after_them() -> None:
    stage = staged(failurePolicy={"maxRestarts": 1})
    job = jobs(stage)["js-worker-0"]
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "js-worker-0", "uid": job["metadata"]["uid"]}
    owner |= {"controller": True, "blockOwnerDeletion": True}
    metadata = make.metadata("p", ownerReferences=[owner], finalizers=["held"])
    stage.put({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {}})
    end(stage, "js-worker-1", "Failed")
    assert jobs(stage)["js-worker-0"]["metadata"]["finalizers"] == ["foregroundDeletion"]
    assert "deletionTimestamp" in stage.get(scheme.POD, "p")["metadata"]
    stage.put(with_metadata(stage.get(scheme.POD, "p"), finalizers=[]))
    assert attempts(stage) == ["1", "1", "1"]


def crash_after_every_write(stage: Stage) -> None:
    """Do the first write of each reconcile only, each time with a controller that was started anew."""
    for _ in range(20):
        writes = JobSetController().reconcile(KEY, stage.client, make.NOW).writes
        if not writes:
            return
        stage.client.submit([writes[0]], ignored)
        stage.settle()
    raise AssertionError("there is no end to it")


def ignored(result: WriteResult) -> None:
    assert result.error is None


def test_a_controller_that_is_stopped_at_any_write_comes_to_the_same_end() -> None:
    whole = staged(failurePolicy={"maxRestarts": 1})
    stage = Stage()
    stage.put(built(failurePolicy={"maxRestarts": 1}))
    crash_after_every_write(stage)
    assert (jobset(stage)["spec"], list(jobs(stage))) == (jobset(whole)["spec"], list(jobs(whole)))
    for each in (whole, stage):
        end(each, "js-worker-1", "Failed")
    crash_after_every_write(stage)
    assert attempts(stage) == attempts(whole) == ["1", "1", "1"]
    assert jobset(stage)["status"] == jobset(whole)["status"]


# --- suspension ---


def test_a_suspended_jobset_has_suspended_jobs_and_lets_them_go_later() -> None:
    stage = staged(suspend=True)
    assert len(suspended(stage)) == 3
    assert stated(jobset(stage), "Suspended") == ("True", "SuspendedJobs", "jobset is suspended")
    assert counts(stage, "worker") == {"suspended": 2}
    change(stage, "spec", "suspend", value=False)
    assert suspended(stage) == []
    assert stated(jobset(stage), "Suspended") == ("False", "ResumeJobs", "jobset is resumed")
    assert stage.reasons() == ["SuspendedJobs", "ResumeJobs"]


def test_jobs_are_suspended_with_their_jobset_but_for_those_that_ended() -> None:
    stage = staged()
    end(stage, "js-worker-0")
    change(stage, "spec", "suspend", value=True)
    assert suspended(stage) == ["js-driver-0", "js-worker-1"]


def test_a_resumed_job_starts_anew_where_the_jobset_says() -> None:
    stage = staged()
    play(stage, "js-driver-0", startTime=make.stamp(), ready=0)
    change(stage, "spec", "suspend", value=True)
    replicated = jobset(stage)["spec"]["replicatedJobs"]
    path = ("template", "spec", "template", "spec", "nodeSelector")
    moved = [with_path(each, path, {"zone": "b"}) for each in replicated]
    change(stage, "spec", value={**jobset(stage)["spec"], "suspend": False, "replicatedJobs": moved})
    assert all(job["spec"]["template"]["spec"]["nodeSelector"] == {"zone": "b"} for job in jobs(stage).values())
    assert jobs(stage)["js-driver-0"]["status"] == {"ready": 0}
    assert suspended(stage) == []


def test_a_suspension_ends_a_restart() -> None:
    stage = staged(failurePolicy={"maxRestarts": 1})
    end(stage, "js-worker-1", "Failed")
    change(stage, "spec", "suspend", value=True)
    assert stated(jobset(stage), "RestartingJobSet") == ("False", "JobSetSuspended", "jobset is suspended")
    assert stage.reasons()[2:] == ["SuspendedJobs", "JobSetSuspended"]


# --- order ---

IN_ORDER = {"startupPolicyOrder": "InOrder"}


def test_replicated_jobs_start_in_order() -> None:
    stage = staged(startupPolicy=IN_ORDER)
    assert list(jobs(stage)) == ["js-driver-0"]
    reported = ("True", "InOrderStartupPolicyInProgress", "in order startup policy is in progress")
    assert stated(jobset(stage), "StartupPolicyInProgress") == reported
    play(stage, "js-driver-0", active=1, ready=1)
    assert len(jobs(stage)) == 3
    for name in ("js-worker-0", "js-worker-1"):
        play(stage, name, **RUNNING)
    reported = ("True", "InOrderStartupPolicyCompleted", "in order startup policy has completed")
    assert stated(jobset(stage), "StartupPolicyCompleted") == reported
    assert stated(jobset(stage), "StartupPolicyInProgress")[0] == "False"
    assert stage.reasons() == ["InOrderStartupPolicyInProgress", "InOrderStartupPolicyCompleted"]


def test_suspended_jobs_are_let_go_in_order() -> None:
    stage = staged(startupPolicy=IN_ORDER, suspend=True)
    assert len(suspended(stage)) == 3
    change(stage, "spec", "suspend", value=False)
    assert suspended(stage) == ["js-worker-0", "js-worker-1"]
    assert stated(jobset(stage), "Suspended")[0] == "True"
    play(stage, "js-driver-0", active=1, ready=1)
    assert suspended(stage) == []
    for name in ("js-worker-0", "js-worker-1"):
        play(stage, name, **RUNNING)
    assert stated(jobset(stage), "Suspended")[0] == "False"


def test_a_replicated_job_waits_for_those_it_depends_on() -> None:
    dependent = {**TWO[1], "dependsOn": [{"name": "driver", "status": "Complete"}]}
    stage = staged(jobs=[TWO[0], dependent])
    play(stage, "js-driver-0", active=1, ready=1)
    assert list(jobs(stage)) == ["js-driver-0"]
    end(stage, "js-driver-0")
    assert len(jobs(stage)) == 3


def test_a_jobset_with_dependents_is_not_complete_before_they_are() -> None:
    dependent = {**TWO[1], "dependsOn": [{"name": "driver", "status": "Ready"}]}
    stage = staged(jobs=[TWO[0], dependent])
    end(stage, "js-driver-0")
    assert find_condition(jobset(stage), "Completed") is None
    for name in ("js-worker-0", "js-worker-1"):
        end(stage, name)
    assert stated(jobset(stage), "Completed")[0] == "True"


# --- what it looks at ---


def looked_at(obj: Obj, old: Obj | None, kind: str = scheme.JOB, type: EventType = EventType.MODIFIED) -> list[str]:  # noqa: A002
    event = WatchEvent(type, Key(kind, "team", obj["metadata"]["name"]), obj, old, 1)
    return [key.name for key in JobSetController().keys_for(event, make.NOW)]


def test_changes_that_say_nothing_new_are_passed_over() -> None:
    job = jobs(staged())["js-driver-0"]
    running = with_status(job, {"active": 1, "ready": 0, "terminating": 0})
    assert looked_at(job, None, type=EventType.ADDED) == ["js"]
    assert looked_at(running, job) == ["js"]
    assert looked_at(with_path(running, ("status", "terminating"), 3), running) == []
    assert looked_at(with_path(running, ("status", "ready"), 1), running) == ["js"]
    assert looked_at(with_path(running, ("status", "startTime"), make.stamp()), running) == ["js"]
    assert looked_at(with_path(running, ("spec", "suspend"), True), running) == ["js"]
    assert looked_at(job, job, type=EventType.DELETED) == ["js"]


def test_counts_in_the_status_of_a_jobset_need_no_other_look() -> None:
    stage = staged()
    js = jobset(stage)
    assert looked_at(with_path(js, ("status", "replicatedJobsStatus"), []), js, scheme.JOB_SET) == []
    assert looked_at(with_path(js, ("status", "restarts"), 1), js, scheme.JOB_SET) == ["js"]
    assert looked_at(with_path(js, ("spec", "suspend"), True), js, scheme.JOB_SET) == ["js"]
    assert looked_at(js, js, scheme.JOB_SET, EventType.DELETED) == ["js"]


def test_a_job_of_nobody_that_goes_may_have_been_in_the_way() -> None:
    gone = EventType.DELETED
    assert looked_at(make.job("my-js-worker-0"), None, type=gone) == ["my", "my-js"]
    assert looked_at(make.job("my-js-worker"), None, type=gone) == []
    assert looked_at(make.job("job-0"), None, type=gone) == []
    assert looked_at(make.job("my-js-worker-0"), None, type=EventType.ADDED) == []
