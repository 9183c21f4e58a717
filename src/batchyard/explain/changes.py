"""The changes that an explanation suggests: they would admit a pending Workload, or correct its queue or objects."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, closing
from typing import Final

from batchyard.api import scheme
from batchyard.api.meta import Key, Obj, controller_of
from batchyard.api.views.workload import WorkloadView
from batchyard.base.counts import count_with_noun, select_verb
from batchyard.explain import blockers
from batchyard.explain.budget_raises import holding_budgets
from batchyard.explain.cohort_simulation import OTHER_WORKLOADS_MAX, CohortSimulation, HypotheticalChange
from batchyard.explain.document import DocumentPart, ExplanationUser, assess_flavors, nonempty_fields
from batchyard.explain.fixes import (
    BlockedWorkload,
    QueueCorrection,
    find_queue_corrections,
    propose_local_queues,
    propose_new_local_queues,
    remedy_of,
)
from batchyard.explain.proposals import (
    ENDED_WORKLOADS_MAX,
    FIX,
    ProposalCase,
    deactivation_proposal,
    propose_borrowing_preemption,
    propose_flavors,
    propose_preemption_rules,
    propose_priority,
    propose_queueing_strategy,
    propose_size,
    propose_withdrawals,
    propose_workload_ends,
)
from batchyard.explain.quota_raises import propose_coverage, propose_quota_raises
from batchyard.explain.searches import Proposal, Search, SearchResult, run_searches
from batchyard.explain.topology import (
    TopologyAnalysis,
    propose_added_nodes,
    propose_foreign_ends,
    propose_looser_topology,
)
from batchyard.interfaces.client import Reader
from batchyard.scheduling.cycle import SchedulingPolicy
from batchyard.scheduling.preemption.alternatives import MissingQuotaHolder
from batchyard.scheduling.scheduler_cache import SchedulerCache
from batchyard.scheduling.workload.pods_ready import has_pods

_LIMIT_REACHED: Final = "the limit of simulated decisions was reached: further or smaller changes may exist"
_NO_CHANGE_FOUND: Final = (
    "neither a single change of quota, priority, preemption policy, size, flavor or queueing strategy nor the end of"
    " other Workloads would admit it"
)
_NO_TOPOLOGY_CHANGE_FOUND: Final = (
    "neither a looser topology request, more nodes in one domain, fewer pods, a higher priority nor the end of other"
    " Workloads alone would admit it"
)


class ChangeExplainer:
    """Searches for changes that would admit pending Workloads."""

    def __init__(self, scheduler_cache: SchedulerCache, policy: SchedulingPolicy, reader: Reader) -> None:
        self._cache = scheduler_cache
        self._policy = policy
        self._reader = reader

    def changes_part(
        self,
        proposal_case: ProposalCase,
        holders: Sequence[MissingQuotaHolder],
        user: ExplanationUser,
        topology: TopologyAnalysis | None = None,
    ) -> DocumentPart:
        """Return the document field `changes`: the changes that would admit the Workload, verified by simulation.

        The field `changesEnd` is added if no change was found, or if the search reached its limit. `holders` are the
        Workloads that hold the missing quota. `topology` is set if the topology is the limit.
        """
        result = self._search_changes(proposal_case, holders, user, topology)
        changes = [_proposal_part(each, proposal_case.simulation) for each in result.proposals]
        nothing_found = _NO_CHANGE_FOUND if topology is None else _NO_TOPOLOGY_CHANGE_FOUND
        changes_end = _LIMIT_REACHED if result.is_limit_reached else "" if changes else nothing_found
        return nonempty_fields(changes=changes, changesEnd=changes_end)

    def _search_changes(
        self,
        proposal_case: ProposalCase,
        holders: Sequence[MissingQuotaHolder],
        user: ExplanationUser,
        topology: TopologyAnalysis | None = None,
    ) -> SearchResult:
        build_view = self._cache.hypothetical_view
        priority_classes = self._reader.list(scheme.WORKLOAD_PRIORITY_CLASS)
        priority_values = {each["metadata"]["name"]: each.get("value", 0) for each in priority_classes}
        holder_keys = [holder.workload.key for holder in holders]
        topology_searches: list[Search] = []
        if topology is not None:
            foreign_keys = proposal_case.simulation.foreign_usage
            holder_keys = [each.key for each in topology.occupants() if each.key not in foreign_keys]
            topology_searches = [
                propose_looser_topology(proposal_case, topology, build_view),
                propose_added_nodes(topology),
                propose_foreign_ends(topology, proposal_case, user.name_of),
            ]
        searches = [
            propose_queueing_strategy(proposal_case),
            propose_flavors(proposal_case, build_view),
            propose_coverage(proposal_case),
            propose_quota_raises(proposal_case),
            propose_priority(proposal_case, build_view, priority_values),
            propose_preemption_rules(proposal_case),
            propose_borrowing_preemption(proposal_case),
            *topology_searches,
            propose_size(proposal_case, build_view),
            propose_workload_ends(holder_keys, user.name_of),
            propose_withdrawals(proposal_case, user.name_of),
        ]
        return run_searches(searches, proposal_case.simulation)

    def fixes_part(self, blocked_workload: BlockedWorkload, user: ExplanationUser) -> DocumentPart:
        """Return the fields `changes` and `changesEnd` for a Workload that waits for another reason than quota."""
        self._cache.snapshot.rebuild_if_changed()
        if blocked_workload.limit.limit == blockers.PODS_READY:
            return self.unready_part(blocked_workload, user)
        blocked_workload = blocked_workload._replace(
            budgets=holding_budgets(blocked_workload.queues.local_queue, self._reader)
        )
        queue_corrections = find_queue_corrections(blocked_workload, self._cache)
        if queue_corrections:
            return self._corrections_part(blocked_workload, queue_corrections, user)
        proposals = list(propose_local_queues(blocked_workload, self._cache, self._policy))
        proposals = proposals or list(propose_new_local_queues(blocked_workload, self._cache, self._policy))
        changes = [each.document() for each in proposals]
        return nonempty_fields(changes=changes, changesEnd="" if changes else remedy_of(blocked_workload, self._cache))

    def unready_part(self, blocked_workload: BlockedWorkload, user: ExplanationUser) -> DocumentPart:
        """Return the document fields `changes` and `changesEnd` for a Workload blocked by the unready pods of others.

        At most one change is proposed: end the Workloads whose pods are not ready, and withdraw the other blocked
        Workloads of Jobs and JobSets. It is proposed only if a simulation with it admits the Workload, and if no
        further Workload could be admitted first.
        """
        view, keys = blocked_workload.view, blockers.unready_workloads(self._cache, self._reader)
        queue = self._cache.snapshot.queues[blocked_workload.queues.cluster_queue_name]
        blocked_views = [each for each in blockers.blocked_views(self._cache) if each.key != view.key]
        blocked_keys = [each.key for each in blocked_views if self._has_pods(each)]
        is_first = not blocked_views or self._is_only_pending_with_pods(view, blocked_keys)
        change = HypotheticalChange(ended_workloads=keys, withdrawn_workloads=blocked_keys)
        changes = []
        if keys and len(keys) <= ENDED_WORKLOADS_MAX and is_first:
            with closing(CohortSimulation(self._cache, self._policy, view, queue)) as simulation:
                if simulation.run_trial_within_limit(change).is_admitted:
                    changes.append(
                        _proposal_part(deactivation_proposal([*keys, *blocked_keys], user.name_of), simulation)
                    )
        return nonempty_fields(changes=changes, changesEnd=remedy_of(blocked_workload, self._cache))

    def _is_only_pending_with_pods(self, view: WorkloadView, withdrawn_keys: Sequence[str]) -> bool:
        pending_queues = self._cache.queue_manager.pending.values()
        if sum(map(len, pending_queues)) > OTHER_WORKLOADS_MAX:
            return False
        other_views = [
            each for queue in pending_queues for each in queue.views() if each.key not in {view.key, *withdrawn_keys}
        ]
        return not any(map(self._has_pods, other_views))

    def _has_pods(self, view: WorkloadView) -> bool:
        workload = self._reader.get(Key(scheme.WORKLOAD, view.namespace, view.name))
        return workload is not None and has_pods(workload)

    def _corrections_part(
        self, blocked_workload: BlockedWorkload, queue_corrections: Sequence[QueueCorrection], user: ExplanationUser
    ) -> DocumentPart:
        sufficient_queues = [each for each in queue_corrections if self._is_sufficient(blocked_workload, each)]
        if sufficient_queues:
            return {"changes": [Proposal(FIX, each.text, each.patches).document() for each in sufficient_queues]}
        queue_correction = queue_corrections[0]
        with self._simulation_of(blocked_workload, queue_correction) as simulation:
            view = simulation.explained_view
            outcomes = assess_flavors(simulation.snapshot, simulation.queue, view, self._policy)
            case = ProposalCase(queue_correction.workload, view, outcomes, simulation, blocked_workload.owner_job)
            result = self._search_changes(case, (), user)
        changes = [
            _proposal_part(each._replace(text=f"{queue_correction.text}; {each.text}", apply=patches), simulation)
            for each in result.proposals
            for patches in ([*queue_correction.patches, *each.apply] if each.apply else (),)
        ]
        changes_end = (
            f"{queue_correction.text}: that alone is not enough, because it would then wait for quota or its turn"
        )
        return nonempty_fields(changes=changes, changesEnd=changes_end)

    def _is_sufficient(self, blocked_workload: BlockedWorkload, queue_correction: QueueCorrection) -> bool:
        with self._simulation_of(blocked_workload, queue_correction) as simulation:
            return simulation.run_trial_within_limit().is_admitted

    def _simulation_of(
        self, blocked_workload: BlockedWorkload, queue_correction: QueueCorrection
    ) -> AbstractContextManager[CohortSimulation]:
        queue = self._cache.snapshot.queues[queue_correction.objects.queue.name]
        view = blocked_workload.view
        if queue_correction.workload is not blocked_workload.workload:
            view = self._cache.hypothetical_view(queue_correction.workload, view)
        return closing(CohortSimulation(self._cache, self._policy, view, queue, queue_correction.objects))

    def owner_job(self, workload: Obj) -> Obj | None:
        """Return the Job or JobSet that controls a Workload; None if there is none."""
        owner = controller_of(workload)
        if owner is None:
            return None
        kinds = {"Job": scheme.JOB, "JobSet": scheme.JOB_SET}
        namespace = workload["metadata"].get("namespace", "")
        return self._reader.get(Key(kinds[owner["kind"]], namespace, owner["name"])) if owner["kind"] in kinds else None


def _proposal_part(proposal: Proposal, simulation: CohortSimulation) -> DocumentPart:
    part, ahead_count = proposal.document(), simulation.omitted_ahead_count
    assumptions = [part["given"]] if "given" in part else []
    if ahead_count:
        ahead_text = f"{count_with_noun(ahead_count, 'Workload')} ahead of it in the queue"
        assumptions.append(f"once the {ahead_text} {select_verb(ahead_count, 'has', 'have')} started")
    if simulation.omitted_elsewhere_count:
        others_text = count_with_noun(simulation.omitted_elsewhere_count, "other Workload")
        assumptions.append(f"if none of {others_text} in its cohort takes the quota first")
    return {**part, **nonempty_fields(given=", ".join(assumptions))}
