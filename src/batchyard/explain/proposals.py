"""Changes that would admit a pending Workload, verified by simulation: configuration fixes, priority, size, flavors."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple

from batchyard.api.meta import Obj, selector, with_path
from batchyard.api.views.workload import ClusterQueueView, FlavorView, WorkloadView
from batchyard.explain.cohort_simulation import CohortSimulation, DecisionLimitReached, HypotheticalChange
from batchyard.explain.document import PodSetFlavorOutcomes
from batchyard.scheduling.cluster_queue import ClusterQueue
from batchyard.scheduling.cycle import SchedulingPolicy
from batchyard.scheduling.preemption.alternatives import MissingQuotaHolder
from batchyard.scheduling.scheduler_cache import SchedulerCache
from batchyard.scheduling.workload import lifecycle

# The data of a proposal: a change that admits a Workload in a simulation, with its description and its patches.


QUOTA: Final = "quota"
PRIORITY: Final = "priority"
SIZE: Final = "size"
FLAVOR: Final = "flavor"
END: Final = "end"
STRATEGY: Final = "strategy"
NODES: Final = "nodes"
FIX: Final = "fix"

Patch = Mapping[str, Any]


class Proposal(NamedTuple):
    """A change that would admit a pending Workload, verified by simulation, with its text and its patches."""

    kind: str
    text: str
    apply: Sequence[Patch]

    def document(self) -> dict[str, Any]:
        """Return the proposal as an entry of the field `changes` in the Explanation document."""
        return {"kind": self.kind, "text": self.text, "apply": list(self.apply), "proven": True}


class ProposalCase(NamedTuple):
    """A pending Workload with its job, the limit that stops it, and a simulation to try changes in."""

    workload: Obj
    view: WorkloadView
    outcomes: Sequence[PodSetFlavorOutcomes]
    simulation: CohortSimulation
    #: The job that the Workload was created for; None if there is none.
    owner_job: Obj | None
    #: The binding limit.
    limit_kind: str = ""


def json_patch(kind: str, name: str, operations: Sequence[Mapping[str, Any]], namespace: str = "") -> Patch:
    """Return a JSON patch of an object, as for `kubectl patch --type json`."""
    return _patch(kind, name, namespace, "json", list(operations))


def merge_patch(kind: str, name: str, fields: Mapping[str, Any], namespace: str = "") -> Patch:
    """Return a JSON merge patch of an object, as for `kubectl patch --type merge`."""
    return _patch(kind, name, namespace, "merge", dict(fields))


def _patch(kind: str, name: str, namespace: str, patch_type: str, patch: Any) -> Patch:
    namespace_field = {"namespace": namespace} if namespace else {}
    return {"kind": kind, **namespace_field, "name": name, "type": patch_type, "patch": patch}


# Searches for the smallest values that satisfy a predicate.


def minimize_amounts(is_satisfied: Callable[[Sequence[int]], bool], steps: Sequence[Sequence[int]]) -> list[int] | None:
    """Return amounts that satisfy a predicate, none of which can be reduced further; None if the last step does not.

    `steps` are lists of amounts to start from, in ascending order. The first step is tried before the last one.
    """
    step_index = _first_satisfying_index(lambda index: is_satisfied(steps[index]), len(steps))
    if step_index is None:
        return None
    amounts = list(steps[step_index])
    has_changed = True
    while has_changed:
        has_changed = False
        for dimension, amount in enumerate(amounts):
            amounts_before, amounts_after = amounts[:dimension], amounts[dimension + 1 :]
            minimal_amount = minimum_amount(
                partial(_satisfies_with_amount, is_satisfied, amounts_before, amounts_after), amount
            )
            has_changed |= minimal_amount < amount and len(amounts) > 1
            amounts[dimension] = minimal_amount
    return amounts


def _satisfies_with_amount(
    is_satisfied: Callable[[Sequence[int]], bool], amounts_before: list[int], amounts_after: list[int], amount: int
) -> bool:
    return is_satisfied([*amounts_before, amount, *amounts_after])


def minimum_amount(is_satisfied: Callable[[int], bool], amount: int) -> int:
    """Return the smallest amount that satisfies a monotonic predicate; `amount` must satisfy it."""
    if amount == 0 or not is_satisfied(amount - 1):
        return amount
    return minimum_between(is_satisfied, 0, amount - 1)


def _first_satisfying_index(is_satisfied: Callable[[int], bool], count: int) -> int | None:
    """Return the first index below `count` that satisfies a monotonic predicate; None if the last index does not."""
    if is_satisfied(0):
        return 0
    if count < 2 or not is_satisfied(count - 1):
        return None
    return minimum_between(is_satisfied, 1, count - 1)


def minimum_between(is_satisfied: Callable[[int], bool], low: int, high: int) -> int:
    """Return the smallest number from `low` to `high` that satisfies a monotonic predicate; `high` must satisfy it."""
    while low < high:
        middle = (low + high) // 2
        if is_satisfied(middle):
            high = middle
        else:
            low = middle + 1
    return high


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


# Changes of priority, size, flavors and queueing strategy that would admit a Workload, and the end of other Workloads.


ViewBuilder = Callable[[Obj, WorkloadView], WorkloadView]

_PRIORITIES_MAX: Final = 64
_PRIORITY_MAX: Final = (1 << 31) - 1
#: At most this many holders are proposed to end, and at most this many are considered.
_ENDED_WORKLOADS_MAX: Final = 4
_CHECKED_WORKLOADS_MAX: Final = 64


def propose_priority(case: ProposalCase, build_view: ViewBuilder, classes: Mapping[str, int]) -> Iterator[Proposal]:
    """Yield the lowest priority that admits the Workload, because it then preempts others or is ahead in the queue.

    `classes` are the values of the WorkloadPriorityClasses by name.
    """
    simulation, current_priority = case.simulation, case.view.priority
    pending_priorities = [view.priority for view in simulation.other_pending_views()]
    held_priorities = [
        each.priority for queue in simulation.snapshot.queues.values() for each in queue.workloads.values()
    ]
    thresholds = dict.fromkeys([value + step for value in (*pending_priorities, *held_priorities) for step in (0, 1)])
    priorities = sorted(value for value in thresholds if current_priority < value <= _PRIORITY_MAX)[:_PRIORITIES_MAX]

    def is_satisfied(value: int) -> bool:
        obj = with_path(case.workload, ("spec", "priority"), value)
        return simulation.admits(HypotheticalChange(workload=build_view(obj, case.view)))

    new_priority = _first_satisfying_value(priorities, is_satisfied)
    if new_priority is None or is_satisfied(new_priority - 1):
        return
    priority_class = min(((value, name) for name, value in classes.items() if value >= new_priority), default=None)
    hint = "" if priority_class is None else f"; WorkloadPriorityClass {priority_class[1]} has {priority_class[0]}"
    text = f"raise its priority from {current_priority} to {new_priority}{hint}"
    patch = merge_patch("Workload", case.view.name, {"spec": {"priority": new_priority}}, case.view.namespace)
    yield Proposal(PRIORITY, text, (patch,))


def _first_satisfying_value(values: Sequence[int], is_satisfied: Callable[[int], bool]) -> int | None:
    """Return the first of ascending values that satisfies a monotonic predicate; None if the last value does not."""
    if not values or not is_satisfied(values[-1]):
        return None
    low, high = 0, len(values) - 1
    while low < high:
        middle = (low + high) // 2
        if is_satisfied(values[middle]):
            high = middle
        else:
            low = middle + 1
    return values[high]


def propose_size(case: ProposalCase, build_view: ViewBuilder) -> Iterator[Proposal]:
    """Yield the largest reduced pod count of the Workload's largest pod set with which it would be admitted."""
    pod_sets = case.workload["spec"]["podSets"]
    index = max(range(len(pod_sets)), key=lambda each: int(pod_sets[each].get("count", 1)))
    pod_set = pod_sets[index]
    pod_count: int = pod_set.get("count", 1)

    def is_satisfied(pods: int) -> bool:
        smaller_set = {**pod_set, "count": pods}
        smaller_set.pop("minCount", None)
        obj = with_path(case.workload, ("spec", "podSets"), [*pod_sets[:index], smaller_set, *pod_sets[index + 1 :]])
        return case.simulation.admits(HypotheticalChange(workload=build_view(obj, case.view)))

    pods_per_step = _pod_count_step(case.owner_job, pod_set["name"])
    step_count = _largest_number(lambda jobs: is_satisfied(jobs * pods_per_step), pod_count // pods_per_step)
    if step_count:
        pod_set_suffix = f" of pod set {pod_set['name']}" if len(pod_sets) > 1 else ""
        text = f"request {step_count * pods_per_step} pods{pod_set_suffix} instead of {pod_count}"
        yield Proposal(SIZE, text, _count_patches(case, index, step_count * pods_per_step))


def _largest_number(is_satisfied: Callable[[int], bool], limit: int) -> int:
    """Return the largest number from 1 to below `limit` that satisfies a monotonic predicate; 0 if 1 does not."""
    if limit < 2 or not is_satisfied(1):
        return 0
    low, high = 1, limit  # holds, fails
    while high - low > 1:
        middle = (low + high) // 2
        if is_satisfied(middle):
            low = middle
        else:
            high = middle
    return low


def _pod_count_step(owner: Obj | None, pod_set: str) -> int:
    """Return the step in which a pod set's count can change: the pods of one replicated Job for a JobSet, else 1."""
    if owner is None or owner["kind"] != "JobSet":
        return 1
    replicas_by_job = {each["name"]: int(each.get("replicas", 1)) for each in owner["spec"].get("replicatedJobs") or ()}
    job_specs = {each["name"]: each["template"]["spec"] for each in owner["spec"].get("replicatedJobs") or ()}
    if replicas_by_job.get(pod_set, 0) < 1:
        return 1
    spec = job_specs[pod_set]
    parallelism = int(spec.get("parallelism", 1))
    return max(1, min(parallelism, int(spec.get("completions") or parallelism)))


def _count_patches(case: ProposalCase, pod_set_index: int, pod_count: int) -> Sequence[Patch]:
    """Return the patches that set the pod count of the Job, or of the Workload without a job; () for a JobSet."""
    if case.owner_job is not None and case.owner_job["kind"] == "JobSet":
        return ()
    if case.owner_job is not None and case.owner_job["kind"] == "Job":
        name, namespace = case.owner_job["metadata"]["name"], case.owner_job["metadata"].get("namespace", "")
        return (merge_patch("Job", name, {"spec": {"parallelism": pod_count}}, namespace),)
    operation = {"op": "replace", "path": f"/spec/podSets/{pod_set_index}/count", "value": pod_count}
    return (json_patch("Workload", case.view.name, [operation], case.view.namespace),)


def propose_flavors(case: ProposalCase, build_view: ViewBuilder) -> Iterator[Proposal]:
    """Yield tolerations or selectors with which the Workload's pods could use an excluded flavor and be admitted."""
    for name in _excluded_flavors(case):
        flavor = case.simulation.snapshot.flavors.get(name)
        if flavor is None:
            continue
        pod_sets = [_fit_pod_set_to_flavor(pod_set, flavor) for pod_set in case.workload["spec"]["podSets"]]
        obj = with_path(case.workload, ("spec", "podSets"), pod_sets)
        if case.simulation.admits(HypotheticalChange(workload=build_view(obj, case.view))):
            text = f"let its pods use flavor {name}: {_describe_pod_changes(case, flavor)}"
            yield Proposal(FLAVOR, text, _pod_patches(case, pod_sets))


def _excluded_flavors(case: ProposalCase) -> list[str]:
    flavor_names = [outcome.flavor for pod_set in case.outcomes for outcome in pod_set.outcomes if outcome.obstacle]
    return list(dict.fromkeys(flavor_names))


def _fit_pod_set_to_flavor(pod_set: Mapping[str, Any], flavor: FlavorView) -> dict[str, Any]:
    """Return a copy of a pod set whose pods may use a flavor: they tolerate its taints and select its labels."""
    template = pod_set["template"]
    return {**pod_set, "template": {**template, "spec": _fit_spec_to_flavor(template["spec"], flavor)}}


def _fit_spec_to_flavor(spec: Mapping[str, Any], flavor: FlavorView) -> dict[str, Any]:
    flavor_tolerations = [
        {"key": taint.key, "operator": "Equal", "value": taint.value, "effect": taint.effect}
        if taint.value
        else {"key": taint.key, "operator": "Exists", "effect": taint.effect}
        for taint in flavor.taints
    ]
    old_tolerations = list(spec.get("tolerations") or ())
    new_spec = {
        **spec,
        "tolerations": [*old_tolerations, *[each for each in flavor_tolerations if each not in old_tolerations]],
    }
    node_selector = spec.get("nodeSelector") or {}
    if node_selector:
        new_spec["nodeSelector"] = {key: flavor.labels.get(key, value) for key, value in node_selector.items()}
    affinity = spec.get("affinity") or {}
    node_affinity = affinity.get("nodeAffinity") or {}
    if "requiredDuringSchedulingIgnoredDuringExecution" in node_affinity and flavor.labels:
        flavor_labels = sorted(flavor.labels.items())
        expressions = [{"key": key, "operator": "In", "values": [value]} for key, value in flavor_labels]
        required_terms = {"nodeSelectorTerms": [{"matchExpressions": expressions}]}
        new_node_affinity = {**node_affinity, "requiredDuringSchedulingIgnoredDuringExecution": required_terms}
        new_spec["affinity"] = {**affinity, "nodeAffinity": new_node_affinity}
    return new_spec


def _describe_pod_changes(case: ProposalCase, flavor: FlavorView) -> str:
    """Return a text that says which taints to tolerate and which labels to select so that the pods may use a flavor."""
    changes = []
    old_specs = [pod_set["template"]["spec"] for pod_set in case.workload["spec"]["podSets"]]
    new_specs = [_fit_spec_to_flavor(spec, flavor) for spec in old_specs]
    new_and_old_specs = list(zip(new_specs, old_specs, strict=True))
    if any(new.get("tolerations") != list(old.get("tolerations") or ()) for new, old in new_and_old_specs):
        changes.append(f"tolerate {', '.join(f'{taint.key}={taint.value}:{taint.effect}' for taint in flavor.taints)}")
    if any(new.get("nodeSelector") != old.get("nodeSelector") for new, old in new_and_old_specs):
        labels = {key: value for new in new_specs for key, value in (new.get("nodeSelector") or {}).items()}
        changes.append(f"select {', '.join(f'{key}={value}' for key, value in labels.items() if key in flavor.labels)}")
    if any(new.get("affinity") != old.get("affinity") for new, old in zip(new_specs, old_specs, strict=True)):
        changes.append(f"require {', '.join(f'{key}={value}' for key, value in sorted(flavor.labels.items()))}")
    return ", ".join(changes)


def _pod_patches(case: ProposalCase, pod_sets: Sequence[Mapping[str, Any]]) -> Sequence[Patch]:
    """Return the patches of the job's pod template; () if its tolerations stay as they are, so patches do not help."""
    old_specs = [pod_set["template"]["spec"] for pod_set in case.workload["spec"]["podSets"]]
    new_specs = {pod_set["name"]: pod_set["template"]["spec"] for pod_set in pod_sets}
    owner_job = case.owner_job
    if owner_job is None:
        operations = _add_operations(new_specs, list(new_specs), "/spec/podSets/{}/template/spec")
        return (json_patch("Workload", case.view.name, operations, case.view.namespace),)
    if not any(
        list(new["tolerations"]) != (old.get("tolerations") or [])
        for new, old in zip(new_specs.values(), old_specs, strict=True)
    ):
        return ()
    name, namespace = owner_job["metadata"]["name"], owner_job["metadata"].get("namespace", "")
    if owner_job["kind"] == "Job":
        operations = _add_operations(new_specs, list(new_specs), "/spec/template/spec")
    else:
        pod_set_names = [each["name"] for each in owner_job["spec"].get("replicatedJobs") or ()]
        operations = _add_operations(new_specs, pod_set_names, "/spec/replicatedJobs/{}/template/spec/template/spec")
    return (json_patch(owner_job["kind"], name, operations, namespace),)


def _add_operations(
    pod_specs: Mapping[str, Mapping[str, Any]], pod_set_names: Sequence[str], path_format: str
) -> list[Mapping[str, Any]]:
    """Return the JSON Patch operations that set tolerations, nodeSelector and affinity of the given pod specs."""
    return [
        {"op": "add", "path": f"{path_format.format(position)}/{field}", "value": pod_specs[name][field]}
        for position, name in enumerate(pod_set_names)
        if name in pod_specs
        for field in ("tolerations", "nodeSelector", "affinity")
        if pod_specs[name].get(field)
    ]


def propose_workload_ends(
    case: ProposalCase, holders: Sequence[MissingQuotaHolder], name_of: Callable[[str], str]
) -> Iterator[Proposal]:
    """Yield a minimal set of quota-holding Workloads whose end admits the pending one, chosen from `holders` in order.

    `name_of` returns the name of a Workload by its key, or a placeholder if it is hidden.
    """
    keys = [holder.workload.key for holder in holders[:_CHECKED_WORKLOADS_MAX]]
    chosen_keys = _minimal_ended_keys(case.simulation, keys)
    if not chosen_keys:
        return
    patches = [
        merge_patch("Workload", name, {"spec": {"active": False}}, namespace)
        for namespace, _, name in (key.partition("/") for key in chosen_keys)
    ]
    names = [name_of(key) for key in chosen_keys]
    is_visible = names == chosen_keys
    yield Proposal(END, f"end or suspend {', '.join(dict.fromkeys(names))}", tuple(patches) if is_visible else ())


def _minimal_ended_keys(simulation: CohortSimulation, keys: Sequence[str]) -> list[str]:
    """Return the keys of a minimal set of Workloads whose end admits the pending Workload; [] if none does."""
    chosen_keys: list[str] = []
    for key in keys[:_ENDED_WORKLOADS_MAX]:
        chosen_keys.append(key)
        if simulation.admits(HypotheticalChange(ended_workloads=chosen_keys)):
            break
    else:
        return []
    candidates = list(chosen_keys)
    while candidates:
        remaining_keys = [each for each in chosen_keys if each != candidates[0]]
        if simulation.admits(HypotheticalChange(ended_workloads=remaining_keys)):
            chosen_keys = candidates = remaining_keys
        else:
            candidates = candidates[1:]
    return chosen_keys


def propose_queueing_strategy(case: ProposalCase) -> Iterator[Proposal]:
    """Yield the change to BestEffortFIFO if the order of a StrictFIFO ClusterQueue alone keeps the Workload pending."""
    case.simulation.restore_quota_objects()
    view = case.simulation.queue.view
    if not view.strict_fifo:
        return
    if case.simulation.admits(HypotheticalChange(queues={view.name: replace(view, strict_fifo=False)})):
        patch = merge_patch("ClusterQueue", view.name, {"spec": {"queueingStrategy": "BestEffortFIFO"}})
        yield Proposal(STRATEGY, f"ClusterQueue {view.name}: set queueingStrategy to BestEffortFIFO", (patch,))
