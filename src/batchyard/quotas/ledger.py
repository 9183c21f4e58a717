"""ResourceQuota ledger: the usage of each quota, updated incrementally.

A quota is counted on first use, and from then on with each change of a matching object. The usage of each object is
stored, so an already counted change has no effect: callers may report it before or after the write.
"""

from collections.abc import Iterable, Sequence

from batchyard.api import scheme
from batchyard.api.custom_kinds import DEFINITION, is_served, kind_of
from batchyard.api.meta import Key, Obj, key_of
from batchyard.api.quantity import QuantityFormat, formatted
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


class QuotaTally:
    """The usage of one quota, by object."""

    __slots__ = ("_charges", "_families", "_late_after", "_scopes", "is_complete", "kinds", "spec", "used")

    def __init__(self, spec: Obj, reader: Reader) -> None:
        self.spec = spec
        self.used: dict[str, int] = {}
        #: Whether the kinds of all its resources are known.
        self.is_complete = True
        #: The count names for each kind that it limits.
        self.kinds: dict[str, tuple[str, ...]] = {}
        self._families: dict[str, QuantityFormat] = {}
        self._scopes = scopes_of(spec)
        self._charges: dict[Key, Usage] = {}
        #: Terminating pods, each with the end of its grace period; from then on their compute usage does not count.
        self._late_after: dict[Key, Instant] = {}
        for name in sorted(spec.get("hard") or ()):
            self._bound(name, reader)

    def shown(self, name: str) -> str:
        """Return the usage of a resource in Kubernetes's format."""
        return formatted(self.used[name], self._families.get(name, QuantityFormat.DECIMAL))

    def is_about(self, obj: Obj, kind: str) -> bool:
        """Report whether it limits the usage of an object."""
        return kind in self.kinds and is_in_scope(obj, kind, self._scopes)

    def charge(self, obj: Obj, kind: str) -> Usage:
        """Return the usage of an object in the limited resources."""
        if not self.is_about(obj, kind):
            return {}
        return {name: amount for name, amount in usage(obj, kind, self.kinds[kind]).items() if name in self.used}

    def count(self, key: Key, obj: Obj | None) -> bool:
        """Count a changed or deleted (None) object. Return whether usage changes, now or later."""
        was_late_after = self._late_after.pop(key, None)
        if obj is not None and "deletionTimestamp" in obj["metadata"] and key.kind == scheme.POD:
            grace = obj["metadata"].get("deletionGracePeriodSeconds") or 0
            self._late_after[key] = parse_time(obj["metadata"]["deletionTimestamp"]) + grace * SECOND
        is_changed = self._replace(key, {} if obj is None else self.charge(obj, key.kind), obj)
        return is_changed or self._late_after.get(key) != was_late_after

    def release_late(self, now: Instant) -> Instant | None:
        """Release the usage of pods past their grace period. Return when the next one is due."""
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
        """Set up a limited resource, and the kind that uses it."""
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


class QuotaLedger:
    """The tallies of the quotas in use, by Namespace."""

    def __init__(self) -> None:
        self._tallies: dict[str, dict[Key, QuotaTally]] = {}

    def observe(self, event: WatchEvent) -> Sequence[Key]:
        """Count a change. Return the quotas whose usage changed."""
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

    def tally(self, quota: Obj, reader: Reader) -> QuotaTally:
        """Return the usage of a quota."""
        key, spec = key_of(quota), quota.get("spec") or {}
        tallies = self._tallies.setdefault(key.namespace, {})
        known = tallies.get(key)
        if known is not None and (known.spec is spec or known.spec == spec):
            return known
        tally = tallies[key] = QuotaTally(spec, reader)
        for kind in tally.kinds:
            for obj in reader.list(kind, key.namespace):
                tally.count(key_of(obj), obj)
        return tally

    def _forget_incomplete(self) -> Sequence[Key]:
        """Drop the tallies with unknown kinds after a change of a CustomResourceDefinition; they are recounted."""
        found = [key for tallies in self._tallies.values() for key, tally in tallies.items() if not tally.is_complete]
        for key in found:
            del self._tallies[key.namespace][key]
        return found
