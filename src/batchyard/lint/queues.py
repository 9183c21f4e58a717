"""Lint rules on queues, quota and preemption: stopped queues, jobs that are never admitted, policies without effect."""

from collections.abc import Container, Iterator, Mapping
from itertools import combinations
from typing import Any, Final

from batchyard.api import scheme
from batchyard.api.manifests import Manifest
from batchyard.api.meta import Obj, format_amount
from batchyard.api.views.pod_shape import PODS
from batchyard.api.views.workload import ClusterQueueView
from batchyard.base.counts import count_with_noun, pluralize
from batchyard.lint.findings import RuleResult, Severity
from batchyard.lint.linted_manifests import LintedManifests
from batchyard.lint.workloads import LintedJob, LintedPodSet
from batchyard.scheduling.messages import ExceedsMaxCapacity
from batchyard.scheduling.quota import FlavorAssignmentMode
from batchyard.scheduling.workload.adjustments import combine_limit_ranges, describe_limit_violations

_NAMESPACE_NAME_LABEL: Final = "kubernetes.io/metadata.name"
#: A memory quota below this number of bytes is implausible: its unit, such as Mi, is probably missing.
_MIN_PLAUSIBLE_MEMORY_BYTES: Final = 1 << 20


def null_namespace_selector(linted: LintedManifests) -> Iterator[RuleResult]:
    """Report each ClusterQueue without a namespaceSelector, which therefore selects no namespace."""
    for manifest, view in linted.queue_versions:
        if view.namespaces is None:
            problem = "namespaceSelector is missing, so the queue selects no namespace and never admits a Workload"
            fix = "set `namespaceSelector: {}` for all namespaces, or select the labels of the allowed namespaces"
            match_all_selector: dict[str, Any] = {}
            patches = [(manifest, {"spec": {"namespaceSelector": match_all_selector}})]
            yield RuleResult(manifest, "spec.namespaceSelector", problem, fix, patches)


def namespace_not_selected(linted: LintedManifests) -> Iterator[RuleResult]:
    """Report each LocalQueue in a namespace that its ClusterQueue does not select.

    Namespaces that are not in the manifests have unknown labels, and are reported only if their name decides.
    """
    for manifest, view in linted.local_queues.values():
        queue = linted.queues.get(view.cluster_queue)
        if queue is None or queue[1].namespaces is None:
            continue
        namespace = view.key.partition("/")[0]
        namespace_manifest = linted.find(scheme.NAMESPACE, namespace)
        selector_label_keys = {requirement.key for requirement in queue[1].namespaces.requirements}
        if namespace_manifest is None and selector_label_keys - {_NAMESPACE_NAME_LABEL}:
            continue  # the namespace's labels are unknown
        declared_labels = namespace_manifest.obj["metadata"].get("labels") if namespace_manifest else None
        labels = {_NAMESPACE_NAME_LABEL: namespace, **(declared_labels or {})}
        if not queue[1].namespaces.matches(labels):
            problem = (
                f"ClusterQueue {view.cluster_queue} does not select namespace {namespace}:"
                " jobs in this queue wait forever"
            )
            fix = f"give the namespace the labels that {view.cluster_queue} selects, or extend its namespaceSelector"
            yield RuleResult(manifest, "metadata.namespace", problem, fix)


def queue_stopped(linted: LintedManifests) -> Iterator[RuleResult]:
    """Report each ClusterQueue or LocalQueue that has jobs in the manifests and a stopPolicy other than None."""
    for name, (manifest, view) in linted.queues.items():
        jobs = linted.jobs_by_queue[name]
        if view.stop_policy != "None" and jobs:
            problem = (
                f"stopPolicy is {view.stop_policy}: the {_format_job_count(jobs)} of this queue wait until"
                " stopPolicy is None"
            )
            yield RuleResult(manifest, "spec.stopPolicy", problem, "set stopPolicy to None", [_resume_patch(manifest)])
    for manifest, local_queue in linted.local_queues.values():
        is_stopped = local_queue.stop_policy != "None"
        jobs = [job for job in linted.jobs if job.view.queue == local_queue.key] if is_stopped else []
        if jobs:
            problem = (
                f"stopPolicy is {local_queue.stop_policy}: the {_format_job_count(jobs)} of this queue wait until"
                " stopPolicy is None"
            )
            yield RuleResult(manifest, "spec.stopPolicy", problem, "set stopPolicy to None", [_resume_patch(manifest)])


def queue_without_local_queue(linted: LintedManifests) -> Iterator[RuleResult]:
    """Report each ClusterQueue that no LocalQueue refers to."""
    referenced_names = {view.cluster_queue: None for _, view in linted.local_queues.values()}
    for name, (manifest, _) in linted.queues.items():
        if name not in referenced_names:
            problem = f"no LocalQueue in these files refers to ClusterQueue {name}: no job can be queued in it"
            yield RuleResult(
                manifest,
                "metadata.name",
                problem,
                "create a LocalQueue in each namespace that may use the ClusterQueue",
            )


def strict_fifo_blocking(linted: LintedManifests) -> Iterator[RuleResult]:
    """Report each StrictFIFO ClusterQueue whose first job can block later jobs for which quota is free."""
    for name, (manifest, view) in linted.queues.items():
        if not view.strict_fifo:
            continue
        jobs = linted.jobs_by_queue[name]
        distinct_jobs_by_key = {_job_equality_key(linted, view, job): job for job in jobs}
        if len(distinct_jobs_by_key) > 1:
            distinct_jobs = list(distinct_jobs_by_key.values())
            largest_job_key, smallest_job_key = _largest_and_smallest_job_keys(linted, distinct_jobs)
            problem = (
                f"the queue is StrictFIFO and its jobs differ in size: while {largest_job_key} is the head and finds no"
                f" quota, {smallest_job_key} and all other jobs wait, even if another flavor has quota for them"
            )
        elif not jobs and len(view.flavors) > 1:
            problem = (
                "the queue is StrictFIFO with several flavors: while its head finds no quota, all other jobs wait,"
                " even if another flavor has quota for them"
            )
        else:
            continue
        fix = "set queueingStrategy to BestEffortFIFO, or use separate queues for large and small jobs"
        patches = [(manifest, {"spec": {"queueingStrategy": "BestEffortFIFO"}})]
        severity = None if jobs else Severity.NOTE
        yield RuleResult(manifest, "spec.queueingStrategy", problem, fix, patches, severity=severity)


def tiny_memory_quota(linted: LintedManifests) -> Iterator[RuleResult]:
    """Report each memory quota above 0 and below 1 MiB, where a unit such as Gi was probably forgotten."""
    for manifest, groups in linted.resource_groups:
        for group_index, group in enumerate(groups):
            for quota in group.quotas:
                if quota.resource == "memory" and 0 < quota.nominal < _MIN_PLAUSIBLE_MEMORY_BYTES:
                    flavor_index = group.flavors.index(quota.flavor)
                    byte_count = format_amount("memory", quota.nominal)
                    bytes_text = f"{byte_count} {pluralize('byte', quota.nominal)}"
                    problem = f"the quota of memory in flavor {quota.flavor} is {bytes_text}: no pod fits"
                    fix = f"add the unit: {byte_count}Gi or {byte_count}Mi"
                    path = f"spec.resourceGroups[{group_index}].flavors[{flavor_index}]"
                    yield RuleResult(manifest, path, problem, fix)


def _job_equality_key(linted: LintedManifests, view: ClusterQueueView, job: LintedJob) -> object:
    """Return the requests and usable flavors of a job's pod sets; jobs with equal keys wait for the same quota."""
    return tuple(
        [
            (
                tuple((resource, amount * count) for resource, amount in pod_set.template.requests),
                tuple(
                    linted.snapshot.obstacles.mismatches_for(pod_set.template, group.flavors) for group in view.groups
                ),
            )
            for pod_set, count in zip(linted.charged_pod_sets(job), job.view.counts, strict=True)
        ]
    )


def _largest_and_smallest_job_keys(linted: LintedManifests, jobs: list[LintedJob]) -> tuple[str, str]:
    sorted_jobs = sorted(jobs, key=lambda job: (_total_requests(linted, job), job.view.key))
    return sorted_jobs[-1].view.key, sorted_jobs[0].view.key


def _total_requests(linted: LintedManifests, job: LintedJob) -> int:
    pod_sets_and_counts = zip(linted.charged_pod_sets(job), job.view.counts, strict=True)
    return sum(count * sum(amount for _, amount in pod_set.template.requests) for pod_set, count in pod_sets_and_counts)


def _format_job_count(jobs: list[LintedJob]) -> str:
    return count_with_noun(len(jobs), "job")


def _resume_patch(manifest: Manifest) -> tuple[Manifest, dict[str, object]]:
    return manifest, {"spec": {"stopPolicy": "None"}}


# Rules on jobs that wait forever because they are too large or request a resource without quota.
#
# The scheduler's own flavor search decides whether a Workload could be admitted with all quota free. The filters of
# kube-scheduler decide whether a pod fits a node.


_REASONS_SHOWN_MAX: Final = 3


def uncovered_resource(linted: LintedManifests) -> Iterator[RuleResult]:
    """Report each pod set that requests a resource which its ClusterQueue does not cover."""
    for pod_set in linted.pod_sets:
        resource = pod_set.assignment.unavailable_resource
        if resource:
            groups = pod_set.queue.view.groups
            names = ", ".join(r for group in groups for r in group.resources) or "nothing"
            problem = (
                f"{pod_set.subject} requests {resource}, but ClusterQueue {pod_set.queue.name} covers only {names}:"
                " it is never admitted"
            )
            fix = f"add {resource} to a resource group of {pod_set.queue.name}, or remove it from requests and limits"
            yield RuleResult(pod_set.job.manifest, f"{pod_set.path}.containers", problem, fix)


def exceeds_quota(linted: LintedManifests) -> Iterator[RuleResult]:
    """Report each pod set that requests more than its ClusterQueue could get with all quota of its cohort free."""
    for pod_set in linted.pod_sets:
        excesses = [
            rejection for rejection in pod_set.assignment.rejections if isinstance(rejection, ExceedsMaxCapacity)
        ]
        if (
            excesses
            and not pod_set.assignment.unavailable_resource
            and pod_set.assignment.mode is FlavorAssignmentMode.NO_FIT
        ):
            reasons = "; ".join(_format_exceeded_quota(rejection) for rejection in excesses[:_REASONS_SHOWN_MAX])
            problem = f"{pod_set.subject} can never be admitted in ClusterQueue {pod_set.queue.name}: {reasons}"
            nearest_rejection = min(
                excesses, key=lambda rejection: rejection.assumed_usage + rejection.request - rejection.capacity
            )
            missing_amount = format_amount(
                nearest_rejection.resource,
                nearest_rejection.assumed_usage + nearest_rejection.request - nearest_rejection.capacity,
            )
            fix = (
                f"run fewer or smaller pods in parallel, or give flavor {nearest_rejection.flavor} {missing_amount}"
                f" more {nearest_rejection.resource}"
            )
            yield RuleResult(pod_set.job.manifest, pod_set.path, problem, fix)


def no_matching_flavor(linted: LintedManifests) -> Iterator[RuleResult]:
    """Report each pod set that may use no flavor of its ClusterQueue: by taints, node selectors or missing flavors."""
    for pod_set in linted.pod_sets:
        rejections = pod_set.assignment.rejections
        if (
            pod_set.assignment.unavailable_resource
            or pod_set.assignment.mode is not FlavorAssignmentMode.NO_FIT
            or not rejections
        ):
            continue
        if all(isinstance(rejection, str) for rejection in rejections):
            reasons = "; ".join(map(str, rejections[:_REASONS_SHOWN_MAX]))
            queue = pod_set.queue.name
            problem = f"no flavor of ClusterQueue {queue} matches {pod_set.subject}: {reasons}. It waits forever"
            fix = "tolerate the taint or change the node selector in the pod template, or choose another queue"
            yield RuleResult(pod_set.job.manifest, pod_set.path, problem, fix)


def asks_for_nothing(linted: LintedManifests) -> Iterator[RuleResult]:
    """Report each pod set with pods that request none of the resources which its ClusterQueue covers."""
    for pod_set in linted.pod_sets:
        covered_resources = [resource for group in pod_set.queue.view.groups for resource in group.resources]
        template = linted.charged_pod_sets(pod_set.job)[pod_set.index].template
        if PODS in covered_resources or any(
            amount for resource, amount in template.requests if resource in covered_resources
        ):
            continue
        if covered_resources and pod_set.job.view.counts[pod_set.index]:
            names = ", ".join(covered_resources)
            problem = f"{pod_set.subject} requests none of {names}: it is admitted even if the queue is full"
            fix = "set the resource requests of its pods"
            yield RuleResult(pod_set.job.manifest, f"{pod_set.path}.containers", problem, fix)


def beyond_limit_range(linted: LintedManifests) -> Iterator[RuleResult]:
    """Report each job whose pods violate a LimitRange of their namespace."""
    ranges_by_namespace: dict[str, list[Obj]] = {}
    for manifest in linted.latest_versions(scheme.LIMIT_RANGE):
        ranges_by_namespace.setdefault(manifest.obj["metadata"].get("namespace", ""), []).append(manifest.obj)
    for job in linted.jobs:
        limit_ranges = ranges_by_namespace.get(job.namespace)
        violation = describe_limit_violations(job.workload, combine_limit_ranges(limit_ranges)) if limit_ranges else ""
        if violation:
            fix = "change the pods' requests and limits to fit the LimitRange, or change the LimitRange"
            yield RuleResult(
                job.manifest,
                job.paths[0],
                f"a LimitRange of namespace {job.namespace} rejects the pods: {violation}",
                fix,
            )


def pod_larger_than_node(linted: LintedManifests) -> Iterator[RuleResult]:
    """Report pod sets whose pods are larger than every node that they may run on, in some or all of their flavors."""
    yield from _report_node_mismatches(linted, "pod-larger-than-node")


def no_such_node(linted: LintedManifests) -> Iterator[RuleResult]:
    """Report pod sets whose pods select node labels that no node has, in some or all of their flavors."""
    yield from _report_node_mismatches(linted, "no-such-node")


def untolerated_taint(linted: LintedManifests) -> Iterator[RuleResult]:
    """Report pod sets whose pods do not tolerate the taints of the nodes that some or all of their flavors select."""
    yield from _report_node_mismatches(linted, "untolerated-taint")


def too_few_nodes(linted: LintedManifests) -> Iterator[RuleResult]:
    """Report pod sets with more parallel pods than all suitable nodes can hold, in some or all of their flavors."""
    yield from _report_node_mismatches(linted, "too-few-nodes")


def _report_node_mismatches(linted: LintedManifests, rule: str) -> Iterator[RuleResult]:
    for pod_set, mismatch_by_flavors in linted.node_mismatches:
        mismatches = {flavors: mismatch for flavors, mismatch in mismatch_by_flavors.items() if mismatch is not None}
        if not mismatches or next(iter(mismatches.values())).rule != rule:
            continue
        fits_nowhere = len(mismatches) == len(mismatch_by_flavors)
        flavors, mismatch = next(iter(mismatches.items()))
        flavor_note = f"in flavor {', '.join(flavors)} " if any(flavors) and not fits_nowhere else ""
        problem = mismatch.problem
        if any(linted.flavors[name][1].topology for name in flavors):
            problem = f"{pod_set.subject} is never admitted {flavor_note}".rstrip() + f": {problem}"
        elif pod_set.queue.view.groups:
            problem = f"{pod_set.subject} is admitted {flavor_note}and its pods stay Pending: {problem}"
        severity = None if fits_nowhere else Severity.WARNING
        yield RuleResult(pod_set.job.manifest, pod_set.path, problem, mismatch.fix, severity=severity)


def _format_exceeded_quota(rejection: ExceedsMaxCapacity) -> str:
    requested_amount = format_amount(rejection.resource, rejection.assumed_usage + rejection.request)
    capacity_text = format_amount(rejection.resource, rejection.capacity)
    return f"{requested_amount} {rejection.resource} requested, at most {capacity_text} in flavor {rejection.flavor}"


# Rules on preemption and fair sharing: policies without effect, contradictions, and endless loops.


def preemption_loop(linted: LintedManifests) -> Iterator[RuleResult]:
    """Report two jobs that can preempt each other endlessly, because one of them allows partial admission.

    With its minimum pod count, the first job fits the nominal quota of its ClusterQueue and reclaims quota from the
    second job. Once that quota is free, the first job would borrow to run all its pods. The second job also borrows, is
    ordered before the first job, and takes the quota back.
    """
    for pod_set in linted.pod_sets:
        reclaim_policy = pod_set.queue.view.preemption.reclaim_within_cohort
        may_reclaim = reclaim_policy != "Never" if linted.fair_sharing else reclaim_policy == "Any"
        contended_quota = _borrowed_only_at_full_count(pod_set) if may_reclaim and pod_set.queue.node.parent else ()
        rival_job = _find_rival_job(linted, pod_set, contended_quota) if contended_quota else None
        if rival_job is not None:
            view = pod_set.queue.view
            problem = (
                f"with fewer pods {pod_set.subject} reclaims quota from {rival_job.view.key}; with all pods it borrows"
                " and is ordered after that job: the two can preempt each other forever"
            )
            fix = f"remove the minimum pod count, or give ClusterQueue {view.name} the quota for all pods"
            fix += "" if linted.fair_sharing else ", or set its reclaimWithinCohort to LowerPriority"
            yield RuleResult(pod_set.job.manifest, pod_set.path, problem, fix)


def _borrowed_only_at_full_count(pod_set: LintedPodSet) -> frozenset[int]:
    view, node = pod_set.job.view.pod_sets[pod_set.index], pod_set.queue.node
    min_count = view.min_count
    usage = dict(pod_set.assignment.assigned_flavors.usage)
    if not min_count or min_count >= view.count or any(amount > node.subtree_quota[fr] for fr, amount in usage.items()):
        return frozenset()
    return frozenset([fr for fr, amount in usage.items() if amount * view.count > node.subtree_quota[fr] * min_count])


def _find_rival_job(linted: LintedManifests, pod_set: LintedPodSet, contended_frs: Container[int]) -> LintedJob | None:
    for candidate in linted.pod_sets:
        if candidate.queue is pod_set.queue or candidate.queue.node.path[0] is not pod_set.queue.node.path[0]:
            continue
        uses_contended_quota = any(
            amount and fr in contended_frs for fr, amount in candidate.assignment.assigned_flavors.usage
        )
        if uses_contended_quota and (linted.fair_sharing or candidate.job.view.priority >= pod_set.job.view.priority):
            return candidate.job
    return None


def contradicting_priorities(linted: LintedManifests) -> Iterator[RuleResult]:
    """Report two jobs per ClusterQueue whose WorkloadPriorityClasses and PriorityClasses order them in opposite ways.

    Of several such pairs in a ClusterQueue, only the first is reported.
    """
    priority_classes = {m.obj["metadata"]["name"]: m.obj for m in linted.latest_versions(scheme.PRIORITY_CLASS)}
    for name, jobs in linted.jobs_by_queue.items():
        jobs_by_priorities = {_queue_and_pod_priority(job, priority_classes): job for job in jobs}
        for priorities, other_priorities in combinations(jobs_by_priorities, 2):
            (queue_priority, pod_priority), (other_queue_priority, other_pod_priority) = priorities, other_priorities
            if (queue_priority - other_queue_priority) * (pod_priority - other_pod_priority) < 0:
                first_priorities, second_priorities = sorted((priorities, other_priorities), reverse=True)
                first_job, second_job = jobs_by_priorities[first_priorities], jobs_by_priorities[second_priorities]
                problem = (
                    f"ClusterQueue {name} admits this job before {second_job.view.key}, but its pods have the"
                    " lower priority: if nodes are scarce, kube-scheduler favors the pods that the queue would preempt"
                )
                fix = "choose WorkloadPriorityClasses and PriorityClasses that order both jobs in the same way"
                yield RuleResult(first_job.manifest, f"{first_job.paths[0]}.spec.priorityClassName", problem, fix)
                break


def zero_weight(linted: LintedManifests) -> Iterator[RuleResult]:
    """Report each ClusterQueue and Cohort with a fair sharing weight of 0."""
    for manifest, weight in [
        *((manifest, view.weight) for manifest, view in linted.queue_versions),
        *((manifest, view.weight) for manifest, view in linted.cohorts.values()),
    ]:
        if weight == 0:
            problem = "a fair sharing weight of 0 makes the share infinite: only unrequested quota is borrowed"
            fix = "set a weight above 0, unless this is intended"
            yield RuleResult(
                manifest, "spec.fairSharing.weight", problem, fix, [(manifest, _fair_sharing_weight_patch("1"))]
            )


def usage_order_ignored(linted: LintedManifests) -> Iterator[RuleResult]:
    """Report settings of admission fair sharing that have no effect, because `admissionFairSharing` is not set.

    They are `admissionScope` of ClusterQueues, and weights of LocalQueues. A weight also needs an `admissionScope`.
    """
    problem = "without admissionFairSharing in Kueue's Configuration or in a Scenario, this field has no effect"
    fix = "set admissionFairSharing, or remove the field"
    configurations = [each.obj for each in linted.all_versions(scheme.CONFIGURATION)]
    scenarios = [each.obj.get("spec") or {} for each in linted.all_versions(scheme.SCENARIO)]
    is_enabled = any("admissionFairSharing" in each for each in [*configurations, *scenarios])
    for manifest, view in linted.queue_versions:
        if view.is_usage_based and not is_enabled:
            yield RuleResult(manifest, "spec.admissionScope.admissionMode", problem, fix)
    usage_based_queues = {view.name: None for _, view in linted.queue_versions if view.is_usage_based}
    for manifest, local_queue in linted.local_queues.values():
        if local_queue.weight == 1 or (is_enabled and local_queue.cluster_queue in usage_based_queues):
            continue
        if is_enabled:
            problem = f"ClusterQueue {local_queue.cluster_queue} ignores weights: its admissionScope is not set"
            fix = "set admissionScope.admissionMode: UsageBasedAdmissionFairSharing, or remove the field"
        yield RuleResult(manifest, "spec.fairSharing.weight", problem, fix)


def borrowing_ignored(linted: LintedManifests) -> Iterator[RuleResult]:
    """Report each ClusterQueue that sets borrowWithinCohort if fair sharing is enabled: the field has no effect."""
    for manifest, view in linted.queue_versions:
        if linted.fair_sharing and view.preemption.borrow_within_cohort:
            problem = "borrowWithinCohort has no effect under fair sharing: shares determine the victims"
            fix = "remove borrowWithinCohort, or disable fair sharing"
            patches = [(manifest, {"spec": {"preemption": {"borrowWithinCohort": None}}})]
            yield RuleResult(manifest, "spec.preemption.borrowWithinCohort", problem, fix, patches)


def reclaim_without_cohort(linted: LintedManifests) -> Iterator[RuleResult]:
    """Report each ClusterQueue that sets reclaimWithinCohort, but cannot reclaim anything.

    Its cohort tree has neither another ClusterQueue nor a Cohort with quota of its own.
    """
    for manifest, view in linted.queue_versions:
        if view.preemption.reclaim_within_cohort != "Never" and not _has_cohort_neighbors(linted, view):
            reason = f"no other queue is in cohort {view.cohort}" if view.cohort else "the queue is in no cohort"
            problem = f"reclaimWithinCohort has no effect: {reason}, so no quota can be reclaimed"
            fix = "set a cohortName that other queues use, or remove reclaimWithinCohort"
            yield RuleResult(manifest, "spec.preemption.reclaimWithinCohort", problem, fix)


def borrowing_without_lender(linted: LintedManifests) -> Iterator[RuleResult]:
    """Report each borrowingLimit above 0 without effect: no other member of the cohort, and no Cohort, lends quota.

    Nothing is reported for a flavor and resource of which the ClusterQueue has no quota either.
    """
    snapshot = linted.snapshot
    for name, (manifest, view) in linted.queues.items():
        node = snapshot.queues[name].node
        for group_index, group in enumerate(view.groups):
            for quota in group.quotas:
                fr = snapshot.flavor_resource_id(quota.flavor, quota.resource)
                if quota.borrowing_limit and node.parent and 0 < node.potential_quota[fr] <= node.subtree_quota[fr]:
                    flavor_index = group.flavors.index(quota.flavor)
                    problem = (
                        f"no member of cohort {view.cohort} lends {quota.resource} of flavor {quota.flavor}:"
                        " its borrowingLimit has no effect"
                    )
                    fix = "give other members or the Cohort quota to lend, or raise the nominalQuota"
                    path = f"spec.resourceGroups[{group_index}].flavors[{flavor_index}]"
                    yield RuleResult(manifest, path, problem, fix)


def nothing_lent(linted: LintedManifests) -> Iterator[RuleResult]:
    """Report each Cohort of several members in which no member lends quota, because each lendingLimit is 0."""
    snapshot = linted.snapshot
    for name, cohort in snapshot.cohorts.items():
        child_nodes = list(cohort.children.values())
        lendable_frs = [fr for fr in cohort.declared_frs if sum(child.subtree_quota[fr] for child in child_nodes)]
        if len(child_nodes) > 1 and lendable_frs and not any(cohort.subtree_quota[fr] for fr in lendable_frs):
            manifest = _first_cohort_member(linted, name)
            if manifest is not None:
                problem = f"every member of cohort {name} has a lendingLimit of 0: no queue can borrow quota"
                fix = "raise the lendingLimits, or remove the cohort"
                yield RuleResult(manifest, "spec.cohortName", problem, fix)


def priority_without_preemption(linted: LintedManifests) -> Iterator[RuleResult]:
    """Report each ClusterQueue whose quota admits its job of lowest or of highest priority, but not both.

    Only ClusterQueues with withinClusterQueue: Never are reported. The pods of the highest priority job could preempt
    other pods by their PriorityClass, but are never created.
    """
    classes = {m.obj["metadata"]["name"]: m.obj for m in linted.latest_versions(scheme.PRIORITY_CLASS)}
    for manifest, view in linted.queue_versions:
        if view.preemption.within_cluster_queue != "Never" or linted.is_redefined_later(manifest):
            continue
        jobs = sorted(linted.jobs_by_queue[view.name], key=lambda job: job.view.priority)
        if len(jobs) < 2 or not _may_preempt(jobs[-1], classes) or jobs[0].view.priority == jobs[-1].view.priority:
            continue
        lowest_job, highest_job = jobs[0], jobs[-1]
        if _fits_only_one_job(linted, view, lowest_job, highest_job):
            problem = (
                f"the quota holds {lowest_job.view.key} or {highest_job.view.key}, not both, and withinClusterQueue is"
                " Never: the job"
                " of higher priority waits until the other ends, and its pods, which could preempt, are never created"
            )
            fix = "set withinClusterQueue to LowerPriority, or give quota for both, so that kube-scheduler can decide"
            patches = [(manifest, {"spec": {"preemption": {"withinClusterQueue": "LowerPriority"}}})]
            yield RuleResult(manifest, "spec.preemption.withinClusterQueue", problem, fix, patches)


def _fits_only_one_job(linted: LintedManifests, view: ClusterQueueView, job_a: LintedJob, job_b: LintedJob) -> bool:
    pod_sets = [each for each in linted.pod_sets if each.queue.name == view.name and each.job in (job_a, job_b)]
    if not all(pod_set.assignment.mode is FlavorAssignmentMode.FIT for pod_set in pod_sets):
        return False
    potential_quota = linted.snapshot.queues[view.name].node.potential_quota
    total_usage: dict[int, int] = {}
    for pod_set in pod_sets:
        for fr, amount in pod_set.assignment.assigned_flavors.usage:
            total_usage[fr] = total_usage.get(fr, 0) + amount
    return any(amount > potential_quota[fr] for fr, amount in total_usage.items())


def _may_preempt(job: LintedJob, priority_classes: Mapping[str, Obj]) -> bool:
    names = [(template.get("spec") or {}).get("priorityClassName") or "" for template in job.templates]
    job_classes = [priority_classes[name] for name in names if name in priority_classes]
    return bool(job_classes) and all(each.get("preemptionPolicy") != "Never" for each in job_classes)


def _queue_and_pod_priority(job: LintedJob, priority_classes: Mapping[str, Obj]) -> tuple[int, int]:
    name = ((job.templates[0].get("spec") or {}).get("priorityClassName") if job.templates else None) or ""
    value: int = priority_classes[name]["value"] if name in priority_classes else 0
    return job.view.priority, value


def _has_cohort_neighbors(linted: LintedManifests, view: ClusterQueueView) -> bool:
    """Return whether the cohort tree of a ClusterQueue has other ClusterQueues, or Cohorts with quota of their own."""
    cohorts = linted.snapshot.cohorts
    if view.cohort not in cohorts:
        return False
    root = cohorts[view.cohort].path[0]
    has_other_queues = any(queue.name != view.name for queue in linted.snapshot.queues_below(root))
    return has_other_queues or any(any(each.nominal.values()) for each in cohorts.values() if each.path[0] is root)


def _first_cohort_member(linted: LintedManifests, cohort: str) -> Manifest | None:
    return next((manifest for manifest, view in linted.queues.values() if view.cohort == cohort), None)


def _fair_sharing_weight_patch(weight: str) -> Mapping[str, Any]:
    return {"spec": {"fairSharing": {"weight": weight}}}
