"""Minimal objects for tests; keywords set the fields that a test depends on."""

from collections.abc import Mapping, Sequence
from typing import Any

from batchyard.api.times import format_micro_time, format_time, parse_time
from batchyard.base.instant import SECOND, Instant

Obj = dict[str, Any]

NOW: Instant = parse_time("2026-01-01T00:00:00Z")
"""The start time of tests."""


def at(seconds: float) -> Instant:
    """The instant this many seconds after the start."""
    return NOW + int(seconds * SECOND)


def stamp(seconds: float = 0) -> str:
    """The text of the instant this many seconds after the start."""
    return format_time(at(seconds))


def micro_stamp(seconds: float = 0) -> str:
    """The text of the instant this many seconds after the start, as metav1.MicroTime."""
    return format_micro_time(at(seconds))


def condition(type: str, status: bool = True, **fields: Any) -> Obj:  # noqa: A002 - the field's name
    """A condition; `since` is its transition time in seconds from the start."""
    since = fields.pop("since", 0)
    return {
        "type": type,
        "status": "True" if status else "False",
        "lastTransitionTime": stamp(since),
        "reason": fields.pop("reason", type),
        "message": fields.pop("message", ""),
        **fields,
    }


def metadata(name: str, namespace: str | None = "team", **fields: Any) -> Obj:
    """The metadata of an object; fields that are None are omitted."""
    own = {"name": name, "namespace": namespace, "uid": f"uid-{name}", "creationTimestamp": stamp(), **fields}
    return {field: value for field, value in own.items() if value is not None}


def pod_template(
    requests: Mapping[str, Any] | None = None, labels: Mapping[str, str] | None = None, **spec: Any
) -> Obj:
    """A pod template of one container."""
    container = {"name": "c", "image": "i", "resources": {"requests": dict(requests or {"cpu": "1"})}}
    template: Obj = {"spec": {"restartPolicy": "Never", "containers": [container], **spec}}
    return {**template, "metadata": {"labels": dict(labels)}} if labels else template


def pod_set(name: str = "main", count: int = 1, **fields: Any) -> Obj:
    """A pod set; its template is that of `pod_template`."""
    return {"name": name, "count": count, "template": pod_template(fields.pop("requests", None)), **fields}


def workload(
    name: str = "wl",
    *,
    queue: str = "lq",
    pod_sets: Sequence[Obj] | None = None,
    conditions: Sequence[Obj] = (),
    status: Mapping[str, Any] | None = None,
    annotations: Mapping[str, str] | None = None,
    **spec: Any,
) -> Obj:
    """A Workload; other keywords are fields of its spec."""
    obj: Obj = {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Workload",
        "metadata": metadata(name, annotations=dict(annotations) if annotations else None),
        "spec": {"queueName": queue, "podSets": list(pod_sets or [pod_set()]), **spec},
    }
    if conditions or status:
        obj["status"] = {**({"conditions": list(conditions)} if conditions else {}), **(status or {})}
    return obj


def admission(cluster_queue: str = "cq", **pod_sets: int) -> Obj:
    """An admission with flavor `spot` for cpu: pod sets by name and count."""
    return {
        "clusterQueue": cluster_queue,
        "podSetAssignments": [
            {"name": name, "count": count, "flavors": {"cpu": "spot"}, "resourceUsage": {"cpu": str(count)}}
            for name, count in (pod_sets or {"main": 1}).items()
        ],
    }


def job(name: str = "job", *, queue: str | None = "lq", labels: Mapping[str, str] | None = None, **spec: Any) -> Obj:
    """A suspended Job of one pod; other keywords are fields of its spec."""
    own = {**({"kueue.x-k8s.io/queue-name": queue} if queue else {}), **(labels or {})}
    annotations = spec.pop("annotations", None)
    defaults = {"suspend": True, "parallelism": 1, "completions": 1, "template": pod_template()}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata(name, labels=own or None, annotations=annotations),
        "spec": {**defaults, **spec},
    }


def replicated_job(name: str = "worker", replicas: int = 1, **job_spec: Any) -> Obj:
    """A replicated job of a JobSet."""
    spec = {"parallelism": 1, "completions": 1, "template": pod_template(), **job_spec}
    return {"name": name, "replicas": replicas, "template": {"spec": spec}}


def jobset(
    name: str = "js",
    *,
    queue: str | None = "lq",
    replicated_jobs: Sequence[Obj] | None = None,
    annotations: Mapping[str, str] | None = None,
    **spec: Any,
) -> Obj:
    """A suspended JobSet of one Job."""
    labels = {"kueue.x-k8s.io/queue-name": queue} if queue else None
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": metadata(name, labels=labels, annotations=dict(annotations) if annotations else None),
        "spec": {"suspend": True, "replicatedJobs": list(replicated_jobs or [replicated_job()]), **spec},
    }


def cluster_queue(name: str = "cq", *, active: bool | None = True, **spec: Any) -> Obj:
    """A ClusterQueue for all namespaces; `active` is the status of its Active condition, None for no condition."""
    obj: Obj = {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "ClusterQueue",
        "metadata": metadata(name, None),
        "spec": {"namespaceSelector": {}, **spec},
    }
    return obj if active is None else {**obj, "status": {"conditions": [condition("Active", active, reason="Ready")]}}


def local_queue(name: str = "lq", *, cluster_queue: str = "cq", **spec: Any) -> Obj:
    """A LocalQueue."""
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "LocalQueue",
        "metadata": metadata(name),
        "spec": {"clusterQueue": cluster_queue, **spec},
    }


def namespace(name: str = "team", **labels: str) -> Obj:
    """A Namespace."""
    return {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": metadata(name, None, labels={"kubernetes.io/metadata.name": name, **labels}),
    }


def flavor(name: str = "spot", *, labels: Mapping[str, str] | None = None, **spec: Any) -> Obj:
    """A ResourceFlavor."""
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "ResourceFlavor",
        "metadata": metadata(name, None),
        "spec": {**({"nodeLabels": dict(labels)} if labels else {}), **spec},
    }


def topology(name: str = "racks") -> Obj:
    """A Topology."""
    spec = {"levels": [{"nodeLabel": "rack"}]}
    return {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Topology", "metadata": metadata(name, None), "spec": spec}


def workload_priority_class(name: str, value: int) -> Obj:
    """A WorkloadPriorityClass."""
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "WorkloadPriorityClass",
        "metadata": metadata(name, None),
        "value": value,
    }


def priority_class(name: str, value: int, *, is_default: bool = False) -> Obj:
    """A PriorityClass of pods."""
    return {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": metadata(name, None),
        "value": value,
        "globalDefault": is_default,
    }


def job_kind(name: str = "trainings.ml.example.com", **spec: Any) -> dict[str, Any]:
    """A JobKind of jobs with a number of workers and one pod template, which never end."""
    described = {"group": "ml.example.com", "version": "v1", "kind": "Training", "resource": "trainings"}
    state = {"suspend": "spec.paused", "active": "false", "ready": "true"}
    pod_sets = [{"name": "workers", "path": "spec", "template": "template", "count": "item.workers"}]
    fields = {**described, **state, "podSets": pod_sets, **spec}
    return {"apiVersion": "jobs.batchyard.dev/v1alpha1", "kind": "JobKind", "metadata": {"name": name}, "spec": fields}
