"""The Instances of every pool and how many of its Nodes are ready, from the changes of both."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from batchyard.api import scheme, well_known
from batchyard.api.conditions import is_true
from batchyard.api.meta import Key, Obj, label
from batchyard.base.instant import Instant
from batchyard.core.machines.instances import CRASHED, FAILED, is_leaving, phase_of, since, stops_at
from batchyard.ports.client import EventType, WatchEvent


@dataclass(frozen=True, slots=True)
class Member:
    """An Instance as its pool sees it."""

    name: str
    zone: str
    phase: str
    since: Instant
    stops_at: Instant | None
    leaving: bool

    @property
    def key(self) -> Key:
        """The key of the Instance."""
        return Key(scheme.INSTANCE, "", self.name)


class PoolMembers:
    """Instances and ready Nodes by pool."""

    def __init__(self) -> None:
        self._members: dict[str, dict[str, Member]] = {}
        self._crashed: dict[str, dict[str, Member]] = {}
        self._ready: dict[str, dict[str, None]] = {}

    def of(self, pool: str) -> Mapping[str, Member]:
        """The Instances of a pool by name, in the order in which they came."""
        return self._members.get(pool) or {}

    def crashed(self, pool: str) -> Sequence[Member]:
        """The Instances of a pool that crashed and were not given up."""
        return tuple((self._crashed.get(pool) or {}).values())

    def ready(self, pool: str) -> int:
        """How many Nodes of a pool are ready."""
        return len(self._ready.get(pool) or ())

    def note_instance(self, event: WatchEvent) -> str | None:
        """Take note of a change of an Instance; its pool if that concerns it: that it boots does not."""
        pool, name = event.obj["spec"]["pool"], event.key.name
        before, after = self.of(pool).get(name), None if event.type is EventType.DELETED else _member(event.obj)
        if after is not None:
            self._members.setdefault(pool, {})[name] = after
        elif before is not None:
            del self._members[pool][name]
        if after is not None and after.phase == CRASHED and not after.leaving:
            self._crashed.setdefault(pool, {})[name] = after
        elif pool in self._crashed:
            self._crashed[pool].pop(name, None)
        return pool if _standing(before) != _standing(after) else None

    def note_node(self, event: WatchEvent) -> str | None:
        """Take note of a change of a Node; its pool if more or fewer are ready there."""
        pool = label(event.obj, well_known.NODE_POOL)
        if pool is None:
            return None
        before, name = self.ready(pool), event.key.name
        ready = event.type is not EventType.DELETED and is_true(event.obj, "Ready")
        if ready:
            self._ready.setdefault(pool, {})[name] = None
        elif pool in self._ready:
            self._ready[pool].pop(name, None)
        return pool if self.ready(pool) != before else None


def _standing(member: Member | None) -> tuple[bool, Instant | None, str] | None:
    """What a pool minds of a member."""
    if member is None:
        return None
    return member.leaving, member.stops_at, member.phase if member.phase in {CRASHED, FAILED} else ""


def _member(instance: Obj) -> Member:
    return Member(
        name=instance["metadata"]["name"],
        zone=instance["spec"]["zone"],
        phase=phase_of(instance),
        since=since(instance),
        stops_at=stops_at(instance),
        leaving=is_leaving(instance),
    )
