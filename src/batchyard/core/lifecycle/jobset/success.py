"""When a JobSet is complete: its success policy."""

from collections.abc import Sequence

from batchyard.api.meta import Obj
from batchyard.core.lifecycle.jobset.children import replicated_job_name
from batchyard.core.lifecycle.jobset.spec import replicas_of, replicated_jobs


def has_succeeded(jobset: Obj, successful: Sequence[Obj]) -> bool:
    """Whether enough Jobs, one or all, of the replicated jobs that the policy names have succeeded; none named: all."""
    policy = jobset["spec"].get("successPolicy") or {}
    targets = frozenset(policy.get("targetReplicatedJobs") or [each["name"] for each in replicated_jobs(jobset)])
    if policy.get("operator") == "Any":
        expected = 1
    else:
        expected = sum(replicas_of(each) for each in replicated_jobs(jobset) if each["name"] in targets)
    return sum(replicated_job_name(job) in targets for job in successful) >= expected
