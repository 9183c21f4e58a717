"""ClusterQueues in the snapshot: quota holders, Active condition, and how requests match and rank their flavors.

Source: Kueue's pkg/cache/scheduler (inactiveReason).
"""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final, NamedTuple, TypeAlias

from batchyard.api.views.node import PodTemplate, Requests, ordered
from batchyard.api.views.workload import ClusterQueueView, FlavorView, Fungibility
from batchyard.base.instant import Instant
from batchyard.scheduling.messages import (
    EXCEEDS_MAX_QUOTA,
    NO_MATCHING_FLAVOR,
    WAITING_FOR_QUOTA,
    ExceedsMaxCapacity,
    Fact,
    InsufficientQuota,
    most_severe,
)
from batchyard.scheduling.quota import (
    FIT,
    FlavorAssignmentMode,
    GranularMode,
    PreemptionPossibility,
    QuotaNode,
    Usage,
    height_of,
    mode_of,
    possibility_of,
    worst,
)

# --- flavor matching ---
#
# Which flavors a pod template may use: taints must be tolerated, selectors and affinity must match.
#
# Only expressions whose key is a label of the flavor count.
# Source: Kueue's pkg/scheduler/flavorassigner (checkFlavorForPodSets, flavorSelector).


TAINT: Final = "taint"
# --- flavor requests ---
#
# Requests of pods to the resource groups of a ClusterQueue.
#
# They depend on the pod template, the pod count, and the flavors and resources of the groups, but not on quota. They
# are therefore computed once for all equal Workloads in all ClusterQueues with equal groups.


AFFINITY: Final = "affinity"
NOT_FOUND: Final = "notFound"
_MEMO_MAX: Final = 4096
_UNTOLERATED: Final = "untolerated taint "
_UNSELECTED: Final = " doesn't match node affinity"


class FlavorMismatches:
    """Why pods cannot use flavors, cached for all templates with equal constraints."""

    def __init__(self, flavors: Mapping[str, FlavorView]) -> None:
        self._flavors = flavors
        self._known: dict[tuple[object, ...], tuple[str, ...]] = {}

    def of(self, template: PodTemplate, names: tuple[str, ...]) -> tuple[str, ...]:
        """Return by flavor why pods of the template cannot use it; '' if they can."""
        question = (names, template.node_selector, template.affinity, template.tolerations)
        known = self._known.get(question)
        if known is None:
            if len(self._known) >= _MEMO_MAX:
                self._known.clear()
            known = tuple([flavor_mismatch(template, name, self._flavors.get(name)) for name in names])
            self._known[question] = known
        return known

    def forget(self) -> None:
        """Drop the cache after a change of flavors."""
        self._known.clear()


def flavor_mismatch(template: PodTemplate, name: str, flavor: FlavorView | None) -> str:
    """Return why pods of the template cannot use the flavor, in Kueue's words; '' if they can."""
    if flavor is None:
        return f"flavor {name} not found"
    tolerations = (*template.tolerations, *flavor.tolerations)
    for taint in flavor.taints:
        if not any(toleration.tolerates(taint) for toleration in tolerations):
            return f"{_UNTOLERATED}{taint} in flavor {name}"
    return "" if _selects(template, flavor.labels) else f"flavor {name}{_UNSELECTED}"


def rule_of(obstacle: str) -> str:
    """Return the rule behind an obstacle: a taint, the affinity, or a missing flavor."""
    if obstacle.startswith(_UNTOLERATED):
        return TAINT
    return AFFINITY if obstacle.endswith(_UNSELECTED) else NOT_FOUND


def _selects(template: PodTemplate, labels: Mapping[str, str]) -> bool:
    """Report whether node selector and required affinity match, considering only the flavor's own label keys."""
    if any(labels[key] != value for key, value in template.node_selector if key in labels):
        return False
    if not template.affinity:
        return True
    # Terms are alternatives. A term without relevant expressions matches any flavor.
    return any(
        all(requirement.matches(labels) for requirement in term if requirement.key in labels)
        for term in template.affinity
    )


PODS: Final = "pods"
SCAN_DONE: Final = -1
_PLANS_MAX: Final = 4096
_PICKS_MAX: Final = 256


class FlavorGroup(NamedTuple):
    """A resource group of a ClusterQueue."""

    number: int
    flavors: tuple[str, ...]
    #: By resource, the flavor-resource id for each flavor.
    ids: Mapping[str, tuple[int, ...]]


class FlavorChoice(NamedTuple):
    """The flavor chosen for a resource."""

    flavor: str
    fr: int
    mode: FlavorAssignmentMode
    #: Height in the cohort tree where the quota comes from; 0 is the ClusterQueue's own.
    borrow: int


class FlavorAssignment(NamedTuple):
    """The flavors chosen for the requests to a resource group."""

    choices: Mapping[str, FlavorChoice]
    usage: Usage
    #: The mode of its worst resource.
    mode: FlavorAssignmentMode
    #: The height in the cohort tree that its quota comes from.
    borrow: int
    #: By resource, the last flavor considered, or SCAN_DONE if the next search starts from the first again.
    tried: Mapping[str, int]
    #: Whether the search stopped before the last flavor of some resource.
    has_flavors_left: bool
    #: The flavor-resources that need preemption.
    preempting: tuple[int, ...]


def make_flavor_assignment(
    choices: Mapping[str, FlavorChoice],
    usage: Usage,
    tried: Mapping[str, int],
    mode: FlavorAssignmentMode = FlavorAssignmentMode.NO_FIT,
) -> FlavorAssignment:
    """Build the pick of these choices; `mode` is that of a pick without choices."""
    worst = min([choice.mode for choice in choices.values()], default=mode)
    borrow = max([choice.borrow for choice in choices.values()], default=0)
    preempting = tuple([choice.fr for choice in choices.values() if choice.mode is FlavorAssignmentMode.PREEMPT])
    has_flavors_left = any(index != SCAN_DONE for index in tried.values())
    return FlavorAssignment(choices, usage, worst, borrow, tried, has_flavors_left, preempting)


#: The pick if no flavor is suitable.
NO_FLAVOR_ASSIGNMENT: Final = make_flavor_assignment({}, (), {})


class ResourceGroupRequest:
    """The requests of pods to one resource group."""

    __slots__ = ("_picks", "group", "obstacles", "resource", "resources", "usages")

    def __init__(self, group: FlavorGroup, resource: str, requests: Requests, obstacles: tuple[str, ...]) -> None:
        asks = [(r, amount, group.ids[r]) for r, amount in requests if r in group.ids]
        self.group = group
        #: The resource under which the position of the flavor search is stored.
        self.resource = resource
        self.resources = tuple([r for r, _, _ in asks])
        #: By flavor, the requested usage in the order of `resources`, including amounts of zero.
        self.usages: tuple[Usage, ...] = tuple(
            [tuple([(ids[index], amount) for _, amount, ids in asks]) for index in range(len(group.flavors))]
        )
        #: By flavor, why these pods cannot use it; '' if they can.
        self.obstacles = obstacles
        self._picks: dict[tuple[int, ...], FlavorAssignment] = {}

    def pick(self, index: int, last: int, qualities: Sequence[GranularMode]) -> FlavorAssignment:
        """Return the pick of a flavor with these qualities; `last` is the index of the last flavor considered."""
        question = (index, last, *qualities)
        known = self._picks.get(question)
        if known is None:
            if len(self._picks) >= _PICKS_MAX:
                self._picks.clear()
            known = self._picks[question] = self._make_pick(index, last, qualities)
        return known

    def _make_pick(self, index: int, last: int, qualities: Sequence[GranularMode]) -> FlavorAssignment:
        flavors, usage = self.group.flavors, self.usages[index]
        tried = SCAN_DONE if last == len(flavors) - 1 else last
        choices = {
            resource: FlavorChoice(flavors[index], fr, mode_of(of), height_of(of))
            for resource, (fr, _), of in zip(self.resources, usage, qualities, strict=True)
        }
        return make_flavor_assignment(choices, usage, dict.fromkeys(choices, tried))


class PodSetRequest(NamedTuple):
    """The requests of a pod set, group by group; `unavailable` is a resource that no group covers."""

    requests: Requests
    groups: tuple[ResourceGroupRequest, ...]
    unavailable: str


class ResourceGroupIndex:
    """The resource groups of ClusterQueues with equal groups, and the cached requests to them."""

    __slots__ = ("_plans", "group_of", "groups")

    def __init__(self, groups: Sequence[FlavorGroup]) -> None:
        self.groups = groups
        self.group_of = {resource: group for group in groups for resource in group.ids}
        self._plans: dict[tuple[int, int], tuple[PodTemplate, PodSetRequest]] = {}

    def forget_plans(self) -> None:
        """Drop the cache after a change of flavors."""
        self._plans.clear()

    def plan(self, template: PodTemplate, count: int, obstacles: FlavorMismatches) -> PodSetRequest:
        """Return the requests of `count` pods of a template."""
        key = (id(template), count)
        known = self._plans.get(key)
        if known is None or known[0] is not template:
            if len(self._plans) >= _PLANS_MAX:
                self._plans.clear()
            requests = self._requests(template, count)
            known = self._plans[key] = (template, self.plan_requests(requests, (template,), obstacles))
        return known[1]

    def plan_requests(
        self, requests: Requests, templates: Sequence[PodTemplate], obstacles: FlavorMismatches
    ) -> PodSetRequest:
        """Return requests that must be met from the same flavors for all of these templates."""
        groups: list[ResourceGroupRequest] = []
        planned: list[str] = []
        for resource, amount in requests:
            group = self.group_of.get(resource)
            if resource in planned or (group is None and amount == 0):
                continue
            if group is None:
                return PodSetRequest(requests, tuple(groups), resource)
            found = [obstacles.of(template, group.flavors) for template in templates]
            plan = ResourceGroupRequest(group, resource, requests, found[0] if len(found) == 1 else _merged(found))
            planned += plan.resources
            groups.append(plan)
        return PodSetRequest(requests, tuple(groups), "")

    def _requests(self, template: PodTemplate, count: int) -> Requests:
        """Return the total requests of `count` pods, including `pods` if the queue has quota for it."""
        requests = tuple([(r, n * count) for r, n in template.requests])
        return ordered({**dict(requests), PODS: count}) if PODS in self.group_of else requests


def _merged(obstacles: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Return by flavor the first obstacle among several templates."""
    return tuple([next(filter(None, of_flavor), "") for of_flavor in zip(*obstacles, strict=True)])


# --- flavor scan ---
#
# The results of scanning the flavors of a resource group.
#
# The reasons against a rejected flavor are rarely read. A scan therefore keeps the figures it was made from, and
# computes the reasons on demand. Source: Kueue's pkg/scheduler/flavorassigner/flavorassigner.go (its reasons and
# messages).


_FIT: Final = PreemptionPossibility.FIT


class FlavorAttempt(NamedTuple):
    """The result for one scanned flavor."""

    flavor: str
    group: int
    possibility: PreemptionPossibility
    borrow: int
    facts: tuple[Fact, ...]
    no_fit_reason: str


class FlavorScan(NamedTuple):
    """The qualities of a group's flavors, and the flavor picked."""

    plan: ResourceGroupRequest
    #: By flavor, why it is excluded regardless of quota; '' if it is not.
    obstacles: Sequence[str]
    #: The index of the first scanned flavor.
    start: int
    #: By scanned flavor, the quality for each resource.
    looks: Sequence[Sequence[GranularMode]]
    pick: FlavorAssignment
    #: By flavor-resource: the usage of earlier pod sets, the available quota, and the potential capacity.
    assumed: Mapping[int, int]
    available: Mapping[int, int]
    potential: Sequence[int]
    fungibility: Fungibility

    @property
    def facts(self) -> list[Fact]:
        """The reasons against the flavors; empty if one fits."""
        if self.pick.mode is FlavorAssignmentMode.FIT:
            return []
        return [fact for index, look in enumerate(self.looks, self.start) for fact in self._facts(index, look)]

    @property
    def attempts(self) -> list[FlavorAttempt]:
        """The results of the scanned flavors except those with free quota."""
        return [self._attempt(index, look) for index, look in enumerate(self.looks, self.start) if min(look) != FIT]

    def _attempt(self, index: int, look: Sequence[GranularMode]) -> FlavorAttempt:
        group, facts = self.plan.group, self._facts(index, look)
        possibility, borrow = possibility_of(worst(look, self.fungibility)), max(map(height_of, look))
        reason = NO_MATCHING_FLAVOR if self.obstacles[index] else _no_fit_reason(look, facts)
        return FlavorAttempt(group.flavors[index], group.number, possibility, borrow, tuple(facts), reason)

    def _facts(self, index: int, look: Sequence[GranularMode]) -> list[Fact]:
        """Return the reasons against a flavor."""
        if self.obstacles[index]:
            return [self.obstacles[index]]
        plan = self.plan
        asks = zip(plan.resources, plan.usages[index], look, strict=True)
        flavor = plan.group.flavors[index]
        return [self._fact(resource, flavor, ask) for resource, ask, of in asks if possibility_of(of) is not _FIT]

    def _fact(self, resource: str, flavor: str, ask: tuple[int, int]) -> InsufficientQuota | ExceedsMaxCapacity:
        fr, amount = ask
        assumed = self.assumed.get(fr, 0)
        if assumed + amount > self.potential[fr]:
            return ExceedsMaxCapacity(resource, flavor, assumed, amount, self.potential[fr])
        return InsufficientQuota(resource, flavor, assumed + amount - max(0, self.available[fr]))


def _no_fit_reason(qualities: Sequence[GranularMode], facts: Sequence[Fact]) -> str:
    """Return the worst reason among resources that even preemption cannot free; '' if there are none."""
    reason = ""
    against = [of for of in qualities if possibility_of(of) is not _FIT]
    for of, fact in zip(against, facts, strict=True):
        if possibility_of(of) is PreemptionPossibility.NO_FIT:
            reason = most_severe(
                reason, EXCEEDS_MAX_QUOTA if isinstance(fact, ExceedsMaxCapacity) else WAITING_FOR_QUOTA
            )
    return reason


# --- queue ---
#
# A ClusterQueue in the snapshot, and the Workloads that hold quota in it.


@dataclass(slots=True, eq=False)
class AdmittedWorkload:
    """A Workload that holds quota."""

    key: str
    uid: str
    queue: "ClusterQueue"
    usage: Usage
    #: Every assigned flavor-resource, including those with an amount of zero.
    flavor_resources: frozenset[int] = frozenset()
    priority: int = 0
    queued: Instant = 0
    reserved_at: Instant = 0
    evicted: bool = False
    is_admitted: bool = True
    local_queue: str = ""
    #: The part of the priority that a Budget added.
    boost: int = 0
    #: The sort key for preemption: lowest priority first, then latest reservation, then uid.
    rank: tuple[int, int, str] = field(init=False)

    def is_like(self, other: "AdmittedWorkload") -> bool:
        """Report whether both are equal in everything that affects decisions."""
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
    """A ClusterQueue with its quota node and admitted Workloads; only the snapshot changes `workloads`."""

    __slots__ = (
        "_ranked",
        "active",
        "coverage",
        "generation",
        "in_cycle",
        "name",
        "node",
        "view",
        "workloads",
    )

    def __init__(self, view: ClusterQueueView, node: QuotaNode, coverage: ResourceGroupIndex) -> None:
        self.name = view.name
        self.view = view
        self.node = node
        self.coverage = coverage
        self.workloads: dict[str, AdmittedWorkload] = {}
        #: Incremented when quota may have become free here; older flavor searches then start over.
        self.generation = 1
        self.active = True
        #: Whether the parents of its Cohort form a cycle.
        self.in_cycle = False
        self._ranked: list[AdmittedWorkload] | None = None

    def put(self, workload: AdmittedWorkload) -> None:
        """Add a Workload."""
        self.workloads[workload.key] = workload
        self._ranked = None

    def take(self, key: str) -> None:
        """Remove a Workload."""
        del self.workloads[key]
        self._ranked = None

    def forget_ranks(self) -> None:
        """Drop the cached order."""
        self._ranked = None

    def ranked(self) -> list[AdmittedWorkload]:
        """Return its Workloads in preemption order."""
        if self._ranked is None:
            self._ranked = sorted(self.workloads.values(), key=RANK)
        return self._ranked


class QueueActiveStatus(NamedTuple):
    """The Active condition of a ClusterQueue."""

    active: bool
    reason: str
    message: str


class AdmissionCheckInfo(NamedTuple):
    """Whether the controller of an AdmissionCheck is active, and its name."""

    active: bool
    controller: str = ""


Fault: TypeAlias = tuple[str, str]

PROVISIONING: Final = "kueue.x-k8s.io/provisioning-request"
MULTI_KUEUE: Final = "kueue.x-k8s.io/multikueue"

READY: Final = QueueActiveStatus(True, "Ready", "Can admit new workloads")
TERMINATING: Final = QueueActiveStatus(False, "Terminating", "Can't admit new workloads; clusterQueue is terminating")


def readiness_of(
    view: ClusterQueueView, *, terminating: bool, flavors: Container[str], checks: Mapping[str, AdmissionCheckInfo]
) -> QueueActiveStatus:
    """Return the readiness of a ClusterQueue, given the existing flavors and AdmissionChecks."""
    if terminating:
        return TERMINATING
    faults: list[Fault] = []
    if view.stop_policy != "None":
        faults.append(("Stopped", "is stopped"))
    missing = [flavor for flavor in view.flavors if flavor not in flavors]
    if missing:
        faults.append(("FlavorNotFound", f"references missing ResourceFlavor(s): {','.join(missing)}"))
    if view.check_rules:
        faults += _faults_of_checks(view, checks)
    if not faults:
        return READY
    return QueueActiveStatus(
        False, faults[0][0], f"Can't admit new workloads: {', '.join(text for _, text in faults)}."
    )


def _faults_of_checks(view: ClusterQueueView, checks: Mapping[str, AdmissionCheckInfo]) -> list[Fault]:
    """Return the faults of missing, inactive and incompatible AdmissionChecks."""
    rules = sorted(view.check_rules)
    known = [(rule, checks[rule.name]) for rule in rules if rule.name in checks]
    remote = [rule for rule, check in known if check.controller == MULTI_KUEUE]
    some = [rule.name for rule in remote if frozenset(rule.flavors) != frozenset(view.flavors)]
    local = [rule.name for rule, check in known if check.controller == PROVISIONING]
    faults = []
    if unknown := [rule.name for rule in rules if rule.name not in checks]:
        faults.append(("AdmissionCheckNotFound", f"references missing AdmissionCheck(s): {','.join(unknown)}"))
    if inactive := [rule.name for rule, check in known if not check.active]:
        faults.append(("AdmissionCheckInactive", f"references inactive AdmissionCheck(s): {','.join(inactive)}"))
    names = ",".join(rule.name for rule in remote)
    if len(remote) > 1:
        text = f"Cannot use multiple MultiKueue AdmissionChecks on the same ClusterQueue, found: {names}"
        faults.append(("MultipleMultiKueueAdmissionChecks", text))
    if some:
        text = f"Cannot specify MultiKueue AdmissionCheck per flavor, found: {','.join(some)}"
        faults.append(("MultiKueueAdmissionCheckAppliedPerFlavor", text))
    if remote and local:
        both = f"found: {names}, {','.join(local)}"
        text = f"Cannot use both MultiKueue and ProvisioningRequest AdmissionChecks together, {both}"
        faults.append(("MultiKueueWithProvisioningRequest", text))
    return faults
