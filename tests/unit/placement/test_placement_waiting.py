"""Who waits for a node, who is tried when, and what wakes the parked."""

from typing import Any

from batchyard.api.views.node import node_view
from batchyard.placement.cluster_snapshot import ClusterSnapshot
from batchyard.placement.scheduling_queue import SchedulingQueue
from unit.placement.placement_make import HOST, ZONE, cluster, member, node, pod, pod_term, required, view


class Line:
    """Pods that wait on a cluster."""

    def __init__(self, *objects: Any) -> None:
        self.nodes: ClusterSnapshot = cluster(*objects)
        self.waiting = SchedulingQueue(self.nodes)

    def add(self, *objects: Any) -> None:
        """Pods come."""
        for obj in objects:
            self.waiting.add(view(obj))

    def go(self, *placed: str) -> list[list[str]]:
        """A pass in which the pods of these names are placed on node `n` and the others parked: who was tried."""
        tried = []
        self.waiting.start()
        while unit := self.waiting.next_unit():
            names = [p.name for p in unit]
            tried.append(names)
            if all(name in placed for name in names):
                for p in unit:
                    self.waiting.drop(p.uid)
                    self.nodes.add_pod(p, "n")
                    self.waiting.note_moved(p, has_node=True)
            else:
                self.waiting.park(unit)
        return tried

    def leave(self, name: str) -> None:
        """A pod leaves its node."""
        gone = self.nodes.pod(f"uid-{name}")
        assert gone is not None
        self.nodes.remove_pod(gone.uid)
        self.waiting.note_moved(gone, has_node=False)


def test_priority_goes_before_age_and_age_before_the_name() -> None:
    line = Line(node())
    line.add(pod("d", created=1), pod("c", created=1), pod("b"), pod("a", priority=1, created=9))
    assert line.go() == [["a"], ["b"], ["c"], ["d"]]


def test_who_was_parked_is_not_tried_again_without_a_reason() -> None:
    line = Line(node())
    line.add(pod("a", cpu="9"))
    assert (line.go(), line.go(), line.waiting.has_work) == ([["a"]], [], False)


def test_a_gang_is_tried_as_a_whole() -> None:
    line = Line(node())
    line.add(member("b"), pod("a"), member("c"))
    assert line.go() == [["a"], ["b", "c"]]


def test_a_gang_takes_the_turn_of_its_first_and_of_its_most_important() -> None:
    line = Line(node())
    line.add(member("b", created=5), member("c", priority=2), pod("a", priority=1))
    assert line.go() == [["b", "c"], ["a"]]


def test_the_rest_of_a_gang_that_has_begun_is_tried_one_by_one_and_first() -> None:
    line = Line(node())
    line.waiting.note_moved(view(member("running", nodeName="n")), has_node=True)
    line.add(pod("a"), member("b", created=5), member("c", created=5))
    assert line.go() == [["b"], ["c"], ["a"]]


def test_a_gang_that_begins_while_parked_is_tried_one_by_one() -> None:
    line = Line(node())
    line.add(member("b", cpu="9"), member("c", cpu="9"))
    line.go()
    line.waiting.note_moved(view(member("running", nodeName="n")), has_node=True)
    assert line.go() == [["b"], ["c"]]


def test_a_gang_of_which_nothing_runs_any_more_is_tried_as_a_whole_again() -> None:
    line = Line(node())
    line.waiting.note_moved(view(member("running", nodeName="n")), has_node=True)
    line.add(member("b", cpu="9"), member("c", cpu="9"))
    line.go()
    line.waiting.note_moved(view(member("running", nodeName="n")), has_node=False)
    assert line.go() == [["b", "c"]]


def test_a_gang_is_tried_again_when_it_grows_or_shrinks() -> None:
    line = Line(node())
    line.add(member("b"), member("c"))
    line.go()
    line.add(member("d"))
    assert line.go() == [["b", "c", "d"]]
    line.waiting.drop("uid-c")
    assert line.go() == [["b", "d"]]


def test_room_wakes_those_it_is_enough_for() -> None:
    line = Line(node(), pod("t", cpu="4", nodeName="n"))
    line.add(pod("small"), pod("large", cpu="9"))
    line.go()
    line.leave("t")
    assert line.go("small") == [["small"]]


def test_a_new_node_wakes_those_whom_it_would_take() -> None:
    line = Line()
    line.add(pod("a"), pod("b", nodeSelector={ZONE: "elsewhere"}))
    line.go()
    line.nodes.set_node(node_view(node()))
    assert line.go() == [["a"]]


def test_a_taint_that_goes_wakes_those_it_kept_off() -> None:
    line = Line(node(taints=[{"key": "t", "effect": "NoSchedule"}]))
    line.add(pod("a"))
    line.go()
    line.nodes.set_node(node_view(node(labels={"x": "y"}, taints=[{"key": "t", "effect": "NoSchedule"}])))
    assert line.go() == []
    line.nodes.set_node(node_view(node()))
    assert line.go() == [["a"]]


def test_of_those_who_ask_for_the_same_the_next_is_tried_when_the_first_is_placed() -> None:
    line = Line(node(), pod("t", cpu="4", nodeName="n"))
    line.add(*[pod(f"p{i}", cpu="2") for i in range(5)])
    line.go()
    line.leave("t")
    assert line.go("p0", "p1", "p2") == [["p0"], ["p1"]]


def test_room_that_others_took_in_the_same_pass_wakes_nobody() -> None:
    line = Line(node(), pod("t", cpu="4", nodeName="n"))
    line.add(pod("a", cpu="4", priority=1), pod("b", cpu="3"))
    line.go()
    line.leave("t")
    assert line.go("a") == [["a"]]


def test_pods_that_may_preempt_are_woken_by_those_they_may_take_from() -> None:
    line = Line(node(), pod("t", cpu="4", nodeName="n", priority=5))
    line.add(pod("high", priority=5), pod("never", priority=9, preemptionPolicy="Never"))
    line.go()
    line.leave("t")
    line.nodes.add_pod(view(pod("low", cpu="4", nodeName="n")), "n")
    assert line.go() == [["high"]]


def test_room_that_is_held_for_others_wakes_nobody() -> None:
    line = Line(node(), pod("t", cpu="4", nodeName="n"))
    line.nodes.nominate(view(pod("n", cpu="4")), "n")
    line.add(pod("a"))
    line.go()
    line.leave("t")
    assert line.go() == []
    line.nodes.withdraw("uid-n")
    assert line.go() == [["a"]]


def test_who_minds_others_is_woken_by_those_it_minds() -> None:
    far = required("podAntiAffinity", pod_term(ZONE))
    line = Line(node(), node("m"), pod("t", labels={"app": "a"}, nodeName="m"), pod("u", nodeName="m"))
    line.add(pod("a", affinity=far, nodeSelector={HOST: "n"}))
    line.go()
    line.leave("u")
    assert line.go() == []
    line.leave("t")
    assert line.go() == [["a"]]


def test_who_wants_company_is_woken_by_its_coming() -> None:
    near = required("podAffinity", pod_term(ZONE))
    line = Line(node(), node("m"))
    line.add(pod("a", affinity=near, nodeSelector={HOST: "m"}), pod("b", labels={"app": "a"}))
    assert line.go("b") == [["a"], ["b"]]
    assert line.go() == [["a"]]


def test_who_is_spread_is_woken_by_those_it_is_spread_among() -> None:
    rule = {"maxSkew": 1, "topologyKey": ZONE, "labelSelector": {"matchLabels": {"app": "a"}}}
    line = Line(node(), node("m"), pod("t", labels={"app": "a"}, nodeName="m"), pod("u", nodeName="m"))
    line.add(pod("a", topologySpreadConstraints=[rule], nodeSelector={HOST: "n"}))
    line.go()
    line.leave("u")
    assert line.go() == []
    line.leave("t")
    assert line.go() == [["a"]]


def test_who_is_spread_is_woken_when_the_domains_are_others() -> None:
    rule = {"maxSkew": 1, "topologyKey": HOST, "labelSelector": {"matchLabels": {"app": "a"}}}
    line = Line(node(), node("full", cpu="0"), pod("t", labels={"app": "a"}, nodeName="n"))
    line.add(pod("a", labels={"app": "a"}, topologySpreadConstraints=[rule]))
    line.go()
    line.nodes.remove_node("full")
    assert line.go() == [["a"]]


def test_who_was_kept_away_is_woken_when_the_other_leaves() -> None:
    far = required("podAntiAffinity", pod_term(ZONE))
    line = Line(node(), node("m"), pod("t", affinity=far, nodeName="m"))
    line.add(pod("a", labels={"app": "a"}, nodeSelector={HOST: "n"}), pod("b", nodeSelector={HOST: "n"}))
    line.go()
    line.leave("t")
    assert line.go() == [["a"]]


def test_who_was_kept_away_is_woken_when_the_domains_are_others() -> None:
    far = required("podAntiAffinity", pod_term(ZONE))
    line = Line(node(), node("m", cpu="0"), pod("t", affinity=far, nodeName="m"))
    line.add(pod("a", labels={"app": "a"}), pod("b", cpu="9"))
    line.go()
    line.nodes.set_node(node_view(node("m", zone="y", cpu="0")))
    assert line.go() == [["a"]]


def test_who_minds_others_is_woken_when_namespaces_have_other_labels() -> None:
    far = required("podAntiAffinity", pod_term(ZONE))
    line = Line(node(), pod("t", labels={"x": "y"}, affinity=far, nodeName="n"))
    line.add(pod("a", affinity=far, cpu="9"), pod("b", labels={"app": "a"}, cpu="9"), pod("c", cpu="9"))
    line.go()
    line.waiting.note_namespaces()
    assert line.waiting.has_work
    assert line.go() == [["a"], ["b"]]
    assert not line.waiting.has_work


def test_a_gang_is_woken_by_what_helps_one_of_its_pods_though_another_may_not_preempt() -> None:
    line = Line(node(), pod("full", cpu="4", nodeName="n", priority=5))
    polite = member("polite", priority=5, preemptionPolicy="Never")
    line.add(member("able", priority=5), polite)
    line.go()
    line.leave("full")
    line.nodes.add_pod(view(pod("low", cpu="4", priority=1)), "n")
    assert line.go() == [["able", "polite"]]


def test_pods_that_ask_for_something_else_now_are_tried() -> None:
    line = Line(node())
    line.add(pod("a", cpu="9"))
    line.go()
    line.add(pod("a", cpu="1"))
    assert line.go() == [["a"]]


def test_who_is_dropped_is_not_tried() -> None:
    line = Line(node())
    line.add(pod("a"), pod("b"))
    line.waiting.drop("uid-a")
    line.waiting.drop("uid-unknown")
    assert line.go() == [["b"]]


def test_nothing_is_remembered_while_nobody_is_parked() -> None:
    line = Line(node(), pod("t", nodeName="n"))
    line.leave("t")
    assert not line.waiting.has_work
