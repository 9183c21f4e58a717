"""Slices of elastic jobs: the Workloads of a job that is scaled while it runs, and the pods that may be scheduled.

A job has at most two unfinished slices. The reserved slice holds the quota of the pods that run. Its replacement waits
until the quota of a larger job is free. A slice without quota is edited in place. A slice with quota is edited in place
if the job only shrinks. All pods of the job start with a scheduling gate, which is removed from as many pods as the
reserved slice has. Sources: Kueue's pkg/workloadslicing, pkg/controller/elasticjobs and
pkg/controller/jobframework/reconciler.go.

These rules differ from Kueue's:
- An evicted slice keeps its quota until the pods of its job have stopped, also if a replacement waits.
- A replacement keeps the pod templates of the first slice. Therefore, an evicted job may get other flavors.
- All unfinished slices of a finished job finish.
- A slice keeps the quota of pods that run, even if the job has become smaller.
- If a slice is evicted that a replacement waits for, the replacement is kept. Its `minCount` is the job's last size.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, count
from typing import Any, Final, NamedTuple, TypeAlias

from batchyard.api import meta, scheme, well_known
from batchyard.api.meta import Obj
from batchyard.api.views.pods import is_terminal
from batchyard.api.views.workload import workload_view
from batchyard.base.instant import SECOND, Instant
from batchyard.interfaces.client import Reader, Update, UpdateStatus
from batchyard.interfaces.controller import ReconcileResult
from batchyard.jobframework import shrinking
from batchyard.jobframework.workloads import GenericJob, PodSets, is_created_for, workload_name
from batchyard.scheduling.decisions import DecisionRules
from batchyard.scheduling.slices import SLICE_REPLACED
from batchyard.scheduling.workload import lifecycle

_REPLACED_MESSAGE: Final = "Replaced to accommodate a new workload slice"
#: The annotations of admission checks that are copied to pods whose gate is removed.
_CHECK_ANNOTATIONS: Final = (well_known.CONSUME_PROVISIONING_REQUEST, well_known.PROVISIONING_CLASS)

#: Distinguishes the name of a slice that requests the rest of a partly admitted slice. Source: KEP-12100.
_PROBE: Final = "full-scaleup-probe"

#: How long after the admission of a replacement the scheduler may take to finish the replaced slice.
_HANDOVER_PERIOD: Final = 5 * SECOND

Counts: TypeAlias = Mapping[str, int]


class SliceActions(NamedTuple):
    """The actions of the job reconciler that slices have in common with other Workloads, for one job."""

    #: Updates the priority and the admission gate of a Workload.
    sync_workload: Callable[[Obj], ReconcileResult | None]
    #: Makes the job and a Workload follow each other.
    follow_workload: Callable[[Obj], ReconcileResult]
    #: Creates a Workload with these pod sets; the function completes its manifest.
    create_workload: Callable[[PodSets, Callable[[Obj], Obj]], ReconcileResult]
    delete_workloads: Callable[[Sequence[Obj]], ReconcileResult]


class SliceRoles(NamedTuple):
    """The roles of a job's unfinished slices."""

    #: The slice that must match the job: the replacement of the reserved slice, or else the reserved slice.
    selected: Obj
    #: The latest slice with quota that is not evicted; its pod counts are granted to the job.
    reserved: Obj | None
    #: The other slices, which must finish.
    surplus: Sequence[Obj]


def assign_roles(slices: Sequence[Obj]) -> SliceRoles:
    """Return the roles of a job's unfinished slices (at least one), which must be in the order of `slice_order()`.

    Without a reserved slice, the newest slice that is not evicted is selected, or else the newest.
    """
    replacements = _replacements(slices)
    live_slices = [each for each in slices if _is_live(each)]
    reserved = next((each for each in reversed(live_slices) if _is_chain_head(each, replacements)), None)
    selected = (live_slices or slices)[-1]
    if reserved is not None:
        replacement = replacements.get(_name_key(reserved))
        selected = reserved if replacement is None or lifecycle.has_quota_reservation(replacement) else replacement
    return SliceRoles(selected, reserved, [each for each in slices if each is not selected and each is not reserved])


def _is_live(workload: Obj) -> bool:
    return not lifecycle.is_evicted(workload) and "deletionTimestamp" not in workload["metadata"]


def _is_chain_head(workload: Obj, replacements: Mapping[str, Obj]) -> bool:
    replacement = replacements.get(_name_key(workload))
    is_replaced = replacement is not None and lifecycle.has_quota_reservation(replacement)
    return lifecycle.has_quota_reservation(workload) and not is_replaced


def _replacements(slices: Sequence[Obj]) -> dict[str, Obj]:
    """Return, by the key of the replaced slice, its replacement; of two replacements, the one with quota."""
    replacements: dict[str, Obj] = {}
    for workload in slices:
        key = _replaced_key(workload)
        if key is None or not _is_live(workload):
            continue
        other = replacements.get(key)
        has_quota = lifecycle.has_quota_reservation(workload)
        if other is None or (has_quota and not lifecycle.has_quota_reservation(other)):
            replacements[key] = workload
    return replacements


def slice_order(workloads: Sequence[Obj]) -> list[Obj]:
    """Return slices oldest first: by creation time, then by their position in the chain of replacements, then by uid.

    Creation times have a resolution of one second, so a slice and its replacement may have equal ones.
    """
    replaced_key_of = {_name_key(each): _replaced_key(each) for each in workloads}

    def depth(workload: Obj) -> int:
        seen_keys: dict[str, None] = {}
        key: str | None = _name_key(workload)
        while key is not None and key not in seen_keys:
            seen_keys[key] = None
            key = replaced_key_of.get(key)
        return len(seen_keys)

    return sorted(
        workloads, key=lambda w: (w["metadata"].get("creationTimestamp", ""), depth(w), w["metadata"].get("uid", ""))
    )


def _name_key(workload: Obj) -> str:
    return f"{workload['metadata'].get('namespace', '')}/{workload['metadata']['name']}"


def _replaced_key(workload: Obj) -> str | None:
    key = meta.annotation(workload, well_known.REPLACEMENT_FOR)
    return key if key and key.startswith(f"{workload['metadata'].get('namespace', '')}/") else None


def slice_annotations(replaced: Obj | None, name: str) -> dict[str, str]:
    """Return the annotations of a new slice, given the slice that it replaces and its own name."""
    annotations = {well_known.ELASTIC_JOB: "true", well_known.SLICE_NAME: name}
    if replaced is not None:
        annotations |= {well_known.SLICE_NAME: slice_name(replaced), well_known.REPLACEMENT_FOR: _name_key(replaced)}
    return annotations


def slice_name(workload: Obj) -> str:
    """Return the name of the first slice in the chain of a slice; all pods of the job carry it as an annotation."""
    return meta.annotation(workload, well_known.SLICE_NAME) or str(workload["metadata"]["name"])


def counts_of(pod_sets: PodSets) -> Counts:
    """Return the number of pods of each pod set, by name."""
    return {pod_set["name"]: pod_set["count"] for pod_set in pod_sets}


def has_shrunk(old_counts: Counts, new_counts: Counts) -> bool:
    """Return whether at least one pod set has fewer pods than before, and none has more."""
    changes = [new_counts[name] - count for name, count in old_counts.items()]
    return min(changes, default=0) < 0 and max(changes, default=0) <= 0


def with_counts(pod_sets: PodSets, counts: Counts) -> list[Mapping[str, Any]]:
    """Return the pod sets with other numbers of pods; `minCount` is lowered to these numbers."""
    new_pod_sets: list[Mapping[str, Any]] = []
    for pod_set in pod_sets:
        new_pod_set = {**pod_set, "count": counts[pod_set["name"]]}
        if "minCount" in new_pod_set:
            new_pod_set["minCount"] = min(new_pod_set["minCount"], new_pod_set["count"])
        new_pod_sets.append(new_pod_set)
    return new_pod_sets


def with_min_counts(pod_sets: PodSets, min_counts: Counts) -> list[Mapping[str, Any]]:
    """Return the pod sets with `minCount`, the number of pods with which each may be admitted; none if not given."""
    new_pod_sets: list[Mapping[str, Any]] = []
    for pod_set in pod_sets:
        new_pod_set = {field: value for field, value in pod_set.items() if field != "minCount"}
        if pod_set["name"] in min_counts:
            new_pod_set["minCount"] = min(min_counts[pod_set["name"]], pod_set["count"])
        new_pod_sets.append(new_pod_set)
    return new_pod_sets


def granted_counts(workload: Obj) -> Counts:
    """Return the number of pods of each pod set that have quota, or are requested if the Workload has no quota.

    A slice that was admitted in part has quota for fewer pods than it requests. One that has shrunk since its admission
    requests fewer pods than were admitted.
    """
    counts = dict(counts_of(workload["spec"]["podSets"]))
    for assignment in lifecycle.admission_of(workload).get("podSetAssignments") or ():
        name = assignment["name"]
        if name in counts:
            counts[name] = min(counts[name], assignment.get("count", counts[name]))
    return counts


def with_granted_parallelism(job: Obj, workload: Obj) -> Obj:
    """Return an elastic Job with at most the parallelism that its slice has quota for; more pods cannot be ready."""
    granted = sum(granted_counts(workload).values())
    is_partial = granted < job["spec"].get("parallelism", 1) and lifecycle.has_quota_reservation(workload)
    return meta.with_path(job, ("spec", "parallelism"), granted) if is_partial else job


# The reconcile of an elastic job.


class ElasticJob(NamedTuple):
    """An elastic job that is reconciled: the job, its pod sets and Workloads, and the actions of the reconciler."""

    job: Obj
    pod_sets: PodSets
    workloads: Sequence[Obj]
    integration: GenericJob
    reader: Reader
    now: Instant
    actions: SliceActions
    #: The feature gates with which the job may grow in part, and may be preempted in part.
    rules: DecisionRules
    #: The pods that carry the name of the first slice, but that no job owns.
    unowned_pods: Sequence[meta.Key] = ()

    @property
    def grows_in_part(self) -> bool:
        """Whether the job may get a part of the additional pods that it requests."""
        strategy = meta.annotation(self.job, well_known.SCALE_UP_STRATEGY)
        return self.rules.partial_scale_up and strategy == well_known.PARTIAL_SCALE_UP

    @property
    def starts_in_part(self) -> bool:
        """Whether the job may start with one pod, and get the others one by one."""
        return self.grows_in_part and meta.annotation(self.job, well_known.PARTIAL_START) == "true"

    @property
    def may_shrink(self) -> bool:
        """Whether the job may be preempted down to its minimum."""
        return self.rules.partial_preemption and shrinking.allows_partial_preemption(self.job)


def reconcile_elastic_job(elastic: ElasticJob) -> ReconcileResult | None:
    """Return the writes of the first action that an elastic job needs; None if its slices have other pod sets.

    Such a job is reconciled like a job that is not elastic. Source: EnsureWorkloadSlices in pkg/workloadslicing.
    """
    own_workloads = [each for each in elastic.workloads if is_created_for(each, elastic.job)]
    foreign_workloads = [each for each in elastic.workloads if not is_created_for(each, elastic.job)]
    outcome = elastic.actions.delete_workloads(foreign_workloads)
    outcome.writes += _finalizer_writes(own_workloads)
    if outcome.writes:
        return outcome
    slices = slice_order([each for each in own_workloads if not lifecycle.is_finished(each)])
    completion = elastic.integration.completion(elastic.job)
    if completion is not None:
        for each in slices:
            followed = elastic.actions.follow_workload(each)
            outcome.writes += followed.writes
            outcome.events += followed.events
        return outcome
    if not slices:
        return outcome if _has_failed(own_workloads) else _create_slice(elastic, elastic.pod_sets, None)
    return _reconcile_slices(elastic, slices)


def _reconcile_slices(elastic: ElasticJob, slices: Sequence[Obj]) -> ReconcileResult | None:
    roles = assign_roles(slices)
    ending_slice = next((each for each in slices if _is_ending(each, roles)), None)
    if ending_slice is not None:
        return elastic.actions.follow_workload(ending_slice)
    due: Instant | None = None
    if elastic.rules.partial_preemption:
        waiting = roles.selected if roles.selected is not roles.reserved and roles.reserved is not None else None
        step, due = shrinking.next_step(elastic.job, roles.reserved, waiting, elastic.now)
        if step is not None:
            return step
    finish_at = _handover_end(slices, elastic.now)
    surplus = roles.surplus if finish_at is None else [each for each in roles.surplus if not _holds_quota(each)]
    if surplus:
        return ReconcileResult([UpdateStatus(each) for each in _finished_slices(slices, surplus, elastic.now)])
    outcome = _sync_slices(elastic, roles)
    if outcome is not None and (finish_at is not None or due is not None):
        outcome.requeue_at = min(each for each in (finish_at, due) if each is not None)
    return outcome


def _sync_slices(elastic: ElasticJob, roles: SliceRoles) -> ReconcileResult | None:
    job_counts, counts = counts_of(elastic.pod_sets), counts_of(roles.selected["spec"]["podSets"])
    if job_counts.keys() != counts.keys():
        return None
    counts_terminating = elastic.rules.partial_preemption and shrinking.is_shrinking(roles.reserved)
    running_counts = _running_counts(_pods_of(elastic), counts_terminating=counts_terminating)
    new_counts = {name: max(pod_count, running_counts.get(name, 0)) for name, pod_count in job_counts.items()}
    if new_counts != counts:
        return _resize(elastic, roles.selected, counts, new_counts)
    for each in (roles.selected, roles.reserved):
        outcome = None if each is None else elastic.actions.sync_workload(each)
        if outcome is not None:
            return outcome
    if elastic.grows_in_part and roles.reserved is not None and lifecycle.is_admitted(roles.reserved):
        if roles.selected is roles.reserved and _lacks_pods(elastic, roles.reserved):
            extra = _probe_extra(granted_counts(roles.reserved))
            return _create_slice(elastic, roles.reserved["spec"]["podSets"], roles.reserved, extra)
        outcome = elastic.actions.follow_workload(roles.reserved)
        if outcome.writes:
            return outcome
    return _follow_slices(elastic, roles)


def _lacks_pods(elastic: ElasticJob, workload: Obj) -> bool:
    """Return whether a slice with quota was admitted with fewer pods than its job still needs."""
    reclaimable = {each["name"]: each["count"] for each in elastic.integration.reclaimable_pods(elastic.job)}
    needed = {name: n - reclaimable.get(name, 0) for name, n in counts_of(workload["spec"]["podSets"]).items()}
    return any(n < needed[name] for name, n in granted_counts(workload).items())


def _handover_end(slices: Sequence[Obj], now: Instant) -> Instant | None:
    """Return until when the scheduler may finish a slice whose replacement has quota; None if there is no such slice.

    The scheduler reports the replacement. If it restarts in between, the job reconciler finishes the slice later.
    """
    reserved_views = {_name_key(each): workload_view(each) for each in slices if _holds_quota(each)}
    ends = [
        view.reserved_at + _HANDOVER_PERIOD
        for view in reserved_views.values()
        if view.reserved_at is not None and view.replaced_slice in reserved_views
    ]
    latest_end = max(ends, default=now)
    return latest_end if latest_end > now else None


def _holds_quota(workload: Obj) -> bool:
    return lifecycle.has_quota_reservation(workload) and not lifecycle.is_evicted(workload)


def _is_ending(workload: Obj, roles: SliceRoles) -> bool:
    """Return whether the job must stop because a slice is deleted, or is evicted while no other slice holds quota."""
    if roles.reserved is not None:
        return False
    is_deleted = "deletionTimestamp" in workload["metadata"]
    return is_deleted or (lifecycle.is_evicted(workload) and lifecycle.has_quota_reservation(workload))


def _resize(elastic: ElasticJob, workload: Obj, counts: Counts, new_counts: Counts) -> ReconcileResult:
    pod_sets = with_counts(workload["spec"]["podSets"], new_counts)
    has_quota = lifecycle.has_quota_reservation(workload)
    if elastic.grows_in_part and not elastic.may_shrink and not has_quota and _replaced_key(workload) is None:
        pod_sets = with_min_counts(pod_sets, _least_counts(elastic, new_counts))
    if not has_quota or has_shrunk(counts, new_counts):
        return ReconcileResult([Update(meta.with_path(workload, ("spec", "podSets"), pod_sets))])
    return _create_slice(elastic, pod_sets, workload)


def _create_slice(
    elastic: ElasticJob, pod_sets: PodSets, replaced: Obj | None, name_extra: str = ""
) -> ReconcileResult:
    """Return the write that creates a slice.

    With partial scale-up, `minCount` is the number of pods that have quota in the replaced slice, of each pod set that
    grows. In a first slice, it is the number of pods that are requested. For a job that starts in part, it is 1. For a
    job that may be preempted in part, it is the minimum of the job.
    """
    annotations: dict[str, str] = {}
    if elastic.grows_in_part:
        annotations[well_known.SCALE_UP_STRATEGY] = well_known.PARTIAL_SCALE_UP
        requested = counts_of(pod_sets)
        granted = requested if replaced is None else granted_counts(replaced)
        growing = requested if replaced is None else [name for name, n in requested.items() if n > granted[name]]
        pod_sets = with_min_counts(pod_sets, _least_counts(elastic, {name: granted[name] for name in growing}))
        if elastic.starts_in_part:
            annotations[well_known.PARTIAL_START] = "true"
    if elastic.may_shrink:
        annotations[well_known.PARTIAL_PREEMPTION] = "true"
    if elastic.may_shrink or not elastic.grows_in_part:
        floors = {each["name"]: each["minCount"] for each in elastic.pod_sets if "minCount" in each}
        pod_sets = with_min_counts(pod_sets, floors if elastic.may_shrink else {})

    def complete(workload: Obj) -> Obj:
        name = _unused_name(elastic.job, elastic.workloads, name_extra)
        old_annotations = workload["metadata"].get("annotations") or {}
        return meta.with_metadata(
            workload, name=name, annotations={**old_annotations, **annotations, **slice_annotations(replaced, name)}
        )

    return elastic.actions.create_workload(pod_sets, complete)


def _least_counts(elastic: ElasticJob, counts: Counts) -> Counts:
    """Return the numbers of pods with which a slice may be admitted: these, or one pod if the job starts in part."""
    return {name: min(count, 1) for name, count in counts.items()} if elastic.starts_in_part else counts


def _probe_extra(granted: Counts) -> str:
    return f"-{_PROBE}-{'-'.join(map(str, granted.values()))}"


def _unused_name(job: Obj, workloads: Sequence[Obj], name_extra: str) -> str:
    """Return Kueue's name for a new slice, which depends on the job's generation; another one if the name is in use."""
    metadata, used_names = job["metadata"], [each["metadata"]["name"] for each in workloads]
    api_group, _, _ = job["apiVersion"].rpartition("/")
    generation = f"{metadata.get('generation', 1)}{name_extra}"
    for extra in chain((generation,), (f"{generation}-{number}" for number in count(1))):
        name = workload_name(job["kind"], api_group, metadata["name"], metadata.get("uid", ""), extra)
        if name not in used_names:
            break
    return name


def _follow_slices(elastic: ElasticJob, roles: SliceRoles) -> ReconcileResult:
    """Return the writes by which the job follows its slices; a job that runs gets its pods ungated.

    A suspended job starts with the pods of the reserved slice, even if a replacement waits.
    """
    is_suspended, reserved = elastic.integration.is_suspended(elastic.job), roles.reserved
    if is_suspended and reserved is not None and lifecycle.is_admitted(reserved):
        return elastic.actions.follow_workload(reserved)
    outcome = elastic.actions.follow_workload(roles.selected)
    if outcome.writes or is_suspended or reserved is None or not lifecycle.is_admitted(reserved):
        return outcome
    pods = [pod for pod in _pods_of(elastic) if _slice_name_of_pod(pod) == slice_name(reserved)]
    outcome.writes += [Update(pod) for pod in ungated_pods(pods, reserved)]
    return outcome


def _slice_name_of_pod(pod: Obj) -> str | None:
    """Return the first slice of a pod's chain; pods of an earlier chain, which the job left, stay gated."""
    return meta.annotation(pod, well_known.SLICE_NAME) or meta.annotation(pod, well_known.WORKLOAD)


def _pods_of(elastic: ElasticJob) -> list[Obj]:
    owned_objects = elastic.reader.owned_by(elastic.job["metadata"]["uid"], elastic.job["metadata"]["namespace"])
    unowned_pods = [pod for key in elastic.unowned_pods if (pod := elastic.reader.get(key)) is not None]
    return [*(obj for obj in owned_objects if meta.group_kind(obj) == scheme.POD), *unowned_pods]


def _running_counts(pods: Sequence[Obj], *, counts_terminating: bool = False) -> Counts:
    """Return, by pod set, the number of pods without the gate that neither have ended nor are being deleted.

    With `counts_terminating`, pods that are being deleted count until they have stopped.

    A slice does not shrink below this number. The Job controller does not delete pods of a Job without completions once
    one has succeeded.
    """
    counts: dict[str, int] = {}
    for pod in pods:
        is_ending = "deletionTimestamp" in pod["metadata"] and not counts_terminating
        if not (has_gate(pod) or is_terminal(pod) or is_ending):
            pod_set = meta.label(pod, well_known.POD_SET) or ""
            counts[pod_set] = counts.get(pod_set, 0) + 1
    return counts


def _finished_slices(slices: Sequence[Obj], surplus: Sequence[Obj], now: Instant) -> Iterator[Obj]:
    replacements = _replacements(slices)
    for workload in surplus:
        if _name_key(workload) in replacements:
            yield lifecycle.finish(workload, SLICE_REPLACED, _REPLACED_MESSAGE, now)
        else:
            yield lifecycle.finish(workload, lifecycle.OUT_OF_SYNC, shrinking.OUT_OF_SYNC_MESSAGE, now)


def _finalizer_writes(workloads: Sequence[Obj]) -> Iterator[Update]:
    for workload in workloads:
        if lifecycle.is_finished(workload) and well_known.RESOURCE_IN_USE in meta.finalizers_of(workload):
            yield Update(meta.without_finalizer(workload, well_known.RESOURCE_IN_USE))


def _has_failed(finished_workloads: Sequence[Obj]) -> bool:
    """Return whether the job could not start, so that a new slice would fail in the same way."""
    conditions = [meta.find_condition(each, lifecycle.FINISHED) for each in finished_workloads]
    return any(c is not None and c["reason"] == lifecycle.FAILED_TO_START for c in conditions)


# The scheduling gates of an elastic job's pods.


def ungated_pods(pods: Sequence[Obj], workload: Obj) -> list[Obj]:
    """Return the pods whose gate must be removed, without it; no more per pod set than the Workload has.

    The lowest completion indexes come first, then the lowest names. Pods without the gate count until they end. Source:
    podsToUngate in Kueue's pkg/controller/elasticjobs.
    """
    free_counts = dict(granted_counts(workload))
    gated_pods = []
    for pod in pods:
        if is_terminal(pod):
            continue
        if has_gate(pod):
            gated_pods.append(pod)
        else:
            pod_set = meta.label(pod, well_known.POD_SET) or ""
            free_counts[pod_set] = free_counts.get(pod_set, 0) - 1
    selected_pods = []
    for pod in sorted(gated_pods, key=_ungating_order):
        pod_set = meta.label(pod, well_known.POD_SET) or ""
        ungated_pod = _ungate(pod, workload, pod_set)
        if "deletionTimestamp" in pod["metadata"] or free_counts.get(pod_set, 0) <= 0 or ungated_pod is None:
            continue
        free_counts[pod_set] -= 1
        selected_pods.append(ungated_pod)
    return selected_pods


def has_gate(pod: Obj) -> bool:
    """Return whether a pod has the scheduling gate of elastic jobs."""
    return any(gate["name"] == well_known.ELASTIC_JOB for gate in pod["spec"].get("schedulingGates") or ())


def _ungating_order(pod: Obj) -> tuple[bool, int, str]:
    index = meta.parse_integer(meta.annotation(pod, well_known.COMPLETION_INDEX) or "")
    return index is None, index or 0, pod["metadata"]["name"]


def _ungate(pod: Obj, workload: Obj, pod_set: str) -> Obj | None:
    """Return the pod without the gate, with the updates of admission checks; None if these conflict with the pod."""
    gates = [gate for gate in pod["spec"]["schedulingGates"] if gate["name"] != well_known.ELASTIC_JOB]
    new_pod = meta.with_path(pod, ("spec", "schedulingGates"), gates or None)
    for update in _check_updates(workload, pod_set):
        added_annotations = {k: v for k, v in (update.get("annotations") or {}).items() if k in _CHECK_ANNOTATIONS}
        for path, added in (
            (("metadata", "annotations"), added_annotations),
            (("spec", "nodeSelector"), update.get("nodeSelector") or {}),
        ):
            old = new_pod[path[0]].get(path[1]) or {}
            if any(old.get(key, value) != value for key, value in added.items()):
                return None
            if added:
                new_pod = meta.with_path(new_pod, path, {**old, **added})
    return new_pod


def _check_updates(workload: Obj, pod_set: str) -> Iterator[Mapping[str, Any]]:
    for check in lifecycle.checks_of(workload):
        yield from (update for update in check.get("podSetUpdates") or () if update["name"] == pod_set)
