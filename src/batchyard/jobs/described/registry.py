"""The described kinds of jobs that batchyard knows: the files in `built_in`, read when such a job is first seen."""

import pkgutil
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from batchyard.api.meta import Key, Obj
from batchyard.api.yaml_documents import read_documents
from batchyard.base.instant import Instant
from batchyard.interfaces.client import Reader, UpdateStatus
from batchyard.interfaces.controller import ReconcileResult
from batchyard.jobframework.reconciler import JobPass, JobReconciler
from batchyard.jobs.described.description import JobKindSpec, parse_job_kind
from batchyard.jobs.described.integration import DescribedJobIntegration
from batchyard.scheduling.workload import lifecycle

_FILES: Final = ("kubeflow.yaml", "ray.yaml")


@cache
def find_described_kind(kind: str) -> DescribedJobIntegration:
    """Return the integration of a kind such as `PyTorchJob.kubeflow.org`. Raises KeyError if no file describes it."""
    return DescribedJobIntegration(built_in_descriptions()[kind])


@cache
def built_in_descriptions() -> Mapping[str, JobKindSpec]:
    """Return the descriptions in batchyard's files, by the kind of their jobs."""
    texts = [(pkgutil.get_data(__package__, f"built_in/{name}") or b"").decode() for name in _FILES]
    specs = [parse_job_kind(document.value) for text in texts for document in read_documents(text)]
    return {spec.group_kind: spec for spec in specs}


class DescribedJobReconciler(JobReconciler):
    """Controller that manages the Workloads of a described kind; it leaves jobs alone that the description excludes."""

    def __init__(self, kind: str, options: Mapping[str, Any]) -> None:
        """Create the controller of the jobs of a kind, with the options of JobReconciler."""
        self._described = find_described_kind(kind)
        super().__init__(self._described, **options)

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Return the writes that a job or its Workloads need now; none for an excluded job."""
        job = reader.get(key)
        if job is not None and self._described.is_ignored(job):
            return ReconcileResult()
        return super().reconcile(key, reader, now)

    def _sync_job(self, job_pass: JobPass, workload: Obj) -> ReconcileResult:
        if lifecycle.is_finished(workload) or not self._described.is_on_hold(job_pass.job):
            return super()._sync_job(job_pass, workload)
        if not lifecycle.has_quota_reservation(workload):
            return ReconcileResult()
        held_workload = lifecycle.set_pending(workload, lifecycle.ON_HOLD, "Job is on hold", job_pass.now)
        return ReconcileResult([UpdateStatus(held_workload)])
