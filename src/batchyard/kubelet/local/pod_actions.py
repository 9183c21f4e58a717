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
from batchyard.base.instant import MINUTE, SECOND, Duration, Instant, backoff
from batchyard.kubelet.local.errors import quoted
from batchyard.kubelet.local.runs import (
    EXITED,
    READY,
    ObservedRun,
    StopRequest,
    by_container,
    images_by_container,
    run_of,
)

# --- pod state ---
#
# The observed state of a pod on this machine: its sandbox, and its containers with their runs.


_STATUSES = ("initContainerStatuses", "containerStatuses")


class ContainerRole(Enum):
    """The role of a container in its pod."""

    INIT = "init"
    SIDECAR = "sidecar"
    MAIN = "main"


class PodContainer(NamedTuple):
    """A container of a pod, with its role and its most recent runs, the oldest first."""

    spec: Mapping[str, Any]
    part: ContainerRole
    runs: Sequence[ObservedRun]
    #: The number of the current sandbox.
    sandbox: int
    #: The container's entry in the pod's status; empty if there is none.
    reported: Mapping[str, Any]
    #: The image pulls for this container, the oldest first.
    images: Sequence[ObservedRun] = ()

    @property
    def name(self) -> str:
        """The container's name."""
        name: str = self.spec["name"]
        return name

    @property
    def last(self) -> ObservedRun | None:
        """The container's last run; None before the first one."""
        return self.runs[-1] if self.runs else None

    @property
    def here(self) -> ObservedRun | None:
        """The last run in the current sandbox, or None: in a new sandbox all containers start again."""
        return self.runs[-1] if self.runs and self.runs[-1].sandbox == self.sandbox else None

    @property
    def is_alive(self) -> bool:
        """Whether the container runs or is starting."""
        return bool(self.runs) and self.runs[-1].is_alive

    @property
    def is_done(self) -> bool:
        """Whether the next container may start: a sidecar has started, or an init container has succeeded."""
        run = self.here
        if run is None:
            return False
        return run.is_started if self.part is ContainerRole.SIDECAR else not run.is_alive and run.exit_code == 0

    @property
    def next_attempt(self) -> int:
        """The attempt number of the next run; derived from the pod's status if earlier runs were deleted."""
        if self.last is not None:
            return self.last.attempt + 1
        has_run = self.reported.get("containerID") or self.reported.get("lastState")
        return int(self.reported.get("restartCount", 0)) + 1 if has_run else 0


class PodState(NamedTuple):
    """A pod, its sandbox, and its containers with their runs."""

    pod: Obj
    sandbox: ObservedRun | None
    #: Init containers and sidecars in order, then the main containers.
    containers: Sequence[PodContainer]
    #: The number of the next sandbox.
    next_sandbox: int

    def of(self, part: ContainerRole) -> Iterator[PodContainer]:
        """Yield the containers with a role, in the order of the pod's spec."""
        return (each for each in self.containers if each.part is part)

    def alive(self) -> Sequence[PodContainer]:
        """Return the containers that run or are starting."""
        return [each for each in self.containers if each.is_alive]

    @property
    def restart_policy(self) -> str:
        """The pod's restart policy."""
        policy: str = self.pod["spec"].get("restartPolicy", "Always")
        return policy


def observed_pod_state(pod: Obj, runs: Sequence[Obj]) -> PodState:
    """Return the observed state of a pod, computed from its runs and its status."""
    seen = [run_of(run) for run in runs]
    sandbox = next((run for run in seen if not run.container and not run.image_for), None)
    last = max((run.sandbox for run in seen), default=-1)
    number = last + 1 if sandbox is None else sandbox.sandbox
    ran, statuses, spec = by_container(seen), statuses_by_name(pod), pod["spec"]
    images = images_by_container(seen)

    def container(each: Mapping[str, Any], part: ContainerRole) -> PodContainer:
        name: str = each["name"]
        return PodContainer(each, part, ran.get(name, ()), number, statuses.get(name) or {}, images.get(name, ()))

    firsts = [
        container(each, ContainerRole.SIDECAR if each.get("restartPolicy") == "Always" else ContainerRole.INIT)
        for each in spec.get("initContainers") or ()
    ]
    return PodState(
        pod, sandbox, [*firsts, *(container(each, ContainerRole.MAIN) for each in spec["containers"])], last + 1
    )


def statuses_by_name(pod: Obj) -> Mapping[str, Mapping[str, Any]]:
    """Return the container statuses of a pod, by name."""
    status = pod.get("status") or {}
    found: list[Sequence[Mapping[str, Any]]] = [status.get(field) or () for field in _STATUSES]
    return {each["name"]: each for statuses in found for each in statuses}


# --- termination ---
#
# Pod termination stops the main containers first, then the sidecars in reverse order.
#
# Sidecars that still run when the grace period ends are stopped at once. Sources:
# pkg/kubelet/kuberuntime (killContainer, kuberuntime_termination_order.go), pkg/kubelet (active_deadline.go,
# pod_workers.go), pkg/kubelet/eviction (emptyDirLimitEviction).


#: The minimum grace period in seconds. Source: minimumGracePeriodInSeconds in pkg/kubelet/kuberuntime.
GRACE_MIN: Final = 2
#: Source: immediateEvictionGracePeriodSeconds in pkg/kubelet/eviction.
_EVICTION_GRACE: Final = 1
EXPIRED: Final = "DeadlineExceeded"
TOO_LATE: Final = "Pod was active on the node longer than the specified deadline"
EVICTED: Final = "Evicted"


class PodTermination(NamedTuple):
    """The time, grace period and reason of a pod's termination."""

    #: When the termination was requested; stop requests before that time have another cause.
    since: Instant
    #: The grace period in seconds, from the stop of the pod's first container.
    grace: int
    #: The reason and message if the pod fails in any case; empty if the containers' exit codes decide its phase.
    why: str = ""
    message: str = ""


class ContainerStop(NamedTuple):
    """A run to stop, the stop request, and the message of the Killing Event."""

    run: ObservedRun
    stop: StopRequest
    message: str


class PodStopPlan(NamedTuple):
    """The runs to stop now, and when to stop the remaining containers; `is_over` if no container is alive."""

    halts: list[ContainerStop]
    look_again: Instant | None
    is_over: bool


def termination_of(situation: PodState, now: Instant) -> PodTermination | None:
    """Return the termination of a deleted pod, one over its deadline or with a full volume; None for other pods."""
    pod = situation.pod
    deleted_at = pods.deleted_at(pod)
    if deleted_at is not None:
        return PodTermination(deleted_at, pod["metadata"].get("deletionGracePeriodSeconds") or 0)
    expires_at = deadline_of(pod)
    if expires_at is not None and expires_at <= now:
        return graceful_termination(pod, expires_at)._replace(why=EXPIRED, message=TOO_LATE)
    exceeded = {} if situation.sandbox is None else situation.sandbox.status.get("exceeded") or {}
    if exceeded:
        return PodTermination(exceeded["at"], _EVICTION_GRACE, EVICTED, _too_full(pod, exceeded["volume"]))
    return None


def _too_full(pod: Obj, name: str) -> str:
    """Return the eviction message for an emptyDir over its size limit; it ends with a space, as in Kubernetes."""
    limits = {
        volume["name"]: volume["emptyDir"].get("sizeLimit") for volume in pod["spec"]["volumes"] if "emptyDir" in volume
    }
    return f"Usage of EmptyDir volume {quoted(name)} exceeds the limit {quoted(str(limits.get(name)))}. "


def graceful_termination(pod: Obj, since: Instant) -> PodTermination:
    """Return a termination of a pod with the grace period in its spec."""
    return PodTermination(since, pods.grace_period(pod))


def deadline_of(pod: Obj) -> Instant | None:
    """Return when a pod's activeDeadlineSeconds end; None if it has no deadline or has not started."""
    seconds, started = pod["spec"].get("activeDeadlineSeconds"), (pod.get("status") or {}).get("startTime")
    return None if seconds is None or started is None else parse_time(started) + seconds * SECOND


def containers_to_stop(situation: PodState, ending: PodTermination, now: Instant) -> PodStopPlan:
    """Return which containers of a terminating pod to stop now, and when to stop the rest."""
    alive = situation.alive()
    until = _begun_at(situation, ending, now) + ending.grace * SECOND
    firsts = [each for each in alive if each.part is not ContainerRole.SIDECAR]
    turn = (firsts or alive[-1:]) if now < until else alive
    seconds = max(GRACE_MIN, -(-(until - now) // SECOND))
    halts = list(_halts(turn, StopRequest(now, seconds), max(GRACE_MIN, ending.grace)))
    return PodStopPlan(halts, until if len(turn) < len(alive) else None, not alive)


def _begun_at(situation: PodState, ending: PodTermination, now: Instant) -> Instant:
    """Return when the first container was stopped for this termination; `now` if none was stopped yet."""
    lasts = (each.last for each in situation.containers)
    return min((run.stop.at for run in lasts if run and run.stop and run.stop.at >= ending.since), default=now)


def _halts(containers: Sequence[PodContainer], stop: StopRequest, grace: int) -> Iterator[ContainerStop]:
    """Yield stop requests for containers that have none, or one with a longer grace period than now allowed."""
    for each in containers:
        run = each.last
        assert run is not None, f"container {each.name} is alive but has no run"
        message = f"Stopping container {each.name}"
        if run.stop is None:
            yield ContainerStop(run, stop, message)
        elif run.stop.grace > grace and run.stop.until() > stop.at + grace * SECOND:
            yield ContainerStop(run, StopRequest(stop.at, grace), message)


BACKOFF_MIN: Final = 10 * SECOND
BACKOFF_MAX: Final = 5 * MINUTE
#: Containers that ran longer than this restart without backoff.
_BACKOFF_FORGOTTEN: Final = 2 * BACKOFF_MAX
#: The delay before a failed sandbox is retried.
SANDBOX_AGAIN_AFTER: Final = 5 * SECOND


class ContainerStart(NamedTuple):
    """A container to start, with the attempt number and its consecutive early restarts."""

    container: PodContainer
    attempt: int
    restarts_in_row: int = 0


class PodActions(NamedTuple):
    """The actions that are due for a pod, and when to compute them again."""

    starts: Sequence[ContainerStart] = ()
    halts: Sequence[ContainerStop] = ()
    #: Whether a sandbox must be created: the first one, or a replacement for a lost one.
    makes_sandbox: bool = False
    #: The restart delay of containers in CrashLoopBackOff, by name.
    backoffs: Mapping[str, Duration] = MappingProxyType({})
    #: Whether no container runs and none will start.
    has_ended: bool = False
    look_again: Instant | None = None


def compute_pod_actions(situation: PodState, now: Instant) -> PodActions:
    """Return the due actions for an admitted pod that has not ended."""
    ending = termination_of(situation, now)
    if ending is not None:
        return stop_actions(situation, ending, now)
    sandbox = situation.sandbox
    if sandbox is None or sandbox.phase == EXITED:
        return _without_sandbox(situation, sandbox, now)
    if sandbox.phase != READY:
        return PodActions(look_again=deadline_of(situation.pod))
    return _running_actions(situation, now)


def stop_actions(situation: PodState, ending: PodTermination, now: Instant) -> PodActions:
    """Return the actions that stop all containers of a pod in order."""
    found = containers_to_stop(situation, ending, now)
    return PodActions(halts=found.halts, has_ended=found.is_over, look_again=found.look_again)


def _without_sandbox(situation: PodState, sandbox: ObservedRun | None, now: Instant) -> PodActions:
    """Return the actions for a pod without a live sandbox: stop its containers, then create a new sandbox.

    The pod ends instead if its restart policy forbids a restart or its containers have succeeded.
    """
    if situation.alive():
        return stop_actions(situation, graceful_termination(situation.pod, sandbox.ended_at if sandbox else 0), now)
    if _is_enough(situation):
        return PodActions(has_ended=True)
    deadline = deadline_of(situation.pod)
    if sandbox is not None and not sandbox.started_at and sandbox.ended_at + SANDBOX_AGAIN_AFTER > now:
        again = sandbox.ended_at + SANDBOX_AGAIN_AFTER
        return PodActions(look_again=again if deadline is None else min(again, deadline))
    return PodActions(makes_sandbox=True, look_again=deadline)


def _is_enough(situation: PodState) -> bool:
    """Report whether a pod without sandbox has ended: restarts are forbidden, or its containers have succeeded."""
    if situation.restart_policy == "Never":
        return any(each.runs for each in situation.containers)
    lasts = [each.last for each in situation.of(ContainerRole.MAIN)]
    return situation.restart_policy == "OnFailure" and all(run is not None and run.exit_code == 0 for run in lasts)


# --- running pods ---


def _running_actions(situation: PodState, now: Instant) -> PodActions:
    pod, policy = situation.pod, situation.restart_policy
    for each in situation.of(ContainerRole.INIT):
        run = each.here
        if run is not None and not run.is_alive and run.exit_code != 0 and policy == "Never":
            return stop_actions(situation, graceful_termination(pod, run.ended_at), now)
    mains = [each.last for each in situation.of(ContainerRole.MAIN)]
    if all(run and not run.is_alive and not _begins_again(ContainerRole.MAIN, run, policy) for run in mains):
        since = max(run.ended_at for run in mains if run)
        return stop_actions(situation, graceful_termination(pod, since), now)
    return _started(situation, now)


def _may_run(situation: PodState) -> Sequence[PodContainer]:
    """Return the containers that may run now.

    These are the current init container with the sidecars before it, or all sidecars and main containers.
    """
    firsts = [each for each in situation.containers if each.part is not ContainerRole.MAIN]
    mains = list(situation.of(ContainerRole.MAIN))
    sidecars = [each for each in firsts if each.part is ContainerRole.SIDECAR]
    if not firsts or any(each.is_alive for each in mains):
        return [*sidecars, *mains]
    reached = max((number for number, each in enumerate(firsts) if each.here is not None), default=None)
    if reached is None:
        return firsts[:1]
    current = firsts[reached]
    stay = [each for each in firsts[:reached] if each.part is ContainerRole.SIDECAR]
    if not current.is_done:
        return [*stay, current]
    return [*stay, current, *(firsts[reached + 1 : reached + 2] or mains)]


def _started(situation: PodState, now: Instant) -> PodActions:
    """Return the starts and restarts of containers that may run, and the stops after failed probes or hooks."""
    policy = situation.restart_policy
    starts: list[ContainerStart] = []
    halts: list[ContainerStop] = []
    backoffs: dict[str, Duration] = {}
    waits = [deadline_of(situation.pod)]
    for each in _may_run(situation):
        run = each.last if each.part is ContainerRole.MAIN else each.here
        if run is None:
            starts.append(ContainerStart(each, each.next_attempt))
        elif run.is_alive:
            halts += _halted_for_failure(each, run, situation, now)
        elif _begins_again(each.part, run, policy):
            in_row = _restarts_in_row(run)
            wait = backoff(BACKOFF_MIN, BACKOFF_MAX, in_row) if in_row else 0
            if run.ended_at + wait > now:
                backoffs[each.name] = wait
                waits.append(run.ended_at + wait)
            else:
                starts.append(ContainerStart(each, each.next_attempt, in_row + 1))
    return PodActions(
        starts, halts, backoffs=backoffs, look_again=min((at for at in waits if at is not None), default=None)
    )


def _restarts_in_row(run: ObservedRun) -> int:
    """Return how many consecutive early restarts preceded the end of a run; 0 if the run was long."""
    ran = run.ended_at - run.started_at if run.started_at else 0
    return 0 if ran > _BACKOFF_FORGOTTEN else run.restarts_in_row


def _begins_again(part: ContainerRole, run: ObservedRun, policy: str) -> bool:
    """Report whether a container restarts after this ended run, given its role and the restart policy."""
    if part is ContainerRole.SIDECAR:
        return True
    if part is ContainerRole.MAIN and policy == "Always":
        return True
    return policy != "Never" and (run.exit_code != 0 or (part is ContainerRole.MAIN and run.is_killed_by_probe))


def _halted_for_failure(
    container: PodContainer, run: ObservedRun, situation: PodState, now: Instant
) -> Iterable[ContainerStop]:
    """Yield the stop of a container whose probe or postStart hook failed; nothing if none failed."""
    failed = run.status.get("failed")
    if not failed or run.stop is not None:
        return
    probe = (container.spec.get(f"{failed['probe']}Probe") or {}) if "probe" in failed else {}
    grace = probe.get("terminationGracePeriodSeconds")
    seconds = pods.grace_period(situation.pod) if grace is None else min(grace, GRACE_MAX)
    stop = StopRequest(now, max(GRACE_MIN, seconds), failed.get("message", ""))
    yield ContainerStop(run, stop, _why(container, failed, situation.restart_policy))


def _why(container: PodContainer, failed: Mapping[str, Any], policy: str) -> str:
    if "hook" in failed:
        return "FailedPostStartHook"
    if container.part is not ContainerRole.MAIN:
        return f"Init container {container.name} failed {failed['probe']} probe"
    why = f"Container {container.name} failed {failed['probe']} probe"
    return why if policy == "Never" else f"{why}, will be restarted"
