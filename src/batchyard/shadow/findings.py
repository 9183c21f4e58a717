"""Findings: the divergences that the shadow reports, with reasons and places to look."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from batchyard.api.times import format_time
from batchyard.base.instant import SECOND, Instant
from batchyard.scheduling.decisions import Admit, Decision, Preempt, StayPending
from batchyard.shadow.observed import Observed, ObservedAdmission, PodSets, predicted_of

API_VERSION: Final = "batchyard.dev/v1alpha1"


class DivergenceType(StrEnum):
    """The types of divergence."""

    #: Both admit, but with other flavors or another number of pods.
    FLAVORS = "Flavors"
    #: Kueue admits, the model does not.
    ADMITTED = "Admitted"
    #: The model admits, Kueue does not.
    NOT_ADMITTED = "NotAdmitted"
    #: Both preempt for the same Workload, but other victims.
    VICTIMS = "Victims"
    #: Kueue preempts, the model does not.
    PREEMPTED = "Preempted"
    #: The model preempts, Kueue does not.
    NOT_PREEMPTED = "NotPreempted"
    #: Kueue evicts without a reason known to the model.
    EVICTED = "Evicted"
    #: Kueue requeues a Workload that the model does not.
    REQUEUED = "Requeued"
    #: Both preempt the same victims, but Kueue's message gives another reason.
    MESSAGE = "Message"
    #: The model evicts, requeues or admits, and Kueue does not.
    NOT_DONE = "NotDone"
    #: Kueue did a decision that was reported as not done.
    LATE = "Late"


@dataclass(frozen=True, slots=True)
class Divergence:
    """One divergence."""

    parting: DivergenceType
    at: Instant
    #: The Workload, as namespace/name.
    workload: str
    message: str
    #: What Kueue did, and what the model would have done.
    upstream: Mapping[str, Any] = field(default_factory=dict)
    predicted: Mapping[str, Any] = field(default_factory=dict)
    #: When Kueue did it, or since when the model would have; None: the time of the report.
    since: Instant | None = None
    #: Places to look for the cause.
    look: Sequence[str] = ()

    def document(self) -> dict[str, Any]:
        """Return the JSON form."""
        kind = "Late" if self.parting is DivergenceType.LATE else "Divergence"
        header = {"apiVersion": API_VERSION, "kind": kind, "time": format_time(self.at), "type": self.parting.value}
        return {
            **header,
            "since": format_time(self.at if self.since is None else self.since),
            "workload": self.workload,
            "message": self.message,
            "upstream": dict(self.upstream),
            "predicted": dict(self.predicted),
            "look": list(self.look),
        }

    def why(self) -> str:
        """Return our message, unless the finding's message contains it."""
        why = str(self.predicted.get("message") or "")
        return "" if why in self.message else why

    def text(self) -> str:
        """Return the text form: the divergence, the reason, and where to look."""
        lines = [f"{format_time(self.at)} {self.parting.value} {self.workload}: {self.message}"]
        if self.since is not None:
            lines.append(f"since: {format_time(self.since)}")
        if why := self.why():
            lines.append(f"why: {why}")
        lines += [f"look: {each}" for each in self.look]
        return "\n    ".join(lines)


@dataclass(slots=True)
class ComparisonCounts:
    """The counts of comparisons and their results."""

    #: Agreed decisions by type (`admission`, `preemption`, `eviction`).
    agreed: dict[str, int] = field(default_factory=dict)
    #: The agreed decisions in which Kueue chose another of two equivalent victims.
    alike: int = 0
    #: Divergences by type.
    parted: dict[str, int] = field(default_factory=dict)
    late: int = 0
    #: Decisions that were not compared because a watch had a gap.
    unseen: int = 0

    @property
    def divergences(self) -> int:
        """The number of divergences."""
        return sum(self.parted.values())

    def plus(self, other: "ComparisonCounts") -> "ComparisonCounts":
        """Return the sum of both."""
        agreed, parted = (
            {name: one.get(name, 0) + two.get(name, 0) for name in {**one, **two}}
            for one, two in ((self.agreed, other.agreed), (self.parted, other.parted))
        )
        return ComparisonCounts(
            agreed, self.alike + other.alike, parted, self.late + other.late, self.unseen + other.unseen
        )

    def document(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "apiVersion": API_VERSION,
            "kind": "ShadowSummary",
            "agreed": dict(sorted(self.agreed.items())),
            "alike": self.alike,
            "divergences": self.divergences,
            "byType": dict(sorted(self.parted.items())),
            "late": self.late,
            "unseen": self.unseen,
        }


def observed_document(observed: Observed, names: Mapping[str, str]) -> dict[str, Any]:
    """Return the JSON form of an observed decision; `names` maps uids to Workloads."""
    if isinstance(observed, ObservedAdmission):
        return {"decision": "admit", "clusterQueue": observed.queue, "podSets": _pod_sets(observed.pod_sets)}
    return {"decision": "preempt", "reason": observed.reason, "by": names.get(observed.by, observed.by)}


def predicted_document(decision: Decision | None) -> dict[str, Any]:
    """Return the JSON form of a decision of the model."""
    match decision:
        case None:
            return {"decision": "none"}
        case Admit():
            found = predicted_of(decision)
            return {"decision": "admit", "clusterQueue": found.queue, "podSets": _pod_sets(found.pod_sets)}
        case Preempt():
            targets = [{"workload": each.workload.key, "reason": each.reason} for each in decision.targets]
            return {"decision": "preempt", "targets": targets, "message": decision.why.message}
        case StayPending():
            return {"decision": "wait", "reason": decision.why.reason, "message": decision.why.message}


def flavors_in_words(pod_sets: PodSets) -> str:
    """Format the flavors and the pod count of each pod set."""
    parts = []
    for name, count, flavors in pod_sets:
        chosen = dict.fromkeys(flavor for _, flavor in flavors)
        parts.append(f"{count} of {name} on {', '.join(chosen) or 'no flavor'}")
    return "; ".join(parts)


def ours_in_words(decision: Decision | None) -> str:
    """Describe in a few words what the model would do."""
    match decision:
        case None:
            return "we know of nothing that it waits for"
        case Admit():
            return f"we admit it with {flavors_in_words(predicted_of(decision).pod_sets)}"
        case Preempt():
            return f"we preempt {', '.join(sorted(each.workload.key for each in decision.targets))} for it"
        case StayPending():
            return f"we leave it waiting: {decision.why.message}"


def _pod_sets(pod_sets: PodSets) -> Sequence[Mapping[str, Any]]:
    return [{"name": name, "count": count, "flavors": dict(flavors)} for name, count, flavors in pod_sets]


# --- where to look ---
#
# Where to look for the cause of a divergence: the objects, the fields that decide, and Kueue's log of that time.


#: How much of the log before the divergence is worth reading.
_BEFORE: Final = 10 * SECOND
FAIR_SHARING: Final = "InCohortFairSharing"

#: By divergence type, the fields that decide.
_PREEMPTION: Final = "preemption; in Kueue's configuration fairSharing; priorities of the Workloads"
_STOPS: Final = "stopPolicy, of its LocalQueue too; spec.active, status.requeueState of the Workload"
_DECIDES: Final[Mapping[DivergenceType, str]] = {
    DivergenceType.FLAVORS: "order of flavors, flavorFungibility; of the Workload nodeSelector, tolerations, minCount",
    DivergenceType.ADMITTED: "quotas, borrowingLimit, queueingStrategy, admissionScope; lendingLimits of the cohort",
    DivergenceType.NOT_ADMITTED: "stopPolicy, quotas, admissionScope; in Kueue's configuration waitForPodsReady",
    DivergenceType.VICTIMS: _PREEMPTION,
    DivergenceType.PREEMPTED: _PREEMPTION,
    DivergenceType.NOT_PREEMPTED: _PREEMPTION,
    DivergenceType.EVICTED: _STOPS,
    DivergenceType.REQUEUED: _STOPS,
    DivergenceType.NOT_DONE: f"{_STOPS}; its admissionChecks",
    DivergenceType.MESSAGE: "whether something other than Kueue writes the status of Workloads; which version Kueue is",
}


def where_to_look(parting: DivergenceType, workload: str, queue: str, at: Instant, hint: str = "") -> Sequence[str]:
    """Return commands, each with the fields that decide, `hint` first. `at` is when it was seen or began."""
    namespace, _, name = workload.rpartition("/")
    queues = f"clusterqueue {queue}" if queue else f"localqueues -n {namespace}"
    since = format_time((at - _BEFORE) // SECOND * SECOND)
    return [
        *([hint] if hint else []),
        f"kubectl get {queues} -o yaml  # {_DECIDES[parting]}",
        f"kubectl get workload -n {namespace} {name} -o yaml",
        f"kubectl logs -n kueue-system deploy/kueue-controller-manager --since-time={since} | grep {name}",
    ]


def other_sharing(reason: str, foreseen: Sequence[str], *, is_fair: bool) -> str:
    """Return a hint if Kueue's fair sharing setting seems to differ from the shadow's; else ''."""
    if reason == FAIR_SHARING and not is_fair:
        return "this Kueue shares fairly: begin the shadow with --fair-sharing"
    if is_fair and FAIR_SHARING in foreseen and reason != FAIR_SHARING:
        return "if this Kueue does not share fairly, begin the shadow without --fair-sharing"
    return ""
