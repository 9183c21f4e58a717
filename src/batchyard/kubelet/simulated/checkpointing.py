"""Checkpoints of simulated pods: work is saved when containers end, and resumed when they start.

Programs save periodically, so the saved work follows from the start time, however the containers end. A lost machine
loses only the work since the last checkpoint. Saved work is recorded per place (batchyard.api.views.checkpoints) on the
topmost Job or JobSet above the pod. On a JobSet it outlives the Jobs. A finalizer keeps the pod until it is recorded.
"""

from batchyard.api import scheme, well_known
from batchyard.api.meta import Obj, controller_of, finalizers_of, group_kind, with_finalizer, without_finalizer
from batchyard.api.times import parse_time
from batchyard.api.views.checkpoints import (
    Resumption,
    checkpoint_interval,
    is_interchangeable,
    kept_work,
    most_saved,
    place_of,
    resumed_work,
    running_since,
    saved_places,
    saved_work,
    with_resumption,
    with_saved_work,
)
from batchyard.api.views.ownership import owning_jobs
from batchyard.api.views.pod_lifecycle import FAILED, SUCCEEDED, is_terminal, is_terminating, phase
from batchyard.base.instant import Duration, Instant
from batchyard.interfaces.client import Reader, Update, Write


def with_work_finalizer(pod: Obj, reader: Reader) -> Obj:
    """Return a new pod with a finalizer if it saves work; otherwise the pod itself."""
    above = list(owning_jobs(pod, reader.get))
    if not above or checkpoint_interval([pod, *above]) is None:
        return pod
    return with_finalizer(pod, well_known.WORK_FINALIZER)


def is_held(pod: Obj) -> bool:
    """Whether a deleted pod stays until its work is recorded."""
    return is_terminating(pod) and well_known.WORK_FINALIZER in finalizers_of(pod)


def remove_work_finalizer(pod: Obj) -> list[Write]:
    """Return the write that removes the finalizer of a deleted pod."""
    return [Update(without_finalizer(pod, well_known.WORK_FINALIZER))] if is_held(pod) else []


def saved_at_end(pod: Obj, after: Obj, every: Duration, reader: Reader) -> list[Write]:
    """Return the writes that record the work of a pod that has ended."""
    job = _work_owner(pod, reader) if is_terminal(after) else None
    if job is None:
        return []
    if phase(after) == SUCCEEDED and (is_interchangeable(pod) or group_kind(job) != scheme.JOB_SET):
        return _written(job, with_saved_work(job, place_of(pod), 0))  # its Job never recreates it
    return _saved(job, place_of(pod), _work_after(pod, after, every))


def saved_at_loss(pod: Obj, lost_at: Instant, every: Duration, reader: Reader) -> list[Write]:
    """Return the writes that record the work of a pod whose machine is lost."""
    job, started = _work_owner(pod, reader), running_since(pod)
    if job is None or started is None:
        return []
    return _saved(job, place_of(pod), resumed_work(pod) + kept_work(started, every, lost_at))


def resume_from_checkpoint(pod: Obj, after: Obj, every: Duration, reader: Reader, now: Instant) -> Obj:
    """Return the pod after an event; when its containers start they resume from the saved work."""
    if is_terminal(after):
        return after
    work = _work_after(pod, after, every)
    resumed = Resumption(place_of(pod), work) if work else None
    if running_since(after) is not None and running_since(after) != running_since(pod):
        resumed = _most_of(pod, resumed, reader)
    return with_resumption(after, resumed, now)


def _work_after(pod: Obj, after: Obj, every: Duration) -> Duration:
    """Return the saved work of a pod after an event; 0 if it has finished and restarts."""
    started, before = running_since(pod), resumed_work(pod)
    if started is None or running_since(after) == started:
        return before
    container = after["status"]["containerStatuses"][0]
    ended = container["state"].get("terminated") or container["lastState"]["terminated"]
    if "finishedAt" not in ended:  # it was lost, and its work recorded then
        return before
    if ended["exitCode"] == 0 and not is_terminal(after):
        return 0
    return before + kept_work(started, every, parse_time(ended["finishedAt"]))


def _most_of(pod: Obj, own: Resumption | None, reader: Reader) -> Resumption | None:
    """Return where starting containers resume: the most of their own work and the work recorded for their place."""
    job, place = _work_owner(pod, reader), place_of(pod)
    if job is None:
        return own
    saved = saved_work(job, place)
    if saved:
        return Resumption(place, max(saved, 0 if own is None else own.work))
    if own is not None or not is_interchangeable(pod) or not saved_places(job):
        return own
    siblings, taken = place.rpartition("/")[0], _taken(pod, reader)
    free = [each for each in saved_places(job) if each not in taken and each.rpartition("/")[0] == siblings]
    return most_saved(job, free)


def _taken(pod: Obj, reader: Reader) -> dict[str, None]:
    """Return the places of the other pods of its Job that have not failed."""
    owner = controller_of(pod)
    others = () if owner is None else reader.owned_by(owner["uid"], pod["metadata"].get("namespace", ""))
    return {place_of(other): None for other in others if group_kind(other) == scheme.POD and phase(other) != FAILED}


def _work_owner(pod: Obj, reader: Reader) -> Obj | None:
    """Return the Job or JobSet that records the pod's work; None without a Job, or if it was deleted."""
    above = list(owning_jobs(pod, reader.get))
    owner = controller_of(pod)
    if owner is None or not above or above[0]["metadata"]["uid"] != owner["uid"]:
        return None
    return above[-1]


def _saved(job: Obj, place: str, work: Duration) -> list[Write]:
    """Return the write that raises the recorded work of a place to `work`."""
    return _written(job, with_saved_work(job, place, work)) if saved_work(job, place) < work else []


def _written(before: Obj, after: Obj) -> list[Write]:
    return [] if after is before else [Update(after)]
