"""Machine allocation: one pass over all pending requests, in order of creation.

A requested Instance gets a machine or fails at once. The Instances of a TPU slice get their machines together or fail
together. A ResizeRequest waits until all its machines are available; its Instances are then created and served first.
The autoscaler deletes failed Instances. In a pool without autoscaling they are retried when capacity is freed, as in a
managed instance group.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from batchyard.api import scheme
from batchyard.api.conditions import with_condition
from batchyard.api.meta import Key, Obj, with_status
from batchyard.api.times import parse_time
from batchyard.base.instant import Instant
from batchyard.cloud.capacity_index import CapacityIndex, slot_of
from batchyard.cloud.capacity_pool import (
    INVALID_ARGUMENT,
    AllocationRefusal,
    CapacityKey,
    CapacityPool,
    demand_of,
    invalid,
)
from batchyard.cloud.catalog.instances import FAILED, PROVISIONING, in_phase, is_leaving, new_instance, phase_of
from batchyard.cloud.catalog.machine_types import catalog_of
from batchyard.cloud.catalog.pools import hosts_of_slice, is_autoscaled, zones_of
from batchyard.cloud.cluster_objects import only_cluster
from batchyard.cloud.slices import wants_itself
from batchyard.interfaces.client import Create, Delete, Reader, UpdateStatus, WatchEvent, Write
from batchyard.interfaces.controller import ReconcileResult

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
