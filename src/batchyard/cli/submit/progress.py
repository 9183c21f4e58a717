"""Progress messages of a submitted Job, derived from its API objects; without I/O and clock.

Each change is reported once. Sources of the conditions: Kueue's apis/kueue/v1beta2/workload_types.go, Kubernetes's
pkg/apis/batch/types.go.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from batchyard.api.meta import Obj, find_condition, is_true
from batchyard.api.times import parse_time
from batchyard.base.instant import SECOND
from batchyard.cli import output
from batchyard.cli.submit.manifests import CONTAINER

#: Reasons of a failure by the containers; for others, such as the deadline, the Job controller stopped them itself.
_OF_CONTAINERS: Final = frozenset(
    {"BackoffLimitExceeded", "PodFailurePolicy", "FailedIndexes", "MaxFailedIndexesExceeded"}
)
_FAILED: Final = 1
#: Reasons of warnings that repeat the pod's status: not scheduled, no image.
_IN_STATUS: Final = frozenset({"FailedScheduling", "Failed", "BackOff"})


class ProgressMessage(NamedTuple):
    """A message: a line for people, an event with fields for programs."""

    event: str
    line: str
    fields: Mapping[str, Any]


class JobProgress:
    """The progress of one Job as reported so far: its wait, its pods, their exit codes."""

    def __init__(self) -> None:
        self._waits = ""
        self._place = ""
        self._is_admitted = False
        self._evicted_at = ""
        self._has_workload = False
        #: The last line reported for each pod.
        self._pods: dict[str, str] = {}
        #: Running pods seen before the Workload was admitted; the two watches are not ordered.
        self._early: list[ProgressMessage] = []
        #: The exit codes of failed pods, the latest last.
        self._codes: dict[str, int] = {}
        #: The exit code of the command once the Job has ended.
        self.ended: int | None = None

    @property
    def waits(self) -> bool:
        """Whether the Job is still waiting for admission."""
        return not self._is_admitted and self.ended is None

    def process_workload(self, workload: Obj) -> Iterator[ProgressMessage]:
        """Process the current Workload."""
        self._has_workload = True
        reserved, evicted = find_condition(workload, "QuotaReserved"), find_condition(workload, "Evicted")
        is_evicted = evicted is not None and evicted["status"] == "True"
        if evicted is not None and is_evicted and evicted["lastTransitionTime"] != self._evicted_at:
            self._evicted_at, self._is_admitted, self._waits = evicted["lastTransitionTime"], False, evicted["message"]
            line = f"stopped ({evicted['reason']}): {evicted['message']}; it waits again"
            yield ProgressMessage("Evicted", line, {"reason": evicted["reason"], "message": evicted["message"]})
        if is_true(workload, "Admitted"):
            if not self._is_admitted and not is_evicted:  # an evicted Workload stays admitted until its pods stop
                self._is_admitted, self._waits, self._place = True, "", ""
                yield _admitted(workload)
                yield from self._caught_up()
        elif reserved is not None:
            yield from self._waiting(_why(workload, reserved))

    def process_position(self, place: int, others: int, queue: str) -> Iterator[ProgressMessage]:
        """Process the position in the queue: `place` Workloads are ahead, `others` wait in total."""
        message = f"{place + 1} of {others}"
        if self.waits and message != self._place:
            self._place = message
            yield ProgressMessage("Position", f"is {message} in queue {queue}", {"position": place + 1, "of": others})

    def process_pod(self, pod: Obj) -> Iterator[ProgressMessage]:
        """Process the current state of a pod."""
        name = pod["metadata"]["name"]
        reported = _state_of(pod)
        if reported is not None and self._pods.get(name) != reported.line:
            self._pods[name] = reported.line
            if reported.event == "PodRunning" and self._has_workload and not self._is_admitted:
                self._early.append(reported)
            else:
                yield reported
        ended = terminated(pod)
        if ended is not None and ended.get("exitCode"):
            self._codes.setdefault(name, ended["exitCode"])

    def process_warning(self, pod: str, reason: str, message: str) -> Iterator[ProgressMessage]:
        """Process a warning about a pod that does not run yet, unless the pod's status already reported it."""
        line = f"pod {pod} waits: {reason}: {message}"
        if message not in self._pods.get(pod, "") and reason not in _IN_STATUS:
            self._pods[pod] = line
            yield ProgressMessage("PodWaiting", line, {"pod": pod, "message": f"{reason}: {message}"})

    def process_job(self, job: Obj, pods: Iterable[Obj] = ()) -> Iterator[ProgressMessage]:
        """Process the current Job, and its pods if it may have ended."""
        status = job.get("status") or {}
        if self.ended is not None:
            return
        failed = find_condition(job, "Failed")
        has_failed = failed is not None and failed["status"] == "True"
        if has_failed or is_true(job, "Complete"):
            yield from self._caught_up()
        if is_true(job, "Complete"):
            self.ended = 0
            yield ProgressMessage("Complete", f"complete{_duration(status)}", {"exitCode": 0})
        if failed is not None and has_failed:
            for pod in pods:
                yield from self.process_pod(pod)
            self.ended = self._code(failed["reason"])
            line = f"failed ({failed['reason']}): {failed['message']}; exit code {self.ended}"
            fields = {"reason": failed["reason"], "message": failed["message"], "exitCode": self.ended}
            yield ProgressMessage("Failed", line, fields)

    def process_deletion(self) -> Iterator[ProgressMessage]:
        """Process the deletion of the Job."""
        if self.ended is None:
            self.ended = _FAILED
            yield ProgressMessage("Deleted", "the Job was deleted", {"exitCode": _FAILED})

    def _caught_up(self) -> Iterator[ProgressMessage]:
        early, self._early = self._early, []
        yield from early

    def _waiting(self, why: str) -> Iterator[ProgressMessage]:
        if why and why != self._waits:
            self._waits = why
            yield ProgressMessage("Pending", f"waits: {why}", {"message": why})

    def _code(self, reason: str) -> int:
        codes = list(self._codes.values())
        return codes[-1] if codes and reason in _OF_CONTAINERS else _FAILED


def terminated(pod: Obj) -> Mapping[str, Any] | None:
    """The terminated state of a pod's container, None before it."""
    for status in (pod.get("status") or {}).get("containerStatuses") or ():
        if status["name"] == CONTAINER:
            ended: Mapping[str, Any] | None = (status.get("state") or {}).get("terminated")
            return ended
    return None


def has_begun(pod: Obj) -> bool:
    """Whether the container of a pod has started, so that its log exists."""
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    states = [status.get("state") or {} for status in statuses if status["name"] == CONTAINER]
    return any("running" in state or (state.get("terminated") or {}).get("startedAt") for state in states)


def _admitted(workload: Obj) -> ProgressMessage:
    admission = (workload.get("status") or {}).get("admission") or {}
    queue = admission.get("clusterQueue", "")
    assigned = [each.get("flavors") or {} for each in admission.get("podSetAssignments") or ()]
    flavors = sorted({flavor for each in assigned for flavor in each.values()})
    on = f", on {', '.join(flavors)}" if flavors else ""
    return ProgressMessage("Admitted", f"admitted by {queue}{on}", {"clusterQueue": queue, "flavors": flavors})


def _why(workload: Obj, reserved: Mapping[str, Any]) -> str:
    """The reason why a Workload waits: for quota, or for its admission checks."""
    if reserved["status"] != "True":
        return str(reserved["message"])
    checks: Sequence[Mapping[str, Any]] = (workload.get("status") or {}).get("admissionChecks") or ()
    waiting = [f"{each['name']}: {each.get('message') or each['state']}" for each in checks if each["state"] != "Ready"]
    return f"has quota, and waits for {'; '.join(waiting)}" if waiting else ""


def _state_of(pod: Obj) -> ProgressMessage | None:
    """The message for a pod's state, None if there is nothing to report."""
    name, status = pod["metadata"]["name"], pod.get("status") or {}
    ended = terminated(pod)
    if ended is not None:
        code = ended.get("exitCode", 0)
        stated = [ended[field] for field in ("reason", "message") if ended.get(field)]
        why = f" ({': '.join(stated)})" if stated and stated != ["Error"] else ""
        line = f"pod {name} failed with exit code {code}{why}"
        return ProgressMessage("PodFailed", line, {"pod": name, "exitCode": code}) if code else None
    if has_begun(pod):
        node = (pod.get("spec") or {}).get("nodeName") or ""
        on = f" on {node}" if node else ""
        return ProgressMessage("PodRunning", f"pod {name} runs{on}", {"pod": name, "node": node})
    for each in status.get("containerStatuses") or ():
        waiting = (each.get("state") or {}).get("waiting") or {}
        if waiting.get("message"):
            text = f"{waiting.get('reason', '')}: {waiting['message']}"
            return ProgressMessage("PodWaiting", f"pod {name} waits: {text}", {"pod": name, "message": text})
    scheduled = find_condition(pod, "PodScheduled")
    if scheduled is not None and scheduled["status"] == "False":
        message = scheduled.get("message") or scheduled.get("reason") or ""
        return ProgressMessage("PodWaiting", f"pod {name} waits: {message}", {"pod": name, "message": message})
    return None


def _duration(status: Mapping[str, Any]) -> str:
    begun, ended = status.get("startTime"), status.get("completionTime")
    return f" in {(parse_time(ended) - parse_time(begun)) // SECOND} s" if begun and ended else ""


# --- telling ---
#
# The output of `batchyard submit`: messages and logs, as text or JSON lines.


class SubmitOutput:
    """Prints messages to standard error and logs to standard output; with `is_json` all as JSON lines to the latter."""

    def __init__(self, *, is_json: bool) -> None:
        self._is_json = is_json

    def report(self, reported: ProgressMessage) -> None:
        """Print a message."""
        if self._is_json:
            self._write({"event": reported.event, **reported.fields})
        else:
            output.report_line(f"batchyard: {reported.line}")

    def log(self, pod: str, line: str, *, of_several: bool) -> None:
        """Print a log line, prefixed by the pod if the Job has several."""
        if self._is_json:
            self._write({"event": "Log", "pod": pod, "line": line})
        else:
            output.write(f"[{pod}] {line}\n" if of_several else f"{line}\n")

    def _write(self, event: Mapping[str, Any]) -> None:
        output.write(json.dumps(event, ensure_ascii=False) + "\n")
