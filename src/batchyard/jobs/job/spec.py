"""View of a Job's spec, with defaults."""

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
