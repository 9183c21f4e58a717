"""The checker that runs all invariants during a simulation, and invariants of preemption, costs and watch events."""

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from batchyard.accounting.accounts import WHOLE_MACHINE
from batchyard.accounting.ledger import CostLedger
from batchyard.accounting.records import (
    PLATFORM_NAMESPACE,
    billing_start,
    hour_record_name,
    is_billed,
    parse_cost_record,
)
from batchyard.api import scheme, well_known
from batchyard.api.meta import Key, Obj, annotation, find_condition
from batchyard.api.times import parse_time
from batchyard.api.views.workload import ClusterQueueView, PreemptionRules, WorkloadView, workload_view
from batchyard.base.instant import HOUR, Instant
from batchyard.cloud.catalog.pool_properties import pool_price
from batchyard.interfaces.client import EventType, WatchEvent
from batchyard.placement.hotswap import HOTSWAP
from batchyard.scheduling.messages import PreemptionReason, parse_preemptor_uid
from batchyard.sim.invariants.cluster import (
    CloudIsNeverOversold,
    ExclusiveDomains,
    IdleNodesAreReleased,
    NodesAreNeverOverfull,
    PodsSuitTheirNodes,
    RequestsAreWhole,
    SlicesAreWhole,
)
from batchyard.sim.invariants.described_jobs import DescribedJobsRunWithAdmission
from batchyard.sim.invariants.invariant import Invariant, InvariantViolation, WorldView
from batchyard.sim.invariants.liveness import NothingHangs, NothingIsOrphaned, NothingIsStuck
from batchyard.sim.invariants.object_states import is_new_preemption
from batchyard.sim.invariants.queued_pods import GatesAreKeptUntilAdmission, PodFinalizersEnd, PodGroupsStartWhole
from batchyard.sim.invariants.quota import (
    AdmittedHasAssignment,
    AssumedEqualsConfirmed,
    ElasticPodsAreGranted,
    FinishedHoldsNothing,
    JobsCountRight,
    NoJobRunsWithoutAdmission,
    NoPodWithoutAdmission,
    QuotaNeverOversubscribed,
    UsageIsSumOfAdmitted,
)
from batchyard.sim.world import EPOCH, World

# Each preemption follows the policies of the preemptor's queue, and reclaims only borrowed quota.
#
# The check uses the policies and the usage before the scheduling cycle that decided the preemption. Evictions by
# Hotswap are checked by a separate invariant.


class PreemptionRespectsPriority(Invariant):
    """Invariant: the preemption policies of the preemptor's ClusterQueue allow each preemption, except by Hotswap."""

    name = "preemption_respects_priority"

    def before_batch(self, batch: Sequence[WatchEvent]) -> None:
        """Check the new preemptions in the batch of watch events, with queues and usage as before the batch."""
        for event in batch:
            if is_new_preemption(event):
                self._check_preemption(event)

    def _check_preemption(self, event: WatchEvent) -> None:
        condition, victim = find_condition(event.obj, "Preempted"), workload_view(event.obj)
        assert condition is not None
        if condition["reason"] == HOTSWAP:
            return
        uid = parse_preemptor_uid(condition["message"])
        preemptor = next((view for view in self.states.workloads.values() if view.uid == uid), None)
        if preemptor is None:
            self.violate(f"{victim.key} was preempted by a Workload with uid {uid}, which does not exist", event.key)
            return
        queue = self.states.queue_of(preemptor)
        keys = event.key, Key(scheme.WORKLOAD, preemptor.namespace, preemptor.name)
        if queue is None or preemptor.quota_reserved:
            self.violate(f"{preemptor.key} preempted {victim.key}, but is not pending in a queue", *keys)
            return
        evicted_at = parse_time(condition["lastTransitionTime"])
        if evicted_at < self._protection_end(queue.name, victim, event.old):
            self.violate(f"{preemptor.key} preempted {victim.key} before its minimal run time", *keys)
        for error in self._preemption_errors(preemptor, queue, victim, condition["reason"]):
            self.violate(f"{preemptor.key} preempted {victim.key} ({condition['reason']}): {error}", *keys)

    def _protection_end(self, preemptor_queue: str, victim: WorkloadView, old: Obj | None) -> Instant:
        """Return when the minimal run time of an admitted Workload ends; 0 if nothing protects it."""
        admitted = None if old is None else find_condition(old, "Admitted")
        victim_queue = self.states.queues.get(victim.cluster_queue)
        if victim_queue is None or admitted is None or admitted["status"] != "True":
            return 0
        cohort_names = self.states.quota.path(f"queue/{victim_queue.name}")[:-1][::-1]
        cohorts = [self.states.cohorts.get(name.removeprefix("cohort/")) for name in cohort_names]
        for view in (victim_queue, *cohorts):
            settings = None if view is None else view.preemption_settings
            index = 0 if victim_queue.name == preemptor_queue else 1
            if settings is not None and settings.min_runtimes[index] is not None:
                return parse_time(admitted["lastTransitionTime"]) + (settings.min_runtimes[index] or 0)
        return 0

    def _preemption_errors(
        self, preemptor: WorkloadView, queue: ClusterQueueView, victim: WorkloadView, reason: str
    ) -> Iterator[str]:
        policies, fair_sharing = queue.preemption, self.world_view.world.scenario.fair_sharing
        if reason == PreemptionReason.CONFIGURABLE:
            if queue.preemption_settings is None or not queue.preemption_settings.config_name:
                yield f"ClusterQueue {queue.name} names no PreemptionConfig"
            return
        is_same_queue = reason == PreemptionReason.IN_CLUSTER_QUEUE
        if is_same_queue is not (queue.name == victim.cluster_queue):
            yield f"the reason does not match the ClusterQueues {queue.name} and {victim.cluster_queue}"
        policy = policies.within_cluster_queue if is_same_queue else policies.reclaim_within_cohort
        if not is_preemption_allowed(policy, preemptor, victim):
            yield f"policy {policy} does not allow priority {preemptor.priority} to preempt priority {victim.priority}"
        if not is_same_queue:
            yield from self._borrowing_errors(preemptor, queue, victim, fair_sharing=fair_sharing)
        if reason == PreemptionReason.IN_COHORT_RECLAIM_WHILE_BORROWING:
            yield from _preempt_while_borrowing_errors(policies, preemptor, victim, fair_sharing=fair_sharing)
        if reason == PreemptionReason.IN_COHORT_FAIR_SHARING and not fair_sharing:
            yield "fair sharing is disabled in this world"

    def _borrowing_errors(
        self, preemptor: WorkloadView, queue: ClusterQueueView, victim: WorkloadView, *, fair_sharing: bool
    ) -> Iterator[str]:
        quota = self.states.quota
        preemptor_path, victim_path = quota.path(f"queue/{queue.name}"), quota.path(f"queue/{victim.cluster_queue}")
        if preemptor_path[0] != victim_path[0]:
            yield f"their ClusterQueues have different root Cohorts: {preemptor_path[0]} and {victim_path[0]}"
            return
        resources = {resource for pod_set in preemptor.pod_sets for resource, _ in pod_set.template.requests} | {"pods"}
        quota_keys = [pair for pair in quota.quota_keys(preemptor_path[0]) if pair[1] in resources]
        for node in victim_path[-1:] if fair_sharing else [node for node in victim_path if node not in preemptor_path]:
            if not any(quota.is_borrowing(node, pair) for pair in quota_keys):
                yield f"{node} does not borrow any requested resource"


def is_preemption_allowed(policy: str, preemptor: WorkloadView, victim: WorkloadView) -> bool:
    """Return whether a preemption policy, such as LowerPriority, lets `preemptor` preempt `victim`."""
    match policy:
        case "Any":
            return True
        case "LowerPriority":
            return victim.priority < preemptor.priority
        case "LowerOrNewerEqualPriority":
            is_newer_victim = victim.priority == preemptor.priority and victim.queued > preemptor.queued
            return is_newer_victim or victim.priority < preemptor.priority
        case _:
            return False


def _preempt_while_borrowing_errors(
    policies: PreemptionRules, preemptor: WorkloadView, victim: WorkloadView, *, fair_sharing: bool
) -> Iterator[str]:
    if fair_sharing or not policies.borrow_within_cohort:
        yield "borrowWithinCohort does not allow the queue to preempt while it borrows"
    if victim.priority >= preemptor.priority:
        yield f"the victim's priority {victim.priority} is not lower than {preemptor.priority}"
    priority_threshold = policies.priority_threshold_max
    if priority_threshold is not None and victim.priority > priority_threshold:
        yield f"the victim's priority {victim.priority} is above maxPriorityThreshold {priority_threshold}"


# Hotswap takes nodes only from pods of lower priority, as kube-scheduler compares pod priorities.
#
# The nodes go to a Workload that has quota, or to a pod that needs no quota.


class HotswapRespectsPriority(Invariant):
    """Invariant: Hotswap, which replaces lost nodes of gangs, takes nodes only from pods of lower priority."""

    name = "hotswap_respects_priority"

    def before_batch(self, batch: Sequence[WatchEvent]) -> None:
        """Check each new preemption by Hotswap in the batch of watch events."""
        for event in batch:
            condition = find_condition(event.obj, "Preempted") if is_new_preemption(event) else None
            if condition is not None and condition["reason"] == HOTSWAP:
                self._check_preemption(event, parse_preemptor_uid(condition["message"]))

    def _check_preemption(self, event: WatchEvent, uid: str) -> None:
        workload = next((view for view in self.states.workloads.values() if view.uid == uid), None)
        if workload is not None and not workload.quota_reserved:
            self.violate(f"{workload.key} took nodes of {event.key}, but has no quota", event.key)
        if workload is None:
            preemptor_pods = [pod for pod in self.world_view.world.objects(scheme.POD) if pod["metadata"]["uid"] == uid]
        else:
            preemptor_pods = self._pods_of(workload.namespace, workload.name)
        victims = self._pods_of(event.key.namespace, event.key.name)
        highest_priority = max((pod["spec"].get("priority", 0) for pod in preemptor_pods), default=None)
        if highest_priority is None:
            self.violate(f"{event.key} lost its nodes to the object with uid {uid}, which has no pods", event.key)
        elif any(pod["spec"].get("priority", 0) >= highest_priority for pod in victims):
            self.violate(
                f"{event.key} lost its nodes to uid {uid}, whose pods only have priority {highest_priority}", event.key
            )

    def _pods_of(self, namespace: str, workload: str) -> list[Obj]:
        pods = self.world_view.world.objects(scheme.POD, namespace)
        return [pod for pod in pods if annotation(pod, well_known.WORKLOAD) == workload]


# The cost accounts add up to the cost of the machines, each billed from its start to its end.
#
# The expected cost is computed from Instances and prices alone, and compared with a cost ledger of the invariant. If
# the platform keeps a ledger, its records and its ledger together are compared too, also after a restart. Records are
# rounded: by a millionth of a dollar for each hour, and for each start of the platform.


_ROUNDING_UNIT = HOUR * WHOLE_MACHINE


class CostsAddUp(Invariant):
    """Invariant: the cost ledger and the cost records add up to the cost of all machines."""

    name = "costs_add_up"

    def __init__(self, world_view: WorldView) -> None:
        super().__init__(world_view)
        self._ledger = CostLedger(world_view.world.client)
        #: By machine name, the time up to which the machine is billed, and its price per hour.
        self._billing_by_machine: dict[str, tuple[Instant, int]] = {}
        #: The cost so far: millionths of dollars per hour, times microseconds.
        self._cost = 0
        self._platform_starts = 0
        self._platform: object = None

    def check_event(self, event: WatchEvent) -> None:
        """Record when a machine's billing starts or ends, and changes of prices."""
        now = self.world_view.world.kernel.now()
        self._ledger.observe((event,), now)
        if event.key.kind == scheme.CLUSTER:
            for name in list(self._billing_by_machine):
                self._bill_machine(name, now)
                instance = self.world_view.world.client.get(Key(scheme.INSTANCE, "", name))
                if instance is not None:
                    self._billing_by_machine[name] = (
                        now,
                        self._machine_price(instance["spec"]["pool"], self._billing_by_machine[name][1]),
                    )
        if event.key.kind != scheme.INSTANCE:
            return
        name = event.key.name
        if event.type is not EventType.DELETED and is_billed(event.obj):
            paid_since = billing_start(event.obj) or now
            self._billing_by_machine.setdefault(name, (paid_since, self._machine_price(event.obj["spec"]["pool"], 0)))
        elif name in self._billing_by_machine:
            self._bill_machine(name, now)
            del self._billing_by_machine[name]

    def end_instant(self) -> None:
        """Check that the ledger and, up to rounding, the cost records equal the cost of all machines so far."""
        now = self.world_view.world.kernel.now()
        for name in self._billing_by_machine:
            self._bill_machine(name, now)
        accounts = self._ledger.accounts_until_now(now).values()
        account_sum, expected_cost = sum(account.cost for account in accounts), self._cost * WHOLE_MACHINE
        if account_sum != expected_cost:
            self.violate(f"the cost accounts add up to {account_sum}, but the machines cost {expected_cost}")
        self._compare_records(expected_cost, now)

    def finish(self) -> None:
        """Check the costs at the end of the simulation as at the end of each instant."""
        self.end_instant()

    def _compare_records(self, expected_cost: int, now: Instant) -> None:
        world = self.world_view.world
        accounting = world.platform.costs
        if world.platform is not self._platform:
            self._platform, self._platform_starts = world.platform, self._platform_starts + 1
        if accounting is None or accounting.ledger is None or world.platform.runner.is_stopped:
            return
        if world.start != EPOCH:  #  earlier costs of a restored state are unknown
            return
        recorded_cost = sum(account.cost for account in accounting.ledger.accounts_until_now(now).values())
        cost_records = [
            *(obj for obj in world.objects(scheme.COST_RECORD, PLATFORM_NAMESPACE)),
            *(obj for key, obj in accounting.unwritten_records.items() if key.namespace == PLATFORM_NAMESPACE),
        ]
        records_by_name = {obj["metadata"]["name"]: obj for obj in cost_records}
        parsed_records = {name: parse_cost_record(obj) for name, obj in records_by_name.items()}
        hourly_records = [record for name, record in parsed_records.items() if name == hour_record_name(record.begin)]
        past_hours = [hour for hour in hourly_records if hour.begin < accounting.ledger.period_start]
        microdollar_amounts = [amount.microdollars for hour in past_hours for amount in hour.machines.values()]
        recorded_cost += sum(microdollar_amounts) * _ROUNDING_UNIT
        if abs(recorded_cost - expected_cost) > (len(past_hours) + self._platform_starts) * _ROUNDING_UNIT:
            self.violate(f"the cost records add up to {recorded_cost}, but the machines cost {expected_cost}")

    def _bill_machine(self, name: str, now: Instant) -> None:
        paid_since, price = self._billing_by_machine[name]
        self._cost += (now - paid_since) * price
        self._billing_by_machine[name] = now, price

    def _machine_price(self, pool: str, previous_price: int) -> int:
        client = self.world_view.world.client
        node_pool = client.get(Key(scheme.NODE_POOL, "", pool))
        cluster = next(iter(client.list(scheme.CLUSTER)), None)
        return previous_price if node_pool is None or cluster is None else pool_price(node_pool, cluster)


# No component modifies an object in place after the store delivered it.


class NothingMutated(Invariant):
    """Invariant: no object is modified in place after it was sent as a watch event."""

    name = "nothing_mutated"

    def __init__(self, world_view: WorldView) -> None:
        super().__init__(world_view)
        self._delivered_objects: dict[Key, tuple[Obj, bytes]] = {}
        self._encode = msgspec.json.Encoder().encode

    def check_event(self, event: WatchEvent) -> None:
        """Check that the previous version of the changed object was not modified in place."""
        self._compare_object(event.key)
        if event.type is EventType.DELETED:
            self._delivered_objects.pop(event.key, None)
        else:
            self._delivered_objects[event.key] = event.obj, self._encode(event.obj)

    def finish(self) -> None:
        """Check that no object was modified in place after its latest watch event, unless it was deleted."""
        for key in self._delivered_objects:
            self._compare_object(key)

    def _compare_object(self, key: Key) -> None:
        if key in self._delivered_objects:
            obj, text = self._delivered_objects[key]
            if self._encode(obj) != text:
                self.violate(f"{key} was modified in place: {text.decode()} became {self._encode(obj).decode()}", key)


# Watches deliver every change of the store once and in order.


class WatchHasNoGap(Invariant):
    """Invariant: watch events have consecutive revisions, and each one's old object is that of its key's last event."""

    name = "watch_has_no_gap"

    def __init__(self, world_view: WorldView) -> None:
        super().__init__(world_view)
        self._revision = world_view.world.store.revision
        self._last_objects: dict[Key, Obj] = {}

    def check_event(self, event: WatchEvent) -> None:
        """Check that a watch event directly follows the store's previous event, and its object's previous event."""
        if event.revision != self._revision + 1:
            self.violate(f"revision {event.revision} was delivered directly after revision {self._revision}", event.key)
        self._revision = event.revision
        last_object = self._last_objects.get(event.key)
        if event.old is not last_object:
            self.violate(f"the old object of {event.key} is not the object of its previous event", event.key)
        if (event.type is EventType.ADDED) is not (last_object is None):
            self.violate(f"{event.key} got an event {event.type}, which does not match its previous event", event.key)
        if event.type is EventType.DELETED:
            self._last_objects.pop(event.key, None)
        else:
            self._last_objects[event.key] = event.obj

    def finish(self) -> None:
        """Check that the watch event of the store's last revision was delivered."""
        if self._revision != self.world_view.world.store.revision:
            stored_revision = self.world_view.world.store.revision
            self.violate(f"revision {self._revision} was delivered last, the store has {stored_revision}")


INVARIANTS: Final[tuple[type[Invariant], ...]] = (
    QuotaNeverOversubscribed,
    UsageIsSumOfAdmitted,
    AdmittedHasAssignment,
    PreemptionRespectsPriority,
    NoJobRunsWithoutAdmission,
    DescribedJobsRunWithAdmission,
    FinishedHoldsNothing,
    NothingIsStuck,
    WatchHasNoGap,
    NothingMutated,
    AssumedEqualsConfirmed,
    ElasticPodsAreGranted,
    GatesAreKeptUntilAdmission,
    PodGroupsStartWhole,
    PodFinalizersEnd,
    # In worlds with nodes:
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
    """Checks invariants during a simulation and collects violations; `finish()` runs the checks at the end."""

    def __init__(self, world: World, invariants: Sequence[type[Invariant]] = INVARIANTS) -> None:
        self._world = world
        self._world_view = WorldView(world)
        self._invariants = [invariant_class(self._world_view) for invariant_class in invariants]
        self._is_end_scheduled = False
        world.client.subscribe(self._observe)

    @property
    def violations(self) -> list[InvariantViolation]:
        """Return the violations found so far."""
        return self._world_view.violations

    def finish(self) -> list[InvariantViolation]:
        """Run the checks that are due at the end of the simulation; return all violations."""
        self._end_instant()
        for invariant in self._invariants:
            invariant.finish()
        return self.violations

    def _observe(self, batch: Sequence[WatchEvent]) -> None:
        kernel = self._world.kernel
        if not self._is_end_scheduled:
            self._is_end_scheduled = True
            kernel.call_at(kernel.now() + 1, self._end_instant)
        for invariant in self._invariants:
            invariant.before_batch(batch)
        for event in batch:
            for invariant in self._invariants:
                invariant.check_event(event)
            self._world_view.states.record(event)
            self._world_view.histories.record(event, self._world.now())
        for invariant in self._invariants:
            invariant.after_batch(batch)

    def _end_instant(self) -> None:
        if self._is_end_scheduled:
            self._is_end_scheduled = False
            for invariant in self._invariants:
                invariant.end_instant()


def attach_invariants(world: World, invariants: Sequence[type[Invariant]] = INVARIANTS) -> InvariantChecker:
    """Attach invariants to a simulation before it runs; return the checker that collects violations."""
    return InvariantChecker(world, invariants)
