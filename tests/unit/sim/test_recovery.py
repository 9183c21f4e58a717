"""From the loss of a machine until its gang is whole again: how long that takes, what is lost, whom it costs."""

from typing import Any

import pytest

import make
from batchyard.api.meta import Key, Obj, key_of
from batchyard.base.instant import SECOND
from batchyard.interfaces.client import EventType, WatchEvent
from batchyard.placement.hotswap import EvictionUnit, message
from batchyard.sim.recovery import Loss, Recoveries


class Tale:
    """Recoveries, and the events they are told of. Times are seconds from the beginning."""

    def __init__(self, *gangs: str, pods: int = 2) -> None:
        self.recoveries = Recoveries()
        self._known: dict[Key, Obj] = {}
        for gang in gangs:
            self.workload(0, gang, pods)
            for number in range(pods):
                self.runs(0, gang, number, f"{gang}-n{number}")

    def tell(self, at: float, obj: Obj, *, gone: bool = False) -> None:
        key = key_of(obj)
        old = self._known.get(key)
        kind = EventType.DELETED if gone else EventType.MODIFIED if old is not None else EventType.ADDED
        self._known[key] = obj
        self.recoveries.observe([WatchEvent(kind, key, obj, old, 1)], make.at(at))

    def workload(self, at: float, gang: str, pods: int = 2, **fields: Any) -> None:
        self.tell(at, make.workload(gang, pod_sets=[make.pod_set(count=pods)], **fields))

    def runs(self, at: float, gang: str, number: int, node: str, attempt: int = 1, **status: Any) -> None:
        self.tell(at, pod(gang, number, node, attempt, since=at, **status))

    def ends(self, at: float, gang: str, number: int, attempt: int = 1, phase: str = "Failed") -> None:
        self.tell(at, pod(gang, number, "gone", attempt, phase=phase))

    def restarts(self, at: float, gang: str, attempt: int = 2, pods: int = 2) -> None:
        """All its pods end, and others run elsewhere at once."""
        for number in range(pods):
            self.ends(at, gang, number, attempt - 1)
        for number in range(pods):
            self.runs(at, gang, number, f"{gang}-m{number}", attempt)

    def crash(self, at: float, node: str) -> None:
        self.tell(at, cloud("Instance", node, {"phase": "Crashed"}))

    def document(self) -> list[dict[str, Any]]:
        return [loss.document(make.NOW) for loss in self.recoveries.losses]

    def only(self) -> Loss:
        (loss,) = self.recoveries.losses
        return loss


def cloud(kind: str, name: str, status: Obj) -> Obj:
    return {"apiVersion": "cloud.batchyard.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "status": status}


def node(name: str, ready: str = "True") -> Obj:
    status = {"conditions": [{**make.condition("Ready"), "status": ready}]}
    return {"apiVersion": "v1", "kind": "Node", "metadata": make.metadata(name, None), "status": status}


def pod(gang: str, number: int, node: str, attempt: int = 1, **status: Any) -> Obj:
    since, phase = status.pop("since", 0), status.pop("phase", "Running")
    labels = {"jobset.sigs.k8s.io/jobset-uid": f"uid-{gang}-set", "batch.kubernetes.io/controller-uid": f"uid-{gang}"}
    annotations = {"kueue.x-k8s.io/workload": gang} if gang != "alone" else None
    metadata = make.metadata(f"{gang}-{number}-{attempt}", labels=labels, annotations=annotations)
    running = {"containerStatuses": [{"state": {"running": {"startedAt": make.stamp(since)}}}]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"nodeName": node},
        "status": {"phase": phase, **running, **status},
    }


def jobset(name: str, every: str) -> Obj:
    return {**make.jobset(name, annotations={"batchyard.dev/checkpoint-every": every})}


def test_a_loss_lasts_until_all_pods_run_again() -> None:
    tale = Tale("a")
    tale.crash(100, "a-n0")
    for number in range(2):
        tale.ends(150, "a", number)
    tale.runs(160, "a", 0, "m0", 2)
    assert tale.document()[0]["wholeAt"] is None
    tale.runs(170, "a", 1, "m1", 2)
    tale.runs(171, "a", 2, "m2", 2)
    assert tale.document() == [
        {"gang": "team/a", "lostAt": 100, "wholeAt": 170, "seconds": 70, "lostPodSeconds": 200, "victims": []}
    ]


def test_pods_on_a_lost_machine_do_not_run_whatever_their_status_says() -> None:
    tale = Tale("a")
    tale.crash(100, "a-n0")
    tale.runs(101, "a", 2, "m", 2)
    assert tale.only().whole_at == make.at(101)
    tale.crash(200, "m")
    tale.crash(200, "a-n1")
    tale.runs(201, "a", 3, "m2", 3)
    assert [loss.whole_at for loss in tale.recoveries.losses] == [make.at(101), None]


def test_a_machine_that_the_cloud_takes_back_is_lost_with_the_notice() -> None:
    """Its pods stop in time; nobody is there any more when it goes off."""
    tale = Tale("a")
    tale.tell(100, cloud("Instance", "a-n0", {"phase": "Stopping"}))
    tale.restarts(101, "a")
    tale.tell(130, node("a-n0"), gone=True)
    assert tale.document() == [
        {"gang": "team/a", "lostAt": 100, "wholeAt": 101, "seconds": 1, "lostPodSeconds": 200, "victims": []}
    ]


def test_machines_that_crash_together_are_one_loss() -> None:
    tale = Tale("a")
    tale.crash(100, "a-n0")
    tale.crash(100, "a-n1")
    tale.restarts(130, "a")
    assert tale.only().lost_work == 200 * SECOND
    assert tale.only().whole_at == make.at(130)


def test_machines_without_pods_of_gangs_are_no_loss() -> None:
    tale = Tale("a")
    tale.tell(0, pod("alone", 0, "n"))
    tale.crash(100, "n")
    tale.crash(100, "elsewhere")
    assert tale.document() == []


def test_a_node_that_is_not_heard_of_or_gone_is_lost_too_but_only_once() -> None:
    tale = Tale("a")
    tale.tell(0, node("a-n0"))
    tale.tell(50, node("a-n0", "Unknown"))
    tale.tell(60, node("a-n0", "Unknown"), gone=True)
    assert tale.only().lost_at == make.at(50)


@pytest.mark.parametrize(
    ("restarted", "lost"),
    [
        pytest.param(115, 10 + 10, id="nobody saved after the loss"),
        pytest.param(124, 10 + 4, id="who ran on after the loss saved his work once more"),
    ],
)
def test_work_is_lost_since_the_last_checkpoint_of_the_job_set(restarted: int, lost: int) -> None:
    tale = Tale()
    tale.tell(0, jobset("a-set", "30s"))
    tale.workload(0, "a")
    for number in range(2):
        tale.runs(0, "a", number, f"a-n{number}")
    tale.crash(100, "a-n0")
    tale.restarts(restarted, "a")
    assert tale.only().lost_work == lost * SECOND


def test_pods_that_go_on_or_come_to_their_end_lose_nothing() -> None:
    tale = Tale("a", pods=3)
    tale.crash(100, "a-n0")
    tale.ends(110, "a", 0)
    tale.ends(111, "a", 1, phase="Succeeded")
    tale.workload(111, "a", 3, status={"reclaimablePods": [{"name": "main", "count": 1}]})
    tale.runs(120, "a", 0, "m", 2)
    tale.ends(500, "a", 2)
    assert (tale.only().whole_at, tale.only().lost_work) == (make.at(120), 100 * SECOND)


def test_containers_that_start_anew_on_their_machine_have_lost_their_work() -> None:
    tale = Tale("a")
    tale.crash(100, "a-n0")
    tale.tell(200, pod("a", 0, "a-n0", since=200))
    assert (tale.only().whole_at, tale.only().lost_work) == (make.at(200), 100 * SECOND)


def test_what_is_lost_again_before_the_gang_is_whole_adds_to_the_loss() -> None:
    tale = Tale("a")
    tale.crash(100, "a-n0")
    tale.ends(110, "a", 0)
    tale.ends(110, "a", 1)
    tale.runs(120, "a", 0, "m0", 2)
    tale.crash(150, "m0")
    tale.ends(160, "a", 0, 2)
    for number in range(2):
        tale.runs(170, "a", number, f"k{number}", 3)
    assert (tale.only().whole_at, tale.only().lost_work) == (make.at(170), (200 + 30) * SECOND)


def test_a_gang_that_ends_before_it_is_whole_never_was() -> None:
    tale = Tale("a")
    tale.crash(100, "a-n0")
    tale.workload(110, "a", conditions=[make.condition("Finished")])
    tale.restarts(120, "a")
    assert tale.only().whole_at is None


def preempted(by: str, victim: str, reason: str = "Hotswap") -> list[Obj]:
    document = message(f"team/{by}", f"uid-{by}", "", EvictionUnit(f"team/{victim}", [], 0))
    return [make.condition("Preempted", reason=reason, message=document)]


def test_whom_a_swap_costs_what_and_when_he_is_back() -> None:
    tale = Tale("high", "low")
    tale.crash(100, "high-n0")
    tale.workload(150, "low", conditions=preempted("high", "low"))
    tale.ends(151, "low", 0)
    tale.ends(151, "low", 1)
    tale.restarts(152, "high")
    tale.runs(700, "low", 0, "x", 2)
    tale.runs(705, "low", 1, "y", 2)
    (loss,) = tale.document()
    assert (loss["gang"], loss["seconds"]) == ("team/high", 52)
    assert loss["victims"] == [
        {"gang": "team/low", "lostAt": 150, "wholeAt": 705, "seconds": 555, "lostPodSeconds": 300, "victims": []}
    ]


def test_preemptions_that_have_nothing_to_do_with_a_loss_are_not_told() -> None:
    tale = Tale("high", "low", "third")
    tale.workload(50, "low", conditions=preempted("high", "low"))
    tale.crash(100, "high-n0")
    tale.workload(150, "third", conditions=preempted("high", "third", "InClusterQueue"))
    assert tale.only().victims == []


def leaves(gang: str, number: int, node: str) -> Obj:
    """A pod that a scheduler makes leave."""
    return pod(gang, number, node, conditions=[make.condition("DisruptionTarget", reason="PreemptionByScheduler")])


def test_a_pod_that_a_scheduler_makes_leave_takes_its_gang_with_it() -> None:
    tale = Tale("high", "low")
    tale.crash(100, "high-n0")
    tale.ends(400, "high", 0)
    tale.tell(400, pod("high", 0, "", 2, phase="Pending", nominatedNodeName="low-n1", containerStatuses=[]))
    tale.tell(400, leaves("low", 1, "low-n1"))
    tale.ends(401, "low", 1)
    tale.ends(410, "low", 0)
    (victim,) = tale.only().victims
    assert (victim.gang, victim.lost_at, victim.lost_work) == ("team/low", make.at(400), 800 * SECOND)


def test_a_pod_without_a_gang_that_leaves_is_told_with_its_work() -> None:
    tale = Tale("high")
    tale.tell(0, pod("alone", 0, "n"))
    tale.crash(100, "high-n0")
    tale.tell(400, pod("high", 0, "", 2, phase="Pending", nominatedNodeName="n", containerStatuses=[]))
    tale.tell(400, leaves("alone", 0, "n"))
    (victim,) = tale.only().victims
    assert (victim.gang, victim.lost_work) == ("team/alone-0-1", 400 * SECOND)


def test_a_pod_that_left_in_quiet_times_is_nobodys_loss() -> None:
    tale = Tale("high", "low")
    tale.tell(50, pod("high", 0, "", 2, phase="Pending", nominatedNodeName="low-n1", containerStatuses=[]))
    tale.tell(50, leaves("low", 1, "low-n1"))
    tale.crash(100, "high-n0")
    assert tale.only().victims == []
