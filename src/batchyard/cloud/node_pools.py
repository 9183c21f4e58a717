"""Node pool controller: maintains the machines of a pool, and deletes them with it."""

from collections.abc import Iterable

from batchyard.api import scheme, well_known
from batchyard.api.meta import Key, Obj, with_finalizer, with_status, without_finalizer
from batchyard.base.instant import Instant
from batchyard.cloud.cluster_objects import only_cluster
from batchyard.cloud.slices import PoolMembers, PoolPlan, plan_machines, plan_slice
from batchyard.interfaces.client import Delete, Reader, Update, UpdateStatus, WatchEvent, Write
from batchyard.interfaces.controller import ReconcileResult


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
