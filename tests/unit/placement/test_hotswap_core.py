"""Victims of a gang without room: a minimal set of whole workloads, all of lower priority."""

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

import make
from batchyard.api.meta import Obj
from batchyard.api.views.pods import pod_view
from batchyard.base.instant import MINUTE
from batchyard.placement.cluster_snapshot import ClusterSnapshot
from batchyard.placement.gang import GangPlacement, PlacementClaim, place_claims
from batchyard.placement.hotswap import COMPARED_DOMAINS_MAX, EvictionUnit, HotswapPlan, eviction_message, find_hotswap
from batchyard.placement.node_filters import AutoscalingProfile
from batchyard.scheduling.messages import parse_preemptor_uid
from unit.placement.hotswap_make import HIGH, LOW, EvictionUnits, claim, names, running, slice_of
from unit.placement.placement_make import cluster, member, node, pod

FULL = AutoscalingProfile.BALANCED


def slices(*objs: Iterable[Obj], pools: str = "abc") -> ClusterSnapshot:
    """Slices by these names, and the pods of Jobs on them."""
    return cluster(*[each for pool in pools for each in slice_of(pool)], *[pod for job in objs for pod in job])


def swap(
    nodes: ClusterSnapshot, *claims: PlacementClaim, leaving: tuple[str, ...] = (), **lost: int
) -> HotswapPlan | None:
    return find_hotswap(claims, nodes, EvictionUnits(nodes, lost, leaving), FULL)


def victims(nodes: ClusterSnapshot, *claims: PlacementClaim, leaving: tuple[str, ...] = (), **lost: int) -> list[str]:
    """The names of the victims."""
    result = swap(nodes, *claims, leaving=leaving, **lost)
    assert result is not None, "there is no way"
    return names(result.victims)


def single(obj: Obj) -> PlacementClaim:
    return PlacementClaim((pod_view(obj),))


# --- victims ---


def test_hotswap_evicts_whole_workload_to_free_domain() -> None:
    nodes = slices(running("low", 0, "a"), running("low", 1, "b"), pools="ab")
    result = swap(nodes, claim())
    assert result is not None
    assert [len(occupant.pods) for occupant in result.victims] == [8]
    assert sorted(result.nodes.values()) == ["a-0", "a-1", "a-2", "a-3"]


def test_hotswap_evicts_no_workload_if_free_domain_exists() -> None:
    nodes = slices(running("low", 0, "a"))
    result = swap(nodes, claim())
    assert result == HotswapPlan({p.uid: f"b-{i}" for i, p in enumerate(claim().pods)}, [])


def test_hotswap_evicts_workload_with_least_lost_work() -> None:
    nodes = slices(running("x", 0, "a"), running("y", 0, "b"), running("z", 0, "c"))
    assert victims(nodes, claim(), x=30, y=10, z=20) == ["y"]


def test_hotswap_prefers_smallest_then_first_name_at_equal_cost() -> None:
    nodes = slices(running("x", 0, "a"), running("x", 1, "b"), running("y", 0, "c"), running("z", 0, "d"), pools="abcd")
    assert victims(nodes, claim()) == ["y"]


def test_hotswap_node_cost_counts_required_victims_only() -> None:
    beside = [pod(name, nodeName="n", cpu="2", priority=LOW) for name in ("cheap", "dear")]
    nodes = cluster(node("m"), node("n"), pod("middle", nodeName="m", cpu="4", priority=LOW), *beside)
    assert victims(nodes, single(pod("p", cpu="2", priority=HIGH)), cheap=1, middle=50, dear=100) == ["cheap"]


def test_hotswap_skips_domain_it_cannot_free_completely() -> None:
    nodes = slices(running("x", 0, "a", hosts=2), [pod("p", nodeName="a-3", priority=HIGH)], running("y", 0, "b"))
    nodes.remove_node("c-0")
    assert victims(nodes, claim(), x=1, y=99) == ["y"]


def test_hotswap_keeps_workloads_of_equal_and_higher_priority() -> None:
    nodes = slices(running("equal", 0, "a", HIGH), running("better", 0, "b", HIGH + 1), pools="ab")
    assert swap(nodes, claim()) is None


def test_hotswap_workload_priority_is_highest_pod_priority() -> None:
    mixed = [*running("mixed", 0, "a", hosts=3), *running("mixed", 1, "b", HIGH, hosts=1)]
    filler = running("equal", 0, "b", HIGH)[1:]
    assert swap(slices(mixed, filler, pools="ab"), claim()) is None


def test_hotswap_finds_no_plan_for_preemption_policy_never() -> None:
    nodes = slices(running("low", 0, "a"), pools="a")
    assert swap(nodes, claim(preemptionPolicy="Never")) is None


def test_hotswap_keeps_workload_that_is_not_evictable() -> None:
    nodes = slices(running("low", 0, "a"), running("lower", 0, "b"), pools="ab")
    assert victims(nodes, claim(), low=-1) == ["lower"]


def test_hotswap_keeps_pods_of_preempting_gang() -> None:
    nodes = cluster(node("n"), member("m1", "a", cpu="4", nodeName="n", priority=LOW))
    assert swap(nodes, single(member("m2", "a", cpu="4", priority=HIGH))) is None


def test_hotswap_compares_first_hundred_nodes_with_victims() -> None:
    hosts = [f"n{number:03}" for number in range(COMPARED_DOMAINS_MAX + 1)]
    nodes = cluster(*map(node, hosts), *[pod(f"on-{name}", nodeName=name, cpu="4", priority=LOW) for name in hosts])
    lost = {f"on-{name}": 9 for name in hosts} | {"on-n050": 5, "on-n100": 1}
    claims = [single(pod("p", cpu="4", priority=HIGH))]
    result = find_hotswap(claims, nodes, EvictionUnits(nodes, lost), FULL)
    assert result is not None
    assert names(result.victims) == ["on-n050"]
    nodes.remove_node("n000")
    result = find_hotswap(claims, nodes, EvictionUnits(nodes, lost), FULL)
    assert result is not None
    assert names(result.victims) == ["on-n100"]


# --- victims that already terminate ---


def test_hotswap_prefers_domain_of_workload_already_being_evicted() -> None:
    nodes = slices(running("x", 0, "a"), running("y", 0, "b"), pools="ab")
    result = swap(nodes, claim(), leaving=("y",), x=1, y=99)
    assert result is not None
    assert result.victims == []
    assert sorted(result.nodes.values()) == ["b-0", "b-1", "b-2", "b-3"]


def test_hotswap_counts_terminating_pods_as_free_for_policy_never() -> None:
    stopping = [{**p, "metadata": {**p["metadata"], "deletionTimestamp": make.stamp(9)}} for p in running("x", 0, "a")]
    nodes = slices(stopping, pools="a")
    assert victims(nodes, claim(preemptionPolicy="Never")) == []


def test_hotswap_keeps_nominated_domain_of_terminating_pods() -> None:
    stopping = [
        {**p, "metadata": {**p["metadata"], "deletionTimestamp": make.stamp(9)}}
        for p in [*running("x", 0, "a"), *running("x", 1, "b")]
    ]
    nodes = slices(stopping, pools="ab")
    own = claim()
    for number, each in enumerate(own.pods):
        nodes.nominate(each, f"b-{number}")
    result = swap(nodes, own)
    assert result is not None
    assert sorted(result.nodes.values()) == ["b-0", "b-1", "b-2", "b-3"]


# --- several victims ---


def test_hotswap_prefers_single_victim_for_all_claims() -> None:
    nodes = slices(running("x", 0, "a"), running("y", 0, "b"), running("z", 0, "c"), running("z", 1, "d"), pools="abcd")
    assert victims(nodes, claim(job=0), claim(job=1), x=1, y=2, z=50) == ["z"]


def test_hotswap_evicts_several_workloads_if_single_victim_is_not_enough() -> None:
    nodes = slices(running("x", 0, "a"), running("y", 0, "b"), running("z", 0, "c"))
    assert victims(nodes, claim(job=0), claim(job=1), x=3, y=1, z=2) == ["y", "z"]


def test_hotswap_drops_victims_that_become_unnecessary() -> None:
    # x is the cheapest for the first Job; w, required for the third, frees enough for all but one.
    jobs = [running("x", 0, "a"), *[running("w", i, pool) for i, pool in enumerate("bc")], running("y", 0, "d")]
    nodes = slices(*jobs, pools="abcd")
    assert victims(nodes, *[claim(job=i) for i in range(3)], x=5, w=8, y=1) == ["y", "w"]


def test_hotswap_evicts_blocking_pods_only() -> None:
    beside = [pod("p1", nodeName="a-0", cpu="1"), pod("p2", nodeName="a-1", cpu="1")]
    nodes = slices(running("x", 0, "a", hosts=1)[:0], beside, pools="a")
    assert victims(nodes, claim()) == ["p1", "p2"]
    assert victims(nodes, claim(size=2)) == []
    assert victims(nodes, claim(size=3), p1=7, p2=3) == ["p2"]


# --- gangs without domains ---


def test_hotswap_frees_nodes_for_gang_without_domain() -> None:
    gangs = [member(f"{gang}{i}", gang, cpu="4", nodeName=f"n{gang}{i}") for gang in "xy" for i in range(2)]
    nodes = cluster(*[node(f"n{gang}{i}") for gang in "xy" for i in range(2)], *gangs)
    claims = [single(member(f"m{i}", "m", cpu="3", priority=HIGH)) for i in range(2)]
    assert victims(nodes, *claims, x=2, y=1) == ["y"]


def test_hotswap_places_affinity_target_of_gang_first() -> None:
    near = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
        {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"role": "driver"}}}
    ]}}  # fmt: skip
    nodes = cluster(node("n"), member("v", "v", cpu="4", nodeName="n"))
    worker = single(member("w", "m", affinity=near, priority=HIGH))
    driver = single(member("d", "m", labels={"role": "driver"}, priority=HIGH))
    assert victims(nodes, worker, driver) == ["v"]


# --- messages ---


def test_hotswap_message_names_preemptor_victim_and_lost_work() -> None:
    victim = EvictionUnit("team/low", [pod_view(each) for each in running("low", 0, "a")], 61 * MINUTE)
    reported = eviction_message("team/high", "u1", "", victim)
    assert reported == (
        "Preempted to accommodate a workload (UID: u1, JobUID: UNKNOWN) due to Hotswap: team/high needs the nodes of"
        " team/low, whose 4 pods lose 61m of work since their last checkpoints"
    )
    assert parse_preemptor_uid(reported) == "u1"


# --- properties ---


@st.composite
def scenarios(draw: st.DrawFn) -> tuple[ClusterSnapshot, list[PlacementClaim], dict[str, int]]:
    """Slices with running Jobs of one or two slices, of two priorities, and a pending JobSet."""
    owners = draw(st.lists(st.sampled_from(["", "u", "v", "w", "x", "y"]), min_size=1, max_size=6))
    priorities = {name: draw(st.sampled_from([LOW, LOW, HIGH])) for name in "uvwxy"}
    sizes = draw(st.lists(st.integers(1, 4), min_size=6, max_size=6))
    jobs = [
        running(owner, number, f"s{number}", priorities[owner], sizes[number])
        for number, owner in enumerate(owners)
        if owner
    ]
    nodes = slices(*jobs, pools="")
    for number in range(len(owners)):
        for obj in cluster(*slice_of(f"s{number}")):
            nodes.set_node(obj.view)
    claims = [claim(job=number, size=draw(st.integers(1, 4))) for number in range(draw(st.integers(1, 3)))]
    return nodes, claims, {name: draw(st.integers(0, 3)) for name in "uvwxy"}


@given(scenarios())
def test_hotswap_victim_set_is_sufficient_and_minimal(
    scenario: tuple[ClusterSnapshot, list[PlacementClaim], dict[str, int]],
) -> None:
    nodes, claims, lost = scenario
    result = find_hotswap(claims, nodes, EvictionUnits(nodes, lost), FULL)
    if result is None:
        return
    for spared in (None, *result.victims):
        with nodes.what_if():
            for occupant in result.victims:
                assert occupant.priority < HIGH
                for each in () if occupant is spared else occupant.pods:
                    nodes.remove_pod(each.uid)
            assert isinstance(place_claims(claims, nodes, FULL), GangPlacement) is (spared is None)


@given(scenarios())
def test_hotswap_finds_plan_iff_eviction_of_all_lower_priorities_suffices(
    scenario: tuple[ClusterSnapshot, list[PlacementClaim], dict[str, int]],
) -> None:
    nodes, claims, lost = scenario
    if isinstance(place_claims(claims, nodes, FULL), GangPlacement):
        return
    result = find_hotswap(claims, nodes, EvictionUnits(nodes, lost), FULL)
    with nodes.what_if():
        occupant_of = EvictionUnits(nodes, lost)
        occupants = [occupant_of(p) for each in nodes for p in each.pods.values()]
        for occupant in occupants:
            for each in occupant.pods if occupant is not None and occupant.priority < HIGH else ():
                nodes.remove_pod(each.uid)
        placed = isinstance(place_claims(claims, nodes, FULL), GangPlacement)
    assert placed is (result is not None)
