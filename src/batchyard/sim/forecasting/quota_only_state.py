"""States reduced to what decides when a Workload gets quota: queues, and Workloads with run times of their own.

Jobs, pods and nodes are left out, and Workloads run for a random time. Only the trees of the requested Workloads'
queues are kept, and of long queues only the first Workloads. Admission checks count as passed at once.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from batchyard.api import scheme, well_known
from batchyard.api.meta import Key, Obj
from batchyard.api.views.workload import WorkloadView, cluster_queue_view, cohort_view, workload_view
from batchyard.base.instant import Duration, duration_text
from batchyard.scheduling.snapshot import Snapshot
from batchyard.sim.state import State

#: The limit of Workloads kept of a requested Workload's queue, and of those kept behind it, which may start earlier.
LINE_MAX: Final = 1500
_BEHIND: Final = 150
#: The number kept of a longer queue, as a sample for extrapolation.
SAMPLE: Final = 400
#: The number kept of all other queues together, and the minimum for each.
KEPT_MAX: Final = 1000
_LEAST: Final = 5
_KEPT: Final = frozenset(
    {
        *(scheme.NAMESPACE, scheme.RESOURCE_FLAVOR, scheme.TOPOLOGY, scheme.COHORT, scheme.LOCAL_QUEUE),
        *(scheme.LIMIT_RANGE, scheme.WORKLOAD_PRIORITY_CLASS, scheme.PRIORITY_CLASS),
    }
)
_OF_METADATA: Final = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp", "generation")


@dataclass(frozen=True, slots=True)
class QueueTrees:
    """The ClusterQueue of each LocalQueue, and the root of each ClusterQueue's tree."""

    cluster_queues: Mapping[str, str]
    trees: Mapping[str, str]

    def tree_of(self, local_queue: str) -> str | None:
        """Return the tree of a LocalQueue by namespace and name; None without a ClusterQueue."""
        return self.trees.get(self.cluster_queues.get(local_queue, ""))


@dataclass(frozen=True, slots=True)
class QuotaOnlyState:
    """The reduced content of a state."""

    objects: Mapping[Key, Obj]
    #: Its unfinished Workloads.
    workloads: Mapping[str, Obj]
    #: The last kept Workload of each queue.
    last: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class PendingOrder:
    """The pending Workloads by ClusterQueue, in queue order, and the Workloads with quota."""

    waiting: Mapping[str, Sequence[WorkloadView]]
    #: In the order of their reservations.
    holding: Sequence[WorkloadView]
    #: By Workload, its ClusterQueue, and the number of Workloads ahead of it.
    places: Mapping[str, tuple[str, int]]


def trees_of(state: State) -> Snapshot:
    """Return the trees of ClusterQueues and Cohorts, without Workloads."""
    snapshot = Snapshot()
    for cohort in state.of_kind(scheme.COHORT):
        snapshot.put_cohort(cohort_view(cohort))
    for queue in state.of_kind(scheme.CLUSTER_QUEUE):
        snapshot.put_queue(cluster_queue_view(queue))
    snapshot.settle()
    return snapshot


def queues_of(state: State) -> QueueTrees:
    """Return the structure of a state's queues."""
    snapshot = trees_of(state)
    trees = {name: queue.node.tree for name, queue in snapshot.queues.items()}
    local = {
        f"{obj['metadata']['namespace']}/{obj['metadata']['name']}": obj["spec"]["clusterQueue"]
        for obj in state.of_kind(scheme.LOCAL_QUEUE)
    }
    return QueueTrees(local, trees)


def lines_of(state: State, queues: QueueTrees) -> PendingOrder:
    """Return the pending Workloads and those with quota."""
    waiting: dict[str, list[WorkloadView]] = {}
    holding: list[WorkloadView] = []
    for view in map(workload_view, state.of_kind(scheme.WORKLOAD)):
        if view.finished:
            continue
        if view.quota_reserved:
            holding.append(view)
        elif view.admissible:
            waiting.setdefault(queues.cluster_queues.get(view.queue, ""), []).append(view)
    for line in waiting.values():
        line.sort(key=_in_line)
    holding.sort(key=lambda view: (view.reserved_at or 0, view.key))
    places = {view.key: (queue, place) for queue, line in waiting.items() for place, view in enumerate(line)}
    return PendingOrder(waiting, holding, places)


def reduce_to_quota(
    state: State, queues: QueueTrees, lines: PendingOrder, asked: Collection[str] | None
) -> QuotaOnlyState:
    """Reduce a state to the trees of pending Workloads, given by namespace and name; None keeps all trees."""
    own = {lines.places[name][0] for name in asked or () if name in lines.places}
    trees = {tree for queue, tree in queues.trees.items() if asked is None or queue in own}
    kept = [view for view in lines.holding if queues.trees.get(view.cluster_queue) in trees]
    of_trees = [queue for queue in lines.waiting if queues.trees.get(queue) in trees]
    last = {}
    for queue in of_trees:
        most = max(_LEAST, KEPT_MAX // len(of_trees))
        if queue in own:
            most = max(most, _needed(queue, lines, asked or ()))
        line = lines.waiting[queue][:most]
        last[queue] = line[-1].key
        kept += line
    objects = {key: obj for key, obj in state.objects.items() if key.kind in _KEPT}
    for cluster_queue in state.of_kind(scheme.CLUSTER_QUEUE):
        name = cluster_queue["metadata"]["name"]
        if queues.trees[name] in trees:
            objects[Key(scheme.CLUSTER_QUEUE, "", name)] = _without_checks(cluster_queue)
    found = {view.key: state.objects[Key(scheme.WORKLOAD, view.namespace, view.name)] for view in kept}
    return QuotaOnlyState(objects, found, last)


def _needed(queue: str, lines: PendingOrder, asked: Collection[str]) -> int:
    """Return how many Workloads of a queue to keep: all up to the requested ones and some behind, or a sample."""
    places = [lines.places[name][1] for name in asked if lines.places.get(name, ("", 0))[0] == queue]
    most = max(places) + _BEHIND
    return most if most <= LINE_MAX else SAMPLE


def standalone_workload(workload: Obj, runtime: Duration | None) -> Obj:
    """Return a Workload without an owner and with a run time; None: it never ends."""
    metadata = {field: value for field, value in workload["metadata"].items() if field in _OF_METADATA}
    if runtime is not None:
        metadata["annotations"] = {well_known.RUNTIME: duration_text(runtime)}
    return {**workload, "metadata": metadata}


def _in_line(view: WorkloadView) -> tuple[int, int, str]:
    """Return the sort key of the queue order."""
    return -view.priority, view.queued, view.uid


def _without_checks(queue: Obj) -> Obj:
    left_out = ("admissionChecks", "admissionChecksStrategy")
    spec: dict[str, Any] = {field: value for field, value in queue["spec"].items() if field not in left_out}
    return {**queue, "spec": spec}


def state_with(state: State, kept: Mapping[Key, Obj], workloads: Iterable[Obj]) -> State:
    """Return a state of these objects at the same instant."""
    objects = {
        **kept,
        **{Key(scheme.WORKLOAD, o["metadata"]["namespace"], o["metadata"]["name"]): o for o in workloads},
    }
    return State(state.at, state.revision, objects)
