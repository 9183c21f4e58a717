"""Quota holders of a ClusterQueue, and its Active condition. Source: Kueue's pkg/cache/scheduler (inactiveReason)."""

from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final, NamedTuple, TypeAlias

from batchyard.api.views.queues import ClusterQueueView
from batchyard.base.instant import Instant
from batchyard.scheduling.flavor_requests import ResourceGroupIndex
from batchyard.scheduling.quota import QuotaNode, Usage

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
