"""What a Cluster says of its autoscaler, and what goes where it says nothing.

Sources: the flags of kubernetes-sigs/cluster-autoscaler (pkg/config/flags) and its core/static_autoscaler.go; GKE's
autoscaler, pkg/cloudprovider/gke/gke_cloud_provider_impl.go (provision times).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from batchyard.api import quantity
from batchyard.api.meta import Obj
from batchyard.base.instant import HOUR, MINUTE, SECOND, Duration, Instant, parse_duration
from batchyard.placement.resources import Profile

#: A node that is not ready goes after this time.
UNREADY_TIME: Final = 20 * MINUTE
#: At most so many nodes go at once, and so many of them with pods.
PARALLEL_MAX: Final = 10
DRAIN_MAX: Final = 1
#: What pods of a node that goes have to stop, in seconds, whatever they ask for; and after how long the node is kept
#: if they have not.
GRACE_MAX: Final = 600
DRAIN_TIME: Final = GRACE_MAX * SECOND + 30 * SECOND
#: Pods below this priority get no nodes.
EXPENDABLE_BELOW: Final = -10
#: Pods are given time to come all together: after the oldest one, and after the oldest one that wants accelerators.
YOUNG: Final = 2 * SECOND
YOUNG_ACCELERATED: Final = 30 * SECOND
#: How long machines may take to become nodes, by what they are; others: what the Cluster says.
TPU_PROVISION_TIME: Final = 10 * HOUR
FLEX_START_PROVISION_TIME: Final = 30 * MINUTE
QUEUED_PROVISION_TIME: Final = 365 * 24 * HOUR

_PROVISION_TIME: Final = 15 * MINUTE
_SCAN_INTERVAL: Final = 10 * SECOND
_THRESHOLD: Final = "0.5"
#: Limits of memory are in units of this many bytes.
_GIGABYTE: Final = 1 << 30
_NOTHING: Final[Mapping[str, Any]] = {}


class Patience(NamedTuple):
    """How long nodes are kept that nobody needs: since they are unneeded, and since nodes were added."""

    unneeded: Duration
    after_add: Duration


#: GKE publishes no figures for its profile that saves nodes: those are assumed.
_PATIENCE: Final[Mapping[Profile, Patience]] = {
    Profile.BALANCED: Patience(10 * MINUTE, 10 * MINUTE),
    Profile.OPTIMIZE_UTILIZATION: Patience(2 * MINUTE, 2 * MINUTE),
}


class Limit(NamedTuple):
    """How much of a resource the cluster has at least and at most: cores, bytes, accelerators."""

    least: int
    most: int


@dataclass(frozen=True, slots=True)
class ScalingSettings:
    """See the module."""

    profile: Profile
    expander: str
    #: Patterns of the names of pools, most wanted first.
    priorities: tuple[str, ...]
    scan_interval: Duration
    patience: Patience
    #: In billionths of what a node has.
    utilization_threshold: int
    provision_time: Duration
    limits: Mapping[str, Limit]
    #: Whether pools are made for pods that fit none.
    makes_pools: bool

    def next_scan(self, start: Instant, now: Instant) -> Instant:
        """The first instant not before now at which the cluster is looked at: every so often since its start."""
        return start + -(-(now - start) // self.scan_interval) * self.scan_interval


def settings_of(cluster: Obj) -> ScalingSettings:
    """The settings of a Cluster."""
    said: Mapping[str, Any] = cluster["spec"].get("autoscaling") or _NOTHING
    profile = Profile(said.get("profile", Profile.BALANCED.value))
    unneeded, after_add = _PATIENCE[profile]
    provisioning = said.get("autoProvisioning")
    return ScalingSettings(
        profile=profile,
        expander=said.get("expander", "least-waste"),
        priorities=tuple(said.get("priorities") or ()),
        scan_interval=_duration(said, "scanInterval", _SCAN_INTERVAL),
        patience=Patience(_duration(said, "unneededTime", unneeded), after_add),
        utilization_threshold=quantity.parse(said.get("utilizationThreshold", _THRESHOLD)),
        provision_time=_duration(said, "maxNodeProvisionTime", _PROVISION_TIME),
        limits={row["resource"]: _limit(row) for row in (provisioning or _NOTHING).get("limits") or ()},
        makes_pools=provisioning is not None,
    )


def _duration(said: Mapping[str, Any], field: str, default: Duration) -> Duration:
    return parse_duration(said[field]) if field in said else default


def _limit(row: Mapping[str, Any]) -> Limit:
    unit = _GIGABYTE if row["resource"] == "memory" else 1
    return Limit(row.get("min", 0) * unit, row["max"] * unit)
