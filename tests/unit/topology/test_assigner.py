"""Assignments of several pod sets, and the replacement of a failed node."""

from typing import Any

from batchyard.api.views.topology import TopologyAssignment, TopologyDomain
from batchyard.api.well_known import HOSTNAME
from batchyard.topology.assigner import PodSetTopologyRequest
from batchyard.topology.state import usage_of
from racks import place, racks, request, state, template

RACK: dict[str, Any] = {"podSetSliceRequiredTopology": "rack", "podSetSliceSize": 2}


def existing(pods: PodSetTopologyRequest, **hosts: int) -> PodSetTopologyRequest:
    """The pod set with its existing assignment."""
    domains = tuple(TopologyDomain((host,), count) for host, count in hosts.items())
    return pods._replace(existing=TopologyAssignment((HOSTNAME,), domains))


def test_later_pod_sets_do_not_get_the_domains_of_earlier_ones() -> None:
    topology = state(*racks(b1r1h1=2, b1r2h1=3))
    first, second = request(2, required="rack"), request(3, "more", required="rack")
    assert place(topology, first, second) == {"main": "b1r1h1:2", "more": "b1r2h1:3"}
    assert place(topology, second, first) == {"more": "b1r2h1:3", "main": "b1r1h1:2"}
    assert place(topology, second, second._replace(name="other")) == (
        'topology "racks" allows to fit only 2 out of 3 pod(s). Total nodes: 2; excluded: resource "cpu": 1'
    )


def test_reservations_of_a_search_leave_no_trace() -> None:
    topology = state(*racks(b1r1h1=2))
    pods = request(1, required="rack")
    for _ in range(3):
        assert place(topology, pods, pods._replace(name="more")) == {"main": "b1r1h1:1", "more": "b1r1h1:1"}


def test_idle_search_ignores_workloads() -> None:
    topology = state(*racks(b1r1h1=2))
    topology.add_usage(
        usage_of(["tas"], TopologyAssignment((HOSTNAME,), (TopologyDomain(("b1r1h1",), 2),)), template())
    )
    pods = request(2, required="rack")
    assert str(place(topology, pods)).startswith('topology "racks" doesn\'t allow to fit any of 2 pod(s)')
    assert place(topology, pods, is_idle=True) == "b1r1h1:2"


def test_flavor_without_topology_is_reported() -> None:
    assert place(state(), request(1)._replace(flavor="gone")) == 'Flavor "gone" information missing in TAS cache'
    assert place(state(), request(1)) == f"no topology domains at level: {HOSTNAME}"


def test_failed_node_is_replaced_and_the_rest_stays() -> None:
    topology = state(*racks(b1r1h2=1, b1r1h3=2))
    pods = existing(request(3, preferred="rack"), b1r1h1=2, b1r1h2=1)
    assert place(topology, pods, failed_node="b1r1h1") == "b1r1h2:1 b1r1h3:2"


def test_replacement_stays_in_the_required_domain() -> None:
    topology = state(*racks(b1r1h2=1, b1r1h3=3, b1r2h1=2))
    pods = existing(request(3, required="rack"), b1r1h1=2, b1r1h2=1)
    assert place(topology, pods, failed_node="b1r1h1") == "b1r1h2:1 b1r1h3:2"
    other = existing(request(3, required="rack"), b1r1h1=2, b1r2h1=1)
    assert place(topology, other, failed_node="b1r1h1") == "b1r2h1:3"


def test_lone_failed_node_may_be_replaced_anywhere() -> None:
    pods = existing(request(2, required="rack"), b1r1h1=2)
    assert place(state(*racks(b2r1h1=2)), pods, failed_node="b1r1h1") == "b2r1h1:2"


def test_replacement_completes_the_broken_slice() -> None:
    topology = state(*racks(b1r1h2=2, b1r2h1=1, b1r2h2=1, b1r3h1=1))
    pods = existing(request(4, required="block", **RACK), b1r1h1=1, b1r1h2=1, b1r2h1=1, b1r2h2=1)
    assert place(topology, pods, failed_node="b1r1h1") == "b1r1h2:2 b1r2h1:1 b1r2h2:1"


def test_stale_assignment_is_not_repaired() -> None:
    pods = existing(request(3, preferred="rack"), b1r1h1=2, b1r1h9=1)
    assert place(state(*racks(b1r1h2=2)), pods, failed_node="b1r1h1") == (
        "Cannot replace the node, because the existing topologyAssignment is invalid, as it contains the stale domain"
        " b1r1h9"
    )


# Slices of elastic jobs.


def test_added_pods_of_a_slice_get_further_domains() -> None:
    topology = state(*racks(b1r1h1=4, b1r2h1=2, b1r3h1=3))
    topology.add_usage(
        usage_of(["tas"], TopologyAssignment((HOSTNAME,), (TopologyDomain(("b1r2h1",), 1),)), template())
    )
    assert place(topology, existing(request(3), b1r1h1=2)) == "b1r1h1:2 b1r2h1:1"


def test_running_pods_of_a_slice_keep_their_domains_without_room() -> None:
    topology = state(*racks(b1r1h1=2, b1r2h1=2))
    assert place(topology, existing(request(4), b1r1h1=2)) == "b1r1h1:2 b1r2h1:2"
    assert str(place(topology, existing(request(5), b1r1h1=2))).startswith(
        'topology "racks" allows to fit only 2 out of 3 pod(s)'
    )


def test_smaller_slice_gives_up_the_last_pods() -> None:
    topology = state(*racks(b1r1h1=2, b1r2h1=2))
    assert place(topology, existing(request(3), b1r1h1=2, b1r2h1=2)) == "b1r1h1:2 b1r2h1:1"
    assert place(topology, existing(request(2), b1r1h1=2, b1r2h1=2)) == "b1r1h1:2"


def test_slice_with_a_vanished_domain_is_placed_afresh() -> None:
    topology = state(*racks(b1r1h1=2, b1r2h1=2))
    assert place(topology, existing(request(2), b1r9h1=1)) == "b1r1h1:2"


def test_leader_of_a_slice_keeps_its_domain() -> None:
    topology = state(*racks(b1r1h1=4, b1r2h1=2))
    workers = existing(request(4)._replace(group="g"), b1r2h1=1)
    leader = existing(request(1, "leader")._replace(group="g"), b1r2h1=1)
    assert place(topology, workers, leader) == {"main": "b1r1h1:3 b1r2h1:1", "leader": "b1r2h1:1"}
    assert place(topology, workers, leader._replace(existing=None)) == {
        "main": "b1r1h1:3 b1r2h1:1",
        "leader": "b1r1h1:1",
    }
