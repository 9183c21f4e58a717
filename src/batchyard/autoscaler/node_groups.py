"""Node groups: a NodePool in one zone, with its own size; a managed instance group in GCE.

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
from batchyard.cloud.catalog.prices import hosts_of_slice, is_autoscaled, machine_of, pool_price, zones_of
from batchyard.placement.node_filters import AutoscalingProfile

# --- settings ---
#
# Autoscaler settings of a Cluster, with defaults.
#
# Sources: the flags of kubernetes-sigs/cluster-autoscaler (pkg/config/flags) and its core/static_autoscaler.go; GKE's
# autoscaler, pkg/cloudprovider/gke/gke_cloud_provider_impl.go (provision times).


#: Nodes that are not ready are removed after this time.
UNREADY_TIME: Final = 20 * MINUTE
#: At most PARALLEL_MAX nodes are removed at once, and DRAIN_MAX of them with pods.
PARALLEL_MAX: Final = 10
DRAIN_MAX: Final = 1
#: Maximum grace period of evicted pods, in seconds. A node that is not drained after DRAIN_TIME is kept.
GRACE_MAX: Final = 600
DRAIN_TIME: Final = GRACE_MAX * SECOND + 30 * SECOND
#: Pods below this priority do not trigger a scale-up.
EXPENDABLE_BELOW: Final = -10
#: Delays for the pods of a gang to arrive: since the oldest pod, and since the oldest pod with accelerators.
YOUNG: Final = 2 * SECOND
YOUNG_ACCELERATED: Final = 30 * SECOND
#: How long machines may take to become nodes, by type; otherwise the Cluster's maxNodeProvisionTime.
TPU_PROVISION_TIME: Final = 10 * HOUR
FLEX_START_PROVISION_TIME: Final = 30 * MINUTE
QUEUED_PROVISION_TIME: Final = 365 * 24 * HOUR

_PROVISION_TIME: Final = 15 * MINUTE
_SCAN_INTERVAL: Final = 10 * SECOND
_THRESHOLD: Final = "0.5"
#: Bytes per unit of memory limits.
_GIGABYTE: Final = 1 << 30
_NOTHING: Final[Mapping[str, Any]] = {}


class ScaleDownDelays(NamedTuple):
    """How long a node must be unneeded before removal, and how long scale-down pauses after a scale-up."""

    unneeded: Duration
    after_add: Duration


#: GKE publishes no values for its profile optimize-utilization: those are assumed.
_PATIENCE: Final[Mapping[AutoscalingProfile, ScaleDownDelays]] = {
    AutoscalingProfile.BALANCED: ScaleDownDelays(10 * MINUTE, 10 * MINUTE),
    AutoscalingProfile.OPTIMIZE_UTILIZATION: ScaleDownDelays(2 * MINUTE, 2 * MINUTE),
}


class ResourceLimit(NamedTuple):
    """Minimum and maximum of a resource in the cluster: cores, bytes or accelerators."""

    least: int
    most: int


@dataclass(frozen=True, slots=True)
class ScalingSettings:
    """Autoscaler settings of a Cluster."""

    profile: AutoscalingProfile
    expander: str
    #: Patterns of pool names, highest priority first.
    priorities: tuple[str, ...]
    scan_interval: Duration
    patience: ScaleDownDelays
    #: In billionths of the allocatable amount.
    utilization_threshold: int
    provision_time: Duration
    limits: Mapping[str, ResourceLimit]
    #: Whether pools are created for pods that fit no existing pool.
    makes_pools: bool

    def next_scan(self, start: Instant, now: Instant) -> Instant:
        """Return the first scan instant not before `now`: multiples of the scan interval since `start`."""
        return start + -(-(now - start) // self.scan_interval) * self.scan_interval


def settings_of(cluster: Obj) -> ScalingSettings:
    """Return the settings of a Cluster."""
    autoscaling: Mapping[str, Any] = cluster["spec"].get("autoscaling") or _NOTHING
    profile = AutoscalingProfile(autoscaling.get("profile", AutoscalingProfile.BALANCED.value))
    unneeded, after_add = _PATIENCE[profile]
    provisioning = autoscaling.get("autoProvisioning")
    return ScalingSettings(
        profile=profile,
        expander=autoscaling.get("expander", "least-waste"),
        priorities=tuple(autoscaling.get("priorities") or ()),
        scan_interval=_duration(autoscaling, "scanInterval", _SCAN_INTERVAL),
        patience=ScaleDownDelays(_duration(autoscaling, "unneededTime", unneeded), after_add),
        utilization_threshold=meta.parse(autoscaling.get("utilizationThreshold", _THRESHOLD)),
        provision_time=_duration(autoscaling, "maxNodeProvisionTime", _PROVISION_TIME),
        limits={row["resource"]: _limit(row) for row in (provisioning or _NOTHING).get("limits") or ()},
        makes_pools=provisioning is not None,
    )


def _duration(autoscaling: Mapping[str, Any], field: str, default: Duration) -> Duration:
    return parse_duration(autoscaling[field]) if field in autoscaling else default


def _limit(row: Mapping[str, Any]) -> ResourceLimit:
    unit = _GIGABYTE if row["resource"] == "memory" else 1
    return ResourceLimit(row.get("min", 0) * unit, row["max"] * unit)


#: Maximum size of a managed instance group.
SIZE_MAX: Final = 2000
_UNBOUNDED: Final = 1 << 30


class GroupName(NamedTuple):
    """Pool and zone of a group."""

    pool: str
    zone: str


@dataclass(frozen=True, slots=True)
class SizeBounds:
    """Minimum and maximum number of machines."""

    least: int
    most: int


@dataclass(frozen=True, slots=True, eq=False)
class NodeGroup:
    """A NodePool in one zone: machine type, template node, price and bounds."""

    name: GroupName
    #: The name of the managed instance group, as shown to clients.
    id: str
    pool: Obj
    machine: MachineType
    #: Template of the group's nodes.
    template: NodeView
    price: MicroDollars
    is_autoscaled: bool
    #: Bounds of the group, and of all groups of the pool together.
    size: SizeBounds
    total: SizeBounds
    #: The number of machines that are created and deleted together.
    hosts: int
    #: Whether any zone with capacity is used (ANY); otherwise zones are balanced.
    takes_any_zone: bool

    @property
    def provisioning(self) -> str:
        """The provisioning model of the machines."""
        terms: str = self.pool["spec"].get("provisioning", "standard")
        return terms

    @property
    def reservation(self) -> str | None:
        """The reservation that the machines consume."""
        reservation: str | None = self.pool["spec"].get("reservation")
        return reservation

    @property
    def is_auto_provisioned(self) -> bool:
        """Whether the autoscaler created the pool."""
        return bool(self.pool["spec"].get("autoProvisioned"))

    @property
    def uses(self) -> dict[str, int]:
        """The resources of one machine that count against the cluster's limits."""
        machine = self.machine
        uses = {"cpu": machine.cpu_milli // 1000, "memory": machine.memory_bytes}
        if machine.accelerator is not None:
            uses[machine.accelerator.type] = machine.accelerator.count
        return uses

    def provision_time(self, settings: ScalingSettings) -> Duration:
        """Return how long a machine may take to become a node."""
        accelerator = self.machine.accelerator
        if self.provisioning == "queued":
            return QUEUED_PROVISION_TIME
        if self.provisioning == "flex-start":
            return FLEX_START_PROVISION_TIME
        if accelerator is not None and accelerator.resource == well_known.TPU:
            return TPU_PROVISION_TIME
        return settings.provision_time

    def node(self, name: str) -> NodeView:
        """Return a ready node of the group with that name, without pods."""
        return replace(self.template, name=name, labels={**self.template.labels, well_known.HOSTNAME: name})


def groups_of(pool: Obj, cluster: Obj) -> list[NodeGroup]:
    """Return the groups of a pool, in the order of its zones."""
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


def _bounds(spec: Mapping[str, Any], hosts: int, most: int) -> tuple[SizeBounds, SizeBounds]:
    """Return the bounds of one group, and those of all groups of the pool."""
    autoscaling = spec.get("autoscaling") or {}
    if hosts > 1:
        whole = SizeBounds(hosts if autoscaling.get("min") or autoscaling.get("totalMin") else 0, hosts)
        return whole, whole
    size = SizeBounds(autoscaling.get("min", 0), min(most, autoscaling.get("max", most)))
    return size, SizeBounds(autoscaling.get("totalMin", 0), autoscaling.get("totalMax", _UNBOUNDED))


def _placement_max(pool: Obj, machine: MachineType, catalog: Catalog) -> int:
    """Return the maximum size of a group; compact placement groups are smaller."""
    compact = catalog.family(machine).placement_max if pool["spec"].get("placementGroup") else 0
    return compact or SIZE_MAX


# --- limits ---
#
# Cluster-wide limits of cores, memory and accelerators. All machines count.
#
# Source: kubernetes-sigs/cluster-autoscaler, pkg/resourcequotas, with its messages.


_MANY: Final = 1 << 30


class ClusterLimits:
    """The cluster's limits and their current use."""

    def __init__(self, limits: Mapping[str, ResourceLimit], used: Mapping[str, int]) -> None:
        self._limits = limits
        self._used = dict(used)

    def allowed(self, uses: Mapping[str, int]) -> int:
        """Return how many more machines with these resources the limits allow."""
        bounds = [self._left(resource) // amount for resource, amount in self._limited(uses).items()]
        return max(0, min(bounds, default=_MANY))

    def exceeded(self, uses: Mapping[str, int], count: int = 1) -> list[str]:
        """Return the resources whose limits `count` more machines would exceed."""
        return [r for r, amount in self._limited(uses).items() if amount * count > self._left(r)]

    def take(self, uses: Mapping[str, int], count: int) -> None:
        """Add `count` machines."""
        for resource, amount in uses.items():
            self._used[resource] = self._used.get(resource, 0) + amount * count

    def may_go(self, uses: Mapping[str, int], count: int = 1) -> bool:
        """Whether the minimums still hold after `count` machines are removed."""
        return all(
            self._used.get(resource, 0) - amount * count >= self._limits[resource].least
            for resource, amount in self._limited(uses).items()
        )

    def _limited(self, uses: Mapping[str, int]) -> dict[str, int]:
        return {resource: amount for resource, amount in uses.items() if amount and resource in self._limits}

    def _left(self, resource: str) -> int:
        return self._limits[resource].most - self._used.get(resource, 0)


def format_exceeded_limits(resources: list[str]) -> str:
    """Format the reason why a group cannot grow."""
    return f'exceeded quota: "cluster-wide", resources: {", ".join(resources)}'
