"""Invariant of jobs of described kinds, such as PyTorchJobs: they run only while their Workload is admitted."""

from batchyard.api import scheme
from batchyard.api.meta import Key, Obj, controller_of, group_kind, key_of
from batchyard.api.views.workload import workload_view
from batchyard.interfaces.client import EventType, WatchEvent
from batchyard.jobs.described.kinds import find_integration
from batchyard.sim.invariants.invariant import Invariant, WorldView


class DescribedJobsRunWithAdmission(Invariant):
    """Invariant: a managed job of a described kind is unsuspended only while its Workload is admitted."""

    name = "described_jobs_run_with_admission"

    def __init__(self, world_view: WorldView) -> None:
        super().__init__(world_view)
        self._managed_jobs = world_view.world.scenario.kueue.managed_jobs
        self._running: dict[Key, None] = {}

    def check_event(self, event: WatchEvent) -> None:
        """Record whether a changed job runs, and check that the Workload of a starting job is admitted."""
        if scheme.is_built_in(event.key.kind):
            return
        if event.type is EventType.DELETED or not self._is_running(event.obj):
            self._running.pop(event.key, None)
            return
        if event.key not in self._running and not self._is_admitted(event.obj):
            self.violate(f"job {event.key} starts, but its Workload is not admitted", event.key)
        self._running[event.key] = None

    def end_instant(self) -> None:
        """Check that the Workloads of all running jobs are admitted."""
        for key in self._running:
            job = self.world_view.world.client.get(key)
            if job is not None and not self._is_admitted(job):
                self.violate(f"job {key} runs, but its Workload is not admitted", key)

    def finish(self) -> None:
        """Check that no job of a described kind with a queue name is left suspended with an admitted Workload."""
        for kind in self._managed_jobs.kinds:
            if scheme.is_built_in(kind) or find_integration(kind, {}) is None:
                continue
            for job in self.world_view.world.objects(kind):
                is_suspended = self._is_managed(job) and not self._is_running(job) and not self._has_ended(job)
                if self.is_at_rest and is_suspended and self._is_admitted(job):
                    self.violate(f"job {key_of(job)} is suspended, but its Workload is admitted", key_of(job))

    def _is_managed(self, job: Obj) -> bool:
        is_root = controller_of(job) is None and "deletionTimestamp" not in job["metadata"]
        return is_root and self._managed_jobs.has_kind_of(job) and bool(self._managed_jobs.names(job))

    def _is_running(self, job: Obj) -> bool:
        integration = find_integration(group_kind(job), self._managed_jobs.job_kinds)
        if integration is None or not self._is_managed(job) or integration.is_ignored(job):
            return False
        return not integration.is_suspended(job) and not self._has_ended(job)

    def _has_ended(self, job: Obj) -> bool:
        integration = find_integration(group_kind(job), self._managed_jobs.job_kinds)
        return integration is not None and integration.completion(job) is not None

    def _is_admitted(self, job: Obj) -> bool:
        metadata = job["metadata"]
        owned_objects = self.world_view.world.client.owned_by(metadata["uid"], metadata["namespace"])
        workloads = [workload_view(obj) for obj in owned_objects if key_of(obj).kind == scheme.WORKLOAD]
        return any(workload.admitted and not workload.finished for workload in workloads)
