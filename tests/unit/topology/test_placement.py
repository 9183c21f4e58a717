"""The choice of topology domains for the pods of a pod set."""

from typing import Any

import pytest

from racks import place, racks, request, state

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
