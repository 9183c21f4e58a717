"""A state with no more than what decides when a Workload gets its quota: queues, and Workloads that run by themselves.

Jobs, pods and nodes are left out: Workloads take the time that is drawn for them. Only the trees of the queues that are
asked about are kept, and of long lines the first in each. Admission checks are taken to be passed at once.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from batchyard.api import scheme, well_known
from batchyard.api.meta import Key, Obj
from batchyard.api.views.queues import cluster_queue_view, cohort_view
from batchyard.api.views.workload import WorkloadView, workload_view
from batchyard.base.instant import Duration, duration_text
from batchyard.core.snapshot import Snapshot
from batchyard.sim.state import State

#: Of each line so many are kept.
LINE_MAX: Final = 1500
_KEPT: Final = frozenset(
    {
        *(scheme.NAMESPACE, scheme.RESOURCE_FLAVOR, scheme.TOPOLOGY, scheme.COHORT, scheme.LOCAL_QUEUE),
        *(scheme.LIMIT_RANGE, scheme.WORKLOAD_PRIORITY_CLASS, scheme.PRIORITY_CLASS),
    }
)
_OF_METADATA: Final = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp", "generation", "labels")


@dataclass(frozen=True, slots=True)
class Queues:
    """Where Workloads queue: by LocalQueue its ClusterQueue, by that the root of its tree."""

    cluster_queues: Mapping[str, str]
    trees: Mapping[str, str]

    def tree_of(self, local_queue: str) -> str | None:
        """The tree of a LocalQueue by namespace and name; None if it leads nowhere."""
        return self.trees.get(self.cluster_queues.get(local_queue, ""))


@dataclass(frozen=True, slots=True)
class Lean:
    """See the module."""

    objects: Mapping[Key, Obj]
    #: The unfinished Workloads of it.
    workloads: Mapping[str, Obj]
    #: Of those asked about who are not kept: their ClusterQueue, and how many are before them in its line.
    beyond: Mapping[str, tuple[str, int]]


def queues_of(state: State) -> Queues:
    """How the queues of a state hang together."""
    snapshot = Snapshot()
    for cohort in state.of_kind(scheme.COHORT):
        snapshot.put_cohort(cohort_view(cohort))
    for queue in state.of_kind(scheme.CLUSTER_QUEUE):
        snapshot.put_queue(cluster_queue_view(queue))
    snapshot.settle()
    trees = {name: queue.node.tree for name, queue in snapshot.queues.items()}
    local = {
        f"{obj['metadata']['namespace']}/{obj['metadata']['name']}": obj["spec"]["clusterQueue"]
        for obj in state.of_kind(scheme.LOCAL_QUEUE)
    }
    return Queues(local, trees)


def lean(state: State, queues: Queues, asked: Collection[str], line_max: int = LINE_MAX) -> Lean:
    """What is left of a state for those who ask about Workloads, by namespace and name."""
    found = {workload_view(obj).key: obj for obj in state.of_kind(scheme.WORKLOAD) if not workload_view(obj).finished}
    trees = {queues.tree_of(workload_view(found[name]).queue) for name in asked if name in found}
    of_trees = {name: obj for name, obj in found.items() if _tree(workload_view(obj), queues) in trees}
    workloads, beyond = _first_in_line(of_trees, queues, asked, line_max)
    objects = {key: obj for key, obj in state.objects.items() if key.kind in _KEPT}
    for queue in state.of_kind(scheme.CLUSTER_QUEUE):
        name = queue["metadata"]["name"]
        if queues.trees[name] in trees:
            objects[Key(scheme.CLUSTER_QUEUE, "", name)] = _without_checks(queue)
    return Lean(objects, workloads, beyond)


def alone(workload: Obj, runtime: Duration | None) -> Obj:
    """A Workload that nobody owns and that runs so long; None: for ever."""
    metadata = {field: value for field, value in workload["metadata"].items() if field in _OF_METADATA}
    if runtime is not None:
        metadata["annotations"] = {well_known.RUNTIME: duration_text(runtime)}
    return {**workload, "metadata": metadata}


def _tree(view: WorkloadView, queues: Queues) -> str | None:
    """Where a Workload holds quota, or would."""
    return queues.trees.get(view.cluster_queue) if view.cluster_queue else queues.tree_of(view.queue)


def _first_in_line(
    workloads: Mapping[str, Obj], queues: Queues, asked: Collection[str], line_max: int
) -> tuple[dict[str, Obj], dict[str, tuple[str, int]]]:
    """Those that hold quota and the first of each line; of those asked about who are not among them, their places."""
    kept: dict[str, Obj] = {}
    lines: dict[str, list[WorkloadView]] = {}
    for name, obj in workloads.items():
        view = workload_view(obj)
        if view.quota_reserved:
            kept[name] = obj
        elif view.admissible:
            lines.setdefault(queues.cluster_queues.get(view.queue, ""), []).append(view)
    beyond: dict[str, tuple[str, int]] = {}
    for queue, line in lines.items():
        line.sort(key=in_line)
        kept |= {view.key: workloads[view.key] for view in line[:line_max]}
        late = enumerate(line[line_max:], line_max)
        beyond |= {view.key: (queue, place) for place, view in late if view.key in asked}
    return kept, beyond


def in_line(view: WorkloadView) -> tuple[int, int, str]:
    """The order of a line."""
    return -view.priority, view.queued, view.uid


def _without_checks(queue: Obj) -> Obj:
    left_out = ("admissionChecks", "admissionChecksStrategy")
    spec: dict[str, Any] = {field: value for field, value in queue["spec"].items() if field not in left_out}
    return {**queue, "spec": spec}


def stated(state: State, kept: Mapping[Key, Obj], workloads: Iterable[Obj]) -> State:
    """A state of these objects at the same instant."""
    objects = {
        **kept,
        **{Key(scheme.WORKLOAD, o["metadata"]["namespace"], o["metadata"]["name"]): o for o in workloads},
    }
    return State(state.at, state.revision, objects)
