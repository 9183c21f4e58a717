"""The controller of StatefulSets in queues: their Workloads, and the labels and gates of their pods."""

from dataclasses import replace
from typing import Any

import pytest

import make
from batchyard.admission_plugins.built_in import ALL_QUEUED_JOBS, ManagedJobs
from batchyard.api import scheme, well_known
from batchyard.api.meta import Key, Obj, annotation, controller_reference, label, with_metadata, with_path
from batchyard.interfaces.client import EventType, WatchEvent
from batchyard.jobframework.workloads import workload_name
from batchyard.jobs.pod.admission import queue_pod
from batchyard.jobs.pod.controller import PodReconciler
from batchyard.jobs.serving.stateful_set import AwaitedClasses, StatefulSetReconciler
from batchyard.scheduling.decisions import DEFAULT_RULES, DecisionRules
from batchyard.scheduling.workload import evictions, lifecycle
from batchyard.scheduling.workload.adjustments import MissingPriorityClass
from stage import Stage, condition_state
from unit.jobs.pod.pods import queued
from unit.jobs.serving.services import completed, elsewhere, errors, service

KIND = scheme.STATEFUL_SET
NAME = workload_name("StatefulSet", "apps", "web", "uid-web")
LEGACY_NAME = workload_name("StatefulSet", "apps", "web", "")
GATES = well_known.ADMISSION_GATED_BY


def stateful_set(replicas: int = 3, **fields: Any) -> Obj:
    return completed(service("StatefulSet", replicas=replicas, **fields))


def pod(owner: Obj, index: int = 0, revision: str = "1") -> Obj:
    """A pod of the StatefulSet, as the webhook of pods completes it."""
    labels = {"controller-revision-hash": f"web-{revision}"}
    template = owner["spec"]["template"]
    metadata = make.metadata(
        f"web-{index}",
        labels={**template["metadata"]["labels"], **labels},
        annotations=dict(template["metadata"].get("annotations") or {}),
        ownerReferences=[controller_reference(owner)],
    )
    given = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
    return queue_pod(given, lambda _: None, ALL_QUEUED_JOBS)


class ServiceStage(Stage):
    """A world with the controllers of StatefulSets and pods in queues."""

    def __init__(
        self, *objects: Obj, managed_jobs: ManagedJobs = ALL_QUEUED_JOBS, rules: DecisionRules = DEFAULT_RULES
    ) -> None:
        super().__init__(StatefulSetReconciler(managed_jobs, rules), PodReconciler())
        self.put(make.flavor(labels={"zone": "a"}), *objects)

    def admit(self) -> None:
        workload = self.only_workload()
        admission = make.admission("cq", main=workload["spec"]["podSets"][0]["count"])
        self.put(lifecycle.reserve_quota(workload, admission, self.kernel.now(), admitted=True))

    def gates(self, index: int = 0) -> list[str]:
        gates = self.get(scheme.POD, f"web-{index}")["spec"].get("schedulingGates") or ()
        return [gate["name"] for gate in gates]


def test_stateful_set_gets_workload_of_all_pods() -> None:
    stage = ServiceStage(stateful_set(labels={well_known.MAX_EXEC_TIME: "60"}))
    workload = stage.only_workload()
    metadata, spec = workload["metadata"], workload["spec"]
    assert metadata["name"] == NAME
    assert metadata["labels"] == {well_known.JOB_UID: "uid-web"}
    assert metadata["annotations"] == {
        well_known.IS_GROUP_WORKLOAD: "true",
        "kueue.x-k8s.io/job-owner-gvk": "apps/v1, Kind=StatefulSet",
        "kueue.x-k8s.io/job-owner-name": "web",
    }
    owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "web", "uid": "uid-web"}
    assert metadata["ownerReferences"] == [owner]
    assert metadata["finalizers"] == [well_known.RESOURCE_IN_USE]
    assert (spec["queueName"], spec["maximumExecutionTimeSeconds"]) == ("lq", 60)
    (pod_set,) = spec["podSets"]
    assert (pod_set["name"], pod_set["count"]) == ("main", 3)
    assert pod_set["topologyRequest"] == {"podIndexLabel": "apps.kubernetes.io/pod-index"}
    assert stage.events[-1].message == f"Created Workload: team/{NAME}"


def test_topology_request_comes_from_template() -> None:
    path = ("spec", "template", "metadata", "annotations", well_known.REQUIRED_TOPOLOGY)
    (pod_set,) = ServiceStage(with_path(stateful_set(), path, "rack")).only_workload()["spec"]["podSets"]
    assert pod_set["topologyRequest"]["required"] == "rack"


@pytest.mark.parametrize("given", [stateful_set(0), stateful_set(queue=None), elsewhere(stateful_set())])
def test_stateful_set_without_workload(given: Obj) -> None:
    assert ServiceStage(given).workloads() == []


def test_stateful_set_without_queue_gets_workload_if_configured() -> None:
    managed_jobs = replace(ALL_QUEUED_JOBS, without_queue_name=True)
    given = completed(service("StatefulSet", queue=None), managed_jobs=managed_jobs)
    stage = ServiceStage(given, managed_jobs=managed_jobs)
    stage.put(pod(given))
    assert "queueName" not in stage.only_workload()["spec"]
    labels = stage.get(scheme.POD, "web-0")["metadata"]["labels"]
    assert labels == {"app": "web", "controller-revision-hash": "web-1", well_known.MANAGED: "true"}


def test_missing_priority_class_is_reported_and_awaited() -> None:
    stage = ServiceStage(stateful_set(labels={well_known.PRIORITY_CLASS: "high"}))
    assert stage.workloads() == []
    assert stage.events[-1].message == 'WorkloadPriorityClass "high" not found'
    stage.put(make.workload_priority_class("high", 7))
    assert stage.only_workload()["spec"]["priority"] == 7


def test_changed_stateful_set_awaits_only_its_present_class() -> None:
    classes, waiting = AwaitedClasses(), Key(KIND, "team", "web")
    keys = [Key(scheme.WORKLOAD_PRIORITY_CLASS, "", name) for name in ("low", "high")]
    for key in keys:
        classes.add(MissingPriorityClass(key), waiting)
    created = [WatchEvent(EventType.ADDED, key, make.workload_priority_class(key.name, 1), None, 1) for key in keys]
    assert [list(classes.observe(event)) for event in (*created, created[1])] == [[], [waiting], []]


def test_pods_join_group_of_workload() -> None:
    owner = stateful_set(labels={well_known.PRIORITY_CLASS: "high"})
    stage = ServiceStage(make.workload_priority_class("high", 7), owner, pod(owner))
    metadata = stage.get(scheme.POD, "web-0")["metadata"]
    labels = {well_known.QUEUE_NAME: "lq", well_known.MANAGED: "true", well_known.PRIORITY_CLASS: "high"}
    assert metadata["labels"] == {"app": "web", "controller-revision-hash": "web-1", **labels}
    assert metadata["annotations"] == {
        well_known.SUSPENDING_PARENT: "statefulset",
        well_known.PREBUILT_WORKLOAD: NAME,
        well_known.POD_GROUP_NAME: NAME,
        well_known.POD_GROUP_COUNT: "3",
        well_known.POD_GROUP_FAST_ADMISSION: "true",
        well_known.POD_GROUP_SERVING: "true",
        well_known.POD_GROUP_INDEX_LABEL: "apps.kubernetes.io/pod-index",
        well_known.ROLE_HASH: "main",
    }
    assert "finalizers" not in metadata


def test_first_pod_starts_when_workload_is_admitted() -> None:
    stage = ServiceStage(stateful_set(), pod(stateful_set()))
    assert stage.gates() == [well_known.ADMISSION_GATE, well_known.TOPOLOGY_GATE]
    stage.admit()
    assert stage.gates() == []
    stage.put(pod(stateful_set(), 1))
    assert stage.gates(1) == []
    owners = stage.only_workload()["metadata"]["ownerReferences"]
    assert [owner["kind"] for owner in owners] == ["StatefulSet", "Pod", "Pod"]
    assert not any(owner.get("controller") for owner in owners)


@pytest.mark.parametrize(
    "ended",
    [
        {**pod(stateful_set()), "status": {"phase": "Succeeded"}},
        {**pod(stateful_set()), "status": {"phase": "Failed"}},
        with_metadata(pod(stateful_set()), ownerReferences=None),
    ],
)
def test_other_pods_do_not_join(ended: Obj) -> None:
    stage = ServiceStage(stateful_set(), ended)
    assert annotation(stage.get(scheme.POD, "web-0"), well_known.POD_GROUP_NAME) is None


def test_queue_of_pods_and_workload_follows_stateful_set() -> None:
    stage = ServiceStage(stateful_set(), pod(stateful_set()))
    stage.put(stateful_set(queue="other"))
    assert label(stage.get(scheme.POD, "web-0"), well_known.QUEUE_NAME) == "other"
    assert stage.only_workload()["spec"]["queueName"] == "other"


def test_workload_is_on_hold_while_scaled_to_zero() -> None:
    stage = ServiceStage(stateful_set())
    stage.admit()
    stage.put(stateful_set(0))
    message = "StatefulSet scaled to zero; workload on hold"
    assert condition_state(stage.only_workload(), "QuotaReserved") == ("False", "OnHold", message)
    assert "admission" not in stage.only_workload()["status"]
    assert stage.only_workload()["metadata"]["ownerReferences"][0]["kind"] == "StatefulSet"
    stage.put(stateful_set(2))
    message = "Workload no longer on hold; waiting for quota reservation"
    assert condition_state(stage.only_workload(), "QuotaReserved") == ("False", "PendingEvaluation", message)
    assert stage.only_workload()["spec"]["podSets"][0]["count"] == 2


@pytest.mark.parametrize("fields", [{"active": False}, {}])
def test_workload_without_quota_is_not_put_on_hold(fields: dict[str, Any]) -> None:
    stage = ServiceStage(stateful_set())
    workload = stage.only_workload()
    stage.put({**workload, "spec": {**workload["spec"], **fields}}, stateful_set(0))
    assert not lifecycle.is_on_hold(stage.only_workload())


def test_finished_workload_keeps_its_admission() -> None:
    stage = ServiceStage(stateful_set())
    stage.admit()
    stage.put(lifecycle.finish(stage.only_workload(), "Succeeded", "done", stage.kernel.now()), stateful_set(0))
    assert lifecycle.has_quota_reservation(stage.only_workload())


def legacy_workload() -> Obj:
    given = make.workload(LEGACY_NAME, queue="lq")
    return with_metadata(given, annotations={well_known.IS_GROUP_WORKLOAD: "true"}, ownerReferences=None)


def test_workload_of_earlier_release_is_adopted() -> None:
    stage = ServiceStage(legacy_workload(), stateful_set(), pod(stateful_set()))
    metadata = stage.only_workload()["metadata"]
    assert metadata["ownerReferences"][0]["uid"] == "uid-web"
    assert metadata["annotations"]["kueue.x-k8s.io/job-owner-name"] == "web"
    assert annotation(stage.get(scheme.POD, "web-0"), well_known.POD_GROUP_NAME) == LEGACY_NAME


def test_workload_is_not_adopted_while_scaled_to_zero() -> None:
    stage = ServiceStage(legacy_workload(), stateful_set(0))
    assert stage.only_workload()["metadata"].get("ownerReferences") is None


def test_scale_up_waits_until_workload_is_gone_or_on_hold() -> None:
    workload = make.workload(NAME)
    problem = "spec.replicas: Forbidden: workload from previous scale-down is still being deleted"
    assert errors(stateful_set(3), stateful_set(0), workload) == [problem]
    held = lifecycle.set_pending(workload, lifecycle.ON_HOLD, "held", make.NOW)
    assert errors(stateful_set(3), stateful_set(0), held) == []


def test_admission_gates_are_copied_to_workload() -> None:
    stage = ServiceStage(stateful_set(annotations={GATES: "a.io/x,a.io/y"}))
    assert annotation(stage.only_workload(), GATES) == "a.io/x,a.io/y"
    stage.put(stateful_set(annotations={GATES: "a.io/x"}))
    assert annotation(stage.only_workload(), GATES) == "a.io/x"
    assert stage.events[-1].message == 'Updated workload AdmissionGatedBy to "a.io/x"'


@pytest.mark.parametrize(("of_pod", "is_released"), [("1", True), ("2", False)])
def test_gated_pod_of_old_revision_is_released_during_update(of_pod: str, is_released: bool) -> None:
    rolling = {**stateful_set(), "status": {"currentRevision": "web-1", "updateRevision": "web-2"}}
    finalized = with_metadata(pod(rolling, revision=of_pod), finalizers=[well_known.MANAGED])
    stage = ServiceStage(rolling, finalized)
    assert (stage.gates() == []) is is_released
    assert stage.get(scheme.POD, "web-0")["metadata"]["finalizers"] == [well_known.MANAGED]


def test_pod_of_old_revision_waits_for_admission_since_0_20() -> None:
    rolling = {**stateful_set(), "status": {"currentRevision": "web-1", "updateRevision": "web-2"}}
    stage = ServiceStage(rolling, pod(rolling), rules=replace(DEFAULT_RULES, is_current=True))
    assert stage.gates() != []
    stage.admit()
    assert stage.gates() == []


def test_evicted_workload_without_pods_loses_quota() -> None:
    stage = ServiceStage(stateful_set())
    stage.admit()
    stage.put(evictions.evict(stage.only_workload(), reason="Preempted", message="why", now=stage.kernel.now()))
    assert not lifecycle.has_quota_reservation(stage.only_workload())


def test_pods_without_service_are_not_queued_if_pods_are_not_enabled() -> None:
    managed_jobs = replace(ALL_QUEUED_JOBS, kinds=(scheme.STATEFUL_SET, scheme.POD), implies_pods=True)
    stage = Stage(PodReconciler(managed_jobs=managed_jobs))
    stage.put(queued("alone"))
    assert stage.workloads() == []


def test_deleted_workload_deletes_pods_and_comes_back() -> None:
    stage = ServiceStage(stateful_set(), pod(stateful_set()))
    stage.admit()
    uid = stage.only_workload()["metadata"]["uid"]
    stage.delete(scheme.WORKLOAD, NAME)
    assert list(stage.client.list(scheme.POD)) == []
    assert stage.only_workload()["metadata"]["uid"] != uid


def test_deleted_stateful_set_releases_workload() -> None:
    stage = ServiceStage(stateful_set(), pod(stateful_set()))
    stage.admit()
    stage.delete(KIND, "web")
    assert stage.workloads() == list(stage.client.list(scheme.POD)) == []


def test_controllers_restart_with_existing_objects() -> None:
    stage = ServiceStage(stateful_set(), pod(stateful_set()))
    stage.replace_controllers(StatefulSetReconciler(ALL_QUEUED_JOBS), PodReconciler())
    stage.admit()
    assert stage.gates() == []


def test_workload_without_pods_keeps_its_finalizer() -> None:
    stage = ServiceStage(stateful_set())
    assert stage.only_workload()["metadata"]["finalizers"] == [well_known.RESOURCE_IN_USE]
