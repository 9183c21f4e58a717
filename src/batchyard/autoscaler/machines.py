"""The autoscaler's index of machines, from watch events of Instances, and the taints that scale-down sets on nodes."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from batchyard.api import well_known
from batchyard.api.meta import Obj, annotation, with_path
from batchyard.api.times import parse_time
from batchyard.autoscaler.node_groups import GroupName
from batchyard.base.instant import SECOND, Instant
from batchyard.cloud.catalog.instances import BOOTING, FAILED, PROVISIONING, RUNNING, is_being_deleted, phase_of
from batchyard.interfaces.client import EventType, WatchEvent

_UPCOMING_NODE_PHASES = ("", PROVISIONING, BOOTING, RUNNING)


class MachineRecord(NamedTuple):
    """The fields of an Instance (one cloud machine) that the autoscaler uses."""

    name: str
    group: GroupName
    has_failed: bool
    #: Whether the machine may still become a node.
    may_become_node: bool
    is_being_deleted: bool
    created_at: Instant
    #: Whether the machine was created with the Cluster.
    is_initial: bool
    resize_request: str

    @property
    def is_counted(self) -> bool:
        """Whether the machine counts for the size of its node group: it has not failed and is not being deleted."""
        return not (self.is_being_deleted or self.has_failed)


class MachineIndex:
    """The machines of all node pools by name and by node group, and the sizes of node groups."""

    def __init__(self) -> None:
        self._machines: dict[str, MachineRecord] = {}
        self._machines_by_group: dict[GroupName, dict[str, MachineRecord]] = {}
        self._sizes: dict[GroupName, int] = {}
        self._terminating_counts: dict[GroupName, int] = {}
        #: The failed machines, by name.
        self.failed_machines: dict[str, MachineRecord] = {}
        #: By name: the machines that may become nodes and have not been ready yet.
        self.upcoming_machines: dict[str, MachineRecord] = {}

    @property
    def sizes(self) -> Mapping[GroupName, int]:
        """The number of machines by node group, without failed and terminating machines."""
        return self._sizes

    @property
    def terminating_counts(self) -> Mapping[GroupName, int]:
        """The number of terminating machines by node group."""
        return self._terminating_counts

    def get(self, name: str) -> MachineRecord | None:
        """Return the machine with this name; None if it is unknown."""
        return self._machines.get(name)

    def machines_of(self, group: GroupName) -> Mapping[str, MachineRecord]:
        """Return all machines of a node group by name, failed and terminating ones included."""
        return self._machines_by_group.get(group) or {}

    def last_creation_times(self) -> Mapping[GroupName, Instant]:
        """Return the creation time of each node group's newest machine; the Cluster's initial machines are ignored."""
        last_times_by_group: dict[GroupName, Instant] = {}
        for group, machines in self._machines_by_group.items():
            group_times = [machine.created_at for machine in machines.values() if not machine.is_initial]
            if group_times:
                last_times_by_group[group] = max(group_times)
        return last_times_by_group

    def observe_instance(self, event: WatchEvent) -> bool:
        """Update the index from an Instance's watch event; return whether its machine changed."""
        machine = _machine_record(event.obj)
        old_record = self._machines.get(machine.name)
        self._drop_machine(machine.name)
        if event.type is not EventType.DELETED:
            self._add_machine(machine)
        return self._machines.get(machine.name) != old_record

    def record_ready(self, name: str) -> None:
        """Record that the Node of a machine has become ready: the machine is no longer upcoming."""
        self.upcoming_machines.pop(name, None)

    def _add_machine(self, machine: MachineRecord) -> None:
        name, group = machine.name, machine.group
        self._machines[name] = machine
        self._machines_by_group.setdefault(group, {})[name] = machine
        if machine.is_counted:
            self._sizes[group] = self._sizes.get(group, 0) + 1
        if machine.is_being_deleted:
            self._terminating_counts[group] = self._terminating_counts.get(group, 0) + 1
        elif machine.has_failed:
            self.failed_machines[name] = machine
        elif machine.may_become_node:
            self.upcoming_machines[name] = machine

    def _drop_machine(self, name: str) -> None:
        machine = self._machines.pop(name, None)
        if machine is None:
            return
        group = machine.group
        del self._machines_by_group[group][name]
        if not self._machines_by_group[group]:
            del self._machines_by_group[group]
        if machine.is_counted:
            self._sizes[group] -= 1
        if machine.is_being_deleted:
            self._terminating_counts[group] -= 1
        self.failed_machines.pop(name, None)
        self.upcoming_machines.pop(name, None)


def _machine_record(instance: Obj) -> MachineRecord:
    metadata, spec, phase = instance["metadata"], instance["spec"], phase_of(instance)
    return MachineRecord(
        name=metadata["name"],
        group=GroupName(spec["pool"], spec["zone"]),
        has_failed=phase == FAILED,
        may_become_node=phase in _UPCOMING_NODE_PHASES,
        is_being_deleted=is_being_deleted(instance),
        created_at=parse_time(metadata["creationTimestamp"]),
        is_initial=annotation(instance, well_known.INITIAL_INSTANCE) is not None,
        resize_request=spec.get("resizeRequest") or "",
    )


# Taints that the autoscaler sets: DeletionCandidate on unneeded nodes, ToBeDeleted on nodes to remove.
#
# The value of a taint is its time in seconds, so that the autoscaler keeps no state. Source:
# kubernetes-sigs/cluster-autoscaler, pkg/utils/taints.


def taint_unneeded_node(node: Obj, now: Instant) -> Obj:
    """Return a copy of an unneeded node with the DeletionCandidate taint.

    The value of the taint is `now` in seconds since the epoch.
    """
    return _add_taint(node, well_known.DELETION_CANDIDATE, "PreferNoSchedule", now)


def untaint_needed_node(node: Obj) -> Obj:
    """Return a copy of a needed node without the DeletionCandidate taint."""
    return _remove_taints(node, (well_known.DELETION_CANDIDATE,))


def taint_to_be_deleted(node: Obj, now: Instant) -> Obj:
    """Return a copy of the node with the taint ToBeDeleted, whose value is `now` as Unix time in seconds."""
    return _add_taint(node, well_known.TO_BE_DELETED, "NoSchedule", now)


def untaint_to_be_deleted(node: Obj) -> Obj:
    """Return a copy of the node without the taints ToBeDeleted and DeletionCandidate."""
    return _remove_taints(node, (well_known.TO_BE_DELETED, well_known.DELETION_CANDIDATE))


def _add_taint(node: Obj, taint_key: str, effect: str, now: Instant) -> Obj:
    taints: Sequence[Any] = (node.get("spec") or {}).get("taints") or ()
    taint = {"key": taint_key, "value": str(now // SECOND), "effect": effect}
    return with_path(node, ("spec", "taints"), [*taints, taint])


def _remove_taints(node: Obj, taint_keys: Sequence[str]) -> Obj:
    taints: Sequence[Any] = (node.get("spec") or {}).get("taints") or ()
    return with_path(node, ("spec", "taints"), [taint for taint in taints if taint["key"] not in taint_keys] or None)
