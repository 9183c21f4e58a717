"""The job reconciler creates, updates, follows and deletes the Workloads of Jobs."""

from collections.abc import Mapping
from typing import Any

import pytest

import make
from batchyard.admission_plugins.built_in import ManagedJobs
from batchyard.api import scheme
from batchyard.api.meta import Obj, parse_selector, with_metadata, with_path
from batchyard.interfaces.client import Create, Update, WriteResult
from batchyard.jobframework.reconciler import JobReconciler
from batchyard.jobframework.workloads import CopiedKeys, workload_name
from batchyard.jobs.job.integration import JobIntegration
from batchyard.scheduling.workload import evictions, lifecycle
from stage import Stage, condition_state


def job_stage(*objects: Obj) -> Stage:
    stage = Stage(JobReconciler(JobIntegration(), copied_keys=CopiedKeys(("team",), ("cost/center",))))
    stage.put(make.flavor(labels={"zone": "a"}, tolerations=[{"key": "spot", "operator": "Exists"}]), *objects)
    return stage


def job(stage: Stage, name: str = "job") -> Mapping[str, Any]:
    return stage.get(scheme.JOB, name)


def admit(stage: Stage, count: int = 1) -> None:
    stage.put(
        lifecycle.reserve_quota(stage.only_workload(), make.admission(main=count), stage.kernel.now(), admitted=True)
    )


def evict(stage: Stage) -> None:
    stage.put(evictions.evict(stage.only_workload(), reason="Preempted", message="make room", now=stage.kernel.now()))


def set_status(stage: Stage, **status: Any) -> None:
    stage.put({**job(stage), "status": status})


RUNNING = {"active": 1, "ready": 1, "startTime": make.stamp()}


def test_workload_names_match_kueue() -> None:
    assert workload_name("Job", "batch", "train", "6c9f3a8e") == "job-train-97443"
    assert workload_name("JobSet", "jobset.x-k8s.io", "js", "u-1") == "jobset-js-1cf5b"
    long = workload_name("Job", "batch", "x" * 300, "uid")
    assert len(long) == 253
    assert workload_name("Job", "batch", "a", "1") != workload_name("Job", "batch", "a", "2")


def test_jobs_in_unselected_namespaces_are_ignored() -> None:
    managed_jobs = ManagedJobs(parse_selector({"matchLabels": {"batch": "yes"}}))
    controller = JobReconciler(JobIntegration(), managed_jobs=managed_jobs)
    stage = Stage(controller)
    stage.put(make.namespace(), make.job())
    assert stage.workloads() == []
    stage.put(with_metadata(make.namespace(), labels={"batch": "yes"}))
    stage.put(make.job("next"))
    assert stage.only_workload()["metadata"]["name"].startswith("job-next-")


def test_admitted_job_starts_after_its_flavor_is_created() -> None:
    stage = Stage(JobReconciler(JobIntegration()))
    stage.put(make.job())
    admit(stage)
    assert job(stage)["spec"]["suspend"] is True
    stage.put(make.flavor(labels={"zone": "a"}))
    assert job(stage)["spec"]["suspend"] is False
    assert job(stage)["spec"]["template"]["spec"]["nodeSelector"] == {"zone": "a"}


def test_managed_job_gets_workload() -> None:
    stage = job_stage(make.job(labels={"team": "blue", "other": "x", "kueue.x-k8s.io/max-exec-time-seconds": "30"}))
    workload = stage.only_workload()
    metadata, spec = workload["metadata"], workload["spec"]
    assert metadata["name"] == workload_name("Job", "batch", "job", "uid-job")
    assert metadata["labels"] == {"team": "blue", "kueue.x-k8s.io/job-uid": "uid-job"}
    assert metadata["finalizers"] == ["kueue.x-k8s.io/resource-in-use"]
    (owner,) = metadata["ownerReferences"]
    assert (owner["kind"], owner["uid"], owner["controller"], owner["blockOwnerDeletion"]) == (
        "Job",
        "uid-job",
        True,
        True,
    )
    assert (spec["queueName"], spec["priority"], spec["maximumExecutionTimeSeconds"]) == ("lq", 0, 30)
    assert [e.message for e in stage.events] == [f"Created Workload: team/{metadata['name']}"]


def test_listed_annotations_of_job_are_copied_to_its_workload() -> None:
    stage = job_stage(with_metadata(make.job(), annotations={"cost/center": "a", "other": "b"}))
    assert stage.only_workload()["metadata"]["annotations"] == {"cost/center": "a"}


def test_job_without_queue_is_ignored() -> None:
    stage = job_stage(make.job(queue=None, suspend=False))
    assert stage.workloads() == []
    assert job(stage)["spec"]["suspend"] is False


def test_pod_set_count_is_limited_by_completions() -> None:
    (pod_set,) = JobIntegration().pod_sets(make.job(parallelism=5, completions=3))
    assert (pod_set["name"], pod_set["count"]) == ("main", 3)
    assert pod_set["topologyRequest"] == {"podIndexLabel": "batch.kubernetes.io/job-completion-index"}


def test_pod_set_template_omits_labels_of_job_controller() -> None:
    labels = {"job-name": "j", "controller-uid": "u", "batch.kubernetes.io/job-name": "j", "mine": "m"}
    (pod_set,) = JobIntegration().pod_sets(make.job(template=make.pod_template(labels=labels)))
    assert pod_set["template"]["metadata"]["labels"] == {"batch.kubernetes.io/job-name": "j", "mine": "m"}


def test_admitted_job_gets_node_selector_and_tolerations_of_flavor() -> None:
    stage = job_stage(make.job())
    admit(stage)
    spec = job(stage)["spec"]
    template = spec["template"]
    assert spec["suspend"] is False
    assert template["spec"]["nodeSelector"] == {"zone": "a"}
    assert template["spec"]["tolerations"] == [{"key": "spot", "operator": "Exists"}]
    assert template["metadata"]["labels"] == {
        "kueue.x-k8s.io/podset": "main",
        "kueue.x-k8s.io/local-queue-name": "lq",
        "kueue.x-k8s.io/cluster-queue-name": "cq",
    }
    assert template["metadata"]["annotations"] == {"kueue.x-k8s.io/workload": stage.only_workload()["metadata"]["name"]}
    assert [(e.reason, e.message) for e in stage.events[1:]] == [("Started", "Admitted by clusterQueue cq")]


def test_evicted_job_releases_quota_after_pods_are_gone() -> None:
    stage = job_stage(make.job())
    original = job(stage)["spec"]
    admit(stage)
    set_status(stage, **RUNNING)
    before = job(stage)["spec"]
    evict(stage)
    assert job(stage)["spec"] == {**before, "suspend": True}, "its template cannot change while its pods run"
    assert lifecycle.has_quota_reservation(stage.only_workload()), "its pods still run"
    set_status(stage, startTime=make.stamp())
    assert job(stage)["spec"] == original
    assert "annotations" not in job(stage)["metadata"]
    assert "startTime" not in job(stage)["status"]
    assert condition_state(stage.only_workload(), "Requeued") == ("True", "Preempted", "make room")
    assert not lifecycle.has_quota_reservation(stage.only_workload())
    assert [(e.reason, e.message) for e in stage.events[2:]] == [("Stopped", "make room")]


def test_unsuspended_job_is_suspended_and_gets_workload() -> None:
    stage = job_stage(make.job(suspend=False))
    assert job(stage)["spec"]["suspend"] is True
    assert stage.reasons() == ["Stopped", "CreatedWorkload"]
    assert stage.events[0].message == "Missing Workload; unable to restore pod templates"


def test_manually_resumed_job_is_suspended() -> None:
    stage = job_stage(make.job())
    stage.put(with_path(job(stage), ("spec", "suspend"), False))
    assert job(stage)["spec"]["suspend"] is True
    assert stage.events[-1].message == "Not admitted by cluster queue"


def test_job_whose_workload_is_admitted_during_a_stop_stops_and_then_starts() -> None:
    stage = job_stage(make.job())
    stage.put({**with_path(job(stage), ("spec", "suspend"), False), "status": RUNNING})
    assert job(stage)["spec"]["suspend"] is True
    admit(stage)
    assert job(stage)["spec"]["suspend"] is True, "its pods are still stopping"
    set_status(stage, startTime=make.stamp())
    assert job(stage)["spec"]["suspend"] is False
    assert job(stage)["spec"]["template"]["spec"]["nodeSelector"] == {"zone": "a"}
    assert [event.reason for event in stage.events] == ["CreatedWorkload", "Stopped", "Started"]


def test_partial_admission_sets_and_restores_parallelism() -> None:
    annotations = {
        "kueue.x-k8s.io/job-min-parallelism": "2",
        "kueue.x-k8s.io/job-completions-equal-parallelism": "true",
    }
    stage = job_stage(make.job(annotations=annotations, parallelism=4, completions=4))
    assert stage.only_workload()["spec"]["podSets"][0]["minCount"] == 2
    admit(stage, count=3)
    assert (job(stage)["spec"]["parallelism"], job(stage)["spec"]["completions"]) == (3, 3)
    assert stage.reasons() == ["CreatedWorkload", "Started"], "it still matches its Workload"
    evict(stage)
    assert (job(stage)["spec"]["parallelism"], job(stage)["spec"]["completions"]) == (4, 4)


@pytest.mark.parametrize(("kind", "reason"), [("Complete", "Succeeded"), ("Failed", "Failed")])
def test_finished_job_finishes_its_workload(kind: str, reason: str) -> None:
    stage = job_stage(make.job())
    admit(stage)
    set_status(stage, succeeded=1, conditions=[make.condition(kind, message="told by the Job")])
    assert condition_state(stage.only_workload(), "Finished") == ("True", reason, "told by the Job")
    assert "finalizers" not in stage.only_workload()["metadata"]
    name = stage.only_workload()["metadata"]["name"]
    assert stage.events[-1].message == f"Workload 'team/{name}' is declared finished"


def test_succeeded_pods_are_reclaimable() -> None:
    stage = job_stage(make.job(parallelism=3, completions=5))
    admit(stage, count=3)
    set_status(stage, active=1, succeeded=3, startTime=make.stamp())
    assert stage.only_workload()["status"]["reclaimablePods"] == [{"name": "main", "count": 1}]


@pytest.mark.parametrize(
    ("status", "reclaimable"),
    [
        ({"completedIndexes": "0-1"}, 0),
        ({"completedIndexes": "0-2,4"}, 2),
        ({"completedIndexes": f"0-2,4,x,\u0663,5-3,{'9' * 5000}"}, 2),
        ({"completedIndexes": "0-1", "failedIndexes": "1-3"}, 2),
        ({"completedIndexes": "0-4,9", "succeeded": 1}, 3),
        ({"succeeded": 5}, 0),
    ],
)
def test_reclaimable_pods_of_indexed_job_count_finished_indexes(status: Obj, reclaimable: int) -> None:
    indexed = make.job(parallelism=3, completions=5, completionMode="Indexed")
    pods = JobIntegration().reclaimable_pods({**indexed, "status": status})
    assert pods == ([{"name": "main", "count": reclaimable}] if reclaimable else [])


def test_changed_pending_job_updates_its_workload() -> None:
    stage = job_stage(make.job())
    name = stage.only_workload()["metadata"]["name"]
    stage.put(with_path(job(stage), ("spec", "template"), make.pod_template({"cpu": "7"})))
    requests = stage.only_workload()["spec"]["podSets"][0]["template"]["spec"]["containers"][0]["resources"]["requests"]
    assert requests == {"cpu": "7"}
    assert stage.events[-1].message == f"Updated not matching Workload for suspended job: team/{name}"


def test_changed_pending_job_keeps_workload_inactive() -> None:
    stage = job_stage(make.job())
    stage.put(with_path(stage.only_workload(), ("spec", "active"), False))
    stage.put(with_path(job(stage), ("spec", "parallelism"), 3), with_path(job(stage), ("spec", "completions"), 3))
    assert stage.only_workload()["spec"]["active"] is False


def test_changed_running_job_is_suspended_and_gets_new_workload() -> None:
    stage = job_stage(make.job(parallelism=2, completions=2))
    admit(stage, count=2)
    set_status(stage, **RUNNING)
    stage.put(with_path(job(stage), ("spec", "parallelism"), 1))
    assert job(stage)["spec"]["suspend"] is True
    assert stage.only_workload()["spec"]["podSets"][0]["count"] == 2, "it is kept until its pods are gone"
    set_status(stage)
    assert stage.only_workload()["spec"]["podSets"][0]["count"] == 1
    assert stage.reasons()[2:] == ["Stopped", "DeletedWorkload", "CreatedWorkload"]


def test_pending_job_moves_to_another_queue() -> None:
    stage = job_stage(make.job())
    stage.put(with_path(job(stage), ("metadata", "labels", "kueue.x-k8s.io/queue-name"), "other"))
    assert stage.only_workload()["spec"]["queueName"] == "other"


def test_admission_gate_is_copied_to_workload() -> None:
    gate = "kueue.x-k8s.io/admission-gated-by"
    stage = job_stage(make.job(annotations={gate: "me"}))
    assert stage.only_workload()["metadata"]["annotations"] == {gate: "me"}
    stage.put(with_path(job(stage), ("metadata", "annotations"), None))
    assert gate not in (stage.only_workload()["metadata"].get("annotations") or {})
    assert stage.events[-1].message == 'Updated workload AdmissionGatedBy to ""'


def test_annotations_that_set_the_cost_of_a_restart_are_copied_to_workload() -> None:
    costs = {"batchyard.dev/checkpoint-every": "10m", "batchyard.dev/restart-time": "90s"}
    stage = job_stage(make.job(annotations={**costs, "batchyard.dev/runtime": "1h"}))
    assert stage.only_workload()["metadata"]["annotations"] == costs


def test_deleted_job_removes_its_workload() -> None:
    stage = job_stage(make.job())
    stage.delete(scheme.JOB, "job")
    assert stage.workloads() == []


def test_job_of_deleted_workload_is_suspended_and_gets_new_workload() -> None:
    stage = job_stage(make.job())
    admit(stage)
    stage.delete(scheme.WORKLOAD, stage.only_workload()["metadata"]["name"])
    assert job(stage)["spec"]["suspend"] is True
    assert not lifecycle.has_quota_reservation(stage.only_workload())
    assert ("Stopped", "Workload is deleted") in [(e.reason, e.message) for e in stage.events]


def test_template_that_conflicts_with_flavor_fails_workload() -> None:
    stage = job_stage(make.job(template=make.pod_template(nodeSelector={"zone": "b"})))
    admit(stage)
    conflict = (
        "invalid admission check PodSetUpdate: conflict for nodeSelector: conflict for key=zone, value1=b, value2=a"
    )
    assert condition_state(stage.only_workload(), "Finished") == ("True", "FailedToStart", conflict)


def test_admission_check_that_conflicts_with_flavor_fails_workload() -> None:
    stage = job_stage(make.job())
    update = {"name": "main", "nodeSelector": {"zone": "b"}}
    checks = [{"name": "c", "state": "Ready", "podSetUpdates": [update]}]
    stage.put(with_path(stage.only_workload(), ("status", "admissionChecks"), checks))
    admit(stage)
    conflict = "conflict for nodeSelector: conflict for key=zone, value1=a, value2=b"
    message = f'in admission check "c": invalid admission check PodSetUpdate: {conflict}'
    assert condition_state(stage.only_workload(), "Finished") == ("True", "FailedToStart", message)


def test_pod_set_updates_of_admission_checks_are_injected() -> None:
    stage = job_stage(make.job())
    update = {"name": "main", "labels": {"l": "1"}, "annotations": {"a": "2"}, "nodeSelector": {"n": "3"}}
    checks = [{"name": "c", "state": "Ready", "podSetUpdates": [update]}]
    stage.put(with_path(stage.only_workload(), ("status", "admissionChecks"), checks))
    admit(stage)
    template = job(stage)["spec"]["template"]
    assert template["metadata"]["labels"]["l"] == "1"
    assert template["metadata"]["annotations"]["a"] == "2"
    assert template["spec"]["nodeSelector"] == {"zone": "a", "n": "3"}


def test_child_job_runs_only_while_parent_workload_is_admitted() -> None:
    stage = Stage(JobReconciler(JobIntegration()))
    parent = make.jobset()
    owner = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "name": "js",
        "uid": "uid-js",
        "controller": True,
    }
    above = with_metadata(make.workload("above"), ownerReferences=[owner])
    stage.put(parent, lifecycle.reserve_quota(above, make.admission(), make.NOW, admitted=True))
    stage.put(with_metadata(make.job(queue=None, suspend=False), ownerReferences=[owner]))
    assert job(stage)["spec"]["suspend"] is False
    stage.put(lifecycle.set_pending(stage.workload("above"), "WaitingForQuota", "", make.NOW))
    assert job(stage)["spec"]["suspend"] is True
    assert [e.message for e in stage.events] == ["Kueue managed child job suspended"]
    assert len(stage.workloads()) == 1


def with_jobset_owner(obj: Obj, uid: str = "uid-js") -> Obj:
    owner = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "name": "js", "uid": uid, "controller": True}
    return with_metadata(obj, ownerReferences=[owner])


def test_job_with_missing_owner_is_ignored() -> None:
    assert job_stage(with_jobset_owner(make.job())).workloads() == []


@pytest.mark.parametrize(("parent_queue", "uid"), [(None, "uid-js"), ("lq", "another")])
def test_job_without_managed_owner_gets_workload(parent_queue: str | None, uid: str) -> None:
    stage = job_stage(make.jobset(queue=parent_queue), with_jobset_owner(make.job(), uid))
    assert stage.only_workload()["metadata"]["ownerReferences"][0]["kind"] == "Job"


def test_suspended_or_finished_child_job_is_ignored() -> None:
    ended = {
        **with_jobset_owner(make.job("ended", queue=None, suspend=False)),
        "status": {"conditions": [make.condition("Complete")]},
    }
    stage = job_stage(make.jobset(), with_jobset_owner(make.job(queue=None)), ended)
    assert stage.events == []


def test_duplicate_workload_is_deleted() -> None:
    stage = job_stage(make.job())
    twin = with_metadata(stage.only_workload(), name="twin", uid=None, creationTimestamp=make.stamp(9))
    stage.put(twin)
    assert stage.only_workload()["metadata"]["name"] != "twin"
    assert stage.events[-1].message == "Deleted not matching Workload: team/twin"


def test_changed_job_updates_its_workload_and_deletes_duplicate() -> None:
    stage = job_stage(make.job())
    name = stage.only_workload()["metadata"]["name"]
    twin = with_metadata(stage.only_workload(), name="twin", uid=None, creationTimestamp=make.stamp(9))
    changed = with_path(job(stage), ("spec", "template"), make.pod_template({"cpu": "7"}))
    results: list[WriteResult] = []
    stage.client.submit([Create(with_metadata(twin, resourceVersion=None)), Update(changed)], results.append)
    stage.settle()
    assert [each.error for each in results] == [None]
    assert stage.only_workload()["metadata"]["name"] == name
    assert stage.only_workload()["spec"]["podSets"][0]["template"] == make.pod_template({"cpu": "7"})
    assert stage.reasons() == ["CreatedWorkload", "DeletedWorkload", "UpdatedWorkload"]


def test_finished_job_gets_no_workload() -> None:
    stage = job_stage({**make.job(), "status": {"conditions": [make.condition("Complete")]}})
    assert stage.workloads() == []


def test_suspended_job_gets_workload_after_its_pods_are_gone() -> None:
    stage = job_stage({**make.job(), "status": {"active": 1}})
    assert stage.workloads() == []
    set_status(stage, active=0)
    assert stage.only_workload()["spec"]["podSets"][0]["count"] == 1


def test_workload_of_previous_job_with_same_name_is_replaced() -> None:
    stage = job_stage(make.job())
    old = stage.only_workload()
    stale = {**old["metadata"]["ownerReferences"][0], "uid": "earlier"}
    stage.put(with_metadata(old, ownerReferences=[stale]))
    assert stage.only_workload()["metadata"]["ownerReferences"][0]["uid"] == "uid-job"
    assert stage.reasons() == ["CreatedWorkload", "DeletedWorkload", "CreatedWorkload"]


def test_changed_job_waits_for_missing_priority_class() -> None:
    stage = job_stage(make.job())
    changed = with_path(job(stage), ("spec", "template"), make.pod_template({"cpu": "7"}))
    stage.put(with_path(changed, ("metadata", "labels", "kueue.x-k8s.io/priority-class"), "later"))
    assert stage.only_workload()["spec"]["podSets"][0]["template"] == make.pod_template()
    stage.put(make.workload_priority_class("later", 3))
    assert stage.only_workload()["spec"]["priority"] == 3


def test_admitted_job_waits_for_missing_flavor() -> None:
    stage = Stage(JobReconciler(JobIntegration()))
    stage.put(make.job())
    admit(stage)
    assert job(stage)["spec"]["suspend"] is True


def test_later_admission_gate_is_copied_to_workload() -> None:
    gate = "kueue.x-k8s.io/admission-gated-by"
    stage = job_stage(make.job(annotations={"provreq.kueue.x-k8s.io/a": "b", "other": "c"}))
    assert stage.only_workload()["metadata"]["annotations"] == {"provreq.kueue.x-k8s.io/a": "b"}
    stage.put(with_path(job(stage), ("metadata", "annotations", gate), "me"))
    assert stage.only_workload()["metadata"]["annotations"][gate] == "me"


def test_report_of_a_pending_workload_does_not_reconcile_its_job() -> None:
    stage = job_stage(make.job())
    reconciles = stage.runner.reconciles
    now = stage.kernel.now()
    stage.put(lifecycle.set_pending(stage.only_workload(), "WaitingForQuota", "no room", now))
    stage.put(lifecycle.set_pending(stage.only_workload(), "WaitingForQuota", "still no room", now))
    assert stage.runner.reconciles == reconciles
    admit(stage)
    assert stage.runner.reconciles > reconciles
    assert job(stage)["spec"]["suspend"] is False


def test_pod_sets_of_a_spec_are_made_once() -> None:
    integration, submitted = JobIntegration(), make.job()
    (pod_set,) = integration.pod_sets(submitted)
    assert integration.pod_sets({**submitted, "status": {"active": 1}})[0] is pod_set
    changed = with_path(submitted, ("spec", "template", "spec", "hostname"), "h")
    assert integration.pod_sets(changed)[0]["template"]["spec"]["hostname"] == "h"
