"""Second pass of the scheduler: topology domains for Workloads that already have quota.

Two kinds of Workloads take part in a cycle with their quota: those whose domains are delayed until their
AdmissionChecks are ready, and admitted ones with a failed node in their topology assignment. They keep their flavors,
and only their domains are searched. Like pending Workloads, they preempt others by the rules of their ClusterQueue.

As in Kueue, the search for victims requests the whole quota of the Workload once more, although the Workload has it:
the victims must leave room for both. With the feature gate TASFailedNodeReplacementFailFast, a Workload without
replacement for a failed node is evicted, and preempts nothing. Sources: Kueue's pkg/scheduler/scheduler.go and
pkg/scheduler/flavorassigner.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from batchyard.api.views.workload import AdmittedPodSet, WorkloadView
from batchyard.scheduling import slices
from batchyard.scheduling.cluster_queue import ClusterQueue, FlavorChoice, make_flavor_assignment
from batchyard.scheduling.cycle import Cycle, NominatedEntry, classical_order
from batchyard.scheduling.decisions import Decision, Head, InadmissibleReason, SecondPassOutcome, StayPending
from batchyard.scheduling.flavor_assigner import Assignment, PodSetAssignment, search_pod_counts
from batchyard.scheduling.messages import RequeueReason
from batchyard.scheduling.preemption.context import PreemptionTarget
from batchyard.scheduling.preemption.preemptor import Preemptor
from batchyard.scheduling.quota import FlavorAssignmentMode, Usage
from batchyard.scheduling.snapshot import Snapshot
from batchyard.scheduling.topology_nomination import (
    DomainCheck,
    Nomination,
    placed_flavors,
    pod_set_of,
    set_domains,
    set_mode,
    set_topology_error,
    topology_requests,
)
from batchyard.topology.assigner import PodSetTopologyRequest, TopologyAssignments, TopologyFailure, assign_domains
from batchyard.topology.state import FlavorUsage, TopologyUsage, usage_of

_FIT: Final = FlavorAssignmentMode.FIT
_PREEMPT: Final = FlavorAssignmentMode.PREEMPT
_NO_FIT: Final = FlavorAssignmentMode.NO_FIT


@dataclass(slots=True)
class SecondPassEntry(NominatedEntry):
    """A Workload with quota in a cycle: its existing flavors with new topology domains, and its preemption targets.

    The assignment has no usage of quota, and the usage of domains only of the pods beyond the existing assignment.
    """

    #: Whether the Workload is evicted if there is no replacement for a failed node.
    fails_fast: bool = False

    @property
    def is_given_up(self) -> bool:
        """Whether the Workload loses its quota because there is no replacement for a failed node."""
        return self.fails_fast and self.assignment.mode is not _FIT

    def nominate_again(self, cycle: Cycle) -> None:
        """Search the topology domains again, and preemption targets if needed."""
        self.assignment, self.targets = _nominate(self.workload, self.queue, cycle)


class SecondPass:
    """The Workloads with quota that take part in one cycle, and the decisions about them."""

    def __init__(self, cycle: Cycle, heads: Sequence[Head]) -> None:
        self._cycle = cycle
        self._heads = heads
        self._entries: dict[str, SecondPassEntry] = {}
        self.outcomes: list[SecondPassOutcome] = []

    def nominate(self, pending_entries: Sequence[NominatedEntry]) -> list[SecondPassEntry]:
        """Return the entries of the Workloads with quota, whose decisions the cycle has to find.

        As in Kueue, fair sharing considers one Workload per ClusterQueue, a pending one first. The others wait.
        """
        cycle, nominated = self._cycle, {}
        for head in self._heads:
            obstacle = cycle.nomination_obstacle(head)
            if obstacle is None:
                nominated[head.workload.key] = self._nominate_head(head)
            else:
                self.outcomes.append(SecondPassOutcome(obstacle))
        if cycle.policy.fair_sharing:
            last_by_queue = {entry.queue.name: key for key, entry in nominated.items()}
            last_by_queue |= {entry.queue.name: entry.workload.key for entry in pending_entries}
            for key in [key for key, entry in nominated.items() if last_by_queue[entry.queue.name] != key]:
                self.outcomes.append(SecondPassOutcome(_wait(nominated.pop(key))))
        self._entries = nominated
        return list(nominated.values())

    def _nominate_head(self, head: Head) -> SecondPassEntry:
        snapshot, view = self._cycle.snapshot, head.workload
        queue = snapshot.queues[head.queue]
        assignment, targets = _nominate(view, queue, self._cycle)
        fails_fast = bool(view.unhealthy_nodes) and snapshot.topology.rules.fails_fast
        return SecondPassEntry(head, view, queue, assignment, targets, fails_fast)

    def classical_order(self, entries: Sequence[NominatedEntry]) -> Iterator[NominatedEntry]:
        """Yield a cycle's Workloads in the order without fair sharing; those with quota come first."""
        yield from classical_order(list(self._entries.values()))
        pending = [entry for entry in entries if entry.workload.key not in self._entries]
        yield from classical_order(pending, self._cycle.preemptors)

    def take_decisions(self, decisions: Sequence[Decision]) -> list[Decision]:
        """Add the decisions about Workloads with quota to `outcomes`, and return the other decisions."""
        pending: list[Decision] = []
        for decision in decisions:
            entry = self._entries.get(decision.head.workload.key)
            if entry is None:
                pending.append(decision)
            else:
                self.outcomes.append(SecondPassOutcome(decision, entry.is_given_up))
        return pending


def _wait(entry: SecondPassEntry) -> Decision:
    return StayPending(entry.head, InadmissibleReason("", entry.assignment), RequeueReason.GENERIC)


def _nominate(workload: WorkloadView, queue: ClusterQueue, cycle: Cycle) -> Nomination:
    preemptor = cycle.preemptor_for(workload, queue)
    may_shrink = cycle.policy.may_shrink(workload) and not workload.unhealthy_nodes
    return SecondPassNominator(workload, queue, cycle.snapshot, preemptor, may_shrink).nominate()


def find_obstacle(workload: WorkloadView, queue: ClusterQueue, snapshot: Snapshot) -> str:
    """Return why a Workload with quota gets no topology domains without preemption; '' if it gets them."""
    assignment, _ = SecondPassNominator(workload, queue, snapshot).nominate()
    return InadmissibleReason("", assignment).message


@dataclass(slots=True)
class SecondPassNominator:
    """Nominates one Workload with quota: searches its topology domains, and victims if the pods do not fit."""

    workload: WorkloadView
    queue: ClusterQueue
    snapshot: Snapshot
    #: Finds victims; None if nothing is preempted.
    preemptor: Preemptor | None = None
    #: Whether the Workload may keep fewer pods than it was admitted with.
    may_shrink: bool = False
    #: The domains that the pods would get if no Workload ran.
    _idle_domains: TopologyAssignments | None = None

    def nominate(self) -> Nomination:
        """Return the existing flavors with topology domains, and the Workloads to preempt for these."""
        workload = self.workload
        nomination = self._assign([held.pods for held in workload.admitted_pod_sets])
        if self.may_shrink and workload.can_be_partially_admitted and not slices.fits_or_has_targets(nomination):
            partial_nomination = search_pod_counts(workload.pod_sets, self._assign, slices.fits_or_has_targets)
            nomination = partial_nomination or nomination
        assignment, targets = nomination
        if assignment.mode is _PREEMPT and not workload.unhealthy_nodes:
            self._reserve_domains(assignment, targets)
        assignment.topology_usage = _added_usage(workload, assignment)
        return nomination

    def _assign(self, pod_counts: Sequence[int]) -> Nomination:
        assignment = _existing_assignment(self.workload, self.snapshot, pod_counts)
        requests, errors = self._requests(assignment)
        for pod_set, error in errors.items():
            set_topology_error(assignment, pod_set, error)
            assignment.mode = _NO_FIT
        if not errors:
            self._place(assignment, requests)
        if self.preemptor is None or assignment.mode is not _PREEMPT:
            return assignment, []
        check = DomainCheck(self.snapshot, requests, self._failed_node)
        return assignment, self.preemptor.targets_for_usage(_usage_of(assignment), assignment.preempting_frs, check)

    @property
    def _failed_node(self) -> str:
        """The node whose pods get other domains; '' if the domains are delayed."""
        return self.workload.unhealthy_nodes[0] if self.workload.unhealthy_nodes else ""

    def _requests(self, assignment: Assignment) -> tuple[list[PodSetTopologyRequest], Mapping[str, str]]:
        """Return the requests of the pod sets without domains, or with a failed node in them; and errors, by pod set.

        While a failed node is replaced, pod sets without domains get none.
        """
        existing = {pod_set.name: pod_set.topology for pod_set in assignment.pod_sets}
        failed_nodes = frozenset(self.workload.unhealthy_nodes)
        searched = {
            name: topology
            for name, topology in existing.items()
            if topology is None or any(domain.values[-1] in failed_nodes for domain in topology.domains)
        }
        requests, errors = topology_requests(assignment, self.workload, self.queue)
        errors = {name: error for name, error in errors.items() if name in searched}
        requests = [each._replace(existing=searched[each.name]) for each in requests if each.name in searched]
        if failed_nodes:
            requests = [each for each in requests if each.existing is not None]
        return requests, errors

    def _place(self, assignment: Assignment, requests: Sequence[PodSetTopologyRequest]) -> None:
        """Set the topology domains of an assignment, or lower its mode."""
        state = self.snapshot.topology
        found = assign_domains(state, requests, failed_node=self._failed_node)
        if not isinstance(found, TopologyFailure):
            set_domains(assignment, found, self.workload)
            return
        failed_pod_set = pod_set_of(assignment, found.pod_set)
        failed_pod_set.topology_reason = found.reason
        set_mode(failed_pod_set, _PREEMPT)
        assignment.mode = _PREEMPT
        if self._failed_node:
            return
        found = assign_domains(state, requests, is_idle=True, explains=False)
        if isinstance(found, TopologyFailure):
            set_mode(pod_set_of(assignment, found.pod_set), _NO_FIT)
            assignment.mode = _NO_FIT
            return
        for request in requests:
            set_mode(pod_set_of(assignment, request.name), _PREEMPT)
        self._idle_domains = found

    def _reserve_domains(self, assignment: Assignment, targets: Sequence[PreemptionTarget]) -> None:
        """Set the domains that the pods will get: without the targets, or without any Workload if there are none."""
        domains, snapshot = self._idle_domains, self.snapshot
        if targets:
            requests, _ = self._requests(assignment)
            with snapshot.what_if():
                for target in targets:
                    snapshot.release(target.workload)
                found = assign_domains(snapshot.topology, requests, explains=False)
            domains = None if isinstance(found, TopologyFailure) else found
        if domains is not None:
            set_domains(assignment, domains, self.workload)


def _existing_assignment(workload: WorkloadView, snapshot: Snapshot, pod_counts: Sequence[int]) -> Assignment:
    """Return the assignment that a Workload has, with other pod counts for pod sets without topology domains."""
    pod_sets: list[PodSetAssignment] = []
    for held, count in zip(workload.admitted_pod_sets, pod_counts, strict=True):
        choices = {
            resource: FlavorChoice(flavor, snapshot.flavor_resource_id(flavor, resource), _FIT, 0)
            for resource, flavor in held.flavors.items()
        }
        flavors = make_flavor_assignment(choices, (), {}, _FIT)
        resized = held if held.topology is not None else _with_pod_count(held, count)
        pod_sets.append(PodSetAssignment(held.name, resized.pods, resized.usage, flavors, (), "", held.topology))
    return Assignment(pod_sets, _FIT, 0, ())


def _with_pod_count(held: AdmittedPodSet, count: int) -> AdmittedPodSet:
    if not held.pods or held.pods == count:
        return held
    usage = tuple([(resource, amount // held.pods * count) for resource, amount in held.usage])
    return held._replace(pods=count, usage=usage)


def _usage_of(assignment: Assignment) -> Usage:
    """Return the quota of all pod sets of an existing assignment, which victims must free once more."""
    usage: dict[int, int] = {}
    for pod_set in assignment.pod_sets:
        for resource, amount in pod_set.requests:
            if amount and resource in pod_set.choices:
                fr = pod_set.choices[resource].fr
                usage[fr] = usage.get(fr, 0) + amount
    return tuple(usage.items())


def _added_usage(workload: WorkloadView, assignment: Assignment) -> TopologyUsage:
    """Return the usage of pods in domains beyond the existing assignment."""
    existing_usage = _domain_counts(workload)
    added: list[FlavorUsage] = []
    for pod_set, assigned in zip(workload.pod_sets, assignment.pod_sets, strict=True):
        if assigned.topology is None:
            continue
        flavors = {resource: choice.flavor for resource, choice in assigned.choices.items()}
        for usage in usage_of(placed_flavors(flavors, pod_set), assigned.topology, pod_set.template):
            counts = [(each, each.pods - existing_usage.get((pod_set.name, each.values), 0)) for each in usage.domains]
            added_domains = tuple([domain._replace(pods=count) for domain, count in counts if count > 0])
            if added_domains:
                added.append(usage._replace(domains=added_domains))
    return tuple(added)


def _domain_counts(workload: WorkloadView) -> dict[tuple[str, tuple[str, ...]], int]:
    counts: dict[tuple[str, tuple[str, ...]], int] = {}
    for held in workload.admitted_pod_sets:
        for domain in held.topology.domains if held.topology is not None else ():
            key = held.name, domain.values
            counts[key] = counts.get(key, 0) + domain.pods
    return counts
