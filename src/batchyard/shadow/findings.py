"""What a shadow tells: where two schedulers part, and why ours would have decided otherwise."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from batchyard.api.times import format_time
from batchyard.base.instant import SECOND, Instant
from batchyard.scheduling.decisions import Admit, Decision, Preempt, Wait
from batchyard.shadow.observed import Observed, ObservedAdmitted, PodSets, predicted_of

API_VERSION: Final = "batchyard.dev/v1alpha1"


class Parting(StrEnum):
    """The ways in which two schedulers part."""

    #: Both give quota, but of other flavors or to another number of pods.
    FLAVORS = "Flavors"
    #: The other gives quota, ours does not.
    ADMITTED = "Admitted"
    #: Ours gives quota, the other does not.
    NOT_ADMITTED = "NotAdmitted"
    #: Both preempt for the same Workload, but others.
    VICTIMS = "Victims"
    #: The other preempts, ours does not.
    PREEMPTED = "Preempted"
    #: Ours preempts, the other does not.
    NOT_PREEMPTED = "NotPreempted"
    #: The other evicts without a reason that ours knows.
    EVICTED = "Evicted"
    #: The other lets one queue again whom ours does not.
    REQUEUED = "Requeued"
    #: Both preempt alike, and the other says that it is for another reason.
    MESSAGE = "Message"
    #: Ours evicts, puts back in line or admits, and the other does not.
    NOT_DONE = "NotDone"
    #: What was told as not done was done after all.
    LATE = "Late"


@dataclass(frozen=True, slots=True)
class Finding:
    """One parting."""

    parting: Parting
    at: Instant
    #: The Workload that it is about, by namespace and name.
    workload: str
    message: str
    #: What the other did, and what ours would have done.
    upstream: Mapping[str, Any] = field(default_factory=dict)
    predicted: Mapping[str, Any] = field(default_factory=dict)
    #: When the other did it, or from when on ours would have; None: as long as it is told of.
    since: Instant | None = None
    #: Where one may look for why.
    look: Sequence[str] = ()

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        kind = "Late" if self.parting is Parting.LATE else "Divergence"
        told = {"apiVersion": API_VERSION, "kind": kind, "time": format_time(self.at), "type": self.parting.value}
        return {
            **told,
            "since": format_time(self.at if self.since is None else self.since),
            "workload": self.workload,
            "message": self.message,
            "upstream": dict(self.upstream),
            "predicted": dict(self.predicted),
            "look": list(self.look),
        }

    def why(self) -> str:
        """What ours says of it besides, if the message does not."""
        why = str(self.predicted.get("message") or "")
        return "" if why in self.message else why

    def text(self) -> str:
        """The same for people: what was seen and foreseen, why, where to look."""
        lines = [f"{format_time(self.at)} {self.parting.value} {self.workload}: {self.message}"]
        if self.since is not None:
            lines.append(f"since: {format_time(self.since)}")
        if why := self.why():
            lines.append(f"why: {why}")
        lines += [f"look: {each}" for each in self.look]
        return "\n    ".join(lines)


@dataclass(slots=True)
class Counts:
    """How much was compared, and what came of it."""

    #: By what was decided (`admission`, `preemption`, `eviction`): how often both agreed.
    agreed: dict[str, int] = field(default_factory=dict)
    #: Of those, how often the other chose one of two that are alike in all that either goes by.
    alike: int = 0
    #: By parting.
    parted: dict[str, int] = field(default_factory=dict)
    late: int = 0
    #: Decisions that were not seen, for a watch had a gap.
    unseen: int = 0

    @property
    def divergences(self) -> int:
        """How often both parted."""
        return sum(self.parted.values())

    def plus(self, other: "Counts") -> "Counts":
        """Both together."""
        agreed, parted = (
            {name: one.get(name, 0) + two.get(name, 0) for name in {**one, **two}}
            for one, two in ((self.agreed, other.agreed), (self.parted, other.parted))
        )
        return Counts(agreed, self.alike + other.alike, parted, self.late + other.late, self.unseen + other.unseen)

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
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


def told_of(observed: Observed, names: Mapping[str, str]) -> dict[str, Any]:
    """A decision that was seen; `names` are of Workloads by uid."""
    if isinstance(observed, ObservedAdmitted):
        return {"decision": "admit", "clusterQueue": observed.queue, "podSets": _pod_sets(observed.pod_sets)}
    return {"decision": "preempt", "reason": observed.reason, "by": names.get(observed.by, observed.by)}


def told_of_ours(decision: Decision | None) -> dict[str, Any]:
    """A decision of ours."""
    match decision:
        case None:
            return {"decision": "none"}
        case Admit():
            found = predicted_of(decision)
            return {"decision": "admit", "clusterQueue": found.queue, "podSets": _pod_sets(found.pod_sets)}
        case Preempt():
            targets = [{"workload": each.workload.key, "reason": each.reason} for each in decision.targets]
            return {"decision": "preempt", "targets": targets, "message": decision.why.message}
        case Wait():
            return {"decision": "wait", "reason": decision.why.reason, "message": decision.why.message}


def flavors_in_words(pod_sets: PodSets) -> str:
    """Which flavors, and for how many pods."""
    parts = []
    for name, count, flavors in pod_sets:
        chosen = dict.fromkeys(flavor for _, flavor in flavors)
        parts.append(f"{count} of {name} on {', '.join(chosen) or 'no flavor'}")
    return "; ".join(parts)


def ours_in_words(decision: Decision | None) -> str:
    """What ours would do, in a few words."""
    match decision:
        case None:
            return "we know of nothing that it waits for"
        case Admit():
            return f"we admit it with {flavors_in_words(predicted_of(decision).pod_sets)}"
        case Preempt():
            return f"we preempt {', '.join(sorted(each.workload.key for each in decision.targets))} for it"
        case Wait():
            return f"we leave it waiting: {decision.why.message}"


def _pod_sets(pod_sets: PodSets) -> Sequence[Mapping[str, Any]]:
    return [{"name": name, "count": count, "flavors": dict(flavors)} for name, count, flavors in pod_sets]


# --- where to look ---
#
# Where one looks for why two schedulers part: which objects, and what of them decides; Kueue's log of that time.


#: How much of the log before it is worth reading.
_BEFORE: Final = 10 * SECOND
FAIR_SHARING: Final = "InCohortFairSharing"

#: By parting, what decides about it.
_PREEMPTION: Final = "preemption; in Kueue's configuration fairSharing; priorities of the Workloads"
_STOPS: Final = "stopPolicy, of its LocalQueue too; spec.active, status.requeueState of the Workload"
_DECIDES: Final[Mapping[Parting, str]] = {
    Parting.FLAVORS: "order of flavors, flavorFungibility; of the Workload nodeSelector, tolerations, minCount",
    Parting.ADMITTED: "quotas, borrowingLimit, queueingStrategy, admissionScope; lendingLimits of the cohort",
    Parting.NOT_ADMITTED: "stopPolicy, quotas, admissionScope; in Kueue's configuration waitForPodsReady",
    Parting.VICTIMS: _PREEMPTION,
    Parting.PREEMPTED: _PREEMPTION,
    Parting.NOT_PREEMPTED: _PREEMPTION,
    Parting.EVICTED: _STOPS,
    Parting.REQUEUED: _STOPS,
    Parting.NOT_DONE: f"{_STOPS}; its admissionChecks",
    Parting.MESSAGE: "whether something other than Kueue writes the status of Workloads; which version Kueue is",
}


def where_to_look(parting: Parting, workload: str, queue: str, at: Instant, hint: str = "") -> Sequence[str]:
    """What to ask for, each with what of it decides; `hint` goes first. `at` is when it was seen or is missed since."""
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
    """What to say if it looks as if Kueue shared otherwise than the shadow was told; else ''."""
    if reason == FAIR_SHARING and not is_fair:
        return "this Kueue shares fairly: begin the shadow with --fair-sharing"
    if is_fair and FAIR_SHARING in foreseen and reason != FAIR_SHARING:
        return "if this Kueue does not share fairly, begin the shadow without --fair-sharing"
    return ""
