"""What the spec of a Job asks for, with its defaults filled in."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

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
