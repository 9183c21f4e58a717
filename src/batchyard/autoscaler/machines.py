"""Index of the machines of all pools, from watch events of Instances."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from batchyard.api import well_known
from batchyard.api.meta import Obj, annotation, with_path
from batchyard.api.times import parse_time
from batchyard.autoscaler.node_groups import GroupName
from batchyard.base.instant import SECOND, Instant
from batchyard.cloud.catalog.instances import BOOTING, FAILED, PROVISIONING, RUNNING, is_leaving, phase_of
from batchyard.interfaces.client import EventType, WatchEvent

_COMING = ("", PROVISIONING, BOOTING, RUNNING)


class MachineRecord(NamedTuple):
    """The fields of an Instance that the autoscaler reads."""

    name: str
    group: GroupName
    has_failed: bool
    #: Whether it may still become a node.
    may_come: bool
    is_leaving: bool
    created: Instant
    #: Whether it was created with the cluster.
    is_initial: bool
    resize_request: str

    @property
    def counts(self) -> bool:
        """Whether it counts for the size of its group."""
        return not (self.is_leaving or self.has_failed)


class MachineIndex:
    """Machines by name and by group, with group sizes."""

    def __init__(self) -> None:
        self._machines: dict[str, MachineRecord] = {}
        self._of_group: dict[GroupName, dict[str, MachineRecord]] = {}
        self._sizes: dict[GroupName, int] = {}
        self._leaving: dict[GroupName, int] = {}
        #: Failed machines, by name.
        self.failed: dict[str, MachineRecord] = {}
        #: Machines that may become nodes but are not known to be ready, by name.
        self.coming: dict[str, MachineRecord] = {}

    @property
    def sizes(self) -> Mapping[GroupName, int]:
        """The number of counting machines by group."""
        return self._sizes

    @property
    def leaving(self) -> Mapping[GroupName, int]:
        """The number of terminating machines by group."""
        return self._leaving

    def get(self, name: str) -> MachineRecord | None:
        """Return a machine by name."""
        return self._machines.get(name)

    def of_group(self, group: GroupName) -> Mapping[str, MachineRecord]:
        """Return the machines of a group by name, in whatever state."""
        return self._of_group.get(group) or {}

    def last_added(self) -> Mapping[GroupName, Instant]:
        """Return the creation time of each group's newest machine; initial machines are omitted."""
        times: dict[GroupName, Instant] = {}
        for group, machines in self._of_group.items():
            added = [machine.created for machine in machines.values() if not machine.is_initial]
            if added:
                times[group] = max(added)
        return times

    def note(self, event: WatchEvent) -> bool:
        """Apply a watch event; return whether the machine changed."""
        machine = _machine(event.obj)
        before = self._machines.get(machine.name)
        self._drop(machine.name)
        if event.type is not EventType.DELETED:
            self._add(machine)
        return self._machines.get(machine.name) != before

    def note_ready(self, name: str) -> None:
        """Record that a machine has become a node."""
        self.coming.pop(name, None)

    def _add(self, machine: MachineRecord) -> None:
        name, group = machine.name, machine.group
        self._machines[name] = machine
        self._of_group.setdefault(group, {})[name] = machine
        if machine.counts:
            self._sizes[group] = self._sizes.get(group, 0) + 1
        if machine.is_leaving:
            self._leaving[group] = self._leaving.get(group, 0) + 1
        elif machine.has_failed:
            self.failed[name] = machine
        elif machine.may_come:
            self.coming[name] = machine

    def _drop(self, name: str) -> None:
        machine = self._machines.pop(name, None)
        if machine is None:
            return
        group = machine.group
        del self._of_group[group][name]
        if not self._of_group[group]:
            del self._of_group[group]
        if machine.counts:
            self._sizes[group] -= 1
        if machine.is_leaving:
            self._leaving[group] -= 1
        self.failed.pop(name, None)
        self.coming.pop(name, None)


def _machine(instance: Obj) -> MachineRecord:
    metadata, spec, phase = instance["metadata"], instance["spec"], phase_of(instance)
    return MachineRecord(
        name=metadata["name"],
        group=GroupName(spec["pool"], spec["zone"]),
        has_failed=phase == FAILED,
        may_come=phase in _COMING,
        is_leaving=is_leaving(instance),
        created=parse_time(metadata["creationTimestamp"]),
        is_initial=annotation(instance, well_known.INITIAL_INSTANCE) is not None,
        resize_request=spec.get("resizeRequest") or "",
    )


# --- marks ---
#
# The autoscaler's taints on nodes: DeletionCandidate on unneeded nodes, ToBeDeleted on nodes to remove.
#
# Their value is the time in seconds, so that the autoscaler keeps no state. Source: kubernetes-sigs/cluster-autoscaler,
# pkg/utils/taints.


def marked_unneeded(node: Obj, now: Instant) -> Obj:
    """Return the node with the DeletionCandidate taint."""
    return _tainted(node, well_known.DELETION_CANDIDATE, "PreferNoSchedule", now)


def marked_needed(node: Obj) -> Obj:
    """Return the node without the DeletionCandidate taint."""
    return _without(node, (well_known.DELETION_CANDIDATE,))


def marked_going(node: Obj, now: Instant) -> Obj:
    """Return the node with the ToBeDeleted taint."""
    return _tainted(node, well_known.TO_BE_DELETED, "NoSchedule", now)


def marked_staying(node: Obj) -> Obj:
    """Return the node without both taints."""
    return _without(node, (well_known.TO_BE_DELETED, well_known.DELETION_CANDIDATE))


def _tainted(node: Obj, key: str, effect: str, now: Instant) -> Obj:
    taints: Sequence[Any] = (node.get("spec") or {}).get("taints") or ()
    taint = {"key": key, "value": str(now // SECOND), "effect": effect}
    return with_path(node, ("spec", "taints"), [*taints, taint])


def _without(node: Obj, keys: Sequence[str]) -> Obj:
    taints: Sequence[Any] = (node.get("spec") or {}).get("taints") or ()
    return with_path(node, ("spec", "taints"), [taint for taint in taints if taint["key"] not in keys] or None)
