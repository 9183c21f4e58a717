"""Jobs: status counts match the pods, suspension matches admission, and a finished Workload holds nothing."""

from collections.abc import Iterator

from batchyard.api import scheme, well_known
from batchyard.api.meta import Key, Obj, controller_of, is_true, key_of, label
from batchyard.api.views.pods import FAILED, RUNNING, SUCCEEDED, phase, pod_view
from batchyard.api.views.workload import WorkloadView, workload_view
from batchyard.interfaces.client import EventType, WatchEvent
from batchyard.sim.invariants.invariant import Invariant, WorldView


class JobsCountRight(Invariant):
    """A Job counts each pod once, no more than ended that way, and no more successes than its completions."""

    name = "jobs_count_right"

    def __init__(self, scene: WorldView) -> None:
        super().__init__(scene)
        #: By the uid of a Job, the uids of its pods that succeeded, and of those that failed or were deleted.
        self._well: dict[str, dict[str, None]] = {}
        self._badly: dict[str, dict[str, None]] = {}
        self._changed: dict[Key, None] = {}

    def look(self, event: WatchEvent) -> None:
        """Record pods that end, and Jobs that change."""
        if event.key.kind == scheme.JOB:
            self._changed[event.key] = None
            self._look_back(event)
        owner = controller_of(event.obj) if event.key.kind == scheme.POD else None
        if owner is None:
            return
        uid = event.obj["metadata"]["uid"]
        if phase(event.obj) == SUCCEEDED:
            self._well.setdefault(owner["uid"], {})[uid] = None
        elif phase(event.obj) == FAILED or "deletionTimestamp" in event.obj["metadata"] or _is_gone(event):
            self._badly.setdefault(owner["uid"], {})[uid] = None

    def settle(self) -> None:
        """Check the counts of changed Jobs."""
        for key in self._changed:
            job = self.scene.world.client.get(key)
            for what in () if job is None else self._faults(job):
                self.violate(f"{key}: {what}", key)
        self._changed.clear()

    def finish(self) -> None:
        """Check that an ended Job has no active pods."""
        for job in self.scene.world.objects(scheme.JOB) if self.is_at_rest else ():
            status, name = job.get("status") or {}, job["metadata"]["name"]
            ended = is_true(status, "Complete") or is_true(status, "Failed")
            if ended and (status.get("active") or status.get("terminating")):
                what = f"{name} has ended and counts {status.get('active')} pods that run"
                self.violate(what, Key(scheme.JOB, job["metadata"]["namespace"], name))

    def _faults(self, job: Obj) -> Iterator[str]:
        spec, status, uid = job["spec"], job.get("status") or {}, job["metadata"]["uid"]
        succeeded, failed, active = (status.get(field) or 0 for field in ("succeeded", "failed", "active"))
        well, badly = len(self._well.get(uid, ())), len(self._badly.get(uid, ()))
        if succeeded > well:
            yield f"{succeeded} are counted as succeeded, {well} succeeded"
        if failed > badly:
            yield f"{failed} are counted as failed, {badly} failed"
        if succeeded > spec.get("completions", succeeded):
            yield f"{succeeded} succeeded, {spec['completions']} are its completions"
        if active > spec.get("parallelism", 1):
            yield f"{active} are active, {spec.get('parallelism', 1)} may be"
        if spec.get("completionMode") == "Indexed" and succeeded != _count(status.get("completedIndexes") or ""):
            yield f"{succeeded} succeeded, and the indexes {status.get('completedIndexes')}"
        if is_true(status, "Complete") and "successPolicy" not in spec and succeeded < spec.get("completions", 0):
            yield f"it is complete with {succeeded} of {spec['completions']}"

    def _look_back(self, event: WatchEvent) -> None:
        """Check that counts never decrease."""
        if event.old is None:
            return
        for field in ("succeeded", "failed"):
            before, after = ((obj.get("status") or {}).get(field) or 0 for obj in (event.old, event.obj))
            if after < before:
                self.violate(f"{event.key}: {field} was {before} and is {after}", event.key)


def _is_gone(event: WatchEvent) -> bool:
    return event.type is EventType.DELETED


def _count(indexes: str) -> int:
    """Return the number of indexes in a text such as `0,2-4`."""
    ends = [part.split("-") for part in indexes.split(",") if part]
    return sum(int(end[-1]) - int(end[0]) + 1 for end in ends)


# --- no job runs without admission ---
#
# A Job or JobSet with a queue runs only while its Workload is admitted.


_KINDS = (scheme.JOB, scheme.JOB_SET)
_ENDED = ("Complete", "Completed", "Failed")


class NoJobRunsWithoutAdmission(Invariant):
    """A Job or JobSet with a queue runs only while its Workload is admitted."""

    name = "no_job_runs_without_admission"

    def look(self, event: WatchEvent) -> None:
        """Check that a job that starts is admitted."""
        if event.key.kind in _KINDS and event.type is not EventType.DELETED and _runs(event.obj):
            was_running = event.old is not None and _runs(event.old)
            if not was_running and not self._is_admitted(event.obj):
                self.violate(f"{event.key} starts and is not admitted", event.key)

    def settle(self) -> None:
        """Check that running jobs are admitted."""
        for kind in _KINDS:
            for job in self.scene.world.objects(kind):
                if _runs(job) and not self._is_admitted(job):
                    self.violate(f"{key_of(job)} runs and is not admitted", key_of(job))

    def _is_admitted(self, job: Obj) -> bool:
        """Whether the Workload of a job is admitted, by the delivered events."""
        return any(view.admitted and not view.finished for view in self._workloads(job["metadata"]))

    def _workloads(self, of: Obj) -> list[WorkloadView]:
        owned = self.scene.world.client.owned_by(of["uid"], of["namespace"])
        return [workload_view(obj) for obj in owned if key_of(obj).kind == scheme.WORKLOAD]


def _runs(job: Obj) -> bool:
    if controller_of(job) is not None or not label(job, well_known.QUEUE_NAME) or job["spec"].get("suspend"):
        return False
    conditions = (job.get("status") or {}).get("conditions") or ()
    return not any(c["type"] in _ENDED and c["status"] == "True" for c in conditions)


# --- no pod without admission ---
#
# No pod of a job with a queue is bound, or starts to run, while its Workload holds no quota.


class NoPodWithoutAdmission(Invariant):
    """No pod of a job with a queue is bound or starts without quota."""

    name = "no_pod_without_admission"

    def __init__(self, scene: WorldView) -> None:
        super().__init__(scene)
        self._begun: dict[Key, None] = {}

    def look(self, event: WatchEvent) -> None:
        """Record pods that were bound or started to run."""
        if event.key.kind != scheme.POD or event.type is EventType.DELETED:
            return
        new, old = pod_view(event.obj), None if event.old is None else pod_view(event.old)
        is_bound = new.node_name and not (old and old.node_name)
        runs = new.phase == RUNNING and not (old and old.phase == RUNNING)
        if is_bound or runs:
            self._begun[event.key] = None

    def settle(self) -> None:
        """Check that they have quota, unless they are being deleted."""
        for key in self._begun:
            pod = self.scene.world.client.get(key)
            root = None if pod is None or "deletionTimestamp" in pod["metadata"] else self._root(pod)
            if root is not None and label(root, well_known.QUEUE_NAME) and not self._has_quota(root):
                self.violate(f"{key} has begun, and its job has no quota", key)
        self._begun.clear()

    def _root(self, obj: Obj) -> Obj | None:
        """Return the topmost owner of a pod, or the pod itself without one; None if an owner is deleted."""
        client = self.scene.world.client
        owner = controller_of(obj)
        kind = None if owner is None else {"Job": scheme.JOB, "JobSet": scheme.JOB_SET}.get(owner["kind"])
        if owner is None or kind is None:
            return obj
        above = client.get(Key(kind, obj["metadata"]["namespace"], owner["name"]))
        return None if above is None or "deletionTimestamp" in above["metadata"] else self._root(above)

    def _has_quota(self, root: Obj) -> bool:
        metadata = root["metadata"]
        owned = self.scene.world.client.owned_by(metadata["uid"], metadata["namespace"])
        return any(workload_view(obj).quota_reserved for obj in owned if obj["kind"] == "Workload")


# --- finished holds nothing ---
#
# A finished Workload holds no quota, waits in no queue, and stays finished.


class FinishedHoldsNothing(Invariant):
    """A finished Workload holds no quota, waits in no queue, and stays finished."""

    name = "finished_holds_nothing"

    def look(self, event: WatchEvent) -> None:
        """Check that a finished Workload stays finished."""
        if event.key.kind != scheme.WORKLOAD or event.old is None or event.type is EventType.DELETED:
            return
        before, after = workload_view(event.old), workload_view(event.obj)
        if before.finished and not after.finished:
            self.violate(f"{event.key} had finished and is not finished any more", event.key)

    def settle(self) -> None:
        """Check that the scheduler's quota and queues do not contain finished Workloads."""
        index = self.scene.world.platform.index
        for view in self.ledger.workloads.values():
            if not view.finished:
                continue
            key = Key(scheme.WORKLOAD, view.namespace, view.name)
            if index.snapshot.holder(view.key) is not None:
                self.violate(f"{view.key} has finished and holds quota", key)
            if any(queue.get(view.key) is not None for queue in index.queue_manager.pending.values()):
                self.violate(f"{view.key} has finished and waits", key)
