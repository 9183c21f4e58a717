"""What a decision about admission rested on, as the decision ledger keeps it: plain values, worked out when asked."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from batchyard.api.quantity import format_amount
from batchyard.api.views.workload import WorkloadView
from batchyard.core.assignment import Assignment, PodSetAssignment
from batchyard.core.decisions import Admit, Preempt, Why
from batchyard.core.explain.spared import Spared, Weighed
from batchyard.core.preemption.request import Target
from batchyard.core.quality import Possibility
from batchyard.core.scan import Attempt

#: Of more victims, or flavors, only the first are told, and how many there were.
_TOLD_MAX: Final = 32
#: How Kueue's messages say what became of a flavor.
WORDS: Final[Mapping[Possibility, str]] = {
    Possibility.NO_FIT: "NoFit",
    Possibility.NO_CANDIDATES: "preemptionMode=NoCandidates",
    Possibility.PREEMPT: "preemptionMode=Preempt",
    Possibility.RECLAIM: "preemptionMode=Reclaim",
    Possibility.FIT: "Fit",
}


def of_admission(decision: Admit, cycle: int) -> Mapping[str, Any]:
    """Where its quota came from, and which flavors were looked at before."""
    return {"cycle": cycle, "clusterQueue": decision.queue.name, "podSets": _pod_sets(decision.assignment)}


def of_wait(why: Why, cycle: int) -> Mapping[str, Any]:
    """What came of each flavor."""
    return {"cycle": cycle, **({} if why.assignment is None else {"podSets": _pod_sets(why.assignment)})}


def of_preemption(decision: Preempt, cycle: int, others: Weighed) -> Mapping[str, Any]:
    """For whom, by which rule, who else goes, and who stays although he holds some of it."""
    preemptor = decision.head.workload
    return {
        "cycle": cycle,
        "preemptor": {**_named(preemptor), "clusterQueue": decision.queue.name},
        "targets": [_target(target) for target in decision.targets[:_TOLD_MAX]],
        "targetsInAll": len(decision.targets),
        "spared": [_spared(each) for each in others.spared],
        "sparedInAll": others.in_all,
        "podSets": [] if decision.why.assignment is None else _pod_sets(decision.why.assignment),
    }


def _named(workload: WorkloadView) -> dict[str, Any]:
    return {"workload": workload.key, "uid": workload.uid, "priority": workload.priority}


def _target(target: Target) -> dict[str, Any]:
    victim = target.workload
    named = {"workload": victim.key, "uid": victim.uid, "priority": victim.priority}
    return {**named, "clusterQueue": victim.queue.name, "rule": target.reason}


def _spared(spared: Spared) -> dict[str, Any]:
    stays = spared.holder.workload
    named = {"workload": stays.key, "uid": stays.uid, "priority": stays.priority, "clusterQueue": stays.queue.name}
    return {**named, "rule": spared.reason.rule, "why": spared.reason.text}


def _pod_sets(assignment: Assignment) -> Sequence[dict[str, Any]]:
    return [_pod_set(each) for each in assignment.pod_sets]


def _pod_set(assignment: PodSetAssignment) -> dict[str, Any]:
    asked = {resource: format_amount(resource, amount) for resource, amount in assignment.requests}
    attempts = sorted(assignment.attempts)[:_TOLD_MAX]
    return {
        "name": assignment.name,
        "count": assignment.count,
        "requests": asked,
        "flavors": {resource: choice.flavor for resource, choice in sorted(assignment.choices.items())},
        "borrowsFromHeight": max([choice.borrow for choice in assignment.choices.values()], default=0),
        "considered": [_attempt(attempt) for attempt in attempts],
    }


def _attempt(attempt: Attempt) -> dict[str, Any]:
    against = sorted(map(str, attempt.facts))
    told = {"flavor": attempt.flavor, "verdict": WORDS[attempt.possibility], "borrowsFromHeight": attempt.borrow}
    return {**told, **({"against": against} if against else {})}
