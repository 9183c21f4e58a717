"""The simulated cloud as a set of controllers, which run beside those of the platform."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from batchyard.api import scheme, well_known
from batchyard.api.meta import (
    Key,
    Obj,
    annotation,
    label,
    with_finalizer,
    with_metadata,
    with_path,
    with_status,
    without_finalizer,
)
from batchyard.api.times import format_time, parse_time
from batchyard.base import triangular
from batchyard.base.instant import Duration, Instant, parse_duration
from batchyard.cloud.allocation import CapacityController
from batchyard.cloud.catalog.instances import (
    BOOTING,
    NOTICE,
    PROVISIONING,
    RUNNING,
    STOPPING,
    begins_at,
    ends_at,
    find_reservation,
    in_phase,
    is_leaving,
    is_off,
    phase_of,
    since,
    stops_at,
)
from batchyard.cloud.catalog.machine_types import catalog_of
from batchyard.cloud.catalog.nodes import awaits_drivers, made_ready, registered_node
from batchyard.cloud.catalog.prices import machine_of, step_duration
from batchyard.cloud.cluster_objects import only_cluster
from batchyard.cloud.slices import PoolMembers, PoolPlan, plan_machines, plan_slice
from batchyard.interfaces.client import Create, Delete, Reader, Update, UpdateStatus, WatchEvent, Write
from batchyard.interfaces.controller import Controller, EventRecord, ReconcileResult

# --- instances ---
#
# Machine lifecycle: it boots, its Node registers and becomes ready, it gets a stop notice and is switched off.
#
# Step durations are drawn from the seed and the machine's name. A Node is deleted with its machine, as by Kubernetes'
# cloud node lifecycle controller. All state is in the Instance, so a restart loses nothing.


class Instances:
    """Moves every machine through its phases."""

    name = "cloud-instances"
    rank = 0
    kinds = (scheme.INSTANCE,)

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """Return the key of the Instance."""
        return (event.key,)

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Execute the step that is due, or wait for it."""
        instance, cluster = reader.get(key), only_cluster(reader)
        node = reader.get(Key(scheme.NODE, "", key.name))
        if instance is None:
            return ReconcileResult(_removal(node))
        if cluster is None:
            return ReconcileResult()
        pool = reader.get(Key(scheme.NODE_POOL, "", instance["spec"]["pool"]))
        return _Machine(instance, node, pool, cluster, self._seed).step(now)


def _removal(node: Obj | None) -> list[Write]:
    """Return the deletion of a machine's Node."""
    is_ours = node is not None and label(node, well_known.NODE_POOL) is not None
    return [Delete(Key(scheme.NODE, "", node["metadata"]["name"]))] if node is not None and is_ours else []


@dataclass(frozen=True, slots=True)
class _Machine:
    """An Instance with its Node, pool and Cluster."""

    instance: Obj
    node: Obj | None
    pool: Obj | None
    cluster: Obj
    seed: int

    def step(self, now: Instant) -> ReconcileResult:
        """Return the writes that are due, or the time of the next step."""
        if is_leaving(self.instance):
            return self._leave(now)
        phase, stop = phase_of(self.instance), stops_at(self.instance)
        if phase in {PROVISIONING, BOOTING}:
            stop = _first(stop, self._reservation_end())
        if stop is not None and stop <= now:
            key = Key(scheme.INSTANCE, "", self.instance["metadata"]["name"])
            return ReconcileResult([Delete(key, uid=self.instance["metadata"].get("uid"))])
        if phase == PROVISIONING:
            return self._boot(now, stop)
        if phase == BOOTING:
            return self._register(now, stop)
        return self._run(now, stop) if phase == RUNNING else ReconcileResult(requeue_at=stop)

    def _boot(self, now: Instant, stop: Instant | None) -> ReconcileResult:
        due = since(self.instance) + self._drawn("provisioning")
        if due > now:
            return ReconcileResult(requeue_at=_first(due, stop))
        return ReconcileResult([UpdateStatus(in_phase(self.instance, BOOTING, now, startedAt=format_time(now)))])

    def _register(self, now: Instant, stop: Instant | None) -> ReconcileResult:
        """Create the Node, as its kubelet would."""
        due = since(self.instance) + self._drawn("boot") + self._drawn("registration")
        if due > now or self.pool is None:
            return ReconcileResult(requeue_at=_first(due, stop) if due > now else stop)
        longest = self.instance["spec"].get("maxRunDuration")
        stop = stop if longest is None else _first(now + parse_duration(longest), stop)
        fields = {} if stop is None else {"stopAt": format_time(stop)}
        writes: list[Write] = [UpdateStatus(in_phase(self.instance, RUNNING, now, **fields))]
        if self.node is None:
            writes.insert(0, Create(registered_node(self.instance, self.pool, self.cluster, now)))
        return ReconcileResult(writes)

    def _reservation_end(self) -> Instant | None:
        """Return the time at which its reservation reclaims the machine."""
        reservation = self._reservation()
        return None if reservation is None else ends_at(self.cluster, reservation)

    def _reservation_start(self) -> Instant:
        """Return the start of its reservation: the node is prepared before, and ready then."""
        reservation = self._reservation()
        return 0 if reservation is None else begins_at(self.cluster, reservation)

    def _reservation(self) -> Mapping[str, Any] | None:
        named = None if self.pool is None else self.pool["spec"].get("reservation")
        return None if named is None else find_reservation(self.cluster, named)

    def _run(self, now: Instant, stop: Instant | None) -> ReconcileResult:
        """Make the Node ready; announce a stop ahead of time."""
        notice = None if stop is None else stop - NOTICE
        if notice is not None and notice <= now:
            return ReconcileResult([UpdateStatus(in_phase(self.instance, STOPPING, now))])
        node = self.node
        if node is None or not awaits_drivers(node):
            return ReconcileResult(requeue_at=notice)
        accelerated = self.pool is not None and machine_of(self.pool, catalog_of(self.cluster)).accelerator is not None
        due = max(
            since(self.instance) + self._drawn("drivers" if accelerated else "network"), self._reservation_start()
        )
        if due > now:
            return ReconcileResult(requeue_at=_first(due, notice))
        name = node["metadata"]["name"]
        event = EventRecord(Key(scheme.NODE, "", name), "Normal", "NodeReady", f"Node {name} status is now: NodeReady")
        return ReconcileResult([UpdateStatus(made_ready(node, now))], [event], notice)

    def _leave(self, now: Instant) -> ReconcileResult:
        """Shut a deleted Instance down: once it is off, remove its Node, then the Instance."""
        off = self._off_at()
        if off > now:
            return ReconcileResult(requeue_at=off)
        released = Update(without_finalizer(self.instance, well_known.INSTANCE_FINALIZER))
        if is_off(self.instance):
            return ReconcileResult([*_removal(self.node), released])
        # The last watch event carries the end of billing.
        stopped = with_path(self.instance, ("status", "stoppedAt"), format_time(now))
        released = Update(with_metadata(released.obj, resourceVersion=None))
        return ReconcileResult([*_removal(self.node), UpdateStatus(stopped), released])

    def _off_at(self) -> Instant:
        """Return when a deleted Instance is off: at once, unless its system runs and must shut down."""
        deleted_at, stop = parse_time(self.instance["metadata"]["deletionTimestamp"]), stops_at(self.instance)
        if phase_of(self.instance) not in {RUNNING, STOPPING}:
            return deleted_at
        off = deleted_at + self._drawn("shutdown")
        return off if stop is None else min(off, max(stop, deleted_at))

    def _drawn(self, step: str) -> Duration:
        """Return the duration of a step. Initial machines need no time to start."""
        if annotation(self.instance, well_known.INITIAL_INSTANCE) is not None and step != "shutdown":
            return 0
        catalog = catalog_of(self.cluster)
        spread = step_duration(step, catalog.machine(self.instance["spec"]["machineType"]), self.cluster, catalog)
        return triangular(*spread, self.seed, self.instance["metadata"]["name"], step)


def _first(one: Instant | None, other: Instant | None) -> Instant | None:
    """Return the earlier of two instants; None means never."""
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)


# --- node pools ---
#
# Node pool controller: maintains the machines of a pool, and deletes them with it.


class NodePools:
    """Creates the machines that pools keep themselves, replaces crashed ones, and reports their number."""

    name = "cloud-node-pools"
    rank = 0
    kinds = (scheme.NODE_POOL, scheme.INSTANCE, scheme.NODE)

    def __init__(self) -> None:
        self._members = PoolMembers()

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """Return the pool, or the pool of a machine or Node with a relevant change."""
        if event.key.kind == scheme.NODE_POOL:
            return (event.key,)
        note = self._members.note_instance if event.key.kind == scheme.INSTANCE else self._members.note_node
        pool = note(event)
        return () if pool is None else (Key(scheme.NODE_POOL, "", pool),)

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Bring the machines of a pool to the desired state."""
        pool, cluster, members = reader.get(key), only_cluster(reader), self._members.of(key.name)
        if pool is None or "deletionTimestamp" in pool["metadata"]:
            writes: list[Write] = [Delete(member.key) for member in members.values() if not member.leaving]
            return ReconcileResult(writes if members else _released(pool))
        if cluster is None:
            return ReconcileResult()
        held = with_finalizer(pool, well_known.NODE_POOL_FINALIZER)
        if held is not pool:
            return ReconcileResult([Update(held)])
        plan = PoolPlan(pool, cluster, now)
        if plan.hosts > 1:
            plan_slice(plan, members, reader)
        else:
            plan_machines(plan, members, self._members.crashed(key.name))
        return ReconcileResult(
            [*plan.creations, *self._status(plan, len(members)), *plan.rest], requeue_at=plan.look_at
        )

    def _status(self, plan: PoolPlan, instances: int) -> list[Write]:
        """Return the write of the pool's status, if it changed."""
        old = plan.pool.get("status") or {}
        counts = {"instances": instances, "ready": self._members.ready(plan.pool["metadata"]["name"])}
        status = {**old, **counts, **({"conditions": plan.conditions} if plan.conditions else {})}
        return [] if status == old else [UpdateStatus(with_status(plan.pool, status))]


def _released(pool: Obj | None) -> list[Write]:
    """Release the finalizer of a pool without machines."""
    if pool is None:
        return []
    released = without_finalizer(pool, well_known.NODE_POOL_FINALIZER)
    return [] if released is pool else [Update(released)]


def simulated_cloud(seed: int = 0) -> tuple[Controller, ...]:
    """Return the controllers of the cloud; the seed determines all durations."""
    return NodePools(), CapacityController(), Instances(seed)
