"""Simulated kubelets: the controller that advances the pods of simulated nodes, or all pods without nodes.

One controller acts for the kubelets of all nodes. The complete state of a pod is in its status, so the controller
resumes correctly after a restart. While a machine is off, its pods are not updated.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple

from batchyard.api import scheme
from batchyard.api.meta import Key, Obj, with_status
from batchyard.api.times import format_time, parse_time
from batchyard.api.views import pods
from batchyard.api.views.pods import (
    FAILED,
    PENDING,
    RUNNING,
    SUCCEEDED,
    awaits_deletion,
    is_terminal,
    node_of,
    resumed_work,
    running_since,
)
from batchyard.base import triangular
from batchyard.base.instant import MINUTE, SECOND, Duration, Instant, backoff
from batchyard.cloud.catalog.instances import CRASHED, phase_of, since
from batchyard.cloud.catalog.machine_types import catalog_of
from batchyard.cloud.catalog.prices import POD_START, step_duration
from batchyard.interfaces.client import Delete, EventType, Reader, UpdateStatus, WatchEvent, Write
from batchyard.interfaces.controller import EventRecord, ReconcileResult
from batchyard.kubelet.simulated.durations import (
    FOR_EVER,
    RunPlan,
    is_held,
    plan_of,
    remove_work_finalizer,
    resume_from_checkpoint,
    saved_at_end,
    saved_at_loss,
)
from batchyard.kubelet.simulated.pod_status import (
    ANYWHERE,
    NodeMachine,
    SimulatedRunState,
    creating,
    exited,
    machine_of,
    missing,
    pod_status,
    qos_class,
    run_of,
    running,
)
from batchyard.nodes.conditions import readiness
from batchyard.nodes.pods import PodsByNode

# --- pod timeline ---
#
# The next event of a simulated pod, and the pod's status after the event.
#
#     accepted -> containers created -> running -> exited -> pod ended, or containers restarted after the crash backoff
#
# A pod also ends when it is deleted, when its machine shuts down, or at its deadline. Events occur in order of time.
# All events are computed from the pod and its machine, so a restart of the platform does not change them. Sources:
# pkg/kubelet (syncPod, getPhase, active_deadline.go), pkg/kubelet/nodeshutdown, client-go flowcontrol.Backoff.


#: Seconds of the 30 s between notice and shutdown: first for ordinary pods, then for critical pods.
SHUTDOWN_GRACE: Final = 25
SHUTDOWN_GRACE_CRITICAL: Final = 5

BACKOFF_MIN: Final = 10 * SECOND
BACKOFF_MAX: Final = 5 * MINUTE
#: Containers that ran longer than this restart without backoff.
_BACKOFF_FORGOTTEN: Final = 2 * BACKOFF_MAX

REJECTED: Final = "Pod was rejected as the node is shutting down."
EXPIRED: Final = "Pod was active on the node longer than the specified deadline"

_KILLED: Final = 137
_STOPPED: Final = 143
_LOST: Final = "The container could not be located when the pod was terminated"
_LOST_AND_RESTARTED: Final = (
    "The container could not be located when the pod was deleted.  The container used to be Running"
)


class PodEventKind(StrEnum):
    """The kinds of events of a simulated pod."""

    TAKE_UP = "TakeUp"
    START = "Start"
    EXIT = "Exit"
    LOSE = "Lose"
    DELETE = "Delete"
    SHUT_DOWN = "ShutDown"
    REJECT = "Reject"
    EXPIRE = "Expire"


class PodEvent(NamedTuple):
    """An event of a simulated pod, and when it is due."""

    at: Instant
    what: PodEventKind


def no_delay(pod: Obj) -> Duration:  # noqa: ARG001 - the signature of a delay per pod
    """Return a start delay of 0 for any pod."""
    return 0


@dataclass(frozen=True, slots=True)
class ContainerDelays:
    """The start and stop delays of simulated containers."""

    #: Returns the time from the acceptance of a pod until its containers run; the same value for each call.
    start_delay: Callable[[Obj], Duration] = no_delay
    #: The time from the stop signal to the exit, limited by the grace period.
    stop_time: Duration = SECOND


class SimulatedPod(NamedTuple):
    """A simulated pod with its machine, its planned run and its delays."""

    pod: Obj
    machine: NodeMachine
    plan: RunPlan
    pace: ContainerDelays


def next_pod_event(life: SimulatedPod, now: Instant) -> PodEvent | None:
    """Return the next event of a live pod on a machine that is on; None if no event is foreseeable."""
    run = run_of(life.pod)
    turns = _arrivals(life, now) if run is None else [*_own_turns(life, run), *_ends(life, run)]
    return min(turns, key=lambda turn: turn.at, default=None)  # the first of several due at the same time


def status_after(life: SimulatedPod, turn: PodEvent, now: Instant) -> Mapping[str, Any]:
    """Return the status of a pod after an event."""
    run = run_of(life.pod) or SimulatedRunState(creating(life.pod))
    match turn.what:
        case PodEventKind.TAKE_UP:
            runs_at_once = life.pace.start_delay(life.pod) == 0
            return _running(life, run, now) if runs_at_once else _status(life, PENDING, run, now)
        case PodEventKind.START:
            return _running(life, run._replace(restarts=run.restarts + bool(run.last)), now)
        case PodEventKind.EXIT:
            return _after_exit(life, run, turn.at, now)
        case PodEventKind.LOSE:
            return _after_loss(life, run, now)
        case PodEventKind.REJECT:
            return _rejected(life, now)
        case PodEventKind.DELETE:
            return _made_to_end(life, run, turn, now)
        case PodEventKind.EXPIRE:
            return {**_made_to_end(life, run, turn, now), "reason": "DeadlineExceeded", "message": EXPIRED}
        case PodEventKind.SHUT_DOWN:
            return _shut_down(life, run, turn, now)


# --- due events ---


def _arrivals(life: SimulatedPod, now: Instant) -> Iterable[PodEvent]:
    """Return the possible events of a pod that its kubelet has not accepted yet."""
    pod, machine = life.pod, life.machine
    deleted_at = pods.deleted_at(pod)
    if deleted_at is not None:
        return [PodEvent(deleted_at, PodEventKind.DELETE)]
    if machine.notice_at is not None:
        return [PodEvent(machine.notice_at, PodEventKind.REJECT)]
    return [PodEvent(now, PodEventKind.TAKE_UP)] if machine.is_ready() else []


def _own_turns(life: SimulatedPod, run: SimulatedRunState) -> Iterable[PodEvent]:
    """Return the next event that a pod's containers cause: they start, exit, or turn out to be lost."""
    if "running" in run.state:
        started_at = parse_time(run.state["running"]["startedAt"])
        if started_at < life.machine.booted_at:
            return [PodEvent(started_at, PodEventKind.LOSE)]
        left = max(0, life.plan.runtime - resumed_work(life.pod))
        return [PodEvent(started_at + left, PodEventKind.EXIT)] if life.plan.runtime < FOR_EVER else []
    if run.last:
        return [PodEvent(parse_time(run.last["terminated"]["finishedAt"]) + _backoff(run), PodEventKind.START)]
    begun_at = max(parse_time(life.pod["status"]["startTime"]), life.machine.booted_at)
    return [PodEvent(begun_at + life.pace.start_delay(life.pod), PodEventKind.START)]


def _ends(life: SimulatedPod, run: SimulatedRunState) -> Iterable[PodEvent]:
    """Return the events that end a pod from outside; running containers need the stop time, up to the grace period."""
    moment = life.pace.stop_time if "running" in run.state else 0
    return [PodEvent(asked_at + min(moment, grace), what) for asked_at, grace, what in _demands(life)]


def _demands(life: SimulatedPod) -> Iterable[tuple[Instant, Duration, PodEventKind]]:
    """Yield the requests to end a pod: the time of the request, the grace period, and the kind of event."""
    pod, deleted_at = life.pod, pods.deleted_at(life.pod)
    if deleted_at is not None:
        yield deleted_at, (pod["metadata"].get("deletionGracePeriodSeconds") or 0) * SECOND, PodEventKind.DELETE
    grace = pods.grace_period(pod)
    if life.machine.notice_at is not None:
        is_critical = pods.priority(pod) >= pods.SYSTEM_CRITICAL
        limit = SHUTDOWN_GRACE_CRITICAL if is_critical else SHUTDOWN_GRACE
        begins_at = life.machine.notice_at + (SHUTDOWN_GRACE * SECOND if is_critical else 0)
        yield begins_at, min(grace, limit) * SECOND, PodEventKind.SHUT_DOWN
    deadline = pod["spec"].get("activeDeadlineSeconds")
    if deadline is not None:
        yield parse_time(pod["status"]["startTime"]) + deadline * SECOND, grace * SECOND, PodEventKind.EXPIRE


def _backoff(run: SimulatedRunState) -> Duration:
    """Return the restart delay of ended containers: 0 for the first restart and after a long run."""
    ended = run.last["terminated"]
    ran = parse_time(ended["finishedAt"]) - parse_time(ended["startedAt"])
    if not run.restarts or ran > _BACKOFF_FORGOTTEN:
        return 0
    return backoff(BACKOFF_MIN, BACKOFF_MAX, run.restarts)


# --- statuses ---


def _status(life: SimulatedPod, phase: str, run: SimulatedRunState, now: Instant) -> dict[str, Any]:
    return pod_status(life.pod, phase, run, life.machine, now)


def _running(life: SimulatedPod, run: SimulatedRunState, now: Instant) -> Mapping[str, Any]:
    return _status(life, RUNNING, run._replace(state=running(now)), now)


def _after_exit(life: SimulatedPod, run: SimulatedRunState, at: Instant, now: Instant) -> Mapping[str, Any]:
    """Return a pod's status after its containers exited: restarted, in backoff, or the final status."""
    code = life.plan.exit_code
    ended = exited(code, run.state["running"]["startedAt"], at)
    policy = life.pod["spec"].get("restartPolicy", "Always")
    is_done = policy == "Never" or (policy == "OnFailure" and code == 0)
    if is_done or any(asked_at <= at for asked_at, _, _ in _demands(life)):
        return _status(life, FAILED if code else SUCCEEDED, run._replace(state=ended), now)
    again = run._replace(last=ended)
    backoff = _backoff(again)
    if backoff == 0:
        return _running(life, again._replace(restarts=again.restarts + 1), now)
    return _status(life, RUNNING, again._replace(state=_backing_off(life.pod, backoff)), now)


def _backing_off(pod: Obj, backoff: Duration) -> Mapping[str, Mapping[str, Any]]:
    metadata, container = pod["metadata"], pod["spec"]["containers"][0]["name"]
    name = f"{metadata['name']}_{metadata.get('namespace') or ''}({metadata['uid']})"
    message = f"back-off {_go_text(backoff)} restarting failed container={container} pod={name}"
    return {"waiting": {"reason": "CrashLoopBackOff", "message": message}}


def _go_text(duration: Duration) -> str:
    """Format whole seconds as Go does: 40s, 1m20s, 5m0s."""
    minutes, seconds = divmod(duration // SECOND, 60)
    return f"{minutes}m{seconds}s" if minutes else f"{seconds}s"


def _after_loss(life: SimulatedPod, run: SimulatedRunState, now: Instant) -> Mapping[str, Any]:
    """Return a pod's status after its machine was lost and returned without the pod's containers."""
    if life.pod["spec"].get("restartPolicy", "Always") == "Never" or pods.is_terminating(life.pod):
        return _status(life, FAILED, run._replace(state=missing(_LOST)), now)
    return _running(life, SimulatedRunState({}, missing(_LOST_AND_RESTARTED), run.restarts + 1), now)


def _rejected(life: SimulatedPod, now: Instant) -> Mapping[str, Any]:
    """Return the status of a pod that is rejected because its node is shutting down."""
    return {
        **(life.pod.get("status") or {}),
        "phase": FAILED,
        "reason": "NodeShutdown",
        "message": f"Pod was rejected: {REJECTED}",
        "startTime": format_time(now),
        "qosClass": qos_class(life.pod["spec"]),
    }


def _shut_down(life: SimulatedPod, run: SimulatedRunState, turn: PodEvent, now: Instant) -> Mapping[str, Any]:
    """Return the status of a pod that a node shutdown ended, with the condition DisruptionTarget."""
    ended = with_status(life.pod, _made_to_end(life, run, turn, now))
    status: Mapping[str, Any] = pods.disrupted(ended, pods.BY_KUBELET, now)["status"]
    return {**status, "reason": "Terminated", "message": pods.BY_KUBELET.message}


def _made_to_end(life: SimulatedPod, run: SimulatedRunState, turn: PodEvent, now: Instant) -> Mapping[str, Any]:
    """Return the status of a failed pod whose containers were stopped, or killed after the grace period."""
    return _status(life, FAILED, run._replace(state=_state_at_end(life, run, turn)), now)


def _state_at_end(life: SimulatedPod, run: SimulatedRunState, turn: PodEvent) -> Mapping[str, Mapping[str, Any]]:
    if "running" not in run.state:
        return run.last or missing(_LOST)
    grace = next(grace for _, grace, what in _demands(life) if what is turn.what)
    code = _STOPPED if life.pace.stop_time <= grace else _KILLED
    return exited(code, run.state["running"]["startedAt"], turn.at)


_DELETED: Final = EventType.DELETED  # accessing an Enum member by name is slow


class Kubelets:
    """The controller of pods on simulated nodes or, in a cluster without nodes, of all ungated pods."""

    name = "kubelets"
    rank = 0

    def __init__(
        self,
        pace: ContainerDelays | None = None,
        *,
        with_nodes: bool = True,
        local: str = "",
        runtime: Duration | None = None,
    ) -> None:
        self.kinds: Sequence[str] = (scheme.POD, scheme.NODE, scheme.INSTANCE) if with_nodes else (scheme.POD,)
        self._pace = pace or ContainerDelays()
        self._with_nodes = with_nodes
        #: The name of the node that is not simulated; empty if all nodes are simulated.
        self._local = local
        #: The run time of pods for which no other source gives one; None for the Cluster's default.
        self._runtime = runtime
        self._pods = PodsByNode()

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """Return the keys of a changed pod or of a changed node's pods; the kubelet's own updates are skipped."""
        key = event.key
        if key.kind != scheme.POD:
            is_ours = key.name != self._local
            return self._pods.on(key.name) if is_ours and _is_news_of_machine(event) else ()
        if self._with_nodes:
            self._pods.observe(key, event.old, None if event.type is _DELETED else event.obj)
        return (key,) if self._is_ours(event.obj) and _is_news_of_pod(event) else ()

    def _is_ours(self, pod: Obj) -> bool:
        """Report whether a pod is on a simulated node, ungated in a cluster without nodes, or kept by the finalizer."""
        node = node_of(pod)
        if node and node == self._local:
            return False
        is_let_go = bool(node) if self._with_nodes else not pod["spec"].get("schedulingGates")
        return is_let_go or is_held(pod)

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Apply the next event of a pod if it is due; otherwise requeue the pod for the event's time."""
        pod = reader.get(key)
        if pod is None:
            return ReconcileResult()
        machine = self._machine(pod, reader, now)
        if not machine.is_on:
            return ReconcileResult([*_saved_before_crash(pod, reader), *remove_work_finalizer(pod)])
        if is_terminal(pod) and is_held(pod):
            return ReconcileResult(remove_work_finalizer(pod))
        if is_terminal(pod):
            return ReconcileResult([Delete(key, grace=0, uid=pod["metadata"]["uid"])] if awaits_deletion(pod) else [])
        plan = plan_of(pod, reader, self._runtime)
        life = SimulatedPod(pod, machine, plan, self._pace)
        turn = next_pod_event(life, now)
        if turn is None or turn.at > now:
            return ReconcileResult(requeue_at=None if turn is None else turn.at)
        after: Obj = with_status(pod, status_after(life, turn, now))
        writes: list[Write] = []
        if plan.checkpoint_every is not None:
            writes += saved_at_end(pod, after, plan.checkpoint_every, reader)
            after = resume_from_checkpoint(pod, after, plan.checkpoint_every, reader, now)
        following = None if is_terminal(after) else next_pod_event(life._replace(pod=after), now)
        events = _events(key, turn.what, after)
        return ReconcileResult([*writes, UpdateStatus(after)], events, None if following is None else following.at)

    def _machine(self, pod: Obj, reader: Reader, now: Instant) -> NodeMachine:
        if not self._with_nodes:
            return ANYWHERE
        name = node_of(pod)
        return machine_of(reader.get(Key(scheme.NODE, "", name)), reader.get(Key(scheme.INSTANCE, "", name)), now)


def _saved_before_crash(pod: Obj, reader: Reader) -> list[Write]:
    """Return the write that records the checkpointed work of a pod whose machine has crashed."""
    instance = reader.get(Key(scheme.INSTANCE, "", node_of(pod)))
    if instance is None or phase_of(instance) != CRASHED or running_since(pod) is None:
        return []
    every = plan_of(pod, reader).checkpoint_every
    return [] if every is None else saved_at_loss(pod, since(instance), every, reader)


def _is_news_of_pod(event: WatchEvent) -> bool:
    """Report whether a pod was created or ended, or changed in more than its status."""
    pod, old = event.obj, event.old
    if event.type is _DELETED:
        return False
    if old is None or pod["spec"] is not old["spec"] or awaits_deletion(pod) or is_held(pod):
        return True
    new_mark, old_mark = pod["metadata"].get("deletionTimestamp"), old["metadata"].get("deletionTimestamp")
    return bool(new_mark != old_mark)


def _is_news_of_machine(event: WatchEvent) -> bool:
    """Report whether a node or machine was created, a node changed its readiness, or a machine its phase."""
    if event.type is _DELETED or event.old is None:
        return event.type is not _DELETED
    if event.key.kind == scheme.NODE:
        return readiness(event.obj) != readiness(event.old)
    return _fate(event.obj) != _fate(event.old)


def _fate(instance: Obj) -> tuple[Any, Any, bool]:
    """Return the fields of a machine that affect its pods."""
    status: Mapping[str, Any] = instance.get("status") or {}
    return status.get("phase"), status.get("stopAt"), "deletionTimestamp" in instance["metadata"]


def _events(key: Key, what: PodEventKind, after: Obj) -> list[EventRecord]:
    """Return the Events for a problem of a pod; empty for ordinary events."""
    if what is PodEventKind.EXPIRE:
        return [EventRecord(key, "Normal", "DeadlineExceeded", EXPIRED)]
    if what is PodEventKind.REJECT:
        return [EventRecord(key, "Warning", "NodeShutdown", REJECTED)]
    if (
        what is PodEventKind.EXIT
        and not is_terminal(after)
        and "waiting" in after["status"]["containerStatuses"][0]["state"]
    ):
        return [EventRecord(key, "Warning", "BackOff", f"Back-off restarting failed container {_name(after)}")]
    return []


def _name(pod: Obj) -> str:
    """Format a pod's first container and the pod as in messages of the kubelet."""
    metadata = pod["metadata"]
    container = pod["spec"]["containers"][0]["name"]
    return f"{container} in pod {metadata['name']}_{metadata.get('namespace') or ''}({metadata['uid']})"


# --- start delays ---
# Start delays of simulated containers: the time to pull and unpack the image and to start the container.
#
# They are drawn from the seed and the pod's uid, with the distribution in the Cluster's `times.podStart`.


def container_delays_of(cluster: Obj | None, seed: int) -> ContainerDelays:
    """Return the container delays that a Cluster configures; without a Cluster, containers start immediately."""
    return ContainerDelays() if cluster is None else ContainerDelays(_start_delay(cluster, seed))


def _start_delay(cluster: Obj, seed: int) -> Callable[[Obj], Duration]:
    catalog = catalog_of(cluster)
    spread = step_duration(POD_START, catalog.machine(""), cluster, catalog)  # the same on every machine

    def delay(pod: Obj) -> Duration:
        return triangular(*spread, seed, POD_START, pod["metadata"]["uid"])

    return delay
