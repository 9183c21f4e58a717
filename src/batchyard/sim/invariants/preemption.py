"""Preemption: each follows the policies of the preemptor's queue, and reclaims no more than was borrowed.

Each preemption is checked against the policies and the usage before the cycle that decided it. Evictions by Hotswap are
checked by a separate invariant.
"""

from collections.abc import Iterator, Sequence

from batchyard.api import scheme, well_known
from batchyard.api.conditions import find_condition
from batchyard.api.meta import Key, Obj, annotation
from batchyard.api.views.queues import ClusterQueueView, PreemptionRules
from batchyard.api.views.workload import WorkloadView, workload_view
from batchyard.interfaces.client import WatchEvent
from batchyard.placement.gang_preemption import HOTSWAP
from batchyard.scheduling.messages import PreemptionReason, preemptor_uid_of
from batchyard.sim.invariants.invariant import Invariant
from batchyard.sim.invariants.ledger import is_preempted_by


class PreemptionRespectsPriority(Invariant):
    """Each preemption is allowed by the policies of the preemptor's queue."""

    name = "preemption_respects_priority"

    def begin(self, batch: Sequence[WatchEvent]) -> None:
        """Check new preemptions, with the ledger before them."""
        for event in batch:
            if is_preempted_by(event):
                self._judge(event)

    def _judge(self, event: WatchEvent) -> None:
        preempted, victim = find_condition(event.obj, "Preempted"), workload_view(event.obj)
        assert preempted is not None
        if preempted["reason"] == HOTSWAP:
            return
        uid = preemptor_uid_of(preempted["message"])
        preemptor = next((view for view in self.ledger.workloads.values() if view.uid == uid), None)
        if preemptor is None:
            self.violate(f"{victim.key} was preempted by {uid}, which is unknown", event.key)
            return
        queue = self.ledger.queue_of(preemptor)
        keys = event.key, Key(scheme.WORKLOAD, preemptor.namespace, preemptor.name)
        if queue is None or preemptor.quota_reserved:
            self.violate(f"{preemptor.key} preempted {victim.key} and waits in no queue", *keys)
            return
        for fault in self._faults(preemptor, queue, victim, preempted["reason"]):
            self.violate(f"{preemptor.key} preempted {victim.key} ({preempted['reason']}): {fault}", *keys)

    def _faults(
        self, preemptor: WorkloadView, queue: ClusterQueueView, victim: WorkloadView, reason: str
    ) -> Iterator[str]:
        policies, fair = queue.preemption, self.scene.world.scenario.fair_sharing
        is_own = reason == PreemptionReason.IN_CLUSTER_QUEUE
        if is_own is not (queue.name == victim.cluster_queue):
            yield f"from {queue.name} in {victim.cluster_queue}"
        policy = policies.within_cluster_queue if is_own else policies.reclaim_within_cohort
        if not allows(policy, preemptor, victim):
            yield f"{policy} does not let {preemptor.priority} preempt {victim.priority}"
        if not is_own:
            yield from self._borrowing_faults(preemptor, queue, victim, fair=fair)
        if reason == PreemptionReason.IN_COHORT_RECLAIM_WHILE_BORROWING:
            yield from _while_borrowing_faults(policies, preemptor, victim, fair=fair)
        if reason == PreemptionReason.IN_COHORT_FAIR_SHARING and not fair:
            yield "sharing is not fair here"

    def _borrowing_faults(
        self, preemptor: WorkloadView, queue: ClusterQueueView, victim: WorkloadView, *, fair: bool
    ) -> Iterator[str]:
        """Yield an error unless the victim's branch of the tree borrows a resource that the preemptor requests."""
        quota = self.ledger.quota
        ours, theirs = quota.path(f"queue/{queue.name}"), quota.path(f"queue/{victim.cluster_queue}")
        if ours[0] != theirs[0]:
            yield f"they share no Cohort: {ours[0]}, {theirs[0]}"
            return
        wanted = {resource for pod_set in preemptor.pod_sets for resource, _ in pod_set.template.requests} | {"pods"}
        pairs = [pair for pair in quota.pairs(ours[0]) if pair[1] in wanted]
        for node in theirs[-1:] if fair else [node for node in theirs if node not in ours]:
            if not any(quota.is_borrowing(node, pair) for pair in pairs):
                yield f"{node} does not borrow"


def allows(policy: str, preemptor: WorkloadView, victim: WorkloadView) -> bool:
    """Whether a preemption policy lets one Workload preempt another."""
    match policy:
        case "Any":
            return True
        case "LowerPriority":
            return victim.priority < preemptor.priority
        case "LowerOrNewerEqualPriority":
            newer = victim.priority == preemptor.priority and victim.queued > preemptor.queued
            return newer or victim.priority < preemptor.priority
        case _:
            return False


def _while_borrowing_faults(
    policies: PreemptionRules, preemptor: WorkloadView, victim: WorkloadView, *, fair: bool
) -> Iterator[str]:
    if fair or not policies.borrow_within_cohort:
        yield "the queue may not preempt while it borrows"
    if victim.priority >= preemptor.priority:
        yield f"{victim.priority} is not lower than {preemptor.priority}"
    threshold = policies.priority_threshold_max
    if threshold is not None and victim.priority > threshold:
        yield f"{victim.priority} is above the threshold of {threshold}"


# --- hotswap respects priority ---
#
# Hotswap takes nodes only from pods of lower priority, by the pod priorities that kube-scheduler uses.
#
# The nodes go to a Workload that has quota, or to a pod that needs none.


class HotswapRespectsPriority(Invariant):
    """Hotswap takes nodes only from pods of lower priority."""

    name = "hotswap_respects_priority"

    def begin(self, batch: Sequence[WatchEvent]) -> None:
        """Check new preemptions, with the ledger before them."""
        for event in batch:
            preempted = find_condition(event.obj, "Preempted") if is_preempted_by(event) else None
            if preempted is not None and preempted["reason"] == HOTSWAP:
                self._judge(event, preemptor_uid_of(preempted["message"]))

    def _judge(self, event: WatchEvent, uid: str) -> None:
        workload = next((view for view in self.ledger.workloads.values() if view.uid == uid), None)
        if workload is not None and not workload.quota_reserved:
            self.violate(f"{workload.key} got nodes of {event.key} without quota", event.key)
        if workload is None:
            preemptors = [pod for pod in self.scene.world.objects(scheme.POD) if pod["metadata"]["uid"] == uid]
        else:
            preemptors = self._pods_of(workload.namespace, workload.name)
        victims = self._pods_of(event.key.namespace, event.key.name)
        highest = max((pod["spec"].get("priority", 0) for pod in preemptors), default=None)
        if highest is None:
            self.violate(f"{event.key} lost its nodes to {uid}, which has no pods", event.key)
        elif any(pod["spec"].get("priority", 0) >= highest for pod in victims):
            self.violate(f"{event.key} lost its nodes to {uid}, whose pods have no more than {highest}", event.key)

    def _pods_of(self, namespace: str, workload: str) -> list[Obj]:
        pods = self.scene.world.objects(scheme.POD, namespace)
        return [pod for pod in pods if annotation(pod, well_known.WORKLOAD) == workload]
