"""Corrections of one field that keeps a Workload out of scheduling, verified by simulation."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final, NamedTuple

from batchyard.api.meta import Obj, selector
from batchyard.api.views.workload import ClusterQueueView, WorkloadView
from batchyard.explain.cohort_simulation import CohortSimulation, DecisionLimitReached, HypotheticalChange
from batchyard.explain.proposals import FIX, json_patch, merge_patch
from batchyard.explain.searches import Patch, Proposal
from batchyard.scheduling.cluster_queue import ClusterQueue
from batchyard.scheduling.cycle import SchedulingPolicy
from batchyard.scheduling.scheduler_cache import SchedulerCache
from batchyard.scheduling.workload import lifecycle

_STOP_POLICY_NONE: Final = {"spec": {"stopPolicy": "None"}}


class _Fix(NamedTuple):
    """A correction of what keeps a Workload out of scheduling: text, patch, and the resulting ClusterQueue view."""

    text: str
    patch: Patch
    view: ClusterQueueView


def propose_fixes(
    workload: Obj, view: WorkloadView, queue: ClusterQueue, scheduler_cache: SchedulerCache, policy: SchedulingPolicy
) -> Iterator[Proposal]:
    """Yield the correction of a Workload's only configuration error, if the scheduler would then admit the Workload."""
    fixes = list(_possible_fixes(workload, view, queue, scheduler_cache))
    if len(fixes) != 1:
        return
    fix, simulation = fixes[0], CohortSimulation(scheduler_cache, policy, view, queue)
    try:
        if simulation.admits(HypotheticalChange(queues={queue.name: fix.view}, activates_queue=True)):
            yield Proposal(FIX, fix.text, (fix.patch,))
    except DecisionLimitReached:
        return
    finally:
        simulation.close()


def _possible_fixes(workload: Obj, view: WorkloadView, queue: ClusterQueue, cache: SchedulerCache) -> Iterator[_Fix]:
    """Yield a fix for each cause that one field can correct, such as a stopPolicy; nothing if other errors exist."""
    started_view, labels = replace(queue.view, stop_policy="None"), cache.namespaces.get(view.namespace)
    if not cache.readiness_of_view(started_view).active or queue.is_in_cohort_cycle or labels is None:
        return
    if not lifecycle.is_active(workload):
        patch = merge_patch("Workload", view.name, {"spec": {"active": True}}, view.namespace)
        yield _Fix("set spec.active of the Workload to true", patch, started_view)
    local_queue = cache.workload_cache.local_queues.get(view.queue)
    if local_queue is not None and local_queue.stop_policy != "None":
        name = view.queue.partition("/")[2]
        patch = merge_patch("LocalQueue", name, _STOP_POLICY_NONE, view.namespace)
        yield _Fix(f"LocalQueue {name}: set stopPolicy to None", patch, started_view)
    if queue.view.stop_policy != "None":
        patch = merge_patch("ClusterQueue", queue.name, _STOP_POLICY_NONE)
        yield _Fix(f"ClusterQueue {queue.name}: set stopPolicy to None", patch, started_view)
    if queue.view.namespaces is None or not queue.view.namespaces.matches(labels):
        selector_operation: dict[str, Any] = {"op": "add", "path": "/spec/namespaceSelector", "value": {}}
        text = f"ClusterQueue {queue.name}: let namespaceSelector select namespace {view.namespace}, such as by {{}}"
        selecting_view = replace(started_view, namespaces=selector({}))
        yield _Fix(text, json_patch("ClusterQueue", queue.name, [selector_operation]), selecting_view)
