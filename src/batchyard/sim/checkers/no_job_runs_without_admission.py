"""A Job or JobSet that names a queue runs only while its Workload is admitted."""

from batchyard.api import scheme, well_known
from batchyard.api.meta import Obj, controller_of, key_of, label
from batchyard.api.views.workload import WorkloadView, workload_view
from batchyard.ports.client import EventType, WatchEvent
from batchyard.sim.checkers.law import Law

_KINDS = (scheme.JOB, scheme.JOB_SET)
_ENDED = ("Complete", "Completed", "Failed")


class NoJobRunsWithoutAdmission(Law):
    """See the module."""

    name = "no_job_runs_without_admission"

    def look(self, event: WatchEvent) -> None:
        """It starts only when it is admitted."""
        if event.key.kind in _KINDS and event.type is not EventType.DELETED and _runs(event.obj):
            was_running = event.old is not None and _runs(event.old)
            if not was_running and not self._is_admitted(event.obj):
                self.violate(f"{event.key} starts and is not admitted", event.key)

    def settle(self) -> None:
        """It goes on only while it is admitted."""
        for kind in _KINDS:
            for job in self.scene.world.objects(kind):
                if _runs(job) and not self._is_admitted(job):
                    self.violate(f"{key_of(job)} runs and is not admitted", key_of(job))

    def _is_admitted(self, job: Obj) -> bool:
        """Whether the Workload of a job is admitted, as far as was told."""
        return any(view.admitted and not view.finished for view in self._workloads(job["metadata"]))

    def _workloads(self, of: Obj) -> list[WorkloadView]:
        owned = self.scene.world.client.owned_by(of["uid"], of["namespace"])
        return [workload_view(obj) for obj in owned if key_of(obj).kind == scheme.WORKLOAD]


def _runs(job: Obj) -> bool:
    if controller_of(job) is not None or not label(job, well_known.QUEUE_NAME) or job["spec"].get("suspend"):
        return False
    conditions = (job.get("status") or {}).get("conditions") or ()
    return not any(c["type"] in _ENDED and c["status"] == "True" for c in conditions)
