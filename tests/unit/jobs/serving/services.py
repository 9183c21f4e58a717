"""Deployments and StatefulSets in queues for tests."""

from typing import Any

import make
from batchyard.admission_plugins.built_in import ALL_QUEUED_JOBS, ManagedJobs
from batchyard.api import scheme, well_known
from batchyard.api.meta import Key, Obj, key_of, with_path
from batchyard.jobs.serving.admission import queue_service, service_errors

DEFAULT_QUEUE = make.local_queue("default")
DEFAULT_CLASS = make.workload_priority_class("default", 5)
ELSEWHERE = {well_known.SUSPENDING_PARENT: "leaderworkerset.x-k8s.io/leaderworkerset"}


def service(kind: str = "Deployment", queue: str | None = "lq", cpu: str = "1", **spec: Any) -> Obj:
    """A Deployment or StatefulSet; `labels`, `annotations` and `ready` replicas are not fields of its spec."""
    labels = {**({} if queue is None else {well_known.QUEUE_NAME: queue}), **spec.pop("labels", {})}
    metadata = make.metadata("web", labels=labels, annotations=spec.pop("annotations", {}), uid="uid-web")
    status = {"readyReplicas": spec.pop("ready", 0), "replicas": spec.pop("current", 0)}
    containers = [{"name": "c", "image": "pause", "resources": {"requests": {"cpu": cpu}}}]
    template = {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": containers}}
    spec = {"replicas": 3, "selector": {"matchLabels": {"app": "web"}}, "template": template, **spec}
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": metadata, "spec": spec, "status": status}


def elsewhere(obj: Obj) -> Obj:
    """The StatefulSet of a LeaderWorkerSet."""
    return with_path(obj, ("spec", "template", "metadata", "annotations"), ELSEWHERE)


def completed(obj: Obj, *others: Obj, managed_jobs: ManagedJobs = ALL_QUEUED_JOBS) -> Obj:
    """The object as the webhook completes it, beside other objects."""
    return queue_service(obj, finder(*others), managed_jobs)


def errors(new: Obj, old: Obj | None = None, *others: Obj, managed_jobs: ManagedJobs = ALL_QUEUED_JOBS) -> list[str]:
    """The errors of the webhook for an object, beside other objects."""
    return [f"{each.path}: {each.problem}" for each in service_errors(new, old, finder(*others), managed_jobs)]


def finder(*others: Obj) -> Any:
    """A function that finds these objects."""
    objects = {key_of(each): each for each in others}

    def find(key: Key) -> Obj | None:
        return objects.get(key)

    return find


def template_metadata(obj: Obj) -> tuple[dict[str, str], dict[str, str]]:
    """The labels and the annotations of the pod template."""
    metadata = obj["spec"]["template"]["metadata"]
    return metadata.get("labels") or {}, metadata.get("annotations") or {}


STATEFUL_SET = scheme.STATEFUL_SET
