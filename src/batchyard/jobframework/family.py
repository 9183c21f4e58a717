"""Index of the relations between jobs, their Workloads, child jobs, and the classes and Workloads that they wait for.

It is built only from watch events.
"""

from collections.abc import Callable, Hashable, Iterable
from typing import Final, TypeVar

from batchyard.api import scheme, well_known
from batchyard.api.meta import Key, Obj, controller_of, label
from batchyard.api.views.ownership import owner_key
from batchyard.interfaces.client import EventType, Reader, WatchEvent
from batchyard.jobframework.workloads import GenericJob, prebuilt_key
from batchyard.scheduling.workload.priority import class_key

_CLASSES: Final = (scheme.WORKLOAD_PRIORITY_CLASS, scheme.PRIORITY_CLASS)


class JobRelations:
    """The relations of one kind of job."""

    def __init__(self, integration: GenericJob) -> None:
        self._integration = integration
        self._workloads: dict[Key, dict[Key, None]] = {}
        self._children: dict[str, dict[Key, None]] = {}
        self._by_class: dict[Key, dict[Key, None]] = {}
        self._by_prebuilt: dict[Key, dict[Key, None]] = {}
        #: Admitted jobs that wait for a missing flavor of their admission.
        self._without_flavor: dict[Key, None] = {}

    def note(self, event: WatchEvent) -> Iterable[Key]:
        """Process a change. Return the affected jobs."""
        kind = event.key.kind
        if kind == self._integration.kind:
            return self._note_job(event)
        if kind == scheme.WORKLOAD:
            return self._note_workload(event)
        if kind in _CLASSES and event.type is EventType.ADDED:
            return list(self._by_class.get(event.key, ()))
        if kind == scheme.RESOURCE_FLAVOR and event.type is EventType.ADDED:
            waiting, self._without_flavor = self._without_flavor, {}
            return list(waiting)
        return ()

    def awaits_flavor(self, job: Key) -> None:
        """Reconcile a job again when a flavor is created."""
        self._without_flavor[job] = None

    def workloads_of(self, job: Key, reader: Reader) -> list[Obj]:
        """Return the Workloads created for a job, oldest first."""
        found = [workload for key in self._workloads.get(job, ()) if (workload := reader.get(key)) is not None]
        return sorted(found, key=lambda w: (w["metadata"].get("creationTimestamp", ""), w["metadata"]["name"]))

    def _note_job(self, event: WatchEvent) -> Iterable[Key]:
        _move(self._children, event, _owner_uid)
        _move(self._by_class, event, self._class_of)
        _move(self._by_prebuilt, event, prebuilt_key)
        return (event.key,)

    def _class_of(self, job: Obj) -> Key | None:
        """Return the class that a managed job names; None for a job with an owner."""
        if controller_of(job) is not None or not label(job, well_known.QUEUE_NAME):
            return None
        return class_key(job, self._integration.templates(job))

    def _note_workload(self, event: WatchEvent) -> Iterable[Key]:
        promised = self._by_prebuilt.get(event.key, ())
        if not event.obj["metadata"].get("ownerReferences"):
            if event.old is not None and event.old["metadata"].get("ownerReferences"):
                _move(self._workloads, event, self._job_of)  # its job was deleted and orphaned it
            return list(promised)
        owner = controller_of(event.obj)
        if owner is None:
            return list(promised)
        _move(self._workloads, event, self._job_of)
        children = self._children.get(owner["uid"], ())
        job = self._job_of(event.obj)
        return [*(() if job is None else (job,)), *children, *promised]

    def _job_of(self, workload: Obj) -> Key | None:
        """Return the job of this kind that a Workload was created for."""
        owner = controller_of(workload)
        job = None if owner is None else owner_key(owner, workload["metadata"].get("namespace", ""))
        return job if job is not None and job.kind == self._integration.kind else None


PlaceT = TypeVar("PlaceT", bound=Hashable)


def _move(index: dict[PlaceT, dict[Key, None]], event: WatchEvent, place_of: Callable[[Obj], PlaceT | None]) -> None:
    """Move a key to the place that its object belongs to, if any; empty places are removed."""
    before = None if event.old is None else place_of(event.old)
    after = None if event.type is EventType.DELETED else place_of(event.obj)
    if before is not None and before != after and before in index:
        index[before].pop(event.key, None)
        if not index[before]:
            del index[before]
    if after is not None:
        index.setdefault(after, {})[event.key] = None


def _owner_uid(obj: Obj) -> str | None:
    owner = controller_of(obj)
    return None if owner is None else owner["uid"]
