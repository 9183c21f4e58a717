"""Gang scheduling: pods are placed all together or not at all, so that two gangs never hold half of what they need.

The pods are placed one by one on the snapshot. The pods that are hardest to place come first: pods that may not
preempt, then pods of low priority, then large pods. A pod preempts only pods of lower priority than its own, although
the gang is queued by its highest priority. Otherwise victims of its least important pod would preempt that pod later.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from batchyard.api import well_known
from batchyard.api.meta import Obj, with_metadata, with_path
from batchyard.api.views.pod_shape import PodShape
from batchyard.api.views.pods import PodView, pod_view
from batchyard.placement.cluster_snapshot import ClusterSnapshot
from batchyard.placement.filtering import Unschedulable, choose_node, find_obstacle, find_obstacles
from batchyard.placement.gpu_policies import NodeScoring
from batchyard.placement.node_filters import NO_AMOUNTS, FilterFailure, subtract_requests
from batchyard.placement.node_info import NodeInfo
from batchyard.placement.preemption import PREEMPTION_UNDER_WAY, PreemptionFailure, awaits_victims, find_preemption


class GangPlacement(NamedTuple):
    """A successful placement of a gang: the nodes of its pods, by pod uid."""

    nodes: Mapping[str, str]


class GangUnschedulable(NamedTuple):
    """A failed placement of a gang: its first pod that could not be placed, and why each node rejects this pod."""

    pod: PodView
    fit_error: Unschedulable


class GangPreemption(NamedTuple):
    """A preemption for a gang: the nodes of its pods by pod uid, and (victim, preemptor) pairs."""

    nodes: Mapping[str, str]
    victims: Sequence[tuple[PodView, PodView]]


def place_gang(
    pods: Sequence[PodView], nodes: ClusterSnapshot, profile: NodeScoring
) -> GangPlacement | GangUnschedulable:
    """Return nodes for all pods of a gang, or the first pod that fits none; the gang's own nominations are ignored."""
    with nodes.what_if():
        nodes_by_uid, unplaced_pod = _place_in_order(pods, nodes, lambda pod: choose_node(pod, nodes, profile))
        if unplaced_pod is not None:
            return GangUnschedulable(unplaced_pod, Unschedulable(find_obstacles(unplaced_pod, nodes)))
    return GangPlacement(nodes_by_uid)


def preempt_for_gang(
    pods: Sequence[PodView], nodes: ClusterSnapshot, profile: NodeScoring
) -> GangPreemption | PreemptionFailure:
    """Return the pods to preempt so that a gang fits, with the gang's nodes; or why preemption does not help."""
    if any(awaits_victims(pod, nodes) for pod in pods):
        return PREEMPTION_UNDER_WAY
    victims: list[tuple[PodView, PodView]] = []
    failure_by_uid: dict[str, PreemptionFailure] = {}

    def choose_node_name(pod: PodView) -> str:
        name = choose_node(pod, nodes, profile)
        if name:
            return name
        preemption = find_preemption(pod, nodes, find_obstacles(pod, nodes))
        if isinstance(preemption, PreemptionFailure):
            failure_by_uid[pod.uid] = preemption
            return ""
        for victim in preemption.victims:
            nodes.remove_pod(victim.uid)
            victims.append((victim, pod))
        return preemption.node

    with nodes.what_if():
        nodes_by_uid, unplaced_pod = _place_in_order(pods, nodes, choose_node_name)
    return GangPreemption(nodes_by_uid, victims) if unplaced_pod is None else failure_by_uid[unplaced_pod.uid]


def placement_order(pods: Sequence[PodView]) -> list[PodView]:
    """Return the pods of a gang in placement order, the hardest to place first."""
    return sorted(pods, key=_placement_key)


def may_have_room(pods: Sequence[PodView], nodes: ClusterSnapshot, profile: NodeScoring) -> bool:
    """Return whether the nodes may have enough capacity for a gang: a cheap check that ignores most constraints.

    Pods with equal requirements and priority are checked separately from other pods. Capacity that preemption could
    free counts, unless victims of an earlier preemption are still terminating. A pod with required pod affinity may be
    placed last, so capacity that any other pod of the gang could free counts for it too.
    """
    may_preempt = not any(awaits_victims(pod, nodes) for pod in pods)
    highest_priority = max([pod.priority for pod in pods if pod.may_preempt and may_preempt], default=None)
    pods_by_kind: dict[tuple[PodShape, int, int | None], list[PodView]] = {}
    for pod in pods:
        own_priority = pod.priority if pod.may_preempt and may_preempt else None
        preemptor_priority = highest_priority if pod.shape.affinity else own_priority
        pods_by_kind.setdefault((pod.shape, pod.priority, preemptor_priority), []).append(pod)
    return all(_equal_pods_may_fit(equal_pods, nodes, profile, kind[2]) for kind, equal_pods in pods_by_kind.items())


def _equal_pods_may_fit(
    equal_pods: Sequence[PodView], nodes: ClusterSnapshot, profile: NodeScoring, preemptor_priority: int | None
) -> bool:
    """Return whether equal pods may all fit, judged by the total free resources of the nodes that can accept them.

    The resources of pods with a priority below `preemptor_priority` count as free; if it is None, those of no pods.
    """
    pod, pod_count = equal_pods[0], len(equal_pods)
    if preemptor_priority is not None and not nodes.has_pods_below(preemptor_priority):
        preemptor_priority = None
    obstacles = nodes.candidate_cache.static_results(pod.shape.rules).obstacles
    candidates: Iterable[str] = obstacles
    if preemptor_priority is None:
        candidates = nodes.candidate_cache.candidates_for(pod.shape, profile).scores
    for name in candidates:
        node = nodes.get(name)
        if node is None or obstacles[name] is not None:
            continue
        free_amounts = node.free_amounts
        freed_amounts = NO_AMOUNTS if preemptor_priority is None else node.requests_below(preemptor_priority)
        competing_pods = [other for other in nodes.competing_nominations(pod, name) if other.gang != pod.gang]
        if competing_pods:
            freed_amounts = subtract_requests(freed_amounts, competing_pods)
        pod_count -= max(
            0, min([(free_amounts.get(r, 0) + freed_amounts.get(r, 0)) // amount for r, amount in pod.requests])
        )
        if pod_count <= 0:
            return True
    return False


def _place_in_order(
    pods: Sequence[PodView], nodes: ClusterSnapshot, choose_node_name: Callable[[PodView], str]
) -> tuple[dict[str, str], PodView | None]:
    nodes_by_uid: dict[str, str] = {}
    for pod in pods:
        nodes.withdraw_nomination(pod.uid)
    remaining_pods = placement_order(pods)
    while remaining_pods:
        postponed_pods = []
        for pod in remaining_pods:
            name = choose_node_name(pod)
            if name:
                nodes.add_pod(pod, name)
                nodes_by_uid[pod.uid] = name
            elif pod.shape.affinity:
                postponed_pods.append(pod)  # the pods that it has affinity to may be placed later
            else:
                return nodes_by_uid, pod
        if len(postponed_pods) == len(remaining_pods):
            return nodes_by_uid, postponed_pods[0]
        remaining_pods = postponed_pods
    return nodes_by_uid, None


def _placement_key(pod: PodView) -> tuple[bool, int, int, int, int, str]:
    extended_resources = sum(amount for resource, amount in pod.requests if "/" in resource)
    return pod.may_preempt, pod.priority, -extended_resources, -pod.shape.cpu, -pod.shape.memory, pod.key


# Placement claims of a gang: one node per pod, or a whole domain for the leader of an exclusively placed Job.
#
# Of such a Job, only the leader pod exists until it has a node. The leader is placed together with placeholders for its
# followers, so that its domain has capacity for all of them. Source: the webhooks of JobSet, for the followers' node
# requirements (batchyard.jobs.jobset.exclusive_placement).


_DOMAIN_TOO_SMALL: Final = FilterFailure(
    ("node(s) were in a domain without room for the whole Job",), is_resolvable=True
)


class PlacementClaim(NamedTuple):
    """Pods to place in one topology domain: an existing pod (the leader), and placeholders for pods still missing."""

    pods: Sequence[PodView]
    #: The node label whose values are the domains; '' if each node is a domain.
    topology_key: str = ""

    @property
    def leader(self) -> PodView:
        """The only pod of the placement claim that exists already."""
        return self.pods[0]


def placeholders(leader: Obj, count: int) -> list[PodView]:
    """Return `count` placeholders for missing pods: copies of the leader without affinity for exclusive placement."""
    metadata, spec = leader["metadata"], _without_exclusive_affinity(leader["spec"])
    pods = []
    for number in range(1, count + 1):
        metadata_changes = {"name": f"{metadata['name']}+{number}", "uid": f"{metadata['uid']}+{number}"}
        pods.append(pod_view({**with_metadata(leader, **metadata_changes), "spec": spec}))
    return pods


def domains_of(claim: PlacementClaim, nodes: ClusterSnapshot) -> list[list[NodeInfo]]:
    """Return the nodes whose name, labels and taints suit a placement claim, as one list per topology domain."""
    obstacles = nodes.candidate_cache.static_results(claim.leader.shape.rules).obstacles
    unobstructed_nodes = [node for node in nodes if obstacles[node.name] is None]
    if not claim.topology_key:
        return [[node] for node in unobstructed_nodes]
    domains: dict[str, list[NodeInfo]] = {}
    for node in unobstructed_nodes:
        value = node.view.labels.get(claim.topology_key)
        if value is not None:
            domains.setdefault(value, []).append(node)
    return [domains[value] for value in sorted(domains)]


def fit_claim(claim: PlacementClaim, domain: Iterable[NodeInfo], nodes: ClusterSnapshot) -> dict[str, str] | None:
    """Return nodes of one topology domain for all pods of a placement claim, by pod uid; None if not all fit.

    The followers are equal and require no more than the leader, so a node that rejects a pod is not tried again.
    """
    nodes_by_uid: dict[str, str] = {}
    remaining_nodes = iter(domain)
    node = next(remaining_nodes, None)
    with nodes.what_if():
        for pod in claim.pods:
            while node is not None and find_obstacle(pod, node, nodes) is not None:
                node = next(remaining_nodes, None)
            if node is None:
                return None
            nodes.add_pod(pod, node.name)
            nodes_by_uid[pod.uid] = node.name
    return nodes_by_uid


def fit_claim_anywhere(claim: PlacementClaim, nodes: ClusterSnapshot) -> dict[str, str] | None:
    """Return nodes for all pods of a placement claim, by pod uid, in the first domain that fits; None if none does."""
    for domain in domains_of(claim, nodes):
        nodes_by_uid = fit_claim(claim, domain, nodes)
        if nodes_by_uid is not None:
            return nodes_by_uid
    return None


def place_claim(claim: PlacementClaim, nodes_by_uid: Mapping[str, str], nodes: ClusterSnapshot) -> None:
    """Add the pods of a placement claim to their nodes in the cluster snapshot."""
    for pod in claim.pods:
        nodes.add_pod(pod, nodes_by_uid[pod.uid])


def withdraw_nominations(claims: Sequence[PlacementClaim], nodes: ClusterSnapshot) -> None:
    """Withdraw the nominated nodes of all pods of the placement claims."""
    for claim in claims:
        for pod in claim.pods:
            nodes.withdraw_nomination(pod.uid)


def claim_order(claims: Sequence[PlacementClaim]) -> list[PlacementClaim]:
    """Return the claims for whole topology domains by descending number of pods, then those for single pods."""
    claims_by_leader = {claim.leader.uid: claim for claim in claims}
    ordered_claims = [claims_by_leader[leader.uid] for leader in placement_order([claim.leader for claim in claims])]
    return sorted(ordered_claims, key=lambda claim: (not claim.topology_key, -len(claim.pods)))


def place_claims(
    claims: Sequence[PlacementClaim], nodes: ClusterSnapshot, profile: NodeScoring
) -> GangPlacement | GangUnschedulable:
    """Return nodes for all pods of placement claims, or a pod that could not be placed, with the reasons.

    If all pods fit their nominated nodes, the result is these nodes.
    """
    nominations = nominated_nodes(claims, nodes)
    with nodes.what_if():
        withdraw_nominations(claims, nodes)
        if are_nodes_free(nominations, claims, nodes):
            return GangPlacement(nominations)
        return _place_claims_in_order(claim_order(claims), nodes, profile)


def nominated_nodes(claims: Sequence[PlacementClaim], nodes: ClusterSnapshot) -> dict[str, str]:
    """Return the nominated node of each pod in placement claims, by pod uid; '' for a pod without one."""
    return {pod.uid: nodes.nominated_node_of(pod.uid) for claim in claims for pod in claim.pods}


def are_nodes_free(nodes_by_uid: Mapping[str, str], claims: Sequence[PlacementClaim], nodes: ClusterSnapshot) -> bool:
    """Return whether all pods of placement claims fit together on the nodes in `nodes_by_uid` (by pod uid)."""
    with nodes.what_if():
        for claim in claims:
            for pod in claim.pods:
                node = nodes.get(nodes_by_uid[pod.uid])
                if node is None or find_obstacle(pod, node, nodes) is not None:
                    return False
                nodes.add_pod(pod, node.name)
    return True


def _place_claims_in_order(
    claims: Sequence[PlacementClaim], nodes: ClusterSnapshot, profile: NodeScoring
) -> GangPlacement | GangUnschedulable:
    placed_nodes: dict[str, str] = {}
    for claim in claims:
        if not claim.topology_key:
            continue
        nodes_by_uid = fit_claim_anywhere(claim, nodes)
        if nodes_by_uid is None:
            return GangUnschedulable(claim.leader, _small_domain_failure(claim.leader, nodes))
        place_claim(claim, nodes_by_uid, nodes)
        placed_nodes |= nodes_by_uid
    placement = place_gang([claim.leader for claim in claims if not claim.topology_key], nodes, profile)
    return GangPlacement({**placed_nodes, **placement.nodes}) if isinstance(placement, GangPlacement) else placement


def _small_domain_failure(leader: PodView, nodes: ClusterSnapshot) -> Unschedulable:
    obstacles = find_obstacles(leader, nodes)
    return Unschedulable({node.name: obstacles.get(node.name, _DOMAIN_TOO_SMALL) for node in nodes})


def _without_exclusive_affinity(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a leader's pod spec without the affinity terms of exclusive placement, which the Job's other pods lack."""
    for field in ("podAffinity", "podAntiAffinity"):
        terms = ((spec.get("affinity") or {}).get(field) or {}).get(well_known.REQUIRED)
        if terms:
            other_terms = [term for term in terms if not _is_exclusive_term(term)]
            spec = with_path(spec, ("affinity", field, well_known.REQUIRED), other_terms or None)
    return spec


def _is_exclusive_term(term: Mapping[str, Any]) -> bool:
    match_expressions = (term.get("labelSelector") or {}).get("matchExpressions") or ()
    return any(expression["key"] == well_known.JOB_KEY for expression in match_expressions)
