"""Scale-down: the unneeded nodes, and those that it deletes."""

from collections.abc import Mapping, Sequence
from typing import Any

import make
from batchyard.api.views.pods import PodView
from batchyard.autoscaler.controller import PodDrainability, RemovalCandidate, ScaleDown, ScaleDownDecisions
from batchyard.autoscaler.expander import NodeGroupsState
from batchyard.autoscaler.node_groups import ClusterLimits, NodeGroup, ResourceLimit, settings_of
from batchyard.autoscaler.scale_up import LoopContext
from batchyard.placement.cluster_snapshot import ClusterSnapshot
from unit.autoscaler.scaling_make_core import A, cluster, fleet, groups, pool, views

NOW = make.at(3600)
GROUP = groups(pool(most=30, zones=[A]))[0]
SLICE = groups(pool(machine="ct5lp-hightpu-4t", tpuTopology="2x4", zones=[A], bounds={"max": 2}))[0]


class ScaleDownBench:
    """Nodes of a group with pods; by default they are unneeded for an hour."""

    def __init__(self, *names: str, group: NodeGroup = GROUP, **autoscaling: Any) -> None:
        self.group = group
        self.nodes = ClusterSnapshot()
        self.names = names
        self.settings = settings_of(cluster(autoscaling=autoscaling))
        self.fleet: NodeGroupsState = fleet([group], {A: len(names)})
        self.limits = ClusterLimits(self.settings.limits, self.fleet.usage())
        self.drains: dict[str, PodDrainability] = {}
        for name in names:
            self.nodes.set_node(group.new_node(name))

    def run(self, node: str, *names: str, drain: PodDrainability = PodDrainability.MOVES, **fields: Any) -> None:
        """Add running pods to a node."""
        for pod in views(*names, **fields):
            self.nodes.add_pod(pod, node)
            self.drains[pod.uid] = drain

    def removals(
        self, since: Mapping[str, int | None] | None = None, *, added: int | None = None, **more: Any
    ) -> ScaleDownDecisions:
        """The removals; by default all nodes are unneeded from the start."""
        candidates = [
            RemovalCandidate(name, self.group, more.get("ready", True), {name: make.NOW, **(since or {})}[name])
            for name in self.names
        ]
        situation = LoopContext(cluster(), self.settings, NOW)
        scale_down = ScaleDown(self.nodes, self.fleet, self.limits, situation, self._drain_of)
        scale_down.record_unneeded_nodes(candidates, more.get("awaited", {}), more.get("upcoming", ()))
        return scale_down.choose_removals(added, more.get("draining", 0))

    def _drain_of(self, pod: PodView, is_guarded: bool) -> PodDrainability:
        return PodDrainability.BLOCKS if is_guarded else self.drains[pod.uid]


def going(removals: ScaleDownDecisions) -> Sequence[str]:
    return list(removals.pods_to_move_by_node)


def test_scale_down_deletes_empty_nodes_in_batches() -> None:
    removals = ScaleDownBench(*[f"n{number:02}" for number in range(12)]).removals()
    assert (len(removals.unneeded_nodes), len(removals.pods_to_move_by_node)) == (12, 10)
    assert removals.requeue_at == NOW + 10 * 1_000_000


def test_scale_down_keeps_node_until_unneeded_time_has_passed() -> None:
    removals = ScaleDownBench("a", "b").removals({"a": NOW - 1, "b": None})
    assert (list(removals.unneeded_nodes), going(removals)) == (["a", "b"], [])
    assert removals.requeue_at == NOW - 1 + 600 * 1_000_000


def test_scale_down_waits_after_nodes_were_added() -> None:
    removals = ScaleDownBench("a").removals(added=NOW - 599_000_000)
    assert (list(removals.unneeded_nodes), going(removals), removals.requeue_at) == (["a"], [], NOW + 1_000_000)


def test_optimize_utilization_profile_scales_down_faster() -> None:
    world = ScaleDownBench("a", profile="optimize-utilization")
    assert going(world.removals({"a": NOW - 120_000_000}, added=NOW - 120_000_000)) == ["a"]


def test_node_at_half_utilization_is_needed() -> None:
    world = ScaleDownBench("a", "b")
    world.run("a", "p", cpu="2")
    world.run("b", "q", cpu="1900m")
    removals = world.removals()
    assert list(removals.unneeded_nodes) == ["b"]


def test_utilization_of_gpu_node_counts_gpus_only() -> None:
    world = ScaleDownBench("a", "b", group=groups(pool(machine="g2-standard-24", zones=[A]))[0])
    tolerations = [{"operator": "Exists"}]
    world.run("a", "p", gpu=1, cpu="20", tolerations=tolerations)
    world.run("b", "q", gpu=2, tolerations=tolerations)
    assert list(world.removals().unneeded_nodes) == []
    world.nodes.set_node(world.group.new_node("c"))
    assert list(world.removals().unneeded_nodes) == ["a"]


def test_node_is_needed_if_its_pods_fit_no_other_node() -> None:
    world = ScaleDownBench("a", "b")
    world.run("a", "p", cpu="1900m")
    world.run("b", "q", "r", cpu="1900m")
    assert list(world.removals().unneeded_nodes) == []


def test_pods_return_to_their_node_if_one_of_them_fits_no_other() -> None:
    world = ScaleDownBench("a", "b")
    world.run("a", "p", cpu="500m")
    world.run("a", "q", cpu="1400m")
    world.run("b", "r", cpu="3200m")
    assert list(world.removals().unneeded_nodes) == []
    nodes = {name: world.nodes.get(name) for name in ("a", "b")}
    names = {name: sorted(pod.name for pod in node.pods.values()) for name, node in nodes.items() if node}
    assert names == {"a": ["p", "q"], "b": ["r"]}


def test_scale_down_keeps_destination_of_moved_pods() -> None:
    world = ScaleDownBench("a", "b")
    world.run("a", "p")
    world.run("b", "q")
    removals = world.removals()
    assert (list(removals.unneeded_nodes), going(removals)) == (["a"], ["a"])
    assert [pod.name for pod in removals.pods_to_move_by_node["a"]] == ["p"]


def test_blocking_pod_keeps_node_and_daemon_pod_does_not() -> None:
    world = ScaleDownBench("a", "b")
    world.run("a", "p", drain=PodDrainability.BLOCKS)
    world.run("b", "q", drain=PodDrainability.STAYS)
    removals = world.removals()
    assert (list(removals.unneeded_nodes), removals.pods_to_move_by_node) == (["b"], {"b": []})


def test_scale_down_waits_for_on_completion_pods() -> None:
    world = ScaleDownBench("a", "b", "c")
    world.run("a", "p", drain=PodDrainability.WAITS)
    removals = world.removals()
    assert (list(removals.unneeded_nodes), going(removals)) == (["b", "c", "a"], ["b", "c"])


def test_scale_down_drains_single_node_at_once() -> None:
    world = ScaleDownBench("a", "b", "c", "full")
    world.run("a", "p", cpu="500m")
    world.run("b", "q", cpu="500m")
    world.run("full", "r", cpu="2500m")
    removals = world.removals()
    assert (sorted(removals.unneeded_nodes), sorted(going(removals))) == (["a", "b", "c"], ["a", "c"])
    assert removals.requeue_at == NOW + 10_000_000


def test_scale_down_starts_no_drain_during_another_drain() -> None:
    world = ScaleDownBench("a", "b", "c")
    world.run("a", "p")
    assert going(world.removals(draining=1)) == ["b", "c"]


def test_nodes_awaited_by_pods_are_needed() -> None:
    assert list(ScaleDownBench("a", "b").removals(awaited={"a": None}).unneeded_nodes) == ["b"]


def test_scale_down_moves_no_pod_to_upcoming_node() -> None:
    world = ScaleDownBench("a")
    world.run("a", "p")
    world.nodes.set_node(GROUP.new_node("new"))
    assert list(world.removals(upcoming=["new"]).unneeded_nodes) == []


def test_scale_down_respects_pool_minimum() -> None:
    bounded = groups(pool(bounds={"min": 2}, zones=[A]))[0]
    assert len(ScaleDownBench("a", "b", "c", group=bounded).removals().pods_to_move_by_node) == 1


def test_scale_down_respects_cluster_minimum() -> None:
    world = ScaleDownBench("a", "b", "c")
    world.limits = ClusterLimits({"cpu": ResourceLimit(8, 100)}, {"cpu": 12})
    assert len(world.removals().pods_to_move_by_node) == 1


def test_scale_down_keeps_not_ready_node_for_twenty_minutes() -> None:
    removals = ScaleDownBench("a", "b").removals({"a": NOW - 1200_000_000, "b": NOW - 1199_000_000}, ready=False)
    assert (going(removals), removals.requeue_at) == (["a"], NOW + 1_000_000)


def test_scale_down_deletes_complete_slice_only() -> None:
    assert len(ScaleDownBench("a", "b", group=SLICE).removals().pods_to_move_by_node) == 2
    assert going(ScaleDownBench("a", "b", group=SLICE).removals({"b": NOW})) == []


def test_scale_down_respects_disruption_budgets() -> None:
    world = ScaleDownBench("a", "b", "c")
    world.run("a", "p", cpu="1", labels={"app": "web"})
    world.run("b", "q", cpu="1", labels={"app": "web"})
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "b", "namespace": "team"},
        "spec": {"selector": {"matchLabels": {"app": "web"}}},
        "status": {"disruptionsAllowed": 1},
    }
    world.nodes.budgets.set(budget)
    assert list(world.removals({"c": None}, awaited={"c": None}).unneeded_nodes) == ["a"]
    world = ScaleDownBench("a", "b")
    world.run("a", "p", cpu="1", labels={"app": "web"})
    world.nodes.budgets.set({**budget, "status": {"disruptionsAllowed": 0}})
    assert list(world.removals().unneeded_nodes) == ["b"]
