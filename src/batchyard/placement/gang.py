"""Gang scheduling: pods are placed all together or not at all, so that two gangs never hold half of what they need.

The pods are placed one by one, each on the snapshot that the previous one left. The hardest to place come first: those
that may not preempt, then those of low priority, then the largest. A pod preempts only pods of lower priority than its
own, although the gang is queued by its highest priority. Otherwise the victims of the least important pod would take
its place back.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from batchyard.api import well_known
from batchyard.api.meta import Obj, with_metadata, with_path
from batchyard.api.views.pod_shape import PodShape
from batchyard.api.views.pods import PodView, pod_view
from batchyard.placement.cluster_snapshot import ClusterSnapshot
from batchyard.placement.filtering import Unschedulable, find_obstacle, find_obstacles, pick_node
from batchyard.placement.node_filters import NOTHING, AutoscalingProfile, FilterFailure, less_held
from batchyard.placement.node_info import NodeInfo
from batchyard.placement.preemption import UNDER_WAY, PreemptionFailure, awaits_victims, find_preemption


class GangPlaced(NamedTuple):
    """The nodes of a gang's pods, by uid."""

    nodes: Mapping[str, str]


class GangUnschedulable(NamedTuple):
    """The first pod of a gang that fits nowhere, and why."""

    pod: PodView
    why: Unschedulable


class GangPreemption(NamedTuple):
    """The nodes of a gang's pods by uid after preemption, and each victim with its preemptor."""

    nodes: Mapping[str, str]
    victims: Sequence[tuple[PodView, PodView]]


def place_gang(
    pods: Sequence[PodView], nodes: ClusterSnapshot, profile: AutoscalingProfile
) -> GangPlaced | GangUnschedulable:
    """Return nodes for all the pods of a gang; their own nominations are free to them."""
    with nodes.what_if():
        found, stuck = _place_in_turn(pods, nodes, lambda pod: pick_node(pod, nodes, profile))
        if stuck is not None:
            return GangUnschedulable(stuck, Unschedulable(find_obstacles(stuck, nodes)))
    return GangPlaced(found)


def preempt_for_gang(
    pods: Sequence[PodView], nodes: ClusterSnapshot, profile: AutoscalingProfile
) -> GangPreemption | PreemptionFailure:
    """Return the victims that let all pods of a gang fit; a failure if no victims do."""
    if any(awaits_victims(pod, nodes) for pod in pods):
        return UNDER_WAY
    victims: list[tuple[PodView, PodView]] = []
    futile: dict[str, PreemptionFailure] = {}

    def pick(pod: PodView) -> str:
        name = pick_node(pod, nodes, profile)
        if name:
            return name
        preemption = find_preemption(pod, nodes, find_obstacles(pod, nodes))
        if isinstance(preemption, PreemptionFailure):
            futile[pod.uid] = preemption
            return ""
        for victim in preemption.victims:
            nodes.remove_pod(victim.uid)
            victims.append((victim, pod))
        return preemption.node

    with nodes.what_if():
        found, stuck = _place_in_turn(pods, nodes, pick)
    return GangPreemption(found, victims) if stuck is None else futile[stuck.uid]


def in_order(pods: Sequence[PodView]) -> list[PodView]:
    """Return the pods of a gang in placement order."""
    return sorted(pods, key=_by_need)


def may_have_room(pods: Sequence[PodView], nodes: ClusterSnapshot, profile: AutoscalingProfile) -> bool:
    """Whether the nodes have enough capacity for the pods of each kind, counted separately.

    A cheap check with no false negatives for gangs that fit or could preempt. While earlier victims terminate, further
    preemption is not considered.
    """
    may_preempt = not any(awaits_victims(pod, nodes) for pod in pods)
    wanted: dict[tuple[PodShape, int, bool], list[PodView]] = {}
    for pod in pods:
        wanted.setdefault((pod.shape, pod.priority, pod.may_preempt and may_preempt), []).append(pod)
    return all(_may_fit(alike, nodes, profile, kind[2]) for kind, alike in wanted.items())


def _may_fit(alike: Sequence[PodView], nodes: ClusterSnapshot, profile: AutoscalingProfile, may_preempt: bool) -> bool:
    """Whether these equal pods may fit, possibly in place of pods of lower priority."""
    pod, count = alike[0], len(alike)
    may_ask = may_preempt and nodes.has_lower_priority(pod.priority)
    obstacles = nodes.shortlists.reach(pod.shape.rules).obstacles
    for name in obstacles if may_ask else nodes.shortlists.of(pod.shape, profile).scores:
        node = nodes.get(name)
        if node is None or obstacles[name] is not None:
            continue
        left, more = node.left, node.taken_below(pod.priority) if may_ask else NOTHING
        held = [other for other in nodes.held_against(pod, name) if other.gang != pod.gang]
        if held:
            more = less_held(more, held)
        count -= max(0, min([(left.get(r, 0) + more.get(r, 0)) // amount for r, amount in pod.requests]))
        if count <= 0:
            return True
    return False


def _place_in_turn(
    pods: Sequence[PodView], nodes: ClusterSnapshot, pick: Callable[[PodView], str]
) -> tuple[dict[str, str], PodView | None]:
    """Add the pods to the nodes that `pick` returns; return the nodes by uid, and the first pod without one."""
    found: dict[str, str] = {}
    for pod in pods:
        nodes.withdraw(pod.uid)
    left = in_order(pods)
    while left:
        late = []
        for pod in left:
            name = pick(pod)
            if name:
                nodes.add_pod(pod, name)
                found[pod.uid] = name
            elif pod.shape.affinity:
                late.append(pod)  # the pods it has affinity to may still be placed
            else:
                return found, pod
        if len(late) == len(left):
            return found, late[0]
        left = late
    return found, None


def _by_need(pod: PodView) -> tuple[bool, int, int, int, int, str]:
    """Sort key: preemption allowed, priority, extended resources, cpu and memory, name."""
    rare = sum(amount for resource, amount in pod.requests if "/" in resource)
    return pod.may_preempt, pod.priority, -rare, -pod.shape.cpu, -pod.shape.memory, pod.key


# --- claims ---
#
# The claims of a gang's pods: one node each, or a whole domain for the leader of an exclusively placed Job.
#
# Only the leader of such a Job exists until it has a node. It is placed with placeholders for its followers, so that it
# never lands where they have no room. Source: the webhooks of JobSet, for the followers' node requirements
# (batchyard.jobs.jobset.exclusive_placement).


_TOO_SMALL: Final = FilterFailure(("node(s) were in a domain without room for the whole Job",), may_yield=True)


class PlacementClaim(NamedTuple):
    """Pods that must be placed in one domain: an existing pod and placeholders."""

    pods: Sequence[PodView]
    #: The node label whose values are the domains; '': each node is a domain.
    topology_key: str = ""

    @property
    def leader(self) -> PodView:
        """The existing pod."""
        return self.pods[0]


def placeholders(leader: Obj, count: int) -> list[PodView]:
    """Return `count` placeholder pods with the followers' node requirements."""
    metadata, spec = leader["metadata"], _without_exclusion(leader["spec"])
    pods = []
    for number in range(1, count + 1):
        own = {"name": f"{metadata['name']}+{number}", "uid": f"{metadata['uid']}+{number}"}
        pods.append(pod_view({**with_metadata(leader, **own), "spec": spec}))
    return pods


def domains_of(claim: PlacementClaim, nodes: ClusterSnapshot) -> list[list[NodeInfo]]:
    """Return the nodes that pass the claim's static filters, by domain, domains in order of their names."""
    obstacles = nodes.shortlists.reach(claim.leader.shape.rules).obstacles
    open_nodes = [node for node in nodes if obstacles[node.name] is None]
    if not claim.topology_key:
        return [[node] for node in open_nodes]
    domains: dict[str, list[NodeInfo]] = {}
    for node in open_nodes:
        value = node.view.labels.get(claim.topology_key)
        if value is not None:
            domains.setdefault(value, []).append(node)
    return [domains[value] for value in sorted(domains)]


def fit(claim: PlacementClaim, domain: Iterable[NodeInfo], nodes: ClusterSnapshot) -> dict[str, str] | None:
    """Return the nodes of the claim's pods in a domain, by uid; None if they do not all fit.

    The pods are equal but for the leader, which has more requirements: a node that rejects one rejects the next.
    """
    seats: dict[str, str] = {}
    left = iter(domain)
    node = next(left, None)
    with nodes.what_if():
        for pod in claim.pods:
            while node is not None and find_obstacle(pod, node, nodes) is not None:
                node = next(left, None)
            if node is None:
                return None
            nodes.add_pod(pod, node.name)
            seats[pod.uid] = node.name
    return seats


def first_fit(claim: PlacementClaim, nodes: ClusterSnapshot) -> dict[str, str] | None:
    """Return the nodes of the claim's pods in the first domain that fits all of them; None if none does."""
    for domain in domains_of(claim, nodes):
        seats = fit(claim, domain, nodes)
        if seats is not None:
            return seats
    return None


def place_claim(claim: PlacementClaim, seats: Mapping[str, str], nodes: ClusterSnapshot) -> None:
    """Add the pods of a claim to their nodes."""
    for pod in claim.pods:
        nodes.add_pod(pod, seats[pod.uid])


def withdraw(claims: Sequence[PlacementClaim], nodes: ClusterSnapshot) -> None:
    """Withdraw the nominations of the claims' pods."""
    for claim in claims:
        for pod in claim.pods:
            nodes.withdraw(pod.uid)


def in_turn(claims: Sequence[PlacementClaim]) -> list[PlacementClaim]:
    """Return the order in which claims are placed: large Jobs first, since smaller ones fit more places."""
    by_leader = {claim.leader.uid: claim for claim in claims}
    ordered = [by_leader[leader.uid] for leader in in_order([claim.leader for claim in claims])]
    return sorted(ordered, key=lambda claim: (not claim.topology_key, -len(claim.pods)))


def place_claims(
    claims: Sequence[PlacementClaim], nodes: ClusterSnapshot, profile: AutoscalingProfile
) -> GangPlaced | GangUnschedulable:
    """Return nodes for all the pods of a gang, placeholders included; a complete own nomination is used first."""
    held = held_for(claims, nodes)
    with nodes.what_if():
        withdraw(claims, nodes)
        if are_free(held, claims, nodes):
            return GangPlaced(held)
        return _claims_place_in_turn(in_turn(claims), nodes, profile)


def held_for(claims: Sequence[PlacementClaim], nodes: ClusterSnapshot) -> dict[str, str]:
    """Return the nominated nodes of the claims' pods, by uid; '' if none."""
    return {pod.uid: nodes.nomination_of(pod.uid) for claim in claims for pod in claim.pods}


def are_free(seats: Mapping[str, str], claims: Sequence[PlacementClaim], nodes: ClusterSnapshot) -> bool:
    """Whether all the pods of the claims fit there."""
    with nodes.what_if():
        for claim in claims:
            for pod in claim.pods:
                node = nodes.get(seats[pod.uid])
                if node is None or find_obstacle(pod, node, nodes) is not None:
                    return False
                nodes.add_pod(pod, node.name)
    return True


def _claims_place_in_turn(
    claims: Sequence[PlacementClaim], nodes: ClusterSnapshot, profile: AutoscalingProfile
) -> GangPlaced | GangUnschedulable:
    found: dict[str, str] = {}
    for claim in claims:
        if not claim.topology_key:
            continue
        seats = first_fit(claim, nodes)
        if seats is None:
            return GangUnschedulable(claim.leader, _why_not(claim.leader, nodes))
        place_claim(claim, seats, nodes)
        found |= seats
    placement = place_gang([claim.leader for claim in claims if not claim.topology_key], nodes, profile)
    return GangPlaced({**found, **placement.nodes}) if isinstance(placement, GangPlaced) else placement


def _why_not(leader: PodView, nodes: ClusterSnapshot) -> Unschedulable:
    obstacles = find_obstacles(leader, nodes)
    return Unschedulable({node.name: obstacles.get(node.name, _TOO_SMALL) for node in nodes})


def _without_exclusion(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a leader's spec without its exclusive-placement terms, which followers do not have."""
    for field in ("podAffinity", "podAntiAffinity"):
        terms = ((spec.get("affinity") or {}).get(field) or {}).get(well_known.REQUIRED)
        if terms:
            kept = [term for term in terms if not _is_exclusion(term)]
            spec = with_path(spec, ("affinity", field, well_known.REQUIRED), kept or None)
    return spec


def _is_exclusion(term: Mapping[str, Any]) -> bool:
    expressions = (term.get("labelSelector") or {}).get("matchExpressions") or ()
    return any(expression["key"] == well_known.JOB_KEY for expression in expressions)
