"""Finds why a Workload waits: an obstacle before scheduling, a quota limit, or Workloads that occupy the nodes."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from batchyard.api import scheme, well_known
from batchyard.api.meta import Key, Obj, annotation, find_condition, format_amount
from batchyard.api.times import format_second
from batchyard.api.views.pod_shape import PODS
from batchyard.api.views.pods import PodView, is_terminal, pod_view
from batchyard.api.views.workload import WorkloadView
from batchyard.base.instant import Instant
from batchyard.explain.document import (
    PREEMPTING_POSSIBILITIES,
    BindingLimit,
    DocumentPart,
    ExplanationUser,
    FlavorOutcome,
    FlavorResourceRequest,
    PodSetFlavorOutcomes,
    nonempty_fields,
    workload_of,
)
from batchyard.interfaces.client import Reader
from batchyard.scheduling import messages
from batchyard.scheduling.cluster_queue import TAINT_MISMATCH, ClusterQueue, mismatch_rule
from batchyard.scheduling.cycle import Cycle, SchedulingPolicy
from batchyard.scheduling.decisions import Decision, Head, StayPending
from batchyard.scheduling.pending_heap import is_held_back
from batchyard.scheduling.quota import QuotaNode, available
from batchyard.scheduling.scheduler_cache import SchedulerCache
from batchyard.scheduling.snapshot import Snapshot
from batchyard.scheduling.workload import lifecycle, pending_reason
from batchyard.scheduling.workload.lifecycle import WAITING_FOR_PODS_READY
from batchyard.scheduling.workload.pods_ready import has_pods

STOPPED = "stopped"
MISCONFIGURED = "misconfigured"
BACKOFF = "backoff"
GATED = "gated"
CHECK = "admissionCheck"
PODS_READY = "podsReady"
_UNREADY_SHOWN: Final = 5


def queues_of(workload: Obj, reader: Reader) -> pending_reason.WorkloadQueues:
    """Return the LocalQueue, the ClusterQueue and the Namespace of a Workload; None for each that does not exist."""
    namespace = workload["metadata"].get("namespace", "")
    local_queue = reader.get(Key(scheme.LOCAL_QUEUE, namespace, workload["spec"].get("queueName", "")))
    workload_queues = pending_reason.WorkloadQueues(local_queue, None, reader.get(Key(scheme.NAMESPACE, "", namespace)))
    name = workload_queues.cluster_queue_name
    return workload_queues._replace(cluster_queue=reader.get(Key(scheme.CLUSTER_QUEUE, "", name)) if name else None)


def blocker_of(workload: Obj, queues: pending_reason.WorkloadQueues, cache: SchedulerCache) -> BindingLimit | None:
    """Return what in a Workload or its queues keeps the Workload out of scheduling; None if nothing does."""
    name = workload["metadata"]["name"]
    if not lifecycle.is_active(workload):
        return BindingLimit(STOPPED, _describe_deactivation(workload), "Workload", name)
    if lifecycle.is_on_hold(workload):
        return BindingLimit(GATED, "it is on hold", "Workload", name)
    pending_state = pending_reason.reason_for_pending(workload, queues)
    if pending_state is None or pending_state.reason == messages.PENDING_EVALUATION:
        return None
    limit_kind = {messages.MISCONFIGURED: MISCONFIGURED, messages.SUSPENDED: STOPPED}.get(pending_state.reason, GATED)
    kind, object_name = _object_to_fix(workload, queues, limit_kind)
    return BindingLimit(limit_kind, pending_state.message + _inactivity_suffix(queues, kind, cache), kind, object_name)


def _describe_deactivation(workload: Obj) -> str:
    eviction = find_condition(workload, "Evicted")
    cause_suffix = f": {eviction['message']}" if eviction is not None and eviction.get("message") else ""
    return f"it is deactivated (spec.active is false){cause_suffix}"


def _object_to_fix(workload: Obj, queues: pending_reason.WorkloadQueues, limit_kind: str) -> tuple[str, str]:
    if limit_kind == GATED:
        return "Workload", workload["metadata"]["name"]
    local_queue = queues.local_queue
    if local_queue is None or pending_reason.stop_policy(local_queue) != "None":
        return "LocalQueue", workload["spec"].get("queueName", "")
    return "ClusterQueue", queues.cluster_queue_name


def _inactivity_suffix(queues: pending_reason.WorkloadQueues, kind: str, scheduler_cache: SchedulerCache) -> str:
    name = queues.cluster_queue_name
    if kind == "ClusterQueue" and name in scheduler_cache.snapshot.queues:
        active_status = scheduler_cache.active_status(name)
        return "" if active_status.active else f": {active_status.message}"
    return ""


def requeue_binding_limit(view: WorkloadView, now: Instant) -> BindingLimit | None:
    """Return why a backoff or the condition Requeued=False keeps a Workload out of its queue; None if neither does."""
    if not is_held_back(view, now):
        return None
    if view.requeue_at is not None and view.requeue_at > now:
        text = f"it was requeued with backoff until {format_second(view.requeue_at)}"
        return BindingLimit(BACKOFF, text, "Workload", view.name, until=view.requeue_at)
    text = "its condition Requeued is False: the scheduler skips it until that changes"
    return BindingLimit(BACKOFF, text, "Workload", view.name)


def failed_check_binding_limit(workload: Obj) -> BindingLimit | None:
    """Return the limit of a Workload with an admission check in state Rejected or, else, Retry; None for others."""
    for state in (lifecycle.REJECTED, lifecycle.RETRY):
        checks = lifecycle.checks_in_state(workload, state)
        if checks:
            text, until = lifecycle.describe_checks(checks, state), lifecycle.retry_at(workload)
            return BindingLimit(CHECK, text, "AdmissionCheck", checks[0]["name"], until=until)
    return None


def unready_workloads(scheduler_cache: SchedulerCache, reader: Reader) -> list[str]:
    """Return the keys of the Workloads whose unready pods block admissions with waitForPodsReady."""
    views = [
        view
        for view in scheduler_cache.workload_cache.views()
        if view.quota_reserved and view.active and not view.finished and not view.pods_ready
    ]
    workloads = [(view.key, reader.get(Key(scheme.WORKLOAD, view.namespace, view.name))) for view in views]
    return [
        key
        for key, obj in workloads
        if obj is not None and (has_pods(obj) or find_condition(obj, lifecycle.PODS_READY) is not None)
    ]


def pods_ready_limit(
    workload: Obj, scheduler_cache: SchedulerCache, reader: Reader, user: ExplanationUser
) -> BindingLimit | None:
    """Return the limit of a Workload that waits for the pods of admitted Workloads to be ready; None if it does not.

    The reason of the condition QuotaReserved shows this wait. The limit names Workloads with unready pods, if any.
    """
    quota_condition = find_condition(workload, lifecycle.QUOTA_RESERVED)
    if quota_condition is None or quota_condition["reason"] != WAITING_FOR_PODS_READY:
        return None
    names = list(dict.fromkeys(map(user.name_of, unready_workloads(scheduler_cache, reader))))
    message = str(quota_condition.get("message", ""))
    if not names:
        return BindingLimit(PODS_READY, message)
    return BindingLimit(PODS_READY, f"{message}: {', '.join(names[:_UNREADY_SHOWN])}", "Workload", names[0])


def blocked_views(scheduler_cache: SchedulerCache) -> list[WorkloadView]:
    """Return the Workloads whose admission only waits until the pods of all admitted Workloads are ready."""
    views = scheduler_cache.workload_cache.views()
    return [view for view in views if view.pending_reason == WAITING_FOR_PODS_READY and view.admissible]


def blocked_entry_binding_limit(scheduler_cache: SchedulerCache, user: ExplanationUser) -> BindingLimit | None:
    """Return a limit that names the first Workload whose admission waits until all admitted Workloads are ready.

    Return None if no Workload waits for this.
    """
    waiting_views = blocked_views(scheduler_cache)
    if not waiting_views:
        return None
    name = user.name_of(waiting_views[0].key)
    text = f"it would fit, and {name} is admitted before it, once all admitted workloads are ready"
    return BindingLimit(PODS_READY, text, "Workload", name)


def simulate_decision(view: WorkloadView, queue: str, cache: SchedulerCache, policy: SchedulingPolicy) -> Decision:
    """Return the decision of a simulated scheduling cycle with the Workload as the only queue head."""
    return Cycle(cache.snapshot, policy, cache.namespaces, 0).run([Head(view, queue)])[0]


def binding_limit_of_refusal(decision: Decision, scheduler_cache: SchedulerCache) -> BindingLimit | None:
    """Return the misconfiguration or stop because of which the scheduler tried no flavor for a Workload, else None."""
    if not isinstance(decision, StayPending) or decision.why.assignment is not None:
        return None
    stay_reason, queue = decision.why, decision.head.queue
    if stay_reason.reason == messages.MISCONFIGURED:
        is_workload_fault = decision.head.workload.over_limit or bool(decision.head.workload.limit_range_violation)
        kind, name = ("Workload", decision.head.workload.name) if is_workload_fault else ("ClusterQueue", queue)
        return BindingLimit(MISCONFIGURED, stay_reason.message, kind, name)
    if (
        stay_reason.reason == messages.SUSPENDED
        and (cluster_queue := scheduler_cache.snapshot.queues.get(queue)) is not None
        and cluster_queue.is_in_cohort_cycle
    ):
        text = f"{stay_reason.message}: the parents of Cohort {cluster_queue.view.cohort} lead into a cycle"
        return BindingLimit(MISCONFIGURED, text, "Cohort", cluster_queue.view.cohort)
    if stay_reason.reason == messages.ADMISSION_GATED:
        text = f"{stay_reason.message} by spec.preemptionGates"
        return BindingLimit(GATED, text, "Workload", decision.head.workload.name)
    if stay_reason.reason == messages.SUSPENDED:
        return BindingLimit(STOPPED, stay_reason.message, "ClusterQueue", queue)
    return None


# The Workloads whose pods run on the nodes that unscheduled pods could use.


class NodeOccupant(NamedTuple):
    """A Workload with pods on certain nodes, and their requests; an empty key stands for pods without a Workload."""

    key: str
    queue: str
    priority: int
    #: The requests of the pods, by resource.
    amounts: Mapping[str, int]
    #: The names of the nodes.
    nodes: Sequence[str]
    #: The uids of its pods on these nodes.
    pod_uids: Sequence[str] = ()
    flavor: str = ""

    def document(self, user: ExplanationUser) -> DocumentPart:
        """Return the Workload as an entry of the field `holders` in the Explanation document."""
        held_amounts = [
            {"flavor": self.flavor, "resource": r, "amount": format_amount(r, n)} for r, n in self.amounts.items()
        ]
        name = user.name_of(self.key) if self.key else "pods without a Workload"
        occupant_fields = nonempty_fields(workload=name, clusterQueue=self.queue, nodes=list(self.nodes))
        return {**occupant_fields, "priority": self.priority, "holds": held_amounts, "borrows": False}


def selected_nodes(pod: PodView, reader: Reader) -> list[str]:
    """Return the names of the nodes whose labels match the nodeSelector of a pod."""
    selector = dict(pod.node_selector).items()
    nodes = reader.list(scheme.NODE)
    return [each["metadata"]["name"] for each in nodes if selector <= (each["metadata"].get("labels") or {}).items()]


def occupants_of(workload: Obj, unplaced_pods: Sequence[Obj], snapshot: Snapshot, reader: Reader) -> list[NodeOccupant]:
    """Return other Workloads on the nodes that the first unplaced pod selects, largest user first.

    They are compared by one resource: the first extended resource (such as a GPU) that the pod requests, or else its
    first resource. Workloads that do not request this resource are left out.
    """
    unplaced_pod = pod_view(unplaced_pods[0])
    nodes = dict.fromkeys(selected_nodes(unplaced_pod, reader))
    requested_resources = [resource for resource, _ in unplaced_pod.requests if resource != PODS]
    scarcest_resource = next(
        (each for each in requested_resources if "/" in each), requested_resources[0] if requested_resources else PODS
    )
    occupants_by_key: dict[str, NodeOccupant] = {}
    for pod in reader.list(scheme.POD):
        view = pod_view(pod)
        if view.node_name in nodes and not is_terminal(pod) and dict(view.requests).get(scarcest_resource):
            _add_pod_to_occupants(occupants_by_key, pod, view, (requested_resources, reader))
    own_key = f"{workload['metadata'].get('namespace', '')}/{workload['metadata']['name']}"
    other_occupants = [each for key, each in occupants_by_key.items() if key != own_key]
    quota_holders = [(snapshot.holder(each.key), each) for each in other_occupants]
    occupants = [
        each if holder is None else each._replace(queue=holder.queue.name, priority=holder.priority)
        for holder, each in quota_holders
    ]
    return sorted(occupants, key=lambda each: (-each.amounts.get(scarcest_resource, 0), each.key))


def _add_pod_to_occupants(
    occupants_by_key: dict[str, NodeOccupant], pod: Obj, view: PodView, context: tuple[Sequence[str], Reader]
) -> None:
    requested_resources, reader = context
    name = annotation(pod, well_known.WORKLOAD)
    if name is None:
        workload = workload_of(pod, reader).workload
        name = workload["metadata"]["name"] if workload is not None else ""
    key = f"{view.namespace}/{name}" if name else ""
    occupant = occupants_by_key.get(key) or NodeOccupant(key, "", view.priority, {}, ())
    amounts = dict(occupant.amounts)
    for resource, amount in view.requests:
        if resource in requested_resources:
            amounts[resource] = amounts.get(resource, 0) + amount
    nodes = list(dict.fromkeys([*occupant.nodes, view.node_name]))
    occupants_by_key[key] = occupant._replace(amounts=amounts, nodes=nodes, pod_uids=[*occupant.pod_uids, view.uid])


# The ClusterQueue or Cohort whose quota limit rejects an amount, found by a walk up the cohort tree.


NOMINAL: Final = "nominal"
BORROWING: Final = "borrowing"
LENDING: Final = "lending"
MAXIMUM: Final = "maximum"


class LimitingNode(NamedTuple):
    """The quota limit that rejects a request, and the ClusterQueue or Cohort that defines it."""

    limit: str
    node: QuotaNode


class RetainedQuota(NamedTuple):
    """A cohort tree node, and the amount of its unused quota that its lendingLimit keeps from all other nodes."""

    node: QuotaNode
    amount: int


def find_limiting_node(node: QuotaNode, fr: int, amount: int) -> LimitingNode:
    """Return the quota limit that rejects an amount of flavor-resource `fr` beyond the available quota.

    The limit is the first of these that applies:

    - MAXIMUM: the amount exceeds what `node` could use in an empty cohort tree.
    - BORROWING: from `node` upwards, a borrowingLimit leaves less to borrow than the parent has available.
    - LENDING: the unused quota that lendingLimits keep from `node` would suffice.
    - NOMINAL: the quota of `node`, if it has no parent or uses all of its quota; else the quota of the root Cohort.
    """
    if amount > node.potential_quota[fr]:
        return LimitingNode(MAXIMUM, _capping_node(node, fr))
    for step in reversed(node.path[1:]):
        limit = step.borrowing_ceiling[fr]
        if limit is not None and limit - max(0, step.usage[fr] - step.local_quota[fr]) < _available_quota(
            step.parent, fr
        ):
            return LimitingNode(BORROWING, step)
    retained_quotas = find_retained_quotas(node, fr)
    if retained_quotas and sum(each.amount for each in retained_quotas) >= amount - available(node, fr):
        return LimitingNode(LENDING, retained_quotas[0].node)
    uses_all_own_quota = node.parent is None or node.usage[fr] >= node.subtree_quota[fr]
    return LimitingNode(NOMINAL, node if uses_all_own_quota else node.path[0])


def find_retained_quotas(node: QuotaNode, fr: int) -> list[RetainedQuota]:
    """Return the unused quota that other nodes of the cohort tree do not lend to `node`, largest amount first."""
    limited_nodes = [each for each in _nodes_off_path(node) if each.lending_limit.get(fr) is not None]
    retained_quotas = [RetainedQuota(each, each.local_quota[fr] - each.usage[fr]) for each in limited_nodes]
    retained_quotas = [each for each in retained_quotas if each.amount > 0]
    return sorted(retained_quotas, key=lambda each: (-each.amount, each.node.name))


def _nodes_off_path(node: QuotaNode) -> Iterator[QuotaNode]:
    path_nodes = dict.fromkeys(node.path)
    nodes = [node.path[0]]
    for step in nodes:
        nodes.extend(step.children.values())
        if step not in path_nodes:
            yield step


def _available_quota(node: QuotaNode | None, fr: int) -> int:
    return 0 if node is None else available(node, fr)


def _capping_node(node: QuotaNode, fr: int) -> QuotaNode:
    """Return the lowest cohort tree node whose borrowingLimit caps the usable quota of `node`, or the root."""
    for step in reversed(node.path[1:]):
        borrowing_limit = step.borrowing_limit.get(fr)
        parent_potential = step.parent.potential_quota[fr] if step.parent is not None else 0
        if (
            borrowing_limit is not None
            and step.subtree_quota[fr] + borrowing_limit < step.local_quota[fr] + parent_potential
        ):
            return step
    return node.path[0] if node.parent is not None else node


# The shortage that keeps a Workload pending, in the flavor that is nearest to fitting.
#
# Each resource group is represented by its flavor with the smallest obstacle. Of several groups, the group with the
# largest obstacle is reported, as in the reason of the QuotaReserved condition.


UNCOVERED_RESOURCE: Final = "misconfigured"


class QuotaShortage(NamedTuple):
    """Why a pod set does not fit, in the flavor that comes nearest to fitting."""

    pod_set: str
    #: The rule that excludes the flavor, or the limit that binds.
    limit: str
    outcome: FlavorOutcome | None
    request: FlavorResourceRequest | None
    limiting_node: LimitingNode | None
    #: A resource that the ClusterQueue does not cover.
    uncovered_resource: str = ""


def shortage_of(outcomes: Sequence[PodSetFlavorOutcomes], queue: ClusterQueue) -> QuotaShortage | None:
    """Return the largest shortage among a Workload's pod sets and resource groups; None if all of them fit.

    The shortage of a group is that of the flavor nearest to fitting. A resource that the ClusterQueue does not cover
    takes precedence over all other shortages.
    """
    ranked_shortages: list[tuple[tuple[int, float], QuotaShortage]] = []
    for pod_set in outcomes:
        if pod_set.uncovered_resource:
            return QuotaShortage(pod_set.name, UNCOVERED_RESOURCE, None, None, None, pod_set.uncovered_resource)
        for group in pod_set.grouped_outcomes():
            nearest_outcome = min(group, key=_distance_to_fit)
            if not nearest_outcome.fits:
                ranked_shortages.append(
                    (_distance_to_fit(nearest_outcome), _shortage_in_flavor(pod_set.name, nearest_outcome, queue))
                )
    return max(ranked_shortages, key=lambda each: each[0])[1] if ranked_shortages else None


def _distance_to_fit(outcome: FlavorOutcome) -> tuple[int, float]:
    """Return a sort key for how far a flavor is from fitting: kind of obstacle, then missing fraction of a request."""
    if outcome.fits:
        return 0, 0.0
    fraction = max((request.missing_fraction for request in outcome.binding_requests()), default=0.0)
    if outcome.obstacle:
        return 4 if mismatch_rule(outcome.obstacle) == TAINT_MISMATCH else 5, fraction
    if outcome.exceeds_potential:
        return 3, fraction
    return 1 if outcome.possibility in PREEMPTING_POSSIBILITIES else 2, fraction


def _shortage_in_flavor(pod_set: str, outcome: FlavorOutcome, queue: ClusterQueue) -> QuotaShortage:
    if outcome.obstacle:
        return QuotaShortage(pod_set, mismatch_rule(outcome.obstacle), outcome, None, None)
    request = outcome.binding_requests()[0]
    limiting_node = find_limiting_node(queue.node, request.fr, request.total)
    return QuotaShortage(pod_set, limiting_node.limit, outcome, request, limiting_node)
