"""What pods ask of a ClusterQueue's resource groups.

That depends on their template, their number and on which flavors and resources the groups have, not on quota: it is
worked out once for all Workloads alike, in all ClusterQueues whose groups are alike.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from batchyard.api.views.pod import PodTemplate, Requests, ordered
from batchyard.core.matching import Obstacles
from batchyard.core.quality import Mode, Quality, height_of, mode_of
from batchyard.core.quota import Usage

PODS: Final = "pods"
SCAN_DONE: Final = -1
_PLANS_MAX: Final = 4096
_PICKS_MAX: Final = 256


class Group(NamedTuple):
    """A resource group of a ClusterQueue."""

    number: int
    flavors: tuple[str, ...]
    #: By resource: the flavor-resource id for each flavor.
    ids: Mapping[str, tuple[int, ...]]


class Choice(NamedTuple):
    """The flavor chosen for a resource."""

    flavor: str
    fr: int
    mode: Mode
    #: Height in the cohort tree where the quota comes from; 0 is the ClusterQueue's own.
    borrow: int


class Pick(NamedTuple):
    """A flavor chosen for all that is asked of a resource group."""

    choices: Mapping[str, Choice]
    usage: Usage
    #: That of its worst resource.
    mode: Mode
    #: From how far its quota comes.
    borrow: int
    #: By resource, the last flavor looked at, or SCAN_DONE when the next search starts from the first again.
    tried: Mapping[str, int]
    #: The search stopped before the last flavor of some resource.
    has_flavors_left: bool
    #: The flavor-resources that need preemption.
    preempting: tuple[int, ...]


def make_pick(choices: Mapping[str, Choice], usage: Usage, tried: Mapping[str, int], mode: Mode = Mode.NO_FIT) -> Pick:
    """What these choices come to; the mode given is that of no choices at all."""
    worst = min([choice.mode for choice in choices.values()], default=mode)
    borrow = max([choice.borrow for choice in choices.values()], default=0)
    preempting = tuple([choice.fr for choice in choices.values() if choice.mode is Mode.PREEMPT])
    has_flavors_left = any(index != SCAN_DONE for index in tried.values())
    return Pick(choices, usage, worst, borrow, tried, has_flavors_left, preempting)


#: No flavor would do.
NO_PICK: Final = make_pick({}, (), {})


class GroupPlan:
    """What pods ask of one resource group."""

    __slots__ = ("_picks", "group", "obstacles", "resource", "resources", "usages")

    def __init__(self, group: Group, resource: str, requests: Requests, obstacles: tuple[str, ...]) -> None:
        asks = [(r, amount, group.ids[r]) for r, amount in requests if r in group.ids]
        self.group = group
        #: The resource that the search through the flavors is remembered by.
        self.resource = resource
        self.resources = tuple([r for r, _, _ in asks])
        #: By flavor: what would be used of it, in the order of `resources`, amounts of zero too.
        self.usages: tuple[Usage, ...] = tuple(
            [tuple([(ids[index], amount) for _, amount, ids in asks]) for index in range(len(group.flavors))]
        )
        #: By flavor: why these pods cannot use it at all; '' if they can.
        self.obstacles = obstacles
        self._picks: dict[tuple[int, ...], Pick] = {}

    def pick(self, index: int, last: int, qualities: Sequence[Quality]) -> Pick:
        """The flavor of that index, so good for each resource; `last` is the one last looked at."""
        question = (index, last, *qualities)
        known = self._picks.get(question)
        if known is None:
            if len(self._picks) >= _PICKS_MAX:
                self._picks.clear()
            known = self._picks[question] = self._make_pick(index, last, qualities)
        return known

    def _make_pick(self, index: int, last: int, qualities: Sequence[Quality]) -> Pick:
        flavors, usage = self.group.flavors, self.usages[index]
        tried = SCAN_DONE if last == len(flavors) - 1 else last
        choices = {
            resource: Choice(flavors[index], fr, mode_of(of), height_of(of))
            for resource, (fr, _), of in zip(self.resources, usage, qualities, strict=True)
        }
        return make_pick(choices, usage, dict.fromkeys(choices, tried))


class PodSetPlan(NamedTuple):
    """What a pod set asks of a queue, group by group; `unavailable` is a resource that no group has."""

    requests: Requests
    groups: tuple[GroupPlan, ...]
    unavailable: str


class Coverage:
    """The resource groups of ClusterQueues whose groups are alike, and what is asked of them."""

    __slots__ = ("_plans", "group_of", "groups")

    def __init__(self, groups: Sequence[Group]) -> None:
        self.groups = groups
        self.group_of = {resource: group for group in groups for resource in group.ids}
        self._plans: dict[tuple[int, int], tuple[PodTemplate, PodSetPlan]] = {}

    def forget_plans(self) -> None:
        """Flavors changed."""
        self._plans.clear()

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
            plan = GroupPlan(group, resource, requests, found[0] if len(found) == 1 else _merged(found))
            planned += plan.resources
            groups.append(plan)
        return PodSetPlan(requests, tuple(groups), "")

    def _requests(self, template: PodTemplate, count: int) -> Requests:
        """What so many pods request in all; `pods` too where the queue has quota for it."""
        requests = tuple([(r, n * count) for r, n in template.requests])
        return ordered({**dict(requests), PODS: count}) if PODS in self.group_of else requests


def _merged(obstacles: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """By flavor, the first obstacle of several templates."""
    return tuple([next(filter(None, of_flavor), "") for of_flavor in zip(*obstacles, strict=True)])
