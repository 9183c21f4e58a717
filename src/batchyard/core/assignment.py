"""A flavor for each resource of each pod set, and how well that fits."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

from batchyard.api.views.pod import Requests
from batchyard.api.views.workload import Shape
from batchyard.core.quota import Usage
from batchyard.core.reasons import NO_MATCHING_FLAVOR, Fact, PodSetFacts, least_severe, most_severe

SCAN_DONE: Final = -1


class Mode(IntEnum):
    """How well an assignment fits, worst to best."""

    NO_FIT = 0
    PREEMPT = 1
    #: Fits once the preemptions of this cycle are through.
    DEFERRED_FIT = 2
    FIT = 3


_PREEMPT: Final = Mode.PREEMPT


class Possibility(IntEnum):
    """How a flavor could be had, worst to best."""

    NO_FIT = 0
    NO_CANDIDATES = 1
    PREEMPT = 2
    RECLAIM = 3
    FIT = 4


#: By possibility, the mode of an assignment that has it.
MODES: Final = (Mode.NO_FIT, Mode.PREEMPT, Mode.PREEMPT, Mode.PREEMPT, Mode.FIT)


class Choice(NamedTuple):
    """The flavor chosen for a resource."""

    flavor: str
    fr: int
    mode: Mode
    #: Height in the cohort tree where the quota comes from; 0 is the ClusterQueue's own.
    borrow: int
    #: The last flavor looked at, or SCAN_DONE when the next search starts from the first again.
    tried: int


class Attempt(NamedTuple):
    """What came of looking at one flavor."""

    flavor: str
    group: int
    possibility: Possibility
    borrow: int
    facts: tuple[Fact, ...]
    no_fit_reason: str


@dataclass(slots=True)
class PodSetAssignment:
    """The flavors of one pod set, and what stands against it."""

    name: str
    count: int
    requests: Requests
    choices: Mapping[str, Choice]
    #: That of its worst resource.
    mode: Mode
    facts: tuple[Fact, ...]
    attempts: tuple[Attempt, ...]

    @property
    def no_fit_reason(self) -> str:
        """Why it does not fit at all: in each resource group the flavor nearest to fitting, of all groups the worst."""
        if not self.attempts:
            return NO_MATCHING_FLAVOR
        by_group: dict[int, str] = {}
        for attempt in self.attempts:
            if attempt.possibility is Possibility.NO_FIT:
                known = by_group.get(attempt.group, attempt.no_fit_reason)
                by_group[attempt.group] = least_severe(known, attempt.no_fit_reason)
        worst = ""
        for reason in by_group.values():
            worst = most_severe(worst, reason)
        return worst or NO_MATCHING_FLAVOR


class LastAssignment(NamedTuple):
    """How far the last search through the flavors came, and when that still counts."""

    tried: tuple[Mapping[str, int], ...]
    generation: int
    cycle: int
    shape: Shape

    @property
    def has_flavors_left(self) -> bool:
        """Whether the search stopped before the last flavor of some resource."""
        return any(index != SCAN_DONE for tried in self.tried for index in tried.values())

    def next_flavor(self, pod_set: int, resource: str) -> int:
        """Where to go on for a resource of a pod set."""
        return self.tried[pod_set].get(resource, SCAN_DONE) + 1 if pod_set < len(self.tried) else 0


@dataclass(slots=True)
class Assignment:
    """Flavors for a whole Workload. `mode` may be lowered to DEFERRED_FIT."""

    pod_sets: list[PodSetAssignment]
    mode: Mode
    borrow: int
    usage: Usage

    @property
    def tried(self) -> tuple[Mapping[str, int], ...]:
        """By pod set and resource, the last flavor looked at, or SCAN_DONE."""
        return tuple([{r: c.tried for r, c in p.choices.items()} for p in self.pod_sets])

    @property
    def pod_set_facts(self) -> tuple[PodSetFacts, ...]:
        """What stands against it."""
        return tuple([PodSetFacts(p.name, p.facts) for p in self.pod_sets if p.facts])

    @property
    def no_fit_reason(self) -> str:
        """The reason for QuotaReserved=False when it does not fit at all."""
        worst = ""
        for pod_set in self.pod_sets:
            if pod_set.mode is Mode.NO_FIT:
                worst = most_severe(worst, pod_set.no_fit_reason)
        return worst

    @property
    def preempting(self) -> tuple[int, ...]:
        """The flavor-resources that need preemption."""
        return tuple(dict.fromkeys([c.fr for p in self.pod_sets for c in p.choices.values() if c.mode is _PREEMPT]))
