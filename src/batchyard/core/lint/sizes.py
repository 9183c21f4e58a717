"""Work that is too large, or asks for what is not there: told before it waits for ever.

Whether a Workload could be admitted is asked of the scheduler's own search, with nothing in use; whether a pod fits a
node, of the rules of placement.
"""

from collections.abc import Iterator
from typing import Final

from batchyard.api import scheme
from batchyard.api.meta import Obj
from batchyard.api.quantity import format_amount
from batchyard.api.views.pods import PODS
from batchyard.core.limit_ranges import out_of_bounds, summed_up
from batchyard.core.lint.configuration import Configuration
from batchyard.core.lint.findings import Found, Severity
from batchyard.core.quality import Mode
from batchyard.core.reasons import TooLarge

_SHOWN_MAX: Final = 3


def uncovered_resource(config: Configuration) -> Iterator[Found]:
    """Pods that ask for a resource which their queue knows nothing of."""
    for part in config.parts:
        resource = part.assignment.unavailable
        if resource:
            groups = part.queue.view.groups
            covered = ", ".join(r for group in groups for r in group.resources) or "nothing"
            problem = (
                f"{part.who} requests {resource}, and ClusterQueue {part.queue.name} covers only {covered}:"
                " it is never admitted"
            )
            fix = f"add {resource} to a resource group of {part.queue.name}, or leave it out of requests and limits"
            yield Found(part.work.manifest, f"{part.path}.containers", problem, fix)


def exceeds_quota(config: Configuration) -> Iterator[Found]:
    """Pod sets larger than what their queue could ever have."""
    for part in config.parts:
        large = [fact for fact in part.assignment.facts if isinstance(fact, TooLarge)]
        if large and not part.assignment.unavailable and part.assignment.mode is Mode.NO_FIT:
            told = "; ".join(_too_large(fact) for fact in large[:_SHOWN_MAX])
            problem = f"{part.who} could never be admitted in ClusterQueue {part.queue.name}: {told}"
            best = min(large, key=lambda fact: fact.assumed + fact.request - fact.capacity)
            more = format_amount(best.resource, best.assumed + best.request - best.capacity)
            fix = f"run fewer or smaller pods at once, or give flavor {best.flavor} {more} more {best.resource}"
            yield Found(part.work.manifest, part.path, problem, fix)


def no_matching_flavor(config: Configuration) -> Iterator[Found]:
    """Pods that no flavor of their queue is for, going by taints and labels."""
    for part in config.parts:
        facts = part.assignment.facts
        if part.assignment.unavailable or part.assignment.mode is not Mode.NO_FIT or not facts:
            continue
        if all(isinstance(fact, str) for fact in facts):
            told = "; ".join(map(str, facts[:_SHOWN_MAX]))
            problem = f"no flavor of ClusterQueue {part.queue.name} is for {part.who}: {told}. It waits for ever"
            fix = "tolerate the taint or change the node selector in the pod template, or choose another queue"
            yield Found(part.work.manifest, part.path, problem, fix)


def asks_for_nothing(config: Configuration) -> Iterator[Found]:
    """Pods that request nothing of what their queue counts."""
    for part in config.parts:
        covered = [resource for group in part.queue.view.groups for resource in group.resources]
        template = part.work.view.pod_sets[part.index].template
        if PODS in covered or any(amount for resource, amount in template.requests if resource in covered):
            continue
        if covered and part.work.view.counts[part.index]:
            problem = (
                f"{part.who} requests none of {', '.join(covered)}: it is admitted at once, however full the queue is"
            )
            yield Found(part.work.manifest, f"{part.path}.containers", problem, "say in resources what its pods need")


def beyond_limit_range(config: Configuration) -> Iterator[Found]:
    """Pods that a LimitRange of their namespace refuses."""
    by_namespace: dict[str, list[Obj]] = {}
    for manifest in config.last(scheme.LIMIT_RANGE):
        by_namespace.setdefault(manifest.obj["metadata"].get("namespace", ""), []).append(manifest.obj)
    for work in config.works:
        ranges = by_namespace.get(work.namespace)
        wrong = out_of_bounds(work.workload, summed_up(ranges)) if ranges else ""
        if wrong:
            fix = "stay within the LimitRange, or change it"
            yield Found(work.manifest, work.paths[0], f"a LimitRange refuses its pods: {wrong}", fix)


# --- on nodes ---


def pod_larger_than_node(config: Configuration) -> Iterator[Found]:
    """Pods that are larger than any node they may go to."""
    yield from _unplaced(config, "pod-larger-than-node")


def no_such_node(config: Configuration) -> Iterator[Found]:
    """Pods that ask for labels which no node has."""
    yield from _unplaced(config, "no-such-node")


def untolerated_taint(config: Configuration) -> Iterator[Found]:
    """Pods that do not tolerate the taints of any node they may go to."""
    yield from _unplaced(config, "untolerated-taint")


def too_few_nodes(config: Configuration) -> Iterator[Found]:
    """Jobs with more pods than all nodes together have room for."""
    yield from _unplaced(config, "too-few-nodes")


def _unplaced(config: Configuration, rule: str) -> Iterator[Found]:
    """An error where the pods fit nowhere whatever flavor they get, a warning where only with some."""
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
        yield Found(part.work.manifest, part.path, problem, fit.fix, severity=severity)


def _too_large(fact: TooLarge) -> str:
    asked, most = (format_amount(fact.resource, amount) for amount in (fact.assumed + fact.request, fact.capacity))
    return f"{asked} {fact.resource} asked, {most} at most in flavor {fact.flavor}"
