"""Objects of a Cluster file, and its validation against the catalog."""

import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final, NamedTuple

from batchyard.api import scheme, well_known
from batchyard.api.errors import FieldError
from batchyard.api.meta import Obj
from batchyard.api.views.node import Taint, Toleration
from batchyard.api.views.pods import PodView
from batchyard.cloud.catalog.machine_types import Catalog, catalog_of
from batchyard.cloud.catalog.nodes import node_template
from batchyard.cloud.catalog.prices import chips_in, has_its_accelerator, hosts_of_slice, zones_of
from batchyard.interfaces.client import Reader

# --- node requirements ---
#
# Node requirements of pods that no pool fits, from their selectors, tolerations and requests, as in GKE.
#
# A non-system label is set on new nodes only if the pods tolerate a taint with the same key. The nodes get that taint
# too, which separates workloads. Sources: GKE's autoscaler, pkg/podrequirements, pkg/autoprovisioning (injection.go,
# gpu_requests.go, tpu_requests.go) and pkg/cloudprovider/gke/labels/system_labels.go.


_SYSTEM: Final = re.compile(r"\b(cloud\.google\.com|kubernetes\.io|k8s\.io|gke\.io)/")
_HARD: Final = ("NoSchedule", "NoExecute")
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,18}")
_DAY: Final = 24 * 3600
#: Minimum and maximum of maxRunDuration in seconds, and both in words.
_GENERAL: Final = (30, 120 * _DAY, "30 seconds - 120 days")
_FLEXIBLE: Final = (600, 7 * _DAY, "10 minutes - 7 days")
_GROUP_NAME: Final = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_GROUP_NAME_MAX: Final = 40
_TOPOLOGY: Final = re.compile(r"[1-9]\d{0,3}(x[1-9]\d{0,3}){1,2}", re.ASCII)
#: Keeps other pods off auto-provisioned spot nodes.
SPOT_TAINT: Final = Taint(well_known.SPOT, "true", "NoSchedule")


class NodeRequirements(NamedTuple):
    """Node requirements; pods with equal ones may share nodes. Empty strings and zeros mean no requirement."""

    provisioning: str
    resource: str
    devices: int
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
    """Why no pool can be created for a pod."""

    why: str


def needs_of(pod: PodView) -> NodeRequirements | UnsatisfiableRequirements:
    """Return the node requirements of a pod."""
    wanted = _wanted_labels(pod)
    taints = tuple(_separating(pod.tolerations, wanted))
    labels = tuple(sorted((key, value) for key, value in wanted.items() if not is_system_label(key)))
    separated = {taint.key for taint in taints}
    for key, _ in labels:
        if key not in separated:
            return UnsatisfiableRequirements(f"no toleration for a taint with the key of label {key}")
    resource, devices = _devices(pod)
    flaw = _flaw(wanted)
    if flaw:
        return UnsatisfiableRequirements(flaw)
    is_tpu = resource == well_known.TPU
    count = wanted.get(well_known.ACCELERATOR_COUNT, "")
    return NodeRequirements(
        provisioning=_provisioning(wanted),
        resource=resource,
        devices=int(count) if is_tpu and count.isdecimal() else devices,
        accelerator=wanted.get(well_known.TPU_ACCELERATOR if is_tpu else well_known.ACCELERATOR, ""),
        topology=wanted.get(well_known.TPU_TOPOLOGY, "") if is_tpu else "",
        family=wanted.get(well_known.MACHINE_FAMILY, ""),
        machine_type=wanted.get(well_known.INSTANCE_TYPE, ""),
        placement_group=wanted.get(well_known.PLACEMENT_GROUP, ""),
        reservation=wanted.get(well_known.RESERVATION_NAME, ""),
        max_run_seconds=wanted.get(well_known.MAX_RUN_DURATION, ""),
        labels=labels,
        taints=taints,
        tolerates_spot=any(_tolerates_spot(toleration) for toleration in pod.tolerations),
    )


def run_duration_fault(seconds: str, provisioning: str) -> str:
    """Return GKE's error for an invalid maxRunDuration; '' if it is valid or empty."""
    if not seconds:
        return ""
    if provisioning == "queued":
        return "MaxRunDuration cannot be set on non-bulk QueuedProvisioning pools."
    if not _NUMBER.fullmatch(seconds):
        return "MaxRunDuration is not a valid int64."
    shortest, longest, words = _FLEXIBLE if provisioning == "flex-start" else _GENERAL
    if shortest <= int(seconds) <= longest:
        return ""
    return f"MaxRunDuration is not within the allowed range ({words}). Got {int(seconds)} seconds."


def _flaw(wanted: Mapping[str, str]) -> str:
    """Return why nodes with these labels are impossible; '' if they are possible."""
    group = wanted.get(well_known.PLACEMENT_GROUP)
    if group and len(group) > _GROUP_NAME_MAX:
        return f'placement group name "{group}" is invalid, should be at most {_GROUP_NAME_MAX} characters long'
    if group and not _GROUP_NAME.fullmatch(group):
        rule = "should consist of alphanumerics and '-', start with a letter and end with an alphanumeric"
        return f'placement group name "{group}" is invalid, {rule}'
    topology = wanted.get(well_known.TPU_TOPOLOGY)
    if topology is not None and not _TOPOLOGY.fullmatch(topology):
        return f'TPU topology "{topology}" not supported'
    return ""


def is_system_label(key: str) -> bool:
    """Whether Kubernetes or GKE sets the label, not users."""
    return _SYSTEM.search(key) is not None


def _wanted_labels(pod: PodView) -> dict[str, str]:
    """Return the labels a node must have, one value per key, from the selector and the first affinity term."""
    wanted = dict(pod.node_selector)
    for expression in pod.affinity[0].labels if pod.affinity else ():
        if expression.operator == "In" and len(expression.values) == 1:
            wanted[expression.key] = expression.values[0]
    return wanted


def _separating(tolerations: tuple[Toleration, ...], wanted: Mapping[str, str]) -> list[Taint]:
    """Return the taints that keep other pods from nodes with these labels."""
    found: dict[Taint, None] = {}
    for toleration in tolerations:
        value = wanted.get(toleration.key)
        if value is None or is_system_label(toleration.key):
            continue
        if toleration.operator == "Exists" or toleration.value == value:
            effects = _HARD[:1] if not toleration.effect else tuple(e for e in _HARD if e == toleration.effect)
            found.update({Taint(toleration.key, value, effect): None for effect in effects})
    return list(found)


def _devices(pod: PodView) -> tuple[str, int]:
    """Return the accelerator resource that a pod requests, and the amount."""
    for resource, amount in pod.requests:
        if resource in {well_known.GPU, well_known.TPU}:
            return resource, amount
    return "", 0


def _tolerates_spot(toleration: Toleration) -> bool:
    """Whether a toleration is specific to spot machines; a toleration of every taint is not."""
    return toleration.key == well_known.SPOT and toleration.tolerates(SPOT_TAINT)


def _provisioning(wanted: Mapping[str, str]) -> str:
    """Return the provisioning model that the labels request."""
    if wanted.get(well_known.SPOT) == "true" or wanted.get(well_known.PROVISIONING) == "spot":
        return "spot"
    flexible = wanted.get(well_known.FLEX_START) == "true" or wanted.get(well_known.PROVISIONING) == "flex-start"
    return "flex-start" if flexible else "standard"


#: Maximum number of suggested names.
_SHOWN_MAX: Final = 5


def initial_objects(cluster: Obj) -> list[Obj]:
    """Return the Cluster and its NodePools. The controllers create the machines."""
    return [cluster, *(_node_pool(row) for row in cluster["spec"].get("nodePools") or ())]


def catalog_faults(cluster: Obj) -> Sequence[FieldError]:
    """Return the errors of a Cluster: unknown machine types and accelerators, invalid placement and topologies."""
    spec, catalog = cluster["spec"], catalog_of(cluster)
    return [*_unknown_types(spec, catalog), *_unknown_names(spec, catalog), *_impossible_pools(cluster, catalog)]


def pool_faults(pool: Obj, cluster: Obj | None) -> Sequence[FieldError]:
    """Return the errors of a separate NodePool with respect to the Cluster."""
    if cluster is None:
        return [FieldError("", "there is no Cluster for this pool", "give one of cloud.batchyard.dev/v1alpha1")]
    spec, catalog, zones = pool["spec"], catalog_of(cluster), cluster["spec"]["zones"]
    found = list(_not_among(spec.get("zones") or (), zones, "spec.zones[{}]", "zone"))
    found += _not_a_machine([("spec.machineType", spec["machineType"])], catalog)
    return found or [fault._replace(path=f"spec.{fault.path}") for fault in _faults_of(pool, cluster, catalog)]


def _node_pool(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": scheme.kind_info(scheme.NODE_POOL).api_version,
        "kind": "NodePool",
        "metadata": {"name": row["name"], "finalizers": [well_known.NODE_POOL_FINALIZER]},
        "spec": {field: value for field, value in row.items() if field != "name"},
    }


def _unknown_types(spec: Mapping[str, Any], catalog: Catalog) -> Iterator[FieldError]:
    """Yield errors for unknown machine types."""
    named = [
        (f"spec.{rows}[{index}].machineType", row["machineType"])
        for rows in ("nodePools", "reservations", "capacity")
        for index, row in enumerate(spec.get(rows) or ())
    ]
    priced = spec.get("prices") or ()
    named += [(f"spec.prices.{name}", name) for name in priced if name not in catalog.attachable]
    yield from _not_a_machine(named, catalog)


def _not_a_machine(named: Sequence[tuple[str, str]], catalog: Catalog) -> Iterator[FieldError]:
    for path, name in named:
        if name not in catalog.machines:
            close = get_close_matches(name, list(catalog.machines), 1)
            hint = f"did you mean {close[0]!r}? Otherwise" if close else "if it exists,"
            yield FieldError(path, f"unknown machine type {name!r}", f"{hint} describe it in spec.catalog")


def _unknown_names(spec: Mapping[str, Any], catalog: Catalog) -> Iterator[FieldError]:
    """Yield errors for limits, quotas and times with unknown names."""
    machines = catalog.machines.values()
    types = [machine.accelerator.type for machine in machines if machine.accelerator is not None]
    accelerators = list(dict.fromkeys([*types, *catalog.attachable]))
    families = list(dict.fromkeys(machine.family for machine in machines))
    provisioning = (spec.get("autoscaling") or {}).get("autoProvisioning") or {}
    limits = [row["resource"] for row in provisioning.get("limits") or ()]
    quotas = [row["name"] for row in spec.get("quotas") or ()]
    path = "spec.autoscaling.autoProvisioning.limits[{}].resource"
    yield from _not_among(limits, ["cpu", "memory", *accelerators], path, "resource")
    yield from _not_among(quotas, ["cpus", *accelerators, *catalog.machines], "spec.quotas[{}].name", "quota")
    times = list((spec.get("times") or {}).get("byMachine") or ())
    for name in times:
        yield from _not_among([name], [*families, *catalog.machines], f"spec.times.byMachine[{name}]", "machine type")


def _not_among(names: Sequence[str], known: Sequence[str], path: str, what: str) -> Iterator[FieldError]:
    """Yield errors for unknown names, with their paths."""
    for index, name in enumerate(names):
        if name not in known:
            close = get_close_matches(name, known, 1)
            some = ", ".join(known[:_SHOWN_MAX]) + (", ..." if len(known) > _SHOWN_MAX else "")
            remedy = f"did you mean {close[0]!r}?" if close else f"use one of {some}"
            yield FieldError(path.format(index), f"unknown {what} {name!r}", remedy)


def _impossible_pools(cluster: Obj, catalog: Catalog) -> Iterator[FieldError]:
    """Yield errors of pools with known machine types."""
    for index, row in enumerate(cluster["spec"].get("nodePools") or ()):
        if row["machineType"] in catalog.machines:
            found = _faults_of(_node_pool(row), cluster, catalog)
            yield from (fault._replace(path=f"spec.nodePools[{index}].{fault.path}") for fault in found)


def _faults_of(pool: Obj, cluster: Obj, catalog: Catalog) -> Iterator[FieldError]:
    spec = pool["spec"]
    machine = catalog.machine(spec["machineType"])
    if not has_its_accelerator(pool, catalog):
        can = [name for name in catalog.attachable if catalog.can_attach(machine, name)]
        own = machine.accelerator
        remedy = f"it has {own.count} {own.type}" if own else f"it takes {', '.join(can)}" if can else "it takes none"
        problem = f"{machine.name} cannot have {spec['accelerator']['count']} {spec['accelerator']['type']}"
        yield FieldError("accelerator", problem, f"{remedy}; leave this out or choose another machine type")
    if spec.get("placementGroup") and not catalog.family(machine).placement_max:
        families = [name for name, family in catalog.families.items() if family.placement_max]
        remedy = f"choose a machine type of {', '.join(families)}, or leave this out"
        yield FieldError("placementGroup", f"machines of family {machine.family} cannot be placed compactly", remedy)
    if spec.get("tpuTopology"):
        yield from _topology_faults(pool, catalog)
    yield from _label_faults(pool, cluster)


def _label_faults(pool: Obj, cluster: Obj) -> Iterator[FieldError]:
    """Yield errors for system labels with a value that differs from the nodes'."""
    own = {key: value for key, value in (pool["spec"].get("labels") or {}).items() if is_system_label(key)}
    bare = {**pool, "spec": {**pool["spec"], "labels": {}}}
    zones = zones_of(pool, cluster) if own else ()
    given = [node_template(bare, zone, cluster)["metadata"]["labels"] for zone in zones]
    for key, value in own.items():
        has = next((labels[key] for labels in given if labels.get(key, value) != value), None)
        if key == well_known.HOSTNAME:
            has = "their own names"
        if has is not None:
            yield FieldError(f"labels[{key}]", f"nodes of this pool have {has} there, not {value}", "leave it out")


def _topology_faults(pool: Obj, catalog: Catalog) -> Iterator[FieldError]:
    machine, topology = catalog.machine(pool["spec"]["machineType"]), pool["spec"]["tpuTopology"]
    if machine.accelerator is None or machine.accelerator.resource != well_known.TPU:
        yield FieldError(
            "tpuTopology", f"{machine.name} has no TPUs", "leave this out or choose a machine type with TPUs"
        )
        return
    chips, each = chips_in(topology), machine.accelerator.count
    if chips % each or (chips != each and hosts_of_slice(pool, catalog) < 2):
        remedy = f"choose a topology whose chips are a multiple of {each}"
        yield FieldError("tpuTopology", f"{topology} has {chips} chips, and each {machine.name} has {each}", remedy)


# --- clusters ---
#
# The Cluster object, as the cloud's controllers read it.


def only_cluster(reader: Reader) -> Obj | None:
    """Return the Cluster; None if there is none."""
    found = reader.list(scheme.CLUSTER)
    return found[0] if found else None
