"""What the other scheduler says of a decision against what it did: nothing of it rests on an order of changes.

Sources: Kueue's pkg/scheduler/preemption (HumanReadablePreemptionReasons), pkg/workload (SetQuotaReservation,
UpdateRequeueState).
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from batchyard.api.conditions import find_condition, is_true
from batchyard.api.meta import Obj
from batchyard.controllers.shadow.findings import Parting
from batchyard.core.lifecycle import reasons as r
from batchyard.core.reasons import PreemptionReason
from batchyard.ports.client import EventType, WatchEvent

_RESERVED: Final = "Quota reserved in ClusterQueue "
_DUE_TO: Final = " due to "


class Contradiction(NamedTuple):
    """What was said, and what would be true."""

    parting: Parting
    said: str
    true: str


def contradictions(event: WatchEvent) -> Iterator[Contradiction]:
    """What a change of a Workload says that is not so."""
    if event.old is None or event.type is EventType.DELETED:
        return
    for kind, check in ((r.PREEMPTED, _preempted), (r.QUOTA_RESERVED, _reserved)):
        condition = find_condition(event.obj, kind)
        if condition is not None and condition["status"] == "True" and not is_true(event.old, kind):
            yield from check(event.obj, condition)
    yield from _counted(event.obj, event.old)


def _preempted(_obj: Obj, condition: Obj) -> Iterator[Contradiction]:
    words = PreemptionReason.WORDS.get(condition["reason"], "")
    said = str(condition.get("message") or "").partition(_DUE_TO)[2].partition(";")[0].strip()
    if words and said and said != words:
        yield Contradiction(Parting.MESSAGE, f"preempted due to {said}", f"for {condition['reason']}, that is {words}")


def _reserved(obj: Obj, condition: Obj) -> Iterator[Contradiction]:
    queue = ((obj.get("status") or {}).get("admission") or {}).get("clusterQueue")
    message = str(condition.get("message") or "")
    if queue and message.startswith(_RESERVED) and message.removeprefix(_RESERVED).split(",")[0] != queue:
        yield Contradiction(Parting.MESSAGE, message, f"its admission is in {queue}")


def _counted(obj: Obj, old: Obj) -> Iterator[Contradiction]:
    before, now = _count(old), _count(obj)
    if now and now not in (before, before + 1):
        said = f"requeueState.count goes from {before} to {now}"
        yield Contradiction(Parting.REQUEUED, said, "it grows by one with each eviction that it counts, or begins anew")


def _count(obj: Obj) -> int:
    return int(((obj.get("status") or {}).get("requeueState") or {}).get("count") or 0)
