"""Logs and resource usage of simulated pods for the API server; exec, attach and port-forward are rejected.

The log streams are updated from pod changes that are already durable.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from batchyard.api import scheme
from batchyard.api.meta import Key, Obj, amount, find_condition, key_of
from batchyard.api.times import format_time, parse_time
from batchyard.api.views.pods import DISRUPTION_TARGET, is_terminating, resumption
from batchyard.base.instant import Duration, Instant, duration_text
from batchyard.interfaces.client import EventType, Reader, WatchEvent
from batchyard.interfaces.containers import (
    ByteStream,
    LogLine,
    MeasuredUsage,
    ProcessSession,
    SessionClient,
    Streams,
    Usage,
)
from batchyard.interfaces.controller import Kernel, Ticket
from batchyard.kubelet.simulated.durations import FOR_EVER, RunPlan, plan_of

# --- pod log ---
# The log of a simulated container is generated when it is read.
#
# It reports the start of the run, its checkpoints, its end and the reason. These follow from the pod's status and its
# planned run time, so each read returns the same log.


#: The maximum number of checkpoint lines in a log; only the last ones are reported.
SAVES_MAX: Final = 1000
_STOPPED: Final = (137, 143)


class SimulatedRun(NamedTuple):
    """One run of a simulated container: its start time, and its end if it has ended."""

    started: Instant
    #: The `terminated` state of the container; None while it runs.
    ended: Mapping[str, Any] | None


def run_in(pod: Obj, container: str, *, previous: bool) -> SimulatedRun | None:
    """Return the last run of a container, or the one before it if `previous`; None if there is no such run."""
    status = status_of(pod, container)
    states = [status.get("lastState")] if previous else [status.get("state"), status.get("lastState")]
    return next(filter(None, map(_run, states)), None)


def run_since(pod: Obj, container: str, started: Instant) -> SimulatedRun | None:
    """Return the run of a container that started at `started`; None if the pod's status has no such run."""
    status = status_of(pod, container)
    runs = (_run(status.get(field)) for field in ("state", "lastState"))
    return next((run for run in runs if run is not None and run.started == started), None)


def status_of(pod: Obj, container: str) -> Mapping[str, Any]:
    """Return the status of a container from its pod's status; empty if there is none."""
    status = pod.get("status") or {}
    statuses = [each for field in _STATUSES for each in status.get(field) or ()]
    return next((each for each in statuses if each["name"] == container), {})


_STATUSES: Final = ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses")


def first_lines(pod: Obj, started: Instant, plan: RunPlan, *, previous: bool) -> Sequence[LogLine]:
    """Return the first lines of a run's log: the planned run time, and the checkpoint from which the run resumes."""
    works = "until it is stopped" if plan.runtime >= FOR_EVER else f"for {duration_text(plan.runtime)} in all"
    texts = [f"started: a simulated container, which works {works} and runs no process"]
    resumed = None if previous else resumption(pod)
    if resumed is not None:
        texts.append(f"resumes from {duration_text(resumed.work)} of work saved at {resumed.place}")
    return [_line(started, text) for text in texts]


def saves(started: Instant, every: Duration | None, after: Instant, until: Instant) -> Iterator[LogLine]:
    """Yield the checkpoint lines of a run later than `after` and up to `until`; `every` is the checkpoint interval."""
    if every is None:
        return
    last = (until - started) // every
    first = max((after - started) // every + 1, last - SAVES_MAX + 1)
    for number in range(first, last + 1):
        done = duration_text(number * every)
        yield _line(started + number * every, f"saved: the work of {done} since the start")


def last_line(pod: Obj, ended: Mapping[str, Any], plan: RunPlan, *, previous: bool) -> LogLine:
    """Return the last line of an ended run's log: its exit code, and why it was stopped."""
    code = ended["exitCode"]
    why = "" if previous else _why_stopped(pod)
    if code in _STOPPED and (why or code != plan.exit_code):
        how = "killed" if code == _STOPPED[0] else "stopped"
        text = f"{how}: {why}, exit code {code}" if why else f"{how}: exit code {code}"
    else:
        text = f"finished: exit code {code}" if code == 0 else f"failed: exit code {code}"
    return _line(parse_time(ended["finishedAt"]), text)


def lost_line(now: Instant) -> LogLine:
    """Return the last log line of a run whose outcome is unknown."""
    return _line(now, "lost: the outcome of the container is unknown")


def _why_stopped(pod: Obj) -> str:
    """Return why a pod was stopped, according to its status; empty if unknown."""
    status = pod.get("status") or {}
    disrupted = find_condition(pod, DISRUPTION_TARGET) or {}
    message = status.get("message") or status.get("reason") or disrupted.get("message") or disrupted.get("reason")
    return message or ("the pod was deleted" if is_terminating(pod) else "")


def _run(state: Mapping[str, Any] | None) -> SimulatedRun | None:
    state = state or {}
    if "running" in state:
        return SimulatedRun(parse_time(state["running"]["startedAt"]), None)
    ended = state.get("terminated")
    return SimulatedRun(parse_time(ended["startedAt"]), ended) if ended and ended.get("startedAt") else None


def _line(at: Instant, text: str) -> LogLine:
    return LogLine(at, f"{format_time(at)} {text}")


#: The run plan of init containers, which end immediately.
_AT_ONCE: Final = RunPlan(0, 0)
_SIMULATED: Final = "is simulated: it has no process"


class SimulatedContainers:
    """The container access of all simulated pods for the API server, with the open log streams by pod."""

    def __init__(self, reader: Reader, kernel: Kernel, runtime: Duration | None = None) -> None:
        self._reader = reader
        self._kernel = kernel
        #: The run time of pods for which no other source gives one; None for the Cluster's default.
        self._runtime = runtime
        #: The logs of running containers, by pod.
        self._open: dict[Key, dict[SimulatedLog, None]] = {}
        self._is_ending = False

    def log(self, pod: Obj, container: str, *, previous: bool) -> "SimulatedLog":
        """Open the log of a container's last run, or of the run before it if `previous`."""
        run = run_in(pod, container, previous=previous)
        assert run is not None, f"container {container} has no run: the caller must check run_in() first"
        plan = _AT_ONCE if _prepares(pod, container) else plan_of(pod, self._reader, self._runtime)
        log = SimulatedLog(pod, container, run, plan, self._kernel, previous=previous)
        if not log.is_over:
            self._follow(key_of(pod), log)
        return log

    def usage(self, pod: Obj) -> MeasuredUsage:
        """Return the resource usage of each container of a pod, which is simulated as its requests."""
        spec = pod["spec"]
        sidecars = [each for each in spec.get("initContainers") or () if each.get("restartPolicy") == "Always"]
        return MeasuredUsage({each["name"]: _requested(each) for each in (*spec["containers"], *sidecars)})

    def node_usage(self, node: str) -> None:
        """Return None: the usage of a simulated node is the sum over its pods."""

    def why_no_process(self, pod: Obj) -> str:
        """Return the error message for requests that need a process in the pod."""
        return f"pod {pod['metadata']['name']} {_SIMULATED}"

    def execute(
        self, pod: Obj, container: str, command: Sequence[str], streams: Streams, talker: SessionClient
    ) -> ProcessSession:
        """Raise AssertionError: a simulated pod has no process."""
        raise AssertionError(self.why_no_process(pod))

    def attach(self, pod: Obj, container: str, streams: Streams, talker: SessionClient) -> ProcessSession:
        """Raise AssertionError: a simulated pod has no process."""
        raise AssertionError(self.why_no_process(pod))

    def connect(self, pod: Obj, port: int, talker: SessionClient) -> ByteStream:
        """Raise AssertionError: a simulated pod has no process."""
        raise AssertionError(self.why_no_process(pod))

    def feed(self, changes: Iterable[WatchEvent]) -> None:
        """Forward changes of pods to the open log streams."""
        for change in changes:
            if change.key.kind == scheme.POD:
                for log in list(self._open.get(change.key, ())):
                    log.observe(change)

    def end(self) -> None:
        """Close all log streams, and close later ones as soon as they are opened."""
        self._is_ending = True
        for logs in list(self._open.values()):
            for log in list(logs):
                log.close()

    def _follow(self, key: Key, log: "SimulatedLog") -> None:
        def forget() -> None:
            logs = self._open.get(key, {})
            logs.pop(log, None)
            if not logs:
                self._open.pop(key, None)

        self._open.setdefault(key, {})[log] = None
        log.on_close = forget
        if self._is_ending:
            log.close()


class SimulatedLog:
    """The log stream of one run: its pending lines, and the time up to which checkpoints were reported."""

    def __init__(
        self, pod: Obj, container: str, run: SimulatedRun, plan: RunPlan, kernel: Kernel, *, previous: bool
    ) -> None:
        self._pod = pod
        self._container = container
        self._started = run.started
        self._plan = plan
        self._kernel = kernel
        self._previous = previous
        self._reported_until: Instant = run.started
        self._waiting: list[LogLine] = list(first_lines(pod, run.started, plan, previous=previous))
        self._ticket: Ticket | None = None
        self._is_over = False
        self.on_news: Callable[[], None] = _do_nothing
        #: Called once when the log ends or is closed.
        self.on_close: Callable[[], None] = _do_nothing
        self._take_in(run)

    @property
    def is_over(self) -> bool:
        """Whether the log has ended."""
        return self._is_over

    @property
    def is_behind(self) -> bool:
        """Whether the reader is too slow: never for a simulated log, which is short."""
        return False

    def skip_to_last(self, lines: int) -> None:
        """Do nothing: a simulated log is short, so no lines are skipped."""

    def read(self) -> Sequence[LogLine]:
        """Return the log lines since the last read."""
        if not self._is_over:
            self._save(self._kernel.now())
            self._wake_at_next_save()
        lines, self._waiting = self._waiting, []
        return lines

    def close(self) -> None:
        """End the log stream and notify its owner and its reader."""
        self._is_over = True
        if self._ticket is not None:
            self._kernel.cancel(self._ticket)
        on_close, self.on_close = self.on_close, _do_nothing  # breaks the reference cycle
        on_close()
        self.on_news()

    def observe(self, change: WatchEvent) -> None:
        """Update the log for a change of its pod; close it if the run has ended or is lost."""
        self._pod = change.obj
        run = run_since(change.obj, self._container, self._started)
        if run is None or (change.type is EventType.DELETED and run.ended is None):
            self._waiting.append(lost_line(self._kernel.now()))
            self.close()
        else:
            self._take_in(run)

    def _take_in(self, run: SimulatedRun) -> None:
        """Add the last lines and close the log if the run has ended."""
        if run.ended is None:
            return
        end = last_line(self._pod, run.ended, self._plan, previous=self._previous)
        self._save(end.at)
        self._waiting.append(end)
        self.close()

    def _save(self, until: Instant) -> None:
        """Add the checkpoint lines up to `until` that were not reported yet."""
        if until > self._reported_until:
            self._waiting += saves(self._started, self._plan.checkpoint_every, self._reported_until, until)
            self._reported_until = until

    def _wake_at_next_save(self) -> None:
        every = self._plan.checkpoint_every
        if every is not None and self._ticket is None:
            done = (self._reported_until - self._started) // every
            self._ticket = self._kernel.call_at(self._started + (done + 1) * every, self._wake)

    def _wake(self) -> None:
        self._ticket = None
        self.on_news()


def _prepares(pod: Obj, container: str) -> bool:
    """Report whether a container is an init container and not a sidecar."""
    found = pod["spec"].get("initContainers") or ()
    return any(each["name"] == container and each.get("restartPolicy") != "Always" for each in found)


def _requested(container: Mapping[str, Any]) -> Usage:
    requests = (container.get("resources") or {}).get("requests") or {}
    return {name: amount(name, requests[name]) for name in ("cpu", "memory") if name in requests}


def _do_nothing() -> None:
    pass
