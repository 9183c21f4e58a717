"""What the scheduler knows from watch events alone: who waits where, who holds what, and what wakes whom."""

from typing import Any

import pytest

import make
from batchyard.api import scheme
from batchyard.api.meta import Key, Obj, key_of, with_metadata, with_path
from batchyard.base.instant import SECOND
from batchyard.controllers.admission_index import AdmissionIndex
from batchyard.controllers.workload_book import GRACE
from batchyard.core.cycle import Cycle, Policy
from batchyard.core.decisions import Admit
from batchyard.core.lifecycle import workload as lifecycle
from batchyard.core.reasons import RequeueReason
from batchyard.ports.client import EventType, WatchEvent
from yard import cohort, group, queue, workload


class Watcher:
    """An index, and the watch events that reach it."""

    def __init__(self, *objects: Obj) -> None:
        self.index = AdmissionIndex()
        self.now = make.NOW
        self._known: dict[Key, Obj] = {}
        self.put(make.namespace(), make.flavor("spot"))
        self.put(*objects)

    def put(self, *objects: Obj) -> bool:
        """Objects are there or change; whether the last leaves something to decide."""
        found = False
        for obj in objects:
            key, old = key_of(obj), self._known.get(key_of(obj))
            kind = EventType.ADDED if old is None else EventType.MODIFIED
            self._known[key] = obj
            found = self.index.observe(WatchEvent(kind, key, obj, old, 0), self.now)
        return found

    def delete(self, kind: str, name: str, namespace: str = "") -> bool:
        """An object goes; whether there is something to decide."""
        key = Key(kind, namespace, name)
        obj = self._known.pop(key)
        return self.index.observe(WatchEvent(EventType.DELETED, key, obj, obj, 0), self.now)

    def change(self, kind: str, name: str, *path: str, value: object, namespace: str = "") -> bool:
        """One field of an object changes."""
        return self.put(with_path(self._known[Key(kind, namespace, name)], path, value))

    def heads(self) -> list[str]:
        """The heads, which wait no more."""
        heads = self.index.take_heads(self.now)
        for head in heads:
            self.index.pending[head.queue].remove(head.workload.key, forget_sticky=False)
        return [head.workload.name for head in heads]

    def park(self) -> None:
        """Find every head inadmissible, until nobody is in line."""
        while heads := self.index.take_heads(self.now):
            for head in heads:
                self.index.line_up.requeue(head, None, RequeueReason.GENERIC)

    def waiting(self, name: str = "cq") -> list[str]:
        """All that wait in a ClusterQueue."""
        return [view.name for view in self.index.pending[name].views()]

    def used(self, name: str = "cq") -> int:
        """What is used of a ClusterQueue, in whole cpus of flavor spot."""
        self.index.snapshot.settle()
        node = self.index.snapshot.queues[name].node
        return node.usage[self.index.snapshot.id_of("spot", "cpu")] // 1000


def open_queue(name: str = "cq", cpu: int = 4, **spec: Any) -> tuple[Obj, Obj]:
    """A ClusterQueue and its LocalQueue of the same name."""
    return queue(name, cpu, **spec), make.local_queue(name, cluster_queue=name)


def holding(name: str = "x", cpu: int = 2, *, queue: str = "cq", admitted: bool = True, **fields: Any) -> Obj:
    """A Workload that holds quota."""
    assignment = {"name": "main", "count": 1, "flavors": {"cpu": "spot"}, "resourceUsage": {"cpu": str(cpu)}}
    admission = {"clusterQueue": queue, "podSetAssignments": [assignment]}
    obj = workload(name, cpu, queue=fields.pop("local_queue", queue), **fields)
    return lifecycle.reserve_quota(obj, admission, make.NOW, admitted=admitted)


def parked(*objects: Obj, name: str = "a", cpu: int = 1) -> Watcher:
    """One cq with a parked Workload; the objects come before it."""
    watcher = Watcher(*open_queue(), *objects, workload(name, cpu))
    watcher.park()
    return watcher


# Who comes in line.


def test_a_workload_comes_in_line() -> None:
    watcher = Watcher(*open_queue())
    assert watcher.put(workload("a"))
    assert (watcher.heads(), watcher.heads()) == (["a"], [])


@pytest.mark.parametrize("order", range(3))
def test_the_order_in_which_queues_and_workloads_appear_does_not_matter(order: int) -> None:
    objects = [*open_queue(), workload("a")]
    watcher = Watcher(*objects[order:], *objects[:order])
    assert watcher.heads() == ["a"]


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"active": False}, id="inactive"),
        pytest.param({"conditions": [make.condition("Finished")]}, id="finished"),
        pytest.param({"annotations": {"kueue.x-k8s.io/admission-gated-by": "x"}}, id="gated"),
        pytest.param({"conditions": [make.condition("QuotaReserved", status=False, reason="OnHold")]}, id="on hold"),
        pytest.param({"conditions": [make.condition("WaitingForReplacementPods")]}, id="waiting for pods"),
        pytest.param({"queue": "nowhere"}, id="in a LocalQueue that is not there"),
    ],
)
def test_who_cannot_be_admitted_does_not_come_in_line(fields: dict[str, Any]) -> None:
    watcher = Watcher(*open_queue())
    watcher.put(workload("a", **fields))
    assert (watcher.waiting(), watcher.heads()) == ([], [])


def test_one_head_of_every_queue_is_taken_by_name() -> None:
    watcher = Watcher(*open_queue("b"), *open_queue("a"))
    watcher.put(*(workload(f"{name}{n}", queue=name, created=n) for name in "ba" for n in range(2)))
    assert [watcher.heads(), watcher.heads(), watcher.heads()] == [["a0", "b0"], ["a1", "b1"], []]


def test_an_inactive_queue_has_no_heads() -> None:
    watcher = Watcher(*open_queue(stopPolicy="Hold"), workload("a"))
    assert (watcher.heads(), watcher.waiting()) == ([], ["a"])


def test_a_workload_that_changes_its_queue_waits_in_the_other() -> None:
    watcher = Watcher(*open_queue("cq"), *open_queue("other"), workload("a"))
    watcher.put(workload("a", queue="other"))
    assert (watcher.waiting("cq"), watcher.waiting("other")) == ([], ["a"])


def test_a_workload_that_can_no_longer_be_admitted_leaves_the_line() -> None:
    watcher = Watcher(*open_queue(), workload("a"))
    watcher.put(workload("a", annotations={"kueue.x-k8s.io/admission-gated-by": "x"}))
    assert watcher.waiting() == []


@pytest.mark.parametrize("change", ["delete", "finish", "deactivate", "reserve"])
def test_who_is_done_waiting_leaves_the_line(change: str) -> None:
    watcher = Watcher(*open_queue(), workload("a"))
    changed = {
        "finish": workload("a", conditions=[make.condition("Finished")]),
        "deactivate": workload("a", active=False),
        "reserve": holding("a"),
    }
    if change == "delete":
        watcher.delete(scheme.WORKLOAD, "a", "team")
    else:
        watcher.put(changed[change])
    assert (watcher.waiting(), watcher.heads()) == ([], [])


# Who holds what.


def test_a_reservation_is_counted_as_its_status_has_it() -> None:
    watcher = Watcher(*open_queue(), holding("x", 3))
    assert watcher.used() == 3
    held = watcher.index.snapshot.holder("team/x")
    assert held is not None
    assert (held.local_queue, held.reserved_at, held.is_admitted) == ("team/cq", make.NOW, True)


def test_who_held_quota_before_its_queue_was_seen_is_counted_with_it() -> None:
    watcher = Watcher(holding("x", 3), holding("far", 1, queue="far"), *open_queue())
    assert watcher.used() == 3
    watcher.put(*open_queue("far"))
    assert (watcher.used(), watcher.used("far")) == (3, 1)


def test_an_assumed_admission_of_several_resources_is_confirmed_as_it_is() -> None:
    requests = {"cpu": "1", "memory": "1Gi", "gpu": "1"}
    groups = [group(spot={"cpu": 4, "memory": "4Gi", "gpu": 4})]
    local = make.local_queue("cq", cluster_queue="cq")
    asks = workload("a", pod_sets=[make.pod_set(requests=requests)])
    watcher = Watcher(queue("cq", groups=groups), local, asks)
    assumed(watcher)
    held = watcher.index.snapshot.holder("team/a")
    assignment = {"name": "main", "count": 1, "flavors": dict.fromkeys(requests, "spot"), "resourceUsage": requests}
    admission = {"clusterQueue": "cq", "podSetAssignments": [assignment]}
    watcher.put(lifecycle.reserve_quota(asks, admission, make.NOW, admitted=False))
    assert watcher.index.snapshot.holder("team/a") is held


def test_pod_sets_of_one_flavor_are_summed_up() -> None:
    pod_sets = [make.pod_set(name, requests={"cpu": "1"}) for name in ("a", "b")]
    assignments = [
        {"name": name, "count": 1, "flavors": {"cpu": "spot"}, "resourceUsage": {"cpu": "1"}} for name in ("a", "b")
    ]
    admission = {"clusterQueue": "cq", "podSetAssignments": assignments}
    obj = lifecycle.reserve_quota(workload("x", pod_sets=pod_sets), admission, make.NOW, admitted=True)
    assert Watcher(*open_queue(), obj).used() == 2


def test_pods_given_back_are_no_longer_counted() -> None:
    pod_sets = [make.pod_set(count=4, requests={"cpu": "1"})]
    assignment = {"name": "main", "count": 4, "flavors": {"cpu": "spot"}, "resourceUsage": {"cpu": "4"}}
    admission = {"clusterQueue": "cq", "podSetAssignments": [assignment]}
    obj = lifecycle.reserve_quota(workload("x", pod_sets=pod_sets), admission, make.NOW, admitted=True)
    watcher = Watcher(*open_queue(), obj)
    watcher.put(with_path(obj, ("status", "reclaimablePods"), [{"name": "main", "count": 3}]))
    assert watcher.used() == 1


@pytest.mark.parametrize("how", ["delete", "finish", "deactivate", "release"])
def test_who_is_done_holds_nothing(how: str) -> None:
    watcher = Watcher(*open_queue(), holding("x", 3))
    changed = {
        "finish": lifecycle.finish(holding("x", 3), "Done", "", make.NOW),
        "deactivate": with_path(holding("x", 3), ("spec", "active"), value=False),
        "release": workload("x", 3),
    }
    if how == "delete":
        watcher.delete(scheme.WORKLOAD, "x", "team")
    else:
        watcher.put(changed[how])
    assert watcher.used() == 0


def test_who_gave_its_quota_back_waits_again() -> None:
    watcher = Watcher(*open_queue(), holding("x", 3))
    watcher.put(workload("x", 3))
    assert watcher.waiting() == ["x"]


def test_an_eviction_under_way_is_known() -> None:
    watcher = Watcher(*open_queue(), holding("x"))
    watcher.put(lifecycle.evict(holding("x"), reason="Preempted", message="", now=make.NOW))
    held = watcher.index.snapshot.holder("team/x")
    assert held is not None
    assert held.evicted


def assumed(watcher: Watcher) -> Obj:
    """Decide on the one head and count its admission before it is written."""
    index = watcher.index
    heads = index.take_heads(watcher.now)
    (decision,) = Cycle(index.snapshot, Policy(), index.namespaces, 1).run(heads)
    assert isinstance(decision, Admit)
    index.assume(decision, watcher.now, admitted=False)
    return workload(heads[0].workload.name, 3)


def test_an_admission_counts_before_it_is_written() -> None:
    watcher = Watcher(*open_queue(), workload("a", 3))
    assumed(watcher)
    held = watcher.index.snapshot.holder("team/a")
    assert held is not None
    assert (watcher.used(), held.is_admitted, held.reserved_at) == (3, False, make.NOW)
    watcher.put(holding("a", 3))
    assert watcher.used() == 3


def test_an_admission_that_was_not_written_is_undone_by_the_change_that_was_faster() -> None:
    watcher = Watcher(*open_queue(), workload("a", 3))
    watcher.put(with_metadata(assumed(watcher), labels={"changed": "meanwhile"}))
    assert (watcher.used(), watcher.heads()) == (0, ["a"])


def test_figures_follow_what_is_held() -> None:
    watcher = Watcher(*open_queue(), holding("x", 3), holding("y", 1, admitted=False))
    count, local = watcher.index.queue_tally.get("cq"), watcher.index.local_tally.get("team/cq")
    assert (count.reserving, count.admitted, local.reserving, local.admitted) == (2, 1, 2, 1)
    watcher.put(workload("x", 3))
    assert (watcher.index.queue_tally.get("cq").reserving, watcher.index.local_tally.get("team/cq").admitted) == (1, 0)


def test_a_queue_that_goes_takes_its_figures_along() -> None:
    watcher = Watcher(*open_queue(), holding("x", 3))
    watcher.delete(scheme.CLUSTER_QUEUE, "cq")
    assert watcher.index.queue_tally.get("cq").reserving == 0
    assert watcher.index.local_tally.get("team/cq").reserving == 0
    assert watcher.heads() == []


# What wakes.


def test_the_parked_rest_until_something_happens() -> None:
    watcher = parked()
    assert watcher.heads() == []
    assert not watcher.put(workload("a", conditions=[make.condition("QuotaReserved", status=False, reason="x")]))


@pytest.mark.parametrize("how", ["delete", "finish", "deactivate", "release", "fewer pods", "lower priority"])
def test_quota_that_becomes_free_wakes(how: str) -> None:
    watcher = parked(holding("x", 3))
    held = holding("x", 3)
    changed = {
        "finish": lifecycle.finish(held, "Done", "", make.NOW),
        "deactivate": with_path(held, ("spec", "active"), value=False),
        "release": workload("x", 3, conditions=[make.condition("Requeued", status=False)]),
        "fewer pods": with_path(held, ("status", "reclaimablePods"), [{"name": "main", "count": 1}]),
        "lower priority": with_path(held, ("spec", "priority"), -5),
    }
    if how == "delete":
        assert watcher.delete(scheme.WORKLOAD, "x", "team")
    else:
        assert watcher.put(changed[how])
    assert watcher.heads() == ["a"]


def test_a_reservation_wakes_nobody() -> None:
    watcher = parked()
    watcher.put(holding("x", 3, admitted=False))
    watcher.put(holding("x", 3))
    assert watcher.heads() == []


@pytest.mark.parametrize("done", [{"conditions": [make.condition("Finished")]}, {"active": False}])
def test_one_that_waited_and_is_done_wakes_the_others(done: dict[str, Any]) -> None:
    watcher = Watcher(*open_queue(), workload("a"), workload("b", 2))
    watcher.park()
    watcher.put(workload("b", 2, **done))
    assert watcher.heads() == ["a"]


def test_a_whole_tree_wakes() -> None:
    objects = [*open_queue("one", cohort="left"), *open_queue("two", cohort="right"), *open_queue("far")]
    tree = [cohort("left", parent="root"), cohort("right", parent="root")]
    heads = [workload(name, queue=name) for name in ("one", "two", "far")]
    watcher = Watcher(*tree, *objects, holding("x", queue="one"), *heads)
    watcher.park()
    watcher.delete(scheme.WORKLOAD, "x", "team")
    assert watcher.heads() == ["one", "two"]


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param({"cpu": 5}, id="more quota"),
        pytest.param({"cpu": 3}, id="less quota"),
        pytest.param({"cohort": "all"}, id="a cohort"),
        pytest.param({"preemption": {"withinClusterQueue": "LowerPriority"}}, id="other rules"),
    ],
)
def test_any_change_of_a_queues_spec_wakes(spec: dict[str, Any]) -> None:
    watcher = parked()
    cpu = spec.get("cpu", 4)
    assert watcher.put(queue("cq", cpu, **{k: v for k, v in spec.items() if k != "cpu"}))
    assert watcher.heads() == ["a"]


def test_a_change_of_a_queues_status_wakes_nobody() -> None:
    watcher = parked()
    changed = queue("cq", 4)
    assert not watcher.put({**changed, "status": {"pendingWorkloads": 1}})
    assert watcher.heads() == []


def test_a_cohort_that_comes_or_changes_wakes_its_tree() -> None:
    watcher = Watcher(*open_queue(cohort="all"), workload("a"), *open_queue("far"), workload("b", queue="far"))
    watcher.park()
    assert watcher.put(cohort("all", 4))
    assert watcher.heads() == ["a"]
    watcher.park()
    watcher.put({**cohort("all", 4), "status": {"x": 1}})
    assert watcher.heads() == []


def test_a_cohort_without_queues_wakes_nobody() -> None:
    watcher = parked()
    assert not watcher.put(cohort("lonely", 4))
    assert watcher.heads() == []


def test_a_cohort_that_goes_takes_its_quota_and_wakes_nobody() -> None:
    watcher = Watcher(cohort("all", 4), *open_queue(cohort="all"), workload("a"))
    watcher.park()
    assert not watcher.delete(scheme.COHORT, "all")
    assert watcher.heads() == []


def test_a_flavor_that_comes_makes_its_queues_active_and_wakes_them() -> None:
    watcher = Watcher(*open_queue(groups=[group(new={"cpu": 4})]), workload("a"))
    assert (watcher.heads(), watcher.index.readiness("cq").reason) == ([], "FlavorNotFound")
    assert watcher.put(make.flavor("new"))
    assert (watcher.heads(), watcher.index.readiness("cq").reason) == (["a"], "Ready")


def test_a_flavor_that_changes_wakes_its_queues_alone() -> None:
    watcher = Watcher(*open_queue(), workload("a"), *open_queue("far", groups=[group(other={"cpu": 1})]))
    watcher.put(make.flavor("other"), workload("b", queue="far"))
    watcher.park()
    assert watcher.put(make.flavor("spot", labels={"zone": "a"}))
    assert watcher.heads() == ["a"]


def test_a_flavor_that_goes_stops_its_queues() -> None:
    watcher = Watcher(*open_queue(), workload("a"))
    watcher.delete(scheme.RESOURCE_FLAVOR, "spot")
    assert (watcher.heads(), watcher.index.readiness("cq").reason) == ([], "FlavorNotFound")


def test_a_namespace_that_comes_to_match_wakes() -> None:
    selector = {"matchLabels": {"tier": "gold"}}
    watcher = Watcher(*open_queue(namespaceSelector=selector), workload("a"), *open_queue("far"))
    watcher.park()
    watcher.put(make.namespace(tier="silver"))
    assert watcher.heads() == []
    assert watcher.put(make.namespace(tier="gold"))
    assert watcher.heads() == ["a"]
    watcher.park()
    watcher.put(make.namespace(tier="gold"))
    assert watcher.heads() == []


def test_workloads_of_a_namespace_that_is_gone_are_not_woken() -> None:
    watcher = parked(holding("x"))
    watcher.delete(scheme.NAMESPACE, "team")
    watcher.delete(scheme.WORKLOAD, "x", "team")
    assert watcher.heads() == []


CHECK = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "AdmissionCheck", "metadata": {"name": "check"}, "spec": {}}


def test_an_admission_check_makes_a_queue_active() -> None:
    strategy = {"admissionChecks": [{"name": "check"}]}
    watcher = Watcher(*open_queue(admissionChecksStrategy=strategy), *open_queue("far"), workload("a"))
    assert watcher.heads() == []
    watcher.put(CHECK)
    assert watcher.index.readiness("cq").reason == "AdmissionCheckInactive"
    assert watcher.put({**CHECK, "status": {"conditions": [make.condition("Active")]}})
    assert watcher.heads() == ["a"]
    watcher.delete(scheme.ADMISSION_CHECK, "check")
    assert watcher.index.readiness("cq").reason == "AdmissionCheckNotFound"


def test_a_queue_that_is_stopped_and_goes_on_takes_up_its_line() -> None:
    watcher = Watcher(*open_queue(), workload("a"))
    watcher.change(scheme.CLUSTER_QUEUE, "cq", "spec", "stopPolicy", value="Hold")
    assert watcher.heads() == []
    assert watcher.change(scheme.CLUSTER_QUEUE, "cq", "spec", "stopPolicy", value="None")
    assert watcher.heads() == ["a"]


def test_a_queue_that_is_going_takes_no_more_heads() -> None:
    watcher = Watcher(*open_queue(), workload("a"))
    watcher.put(with_metadata(queue("cq", 4), deletionTimestamp=make.stamp()))
    assert (watcher.heads(), watcher.index.readiness("cq").reason) == ([], "Terminating")
    watcher.delete(scheme.CLUSTER_QUEUE, "cq")
    watcher.put(queue("cq", 4))
    assert (watcher.heads(), watcher.index.readiness("cq").reason) == (["a"], "Ready")


# LocalQueues.


def test_a_stopped_local_queue_keeps_its_workloads_out_of_line() -> None:
    watcher = Watcher(*open_queue(), workload("a"))
    watcher.put(make.local_queue("cq", cluster_queue="cq", stopPolicy="Hold"), workload("b"))
    assert (watcher.waiting(), watcher.heads()) == ([], [])
    assert watcher.put(make.local_queue("cq", cluster_queue="cq"))
    assert watcher.waiting() == ["a", "b"]


def test_a_local_queue_that_goes_and_comes_back_brings_its_workloads() -> None:
    watcher = Watcher(*open_queue(), workload("a"), holding("x"), workload("done", active=False))
    watcher.delete(scheme.LOCAL_QUEUE, "cq", "team")
    assert watcher.waiting() == []
    watcher.put(make.local_queue("cq", cluster_queue="cq"))
    assert watcher.waiting() == ["a"]


def test_a_local_queue_may_lead_elsewhere() -> None:
    watcher = Watcher(*open_queue("cq"), *open_queue("other"), workload("a"))
    watcher.put(make.local_queue("cq", cluster_queue="other"))
    assert (watcher.waiting("cq"), watcher.waiting("other")) == ([], ["a"])
    watcher.put(make.local_queue("cq", cluster_queue="nowhere"))
    assert watcher.waiting("other") == []


def test_a_local_queue_that_changes_in_nothing_of_weight_moves_nobody() -> None:
    watcher = parked()
    watcher.put({**make.local_queue("cq", cluster_queue="cq"), "status": {"pendingWorkloads": 1}})
    assert watcher.heads() == []


def test_a_cluster_queue_that_comes_late_takes_up_its_local_queues() -> None:
    watcher = Watcher(make.local_queue("cq", cluster_queue="cq"), workload("a"), make.local_queue("other"))
    assert watcher.put(queue("cq", 4))
    assert watcher.heads() == ["a"]


# Quota freed without anybody being woken.


def test_the_last_release_without_a_local_queue_wakes_at_once() -> None:
    watcher = parked(make.local_queue("gone", cluster_queue="cq"), holding("x", local_queue="gone"))
    watcher.delete(scheme.LOCAL_QUEUE, "gone", "team")
    assert watcher.delete(scheme.WORKLOAD, "x", "team")
    assert watcher.heads() == ["a"]


def test_a_release_without_a_local_queue_is_noticed_after_a_while() -> None:
    watcher = parked(make.local_queue("gone", cluster_queue="cq"), holding("x", 1, local_queue="gone"), holding("y", 1))
    watcher.delete(scheme.LOCAL_QUEUE, "gone", "team")
    watcher.delete(scheme.WORKLOAD, "x", "team")
    assert (watcher.heads(), watcher.index.next_release()) == ([], make.NOW + GRACE)
    for seconds, heads in ((GRACE // SECOND - 1, []), (GRACE // SECOND, ["a"])):
        watcher.now = make.at(seconds)
        assert watcher.heads() == heads
    assert watcher.index.next_release() is None


def test_a_release_that_wakes_ends_the_grace() -> None:
    watcher = parked(make.local_queue("gone", cluster_queue="cq"), holding("x", 1, local_queue="gone"), holding("y", 1))
    watcher.delete(scheme.LOCAL_QUEUE, "gone", "team")
    watcher.delete(scheme.WORKLOAD, "x", "team")
    watcher.delete(scheme.WORKLOAD, "y", "team")
    assert (watcher.heads(), watcher.index.next_release()) == (["a"], None)


def test_a_stopped_local_queue_counts_as_gone() -> None:
    watcher = parked(holding("x"), make.local_queue("stopped", cluster_queue="cq"))
    watcher.put(holding("y", local_queue="stopped"))
    watcher.put(make.local_queue("stopped", cluster_queue="cq", stopPolicy="Hold"))
    watcher.delete(scheme.WORKLOAD, "y", "team")
    assert (watcher.heads(), watcher.index.next_release()) == ([], make.NOW + GRACE)


# Trees that rest, and times to wait.


def resting() -> Watcher:
    """A tree with somebody in line that rests, and another tree."""
    watcher = Watcher(*open_queue(cohort="all"), *open_queue("far"), workload("a"))
    watcher.heads()
    watcher.put(workload("b", created=1))
    watcher.index.line_up.rest("cohort/all")
    return watcher


def test_a_resting_tree_has_no_heads() -> None:
    watcher = resting()
    assert watcher.heads() == []
    watcher.put(workload("far", queue="far"))
    assert watcher.heads() == ["far"]


@pytest.mark.parametrize("what", ["workload", "release", "quota", "cohort", "tree"])
def test_a_resting_tree_is_roused_by_what_happens_in_it(what: str) -> None:
    watcher = resting()
    happenings = {
        "workload": [workload("c", created=2)],
        "release": [holding("x"), workload("x", 2, conditions=[make.condition("Requeued", status=False)])],
        "quota": [queue("cq", 5, cohort="all")],
        "cohort": [cohort("elsewhere", 5)],
        "tree": [queue("new", 5, cohort="all")],
    }
    watcher.put(*happenings[what])
    assert watcher.heads() == ["b"]


def test_an_admission_rouses_its_tree() -> None:
    watcher = resting()
    before = watcher.index.line_up.touches["cohort/all"]
    watcher.put(holding("x"))
    assert (watcher.heads(), watcher.index.line_up.touches["cohort/all"] > before) == (["b"], True)


def test_a_frozen_tree_has_no_heads_for_the_instant() -> None:
    watcher = Watcher(*open_queue(cohort="all"), *open_queue("far"), workload("a"), workload("far", queue="far"))
    assert watcher.heads() == ["a", "far"]
    watcher.put(workload("b", created=1), workload("far2", queue="far"))
    watcher.index.line_up.freeze("cohort/all")
    watcher.put(workload("c", created=2))
    assert watcher.heads() == ["far2"]
    watcher.now += 1
    assert watcher.heads() == []
    watcher.put(workload("d", created=3))
    assert watcher.heads() == ["b"]


def test_who_must_wait_is_woken_when_its_time_has_come() -> None:
    watcher = Watcher(*open_queue(), *open_queue("far"))
    for name, place, seconds in (("a", "cq", 10), ("b", "far", 20)):
        watcher.put(workload(name, queue=place, status={"requeueState": {"requeueAt": make.stamp(seconds)}}))
    assert (watcher.heads(), watcher.index.next_release()) == ([], make.at(10))
    watcher.now = make.at(9)
    assert watcher.heads() == []
    watcher.now = make.at(10)
    assert watcher.heads() == ["a"]


def test_a_queue_in_a_cycle_of_cohorts_still_shows_its_head() -> None:
    watcher = Watcher(cohort("x", parent="y"), cohort("y", parent="x"), *open_queue(cohort="x"), workload("a"))
    assert watcher.heads() == ["a"]


def test_who_comes_in_line_rouses_the_whole_tree() -> None:
    watcher = resting()
    watcher.put(*open_queue("other", cohort="all"))
    assert watcher.heads() == ["b"]
    watcher.put(workload("c"))
    watcher.index.line_up.rest("cohort/all")
    watcher.put(workload("d", queue="other"))
    assert watcher.heads() == ["c", "d"]


def test_a_tree_and_a_queue_of_one_name_are_two_trees() -> None:
    watcher = Watcher(*open_queue("x"), *open_queue("y", cohort="x"), holding("x1", 4, queue="x"))
    watcher.put(holding("y1", 4, queue="y"), workload("x2", 4, queue="x"), workload("y2", 4, queue="y"))
    watcher.park()
    for name in ("x1", "y1"):
        watcher.delete(scheme.WORKLOAD, name, "team")
    assert watcher.heads() == ["x2", "y2"]


def test_a_cohort_that_goes_rouses_its_tree_whoever_settles_it() -> None:
    watcher = Watcher(cohort("all", 4), *open_queue(cohort="all"), workload("a"))
    watcher.index.take_heads(watcher.now)
    watcher.index.line_up.rest("cohort/all")
    assert watcher.heads() == []
    assert watcher.delete(scheme.COHORT, "all")
    watcher.index.snapshot.settle()
    assert watcher.heads() == ["a"]
