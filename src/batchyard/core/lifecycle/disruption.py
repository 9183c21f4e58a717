"""How fast nodes that are not ready are given up, by how their zone fares.

Where most of a zone is lost the fault is rather with the network than with its nodes, so nodes are given up slowly or
not at all. Source: pkg/controller/nodelifecycle (ComputeZoneState, handleDisruption) and the defaults of
kube-controller-manager's flags.
"""

from collections.abc import Iterable
from enum import StrEnum
from typing import Final

from batchyard.base.instant import SECOND, Duration

#: Between two nodes of one zone: node-eviction-rate, secondary-node-eviction-rate.
EVICTION_INTERVAL: Final = 10 * SECOND
SLOW_EVICTION_INTERVAL: Final = 100 * SECOND
#: A larger zone goes on slowly, a smaller one stops: large-cluster-size-threshold.
SMALL_ZONE_MAX: Final = 50
#: The share of nodes, in percent, from which on a zone is disrupted: unhealthy-zone-threshold.
UNHEALTHY_PERCENT: Final = 55


class ZoneState(StrEnum):
    """How a zone fares."""

    NORMAL = "Normal"
    PARTIAL_DISRUPTION = "PartialDisruption"
    FULL_DISRUPTION = "FullDisruption"


def zone_state(ready: int, unready: int) -> ZoneState:
    """The state of a zone with so many nodes."""
    if unready and not ready:
        return ZoneState.FULL_DISRUPTION
    if unready > 2 and 100 * unready >= UNHEALTHY_PERCENT * (ready + unready):
        return ZoneState.PARTIAL_DISRUPTION
    return ZoneState.NORMAL


def is_everything_lost(states: Iterable[ZoneState]) -> bool:
    """Whether no zone has a node that is ready: then nobody is driven out anywhere."""
    return all(state is ZoneState.FULL_DISRUPTION for state in states)


def eviction_interval(state: ZoneState, nodes: int) -> Duration | None:
    """The time between two nodes of a zone that are given up; None: none is."""
    if state is not ZoneState.PARTIAL_DISRUPTION:
        return EVICTION_INTERVAL
    return SLOW_EVICTION_INTERVAL if nodes > SMALL_ZONE_MAX else None
