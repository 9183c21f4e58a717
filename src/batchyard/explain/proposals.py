"""Searches for changes that would admit a pending Workload, such as of its priority, size or flavors."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import lcm
from typing import Any, Final, NamedTuple

from batchyard.api import well_known
from batchyard.api.meta import Obj, with_path
from batchyard.api.views.node import FlavorView
from batchyard.api.views.workload import WorkloadView
from batchyard.base.counts import count_with_noun
from batchyard.explain.cohort_simulation import CohortSimulation, DecisionLimitReached, HypotheticalChange
from batchyard.explain.document import PodSetFlavorOutcomes
from batchyard.explain.searches import Patch, Proposal, Search, search_smallest_between
from batchyard.scheduling.slices import grows_in_part

# The kinds of proposals, and their patches.


QUOTA: Final = "quota"
PRIORITY: Final = "priority"
SIZE: Final = "size"
FLAVOR: Final = "flavor"
END: Final = "end"
STRATEGY: Final = "strategy"
NODES: Final = "nodes"
FIX: Final = "fix"
PREEMPTION: Final = "preemption"


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


def creation_patch(obj: Obj) -> Patch:
    """Return the patch that creates an object, as for `kubectl create`."""
    metadata = obj["metadata"]
    return _patch(obj["kind"], metadata["name"], metadata.get("namespace", ""), "create", obj)


def _patch(kind: str, name: str, namespace: str, patch_type: str, patch: Any) -> Patch:
    namespace_field = {"namespace": namespace} if namespace else {}
    return {"kind": kind, **namespace_field, "name": name, "type": patch_type, "patch": patch}


# Changes of priority, size, flavors and queueing strategy that would admit a Workload, and the end of other Workloads.


ViewBuilder = Callable[[Obj, WorkloadView], WorkloadView]

_PRIORITIES_MAX: Final = 64
_PRIORITY_MAX: Final = (1 << 31) - 1
#: At most this many holders are proposed to end.
ENDED_WORKLOADS_MAX: Final = 8
#: The policies of each field of ClusterQueue.spec.preemption from the weakest, with the field of PreemptionRules.
_PREEMPTION_POLICIES: Final = (
    ("withinClusterQueue", "within_cluster_queue", ("Never", "LowerPriority", "LowerOrNewerEqualPriority")),
    ("reclaimWithinCohort", "reclaim_within_cohort", ("Never", "LowerPriority", "Any")),
)


def propose_priority(proposal_case: ProposalCase, build_view: ViewBuilder, classes: Mapping[str, int]) -> Search:
    """Search for the lowest priority at which the Workload preempts others, or is ahead in the queue, and is admitted.

    `classes` are the values of the WorkloadPriorityClasses by name.
    """
    simulation, current_priority = proposal_case.simulation, proposal_case.view.priority
    pending_priorities = [view.priority for view in simulation.other_pending_views()]
    held_priorities = [
        each.priority for queue in simulation.snapshot.queues.values() for each in queue.workloads.values()
    ]
    thresholds = dict.fromkeys([value + step for value in (*pending_priorities, *held_priorities) for step in (0, 1)])
    priorities = sorted(value for value in thresholds if current_priority < value <= _PRIORITY_MAX)[:_PRIORITIES_MAX]

    def with_priority(value: int) -> HypotheticalChange:
        obj = with_path(proposal_case.workload, ("spec", "priority"), value)
        return HypotheticalChange(workload=build_view(obj, proposal_case.view))

    if not priorities or not (yield with_priority(priorities[-1])):
        return
    smallest_index = yield from search_smallest_between(
        lambda index: with_priority(priorities[index]), 0, len(priorities) - 1
    )
    new_priority = priorities[smallest_index.amount]
    if smallest_index.is_minimal and new_priority - 1 > current_priority and (yield with_priority(new_priority - 1)):
        return
    priority_class = min(((value, name) for name, value in classes.items() if value >= new_priority), default=None)
    hint = "" if priority_class is None else f"; WorkloadPriorityClass {priority_class[1]} has {priority_class[0]}"
    text = f"raise its priority from {current_priority} to {new_priority}{hint}"
    patch = merge_patch(
        "Workload", proposal_case.view.name, {"spec": {"priority": new_priority}}, proposal_case.view.namespace
    )
    yield Proposal(PRIORITY, text, (patch,), smallest_index.is_minimal)


def propose_size(proposal_case: ProposalCase, build_view: ViewBuilder) -> Search:
    """Search for the highest reduced count of the largest pod set with which the Workload would be admitted."""
    if proposal_case.view.replaced_slice and grows_in_part(proposal_case.view):
        return  # the job already gets each pod that fits
    pod_sets = proposal_case.workload["spec"]["podSets"]
    index = max(range(len(pod_sets)), key=lambda each: int(pod_sets[each].get("count", 1)))
    pod_set = pod_sets[index]
    pod_count: int = pod_set.get("count", 1)
    pods_per_step = lcm(_pod_count_step(proposal_case.owner_job, pod_set["name"]), _slice_size(pod_set))
    steps_max = pod_count // pods_per_step

    def without_steps(omitted_steps: int) -> HypotheticalChange:
        smaller_set = {**pod_set, "count": (steps_max - omitted_steps) * pods_per_step}
        smaller_set.pop("minCount", None)
        obj = with_path(
            proposal_case.workload, ("spec", "podSets"), [*pod_sets[:index], smaller_set, *pod_sets[index + 1 :]]
        )
        return HypotheticalChange(workload=build_view(obj, proposal_case.view))

    if steps_max < 2 or not (yield without_steps(steps_max - 1)):
        return
    omitted_step_count = yield from search_smallest_between(without_steps, 1, steps_max - 1)
    new_count = (steps_max - omitted_step_count.amount) * pods_per_step
    pod_set_suffix = f" of pod set {pod_set['name']}" if len(pod_sets) > 1 else ""
    text = f"request {count_with_noun(new_count, 'pod')}{pod_set_suffix} instead of {pod_count}"
    yield Proposal(SIZE, text, _count_patches(proposal_case, index, new_count), omitted_step_count.is_minimal)


def _slice_size(pod_set: Mapping[str, Any]) -> int:
    request = pod_set.get("topologyRequest") or {}
    layers = request.get("podsetSliceRequiredTopologyConstraints") or ()
    size = layers[0].get("size") if layers else request.get("podSetSliceSize")
    return max(1, int(size or 1))


def _pod_count_step(owner: Obj | None, pod_set: str) -> int:
    if owner is None or owner["kind"] != "JobSet":
        return 1
    replicas_by_job = {each["name"]: int(each.get("replicas", 1)) for each in owner["spec"].get("replicatedJobs") or ()}
    job_specs = {each["name"]: each["template"]["spec"] for each in owner["spec"].get("replicatedJobs") or ()}
    if replicas_by_job.get(pod_set, 0) < 1:
        return 1
    spec = job_specs[pod_set]
    parallelism = int(spec.get("parallelism", 1))
    return max(1, min(parallelism, int(spec.get("completions") or parallelism)))


def _count_patches(proposal_case: ProposalCase, pod_set_index: int, pod_count: int) -> Sequence[Patch]:
    """Return the patches that set the pod count of the Job, or of the Workload without a job; () for a JobSet.

    A minimum count is removed, because it must not exceed the new count.
    """
    if proposal_case.owner_job is not None and proposal_case.owner_job["kind"] == "JobSet":
        return ()
    has_minimum = proposal_case.workload["spec"]["podSets"][pod_set_index].get("minCount") is not None
    if proposal_case.owner_job is not None and proposal_case.owner_job["kind"] == "Job":
        name, namespace = (
            proposal_case.owner_job["metadata"]["name"],
            proposal_case.owner_job["metadata"].get("namespace", ""),
        )
        fields: dict[str, Any] = {"spec": {"parallelism": pod_count}}
        if has_minimum:
            fields["metadata"] = {"annotations": {well_known.MIN_PARALLELISM: None}}
        return (merge_patch("Job", name, fields, namespace),)
    path = f"/spec/podSets/{pod_set_index}"
    operations: list[Mapping[str, Any]] = [{"op": "replace", "path": f"{path}/count", "value": pod_count}]
    if has_minimum:
        operations.append({"op": "remove", "path": f"{path}/minCount"})
    return (json_patch("Workload", proposal_case.view.name, operations, proposal_case.view.namespace),)


def propose_flavors(proposal_case: ProposalCase, build_view: ViewBuilder) -> Search:
    """Search for changes of the pod templates with which the Workload could use an excluded flavor and be admitted."""
    for name in _excluded_flavors(proposal_case):
        flavor = proposal_case.simulation.snapshot.flavors.get(name)
        if flavor is None:
            continue
        pod_sets = [_fit_pod_set_to_flavor(pod_set, flavor) for pod_set in proposal_case.workload["spec"]["podSets"]]
        obj = with_path(proposal_case.workload, ("spec", "podSets"), pod_sets)
        if (yield HypotheticalChange(workload=build_view(obj, proposal_case.view))):
            patches = _pod_patches(proposal_case, pod_sets)
            suffix = "" if patches else "; submit the job again with this change"
            text = f"let its pods use flavor {name}: {_describe_pod_changes(proposal_case, flavor)}{suffix}"
            yield Proposal(FLAVOR, text, patches)


def _excluded_flavors(proposal_case: ProposalCase) -> list[str]:
    flavor_names = [
        outcome.flavor for pod_set in proposal_case.outcomes for outcome in pod_set.outcomes if outcome.obstacle
    ]
    return list(dict.fromkeys(flavor_names))


def _fit_pod_set_to_flavor(pod_set: Mapping[str, Any], flavor: FlavorView) -> dict[str, Any]:
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


def _describe_pod_changes(proposal_case: ProposalCase, flavor: FlavorView) -> str:
    changes = []
    old_specs = [pod_set["template"]["spec"] for pod_set in proposal_case.workload["spec"]["podSets"]]
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


def _pod_patches(proposal_case: ProposalCase, pod_sets: Sequence[Mapping[str, Any]]) -> Sequence[Patch]:
    """Return the patches of the pod templates in the job, or in a Workload without a job.

    The affinity in a JobSet is immutable: () is returned if it would change.

    If a job's tolerations change, its Workload is replaced. Otherwise the Workload stays, and needs its own patch.
    """
    old_specs = [pod_set["template"]["spec"] for pod_set in proposal_case.workload["spec"]["podSets"]]
    new_specs = {pod_set["name"]: pod_set["template"]["spec"] for pod_set in pod_sets}
    owner_job = proposal_case.owner_job
    changes_affinity = any(
        new.get("affinity") != old.get("affinity") for new, old in zip(new_specs.values(), old_specs, strict=True)
    )
    if changes_affinity and owner_job is not None and owner_job["kind"] == "JobSet":
        return ()
    operations = _json_patch_add_operations(new_specs, list(new_specs), "/spec/podSets/{}/template/spec")
    workload_patch = json_patch("Workload", proposal_case.view.name, operations, proposal_case.view.namespace)
    if owner_job is None:
        return (workload_patch,)
    name, namespace = owner_job["metadata"]["name"], owner_job["metadata"].get("namespace", "")
    if owner_job["kind"] == "Job":
        operations = _json_patch_add_operations(new_specs, list(new_specs), "/spec/template/spec")
    else:
        pod_set_names = [each["name"] for each in owner_job["spec"].get("replicatedJobs") or ()]
        operations = _json_patch_add_operations(
            new_specs, pod_set_names, "/spec/replicatedJobs/{}/template/spec/template/spec"
        )
    job_patch = json_patch(owner_job["kind"], name, operations, namespace)
    are_tolerations_new = any(
        list(new["tolerations"]) != (old.get("tolerations") or [])
        for new, old in zip(new_specs.values(), old_specs, strict=True)
    )
    return (job_patch,) if are_tolerations_new else (job_patch, workload_patch)


def _json_patch_add_operations(
    pod_specs: Mapping[str, Mapping[str, Any]], pod_set_names: Sequence[str], path_format: str
) -> list[Mapping[str, Any]]:
    return [
        {"op": "add", "path": f"{path_format.format(position)}/{field}", "value": pod_specs[name][field]}
        for position, name in enumerate(pod_set_names)
        if name in pod_specs
        for field in ("tolerations", "nodeSelector", "affinity")
        if pod_specs[name].get(field)
    ]


def propose_workload_ends(holder_keys: Sequence[str], name_of: Callable[[str], str]) -> Search:
    """Search for a minimal set of Workloads, among the first 8 of `holder_keys`, whose end would admit the pending one.

    `name_of` returns the name of a Workload by its key, or a placeholder if it is hidden.
    """
    keys = list(holder_keys[:ENDED_WORKLOADS_MAX])
    return _propose_deactivations(
        keys, lambda each: HypotheticalChange(ended_workloads=each), "end or suspend", name_of
    )


def propose_withdrawals(proposal_case: ProposalCase, name_of: Callable[[str], str]) -> Search:
    """Search for a minimal set of pending Workloads whose withdrawal would admit the explained Workload.

    Only the first ENDED_WORKLOADS_MAX Workloads ahead of it are candidates.
    """
    keys = [view.key for view in proposal_case.simulation.workloads_ahead()[:ENDED_WORKLOADS_MAX]]
    return _propose_deactivations(
        keys, lambda each: HypotheticalChange(withdrawn_workloads=each), "withdraw or suspend pending", name_of
    )


def _propose_deactivations(
    keys: Sequence[str],
    change_with: Callable[[Sequence[str]], HypotheticalChange],
    verb: str,
    name_of: Callable[[str], str],
) -> Search:
    if not keys or not (yield change_with(keys)):
        return
    smallest_count = yield from search_smallest_between(lambda count: change_with(keys[:count]), 1, len(keys))
    chosen_keys, is_minimal = list(keys[: smallest_count.amount]), smallest_count.is_minimal
    candidates = list(chosen_keys)
    try:
        while candidates and len(chosen_keys) > 1:
            remaining_keys = [each for each in chosen_keys if each != candidates[0]]
            is_needless = yield change_with(remaining_keys)
            chosen_keys = remaining_keys if is_needless else chosen_keys
            candidates = list(chosen_keys) if is_needless else candidates[1:]
    except DecisionLimitReached:
        is_minimal = False
    yield deactivation_proposal(chosen_keys, name_of, verb, is_minimal=is_minimal)


def deactivation_proposal(
    keys: Sequence[str], name_of: Callable[[str], str], verb: str = "end or suspend", *, is_minimal: bool = True
) -> Proposal:
    """Return a proposal to deactivate Workloads; it has no patches if `name_of` hides any of their names.

    `verb` begins the proposal's text. `is_minimal` is False if some of the Workloads may be needless.
    """
    patches = [
        merge_patch("Workload", name, {"spec": {"active": False}}, namespace)
        for namespace, _, name in (key.partition("/") for key in keys)
    ]
    names = [name_of(key) for key in keys]
    visible_patches = tuple(patches) if names == list(keys) else ()
    return Proposal(END, f"{verb} {', '.join(dict.fromkeys(names))}", visible_patches, is_minimal)


def propose_queueing_strategy(proposal_case: ProposalCase) -> Search:
    """Try BestEffortFIFO for a StrictFIFO ClusterQueue; propose it if the Workload would then be admitted."""
    view = proposal_case.simulation.queue.view
    if view.strict_fifo and (yield HypotheticalChange(queues={view.name: replace(view, strict_fifo=False)})):
        patch = merge_patch("ClusterQueue", view.name, {"spec": {"queueingStrategy": "BestEffortFIFO"}})
        yield Proposal(STRATEGY, f"ClusterQueue {view.name}: set queueingStrategy to BestEffortFIFO", (patch,))


def propose_preemption_rules(proposal_case: ProposalCase) -> Search:
    """Search for the weakest sufficient `withinClusterQueue`, and separately for the weakest `reclaimWithinCohort`."""
    view = proposal_case.simulation.queue.view
    for field, view_field, policies in _PREEMPTION_POLICIES:
        current_policy = getattr(view.preemption, view_field)
        for policy in policies[policies.index(current_policy) + 1 :]:
            changed_field: dict[str, Any] = {view_field: policy}
            rules = replace(view.preemption, **changed_field)
            if (yield HypotheticalChange(queues={view.name: replace(view, preemption=rules)})):
                text = f"ClusterQueue {view.name}: set preemption.{field} from {current_policy} to {policy}"
                patch = merge_patch("ClusterQueue", view.name, {"spec": {"preemption": {field: policy}}})
                yield Proposal(PREEMPTION, text, (patch,))
                break


def propose_borrowing_preemption(proposal_case: ProposalCase) -> Search:
    """Search for a change of `borrowWithinCohort` that suffices: its policy, or the lowest maxPriorityThreshold.

    Nothing is proposed if `reclaimWithinCohort` is Never, because Kueue's validation then rejects the policy.
    """
    view, priority = proposal_case.simulation.queue.view, proposal_case.view.priority
    if view.preemption.reclaim_within_cohort == "Never":
        return

    def with_rules(**fields: Any) -> HypotheticalChange:
        return HypotheticalChange(queues={view.name: replace(view, preemption=replace(view.preemption, **fields))})

    def proposal(text: str, fields: Mapping[str, Any], *, is_minimal: bool = True) -> Proposal:
        patch = merge_patch("ClusterQueue", view.name, {"spec": {"preemption": {"borrowWithinCohort": fields}}})
        return Proposal(PREEMPTION, f"ClusterQueue {view.name}: {text}", (patch,), is_minimal)

    if not view.preemption.borrow_within_cohort and (yield with_rules(borrow_within_cohort=True)):
        text = "set preemption.borrowWithinCohort.policy from Never to LowerPriority"
        yield proposal(text, {"policy": "LowerPriority"})
    threshold = view.preemption.priority_threshold_max
    if not view.preemption.borrow_within_cohort or threshold is None:
        return
    held_priorities = {
        each.priority
        for queue in proposal_case.simulation.snapshot.queues.values()
        for each in queue.workloads.values()
    }
    thresholds = sorted(each for each in held_priorities if threshold < each < priority)[:_PRIORITIES_MAX]
    if not thresholds or not (yield with_rules(priority_threshold_max=thresholds[-1])):
        return
    smallest_index = yield from search_smallest_between(
        lambda index: with_rules(priority_threshold_max=thresholds[index]), 0, len(thresholds) - 1
    )
    new_threshold = thresholds[smallest_index.amount]
    text = f"raise preemption.borrowWithinCohort.maxPriorityThreshold from {threshold} to {new_threshold}"
    yield proposal(text, {"maxPriorityThreshold": new_threshold}, is_minimal=smallest_index.is_minimal)
