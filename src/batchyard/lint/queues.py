"""Rules on queues: unusable or stopped queues, blocking heads, and work that can never be admitted."""

from collections.abc import Iterator
from typing import Any, Final

from batchyard.api import scheme
from batchyard.api.manifests import Manifest
from batchyard.api.meta import Obj, format_amount
from batchyard.api.views.pods import PODS
from batchyard.api.views.workload import ClusterQueueView
from batchyard.lint.configuration import Configuration
from batchyard.lint.findings import RuleResult, Severity
from batchyard.lint.workloads import LintedWork
from batchyard.scheduling.cluster_queue import FlavorAssignmentMode
from batchyard.scheduling.messages import ExceedsMaxCapacity
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
