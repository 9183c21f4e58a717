"""What a shadow tells: where two schedulers part, and why ours would have decided otherwise."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from batchyard.api.times import format_time
from batchyard.base.instant import Instant
from batchyard.controllers.shadow.observed import Admitted, Observed, PodSets, predicted_of
from batchyard.core.decisions import Admit, Decision, Preempt, Wait

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
    if isinstance(observed, Admitted):
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
