"""Rules on references to missing objects.

If the manifests have no object of a kind, its objects may exist elsewhere: then the finding is a note, not an error.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from batchyard.api import scheme, well_known
from batchyard.api.manifests import Manifest
from batchyard.api.meta import annotation, group_kind, key_of, label, whole_number
from batchyard.api.schema.violations import nearest
from batchyard.api.validation.core import SYSTEM_CLASSES
from batchyard.api.views.node import GRACE_DEFAULT
from batchyard.api.views.workload import FlavorView
from batchyard.autoscaler.provisioning_request_pods import QUEUED_CLASS
from batchyard.base.instant import SECOND, parse_duration
from batchyard.lint.configuration import PROVISIONING, Configuration
from batchyard.lint.findings import RuleResult, Severity
from batchyard.lint.workloads import LintedPodSet, LintedWork
from batchyard.placement.node_filters import selects

_PROVISIONING_CLASSES: Final = (
    "check-capacity.autoscaling.x-k8s.io",
    "best-effort-atomic-scale-up.autoscaling.x-k8s.io",
    "queued-provisioning.gke.io",
)


class ObjectReference(NamedTuple):
    """A reference in an object, its path, and the consequence if the target does not exist."""

    manifest: Manifest
    path: str
    kind: str
    name: str
    consequence: str
    namespace: str = ""


def unknown_local_queue(config: Configuration) -> Iterator[RuleResult]:
    """Work that refers to a missing LocalQueue."""
    for work in config.works:
        if work.queue:
            path = f"metadata.labels[{well_known.QUEUE_NAME}]" if work.is_job else "spec.queueName"
            wanted = ObjectReference(
                work.manifest, path, scheme.LOCAL_QUEUE, work.queue, "it waits forever", work.namespace
            )
            yield from _missing(config, wanted)


def unknown_cluster_queue(config: Configuration) -> Iterator[RuleResult]:
    """LocalQueues that refer to a missing ClusterQueue."""
    for manifest, view in config.local_queues.values():
        consequence = "work in this queue waits forever"
        wanted = ObjectReference(manifest, "spec.clusterQueue", scheme.CLUSTER_QUEUE, view.cluster_queue, consequence)
        yield from _missing(config, wanted)


def unknown_flavor(config: Configuration) -> Iterator[RuleResult]:
    """Quota in missing flavors."""
    for manifest, view in config.queue_versions:
        for number, group in enumerate(view.groups):
            for index, flavor in enumerate(group.flavors):
                path = f"spec.resourceGroups[{number}].flavors[{index}].name"
                consequence = "the ClusterQueue is inactive, and admits nothing"
                yield from _missing(
                    config, ObjectReference(manifest, path, scheme.RESOURCE_FLAVOR, flavor, consequence)
                )


def unknown_admission_check(config: Configuration) -> Iterator[RuleResult]:
    """Missing AdmissionChecks."""
    for manifest, view in config.queue_versions:
        for index, check in enumerate(view.admission_checks):
            path = f"spec.admissionChecksStrategy.admissionChecks[{index}].name"
            consequence = "the ClusterQueue is inactive, and admits nothing"
            yield from _missing(config, ObjectReference(manifest, path, scheme.ADMISSION_CHECK, check, consequence))


def unknown_provisioning_config(config: Configuration) -> Iterator[RuleResult]:
    """Checks without their ProvisioningRequestConfig, or with an unknown provisioning class."""
    for manifest in config.all(scheme.ADMISSION_CHECK):
        spec = manifest.obj["spec"]
        if spec.get("controllerName") == PROVISIONING:
            name = (spec.get("parameters") or {}).get("name") or ""
            consequence = "the check is inactive, and with it every ClusterQueue that uses it"
            kind = scheme.PROVISIONING_REQUEST_CONFIG
            yield from _missing(config, ObjectReference(manifest, "spec.parameters.name", kind, name, consequence))
    for manifest in config.all(scheme.PROVISIONING_REQUEST_CONFIG):
        name = manifest.obj["spec"].get("provisioningClassName") or ""
        if name not in _PROVISIONING_CLASSES:
            close = nearest(name, _PROVISIONING_CLASSES) or " or ".join(_PROVISIONING_CLASSES)
            problem = f"no known autoscaler serves the provisioning class {name}: requests are never processed"
            fix = f"use {close}, unless your own autoscaler serves it"
            yield RuleResult(manifest, "spec.provisioningClassName", problem, fix, severity=Severity.WARNING)


def unknown_topology(config: Configuration) -> Iterator[RuleResult]:
    """Flavors of missing topologies."""
    for manifest in config.all(scheme.RESOURCE_FLAVOR):
        name = (manifest.obj.get("spec") or {}).get("topologyName")
        if name:
            consequence = "ClusterQueues with the flavor are inactive"
            yield from _missing(
                config, ObjectReference(manifest, "spec.topologyName", scheme.TOPOLOGY, name, consequence)
            )


def unknown_priority_class(config: Configuration) -> Iterator[RuleResult]:
    """Work of missing priority classes."""
    for work in config.works:
        if work.class_kind == "WorkloadPriorityClass":
            path = f"metadata.labels[{well_known.PRIORITY_CLASS}]" if work.is_job else "spec.priorityClassRef.name"
            consequence = "no Workload is created for it, so it never starts"
            kind = scheme.WORKLOAD_PRIORITY_CLASS
            yield from _missing(config, ObjectReference(work.manifest, path, kind, work.class_name, consequence))
        for path, template in zip(work.paths, work.templates, strict=True):
            name = (template.get("spec") or {}).get("priorityClassName")
            if name and name not in SYSTEM_CLASSES:
                consequence = "its pods are rejected, and with Kueue it is not even queued"
                place = f"{path}.spec.priorityClassName"
                yield from _missing(
                    config, ObjectReference(work.manifest, place, scheme.PRIORITY_CLASS, name, consequence)
                )


def unknown_node_pool(config: Configuration) -> Iterator[RuleResult]:
    """Pods and flavors that select missing node pools."""
    pools = {machines.name: None for machines in config.park.pools}
    if not pools:
        return
    for manifest, path, labels in _selectors(config):
        name = labels.get(well_known.NODE_POOL)
        if name and name not in pools:
            problem = f"node pool {name} does not exist: no node has this label, and pods stay Pending"
            close = nearest(name, pools)
            fix = f"did you mean {close}?" if close else f"use one of {', '.join(pools)}"
            yield RuleResult(manifest, f"{path}[{well_known.NODE_POOL}]", problem, fix)


def _selectors(config: Configuration) -> Iterator[tuple[Manifest, str, Mapping[str, str]]]:
    for work in config.works:
        for path, template in zip(work.paths, work.templates, strict=True):
            yield work.manifest, f"{path}.spec.nodeSelector", (template.get("spec") or {}).get("nodeSelector") or {}
    for manifest, flavor in config.flavors.values():
        yield manifest, "spec.nodeLabels", flavor.labels


def cohort_cycle(config: Configuration) -> Iterator[RuleResult]:
    """Cohorts that are their own ancestors."""
    for name, (manifest, view) in config.cohorts.items():
        if config.snapshot.forest.has_cycle(name):
            problem = f"the parents of Cohort {name} form a cycle: no ClusterQueue below it admits anything"
            fix = f"give {view.parent} or {name} another parent, or none"
            yield RuleResult(manifest, "spec.parentName", problem, fix, [(manifest, {"spec": {"parentName": None}})])


def defined_twice(config: Configuration) -> Iterator[RuleResult]:
    """Objects that are defined several times for the same instant."""
    first: dict[object, Manifest] = {}
    for manifest in config.manifests:
        if group_kind(manifest.obj) == scheme.CLUSTER or not manifest.obj["metadata"].get("name"):
            continue
        when = annotation(manifest.obj, well_known.SUBMIT_AT)
        before = first.setdefault((key_of(manifest.obj), when), manifest)
        if before is not manifest:
            where = f"{before.source}, document {before.document}"
            problem = f"this object is also defined in {where}: the version applied last counts"
            yield RuleResult(manifest, "metadata.name", problem, "keep one of them, or apply them one after the other")


def _missing(config: Configuration, wanted: ObjectReference) -> Iterator[RuleResult]:
    """The finding for a reference whose target does not exist."""
    if config.find(wanted.kind, wanted.name, wanted.namespace) is not None:
        return
    kind = wanted.kind.partition(".")[0]
    where = f" in namespace {wanted.namespace}" if wanted.namespace else ""
    if not config.knows(wanted.kind):
        problem = f"the {kind} {wanted.name}{where} is not in these files; without it, {wanted.consequence}"
        yield RuleResult(wanted.manifest, wanted.path, problem, "make sure that it exists", severity=Severity.NOTE)
        return
    problem = f"missing {kind} {wanted.name}{where}: {wanted.consequence}"
    yield RuleResult(wanted.manifest, wanted.path, problem, _remedy(kind, wanted, _there(config, wanted)))


def _there(config: Configuration, wanted: ObjectReference) -> Sequence[str]:
    of_kind = (manifest.obj["metadata"] for manifest in config.last(wanted.kind))
    return sorted(own["name"] for own in of_kind if own.get("namespace", "") == wanted.namespace)


def _remedy(kind: str, wanted: ObjectReference, there: Sequence[str]) -> str:
    close = nearest(wanted.name, there)
    if close:
        return f"did you mean {close}?"
    return f"create it, or use one of {', '.join(there)}" if there else f"create a {kind} of this name"


# --- terms ---
#
# Rules on the provisioning terms of machines: Spot machines are reclaimed, queued machines have a time limit.
#
# Sources: GKE's Spot VMs (a machine has 30 seconds, of which the kubelet leaves ordinary pods 25); GKE's autoscaler,
# pkg/provisioningrequests (machines on request run for 7 days at most).


#: The grace period of ordinary pods after the termination notice of a Spot machine.
SPOT_GRACE_SECONDS: Final = 25
LONGEST_RUN_SECONDS: Final = 7 * 24 * 3600
_MAX_RUN: Final = f"{well_known.PROVISIONING_PREFIX}maxRunDurationSeconds"


def grace_beyond_spot(config: Configuration) -> Iterator[RuleResult]:
    """Pods with a grace period longer than on Spot machines; the default grace period is accepted."""
    for part in _on_spot(config):
        spec = part.work.templates[part.index].get("spec") or {}
        grace = spec.get("terminationGracePeriodSeconds")
        if grace not in {None, GRACE_DEFAULT} and grace > SPOT_GRACE_SECONDS:
            problem = (
                f"its pods may run on Spot machines and use a grace period of {grace} s, but a Spot machine gives them"
                f" {SPOT_GRACE_SECONDS} s: unsaved work is lost after that"
            )
            fix = f"save within {SPOT_GRACE_SECONDS} s (best within 15 s) and set this value, or save while it runs"
            yield RuleResult(part.work.manifest, f"{part.path}.terminationGracePeriodSeconds", problem, fix)


def no_retries_on_spot(config: Configuration) -> Iterator[RuleResult]:
    """Work that fails permanently when its first Spot machine is reclaimed."""
    for part in _on_spot(config):
        work, spec = part.work, _job_spec(part)
        if spec is None or spec.get("backoffLimit") != 0 or _ignores_disruptions(spec):
            continue
        if work.obj["kind"] == "JobSet" and (work.obj["spec"].get("failurePolicy") or {}).get("maxRestarts"):
            continue
        path = part.path.removesuffix("template.spec")
        problem = "backoffLimit is 0 and its pods may run on Spot machines: the first reclaimed machine fails the work"
        fix = "allow some retries, and add a podFailurePolicy that ignores pods with the condition DisruptionTarget"
        if work.obj["kind"] == "JobSet":
            fix = "set failurePolicy.maxRestarts of the JobSet"
        yield RuleResult(work.manifest, f"{path}backoffLimit", problem, fix)


def queued_pool_without_check(config: Configuration) -> Iterator[RuleResult]:
    """Work for queued pools in a ClusterQueue that requests no machines."""
    for part in config.parts:
        flavors = [config.flavors[c.flavor][1] for c in part.assignment.choices.values() if c.flavor in config.flavors]
        if any(config.provisions(part.queue.view, flavor.name) for flavor in flavors):
            continue
        pod = part.work.pod(part.index, flavors, queued=True)
        matching = [m for m in config.park.machines if any(selects(pod.shape.rules, t) for t in m.templates)]
        if matching and all(m.terms == "queued" for m in matching):
            names = ", ".join(m.name for m in matching)
            problem = (
                f"its pods can only run on {names}, which serves ProvisioningRequests only, and ClusterQueue"
                f" {part.queue.name} has no AdmissionCheck that creates one: they stay Pending"
            )
            fix = "give the queue an AdmissionCheck of kueue.x-k8s.io/provisioning-request for this flavor"
            yield RuleResult(part.work.manifest, f"{part.path}.nodeSelector", problem, fix)


def run_time_beyond_limit(config: Configuration) -> Iterator[RuleResult]:
    """Work with a run time beyond the limit of machines on request."""
    for work in config.works:
        if not _asks_gke(config, work):
            continue
        given = whole_number(annotation(work.obj, _MAX_RUN) or "")
        limit = LONGEST_RUN_SECONDS if given is None else given
        place = f"metadata.annotations[{_MAX_RUN}]"
        if given is not None and given > LONGEST_RUN_SECONDS:
            problem = f"machines on request run for {LONGEST_RUN_SECONDS} s (7 days) at most, and {given} are requested"
            fix = f'request "{LONGEST_RUN_SECONDS}" or less, and resume from checkpoints'
            patches = [(work.manifest, {"metadata": {"annotations": {_MAX_RUN: str(LONGEST_RUN_SECONDS)}}})]
            yield RuleResult(work.manifest, place, f"{problem}: the request fails", fix, patches)
            continue
        for path, seconds in _run_times(work):
            if seconds > limit:
                most = "as requested" if given is not None else "the maximum"
                problem = f"it may run for {seconds} s, but its machines and pods are deleted after {limit} s ({most})"
                fix = (
                    "request machines for its whole run time" if given is not None else "run shorter, with checkpoints"
                )
                yield RuleResult(work.manifest, path, problem, fix, severity=Severity.WARNING)


def check_without_resource(config: Configuration) -> Iterator[RuleResult]:
    """Capacity checks whose managedResources exclude all resources that the work requests."""
    for part in config.parts:
        for rule in part.queue.view.check_rules:
            managed = _managed_resources(config, rule.name)
            requested = [resource for resource, amount in part.assignment.requests if amount]
            if managed and not any(resource in managed for resource in requested):
                problem = (
                    f"the AdmissionCheck {rule.name} requests machines only for pods that request {', '.join(managed)},"
                    f" and {part.who} requests {', '.join(requested) or 'nothing'}: it is admitted without machines"
                )
                fix = "add its resources to managedResources of the ProvisioningRequestConfig, unless this is intended"
                yield RuleResult(part.work.manifest, f"{part.path}.containers", problem, fix)


def _on_spot(config: Configuration) -> Iterator[LintedPodSet]:
    """The pod sets that may run on Spot machines."""
    for part in config.parts:
        template = part.work.view.pod_sets[part.index].template
        wanted = dict(template.node_selector)
        usable = [
            flavor
            for group in part.queue.view.groups
            for name, wrong in zip(group.flavors, config.snapshot.obstacles.of(template, group.flavors), strict=True)
            if not wrong and (flavor := config.flavors[name][1])
        ]
        if any(is_spot(config, flavor) for flavor in usable) or _says_spot(wanted):
            yield part


def is_spot(config: Configuration, flavor: FlavorView) -> bool:
    """Whether a flavor consists of Spot machines."""
    if _says_spot(flavor.labels):
        return True
    machines = config.park.of(flavor) if flavor.labels else []
    return bool(machines) and all(each.terms == "spot" for each in machines)


def _says_spot(labels: Mapping[str, str]) -> bool:
    return labels.get(well_known.SPOT) == "true" or labels.get(well_known.PROVISIONING) == "spot"


def _job_spec(part: LintedPodSet) -> Any:
    spec = part.work.obj["spec"]
    if part.work.obj["kind"] == "Job":
        return spec
    jobs = spec.get("replicatedJobs") or ()
    return jobs[part.index]["template"]["spec"] if jobs else None


def _ignores_disruptions(spec: Any) -> bool:
    rules = (spec.get("podFailurePolicy") or {}).get("rules") or ()
    return any(
        rule["action"] == "Ignore"
        and any(pattern["type"] == "DisruptionTarget" for pattern in rule.get("onPodConditions") or ())
        for rule in rules
    )


def _asks_gke(config: Configuration, work: LintedWork) -> bool:
    """Whether its machines are requested from GKE."""
    queue = config.cluster_queue_of(work)
    names = queue.view.admission_checks if queue is not None else ()
    return any(_class_of(config, name) == QUEUED_CLASS for name in names)


def _config_of(config: Configuration, check: str) -> Any:
    found = config.find(scheme.ADMISSION_CHECK, check)
    name = ((found.obj["spec"].get("parameters") or {}).get("name") or "") if found else ""
    asked = config.find(scheme.PROVISIONING_REQUEST_CONFIG, name)
    return {} if asked is None else asked.obj["spec"]


def _class_of(config: Configuration, check: str) -> str:
    name: str = _config_of(config, check).get("provisioningClassName") or ""
    return name


def _managed_resources(config: Configuration, check: str) -> list[str]:
    return _config_of(config, check).get("managedResources") or []


def _run_times(work: LintedWork) -> Iterator[tuple[str, int]]:
    """Its declared run times: path, and seconds."""
    limit = whole_number(label(work.obj, well_known.MAX_EXEC_TIME) or "")
    if limit:
        yield f"metadata.labels[{well_known.MAX_EXEC_TIME}]", limit
    if work.obj["kind"] == "Job" and work.obj["spec"].get("activeDeadlineSeconds"):
        yield "spec.activeDeadlineSeconds", work.obj["spec"]["activeDeadlineSeconds"]
    for path, template in zip(work.paths, work.templates, strict=True):
        deadline = (template.get("spec") or {}).get("activeDeadlineSeconds")
        if deadline:
            yield f"{path}.spec.activeDeadlineSeconds", deadline
    runtime = annotation(work.obj, well_known.RUNTIME)
    if runtime and runtime[0].isdigit():
        yield f"metadata.annotations[{well_known.RUNTIME}]", parse_duration(runtime) // SECOND
