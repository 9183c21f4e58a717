"""Attaches all invariants to a world. A world without an inspection has no overhead."""

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from batchyard.accounting.ledger import CostLedger
from batchyard.accounting.records import PLATFORM, WHOLE, hour_name, is_paid, paid_from, read
from batchyard.api import scheme, well_known
from batchyard.api.meta import Key, Obj, annotation, controller_of, find_condition, is_true, key_of, label
from batchyard.api.views.node import NodeView, node_view
from batchyard.api.views.pods import PodView, pod_view
from batchyard.api.views.workload import ClusterQueueView, PreemptionRules, ResourceGroup, WorkloadView, workload_view
from batchyard.base.instant import HOUR, Instant
from batchyard.cloud.catalog.instances import FAILED, phase_of
from batchyard.cloud.catalog.machine_types import catalog_of
from batchyard.cloud.catalog.nodes import node_template
from batchyard.cloud.catalog.prices import hosts_of_slice, is_autoscaled, pool_price, zones_of
from batchyard.interfaces.client import EventType, WatchEvent
from batchyard.jobs.job.spec import contains, parsed
from batchyard.placement.hotswap import HOTSWAP
from batchyard.scheduling.cluster_queue import flavor_mismatch
from batchyard.scheduling.messages import PreemptionReason, preemptor_uid_of
from batchyard.sim.invariants.cluster import (
    CloudIsNeverOversold,
    ExclusiveDomains,
    IdleNodesAreReleased,
    NodesAreNeverOverfull,
    PodsSuitTheirNodes,
    RequestsAreWhole,
    SlicesAreWhole,
    placed,
    requested,
    unsuitable,
)
from batchyard.sim.invariants.invariant import Invariant, InvariantViolation, WorldView
from batchyard.sim.invariants.ledger import Pair, is_preempted_by
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

# --- liveness ---
#
# Liveness: when no more events are scheduled, everything that has not ended waits for something that does not exist.
#
# No pod on a node runs forever, so no gang is placed in part. Every Job or JobSet that may run has waiting pods. The
# exception is a Job alone in its domain whose first pod has succeeded: JobSet rejects the pods that would follow that
# one. Every waiting pod has a reason. No gang waits that would fit the existing nodes, or those that a pool can add.


_ENDS = ("Complete", "Completed", "Failed")


class NothingHangs(Invariant):
    """Jobs have pods that wait, and waiting pods have a reason and no room."""

    name = "nothing_hangs"

    def finish(self) -> None:
        """Check everything that has not ended."""
        if self.is_at_rest:
            pods = [obj for obj in self.scene.world.objects(scheme.POD) if not pod_view(obj).is_terminal]
            self._look_at_jobs(pods)
            self._look_at_pods([pod_view(obj) for obj in pods])

    def _look_at_jobs(self, pods: Sequence[Obj]) -> None:
        """Check that every runnable Job or JobSet has a dependent that waits."""
        world = self.scene.world
        jobs = [obj for kind in (scheme.JOB, scheme.JOB_SET) for obj in world.objects(kind) if not _has_ended(obj)]
        owners = [owner["uid"] for obj in (*pods, *jobs) if (owner := controller_of(obj)) is not None]
        for job in jobs:
            may_run = not job["spec"].get("suspend") and not _must_follow_ended_pod(job)
            if may_run and job["metadata"]["uid"] not in owners:
                self.violate(f"{key_of(job)} may run, but has no waiting pods", key_of(job))

    def _look_at_pods(self, pods: Sequence[PodView]) -> None:
        """Check that no pod is left on a node, and that no waiting gang has room."""
        gangs: dict[str, list[PodView]] = {}
        for pod in pods:
            if pod.node_name:
                self.violate(f"{pod.key} never ends on {pod.node_name}", _key(pod))
                continue
            if not pod.unscheduled:
                self.violate(f"{pod.key} waits for a node without a reason", _key(pod))
            if not pod.gated:
                gangs.setdefault(pod.gang or pod.key, []).append(pod)
        nodes = _free_nodes(self.scene.world.objects(scheme.NODE), placed(pods))
        growth = self._nodes_to_come() if gangs else []
        for gang in gangs.values():
            if any(pod.shape.minds_pods for pod in gang):
                self._look_at_exclusive(gang, [*nodes, *(node for _, more in growth for node in more)])
                continue
            if _find_room(gang, nodes):
                self.violate(f"{len(gang)} pods wait though there is room", *map(_key, gang))
            for pool, more in growth:
                if _find_room(gang, [*nodes, *more]):
                    self.violate(f"{len(gang)} pods wait though {pool} may grow", *map(_key, gang))

    def _look_at_exclusive(self, gang: Sequence[PodView], nodes: Sequence["_Free"]) -> None:
        """Check Jobs that each need an exclusive pool; each has a first pod, which the others wait for."""
        first = [pod for pod in gang if pod.shape.minds_pods]
        pools: dict[str, list[_Free]] = {}
        for node in nodes:
            pools.setdefault(node.node.labels.get(well_known.NODE_POOL, ""), []).append(node)
        fitting = [name for name, found in pools.items() if all(node.could_take(first[0]) for node in found)]
        if len(first) == len(gang) <= len(fitting) and _wants_pools(first):
            self.violate(f"{len(gang)} Jobs wait though they could have {', '.join(fitting)}", *map(_key, gang))

    def _nodes_to_come(self) -> list[tuple[str, list["_Free"]]]:
        """Return, for each pool with an autoscaler and no other bound, the nodes that it can still add."""
        world = self.scene.world
        cluster = next(iter(world.objects(scheme.CLUSTER)), None)
        if cluster is None or cluster["spec"].get("quotas") or _limits(cluster):
            return []
        sold_out = [row["machineType"] for row in cluster["spec"].get("capacity") or ()]
        found = []
        for pool in world.objects(scheme.NODE_POOL):
            spec, name = pool["spec"], pool["metadata"]["name"]
            is_bounded = spec.get("provisioning") == "queued" or spec.get("reservation") or spec.get("placementGroup")
            if "autoscaling" in spec and not is_bounded and spec["machineType"] not in sold_out:
                found.append((name, list(self._growth(pool, cluster))))
        return found

    def _growth(self, pool: Obj, cluster: Obj) -> Iterator["_Free"]:
        machines = [obj for obj in self.scene.world.objects(scheme.INSTANCE) if phase_of(obj) != FAILED]
        zones = [obj["spec"]["zone"] for obj in machines if obj["spec"]["pool"] == pool["metadata"]["name"]]
        bounds = pool["spec"]["autoscaling"]
        if hosts_of_slice(pool, catalog_of(cluster)) > 1 and zones:
            return
        left = bounds.get("totalMax", 1 << 30) - len(zones)
        for zone in zones_of(pool, cluster):
            for _ in range(min(left, bounds.get("max", left) - zones.count(zone))):
                left -= 1
                view = node_view(node_template(pool, zone, cluster))
                yield _Free(view, dict(view.allocatable))


class _Free:
    """A node, and the free amounts on it."""

    def __init__(self, node: NodeView, free: dict[str, int]) -> None:
        self.node = node
        self.free = free

    def could_take(self, pod: PodView) -> bool:
        """Whether a pod fits this node."""
        return not unsuitable(pod, self.node) and all(self.free.get(r, 0) >= amount for r, amount in pod.requests)


def _free_nodes(nodes: Sequence[Obj], taken: dict[str, list[PodView]]) -> list[_Free]:
    found = []
    for view in map(node_view, nodes):
        used = requested(taken.get(view.name, ()))
        free = {resource: amount - used.get(resource, 0) for resource, amount in view.allocatable.items()}
        found.append(_Free(view, free))
    return found


def _find_room(gang: Sequence[PodView], nodes: Sequence[_Free]) -> bool:
    """Whether all pods of a gang fit, each on the first node with room."""
    trial = [_Free(node.node, dict(node.free)) for node in nodes]
    for pod in gang:
        node = next((node for node in trial if node.could_take(pod)), None)
        if node is None:
            return False
        for resource, amount in pod.requests:
            node.free[resource] -= amount
    return True


def _wants_pools(pods: Sequence[PodView]) -> bool:
    """Whether the pods' anti-affinity concerns pools only."""
    return all(term.topology_key == well_known.NODE_POOL for pod in pods for term in pod.shape.anti_affinity)


def _limits(cluster: Obj) -> object:
    """Return the limits of the whole cluster."""
    scaling = cluster["spec"].get("autoscaling") or {}
    return (scaling.get("autoProvisioning") or {}).get("limits")


def _has_ended(job: Obj) -> bool:
    return any(is_true(job.get("status") or {}, end) for end in _ENDS)


def _must_follow_ended_pod(job: Obj) -> bool:
    """Whether new pods of a Job would have to follow its first pod, which has succeeded, to its domain."""
    annotations = ((job["spec"].get("template") or {}).get("metadata") or {}).get("annotations") or {}
    if well_known.EXCLUSIVE_TOPOLOGY not in annotations or well_known.NODE_SELECTOR_STRATEGY in annotations:
        return False
    return contains(parsed((job.get("status") or {}).get("completedIndexes"), 1), 0)


def _key(pod: PodView) -> Key:
    return Key(scheme.POD, pod.namespace, pod.name)


# --- nothing is stuck ---
#
# When no more events are scheduled, no Workload waits for quota that is free.
#
# A waiting Workload must be excluded or without room: its queues are stopped or do not select it, it is held back, it
# is
# behind the head of a StrictFIFO queue, or its quota is in use. Three cases are left out, all as upstream behaves:
# - A StrictFIFO queue whose head waits for quota may reserve quota that other queues then lack.
# - A tree in which Workloads preempt each other endlessly is skipped.
# - The search for victims ignores quota for the number of pods. A head whose victims would not free enough pods stays
#   at
#   the front and blocks those behind it.


class NothingIsStuck(Invariant):
    """No pending Workload fits the free quota of its queue."""

    name = "nothing_is_stuck"

    def finish(self) -> None:
        """Check all pending Workloads, if no more events are scheduled."""
        if self.scene.world.kernel.pending():
            return
        waiting = self._waiting()
        looping = {loop.root for loop in self.scene.world.loops}
        for queue, views in waiting.items():
            root = self._root(queue)
            spec = self.ledger.queues[queue]
            others = [name for name in waiting if name != queue and self._root(name) == root]
            if root.partition("/")[2] in looping or any(self.ledger.queues[name].strict_fifo for name in others):
                continue
            for view in views[:1] if spec.strict_fifo or _counts_pods(spec) else views:
                if self._has_room(view, spec):
                    what = f"{view.key} waits in {queue} though there is room for it"
                    self.violate(what, Key(scheme.WORKLOAD, view.namespace, view.name))

    def _waiting(self) -> dict[str, list[WorkloadView]]:
        """Return the Workloads that the scheduler could consider, by ClusterQueue, in queue order."""
        found: dict[str, list[WorkloadView]] = {}
        for view in self.ledger.workloads.values():
            queue = self.ledger.queue_of(view)
            if queue is not None and self._may_have_its_turn(view, queue):
                found.setdefault(queue.name, []).append(view)
        return {name: sorted(views, key=_turn) for name, views in found.items()}

    def _may_have_its_turn(self, view: WorkloadView, queue: ClusterQueueView) -> bool:
        labels = self.ledger.namespaces.get(view.namespace)
        is_open = queue.stop_policy == "None" and self.ledger.local_queues[view.queue].stop_policy == "None"
        is_whole = all(flavor in self.ledger.flavors for group in queue.groups for flavor in group.flavors)
        return (
            is_open
            and is_whole
            and not queue.admission_checks
            and queue.name not in self.ledger.terminating
            and not self.ledger.quota.is_in_cycle(queue.cohort)
            and labels is not None
            and queue.namespaces is not None
            and queue.namespaces.matches(labels)
            and view.admissible
            and not view.requeue_blocked
            and view.requeue_at is None
            and not any(pod_set.template.over_limit for pod_set in view.pod_sets)
        )

    def _has_room(self, view: WorkloadView, queue: ClusterQueueView) -> bool:
        """Whether one flavor of each resource group could hold all pod sets, so that no earlier choice can fail."""
        total: dict[str, int] = {}
        for pod_set, count in zip(view.pod_sets, view.counts, strict=True):
            for resource, amount in pod_set.template.requests:
                total[resource] = total.get(resource, 0) + amount * count
        covered = {resource: group for group in queue.groups for resource in group.resources}
        if "pods" in covered:
            total["pods"] = sum(view.counts)
        if any(amount and resource not in covered for resource, amount in total.items()):
            return False
        groups = [group for group in queue.groups if any(resource in total for resource in group.resources)]
        return all(self._group_has_room(view, queue, group, total) for group in groups)

    def _group_has_room(
        self, view: WorkloadView, queue: ClusterQueueView, group: ResourceGroup, total: dict[str, int]
    ) -> bool:
        for flavor in group.flavors:
            wanted = {(flavor, resource): total[resource] for resource in group.resources if resource in total}
            suits = all(not flavor_mismatch(p.template, flavor, self.ledger.flavors[flavor]) for p in view.pod_sets)
            if suits and all(self._is_free(queue, pair, amount) for pair, amount in wanted.items()):
                return True
        return False

    def _is_free(self, queue: ClusterQueueView, pair: Pair, amount: int) -> bool:
        return amount <= max(0, self.ledger.quota.available(f"queue/{queue.name}", pair))

    def _root(self, queue: str) -> str:
        return self.ledger.quota.path(f"queue/{queue}")[0]


def _counts_pods(queue: ClusterQueueView) -> bool:
    return any("pods" in group.resources for group in queue.groups)


def _turn(view: WorkloadView) -> tuple[int, int, str]:
    return -view.priority, view.queued, view.uid


# --- nothing is orphaned ---
#
# When no more events are scheduled, no object has a deleted owner: no nodes, pods or Leases.
#
# An owner that never existed does not count, as for garbage collectors.


class NothingIsOrphaned(Invariant):
    """No object remains whose owner was deleted, and every machine has its node."""

    name = "nothing_is_orphaned"

    def __init__(self, scene: WorldView) -> None:
        super().__init__(scene)
        #: The uids of all objects that ever existed.
        self._known: dict[str, None] = {}

    def look(self, event: WatchEvent) -> None:
        """Record the uid of an added object."""
        if event.type is EventType.ADDED:
            self._known[event.obj["metadata"]["uid"]] = None

    def finish(self) -> None:
        """Check the owners of all objects."""
        if self.is_at_rest:
            for key, what in [*self._left_by_owners(), *self._left_by_machines()]:
                self.violate(f"{key.kind} {key} {what}", key)

    def _left_by_owners(self) -> Iterator[tuple[Key, str]]:
        store = self.scene.world.store
        found = [obj for kind in store.kinds() for obj in store.list(kind)]
        uids = {obj["metadata"]["uid"]: None for obj in found}
        for obj in found:
            owner = controller_of(obj)
            if owner is not None and owner["uid"] not in uids and owner["uid"] in self._known:
                yield key_of(obj), f"is owned by {owner['name']}, which is gone"
            if "deletionTimestamp" in obj["metadata"]:
                yield key_of(obj), "is terminating forever"

    def _left_by_machines(self) -> Iterator[tuple[Key, str]]:
        world = self.scene.world
        machines = {obj["metadata"]["name"]: obj for obj in world.objects(scheme.INSTANCE)}
        pools = {obj["metadata"]["name"]: obj for obj in world.objects(scheme.NODE_POOL)}
        nodes = {obj["metadata"]["name"]: obj for obj in world.objects(scheme.NODE)}
        for name, machine in machines.items():
            pool = pools.get(machine["spec"]["pool"])
            if pool is None:
                yield key_of(machine), "is of a pool that is gone"
            elif name not in nodes and (is_autoscaled(pool) or phase_of(machine) != FAILED):
                yield key_of(machine), f"has no node: {machine.get('status')}"
        for name, node in nodes.items():
            if name not in machines and label(node, well_known.NODE_POOL) is not None:
                yield key_of(node), "has no machine"
        for lease in world.objects(scheme.LEASE):
            if lease["metadata"]["name"] not in nodes:
                yield key_of(lease), "is of no node"
        used = [machine["spec"]["pool"] for machine in machines.values()]
        for name, pool in pools.items():
            if pool["spec"].get("autoProvisioned") and name not in used:
                yield key_of(pool), "was made for pods and is empty"


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


# --- store ---
#
# The store and its watches: objects are immutable, and every change is delivered once and in order.


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
