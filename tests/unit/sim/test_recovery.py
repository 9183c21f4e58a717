"""Recovery of a gang after the loss of a machine: its duration, the lost work, the victims."""

from typing import Any

import pytest

import make
from batchyard.api.meta import Key, Obj, key_of
from batchyard.base.instant import SECOND
from batchyard.interfaces.client import EventType, WatchEvent
from batchyard.placement.hotswap import EvictionUnit, eviction_message
from batchyard.sim.recovery import GangLoss, RecoveryTracker


class RecoveryRecorder:
    """Recoveries, and the events that they observe. Times are seconds from the start."""

    def __init__(self, *gangs: str, pods: int = 2) -> None:
        self.recoveries = RecoveryTracker()
        self._known: dict[Key, Obj] = {}
        for gang in gangs:
            self.workload(0, gang, pods)
            for number in range(pods):
                self.runs(0, gang, number, f"{gang}-n{number}")

    def observe(self, at: float, obj: Obj, *, gone: bool = False) -> None:
        key = key_of(obj)
        old = self._known.get(key)
        kind = EventType.DELETED if gone else EventType.MODIFIED if old is not None else EventType.ADDED
        self._known[key] = obj
        self.recoveries.observe([WatchEvent(kind, key, obj, old, 1)], make.at(at))

    def workload(self, at: float, gang: str, pods: int = 2, **fields: Any) -> None:
        self.observe(at, make.workload(gang, pod_sets=[make.pod_set(count=pods)], **fields))

    def runs(self, at: float, gang: str, number: int, node: str, attempt: int = 1, **status: Any) -> None:
        self.observe(at, pod(gang, number, node, attempt, since=at, **status))

    def ends(self, at: float, gang: str, number: int, attempt: int = 1, phase: str = "Failed") -> None:
        self.observe(at, pod(gang, number, "gone", attempt, phase=phase))

    def restarts(self, at: float, gang: str, attempt: int = 2, pods: int = 2) -> None:
        """All pods of a gang end, and new pods run on other nodes at once."""
        for number in range(pods):
            self.ends(at, gang, number, attempt - 1)
        for number in range(pods):
            self.runs(at, gang, number, f"{gang}-m{number}", attempt)

    def crash(self, at: float, node: str) -> None:
        self.observe(at, cloud("Instance", node, {"phase": "Crashed"}))

    def document(self) -> list[dict[str, Any]]:
        return [loss.document(make.NOW) for loss in self.recoveries.losses]

    def only(self) -> GangLoss:
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


def test_loss_lasts_until_all_pods_run_again() -> None:
    recording = RecoveryRecorder("a")
    recording.crash(100, "a-n0")
    for number in range(2):
        recording.ends(150, "a", number)
    recording.runs(160, "a", 0, "m0", 2)
    assert recording.document()[0]["wholeAt"] is None
    recording.runs(170, "a", 1, "m1", 2)
    recording.runs(171, "a", 2, "m2", 2)
    assert recording.document() == [
        {"gang": "team/a", "lostAt": 100, "wholeAt": 170, "seconds": 70, "lostPodSeconds": 200, "victims": []}
    ]


def test_pods_on_lost_machine_do_not_count_as_running() -> None:
    recording = RecoveryRecorder("a")
    recording.crash(100, "a-n0")
    recording.runs(101, "a", 2, "m", 2)
    assert recording.only().recovered_at == make.at(101)
    recording.crash(200, "m")
    recording.crash(200, "a-n1")
    recording.runs(201, "a", 3, "m2", 3)
    assert [loss.recovered_at for loss in recording.recoveries.losses] == [make.at(101), None]


def test_reclaimed_machine_is_lost_at_its_notice() -> None:
    """The pods stop after the notice and before the machine stops."""
    recording = RecoveryRecorder("a")
    recording.observe(100, cloud("Instance", "a-n0", {"phase": "Stopping"}))
    recording.restarts(101, "a")
    recording.observe(130, node("a-n0"), gone=True)
    assert recording.document() == [
        {"gang": "team/a", "lostAt": 100, "wholeAt": 101, "seconds": 1, "lostPodSeconds": 200, "victims": []}
    ]


def test_machines_that_crash_together_count_as_one_loss() -> None:
    recording = RecoveryRecorder("a")
    recording.crash(100, "a-n0")
    recording.crash(100, "a-n1")
    recording.restarts(130, "a")
    assert recording.only().lost_work == 200 * SECOND
    assert recording.only().recovered_at == make.at(130)


def test_machines_without_gang_pods_count_as_no_loss() -> None:
    recording = RecoveryRecorder("a")
    recording.observe(0, pod("alone", 0, "n"))
    recording.crash(100, "n")
    recording.crash(100, "elsewhere")
    assert recording.document() == []


def test_unreachable_and_deleted_node_counts_as_one_loss() -> None:
    recording = RecoveryRecorder("a")
    recording.observe(0, node("a-n0"))
    recording.observe(50, node("a-n0", "Unknown"))
    recording.observe(60, node("a-n0", "Unknown"), gone=True)
    assert recording.only().lost_at == make.at(50)


@pytest.mark.parametrize(
    ("restarted", "lost"),
    [
        pytest.param(115, 10 + 10, id="no checkpoint after the loss"),
        pytest.param(124, 10 + 4, id="a checkpoint after the loss"),
    ],
)
def test_lost_work_is_counted_from_last_checkpoint_of_jobset(restarted: int, lost: int) -> None:
    recording = RecoveryRecorder()
    recording.observe(0, jobset("a-set", "30s"))
    recording.workload(0, "a")
    for number in range(2):
        recording.runs(0, "a", number, f"a-n{number}")
    recording.crash(100, "a-n0")
    recording.restarts(restarted, "a")
    assert recording.only().lost_work == lost * SECOND


def test_pods_that_continue_or_succeed_lose_no_work() -> None:
    recording = RecoveryRecorder("a", pods=3)
    recording.crash(100, "a-n0")
    recording.ends(110, "a", 0)
    recording.ends(111, "a", 1, phase="Succeeded")
    recording.workload(111, "a", 3, status={"reclaimablePods": [{"name": "main", "count": 1}]})
    recording.runs(120, "a", 0, "m", 2)
    recording.ends(500, "a", 2)
    assert (recording.only().recovered_at, recording.only().lost_work) == (make.at(120), 100 * SECOND)


def test_restarted_containers_lose_their_work() -> None:
    recording = RecoveryRecorder("a")
    recording.crash(100, "a-n0")
    recording.observe(200, pod("a", 0, "a-n0", since=200))
    assert (recording.only().recovered_at, recording.only().lost_work) == (make.at(200), 100 * SECOND)


def test_loss_before_gang_recovers_adds_to_same_loss() -> None:
    recording = RecoveryRecorder("a")
    recording.crash(100, "a-n0")
    recording.ends(110, "a", 0)
    recording.ends(110, "a", 1)
    recording.runs(120, "a", 0, "m0", 2)
    recording.crash(150, "m0")
    recording.ends(160, "a", 0, 2)
    for number in range(2):
        recording.runs(170, "a", number, f"k{number}", 3)
    assert (recording.only().recovered_at, recording.only().lost_work) == (make.at(170), (200 + 30) * SECOND)


def test_gang_that_finishes_before_recovery_is_never_whole() -> None:
    recording = RecoveryRecorder("a")
    recording.crash(100, "a-n0")
    recording.workload(110, "a", conditions=[make.condition("Finished")])
    recording.restarts(120, "a")
    assert recording.only().recovered_at is None


def preempted_condition(by: str, victim: str, reason: str = "Hotswap") -> list[Obj]:
    document = eviction_message(f"team/{by}", f"uid-{by}", "", EvictionUnit(f"team/{victim}", [], 0))
    return [make.condition("Preempted", reason=reason, message=document)]


def test_hotswap_victim_is_reported_with_lost_work_and_recovery() -> None:
    recording = RecoveryRecorder("high", "low")
    recording.crash(100, "high-n0")
    recording.workload(150, "low", conditions=preempted_condition("high", "low"))
    recording.ends(151, "low", 0)
    recording.ends(151, "low", 1)
    recording.restarts(152, "high")
    recording.runs(700, "low", 0, "x", 2)
    recording.runs(705, "low", 1, "y", 2)
    (loss,) = recording.document()
    assert (loss["gang"], loss["seconds"]) == ("team/high", 52)
    assert loss["victims"] == [
        {"gang": "team/low", "lostAt": 150, "wholeAt": 705, "seconds": 555, "lostPodSeconds": 300, "victims": []}
    ]


def test_preemptions_unrelated_to_loss_are_not_reported() -> None:
    recording = RecoveryRecorder("high", "low", "third")
    recording.workload(50, "low", conditions=preempted_condition("high", "low"))
    recording.crash(100, "high-n0")
    recording.workload(150, "third", conditions=preempted_condition("high", "third", "InClusterQueue"))
    assert recording.only().victims == []


def preempted_by_scheduler(gang: str, number: int, node: str) -> Obj:
    """A pod that the scheduler preempts."""
    return pod(gang, number, node, conditions=[make.condition("DisruptionTarget", reason="PreemptionByScheduler")])


def test_preempted_pod_makes_its_gang_victim() -> None:
    recording = RecoveryRecorder("high", "low")
    recording.crash(100, "high-n0")
    recording.ends(400, "high", 0)
    recording.observe(400, pod("high", 0, "", 2, phase="Pending", nominatedNodeName="low-n1", containerStatuses=[]))
    recording.observe(400, preempted_by_scheduler("low", 1, "low-n1"))
    recording.ends(401, "low", 1)
    recording.ends(410, "low", 0)
    (victim,) = recording.only().victims
    assert (victim.gang, victim.lost_at, victim.lost_work) == ("team/low", make.at(400), 800 * SECOND)


def test_preempted_pod_without_gang_is_reported_with_lost_work() -> None:
    recording = RecoveryRecorder("high")
    recording.observe(0, pod("alone", 0, "n"))
    recording.crash(100, "high-n0")
    recording.observe(400, pod("high", 0, "", 2, phase="Pending", nominatedNodeName="n", containerStatuses=[]))
    recording.observe(400, preempted_by_scheduler("alone", 0, "n"))
    (victim,) = recording.only().victims
    assert (victim.gang, victim.lost_work) == ("team/alone-0-1", 400 * SECOND)


def test_pod_preempted_before_any_loss_is_no_victim() -> None:
    recording = RecoveryRecorder("high", "low")
    recording.observe(50, pod("high", 0, "", 2, phase="Pending", nominatedNodeName="low-n1", containerStatuses=[]))
    recording.observe(50, preempted_by_scheduler("low", 1, "low-n1"))
    recording.crash(100, "high-n0")
    assert recording.only().victims == []
