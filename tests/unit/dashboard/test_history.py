"""What happened, told from watch events, and from conditions where nobody watched."""

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
    """The same, preempted, and its quota taken back."""
    conditions = [make.condition("QuotaReserved", False), make.condition("Evicted", reason="Preempted"), PREEMPTED]
    return {**obj, "status": {"conditions": conditions}}


class Seen:
    """A history, told of changes at seconds."""

    def __init__(self, limits: HistoryLimits = LIVE_LIMITS) -> None:
        self.now = make.NOW
        self.history = PlatformHistory(lambda: self.now, lambda _namespace, _queue: "cq", limits)

    def tell(
        self, seconds: int, obj: Obj, old: Obj | None, *, deleted: bool = False, kind: str = scheme.WORKLOAD
    ) -> None:
        self.now = make.NOW + seconds * SECOND
        type_ = EventType.DELETED if deleted else EventType.MODIFIED if old else EventType.ADDED
        key = Key(kind, "team", obj["metadata"]["name"])
        self.history.observe([WatchEvent(type_, key, obj, old, 1)])

    def marks(self, uid: str = "uid-w") -> list[tuple[str, int]]:
        return [(mark.what, (mark.at - make.NOW) // SECOND) for mark in self.history.lives[uid].marks]


def test_a_life_is_what_its_changes_were() -> None:
    seen = Seen()
    new, running = make.workload("w"), admitted()
    waiting = evicted(running)
    seen.tell(0, new, None)
    seen.tell(5, running, new)
    seen.tell(9, waiting, running)
    seen.tell(12, running, waiting)
    seen.tell(20, running, running, deleted=True)
    reported = ["created", "quotaReserved", "admitted", "preempted", "quotaReserved", "admitted", "deleted"]
    assert seen.marks() == list(zip(reported, [0, 5, 5, 9, 12, 12, 20], strict=True))
    life = seen.history.lives["uid-w"]
    assert [(stint.end, stint.outcome) for stint in life.quota_intervals] == [
        (make.at(9), "evicted"),
        (make.at(20), "deleted"),
    ]
    assert life.marks[3].by == "uid-by"


def test_what_came_before_is_told_by_conditions() -> None:
    seen = Seen()
    seen.tell(100, admitted(), None)
    assert seen.marks() == [("created", 0), ("quotaReserved", 5), ("admitted", 6)]
    assert seen.history.lives["uid-w"].quota_intervals[0].end is None


def test_the_eldest_that_are_over_are_forgotten() -> None:
    seen = Seen(HistoryLimits(workloads=2, stays=2))
    for number in range(5):
        obj = make.workload(f"w{number}")
        seen.tell(number, obj, None)
        seen.tell(number, obj, obj, deleted=number != 0)
    assert list(seen.history.lives) == ["uid-w0", "uid-w3", "uid-w4"]


def test_a_pod_stays_on_its_node_until_it_has_ended() -> None:
    seen = Seen()
    pod = {"metadata": make.metadata("p"), "spec": make.pod_template()["spec"]}
    bound: Obj = {**pod, "spec": {**pod["spec"], "nodeName": "n"}}
    ended: Obj = {**bound, "status": {"phase": "Succeeded"}}
    seen.tell(0, pod, None, kind=scheme.POD)
    assert list(seen.history.stays()) == []
    seen.tell(3, bound, pod, kind=scheme.POD)
    seen.tell(8, ended, bound, kind=scheme.POD)
    seen.tell(9, ended, ended, deleted=True, kind=scheme.POD)
    assert [(stay.node, stay.start, stay.end) for stay in seen.history.stays()] == [("n", make.at(3), make.at(8))]
