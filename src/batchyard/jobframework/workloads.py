"""Workloads of jobs: their construction, and the comparison of a Workload with its job."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from batchyard.api import scheme, well_known
from batchyard.api.annotations import whole_number
from batchyard.api.meta import Key, Obj, annotation, controller_of, controller_reference, label, with_metadata
from batchyard.interfaces.client import Write
from batchyard.jobframework.podsets import PodSetInfo, equivalent
from batchyard.scheduling.workload import lifecycle
from batchyard.scheduling.workload.priority import Priority

# --- names ---
#
# Names of Workloads. Clients look them up by name, so they are generated as in Kueue.
#
# Source: pkg/controller/jobframework/workload_names.go.


_NAME_MAX: Final = 253
_HASH_LENGTH: Final = 5


def workload_name(kind: str, group: str, owner: str, uid: str) -> str:
    """Return `<kind>-<owner>-<hash>`; the hash distinguishes owners with the same prefix."""
    prefix = f"{kind.lower()}-{owner}"[: _NAME_MAX - 1 - _HASH_LENGTH]
    content = "\n".join((kind, group, owner, uid)).encode()
    digest = hashlib.sha1(content, usedforsecurity=False).hexdigest()
    return f"{prefix}-{digest[:_HASH_LENGTH]}"


PodSets = Sequence[Mapping[str, Any]]


def make_workload(job: Obj, pod_sets: PodSets, priority: Priority, copied_labels: Sequence[str]) -> dict[str, Any]:
    """Build the Workload of a job."""
    metadata, uid = job["metadata"], job["metadata"].get("uid", "")
    group, _, _ = job["apiVersion"].rpartition("/")
    labels = {name: value for name in copied_labels if (value := label(job, name)) is not None}
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Workload",
        "metadata": {
            "name": workload_name(job["kind"], group, metadata["name"], uid),
            "namespace": metadata.get("namespace", ""),
            "labels": {**labels, well_known.JOB_UID: uid},
            **_annotations(job),
            "finalizers": [well_known.RESOURCE_IN_USE],
            "ownerReferences": [controller_reference(job)],
        },
        "spec": workload_spec(job, pod_sets, priority),
    }


def prebuilt_key(job: Obj) -> Key | None:
    """Return the prebuilt Workload of a job; the annotation takes precedence over the label."""
    name = annotation(job, well_known.PREBUILT_WORKLOAD) or label(job, well_known.PREBUILT_WORKLOAD)
    return Key(scheme.WORKLOAD, job["metadata"].get("namespace", ""), name) if name else None


def taken_by(workload: Obj, job: Obj) -> Obj:
    """Return an unowned Workload as owned by a job."""
    metadata = workload["metadata"]
    labels = {**(metadata.get("labels") or {}), well_known.JOB_UID: job["metadata"].get("uid", "")}
    owners = [*(metadata.get("ownerReferences") or ()), controller_reference(job)]
    return with_metadata(workload, labels=labels, ownerReferences=owners)


def workload_spec(job: Obj, pod_sets: PodSets, priority: Priority) -> dict[str, Any]:
    """Build the spec of a job's Workload."""
    spec: dict[str, Any] = {
        "queueName": label(job, well_known.QUEUE_NAME) or "",
        "podSets": list(pod_sets),
        "priority": priority.value,
        "active": True,
    }
    if priority.class_ref is not None:
        spec["priorityClassRef"] = priority.class_ref
    limit = execution_seconds_max(job)
    if limit is not None:
        spec["maximumExecutionTimeSeconds"] = limit
    return spec


def execution_seconds_max(job: Obj) -> int | None:
    """Return the maximum execution time of a job from its label; invalid values are ignored."""
    limit = whole_number(label(job, well_known.MAX_EXEC_TIME) or "", bits=32)
    return limit if limit is not None and limit > 0 else None


def belongs(workload: Obj, job: Obj) -> bool:
    """Report whether a Workload was created for this job, not for an earlier one of the same name."""
    owner = controller_of(workload)
    return owner is not None and owner["uid"] == job["metadata"].get("uid")


def matches(workload: Obj, job: Obj, pod_sets: PodSets, suspended: bool) -> bool:
    """Report whether a Workload is equivalent to its job.

    A running job has the admitted counts, and tolerations of flavors besides its own.
    """
    spec = workload["spec"]
    if not belongs(workload, job) or spec.get("maximumExecutionTimeSeconds") != execution_seconds_max(job):
        return False
    tolerant = lifecycle.is_admitted(workload)
    if lifecycle.has_quota_reservation(workload):
        if equivalent(pod_sets, _admitted_pod_sets(workload), tolerant):
            return True
        if not suspended:
            return False
    return equivalent(pod_sets, spec["podSets"], tolerant)


def with_gate_of(workload: Obj, job: Obj) -> Obj:
    """Return the Workload with the admission gate of its job; the same object if unchanged."""
    gate = annotation(job, well_known.ADMISSION_GATED_BY) or ""
    if (annotation(workload, well_known.ADMISSION_GATED_BY) or "") == gate:
        return workload
    annotations = dict(workload["metadata"].get("annotations") or ())
    annotations.pop(well_known.ADMISSION_GATED_BY, None)
    if gate:
        annotations[well_known.ADMISSION_GATED_BY] = gate
    return {**workload, "metadata": {**workload["metadata"], "annotations": annotations}}


def _annotations(job: Obj) -> dict[str, Any]:
    """Return the annotations that a Workload copies from its job."""
    annotations = job["metadata"].get("annotations") or {}
    kept = {
        name: value
        for name, value in annotations.items()
        if name.startswith(well_known.PROVISIONING_PREFIX) or (name == well_known.ADMISSION_GATED_BY and value)
    }
    return {"annotations": kept} if kept else {}


def _admitted_pod_sets(workload: Obj) -> list[Mapping[str, Any]]:
    """Return the pod sets with the admitted counts, which partial admission may have reduced."""
    pod_sets = workload["spec"]["podSets"]
    if not any(p.get("minCount") is not None and p["count"] > p["minCount"] for p in pod_sets):
        return list(pod_sets)
    assignments = (workload["status"].get("admission") or {}).get("podSetAssignments") or ()
    counts = {a["name"]: a["count"] for a in assignments if "count" in a}
    return [
        {**p, "count": counts[p["name"]]} if p.get("minCount") is not None and p["name"] in counts else p
        for p in pod_sets
    ]


# --- integration ---
#
# The interface between the framework and a kind of job.
#
# It is Kueue's GenericJob (pkg/controller/jobframework/interface.go), as functions of an object. An integration is
# stateless and independent of Workloads.


class JobCompletion(NamedTuple):
    """The outcome of a finished job."""

    succeeded: bool
    message: str


class GenericJob(Protocol):
    """One kind of job."""

    kind: str

    def is_suspended(self, job: Obj) -> bool:
        """Report whether it is suspended and completely stopped."""

    def is_active(self, job: Obj) -> bool:
        """Report whether it has running pods."""

    def pods_ready(self, job: Obj) -> bool:
        """Report whether all its pods are ready or succeeded."""

    def ending(self, job: Obj) -> JobCompletion | None:
        """Return its outcome if it finished."""

    def templates(self, job: Obj) -> Sequence[Mapping[str, Any]]:
        """Return its current pod templates."""

    def pod_sets(self, job: Obj) -> list[dict[str, Any]]:
        """Return the pod sets of its Workload."""

    def reclaimable_pods(self, job: Obj) -> list[dict[str, Any]]:
        """Return by pod set the pods that will not run again."""

    def started(self, job: Obj, injections: Sequence[PodSetInfo]) -> Obj:
        """Return the unsuspended job with the injections in its templates. Raise InvalidInjection on a conflict."""

    def stop(self, job: Obj, originals: Sequence[PodSetInfo]) -> Write | None:
        """Return the next write to a stopped job with its original templates; None if it is stopped."""


def condition_true(job: Obj, *types: str) -> Mapping[str, Any] | None:
    """Return the first condition of these types that is True."""
    conditions = (job.get("status") or {}).get("conditions") or ()
    return next((c for c in conditions if c["type"] in types and c["status"] == "True"), None)
