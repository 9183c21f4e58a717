"""Queues that nobody can use, that admit nothing, or in which one waits behind another for no good reason."""

from collections.abc import Iterator
from typing import Any, Final

from batchyard.api import scheme
from batchyard.api.manifests import Manifest
from batchyard.api.quantity import format_amount
from batchyard.api.views.queues import ClusterQueueView
from batchyard.core.lint.configuration import Configuration
from batchyard.core.lint.findings import Found, Severity
from batchyard.core.lint.works import Work

_NAME_LABEL: Final = "kubernetes.io/metadata.name"
#: Nobody means to have less memory than this, and MiB forgotten look like it.
_LITTLE_MEMORY: Final = 1 << 20


def null_namespace_selector(config: Configuration) -> Iterator[Found]:
    """A ClusterQueue that selects no namespace at all."""
    for manifest, view in config.queue_versions:
        if view.namespaces is None:
            problem = "there is no namespaceSelector, which selects no namespace: nothing is ever admitted here"
            fix = "write `namespaceSelector: {}` for all namespaces, or labels of those that may use the queue"
            every: dict[str, Any] = {}
            patches = [(manifest, {"spec": {"namespaceSelector": every}})]
            yield Found(manifest, "spec.namespaceSelector", problem, fix, patches)


def namespace_not_selected(config: Configuration) -> Iterator[Found]:
    """LocalQueues in namespaces that their ClusterQueue does not select."""
    for manifest, view in config.local_queues.values():
        queue = config.queues.get(view.cluster_queue)
        if queue is None or queue[1].namespaces is None:
            continue
        namespace = view.key.partition("/")[0]
        found = config.find(scheme.NAMESPACE, namespace)
        asked = {requirement.key for requirement in queue[1].namespaces.requirements}
        if found is None and asked - {_NAME_LABEL}:
            continue  # its labels are not known
        labels = {_NAME_LABEL: namespace, **((found.obj["metadata"].get("labels") or {}) if found else {})}
        if not queue[1].namespaces.matches(labels):
            problem = (
                f"ClusterQueue {view.cluster_queue} does not select namespace {namespace}:"
                " what is queued here waits for ever"
            )
            fix = f"label the namespace as {view.cluster_queue} wants it, or let its namespaceSelector select it"
            yield Found(manifest, "metadata.namespace", problem, fix)


def queue_stopped(config: Configuration) -> Iterator[Found]:
    """Queues that are stopped while work is written for them."""
    for name, (manifest, view) in config.queues.items():
        works = config.works_by_queue[name]
        if view.stop_policy != "None" and works:
            problem = f"stopPolicy is {view.stop_policy}: the {_counted(works)} for this queue wait until it is None"
            yield Found(manifest, "spec.stopPolicy", problem, "set stopPolicy to None", [_running(manifest)])
    for manifest, local in config.local_queues.values():
        is_stopped = local.stop_policy != "None"
        works = [work for work in config.works if work.view.queue == local.key] if is_stopped else []
        if works:
            problem = f"stopPolicy is {local.stop_policy}: the {_counted(works)} for this queue wait until it is None"
            yield Found(manifest, "spec.stopPolicy", problem, "set stopPolicy to None", [_running(manifest)])


def queue_without_local_queue(config: Configuration) -> Iterator[Found]:
    """ClusterQueues that no LocalQueue leads to."""
    used = {view.cluster_queue: None for _, view in config.local_queues.values()}
    for name, (manifest, _) in config.queues.items():
        if name not in used:
            problem = f"no LocalQueue among these files leads to ClusterQueue {name}: nobody can queue here"
            yield Found(manifest, "metadata.name", problem, "make a LocalQueue in each namespace that may use it")


def strict_fifo_blocking(config: Configuration) -> Iterator[Found]:
    """Queues in which the first in line keeps back others that could start."""
    for name, (manifest, view) in config.queues.items():
        if not view.strict_fifo:
            continue
        works = config.works_by_queue[name]
        shapes = {_shape(config, view, work): work for work in works}
        if len(shapes) > 1:
            large, small = _extremes(list(shapes.values()))
            problem = (
                f"the queue is StrictFIFO, and what waits in it is not alike: while {large} is first in line and"
                f" finds no quota, {small} and all others wait, even where another flavor would have room for them"
            )
        elif not works and len(view.flavors) > 1:
            problem = (
                "the queue is StrictFIFO with several flavors: while the first in line finds no quota, all others wait,"
                " even where another flavor has room for them"
            )
        else:
            continue
        fix = "set queueingStrategy to BestEffortFIFO, or give large and small work queues of their own"
        patches = [(manifest, {"spec": {"queueingStrategy": "BestEffortFIFO"}})]
        yield Found(manifest, "spec.queueingStrategy", problem, fix, patches, severity=None if works else Severity.NOTE)


def tiny_memory_quota(config: Configuration) -> Iterator[Found]:
    """Quota of memory in bytes, where somebody left the unit out."""
    for manifest, groups in config.quotas:
        for number, group in enumerate(groups):
            for quota in group.quotas:
                if quota.resource == "memory" and 0 < quota.nominal < _LITTLE_MEMORY:
                    at = group.flavors.index(quota.flavor)
                    amount = format_amount("memory", quota.nominal)
                    problem = f"the quota of memory in flavor {quota.flavor} is {amount} bytes: no pod fits into that"
                    fix = f"write the unit: {amount}Gi or {amount}Mi"
                    yield Found(manifest, f"spec.resourceGroups[{number}].flavors[{at}]", problem, fix)


def _shape(config: Configuration, view: ClusterQueueView, work: Work) -> object:
    """What decides whether quota will do: how much of what each pod set asks for, and which flavors it can use."""
    return tuple(
        [
            (
                tuple((resource, amount * count) for resource, amount in pod_set.template.requests),
                tuple(config.snapshot.obstacles.of(pod_set.template, group.flavors) for group in view.groups),
            )
            for pod_set, count in zip(work.view.pod_sets, work.view.counts, strict=True)
        ]
    )


def _extremes(works: list[Work]) -> tuple[str, str]:
    """The names of the largest and of the smallest."""
    ranked = sorted(works, key=lambda work: (_size(work), work.view.key))
    return ranked[-1].view.key, ranked[0].view.key


def _size(work: Work) -> int:
    sets = zip(work.view.pod_sets, work.view.counts, strict=True)
    return sum(count * sum(amount for _, amount in pod_set.template.requests) for pod_set, count in sets)


def _counted(works: list[Work]) -> str:
    return f"{len(works)} job{'s' * (len(works) != 1)}"


def _running(manifest: Manifest) -> tuple[Manifest, dict[str, object]]:
    return manifest, {"spec": {"stopPolicy": "None"}}
