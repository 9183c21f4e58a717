"""Machine allocation in the simulated cloud: capacity, quotas and GCE's errors, and the controller that allocates.

A requested Instance gets a machine or fails at once. The Instances of a TPU slice get their machines together or fail
together. A ResizeRequest waits until all its machines are available; its Instances are then created and served first.
The autoscaler deletes failed Instances. In a pool without autoscaling they are retried when capacity is freed, as in a
managed instance group.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

from batchyard.api import scheme, well_known
from batchyard.api.meta import Key, Obj, annotation, with_condition, with_status
from batchyard.api.times import format_time, parse_time
from batchyard.base.instant import Instant
from batchyard.cloud.catalog import pool_properties
from batchyard.cloud.catalog.instances import (
    BOOTING,
    CRASHED,
    FAILED,
    PROVISIONING,
    RUNNING,
    STOPPING,
    find_reservation,
    is_being_deleted,
    new_instance,
    phase_of,
    reservation_end,
    reservation_start,
    with_phase,
)
from batchyard.cloud.catalog.machine_types import Catalog, MachineType, catalog_of
from batchyard.cloud.cluster_objects import find_cluster
from batchyard.cloud.slices import requests_own_slice
from batchyard.interfaces.client import Create, Delete, EventType, Reader, UpdateStatus, WatchEvent, Write
from batchyard.interfaces.controller import ReconcileResult

# The remaining capacity of the cloud, and the errors of requests that exceed it.
#
# Capacity, reservations, quotas and placement groups come from the Cluster; usage is counted from existing machines.
# Codes and messages are GCE's, as GKE's autoscaler recognizes them (kubernetes/autoscaler,
# cloudprovider/gce/autoscaling_gce_client.go GetErrorInfo; GKE's pkg/backoff/future_reservations_backoff.go).


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
    """GCE's error code and message for a refused machine request, and the time of the next attempt if known."""

    code: str
    message: str
    retry_at: Instant | None = None


class CapacityKey(NamedTuple):
    """The key by which machines in use are counted: node pool, zone, machine type and provisioning model."""

    pool: str
    zone: str
    machine_type: str
    provisioning: str


@dataclass(frozen=True, slots=True)
class MachineDemand:
    """The capacity that a machine uses: machine type, zone, provisioning model, reservation and placement group."""

    machine: MachineType
    zone: str
    provisioning: str
    reservation: str | None = None
    placement_group: str | None = None


def demand_of(key: CapacityKey, pool: Obj | None, catalog: Catalog) -> MachineDemand:
    """Return the capacity that one machine with this key uses; `pool` is its node pool, None if that was deleted."""
    if pool is None:
        return MachineDemand(catalog.machine(key.machine_type), key.zone, key.provisioning)
    spec = pool["spec"]
    group, reservation = spec.get("placementGroup"), spec.get("reservation")
    return MachineDemand(pool_properties.machine_of(pool, catalog), key.zone, key.provisioning, reservation, group)


def validation_refusal(key: CapacityKey, pool: Obj, catalog: Catalog) -> AllocationRefusal | None:
    """Return GCE's error for a machine request that can never succeed; None if the request is valid.

    A request is invalid if the machine type is unknown or cannot have the accelerators of the node pool.
    """
    if key.machine_type not in catalog.machines:
        message = f"Invalid value for field 'machineType': '{key.machine_type}'. There is no such machine type."
        return AllocationRefusal(INVALID_MACHINE_TYPE, message)
    if not pool_properties.has_specified_accelerator(pool, catalog):
        accelerator = pool["spec"]["accelerator"]
        message = f"{accelerator['count']} {accelerator['type']} cannot be attached to {key.machine_type}."
        return AllocationRefusal(INVALID_GPU_TYPE, message)
    return None


class CapacityPool:
    """Counts the capacity in use, and checks new machines against the Cluster's quotas, capacity and reservations."""

    def __init__(self, cluster: Obj, catalog: Catalog, now: Instant) -> None:
        self._cluster = cluster
        self._catalog = catalog
        self._now = now
        self._counts_by_demand: dict[MachineDemand, int] = {}

    def reserve(self, demand: MachineDemand, count: int = 1) -> None:
        """Reserve capacity for `count` more machines of one kind (`demand`)."""
        self._counts_by_demand[demand] = self._counts_by_demand.get(demand, 0) + count

    def refusal(self, demand: MachineDemand, count: int = 1) -> AllocationRefusal | None:
        """Return the result of `quota_refusal` for `count` more machines, or else that of `capacity_refusal`."""
        return self.quota_refusal(demand, count) or self.capacity_refusal(demand, count)

    def quota_refusal(self, demand: MachineDemand, count: int = 1) -> AllocationRefusal | None:
        """Return GCE's error if `count` more machines exceed a quota; otherwise None."""
        for quota in self._cluster["spec"].get("quotas") or ():
            name, quota_limit = quota["name"], quota["limit"]
            requested_amount = count * _quota_usage(name, demand)
            if (
                requested_amount
                and requested_amount
                + sum(n * _quota_usage(name, used_demand) for used_demand, n in self._counts_by_demand.items())
                > quota_limit
            ):
                region = self._cluster["spec"].get("region") or demand.zone.rpartition("-")[0]
                message = f"Quota '{name}' exceeded.  Limit: {quota_limit}.0 in region {region}."
                return AllocationRefusal(QUOTA_EXCEEDED, message)
        return None

    def capacity_refusal(self, demand: MachineDemand, count: int = 1) -> AllocationRefusal | None:
        """Return GCE's error if placement, reservation or capacity do not allow `count` more machines; else None."""
        refusal = self._placement_refusal(demand, count)
        if refusal is not None:
            return refusal
        if demand.reservation is not None:
            return self._reservation_refusal(demand, demand.reservation, count)
        return self._exhaustion_refusal(demand, count)

    def _placement_refusal(self, demand: MachineDemand, count: int) -> AllocationRefusal | None:
        group = demand.placement_group
        if group is None:
            return None
        limit = self._catalog.family(demand.machine).placement_max
        if not limit:
            message = f"Machine family {demand.machine.family} does not support compact placement."
            return AllocationRefusal(CONDITION_NOT_MET, message)
        group_members = [member for member in self._counts_by_demand if member.placement_group == group]
        other_zone = next((member.zone for member in group_members if member.zone != demand.zone), None)
        if other_zone is not None:
            message = f"Compact placement group {group} has its machines in zone {other_zone}, not in {demand.zone}."
            return AllocationRefusal(CONDITION_NOT_MET, message)
        if count + sum(self._counts_by_demand[member] for member in group_members) > limit:
            return AllocationRefusal(LIMIT_EXCEEDED, f"Compact placement group {group} holds at most {limit} machines.")
        return None

    def _reservation_refusal(self, demand: MachineDemand, name: str, count: int) -> AllocationRefusal | None:
        reservation = find_reservation(self._cluster, name)
        end = None if reservation is None else reservation_end(self._cluster, reservation)
        if reservation is None or (end is not None and end <= self._now):
            return AllocationRefusal(RESERVATION_NOT_FOUND, f"Specified reservations [{name}] do not exist.")
        if (reservation["machineType"], reservation["zone"]) != (demand.machine.name, demand.zone):
            message = f"No available resources in specified reservations: [{name}] is of another machine type or zone."
            return AllocationRefusal(RESERVATION_INCOMPATIBLE, message)
        begin = reservation_start(self._cluster, reservation)
        preparation_start = begin - pool_properties.preparation_time(demand.machine, self._cluster, self._catalog)
        if preparation_start > self._now:
            message = f"GCE future reservation [{name}] has not started yet, start time: {format_time(begin)}"
            return AllocationRefusal(RESERVATION_NOT_READY, message, preparation_start)
        if count + self._count_machines(lambda used_demand: used_demand.reservation == name) > reservation["count"]:
            message = f"Specified reservation [{name}] does not have available resources for the request."
            return AllocationRefusal(RESERVATION_CAPACITY_EXCEEDED, message)
        return None

    def _exhaustion_refusal(self, demand: MachineDemand, count: int) -> AllocationRefusal | None:
        for row in _capacity_rows(demand, self._cluster):
            if count + self._count_machines(partial(_capacity_row_applies_to, row)) > row["count"]:
                zone_path = f"projects/{self._cluster['metadata']['name']}/zones/{demand.zone}"
                message = f"The zone '{zone_path}' does not have enough resources available to fulfill the request."
                return AllocationRefusal(EXHAUSTED, f"{message}  Try a different zone, or try again later.")
        return None

    def _count_machines(self, matches_demand: Callable[[MachineDemand], bool]) -> int:
        return sum(n for used_demand, n in self._counts_by_demand.items() if matches_demand(used_demand))


def _quota_usage(quota_name: str, demand: MachineDemand) -> int:
    """Return how much of a quota one machine uses; the quota is `cpus`, an accelerator type or a machine type."""
    machine = demand.machine
    if quota_name == "cpus":
        return machine.cpu_milli // 1000
    if machine.accelerator is not None and quota_name == machine.accelerator.type:
        return machine.accelerator.count
    return 1 if quota_name == machine.name else 0


def _capacity_rows(demand: MachineDemand, cluster: Obj) -> Iterator[Mapping[str, Any]]:
    return (row for row in cluster["spec"].get("capacity") or () if _capacity_row_applies_to(row, demand))


def _capacity_row_applies_to(row: Mapping[str, Any], demand: MachineDemand) -> bool:
    if demand.reservation is not None or (row["machineType"], row["zone"]) != (demand.machine.name, demand.zone):
        return False
    return row.get("provisioning") in {None, demand.provisioning}


# Index of machines in use and of pending requests, from watch events of Instances and ResizeRequests.


#: The phases in which an Instance uses capacity; a crashed Instance does so until it is deleted.
_IN_USE_PHASES: Final = frozenset({PROVISIONING, BOOTING, RUNNING, STOPPING, CRASHED})
_OPEN_STATES: Final = frozenset({"", "ACCEPTED"})


class CapacityIndex:
    """An index of machines in use, Instances without a machine, and open ResizeRequests; watch events update it."""

    def __init__(self) -> None:
        self._key_by_instance: dict[str, CapacityKey] = {}
        self._machine_counts: dict[CapacityKey, int] = {}
        self._pool_by_pending_instance: dict[str, str] = {}
        self._open_requests: dict[str, None] = {}
        self._phases_by_request: dict[str, dict[str, str]] = {}

    @property
    def machine_counts(self) -> Mapping[CapacityKey, int]:
        """The number of machines in use, by capacity key (pool, zone, machine type, provisioning model)."""
        return self._machine_counts

    @property
    def pending_instances(self) -> Mapping[str, str]:
        """The node pools of Instances without a machine, by Instance name; failed Instances are included."""
        return self._pool_by_pending_instance

    @property
    def open_resize_requests(self) -> Sequence[str]:
        """The names of the ResizeRequests that have neither succeeded nor failed."""
        return tuple(self._open_requests)

    def instance_phases(self, request_uid: str) -> Mapping[str, str]:
        """Return the phases of the Instances that the ResizeRequest with this uid created, by Instance name."""
        return self._phases_by_request.get(request_uid) or {}

    def machine_count_in_pool(self, pool: str) -> int:
        """Return the number of machines in use in a node pool."""
        return sum(count for capacity_key, count in self._machine_counts.items() if capacity_key.pool == pool)

    def observe(self, event: WatchEvent) -> bool:
        """Update the index from a watch event; return whether a pending request may now make progress."""
        if event.key.kind == scheme.INSTANCE:
            may_allow_allocation = self._observe_instance(event)
        elif event.key.kind == scheme.RESIZE_REQUEST:
            may_allow_allocation = self._observe_resize_request(event)
        else:
            may_allow_allocation = event.old is None or event.old["spec"] != event.obj["spec"]
        return may_allow_allocation and bool(self._pool_by_pending_instance or self._open_requests)

    def _observe_instance(self, event: WatchEvent) -> bool:
        name, instance = event.key.name, event.obj
        is_deleted = event.type is EventType.DELETED
        phase, capacity_key = phase_of(instance), capacity_key_of(instance)
        is_pending = not is_deleted and not is_being_deleted(instance) and phase in {"", FAILED}
        has_released = self._count_machine(name, None if is_deleted or not _uses_capacity(instance) else capacity_key)
        is_newly_pending = is_pending and name not in self._pool_by_pending_instance
        if is_pending:
            self._pool_by_pending_instance[name] = capacity_key.pool
        else:
            self._pool_by_pending_instance.pop(name, None)
        return self._record_request_phase(instance, is_deleted) or has_released or is_newly_pending

    def _count_machine(self, name: str, capacity_key: CapacityKey | None) -> bool:
        """Count a machine under its new capacity key (None: not in use); return whether it left an earlier key."""
        previous_key = self._key_by_instance.get(name)
        if previous_key == capacity_key:
            return False
        if previous_key is not None:
            self._machine_counts[previous_key] -= 1
            if not self._machine_counts[previous_key]:
                del self._machine_counts[previous_key]
            del self._key_by_instance[name]
        if capacity_key is not None:
            self._key_by_instance[name] = capacity_key
            self._machine_counts[capacity_key] = self._machine_counts.get(capacity_key, 0) + 1
        return previous_key is not None

    def _record_request_phase(self, instance: Obj, is_deleted: bool) -> bool:
        request = annotation(instance, well_known.RESIZE_REQUEST_UID)
        if request is None:
            return False
        phases_by_instance = self._phases_by_request.setdefault(request, {})
        if is_deleted:
            phases_by_instance.pop(instance["metadata"]["name"], None)
        else:
            phases_by_instance[instance["metadata"]["name"]] = phase_of(instance)
        if not phases_by_instance:
            del self._phases_by_request[request]
        return True

    def _observe_resize_request(self, event: WatchEvent) -> bool:
        name, request_state = event.key.name, (event.obj.get("status") or {}).get("state") or ""
        is_new_request = name not in self._open_requests
        if event.type is not EventType.DELETED and request_state in _OPEN_STATES:
            self._open_requests[name] = None
            return is_new_request
        self._open_requests.pop(name, None)
        return False


def capacity_key_of(instance: Obj) -> CapacityKey:
    """Return the key under which an Instance's machine is counted: pool, zone, machine type, provisioning model."""
    spec = instance["spec"]
    return CapacityKey(spec["pool"], spec["zone"], spec["machineType"], spec.get("provisioning", "standard"))


def _uses_capacity(instance: Obj) -> bool:
    phase = phase_of(instance)
    return phase in _IN_USE_PHASES and not (phase == CRASHED and is_being_deleted(instance))


ACCEPTED: Final = "ACCEPTED"
SUCCEEDED: Final = "SUCCEEDED"
FAILED_STATE: Final = "FAILED"
_PROVISIONED_CONDITION: Final = "Provisioned"


class MachineRequest(NamedTuple):
    """A pending request for machines: Instances that are allocated together, or a ResizeRequest."""

    sort_key: tuple[int, Instant, str]
    instances: Sequence[Obj]
    request: Obj | None


class Allocation:
    """One pass over all pending machine requests, which collects writes and tracks the remaining capacity."""

    def __init__(self, index: CapacityIndex, reader: Reader, cluster: Obj, now: Instant) -> None:
        self.writes: list[Write] = []
        self.retry_at: Instant | None = None
        self._index = index
        self._reader = reader
        self._cluster = cluster
        self._now = now
        self._catalog = catalog_of(cluster)
        self._capacity = CapacityPool(cluster, self._catalog, now)
        for capacity_key, count in index.machine_counts.items():
            self._capacity.reserve(demand_of(capacity_key, self._find_pool(capacity_key.pool), self._catalog), count)

    def run(self) -> None:
        """Grant, refuse or postpone the pending requests in order, and add the resulting writes to `writes`."""
        for pending_request in sorted(self._pending_requests(), key=lambda pending_request: pending_request.sort_key):
            if pending_request.request is not None:
                self._serve_resize_request(pending_request.request)
            else:
                self._serve_instances(pending_request.instances)

    def _pending_requests(self) -> Iterator[MachineRequest]:
        instances_by_slice_pool: dict[str, list[Obj]] = {}
        for name, pool_name in self._index.pending_instances.items():
            pool, instance = self._find_pool(pool_name), self._reader.get(Key(scheme.INSTANCE, "", name))
            if pool is None or instance is None or not _needs_machine(instance, pool):
                continue
            if pool_properties.slice_host_count(pool, self._catalog) > 1:
                instances_by_slice_pool.setdefault(pool_name, []).append(instance)
            else:
                yield MachineRequest(_sort_key(instance), (instance,), None)
        for name, hosts in instances_by_slice_pool.items():
            if not self._is_slice_growing(name, len(hosts)):
                yield MachineRequest(min(map(_sort_key, hosts)), hosts, None)
        for name in self._index.open_resize_requests:
            request = self._reader.get(Key(scheme.RESIZE_REQUEST, "", name))
            if request is not None:
                yield MachineRequest(_sort_key(request), (), request)

    def _is_slice_growing(self, pool_name: str, pending_count: int) -> bool:
        pool = self._find_pool(pool_name)
        host_count = 1 if pool is None else pool_properties.slice_host_count(pool, self._catalog)
        if pool is None or pending_count + self._index.machine_count_in_pool(pool_name) >= host_count:
            return False
        return pool_properties.is_autoscaled(pool) or requests_own_slice(pool, host_count)

    def _find_pool(self, name: str) -> Obj | None:
        return self._reader.get(Key(scheme.NODE_POOL, "", name))

    # --- Instances ---

    def _serve_instances(self, instances: Sequence[Obj]) -> None:
        capacity_key = capacity_key_of(instances[0])
        pool = self._find_pool(capacity_key.pool)
        assert pool is not None, "_pending_requests yields only Instances with a pool"
        refusal = self._refusal_for(capacity_key, pool, instances)
        if refusal is None:
            self._capacity.reserve(demand_of(capacity_key, pool, self._catalog), len(instances))
            self.writes += [UpdateStatus(with_phase(instance, PROVISIONING, self._now)) for instance in instances]
            return
        if not pool_properties.is_autoscaled(pool):
            self._retry_after_refusal(refusal)
        for instance in instances:
            self._fail_instance(instance, refusal)

    def _refusal_for(self, key: CapacityKey, pool: Obj, instances: Sequence[Obj]) -> AllocationRefusal | None:
        host_count = pool_properties.slice_host_count(pool, self._catalog)
        existing_count = self._index.machine_count_in_pool(key.pool)
        has_mixed_instances = any(capacity_key_of(instance) != key for instance in instances)
        if host_count > 1 and (len(instances) + existing_count != host_count or has_mixed_instances):
            message = (
                f"A slice of {pool['spec']['tpuTopology']} requires {host_count} machines of one type in one zone."
            )
            return AllocationRefusal(INVALID_ARGUMENT, message)
        machine_demand = demand_of(key, pool, self._catalog)
        return validation_refusal(key, pool, self._catalog) or self._capacity.refusal(machine_demand, len(instances))

    def _fail_instance(self, instance: Obj, refusal: AllocationRefusal) -> None:
        error = _status_error(refusal)
        if phase_of(instance) != FAILED or instance["status"].get("error") != error:
            self.writes.append(UpdateStatus(with_phase(instance, FAILED, self._now, error=error)))

    def _retry_after_refusal(self, refusal: AllocationRefusal) -> None:
        if refusal.retry_at is not None:
            self.retry_at = min(refusal.retry_at, self.retry_at or refusal.retry_at)

    # --- ResizeRequests ---

    def _serve_resize_request(self, request: Obj) -> None:
        """Create the Instances of a ResizeRequest once all fit, and set it to SUCCEEDED when all have machines.

        If one of its Instances failed, delete all of them and set the ResizeRequest to FAILED.
        """
        phases_by_instance = self._index.instance_phases(request["metadata"]["uid"])
        missing_count = request["spec"]["count"] - len(phases_by_instance)
        failed_name = next((name for name, phase in phases_by_instance.items() if phase == FAILED), None)
        if failed_name is not None:
            self.writes += [Delete(Key(scheme.INSTANCE, "", name)) for name in phases_by_instance]
            self._set_request_state(request, FAILED_STATE, self._refusal_of_instance(failed_name))
        elif missing_count > 0:
            self._create_missing_instances(request, missing_count)
        elif all(phase not in {"", PROVISIONING} for phase in phases_by_instance.values()):
            self._set_request_state(request, SUCCEEDED, None)

    def _create_missing_instances(self, request: Obj, count: int) -> None:
        spec = request["spec"]
        pool = self._find_pool(spec["pool"])
        if pool is None or spec["zone"] not in pool_properties.zones_of(pool, self._cluster):
            message = f"There is no node pool {spec['pool']} in zone {spec['zone']}."
            self._set_request_state(request, FAILED_STATE, AllocationRefusal(INVALID_ARGUMENT, message))
            return
        instance = new_instance(pool, spec["zone"], self._cluster, resize_request=request)
        capacity_key = capacity_key_of(instance)
        machine_demand = demand_of(capacity_key, pool, self._catalog)
        permanent_refusal = validation_refusal(capacity_key, pool, self._catalog)
        capacity_shortage = self._capacity.capacity_refusal(machine_demand, count)
        if permanent_refusal is None and capacity_shortage is not None:
            self._retry_after_refusal(capacity_shortage)
            self._set_request_state(request, ACCEPTED, capacity_shortage)
            return
        permanent_refusal = permanent_refusal or self._capacity.quota_refusal(machine_demand, count)
        if permanent_refusal is not None:
            self._set_request_state(request, FAILED_STATE, permanent_refusal)
            return
        self._capacity.reserve(machine_demand, count)
        self.writes += [Create(instance)] * count
        self._set_request_state(request, ACCEPTED, None)

    def _refusal_of_instance(self, instance_name: str) -> AllocationRefusal | None:
        instance = self._reader.get(Key(scheme.INSTANCE, "", instance_name))
        error = None if instance is None else instance["status"].get("error")
        return None if error is None else AllocationRefusal(error["code"], error["message"])

    def _set_request_state(self, request: Obj, state: str, error: AllocationRefusal | None) -> None:
        old_status = request.get("status") or {}
        conditions = with_condition(
            old_status.get("conditions") or [],
            type=_PROVISIONED_CONDITION,
            status=state == SUCCEEDED,
            reason=state if error is None else error.code,
            message="" if error is None else error.message,
            now=self._now,
        )
        status = {**old_status, "state": state, "conditions": conditions}
        if state == FAILED_STATE and error is not None:
            status["error"] = _status_error(error)
        if status != old_status:
            self.writes.append(UpdateStatus(with_status(request, status)))


def _needs_machine(instance: Obj, pool: Obj) -> bool:
    phase = phase_of(instance)
    return not is_being_deleted(instance) and (
        not phase or (phase == FAILED and not pool_properties.is_autoscaled(pool))
    )


def _sort_key(obj: Obj) -> tuple[int, Instant, str]:
    metadata = obj["metadata"]
    return (0 if "resizeRequest" in obj["spec"] else 1, parse_time(metadata["creationTimestamp"]), metadata["name"])


def _status_error(refusal: AllocationRefusal) -> dict[str, str]:
    return {"code": refusal.code, "message": refusal.message}


# The capacity controller handles all requests in one pass, so that no machine is allocated twice.


#: One key for all requests: the runner reconciles a key again only after its previous writes are visible.
_ALL_REQUESTS: Final = Key(scheme.CLUSTER, "", "")


class CapacityController:
    """The controller that allocates cloud machines to Instances and ResizeRequests, or refuses them."""

    name = "cloud-capacity"
    rank = 0
    kinds = (scheme.INSTANCE, scheme.RESIZE_REQUEST, scheme.NODE_POOL, scheme.CLUSTER)

    def __init__(self) -> None:
        self._index = CapacityIndex()

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """Update the index; return the one key for all requests if a pending request may now succeed, or nothing."""
        return (_ALL_REQUESTS,) if self._index.observe(event) else ()

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Try to allocate machines to all pending Instances and ResizeRequests in one pass."""
        cluster = find_cluster(reader)
        if cluster is None:
            return ReconcileResult()
        allocation = Allocation(self._index, reader, cluster, now)
        allocation.run()
        return ReconcileResult(allocation.writes, requeue_at=allocation.retry_at)
