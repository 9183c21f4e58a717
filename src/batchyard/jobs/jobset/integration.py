"""The Kueue integration of JobSets. Source: pkg/controller/jobs/jobset/jobset_controller.go of Kueue."""

from collections.abc import Mapping, Sequence
from typing import Any

from batchyard.api import scheme, well_known
from batchyard.api.meta import Obj, with_path
from batchyard.api.views.node import parallel_pod_count
from batchyard.interfaces.client import Update, Write
from batchyard.jobframework import workloads
from batchyard.scheduling.workload.adjustments import first_priority_class


class JobSetIntegration:
    """Kueue integration of JobSets: one pod set per replicated job, with the pods of all its replicas."""

    kind = scheme.JOB_SET
    suspend_path: Sequence[str] = workloads.SUSPEND_PATH

    def is_suspended(self, job: Obj) -> bool:
        """Return whether `spec.suspend` of the JobSet is true."""
        return workloads.is_set(job, workloads.SUSPEND_PATH)

    def is_active(self, job: Obj) -> bool:
        """Return whether any replicated job of the JobSet has active Jobs."""
        return any(status.get("active") for status in _replicated_statuses(job))

    def pods_ready(self, job: Obj) -> bool:
        """Return whether all Jobs of the JobSet are ready or have succeeded."""
        replicas = sum(replicated_job.get("replicas", 1) for replicated_job in _replicated_jobs(job))
        ready_count = sum(status.get("ready", 0) + status.get("succeeded", 0) for status in _replicated_statuses(job))
        return bool(ready_count == replicas)

    def completion(self, job: Obj) -> workloads.JobCompletion | None:
        """Return success or failure with the message of the Completed or Failed condition; None if neither is True."""
        condition = workloads.find_true_condition(job, "Completed", "Failed")
        if condition is None:
            return None
        return workloads.JobCompletion(condition["type"] == "Completed", condition.get("message", ""))

    def pod_class(self, job: Obj) -> str:
        """Return the first PriorityClass in the pod templates of the replicated jobs; '' if none names one."""
        return first_priority_class(_pod_template_of(each) for each in _replicated_jobs(job))

    def pod_sets(self, job: Obj) -> list[dict[str, Any]]:
        """Return the pod sets of the JobSet's Workload, in the order of the replicated jobs."""
        return [_pod_set(each) for each in _replicated_jobs(job)]

    def reclaimable_pods(self, job: Obj) -> list[dict[str, Any]]:
        """Return, for each pod set with succeeded Jobs, the number of their pods, which no longer need quota."""
        succeeded_counts = {status["name"]: status.get("succeeded", 0) for status in _replicated_statuses(job)}
        return [
            {"name": each["name"], "count": count * parallel_pod_count(each["template"]["spec"])}
            for each in _replicated_jobs(job)
            if 0 < (count := succeeded_counts.get(each["name"], 0)) <= each.get("replicas", 1)
        ]

    def started_job(self, job: Obj, injections: Sequence[workloads.PodSetInfo]) -> Obj:
        """Return the unsuspended JobSet with the scheduling fields of `injections` in its pod templates.

        Raises InvalidPodSetInfo if the fields conflict, or if there is not one injection for each template.
        """
        replicated_jobs = _replicated_jobs(job)
        if len(injections) != len(replicated_jobs):
            count_mismatch_text = f"expecting {len(replicated_jobs)} podset, got {len(injections)}"
            raise workloads.InvalidPodSetInfo(f"invalid podset infos: {count_mismatch_text}")
        templates = [
            workloads.inject_pod_set_info(_pod_template_of(r), i)
            for r, i in zip(replicated_jobs, injections, strict=True)
        ]
        return _with_templates(with_path(job, ("spec", "suspend"), False), templates)

    def stop(self, job: Obj, pod_set_infos: Sequence[workloads.PodSetInfo]) -> Write | None:
        """Return the write that suspends the JobSet and restores its pod templates; None if already suspended.

        The templates are restored only if `pod_set_infos` has one item for each replicated job.
        """
        if self.is_suspended(job):
            return None
        stopped_jobset: Obj = with_path(job, ("spec", "suspend"), True)
        replicated_jobs = _replicated_jobs(job)
        if len(pod_set_infos) == len(replicated_jobs):
            templates = [
                workloads.restore_pod_set_info(_pod_template_of(r), i)
                for r, i in zip(replicated_jobs, pod_set_infos, strict=True)
            ]
            stopped_jobset = _with_templates(stopped_jobset, templates)
        return Update(stopped_jobset)


def _replicated_jobs(job: Obj) -> Sequence[Mapping[str, Any]]:
    return (job.get("spec") or {}).get("replicatedJobs") or ()


def _replicated_statuses(job: Obj) -> Sequence[Mapping[str, Any]]:
    return (job.get("status") or {}).get("replicatedJobsStatus") or ()


def _pod_template_of(replicated_job: Mapping[str, Any]) -> Mapping[str, Any]:
    template: Mapping[str, Any] = replicated_job["template"]["spec"]["template"]
    return template


def _with_templates(job: Obj, templates: Sequence[Mapping[str, Any]]) -> Obj:
    path = ("template", "spec", "template")
    replicated_jobs = _replicated_jobs(job)
    new_replicated_jobs = [with_path(r, path, template) for r, template in zip(replicated_jobs, templates, strict=True)]
    return with_path(job, ("spec", "replicatedJobs"), new_replicated_jobs)


def _pod_set(replicated_job: Mapping[str, Any]) -> dict[str, Any]:
    template, replicas = _pod_template_of(replicated_job), replicated_job.get("replicas", 1)
    topology = workloads.topology_request(
        template,
        podIndexLabel=well_known.COMPLETION_INDEX,
        subGroupIndexLabel=well_known.JOB_INDEX,
        subGroupCount=replicas,
    )
    return {
        "name": replicated_job["name"],
        "template": workloads.without_duplicate_env(template),
        "count": replicas * parallel_pod_count(replicated_job["template"]["spec"]),
        "topologyRequest": topology,
    }
