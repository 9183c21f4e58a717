"""Pod actions: which containers to start or stop, and when to check again.

    sandbox -> init containers one after the other, sidecars among them -> main containers -> all have ended

Ended containers restart according to the restart policy, with exponential backoff. If the sandbox is lost, its
containers end. In a new sandbox the pod starts again, including its init containers. Sources: pkg/kubelet/kuberuntime
(computePodActions, computeInitContainerActions, doBackOff), k8s.io/client-go/util/flowcontrol (backoff.go).
"""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from batchyard.api.views import pod_lifecycle as lifecycle
from batchyard.api.views.pod import GRACE_MAX
from batchyard.base.instant import MINUTE, SECOND, Duration, Instant
from batchyard.kubelet.local.pod_state import ContainerRole, PodContainer, PodState
from batchyard.kubelet.local.runs import EXITED, READY, ObservedRun, StopRequest
from batchyard.kubelet.local.termination import (
    GRACE_MIN,
    ContainerStop,
    PodTermination,
    containers_to_stop,
    deadline_of,
    graceful_termination,
    termination_of,
)

BACKOFF_MIN: Final = 10 * SECOND
BACKOFF_MAX: Final = 5 * MINUTE
#: Containers that ran longer than this restart without backoff.
_BACKOFF_FORGOTTEN: Final = 2 * BACKOFF_MAX
_DOUBLINGS_MAX: Final = 8
#: The delay before a failed sandbox is retried.
SANDBOX_AGAIN_AFTER: Final = 5 * SECOND


class ContainerStart(NamedTuple):
    """A container to start."""

    container: PodContainer
    attempt: int
    restarts_in_row: int = 0


class PodActions(NamedTuple):
    """The actions that are due, and when to check again."""

    starts: Sequence[ContainerStart] = ()
    halts: Sequence[ContainerStop] = ()
    #: Whether a sandbox should be created, the first or one to replace a lost one.
    makes_sandbox: bool = False
    #: The restart delay of containers that back off, by name.
    backoffs: Mapping[str, Duration] = MappingProxyType({})
    #: Whether nothing runs and nothing will start.
    has_ended: bool = False
    look_again: Instant | None = None


def compute_pod_actions(situation: PodState, now: Instant) -> PodActions:
    """Return the actions for an admitted pod that has not ended."""
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
    """Return the actions that stop all containers in order."""
    found = containers_to_stop(situation, ending, now)
    return PodActions(halts=found.halts, has_ended=found.is_over, look_again=found.look_again)


def _without_sandbox(situation: PodState, sandbox: ObservedRun | None, now: Instant) -> PodActions:
    """Return the actions without a live sandbox.

    Stop its containers first, then create a new sandbox if the restart policy allows it.
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
    """Whether a pod without sandbox gets no new one: its policy forbids a restart, or its containers have succeeded."""
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

    These are the due init container with the sidecars before it, or all sidecars and main containers.
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
    """Start or restart the containers that may run; stop those whose probes or hooks failed."""
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
            wait = min(BACKOFF_MIN << min(in_row - 1, _DOUBLINGS_MAX), BACKOFF_MAX) if in_row else 0
            if run.ended_at + wait > now:
                backoffs[each.name] = wait
                waits.append(run.ended_at + wait)
            else:
                starts.append(ContainerStart(each, each.next_attempt, in_row + 1))
    return PodActions(
        starts, halts, backoffs=backoffs, look_again=min((at for at in waits if at is not None), default=None)
    )


def _restarts_in_row(run: ObservedRun) -> int:
    """Return the number of consecutive early restarts; 0 after a long run."""
    ran = run.ended_at - run.started_at if run.started_at else 0
    return 0 if ran > _BACKOFF_FORGOTTEN else run.restarts_in_row


def _begins_again(part: ContainerRole, run: ObservedRun, policy: str) -> bool:
    """Whether a container restarts after this run."""
    if part is ContainerRole.SIDECAR:
        return True
    if part is ContainerRole.MAIN and policy == "Always":
        return True
    return policy != "Never" and (run.exit_code != 0 or (part is ContainerRole.MAIN and run.is_killed_by_probe))


def _halted_for_failure(
    container: PodContainer, run: ObservedRun, situation: PodState, now: Instant
) -> Iterable[ContainerStop]:
    """Yield the stop of a container whose probe or hook failed."""
    failed = run.status.get("failed")
    if not failed or run.stop is not None:
        return
    probe = (container.spec.get(f"{failed['probe']}Probe") or {}) if "probe" in failed else {}
    grace = probe.get("terminationGracePeriodSeconds")
    seconds = lifecycle.grace_period(situation.pod) if grace is None else min(grace, GRACE_MAX)
    stop = StopRequest(now, max(GRACE_MIN, seconds), failed.get("message", ""))
    yield ContainerStop(run, stop, _why(container, failed, situation.restart_policy))


def _why(container: PodContainer, failed: Mapping[str, Any], policy: str) -> str:
    if "hook" in failed:
        return "FailedPostStartHook"
    if container.part is not ContainerRole.MAIN:
        return f"Init container {container.name} failed {failed['probe']} probe"
    why = f"Container {container.name} failed {failed['probe']} probe"
    return why if policy == "Never" else f"{why}, will be restarted"
