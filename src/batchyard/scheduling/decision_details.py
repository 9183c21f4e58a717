"""The details of decisions for the decision ledger: assignments, targets and alternatives."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from batchyard.api.meta import format_amount
from batchyard.api.views.workload import WorkloadView
from batchyard.scheduling.cluster_queue import FlavorAttempt
from batchyard.scheduling.decisions import Admit, InadmissibleReason, Preempt
from batchyard.scheduling.flavor_assigner import Assignment, PodSetAssignment
from batchyard.scheduling.preemption.alternatives import (
    Alternatives,
    PassedOver,
)
from batchyard.scheduling.preemption.context import PreemptionTarget
from batchyard.scheduling.quota import PreemptionPossibility

#: At most this many victims or flavors are recorded, with their total number.
_RECORDED_MAX: Final = 32
#: Kueue's words for the verdict on a flavor.
WORDS: Final[Mapping[PreemptionPossibility, str]] = {
    PreemptionPossibility.NO_FIT: "NoFit",
    PreemptionPossibility.NO_CANDIDATES: "preemptionMode=NoCandidates",
    PreemptionPossibility.PREEMPT: "preemptionMode=Preempt",
    PreemptionPossibility.RECLAIM: "preemptionMode=Reclaim",
    PreemptionPossibility.FIT: "Fit",
}


def admission_details(decision: Admit, cycle: int) -> Mapping[str, Any]:
    """Return where its quota comes from, and the flavors considered before."""
    return {"cycle": cycle, "clusterQueue": decision.queue.name, "podSets": _pod_sets(decision.assignment)}


def pending_details(why: InadmissibleReason, cycle: int) -> Mapping[str, Any]:
    """Return the verdict on each flavor."""
    return {"cycle": cycle, **({} if why.assignment is None else {"podSets": _pod_sets(why.assignment)})}


def preemption_details(decision: Preempt, cycle: int, others: Alternatives) -> Mapping[str, Any]:
    """Return the preemptor, the rule, all victims, and the quota holders that were passed over."""
    preemptor = decision.head.workload
    return {
        "cycle": cycle,
        "preemptor": {**_named(preemptor), "clusterQueue": decision.queue.name},
        "targets": [_target(target) for target in decision.targets[:_RECORDED_MAX]],
        "targetsInAll": len(decision.targets),
        "spared": [_spared(each) for each in others.spared],
        "sparedInAll": others.in_all,
        "podSets": [] if decision.why.assignment is None else _pod_sets(decision.why.assignment),
    }


def _named(workload: WorkloadView) -> dict[str, Any]:
    return {"workload": workload.key, "uid": workload.uid, "priority": workload.priority}


def _target(target: PreemptionTarget) -> dict[str, Any]:
    victim = target.workload
    named = {"workload": victim.key, "uid": victim.uid, "priority": victim.priority}
    return {**named, "clusterQueue": victim.queue.name, "rule": target.reason}


def _spared(spared: PassedOver) -> dict[str, Any]:
    stays = spared.holder.workload
    named = {"workload": stays.key, "uid": stays.uid, "priority": stays.priority, "clusterQueue": stays.queue.name}
    return {**named, "rule": spared.reason.rule, "why": spared.reason.text}


def _pod_sets(assignment: Assignment) -> Sequence[dict[str, Any]]:
    return [_pod_set(each) for each in assignment.pod_sets]


def _pod_set(assignment: PodSetAssignment) -> dict[str, Any]:
    asked = {resource: format_amount(resource, amount) for resource, amount in assignment.requests}
    attempts = sorted(assignment.attempts)[:_RECORDED_MAX]
    return {
        "name": assignment.name,
        "count": assignment.count,
        "requests": asked,
        "flavors": {resource: choice.flavor for resource, choice in sorted(assignment.choices.items())},
        "borrowsFromHeight": max([choice.borrow for choice in assignment.choices.values()], default=0),
        "considered": [_attempt(attempt) for attempt in attempts],
    }


def _attempt(attempt: FlavorAttempt) -> dict[str, Any]:
    against = sorted(map(str, attempt.facts))
    verdict = {"flavor": attempt.flavor, "verdict": WORDS[attempt.possibility], "borrowsFromHeight": attempt.borrow}
    return {**verdict, **({"against": against} if against else {})}
