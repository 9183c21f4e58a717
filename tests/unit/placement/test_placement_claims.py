"""A leader is placed only in a domain with room for its whole Job."""

from batchyard.api import well_known
from batchyard.api.views.pods import pod_view
from batchyard.placement.cluster_snapshot import ClusterSnapshot
from batchyard.placement.gang import GangPlacement, GangUnschedulable, PlacementClaim, place_claims, placeholders
from batchyard.placement.node_filters import AutoscalingProfile
from unit.placement.hotswap_make import HIGH, LOW, claim, leader, running, slice_of, worker
from unit.placement.placement_make import cluster, node, pod, pod_term, required


def claim_nodes(nodes: ClusterSnapshot, *claims: PlacementClaim) -> dict[str, list[str]]:
    """The nodes of each claim."""
    result = place_claims(claims, nodes, AutoscalingProfile.BALANCED)
    assert isinstance(result, GangPlacement), result
    return {each.leader.name: sorted(result.nodes[p.uid] for p in each.pods) for each in claims}


def claim_message(nodes: ClusterSnapshot, *claims: PlacementClaim) -> str:
    """The message of unschedulable claims."""
    result = place_claims(claims, nodes, AutoscalingProfile.BALANCED)
    assert isinstance(result, GangUnschedulable), result
    return result.fit_error.message()


def hosts(pool: str) -> list[str]:
    return [f"{pool}-{number}" for number in range(4)]


def test_placeholders_copy_requests_and_labels_without_exclusive_affinity() -> None:
    first, second = placeholders(leader("high"), 2)
    assert (first.uid, second.uid) == ("uid-high-0-0+1", "uid-high-0-0+2")
    assert first.shape is second.shape
    assert first.requests == pod_view(leader("high")).requests
    assert first.labels == pod_view(leader("high")).labels
    assert not first.shape.affinity
    assert not first.shape.anti_affinity


def test_placeholders_keep_affinity_terms_of_pod_template() -> None:
    own = required("podAntiAffinity", pod_term(match={"app": "noisy"}))
    (follower,) = placeholders(leader("high", affinity=own), 1)
    assert [term.topology_key for term in follower.shape.anti_affinity] == ["kubernetes.io/hostname"]


def test_placeholders_of_leader_without_affinity_equal_it() -> None:
    plain = worker("high", 0, 0, HIGH)
    (follower,) = placeholders(plain, 1)
    assert follower.shape is pod_view(plain).shape


def test_exclusive_claims_get_separate_domains() -> None:
    nodes = cluster(*slice_of("a"), *slice_of("b"))
    result = claim_nodes(nodes, claim(job=0), claim(job=1))
    assert result == {"high-0-0": hosts("a"), "high-1-0": hosts("b")}


def test_claim_skips_domain_without_room_for_followers() -> None:
    small = pod("small", nodeName="a-3")
    nodes = cluster(*slice_of("a"), *slice_of("b"), small)
    assert claim_nodes(nodes, claim()) == {"high-0-0": hosts("b")}


def test_claim_message_counts_domains_without_room_for_whole_job() -> None:
    small = pod("small", nodeName="a-3")
    nodes = cluster(*slice_of("a"), *running("same", 0, "b", HIGH)[:1], *slice_of("b"), node("other"), small)
    assert claim_message(nodes, claim()) == (
        "0/9 nodes are available: 1 node(s) didn't match pod affinity rules, 2 Insufficient cpu, "
        "3 node(s) didn't match pod anti-affinity rules, 3 node(s) were in a domain without room for the whole Job."
    )


def test_claims_of_two_jobs_fail_together() -> None:
    nodes = cluster(*slice_of("a"), *slice_of("b", hosts=3))
    assert claim_message(nodes, claim(job=0), claim(job=1)).startswith("0/7 nodes are available: ")


def test_claim_without_domain_is_placed_with_exclusive_claim() -> None:
    nodes = cluster(*slice_of("a"), node("other", cpu="8"))
    driver = PlacementClaim((pod_view(pod("driver", cpu="5")),))
    assert claim_nodes(nodes, driver, claim()) == {"driver": ["other"], "high-0-0": hosts("a")}


def test_claim_respects_nominations_of_equal_or_higher_priority() -> None:
    nodes = cluster(*slice_of("a"), *slice_of("b"))
    nodes.nominate(pod_view(leader("rival")), "a-2")
    nodes.nominate(pod_view(leader("weak", priority=LOW)), "b-2")
    assert claim_nodes(nodes, claim()) == {"high-0-0": hosts("b")}


def test_claim_uses_capacity_nominated_for_its_own_gang() -> None:
    nodes = cluster(*slice_of("a"))
    own = claim()
    for number, each in enumerate(own.pods):
        nodes.nominate(each, f"a-{number}")
    assert claim_nodes(nodes, own) == {"high-0-0": hosts("a")}
    assert nodes.nominated_node_of(own.pods[3].uid) == "a-3"


def test_claim_prefers_domain_nominated_for_all_its_pods() -> None:
    nodes = cluster(*slice_of("a"), *slice_of("b"))
    own = claim()
    for number, each in enumerate(own.pods):
        nodes.nominate(each, f"b-{number}")
    assert claim_nodes(nodes, own) == {"high-0-0": hosts("b")}
    nodes.withdraw_nomination(own.pods[3].uid)
    assert claim_nodes(nodes, own) == {"high-0-0": hosts("a")}


def test_claims_are_placed_largest_first() -> None:
    nodes = cluster(*slice_of("a"), *slice_of("b", hosts=2))
    assert claim_nodes(nodes, claim(job=0, size=1), claim(job=1)) == {"high-0-0": ["b-0"], "high-1-0": hosts("a")}


def test_claim_rejects_nodes_without_topology_label() -> None:
    nodes = cluster(*[node(f"n{i}") for i in range(4)])
    assert claim().topology_key == well_known.NODE_POOL
    assert claim_message(nodes, claim()) == "0/4 nodes are available: 4 node(s) didn't match pod affinity rules."
