"""ClusterRoles that are made of others: they have the rules of all whose labels their aggregationRule selects.

Source: Kubernetes's pkg/controller/clusterroleaggregation.
"""

from collections.abc import Iterable
from typing import Any

from batchyard.api import scheme
from batchyard.api.meta import Key, Obj, key_of
from batchyard.api.selectors import selector
from batchyard.base.instant import Instant
from batchyard.ports.client import EventType, Reader, Update, WatchEvent
from batchyard.ports.controller import Outcome


class ClusterRoleAggregation:
    """See the module."""

    name = "clusterrole-aggregation"
    rank = 0
    kinds = (scheme.CLUSTER_ROLE,)

    def __init__(self) -> None:
        #: Those that are made of others.
        self._aggregates: dict[Key, None] = {}

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """All that are made of others: any may be made of the one that has changed."""
        if event.type is not EventType.DELETED and event.obj.get("aggregationRule"):
            self._aggregates[event.key] = None
        else:
            self._aggregates.pop(event.key, None)
        return list(self._aggregates)

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> Outcome:
        """Give it the rules of those it is made of, each once."""
        role = reader.get(key)
        if role is None or not role.get("aggregationRule"):
            return Outcome()
        rules: list[Any] = []
        for other in reader.list(scheme.CLUSTER_ROLE):
            if key_of(other) != key and _is_part(other, role):
                rules += [rule for rule in other.get("rules") or () if rule not in rules]
        return Outcome() if rules == (role.get("rules") or []) else Outcome([Update({**role, "rules": rules})])


def _is_part(other: Obj, role: Obj) -> bool:
    labels = other["metadata"].get("labels") or {}
    selectors = map(selector, role["aggregationRule"]["clusterRoleSelectors"])
    return any(each is not None and each.matches(labels) for each in selectors)
