"""Observes a simulation from watch events: its Workloads, its quota and its machines over time."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from batchyard.api import scheme, well_known
from batchyard.api.meta import Key, Obj
from batchyard.api.views.node import node_view
from batchyard.api.views.pods import pod_view
from batchyard.api.views.workload import AdmittedPodSet, cluster_queue_view, cohort_view, workload_view
from batchyard.base.instant import Duration, Instant, duration_seconds
from batchyard.interfaces.client import EventType, WatchEvent
from batchyard.sim.result import Result
from batchyard.sim.summary.workload_records import FlavorResource, WorkloadRecord, WorkloadRecords
from batchyard.sim.time_series import Curve
from batchyard.sim.world import World
from batchyard.topology.state import is_outside_topologies

#: The pool name of nodes without a pool.
NO_POOL: Final = ""
#: Resources of nodes that are not compared, because pods do not request them.
_IGNORED_RESOURCES: Final = frozenset({"pods", "ephemeral-storage"})


class MachineUsage:
    """The number of nodes, their allocatable resources and the requests of their pods over time, by node pool."""

    def __init__(self, start_time: Instant) -> None:
        self._start_time = start_time
        #: By pool, the number of nodes over time.
        self.node_curves: dict[str, Curve] = {}
        #: By pool and resource, the allocatable amounts, and the requests of pods on nodes, over time.
        self.allocatable_curves: dict[tuple[str, str], Curve] = {}
        self.request_curves: dict[tuple[str, str], Curve] = {}
        #: By node, its pool and its allocatable resources; by pod, the pool and its requests.
        self._allocatable_by_node: dict[str, tuple[str, dict[str, int]]] = {}
        self._requests_by_pod: dict[str, tuple[str, dict[str, int]]] = {}

    def on_node(self, event: WatchEvent, now: Instant) -> None:
        """Update the number of nodes and their allocatable resources after a watch event of a node."""
        view = node_view(event.obj)
        pool = view.labels.get(well_known.NODE_POOL, NO_POOL)
        old_allocatable = self._allocatable_by_node.pop(view.name, None)
        if old_allocatable is not None:
            self._node_curve(old_allocatable[0]).add(-1, now)
            self._add_amounts(self.allocatable_curves, old_allocatable, -1, now)
        if event.type is not EventType.DELETED:
            allocatable = {r: amount for r, amount in view.allocatable.items() if r not in _IGNORED_RESOURCES}
            self._allocatable_by_node[view.name] = pool, allocatable
            self._node_curve(pool).add(1, now)
            self._add_amounts(self.allocatable_curves, (pool, allocatable), 1, now)

    def on_pod(self, event: WatchEvent, now: Instant) -> None:
        """Update the requests of pods on nodes after a watch event of a pod."""
        view = pod_view(event.obj)
        is_running = bool(view.node_name) and event.type is not EventType.DELETED and not view.is_terminal
        if is_running and view.uid not in self._requests_by_pod and view.node_name in self._allocatable_by_node:
            pool = self._allocatable_by_node[view.node_name][0]
            requests = {r: amount for r, amount in view.requests if r not in _IGNORED_RESOURCES}
            self._requests_by_pod[view.uid] = (pool, requests)
            self._add_amounts(self.request_curves, self._requests_by_pod[view.uid], 1, now)
        elif not is_running and view.uid in self._requests_by_pod:
            self._add_amounts(self.request_curves, self._requests_by_pod.pop(view.uid), -1, now)

    def _node_curve(self, pool: str) -> Curve:
        return self.node_curves.setdefault(pool, Curve(self._start_time))

    def _add_amounts(
        self, curves: dict[tuple[str, str], Curve], pool_amounts: tuple[str, dict[str, int]], sign: int, now: Instant
    ) -> None:
        pool, amounts = pool_amounts
        for resource, amount in amounts.items():
            curves.setdefault((pool, resource), Curve(self._start_time)).add(sign * amount, now)


class TopologyWatch:
    """The events of a simulation that determine topology domains, their capacity and their use, in order."""

    def __init__(self) -> None:
        self.events: list[tuple[Instant, WatchEvent]] = []
        #: By object, what determines its effect in its last recorded event; objects without effect have no entry.
        self._effects: dict[Key, object] = {}

    def observe(self, event: WatchEvent, now: Instant) -> None:
        """Record an event that changes a topology, a flavor, the capacity of domains, or the assignment of a Workload.

        Other revisions of nodes and pods, pods of topology Workloads, and old revisions are not kept in memory.
        """
        effect_of = _EFFECTS.get(event.key.kind)
        if effect_of is None:
            return
        effect, known_effect = effect_of(event), self._effects.get(event.key)
        if effect is known_effect or effect == known_effect:
            return
        if effect is None:
            del self._effects[event.key]
        else:
            self._effects[event.key] = effect
        self.events.append((now, event._replace(old=None)))


def _effect_of_spec(event: WatchEvent) -> object:
    return None if event.type is EventType.DELETED else event.obj.get("spec") or {}


def _effect_of_node(event: WatchEvent) -> object:
    view = None if event.type is EventType.DELETED else node_view(event.obj)
    return view if view is not None and view.ready and not view.unschedulable else None


def _effect_of_pod(event: WatchEvent) -> object:
    spec = event.obj.get("spec") or {}
    if event.type is EventType.DELETED or not spec.get("nodeName"):
        return None
    return spec if is_outside_topologies(event.obj) else None


def _effect_of_workload(event: WatchEvent) -> object:
    return held_pod_sets(event) or None


#: By kind, what of an object determines topology domains, their capacity and their use; None without an effect.
_EFFECTS: Final[Mapping[str, Callable[[WatchEvent], object]]] = {
    scheme.TOPOLOGY: _effect_of_spec,
    scheme.RESOURCE_FLAVOR: _effect_of_spec,
    scheme.NODE: _effect_of_node,
    scheme.POD: _effect_of_pod,
    scheme.WORKLOAD: _effect_of_workload,
}


def held_pod_sets(event: WatchEvent) -> Sequence[AdmittedPodSet]:
    """Return the admitted pod sets that hold topology domains after a watch event of a Workload."""
    view = workload_view(event.obj)
    if event.type is EventType.DELETED or view.finished or not view.quota_reserved:
        return ()
    return tuple(held for held in view.admitted_pod_sets if held.topology is not None)


class RunWatch:
    """Observer of a simulation's Workloads, quota and nodes over time; create it before the simulation begins."""

    def __init__(self, world: World, initial_events: Sequence[WatchEvent] = ()) -> None:
        """Start to observe a world; `initial_events` are its initial objects as ADDED events."""
        self._world = world
        self._kernel = world.kernel
        self.start_time = self._start_time = world.start
        self.workload_records = WorkloadRecords(world.start, self._queue_of)
        self.machines = MachineUsage(world.start)
        #: The nominal quota over time by ClusterQueue or Cohort, flavor and resource; Cohorts are named `Cohort/NAME`.
        self.nominal_quota: dict[FlavorResource, Curve] = {}
        self._quotas: dict[Key, dict[FlavorResource, int]] = {}
        #: The events of topologies; None without topology-aware scheduling.
        self.topology = TopologyWatch() if world.platform.index.snapshot.topology.is_enabled else None
        self.observe(initial_events)
        world.client.subscribe(self.observe)

    def observe(self, events: Sequence[WatchEvent]) -> None:
        """Update the observed numbers after a batch of watch events."""
        now = self._kernel.now()
        self.workload_records.advance(now)
        for event in events:
            kind = event.key.kind
            if self.topology is not None:
                self.topology.observe(event, now)
            if kind == scheme.WORKLOAD:
                self.workload_records.observe(event, now)
            elif kind == scheme.POD:
                self.machines.on_pod(event, now)
            elif kind == scheme.NODE:
                self.machines.on_node(event, now)
            elif kind in {scheme.CLUSTER_QUEUE, scheme.COHORT}:
                self._on_quota(event, now)

    def _queue_of(self, namespace: str, name: str) -> str | None:
        return self._world.platform.index.cluster_queue_of(namespace, name)

    def _on_quota(self, event: WatchEvent, now: Instant) -> None:
        new_amounts = {} if event.type is EventType.DELETED else _nominal_amounts(event.key, event.obj)
        old_amounts = self._quotas.get(event.key, {})
        if new_amounts == old_amounts:
            return
        for sign, amounts in ((-1, old_amounts), (1, new_amounts)):
            for quota_key, amount in amounts.items():
                self.nominal_quota.setdefault(quota_key, Curve(self._start_time)).add(sign * amount, now)
        self._quotas[event.key] = new_amounts


def _nominal_amounts(key: Key, obj: Obj) -> dict[FlavorResource, int]:
    is_cohort = key.kind == scheme.COHORT
    resource_groups = cohort_view(obj).groups if is_cohort else cluster_queue_view(obj).groups
    name = f"Cohort/{key.name}" if is_cohort else key.name
    return {(name, each.flavor, each.resource): each.nominal for group in resource_groups for each in group.quotas}


@dataclass(frozen=True)
class WatchedSimulation:
    """A finished simulation with its observations, from which its figures are computed."""

    result: Result
    watch: RunWatch
    #: Workloads without quota count as waiting until this instant: the end of the run, or of a longer compared run.
    waits_until: Instant

    @property
    def start_time(self) -> Instant:
        """Return the start of the simulation."""
        return self.watch.start_time

    @property
    def workload_records(self) -> list[WorkloadRecord]:
        """Return the histories of the simulation's Workloads, in the order of creation."""
        return list(self.watch.workload_records.workload_records.values())

    def wait_time(self, workload_record: WorkloadRecord) -> Duration:
        """Return how long a Workload waited for quota in total: until its deletion or, without one, `waits_until`."""
        end = workload_record.deleted_at if workload_record.deleted_at is not None else self.waits_until
        return self.result.waits.wait_time(workload_record.obj, end)

    def waited_seconds(self, workload_record: WorkloadRecord) -> float:
        """Return how many seconds a Workload waited for quota, until its deletion or the end of the longest run."""
        return duration_seconds(self.wait_time(workload_record))
