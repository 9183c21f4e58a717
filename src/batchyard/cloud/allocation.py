"""Machine allocation: one pass over all pending requests, in order of creation.

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
from batchyard.cloud.catalog.instances import (
    BOOTING,
    CRASHED,
    FAILED,
    PROVISIONING,
    RUNNING,
    STOPPING,
    begins_at,
    ends_at,
    find_reservation,
    in_phase,
    is_leaving,
    new_instance,
    phase_of,
)
from batchyard.cloud.catalog.machine_types import Catalog, MachineType, catalog_of
from batchyard.cloud.catalog.prices import (
    has_its_accelerator,
    hosts_of_slice,
    is_autoscaled,
    machine_of,
    preparation,
    zones_of,
)
from batchyard.cloud.cluster_objects import only_cluster
from batchyard.cloud.slices import wants_itself
from batchyard.interfaces.client import Create, Delete, EventType, Reader, UpdateStatus, WatchEvent, Write
from batchyard.interfaces.controller import ReconcileResult

# --- capacity pool ---
#
# Remaining capacity of the cloud, and the errors of requests that exceed it.
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


# --- capacity index ---
#
# Index of machines in use and of pending requests, from watch events of Instances and ResizeRequests.


#: The phases with a machine; a crashed Instance keeps its place until it is deleted.
_IN_USE: Final = frozenset({PROVISIONING, BOOTING, RUNNING, STOPPING, CRASHED})
_OPEN: Final = frozenset({"", "ACCEPTED"})


class CapacityIndex:
    """Machines in use by slot; pending Instances and ResizeRequests."""

    def __init__(self) -> None:
        self._held: dict[str, CapacityKey] = {}
        self._counts: dict[CapacityKey, int] = {}
        self._pending: dict[str, str] = {}
        self._requests: dict[str, None] = {}
        self._of_request: dict[str, dict[str, str]] = {}

    @property
    def in_use(self) -> Mapping[CapacityKey, int]:
        """The number of machines in use by slot."""
        return self._counts

    @property
    def pending(self) -> Mapping[str, str]:
        """The names of Instances without a machine, failed ones included, with their pools."""
        return self._pending

    @property
    def requests(self) -> Sequence[str]:
        """The names of open ResizeRequests."""
        return tuple(self._requests)

    def of_request(self, uid: str) -> Mapping[str, str]:
        """Return the phases of a ResizeRequest's Instances, by name."""
        return self._of_request.get(uid) or {}

    def hosts_in(self, pool: str) -> int:
        """Return how many machines of a pool are in use."""
        return sum(count for slot, count in self._counts.items() if slot.pool == pool)

    def note(self, event: WatchEvent) -> bool:
        """Apply a watch event; return whether it may help a pending request."""
        if event.key.kind == scheme.INSTANCE:
            helps = self._note_instance(event)
        elif event.key.kind == scheme.RESIZE_REQUEST:
            helps = self._note_request(event)
        else:
            helps = event.old is None or event.old["spec"] != event.obj["spec"]
        return helps and bool(self._pending or self._requests)

    def _note_instance(self, event: WatchEvent) -> bool:
        name, instance = event.key.name, event.obj
        gone = event.type is EventType.DELETED
        phase, slot = phase_of(instance), slot_of(instance)
        is_pending = not gone and not is_leaving(instance) and phase in {"", FAILED}
        freed = self._note_held(name, None if gone or not _holds(instance) else slot)
        new = is_pending and name not in self._pending
        if is_pending:
            self._pending[name] = slot.pool
        else:
            self._pending.pop(name, None)
        return self._note_of_request(instance, gone) or freed or new

    def _note_held(self, name: str, slot: CapacityKey | None) -> bool:
        """Count a machine in its current slot; return whether its previous place is free."""
        before = self._held.get(name)
        if before == slot:
            return False
        if before is not None:
            self._counts[before] -= 1
            if not self._counts[before]:
                del self._counts[before]
            del self._held[name]
        if slot is not None:
            self._held[name] = slot
            self._counts[slot] = self._counts.get(slot, 0) + 1
        return before is not None

    def _note_of_request(self, instance: Obj, gone: bool) -> bool:
        """Record the phase of a ResizeRequest's Instance; return whether it belongs to one."""
        request = annotation(instance, well_known.RESIZE_REQUEST_UID)
        if request is None:
            return False
        phases = self._of_request.setdefault(request, {})
        if gone:
            phases.pop(instance["metadata"]["name"], None)
        else:
            phases[instance["metadata"]["name"]] = phase_of(instance)
        if not phases:
            del self._of_request[request]
        return True

    def _note_request(self, event: WatchEvent) -> bool:
        """Keep a ResizeRequest while it is open; return whether it is new."""
        name, state = event.key.name, (event.obj.get("status") or {}).get("state") or ""
        new = name not in self._requests
        if event.type is not EventType.DELETED and state in _OPEN:
            self._requests[name] = None
            return new
        self._requests.pop(name, None)
        return False


def slot_of(instance: Obj) -> CapacityKey:
    """Return the slot of an Instance."""
    spec = instance["spec"]
    return CapacityKey(spec["pool"], spec["zone"], spec["machineType"], spec.get("provisioning", "standard"))


def _holds(instance: Obj) -> bool:
    """Whether the Instance occupies capacity. A crashed one that is being deleted does not."""
    phase = phase_of(instance)
    return phase in _IN_USE and not (phase == CRASHED and is_leaving(instance))


ACCEPTED: Final = "ACCEPTED"
SUCCEEDED: Final = "SUCCEEDED"
FAILED_STATE: Final = "FAILED"
_PROVISIONED: Final = "Provisioned"


class MachineRequest(NamedTuple):
    """A request for machines: Instances that are served together, or a ResizeRequest."""

    turn: tuple[int, Instant, str]
    instances: Sequence[Obj]
    request: Obj | None


class Allocation:
    """One pass: the remaining capacity, and the writes."""

    def __init__(self, index: CapacityIndex, reader: Reader, cluster: Obj, now: Instant) -> None:
        self.writes: list[Write] = []
        self.retry_at: Instant | None = None
        self._index = index
        self._reader = reader
        self._cluster = cluster
        self._now = now
        self._catalog = catalog_of(cluster)
        self._stock = CapacityPool(cluster, self._catalog, now)
        for slot, count in index.in_use.items():
            self._stock.take(demand_of(slot, self._pool(slot.pool), self._catalog), count)

    def run(self) -> None:
        """Serve all pending requests."""
        for ask in sorted(self._pending_requests(), key=lambda ask: ask.turn):
            if ask.request is not None:
                self._serve_request(ask.request)
            else:
                self._serve(ask.instances)

    def _pending_requests(self) -> Iterator[MachineRequest]:
        """Yield the requests that may be served; a slice is one request."""
        slices: dict[str, list[Obj]] = {}
        for name, pool_name in self._index.pending.items():
            pool, instance = self._pool(pool_name), self._reader.get(Key(scheme.INSTANCE, "", name))
            if pool is None or instance is None or not _may_be_served(instance, pool):
                continue
            if hosts_of_slice(pool, self._catalog) > 1:
                slices.setdefault(pool_name, []).append(instance)
            else:
                yield MachineRequest(_turn(instance), (instance,), None)
        for name, hosts in slices.items():
            if not self._is_growing(name, len(hosts)):
                yield MachineRequest(min(map(_turn, hosts)), hosts, None)
        for name in self._index.requests:
            request = self._reader.get(Key(scheme.RESIZE_REQUEST, "", name))
            if request is not None:
                yield MachineRequest(_turn(request), (), request)

    def _is_growing(self, name: str, pending: int) -> bool:
        """Whether the autoscaler or the pool will still create further Instances of a slice."""
        pool = self._pool(name)
        hosts = 1 if pool is None else hosts_of_slice(pool, self._catalog)
        if pool is None or pending + self._index.hosts_in(name) >= hosts:
            return False
        return is_autoscaled(pool) or wants_itself(pool, hosts)

    def _pool(self, name: str) -> Obj | None:
        return self._reader.get(Key(scheme.NODE_POOL, "", name))

    # --- Instances ---

    def _serve(self, instances: Sequence[Obj]) -> None:
        """Allocate machines to Instances that are served together, or fail them."""
        slot = slot_of(instances[0])
        pool = self._pool(slot.pool)
        assert pool is not None, "a served Instance has a pool"
        refusal = self._refusal(slot, pool, instances)
        if refusal is None:
            self._stock.take(demand_of(slot, pool, self._catalog), len(instances))
            self.writes += [UpdateStatus(in_phase(instance, PROVISIONING, self._now)) for instance in instances]
            return
        if not is_autoscaled(pool):
            self._wait_for(refusal)
        for instance in instances:
            self._fail(instance, refusal)

    def _refusal(self, slot: CapacityKey, pool: Obj, instances: Sequence[Obj]) -> AllocationRefusal | None:
        hosts, there = hosts_of_slice(pool, self._catalog), self._index.hosts_in(slot.pool)
        if hosts > 1 and (len(instances) + there != hosts or any(slot_of(other) != slot for other in instances)):
            message = f"A slice of {pool['spec']['tpuTopology']} has {hosts} machines in one zone, all or none of them."
            return AllocationRefusal(INVALID_ARGUMENT, message)
        demand = demand_of(slot, pool, self._catalog)
        return invalid(slot, pool, self._catalog) or self._stock.refusal(demand, len(instances))

    def _fail(self, instance: Obj, refusal: AllocationRefusal) -> None:
        error = _error(refusal)
        if phase_of(instance) != FAILED or instance["status"].get("error") != error:
            self.writes.append(UpdateStatus(in_phase(instance, FAILED, self._now, error=error)))

    def _wait_for(self, refusal: AllocationRefusal) -> None:
        """Retry when the refusal expires, if that is known."""
        if refusal.retry_at is not None:
            self.retry_at = min(refusal.retry_at, self.retry_at or refusal.retry_at)

    # --- ResizeRequests ---

    def _serve_request(self, request: Obj) -> None:
        """Advance a ResizeRequest: accept it, create its Instances when they all fit, report success at the end."""
        phases = self._index.of_request(request["metadata"]["uid"])
        missing = request["spec"]["count"] - len(phases)
        failed = next((name for name, phase in phases.items() if phase == FAILED), None)
        if failed is not None:
            self.writes += [Delete(Key(scheme.INSTANCE, "", name)) for name in phases]
            self._set_state(request, FAILED_STATE, self._refusal_of(failed))
        elif missing > 0:
            self._serve_missing(request, missing)
        elif all(phase not in {"", PROVISIONING} for phase in phases.values()):
            self._set_state(request, SUCCEEDED, None)

    def _serve_missing(self, request: Obj, count: int) -> None:
        """Create `count` Instances if all can be allocated now; wait for capacity, but fail permanent errors."""
        spec = request["spec"]
        pool = self._pool(spec["pool"])
        if pool is None or spec["zone"] not in zones_of(pool, self._cluster):
            message = f"There is no node pool {spec['pool']} in zone {spec['zone']}."
            self._set_state(request, FAILED_STATE, AllocationRefusal(INVALID_ARGUMENT, message))
            return
        instance = new_instance(pool, spec["zone"], self._cluster, resize_request=request)
        slot = slot_of(instance)
        demand = demand_of(slot, pool, self._catalog)
        never, shortage = invalid(slot, pool, self._catalog), self._stock.capacity_refusal(demand, count)
        if never is None and shortage is not None:
            self._wait_for(shortage)
            self._set_state(request, ACCEPTED, shortage)
            return
        never = never or self._stock.quota_refusal(demand, count)
        if never is not None:
            self._set_state(request, FAILED_STATE, never)
            return
        self._stock.take(demand, count)
        self.writes += [Create(instance)] * count
        self._set_state(request, ACCEPTED, None)

    def _refusal_of(self, name: str) -> AllocationRefusal | None:
        """Return why an Instance failed."""
        instance = self._reader.get(Key(scheme.INSTANCE, "", name))
        error = None if instance is None else instance["status"].get("error")
        return None if error is None else AllocationRefusal(error["code"], error["message"])

    def _set_state(self, request: Obj, state: str, why_not: AllocationRefusal | None) -> None:
        """Write the state of a ResizeRequest, if it changed."""
        old = request.get("status") or {}
        conditions = with_condition(
            old.get("conditions") or [],
            type=_PROVISIONED,
            status=state == SUCCEEDED,
            reason=state if why_not is None else why_not.code,
            message="" if why_not is None else why_not.message,
            now=self._now,
        )
        status = {**old, "state": state, "conditions": conditions}
        if state == FAILED_STATE and why_not is not None:
            status["error"] = _error(why_not)
        if status != old:
            self.writes.append(UpdateStatus(with_status(request, status)))


def _may_be_served(instance: Obj, pool: Obj) -> bool:
    """Whether an Instance still needs a machine."""
    phase = phase_of(instance)
    return not is_leaving(instance) and (not phase or (phase == FAILED and not is_autoscaled(pool)))


def _turn(obj: Obj) -> tuple[int, Instant, str]:
    """Sort key of a request. Instances of a ResizeRequest come first: it has waited for their machines."""
    metadata = obj["metadata"]
    return (0 if "resizeRequest" in obj["spec"] else 1, parse_time(metadata["creationTimestamp"]), metadata["name"])


def _error(refusal: AllocationRefusal) -> dict[str, str]:
    """Format a refusal as the error in an object's status."""
    return {"code": refusal.code, "message": refusal.message}


# --- capacity ---
#
# Capacity controller: handles all requests in one pass, so that no machine is allocated twice.


#: One key for all requests: the runner reconciles a key again only after its previous writes are visible.
_ALL_REQUESTS: Final = Key(scheme.CLUSTER, "", "")


class CapacityController:
    """Allocates machines to Instances and ResizeRequests."""

    name = "cloud-capacity"
    rank = 0
    kinds = (scheme.INSTANCE, scheme.RESIZE_REQUEST, scheme.NODE_POOL, scheme.CLUSTER)

    def __init__(self) -> None:
        self._index = CapacityIndex()

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """Return the common key if the change may help a pending request."""
        return (_ALL_REQUESTS,) if self._index.note(event) else ()

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Serve all pending requests."""
        cluster = only_cluster(reader)
        if cluster is None:
            return ReconcileResult()
        allocation = Allocation(self._index, reader, cluster, now)
        allocation.run()
        return ReconcileResult(allocation.writes, requeue_at=allocation.retry_at)
