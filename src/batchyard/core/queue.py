"""A ClusterQueue as decisions see it, the Workloads that hold quota in it, and what asking it for room comes to.

What a pod set asks of a queue's resource groups depends on its template, its count and the queue's spec alone; it is
worked out once for all Workloads alike.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final, NamedTuple, TypeAlias

from batchyard.api.views.pod import PodTemplate, Requests, ordered
from batchyard.api.views.queues import ClusterQueueView, ResourceGroup
from batchyard.base.instant import Instant
from batchyard.core.matching import Obstacles
from batchyard.core.quota import QuotaNode, Usage

PODS: Final = "pods"
_PLANS_MAX: Final = 4096


class Group:
    """A resource group of a ClusterQueue, its flavor-resource ids looked up."""

    __slots__ = ("flavors", "ids", "number", "resources")

    def __init__(self, number: int, group: ResourceGroup, ids: Mapping[str, tuple[int, ...]]) -> None:
        self.number = number
        self.flavors = group.flavors
        self.resources = group.resources
        #: By resource: the id for each flavor, in the order of `flavors`.
        self.ids = ids


#: A resource, how much of it, and the flavor-resource id for each flavor of its group.
Ask: TypeAlias = tuple[str, int, tuple[int, ...]]


class GroupPlan(NamedTuple):
    """What pods ask of one resource group."""

    group: Group
    #: The resource that the search through the flavors is remembered by.
    resource: str
    #: Amounts of zero too.
    asks: tuple[Ask, ...]
    #: By flavor: why these pods cannot use it at all; '' if they can.
    obstacles: tuple[str, ...]


class PodSetPlan(NamedTuple):
    """What a pod set asks of a queue, group by group; `unavailable` is a resource that no group has."""

    requests: Requests
    groups: tuple[GroupPlan, ...]
    unavailable: str


@dataclass(slots=True, eq=False)
class Admitted:
    """A Workload that holds quota."""

    key: str
    uid: str
    queue: "ClusterQueue"
    usage: Usage
    #: Every flavor-resource assigned, those with an amount of zero included.
    flavor_resources: frozenset[int] = frozenset()
    priority: int = 0
    queued: Instant = 0
    reserved_at: Instant = 0
    evicted: bool = False
    is_admitted: bool = True
    local_queue: str = ""
    #: Its place among those to be preempted: low priority, lately reserved, uid.
    rank: tuple[int, int, str] = field(init=False)

    def is_like(self, other: "Admitted") -> bool:
        """Whether they differ in nothing that bears on decisions."""
        return (
            self.queue is other.queue
            and self.rank == other.rank
            and self.usage == other.usage
            and self.evicted == other.evicted
            and self.is_admitted == other.is_admitted
            and self.queued == other.queued
            and self.flavor_resources == other.flavor_resources
            and self.local_queue == other.local_queue
        )

    def __post_init__(self) -> None:
        self.rank = (self.priority, -self.reserved_at, self.uid)
        if not self.flavor_resources:
            self.flavor_resources = frozenset(fr for fr, _ in self.usage)


#: The sort key of candidates for preemption.
RANK: Final = attrgetter("rank")


class ClusterQueue:
    """See the module. `workloads` is changed through the snapshot only."""

    __slots__ = (
        "_plans",
        "_ranked",
        "active",
        "generation",
        "group_of",
        "groups",
        "in_cycle",
        "name",
        "node",
        "view",
        "workloads",
    )

    def __init__(self, view: ClusterQueueView, node: QuotaNode) -> None:
        self.name = view.name
        self.view = view
        self.node = node
        self.groups: tuple[Group, ...] = ()
        self.group_of: dict[str, Group] = {}
        self.workloads: dict[str, Admitted] = {}
        #: Grows whenever quota may have become free here; an older flavor search is then started over.
        self.generation = 1
        self.active = True
        #: Its Cohort's parents lead into a cycle.
        self.in_cycle = False
        self._plans: dict[tuple[int, int], tuple[PodTemplate, PodSetPlan]] = {}
        self._ranked: list[Admitted] | None = None

    def set_groups(self, groups: tuple[Group, ...]) -> None:
        """Give it other resource groups."""
        self.groups = groups
        self.group_of = {resource: group for group in groups for resource in group.resources}
        self.forget_plans()

    def forget_plans(self) -> None:
        """Flavors changed."""
        self._plans.clear()

    def put(self, workload: Admitted) -> None:
        """Add a Workload."""
        self.workloads[workload.key] = workload
        self._ranked = None

    def take(self, key: str) -> None:
        """Remove a Workload."""
        del self.workloads[key]
        self._ranked = None

    def ranked(self) -> list[Admitted]:
        """Its Workloads in the order in which they would be preempted."""
        if self._ranked is None:
            self._ranked = sorted(self.workloads.values(), key=RANK)
        return self._ranked

    def plan(self, template: PodTemplate, count: int, obstacles: Obstacles) -> PodSetPlan:
        """What so many pods of a template ask for."""
        key = (id(template), count)
        known = self._plans.get(key)
        if known is None or known[0] is not template:
            if len(self._plans) >= _PLANS_MAX:
                self._plans.clear()
            requests = self._requests(template, count)
            known = self._plans[key] = (template, self.plan_requests(requests, (template,), obstacles))
        return known[1]

    def plan_requests(self, requests: Requests, templates: Sequence[PodTemplate], obstacles: Obstacles) -> PodSetPlan:
        """What requests ask for that must come from the same flavors for all of these templates."""
        groups: list[GroupPlan] = []
        planned: list[str] = []
        for resource, amount in requests:
            group = self.group_of.get(resource)
            if resource in planned or (group is None and amount == 0):
                continue
            if group is None:
                return PodSetPlan(requests, tuple(groups), resource)
            found = [obstacles.of(template, group.flavors) for template in templates]
            plan = _plan_group(group, resource, requests, found[0] if len(found) == 1 else _merged(found))
            planned += [resource for resource, _, _ in plan.asks]
            groups.append(plan)
        return PodSetPlan(requests, tuple(groups), "")

    def _requests(self, template: PodTemplate, count: int) -> Requests:
        """What so many pods request in all; `pods` too where the queue has quota for it."""
        requests = tuple([(r, n * count) for r, n in template.requests])
        return ordered({**dict(requests), PODS: count}) if PODS in self.group_of else requests


def _plan_group(group: Group, resource: str, requests: Requests, obstacles: tuple[str, ...]) -> GroupPlan:
    asks = tuple([(r, amount, group.ids[r]) for r, amount in requests if r in group.ids])
    return GroupPlan(group, resource, asks, obstacles)


def _merged(obstacles: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """By flavor, the first obstacle of several templates."""
    return tuple([next(filter(None, of_flavor), "") for of_flavor in zip(*obstacles, strict=True)])
