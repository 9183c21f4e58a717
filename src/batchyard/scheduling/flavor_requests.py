"""What pods ask of a ClusterQueue's resource groups.

That depends on their template, their number and on which flavors and resources the groups have, not on quota: it is
worked out once for all Workloads alike, in all ClusterQueues whose groups are alike.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from batchyard.api.views.pod import PodTemplate, Requests, ordered
from batchyard.api.views.queues import Flavor, Fungibility
from batchyard.scheduling.granular_mode import (
    FIT,
    Mode,
    Possibility,
    Quality,
    height_of,
    mode_of,
    possibility_of,
    worst,
)
from batchyard.scheduling.messages import (
    EXCEEDS_MAX_QUOTA,
    NO_MATCHING_FLAVOR,
    WAITING_FOR_QUOTA,
    Fact,
    Short,
    TooLarge,
    most_severe,
)
from batchyard.scheduling.quota import Usage

# --- matching ---
#
# Which flavors a pod template may use: taints must be tolerated, selectors and affinity must match.
#
# Only those expressions count whose key is a label of the flavor itself.
# Source: Kueue's pkg/scheduler/flavorassigner (checkFlavorForPodSets, flavorSelector).


TAINT: Final = "taint"
AFFINITY: Final = "affinity"
NOT_FOUND: Final = "notFound"
_MEMO_MAX: Final = 4096
_UNTOLERATED: Final = "untolerated taint "
_UNSELECTED: Final = " doesn't match node affinity"


class Obstacles:
    """What keeps pods from flavors, worked out once for all templates that constrain alike."""

    def __init__(self, flavors: Mapping[str, Flavor]) -> None:
        self._flavors = flavors
        self._known: dict[tuple[object, ...], tuple[str, ...]] = {}

    def of(self, template: PodTemplate, names: tuple[str, ...]) -> tuple[str, ...]:
        """By flavor, why pods of the template cannot use it; '' if they can."""
        question = (names, template.node_selector, template.affinity, template.tolerations)
        known = self._known.get(question)
        if known is None:
            if len(self._known) >= _MEMO_MAX:
                self._known.clear()
            known = tuple([find_obstacle(template, name, self._flavors.get(name)) for name in names])
            self._known[question] = known
        return known

    def forget(self) -> None:
        """Flavors changed."""
        self._known.clear()


def find_obstacle(template: PodTemplate, name: str, flavor: Flavor | None) -> str:
    """Why pods of the template cannot use the flavor, in Kueue's words; '' if they can."""
    if flavor is None:
        return f"flavor {name} not found"
    tolerations = (*template.tolerations, *flavor.tolerations)
    for taint in flavor.taints:
        if not any(toleration.tolerates(taint) for toleration in tolerations):
            return f"{_UNTOLERATED}{taint} in flavor {name}"
    return "" if _selects(template, flavor.labels) else f"flavor {name}{_UNSELECTED}"


def rule_of(obstacle: str) -> str:
    """Which rule such words are about: a taint, the affinity, or a flavor that is not there."""
    if obstacle.startswith(_UNTOLERATED):
        return TAINT
    return AFFINITY if obstacle.endswith(_UNSELECTED) else NOT_FOUND


def _selects(template: PodTemplate, labels: Mapping[str, str]) -> bool:
    """Whether node selector and required affinity hold, looking only at the flavor's own label keys."""
    if any(labels[key] != value for key, value in template.node_selector if key in labels):
        return False
    if not template.affinity:
        return True
    # Terms are alternatives: one without relevant expressions holds for any flavor, and so do all of them.
    return any(
        all(requirement.matches(labels) for requirement in term if requirement.key in labels)
        for term in template.affinity
    )


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


# --- scan ---
#
# What came of looking through a resource group's flavors.
#
# Nearly every flavor that is looked at in vain is never asked why: a scan keeps the figures it was made from, and says
# what stands against each flavor when somebody wants to know. Source: Kueue's
# pkg/scheduler/flavorassigner/flavorassigner.go (its reasons and messages).


_FIT: Final = Possibility.FIT


class Attempt(NamedTuple):
    """What came of looking at one flavor."""

    flavor: str
    group: int
    possibility: Possibility
    borrow: int
    facts: tuple[Fact, ...]
    no_fit_reason: str


class Scan(NamedTuple):
    """The looks at a group's flavors, and the flavor picked."""

    plan: GroupPlan
    #: By flavor: what rules it out whatever its quota; '' if nothing does.
    obstacles: Sequence[str]
    #: The first flavor looked at.
    start: int
    #: One flavor after the other, how good it is for each resource.
    looks: Sequence[Sequence[Quality]]
    pick: Pick
    #: By flavor-resource: what earlier pod sets of the Workload take, what was available, what ever could be.
    assumed: Mapping[int, int]
    available: Mapping[int, int]
    potential: Sequence[int]
    fungibility: Fungibility

    @property
    def facts(self) -> list[Fact]:
        """What stands against the flavors; nothing once one fits."""
        if self.pick.mode is Mode.FIT:
            return []
        return [fact for index, look in enumerate(self.looks, self.start) for fact in self._facts(index, look)]

    @property
    def attempts(self) -> list[Attempt]:
        """What came of each flavor looked at that is not simply free."""
        return [self._attempt(index, look) for index, look in enumerate(self.looks, self.start) if min(look) != FIT]

    def _attempt(self, index: int, look: Sequence[Quality]) -> Attempt:
        group, facts = self.plan.group, self._facts(index, look)
        possibility, borrow = possibility_of(worst(look, self.fungibility)), max(map(height_of, look))
        reason = NO_MATCHING_FLAVOR if self.obstacles[index] else _no_fit_reason(look, facts)
        return Attempt(group.flavors[index], group.number, possibility, borrow, tuple(facts), reason)

    def _facts(self, index: int, look: Sequence[Quality]) -> list[Fact]:
        """What stands against a flavor."""
        if self.obstacles[index]:
            return [self.obstacles[index]]
        plan = self.plan
        asks = zip(plan.resources, plan.usages[index], look, strict=True)
        flavor = plan.group.flavors[index]
        return [self._fact(resource, flavor, ask) for resource, ask, of in asks if possibility_of(of) is not _FIT]

    def _fact(self, resource: str, flavor: str, ask: tuple[int, int]) -> Short | TooLarge:
        fr, amount = ask
        assumed = self.assumed.get(fr, 0)
        if assumed + amount > self.potential[fr]:
            return TooLarge(resource, flavor, assumed, amount, self.potential[fr])
        return Short(resource, flavor, assumed + amount - max(0, self.available[fr]))


def _no_fit_reason(qualities: Sequence[Quality], facts: Sequence[Fact]) -> str:
    """The worst reason of those resources that could not even be had by preemption; '' if there are none."""
    reason = ""
    against = [of for of in qualities if possibility_of(of) is not _FIT]
    for of, fact in zip(against, facts, strict=True):
        if possibility_of(of) is Possibility.NO_FIT:
            reason = most_severe(reason, EXCEEDS_MAX_QUOTA if isinstance(fact, TooLarge) else WAITING_FOR_QUOTA)
    return reason
