"""Simulated world: virtual time, an in-memory object store, and the platform's controllers that run on them.

A run applies the scenario's steps and processes events, until a given time or until no more events are scheduled.
At the end, the caller flushes batched writes of controllers with `World.flush_batched_writes`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any, Final

from batchyard.admission_chain import AdmissionChain
from batchyard.admission_plugins.built_in import SYSTEM_NAMESPACES, ManagedJobs, new_namespace
from batchyard.api import scheme
from batchyard.api.errors import ApiError, InvalidObject
from batchyard.api.meta import Key, Obj, find_condition, group_kind, key_of, with_path
from batchyard.api.times import parse_time
from batchyard.api.validation import validate_update
from batchyard.api.views.workload import workload_view
from batchyard.base.instant import Duration, Instant
from batchyard.base.primitives import draw_integer
from batchyard.client.local import LocalClient
from batchyard.cloud.simulated import simulated_cloud
from batchyard.controller_groups import APPS, GROUPS
from batchyard.controller_runtime.kernel import OnDemandController, VirtualEventLoop
from batchyard.interfaces.client import Create, Delete, ObjectReader, Reader, Update, UpdateStatus, Write, WriteResult
from batchyard.interfaces.containers import MeasuredUsage
from batchyard.interfaces.controller import Controller, EventRecord
from batchyard.kubelet.simulated.durations import BareWorkloads
from batchyard.kubelet.simulated.kubelet import SimulatedKubelets, container_delays_of
from batchyard.kubelet.simulated.pod_status import NodeAgents
from batchyard.placement.gpu_policies import DrawBelow, make_gpu_policy
from batchyard.placement.node_filters import AutoscalingProfile
from batchyard.scheduling.cycle import PreemptionLoop
from batchyard.sim.event_log import EventLog, Record
from batchyard.sim.faults import Conflicts, FaultyClient, LastingFaults, ScheduledFault, WriteFaults
from batchyard.sim.faults.injection import FaultInjector
from batchyard.sim.scenario import Scenario, ScenarioStep
from batchyard.sim.state import State, to_added_events
from batchyard.store.memory import Store, changes_reader
from batchyard.wiring import PlatformPorts, PlatformSettings, WiredPlatform, build_platform

# Waiting times and preemption counts of Workloads, computed from the Events of controllers.


@dataclass(slots=True)
class _WorkloadWaits:
    created_at: Instant
    #: The start of the current wait; None: the Workload has quota.
    waiting_since: Instant | None
    #: The total of the earlier waits.
    total_wait: Duration = 0
    preemptions: int = 0


class WaitTracker:
    """The waits for quota and the preemptions of each Workload, and total numbers of admissions and evictions."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._waits: dict[Key, _WorkloadWaits] = {}
        #: The numbers of admissions, evictions and preemptions of all Workloads; each preemption is also an eviction.
        self.admissions = 0
        self.evictions = 0
        self.preemptions = 0

    def register_existing_workloads(self, workloads: Iterable[Obj]) -> None:
        """Register the Workloads that have quota at the start: they waited from creation to the quota reservation."""
        for workload in workloads:
            condition = find_condition(workload, "QuotaReserved")
            if condition is not None and condition["status"] == "True":
                created = parse_time(workload["metadata"]["creationTimestamp"])
                total_wait = max(0, parse_time(condition["lastTransitionTime"]) - created)
                self._waits[_workload_key(workload)] = _WorkloadWaits(created, None, total_wait)

    def observe(self, at: Instant, record: EventRecord) -> None:
        """Update a Workload's waiting time and the counters after an Event of it; ignore Events of other objects."""
        if record.regarding.kind != scheme.WORKLOAD:
            return
        reason = record.reason
        if reason == "QuotaReserved":
            self._record_admission(record.regarding, at)
        elif reason.startswith("EvictedDueTo"):
            self.evictions += 1
            self._waits_after_eviction(record.regarding, at).waiting_since = at
        elif reason == "Preempted":  #  in addition to the Event of the eviction
            self.preemptions += 1
            self._waits_after_eviction(record.regarding, at).preemptions += 1

    def wait_time(self, workload: Obj, now: Instant) -> Duration:
        """Return the total time up to `now` in which a Workload waited for quota.

        A Workload that is finished or deactivated does not wait.
        """
        workload_waits = self._waits_of(_workload_key(workload), workload)
        if workload_waits.waiting_since is None or _needs_no_quota(workload):
            return workload_waits.total_wait
        return workload_waits.total_wait + max(0, now - workload_waits.waiting_since)

    def preemption_count(self, workload: Obj) -> int:
        """Return how often a Workload was preempted."""
        return self._waits_of(_workload_key(workload), workload).preemptions

    def _record_admission(self, key: Key, at: Instant) -> None:
        self.admissions += 1
        workload = self._reader.get(key)
        if workload is None:
            return
        workload_waits = self._waits[key] = self._waits_of(key, workload)
        if workload_waits.waiting_since is not None:
            workload_waits.total_wait += max(0, at - workload_waits.waiting_since)
        workload_waits.waiting_since = None

    def _waits_of(self, key: Key, workload: Obj) -> _WorkloadWaits:
        """Return the record of a Workload's waits; a new record if the known one is of a deleted Workload."""
        created, record = parse_time(workload["metadata"]["creationTimestamp"]), self._waits.get(key)
        return record if record is not None and record.created_at >= created else _WorkloadWaits(created, created)

    def _waits_after_eviction(self, key: Key, at: Instant) -> _WorkloadWaits:
        return self._waits.setdefault(key, _WorkloadWaits(at, at))


def _workload_key(workload: Obj) -> Key:
    metadata = workload["metadata"]
    return Key(scheme.WORKLOAD, metadata.get("namespace", ""), metadata["name"])


def _needs_no_quota(workload: Obj) -> bool:
    view = workload_view(workload)
    return view.finished or not view.active


# The merge of `kubectl apply`: the object that results when a user applies a manifest of an existing object.
#
# Only the differences between the last applied manifest and the new one are written: fields that were added, changed or
# removed. All other fields stay as stored, so that the platform's writes are kept. Without a last manifest, every field
# of the new manifest is written, and no field is removed.


def merge_applied(stored_object: Obj, last_applied: Obj, new: Obj) -> dict[str, Any]:
    """Return the stored object with the changes from the last applied manifest to the new one (`new`).

    Mappings are merged by key. Lists are replaced as a whole, even if kubectl merges them by the names of their items.
    Unlike with kubectl, a field that is equal in both manifests keeps its stored value, because these manifests contain
    all defaults.
    """
    result = {field: value for field, value in stored_object.items() if field in new or field not in last_applied}
    for field, value in new.items():
        last, stored = last_applied.get(field), result.get(field)
        if field in last_applied and last == value:
            continue
        result[field] = merge_applied(_mapping(stored), _mapping(last), value) if isinstance(value, Mapping) else value
    return result


def _mapping(value: object) -> Obj:
    return value if isinstance(value, Mapping) else {}


# Static pods: Pods without owner whose manifest states a node and a phase. Such a pod was observed in a cluster.
#
# It runs as long as its manifest, and returns with its node. As with kubelets, a static pod tolerates all NoExecute
# taints. Source: pkg/kubelet/config/common.go.


def is_static_pod(manifest: Obj) -> bool:
    """Return whether the manifest of a Pod states its node and a phase, and names no owner."""
    if (manifest.get("metadata") or {}).get("ownerReferences") or not (manifest.get("spec") or {}).get("nodeName"):
        return False
    return (manifest.get("status") or {}).get("phase") in {"Pending", "Running"}


def with_node_lifetime(manifest: Obj) -> Obj:
    """Return the manifest of a Pod with a toleration of all NoExecute taints."""
    tolerations = [*(manifest["spec"].get("tolerations") or ()), {"operator": "Exists", "effect": "NoExecute"}]
    return with_path(manifest, ("spec", "tolerations"), tolerations)


#: The maximum number of causes of rejected pods; some causes contain amounts, such as the used part of a quota.
_REJECTION_CAUSES_MAX: Final = 100
EPOCH: Final = parse_time("2026-01-01T00:00:00Z")
"""The start time of every simulated world."""


#: The kinds whose status a manifest may state, because no kubelet of the simulation reports it.
_RECORDED_KINDS: Final = (scheme.NODE, scheme.POD)


class StoppedByPreemptionLoop(Exception):  # noqa: N818 - says what happened
    """Raised to end a simulation because Workloads preempt each other endlessly (`OnLoop.STOP`)."""

    def __init__(self, loop: PreemptionLoop) -> None:
        super().__init__(loop.message)
        self.loop = loop


def ignore_record(record: Record) -> None:
    """Ignore a log record: the default of `sink`, if no event log is requested."""


class World:
    """A simulated world that runs a scenario: object store, client, the platform's controllers, and event log."""

    def __init__(
        self,
        scenario: Scenario,
        *,
        sink: Callable[[Record], None] = ignore_record,
        seed: int = 0,
        stop_on_loop: bool = False,
        write_faults: WriteFaults | None = None,
        state: State | None = None,
    ) -> None:
        """Start a world, empty or from a state at the state's instant; times of the scenario count from the start."""
        self.scenario = scenario
        #: The start time of the world.
        self.start = EPOCH if state is None else state.at
        self.kernel = VirtualEventLoop(self.start)
        self.store = Store(contents=None if state is None else state.recovered_store())
        self._seed = seed
        self._settings = _settings_of(scenario, state, seed)
        chain = AdmissionChain(with_nodes=self._settings.with_nodes, with_api=False, kueue=self._settings.kueue)
        self.store.listen(chain.observe)
        self.client = LocalClient(self.store, self.kernel, seed, chain.hooks())
        self.loops: list[PreemptionLoop] = []
        #: The writes of users that the API rejected, each with its error.
        self.rejected_writes: list[tuple[Write, ApiError]] = []
        #: The Jobs and bare pods whose pods the API rejected, by the cause, in the order of their first rejection.
        self.rejected_pods: dict[str, dict[Key, None]] = {}
        #: The faults whose target did not exist at their time.
        self.missed_faults: list[ScheduledFault] = []
        self._stop_on_loop = stop_on_loop
        #: The manifest that users applied last, by object.
        self._last_applied_manifests: dict[Key, Obj] = {} if state is None else dict(state.last_applied_manifests)
        self.log = EventLog(self.start, self.kernel.now, sink)
        self.waits = WaitTracker(self.client)
        lasting_faults = LastingFaults() if state is None else state.lasting_faults
        #: The client that injects faults between the platform and the store, if the scenario needs one.
        self._write_faults = write_faults or _write_faults_for(scenario, lasting_faults)
        self._faulty_client: FaultyClient | None = None
        self.platform = self._start_platform()
        if sink is not ignore_record or self._settings.with_nodes:  #  it records the time of the last event
            self.client.subscribe(self.log.observe)
        if state is not None:
            self._load_state(state)
        get_stored = self.store.get
        missing_namespaces = [
            name
            for name in [*SYSTEM_NAMESPACES, *undefined_namespaces(scenario.steps)]
            if get_stored(Key(scheme.NAMESPACE, "", name)) is None
        ]
        for step in (ScenarioStep(0, [*map(new_namespace, missing_namespaces)], ()), *scenario.steps):
            self.kernel.call_at(self.start + step.at, _StepCallback(self, step))
        last_step_at = self.start + max((step.at for step in scenario.steps), default=0)
        self._fault_injector = FaultInjector(self, scenario.faults, self._write_faults, last_step_at, lasting_faults)

    def state(self) -> State:
        """Return the current objects and lasting faults as a state.

        Call this only after all callbacks that are due at the present instant have run.
        """
        objects = {key_of(obj): obj for kind in self.store.kinds() for obj in self.store.list(kind)}
        return State(
            self.kernel.now(),
            self.store.revision,
            objects,
            dict(self._last_applied_manifests),
            lasting_faults=self._fault_injector.lasting_faults(),
        )

    def _load_state(self, state: State) -> None:
        events = state.added_events()
        self.log.register_existing_workloads(state.of_kind(scheme.WORKLOAD))
        self.waits.register_existing_workloads(state.of_kind(scheme.WORKLOAD))
        self.client.observe_existing(events)
        self.platform.runner.observe(events)

    def now(self) -> Duration:
        """Return the simulated time since the start of the simulation."""
        return self.kernel.now() - self.start

    def run_until(self, end_time: Duration | None) -> None:
        """Process events up to and including `end_time`, counted from the start, and set the clock to it.

        If `end_time` is None, process events until none is scheduled.
        """
        if end_time is None:
            self.kernel.run()
            return
        self.kernel.call_at(self.start + end_time, do_nothing)
        self.kernel.run(self.start + end_time)

    def flush_batched_writes(self) -> None:
        """Flush the batched writes of controllers.

        The scheduler's writes are not flushed while the backoff of a Workload or the reactivation of a cohort tree is
        still to come, or while Workloads preempt each other endlessly at this instant. A flush would then make the
        scheduler act too early.
        """
        now = self.kernel.now()
        self.kernel.run(now)
        is_looping = bool(self.loops) and self.loops[-1].at == now
        has_timed_work = is_looping or self.platform.index.queue_manager.next_release() is not None
        self.platform.runner.flush_delayed(("queue-status",) if has_timed_work else ("scheduler", "queue-status"))
        self.kernel.run(now)

    def crash(self) -> None:
        """Crash the platform, and schedule its restart from the stored objects at the same instant.

        The world needs `write_faults`, or a scenario with faults that affect writes. If the platform is already down,
        this call has no effect.
        """
        assert self._faulty_client is not None, "a world can crash only if created with write_faults=WriteFaults()"
        if self.platform.runner.is_stopped:
            return
        self._faulty_client.crash()
        self.platform.runner.stop()
        self.kernel.call_soon(self._restart)

    def record_missed_fault(self, fault: ScheduledFault) -> None:
        """Record a fault of the scenario that had no effect because its target did not exist."""
        self.missed_faults.append(fault)

    def _restart(self) -> None:
        if not self.client.is_settled():
            self.kernel.call_soon(self._restart)
            return
        self.platform = self._start_platform()
        stored_objects = [obj for kind in self.store.kinds() for obj in self.store.list(kind)]
        self.platform.runner.observe(to_added_events(stored_objects))

    def _start_platform(self) -> WiredPlatform:
        self._faulty_client = None if self._write_faults is None else FaultyClient(self.client, self._write_faults)
        with_nodes = self._settings.with_nodes
        container_delays = container_delays_of(self.scenario.cluster, self._seed)
        kubelets = SimulatedKubelets(container_delays, with_nodes=with_nodes, runtime=self.scenario.runtime)
        managed_jobs = self._settings.kueue.managed_jobs
        job_kinds = (scheme.JOB_KIND, *(kind for kind in managed_jobs.kinds if not scheme.is_built_in(kind)))
        create = partial(_create_simulated_jobs, managed_jobs, self.client)
        custom_jobs = OnDemandController("described-jobs", job_kinds, create)
        runtime = (BareWorkloads(), kubelets, custom_jobs, *((NodeAgents(),) if with_nodes else ()))
        cloud = simulated_cloud(self._seed) if with_nodes else ()
        client = self._faulty_client or self.client
        ports = PlatformPorts(self.kernel, client, runtime, cloud, self._record, self._record_preemption_loop)
        ports = replace(ports, history=changes_reader(self.store), pod_usage=_requested_usage)
        return build_platform(ports, self._settings)

    def objects(self, kind: str, namespace: str | None = None) -> Sequence[Obj]:
        """Return all stored objects of a kind, in all namespaces or in one."""
        return self.client.list(kind, namespace)

    def apply(self, obj: Obj) -> None:
        """Apply a manifest like `kubectl apply`; an object with generateName is always created."""
        if not obj["metadata"].get("name"):
            self.submit(Create(obj))
            return
        key = key_of(obj)
        if key.kind == scheme.POD and is_static_pod(obj):
            obj = with_node_lifetime(obj)
        stored_object, last_applied = self.client.get(key), self._last_applied_manifests.get(key)
        if stored_object is None:
            self._last_applied_manifests[key] = obj
            self.submit(Create(obj))
            if key.kind == scheme.NODE:
                self._recreate_static_pods(key.name)
        elif obj != last_applied:
            self._update(stored_object, last_applied or {}, obj)

    def _update(self, stored_object: Obj, last_applied: Obj, obj: Obj) -> None:
        new_object = merge_applied(stored_object, last_applied, obj)
        disabled_gates = self._settings.kueue.policy.rules.disabled_validation_gates
        errors = validate_update(new_object, stored_object, disabled_gates)
        if errors:
            self.rejected_writes.append((Update(new_object), InvalidObject(errors)))
        else:
            self._last_applied_manifests[key_of(obj)] = obj
            self.submit(Update(new_object))
            if group_kind(obj) in _RECORDED_KINDS and obj.get("status") != last_applied.get("status"):
                self.submit(UpdateStatus(with_path(new_object, ("metadata", "resourceVersion"), None)))

    def _recreate_static_pods(self, node: str) -> None:
        pods = [(key, each) for key, each in self._last_applied_manifests.items() if key.kind == scheme.POD]
        for key, manifest in pods:
            is_on_node = is_static_pod(manifest) and manifest["spec"]["nodeName"] == node
            if is_on_node and self.client.get(key) is None:
                self.submit(Create(manifest))

    def delete(self, key: Key) -> None:
        """Delete an object as a user; a static pod is gone at once."""
        is_static = key.kind == scheme.POD and is_static_pod(self._last_applied_manifests.pop(key, {}))
        self.submit(Delete(key, grace_period_seconds=0 if is_static else None))

    def submit(self, write: Write) -> None:
        """Submit a write as a user; if rejected, record it in `rejected_writes`, and a Pod also in `rejected_pods`."""

        def on_result(result: WriteResult) -> None:
            if result.error is None:
                return
            self.rejected_writes.append((write, result.error))
            if isinstance(write, Create) and group_kind(write.obj) == scheme.POD:
                self._record_rejected_pod(key_of(write.obj), str(result.error))

        self.client.submit([write], on_result)

    def _record_preemption_loop(self, loop: PreemptionLoop) -> None:
        self.loops.append(loop)
        self.log.record_loop(loop)
        if self._stop_on_loop:
            self._stop_on_loop = False
            self.kernel.call_soon(
                partial(_raise_stopped_by_loop, loop)
            )  #  not within a decision, which would be left incomplete

    def _record(self, at: Instant, controller: str, record: EventRecord) -> None:
        self.waits.observe(at, record)
        if record.reason == "FailedCreate" and record.regarding.kind == scheme.JOB:
            self._record_rejected_pod(record.regarding, record.message)

    def _record_rejected_pod(self, key: Key, message: str) -> None:
        cause = message.partition(" is forbidden: ")[2] or message
        if cause not in self.rejected_pods and len(self.rejected_pods) >= _REJECTION_CAUSES_MAX:
            cause = "other causes"
        self.rejected_pods.setdefault(cause, {})[key] = None


def _requested_usage(pod: Obj) -> MeasuredUsage:
    from batchyard.kubelet.simulated.containers import requested_usage  # noqa: PLC0415 - for autoscalers of pods only

    return requested_usage(pod)


def do_nothing() -> None:
    """Do nothing: the callback of a timer whose only purpose is to advance the clock."""


def _raise_stopped_by_loop(loop: PreemptionLoop) -> None:
    raise StoppedByPreemptionLoop(loop)


def _write_faults_for(scenario: Scenario, lasting_faults: LastingFaults) -> WriteFaults | None:
    has_conflicts = any(isinstance(fault_end.action, Conflicts) for fault_end in lasting_faults.ends)
    return WriteFaults() if has_conflicts or any(fault.affects_writes for fault in scenario.faults) else None


def undefined_namespaces(steps: Iterable[ScenarioStep]) -> list[str]:
    """Return the sorted names of the namespaces of a scenario's objects that have no manifest in the scenario.

    System namespaces are omitted.
    """
    metadata = [obj["metadata"] for step in steps for obj in step.apply]
    created_names = [obj["metadata"].get("name") for step in steps for obj in step.apply if obj["kind"] == "Namespace"]
    used_names = sorted({each["namespace"]: None for each in metadata if "namespace" in each})
    return [name for name in used_names if name not in (*SYSTEM_NAMESPACES, *created_names)]


def _settings_of(scenario: Scenario, state: State | None, seed: int) -> PlatformSettings:
    cluster, gpu_placement = scenario.cluster, scenario.gpu_placement
    autoscaling = {} if cluster is None else cluster["spec"].get("autoscaling") or {}
    profile = AutoscalingProfile(autoscaling.get("profile", AutoscalingProfile.BALANCED.value))
    has_topology = "Topology" in scenario.counts or (state is not None and bool(state.of_kind(scheme.TOPOLOGY)))
    with_nodes = cluster is not None or "Node" in scenario.counts or (state is not None and state.has_nodes)
    return PlatformSettings(
        scenario.kueue.with_own_job_kinds(),
        # A state contains the pods of such kinds, but not always the objects between, such as ReplicaSets.
        controllers=[group for group in GROUPS if state is None or group != APPS],
        with_nodes=with_nodes,
        with_topology=with_nodes and has_topology,
        profile=profile if gpu_placement is None else make_gpu_policy(gpu_placement, _draw_function(seed)),
        hotswap=scenario.hotswap,
        ends_when_idle=scenario.horizon is None,
        with_costs="Budget" in scenario.counts or (state is not None and bool(state.of_kind(scheme.BUDGET))),
    )


def _create_simulated_jobs(managed_jobs: ManagedJobs, objects: ObjectReader) -> Controller:
    from batchyard.jobs.described.simulation import SimulatedJobs  # noqa: PLC0415 - CEL takes 0.1 s to load

    return SimulatedJobs(managed_jobs, objects)


def _draw_function(seed: int) -> DrawBelow:
    numbers = count()
    return lambda stop: draw_integer(seed, "placement", str(next(numbers))) % stop


class _StepCallback:
    __slots__ = ("_step", "_world")

    def __init__(self, world: World, step: ScenarioStep) -> None:
        self._world = world
        self._step = step

    def __call__(self) -> None:
        world = self._world
        for obj in self._step.apply:
            world.apply(obj)
        for key in self._step.delete:
            world.delete(key)
