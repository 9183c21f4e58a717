"""The choice of topology domains for the pods of a pod set."""

from typing import Any

import pytest

from batchyard.api.well_known import HOSTNAME
from batchyard.topology.assigner import PodSetTopologyRequest
from batchyard.topology.state import TopologyState
from racks import node, place, racks, request, state, template

RACK: dict[str, Any] = {"podSetSliceRequiredTopology": "rack"}


def test_required_level_gets_smallest_domain_that_suffices() -> None:
    topology = state(*racks(b1r1h1=4, b1r2h1=2, b1r3h1=3))
    assert place(topology, request(2, required="rack")) == "b1r2h1:2"
    assert place(topology, request(3, required="rack")) == "b1r3h1:3"


def test_required_level_is_never_split() -> None:
    topology = state(*racks(b1r1h1=2, b1r2h1=2))
    assert place(topology, request(3, required="rack")) == ('topology "racks" allows to fit only 2 out of 3 pod(s)')


def test_preferred_level_climbs_until_one_domain_suffices() -> None:
    topology = state(*racks(b1r1h1=2, b1r2h1=2, b2r1h1=1, b2r2h1=2))
    assert place(topology, request(3, preferred="rack")) == "b2r1h1:1 b2r2h1:2"
    assert place(topology, request(4, preferred="rack")) == "b1r1h1:2 b1r2h1:2"


def test_preferred_level_uses_largest_domains_at_the_top_and_the_tightest_last() -> None:
    topology = state(*racks(b1r1h1=4, b2r1h1=2, b3r1h1=1, b4r1h1=3))
    assert place(topology, request(5, preferred="rack")) == "b1r1h1:4 b3r1h1:1"


def test_unconstrained_pods_fill_smallest_hosts_first() -> None:
    topology = state(*racks(b1r1h1=4, b1r1h2=1, b1r1h3=2))
    assert place(topology, request(2, unconstrained=True)) == "b1r1h3:2"
    assert place(topology, request(5, unconstrained=True)) == "b1r1h1:2 b1r1h2:1 b1r1h3:2"


def test_without_mixed_profile_unconstrained_pods_fill_largest_hosts_first() -> None:
    topology = state(*racks(b1r1h1=4, b1r1h2=1, b1r1h3=2), TASProfileMixed=False)
    assert place(topology, request(5, unconstrained=True)) == "b1r1h1:4 b1r1h2:1"


def test_implied_topology_is_unconstrained() -> None:
    assert place(state(*racks(b1r1h1=4, b1r1h2=1)), request(1)) == "b1r1h2:1"


def test_equal_domains_are_chosen_by_path() -> None:
    topology = state(*racks(b2r1h1=2, b1r2h1=2, b1r1h1=2))
    assert place(topology, request(2, required="rack")) == "b1r1h1:2"


def test_slices_stay_whole_within_their_level() -> None:
    topology = state(*racks(b1r1h1=3, b1r2h1=2, b1r3h1=2))
    assert place(topology, request(4, required="block", podSetSliceSize=2, **RACK)) == "b1r2h1:2 b1r3h1:2"
    assert place(topology, request(6, required="block", podSetSliceSize=3, **RACK)) == (
        'topology "racks" allows to fit only 1 out of 2 slice(s)'
    )


def test_inner_slices_stay_whole_on_hosts() -> None:
    topology = state(*racks(b1r1h1=3, b1r1h2=3, b1r2h1=4))
    layers = [{"topology": "rack", "size": 4}, {"topology": "kubernetes.io/hostname", "size": 2}]
    constraints: dict[str, Any] = {"podsetSliceRequiredTopologyConstraints": layers}
    assert place(topology, request(8, required="block", **constraints)) == "b1r1h1:2 b1r1h2:2 b1r2h1:4"


def test_leader_sits_where_the_workers_still_fit() -> None:
    topology = state(*racks(b1r1h1=2, b1r1h2=3))
    workers, leader = (
        request(4, "workers", required="rack", group="g"),
        request(1, "leader", required="rack", group="g"),
    )
    assert place(topology, workers, leader) == {"workers": "b1r1h1:2 b1r1h2:2", "leader": "b1r1h2:1"}


def test_domain_without_nodes_does_not_count_beside_a_leader_without_room() -> None:
    nodes = racks(b1r1h1=4, b2r1h1=4)
    topology = state(*nodes)
    topology.build()
    topology.observe_node({"metadata": {"name": "b1r1h1", "labels": nodes[0].labels}}, None, is_deleted=True)
    workers, leader = request(6, "workers", required="block", group="g"), request(1, "leader", 5, "g", required="block")
    assert str(place(topology, workers, leader)).startswith('topology "racks" allows to fit only 4 out of 6 pod(s)')


def test_leader_and_workers_share_the_required_domain() -> None:
    topology = state(*racks(b1r1h1=2, b1r2h1=3))
    workers, leader = (
        request(2, "workers", required="rack", group="g"),
        request(1, "leader", required="rack", group="g"),
    )
    assert place(topology, leader, workers) == {"workers": "b1r2h1:2", "leader": "b1r2h1:1"}


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"required": "zone"}, "no requested topology level: zone"),
        ({"unconstrained": False}, "topology level not specified"),
        (
            {"required": "kubernetes.io/hostname", "podSetSliceSize": 1, **RACK},
            "podset slice topology rack is above the podset topology kubernetes.io/hostname",
        ),
        ({"preferred": "block", **RACK}, "slice topology requested, but slice size not provided"),
    ],
)
def test_unsuitable_request_is_explained(fields: dict[str, Any], reason: str) -> None:
    assert place(state(*racks(b1r1h1=4)), request(1, **fields)) == reason


def test_balanced_placement_spreads_evenly_over_fewest_domains() -> None:
    hosts = {"b1r1h1": 4, "b1r2h1": 4, "b1r3h1": 3}
    assert place(state(*racks(**hosts)), request(6, preferred="rack")) == "b1r1h1:4 b1r3h1:2"
    balanced = state(*racks(**hosts), TASBalancedPlacement=True)
    assert place(balanced, request(6, preferred="rack")) == "b1r1h1:3 b1r3h1:3"


# Preferred node affinity, with the gate TASRespectNodeAffinityPreferred.


def preferring(count: int, *terms: tuple[int, str], **fields: Any) -> PodSetTopologyRequest:
    """Pods that prefer hosts: each term is a weight and the value of the label `tier`."""
    preferences = [
        {"weight": weight, "preference": {"matchExpressions": [{"key": "tier", "operator": "In", "values": [tier]}]}}
        for weight, tier in terms
    ]
    affinity = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferences}}
    return request(count, **fields)._replace(template=template(affinity=affinity))


def tiers(**hosts: tuple[int, str]) -> TopologyState:
    """Hosts with cpus and a tier each, and the gate."""
    nodes = [node(f"b1/{name[:2]}/{name}", cpu, tier=tier) for name, (cpu, tier) in hosts.items()]
    return state(*nodes, TASRespectNodeAffinityPreferred=True)


@pytest.mark.parametrize(
    ("fields", "hosts"),
    [({"unconstrained": True}, "r2h1:2"), ({"required": "rack"}, "r2h1:2"), ({"preferred": HOSTNAME}, "r2h1:2")],
)
def test_score_comes_before_the_fit(fields: Any, hosts: str) -> None:
    topology = tiers(r1h1=(2, "slow"), r2h1=(4, "fast"), r3h1=(9, "fast"))
    pods = preferring(2, (10, "fast"), **fields)
    assert place(topology, pods) == hosts
    assert place(state(*topology.nodes.values()), pods) == "r1h1:2"


def test_scores_of_all_hosts_and_terms_add_up() -> None:
    topology = tiers(r1h1=(4, "a"), r2h1=(2, "b"), r2h2=(2, "b"))
    assert place(topology, preferring(2, (50, "a"), (20, "b"), required="rack")) == "r1h1:2"
    assert place(topology, preferring(2, (50, "a"), (20, "b"), (10, "b"), required="rack")) == "r2h1:2"


def test_required_level_falls_back_to_a_less_preferred_domain_but_preferred_level_climbs() -> None:
    topology = tiers(r1h1=(2, "fast"), r2h1=(3, "slow"), r3h1=(4, "slow"))
    assert place(topology, preferring(3, (1, "fast"), required="rack")) == "r2h1:3"
    assert place(topology, preferring(3, (1, "fast"), preferred="rack")) == "r1h1:2 r2h1:1"
    assert place(topology, preferring(5, (1, "fast"), unconstrained=True)) == "r1h1:2 r2h1:3"


def test_fields_are_matched_and_empty_or_weightless_terms_are_ignored() -> None:
    topology = tiers(r1h1=(2, "a"), r2h1=(2, "a"))
    field = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["r2h1"]}]}
    others = [{"weight": 99, "preference": {}}, {"weight": 0, "preference": field}]
    for terms, host in (([*others, {"weight": 1, "preference": field}], "r2h1:1"), (others, "r1h1:1")):
        affinity = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": terms}}
        pods = request(1, required="rack")._replace(template=template(affinity=affinity))
        assert place(topology, pods) == host


def test_scores_follow_changes_of_nodes() -> None:
    topology = tiers(r1h1=(2, "slow"), r2h1=(2, "fast"))
    pods = preferring(1, (1, "fast"), required="rack")
    assert place(topology, pods) == "r2h1:1"
    tiers_by_host = {"r1h1": "fast", "r2h1": "slow"}
    for name, tier in tiers_by_host.items():
        topology.observe_node(node_object(name, tier), None, is_deleted=False)
    assert place(topology, pods) == "r1h1:1"


def test_leader_is_placed_by_score_too() -> None:
    topology = tiers(r1h1=(3, "slow"), r2h1=(4, "fast"))
    workers = preferring(2, (1, "fast"), required="rack", group="g")
    assert place(topology, workers, request(1, "leader", required="rack", group="g")) == {
        "main": "r2h1:2",
        "leader": "r2h1:1",
    }


def node_object(name: str, tier: str) -> Any:
    """A ready Node of a tier with room for two pods."""
    labels = {"block": "b1", "rack": name[:2], HOSTNAME: name, "tier": tier}
    status = {"allocatable": {"cpu": "2", "pods": "110"}, "conditions": [{"type": "Ready", "status": "True"}]}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}, "status": status}
