"""Groups of pods: their Workload, their members, replacement and completion."""

from typing import Any

import pytest

import make
from batchyard.api import scheme, well_known
from batchyard.api.meta import Obj, annotation, controller_reference, with_metadata
from batchyard.scheduling.workload import lifecycle
from stage import condition_state
from unit.jobs.pod.pods import POD, PodStage, in_phase, member, queued

FAST = {well_known.POD_GROUP_FAST_ADMISSION: "true"}
UNRETRIABLE = {well_known.RETRIABLE_IN_GROUP: "false"}
IN_USE = "kueue.x-k8s.io/resource-in-use"
SERVING = {well_known.POD_GROUP_SERVING: "true"}


def running_group(count: int = 2, **fields: Any) -> PodStage:
    """A group whose pods run."""
    stage = PodStage(*(member(f"p{i}", count, created=i, **fields) for i in range(count)))
    stage.admit()
    for i in range(count):
        stage.set_phase(f"p{i}", "Running")
    return stage


def pod_sets(stage: PodStage) -> list[tuple[str, int]]:
    return [(each["name"], each["count"]) for each in stage.only_workload()["spec"]["podSets"]]


def test_group_gets_workload_when_all_pods_exist() -> None:
    stage = PodStage(member("a"))
    assert stage.workloads() == []
    stage.put(member("b"))
    workload = stage.only_workload()
    assert workload["metadata"]["name"] == "group"
    assert annotation(workload, well_known.IS_GROUP_WORKLOAD) == "true"
    owners = workload["metadata"]["ownerReferences"]
    assert [(each["name"], each.get("controller")) for each in owners] == [("a", None), ("b", None)]
    assert workload["spec"]["queueName"] == "lq"


def test_incomplete_group_is_reported() -> None:
    stage = PodStage(member("a"))
    assert stage.events[-1][1:4] == (
        "Warning",
        "ErrWorkloadCompose",
        "'group' group has fewer runnable pods than expected",
    )


def test_group_name_annotation_overrides_label() -> None:
    annotations = {well_known.POD_GROUP_NAME: "other"}
    stage = PodStage(member("a", annotations=annotations), member("b", annotations=annotations))
    assert stage.only_workload()["metadata"]["name"] == "other"


def test_group_has_pod_set_for_each_role() -> None:
    stage = PodStage(member("a", 3), member("b", 3, "2"), member("c", 3))
    roles = {name: annotation(each, well_known.ROLE_HASH) for name, each in stage.pods().items()}
    assert roles["a"] == roles["c"] != roles["b"]
    assert pod_sets(stage) == sorted([(roles["a"], 2), (roles["b"], 1)])


def test_too_many_roles_are_reported() -> None:
    roles = [{well_known.ROLE_HASH: f"role-{i:02d}"} for i in range(19)]
    stage = PodStage(*(member(f"p{i}", 19, annotations=role) for i, role in enumerate(roles)))
    assert stage.workloads() == []
    assert stage.events[-1].message == "pod group can't include more than 18 roles"


def test_group_of_18_roles_is_admitted() -> None:
    roles = [{well_known.ROLE_HASH: f"role-{i:02d}"} for i in range(18)]
    stage = PodStage(*(member(f"p{i}", 18, annotations=role) for i, role in enumerate(roles)))
    assert len(stage.only_workload()["spec"]["podSets"]) == 18


def test_fast_admission_needs_one_pod() -> None:
    stage = PodStage(member("a", 3, annotations=FAST))
    assert [count for _, count in pod_sets(stage)] == [3]
    stage.admit()
    assert stage.gated() == []
    stage.put(member("b", 3, annotations=FAST))
    assert stage.gated() == []
    assert len(stage.only_workload()["metadata"]["ownerReferences"]) == 2


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (member("b", queue="other"), "pods 'a' and 'b' has different queue names: lq!=other"),
        (member("b", 3), f"pods 'a' and 'b' has different '{well_known.POD_GROUP_COUNT}' values: 2!=3"),
    ],
)
def test_members_must_agree(other: Obj, message: str) -> None:
    stage = PodStage(member("a"), other)
    assert stage.workloads() == []
    assert stage.events[-1].message == message


def test_copied_labels_must_agree() -> None:
    from batchyard.jobframework.workloads import CopiedKeys  # noqa: PLC0415

    keys = CopiedKeys(labels=("team",))
    stage = PodStage(member("a", labels={"team": "x"}), member("b", labels={"team": "y"}), copied_keys=keys)
    assert stage.events[-1].message == "constructing workload: pods have different label values"
    same = PodStage(member("a", labels={"team": "x"}), member("b"), copied_keys=keys)
    assert same.only_workload()["metadata"]["labels"] == {"team": "x"}


def test_admitted_group_is_ungated_at_once() -> None:
    stage = PodStage(member("a"), member("b"))
    assert stage.gated() == ["a", "b"]
    stage.admit()
    assert stage.gated() == []
    assert {each["spec"]["nodeSelector"]["zone"] for each in stage.pods().values()} == {"a"}
    assert stage.reasons().count("Started") == 2


def test_youngest_excess_pods_are_deleted() -> None:
    stage = PodStage(member("a", created=1), member("b", created=2))
    stage.put(member("c", created=3))
    assert list(stage.pods()) == ["a", "b"]
    assert stage.events[-1][1:] == ("Normal", "ExcessPodDeleted", "Excess pod deleted", None)


def test_ungated_pods_are_kept_before_older_gated_ones() -> None:
    stage = running_group()
    stage.put(member("old", created=-5))
    assert list(stage.pods()) == ["p0", "p1"]


def test_group_finishes_when_all_pods_succeeded() -> None:
    stage = running_group()
    stage.set_phase("p0", "Succeeded")
    assert not lifecycle.is_finished(stage.only_workload())
    assert [each["count"] for each in stage.only_workload()["status"]["reclaimablePods"]] == [1]
    stage.set_phase("p1", "Succeeded")
    assert condition_state(stage.only_workload(), "Finished") == ("True", "Succeeded", "Pods succeeded: 2/2.")
    assert stage.finalized() == ["p0", "p1"]
    assert "finalizers" not in stage.only_workload()["metadata"]


def test_failed_pod_waits_for_replacement() -> None:
    stage = running_group()
    stage.set_phase("p0", "Failed")
    waiting = ("True", "PodsFailed", "Some Failed pods need replacement")
    assert condition_state(stage.only_workload(), "WaitingForReplacementPods") == waiting
    assert stage.finalized() == []
    stage.put(member("new", created=9))
    assert stage.gated() == []
    assert stage.finalized() == ["p0"]
    replaced = ("False", "PodsReady", "No pods need replacement")
    assert condition_state(stage.only_workload(), "WaitingForReplacementPods") == replaced


def test_unretriable_group_ends_when_no_pod_runs() -> None:
    stage = running_group(annotations=UNRETRIABLE)
    stage.set_phase("p0", "Failed")
    assert not lifecycle.is_finished(stage.only_workload())
    stage.set_phase("p1", "Succeeded")
    assert condition_state(stage.only_workload(), "Finished") == ("True", "Succeeded", "Pods succeeded: 1/2.")


def test_serving_group_never_finishes() -> None:
    stage = running_group(annotations=SERVING)
    stage.set_phase("p0", "Succeeded")
    stage.set_phase("p1", "Succeeded")
    assert not lifecycle.is_finished(stage.only_workload())
    assert "reclaimablePods" not in stage.only_workload()["status"]


def test_evicted_group_loses_pods_and_then_quota() -> None:
    stage = running_group()
    stage.evict()
    assert all("deletionTimestamp" in each["metadata"] for each in stage.pods().values())
    target = next(c for c in stage.get(POD, "p0")["status"]["conditions"] if c["type"] == "TerminationTarget")
    assert (target["status"], target["reason"]) == ("True", "WorkloadEvictedDueToPreempted")
    assert lifecycle.has_quota_reservation(stage.only_workload())
    for name in ("p0", "p1"):
        stage.set_phase(name, "Failed")
    assert not lifecycle.has_quota_reservation(stage.only_workload())
    waiting = condition_state(stage.only_workload(), "WaitingForReplacementPods")
    assert waiting == ("True", "Preempted", "Preempted to accommodate a workload")


def test_evicted_group_waits_gated_with_new_pods() -> None:
    stage = running_group()
    stage.evict()
    for name in ("p0", "p1"):
        stage.set_phase(name, "Failed")
    stage.put(member("q0", created=8), member("q1", created=9))
    assert stage.gated() == ["q0", "q1"]
    assert condition_state(stage.only_workload(), "WaitingForReplacementPods")[0] == "False"


def test_deleted_workload_deletes_pods() -> None:
    stage = running_group()
    stage.set_phase("p0", "Succeeded")
    stage.delete(scheme.WORKLOAD, "group")
    assert stage.finalized() == list(stage.pods())
    assert stage.workloads() == []


def test_workload_is_released_when_all_pods_are_gone() -> None:
    stage = PodStage(member("a"), member("b"))
    for name in ("a", "b"):
        stage.put(with_metadata(stage.get(POD, name), finalizers=None))
        stage.delete(POD, name)
    assert all("finalizers" not in each["metadata"] for each in stage.workloads())


def test_foreign_workload_of_same_name_is_kept() -> None:
    stage = PodStage(make.workload("group"), member("a"), member("b"))
    assert stage.events[-1].reason == "WorkloadNameConflict"
    assert stage.events[-1].message == (
        'A Workload named "group" already exists but is not a pod group workload; this pod group cannot be admitted'
    )
    assert "ownerReferences" not in stage.only_workload()["metadata"]
    stage.delete(scheme.WORKLOAD, "group")
    assert annotation(stage.only_workload(), well_known.IS_GROUP_WORKLOAD) == "true"


def test_deleted_pods_of_refused_group_are_released() -> None:
    stage = PodStage(make.workload("group"), member("a"), member("b"))
    stage.delete(POD, "a")
    assert list(stage.pods()) == ["b"]


def test_deleted_gated_pod_of_incomplete_group_is_released() -> None:
    stage = PodStage(member("a"))
    stage.delete(POD, "a")
    assert stage.pods() == {}


def test_prebuilt_workload_gets_all_pods_as_owners() -> None:
    labels = {well_known.PREBUILT_WORKLOAD: "group"}
    pods = [member(name, labels=labels) for name in ("a", "b")]
    role = annotation(pods[0], well_known.ROLE_HASH) or ""
    stage = PodStage(make.workload("group", pod_sets=[make.pod_set(role, count=2)]), *pods)
    assert [each["name"] for each in stage.only_workload()["metadata"]["ownerReferences"]] == ["a", "b"]
    stage.admit(**{role: 2})
    assert stage.gated() == []


def test_prebuilt_workload_with_other_roles_is_out_of_sync() -> None:
    labels = {well_known.PREBUILT_WORKLOAD: "group"}
    stage = PodStage(make.workload("group"), member("a", labels=labels), member("b", labels=labels))
    message = "The prebuilt workload is out of sync with its user job"
    assert condition_state(stage.only_workload(), "Finished") == ("True", "OutOfSync", message)


def test_running_group_without_workload_is_deleted() -> None:
    pods = [in_phase({**member(name), "spec": {"containers": []}}, "Running") for name in ("a", "b")]
    stage = PodStage(*pods)
    assert all("deletionTimestamp" in each["metadata"] for each in stage.pods().values())


def test_workload_follows_maximum_execution_time() -> None:
    stage = PodStage(member("a"), member("b"))
    for name in ("a", "b"):
        obj = stage.get(POD, name)
        labels = {**obj["metadata"]["labels"], well_known.MAX_EXEC_TIME: "60"}
        stage.put(with_metadata(obj, labels=labels))
    assert stage.only_workload()["spec"]["maximumExecutionTimeSeconds"] == 60


def test_group_survives_restart_of_controller() -> None:
    stage = running_group()
    from batchyard.jobs.pod.controller import PodReconciler  # noqa: PLC0415

    stage.replace_controllers(PodReconciler())
    stage.set_phase("p0", "Succeeded")
    stage.set_phase("p1", "Succeeded")
    assert lifecycle.is_finished(stage.only_workload())


def test_pod_that_changes_group_is_counted_in_new_group() -> None:
    stage = PodStage(member("a"), member("b"))
    obj = stage.get(POD, "b")
    stage.put(with_metadata(obj, labels={**obj["metadata"]["labels"], well_known.POD_GROUP_NAME: "other"}))
    stage.put(member("c"))
    stage.admit()
    assert stage.gated() == ["b"]


def test_single_pod_beside_group_has_own_workload() -> None:
    stage = PodStage(member("a"), member("b"), queued("alone"))
    assert len(stage.workloads()) == 2


def test_prebuilt_workload_is_released_when_all_pods_are_gone() -> None:
    labels = {well_known.PREBUILT_WORKLOAD: "group"}
    pods = [member(name, labels=labels) for name in ("a", "b")]
    role = annotation(pods[0], well_known.ROLE_HASH) or ""
    prebuilt = with_metadata(make.workload("group", pod_sets=[make.pod_set(role, count=2)]), finalizers=[IN_USE])
    stage = PodStage(prebuilt, *pods)
    for name in ("a", "b"):
        stage.put(with_metadata(stage.get(POD, name), finalizers=None))
        stage.delete(POD, name)
    assert all("finalizers" not in each["metadata"] for each in stage.workloads())


def test_workload_of_another_job_is_not_released_when_group_has_no_pods() -> None:
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "job", "uid": "u", "controller": True}
    foreign = with_metadata(make.workload("group"), finalizers=[IN_USE], ownerReferences=[owner])
    stage = PodStage(foreign, member("a"))
    stage.delete(POD, "a")
    assert stage.pods() == {}
    assert stage.only_workload()["metadata"]["finalizers"] == [IN_USE]


@pytest.mark.parametrize(
    ("index", "problem"),
    [
        ("2", "validation error: value should be less than 2"),
        ("-1", 'invalid unsigned integer: strconv.ParseUint: parsing "-1": invalid syntax'),
    ],
)
def test_index_of_pod_is_below_total_count(index: str, problem: str) -> None:
    stage = PodStage(member("a", labels={well_known.POD_GROUP_INDEX: index}), member("b"))
    assert stage.workloads() == []
    assert stage.events[-1].message == f'incorrect label value "{index}" for Pod "team/a": {problem}'


def test_total_count_of_other_member_must_be_a_number() -> None:
    stage = PodStage(member("a"), member("b", annotations={well_known.POD_GROUP_COUNT: "x"}))
    message = f"failed to extract '{well_known.POD_GROUP_COUNT}' annotation from the pod 'b'"
    assert stage.events[-1].message == f'{message}: strconv.Atoi: parsing "x": invalid syntax'


def with_queue(obj: Obj, queue: str) -> Obj:
    return with_metadata(obj, labels={**obj["metadata"]["labels"], well_known.QUEUE_NAME: queue})


@pytest.mark.parametrize(("annotations", "queue"), [({}, "other"), (SERVING, "lq")])
def test_serving_group_keeps_queue_name(annotations: dict[str, str], queue: str) -> None:
    stage = PodStage(member("a", annotations=annotations), member("b", annotations=annotations))
    for name in ("a", "b"):
        stage.put(with_queue(stage.get(POD, name), "other"))
    assert stage.only_workload()["spec"]["queueName"] == queue


def test_group_with_suspending_parent_is_queued_beside_its_owner() -> None:
    deployment = with_metadata(make.job(), uid="uid-job")
    annotations = {well_known.SUSPENDING_PARENT: "deployment"}
    owners = [controller_reference(deployment)]
    labels = {well_known.MANAGED: "true"}
    pods = [member(name, annotations=annotations, labels=labels) for name in ("a", "b")]
    stage = PodStage(deployment, *(with_metadata(each, ownerReferences=owners) for each in pods))
    assert stage.only_workload()["metadata"]["name"] == "group"
    stage.admit()
    assert stage.gated() == []
