"""Finds the Workload of a job or a pod, or the reason why it has none."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from batchyard.api import scheme, well_known
from batchyard.api.meta import Key, Obj, annotation, controller_of, label
from batchyard.api.views.ownership import owning_jobs
from batchyard.api.views.pod_lifecycle import is_terminal
from batchyard.interfaces.client import Reader
from batchyard.jobframework.workloads import prebuilt_key

_KINDS: Final = {"Job": scheme.JOB, "JobSet": scheme.JOB_SET}
_DEFAULT: Final = "default"


class WorkloadLookup(NamedTuple):
    """The Workload of an object, or the reason why it has none."""

    workload: Obj | None
    #: The job that the Workload was created for: the object itself, or an owner of it.
    job: Obj | None = None
    why_not: str = ""


def workload_of(obj: Obj, reader: Reader) -> WorkloadLookup:
    """Return the Workload of a Job, a JobSet or a pod."""
    job = managed(obj, reader)
    if job is None:
        kind = obj["kind"].lower()
        return WorkloadLookup(
            None, None, f"no job that queues with Kueue's labels owns this {kind}: it runs outside any queue"
        )
    metadata = job["metadata"]
    of_job = reader.owned_by(metadata.get("uid", ""), metadata.get("namespace", ""))
    owned = [each for each in of_job if each["kind"] == "Workload"]
    prebuilt = prebuilt_key(job)
    if not owned and prebuilt is not None:
        found = reader.get(prebuilt)
        owned = [] if found is None else [found]
    if owned:
        return WorkloadLookup(owned[0], job)
    return WorkloadLookup(None, job, _why_unmanaged(job, prebuilt, reader))


def managed(obj: Obj, reader: Reader) -> Obj | None:
    """Return the queued job of an object: its outermost owner that is a Job or JobSet, or itself; None without one."""
    found = obj if obj["kind"] in _KINDS else None
    for above in owning_jobs(obj, reader.get):
        found = above
    return found


def _why_unmanaged(job: Obj, prebuilt: Key | None, reader: Reader) -> str:
    kind, name, namespace = job["kind"], job["metadata"]["name"], job["metadata"].get("namespace", "")
    queue = label(job, well_known.QUEUE_NAME)
    if queue and prebuilt is not None:
        return f"{kind} {name} waits for its Workload {prebuilt.name}, which does not exist"
    if queue:
        return f"the Workload of {kind} {name} is not created yet, or was deleted after the job finished"
    reason = f"{kind} {name} has no label {well_known.QUEUE_NAME}, so no queue manages it"
    wrong = annotation(job, well_known.QUEUE_NAME)
    if wrong:
        return f"{reason}; {wrong} is set as an annotation and must be a label"
    if reader.get(Key(scheme.LOCAL_QUEUE, namespace, _DEFAULT)) is None:
        return f"{reason}, and namespace {namespace} has no LocalQueue {_DEFAULT} for jobs that name none"
    return f"{reason}; it was created before the LocalQueue {_DEFAULT} of namespace {namespace}"


def pods_of(workload: Obj, reader: Reader) -> Sequence[Obj]:
    """Return the unfinished pods of a Workload's job, by name."""
    owner = controller_of(workload)
    if owner is None or owner["kind"] not in _KINDS:
        return ()
    jobs, where = [owner["uid"]], workload["metadata"].get("namespace", "")
    if owner["kind"] == "JobSet":
        jobs = [each["metadata"]["uid"] for each in reader.owned_by(owner["uid"], where) if each["kind"] == "Job"]
    owned = [obj for uid in jobs for obj in reader.owned_by(uid, where)]
    pods = [obj for obj in owned if obj["kind"] == "Pod" and not is_terminal(obj)]
    return sorted(pods, key=lambda pod: pod["metadata"]["name"])
