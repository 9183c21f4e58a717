"""Node auto-provisioning: creates pools for pods that fit no existing pool.

The cheapest suitable machine type is chosen. A placement group is one pool, named after it; a TPU slice is one pool.
Sources: GKE's autoscaler, pkg/autoprovisioning (injection.go, machineselection) and
pkg/cloudprovider/gke/gke_cloud_provider_impl.go (NewNodeGroup, generateNewNodeGroupName, cropMachineType), where names
end with random digits; here these are a hash of the spec.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from batchyard.api import scheme, well_known
from batchyard.api.meta import Obj
from batchyard.api.views.pods import PodView
from batchyard.autoscaler.expander import ScaleUpOption
from batchyard.autoscaler.node_groups import NodeGroup, groups_of
from batchyard.autoscaler.scale_up import ScaleUp, format_reasons, kinds_of
from batchyard.base import fnv1a_64
from batchyard.cloud.catalog.machine_types import MachineType, catalog_of
from batchyard.cloud.catalog.prices import chips_in
from batchyard.cloud.cluster_objects import (
    SPOT_TAINT,
    NodeRequirements,
    UnsatisfiableRequirements,
    needs_of,
    run_duration_fault,
)

#: Maximum size of an auto-provisioned pool in a zone.
SIZE_MAX: Final = 1000
#: The machine family for pods that do not request one.
DEFAULT_FAMILY: Final = "e2"
#: Too small for GKE's system pods.
_NEVER_MADE: Final = ("e2-small",)
_MACHINE_NAME_MAX: Final = 14
_COUNTS: Final = (1, 2, 4, 8, 16)

Spec = dict[str, Any]
_encode = msgspec.json.Encoder(order="sorted").encode


class NodeAutoProvisioner:
    """Plans new pools. `provisioning`: their provisioning model; '' uses the one that the pods request."""

    def __init__(self, cluster: Obj, limited: Collection[str], taken: Collection[str], provisioning: str = "") -> None:
        self._cluster = cluster
        self._catalog = catalog_of(cluster)
        self._limited = limited
        self._taken = taken
        self._provisioning = provisioning

    def options(self, pods: Sequence[PodView], scale_up: ScaleUp) -> list[ScaleUpOption]:
        """Return the best new pool for each requirement of the pods."""
        by_needs: dict[NodeRequirements, list[PodView]] = {}
        for pod in pods:
            needs = self.needs(pod)
            if isinstance(needs, NodeRequirements):
                by_needs.setdefault(needs, []).append(pod)
        found = []
        for needs, needy in by_needs.items():
            chosen = {pod.uid: None for pod in needy}
            rest = [pod for pod in pods if pod.uid not in chosen]
            options = [
                o for groups in self._candidates(needs, scale_up) for o in _options(groups, needy, rest, scale_up)
            ]
            if options:
                found.append(min(options, key=lambda option: _rank(option, scale_up)))
        return found

    def why_not(self, pod: PodView, scale_up: ScaleUp) -> str:
        """Return why no pool is created for a pod: its own fault, or each reason with its number of groups."""
        needs = self.needs(pod)
        if isinstance(needs, UnsatisfiableRequirements):
            return needs.why
        reasons = [
            reason
            for groups in self._pools(needs, scale_up)
            for group in groups
            for reason in scale_up.reasons_against(pod, group)
        ]
        return format_reasons(reasons) or "no node pool can be made for it"

    def needs(self, pod: PodView) -> NodeRequirements | UnsatisfiableRequirements:
        """Return the node requirements of a pod, or why no pool can satisfy them."""
        needs = needs_of(pod)
        if isinstance(needs, UnsatisfiableRequirements):
            return needs
        if self._provisioning:
            needs = needs._replace(provisioning=self._provisioning)
        if needs.resource and not self._accelerators(needs):
            kind = needs.resource.rpartition("/")[2].upper()
            return UnsatisfiableRequirements(f'{kind} type "{needs.accelerator}" doesn\'t have a limit defined')
        if needs.reservation and not self._reserved(needs):
            return UnsatisfiableRequirements(f'reservation "{needs.reservation}" not found')
        fault = run_duration_fault(needs.max_run_seconds, needs.provisioning)
        return UnsatisfiableRequirements(fault) if fault else needs

    def _accelerators(self, needs: NodeRequirements) -> list[str]:
        """Return the accelerator types that requirements and limits allow."""
        if needs.accelerator:
            return [needs.accelerator] if needs.accelerator in self._limited else []
        return [accelerator for accelerator in self._limited if accelerator not in {"cpu", "memory"}]

    # --- candidates ---

    def _candidates(self, needs: NodeRequirements, scale_up: ScaleUp) -> Iterator[Sequence[NodeGroup]]:
        """Yield the groups of each possible pool that may grow."""
        for groups in self._pools(needs, scale_up):
            open_groups = [group for group in groups if self._is_open(group, scale_up)]
            if open_groups:
                yield open_groups

    def _pools(self, needs: NodeRequirements, scale_up: ScaleUp) -> Iterator[Sequence[NodeGroup]]:
        """Yield the groups of each possible pool; spot pools too if the pods tolerate spot."""
        yield from self._pools_of(needs, scale_up)
        if needs.tolerates_spot and needs.provisioning == "standard" and not needs.reservation:
            yield from self._pools_of(needs._replace(provisioning="spot"), scale_up)

    def _pools_of(self, needs: NodeRequirements, scale_up: ScaleUp) -> Iterator[Sequence[NodeGroup]]:
        """Yield pools of one provisioning model. Compact placement, reservations and TPU slices restrict a pool to one
        zone.
        """
        for machine, devices in self._machines(needs):
            spec = self._spec(needs, machine, devices)
            if spec is None:
                continue
            is_in_one = bool(needs.placement_group or needs.reservation or spec.get("tpuTopology"))
            for zones in [[zone] for zone in self._zones(needs)] if is_in_one else [None]:
                placed = spec if zones is None else {**spec, "zones": zones}
                name = self._name(needs, machine, placed, scale_up)
                if name:
                    yield groups_of(node_pool(name, placed), self._cluster)

    def _is_open(self, group: NodeGroup, scale_up: ScaleUp) -> bool:
        return not scale_up.fleet.obstacle(group, scale_up.limits, scale_up.situation.now)

    def _machines(self, needs: NodeRequirements) -> list[tuple[MachineType, int]]:
        """Return the machine types that satisfy the requirements, each with the number of accelerators to attach."""
        kept = [row["machineType"] for row in self._reserved(needs)]
        named = [m for m in self._catalog.machines.values() if m.name in kept]
        machines = [m for m in named or self._catalog.machines.values() if _is_meant(m, needs)]
        if not needs.resource:
            return [(machine, 0) for machine in machines if machine.accelerator is None]
        if needs.resource == well_known.TPU:
            return [(m, 0) for m in machines if _has(m, needs, self._accelerators(needs))]
        found = [
            (m, 0, m.accelerator.count) for m in machines if m.accelerator and _has(m, needs, self._accelerators(needs))
        ]
        for accelerator in self._accelerators(needs):
            counts = [count for count in _COUNTS if count >= needs.devices][:1]
            found += [(m, c, c) for m in machines for c in counts if self._catalog.can_attach(m, accelerator)]
        least = min([count for _, _, count in found], default=0)
        return [(machine, given) for machine, given, count in found if count == least]

    def _zones(self, needs: NodeRequirements) -> Sequence[str]:
        zones: Sequence[str] = self._cluster["spec"]["zones"]
        return [row["zone"] for row in self._reserved(needs)] or zones

    def _reserved(self, needs: NodeRequirements) -> Sequence[Mapping[str, Any]]:
        """Return the requested reservation, if it exists."""
        rows: Sequence[Mapping[str, Any]] = self._cluster["spec"].get("reservations") or ()
        return [row for row in rows if row["name"] == needs.reservation]

    # --- the pool ---

    def _spec(self, needs: NodeRequirements, machine: MachineType, devices: int) -> Spec | None:
        """Return the spec of a pool of such machines; None if it is impossible."""
        most = SIZE_MAX
        spec: Spec = {"machineType": machine.name, "provisioning": needs.provisioning, "nodeCount": 0}
        if devices:
            accelerator = next(a for a in self._accelerators(needs) if self._catalog.can_attach(machine, a))
            spec["accelerator"] = {"type": accelerator, "count": devices}
        if needs.topology and machine.accelerator is not None:
            chips, each = chips_in(needs.topology), machine.accelerator.count
            if chips % each:
                return None
            if chips > each:
                spec["tpuTopology"], most = needs.topology, chips // each
        if needs.placement_group:
            most = min(most, self._catalog.family(machine).placement_max)
            spec["placementGroup"] = needs.placement_group
        if needs.reservation:
            spec["reservation"] = needs.reservation
        if needs.max_run_seconds:
            spec["maxRunDuration"] = f"{needs.max_run_seconds}s"
        policy = "BALANCED" if needs.provisioning == "standard" else "ANY"
        spec["autoscaling"] = {"min": 0, "max": most, "locationPolicy": policy}
        taints = [*needs.taints, *([SPOT_TAINT] if needs.provisioning == "spot" else [])]
        named = {"labels": dict(needs.labels), "taints": [taint._asdict() for taint in taints]}
        return {**spec, **{field: value for field, value in named.items() if value}, "autoProvisioned": True}

    def _name(self, needs: NodeRequirements, machine: MachineType, spec: Spec, scale_up: ScaleUp) -> str:
        """Return the name of the new pool; '' if an equal pool exists or is being deleted."""
        in_use = {group.pool for group in scale_up.fleet.groups}
        if needs.placement_group:
            is_free = needs.placement_group not in self._taken and needs.placement_group not in in_use
            return needs.placement_group if is_free else ""
        count = (
            spec["accelerator"]["count"]
            if "accelerator" in spec
            else needs.resource == well_known.GPU and (machine.accelerator.count if machine.accelerator else 0)
        )
        parts = ["nap", cropped(machine.name)]
        parts += ["spot"] if needs.provisioning == "spot" else []
        parts += [f"gpu{count}"] if count else []
        for number in range(len(self._taken) + len(in_use) + 1):
            digits = f"{fnv1a_64(_encode([number, spec]).decode()) & 0xFFFFFFFF:08x}"
            name = "-".join([*parts, digits])
            if name not in self._taken and name not in in_use:
                return name
            if "tpuTopology" not in spec:
                return ""
        return ""


def node_pool(name: str, spec: Spec) -> dict[str, Any]:
    """Return a NodePool to create."""
    api_version = scheme.kind_info(scheme.NODE_POOL).api_version
    return {"apiVersion": api_version, "kind": "NodePool", "metadata": {"name": name}, "spec": spec}


def cropped(machine_type: str) -> str:
    """Return a machine type cut to the maximum length in pool names: the middle part, or else the beginning."""
    excess = len(machine_type) - _MACHINE_NAME_MAX
    parts = machine_type.split("-")
    if excess <= 0:
        return machine_type
    if len(parts) == 3 and len(parts[1]) > excess:
        return f"{parts[0]}-{parts[1][:-excess]}-{parts[2]}"
    return machine_type[excess:]


def _is_meant(machine: MachineType, needs: NodeRequirements) -> bool:
    """Whether the requirements allow a machine type."""
    if needs.machine_type:
        return machine.name == needs.machine_type
    if not machine.is_made_unasked:
        return False
    if needs.family:
        return machine.family == needs.family
    return bool(needs.resource or needs.reservation) or (
        machine.family == DEFAULT_FAMILY and machine.name not in _NEVER_MADE
    )


def _has(machine: MachineType, needs: NodeRequirements, types: Sequence[str]) -> bool:
    """Whether a machine has the accelerators: at least as many GPUs, or exactly as many TPUs."""
    accelerator = machine.accelerator
    if accelerator is None or accelerator.resource != needs.resource or accelerator.type not in types:
        return False
    return (
        accelerator.count == needs.devices if needs.resource == well_known.TPU else accelerator.count >= needs.devices
    )


def _options(
    groups: Sequence[NodeGroup], pods: Sequence[PodView], rest: Sequence[PodView], scale_up: ScaleUp
) -> list[ScaleUpOption]:
    """Return the options of a new pool, by zones that fit the same pods."""
    kinds = kinds_of(pods, scale_up.nodes)
    found = []
    for fitting, similar in scale_up.alike(groups, kinds).items():
        fit = [pod for kind in fitting for pod in kinds[kind]]
        unfit = [pod for kind, others in kinds.items() if kind not in fitting for pod in others]
        option = scale_up.option(similar, fit, [*unfit, *rest]) if fit else None
        if option is not None:
            found.append(ScaleUpOption(option.groups, option.nodes, option.left, is_new_pool=True))
    return found


def _rank(option: ScaleUpOption, scale_up: ScaleUp) -> tuple[int, int, int]:
    """Sort key: remaining pods, price, known capacity."""
    known = sum(scale_up.fleet.known_room(group, scale_up.situation.cluster) for group in option.groups)
    return len(option.left), option.group.price * len(option.nodes), -min(known, len(option.nodes))
