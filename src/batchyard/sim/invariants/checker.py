"""Attaches all invariants to a simulated world; a world without them has no overhead."""

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from batchyard.accounting.accounts import WHOLE
from batchyard.accounting.ledger import CostLedger
from batchyard.accounting.records import PLATFORM, hour_name, is_paid, paid_from, read
from batchyard.api import scheme, well_known
from batchyard.api.meta import Key, Obj, annotation, find_condition
from batchyard.api.views.workload import ClusterQueueView, PreemptionRules, WorkloadView, workload_view
from batchyard.base.instant import HOUR, Instant
from batchyard.cloud.catalog.prices import pool_price
from batchyard.interfaces.client import EventType, WatchEvent
from batchyard.placement.hotswap import HOTSWAP
from batchyard.scheduling.messages import PreemptionReason, preemptor_uid_of
from batchyard.sim.invariants.cluster import (
    CloudIsNeverOversold,
    ExclusiveDomains,
    IdleNodesAreReleased,
    NodesAreNeverOverfull,
    PodsSuitTheirNodes,
    RequestsAreWhole,
    SlicesAreWhole,
)
from batchyard.sim.invariants.invariant import Invariant, InvariantViolation, WorldView
from batchyard.sim.invariants.ledger import is_preempted_by
from batchyard.sim.invariants.liveness import NothingHangs, NothingIsOrphaned, NothingIsStuck
from batchyard.sim.invariants.quota import (
    AdmittedHasAssignment,
    AssumedEqualsConfirmed,
    FinishedHoldsNothing,
    JobsCountRight,
    NoJobRunsWithoutAdmission,
    NoPodWithoutAdmission,
    QuotaNeverOversubscribed,
    UsageIsSumOfAdmitted,
)
from batchyard.sim.world import EPOCH, World

# --- preemption ---
#
# Preemption: each follows the policies of the preemptor's queue, and reclaims no more than was borrowed.
#
# Each preemption is checked against the policies and the usage before the cycle that decided it. Evictions by Hotswap
# are checked by a separate invariant.


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


# --- costs ---
#
# Cost conservation: the accounts add up to the cost of the machines, each billed from its start to its end.
#
# The expected cost is computed from Instances and prices alone. It is compared with an independent ledger. If the
# platform keeps its own ledger, it is also compared with its records and its ledger together, also after a restart.
# Records are rounded: by a millionth of a dollar for each hour, and for each start of the platform.


_MICRODOLLAR = HOUR * WHOLE


class CostsAddUp(Invariant):
    """The ledger and the records add up to the cost of the machines."""

    name = "costs_add_up"

    def __init__(self, scene: WorldView) -> None:
        super().__init__(scene)
        self._ledger = CostLedger(scene.world.client)
        #: By name, the time up to which a machine is paid, and its price per hour.
        self._paid: dict[str, tuple[Instant, int]] = {}
        #: The cost so far: millionths of dollars per hour, times microseconds.
        self._cost = 0
        self._starts = 0
        self._platform: object = None

    def look(self, event: WatchEvent) -> None:
        """Record machines that start and end, and new prices."""
        now = self.scene.world.kernel.now()
        self._ledger.observe((event,), now)
        if event.key.kind == scheme.CLUSTER:
            for name in list(self._paid):
                self._pay(name, now)
                instance = self.scene.world.client.get(Key(scheme.INSTANCE, "", name))
                if instance is not None:
                    self._paid[name] = now, self._price(instance["spec"]["pool"], self._paid[name][1])
        if event.key.kind != scheme.INSTANCE:
            return
        name = event.key.name
        if event.type is not EventType.DELETED and is_paid(event.obj):
            since = paid_from(event.obj) or now
            self._paid.setdefault(name, (since, self._price(event.obj["spec"]["pool"], 0)))
        elif name in self._paid:
            self._pay(name, now)
            del self._paid[name]

    def settle(self) -> None:
        """Compare the accounts with the expected cost."""
        now = self.scene.world.kernel.now()
        for name in self._paid:
            self._pay(name, now)
        accounts = self._ledger.accounts(now).values()
        found, expected = sum(account.cost for account in accounts), self._cost * WHOLE
        if found != expected:
            self.violate(f"accounts come to {found} and the machines cost {expected}")
        self._compare_records(expected, now)

    def finish(self) -> None:
        """Compare at the end of the run."""
        self.settle()

    def _compare_records(self, expected: int, now: Instant) -> None:
        world = self.scene.world
        costs = world.platform.costs
        if world.platform is not self._platform:
            self._platform, self._starts = world.platform, self._starts + 1
        if costs is None or costs.ledger is None or world.platform.runner.is_stopped:
            return
        if world.start != EPOCH:  #  costs from before the start of this world are unknown
            return
        found = sum(account.cost for account in costs.ledger.accounts(now).values())
        written = [
            *(obj for obj in world.objects(scheme.COST_RECORD, PLATFORM)),
            *(obj for key, obj in costs.unwritten.items() if key.namespace == PLATFORM),
        ]
        by_name = {obj["metadata"]["name"]: obj for obj in written}
        hours = [read(obj) for name, obj in by_name.items() if name == hour_name(read(obj).begin)]
        over = [hour for hour in hours if hour.begin < costs.ledger.begun]
        found += sum(amount.microdollars for hour in over for amount in hour.machines.values()) * _MICRODOLLAR
        if abs(found - expected) > (len(over) + self._starts) * _MICRODOLLAR:
            self.violate(f"records come to {found} and the machines cost {expected}")

    def _pay(self, name: str, now: Instant) -> None:
        since, price = self._paid[name]
        self._cost += (now - since) * price
        self._paid[name] = now, price

    def _price(self, pool: str, before: int) -> int:
        found, clusters = self.scene.world.client.get(Key(scheme.NODE_POOL, "", pool)), self.scene.world.client
        cluster = next(iter(clusters.list(scheme.CLUSTER)), None)
        return before if found is None or cluster is None else pool_price(found, cluster)


# --- nothing mutated ---
#
# An object that was handed out is never changed in place.


class NothingMutated(Invariant):
    """Each object is equal to its copy from the time of its watch event."""

    name = "nothing_mutated"

    def __init__(self, scene: WorldView) -> None:
        super().__init__(scene)
        self._delivered: dict[Key, tuple[Obj, bytes]] = {}
        self._encode = msgspec.json.Encoder().encode

    def look(self, event: WatchEvent) -> None:
        """Check the previous version of the object."""
        self._compare(event.key)
        if event.type is EventType.DELETED:
            self._delivered.pop(event.key, None)
        else:
            self._delivered[event.key] = event.obj, self._encode(event.obj)

    def finish(self) -> None:
        """Check all remaining objects."""
        for key in self._delivered:
            self._compare(key)

    def _compare(self, key: Key) -> None:
        if key in self._delivered:
            obj, text = self._delivered[key]
            if self._encode(obj) != text:
                self.violate(f"{key} was changed in place: {text.decode()} became {self._encode(obj).decode()}", key)


# --- store ---
#
# The store and its watches: objects are immutable, and every change is delivered once and in order.


class WatchHasNoGap(Invariant):
    """Revisions are consecutive, and `old` is the object of the event before."""

    name = "watch_has_no_gap"

    def __init__(self, scene: WorldView) -> None:
        super().__init__(scene)
        self._revision = scene.world.store.revision
        self._last: dict[Key, Obj] = {}

    def look(self, event: WatchEvent) -> None:
        """Check that an event follows from the one before."""
        if event.revision != self._revision + 1:
            self.violate(f"revision {event.revision} follows {self._revision}", event.key)
        self._revision = event.revision
        known = self._last.get(event.key)
        if event.old is not known:
            self.violate(f"{event.key} has another old object than the last event", event.key)
        if (event.type is EventType.ADDED) is not (known is None):
            self.violate(f"{event.key} was {event.type.lower()}", event.key)
        if event.type is EventType.DELETED:
            self._last.pop(event.key, None)
        else:
            self._last[event.key] = event.obj

    def finish(self) -> None:
        """Check that the last revision was delivered."""
        if self._revision != self.scene.world.store.revision:
            self.violate(f"{self._revision} is the last revision delivered of {self.scene.world.store.revision}")


INVARIANTS: Final[tuple[type[Invariant], ...]] = (
    QuotaNeverOversubscribed,
    UsageIsSumOfAdmitted,
    AdmittedHasAssignment,
    PreemptionRespectsPriority,
    NoJobRunsWithoutAdmission,
    FinishedHoldsNothing,
    NothingIsStuck,
    WatchHasNoGap,
    NothingMutated,
    AssumedEqualsConfirmed,
    # Where there are nodes.
    NoPodWithoutAdmission,
    HotswapRespectsPriority,
    PodsSuitTheirNodes,
    NodesAreNeverOverfull,
    ExclusiveDomains,
    SlicesAreWhole,
    RequestsAreWhole,
    CloudIsNeverOversold,
    JobsCountRight,
    IdleNodesAreReleased,
    NothingIsOrphaned,
    NothingHangs,
    CostsAddUp,
)


class InvariantChecker:
    """Invariants attached to a world. `violations` grows while it runs; `finish()` runs the final checks."""

    def __init__(self, world: World, laws: Sequence[type[Invariant]] = INVARIANTS) -> None:
        self._world = world
        self._scene = WorldView(world)
        self._laws = [law(self._scene) for law in laws]
        self._unsettled = False
        world.client.subscribe(self._observe)

    @property
    def violations(self) -> list[InvariantViolation]:
        """Return the violations so far."""
        return self._scene.violations

    def finish(self) -> list[InvariantViolation]:
        """Run the checks of the end of the run; return all violations."""
        self._settle()
        for law in self._laws:
            law.finish()
        return self.violations

    def _observe(self, batch: Sequence[WatchEvent]) -> None:
        """Pass each change to every invariant, and schedule the checks of the end of the instant."""
        kernel = self._world.kernel
        if not self._unsettled:
            self._unsettled = True
            kernel.call_at(kernel.now() + 1, self._settle)
        for law in self._laws:
            law.begin(batch)
        for event in batch:
            for law in self._laws:
                law.look(event)
            self._scene.ledger.record(event)
            self._scene.stories.record(event, self._world.now())
        for law in self._laws:
            law.end(batch)

    def _settle(self) -> None:
        if self._unsettled:
            self._unsettled = False
            for law in self._laws:
                law.settle()


def attach(world: World, laws: Sequence[type[Invariant]] = INVARIANTS) -> InvariantChecker:
    """Attach invariants to a world, before it runs."""
    return InvariantChecker(world, laws)
