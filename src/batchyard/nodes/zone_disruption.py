"""Zone disruption: the state of each zone, and when its next unready node may be tainted with NoExecute."""

from collections.abc import Iterable
from enum import StrEnum
from typing import Final, NamedTuple

from batchyard.api import well_known
from batchyard.api.meta import Obj, label
from batchyard.base.instant import SECOND, Duration, Instant
from batchyard.nodes import conditions as lifecycle

# --- disruption ---
#
# The rate of tainting unready nodes, depending on the state of their zone.
#
# If most of a zone is lost, the network is the more likely cause. Nodes are then tainted slowly or not at all.
# Source: pkg/controller/nodelifecycle (ComputeZoneState, handleDisruption) and the defaults of
# kube-controller-manager's flags.


#: The interval between two nodes of one zone: node-eviction-rate, secondary-node-eviction-rate.
EVICTION_INTERVAL: Final = 10 * SECOND
SLOW_EVICTION_INTERVAL: Final = 100 * SECOND
#: In a disrupted zone, up to this size evictions stop; above it they are slow: large-cluster-size-threshold.
SMALL_ZONE_MAX: Final = 50
#: The percentage of unready nodes from which a zone is disrupted: unhealthy-zone-threshold.
UNHEALTHY_PERCENT: Final = 55


class ZoneState(StrEnum):
    """The disruption state of a zone."""

    NORMAL = "Normal"
    PARTIAL_DISRUPTION = "PartialDisruption"
    FULL_DISRUPTION = "FullDisruption"


def zone_state(ready: int, unready: int) -> ZoneState:
    """Return the state of a zone with these numbers of nodes."""
    if unready and not ready:
        return ZoneState.FULL_DISRUPTION
    if unready > 2 and 100 * unready >= UNHEALTHY_PERCENT * (ready + unready):
        return ZoneState.PARTIAL_DISRUPTION
    return ZoneState.NORMAL


def is_everything_lost(states: Iterable[ZoneState]) -> bool:
    """Report whether no zone has a ready node; then no pods are evicted anywhere."""
    return all(state is ZoneState.FULL_DISRUPTION for state in states)


def eviction_interval(state: ZoneState, nodes: int) -> Duration | None:
    """Return the interval between two tainted nodes of a zone; None if none may be tainted."""
    if state is not ZoneState.PARTIAL_DISRUPTION:
        return EVICTION_INTERVAL
    return SLOW_EVICTION_INTERVAL if nodes > SMALL_ZONE_MAX else None


class _NodeRecord(NamedTuple):
    """The zone and readiness of a node, and when it got its NoExecute taint."""

    zone: str
    is_ready: bool
    given_up_at: Instant | None


class _Zone:
    """The nodes of a zone."""

    __slots__ = ("given_up_at", "interval", "ready", "state", "unready")

    def __init__(self) -> None:
        self.ready = 0
        self.unready: dict[str, None] = {}
        self.given_up_at: Instant | None = None
        self.state = ZoneState.NORMAL
        self.interval: Duration | None = None

    def give_up(self, at: Instant) -> None:
        """Record that a node was tainted."""
        self.given_up_at = at if self.given_up_at is None else max(at, self.given_up_at)

    def update_state(self) -> bool:
        """Update the state of the zone. Return whether it changed."""
        before = (self.state, self.interval)
        self.state = zone_state(self.ready, len(self.unready))
        self.interval = eviction_interval(self.state, self.ready + len(self.unready))
        return before != (self.state, self.interval)


class Zones:
    """An index of the nodes by zone, built from their events."""

    __slots__ = ("_nodes", "_zones")

    def __init__(self) -> None:
        self._nodes: dict[str, _NodeRecord] = {}
        self._zones: dict[str, _Zone] = {}

    def observe(self, name: str, node: Obj | None) -> bool:
        """Process a changed node, None if it is deleted. Return whether the state of a zone changed."""
        before, after = self._nodes.pop(name, None), None if node is None else _known(node)
        if after is not None:
            self._nodes[name] = after
        if before == after:
            return False
        touched: dict[str, None] = {}
        if before is not None:
            self._remove(name, before)
            touched[before.zone] = None
        if after is not None:
            self._add(name, after)
            touched[after.zone] = None
        changes = [self._zones[zone].update_state() for zone in touched]
        return any(changes)

    def unready(self) -> list[str]:
        """Return the names of all unready nodes."""
        return [name for zone in self._zones.values() for name in zone.unready]

    def give_up(self, name: str, at: Instant) -> None:
        """Record that a node is tainted, even before that is written."""
        self._zones[self._nodes[name].zone].give_up(at)

    def is_everything_lost(self) -> bool:
        """Report whether no zone with nodes has a ready one."""
        return is_everything_lost(zone.state for zone in self._zones.values() if zone.ready or zone.unready)

    def next_at(self, name: str) -> Instant | None:
        """Return when a node may be tainted; None if it currently may not."""
        node = self._nodes.get(name)
        zone = None if node is None else self._zones[node.zone]
        if zone is None or zone.interval is None:
            return None
        return 0 if zone.given_up_at is None else zone.given_up_at + zone.interval

    def _add(self, name: str, node: _NodeRecord) -> None:
        zone = self._zones.setdefault(node.zone, _Zone())
        if node.is_ready:
            zone.ready += 1
        else:
            zone.unready[name] = None
        if node.given_up_at is not None:
            zone.give_up(node.given_up_at)

    def _remove(self, name: str, node: _NodeRecord) -> None:
        zone = self._zones[node.zone]
        if node.is_ready:
            zone.ready -= 1
        else:
            del zone.unready[name]


def _known(node: Obj) -> _NodeRecord:
    zone = f"{label(node, well_known.REGION) or ''}:{label(node, well_known.ZONE) or ''}"
    return _NodeRecord(zone, lifecycle.readiness(node) == "True", lifecycle.given_up_at(node))
