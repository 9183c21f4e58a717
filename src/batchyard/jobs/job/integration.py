"""The Kueue integration of batch/v1 Jobs. Source: pkg/controller/jobs/job/job_controller.go of Kueue."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from batchyard.api import scheme, well_known
from batchyard.api.meta import Obj, annotation, is_elastic, parse_boolean, with_metadata, with_path
from batchyard.api.schema import semantic_equality
from batchyard.api.views.node import parallel_pod_count
from batchyard.base.primitives import LruCache
from batchyard.interfaces.client import Update, UpdateStatus, Write
from batchyard.jobframework import workloads
from batchyard.jobs.job.spec import KNOWN_SPECS_MAX, index_count, index_union, parse_indexes

POD_SET: Final = "main"

#: Labels that the Job controller adds to a template, which the Workload omits, except the Job name as in Kueue.
_GENERATED_LABELS: Final = {*well_known.POD_OWNER_LABELS} - {well_known.JOB_NAME}
_POD_TEMPLATE_PATH: Final = ("spec", "template")


class JobIntegration:
    """Kueue integration of batch/v1 Jobs: a Job has one pod set, `main`, with the number of pods that run at once."""

    kind = scheme.JOB
    suspend_path: Sequence[str] = workloads.SUSPEND_PATH

    def __init__(self) -> None:
        #: The pod sets of recently reconciled Jobs, by the id of the spec; a spec never changes.
        self._pod_sets: LruCache[int, tuple[Mapping[str, Any], dict[str, Any]]] = LruCache(KNOWN_SPECS_MAX)

    def is_suspended(self, job: Obj) -> bool:
        """Return whether the Job is suspended and a previous stop by Kueue is complete."""
        return job["spec"].get("suspend") is True and annotation(job, well_known.STOPPING) != "true"

    def is_active(self, job: Obj) -> bool:
        """Return whether the Job has active pods."""
        return bool((job.get("status") or {}).get("active"))

    def pods_ready(self, job: Obj) -> bool:
        """Return whether ready plus succeeded pods reach the number of pods that the Job runs at once."""
        status = job.get("status") or {}
        uncounted_uids = (status.get("uncountedTerminatedPods") or {}).get("succeeded") or ()
        succeeded_count = status.get("succeeded", 0) + len(uncounted_uids)
        return bool(status.get("ready", 0) + succeeded_count >= parallel_pod_count(job["spec"]))

    def completion(self, job: Obj) -> workloads.JobCompletion | None:
        """Return success or failure, with the message of the Complete or Failed condition; None if neither is True."""
        condition = workloads.find_true_condition(job, "Complete", "Failed")
        if condition is None:
            return None
        return workloads.JobCompletion(condition["type"] == "Complete", condition.get("message", ""))

    def pod_class(self, job: Obj) -> str:
        """Return the PriorityClass in the pod template; '' if it names none."""
        name: str = job["spec"]["template"]["spec"].get("priorityClassName") or ""
        return name

    def pod_sets(self, job: Obj) -> list[dict[str, Any]]:
        """Return the only pod set of the Job's Workload, with `minCount` if the Job allows partial admission."""
        spec: Mapping[str, Any] = job["spec"]
        cached = self._pod_sets.get(id(spec))  # the cache keeps the spec, so no other one gets its id
        if cached is None:
            cached = spec, _pod_set_of(spec)
            self._pod_sets.put(id(spec), cached)
        pod_set = cached[1]
        parallelism_min = workloads.minimum_parallelism(job)
        return [pod_set if parallelism_min is None else {**pod_set, "minCount": parallelism_min}]

    def reclaimable_pods(self, job: Obj) -> list[dict[str, Any]]:
        """Return, as `reclaimablePods`, how many parallel pods the remaining completions do not need; [] if none.

        A Job with one pod at a time, or none of whose pods has ended, has no reclaimable pods. If the parallelism
        exceeds the completions, only as many pods as completions hold quota. Kueue counts them since 0.20; before, it
        released the quota of running pods.
        """
        pod_count = parallel_pod_count(job["spec"])
        if pod_count <= 1:
            return []
        completions: int = job["spec"].get("completions", pod_count)
        ended_count = _ended_pod_count(job, completions)
        reclaimable_count = pod_count - max(completions - ended_count, 0)
        if ended_count == 0 or reclaimable_count <= 0:
            return []
        return [{"name": POD_SET, "count": reclaimable_count}]

    def started_job(self, job: Obj, injections: Sequence[workloads.PodSetInfo]) -> Obj:
        """Return the unsuspended Job with the fields of `injections`, and the parallelism of partial admission.

        Raises InvalidPodSetInfo if the fields conflict, or if there is not exactly one injection.
        """
        if len(injections) != 1:
            raise workloads.InvalidPodSetInfo(f"invalid podset infos: expecting 1 podset, got {len(injections)}")
        started_job: Obj = with_path(job, ("spec", "suspend"), False)
        started_job = _with_parallelism(started_job, injections[0].count)
        return with_path(
            started_job, _POD_TEMPLATE_PATH, workloads.inject_pod_set_info(job["spec"]["template"], injections[0])
        )

    def stop(self, job: Obj, pod_set_infos: Sequence[workloads.PodSetInfo]) -> Write | None:
        """Return the next write that stops the Job: suspend, clear startTime, restore the pod template; None when done.

        An annotation marks a Job that is being stopped, so that the stop continues after a restart of the controller.
        """
        if job["spec"].get("suspend") is not True:
            annotations = {**(job["metadata"].get("annotations") or {}), well_known.STOPPING: "true"}
            return Update(with_metadata(with_path(job, ("spec", "suspend"), True), annotations=annotations))
        if (job.get("status") or {}).get("startTime"):
            return UpdateStatus(with_path(job, ("status", "startTime"), None))
        restored_job = _restore_template(job, pod_set_infos)
        return None if restored_job == job else Update(restored_job)


def _pod_set_of(spec: Mapping[str, Any]) -> dict[str, Any]:
    template: Mapping[str, Any] = spec["template"]
    return {
        "name": POD_SET,
        "template": workloads.without_duplicate_env(_without_controller_labels(template)),
        "count": parallel_pod_count(spec),
        "topologyRequest": workloads.topology_request(template, podIndexLabel=well_known.COMPLETION_INDEX),
    }


def _without_controller_labels(template: Mapping[str, Any]) -> Mapping[str, Any]:
    labels = (template.get("metadata") or {}).get("labels") or {}
    user_labels = {name: value for name, value in labels.items() if name not in _GENERATED_LABELS}
    if len(user_labels) == len(labels):
        return template
    return with_path(template, ("metadata", "labels"), user_labels or None)


def _with_parallelism(job: Obj, count: int) -> Obj:
    if workloads.minimum_parallelism(job) is None or is_elastic(job) or job["spec"].get("parallelism", 1) == count:
        return job
    job = with_path(job, ("spec", "parallelism"), count)
    if parse_boolean(annotation(job, well_known.EQUAL_COMPLETIONS) or ""):
        job = with_path(job, ("spec", "completions"), count)
    return job


def _restore_template(job: Obj, pod_set_infos: Sequence[workloads.PodSetInfo]) -> Obj:
    if annotation(job, well_known.STOPPING) is not None:
        job = with_path(job, ("metadata", "annotations", well_known.STOPPING), None)
        if not job["metadata"]["annotations"]:
            job = with_path(job, ("metadata", "annotations"), None)
    if not pod_set_infos:
        return job
    template, original = job["spec"]["template"], pod_set_infos[0]
    labels = (template.get("metadata") or {}).get("labels") or {}
    controller_labels = {name: labels[name] for name in well_known.POD_OWNER_LABELS if name in labels}
    restored_template = workloads.restore_pod_set_info(
        template, replace(original, labels={**original.labels, **controller_labels})
    )
    job = _with_parallelism(job, original.count)
    if semantic_equality(scheme.JOB).is_same("PodTemplateSpec", restored_template, template):
        return job
    return with_path(job, _POD_TEMPLATE_PATH, restored_template)


def _ended_pod_count(job: Obj, completions: int) -> int:
    status = job.get("status")
    if not status:
        return 0
    if job["spec"].get("completionMode") != "Indexed":
        succeeded_count: int = status.get("succeeded", 0)
        return succeeded_count
    if not (status.get("completedIndexes") or status.get("failedIndexes")):
        return 0
    succeeded, failed = (parse_indexes(status.get(name), completions) for name in ("completedIndexes", "failedIndexes"))
    return index_count(index_union(succeeded, failed))
