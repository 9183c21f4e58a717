"""The history of Workloads and Pods, built from watch events and, for earlier times, from conditions."""

import make
from batchyard.api import scheme
from batchyard.api.meta import Key, Obj
from batchyard.base.instant import SECOND
from batchyard.dashboard.history import LIVE_LIMITS, HistoryLimits, PlatformHistory
from batchyard.interfaces.client import EventType, WatchEvent

PREEMPTED = make.condition(
    "Preempted", reason="InClusterQueue", message="Preempted to accommodate a workload (UID: uid-by, JobUID: UNKNOWN)"
)


def admitted(name: str = "w") -> Obj:
    """A Workload that got quota after 5 seconds."""
    status = {
        "admission": make.admission("cq", main=1),
        "conditions": [make.condition("QuotaReserved", since=5), make.condition("Admitted", since=6)],
    }
    return {**make.workload(name), "status": status}


def evicted(obj: Obj) -> Obj:
    """The Workload after its preemption, without quota reservation."""
    conditions = [make.condition("QuotaReserved", False), make.condition("Evicted", reason="Preempted"), PREEMPTED]
    return {**obj, "status": {"conditions": conditions}}


class ObservedHistory:
    """A history that observes changes at given seconds."""

    def __init__(self, limits: HistoryLimits = LIVE_LIMITS) -> None:
        self.now = make.NOW
        self.history = PlatformHistory(lambda: self.now, lambda _namespace, _queue: "cq", limits)

    def observe(
        self, seconds: int, obj: Obj, old: Obj | None, *, deleted: bool = False, kind: str = scheme.WORKLOAD
    ) -> None:
        self.now = make.NOW + seconds * SECOND
        type_ = EventType.DELETED if deleted else EventType.MODIFIED if old else EventType.ADDED
        key = Key(kind, "team", obj["metadata"]["name"])
        self.history.observe([WatchEvent(type_, key, obj, old, 1)])

    def marks(self, uid: str = "uid-w") -> list[tuple[str, int]]:
        return [(mark.event, (mark.at - make.NOW) // SECOND) for mark in self.history.workload_histories[uid].marks]


def test_history_records_marks_and_quota_intervals_from_watch_events() -> None:
    observed = ObservedHistory()
    new, running = make.workload("w"), admitted()
    waiting = evicted(running)
    observed.observe(0, new, None)
    observed.observe(5, running, new)
    observed.observe(9, waiting, running)
    observed.observe(12, running, waiting)
    observed.observe(20, running, running, deleted=True)
    reported = ["created", "quotaReserved", "admitted", "preempted", "quotaReserved", "admitted", "deleted"]
    assert observed.marks() == list(zip(reported, [0, 5, 5, 9, 12, 12, 20], strict=True))
    life = observed.history.workload_histories["uid-w"]
    assert [(stint.end, stint.outcome) for stint in life.quota_intervals] == [
        (make.at(9), "evicted"),
        (make.at(20), "deleted"),
    ]
    assert life.marks[3].preemptor_uid == "uid-by"


def test_history_derives_earlier_marks_from_conditions() -> None:
    observed = ObservedHistory()
    observed.observe(100, admitted(), None)
    assert observed.marks() == [("created", 0), ("quotaReserved", 5), ("admitted", 6)]
    assert observed.history.workload_histories["uid-w"].quota_intervals[0].end is None


def test_history_drops_oldest_deleted_workloads_over_limit() -> None:
    observed = ObservedHistory(HistoryLimits(workloads=2, pod_binding_intervals=2))
    for number in range(5):
        obj = make.workload(f"w{number}")
        observed.observe(number, obj, None)
        observed.observe(number, obj, obj, deleted=number != 0)
    assert list(observed.history.workload_histories) == ["uid-w0", "uid-w3", "uid-w4"]


def test_pod_stay_on_node_ends_when_pod_succeeds() -> None:
    observed = ObservedHistory()
    pod = {"metadata": make.metadata("p"), "spec": make.pod_template()["spec"]}
    bound: Obj = {**pod, "spec": {**pod["spec"], "nodeName": "n"}}
    ended: Obj = {**bound, "status": {"phase": "Succeeded"}}
    observed.observe(0, pod, None, kind=scheme.POD)
    assert list(observed.history.pod_binding_intervals()) == []
    observed.observe(3, bound, pod, kind=scheme.POD)
    observed.observe(8, ended, bound, kind=scheme.POD)
    observed.observe(9, ended, ended, deleted=True, kind=scheme.POD)
    assert [(stay.node, stay.start, stay.end) for stay in observed.history.pod_binding_intervals()] == [
        ("n", make.at(3), make.at(8))
    ]
