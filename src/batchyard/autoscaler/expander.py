"""Expanders (the choice among possible scale-ups), backoffs of failed node groups, and the state of all node groups.

The first of equal options is chosen, whereas upstream chooses randomly. The price expander lacks upstream's preference
for certain machine sizes. Source: kubernetes-sigs/cluster-autoscaler, pkg/expander; the prices of requests are those of
kubernetes/autoscaler, cloudprovider/gce/gce_price_info.go.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec

from batchyard.api.meta import Obj
from batchyard.api.patterns import matches_anywhere
from batchyard.api.times import format_time, parse_time
from batchyard.api.views.pods import PodView
from batchyard.autoscaler import node_groups
from batchyard.base.instant import HOUR, MINUTE, SECOND, Duration, Instant

#: Micro-dollars per hour for a core, a GiB of memory, and a device.
_CORE_PRICE: Final = 33_174
_GIB_PRICE: Final = 4_446
_DEVICE_PRICE: Final = 700_000
#: The price of half a core and 500 MiB, added to both prices so that pods without requests do not make options equal.
_STABILIZING_PRICE: Final = _CORE_PRICE // 2 + _GIB_PRICE // 2
_GIB: Final = 1 << 30
#: The price factor of a pool that does not exist yet.
_NEW_POOL_COST_FACTOR: Final = 2


@dataclass(frozen=True, slots=True)
class ScaleUpOption:
    """A possible scale-up: new nodes of one node group or several similar ones, and the pods to place on them."""

    groups: Sequence[node_groups.NodeGroup]
    #: The pods of each new node; nodes of a TPU slice may have none.
    nodes: Sequence[Sequence[PodView]]
    unplaced_pods: Sequence[PodView]
    is_new_pool: bool = False

    @property
    def group(self) -> node_groups.NodeGroup:
        """The first node group of this scale-up, which represents all its groups."""
        return self.groups[0]

    @property
    def pods(self) -> list[PodView]:
        """The pods that are placed on the new nodes."""
        return [pod for pods in self.nodes for pod in pods]


def best_option(options: Sequence[ScaleUpOption], settings: node_groups.ScalingSettings) -> ScaleUpOption:
    """Return the scale-up that the configured expander prefers; `options` must not be empty."""
    if settings.expander == "price":
        return min(options, key=_relative_cost)
    if settings.expander == "most-pods":
        return max(options, key=lambda option: len(option.pods))
    if settings.expander == "priority":
        priority_ranks = [_priority_rank(option, settings.priorities) for option in options]
        options = [option for option, rank in zip(options, priority_ranks, strict=True) if rank == min(priority_ranks)]
    return min(options, key=_unused_fraction)


def _unused_fraction(option: ScaleUpOption) -> float:
    pods, node_count = option.pods, len(option.nodes)
    cpu, memory = option.group.machine.cpu_milli * node_count, option.group.machine.memory_bytes * node_count
    return (cpu - sum(pod.shape.cpu for pod in pods)) / cpu + (memory - sum(p.shape.memory for p in pods)) / memory


def _relative_cost(option: ScaleUpOption) -> float:
    node_price = option.group.price * len(option.nodes) + _STABILIZING_PRICE
    request_price = sum(map(_pod_request_price, option.pods)) + _STABILIZING_PRICE
    return node_price / request_price * (_NEW_POOL_COST_FACTOR if option.is_new_pool else 1)


def _pod_request_price(pod: PodView) -> float:
    accelerator_count = sum(amount for resource, amount in pod.requests if "/" in resource)
    return pod.shape.cpu * _CORE_PRICE / 1000 + pod.shape.memory * _GIB_PRICE / _GIB + accelerator_count * _DEVICE_PRICE


def _priority_rank(option: ScaleUpOption, priorities: Sequence[str]) -> int:
    name = option.group.name.pool
    return next((rank for rank, pattern in enumerate(priorities) if matches_anywhere(pattern, name)), len(priorities))


# Exponential backoff of node groups whose machines failed.
#
# Backoffs are stored in a ConfigMap, so that they survive a restart. Auto-provisioned pools are keyed by their
# machines, since the pools are temporary: a shortage of A100 for one Job affects the next too. Sources:
# kubernetes-sigs/cluster-autoscaler, pkg/utils/backoff; GKE's autoscaler, pkg/backoff (exponential_backoff.go,
# resource_backoff.go, future_reservations_backoff.go).


BACKOFF_MIN: Final = 5 * MINUTE
BACKOFF_MAX: Final = 30 * MINUTE
#: A backoff is reset after this time without failures.
RESET_AFTER: Final = 3 * HOUR
#: How long before its start a future reservation is tried.
RESERVATION_LEAD_TIME: Final = 30 * MINUTE
#: Error codes that a retry cannot fix.
_PERMANENT_ERROR_CODES: Final = (
    "CONDITION_NOT_MET",
    "INVALID_ARGUMENT",
    "INVALID_GPU_TYPE",
    "INVALID_MACHINE_TYPE",
    "LIMIT_EXCEEDED",
    "RESERVATION_INCOMPATIBLE",
    "RESERVATION_NOT_FOUND",
)

_encode_json = msgspec.json.Encoder(order="sorted").encode


class ScaleUpFailure(NamedTuple):
    """The reason why requested machines did not become nodes: the cloud's error code and message."""

    code: str
    message: str
    #: When capacity becomes available, if known.
    available_at: Instant | None = None


class Backoff(NamedTuple):
    """A pause in the growth of a node group: its end, its duration, and the failure that caused it."""

    end: Instant
    duration: Duration
    failed_at: Instant
    code: str

    @property
    def needs_configuration_change(self) -> bool:
        """Whether only a change of the configuration can fix the failure that caused this backoff."""
        return self.code in _PERMANENT_ERROR_CODES


def backoff_key(group: node_groups.NodeGroup) -> str:
    """Return the key of a node group's backoff.

    Auto-provisioned groups with the same machines, provisioning and zone share a key.
    """
    zone = group.name.zone
    if not group.is_auto_provisioned:
        return f"{group.name.pool}/{zone}"
    accelerator = group.machine.accelerator
    accelerator_suffix = f"+{accelerator.count}x{accelerator.type}" if accelerator else ""
    return f"{group.machine.name}{accelerator_suffix}/{group.provisioning}/{zone}"


def backoff_after_failure(old_backoff: Backoff | None, failure: ScaleUpFailure, now: Instant) -> Backoff:
    """Return a node group's backoff after a failure. An active backoff is kept.

    The duration is BACKOFF_MIN, or after a recent failure twice the last duration, up to BACKOFF_MAX. The backoff also
    lasts until shortly before capacity becomes available, if that time is known.
    """
    if old_backoff is not None and old_backoff.end > now:
        return old_backoff
    backoff_duration = BACKOFF_MIN
    if old_backoff is not None and old_backoff.failed_at + RESET_AFTER > now:
        backoff_duration = min(2 * old_backoff.duration, BACKOFF_MAX)
    end = now + backoff_duration
    if failure.available_at is not None:
        end = max(end, failure.available_at - RESERVATION_LEAD_TIME)
    return Backoff(end, backoff_duration, now, failure.code)


def parse_backoffs(text: str) -> dict[str, Backoff]:
    """Return the backoffs of node groups in a ConfigMap's JSON text, by backoff key; empty if the text is invalid."""
    try:
        stored_backoffs: Any = msgspec.json.decode(text)
        return {key: _decode_backoff(row) for key, row in stored_backoffs.items()}
    except (msgspec.DecodeError, AttributeError, KeyError, TypeError, ValueError):
        return {}


def serialize_backoffs(backoffs: Mapping[str, Backoff], now: Instant) -> str:
    """Encode the backoffs of node groups as JSON text for their ConfigMap.

    A backoff is left out if it has ended and its failure is more than RESET_AFTER ago.
    """
    active_backoffs = {key: each for key, each in backoffs.items() if max(each.end, each.failed_at + RESET_AFTER) > now}
    return _encode_json({key: _encode_backoff(each) for key, each in active_backoffs.items()}).decode()


def _decode_backoff(row: Mapping[str, Any]) -> Backoff:
    return Backoff(parse_time(row["until"]), row["seconds"] * SECOND, parse_time(row["failedAt"]), row["code"])


def _encode_backoff(backoff: Backoff) -> dict[str, Any]:
    return {
        "until": format_time(backoff.end),
        "seconds": backoff.duration // SECOND,
        "failedAt": format_time(backoff.failed_at),
        "code": backoff.code,
    }


# The state of all node groups: sizes, backoffs, and how many machines each may add.


IN_BACKOFF: Final = "in backoff after failed scale-up"
FULL: Final = "max node group size reached"
_UNLIMITED_COUNT: Final = 1 << 30


class NodeGroupsState:
    """The sizes and backoffs of existing and planned node groups. Terminating and failed machines are not counted."""

    def __init__(
        self,
        groups: Iterable[node_groups.NodeGroup],
        sizes: Mapping[node_groups.GroupName, int],
        terminating_counts: Mapping[node_groups.GroupName, int],
        backoffs: Mapping[str, Backoff],
    ) -> None:
        self.groups: dict[node_groups.GroupName, node_groups.NodeGroup] = {}
        self._groups_by_pool: dict[str, list[node_groups.NodeGroup]] = {}
        self._sizes = dict(sizes)
        self._terminating_counts = terminating_counts
        self._backoffs = backoffs
        for group in groups:
            self.add(group)

    def add(self, group: node_groups.NodeGroup) -> None:
        """Add a node group that exists or is planned."""
        self.groups[group.name] = group
        self._groups_by_pool.setdefault(group.name.pool, []).append(group)

    def remove(self, pool: str) -> None:
        """Remove the node groups of a pool whose creation is no longer planned."""
        for group in self._groups_by_pool.pop(pool, ()):
            del self.groups[group.name]

    def pools(self) -> Sequence[Sequence[node_groups.NodeGroup]]:
        """Return the node groups of each pool."""
        return list(self._groups_by_pool.values())

    def size(self, group: node_groups.NodeGroup) -> int:
        """Return the number of machines of a node group."""
        return self._sizes.get(group.name, 0)

    def pool_size(self, group: node_groups.NodeGroup) -> int:
        """Return the number of machines of all node groups in the pool of this group."""
        return sum(map(self.size, self._groups_by_pool.get(group.name.pool, ())))

    def grow(self, group: node_groups.NodeGroup, count: int) -> None:
        """Add `count` machines to the size of a node group; a negative count removes machines."""
        self._sizes[group.name] = self.size(group) + count

    def usage(self) -> dict[str, int]:
        """Return what all machines count against the Cluster's limits, by resource (cores, bytes, accelerators)."""
        used_by_resource: dict[str, int] = {}
        for name, size in self._sizes.items():
            group = self.groups.get(name)
            for resource, amount in (group.counted_resources if group is not None and size else {}).items():
                used_by_resource[resource] = used_by_resource.get(resource, 0) + amount * size
        return used_by_resource

    def count_addable_within_size(self, group: node_groups.NodeGroup) -> int:
        """Return how many machines a node group's size bounds let it add; 0 while an old TPU slice is not deleted."""
        if group.hosts > 1:
            return 0 if self.size(group) or self._terminating_counts.get(group.name) else group.hosts
        pool_room = group.total.maximum - self.pool_size(group)
        return max(0, min(group.size.maximum - self.size(group), pool_room))

    def missing_count(self, group: node_groups.NodeGroup) -> int:
        """Return how many machines a partly requested TPU slice lacks; 0 for all other node groups.

        It is also 0 if the group is queued or not autoscaled, or if some of its machines are terminating.
        """
        size = self.size(group)
        is_incomplete = 0 < size < group.hosts and not self._terminating_counts.get(group.name)
        return group.hosts - size if is_incomplete and group.is_autoscaled and group.provisioning != "queued" else 0

    def backoff(self, group: node_groups.NodeGroup, now: Instant) -> Backoff | None:
        """Return the active backoff of a node group; None if it is not in backoff."""
        backoff = self._backoffs.get(backoff_key(group))
        return backoff if backoff is not None and backoff.end > now else None

    def has_failed(self, group: node_groups.NodeGroup, now: Instant) -> bool:
        """Return whether machines of a node group, or of another with its backoff key, failed in the last 3 hours."""
        backoff = self._backoffs.get(backoff_key(group))
        return backoff is not None and backoff.failed_at + RESET_AFTER > now

    def obstacle(self, group: node_groups.NodeGroup, limits: node_groups.ClusterLimits, now: Instant) -> str:
        """Return why a node group cannot grow, in the cluster autoscaler's words; '' if it can."""
        if self.backoff(group, now) is not None:
            return IN_BACKOFF
        if not self.count_addable_within_size(group):
            return FULL
        resources = limits.exceeded_resources(group.counted_resources, group.hosts)
        return node_groups.format_exceeded_limits(resources) if resources else ""

    def remaining_known_capacity(self, group: node_groups.NodeGroup, cluster: Obj) -> int:
        """Return how many more machines of a group fit the capacity, reservations and quotas in the Cluster's spec.

        The number is 1 << 30 if none of these limits the group.
        """
        spec = cluster["spec"]
        count_bounds = [
            row["count"] - self._sum_over_machines(lambda each: each.reservation_name == group.reservation_name)
            for row in spec.get("reservations") or ()
            if row["name"] == group.reservation_name
        ]
        count_bounds += [
            row["count"] - self._sum_over_machines(partial(_capacity_row_applies_to, row))
            for row in spec.get("capacity") or ()
            if _capacity_row_applies_to(row, group)
        ]
        for row in spec.get("quotas") or ():
            if per_machine := _quota_usage(row["name"], group):
                count_bounds.append(
                    (row["limit"] - self._sum_over_machines(partial(_quota_usage, row["name"]))) // per_machine
                )
        return max(0, min(count_bounds, default=_UNLIMITED_COUNT))

    def has_known_capacity_for(self, groups: Sequence[node_groups.NodeGroup], count: int, cluster: Obj) -> bool:
        """Return whether `count` more machines of these node groups together fit the capacity in the Cluster's spec."""
        new_groups = [group for group in groups if group.name not in self.groups]
        self.groups.update({group.name: group for group in new_groups})
        increases: dict[node_groups.NodeGroup, int] = {}
        for group in groups:
            increases[group] = min(self.remaining_known_capacity(group, cluster), count - sum(increases.values()))
            self.grow(group, increases[group])
        for group, increase in increases.items():
            self.grow(group, -increase)
        for group in new_groups:
            del self.groups[group.name]
        return sum(increases.values()) == count

    def _sum_over_machines(self, value_per_machine: Callable[[node_groups.NodeGroup], int]) -> int:
        return sum(self.size(group) * value_per_machine(group) for group in self.groups.values())


def _quota_usage(quota: str, group: node_groups.NodeGroup) -> int:
    resources = group.counted_resources
    return resources["cpu"] if quota == "cpus" else int(quota == group.machine.name) or resources.get(quota, 0)


def _capacity_row_applies_to(row: Mapping[str, object], group: node_groups.NodeGroup) -> bool:
    if group.reservation_name is not None or (row["machineType"], row["zone"]) != (group.machine.name, group.name.zone):
        return False
    return row.get("provisioning") in {None, group.provisioning}
