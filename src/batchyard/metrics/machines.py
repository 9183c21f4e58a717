"""Our own metrics of machines and unschedulable pods: nodes by pool, machines by phase, failures of the cloud."""

from collections.abc import Iterator
from typing import Final

from batchyard.api import scheme, well_known
from batchyard.api.conditions import find_condition, is_true
from batchyard.api.meta import Key, Obj, label
from batchyard.api.views.pod_lifecycle import SCHEDULED
from batchyard.cloud.catalog.instances import FAILED, phase_of
from batchyard.interfaces.client import EventType, WatchEvent
from batchyard.metrics.definitions import metric
from batchyard.metrics.registry import Counters, Labels, text_of

_UNSCHEDULABLE: Final = "Unschedulable"
_STUCK: Final = "batchyard_pods_unschedulable"


class MachineMetrics:
    """The current numbers of nodes, machines and unschedulable pods, and a counter of failed machines."""

    def __init__(self) -> None:
        self._failures = Counters(metric("batchyard_instance_failures_total"))
        #: The family and the labels under which each object counts, and the count of each.
        self._counted: dict[Key, tuple[str, Labels]] = {}
        self._counts: dict[str, dict[Labels, int]] = {}

    def recall(self, event: WatchEvent) -> None:
        """Add an object that existed before the process started."""
        self._count(event)

    def observe(self, event: WatchEvent) -> None:
        """Apply a watch event."""
        self._count(event)
        obj, old = event.obj, event.old
        if event.key.kind == scheme.NAMESPACE and event.type is EventType.DELETED:
            self._counts.get(_STUCK, {}).pop((event.key.name,), None)
        if event.key.kind == scheme.INSTANCE and event.type is not EventType.DELETED and phase_of(obj) == FAILED:
            error = obj["status"].get("error") or {}
            if old is None or phase_of(old) != FAILED or (old["status"].get("error") or {}) != error:
                self._failures.add((obj["spec"]["pool"], error.get("code", "")))

    def texts(self) -> Iterator[str]:
        """Yield all families."""
        for name in ("batchyard_nodes", "batchyard_instances", _STUCK):
            yield text_of(metric(name), iter(self._counts.get(name, {}).items()))
        yield from self._failures.texts()

    def _count(self, event: WatchEvent) -> None:
        if event.key.kind not in _COUNTED:
            return
        new = None if event.type is EventType.DELETED else _counts_as(event.key, event.obj)
        old = self._counted.get(event.key)
        if new == old:
            return
        for counted, sign in ((old, -1), (new, 1)):
            if counted is not None:
                counts = self._counts.setdefault(counted[0], {})
                counts[counted[1]] = counts.get(counted[1], 0) + sign
        if new is None:
            del self._counted[event.key]
        else:
            self._counted[event.key] = new


_COUNTED: Final = (scheme.NODE, scheme.INSTANCE, scheme.POD)


def _counts_as(key: Key, obj: Obj) -> tuple[str, Labels] | None:
    if key.kind == scheme.NODE:
        status = "ready" if is_true(obj, "Ready") else "notready"
        return "batchyard_nodes", (label(obj, well_known.NODE_POOL) or "", status)
    if key.kind == scheme.INSTANCE:
        return "batchyard_instances", (obj["spec"]["pool"], phase_of(obj) or "Requested")
    if obj["spec"].get("nodeName"):
        return None
    scheduled = find_condition(obj, SCHEDULED)
    is_stuck = scheduled is not None and scheduled.get("reason") == _UNSCHEDULABLE
    return (_STUCK, (key.namespace,)) if is_stuck else None
