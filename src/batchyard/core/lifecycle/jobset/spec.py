"""What a JobSet's spec asks for, read in one place, with the names that follow from it."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from batchyard.api.conditions import is_true
from batchyard.api.meta import Obj
from batchyard.core.lifecycle.jobset import reasons as r

CONTROLLER: Final = "jobset.sigs.k8s.io/jobset-controller"
DEFAULT_GROUP: Final = "default"


def replicated_jobs(jobset: Obj) -> Sequence[Mapping[str, Any]]:
    """The replicated jobs, in the order of the spec."""
    return jobset["spec"].get("replicatedJobs") or ()


def replicas_of(replicated: Mapping[str, Any]) -> int:
    """How many Jobs a replicated job is."""
    replicas: int = replicated.get("replicas", 1)
    return replicas


def group_of(replicated: Mapping[str, Any]) -> str:
    """The group a replicated job belongs to."""
    return replicated.get("groupName") or DEFAULT_GROUP


def job_name(jobset: Obj, replicated: Mapping[str, Any], index: int) -> str:
    """The name of one Job of a replicated job."""
    return f"{jobset['metadata']['name']}-{replicated['name']}-{index}"


def is_suspended(jobset: Obj) -> bool:
    """Whether its Jobs are to be suspended."""
    return bool(jobset["spec"].get("suspend"))


def is_finished(jobset: Obj) -> bool:
    """Whether it is complete or has failed."""
    return is_true(jobset, r.COMPLETED) or is_true(jobset, r.FAILED)


def is_managed_elsewhere(jobset: Obj) -> bool:
    """Whether another controller looks after it, as MultiKueue's does."""
    return jobset["spec"].get("managedBy") not in {None, CONTROLLER}


def starts_in_order(jobset: Obj) -> bool:
    """Whether a replicated job starts only when the one before it has started."""
    return (jobset["spec"].get("startupPolicy") or {}).get("startupPolicyOrder") == "InOrder"


def recreates_at_once(jobset: Obj) -> bool:
    """Whether no Job of a restart is made before the last one of the attempt before is gone."""
    return (jobset["spec"].get("failurePolicy") or {}).get("restartStrategy") == "BlockingRecreate"


def has_host_names(jobset: Obj) -> bool:
    """Whether its pods find each other by name."""
    return bool((jobset["spec"].get("network") or {}).get("enableDNSHostnames"))


def subdomain(jobset: Obj) -> str:
    """The domain of its pods' host names, and the name of the Service behind it."""
    return (jobset["spec"].get("network") or {}).get("subdomain") or str(jobset["metadata"]["name"])
