"""Scale-up: the groups that grow, and the reasons reported for pods without a node."""

from collections.abc import Sequence

from batchyard.api.views.pods import PodView
from batchyard.autoscaler.expander import ScaleUpOption
from batchyard.autoscaler.node_groups import NodeGroup
from batchyard.autoscaler.scale_up import NOT_ALL_PODS_FIT, PendingUnit, ScaleUp, units_of
from batchyard.placement.cluster_snapshot import ClusterSnapshot
from unit.autoscaler.scaling_make_core import A, B, groups, node_counts, planner, pool, views
from unit.placement.placement_make import cluster as nodes_of
from unit.placement.placement_make import node

TPU = {"google.com/tpu": "4"}


class NoPools:
    """Offers no new pools, and records the number of pods of each call."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    def scale_up_options(self, pods: Sequence[PodView], scale_up: ScaleUp) -> Sequence[ScaleUpOption]:
        self.calls.append(len(pods))
        return ()

    def explain_no_new_pool(self, pod: PodView, scale_up: ScaleUp) -> str:
        return "because"


def help_all(scale_up: ScaleUp, *names: str, gang: str = "", **fields: object) -> bool:
    return all(list(map(scale_up.plan, units_of(views(*names, gang=gang, **fields)))))


def test_pending_units_sort_gangs_first_then_by_priority() -> None:
    first, second, *gang = [*views("a", "b"), *views("c", "d", gang="g")]
    second.priority, gang[1].priority = 1, 2
    shown = [(unit.is_gang, [pod.name for pod in unit.pods]) for unit in units_of([first, second, *gang])]
    assert shown == [(True, ["d", "c"]), (False, ["b"]), (False, ["a"])]


def test_scale_up_uses_free_capacity_first() -> None:
    scale_up = planner(groups(pool(zones=[A])), nodes_of(node("n")))
    assert help_all(scale_up, "a", "b", cpu="3")
    assert (node_counts(scale_up), scale_up.node_by_pod["uid-a"]) == ({"pool": 1}, "n")


def test_scale_up_reuses_new_node_for_later_units() -> None:
    scale_up = planner(groups(pool(zones=[A])))
    for unit in units_of([*views("a", cpu="2", gang="g"), *views("b", cpu="1", gang="h")]):
        assert scale_up.plan(unit)
    assert node_counts(scale_up) == {"pool": 1}


def test_scale_up_grows_nothing_for_gang_that_does_not_fit() -> None:
    nodes = ClusterSnapshot()
    scale_up = planner(groups(pool(most=2, zones=[A])), nodes)
    assert not help_all(scale_up, "a", "b", "c", cpu="3", gang="g")
    assert (node_counts(scale_up), scale_up.node_by_pod, len(nodes)) == ({}, {}, 0)
    assert scale_up.refusal_by_pod["uid-a"] == f"1 {NOT_ALL_PODS_FIT}"
    assert help_all(scale_up, "d", "e", cpu="3", gang="h")


def test_scale_up_grows_to_maximum_for_single_pods() -> None:
    scale_up = planner(groups(pool(most=2, zones=[A])))
    assert not help_all(scale_up, "a", "b", "c", cpu="3")
    assert (node_counts(scale_up), scale_up.refusal_by_pod) == ({"pool": 2}, {"uid-c": "1 max node group size reached"})


def test_scale_up_selects_group_that_fits_all_pods_of_gang() -> None:
    scale_up = planner(groups(pool("small", most=1, zones=[A]), pool("large", "e2-standard-16", zones=[A])))
    gang = PendingUnit([*views("a", cpu="3", gang="g"), *views("b", cpu="10", gang="g")], is_gang=True)
    assert scale_up.plan(gang)
    assert node_counts(scale_up) == {"large": 1}


def test_scale_up_selects_pool_with_room_for_whole_gang() -> None:
    scale_up = planner(groups(pool("few", most=1, zones=[A]), pool("many", "e2-standard-8", zones=[A])))
    assert help_all(scale_up, "a", "b", cpu="3500m", gang="g")
    assert node_counts(scale_up) == {"many": 1}


def test_scale_up_grows_slice_by_all_hosts() -> None:
    slices = groups(pool(machine="ct5lp-hightpu-4t", tpuTopology="2x4", zones=[A], bounds={"max": 2}))
    scale_up = planner(slices)
    assert help_all(scale_up, "a", requests=TPU)
    assert (node_counts(scale_up), list(scale_up.node_by_pod)) == ({"pool": 2}, ["uid-a"])
    assert help_all(scale_up, "b", requests=TPU)
    assert not help_all(scale_up, "c", requests=TPU)


def test_scale_up_does_not_grow_queued_pools() -> None:
    tolerant = [{"operator": "Exists"}]
    scale_up = planner(groups(pool(provisioning="queued", zones=[A])))
    assert not help_all(scale_up, "a", tolerations=tolerant)


def test_scale_up_respects_cluster_limits() -> None:
    limits = [{"resource": "cpu", "max": 10}, {"resource": "memory", "max": 100}]
    scale_up = planner(groups(pool(zones=[A])), autoscaling={"autoProvisioning": {"limits": limits}})
    assert not help_all(scale_up, "a", "b", "c", cpu="3")
    assert node_counts(scale_up) == {"pool": 2}
    assert scale_up.refusal_by_pod == {"uid-c": '1 exceeded quota: "cluster-wide", resources: cpu'}


def test_scale_up_refusal_counts_reasons_over_groups() -> None:
    result = groups(pool("one"), pool("large", "e2-standard-8", zones=[A]))
    scale_up = planner(result)
    assert not help_all(scale_up, "a", cpu="20", nodeSelector={"x": "y"})
    assert scale_up.refusal_by_pod == {"uid-a": "4 node(s) didn't match Pod's node affinity/selector"}
    assert not help_all(scale_up, "b", cpu="20")
    assert scale_up.refusal_by_pod["uid-b"] == "4 Insufficient cpu"


def test_format_increase_shows_old_and_new_size() -> None:
    (group,) = groups(pool(zones=[A]))
    scale_up = planner([group])
    scale_up.fleet.grow(group, 3)
    help_all(scale_up, "a", "b", cpu="3")
    assert scale_up.format_increase(scale_up.groups_by_pod["uid-a"]) == f"[{{{group.id} 3->5 (max: 10)}}]"


def test_scale_up_balances_similar_groups() -> None:
    zone_b = {"topology.kubernetes.io/zone": B}
    scale_up = planner(groups(pool(most=2)))
    assert help_all(scale_up, "a", "b", "c", cpu="3")
    assert help_all(scale_up, "d", cpu="3", nodeSelector=zone_b)
    assert {group.name.zone: count for group, count in scale_up.increases.items()}[B] == 2


def test_grow_to_least_reaches_minimum_size() -> None:
    def least(**bounds: int) -> dict[str, int]:
        scale_up = planner(groups(pool(bounds=bounds, zones=[A, B])))
        scale_up.grow_to_minimum()
        return node_counts(scale_up)

    assert (least(min=2), least(totalMin=3, totalMax=9), least()) == ({"pool": 4}, {"pool": 3}, {})


def test_scale_up_reuses_failure_of_identical_gang() -> None:
    no_pools = NoPools()
    scale_up = planner(groups(pool(most=1, zones=[A])), new_pools=no_pools)
    for gang in ("g", "h"):
        assert not help_all(scale_up, f"{gang}1", f"{gang}2", cpu="3", gang=gang)
    assert (no_pools.calls, scale_up.refusal_by_pod["uid-h2"]) == ([2, 1], f"1 {NOT_ALL_PODS_FIT}")


def test_group_without_room_or_fitting_pods_offers_no_scale_up() -> None:
    scale_up = planner(result := groups(pool(most=1, zones=[A])))
    assert scale_up.option(result, views("a", cpu="9"), []) is None
    option = scale_up.option(result, views("a"), [])
    assert option is not None
    assert [[pod.name for pod in pods] for pods in option.nodes] == [["a"]]
    scale_up.fleet.grow(result[0], 1)
    assert scale_up.option(result, views("a"), []) is None


def test_fitting_returns_shapes_that_fit() -> None:
    result: list[NodeGroup] = groups(pool(zones=[A]))
    scale_up, (pod, large) = planner(result), [*views("a"), *views("b", cpu="9")]
    assert scale_up.fitting_pod_kinds({pod.shape: [pod], large.shape: [large]}, result[0]) == [pod.shape]
