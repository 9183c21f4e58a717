"""State of all node groups: sizes, backoffs, and how far each may grow."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final

from batchyard.api.meta import Obj
from batchyard.autoscaler.expander import FORGOTTEN_AFTER, Backoff, backoff_key
from batchyard.autoscaler.node_groups import ClusterLimits, GroupName, NodeGroup, format_exceeded_limits
from batchyard.base.instant import Instant

IN_BACKOFF: Final = "in backoff after failed scale-up"
FULL: Final = "max node group size reached"
_MANY: Final = 1 << 30


class NodeGroupsState:
    """Sizes and backoffs of all node groups. Terminating and failed machines do not count."""

    def __init__(
        self,
        groups: Iterable[NodeGroup],
        sizes: Mapping[GroupName, int],
        leaving: Mapping[GroupName, int],
        backoffs: Mapping[str, Backoff],
    ) -> None:
        self.groups: dict[GroupName, NodeGroup] = {}
        self._of_pool: dict[str, list[NodeGroup]] = {}
        self._sizes = dict(sizes)
        self._leaving = leaving
        self._backoffs = backoffs
        for group in groups:
            self.add(group)

    def add(self, group: NodeGroup) -> None:
        """Add a group that exists or is planned."""
        self.groups[group.name] = group
        self._of_pool.setdefault(group.name.pool, []).append(group)

    def remove(self, pool: str) -> None:
        """Remove a planned pool."""
        for group in self._of_pool.pop(pool, ()):
            del self.groups[group.name]

    def pools(self) -> Sequence[Sequence[NodeGroup]]:
        """Return the groups by pool."""
        return list(self._of_pool.values())

    def size(self, group: NodeGroup) -> int:
        """Return the number of machines of a group."""
        return self._sizes.get(group.name, 0)

    def pool_size(self, group: NodeGroup) -> int:
        """Return the number of machines of the group's pool."""
        return sum(map(self.size, self._of_pool.get(group.name.pool, ())))

    def grow(self, group: NodeGroup, count: int) -> None:
        """Add `count` machines to a group; a negative count removes machines."""
        self._sizes[group.name] = self.size(group) + count

    def used(self) -> dict[str, int]:
        """Return the resources of all machines that count against limits."""
        total: dict[str, int] = {}
        for name, size in self._sizes.items():
            group = self.groups.get(name)
            for resource, amount in (group.uses if group is not None and size else {}).items():
                total[resource] = total.get(resource, 0) + amount * size
        return total

    def room(self, group: NodeGroup) -> int:
        """Return how many more machines a group may have. A new slice needs the old one to be gone."""
        if group.hosts > 1:
            return 0 if self.size(group) or self._leaving.get(group.name) else group.hosts
        of_pool = group.total.most - self.pool_size(group)
        return max(0, min(group.size.most - self.size(group), of_pool))

    def lack(self, group: NodeGroup) -> int:
        """Return the missing machines of a slice that was requested only in part, after a crash or a conflict."""
        size = self.size(group)
        is_in_part = 0 < size < group.hosts and not self._leaving.get(group.name)
        return group.hosts - size if is_in_part and group.is_autoscaled and group.provisioning != "queued" else 0

    def backoff(self, group: NodeGroup, now: Instant) -> Backoff | None:
        """Return the active backoff of a group."""
        known = self._backoffs.get(backoff_key(group))
        return known if known is not None and known.until > now else None

    def has_failed(self, group: NodeGroup, now: Instant) -> bool:
        """Whether machines of the group failed recently."""
        known = self._backoffs.get(backoff_key(group))
        return known is not None and known.failed_at + FORGOTTEN_AFTER > now

    def obstacle(self, group: NodeGroup, limits: ClusterLimits, now: Instant) -> str:
        """Return why a group cannot grow, in the autoscaler's words; '' if it can."""
        if self.backoff(group, now) is not None:
            return IN_BACKOFF
        if not self.room(group):
            return FULL
        exceeded = limits.exceeded(group.uses, group.hosts)
        return format_exceeded_limits(exceeded) if exceeded else ""

    def known_room(self, group: NodeGroup, cluster: Obj) -> int:
        """Return how many more machines the cloud is known to have for a group, from the Cluster's spec."""
        spec = cluster["spec"]
        bounds = [
            row["count"] - self._sum(lambda other: other.reservation == group.reservation)
            for row in spec.get("reservations") or ()
            if row["name"] == group.reservation
        ]
        bounds += [
            row["count"] - self._sum(partial(_is_of, row)) for row in spec.get("capacity") or () if _is_of(row, group)
        ]
        for row in spec.get("quotas") or ():
            if each := _counted(row["name"], group):
                bounds.append((row["limit"] - self._sum(partial(_counted, row["name"]))) // each)
        return max(0, min(bounds, default=_MANY))

    def is_known_to_have(self, groups: Sequence[NodeGroup], count: int, cluster: Obj) -> bool:
        """Whether the cloud is known to have `count` machines for the groups together, which may share capacity."""
        new = [group for group in groups if group.name not in self.groups]
        self.groups.update({group.name: group for group in new})
        grown: dict[NodeGroup, int] = {}
        for group in groups:
            grown[group] = min(self.known_room(group, cluster), count - sum(grown.values()))
            self.grow(group, grown[group])
        for group, more in grown.items():
            self.grow(group, -more)
        for group in new:
            del self.groups[group.name]
        return sum(grown.values()) == count

    def _sum(self, counted: Callable[[NodeGroup], int]) -> int:
        """Return the sum over all machines."""
        return sum(self.size(group) * counted(group) for group in self.groups.values())


def _counted(quota: str, group: NodeGroup) -> int:
    """Return what a machine counts against a project quota: of cpus, an accelerator or its machine type."""
    uses = group.uses
    return uses["cpu"] if quota == "cpus" else int(quota == group.machine.name) or uses.get(quota, 0)


def _is_of(row: Mapping[str, object], group: NodeGroup) -> bool:
    """Whether a capacity row applies to the machines of a group."""
    if group.reservation is not None or (row["machineType"], row["zone"]) != (group.machine.name, group.name.zone):
        return False
    return row.get("provisioning") in {None, group.provisioning}
