"""Reasons why pods and groups of pods in queues have no Workload, or lack pods."""

import make
from batchyard.api import well_known
from batchyard.api.meta import with_metadata
from batchyard.explain.queued_pods import missing_workload_reason, replacement_text, workload_of_pod
from unit.jobs.pod.pods import POD, PodStage, member, pod, queued

GATED = "; it waits with the gate kueue.x-k8s.io/admission"


def reason(stage: PodStage, name: str = "a") -> str:
    """Why a pod has no Workload, without the gate that it waits with."""
    text = missing_workload_reason(stage.get(POD, name), stage.client)
    assert text.endswith(GATED)
    return text.removesuffix(GATED)


def test_incomplete_group_lists_its_pods_and_missing_indexes() -> None:
    index = well_known.POD_GROUP_INDEX
    stage = PodStage(member("a", 4, labels={index: "0"}), member("b", 4, created=7, labels={index: "2"}))
    since = make.stamp(7)
    text = "group group has 2 of 4 pods (a, b): 2 are missing, with index 1, 3"
    assert reason(stage) == f"{text}; the last pod was created at {since}"


def test_incomplete_group_lists_pods_that_are_deleted() -> None:
    stage = PodStage(member("a", 3), with_metadata(member("b", 3), finalizers=["example.com/own"]))
    stage.delete(POD, "b")
    text = reason(stage)
    assert text.startswith("group group has 1 of 3 pods (a): 2 are missing; ")
    assert text.endswith("; b failed or is being deleted")


def test_group_with_two_queues_is_explained() -> None:
    stage = PodStage(member("a"), member("b", queue="other"))
    text = "group group has no Workload: pods 'a' and 'b' has different queue names: lq!=other"
    assert reason(stage) == text


def test_group_with_name_of_another_workload_is_explained() -> None:
    stage = PodStage(make.workload("group"), member("a"), member("b"))
    assert workload_of_pod(stage.get(POD, "a"), stage.client) is None
    assert reason(stage) == "group group has no Workload: another job has a Workload of this name; rename the group"


def test_missing_priority_class_is_explained() -> None:
    stage = PodStage(queued("a", labels={well_known.PRIORITY_CLASS: "high"}))
    assert reason(stage) == "the pod has no Workload: WorkloadPriorityClass high does not exist; create it"


def test_group_that_waits_for_replacement_lists_lacking_roles() -> None:
    stage = PodStage(member("a"), member("b"))
    stage.admit()
    for name in ("a", "b"):
        stage.set_phase(name, "Running")
    stage.set_phase("a", "Failed")
    workload, members = stage.only_workload(), list(stage.pods().values())
    role = workload["spec"]["podSets"][0]["name"]
    assert replacement_text(workload, members) == (
        f"the group lacks pods (1 of role {role}); create pods that replace them"
    )


def test_workload_of_single_pod_is_found_by_owner() -> None:
    stage = PodStage(queued("a"), pod("free", queue=None))
    assert workload_of_pod(stage.get(POD, "a"), stage.client) == stage.only_workload()
    assert workload_of_pod(stage.get(POD, "free"), stage.client) is None
