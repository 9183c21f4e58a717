"""Where one looks for why two schedulers part: which objects, and what of them decides; Kueue's log of that time."""

from collections.abc import Mapping, Sequence
from typing import Final

from batchyard.api.times import format_time
from batchyard.base.instant import SECOND, Instant
from batchyard.controllers.shadow.findings import Parting

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
