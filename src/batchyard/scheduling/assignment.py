"""Flavor assignment: a flavor for each resource of each pod set, and how well it fits."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from batchyard.api.views.pod import Requests
from batchyard.api.views.workload import Shape
from batchyard.scheduling.flavor_requests import (
    NO_FLAVOR_ASSIGNMENT,
    SCAN_DONE,
    FlavorAssignment,
    FlavorAttempt,
    FlavorChoice,
    FlavorScan,
)
from batchyard.scheduling.granular_mode import FlavorAssignmentMode, PreemptionPossibility
from batchyard.scheduling.messages import NO_MATCHING_FLAVOR, Fact, PodSetReasons, least_severe, most_severe
from batchyard.scheduling.quota import Usage


@dataclass(slots=True)
class PodSetAssignment:
    """The flavors of one pod set, and why flavors were rejected."""

    name: str
    count: int
    requests: Requests
    pick: FlavorAssignment
    #: The scanned resource groups; one without a pick ended the search.
    scans: tuple[FlavorScan, ...]
    #: A resource that the ClusterQueue does not cover.
    unavailable: str

    @property
    def choices(self) -> Mapping[str, FlavorChoice]:
        """The flavors by resource."""
        return self.pick.choices

    @property
    def mode(self) -> FlavorAssignmentMode:
        """The mode of its worst resource."""
        return self.pick.mode

    @property
    def facts(self) -> tuple[Fact, ...]:
        """The reasons against it."""
        if self.scans and self.scans[-1].pick is NO_FLAVOR_ASSIGNMENT:
            return tuple(self.scans[-1].facts)
        if self.unavailable:
            return (f"resource {self.unavailable} unavailable in ClusterQueue",)
        return tuple([fact for scan in self.scans for fact in scan.facts])

    @property
    def attempts(self) -> tuple[FlavorAttempt, ...]:
        """The results of all scanned flavors except those with free quota."""
        return tuple([attempt for scan in self.scans for attempt in scan.attempts])

    @property
    def no_fit_reason(self) -> str:
        """The reason why it does not fit: per resource group that of the nearest flavor, of all groups the worst."""
        by_group: dict[int, str] = {}
        for attempt in self.attempts:
            if attempt.possibility is PreemptionPossibility.NO_FIT:
                known = by_group.get(attempt.group, attempt.no_fit_reason)
                by_group[attempt.group] = least_severe(known, attempt.no_fit_reason)
        worst = ""
        for reason in by_group.values():
            worst = most_severe(worst, reason)
        return worst or NO_MATCHING_FLAVOR


class LastAssignment(NamedTuple):
    """How far an interrupted flavor search got, and what its validity depends on."""

    #: By pod set and resource, the last flavor considered, or SCAN_DONE.
    tried: tuple[Mapping[str, int], ...]
    generation: int
    cycle: int
    shape: Shape

    def next_flavor(self, pod_set: int, resource: str) -> int:
        """Return the flavor index at which to resume for a resource of a pod set."""
        return self.tried[pod_set].get(resource, SCAN_DONE) + 1 if pod_set < len(self.tried) else 0


@dataclass(slots=True)
class Assignment:
    """Flavors for a whole Workload. `mode` may be lowered to DEFERRED_FIT."""

    pod_sets: list[PodSetAssignment]
    mode: FlavorAssignmentMode
    borrow: int
    usage: Usage

    @property
    def pod_set_facts(self) -> tuple[PodSetReasons, ...]:
        """The reasons against it, by pod set."""
        return tuple([PodSetReasons(p.name, facts) for p in self.pod_sets if (facts := p.facts)])

    @property
    def no_fit_reason(self) -> str:
        """The reason for QuotaReserved=False if it does not fit."""
        worst = ""
        for pod_set in self.pod_sets:
            if pod_set.mode is FlavorAssignmentMode.NO_FIT:
                worst = most_severe(worst, pod_set.no_fit_reason)
        return worst

    @property
    def preempting(self) -> tuple[int, ...]:
        """The flavor-resources that need preemption."""
        return tuple(dict.fromkeys([fr for pod_set in self.pod_sets for fr in pod_set.pick.preempting]))
