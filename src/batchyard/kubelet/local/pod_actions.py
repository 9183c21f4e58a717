"""Pod actions: computes which containers of a pod to start or stop now, and when to compute that again.

    create the sandbox -> start init containers and sidecars in order -> start main containers -> all have ended

Ended containers restart according to the restart policy, with exponential backoff. If the sandbox is lost, its
containers end. In a new sandbox the pod starts again, including its init containers. Sources: pkg/kubelet/kuberuntime
(computePodActions, computeInitContainerActions, doBackOff), k8s.io/client-go/util/flowcontrol (backoff.go).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from batchyard.api.meta import Obj
from batchyard.api.times import parse_time
from batchyard.api.views import pods
from batchyard.api.views.node import GRACE_MAX
from batchyard.base.instant import MINUTE, SECOND, Duration, Instant, exponential_backoff
from batchyard.kubelet.local.errors import quote_like_go
from batchyard.kubelet.local.runs import (
    EXITED,
    READY,
    ObservedRun,
    StopRequest,
    group_pulls_by_container,
    group_runs_by_container,
    run_of,
)

# The observed state of a pod on this machine: its sandbox, and its containers with their runs.


_CONTAINER_STATUS_FIELDS = ("initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses")


class ContainerRole(Enum):
    """Whether a container is an init container, a sidecar, a main container or an ephemeral container."""

    INIT = "init"
    SIDECAR = "sidecar"
    MAIN = "main"
    EPHEMERAL = "ephemeral"

    @property
    def is_init(self) -> bool:
        """Whether a container with this role belongs to the init containers of its pod."""
        return self is ContainerRole.INIT or self is ContainerRole.SIDECAR


class PodContainer(NamedTuple):
    """A container of a pod, with its role and its most recent starts (runs), the oldest first."""

    spec: Mapping[str, Any]
    role: ContainerRole
    runs: Sequence[ObservedRun]
    #: The number of the current sandbox.
    sandbox_number: int
    #: The container's entry in the pod's status; empty if there is none.
    status: Mapping[str, Any]
    #: The image pulls for this container, the oldest first.
    images: Sequence[ObservedRun] = ()

    @property
    def name(self) -> str:
        """The name of the container in the pod's spec."""
        name: str = self.spec["name"]
        return name

    @property
    def last_run(self) -> ObservedRun | None:
        """The container's last start; None if it has no Run object."""
        return self.runs[-1] if self.runs else None

    @property
    def current_run(self) -> ObservedRun | None:
        """The container's last start in the pod's current sandbox; None if it was not started there yet."""
        return self.runs[-1] if self.runs and self.runs[-1].sandbox_number == self.sandbox_number else None

    @property
    def is_alive(self) -> bool:
        """Whether the container runs or is starting."""
        return bool(self.runs) and self.runs[-1].is_alive

    @property
    def is_done(self) -> bool:
        """Whether the pod's next container may start: this sidecar has started, or this init container succeeded."""
        run = self.current_run
        if run is None:
            return False
        return run.is_started if self.role is ContainerRole.SIDECAR else not run.is_alive and run.exit_code == 0

    @property
    def next_attempt(self) -> int:
        """The number of the container's next start; computed from the pod's status if earlier starts were deleted."""
        if self.last_run is not None:
            return self.last_run.attempt + 1
        has_run = self.status.get("containerID") or self.status.get("lastState")
        return int(self.status.get("restartCount", 0)) + 1 if has_run else 0


class PodState(NamedTuple):
    """The observed state of a pod: its sandbox, and its containers with their starts."""

    pod: Obj
    sandbox: ObservedRun | None
    #: Init containers and sidecars in order, then the main containers, then the ephemeral ones.
    containers: Sequence[PodContainer]
    #: The number of the next sandbox.
    next_sandbox: int

    def containers_with_role(self, role: ContainerRole) -> Iterator[PodContainer]:
        """Yield the containers with this role, in the order of the pod's spec."""
        return (container for container in self.containers if container.role is role)

    def live_containers(self) -> Sequence[PodContainer]:
        """Return those of the pod's containers that run or are starting."""
        return [container for container in self.containers if container.is_alive]

    @property
    def restart_policy(self) -> str:
        """The restartPolicy of the pod (default: Always)."""
        policy: str = self.pod["spec"].get("restartPolicy", "Always")
        return policy


def observed_pod_state(pod: Obj, runs: Sequence[Obj]) -> PodState:
    """Return the observed state of a pod, computed from its Run objects and its status."""
    observed_runs = [run_of(run) for run in runs]
    sandbox = next((run for run in observed_runs if not run.container and not run.image_pull_container), None)
    last_sandbox_number = max((run.sandbox_number for run in observed_runs), default=-1)
    sandbox_number = last_sandbox_number + 1 if sandbox is None else sandbox.sandbox_number
    runs_by_container, statuses, spec = group_runs_by_container(observed_runs), statuses_by_name(pod), pod["spec"]
    images = group_pulls_by_container(observed_runs)

    def build_container(entry: Mapping[str, Any], role: ContainerRole) -> PodContainer:
        name: str = entry["name"]
        own_runs = runs_by_container.get(name, ())
        return PodContainer(entry, role, own_runs, sandbox_number, statuses.get(name) or {}, images.get(name, ()))

    init_containers = [
        build_container(entry, ContainerRole.SIDECAR if entry.get("restartPolicy") == "Always" else ContainerRole.INIT)
        for entry in spec.get("initContainers") or ()
    ]
    return PodState(
        pod,
        sandbox,
        [
            *init_containers,
            *(build_container(entry, ContainerRole.MAIN) for entry in spec["containers"]),
            *(build_container(entry, ContainerRole.EPHEMERAL) for entry in spec.get("ephemeralContainers") or ()),
        ],
        last_sandbox_number + 1,
    )


def statuses_by_name(pod: Obj) -> Mapping[str, Mapping[str, Any]]:
    """Return the statuses of a pod's containers, including init containers, by container name."""
    status = pod.get("status") or {}
    status_lists: list[Sequence[Mapping[str, Any]]] = [status.get(field) or () for field in _CONTAINER_STATUS_FIELDS]
    return {entry["name"]: entry for statuses in status_lists for entry in statuses}


# Pod termination stops the main containers first, then the sidecars in reverse order.
#
# Sidecars that still run when the grace period ends are stopped at once. Sources:
# pkg/kubelet/kuberuntime (killContainer, kuberuntime_termination_order.go), pkg/kubelet (active_deadline.go,
# pod_workers.go), pkg/kubelet/eviction (emptyDirLimitEviction).


#: The minimum grace period in seconds. Source: minimumGracePeriodInSeconds in pkg/kubelet/kuberuntime.
GRACE_MIN: Final = 2
#: Source: immediateEvictionGracePeriodSeconds in pkg/kubelet/eviction.
_EVICTION_GRACE: Final = 1
DEADLINE_EXCEEDED: Final = "DeadlineExceeded"
DEADLINE_MESSAGE: Final = "Pod was active on the node longer than the specified deadline"
EVICTED: Final = "Evicted"


class PodTermination(NamedTuple):
    """The termination of a pod: when it was requested, the grace period, and the reason."""

    #: When the termination was requested; stop requests before that time have another cause.
    since: Instant
    #: The grace period in seconds, from the stop of the pod's first container.
    grace: int
    #: The reason and message if the pod fails in any case; empty if the containers' exit codes decide its phase.
    reason: str = ""
    message: str = ""


class ContainerStop(NamedTuple):
    """A live container to stop, with the stop request and the message of the Killing Event."""

    run: ObservedRun
    stop: StopRequest
    message: str


class PodStopPlan(NamedTuple):
    """The containers of a pod to stop now, and when to stop the others; `is_over` if no container is alive."""

    stops: list[ContainerStop]
    next_check_at: Instant | None
    is_over: bool


def termination_of(pod_state: PodState, now: Instant) -> PodTermination | None:
    """Return the termination of a pod that is being deleted, over its deadline, or over a volume's limit; else None."""
    pod = pod_state.pod
    deleted_at = pods.deleted_at(pod)
    if deleted_at is not None:
        return PodTermination(deleted_at, pod["metadata"].get("deletionGracePeriodSeconds") or 0)
    deadline_at = deadline_of(pod)
    if deadline_at is not None and deadline_at <= now:
        return graceful_termination(pod, deadline_at)._replace(reason=DEADLINE_EXCEEDED, message=DEADLINE_MESSAGE)
    exceeded = {} if pod_state.sandbox is None else pod_state.sandbox.status.get("exceeded") or {}
    if exceeded:
        return PodTermination(exceeded["at"], _EVICTION_GRACE, EVICTED, _volume_limit_message(pod, exceeded["volume"]))
    return None


def _volume_limit_message(pod: Obj, name: str) -> str:
    """Return the eviction message for an emptyDir over its size limit; it ends with a space, as in Kubernetes."""
    limits = {v["name"]: v["emptyDir"].get("sizeLimit") for v in pod["spec"]["volumes"] if "emptyDir" in v}
    return f"Usage of EmptyDir volume {quote_like_go(name)} exceeds the limit {quote_like_go(str(limits.get(name)))}. "


def graceful_termination(pod: Obj, start_time: Instant) -> PodTermination:
    """Return a termination of a pod, requested at `start_time`, with the grace period in the pod's spec."""
    return PodTermination(start_time, pods.grace_period(pod))


def deadline_of(pod: Obj) -> Instant | None:
    """Return when a pod exceeds its activeDeadlineSeconds; None if it has none or has not started."""
    seconds, start_time = pod["spec"].get("activeDeadlineSeconds"), (pod.get("status") or {}).get("startTime")
    return None if seconds is None or start_time is None else parse_time(start_time) + seconds * SECOND


def plan_pod_stop(pod_state: PodState, termination: PodTermination, now: Instant) -> PodStopPlan:
    """Return which containers of a terminating pod to stop now (sidecars last), and when to stop the others."""
    live_containers = pod_state.live_containers()
    grace_ends_at = _termination_start(pod_state, termination, now) + termination.grace * SECOND
    non_sidecars = [container for container in live_containers if container.role is not ContainerRole.SIDECAR]
    containers = (non_sidecars or live_containers[-1:]) if now < grace_ends_at else live_containers
    grace_seconds = max(GRACE_MIN, -(-(grace_ends_at - now) // SECOND))
    stops = list(_stop_requests(containers, StopRequest(now, grace_seconds), max(GRACE_MIN, termination.grace)))
    return PodStopPlan(stops, grace_ends_at if len(containers) < len(live_containers) else None, not live_containers)


def _termination_start(pod_state: PodState, termination: PodTermination, now: Instant) -> Instant:
    last_runs = (container.last_run for container in pod_state.containers)
    return min((run.stop.at for run in last_runs if run and run.stop and run.stop.at >= termination.since), default=now)


def _stop_requests(containers: Sequence[PodContainer], stop: StopRequest, grace: int) -> Iterator[ContainerStop]:
    for container in containers:
        run = container.last_run
        assert run is not None, f"container {container.name} is alive but has no run"
        message = f"Stopping container {container.name}"
        if run.stop is None:
            yield ContainerStop(run, stop, message)
        elif run.stop.grace > grace and run.stop.end_time() > stop.at + grace * SECOND:
            yield ContainerStop(run, StopRequest(stop.at, grace), message)


BACKOFF_MIN: Final = 10 * SECOND
BACKOFF_MAX: Final = 5 * MINUTE
#: Containers that ran longer than this restart without backoff.
_BACKOFF_RESET_RUN_TIME: Final = 2 * BACKOFF_MAX
#: The delay before a failed sandbox is retried.
SANDBOX_RETRY_DELAY: Final = 5 * SECOND


class ContainerStart(NamedTuple):
    """A container to start, the number of this start (from 0), and the number of consecutive restarts up to it.

    A run of over 10 minutes ends a series of consecutive restarts.
    """

    container: PodContainer
    attempt: int
    restarts_in_row: int = 0


class PodActions(NamedTuple):
    """What the kubelet must do for a pod now (containers to start and stop), and when to compute that again."""

    starts: Sequence[ContainerStart] = ()
    stops: Sequence[ContainerStop] = ()
    #: Whether a sandbox must be created: the first one, or a replacement for a lost one.
    creates_sandbox: bool = False
    #: The restart delay of containers in CrashLoopBackOff, by container name.
    backoffs: Mapping[str, Duration] = MappingProxyType({})
    #: Whether no container runs and none will start.
    has_ended: bool = False
    next_check_at: Instant | None = None


def compute_pod_actions(pod_state: PodState, now: Instant) -> PodActions:
    """Return the containers to start and stop now for a pod that the kubelet has accepted and that has not ended."""
    termination = termination_of(pod_state, now)
    if termination is not None:
        return stop_actions(pod_state, termination, now)
    sandbox = pod_state.sandbox
    if sandbox is None or sandbox.phase == EXITED:
        return _actions_without_sandbox(pod_state, sandbox, now)
    if sandbox.phase != READY:
        return PodActions(next_check_at=deadline_of(pod_state.pod))
    return _actions_with_sandbox(pod_state, now)


def stop_actions(pod_state: PodState, termination: PodTermination, now: Instant) -> PodActions:
    """Return the stops that are due now to end all containers of a pod, sidecars last."""
    stop_plan = plan_pod_stop(pod_state, termination, now)
    return PodActions(stops=stop_plan.stops, has_ended=stop_plan.is_over, next_check_at=stop_plan.next_check_at)


def _actions_without_sandbox(pod_state: PodState, sandbox: ObservedRun | None, now: Instant) -> PodActions:
    if pod_state.live_containers():
        return stop_actions(pod_state, graceful_termination(pod_state.pod, sandbox.ended_at if sandbox else 0), now)
    if _has_finished_without_sandbox(pod_state):
        return PodActions(has_ended=True)
    deadline = deadline_of(pod_state.pod)
    if sandbox is not None and not sandbox.started_at and sandbox.ended_at + SANDBOX_RETRY_DELAY > now:
        retry_at = sandbox.ended_at + SANDBOX_RETRY_DELAY
        return PodActions(next_check_at=retry_at if deadline is None else min(retry_at, deadline))
    return PodActions(creates_sandbox=True, next_check_at=deadline)


def _has_finished_without_sandbox(pod_state: PodState) -> bool:
    if pod_state.restart_policy == "Never":
        return any(container.runs for container in pod_state.containers)
    last_runs = [container.last_run for container in pod_state.containers_with_role(ContainerRole.MAIN)]
    return pod_state.restart_policy == "OnFailure" and all(run is not None and run.exit_code == 0 for run in last_runs)


def _actions_with_sandbox(pod_state: PodState, now: Instant) -> PodActions:
    pod, policy = pod_state.pod, pod_state.restart_policy
    for container in pod_state.containers_with_role(ContainerRole.INIT):
        run = container.current_run
        if run is not None and not run.is_alive and run.exit_code != 0 and policy == "Never":
            return stop_actions(pod_state, graceful_termination(pod, run.ended_at), now)
    main_runs = [container.last_run for container in pod_state.containers_with_role(ContainerRole.MAIN)]
    if all(run and not run.is_alive and not _will_restart(ContainerRole.MAIN, run, policy) for run in main_runs):
        end_time = max(run.ended_at for run in main_runs if run)
        return stop_actions(pod_state, graceful_termination(pod, end_time), now)
    return _start_actions(pod_state, now)


def _startable_containers(pod_state: PodState) -> Sequence[PodContainer]:
    """Return the containers that may run in the pod's current phase of initialization.

    These are the current init container, the sidecars before it and, once it is done, the next init container or else
    the main containers. Without init containers, or while a main container is alive, they are all sidecars and main
    containers.
    """
    init_containers = [container for container in pod_state.containers if container.role.is_init]
    main_containers = list(pod_state.containers_with_role(ContainerRole.MAIN))
    sidecars = [container for container in init_containers if container.role is ContainerRole.SIDECAR]
    if not init_containers or any(container.is_alive for container in main_containers):
        return [*sidecars, *main_containers]
    current_index = max((index for index, c in enumerate(init_containers) if c.current_run is not None), default=None)
    if current_index is None:
        return init_containers[:1]
    current_container = init_containers[current_index]
    running_sidecars = [c for c in init_containers[:current_index] if c.role is ContainerRole.SIDECAR]
    if not current_container.is_done:
        return [*running_sidecars, current_container]
    return [
        *running_sidecars,
        current_container,
        *(init_containers[current_index + 1 : current_index + 2] or main_containers),
    ]


def _new_ephemeral_containers(pod_state: PodState) -> Iterator[PodContainer]:
    """Yield the ephemeral containers that have never run: they start at any time, and only once."""
    for container in pod_state.containers_with_role(ContainerRole.EPHEMERAL):
        if container.last_run is None and not container.status.get("containerID"):
            yield container


def _start_actions(pod_state: PodState, now: Instant) -> PodActions:
    policy = pod_state.restart_policy
    container_starts: list[ContainerStart] = []
    container_stops: list[ContainerStop] = []
    backoffs: dict[str, Duration] = {}
    check_times = [deadline_of(pod_state.pod)]
    for container in (*_startable_containers(pod_state), *_new_ephemeral_containers(pod_state)):
        run = container.current_run if container.role.is_init else container.last_run
        if run is None:
            container_starts.append(ContainerStart(container, container.next_attempt))
        elif run.is_alive:
            container_stops += _stop_requests_after_failure(container, run, pod_state, now)
        elif _will_restart(container.role, run, policy):
            early_restarts = _restarts_in_row(run)
            restart_delay = exponential_backoff(BACKOFF_MIN, BACKOFF_MAX, early_restarts) if early_restarts else 0
            if run.ended_at + restart_delay > now:
                backoffs[container.name] = restart_delay
                check_times.append(run.ended_at + restart_delay)
            else:
                container_starts.append(ContainerStart(container, container.next_attempt, early_restarts + 1))
    return PodActions(
        container_starts,
        container_stops,
        backoffs=backoffs,
        next_check_at=min((time for time in check_times if time is not None), default=None),
    )


def _restarts_in_row(run: ObservedRun) -> int:
    run_time = run.ended_at - run.started_at if run.started_at else 0
    return 0 if run_time > _BACKOFF_RESET_RUN_TIME else run.restarts_in_row


def _will_restart(role: ContainerRole, run: ObservedRun, restart_policy: str) -> bool:
    if role is ContainerRole.SIDECAR:
        return True
    if role is ContainerRole.MAIN and restart_policy == "Always":
        return True
    return restart_policy != "Never" and (run.exit_code != 0 or (role is ContainerRole.MAIN and run.is_killed_by_probe))


def _stop_requests_after_failure(
    container: PodContainer, run: ObservedRun, pod_state: PodState, now: Instant
) -> Iterable[ContainerStop]:
    failure = run.status.get("failed")
    if not failure or run.stop is not None:
        return
    probe = (container.spec.get(f"{failure['probe']}Probe") or {}) if "probe" in failure else {}
    probe_grace = probe.get("terminationGracePeriodSeconds")
    grace_seconds = pods.grace_period(pod_state.pod) if probe_grace is None else min(probe_grace, GRACE_MAX)
    stop_request = StopRequest(now, max(GRACE_MIN, grace_seconds), failure.get("message", ""))
    yield ContainerStop(run, stop_request, _failure_message(container, failure, pod_state.restart_policy))


def _failure_message(container: PodContainer, failure: Mapping[str, Any], restart_policy: str) -> str:
    if "hook" in failure:
        return "FailedPostStartHook"
    if container.role is not ContainerRole.MAIN:
        return f"Init container {container.name} failed {failure['probe']} probe"
    message = f"Container {container.name} failed {failure['probe']} probe"
    return message if restart_policy == "Never" else f"{message}, will be restarted"
