"""Builds the document of `batchyard why`, which explains the state of a Workload, Job, JobSet, pod or ClusterQueue."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from batchyard.api import scheme
from batchyard.api.meta import Key, Obj, find_condition, format_amount, key_of
from batchyard.api.times import format_second, parse_time
from batchyard.api.views.pods import is_terminal, phase
from batchyard.api.views.workload import WorkloadView, workload_view
from batchyard.base.counts import count_with_noun, select_verb
from batchyard.base.instant import MINUTE, Instant, format_age
from batchyard.explain import document
from batchyard.explain.admitted import AdmittedExplainer, explain_finished, pod_part
from batchyard.explain.blockers import STOPPED
from batchyard.explain.document import DocumentPart, ExplanationUser
from batchyard.explain.node_capacity import NodeCapacityView
from batchyard.explain.pending import PendingExplainer
from batchyard.interfaces.client import Reader
from batchyard.scheduling.cluster_queue import AdmittedWorkload, ClusterQueue
from batchyard.scheduling.cycle import SchedulingPolicy
from batchyard.scheduling.messages import WRITE_REFUSED, PreemptionReason, parse_preemptor_uid
from batchyard.scheduling.preemption.alternatives import protection_reason, ranked_quota_holders
from batchyard.scheduling.preemption.context import PreemptionContext, restart_cost_of
from batchyard.scheduling.preemption.fair import FairSharingStrategy
from batchyard.scheduling.quota import available, weighted_share
from batchyard.scheduling.scheduler_cache import SchedulerCache
from batchyard.scheduling.workload import lifecycle
from batchyard.scheduling.workload.lifecycle import is_group_workload

# Explains an eviction: the reason, the preempting Workload, and why other Workloads were not preempted instead.


_SHOWN_MAX: Final = 4
_HOLDERS_CHECKED_MAX: Final = 50


def eviction_part(
    workload: Obj,
    scheduler_cache: SchedulerCache,
    reader: Reader,
    user: ExplanationUser,
    fair_strategies: Sequence[FairSharingStrategy],
) -> DocumentPart:
    """Return the document field `preemption` about a Workload's last eviction; {} if Evicted is not True."""
    eviction_condition, preemption = find_condition(workload, "Evicted"), find_condition(workload, "Preempted")
    if eviction_condition is None or eviction_condition["status"] != "True":
        return {}
    evicted_at = eviction_condition["lastTransitionTime"]
    if eviction_condition["reason"] != "Preempted" or preemption is None:
        text = f"evicted at {evicted_at} ({eviction_condition['reason']}): {eviction_condition['message']}"
        return {"preemption": document.nonempty_fields(rule=eviction_condition["reason"], at=evicted_at, text=text)}
    rule = str(preemption["reason"])
    uid = parse_preemptor_uid(str(eviction_condition["message"]))
    preemptor = _view_of_uid(uid, scheduler_cache)
    name = _former_preemptor_name(uid, reader, user) if preemptor is None else user.name_of(preemptor.key)
    preemption_wording = PreemptionReason.WORDINGS.get(rule, rule)
    spared_holders = (
        []
        if preemptor is None
        else _spared_holders(preemptor, workload_view(workload), scheduler_cache, user, fair_strategies)
    )
    text = f"by {name} at {evicted_at}, due to {preemption_wording} ({rule})"
    if rule == PreemptionReason.CONFIGURABLE:
        evictions = (workload["status"].get("schedulingStats") or {}).get("evictions") or ()
        text += "".join([f": {each['underlyingCause']}" for each in evictions if each["reason"] == rule])
    return {
        "preemption": document.nonempty_fields(
            by=name, rule=rule, at=evicted_at, text=text, alternatives=spared_holders
        )
    }


def eviction_summary(document_part: Mapping[str, Any]) -> str:
    """Return the start of a Workload's summary, made from the document field `preemption`; '' without this field."""
    preemption = document_part.get("preemption") or {}
    if not preemption:
        return ""
    return f"preempted {preemption['text']}; " if "by" in preemption else f"{preemption['text']}; "


def _view_of_uid(uid: str, scheduler_cache: SchedulerCache) -> WorkloadView | None:
    return next((view for view in scheduler_cache.workload_cache.views() if view.uid == uid), None)


def _former_preemptor_name(uid: str, reader: Reader, user: ExplanationUser) -> str:
    finished_workload = next((obj for obj in reader.list(scheme.WORKLOAD) if obj["metadata"].get("uid") == uid), None)
    if finished_workload is None:
        return "a deleted Workload"
    return user.name_of(f"{finished_workload['metadata'].get('namespace', '')}/{finished_workload['metadata']['name']}")


def _spared_holders(
    preemptor: WorkloadView,
    victim: WorkloadView,
    cache: SchedulerCache,
    user: ExplanationUser,
    fair_strategies: Sequence[FairSharingStrategy],
) -> list[str]:
    preemptor_holder = cache.snapshot.holder(preemptor.key)
    name = (
        preemptor_holder.queue.name
        if preemptor_holder is not None
        else cache.cluster_queue_of(*preemptor.queue.split("/", 1))
    )
    queue = cache.snapshot.queues.get(name or "")
    if queue is None:
        return []
    cache.snapshot.rebuild_if_changed()
    preemptor_usage = preemptor_holder.usage if preemptor_holder is not None else ()
    frs = tuple([fr for fr, amount in preemptor_usage if amount]) or tuple(queue.node.declared_frs)
    context = PreemptionContext(preemptor, queue, cache.snapshot, preemptor_usage, frs)
    spared_reasons = []
    with cache.snapshot.what_if():
        cache.snapshot.remove_usage(queue, preemptor_usage)
        for holder in ranked_quota_holders(cache.snapshot, queue.node.path[0], queue, frs)[:_HOLDERS_CHECKED_MAX]:
            holder_workload = holder.workload
            if holder_workload.key in {preemptor.key, victim.key}:
                continue
            reason = protection_reason(context, holder_workload, fair_strategies)
            text = _preemption_order_reason(context, holder_workload, victim) if reason is None else reason.text
            spared_reasons.append(f"{user.name_of(holder_workload.key)} was not preempted: {text}")
    return spared_reasons[:_SHOWN_MAX]


def _preemption_order_reason(context: PreemptionContext, candidate: AdmittedWorkload, victim: WorkloadView) -> str:
    if candidate.priority != victim.priority:
        return f"its priority {candidate.priority} is {'higher' if candidate.priority > victim.priority else 'lower'}"
    if context.prefers_cheap_victims:
        lost_time = format_age(restart_cost_of(candidate, context.snapshot).lost_time)
        return f"it has the same priority and would lose {lost_time} of work: the cheapest restart is chosen first"
    reservation_time = format_second(candidate.reserved_at)
    return f"it has the same priority and has held quota since {reservation_time}: the latest is preempted first"


# Writes that the API server keeps rejecting, as reported by the Events of controllers about an object.


#: The age from which an Event counts as resolved: a rejected write is retried every minute.
_REFUSAL_LIFETIME: Final = 5 * MINUTE


def last_rejected_write(obj: Obj, reader: Reader, now: Instant) -> str:
    """Return the last Event message about a rejected write for an object, with its age.

    '' is returned if there is none, or if it is at least five minutes old.
    """
    metadata = obj["metadata"]
    message_by_time = {
        _last_observed_at(event): event["message"]
        for event in reader.list(scheme.EVENT, metadata.get("namespace") or "default")
        if event.get("reason") == WRITE_REFUSED and event["involvedObject"].get("uid") == metadata.get("uid")
    }
    last_rejection_time = max(message_by_time, default=0)
    if not last_rejection_time or now - last_rejection_time >= _REFUSAL_LIFETIME:
        return ""
    return f"{message_by_time[last_rejection_time]} ({format_age(max(0, now - last_rejection_time))} ago)"


def _last_observed_at(event: Mapping[str, Any]) -> Instant:
    time = (event.get("series") or {}).get("lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime")
    return parse_time(time) if time else 0


# ClusterQueues: whether they admit Workloads, why the first Workload is pending, and the used, borrowed and lent quota.


class QueueExplainer:
    """Explains from the scheduler cache whether a ClusterQueue admits Workloads, and how its quota is used."""

    def __init__(self, scheduler_cache: SchedulerCache, pending_explainer: PendingExplainer) -> None:
        self._cache = scheduler_cache
        self._pending = pending_explainer

    def explain(self, obj: Obj, now: Instant, user: ExplanationUser) -> DocumentPart:
        """Return a ClusterQueue's part of the Explanation: state, summary, quotas, and why its head is pending."""
        name = obj["metadata"]["name"]
        queue, pending_queue = self._cache.snapshot.queues.get(name), self._cache.queue_manager.pending.get(name)
        if queue is None or pending_queue is None:
            return {"state": "Unknown", "summary": "the scheduler has not processed this new ClusterQueue yet"}
        self._cache.snapshot.rebuild_if_changed()
        active_status = self._cache.active_status(name)
        part = document.nonempty_fields(clusterQueue=name, cohort=queue.view.cohort, quotas=self._quota_parts(queue))
        count = len(queue.workloads)
        part["line"] = document.nonempty_fields(
            of=len(pending_queue), strategy="StrictFIFO" if queue.view.strict_fifo else "BestEffortFIFO"
        )
        fair_share = weighted_share(queue.node, self._cache.snapshot.flavor_resource_names)
        part["facts"] = document.nonempty_fields(
            waiting=count_with_noun(len(pending_queue), "Workload"),
            holding=count_with_noun(count, "Workload"),
            share=_format_share(fair_share.rounded_value, fair_share.weight),
        )
        if not active_status.active:
            binding_limit = document.BindingLimit(STOPPED, active_status.message, "ClusterQueue", name)
            return {**part, "state": "Inactive", "summary": active_status.message, "binding": binding_limit.document()}
        head_views = pending_queue.first_not_held_back(1)
        if not head_views:
            holding_text = f"{count_with_noun(count, 'Workload')} {select_verb(count, 'holds', 'hold')}"
            summary = f"the ClusterQueue is active; {holding_text} quota, and no pending Workload is ready"
            if pending_count := len(pending_queue):
                verb = select_verb(pending_count, "waits", "wait")
                summary += f"; {pending_count} {verb} for the end of a backoff or a change of conditions"
            return {**part, "state": "Active", "summary": summary}
        head_name = user.name_of(head_views[0].key)
        head_binding = self._pending.binding_limit_of_pending(head_views[0].key, queue, user)
        head_reason = head_binding.message if head_binding is not None else "it is scheduled next"
        part["facts"] |= {"head": f"{head_name}: {head_reason}"}
        part |= {"binding": head_binding.document()} if head_binding is not None else {}
        summary = f"{count_with_noun(len(pending_queue), 'pending Workload')}; the first is {head_name}: {head_reason}"
        return {**part, "state": "Active", "summary": summary}

    def _quota_parts(self, queue: ClusterQueue) -> list[DocumentPart]:
        node, quota_parts = queue.node, []
        for fr in node.declared_frs:
            flavor, resource = self._cache.snapshot.flavor_resource_names[fr]
            quota, used_amount, available_amount = node.subtree_quota[fr], node.usage[fr], available(node, fr)
            lent_amount = max(0, quota - used_amount - max(0, available_amount)) if node.parent is not None else 0
            amount_by_name = {
                "nominal": node.nominal.get(fr, 0),
                "used": used_amount,
                "borrowed": max(0, used_amount - quota),
                "lent": lent_amount,
                "available": available_amount,
            }
            amounts = {name: format_amount(resource, amount) for name, amount in amount_by_name.items()}
            quota_parts.append({"flavor": flavor, "resource": resource, **amounts})
        return quota_parts


def _format_share(share: int, weight: float) -> str:
    return f"{share} at weight {weight:g}" if share else ""


PENDING: Final = "Pending"
EVICTED: Final = "Evicted"
INACTIVE: Final = "Inactive"
UNMANAGED: Final = "Unmanaged"


def may_read_all(_namespace: str) -> bool:
    """Return True: the user may read every namespace."""
    return True


class Explainer:
    """Explains the state of Workloads, Jobs, JobSets, pods and ClusterQueues for `batchyard why`."""

    def __init__(
        self, cache: SchedulerCache, policy: SchedulingPolicy, reader: Reader, capacity: NodeCapacityView | None = None
    ) -> None:
        self._cache = cache
        self._policy = policy
        self._reader = reader
        self._capacity = capacity
        self._pending = PendingExplainer(cache, policy, reader)
        self._admitted = AdmittedExplainer(cache, reader, capacity)
        self._queues = QueueExplainer(cache, self._pending)

    def why(self, key: Key, now: Instant, may_read: Callable[[str], bool] = may_read_all) -> DocumentPart | None:
        """Return the Explanation document of the object with a key; None if the object does not exist.

        `may_read` reports whether the user may read a namespace. Workload names in unreadable namespaces are hidden.
        """
        obj = self._reader.get(key)
        if obj is None:
            return None
        self._cache.queue_manager.now = self._cache.snapshot.preemption.now = now
        document_part = {
            **document.explanation_header(obj["kind"], key.namespace, key.name, now),
            **self._explain_object(key, obj, now, ExplanationUser(may_read)),
        }
        if refusal := last_rejected_write(obj, self._reader, now):
            document_part["facts"] = {**(document_part.get("facts") or {}), "refused": refusal}
        return document_part

    def _explain_object(self, key: Key, obj: Obj, now: Instant, user: ExplanationUser) -> DocumentPart:
        if key.kind == scheme.CLUSTER_QUEUE:
            return self._queues.explain(obj, now, user)
        if key.kind == scheme.WORKLOAD:
            return self._explain_workload(obj, now, user)
        return self._explain_job_or_pod(obj, now, user)

    def _explain_job_or_pod(self, obj: Obj, now: Instant, user: ExplanationUser) -> DocumentPart:
        workload_lookup, pod_parts = document.workload_of(obj, self._reader), self._explain_pod(obj)
        if workload_lookup.workload is None:
            summary = pod_parts.pop("summary", "") or workload_lookup.reason
            return {"state": UNMANAGED, "summary": summary, **pod_parts, "facts": {"queue": workload_lookup.reason}}
        part = self._explain_workload(workload_lookup.workload, now, user)
        summary = pod_parts.pop("summary", "")
        document_facts = {"workload": key_of(workload_lookup.workload).name, **part.pop("facts", {})}
        return {**part, **({"summary": summary} if summary else {}), **pod_parts, "facts": document_facts}

    def _explain_pod(self, obj: Obj) -> DocumentPart:
        if obj["kind"] != "Pod":
            return {}
        pod_fields = pod_part(obj, self._capacity)
        pod_parts: DocumentPart = {"pod": pod_fields}
        if is_terminal(obj):
            suffix = f"; {pod_fields['containers']}" if pod_fields.get("containers") else ""
            pod_parts["summary"] = f"the pod has ended: {phase(obj)}{suffix}"
        elif pod_fields.get("scheduler"):
            suffix = f"; the autoscaler: {pod_fields['autoscaler']}" if pod_fields.get("autoscaler") else ""
            pod_parts["summary"] = f"the pod has no node: {pod_fields['scheduler']}{suffix}"
        elif pod_fields.get("containers"):
            pod_parts["summary"] = f"the pod is on {pod_fields.get('node', 'no node')}; {pod_fields['containers']}"
        elif pod_fields.get("node"):
            pod_parts["summary"] = f"the pod is {pod_fields['phase'].lower()} on {pod_fields['node']}"
        return pod_parts

    def _explain_workload(self, workload: Obj, now: Instant, user: ExplanationUser) -> DocumentPart:
        part = self._explain_decision(workload, now, user)
        if not is_group_workload(workload) or lifecycle.is_finished(workload):
            return part
        from batchyard.explain.queued_pods import replacement_text  # noqa: PLC0415 - few platforms have groups of pods

        lacking_text = replacement_text(workload, document.pods_of(workload, self._reader))
        return {**part, "summary": f"{lacking_text}; {part['summary']}"} if lacking_text else part

    def _explain_decision(self, workload: Obj, now: Instant, user: ExplanationUser) -> DocumentPart:
        if lifecycle.is_finished(workload):
            return explain_finished(workload)
        if lifecycle.has_quota_reservation(workload):
            return self._admitted.explain(workload, now, user)
        eviction = eviction_part(workload, self._cache, self._reader, user, self._policy.fair_strategies)
        pending_parts = self._pending.explain(workload, now, user)
        state = EVICTED if eviction else PENDING
        if not lifecycle.is_active(workload):
            state = INACTIVE
        summary = f"{eviction_summary(eviction)}it waits: {pending_parts['binding']['message']}"
        return {"state": state, "summary": summary, **eviction, **pending_parts}
