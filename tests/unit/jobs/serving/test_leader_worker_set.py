"""LeaderWorkerSets in queues: their webhooks, the Workloads of their groups, and the labels and gates of their pods."""

from typing import Any

import pytest

import make
from batchyard.admission_plugins.built_in import ALL_QUEUED_JOBS
from batchyard.api import scheme, well_known
from batchyard.api.meta import Obj, annotation, controller_reference, label, with_metadata, with_path
from batchyard.jobframework.workloads import CopiedKeys, workload_name
from batchyard.jobs.pod.admission import queue_pod
from batchyard.jobs.pod.controller import PodReconciler
from batchyard.jobs.serving.leader_worker_set import LeaderWorkerSetReconciler
from batchyard.lint.job_kinds import job_parts
from batchyard.scheduling.workload import lifecycle
from stage import Stage
from unit.jobs.serving.services import completed, errors, service

KIND = scheme.LEADER_WORKER_SET
GROUP = "leaderworkerset.x-k8s.io"
LABELS = "leaderworkerset.sigs.k8s.io"
FRAMEWORK = f"{GROUP}/leaderworkerset"
GATES = well_known.ADMISSION_GATED_BY


def template(cpu: str = "1", **metadata: Any) -> Obj:
    containers = [{"name": "c", "image": "pause", "resources": {"requests": {"cpu": cpu}}}]
    return {"metadata": metadata, "spec": {"containers": containers}}


def lws(replicas: int | None = 2, size: int = 3, queue: str | None = "lq", **fields: Any) -> Obj:
    """A LeaderWorkerSet; `leader` is the template of its leaders, and `rollout` its strategy."""
    labels = {**({} if queue is None else {well_known.QUEUE_NAME: queue}), **fields.get("labels", {})}
    metadata = make.metadata("llm", labels=labels, annotations=fields.get("annotations", {}), uid="uid-llm")
    group = {"size": size, "workerTemplate": fields.get("worker", template())}
    if "leader" in fields:
        group["leaderTemplate"] = fields["leader"]
    spec = {"replicas": replicas, "leaderWorkerTemplate": group, "rolloutStrategy": fields.get("rollout", {})}
    obj = {"apiVersion": f"{GROUP}/v1", "kind": "LeaderWorkerSet", "metadata": metadata, "spec": spec}
    return {**obj, "status": fields.get("status", {})}


def queued(*arguments: Any, **fields: Any) -> Obj:
    return completed(lws(*arguments, **fields))


def name_of(index: int) -> str:
    return workload_name("LeaderWorkerSet", GROUP, f"llm-{index}", "uid-llm")


# Webhooks.


def template_values(obj: Obj, field: str) -> tuple[dict[str, str], dict[str, str]]:
    metadata = obj["spec"]["leaderWorkerTemplate"][field]["metadata"]
    return metadata.get("labels") or {}, metadata.get("annotations") or {}


def test_templates_get_queue_and_parent() -> None:
    done = queued(leader=template(), labels={well_known.PRIORITY_CLASS: "high"})
    labels = {well_known.QUEUE_NAME: "lq", well_known.PRIORITY_CLASS: "high"}
    annotations = {well_known.SUSPENDING_PARENT: FRAMEWORK, well_known.POD_GROUP_SERVING: "true"}
    assert template_values(done, "leaderTemplate") == (labels, annotations)
    offset = {well_known.POD_INDEX_OFFSET: "1"}
    assert template_values(done, "workerTemplate") == (labels, {**annotations, **offset})
    assert template_values(queued(), "workerTemplate")[1] == annotations
    assert completed(done) is done


def test_workers_grouped_with_leader_have_no_offset() -> None:
    grouped = template(annotations={well_known.POD_SET_GROUP: "g"})
    annotations = template_values(queued(leader=grouped, worker=grouped), "workerTemplate")[1]
    assert well_known.POD_INDEX_OFFSET not in annotations


def test_set_without_queue_is_not_changed() -> None:
    given = lws(queue=None)
    assert completed(given) is given


@pytest.mark.parametrize(("replicas", "bound"), [(-1, ">= 0"), (1_000_001, "<= 1000000")])
def test_number_of_groups_is_limited(replicas: int, bound: str) -> None:
    message = f"invalid LeaderWorkerSet replicas: must be {bound}, got {replicas}"
    assert errors(lws(replicas)) == [f"spec.replicas: Invalid value: {replicas}: {message}"]
    assert errors(lws(None)) == []


def test_topology_requests_are_validated() -> None:
    both = {well_known.REQUIRED_TOPOLOGY: "rack", well_known.PREFERRED_TOPOLOGY: "rack"}
    (problem,) = errors(lws(worker=template(annotations=both)))
    assert problem.startswith("spec.leaderWorkerTemplate.workerTemplate.metadata.annotations: Invalid value")
    alone = template(annotations={well_known.POD_SET_GROUP: "g", well_known.REQUIRED_TOPOLOGY: "rack"})
    (problem,) = errors(lws(worker=alone))
    assert problem.endswith("can only define groups of exactly 2 pod sets, got: 1 pod set(s)")
    assert errors(lws(leader=alone, worker=alone)) == []


REQUESTS = 'template.spec.containers[0].resources.requests: Invalid value: {"cpu":"2"}: field is immutable'


LEADER_PATH = "spec.leaderWorkerTemplate.leaderTemplate"


@pytest.mark.parametrize(
    ("new", "old", "expected"),
    [
        (lws(5), lws(2), []),
        (lws(size=4), lws(size=3), ["spec.leaderWorkerTemplate.size: Invalid value: 4: field is immutable"]),
        (lws(size=4, queue=None), lws(size=3, queue=None), []),
        (lws(worker=template("2")), lws(), [f"spec.leaderWorkerTemplate.workerT{REQUESTS[1:]}"]),
        (lws(leader=template("2")), lws(leader=template()), [f"spec.leaderWorkerTemplate.leaderT{REQUESTS[1:]}"]),
        (lws(), lws(leader=template()), [f"{LEADER_PATH}: Invalid value: null: field is immutable"]),
        (lws(queue="b"), lws(queue="a"), []),
        (
            lws(queue="b"),
            lws(queue="a", status={"readyReplicas": 1}),
            ['metadata.labels[kueue.x-k8s.io/queue-name]: Invalid value: "b": field is immutable'],
        ),
    ],
)  # fmt: skip
def test_updates_keep_size_and_requirements(new: Obj, old: Obj, expected: list[str]) -> None:
    assert errors(new, old) == expected


# Workloads.


class GroupStage(Stage):
    """A world with the controllers of LeaderWorkerSets and pods in queues."""

    def __init__(self, *objects: Obj, copied: CopiedKeys = CopiedKeys()) -> None:  # noqa: B008 - immutable
        super().__init__(LeaderWorkerSetReconciler(ALL_QUEUED_JOBS, copied), PodReconciler())
        self.put(make.flavor(labels={"zone": "a"}), *objects)

    def names(self) -> set[str]:
        return {each["metadata"]["name"] for each in self.workloads()}

    def admit(self, name: str) -> None:
        workload = self.workload(name)
        counts = {each["name"]: each["count"] for each in workload["spec"]["podSets"]}
        self.put(lifecycle.reserve_quota(workload, make.admission("cq", **counts), self.kernel.now(), admitted=True))


def test_each_group_gets_workload() -> None:
    stage = GroupStage(queued(labels={"team": "a"}), copied=CopiedKeys(("team",)))
    assert stage.names() == {name_of(0), name_of(1)}
    workload = stage.workload(name_of(1))
    metadata = workload["metadata"]
    assert metadata["labels"] == {"team": "a", well_known.JOB_UID: "uid-llm"}
    assert metadata["annotations"] == {
        well_known.IS_GROUP_WORKLOAD: "true",
        "kueue.x-k8s.io/job-owner-gvk": f"{GROUP}/v1, Kind=LeaderWorkerSet",
        "kueue.x-k8s.io/job-owner-name": "llm",
        "kueue.x-k8s.io/component-workload-index": "1",
    }
    owner = {"apiVersion": f"{GROUP}/v1", "kind": "LeaderWorkerSet", "name": "llm", "uid": "uid-llm"}
    assert metadata["ownerReferences"] == [owner]
    (pod_set,) = workload["spec"]["podSets"]
    assert (pod_set["name"], pod_set["count"]) == ("main", 3)
    assert pod_set["topologyRequest"] == {"podIndexLabel": f"{LABELS}/worker-index"}


def test_leader_has_pod_set_of_its_own() -> None:
    noted = template(labels={f"{LABELS}/x": "1", f"{LABELS}/name": "llm", "app": "a"})
    pod_sets = GroupStage(queued(1, leader=noted)).only_workload()["spec"]["podSets"]
    assert [(each["name"], each["count"]) for each in pod_sets] == [("leader", 1), ("worker", 2)]
    assert pod_sets[0]["template"]["metadata"]["labels"].keys() == {f"{LABELS}/name", "app", well_known.QUEUE_NAME}
    assert [each["topologyRequest"] for each in pod_sets] == [{}, {"podIndexLabel": f"{LABELS}/worker-index"}]


def test_workloads_follow_number_of_groups() -> None:
    stage = GroupStage(queued(1))
    stage.put(queued(3))
    assert stage.names() == {name_of(0), name_of(1), name_of(2)}
    stage.put(queued(1, status={"replicas": 3}))
    assert stage.names() == {name_of(0)}
    stage.delete(scheme.WORKLOAD, name_of(0))
    assert stage.names() == {name_of(0)}


def surge_of(value: int | str) -> Obj:
    return {"rollingUpdateConfiguration": {"maxSurge": value}}


SURGE = surge_of(1)


@pytest.mark.parametrize(
    ("rollout", "status", "count"),
    [
        (SURGE, {"replicas": 3, "updatedReplicas": 1}, 3),
        (SURGE, {"replicas": 3, "updatedReplicas": 2}, 2),
        (SURGE, {"replicas": 1, "updatedReplicas": 1}, 2),
        (surge_of("1"), {"replicas": 3, "updatedReplicas": 1}, 3),
        (surge_of("25%"), {"replicas": 3, "updatedReplicas": 1}, 2),
        ({}, {"replicas": 3, "updatedReplicas": 1}, 2),
    ],
)
def test_surge_groups_have_workloads(rollout: Obj, status: Obj, count: int) -> None:
    assert len(GroupStage(queued(rollout=rollout, status=status)).names()) == count


def test_many_groups_get_workloads_in_batches() -> None:
    assert len(GroupStage(queued(1001)).names()) == 1001


def test_set_without_queue_has_no_workloads() -> None:
    assert GroupStage(lws(queue=None)).workloads() == []


def test_workloads_follow_queue_class_and_gates() -> None:
    classes = [make.workload_priority_class("low", 1), make.workload_priority_class("high", 9)]
    stage = GroupStage(*classes, queued(1, labels={well_known.PRIORITY_CLASS: "low"}, annotations={GATES: "a.io/x"}))
    assert annotation(stage.only_workload(), GATES) == "a.io/x"
    stage.put(queued(1, queue="b", labels={well_known.PRIORITY_CLASS: "high"}))
    assert annotation(stage.only_workload(), GATES) is None
    spec = stage.only_workload()["spec"]
    assert (spec["queueName"], spec["priority"], spec["priorityClassRef"]["name"]) == ("b", 9, "high")
    assert f"Updated workload priority class: team/{name_of(0)}" in [event.message for event in stage.events]


def test_missing_priority_class_is_awaited() -> None:
    stage = GroupStage(queued(1, labels={well_known.PRIORITY_CLASS: "high"}))
    assert (stage.workloads(), stage.reasons()) == ([], ["WorkloadPriorityClassNotFound"])
    stage.put(make.workload_priority_class("high", 9))
    assert stage.names() == {name_of(0)}


# Pods.


def parent(revision: str = "1", update: str = "1", name: str = "llm") -> Obj:
    metadata = make.metadata(name, labels={f"{LABELS}/name": "llm"}, uid=f"uid-sts-{name}")
    spec = {"template": {"metadata": {"annotations": {well_known.SUSPENDING_PARENT: FRAMEWORK}}}}
    status = {"currentRevision": revision, "updateRevision": update}
    return {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": metadata, "spec": spec, "status": status}


def pod(name: str = "llm-0", group: str | None = "0", *, leader: str = "", queue: str = "lq", **fields: Any) -> Obj:
    """A pod of a group, as the webhook of pods completes it; `leader` names the leader of a worker."""
    labels = {well_known.QUEUE_NAME: queue, f"{LABELS}/name": "llm", "controller-revision-hash": "1"}
    if group is not None:
        labels[f"{LABELS}/group-index"] = group
    annotations = {well_known.SUSPENDING_PARENT: FRAMEWORK, well_known.POD_GROUP_SERVING: "true"}
    if leader:
        annotations[f"{LABELS}/leader-name"] = leader
    owners = [controller_reference(fields.get("owner", parent()))]
    metadata = make.metadata(name, labels=labels, annotations=annotations, ownerReferences=owners)
    given = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template()["spec"]}
    return {**queue_pod(given, lambda _: None, ALL_QUEUED_JOBS), "status": fields.get("status", {})}


def gates(stage: Stage, name: str = "llm-0") -> list[str]:
    return [each["name"] for each in stage.get(scheme.POD, name)["spec"].get("schedulingGates") or ()]


def test_pods_join_group_of_their_workload() -> None:
    stage = GroupStage(queued(), parent(), pod(), pod("llm-1", "1"))
    metadata = stage.get(scheme.POD, "llm-1")["metadata"]
    assert metadata["labels"][well_known.MANAGED] == "true"
    names = (well_known.POD_GROUP_NAME, well_known.PREBUILT_WORKLOAD)
    assert [metadata["annotations"][name] for name in names] == [name_of(1), name_of(1)]
    assert metadata["annotations"][well_known.POD_GROUP_COUNT] == "3"
    assert metadata["annotations"][well_known.ROLE_HASH] == "main"


def test_pods_have_role_of_leader_or_worker() -> None:
    stage = GroupStage(queued(leader=template()), parent(), pod(), pod("llm-0-1", leader="llm-0"))
    roles = [annotation(stage.get(scheme.POD, name), well_known.ROLE_HASH) for name in ("llm-0", "llm-0-1")]
    assert roles == ["leader", "worker"]


def test_pods_start_with_workload_of_their_group() -> None:
    stage = GroupStage(queued(leader=template()), parent(), pod(), pod("llm-1", "1"))
    stage.admit(name_of(0))
    stage.put(pod("llm-0-1", leader="llm-0"))
    assert gates(stage) == gates(stage, "llm-0-1") == []
    assert gates(stage, "llm-1") == [well_known.ADMISSION_GATE, well_known.TOPOLOGY_GATE]


@pytest.mark.parametrize(
    "other", [pod(group=None), pod(status={"phase": "Failed"}), pod(status={"phase": "Succeeded"})]
)
def test_other_pods_do_not_join(other: Obj) -> None:
    stage = GroupStage(queued(), parent(), other)
    assert annotation(stage.get(scheme.POD, "llm-0"), well_known.POD_GROUP_NAME) is None


def test_queue_of_gated_pod_follows_set() -> None:
    stage = GroupStage(queued(), parent(), pod())
    stage.put(queued(queue="other"))
    assert label(stage.get(scheme.POD, "llm-0"), well_known.QUEUE_NAME) == "other"


def test_gated_pod_of_old_revision_is_released_during_update() -> None:
    stage = GroupStage(queued(), parent(), pod())
    assert gates(stage) != []
    stage.put(parent(update="2"))
    assert list(stage.client.list(scheme.POD)) == []  # a pod without gates and quota is deleted


def test_pod_whose_stateful_set_is_unknown_keeps_its_gates() -> None:
    assert gates(GroupStage(queued(), pod())) == [well_known.ADMISSION_GATE, well_known.TOPOLOGY_GATE]


def test_pod_of_deleted_set_is_released() -> None:
    assert gates(GroupStage(parent(), pod())) == []


def test_deleted_set_releases_workloads() -> None:
    stage = GroupStage(queued(), parent(), with_metadata(pod(), ownerReferences=[controller_reference(queued())]))
    stage.admit(name_of(0))
    stage.delete(KIND, "llm")
    assert stage.workloads() == list(stage.client.list(scheme.POD)) == []


def test_controllers_restart_with_existing_objects() -> None:
    stage = GroupStage(queued(), parent(), pod())
    reconciler = LeaderWorkerSetReconciler(ALL_QUEUED_JOBS, CopiedKeys(), objects=stage.client)
    stage.replace_controllers(reconciler, PodReconciler())
    stage.put(with_path(parent(), ("status", "updateRevision"), "2"))
    assert list(stage.client.list(scheme.POD)) == []


@pytest.mark.parametrize(
    ("given", "counts", "paths"),
    [
        (service("Deployment"), [1], ["spec.template"]),
        (service("StatefulSet"), [3], ["spec.template"]),
        (lws(), [3], ["spec.leaderWorkerTemplate.workerTemplate"]),
        (lws(leader=template()), [1, 2], [LEADER_PATH, "spec.leaderWorkerTemplate.workerTemplate"]),
    ],
)
def test_lint_knows_pod_sets_of_one_workload(given: Obj, counts: list[int], paths: list[str]) -> None:
    objects = Stage(PodReconciler()).client
    parts = job_parts(given, objects)
    assert parts is not None
    assert ([each["count"] for each in parts.pod_sets], list(parts.template_paths)) == (counts, paths)
    assert job_parts(with_path(given, ("metadata", "labels"), {}), objects) is None
