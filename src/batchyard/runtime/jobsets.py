"""JobSets: their child Jobs, and a status that says what became of them.

A JobSet makes its Jobs at once, suspends and resumes them with itself, and is complete when they are. Jobs do not fail
here, and no replicated job waits for another. How long they take is in batchyard.runtime.simulated. Source:
pkg/controllers/jobset_controller.go of JobSet.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from batchyard.api import scheme
from batchyard.api.conditions import is_true, with_condition
from batchyard.api.defaults import with_defaults
from batchyard.api.meta import Key, Obj, controller_of, key_of, label, with_path
from batchyard.api.views.job import pods_at_once
from batchyard.base.instant import Instant
from batchyard.ports.client import Create, Delete, Reader, Update, UpdateStatus, WatchEvent, Write
from batchyard.ports.controller import EventRecord, Outcome
from batchyard.runtime.jobs import has_ended

_DOMAIN: Final = "jobset.sigs.k8s.io"
_REPLICATED_JOB: Final = f"{_DOMAIN}/replicatedjob-name"
_EXCLUSIVE: Final = "alpha.jobset.sigs.k8s.io/exclusive-topology"
_DEFAULT_GROUP: Final = "default"
_SUSPENDED: Final = ("SuspendedJobs", "jobset is suspended")
_RESUMED: Final = ("ResumeJobs", "jobset is resumed")
_COMPLETED: Final = ("AllJobsCompleted", "jobset completed successfully")


class JobSetPlayback:
    """Keeps the child Jobs of JobSets and the status that sums them up."""

    name = "jobset-playback"
    rank = 0
    kinds = (scheme.JOB_SET, scheme.JOB)

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """The JobSet, or the one a Job belongs to."""
        key = event.key
        if key.kind == scheme.JOB_SET:
            return (key,)
        owner = controller_of(event.obj)
        belongs = owner is not None and owner["kind"] == "JobSet"
        return (Key(scheme.JOB_SET, key.namespace, owner["name"]),) if owner is not None and belongs else ()

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> Outcome:
        """Bring the child Jobs into the state of the JobSet, and its status up to date with them."""
        jobset = reader.get(key)
        if jobset is None or "deletionTimestamp" in jobset["metadata"]:
            return Outcome()
        jobs = [obj for obj in reader.owned_by(jobset["metadata"]["uid"]) if obj["kind"] == "Job"]
        status = {**(jobset.get("status") or {}), "replicatedJobsStatus": _replicated_statuses(jobset, jobs)}
        status.setdefault("restarts", 0)
        writes: list[Write] = []
        if is_true(jobset, "Completed") or is_true(jobset, "Failed"):
            writes += [Delete(key_of(job)) for job in jobs if not has_ended(job)]
        elif _is_complete(jobset, jobs):
            _set_condition(status, "Completed", True, _COMPLETED, now)
            status["terminalState"] = "Completed"
        else:
            suspended = bool(jobset["spec"].get("suspend"))
            _set_condition(status, "Suspended", suspended, _SUSPENDED if suspended else _RESUMED, now)
            writes += _missing_jobs(jobset, jobs)
            writes += _suspensions(jobs) if suspended else _resumptions(jobset, jobs)
        if status != jobset.get("status"):
            writes.append(UpdateStatus({**jobset, "status": status}))
        return Outcome(writes, _condition_events(key, jobset, status))


# --- the status ---


def _replicated_statuses(jobset: Obj, jobs: Sequence[Obj]) -> list[dict[str, Any]]:
    """What became of the Jobs of each replicated job."""
    statuses = []
    for replicated in _replicated_jobs(jobset):
        name = replicated["name"]
        mine = [job for job in jobs if label(job, _REPLICATED_JOB) == name]
        running = [job for job in mine if not has_ended(job)]
        statuses.append(
            {
                "name": name,
                "ready": sum(map(_is_ready, running)),
                "succeeded": sum(is_true(job, "Complete") for job in mine),
                "failed": sum(is_true(job, "Failed") for job in mine),
                "active": sum((job.get("status") or {}).get("active", 0) > 0 for job in running),
                "suspended": sum(bool(job["spec"].get("suspend")) for job in running),
            }
        )
    return statuses


def _is_ready(job: Obj) -> bool:
    status = job.get("status") or {}
    return bool(status.get("succeeded", 0) + status.get("ready", 0) >= pods_at_once(job["spec"]))


def _is_complete(jobset: Obj, jobs: Sequence[Obj]) -> bool:
    """What its success policy asks for: all Jobs, or any, of the replicated jobs it names, or of all."""
    policy = jobset["spec"].get("successPolicy") or {}
    targets = policy.get("targetReplicatedJobs") or [r["name"] for r in _replicated_jobs(jobset)]
    done = sum(is_true(job, "Complete") and label(job, _REPLICATED_JOB) in targets for job in jobs)
    expected = sum(_replicas(r) for r in _replicated_jobs(jobset) if r["name"] in targets)
    return done > 0 and done >= (1 if policy.get("operator") == "Any" else expected)


def _set_condition(status: dict[str, Any], kind: str, holds: bool, why: tuple[str, str], now: Instant) -> None:
    """Set a condition; one that never was true is not told to be false."""
    conditions = status.get("conditions") or []
    if holds or any(c["type"] == kind for c in conditions):
        reason, message = why
        status["conditions"] = with_condition(
            conditions, type=kind, status=holds, reason=reason, message=message, now=now
        )


def _condition_events(key: Key, jobset: Obj, status: Mapping[str, Any]) -> list[EventRecord]:
    """An event for each condition that changed."""
    old = (jobset.get("status") or {}).get("conditions") or ()
    changed = [c for c in status.get("conditions") or () if c not in old]
    return [EventRecord(key, "Normal", c["reason"], c["message"]) for c in changed]


# --- the child Jobs ---


def _missing_jobs(jobset: Obj, jobs: Sequence[Obj]) -> list[Write]:
    there = {job["metadata"]["name"] for job in jobs}
    return [
        Create(with_defaults(_child(jobset, replicated, index)))
        for replicated in _replicated_jobs(jobset)
        for index in range(_replicas(replicated))
        if _child_name(jobset, replicated, index) not in there
    ]


def _suspensions(jobs: Sequence[Obj]) -> list[Write]:
    running = [job for job in jobs if not has_ended(job) and not job["spec"].get("suspend")]
    return [Update(with_path(job, ("spec", "suspend"), True)) for job in running]


def _resumptions(jobset: Obj, jobs: Sequence[Obj]) -> list[Write]:
    """Jobs let go take over what was put into the JobSet's templates meanwhile, once their start time is cleared."""
    templates = {r["name"]: r["template"]["spec"]["template"] for r in _replicated_jobs(jobset)}
    writes: list[Write] = []
    for job in jobs:
        if has_ended(job) or not job["spec"].get("suspend"):
            continue
        if (job.get("status") or {}).get("startTime"):
            writes.append(UpdateStatus(with_path(job, ("status", "startTime"), None)))
            continue
        template = templates.get(label(job, _REPLICATED_JOB) or "")
        merged = job["spec"]["template"] if template is None else _merged(job["spec"]["template"], template)
        spec = {**job["spec"], "template": merged, "suspend": False}
        writes.append(Update({**job, "spec": spec}))
    return writes


def _merged(template: Obj, source: Obj) -> Obj:
    """A Job's pod template with the scheduling directives of the JobSet's; what others put there stays."""
    for path in (("metadata", "labels"), ("metadata", "annotations"), ("spec", "nodeSelector")):
        added = (source.get(path[0]) or {}).get(path[1]) or {}
        old = (template.get(path[0]) or {}).get(path[1]) or {}
        if added:
            template = with_path(template, path, {**old, **added})
    for name in ("tolerations", "schedulingGates"):
        old_list = (template.get("spec") or {}).get(name) or []
        extra = [item for item in (source.get("spec") or {}).get(name) or () if item not in old_list]
        if extra:
            template = with_path(template, ("spec", name), [*old_list, *extra])
    return template


def _child(jobset: Obj, replicated: Mapping[str, Any], index: int) -> dict[str, Any]:
    """The Job of one replica."""
    template = replicated["template"]
    marks = _marks(jobset, replicated, index)
    spec = {**template["spec"], "suspend": bool(jobset["spec"].get("suspend"))}
    spec["template"] = _marked(spec["template"], jobset, marks)
    network = jobset["spec"].get("network") or {}
    if network.get("enableDNSHostnames"):
        subdomain = network.get("subdomain") or jobset["metadata"]["name"]
        spec["template"] = with_path(spec["template"], ("spec", "subdomain"), subdomain)
    metadata = _marked({"metadata": template.get("metadata") or {}}, jobset, marks)["metadata"]
    names = {"name": _child_name(jobset, replicated, index), "namespace": jobset["metadata"].get("namespace", "")}
    owner = {"apiVersion": jobset["apiVersion"], "kind": "JobSet", "name": jobset["metadata"]["name"]}
    owner |= {"uid": jobset["metadata"]["uid"], "controller": True, "blockOwnerDeletion": True}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {**metadata, **names, "ownerReferences": [owner]},
        "spec": spec,
    }


def _marked(obj: Obj, jobset: Obj, marks: Mapping[str, str]) -> dict[str, Any]:
    """A Job or pod template with the labels and annotations that tell its place in the JobSet."""
    metadata = dict(obj.get("metadata") or ())
    exclusive = (jobset["metadata"].get("annotations") or {}).get(_EXCLUSIVE)
    metadata["labels"] = {**(metadata.get("labels") or {}), **marks}
    metadata["annotations"] = {**(metadata.get("annotations") or {}), **marks}
    if exclusive is not None:
        metadata["annotations"][_EXCLUSIVE] = exclusive
    return {**obj, "metadata": metadata}


def _marks(jobset: Obj, replicated: Mapping[str, Any], index: int) -> dict[str, str]:
    metadata, group = jobset["metadata"], replicated.get("groupName") or _DEFAULT_GROUP
    everybody = _replicated_jobs(jobset)
    group_members = [r for r in everybody if (r.get("groupName") or _DEFAULT_GROUP) == group]
    full_name = f"{metadata.get('namespace', '')}/{_child_name(jobset, replicated, index)}"
    values = {
        "jobset-name": metadata["name"],
        "jobset-uid": metadata["uid"],
        "replicatedjob-name": replicated["name"],
        "restart-attempt": str((jobset.get("status") or {}).get("restarts", 0)),
        "replicatedjob-replicas": str(_replicas(replicated)),
        "global-replicas": str(sum(map(_replicas, everybody))),
        "job-index": str(index),
        "job-key": hashlib.sha1(full_name.encode(), usedforsecurity=False).hexdigest(),
        "job-global-index": str(_place(everybody, replicated) + index),
        "group-name": group,
        "group-replicas": str(sum(map(_replicas, group_members))),
        "job-group-index": str(_place(group_members, replicated) + index),
    }
    return {f"{_DOMAIN}/{name}": value for name, value in values.items()}


def _place(among: Sequence[Mapping[str, Any]], replicated: Mapping[str, Any]) -> int:
    """How many Jobs come before those of a replicated job."""
    names = [r["name"] for r in among]
    return sum(map(_replicas, among[: names.index(replicated["name"])]))


def _child_name(jobset: Obj, replicated: Mapping[str, Any], index: int) -> str:
    return f"{jobset['metadata']['name']}-{replicated['name']}-{index}"


def _replicated_jobs(jobset: Obj) -> Sequence[Mapping[str, Any]]:
    return jobset["spec"].get("replicatedJobs") or ()


def _replicas(replicated: Mapping[str, Any]) -> int:
    replicas: int = replicated.get("replicas", 1)
    return replicas
