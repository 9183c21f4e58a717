"""Rules on pods and groups of pods in queues; the other rules treat each of them as a job.

Source: the webhook and the reconciler in pkg/controller/jobs/pod of Kueue, by way of `jobs/pod`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from batchyard.api import scheme, well_known
from batchyard.api.manifests import Manifest
from batchyard.api.meta import Obj, annotation, controller_of, group_kind, label, owner_key
from batchyard.api.views import queued_pods
from batchyard.api.views.pods import is_terminal
from batchyard.base.counts import count_with_noun, select_verb
from batchyard.lint.findings import LintRule, RuleResult, Severity
from batchyard.lint.linted_manifests import LintedManifests
from batchyard.lint.workloads import LintedJob

#: The kinds whose pods need no quota of their own if the object is in a queue.
_OWNER_KINDS: Final = (scheme.JOB, scheme.JOB_SET, scheme.POD)
_GROUP_KEYS: Final = (("labels", well_known.POD_GROUP_NAME), ("annotations", well_known.POD_GROUP_COUNT))


@dataclass(frozen=True, slots=True, eq=False)
class LintedPodGroup:
    """A group of pods in a queue, or a single pod in a queue."""

    #: The name of the group; '' for a single pod.
    name: str
    #: The pods, in the order of the manifests.
    members: Sequence[Manifest]

    @property
    def first(self) -> Obj:
        """The pod whose labels and annotations count for the group."""
        return self.members[0].obj

    @property
    def pod_sets(self) -> list[dict[str, Any]]:
        """The pod sets of the Workload that Kueue creates."""
        from batchyard.jobs.pod.group import PodJob  # noqa: PLC0415 - only manifests with pods in queues need it

        return PodJob([member.obj for member in self.members], self.name, 0).pod_sets(self.first)


def groups_by_first_member(manifests: Sequence[Manifest]) -> Mapping[int, LintedPodGroup]:
    """Return the groups of pods in queues and the single ones, by the identity of the manifest of their first pod.

    Pods that have ended, and pods whose owner is in a queue, are left out.
    """
    queued_owners = {
        (group_kind(each.obj), each.obj["metadata"].get("namespace", ""), each.obj["metadata"].get("name"))
        for each in manifests
        if group_kind(each.obj) in _OWNER_KINDS and label(each.obj, well_known.QUEUE_NAME)
    }
    members: dict[tuple[str, str, int], list[Manifest]] = {}
    for manifest in manifests:
        pod = manifest.obj
        if group_kind(pod) != scheme.POD or not label(pod, well_known.QUEUE_NAME) or is_terminal(pod):
            continue
        owner, namespace = controller_of(pod), pod["metadata"].get("namespace", "")
        if owner is not None and _identity(owner, namespace) in queued_owners and not _has_suspending_parent(pod):
            continue
        name = queued_pods.group_name(pod)
        members.setdefault((namespace, name, 0 if name else id(manifest)), []).append(manifest)
    return {id(group[0]): LintedPodGroup(name, group) for (_, name, _), group in members.items()}


def _identity(owner: Mapping[str, Any], namespace: str) -> tuple[str, str, str | None]:
    key = owner_key(owner, namespace)
    return key.kind, namespace, key.name


def _has_suspending_parent(pod: Obj) -> bool:
    return annotation(pod, well_known.SUSPENDING_PARENT) is not None


def _groups(linted: LintedManifests) -> Iterator[LintedPodGroup]:
    if linted.has_kind(scheme.POD):
        yield from (group for group in groups_by_first_member(linted.manifests).values() if group.name)


def _name_of(obj: Obj) -> str:
    metadata = obj["metadata"]
    return str(metadata.get("name") or metadata.get("generateName", ""))


def pod_group_differs(linted: LintedManifests) -> Iterator[RuleResult]:
    """Report each pod with another queue or number of pods than the first pod of its group."""
    for group in _groups(linted):
        queue, first_name = label(group.first, well_known.QUEUE_NAME), _name_of(group.first)
        count = annotation(group.first, well_known.POD_GROUP_COUNT)
        for member in group.members[1:]:
            for field, key, first_value in (
                ("labels", well_known.QUEUE_NAME, queue),
                ("annotations", well_known.POD_GROUP_COUNT, count),
            ):
                value = (member.obj["metadata"].get(field) or {}).get(key)
                if value == first_value:
                    continue
                problem = f"pod {first_name} of group {group.name} has {key}: {first_value}: the group never starts"
                patch = {"metadata": {field: {key: first_value}}}
                fix = f"set the same {key} on all pods of the group"
                yield RuleResult(member, f"metadata.{field}[{key}]", problem, fix, [(member, patch)])


def pod_group_size(linted: LintedManifests) -> Iterator[RuleResult]:
    """Report each group with fewer or more pods in the manifests than its total count."""
    path = f"metadata.annotations[{well_known.POD_GROUP_COUNT}]"
    for group in _groups(linted):
        total, count = queued_pods.group_count(group.first), len(group.members)
        if total is None or any(not each.obj["metadata"].get("name") for each in group.members):
            continue
        names = f"group {group.name} has {total} pods, but the manifests have {count}"
        if count > total:
            problem = f"{names}: the youngest {select_verb(count - total, 'pod is', 'pods are')} deleted"
            yield RuleResult(group.members[0], path, problem, f"set the total count to {count}, or remove pods")
        elif count < total and not queued_pods.has_fast_admission(group.first):
            fix = f"create {count_with_noun(total - count, 'more pod')}, or set the total count to {count}"
            yield RuleResult(group.members[0], path, f"{names}: no pod starts before all pods exist", fix)


def pod_group_roles(linted: LintedManifests) -> Iterator[RuleResult]:
    """Report each group with more than 18 roles, and each pod of another role in a group with fast admission."""
    from batchyard.jobs.pod.group import ROLES_MAX  # noqa: PLC0415 - only manifests with pods in queues need it

    for group in _groups(linted):
        roles: dict[str, Manifest] = {}
        for member in group.members:
            roles.setdefault(queued_pods.role_of(member.obj), member)
        if len(roles) > ROLES_MAX:
            problem = f"group {group.name} has {len(roles)} roles, of at most {ROLES_MAX}: the group never starts"
            fix = "give more pods equal resources, node selectors, tolerations and affinities"
            yield RuleResult(group.members[0], "spec", problem, fix)
        if len(roles) > 1 and queued_pods.has_fast_admission(group.first):
            path = f"metadata.annotations[{well_known.POD_GROUP_FAST_ADMISSION}]"
            first_name = _name_of(group.first)
            problem = f"the pod has another role than {first_name}: with fast admission, it never starts"
            fix = f"remove the annotation from all pods of group {group.name}, or give them equal requirements"
            for member in list(roles.values())[1:]:
                yield RuleResult(member, path, problem, fix)


def pod_group_never_ends(linted: LintedManifests) -> Iterator[RuleResult]:
    """Report each pod in a group that does not serve whose containers restart forever."""
    for group in _groups(linted):
        if queued_pods.is_serving(group.first):
            continue
        for member in group.members:
            if member.obj["spec"].get("restartPolicy", "Always") == "Always":
                problem = f"the containers restart forever, so group {group.name} never ends and keeps its quota"
                fix = f"set restartPolicy to Never or OnFailure, or annotate the pods with {_SERVING_TEXT}"
                yield RuleResult(member, "spec.restartPolicy", problem, fix)


_SERVING_TEXT: Final = f'{well_known.POD_GROUP_SERVING}: "true"'


def pod_of_queued_owner(linted: LintedManifests) -> Iterator[RuleResult]:
    """Report labels of queues and groups on pods that run within the quota of their owner."""
    for manifest in linted.all_versions(scheme.POD):
        yield from _owned_pod_results(manifest, linted)
    for job in linted.jobs:
        if job.is_job and job.queue and job.obj["kind"] != "Pod":
            yield from _template_results(job)


def _owned_pod_results(manifest: Manifest, linted: LintedManifests) -> Iterator[RuleResult]:
    pod, owner = manifest.obj, controller_of(manifest.obj)
    if owner is None or not label(pod, well_known.QUEUE_NAME) or _has_suspending_parent(pod):
        return
    kind, namespace, name = _identity(owner, pod["metadata"].get("namespace", ""))
    found = linted.find(kind, name or "", namespace) if kind in _OWNER_KINDS else None
    if found is None or not label(found.obj, well_known.QUEUE_NAME):
        return
    problem = f"{found.obj['kind']} {name}, which owns the pod, is in a queue itself: the pod starts without waiting"
    fix = "remove the label: the quota of the owner counts the pod"
    if kind == scheme.POD:
        fix = f"to queue the pod too, set the annotation {well_known.SUSPENDING_PARENT} and the label {_MANAGED_TEXT}"
    yield RuleResult(manifest, f"metadata.labels[{well_known.QUEUE_NAME}]", problem, fix)


_MANAGED_TEXT: Final = f'{well_known.MANAGED}: "true"'


def _template_results(job: LintedJob) -> Iterator[RuleResult]:
    for path, template in zip(job.paths, job.templates, strict=True):
        metadata = template.get("metadata") or {}
        for field, key in _GROUP_KEYS:
            if key in (metadata.get(field) or {}):
                problem = f"the {job.obj['kind']} is in a queue, so its pods are no group: {key} has no effect"
                yield RuleResult(job.manifest, f"{path}.metadata.{field}[{key}]", problem, f"remove {key}")


def pod_not_recreated(linted: LintedManifests) -> Iterator[RuleResult]:
    """Report each pod without a group and owner in a ClusterQueue whose Workloads can be preempted."""
    for job in linted.jobs:
        if job.obj["kind"] != "Pod" or queued_pods.group_name(job.obj) or controller_of(job.obj) is not None:
            continue
        queue = linted.cluster_queue_of(job)
        if queue is None or not _can_be_preempted(linted, queue.name):
            continue
        problem = (
            f"ClusterQueue {queue.name} allows preemption: a preempted pod is deleted, and nothing creates it again"
        )
        yield RuleResult(job.manifest, f"metadata.labels[{well_known.QUEUE_NAME}]", problem, "use a Job")


def _can_be_preempted(linted: LintedManifests, name: str) -> bool:
    spec = linted.queues[name][0].obj["spec"]
    if (spec.get("preemption") or {}).get("withinClusterQueue", "Never") != "Never":
        return True
    cohort = spec.get("cohortName")
    others = [each.obj["spec"] for each, view in linted.queues.values() if view.name != name]
    return bool(cohort) and any(
        (other.get("preemption") or {}).get("reclaimWithinCohort", "Never") != "Never"
        for other in others
        if other.get("cohortName") == cohort
    )


RULES: Final = (
    LintRule("pod-group-differs", Severity.ERROR, "pods of a group name different queues or sizes", pod_group_differs),
    LintRule("pod-group-size", Severity.WARNING, "a group has another number of pods than declared", pod_group_size),
    LintRule("pod-group-roles", Severity.ERROR, "a group has too many roles", pod_group_roles),
    LintRule(
        "pod-group-never-ends",
        Severity.WARNING,
        "pods of a group restart their containers forever",
        pod_group_never_ends,
    ),
    LintRule("pod-of-queued-owner", Severity.WARNING, "a pod in a queue has an owner in a queue", pod_of_queued_owner),
    LintRule("pod-not-recreated", Severity.NOTE, "a single pod is lost when it is preempted", pod_not_recreated),
)
