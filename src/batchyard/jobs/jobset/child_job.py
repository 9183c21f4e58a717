"""Child Jobs of a JobSet, and the headless Service for their pods.

Labels and annotations of the same names give the position of a Job and its pods in the JobSet.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from batchyard.api import well_known
from batchyard.api.defaults import with_defaults
from batchyard.api.meta import Obj, controller_reference
from batchyard.api.schema import completed
from batchyard.jobs.jobset.spec import (
    group_of,
    has_host_names,
    is_suspended,
    job_name,
    replicas_of,
    replicated_jobs,
    subdomain,
)

#: Tolerates the taint of nodes that are manually reserved for one Job each.
_TOLERATION: Final = {"key": well_known.NO_SCHEDULE, "operator": "Exists", "effect": "NoSchedule"}


def child_jobs(jobset: Obj, replicated: Mapping[str, Any], indexes: Iterable[int]) -> list[dict[str, Any]]:
    """Return the Jobs of a replicated job with these indexes."""
    template = replicated["template"]
    exclusive = _exclusive_annotations(jobset, template)
    shared = _shared_marks(jobset, replicated)
    jobs = []
    for index in indexes:
        marks = {**shared, **_own_marks(jobset, replicated, index)}
        metadata = {
            "name": job_name(jobset, replicated, index),
            "namespace": jobset["metadata"].get("namespace", ""),
            "ownerReferences": [controller_reference(jobset)],
            **_marked(template.get("metadata") or {}, marks, exclusive),
        }
        pod_template = _set_apart(metadata, _pod_template(jobset, template, marks, exclusive))
        spec = {**template["spec"], "template": pod_template, "suspend": is_suspended(jobset)}
        job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}
        jobs.append(with_defaults(job))
    return jobs


def headless_service(jobset: Obj) -> dict[str, Any]:
    """Return the headless Service for the host names of the pods."""
    metadata = jobset["metadata"]
    not_ready = jobset["spec"]["network"].get("publishNotReadyAddresses")
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": subdomain(jobset),
            "namespace": metadata.get("namespace", ""),
            "ownerReferences": [controller_reference(jobset)],
        },
        "spec": {
            "clusterIP": "None",
            "selector": {well_known.JOB_SET_NAME: metadata["name"]},
            "publishNotReadyAddresses": True if not_ready is None else not_ready,
        },
    }


# --- the pods of a Job ---


def _pod_template(jobset: Obj, template: Obj, marks: Mapping[str, str], exclusive: Mapping[str, str]) -> dict[str, Any]:
    """Return the pod template with the Job's marks and the subdomain for host names."""
    own = completed("PodTemplateSpec", template["spec"]["template"])
    metadata, spec = own.get("metadata") or {}, dict(own.get("spec") or ())
    if has_host_names(jobset):
        spec["subdomain"] = subdomain(jobset)
    return {**own, "metadata": {**metadata, **_marked(metadata, marks, exclusive)}, "spec": spec}


def _set_apart(metadata: Obj, pod_template: dict[str, Any]) -> dict[str, Any]:
    """Return the pod template with selector and toleration of nodes reserved for the Job, if it requests such nodes."""
    annotations = metadata["annotations"]
    if well_known.EXCLUSIVE_TOPOLOGY not in annotations or well_known.NODE_SELECTOR_STRATEGY not in annotations:
        return pod_template
    spec = pod_template["spec"]
    node = {well_known.NAMESPACED_JOB: f"{metadata['namespace']}_{metadata['name']}"}
    selector = {**(spec.get("nodeSelector") or {}), **node}
    tolerations = [*(spec.get("tolerations") or ()), _TOLERATION]
    return {**pod_template, "spec": {**spec, "nodeSelector": selector, "tolerations": tolerations}}


# --- position labels ---


def _marked(metadata: Obj, marks: Mapping[str, str], exclusive: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Return the labels and annotations of a Job or its pods: their own, and those of their position."""
    return {
        "labels": {**(metadata.get("labels") or {}), **marks},
        "annotations": {**(metadata.get("annotations") or {}), **marks, **exclusive},
    }


def _shared_marks(jobset: Obj, replicated: Mapping[str, Any]) -> dict[str, str]:
    """Return the marks shared by the Jobs of a replicated job."""
    metadata, everybody = jobset["metadata"], replicated_jobs(jobset)
    marks = {
        well_known.JOB_SET_NAME: metadata["name"],
        well_known.JOB_SET_UID: metadata["uid"],
        well_known.REPLICATED_JOB_NAME: replicated["name"],
        well_known.RESTART_ATTEMPT: str((jobset.get("status") or {}).get("restarts", 0)),
        well_known.REPLICATED_JOB_REPLICAS: str(replicas_of(replicated)),
        well_known.GLOBAL_REPLICAS: str(sum(map(replicas_of, everybody))),
        well_known.JOB_GROUP_NAME: group_of(replicated),
        well_known.JOB_GROUP_REPLICAS: str(sum(map(replicas_of, _group(jobset, replicated)))),
    }
    coordinator = jobset["spec"].get("coordinator")
    if coordinator is not None:
        marks[well_known.COORDINATOR] = _endpoint(jobset, coordinator)
    return marks


def _own_marks(jobset: Obj, replicated: Mapping[str, Any], index: int) -> dict[str, str]:
    """Return the marks of the Job with this index."""
    full_name = f"{jobset['metadata'].get('namespace', '')}/{job_name(jobset, replicated, index)}"
    return {
        well_known.JOB_INDEX: str(index),
        well_known.JOB_KEY: hashlib.sha1(full_name.encode(), usedforsecurity=False).hexdigest(),
        well_known.JOB_GLOBAL_INDEX: str(_jobs_before(replicated, replicated_jobs(jobset)) + index),
        well_known.JOB_GROUP_INDEX: str(_jobs_before(replicated, _group(jobset, replicated)) + index),
    }


def _group(jobset: Obj, replicated: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Return the replicated jobs of the same group."""
    group = group_of(replicated)
    return [each for each in replicated_jobs(jobset) if group_of(each) == group]


def _jobs_before(replicated: Mapping[str, Any], among: Sequence[Mapping[str, Any]]) -> int:
    """Return the number of Jobs of the replicated jobs before this one."""
    names = [each["name"] for each in among]
    return sum(map(replicas_of, among[: names.index(replicated["name"])]))


def _endpoint(jobset: Obj, coordinator: Mapping[str, Any]) -> str:
    """Return the host name of the coordinator pod."""
    job = f"{jobset['metadata']['name']}-{coordinator['replicatedJob']}-{coordinator.get('jobIndex', 0)}"
    return f"{job}-{coordinator.get('podIndex', 0)}.{subdomain(jobset)}"


def _exclusive_annotations(jobset: Obj, template: Obj) -> dict[str, str]:
    """Return the annotations for exclusive topology placement; the template takes precedence over the JobSet."""
    found: dict[str, str] = {}
    for metadata in (jobset["metadata"], template.get("metadata") or {}):
        annotations = metadata.get("annotations") or {}
        if well_known.EXCLUSIVE_TOPOLOGY in annotations:
            asked = (well_known.EXCLUSIVE_TOPOLOGY, well_known.NODE_SELECTOR_STRATEGY)
            found.update({name: annotations[name] for name in asked if name in annotations})
    return found
