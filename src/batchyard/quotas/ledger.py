"""What is used of each ResourceQuota, kept up to date by the changes.

A quota is counted once it is asked for, and from then on with each change of what it is about. What each object uses is
remembered, so a change that was counted already changes nothing: the ledger may be told of it before or after.
"""

from collections.abc import Iterable, Sequence

from batchyard.api import scheme
from batchyard.api.custom_kinds import DEFINITION, is_served, kind_of
from batchyard.api.meta import Key, Obj, key_of
from batchyard.api.quantity import Family, formatted
from batchyard.api.scheme import ServedKind
from batchyard.api.times import parse_time
from batchyard.base.instant import SECOND, Instant
from batchyard.interfaces.client import EventType, Reader, WatchEvent
from batchyard.quotas.usage import (
    COUNT,
    Usage,
    count_names,
    family_in,
    is_in_scope,
    kind_of_resource,
    left_of_late,
    scopes_of,
    usage,
)

_DELETED = EventType.DELETED


class Tally:
    """What is used of one quota, by whom."""

    __slots__ = ("_charges", "_families", "_late_after", "_scopes", "is_complete", "kinds", "spec", "used")

    def __init__(self, spec: Obj, reader: Reader) -> None:
        self.spec = spec
        self.used: dict[str, int] = {}
        #: Whether all that it bounds is of kinds that are known.
        self.is_complete = True
        #: The names to count by, for each kind it is about.
        self.kinds: dict[str, tuple[str, ...]] = {}
        self._families: dict[str, Family] = {}
        self._scopes = scopes_of(spec)
        self._charges: dict[Key, Usage] = {}
        #: Pods that use nothing any more from an instant on, though they may still be there.
        self._late_after: dict[Key, Instant] = {}
        for name in sorted(spec.get("hard") or ()):
            self._bound(name, reader)

    def shown(self, name: str) -> str:
        """What is used of a resource, as Kubernetes prints it."""
        return formatted(self.used[name], self._families.get(name, Family.DECIMAL))

    def is_about(self, obj: Obj, kind: str) -> bool:
        """Whether it bounds what an object uses."""
        return kind in self.kinds and is_in_scope(obj, kind, self._scopes)

    def charge(self, obj: Obj, kind: str) -> Usage:
        """What an object uses, or would use, of what is bounded."""
        if not self.is_about(obj, kind):
            return {}
        return {name: amount for name, amount in usage(obj, kind, self.kinds[kind]).items() if name in self.used}

    def count(self, key: Key, obj: Obj | None) -> bool:
        """Count an object as it is now, None if it is gone; whether that changes what is used, or will."""
        was_late_after = self._late_after.pop(key, None)
        if obj is not None and "deletionTimestamp" in obj["metadata"] and key.kind == scheme.POD:
            grace = obj["metadata"].get("deletionGracePeriodSeconds") or 0
            self._late_after[key] = parse_time(obj["metadata"]["deletionTimestamp"]) + grace * SECOND
        is_changed = self._replace(key, {} if obj is None else self.charge(obj, key.kind), obj)
        return is_changed or self._late_after.get(key) != was_late_after

    def release_late(self, now: Instant) -> Instant | None:
        """Count Pods no more that should be gone; when the next one should."""
        for key, until in list(self._late_after.items()):
            if until < now:
                del self._late_after[key]
                self._replace(key, left_of_late(self._charges.get(key, {})), None)
        return min(self._late_after.values(), default=None)

    def _replace(self, key: Key, new: Usage, obj: Obj | None) -> bool:
        old = self._charges.pop(key, {})
        if new:
            self._charges[key] = new
        if new == old:
            return False
        for name, amount in old.items():
            self.used[name] -= amount
        for name, amount in new.items():
            if not self.used[name] and obj is not None:
                self._families[name] = family_in(obj, name)
            self.used[name] += amount
        return True

    def _bound(self, name: str, reader: Reader) -> None:
        """Count what there is of a resource that is bounded."""
        kind = kind_of_resource(name)
        info = scheme.kind_info(kind) if kind else None
        if kind is None:
            info = next((each for each in _custom_kinds(reader) if name in count_names(each)), None)
            if info is None:
                self.is_complete = self.is_complete and not name.startswith(COUNT)
                return
        self.used[name] = 0
        if info is not None:
            self.kinds[info.constant] = count_names(info)


def _custom_kinds(reader: Reader) -> Iterable[ServedKind]:
    return [kind_of(definition) for definition in reader.list(DEFINITION) if is_served(definition)]


class Ledger:
    """See the module."""

    def __init__(self) -> None:
        self._tallies: dict[str, dict[Key, Tally]] = {}

    def observe(self, event: WatchEvent) -> Sequence[Key]:
        """Count a change; the quotas of which it changes what is used."""
        key = event.key
        if key.kind == DEFINITION:
            return self._forget_incomplete()
        tallies = self._tallies.get(key.namespace)
        if tallies is None:
            return ()
        if key.kind == scheme.RESOURCE_QUOTA and event.type is _DELETED:
            tallies.pop(key, None)
        obj = None if event.type is _DELETED else event.obj
        return [quota for quota, tally in tallies.items() if key.kind in tally.kinds and tally.count(key, obj)]

    def tally(self, quota: Obj, reader: Reader) -> Tally:
        """What is used of a quota."""
        key, spec = key_of(quota), quota.get("spec") or {}
        tallies = self._tallies.setdefault(key.namespace, {})
        known = tallies.get(key)
        if known is not None and (known.spec is spec or known.spec == spec):
            return known
        tally = tallies[key] = Tally(spec, reader)
        for kind in tally.kinds:
            for obj in reader.list(kind, key.namespace):
                tally.count(key_of(obj), obj)
        return tally

    def _forget_incomplete(self) -> Sequence[Key]:
        """A kind has come or changed that users define: what could not be counted is counted anew."""
        found = [key for tallies in self._tallies.values() for key, tally in tallies.items() if not tally.is_complete]
        for key in found:
            del self._tallies[key.namespace][key]
        return found
