"""Simulated world: virtual time, an in-memory store, and the platform on top of them.

A run applies the scenario's steps, processes all events, and stops at the horizon or when no more events are scheduled.
Batched writes of controllers are flushed before the end, so that the objects hold the final state.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from batchyard.admission_chain import AdmissionChain
from batchyard.admission_plugins.built_in import SYSTEM_NAMESPACES, new_namespace
from batchyard.api import scheme
from batchyard.api.errors import ApiError, InvalidObject
from batchyard.api.meta import Key, Obj, key_of
from batchyard.api.times import parse_time
from batchyard.api.validation import validate_update
from batchyard.api.views.workload import workload_view
from batchyard.base.instant import Duration, Instant
from batchyard.client.local import LocalClient
from batchyard.cloud.simulated import simulated_cloud
from batchyard.controller_runtime.kernel import VirtualEventLoop
from batchyard.interfaces.client import Create, Delete, Reader, Update, Write, WriteResult
from batchyard.interfaces.controller import EventRecord
from batchyard.kubelet.simulated.durations import BareWorkloads
from batchyard.kubelet.simulated.kubelet import Kubelets, container_delays_of
from batchyard.kubelet.simulated.pod_status import NodeAgents
from batchyard.placement.node_filters import AutoscalingProfile
from batchyard.scheduling.cycle import PreemptionLoop
from batchyard.sim.event_log import EventLog, Record
from batchyard.sim.faults import FaultyClient, ScheduledFault, WriteFaults
from batchyard.sim.faults.injection import FaultInjector
from batchyard.sim.scenario import Scenario, ScenarioStep
from batchyard.sim.state import State, as_added
from batchyard.store.memory import Store, changes_reader
from batchyard.wiring import PlatformSettings, Ports, WiredPlatform, build_platform

# --- waits ---
#
# Waiting times and preemption counts of Workloads, computed from the Events of controllers.
#
# Cheap enough for every run: a few additions for each admission and eviction.


@dataclass(slots=True)
class _WorkloadWaits:
    """The waits of one Workload: the begin of the current one (None: it has quota), and the sum of earlier ones."""

    created: Instant
    since: Instant | None
    waited: Duration = 0
    preemptions: int = 0


class WaitTracker:
    """The waits and preemptions of Workloads, and the totals of admissions, evictions and preemptions."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._stories: dict[Key, _WorkloadWaits] = {}
        #: The numbers of admissions and evictions of all Workloads, and how many of the evictions were preemptions.
        self.admissions = 0
        self.evictions = 0
        self.preemptions = 0

    def observe(self, at: Instant, record: EventRecord) -> None:
        """Apply an Event. Events of pods are ignored, although pods have Preempted Events too."""
        if record.regarding.kind != scheme.WORKLOAD:
            return
        reason = record.reason
        if reason == "QuotaReserved":
            self._admitted(record.regarding, at)
        elif reason.startswith("EvictedDueTo"):
            self.evictions += 1
            self._left(record.regarding, at).since = at
        elif reason == "Preempted":  #  in addition to the Event of the eviction
            self.preemptions += 1
            self._left(record.regarding, at).preemptions += 1

    def waited(self, workload: Obj, now: Instant) -> Duration:
        """Return the total time that a Workload has been without quota, from its creation on."""
        story = self._story(_key(workload), workload)
        if story.since is None or _is_over(workload):
            return story.waited
        return story.waited + max(0, now - story.since)

    def preempted(self, workload: Obj) -> int:
        """Return how often a Workload was preempted."""
        return self._story(_key(workload), workload).preemptions

    def _admitted(self, key: Key, at: Instant) -> None:
        self.admissions += 1
        workload = self._reader.get(key)
        if workload is None:
            return
        story = self._stories[key] = self._story(key, workload)
        if story.since is not None:
            story.waited += max(0, at - story.since)
        story.since = None

    def _story(self, key: Key, workload: Obj) -> _WorkloadWaits:
        """Return the record of a Workload; a new one if the record belongs to a deleted Workload of the same name."""
        created, story = parse_time(workload["metadata"]["creationTimestamp"]), self._stories.get(key)
        return story if story is not None and story.created >= created else _WorkloadWaits(created, created)

    def _left(self, key: Key, at: Instant) -> _WorkloadWaits:
        """Return the record of a Workload that lost its quota; one without a record waits since now."""
        return self._stories.setdefault(key, _WorkloadWaits(at, at))


def _key(workload: Obj) -> Key:
    view = workload_view(workload)
    return Key(scheme.WORKLOAD, view.namespace, view.name)


def _is_over(workload: Obj) -> bool:
    """Whether it needs no quota any more."""
    view = workload_view(workload)
    return view.finished or not view.active


# --- merge ---
#
# The merge of `kubectl apply`: the object that results when a user applies its manifest again.
#
# Only the differences between the last applied manifest and the new one are written: fields that were added, changed or
# removed. All other fields stay as stored, so that the platform's writes are kept. Without a last manifest every field
# of the new one is written, and nothing is removed.


def merged(stored: Obj, last: Obj, new: Obj) -> dict[str, Any]:
    """Return the stored object with the changes from the last manifest to the new one.

    Mappings are merged by key. Lists are replaced as a whole, also those that kubectl merges by the names of items.
    Unlike
    kubectl, a field that is equal in both manifests keeps its stored value. The reason: manifests are complete here,
    and
    most of their fields are defaults that no user wrote.
    """
    kept = {field: value for field, value in stored.items() if field in new or field not in last}
    for field, value in new.items():
        before, now = last.get(field), kept.get(field)
        if field in last and before == value:
            continue
        kept[field] = merged(_mapping(now), _mapping(before), value) if isinstance(value, Mapping) else value
    return kept


def _mapping(value: object) -> Obj:
    """Return the value if it is a mapping, else an empty one."""
    return value if isinstance(value, Mapping) else {}


EPOCH: Final = parse_time("2026-01-01T00:00:00Z")
"""The start time of every simulated world."""


class StoppedByLoop(Exception):  # noqa: N818 - says what happened
    """The run ended because Workloads preempt each other endlessly (`LoopAction.STOP`)."""

    def __init__(self, loop: PreemptionLoop) -> None:
        super().__init__(loop.message)
        self.loop = loop


def ignore_record(record: Record) -> None:
    """Drop a record of the event log."""


class World:
    """A scenario in progress: the store, its client, the platform, the event log, and the rejected writes."""

    def __init__(
        self,
        scenario: Scenario,
        *,
        sink: Callable[[Record], None] = ignore_record,
        seed: int = 0,
        stop_on_loop: bool = False,
        trouble: WriteFaults | None = None,
        state: State | None = None,
    ) -> None:
        """Start the world; with a state, at its instant and with its objects. Scenario steps count from the start."""
        self.scenario = scenario
        #: The start time of the world.
        self.start = EPOCH if state is None else state.at
        self.kernel = VirtualEventLoop(self.start)
        self.store = Store(recovered=None if state is None else state.recovered())
        self._seed = seed
        self._settings = _settings_of(scenario, state)
        chain = AdmissionChain(
            with_nodes=self._settings.with_nodes,
            with_api=False,
            managed_namespaces=self._settings.kueue.managed_namespaces,
        )
        self.store.listen(chain.observe)
        self.client = LocalClient(self.store, self.kernel, seed, chain.rules())
        self.loops: list[PreemptionLoop] = []
        #: Writes of steps that the API rejected, each with its error.
        self.refused: list[tuple[Write, ApiError]] = []
        #: Faults whose target did not exist at their time.
        self.missed: list[ScheduledFault] = []
        self._stop_on_loop = stop_on_loop
        #: The manifests that users applied last.
        self._applied: dict[Key, Obj] = {} if state is None else dict(state.applied)
        self.log = EventLog(self.start, self.kernel.now, sink)
        self.waits = WaitTracker(self.client)
        #: The client that injects faults between the platform and the store, if the scenario needs one.
        self._trouble = trouble or _trouble_of(scenario)
        self._wire: FaultyClient | None = None
        self.platform = self._start_platform()
        if sink is not ignore_record or self._settings.with_nodes:  #  it records the time of the last event
            self.client.subscribe(self.log.observe)
        if state is not None:
            self._recall(state)
        known = self.store.get
        there = [name for name in _namespaces(scenario.steps) if known(Key(scheme.NAMESPACE, "", name)) is None]
        for step in (ScenarioStep(0, [*map(new_namespace, there)], ()), *scenario.steps):
            self.kernel.call_at(self.start + step.at, _Apply(self, step))
        if scenario.faults:
            calm = self.start + max((step.at for step in scenario.steps), default=0)
            FaultInjector(self, scenario.faults, self._trouble, calm)

    def state(self) -> State:
        """Return the state of this world now; all work of this instant must be done."""
        objects = {key_of(obj): obj for kind in self.store.kinds() for obj in self.store.list(kind)}
        return State(self.kernel.now(), self.store.revision, objects, dict(self._applied))

    def _recall(self, state: State) -> None:
        """Feed the initial objects to every component that builds its state from watch events."""
        shown = state.shown()
        self.log.recall(state.of_kind(scheme.WORKLOAD))
        self.client.recall(shown)
        self.platform.runner.observe(shown)

    def now(self) -> Duration:
        """Return the time since the start."""
        return self.kernel.now() - self.start

    def run_until(self, until: Duration | None) -> None:
        """Run up to a moment, inclusive, and set the clock to it; None: until no more events are scheduled."""
        if until is None:
            self.kernel.run()
            return
        self.kernel.call_at(self.start + until, let_time_pass)
        self.kernel.run(self.start + until)

    def settle(self) -> None:
        """Flush the batched writes of controllers.

        The scheduler's are kept while it waits for time to pass, because a flush would let it act too early. It waits
        when a
        Workload has a requeue time, and when Workloads preempt each other endlessly at this instant.
        """
        now = self.kernel.now()
        self.kernel.run(now)
        looping = bool(self.loops) and self.loops[-1].at == now
        waits_for_time = looping or self.platform.index.queue_manager.next_release() is not None
        self.platform.runner.flush_delayed(("queue-status",) if waits_for_time else ("scheduler", "queue-status"))
        self.kernel.run(now)

    def crash(self) -> None:
        """Crash the platform and restart it; it keeps no state but the stored objects.

        Requires a world with `trouble`. If the platform is down already, nothing happens.
        """
        assert self._wire is not None, "only a world with trouble can crash"
        if self.platform.runner.is_stopped:
            return
        self._wire.cut()
        self.platform.runner.stop()
        self.kernel.call_soon(self._restart)

    def note_missed(self, fault: ScheduledFault) -> None:
        """Record a fault whose target did not exist at its time."""
        self.missed.append(fault)

    def _restart(self) -> None:
        """Restart once all earlier watch events are delivered, and feed all objects to the new platform."""
        if not self.client.settled():
            self.kernel.call_soon(self._restart)
            return
        self.platform = self._start_platform()
        found = [obj for kind in self.store.kinds() for obj in self.store.list(kind)]
        self.platform.runner.observe(as_added(found))

    def _start_platform(self) -> WiredPlatform:
        self._wire = None if self._trouble is None else FaultyClient(self.client, self._trouble)
        nodes = self._settings.with_nodes
        pace = container_delays_of(self.scenario.cluster, self._seed)
        kubelets = Kubelets(pace, with_nodes=nodes, runtime=self.scenario.runtime)
        runtime = (BareWorkloads(), kubelets, *((NodeAgents(),) if nodes else ()))
        cloud = simulated_cloud(self._seed) if nodes else ()
        ports = Ports(self.kernel, self._wire or self.client, runtime, cloud, self._record, self._on_loop)
        ports = replace(ports, history=changes_reader(self.store))
        return build_platform(ports, self._settings)

    def objects(self, kind: str, namespace: str | None = None) -> Sequence[Obj]:
        """Return all objects of a kind."""
        return self.client.list(kind, namespace)

    def apply(self, obj: Obj) -> None:
        """Apply an object as `kubectl apply` does; an object with generateName is always created."""
        if not obj["metadata"].get("name"):
            self.submit(Create(obj))
            return
        key = key_of(obj)
        known, last = self.client.get(key), self._applied.get(key)
        if known is None:
            self._applied[key] = obj
            self.submit(Create(obj))
        elif obj != last:
            self._update(known, last or {}, obj)

    def _update(self, known: Obj, last: Obj, obj: Obj) -> None:
        """Write the differences to the last applied manifest; a rejected manifest does not count as applied."""
        updated = merged(known, last, obj)
        faults = validate_update(updated, known)
        if faults:
            self.refused.append((Update(updated), InvalidObject(faults)))
        else:
            self._applied[key_of(obj)] = obj
            self.submit(Update(updated))

    def submit(self, write: Write) -> None:
        """Write as a user; rejected writes are kept in `refused`."""

        def done(result: WriteResult) -> None:
            if result.error is not None:
                self.refused.append((write, result.error))

        self.client.submit([write], done)

    def _on_loop(self, loop: PreemptionLoop) -> None:
        self.loops.append(loop)
        self.log.loop(loop)
        if self._stop_on_loop:
            self._stop_on_loop = False
            self.kernel.call_soon(partial(_stop, loop))  #  not within a decision, which would be left incomplete

    def _record(self, at: Instant, controller: str, record: EventRecord) -> None:
        self.waits.observe(at, record)


def let_time_pass() -> None:
    """Do nothing: a timer that only moves the clock."""


def _stop(loop: PreemptionLoop) -> None:
    raise StoppedByLoop(loop)


def _trouble_of(scenario: Scenario) -> WriteFaults | None:
    """Return the fault injection that the scenario's faults need; None makes the world faster."""
    return WriteFaults() if any(fault.troubles_writes for fault in scenario.faults) else None


def _namespaces(steps: Iterable[ScenarioStep]) -> list[str]:
    """Return the initial Namespaces: the system's, and those that are used but not given."""
    metadata = [obj["metadata"] for step in steps for obj in step.apply]
    given = [obj["metadata"].get("name") for step in steps for obj in step.apply if obj["kind"] == "Namespace"]
    used = sorted({each["namespace"]: None for each in metadata if "namespace" in each})
    return [*SYSTEM_NAMESPACES, *[name for name in used if name not in (*SYSTEM_NAMESPACES, *given)]]


def _settings_of(scenario: Scenario, state: State | None) -> PlatformSettings:
    """Return the settings of the platform; nodes can come from a Cluster, from the steps or from the state."""
    cluster = scenario.cluster
    autoscaling = {} if cluster is None else cluster["spec"].get("autoscaling") or {}
    return PlatformSettings(
        scenario.kueue,
        with_nodes=cluster is not None or "Node" in scenario.counts or (state is not None and state.has_nodes),
        profile=AutoscalingProfile(autoscaling.get("profile", AutoscalingProfile.BALANCED.value)),
        hotswap=scenario.hotswap,
        with_costs="Budget" in scenario.counts or (state is not None and bool(state.of_kind(scheme.BUDGET))),
    )


class _Apply:
    """A step of the scenario as a callback of the kernel."""

    __slots__ = ("_step", "_world")

    def __init__(self, world: World, step: ScenarioStep) -> None:
        self._world = world
        self._step = step

    def __call__(self) -> None:
        world = self._world
        for obj in self._step.apply:
            world.apply(obj)
        for key in self._step.delete:
            world.submit(Delete(key))
