"""Lint rules on references to missing objects, and on jobs unsuitable for their machines.

If the manifests contain no object of the referenced kind, such objects may exist in the cluster. The finding is then a
note instead of an error, or a warning for a priority class.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from batchyard.api import scheme, well_known
from batchyard.api.manifests import Manifest
from batchyard.api.meta import Obj, annotation, group_kind, key_of, label, parse_integer
from batchyard.api.schema.violations import find_nearest_name
from batchyard.api.validation.core import SYSTEM_CLASSES
from batchyard.api.views.node import GRACE_DEFAULT, FlavorView
from batchyard.autoscaler.provisioning_request_pods import QUEUED_CLASS
from batchyard.base.counts import count_with_noun
from batchyard.base.instant import SECOND, parse_duration
from batchyard.jobs.kinds import INTEGRATIONS
from batchyard.lint.findings import RuleResult, Severity
from batchyard.lint.linted_manifests import PROVISIONING_CONTROLLER, LintedManifests
from batchyard.lint.workloads import LintedJob, LintedPodSet
from batchyard.placement.node_filters import selects

#: The kinds of jobs: a second definition of such an object is probably another job that needs another name.
_JOB_KINDS: Final = frozenset({scheme.JOB, scheme.JOB_SET, scheme.POD, scheme.WORKLOAD})
#: Kinds whose absence is a warning, because users forget these objects more often than queues.
_PRIORITY_KINDS: Final = frozenset({scheme.PRIORITY_CLASS, scheme.WORKLOAD_PRIORITY_CLASS})
_PROVISIONING_CLASSES: Final = (
    "check-capacity.autoscaling.x-k8s.io",
    "best-effort-atomic-scale-up.autoscaling.x-k8s.io",
    "queued-provisioning.gke.io",
)


class ObjectReference(NamedTuple):
    """A reference from one object to another, and the consequence if the referenced object does not exist."""

    manifest: Manifest
    path: str
    kind: str
    name: str
    consequence: str
    namespace: str = ""


def unknown_local_queue(linted: LintedManifests) -> Iterator[RuleResult]:
    """Report each job whose LocalQueue does not exist."""
    for job in linted.jobs:
        if job.queue:
            path = f"metadata.labels[{well_known.QUEUE_NAME}]" if job.is_job else "spec.queueName"
            consequence = "the job waits forever"
            reference = ObjectReference(job.manifest, path, scheme.LOCAL_QUEUE, job.queue, consequence, job.namespace)
            yield from report_missing(linted, reference)


def unknown_cluster_queue(linted: LintedManifests) -> Iterator[RuleResult]:
    """Report each LocalQueue whose ClusterQueue does not exist."""
    for manifest, view in linted.local_queues.values():
        effect = "jobs in this queue wait forever"
        reference = ObjectReference(manifest, "spec.clusterQueue", scheme.CLUSTER_QUEUE, view.cluster_queue, effect)
        yield from report_missing(linted, reference)


def unknown_namespace(linted: LintedManifests) -> Iterator[RuleResult]:
    """Report each Namespace that manifests use but do not define, located at the first object in that Namespace.

    System Namespaces and those of a linted cluster state are not reported. If the manifests define no Namespace at all,
    the Namespaces probably exist on the cluster: the severity is note.
    """
    severity = None if linted.has_kind(scheme.NAMESPACE) else Severity.NOTE
    manifests_by_namespace: dict[str, list[Manifest]] = {}
    for manifest in linted.manifests:
        name = manifest.obj["metadata"].get("namespace")
        if name and name not in linted.existing_namespaces and not linted.find(scheme.NAMESPACE, name):
            manifests_by_namespace.setdefault(name, []).append(manifest)
    for name, manifests in manifests_by_namespace.items():
        problem = (
            f"the Namespace {name} is not in these files: if the cluster does not have it, the API server rejects"
            f" {count_with_noun(len(manifests), 'object')} in it as NotFound"
        )
        fix = f"add the Namespace {name} to the files, or run `kubectl create namespace {name}` first"
        yield RuleResult(manifests[0], "metadata.namespace", problem, fix, severity=severity)


def unknown_flavor(linted: LintedManifests) -> Iterator[RuleResult]:
    """Report each ResourceFlavor that a ClusterQueue lists but that does not exist."""
    for manifest, view in linted.queue_versions:
        for group_index, group in enumerate(view.groups):
            for index, flavor in enumerate(group.flavors):
                path = f"spec.resourceGroups[{group_index}].flavors[{index}].name"
                consequence = "the ClusterQueue is inactive and admits no Workload"
                reference = ObjectReference(manifest, path, scheme.RESOURCE_FLAVOR, flavor, consequence)
                yield from report_missing(linted, reference)


def unknown_admission_check(linted: LintedManifests) -> Iterator[RuleResult]:
    """Report each AdmissionCheck that a ClusterQueue names but that does not exist."""
    for manifest, view in linted.queue_versions:
        for index, check in enumerate(view.admission_checks):
            path = f"spec.admissionChecksStrategy.admissionChecks[{index}].name"
            effect = "the ClusterQueue is inactive and admits no Workload"
            yield from report_missing(linted, ObjectReference(manifest, path, scheme.ADMISSION_CHECK, check, effect))


def unknown_provisioning_config(linted: LintedManifests) -> Iterator[RuleResult]:
    """Report missing ProvisioningRequestConfigs of AdmissionChecks, and those whose class no autoscaler serves."""
    for manifest in linted.all_versions(scheme.ADMISSION_CHECK):
        spec = manifest.obj["spec"]
        if spec.get("controllerName") == PROVISIONING_CONTROLLER:
            name = (spec.get("parameters") or {}).get("name") or ""
            effect = "the AdmissionCheck and every ClusterQueue that uses it are inactive"
            kind = scheme.PROVISIONING_REQUEST_CONFIG
            yield from report_missing(linted, ObjectReference(manifest, "spec.parameters.name", kind, name, effect))
    for manifest in linted.all_versions(scheme.PROVISIONING_REQUEST_CONFIG):
        name = manifest.obj["spec"].get("provisioningClassName") or ""
        if name not in _PROVISIONING_CLASSES:
            suggestion = find_nearest_name(name, _PROVISIONING_CLASSES) or " or ".join(_PROVISIONING_CLASSES)
            problem = f"no autoscaler serves the provisioning class {name!r}: ProvisioningRequests are never processed"
            fix = f"use {suggestion}, unless your own autoscaler serves it"
            yield RuleResult(manifest, "spec.provisioningClassName", problem, fix, severity=Severity.WARNING)


def unknown_topology(linted: LintedManifests) -> Iterator[RuleResult]:
    """Report each ResourceFlavor whose Topology does not exist."""
    for manifest in linted.all_versions(scheme.RESOURCE_FLAVOR):
        name = (manifest.obj.get("spec") or {}).get("topologyName")
        if name:
            consequence = "ClusterQueues with the flavor are inactive"
            reference = ObjectReference(manifest, "spec.topologyName", scheme.TOPOLOGY, name, consequence)
            yield from report_missing(linted, reference)


def unknown_priority_class(linted: LintedManifests) -> Iterator[RuleResult]:
    """Report each job whose WorkloadPriorityClass or PriorityClass does not exist."""
    for job in linted.jobs:
        if job.class_kind == "WorkloadPriorityClass":
            path = f"metadata.labels[{well_known.PRIORITY_CLASS}]" if job.is_job else "spec.priorityClassRef.name"
            consequence = "Kueue creates no Workload for the job, so it never starts"
            kind = scheme.WORKLOAD_PRIORITY_CLASS
            yield from report_missing(linted, ObjectReference(job.manifest, path, kind, job.class_name, consequence))
        for path, template in zip(job.paths, job.templates, strict=True):
            name = (template.get("spec") or {}).get("priorityClassName")
            if name and name not in SYSTEM_CLASSES:
                consequence = "the API server rejects its pods, and Kueue does not queue the job"
                class_path = f"{path}.spec.priorityClassName"
                yield from report_missing(
                    linted, ObjectReference(job.manifest, class_path, scheme.PRIORITY_CLASS, name, consequence)
                )


def unknown_node_pool(linted: LintedManifests) -> Iterator[RuleResult]:
    """Report each pod template or ResourceFlavor that selects an unknown node pool, if any node pools are known."""
    pool_names = {machines.name: None for machines in linted.inventory.pools}
    if not pool_names:
        return
    for manifest, path, labels in linted.node_selectors():
        name = labels.get(well_known.NODE_POOL)
        if name and name not in pool_names:
            problem = f"node pool {name} does not exist: no node has this label, so the pods stay Pending"
            similar_name = find_nearest_name(name, pool_names)
            fix = f"did you mean {similar_name}?" if similar_name else f"use one of {', '.join(pool_names)}"
            yield RuleResult(manifest, f"{path}[{well_known.NODE_POOL}]", problem, fix)


def node_pool_without_cluster(linted: LintedManifests) -> Iterator[RuleResult]:
    """Report each NodePool if the manifests contain no Cluster, which has its zones and machine types."""
    if linted.has_kind(scheme.CLUSTER):
        return
    for manifest in linted.latest_versions(scheme.NODE_POOL):
        problem = (
            "the manifests contain no Cluster: `simulate` rejects this NodePool, a platform without a Cluster creates"
            " no machines for it, and lint cannot compare it with flavors and pods"
        )
        fix = "add the Cluster (cloud.batchyard.dev/v1alpha1) to the manifests, or name its file with --cluster FILE"
        yield RuleResult(manifest, "", problem, fix)


def cohort_cycle(linted: LintedManifests) -> Iterator[RuleResult]:
    """Report each Cohort whose chain of parents contains a cycle."""
    for name, (manifest, view) in linted.cohorts.items():
        if linted.snapshot.forest.has_cycle(name):
            problem = f"the parents of Cohort {name} form a cycle: no ClusterQueue below it admits anything"
            fix = f"give {view.parent} or {name} another parent, or none"
            yield RuleResult(manifest, "spec.parentName", problem, fix, [(manifest, {"spec": {"parentName": None}})])


def defined_twice(linted: LintedManifests) -> Iterator[RuleResult]:
    """Report each repeated definition of an object with the same submission time, except of a Cluster."""
    first_definitions: dict[object, Manifest] = {}
    for manifest in linted.manifests:
        if group_kind(manifest.obj) == scheme.CLUSTER or not manifest.obj["metadata"].get("name"):
            continue
        submitted_at = annotation(manifest.obj, well_known.SUBMIT_AT)
        earlier_manifest = first_definitions.setdefault((key_of(manifest.obj), submitted_at), manifest)
        if earlier_manifest is not manifest:
            problem = f"this object is also defined in {earlier_manifest.location()}: the version applied last counts"
            yield RuleResult(
                manifest,
                "metadata.name",
                problem,
                "keep one definition, or give the definitions different names or submission times",
                severity=Severity.WARNING if group_kind(manifest.obj) in _JOB_KINDS else None,
            )


def report_missing(linted: LintedManifests, reference: ObjectReference) -> Iterator[RuleResult]:
    """Report a reference to an object that is not in the manifests; as a note if they contain none of its kind."""
    if linted.find(reference.kind, reference.name, reference.namespace) is not None:
        return
    kind = reference.kind.partition(".")[0]
    suffix = f" in namespace {reference.namespace}" if reference.namespace else ""
    if not linted.has_kind(reference.kind):
        problem = f"the {kind} {reference.name}{suffix} is not in these files; without it, {reference.consequence}"
        is_priority = reference.kind in _PRIORITY_KINDS
        fix = f"make sure that the {kind} exists in the cluster"
        fix = f"add the {kind} to the files, or {fix}" if is_priority else fix
        severity = Severity.WARNING if is_priority else Severity.NOTE
        yield RuleResult(reference.manifest, reference.path, problem, fix, severity=severity)
        return
    problem = f"{kind} {reference.name}{suffix} does not exist: {reference.consequence}"
    fix = _suggest_name(kind, reference, _names_of_kind(linted, reference))
    yield RuleResult(reference.manifest, reference.path, problem, fix)


def _names_of_kind(linted: LintedManifests, reference: ObjectReference) -> Sequence[str]:
    all_metadata = (manifest.obj["metadata"] for manifest in linted.latest_versions(reference.kind))
    return sorted(metadata["name"] for metadata in all_metadata if metadata.get("namespace", "") == reference.namespace)


def _suggest_name(kind: str, reference: ObjectReference, existing_names: Sequence[str]) -> str:
    similar_name = find_nearest_name(reference.name, existing_names)
    if similar_name:
        return f"did you mean {similar_name}?"
    return (
        f"create {kind} {reference.name}, or use one of {', '.join(existing_names)}"
        if existing_names
        else f"create {kind} {reference.name}"
    )


# Dependencies between jobs (`batchyard.dev/after`). Validation reports invalid annotations.


_AFTER_PATH: Final = f"metadata.annotations[{well_known.AFTER}]"


def unknown_dependency(linted: LintedManifests) -> Iterator[RuleResult]:
    """Report each job that waits for a job which is not in the manifests, or of which the kind has no queues."""
    for manifest, targets in _dependencies(linted):
        for text, target in targets.items():
            if target is None:
                problem = f"{text!r} names a kind of job that has no queues: the job is rejected"
                yield RuleResult(manifest, _AFTER_PATH, problem, "use job, jobset, pod or the name of another kind")
            elif linted.find(*target) is None:
                reference = ObjectReference(manifest, _AFTER_PATH, *target[:2], "the job waits", target[2])
                kind = reference.kind.partition(".")[0]
                problem = f"{text!r}: the {kind} {reference.name} is not in these files; until it exists, the job waits"
                fix = _suggest_name(kind, reference, _names_of_kind(linted, reference))
                yield RuleResult(manifest, _AFTER_PATH, problem, fix)


def dependency_cycle(linted: LintedManifests) -> Iterator[RuleResult]:
    """Report each cycle of jobs that wait for each other, at the job that closes it."""
    targets_by_job = {
        _job_reference(manifest.obj): (manifest, [each for each in targets.values() if each is not None])
        for manifest, targets in _dependencies(linted)
    }
    finished: set[_JobReference] = set()
    for start in targets_by_job:
        path: dict[_JobReference, Iterator[_JobReference]] = {}
        following: _JobReference | None = start
        while following is not None or path:
            if following is None:
                finished.add(path.popitem()[0])
            elif following in path:
                members = list(path)[list(path).index(following) :]
                chain = " -> ".join(name for _, name, _ in (*members, following))
                fix = "remove one of these dependencies"
                yield RuleResult(targets_by_job[members[-1]][0], _AFTER_PATH, f"the jobs {chain} form a cycle", fix)
            elif following not in finished and following in targets_by_job:
                path[following] = iter(targets_by_job[following][1])
            following = next(path[next(reversed(path))], None) if path else None


_JobReference: TypeAlias = tuple[str, str, str]


def _job_reference(job: Obj) -> _JobReference:
    return group_kind(job), job["metadata"].get("name", ""), job["metadata"].get("namespace", "")


def _dependencies(linted: LintedManifests) -> Iterator[tuple[Manifest, Mapping[str, _JobReference | None]]]:
    """Return each job with dependencies, with the jobs on which it depends by their text; None if a kind is unknown."""
    manifests = [each for each in linted.manifests if annotation(each.obj, well_known.AFTER)]
    if not manifests:
        return
    from batchyard.api import job_dependencies  # noqa: PLC0415 - few manifests have dependencies

    described = (manifest.obj["spec"] for manifest in linted.all_versions(scheme.JOB_KIND))
    kinds = [*INTEGRATIONS, *scheme.JOB_FRAMEWORKS.values(), *(f"{spec['kind']}.{spec['group']}" for spec in described)]
    for manifest in manifests:
        namespace = manifest.obj["metadata"].get("namespace", "")
        targets: dict[str, _JobReference | None] = {}
        try:
            for each in job_dependencies.dependencies_of(manifest.obj):
                kind = job_dependencies.find_kind(each.kind, kinds)
                targets[str(each)] = None if kind is None else (kind, each.name, namespace)
        except ValueError:
            continue
        yield manifest, targets


# Rules on the provisioning model of machines: Spot machines are reclaimed, queued machines have a time limit.
#
# Sources: GKE's Spot VMs (a machine has 30 seconds, of which the kubelet leaves ordinary pods 25); GKE's autoscaler,
# pkg/provisioningrequests (machines on request run for 7 days at most).


#: The grace period of ordinary pods after the termination notice of a Spot machine.
SPOT_GRACE_SECONDS: Final = 25
MAX_RUN_SECONDS: Final = 7 * 24 * 3600
_MAX_RUN_ANNOTATION: Final = f"{well_known.PROVISIONING_PREFIX}maxRunDurationSeconds"


def grace_beyond_spot(linted: LintedManifests) -> Iterator[RuleResult]:
    """Report each pod set that can run on Spot machines with a longer grace period than these allow.

    The default grace period is not reported.
    """
    for pod_set in _pod_sets_on_spot(linted):
        spec = pod_set.job.templates[pod_set.index].get("spec") or {}
        grace_seconds = spec.get("terminationGracePeriodSeconds")
        if grace_seconds not in {None, GRACE_DEFAULT} and grace_seconds > SPOT_GRACE_SECONDS:
            problem = (
                f"the pods can run on Spot machines and have a grace period of {grace_seconds} s, but a Spot"
                " machine gives them"
                f" {SPOT_GRACE_SECONDS} s: unsaved work is lost after that"
            )
            fix = f"save checkpoints within {SPOT_GRACE_SECONDS} s (best 15 s) and set this period, or save earlier"
            yield RuleResult(pod_set.job.manifest, f"{pod_set.path}.terminationGracePeriodSeconds", problem, fix)


def no_retries_on_spot(linted: LintedManifests) -> Iterator[RuleResult]:
    """Report each job that fails for good when its first Spot machine is reclaimed, because its backoffLimit is 0."""
    for pod_set in _pod_sets_on_spot(linted):
        job, spec = pod_set.job, _job_spec_of_pod_set(pod_set)
        if spec is None or spec.get("backoffLimit") != 0 or _ignores_disruptions(spec):
            continue
        if job.obj["kind"] == "JobSet" and (job.obj["spec"].get("failurePolicy") or {}).get("maxRestarts"):
            continue
        path = pod_set.path.removesuffix("template.spec")
        problem = "backoffLimit is 0 and the pods can run on Spot machines: the first reclaimed machine fails the job"
        fix = "set backoffLimit above 0, and add a podFailurePolicy that ignores pods with condition DisruptionTarget"
        if job.obj["kind"] == "JobSet":
            fix = "set failurePolicy.maxRestarts of the JobSet above 0"
        yield RuleResult(job.manifest, f"{path}backoffLimit", problem, fix)


def queued_pool_without_check(linted: LintedManifests) -> Iterator[RuleResult]:
    """Report each pod set that can only run on queued-provisioning pools but gets no ProvisioningRequest."""
    for pod_set in linted.pod_sets:
        flavor_names = [choice.flavor for choice in pod_set.assignment.choices.values()]
        flavors = [linted.flavors[name][1] for name in flavor_names if name in linted.flavors]
        if any(linted.creates_provisioning_requests(pod_set.queue.view, flavor.name) for flavor in flavors):
            continue
        pod = pod_set.job.pod(pod_set.index, flavors, with_queued_toleration=True)
        groups = [m for m in linted.inventory.machines if any(selects(pod.shape.rules, t) for t in m.templates)]
        if groups and all(m.provisioning == "queued" for m in groups):
            names = ", ".join(m.name for m in groups)
            problem = (
                f"the pods can only run on {names}, which serves only ProvisioningRequests, but ClusterQueue"
                f" {pod_set.queue.name} has no AdmissionCheck that creates one: they stay Pending"
            )
            fix = "add an AdmissionCheck with controllerName kueue.x-k8s.io/provisioning-request for this flavor"
            yield RuleResult(pod_set.job.manifest, f"{pod_set.path}.nodeSelector", problem, fix)


def run_time_beyond_limit(linted: LintedManifests) -> Iterator[RuleResult]:
    """Report each job that requests or declares a longer run time than its queued-provisioning machines can have."""
    for job in linted.jobs:
        if not _requests_gke_capacity(linted, job):
            continue
        requested_seconds = parse_integer(annotation(job.obj, _MAX_RUN_ANNOTATION) or "")
        limit_seconds = MAX_RUN_SECONDS if requested_seconds is None else requested_seconds
        annotation_path = f"metadata.annotations[{_MAX_RUN_ANNOTATION}]"
        if requested_seconds is not None and requested_seconds > MAX_RUN_SECONDS:
            problem = (
                f"queued provisioning runs machines for at most {MAX_RUN_SECONDS} s (7 days), "
                f"but {requested_seconds} s are requested"
            )
            fix = f'request "{MAX_RUN_SECONDS}" or less, and resume from checkpoints'
            patches = [(job.manifest, {"metadata": {"annotations": {_MAX_RUN_ANNOTATION: str(MAX_RUN_SECONDS)}}})]
            yield RuleResult(job.manifest, annotation_path, f"{problem}: the request fails", fix, patches)
            continue
        for path, seconds in _declared_run_times(job):
            if seconds > limit_seconds:
                limit_source = "as requested" if requested_seconds is not None else "the maximum"
                problem = (
                    f"the job can run for {seconds} s, but its machines and pods are deleted after {limit_seconds} s"
                    f" ({limit_source})"
                )
                fix = (
                    "request machines for the job's whole run time"
                    if requested_seconds is not None
                    else "shorten the job, and resume it from checkpoints"
                )
                yield RuleResult(job.manifest, path, problem, fix, severity=Severity.WARNING)


def check_without_resource(linted: LintedManifests) -> Iterator[RuleResult]:
    """Report each pod set that requests none of the managedResources of its queue's provisioning AdmissionCheck."""
    for pod_set in linted.pod_sets:
        for rule in pod_set.queue.view.check_rules:
            managed_resources = _managed_resources(linted, rule.name)
            requested_resources = [resource for resource, amount in pod_set.assignment.requests if amount]
            if managed_resources and not any(resource in managed_resources for resource in requested_resources):
                names = ", ".join(managed_resources)
                problem = (
                    f"the AdmissionCheck {rule.name} requests machines only for pods that request {names},"
                    f" but {pod_set.subject} requests {', '.join(requested_resources) or 'nothing'}:"
                    " it is admitted without machines"
                )
                fix = "add the pods' resources to managedResources of the ProvisioningRequestConfig"
                yield RuleResult(pod_set.job.manifest, f"{pod_set.path}.containers", problem, fix)


def _pod_sets_on_spot(linted: LintedManifests) -> Iterator[LintedPodSet]:
    for pod_set in linted.pod_sets:
        template = pod_set.job.view.pod_sets[pod_set.index].template
        node_selector_labels = dict(template.node_selector)
        usable_flavors = [
            flavor
            for group in pod_set.queue.view.groups
            for name, obstacle in zip(
                group.flavors, linted.snapshot.obstacles.mismatches_for(template, group.flavors), strict=True
            )
            if not obstacle and (flavor := linted.flavors[name][1])
        ]
        if any(is_spot(linted, flavor) for flavor in usable_flavors) or _selects_spot(node_selector_labels):
            yield pod_set


def is_spot(linted: LintedManifests, flavor: FlavorView) -> bool:
    """Return whether all machines of a ResourceFlavor are Spot machines."""
    if _selects_spot(flavor.labels):
        return True
    machine_groups = linted.inventory.machines_for(flavor) if flavor.labels else []
    return bool(machine_groups) and all(group.provisioning == "spot" for group in machine_groups)


def _selects_spot(labels: Mapping[str, str]) -> bool:
    return labels.get(well_known.SPOT) == "true" or labels.get(well_known.PROVISIONING) == "spot"


def _job_spec_of_pod_set(pod_set: LintedPodSet) -> Any:
    spec = pod_set.job.obj["spec"]
    if pod_set.job.obj["kind"] == "Job":
        return spec
    jobs = spec.get("replicatedJobs") or ()
    return jobs[pod_set.index]["template"]["spec"] if jobs else None


def _ignores_disruptions(spec: Any) -> bool:
    failure_policy_rules = (spec.get("podFailurePolicy") or {}).get("rules") or ()
    return any(
        rule["action"] == "Ignore"
        and any(pattern["type"] == "DisruptionTarget" for pattern in rule.get("onPodConditions") or ())
        for rule in failure_policy_rules
    )


def _requests_gke_capacity(linted: LintedManifests, job: LintedJob) -> bool:
    queue = linted.cluster_queue_of(job)
    names = queue.view.admission_checks if queue is not None else ()
    return any(_provisioning_class(linted, name) == QUEUED_CLASS for name in names)


def _provisioning_config(linted: LintedManifests, check_name: str) -> Any:
    check_manifest = linted.find(scheme.ADMISSION_CHECK, check_name)
    name = ((check_manifest.obj["spec"].get("parameters") or {}).get("name") or "") if check_manifest else ""
    config_manifest = linted.find(scheme.PROVISIONING_REQUEST_CONFIG, name)
    return {} if config_manifest is None else config_manifest.obj["spec"]


def _provisioning_class(linted: LintedManifests, check_name: str) -> str:
    name: str = _provisioning_config(linted, check_name).get("provisioningClassName") or ""
    return name


def _managed_resources(linted: LintedManifests, check_name: str) -> list[str]:
    return _provisioning_config(linted, check_name).get("managedResources") or []


def _declared_run_times(job: LintedJob) -> Iterator[tuple[str, int]]:
    max_execution_seconds = parse_integer(label(job.obj, well_known.MAX_EXEC_TIME) or "")
    if max_execution_seconds:
        yield f"metadata.labels[{well_known.MAX_EXEC_TIME}]", max_execution_seconds
    if job.obj["kind"] == "Job" and job.obj["spec"].get("activeDeadlineSeconds"):
        yield "spec.activeDeadlineSeconds", job.obj["spec"]["activeDeadlineSeconds"]
    for path, template in zip(job.paths, job.templates, strict=True):
        active_deadline_seconds = (template.get("spec") or {}).get("activeDeadlineSeconds")
        if active_deadline_seconds:
            yield f"{path}.spec.activeDeadlineSeconds", active_deadline_seconds
    runtime_text = annotation(job.obj, well_known.RUNTIME)
    if runtime_text and runtime_text[0].isdigit():
        yield f"metadata.annotations[{well_known.RUNTIME}]", parse_duration(runtime_text) // SECOND
