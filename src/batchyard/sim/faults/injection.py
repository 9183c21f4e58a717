"""Faults done to a world: each is what the outside world would write to the objects, at its time.

Machines crash or get notice by the status of their Instances, what the cloud has is changed in the Cluster, nodes are
drained as kubectl does it. Faults that come again and again end when there is nobody left whom they could trouble.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol

from batchyard.api import scheme, well_known
from batchyard.api.conditions import is_true
from batchyard.api.meta import Key, Obj, label, with_path
from batchyard.api.times import format_time
from batchyard.api.views.pod_lifecycle import (
    BY_EVICTION,
    RUNNING,
    disrupted,
    is_terminal,
    is_terminating,
    node_of,
    phase,
)
from batchyard.base.instant import Duration, Instant, seconds
from batchyard.base.seeded_draws import draw
from batchyard.cloud.catalog import instances
from batchyard.cloud.catalog.machine_types import Catalog, MachineType, catalog_of
from batchyard.cloud.catalog.prices import spread_of
from batchyard.controller_runtime.kernel import VirtualKernel
from batchyard.interfaces.client import Delete, Reader, Update, UpdateStatus, Write
from batchyard.nodes.conditions import DrainOptions, cordoned, drain
from batchyard.scheduling.workload.lifecycle import is_finished
from batchyard.sim.event_log import EventLog
from batchyard.sim.faults.faults import (
    Conflicts,
    Drain,
    Fail,
    ReclaimSpot,
    Restart,
    ScheduledFault,
    SlowBoot,
    Stockout,
)
from batchyard.sim.faults.faulty_client import Trouble

# --- shortages ---
#
# The Cluster as it is while machines are sold out, or take longer to boot: worked out from what it is otherwise.
#
# Whatever begins or ends in whatever order, the Cluster is what users say, changed by all that lasts.


#: What takes longer: all from the machine until its node is ready.
_STEPS: Final = ("boot", "registration", "network", "drivers")


def with_shortages(cluster: Obj, stockouts: Iterable[Stockout], slow_boots: Iterable[SlowBoot]) -> Obj:
    """The Cluster under some stock-outs and slow boots."""
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
    """The Cluster as users have it: `calm` was that when `written` was made of it; they may have changed it since."""
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
    """Rows of capacity that leave nothing to whoever comes; those who have machines keep them."""
    model = {"provisioning": stockout.provisioning} if stockout.provisioning else {}
    for zone in [stockout.zone] if stockout.zone else _zones(cluster):
        yield {"machineType": stockout.machine, "zone": zone, **model, "count": 0}


def _zones(cluster: Obj) -> list[str]:
    """All zones in which the Cluster may have machines."""
    spec = cluster["spec"]
    pools = spec.get("nodePools") or ()
    return sorted({zone: None for rows in (spec, *pools) for zone in rows.get("zones") or ()})


def _slowed(slow: SlowBoot, machine: MachineType, cluster: Obj, catalog: Catalog) -> Mapping[str, Any]:
    """The times of a machine type, so many times as long as the Cluster has them now."""
    said = ((cluster["spec"].get("times") or {}).get("byMachine") or {}).get(machine.name) or {}
    longer = {}
    for step in _STEPS:
        spread = spread_of(step, machine, cluster, catalog)
        shortest, typical, longest = (f"{figure * slow.times}us" for figure in spread)
        longer[step] = {"min": shortest, "typical": typical, "max": longest}
    return {**said, **longer}


#: A drain by hand gets everything off the node that anybody may take off it.
_DRAIN: Final = DrainOptions(force=True, ignore_daemonsets=True, delete_emptydir_data=True)
_JOB_ENDS: Final = ("Complete", "Failed")
_JOB_SET_ENDS: Final = ("Completed", "Failed")


class Scene(Protocol):
    """A world, as far as faults need it."""

    kernel: VirtualKernel
    log: EventLog

    @property
    def client(self) -> Reader:
        """The objects."""

    def submit(self, write: Write) -> None:
        """Write as the outside world does."""

    def crash(self) -> None:
        """Let the platform crash and start anew."""

    def note_missed(self, fault: ScheduledFault) -> None:
        """Take note of a fault that met nobody when its time came."""


class Injection:
    """The faults of a scenario in a world. `calm` is when its last step is done."""

    def __init__(
        self,
        scene: Scene,
        faults: Sequence[ScheduledFault],
        trouble: Trouble | None,
        calm: Instant,
    ) -> None:
        self._scene = scene
        self._trouble = trouble
        self._calm = calm
        self._begin = scene.kernel.now()
        #: Work of the kernel that is here for faults alone.
        self._scheduled = 0
        self._stockouts: list[Stockout] = []
        self._slow_boots: list[SlowBoot] = []
        self._conflicts: list[Conflicts] = []
        #: The Cluster without what lasts, and with it, as it was written last.
        self._changed: tuple[Obj, Obj] | None = None
        for fault in faults:
            self._schedule(fault, enumerate(fault.times()))

    def _schedule(self, fault: ScheduledFault, times: Iterator[tuple[int, Duration]]) -> None:
        """Have the next of its times come."""
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
        """Do it; then comes the next time, if there is still somebody to be troubled."""
        repeats = fault.at is None
        if repeats and self._is_over():
            return
        self._do(fault, number if repeats else None)
        self._schedule(fault, times)

    def _is_over(self) -> bool:
        """Whether nothing but faults is left to happen: all work is done, or what is left waits for ever."""
        kernel, client = self._scene.kernel, self._scene.client
        if kernel.now() < self._calm:
            return False
        if kernel.pending() <= self._scheduled:
            return not any(phase(pod) == RUNNING for pod in client.list(scheme.POD))
        return not has_unfinished_work(client)

    def _do(self, fault: ScheduledFault, number: int | None) -> None:
        match fault.action:
            case Fail() as action:
                self._tell_met("fail", fault, self._fail(action, _Order(fault, number)))
            case ReclaimSpot() as action:
                self._tell_met("reclaimSpot", fault, self._reclaim(action, _Order(fault, number)))
            case Drain() as action:
                self._tell_met("drain", fault, self._drain(action))
            case Stockout() as action:
                self._last(self._stockouts, action, action.lasts, self._change_cluster)
                model = {"provisioning": action.provisioning} if action.provisioning else {}
                self._tell("stockout", machine=action.machine, zone=action.zone, **model, seconds=seconds(action.lasts))
            case SlowBoot() as action:
                self._last(self._slow_boots, action, action.lasts, self._change_cluster)
                self._tell("slowBoot", machine=action.machine, times=action.times, seconds=seconds(action.lasts))
            case Conflicts() as action:
                self._last(self._conflicts, action, action.lasts, self._change_conflicts)
                self._tell("conflicts", percent=action.percent, seconds=seconds(action.lasts))
            case Restart():
                self._tell("restart")
                self._scene.crash()

    def _tell(self, fault: str, **fields: Any) -> None:
        self._scene.log.fault({"fault": fault, **{name: value for name, value in fields.items() if value != ""}})

    def _tell_met(self, name: str, fault: ScheduledFault, nodes: Sequence[str]) -> None:
        """Tell whom a fault met. That chance met nobody is nothing to be told of besides."""
        self._tell(name, nodes=nodes)
        if not nodes and fault.at is not None:
            self._scene.note_missed(fault)

    # Machines.

    def _fail(self, action: Fail, order: "_Order") -> Sequence[str]:
        """Machines are lost where they stand."""
        now = self._scene.kernel.now()
        lost = order.first(_targets(action, self._scene.client))
        if not action.slice:
            lost = lost[: action.count]
        for instance in lost:
            self._scene.submit(UpdateStatus(instances.in_phase(instance, instances.CRASHED, now)))
        return _names(lost)

    def _reclaim(self, action: ReclaimSpot, order: "_Order") -> Sequence[str]:
        """Spot machines get notice."""
        now = self._scene.kernel.now()
        stop = format_time(now + instances.NOTICE)
        found = [obj for obj in _of_pool(action.pool, self._scene.client) if _is_spot(obj)]
        told = order.first(found)[: action.count]
        for instance in told:
            self._scene.submit(UpdateStatus(instances.in_phase(instance, instances.STOPPING, now, stopAt=stop)))
        return _names(told)

    def _drain(self, action: Drain) -> Sequence[str]:
        """A node is cordoned and its pods are evicted; it is opened again in time, if it is still the same one."""
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

    # What lasts for a while.

    def _last(self, lasting: list[Any], action: Any, lasts: Duration, change: Callable[[], None]) -> None:
        """Have something begin, and end after a while."""

        def end() -> None:
            lasting.remove(action)
            change()

        lasting.append(action)
        change()
        self._call_at(self._scene.kernel.now() + lasts, end)

    def _change_cluster(self) -> None:
        """The Cluster is what it was, but for what lasts."""
        stored = next(iter(self._scene.client.list(scheme.CLUSTER)), None)
        if stored is None:
            return
        calm = stored if self._changed is None else without_shortages(stored, *self._changed)
        changed = with_shortages(calm, self._stockouts, self._slow_boots)
        self._changed = (calm, changed)
        self._scene.submit(Update(changed))

    def _change_conflicts(self) -> None:
        """So many writes meet a conflict as the worst of what lasts says."""
        if self._trouble is not None:
            worst = max((action.percent for action in self._conflicts), default=0) / 100
            self._trouble.conflicts = max(worst, self._trouble.conflicts_always)


class _Order:
    """Whom a fault meets first: the first by name, or for one that comes again whom chance meets."""

    def __init__(self, fault: ScheduledFault, number: int | None) -> None:
        self._fault = fault
        self._number = number

    def first(self, found: Iterable[Obj]) -> list[Obj]:
        """The machines in that order."""
        return sorted(found, key=self._rank)

    def _rank(self, instance: Obj) -> tuple[int, str]:
        name = instance["metadata"]["name"]
        if self._number is None:
            return 0, name
        return draw(self._fault.seed, "victim", repr(self._fault.action), str(self._number), name), name


def has_unfinished_work(reader: Reader) -> bool:
    """Whether some Job, JobSet, Workload or pod is not at its end."""
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
    """The machines that a failure may meet."""
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
    """The machines of nodes, as far as they are up."""
    found = (reader.get(Key(scheme.INSTANCE, "", name)) for name in nodes)
    return (obj for obj in found if obj is not None and _is_up(obj))


def _is_up(instance: Obj) -> bool:
    up = instances.phase_of(instance) in {instances.RUNNING, instances.STOPPING}
    return up and not instances.is_leaving(instance)


def _is_spot(instance: Obj) -> bool:
    is_told = instances.phase_of(instance) == instances.STOPPING
    return instance["spec"].get("provisioning") == "spot" and not is_told


def _names(found: Iterable[Obj]) -> list[str]:
    return [obj["metadata"]["name"] for obj in found]
