"""Gangs: pods that are placed together or not at all, so that two gangs never wait for each other's halves.

Pods of a gang are placed one after the other on the cluster as the ones before left it. Those go first that find a
place hardest: who may make nobody leave, or only those of low priority, then who needs most. Each makes only those of
lower priority than its own leave, though the gang stands in line by its most important pod: else who left for the
least important would come back for its place.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from batchyard.api.views.pods import PodShape, PodView
from batchyard.core.placement.cluster import Nodes
from batchyard.core.placement.fit import Unplaceable, find_obstacles, pick_node
from batchyard.core.placement.preemption import UNDER_WAY, Futile, awaits_victims, find_preemption
from batchyard.core.placement.profile import Profile
from batchyard.core.placement.resources import NOTHING, less_held


class GangPlaced(NamedTuple):
    """Where the pods of a gang go, by uid."""

    nodes: Mapping[str, str]


class GangStuck(NamedTuple):
    """The first pod of a gang for which there is no place, and why."""

    pod: PodView
    why: Unplaceable


class GangPreemption(NamedTuple):
    """Where the pods of a gang go, by uid, once the victims have left; each victim with the pod it leaves for."""

    nodes: Mapping[str, str]
    victims: Sequence[tuple[PodView, PodView]]


def place_gang(pods: Sequence[PodView], nodes: Nodes, profile: Profile) -> GangPlaced | GangStuck:
    """Where all the pods of a gang go. Room that is held for some of them is theirs."""
    with nodes.what_if():
        found, stuck = _place_in_turn(pods, nodes, lambda pod: pick_node(pod, nodes, profile))
        if stuck is not None:
            return GangStuck(stuck, Unplaceable(find_obstacles(stuck, nodes)))
    return GangPlaced(found)


def preempt_for_gang(pods: Sequence[PodView], nodes: Nodes, profile: Profile) -> GangPreemption | Futile:
    """Who leaves so that all the pods of a gang fit; nobody if that does not make room for all."""
    if any(awaits_victims(pod, nodes) for pod in pods):
        return UNDER_WAY
    victims: list[tuple[PodView, PodView]] = []
    futile: dict[str, Futile] = {}

    def pick(pod: PodView) -> str:
        name = pick_node(pod, nodes, profile)
        if name:
            return name
        preemption = find_preemption(pod, nodes, find_obstacles(pod, nodes))
        if isinstance(preemption, Futile):
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
    """The order in which the pods of a gang are placed."""
    return sorted(pods, key=_by_need)


def may_have_room(pods: Sequence[PodView], nodes: Nodes, profile: Profile) -> bool:
    """Whether the nodes have room enough for the pods of each kind, counted without the others.

    A cheap look that never says no to a gang that fits, or could make room for itself. Those who were asked to leave
    for it are awaited before others are asked.
    """
    may_preempt = not any(awaits_victims(pod, nodes) for pod in pods)
    wanted: dict[tuple[PodShape, int, bool], list[PodView]] = {}
    for pod in pods:
        wanted.setdefault((pod.shape, pod.priority, pod.may_preempt and may_preempt), []).append(pod)
    return all(_may_fit(alike, nodes, profile, kind[2]) for kind, alike in wanted.items())


def _may_fit(alike: Sequence[PodView], nodes: Nodes, profile: Profile, may_preempt: bool) -> bool:
    """Whether so many pods of a kind may fit, maybe in place of others of lower priority."""
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
    pods: Sequence[PodView], nodes: Nodes, pick: Callable[[PodView], str]
) -> tuple[dict[str, str], PodView | None]:
    """Add pods to the nodes picked for them: where each went, and the first for which there is none."""
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
                late.append(pod)  # those it must be near may come yet
            else:
                return found, pod
        if len(late) == len(left):
            return found, late[0]
        left = late
    return found, None


def _by_need(pod: PodView) -> tuple[bool, int, int, int, int, str]:
    """For whom others leave, then what few nodes have (extended resources), then cpu and memory, then name."""
    rare = sum(amount for resource, amount in pod.requests if "/" in resource)
    return pod.may_preempt, pod.priority, -rare, -pod.shape.cpu, -pod.shape.memory, pod.key
