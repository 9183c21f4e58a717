"""Remaining capacity of the cloud, and the errors of requests that exceed it.

Capacity, reservations, quotas and placement groups come from the Cluster; usage is counted from existing machines.
Codes and messages are GCE's, as GKE's autoscaler recognizes them (kubernetes/autoscaler,
cloudprovider/gce/autoscaling_gce_client.go GetErrorInfo; GKE's pkg/backoff/future_reservations_backoff.go).
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

from batchyard.api.meta import Obj
from batchyard.api.times import format_time
from batchyard.base.instant import Instant
from batchyard.cloud.catalog.instances import begins_at, ends_at, find_reservation
from batchyard.cloud.catalog.machine_types import Catalog, MachineType
from batchyard.cloud.catalog.pools import has_its_accelerator, machine_of
from batchyard.cloud.catalog.prices import preparation

EXHAUSTED: Final = "ZONE_RESOURCE_POOL_EXHAUSTED"
QUOTA_EXCEEDED: Final = "QUOTA_EXCEEDED"
RESERVATION_NOT_FOUND: Final = "RESERVATION_NOT_FOUND"
RESERVATION_NOT_READY: Final = "RESERVATION_NOT_READY"
RESERVATION_INCOMPATIBLE: Final = "RESERVATION_INCOMPATIBLE"
RESERVATION_CAPACITY_EXCEEDED: Final = "RESERVATION_CAPACITY_EXCEEDED"
INVALID_MACHINE_TYPE: Final = "INVALID_MACHINE_TYPE"
INVALID_GPU_TYPE: Final = "INVALID_GPU_TYPE"
INVALID_ARGUMENT: Final = "INVALID_ARGUMENT"
CONDITION_NOT_MET: Final = "CONDITION_NOT_MET"
LIMIT_EXCEEDED: Final = "LIMIT_EXCEEDED"


class AllocationRefusal(NamedTuple):
    """The error of a request, and the time of the next try if known."""

    code: str
    message: str
    retry_at: Instant | None = None


class CapacityKey(NamedTuple):
    """Key of interchangeable machines: one pool, one zone."""

    pool: str
    zone: str
    machine_type: str
    provisioning: str


@dataclass(frozen=True, slots=True)
class MachineDemand:
    """What one machine of a slot takes from the cloud."""

    machine: MachineType
    zone: str
    provisioning: str
    reservation: str | None = None
    placement_group: str | None = None


def demand_of(slot: CapacityKey, pool: Obj | None, catalog: Catalog) -> MachineDemand:
    """Return what one machine of a slot takes; `pool` is the slot's, if it still exists."""
    if pool is None:
        return MachineDemand(catalog.machine(slot.machine_type), slot.zone, slot.provisioning)
    spec = pool["spec"]
    group, reservation = spec.get("placementGroup"), spec.get("reservation")
    return MachineDemand(machine_of(pool, catalog), slot.zone, slot.provisioning, reservation, group)


def invalid(slot: CapacityKey, pool: Obj, catalog: Catalog) -> AllocationRefusal | None:
    """Return the error of a slot with invalid parameters; None if they are valid."""
    if slot.machine_type not in catalog.machines:
        message = f"Invalid value for field 'machineType': '{slot.machine_type}'. There is no such machine type."
        return AllocationRefusal(INVALID_MACHINE_TYPE, message)
    if not has_its_accelerator(pool, catalog):
        accelerator = pool["spec"]["accelerator"]
        message = f"{accelerator['count']} {accelerator['type']} cannot be attached to {slot.machine_type}."
        return AllocationRefusal(INVALID_GPU_TYPE, message)
    return None


class CapacityPool:
    """The capacity in use, counted by demand, and checks against the limits."""

    def __init__(self, cluster: Obj, catalog: Catalog, now: Instant) -> None:
        self._cluster = cluster
        self._catalog = catalog
        self._now = now
        self._taken: dict[MachineDemand, int] = {}

    def take(self, demand: MachineDemand, count: int = 1) -> None:
        """Count `count` machines as used."""
        self._taken[demand] = self._taken.get(demand, 0) + count

    def refusal(self, demand: MachineDemand, count: int = 1) -> AllocationRefusal | None:
        """Return why `count` machines are refused; None if they are available."""
        return self.quota_refusal(demand, count) or self.capacity_refusal(demand, count)

    def quota_refusal(self, demand: MachineDemand, count: int = 1) -> AllocationRefusal | None:
        """Return the error if `count` more machines exceed a quota."""
        for quota in self._cluster["spec"].get("quotas") or ():
            name, limit = quota["name"], quota["limit"]
            wanted = count * _counted(name, demand)
            if wanted and wanted + sum(n * _counted(name, taken) for taken, n in self._taken.items()) > limit:
                region = self._cluster["spec"].get("region") or demand.zone.rpartition("-")[0]
                return AllocationRefusal(
                    QUOTA_EXCEEDED, f"Quota '{name}' exceeded.  Limit: {limit}.0 in region {region}."
                )
        return None

    def capacity_refusal(self, demand: MachineDemand, count: int = 1) -> AllocationRefusal | None:
        """Return the error if the cloud lacks capacity for `count` machines; None if it has it."""
        found = self._placement_refusal(demand, count)
        if found is not None:
            return found
        if demand.reservation is not None:
            return self._reservation_refusal(demand, demand.reservation, count)
        return self._exhaustion(demand, count)

    def _placement_refusal(self, demand: MachineDemand, count: int) -> AllocationRefusal | None:
        group = demand.placement_group
        if group is None:
            return None
        limit = self._catalog.family(demand.machine).placement_max
        if not limit:
            message = f"Machine family {demand.machine.family} does not support compact placement."
            return AllocationRefusal(CONDITION_NOT_MET, message)
        members = [taken for taken in self._taken if taken.placement_group == group]
        elsewhere = next((taken.zone for taken in members if taken.zone != demand.zone), None)
        if elsewhere is not None:
            message = f"Compact placement group {group} has its machines in zone {elsewhere}, not in {demand.zone}."
            return AllocationRefusal(CONDITION_NOT_MET, message)
        if count + sum(self._taken[taken] for taken in members) > limit:
            return AllocationRefusal(LIMIT_EXCEEDED, f"Compact placement group {group} holds at most {limit} machines.")
        return None

    def _reservation_refusal(self, demand: MachineDemand, name: str, count: int) -> AllocationRefusal | None:
        reservation = find_reservation(self._cluster, name)
        end = None if reservation is None else ends_at(self._cluster, reservation)
        if reservation is None or (end is not None and end <= self._now):
            return AllocationRefusal(RESERVATION_NOT_FOUND, f"Specified reservations [{name}] do not exist.")
        if (reservation["machineType"], reservation["zone"]) != (demand.machine.name, demand.zone):
            message = f"No available resources in specified reservations: [{name}] is of another machine type or zone."
            return AllocationRefusal(RESERVATION_INCOMPATIBLE, message)
        begin = begins_at(self._cluster, reservation)
        ahead = begin - preparation(demand.machine, self._cluster, self._catalog)
        if ahead > self._now:
            message = f"GCE future reservation [{name}] has not started yet, start time: {format_time(begin)}"
            return AllocationRefusal(RESERVATION_NOT_READY, message, ahead)
        if count + self._count(lambda taken: taken.reservation == name) > reservation["count"]:
            message = f"Specified reservation [{name}] does not have available resources for the request."
            return AllocationRefusal(RESERVATION_CAPACITY_EXCEEDED, message)
        return None

    def _exhaustion(self, demand: MachineDemand, count: int) -> AllocationRefusal | None:
        for row in _rows_for(demand, self._cluster):
            if count + self._count(partial(_is_of, row)) > row["count"]:
                zone = f"projects/{self._cluster['metadata']['name']}/zones/{demand.zone}"
                message = f"The zone '{zone}' does not have enough resources available to fulfill the request."
                return AllocationRefusal(EXHAUSTED, f"{message}  Try a different zone, or try again later.")
        return None

    def _count(self, counts: Callable[[MachineDemand], bool]) -> int:
        return sum(n for taken, n in self._taken.items() if counts(taken))


def _counted(quota: str, demand: MachineDemand) -> int:
    """Return what one machine counts against a quota: of cpus, an accelerator or its machine type."""
    machine = demand.machine
    if quota == "cpus":
        return machine.cpu_milli // 1000
    if machine.accelerator is not None and quota == machine.accelerator.type:
        return machine.accelerator.count
    return 1 if quota == machine.name else 0


def _rows_for(demand: MachineDemand, cluster: Obj) -> Iterator[Mapping[str, Any]]:
    """Return the capacity rows that limit a demand; without a row there is no limit."""
    return (row for row in cluster["spec"].get("capacity") or () if _is_of(row, demand))


def _is_of(row: Mapping[str, Any], demand: MachineDemand) -> bool:
    """Whether a row applies to a machine; reserved machines are counted separately."""
    if demand.reservation is not None or (row["machineType"], row["zone"]) != (demand.machine.name, demand.zone):
        return False
    return row.get("provisioning") in {None, demand.provisioning}
