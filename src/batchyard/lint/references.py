"""Rules on references to missing objects.

If the manifests have no object of a kind, its objects may exist elsewhere: then the finding is a note, not an error.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from batchyard.api import scheme, well_known
from batchyard.api.manifests import Manifest
from batchyard.api.meta import annotation, group_kind, key_of
from batchyard.api.schema.violations import nearest
from batchyard.api.validation.core import SYSTEM_CLASSES
from batchyard.lint.configuration import PROVISIONING, Configuration
from batchyard.lint.findings import RuleResult, Severity

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
