"""How new nodes of a pool are spread over its zones: evenly, or to wherever the cloud has them.

Sources: kubernetes-sigs/cluster-autoscaler, pkg/processors/nodegroupset/balancing_processor.go; GKE's autoscaler,
pkg/processors/locationpolicy, which asks the cloud for advice where a zone may be any.
"""

from collections.abc import Sequence

from batchyard.api.meta import Obj
from batchyard.core.scaling.fleet import Fleet
from batchyard.core.scaling.groups import NodeGroup


def spread(groups: Sequence[NodeGroup], count: int, fleet: Fleet, cluster: Obj) -> dict[NodeGroup, int]:
    """How many new nodes each group of a pool gets; groups that get none are left out."""
    given = dict.fromkeys(groups, 0)
    if groups[0].takes_any_zone:
        _give_where_known(given, count, fleet, cluster)
    _give_evenly(given, count - sum(given.values()), fleet)
    return {group: more for group, more in given.items() if more}


def _give_where_known(given: dict[NodeGroup, int], count: int, fleet: Fleet, cluster: Obj) -> None:
    """Give to the first zone that is known to have all; else to those that have most."""
    have = {group: min(fleet.room(group), fleet.known_room(group, cluster)) for group in given}
    whole = [group for group in given if have[group] >= count]
    for group in whole[:1] or sorted(given, key=lambda group: -have[group]):
        more = min(have[group], count - sum(given.values()), _room_of_pool(group, given, fleet))
        given[group] += max(0, more)


def _give_evenly(given: dict[NodeGroup, int], count: int, fleet: Fleet) -> None:
    """Give one by one to the smallest that has room."""
    for _ in range(count):
        open_groups = [group for group in given if given[group] < fleet.room(group)]
        if not open_groups or not _room_of_pool(open_groups[0], given, fleet):
            return
        smallest = min(open_groups, key=lambda group: fleet.size(group) + given[group])
        given[smallest] += 1


def _room_of_pool(group: NodeGroup, given: dict[NodeGroup, int], fleet: Fleet) -> int:
    return max(0, group.total.most - fleet.pool_size(group) - sum(given.values()))
