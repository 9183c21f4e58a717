"""Logs and resource usage of simulated pods for the API server, which rejects exec, attach and port-forward.

The log streams are updated from pod changes that are already durable.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from batchyard.api import scheme
from batchyard.api.meta import Key, Obj, amount, find_condition, key_of
from batchyard.api.times import format_time, parse_time
from batchyard.api.views.pods import DISRUPTION_TARGET, is_terminating, resumption
from batchyard.base.instant import Duration, Instant, format_duration
from batchyard.interfaces import containers
from batchyard.interfaces.client import EventType, Reader, WatchEvent
from batchyard.interfaces.controller import Kernel, Ticket
from batchyard.kubelet.simulated.durations import UNLIMITED_RUNTIME, RunPlan, run_plan_of

# The log of a simulated container is generated when it is read.
#
# It reports the start of the run, its checkpoints, its end and the reason. These follow from the pod's status and its
# planned run time, so each read returns the same log.


#: The maximum number of checkpoint lines in a log; only the last ones are reported.
CHECKPOINT_LINES_MAX: Final = 1000
_SIGNAL_EXIT_CODES: Final = (137, 143)


class SimulatedRun(NamedTuple):
    """One start of a simulated container: its start time, and its `terminated` state if it has ended."""

    start_time: Instant
    #: The `terminated` state of the container; None while it runs.
    end_state: Mapping[str, Any] | None


def find_run(pod: Obj, container: str, *, previous: bool) -> SimulatedRun | None:
    """Return a container's last start or, with `previous`, the start in its `lastState`; None if there is none."""
    status = status_of(pod, container)
    container_states = [status.get("lastState")] if previous else [status.get("state"), status.get("lastState")]
    return next(filter(None, map(_parse_run, container_states)), None)


def find_run_started_at(pod: Obj, container: str, start_time: Instant) -> SimulatedRun | None:
    """Return the start of a container at `start_time`; None if the pod's status does not show it."""
    status = status_of(pod, container)
    runs = (_parse_run(status.get(field)) for field in ("state", "lastState"))
    return next((run for run in runs if run is not None and run.start_time == start_time), None)


def status_of(pod: Obj, container: str) -> Mapping[str, Any]:
    """Return a container's entry in its pod's status; empty if there is none."""
    status = pod.get("status") or {}
    statuses = [container_status for field in _STATUS_FIELDS for container_status in status.get(field) or ()]
    return next((container_status for container_status in statuses if container_status["name"] == container), {})


_STATUS_FIELDS: Final = ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses")


def first_log_lines(pod: Obj, start_time: Instant, plan: RunPlan, *, previous: bool) -> Sequence[containers.LogLine]:
    """Return the first log lines of a simulated container: its run time, and its checkpoint, if it resumes from one."""
    run_time = (
        "until it is stopped" if plan.runtime >= UNLIMITED_RUNTIME else f"for {format_duration(plan.runtime)} in all"
    )
    lines = [f"started: a simulated container, which works {run_time} and runs no process"]
    resumed_work = None if previous else resumption(pod)
    if resumed_work is not None:
        lines.append(f"resumes from {format_duration(resumed_work.work)} of work saved at {resumed_work.pod_key}")
    return [_format_line(start_time, text) for text in lines]


def checkpoint_log_lines(
    start_time: Instant, interval: Duration | None, last_time: Instant, end_time: Instant
) -> Iterator[containers.LogLine]:
    """Yield the log lines of checkpoints, one per `interval`, after `last_time` and up to `end_time`.

    Only the last 1,000 checkpoints are reported; none if `interval` is None.
    """
    if interval is None:
        return
    last_checkpoint = (end_time - start_time) // interval
    first_checkpoint = max((last_time - start_time) // interval + 1, last_checkpoint - CHECKPOINT_LINES_MAX + 1)
    for number in range(first_checkpoint, last_checkpoint + 1):
        work_done = format_duration(number * interval)
        yield _format_line(start_time + number * interval, f"saved: the work of {work_done} since the start")


def last_log_line(
    pod: Obj, terminated_state: Mapping[str, Any], plan: RunPlan, *, previous: bool
) -> containers.LogLine:
    """Return the last log line of an ended container: its exit code, and why it was stopped, if known."""
    exit_code = terminated_state["exitCode"]
    stop_reason = "" if previous else _stop_reason_text(pod)
    if exit_code in _SIGNAL_EXIT_CODES and (stop_reason or exit_code != plan.exit_code):
        verb = "killed" if exit_code == _SIGNAL_EXIT_CODES[0] else "stopped"
        text = f"{verb}: {stop_reason}, exit code {exit_code}" if stop_reason else f"{verb}: exit code {exit_code}"
    else:
        text = f"finished: exit code {exit_code}" if exit_code == 0 else f"failed: exit code {exit_code}"
    return _format_line(parse_time(terminated_state["finishedAt"]), text)


def lost_log_line(now: Instant) -> containers.LogLine:
    """Return the last log line of a simulated container whose outcome is unknown."""
    return _format_line(now, "lost: the outcome of the container is unknown")


def _stop_reason_text(pod: Obj) -> str:
    status = pod.get("status") or {}
    disruption = find_condition(pod, DISRUPTION_TARGET) or {}
    message = status.get("message") or status.get("reason") or disruption.get("message") or disruption.get("reason")
    return message or ("the pod was deleted" if is_terminating(pod) else "")


def _parse_run(state: Mapping[str, Any] | None) -> SimulatedRun | None:
    state = state or {}
    if "running" in state:
        return SimulatedRun(parse_time(state["running"]["startedAt"]), None)
    end_state = state.get("terminated") or {}
    return SimulatedRun(parse_time(end_state["startedAt"]), end_state) if end_state.get("startedAt") else None


def _format_line(at: Instant, text: str) -> containers.LogLine:
    return containers.LogLine(at, f"{format_time(at)} {text}")


#: The run plan of init containers, which end immediately.
_INIT_PLAN: Final = RunPlan(0, 0)
_NO_PROCESS_TEXT: Final = "is simulated: it has no process"


def requested_usage(pod: Obj) -> containers.MeasuredUsage:
    """Return the requests of a pod's main containers and sidecars, which simulated containers use."""
    spec = pod["spec"]
    sidecar_containers = [c for c in spec.get("initContainers") or () if c.get("restartPolicy") == "Always"]
    return containers.MeasuredUsage(
        {container["name"]: _requested_usage(container) for container in (*spec["containers"], *sidecar_containers)}
    )


class SimulatedContainers:
    """Serves the API server's requests for logs and usage of simulated pods, and holds the open log streams."""

    def __init__(self, reader: Reader, kernel: Kernel, runtime: Duration | None = None) -> None:
        self._reader = reader
        self._kernel = kernel
        #: The run time of pods for which no other source gives one; None for the Cluster's default.
        self._runtime = runtime
        #: The logs of running containers, by pod.
        self._open_logs: dict[Key, dict[SimulatedLog, None]] = {}
        self._is_ending = False

    def log(self, pod: Obj, container: str, *, previous: bool) -> "SimulatedLog":
        """Open the log of the container start that `find_run` returns. AssertionError if it returns None."""
        run = find_run(pod, container, previous=previous)
        assert run is not None, f"container {container} has no run: the caller must check find_run() first"
        plan = _INIT_PLAN if _is_plain_init_container(pod, container) else run_plan_of(pod, self._reader, self._runtime)
        log = SimulatedLog(pod, container, run, plan, self._kernel, previous=previous)
        if not log.is_over:
            self._register_log(key_of(pod), log)
        return log

    def usage(self, pod: Obj) -> containers.MeasuredUsage:
        """Return the usage of a pod's main containers and sidecars: simulated containers use what they request."""
        return requested_usage(pod)

    def node_usage(self, node: str) -> None:
        """Return None, meaning that a simulated node uses the sum of its pods' usage."""

    def no_process_reason(self, pod: Obj) -> str:
        """Return the error message for exec, attach and port-forward requests to a simulated pod."""
        return f"pod {pod['metadata']['name']} {_NO_PROCESS_TEXT}"

    def execute(
        self,
        pod: Obj,
        container: str,
        command: Sequence[str],
        streams: containers.Streams,
        session_client: containers.SessionClient,
    ) -> containers.ProcessSession:
        """Raise AssertionError, since a simulated pod has no process in which a command could run."""
        raise AssertionError(self.no_process_reason(pod))

    def attach(
        self, pod: Obj, container: str, streams: containers.Streams, session_client: containers.SessionClient
    ) -> containers.ProcessSession:
        """Raise AssertionError, since a simulated pod has no process to attach to."""
        raise AssertionError(self.no_process_reason(pod))

    def connect(self, pod: Obj, port: int, session_client: containers.SessionClient) -> containers.ByteStream:
        """Raise AssertionError, since a simulated pod has no process that listens on a port."""
        raise AssertionError(self.no_process_reason(pod))

    def process_changes(self, changes: Iterable[WatchEvent]) -> None:
        """Pass changes of pods, already durable, to the open log streams of these pods."""
        for change in changes:
            if change.key.kind == scheme.POD:
                for log in list(self._open_logs.get(change.key, ())):
                    log.observe(change)

    def forget_changes(self, _revision: int) -> None:
        """Hold no changes."""

    def end(self) -> None:
        """Close all open log streams; streams opened later are closed at once."""
        self._is_ending = True
        for logs in list(self._open_logs.values()):
            for log in list(logs):
                log.close()

    def _register_log(self, key: Key, log: "SimulatedLog") -> None:
        def unregister_log() -> None:
            open_logs = self._open_logs.get(key, {})
            open_logs.pop(log, None)
            if not open_logs:
                self._open_logs.pop(key, None)

        self._open_logs.setdefault(key, {})[log] = None
        log.on_close = unregister_log
        if self._is_ending:
            log.close()


class SimulatedLog:
    """The log stream of one simulated container start: unread lines, and the time up to which they are complete."""

    def __init__(
        self, pod: Obj, container: str, run: SimulatedRun, plan: RunPlan, kernel: Kernel, *, previous: bool
    ) -> None:
        self._pod = pod
        self._container = container
        self._start_time = run.start_time
        self._plan = plan
        self._kernel = kernel
        self._previous = previous
        self._reported_until: Instant = run.start_time
        self._lines: list[containers.LogLine] = list(first_log_lines(pod, run.start_time, plan, previous=previous))
        self._ticket: Ticket | None = None
        self._is_over = False
        self.on_new_data: Callable[[], None] = _do_nothing
        #: Called once when the log ends or is closed.
        self.on_close: Callable[[], None] = _do_nothing
        self._finish_if_ended(run)

    @property
    def is_over(self) -> bool:
        """Whether the log stream is closed: no further lines will be added."""
        return self._is_over

    @property
    def is_behind(self) -> bool:
        """Always False, because `read` returns all lines."""
        return False

    def skip_to_last(self, line_count: int) -> None:
        """Do nothing: a simulated log is short, so no lines are skipped."""

    def read(self) -> Sequence[containers.LogLine]:
        """Return the log lines since the last read."""
        if not self._is_over:
            self._add_checkpoint_lines(self._kernel.now())
            self._schedule_next_checkpoint()
        lines, self._lines = self._lines, []
        return lines

    def close(self) -> None:
        """Close the log stream, then call `on_close` and `on_new_data`."""
        self._is_over = True
        if self._ticket is not None:
            self._kernel.cancel(self._ticket)
        on_close, self.on_close = self.on_close, _do_nothing  # breaks the reference cycle
        on_close()
        self.on_new_data()

    def observe(self, change: WatchEvent) -> None:
        """Update the log after a change of its pod; close the log if the container has ended or was lost."""
        self._pod = change.obj
        run = find_run_started_at(change.obj, self._container, self._start_time)
        if run is None or (change.type is EventType.DELETED and run.end_state is None):
            self._lines.append(lost_log_line(self._kernel.now()))
            self.close()
        else:
            self._finish_if_ended(run)

    def _finish_if_ended(self, run: SimulatedRun) -> None:
        if run.end_state is None:
            return
        end_line = last_log_line(self._pod, run.end_state, self._plan, previous=self._previous)
        self._add_checkpoint_lines(end_line.at)
        self._lines.append(end_line)
        self.close()

    def _add_checkpoint_lines(self, end_time: Instant) -> None:
        if end_time > self._reported_until:
            self._lines += checkpoint_log_lines(
                self._start_time, self._plan.checkpoint_every, self._reported_until, end_time
            )
            self._reported_until = end_time

    def _schedule_next_checkpoint(self) -> None:
        interval = self._plan.checkpoint_every
        if interval is not None and self._ticket is None:
            checkpoints_done = (self._reported_until - self._start_time) // interval
            self._ticket = self._kernel.call_at(self._start_time + (checkpoints_done + 1) * interval, self._wake)

    def _wake(self) -> None:
        self._ticket = None
        self.on_new_data()


def _is_plain_init_container(pod: Obj, container: str) -> bool:
    init_containers = pod["spec"].get("initContainers") or ()
    return any(
        init_container["name"] == container and init_container.get("restartPolicy") != "Always"
        for init_container in init_containers
    )


def _requested_usage(container: Mapping[str, Any]) -> containers.ResourceUsage:
    requests = (container.get("resources") or {}).get("requests") or {}
    return {name: amount(name, requests[name]) for name in ("cpu", "memory") if name in requests}


def _do_nothing() -> None:
    pass
