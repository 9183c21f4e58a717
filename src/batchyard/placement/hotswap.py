"""Hotswap: deletes gang pods on lost nodes at once, and preempts whole Workloads to give restarted gangs nodes.

By default, pods on a lost node stay for the 300 s toleration, and then until the node is deleted or recovers. Only then
do their Job and gang restart. The `Hotswap` controller fails and deletes these pods at once, as an administrator would
with the out-of-service taint. `find_hotswap` and `HotswapPass` free nodes for the restarted gang.

Watch events of nodes and pods have no common order. The scheduler may therefore have received a newer state of a node.
So a pod that was bound after the node was lost, or recently to an unknown node, is not deleted for a short time.
Kubernetes may bind pods to a recovered node that still has the NoExecute taint, because pods by default tolerate the
taint for five minutes.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from batchyard.api import meta, scheme, well_known
from batchyard.api.times import parse_time
from batchyard.api.views import pods as lifecycle
from batchyard.api.views.node import parallel_pod_count
from batchyard.api.views.pods import PodView, checkpoint_interval, is_terminal, is_terminating, lost_work, running_since
from batchyard.api.views.workload import workload_view
from batchyard.base.counts import count_with_noun, select_verb
from batchyard.base.instant import SECOND, Duration, Instant, format_age
from batchyard.interfaces.client import Delete, EventType, Reader, UpdateStatus, WatchEvent
from batchyard.interfaces.controller import EventRecord, ReconcileResult
from batchyard.jobs.jobset.exclusive_placement import is_leader
from batchyard.nodes import conditions
from batchyard.nodes.pods import PodsByNode
from batchyard.placement import gang
from batchyard.placement.cluster_snapshot import ClusterSnapshot
from batchyard.placement.filtering import choose_node
from batchyard.placement.gpu_policies import NodeScoring
from batchyard.placement.index import pod_key
from batchyard.placement.node_filters import find_shortage, total_requests
from batchyard.placement.node_info import NodeInfo
from batchyard.placement.preemption import are_in_same_gang, preemptible_pods
from batchyard.scheduling.workload import evictions
from batchyard.scheduling.workload import lifecycle as workload_lifecycle

# Followers of an exclusively placed Job: pods that are created only after their leader has a node.
#
# From the leader's placement until the followers exist, placeholders reserve capacity for them. After a restart the
# reservations are computed again.


def missing_followers(leader: meta.Obj, reader: Reader) -> int:
    """Return how many more pods the Job of an exclusively placed leader pod must create; 0 if the Job is gone."""
    owner = meta.controller_of(leader)
    job = None if owner is None else reader.get(meta.owner_key(owner, leader["metadata"].get("namespace", "")))
    if owner is None or job is None or job["metadata"]["uid"] != owner["uid"]:
        return 0
    expected_count, completions = parallel_pod_count(job["spec"]), job["spec"].get("completions")
    if completions is not None:
        expected_count = min(expected_count, completions - (job.get("status") or {}).get("succeeded", 0))
    owned_objects = reader.owned_by(owner["uid"], job["metadata"].get("namespace", ""))
    pods = [obj for obj in owned_objects if meta.group_kind(obj) == scheme.POD]
    return max(0, expected_count - sum(map(_is_active, pods)))


class FollowerReservations:
    """Reserved capacity for Job pods that do not exist yet: placeholder pods, nominated to nodes, by leader pod."""

    def __init__(self, nodes: ClusterSnapshot) -> None:
        self._nodes = nodes
        #: The nominated placeholders, by leader.
        self._placeholders: dict[meta.Key, Sequence[PodView]] = {}

    def reserve_nodes(self, claims: Sequence[gang.PlacementClaim], nodes_by_uid: Mapping[str, str]) -> None:
        """Reserve the nodes in `nodes_by_uid` for the missing pods of claims, in place of earlier reservations.

        An empty `nodes_by_uid` only ends the earlier reservations.
        """
        for claim in claims:
            leader_key = pod_key(claim.leader)
            self._keep_placeholders(leader_key, 0)
            for pod in claim.pods[1:] if nodes_by_uid else ():
                self._nodes.nominate(pod, nodes_by_uid[pod.uid])
                self._placeholders[leader_key] = claim.pods[1:]

    def refresh(self, reader: Reader) -> None:
        """End the reservations for Job pods that exist by now, and those of leader pods that are gone."""
        for leader in list(self._placeholders):
            obj = reader.get(leader)
            self._keep_placeholders(leader, missing_followers(obj, reader) if obj and _is_active(obj) else 0)

    def _keep_placeholders(self, leader_key: meta.Key, placeholder_count: int) -> None:
        placeholder_pods = self._placeholders.pop(leader_key, ())
        for pod in placeholder_pods[placeholder_count:]:
            self._nodes.withdraw_nomination(pod.uid)
        if placeholder_pods and placeholder_count:
            self._placeholders[leader_key] = placeholder_pods[:placeholder_count]


def _is_active(pod: meta.Obj) -> bool:
    return not (is_terminal(pod) or is_terminating(pod))


# Hotswap preemption: finds victims whose eviction gives a gang of higher priority the nodes or domains that it lacks.
#
# A victim is evicted as a whole: all pods of a Workload, or a pod without a Workload. Victims have a lower priority
# than the gang. Terminating pods count as gone. The cost of a victim is its lost work since its last checkpoint, then
# its size, then its name.
#
# If the nodes reserved for the gang are free once terminating pods are gone, the gang waits for them. Otherwise its
# claims (batchyard.placement.gang) are placed one by one, each at the lowest cost given the victims so far. If that
# takes several victims, each single victim that suffices for one claim is tried for all claims. Finally, unneeded
# victims are dropped. A result with one victim is the cheapest; a result with several is not always optimal. The
# numbers of compared domains per claim and of tried single victims are limited.


#: The reason of the Preempted condition of Workloads that Hotswap evicts.
HOTSWAP: Final = "Hotswap"
#: The maximum number of domains compared per claim, and of victims tried alone.
COMPARED_DOMAINS_MAX: Final = 100
SINGLE_VICTIMS_MAX: Final = 32


class EvictionUnit(NamedTuple):
    """Pods that are evicted together or not at all: those of a Workload, or a single pod."""

    #: `namespace/name` of the Workload, or of a pod without a Workload.
    name: str
    pods: Sequence[PodView]
    #: The lost work: the sum of the run times that the pods lose by the eviction.
    work_lost: Duration
    #: Whether the unit is already being evicted, so that its eviction costs nothing more.
    is_being_evicted: bool = False

    @property
    def priority(self) -> int:
        """The highest priority among the pods that are evicted together."""
        return max([pod.priority for pod in self.pods])


class HotswapPlan(NamedTuple):
    """A preemption for a gang: nodes by pod uid (even for pods still missing), and the victims, cheapest first."""

    nodes: Mapping[str, str]
    victims: Sequence[EvictionUnit]


FindEvictionUnit: TypeAlias = Callable[[PodView], EvictionUnit | None]
"""Returns the eviction unit of a running pod; None if the pod cannot be evicted."""
EvictionCost: TypeAlias = tuple[Duration, int, Sequence[str]]


class _ClaimNodes(NamedTuple):
    nodes_by_uid: Mapping[str, str]
    eviction_units: Sequence[EvictionUnit]


class _RivalUnit(NamedTuple):
    eviction_unit: EvictionUnit
    pods_in_domain: list[PodView]


def find_hotswap(
    claims: Sequence[gang.PlacementClaim],
    nodes: ClusterSnapshot,
    find_eviction_unit: FindEvictionUnit,
    profile: NodeScoring,
) -> HotswapPlan | None:
    """Return a plan of nodes and evictions with which all pods of the claims fit; None if the search finds none."""
    if not nodes.terminating_uids and not nodes.has_pods_below(max(claim.leader.priority for claim in claims)):
        return None
    hotswap_search = _HotswapSearch(claims, nodes, find_eviction_unit, profile)
    hotswap_plan = hotswap_search.run()
    if hotswap_plan is None or len(hotswap_plan.victims) < 2:
        return hotswap_plan
    for eviction_unit in sorted(hotswap_search.single_victims.values(), key=_eviction_unit_cost)[:SINGLE_VICTIMS_MAX]:
        single_victim_plan = hotswap_search.run({eviction_unit.name: None})
        if single_victim_plan is not None:
            return single_victim_plan
    return _drop_unneeded_victims(hotswap_plan, hotswap_search)


def eviction_message(preemptor: str, uid: str, job_uid: str, victim: EvictionUnit) -> str:
    """Return the eviction message of a Workload, which starts like Kueue's so that tools find the preemptor."""
    lost_work_age, pod_count = format_age(victim.work_lost), len(victim.pods)
    pods_text = f"{count_with_noun(pod_count, 'pod')} {select_verb(pod_count, 'loses', 'lose')}"
    return (
        f"Preempted to accommodate a workload (UID: {uid or 'UNKNOWN'}, JobUID: {job_uid or 'UNKNOWN'}) due to Hotswap:"
        f" {preemptor} needs the nodes of {victim.name}, whose {pods_text} {lost_work_age}"
        " of work since their last checkpoints"
    )


def eviction_cost(eviction_units: Sequence[EvictionUnit]) -> EvictionCost:
    """Return the cost of evictions as a sort key (lost work, pod count, names); evictions under way cost nothing."""
    units_to_evict = [eviction_unit for eviction_unit in eviction_units if not eviction_unit.is_being_evicted]
    return (
        sum([unit.work_lost for unit in units_to_evict]),
        sum([len(unit.pods) for unit in units_to_evict]),
        sorted([unit.name for unit in units_to_evict]),
    )


class _HotswapSearch:
    def __init__(
        self,
        claims: Sequence[gang.PlacementClaim],
        nodes: ClusterSnapshot,
        find_eviction_unit: FindEvictionUnit,
        profile: NodeScoring,
    ) -> None:
        self._claims = gang.claim_order(claims)
        self._nominated_nodes = gang.nominated_nodes(claims, nodes)
        self._nodes = nodes
        self._find_eviction_unit = find_eviction_unit
        self._profile = profile
        self._allowed_victim_names: Mapping[str, None] | None = None
        #: Units whose eviction alone lets some claim fit, by name.
        self.single_victims: dict[str, EvictionUnit] = {}

    def run(self, allowed_victim_names: Mapping[str, None] | None = None) -> HotswapPlan | None:
        self._allowed_victim_names = allowed_victim_names
        with self._nodes.what_if():
            gang.withdraw_nominations(self._claims, self._nodes)
            for uid in list(self._nodes.terminating_uids):
                self._nodes.remove_pod(uid)
            if gang.are_nodes_free(self._nominated_nodes, self._claims, self._nodes):
                return HotswapPlan(self._nominated_nodes, ())
            return self._place_all_claims()

    def _place_all_claims(self) -> HotswapPlan | None:
        nodes_by_uid: dict[str, str] = {}
        victims: dict[str, EvictionUnit] = {}
        remaining_claims: Sequence[gang.PlacementClaim] = self._claims
        while remaining_claims:
            unplaced_claims = []
            for claim in remaining_claims:
                claim_nodes = self._cheapest_nodes(claim)
                if claim_nodes is None:
                    unplaced_claims.append(claim)
                    continue
                self._apply_claim_nodes(claim, claim_nodes)
                nodes_by_uid |= claim_nodes.nodes_by_uid
                victims.update(
                    {
                        eviction_unit.name: eviction_unit
                        for eviction_unit in claim_nodes.eviction_units
                        if not eviction_unit.is_being_evicted
                    }
                )
            if len(unplaced_claims) == len(remaining_claims):
                return None
            remaining_claims = unplaced_claims
        return HotswapPlan(nodes_by_uid, sorted(victims.values(), key=_eviction_unit_cost))

    def _apply_claim_nodes(self, claim: gang.PlacementClaim, claim_nodes: _ClaimNodes) -> None:
        for eviction_unit in claim_nodes.eviction_units:
            for pod in eviction_unit.pods:
                self._nodes.remove_pod(pod.uid)
        gang.place_claim(claim, claim_nodes.nodes_by_uid, self._nodes)

    def _cheapest_nodes(self, claim: gang.PlacementClaim) -> _ClaimNodes | None:
        if claim.topology_key:
            nodes_by_uid = gang.fit_claim_anywhere(claim, self._nodes)
        else:
            name = choose_node(claim.leader, self._nodes, self._profile)
            nodes_by_uid = {claim.leader.uid: name} if name else None
        return self._cheapest_after_eviction(claim) if nodes_by_uid is None else _ClaimNodes(nodes_by_uid, ())

    def _cheapest_after_eviction(self, claim: gang.PlacementClaim) -> _ClaimNodes | None:
        candidate_claim_nodes: list[_ClaimNodes] = []
        for domain in gang.domains_of(claim, self._nodes):
            option = self._find_nodes_by_eviction(claim, domain)
            if option is not None:
                candidate_claim_nodes.append(option)
                self.single_victims.update(
                    {
                        eviction_unit.name: eviction_unit
                        for eviction_unit in option.eviction_units
                        if len(option.eviction_units) == 1
                    }
                )
            if len(candidate_claim_nodes) == COMPARED_DOMAINS_MAX:
                break
        return min(candidate_claim_nodes, key=lambda option: eviction_cost(option.eviction_units), default=None)

    def _find_nodes_by_eviction(self, claim: gang.PlacementClaim, domain: Sequence[NodeInfo]) -> _ClaimNodes | None:
        """Return nodes of a topology domain for a claim, and the evictions that this requires; None if impossible.

        First, all pods are evicted tentatively that may be evicted for the claim. Then each eviction that is not needed
        is cancelled, the costliest first.
        """
        if not any(_may_fit_after_eviction(node, claim.leader) for node in domain):
            return None
        rival_units = sorted(
            self._rival_units_in(domain, claim.leader),
            key=lambda rival_unit: _eviction_unit_cost(rival_unit.eviction_unit),
            reverse=True,
        )
        nodes_by_uid = self._fit_without_units(rival_units, claim, domain) if rival_units else None
        if nodes_by_uid is None:
            return None
        for rival_unit in list(rival_units):
            other_units = [other for other in rival_units if other is not rival_unit]
            nodes_without_unit = self._fit_without_units(other_units, claim, domain)
            if nodes_without_unit is not None:
                rival_units, nodes_by_uid = other_units, nodes_without_unit
        return _ClaimNodes(nodes_by_uid, [rival_unit.eviction_unit for rival_unit in rival_units])

    def _rival_units_in(self, domain: Sequence[NodeInfo], claiming_pod: PodView) -> list[_RivalUnit]:
        rival_units: dict[str, _RivalUnit] = {}
        for node in domain:
            for pod in node.pods.values():
                is_preemptible = pod.priority < claiming_pod.priority and not are_in_same_gang(claiming_pod, pod)
                eviction_unit = self._find_eviction_unit(pod) if is_preemptible else None
                if eviction_unit is not None and self._may_be_evicted(eviction_unit, claiming_pod):
                    rival_units.setdefault(eviction_unit.name, _RivalUnit(eviction_unit, [])).pods_in_domain.append(pod)
        return list(rival_units.values())

    def _may_be_evicted(self, eviction_unit: EvictionUnit, claiming_pod: PodView) -> bool:
        if eviction_unit.is_being_evicted:
            return True
        is_allowed_victim = self._allowed_victim_names is None or eviction_unit.name in self._allowed_victim_names
        return is_allowed_victim and claiming_pod.may_preempt and eviction_unit.priority < claiming_pod.priority

    def _fit_without_units(
        self, rival_units: Sequence[_RivalUnit], claim: gang.PlacementClaim, domain: Sequence[NodeInfo]
    ) -> Mapping[str, str] | None:
        with self._nodes.what_if():
            for rival_unit in rival_units:
                for pod in rival_unit.pods_in_domain:
                    self._nodes.remove_pod(pod.uid)
            return gang.fit_claim(claim, domain, self._nodes)


def _may_fit_after_eviction(node: NodeInfo, claiming_pod: PodView) -> bool:
    candidates = preemptible_pods(claiming_pod, node)
    if not candidates or claiming_pod.shape.host_ports:
        return bool(candidates)
    return find_shortage(claiming_pod.shape, node, total_requests(candidates)) is None


def _drop_unneeded_victims(plan: HotswapPlan, hotswap_search: _HotswapSearch) -> HotswapPlan:
    for victim in sorted(plan.victims, key=_eviction_unit_cost, reverse=True):
        names = {eviction_unit.name: None for eviction_unit in plan.victims if eviction_unit.name != victim.name}
        plan = hotswap_search.run(names) or plan
    return plan


def _eviction_unit_cost(eviction_unit: EvictionUnit) -> EvictionCost:
    return eviction_cost((eviction_unit,))


#: The assumed maximum delay of a node's watch event behind the watch event of a pod on it.
NODE_EVENT_DELAY_MAX: Final = 10 * SECOND
HOTSWAP_DISRUPTION: Final = lifecycle.Disruption("DeletionByHotswap", "Hotswap: node is lost")

_DELETED: Final = EventType.DELETED  # enum member access is slow


class Hotswap:
    """Controller that fails and deletes the pods of gangs on lost nodes."""

    name = "hotswap"
    rank = 0
    kinds = (scheme.NODE, scheme.POD)

    def __init__(self) -> None:
        self._pods = PodsByNode()
        #: Whether each known node is lost, by node name.
        self._is_lost_by_node: dict[str, bool] = {}

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[meta.Key]:
        """Update the index of pods and nodes, and return the keys of the pods to check.

        These are the pods on a node that was lost or deleted, or a changed pod on a lost or unknown node.
        """
        key, new = event.key, None if event.type is _DELETED else event.obj
        if key.kind == scheme.POD:
            self._pods.observe(key, event.old, new)
            return (key,) if new is not None and self._may_node_be_lost(lifecycle.bound_node(new)) else ()
        was_node_lost = self._is_lost_by_node.pop(key.name, True)
        if new is not None:
            self._is_lost_by_node[key.name] = is_node_lost(new)
        return self._pods.pod_keys_on(key.name) if not was_node_lost and self._may_node_be_lost(key.name) else ()

    def reconcile(self, key: meta.Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Set a gang pod on a lost or deleted node to Failed; once this is written, delete the pod."""
        pod = reader.get(key)
        name = "" if pod is None else lifecycle.bound_node(pod)
        if pod is None or not name or not _belongs_to_gang(pod):
            return ReconcileResult()
        node = reader.get(meta.Key(scheme.NODE, "", name))
        if (node is not None and not is_node_lost(node)) or not _needs_hotswap_removal(pod):
            return ReconcileResult()
        failed_pod = lifecycle.with_failed_phase(pod, HOTSWAP_DISRUPTION, now)
        if failed_pod is not pod and now < (removable_at := _removable_at(node, pod)):
            return ReconcileResult(requeue_at=removable_at)
        if failed_pod is pod:
            return ReconcileResult([Delete(key, grace_period_seconds=0, uid=pod["metadata"]["uid"])])
        event = EventRecord(key, "Warning", "NodeLost", f"Node {name} is lost: the pod is removed")
        return ReconcileResult([UpdateStatus(failed_pod)], [event])

    def _may_node_be_lost(self, node: str) -> bool:
        """Return whether a node is lost, or no watch event about it was received."""
        return bool(node) and self._is_lost_by_node.get(node, True)


def _belongs_to_gang(pod: meta.Obj) -> bool:
    """Return whether a pod belongs to a Workload, or to a JobSet, which also restarts as a whole."""
    return bool(meta.annotation(pod, well_known.WORKLOAD) or meta.label(pod, well_known.JOB_SET_UID))


def is_node_lost(node: meta.Obj) -> bool:
    """Return whether a node is lost: its kubelet no longer reports its status."""
    return conditions.readiness(node) == "Unknown" or conditions.has_taint(node, well_known.UNREACHABLE)


def _removable_at(node: meta.Obj | None, pod: meta.Obj) -> Instant:
    """Return when Hotswap may fail a pod on a lost or deleted node.

    That is when the pod was bound if the node was lost later, else NODE_EVENT_DELAY_MAX after the binding.
    """
    bound_at = lifecycle.scheduled_at(pod)
    return (
        bound_at if node is not None and bound_at <= _node_lost_at(node, bound_at) else bound_at + NODE_EVENT_DELAY_MAX
    )


def _node_lost_at(node: meta.Obj, fallback_time: Instant) -> Instant:
    condition = meta.find_condition(node, conditions.READY)
    loss_times = [condition["lastTransitionTime"]] if condition is not None and condition["status"] == "Unknown" else []
    loss_times += [
        taint.get("timeAdded") for taint in conditions.taints_of(node) if taint["key"] == well_known.UNREACHABLE
    ]
    return max((parse_time(timestamp) for timestamp in loss_times if timestamp), default=fallback_time)


def _needs_hotswap_removal(pod: meta.Obj) -> bool:
    """Return whether Hotswap must still fail or delete a pod.

    It must if the pod has not ended. An ended pod is deleted if Hotswap failed it or if it is terminating, unless it
    only waits for its finalizers.
    """
    if not lifecycle.is_terminal(pod):
        return True
    disruption = meta.find_condition(pod, lifecycle.DISRUPTION_TARGET)
    is_failed_by_hotswap = disruption is not None and disruption.get("reason") == HOTSWAP_DISRUPTION.reason
    return (is_failed_by_hotswap or lifecycle.is_terminating(pod)) and not lifecycle.has_only_finalizers_left(pod)


# The reads and writes of a placement pass that frees nodes for a gang.
#
# `find_hotswap` chooses the victims. A Workload is evicted as in Kueue's preemption: its job is suspended, its pods
# stop, and it is requeued.


class HotswapPass:
    """Hotswap's evictions and cached lookups while the placement controller tries all due pods once."""

    def __init__(
        self, nodes: ClusterSnapshot, reservations: FollowerReservations, reader: Reader, now: Instant
    ) -> None:
        reservations.refresh(reader)
        self._reservations = reservations
        self._nodes = nodes
        self._reader = reader
        self._now = now
        #: Eviction units by gang, or by pod uid for pods without a gang.
        self._eviction_units: dict[str, EvictionUnit | None] = {}
        self._pods_by_gang: dict[str, list[PodView]] = {}

    def claims_of(self, pods: Iterable[PodView]) -> list[gang.PlacementClaim]:
        """Return the placement claim of each pending pod.

        The claim of an exclusively placed Job's leader pod includes the pods of the Job that do not exist yet.
        """
        return [self._claim_of(pod) for pod in pods]

    def reserve_nodes(self, claims: Sequence[gang.PlacementClaim], nodes_by_uid: Mapping[str, str]) -> None:
        """Reserve the nodes in `nodes_by_uid` for the missing pods of claims, in place of earlier reservations.

        An empty `nodes_by_uid` only ends the earlier reservations.
        """
        self._reservations.reserve_nodes(claims, nodes_by_uid)

    def find_eviction_unit(self, pod: PodView) -> EvictionUnit | None:
        """Return all pods that are evicted together with a pod, and the lost work; None if it cannot be evicted."""
        key = pod.gang or pod.uid
        if key not in self._eviction_units:
            self._eviction_units[key] = self._gang_eviction_unit(pod) if pod.gang else self._make_unit(pod.key, (pod,))
        return self._eviction_units[key]

    def evict(self, eviction_unit: EvictionUnit, preemptor: PodView, result: ReconcileResult) -> meta.Obj | None:
        """Add the eviction of a victim's Workload to `result`, and return the Workload.

        Return None if the victim has no Workload; the caller must then delete its pods.
        """
        pod = eviction_unit.pods[0]
        self._eviction_units[pod.gang or pod.uid] = eviction_unit._replace(is_being_evicted=True)
        victim = self._workload_of(pod) if pod.gang else None
        if victim is None:
            return None
        preemptor_workload = self._workload_of(preemptor) if preemptor.gang else None
        name, uid, job_uid = preemptor.key, preemptor.uid, ""
        if preemptor_workload is not None:
            preemptor_view = workload_view(preemptor_workload)
            name, uid, job_uid = preemptor_view.key, preemptor_view.uid, preemptor_view.job_uid
        text = eviction_message(name, uid, job_uid, eviction_unit)
        reason = evictions.EVICTED_BY_PREEMPTION
        evicted_object = evictions.evict(victim, reason=reason, message=text, now=self._now, preemption=HOTSWAP)
        beneficiary_key = pod_key(preemptor) if preemptor_workload is None else meta.key_of(preemptor_workload)
        events = _preemption_events(meta.key_of(victim), text, beneficiary_key)
        result.add(UpdateStatus(evicted_object), events)
        return victim

    def _claim_of(self, pod: PodView) -> gang.PlacementClaim:
        obj = self._reader.get(pod_key(pod)) if well_known.JOB_KEY in pod.labels else None
        topology_key = None if obj is None else meta.annotation(obj, well_known.EXCLUSIVE_TOPOLOGY)
        if not (obj and topology_key and is_leader(obj)) or meta.annotation(obj, well_known.NODE_SELECTOR_STRATEGY):
            return gang.PlacementClaim((pod,))
        return gang.PlacementClaim((pod, *gang.placeholders(obj, missing_followers(obj, self._reader))), topology_key)

    def _gang_eviction_unit(self, pod: PodView) -> EvictionUnit | None:
        workload = self._workload_of(pod)
        if workload is None or workload_lifecycle.is_finished(workload):
            return None
        if not self._pods_by_gang:
            for node in self._nodes:
                for other in node.pods.values():
                    self._pods_by_gang.setdefault(other.gang, []).append(other)
        pods = self._pods_by_gang.get(pod.gang)
        if pods is None:
            return None  # bound in this pass
        eviction_unit = self._make_unit(str(meta.key_of(workload)), pods)
        return eviction_unit._replace(is_being_evicted=workload_lifecycle.is_evicted(workload))

    def _make_unit(self, name: str, pods: Sequence[PodView]) -> EvictionUnit:
        return EvictionUnit(name, pods, sum(map(self._lost_work, pods)))

    def _lost_work(self, pod: PodView) -> Duration:
        obj = self._reader.get(pod_key(pod))
        start_time = None if obj is None else running_since(obj)
        if obj is None or start_time is None:
            return 0
        return lost_work(start_time, checkpoint_interval(self._with_owners(obj)), self._now)

    def _with_owners(self, pod: meta.Obj) -> Iterable[meta.Obj]:
        yield pod
        yield from meta.controlling_jobs(pod, self._reader.get)

    def _workload_of(self, pod: PodView) -> meta.Obj | None:
        obj = self._reader.get(pod_key(pod))
        name = None if obj is None else meta.annotation(obj, well_known.WORKLOAD)
        return None if not name else self._reader.get(meta.Key(scheme.WORKLOAD, pod.namespace, name))


def _preemption_events(victim_key: meta.Key, text: str, preemptor_key: meta.Key) -> list[EventRecord]:
    return [
        EventRecord(victim_key, "Normal", "EvictedDueToPreempted", text),
        EventRecord(victim_key, "Normal", "Preempted", text),
        EventRecord(preemptor_key, "Normal", "PreemptedWorkload", f"Preempted workload {victim_key}: {text}"),
    ]
