"""What would give nodes to pods that have none: more machines, fewer pods, the end of others. Each is tried out."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final

from batchyard.api.views.node import NodeView
from batchyard.api.views.pods import PodView
from batchyard.controllers.why.capacity import Capacity
from batchyard.controllers.why.document import Asker
from batchyard.controllers.why.occupants import Occupant
from batchyard.controllers.why.proposal import END, NODES, SIZE, Patch, Proposal, merge_patch
from batchyard.controllers.why.smallest import least_between
from batchyard.core.scaling.groups import NodeGroup

_ENDED_MAX: Final = 4
_PLAIN_LOOKED_AT: Final = 16


def node_changes(
    pods: Sequence[PodView], occupants: Sequence[Occupant], capacity: Capacity, asker: Asker
) -> Iterator[Proposal]:
    """All of them. `pods` are those without a node."""
    yield from _more_machines(pods, capacity)
    yield from _fewer_pods(pods, capacity)
    yield from _ends(pods, occupants, capacity, asker)


def _more_machines(pods: Sequence[PodView], capacity: Capacity) -> Iterator[Proposal]:
    """The fewest more machines of a pool with which all have a node."""
    for group in capacity.groups():
        if group.hosts > 1 or not capacity.has_room_for(pods[:1], with_nodes=_made(group, 1)):
            continue
        count = _least(partial(_would_do, pods, capacity, group), len(pods))
        if count:
            text = f"{count} more machine{'s' * (count > 1)} of pool {group.name.pool} ({group.machine.name})"
            yield Proposal(NODES, text, _grown(group, count, capacity))


def _would_do(pods: Sequence[PodView], capacity: Capacity, group: NodeGroup, count: int) -> bool:
    return capacity.has_room_for(pods, with_nodes=_made(group, count))


def _grown(group: NodeGroup, count: int, capacity: Capacity) -> Sequence[Patch]:
    """How to let a pool have so many more; nothing where that is in several zones at once."""
    name, spec = group.name.pool, group.pool["spec"]
    if group.is_autoscaled:
        field = "totalMax" if "totalMax" in (spec.get("autoscaling") or {}) else "max"
        most = group.total.most if field == "totalMax" else group.size.most
        fields: dict[str, Any] = {"autoscaling": {field: most + count}}
    elif capacity.zones_of(name) == 1:
        fields = {"nodeCount": int(spec.get("nodeCount", 0)) + count}
    else:
        return ()
    return (merge_patch("NodePool", name, {"spec": fields}),)


def _fewer_pods(pods: Sequence[PodView], capacity: Capacity) -> Iterator[Proposal]:
    """How many of them would have a node together."""
    count = _least(lambda fewer: capacity.has_room_for(pods[fewer:]), len(pods) - 1)
    if count:
        yield Proposal(SIZE, f"with {count} pods fewer the other {len(pods) - count} would have nodes", ())


def _ends(
    pods: Sequence[PodView], occupants: Sequence[Occupant], capacity: Capacity, asker: Asker
) -> Iterator[Proposal]:
    """Who would have to end: as few of them as the largest make do, none of whom could be spared."""

    def will_do(chosen: Sequence[Occupant]) -> bool:
        return capacity.has_room_for(pods, without=[uid for each in chosen for uid in each.pods])

    chosen: list[Occupant] = []
    for occupant in [each for each in occupants[:_PLAIN_LOOKED_AT] if each.key][:_ENDED_MAX]:
        chosen.append(occupant)
        if will_do(chosen):
            break
    else:
        return
    for occupant in list(chosen):
        spared = [each for each in chosen if each is not occupant]
        if spared and will_do(spared):
            chosen = spared
    names = [asker.name_of(each.key) for each in chosen]
    keys = [each.key.partition("/") for each in chosen]
    patches = [merge_patch("Workload", name, {"spec": {"active": False}}, namespace) for namespace, _, name in keys]
    is_told = names == [each.key for each in chosen]
    yield Proposal(END, f"end or suspend {', '.join(dict.fromkeys(names))}", patches if is_told else ())


def _made(group: NodeGroup, count: int) -> list[NodeView]:
    return [group.node(f"{group.id}-imagined-{number}") for number in range(count)]


def _least(will_do: Callable[[int], bool], most: int) -> int:
    """The least number from 1 that will do; 0 if not even the most will."""
    if most < 1 or not will_do(most):
        return 0
    return least_between(will_do, 1, most)
