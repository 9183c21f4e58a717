"""Pod affinity and anti-affinity."""

from typing import Any

from unit.placement.placement_make import (
    HOST,
    ZONE,
    cluster,
    node,
    place,
    pod,
    pod_term,
    preferred,
    required,
    unschedulable_message,
    view,
)

NEAR = required("podAffinity", pod_term(ZONE))
FAR = required("podAntiAffinity", pod_term(ZONE))
NODES = (node("a", "x"), node("b", "y"), node("c", "y"))


def labeled(name: str, on: str, app: str = "a", **fields: Any) -> Any:
    """A Pod on a node, with a label."""
    return pod(name, labels={"app": app}, nodeName=on, **fields)


def test_pod_affinity_selects_domain_of_matching_pod() -> None:
    nodes = cluster(*NODES, labeled("there", "c"))
    assert place(nodes, [pod("p", affinity=NEAR)]) == ["b"]


def test_pod_affinity_reports_no_node_without_matching_pod() -> None:
    nodes = cluster(*NODES, labeled("there", "a", app="other"))
    message = "0/3 nodes are available: 3 node(s) didn't match pod affinity rules."
    assert unschedulable_message(nodes, pod("p", affinity=NEAR)) == message


def test_pod_affinity_allows_first_self_matching_pod_anywhere() -> None:
    nodes = cluster(*NODES)
    group = [pod(f"p{i}", labels={"app": "a"}, affinity=NEAR) for i in range(3)]
    assert place(nodes, group) == ["a", "a", "a"]


def test_pod_affinity_of_first_self_matching_pod_requires_topology_label() -> None:
    bare = node("a")
    del bare["metadata"]["labels"][ZONE]
    first = pod(labels={"app": "a"}, affinity=NEAR)
    assert (
        unschedulable_message(cluster(bare), first)
        == "0/1 nodes are available: 1 node(s) didn't match pod affinity rules."
    )


def test_pod_affinity_requires_same_pod_to_match_all_terms() -> None:
    both = required("podAffinity", pod_term(ZONE), pod_term(HOST, match={"tier": "b"}))
    apart = cluster(*NODES, labeled("one", "a"), pod("two", labels={"tier": "b"}, nodeName="a"))
    assert place(apart, [pod("p", affinity=both)]) == [""]
    together = cluster(*NODES, pod("both", labels={"app": "a", "tier": "b"}, nodeName="b"))
    assert place(together, [pod("p", affinity=both)]) == ["b"]


def test_pod_anti_affinity_excludes_domains_of_matching_pods() -> None:
    nodes = cluster(*NODES, labeled("there", "b"))
    assert place(nodes, [pod("p", affinity=FAR)]) == ["a"]
    nodes = cluster(*NODES, labeled("there", "b"), labeled("here", "a"))
    message = "0/3 nodes are available: 3 node(s) didn't match pod anti-affinity rules."
    assert unschedulable_message(nodes, pod("p", affinity=FAR)) == message


def test_pod_anti_affinity_of_existing_pods_excludes_new_pod() -> None:
    nodes = cluster(*NODES, pod("loner", affinity=FAR, nodeName="a"), pod("other", affinity=FAR, nodeName="b"))
    message = "0/3 nodes are available: 3 node(s) didn't satisfy existing pods anti-affinity rules."
    assert unschedulable_message(nodes, pod("p", labels={"app": "a"})) == message
    assert place(nodes, [pod("q", labels={"app": "b"})]) == ["c"]


def test_self_matching_anti_affinity_allows_single_pod_in_each_domain() -> None:
    nodes = cluster(*NODES)
    group = [pod(f"p{i}", labels={"app": "a"}, affinity=FAR) for i in range(3)]
    assert place(nodes, group) == ["a", "b", ""]


def test_pod_affinity_ignores_namespaces_that_are_not_listed() -> None:
    stranger = labeled("there", "b", namespace="other")
    assert place(cluster(*NODES, stranger), [pod("p", affinity=NEAR)]) == [""]
    listed = required("podAffinity", pod_term(ZONE, namespaces=["other"]))
    assert place(cluster(*NODES, stranger), [pod("p", affinity=listed)]) == ["c"]


def test_pod_affinity_namespace_selector_matches_labels() -> None:
    nodes = cluster(*NODES, labeled("there", "b", namespace="other"))
    nodes.namespaces["other"] = {"kind": "x"}
    selected = required("podAffinity", pod_term(ZONE, namespaceSelector={"matchLabels": {"kind": "x"}}))
    assert place(nodes, [pod("p", affinity=selected)]) == ["c"]


def exclusive(job: str) -> Any:
    """The affinity that JobSet adds to the leader of a Job with exclusive placement."""
    own = {"key": "job-key", "operator": "In", "values": [job]}
    others = [{"key": "job-key", "operator": "Exists"}, {"key": "job-key", "operator": "NotIn", "values": [job]}]
    near = pod_term(ZONE, labelSelector={"matchExpressions": [own]})
    far = pod_term(ZONE, labelSelector={"matchExpressions": others})
    return {**required("podAffinity", near), **required("podAntiAffinity", far)}


def test_exclusive_job_leaders_get_separate_domains() -> None:
    nodes = cluster(*NODES)
    leaders = [pod(f"l{i}", labels={"job-key": f"j{i}"}, affinity=exclusive(f"j{i}")) for i in range(3)]
    assert place(nodes, leaders) == ["a", "b", ""]
    assert place(nodes, [pod("follower", labels={"job-key": "j1"}, nodeSelector={ZONE: "y"})]) == ["c"]


def test_affinity_index_forgets_removed_pods() -> None:
    nodes = cluster(*NODES, labeled("there", "b"))
    nodes.remove_pod("uid-there")
    assert place(nodes, [pod("p", affinity=FAR), pod("q", affinity=NEAR)]) == ["a", ""]


def test_preferred_affinity_and_anti_affinity_score_nodes() -> None:
    nodes = cluster(*NODES, labeled("there", "c"))
    assert place(nodes, [pod("p", affinity=preferred("podAffinity", 1, pod_term(ZONE)))]) == ["b"]
    assert place(nodes, [pod("q", affinity=preferred("podAntiAffinity", 1, pod_term(ZONE)))]) == ["a"]


def test_preferred_affinity_of_existing_pod_attracts_matching_pod() -> None:
    keen = preferred("podAffinity", 1, pod_term(HOST))
    nodes = cluster(*NODES, pod("keen", affinity=keen, nodeName="c"))
    assert place(nodes, [pod("p", labels={"app": "a"}), pod("q", labels={"app": "b"})]) == ["c", "a"]


def test_required_affinity_of_existing_pod_attracts_matching_pod() -> None:
    needy = required("podAffinity", pod_term(HOST))
    nodes = cluster(*NODES, labeled("needy", "c", affinity=needy))
    assert place(nodes, [pod("p", labels={"app": "a"})]) == ["c"]


def test_affinity_term_without_label_selector_selects_no_pod() -> None:
    bare = {"topologyKey": ZONE}
    nodes = cluster(*NODES, labeled("there", "a"))
    assert place(nodes, [pod("p", affinity=required("podAffinity", bare))]) == [""]
    assert place(nodes, [pod("q", affinity=required("podAntiAffinity", bare), nodeSelector={ZONE: "x"})]) == ["a"]


def test_pod_affinity_selects_pods_that_lack_label_value() -> None:
    not_b = {"key": "app", "operator": "NotIn", "values": ["b"]}
    nodes = cluster(*NODES, labeled("one", "a", app="b"), pod("two", nodeName="c", cpu="4"))
    near = required("podAffinity", pod_term(ZONE, labelSelector={"matchExpressions": [not_b]}))
    assert place(nodes, [pod("p", labels={"app": "b"}, affinity=near)]) == ["b"]
    nodes.add_pod(view(labeled("three", "b", app="b")), "b")
    gold = {"key": "tier", "operator": "In", "values": ["gold"]}
    near = required("podAffinity", pod_term(ZONE, labelSelector={"matchExpressions": [not_b, gold]}))
    assert place(nodes, [pod("q", affinity=near)]) == [""]
    nodes.add_pod(view(pod("four", labels={"tier": "gold"}, nodeName="a")), "a")
    assert place(nodes, [pod("q", affinity=near)]) == ["a"]


def test_preferred_affinity_ignores_pods_of_other_namespaces() -> None:
    nodes = cluster(*NODES, labeled("stranger", "c", namespace="other"))
    assert place(nodes, [pod("p", affinity=preferred("podAffinity", 1, pod_term(ZONE)))]) == ["a"]


def test_preferred_affinity_ignores_pods_on_nodes_without_topology_label() -> None:
    bare = node("c")
    del bare["metadata"]["labels"][ZONE]
    nodes = cluster(*NODES[:2], bare, labeled("there", "c"), labeled("lost", "unknown"))
    assert place(nodes, [pod("p", affinity=preferred("podAffinity", 1, pod_term(ZONE)))]) == ["a"]
    nodes = cluster(*NODES, labeled("there", "c"), labeled("lost", "unknown"))
    assert place(nodes, [pod("p", affinity=preferred("podAffinity", 1, pod_term(ZONE)))]) == ["b"]
