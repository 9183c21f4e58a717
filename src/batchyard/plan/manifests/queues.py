"""Priorities, flavors, checks, cohorts and queues."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from batchyard.api import scheme
from batchyard.api.meta import Obj
from batchyard.plan.flavors import node_labels, node_taints
from batchyard.plan.manifests.made import Made, obj_of
from batchyard.plan.model import AdmissionCheck, Cohort, Flavor, FlavorQuotas, Platform, PriorityClass, Queue


def priorities(platform: Platform) -> Sequence[Made]:
    """PriorityClasses of pods, and of Workloads alone."""
    of_pods = [
        Made(_priority_class(each, platform), f"spec.priorities[{index}]")
        for index, each in enumerate(platform.priorities)
    ]
    of_workloads = [
        Made(_workload_priority_class(each, platform), f"spec.workloadPriorities[{index}]")
        for index, each in enumerate(platform.workload_priorities)
    ]
    return [*of_pods, *of_workloads]


def flavors(platform: Platform) -> Sequence[Made]:
    """Topologies, and the ResourceFlavors that may name them."""
    topologies = [
        Made(
            obj_of(
                scheme.TOPOLOGY,
                platform.name,
                each.name,
                spec={"levels": [{"nodeLabel": level} for level in each.levels]},
            ),
            f"spec.topologies[{index}]",
        )
        for index, each in enumerate(platform.topologies)
    ]
    made = [Made(_flavor(each, platform), f"spec.flavors[{index}]") for index, each in enumerate(platform.flavors)]
    return [*topologies, *made]


def checks(platform: Platform) -> Sequence[Made]:
    """AdmissionChecks, each after the configuration it names."""
    return [
        Made(obj, f"spec.admissionChecks[{index}]")
        for index, check in enumerate(platform.admission_checks)
        for obj in _check(check, platform)
    ]


def cohorts(platform: Platform) -> Sequence[Made]:
    """The Cohorts that are listed; those that are only named need no object."""
    return [Made(_cohort(each, platform), f"spec.cohorts[{index}]") for index, each in enumerate(platform.cohorts)]


def queues(platform: Platform) -> Sequence[Made]:
    """Every ClusterQueue, with its LocalQueues after it."""
    return [Made(obj, queue.path) for queue in platform.queues for obj in _queue(queue, platform)]


def _priority_class(priority: PriorityClass, platform: Platform) -> Obj:
    return obj_of(
        scheme.PRIORITY_CLASS,
        platform.name,
        priority.name,
        value=priority.value,
        globalDefault=priority.is_default,
        preemptionPolicy=priority.preemption_policy,
        **_described(priority),
    )


def _workload_priority_class(priority: PriorityClass, platform: Platform) -> Obj:
    kind = scheme.WORKLOAD_PRIORITY_CLASS
    return obj_of(kind, platform.name, priority.name, value=priority.value, **_described(priority))


def _described(priority: PriorityClass) -> dict[str, Any]:
    return {"description": priority.description} if priority.description else {}


def _flavor(flavor: Flavor, platform: Platform) -> Obj:
    spec: dict[str, Any] = {
        "nodeLabels": dict(node_labels(flavor, platform)),
        "nodeTaints": list(node_taints(flavor, platform)),
        "tolerations": list(flavor.tolerations),
        "topologyName": flavor.topology,
    }
    kept = {field: value for field, value in spec.items() if value}
    return obj_of(scheme.RESOURCE_FLAVOR, platform.name, flavor.name, spec=kept)


def _check(check: AdmissionCheck, platform: Platform) -> Iterator[Obj]:
    parameters = check.parameters
    if check.provisioning is not None:
        kind = scheme.kind_info(scheme.PROVISIONING_REQUEST_CONFIG)
        yield obj_of(kind.constant, platform.name, check.config, spec=dict(check.provisioning))
        parameters = {"apiGroup": kind.group, "kind": kind.kind, "name": check.config}
    named = {"parameters": dict(parameters)} if parameters else {}
    spec = {"controllerName": check.controller, **named}
    yield obj_of(scheme.ADMISSION_CHECK, platform.name, check.name, spec=spec)


def _cohort(cohort: Cohort, platform: Platform) -> Obj:
    spec: dict[str, Any] = {}
    if cohort.parent:
        spec["parentName"] = cohort.parent
    if cohort.fair_sharing is not None:
        spec["fairSharing"] = cohort.fair_sharing
    if cohort.flavors:
        spec["resourceGroups"] = _groups(cohort.flavors)
    return obj_of(scheme.COHORT, platform.name, cohort.name, spec=spec)


def _queue(queue: Queue, platform: Platform) -> Iterator[Obj]:
    spec: dict[str, Any] = {"cohortName": queue.cohort} if queue.cohort else {}
    spec |= {**queue.spec, "namespaceSelector": queue.namespace_selector}
    if queue.admission_checks:
        spec["admissionChecksStrategy"] = {"admissionChecks": list(queue.admission_checks)}
    spec["resourceGroups"] = _groups(queue.flavors)
    yield obj_of(scheme.CLUSTER_QUEUE, platform.name, queue.name, spec=spec)
    for local in queue.local_queues:
        named = {"clusterQueue": queue.name}
        yield obj_of(scheme.LOCAL_QUEUE, platform.name, local.name, local.namespace, spec=named)


def _groups(flavors: Sequence[FlavorQuotas]) -> list[Mapping[str, Any]]:
    """The resourceGroups of flavors: those with the same resources are of one group, in the order of the first."""
    groups: dict[frozenset[str], list[FlavorQuotas]] = {}
    for flavor in flavors:
        groups.setdefault(frozenset(flavor.resources), []).append(flavor)
    return [_group(members) for members in groups.values()]


def _group(members: Sequence[FlavorQuotas]) -> Mapping[str, Any]:
    """A group covers its resources in the order in which the first flavor has them, as all its flavors must."""
    covered = list(members[0].resources)
    rows = [
        {"name": each.name, "resources": [{"name": name, **each.resources[name]} for name in covered]}
        for each in members
    ]
    return {"coveredResources": covered, "flavors": rows}
