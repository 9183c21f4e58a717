"""Followers of an exclusively placed Job that are bound to another domain than their leader are deleted."""

import make
from batchyard.api import scheme
from batchyard.api.meta import Obj, with_path
from batchyard.jobs.jobset.exclusive_placement import ExclusivePlacement
from stage import Stage, stated

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


def staged(*pods: Obj) -> Stage:
    stage = Stage(ExclusivePlacement())
    stage.put(node("n1", "a"), node("n2", "b"), *pods)
    return stage


def names(stage: Stage) -> list[str]:
    return [each["metadata"]["name"] for each in stage.client.list(scheme.POD)]


def schedule(stage: Stage, name: str, node_name: str) -> None:
    stage.put(with_path(stage.get(scheme.POD, name), ("spec", "nodeName"), node_name))


def test_followers_of_another_domain_go_when_the_leader_is_scheduled() -> None:
    stage = staged(pod(0), pod(1, "a"), pod(2, "b"))
    assert names(stage) == ["p0", "p1", "p2"]
    schedule(stage, "p0", "n1")
    assert names(stage) == ["p0"]


def test_a_running_follower_is_marked_and_gets_its_time_to_stop() -> None:
    stage = staged(pod(0), pod(1, "b", node="n2"))
    schedule(stage, "p0", "n1")
    reported = ("True", "ExclusivePlacementViolation", "Pod violated JobSet exclusive placement policy")
    assert stated(stage.get(scheme.POD, "p1"), "DisruptionTarget") == reported
    assert stage.get(scheme.POD, "p1")["metadata"]["deletionGracePeriodSeconds"] == 30


def test_followers_in_the_domain_of_their_leader_stay() -> None:
    stage = staged(pod(0), pod(1, "a"), pod(2, "a"))
    schedule(stage, "p0", "n1")
    assert names(stage) == ["p0", "p1", "p2"]


def test_pods_of_other_jobs_stay() -> None:
    stage = staged(pod(0), pod(1, "b", owner="uid-other"))
    schedule(stage, "p0", "n1")
    assert names(stage) == ["p0", "p1"]


def test_nothing_is_done_while_the_node_of_the_leader_is_unknown() -> None:
    stage = staged(pod(0), pod(1, "b"))
    schedule(stage, "p0", "n3")
    assert names(stage) == ["p0", "p1"]
