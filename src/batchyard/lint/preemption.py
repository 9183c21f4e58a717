"""Rules on preemption and sharing policies: those without effect, contradictions, and endless loops."""

from collections.abc import Container, Iterator, Mapping
from itertools import combinations
from typing import Any

from batchyard.api import scheme
from batchyard.api.manifests import Manifest
from batchyard.api.meta import Obj
from batchyard.api.views.workload import ClusterQueueView
from batchyard.lint.configuration import Configuration
from batchyard.lint.findings import RuleResult
from batchyard.lint.workloads import LintedPodSet, LintedWork
from batchyard.scheduling.cluster_queue import FlavorAssignmentMode


def preemption_loop(config: Configuration) -> Iterator[RuleResult]:
    """Work that preempts others while it is small, and yields to them once it may be large.

    With fewer pods it stays within the quota of its queue, and may reclaim that quota. Once the quota is free, all
    its pods would fit by borrowing. The preempted work, which borrows too, then comes first and takes the quota back.
    """
    for part in config.parts:
        policy = part.queue.view.preemption.reclaim_within_cohort
        may_reclaim = policy != "Never" if config.fair_sharing else policy == "Any"
        contended = _only_whole_is_too_large(part) if may_reclaim and part.queue.node.parent else ()
        rival = _rival(config, part, contended) if contended else None
        if rival is not None:
            view = part.queue.view
            problem = (
                f"with fewer pods {part.who} reclaims quota from {rival.view.key}, with all of them it borrows and"
                " comes after it: the two can take the quota from each other forever"
            )
            fix = f"remove the smaller count, or give {view.name} the quota for all pods"
            fix += "" if config.fair_sharing else ", or set its reclaimWithinCohort to LowerPriority"
            yield RuleResult(part.work.manifest, part.path, problem, fix)


def _only_whole_is_too_large(part: LintedPodSet) -> frozenset[int]:
    """The flavor-resources that all pods would borrow although the minimum count fits the queue's quota."""
    pod_set, node = part.work.view.pod_sets[part.index], part.queue.node
    least = pod_set.min_count
    usage = dict(part.assignment.pick.usage)
    if not least or least >= pod_set.count or any(amount > node.subtree[fr] for fr, amount in usage.items()):
        return frozenset()
    return frozenset([fr for fr, amount in usage.items() if amount * pod_set.count > node.subtree[fr] * least])


def _rival(config: Configuration, part: LintedPodSet, contended: Container[int]) -> LintedWork | None:
    """Work of another queue in the tree with the same usage; without fair sharing one of no lower priority."""
    for other in config.parts:
        if other.queue is part.queue or other.queue.node.path[0] is not part.queue.node.path[0]:
            continue
        shared = any(amount and fr in contended for fr, amount in other.assignment.pick.usage)
        if shared and (config.fair_sharing or other.work.view.priority >= part.work.view.priority):
            return other.work
    return None


def contradicting_priorities(config: Configuration) -> Iterator[RuleResult]:
    """Work whose WorkloadPriorityClass and PriorityClass order it differently."""
    classes = {m.obj["metadata"]["name"]: m.obj for m in config.last(scheme.PRIORITY_CLASS)}
    for name, works in config.works_by_queue.items():
        ranked = {_pair(work, classes): work for work in works}
        for (queue_a, pod_a), (queue_b, pod_b) in combinations(ranked, 2):
            if (queue_a - queue_b) * (pod_a - pod_b) < 0:
                first, second = ranked[queue_a, pod_a], ranked[queue_b, pod_b]
                first, second = (first, second) if queue_a > queue_b else (second, first)
                problem = (
                    f"in ClusterQueue {name} it comes before {second.view.key}, but on nodes its pods come after that:"
                    " if nodes are scarce, kube-scheduler favors the pods that the queue would preempt"
                )
                fix = "make the WorkloadPriorityClass and the PriorityClass of its pods order them equally"
                yield RuleResult(first.manifest, f"{first.paths[0]}.spec.priorityClassName", problem, fix)
                break


def zero_weight(config: Configuration) -> Iterator[RuleResult]:
    """Queues and Cohorts that get nothing beyond their own quota under contention."""
    for manifest, weight in [
        *((manifest, view.weight) for manifest, view in config.queue_versions),
        *((manifest, view.weight) for manifest, view in config.cohorts.values()),
    ]:
        if weight == 0:
            problem = (
                "a fair sharing weight of 0 makes its share infinite: it borrows only what no other queue requests"
            )
            fix = "set a weight above 0, unless this is intended"
            yield RuleResult(manifest, "spec.fairSharing.weight", problem, fix, [(manifest, _weight("1"))])


def borrowing_ignored(config: Configuration) -> Iterator[RuleResult]:
    """ClusterQueues with borrowWithinCohort, which fair sharing ignores."""
    for manifest, view in config.queue_versions:
        if config.fair_sharing and view.preemption.borrow_within_cohort:
            problem = "borrowWithinCohort has no effect under fair sharing: shares determine the victims"
            fix = "remove it, or turn fair sharing off"
            patches = [(manifest, {"spec": {"preemption": {"borrowWithinCohort": None}}})]
            yield RuleResult(manifest, "spec.preemption.borrowWithinCohort", problem, fix, patches)


def reclaim_without_cohort(config: Configuration) -> Iterator[RuleResult]:
    """Queues with reclaimWithinCohort that are alone in their cohort, or in none."""
    for manifest, view in config.queue_versions:
        if view.preemption.reclaim_within_cohort != "Never" and not _neighbours(config, view):
            where = f"no other queue is in cohort {view.cohort}" if view.cohort else "the queue is in no cohort"
            problem = f"reclaimWithinCohort has no effect: {where}, so no quota can be reclaimed"
            fix = "set a cohortName that others share, or remove it"
            yield RuleResult(manifest, "spec.preemption.reclaimWithinCohort", problem, fix)


def borrowing_without_lender(config: Configuration) -> Iterator[RuleResult]:
    """Flavors with a borrowingLimit of which no other member of the cohort has quota."""
    snapshot = config.snapshot
    for name, (manifest, view) in config.queues.items():
        node = snapshot.queues[name].node
        for number, group in enumerate(view.groups):
            for quota in group.quotas:
                fr = snapshot.id_of(quota.flavor, quota.resource)
                if quota.borrowing_limit and node.parent and 0 < node.potential[fr] <= node.subtree[fr]:
                    at = group.flavors.index(quota.flavor)
                    problem = (
                        f"no member of cohort {view.cohort} lends {quota.resource} of flavor {quota.flavor}:"
                        " its borrowingLimit has no effect"
                    )
                    fix = "give other members or the Cohort quota to lend, or raise the nominalQuota"
                    yield RuleResult(manifest, f"spec.resourceGroups[{number}].flavors[{at}]", problem, fix)


def nothing_lent(config: Configuration) -> Iterator[RuleResult]:
    """Cohorts whose members all lend nothing."""
    snapshot = config.snapshot
    for name, cohort in snapshot.cohorts.items():
        children = list(cohort.children.values())
        declared = [fr for fr in cohort.declared if sum(child.subtree[fr] for child in children)]
        if len(children) > 1 and declared and not any(cohort.subtree[fr] for fr in declared):
            manifest = _first_member(config, name)
            if manifest is not None:
                problem = (
                    f"every member of cohort {name} has a lendingLimit of 0: no queue can borrow, so it has no effect"
                )
                fix = "raise the lendingLimits, or remove the cohort"
                yield RuleResult(manifest, "spec.cohortName", problem, fix)


def priority_without_preemption(config: Configuration) -> Iterator[RuleResult]:
    """Queues whose pods could preempt each other, but whose quota admits only one of the jobs."""
    classes = {m.obj["metadata"]["name"]: m.obj for m in config.last(scheme.PRIORITY_CLASS)}
    for manifest, view in config.queue_versions:
        if view.preemption.within_cluster_queue != "Never" or config.is_changed_later(manifest):
            continue
        works = sorted(config.works_by_queue[view.name], key=lambda work: work.view.priority)
        if len(works) < 2 or not _may_preempt(works[-1], classes) or works[0].view.priority == works[-1].view.priority:
            continue
        low, high = works[0], works[-1]
        if _holds_one_only(config, view, low, high):
            problem = (
                f"the quota holds {low.view.key} or {high.view.key}, not both, and withinClusterQueue is Never: the one"
                " of higher priority waits until the other ends, and its pods, which could preempt, are never created"
            )
            fix = "set withinClusterQueue to LowerPriority, or give quota for both, so that kube-scheduler can decide"
            patches = [(manifest, {"spec": {"preemption": {"withinClusterQueue": "LowerPriority"}}})]
            yield RuleResult(manifest, "spec.preemption.withinClusterQueue", problem, fix, patches)


def _holds_one_only(config: Configuration, view: ClusterQueueView, one: LintedWork, other: LintedWork) -> bool:
    """Whether each fits the idle queue, but both together do not."""
    parts = [part for part in config.parts if part.queue.name == view.name and part.work in (one, other)]
    if not all(part.assignment.mode is FlavorAssignmentMode.FIT for part in parts):
        return False
    potential = config.snapshot.queues[view.name].node.potential
    total: dict[int, int] = {}
    for part in parts:
        for fr, amount in part.assignment.pick.usage:
            total[fr] = total.get(fr, 0) + amount
    return any(amount > potential[fr] for fr, amount in total.items())


def _may_preempt(work: LintedWork, classes: Mapping[str, Obj]) -> bool:
    """Whether its pods have a PriorityClass that preempts."""
    names = [(template.get("spec") or {}).get("priorityClassName") or "" for template in work.templates]
    found = [classes[name] for name in names if name in classes]
    return bool(found) and all(each.get("preemptionPolicy") != "Never" for each in found)


def _pair(work: LintedWork, classes: Mapping[str, Obj]) -> tuple[int, int]:
    """The priority in the queue, and that of the pods."""
    name = ((work.templates[0].get("spec") or {}).get("priorityClassName") if work.templates else None) or ""
    value: int = classes[name]["value"] if name in classes else 0
    return work.view.priority, value


def _neighbours(config: Configuration, view: ClusterQueueView) -> bool:
    """Whether its cohort tree has other queues or quota."""
    if not view.cohort:
        return False
    cohort = config.snapshot.cohorts.get(view.cohort)
    root = cohort.path[0] if cohort else None
    others = [queue for queue in (config.snapshot.queues_below(root) if root else []) if queue.name != view.name]
    return bool(others) or bool(root and any(root.subtree))


def _first_member(config: Configuration, cohort: str) -> Manifest | None:
    return next((manifest for manifest, view in config.queues.values() if view.cohort == cohort), None)


def _weight(text: str) -> Mapping[str, Any]:
    return {"spec": {"fairSharing": {"weight": text}}}
