"""Lint rules on ResourceFlavors, taints, misplaced labels, TPU topologies and accelerators."""

from collections.abc import Iterator, Mapping
from typing import Final

from batchyard.api import scheme, well_known
from batchyard.api.meta import Obj, is_elastic
from batchyard.api.schema.violations import find_nearest_name
from batchyard.api.views.node import FlavorView, Taint, parallel_pod_count
from batchyard.api.views.workload import ClusterQueueView
from batchyard.base.counts import count_with_noun
from batchyard.cloud.catalog.machine_types import Catalog, builtin_catalog, catalog_of
from batchyard.cloud.catalog.pool_properties import chip_count_of
from batchyard.lint.capacity import quota_declarations_of
from batchyard.lint.findings import RuleResult, Severity
from batchyard.lint.linted_manifests import LintedManifests, MachineGroup, format_machine_names
from batchyard.lint.workloads import LintedJob
from batchyard.placement.node_filters import tolerates

#: Taint keys that pods which request the resource of the same name tolerate automatically.
_AUTO_TOLERATED_KEYS: Final = (well_known.GPU, well_known.TPU)
_HARD_EFFECTS: Final = ("NoSchedule", "NoExecute")


def unused_flavor(linted: LintedManifests) -> Iterator[RuleResult]:
    """Report each ResourceFlavor that no resource group of a ClusterQueue or Cohort lists."""
    used_flavors = {name: None for _, groups in linted.resource_groups for group in groups for name in group.flavors}
    for name, (manifest, _) in linted.flavors.items():
        if name not in used_flavors:
            problem = f"no ClusterQueue or Cohort has quota for flavor {name}: the flavor is never assigned"
            fix = f"add quota for {name} to a ClusterQueue, or remove the flavor"
            yield RuleResult(manifest, "metadata.name", problem, fix)


def flavor_without_nodes(linted: LintedManifests) -> Iterator[RuleResult]:
    """Report each ResourceFlavor with quota whose labels no node, node pool or auto-provisioned pool can have."""
    if not linted.inventory.is_known:
        return
    for name, (manifest, flavor) in linted.flavors.items():
        if not flavor.labels or linted.inventory.machines_for(flavor) or linted.can_create_pools_for(name):
            continue
        queues = linted.queues_using(name)
        if not any(quota_declarations_of(linted, name, resource) for resource in _covered_resources(queues)):
            continue
        labels = ", ".join(f"{key}={value}" for key, value in flavor.labels.items())
        problem = f"no node pool or node has the labels {labels}: pods that are admitted in flavor {name} stay Pending"
        yield RuleResult(manifest, "spec.nodeLabels", problem, _describe_nearest_labels(linted, flavor))


def flavor_without_quota(linted: LintedManifests) -> Iterator[RuleResult]:
    """Report each flavor with a covered resource for which neither the ClusterQueue nor its cohort has quota."""
    snapshot = linted.snapshot
    for name, (manifest, view) in linted.queues.items():
        potential_quota = snapshot.queues[name].node.potential_quota
        for group_index, group in enumerate(view.groups):
            for index, flavor in enumerate(group.flavors):
                no_quota_resources = [
                    r for r in group.resources if potential_quota[snapshot.flavor_resource_id(flavor, r)] <= 0
                ]
                if no_quota_resources:
                    location = f"in cohort {view.cohort}" if view.cohort else "in this queue, which has no cohort"
                    problem = (
                        f"no quota of {', '.join(no_quota_resources)} in flavor {flavor} {location}: the flavor is"
                        " never assigned"
                    )
                    fix = "set its nominalQuota above 0, or remove the flavor from the queue"
                    yield RuleResult(manifest, f"spec.resourceGroups[{group_index}].flavors[{index}]", problem, fix)


def shadowed_flavor(linted: LintedManifests) -> Iterator[RuleResult]:
    """Report each resource group in which an earlier flavor has quota for all jobs, so later flavors are never used."""
    for name, (manifest, view) in linted.queues.items():
        for group_index, group in enumerate(view.groups):
            sufficient_flavor = next((f for f in group.flavors[:-1] if _has_quota_for_all_jobs(linted, view, f)), None)
            if sufficient_flavor is not None:
                later_flavors = group.flavors[group.flavors.index(sufficient_flavor) + 1 :]
                problem = (
                    f"flavor {sufficient_flavor} comes first and has quota for all jobs of ClusterQueue {name} in"
                    f" these files: the jobs never use {', '.join(later_flavors)}"
                )
                fix = "list the preferred flavor first, and limit its quota to the capacity of its nodes"
                yield RuleResult(manifest, f"spec.resourceGroups[{group_index}].flavors", problem, fix)


def untolerated_flavor(linted: LintedManifests) -> Iterator[RuleResult]:
    """Report each taint that neither its flavor nor any of the jobs in the flavor's ClusterQueues tolerates.

    Flavors whose ClusterQueues have no jobs are not reported.
    """
    for name, (manifest, flavor) in linted.flavors.items():
        jobs = [job for queue in linted.queues_using(name) for job in linted.jobs_by_queue[queue.name]]
        templates = [pod_set.template for job in jobs for pod_set in job.view.pod_sets]
        for index, taint in enumerate(flavor.taints):
            if not templates or tolerates(flavor.tolerations, taint):
                continue
            if not any(tolerates(template.tolerations, taint) for template in templates):
                taint_text = _format_taint(taint)
                problem = (
                    f"none of the {len(jobs)} jobs in its queues tolerates {taint_text}: no job can use flavor {name}"
                )
                fix = "add the toleration to spec.tolerations of the flavor, or to the pod templates"
                toleration = {field: value for field, value in taint._asdict().items() if value}
                old_tolerations = (manifest.obj.get("spec") or {}).get("tolerations") or []
                patches = [(manifest, {"spec": {"tolerations": [*old_tolerations, toleration]}})]
                yield RuleResult(manifest, f"spec.nodeTaints[{index}]", problem, fix, patches)


def undeclared_taint(linted: LintedManifests) -> Iterator[RuleResult]:
    """Report each hard taint that all nodes of a flavor have, but the flavor neither declares nor tolerates.

    Hard taints are those with effect NoSchedule or NoExecute. Taints that all eligible pods tolerate are not reported,
    nor GKE's taints of GPUs, TPUs and queued machines. Flavors without labels, or with auto-provisioned node pools, are
    not checked.
    """
    for name, (manifest, flavor) in linted.flavors.items():
        machine_groups = linted.inventory.machines_for(flavor) if flavor.labels else []
        if not machine_groups or linted.can_create_pools_for(name):
            continue
        first_taints, *other_taints = map(_hard_taints, machine_groups)
        common_taints = [taint for taint in first_taints if all(taint in taints for taints in other_taints)]
        for taint in common_taints:
            if not _is_taint_declared(linted, name, flavor, taint):
                problem = (
                    f"the nodes of flavor {name} ({format_machine_names(machine_groups)}) have the taint"
                    f" {_format_taint(taint)}, which the flavor does not declare: jobs that do not tolerate it are"
                    " admitted,"
                    " and their pods stay Pending"
                )
                fix = "add the taint to spec.nodeTaints, or a toleration to spec.tolerations"
                old_taints = (manifest.obj.get("spec") or {}).get("nodeTaints") or []
                new_taint = {field: value for field, value in taint._asdict().items() if value}
                patches = [(manifest, {"spec": {"nodeTaints": [*old_taints, new_taint]}})]
                yield RuleResult(manifest, "spec.nodeTaints", problem, fix, patches)


def _is_taint_declared(linted: LintedManifests, name: str, flavor: FlavorView, taint: Taint) -> bool:
    if taint.key == well_known.QUEUED or taint.key in _AUTO_TOLERATED_KEYS or tolerates(flavor.tolerations, taint):
        return True
    if any((own_taint.key, own_taint.effect) == (taint.key, taint.effect) for own_taint in flavor.taints):
        return True
    eligible_pod_sets = linted.eligible_pod_sets(name)
    templates = [job.view.pod_sets[index].template for job, index in eligible_pod_sets]
    return bool(templates) and all(tolerates(template.tolerations, taint) for template in templates)


def _has_quota_for_all_jobs(linted: LintedManifests, view: ClusterQueueView, flavor: str) -> bool:
    jobs = dict.fromkeys(linted.jobs_by_queue[view.name])
    eligible_pod_sets = (
        [(job, index) for job, index in linted.eligible_pod_sets(flavor) if job in jobs]
        if flavor in linted.flavors
        else []
    )
    if not jobs or len(eligible_pod_sets) < sum(len(job.view.pod_sets) for job in jobs):
        return False
    total_requests: dict[str, int] = {}
    for job, index in eligible_pod_sets:
        for resource, amount in linted.charged_pod_sets(job)[index].template.requests:
            total_requests[resource] = total_requests.get(resource, 0) + amount * job.view.counts[index]
    nominal_quotas = {q.resource: q.nominal for group in view.groups for q in group.quotas if q.flavor == flavor}
    return all(total_requests.get(resource, 0) <= nominal for resource, nominal in nominal_quotas.items())


def _hard_taints(machine_group: MachineGroup) -> list[Taint]:
    first_template, *other_templates = machine_group.templates
    return [
        t
        for t in first_template.taints
        if t.effect in _HARD_EFFECTS and all(t in template.taints for template in other_templates)
    ]


def _describe_nearest_labels(linted: LintedManifests, flavor: FlavorView) -> str:
    templates = [(machines.name, machines.templates[0].labels) for machines in linted.inventory.machines]
    if not templates:
        return "add a pool with these labels"
    label_matches = [(len(flavor.labels.items() & labels.items()), name, labels) for name, labels in templates]
    match_count, name, labels = max(label_matches, key=lambda match: match[0])
    if not match_count:
        return "add a pool with these labels, or use labels that nodes have"
    differing_labels = [
        f"{key}={labels.get(key, '(none)')}" for key, value in flavor.labels.items() if labels.get(key) != value
    ]
    return f"add a pool with these labels; the most similar pool or node is {name}, with {', '.join(differing_labels)}"


def _covered_resources(queues: list[ClusterQueueView]) -> list[str]:
    return list(dict.fromkeys(r for queue in queues for group in queue.groups for r in group.resources))


def _format_taint(taint: Taint) -> str:
    return f"{taint.key}={taint.value}:{taint.effect}" if taint.value else f"{taint.key}:{taint.effect}"


# Queue labels and annotations at fields where they have no effect.
#
# Sources: Kueue's reference of labels and annotations, and its pkg/controller/jobframework (QueueName,
# WorkloadPriorityClassName), which read the labels of the job itself.


_KUEUE_PREFIX: Final = "kueue.x-k8s.io/"
#: All keys that Kueue reads or writes on jobs, pods and Workloads, without the prefix.
_KUEUE_KEYS: Final = (
    "admission-gated-by",
    "cluster-queue-name",
    "component-workload-index",
    "concurrent-admission-parent",
    "elastic-job",
    "is-group-workload",
    "job-completions-equal-parallelism",
    "job-min-parallelism",
    "job-owner-gvk",
    "job-owner-name",
    "job-uid",
    "local-queue-name",
    "managed",
    "max-exec-time-seconds",
    "multikueue-origin",
    "multikueue-origin-uid",
    "pod-group-fast-admission",
    "pod-group-max-not-ready-count",
    "pod-group-name",
    "pod-group-pod-index",
    "pod-group-pod-index-label",
    "pod-group-serving",
    "pod-group-total-count",
    "pod-index-offset",
    "pod-suspending-parent",
    "podset",
    "podset-group-name",
    "podset-preferred-topology",
    "podset-required-topology",
    "podset-slice-required-topology",
    "podset-slice-required-topology-constraints",
    "podset-slice-size",
    "podset-unconstrained-topology",
    "prebuilt-workload-name",
    "priority-boost",
    "priority-class",
    "queue-name",
    "retriable-in-group",
    "role-hash",
    "safe-to-forcefully-delete",
    "stopping",
    "wait-for-pods-ready",
    "workload",
    "workload-slice-name",
    "workload-slice-replacement-for",
)
_JOB_LABELS: Final = (well_known.PRIORITY_CLASS, well_known.MAX_EXEC_TIME)


def queue_name_not_a_label(linted: LintedManifests) -> Iterator[RuleResult]:
    """Report each queue name in an annotation or a pod template of a job without the queue label: it has no effect."""
    for job in linted.jobs:
        if job.is_job and not job.queue:
            for path, name in _misplaced_values(job, well_known.QUEUE_NAME):
                problem = f"the queue name {name} has no effect in this field: {_describe_unmanaged_job(job, linted)}"
                if _is_job_template_label(path):
                    problem = f"each Job of this field waits in queue {name} alone, so the JobSet starts in parts"
                fix = f"set the label {well_known.QUEUE_NAME}: {name} in metadata.labels of the {job.obj['kind']}"
                patch = _add_label_patch(well_known.QUEUE_NAME, name)
                yield RuleResult(job.manifest, path, problem, fix, [(job.manifest, patch)])


def misplaced_label(linted: LintedManifests) -> Iterator[RuleResult]:
    """Report each priority class or time limit of a job that is set only where Kueue ignores it."""
    for job in linted.jobs:
        for key in _JOB_LABELS if job.is_job else ():
            if key in (job.obj["metadata"].get("labels") or {}):
                continue
            for path, value in _misplaced_values(job, key):
                is_priority_class = key == well_known.PRIORITY_CLASS
                consequence = "Kueue ignores this priority class" if is_priority_class else "the job has no time limit"
                problem = f"{key}: {value} has no effect in this field: {consequence}"
                fix = f"set {key} in metadata.labels of the {job.obj['kind']}"
                yield RuleResult(job.manifest, path, problem, fix, [(job.manifest, _add_label_patch(key, value))])


def unknown_kueue_key(linted: LintedManifests) -> Iterator[RuleResult]:
    """Report each label or annotation of a job that starts with `kueue.x-k8s.io/` and that Kueue does not define."""
    for job in linted.jobs:
        for path, keys in _labels_and_annotations(job):
            for key in keys:
                if key.startswith(_KUEUE_PREFIX) and key.removeprefix(_KUEUE_PREFIX) not in _KUEUE_KEYS:
                    similar_key = find_nearest_name(key.removeprefix(_KUEUE_PREFIX), _KUEUE_KEYS)
                    fix = f"did you mean {_KUEUE_PREFIX}{similar_key}?" if similar_key else f"remove {key}"
                    yield RuleResult(
                        job.manifest,
                        f"{path}[{key}]",
                        f"Kueue defines no label or annotation {key}: it has no effect",
                        fix,
                    )


def job_without_queue(linted: LintedManifests) -> Iterator[RuleResult]:
    """Report each job that names no queue in any field, if its namespace has LocalQueues but none named `default`."""
    for job in linted.jobs:
        if not job.is_job or job.queue or any(_misplaced_values(job, well_known.QUEUE_NAME)):
            continue
        queue_names = sorted(linted.local_queues_in(job.namespace))
        if not queue_names or "default" in queue_names:
            continue
        fix = f"set the label {well_known.QUEUE_NAME} in metadata.labels to one of {', '.join(queue_names)}"
        severity = Severity.ERROR if _stays_suspended(job, linted) else Severity.WARNING
        problem = f"the job names no LocalQueue: {_describe_unmanaged_job(job, linted)}"
        yield RuleResult(job.manifest, "metadata.labels", problem, fix, severity=severity)


def namespace_without_queue(linted: LintedManifests) -> Iterator[RuleResult]:
    """Report each Namespace in the manifests that has jobs but no LocalQueue, if there are LocalQueues elsewhere."""
    for manifest in linted.latest_versions(scheme.NAMESPACE):
        name = manifest.obj["metadata"]["name"]
        jobs = [job for job in linted.jobs if job.namespace == name]
        if jobs and linted.has_kind(scheme.LOCAL_QUEUE) and not linted.local_queues_in(name):
            problem = f"namespace {name} has no LocalQueue: its {len(jobs)} jobs run without quota, or never"
            fix = f"create a LocalQueue in namespace {name}"
            yield RuleResult(manifest, "metadata.name", problem, fix)


def not_suspended(linted: LintedManifests) -> Iterator[RuleResult]:
    """Report each JobSet with a queue name that sets `suspend: false`."""
    for job in linted.jobs:
        if job.queue and job.obj["kind"] == "JobSet" and job.obj["spec"].get("suspend") is False:
            problem = "suspend is false, but Kueue suspends a queued JobSet until its Workload is admitted"
            fix = "set suspend: true, or remove the field if Kueue's webhooks always run"
            patches = [(job.manifest, {"spec": {"suspend": True}})]
            yield RuleResult(job.manifest, "spec.suspend", problem, fix, patches)


def _stays_suspended(job: LintedJob, linted: LintedManifests) -> bool:
    configurations = [manifest.obj for manifest in linted.all_versions(scheme.CONFIGURATION)]
    suspends_jobs = any(configuration.get("manageJobsWithoutQueueName") for configuration in configurations)
    return suspends_jobs or job.obj["spec"].get("suspend") is True


def _describe_unmanaged_job(job: LintedJob, linted: LintedManifests) -> str:
    if _stays_suspended(job, linted):
        return "no queue manages the job, so it stays suspended forever"
    if is_elastic(job.obj):
        return "no queue manages the job, so its pods keep the scheduling gate of elastic jobs, and do not run"
    return "no queue manages the job, so its pods start immediately and without quota"


def _add_label_patch(key: str, value: str) -> Mapping[str, object]:
    return {"metadata": {"labels": {key: value}}}


def _is_job_template_label(path: str) -> bool:
    """Return whether a field path is that of a label of the Jobs of a JobSet."""
    return path.startswith("spec.replicatedJobs[") and "].template.metadata.labels[" in path


def _misplaced_values(job: LintedJob, key: str) -> Iterator[tuple[str, str]]:
    """Yield the field path and value wherever the label or annotation `key` is set outside the job's own labels."""
    for path, mapping in _labels_and_annotations(job):
        if path != "metadata.labels" and key in mapping:
            yield f"{path}[{key}]", mapping[key]


def _labels_and_annotations(job: LintedJob) -> Iterator[tuple[str, Mapping[str, str]]]:
    yield from _metadata_fields("metadata", job.obj["metadata"])
    for index, replicated_job in enumerate(job.obj["spec"].get("replicatedJobs") or ()):
        metadata = replicated_job["template"].get("metadata") or {}
        yield from _metadata_fields(f"spec.replicatedJobs[{index}].template.metadata", metadata)
    for path, template in zip(job.paths, job.templates, strict=True):
        yield from _metadata_fields(f"{path}.metadata", template.get("metadata") or {})


def _metadata_fields(path: str, metadata: Mapping[str, object]) -> Iterator[tuple[str, Mapping[str, str]]]:
    for field in ("labels", "annotations"):
        key_value_mapping = metadata.get(field)
        if isinstance(key_value_mapping, Mapping):
            yield f"{path}.{field}", key_value_mapping


# Rules on TPU topologies, chips and accelerator types that do not match the machines.
#
# Sources: GKE's autoscaler, IsMultiHostTpuPodslice and the tables of its machine types; JobSet's one Job a slice.


_TPU_TOPOLOGY_SEPARATOR: Final = "x"


def tpu_topology_mismatch(linted: LintedManifests) -> Iterator[RuleResult]:
    """Report each Job whose pods together request another number of TPU chips than the selected slice topology has.

    Pods that each request the chips of a whole slice are accepted in any number.
    """
    for job in linted.jobs:
        for job_spec, path, index in _job_specs(job):
            topology, chips_per_pod = _tpu_topology_and_chips(job, index)
            if not topology or not chips_per_pod:
                continue
            chips, pods = chip_count_of(topology), parallel_pod_count(job_spec)
            if chips_per_pod < chips and pods * chips_per_pod == chips:
                continue
            if chips_per_pod == chips:  # each pod uses a complete slice: any number of pods is valid
                continue
            problem = (
                f"a slice of topology {topology} has {count_with_noun(chips, 'chip')}, but each Job has "
                f"{count_with_noun(pods, 'pod')} with {chips_per_pod}:"
                f" {_describe_chip_mismatch(pods * chips_per_pod, chips)}"
            )
            fix = f"set parallelism and completions to {max(1, chips // chips_per_pod)}, or choose another topology"
            yield RuleResult(job.manifest, f"{path}.parallelism", problem, fix)


def tpu_chips_left(linted: LintedManifests) -> Iterator[RuleResult]:
    """Report pods that request fewer TPU chips than their machine has; no other pod can use the remaining chips."""
    for job in linted.jobs:
        for index, path in enumerate(job.paths):
            pod = job.pod(index)
            per_pod = dict(pod.requests).get(well_known.TPU)
            if not per_pod:
                continue
            node_selector = dict(pod.node_selector)
            matching_groups = [m for m in linted.inventory.machines if m.has_labels(node_selector)]
            chips = {t.allocatable.get(well_known.TPU, 0) for machines in matching_groups for t in machines.templates}
            if chips and all(per_pod < count for count in chips):
                min_chips = min(chips)
                problem = f"a pod requests {per_pod} of the {min_chips} chips of its machine: the others stay idle, and"
                problem += " TPU programs that require all chips of a slice do not start"
                fix = f"request google.com/tpu: {min_chips}"
                yield RuleResult(job.manifest, f"{path}.spec.containers", problem, fix)


def accelerator_mismatch(linted: LintedManifests) -> Iterator[RuleResult]:
    """Report each node selector whose machine type does not support its accelerator, or whose Spot labels conflict."""
    catalog = builtin_catalog() if linted.inventory.cluster is None else catalog_of(linted.inventory.cluster)
    for manifest, path, labels in linted.node_selectors():
        accelerator = labels.get(well_known.ACCELERATOR) or labels.get(well_known.TPU_ACCELERATOR)
        machine_type = labels.get(well_known.INSTANCE_TYPE) or ""
        if (
            accelerator
            and machine_type in catalog.machines
            and not _supports_accelerator(catalog, machine_type, accelerator)
        ):
            built_in_accelerator = catalog.machines[machine_type].accelerator
            capability = (
                f"has {built_in_accelerator.count} {built_in_accelerator.type}"
                if built_in_accelerator
                else f"cannot have {accelerator} attached"
            )
            problem = (
                f"machine type {machine_type} {capability}, but {accelerator} is also selected: no node matches"
                " both labels"
            )
            fix = (
                f"select {built_in_accelerator.type}, or remove the machine type"
                if built_in_accelerator
                else "remove the machine type"
            )
            yield RuleResult(manifest, f"{path}[{well_known.INSTANCE_TYPE}]", problem, fix)
        if labels.get(well_known.SPOT) == "true" and labels.get(well_known.PROVISIONING, "spot") != "spot":
            key = well_known.PROVISIONING
            problem = f"{well_known.SPOT}: true and {key}: {labels[key]} contradict each other"
            yield RuleResult(manifest, f"{path}[{key}]", problem, "keep one of them")


def _supports_accelerator(catalog: Catalog, name: str, accelerator: str) -> bool:
    machine_type = catalog.machine(name)
    built_in = machine_type.accelerator
    return (built_in is not None and built_in.type == accelerator) or catalog.can_attach(machine_type, accelerator)


def _job_specs(job: LintedJob) -> Iterator[tuple[Obj, str, int]]:
    if job.obj["kind"] == "Job":
        yield job.obj["spec"], "spec", 0
    for index, replicated_job in enumerate(job.obj["spec"].get("replicatedJobs") or ()):
        yield replicated_job["template"]["spec"], f"spec.replicatedJobs[{index}].template.spec", index


def _tpu_topology_and_chips(job: LintedJob, index: int) -> tuple[str, int]:
    spec = job.templates[index].get("spec") or {}
    topology = (spec.get("nodeSelector") or {}).get(well_known.TPU_TOPOLOGY, "")
    dimensions = topology.split(_TPU_TOPOLOGY_SEPARATOR)
    if not all(dimension.isdecimal() and dimension.isascii() for dimension in dimensions):
        return "", 0
    return topology, dict(job.view.pod_sets[index].template.requests).get(well_known.TPU, 0)


def _describe_chip_mismatch(requested_chips: int, chips: int) -> str:
    if requested_chips > chips:
        return "the pods beyond the slice never get a node of it"
    return "some hosts have no pod, but TPU programs wait for all hosts of their slice"
