"""Proposed changes that would admit a Workload, each tried in a fork: fixes, priority, size, flavors, strategy."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple

from batchyard.api.meta import Obj, selector, with_path
from batchyard.api.views.workload import ClusterQueueView, FlavorView, WorkloadView
from batchyard.explain.document import PodSetVerdicts
from batchyard.explain.fork import DecisionLimitReached, Fork, HypotheticalChange
from batchyard.scheduling.cluster_queue import ClusterQueue
from batchyard.scheduling.cycle import SchedulingPolicy
from batchyard.scheduling.preemption.alternatives import MissingQuotaHolder
from batchyard.scheduling.scheduler_cache import SchedulerCache
from batchyard.scheduling.workload import lifecycle

# --- proposal ---
#
# A change that would admit a Workload: its description, its patches, and the proof by simulation.


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
    """A change that admits the Workload in a simulation. The creator has simulated it, and one unit less."""

    kind: str
    text: str
    apply: Sequence[Patch]

    def document(self) -> dict[str, Any]:
        """Return the proposal as a part of the document."""
        return {"kind": self.kind, "text": self.text, "apply": list(self.apply), "proven": True}


class ProposalCase(NamedTuple):
    """A pending Workload, and a fork for simulations."""

    workload: Obj
    view: WorkloadView
    looks: Sequence[PodSetVerdicts]
    fork: Fork
    #: The job that the Workload was created for; None if there is none.
    owner: Obj | None
    #: The binding limit.
    limit: str = ""


def json_patch(kind: str, name: str, operations: Sequence[Mapping[str, Any]], namespace: str = "") -> Patch:
    """Return a patch for `kubectl patch --type json`."""
    return _patch(kind, name, namespace, "json", list(operations))


def merge_patch(kind: str, name: str, fields: Mapping[str, Any], namespace: str = "") -> Patch:
    """Return a patch for `kubectl patch --type merge`."""
    return _patch(kind, name, namespace, "merge", dict(fields))


def _patch(kind: str, name: str, namespace: str, how: str, patch: Any) -> Patch:
    where = {"namespace": namespace} if namespace else {}
    return {"kind": kind, **where, "name": name, "type": how, "patch": patch}


# --- smallest ---
#
# Searches for the least value that satisfies a predicate.


def smallest(will_do: Callable[[Sequence[int]], bool], steps: Sequence[Sequence[int]]) -> list[int] | None:
    """Return amounts that satisfy `will_do`, none of which can be one less; None if the last step fails.

    `steps` are increasing guesses; the first is the likely one.
    """
    place = _first(lambda index: will_do(steps[index]), len(steps))
    if place is None:
        return None
    found = list(steps[place])
    is_new = True
    while is_new:
        is_new = False
        for dim, amount in enumerate(found):
            before, after = found[:dim], found[dim + 1 :]
            least = least_amount(partial(_with_one, will_do, before, after), amount)
            is_new |= least < amount and len(found) > 1
            found[dim] = least
    return found


def _with_one(will_do: Callable[[Sequence[int]], bool], before: list[int], after: list[int], amount: int) -> bool:
    return will_do([*before, amount, *after])


def least_amount(will_do: Callable[[int], bool], amount: int) -> int:
    """Return the least amount with `will_do`, searched downwards to 0 while one less also holds."""
    if amount == 0 or not will_do(amount - 1):
        return amount
    return least_between(will_do, 0, amount - 1)


def _first(will_do: Callable[[int], bool], count: int) -> int | None:
    """Return the first index with `will_do`: the first is tested, then the last, then those between."""
    if will_do(0):
        return 0
    if count < 2 or not will_do(count - 1):
        return None
    return least_between(will_do, 1, count - 1)


def least_between(will_do: Callable[[int], bool], low: int, high: int) -> int:
    """Return the least number in the range with `will_do`, which is monotonic and holds for `high`."""
    while low < high:
        middle = (low + high) // 2
        if will_do(middle):
            high = middle
        else:
            low = middle + 1
    return high


_NOT_STOPPED: Final = {"spec": {"stopPolicy": "None"}}


class _Fix(NamedTuple):
    """A fix, with its patch and the fixed ClusterQueue."""

    text: str
    patch: Patch
    view: ClusterQueueView


def propose_fixes(
    workload: Obj, view: WorkloadView, queue: ClusterQueue, index: SchedulerCache, policy: SchedulingPolicy
) -> Iterator[Proposal]:
    """Propose the fix of the only fault, if the Workload would be admitted then."""
    found = list(_faults(workload, view, queue, index))
    if len(found) != 1:
        return
    remedy, fork = found[0], Fork(index, policy, view, queue)
    try:
        if fork.admits(HypotheticalChange(queues={queue.name: remedy.view}, opens=True)):
            yield Proposal(FIX, remedy.text, (remedy.patch,))
    except DecisionLimitReached:
        return
    finally:
        fork.close()


def _faults(workload: Obj, view: WorkloadView, queue: ClusterQueue, index: SchedulerCache) -> Iterator[_Fix]:
    """Yield all faults that a field can fix; nothing if other faults exist."""
    started, labels = replace(queue.view, stop_policy="None"), index.namespaces.get(view.namespace)
    if not index.readiness_with(started).active or queue.in_cycle or labels is None:
        return
    if not lifecycle.is_active(workload):
        patch = merge_patch("Workload", view.name, {"spec": {"active": True}}, view.namespace)
        yield _Fix("set its spec.active to true", patch, started)
    local = index.book.local_queues.get(view.queue)
    if local is not None and local.stop_policy != "None":
        name = view.queue.partition("/")[2]
        patch = merge_patch("LocalQueue", name, _NOT_STOPPED, view.namespace)
        yield _Fix(f"LocalQueue {name}: set stopPolicy to None", patch, started)
    if queue.view.stop_policy != "None":
        patch = merge_patch("ClusterQueue", queue.name, _NOT_STOPPED)
        yield _Fix(f"ClusterQueue {queue.name}: set stopPolicy to None", patch, started)
    if queue.view.namespaces is None or not queue.view.namespaces.matches(labels):
        operation: dict[str, Any] = {"op": "add", "path": "/spec/namespaceSelector", "value": {}}
        text = f"ClusterQueue {queue.name}: let namespaceSelector select namespace {view.namespace}, such as by {{}}"
        wide = replace(started, namespaces=selector({}))
        yield _Fix(text, json_patch("ClusterQueue", queue.name, [operation]), wide)


# --- other changes ---
#
# Changes other than quota that would admit a Workload: priority, size, flavor, end of others, queueing strategy.


Imagine = Callable[[Obj, WorkloadView], WorkloadView]

_PRIORITIES_MAX: Final = 64
_PRIORITY_MAX: Final = (1 << 31) - 1
#: At most this many holders are proposed to end, and at most this many are considered.
_ENDED_MAX: Final = 4
_LOOKED_AT_MAX: Final = 64


def priority_changes(case: ProposalCase, imagine: Imagine, classes: Mapping[str, int]) -> Iterator[Proposal]:
    """Propose the lowest priority that admits the Workload, by preemption or by queue order.

    `classes` are the WorkloadPriorityClasses by name.
    """
    fork, own = case.fork, case.view.priority
    others = [view.priority for view in fork.others()]
    held = [held.priority for queue in fork.snapshot.queues.values() for held in queue.workloads.values()]
    thresholds = dict.fromkeys([value + more for value in (*others, *held) for more in (0, 1)])
    values = sorted(value for value in thresholds if own < value <= _PRIORITY_MAX)[:_PRIORITIES_MAX]

    def will_do(value: int) -> bool:
        obj = with_path(case.workload, ("spec", "priority"), value)
        return fork.admits(HypotheticalChange(workload=imagine(obj, case.view)))

    found = _lowest(values, will_do)
    if found is None or will_do(found - 1):
        return
    fitting = min(((value, name) for name, value in classes.items() if value >= found), default=None)
    hint = "" if fitting is None else f"; WorkloadPriorityClass {fitting[1]} has {fitting[0]}"
    text = f"raise its priority from {own} to {found}{hint}"
    patch = merge_patch("Workload", case.view.name, {"spec": {"priority": found}}, case.view.namespace)
    yield Proposal(PRIORITY, text, (patch,))


def _lowest(values: Sequence[int], will_do: Callable[[int], bool]) -> int | None:
    """Return the first of ascending values for which `will_do` holds, if it holds for the last."""
    if not values or not will_do(values[-1]):
        return None
    low, high = 0, len(values) - 1
    while low < high:
        middle = (low + high) // 2
        if will_do(values[middle]):
            high = middle
        else:
            low = middle + 1
    return values[high]


def size_changes(case: ProposalCase, imagine: Imagine) -> Iterator[Proposal]:
    """Propose the largest pod count of its largest pod set that would be admitted."""
    pod_sets = case.workload["spec"]["podSets"]
    index = max(range(len(pod_sets)), key=lambda each: int(pod_sets[each].get("count", 1)))
    pod_set = pod_sets[index]
    count: int = pod_set.get("count", 1)

    def will_do(pods: int) -> bool:
        fewer = {**pod_set, "count": pods}
        fewer.pop("minCount", None)
        obj = with_path(case.workload, ("spec", "podSets"), [*pod_sets[:index], fewer, *pod_sets[index + 1 :]])
        return case.fork.admits(HypotheticalChange(workload=imagine(obj, case.view)))

    step = _pods_of_one_job(case.owner, pod_set["name"])
    most = _most(lambda jobs: will_do(jobs * step), count // step)
    if most:
        named = f" of pod set {pod_set['name']}" if len(pod_sets) > 1 else ""
        text = f"ask for {most * step} pods{named} instead of {count}"
        yield Proposal(SIZE, text, _count_patches(case, index, most * step))


def _most(will_do: Callable[[int], bool], limit: int) -> int:
    """Return the largest number below `limit` for which `will_do` holds; 0 if it fails for 1."""
    if limit < 2 or not will_do(1):
        return 0
    low, high = 1, limit  # holds, fails
    while high - low > 1:
        middle = (low + high) // 2
        if will_do(middle):
            low = middle
        else:
            high = middle
    return low


def _pods_of_one_job(owner: Obj | None, pod_set: str) -> int:
    """Return the step by which a pod set can shrink: the pods of one whole Job for a JobSet."""
    if owner is None or owner["kind"] != "JobSet":
        return 1
    replicated = {each["name"]: int(each.get("replicas", 1)) for each in owner["spec"].get("replicatedJobs") or ()}
    specs = {each["name"]: each["template"]["spec"] for each in owner["spec"].get("replicatedJobs") or ()}
    if replicated.get(pod_set, 0) < 1:
        return 1
    spec = specs[pod_set]
    parallelism = int(spec.get("parallelism", 1))
    return max(1, min(parallelism, int(spec.get("completions") or parallelism)))


def _count_patches(case: ProposalCase, index: int, count: int) -> Sequence[Patch]:
    """Return the patches that set the pod count; none for a JobSet, which must be recreated."""
    if case.owner is not None and case.owner["kind"] == "JobSet":
        return ()
    if case.owner is not None and case.owner["kind"] == "Job":
        name, namespace = case.owner["metadata"]["name"], case.owner["metadata"].get("namespace", "")
        return (merge_patch("Job", name, {"spec": {"parallelism": count}}, namespace),)
    operation = {"op": "replace", "path": f"/spec/podSets/{index}/count", "value": count}
    return (json_patch("Workload", case.view.name, [operation], case.view.namespace),)


def flavor_changes(case: ProposalCase, imagine: Imagine) -> Iterator[Proposal]:
    """Propose tolerations or selectors that make an excluded flavor with free quota usable."""
    for name in _ruled_out(case):
        flavor = case.fork.snapshot.flavors.get(name)
        if flavor is None:
            continue
        pod_sets = [_suited(pod_set, flavor) for pod_set in case.workload["spec"]["podSets"]]
        obj = with_path(case.workload, ("spec", "podSets"), pod_sets)
        if case.fork.admits(HypotheticalChange(workload=imagine(obj, case.view))):
            yield Proposal(
                FLAVOR,
                f"let its pods use flavor {name}: {_describe_pod_changes(case, flavor)}",
                _suiting(case, pod_sets),
            )


def _ruled_out(case: ProposalCase) -> list[str]:
    found = [look.flavor for pod_set in case.looks for look in pod_set.looks if look.obstacle]
    return list(dict.fromkeys(found))


def _suited(pod_set: Mapping[str, Any], flavor: FlavorView) -> dict[str, Any]:
    """Return a pod set whose pods may use a flavor: they tolerate its taints and select its labels."""
    template = pod_set["template"]
    return {**pod_set, "template": {**template, "spec": _suited_spec(template["spec"], flavor)}}


def _suited_spec(spec: Mapping[str, Any], flavor: FlavorView) -> dict[str, Any]:
    tolerations = [
        {"key": taint.key, "operator": "Equal", "value": taint.value, "effect": taint.effect}
        if taint.value
        else {"key": taint.key, "operator": "Exists", "effect": taint.effect}
        for taint in flavor.taints
    ]
    known = list(spec.get("tolerations") or ())
    made = {**spec, "tolerations": [*known, *[each for each in tolerations if each not in known]]}
    selector = spec.get("nodeSelector") or {}
    if selector:
        made["nodeSelector"] = {key: flavor.labels.get(key, value) for key, value in selector.items()}
    affinity = spec.get("affinity") or {}
    node = affinity.get("nodeAffinity") or {}
    if "requiredDuringSchedulingIgnoredDuringExecution" in node and flavor.labels:
        expressions = [
            {"key": key, "operator": "In", "values": [value]} for key, value in sorted(flavor.labels.items())
        ]
        required = {"nodeSelectorTerms": [{"matchExpressions": expressions}]}
        kept = {**node, "requiredDuringSchedulingIgnoredDuringExecution": required}
        made["affinity"] = {**affinity, "nodeAffinity": kept}
    return made


def _describe_pod_changes(case: ProposalCase, flavor: FlavorView) -> str:
    """Describe the required changes of the pods."""
    parts = []
    specs = [pod_set["template"]["spec"] for pod_set in case.workload["spec"]["podSets"]]
    suited = [_suited_spec(spec, flavor) for spec in specs]
    if any(
        new.get("tolerations") != list(old.get("tolerations") or ()) for new, old in zip(suited, specs, strict=True)
    ):
        parts.append(f"tolerate {', '.join(f'{taint.key}={taint.value}:{taint.effect}' for taint in flavor.taints)}")
    if any(new.get("nodeSelector") != old.get("nodeSelector") for new, old in zip(suited, specs, strict=True)):
        labels = {key: value for new in suited for key, value in (new.get("nodeSelector") or {}).items()}
        parts.append(f"select {', '.join(f'{key}={value}' for key, value in labels.items() if key in flavor.labels)}")
    if any(new.get("affinity") != old.get("affinity") for new, old in zip(suited, specs, strict=True)):
        parts.append(f"require {', '.join(f'{key}={value}' for key, value in sorted(flavor.labels.items()))}")
    return ", ".join(parts)


def _suiting(case: ProposalCase, pod_sets: Sequence[Mapping[str, Any]]) -> Sequence[Patch]:
    """Return the patches for the pods; none for a job whose Workload is recreated only for changed tolerations."""
    before = [pod_set["template"]["spec"] for pod_set in case.workload["spec"]["podSets"]]
    after = {pod_set["name"]: pod_set["template"]["spec"] for pod_set in pod_sets}
    owner = case.owner
    if owner is None:
        operations = _additions(after, list(after), "/spec/podSets/{}/template/spec")
        return (json_patch("Workload", case.view.name, operations, case.view.namespace),)
    if not any(
        list(new["tolerations"]) != (old.get("tolerations") or [])
        for new, old in zip(after.values(), before, strict=True)
    ):
        return ()
    name, namespace = owner["metadata"]["name"], owner["metadata"].get("namespace", "")
    if owner["kind"] == "Job":
        operations = _additions(after, list(after), "/spec/template/spec")
    else:
        order = [each["name"] for each in owner["spec"].get("replicatedJobs") or ()]
        operations = _additions(after, order, "/spec/replicatedJobs/{}/template/spec/template/spec")
    return (json_patch(owner["kind"], name, operations, namespace),)


def _additions(specs: Mapping[str, Mapping[str, Any]], order: Sequence[str], where: str) -> list[Mapping[str, Any]]:
    """Return the operations that add the changed pod spec fields at their paths."""
    return [
        {"op": "add", "path": f"{where.format(place)}/{field}", "value": specs[name][field]}
        for place, name in enumerate(order)
        if name in specs
        for field in ("tolerations", "nodeSelector", "affinity")
        if specs[name].get(field)
    ]


def end_changes(
    case: ProposalCase, holders: Sequence[MissingQuotaHolder], name_of: Callable[[str], str]
) -> Iterator[Proposal]:
    """Propose the fewest holders of the missing quota to end, in the order of `holders`.

    `name_of` returns the name of a Workload by its key, or a placeholder if it is hidden.
    """
    keys = [holder.workload.key for holder in holders[:_LOOKED_AT_MAX]]
    chosen = _enough(case.fork, keys)
    if not chosen:
        return
    patches = [
        merge_patch("Workload", name, {"spec": {"active": False}}, namespace)
        for namespace, _, name in (key.partition("/") for key in chosen)
    ]
    names = [name_of(key) for key in chosen]
    is_visible = names == chosen
    yield Proposal(END, f"end or suspend {', '.join(dict.fromkeys(names))}", tuple(patches) if is_visible else ())


def _enough(fork: Fork, keys: Sequence[str]) -> list[str]:
    """Return a minimal set of Workloads whose end admits the target; empty if there is none."""
    chosen: list[str] = []
    for key in keys[:_ENDED_MAX]:
        chosen.append(key)
        if fork.admits(HypotheticalChange(gone=chosen)):
            break
    else:
        return []
    left = list(chosen)
    while left:
        spared = [each for each in chosen if each != left[0]]
        if fork.admits(HypotheticalChange(gone=spared)):
            chosen = left = spared
        else:
            left = left[1:]
    return chosen


def strategy_changes(case: ProposalCase) -> Iterator[Proposal]:
    """Propose BestEffortFIFO if Workloads ahead of it block it."""
    case.fork.restore()
    view = case.fork.queue.view
    if not view.strict_fifo:
        return
    if case.fork.admits(HypotheticalChange(queues={view.name: replace(view, strict_fifo=False)})):
        patch = merge_patch("ClusterQueue", view.name, {"spec": {"queueingStrategy": "BestEffortFIFO"}})
        yield Proposal(STRATEGY, f"ClusterQueue {view.name}: set queueingStrategy to BestEffortFIFO", (patch,))
