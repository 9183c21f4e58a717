"""Single pods: the webhook, their Workload, and their end."""

from typing import Any

import pytest

import make
from batchyard.admission_plugins.built_in import ALL_QUEUED_JOBS, ManagedJobs
from batchyard.api import scheme, well_known
from batchyard.api.errors import Forbidden
from batchyard.api.meta import Obj, annotation, controller_reference, key_of, label, parse_selector, with_metadata
from batchyard.api.views import queued_pods
from batchyard.jobs.pod.admission import queue_pod
from batchyard.scheduling.decisions import KueueVersion, decision_rules
from batchyard.scheduling.workload import evictions, lifecycle
from stage import condition_state
from unit.jobs.pod.pods import POD, PodStage, in_phase, pod, queued

JOB = with_metadata(make.job(), uid="uid-job")


def webhook(obj: Obj, *objects: Obj, **settings: Any) -> Obj:
    """The pod as the webhook completes it, with these other objects."""
    known = {key_of(each): each for each in objects}
    return queue_pod(obj, known.get, ManagedJobs(**settings))


def gates(obj: Obj) -> list[str]:
    return [each["name"] for each in obj["spec"].get("schedulingGates") or ()]


def test_pod_with_queue_gets_gates_finalizer_and_role() -> None:
    obj = webhook(pod())
    assert gates(obj) == ["kueue.x-k8s.io/admission", "kueue.x-k8s.io/topology"]
    assert obj["metadata"]["finalizers"] == ["kueue.x-k8s.io/managed"]
    assert label(obj, "kueue.x-k8s.io/managed") == "true"
    assert annotation(obj, "kueue.x-k8s.io/role-hash") == queued_pods.role_hash(obj["spec"])


def test_pod_without_queue_is_left_alone() -> None:
    obj = pod(queue=None)
    assert webhook(obj) is obj


def test_pod_without_queue_is_queued_if_jobs_need_none() -> None:
    assert label(webhook(pod(queue=None), without_queue_name=True), well_known.MANAGED) == "true"


def test_pod_gets_default_queue_and_class() -> None:
    classes = make.workload_priority_class("default", 5)
    obj = webhook(pod(queue=None), make.local_queue("default"), classes)
    assert label(obj, well_known.QUEUE_NAME) == "default"
    assert label(obj, well_known.PRIORITY_CLASS) == "default"


def test_pod_in_excluded_namespace_is_left_alone() -> None:
    selector = parse_selector({"matchLabels": {"queues": "yes"}})
    obj = pod()
    assert webhook(obj, make.namespace("team"), namespaces=selector) is obj
    assert webhook(obj, make.namespace("team", queues="yes"), namespaces=selector) is not obj


def test_pod_is_left_alone_without_the_framework() -> None:
    obj = pod()
    assert webhook(obj, kinds=(scheme.JOB,)) is obj


def test_pod_of_queued_job_is_left_alone() -> None:
    obj = with_metadata(pod(), ownerReferences=[controller_reference(JOB)])
    assert webhook(obj, JOB) is obj


def test_pod_of_job_without_queue_is_queued() -> None:
    job = with_metadata(JOB, labels={})
    obj = with_metadata(pod(), ownerReferences=[controller_reference(job)])
    assert gates(webhook(obj, job))


def test_pod_of_missing_job_is_denied() -> None:
    obj = with_metadata(pod(), ownerReferences=[controller_reference(JOB)])
    with pytest.raises(Forbidden, match=r'admission webhook "mpod.kb.io" denied the request: Job'):
        webhook(obj)


def test_pod_of_pod_in_queue_is_left_alone() -> None:
    driver = with_metadata(queued("driver"), uid="uid-driver")
    obj = with_metadata(pod("executor"), ownerReferences=[controller_reference(driver)])
    assert webhook(obj, driver) is obj


def test_pod_of_pod_in_queue_is_queued_with_suspending_parent() -> None:
    driver = with_metadata(queued("driver"), uid="uid-driver")
    labels, annotations = {well_known.MANAGED: "true"}, {well_known.SUSPENDING_PARENT: "spark-driver"}
    executor = pod("executor", labels=labels, annotations=annotations)
    executor = webhook(with_metadata(executor, ownerReferences=[controller_reference(driver)]), driver)
    assert gates(executor)
    stage = PodStage(executor)
    stage.admit()
    assert stage.gated() == []


def test_pod_with_suspending_parent_gets_no_finalizer() -> None:
    obj = webhook(pod(queue=None, annotations={well_known.SUSPENDING_PARENT: "deployment"}))
    assert gates(obj)[0] == well_known.ADMISSION_GATE
    assert "finalizers" not in obj["metadata"]


def test_webhook_keeps_own_gates_and_role() -> None:
    obj = pod(annotations={well_known.ROLE_HASH: "mine"})
    own_gate = {"name": "example.com/own"}
    gated = webhook({**obj, "spec": {**obj["spec"], "schedulingGates": [own_gate]}})
    assert gates(gated) == ["example.com/own", well_known.ADMISSION_GATE, well_known.TOPOLOGY_GATE]
    assert annotation(gated, well_known.ROLE_HASH) == "mine"


def test_webhook_copies_index_of_pod() -> None:
    annotations = {well_known.POD_GROUP_INDEX_LABEL: "apps.kubernetes.io/pod-index"}
    obj = webhook(pod(labels={"apps.kubernetes.io/pod-index": "3"}, annotations=annotations))
    assert label(obj, "kueue.x-k8s.io/pod-group-pod-index") == "3"


def test_workload_of_pod() -> None:
    workload = PodStage(queued()).only_workload()
    assert workload["metadata"]["name"].startswith("pod-pod-")
    (owner,) = workload["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["controller"]) == ("Pod", True)
    (pod_set,) = workload["spec"]["podSets"]
    assert (pod_set["name"], pod_set["count"]) == ("main", 1)


def test_admitted_pod_is_ungated_with_scheduling_fields() -> None:
    stage = PodStage(queued())
    stage.admit()
    obj = stage.get(POD, "pod")
    assert gates(obj) == []
    assert obj["spec"]["nodeSelector"] == {"zone": "a"}
    assert {"key": "spot", "operator": "Exists"} in obj["spec"]["tolerations"]
    assert label(obj, well_known.CLUSTER_QUEUE) == "cq"
    assert stage.reasons() == ["CreatedWorkload", "Started"]


def test_pod_without_admission_is_deleted_if_it_loses_its_gate() -> None:
    stage = PodStage(queued())
    obj = stage.get(POD, "pod")
    stage.put(in_phase({**obj, "spec": {"containers": obj["spec"]["containers"]}}, "Running"))
    stopped = stage.get(POD, "pod")
    assert "deletionTimestamp" in stopped["metadata"]
    assert condition_state_reason(stopped) == "NotAdmitted"
    assert stage.events[-1][2:4] == ("Stopped", "Not admitted by cluster queue")


def condition_state_reason(obj: Obj) -> str:
    conditions = obj["status"]["conditions"]
    return str(next(each["reason"] for each in conditions if each["type"] == "TerminationTarget"))


@pytest.mark.parametrize(("phase", "reason"), [("Succeeded", "Succeeded"), ("Failed", "Failed")])
def test_ended_pod_finishes_workload(phase: str, reason: str) -> None:
    stage = PodStage(queued())
    stage.admit()
    stage.set_phase("pod", phase, message="the end")
    assert condition_state(stage.only_workload(), "Finished") == ("True", reason, "the end")
    assert stage.finalized() == ["pod"]


def test_evicted_pod_is_deleted_and_not_requeued() -> None:
    stage = PodStage(queued())
    stage.admit()
    stage.set_phase("pod", "Running")
    stage.evict()
    assert condition_state_reason(stage.get(POD, "pod")) == "WorkloadEvictedDueToPreempted"
    assert "deletionTimestamp" in stage.get(POD, "pod")["metadata"]
    assert stage.finalized() == ["pod"]


@pytest.mark.parametrize("version", list(KueueVersion))
def test_quota_of_evicted_pod_is_released_while_it_terminates(version: KueueVersion) -> None:
    stage = PodStage(queued(), rules=decision_rules(version, {}))
    stage.admit()
    stage.set_phase("pod", "Running")
    stage.evict()
    workload = stage.only_workload()
    assert "deletionTimestamp" in stage.get(POD, "pod")["metadata"]
    assert not lifecycle.has_quota_reservation(workload)
    assert condition_state(workload, "Requeued")[:2] == ("False", "Preempted")


def test_workload_of_pod_that_is_gone_is_finished() -> None:
    stage = PodStage(queued())
    stage.admit()
    stage.set_phase("pod", "Running")
    stage.delete(POD, "pod")
    message = "The workload's owner no longer exists"
    assert condition_state(stage.only_workload(), "Finished") == ("True", "OwnerNotFound", message)


def test_single_pod_workload_is_not_requeued() -> None:
    stage = PodStage(queued())
    stage.admit()
    workload = evictions.evict(stage.only_workload(), reason="Preempted", message="m", now=stage.kernel.now())
    released = evictions.release_after_eviction(workload, stage.kernel.now(), may_requeue=False)
    assert condition_state(released, "Requeued")[0] == "False"


def test_deleted_gated_pod_disappears_with_its_workload() -> None:
    stage = PodStage(queued())
    stage.delete(POD, "pod")
    assert stage.pods() == {}
    assert stage.workloads() == []


def test_deleted_workload_deletes_pod() -> None:
    stage = PodStage(queued())
    stage.admit()
    stage.set_phase("pod", "Running")
    stage.delete(scheme.WORKLOAD, stage.only_workload()["metadata"]["name"])
    assert "deletionTimestamp" in stage.get(POD, "pod")["metadata"]


def test_other_finalizers_stay() -> None:
    obj = queued()
    stage = PodStage(with_metadata(obj, finalizers=["example.com/own", *obj["metadata"]["finalizers"]]))
    stage.delete(POD, "pod")
    assert stage.get(POD, "pod")["metadata"]["finalizers"] == ["example.com/own"]


def test_pod_without_managed_label_is_still_managed_while_it_has_the_finalizer() -> None:
    stage = PodStage(queued())
    obj = stage.get(POD, "pod")
    stage.put(with_metadata(obj, labels={well_known.QUEUE_NAME: "lq"}))
    stage.admit()
    stage.set_phase("pod", "Succeeded")
    assert lifecycle.is_finished(stage.only_workload())


def test_unlabeled_pod_gets_no_workload() -> None:
    assert PodStage(pod()).workloads() == []


def test_queue_of_waiting_pod_may_change() -> None:
    stage = PodStage(queued())
    obj = stage.get(POD, "pod")
    stage.put(with_metadata(obj, labels={**obj["metadata"]["labels"], well_known.QUEUE_NAME: "other"}))
    assert stage.only_workload()["spec"]["queueName"] == "other"


def test_prebuilt_workload_is_adopted() -> None:
    obj = queued(labels={well_known.PREBUILT_WORKLOAD: "wl"})
    template = {"spec": obj["spec"]}
    stage = PodStage(make.workload("wl", pod_sets=[make.pod_set(template=template)]), obj)
    assert stage.only_workload()["metadata"]["ownerReferences"][0]["name"] == "pod"
    stage.admit()
    assert stage.gated() == []


def test_missing_priority_class_is_reported() -> None:
    stage = PodStage(queued(labels={well_known.PRIORITY_CLASS: "high"}))
    assert stage.workloads() == []
    assert stage.events[-1].reason == "WorkloadPriorityClassNotFound"
    stage.put(make.workload_priority_class("high", 7))
    assert stage.only_workload()["spec"]["priority"] == 7
    assert ALL_QUEUED_JOBS.names(stage.get(POD, "pod"))


def test_role_hash_equals_that_of_kueue() -> None:
    container = {"name": "c", "resources": {"requests": {"cpu": "1000m"}}}
    assert queued_pods.role_hash({"containers": [container]}) == queued_pods.role_hash(
        {"containers": [{**container, "image": "x", "resources": {"requests": {"cpu": "1"}}}]}
    )
    assert queued_pods.role_hash({"containers": [{"name": "c"}]}) == "7aa6c7b8"
