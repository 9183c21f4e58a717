"""Findings: the divergences from Kueue and the counts that the shadow reports, as text and JSON, with hints."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from batchyard.api.times import format_second, format_time
from batchyard.base.instant import SECOND, Instant
from batchyard.scheduling.decisions import Admit, Decision, Preempt, StayPending
from batchyard.shadow.observed import KueueDecision, ObservedAdmission, PodSets, predicted_admission

API_VERSION: Final = "batchyard.dev/v1alpha1"


class DivergenceType(StrEnum):
    """The ways in which Kueue and batchyard's scheduler (the model) can diverge."""

    #: Both admit, but with different flavors or pod counts.
    FLAVORS = "Flavors"
    #: Kueue admits, the model does not.
    ADMITTED = "Admitted"
    #: The model admits, Kueue does not.
    NOT_ADMITTED = "NotAdmitted"
    #: Both preempt for the same Workload, but choose different victims.
    VICTIMS = "Victims"
    #: Kueue preempts, the model does not.
    PREEMPTED = "Preempted"
    #: The model preempts, Kueue does not.
    NOT_PREEMPTED = "NotPreempted"
    #: Kueue evicts without a reason known to the model.
    EVICTED = "Evicted"
    #: Kueue requeues a Workload that the model does not, or writes another requeue count.
    REQUEUED = "Requeued"
    #: A message that Kueue wrote contradicts other fields of the Workload.
    MESSAGE = "Message"
    #: The model evicts, requeues or admits, and Kueue does not.
    NOT_DONE = "NotDone"
    #: Kueue made a decision that was reported as missing.
    LATE = "Late"


@dataclass(frozen=True, slots=True)
class Divergence:
    """One divergence between Kueue and batchyard's scheduler, or a decision that Kueue made late."""

    divergence_type: DivergenceType
    at: Instant
    #: The Workload, as namespace/name.
    workload: str
    message: str
    #: What Kueue did, and what the model would have done.
    kueue_action: Mapping[str, Any] = field(default_factory=dict)
    model_action: Mapping[str, Any] = field(default_factory=dict)
    #: When Kueue decided, or when the model first did; None: the time of the report.
    since: Instant | None = None
    #: Hints and commands that help to find the cause.
    hints: Sequence[str] = ()

    def document(self) -> dict[str, Any]:
        """Return the divergence as a JSON document of kind Divergence, or Late for a late decision."""
        divergence_type = self.divergence_type
        kind = "Late" if divergence_type is DivergenceType.LATE else "Divergence"
        header = {"apiVersion": API_VERSION, "kind": kind, "time": format_time(self.at), "type": divergence_type.value}
        return {
            **header,
            "since": format_time(self.at if self.since is None else self.since),
            "workload": self.workload,
            "message": self.message,
            "upstream": dict(self.kueue_action),
            "predicted": dict(self.model_action),
            "look": list(self.hints),
        }

    def explanation(self) -> str:
        """Return why batchyard's scheduler decided otherwise; '' if that is unknown, or part of `message`."""
        model_message = str(self.model_action.get("message") or "")
        return "" if model_message in self.message else model_message

    def text(self) -> str:
        """Return the divergence as text: what differs, why batchyard differs, and commands to find the cause."""
        lines = [f"{format_second(self.at)} {self.divergence_type.value} {self.workload}: {self.message}"]
        if self.since is not None:
            lines.append(f"since: {format_second(self.since)}")
        if explanation := self.explanation():
            lines.append(f"why: {explanation}")
        lines += [f"look: {each}" for each in self.hints]
        return "\n    ".join(lines)


@dataclass(slots=True)
class ComparisonCounts:
    """The numbers of Kueue's decisions by the result of the comparison: agreed, diverging, late, and not compared."""

    #: Agreed decisions by type (`admission`, `preemption`, `eviction`).
    agreements: dict[str, int] = field(default_factory=dict)
    #: The agreed decisions in which Kueue chose another of two equivalent victims.
    alike_count: int = 0
    #: Divergences by type.
    divergences: dict[str, int] = field(default_factory=dict)
    late_count: int = 0
    #: Decisions that were not compared because a watch had a gap.
    unseen_count: int = 0

    @property
    def divergence_count(self) -> int:
        """The number of divergences of all types."""
        return sum(self.divergences.values())

    def plus(self, other_counts: "ComparisonCounts") -> "ComparisonCounts":
        """Return the sum of these comparison counts and `other_counts`."""
        agreements, divergences = (
            {name: first_counts.get(name, 0) + second_counts.get(name, 0) for name in {**first_counts, **second_counts}}
            for first_counts, second_counts in (
                (self.agreements, other_counts.agreements),
                (self.divergences, other_counts.divergences),
            )
        )
        late, unseen = self.late_count + other_counts.late_count, self.unseen_count + other_counts.unseen_count
        return ComparisonCounts(agreements, self.alike_count + other_counts.alike_count, divergences, late, unseen)

    def document(self) -> dict[str, Any]:
        """Return the comparison counts as a JSON document."""
        return {
            "apiVersion": API_VERSION,
            "kind": "ShadowSummary",
            "agreed": dict(sorted(self.agreements.items())),
            "alike": self.alike_count,
            "divergences": self.divergence_count,
            "byType": dict(sorted(self.divergences.items())),
            "late": self.late_count,
            "unseen": self.unseen_count,
        }


def observed_document(decision: KueueDecision, names_by_uid: Mapping[str, str]) -> dict[str, Any]:
    """Return the JSON form of a decision that Kueue made; `names_by_uid` are the names of Workloads."""
    if isinstance(decision, ObservedAdmission):
        return {"decision": "admit", "clusterQueue": decision.queue, "podSets": _pod_sets(decision.pod_sets)}
    preemptor = names_by_uid.get(decision.preemptor_uid, decision.preemptor_uid)
    return {"decision": "preempt", "reason": decision.reason, "by": preemptor}


def predicted_document(decision: Decision | None) -> dict[str, Any]:
    """Return the JSON form of a decision of batchyard's scheduler (None: it makes no decision about the Workload)."""
    match decision:
        case None:
            return {"decision": "none"}
        case Admit():
            admission = predicted_admission(decision)
            return {"decision": "admit", "clusterQueue": admission.queue, "podSets": _pod_sets(admission.pod_sets)}
        case Preempt():
            targets = [{"workload": each.workload.key, "reason": each.reason} for each in decision.targets]
            return {"decision": "preempt", "targets": targets, "message": decision.why.message}
        case StayPending():
            return {"decision": "wait", "reason": decision.why.reason, "message": decision.why.message}


def describe_flavors(pod_sets: PodSets) -> str:
    """Return, as text, the pod count and the flavors of each pod set of an admission."""
    pod_set_texts = []
    for name, count, flavors in pod_sets:
        flavor_names = dict.fromkeys(flavor for _, flavor in flavors)
        pod_set_texts.append(f"{count} of {name} on {', '.join(flavor_names) or 'no flavor'}")
    return "; ".join(pod_set_texts)


def describe_prediction(decision: Decision | None) -> str:
    """Return a decision of batchyard's scheduler as a clause, such as `we admit it with 2 of main on spot`."""
    match decision:
        case None:
            return "the model finds it neither pending nor ready to schedule"
        case Admit():
            return f"we admit it with {describe_flavors(predicted_admission(decision).pod_sets)}"
        case Preempt():
            return f"we preempt {', '.join(sorted(each.workload.key for each in decision.targets))} for it"
        case StayPending():
            return f"we leave it waiting: {decision.why.message}"


def _pod_sets(pod_sets: PodSets) -> Sequence[Mapping[str, Any]]:
    return [{"name": name, "count": count, "flavors": dict(flavors)} for name, count, flavors in pod_sets]


# Where to look for the cause of a divergence: the objects, the fields that decide, and Kueue's log of that time.


#: The length of Kueue's log to read before the divergence.
_LOG_LEAD_TIME: Final = 10 * SECOND
FAIR_SHARING: Final = "InCohortFairSharing"

#: By divergence type: the fields that affect the decision.
_PREEMPTION_FIELDS: Final = "preemption; fairSharing in Kueue's configuration; priorities of the Workloads"
_STOP_FIELDS: Final = "stopPolicy, also of the LocalQueue; spec.active and status.requeueState of the Workload"
_RELEVANT_FIELDS: Final[Mapping[DivergenceType, str]] = {
    DivergenceType.FLAVORS: "order of flavors, flavorFungibility; the Workload's nodeSelector, tolerations, minCount",
    DivergenceType.ADMITTED: "quotas, borrowingLimit, queueingStrategy, admissionScope; lendingLimits of the cohort",
    DivergenceType.NOT_ADMITTED: "stopPolicy, quotas, admissionScope; in Kueue's configuration waitForPodsReady",
    DivergenceType.VICTIMS: _PREEMPTION_FIELDS,
    DivergenceType.PREEMPTED: _PREEMPTION_FIELDS,
    DivergenceType.NOT_PREEMPTED: _PREEMPTION_FIELDS,
    DivergenceType.EVICTED: _STOP_FIELDS,
    DivergenceType.REQUEUED: _STOP_FIELDS,
    DivergenceType.NOT_DONE: f"{_STOP_FIELDS}; its admissionChecks",
    DivergenceType.MESSAGE: "whether a client other than Kueue writes Workload status; the version of Kueue",
}


def diagnostic_commands(
    divergence_type: DivergenceType, workload: str, queue: str, at: Instant, hint: str = ""
) -> Sequence[str]:
    """Return `hint`, if any, then kubectl commands to find the cause of a divergence of a Workload.

    `queue` is the ClusterQueue, or '' for all LocalQueues of the namespace. The log is read from 10 s before `at`.
    """
    namespace, _, name = workload.rpartition("/")
    queue_arguments = f"clusterqueue {queue}" if queue else f"localqueues -n {namespace}"
    log_start_text = format_second(at - _LOG_LEAD_TIME)
    return [
        *([hint] if hint else []),
        f"kubectl get {queue_arguments} -o yaml  # {_RELEVANT_FIELDS[divergence_type]}",
        f"kubectl get workload -n {namespace} {name} -o yaml",
        f"kubectl logs -n kueue-system deploy/kueue-controller-manager --since-time={log_start_text} | grep {name}",
    ]


def fair_sharing_hint_for(reason: str, predicted_reasons: Sequence[str], *, is_fair: bool) -> str:
    """Return a hint if Kueue's preemption reason suggests that Kueue's fair sharing is not as `is_fair`; else ''.
    `is_fair` is the fair sharing setting of batchyard's scheduler in shadow mode; `predicted_reasons` are the reasons
    of its preemptions.
    """
    if reason == FAIR_SHARING and not is_fair:
        return "Kueue uses fair sharing: start the shadow with --fair-sharing"
    if is_fair and FAIR_SHARING in predicted_reasons and reason != FAIR_SHARING:
        return "if Kueue does not use fair sharing, start the shadow without --fair-sharing"
    return ""
