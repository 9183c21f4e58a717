"""Followers of an exclusively placed Job are deleted if they are bound to another domain than their leader."""

import make
from batchyard.api import scheme
from batchyard.api.meta import Obj, with_path
from batchyard.jobs.jobset.exclusive_placement import ExclusivePlacementController
from stage import Stage, condition_state

POOL = "cloud.google.com/gke-nodepool"
EXCLUSIVE = "alpha.jobset.sigs.k8s.io/exclusive-topology"


def pod(index: int, pool: str = "", node: str = "", owner: str = "uid-job") -> Obj:
    annotations = {EXCLUSIVE: POOL, "batch.kubernetes.io/job-completion-index": str(index)}
    owners = [{"apiVersion": "batch/v1", "kind": "Job", "name": "job", "uid": owner, "controller": True}]
    metadata = make.metadata(f"p{index}", annotations=annotations, ownerReferences=owners)
    spec = {"nodeName": node or None, "nodeSelector": {POOL: pool} if pool else {}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def node(name: str, pool: str) -> Obj:
    return {"apiVersion": "v1", "kind": "Node", "metadata": make.metadata(name, None, labels={POOL: pool})}


def placement_stage(*pods: Obj) -> Stage:
    stage = Stage(ExclusivePlacementController())
    stage.put(node("n1", "a"), node("n2", "b"), *pods)
    return stage


def names(stage: Stage) -> list[str]:
    return [each["metadata"]["name"] for each in stage.client.list(scheme.POD)]


def schedule(stage: Stage, name: str, node_name: str) -> None:
    stage.put(with_path(stage.get(scheme.POD, name), ("spec", "nodeName"), node_name))


def test_followers_in_other_domain_are_deleted_after_leader_is_scheduled() -> None:
    stage = placement_stage(pod(0), pod(1, "a"), pod(2, "b"))
    assert names(stage) == ["p0", "p1", "p2"]
    schedule(stage, "p0", "n1")
    assert names(stage) == ["p0"]


def test_running_follower_gets_condition_and_grace_period() -> None:
    stage = placement_stage(pod(0), pod(1, "b", node="n2"))
    schedule(stage, "p0", "n1")
    reported = ("True", "ExclusivePlacementViolation", "Pod violated JobSet exclusive placement policy")
    assert condition_state(stage.get(scheme.POD, "p1"), "DisruptionTarget") == reported
    assert stage.get(scheme.POD, "p1")["metadata"]["deletionGracePeriodSeconds"] == 30


def test_followers_in_domain_of_leader_are_kept() -> None:
    stage = placement_stage(pod(0), pod(1, "a"), pod(2, "a"))
    schedule(stage, "p0", "n1")
    assert names(stage) == ["p0", "p1", "p2"]


def test_pods_of_other_jobs_are_kept() -> None:
    stage = placement_stage(pod(0), pod(1, "b", owner="uid-other"))
    schedule(stage, "p0", "n1")
    assert names(stage) == ["p0", "p1"]


def test_followers_are_kept_while_node_of_leader_is_unknown() -> None:
    stage = placement_stage(pod(0), pod(1, "b"))
    schedule(stage, "p0", "n3")
    assert names(stage) == ["p0", "p1"]
