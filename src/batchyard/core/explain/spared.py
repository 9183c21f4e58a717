"""Who was not preempted when others were, and by which rule: the alternatives that were weighed."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from batchyard.core.decisions import Preempt
from batchyard.core.explain.holders import Holder, Reason, first_holders, why_it_stays
from batchyard.core.preemption.request import Request
from batchyard.core.queue import Admitted
from batchyard.core.snapshot import Snapshot

NEEDLESS: Final = Reason("needless", "there is room enough without it")
_TOLD_MAX: Final = 32


class Spared(NamedTuple):
    """A Workload that holds some of what was lacking, and why it stays."""

    holder: Holder
    reason: Reason


class Weighed(NamedTuple):
    """The alternatives to the victims: the most relevant of them, and how many there were."""

    spared: tuple[Spared, ...]
    in_all: int


NOT_WEIGHED: Final = Weighed((), 0)


def weighed(decision: Preempt, snapshot: Snapshot, *, fair_sharing: bool) -> Weighed:
    """What else was there to preempt, as the snapshot stands when the decision is made."""
    assignment = decision.why.assignment
    if assignment is None:
        return NOT_WEIGHED
    queue, contested = decision.queue, assignment.preempting
    request = Request(decision.head.workload, queue, snapshot, assignment.usage, contested)
    victims = {target.workload.key for target in decision.targets}
    most = _TOLD_MAX + len(victims)
    found, count = first_holders(snapshot, queue.node.path[0], queue, contested, most)
    others = [holder for holder in found if holder.workload.key not in victims]
    told = [
        Spared(holder, why_it_stays(request, holder.workload, fair_sharing=fair_sharing) or NEEDLESS)
        for holder in others[:_TOLD_MAX]
    ]
    return Weighed(tuple(told), count - sum(_holds(snapshot.holder(key), contested) for key in victims))


def _holds(workload: Admitted | None, frs: Sequence[int]) -> bool:
    """Whether it holds some of these."""
    return workload is not None and any(amount > 0 and fr in frs for fr, amount in workload.usage)
