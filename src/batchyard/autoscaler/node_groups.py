"""Node groups (a NodePool in one zone, like a managed instance group in GCE), autoscaler settings and cluster limits.

Sources: GKE's autoscaler, pkg/cloudprovider/gke (GkeMig: sizes, total sizes, ZeroOrMaxNodeScaling, provision times).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from batchyard.api import meta, well_known
from batchyard.api.meta import Obj
from batchyard.api.views.node import NodeView, node_view
from batchyard.base.instant import HOUR, MINUTE, SECOND, Duration, Instant, parse_duration
from batchyard.cloud.catalog.instances import name_prefix
from batchyard.cloud.catalog.machine_types import Catalog, MachineType, MicroDollars, catalog_of
from batchyard.cloud.catalog.nodes import node_template
from batchyard.cloud.catalog.pool_properties import is_autoscaled, machine_of, pool_price, slice_host_count, zones_of
from batchyard.placement.node_filters import AutoscalingProfile

# Autoscaler settings of a Cluster, with defaults.
#
# Sources: the flags of kubernetes-sigs/cluster-autoscaler (pkg/config/flags) and its core/static_autoscaler.go; GKE's
# autoscaler, pkg/cloudprovider/gke/gke_cloud_provider_impl.go (provision times).


#: The time after which an unneeded node that is not ready is removed.
UNREADY_TIME: Final = 20 * MINUTE
#: The maximum number of nodes that are removed at once, and of those that must be drained.
PARALLEL_REMOVALS_MAX: Final = 10
PARALLEL_DRAINS_MAX: Final = 1
#: The maximum grace period of evicted pods in seconds, and the time after which an undrained node stays.
GRACE_MAX: Final = 600
DRAIN_TIME: Final = GRACE_MAX * SECOND + 30 * SECOND
#: Pods below this priority do not trigger a scale-up.
EXPENDABLE_BELOW_PRIORITY: Final = -10
#: How long a scan waits for further pods of a gang after the oldest pod, and after the oldest pod with accelerators.
RECENT_POD_WAIT: Final = 2 * SECOND
RECENT_ACCELERATED_POD_WAIT: Final = 30 * SECOND
#: The time within which machines of each type must become nodes; others use the Cluster's maxNodeProvisionTime.
TPU_PROVISION_TIME: Final = 10 * HOUR
FLEX_START_PROVISION_TIME: Final = 30 * MINUTE
QUEUED_PROVISION_TIME: Final = 365 * 24 * HOUR

_DEFAULT_PROVISION_TIME: Final = 15 * MINUTE
_DEFAULT_SCAN_INTERVAL: Final = 10 * SECOND
_UTILIZATION_THRESHOLD: Final = "0.5"
#: Bytes per unit of memory limits.
_GIGABYTE: Final = 1 << 30
_EMPTY: Final[Mapping[str, Any]] = {}


class ScaleDownDelays(NamedTuple):
    """How long a node must be unneeded before its removal, and how long a scale-up pauses scale-down."""

    unneeded_time: Duration
    pause: Duration


#: The values of optimize-utilization are assumptions, because GKE does not publish them.
_DEFAULT_DELAYS: Final[Mapping[AutoscalingProfile, ScaleDownDelays]] = {
    AutoscalingProfile.BALANCED: ScaleDownDelays(10 * MINUTE, 10 * MINUTE),
    AutoscalingProfile.OPTIMIZE_UTILIZATION: ScaleDownDelays(2 * MINUTE, 2 * MINUTE),
}


class ResourceLimit(NamedTuple):
    """The minimum and maximum of one resource of the whole cluster, in cores, bytes or accelerators."""

    minimum: int
    maximum: int


@dataclass(frozen=True, slots=True)
class ScalingSettings:
    """The autoscaler settings in a Cluster's spec, with defaults."""

    profile: AutoscalingProfile
    expander: str
    #: Patterns of pool names, highest priority first.
    priorities: tuple[str, ...]
    scan_interval: Duration
    scale_down_delays: ScaleDownDelays
    #: The highest utilization at which a node may be removed, in billionths of the allocatable amount.
    utilization_threshold: int
    provision_time: Duration
    limits: Mapping[str, ResourceLimit]
    #: Whether pools are created for pods that fit no existing pool.
    makes_pools: bool

    def next_scan(self, start: Instant, now: Instant) -> Instant:
        """Return the first scan time at or after `now`; scan times are multiples of the scan interval after `start`."""
        return start + -(-(now - start) // self.scan_interval) * self.scan_interval


def settings_of(cluster: Obj) -> ScalingSettings:
    """Return the autoscaler settings in a Cluster's spec, with defaults for fields that are not set."""
    autoscaling: Mapping[str, Any] = cluster["spec"].get("autoscaling") or _EMPTY
    profile = AutoscalingProfile(autoscaling.get("profile", AutoscalingProfile.BALANCED.value))
    unneeded_time, pause = _DEFAULT_DELAYS[profile]
    auto_provisioning = autoscaling.get("autoProvisioning")
    return ScalingSettings(
        profile=profile,
        expander=autoscaling.get("expander", "least-waste"),
        priorities=tuple(autoscaling.get("priorities") or ()),
        scan_interval=_duration_of_field(autoscaling, "scanInterval", _DEFAULT_SCAN_INTERVAL),
        scale_down_delays=ScaleDownDelays(_duration_of_field(autoscaling, "unneededTime", unneeded_time), pause),
        utilization_threshold=meta.parse_quantity(autoscaling.get("utilizationThreshold", _UTILIZATION_THRESHOLD)),
        provision_time=_duration_of_field(autoscaling, "maxNodeProvisionTime", _DEFAULT_PROVISION_TIME),
        limits={row["resource"]: _resource_limit(row) for row in (auto_provisioning or _EMPTY).get("limits") or ()},
        makes_pools=auto_provisioning is not None,
    )


def _duration_of_field(autoscaling: Mapping[str, Any], field: str, default: Duration) -> Duration:
    return parse_duration(autoscaling[field]) if field in autoscaling else default


def _resource_limit(row: Mapping[str, Any]) -> ResourceLimit:
    unit_amount = _GIGABYTE if row["resource"] == "memory" else 1
    return ResourceLimit(row.get("min", 0) * unit_amount, row["max"] * unit_amount)


#: The maximum size of a managed instance group.
POOL_SIZE_MAX: Final = 2000
_UNBOUNDED_SIZE: Final = 1 << 30


class GroupName(NamedTuple):
    """The name of a node group: its node pool and zone."""

    pool: str
    zone: str


@dataclass(frozen=True, slots=True)
class SizeBounds:
    """The minimum and maximum number of machines of a node group, or of all groups of a pool."""

    minimum: int
    maximum: int


@dataclass(frozen=True, slots=True, eq=False)
class NodeGroup:
    """A NodePool in one zone, as the autoscaler scales it: machine type, template node, price and size bounds."""

    name: GroupName
    #: The name of the managed instance group, as shown to clients.
    id: str
    pool: Obj
    machine: MachineType
    #: The template of the group's nodes.
    template: NodeView
    price: MicroDollars
    is_autoscaled: bool
    #: The size bounds of this group, and of all groups of the pool together.
    size: SizeBounds
    total: SizeBounds
    #: The number of machines that are created and deleted together.
    hosts: int
    #: Whether the location policy is ANY (use zones with capacity); otherwise zones are balanced.
    takes_any_zone: bool

    @property
    def provisioning(self) -> str:
        """The provisioning model of the group's machines: standard, spot, flex-start or queued."""
        provisioning_model: str = self.pool["spec"].get("provisioning", "standard")
        return provisioning_model

    @property
    def reservation_name(self) -> str | None:
        """The name of the reservation that the group's machines consume; None without one."""
        reservation_name: str | None = self.pool["spec"].get("reservation")
        return reservation_name

    @property
    def is_auto_provisioned(self) -> bool:
        """Whether the autoscaler created the group's node pool."""
        return bool(self.pool["spec"].get("autoProvisioned"))

    @property
    def counted_resources(self) -> dict[str, int]:
        """What one machine of the group counts against the cluster limits, by resource (cores, bytes, accelerators)."""
        machine = self.machine
        resource_amounts = {"cpu": machine.cpu_milli // 1000, "memory": machine.memory_bytes}
        if machine.accelerator is not None:
            resource_amounts[machine.accelerator.type] = machine.accelerator.count
        return resource_amounts

    def provision_time(self, settings: ScalingSettings) -> Duration:
        """Return how long a machine of the group may take to become a node before it counts as failed."""
        accelerator = self.machine.accelerator
        if self.provisioning == "queued":
            return QUEUED_PROVISION_TIME
        if self.provisioning == "flex-start":
            return FLEX_START_PROVISION_TIME
        if accelerator is not None and accelerator.resource == well_known.TPU:
            return TPU_PROVISION_TIME
        return settings.provision_time

    def new_node(self, name: str) -> NodeView:
        """Return a new, ready node with this name, as the group would create it."""
        return replace(self.template, name=name, labels={**self.template.labels, well_known.HOSTNAME: name})


def groups_of(pool: Obj, cluster: Obj) -> list[NodeGroup]:
    """Return a NodePool's node groups in the order of its zones; a multi-host TPU slice uses only the first zone."""
    catalog = catalog_of(cluster)
    machine, host_count = machine_of(pool, catalog), slice_host_count(pool, catalog)
    zones: Sequence[str] = zones_of(pool, cluster)[:1] if host_count > 1 else zones_of(pool, cluster)
    size, total = _size_bounds(pool["spec"], host_count, _node_group_size_max(pool, machine, catalog))
    name, pool_hourly_price = pool["metadata"]["name"], pool_price(pool, cluster)
    return [
        NodeGroup(
            name=GroupName(name, zone),
            id=f"{name_prefix(cluster['metadata']['name'], name, zone)}grp",
            pool=pool,
            machine=machine,
            template=node_view(node_template(pool, zone, cluster)),
            price=pool_hourly_price,
            is_autoscaled=is_autoscaled(pool),
            size=size,
            total=total,
            hosts=host_count,
            takes_any_zone=(pool["spec"].get("autoscaling") or {}).get("locationPolicy") == "ANY",
        )
        for zone in zones
    ]


def _size_bounds(spec: Mapping[str, Any], hosts: int, size_max: int) -> tuple[SizeBounds, SizeBounds]:
    """Return the size bounds of each node group of a pool, and those of the sum of its node groups.

    `hosts` is the number of machines of a TPU slice, or 1; `size_max` limits the size of each group.
    """
    autoscaling = spec.get("autoscaling") or {}
    if hosts > 1:
        slice_bounds = SizeBounds(hosts if autoscaling.get("min") or autoscaling.get("totalMin") else 0, hosts)
        return slice_bounds, slice_bounds
    zone_bounds = SizeBounds(autoscaling.get("min", 0), min(size_max, autoscaling.get("max", size_max)))
    return zone_bounds, SizeBounds(autoscaling.get("totalMin", 0), autoscaling.get("totalMax", _UNBOUNDED_SIZE))


def _node_group_size_max(pool: Obj, machine: MachineType, catalog: Catalog) -> int:
    compact_size_max = catalog.family(machine).placement_max if pool["spec"].get("placementGroup") else 0
    return compact_size_max or POOL_SIZE_MAX


# Cluster-wide limits of cores, memory and accelerators, which apply to all machines.
#
# Source: kubernetes-sigs/cluster-autoscaler, pkg/resourcequotas, with its messages.


_UNLIMITED_COUNT: Final = 1 << 30


class ClusterLimits:
    """The limits of resources of the whole cluster, and what its machines use of them."""

    def __init__(self, limits: Mapping[str, ResourceLimit], usage_by_resource: Mapping[str, int]) -> None:
        self._limits = limits
        self._usage = dict(usage_by_resource)

    def count_allowed(self, resources: Mapping[str, int]) -> int:
        """Return how many more machines with these resources the cluster limits allow; 1 << 30 without a limit."""
        bounds = [self._remaining(resource) // amount for resource, amount in self._limited_amounts(resources).items()]
        return max(0, min(bounds, default=_UNLIMITED_COUNT))

    def exceeded_resources(self, resources: Mapping[str, int], count: int = 1) -> list[str]:
        """Return the resources whose cluster limit would be exceeded by `count` more machines with these amounts."""
        return [r for r, amount in self._limited_amounts(resources).items() if amount * count > self._remaining(r)]

    def add_usage(self, resources: Mapping[str, int], count: int) -> None:
        """Add the resources of `count` machines to the usage; `resources` are those of one machine.

        A negative count subtracts them.
        """
        for resource, amount in resources.items():
            self._usage[resource] = self._usage.get(resource, 0) + amount * count

    def may_remove_nodes(self, resources: Mapping[str, int], count: int = 1) -> bool:
        """Return whether the cluster's minimum limits still hold without `count` machines with these resources."""
        return all(
            self._usage.get(resource, 0) - amount * count >= self._limits[resource].minimum
            for resource, amount in self._limited_amounts(resources).items()
        )

    def _limited_amounts(self, resources: Mapping[str, int]) -> dict[str, int]:
        return {resource: amount for resource, amount in resources.items() if amount and resource in self._limits}

    def _remaining(self, resource: str) -> int:
        return self._limits[resource].maximum - self._usage.get(resource, 0)


def format_exceeded_limits(resources: list[str]) -> str:
    """Return the cluster autoscaler's message that a scale-up would exceed the cluster limits of these resources."""
    return f'exceeded quota: "cluster-wide", resources: {", ".join(resources)}'
