"""Plans for the machines of node pools: which ones to create and delete, also for a pool that is one TPU slice.

The machines of a slice are requested, stopped and deleted together. If one crashes, the whole slice is down: after the
repair time all its machines are deleted, and a new slice is requested. New machines are requested only after the last
old one is deleted, so that a pool never mixes two slices.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from batchyard.api import scheme, well_known
from batchyard.api.meta import Condition, Key, Obj, is_true, label, with_condition, with_metadata, with_status
from batchyard.api.times import format_time
from batchyard.base.instant import MINUTE, Instant
from batchyard.cloud.catalog.instances import (
    CRASHED,
    FAILED,
    creation_time_of,
    is_being_deleted,
    new_instance,
    phase_of,
    phase_start,
    stops_at,
)
from batchyard.cloud.catalog.machine_types import catalog_of
from batchyard.cloud.catalog.pool_properties import is_autoscaled, machine_of, repair_time, slice_host_count, zones_of
from batchyard.interfaces.client import Create, Delete, EventType, Reader, UpdateStatus, WatchEvent, Write

# The Instances and the ready Nodes of every pool, from watch events.


@dataclass(frozen=True, slots=True)
class PoolMember:
    """The fields of a node pool's Instance that decide which machines the pool creates and deletes."""

    name: str
    zone: str
    phase: str
    phase_start: Instant
    stops_at: Instant | None
    is_being_deleted: bool

    @property
    def key(self) -> Key:
        """The object key of this Instance."""
        return Key(scheme.INSTANCE, "", self.name)


class PoolMembers:
    """An index from watch events: the Instances and the ready Nodes of each node pool."""

    def __init__(self) -> None:
        self._members_by_pool: dict[str, dict[str, PoolMember]] = {}
        self._crashed_by_pool: dict[str, dict[str, PoolMember]] = {}
        self._ready_nodes_by_pool: dict[str, dict[str, None]] = {}

    def instances_of(self, pool: str) -> Mapping[str, PoolMember]:
        """Return the Instances of a node pool by name, in the order in which they were first observed."""
        return self._members_by_pool.get(pool) or {}

    def crashed_members(self, pool: str) -> Sequence[PoolMember]:
        """Return the crashed Instances of a node pool that are not being deleted."""
        return tuple((self._crashed_by_pool.get(pool) or {}).values())

    def ready_count(self, pool: str) -> int:
        """Return the number of ready Nodes of a node pool."""
        return len(self._ready_nodes_by_pool.get(pool) or ())

    def observe_instance(self, event: WatchEvent) -> str | None:
        """Update the index from an Instance's event; return the name of its node pool if that must be reconciled."""
        pool_name, name = event.obj["spec"]["pool"], event.key.name
        old_member = self.instances_of(pool_name).get(name)
        new_member = None if event.type is EventType.DELETED else _pool_member(event.obj)
        if new_member is not None:
            self._members_by_pool.setdefault(pool_name, {})[name] = new_member
        elif old_member is not None:
            del self._members_by_pool[pool_name][name]
        if new_member is not None and new_member.phase == CRASHED and not new_member.is_being_deleted:
            self._crashed_by_pool.setdefault(pool_name, {})[name] = new_member
        elif pool_name in self._crashed_by_pool:
            self._crashed_by_pool[pool_name].pop(name, None)
        return pool_name if _plan_relevant_fields(old_member) != _plan_relevant_fields(new_member) else None

    def observe_node(self, event: WatchEvent) -> str | None:
        """Update the index from a Node's event; return the name of its node pool if the ready count changed."""
        pool_name = label(event.obj, well_known.NODE_POOL)
        if pool_name is None:
            return None
        old_ready_count, name = self.ready_count(pool_name), event.key.name
        is_ready = event.type is not EventType.DELETED and is_true(event.obj, "Ready")
        if is_ready:
            self._ready_nodes_by_pool.setdefault(pool_name, {})[name] = None
        elif pool_name in self._ready_nodes_by_pool:
            self._ready_nodes_by_pool[pool_name].pop(name, None)
        return pool_name if self.ready_count(pool_name) != old_ready_count else None


def _plan_relevant_fields(member: PoolMember | None) -> tuple[bool, Instant | None, str] | None:
    if member is None:
        return None
    return member.is_being_deleted, member.stops_at, member.phase if member.phase in {CRASHED, FAILED} else ""


def _pool_member(instance: Obj) -> PoolMember:
    return PoolMember(
        name=instance["metadata"]["name"],
        zone=instance["spec"]["zone"],
        phase=phase_of(instance),
        phase_start=phase_start(instance),
        stops_at=stops_at(instance),
        is_being_deleted=is_being_deleted(instance),
    )


# The plan for a pool's machines: creations, deletions, status, and the next reconcile.


#: Condition: the initial machines of an autoscaled pool were created. From then on the autoscaler sets its size.
INITIALIZED: Final = "Initialized"


@dataclass(slots=True)
class PoolPlan:
    """The writes for one node pool in one reconcile: new machines, its status, and deletions.

    New machines are requested before the status is written, and old machines are deleted after it. So the status is
    correct even if only some writes succeed.
    """

    pool: Obj
    cluster: Obj
    now: Instant
    creations: list[Write] = field(default_factory=list)
    later_writes: list[Write] = field(default_factory=list)
    requeue_at: Instant | None = None
    conditions: list[Condition] = field(init=False)

    def __post_init__(self) -> None:
        self.conditions = list((self.pool.get("status") or {}).get("conditions") or ())

    @property
    def host_count(self) -> int:
        """How many machines of the pool are created and deleted together: above 1 for a multi-host TPU slice."""
        return slice_host_count(self.pool, catalog_of(self.cluster))

    def has_condition(self, kind: str) -> bool:
        """Return whether a condition of the node pool is True."""
        return is_true({"conditions": self.conditions}, kind)

    def set_condition(self, condition_type: str, holds: bool, reason: str, message: str) -> None:
        """Set a condition in the node pool's planned status."""
        self.conditions = with_condition(
            self.conditions, type=condition_type, status=holds, reason=reason, message=message, now=self.now
        )

    def request_machines(self, zone: str, count: int) -> None:
        """Plan to create `count` Instances in a zone; those planned at the Cluster's creation start without delay."""
        if count <= 0:
            return
        instance = new_instance(self.pool, zone, self.cluster)
        if self.now == creation_time_of(self.cluster):
            instance = with_metadata(instance, annotations={well_known.INITIAL_INSTANCE: "true"})
        self.creations += [Create(instance)] * count

    def delete_members(self, members: Iterable[PoolMember]) -> None:
        """Plan to delete Instances, except those that are already being deleted."""
        self.later_writes += [Delete(member.key) for member in members if not member.is_being_deleted]

    def replacement_time(self, crashed_at: Instant) -> Instant:
        """Return when a machine of the pool that crashed at `crashed_at` is replaced."""
        catalog = catalog_of(self.cluster)
        return crashed_at + repair_time(machine_of(self.pool, catalog), self.cluster, catalog)

    def requeue_by(self, due_at: Instant) -> None:
        """Requeue the node pool at this time or earlier."""
        self.requeue_at = due_at if self.requeue_at is None else min(due_at, self.requeue_at)


def plan_machines(plan: PoolPlan, members: Mapping[str, PoolMember], crashed_members: Sequence[PoolMember]) -> None:
    """Plan the machines of a node pool: replace crashed ones, and keep the desired number in each zone.

    For an autoscaled pool, create only the initial machines, once, and delete crashed machines.
    """
    expired_members = []
    for member in crashed_members:
        repair_due_at = plan.replacement_time(member.phase_start)
        if repair_due_at <= plan.now:
            expired_members.append(member)
        else:
            plan.requeue_by(repair_due_at)
    plan.delete_members(expired_members)
    if not is_autoscaled(plan.pool):
        remaining_members = [
            member for member in members.values() if not member.is_being_deleted and member not in expired_members
        ]
        _keep_machine_count(plan, remaining_members)
    elif not plan.has_condition(INITIALIZED):
        _create_initial_machines(plan, members)


def _keep_machine_count(plan: PoolPlan, members: Sequence[PoolMember]) -> None:
    """Plan creations or deletions to reach nodeCount in each zone; failed machines count, since they are retried."""
    desired_count = plan.pool["spec"].get("nodeCount", 0)
    for zone in zones_of(plan.pool, plan.cluster):
        zone_members = [member for member in members if member.zone == zone]
        plan.request_machines(zone, desired_count - len(zone_members))
        plan.delete_members(_deletion_order(zone_members)[: max(0, len(zone_members) - desired_count)])


def _create_initial_machines(plan: PoolPlan, members: Mapping[str, PoolMember]) -> None:
    desired_count = plan.pool["spec"].get("nodeCount", 0)
    for zone in zones_of(plan.pool, plan.cluster):
        plan.request_machines(zone, desired_count - sum(member.zone == zone for member in members.values()))
    plan.set_condition(INITIALIZED, True, "MachinesAsked", "The initial machines of the pool have been requested")


def _deletion_order(members: list[PoolMember]) -> list[PoolMember]:
    members_newest_first = members[::-1]
    return sorted(members_newest_first, key=lambda member: member.phase != FAILED)


#: Condition: the slice is requested again after the machines of the broken slice are deleted.
RECREATING: Final = "Recreating"
#: The time after which a partly allocated slice is deleted, since it may never become complete.
_PARTIAL_SLICE_TIMEOUT: Final = MINUTE


def plan_slice(plan: PoolPlan, members: Mapping[str, PoolMember], reader: Reader) -> None:
    """Plan the next step of a node pool that is one TPU slice: complete, stop or repair it, or delete its machines."""
    slice_hosts = list(members.values())
    crash_times = [host.phase_start for host in slice_hosts if host.phase == CRASHED]
    stop_times = [host.stops_at for host in slice_hosts if host.stops_at is not None]
    if any(host.is_being_deleted for host in slice_hosts):
        plan.delete_members(slice_hosts)
    elif crash_times:
        _repair_slice(plan, slice_hosts, min(crash_times), reader)
    elif stop_times:
        _stop_hosts_together(plan, slice_hosts, min(stop_times), reader)
    elif (partial_since := _partial_slice_start(slice_hosts)) is not None:
        _delete_partial_slice(plan, slice_hosts, partial_since + _PARTIAL_SLICE_TIMEOUT)
    else:
        _request_missing_machines(plan, slice_hosts)


def _repair_slice(plan: PoolPlan, hosts: list[PoolMember], crashed_at: Instant, reader: Reader) -> None:
    repair_due_at = plan.replacement_time(crashed_at)
    if repair_due_at > plan.now:
        plan.requeue_by(repair_due_at)
        status = {"phase": CRASHED, "since": format_time(crashed_at)}
        _write_status(plan, [host for host in hosts if host.phase != CRASHED], status, reader)
        return
    if is_autoscaled(plan.pool):
        plan.set_condition(RECREATING, True, "HostCrashed", "The slice is recreated, because a machine crashed")
    plan.delete_members(hosts)


def _partial_slice_start(hosts: list[PoolMember]) -> Instant | None:
    """Return the last allocation time in a TPU slice with allocated and failed machines; None for other slices."""
    failed_hosts = [host for host in hosts if host.phase == FAILED]
    allocation_times = [host.phase_start for host in hosts if host.phase not in {"", FAILED}]
    return max(allocation_times) if failed_hosts and allocation_times else None


def _delete_partial_slice(plan: PoolPlan, hosts: list[PoolMember], deletion_due_at: Instant) -> None:
    if deletion_due_at > plan.now:
        plan.requeue_by(deletion_due_at)
    else:
        plan.delete_members(hosts)


def _stop_hosts_together(plan: PoolPlan, hosts: list[PoolMember], stop_at: Instant, reader: Reader) -> None:
    _write_status(plan, [host for host in hosts if host.stops_at != stop_at], {"stopAt": format_time(stop_at)}, reader)


def _request_missing_machines(plan: PoolPlan, hosts: list[PoolMember]) -> None:
    if requests_own_slice(plan.pool, plan.host_count) and len(hosts) < plan.host_count:
        plan.request_machines(zones_of(plan.pool, plan.cluster)[0], plan.host_count - len(hosts))
    elif is_autoscaled(plan.pool) and not plan.has_condition(INITIALIZED):
        plan.set_condition(INITIALIZED, True, "MachinesAsked", "The initial machines of the pool have been requested")
    elif plan.has_condition(RECREATING):
        plan.set_condition(RECREATING, False, "MachinesAsked", "The machines of the new slice have been requested")


def requests_own_slice(pool: Obj, host_count: int) -> bool:
    """Return whether the node pool controller, not the autoscaler, creates the machines of a pool's TPU slice now.

    For an autoscaled pool, it creates only the initial slice, if nodeCount is above 0, and the successor of a crashed
    slice. For another pool, it creates the slice unless nodeCount is 0.
    """
    if is_autoscaled(pool) and is_true(pool, INITIALIZED):
        return is_true(pool, RECREATING)
    requested_count: int = pool["spec"].get("nodeCount", 0 if is_autoscaled(pool) else host_count)
    return requested_count > 0


def _write_status(plan: PoolPlan, hosts: list[PoolMember], fields: Mapping[str, str], reader: Reader) -> None:
    for host in hosts:
        instance = reader.get(host.key)
        if instance is not None:
            plan.later_writes.append(UpdateStatus(with_status(instance, {**(instance.get("status") or {}), **fields})))
