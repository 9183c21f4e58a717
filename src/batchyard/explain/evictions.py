"""Explains an eviction: the reason, the preemptor, and the alternatives to this victim."""

from collections.abc import Mapping
from typing import Any, Final

from batchyard.api import scheme
from batchyard.api.conditions import find_condition
from batchyard.api.meta import Obj
from batchyard.api.times import format_time
from batchyard.api.views.workload import WorkloadView, workload_view
from batchyard.explain.document import ExplanationReader, Part, slim
from batchyard.interfaces.client import Reader
from batchyard.scheduling.cluster_queue import AdmittedWorkload
from batchyard.scheduling.messages import PreemptionReason, preemptor_uid_of
from batchyard.scheduling.preemption.alternatives import holders_of, protection_reason
from batchyard.scheduling.preemption.context import PreemptionContext
from batchyard.scheduling.scheduler_cache import SchedulerCache

_SHOWN_MAX: Final = 4
_LOOKED_AT_MAX: Final = 50


def eviction_part(
    workload: Obj, index: SchedulerCache, reader: Reader, asker: ExplanationReader, *, fair_sharing: bool
) -> Part:
    """Return the part about the last eviction; empty if the Workload has had quota since."""
    evicted, preempted = find_condition(workload, "Evicted"), find_condition(workload, "Preempted")
    if evicted is None or evicted["status"] != "True":
        return {}
    at = evicted["lastTransitionTime"]
    if evicted["reason"] != "Preempted" or preempted is None:
        text = f"evicted at {at} ({evicted['reason']}): {evicted['message']}"
        return {"preemption": slim(rule=evicted["reason"], at=at, text=text)}
    rule = str(preempted["reason"])
    uid = preemptor_uid_of(str(evicted["message"]))
    by = _view_of(uid, index)
    name = _ended_name(uid, reader, asker) if by is None else asker.name_of(by.key)
    words = PreemptionReason.WORDS.get(rule, rule)
    alternatives = (
        [] if by is None else _alternatives(by, workload_view(workload), index, asker, fair_sharing=fair_sharing)
    )
    text = f"by {name} at {at}, for {words} ({rule})"
    return {"preemption": slim(by=name, rule=rule, at=at, text=text, alternatives=alternatives)}


def summary_of(part: Mapping[str, Any]) -> str:
    """Return the beginning of the summary of an evicted Workload."""
    preemption = part.get("preemption") or {}
    if not preemption:
        return ""
    return f"preempted {preemption['text']}; " if "by" in preemption else f"{preemption['text']}; "


def _view_of(uid: str, index: SchedulerCache) -> WorkloadView | None:
    """Return the unfinished Workload of that uid."""
    return next((view for view in index.book.views() if view.uid == uid), None)


def _ended_name(uid: str, reader: Reader, asker: ExplanationReader) -> str:
    """Return the name of a preemptor that has finished since."""
    ended = next((obj for obj in reader.list(scheme.WORKLOAD) if obj["metadata"].get("uid") == uid), None)
    if ended is None:
        return "a deleted Workload"
    return asker.name_of(f"{ended['metadata'].get('namespace', '')}/{ended['metadata']['name']}")


def _alternatives(
    preemptor: WorkloadView,
    victim: WorkloadView,
    index: SchedulerCache,
    asker: ExplanationReader,
    *,
    fair_sharing: bool,
) -> list[str]:
    """Return other holders of what the preemptor took, each with why it was not preempted, in the current state."""
    held = index.snapshot.holder(preemptor.key)
    name = held.queue.name if held is not None else index.cluster_queue_of(*preemptor.queue.split("/", 1))
    queue = index.snapshot.queues.get(name or "")
    if queue is None:
        return []
    index.snapshot.settle()
    usage = held.usage if held is not None else ()
    frs = tuple([fr for fr, amount in usage if amount]) or tuple(queue.node.declared)
    request = PreemptionContext(preemptor, queue, index.snapshot, usage, frs)
    texts = []
    for holder in holders_of(index.snapshot, queue.node.path[0], queue, frs)[:_LOOKED_AT_MAX]:
        other = holder.workload
        if other.key in {preemptor.key, victim.key}:
            continue
        reason = protection_reason(request, other, fair_sharing=fair_sharing)
        text = _later(other, victim) if reason is None else reason.text
        texts.append(f"{asker.name_of(other.key)} was not preempted: {text}")
    return texts[:_SHOWN_MAX]


def _later(other: AdmittedWorkload, victim: WorkloadView) -> str:
    """Return why another candidate comes after the victim: its priority, or its later reservation time."""
    if other.priority != victim.priority:
        return f"its priority {other.priority} is {'higher' if other.priority > victim.priority else 'lower'}"
    return f"it has the same priority and quota since {format_time(other.reserved_at)}: the latest is preempted first"
