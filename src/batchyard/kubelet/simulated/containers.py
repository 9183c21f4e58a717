"""The containers of simulated pods, for those who look at them: logs that grow, and nothing that could be executed.

It hears of the changes of pods as clients do, once they are durable.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from batchyard.api import scheme
from batchyard.api.conditions import find_condition
from batchyard.api.meta import Key, Obj, key_of
from batchyard.api.quantity import amount
from batchyard.api.times import format_time, parse_time
from batchyard.api.views.checkpoints import resumption
from batchyard.api.views.pod_lifecycle import DISRUPTION_TARGET, is_terminating
from batchyard.base.instant import Duration, Instant, duration_text
from batchyard.interfaces.client import EventType, Reader, WatchEvent
from batchyard.interfaces.containers import ByteStream, LogLine, Measured, ProcessSession, Streams, Talker, Usage
from batchyard.interfaces.controller import Kernel, Ticket
from batchyard.kubelet.simulated.durations import FOR_EVER, Plan, plan_of

# --- pod log ---
#
# The log of a simulated container: what is known of its run, in words; no process ever wrote it.
#
# It tells when the run began, when it saved its work, how it ended and why. All of it follows from the pod's status and
# from how long the pod is to run, so it is the same whenever it is read.


#: Of more times that work was saved only the last ones are told.
SAVES_MAX: Final = 1000
_STOPPED: Final = (137, 143)


class Run(NamedTuple):
    """One run of a container."""

    started: Instant
    #: How it ended, as the status of the container has it; None as long as it runs.
    ended: Mapping[str, Any] | None


def run_in(pod: Obj, container: str, *, previous: bool) -> Run | None:
    """The run of a container that is or was the last, or the one before; None where there was none."""
    status = status_of(pod, container)
    states = [status.get("lastState")] if previous else [status.get("state"), status.get("lastState")]
    return next(filter(None, map(_run, states)), None)


def run_since(pod: Obj, container: str, started: Instant) -> Run | None:
    """The run of a container that began then; None where its status knows of no such run."""
    status = status_of(pod, container)
    runs = (_run(status.get(field)) for field in ("state", "lastState"))
    return next((run for run in runs if run is not None and run.started == started), None)


def status_of(pod: Obj, container: str) -> Mapping[str, Any]:
    """The status of a container, empty where there is none."""
    status = pod.get("status") or {}
    told = [each for field in _STATUSES for each in status.get(field) or ()]
    return next((each for each in told if each["name"] == container), {})


_STATUSES: Final = ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses")


def first_lines(pod: Obj, started: Instant, plan: Plan, *, previous: bool) -> Sequence[LogLine]:
    """What is told as a run begins."""
    works = "until it is stopped" if plan.runtime >= FOR_EVER else f"for {duration_text(plan.runtime)} in all"
    told = [f"started: a simulated container, which works {works} and runs no process"]
    resumed = None if previous else resumption(pod)
    if resumed is not None:
        told.append(f"goes on with the {duration_text(resumed.work)} of work that were done at {resumed.place}")
    return [_line(started, text) for text in told]


def saves(started: Instant, every: Duration | None, after: Instant, until: Instant) -> Iterator[LogLine]:
    """When a run saved its work, after an instant and up to another."""
    if every is None:
        return
    last = (until - started) // every
    first = max((after - started) // every + 1, last - SAVES_MAX + 1)
    for number in range(first, last + 1):
        done = duration_text(number * every)
        yield _line(started + number * every, f"saved: the work of {done} since the start")


def last_line(pod: Obj, ended: Mapping[str, Any], plan: Plan, *, previous: bool) -> LogLine:
    """What is told of the end of a run."""
    code = ended["exitCode"]
    why = "" if previous else _why_stopped(pod)
    if code in _STOPPED and (why or code != plan.exit_code):
        how = "killed" if code == _STOPPED[0] else "stopped"
        text = f"{how}: {why}, exit code {code}" if why else f"{how}: exit code {code}"
    else:
        text = f"finished: exit code {code}" if code == 0 else f"failed: exit code {code}"
    return _line(parse_time(ended["finishedAt"]), text)


def lost_line(now: Instant) -> LogLine:
    """What is told of a run of which nothing is known any more."""
    return _line(now, "lost: nobody knows what became of the container")


def _why_stopped(pod: Obj) -> str:
    """Why a pod was made to end, as far as it tells; empty if nothing is said."""
    status = pod.get("status") or {}
    disrupted = find_condition(pod, DISRUPTION_TARGET) or {}
    told = status.get("message") or status.get("reason") or disrupted.get("message") or disrupted.get("reason")
    return told or ("the pod was deleted" if is_terminating(pod) else "")


def _run(state: Mapping[str, Any] | None) -> Run | None:
    state = state or {}
    if "running" in state:
        return Run(parse_time(state["running"]["startedAt"]), None)
    ended = state.get("terminated")
    return Run(parse_time(ended["startedAt"]), ended) if ended and ended.get("startedAt") else None


def _line(at: Instant, text: str) -> LogLine:
    return LogLine(at, f"{format_time(at)} {text}")


#: What containers do that run before the others: it takes them no time.
_AT_ONCE: Final = Plan(0, 0)
_SIMULATED: Final = "is simulated: it has no process"


class SimulatedContainers:
    """See the module."""

    def __init__(self, reader: Reader, kernel: Kernel, runtime: Duration | None = None) -> None:
        self._reader = reader
        self._kernel = kernel
        #: As that of the kubelets.
        self._runtime = runtime
        #: Logs of containers that run, by pod.
        self._open: dict[Key, dict[SimulatedLog, None]] = {}
        self._is_ending = False

    def log(self, pod: Obj, container: str, *, previous: bool) -> "SimulatedLog":
        """The log of the container's last run, or of the one before."""
        run = run_in(pod, container, previous=previous)
        assert run is not None, "whoever asks for the log of a run has seen that there is one"
        plan = _AT_ONCE if _prepares(pod, container) else plan_of(pod, self._reader, self._runtime)
        log = SimulatedLog(pod, container, run, plan, self._kernel, previous=previous)
        if not log.is_over:
            self._follow(key_of(pod), log)
        return log

    def usage(self, pod: Obj) -> Measured:
        """What each container uses: what it requests, for it is simulated."""
        spec = pod["spec"]
        sidecars = [each for each in spec.get("initContainers") or () if each.get("restartPolicy") == "Always"]
        return Measured({each["name"]: _requested(each) for each in (*spec["containers"], *sidecars)})

    def node_usage(self, node: str) -> None:
        """A simulated node uses what its pods do."""

    def why_no_process(self, pod: Obj) -> str:
        """Why nobody can get at a process of the pod."""
        return f"pod {pod['metadata']['name']} {_SIMULATED}"

    def execute(
        self, pod: Obj, container: str, command: Sequence[str], streams: Streams, talker: Talker
    ) -> ProcessSession:
        """There is no process."""
        raise AssertionError(self.why_no_process(pod))

    def attach(self, pod: Obj, container: str, streams: Streams, talker: Talker) -> ProcessSession:
        """There is no process."""
        raise AssertionError(self.why_no_process(pod))

    def connect(self, pod: Obj, port: int, talker: Talker) -> ByteStream:
        """There is no process."""
        raise AssertionError(self.why_no_process(pod))

    def feed(self, changes: Iterable[WatchEvent]) -> None:
        """Take in what happened."""
        for change in changes:
            if change.key.kind == scheme.POD:
                for log in list(self._open.get(change.key, ())):
                    log.observe(change)

    def end(self) -> None:
        """Let all logs end, those that are yet to be opened too."""
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
    """The log of one run of a simulated container."""

    def __init__(self, pod: Obj, container: str, run: Run, plan: Plan, kernel: Kernel, *, previous: bool) -> None:
        self._pod = pod
        self._container = container
        self._started = run.started
        self._plan = plan
        self._kernel = kernel
        self._previous = previous
        self._told_until: Instant = run.started
        self._waiting: list[LogLine] = list(first_lines(pod, run.started, plan, previous=previous))
        self._ticket: Ticket | None = None
        self._is_over = False
        self.on_news: Callable[[], None] = _nobody
        #: Called once when it is over, or nobody reads it any more.
        self.on_close: Callable[[], None] = _nobody
        self._take_in(run)

    @property
    def is_over(self) -> bool:
        """Whether nothing will come any more."""
        return self._is_over

    @property
    def is_behind(self) -> bool:
        """It is short."""
        return False

    def skip_to_last(self, lines: int) -> None:
        """It is short."""

    def read(self) -> Sequence[LogLine]:
        """The lines that came since they were read last."""
        if not self._is_over:
            self._save(self._kernel.now())
            self._wake_at_next_save()
        lines, self._waiting = self._waiting, []
        return lines

    def close(self) -> None:
        """Tell nothing any more."""
        self._is_over = True
        if self._ticket is not None:
            self._kernel.cancel(self._ticket)
        on_close, self.on_close = self.on_close, _nobody  # which knows this log
        on_close()
        self.on_news()

    def observe(self, change: WatchEvent) -> None:
        """Take note of a change of the pod."""
        self._pod = change.obj
        run = run_since(change.obj, self._container, self._started)
        if run is None or (change.type is EventType.DELETED and run.ended is None):
            self._waiting.append(lost_line(self._kernel.now()))
            self.close()
        else:
            self._take_in(run)

    def _take_in(self, run: Run) -> None:
        """Tell of the end of the run, if it has come."""
        if run.ended is None:
            return
        end = last_line(self._pod, run.ended, self._plan, previous=self._previous)
        self._save(end.at)
        self._waiting.append(end)
        self.close()

    def _save(self, until: Instant) -> None:
        """Tell when work was saved since that was told last."""
        if until > self._told_until:
            self._waiting += saves(self._started, self._plan.checkpoint_every, self._told_until, until)
            self._told_until = until

    def _wake_at_next_save(self) -> None:
        every = self._plan.checkpoint_every
        if every is not None and self._ticket is None:
            done = (self._told_until - self._started) // every
            self._ticket = self._kernel.call_at(self._started + (done + 1) * every, self._wake)

    def _wake(self) -> None:
        self._ticket = None
        self.on_news()


def _prepares(pod: Obj, container: str) -> bool:
    """Whether a container runs to its end before the others start."""
    found = pod["spec"].get("initContainers") or ()
    return any(each["name"] == container and each.get("restartPolicy") != "Always" for each in found)


def _requested(container: Mapping[str, Any]) -> Usage:
    requests = (container.get("resources") or {}).get("requests") or {}
    return {name: amount(name, requests[name]) for name in ("cpu", "memory") if name in requests}


def _nobody() -> None:
    pass
