"""Node groups: a NodePool in one zone, which grows and shrinks by itself; GCE has them as managed instance groups.

Sources: GKE's autoscaler, pkg/cloudprovider/gke (GkeMig: sizes, total sizes, ZeroOrMaxNodeScaling, provision times).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from batchyard.api import well_known
from batchyard.api.meta import Obj
from batchyard.api.views.node import NodeView, node_view
from batchyard.autoscaler.settings import (
    FLEX_START_PROVISION_TIME,
    QUEUED_PROVISION_TIME,
    TPU_PROVISION_TIME,
    Limit,
    ScalingSettings,
)
from batchyard.base.instant import Duration
from batchyard.cloud.catalog.instances import name_prefix
from batchyard.cloud.catalog.machine_types import Catalog, MachineType, MicroDollars, catalog_of
from batchyard.cloud.catalog.nodes import node_template
from batchyard.cloud.catalog.pools import hosts_of_slice, is_autoscaled, machine_of, zones_of
from batchyard.cloud.catalog.prices import pool_price

#: As large as a managed instance group gets.
SIZE_MAX: Final = 2000
_UNBOUNDED: Final = 1 << 30


class GroupName(NamedTuple):
    """Which group: the pool and the zone."""

    pool: str
    zone: str


@dataclass(frozen=True, slots=True)
class Bounds:
    """How many machines there are at least and at most."""

    least: int
    most: int


@dataclass(frozen=True, slots=True, eq=False)
class NodeGroup:
    """See the module."""

    name: GroupName
    #: As clients are told: the name of the managed instance group.
    id: str
    pool: Obj
    machine: MachineType
    #: A node of the group as it would be.
    template: NodeView
    price: MicroDollars
    is_autoscaled: bool
    #: Of the group, and of all groups of the pool together.
    size: Bounds
    total: Bounds
    #: How many machines come and go as one.
    hosts: int
    #: Whether it takes whatever zone has machines; otherwise zones are kept alike.
    takes_any_zone: bool

    @property
    def provisioning(self) -> str:
        """On which terms the machines are had."""
        terms: str = self.pool["spec"].get("provisioning", "standard")
        return terms

    @property
    def reservation(self) -> str | None:
        """The reservation whose machines they are."""
        reservation: str | None = self.pool["spec"].get("reservation")
        return reservation

    @property
    def is_auto_provisioned(self) -> bool:
        """Whether the autoscaler made the pool."""
        return bool(self.pool["spec"].get("autoProvisioned"))

    @property
    def uses(self) -> dict[str, int]:
        """What one machine counts against limits of the cluster."""
        machine = self.machine
        uses = {"cpu": machine.cpu_milli // 1000, "memory": machine.memory_bytes}
        if machine.accelerator is not None:
            uses[machine.accelerator.type] = machine.accelerator.count
        return uses

    def provision_time(self, settings: ScalingSettings) -> Duration:
        """How long a machine may take to become a node."""
        accelerator = self.machine.accelerator
        if self.provisioning == "queued":
            return QUEUED_PROVISION_TIME
        if self.provisioning == "flex-start":
            return FLEX_START_PROVISION_TIME
        if accelerator is not None and accelerator.resource == well_known.TPU:
            return TPU_PROVISION_TIME
        return settings.provision_time

    def node(self, name: str) -> NodeView:
        """A node of the group by that name, ready and without pods."""
        return replace(self.template, name=name, labels={**self.template.labels, well_known.HOSTNAME: name})


def groups_of(pool: Obj, cluster: Obj) -> list[NodeGroup]:
    """The groups of a pool, in the order of its zones."""
    catalog = catalog_of(cluster)
    machine, hosts = machine_of(pool, catalog), hosts_of_slice(pool, catalog)
    zones: Sequence[str] = zones_of(pool, cluster)[:1] if hosts > 1 else zones_of(pool, cluster)
    size, total = _bounds(pool["spec"], hosts, _placement_max(pool, machine, catalog))
    name, price = pool["metadata"]["name"], pool_price(pool, cluster)
    return [
        NodeGroup(
            name=GroupName(name, zone),
            id=f"{name_prefix(cluster['metadata']['name'], name, zone)}grp",
            pool=pool,
            machine=machine,
            template=node_view(node_template(pool, zone, cluster)),
            price=price,
            is_autoscaled=is_autoscaled(pool),
            size=size,
            total=total,
            hosts=hosts,
            takes_any_zone=(pool["spec"].get("autoscaling") or {}).get("locationPolicy") == "ANY",
        )
        for zone in zones
    ]


def _bounds(spec: Mapping[str, Any], hosts: int, most: int) -> tuple[Bounds, Bounds]:
    """The bounds of one group, and those of all groups of the pool."""
    autoscaling = spec.get("autoscaling") or {}
    if hosts > 1:
        whole = Bounds(hosts if autoscaling.get("min") or autoscaling.get("totalMin") else 0, hosts)
        return whole, whole
    size = Bounds(autoscaling.get("min", 0), min(most, autoscaling.get("max", most)))
    return size, Bounds(autoscaling.get("totalMin", 0), autoscaling.get("totalMax", _UNBOUNDED))


def _placement_max(pool: Obj, machine: MachineType, catalog: Catalog) -> int:
    """How many machines a group can have: those of a compact placement group are fewer."""
    compact = catalog.family(machine).placement_max if pool["spec"].get("placementGroup") else 0
    return compact or SIZE_MAX


# --- limits ---
#
# How much a cluster may have in all: cores, memory, accelerators. Whatever machines there are count.
#
# Source: kubernetes-sigs/cluster-autoscaler, pkg/resourcequotas, whose words for what is exceeded these are.


_MANY: Final = 1 << 30


class Limits:
    """What is left until the limits."""

    def __init__(self, limits: Mapping[str, Limit], used: Mapping[str, int]) -> None:
        self._limits = limits
        self._used = dict(used)

    def allowed(self, uses: Mapping[str, int]) -> int:
        """How many more machines that use so much there may be."""
        bounds = [self._left(resource) // amount for resource, amount in self._limited(uses).items()]
        return max(0, min(bounds, default=_MANY))

    def exceeded(self, uses: Mapping[str, int], count: int = 1) -> list[str]:
        """The resources of which so many more machines would use too much."""
        return [r for r, amount in self._limited(uses).items() if amount * count > self._left(r)]

    def take(self, uses: Mapping[str, int], count: int) -> None:
        """So many machines come."""
        for resource, amount in uses.items():
            self._used[resource] = self._used.get(resource, 0) + amount * count

    def may_go(self, uses: Mapping[str, int], count: int = 1) -> bool:
        """Whether there is still the least there must be if so many machines go."""
        return all(
            self._used.get(resource, 0) - amount * count >= self._limits[resource].least
            for resource, amount in self._limited(uses).items()
        )

    def _limited(self, uses: Mapping[str, int]) -> dict[str, int]:
        return {resource: amount for resource, amount in uses.items() if amount and resource in self._limits}

    def _left(self, resource: str) -> int:
        return self._limits[resource].most - self._used.get(resource, 0)


def tell_exceeded(resources: list[str]) -> str:
    """Why a group cannot grow."""
    return f'exceeded quota: "cluster-wide", resources: {", ".join(resources)}'
