"""Hotswap: fails and deletes the pods of gangs on lost nodes at once, and moves gangs to other nodes.

By default such pods stay for the 300 s toleration, and then until the node is deleted or recovers. Only then does their
Job fail and the gang restart. The controller does at once what an administrator does with the out-of-service taint. The
second half (`HotswapPass`) frees nodes for the restarted gang.

Watch events of nodes and pods have no common order. A pod that was bound to a node after the node was lost, or recently
to an unknown node, is therefore left alone for a short time: the scheduler may know a newer state of the node.
Kubernetes binds pods to a recovered node that still has the NoExecute taint, which all pods tolerate for five minutes.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from batchyard.api import scheme, well_known
from batchyard.api.meta import (
    Key,
    Obj,
    annotation,
    controller_of,
    find_condition,
    group_kind,
    key_of,
    label,
    owner_key,
    owning_jobs,
)
from batchyard.api.times import parse_time
from batchyard.api.views import pods as lifecycle
from batchyard.api.views.node import pods_at_once
from batchyard.api.views.pods import PodView, checkpoint_interval, is_terminal, is_terminating, lost_work, running_since
from batchyard.api.views.workload import workload_view
from batchyard.base.instant import SECOND, Duration, Instant, format_age
from batchyard.interfaces.client import Delete, EventType, Reader, UpdateStatus, WatchEvent
from batchyard.interfaces.controller import EventRecord, ReconcileResult
from batchyard.jobs.jobset.exclusive_placement import is_leader
from batchyard.nodes import conditions
from batchyard.nodes.pods import PodsByNode
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
    placeholders,
    withdraw,
)
from batchyard.placement.index import pod_key
from batchyard.placement.node_filters import AutoscalingProfile, find_shortage, freed
from batchyard.placement.node_info import NodeInfo
from batchyard.placement.preemption import are_mates, lower_pods
from batchyard.scheduling.workload import evictions
from batchyard.scheduling.workload import lifecycle as workload_lifecycle

# --- exclusive followers ---
#
# Followers of an exclusively placed Job: pods that are created only after their leader has a node.
#
# Room is reserved for placeholders of them from the leader's placement until they exist. After a restart the
# reservation is computed again.


def missing_followers(leader: Obj, reader: Reader) -> int:
    """Return the number of pods of a leader's Job that do not exist yet."""
    owner = controller_of(leader)
    job = None if owner is None else reader.get(owner_key(owner, leader["metadata"].get("namespace", "")))
    if owner is None or job is None or job["metadata"]["uid"] != owner["uid"]:
        return 0
    wanted, completions = pods_at_once(job["spec"]), job["spec"].get("completions")
    if completions is not None:
        wanted = min(wanted, completions - (job.get("status") or {}).get("succeeded", 0))
    owned = reader.owned_by(owner["uid"], job["metadata"].get("namespace", ""))
    pods = [obj for obj in owned if group_kind(obj) == scheme.POD]
    return max(0, wanted - sum(map(_is_living, pods)))


class FollowerReservations:
    """Nominations of placeholder pods, by leader."""

    def __init__(self, nodes: ClusterSnapshot) -> None:
        self._nodes = nodes
        #: Placeholders by leader.
        self._stand_ins: dict[Key, Sequence[PodView]] = {}

    def hold(self, claims: Sequence[PlacementClaim], seats: Mapping[str, str]) -> None:
        """Reserve room for the followers of the claims' leaders; release it if `seats` is empty."""
        for claim in claims:
            leader = pod_key(claim.leader)
            self._keep(leader, 0)
            for pod in claim.pods[1:] if seats else ():
                self._nodes.nominate(pod, seats[pod.uid])
                self._stand_ins[leader] = claim.pods[1:]

    def refresh(self, reader: Reader) -> None:
        """Release placeholders of followers that exist, and of leaders that are gone."""
        for leader in list(self._stand_ins):
            obj = reader.get(leader)
            self._keep(leader, 0 if obj is None or not _is_living(obj) else missing_followers(obj, reader))

    def _keep(self, leader: Key, count: int) -> None:
        """Keep at most `count` placeholders of a leader."""
        stand_ins = self._stand_ins.pop(leader, ())
        for pod in stand_ins[count:]:
            self._nodes.withdraw(pod.uid)
        if stand_ins and count:
            self._stand_ins[leader] = stand_ins[:count]


def _is_living(pod: Obj) -> bool:
    return not (is_terminal(pod) or is_terminating(pod))


# --- gang preemption ---
#
# Hotswap preemption: the victims whose eviction gives a gang of higher priority the nodes or domains it lacks.
#
# A victim is evicted as a whole: all pods of a Workload, or a pod without one. Victims have a lower priority than the
# gang. Pods that already terminate count as gone. The cost of a victim is the work it loses since its last checkpoint,
# then its size, then its name.
#
# If the room reserved for the gang is free once terminating pods are gone, the gang waits for it. Else its claims
# (batchyard.placement.gang) are settled one by one, each at the lowest cost given the victims so far. If that takes
# several victims, each single victim that suffices for one claim is tried for all claims, and at last unneeded victims
# are spared. So a result with one victim is the cheapest; one with several is good, but not always optimal. The number
# of compared places per claim and of tried single victims is limited.


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
        rivals = sorted(
            self._rivals_in(domain, claim.leader), key=lambda rival: _cost_of_one(rival.occupant), reverse=True
        )
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


#: Maximum delay of a node's watch event after a pod's.
HEARD_WITHIN: Final = 10 * SECOND
BY_HOTSWAP: Final = lifecycle.Disruption("DeletionByHotswap", "Hotswap: node is lost")

_DELETED: Final = EventType.DELETED  # a member is slow to look up by name


class Hotswap:
    """Controller that fails and deletes pods of gangs on lost nodes."""

    name = "hotswap"
    rank = 0
    kinds = (scheme.NODE, scheme.POD)

    def __init__(self) -> None:
        self._pods = PodsByNode()
        #: The known nodes, and whether each is lost.
        self._lost: dict[str, bool] = {}

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """Return the pods of a node that was lost, or a changed pod on such a node."""
        key, new = event.key, None if event.type is _DELETED else event.obj
        if key.kind == scheme.POD:
            self._pods.observe(key, event.old, new)
            return (key,) if new is not None and self._may_be_lost(lifecycle.node_of(new)) else ()
        was_lost = self._lost.pop(key.name, True)
        if new is not None:
            self._lost[key.name] = is_lost(new)
        return self._pods.on(key.name) if not was_lost and self._may_be_lost(key.name) else ()

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Fail a pod of a gang whose node is lost; once that is written, delete it."""
        pod = reader.get(key)
        name = "" if pod is None else lifecycle.node_of(pod)
        if pod is None or not name or not _is_of_gang(pod):
            return ReconcileResult()
        node = reader.get(Key(scheme.NODE, "", name))
        if (node is not None and not is_lost(node)) or not _is_left_over(pod):
            return ReconcileResult()
        failed = lifecycle.failed(pod, BY_HOTSWAP, now)
        if failed is not pod and now < (heard := _heard_by(node, pod)):
            return ReconcileResult(requeue_at=heard)
        if failed is pod:
            return ReconcileResult([Delete(key, grace=0, uid=pod["metadata"]["uid"])])
        event = EventRecord(key, "Warning", "NodeLost", f"Node {name} is lost: the pod is removed")
        return ReconcileResult([UpdateStatus(failed)], [event])

    def _may_be_lost(self, node: str) -> bool:
        """Whether a node is lost or unknown."""
        return bool(node) and self._lost.get(node, True)


def _is_of_gang(pod: Obj) -> bool:
    """Whether a pod belongs to a Workload, or to a JobSet without a queue, which also restarts as a whole."""
    return bool(annotation(pod, well_known.WORKLOAD) or label(pod, well_known.JOB_SET_UID))


def is_lost(node: Obj) -> bool:
    """Whether the node's kubelet no longer reports."""
    return conditions.readiness(node) == "Unknown" or conditions.has_taint(node, well_known.UNREACHABLE)


def _heard_by(node: Obj | None, pod: Obj) -> Instant:
    """Return when watch events up to the pod's binding have arrived; the binding itself if the loss came later."""
    placed = lifecycle.scheduled_at(pod)
    return placed if node is not None and placed <= _lost_at(node, placed) else placed + HEARD_WITHIN


def _lost_at(node: Obj, fallback: Instant) -> Instant:
    """Return the time at which the node was lost: its Unknown condition or its taint, whichever is later."""
    ready = find_condition(node, conditions.READY)
    marks = [ready["lastTransitionTime"]] if ready is not None and ready["status"] == "Unknown" else []
    marks += [taint.get("timeAdded") for taint in conditions.taints_of(node) if taint["key"] == well_known.UNREACHABLE]
    return max((parse_time(mark) for mark in marks if mark), default=fallback)


def _is_left_over(pod: Obj) -> bool:
    """Whether a pod still needs to be failed or deleted: it is active, was failed here, or is terminating."""
    if not lifecycle.is_terminal(pod):
        return True
    target = find_condition(pod, lifecycle.DISRUPTION_TARGET)
    is_ours = target is not None and target.get("reason") == BY_HOTSWAP.reason
    return (is_ours or lifecycle.is_terminating(pod)) and not lifecycle.is_gone_but_for_finalizers(pod)


# --- freeing nodes for restarted gangs ---
#
# Hotswap, its second half: the reads and writes of a placement pass that frees nodes for a gang.
#
# batchyard.placement.hotswap chooses the victims. A Workload is evicted as in Kueue's preemption: its job is
# suspended, its pods stop, and it is requeued.


class HotswapPass:
    """The lookups of one placement pass, cached."""

    def __init__(self, nodes: ClusterSnapshot, held: FollowerReservations, reader: Reader, now: Instant) -> None:
        held.refresh(reader)
        self._held = held
        self._nodes = nodes
        self._reader = reader
        self._now = now
        #: By gang, or by pod uid for pods without one.
        self._occupants: dict[str, EvictionUnit | None] = {}
        self._gangs: dict[str, list[PodView]] = {}

    def claims_of(self, pods: Iterable[PodView]) -> list[PlacementClaim]:
        """Return the claims of pending pods; a leader claims a whole domain for all missing pods of its Job."""
        return [self._claim_of(pod) for pod in pods]

    def hold(self, claims: Sequence[PlacementClaim], seats: Mapping[str, str]) -> None:
        """Reserve room for the followers of the claims' leaders; release it if `seats` is empty."""
        self._held.hold(claims, seats)

    def occupant_of(self, pod: PodView) -> EvictionUnit | None:
        """Return the unit with which a pod is evicted, and its cost; None if it cannot be evicted."""
        key = pod.gang or pod.uid
        if key not in self._occupants:
            self._occupants[key] = self._of_gang(pod) if pod.gang else self._occupant(pod.key, (pod,))
        return self._occupants[key]

    def evict(self, occupant: EvictionUnit, preemptor: PodView, outcome: ReconcileResult) -> Obj | None:
        """Evict the occupant's Workload and return it; None for a pod without one, which the caller deletes."""
        pod = occupant.pods[0]
        self._occupants[pod.gang or pod.uid] = occupant._replace(is_leaving=True)
        victim = self._workload_of(pod) if pod.gang else None
        if victim is None:
            return None
        by = self._workload_of(preemptor) if preemptor.gang else None
        name, uid, job_uid = preemptor.key, preemptor.uid, ""
        if by is not None:
            view = workload_view(by)
            name, uid, job_uid = view.key, view.uid, view.job_uid
        text = message(name, uid, job_uid, occupant)
        evicted = evictions.evict(
            victim, reason=evictions.EVICTED_BY_PREEMPTION, message=text, now=self._now, preempted=HOTSWAP
        )
        events = _events(key_of(victim), text, pod_key(preemptor) if by is None else key_of(by))
        outcome.add(UpdateStatus(evicted), events)
        return victim

    # --- lookups ---

    def _claim_of(self, pod: PodView) -> PlacementClaim:
        obj = self._reader.get(pod_key(pod)) if well_known.JOB_KEY in pod.labels else None
        topology_key = None if obj is None else annotation(obj, well_known.EXCLUSIVE_TOPOLOGY)
        if obj is None or not topology_key or not is_leader(obj) or annotation(obj, well_known.NODE_SELECTOR_STRATEGY):
            return PlacementClaim((pod,))
        return PlacementClaim((pod, *placeholders(obj, missing_followers(obj, self._reader))), topology_key)

    def _of_gang(self, pod: PodView) -> EvictionUnit | None:
        workload = self._workload_of(pod)
        if workload is None or workload_lifecycle.is_finished(workload):
            return None
        if not self._gangs:
            for node in self._nodes:
                for other in node.pods.values():
                    self._gangs.setdefault(other.gang, []).append(other)
        pods = self._gangs.get(pod.gang)
        if pods is None:
            return None  # bound in this pass
        return self._occupant(str(key_of(workload)), pods)._replace(is_leaving=workload_lifecycle.is_evicted(workload))

    def _occupant(self, name: str, pods: Sequence[PodView]) -> EvictionUnit:
        return EvictionUnit(name, pods, sum(map(self._lost_work, pods)))

    def _lost_work(self, pod: PodView) -> Duration:
        obj = self._reader.get(pod_key(pod))
        started = None if obj is None else running_since(obj)
        if obj is None or started is None:
            return 0
        return lost_work(started, checkpoint_interval(self._with_owners(obj)), self._now)

    def _with_owners(self, pod: Obj) -> Iterable[Obj]:
        """Yield a pod, its Job, and the JobSet that owns it."""
        yield pod
        yield from owning_jobs(pod, self._reader.get)

    def _workload_of(self, pod: PodView) -> Obj | None:
        """Return the Workload of a pod of a gang."""
        obj = self._reader.get(pod_key(pod))
        name = None if obj is None else annotation(obj, well_known.WORKLOAD)
        return None if not name else self._reader.get(Key(scheme.WORKLOAD, pod.namespace, name))


def _events(victim: Key, text: str, preemptor: Key) -> list[EventRecord]:
    """Return the Events of the victim and of the preemptor."""
    return [
        EventRecord(victim, "Normal", "EvictedDueToPreempted", text),
        EventRecord(victim, "Normal", "Preempted", text),
        EventRecord(preemptor, "Normal", "PreemptedWorkload", f"Preempted workload {victim}: {text}"),
    ]
