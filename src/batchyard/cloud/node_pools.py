"""The controller of node pools: a pool keeps its machines, and they go with it."""

from collections.abc import Iterable

from batchyard.api import scheme, well_known
from batchyard.api.meta import Key, Obj, with_finalizer, with_status, without_finalizer
from batchyard.base.instant import Instant
from batchyard.cloud.cluster_objects import only_cluster
from batchyard.cloud.slices import PoolMembers, PoolPlan, plan_machines, plan_slice
from batchyard.interfaces.client import Delete, Reader, Update, UpdateStatus, WatchEvent, Write
from batchyard.interfaces.controller import Outcome

#: On pools: kept until the last of their machines is gone.


class NodePools:
    """Makes the machines that pools have by themselves, replaces crashed ones, and tells how many there are."""

    name = "cloud-node-pools"
    rank = 0
    kinds = (scheme.NODE_POOL, scheme.INSTANCE, scheme.NODE)

    def __init__(self) -> None:
        self._members = PoolMembers()

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """The pool, or the one of a machine or Node in which something happened that concerns it."""
        if event.key.kind == scheme.NODE_POOL:
            return (event.key,)
        note = self._members.note_instance if event.key.kind == scheme.INSTANCE else self._members.note_node
        pool = note(event)
        return () if pool is None else (Key(scheme.NODE_POOL, "", pool),)

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> Outcome:
        """Bring the machines of a pool to what is wanted."""
        pool, cluster, members = reader.get(key), only_cluster(reader), self._members.of(key.name)
        if pool is None or "deletionTimestamp" in pool["metadata"]:
            writes: list[Write] = [Delete(member.key) for member in members.values() if not member.leaving]
            return Outcome(writes if members else _released(pool))
        if cluster is None:
            return Outcome()
        held = with_finalizer(pool, well_known.NODE_POOL_FINALIZER)
        if held is not pool:
            return Outcome([Update(held)])
        plan = PoolPlan(pool, cluster, now)
        if plan.hosts > 1:
            plan_slice(plan, members, reader)
        else:
            plan_machines(plan, members, self._members.crashed(key.name))
        return Outcome([*plan.asked, *self._status(plan, len(members)), *plan.rest], requeue_at=plan.look_at)

    def _status(self, plan: PoolPlan, instances: int) -> list[Write]:
        """The write of the pool's status, if it changed."""
        old = plan.pool.get("status") or {}
        counts = {"instances": instances, "ready": self._members.ready(plan.pool["metadata"]["name"])}
        status = {**old, **counts, **({"conditions": plan.conditions} if plan.conditions else {})}
        return [] if status == old else [UpdateStatus(with_status(plan.pool, status))]


def _released(pool: Obj | None) -> list[Write]:
    """Nothing holds a pool that has no machines."""
    if pool is None:
        return []
    released = without_finalizer(pool, well_known.NODE_POOL_FINALIZER)
    return [] if released is pool else [Update(released)]
