"""What a Workload would find in every flavor of its ClusterQueue, including those that the search does not reach.

It calls the functions of the flavor assigner for all flavors instead of up to the first one that suffices.
"""

from collections.abc import Sequence
from typing import NamedTuple

from batchyard.api.views.workload import WorkloadView
from batchyard.scheduling.cluster_queue import (
    NO_FIT,
    ClusterQueue,
    GranularMode,
    PreemptionPossibility,
    ResourceGroupRequest,
    possibility_of,
    worst,
)
from batchyard.scheduling.cycle import SchedulingPolicy
from batchyard.scheduling.flavor_assigner import FlavorAssigner
from batchyard.scheduling.preemption.preemptor import Preemptor
from batchyard.scheduling.quota import Usage, available
from batchyard.scheduling.snapshot import Snapshot


class FlavorResourceRequest(NamedTuple):
    """The request for one resource in one flavor, and the available quota."""

    resource: str
    fr: int
    #: The request of this pod set, and of earlier pod sets that use the same flavor and resource.
    amount: int
    assumed: int
    #: The available quota of the ClusterQueue, and its potential capacity.
    free: int
    most: int
    possibility: PreemptionPossibility

    @property
    def total(self) -> int:
        """The request including that of earlier pod sets."""
        return self.assumed + self.amount

    @property
    def missing(self) -> int:
        """The missing amount; 0 if the request fits."""
        return max(0, self.total - self.free) if self.total else 0


class FlavorVerdict(NamedTuple):
    """The verdict on one flavor."""

    flavor: str
    #: The number of its resource group.
    group: int
    #: Why the flavor is excluded regardless of quota, in Kueue's words; '' if it is not.
    obstacle: str
    asks: tuple[FlavorResourceRequest, ...]
    #: The possibility of its worst resource.
    possibility: PreemptionPossibility

    @property
    def fits(self) -> bool:
        """Whether the request fits at present."""
        return self.possibility is PreemptionPossibility.FIT

    @property
    def exceeds(self) -> bool:
        """Whether the request exceeds the potential capacity of the ClusterQueue."""
        return any(ask.total > ask.most for ask in self.asks)


class PodSetVerdicts(NamedTuple):
    """The verdicts on all flavors for one pod set."""

    name: str
    pods: int
    looks: tuple[FlavorVerdict, ...]
    #: A resource that no group of the ClusterQueue covers; '' if all are covered.
    unavailable: str

    def groups(self) -> list[list[FlavorVerdict]]:
        """Return the verdicts by resource group."""
        found: dict[int, list[FlavorVerdict]] = {}
        for look in self.looks:
            found.setdefault(look.group, []).append(look)
        return list(found.values())


def flavor_verdicts(
    snapshot: Snapshot, queue: ClusterQueue, workload: WorkloadView, policy: SchedulingPolicy
) -> tuple[PodSetVerdicts, ...]:
    """Return what each pod set would find, given the assignments of the earlier pod sets."""
    may_preempt = queue.view.preemption.is_allowed
    victims = Preemptor(workload, queue, snapshot, policy.fair_strategies) if may_preempt else None
    search = FlavorAssigner(
        workload, queue, snapshot, None if victims is None else victims.oracle, None, policy.fair_sharing, ()
    )
    found = search.assign(workload.counts)
    picked = {each.name: each.pick.usage for each in found.pod_sets}
    taken: Usage = ()
    verdicts = []
    for index, pod_set in enumerate(workload.pod_sets):
        plan = queue.coverage.plan(pod_set.template, workload.counts[index], snapshot.obstacles)
        looks = [look for group in plan.groups for look in _looks(search, group, taken)]
        verdicts.append(PodSetVerdicts(pod_set.name, workload.counts[index], tuple(looks), plan.unavailable))
        taken = _summed(taken, picked.get(pod_set.name, ()))
    return tuple(verdicts)


def _looks(search: FlavorAssigner, plan: ResourceGroupRequest, taken: Usage) -> list[FlavorVerdict]:
    qualities = search.weighed(plan, taken)
    return [_look(search, plan, index, of, dict(taken)) for index, of in enumerate(qualities)]


def _look(
    search: FlavorAssigner,
    plan: ResourceGroupRequest,
    index: int,
    qualities: Sequence[GranularMode],
    taken: dict[int, int],
) -> FlavorVerdict:
    node = search.queue.node
    of_each = qualities if not plan.obstacles[index] else [NO_FIT] * len(plan.resources)
    asks = tuple(
        [
            FlavorResourceRequest(
                resource, fr, amount, taken.get(fr, 0), available(node, fr), node.potential[fr], possibility_of(of)
            )
            for resource, (fr, amount), of in zip(plan.resources, plan.usages[index], of_each, strict=True)
        ]
    )
    possibility = possibility_of(worst(qualities, search.queue.view.fungibility))
    return FlavorVerdict(plan.group.flavors[index], plan.group.number, plan.obstacles[index], asks, possibility)


def _summed(usage: Usage, more: Usage) -> Usage:
    total = dict(usage)
    for fr, amount in more:
        total[fr] = total.get(fr, 0) + amount
    return tuple(total.items())
