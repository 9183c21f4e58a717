"""Which decisions are equal though they differ: victims that are alike in all that either scheduler goes by.

In the memory of the other scheduler the instant of a reservation is exact; in the objects it is whole seconds, and uids
decide what these leave open. So of two in one queue, with one priority and the same usage, reserved within a second of
each other, either may go. Source: Kueue's pkg/scheduler/preemption/common (CandidatesOrdering).
"""

from collections.abc import Mapping, Sequence
from typing import Final

from batchyard.base.instant import SECOND
from batchyard.controllers.shadow.observed import Preempted
from batchyard.core.decisions import Preempt
from batchyard.core.preemption.request import Target
from batchyard.core.queue import Admitted
from batchyard.core.snapshot import Snapshot

#: Instants that differ by no more may be one.
_WITHIN: Final = SECOND


def swapped(decision: Preempt, seen: Mapping[int, Preempted], snapshot: Snapshot) -> Sequence[int] | None:
    """The evictions that were seen, if they are those that were predicted but for victims that are alike; else None."""
    wanted = {each.workload.key: each for each in decision.targets if not each.workload.evicted}
    if len(seen) != len(wanted):
        return None
    left = {number: each for number, each in seen.items() if not _is_wanted(each, wanted)}
    for preempted in left.values():
        held = snapshot.holder(preempted.workload)
        found = next((key for key, each in wanted.items() if held is not None and are_alike(each.workload, held)), None)
        if found is None or wanted.pop(found).reason != preempted.reason:
            return None
    return tuple(seen)


def _is_wanted(preempted: Preempted, wanted: dict[str, Target]) -> bool:
    target = wanted.get(preempted.workload)
    if target is None or target.reason != preempted.reason:
        return False
    del wanted[preempted.workload]
    return True


def are_alike(one: Admitted, other: Admitted) -> bool:
    """Whether either may go in place of the other."""
    return (
        one.queue is other.queue
        and one.priority == other.priority
        and one.usage == other.usage
        and one.evicted == other.evicted
        and abs(one.reserved_at - other.reserved_at) <= _WITHIN
    )
