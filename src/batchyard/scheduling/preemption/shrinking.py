"""Partial preemption: Workloads that allow it are shrunk to their minimum instead of evicted, if that frees enough.

A Workload allows it with the annotation `kueue.x-k8s.io/partial-preemption`, and its pod sets have `minCount`. The
pods above `minCount` are its releasable part, which takes part in the search for victims like a Workload of its own.
Kueue only plans the feature; the rules here are batchyard's.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from batchyard.api.meta import Obj, annotation, is_elastic, is_true
from batchyard.api.well_known import PARTIAL_PREEMPTION
from batchyard.scheduling.cluster_queue import AdmittedWorkload
from batchyard.scheduling.preemption.context import PreemptionContext, PreemptionTarget
from batchyard.scheduling.snapshot import Snapshot

#: The condition of a Workload that is being shrunk (True), or was shrunk (False).
PARTIALLY_PREEMPTED: Final = "PartiallyPreempted"


def releasable_part(holder: AdmittedWorkload, snapshot: Snapshot) -> AdmittedWorkload | None:
    """Return the part of a Workload with quota that a partial preemption releases; None if it cannot be shrunk.

    A Workload that is being shrunk already counts as evicted. Workloads with topology domains cannot be shrunk: the Job
    controller chooses the pods that leave, and as in Kueue, a slice that shrinks keeps its domains until another slice
    replaces it. So the freed domains are unknown, and quota without domains would be of no use to the preemptor.
    """
    obj = holder.obj
    if not holder.pod_sets or obj is None or holder.evicted or not holder.is_admitted or holder.topology_usage:
        return None
    if not allows_shrinking(obj):
        return None
    min_counts = {each["name"]: each.get("minCount") for each in obj["spec"].get("podSets") or ()}
    usage: dict[int, int] = {}
    for held in holder.pod_sets:
        min_count = min_counts.get(held.name)
        if min_count is None or held.pods <= min_count:
            continue
        for resource, amount in held.usage:
            if resource in held.flavors:
                fr = snapshot.flavor_resource_id(held.flavors[resource], resource)
                usage[fr] = usage.get(fr, 0) + amount // held.pods * (held.pods - min_count)
    if not any(usage.values()):
        return None
    part_usage = tuple(sorted(usage.items()))
    frs = frozenset([fr for fr, amount in part_usage if amount])
    is_shrinking = is_true(obj, PARTIALLY_PREEMPTED)
    return replace(holder, usage=part_usage, flavor_resources=frs, evicted=is_shrinking, whole=holder)


def allows_shrinking(workload: Obj) -> bool:
    """Return whether a Workload belongs to an elastic job that allows partial preemption."""
    return annotation(workload, PARTIAL_PREEMPTION) == "true" and is_elastic(workload)


def pod_counts_after(part: AdmittedWorkload) -> tuple[int, int]:
    """Return how many pods a Workload keeps after a partial preemption, and how many it has now."""
    assert part.whole is not None
    assert part.whole.obj is not None
    min_counts = {each["name"]: each.get("minCount") for each in part.whole.obj["spec"].get("podSets") or ()}
    kept = 0
    for held in part.whole.pod_sets:
        min_count = min_counts.get(held.name)
        kept += held.pods if min_count is None else min(held.pods, min_count)
    return kept, sum([held.pods for held in part.whole.pod_sets])


def remaining_holder(part: AdmittedWorkload) -> AdmittedWorkload:
    """Return the Workload as it holds quota after the partial preemption."""
    assert part.whole is not None
    released = dict(part.usage)
    usage = tuple([(fr, amount - released.get(fr, 0)) for fr, amount in part.whole.usage])
    return replace(part.whole, usage=usage, pod_sets=())


def shrink_where_possible(
    context: PreemptionContext, targets: list[PreemptionTarget], offer: Callable[[bool], list[PreemptionTarget]]
) -> list[PreemptionTarget]:
    """Return the preemption targets with as few evictions as the releasable parts of Workloads allow.

    `targets` are those without partial preemption. `offer` returns the releasable parts that the preemptor may also
    take, the best victims first; its argument is whether the preemptor borrows. If the preemptor still fits, each
    eviction is replaced by that Workload's part, then each eviction is dropped, then each part. So no returned target
    can be dropped, and no eviction can be replaced.
    """
    snapshot = context.snapshot
    if not targets:
        return targets
    with snapshot.what_if():
        for target in targets:
            snapshot.release(target.workload)
        may_borrow = not context.fits(may_borrow=False)
    target_keys = [target.workload.key for target in targets]
    offered = offer(may_borrow)
    parts = [each for each in offered if each.workload.key not in target_keys]
    if not offered and all(releasable_part(target.workload, snapshot) is None for target in targets):
        return targets
    with snapshot.what_if():
        for target in [*targets, *parts]:
            snapshot.release(target.workload)
        evictions, replaced = _replace_by_parts(context, targets, may_borrow=may_borrow)
        evictions = _needed_targets(context, evictions, may_borrow=may_borrow)
        rank = context.order_key
        parts = sorted([*parts, *replaced], key=lambda target: rank(target.workload))
        return [*evictions, *_needed_targets(context, parts, may_borrow=may_borrow)]


def _replace_by_parts(
    context: PreemptionContext, targets: Sequence[PreemptionTarget], *, may_borrow: bool
) -> tuple[list[PreemptionTarget], list[PreemptionTarget]]:
    """Return the targets whose part is not enough, and the parts of the others."""
    snapshot = context.snapshot
    evictions: list[PreemptionTarget] = []
    replaced: list[PreemptionTarget] = []
    for target in reversed(targets):
        part = releasable_part(target.workload, snapshot)
        if part is not None:
            snapshot.release(target.workload, 1)
            snapshot.release(part)
            if context.fits(may_borrow=may_borrow):
                replaced.append(target._replace(workload=part))
                continue
            snapshot.release(part, 1)
            snapshot.release(target.workload)
        evictions.insert(0, target)
    return evictions, replaced


def _needed_targets(
    context: PreemptionContext, targets: Sequence[PreemptionTarget], *, may_borrow: bool
) -> list[PreemptionTarget]:
    """Return the targets without which the preemptor does not fit; the last ones are dropped first."""
    needed: list[PreemptionTarget] = []
    for target in reversed(targets):
        context.snapshot.release(target.workload, 1)
        if not context.fits(may_borrow=may_borrow):
            context.snapshot.release(target.workload)
            needed.insert(0, target)
    return needed
