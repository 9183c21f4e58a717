"""Plans for defragmentation: which running Workloads to restart elsewhere, so that a waiting Workload gets its domains.

A plan restarts a set of Workloads: without them the waiting Workload fits, and then each of them fits again. The
planner returns a plan whose cost is the lowest of all such sets. It tries the sets in ascending order of cost, so the
first that works is the cheapest. This is batchyard's own planner; Kueue has none.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any, Final, NamedTuple

from batchyard.api import scheme
from batchyard.api.meta import Key, Obj, controller_of, find_condition
from batchyard.api.views.node import flavor_view
from batchyard.api.views.pods import checkpoint_interval, lost_work
from batchyard.api.views.workload import WorkloadView, cluster_queue_view, local_queue_view, workload_view
from batchyard.base.counts import count_with_noun
from batchyard.base.instant import SECOND, Instant
from batchyard.interfaces.client import EventType, WatchEvent
from batchyard.scheduling.snapshot import Snapshot
from batchyard.scheduling.topology_nomination import queues_after_topology_event, usage_of_pod_set
from batchyard.topology.assigner import PodSetTopologyRequest, TopologyAssignments, TopologyFailure, assign_domains
from batchyard.topology.state import TopologyState, TopologyUsage, usage_of

#: The sets of Workloads that the planner tries at most, and the Workloads that a plan restarts at most.
SETS_MAX: Final = 20_000
MOVES_MAX: Final = 64
#: The names that an error lists at most.
_NAMES_SHOWN: Final = 10


class MovableWorkload(NamedTuple):
    """A running Workload that may be restarted."""

    name: str
    requests: Sequence[PodSetTopologyRequest]
    usage: TopologyUsage
    #: The work that a restart loses, in seconds of a resource.
    cost: int


class WorkloadMove(NamedTuple):
    """A Workload to restart, and the domains of its pod sets after that."""

    workload: MovableWorkload
    assignments: TopologyAssignments


@dataclass(frozen=True, slots=True)
class DefragmentationPlan:
    """The domains of the waiting Workload, and the Workloads to restart for it, in the order of their new placement."""

    assignments: TopologyAssignments
    moves: Sequence[WorkloadMove]
    #: Whether no cheaper plan exists; False if the planner gave up before it tried all cheaper sets.
    is_cheapest: bool

    @property
    def cost(self) -> int:
        """The work that the restarts lose."""
        return sum(move.workload.cost for move in self.moves)


def plan_defragmentation(
    state: TopologyState,
    waiting: Sequence[PodSetTopologyRequest],
    movables: Sequence[MovableWorkload],
    *,
    sets_max: int = SETS_MAX,
) -> DefragmentationPlan | None:
    """Return the cheapest plan that makes room for a waiting Workload; None if there is none, or none was found.

    `state` must contain the usage of all running Workloads; it is the same afterwards. The Workloads are placed again
    in the order of `movables`. After `sets_max` sets, the result is the plan of a greedy search, if that found one.
    """
    state.build()
    trial = _Trial(state, waiting)
    useful = [each for each in movables if each.usage]
    if len(waiting) == 1 and trial.first_failure(useful) is not None:
        return None
    greedy = trial.greedy_plan(useful)
    bound = None if greedy is None else greedy.cost
    for tried, (cost, chosen) in enumerate(_subsets_by_cost(useful)):
        if bound is not None and cost >= bound:
            return greedy
        if tried >= sets_max:
            break
        found = trial.plan_for(chosen)
        if found is not None:
            return found
    else:
        return greedy
    return None if greedy is None else DefragmentationPlan(greedy.assignments, greedy.moves, is_cheapest=False)


def _subsets_by_cost(movables: Sequence[MovableWorkload]) -> Iterator[tuple[int, list[MovableWorkload]]]:
    """Yield all sets of Workloads with their costs, in ascending order of cost, then of size; members keep their order.

    The heap holds one candidate for each next step: add the next dearer Workload, or exchange the dearest one by it.
    """
    order = sorted(range(len(movables)), key=lambda index: (movables[index].cost, index))
    yield 0, []
    if not order:
        return
    heap: list[tuple[int, int, tuple[int, ...]]] = [(movables[order[0]].cost, 1, (0,))]
    while heap:
        cost, size, chosen = heappop(heap)
        yield cost, [movables[index] for index in sorted(order[rank] for rank in chosen)]
        following = chosen[-1] + 1
        if following < len(order):
            added = movables[order[following]].cost
            if size < MOVES_MAX:
                heappush(heap, (cost + added, size + 1, (*chosen, following)))
            exchanged = cost + added - movables[order[chosen[-1]]].cost
            heappush(heap, (exchanged, size, (*chosen[:-1], following)))


@dataclass(slots=True)
class _Trial:
    """Tries sets of Workloads in the state, which is the same after each trial."""

    state: TopologyState
    waiting: Sequence[PodSetTopologyRequest]

    def first_failure(self, removed: Sequence[MovableWorkload]) -> TopologyFailure | None:
        """Return why the waiting Workload does not fit without these Workloads; None if it fits."""
        for each in removed:
            self.state.assume(each.usage, -1)
        try:
            found = assign_domains(self.state, self.waiting, explains=False)
        finally:
            for each in removed:
                self.state.assume(each.usage, 1)
        return found if isinstance(found, TopologyFailure) else None

    def plan_for(self, removed: Sequence[MovableWorkload]) -> DefragmentationPlan | None:
        """Return the plan that restarts exactly these Workloads; None if they or the waiting one do not fit then."""
        changes: list[tuple[TopologyUsage, int]] = []
        try:
            for each in removed:
                self._assume(each.usage, -1, changes)
            found = self._place(self.waiting, changes)
            if found is None:
                return None
            moves: list[WorkloadMove] = []
            for each in removed:
                placed = self._place(each.requests, changes)
                if placed is None:
                    return None
                moves.append(WorkloadMove(each, placed))
            return DefragmentationPlan(found, moves, is_cheapest=True)
        finally:
            for usage, sign in reversed(changes):
                self.state.assume(usage, -sign)

    def greedy_plan(self, movables: Sequence[MovableWorkload]) -> DefragmentationPlan | None:
        """Return a plan that may not be the cheapest: of all Workloads, spare the dearest ones as long as it works."""
        removed = list(movables)
        best: DefragmentationPlan | None = None
        for each in sorted(movables, key=lambda workload: (-workload.cost, workload.name)):
            without = [other for other in removed if other is not each]
            if self.first_failure(without) is None:
                removed = without
        if len(removed) <= MOVES_MAX:
            best = self.plan_for(removed)
        return best

    def _place(
        self, requests: Sequence[PodSetTopologyRequest], changes: list[tuple[TopologyUsage, int]]
    ) -> TopologyAssignments | None:
        found = assign_domains(self.state, requests, explains=False)
        if isinstance(found, TopologyFailure):
            return None
        for request in requests:
            self._assume(usage_of([request.flavor], found[request.name], request.template), 1, changes)
        return found

    def _assume(self, usage: TopologyUsage, sign: int, changes: list[tuple[TopologyUsage, int]]) -> None:
        self.state.assume(usage, sign)
        changes.append((usage, sign))


# The planner's input from stored objects: topologies, flavors, nodes, pods, and the Workloads that hold domains.


class NotDefragmentableError(Exception):
    """No Workload waits for topology domains, or no plan makes room; the text says why."""


@dataclass(slots=True)
class StoredTopologies:
    """The topology state of stored objects at an instant, and the Workloads that hold or need domains."""

    objects: Mapping[Key, Obj]
    now: Instant
    state: TopologyState
    #: The Workloads with topology assignments, by name, in the order of their reservation.
    running: Mapping[str, WorkloadView]
    #: The Workloads without quota that may be admitted, in the order of priority and creation.
    waiting: Sequence[WorkloadView]

    def requests_of(self, workload: WorkloadView) -> Sequence[PodSetTopologyRequest]:
        """Return the requests for domains of a Workload that holds quota, in its flavors."""
        flavors = {held.name: [*held.flavors.values()] for held in workload.admitted_pod_sets}
        counts = {held.name: held.pods for held in workload.admitted_pod_sets}
        return self._requests_in(workload, flavors, counts)

    def choices_of(self, workload: WorkloadView) -> Sequence[Sequence[PodSetTopologyRequest]]:
        """Return the requests for domains of a Workload without quota, for each topology flavor of its ClusterQueue."""
        names = [pod_set.name for pod_set in workload.pod_sets]
        flavors = [each for each in self._queue_flavors(workload) if each in self.state.flavors]
        choices = [self._requests_in(workload, dict.fromkeys(names, (flavor,)), {}) for flavor in flavors]
        return [requests for requests in choices if requests]

    def _requests_in(
        self, workload: WorkloadView, flavors: Mapping[str, Sequence[str]], counts: Mapping[str, int]
    ) -> Sequence[PodSetTopologyRequest]:
        requests: list[PodSetTopologyRequest] = []
        for pod_set, count in zip(workload.pod_sets, workload.counts, strict=True):
            known = [each for each in flavors.get(pod_set.name, ()) if each in self.state.flavors]
            if known:
                request = pod_set.topology_request
                is_implied = request is None or not request.is_explicit
                number = counts.get(pod_set.name, count)
                template, group = pod_set.template, pod_set.group
                requests.append(
                    PodSetTopologyRequest(pod_set.name, known[0], number, template, request, is_implied, group)
                )
        return requests

    def _queue_flavors(self, workload: WorkloadView) -> Sequence[str]:
        local_queue = self.objects.get(Key(scheme.LOCAL_QUEUE, workload.namespace, workload.queue.rpartition("/")[2]))
        if local_queue is None:
            return ()
        name = local_queue_view(local_queue).cluster_queue
        queue = self.objects.get(Key(scheme.CLUSTER_QUEUE, "", name))
        return () if queue is None else [*cluster_queue_view(queue).flavors]

    def movables(self, *, only_checkpointed: bool) -> list[MovableWorkload]:
        """Return the running Workloads that may be restarted, with the work that they lose, in accelerator seconds."""
        result: list[MovableWorkload] = []
        for workload in self.running.values():
            obj = self.objects[Key(scheme.WORKLOAD, workload.namespace, workload.name)]
            owner = controller_of(obj)
            kind = None if owner is None else {"Job": scheme.JOB, "JobSet": scheme.JOB_SET}.get(owner["kind"])
            job = (
                None
                if owner is None or kind is None
                else self.objects.get(Key(kind, workload.namespace, owner["name"]))
            )
            interval = checkpoint_interval((obj, job))
            if interval is None and only_checkpointed:
                continue
            lost_seconds = lost_work(workload.reserved_at, interval, self.now) // SECOND
            usage = tuple(
                each
                for held in workload.admitted_pod_sets
                if held.topology is not None
                for each in usage_of_pod_set(workload, held)
            )
            cost = lost_seconds * _device_count(workload)
            result.append(MovableWorkload(workload.key, self.requests_of(workload), usage, cost))
        return result


def read_topologies(objects: Mapping[Key, Obj], now: Instant) -> StoredTopologies:
    """Return the topology state of stored objects."""
    snapshot = Snapshot()
    state = snapshot.topology
    state.enable({})
    views: list[WorkloadView] = []
    for kind in (scheme.RESOURCE_FLAVOR, scheme.TOPOLOGY, scheme.NODE, scheme.POD, scheme.WORKLOAD):
        for key in sorted(key for key in objects if key.kind == kind):
            obj = objects[key]
            if kind == scheme.RESOURCE_FLAVOR:
                snapshot.put_flavor(flavor_view(obj))
            elif kind == scheme.TOPOLOGY:
                queues_after_topology_event(WatchEvent(EventType.ADDED, key, obj, None, 0), snapshot)
            elif kind == scheme.NODE:
                state.observe_node(obj, None, is_deleted=False)
            elif kind == scheme.POD:
                state.observe_pod(obj, is_deleted=False)
            else:
                views.append(workload_view(obj))
    running = [view for view in views if any(held.topology is not None for held in view.admitted_pod_sets)]
    running = [view for view in running if view.quota_reserved and not view.finished]
    running.sort(key=lambda view: (view.reserved_at or 0, view.key))
    for view in running:
        for held in view.admitted_pod_sets:
            if held.topology is not None:
                state.add_usage(usage_of_pod_set(view, held))
    waiting = sorted((v for v in views if v.admissible), key=lambda view: (-view.priority, view.created, view.key))
    return StoredTopologies(objects, now, state, {view.key: view for view in running}, waiting)


class WaitingWorkload(NamedTuple):
    """A Workload that lacks domains, with its requests in each flavor that it may use."""

    view: WorkloadView
    choices: Sequence[Sequence[PodSetTopologyRequest]]


def find_waiting(stored: StoredTopologies, name: str) -> Sequence[WaitingWorkload]:
    """Return the Workload with this name that lacks domains, or all that do if `name` is empty, in their order.

    The name is that of the Workload or of its Job: `NAME`, `NAMESPACE/NAME` or `job/NAME`. Without a name, Workloads
    that lack quota are left out. Raise NotDefragmentableError if the named Workload does not exist, does not wait,
    needs no domains or fits already, or if no Workload lacks domains.
    """
    if name:
        return [_named_waiting(stored, name)]
    found = [
        WaitingWorkload(view, choices)
        for view in stored.waiting
        if (choices := stored.choices_of(view)) and not _lacks_quota(stored, view) and not _fits(stored, choices)
    ]
    if not found:
        raise NotDefragmentableError("no Workload waits for topology domains")
    return found


def _named_waiting(stored: StoredTopologies, name: str) -> WaitingWorkload:
    keys = sorted(key for key in stored.objects if key.kind == scheme.WORKLOAD)
    named = {f"{key.namespace}/{key.name}": None for key in keys if name in _names_of(stored.objects[key])}
    if not named:
        pending = ", ".join(view.key for view in stored.waiting[:_NAMES_SHOWN]) or "none"
        raise NotDefragmentableError(f"Workload {name} not found; pending Workloads: {pending}")
    view = next((view for view in stored.waiting if view.key in named), None)
    if view is None:
        raise NotDefragmentableError(f"{name} does not wait")
    choices = stored.choices_of(view)
    if not choices:
        raise NotDefragmentableError(f"{name} needs no topology domains")
    if _fits(stored, choices):
        raise NotDefragmentableError(f"{name} fits in its topology already, so it waits for something else")
    return WaitingWorkload(view, choices)


def _names_of(workload: Obj) -> set[str]:
    """Return the names of a Workload, and those of the object that it was created for."""
    namespace, owner = workload["metadata"].get("namespace", ""), controller_of(workload)
    own = [("workload", workload["metadata"]["name"])]
    owned = [] if owner is None else [(owner["kind"].lower(), owner["name"])]
    return {
        text
        for kind, name in own + owned
        for text in (name, f"{namespace}/{name}", f"{kind}/{name}", f"{kind}/{namespace}/{name}")
    }


def _fits(stored: StoredTopologies, choices: Sequence[Sequence[PodSetTopologyRequest]]) -> bool:
    return any(
        not isinstance(assign_domains(stored.state, requests, explains=False), TopologyFailure) for requests in choices
    )


def _lacks_quota(stored: StoredTopologies, view: WorkloadView) -> bool:
    """Return whether the last attempt of a Workload failed because of its quota alone, by the condition's message."""
    condition = find_condition(stored.objects[Key(scheme.WORKLOAD, view.namespace, view.name)], "QuotaReserved")
    message = "" if condition is None else str(condition.get("message", ""))
    return "insufficient" in message and "quota" in message and "topology" not in message


def plan_for_waiting(
    stored: StoredTopologies, name: str, *, only_checkpointed: bool
) -> tuple[WorkloadView, DefragmentationPlan]:
    """Return the first waiting Workload for which a plan exists, with its cheapest plan in any of its flavors.

    `name` is that of `find_waiting`. Raise NotDefragmentableError if there is no such Workload, or no plan.
    """
    waiting = find_waiting(stored, name)
    movables = stored.movables(only_checkpointed=only_checkpointed)
    for each in waiting:
        plans = [
            plan
            for requests in each.choices
            if (plan := plan_defragmentation(stored.state, requests, movables)) is not None
        ]
        if plans:
            return each.view, min(plans, key=lambda plan: plan.cost)
    names = ", ".join(each.view.key for each in waiting[:_NAMES_SHOWN])
    more = f" and {len(waiting) - _NAMES_SHOWN} more" if len(waiting) > _NAMES_SHOWN else ""
    raise NotDefragmentableError(
        f"no restarts of {count_with_noun(len(movables), 'Workload')} make room for {names}{more}"
    )


def _device_count(workload: WorkloadView) -> int:
    """Return the accelerators of a Workload; the CPUs, at least 1, if it has none."""
    devices = cpu_milli = 0
    for pod_set, count in zip(workload.pod_sets, workload.counts, strict=True):
        for resource, amount in pod_set.template.requests:
            if "/" in resource:
                devices += amount * count
            elif resource == "cpu":
                cpu_milli += amount * count
    return devices or max(1, cpu_milli // 1000)


def plan_document(plan: DefragmentationPlan, waiting: str) -> dict[str, Any]:
    """Return a plan as JSON: the domains of the waiting Workload, and each restart with its cost and new domains."""
    return {
        "workload": waiting,
        "domains": _domains_of(plan.assignments),
        "cost": plan.cost,
        "cheapest": plan.is_cheapest,
        "restarts": [
            {
                "workload": move.workload.name,
                "cost": move.workload.cost,
                "from": sorted({"/".join(domain.values) for each in move.workload.usage for domain in each.domains}),
                "to": _domains_of(move.assignments),
            }
            for move in plan.moves
        ],
    }


def _domains_of(assignments: TopologyAssignments) -> list[str]:
    return sorted({"/".join(domain.values) for each in assignments.values() for domain in each.domains})
