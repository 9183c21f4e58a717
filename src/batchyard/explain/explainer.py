"""The `why` document about a Workload, job, pod or ClusterQueue, in the current state."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from batchyard.api import scheme
from batchyard.api.meta import Key, Obj, find_condition, format_amount, key_of
from batchyard.api.times import format_time, parse_time
from batchyard.api.views.pods import is_terminal, phase
from batchyard.api.views.workload import WorkloadView, workload_view
from batchyard.base.instant import MINUTE, Instant, format_age
from batchyard.explain.admitted import AdmittedExplainer, NodeCapacityView, ended, pod_part
from batchyard.explain.blockers import STOPPED
from batchyard.explain.document import Binding, ExplanationReader, Part, explanation, slim, workload_of
from batchyard.explain.pending import PendingExplainer
from batchyard.interfaces.client import Reader
from batchyard.scheduling.cluster_queue import AdmittedWorkload, ClusterQueue
from batchyard.scheduling.cycle import SchedulingPolicy
from batchyard.scheduling.messages import WRITE_REFUSED, PreemptionReason, preemptor_uid_of
from batchyard.scheduling.preemption.alternatives import holders_of, protection_reason
from batchyard.scheduling.preemption.context import PreemptionContext
from batchyard.scheduling.quota import available, share_of
from batchyard.scheduling.scheduler_cache import SchedulerCache
from batchyard.scheduling.workload import lifecycle

# --- evictions ---
#
# Explains an eviction: the reason, the preemptor, and the alternatives to this victim.


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


# --- refusals ---
#
# Writes about an object that the API server keeps rejecting, as reported by Events of controllers.


#: A rejected write is retried every minute. An older Event means that the write has succeeded since.
_LASTS: Final = 5 * MINUTE


def last_refusal(obj: Obj, reader: Reader, now: Instant) -> str:
    """Return the last rejected write about an object, with its age; '' if none is recent."""
    metadata = obj["metadata"]
    found = {
        _last_observed_at(event): event["message"]
        for event in reader.list(scheme.EVENT, metadata.get("namespace") or "default")
        if event.get("reason") == WRITE_REFUSED and event["involvedObject"].get("uid") == metadata.get("uid")
    }
    last = max(found, default=0)
    return f"{found[last]} ({format_age(max(0, now - last))} ago)" if last and now - last < _LASTS else ""


def _last_observed_at(event: Mapping[str, Any]) -> Instant:
    """Return when an Event was last observed."""
    time = (event.get("series") or {}).get("lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime")
    return parse_time(time) if time else 0


# --- queues ---
#
# A ClusterQueue: whether it admits, its head and why that one is pending, and what it uses, borrows and lends.


_EXPLAINER_SHOWN_MAX: Final = 5


class QueueExplainer:
    """Explains ClusterQueues from the scheduler cache."""

    def __init__(self, index: SchedulerCache, pending: PendingExplainer) -> None:
        self._index = index
        self._pending = pending

    def explain(self, obj: Obj, now: Instant, asker: ExplanationReader) -> Part:
        """Return the parts of the document."""
        name = obj["metadata"]["name"]
        queue, waiting = self._index.snapshot.queues.get(name), self._index.queue_manager.pending.get(name)
        if queue is None or waiting is None:
            return {"state": "Unknown", "summary": "it was just created; the scheduler has not processed it yet"}
        self._index.snapshot.settle()
        ready = self._index.readiness(name)
        part = slim(clusterQueue=name, cohort=queue.view.cohort, quotas=self._quotas(queue))
        held = len(queue.workloads)
        part["line"] = slim(of=len(waiting), strategy="StrictFIFO" if queue.view.strict_fifo else "BestEffortFIFO")
        share = share_of(queue.node, self._index.snapshot.names)
        part["facts"] = slim(
            waiting=f"{len(waiting)} Workloads", holding=f"{held} Workloads", share=_share(share.rounded, share.weight)
        )
        if not ready.active:
            binding = Binding(STOPPED, ready.message, "ClusterQueue", name)
            return {**part, "state": "Inactive", "summary": ready.message, "binding": binding.document()}
        front = waiting.front(1)
        if not front:
            summary = f"it admits; {held} Workloads hold quota and none is pending in line"
            more = f", {len(waiting)} wait for their backoff or condition" if len(waiting) else ""
            return {**part, "state": "Active", "summary": summary + more}
        head = asker.name_of(front[0].key)
        binding_of_head = self._pending.binding_in_line(front[0].key, queue, asker)
        why = binding_of_head.message if binding_of_head is not None else "it is scheduled next"
        part["facts"] |= {"head": f"{head}: {why}"}
        part |= {"binding": binding_of_head.document()} if binding_of_head is not None else {}
        return {**part, "state": "Active", "summary": f"{len(waiting)} pending; at the head {head}: {why}"}

    def _quotas(self, queue: ClusterQueue) -> list[Part]:
        """Return the quota of each flavor and resource: nominal, used, borrowed, lent and available."""
        node, quotas = queue.node, []
        for fr in node.declared:
            flavor, resource = self._index.snapshot.names[fr]
            quota, used, free = node.subtree[fr], node.usage[fr], available(node, fr)
            lent = max(0, quota - used - max(0, free)) if node.parent is not None else 0
            figures = {
                "nominal": node.nominal.get(fr, 0),
                "used": used,
                "borrowed": max(0, used - quota),
                "lent": lent,
                "available": free,
            }
            amounts = {name: format_amount(resource, amount) for name, amount in figures.items()}
            quotas.append({"flavor": flavor, "resource": resource, **amounts})
        return quotas


def _share(share: int, weight: float) -> str:
    return f"{share} at weight {weight:g}" if share else ""


PENDING: Final = "Pending"
EVICTED: Final = "Evicted"
INACTIVE: Final = "Inactive"
UNMANAGED: Final = "Unmanaged"


def may_read_all(_namespace: str) -> bool:
    """Allow reading every namespace."""
    return True


class Explainer:
    """Answers `why` for all kinds, from the scheduler cache, the objects and the node capacity."""

    def __init__(
        self, index: SchedulerCache, policy: SchedulingPolicy, reader: Reader, capacity: NodeCapacityView | None = None
    ) -> None:
        self._index = index
        self._policy = policy
        self._reader = reader
        self._capacity = capacity
        self._pending = PendingExplainer(index, policy, reader)
        self._admitted = AdmittedExplainer(index, reader, capacity)
        self._queues = QueueExplainer(index, self._pending)

    def why(self, key: Key, now: Instant, may_read: Callable[[str], bool] = may_read_all) -> Part | None:
        """Return the document about an object; None if it does not exist.

        Names of Workloads in namespaces that may not be read are hidden.
        """
        obj = self._reader.get(key)
        if obj is None:
            return None
        part = {
            **explanation(obj["kind"], key.namespace, key.name, now),
            **self._part(key, obj, now, ExplanationReader(may_read)),
        }
        if refusal := last_refusal(obj, self._reader, now):
            part["facts"] = {**(part.get("facts") or {}), "refused": refusal}
        return part

    def _part(self, key: Key, obj: Obj, now: Instant, asker: ExplanationReader) -> Part:
        if key.kind == scheme.CLUSTER_QUEUE:
            return self._queues.explain(obj, now, asker)
        if key.kind == scheme.WORKLOAD:
            return self._workload(obj, now, asker)
        return self._led(obj, now, asker)

    def _led(self, obj: Obj, now: Instant, asker: ExplanationReader) -> Part:
        """Explain a job or a pod: its Workload, and itself."""
        found, own = workload_of(obj, self._reader), self._own(obj)
        if found.workload is None:
            return {
                "state": UNMANAGED,
                "summary": own.pop("summary", "") or found.why_not,
                **own,
                "facts": {"queue": found.why_not},
            }
        part = self._workload(found.workload, now, asker)
        summary = own.pop("summary", "")
        facts = {"workload": key_of(found.workload).name, **part.pop("facts", {})}
        return {**part, **({"summary": summary} if summary else {}), **own, "facts": facts}

    def _own(self, obj: Obj) -> Part:
        """Return the part about a pod itself."""
        if obj["kind"] != "Pod":
            return {}
        part = pod_part(obj, self._capacity)
        own: Part = {"pod": part}
        if is_terminal(obj):
            own["summary"] = (
                f"the pod has ended: {phase(obj)}{'; ' + part['containers'] if part.get('containers') else ''}"
            )
        elif part.get("scheduler"):
            suffix = f"; the autoscaler: {part['autoscaler']}" if part.get("autoscaler") else ""
            own["summary"] = f"the pod has no node: {part['scheduler']}{suffix}"
        elif part.get("containers"):
            own["summary"] = f"the pod is on {part.get('node', 'no node')}; {part['containers']}"
        elif part.get("node"):
            own["summary"] = f"the pod is {part['phase'].lower()} on {part['node']}"
        return own

    def _workload(self, workload: Obj, now: Instant, asker: ExplanationReader) -> Part:
        if lifecycle.is_finished(workload):
            return ended(workload)
        if lifecycle.has_quota_reservation(workload):
            return self._admitted.explain(workload, now, asker)
        past = eviction_part(workload, self._index, self._reader, asker, fair_sharing=self._policy.fair_sharing)
        found = self._pending.explain(workload, now, asker)
        state = EVICTED if past else PENDING
        if not lifecycle.is_active(workload):
            state = INACTIVE
        summary = f"{summary_of(past)}it waits: {found['binding']['message']}"
        return {"state": state, "summary": summary, **past, **found}
