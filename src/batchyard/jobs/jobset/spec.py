"""A JobSet's spec and derived names, its child Jobs by state, and the reasons and messages of its conditions."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from batchyard.api import well_known
from batchyard.api.meta import Condition, Obj, is_true, label

# Reasons and messages of a JobSet's conditions and events. Source: pkg/constants of JobSet.


class ReasonMessage(NamedTuple):
    """The reason and the message of a condition or an Event."""

    reason: str
    message: str


# Condition types.
COMPLETED: Final = "Completed"
FAILED: Final = "Failed"
SUSPENDED: Final = "Suspended"
RESTARTING: Final = "RestartingJobSet"
STARTUP_IN_PROGRESS: Final = "StartupPolicyInProgress"
STARTUP_COMPLETED: Final = "StartupPolicyCompleted"

JOBS_COMPLETED: Final = ReasonMessage("AllJobsCompleted", "jobset completed successfully")
JOBS_SUSPENDED: Final = ReasonMessage("SuspendedJobs", "jobset is suspended")
JOBS_RESUMED: Final = ReasonMessage("ResumeJobs", "jobset is resumed")
IN_ORDER_IN_PROGRESS: Final = ReasonMessage("InOrderStartupPolicyInProgress", "in order startup policy is in progress")
IN_ORDER_COMPLETED: Final = ReasonMessage("InOrderStartupPolicyCompleted", "in order startup policy has completed")

# Why a JobSet failed; the message names the Job that failed first.
JOBS_FAILED: Final = ReasonMessage("FailedJobs", "jobset failed due to one or more job failures")
RESTARTS_EXHAUSTED: Final = ReasonMessage("ReachedMaxRestarts", "jobset failed due to reaching max number of restarts")

# Actions of the failure policy; the message names the Job that failed first.
FAIL_ACTION: Final = ReasonMessage("FailJobSetFailurePolicyAction", "applying FailJobSet failure policy action")
RESTART_ACTION: Final = ReasonMessage(
    "RestartJobSetFailurePolicyAction", "applying RestartJobSet failure policy action"
)
FREE_RESTART_ACTION: Final = ReasonMessage(
    "RestartJobSetAndIgnoreMaxRestartsFailurePolicyAction",
    "applying RestartJobSetAndIgnoreMaxRestarts failure policy action",
)

# Causes of a restart: the default policy, or a rule, which the reason names.
BY_DEFAULT_FAILURE_POLICY: Final = "DefaultFailurePolicy"
BY_RULE_PREFIX: Final = "FailurePolicy_"

# Why a restart has ended.
RESTARTED: Final = ReasonMessage("JobsReady", "all jobs are ready")
RESTART_ENDED_BY_FAILURE: Final = ReasonMessage("JobSetFailed", "jobset failed")
RESTART_ENDED_BY_COMPLETION: Final = ReasonMessage("JobSetCompleted", JOBS_COMPLETED.message)
RESTART_ENDED_BY_SUSPENSION: Final = ReasonMessage("JobSetSuspended", JOBS_SUSPENDED.message)

JOB_CREATION_FAILED: Final = "JobCreationFailed"
SERVICE_CREATION_FAILED: Final = "HeadlessServiceCreationFailed"
PLACEMENT_VIOLATION: Final = ReasonMessage(
    "ExclusivePlacementViolation", "Pod violated JobSet exclusive placement policy"
)


JOBSET_CONTROLLER: Final = "jobset.sigs.k8s.io/jobset-controller"
DEFAULT_GROUP: Final = "default"


def replicated_jobs(jobset: Obj) -> Sequence[Mapping[str, Any]]:
    """Return the replicated jobs of a JobSet in the order of its spec."""
    return jobset["spec"].get("replicatedJobs") or ()


def replicas_of(replicated_job: Mapping[str, Any]) -> int:
    """Return how many Jobs a replicated job of a JobSet has; by default 1."""
    replicas: int = replicated_job.get("replicas", 1)
    return replicas


def group_of(replicated_job: Mapping[str, Any]) -> str:
    """Return the `groupName` of a replicated job; `default` if unset."""
    return replicated_job.get("groupName") or DEFAULT_GROUP


def job_name(jobset: Obj, replicated_job: Mapping[str, Any], index: int) -> str:
    """Return the name of a JobSet's child Job: `<JobSet>-<replicated job>-<index>`."""
    return f"{jobset['metadata']['name']}-{replicated_job['name']}-{index}"


def is_suspended(jobset: Obj) -> bool:
    """Return whether `spec.suspend` of the JobSet is true, so that its Jobs must be suspended."""
    return bool(jobset["spec"].get("suspend"))


def is_finished(jobset: Obj) -> bool:
    """Return whether the JobSet has a True Completed or Failed condition."""
    return is_true(jobset, COMPLETED) or is_true(jobset, FAILED)


def is_managed_elsewhere(jobset: Obj) -> bool:
    """Return whether the JobSet's `managedBy` names another controller, such as MultiKueue."""
    return jobset["spec"].get("managedBy") not in {None, JOBSET_CONTROLLER}


def starts_in_order(jobset: Obj) -> bool:
    """Return whether each replicated job starts only after all Jobs of the previous one are ready or have ended."""
    return (jobset["spec"].get("startupPolicy") or {}).get("startupPolicyOrder") == "InOrder"


def blocks_recreation(jobset: Obj) -> bool:
    """Return whether a JobSet's restart creates new Jobs only after all Jobs of the previous attempt are gone."""
    return (jobset["spec"].get("failurePolicy") or {}).get("restartStrategy") == "BlockingRecreate"


def has_host_names(jobset: Obj) -> bool:
    """Return whether the pods of the JobSet have DNS host names."""
    return bool((jobset["spec"].get("network") or {}).get("enableDNSHostnames"))


def subdomain(jobset: Obj) -> str:
    """Return the DNS subdomain of the JobSet's pods, which is also the name of its headless Service."""
    return (jobset["spec"].get("network") or {}).get("subdomain") or str(jobset["metadata"]["name"])


class ChildJobs(NamedTuple):
    """The Jobs of a JobSet's current restart attempt by state, and the Jobs of earlier attempts, to be deleted."""

    active_jobs: list[Obj]
    successful_jobs: list[Obj]
    failed_jobs: list[Obj]
    previous_jobs: list[Obj]

    def names(self) -> dict[str, None]:
        """Return the names of all existing child Jobs of the JobSet, as the keys of a dict."""
        return {job["metadata"]["name"]: None for jobs in self for job in jobs}


def sort_children(jobset: Obj, jobs: Iterable[Obj]) -> ChildJobs | None:
    """Return a JobSet's Jobs by restart attempt and state; None if a Job has no valid restart attempt label.

    As upstream, a JobSet with such a Job is not reconciled until the Job is deleted or the label is corrected.
    """
    restart_count: int = (jobset.get("status") or {}).get("restarts", 0)
    children = ChildJobs([], [], [], [])
    for job in jobs:
        restart_attempt = label(job, well_known.RESTART_ATTEMPT) or ""
        if not (restart_attempt.isascii() and restart_attempt.isdigit()):
            return None
        if int(restart_attempt) < restart_count:
            children.previous_jobs.append(job)
            continue
        terminal_condition = find_terminal_condition(job)
        if terminal_condition is None:
            children.active_jobs.append(job)
        elif terminal_condition["type"] == "Failed":
            children.failed_jobs.append(job)
        else:
            children.successful_jobs.append(job)
    return children


def find_terminal_condition(job: Obj) -> Condition | None:
    """Return the True Complete or Failed condition of a Job; None if the Job has not ended."""
    for condition in (job.get("status") or {}).get("conditions") or ():
        if condition["status"] == "True" and condition["type"] in {"Complete", "Failed"}:
            return condition  # type: ignore[no-any-return]
    return None


def replicated_job_name(job: Obj) -> str:
    """Return the name of the replicated job that a Job belongs to, from its label; '' without the label."""
    return label(job, well_known.REPLICATED_JOB_NAME) or ""
