"""Corrections of what keeps a Workload out of scheduling, verified by simulation, and remedies without a patch."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import Any, Final, NamedTuple

from batchyard.api import well_known
from batchyard.api.meta import Obj, annotation, selector
from batchyard.api.views.workload import ClusterQueueView, LocalQueueView, WorkloadView
from batchyard.explain import blockers
from batchyard.explain.cohort_simulation import CohortSimulation, DecisionLimitReached
from batchyard.explain.document import BindingLimit
from batchyard.explain.proposals import FIX, json_patch, merge_patch
from batchyard.explain.searches import Patch, Proposal
from batchyard.scheduling.cluster_queue import ClusterQueue
from batchyard.scheduling.cycle import SchedulingPolicy
from batchyard.scheduling.scheduler_cache import SchedulerCache
from batchyard.scheduling.workload import lifecycle
from batchyard.scheduling.workload.pending_reason import WorkloadQueues, holding_budgets_suffix

_STOP_POLICY_NONE: Final = {"spec": {"stopPolicy": "None"}}
_LOCAL_QUEUES_TRIED_MAX: Final = 4
_SIMILARITY_MIN: Final = 0.3
#: What helps if a limit has no correction that a patch can make.
_REMEDY_BY_LIMIT: Final = {
    blockers.MISCONFIGURED: "correct the object that the limit names; if that is the Workload, submit a new job",
    blockers.STOPPED: "correct the object that the limit names",
    blockers.GATED: "it waits until the job controller releases it",
    blockers.CHECK: "the controller of the AdmissionCheck decides; see its message",
    blockers.BACKOFF: "it is queued again without a change when its backoff ends",
    blockers.PODS_READY: "it is admitted without a change when the pods of admitted Workloads are ready",
}


class WaitingCase(NamedTuple):
    """A Workload that the scheduler does not consider, with its job (None if it has none) and its queues."""

    workload: Obj
    view: WorkloadView
    owner_job: Obj | None
    queues: WorkloadQueues
    limit: BindingLimit


class _Correction(NamedTuple):
    """A correction of one field: text, patch, and the function that corrects the view of the ClusterQueue."""

    text: str
    patch: Patch
    correct: Callable[[ClusterQueueView], ClusterQueueView] = lambda view: view


class CorrectedQueue(NamedTuple):
    """The ClusterQueue of a Workload after corrections of all errors, and the corrections' texts and patches."""

    view: ClusterQueueView
    text: str
    patches: Sequence[Patch]


def correct_queue(case: WaitingCase, cache: SchedulerCache) -> CorrectedQueue | None:
    """Return the Workload's ClusterQueue with all errors corrected; None if patches of fields cannot correct them."""
    queue, local_queue = cache.snapshot.queues.get(case.queues.cluster_queue_name), case.queues.local_queue
    if queue is None or local_queue is None or queue.is_in_cohort_cycle or holding_budgets_suffix(local_queue):
        return None
    corrections, corrected_view = list(_corrections(case, cache)), queue.view
    for correction in corrections:
        corrected_view = correction.correct(corrected_view)
    if not corrections or not cache.readiness_of_view(corrected_view).active:
        return None
    text = "; ".join(each.text for each in corrections)
    return CorrectedQueue(corrected_view, text, [each.patch for each in corrections])


def remedy_of(case: WaitingCase, cache: SchedulerCache) -> str:
    """Return what helps if no patch does; '' if nothing is known."""
    local_queue, queue_name = case.view.queue.partition("/")[2], case.queues.cluster_queue_name
    queue = cache.snapshot.queues.get(queue_name)
    if case.queues.local_queue is None:
        label = well_known.QUEUE_NAME
        return (
            f"create LocalQueue {local_queue} in namespace {case.view.namespace}, or name another in the label {label}"
        )
    if queue is None:
        return f"create ClusterQueue {queue_name}, or a LocalQueue of a ClusterQueue that exists"
    if holding_budgets_suffix(case.queues.local_queue):
        return "raise the amount of the Budget that holds the LocalQueue, or wait for its next period"
    if queue.is_in_cohort_cycle:
        return "correct spec.parentName of one of the Cohorts in the cycle"
    readiness = cache.readiness_of_view(replace(queue.view, stop_policy="None"))
    if not readiness.active:
        return f"create or correct the objects that ClusterQueue {queue_name} references: {readiness.message}"
    return _REMEDY_BY_LIMIT.get(case.limit.limit, "")


def _corrections(case: WaitingCase, cache: SchedulerCache) -> Iterator[_Correction]:
    """Yield a correction for each cause that one field can correct, such as a stopPolicy."""
    view, queue = case.view, cache.snapshot.queues[case.queues.cluster_queue_name]
    if not lifecycle.is_active(case.workload):
        patch = merge_patch("Workload", view.name, {"spec": {"active": True}}, view.namespace)
        yield _Correction("set spec.active of the Workload to true", patch)
    if lifecycle.has_admission_gate(case.workload):
        yield _gate_correction(case)
    local_queue = cache.workload_cache.local_queues.get(view.queue)
    if local_queue is not None and local_queue.stop_policy != "None":
        name = view.queue.partition("/")[2]
        patch = merge_patch("LocalQueue", name, _STOP_POLICY_NONE, view.namespace)
        yield _Correction(f"LocalQueue {name}: set stopPolicy to None", patch)
    if queue.view.stop_policy != "None":
        patch = merge_patch("ClusterQueue", queue.name, _STOP_POLICY_NONE)
        text = f"ClusterQueue {queue.name}: set stopPolicy to None"
        yield _Correction(text, patch, lambda each: replace(each, stop_policy="None"))
    labels = cache.namespaces.get(view.namespace)
    if labels is not None and (queue.view.namespaces is None or not queue.view.namespaces.matches(labels)):
        selector_operation: dict[str, Any] = {"op": "add", "path": "/spec/namespaceSelector", "value": {}}
        text = f"ClusterQueue {queue.name}: let namespaceSelector select namespace {view.namespace}, such as by {{}}"
        patch = json_patch("ClusterQueue", queue.name, [selector_operation])
        yield _Correction(text, patch, lambda each: replace(each, namespaces=selector({})))
    yield from _check_corrections(case, queue.view, cache)


def _gate_correction(case: WaitingCase) -> _Correction:
    """Return the removal of all admission gates, from the job if it has the annotation, or else from the Workload."""
    name, job = well_known.ADMISSION_GATED_BY, case.owner_job
    gated_object = case.workload if job is None or annotation(job, name) is None else job
    kind, metadata = gated_object["kind"], gated_object["metadata"]
    gates = annotation(gated_object, name)
    patch = merge_patch(kind, metadata["name"], {"metadata": {"annotations": {name: None}}}, case.view.namespace)
    return _Correction(f"{kind} {metadata['name']}: remove gate {gates} from the annotation {name}", patch)


def _check_corrections(case: WaitingCase, view: ClusterQueueView, cache: SchedulerCache) -> Iterator[_Correction]:
    """Yield the removal of AdmissionChecks that do not exist from a ClusterQueue that refers to them."""
    missing_names = [name for name in view.admission_checks if not cache.has_admission_check(name)]
    if not missing_names or case.queues.cluster_queue is None:
        return
    strategy = case.queues.cluster_queue["spec"].get("admissionChecksStrategy") or {}
    kept_checks = [each for each in strategy.get("admissionChecks") or () if each["name"] not in missing_names]
    patch = merge_patch(
        "ClusterQueue", view.name, {"spec": {"admissionChecksStrategy": {"admissionChecks": kept_checks}}}
    )
    text = f"ClusterQueue {view.name}: remove AdmissionCheck {', '.join(missing_names)}, which does not exist"

    def remove_checks(corrected: ClusterQueueView) -> ClusterQueueView:
        rules = [rule for rule in corrected.check_rules if rule.name not in missing_names]
        return replace(corrected, check_rules=tuple(rules))

    yield _Correction(text, patch, remove_checks)


# Another LocalQueue, if that of the Workload or its ClusterQueue does not exist.


def propose_local_queues(case: WaitingCase, cache: SchedulerCache, policy: SchedulingPolicy) -> Iterator[Proposal]:
    """Yield other LocalQueues of the namespace in which the Workload would be admitted, similar names first."""
    if case.limit.limit not in {blockers.MISCONFIGURED, blockers.STOPPED}:
        return
    for local_queue in _similar_local_queues(case.view, cache):
        queue, name = cache.snapshot.queues[local_queue.cluster_queue], local_queue.key.partition("/")[2]
        if queue.active and _is_admitted(case.view, queue, cache, policy):
            text = f"name LocalQueue {name} in the label {well_known.QUEUE_NAME}"
            yield Proposal(FIX, text, [_queue_name_patch(case, name)])


def _similar_local_queues(view: WorkloadView, cache: SchedulerCache) -> Sequence[LocalQueueView]:
    """Return LocalQueues of the namespace that admit Workloads, those with the most similar names first."""
    prefix = f"{view.namespace}/"
    usable_queues = {
        key.removeprefix(prefix): local_queue
        for key, local_queue in cache.workload_cache.local_queues.items()
        if key.startswith(prefix)
        and key != view.queue
        and local_queue.stop_policy == "None"
        and local_queue.cluster_queue in cache.snapshot.queues
    }
    wanted_name = view.queue.removeprefix(prefix)
    similar_names = get_close_matches(wanted_name, usable_queues, _LOCAL_QUEUES_TRIED_MAX, _SIMILARITY_MIN)
    names = list(dict.fromkeys([*similar_names, *sorted(usable_queues)]))[:_LOCAL_QUEUES_TRIED_MAX]
    return [usable_queues[name] for name in names]


def _queue_name_patch(case: WaitingCase, local_queue: str) -> Patch:
    if case.owner_job is None:
        return merge_patch("Workload", case.view.name, {"spec": {"queueName": local_queue}}, case.view.namespace)
    metadata = {"labels": {well_known.QUEUE_NAME: local_queue}}
    name, namespace = case.owner_job["metadata"]["name"], case.view.namespace
    return merge_patch(case.owner_job["kind"], name, {"metadata": metadata}, namespace)


def _is_admitted(view: WorkloadView, queue: ClusterQueue, cache: SchedulerCache, policy: SchedulingPolicy) -> bool:
    simulation = CohortSimulation(cache, policy, view, queue)
    try:
        return simulation.run_trial().is_admitted
    except DecisionLimitReached:
        return False
    finally:
        simulation.close()
