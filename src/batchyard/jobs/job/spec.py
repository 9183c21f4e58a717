"""View of a Job's spec, with defaults."""

from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

from batchyard.api import well_known
from batchyard.api.meta import Obj, annotation, finalizers_of, find_condition, is_true, whole_number, without_finalizer
from batchyard.api.times import parse_time
from batchyard.api.views.pods import FAILED, READY, SUCCEEDED, deleted_at, is_ready, phase
from batchyard.base.instant import MINUTE, SECOND, Duration, Instant, backoff

Rule: TypeAlias = Mapping[str, Any]

#: The only `managedBy` value that this controller handles.
MANAGER: Final = "kubernetes.io/job-controller"

_BACKOFF_LIMIT: Final = 6


@dataclass(frozen=True, slots=True)
class JobSpec:
    """The spec of a Job, with defaults."""

    indexed: bool
    #: The required number of succeeded pods or indexes; None if the first success suffices.
    completions: int | None
    parallelism: int
    backoff_limit: int
    #: The retries of an index; None if indexes do not fail separately.
    backoff_limit_per_index: int | None
    max_failed_indexes: int | None
    active_deadline: Duration | None
    suspended: bool
    #: Whether a pod is replaced only after it has ended, not when it is being deleted.
    waits_for_the_end: bool
    #: Whether failed containers are restarted in their pod.
    restarts_in_place: bool
    failure_rules: Sequence[Rule] | None
    success_rules: Sequence[Rule]

    def has_index(self, index: int) -> bool:
        """Report whether it is an index of this Job; -1 stands for a pod without one."""
        return 0 <= index < (self.completions or 0)


def job_spec(job: Obj) -> JobSpec:
    """Return the view of a Job's spec."""
    spec = job["spec"]
    parallelism, limit, deadline = (spec.get(f) for f in ("parallelism", "backoffLimit", "activeDeadlineSeconds"))
    policy = spec.get("podFailurePolicy")
    return JobSpec(
        indexed=spec.get("completionMode") == "Indexed",
        completions=spec.get("completions"),
        parallelism=1 if parallelism is None else parallelism,
        backoff_limit=_BACKOFF_LIMIT if limit is None else limit,
        backoff_limit_per_index=spec.get("backoffLimitPerIndex"),
        max_failed_indexes=spec.get("maxFailedIndexes"),
        active_deadline=None if deadline is None else deadline * SECOND,
        suspended=bool(spec.get("suspend")),
        waits_for_the_end=policy is not None or spec.get("podReplacementPolicy") == "Failed",
        restarts_in_place=spec["template"]["spec"].get("restartPolicy") == "OnFailure",
        failure_rules=None if policy is None else policy.get("rules") or (),
        success_rules=(spec.get("successPolicy") or {}).get("rules") or (),
    )


def is_ours(job: Obj) -> bool:
    """Report whether this controller manages the Job."""
    return job["spec"].get("managedBy") in (None, MANAGER)


def is_finished(job: Obj) -> bool:
    """Report whether the Job is complete or has failed."""
    return is_true(job, "Complete") or is_true(job, "Failed")


# --- selector ---
#
# The labels by which a Job selects its pods, generated from its name and uid.
#
# The API server generates them when a Job is created, so that clients see them on Jobs and their pod templates.
# Source: pkg/registry/batch/job/strategy.go of Kubernetes (generateSelector).


def with_selector(job: Obj) -> Obj:
    """Return the Job with its selector, and with these labels on its pod template; the same Job if complete.

    Existing values are kept; validation checks that they match.
    """
    spec, metadata = job["spec"], job["metadata"]
    if spec.get("manualSelector"):
        return job
    template, selector = spec.get("template") or {}, spec.get("selector") or {}
    given, matched = (template.get("metadata") or {}).get("labels") or {}, selector.get("matchLabels") or {}
    labels = _generated(metadata["name"], metadata["uid"]) | matched | given
    wanted = {well_known.CONTROLLER_UID: metadata["uid"], **matched}
    if labels == given and wanted == matched:
        return job
    described = {**(template.get("metadata") or {}), "labels": labels}
    new = {"selector": {**selector, "matchLabels": wanted}, "template": {**template, "metadata": described}}
    return {**job, "spec": {**spec, **new}}


def _generated(name: str, uid: str) -> dict[str, str]:
    """Return the labels, including the legacy ones without prefix."""
    return {
        well_known.OLD_JOB_NAME: name,
        well_known.JOB_NAME: name,
        well_known.OLD_CONTROLLER_UID: uid,
        well_known.CONTROLLER_UID: uid,
    }


# --- indexes ---
#
# Sets of completion indexes, as the status of an Indexed Job writes them: `0-2,5`.
#
# Source: pkg/controller/job/indexed_job_utils.go of Kubernetes.


#: The first and last index of each run, sorted and disjoint.
Spans: TypeAlias = tuple[tuple[int, int], ...]

NONE: Final[Spans] = ()


def parsed(text: str | None, completions: int) -> Spans:
    """Parse a list of indexes; indexes beyond the completions and invalid parts are ignored."""
    spans = []
    for part in text.split(",") if text else ():
        start, dash, end = part.partition("-")
        first, last = whole_number(start), whole_number(end if dash else start)
        if first is not None and last is not None and first <= last and first < completions:
            spans.append((first, min(last, completions - 1)))
    return _joined(spans)


def written(spans: Spans) -> str:
    """Format the indexes; two consecutive ones are not written as a range."""
    parts = []
    for first, last in spans:
        if last - first > 1:
            parts.append(f"{first}-{last}")
        else:
            parts += map(str, range(first, last + 1))
    return ",".join(parts)


def with_indexes(spans: Spans, indexes: Iterable[int]) -> Spans:
    """Return the spans with more indexes."""
    added = [(index, index) for index in indexes]
    return _joined([*spans, *added]) if added else spans


def union(one: Spans, other: Spans) -> Spans:
    """Return the indexes in either set."""
    return _joined([*one, *other])


def total(spans: Spans) -> int:
    """Return the number of indexes."""
    return sum(last - first + 1 for first, last in spans)


def contains(spans: Spans, index: int) -> bool:
    """Report whether an index is in the set."""
    at = bisect_right(spans, (index, index))
    return (at > 0 and spans[at - 1][1] >= index) or (at < len(spans) and spans[at][0] == index)


def in_common(one: Spans, other: Spans) -> int:
    """Return the number of indexes in both sets."""
    return total(one) + total(other) - total(union(one, other))


def first_missing(spans: Spans, count: int, completions: int) -> list[int]:
    """Return the first `count` indexes below the completions that are not in the set."""
    missing: list[int] = []
    candidate = 0
    for first, last in (*spans, (completions, completions)):
        missing += range(candidate, min(first, candidate + count - len(missing)))
        if len(missing) == count:
            break
        candidate = max(candidate, last + 1)
    return missing


def _joined(spans: list[tuple[int, int]]) -> Spans:
    """Sort spans and merge those that touch or overlap."""
    joined: list[tuple[int, int]] = []
    for first, last in sorted(spans):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(last, joined[-1][1]))
        else:
            joined.append((first, last))
    return tuple(joined)


# --- failure policy ---
#
# Pod failure policy of a Job: the action for a failed pod.
#
# Source: pkg/controller/job/pod_failure_policy.go of Kubernetes.


IGNORE: Final = "Ignore"
FAIL_INDEX: Final = "FailIndex"
_FAIL_JOB: Final = "FailJob"


class PolicyDecision(NamedTuple):
    """The action of the first matching rule; "" if none matches, which is equivalent to Count."""

    action: str
    #: Why the Job fails, if it does.
    message: str | None = None


def policy_decision(rules: Sequence[Rule] | None, pod: Obj) -> PolicyDecision:
    """Return the action for a failed pod."""
    for number, rule in enumerate(rules or ()):
        status = pod.get("status") or {}
        codes, patterns = rule.get("onExitCodes"), rule.get("onPodConditions")
        what = (
            _matching_exit(status, codes, pod)
            if codes is not None
            else _matching_condition(status, patterns or (), pod)
        )
        if what is not None:
            action = rule["action"]
            message = f"{what} matching {action} rule at index {number}" if action == _FAIL_JOB else None
            return PolicyDecision(action, message)
    return PolicyDecision("")


def is_counted(rules: Sequence[Rule] | None, pod: Obj) -> bool:
    """Report whether a failed pod counts as a failure of the Job."""
    return not rules or policy_decision(rules, pod).action != IGNORE


def _matching_exit(status: Mapping[str, Any], codes: Mapping[str, Any], pod: Obj) -> str | None:
    """Describe the container that failed with a matching exit code; init containers come last."""
    for field in ("containerStatuses", "initContainerStatuses"):
        for container in status.get(field) or ():
            ended = (container.get("state") or {}).get("terminated")
            if ended is not None and _is_about(codes, container["name"], ended.get("exitCode", 0)):
                return f"Container {container['name']} for pod {_name(pod)} failed with exit code {ended['exitCode']}"
    return None


def _is_about(codes: Mapping[str, Any], container: str, exit_code: int) -> bool:
    if exit_code == 0 or codes.get("containerName") not in (None, container):
        return False
    if codes["operator"] == "In":
        return exit_code in codes["values"]
    return exit_code not in codes["values"]


def _matching_condition(status: Mapping[str, Any], patterns: Sequence[Mapping[str, Any]], pod: Obj) -> str | None:
    """Describe the pod condition that matches one of the patterns."""
    for condition in status.get("conditions") or ():
        for pattern in patterns:
            if condition["type"] == pattern["type"] and condition["status"] == (pattern.get("status") or "True"):
                return f"Pod {_name(pod)} has condition {condition['type']}"
    return None


def _name(pod: Obj) -> str:
    return f"{pod['metadata'].get('namespace', '')}/{pod['metadata']['name']}"


# --- pods ---
#
# The pods of a Job, as its controller sees them.
#
# A pod is tracked while it has the Job finalizer: until its termination is recorded in the Job's status.
# Sources: Kubernetes's pkg/controller/job (isPodFailed, getCompletionIndex), pkg/controller (IsPodActive,
# IsPodTerminating).


NO_INDEX = -1


# --- observed ---
#
# Observed state of a Job: its recorded status, and what its pods add to it.
#
# Source: syncJob, getNewFinishedPods, calculateSucceededIndexes, calculateFailedIndexes and
# getPodsWithDelayedDeletionPerIndex in Kubernetes's pkg/controller/job.


@dataclass(slots=True)
class JobPod:
    """One pod."""

    obj: Obj
    uid: str
    phase: str
    index: int
    tracked: bool
    #: Whether it has a deletion timestamp; it may still be running.
    deleted: bool

    @property
    def ended(self) -> bool:
        """Whether it has succeeded or failed."""
        return self.phase in {SUCCEEDED, FAILED}

    @property
    def active(self) -> bool:
        """Whether it is running or pending, and not being deleted."""
        return not self.deleted and not self.ended

    @property
    def terminating(self) -> bool:
        """Whether it is being deleted and has not ended."""
        return self.deleted and not self.ended

    @property
    def ready(self) -> bool:
        """Whether it is ready."""
        return is_ready(self.obj)


def job_pods(pods: Iterable[Obj]) -> list[JobPod]:
    """Return the views of the pods of a Job."""
    return [_job_pod(pod) for pod in pods]


def has_failed(pod: JobPod, spec: JobSpec) -> bool:
    """Report whether it failed. A terminating pod counts as failed unless the Job waits for its end."""
    return pod.phase == FAILED or (pod.terminating and not spec.waits_for_the_end)


def is_tracked(obj: Obj) -> bool:
    """Report whether a pod has the Job finalizer."""
    return well_known.JOB_TRACKING in finalizers_of(obj)


def untracked(obj: Obj) -> Obj:
    """Return the pod without the Job finalizer."""
    return without_finalizer(obj, well_known.JOB_TRACKING)


def count_noted(obj: Obj, name: str) -> int:
    """Return the number in an annotation of a pod; 0 if it is absent."""
    text = annotation(obj, name)
    return 0 if text is None else max(0, _index(text))


def _job_pod(obj: Obj) -> JobPod:
    metadata = obj["metadata"]
    text = annotation(obj, well_known.COMPLETION_INDEX)
    return JobPod(
        obj,
        metadata["uid"],
        phase(obj),
        NO_INDEX if text is None else _index(text),
        is_tracked(obj),
        "deletionTimestamp" in metadata,
    )


def _index(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else NO_INDEX


# --- backoff ---
#
# The backoff before a Job replaces failed pods: 10 s, doubled with each failure, at most 10 min.
#
# A success resets the count. Source: pkg/controller/job/backoff_utils.go of Kubernetes.


_FIRST: Final = 10 * SECOND
_LONGEST: Final = 10 * MINUTE
#: Further failures do not increase the backoff.
FAILURES_MAX: Final = 7


def since_success(failures: Iterable[Instant], successes: Iterable[Instant]) -> list[Instant]:
    """Return the times of the relevant failures since the last success, in order."""
    last_success = max(successes, default=-1)
    return sorted(instant for instant in failures if instant > last_success)[-FAILURES_MAX:]


def due_after(failures: list[Instant]) -> Instant:
    """Return when pods may be created after these failures."""
    return failures[-1] + backoff(_FIRST, _LONGEST, len(failures)) if failures else 0


def index_due_after(failed: Obj) -> Instant:
    """Return when the pod of an index may be replaced; each index has its own failure count, passed on by its pods."""
    noted = count_noted(failed, well_known.INDEX_FAILURES) + count_noted(failed, well_known.INDEX_IGNORED_FAILURES)
    return finished_at(failed) + backoff(_FIRST, _LONGEST, noted + 1)


def finished_at(pod: Obj) -> Instant:
    """Return when a pod ended: from its containers, else when it became unready, else its deletion time."""
    status = pod.get("status") or {}
    ends = [_ended(container) for container in status.get("containerStatuses") or ()]
    known = [end for end in ends if end is not None]
    if known and len(known) == len(ends):
        return max(map(parse_time, known))
    ready = find_condition(status, READY)
    if ready is not None and ready["status"] == "False" and ready.get("lastTransitionTime"):
        return parse_time(ready["lastTransitionTime"])
    deleted = deleted_at(pod)
    return parse_time(pod["metadata"]["creationTimestamp"]) if deleted is None else deleted


def _ended(container: Obj) -> str | None:
    ended = (container.get("state") or {}).get("terminated") or {}
    return ended.get("finishedAt") or None


@dataclass(frozen=True, slots=True)
class ObservedJob:
    """An unfinished Job with its pods."""

    spec: JobSpec
    status: Mapping[str, Any]
    #: Whether the Job is being deleted.
    leaving: bool
    pods: Sequence[JobPod]
    active: Sequence[JobPod]
    #: The uids of terminated pods that are recorded, but not in the counters of the status yet.
    uncounted_succeeded: Collection[str]
    uncounted_failed: Collection[str]
    #: Numbers of succeeded pods (or indexes) and of failed pods, recorded or not.
    succeeded: int
    failed: int
    #: The succeeded indexes in the status; these and the new ones; the finally failed indexes.
    recorded_indexes: Spans
    succeeded_indexes: Spans
    failed_indexes: Spans
    #: By index, the failed pod that stays tracked until its replacement has taken over its failure count.
    predecessors: Mapping[int, JobPod]


def observe_job(job: Obj, pods: Sequence[JobPod]) -> ObservedJob:
    """Return the observed state of a Job with these pods."""
    spec, status = job_spec(job), job.get("status") or {}
    uncounted = status.get("uncountedTerminatedPods") or {}
    uncounted_succeeded, uncounted_failed = (frozenset(uncounted.get(f) or ()) for f in ("succeeded", "failed"))
    new = [pod for pod in pods if _is_new(pod, spec, uncounted_succeeded | uncounted_failed)]
    succeeded = [pod for pod in new if pod.phase == SUCCEEDED]
    failed = [pod for pod in new if has_failed(pod, spec) and is_counted(spec.failure_rules, pod.obj)]
    active = [pod for pod in pods if pod.active]
    recorded = parsed(status.get("completedIndexes"), spec.completions or 0) if spec.indexed else NONE
    done = with_indexes(recorded, [pod.index for pod in succeeded]) if spec.indexed else NONE
    lost = _failed_indexes(spec, status, pods)
    successes = status.get("succeeded", 0) + len(uncounted_succeeded) + len(succeeded)
    return ObservedJob(
        spec=spec,
        status=status,
        leaving="deletionTimestamp" in job["metadata"],
        pods=pods,
        active=active,
        uncounted_succeeded=uncounted_succeeded,
        uncounted_failed=uncounted_failed,
        succeeded=total(done) if spec.indexed else successes,
        failed=status.get("failed", 0) + len(uncounted_failed) + len(failed),
        recorded_indexes=recorded,
        succeeded_indexes=done,
        failed_indexes=lost,
        predecessors=_predecessors(spec, pods, active, (done, lost)),
    )


def _is_new(pod: JobPod, spec: JobSpec, uncounted: Collection[str]) -> bool:
    """Report whether a pod has ended or is ending, and is not in the status yet; it needs a valid index."""
    if not pod.tracked or pod.active or pod.uid in uncounted:
        return False
    return not spec.indexed or spec.has_index(pod.index)


def _failed_indexes(spec: JobSpec, status: Mapping[str, Any], pods: Sequence[JobPod]) -> Spans:
    """Return the indexes that are not retried."""
    if spec.backoff_limit_per_index is None:
        return NONE
    recorded = parsed(status.get("failedIndexes"), spec.completions or 0)
    return with_indexes(recorded, [pod.index for pod in pods if _is_last_try(pod, spec, spec.backoff_limit_per_index)])


def _is_last_try(pod: JobPod, spec: JobSpec, limit: int) -> bool:
    """Report whether this pod makes its index fail."""
    if not (pod.tracked and spec.has_index(pod.index) and has_failed(pod, spec)):
        return False
    action = policy_decision(spec.failure_rules, pod.obj).action
    return action == FAIL_INDEX or (action != IGNORE and count_noted(pod.obj, well_known.INDEX_FAILURES) >= limit)


def _predecessors(
    spec: JobSpec, pods: Sequence[JobPod], active: Sequence[JobPod], decided: tuple[Spans, Spans]
) -> Mapping[int, JobPod]:
    """Return the latest failed pod of each index that is to be retried and has no pod yet."""
    if spec.backoff_limit_per_index is None:
        return {}
    taken = {pod.index for pod in active}
    found: dict[int, JobPod] = {}
    for pod in pods:
        index = pod.index
        if not (pod.tracked and spec.has_index(index) and has_failed(pod, spec)) or index in taken:
            continue
        if any(contains(spans, index) for spans in decided):
            continue
        if index not in found or _generation(pod) >= _generation(found[index]):
            found[index] = pod
    return found


def _generation(pod: JobPod) -> tuple[int, int]:
    """Return the number of failed pods of its index before it, and when it failed."""
    before = count_noted(pod.obj, well_known.INDEX_FAILURES)
    return before + count_noted(pod.obj, well_known.INDEX_IGNORED_FAILURES), finished_at(pod.obj)
