"""How the zones of the cluster fare: how many of their nodes are ready, and when one was last given up."""

from typing import NamedTuple

from batchyard.api import well_known
from batchyard.api.meta import Obj, label
from batchyard.base.instant import Duration, Instant
from batchyard.core.lifecycle import node as lifecycle
from batchyard.core.lifecycle.disruption import ZoneState, eviction_interval, is_everything_lost, zone_state


class _Known(NamedTuple):
    """What is known of a node."""

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
        """Note that a node is given up."""
        self.given_up_at = at if self.given_up_at is None else max(at, self.given_up_at)

    def fares_otherwise(self) -> bool:
        """Look how the zone fares now, and tell whether it is otherwise than before."""
        before = (self.state, self.interval)
        self.state = zone_state(self.ready, len(self.unready))
        self.interval = eviction_interval(self.state, self.ready + len(self.unready))
        return before != (self.state, self.interval)


class Zones:
    """An index of the nodes by zone, built from their events."""

    __slots__ = ("_nodes", "_zones")

    def __init__(self) -> None:
        self._nodes: dict[str, _Known] = {}
        self._zones: dict[str, _Zone] = {}

    def observe(self, name: str, node: Obj | None) -> bool:
        """Take note of a node as it is now, None if it is no more; tell whether a zone fares otherwise than before."""
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
        changes = [self._zones[zone].fares_otherwise() for zone in touched]
        return any(changes)

    def unready(self) -> list[str]:
        """The names of all nodes that are not ready."""
        return [name for zone in self._zones.values() for name in zone.unready]

    def give_up(self, name: str, at: Instant) -> None:
        """Note that a node is given up, even before that is written."""
        self._zones[self._nodes[name].zone].give_up(at)

    def is_everything_lost(self) -> bool:
        """Whether no zone with nodes has one that is ready."""
        return is_everything_lost(zone.state for zone in self._zones.values() if zone.ready or zone.unready)

    def next_at(self, name: str) -> Instant | None:
        """When a node may be given up; None: not as things stand."""
        node = self._nodes.get(name)
        zone = None if node is None else self._zones[node.zone]
        if zone is None or zone.interval is None:
            return None
        return 0 if zone.given_up_at is None else zone.given_up_at + zone.interval

    def _add(self, name: str, node: _Known) -> None:
        zone = self._zones.setdefault(node.zone, _Zone())
        if node.is_ready:
            zone.ready += 1
        else:
            zone.unready[name] = None
        if node.given_up_at is not None:
            zone.give_up(node.given_up_at)

    def _remove(self, name: str, node: _Known) -> None:
        zone = self._zones[node.zone]
        if node.is_ready:
            zone.ready -= 1
        else:
            del zone.unready[name]


def _known(node: Obj) -> _Known:
    zone = f"{label(node, well_known.REGION) or ''}:{label(node, well_known.ZONE) or ''}"
    return _Known(zone, lifecycle.readiness(node) == "True", lifecycle.given_up_at(node))
