"""What came of looking through a resource group's flavors.

Nearly every flavor that is looked at in vain is never asked why: a scan keeps the figures it was made from, and says
what stands against each flavor when somebody wants to know. Source: Kueue's
pkg/scheduler/flavorassigner/flavorassigner.go (its reasons and messages).
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from batchyard.api.views.queues import Fungibility
from batchyard.core.plan import GroupPlan, Pick
from batchyard.core.quality import FIT, Mode, Possibility, Quality, height_of, possibility_of, worst
from batchyard.core.reasons import (
    EXCEEDS_MAX_QUOTA,
    NO_MATCHING_FLAVOR,
    WAITING_FOR_QUOTA,
    Fact,
    Short,
    TooLarge,
    most_severe,
)

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
