"""Pods that want to be near others, or far from them."""

from typing import Any

from unit.placement.placement_make import HOST, ZONE, cluster, node, place, pod, pod_term, preferred, reported, required

NEAR = required("podAffinity", pod_term(ZONE))
FAR = required("podAntiAffinity", pod_term(ZONE))
NODES = (node("a", "x"), node("b", "y"), node("c", "y"))


def labelled(name: str, on: str, app: str = "a", **fields: Any) -> Any:
    """A Pod on a node, with a label."""
    return pod(name, labels={"app": app}, nodeName=on, **fields)


def test_a_pod_joins_those_it_wants_to_be_near() -> None:
    nodes = cluster(*NODES, labelled("there", "c"))
    assert place(nodes, [pod("p", affinity=NEAR)]) == ["b"]


def test_a_pod_that_wants_company_waits_for_it() -> None:
    nodes = cluster(*NODES, labelled("there", "a", app="other"))
    message = "0/3 nodes are available: 3 node(s) didn't match pod affinity rules."
    assert reported(nodes, pod("p", affinity=NEAR)) == message


def test_the_first_of_a_group_that_means_itself_goes_anywhere() -> None:
    nodes = cluster(*NODES)
    group = [pod(f"p{i}", labels={"app": "a"}, affinity=NEAR) for i in range(3)]
    assert place(nodes, group) == ["a", "a", "a"]


def test_even_the_first_of_a_group_needs_a_domain() -> None:
    bare = node("a")
    del bare["metadata"]["labels"][ZONE]
    first = pod(labels={"app": "a"}, affinity=NEAR)
    assert reported(cluster(bare), first) == "0/1 nodes are available: 1 node(s) didn't match pod affinity rules."


def test_all_terms_are_meant_by_the_same_pod() -> None:
    both = required("podAffinity", pod_term(ZONE), pod_term(HOST, match={"tier": "b"}))
    apart = cluster(*NODES, labelled("one", "a"), pod("two", labels={"tier": "b"}, nodeName="a"))
    assert place(apart, [pod("p", affinity=both)]) == [""]
    together = cluster(*NODES, pod("both", labels={"app": "a", "tier": "b"}, nodeName="b"))
    assert place(together, [pod("p", affinity=both)]) == ["b"]


def test_a_pod_keeps_away_from_those_it_does_not_want() -> None:
    nodes = cluster(*NODES, labelled("there", "b"))
    assert place(nodes, [pod("p", affinity=FAR)]) == ["a"]
    nodes = cluster(*NODES, labelled("there", "b"), labelled("here", "a"))
    message = "0/3 nodes are available: 3 node(s) didn't match pod anti-affinity rules."
    assert reported(nodes, pod("p", affinity=FAR)) == message


def test_a_pod_keeps_away_from_those_that_do_not_want_it() -> None:
    nodes = cluster(*NODES, pod("loner", affinity=FAR, nodeName="a"), pod("other", affinity=FAR, nodeName="b"))
    message = "0/3 nodes are available: 3 node(s) didn't satisfy existing pods anti-affinity rules."
    assert reported(nodes, pod("p", labels={"app": "a"})) == message
    assert place(nodes, [pod("q", labels={"app": "b"})]) == ["c"]


def test_a_group_that_wants_none_of_itself_is_alone_in_each_domain() -> None:
    nodes = cluster(*NODES)
    group = [pod(f"p{i}", labels={"app": "a"}, affinity=FAR) for i in range(3)]
    assert place(nodes, group) == ["a", "b", ""]


def test_other_namespaces_are_not_meant_unless_they_are_listed() -> None:
    stranger = labelled("there", "b", namespace="other")
    assert place(cluster(*NODES, stranger), [pod("p", affinity=NEAR)]) == [""]
    listed = required("podAffinity", pod_term(ZONE, namespaces=["other"]))
    assert place(cluster(*NODES, stranger), [pod("p", affinity=listed)]) == ["c"]


def test_namespaces_may_be_selected_by_their_labels() -> None:
    nodes = cluster(*NODES, labelled("there", "b", namespace="other"))
    nodes.namespaces["other"] = {"kind": "x"}
    selected = required("podAffinity", pod_term(ZONE, namespaceSelector={"matchLabels": {"kind": "x"}}))
    assert place(nodes, [pod("p", affinity=selected)]) == ["c"]


def exclusive(job: str) -> Any:
    """What JobSet puts into the leader of a Job that is to be alone in its domain."""
    own = {"key": "job-key", "operator": "In", "values": [job]}
    others = [{"key": "job-key", "operator": "Exists"}, {"key": "job-key", "operator": "NotIn", "values": [job]}]
    near = pod_term(ZONE, labelSelector={"matchExpressions": [own]})
    far = pod_term(ZONE, labelSelector={"matchExpressions": others})
    return {**required("podAffinity", near), **required("podAntiAffinity", far)}


def test_leaders_of_exclusive_jobs_each_get_a_domain() -> None:
    nodes = cluster(*NODES)
    leaders = [pod(f"l{i}", labels={"job-key": f"j{i}"}, affinity=exclusive(f"j{i}")) for i in range(3)]
    assert place(nodes, leaders) == ["a", "b", ""]
    assert place(nodes, [pod("follower", labels={"job-key": "j1"}, nodeSelector={ZONE: "y"})]) == ["c"]


def test_a_domain_is_free_again_when_its_pods_have_gone() -> None:
    nodes = cluster(*NODES, labelled("there", "b"))
    nodes.remove_pod("uid-there")
    assert place(nodes, [pod("p", affinity=FAR), pod("q", affinity=NEAR)]) == ["a", ""]


def test_pods_are_drawn_to_those_they_would_rather_be_near() -> None:
    nodes = cluster(*NODES, labelled("there", "c"))
    assert place(nodes, [pod("p", affinity=preferred("podAffinity", 1, pod_term(ZONE)))]) == ["b"]
    assert place(nodes, [pod("q", affinity=preferred("podAntiAffinity", 1, pod_term(ZONE)))]) == ["a"]


def test_pods_are_drawn_to_those_who_would_rather_have_them_near() -> None:
    keen = preferred("podAffinity", 1, pod_term(HOST))
    nodes = cluster(*NODES, pod("keen", affinity=keen, nodeName="c"))
    assert place(nodes, [pod("p", labels={"app": "a"}), pod("q", labels={"app": "b"})]) == ["c", "a"]


def test_those_who_need_company_draw_it() -> None:
    needy = required("podAffinity", pod_term(HOST))
    nodes = cluster(*NODES, labelled("needy", "c", affinity=needy))
    assert place(nodes, [pod("p", labels={"app": "a"})]) == ["c"]
