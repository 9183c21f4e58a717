"""The Kueue integration of JobSets. Source: pkg/controller/jobs/jobset/jobset_controller.go of Kueue."""

from collections.abc import Mapping, Sequence
from typing import Any

from batchyard.api import scheme, well_known
from batchyard.api.meta import Obj, with_path
from batchyard.api.views.node import pods_running_at_once
from batchyard.interfaces.client import Update, Write
from batchyard.jobframework import workloads


class JobSetIntegration:
    """The integration of JobSets: a pod set for each replicated job, with the pods of all its replicas."""

    kind = scheme.JOB_SET

    def is_suspended(self, job: Obj) -> bool:
        """Report whether the JobSet is suspended; a stop restores its templates in the same write."""
        return job["spec"].get("suspend") is True

    def is_active(self, job: Obj) -> bool:
        """Report whether the JobSet has active Jobs."""
        return any(status.get("active") for status in _replicated_statuses(job))

    def pods_ready(self, job: Obj) -> bool:
        """Report whether all Jobs of the JobSet are ready or have succeeded."""
        replicas = sum(replicated.get("replicas", 1) for replicated in job["spec"].get("replicatedJobs") or ())
        ready = sum(status.get("ready", 0) + status.get("succeeded", 0) for status in _replicated_statuses(job))
        return bool(ready == replicas)

    def ending(self, job: Obj) -> workloads.JobCompletion | None:
        """Return the outcome from the Completed or Failed condition; None before the JobSet has ended."""
        condition = workloads.condition_true(job, "Completed", "Failed")
        if condition is None:
            return None
        return workloads.JobCompletion(condition["type"] == "Completed", condition.get("message", ""))

    def templates(self, job: Obj) -> Sequence[Mapping[str, Any]]:
        """Return the pod template of each replicated job."""
        return [_template(replicated) for replicated in job["spec"].get("replicatedJobs") or ()]

    def pod_sets(self, job: Obj) -> list[dict[str, Any]]:
        """Return the pod sets, in the order of the replicated jobs."""
        return [_pod_set(replicated) for replicated in job["spec"].get("replicatedJobs") or ()]

    def reclaimable_pods(self, job: Obj) -> list[dict[str, Any]]:
        """Return the pods of succeeded replicas, which no longer need quota."""
        succeeded = {status["name"]: status.get("succeeded", 0) for status in _replicated_statuses(job)}
        return [
            {"name": replicated["name"], "count": done * pods_running_at_once(replicated["template"]["spec"])}
            for replicated in job["spec"].get("replicatedJobs") or ()
            if 0 < (done := succeeded.get(replicated["name"], 0)) <= replicated.get("replicas", 1)
        ]

    def started(self, job: Obj, injections: Sequence[workloads.PodSetInfo]) -> Obj:
        """Return the unsuspended JobSet with the injected pod set settings."""
        replicated_jobs = job["spec"].get("replicatedJobs") or ()
        if len(injections) != len(replicated_jobs):
            expected = f"expecting {len(replicated_jobs)} podset, got {len(injections)}"
            raise workloads.InvalidPodSetInfo(f"invalid podset infos: {expected}")
        templates = [workloads.inject(_template(r), i) for r, i in zip(replicated_jobs, injections, strict=True)]
        return _with_templates(with_path(job, ("spec", "suspend"), False), templates)

    def stop(self, job: Obj, originals: Sequence[workloads.PodSetInfo]) -> Write | None:
        """Return the write that suspends the JobSet and restores its original templates."""
        if self.is_suspended(job):
            return None
        stopped: Obj = with_path(job, ("spec", "suspend"), True)
        replicated_jobs = job["spec"].get("replicatedJobs") or ()
        if len(originals) == len(replicated_jobs):
            templates = [workloads.restore(_template(r), i) for r, i in zip(replicated_jobs, originals, strict=True)]
            stopped = _with_templates(stopped, templates)
        return Update(stopped)


def _replicated_statuses(job: Obj) -> Sequence[Mapping[str, Any]]:
    return (job.get("status") or {}).get("replicatedJobsStatus") or ()


def _template(replicated: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the pod template of a replicated job's Job template."""
    template: Mapping[str, Any] = replicated["template"]["spec"]["template"]
    return template


def _with_templates(job: Obj, templates: Sequence[Mapping[str, Any]]) -> Obj:
    path = ("template", "spec", "template")
    replicated_jobs = job["spec"]["replicatedJobs"]
    changed = [with_path(r, path, template) for r, template in zip(replicated_jobs, templates, strict=True)]
    return with_path(job, ("spec", "replicatedJobs"), changed)


def _pod_set(replicated: Mapping[str, Any]) -> dict[str, Any]:
    template, replicas = _template(replicated), replicated.get("replicas", 1)
    topology = workloads.topology_request(
        template,
        podIndexLabel=well_known.COMPLETION_INDEX,
        subGroupIndexLabel=well_known.JOB_INDEX,
        subGroupCount=replicas,
    )
    return {
        "name": replicated["name"],
        "template": workloads.without_duplicate_env(template),
        "count": replicas * pods_running_at_once(replicated["template"]["spec"]),
        "topologyRequest": topology,
    }
