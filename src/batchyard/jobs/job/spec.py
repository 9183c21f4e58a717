"""A Job and its pods in the form that the Job controller uses; selectors, index sets, policies and backoff."""

from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

from batchyard.api import well_known
from batchyard.api.meta import Obj, annotation, finalizers_of, find_condition, is_true, parse_integer, without_finalizer
from batchyard.api.times import parse_time
from batchyard.api.views.pods import FAILED, READY, SUCCEEDED, deleted_at, is_ready, phase
from batchyard.base.instant import MINUTE, SECOND, Duration, Instant, exponential_backoff
from batchyard.base.primitives import LruCache

PolicyRule: TypeAlias = Mapping[str, Any]

#: The only `managedBy` value that this controller handles.
JOB_CONTROLLER: Final = "kubernetes.io/job-controller"

_DEFAULT_BACKOFF_LIMIT: Final = 6


class JobSpec(NamedTuple):
    """The spec of a batch/v1 Job, with defaults filled in."""

    indexed: bool
    #: The required number of succeeded pods or indexes; None if the first success suffices.
    completions: int | None
    parallelism: int
    backoff_limit: int
    #: The backoff limit of each index; None if indexes do not fail separately.
    backoff_limit_per_index: int | None
    max_failed_indexes: int | None
    active_deadline: Duration | None
    suspended: bool
    #: Whether a pod is replaced only after it has ended, instead of at its deletion.
    replaces_after_end: bool
    #: Whether failed containers are restarted in the same pod.
    restarts_in_place: bool
    failure_rules: Sequence[PolicyRule] | None
    success_rules: Sequence[PolicyRule]

    def has_index(self, index: int) -> bool:
        """Return whether a completion index is valid for this Job; False for -1, a pod without an index."""
        return 0 <= index < (self.completions or 0)


#: How many specs of Jobs a cache keeps alive; a spec may have a megabyte.
KNOWN_SPECS_MAX: Final = 64
#: The parsed specs of recently reconciled Jobs, by the id of the spec, which is kept with it and never changes.
_parsed_specs: Final[LruCache[int, tuple[Mapping[str, Any], JobSpec]]] = LruCache(KNOWN_SPECS_MAX)


def job_spec(job: Obj) -> JobSpec:
    """Return the parsed spec of a Job, with defaults filled in."""
    spec = job["spec"]
    known = _parsed_specs.get(id(spec))
    if known is None:
        known = spec, _parse_job_spec(spec)
        _parsed_specs.put(id(spec), known)
    return known[1]


def _parse_job_spec(spec: Mapping[str, Any]) -> JobSpec:
    parallelism, retry_limit, deadline = (spec.get(f) for f in ("parallelism", "backoffLimit", "activeDeadlineSeconds"))
    failure_policy = spec.get("podFailurePolicy")
    return JobSpec(
        indexed=spec.get("completionMode") == "Indexed",
        completions=spec.get("completions"),
        parallelism=1 if parallelism is None else parallelism,
        backoff_limit=_DEFAULT_BACKOFF_LIMIT if retry_limit is None else retry_limit,
        backoff_limit_per_index=spec.get("backoffLimitPerIndex"),
        max_failed_indexes=spec.get("maxFailedIndexes"),
        active_deadline=None if deadline is None else deadline * SECOND,
        suspended=bool(spec.get("suspend")),
        replaces_after_end=failure_policy is not None or spec.get("podReplacementPolicy") == "Failed",
        restarts_in_place=spec["template"]["spec"].get("restartPolicy") == "OnFailure",
        failure_rules=None if failure_policy is None else failure_policy.get("rules") or (),
        success_rules=(spec.get("successPolicy") or {}).get("rules") or (),
    )


def is_managed_by_job_controller(job: Obj) -> bool:
    """Return whether the Job's `managedBy` is unset or names this controller."""
    return job["spec"].get("managedBy") in (None, JOB_CONTROLLER)


def is_finished(job: Obj) -> bool:
    """Return whether the Job has a True Complete or Failed condition."""
    return is_true(job, "Complete") or is_true(job, "Failed")


# The labels with which a Job selects its pods, generated from its name and uid.
#
# The API server generates them when a Job is created, so that clients see them on Jobs and their pod templates.
# Source: pkg/registry/batch/job/strategy.go of Kubernetes (generateSelector).


def with_selector(job: Obj) -> Obj:
    """Return the Job with a generated pod selector and the matching labels on its pod template.

    Returns the same object if both are present, or if the Job has a manual selector. Existing values are kept;
    validation checks that they match.
    """
    spec, metadata = job["spec"], job["metadata"]
    if spec.get("manualSelector"):
        return job
    template, selector = spec.get("template") or {}, spec.get("selector") or {}
    template_labels = (template.get("metadata") or {}).get("labels") or {}
    match_labels = selector.get("matchLabels") or {}
    labels = _generated_labels(metadata["name"], metadata["uid"]) | match_labels | template_labels
    required_labels = {well_known.CONTROLLER_UID: metadata["uid"], **match_labels}
    if labels == template_labels and required_labels == match_labels:
        return job
    new_template = {**template, "metadata": {**(template.get("metadata") or {}), "labels": labels}}
    new_selector = {**selector, "matchLabels": required_labels}
    return {**job, "spec": {**spec, "selector": new_selector, "template": new_template}}


def _generated_labels(name: str, uid: str) -> dict[str, str]:
    return {
        well_known.OLD_JOB_NAME: name,
        well_known.JOB_NAME: name,
        well_known.OLD_CONTROLLER_UID: uid,
        well_known.CONTROLLER_UID: uid,
    }


# Sets of completion indexes, as the status of an Indexed Job writes them: `0-2,5`.
#
# Source: pkg/controller/job/indexed_job_utils.go of Kubernetes.


#: A set of indexes as sorted and disjoint pairs of first and last index.
Spans: TypeAlias = tuple[tuple[int, int], ...]

NO_INDEXES: Final[Spans] = ()


def parse_indexes(text: str | None, completions: int) -> Spans:
    """Return the completion indexes in a list such as `0-2,5`, without invalid parts and indexes >= `completions`."""
    if not text:
        return NO_INDEXES
    spans = []
    for range_text in text.split(","):
        start, dash, end = range_text.partition("-")
        low, high = parse_integer(start), parse_integer(end if dash else start)
        if low is not None and high is not None and low <= high and low < completions:
            spans.append((low, min(high, completions - 1)))
    return _merge_spans(spans)


def format_indexes(spans: Spans) -> str:
    """Return completion indexes as text such as `0-2,5`; two consecutive indexes are not written as a range."""
    range_texts = []
    for first, last in spans:
        if last - first > 1:
            range_texts.append(f"{first}-{last}")
        else:
            range_texts += map(str, range(first, last + 1))
    return ",".join(range_texts)


def with_indexes(spans: Spans, indexes: Iterable[int]) -> Spans:
    """Return a set of completion indexes with further indexes added."""
    new_spans = [(index, index) for index in indexes]
    return _merge_spans([*spans, *new_spans]) if new_spans else spans


def index_union(a: Spans, b: Spans) -> Spans:
    """Return the union of two sets of completion indexes."""
    return _merge_spans([*a, *b]) if a and b else a or b


def index_count(spans: Spans) -> int:
    """Return the number of indexes in a set of completion indexes."""
    return sum(last - first + 1 for first, last in spans)


def spans_contain(spans: Spans, index: int) -> bool:
    """Return whether a completion index is in a set of completion indexes."""
    position = bisect_right(spans, (index, index))
    return (position > 0 and spans[position - 1][1] >= index) or (position < len(spans) and spans[position][0] == index)


def count_common(a: Spans, b: Spans) -> int:
    """Return how many completion indexes two sets have in common."""
    return index_count(a) + index_count(b) - index_count(index_union(a, b))


def unused_indexes(spans: Spans, count: int, completions: int) -> list[int]:
    """Return at most `count` completion indexes that are not in the set: the lowest ones below `completions`."""
    free_indexes: list[int] = []
    candidate_index = 0
    for first, last in (*spans, (completions, completions)):
        free_indexes += range(candidate_index, min(first, candidate_index + count - len(free_indexes)))
        if len(free_indexes) == count:
            break
        candidate_index = max(candidate_index, last + 1)
    return free_indexes


def _merge_spans(spans: list[tuple[int, int]]) -> Spans:
    merged_spans: list[tuple[int, int]] = []
    for first, last in sorted(spans):
        if merged_spans and first <= merged_spans[-1][1] + 1:
            merged_spans[-1] = (merged_spans[-1][0], max(last, merged_spans[-1][1]))
        else:
            merged_spans.append((first, last))
    return tuple(merged_spans)


# Pod failure policy of a Job: the action for a failed pod.
#
# Source: pkg/controller/job/pod_failure_policy.go of Kubernetes.


IGNORE_ACTION: Final = "Ignore"
FAIL_INDEX_ACTION: Final = "FailIndex"
_FAIL_JOB_ACTION: Final = "FailJob"


class PolicyDecision(NamedTuple):
    """The action of the pod failure policy for a failed pod; '' (treated as Count) if no rule matches."""

    action: str
    #: The failure message of the Job if the action fails it.
    message: str | None = None


def policy_decision(rules: Sequence[PolicyRule] | None, pod: Obj) -> PolicyDecision:
    """Return the decision of the first pod failure policy rule that matches a pod; its action is '' if none matches."""
    for number, rule in enumerate(rules or ()):
        status = pod.get("status") or {}
        exit_code_rule, condition_patterns = rule.get("onExitCodes"), rule.get("onPodConditions")
        description = (
            _matching_exit_code_text(status, exit_code_rule, pod)
            if exit_code_rule is not None
            else _matching_condition_text(status, condition_patterns or (), pod)
        )
        if description is not None:
            action = rule["action"]
            message = f"{description} matching {action} rule at index {number}" if action == _FAIL_JOB_ACTION else None
            return PolicyDecision(action, message)
    return PolicyDecision("")


def is_counted(rules: Sequence[PolicyRule] | None, pod: Obj) -> bool:
    """Return whether a failed pod counts toward the Job's backoff limit: its failure policy action is not Ignore."""
    return not rules or policy_decision(rules, pod).action != IGNORE_ACTION


def _matching_exit_code_text(status: Mapping[str, Any], rule: Mapping[str, Any], pod: Obj) -> str | None:
    for name in ("containerStatuses", "initContainerStatuses"):
        for container in status.get(name) or ():
            termination = (container.get("state") or {}).get("terminated")
            if termination is not None and _matches_exit_code(rule, container["name"], termination.get("exitCode", 0)):
                exit_code = termination["exitCode"]
                return f"Container {container['name']} for pod {_pod_name(pod)} failed with exit code {exit_code}"
    return None


def _matches_exit_code(rule: Mapping[str, Any], container_name: str, exit_code: int) -> bool:
    if exit_code == 0 or rule.get("containerName") not in (None, container_name):
        return False
    if rule["operator"] == "In":
        return exit_code in rule["values"]
    return exit_code not in rule["values"]


def _matching_condition_text(status: Mapping[str, Any], patterns: Sequence[Mapping[str, Any]], pod: Obj) -> str | None:
    for condition in status.get("conditions") or ():
        for pattern in patterns:
            if condition["type"] == pattern["type"] and condition["status"] == (pattern.get("status") or "True"):
                return f"Pod {_pod_name(pod)} has condition {condition['type']}"
    return None


def _pod_name(pod: Obj) -> str:
    return f"{pod['metadata'].get('namespace', '')}/{pod['metadata']['name']}"


# The pods of a Job, as its controller sees them.
#
# A pod is tracked while it has the Job finalizer, until the Job's status records its termination.
# Sources: Kubernetes's pkg/controller/job (isPodFailed, getCompletionIndex), pkg/controller (IsPodActive,
# IsPodTerminating).


NO_INDEX = -1


# Observed state of a Job: its status, and the terminations of pods that the status does not contain yet.
#
# Source: syncJob, getNewFinishedPods, calculateSucceededIndexes, calculateFailedIndexes and
# getPodsWithDelayedDeletionPerIndex in Kubernetes's pkg/controller/job.


@dataclass(slots=True)
class JobPod:
    """The properties of a Job's pod that the Job controller uses."""

    obj: Obj
    uid: str
    phase: str
    index: int
    tracked: bool
    #: Whether the pod has a deletion timestamp; it may still be running.
    deleted: bool
    #: Whether the pod has succeeded or failed.
    ended: bool = field(init=False)
    #: Whether the pod has not ended and is not being deleted.
    active: bool = field(init=False)
    #: Whether the pod is being deleted and has not ended.
    terminating: bool = field(init=False)
    #: Whether the Ready condition of the pod is True.
    ready: bool = field(init=False)

    def __post_init__(self) -> None:
        """Compute the properties that each reconcile of the Job reads."""
        self.ended = self.phase in {SUCCEEDED, FAILED}
        self.active = not self.deleted and not self.ended
        self.terminating = self.deleted and not self.ended
        self.ready = is_ready(self.obj)


def has_failed(pod: JobPod, spec: JobSpec) -> bool:
    """Return whether a pod has failed; a terminating pod counts as failed, unless `replaces_after_end` is set."""
    return pod.phase == FAILED or (pod.terminating and not spec.replaces_after_end)


def is_tracked(obj: Obj) -> bool:
    """Return whether a pod has the finalizer of the Job controller."""
    return well_known.JOB_TRACKING in finalizers_of(obj)


def remove_tracking_finalizer(obj: Obj) -> Obj:
    """Return a copy of the pod without the Job finalizer."""
    return without_finalizer(obj, well_known.JOB_TRACKING)


def count_from_annotation(obj: Obj, name: str) -> int:
    """Return the count in an annotation of a pod; 0 if absent or invalid."""
    text = annotation(obj, name)
    return 0 if text is None else max(0, _parse_index(text))


def job_pod(obj: Obj) -> JobPod:
    """Return the properties of a pod that the Job controller uses."""
    metadata = obj["metadata"]
    text = annotation(obj, well_known.COMPLETION_INDEX)
    return JobPod(
        obj,
        metadata["uid"],
        phase(obj),
        NO_INDEX if text is None else _parse_index(text),
        is_tracked(obj),
        "deletionTimestamp" in metadata,
    )


def _parse_index(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else NO_INDEX


# The backoff before a Job replaces failed pods: 10 s, doubled with each failure since the last success, at most 10 min.
# Source: pkg/controller/job/backoff_utils.go of Kubernetes.


_BACKOFF_BASE: Final = 10 * SECOND
_BACKOFF_MAX: Final = 10 * MINUTE
#: The number of failures after which the backoff no longer increases.
BACKOFF_FAILURES_MAX: Final = 7


def failures_since_success(failure_times: Iterable[Instant], success_times: Iterable[Instant]) -> list[Instant]:
    """Return the latest failure times (at most 7) after the last success time, sorted."""
    last_success_time = max(success_times, default=-1)
    return sorted(instant for instant in failure_times if instant > last_success_time)[-BACKOFF_FAILURES_MAX:]


def backoff_end(failure_times: list[Instant]) -> Instant:
    """Return when a Job may create pods again after failures at these sorted times; 0 if there are none."""
    if not failure_times:
        return 0
    return failure_times[-1] + exponential_backoff(_BACKOFF_BASE, _BACKOFF_MAX, len(failure_times))


def index_backoff_end(failed_pod: Obj) -> Instant:
    """Return when the failed pod of a completion index may be replaced, from the failure counts in its annotations."""
    ignored_count = count_from_annotation(failed_pod, well_known.INDEX_IGNORED_FAILURES)
    failure_count = count_from_annotation(failed_pod, well_known.INDEX_FAILURES) + ignored_count
    return finished_at(failed_pod) + exponential_backoff(_BACKOFF_BASE, _BACKOFF_MAX, failure_count + 1)


def finished_at(pod: Obj) -> Instant:
    """Return when a pod ended: the last end of its containers, if all have ended.

    Otherwise the pod ended when its condition Ready became False; if that is unknown, at its deletion or creation.
    """
    status = pod.get("status") or {}
    end_times = [_container_end_time(container) for container in status.get("containerStatuses") or ()]
    known_end_times = [end for end in end_times if end is not None]
    if known_end_times and len(known_end_times) == len(end_times):
        return max(map(parse_time, known_end_times))
    condition = find_condition(status, READY)
    if condition is not None and condition["status"] == "False" and condition.get("lastTransitionTime"):
        return parse_time(condition["lastTransitionTime"])
    deletion_time = deleted_at(pod)
    return parse_time(pod["metadata"]["creationTimestamp"]) if deletion_time is None else deletion_time


def _container_end_time(container: Obj) -> str | None:
    terminated_state = (container.get("state") or {}).get("terminated") or {}
    return terminated_state.get("finishedAt") or None


class ObservedJob(NamedTuple):
    """An unfinished Job and its pods; the counts include pod terminations that are not in the Job's status yet."""

    spec: JobSpec
    status: Mapping[str, Any]
    #: Whether the Job is being deleted.
    is_deleted: bool
    pods: Sequence[JobPod]
    active_pods: Sequence[JobPod]
    #: The uids of terminated pods that the status records but does not count yet.
    uncounted_succeeded: Collection[str]
    uncounted_failed: Collection[str]
    #: The numbers of succeeded pods (or indexes) and of failed pods, including unrecorded ones.
    succeeded_count: int
    failed_count: int
    #: The succeeded indexes in the status, all succeeded indexes, and the finally failed indexes.
    recorded_indexes: Spans
    succeeded_indexes: Spans
    failed_indexes: Spans
    #: By index: the failed pod that stays tracked until its replacement contains its failure count.
    predecessors: Mapping[int, JobPod]


def observe_job(job: Obj, pods: Sequence[JobPod]) -> ObservedJob:
    """Return the state of a Job: its parsed spec, and counts from its status and its pods."""
    spec, status = job_spec(job), job.get("status") or {}
    uncounted_uids = status.get("uncountedTerminatedPods") or {}
    uncounted_succeeded, uncounted_failed = (frozenset(uncounted_uids.get(f) or ()) for f in ("succeeded", "failed"))
    new_terminations = [pod for pod in pods if _is_new_termination(pod, spec, uncounted_succeeded | uncounted_failed)]
    succeeded_pods = [pod for pod in new_terminations if pod.phase == SUCCEEDED]
    failed_pods = [pod for pod in new_terminations if has_failed(pod, spec) and is_counted(spec.failure_rules, pod.obj)]
    active_pods = [pod for pod in pods if pod.active]
    recorded_indexes = succeeded_indexes = NO_INDEXES
    if spec.indexed:
        recorded_indexes = parse_indexes(status.get("completedIndexes"), spec.completions or 0)
        succeeded_indexes = with_indexes(recorded_indexes, [pod.index for pod in succeeded_pods])
    failed_indexes = _failed_indexes(spec, status, pods)
    succeeded_count = status.get("succeeded", 0) + len(uncounted_succeeded) + len(succeeded_pods)
    return ObservedJob(
        spec=spec,
        status=status,
        is_deleted="deletionTimestamp" in job["metadata"],
        pods=pods,
        active_pods=active_pods,
        uncounted_succeeded=uncounted_succeeded,
        uncounted_failed=uncounted_failed,
        succeeded_count=index_count(succeeded_indexes) if spec.indexed else succeeded_count,
        failed_count=status.get("failed", 0) + len(uncounted_failed) + len(failed_pods),
        recorded_indexes=recorded_indexes,
        succeeded_indexes=succeeded_indexes,
        failed_indexes=failed_indexes,
        predecessors=_failed_predecessors(spec, pods, active_pods, (succeeded_indexes, failed_indexes)),
    )


def _is_new_termination(pod: JobPod, spec: JobSpec, uncounted_uids: Collection[str]) -> bool:
    if not pod.tracked or pod.active or pod.uid in uncounted_uids:
        return False
    return not spec.indexed or spec.has_index(pod.index)


def _failed_indexes(spec: JobSpec, status: Mapping[str, Any], pods: Sequence[JobPod]) -> Spans:
    if spec.backoff_limit_per_index is None:
        return NO_INDEXES
    recorded_failed_indexes = parse_indexes(status.get("failedIndexes"), spec.completions or 0)
    limit = spec.backoff_limit_per_index
    return with_indexes(recorded_failed_indexes, [pod.index for pod in pods if _fails_index(pod, spec, limit)])


def _fails_index(pod: JobPod, spec: JobSpec, index_backoff_limit: int) -> bool:
    if not (pod.tracked and spec.has_index(pod.index) and has_failed(pod, spec)):
        return False
    action = policy_decision(spec.failure_rules, pod.obj).action
    has_reached_limit = count_from_annotation(pod.obj, well_known.INDEX_FAILURES) >= index_backoff_limit
    return action == FAIL_INDEX_ACTION or (action != IGNORE_ACTION and has_reached_limit)


def _failed_predecessors(
    spec: JobSpec, pods: Sequence[JobPod], active_pods: Sequence[JobPod], finished_indexes: tuple[Spans, Spans]
) -> Mapping[int, JobPod]:
    """Return the latest failed pod of each completion index that must be retried and has no active pod, by index."""
    if spec.backoff_limit_per_index is None:
        return {}
    active_indexes = {pod.index for pod in active_pods}
    latest_pod_by_index: dict[int, JobPod] = {}
    for pod in pods:
        index = pod.index
        if not (pod.tracked and spec.has_index(index) and has_failed(pod, spec)) or index in active_indexes:
            continue
        if any(spans_contain(spans, index) for spans in finished_indexes):
            continue
        if index not in latest_pod_by_index or _retry_order(pod) >= _retry_order(latest_pod_by_index[index]):
            latest_pod_by_index[index] = pod
    return latest_pod_by_index


def _retry_order(pod: JobPod) -> tuple[int, int]:
    counted_failures = count_from_annotation(pod.obj, well_known.INDEX_FAILURES)
    return counted_failures + count_from_annotation(pod.obj, well_known.INDEX_IGNORED_FAILURES), finished_at(pod.obj)
