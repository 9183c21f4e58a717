"""The log of a simulated container: what is known of its run, in words; no process ever wrote it.

It tells when the run began, when it saved its work, how it ended and why. All of it follows from the pod's status and
from how long the pod is to run, so it is the same whenever it is read.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from batchyard.api.conditions import find_condition
from batchyard.api.meta import Obj
from batchyard.api.times import format_time, parse_time
from batchyard.base.instant import Duration, Instant, duration_text
from batchyard.core.checkpoints import resumption
from batchyard.core.lifecycle.pod import DISRUPTION_TARGET, is_terminating
from batchyard.ports.containers import LogLine
from batchyard.runtime.durations import FOR_EVER, Plan

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
