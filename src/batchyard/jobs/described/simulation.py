"""A stand-in for the controllers of described kinds of jobs in simulations.

While a job is not suspended, it has one pod for each replica of its pod sets. All pods start together, and no pod is
replaced. The job has failed once a pod has failed, and it has succeeded once all pods have succeeded. The status in
each state is that of the description's `simulatedStatus`. A suspended job has no pods and an empty status.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from batchyard.admission_plugins.built_in import ManagedJobs
from batchyard.api import meta, scheme, well_known
from batchyard.api.meta import Key, Obj
from batchyard.base.instant import Instant
from batchyard.interfaces.client import Create, Delete, EventType, ObjectReader, Reader, UpdateStatus, WatchEvent, Write
from batchyard.interfaces.controller import EventRecord, ReconcileResult
from batchyard.jobs.described.description import InvalidJobKind
from batchyard.jobs.described.integration import DescribedJobIntegration, ExpressionFailed
from batchyard.jobs.described.kinds import find_integration

#: The annotations of a job that its pods inherit.
_INHERITED_ANNOTATIONS: Final = (well_known.RUNTIME, well_known.EXIT_CODE, well_known.CHECKPOINT_EVERY)
#: The most pods of one job that are created.
_PODS_MAX: Final = 100_000


class SimulatedJobs:
    """Runs the pods of jobs of described kinds, and sets the statuses of the jobs."""

    name = "described-jobs"
    rank = 0

    def __init__(self, managed_jobs: ManagedJobs, objects: ObjectReader) -> None:
        self._managed_jobs = managed_jobs
        self._objects = objects
        self.kinds: Sequence[str] = ()
        self._watch_kinds()

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """Return the key of a changed job, or of the job that controls a changed pod."""
        kind = event.key.kind
        if kind == scheme.JOB_KIND:
            self._managed_jobs.observe_job_kind(event)
            self._watch_kinds()
            spec = event.obj["spec"]
            return [meta.key_of(job) for job in self._objects.list(f"{spec['kind']}.{spec['group']}")]
        if kind != scheme.POD:
            return (event.key,) if event.type is not EventType.DELETED else ()
        owner = meta.controller_of(event.obj)
        key = None if owner is None else meta.owner_key(owner, event.key.namespace)
        return (key,) if key is not None and self._is_described(key.kind) else ()

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Return the writes that create or delete the pods of a job, and set its status."""
        job = reader.get(key)
        if job is None or "deletionTimestamp" in job["metadata"]:
            return ReconcileResult()
        try:
            integration = find_integration(key.kind, self._managed_jobs.job_kinds)
            if integration is None:
                return ReconcileResult()
            return _run_job(job, integration.with_objects(self._objects.get), reader)
        except (ExpressionFailed, InvalidJobKind) as error:
            return ReconcileResult([], [EventRecord(key, "Warning", "SimulationFailed", str(error))])

    def _watch_kinds(self) -> None:
        kinds = [*self._managed_jobs.kinds, *self._managed_jobs.job_kinds]
        self.kinds = (scheme.JOB_KIND, scheme.POD, *filter(self._is_described, kinds))

    def _is_described(self, kind: str) -> bool:
        return not scheme.is_built_in(kind) and self._managed_jobs.has_kind(kind)


def _run_job(job: Obj, integration: DescribedJobIntegration, reader: Reader) -> ReconcileResult:
    pods = [each for each in reader.owned_by(job["metadata"]["uid"], job["metadata"]["namespace"]) if _is_pod(each)]
    if integration.is_suspended(job):
        running_pods = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
        if pods:
            return ReconcileResult([Delete(meta.key_of(pod), uid=pod["metadata"]["uid"]) for pod in running_pods])
        return ReconcileResult(_status_writes(job, {}))
    if integration.completion(job) is not None:
        return ReconcileResult()
    planned_pods = {pod["metadata"]["name"]: pod for pod in _pods_of(job, integration)}
    names = {pod["metadata"]["name"] for pod in pods}
    # The pods in a state of a cluster have other names. Their controller has created them all.
    new_pods = [pod for name, pod in planned_pods.items() if name not in names] if names <= planned_pods.keys() else []
    if new_pods:
        status = integration.simulated_status("starting", job)
        return ReconcileResult([*map(Create, new_pods), *_status_writes(job, status)])
    return ReconcileResult(_status_writes(job, integration.simulated_status(_state_of(pods), job)))


def _is_pod(obj: Obj) -> bool:
    return bool(obj["kind"] == "Pod")


def _state_of(pods: Sequence[Obj]) -> str:
    phases = [(pod.get("status") or {}).get("phase") for pod in pods]
    if "Failed" in phases:
        return "failed"
    if all(phase == "Succeeded" for phase in phases):
        return "succeeded"
    is_ready = [phase == "Succeeded" or meta.is_true(pod, "Ready") for pod, phase in zip(pods, phases, strict=True)]
    return "ready" if all(is_ready) else "starting"


def _status_writes(job: Obj, status: Mapping[str, Any] | None) -> list[Write]:
    if status is None or (job.get("status") or {}) == status:
        return []
    return [UpdateStatus({**job, "status": dict(status)})]


def _pods_of(job: Obj, integration: DescribedJobIntegration) -> list[Obj]:
    pods: list[Obj] = []
    for pod_set in integration.simulated_pod_sets(job):
        if len(pods) + pod_set["count"] > _PODS_MAX:
            raise ExpressionFailed(f"the job has more than {_PODS_MAX} pods, and a simulation runs no more")
        index_label = (pod_set.get("topologyRequest") or {}).get("podIndexLabel")
        pods += [_pod(job, pod_set, index, index_label) for index in range(pod_set["count"])]
    return pods


def _pod(job: Obj, pod_set: Mapping[str, Any], index: int, index_label: str | None) -> Obj:
    template = pod_set["template"]
    template_metadata = template.get("metadata") or {}
    labels = {**(template_metadata.get("labels") or {}), **({index_label: str(index)} if index_label else {})}
    job_annotations = job["metadata"].get("annotations") or {}
    inherited = {name: job_annotations[name] for name in _INHERITED_ANNOTATIONS if name in job_annotations}
    metadata = {
        "name": f"{job['metadata']['name']}-{pod_set['name']}-{index}",
        "namespace": job["metadata"]["namespace"],
        "labels": labels,
        "annotations": {**inherited, **(template_metadata.get("annotations") or {})},
        "ownerReferences": [meta.controller_reference(job)],
    }
    spec = {**template["spec"], "restartPolicy": "Never"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
