"""Details of scheduling decisions for the decision ledger: flavors, victims, and Workloads not preempted."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from batchyard.api.meta import format_amount
from batchyard.api.views.workload import WorkloadView
from batchyard.scheduling.cluster_queue import FlavorAttempt
from batchyard.scheduling.decisions import Admit, InadmissibleReason, Preempt
from batchyard.scheduling.flavor_assigner import Assignment, PodSetAssignment
from batchyard.scheduling.preemption.alternatives import SparedWorkload, SparedWorkloads
from batchyard.scheduling.preemption.context import PreemptionTarget
from batchyard.scheduling.preemption.shrinking import pod_counts_after
from batchyard.scheduling.quota import PreemptionPossibility

#: The maximum number of recorded victims, and of flavors per pod set. The number of all victims is recorded too.
_RECORDED_ITEMS_MAX: Final = 32
#: Kueue's wording of the result for a considered flavor.
POSSIBILITY_WORDS: Final[Mapping[PreemptionPossibility, str]] = {
    PreemptionPossibility.NO_FIT: "NoFit",
    PreemptionPossibility.NO_CANDIDATES: "preemptionMode=NoCandidates",
    PreemptionPossibility.PREEMPT: "preemptionMode=Preempt",
    PreemptionPossibility.RECLAIM: "preemptionMode=Reclaim",
    PreemptionPossibility.FIT: "Fit",
}


def admission_details(decision: Admit, cycle: int) -> Mapping[str, Any]:
    """Return an admission's details for the decision ledger: the assigned and the considered flavors by pod set."""
    return {"cycle": cycle, "clusterQueue": decision.queue.name, "podSets": _pod_sets_details(decision.assignment)}


def pending_details(reason: InadmissibleReason, cycle: int) -> Mapping[str, Any]:
    """Return a pending decision's details for the decision ledger: cycle number, and flavor search if there was one."""
    return {"cycle": cycle, **({} if reason.assignment is None else {"podSets": _pod_sets_details(reason.assignment)})}


def preemption_details(decision: Preempt, cycle: int, spared_workloads: SparedWorkloads) -> Mapping[str, Any]:
    """Return a preemption's details for the decision ledger: preemptor, first 32 victims, spared Workloads, flavors."""
    preemptor = decision.head.workload
    return {
        "cycle": cycle,
        "preemptor": {**_workload_fields(preemptor), "clusterQueue": decision.queue.name},
        "targets": [_target_details(target) for target in decision.targets[:_RECORDED_ITEMS_MAX]],
        "targetsInAll": len(decision.targets),
        "spared": [_spared_details(each) for each in spared_workloads.spared_workloads],
        "sparedInAll": spared_workloads.total_count,
        "podSets": [] if decision.why.assignment is None else _pod_sets_details(decision.why.assignment),
    }


def _workload_fields(workload: WorkloadView) -> dict[str, Any]:
    return {"workload": workload.key, "uid": workload.uid, "priority": workload.priority}


def _target_details(target: PreemptionTarget) -> dict[str, Any]:
    victim = target.workload
    victim_fields = {"workload": victim.key, "uid": victim.uid, "priority": victim.priority}
    rules = {"preemptionConfig": target.rules} if target.rules else {}
    shrinks = {} if victim.whole is None else {"shrinksTo": pod_counts_after(victim)[0]}
    return {**victim_fields, "clusterQueue": victim.queue.name, "rule": target.reason, **rules, **shrinks}


def _spared_details(spared_workload: SparedWorkload) -> dict[str, Any]:
    holder_workload = spared_workload.holder.workload
    spared_fields = {
        "workload": holder_workload.key,
        "uid": holder_workload.uid,
        "priority": holder_workload.priority,
        "clusterQueue": holder_workload.queue.name,
    }
    return {**spared_fields, "rule": spared_workload.reason.rule, "why": spared_workload.reason.text}


def _pod_sets_details(assignment: Assignment) -> Sequence[dict[str, Any]]:
    return [_pod_set_details(each) for each in assignment.pod_sets]


def _pod_set_details(assignment: PodSetAssignment) -> dict[str, Any]:
    requests = {resource: format_amount(resource, amount) for resource, amount in assignment.requests}
    attempts = sorted(assignment.attempts)[:_RECORDED_ITEMS_MAX]
    return {
        "name": assignment.name,
        "count": assignment.count,
        "requests": requests,
        "flavors": {resource: choice.flavor for resource, choice in sorted(assignment.choices.items())},
        "borrowsFromHeight": max([choice.borrowing_height for choice in assignment.choices.values()], default=0),
        "considered": [_attempt_details(attempt) for attempt in attempts],
    }


def _attempt_details(attempt: FlavorAttempt) -> dict[str, Any]:
    reasons = sorted(map(str, attempt.rejections))
    verdict = POSSIBILITY_WORDS[attempt.possibility]
    attempt_fields = {"flavor": attempt.flavor, "verdict": verdict, "borrowsFromHeight": attempt.borrowing_height}
    return {**attempt_fields, **({"against": reasons} if reasons else {})}
