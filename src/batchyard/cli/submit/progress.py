"""Progress messages of a submitted Job, derived from its API objects and printed as text or JSON lines.

Each change is reported once. Sources of the conditions and reasons: Kueue's apis/kueue/v1beta2/workload_types.go,
Kubernetes's pkg/apis/batch/types.go.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from batchyard.api.meta import Obj, find_condition, is_true
from batchyard.api.times import parse_time
from batchyard.base.instant import SECOND
from batchyard.cli import output
from batchyard.cli.submit.manifests import CONTAINER

#: Reasons of a Job failure caused by its containers. For other reasons, the Job controller stopped the containers.
_CONTAINER_FAILURE_REASONS: Final = frozenset(
    {"BackoffLimitExceeded", "PodFailurePolicy", "FailedIndexes", "MaxFailedIndexesExceeded"}
)
_FAILURE_EXIT_CODE: Final = 1
#: Reasons of warning Events that only repeat the pod's status: not scheduled, image not pulled.
_STATUS_REASONS: Final = frozenset({"FailedScheduling", "Failed", "BackOff"})


class ProgressMessage(NamedTuple):
    """A progress message of a submitted Job: a text line for people, and an event with fields for programs."""

    event: str
    line: str
    fields: Mapping[str, Any]


class JobProgress:
    """The reported progress of one Job: why it is pending, the state of its pods, and their exit codes."""

    def __init__(self) -> None:
        self._pending_reason = ""
        self._queue_position = ""
        self._is_admitted = False
        self._evicted_at = ""
        self._has_workload = False
        #: The last line reported for each pod.
        self._pod_lines: dict[str, str] = {}
        #: Messages about pods that ran before the admission was observed; the two watches are not synchronized.
        self._early_messages: list[ProgressMessage] = []
        #: The exit codes of failed pods, in the order of their failures.
        self._exit_codes: dict[str, int] = {}
        #: The exit code of the command once the Job has ended.
        self.exit_code: int | None = None

    @property
    def is_pending(self) -> bool:
        """Whether the Job is neither admitted nor ended."""
        return not self._is_admitted and self.exit_code is None

    def process_workload(self, workload: Obj) -> Iterator[ProgressMessage]:
        """Yield progress messages for a change of the Job's Workload: eviction, admission, or a new pending reason."""
        self._has_workload = True
        quota_condition, eviction = (find_condition(workload, "QuotaReserved"), find_condition(workload, "Evicted"))
        is_evicted = eviction is not None and eviction["status"] == "True"
        if eviction is not None and is_evicted and eviction["lastTransitionTime"] != self._evicted_at:
            self._evicted_at, self._pending_reason = (eviction["lastTransitionTime"], eviction["message"])
            self._is_admitted = False
            line = f"stopped ({eviction['reason']}): {eviction['message']}; it waits again"
            yield ProgressMessage("Evicted", line, {"reason": eviction["reason"], "message": eviction["message"]})
        if is_true(workload, "Admitted"):
            if not self._is_admitted and not is_evicted:  # an evicted Workload stays admitted until its pods stop
                self._is_admitted, self._pending_reason, self._queue_position = True, "", ""
                yield _admitted_message(workload)
                yield from self._report_early_messages()
        elif quota_condition is not None:
            yield from self._pending_message(_pending_reason_of(workload, quota_condition))

    def process_queue_position(self, preceding_count: int, pending_count: int, queue: str) -> Iterator[ProgressMessage]:
        """Yield a message if a pending Job's queue position changed: `preceding_count` Workloads are before the Job."""
        position = f"{preceding_count + 1} of {pending_count}"
        if self.is_pending and position != self._queue_position:
            self._queue_position = position
            yield ProgressMessage(
                "Position", f"is {position} in queue {queue}", {"position": preceding_count + 1, "of": pending_count}
            )

    def process_pod(self, pod: Obj) -> Iterator[ProgressMessage]:
        """Yield a message if the state of a pod changed; record the exit code if its main container failed.

        The message that the pod runs is held back until the admission or the end of the Job is reported.
        """
        name = pod["metadata"]["name"]
        message = _pod_message(pod)
        if message is not None and self._pod_lines.get(name) != message.line:
            self._pod_lines[name] = message.line
            if message.event == "PodRunning" and self._has_workload and not self._is_admitted:
                self._early_messages.append(message)
            else:
                yield message
        terminated_state = terminated_state_of(pod)
        if terminated_state is not None and terminated_state.get("exitCode"):
            self._exit_codes.setdefault(name, terminated_state["exitCode"])

    def process_warning(self, pod: str, reason: str, message: str) -> Iterator[ProgressMessage]:
        """Yield a progress message for a warning Event of a pod, unless the Event only repeats the pod's status."""
        line = f"pod {pod} waits: {reason}: {message}"
        if message not in self._pod_lines.get(pod, "") and reason not in _STATUS_REASONS:
            self._pod_lines[pod] = line
            yield ProgressMessage("PodWaiting", line, {"pod": pod, "message": f"{reason}: {message}"})

    def process_job(self, job: Obj, pods: Iterable[Obj] = ()) -> Iterator[ProgressMessage]:
        """Yield progress messages if the Job has completed or failed; a failed Job's pods are processed first."""
        status = job.get("status") or {}
        if self.exit_code is not None:
            return
        failure = find_condition(job, "Failed")
        has_failed = failure is not None and failure["status"] == "True"
        if has_failed or is_true(job, "Complete"):
            yield from self._report_early_messages()
        if is_true(job, "Complete"):
            self.exit_code = 0
            yield ProgressMessage("Complete", f"complete{_format_run_time(status)}", {"exitCode": 0})
        if failure is not None and has_failed:
            for pod in pods:
                yield from self.process_pod(pod)
            self.exit_code = self._exit_code(failure["reason"])
            line = f"failed ({failure['reason']}): {failure['message']}; exit code {self.exit_code}"
            failure_fields = {"reason": failure["reason"], "message": failure["message"], "exitCode": self.exit_code}
            yield ProgressMessage("Failed", line, failure_fields)

    def process_deletion(self) -> Iterator[ProgressMessage]:
        """Yield a progress message that the Job was deleted, unless the Job had already ended."""
        if self.exit_code is None:
            self.exit_code = _FAILURE_EXIT_CODE
            yield ProgressMessage("Deleted", "the Job was deleted", {"exitCode": _FAILURE_EXIT_CODE})

    def _report_early_messages(self) -> Iterator[ProgressMessage]:
        early_messages, self._early_messages = self._early_messages, []
        yield from early_messages

    def _pending_message(self, reason: str) -> Iterator[ProgressMessage]:
        if reason and reason != self._pending_reason:
            self._pending_reason = reason
            yield ProgressMessage("Pending", f"waits: {reason}", {"message": reason})

    def _exit_code(self, reason: str) -> int:
        exit_codes = list(self._exit_codes.values())
        return exit_codes[-1] if exit_codes and reason in _CONTAINER_FAILURE_REASONS else _FAILURE_EXIT_CODE


def terminated_state_of(pod: Obj) -> Mapping[str, Any] | None:
    """Return the terminated state of a pod's main container; None if the container has not terminated."""
    for status in (pod.get("status") or {}).get("containerStatuses") or ():
        if status["name"] == CONTAINER:
            terminated_state: Mapping[str, Any] | None = (status.get("state") or {}).get("terminated")
            return terminated_state
    return None


def has_container_started(pod: Obj) -> bool:
    """Return whether the main container of a pod has started, so that its log exists."""
    container_statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    container_states = [status.get("state") or {} for status in container_statuses if status["name"] == CONTAINER]
    return any("running" in state or (state.get("terminated") or {}).get("startedAt") for state in container_states)


def _admitted_message(workload: Obj) -> ProgressMessage:
    admission = (workload.get("status") or {}).get("admission") or {}
    queue = admission.get("clusterQueue", "")
    assigned_flavors = [assignment.get("flavors") or {} for assignment in admission.get("podSetAssignments") or ()]
    flavors = sorted({flavor for assignment in assigned_flavors for flavor in assignment.values()})
    flavor_note = f", on {', '.join(flavors)}" if flavors else ""
    return ProgressMessage("Admitted", f"admitted by {queue}{flavor_note}", {"clusterQueue": queue, "flavors": flavors})


def _pending_reason_of(workload: Obj, reservation: Mapping[str, Any]) -> str:
    if reservation["status"] != "True":
        return str(reservation["message"])
    checks: Sequence[Mapping[str, Any]] = (workload.get("status") or {}).get("admissionChecks") or ()
    check_texts = [
        f"{each['name']}: {each.get('message') or each['state']}" for each in checks if each["state"] != "Ready"
    ]
    return f"has quota, and waits for {'; '.join(check_texts)}" if check_texts else ""


def _pod_message(pod: Obj) -> ProgressMessage | None:
    name, status = pod["metadata"]["name"], pod.get("status") or {}
    terminated_state = terminated_state_of(pod)
    if terminated_state is not None:
        exit_code = terminated_state.get("exitCode", 0)
        reasons = [terminated_state[field] for field in ("reason", "message") if terminated_state.get(field)]
        reason_note = f" ({': '.join(reasons)})" if reasons and reasons != ["Error"] else ""
        line = f"pod {name} failed with exit code {exit_code}{reason_note}"
        return ProgressMessage("PodFailed", line, {"pod": name, "exitCode": exit_code}) if exit_code else None
    if has_container_started(pod):
        node = (pod.get("spec") or {}).get("nodeName") or ""
        node_note = f" on {node}" if node else ""
        return ProgressMessage("PodRunning", f"pod {name} runs{node_note}", {"pod": name, "node": node})
    for container_status in status.get("containerStatuses") or ():
        waiting_state = (container_status.get("state") or {}).get("waiting") or {}
        if waiting_state.get("message"):
            text = f"{waiting_state.get('reason', '')}: {waiting_state['message']}"
            return ProgressMessage("PodWaiting", f"pod {name} waits: {text}", {"pod": name, "message": text})
    scheduling_condition = find_condition(pod, "PodScheduled")
    if scheduling_condition is not None and scheduling_condition["status"] == "False":
        message = scheduling_condition.get("message") or scheduling_condition.get("reason") or ""
        return ProgressMessage("PodWaiting", f"pod {name} waits: {message}", {"pod": name, "message": message})
    return None


def _format_run_time(status: Mapping[str, Any]) -> str:
    start_time, end = status.get("startTime"), status.get("completionTime")
    return f" in {(parse_time(end) - parse_time(start_time)) // SECOND} s" if start_time and end else ""


class SubmitOutput:
    """Prints progress to standard error, logs to standard output; with `is_json`, both to standard output as JSON."""

    def __init__(self, *, is_json: bool) -> None:
        self._is_json = is_json

    def report(self, message: ProgressMessage) -> None:
        """Print a progress message."""
        if self._is_json:
            self._write({"event": message.event, **message.fields})
        else:
            output.report_line(f"batchyard: {message.line}")

    def log(self, pod: str, line: str, *, of_several: bool) -> None:
        """Print a line of a pod's log, prefixed with the pod's name if the Job runs several pods."""
        if self._is_json:
            self._write({"event": "Log", "pod": pod, "line": line})
        else:
            output.write(f"[{pod}] {line}\n" if of_several else f"{line}\n")

    def _write(self, event: Mapping[str, Any]) -> None:
        output.write(json.dumps(event, ensure_ascii=False) + "\n")
