"""Corrections of what keeps a Workload out of scheduling, verified by simulation, and remedies without a patch."""

from collections.abc import Callable, Collection, Iterator, Sequence
from copy import deepcopy
from dataclasses import replace
from difflib import get_close_matches
from functools import partial
from typing import Any, Final, NamedTuple

from batchyard.api import scheme, well_known
from batchyard.api.conversion import STORAGE_API_VERSION
from batchyard.api.meta import Key, Obj, annotation, parse_selector, quota_amount, with_path
from batchyard.api.times import format_second
from batchyard.api.views.node import FlavorView, flavor_view
from batchyard.api.views.workload import ClusterQueueView, CohortView, LocalQueueView, WorkloadView
from batchyard.explain import blockers
from batchyard.explain.budget_raises import raise_of_budget
from batchyard.explain.cohort_simulation import CohortSimulation, CorrectedObjects, DecisionLimitReached
from batchyard.explain.document import BindingLimit
from batchyard.explain.proposals import FIX, creation_patch, json_patch, merge_patch
from batchyard.explain.searches import Patch, Proposal
from batchyard.interfaces.client import Reader
from batchyard.scheduling.active_status import PROVISIONING_CONTROLLER_NAME
from batchyard.scheduling.cluster_queue import ClusterQueue
from batchyard.scheduling.cycle import SchedulingPolicy
from batchyard.scheduling.scheduler_cache import SchedulerCache
from batchyard.scheduling.snapshot import Snapshot
from batchyard.scheduling.workload import lifecycle
from batchyard.scheduling.workload.lifecycle import AdmissionCheck
from batchyard.scheduling.workload.pending_reason import WorkloadQueues, holding_budgets_suffix

_STOP_POLICY_NONE: Final = {"spec": {"stopPolicy": "None"}}
_LOCAL_QUEUES_TRIED_MAX: Final = 4
_KUEUE_OBJECT: Final[Obj] = {"apiVersion": STORAGE_API_VERSION}
_SIMILARITY_MIN: Final = 0.3
#: At most this many Cohorts of a cycle are proposed to lose their parent.
_CYCLE_CORRECTIONS_MAX: Final = 4
#: What helps if a limit has no correction that a patch can make.
_REMEDY_BY_LIMIT: Final = {
    blockers.MISCONFIGURED: "correct the limiting object; if that is the Workload, submit a new job",
    blockers.STOPPED: "correct the limiting object",
    blockers.GATED: "it waits until the job controller releases it",
    blockers.CHECK: "the controller of the AdmissionCheck decides; see its message",
    blockers.BACKOFF: "it is queued again without a change when its condition Requeued becomes True",
    blockers.PODS_READY: "it is admitted without a change when the pods of admitted Workloads are ready",
}


class BlockedWorkload(NamedTuple):
    """A Workload that the scheduler does not consider, with its job (None if it has none) and its queues."""

    workload: Obj
    view: WorkloadView
    owner_job: Obj | None
    queues: WorkloadQueues
    limit: BindingLimit
    #: The Budgets that hold the LocalQueue.
    budgets: Sequence[Obj] = ()


class _Correction(NamedTuple):
    text: str
    patch: Patch
    correct: Callable[[CorrectedObjects], CorrectedObjects] = lambda objects: objects
    #: The corrected Workload; None if the correction does not change its pod sets.
    workload: Obj | None = None


class QueueCorrection(NamedTuple):
    """One way to correct all errors of a Workload and its queue: the corrected objects, the text and the patches."""

    workload: Obj
    objects: CorrectedObjects
    text: str
    patches: Sequence[Patch]


def find_queue_corrections(blocked_workload: BlockedWorkload, cache: SchedulerCache) -> Sequence[QueueCorrection]:
    """Return the ways to remove all errors and holds, such as a stopPolicy, of a Workload and its queue.

    Each way contains the corrected objects. There is one way, or several if the Cohorts form a cycle, which can be
    broken in several places. The result is empty if nothing needs a correction, or if patches do not suffice.
    """
    queue, local_queue = (
        cache.snapshot.queues.get(blocked_workload.queues.cluster_queue_name),
        blocked_workload.queues.local_queue,
    )
    if queue is None or local_queue is None or (holding_budgets_suffix(local_queue) and not blocked_workload.budgets):
        return ()
    corrections = list(_corrections(blocked_workload, cache))
    if not queue.is_in_cohort_cycle:
        alternatives = [corrections] if corrections else []
    else:
        alternatives = [[*corrections, each] for each in _cycle_corrections(queue.view.cohort, cache.snapshot)]
    queue_corrections = [_apply_corrections(blocked_workload.workload, queue.view, each) for each in alternatives]
    return [each for each in queue_corrections if _is_ready(each.objects, cache)]


def _is_ready(objects: CorrectedObjects, cache: SchedulerCache) -> bool:
    return cache.active_status_of_view(objects.queue, objects.flavors).active


def _apply_corrections(workload: Obj, view: ClusterQueueView, corrections: Sequence[_Correction]) -> QueueCorrection:
    objects = CorrectedObjects(view)
    for correction in corrections:
        objects, workload = correction.correct(objects), correction.workload or workload
    text = "; ".join(each.text for each in corrections)
    return QueueCorrection(workload, objects, text, [each.patch for each in corrections])


def remedy_of(blocked_workload: BlockedWorkload, cache: SchedulerCache) -> str:
    """Return what the user can change if no patch helps, or when the wait ends by itself; '' if neither is known."""
    view, limit, queues = blocked_workload.view, blocked_workload.limit, blocked_workload.queues
    if limit.limit == blockers.BACKOFF and limit.until is not None:
        return f"it is queued again without a change at {format_second(limit.until)}, when its backoff ends"
    local_queue, queue_name = view.queue.partition("/")[2], queues.cluster_queue_name
    queue = cache.snapshot.queues.get(queue_name)
    if queues.local_queue is None:
        label = well_known.QUEUE_NAME
        return f"create LocalQueue {local_queue} in namespace {view.namespace}, or set the label {label} to another"
    if queue is None:
        return f"create ClusterQueue {queue_name}, or a LocalQueue of a ClusterQueue that exists"
    if holding_budgets_suffix(queues.local_queue):
        end = "" if limit.until is None else f", or wait for its next period at {format_second(limit.until)}"
        return f"raise the amount of the Budget that holds the LocalQueue{end}"
    if queue.is_in_cohort_cycle:
        return "correct spec.parentName of one of the Cohorts in the cycle"
    active_status = cache.active_status_of_view(replace(queue.view, stop_policy="None"))
    if not active_status.active:
        return f"create or correct the objects that ClusterQueue {queue_name} references: {active_status.message}"
    return _REMEDY_BY_LIMIT.get(blocked_workload.limit.limit, "")


def _corrections(blocked_workload: BlockedWorkload, cache: SchedulerCache) -> Iterator[_Correction]:
    view, queue = blocked_workload.view, cache.snapshot.queues[blocked_workload.queues.cluster_queue_name]
    if not lifecycle.is_active(blocked_workload.workload):
        patch = merge_patch("Workload", view.name, {"spec": {"active": True}}, view.namespace)
        yield _Correction("set spec.active of the Workload to true", patch)
    if lifecycle.has_admission_gate(blocked_workload.workload):
        yield _gate_correction(blocked_workload)
    yield from _limit_corrections(blocked_workload)
    local_queue = cache.workload_cache.local_queues.get(view.queue)
    for budget_raise in map(raise_of_budget, blocked_workload.budgets):
        yield _Correction(budget_raise.text, budget_raise.patch)
    if local_queue is not None and local_queue.stop_policy != "None" and not blocked_workload.budgets:
        name = view.queue.partition("/")[2]
        patch = merge_patch("LocalQueue", name, _STOP_POLICY_NONE, view.namespace)
        yield _Correction(f"LocalQueue {name}: set stopPolicy to None", patch)
    if queue.view.stop_policy != "None":
        patch = merge_patch("ClusterQueue", queue.name, _STOP_POLICY_NONE)
        text = f"ClusterQueue {queue.name}: set stopPolicy to None"
        yield _Correction(text, patch, lambda each: _with_queue(each, stop_policy="None"))
    labels = cache.namespaces.get(view.namespace)
    if labels is not None and (queue.view.namespaces is None or not queue.view.namespaces.matches(labels)):
        selector_operation: dict[str, Any] = {"op": "add", "path": "/spec/namespaceSelector", "value": {}}
        selection_text = f"make namespaceSelector select namespace {view.namespace}, for example with {{}}"
        text = f"ClusterQueue {queue.name}: {selection_text}"
        patch = json_patch("ClusterQueue", queue.name, [selector_operation])
        yield _Correction(text, patch, lambda each: _with_queue(each, namespaces=parse_selector({})))
    yield from _flavor_corrections(queue.view, cache)
    yield from _check_corrections(blocked_workload, queue.view, cache)


def _with_queue(objects: CorrectedObjects, **fields: Any) -> CorrectedObjects:
    return objects._replace(queue=replace(objects.queue, **fields))


def _add_objects(
    objects: CorrectedObjects, flavors: Sequence[FlavorView] = (), cohorts: Sequence[CohortView] = ()
) -> CorrectedObjects:
    return objects._replace(flavors=(*objects.flavors, *flavors), cohorts=(*objects.cohorts, *cohorts))


def _flavor_corrections(view: ClusterQueueView, cache: SchedulerCache) -> Iterator[_Correction]:
    for name in dict.fromkeys(view.flavors):
        if name not in cache.snapshot.flavors:
            flavor = {**_KUEUE_OBJECT, "kind": "ResourceFlavor", "metadata": {"name": name}, "spec": {}}
            new_flavors = (flavor_view(flavor),)
            yield _Correction(
                f"create ResourceFlavor {name}; add nodeLabels if its pods must run on certain nodes",
                creation_patch(flavor),
                partial(_add_objects, flavors=new_flavors),
            )


def _cycle_corrections(cohort: str, snapshot: Snapshot) -> Iterator[_Correction]:
    views, visited_cohorts = snapshot.forest.views, dict[str, None]()
    while cohort not in visited_cohorts:
        visited_cohorts[cohort] = None
        cohort = views[cohort].parent
    names = list(visited_cohorts)
    for name in names[names.index(cohort) :][:_CYCLE_CORRECTIONS_MAX]:
        corrected_view = replace(views[name], parent="")
        yield _Correction(
            f"Cohort {name}: remove parentName {views[name].parent}, which leads into a cycle",
            merge_patch("Cohort", name, {"spec": {"parentName": None}}),
            partial(_add_objects, cohorts=(corrected_view,)),
        )


def _limit_corrections(blocked_workload: BlockedWorkload) -> Iterator[_Correction]:
    """Yield a correction that raises all container limits that are below the requests, for a Workload without a job.

    Kubernetes rejects a job with such containers.
    """
    if blocked_workload.owner_job is not None or not blocked_workload.view.over_limit:
        return
    operations, texts, pod_sets = list[Patch](), list[str](), deepcopy(blocked_workload.workload["spec"]["podSets"])
    for path, container in _containers_with_paths(pod_sets):
        resources = container.get("resources") or {}
        requests, limits = resources.get("requests") or {}, resources.get("limits") or {}
        for resource, limit in limits.items():
            request = requests.get(resource, limit)
            if quota_amount(resource, request) > quota_amount(resource, limit):
                escaped_name = resource.replace("~", "~0").replace("/", "~1")
                limit_path = f"{path}/resources/limits/{escaped_name}"
                operations.append({"op": "replace", "path": limit_path, "value": request})
                texts.append(
                    f"raise the limit of {resource} of container {container['name']} from {limit} to {request}"
                )
                limits[resource] = request
    if operations:
        patch = json_patch("Workload", blocked_workload.view.name, operations, blocked_workload.view.namespace)
        workload = with_path(blocked_workload.workload, ("spec", "podSets"), pod_sets)
        yield _Correction("; ".join(texts), patch, workload=workload)


def _containers_with_paths(pod_sets: Sequence[Obj]) -> Iterator[tuple[str, Obj]]:
    for number, pod_set in enumerate(pod_sets):
        for field in ("initContainers", "containers"):
            for index, container in enumerate(pod_set["template"]["spec"].get(field) or ()):
                yield f"/spec/podSets/{number}/template/spec/{field}/{index}", container


def _gate_correction(blocked_workload: BlockedWorkload) -> _Correction:
    name, job = well_known.ADMISSION_GATED_BY, blocked_workload.owner_job
    gated_object = blocked_workload.workload if job is None or annotation(job, name) is None else job
    kind, metadata = gated_object["kind"], gated_object["metadata"]
    gates = annotation(gated_object, name)
    patch = merge_patch(
        kind, metadata["name"], {"metadata": {"annotations": {name: None}}}, blocked_workload.view.namespace
    )
    return _Correction(f"{kind} {metadata['name']}: remove gate {gates} from the annotation {name}", patch)


def _check_corrections(
    blocked_workload: BlockedWorkload, view: ClusterQueueView, cache: SchedulerCache
) -> Iterator[_Correction]:
    missing_names = [name for name in view.admission_checks if not cache.has_admission_check(name)]
    if not missing_names or blocked_workload.queues.cluster_queue is None:
        return
    patch = check_removal_patch(blocked_workload.queues.cluster_queue, missing_names)
    text = f"ClusterQueue {view.name}: remove AdmissionCheck {', '.join(missing_names)}, which does not exist"

    def remove_checks(objects: CorrectedObjects) -> CorrectedObjects:
        rules = [rule for rule in objects.queue.check_rules if rule.name not in missing_names]
        return _with_queue(objects, check_rules=tuple(rules))

    yield _Correction(text, patch, remove_checks)


# Another LocalQueue, if that of the Workload or its ClusterQueue does not exist.


def propose_local_queues(
    blocked_workload: BlockedWorkload, cache: SchedulerCache, policy: SchedulingPolicy
) -> Iterator[Proposal]:
    """Yield moves of the Workload to other LocalQueues of its namespace that would admit it, similar names first.

    At most four are tried. Nothing is yielded for limits other than MISCONFIGURED and STOPPED.
    """
    if blocked_workload.limit.limit not in {blockers.MISCONFIGURED, blockers.STOPPED}:
        return
    for local_queue in _similar_local_queues(blocked_workload.view, cache):
        queue, name = cache.snapshot.queues[local_queue.cluster_queue], local_queue.key.partition("/")[2]
        if queue.active and _is_admitted(blocked_workload.view, queue, cache, policy):
            text = f"set the label {well_known.QUEUE_NAME} to LocalQueue {name}"
            yield Proposal(FIX, text, [_queue_name_patch(blocked_workload, name)])


def propose_new_local_queues(
    blocked_workload: BlockedWorkload, cache: SchedulerCache, policy: SchedulingPolicy
) -> Iterator[Proposal]:
    """Yield the creation of LocalQueues of existing ClusterQueues that would admit the Workload, similar names first.

    At most four ClusterQueues are tried. The new LocalQueue replaces one that does not exist, or whose ClusterQueue
    does not exist: the field `clusterQueue` is immutable.
    """
    if (
        blocked_workload.limit.limit != blockers.MISCONFIGURED
        or blocked_workload.queues.cluster_queue_name in cache.snapshot.queues
    ):
        return
    wanted_name = blocked_workload.queues.cluster_queue_name or blocked_workload.view.queue.partition("/")[2]
    queues = {name: queue for name, queue in cache.snapshot.queues.items() if queue.active}
    for name in _most_similar_names(wanted_name, queues):
        if _is_admitted(blocked_workload.view, queues[name], cache, policy):
            yield _new_local_queue(blocked_workload, name, cache)


def _new_local_queue(blocked_workload: BlockedWorkload, cluster_queue: str, cache: SchedulerCache) -> Proposal:
    namespace, _, name = blocked_workload.view.queue.partition("/")
    is_new_name_needed = blocked_workload.queues.local_queue is not None or not name
    if is_new_name_needed:
        # One name more than there are LocalQueues, so that one is free.
        local_queues = cache.workload_cache.local_queues
        candidates = [cluster_queue, *[f"{cluster_queue}-{number}" for number in range(2, len(local_queues) + 2)]]
        name = next(each for each in candidates if f"{namespace}/{each}" not in local_queues)
    metadata, spec = {"name": name, "namespace": namespace}, {"clusterQueue": cluster_queue}
    local_queue = {**_KUEUE_OBJECT, "kind": "LocalQueue", "metadata": metadata, "spec": spec}
    patches = [creation_patch(local_queue)] + (
        [_queue_name_patch(blocked_workload, name)] if is_new_name_needed else []
    )
    label_text = f", and set the label {well_known.QUEUE_NAME} to {name}" if is_new_name_needed else ""
    return Proposal(FIX, f"create LocalQueue {name} of ClusterQueue {cluster_queue}{label_text}", patches)


def _most_similar_names(wanted_name: str, names: Collection[str]) -> Sequence[str]:
    similar_names = get_close_matches(wanted_name, names, _LOCAL_QUEUES_TRIED_MAX, _SIMILARITY_MIN)
    return list(dict.fromkeys([*similar_names, *sorted(names)]))[:_LOCAL_QUEUES_TRIED_MAX]


def _similar_local_queues(view: WorkloadView, cache: SchedulerCache) -> Sequence[LocalQueueView]:
    prefix = f"{view.namespace}/"
    usable_queues = {
        key.removeprefix(prefix): local_queue
        for key, local_queue in cache.workload_cache.local_queues.items()
        if key.startswith(prefix)
        and key != view.queue
        and local_queue.stop_policy == "None"
        and local_queue.cluster_queue in cache.snapshot.queues
    }
    return [usable_queues[name] for name in _most_similar_names(view.queue.removeprefix(prefix), usable_queues)]


def _queue_name_patch(blocked_workload: BlockedWorkload, local_queue: str) -> Patch:
    if blocked_workload.owner_job is None:
        return merge_patch(
            "Workload",
            blocked_workload.view.name,
            {"spec": {"queueName": local_queue}},
            blocked_workload.view.namespace,
        )
    metadata = {"labels": {well_known.QUEUE_NAME: local_queue}}
    name, namespace = blocked_workload.owner_job["metadata"]["name"], blocked_workload.view.namespace
    return merge_patch(blocked_workload.owner_job["kind"], name, {"metadata": metadata}, namespace)


def _is_admitted(view: WorkloadView, queue: ClusterQueue, cache: SchedulerCache, policy: SchedulingPolicy) -> bool:
    simulation = CohortSimulation(cache, policy, view, queue)
    try:
        return simulation.run_trial().is_admitted
    except DecisionLimitReached:
        return False
    finally:
        simulation.close()


# Changes after which a Workload with quota would not wait for its admission checks.


def controller_name_of(check: str, reader: Reader) -> str:
    """Return the `controllerName` of the AdmissionCheck with this name; '' if it is unset or the check is missing."""
    obj = reader.get(Key(scheme.ADMISSION_CHECK, "", check))
    return "" if obj is None else str(obj["spec"].get("controllerName", ""))


def check_removal_patch(queue: Obj, names: Sequence[str]) -> Patch:
    """Return the patch that removes the AdmissionChecks with these names from a ClusterQueue."""
    strategy = queue["spec"].get("admissionChecksStrategy") or {}
    other_checks = [each for each in strategy.get("admissionChecks") or () if each["name"] not in names]
    fields = {"spec": {"admissionChecksStrategy": {"admissionChecks": other_checks}}}
    return merge_patch("ClusterQueue", queue["metadata"]["name"], fields)


def propose_check_removal(queue: str, waiting_checks: Sequence[AdmissionCheck], reader: Reader) -> Iterator[Proposal]:
    """Yield the removal of `waiting_checks`, for which a Workload with quota waits, from its ClusterQueue.

    The Workload is then admitted, because all its other checks are Ready. Nothing is yielded if the ClusterQueue does
    not exist, or if the provisioning controller sets one of the checks: the pods would wait for machines instead.
    """
    names = [check["name"] for check in waiting_checks]
    obj = reader.get(Key(scheme.CLUSTER_QUEUE, "", queue))
    if obj is None or any(controller_name_of(name, reader) == PROVISIONING_CONTROLLER_NAME for name in names):
        return
    text = f"ClusterQueue {queue}: remove AdmissionCheck {', '.join(names)}, for all its Workloads"
    yield Proposal(FIX, text, (check_removal_patch(obj, names),))


def awaited_event(check: AdmissionCheck, reader: Reader) -> str:
    """Return a text that names the controller that must set an admission check to Ready."""
    controller = controller_name_of(check["name"], reader) or "a controller"
    return f"it is admitted without a change when {controller} sets AdmissionCheck {check['name']} to Ready"
