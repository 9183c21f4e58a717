"""Which pods are a Job's: those that its selector selects, whoever made them.

A pod of nobody that a Job selects becomes the Job's, and one of its own whose labels say something else is given up.
Source: PodControllerRefManager in Kubernetes's pkg/controller.
"""

from collections.abc import Iterable
from typing import Final

from batchyard.api import scheme, well_known
from batchyard.api.meta import Key, Obj, controller_of, controller_reference, label, with_finalizer, with_metadata
from batchyard.api.selectors import selector
from batchyard.core.lifecycle.job.pods import untracked
from batchyard.core.lifecycle.job.selector import with_selector
from batchyard.core.lifecycle.job.spec import is_finished
from batchyard.core.lifecycle.pod import is_terminating
from batchyard.ports.client import EventType, Reader, WatchEvent

_DELETED: Final = EventType.DELETED


class Claims:
    """The pods of nobody, and the Jobs that may want them."""

    def __init__(self) -> None:
        #: By namespace and name of the Job whose label they have, and by namespace alone.
        self._free_pods: dict[tuple[str, str], dict[Key, None]] = {}
        #: By namespace, the unfinished Jobs that brought their own selectors.
        self._choosers: dict[str, dict[Key, None]] = {}

    def observe_job(self, event: WatchEvent) -> None:
        """Take note of a change of a Job."""
        if not _chooses(event.obj):
            return
        choosers = self._choosers.setdefault(event.key.namespace, {})
        if event.type is _DELETED or is_finished(event.obj):
            choosers.pop(event.key, None)
        else:
            choosers[event.key] = None

    def observe_pod(self, event: WatchEvent) -> Iterable[Key]:
        """Take note of a change of a pod; the Jobs that may want it, if it is nobody's."""
        namespace = event.key.namespace
        for name in () if event.old is None else _makers(event.old):
            self._free_pods.get((namespace, name), {}).pop(event.key, None)
        if event.type is _DELETED or controller_of(event.obj) is not None:
            return ()
        for name in _makers(event.obj):
            self._free_pods.setdefault((namespace, name), {})[event.key] = None
        named = [Key(scheme.JOB, namespace, name) for name in _makers(event.obj) if name]
        return [*named, *self._choosers.get(namespace, ())]

    def adoptions(self, job: Obj, reader: Reader) -> list[Obj]:
        """The pods of nobody that a Job takes, as its own."""
        metadata = job["metadata"]
        free = self._free_pods.get((metadata.get("namespace", ""), "" if _chooses(job) else metadata["name"]))
        if not free or "deletionTimestamp" in metadata:
            return []
        pods = [pod for key in free if (pod := reader.get(key)) is not None and not is_terminating(pod)]
        return [_adopted(pod, job) for pod in pods if controller_of(pod) is None and is_selected(pod, job)]


def is_selected(pod: Obj, job: Obj) -> bool:
    """Whether a Job's selector selects a pod."""
    wanted = selector(with_selector(job)["spec"].get("selector"))
    return wanted is not None and wanted.matches(pod["metadata"].get("labels") or {})


def may_be_strayed(event: WatchEvent, owner_uid: str) -> bool:
    """Whether the labels of a pod may say that it is not its Job's; surely not where they are those of all its pods."""
    labels = event.obj["metadata"].get("labels")
    if event.old is None:
        return labels is None or labels.get(well_known.CONTROLLER_UID) != owner_uid
    old = event.old["metadata"].get("labels")
    return labels is not old and labels != old


def given_up(pod: Obj, job: Obj) -> Obj:
    """The pod as nobody's."""
    uid = job["metadata"]["uid"]
    owners = [owner for owner in pod["metadata"].get("ownerReferences") or () if owner["uid"] != uid]
    return untracked(with_metadata(pod, ownerReferences=owners or None))


def _chooses(job: Obj) -> bool:
    """Whether a Job brought its own selector, which may select any pod."""
    return bool(job["spec"].get("manualSelector"))


def _makers(pod: Obj) -> Iterable[str]:
    """The name of the Job that a pod says it is of, and "" for those that select by other labels."""
    name = label(pod, well_known.JOB_NAME)
    return ("",) if name is None else (name, "")


def _adopted(pod: Obj, job: Obj) -> Obj:
    owners = [*(pod["metadata"].get("ownerReferences") or ()), controller_reference(job)]
    return with_finalizer(with_metadata(pod, ownerReferences=owners), well_known.JOB_TRACKING)
