"""Pods in queues for tests, and a small world with their controller."""

from collections.abc import Mapping
from typing import Any

import make
from batchyard.admission_plugins.built_in import ALL_QUEUED_JOBS
from batchyard.api import scheme, well_known
from batchyard.api.meta import Obj, with_path
from batchyard.api.views import queued_pods
from batchyard.jobs.pod.admission import queue_pod
from batchyard.jobs.pod.controller import PodReconciler
from batchyard.scheduling.workload import evictions, lifecycle
from stage import Stage

POD = scheme.POD


def pod(name: str = "pod", cpu: str = "1", *, queue: str | None = "lq", **fields: Any) -> Obj:
    """A new pod that names a queue; the other arguments are labels and annotations."""
    labels = {**({} if queue is None else {well_known.QUEUE_NAME: queue}), **fields.get("labels", {})}
    metadata = make.metadata(name, labels=labels, annotations=fields.get("annotations", {}))
    container = {"name": "c", "image": "pause", "resources": {"requests": {"cpu": cpu}}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}}


def queued(name: str = "pod", cpu: str = "1", **fields: Any) -> Obj:
    """A pod as the webhook completes it."""
    return queue_pod(pod(name, cpu, **fields), lambda _: None, ALL_QUEUED_JOBS)


def member(name: str, count: int = 2, cpu: str = "1", **fields: Any) -> Obj:
    """A pod of the group `group` with this many pods; `annotations` are added."""
    annotations = {well_known.POD_GROUP_COUNT: str(count), **fields.pop("annotations", {})}
    labels = {well_known.POD_GROUP_NAME: "group", **fields.pop("labels", {})}
    created = fields.pop("created", 0)
    obj = queued(name, cpu, labels=labels, annotations=annotations, **fields)
    return with_path(obj, ("metadata", "creationTimestamp"), make.stamp(created))


def in_phase(obj: Obj, phase: str, **status: Any) -> Obj:
    """The pod on a node, in a phase."""
    return {**with_path(obj, ("spec", "nodeName"), "node"), "status": {"phase": phase, **status}}


class PodStage(Stage):
    """A world with the controller of pods."""

    def __init__(self, *objects: Obj, **options: Any) -> None:
        super().__init__(PodReconciler(**options))
        self.put(make.flavor(labels={"zone": "a"}, tolerations=[{"key": "spot", "operator": "Exists"}]), *objects)

    def admit(self, **counts: int) -> None:
        """Admit the only Workload, with these counts for its pod sets or else their own."""
        workload = self.only_workload()
        counts = counts or {each["name"]: each["count"] for each in workload["spec"]["podSets"]}
        self.put(lifecycle.reserve_quota(workload, make.admission("cq", **counts), self.kernel.now(), admitted=True))

    def evict(self, reason: str = "Preempted", message: str = "Preempted to accommodate a workload") -> None:
        """Evict the only Workload."""
        now = self.kernel.now()
        self.put(evictions.evict(self.only_workload(), reason=reason, message=message, now=now))

    def set_phase(self, name: str, phase: str, **status: Any) -> None:
        """Set the phase of a pod, which gets a node."""
        self.put(in_phase(self.get(POD, name), phase, **status))

    def pods(self) -> Mapping[str, Obj]:
        """The pods by name."""
        return {each["metadata"]["name"]: each for each in self.client.list(POD)}

    def gated(self) -> list[str]:
        """The names of the pods with the gate of their admission."""
        return [name for name, each in self.pods().items() if queued_pods.has_admission_gate(each)]

    def finalized(self) -> list[str]:
        """The names of the pods without the finalizer."""
        return [name for name, each in self.pods().items() if not each["metadata"].get("finalizers")]
