"""The scheduling queue: its order, and the changes after which it retries parked pods."""

from typing import Any

from batchyard.api.views.node import node_view
from batchyard.placement.cluster_snapshot import ClusterSnapshot
from batchyard.placement.scheduling_queue import SchedulingQueue
from unit.placement.placement_make import HOST, ZONE, cluster, member, node, pod, pod_term, required, view


class QueueBench:
    """A scheduling queue with its cluster snapshot."""

    def __init__(self, *objects: Any) -> None:
        self.nodes: ClusterSnapshot = cluster(*objects)
        self.waiting = SchedulingQueue(self.nodes)

    def add(self, *objects: Any) -> None:
        """Add pods to the queue."""
        for obj in objects:
            self.waiting.add(view(obj))

    def run_pass(self, *placed: str) -> list[list[str]]:
        """Run a pass that places the named pods on node `n` and parks the others; return the tried units."""
        tried = []
        self.waiting.start()
        while unit := self.waiting.next_unit():
            names = [p.name for p in unit]
            tried.append(names)
            if all(name in placed for name in names):
                for p in unit:
                    self.waiting.drop(p.uid)
                    self.nodes.add_pod(p, "n")
                    self.waiting.record_moved_pod(p, has_node=True)
            else:
                self.waiting.park(unit)
        return tried

    def remove_pod(self, name: str) -> None:
        """Remove a pod from its node."""
        gone = self.nodes.pod(f"uid-{name}")
        assert gone is not None
        self.nodes.remove_pod(gone.uid)
        self.waiting.record_moved_pod(gone, has_node=False)


def test_queue_sorts_by_priority_then_age_then_name() -> None:
    queue = QueueBench(node())
    queue.add(pod("d", created=1), pod("c", created=1), pod("b"), pod("a", priority=1, created=9))
    assert queue.run_pass() == [["a"], ["b"], ["c"], ["d"]]


def test_queue_does_not_retry_parked_pod_without_change() -> None:
    queue = QueueBench(node())
    queue.add(pod("a", cpu="9"))
    assert (queue.run_pass(), queue.run_pass(), queue.waiting.has_work) == ([["a"]], [], False)


def test_queue_returns_gang_as_unit() -> None:
    queue = QueueBench(node())
    queue.add(member("b"), pod("a"), member("c"))
    assert queue.run_pass() == [["a"], ["b", "c"]]


def test_queue_sorts_gang_by_oldest_and_highest_priority_member() -> None:
    queue = QueueBench(node())
    queue.add(member("b", created=5), member("c", priority=2), pod("a", priority=1))
    assert queue.run_pass() == [["b", "c"], ["a"]]


def test_queue_returns_members_of_running_gang_individually_and_first() -> None:
    queue = QueueBench(node())
    queue.waiting.record_moved_pod(view(member("running", nodeName="n")), has_node=True)
    queue.add(pod("a"), member("b", created=5), member("c", created=5))
    assert queue.run_pass() == [["b"], ["c"], ["a"]]


def test_queue_splits_parked_gang_after_first_member_runs() -> None:
    queue = QueueBench(node())
    queue.add(member("b", cpu="9"), member("c", cpu="9"))
    queue.run_pass()
    queue.waiting.record_moved_pod(view(member("running", nodeName="n")), has_node=True)
    assert queue.run_pass() == [["b"], ["c"]]


def test_queue_merges_gang_after_last_running_member_is_gone() -> None:
    queue = QueueBench(node())
    queue.waiting.record_moved_pod(view(member("running", nodeName="n")), has_node=True)
    queue.add(member("b", cpu="9"), member("c", cpu="9"))
    queue.run_pass()
    queue.waiting.record_moved_pod(view(member("running", nodeName="n")), has_node=False)
    assert queue.run_pass() == [["b", "c"]]


def test_queue_retries_gang_after_member_is_added_or_removed() -> None:
    queue = QueueBench(node())
    queue.add(member("b"), member("c"))
    queue.run_pass()
    queue.add(member("d"))
    assert queue.run_pass() == [["b", "c", "d"]]
    queue.waiting.drop("uid-c")
    assert queue.run_pass() == [["b", "d"]]


def test_queue_retries_pods_that_fit_freed_capacity() -> None:
    queue = QueueBench(node(), pod("t", cpu="4", nodeName="n"))
    queue.add(pod("small"), pod("large", cpu="9"))
    queue.run_pass()
    queue.remove_pod("t")
    assert queue.run_pass("small") == [["small"]]


def test_queue_retries_pods_that_new_node_accepts() -> None:
    queue = QueueBench()
    queue.add(pod("a"), pod("b", nodeSelector={ZONE: "elsewhere"}))
    queue.run_pass()
    queue.nodes.set_node(node_view(node()))
    assert queue.run_pass() == [["a"]]


def test_queue_retries_pods_after_taint_is_removed() -> None:
    queue = QueueBench(node(taints=[{"key": "t", "effect": "NoSchedule"}]))
    queue.add(pod("a"))
    queue.run_pass()
    queue.nodes.set_node(node_view(node(labels={"x": "y"}, taints=[{"key": "t", "effect": "NoSchedule"}])))
    assert queue.run_pass() == []
    queue.nodes.set_node(node_view(node()))
    assert queue.run_pass() == [["a"]]


def test_queue_retries_next_identical_pod_after_first_is_placed() -> None:
    queue = QueueBench(node(), pod("t", cpu="4", nodeName="n"))
    queue.add(*[pod(f"p{i}", cpu="2") for i in range(5)])
    queue.run_pass()
    queue.remove_pod("t")
    assert queue.run_pass("p0", "p1", "p2") == [["p0"], ["p1"]]


def test_queue_ignores_capacity_used_in_same_pass() -> None:
    queue = QueueBench(node(), pod("t", cpu="4", nodeName="n"))
    queue.add(pod("a", cpu="4", priority=1), pod("b", cpu="3"))
    queue.run_pass()
    queue.remove_pod("t")
    assert queue.run_pass("a") == [["a"]]


def test_queue_retries_preemptor_after_victim_candidate_appears() -> None:
    queue = QueueBench(node(), pod("t", cpu="4", nodeName="n", priority=5))
    queue.add(pod("high", priority=5), pod("never", priority=9, preemptionPolicy="Never"))
    queue.run_pass()
    queue.remove_pod("t")
    queue.nodes.add_pod(view(pod("low", cpu="4", nodeName="n")), "n")
    assert queue.run_pass() == [["high"]]


def test_queue_ignores_capacity_nominated_for_other_pods() -> None:
    queue = QueueBench(node(), pod("t", cpu="4", nodeName="n"))
    queue.nodes.nominate(view(pod("n", cpu="4")), "n")
    queue.add(pod("a"))
    queue.run_pass()
    queue.remove_pod("t")
    assert queue.run_pass() == []
    queue.nodes.withdraw_nomination("uid-n")
    assert queue.run_pass() == [["a"]]


def test_queue_retries_each_pod_nominated_to_changed_node() -> None:
    queue = QueueBench(node(), pod("t", cpu="4", nodeName="n", priority=9))
    nominated = [pod("a", cpu="3"), pod("b", cpu="4")]
    for obj in nominated:
        queue.nodes.nominate(view(obj), "n")
    queue.add(*nominated)
    queue.run_pass()
    queue.waiting.drop("uid-a")
    queue.nodes.set_node(node_view(node(labels={"x": "y"}, cpu="1")))
    assert queue.run_pass() == [["b"]]


def test_queue_retries_anti_affinity_pod_after_matching_pod_leaves() -> None:
    far = required("podAntiAffinity", pod_term(ZONE))
    queue = QueueBench(node(), node("m"), pod("t", labels={"app": "a"}, nodeName="m"), pod("u", nodeName="m"))
    queue.add(pod("a", affinity=far, nodeSelector={HOST: "n"}))
    queue.run_pass()
    queue.remove_pod("u")
    assert queue.run_pass() == []
    queue.remove_pod("t")
    assert queue.run_pass() == [["a"]]


def test_queue_retries_affinity_pod_after_matching_pod_arrives() -> None:
    near = required("podAffinity", pod_term(ZONE))
    queue = QueueBench(node(), node("m"))
    queue.add(pod("a", affinity=near, nodeSelector={HOST: "m"}), pod("b", labels={"app": "a"}))
    assert queue.run_pass("b") == [["a"], ["b"]]
    assert queue.run_pass() == [["a"]]


def test_queue_retries_spread_pod_after_counted_pod_leaves() -> None:
    rule = {"maxSkew": 1, "topologyKey": ZONE, "labelSelector": {"matchLabels": {"app": "a"}}}
    queue = QueueBench(node(), node("m"), pod("t", labels={"app": "a"}, nodeName="m"), pod("u", nodeName="m"))
    queue.add(pod("a", topologySpreadConstraints=[rule], nodeSelector={HOST: "n"}))
    queue.run_pass()
    queue.remove_pod("u")
    assert queue.run_pass() == []
    queue.remove_pod("t")
    assert queue.run_pass() == [["a"]]


def test_queue_retries_spread_pod_after_domains_change() -> None:
    rule = {"maxSkew": 1, "topologyKey": HOST, "labelSelector": {"matchLabels": {"app": "a"}}}
    queue = QueueBench(node(), node("full", cpu="0"), pod("t", labels={"app": "a"}, nodeName="n"))
    queue.add(pod("a", labels={"app": "a"}, topologySpreadConstraints=[rule]))
    queue.run_pass()
    queue.nodes.remove_node("full")
    assert queue.run_pass() == [["a"]]


def test_queue_retries_pod_after_anti_affinity_owner_leaves() -> None:
    far = required("podAntiAffinity", pod_term(ZONE))
    queue = QueueBench(node(), node("m"), pod("t", affinity=far, nodeName="m"))
    queue.add(pod("a", labels={"app": "a"}, nodeSelector={HOST: "n"}), pod("b", nodeSelector={HOST: "n"}))
    queue.run_pass()
    queue.remove_pod("t")
    assert queue.run_pass() == [["a"]]


def test_queue_retries_pod_after_domain_of_anti_affinity_owner_changes() -> None:
    far = required("podAntiAffinity", pod_term(ZONE))
    queue = QueueBench(node(), node("m", cpu="0"), pod("t", affinity=far, nodeName="m"))
    queue.add(pod("a", labels={"app": "a"}), pod("b", cpu="9"))
    queue.run_pass()
    queue.nodes.set_node(node_view(node("m", zone="y", cpu="0")))
    assert queue.run_pass() == [["a"]]


def test_queue_retries_pods_after_namespace_labels_change() -> None:
    far = required("podAntiAffinity", pod_term(ZONE))
    queue = QueueBench(node(), pod("t", labels={"x": "y"}, affinity=far, nodeName="n"))
    queue.add(pod("a", affinity=far, cpu="9"), pod("b", labels={"app": "a"}, cpu="9"), pod("c", cpu="9"))
    queue.run_pass()
    queue.waiting.record_namespace_change()
    assert queue.waiting.has_work
    assert queue.run_pass() == [["a"], ["b"]]
    assert not queue.waiting.has_work


def test_queue_retries_gang_if_change_helps_one_member() -> None:
    queue = QueueBench(node(), pod("full", cpu="4", nodeName="n", priority=5))
    polite = member("polite", priority=5, preemptionPolicy="Never")
    queue.add(member("able", priority=5), polite)
    queue.run_pass()
    queue.remove_pod("full")
    queue.nodes.add_pod(view(pod("low", cpu="4", priority=1)), "n")
    assert queue.run_pass() == [["able", "polite"]]


def test_queue_retries_pod_after_its_requests_change() -> None:
    queue = QueueBench(node())
    queue.add(pod("a", cpu="9"))
    queue.run_pass()
    queue.add(pod("a", cpu="1"))
    assert queue.run_pass() == [["a"]]


def test_queue_does_not_return_dropped_pod() -> None:
    queue = QueueBench(node())
    queue.add(pod("a"), pod("b"))
    queue.waiting.drop("uid-a")
    queue.waiting.drop("uid-unknown")
    assert queue.run_pass() == [["b"]]


def test_queue_records_no_changes_without_parked_pods() -> None:
    queue = QueueBench(node(), pod("t", nodeName="n"))
    queue.remove_pod("t")
    assert not queue.waiting.has_work
