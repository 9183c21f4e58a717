"""Cluster files: the NodePools that they define, validation against the catalog, and pods' requirements of nodes."""

import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final, NamedTuple

from batchyard.api import scheme, well_known
from batchyard.api.errors import FieldError
from batchyard.api.meta import Obj
from batchyard.api.views.node import Taint, Toleration
from batchyard.api.views.pods import PodView
from batchyard.base.counts import count_with_noun
from batchyard.cloud.catalog.machine_types import Catalog, catalog_of
from batchyard.cloud.catalog.nodes import node_template
from batchyard.cloud.catalog.pool_properties import chip_count_of, has_specified_accelerator, slice_host_count, zones_of
from batchyard.interfaces.client import Reader

# The node requirements of pods that fit no pool, from their selectors, tolerations and requests, as in GKE.
#
# A non-system label is set on new nodes only if the pods tolerate a taint with the same key. The nodes get that taint
# too, which separates workloads. Sources: GKE's autoscaler, pkg/podrequirements, pkg/autoprovisioning (injection.go,
# gpu_requests.go, tpu_requests.go) and pkg/cloudprovider/gke/labels/system_labels.go.


_SYSTEM_LABEL_PATTERN: Final = re.compile(r"\b(cloud\.google\.com|kubernetes\.io|k8s\.io|gke\.io)/")
_HARD_TAINT_EFFECTS: Final = ("NoSchedule", "NoExecute")
_INTEGER_PATTERN: Final = re.compile(r"[+-]?[0-9]{1,18}")
_DAY_SECONDS: Final = 24 * 3600
#: The minimum and maximum of maxRunDuration in seconds, and their text in GKE's error.
_RUN_DURATION_LIMITS: Final = (30, 120 * _DAY_SECONDS, "30 seconds - 120 days")
_FLEX_START_LIMITS: Final = (600, 7 * _DAY_SECONDS, "10 minutes - 7 days")
_GROUP_NAME_PATTERN: Final = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_GROUP_NAME_LENGTH_MAX: Final = 40
_TOPOLOGY_PATTERN: Final = re.compile(r"[1-9]\d{0,3}(x[1-9]\d{0,3}){1,2}", re.ASCII)
#: The taint that keeps other pods off auto-provisioned spot nodes.
SPOT_TAINT: Final = Taint(well_known.SPOT, "true", "NoSchedule")


class NodeRequirements(NamedTuple):
    """A pod's requirements of its nodes, for auto-provisioning; pods with equal requirements may share nodes.

    Empty fields mean no requirement.
    """

    provisioning: str
    resource: str
    accelerator_count: int
    accelerator: str
    topology: str
    family: str
    machine_type: str
    placement_group: str
    reservation: str
    max_run_seconds: str
    labels: tuple[tuple[str, str], ...]
    taints: tuple[Taint, ...]
    #: Whether spot machines are acceptable in place of others.
    tolerates_spot: bool


class UnsatisfiableRequirements(NamedTuple):
    """The reason why no node pool can be created for a pod."""

    reason: str


def node_requirements_of(pod: PodView) -> NodeRequirements | UnsatisfiableRequirements:
    """Return a pod's requirements of its nodes, or the reason why no node pool can be created for the pod."""
    required_labels = _required_labels(pod)
    taints = tuple(_separation_taints(pod.tolerations, required_labels))
    labels = tuple(sorted((key, value) for key, value in required_labels.items() if not is_system_label(key)))
    tainted_keys = {taint.key for taint in taints}
    for key, _ in labels:
        if key not in tainted_keys:
            return UnsatisfiableRequirements(f"no toleration for a taint with the key of label {key}")
    resource, accelerator_count = _requested_accelerators(pod)
    label_error = _label_error(required_labels)
    if label_error:
        return UnsatisfiableRequirements(label_error)
    is_tpu = resource == well_known.TPU
    count_label = required_labels.get(well_known.ACCELERATOR_COUNT, "")
    return NodeRequirements(
        provisioning=_provisioning_model(required_labels),
        resource=resource,
        accelerator_count=int(count_label) if is_tpu and count_label.isdecimal() else accelerator_count,
        accelerator=required_labels.get(well_known.TPU_ACCELERATOR if is_tpu else well_known.ACCELERATOR, ""),
        topology=required_labels.get(well_known.TPU_TOPOLOGY, "") if is_tpu else "",
        family=required_labels.get(well_known.MACHINE_FAMILY, ""),
        machine_type=required_labels.get(well_known.INSTANCE_TYPE, ""),
        placement_group=required_labels.get(well_known.PLACEMENT_GROUP, ""),
        reservation=required_labels.get(well_known.RESERVATION_NAME, ""),
        max_run_seconds=required_labels.get(well_known.MAX_RUN_DURATION, ""),
        labels=labels,
        taints=taints,
        tolerates_spot=any(_tolerates_spot(toleration) for toleration in pod.tolerations),
    )


def run_duration_fault(seconds_text: str, provisioning: str) -> str:
    """Return GKE's error for an invalid maxRunDuration; '' if it is valid or empty."""
    if not seconds_text:
        return ""
    if provisioning == "queued":
        return "MaxRunDuration cannot be set on non-bulk QueuedProvisioning pools."
    if not _INTEGER_PATTERN.fullmatch(seconds_text):
        return "MaxRunDuration is not a valid int64."
    seconds_min, seconds_max, range_text = _FLEX_START_LIMITS if provisioning == "flex-start" else _RUN_DURATION_LIMITS
    if seconds_min <= int(seconds_text) <= seconds_max:
        return ""
    return f"MaxRunDuration is not within the allowed range ({range_text}). Got {int(seconds_text)} seconds."


def _label_error(required_labels: Mapping[str, str]) -> str:
    group = required_labels.get(well_known.PLACEMENT_GROUP)
    if group and len(group) > _GROUP_NAME_LENGTH_MAX:
        return f'placement group name "{group}" is invalid, should be at most {_GROUP_NAME_LENGTH_MAX} characters long'
    if group and not _GROUP_NAME_PATTERN.fullmatch(group):
        group_name_rule = "should consist of alphanumerics and '-', start with a letter and end with an alphanumeric"
        return f'placement group name "{group}" is invalid, {group_name_rule}'
    topology = required_labels.get(well_known.TPU_TOPOLOGY)
    if topology is not None and not _TOPOLOGY_PATTERN.fullmatch(topology):
        return f'TPU topology "{topology}" not supported'
    return ""


def is_system_label(key: str) -> bool:
    """Return whether the key of a node label has a domain of Kubernetes or GKE."""
    return _SYSTEM_LABEL_PATTERN.search(key) is not None


def _required_labels(pod: PodView) -> dict[str, str]:
    """Return the labels that a pod's node must have, from the node selector and the first node affinity term.

    Of the affinity term, only expressions with the operator In and a single value count.
    """
    required_labels = dict(pod.node_selector)
    for expression in pod.affinity[0].labels if pod.affinity else ():
        if expression.operator == "In" and len(expression.values) == 1:
            required_labels[expression.key] = expression.values[0]
    return required_labels


def _separation_taints(tolerations: tuple[Toleration, ...], required_labels: Mapping[str, str]) -> list[Taint]:
    separation_taints: dict[Taint, None] = {}
    for toleration in tolerations:
        value = required_labels.get(toleration.key)
        if value is None or is_system_label(toleration.key):
            continue
        if toleration.operator == "Exists" or toleration.value == value:
            matching_effects = tuple(effect for effect in _HARD_TAINT_EFFECTS if effect == toleration.effect)
            taint_effects = matching_effects if toleration.effect else _HARD_TAINT_EFFECTS[:1]
            separation_taints.update({Taint(toleration.key, value, effect): None for effect in taint_effects})
    return list(separation_taints)


def _requested_accelerators(pod: PodView) -> tuple[str, int]:
    for resource, amount in pod.requests:
        if resource in {well_known.GPU, well_known.TPU}:
            return resource, amount
    return "", 0


def _tolerates_spot(toleration: Toleration) -> bool:
    """Return whether a toleration names the spot taint; one that tolerates all taints does not count."""
    return toleration.key == well_known.SPOT and toleration.tolerates(SPOT_TAINT)


def _provisioning_model(labels: Mapping[str, str]) -> str:
    if labels.get(well_known.SPOT) == "true" or labels.get(well_known.PROVISIONING) == "spot":
        return "spot"
    is_flex_start = labels.get(well_known.FLEX_START) == "true" or labels.get(well_known.PROVISIONING) == "flex-start"
    return "flex-start" if is_flex_start else "standard"


#: Maximum number of suggested names.
_EXAMPLES_MAX: Final = 5


def initial_objects(cluster: Obj) -> list[Obj]:
    """Return the objects that a Cluster file defines: the Cluster and its NodePools."""
    return [cluster, *(node_pool_of(row) for row in cluster["spec"].get("nodePools") or ())]


def catalog_errors(cluster: Obj) -> Sequence[FieldError]:
    """Return the validation errors of a Cluster against the catalog: unknown names, and impossible node pools."""
    spec, catalog = cluster["spec"], catalog_of(cluster)
    return [
        *_unknown_type_errors(spec, catalog),
        *_unknown_name_errors(spec, catalog),
        *_node_pool_errors(cluster, catalog),
    ]


def pool_errors(pool: Obj, cluster: Obj | None) -> Sequence[FieldError]:
    """Return the validation errors of a separate NodePool object against the Cluster; a missing Cluster is an error."""
    if cluster is None:
        return [FieldError("", "this NodePool has no Cluster", "add a Cluster object (cloud.batchyard.dev/v1alpha1)")]
    spec, catalog, zones = pool["spec"], catalog_of(cluster), cluster["spec"]["zones"]
    errors = list(_unknown_value_errors(spec.get("zones") or (), zones, "spec.zones[{}]", "zone"))
    errors += _unknown_machine_errors([("spec.machineType", spec["machineType"])], catalog)
    return errors or [fault._replace(path=f"spec.{fault.path}") for fault in _pool_errors(pool, cluster, catalog)]


def node_pool_of(pool_entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the NodePool that an entry of a Cluster's `spec.nodePools` defines."""
    return {
        "apiVersion": scheme.kind_info(scheme.NODE_POOL).api_version,
        "kind": "NodePool",
        "metadata": {"name": pool_entry["name"], "finalizers": [well_known.NODE_POOL_FINALIZER]},
        "spec": {field: value for field, value in pool_entry.items() if field != "name"},
    }


def _unknown_type_errors(spec: Mapping[str, Any], catalog: Catalog) -> Iterator[FieldError]:
    machine_type_fields = [
        (f"spec.{list_field}[{index}].machineType", row["machineType"])
        for list_field in ("nodePools", "reservations", "capacity")
        for index, row in enumerate(spec.get(list_field) or ())
    ]
    priced_names = spec.get("prices") or ()
    machine_type_fields += [(f"spec.prices.{name}", name) for name in priced_names if name not in catalog.attachable]
    yield from _unknown_machine_errors(machine_type_fields, catalog)


def _unknown_machine_errors(machine_type_fields: Sequence[tuple[str, str]], catalog: Catalog) -> Iterator[FieldError]:
    for path, name in machine_type_fields:
        if name not in catalog.machines:
            close_matches = get_close_matches(name, list(catalog.machines), 1)
            hint = f"did you mean {close_matches[0]!r}? Otherwise" if close_matches else "check the name, or"
            yield FieldError(path, f"unknown machine type {name!r}", f"{hint} define this machine type in spec.catalog")


def _unknown_name_errors(spec: Mapping[str, Any], catalog: Catalog) -> Iterator[FieldError]:
    machines = catalog.machines.values()
    accelerator_types = [machine.accelerator.type for machine in machines if machine.accelerator is not None]
    accelerators = list(dict.fromkeys([*accelerator_types, *catalog.attachable]))
    families = list(dict.fromkeys(machine.family for machine in machines))
    provisioning = (spec.get("autoscaling") or {}).get("autoProvisioning") or {}
    limited_resources = [row["resource"] for row in provisioning.get("limits") or ()]
    quota_names = [row["name"] for row in spec.get("quotas") or ()]
    path = "spec.autoscaling.autoProvisioning.limits[{}].resource"
    yield from _unknown_value_errors(limited_resources, ["cpu", "memory", *accelerators], path, "resource")
    yield from _unknown_value_errors(
        quota_names, ["cpus", *accelerators, *catalog.machines], "spec.quotas[{}].name", "quota"
    )
    duration_names = list((spec.get("times") or {}).get("byMachine") or ())
    for name in duration_names:
        yield from _unknown_value_errors(
            [name], [*families, *catalog.machines], f"spec.times.byMachine[{name}]", "machine type"
        )


def _unknown_value_errors(
    names: Sequence[str], known_names: Sequence[str], path_format: str, noun: str
) -> Iterator[FieldError]:
    for index, name in enumerate(names):
        if name not in known_names:
            close_matches = get_close_matches(name, known_names, 1)
            examples = ", ".join(known_names[:_EXAMPLES_MAX]) + (", ..." if len(known_names) > _EXAMPLES_MAX else "")
            remedy = f"did you mean {close_matches[0]!r}?" if close_matches else f"use one of {examples}"
            yield FieldError(path_format.format(index), f"unknown {noun} {name!r}", remedy)


def _node_pool_errors(cluster: Obj, catalog: Catalog) -> Iterator[FieldError]:
    for index, row in enumerate(cluster["spec"].get("nodePools") or ()):
        if row["machineType"] in catalog.machines:
            errors = _pool_errors(node_pool_of(row), cluster, catalog)
            yield from (fault._replace(path=f"spec.nodePools[{index}].{fault.path}") for fault in errors)


def _pool_errors(pool: Obj, cluster: Obj, catalog: Catalog) -> Iterator[FieldError]:
    spec = pool["spec"]
    machine = catalog.machine(spec["machineType"])
    if not has_specified_accelerator(pool, catalog):
        attachable_types = [name for name in catalog.attachable if catalog.can_attach(machine, name)]
        own_accelerator = machine.accelerator
        remedy = (
            f"it has {own_accelerator.count} {own_accelerator.type}"
            if own_accelerator
            else f"it supports {', '.join(attachable_types) or 'no accelerator'}"
        )
        problem = f"{machine.name} cannot have {spec['accelerator']['count']} {spec['accelerator']['type']}"
        yield FieldError("accelerator", problem, f"{remedy}; remove this field or choose another machine type")
    if spec.get("placementGroup") and not catalog.family(machine).placement_max:
        compact_families = [name for name, family in catalog.families.items() if family.placement_max]
        remedy = f"choose a machine type of {', '.join(compact_families)}, or remove this field"
        yield FieldError("placementGroup", f"machine family {machine.family} supports no compact placement", remedy)
    if spec.get("tpuTopology"):
        yield from _topology_errors(pool, catalog)
    yield from _label_errors(pool, cluster)


def _label_errors(pool: Obj, cluster: Obj) -> Iterator[FieldError]:
    system_labels = {key: value for key, value in (pool["spec"].get("labels") or {}).items() if is_system_label(key)}
    pool_without_labels = {**pool, "spec": {**pool["spec"], "labels": {}}}
    zones = zones_of(pool, cluster) if system_labels else ()
    node_labels = [node_template(pool_without_labels, zone, cluster)["metadata"]["labels"] for zone in zones]
    for key, value in system_labels.items():
        actual = next((labels[key] for labels in node_labels if labels.get(key, value) != value), None)
        if key == well_known.HOSTNAME:
            actual = "the node name"
        if actual is not None:
            yield FieldError(f"labels[{key}]", f"nodes of this pool have {actual}, not {value}", "remove this label")


def _topology_errors(pool: Obj, catalog: Catalog) -> Iterator[FieldError]:
    machine, topology = catalog.machine(pool["spec"]["machineType"]), pool["spec"]["tpuTopology"]
    if machine.accelerator is None or machine.accelerator.resource != well_known.TPU:
        yield FieldError(
            "tpuTopology", f"{machine.name} has no TPUs", "remove the field, or choose a machine type with TPUs"
        )
        return
    chip_count, chips_per_machine = chip_count_of(topology), machine.accelerator.count
    if chip_count % chips_per_machine or (chip_count != chips_per_machine and slice_host_count(pool, catalog) < 2):
        remedy = f"choose a topology whose chips are a multiple of {chips_per_machine}"
        chips_text = count_with_noun(chip_count, "chip")
        problem = f"topology {topology} has {chips_text}, but each {machine.name} has {chips_per_machine}"
        yield FieldError("tpuTopology", problem, remedy)


def find_cluster(reader: Reader) -> Obj | None:
    """Return the Cluster object, or None if there is none."""
    clusters = reader.list(scheme.CLUSTER)
    return clusters[0] if clusters else None
