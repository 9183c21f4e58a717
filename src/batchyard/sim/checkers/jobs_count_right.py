"""A Job counts each pod once: no more ended well or badly than it had pods that did, and never more than it wants."""

from collections.abc import Iterator

from batchyard.api import scheme
from batchyard.api.conditions import is_true
from batchyard.api.meta import Key, Obj, controller_of
from batchyard.core.lifecycle.pod import FAILED, SUCCEEDED, phase
from batchyard.ports.client import EventType, WatchEvent
from batchyard.sim.checkers.law import Law, Scene


class JobsCountRight(Law):
    """See the module."""

    name = "jobs_count_right"

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        #: By the uid of a Job, the uids of its pods that ended well, and of those that ended otherwise or were deleted.
        self._well: dict[str, dict[str, None]] = {}
        self._badly: dict[str, dict[str, None]] = {}
        self._changed: dict[Key, None] = {}

    def look(self, event: WatchEvent) -> None:
        """Take note of pods that end, and of Jobs that count."""
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
        """Compare."""
        for key in self._changed:
            job = self.scene.world.client.get(key)
            for what in () if job is None else self._faults(job):
                self.violate(f"{key}: {what}", key)
        self._changed.clear()

    def finish(self) -> None:
        """A Job that has ended has no pods left that run."""
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
            yield f"{succeeded} are said to have succeeded, {well} did"
        if failed > badly:
            yield f"{failed} are said to have failed, {badly} did"
        if succeeded > spec.get("completions", succeeded):
            yield f"{succeeded} succeeded, {spec['completions']} were wanted"
        if active > spec.get("parallelism", 1):
            yield f"{active} are active, {spec.get('parallelism', 1)} may be"
        if spec.get("completionMode") == "Indexed" and succeeded != _count(status.get("completedIndexes") or ""):
            yield f"{succeeded} succeeded, and the indexes {status.get('completedIndexes')}"
        if is_true(status, "Complete") and "successPolicy" not in spec and succeeded < spec.get("completions", 0):
            yield f"it is complete with {succeeded} of {spec['completions']}"

    def _look_back(self, event: WatchEvent) -> None:
        """What was counted stays counted."""
        if event.old is None:
            return
        for field in ("succeeded", "failed"):
            before, after = ((obj.get("status") or {}).get(field) or 0 for obj in (event.old, event.obj))
            if after < before:
                self.violate(f"{event.key}: {field} was {before} and is {after}", event.key)


def _is_gone(event: WatchEvent) -> bool:
    return event.type is EventType.DELETED


def _count(indexes: str) -> int:
    """How many indexes a text such as `0,2-4` names."""
    ends = [part.split("-") for part in indexes.split(",") if part]
    return sum(int(end[-1]) - int(end[0]) + 1 for end in ends)
