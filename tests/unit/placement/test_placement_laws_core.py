"""Properties of placement under any sequence of node and pod changes."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchyard.api.meta import Obj
from batchyard.placement.cluster_snapshot import ClusterSnapshot
from batchyard.placement.filtering import Unschedulable, choose_node, filter_failure_reasons, find_node
from batchyard.placement.node_filters import AutoscalingProfile
from batchyard.placement.node_info import NodeInfo
from batchyard.placement.preemption import PodPreemption, find_preemption
from unit.placement.placement_draw import NAMES, nodes, pods
from unit.placement.placement_make import cluster, view

pytestmark = pytest.mark.slow


def changes() -> st.SearchStrategy[list[tuple[str, Any]]]:
    """Sequences of changes."""
    change = st.one_of(
        st.tuples(st.just("node"), nodes()),
        st.tuples(st.just("no node"), st.sampled_from(NAMES)),
        st.tuples(st.just("pod"), pods()),
        st.tuples(st.just("no pod"), st.integers(0, 9)),
        st.tuples(st.just("nominate"), st.tuples(pods("q"), st.sampled_from(NAMES))),
        st.tuples(st.just("ask"), pods("r")),
    )
    return st.lists(change, min_size=5, max_size=40)


class ClusterHistory:
    """A snapshot that changes, and the objects in it."""

    def __init__(self) -> None:
        self.nodes = ClusterSnapshot()
        self.node_objs: dict[str, Obj] = {}
        self.pod_objs: dict[str, Obj] = {}
        self.nominated: dict[str, tuple[Obj, str]] = {}

    def apply(self, kind: str, what: Any) -> None:
        """Apply one change."""
        if kind == "node":
            self.node_objs[what["metadata"]["name"]] = what
            self.nodes.set_node(*[n.view for n in cluster(what)])
        elif kind == "no node":
            self.node_objs.pop(what, None)
            self.nodes.remove_node(what)
        elif kind == "no pod":
            self.pod_objs.pop(f"uid-p{what}", None)
            self.nodes.remove_pod(f"uid-p{what}")
        elif kind == "nominate":
            self.nominated[what[0]["metadata"]["uid"]] = what
            self.nodes.nominate(view(what[0]), what[1])
        elif kind == "pod" and (place := choose_node(view(what), self.nodes)):
            self.pod_objs[what["metadata"]["uid"]] = {**what, "spec": {**what["spec"], "nodeName": place}}
            self.nodes.add_pod(view(what), place)
        elif kind == "ask":
            find_node(view(what), self.nodes)

    def rebuilt(self) -> ClusterSnapshot:
        """The same cluster in a new snapshot."""
        fresh = cluster(*self.node_objs.values(), *self.pod_objs.values())
        for obj, name in self.nominated.values():
            fresh.nominate(view(obj), name)
        return fresh


def run(history: list[tuple[str, Any]]) -> ClusterHistory:
    """A cluster after a sequence of changes."""
    after = ClusterHistory()
    for kind, what in history:
        after.apply(kind, what)
    return after


def content(of: NodeInfo) -> tuple[Any, ...]:
    """The state of a node."""
    return of.view, of.free_amounts, sorted(of.pods), of.ports, of.scored_cpu, of.scored_memory


@given(changes(), pods("x"), st.sampled_from(list(AutoscalingProfile)))
def test_incremental_snapshot_agrees_with_rebuilt_snapshot(
    history: list[tuple[str, Any]], pending: Obj, profile: AutoscalingProfile
) -> None:
    after = run(history)
    assert find_node(view(pending), after.nodes, profile) == find_node(view(pending), after.rebuilt(), profile)


@given(changes(), pods("x"))
def test_pick_node_returns_node_without_obstacles(history: list[tuple[str, Any]], pending: Obj) -> None:
    cluster_nodes = run(history).nodes
    free = [n.name for n in cluster_nodes if not filter_failure_reasons(view(pending), n, cluster_nodes)]
    place = choose_node(view(pending), cluster_nodes)
    assert place in free if free else place == ""


@given(changes(), changes(), pods("x"))
def test_what_if_leaves_snapshot_unchanged(
    history: list[tuple[str, Any]], trial: list[tuple[str, Any]], pending: Obj
) -> None:
    after = run(history)
    with after.nodes.what_if():
        for kind, what in trial:
            after.apply(kind, what)
    plain = run(history)
    assert list(map(content, after.nodes)) == list(map(content, plain.nodes))
    assert find_node(view(pending), after.nodes) == find_node(view(pending), plain.nodes)


@given(changes(), pods("x"))
def test_preemptor_fits_after_victims_are_removed(history: list[tuple[str, Any]], pending: Obj) -> None:
    cluster_nodes, preemptor = run(history).nodes, view(pending)
    placement = find_node(preemptor, cluster_nodes)
    if not isinstance(placement, Unschedulable):
        return
    result = find_preemption(preemptor, cluster_nodes, placement.obstacles)
    if isinstance(result, PodPreemption):
        assert all(victim.priority < preemptor.priority for victim in result.victims)
        for victim in result.victims:
            cluster_nodes.remove_pod(victim.uid)
        cluster_nodes.nominate(preemptor, result.node)
        assert choose_node(preemptor, cluster_nodes) == result.node
