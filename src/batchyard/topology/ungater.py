"""Ungating of pods in topology domains: a gated pod gets the node selector of a domain, and loses its scheduling gate.

The pods of an admitted Workload are created with the gate `kueue.x-k8s.io/topology`. Pods with an index get the domain
of their rank, so that pods with consecutive indexes are close together. Other pods fill the domains in order. Source:
Kueue's pkg/controller/tas/topology_ungater.go.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from batchyard.api import scheme, well_known
from batchyard.api.meta import Key, Obj, annotation, is_true, label, parse_integer, with_path
from batchyard.api.views.topology import TopologyAssignment
from batchyard.api.views.workload import AdmittedPodSet, workload_view
from batchyard.base.instant import Duration, Instant
from batchyard.interfaces.client import EventType, Reader, Update, WatchEvent
from batchyard.interfaces.controller import ReconcileResult
from batchyard.topology.state import is_topology_pod

_DELETED: Final = EventType.DELETED
_TERMINAL_PHASES: Final = ("Succeeded", "Failed")
_NO_KEYS: Final[dict[Key, None]] = {}
_NO_SLICES: Final[dict[Key, str]] = {}
_NO_ANNOTATIONS: Final[dict[str, str]] = {}


def has_topology_gate(pod: Obj) -> bool:
    """Return whether a pod waits for a topology domain."""
    gates = pod["spec"].get("schedulingGates")
    return bool(gates) and any(gate["name"] == well_known.TOPOLOGY_GATE for gate in gates)


def _awaits_quota(pod: Obj) -> bool:
    """Return whether a pod of an elastic job waits for a domain, and also for a slice with quota for it.

    Its domain is one of that slice. Kueue may select a domain of the slice before, which the next one does not keep.
    """
    gates = pod["spec"].get("schedulingGates") or ()
    return any(gate["name"] == well_known.ELASTIC_JOB for gate in gates) and has_topology_gate(pod)


def pod_owner_name(pod: Obj) -> str:
    """Return the name of a pod's Workload, or of the first slice if the job is elastic; '' without a Workload."""
    annotations = pod["metadata"].get("annotations") or _NO_ANNOTATIONS
    return annotations.get(well_known.SLICE_NAME) or annotations.get(well_known.WORKLOAD) or ""


def slice_name(workload: Obj) -> str:
    """Return what `pod_owner_name` returns for the pods of a Workload."""
    name: str = annotation(workload, well_known.SLICE_NAME) or workload["metadata"]["name"]
    return name


def has_ended(pod: Obj) -> bool:
    """Return whether a pod has succeeded or failed."""
    return (pod.get("status") or {}).get("phase") in _TERMINAL_PHASES


# Ranks: the order of a pod set's pods, which selects the domain of each pod.


class _RankRange(NamedTuple):
    """What is subtracted from the indexes of a pod set's pods, and the exclusive maximum of these indexes."""

    offset: int
    end: int


def _rank_ranges(
    held_pod_sets: Sequence[AdmittedPodSet], requests: Mapping[str, Mapping[str, Any]]
) -> dict[str, _RankRange]:
    """Return the ranks of each pod set; in a group of two pod sets, the smaller one has the first ranks."""
    groups: dict[str, list[AdmittedPodSet]] = {}
    for index, held in enumerate(held_pod_sets):
        groups.setdefault(requests.get(held.name, {}).get("podSetGroupName") or str(index), []).append(held)
    ranges = {}
    for members in groups.values():
        leader = members[0]
        ranges[leader.name] = _RankRange(0, leader.pods)
        if len(members) > 1:
            leader, workers = members[:2] if leader.pods <= members[1].pods else (members[1], leader)
            ranges[leader.name] = _RankRange(0, leader.pods)
            ranges[workers.name] = _RankRange(leader.pods, leader.pods + workers.pods)
    return ranges


def _pods_by_rank(
    pods: Sequence[Obj], pod_count: int, request: Mapping[str, Any], ranks: _RankRange
) -> dict[int, Obj] | None:
    """Return the pods by rank; None if a pod has no valid index, or if two pods have the same rank."""
    index_label, group_label = request.get("podIndexLabel"), request.get("subGroupIndexLabel")
    if index_label is None:
        return None
    group_count, group_size = request.get("subGroupCount") or 0, pod_count
    if group_label is not None:
        if group_count <= 0:
            return None
        group_size = pod_count // group_count
    pods_by_rank: dict[int, Obj] = {}
    for pod in pods:
        index = _index_below(label(pod, index_label), ranks.end)
        group = 0 if group_label is None else _index_below(label(pod, group_label), group_count)
        if index is None or group is None or (group_label is not None and index >= group_size):
            return None
        rank = index + group * group_size - ranks.offset
        if not 0 <= rank < pod_count or rank in pods_by_rank:
            return None
        pods_by_rank[rank] = pod
    return pods_by_rank


def _index_below(text: str | None, end: int) -> int | None:
    if text is None or not (text.isascii() and text.isdigit()):
        return None
    index = int(text)
    return index if index < end else None


# The domains of gated pods.


Values = tuple[str, ...]


def assign_pods(
    assignment: TopologyAssignment, pods: Sequence[Obj], pods_by_rank: Mapping[int, Obj] | None
) -> list[tuple[Obj, Values]]:
    """Return the gated pods with the values of their domains, by rank if that agrees with the pods without the gate.

    Otherwise each domain gets gated pods, in their order, until it has as many pods as assigned.
    """
    if pods_by_rank is not None:
        values_by_rank = [domain.values for domain in assignment.domains for _ in range(domain.pods)]
        if all(rank < len(values_by_rank) for rank in pods_by_rank) and all(
            has_topology_gate(pod) or _values_of(pod, assignment) == values_by_rank[rank]
            for rank, pod in pods_by_rank.items()
        ):
            ranked = sorted(pods_by_rank.items(), key=lambda item: item[0])
            return [(pod, values_by_rank[rank]) for rank, pod in ranked if has_topology_gate(pod)]
    return _assign_in_order(assignment, pods)


def _assign_in_order(assignment: TopologyAssignment, pods: Sequence[Obj]) -> list[tuple[Obj, Values]]:
    placed_counts: dict[Values, int] = {}
    for pod in pods:
        if not has_topology_gate(pod):
            values = _values_of(pod, assignment)
            placed_counts[values] = placed_counts.get(values, 0) + 1
    gated_pods = [pod for pod in pods if has_topology_gate(pod)]
    places = [
        domain.values for domain in assignment.domains for _ in range(domain.pods - placed_counts.get(domain.values, 0))
    ]
    return list(zip(gated_pods, places, strict=False))


def _values_of(pod: Obj, assignment: TopologyAssignment) -> Values:
    node_selector = pod["spec"].get("nodeSelector") or {}
    return tuple(node_selector.get(level, "") for level in assignment.levels)


def pods_to_ungate(workload: Obj, pods: Sequence[Obj]) -> list[Obj]:
    """Return the gated pods of an admitted Workload that have a domain, without the gate and with its node selector.

    `pods` are the Workload's pods, in the order in which pods without a rank fill domains. Domains on failed nodes wait
    for their replacement, and pods of an elastic job wait for the quota of a slice. If the offset of a pod set's
    indexes is not a number, all pods stay gated, as in Kueue.
    """
    view = workload_view(workload)
    requests = {each["name"]: each.get("topologyRequest") or {} for each in workload["spec"]["podSets"]}
    pods = [pod for pod in pods if not has_ended(pod) and not _awaits_quota(pod)]
    ranges = _rank_ranges(view.admitted_pod_sets, requests)
    failed_nodes = [each["name"] for each in workload["status"].get("unhealthyNodes") or ()]
    ungated_pods = []
    for held in view.admitted_pod_sets:
        if held.topology is None:
            continue
        members = [pod for pod in pods if label(pod, well_known.POD_SET) == held.name]
        ranks = _shifted(ranges[held.name], members)
        if ranks is None:
            return []
        pods_by_rank = _pods_by_rank(members, held.pods, requests.get(held.name, {}), ranks)
        for pod, values in assign_pods(held.topology, members, pods_by_rank):
            if not (held.topology.is_by_host and values[-1] in failed_nodes):
                ungated_pods.append(_ungate(pod, dict(zip(held.topology.levels, values, strict=True))))
    return ungated_pods


def _shifted(ranks: _RankRange, pods: Sequence[Obj]) -> _RankRange | None:
    """Return the ranks with the offset that the pods are annotated with; None if it is not a number."""
    text = annotation(pods[0], well_known.POD_INDEX_OFFSET) if pods else None
    if text is None:
        return ranks
    offset = parse_integer(text)
    return None if offset is None else _RankRange(ranks.offset + offset, ranks.end + offset)


def _ungate(pod: Obj, domain_labels: Mapping[str, str]) -> Obj:
    gates = [gate for gate in pod["spec"]["schedulingGates"] if gate["name"] != well_known.TOPOLOGY_GATE]
    node_selector = {**(pod["spec"].get("nodeSelector") or {}), **domain_labels}
    return with_path(
        with_path(pod, ("spec", "schedulingGates"), gates or None), ("spec", "nodeSelector"), node_selector
    )


class AdmittedSlices:
    """The admitted slices of elastic jobs, by chain: the pods of a job name its first slice, also after it has grown.

    In Kueue, the controllers of nodes and pods look up the slice that the pods name, although it may be finished.
    """

    def __init__(self) -> None:
        """Create an index without slices."""
        #: By chain (the namespace and the name of its first slice): each slice, and the key of the one it replaces.
        self._replaced_keys: dict[tuple[str, str], dict[Key, str]] = {}

    def observe(self, event: WatchEvent) -> None:
        """Add a Workload of an elastic job, or remove it once it is not admitted, finished or deleted."""
        first_slice = annotation(event.obj, well_known.SLICE_NAME)
        if first_slice is None:
            return
        chain = event.key.namespace, first_slice
        if event.type is not _DELETED and is_true(event.obj, "Admitted") and not is_true(event.obj, "Finished"):
            replaced_key = annotation(event.obj, well_known.REPLACEMENT_FOR) or ""
            self._replaced_keys.setdefault(chain, {})[event.key] = replaced_key
        elif chain in self._replaced_keys:
            self._replaced_keys[chain].pop(event.key, None)
            if not self._replaced_keys[chain]:
                del self._replaced_keys[chain]

    def workload_of(self, pod: Obj) -> Key | None:
        """Return the Workload whose assignment holds for a pod: the admitted slice, else the one that the pod names.

        While the scheduler replaces a slice, two of them are admitted; the newer one counts.
        """
        namespace = pod["metadata"].get("namespace", "")
        keys = self._replaced_keys.get((namespace, pod_owner_name(pod)), _NO_SLICES)
        if keys:
            return next((key for key in keys if f"{namespace}/{key.name}" not in keys.values()), None)
        name = annotation(pod, well_known.WORKLOAD)
        return None if name is None else Key(scheme.WORKLOAD, namespace, name)

    def is_replaced(self, workload: Key, chain: tuple[str, str]) -> bool:
        """Return whether the replacement of a slice is admitted."""
        keys = self._replaced_keys.get(chain, _NO_SLICES)
        return f"{workload.namespace}/{workload.name}" in keys.values()


class TopologyUngater:
    """Controller that removes the topology gate of pods, once their Workload is admitted with topology domains."""

    name = "topology-ungater"
    #: After the controllers that create pods and record failed nodes, so that no pod is released onto such a node.
    rank = 3
    kinds = (scheme.WORKLOAD, scheme.POD)

    def __init__(self, batch_period: Duration = 0) -> None:
        """Create the controller; events of pods within `batch_period` are handled together (in Kueue, a second)."""
        self._batch_period = batch_period
        self._slices = AdmittedSlices()
        #: When the Workloads with recent events of pods are reconciled.
        self._due: dict[Key, Instant] = {}
        #: The pods of each Workload, by namespace and name of the Workload (of its first slice, if it is elastic).
        self._pods: dict[tuple[str, str], dict[Key, None]] = {}
        #: Those with the gate.
        self._gated: dict[tuple[str, str], dict[Key, None]] = {}

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """Return the key of the Workload if it is admitted with topology domains and has gated pods."""
        if event.key.kind == scheme.WORKLOAD:
            self._slices.observe(event)
            if event.type is _DELETED or not _has_domains(event.obj):
                return ()
            return (event.key,) if (event.key.namespace, slice_name(event.obj)) in self._gated else ()
        if annotation(event.obj, well_known.WORKLOAD) is None or not is_topology_pod(event.obj):
            return ()
        group = event.key.namespace, pod_owner_name(event.obj)
        self._index_pod(event, group)
        key = self._slices.workload_of(event.obj) if group in self._gated else None
        if key is None:
            return ()
        if self._batch_period:
            self._due.setdefault(key, now + self._batch_period)
        return (key,)

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Remove the gate of the pods for which their Workload has domains, and set their node selectors."""
        due = self._due.get(key)
        if due is not None and due > now:
            return ReconcileResult(requeue_at=due)
        self._due.pop(key, None)
        workload = reader.get(key)
        if workload is None or not _has_domains(workload):
            return ReconcileResult()
        group = key.namespace, slice_name(workload)
        if group not in self._gated or self._slices.is_replaced(key, group):
            return ReconcileResult()
        pods = [pod for each in sorted(self._pods.get(group, _NO_KEYS)) if (pod := reader.get(each)) is not None]
        return ReconcileResult([Update(pod) for pod in pods_to_ungate(workload, pods)], independent=True)

    def _index_pod(self, event: WatchEvent, group: tuple[str, str]) -> None:
        exists = event.type is not _DELETED
        is_gated = exists and not has_ended(event.obj) and has_topology_gate(event.obj)
        for index, is_member in ((self._pods, exists), (self._gated, is_gated)):
            if is_member:
                index.setdefault(group, {})[event.key] = None
            elif group in index:
                index[group].pop(event.key, None)
                if not index[group]:
                    del index[group]


def _has_domains(workload: Obj) -> bool:
    """Return whether a Workload is admitted, is not finished, and has topology domains."""
    return (
        is_true(workload, "Admitted")
        and any(held.topology is not None for held in workload_view(workload).admitted_pod_sets)
        and not is_true(workload, "Finished")
    )
