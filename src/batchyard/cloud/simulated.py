"""Controllers of the simulated cloud: one for the lifecycle of each machine, one for the machines of each node pool."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from batchyard.api import meta, scheme, well_known
from batchyard.api.times import format_time, parse_time
from batchyard.base.instant import Duration, Instant, parse_duration
from batchyard.base.primitives import draw_triangular
from batchyard.cloud.allocation import CapacityController
from batchyard.cloud.catalog import instances
from batchyard.cloud.catalog.machine_types import catalog_of
from batchyard.cloud.catalog.nodes import awaits_drivers, exposes_location, registered_node, with_ready_condition
from batchyard.cloud.catalog.pool_properties import machine_of, step_duration
from batchyard.cloud.cluster_objects import find_cluster
from batchyard.cloud.slices import PoolMembers, PoolPlan, plan_machines, plan_slice
from batchyard.interfaces.client import Create, Delete, Reader, Update, UpdateStatus, WatchEvent, Write
from batchyard.interfaces.controller import Controller, EventRecord, ReconcileResult

# Lifecycle of a machine: it boots, its Node registers and becomes ready, and it is stopped after a notice.
#
# Step durations are drawn from the seed and the machine's name. A Node is deleted with its machine, as by Kubernetes'
# cloud node lifecycle controller. All state is in the Instance, so a restart loses nothing.


class InstanceController:
    """The controller that moves each machine (Instance) from Provisioning through Booting and Running to Stopping."""

    name = "cloud-instances"
    rank = 0
    kinds = (scheme.INSTANCE,)

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[meta.Key]:
        """Return the key of the changed Instance."""
        return (event.key,)

    def reconcile(self, key: meta.Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Move a machine to its next phase if that is due; delete the Node of an Instance that no longer exists."""
        instance, cluster = reader.get(key), find_cluster(reader)
        node = reader.get(meta.Key(scheme.NODE, "", key.name))
        if instance is None:
            return ReconcileResult(_delete_node_writes(node))
        if cluster is None:
            return ReconcileResult()
        pool = reader.get(meta.Key(scheme.NODE_POOL, "", instance["spec"]["pool"]))
        return _Machine(instance, node, pool, cluster, self._seed).reconcile(now, reader)


def _delete_node_writes(node: meta.Obj | None) -> list[Write]:
    is_of_node_pool = node is not None and meta.label(node, well_known.NODE_POOL) is not None
    return [Delete(meta.Key(scheme.NODE, "", node["metadata"]["name"]))] if node is not None and is_of_node_pool else []


@dataclass(frozen=True, slots=True)
class _Machine:
    instance: meta.Obj
    node: meta.Obj | None
    pool: meta.Obj | None
    cluster: meta.Obj
    seed: int

    def reconcile(self, now: Instant, reader: Reader) -> ReconcileResult:
        if instances.is_being_deleted(self.instance):
            return self._shut_down(now)
        instance_phase, stop_at = instances.phase_of(self.instance), instances.stops_at(self.instance)
        if instance_phase in {instances.PROVISIONING, instances.BOOTING}:
            stop_at = _earliest_instant(stop_at, self._reservation_end())
        if stop_at is not None and stop_at <= now:
            key = meta.Key(scheme.INSTANCE, "", self.instance["metadata"]["name"])
            return ReconcileResult([Delete(key, uid=self.instance["metadata"].get("uid"))])
        if instance_phase == instances.PROVISIONING:
            return self._boot(now, stop_at)
        if instance_phase == instances.BOOTING:
            return self._register(now, stop_at, reader)
        return self._run(now, stop_at) if instance_phase == instances.RUNNING else ReconcileResult(requeue_at=stop_at)

    def _boot(self, now: Instant, stop_at: Instant | None) -> ReconcileResult:
        boot_due_at = instances.phase_start(self.instance) + self._draw_duration("provisioning")
        if boot_due_at > now:
            return ReconcileResult(requeue_at=_earliest_instant(boot_due_at, stop_at))
        return ReconcileResult(
            [UpdateStatus(instances.with_phase(self.instance, instances.BOOTING, now, startedAt=format_time(now)))]
        )

    def _register(self, now: Instant, stop_at: Instant | None, reader: Reader) -> ReconcileResult:
        due_at = (
            instances.phase_start(self.instance) + self._draw_duration("boot") + self._draw_duration("registration")
        )
        if due_at > now or self.pool is None:
            return ReconcileResult(requeue_at=_earliest_instant(due_at, stop_at) if due_at > now else stop_at)
        max_run_duration = self.instance["spec"].get("maxRunDuration")
        stop_at = (
            stop_at if max_run_duration is None else _earliest_instant(now + parse_duration(max_run_duration), stop_at)
        )
        stop_fields = {} if stop_at is None else {"stopAt": format_time(stop_at)}
        writes: list[Write] = [UpdateStatus(instances.with_phase(self.instance, instances.RUNNING, now, **stop_fields))]
        if self.node is None:
            nodes = reader.list(scheme.NODE) if exposes_location(self.pool, self.cluster) else ()
            writes.insert(0, Create(registered_node(self.instance, self.pool, self.cluster, now, nodes)))
        return ReconcileResult(writes)

    def _reservation_end(self) -> Instant | None:
        reservation = self._reservation()
        return None if reservation is None else instances.reservation_end(self.cluster, reservation)

    def _reservation_start(self) -> Instant:
        reservation = self._reservation()
        return 0 if reservation is None else instances.reservation_start(self.cluster, reservation)

    def _reservation(self) -> Mapping[str, Any] | None:
        reservation_name = None if self.pool is None else self.pool["spec"].get("reservation")
        return None if reservation_name is None else instances.find_reservation(self.cluster, reservation_name)

    def _run(self, now: Instant, stop_at: Instant | None) -> ReconcileResult:
        notice_at = None if stop_at is None else stop_at - instances.PREEMPTION_NOTICE
        if notice_at is not None and notice_at <= now:
            return ReconcileResult([UpdateStatus(instances.with_phase(self.instance, instances.STOPPING, now))])
        node = self.node
        if node is None or not awaits_drivers(node):
            return ReconcileResult(requeue_at=notice_at)
        has_accelerator = (
            self.pool is not None and machine_of(self.pool, catalog_of(self.cluster)).accelerator is not None
        )
        setup_duration = self._draw_duration("drivers" if has_accelerator else "network")
        ready_due_at = max(instances.phase_start(self.instance) + setup_duration, self._reservation_start())
        if ready_due_at > now:
            return ReconcileResult(requeue_at=_earliest_instant(ready_due_at, notice_at))
        name = node["metadata"]["name"]
        message = f"Node {name} status is now: NodeReady"
        event = EventRecord(meta.Key(scheme.NODE, "", name), "Normal", "NodeReady", message)
        return ReconcileResult([UpdateStatus(with_ready_condition(node, now))], [event], notice_at)

    def _shut_down(self, now: Instant) -> ReconcileResult:
        power_off_time = self._power_off_time()
        if power_off_time > now:
            return ReconcileResult(requeue_at=power_off_time)
        finalizer_removal = Update(meta.without_finalizer(self.instance, well_known.INSTANCE_FINALIZER))
        if instances.is_stopped(self.instance):
            return ReconcileResult([*_delete_node_writes(self.node), finalizer_removal])
        # The deletion event must include `stoppedAt`, the end of billing: the finalizer is removed after this update.
        stopped_instance = meta.with_path(self.instance, ("status", "stoppedAt"), format_time(now))
        finalizer_removal = Update(meta.with_metadata(finalizer_removal.obj, resourceVersion=None))
        return ReconcileResult([*_delete_node_writes(self.node), UpdateStatus(stopped_instance), finalizer_removal])

    def _power_off_time(self) -> Instant:
        deleted_at, stop_at = (
            parse_time(self.instance["metadata"]["deletionTimestamp"]),
            instances.stops_at(self.instance),
        )
        if instances.phase_of(self.instance) not in {instances.RUNNING, instances.STOPPING}:
            return deleted_at
        power_off_time = deleted_at + self._draw_duration("shutdown")
        return power_off_time if stop_at is None else min(power_off_time, max(stop_at, deleted_at))

    def _draw_duration(self, step: str) -> Duration:
        """Return the random duration of a machine step; 0 for the Cluster's initial machines, except shutdown."""
        if meta.annotation(self.instance, well_known.INITIAL_INSTANCE) is not None and step != "shutdown":
            return 0
        catalog = catalog_of(self.cluster)
        durations = step_duration(step, catalog.machine(self.instance["spec"]["machineType"]), self.cluster, catalog)
        return draw_triangular(*durations, self.seed, self.instance["metadata"]["name"], step)


def _earliest_instant(instant_a: Instant | None, instant_b: Instant | None) -> Instant | None:
    if instant_a is None or instant_b is None:
        return instant_b if instant_a is None else instant_a
    return min(instant_a, instant_b)


# The node pool controller creates and repairs the machines of a pool, and deletes them with the pool.


class NodePoolController:
    """The controller that creates the machines of node pools, replaces crashed ones, and writes the pools' status."""

    name = "cloud-node-pools"
    rank = 0
    kinds = (scheme.NODE_POOL, scheme.INSTANCE, scheme.NODE)

    def __init__(self) -> None:
        self._members = PoolMembers()

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[meta.Key]:
        """Update the index; return the key of the node pool to reconcile after the event, or ()."""
        if event.key.kind == scheme.NODE_POOL:
            return (event.key,)
        observe = self._members.observe_instance if event.key.kind == scheme.INSTANCE else self._members.observe_node
        pool_name = observe(event)
        return () if pool_name is None else (meta.Key(scheme.NODE_POOL, "", pool_name),)

    def reconcile(self, key: meta.Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Create, replace or delete machines of a node pool as its spec requires; delete all if the pool is deleted."""
        pool, cluster, members = reader.get(key), find_cluster(reader), self._members.instances_of(key.name)
        if pool is None or "deletionTimestamp" in pool["metadata"]:
            writes: list[Write] = [Delete(member.key) for member in members.values() if not member.is_being_deleted]
            return ReconcileResult(writes if members else _remove_finalizer_writes(pool))
        if cluster is None:
            return ReconcileResult()
        pool_with_finalizer = meta.with_finalizer(pool, well_known.NODE_POOL_FINALIZER)
        if pool_with_finalizer is not pool:
            return ReconcileResult([Update(pool_with_finalizer)])
        pool_plan = PoolPlan(pool, cluster, now)
        if pool_plan.host_count > 1:
            plan_slice(pool_plan, members, reader)
        else:
            plan_machines(pool_plan, members, self._members.crashed_members(key.name))
        writes = [*pool_plan.creations, *self._status_writes(pool_plan, len(members)), *pool_plan.later_writes]
        return ReconcileResult(writes, requeue_at=pool_plan.requeue_at)

    def _status_writes(self, pool_plan: PoolPlan, instance_count: int) -> list[Write]:
        old_status = pool_plan.pool.get("status") or {}
        counts = {"instances": instance_count, "ready": self._members.ready_count(pool_plan.pool["metadata"]["name"])}
        status = {**old_status, **counts, **({"conditions": pool_plan.conditions} if pool_plan.conditions else {})}
        return [] if status == old_status else [UpdateStatus(meta.with_status(pool_plan.pool, status))]


def _remove_finalizer_writes(pool: meta.Obj | None) -> list[Write]:
    if pool is None:
        return []
    pool_without_finalizer = meta.without_finalizer(pool, well_known.NODE_POOL_FINALIZER)
    return [] if pool_without_finalizer is pool else [Update(pool_without_finalizer)]


def simulated_cloud(seed: int = 0) -> tuple[Controller, ...]:
    """Return the controllers of the simulated cloud; `seed` determines all random durations."""
    return NodePoolController(), CapacityController(), InstanceController(seed)
