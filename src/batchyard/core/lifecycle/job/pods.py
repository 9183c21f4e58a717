"""The pods of a Job, as its controller sees them.

A pod is tracked while it has the finalizer of Jobs: until its end is on record in the Job's status.
Sources: Kubernetes's pkg/controller/job (isPodFailed, getCompletionIndex), pkg/controller (IsPodActive,
IsPodTerminating).
"""

from collections.abc import Iterable
from dataclasses import dataclass

from batchyard.api import well_known
from batchyard.api.meta import Obj, annotation, finalizers_of, without_finalizer
from batchyard.core.lifecycle.job.spec import JobSpec
from batchyard.core.lifecycle.pod import FAILED, SUCCEEDED, is_ready, phase

NO_INDEX = -1


@dataclass(slots=True)
class JobPod:
    """One pod."""

    obj: Obj
    uid: str
    phase: str
    index: int
    tracked: bool
    #: Somebody deleted it; it may still be running.
    deleted: bool

    @property
    def ended(self) -> bool:
        """Whether it will never run again."""
        return self.phase in {SUCCEEDED, FAILED}

    @property
    def active(self) -> bool:
        """Whether it runs, or waits to."""
        return not self.deleted and not self.ended

    @property
    def terminating(self) -> bool:
        """Whether it is on its way out."""
        return self.deleted and not self.ended

    @property
    def ready(self) -> bool:
        """Whether it is ready."""
        return is_ready(self.obj)


def job_pods(pods: Iterable[Obj]) -> list[JobPod]:
    """The views of the pods of a Job."""
    return [_job_pod(pod) for pod in pods]


def has_failed(pod: JobPod, spec: JobSpec) -> bool:
    """Whether it has failed: a pod that is being deleted has, unless the Job waits for its end."""
    return pod.phase == FAILED or (pod.terminating and not spec.waits_for_the_end)


def is_tracked(obj: Obj) -> bool:
    """Whether a pod has the finalizer of Jobs."""
    return well_known.JOB_TRACKING in finalizers_of(obj)


def untracked(obj: Obj) -> Obj:
    """The pod without the finalizer of Jobs."""
    return without_finalizer(obj, well_known.JOB_TRACKING)


def count_noted(obj: Obj, name: str) -> int:
    """The number that an annotation of a pod says; 0 where it says none."""
    text = annotation(obj, name)
    return 0 if text is None else max(0, _index(text))


def _job_pod(obj: Obj) -> JobPod:
    metadata = obj["metadata"]
    text = annotation(obj, well_known.COMPLETION_INDEX)
    return JobPod(
        obj,
        metadata["uid"],
        phase(obj),
        NO_INDEX if text is None else _index(text),
        is_tracked(obj),
        "deletionTimestamp" in metadata,
    )


def _index(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else NO_INDEX
