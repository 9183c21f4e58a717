"""Fault injection: when a fault is due, the affected objects are changed as a cloud or a user would change them.

Machines crash or get a termination notice in the status of their Instances. The capacity of the cloud is changed in the
Cluster. Nodes are drained as `kubectl drain` does. Repeated faults end when all work has ended or waits forever.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from batchyard.api import scheme, well_known
from batchyard.api.meta import Key, Obj, is_true, label, with_path
from batchyard.api.times import format_time
from batchyard.api.views.pods import (
    DISRUPTION_BY_EVICTION,
    RUNNING,
    bound_node,
    is_terminal,
    is_terminating,
    phase,
    with_disruption,
)
from batchyard.base.instant import Duration, Instant, duration_seconds
from batchyard.cloud.catalog import instances
from batchyard.cloud.catalog.machine_types import Catalog, MachineType, catalog_of
from batchyard.cloud.catalog.pool_properties import step_duration
from batchyard.controller_runtime.kernel import VirtualEventLoop
from batchyard.interfaces.client import Delete, Reader, Update, UpdateStatus, Write
from batchyard.nodes.conditions import DrainOptions, plan_drain, with_unschedulable
from batchyard.scheduling.workload.lifecycle import is_finished
from batchyard.sim import faults as fault_kinds
from batchyard.sim.event_log import EventLog

# The Cluster object while machines are sold out or boot slowly, computed from the Cluster without shortages.
#
# Shortages can begin and end in any order: the result is always the users' Cluster with all active shortages.


#: The slower steps of a boot: all steps from the creation of the machine until its node is ready.
_BOOT_STEPS: Final = ("boot", "registration", "network", "drivers")


def with_shortages(
    cluster: Obj, stockouts: Iterable[fault_kinds.Stockout], slow_boots: Iterable[fault_kinds.SlowBoot]
) -> Obj:
    """Return a Cluster object in which machine types are sold out (`stockouts`) or boot slowly (`slow_boots`)."""
    sold_out = [row for stockout in stockouts for row in _empty_capacity_entries(stockout, cluster)]
    if sold_out:
        cluster = with_path(cluster, ("spec", "capacity"), [*(cluster["spec"].get("capacity") or ()), *sold_out])
    catalog = catalog_of(cluster)
    for slow_boot in slow_boots:
        if slow_boot.machine in catalog.machines:
            slowed_times = _slowed_times(slow_boot, catalog.machine(slow_boot.machine), cluster, catalog)
            cluster = with_path(cluster, ("spec", "times", "byMachine", slow_boot.machine), slowed_times)
    return cluster


def without_shortages(cluster: Obj, written_without_shortages: Obj, written_with_shortages: Obj) -> Obj:
    """Return `cluster` without the injected shortages. Fields that changed since the last write stay as they are.

    `written_with_shortages` is the Cluster as last written; `written_without_shortages` is the same without them.
    """
    times_by_machine = (written_with_shortages["spec"].get("times") or {}).get("byMachine") or {}
    for path in [("spec", "capacity"), *(("spec", "times", "byMachine", name) for name in times_by_machine)]:
        if _value_at(cluster, path) == _value_at(written_with_shortages, path):
            cluster = with_path(cluster, path, _value_at(written_without_shortages, path))
    return cluster


def _value_at(obj: Any, path: Iterable[str]) -> Any:
    for field in path:
        obj = (obj or {}).get(field)
    return obj


def _empty_capacity_entries(stockout: fault_kinds.Stockout, cluster: Obj) -> Iterator[Mapping[str, Any]]:
    """Yield `capacity` entries that allow no more machines of a sold-out type; existing machines are kept."""
    provisioning_field = {"provisioning": stockout.provisioning} if stockout.provisioning else {}
    for zone in [stockout.zone] if stockout.zone else _zones_of_cluster(cluster):
        yield {"machineType": stockout.machine, "zone": zone, **provisioning_field, "count": 0}


def _zones_of_cluster(cluster: Obj) -> list[str]:
    spec = cluster["spec"]
    pools = spec.get("nodePools") or ()
    return sorted({zone: None for rows in (spec, *pools) for zone in rows.get("zones") or ()})


def _slowed_times(
    slow_boot: fault_kinds.SlowBoot, machine: MachineType, cluster: Obj, catalog: Catalog
) -> Mapping[str, Any]:
    old_times = ((cluster["spec"].get("times") or {}).get("byMachine") or {}).get(machine.name) or {}
    slower_times = {}
    for step in _BOOT_STEPS:
        step_durations = step_duration(step, machine, cluster, catalog)
        shortest, typical, longest = (f"{duration * slow_boot.times}us" for duration in step_durations)
        slower_times[step] = {"min": shortest, "typical": typical, "max": longest}
    return {**old_times, **slower_times}


#: The options of a drain: every pod that can be evicted from the node is evicted.
_DRAIN_OPTIONS: Final = DrainOptions(force=True, ignore_daemonsets=True, delete_emptydir_data=True)
_JOB_END_CONDITIONS: Final = ("Complete", "Failed")
_JOB_SET_END_CONDITIONS: Final = ("Completed", "Failed")


_ActionT = TypeVar("_ActionT", bound=fault_kinds.LastingAction)


class FaultTarget(Protocol):
    """The interface of the simulation into which faults are injected."""

    kernel: VirtualEventLoop
    log: EventLog

    @property
    def client(self) -> Reader:
        """A reader of the stored objects."""

    def submit(self, write: Write) -> None:
        """Submit a write for a fault, as if the cloud or a user made it."""

    def crash(self) -> None:
        """Crash the platform and restart it."""

    def record_missed_fault(self, fault: fault_kinds.ScheduledFault) -> None:
        """Record a fault that had no effect because its target did not exist."""


class FaultInjector:
    """Injects a scenario's faults into a simulation, and ends lasting ones, even if they began before its start."""

    def __init__(
        self,
        world: FaultTarget,
        faults: Sequence[fault_kinds.ScheduledFault],
        write_faults: fault_kinds.WriteFaults | None,
        last_step_at: Instant,
        lasting_faults: fault_kinds.LastingFaults,
    ) -> None:
        """Schedule the faults, and the ends of `lasting_faults`; `last_step_at` is when the scenario's last step is."""
        self._world = world
        self._write_faults = write_faults
        self._last_step_at = last_step_at
        self._start_time = world.kernel.now()
        #: The number of scheduled kernel callbacks that belong to faults.
        self._scheduled_count = 0
        #: The ends of the lasting faults that are under way, in the order in which the faults began.
        self._fault_ends = list(lasting_faults.ends)
        #: The Cluster without the active shortages and the Cluster with them, as last written.
        self._written_clusters = lasting_faults.written_clusters
        for fault_end in lasting_faults.ends:
            self._schedule_end(fault_end)
        if self._active_faults(fault_kinds.Conflicts):
            self._update_conflict_rate()
        for fault in faults:
            self._schedule(fault, fault.occurrences())

    def lasting_faults(self) -> fault_kinds.LastingFaults:
        """Return the lasting faults that are under way."""
        return fault_kinds.LastingFaults(tuple(self._fault_ends), self._written_clusters)

    def _schedule(self, fault: fault_kinds.ScheduledFault, occurrences: Iterator[tuple[int, Duration]]) -> None:
        for number, at in occurrences:
            self._call_at(self._start_time + at, partial(self._run_occurrence, fault, number, occurrences))
            return

    def _call_at(self, due_at: Instant, callback: Callable[[], None]) -> None:
        self._scheduled_count += 1
        self._world.kernel.call_at(due_at, partial(self._run_callback, callback))

    def _run_callback(self, callback: Callable[[], None]) -> None:
        self._scheduled_count -= 1
        callback()

    def _run_occurrence(
        self, fault: fault_kinds.ScheduledFault, number: int, occurrences: Iterator[tuple[int, Duration]]
    ) -> None:
        is_repeated = fault.at is None
        if is_repeated and self._is_run_over():
            return
        self._inject_fault(fault, number if is_repeated else None)
        self._schedule(fault, occurrences)

    def _is_run_over(self) -> bool:
        """Return whether only faults remain in the run: all work has ended, or waits forever."""
        kernel, client = self._world.kernel, self._world.client
        if kernel.now() < self._last_step_at:
            return False
        if kernel.pending_count() <= self._scheduled_count:
            return not any(phase(pod) == RUNNING for pod in client.list(scheme.POD))
        return not has_unfinished_work(client)

    def _inject_fault(self, fault: fault_kinds.ScheduledFault, number: int | None) -> None:
        match fault.action:
            case fault_kinds.Fail() as action:
                self._log_targets("fail", fault, self._crash_machines(action, _TargetOrder(fault, number)))
            case fault_kinds.ReclaimSpot() as action:
                self._log_targets("reclaimSpot", fault, self._reclaim_machines(action, _TargetOrder(fault, number)))
            case fault_kinds.Drain() as action:
                self._log_targets("drain", fault, self._drain_node(action))
            case fault_kinds.Stockout() as action:
                self._start_lasting_fault(action, action.lasts)
                provisioning_field = {"provisioning": action.provisioning} if action.provisioning else {}
                seconds = duration_seconds(action.lasts)
                self._log("stockout", machine=action.machine, zone=action.zone, **provisioning_field, seconds=seconds)
            case fault_kinds.SlowBoot() as action:
                self._start_lasting_fault(action, action.lasts)
                seconds = duration_seconds(action.lasts)
                self._log("slowBoot", machine=action.machine, times=action.times, seconds=seconds)
            case fault_kinds.Conflicts() as action:
                self._start_lasting_fault(action, action.lasts)
                self._log("conflicts", percent=action.percent, seconds=duration_seconds(action.lasts))
            case fault_kinds.Restart():
                self._log("restart")
                self._world.crash()

    def _log(self, fault: str, **fields: Any) -> None:
        self._world.log.record_fault({"fault": fault, **{name: value for name, value in fields.items() if value != ""}})

    def _log_targets(self, name: str, fault: fault_kinds.ScheduledFault, nodes: Sequence[str]) -> None:
        self._log(name, nodes=nodes)
        if not nodes and fault.at is not None:
            self._world.record_missed_fault(fault)

    # --- machines ---

    def _crash_machines(self, action: fault_kinds.Fail, target_order: "_TargetOrder") -> Sequence[str]:
        now = self._world.kernel.now()
        target_machines = target_order.sort_targets(_machines_to_crash(action, self._world.client))
        if not action.slice:
            target_machines = target_machines[: action.count]
        for instance in target_machines:
            self._world.submit(UpdateStatus(instances.with_phase(instance, instances.CRASHED, now)))
        return _names_of(target_machines)

    def _reclaim_machines(self, action: fault_kinds.ReclaimSpot, target_order: "_TargetOrder") -> Sequence[str]:
        now = self._world.kernel.now()
        stop_at = format_time(now + instances.PREEMPTION_NOTICE)
        spot_machines = [obj for obj in _machines_of_pool(action.pool, self._world.client) if _is_spot(obj)]
        target_machines = target_order.sort_targets(spot_machines)[: action.count]
        for instance in target_machines:
            self._world.submit(UpdateStatus(instances.with_phase(instance, instances.STOPPING, now, stopAt=stop_at)))
        return _names_of(target_machines)

    def _drain_node(self, action: fault_kinds.Drain) -> Sequence[str]:
        client, submit_write = self._world.client, self._world.submit
        node = client.get(Key(scheme.NODE, "", action.node))
        if node is None:
            return []
        submit_write(Update(with_unschedulable(node)))
        pods = [pod for pod in client.list(scheme.POD) if bound_node(pod) == action.node and not is_terminating(pod)]
        for pod in plan_drain(pods, _DRAIN_OPTIONS).evicted_pods:
            submit_write(UpdateStatus(with_disruption(pod, DISRUPTION_BY_EVICTION, self._world.kernel.now())))
            submit_write(Delete(Key(scheme.POD, pod["metadata"]["namespace"], pod["metadata"]["name"])))
        if action.lasts is not None:
            self._start_lasting_fault(action, action.lasts, node["metadata"]["uid"])
        return [action.node]

    def _uncordon(self, name: str, uid: str) -> None:
        node = self._world.client.get(Key(scheme.NODE, "", name))
        if node is not None and node["metadata"]["uid"] == uid:
            self._world.submit(Update(with_unschedulable(node, False)))

    # --- lasting faults ---

    def _start_lasting_fault(self, action: fault_kinds.LastingAction, duration: Duration, node_uid: str = "") -> None:
        fault_end = fault_kinds.FaultEnd(self._world.kernel.now() + duration, action, node_uid)
        self._fault_ends.append(fault_end)
        self._update_effects(action)
        self._schedule_end(fault_end)

    def _schedule_end(self, fault_end: fault_kinds.FaultEnd) -> None:
        self._call_at(fault_end.at, partial(self._end_fault, fault_end))

    def _end_fault(self, fault_end: fault_kinds.FaultEnd) -> None:
        self._fault_ends.remove(fault_end)
        if isinstance(fault_end.action, fault_kinds.Drain):
            self._uncordon(fault_end.action.node, fault_end.node_uid)
        self._update_effects(fault_end.action)

    def _update_effects(self, action: fault_kinds.LastingAction) -> None:
        match action:
            case fault_kinds.Stockout() | fault_kinds.SlowBoot():
                self._update_shortages()
            case fault_kinds.Conflicts():
                self._update_conflict_rate()

    def _active_faults(self, kind: type[_ActionT]) -> list[_ActionT]:
        return [fault_end.action for fault_end in self._fault_ends if isinstance(fault_end.action, kind)]

    def _update_shortages(self) -> None:
        cluster = next(iter(self._world.client.list(scheme.CLUSTER)), None)
        if cluster is None:
            return
        without_shortages_cluster = (
            cluster if self._written_clusters is None else without_shortages(cluster, *self._written_clusters)
        )
        with_shortages_cluster = with_shortages(
            without_shortages_cluster,
            self._active_faults(fault_kinds.Stockout),
            self._active_faults(fault_kinds.SlowBoot),
        )
        self._written_clusters = (without_shortages_cluster, with_shortages_cluster)
        self._world.submit(Update(with_shortages_cluster))

    def _update_conflict_rate(self) -> None:
        if self._write_faults is not None:
            highest_rate = max((each.percent for each in self._active_faults(fault_kinds.Conflicts)), default=0) / 100
            self._write_faults.conflict_rate = max(highest_rate, self._write_faults.base_conflict_rate)


class _TargetOrder:
    """The order in which a fault picks machines: by name, or random for a repeated fault."""

    def __init__(self, fault: fault_kinds.ScheduledFault, occurrence_number: int | None) -> None:
        self._fault = fault
        self._number = occurrence_number

    def sort_targets(self, machines: Iterable[Obj]) -> list[Obj]:
        return sorted(machines, key=self._target_key)

    def _target_key(self, instance: Obj) -> tuple[int, str]:
        name = instance["metadata"]["name"]
        if self._number is None:
            return 0, name
        return self._fault.draw("victim", str(self._number), name), name


def has_unfinished_work(reader: Reader) -> bool:
    """Return whether any Job, JobSet, Workload or pod has not ended yet."""
    return (
        any(not is_finished(workload) for workload in reader.list(scheme.WORKLOAD))
        or any(not _has_ended(job, _JOB_END_CONDITIONS) for job in reader.list(scheme.JOB))
        or any(not _has_ended(job_set, _JOB_SET_END_CONDITIONS) for job_set in reader.list(scheme.JOB_SET))
        or any(not is_terminal(pod) for pod in reader.list(scheme.POD))
    )


def _has_ended(job: Obj, end_conditions: Iterable[str]) -> bool:
    status: Mapping[str, Any] = job.get("status") or {}
    return any(is_true(status, end) for end in end_conditions)


def _machines_to_crash(action: fault_kinds.Fail, reader: Reader) -> Iterator[Obj]:
    if action.pool or action.slice:
        return _machines_of_pool(action.pool or action.slice, reader)
    if action.node:
        return _machines_of_nodes([action.node], reader)
    namespace, _, name = (action.pod or action.job_set).rpartition("/")
    pods = [pod for pod in reader.list(scheme.POD, namespace or "default") if not is_terminal(pod)]
    if action.pod:
        target_pods = [pod for pod in pods if pod["metadata"]["name"] == name]
    else:
        target_pods = [pod for pod in pods if label(pod, well_known.JOB_SET_NAME) == name]
    return _machines_of_nodes(dict.fromkeys(bound_node(pod) for pod in target_pods), reader)


def _machines_of_pool(pool: str, reader: Reader) -> Iterator[Obj]:
    instances = reader.list(scheme.INSTANCE)
    return (obj for obj in instances if obj["spec"]["pool"] == pool and _is_machine_up(obj))


def _machines_of_nodes(nodes: Iterable[str], reader: Reader) -> Iterator[Obj]:
    instances = (reader.get(Key(scheme.INSTANCE, "", name)) for name in nodes)
    return (obj for obj in instances if obj is not None and _is_machine_up(obj))


def _is_machine_up(instance: Obj) -> bool:
    is_started = instances.phase_of(instance) in {instances.RUNNING, instances.STOPPING}
    return is_started and not instances.is_being_deleted(instance)


def _is_spot(instance: Obj) -> bool:
    is_stopping = instances.phase_of(instance) == instances.STOPPING
    return instance["spec"].get("provisioning") == "spot" and not is_stopping


def _names_of(objects: Iterable[Obj]) -> list[str]:
    return [obj["metadata"]["name"] for obj in objects]
