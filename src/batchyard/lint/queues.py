"""Rules on queues: unusable or stopped queues, blocking heads, and work that can never be admitted."""

from collections.abc import Container, Iterator, Mapping
from itertools import combinations
from typing import Any, Final

from batchyard.api import scheme
from batchyard.api.manifests import Manifest
from batchyard.api.meta import Obj, format_amount
from batchyard.api.views.pod_shape import PODS
from batchyard.api.views.workload import ClusterQueueView
from batchyard.lint.configuration import Configuration
from batchyard.lint.findings import RuleResult, Severity
from batchyard.lint.workloads import LintedPodSet, LintedWork
from batchyard.scheduling.messages import ExceedsMaxCapacity
from batchyard.scheduling.quota import FlavorAssignmentMode
from batchyard.scheduling.workload.adjustments import combine_limit_ranges, out_of_bounds

_NAME_LABEL: Final = "kubernetes.io/metadata.name"
#: A memory quota below this is implausible, and usually lacks its unit, such as Mi.
_LITTLE_MEMORY: Final = 1 << 20


def null_namespace_selector(config: Configuration) -> Iterator[RuleResult]:
    """ClusterQueues that select no namespace."""
    for manifest, view in config.queue_versions:
        if view.namespaces is None:
            problem = "namespaceSelector is missing, which selects no namespace: no Workload is ever admitted here"
            fix = "set `namespaceSelector: {}` for all namespaces, or the labels of those that may use the queue"
            every: dict[str, Any] = {}
            patches = [(manifest, {"spec": {"namespaceSelector": every}})]
            yield RuleResult(manifest, "spec.namespaceSelector", problem, fix, patches)


def namespace_not_selected(config: Configuration) -> Iterator[RuleResult]:
    """LocalQueues in namespaces that their ClusterQueue does not select."""
    for manifest, view in config.local_queues.values():
        queue = config.queues.get(view.cluster_queue)
        if queue is None or queue[1].namespaces is None:
            continue
        namespace = view.key.partition("/")[0]
        found = config.find(scheme.NAMESPACE, namespace)
        asked = {requirement.key for requirement in queue[1].namespaces.requirements}
        if found is None and asked - {_NAME_LABEL}:
            continue  # its labels are unknown
        labels = {_NAME_LABEL: namespace, **((found.obj["metadata"].get("labels") or {}) if found else {})}
        if not queue[1].namespaces.matches(labels):
            problem = (
                f"ClusterQueue {view.cluster_queue} does not select namespace {namespace}:"
                " work in this queue waits forever"
            )
            fix = f"give the namespace the labels that {view.cluster_queue} selects, or extend its namespaceSelector"
            yield RuleResult(manifest, "metadata.namespace", problem, fix)


def queue_stopped(config: Configuration) -> Iterator[RuleResult]:
    """Stopped queues for which the manifests contain work."""
    for name, (manifest, view) in config.queues.items():
        works = config.works_by_queue[name]
        if view.stop_policy != "None" and works:
            problem = f"stopPolicy is {view.stop_policy}: the {_counted(works)} for this queue wait until it is None"
            yield RuleResult(manifest, "spec.stopPolicy", problem, "set stopPolicy to None", [_running(manifest)])
    for manifest, local in config.local_queues.values():
        is_stopped = local.stop_policy != "None"
        works = [work for work in config.works if work.view.queue == local.key] if is_stopped else []
        if works:
            problem = f"stopPolicy is {local.stop_policy}: the {_counted(works)} for this queue wait until it is None"
            yield RuleResult(manifest, "spec.stopPolicy", problem, "set stopPolicy to None", [_running(manifest)])


def queue_without_local_queue(config: Configuration) -> Iterator[RuleResult]:
    """ClusterQueues without a LocalQueue."""
    used = {view.cluster_queue: None for _, view in config.local_queues.values()}
    for name, (manifest, _) in config.queues.items():
        if name not in used:
            problem = f"no LocalQueue in these files refers to ClusterQueue {name}: no work can be queued here"
            yield RuleResult(
                manifest, "metadata.name", problem, "create a LocalQueue in each namespace that may use it"
            )


def strict_fifo_blocking(config: Configuration) -> Iterator[RuleResult]:
    """StrictFIFO queues whose head can block others that could start."""
    for name, (manifest, view) in config.queues.items():
        if not view.strict_fifo:
            continue
        works = config.works_by_queue[name]
        shapes = {_shape(config, view, work): work for work in works}
        if len(shapes) > 1:
            large, small = _extremes(list(shapes.values()))
            problem = (
                f"the queue is StrictFIFO and its work differs: while {large} is the head and finds no"
                f" quota, {small} and all others wait, even if another flavor has room for them"
            )
        elif not works and len(view.flavors) > 1:
            problem = (
                "the queue is StrictFIFO with several flavors: while its head finds no quota, all others wait,"
                " even if another flavor has room for them"
            )
        else:
            continue
        fix = "set queueingStrategy to BestEffortFIFO, or use separate queues for large and small work"
        patches = [(manifest, {"spec": {"queueingStrategy": "BestEffortFIFO"}})]
        yield RuleResult(
            manifest, "spec.queueingStrategy", problem, fix, patches, severity=None if works else Severity.NOTE
        )


def tiny_memory_quota(config: Configuration) -> Iterator[RuleResult]:
    """Memory quotas in bytes, where the unit was probably forgotten."""
    for manifest, groups in config.quotas:
        for number, group in enumerate(groups):
            for quota in group.quotas:
                if quota.resource == "memory" and 0 < quota.nominal < _LITTLE_MEMORY:
                    at = group.flavors.index(quota.flavor)
                    amount = format_amount("memory", quota.nominal)
                    problem = f"the quota of memory in flavor {quota.flavor} is {amount} bytes: no pod fits"
                    fix = f"add the unit: {amount}Gi or {amount}Mi"
                    yield RuleResult(manifest, f"spec.resourceGroups[{number}].flavors[{at}]", problem, fix)


def _shape(config: Configuration, view: ClusterQueueView, work: LintedWork) -> object:
    """What determines whether quota suffices: each pod set's requests and usable flavors."""
    return tuple(
        [
            (
                tuple((resource, amount * count) for resource, amount in pod_set.template.requests),
                tuple(config.snapshot.obstacles.of(pod_set.template, group.flavors) for group in view.groups),
            )
            for pod_set, count in zip(work.view.pod_sets, work.view.counts, strict=True)
        ]
    )


def _extremes(works: list[LintedWork]) -> tuple[str, str]:
    """The names of the largest and the smallest work."""
    ranked = sorted(works, key=lambda work: (_size(work), work.view.key))
    return ranked[-1].view.key, ranked[0].view.key


def _size(work: LintedWork) -> int:
    sets = zip(work.view.pod_sets, work.view.counts, strict=True)
    return sum(count * sum(amount for _, amount in pod_set.template.requests) for pod_set, count in sets)


def _counted(works: list[LintedWork]) -> str:
    return f"{len(works)} job{'s' * (len(works) != 1)}"


def _running(manifest: Manifest) -> tuple[Manifest, dict[str, object]]:
    return manifest, {"spec": {"stopPolicy": "None"}}


# --- sizes ---
#
# Work that is too large, or requests something missing, and would wait forever.
#
# The scheduler's own flavor search decides whether a Workload could be admitted with all quota free. The rules of
# scheduling decide whether a pod fits a node.


_SHOWN_MAX: Final = 3


def uncovered_resource(config: Configuration) -> Iterator[RuleResult]:
    """Pods that request a resource which their queue does not cover."""
    for part in config.parts:
        resource = part.assignment.unavailable
        if resource:
            groups = part.queue.view.groups
            covered = ", ".join(r for group in groups for r in group.resources) or "nothing"
            problem = (
                f"{part.who} requests {resource}, and ClusterQueue {part.queue.name} covers only {covered}:"
                " it is never admitted"
            )
            fix = f"add {resource} to a resource group of {part.queue.name}, or remove it from requests and limits"
            yield RuleResult(part.work.manifest, f"{part.path}.containers", problem, fix)


def exceeds_quota(config: Configuration) -> Iterator[RuleResult]:
    """Pod sets larger than the maximum that their queue could have."""
    for part in config.parts:
        large = [fact for fact in part.assignment.facts if isinstance(fact, ExceedsMaxCapacity)]
        if large and not part.assignment.unavailable and part.assignment.mode is FlavorAssignmentMode.NO_FIT:
            message = "; ".join(_too_large(fact) for fact in large[:_SHOWN_MAX])
            problem = f"{part.who} can never be admitted in ClusterQueue {part.queue.name}: {message}"
            best = min(large, key=lambda fact: fact.assumed + fact.request - fact.capacity)
            more = format_amount(best.resource, best.assumed + best.request - best.capacity)
            fix = f"run fewer or smaller pods in parallel, or give flavor {best.flavor} {more} more {best.resource}"
            yield RuleResult(part.work.manifest, part.path, problem, fix)


def no_matching_flavor(config: Configuration) -> Iterator[RuleResult]:
    """Pods that match no flavor of their queue by taints and labels."""
    for part in config.parts:
        facts = part.assignment.facts
        if part.assignment.unavailable or part.assignment.mode is not FlavorAssignmentMode.NO_FIT or not facts:
            continue
        if all(isinstance(fact, str) for fact in facts):
            message = "; ".join(map(str, facts[:_SHOWN_MAX]))
            problem = f"no flavor of ClusterQueue {part.queue.name} matches {part.who}: {message}. It waits forever"
            fix = "tolerate the taint or change the node selector in the pod template, or choose another queue"
            yield RuleResult(part.work.manifest, part.path, problem, fix)


def asks_for_nothing(config: Configuration) -> Iterator[RuleResult]:
    """Pods that request no resource that their queue covers."""
    for part in config.parts:
        covered = [resource for group in part.queue.view.groups for resource in group.resources]
        template = part.work.view.pod_sets[part.index].template
        if PODS in covered or any(amount for resource, amount in template.requests if resource in covered):
            continue
        if covered and part.work.view.counts[part.index]:
            problem = f"{part.who} requests none of {', '.join(covered)}: it is admitted even if the queue is full"
            yield RuleResult(
                part.work.manifest, f"{part.path}.containers", problem, "set the resource requests of its pods"
            )


def beyond_limit_range(config: Configuration) -> Iterator[RuleResult]:
    """Pods that a LimitRange of their namespace rejects."""
    by_namespace: dict[str, list[Obj]] = {}
    for manifest in config.last(scheme.LIMIT_RANGE):
        by_namespace.setdefault(manifest.obj["metadata"].get("namespace", ""), []).append(manifest.obj)
    for work in config.works:
        ranges = by_namespace.get(work.namespace)
        wrong = out_of_bounds(work.workload, combine_limit_ranges(ranges)) if ranges else ""
        if wrong:
            fix = "stay within the LimitRange, or change it"
            yield RuleResult(work.manifest, work.paths[0], f"a LimitRange rejects its pods: {wrong}", fix)


# --- on nodes ---


def pod_larger_than_node(config: Configuration) -> Iterator[RuleResult]:
    """Pods larger than any node that they may use."""
    yield from _unplaced(config, "pod-larger-than-node")


def no_such_node(config: Configuration) -> Iterator[RuleResult]:
    """Pods that select labels which no node has."""
    yield from _unplaced(config, "no-such-node")


def untolerated_taint(config: Configuration) -> Iterator[RuleResult]:
    """Pods that do not tolerate the taints of any node that they may use."""
    yield from _unplaced(config, "untolerated-taint")


def too_few_nodes(config: Configuration) -> Iterator[RuleResult]:
    """Jobs with more parallel pods than all nodes can hold."""
    yield from _unplaced(config, "too-few-nodes")


def _unplaced(config: Configuration, rule: str) -> Iterator[RuleResult]:
    """An error if the pods fit no node with any flavor, a warning if only with some flavors."""
    for part, fits in config.fits:
        bad = {choice: fit for choice, fit in fits.items() if fit is not None}
        if not bad or next(iter(bad.values())).rule != rule:
            continue
        is_hopeless = len(bad) == len(fits)
        choice, fit = next(iter(bad.items()))
        of = f"in flavor {', '.join(choice)} " if any(choice) and not is_hopeless else ""
        problem = (
            f"{part.who} is admitted {of}and its pods stay Pending: {fit.problem}"
            if part.queue.view.groups
            else fit.problem
        )
        severity = None if is_hopeless else Severity.WARNING
        yield RuleResult(part.work.manifest, part.path, problem, fit.fix, severity=severity)


def _too_large(fact: ExceedsMaxCapacity) -> str:
    asked, most = (format_amount(fact.resource, amount) for amount in (fact.assumed + fact.request, fact.capacity))
    return f"{asked} {fact.resource} requested, at most {most} in flavor {fact.flavor}"


# --- preemption ---
#
# Rules on preemption and sharing policies: those without effect, contradictions, and endless loops.


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
