"""What the pods of a gang claim: a node each; or a whole domain, for the leader of a Job that is to be alone in it.

Of an exclusively placed Job only the leader exists until it has a node. Here it is placed with stand-ins for the pods
that will follow it, so that it never goes where there is no room for them. Source: the webhooks of JobSet, for what
followers ask of a node (batchyard.core.lifecycle.jobset.exclusive).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from batchyard.api import well_known
from batchyard.api.meta import Obj, with_metadata, with_path
from batchyard.api.views.pods import PodView, pod_view
from batchyard.core.placement.cluster import Nodes
from batchyard.core.placement.fit import Unplaceable, find_obstacle, find_obstacles
from batchyard.core.placement.gang import GangPlaced, GangStuck, in_order, place_gang
from batchyard.core.placement.node import Node
from batchyard.core.placement.profile import Profile
from batchyard.core.placement.rules import Obstacle

_TOO_SMALL: Final = Obstacle(("node(s) were in a domain without room for the whole Job",), may_yield=True)


class Claim(NamedTuple):
    """Pods that go to one domain together: one that is there, and stand-ins."""

    pods: Sequence[PodView]
    #: The label of nodes whose values are the domains; '': every node is one.
    topology_key: str = ""

    @property
    def leader(self) -> PodView:
        """The pod that is there."""
        return self.pods[0]


def stand_ins(leader: Obj, count: int) -> list[PodView]:
    """So many pods that ask of a node what the followers of a leader will ask."""
    metadata, spec = leader["metadata"], _without_exclusion(leader["spec"])
    pods = []
    for number in range(1, count + 1):
        own = {"name": f"{metadata['name']}+{number}", "uid": f"{metadata['uid']}+{number}"}
        pods.append(pod_view({**with_metadata(leader, **own), "spec": spec}))
    return pods


def domains_of(claim: Claim, nodes: Nodes) -> list[list[Node]]:
    """The nodes to which the pods of a claim may go as far as labels and taints say, by domain, in order of name."""
    obstacles = nodes.shortlists.reach(claim.leader.shape.rules).obstacles
    open_nodes = [node for node in nodes if obstacles[node.name] is None]
    if not claim.topology_key:
        return [[node] for node in open_nodes]
    domains: dict[str, list[Node]] = {}
    for node in open_nodes:
        value = node.view.labels.get(claim.topology_key)
        if value is not None:
            domains.setdefault(value, []).append(node)
    return [domains[value] for value in sorted(domains)]


def fit(claim: Claim, domain: Iterable[Node], nodes: Nodes) -> dict[str, str] | None:
    """Where in a domain the pods of a claim go, by uid; None if they do not all fit.

    They are alike but for the leader, who asks for more: where one found no room the next finds none.
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


def first_fit(claim: Claim, nodes: Nodes) -> dict[str, str] | None:
    """Where the pods of a claim go in the first domain in which they all fit; None if there is none."""
    for domain in domains_of(claim, nodes):
        seats = fit(claim, domain, nodes)
        if seats is not None:
            return seats
    return None


def seat(claim: Claim, seats: Mapping[str, str], nodes: Nodes) -> None:
    """Count the pods of a claim as placed."""
    for pod in claim.pods:
        nodes.add_pod(pod, seats[pod.uid])


def withdraw(claims: Sequence[Claim], nodes: Nodes) -> None:
    """Hold no more room for claims."""
    for claim in claims:
        for pod in claim.pods:
            nodes.withdraw(pod.uid)


def in_turn(claims: Sequence[Claim]) -> list[Claim]:
    """The order in which claims are settled: large Jobs first, for any place they leave does for a smaller one."""
    by_leader = {claim.leader.uid: claim for claim in claims}
    ordered = [by_leader[leader.uid] for leader in in_order([claim.leader for claim in claims])]
    return sorted(ordered, key=lambda claim: (not claim.topology_key, -len(claim.pods)))


def place_claims(claims: Sequence[Claim], nodes: Nodes, profile: Profile) -> GangPlaced | GangStuck:
    """Where all the pods of a gang go, stand-ins included. Room that is held for all of them is theirs."""
    held = held_for(claims, nodes)
    with nodes.what_if():
        withdraw(claims, nodes)
        if are_free(held, claims, nodes):
            return GangPlaced(held)
        return _place_in_turn(in_turn(claims), nodes, profile)


def held_for(claims: Sequence[Claim], nodes: Nodes) -> dict[str, str]:
    """Where room is held for the pods of claims, by uid; '' where it is not."""
    return {pod.uid: nodes.nomination_of(pod.uid) for claim in claims for pod in claim.pods}


def are_free(seats: Mapping[str, str], claims: Sequence[Claim], nodes: Nodes) -> bool:
    """Whether all the pods of claims can go there."""
    with nodes.what_if():
        for claim in claims:
            for pod in claim.pods:
                node = nodes.get(seats[pod.uid])
                if node is None or find_obstacle(pod, node, nodes) is not None:
                    return False
                nodes.add_pod(pod, node.name)
    return True


def _place_in_turn(claims: Sequence[Claim], nodes: Nodes, profile: Profile) -> GangPlaced | GangStuck:
    found: dict[str, str] = {}
    for claim in claims:
        if not claim.topology_key:
            continue
        seats = first_fit(claim, nodes)
        if seats is None:
            return GangStuck(claim.leader, _why_not(claim.leader, nodes))
        seat(claim, seats, nodes)
        found |= seats
    placement = place_gang([claim.leader for claim in claims if not claim.topology_key], nodes, profile)
    return GangPlaced({**found, **placement.nodes}) if isinstance(placement, GangPlaced) else placement


def _why_not(leader: PodView, nodes: Nodes) -> Unplaceable:
    obstacles = find_obstacles(leader, nodes)
    return Unplaceable({node.name: obstacles.get(node.name, _TOO_SMALL) for node in nodes})


def _without_exclusion(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """A leader's spec without the terms that keep the pods of other Jobs away: followers have none."""
    for field in ("podAffinity", "podAntiAffinity"):
        terms = ((spec.get("affinity") or {}).get(field) or {}).get(well_known.REQUIRED)
        if terms:
            kept = [term for term in terms if not _is_exclusion(term)]
            spec = with_path(spec, ("affinity", field, well_known.REQUIRED), kept or None)
    return spec


def _is_exclusion(term: Mapping[str, Any]) -> bool:
    expressions = (term.get("labelSelector") or {}).get("matchExpressions") or ()
    return any(expression["key"] == well_known.JOB_KEY for expression in expressions)
