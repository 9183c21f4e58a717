"""Pools that are one TPU slice of several machines: all of them or none.

The machines are requested, stopped and deleted together. If one crashes, the whole slice is down: after the repair time
all its machines are deleted, and a new slice is requested. New machines are requested only when the last old one is
gone, so that a pool never mixes two slices.
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
    is_leaving,
    new_instance,
    phase_of,
    since,
    start_of,
    stops_at,
)
from batchyard.cloud.catalog.machine_types import catalog_of
from batchyard.cloud.catalog.prices import hosts_of_slice, is_autoscaled, machine_of, repair_time, zones_of
from batchyard.interfaces.client import Create, Delete, EventType, Reader, UpdateStatus, WatchEvent, Write

# --- pool members ---
#
# The Instances and the ready Nodes of every pool, from watch events.


@dataclass(frozen=True, slots=True)
class Member:
    """The fields of an Instance that its pool reads."""

    name: str
    zone: str
    phase: str
    since: Instant
    stops_at: Instant | None
    leaving: bool

    @property
    def key(self) -> Key:
        """The key of the Instance."""
        return Key(scheme.INSTANCE, "", self.name)


class PoolMembers:
    """Instances and ready Nodes by pool."""

    def __init__(self) -> None:
        self._members: dict[str, dict[str, Member]] = {}
        self._crashed: dict[str, dict[str, Member]] = {}
        self._ready: dict[str, dict[str, None]] = {}

    def of(self, pool: str) -> Mapping[str, Member]:
        """Return the Instances of a pool by name, in order of creation."""
        return self._members.get(pool) or {}

    def crashed(self, pool: str) -> Sequence[Member]:
        """Return the crashed Instances of a pool that are not being deleted."""
        return tuple((self._crashed.get(pool) or {}).values())

    def ready(self, pool: str) -> int:
        """Return the number of ready Nodes of a pool."""
        return len(self._ready.get(pool) or ())

    def note_instance(self, event: WatchEvent) -> str | None:
        """Apply an event of an Instance; return its pool if the change is relevant (booting is not)."""
        pool, name = event.obj["spec"]["pool"], event.key.name
        before, after = self.of(pool).get(name), None if event.type is EventType.DELETED else _member(event.obj)
        if after is not None:
            self._members.setdefault(pool, {})[name] = after
        elif before is not None:
            del self._members[pool][name]
        if after is not None and after.phase == CRASHED and not after.leaving:
            self._crashed.setdefault(pool, {})[name] = after
        elif pool in self._crashed:
            self._crashed[pool].pop(name, None)
        return pool if _standing(before) != _standing(after) else None

    def note_node(self, event: WatchEvent) -> str | None:
        """Apply an event of a Node; return its pool if the number of ready Nodes changed."""
        pool = label(event.obj, well_known.NODE_POOL)
        if pool is None:
            return None
        before, name = self.ready(pool), event.key.name
        ready = event.type is not EventType.DELETED and is_true(event.obj, "Ready")
        if ready:
            self._ready.setdefault(pool, {})[name] = None
        elif pool in self._ready:
            self._ready[pool].pop(name, None)
        return pool if self.ready(pool) != before else None


def _standing(member: Member | None) -> tuple[bool, Instant | None, str] | None:
    """Return the fields of a member that are relevant to its pool."""
    if member is None:
        return None
    return member.leaving, member.stops_at, member.phase if member.phase in {CRASHED, FAILED} else ""


def _member(instance: Obj) -> Member:
    return Member(
        name=instance["metadata"]["name"],
        zone=instance["spec"]["zone"],
        phase=phase_of(instance),
        since=since(instance),
        stops_at=stops_at(instance),
        leaving=is_leaving(instance),
    )


# --- pool plan ---
#
# The plan for a pool's machines: creations, deletions, status, and the next reconcile.


#: Condition: the initial machines of an autoscaled pool were created. From then on the autoscaler sets its size.
INITIALIZED: Final = "Initialized"


@dataclass(slots=True)
class PoolPlan:
    """The pending writes for one pool.

    New machines are requested before the status is written, and old ones deleted after it. So the status is true even
    if only some writes succeed.
    """

    pool: Obj
    cluster: Obj
    now: Instant
    creations: list[Write] = field(default_factory=list)
    rest: list[Write] = field(default_factory=list)
    look_at: Instant | None = None
    conditions: list[Condition] = field(init=False)

    def __post_init__(self) -> None:
        self.conditions = list((self.pool.get("status") or {}).get("conditions") or ())

    @property
    def hosts(self) -> int:
        """The number of machines that are created and deleted together."""
        return hosts_of_slice(self.pool, catalog_of(self.cluster))

    def has_condition(self, kind: str) -> bool:
        """Whether a condition of the pool is true."""
        return is_true({"conditions": self.conditions}, kind)

    def set_condition(self, kind: str, holds: bool, reason: str, message: str) -> None:
        """Set a condition of the pool."""
        self.conditions = with_condition(
            self.conditions, type=kind, status=holds, reason=reason, message=message, now=self.now
        )

    def make(self, zone: str, count: int) -> None:
        """Request machines in a zone. Initial machines of the cluster need no time to start."""
        if count <= 0:
            return
        instance = new_instance(self.pool, zone, self.cluster)
        if self.now == start_of(self.cluster):
            instance = with_metadata(instance, annotations={well_known.INITIAL_INSTANCE: "true"})
        self.creations += [Create(instance)] * count

    def give_up(self, members: Iterable[Member]) -> None:
        """Delete Instances, except those that are already being deleted."""
        self.rest += [Delete(member.key) for member in members if not member.leaving]

    def repair_at(self, crashed: Instant) -> Instant:
        """Return the replacement time of a machine that crashed at `crashed`."""
        catalog = catalog_of(self.cluster)
        return crashed + repair_time(machine_of(self.pool, catalog), self.cluster, catalog)

    def look_again(self, when: Instant) -> None:
        """Requeue no later than at this time."""
        self.look_at = when if self.look_at is None else min(when, self.look_at)


def plan_machines(plan: PoolPlan, members: Mapping[str, Member], crashed: Sequence[Member]) -> None:
    """Replace crashed machines, and keep the desired number in each zone.

    An autoscaled pool gets only its initial machines here, once; its crashed machines are deleted.
    """
    lost = []
    for member in crashed:
        repair = plan.repair_at(member.since)
        if repair <= plan.now:
            lost.append(member)
        else:
            plan.look_again(repair)
    plan.give_up(lost)
    if not is_autoscaled(plan.pool):
        staying = [member for member in members.values() if not member.leaving and member not in lost]
        _keep_count(plan, staying)
    elif not plan.has_condition(INITIALIZED):
        _begin(plan, members)


def _keep_count(plan: PoolPlan, staying: Sequence[Member]) -> None:
    """Create or delete machines to reach nodeCount in each zone. Failed ones count: they are retried."""
    wanted = plan.pool["spec"].get("nodeCount", 0)
    for zone in zones_of(plan.pool, plan.cluster):
        here = [member for member in staying if member.zone == zone]
        plan.make(zone, wanted - len(here))
        plan.give_up(_least_missed(here)[: max(0, len(here) - wanted)])


def _begin(plan: PoolPlan, members: Mapping[str, Member]) -> None:
    """Create the initial machines of an autoscaled pool."""
    wanted = plan.pool["spec"].get("nodeCount", 0)
    for zone in zones_of(plan.pool, plan.cluster):
        plan.make(zone, wanted - sum(member.zone == zone for member in members.values()))
    plan.set_condition(INITIALIZED, True, "MachinesAsked", "The machines the pool begins with were asked for")


def _least_missed(members: list[Member]) -> list[Member]:
    """Return the members in the order of deletion: failed ones first, then the newest."""
    newest = members[::-1]
    return sorted(newest, key=lambda member: member.phase != FAILED)


#: Condition: the slice is to be requested again when the machines of the broken one are gone.
RECREATING: Final = "Recreating"
#: An incomplete slice, caused by a lost write, is deleted after this time, since it may never be complete.
_TOGETHER_WITHIN: Final = MINUTE


def plan_slice(plan: PoolPlan, members: Mapping[str, Member], reader: Reader) -> None:
    """Keep the slice complete."""
    hosts = list(members.values())
    crashes = [host.since for host in hosts if host.phase == CRASHED]
    stops = [host.stops_at for host in hosts if host.stops_at is not None]
    if any(host.leaving for host in hosts):
        plan.give_up(hosts)
    elif crashes:
        _take_down(plan, hosts, min(crashes), reader)
    elif stops:
        _stop_together(plan, hosts, min(stops), reader)
    elif (parted_since := _parted_since(hosts)) is not None:
        _part(plan, hosts, parted_since + _TOGETHER_WITHIN)
    else:
        _ask_for_all(plan, hosts)


def _take_down(plan: PoolPlan, hosts: list[Member], crashed: Instant, reader: Reader) -> None:
    """Mark the whole slice as crashed since the first crash; after the repair time delete it."""
    repair = plan.repair_at(crashed)
    if repair > plan.now:
        plan.look_again(repair)
        status = {"phase": CRASHED, "since": format_time(crashed)}
        _write_status(plan, [host for host in hosts if host.phase != CRASHED], status, reader)
        return
    if is_autoscaled(plan.pool):
        plan.set_condition(RECREATING, True, "HostCrashed", "The slice is made anew, since a machine of it crashed")
    plan.give_up(hosts)


def _parted_since(hosts: list[Member]) -> Instant | None:
    """Return since when one host has a machine and another was refused one; None if no slice is split."""
    failed = [host for host in hosts if host.phase == FAILED]
    there = [host.since for host in hosts if host.phase not in {"", FAILED}]
    return max(there) if failed and there else None


def _part(plan: PoolPlan, hosts: list[Member], due: Instant) -> None:
    """Delete a slice that stays split."""
    if due > plan.now:
        plan.look_again(due)
    else:
        plan.give_up(hosts)


def _stop_together(plan: PoolPlan, hosts: list[Member], stop: Instant, reader: Reader) -> None:
    _write_status(plan, [host for host in hosts if host.stops_at != stop], {"stopAt": format_time(stop)}, reader)


def _ask_for_all(plan: PoolPlan, hosts: list[Member]) -> None:
    """Request the missing machines of a slice; set the conditions once all are requested."""
    if wants_itself(plan.pool, plan.hosts) and len(hosts) < plan.hosts:
        plan.make(zones_of(plan.pool, plan.cluster)[0], plan.hosts - len(hosts))
    elif is_autoscaled(plan.pool) and not plan.has_condition(INITIALIZED):
        plan.set_condition(INITIALIZED, True, "MachinesAsked", "The machines the pool begins with were asked for")
    elif plan.has_condition(RECREATING):
        plan.set_condition(RECREATING, False, "MachinesAsked", "The machines of the new slice were asked for")


def wants_itself(pool: Obj, hosts: int) -> bool:
    """Whether the pool requests its slice itself: always, initially, or after a crash."""
    if is_autoscaled(pool) and is_true(pool, INITIALIZED):
        return is_true(pool, RECREATING)
    count: int = pool["spec"].get("nodeCount", 0 if is_autoscaled(pool) else hosts)
    return count > 0


def _write_status(plan: PoolPlan, hosts: list[Member], fields: Mapping[str, str], reader: Reader) -> None:
    for host in hosts:
        instance = reader.get(host.key)
        if instance is not None:
            plan.rest.append(UpdateStatus(with_status(instance, {**(instance.get("status") or {}), **fields})))
