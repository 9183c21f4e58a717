"""What the spec of a Job asks for, with its defaults filled in."""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from batchyard.api import well_known
from batchyard.api.annotations import whole_number
from batchyard.api.conditions import is_true
from batchyard.api.meta import Obj
from batchyard.base.instant import SECOND, Duration

Rule: TypeAlias = Mapping[str, Any]

#: The one manager that a Job may name and still be ours.
MANAGER: Final = "kubernetes.io/job-controller"

_BACKOFF_LIMIT: Final = 6


@dataclass(frozen=True, slots=True)
class JobSpec:
    """What a Job asks for."""

    indexed: bool
    #: How many pods, or indexes, are to succeed; None: the first success is enough.
    completions: int | None
    parallelism: int
    backoff_limit: int
    #: How often an index may fail and be tried again; None: indexes do not fail on their own.
    backoff_limit_per_index: int | None
    max_failed_indexes: int | None
    active_deadline: Duration | None
    suspended: bool
    #: A pod is replaced when it has ended, not already when it is being deleted.
    waits_for_the_end: bool
    #: Containers that fail are started again in their pod.
    restarts_in_place: bool
    failure_rules: Sequence[Rule] | None
    success_rules: Sequence[Rule]

    def has_index(self, index: int) -> bool:
        """Whether it is an index of this Job; -1 stands for a pod without one."""
        return 0 <= index < (self.completions or 0)


def job_spec(job: Obj) -> JobSpec:
    """The view of a Job's spec."""
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
    """Whether the Job is left to the Job controller of the platform."""
    return job["spec"].get("managedBy") in (None, MANAGER)


def is_finished(job: Obj) -> bool:
    """Whether the Job is complete or has failed."""
    return is_true(job, "Complete") or is_true(job, "Failed")


# --- selector ---
#
# The labels by which a Job finds its pods, made from its name and uid.
#
# The API server makes them when a Job is created, for whoever looks at Jobs and their pod templates sees them there.
# Source: pkg/registry/batch/job/strategy.go of Kubernetes (generateSelector).


def with_selector(job: Obj) -> Obj:
    """The Job with its selector, and these labels on its pod template; the same Job where there is nothing to add.

    What is there already is left: that it fits is for validation to say.
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
    """The labels, those from before they had a prefix among them."""
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


#: First and last index of each run, in order and apart.
Spans: TypeAlias = tuple[tuple[int, int], ...]

NONE: Final[Spans] = ()


def parsed(text: str | None, completions: int) -> Spans:
    """The indexes that a text lists, less what lies beyond the completions; parts that say nothing are left out."""
    spans = []
    for part in text.split(",") if text else ():
        start, dash, end = part.partition("-")
        first, last = whole_number(start), whole_number(end if dash else start)
        if first is not None and last is not None and first <= last and first < completions:
            spans.append((first, min(last, completions - 1)))
    return _joined(spans)


def written(spans: Spans) -> str:
    """The indexes as a text; two in a row are not a range yet."""
    parts = []
    for first, last in spans:
        if last - first > 1:
            parts.append(f"{first}-{last}")
        else:
            parts += map(str, range(first, last + 1))
    return ",".join(parts)


def with_indexes(spans: Spans, indexes: Iterable[int]) -> Spans:
    """The spans with more indexes."""
    added = [(index, index) for index in indexes]
    return _joined([*spans, *added]) if added else spans


def union(one: Spans, other: Spans) -> Spans:
    """The indexes that are in one or the other."""
    return _joined([*one, *other])


def total(spans: Spans) -> int:
    """How many indexes there are."""
    return sum(last - first + 1 for first, last in spans)


def contains(spans: Spans, index: int) -> bool:
    """Whether an index is among them."""
    at = bisect_right(spans, (index, index))
    return (at > 0 and spans[at - 1][1] >= index) or (at < len(spans) and spans[at][0] == index)


def in_common(one: Spans, other: Spans) -> int:
    """How many indexes are in both."""
    return total(one) + total(other) - total(union(one, other))


def first_missing(spans: Spans, count: int, completions: int) -> list[int]:
    """The first so many indexes below the completions that are not among them."""
    missing: list[int] = []
    candidate = 0
    for first, last in (*spans, (completions, completions)):
        missing += range(candidate, min(first, candidate + count - len(missing)))
        if len(missing) == count:
            break
        candidate = max(candidate, last + 1)
    return missing


def _joined(spans: list[tuple[int, int]]) -> Spans:
    """Spans in order, those that touch or overlap made one."""
    joined: list[tuple[int, int]] = []
    for first, last in sorted(spans):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(last, joined[-1][1]))
        else:
            joined.append((first, last))
    return tuple(joined)
