"""What kubelets do about checkpoints: where containers end, their work is saved; where they start, they go on with it.

Programs save their work as time passes, so what was saved by then is told by when the containers started, wherever and
however they end; even a machine that is lost loses only what was done since the last checkpoint. It is kept by place
(batchyard.api.views.checkpoints) on the topmost of the Job and JobSet above the pod: on the JobSet it outlives its
Jobs. A
finalizer keeps a pod until that is written.
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
from batchyard.api.views.ownership import jobs_above
from batchyard.api.views.pod_lifecycle import FAILED, SUCCEEDED, is_terminal, is_terminating, phase
from batchyard.base.instant import Duration, Instant
from batchyard.interfaces.client import Reader, Update, Write


def held_until_saved(pod: Obj, reader: Reader) -> Obj:
    """A new pod, which stays until its work is saved if it saves any; itself if it does not."""
    above = list(jobs_above(pod, reader.get))
    if not above or checkpoint_interval([pod, *above]) is None:
        return pod
    return with_finalizer(pod, well_known.WORK_FINALIZER)


def is_held(pod: Obj) -> bool:
    """Whether a pod that is deleted stays until its work is saved."""
    return is_terminating(pod) and well_known.WORK_FINALIZER in finalizers_of(pod)


def let_go(pod: Obj) -> list[Write]:
    """What is written when the work of a deleted pod is saved, or it has none."""
    return [Update(without_finalizer(pod, well_known.WORK_FINALIZER))] if is_held(pod) else []


def saved_at_end(pod: Obj, after: Obj, every: Duration, reader: Reader) -> list[Write]:
    """What is written about the work of a pod that has ended."""
    job = _keeper(pod, reader) if is_terminal(after) else None
    if job is None:
        return []
    if phase(after) == SUCCEEDED and (is_interchangeable(pod) or group_kind(job) != scheme.JOB_SET):
        return _written(job, with_saved_work(job, place_of(pod), 0))  # its Job never makes it anew
    return _saved(job, place_of(pod), _work_after(pod, after, every))


def saved_at_loss(pod: Obj, lost_at: Instant, every: Duration, reader: Reader) -> list[Write]:
    """What is written about the work of a pod whose machine is lost."""
    job, started = _keeper(pod, reader), running_since(pod)
    if job is None or started is None:
        return []
    return _saved(job, place_of(pod), resumed_work(pod) + kept_work(started, every, lost_at))


def going_on(pod: Obj, after: Obj, every: Duration, reader: Reader, now: Instant) -> Obj:
    """The pod after something happened to it: it goes on with what is saved when its containers start."""
    if is_terminal(after):
        return after
    work = _work_after(pod, after, every)
    resumed = Resumption(place_of(pod), work) if work else None
    if running_since(after) is not None and running_since(after) != running_since(pod):
        resumed = _most_of(pod, resumed, reader)
    return with_resumption(after, resumed, now)


def _work_after(pod: Obj, after: Obj, every: Duration) -> Duration:
    """The work that is saved of a pod after something happened to it; nothing if it is done, to begin anew."""
    started, before = running_since(pod), resumed_work(pod)
    if started is None or running_since(after) == started:
        return before
    container = after["status"]["containerStatuses"][0]
    ended = container["state"].get("terminated") or container["lastState"]["terminated"]
    if "finishedAt" not in ended:  # it was lost, and saved then
        return before
    if ended["exitCode"] == 0 and not is_terminal(after):
        return 0
    return before + kept_work(started, every, parse_time(ended["finishedAt"]))


def _most_of(pod: Obj, own: Resumption | None, reader: Reader) -> Resumption | None:
    """What containers go on with that start now: the most of their own work and what is saved for their place."""
    job, place = _keeper(pod, reader), place_of(pod)
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
    """The places of the other pods of its Job that have not failed."""
    owner = controller_of(pod)
    others = () if owner is None else reader.owned_by(owner["uid"], pod["metadata"].get("namespace", ""))
    return {place_of(other): None for other in others if group_kind(other) == scheme.POD and phase(other) != FAILED}


def _keeper(pod: Obj, reader: Reader) -> Obj | None:
    """The Job or JobSet that keeps the work of a pod; None where no Job made it, or that is gone."""
    above = list(jobs_above(pod, reader.get))
    owner = controller_of(pod)
    if owner is None or not above or above[0]["metadata"]["uid"] != owner["uid"]:
        return None
    return above[-1]


def _saved(job: Obj, place: str, work: Duration) -> list[Write]:
    """What is written so that a place has that much work saved."""
    return _written(job, with_saved_work(job, place, work)) if saved_work(job, place) < work else []


def _written(before: Obj, after: Obj) -> list[Write]:
    return [] if after is before else [Update(after)]
