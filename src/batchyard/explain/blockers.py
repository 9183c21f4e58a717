"""What keeps a Workload waiting: blockers before scheduling, the occupants of nodes, and the binding quota limit."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from batchyard.api import scheme, well_known
from batchyard.api.meta import Key, Obj, find_condition, format_amount, label
from batchyard.api.times import format_time
from batchyard.api.views.pod_shape import PODS
from batchyard.api.views.pods import PodView, is_terminal, pod_view
from batchyard.api.views.workload import WorkloadView
from batchyard.base.instant import Instant
from batchyard.explain.document import (
    Binding,
    ExplanationReader,
    FlavorResourceRequest,
    FlavorVerdict,
    Part,
    PodSetVerdicts,
    slim,
    workload_of,
)
from batchyard.interfaces.client import Reader
from batchyard.scheduling import messages
from batchyard.scheduling.cluster_queue import TAINT, ClusterQueue, rule_of
from batchyard.scheduling.cycle import Cycle, SchedulingPolicy
from batchyard.scheduling.decisions import Decision, Head, StayPending
from batchyard.scheduling.queue_manager import is_held_back
from batchyard.scheduling.quota import PreemptionPossibility, QuotaNode, available
from batchyard.scheduling.scheduler_cache import SchedulerCache
from batchyard.scheduling.snapshot import Snapshot
from batchyard.scheduling.workload import lifecycle, pending_reason
from batchyard.scheduling.workload.lifecycle import WAITING_FOR_PODS_READY

STOPPED = "stopped"
MISCONFIGURED = "misconfigured"
BACKOFF = "backoff"
GATED = "gated"
CHECK = "admissionCheck"
PODS_READY = "podsReady"


def queues_of(workload: Obj, reader: Reader) -> pending_reason.WorkloadQueues:
    """Return the queues of a Workload, as far as they exist."""
    namespace = workload["metadata"].get("namespace", "")
    local = reader.get(Key(scheme.LOCAL_QUEUE, namespace, workload["spec"].get("queueName", "")))
    found = pending_reason.WorkloadQueues(local, None, reader.get(Key(scheme.NAMESPACE, "", namespace)))
    name = found.cluster_queue_name
    return found._replace(cluster_queue=reader.get(Key(scheme.CLUSTER_QUEUE, "", name)) if name else None)


def blocker_of(workload: Obj, queues: pending_reason.WorkloadQueues, index: SchedulerCache) -> Binding | None:
    """Return the obstacle in its own state or in that of its queues; None if there is none."""
    name = workload["metadata"]["name"]
    if not lifecycle.is_active(workload):
        return Binding(STOPPED, _deactivated(workload), "Workload", name)
    if lifecycle.is_on_hold(workload):
        return Binding(GATED, "it is on hold", "Workload", name)
    found = pending_reason.reason_for_pending(workload, queues)
    if found is None or found.reason == messages.PENDING_EVALUATION:
        return None
    limit = {messages.MISCONFIGURED: MISCONFIGURED, messages.SUSPENDED: STOPPED}.get(found.reason, GATED)
    kind, where = _where(workload, queues, limit)
    return Binding(limit, found.message + _more_of(queues, kind, index), kind, where)


def _deactivated(workload: Obj) -> str:
    evicted = find_condition(workload, "Evicted")
    cause = f": {evicted['message']}" if evicted is not None and evicted.get("message") else ""
    return f"it is deactivated (spec.active is false){cause}"


def _where(workload: Obj, queues: pending_reason.WorkloadQueues, limit: str) -> tuple[str, str]:
    """Return the kind and name of the object to fix."""
    if limit == GATED:
        return "Workload", workload["metadata"]["name"]
    local = queues.local_queue
    if local is None or pending_reason.stop_policy(local) != "None":
        return "LocalQueue", workload["spec"].get("queueName", "")
    return "ClusterQueue", queues.cluster_queue_name


def _more_of(queues: pending_reason.WorkloadQueues, kind: str, index: SchedulerCache) -> str:
    """Return the readiness message of an inactive ClusterQueue, as a suffix."""
    name = queues.cluster_queue_name
    if kind == "LocalQueue" and queues.local_queue is None:
        return ""
    if kind == "ClusterQueue" and name in index.snapshot.queues:
        ready = index.readiness(name)
        return "" if ready.active else f": {ready.message}"
    return ""


def held_back(view: WorkloadView, now: Instant) -> Binding | None:
    """Return the backoff or Requeued condition that holds a Workload back."""
    if not is_held_back(view, now):
        return None
    if view.requeue_at is not None and view.requeue_at > now:
        text = f"it was requeued with backoff until {format_time(view.requeue_at)}"
    else:
        text = "its condition Requeued is False: the scheduler skips it until that changes"
    return Binding(BACKOFF, text, "Workload", view.name)


def failed_check(workload: Obj) -> Binding | None:
    """Return the AdmissionCheck in state Rejected or Retry, if any."""
    for state in (lifecycle.REJECTED, lifecycle.RETRY):
        found = lifecycle.in_state(workload, state)
        if found:
            return Binding(CHECK, lifecycle.describe_checks(found, state), "AdmissionCheck", found[0]["name"])
    return None


def blocked_entry(index: SchedulerCache, asker: ExplanationReader) -> Binding | None:
    """Return the Workload that waits for the PodsReady gate: it is admitted before all pending ones."""
    found = [view for view in index.book.views() if view.waits_for == WAITING_FOR_PODS_READY and view.admissible]
    if not found:
        return None
    name = asker.name_of(found[0].key)
    text = f"it would fit, and {name} is admitted before it, once all admitted workloads are ready"
    return Binding(PODS_READY, text, "Workload", name)


def decision_about(view: WorkloadView, queue: str, index: SchedulerCache, policy: SchedulingPolicy) -> Decision:
    """Return the decision of a cycle with this Workload as the only head."""
    return Cycle(index.snapshot, policy, index.namespaces, 0).run([Head(view, queue)])[0]


def refusal_of(decision: Decision, index: SchedulerCache) -> Binding | None:
    """Return the obstacle if a cycle rejects the Workload before it searches for flavors."""
    if not isinstance(decision, StayPending) or decision.why.assignment is not None:
        return None
    why, queue = decision.why, decision.head.queue
    if why.reason == messages.MISCONFIGURED:
        is_own = decision.head.workload.over_limit or bool(decision.head.workload.out_of_bounds)
        kind, name = ("Workload", decision.head.workload.name) if is_own else ("ClusterQueue", queue)
        return Binding(MISCONFIGURED, why.message, kind, name)
    if why.reason == messages.SUSPENDED and (found := index.snapshot.queues.get(queue)) is not None and found.in_cycle:
        text = f"{why.message}: the parents of Cohort {found.view.cohort} lead into a cycle"
        return Binding(MISCONFIGURED, text, "Cohort", found.view.cohort)
    if why.reason == messages.SUSPENDED:
        return Binding(STOPPED, why.message, "ClusterQueue", queue)
    return None


# --- occupants ---
#
# The Workloads on the nodes that pods without a node could use.


class NodeOccupant(NamedTuple):
    """A Workload, or all pods without one, with what its pods request on those nodes."""

    key: str
    queue: str
    priority: int
    amounts: Mapping[str, int]
    nodes: Sequence[str]
    #: The uids of its pods there.
    pods: Sequence[str] = ()
    flavor: str = ""

    def document(self, asker: ExplanationReader) -> Part:
        """Return the holder as a part of the document."""
        holds = [{"flavor": self.flavor, "resource": r, "amount": format_amount(r, n)} for r, n in self.amounts.items()]
        name = asker.name_of(self.key) if self.key else "pods without a Workload"
        fields = slim(workload=name, clusterQueue=self.queue, nodes=list(self.nodes))
        return {**fields, "priority": self.priority, "holds": holds, "borrows": False}


def selected_nodes(pod: PodView, reader: Reader) -> list[str]:
    """Return the nodes that match the node selector of a pod."""
    selector = dict(pod.node_selector).items()
    nodes = reader.list(scheme.NODE)
    return [each["metadata"]["name"] for each in nodes if selector <= (each["metadata"].get("labels") or {}).items()]


def occupants_of(workload: Obj, unplaced: Sequence[Obj], snapshot: Snapshot, reader: Reader) -> list[NodeOccupant]:
    """Return the occupants of the nodes that these pods select, those with most of the scarcest resource first."""
    asked = pod_view(unplaced[0])
    nodes = dict.fromkeys(selected_nodes(asked, reader))
    wanted = [resource for resource, _ in asked.requests if resource != PODS]
    scarce = next((each for each in wanted if "/" in each), wanted[0] if wanted else PODS)
    found: dict[str, NodeOccupant] = {}
    for pod in reader.list(scheme.POD):
        view = pod_view(pod)
        if view.node_name in nodes and not is_terminal(pod) and dict(view.requests).get(scarce):
            _count(found, pod, view, (wanted, reader))
    own = f"{workload['metadata'].get('namespace', '')}/{workload['metadata']['name']}"
    others = [each for key, each in found.items() if key != own]
    held = [(snapshot.holder(each.key), each) for each in others]
    occupants = [
        each if holder is None else each._replace(queue=holder.queue.name, priority=holder.priority)
        for holder, each in held
    ]
    return sorted(occupants, key=lambda each: (-each.amounts.get(scarce, 0), each.key))


def _count(found: dict[str, NodeOccupant], pod: Obj, view: PodView, asked: tuple[Sequence[str], Reader]) -> None:
    wanted, reader = asked
    name = label(pod, well_known.WORKLOAD)
    if name is None:
        workload = workload_of(pod, reader).workload
        name = workload["metadata"]["name"] if workload is not None else ""
    key = f"{view.namespace}/{name}" if name else ""
    known = found.get(key) or NodeOccupant(key, "", view.priority, {}, ())
    amounts = dict(known.amounts)
    for resource, amount in view.requests:
        if resource in wanted:
            amounts[resource] = amounts.get(resource, 0) + amount
    nodes = list(dict.fromkeys([*known.nodes, view.node_name]))
    found[key] = known._replace(amounts=amounts, nodes=nodes, pods=[*known.pods, view.uid])


# --- binding limit ---
#
# Finds the limit that rejects an amount, by a walk up the cohort tree that follows the quota arithmetic.


NOMINAL: Final = "nominal"
BORROWING: Final = "borrowing"
LENDING: Final = "lending"
MAXIMUM: Final = "maximum"


class LimitingNode(NamedTuple):
    """The binding limit, the node that defines it, and the missing amount."""

    limit: str
    node: QuotaNode
    missing: int


class UnlentQuota(NamedTuple):
    """Unused quota that a node does not lend."""

    node: QuotaNode
    amount: int


def bound_of(node: QuotaNode, fr: int, amount: int) -> LimitingNode:
    """Return the limit that rejects an amount; call only if the amount is not available.

    The walk goes up from the node: the first borrowing limit that allows less than is available above it binds. If
    there is none, all quota of the tree is used or not lent. Then a lending limit binds if lending it would suffice.
    Otherwise the nominal quota binds: of the node if it uses all of its own, else of the root.
    """
    if amount > node.potential[fr]:
        return LimitingNode(MAXIMUM, _capping(node, fr), amount - node.potential[fr])
    missing = amount - available(node, fr)
    for step in reversed(node.path[1:]):
        ceiling = step.borrowing_ceiling[fr]
        if ceiling is not None and ceiling - max(0, step.usage[fr] - step.local[fr]) < _free(step.parent, fr):
            return LimitingNode(BORROWING, step, missing)
    kept = unlent_quota(node, fr)
    if kept and sum(each.amount for each in kept) >= missing:
        return LimitingNode(LENDING, kept[0].node, missing)
    is_own = node.parent is None or node.usage[fr] >= node.subtree[fr]
    return LimitingNode(NOMINAL, node if is_own else node.path[0], missing)


def unlent_quota(node: QuotaNode, fr: int) -> list[UnlentQuota]:
    """Return unused quota that other nodes of the tree do not lend, largest first."""
    found = [
        UnlentQuota(each, each.local[fr] - each.usage[fr])
        for each in _others(node)
        if each.lending_limit.get(fr) is not None
    ]
    found = [each for each in found if each.amount > 0]
    return sorted(found, key=lambda each: (-each.amount, each.node.name))


def _others(node: QuotaNode) -> Iterator[QuotaNode]:
    """Yield all nodes of the tree except those on the path from the root to this node."""
    own = dict.fromkeys(node.path)
    nodes = [node.path[0]]
    for step in nodes:
        nodes.extend(step.children.values())
        if step not in own:
            yield step


def _free(node: QuotaNode | None, fr: int) -> int:
    return 0 if node is None else available(node, fr)


def _capping(node: QuotaNode, fr: int) -> QuotaNode:
    """Return the node that caps the potential: the lowest one whose borrowing limit reduces it, or the root."""
    for step in reversed(node.path[1:]):
        limit = step.borrowing_limit.get(fr)
        above = step.parent.potential[fr] if step.parent is not None else 0
        if limit is not None and step.subtree[fr] + limit < step.local[fr] + above:
            return step
    return node.path[0] if node.parent is not None else node


# --- binding ---
#
# The one limit that keeps a Workload pending: that of the flavor that is nearest to fitting.
#
# In each resource group, the flavor with the smallest obstacle counts. Of several groups, the one with the largest
# obstacle counts, as in the reason of the QuotaReserved condition.


UNCOVERED: Final = "misconfigured"


class Shortage(NamedTuple):
    """Why a pod set does not fit, and in which flavor."""

    pod_set: str
    #: The rule that excludes the flavor, or the limit that binds.
    limit: str
    look: FlavorVerdict | None
    ask: FlavorResourceRequest | None
    bound: LimitingNode | None
    #: A resource that the ClusterQueue does not cover.
    unavailable: str = ""


def shortage_of(looks: Sequence[PodSetVerdicts], queue: ClusterQueue) -> Shortage | None:
    """Return the shortage that keeps a Workload pending; None if it fits."""
    found: list[tuple[tuple[int, float], Shortage]] = []
    for pod_set in looks:
        if pod_set.unavailable:
            return Shortage(pod_set.name, UNCOVERED, None, None, None, pod_set.unavailable)
        for group in pod_set.groups():
            nearest = min(group, key=_distance)
            if not nearest.fits:
                found.append((_distance(nearest), _shortage(pod_set.name, nearest, queue)))
    return max(found, key=lambda each: each[0])[1] if found else None


def _distance(look: FlavorVerdict) -> tuple[int, float]:
    """Rank how far a flavor is from fitting: the kind of obstacle, then the missing share of the request."""
    lack = max((ask.missing / ask.total for ask in look.asks if ask.total), default=0.0)
    if look.fits:
        return 0, 0.0
    if look.obstacle:
        return 4 if rule_of(look.obstacle) == TAINT else 5, lack
    if look.exceeds:
        return 3, lack
    return 1 if look.possibility in {PreemptionPossibility.PREEMPT, PreemptionPossibility.RECLAIM} else 2, lack


def _shortage(pod_set: str, look: FlavorVerdict, queue: ClusterQueue) -> Shortage:
    if look.obstacle:
        return Shortage(pod_set, rule_of(look.obstacle), look, None, None)
    short = [ask for ask in look.asks if ask.missing]
    ask = max(short, key=lambda each: (each.total > each.most, each.missing / each.total))
    bound = bound_of(queue.node, ask.fr, ask.total)
    return Shortage(pod_set, bound.limit, look, ask, bound)
