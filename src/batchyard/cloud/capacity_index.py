"""Index of machines in use and of pending requests, from watch events of Instances and ResizeRequests."""

from collections.abc import Mapping, Sequence
from typing import Final

from batchyard.api import scheme, well_known
from batchyard.api.meta import Obj, annotation
from batchyard.cloud.capacity_pool import CapacityKey
from batchyard.cloud.catalog.instances import (
    BOOTING,
    CRASHED,
    FAILED,
    PROVISIONING,
    RUNNING,
    STOPPING,
    is_leaving,
    phase_of,
)
from batchyard.interfaces.client import EventType, WatchEvent

#: The phases with a machine; a crashed Instance keeps its place until it is deleted.
_IN_USE: Final = frozenset({PROVISIONING, BOOTING, RUNNING, STOPPING, CRASHED})
_OPEN: Final = frozenset({"", "ACCEPTED"})


class CapacityIndex:
    """Machines in use by slot; pending Instances and ResizeRequests."""

    def __init__(self) -> None:
        self._held: dict[str, CapacityKey] = {}
        self._counts: dict[CapacityKey, int] = {}
        self._pending: dict[str, str] = {}
        self._requests: dict[str, None] = {}
        self._of_request: dict[str, dict[str, str]] = {}

    @property
    def in_use(self) -> Mapping[CapacityKey, int]:
        """The number of machines in use by slot."""
        return self._counts

    @property
    def pending(self) -> Mapping[str, str]:
        """The names of Instances without a machine, failed ones included, with their pools."""
        return self._pending

    @property
    def requests(self) -> Sequence[str]:
        """The names of open ResizeRequests."""
        return tuple(self._requests)

    def of_request(self, uid: str) -> Mapping[str, str]:
        """Return the phases of a ResizeRequest's Instances, by name."""
        return self._of_request.get(uid) or {}

    def hosts_in(self, pool: str) -> int:
        """Return how many machines of a pool are in use."""
        return sum(count for slot, count in self._counts.items() if slot.pool == pool)

    def note(self, event: WatchEvent) -> bool:
        """Apply a watch event; return whether it may help a pending request."""
        if event.key.kind == scheme.INSTANCE:
            helps = self._note_instance(event)
        elif event.key.kind == scheme.RESIZE_REQUEST:
            helps = self._note_request(event)
        else:
            helps = event.old is None or event.old["spec"] != event.obj["spec"]
        return helps and bool(self._pending or self._requests)

    def _note_instance(self, event: WatchEvent) -> bool:
        name, instance = event.key.name, event.obj
        gone = event.type is EventType.DELETED
        phase, slot = phase_of(instance), slot_of(instance)
        is_pending = not gone and not is_leaving(instance) and phase in {"", FAILED}
        freed = self._note_held(name, None if gone or not _holds(instance) else slot)
        new = is_pending and name not in self._pending
        if is_pending:
            self._pending[name] = slot.pool
        else:
            self._pending.pop(name, None)
        return self._note_of_request(instance, gone) or freed or new

    def _note_held(self, name: str, slot: CapacityKey | None) -> bool:
        """Count a machine in its current slot; return whether its previous place is free."""
        before = self._held.get(name)
        if before == slot:
            return False
        if before is not None:
            self._counts[before] -= 1
            if not self._counts[before]:
                del self._counts[before]
            del self._held[name]
        if slot is not None:
            self._held[name] = slot
            self._counts[slot] = self._counts.get(slot, 0) + 1
        return before is not None

    def _note_of_request(self, instance: Obj, gone: bool) -> bool:
        """Record the phase of a ResizeRequest's Instance; return whether it belongs to one."""
        request = annotation(instance, well_known.RESIZE_REQUEST_UID)
        if request is None:
            return False
        phases = self._of_request.setdefault(request, {})
        if gone:
            phases.pop(instance["metadata"]["name"], None)
        else:
            phases[instance["metadata"]["name"]] = phase_of(instance)
        if not phases:
            del self._of_request[request]
        return True

    def _note_request(self, event: WatchEvent) -> bool:
        """Keep a ResizeRequest while it is open; return whether it is new."""
        name, state = event.key.name, (event.obj.get("status") or {}).get("state") or ""
        new = name not in self._requests
        if event.type is not EventType.DELETED and state in _OPEN:
            self._requests[name] = None
            return new
        self._requests.pop(name, None)
        return False


def slot_of(instance: Obj) -> CapacityKey:
    """Return the slot of an Instance."""
    spec = instance["spec"]
    return CapacityKey(spec["pool"], spec["zone"], spec["machineType"], spec.get("provisioning", "standard"))


def _holds(instance: Obj) -> bool:
    """Whether the Instance occupies capacity. A crashed one that is being deleted does not."""
    phase = phase_of(instance)
    return phase in _IN_USE and not (phase == CRASHED and is_leaving(instance))
