"""Topology-aware scheduling in a cycle: flavors, domains and preemption for Workloads that need topology domains.

Flavors are assigned by quota first, then the pods are placed in the topology of the flavors. Pods that only fit without
other Workloads need preemption. `second_pass` nominates Workloads that have quota already. Sources: Kueue's
pkg/scheduler/flavorassigner/tas_flavorassigner.go and pkg/scheduler/scheduler.go (updateAssignmentForTAS).
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

from batchyard.api import scheme
from batchyard.api.meta import Obj
from batchyard.api.views.node import PodTemplate, parse_toleration
from batchyard.api.views.topology import TopologyAssignment
from batchyard.api.views.workload import AdmittedPodSet, ClusterQueueView, PodSet, WorkloadView
from batchyard.interfaces.client import EventType, WatchEvent
from batchyard.scheduling import cluster_queue, slices
from batchyard.scheduling.active_status import PROVISIONING_CONTROLLER_NAME, AdmissionCheckInfo
from batchyard.scheduling.cluster_queue import ClusterQueue, FlavorAssignment, make_flavor_assignment
from batchyard.scheduling.flavor_assigner import Assignment, FlavorAssigner, PodSetAssignment, search_pod_counts
from batchyard.scheduling.preemption.context import PreemptionTarget
from batchyard.scheduling.preemption.preemptor import Preemptor
from batchyard.scheduling.quota import FlavorAssignmentMode
from batchyard.scheduling.snapshot import Snapshot
from batchyard.topology.assigner import PodSetTopologyRequest, TopologyAssignments, TopologyFailure, assign_domains
from batchyard.topology.counts import placed_requests
from batchyard.topology.placement import has_levels
from batchyard.topology.state import FlavorUsage, TopologyUsage, usage_of

_FIT: Final = FlavorAssignmentMode.FIT
_PREEMPT: Final = FlavorAssignmentMode.PREEMPT
_NO_FIT: Final = FlavorAssignmentMode.NO_FIT

_ELASTIC_LEVEL: Final = "{} topology is not supported with ElasticJobsViaWorkloadSlices"

_UPDATE_CONFLICT: Final = (
    "invalid podSetUpdate for PodSet {}, error: invalid admission check PodSetUpdate: conflict for {}: "
    "conflict for key={}, value1={}, value2={}"
)

#: A flavor assignment, and the Workloads to preempt for it.
Nomination: TypeAlias = tuple[Assignment, list[PreemptionTarget]]


def is_topology_requested(pod_set: PodSet, queue: ClusterQueue) -> bool:
    """Return whether a pod set needs topology domains: it requests them, or all flavors of the queue have some."""
    request = pod_set.topology_request
    return (request is not None and request.is_explicit) or queue.is_topology_only


def is_topology_considered(workload: WorkloadView, queue: ClusterQueue, snapshot: Snapshot) -> bool:
    """Return whether topologies take part in a Workload's nomination."""
    return bool(queue.topology_flavors) or (workload.requests_topology and snapshot.topology.is_enabled)


def provisioned_flavors(queue: ClusterQueueView, checks: Mapping[str, AdmissionCheckInfo]) -> frozenset[str]:
    """Return the flavors of a ClusterQueue for which an AdmissionCheck requests machines.

    Workloads get their topology domains in these flavors only when the machines exist.
    """
    names = [name for name, check in checks.items() if check.controller == PROVISIONING_CONTROLLER_NAME]
    return frozenset([flavor for rule in queue.check_rules if rule.name in names for flavor in rule.flavors])


@dataclass(slots=True)
class FlavorTopologyMismatches:
    """Finds the flavors that a Workload cannot use because of their topology, or because they have none."""

    workload: WorkloadView
    queue: ClusterQueue
    snapshot: Snapshot

    def add_to(
        self, obstacles: Sequence[str], group: cluster_queue.FlavorGroup, pod_set_indexes: Sequence[int]
    ) -> list[str]:
        """Return for each flavor of a resource group why the pod sets cannot use it; '' if they can."""
        pod_sets = [self.workload.pod_sets[index] for index in pod_set_indexes]
        return [
            next(filter(None, (self._mismatch(flavor, group, pod_set) for pod_set in pod_sets)), "") or obstacle
            for flavor, obstacle in zip(group.flavors, obstacles, strict=True)
        ]

    def with_obstacles(
        self, pod_set_request: cluster_queue.PodSetRequest, pod_set_index: int
    ) -> cluster_queue.PodSetRequest:
        """Return the request of a pod set with these flavors as obstacles, for explanations."""
        groups = []
        for group_request in pod_set_request.groups:
            obstacles = self.add_to(group_request.obstacles, group_request.group, (pod_set_index,))
            group = cluster_queue.ResourceGroupRequest(
                group_request.group, group_request.resource, (), tuple(obstacles)
            )
            group.resources, group.usages = group_request.resources, group_request.usages
            groups.append(group)
        return pod_set_request._replace(groups=tuple(groups))

    def _mismatch(self, flavor: str, group: cluster_queue.FlavorGroup, pod_set: PodSet) -> str:
        view = self.snapshot.flavors.get(flavor)
        if view is None:
            return ""
        request = pod_set.topology_request
        if request is None or not request.is_explicit:
            if view.topology and not self.queue.is_topology_only:
                return f'Flavor "{flavor}" supports only TopologyAwareScheduling'
            return ""
        if not view.topology:
            if not any(resource in group.ids for resource, _ in placed_requests(pod_set.template)):
                return ""  # the flavor provides none of the pod's resources
            return f'Flavor "{flavor}" does not support TopologyAwareScheduling'
        built = self.snapshot.topology.get(flavor)
        if built is None:
            return f'Flavor "{flavor}" information missing in TAS cache'
        if not has_levels(request, built.tree.levels):
            return f'Flavor "{flavor}" does not contain the requested level'
        return ""


@dataclass(slots=True)
class DomainCheck:
    """Checks whether the pods of a Workload fit in topology domains."""

    snapshot: Snapshot
    requests: Sequence[PodSetTopologyRequest]
    #: The node whose pods get other domains; '' if all pods are placed.
    failed_node: str = ""

    def fits(self) -> bool:
        """Return whether the pods fit in the current snapshot."""
        topology, requests = self.snapshot.topology, self.requests
        found = assign_domains(topology, requests, failed_node=self.failed_node, explains=False)
        return not isinstance(found, TopologyFailure)


@dataclass(slots=True)
class TopologyNominator:
    """Nominates one Workload that needs topology domains."""

    workload: WorkloadView
    queue: ClusterQueue
    snapshot: Snapshot
    assigner: FlavorAssigner
    preemptor: Preemptor | None
    #: Whether the Workload may be admitted with fewer pods than its pod sets specify.
    may_shrink: bool = True
    #: Whether slices of elastic jobs may grow in part.
    grows_in_part: bool = False
    #: The assignment whose pods were last placed as if no Workload ran, with the requests and their domains.
    _idle_placement: tuple[Assignment, list[PodSetTopologyRequest], TopologyAssignments] | None = None

    def nominate(self) -> Nomination:
        """Return the flavors, topology domains and preemption targets; with fewer pods if allowed and needed."""
        workload = self.workload
        self.assigner.topology = FlavorTopologyMismatches(workload, self.queue, self.snapshot)
        nomination = self._assign_with_counts(workload.counts)
        if self.assigner.replaced is not None:
            nomination = slices.nominate_slice(
                workload, self.assigner.replaced, nomination, self._assign_with_counts, is_partial=self.grows_in_part
            )
        elif not slices.fits_or_has_targets(nomination) and self.may_shrink and workload.can_be_partially_admitted:
            partial_nomination = search_pod_counts(
                workload.pod_sets, self._assign_with_counts, slices.fits_or_has_targets
            )
            nomination = partial_nomination or nomination
        assignment, targets = nomination
        if assignment.mode is _PREEMPT:
            self._reserve_domains(assignment, targets)
        return nomination

    def _assign_with_counts(self, pod_counts: Sequence[int]) -> Nomination:
        assignment = self.assigner.assign(pod_counts)
        requests = self._place(assignment)
        if self.preemptor is None or assignment.mode is not _PREEMPT:
            return assignment, []
        check = DomainCheck(self.snapshot, requests) if requests else None
        replaced = self.assigner.replaced
        if replaced is not None:
            usage = slices.requested_difference(self.workload, assignment.pod_sets, replaced.pod_sets)
            return assignment, self.preemptor.targets_for_usage(usage, assignment.preempting_frs, check)
        return assignment, self.preemptor.targets_for(assignment, check)

    def _place(self, assignment: Assignment) -> list[PodSetTopologyRequest]:
        """Set the topology domains of an assignment, or lower its mode; return the requests for domains."""
        if assignment.mode is _NO_FIT:
            return []
        requests, errors = self._topology_requests(assignment)
        for pod_set, error in errors.items():
            set_topology_error(assignment, pod_set, error)
        if errors:
            assignment.mode = _NO_FIT
            return []
        state = self.snapshot.topology
        failed_pod_set: PodSetAssignment | None = None
        if assignment.mode is _FIT:
            found = assign_domains(state, requests)
            if not isinstance(found, TopologyFailure):
                set_domains(assignment, found, self.workload)
                return requests
            failed_pod_set = pod_set_of(assignment, found.pod_set)
            failed_pod_set.topology_reason = found.reason
            set_mode(failed_pod_set, _PREEMPT)
            assignment.mode = _PREEMPT
        found = assign_domains(state, requests, is_idle=True, explains=False)
        if isinstance(found, TopologyFailure):
            failed = pod_set_of(assignment, found.pod_set)
            failed.topology_failed_flavor = found.flavor
            set_mode(failed, _NO_FIT)
            assignment.mode = _NO_FIT
            return requests
        for request in requests:
            placed_pod_set = pod_set_of(assignment, request.name)
            if placed_pod_set is not failed_pod_set:
                set_mode(placed_pod_set, _PREEMPT)
        self._idle_placement = assignment, requests, found
        return requests

    def _topology_requests(self, assignment: Assignment) -> tuple[list[PodSetTopologyRequest], Mapping[str, str]]:
        """Return what `topology_requests` returns; the pods of a replaced slice keep their domains if a gate is on.

        As in Kueue, a slice then cannot require or prefer a level.
        """
        requests, errors = topology_requests(assignment, self.workload, self.queue)
        if not self.workload.elastic or not self.snapshot.topology.rules.keeps_slices:
            return requests, errors
        level_errors = {
            request.name: _ELASTIC_LEVEL.format("required" if request.request.required else "preferred")
            for request in requests
            if request.request is not None and (request.request.required or request.request.preferred)
        }
        replaced = self.assigner.replaced
        domains = {} if replaced is None else {held.name: held.topology for held in replaced.pod_sets}
        kept = [request._replace(existing=domains.get(request.name)) for request in requests]
        return kept, {**errors, **level_errors}

    def _reserve_domains(self, assignment: Assignment, targets: Sequence[PreemptionTarget]) -> None:
        """Set the domains that a preemptor will need: without its targets, or without any Workload if it has none.

        Later Workloads of the cycle then cannot take them.
        """
        snapshot, placed = self.snapshot, self._idle_placement
        if not targets and placed is not None and placed[0] is assignment:
            if placed[1]:
                set_domains(assignment, placed[2], self.workload)
            return
        requests, errors = self._topology_requests(assignment)
        if errors or not requests:
            return
        if not targets:
            found = assign_domains(snapshot.topology, requests, is_idle=True, explains=False)
        else:
            with snapshot.what_if():
                for target in targets:
                    snapshot.release(target.workload)
                found = assign_domains(snapshot.topology, requests, explains=False)
        if not isinstance(found, TopologyFailure):
            set_domains(assignment, found, self.workload)


def topology_requests(
    assignment: Assignment, workload: WorkloadView, queue: ClusterQueue
) -> tuple[list[PodSetTopologyRequest], Mapping[str, str]]:
    """Return the requests for topology domains of an assignment, and by pod set, why there is no request for it.

    Pod sets that get their domains later are marked in the assignment.
    """
    requests: list[PodSetTopologyRequest] = []
    errors: dict[str, str] = {}
    for pod_set, assigned in zip(workload.pod_sets, assignment.pod_sets, strict=False):
        if not is_topology_requested(pod_set, queue) or assigned.count == 0:
            continue
        if not queue.topology_flavors:
            errors[pod_set.name] = "workload requires Topology, but there is no TAS cache information"
            continue
        flavors = {choice.flavor for choice in assigned.choices.values() if choice.flavor in queue.topology_flavors}
        if len(flavors) == 1 and not workload.quota_reserved and not flavors.isdisjoint(queue.provisioned_flavors):
            assigned.is_topology_delayed = True
        elif len(flavors) == 1:
            request = pod_set.topology_request
            is_implied = request is None or not request.is_explicit
            topology_request = PodSetTopologyRequest(
                pod_set.name, flavors.pop(), assigned.count, pod_set.template, request, is_implied, pod_set.group
            )
            updates = _ready_updates(workload.obj, pod_set.name)
            requests.append(_with_updates(topology_request, workload.obj, updates) if updates else topology_request)
        elif flavors:
            errors[pod_set.name] = f"more than one TAS flavor assigned: {', '.join(sorted(flavors))}"
        else:
            errors[pod_set.name] = "no TAS flavor assigned"
    return requests, errors


def _ready_updates(workload: Obj, pod_set: str) -> list[Mapping[str, Any]]:
    """Return the updates of a pod set by the ready AdmissionChecks of a Workload."""
    checks = (workload.get("status") or {}).get("admissionChecks") or ()
    return [
        update
        for check in checks
        if check["state"] == "Ready"
        for update in check.get("podSetUpdates") or ()
        if update["name"] == pod_set
    ]


def _with_updates(
    request: PodSetTopologyRequest, workload: Obj, updates: Sequence[Mapping[str, Any]]
) -> PodSetTopologyRequest:
    """Return a request with the node selectors and tolerations that AdmissionChecks add to the pods.

    If an update conflicts with the pod template or an earlier update, the request cannot be placed. Source: Merge in
    Kueue's pkg/podset/podset.go.
    """
    template = next(each for each in workload["spec"]["podSets"] if each["name"] == request.name).get("template") or {}
    metadata, spec = template.get("metadata") or {}, template.get("spec") or {}
    merged: dict[str, dict[str, str]] = {
        "annotations": {**(metadata.get("annotations") or {})},
        "labels": {**(metadata.get("labels") or {})},
        "nodeSelector": {**(spec.get("nodeSelector") or {})},
    }
    tolerations: list[Mapping[str, Any]] = list(spec.get("tolerations") or ())
    for update in updates:
        for name, values in merged.items():
            added: Mapping[str, str] = update.get(name) or {}
            for key, value in values.items():
                if added.get(key, value) != value:
                    text = _UPDATE_CONFLICT.format(request.name, name, key, value, added[key])
                    return request._replace(invalid_update=text)
            values.update(added)
        tolerations += [each for each in update.get("tolerations") or () if each not in tolerations]
    new_template: PodTemplate = replace(
        request.template,
        node_selector=tuple(sorted(merged["nodeSelector"].items())),
        tolerations=tuple([parse_toleration(each) for each in tolerations]),
    )
    return request._replace(template=new_template)


def set_domains(assignment: Assignment, domains: Mapping[str, TopologyAssignment], workload: WorkloadView) -> None:
    """Set the topology domains of an assignment, by pod set, and their usage."""
    usage: list[FlavorUsage] = []
    for pod_set, assigned in zip(workload.pod_sets, assignment.pod_sets, strict=True):
        if pod_set.name in domains:
            assigned.topology = domains[pod_set.name]
        if assigned.topology is not None:
            flavors = {resource: choice.flavor for resource, choice in assigned.choices.items()}
            usage += usage_of(placed_flavors(flavors, pod_set), assigned.topology, pod_set.template)
    assignment.topology_usage = tuple(usage)


def pod_set_of(assignment: Assignment, name: str) -> PodSetAssignment:
    """Return the assignment of the pod set with this name."""
    return next(pod_set for pod_set in assignment.pod_sets if pod_set.name == name)


def set_topology_error(assignment: Assignment, pod_set: str, error: str) -> None:
    """Record why the topology domains of a pod set could not be searched: it does not fit."""
    assigned = pod_set_of(assignment, pod_set)
    assigned.topology_error = error
    set_mode(assigned, _NO_FIT)


#: The last flavor assignments that got another mode, by their ids and the mode. Equal pod sets share assignments.
_with_mode: dict[tuple[int, FlavorAssignmentMode], tuple[FlavorAssignment, FlavorAssignment]] = {}
_WITH_MODE_MAX: Final = 1024


def set_mode(assigned: PodSetAssignment, mode: FlavorAssignmentMode) -> None:
    """Set the mode of a pod set and of all its flavors."""
    flavors = assigned.assigned_flavors
    known = _with_mode.get((id(flavors), mode))
    if known is None or known[0] is not flavors:
        if len(_with_mode) >= _WITH_MODE_MAX:
            _with_mode.clear()
        known = _with_mode[id(flavors), mode] = flavors, _assignment_with_mode(flavors, mode)
    assigned.assigned_flavors = known[1]


def _assignment_with_mode(flavors: FlavorAssignment, mode: FlavorAssignmentMode) -> FlavorAssignment:
    choices = {
        resource: choice if choice.mode is mode else choice._replace(mode=mode)
        for resource, choice in flavors.choices.items()
    }
    return make_flavor_assignment(choices, flavors.usage, flavors.tried, mode)


# Changes of nodes, other pods and Topologies, after which pending Workloads are tried again.


def usage_of_pod_set(workload: WorkloadView, held: AdmittedPodSet) -> TopologyUsage:
    """Return the usage of topology domains of an admitted pod set, which must have a topology assignment."""
    assert held.topology is not None
    pod_set = next(pod_set for pod_set in workload.pod_sets if pod_set.name == held.name)
    return usage_of(placed_flavors(held.flavors, pod_set), held.topology, pod_set.template)


def placed_flavors(flavors: Mapping[str, str], pod_set: PodSet) -> Collection[str]:
    """Return the flavors whose nodes run the pods; flavors of generated resources only provide quota.

    `flavors` are the flavors by resource. If quota is charged for generated resources only, all flavors are returned.
    """
    if pod_set.template.placed_requests is None:
        return flavors.values()
    return {flavors[name] for name, _ in pod_set.template.placed_requests if name in flavors} or flavors.values()


def _level_labels(topology: Obj) -> list[str]:
    levels = (topology.get("spec") or {}).get("levels") or ()
    return [level["nodeLabel"] for level in levels if "nodeLabel" in level]


def queues_after_topology_event(event: WatchEvent, snapshot: Snapshot) -> list[str]:
    """Update a Topology, and return the ClusterQueues with flavors of it, if it is new, gone or changed."""
    name, topology = event.key.name, snapshot.topology
    levels = [] if event.type is EventType.DELETED else _level_labels(event.obj)
    if not levels:  # a Topology without levels places no pods: it counts as missing
        topology.remove_topology(name)
    elif not topology.put_topology(name, levels):
        return []
    flavors = {flavor.name for flavor in snapshot.flavors.values() if flavor.topology == name}
    return [queue.name for queue in snapshot.queues.values() if not flavors.isdisjoint(queue.view.flavors)]


def queues_after_node_event(event: WatchEvent, snapshot: Snapshot) -> list[str]:
    """Update a Node or a Pod, and return the ClusterQueues in which other Workloads may be admitted than before.

    A change of a node concerns all active queues, as in Kueue. A pod that frees capacity concerns the queues with
    flavors of its node.
    """
    topology, is_deleted = snapshot.topology, event.type is EventType.DELETED
    if event.key.kind == scheme.NODE:
        if not topology.observe_node(event.obj, event.old, is_deleted=is_deleted):
            return []
        return [queue.name for queue in snapshot.queues.values() if queue.active]
    freed_node = topology.observe_pod(event.obj, is_deleted=is_deleted)
    flavors = topology.flavors_of_node(freed_node) if freed_node else ()
    return [queue.name for queue in snapshot.queues.values() if not queue.topology_flavors.isdisjoint(flavors)]
