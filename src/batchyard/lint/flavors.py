"""Rules on flavors without use, quota or nodes, on taints, and on misplaced labels."""

from collections.abc import Iterator, Mapping
from typing import Final

from batchyard.api import scheme, well_known
from batchyard.api.manifests import Manifest
from batchyard.api.meta import Obj
from batchyard.api.schema.violations import nearest
from batchyard.api.views.node import Taint, pods_at_once
from batchyard.api.views.workload import ClusterQueueView, FlavorView
from batchyard.cloud.catalog.machine_types import Catalog, builtin_catalog, catalog_of
from batchyard.cloud.catalog.prices import chips_in
from batchyard.lint.capacity import holders_of
from batchyard.lint.configuration import Configuration, MachineGroup, named
from batchyard.lint.findings import RuleResult, Severity
from batchyard.lint.workloads import LintedWork
from batchyard.placement.node_filters import tolerates

#: Taints of these keys are tolerated automatically by pods that request the resource.
_TOLERATED_ANYWAY: Final = (well_known.GPU, well_known.TPU)
_HARD: Final = ("NoSchedule", "NoExecute")


def unused_flavor(config: Configuration) -> Iterator[RuleResult]:
    """Flavors that no queue uses."""
    used = {flavor: None for _, groups in config.quotas for group in groups for flavor in group.flavors}
    for name, (manifest, _) in config.flavors.items():
        if name not in used:
            problem = f"no ClusterQueue or Cohort has quota of flavor {name}: it is never assigned"
            yield RuleResult(manifest, "metadata.name", problem, "give a queue quota of it, or remove it")


def flavor_without_nodes(config: Configuration) -> Iterator[RuleResult]:
    """Flavors whose labels no node has."""
    if not config.park.is_known:
        return
    for name, (manifest, flavor) in config.flavors.items():
        if not flavor.labels or config.park.of(flavor) or config.makes_pools_for(name):
            continue
        queues = config.queues_with(name)
        if not any(holders_of(config, name, resource) for resource in _resources(queues)):
            continue
        labels = ", ".join(f"{key}={value}" for key, value in flavor.labels.items())
        problem = f"no pool or node has the labels {labels}: work that is admitted in flavor {name} stays Pending"
        yield RuleResult(manifest, "spec.nodeLabels", problem, _nearest_labels(config, flavor))


def flavor_without_quota(config: Configuration) -> Iterator[RuleResult]:
    """Flavors of a queue without quota in its whole cohort."""
    snapshot = config.snapshot
    for name, (manifest, view) in config.queues.items():
        potential = snapshot.queues[name].node.potential
        for number, group in enumerate(view.groups):
            for index, flavor in enumerate(group.flavors):
                none = [r for r in group.resources if potential[snapshot.id_of(flavor, r)] <= 0]
                if none:
                    there = "in its whole cohort" if view.cohort else "here, and the queue has no cohort"
                    problem = f"no quota of {', '.join(none)} in flavor {flavor} {there}: it is never assigned"
                    fix = "give it a nominalQuota, or remove the flavor from the queue"
                    yield RuleResult(manifest, f"spec.resourceGroups[{number}].flavors[{index}]", problem, fix)


def shadowed_flavor(config: Configuration) -> Iterator[RuleResult]:
    """Flavors after another that has quota for all existing work."""
    for name, (manifest, view) in config.queues.items():
        for number, group in enumerate(view.groups):
            taker = next((f for f in group.flavors[:-1] if _takes_all(config, view, f)), None)
            if taker is not None:
                rest = group.flavors[group.flavors.index(taker) + 1 :]
                problem = (
                    f"flavor {taker} comes first and has quota for all jobs in these files for {name}:"
                    f" they never use {', '.join(rest)}"
                )
                fix = "put the preferred flavor first, with the quota of its nodes"
                yield RuleResult(manifest, f"spec.resourceGroups[{number}].flavors", problem, fix)


def untolerated_flavor(config: Configuration) -> Iterator[RuleResult]:
    """Flavors with taints that neither the flavor nor any job in its queues tolerates."""
    for name, (manifest, flavor) in config.flavors.items():
        works = [work for queue in config.queues_with(name) for work in config.works_by_queue[queue.name]]
        templates = [pod_set.template for work in works for pod_set in work.view.pod_sets]
        for index, taint in enumerate(flavor.taints):
            if not templates or tolerates(flavor.tolerations, taint):
                continue
            if not any(tolerates(template.tolerations, taint) for template in templates):
                shown = _shown(taint)
                problem = (
                    f"none of the {len(works)} jobs in its queues tolerates {shown}: flavor {name} is skipped for all"
                )
                fix = "add the toleration to spec.tolerations of the flavor, or into the pod templates"
                toleration = {field: value for field, value in taint._asdict().items() if value}
                old = (manifest.obj.get("spec") or {}).get("tolerations") or []
                patches = [(manifest, {"spec": {"tolerations": [*old, toleration]}})]
                yield RuleResult(manifest, f"spec.nodeTaints[{index}]", problem, fix, patches)


def undeclared_taint(config: Configuration) -> Iterator[RuleResult]:
    """Taints of all nodes of a flavor that the flavor does not declare."""
    for name, (manifest, flavor) in config.flavors.items():
        machines = config.park.of(flavor) if flavor.labels else []
        if not machines or config.makes_pools_for(name):
            continue
        common = [taint for taint in _taints(machines[0]) if all(taint in _taints(each) for each in machines[1:])]
        for taint in common:
            if not _is_declared(config, name, flavor, taint):
                problem = (
                    f"the nodes of flavor {name} ({named(machines)}) have the taint"
                    f" {_shown(taint)}, which the flavor does not: jobs that do not tolerate it are admitted to it,"
                    " and their pods stay Pending"
                )
                fix = "add the taint to spec.nodeTaints, or a toleration to spec.tolerations"
                old = (manifest.obj.get("spec") or {}).get("nodeTaints") or []
                added = {field: value for field, value in taint._asdict().items() if value}
                patches = [(manifest, {"spec": {"nodeTaints": [*old, added]}})]
                yield RuleResult(manifest, "spec.nodeTaints", problem, fix, patches)


def _is_declared(config: Configuration, name: str, flavor: FlavorView, taint: Taint) -> bool:
    if taint.key == well_known.QUEUED or taint.key in _TOLERATED_ANYWAY or tolerates(flavor.tolerations, taint):
        return True
    if any((own.key, own.effect) == (taint.key, taint.effect) for own in flavor.taints):
        return True
    users = config.users_of(name)
    return bool(users) and all(
        tolerates(work.view.pod_sets[index].template.tolerations, taint) for work, index in users
    )


def _takes_all(config: Configuration, view: ClusterQueueView, flavor: str) -> bool:
    """Whether the queue's own quota of a flavor holds all of its jobs together."""
    works = dict.fromkeys(config.works_by_queue[view.name])
    users = (
        [(work, index) for work, index in config.users_of(flavor) if work in works] if flavor in config.flavors else []
    )
    if not works or len(users) < sum(len(work.view.pod_sets) for work in works):
        return False
    total: dict[str, int] = {}
    for work, index in users:
        for resource, amount in work.view.pod_sets[index].template.requests:
            total[resource] = total.get(resource, 0) + amount * work.view.counts[index]
    quotas = {q.resource: q.nominal for group in view.groups for q in group.quotas if q.flavor == flavor}
    return all(total.get(resource, 0) <= nominal for resource, nominal in quotas.items())


def _taints(machines: MachineGroup) -> list[Taint]:
    """The NoSchedule and NoExecute taints that all nodes have."""
    first, *others = machines.templates
    return [t for t in first.taints if t.effect in _HARD and all(t in other.taints for other in others)]


def _nearest_labels(config: Configuration, flavor: FlavorView) -> str:
    """A fix that names the most similar machines and their different labels."""
    templates = [(machines.name, machines.templates[0].labels) for machines in config.park.machines]
    if not templates:
        return "add a pool with these labels"
    shared = [(len(flavor.labels.items() & labels.items()), name, labels) for name, labels in templates]
    count, name, labels = max(shared, key=lambda found: found[0])
    if not count:
        return "add a pool with these labels, or use labels that nodes have"
    other = [f"{key}={labels.get(key, '(none)')}" for key, value in flavor.labels.items() if labels.get(key) != value]
    return f"add a pool with these labels; {name} is most similar, with {', '.join(other)}"


def _resources(queues: list[ClusterQueueView]) -> list[str]:
    return list(dict.fromkeys(r for queue in queues for group in queue.groups for r in group.resources))


def _shown(taint: Taint) -> str:
    return f"{taint.key}={taint.value}:{taint.effect}" if taint.value else f"{taint.key}:{taint.effect}"


# --- labels ---
#
# Queue labels and annotations in places where they have no effect.
#
# Sources: Kueue's reference of labels and annotations, and its pkg/controller/jobframework (QueueName,
# WorkloadPriorityClassName), which read the labels of the job itself.


_PREFIX: Final = "kueue.x-k8s.io/"
#: All keys that Kueue reads or writes on jobs, pods and Workloads, without the prefix.
_KEYS: Final = (
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
    "workload",
    "workload-slice-name",
    "workload-slice-replacement-for",
)
_ON_JOBS: Final = (well_known.PRIORITY_CLASS, well_known.MAX_EXEC_TIME)


def queue_name_not_a_label(config: Configuration) -> Iterator[RuleResult]:
    """A queue name in an annotation or a pod template, where it has no effect."""
    for work in config.works:
        if work.is_job and not work.queue:
            for path, name in _elsewhere(work, well_known.QUEUE_NAME):
                problem = f"the queue name {name} has no effect here: {_unmanaged(work)}"
                fix = f"set the label {well_known.QUEUE_NAME}: {name} in metadata.labels of the {work.obj['kind']}"
                yield RuleResult(
                    work.manifest, path, problem, fix, [(work.manifest, _moved(well_known.QUEUE_NAME, name))]
                )


def misplaced_label(config: Configuration) -> Iterator[RuleResult]:
    """A priority class or time limit in a place where it has no effect."""
    for work in config.works:
        for key in _ON_JOBS if work.is_job else ():
            if key in (work.obj["metadata"].get("labels") or {}):
                continue
            for path, value in _elsewhere(work, key):
                lost = (
                    "the class of the pods counts, or none" if key == well_known.PRIORITY_CLASS else "it has no limit"
                )
                problem = f"{key}: {value} has no effect here: {lost}"
                fix = f"set it in metadata.labels of the {work.obj['kind']}"
                yield RuleResult(work.manifest, path, problem, fix, [(work.manifest, _moved(key, value))])


def unknown_kueue_key(config: Configuration) -> Iterator[RuleResult]:
    """Keys with Kueue's prefix that Kueue does not define."""
    for work in config.works:
        for path, keys in _places(work):
            for key in keys:
                if key.startswith(_PREFIX) and key.removeprefix(_PREFIX) not in _KEYS:
                    close = nearest(key.removeprefix(_PREFIX), _KEYS)
                    fix = f"did you mean {_PREFIX}{close}?" if close else "remove it"
                    yield RuleResult(work.manifest, f"{path}[{key}]", f"Kueue has no key {key}: it has no effect", fix)


def job_without_queue(config: Configuration) -> Iterator[RuleResult]:
    """Jobs without a queue in a namespace that has LocalQueues."""
    for work in config.works:
        if not work.is_job or work.queue or any(_elsewhere(work, well_known.QUEUE_NAME)):
            continue
        there = sorted(config.local_queues_in(work.namespace))
        if not there or "default" in there:
            continue
        fix = f"set the label {well_known.QUEUE_NAME} in metadata.labels to one of {', '.join(there)}"
        is_stuck = work.obj["spec"].get("suspend") is True
        severity = Severity.ERROR if is_stuck else Severity.WARNING
        yield RuleResult(
            work.manifest, "metadata.labels", f"it names no queue: {_unmanaged(work)}", fix, severity=severity
        )


def namespace_without_queue(config: Configuration) -> Iterator[RuleResult]:
    """Namespaces with queued work but without a LocalQueue."""
    for manifest in config.last(scheme.NAMESPACE):
        name = manifest.obj["metadata"]["name"]
        works = [work for work in config.works if work.namespace == name]
        if works and config.knows(scheme.LOCAL_QUEUE) and not config.local_queues_in(name):
            problem = f"namespace {name} has no LocalQueue: its {len(works)} jobs run outside of quota, or never"
            fix = "create a LocalQueue for the ClusterQueue there"
            yield RuleResult(manifest, "metadata.name", problem, fix)


def not_suspended(config: Configuration) -> Iterator[RuleResult]:
    """Queued JobSets with suspend: false."""
    for work in config.works:
        if work.queue and work.obj["kind"] == "JobSet" and work.obj["spec"].get("suspend") is False:
            problem = "suspend is false, but its queue suspends it until it is admitted"
            fix = "set suspend: true, or remove the field if Kueue's webhooks always run"
            patches = [(work.manifest, {"spec": {"suspend": True}})]
            yield RuleResult(work.manifest, "spec.suspend", problem, fix, patches)


def _unmanaged(work: LintedWork) -> str:
    if work.obj["spec"].get("suspend") is True:
        return "no queue manages it, and it stays suspended forever"
    return "no queue manages it, and its pods start immediately, outside of quota"


def _moved(key: str, value: str) -> Mapping[str, object]:
    return {"metadata": {"labels": {key: value}}}


def _elsewhere(work: LintedWork, key: str) -> Iterator[tuple[str, str]]:
    """The places of a key outside of the job's labels: path and value."""
    for path, mapping in _places(work):
        if path != "metadata.labels" and key in mapping:
            yield f"{path}[{key}]", mapping[key]


def _places(work: LintedWork) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Labels and annotations of the job, of a JobSet's Jobs, and of the pods."""
    yield from _of_metadata("metadata", work.obj["metadata"])
    for index, replicated in enumerate(work.obj["spec"].get("replicatedJobs") or ()):
        metadata = replicated["template"].get("metadata") or {}
        yield from _of_metadata(f"spec.replicatedJobs[{index}].template.metadata", metadata)
    for path, template in zip(work.paths, work.templates, strict=True):
        yield from _of_metadata(f"{path}.metadata", template.get("metadata") or {})


def _of_metadata(path: str, metadata: Mapping[str, object]) -> Iterator[tuple[str, Mapping[str, str]]]:
    for field in ("labels", "annotations"):
        found = metadata.get(field)
        if isinstance(found, Mapping):
            yield f"{path}.{field}", found


# --- accelerators ---
#
# Rules on mismatches between topologies, chips and machines.
#
# Sources: GKE's autoscaler, IsMultiHostTpuPodslice and the tables of its machine types; JobSet's one Job a slice.


_SEPARATOR: Final = "x"


def tpu_topology_mismatch(config: Configuration) -> Iterator[RuleResult]:
    """Jobs whose total chips differ from the slice that they select."""
    for work in config.works:
        for job, path, index in _jobs_of(work):
            topology, per_pod = _tpu(work, index)
            if not topology or not per_pod:
                continue
            chips, pods = chips_in(topology), pods_at_once(job)
            if per_pod < chips and pods * per_pod == chips:
                continue
            if per_pod == chips:  # each pod uses a whole slice: any number is valid
                continue
            problem = (
                f"a slice of topology {topology} has {chips} chips, and each Job has {pods} pods of {per_pod}:"
                f" {_consequence(pods * per_pod, chips)}"
            )
            fix = f"set parallelism and completions to {max(1, chips // per_pod)}, or choose another topology"
            yield RuleResult(work.manifest, f"{path}.parallelism", problem, fix)


def tpu_chips_left(config: Configuration) -> Iterator[RuleResult]:
    """Pods that leave chips of their machine unused, which no other pod can use."""
    for work in config.works:
        for index, path in enumerate(work.paths):
            pod = work.pod(index)
            per_pod = dict(pod.requests).get(well_known.TPU)
            if not per_pod:
                continue
            wanted = dict(pod.node_selector)
            matching = [m for m in config.park.machines if m.selected_by(wanted)]
            counts = {t.allocatable.get(well_known.TPU, 0) for machines in matching for t in machines.templates}
            if counts and all(per_pod < count for count in counts):
                least = min(counts)
                problem = (
                    f"a pod requests {per_pod} of {least} chips of its machine: the others stay idle, and TPU programs"
                )
                problem += " that require all chips of a slice do not start"
                yield RuleResult(work.manifest, f"{path}.spec.containers", problem, f"request google.com/tpu: {least}")


def accelerator_mismatch(config: Configuration) -> Iterator[RuleResult]:
    """Selectors for accelerators that the selected machine type lacks."""
    catalog = builtin_catalog() if config.park.cluster is None else catalog_of(config.park.cluster)
    for manifest, path, labels in _selectors(config):
        accelerator = labels.get(well_known.ACCELERATOR) or labels.get(well_known.TPU_ACCELERATOR)
        name = labels.get(well_known.INSTANCE_TYPE) or ""
        if accelerator and name in catalog.machines and not _goes_with(catalog, name, accelerator):
            own = catalog.machines[name].accelerator
            has = f"has {own.count} {own.type}" if own else f"cannot be given {accelerator}"
            problem = f"{name} {has}, but {accelerator} is selected: no node matches both"
            fix = f"select {own.type}, or remove the machine type" if own else "remove the machine type"
            yield RuleResult(manifest, f"{path}[{well_known.INSTANCE_TYPE}]", problem, fix)
        if labels.get(well_known.SPOT) == "true" and labels.get(well_known.PROVISIONING, "spot") != "spot":
            problem = (
                f"{well_known.SPOT}: true and {well_known.PROVISIONING}: {labels[well_known.PROVISIONING]} contradict"
            )
            yield RuleResult(
                manifest, f"{path}[{well_known.PROVISIONING}]", f"{problem} each other", "keep one of them"
            )


def _goes_with(catalog: Catalog, name: str, accelerator: str) -> bool:
    machine = catalog.machine(name)
    return (machine.accelerator is not None and machine.accelerator.type == accelerator) or catalog.can_attach(
        machine, accelerator
    )


def _selectors(config: Configuration) -> Iterator[tuple[Manifest, str, Mapping[str, str]]]:
    for work in config.works:
        for path, template in zip(work.paths, work.templates, strict=True):
            yield work.manifest, f"{path}.spec.nodeSelector", (template.get("spec") or {}).get("nodeSelector") or {}
    for manifest, flavor in config.flavors.values():
        yield manifest, "spec.nodeLabels", flavor.labels


def _jobs_of(work: LintedWork) -> Iterator[tuple[Obj, str, int]]:
    """The Job specs of work, each with its path and the index of its pod set. One Job runs on one slice."""
    if work.obj["kind"] == "Job":
        yield work.obj["spec"], "spec", 0
    for index, replicated in enumerate(work.obj["spec"].get("replicatedJobs") or ()):
        yield replicated["template"]["spec"], f"spec.replicatedJobs[{index}].template.spec", index


def _tpu(work: LintedWork, index: int) -> tuple[str, int]:
    """The topology that pods select, and the chips of each; '' and 0 if they select none."""
    spec = work.templates[index].get("spec") or {}
    topology = (spec.get("nodeSelector") or {}).get(well_known.TPU_TOPOLOGY, "")
    sides = topology.split(_SEPARATOR)
    if not all(side.isdecimal() and side.isascii() for side in sides):
        return "", 0
    return topology, dict(work.view.pod_sets[index].template.requests).get(well_known.TPU, 0)


def _consequence(asked: int, chips: int) -> str:
    if asked > chips:
        return "the pods beyond the slice never get a node of it"
    return "some hosts have no pod, but TPU programs wait for all hosts of their slice"
