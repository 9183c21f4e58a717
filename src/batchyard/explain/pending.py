"""Explains why a Workload has no quota: its limit, the holders of the quota, and changes that would admit it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from batchyard.api import scheme
from batchyard.api.amounts import readable_amount, readable_quantity
from batchyard.api.meta import Key, Obj, find_condition, format_amount, with_path
from batchyard.api.views.workload import WorkloadView, workload_view
from batchyard.base.counts import count_with_noun, select_verb
from batchyard.base.instant import Instant
from batchyard.explain import blockers, document
from batchyard.explain.blockers import BORROWING, LENDING, MAXIMUM, NOMINAL, QuotaShortage, shortage_of
from batchyard.explain.budget_raises import end_of_hold, holding_budgets
from batchyard.explain.changes import ChangeExplainer
from batchyard.explain.cohort_simulation import CohortSimulation, TrialOutcome
from batchyard.explain.fixes import BlockedWorkload
from batchyard.explain.proposals import ProposalCase
from batchyard.explain.topology import TOPOLOGY, TopologyAnalysis, analyze_topology, describe_missing_levels
from batchyard.interfaces.client import Reader
from batchyard.scheduling import messages
from batchyard.scheduling.cluster_queue import ClusterQueue
from batchyard.scheduling.cycle import SchedulingPolicy
from batchyard.scheduling.decisions import Admit, Decision, Preempt
from batchyard.scheduling.fair_sharing.usage_order import UsageOrderedQueue
from batchyard.scheduling.preemption import alternatives
from batchyard.scheduling.preemption.alternatives import MissingQuotaHolder, protection_reason, ranked_quota_holders
from batchyard.scheduling.preemption.context import PreemptionContext, may_preempt
from batchyard.scheduling.queue_manager import PendingQueue
from batchyard.scheduling.quota import weighted_share
from batchyard.scheduling.scheduler_cache import SchedulerCache
from batchyard.scheduling.slices import find_replaced_slice, grows_in_part
from batchyard.scheduling.snapshot import Snapshot
from batchyard.scheduling.workload import lifecycle
from batchyard.scheduling.workload.pending_reason import WorkloadQueues

PRIORITY: Final = "priority"
HEAD_OF_LINE: Final = "headOfLine"
PREEMPTION: Final = "waitingForPreemption"
TURN: Final = "turn"
HOLDERS_SHOWN: Final = 5
AHEAD_SHOWN: Final = 5
_HOLDERS_CHECKED_MAX: Final = 200


@dataclass(slots=True)
class PendingAnalysis:
    """A pending Workload and its ClusterQueue, with a simulated scheduling decision and the outcomes by flavor."""

    workload: Obj
    view: WorkloadView
    queue: ClusterQueue
    decision: Decision
    outcomes: Sequence[document.PodSetFlavorOutcomes]
    shortage: QuotaShortage | None
    holders: Sequence[MissingQuotaHolder]
    preemption_context: PreemptionContext
    #: How the pods fit in topology domains; None if the Workload needs none.
    topology: TopologyAnalysis | None


class PendingExplainer:
    """Explains why Workloads without a quota reservation are pending."""

    def __init__(self, scheduler_cache: SchedulerCache, policy: SchedulingPolicy, reader: Reader) -> None:
        self._cache = scheduler_cache
        self._policy = policy
        self._reader = reader
        self._changes = ChangeExplainer(scheduler_cache, policy, reader)

    def explain(self, workload: Obj, now: Instant, user: document.ExplanationUser) -> document.DocumentPart:
        """Return the fields of the Explanation document that say why a Workload is pending and what would admit it."""
        workload_queues = blockers.queues_of(workload, self._reader)
        blocker = blockers.blocker_of(workload, workload_queues, self._cache, self._reader)
        if blocker is not None and blocker.limit == blockers.STOPPED:
            budgets = holding_budgets(workload_queues.local_queue, self._reader)
            blocker = blocker._replace(until=end_of_hold(budgets, now))
        queue = self._cache.snapshot.queues.get(workload_queues.cluster_queue_name)
        view = self._pending_view(workload, workload_queues.cluster_queue_name)
        if blocker is None and queue is None:
            message = f"ClusterQueue {workload_queues.cluster_queue_name} doesn't exist"
            blocker = document.BindingLimit(blockers.MISCONFIGURED, message, "LocalQueue", view.queue)
        if blocker is not None or queue is None:
            assert blocker is not None
            owner_job = self._changes.owner_job(workload)
            blocked_workload = BlockedWorkload(workload, view, owner_job, workload_queues, blocker)
            return {"binding": blocker.document(), **self._changes.fixes_part(blocked_workload, user)}
        return self._explain_in_queue(workload, view, queue, workload_queues, now, user)

    def binding_limit_of_pending(
        self, key: str, queue: ClusterQueue, user: document.ExplanationUser
    ) -> document.BindingLimit | None:
        """Return the limit that keeps the Workload `key` (namespace/name) pending, apart from the queue order.

        The result is None if the Workload fits or does not exist.
        """
        namespace, _, name = key.partition("/")
        workload = self._reader.get(Key(scheme.WORKLOAD, namespace, name))
        if workload is None:
            return None
        analysis = self._analyze_pending(workload, self._pending_view(workload, queue.name), queue)
        limit = blockers.binding_limit_of_refusal(analysis.decision, self._cache)
        limit = limit or self._shortage_binding_limit(analysis, user)
        return limit or (None if analysis.topology is None else analysis.topology.binding_limit())

    def _pending_view(self, workload: Obj, queue: str) -> WorkloadView:
        view = workload_view(workload)
        pending_queue = self._cache.queue_manager.pending.get(queue)
        pending_entry = None if pending_queue is None else pending_queue.get(view.key)
        return self._cache.hypothetical_view(workload, view) if pending_entry is None else pending_entry.view

    def _explain_in_queue(
        self,
        workload: Obj,
        view: WorkloadView,
        queue: ClusterQueue,
        queues: WorkloadQueues,
        now: Instant,
        user: document.ExplanationUser,
    ) -> document.DocumentPart:
        self._cache.snapshot.rebuild_if_changed()
        analysis = self._analyze_pending(workload, view, queue)
        part: document.DocumentPart = {"clusterQueue": queue.name, "cohort": queue.view.cohort}
        part["priority"] = view.priority
        part["podSets"] = document.pod_sets_part(self._cache.snapshot, queue.node, analysis.outcomes)
        if analysis.topology is not None:
            part |= analysis.topology.document_part(
                user, partial(_run_time_protection, self._cache.snapshot, self._policy, analysis)
            )
        part["line"] = self._queue_position_part(view.key, queue, user)
        if self._policy.fair_sharing:
            names = self._cache.snapshot.flavor_resource_names
            part["shares"] = _fair_shares_part(queue, analysis.holders, names)
        limit = blockers.binding_limit_of_refusal(
            analysis.decision, self._cache
        ) or blockers.failed_check_binding_limit(workload)
        limit = limit or blockers.requeue_binding_limit(view, now)
        limit = limit or blockers.pods_ready_limit(workload, self._cache, self._reader, user)
        if limit is not None:
            blocked_workload = BlockedWorkload(workload, view, self._changes.owner_job(workload), queues, limit)
            binding_part = _with_previous_slice(limit, analysis, user, self._policy).document()
            return {**part, "binding": binding_part, **self._changes.fixes_part(blocked_workload, user)}
        analysis = _requesting_all_pods(analysis, self._policy, self._cache)
        simulation = CohortSimulation(self._cache, self._policy, analysis.view, queue)
        try:
            part |= self._simulate(analysis, simulation, user)
        finally:
            simulation.close()
        if part["binding"]["limit"] == blockers.PODS_READY:
            limit = document.BindingLimit(blockers.PODS_READY, part["binding"]["message"])
            blocked_workload = BlockedWorkload(workload, view, self._changes.owner_job(workload), queues, limit)
            part |= self._changes.unready_part(blocked_workload, user)
        return part

    def _simulate(
        self, analysis: PendingAnalysis, simulation: CohortSimulation, user: document.ExplanationUser
    ) -> document.DocumentPart:
        baseline = simulation.run_trial_within_limit()
        binding = self._head_of_line_binding_limit(analysis, user) or self._preemption_binding_limit(
            analysis, baseline, user
        )
        binding = binding or self._shortage_binding_limit(analysis, user)
        if binding is None and analysis.topology is not None and not baseline.is_admitted:
            binding = analysis.topology.binding_limit()
        binding = binding or self._queue_order_binding_limit(analysis, baseline, user)
        document_part: document.DocumentPart = {
            "binding": _with_previous_slice(binding, analysis, user, self._policy).document(),
            **self._holders_part(analysis, binding, user),
            **_outdated_condition_part(analysis.workload, binding),
        }
        if binding.limit != PREEMPTION and not baseline.is_admitted:
            limit_kind = analysis.shortage.limit if analysis.shortage is not None else ""
            owner_job = self._changes.owner_job(analysis.workload)
            proposal_case = ProposalCase(
                analysis.workload, analysis.view, analysis.outcomes, simulation, owner_job, limit_kind
            )
            topology = analysis.topology if binding.limit == TOPOLOGY else None
            document_part |= self._changes.changes_part(proposal_case, analysis.holders, user, topology)
        return document_part

    def _analyze_pending(self, workload: Obj, view: WorkloadView, queue: ClusterQueue) -> PendingAnalysis:
        scheduler_cache = self._cache
        decision = blockers.simulate_decision(view, queue.name, scheduler_cache, self._policy)
        outcomes = document.assess_flavors(scheduler_cache.snapshot, queue, view, self._policy)
        shortage = shortage_of(outcomes, queue)
        preemption_context = PreemptionContext(view, queue, scheduler_cache.snapshot, (), ())
        holders: Sequence[MissingQuotaHolder] = ()
        if shortage is not None and shortage.outcome is not None and shortage.limiting_node is not None:
            missing_requests = [request for request in shortage.outcome.requests if request.shortfall]
            contested_frs = tuple([request.fr for request in missing_requests])
            requested_usage = tuple([(request.fr, request.total) for request in missing_requests])
            preemption_context = preemption_context._replace(usage=requested_usage, contested_frs=contested_frs)
            scope_node = shortage.limiting_node.node if shortage.limit == BORROWING else queue.node.path[0]
            holders = ranked_quota_holders(scheduler_cache.snapshot, scope_node, queue, contested_frs)
        topology = analyze_topology(scheduler_cache.snapshot, queue, view, outcomes)
        return PendingAnalysis(
            workload, view, queue, decision, outcomes, shortage, holders, preemption_context, topology
        )

    # --- binding limits ---

    def _head_of_line_binding_limit(
        self, analysis: PendingAnalysis, user: document.ExplanationUser
    ) -> document.BindingLimit | None:
        queue, pending_queue = analysis.queue, self._cache.queue_manager.pending[analysis.queue.name]
        if pending_queue.get(analysis.view.key) is None:
            return None
        if not queue.view.strict_fifo:
            return self._preemptor_binding_limit(analysis, pending_queue.preemptor, user)
        front_views = pending_queue.first_not_held_back(1)
        if not front_views or front_views[0].key == analysis.view.key:
            return None
        head_key = front_views[0].key
        name = user.name_of(head_key)
        head_binding = self.binding_limit_of_pending(head_key, queue, user)
        suffix = f"; that Workload waits: {head_binding.message}" if head_binding is not None else ""
        usage_text = _usage_order_text(pending_queue, analysis.view.key)
        text = f"ClusterQueue {queue.name} is StrictFIFO, and {name} is ahead of it{usage_text}{suffix}"
        return document.BindingLimit(HEAD_OF_LINE, text, "Workload", name)

    def _preemptor_binding_limit(
        self, analysis: PendingAnalysis, preemptor: str, user: document.ExplanationUser
    ) -> document.BindingLimit | None:
        if not preemptor or preemptor == analysis.view.key or not isinstance(analysis.decision, Admit):
            return None
        name = user.name_of(preemptor)
        text = f"{name} stays at the head of ClusterQueue {analysis.queue.name} until its victims release their quota"
        return document.BindingLimit(HEAD_OF_LINE, text, "Workload", name)

    def _queue_order_binding_limit(
        self, analysis: PendingAnalysis, baseline_outcome: TrialOutcome, user: document.ExplanationUser
    ) -> document.BindingLimit:
        queue = analysis.queue.name
        if baseline_outcome.is_admitted:
            blocked_binding = blockers.blocked_entry_binding_limit(self._cache, user)
            return blocked_binding or document.BindingLimit(TURN, "it fits and is admitted next", "ClusterQueue", queue)
        pending_queues = self._cache.queue_manager.pending
        head_keys = [
            view.key
            for each in self._queues_of_tree(analysis)
            for view in pending_queues[each.name].first_not_held_back(1)
        ]
        names = list(dict.fromkeys([user.name_of(key) for key in head_keys if key != analysis.view.key]))
        text = f"it would fit, but Workloads ahead take or reserve the quota: {', '.join(names[:AHEAD_SHOWN])}"
        text += _usage_order_text(pending_queues[queue], analysis.view.key)
        return document.BindingLimit(TURN, text, "ClusterQueue", queue)

    def _preemption_binding_limit(
        self, analysis: PendingAnalysis, baseline_outcome: TrialOutcome, user: document.ExplanationUser
    ) -> document.BindingLimit | None:
        decision = analysis.decision
        quota_holders = [holder for queue in self._queues_of_tree(analysis) for holder in queue.workloads.values()]
        preempted_keys = [holder.key for holder in quota_holders if holder.evicted]
        if isinstance(decision, Preempt):
            preempted_keys += [target.workload.key for target in decision.targets if not target.workload.evicted]
        if not baseline_outcome.is_admitted or not (preempted_keys or baseline_outcome.preempted_keys):
            return None
        names = list(dict.fromkeys(map(user.name_of, preempted_keys or baseline_outcome.preempted_keys)))
        shown_names = ", ".join(names[:HOLDERS_SHOWN])
        suffix = f" and {len(names) - HOLDERS_SHOWN} more" if len(names) > HOLDERS_SHOWN else ""
        text = f"it waits for {shown_names}{suffix} to release quota"
        return document.BindingLimit(PREEMPTION, text, "ClusterQueue", analysis.queue.name)

    def _queues_of_tree(self, analysis: PendingAnalysis) -> list[ClusterQueue]:
        return self._cache.snapshot.queues_below(analysis.queue.node.path[0])

    def _shortage_binding_limit(
        self, analysis: PendingAnalysis, user: document.ExplanationUser
    ) -> document.BindingLimit | None:
        shortage, queue = analysis.shortage, analysis.queue
        if shortage is None:
            return None
        if shortage.uncovered_resource:
            text = f"resource {shortage.uncovered_resource} is in no resource group of ClusterQueue {queue.name}"
            return document.BindingLimit(
                shortage.limit, text, "ClusterQueue", queue.name, resource=shortage.uncovered_resource
            )
        outcome, request, limiting_node = shortage.outcome, shortage.request, shortage.limiting_node
        assert outcome is not None
        if request is None or limiting_node is None:
            message = _join_obstacles(analysis) + describe_missing_levels(analysis.view, queue, self._cache.snapshot)
            return document.BindingLimit(shortage.limit, message, "ResourceFlavor", outcome.flavor, outcome.flavor)
        limit_kind = self._limit_kind_or_priority(analysis, limiting_node.limit)
        node, missing_amount = limiting_node.node, format_amount(request.resource, request.shortfall)
        kind = document.quota_node_kind(self._cache.snapshot, node)
        text = _describe_shortage(analysis, limit_kind, f"{kind} {node.name}")
        return document.BindingLimit(
            limit_kind, text, kind, node.name, outcome.flavor, request.resource, missing_amount
        )

    def _limit_kind_or_priority(self, analysis: PendingAnalysis, limit_kind: str) -> str:
        if limit_kind != NOMINAL or not may_preempt(self._cache.snapshot, analysis.queue):
            return limit_kind
        reasons = [self._protection_of(analysis, holder) for holder in analysis.holders[:_HOLDERS_CHECKED_MAX]]
        is_by_priority = any(reason is not None and reason.rule == alternatives.PRIORITY_RULE for reason in reasons)
        return PRIORITY if is_by_priority else limit_kind

    def _protection_of(
        self, analysis: PendingAnalysis, holder: MissingQuotaHolder
    ) -> alternatives.ProtectionReason | None:
        return protection_reason(analysis.preemption_context, holder.workload, self._policy.fair_strategies)

    def _holders_part(
        self, analysis: PendingAnalysis, binding: document.BindingLimit, user: document.ExplanationUser
    ) -> document.DocumentPart:
        if binding.limit in {MAXIMUM, HEAD_OF_LINE, TURN}:
            return {}
        decision = analysis.decision
        targets = decision.targets if isinstance(decision, Preempt) else ()
        target_keys = {target.workload.key for target in targets}
        has_enough_victims = bool(targets) or binding.limit == PREEMPTION
        unprotected_reason = alternatives.NEEDLESS_REASON if has_enough_victims else alternatives.INSUFFICIENT_REASON
        holder_parts = []
        for holder in analysis.holders[:HOLDERS_SHOWN]:
            if holder.workload.evicted or holder.workload.key in target_keys:
                preemption_fields: Mapping[str, Any] = {"preempted": True}
            else:
                preemption_fields = {"stays": (self._protection_of(analysis, holder) or unprotected_reason).text}
            holder_parts.append(document.holder_part(self._cache.snapshot, holder, user, preemption_fields))
        return document.nonempty_fields(
            holders=holder_parts, holdersMore=max(0, len(analysis.holders) - HOLDERS_SHOWN) or None
        )

    def _queue_position_part(
        self, key: str, queue: ClusterQueue, user: document.ExplanationUser
    ) -> document.DocumentPart:
        pending_queue = self._cache.queue_manager.pending[queue.name]
        if pending_queue.get(key) is None:
            return {"of": len(pending_queue)}
        position = pending_queue.count_ahead_of(key)
        ahead_keys = [
            view.key for view in pending_queue.first_not_held_back(min(position, AHEAD_SHOWN) + 1) if view.key != key
        ]
        names = [user.name_of(each) for each in ahead_keys[: min(position, AHEAD_SHOWN)]]
        strategy = _queueing_strategy(queue, pending_queue, key)
        return document.nonempty_fields(position=position + 1, of=len(pending_queue), ahead=names, strategy=strategy)


def _requesting_all_pods(
    analysis: PendingAnalysis, policy: SchedulingPolicy, scheduler_cache: SchedulerCache
) -> PendingAnalysis:
    """Return the analysis of a slice that may grow in part, as if it had to get all its pods at once.

    The changes that are proposed then admit the rest of its pods, not only some of them.
    """
    if not (policy.rules.partial_scale_up and analysis.view.replaced_slice and grows_in_part(analysis.view)):
        return analysis
    pod_sets = [
        {field: value for field, value in pod_set.items() if field != "minCount"}
        for pod_set in analysis.workload["spec"]["podSets"]
    ]
    workload = with_path(analysis.workload, ("spec", "podSets"), pod_sets)
    return replace(analysis, workload=workload, view=scheduler_cache.hypothetical_view(workload, analysis.view))


def _run_time_protection(snapshot: Snapshot, policy: SchedulingPolicy, analysis: PendingAnalysis, key: str) -> str:
    """Return until when a minimal run time protects the Workload `key`, which has quota; '' if none does."""
    holder = snapshot.holder(key)
    if holder is None:
        return ""
    reason = protection_reason(analysis.preemption_context, holder, policy.fair_strategies)
    return reason.text if reason is not None and reason.rule == alternatives.MIN_RUNTIME_RULE else ""


def _with_previous_slice(
    binding: document.BindingLimit, analysis: PendingAnalysis, user: document.ExplanationUser, policy: SchedulingPolicy
) -> document.BindingLimit:
    """Return the binding limit; for a slice of an elastic job, it names the slice with which the job runs now."""
    if not analysis.view.replaced_slice or not policy.rules.elastic_jobs:
        return binding
    previous_slice = find_replaced_slice(analysis.view, analysis.queue)
    if previous_slice is None:
        return binding
    pod_count = sum(pod_set.pods for pod_set in previous_slice.pod_sets)
    pods_text = f"{pod_count} {select_verb(pod_count, 'pod', 'pods')}"
    text = f"its previous slice {user.name_of(previous_slice.key)} runs with {pods_text}"
    rest = sum(analysis.view.counts) - pod_count
    if policy.rules.partial_scale_up and grows_in_part(analysis.view) and rest > 0:
        text += f"; the job grows by as many of the other {count_with_noun(rest, 'pod')} as fit"
    return binding._replace(message=f"{binding.message}; {text}")


def _fair_shares_part(
    queue: ClusterQueue, holders: Iterable[MissingQuotaHolder], names: Sequence[tuple[str, str]]
) -> list[document.DocumentPart]:
    """Return the weighted shares of the ClusterQueues concerned; `names` are the flavor-resources by id."""
    queues = dict.fromkeys([queue, *[holder.workload.queue for holder in holders]])
    share_parts = []
    for each in list(queues)[: HOLDERS_SHOWN + 1]:
        share = weighted_share(each.node, names)
        share_fields = {"weight": share.weight, "share": share.rounded_value, "resource": share.resource}
        share_parts.append(document.nonempty_fields(clusterQueue=each.name, **share_fields))
    return share_parts


def _outdated_condition_part(workload: Obj, binding: document.BindingLimit) -> document.DocumentPart:
    """Return the field `facts` with a note if the QuotaReserved message names another missing amount than `binding`.

    Return {} otherwise. The message can be outdated: the scheduler evaluates an inadmissible Workload again when quota
    is released, but not when more quota is used.
    """
    condition = find_condition(workload, lifecycle.QUOTA_RESERVED)
    rejections = messages.INSUFFICIENT_QUOTA_PATTERN.findall("" if condition is None else condition.get("message", ""))
    quantities = [
        quantity
        for resource, flavor, quantity in rejections
        if (resource, flavor) == (binding.resource, binding.flavor)
    ]
    if not binding.missing_amount or not quantities or binding.missing_amount in quantities:
        return {}
    old_amount = f"{readable_quantity(binding.resource, quantities[0])} {binding.resource}"
    text = f"QuotaReserved says {old_amount} more needed: the usage of quota has changed since it was written"
    return {"facts": {"condition": text}}


def _usages_ahead(pending_queue: PendingQueue, workload: str) -> tuple[str, str] | None:
    """Return the usage of the first LocalQueue and of a Workload's LocalQueue; None if the first is not less."""
    if not isinstance(pending_queue, UsageOrderedQueue) or pending_queue.get(workload) is None:
        return None
    usages = pending_queue.usages_ahead_of(workload)
    return None if usages is None else (f"{usages[0]:.4g}", f"{usages[1]:.4g}")


def _usage_order_text(pending_queue: PendingQueue, workload: str) -> str:
    """Return a note that a Workload is behind because its LocalQueue has used more; '' if that is not the reason."""
    usages = _usages_ahead(pending_queue, workload)
    if usages is None:
        return ""
    return f" (admission fair sharing: the usage of its LocalQueue is {usages[0]}, that of this one is {usages[1]})"


def _queueing_strategy(queue: ClusterQueue, pending_queue: PendingQueue, workload: str) -> str:
    strategy = "StrictFIFO" if queue.view.strict_fifo else "BestEffortFIFO"
    if not isinstance(pending_queue, UsageOrderedQueue):
        return strategy
    usages = _usages_ahead(pending_queue, workload)
    usage_text = "" if usages is None else f" ({usages[0]} before {usages[1]})"
    return f"{strategy}, LocalQueues with less usage first{usage_text}"


def _join_obstacles(analysis: PendingAnalysis) -> str:
    obstacles = [outcome.obstacle for pod_set in analysis.outcomes for outcome in pod_set.outcomes if outcome.obstacle]
    return "; ".join(dict.fromkeys(obstacles))


def _describe_shortage(analysis: PendingAnalysis, limit_kind: str, limiting_object: str) -> str:
    shortage = analysis.shortage
    assert shortage is not None
    assert shortage.request is not None
    assert shortage.outcome is not None
    request, flavor = shortage.request, shortage.outcome.flavor
    request_text = f"{readable_amount(request.resource, request.total)} {request.resource} of flavor {flavor} requested"
    other_requests = [
        each.resource for each in shortage.outcome.binding_requests() if each.resource != request.resource
    ]
    verb = select_verb(len(other_requests), "is", "are")
    others_text = f"; {' and '.join(other_requests)} {verb} also short" if other_requests else ""
    if limit_kind == MAXIMUM:
        potential_text = readable_amount(request.resource, request.potential_quota)
        queue = f"ClusterQueue {analysis.queue.name}"
        return f"{request_text}, but {queue} can never use more than {potential_text}{others_text}"
    free_quota_text = readable_amount(request.resource, max(0, request.free_quota))
    missing_text = readable_amount(request.resource, request.shortfall)
    cause_by_limit = {
        BORROWING: f"the borrowingLimit of {limiting_object} is reached",
        LENDING: f"the lendingLimit of {limiting_object} keeps the unused quota",
        PRIORITY: "the Workloads that hold it do not have a lower priority",
    }
    shortage_cause = cause_by_limit.get(limit_kind, f"the quota of {limiting_object} is in use")
    return f"{request_text}, {free_quota_text} free, {missing_text} more needed: {shortage_cause}{others_text}"
