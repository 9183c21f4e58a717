"""Reasons and messages of a JobSet's conditions and events. Source: pkg/constants of JobSet."""

from typing import Final, NamedTuple


class Why(NamedTuple):
    """The reason and the message of a condition or an event."""

    reason: str
    message: str


# Types of conditions.
COMPLETED: Final = "Completed"
FAILED: Final = "Failed"
SUSPENDED: Final = "Suspended"
RESTARTING: Final = "RestartingJobSet"
STARTUP_IN_PROGRESS: Final = "StartupPolicyInProgress"
STARTUP_COMPLETED: Final = "StartupPolicyCompleted"

JOBS_COMPLETED: Final = Why("AllJobsCompleted", "jobset completed successfully")
JOBS_SUSPENDED: Final = Why("SuspendedJobs", "jobset is suspended")
JOBS_RESUMED: Final = Why("ResumeJobs", "jobset is resumed")
IN_ORDER_IN_PROGRESS: Final = Why("InOrderStartupPolicyInProgress", "in order startup policy is in progress")
IN_ORDER_COMPLETED: Final = Why("InOrderStartupPolicyCompleted", "in order startup policy has completed")

# Why a JobSet failed; the message names the Job that failed first.
JOBS_FAILED: Final = Why("FailedJobs", "jobset failed due to one or more job failures")
RESTARTS_EXHAUSTED: Final = Why("ReachedMaxRestarts", "jobset failed due to reaching max number of restarts")

# What a failure policy did; the message names the Job that failed first.
FAIL_ACTION: Final = Why("FailJobSetFailurePolicyAction", "applying FailJobSet failure policy action")
RESTART_ACTION: Final = Why("RestartJobSetFailurePolicyAction", "applying RestartJobSet failure policy action")
FREE_RESTART_ACTION: Final = Why(
    "RestartJobSetAndIgnoreMaxRestartsFailurePolicyAction",
    "applying RestartJobSetAndIgnoreMaxRestarts failure policy action",
)

# Why a restart began: of no rule's making, or of a rule's, which the reason names.
BY_DEFAULT: Final = "DefaultFailurePolicy"
BY_RULE_PREFIX: Final = "FailurePolicy_"

# Why a restart is over.
RESTARTED: Final = Why("JobsReady", "all jobs are ready")
RESTART_ENDED_BY_FAILURE: Final = Why("JobSetFailed", "jobset failed")
RESTART_ENDED_BY_COMPLETION: Final = Why("JobSetCompleted", JOBS_COMPLETED.message)
RESTART_ENDED_BY_SUSPENSION: Final = Why("JobSetSuspended", JOBS_SUSPENDED.message)

JOB_CREATION_FAILED: Final = "JobCreationFailed"
SERVICE_CREATION_FAILED: Final = "HeadlessServiceCreationFailed"
PLACEMENT_VIOLATION: Final = Why("ExclusivePlacementViolation", "Pod violated JobSet exclusive placement policy")
