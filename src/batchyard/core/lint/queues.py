"""Queues that nobody can use."""

from collections.abc import Iterator

from batchyard.api import scheme, well_known
from batchyard.core.lint.configuration import Configuration
from batchyard.core.lint.findings import Found, Severity

_SELECTOR = "spec.namespaceSelector"


def null_namespace_selector(config: Configuration) -> Iterator[Found]:
    """A ClusterQueue that selects no namespace at all."""
    for manifest, view in config.queue_versions:
        if view.namespaces is None:
            yield Found(
                manifest,
                _SELECTOR,
                "there is no namespaceSelector, which selects no namespace: nothing is ever admitted here",
                "write `namespaceSelector: {}` for all namespaces, or labels of those that may use the queue",
                [(manifest, {"spec": {"namespaceSelector": {}}})],
            )


def unknown_local_queue(config: Configuration) -> Iterator[Found]:
    """Work that names a LocalQueue which is not there."""
    known = config.knows(scheme.LOCAL_QUEUE)
    for work in config.works:
        if work.queue and work.view.queue not in config.local_queues:
            is_ours = group_of(work.obj)
            path = f"metadata.labels[{well_known.QUEUE_NAME}]" if is_ours else "spec.queueName"
            there = ", ".join(sorted(_names_in(config, work.namespace))) or "none"
            problem = f"there is no LocalQueue {work.queue} in namespace {work.namespace}: it waits for ever"
            if not known:
                problem = f"the LocalQueue {work.queue} is not among these files, so nothing is said of its quota"
            fix = f"name one of that namespace (there: {there}), or make it"
            yield Found(work.manifest, path, problem, fix, severity=None if known else Severity.NOTE)


def group_of(obj: object) -> bool:
    """Whether the queue is named by a label."""
    return isinstance(obj, dict) and obj["kind"] != "Workload"


def _names_in(config: Configuration, namespace: str) -> list[str]:
    prefix = f"{namespace}/"
    return [key.removeprefix(prefix) for key in config.local_queues if key.startswith(prefix)]
