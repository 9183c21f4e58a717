"""Observes a run for a comparison, by its watch events: Workloads, quota and machines."""

from collections.abc import Sequence
from typing import Final

from batchyard.api import scheme, well_known
from batchyard.api.meta import Key, Obj
from batchyard.api.views.node import node_view
from batchyard.api.views.pods import pod_view
from batchyard.api.views.queues import cluster_queue_view, cohort_view
from batchyard.base.instant import Instant
from batchyard.interfaces.client import EventType, WatchEvent
from batchyard.sim.compare.workload_records import FlavorResource, WorkloadLives
from batchyard.sim.time_series import Curve
from batchyard.sim.world import World

#: The pool of nodes without one.
NO_POOL: Final = ""
#: Resources of nodes that are not compared, because pods do not request them.
_LEFT_OUT: Final = frozenset({"pods", "ephemeral-storage"})


class MachineUsage:
    """The allocatable resources of nodes and the requests of pods on them over time, by pool and resource."""

    def __init__(self, begun: Instant) -> None:
        self._begun = begun
        self.nodes: dict[str, Curve] = {}
        self.total: dict[tuple[str, str], Curve] = {}
        self.used: dict[tuple[str, str], Curve] = {}
        #: By node, its pool and its allocatable resources; by pod, the pool and its requests.
        self._has: dict[str, tuple[str, dict[str, int]]] = {}
        self._takes: dict[str, tuple[str, dict[str, int]]] = {}

    def on_node(self, event: WatchEvent, now: Instant) -> None:
        """Apply a watch event of a node."""
        view = node_view(event.obj)
        pool = view.labels.get(well_known.NODE_POOL, NO_POOL)
        before = self._has.pop(view.name, None)
        if before is not None:
            self._nodes(before[0]).add(-1, now)
            self._count(self.total, before, -1, now)
        if event.type is not EventType.DELETED:
            has = {resource: left for resource, left in view.allocatable.items() if resource not in _LEFT_OUT}
            self._has[view.name] = pool, has
            self._nodes(pool).add(1, now)
            self._count(self.total, (pool, has), 1, now)

    def on_pod(self, event: WatchEvent, now: Instant) -> None:
        """Apply a watch event of a pod."""
        view = pod_view(event.obj)
        is_there = bool(view.node_name) and event.type is not EventType.DELETED and not view.is_terminal
        if is_there and view.uid not in self._takes and view.node_name in self._has:
            pool = self._has[view.node_name][0]
            self._takes[view.uid] = pool, {r: amount for r, amount in view.requests if r not in _LEFT_OUT}
            self._count(self.used, self._takes[view.uid], 1, now)
        elif not is_there and view.uid in self._takes:
            self._count(self.used, self._takes.pop(view.uid), -1, now)

    def _nodes(self, pool: str) -> Curve:
        return self.nodes.setdefault(pool, Curve(self._begun))

    def _count(
        self, curves: dict[tuple[str, str], Curve], what: tuple[str, dict[str, int]], sign: int, now: Instant
    ) -> None:
        pool, amounts = what
        for resource, amount in amounts.items():
            curves.setdefault((pool, resource), Curve(self._begun)).add(sign * amount, now)


class RunWatch:
    """The observations of a run; create it before the run begins."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._kernel = world.kernel
        self.begun = self._begun = world.start
        self.lives = WorkloadLives(world.start, self._queue_of)
        self.machines = MachineUsage(world.start)
        #: The nominal quota over time by ClusterQueue or Cohort, flavor and resource; Cohorts are named `Cohort/NAME`.
        self.nominal: dict[FlavorResource, Curve] = {}
        self._quotas: dict[Key, dict[FlavorResource, int]] = {}
        world.client.subscribe(self.observe)

    def observe(self, events: Sequence[WatchEvent]) -> None:
        """Apply watch events."""
        now = self._kernel.now()
        self.lives.let_pass(now)
        for event in events:
            kind = event.key.kind
            if kind == scheme.WORKLOAD:
                self.lives.observe(event, now)
            elif kind == scheme.POD:
                self.machines.on_pod(event, now)
            elif kind == scheme.NODE:
                self.machines.on_node(event, now)
            elif kind in {scheme.CLUSTER_QUEUE, scheme.COHORT}:
                self._on_quota(event, now)

    def _queue_of(self, namespace: str, name: str) -> str | None:
        """Return the ClusterQueue of a LocalQueue from the current platform, which a crash may have replaced."""
        return self._world.platform.index.cluster_queue_of(namespace, name)

    def _on_quota(self, event: WatchEvent, now: Instant) -> None:
        quotas = {} if event.type is EventType.DELETED else _nominal(event.key, event.obj)
        before = self._quotas.get(event.key, {})
        if quotas == before:
            return
        for sign, amounts in ((-1, before), (1, quotas)):
            for at, amount in amounts.items():
                self.nominal.setdefault(at, Curve(self._begun)).add(sign * amount, now)
        self._quotas[event.key] = quotas


def _nominal(key: Key, obj: Obj) -> dict[FlavorResource, int]:
    is_cohort = key.kind == scheme.COHORT
    groups = cohort_view(obj).groups if is_cohort else cluster_queue_view(obj).groups
    name = f"Cohort/{key.name}" if is_cohort else key.name
    return {(name, each.flavor, each.resource): each.nominal for group in groups for each in group.quotas}
