"""Properties of placement: pending pods fit no node, gangs are complete, and no node is overcommitted."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

import make
from batchyard.api import scheme
from batchyard.api.meta import Key, Obj, with_metadata
from batchyard.api.views.node import namespace_labels, node_view
from batchyard.api.views.pods import PodView, pod_view
from batchyard.interfaces.client import Delete
from batchyard.placement.cluster_snapshot import ClusterSnapshot
from batchyard.placement.controller import PlacementController
from batchyard.placement.filtering import Unschedulable, find_node
from batchyard.placement.gang import GangPlacement, GangPreemption, place_gang, preempt_for_gang
from batchyard.placement.node_filters import AutoscalingProfile
from batchyard.placement.preemption import PodPreemption, awaits_victims, find_preemption
from stage import Stage
from unit.placement.placement_draw import NAMES, nodes, pods

GANGS = ["", "", "g", "h"]


def members() -> st.SearchStrategy[Obj]:
    """Pods, some of them members of gangs."""
    return st.builds(as_gang_member, pods(), st.sampled_from(GANGS))


def as_gang_member(obj: Obj, gang: str) -> Obj:
    """The pod as a member of the gang, if a gang is given."""
    if not gang:
        return obj
    labels = {**obj["metadata"]["labels"], "batch.kubernetes.io/controller-uid": gang}
    return with_metadata(obj, labels=labels, annotations={"kueue.x-k8s.io/workload": gang})


def histories() -> st.SearchStrategy[list[tuple[str, Any]]]:
    """Sequences of changes. Several pods may be added at once."""
    step = st.one_of(
        st.tuples(st.just("node"), nodes()),
        st.tuples(st.just("node"), nodes()),
        st.tuples(st.just("no node"), st.sampled_from(NAMES)),
        st.tuples(st.just("pods"), st.lists(members(), min_size=1, max_size=4)),
        st.tuples(st.just("pods"), st.lists(members(), min_size=1, max_size=4)),
        st.tuples(st.just("no pod"), st.integers(0, 9)),
        st.tuples(st.just("labels"), st.tuples(st.integers(0, 9), st.sampled_from("ab"))),
        st.tuples(st.just("namespace"), st.sampled_from(["gold", "tin"])),
        st.tuples(st.just("victims gone"), st.none()),
    )
    return st.lists(step, min_size=5, max_size=25)


def apply_change(stage: Stage, kind: str, what: Any) -> None:
    """Apply one change."""
    if kind == "node":
        stage.put(what)
    elif kind == "pods":
        new = {obj["metadata"]["name"]: obj for obj in what}
        stage.put(*[o for name, o in new.items() if stage.client.get(Key(scheme.POD, "team", name)) is None])
    elif kind == "no node" and stage.client.get(Key(scheme.NODE, "", what)) is not None:
        stage.delete(scheme.NODE, what, "")
    elif kind == "namespace":
        stage.put(make.namespace("team", tier=what))
    elif kind == "labels":
        relabel(stage, *what)
    elif kind == "no pod":
        remove(stage, [f"p{what}"])
    elif kind == "victims gone":
        going = [p["metadata"]["name"] for p in stage.client.list(scheme.POD) if "deletionTimestamp" in p["metadata"]]
        remove(stage, going)


def relabel(stage: Stage, number: int, app: str) -> None:
    """Change the label of a pod."""
    obj = stage.client.get(Key(scheme.POD, "team", f"p{number}"))
    if obj is not None:
        stage.put(with_metadata(obj, labels={**obj["metadata"]["labels"], "app": app}))


def remove(stage: Stage, names: list[str]) -> None:
    """Delete pods without grace period."""
    for name in names:
        if stage.client.get(Key(scheme.POD, "team", name)) is not None:
            stage._submit(Delete(Key(scheme.POD, "team", name), grace_period_seconds=0))
    stage.settle()


def snapshot_of_objects(stage: Stage) -> tuple[ClusterSnapshot, list[PodView]]:
    """The snapshot built from the objects, and the pending pods."""
    cluster, waiting = ClusterSnapshot(), []
    for obj in stage.client.list(scheme.NODE):
        cluster.set_node(node_view(obj))
    for obj in stage.client.list(scheme.NAMESPACE):
        cluster.namespaces[obj["metadata"]["name"]] = namespace_labels(obj)
    for obj in stage.client.list(scheme.POD):
        view = pod_view(obj)
        if view.node_name:
            cluster.add_pod(view, view.node_name)
        else:
            waiting.append(view)
            if view.nominated_node:
                cluster.nominate(view, view.nominated_node)
    return cluster, waiting


def units(cluster: ClusterSnapshot, waiting: list[PodView]) -> list[list[PodView]]:
    """The groups of pods that are placed together."""
    begun = {pod.gang for node in cluster for pod in node.pods.values() if not pod.deleting}
    gangs: dict[str, list[PodView]] = {}
    for pod in waiting:
        gangs.setdefault(pod.uid if not pod.gang or pod.gang in begun else pod.gang, []).append(pod)
    return list(gangs.values())


def assert_unit_is_unschedulable(pods: list[PodView], cluster: ClusterSnapshot) -> None:
    """Neither placement nor preemption is possible for the pods of a unit."""
    names = [pod.name for pod in pods]
    if any(pod.nominated_node for pod in pods):
        assert any(awaits_victims(pod, cluster) for pod in pods), names
    if len(pods) > 1:
        assert not isinstance(place_gang(pods, cluster, AutoscalingProfile.BALANCED), GangPlacement), names
        if not any(pod.nominated_node for pod in pods):
            assert not isinstance(preempt_for_gang(pods, cluster, AutoscalingProfile.BALANCED), GangPreemption), names
        return
    placement = find_node(pods[0], cluster)
    assert isinstance(placement, Unschedulable), names
    assert pods[0].unschedulable_message
    if not pods[0].nominated_node:
        assert not isinstance(find_preemption(pods[0], cluster, placement.obstacles), PodPreemption), names


@given(histories())
def test_pending_pods_fit_no_node_with_or_without_preemption(history: list[tuple[str, Any]]) -> None:
    stage = Stage(PlacementController())
    for kind, what in history:
        apply_change(stage, kind, what)
        cluster, waiting = snapshot_of_objects(stage)
        for unit in units(cluster, waiting):
            assert_unit_is_unschedulable(unit, cluster)


@given(histories())
def test_no_node_is_overcommitted_unless_it_shrinks(history: list[tuple[str, Any]]) -> None:
    stage = Stage(PlacementController())
    for kind, what in history:
        if kind == "no node" or (kind == "node" and stage.client.get(Key(scheme.NODE, "", what["metadata"]["name"]))):
            continue
        apply_change(stage, kind, what)
        cluster, _ = snapshot_of_objects(stage)
        assert all(min(node.free_amounts.values()) >= 0 for node in cluster)
