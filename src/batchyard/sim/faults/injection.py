"""Fault injection: each fault is written to the objects at its time, as the outside world would write it.

Machines crash or get a termination notice by the status of their Instances. The capacity of the cloud is changed in the
Cluster. Nodes are drained as by kubectl. Repeated faults end when no work is left that they could affect.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol

from batchyard.api import scheme, well_known
from batchyard.api.meta import Key, Obj, is_true, label, with_path
from batchyard.api.times import format_time
from batchyard.api.views.pods import BY_EVICTION, RUNNING, disrupted, is_terminal, is_terminating, node_of, phase
from batchyard.base import draw
from batchyard.base.instant import Duration, Instant, seconds
from batchyard.cloud.catalog import instances
from batchyard.cloud.catalog.machine_types import Catalog, MachineType, catalog_of
from batchyard.cloud.catalog.prices import step_duration
from batchyard.controller_runtime.kernel import VirtualEventLoop
from batchyard.interfaces.client import Delete, Reader, Update, UpdateStatus, Write
from batchyard.nodes.conditions import DrainOptions, cordoned, drain
from batchyard.scheduling.workload.lifecycle import is_finished
from batchyard.sim.event_log import EventLog
from batchyard.sim.faults import (
    Conflicts,
    Drain,
    Fail,
    ReclaimSpot,
    Restart,
    ScheduledFault,
    SlowBoot,
    Stockout,
    WriteFaults,
)

# --- shortages ---
#
# The Cluster while machines are sold out or boot slowly, computed from the Cluster without shortages.
#
# Shortages can begin and end in any order: the Cluster is always that of the users plus all active shortages.


#: The steps that take longer: all from the creation of the machine until its node is ready.
_STEPS: Final = ("boot", "registration", "network", "drivers")


def with_shortages(cluster: Obj, stockouts: Iterable[Stockout], slow_boots: Iterable[SlowBoot]) -> Obj:
    """Return the Cluster with some stockouts and slow boots."""
    sold_out = [row for stockout in stockouts for row in _rows(stockout, cluster)]
    if sold_out:
        cluster = with_path(cluster, ("spec", "capacity"), [*(cluster["spec"].get("capacity") or ()), *sold_out])
    catalog = catalog_of(cluster)
    for slow in slow_boots:
        if slow.machine in catalog.machines:
            times = _slowed(slow, catalog.machine(slow.machine), cluster, catalog)
            cluster = with_path(cluster, ("spec", "times", "byMachine", slow.machine), times)
    return cluster


def without_shortages(stored: Obj, calm: Obj, written: Obj) -> Obj:
    """Return the Cluster without shortages, keeping later changes by users; `written` was computed from `calm`."""
    times = (written["spec"].get("times") or {}).get("byMachine") or {}
    for path in [("spec", "capacity"), *(("spec", "times", "byMachine", name) for name in times)]:
        if _at(stored, path) == _at(written, path):
            stored = with_path(stored, path, _at(calm, path))
    return stored


def _at(obj: Any, path: Iterable[str]) -> Any:
    for field in path:
        obj = (obj or {}).get(field)
    return obj


def _rows(stockout: Stockout, cluster: Obj) -> Iterator[Mapping[str, Any]]:
    """Yield rows of capacity that leave no machine for new requests; existing machines are kept."""
    model = {"provisioning": stockout.provisioning} if stockout.provisioning else {}
    for zone in [stockout.zone] if stockout.zone else _zones(cluster):
        yield {"machineType": stockout.machine, "zone": zone, **model, "count": 0}


def _zones(cluster: Obj) -> list[str]:
    """Return all zones in which the Cluster may have machines."""
    spec = cluster["spec"]
    pools = spec.get("nodePools") or ()
    return sorted({zone: None for rows in (spec, *pools) for zone in rows.get("zones") or ()})


def _slowed(slow: SlowBoot, machine: MachineType, cluster: Obj, catalog: Catalog) -> Mapping[str, Any]:
    """Return the times of a machine type, multiplied from its current ones."""
    current = ((cluster["spec"].get("times") or {}).get("byMachine") or {}).get(machine.name) or {}
    longer = {}
    for step in _STEPS:
        spread = step_duration(step, machine, cluster, catalog)
        shortest, typical, longest = (f"{figure * slow.times}us" for figure in spread)
        longer[step] = {"min": shortest, "typical": typical, "max": longest}
    return {**current, **longer}


#: A manual drain removes every pod that can be removed from the node.
_DRAIN: Final = DrainOptions(force=True, ignore_daemonsets=True, delete_emptydir_data=True)
_JOB_ENDS: Final = ("Complete", "Failed")
_JOB_SET_ENDS: Final = ("Completed", "Failed")


class FaultTarget(Protocol):
    """The part of a world that fault injection needs."""

    kernel: VirtualEventLoop
    log: EventLog

    @property
    def client(self) -> Reader:
        """The objects."""

    def submit(self, write: Write) -> None:
        """Write as the outside world does."""

    def crash(self) -> None:
        """Crash the platform and restart it."""

    def note_missed(self, fault: ScheduledFault) -> None:
        """Record a fault whose target did not exist at its time."""


class FaultInjector:
    """The faults of a scenario in a world. `calm` is the time of the scenario's last step."""

    def __init__(
        self,
        scene: FaultTarget,
        faults: Sequence[ScheduledFault],
        trouble: WriteFaults | None,
        calm: Instant,
    ) -> None:
        self._scene = scene
        self._trouble = trouble
        self._calm = calm
        self._begin = scene.kernel.now()
        #: The number of pending kernel callbacks that belong to faults.
        self._scheduled = 0
        self._stockouts: list[Stockout] = []
        self._slow_boots: list[SlowBoot] = []
        self._conflicts: list[Conflicts] = []
        #: The Cluster without the active shortages, and the one with them, as written last.
        self._changed: tuple[Obj, Obj] | None = None
        for fault in faults:
            self._schedule(fault, enumerate(fault.times()))

    def _schedule(self, fault: ScheduledFault, times: Iterator[tuple[int, Duration]]) -> None:
        """Schedule the next occurrence of a fault."""
        for number, at in times:
            self._call_at(self._begin + at, partial(self._occur, fault, number, times))
            return

    def _call_at(self, when: Instant, work: Callable[[], None]) -> None:
        self._scheduled += 1
        self._scene.kernel.call_at(when, partial(self._work, work))

    def _work(self, work: Callable[[], None]) -> None:
        self._scheduled -= 1
        work()

    def _occur(self, fault: ScheduledFault, number: int, times: Iterator[tuple[int, Duration]]) -> None:
        """Execute a fault; then schedule its next occurrence, if any work is left that it could affect."""
        repeats = fault.at is None
        if repeats and self._is_over():
            return
        self._do(fault, number if repeats else None)
        self._schedule(fault, times)

    def _is_over(self) -> bool:
        """Whether only faults are pending: all work has ended, or the rest waits forever."""
        kernel, client = self._scene.kernel, self._scene.client
        if kernel.now() < self._calm:
            return False
        if kernel.pending() <= self._scheduled:
            return not any(phase(pod) == RUNNING for pod in client.list(scheme.POD))
        return not has_unfinished_work(client)

    def _do(self, fault: ScheduledFault, number: int | None) -> None:
        match fault.action:
            case Fail() as action:
                self._log_targets("fail", fault, self._fail(action, _Order(fault, number)))
            case ReclaimSpot() as action:
                self._log_targets("reclaimSpot", fault, self._reclaim(action, _Order(fault, number)))
            case Drain() as action:
                self._log_targets("drain", fault, self._drain(action))
            case Stockout() as action:
                self._last(self._stockouts, action, action.lasts, self._change_cluster)
                model = {"provisioning": action.provisioning} if action.provisioning else {}
                self._log("stockout", machine=action.machine, zone=action.zone, **model, seconds=seconds(action.lasts))
            case SlowBoot() as action:
                self._last(self._slow_boots, action, action.lasts, self._change_cluster)
                self._log("slowBoot", machine=action.machine, times=action.times, seconds=seconds(action.lasts))
            case Conflicts() as action:
                self._last(self._conflicts, action, action.lasts, self._change_conflicts)
                self._log("conflicts", percent=action.percent, seconds=seconds(action.lasts))
            case Restart():
                self._log("restart")
                self._scene.crash()

    def _log(self, fault: str, **fields: Any) -> None:
        self._scene.log.fault({"fault": fault, **{name: value for name, value in fields.items() if value != ""}})

    def _log_targets(self, name: str, fault: ScheduledFault, nodes: Sequence[str]) -> None:
        """Log the affected nodes. A single fault without a target is recorded as missed, a random one is not."""
        self._log(name, nodes=nodes)
        if not nodes and fault.at is not None:
            self._scene.note_missed(fault)

    # Machines.

    def _fail(self, action: Fail, order: "_Order") -> Sequence[str]:
        """Crash machines; return their names."""
        now = self._scene.kernel.now()
        lost = order.first(_targets(action, self._scene.client))
        if not action.slice:
            lost = lost[: action.count]
        for instance in lost:
            self._scene.submit(UpdateStatus(instances.in_phase(instance, instances.CRASHED, now)))
        return _names(lost)

    def _reclaim(self, action: ReclaimSpot, order: "_Order") -> Sequence[str]:
        """Send Spot machines a termination notice; return their names."""
        now = self._scene.kernel.now()
        stop = format_time(now + instances.NOTICE)
        found = [obj for obj in _of_pool(action.pool, self._scene.client) if _is_spot(obj)]
        reclaimed = order.first(found)[: action.count]
        for instance in reclaimed:
            self._scene.submit(UpdateStatus(instances.in_phase(instance, instances.STOPPING, now, stopAt=stop)))
        return _names(reclaimed)

    def _drain(self, action: Drain) -> Sequence[str]:
        """Cordon a node and evict its pods; uncordon it in time, if it is still the same node."""
        client, submit = self._scene.client, self._scene.submit
        node = client.get(Key(scheme.NODE, "", action.node))
        if node is None:
            return []
        submit(Update(cordoned(node)))
        there = [pod for pod in client.list(scheme.POD) if node_of(pod) == action.node and not is_terminating(pod)]
        for pod in drain(there, _DRAIN).evicted:
            submit(UpdateStatus(disrupted(pod, BY_EVICTION, self._scene.kernel.now())))
            submit(Delete(Key(scheme.POD, pod["metadata"]["namespace"], pod["metadata"]["name"])))
        if action.lasts is not None:
            uncordon = partial(self._uncordon, action.node, node["metadata"]["uid"])
            self._call_at(self._scene.kernel.now() + action.lasts, uncordon)
        return [action.node]

    def _uncordon(self, name: str, uid: str) -> None:
        node = self._scene.client.get(Key(scheme.NODE, "", name))
        if node is not None and node["metadata"]["uid"] == uid:
            self._scene.submit(Update(cordoned(node, False)))

    # Lasting faults.

    def _last(self, lasting: list[Any], action: Any, lasts: Duration, change: Callable[[], None]) -> None:
        """Start a lasting fault, and schedule its end."""

        def end() -> None:
            lasting.remove(action)
            change()

        lasting.append(action)
        change()
        self._call_at(self._scene.kernel.now() + lasts, end)

    def _change_cluster(self) -> None:
        """Write the Cluster with the active shortages."""
        stored = next(iter(self._scene.client.list(scheme.CLUSTER)), None)
        if stored is None:
            return
        calm = stored if self._changed is None else without_shortages(stored, *self._changed)
        changed = with_shortages(calm, self._stockouts, self._slow_boots)
        self._changed = (calm, changed)
        self._scene.submit(Update(changed))

    def _change_conflicts(self) -> None:
        """Set the rate of conflicts to the highest of the active faults."""
        if self._trouble is not None:
            worst = max((action.percent for action in self._conflicts), default=0) / 100
            self._trouble.conflicts = max(worst, self._trouble.conflicts_always)


class _Order:
    """The order in which a fault selects its targets: by name, or random for a repeated fault."""

    def __init__(self, fault: ScheduledFault, number: int | None) -> None:
        self._fault = fault
        self._number = number

    def first(self, found: Iterable[Obj]) -> list[Obj]:
        """Return the machines in that order."""
        return sorted(found, key=self._rank)

    def _rank(self, instance: Obj) -> tuple[int, str]:
        name = instance["metadata"]["name"]
        if self._number is None:
            return 0, name
        return draw(self._fault.seed, "victim", repr(self._fault.action), str(self._number), name), name


def has_unfinished_work(reader: Reader) -> bool:
    """Whether a Job, JobSet, Workload or pod has not ended."""
    return (
        any(not is_finished(workload) for workload in reader.list(scheme.WORKLOAD))
        or any(not _has_ended(job, _JOB_ENDS) for job in reader.list(scheme.JOB))
        or any(not _has_ended(job_set, _JOB_SET_ENDS) for job_set in reader.list(scheme.JOB_SET))
        or any(not is_terminal(pod) for pod in reader.list(scheme.POD))
    )


def _has_ended(job: Obj, ends: Iterable[str]) -> bool:
    status: Mapping[str, Any] = job.get("status") or {}
    return any(is_true(status, end) for end in ends)


def _targets(action: Fail, reader: Reader) -> Iterator[Obj]:
    """Return the possible targets of a failure."""
    if action.pool or action.slice:
        return _of_pool(action.pool or action.slice, reader)
    if action.node:
        return _machines([action.node], reader)
    namespace, _, name = (action.pod or action.job_set).rpartition("/")
    pods = [pod for pod in reader.list(scheme.POD, namespace or "default") if not is_terminal(pod)]
    if action.pod:
        met = [pod for pod in pods if pod["metadata"]["name"] == name]
    else:
        met = [pod for pod in pods if label(pod, well_known.JOB_SET_NAME) == name]
    return _machines(dict.fromkeys(node_of(pod) for pod in met), reader)


def _of_pool(pool: str, reader: Reader) -> Iterator[Obj]:
    found = reader.list(scheme.INSTANCE)
    return (obj for obj in found if obj["spec"]["pool"] == pool and _is_up(obj))


def _machines(nodes: Iterable[str], reader: Reader) -> Iterator[Obj]:
    """Yield the machines of nodes that are up."""
    found = (reader.get(Key(scheme.INSTANCE, "", name)) for name in nodes)
    return (obj for obj in found if obj is not None and _is_up(obj))


def _is_up(instance: Obj) -> bool:
    up = instances.phase_of(instance) in {instances.RUNNING, instances.STOPPING}
    return up and not instances.is_leaving(instance)


def _is_spot(instance: Obj) -> bool:
    is_stopping = instances.phase_of(instance) == instances.STOPPING
    return instance["spec"].get("provisioning") == "spot" and not is_stopping


def _names(found: Iterable[Obj]) -> list[str]:
    return [obj["metadata"]["name"] for obj in found]
