"""Pod status of the local kubelet, computed from the observed starts of the pod's containers.

Sources: pkg/kubelet/kubelet_pods.go (generateAPIPodStatus, getPhase), pkg/kubelet/status (status_manager.go:
mergePodStatus, TerminatePod).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from batchyard.api.meta import Obj, find_condition
from batchyard.api.times import format_time
from batchyard.api.views.pods import FAILED, PENDING, RUNNING, SUCCEEDED, is_terminal, pod_condition
from batchyard.base.instant import SECOND, Duration, Instant
from batchyard.kubelet.local.pod_actions import ContainerRole, PodActions, PodContainer, PodState, termination_of
from batchyard.kubelet.local.runs import READY, STARTING, ObservedRun, container_id
from batchyard.kubelet.simulated.pod_status import qos_class

# Statuses of containers, computed from their runs.
#
# Sources: pkg/kubelet/kubelet_pods.go (convertToAPIContainerStatuses), pkg/kubelet/prober (prober_manager.go:
# UpdatePodStatus), pkg/kubelet/kuberuntime (doBackOff).


LOST_REASON: Final = "ContainerStatusUnknown"
_LOST_MESSAGE: Final = "The container could not be located when the pod was terminated"
_DELETED_TEXT: Final = "The container could not be located when the pod was deleted.  The container used to be Running"
_KILLED_EXIT_CODE: Final = 137

#: The roles of containers whose readiness counts.
_ROLES_WITH_READINESS: Final = (ContainerRole.MAIN, ContainerRole.SIDECAR)

Statuses = Sequence[Mapping[str, Any]]


class StartProblem(NamedTuple):
    """Why a container cannot start now: the reason and message of its `waiting` state."""

    reason: str
    message: str

    def state(self) -> Mapping[str, Any]:
        """Return the container's `waiting` state with this reason and message."""
        return {"waiting": {field: text for field, text in self._asdict().items() if text}}


def container_status(
    container: PodContainer,
    pod: Obj,
    problem: StartProblem | None,
    backoff: Duration | None,
    *,
    is_starting: bool = False,
) -> dict[str, Any]:
    """Return a container's status; `problem` is why it cannot start, `backoff` the current restart delay.

    The previous status is kept while the container is starting.
    """
    run, reported_status = container.last_run, container.status
    waiting_problem = problem if backoff is None else crash_loop_problem(pod, container.name, backoff)
    if run is None:
        return _never_started_status(container, pod, waiting_problem)
    was_waiting = bool(reported_status) and "waiting" in reported_status["state"] and bool(reported_status["lastState"])
    if reported_status and (run.phase == STARTING or (is_starting and waiting_problem is None and was_waiting)):
        return {**reported_status}
    previous_run = container.runs[-2] if len(container.runs) > 1 else None
    container_state = _container_state(run, waiting_problem, pod)
    last_state = {} if previous_run is None else terminated_state(previous_run)
    if "waiting" in container_state and not run.is_alive:
        last_state = terminated_state(run)
    is_running = "running" in container_state
    has_init_succeeded = container.role is ContainerRole.INIT and not run.is_alive and run.exit_code == 0
    return {
        **_base_status(container),
        **_image_fields(run),
        "state": container_state,
        "lastState": last_state,
        "ready": has_init_succeeded
        or (is_running and container.role in _ROLES_WITH_READINESS and bool(run.status.get("ready"))),
        "started": is_running and run.is_started,
        "restartCount": run.attempt,
        **({} if run.phase == STARTING else {"containerID": container_id(run)}),
    }


def unknown_state(message: str = _LOST_MESSAGE) -> Mapping[str, Any]:
    """Return the `terminated` state of a container whose exit code is unknown: 137, ContainerStatusUnknown."""
    return {"terminated": {"exitCode": _KILLED_EXIT_CODE, "reason": LOST_REASON, "message": message}}


def crash_loop_problem(pod: Obj, container: str, restart_delay: Duration) -> StartProblem:
    """Return the reason CrashLoopBackOff, with its message, of a container whose restart is delayed."""
    minutes, seconds = divmod(restart_delay // SECOND, 60)
    text = f"{minutes}m{seconds}s" if minutes else f"{seconds}s"
    message = f"back-off {text} restarting failed container={container} pod={full_name(pod)}"
    return StartProblem("CrashLoopBackOff", message)


def full_name(pod: Obj) -> str:
    """Format a pod's name, namespace and uid as `name_namespace(uid)`, as messages of the kubelet do."""
    metadata = pod["metadata"]
    return f"{metadata['name']}_{metadata['namespace']}({metadata['uid']})"


def _container_state(run: ObservedRun, waiting_problem: StartProblem | None, pod: Obj) -> Mapping[str, Any]:
    if run.phase == STARTING:
        return _waiting_state(pod)
    if run.is_alive:
        return {"running": {"startedAt": format_time(run.started_at)}}
    return terminated_state(run) if waiting_problem is None else waiting_problem.state()


def _never_started_status(container: PodContainer, pod: Obj, waiting_problem: StartProblem | None) -> dict[str, Any]:
    reported_status = container.status
    if reported_status and "terminated" in reported_status["state"]:
        return {**reported_status}
    last_state = reported_status.get("lastState") or {}
    if reported_status and "running" in reported_status["state"]:
        last_state = unknown_state(_DELETED_TEXT)
    return {
        **_base_status(container),
        "state": _waiting_state(pod) if waiting_problem is None else waiting_problem.state(),
        "lastState": last_state,
        "ready": False,
        "started": False,
        "restartCount": reported_status.get("restartCount", 0),
    }


def _waiting_state(pod: Obj) -> Mapping[str, Any]:
    has_init_containers = bool(pod["spec"].get("initContainers"))
    return {"waiting": {"reason": "PodInitializing" if has_init_containers else "ContainerCreating"}}


def _base_status(container: PodContainer) -> dict[str, Any]:
    status = {"name": container.name, "image": container.spec.get("image") or "", "imageID": ""}
    mount_statuses = [dict(_mount_status(mount)) for mount in container.spec.get("volumeMounts") or ()]
    return {**status, "volumeMounts": mount_statuses} if mount_statuses else status


def _image_fields(run: ObservedRun) -> Mapping[str, str]:
    image: Mapping[str, str] = run.obj["spec"].get("image") or {}
    return {"image": image["resolved"], "imageID": image["digest"]} if "engine" in image else {}


def _mount_status(mount: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    yield from {"name": mount["name"], "mountPath": mount["mountPath"]}.items()
    if mount.get("readOnly"):
        yield from {"readOnly": True, "recursiveReadOnly": "Disabled"}.items()


def terminated_state(run: ObservedRun) -> Mapping[str, Any]:
    """Return the `terminated` state for an ended container start."""
    if run.status.get("reason") == LOST_REASON:
        return unknown_state()
    reason = run.status.get("reason") or _termination_reason(run.exit_code)
    state: dict[str, Any] = {"exitCode": run.exit_code, "reason": reason}
    if run.status.get("signal"):
        state["signal"] = run.status["signal"]
    if run.status.get("message"):
        state["message"] = run.status["message"]
    time_fields = {"startedAt": format_time(run.started_at), "finishedAt": format_time(run.ended_at)}
    return {"terminated": {**state, **time_fields, "containerID": container_id(run)}}


def _termination_reason(exit_code: int) -> str:
    return "Error" if exit_code else "Completed"


# Conditions of pods, computed from the container statuses.
#
# Source: pkg/kubelet/status (generate.go).


_KUBELET_CONDITIONS: Final = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")


class PodConditionStatus(NamedTuple):
    """The status, reason and message of a pod condition, without type and times."""

    is_true: bool
    reason: str = ""
    message: str = ""

    def to_condition(self, kind: str, old: Mapping[str, Any] | None, now: Instant) -> Mapping[str, Any]:
        """Return the pod condition of type `kind`; it keeps the transition time of `old` if its status is the same."""
        return pod_condition(kind, self.is_true, (self.reason, self.message), old, now)


def conditions_of(
    pod_state: PodState, statuses: Sequence[Mapping[str, Any]], phase: str, has_sandbox: bool, now: Instant
) -> list[Mapping[str, Any]]:
    """Return a pod's conditions: those of other controllers, then the kubelet's.

    `statuses` are the statuses of all containers, including init containers.
    """
    pod = pod_state.pod
    old = {c["type"]: c for c in (pod.get("status") or {}).get("conditions") or ()}
    containers_ready_condition = _containers_ready_condition(pod_state, statuses, phase)
    kubelet_conditions = {
        "PodReadyToStartContainers": PodConditionStatus(has_sandbox),
        "Initialized": _initialized_condition(pod_state, statuses, phase),
        "Ready": _ready_condition(pod, containers_ready_condition),
        "ContainersReady": containers_ready_condition,
        "PodScheduled": PodConditionStatus(True),
    }
    return [
        *_foreign_conditions(old),
        *(
            condition_status.to_condition(kind, old.get(kind), now)
            for kind, condition_status in kubelet_conditions.items()
        ),
    ]


def conditions_of_rejected(pod: Obj, now: Instant) -> list[Mapping[str, Any]]:
    """Return a rejected pod's conditions: those of other controllers, and Ready and ContainersReady, both False."""
    old = {c["type"]: c for c in (pod.get("status") or {}).get("conditions") or ()}
    failed_condition = PodConditionStatus(False, "PodFailed")
    unready = [failed_condition.to_condition(kind, old.get(kind), now) for kind in ("Ready", "ContainersReady")]
    return [*_foreign_conditions(old), *unready]


def _foreign_conditions(old: Mapping[str, Mapping[str, Any]]) -> Iterable[Mapping[str, Any]]:
    return (c for kind, c in old.items() if kind not in _KUBELET_CONDITIONS)


def _containers_ready_condition(pod_state: PodState, statuses: Statuses, phase: str) -> PodConditionStatus:
    if phase in {SUCCEEDED, FAILED}:
        return PodConditionStatus(False, "PodCompleted" if phase == SUCCEEDED else "PodFailed")
    ready_by_name = {status["name"]: status["ready"] for status in statuses}
    unready_names = [
        container.name
        for container in pod_state.containers
        if container.role in _ROLES_WITH_READINESS and not ready_by_name[container.name]
    ]
    if unready_names:
        message = f"containers with unready status: {_format_names(unready_names)}"
        return PodConditionStatus(False, "ContainersNotReady", message)
    return PodConditionStatus(True)


def _ready_condition(pod: Obj, containers_ready: PodConditionStatus) -> PodConditionStatus:
    gate_types = [gate["conditionType"] for gate in pod["spec"].get("readinessGates") or ()]
    if not containers_ready.is_true or not gate_types:
        return containers_ready
    messages: list[str] = []
    for gate in gate_types:
        gate_condition = find_condition(pod, gate)
        if gate_condition is None:
            messages.append(f'corresponding condition of pod readiness gate "{gate}" does not exist.')
        elif gate_condition["status"] != "True":
            messages.append(f'the status of pod readiness gate "{gate}" is not "True", but {gate_condition["status"]}')
    return PodConditionStatus(False, "ReadinessGatesNotReady", ", ".join(messages)) if messages else containers_ready


def _initialized_condition(pod_state: PodState, statuses: Statuses, phase: str) -> PodConditionStatus:
    if phase == SUCCEEDED:
        return PodConditionStatus(True, "PodCompleted")
    statuses_by_name = {status["name"]: status for status in statuses}
    if any(
        "waiting" not in statuses_by_name[c.name]["state"] for c in pod_state.containers_with_role(ContainerRole.MAIN)
    ):
        return PodConditionStatus(True)
    status_fields = {ContainerRole.INIT: "ready", ContainerRole.SIDECAR: "started"}
    init_containers = [container for container in pod_state.containers if container.role.is_init]
    incomplete_names = [
        container.name
        for container in init_containers
        if not statuses_by_name[container.name].get(status_fields[container.role])
    ]
    if incomplete_names:
        message = f"containers with incomplete status: {_format_names(incomplete_names)}"
        return PodConditionStatus(False, "ContainersNotInitialized", message)
    return PodConditionStatus(True)


def _format_names(names: Iterable[str]) -> str:
    """Format names as Go prints a list, such as `[a b]`."""
    return f"[{' '.join(names)}]"


class StatusInputs(NamedTuple):
    """What a pod's status is computed from: observed state, due actions, start problems and the node's address."""

    pod_state: PodState
    actions: PodActions
    #: Why containers cannot be started, by container name.
    problems: Mapping[str, StartProblem]
    host_ip: str


def status_of(inputs: StatusInputs, now: Instant) -> dict[str, Any]:
    """Return the new status of a pod; fields written by other controllers are kept."""
    pod_state, has_ended = inputs.pod_state, inputs.actions.has_ended
    pod = pod_state.pod
    old = pod.get("status") or {}
    init_statuses: Statuses = _container_statuses(inputs, (ContainerRole.INIT, ContainerRole.SIDECAR))
    main_statuses: Statuses = _container_statuses(inputs, (ContainerRole.MAIN,))
    main_statuses = sorted(main_statuses, key=lambda status: str(status["name"]))
    phase, termination_fields = _phase_and_reason(inputs, init_statuses, main_statuses, now)
    has_sandbox = pod_state.sandbox is not None and pod_state.sandbox.phase == READY and not has_ended
    status = {
        **old,
        **(termination_fields if has_ended else {}),
        "conditions": conditions_of(pod_state, [*init_statuses, *main_statuses], phase, has_sandbox, now),
        # The final phase is reported only when nothing runs, because other controllers then reuse the pod's resources.
        "phase": phase if has_ended or phase not in {SUCCEEDED, FAILED} else old.get("phase", PENDING),
        "hostIP": inputs.host_ip,
        "hostIPs": [{"ip": inputs.host_ip}],
        **_pod_addresses(inputs, old),
    }
    status.setdefault("startTime", format_time(now))
    status.setdefault("qosClass", qos_class(pod["spec"]))
    if has_ended:
        init_statuses, main_statuses = _final_statuses(pod_state, init_statuses, main_statuses)
    if init_statuses:
        status["initContainerStatuses"] = init_statuses
    status["containerStatuses"] = main_statuses
    if ephemeral_statuses := _container_statuses(inputs, (ContainerRole.EPHEMERAL,)):
        final_statuses = map(_with_terminated_state, ephemeral_statuses)
        status["ephemeralContainerStatuses"] = list(final_statuses) if has_ended else ephemeral_statuses
    return status


def rejected_pod_status(pod: Obj, rejection: Mapping[str, Any], now: Instant) -> dict[str, Any]:
    """Return the status of a pod that the kubelet rejects. Source: rejectPod in pkg/kubelet."""
    old = pod.get("status") or {}
    start_fields = {"startTime": format_time(now), "qosClass": qos_class(pod["spec"])}
    return {**old, **rejection, **start_fields, "conditions": conditions_of_rejected(pod, now)}


def _container_statuses(inputs: StatusInputs, roles: Sequence[ContainerRole]) -> list[dict[str, Any]]:
    pod, actions = inputs.pod_state.pod, inputs.actions
    starting_names = {start.container.name for start in actions.starts}
    return [
        container_status(
            pod_container,
            pod,
            inputs.problems.get(pod_container.name),
            actions.backoffs.get(pod_container.name),
            is_starting=pod_container.name in starting_names,
        )
        for pod_container in inputs.pod_state.containers
        if pod_container.role in roles
    ]


def _pod_addresses(inputs: StatusInputs, old_status: Mapping[str, Any]) -> Mapping[str, Any]:
    sandbox = inputs.pod_state.sandbox
    uses_host_network = bool(inputs.pod_state.pod["spec"].get("hostNetwork"))
    lacks_address = sandbox is None or sandbox.phase != READY
    if lacks_address and not (uses_host_network and "podIP" not in old_status):
        return {}
    address = inputs.host_ip if uses_host_network or sandbox is None else sandbox.address or inputs.host_ip
    return {"podIP": address, "podIPs": [{"ip": address}]}


def _phase_and_reason(
    inputs: StatusInputs, init_statuses: Statuses, main_statuses: Statuses, now: Instant
) -> tuple[str, Mapping[str, str]]:
    pod = inputs.pod_state.pod
    if is_terminal(pod):
        return pod["status"]["phase"], {}
    termination = termination_of(inputs.pod_state, now)
    if termination is not None and termination.reason:
        return FAILED, {"reason": termination.reason, "message": termination.message}
    phase = _compute_phase(inputs, init_statuses, main_statuses)
    return (FAILED if inputs.actions.has_ended and phase not in {SUCCEEDED, FAILED} else phase), {}


def _compute_phase(inputs: StatusInputs, init_statuses: Statuses, main_statuses: Statuses) -> str:
    pod_state, policy = inputs.pod_state, inputs.pod_state.restart_policy
    roles = {container.name: container.role for container in pod_state.containers}
    plain_init_statuses = [status for status in init_statuses if roles[status["name"]] is ContainerRole.INIT]
    sidecar_statuses = [status for status in init_statuses if roles[status["name"]] is ContainerRole.SIDECAR]
    exit_codes = [_exit_code(status) for status in main_statuses]
    if policy == "Never" and any(_exit_code(status) for status in plain_init_statuses):
        return FAILED
    has_started = any("waiting" not in status["state"] for status in main_statuses)
    is_pending = any(_exit_code(status) is None for status in plain_init_statuses) or (
        not has_started and any(_exit_code(status) is None and not status["started"] for status in sidecar_statuses)
    )
    if is_pending or any(_exit_code(status) is None and "running" not in status["state"] for status in main_statuses):
        return PENDING
    if any("running" in status["state"] for status in (*main_statuses, *sidecar_statuses)):
        return RUNNING
    if not inputs.actions.has_ended and (policy == "Always" or (policy == "OnFailure" and any(exit_codes))):
        return RUNNING
    return FAILED if any(exit_codes) else SUCCEEDED


def _exit_code(status: Mapping[str, Any]) -> int | None:
    state = status["state"]
    terminated = state.get("terminated") or ("waiting" in state and status["lastState"].get("terminated")) or None
    return terminated["exitCode"] if terminated else None


def _final_statuses(pod_state: PodState, init_statuses: Statuses, main_statuses: Statuses) -> tuple[Statuses, Statuses]:
    if not init_statuses or _has_initialized(pod_state, init_statuses, main_statuses):
        main_statuses = [_with_terminated_state(status) for status in main_statuses]
    last_started_index = max(
        (number for number, status in enumerate(init_statuses) if _has_ever_started(status)), default=0
    )
    return [
        *map(_with_terminated_state, init_statuses[: last_started_index + 1]),
        *init_statuses[last_started_index + 1 :],
    ], main_statuses


def _has_initialized(pod_state: PodState, init_statuses: Statuses, main_statuses: Statuses) -> bool:
    last_init_container = list(_init_containers(pod_state))[-1]
    return any(_has_ever_started(status) for status in main_statuses) or bool(
        last_init_container.role is ContainerRole.INIT and _exit_code(init_statuses[-1]) == 0
    )


def _init_containers(pod_state: PodState) -> Iterator[Any]:
    return (container for container in pod_state.containers if container.role.is_init)


def _has_ever_started(status: Mapping[str, Any]) -> bool:
    return "waiting" not in status["state"] or bool(status["lastState"])


def _with_terminated_state(status: Mapping[str, Any]) -> Mapping[str, Any]:
    return status if "terminated" in status["state"] else {**status, "state": unknown_state()}
