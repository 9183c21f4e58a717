"""Node auto-provisioning as in GKE: creates node pools for pods that fit no existing pool.

Of the machine types on which the most pods fit, the cheapest is chosen. Each placement group and each TPU slice gets a
separate pool. Sources: GKE's autoscaler, pkg/autoprovisioning (injection.go, machineselection) and
pkg/cloudprovider/gke/gke_cloud_provider_impl.go (NewNodeGroup, generateNewNodeGroupName, cropMachineType). In GKE, the
names end with random digits. Here the digits are a hash of the spec.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from batchyard.api import scheme, well_known
from batchyard.api.meta import Obj
from batchyard.api.views.pods import PodView
from batchyard.autoscaler.expander import ScaleUpOption
from batchyard.autoscaler.node_groups import NodeGroup, groups_of
from batchyard.autoscaler.scale_up import ScaleUp, format_reasons, group_pods_by_kind
from batchyard.base.primitives import fnv1a_64
from batchyard.cloud import cluster_objects
from batchyard.cloud.catalog.machine_types import MachineType, catalog_of
from batchyard.cloud.catalog.pool_properties import chip_count_of

#: Maximum size of an auto-provisioned pool in a zone.
POOL_SIZE_MAX: Final = 1000
#: The machine family for pods that do not request one.
DEFAULT_MACHINE_FAMILY: Final = "e2"
#: Machine types that are too small for GKE's system pods.
_TOO_SMALL_MACHINE_TYPES: Final = ("e2-small",)
_MACHINE_NAME_LENGTH_MAX: Final = 14
_ATTACHED_GPU_COUNTS: Final = (1, 2, 4, 8, 16)

PoolSpec = dict[str, Any]
#: The node groups of each of several pools.
_PoolGroups = Iterator[Sequence[NodeGroup]]
_encode_json = msgspec.json.Encoder(order="sorted").encode


class NodeAutoProvisioner:
    """A planner of new node pools for pods; `provisioning` is the provisioning model of all pools.

    If `provisioning` is '', the pods of each pool determine its model. A queued pool gets all new nodes in one zone.
    """

    def __init__(
        self,
        cluster: Obj,
        limited_resources: Collection[str],
        existing_pool_names: Collection[str],
        provisioning: str = "",
    ) -> None:
        self._cluster = cluster
        self._catalog = catalog_of(cluster)
        self._limited_resources = limited_resources
        self._existing_pool_names = existing_pool_names
        self._provisioning = provisioning

    def scale_up_options(self, pods: Sequence[PodView], scale_up: ScaleUp) -> list[ScaleUpOption]:
        """Return the best scale-up with a new pool for each group of pods that have equal node requirements.

        The scale-up of a queued pool uses one zone, preferably one with known capacity for all its nodes. A group of
        pods that no new pool can help gets no scale-up.
        """
        pods_by_requirements: dict[cluster_objects.NodeRequirements, list[PodView]] = {}
        for pod in pods:
            requirements = self.requirements(pod)
            if isinstance(requirements, cluster_objects.NodeRequirements):
                pods_by_requirements.setdefault(requirements, []).append(pod)
        best_options = []
        for requirements, matching_pods in pods_by_requirements.items():
            matching_uids = {pod.uid: None for pod in matching_pods}
            other_pods = [pod for pod in pods if pod.uid not in matching_uids]
            scale_up_options = [
                option
                for groups in self._growable_pool_groups(requirements, scale_up)
                for option in _scale_up_options(groups, matching_pods, other_pods, scale_up)
            ]
            if scale_up_options:
                best_options.append(min(scale_up_options, key=lambda option: _option_sort_key(option, scale_up)))
        return best_options

    def explain_no_new_pool(self, pod: PodView, scale_up: ScaleUp) -> str:
        """Return why no new node pool helps a pod.

        The text names an unsatisfiable requirement, or the reasons, each with the number of node groups that it
        concerns. If no new node pool is possible, the text says only that.
        """
        requirements = self.requirements(pod)
        if isinstance(requirements, cluster_objects.UnsatisfiableRequirements):
            return requirements.reason
        refusal_reasons = [
            reason
            for groups in self._possible_pool_groups(requirements, scale_up)
            for group in groups
            for reason in scale_up.reasons_against(pod, group)
        ]
        return format_reasons(refusal_reasons) or "no node pool can be created for it"

    def requirements(
        self, pod: PodView
    ) -> cluster_objects.NodeRequirements | cluster_objects.UnsatisfiableRequirements:
        """Return what a pod requires of its nodes, or why no new node pool can satisfy these requirements."""
        requirements = cluster_objects.node_requirements_of(pod)
        if isinstance(requirements, cluster_objects.UnsatisfiableRequirements):
            return requirements
        if self._provisioning:
            requirements = requirements._replace(provisioning=self._provisioning)
        if requirements.resource and not self._accelerator_types(requirements):
            accelerator_kind = requirements.resource.rpartition("/")[2].upper()
            return cluster_objects.UnsatisfiableRequirements(
                f'{accelerator_kind} type "{requirements.accelerator}" doesn\'t have a limit defined'
            )
        if requirements.reservation and not self._find_reservations(requirements):
            return cluster_objects.UnsatisfiableRequirements(f'reservation "{requirements.reservation}" not found')
        fault = cluster_objects.run_duration_fault(requirements.max_run_seconds, requirements.provisioning)
        return cluster_objects.UnsatisfiableRequirements(fault) if fault else requirements

    def _accelerator_types(self, requirements: cluster_objects.NodeRequirements) -> list[str]:
        if requirements.accelerator:
            return [requirements.accelerator] if requirements.accelerator in self._limited_resources else []
        return [accelerator for accelerator in self._limited_resources if accelerator not in {"cpu", "memory"}]

    # --- candidates ---

    def _growable_pool_groups(self, requirements: cluster_objects.NodeRequirements, scale_up: ScaleUp) -> _PoolGroups:
        """Yield the node groups that one scale-up may use together: those of one possible pool that can grow.

        With queued provisioning, a scale-up uses only one node group.
        """
        for groups in self._possible_pool_groups(requirements, scale_up):
            open_groups = [group for group in groups if self._can_grow(group, scale_up)]
            if requirements.provisioning == "queued":
                yield from ([group] for group in open_groups)
            elif open_groups:
                yield open_groups

    def _possible_pool_groups(self, requirements: cluster_objects.NodeRequirements, scale_up: ScaleUp) -> _PoolGroups:
        yield from self._pool_groups_of_model(requirements, scale_up)
        if requirements.tolerates_spot and requirements.provisioning == "standard" and not requirements.reservation:
            yield from self._pool_groups_of_model(requirements._replace(provisioning="spot"), scale_up)

    def _pool_groups_of_model(self, requirements: cluster_objects.NodeRequirements, scale_up: ScaleUp) -> _PoolGroups:
        for machine, devices in self._suitable_machines(requirements):
            spec = self._pool_spec(requirements, machine, devices)
            if spec is None:
                continue
            is_single_zone = bool(requirements.placement_group or requirements.reservation or spec.get("tpuTopology"))
            for zones in [[zone] for zone in self._possible_zones(requirements)] if is_single_zone else [None]:
                zonal_pool_spec = spec if zones is None else {**spec, "zones": zones}
                name = self._pool_name(requirements, machine, zonal_pool_spec, scale_up)
                if name:
                    yield groups_of(node_pool(name, zonal_pool_spec), self._cluster)

    def _can_grow(self, group: NodeGroup, scale_up: ScaleUp) -> bool:
        return not scale_up.fleet.obstacle(group, scale_up.limits, scale_up.loop_context.now)

    def _suitable_machines(self, requirements: cluster_objects.NodeRequirements) -> list[tuple[MachineType, int]]:
        """Return each suitable machine type with the number of GPUs to attach; built-in accelerators are not counted.

        Of the types with enough GPUs, only those with the fewest GPUs are returned.
        """
        reserved_machine_types = [row["machineType"] for row in self._find_reservations(requirements)]
        reserved_machines = [m for m in self._catalog.machines.values() if m.name in reserved_machine_types]
        machines = [m for m in reserved_machines or self._catalog.machines.values() if _is_allowed(m, requirements)]
        if not requirements.resource:
            return [(machine, 0) for machine in machines if machine.accelerator is None]
        if requirements.resource == well_known.TPU:
            return [(m, 0) for m in machines if _has_devices(m, requirements, self._accelerator_types(requirements))]
        candidates = [
            (m, 0, m.accelerator.count)
            for m in machines
            if m.accelerator and _has_devices(m, requirements, self._accelerator_types(requirements))
        ]
        for accelerator in self._accelerator_types(requirements):
            counts = [count for count in _ATTACHED_GPU_COUNTS if count >= requirements.accelerator_count][:1]
            candidates += [(m, c, c) for m in machines for c in counts if self._catalog.can_attach(m, accelerator)]
        device_count_min = min([count for _, _, count in candidates], default=0)
        return [(machine, attached_count) for machine, attached_count, count in candidates if count == device_count_min]

    def _possible_zones(self, requirements: cluster_objects.NodeRequirements) -> Sequence[str]:
        zones: Sequence[str] = self._cluster["spec"]["zones"]
        return [row["zone"] for row in self._find_reservations(requirements)] or zones

    def _find_reservations(self, requirements: cluster_objects.NodeRequirements) -> Sequence[Mapping[str, Any]]:
        reservations: Sequence[Mapping[str, Any]] = self._cluster["spec"].get("reservations") or ()
        return [row for row in reservations if row["name"] == requirements.reservation]

    # --- the pool ---

    def _pool_spec(
        self, requirements: cluster_objects.NodeRequirements, machine: MachineType, device_count: int
    ) -> PoolSpec | None:
        pool_size_max = POOL_SIZE_MAX
        spec: PoolSpec = {"machineType": machine.name, "provisioning": requirements.provisioning, "nodeCount": 0}
        if device_count:
            accelerator = next(a for a in self._accelerator_types(requirements) if self._catalog.can_attach(machine, a))
            spec["accelerator"] = {"type": accelerator, "count": device_count}
        if requirements.topology and machine.accelerator is not None:
            chip_count, chips_per_machine = chip_count_of(requirements.topology), machine.accelerator.count
            if chip_count % chips_per_machine:
                return None
            if chip_count > chips_per_machine:
                spec["tpuTopology"], pool_size_max = requirements.topology, chip_count // chips_per_machine
        if requirements.placement_group:
            pool_size_max = min(pool_size_max, self._catalog.family(machine).placement_max)
            spec["placementGroup"] = requirements.placement_group
        if requirements.reservation:
            spec["reservation"] = requirements.reservation
        if requirements.max_run_seconds:
            spec["maxRunDuration"] = f"{requirements.max_run_seconds}s"
        location_policy = "BALANCED" if requirements.provisioning == "standard" else "ANY"
        spec["autoscaling"] = {"min": 0, "max": pool_size_max, "locationPolicy": location_policy}
        taints = [*requirements.taints, *([cluster_objects.SPOT_TAINT] if requirements.provisioning == "spot" else [])]
        labels_and_taints = {"labels": dict(requirements.labels), "taints": [taint._asdict() for taint in taints]}
        return {**spec, **{key: value for key, value in labels_and_taints.items() if value}, "autoProvisioned": True}

    def _pool_name(
        self, requirements: cluster_objects.NodeRequirements, machine: MachineType, spec: PoolSpec, scale_up: ScaleUp
    ) -> str:
        """Return the name of a new pool with this spec; '' if a pool with an equal spec exists or is planned.

        Only TPU slices may have several pools with equal specs.
        """
        used_pool_names = {group.pool for group in scale_up.fleet.groups}
        group_name = requirements.placement_group
        if group_name:
            return "" if group_name in self._existing_pool_names or group_name in used_pool_names else group_name
        gpu_count = (
            spec["accelerator"]["count"]
            if "accelerator" in spec
            else requirements.resource == well_known.GPU and (machine.accelerator.count if machine.accelerator else 0)
        )
        pool_name_parts = ["nap", shorten_machine_type(machine.name)]
        pool_name_parts += ["spot"] if requirements.provisioning == "spot" else []
        pool_name_parts += [f"gpu{gpu_count}"] if gpu_count else []
        name_count = len(self._existing_pool_names) + len(used_pool_names) + 1 if "tpuTopology" in spec else 1
        names = ("-".join([*pool_name_parts, _spec_hash_suffix(number, spec)]) for number in range(name_count))
        return next(
            (name for name in names if name not in self._existing_pool_names and name not in used_pool_names), ""
        )


def _spec_hash_suffix(number: int, spec: PoolSpec) -> str:
    return f"{fnv1a_64(_encode_json([number, spec]).decode()) & 0xFFFFFFFF:08x}"


def node_pool(name: str, spec: PoolSpec) -> dict[str, Any]:
    """Return a new NodePool object with this name and spec."""
    api_version = scheme.kind_info(scheme.NODE_POOL).api_version
    return {"apiVersion": api_version, "kind": "NodePool", "metadata": {"name": name}, "spec": spec}


def shorten_machine_type(machine_type: str) -> str:
    """Return a machine type shortened to at most 14 characters: its middle part is cut, or else its beginning."""
    excess_length = len(machine_type) - _MACHINE_NAME_LENGTH_MAX
    type_parts = machine_type.split("-")
    if excess_length <= 0:
        return machine_type
    if len(type_parts) == 3 and len(type_parts[1]) > excess_length:
        return f"{type_parts[0]}-{type_parts[1][:-excess_length]}-{type_parts[2]}"
    return machine_type[excess_length:]


def _is_allowed(machine: MachineType, requirements: cluster_objects.NodeRequirements) -> bool:
    if requirements.machine_type:
        return machine.name == requirements.machine_type
    if not machine.is_auto_provisionable:
        return False
    if requirements.family:
        return machine.family == requirements.family
    return bool(requirements.resource or requirements.reservation) or (
        machine.family == DEFAULT_MACHINE_FAMILY and machine.name not in _TOO_SMALL_MACHINE_TYPES
    )


def _has_devices(
    machine: MachineType, requirements: cluster_objects.NodeRequirements, accelerator_types: Sequence[str]
) -> bool:
    accelerator = machine.accelerator
    if accelerator is None or accelerator.resource != requirements.resource:
        return False
    if accelerator.type not in accelerator_types:
        return False
    return (
        accelerator.count == requirements.accelerator_count
        if requirements.resource == well_known.TPU
        else accelerator.count >= requirements.accelerator_count
    )


def _scale_up_options(
    groups: Sequence[NodeGroup], pods: Sequence[PodView], other_pods: Sequence[PodView], scale_up: ScaleUp
) -> list[ScaleUpOption]:
    pods_by_kind = group_pods_by_kind(pods, scale_up.nodes)
    scale_up_options = []
    for fitting_pod_kinds, similar_groups in scale_up.group_by_fitting_pod_kinds(groups, pods_by_kind).items():
        fitting_pods = [pod for kind in fitting_pod_kinds for pod in pods_by_kind[kind]]
        unfitting_pods = [
            pod for kind, kind_pods in pods_by_kind.items() if kind not in fitting_pod_kinds for pod in kind_pods
        ]
        option = scale_up.option(similar_groups, fitting_pods, [*unfitting_pods, *other_pods]) if fitting_pods else None
        if option is not None:
            scale_up_options.append(ScaleUpOption(option.groups, option.nodes, option.unplaced_pods, is_new_pool=True))
    return scale_up_options


def _option_sort_key(option: ScaleUpOption, scale_up: ScaleUp) -> tuple[int, int, int]:
    known_count = sum(
        scale_up.fleet.remaining_known_capacity(group, scale_up.loop_context.cluster) for group in option.groups
    )
    return len(option.unplaced_pods), option.group.price * len(option.nodes), -min(known_count, len(option.nodes))
