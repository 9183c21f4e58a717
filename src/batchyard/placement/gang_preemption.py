"""Hotswap preemption: the victims whose eviction gives a gang of higher priority the nodes or domains it lacks.

A victim is evicted as a whole: all pods of a Workload, or a pod without one. Victims have a lower priority than the
gang. Pods that already terminate count as gone. The cost of a victim is the work it loses since its last checkpoint,
then its size, then its name.

If the room reserved for the gang is free once terminating pods are gone, the gang waits for it. Else its claims
(batchyard.placement.gang) are settled one by one, each at the lowest cost given the victims so far. If that takes
several victims, each single victim that suffices for one claim is tried for all claims, and at last unneeded victims
are spared. So a result with one victim is the cheapest; one with several is good, but not always optimal. The number of
compared places per claim and of tried single victims is limited.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from batchyard.api.views.pods import PodView
from batchyard.base.instant import Duration, format_age
from batchyard.placement.cluster_snapshot import ClusterSnapshot
from batchyard.placement.filtering import pick_node
from batchyard.placement.gang import (
    PlacementClaim,
    are_free,
    domains_of,
    first_fit,
    fit,
    held_for,
    in_turn,
    place_claim,
    withdraw,
)
from batchyard.placement.node_info import NodeInfo
from batchyard.placement.preemption import are_mates, lower_pods
from batchyard.placement.resources import AutoscalingProfile, find_shortage, freed

#: The reason of the Preempted condition of Workloads that Hotswap evicts.
HOTSWAP: Final = "Hotswap"
#: How many places are compared for a claim, and how many victims are tried alone.
PLACES_MAX: Final = 100
SINGLES_MAX: Final = 32


class EvictionUnit(NamedTuple):
    """Pods that are evicted together or not at all."""

    #: `namespace/name` of the Workload, or of a pod without one.
    name: str
    pods: Sequence[PodView]
    #: The work it loses, in pod time.
    lost: Duration
    #: It is already being evicted: that costs nothing more.
    is_leaving: bool = False

    @property
    def priority(self) -> int:
        """The highest priority of its pods."""
        return max([pod.priority for pod in self.pods])


class HotswapPlan(NamedTuple):
    """The nodes of a gang's pods by uid, placeholders included, and the victims, cheapest first."""

    nodes: Mapping[str, str]
    victims: Sequence[EvictionUnit]


EvictionUnitOf: TypeAlias = Callable[[PodView], EvictionUnit | None]
"""Returns the unit with which a running pod is evicted; None if it cannot be evicted."""
Cost: TypeAlias = tuple[Duration, int, Sequence[str]]


class _Place(NamedTuple):
    """A place for a claim: the nodes of its pods by uid, and the victims."""

    seats: Mapping[str, str]
    occupants: Sequence[EvictionUnit]


class _DomainUnit(NamedTuple):
    """A possible victim, and its pods in one domain."""

    occupant: EvictionUnit
    inside: list[PodView]


def find_hotswap(
    claims: Sequence[PlacementClaim], nodes: ClusterSnapshot, occupant_of: EvictionUnitOf, profile: AutoscalingProfile
) -> HotswapPlan | None:
    """Return the victims for claims that have no place, and the resulting nodes; None if none suffice."""
    if not nodes.stopping and not nodes.has_lower_priority(max(claim.leader.priority for claim in claims)):
        return None
    search = _Search(claims, nodes, occupant_of, profile)
    swap = search.run()
    if swap is None or len(swap.victims) < 2:
        return swap
    for occupant in sorted(search.singles.values(), key=_cost_of_one)[:SINGLES_MAX]:
        by_one = search.run({occupant.name: None})
        if by_one is not None:
            return by_one
    return _without_unneeded(swap, search)


def message(preemptor: str, uid: str, job_uid: str, victim: EvictionUnit) -> str:
    """Return the eviction message of a Workload; it starts like Kueue's, so that tools find the preemptor."""
    return (
        f"Preempted to accommodate a workload (UID: {uid or 'UNKNOWN'}, JobUID: {job_uid or 'UNKNOWN'}) due to Hotswap:"
        f" {preemptor} needs the nodes of {victim.name}, whose {len(victim.pods)} pods lose {format_age(victim.lost)}"
        " of work since their last checkpoints"
    )


def cost(occupants: Sequence[EvictionUnit]) -> Cost:
    """Return the cost of evicting these."""
    counted = [occupant for occupant in occupants if not occupant.is_leaving]
    return sum([o.lost for o in counted]), sum([len(o.pods) for o in counted]), sorted([o.name for o in counted])


class _Search:
    """One search, run for all possible victims and again for subsets."""

    def __init__(
        self,
        claims: Sequence[PlacementClaim],
        nodes: ClusterSnapshot,
        occupant_of: EvictionUnitOf,
        profile: AutoscalingProfile,
    ) -> None:
        self._claims = in_turn(claims)
        self._held = held_for(claims, nodes)
        self._nodes = nodes
        self._occupant_of = occupant_of
        self._profile = profile
        self._allowed: Mapping[str, None] | None = None
        #: Victims that make room for a claim alone, by name.
        self.singles: dict[str, EvictionUnit] = {}

    def run(self, allowed: Mapping[str, None] | None = None) -> HotswapPlan | None:
        """Settle all claims; only `allowed` may be evicted (None: no restriction)."""
        self._allowed = allowed
        with self._nodes.what_if():
            withdraw(self._claims, self._nodes)
            for uid in list(self._nodes.stopping):
                self._nodes.remove_pod(uid)
            if are_free(self._held, self._claims, self._nodes):
                return HotswapPlan(self._held, ())
            return self._settle()

    def _settle(self) -> HotswapPlan | None:
        """Settle the claims one by one. Claims with affinity to others may have to be retried after those."""
        seats: dict[str, str] = {}
        victims: dict[str, EvictionUnit] = {}
        left: Sequence[PlacementClaim] = self._claims
        while left:
            late = []
            for claim in left:
                place = self._best_place(claim)
                if place is None:
                    late.append(claim)
                    continue
                self._take(claim, place)
                seats |= place.seats
                victims.update({occupant.name: occupant for occupant in place.occupants if not occupant.is_leaving})
            if len(late) == len(left):
                return None
            left = late
        return HotswapPlan(seats, sorted(victims.values(), key=_cost_of_one))

    def _take(self, claim: PlacementClaim, place: _Place) -> None:
        for occupant in place.occupants:
            for pod in occupant.pods:
                self._nodes.remove_pod(pod.uid)
        place_claim(claim, place.seats, self._nodes)

    def _best_place(self, claim: PlacementClaim) -> _Place | None:
        if claim.topology_key:
            seats = first_fit(claim, self._nodes)
        else:
            name = pick_node(claim.leader, self._nodes, self._profile)
            seats = {claim.leader.uid: name} if name else None
        return self._cheapest_place(claim) if seats is None else _Place(seats, ())

    def _cheapest_place(self, claim: PlacementClaim) -> _Place | None:
        """Return the place with the lowest eviction cost."""
        places: list[_Place] = []
        for domain in domains_of(claim, self._nodes):
            place = self._cleared(claim, domain)
            if place is not None:
                places.append(place)
                self.singles.update(
                    {occupant.name: occupant for occupant in place.occupants if len(place.occupants) == 1}
                )
            if len(places) == PLACES_MAX:
                break
        return min(places, key=lambda place: cost(place.occupants), default=None)

    def _cleared(self, claim: PlacementClaim, domain: Sequence[NodeInfo]) -> _Place | None:
        """Return a domain after the necessary evictions; None if evictions do not make the claim fit."""
        if not any(_can_be_cleared(node, claim.leader) for node in domain):
            return None
        rivals = sorted(self._rivals_in(domain, claim.leader), key=lambda r: _cost_of_one(r.occupant), reverse=True)
        seats = self._fit_without(rivals, claim, domain) if rivals else None
        if seats is None:
            return None
        for rival in list(rivals):
            rest = [other for other in rivals if other is not rival]
            spared = self._fit_without(rest, claim, domain)
            if spared is not None:
                rivals, seats = rest, spared
        return _Place(seats, [rival.occupant for rival in rivals])

    def _rivals_in(self, domain: Sequence[NodeInfo], claimant: PodView) -> list[_DomainUnit]:
        """Return the units in a domain that may be evicted for a pod."""
        rivals: dict[str, _DomainUnit] = {}
        for node in domain:
            for pod in node.pods.values():
                is_lower = pod.priority < claimant.priority and not are_mates(claimant, pod)
                occupant = self._occupant_of(pod) if is_lower else None
                if occupant is not None and self._may_leave(occupant, claimant):
                    rivals.setdefault(occupant.name, _DomainUnit(occupant, [])).inside.append(pod)
        return list(rivals.values())

    def _may_leave(self, occupant: EvictionUnit, claimant: PodView) -> bool:
        if occupant.is_leaving:
            return True
        is_allowed = self._allowed is None or occupant.name in self._allowed
        return is_allowed and claimant.may_preempt and occupant.priority < claimant.priority

    def _fit_without(
        self, rivals: Sequence[_DomainUnit], claim: PlacementClaim, domain: Sequence[NodeInfo]
    ) -> Mapping[str, str] | None:
        """Return the nodes of the claim's pods without these units in the domain; None if they do not fit."""
        with self._nodes.what_if():
            for rival in rivals:
                for pod in rival.inside:
                    self._nodes.remove_pod(pod.uid)
            return fit(claim, domain, self._nodes)


def _can_be_cleared(node: NodeInfo, claimant: PodView) -> bool:
    """Whether a pod may fit the node if all pods of lower priority left; a quick check."""
    lower = lower_pods(claimant, node)
    if not lower or claimant.shape.host_ports:
        return bool(lower)
    return find_shortage(claimant.shape, node, freed(lower)) is None


def _without_unneeded(swap: HotswapPlan, search: _Search) -> HotswapPlan:
    """Return the swap without the victims that are not needed, tried from the most expensive down."""
    for victim in sorted(swap.victims, key=_cost_of_one, reverse=True):
        allowed = {occupant.name: None for occupant in swap.victims if occupant.name != victim.name}
        swap = search.run(allowed) or swap
    return swap


def _cost_of_one(occupant: EvictionUnit) -> Cost:
    return cost((occupant,))
