"""Failed machines, and machines that do not become nodes in time: delete them, and put their groups into backoff.

Sources: kubernetes-sigs/cluster-autoscaler, pkg/clusterstate and core/static_autoscaler.go
(deleteCreatedNodesWithErrors, removeOldUnregisteredNodes).
"""

from collections.abc import Sequence
from typing import Final

from batchyard.api import scheme
from batchyard.api.meta import Key, Obj, with_path
from batchyard.autoscaler.expander import Backoff, ScaleUpFailure, after_failure, backoff_key, write_backoffs
from batchyard.autoscaler.index import BACKOFFS, STATUS, ScalingIndex
from batchyard.autoscaler.machines import MachineRecord
from batchyard.autoscaler.node_groups import GroupName, NodeGroup
from batchyard.base.instant import SECOND, Duration, Instant
from batchyard.cloud.catalog.instances import begins_at, find_reservation
from batchyard.interfaces.client import Create, Delete, Reader, Update, Write
from batchyard.interfaces.controller import EventRecord

_TIMEOUT: Final = "timeout"
_NOT_READY: Final = "RESERVATION_NOT_READY"


class Failures:
    """The machines to delete, the backoffs and the Events of one loop."""

    def __init__(self, index: ScalingIndex, reader: Reader, now: Instant) -> None:
        self._index = index
        self._reader = reader
        self._now = now
        self._groups = {group.name: group for group in index.all_groups() if group.is_autoscaled}
        #: The machines to delete, by name.
        self.machines: dict[str, MachineRecord] = {}
        self.backoffs: dict[str, Backoff] = dict(index.backoffs)
        self.events: list[EventRecord] = []
        self.look_at: Instant | None = None

    def find(self) -> None:
        """Find failed and late machines."""
        for machine in self._index.machines.failed.values():
            self._fail(machine, self._error(machine))
        for machine in self._index.machines.coming.values():
            group = self._groups.get(machine.group)
            if group is None or self._index.settings is None:
                continue
            limit = group.provision_time(self._index.settings)
            if machine.created + limit > self._now:
                due = machine.created + limit
                self.look_at = due if self.look_at is None else min(due, self.look_at)
            else:
                message = f"Nodes added to group {group.id} failed to register within {_format_duration(limit)}"
                self._fail(machine, ScaleUpFailure(_TIMEOUT, message))

    def count_of(self, group: GroupName) -> int:
        """Return how many machines of a group are to be deleted and still count for its size."""
        return sum(machine.counts for machine in self.machines.values() if machine.group == group)

    def writes(self) -> list[Write]:
        """Return the writes. Backoffs come first: a deleted machine without one would be requested again at once."""
        deletions: list[Write] = [Delete(Key(scheme.INSTANCE, "", name)) for name in self.machines]
        return [*self._kept_backoffs(), *deletions]

    def _fail(self, machine: MachineRecord, failure: ScaleUpFailure) -> None:
        group = self._groups.get(machine.group)
        if group is None or machine.name in self.machines:
            return
        together = self._together(group, machine)
        if len(together) == group.hosts:
            self._back_off(group, failure)
        self.machines.update({each.name: each for each in together})

    def _back_off(self, group: NodeGroup, failure: ScaleUpFailure) -> None:
        """Put a group into backoff. The caller skips incomplete slices, which are not the group's fault."""
        key = backoff_key(group)
        known = self.backoffs.get(key)
        self.backoffs[key] = after_failure(known, failure, self._now)
        if self.backoffs[key] is not known:
            self._record_event(group, failure)

    def _together(self, group: NodeGroup, machine: MachineRecord) -> Sequence[MachineRecord]:
        """Return the machines that are deleted together: a slice is deleted as a whole."""
        if group.hosts == 1:
            return (machine,)
        return [each for each in self._index.machines.of_group(group.name).values() if not each.is_leaving]

    def _error(self, machine: MachineRecord) -> ScaleUpFailure:
        """Return the cloud's error for a failed machine."""
        instance = self._reader.get(Key(scheme.INSTANCE, "", machine.name))
        error = ((instance or {}).get("status") or {}).get("error") or {}
        code = error.get("code") or "OTHER"
        group = self._groups.get(machine.group)
        starts = self._start_of(group.reservation) if group is not None and code == _NOT_READY else None
        return ScaleUpFailure(code, error.get("message") or "", starts)

    def _start_of(self, name: str | None) -> Instant | None:
        """Return the start time of a reservation."""
        cluster = self._index.cluster
        if cluster is None:
            return None
        reservation = None if name is None else find_reservation(cluster, name)
        return None if reservation is None else begins_at(cluster, reservation)

    def _record_event(self, group: NodeGroup, failure: ScaleUpFailure) -> None:
        is_late = failure.code == _TIMEOUT
        reason = "ScaleUpTimedOut" if is_late else "FailedToScaleUpGroup"
        message = failure.message if is_late else f"Scale-up failed for group {group.id}: {failure.message}"
        self.events.append(EventRecord(Key(scheme.NODE_POOL, "", group.name.pool), "Warning", reason, message))

    def _kept_backoffs(self) -> list[Write]:
        """Return the write that stores the backoffs, if they changed."""
        if self.backoffs == self._index.backoffs:
            return []
        text, known = write_backoffs(self.backoffs, self._now), self._reader.get(STATUS)
        if known is not None:
            return [Update(with_path(known, ("data", BACKOFFS), text))]
        return [Create(_status(text))]


def _status(text: str) -> Obj:
    metadata = {"name": STATUS.name, "namespace": STATUS.namespace}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {BACKOFFS: text}}


def _format_duration(duration: Duration) -> str:
    """Format a duration as in Go: 15m0s."""
    minutes, seconds = divmod(duration // SECOND, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes}m{seconds}s" if hours else f"{minutes}m{seconds}s"
