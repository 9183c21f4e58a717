"""A leader goes only where the whole of its Job has room."""

from batchyard.api import well_known
from batchyard.api.views.pods import pod_view
from batchyard.placement.cluster_snapshot import ClusterSnapshot
from batchyard.placement.gang import GangPlaced, GangUnschedulable, PlacementClaim, place_claims, placeholders
from batchyard.placement.node_filters import AutoscalingProfile
from unit.placement.hotswap_make import HIGH, LOW, claim, leader, running, slice_of
from unit.placement.placement_make import cluster, node, pod, pod_term, required


def placed(nodes: ClusterSnapshot, *claims: PlacementClaim) -> dict[str, list[str]]:
    """The nodes of each claim."""
    found = place_claims(claims, nodes, AutoscalingProfile.BALANCED)
    assert isinstance(found, GangPlaced), found
    return {each.leader.name: sorted(found.nodes[p.uid] for p in each.pods) for each in claims}


def stuck(nodes: ClusterSnapshot, *claims: PlacementClaim) -> str:
    """Why claims are not placed."""
    found = place_claims(claims, nodes, AutoscalingProfile.BALANCED)
    assert isinstance(found, GangUnschedulable), found
    return found.why.message()


def hosts(pool: str) -> list[str]:
    return [f"{pool}-{number}" for number in range(4)]


def test_stand_ins_ask_for_what_followers_ask_for() -> None:
    first, second = placeholders(leader("high"), 2)
    assert (first.uid, second.uid) == ("uid-high-0-0+1", "uid-high-0-0+2")
    assert first.shape is second.shape
    assert first.requests == pod_view(leader("high")).requests
    assert first.labels == pod_view(leader("high")).labels
    assert not first.shape.affinity
    assert not first.shape.anti_affinity


def test_stand_ins_keep_the_terms_that_the_template_has_itself() -> None:
    own = required("podAntiAffinity", pod_term(match={"app": "noisy"}))
    (follower,) = placeholders(leader("high", affinity=own), 1)
    assert [term.topology_key for term in follower.shape.anti_affinity] == ["kubernetes.io/hostname"]


def test_a_job_has_a_domain_to_itself() -> None:
    nodes = cluster(*slice_of("a"), *slice_of("b"))
    found = placed(nodes, claim(job=0), claim(job=1))
    assert found == {"high-0-0": hosts("a"), "high-1-0": hosts("b")}


def test_a_leader_does_not_go_where_its_followers_have_no_room() -> None:
    small = pod("small", nodeName="a-3")
    nodes = cluster(*slice_of("a"), *slice_of("b"), small)
    assert placed(nodes, claim()) == {"high-0-0": hosts("b")}


def test_why_a_job_has_no_room_is_told() -> None:
    small = pod("small", nodeName="a-3")
    nodes = cluster(*slice_of("a"), *running("same", 0, "b", HIGH)[:1], *slice_of("b"), node("other"), small)
    assert stuck(nodes, claim()) == (
        "0/9 nodes are available: 1 node(s) didn't match pod affinity rules, 2 Insufficient cpu, "
        "3 node(s) didn't match pod anti-affinity rules, 3 node(s) were in a domain without room for the whole Job."
    )


def test_of_two_jobs_none_is_placed_if_one_has_no_room() -> None:
    nodes = cluster(*slice_of("a"), *slice_of("b", hosts=3))
    assert stuck(nodes, claim(job=0), claim(job=1)).startswith("0/7 nodes are available: ")


def test_pods_without_a_domain_are_placed_beside() -> None:
    nodes = cluster(*slice_of("a"), node("other", cpu="8"))
    driver = PlacementClaim((pod_view(pod("driver", cpu="5")),))
    assert placed(nodes, driver, claim()) == {"driver": ["other"], "high-0-0": hosts("a")}


def test_room_held_for_others_of_no_lower_priority_is_taken() -> None:
    nodes = cluster(*slice_of("a"), *slice_of("b"))
    nodes.nominate(pod_view(leader("rival")), "a-2")
    nodes.nominate(pod_view(leader("weak", priority=LOW)), "b-2")
    assert placed(nodes, claim()) == {"high-0-0": hosts("b")}


def test_room_held_for_the_gang_itself_is_free_to_it() -> None:
    nodes = cluster(*slice_of("a"))
    own = claim()
    for number, each in enumerate(own.pods):
        nodes.nominate(each, f"a-{number}")
    assert placed(nodes, own) == {"high-0-0": hosts("a")}
    assert nodes.nomination_of(own.pods[3].uid) == "a-3"


def test_room_held_for_all_of_them_is_where_they_go() -> None:
    nodes = cluster(*slice_of("a"), *slice_of("b"))
    own = claim()
    for number, each in enumerate(own.pods):
        nodes.nominate(each, f"b-{number}")
    assert placed(nodes, own) == {"high-0-0": hosts("b")}
    nodes.withdraw(own.pods[3].uid)
    assert placed(nodes, own) == {"high-0-0": hosts("a")}


def test_the_largest_job_of_a_gang_goes_first() -> None:
    nodes = cluster(*slice_of("a"), *slice_of("b", hosts=2))
    assert placed(nodes, claim(job=0, size=1), claim(job=1)) == {"high-0-0": ["b-0"], "high-1-0": hosts("a")}


def test_nodes_without_the_label_are_in_no_domain() -> None:
    nodes = cluster(*[node(f"n{i}") for i in range(4)])
    assert claim().topology_key == well_known.NODE_POOL
    assert stuck(nodes, claim()) == "0/4 nodes are available: 4 node(s) didn't match pod affinity rules."
