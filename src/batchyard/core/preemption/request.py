"""What a preemption is to achieve, and the tests that every search for victims shares."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from batchyard.api.views.workload import WorkloadView
from batchyard.core.quota import Usage, available, is_borrowing_with
from batchyard.core.snapshot import Admitted, ClusterQueue, Snapshot


class Target(NamedTuple):
    """A Workload to preempt, and the reason for the Preempted condition."""

    workload: Admitted
    reason: str


@dataclass(frozen=True, slots=True)
class Request:
    """Room wanted: by whom, in which queue, how much, and in which flavor-resources somebody must go for it."""

    workload: WorkloadView
    queue: ClusterQueue
    snapshot: Snapshot
    usage: Usage
    contested: tuple[int, ...]

    def fits(self, *, may_borrow: bool) -> bool:
        """Whether the usage fits as the snapshot now stands."""
        node = self.queue.node
        for fr, amount in self.usage:
            if not may_borrow and is_borrowing_with(node, fr, amount):
                return False
            if amount > max(0, available(node, fr)):
                return False
        return True

    def could_ever_fit(self, candidates: Iterable[Admitted]) -> bool:
        """Whether it could fit if all these went. Who goes frees at most what it uses, so this never errs with no."""
        freed: dict[int, int] = {}
        for candidate in candidates:
            for fr, amount in candidate.usage:
                freed[fr] = freed.get(fr, 0) + amount
        node = self.queue.node
        return all(amount <= 0 or amount <= available(node, fr) + freed.get(fr, 0) for fr, amount in self.usage)

    def may_preempt(self, candidate: Admitted, policy: str) -> bool:
        """Whether a preemption policy lets this Workload preempt the candidate."""
        workload = self.workload
        if policy == "Any":
            return True
        if workload.priority > candidate.priority:
            return policy != "Never"
        return (
            policy == "LowerOrNewerEqualPriority"
            and workload.priority == candidate.priority
            and workload.queued < candidate.queued
        )

    def order(self, candidate: Admitted) -> tuple[bool, bool, int, int, str]:
        """The sort key of candidates: evicted already, other queues, low priority, lately admitted, uid."""
        return (
            not candidate.evicted,
            candidate.queue is self.queue,
            candidate.priority,
            -candidate.reserved_at,
            candidate.uid,
        )


def fill_back(request: Request, targets: list[Target], *, may_borrow: bool) -> list[Target]:
    """Spare the targets that turn out not to matter, last found first; the very last one always stays.

    The snapshot is without the targets before, and without those returned after. A spared target's place is taken by
    the last one, as Kueue does it.
    """
    for index in range(len(targets) - 2, -1, -1):
        request.snapshot.add_workload(targets[index].workload)
        if request.fits(may_borrow=may_borrow):
            targets[index] = targets[-1]
            targets.pop()
        else:
            request.snapshot.remove_workload(targets[index].workload)
    return targets


def uses_any(candidate: Admitted, contested: Sequence[int]) -> bool:
    """Whether the candidate is assigned any of the contested flavor-resources."""
    held = candidate.flavor_resources
    return any(fr in held for fr in contested)
