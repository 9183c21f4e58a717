"""Autoscaler settings of a Cluster, with defaults.

Sources: the flags of kubernetes-sigs/cluster-autoscaler (pkg/config/flags) and its core/static_autoscaler.go; GKE's
autoscaler, pkg/cloudprovider/gke/gke_cloud_provider_impl.go (provision times).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from batchyard.api import meta
from batchyard.api.meta import Obj
from batchyard.base.instant import HOUR, MINUTE, SECOND, Duration, Instant, parse_duration
from batchyard.placement.node_filters import AutoscalingProfile

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
