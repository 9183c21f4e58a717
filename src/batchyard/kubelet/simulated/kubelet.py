"""Simulated kubelets: the controller that advances the pods of simulated nodes, or all pods if there are no nodes.

One controller acts for the kubelets of all nodes. The complete state of a pod is in its status, so the controller
resumes correctly after a restart. While a machine is off, the statuses of its pods stay unchanged.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple

from batchyard.api import scheme
from batchyard.api.meta import Key, Obj, with_status
from batchyard.api.times import format_time, parse_time
from batchyard.api.views import pods
from batchyard.api.views.pod_shape import claim_names
from batchyard.api.views.pods import (
    FAILED,
    PENDING,
    RUNNING,
    SUCCEEDED,
    awaits_deletion,
    bound_node,
    is_terminal,
    resumed_work,
    running_since,
)
from batchyard.base.instant import MINUTE, SECOND, Duration, Instant, exponential_backoff
from batchyard.base.primitives import draw_triangular
from batchyard.cloud.catalog.instances import CRASHED, phase_of, phase_start
from batchyard.cloud.catalog.machine_types import catalog_of
from batchyard.cloud.catalog.pool_properties import POD_START, step_duration
from batchyard.interfaces.client import Delete, EventType, Reader, UpdateStatus, WatchEvent, Write
from batchyard.interfaces.controller import EventRecord, ReconcileResult
from batchyard.kubelet.simulated import durations, pod_status
from batchyard.nodes.conditions import readiness
from batchyard.nodes.pods import PodsByNode

# The next event of a simulated pod, and the pod's status after the event.
#
#     accepted -> containers created -> running -> exited -> pod ended, or containers restarted after the crash backoff
#
# A pod also ends when it is deleted, when its machine shuts down, or at its deadline. Events occur in order of time.
# All events are computed from the pod and its machine, so a restart of batchyard does not change them. Sources:
# pkg/kubelet (syncPod, getPhase, active_deadline.go), pkg/kubelet/nodeshutdown, client-go flowcontrol.Backoff.


#: Seconds of the 30 s between notice and shutdown: first for ordinary pods, then for critical pods.
SHUTDOWN_GRACE: Final = 25
SHUTDOWN_GRACE_CRITICAL: Final = 5

BACKOFF_MIN: Final = 10 * SECOND
BACKOFF_MAX: Final = 5 * MINUTE
#: Containers that ran longer than this restart without backoff.
_BACKOFF_RESET_RUN_TIME: Final = 2 * BACKOFF_MAX

NODE_SHUTDOWN_MESSAGE: Final = "Pod was rejected as the node is shutting down."
DEADLINE_MESSAGE: Final = "Pod was active on the node longer than the specified deadline"

_KILLED_EXIT_CODE: Final = 137
_TERMINATED_EXIT_CODE: Final = 143
_LOST_MESSAGE: Final = "The container could not be located when the pod was terminated"
_RESTART_TEXT: Final = "The container could not be located when the pod was deleted.  The container used to be Running"


class PodEventKind(StrEnum):
    """What can happen to a simulated pod next, such as the start of its containers or its deadline."""

    ACCEPT = "Accept"
    START = "Start"
    EXIT = "Exit"
    LOSE = "Lose"
    DELETE = "Delete"
    SHUT_DOWN = "ShutDown"
    REJECT = "Reject"
    EXPIRE = "Expire"


class PodEvent(NamedTuple):
    """What happens to a simulated pod next, and when."""

    at: Instant
    event_kind: PodEventKind


def no_start_delay(pod: Obj) -> Duration:  # noqa: ARG001 - the signature of a delay per pod
    """Return 0, the delay with which the containers of any pod start by default."""
    return 0


@dataclass(frozen=True, slots=True)
class ContainerDelays:
    """How long simulated containers take to start and to stop."""

    #: Returns the time from the acceptance of a pod until its containers run; always the same for the same pod.
    start_delay: Callable[[Obj], Duration] = no_start_delay
    #: The time from the stop signal to the exit, limited by the grace period.
    stop_time: Duration = SECOND


class SimulatedPod(NamedTuple):
    """A simulated pod, with its machine, its run time and exit code, and its start and stop delays."""

    pod: Obj
    machine: pod_status.NodeMachine
    plan: durations.RunPlan
    delays: ContainerDelays


def next_pod_event(sim_pod: SimulatedPod, now: Instant) -> PodEvent | None:
    """Return what happens next to a live pod on a running machine, and when; None if nothing is foreseeable."""
    run = pod_status.run_of(sim_pod.pod)
    events = _arrival_events(sim_pod, now) if run is None else [*_run_events(sim_pod, run), *_end_events(sim_pod, run)]
    # Of several events that are due at the same time, min() returns the first.
    return min(events, key=lambda pod_event: pod_event.at, default=None)


def status_after(sim_pod: SimulatedPod, pod_event: PodEvent, now: Instant) -> Mapping[str, Any]:
    """Return the status of a simulated pod after `pod_event`, such as the exit of its containers."""
    run = pod_status.run_of(sim_pod.pod) or pod_status.SimulatedRunState(pod_status.creating_state(sim_pod.pod))
    match pod_event.event_kind:
        case PodEventKind.ACCEPT:
            starts_without_delay = sim_pod.delays.start_delay(sim_pod.pod) == 0
            return _running_status(sim_pod, run, now) if starts_without_delay else _status(sim_pod, PENDING, run, now)
        case PodEventKind.START:
            return _running_status(sim_pod, run._replace(restart_count=run.restart_count + bool(run.last_state)), now)
        case PodEventKind.EXIT:
            return _status_after_exit(sim_pod, run, pod_event.at, now)
        case PodEventKind.LOSE:
            return _status_after_loss(sim_pod, run, now)
        case PodEventKind.REJECT:
            return _rejected_status(sim_pod, now)
        case PodEventKind.DELETE:
            return _stopped_status(sim_pod, run, pod_event, now)
        case PodEventKind.EXPIRE:
            stopped_status = _stopped_status(sim_pod, run, pod_event, now)
            return {**stopped_status, "reason": "DeadlineExceeded", "message": DEADLINE_MESSAGE}
        case PodEventKind.SHUT_DOWN:
            return _shutdown_status(sim_pod, run, pod_event, now)


def _arrival_events(sim_pod: SimulatedPod, now: Instant) -> Iterable[PodEvent]:
    pod, machine = sim_pod.pod, sim_pod.machine
    deleted_at = pods.deleted_at(pod)
    if deleted_at is not None:
        return [PodEvent(deleted_at, PodEventKind.DELETE)]
    if machine.notice_at is not None:
        return [PodEvent(machine.notice_at, PodEventKind.REJECT)]
    return [PodEvent(now, PodEventKind.ACCEPT)] if machine.is_ready() else []


def _run_events(sim_pod: SimulatedPod, run: pod_status.SimulatedRunState) -> Iterable[PodEvent]:
    if "running" in run.state:
        started_at = parse_time(run.state["running"]["startedAt"])
        if started_at < sim_pod.machine.booted_at:
            return [PodEvent(started_at, PodEventKind.LOSE)]
        remaining_runtime = max(0, sim_pod.plan.runtime - resumed_work(sim_pod.pod))
        is_runtime_limited = sim_pod.plan.runtime < durations.UNLIMITED_RUNTIME
        return [PodEvent(started_at + remaining_runtime, PodEventKind.EXIT)] if is_runtime_limited else []
    if run.last_state:
        exited_at = parse_time(run.last_state["terminated"]["finishedAt"])
        return [PodEvent(exited_at + _restart_delay(run), PodEventKind.START)]
    delay_start = max(parse_time(sim_pod.pod["status"]["startTime"]), sim_pod.machine.booted_at)
    return [PodEvent(delay_start + sim_pod.delays.start_delay(sim_pod.pod), PodEventKind.START)]


def _end_events(sim_pod: SimulatedPod, run: pod_status.SimulatedRunState) -> Iterable[PodEvent]:
    """Return an event for each reason to end a pod (deletion, shutdown, deadline), at the time when the pod ends.

    Running containers exit after their `stop_time` or after the grace period, whichever is shorter.
    """
    exit_delay = sim_pod.delays.stop_time if "running" in run.state else 0
    return [PodEvent(at + min(exit_delay, grace), kind) for at, grace, kind in _end_requests(sim_pod)]


def _end_requests(sim_pod: SimulatedPod) -> Iterable[tuple[Instant, Duration, PodEventKind]]:
    pod, deleted_at = sim_pod.pod, pods.deleted_at(sim_pod.pod)
    if deleted_at is not None:
        yield deleted_at, (pod["metadata"].get("deletionGracePeriodSeconds") or 0) * SECOND, PodEventKind.DELETE
    grace_seconds = pods.grace_period(pod)
    if sim_pod.machine.notice_at is not None:
        is_critical = pods.priority(pod) >= pods.SYSTEM_CRITICAL
        shutdown_grace = SHUTDOWN_GRACE_CRITICAL if is_critical else SHUTDOWN_GRACE
        shutdown_at = sim_pod.machine.notice_at + (SHUTDOWN_GRACE * SECOND if is_critical else 0)
        yield shutdown_at, min(grace_seconds, shutdown_grace) * SECOND, PodEventKind.SHUT_DOWN
    deadline = pod["spec"].get("activeDeadlineSeconds")
    if deadline is not None:
        yield parse_time(pod["status"]["startTime"]) + deadline * SECOND, grace_seconds * SECOND, PodEventKind.EXPIRE


def _restart_delay(run: pod_status.SimulatedRunState) -> Duration:
    terminated_state = run.last_state["terminated"]
    run_time = parse_time(terminated_state["finishedAt"]) - parse_time(terminated_state["startedAt"])
    if not run.restart_count or run_time > _BACKOFF_RESET_RUN_TIME:
        return 0
    return exponential_backoff(BACKOFF_MIN, BACKOFF_MAX, run.restart_count)


def _status(sim_pod: SimulatedPod, phase: str, run: pod_status.SimulatedRunState, now: Instant) -> dict[str, Any]:
    return pod_status.pod_status(sim_pod.pod, phase, run, sim_pod.machine, now)


def _running_status(sim_pod: SimulatedPod, run: pod_status.SimulatedRunState, now: Instant) -> Mapping[str, Any]:
    return _status(sim_pod, RUNNING, run._replace(state=pod_status.running_state(now)), now)


def _status_after_exit(
    sim_pod: SimulatedPod, run: pod_status.SimulatedRunState, at: Instant, now: Instant
) -> Mapping[str, Any]:
    exit_code = sim_pod.plan.exit_code
    terminated_state = pod_status.exited_state(exit_code, run.state["running"]["startedAt"], at)
    restart_policy = sim_pod.pod["spec"].get("restartPolicy", "Always")
    is_done = restart_policy == "Never" or (restart_policy == "OnFailure" and exit_code == 0)
    if is_done or any(requested_at <= at for requested_at, _, _ in _end_requests(sim_pod)):
        return _status(sim_pod, FAILED if exit_code else SUCCEEDED, run._replace(state=terminated_state), now)
    run_in_backoff = run._replace(last_state=terminated_state)
    backoff = _restart_delay(run_in_backoff)
    if backoff == 0:
        return _running_status(sim_pod, run_in_backoff._replace(restart_count=run_in_backoff.restart_count + 1), now)
    return _status(sim_pod, RUNNING, run_in_backoff._replace(state=_backoff_state(sim_pod.pod, backoff)), now)


def _backoff_state(pod: Obj, backoff: Duration) -> Mapping[str, Mapping[str, Any]]:
    metadata, container = pod["metadata"], pod["spec"]["containers"][0]["name"]
    name = f"{metadata['name']}_{metadata.get('namespace') or ''}({metadata['uid']})"
    message = f"back-off {_format_go_duration(backoff)} restarting failed container={container} pod={name}"
    return {"waiting": {"reason": "CrashLoopBackOff", "message": message}}


def _format_go_duration(duration: Duration) -> str:
    minutes, seconds = divmod(duration // SECOND, 60)
    return f"{minutes}m{seconds}s" if minutes else f"{seconds}s"


def _status_after_loss(sim_pod: SimulatedPod, run: pod_status.SimulatedRunState, now: Instant) -> Mapping[str, Any]:
    if sim_pod.pod["spec"].get("restartPolicy", "Always") == "Never" or pods.is_terminating(sim_pod.pod):
        return _status(sim_pod, FAILED, run._replace(state=pod_status.lost_state(_LOST_MESSAGE)), now)
    restarted_run = pod_status.SimulatedRunState({}, pod_status.lost_state(_RESTART_TEXT), run.restart_count + 1)
    return _running_status(sim_pod, restarted_run, now)


def _rejected_status(sim_pod: SimulatedPod, now: Instant) -> Mapping[str, Any]:
    return {
        **(sim_pod.pod.get("status") or {}),
        "phase": FAILED,
        "reason": "NodeShutdown",
        "message": f"Pod was rejected: {NODE_SHUTDOWN_MESSAGE}",
        "startTime": format_time(now),
        "qosClass": pod_status.qos_class(sim_pod.pod["spec"]),
    }


def _shutdown_status(
    sim_pod: SimulatedPod, run: pod_status.SimulatedRunState, pod_event: PodEvent, now: Instant
) -> Mapping[str, Any]:
    stopped_pod = with_status(sim_pod.pod, _stopped_status(sim_pod, run, pod_event, now))
    status: Mapping[str, Any] = pods.with_disruption(stopped_pod, pods.DISRUPTION_BY_KUBELET, now)["status"]
    return {**status, "reason": "Terminated", "message": pods.DISRUPTION_BY_KUBELET.message}


def _stopped_status(
    sim_pod: SimulatedPod, run: pod_status.SimulatedRunState, pod_event: PodEvent, now: Instant
) -> Mapping[str, Any]:
    return _status(sim_pod, FAILED, run._replace(state=_final_container_state(sim_pod, run, pod_event)), now)


def _final_container_state(
    sim_pod: SimulatedPod, run: pod_status.SimulatedRunState, pod_event: PodEvent
) -> Mapping[str, Mapping[str, Any]]:
    if "running" not in run.state:
        return run.last_state or pod_status.lost_state(_LOST_MESSAGE)
    grace = next(grace for _, grace, event_kind in _end_requests(sim_pod) if event_kind is pod_event.event_kind)
    exit_code = _TERMINATED_EXIT_CODE if sim_pod.delays.stop_time <= grace else _KILLED_EXIT_CODE
    return pod_status.exited_state(exit_code, run.state["running"]["startedAt"], pod_event.at)


_DELETED: Final = EventType.DELETED  # accessing an Enum member by name is slow


class SimulatedKubelets:
    """The controller of the pods on simulated nodes or, in a cluster without nodes, of all ungated pods."""

    name = "kubelets"
    rank = 0

    def __init__(
        self,
        delays: ContainerDelays | None = None,
        *,
        with_nodes: bool = True,
        local_node: str = "",
        runtime: Duration | None = None,
        awaits_volumes: bool = False,
    ) -> None:
        """Create the controller; with `awaits_volumes`, pods start only when their claims are bound."""
        self.kinds: Sequence[str] = (scheme.POD, scheme.NODE, scheme.INSTANCE) if with_nodes else (scheme.POD,)
        if awaits_volumes:
            self.kinds = (*self.kinds, scheme.PERSISTENT_VOLUME_CLAIM)
        self._awaits_volumes = awaits_volumes
        #: The pods that wait for a claim to be bound, by the key of the claim.
        self._claimants: dict[Key, dict[Key, None]] = {}
        self._delays = delays or ContainerDelays()
        self._with_nodes = with_nodes
        #: The name of the node that is not simulated; empty if all nodes are simulated.
        self._local_node = local_node
        #: The run time of pods for which no other source gives one; None for the Cluster's default.
        self._runtime = runtime
        self._pods = PodsByNode()

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """Return the keys of the pods to reconcile: a changed pod, or all pods on a changed node or machine.

        Changes without effect on simulated pods, such as status updates by this controller, give no keys.
        """
        key = event.key
        if key.kind == scheme.PERSISTENT_VOLUME_CLAIM:
            return () if event.type is _DELETED else tuple(self._claimants.get(key, ()))
        if key.kind != scheme.POD:
            is_simulated = key.name != self._local_node
            return self._pods.pod_keys_on(key.name) if is_simulated and _is_relevant_machine_change(event) else ()
        if self._with_nodes:
            self._pods.observe(key, event.old, None if event.type is _DELETED else event.obj)
        if event.type is _DELETED:
            self._forget_claimant(key, event.obj)
        return (key,) if self._is_simulated(event.obj) and _is_relevant_pod_change(event) else ()

    def _is_simulated(self, pod: Obj) -> bool:
        """Return whether this controller simulates a pod: on a simulated node, or ungated in a cluster without nodes.

        Also return True for pods that a checkpoint finalizer keeps, since this controller removes the finalizer.
        """
        node = bound_node(pod)
        if node and node == self._local_node:
            return False
        is_bound_or_ungated = bool(node) if self._with_nodes else not pod["spec"].get("schedulingGates")
        return is_bound_or_ungated or durations.is_kept_by_finalizer(pod)

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Apply the next event of a pod to its status if the event is due; otherwise requeue the pod for that time.

        If the pod has ended, complete a requested deletion. If the pod's machine has crashed, record the checkpointed
        work.
        """
        pod = reader.get(key)
        if pod is None:
            return ReconcileResult()
        machine = self._find_machine(pod, reader, now)
        if not machine.is_on:
            return ReconcileResult([*_record_work_before_crash(pod, reader), *durations.remove_work_finalizer(pod)])
        if is_terminal(pod) and durations.is_kept_by_finalizer(pod):
            return ReconcileResult(durations.remove_work_finalizer(pod))
        if is_terminal(pod):
            return ReconcileResult(
                [Delete(key, grace_period_seconds=0, uid=pod["metadata"]["uid"])] if awaits_deletion(pod) else []
            )
        plan = durations.run_plan_of(pod, reader, self._runtime)
        sim_pod = SimulatedPod(pod, machine, plan, self._delays)
        pod_event = next_pod_event(sim_pod, now)
        if pod_event is not None and pod_event.event_kind is PodEventKind.ACCEPT:
            unbound_claim = self._find_unbound_claim(pod, reader)
            if unbound_claim is not None:
                return self._await_claim(key, unbound_claim)
            self._forget_claimant(key, pod)
        if pod_event is None or pod_event.at > now:
            return ReconcileResult(requeue_at=None if pod_event is None else pod_event.at)
        new_pod: Obj = with_status(pod, status_after(sim_pod, pod_event, now))
        writes: list[Write] = []
        if plan.checkpoint_every is not None:
            writes += durations.record_work_at_end(pod, new_pod, plan.checkpoint_every, reader)
            new_pod = durations.resume_from_checkpoint(pod, new_pod, plan.checkpoint_every, reader, now)
        next_event = None if is_terminal(new_pod) else next_pod_event(sim_pod._replace(pod=new_pod), now)
        events = _problem_events(key, pod_event.event_kind, new_pod)
        requeue_at = None if next_event is None else next_event.at
        is_settled = not writes and requeue_at is not None and requeue_at > now
        return ReconcileResult([*writes, UpdateStatus(new_pod)], events, requeue_at, is_settled=is_settled)

    def _find_unbound_claim(self, pod: Obj, reader: Reader) -> Key | None:
        """Return the first claim of a pod that is not bound; None if there is none, or if pods do not wait."""
        for name in claim_names(pod["spec"]) if self._awaits_volumes else ():
            claim_key = Key(scheme.PERSISTENT_VOLUME_CLAIM, pod["metadata"]["namespace"], name)
            claim = reader.get(claim_key)
            if claim is None or (claim.get("status") or {}).get("phase") != "Bound":
                return claim_key
        return None

    def _await_claim(self, key: Key, claim_key: Key) -> ReconcileResult:
        """Reconcile a pod again when its claim changes; report once that the claim is not bound."""
        pods_of_claim = self._claimants.setdefault(claim_key, {})
        is_known = key in pods_of_claim
        pods_of_claim[key] = None
        message = f'persistentvolumeclaim "{claim_key.name}" is not bound'
        return ReconcileResult(events=[] if is_known else [EventRecord(key, "Warning", "FailedMount", message)])

    def _forget_claimant(self, key: Key, pod: Obj) -> None:
        for name in claim_names(pod["spec"]) if self._claimants else ():
            claim_key = Key(scheme.PERSISTENT_VOLUME_CLAIM, key.namespace, name)
            pods_of_claim = self._claimants.get(claim_key, {})
            pods_of_claim.pop(key, None)
            if not pods_of_claim:
                self._claimants.pop(claim_key, None)

    def _find_machine(self, pod: Obj, reader: Reader, now: Instant) -> pod_status.NodeMachine:
        if not self._with_nodes:
            return pod_status.MACHINE_WITHOUT_NODE
        name = bound_node(pod)
        node = reader.get(Key(scheme.NODE, "", name))
        return pod_status.machine_of(node, reader.get(Key(scheme.INSTANCE, "", name)), now)


def _record_work_before_crash(pod: Obj, reader: Reader) -> list[Write]:
    instance = reader.get(Key(scheme.INSTANCE, "", bound_node(pod)))
    if instance is None or phase_of(instance) != CRASHED or running_since(pod) is None:
        return []
    interval = durations.run_plan_of(pod, reader).checkpoint_every
    return [] if interval is None else durations.record_work_at_loss(pod, phase_start(instance), interval, reader)


def _is_relevant_pod_change(event: WatchEvent) -> bool:
    pod, old = event.obj, event.old
    if event.type is _DELETED:
        return False
    if old is None or pod["spec"] is not old["spec"] or awaits_deletion(pod) or durations.is_kept_by_finalizer(pod):
        return True
    new_deletion, old_deletion = pod["metadata"].get("deletionTimestamp"), old["metadata"].get("deletionTimestamp")
    return bool(new_deletion != old_deletion)


def _is_relevant_machine_change(event: WatchEvent) -> bool:
    if event.type is _DELETED or event.old is None:
        return event.type is not _DELETED
    if event.key.kind == scheme.NODE:
        return readiness(event.obj) != readiness(event.old)
    return _machine_state(event.obj) != _machine_state(event.old)


def _machine_state(instance: Obj) -> tuple[Any, Any, bool]:
    status: Mapping[str, Any] = instance.get("status") or {}
    return status.get("phase"), status.get("stopAt"), "deletionTimestamp" in instance["metadata"]


def _problem_events(key: Key, event_kind: PodEventKind, new_pod: Obj) -> list[EventRecord]:
    if event_kind is PodEventKind.EXPIRE:
        return [EventRecord(key, "Normal", "DeadlineExceeded", DEADLINE_MESSAGE)]
    if event_kind is PodEventKind.REJECT:
        return [EventRecord(key, "Warning", "NodeShutdown", NODE_SHUTDOWN_MESSAGE)]
    if (
        event_kind is PodEventKind.EXIT
        and not is_terminal(new_pod)
        and "waiting" in new_pod["status"]["containerStatuses"][0]["state"]
    ):
        message = f"Back-off restarting failed container {_full_container_name(new_pod)}"
        return [EventRecord(key, "Warning", "BackOff", message)]
    return []


def _full_container_name(pod: Obj) -> str:
    metadata = pod["metadata"]
    container = pod["spec"]["containers"][0]["name"]
    return f"{container} in pod {metadata['name']}_{metadata.get('namespace') or ''}({metadata['uid']})"


# Start delays of simulated containers: the time to pull and unpack the image and to start the container.
#
# They are drawn from the seed and the pod's uid, with the distribution in the Cluster's `times.podStart`.


def container_delays_of(cluster: Obj | None, seed: int) -> ContainerDelays:
    """Return containers' start delays as a Cluster configures them (0 without a Cluster), and the default stop time."""
    return ContainerDelays() if cluster is None else ContainerDelays(_start_delay(cluster, seed))


def _start_delay(cluster: Obj, seed: int) -> Callable[[Obj], Duration]:
    catalog = catalog_of(cluster)
    delay_distribution = step_duration(POD_START, catalog.machine(""), cluster, catalog)  # the same on every machine

    def start_delay_of(pod: Obj) -> Duration:
        return draw_triangular(*delay_distribution, seed, POD_START, pod["metadata"]["uid"])

    return start_delay_of
