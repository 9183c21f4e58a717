"""Scale-down: which nodes nobody needs, and which of them go."""

from collections.abc import Mapping, Sequence
from typing import Any

import make
from batchyard.api.views.pods import PodView
from batchyard.autoscaler.expander import NodeGroupsState
from batchyard.autoscaler.node_groups import ClusterLimits, NodeGroup
from batchyard.autoscaler.scale_down import Candidate, PodDrainability, Removals, ScaleDown
from batchyard.autoscaler.scale_up import LoopContext
from batchyard.autoscaler.settings import ResourceLimit, settings_of
from batchyard.placement.cluster_snapshot import ClusterSnapshot
from unit.autoscaler.scaling_make_core import A, cluster, fleet, groups, pool, views

NOW = make.at(3600)
GROUP = groups(pool(most=30, zones=[A]))[0]
SLICE = groups(pool(machine="ct5lp-hightpu-4t", tpuTopology="2x4", zones=[A], bounds={"max": 2}))[0]


class World:
    """Nodes of a group with pods, most of them unneeded for long."""

    def __init__(self, *names: str, group: NodeGroup = GROUP, **autoscaling: Any) -> None:
        self.group = group
        self.nodes = ClusterSnapshot()
        self.names = names
        self.settings = settings_of(cluster(autoscaling=autoscaling))
        self.fleet: NodeGroupsState = fleet([group], {A: len(names)})
        self.limits = ClusterLimits(self.settings.limits, self.fleet.used())
        self.drains: dict[str, PodDrainability] = {}
        for name in names:
            self.nodes.set_node(group.node(name))

    def run(self, node: str, *names: str, drain: PodDrainability = PodDrainability.MOVES, **fields: Any) -> None:
        """Let pods run on a node."""
        for pod in views(*names, **fields):
            self.nodes.add_pod(pod, node)
            self.drains[pod.uid] = drain

    def removals(
        self, since: Mapping[str, int | None] | None = None, *, added: int | None = None, **more: Any
    ) -> Removals:
        """What is to be done; nodes are unneeded from the start unless said."""
        candidates = [
            Candidate(name, self.group, more.get("ready", True), {name: make.NOW, **(since or {})}[name])
            for name in self.names
        ]
        situation = LoopContext(cluster(), self.settings, NOW)
        scale_down = ScaleDown(self.nodes, self.fleet, self.limits, situation, self._drain_of)
        scale_down.find_unneeded(candidates, more.get("awaited", {}), more.get("upcoming", ()))
        return scale_down.remove(added, more.get("draining", 0))

    def _drain_of(self, pod: PodView, is_guarded: bool) -> PodDrainability:
        return PodDrainability.BLOCKS if is_guarded else self.drains[pod.uid]


def going(removals: Removals) -> Sequence[str]:
    return list(removals.going)


def test_empty_nodes_go_in_bulk_and_the_rest_at_the_next_look() -> None:
    removals = World(*[f"n{number:02}" for number in range(12)]).removals()
    assert (len(removals.unneeded), len(removals.going)) == (12, 10)
    assert removals.look_at == NOW + 10 * 1_000_000


def test_a_node_is_kept_until_it_was_unneeded_for_long_enough() -> None:
    removals = World("a", "b").removals({"a": NOW - 1, "b": None})
    assert (list(removals.unneeded), going(removals)) == (["a", "b"], [])
    assert removals.look_at == NOW - 1 + 600 * 1_000_000


def test_nothing_goes_soon_after_nodes_were_added() -> None:
    removals = World("a").removals(added=NOW - 599_000_000)
    assert (list(removals.unneeded), going(removals), removals.look_at) == (["a"], [], NOW + 1_000_000)


def test_the_profile_that_saves_nodes_is_faster() -> None:
    world = World("a", profile="optimize-utilization")
    assert going(world.removals({"a": NOW - 120_000_000}, added=NOW - 120_000_000)) == ["a"]


def test_a_node_that_is_half_used_is_needed() -> None:
    world = World("a", "b")
    world.run("a", "p", cpu="2")
    world.run("b", "q", cpu="1900m")
    removals = world.removals()
    assert list(removals.unneeded) == ["b"]


def test_of_machines_with_accelerators_only_those_count() -> None:
    world = World("a", "b", group=groups(pool(machine="g2-standard-24", zones=[A]))[0])
    tolerations = [{"operator": "Exists"}]
    world.run("a", "p", gpu=1, cpu="20", tolerations=tolerations)
    world.run("b", "q", gpu=2, tolerations=tolerations)
    assert list(world.removals().unneeded) == []
    world.nodes.set_node(world.group.node("c"))
    assert list(world.removals().unneeded) == ["a"]


def test_pods_must_find_another_place() -> None:
    world = World("a", "b")
    world.run("a", "p", cpu="1900m")
    world.run("b", "q", "r", cpu="1900m")
    assert list(world.removals().unneeded) == []


def test_two_nodes_do_not_move_their_pods_to_each_other() -> None:
    world = World("a", "b")
    world.run("a", "p")
    world.run("b", "q")
    removals = world.removals()
    assert (list(removals.unneeded), going(removals)) == (["a"], ["a"])
    assert [pod.name for pod in removals.going["a"]] == ["p"]


def test_a_pod_that_blocks_keeps_its_node_and_one_that_stays_does_not() -> None:
    world = World("a", "b")
    world.run("a", "p", drain=PodDrainability.BLOCKS)
    world.run("b", "q", drain=PodDrainability.STAYS)
    removals = world.removals()
    assert (list(removals.unneeded), removals.going) == (["b"], {"b": []})


def test_a_node_waits_for_pods_that_are_to_end_first() -> None:
    world = World("a", "b", "c")
    world.run("a", "p", drain=PodDrainability.WAITS)
    removals = world.removals()
    assert (list(removals.unneeded), going(removals)) == (["b", "c", "a"], ["b", "c"])


def test_one_node_at_a_time_is_emptied() -> None:
    world = World("a", "b", "c", "full")
    world.run("a", "p", cpu="500m")
    world.run("b", "q", cpu="500m")
    world.run("full", "r", cpu="2500m")
    removals = world.removals()
    assert (sorted(removals.unneeded), sorted(going(removals))) == (["a", "b", "c"], ["a", "c"])
    assert removals.look_at == NOW + 10_000_000


def test_no_node_is_emptied_while_another_one_is() -> None:
    world = World("a", "b", "c")
    world.run("a", "p")
    assert going(world.removals(draining=1)) == ["b", "c"]


def test_nodes_that_pods_wait_for_are_needed() -> None:
    assert list(World("a", "b").removals(awaited={"a": None}).unneeded) == ["b"]


def test_nobody_moves_to_a_node_that_is_yet_to_come() -> None:
    world = World("a")
    world.run("a", "p")
    world.nodes.set_node(GROUP.node("new"))
    assert list(world.removals(upcoming=["new"]).unneeded) == []


def test_pools_do_not_shrink_below_their_least() -> None:
    bounded = groups(pool(bounds={"min": 2}, zones=[A]))[0]
    assert len(World("a", "b", "c", group=bounded).removals().going) == 1


def test_clusters_do_not_shrink_below_their_limits() -> None:
    world = World("a", "b", "c")
    world.limits = ClusterLimits({"cpu": ResourceLimit(8, 100)}, {"cpu": 12})
    assert len(world.removals().going) == 1


def test_a_node_that_is_not_ready_is_kept_for_twenty_minutes() -> None:
    removals = World("a", "b").removals({"a": NOW - 1200_000_000, "b": NOW - 1199_000_000}, ready=False)
    assert (going(removals), removals.look_at) == (["a"], NOW + 1_000_000)


def test_a_slice_goes_whole_or_not_at_all() -> None:
    assert len(World("a", "b", group=SLICE).removals().going) == 2
    assert going(World("a", "b", group=SLICE).removals({"b": NOW})) == []


def test_a_node_whose_pod_is_guarded_stays_and_budgets_are_used_up_one_by_one() -> None:
    world = World("a", "b", "c")
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
    assert list(world.removals({"c": None}, awaited={"c": None}).unneeded) == ["a"]
    world = World("a", "b")
    world.run("a", "p", cpu="1", labels={"app": "web"})
    world.nodes.budgets.set({**budget, "status": {"disruptionsAllowed": 0}})
    assert list(world.removals().unneeded) == ["b"]
