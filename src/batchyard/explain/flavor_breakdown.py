"""What a Workload would find in every flavor of its ClusterQueue, those included that the search never comes to.

The same functions as the search for flavors, asked about all flavors instead of up to the first that will do.
"""

from collections.abc import Sequence
from typing import NamedTuple

from batchyard.api.views.workload import WorkloadView
from batchyard.scheduling.cluster_queue import ClusterQueue
from batchyard.scheduling.cycle import Policy
from batchyard.scheduling.flavor_assigner import FlavorSearch
from batchyard.scheduling.flavor_requests import GroupPlan
from batchyard.scheduling.granular_mode import NO_FIT, Possibility, Quality, possibility_of, worst
from batchyard.scheduling.preemption.preemptor import VictimSearch
from batchyard.scheduling.quota import Usage, available
from batchyard.scheduling.snapshot import Snapshot


class Ask(NamedTuple):
    """What is asked of one resource in one flavor, and what is there."""

    resource: str
    fr: int
    #: By this pod set, and by those of the Workload before it that take of the same.
    amount: int
    assumed: int
    #: What the ClusterQueue may still use, and the most it could ever.
    free: int
    most: int
    possibility: Possibility

    @property
    def total(self) -> int:
        """All that is asked."""
        return self.assumed + self.amount

    @property
    def missing(self) -> int:
        """How much is lacking; 0 if it is there."""
        return max(0, self.total - self.free) if self.total else 0


class Look(NamedTuple):
    """What came of one flavor."""

    flavor: str
    #: The number of its resource group.
    group: int
    #: What rules it out whatever its quota, in Kueue's words; '' if nothing does.
    obstacle: str
    asks: tuple[Ask, ...]
    #: That of its worst resource.
    possibility: Possibility

    @property
    def fits(self) -> bool:
        """Whether it is to be had as things stand."""
        return self.possibility is Possibility.FIT

    @property
    def exceeds(self) -> bool:
        """Whether more is asked than the ClusterQueue could ever have of it."""
        return any(ask.total > ask.most for ask in self.asks)


class PodSetLooks(NamedTuple):
    """What came of all flavors for one pod set."""

    name: str
    pods: int
    looks: tuple[Look, ...]
    #: A resource that no group of the ClusterQueue has; '' if there is none.
    unavailable: str

    def groups(self) -> list[list[Look]]:
        """The looks by resource group."""
        found: dict[int, list[Look]] = {}
        for look in self.looks:
            found.setdefault(look.group, []).append(look)
        return list(found.values())


def looks_of(
    snapshot: Snapshot, queue: ClusterQueue, workload: WorkloadView, policy: Policy
) -> tuple[PodSetLooks, ...]:
    """What each pod set would find, given what the search gives to those before it."""
    may_preempt = queue.view.preemption.is_allowed
    victims = VictimSearch(workload, queue, snapshot, policy.fair_strategies) if may_preempt else None
    search = FlavorSearch(
        workload, queue, snapshot, None if victims is None else victims.oracle, None, policy.fair_sharing, ()
    )
    found = search.assign(workload.counts)
    picked = {each.name: each.pick.usage for each in found.pod_sets}
    taken: Usage = ()
    told = []
    for index, pod_set in enumerate(workload.pod_sets):
        plan = queue.coverage.plan(pod_set.template, workload.counts[index], snapshot.obstacles)
        looks = [look for group in plan.groups for look in _looks(search, group, taken)]
        told.append(PodSetLooks(pod_set.name, workload.counts[index], tuple(looks), plan.unavailable))
        taken = _summed(taken, picked.get(pod_set.name, ()))
    return tuple(told)


def _looks(search: FlavorSearch, plan: GroupPlan, taken: Usage) -> list[Look]:
    qualities = search.weighed(plan, taken)
    return [_look(search, plan, index, of, dict(taken)) for index, of in enumerate(qualities)]


def _look(
    search: FlavorSearch, plan: GroupPlan, index: int, qualities: Sequence[Quality], taken: dict[int, int]
) -> Look:
    node = search.queue.node
    of_each = qualities if not plan.obstacles[index] else [NO_FIT] * len(plan.resources)
    asks = tuple(
        [
            Ask(resource, fr, amount, taken.get(fr, 0), available(node, fr), node.potential[fr], possibility_of(of))
            for resource, (fr, amount), of in zip(plan.resources, plan.usages[index], of_each, strict=True)
        ]
    )
    possibility = possibility_of(worst(qualities, search.queue.view.fungibility))
    return Look(plan.group.flavors[index], plan.group.number, plan.obstacles[index], asks, possibility)


def _summed(usage: Usage, more: Usage) -> Usage:
    total = dict(usage)
    for fr, amount in more:
        total[fr] = total.get(fr, 0) + amount
    return tuple(total.items())
