"""Whether the other scheduler has done what ours has decided."""

from collections.abc import Sequence
from typing import TypeAlias

from batchyard.controllers.shadow.backlog import Backlog
from batchyard.controllers.shadow.likeness import swapped
from batchyard.controllers.shadow.observed import Preempted, predicted_of
from batchyard.core.decisions import Admit, Decision, Preempt
from batchyard.core.snapshot import Snapshot

Signature: TypeAlias = tuple[object, ...]


def done(decision: Decision, backlog: Backlog, snapshot: Snapshot) -> Sequence[int] | None:
    """The changes by which the other has done what the model decided; None if it has not, or not all of it."""
    if isinstance(decision, Admit):
        number = backlog.front(decision.head.workload.key)
        if number is not None and backlog.items[number].change.decision == predicted_of(decision):
            return (number,)
        return None
    if not isinstance(decision, Preempt):
        return None
    found: list[int] = []
    for target in decision.targets:
        if target.workload.evicted:
            continue
        number = backlog.front(target.workload.key)
        wanted = Preempted(target.workload.key, target.reason, decision.head.workload.uid)
        if number is None or backlog.items[number].change.decision != wanted:
            return swapped(decision, backlog.evictions_for(decision.head.workload.uid), snapshot)
        found.append(number)
    return found


def signature_of(decision: Decision) -> Signature:
    """What a decision is, to be told from others."""
    if isinstance(decision, Admit):
        return ("admit", *predicted_of(decision))
    targets = [each.workload.key for each in decision.targets] if isinstance(decision, Preempt) else []
    return ("preempt", decision.head.workload.key, *targets)


def is_effective(decision: Decision) -> bool:
    """Whether it would be seen."""
    if isinstance(decision, Preempt):
        return not all(target.workload.evicted for target in decision.targets)
    return isinstance(decision, Admit)
