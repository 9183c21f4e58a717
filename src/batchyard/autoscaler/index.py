"""The autoscaler's index of the cluster, built from watch events, and the detection of failed machines.

Until the autoscaler first has work, most events are ignored. Then all objects are read once, and later events update
the index.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from batchyard.api import scheme, well_known
from batchyard.api.meta import Key, Obj, annotation, key_of, label, with_path
from batchyard.api.views.node import NodeView, namespace_labels, node_view
from batchyard.api.views.pods import PodView, pod_view
from batchyard.autoscaler import expander, node_groups
from batchyard.autoscaler.machines import MachineIndex, MachineRecord
from batchyard.autoscaler.provisioning_request_pods import (
    QUEUED_CLASS,
    consumed_request_name,
    resize_request_name,
    state_of,
)
from batchyard.autoscaler.scale_up import LoopContext
from batchyard.base.instant import SECOND, Duration, Instant
from batchyard.cloud.catalog.instances import find_reservation, reservation_start
from batchyard.cloud.catalog.nodes import awaits_drivers
from batchyard.interfaces.client import Create, Delete, EventType, Reader, Update, WatchEvent, Write
from batchyard.interfaces.controller import EventRecord
from batchyard.placement.cluster_snapshot import ClusterSnapshot

#: The ConfigMap with the backoffs, where upstream stores its status.
BACKOFFS_CONFIG_MAP: Final = Key(scheme.CONFIG_MAP, "kube-system", "cluster-autoscaler-status")
BACKOFFS_FIELD: Final = "backoffs"
WATCHED_KINDS: Final = (
    scheme.CLUSTER,
    scheme.NODE_POOL,
    scheme.INSTANCE,
    scheme.RESIZE_REQUEST,
    scheme.NODE,
    scheme.POD,
    scheme.NAMESPACE,
    scheme.CONFIG_MAP,
    scheme.PROVISIONING_REQUEST,
    scheme.POD_DISRUPTION_BUDGET,
)
_ALWAYS_OBSERVED_KINDS: Final = (scheme.CLUSTER, scheme.NODE_POOL, scheme.PROVISIONING_REQUEST)
_READ_ON_START: Final = (
    scheme.NAMESPACE,
    scheme.INSTANCE,
    scheme.NODE,
    scheme.POD,
    scheme.RESIZE_REQUEST,
    scheme.POD_DISRUPTION_BUDGET,
)
_DELETED: Final = EventType.DELETED


class NodeRecord(NamedTuple):
    """The fields of a Node that the autoscaler uses."""

    view: NodeView
    pool: str
    #: Whether the node's kubelet is still starting.
    is_upcoming: bool
    #: Whether an annotation disables the scale-down of the node.
    is_scale_down_disabled: bool
    #: The times of the DeletionCandidate and ToBeDeleted taints.
    unneeded_since: Instant | None
    draining_since: Instant | None


class ScalingIndex:
    """The autoscaler's index of nodes, machines, node pools, pending pods and ProvisioningRequests."""

    def __init__(self) -> None:
        self.cluster: Obj | None = None
        self.settings: node_groups.ScalingSettings | None = None
        self.nodes = ClusterSnapshot()
        self.machines = MachineIndex()
        self.pools: dict[str, Obj] = {}
        self.groups: dict[str, list[node_groups.NodeGroup]] = {}
        self.node_records: dict[str, NodeRecord] = {}
        #: The unschedulable pods that may trigger a scale-up, by uid.
        self.pending_pods: dict[str, PodView] = {}
        self.backoffs: dict[str, expander.Backoff] = {}
        #: ProvisioningRequests by key; queued requests also by the name of their ResizeRequest.
        self.requests: dict[Key, Obj] = {}
        self.request_by_resize_request: dict[str, Key] = {}
        #: By ProvisioningRequest: the uids of bound pods that consume its capacity.
        self.consumers: dict[Key, dict[str, None]] = {}
        #: By name of each open ResizeRequest: its pool.
        self._pool_by_resize_request: dict[str, str] = {}
        self._draining_nodes: dict[str, None] = {}
        self._is_live = False
        self._handlers: dict[str, Callable[[WatchEvent], bool]] = {
            scheme.CLUSTER: self._observe_cluster,
            scheme.NODE_POOL: self._observe_pool,
            scheme.INSTANCE: self._observe_instance,
            scheme.RESIZE_REQUEST: self._observe_resize_request,
            scheme.NODE: self._observe_node,
            scheme.POD: self._observe_pod,
            scheme.NAMESPACE: self._observe_namespace,
            scheme.CONFIG_MAP: self._observe_config_map,
            scheme.PROVISIONING_REQUEST: self._observe_provisioning_request,
            scheme.POD_DISRUPTION_BUDGET: self._observe_budget,
        }

    @property
    def is_needed(self) -> bool:
        """Whether the autoscaler has work: an autoscaled pool, auto-provisioning, or a ProvisioningRequest."""
        if self.cluster is None or self.settings is None:
            return False
        return self.settings.makes_pools or bool(self.requests) or any(map(self.is_pool_autoscaled, self.groups))

    def is_pool_autoscaled(self, pool: str) -> bool:
        """Return whether the node pool with this name is autoscaled."""
        return any(group.is_autoscaled for group in self.groups.get(pool, ())[:1])

    @property
    def draining_nodes(self) -> Sequence[str]:
        """The names of nodes with the ToBeDeleted taint."""
        return tuple(self._draining_nodes)

    def is_requested(self, pool: str) -> bool:
        """Return whether an open ResizeRequest requests machines of the node pool."""
        return pool in self._pool_by_resize_request.values()

    def all_groups(self) -> Iterable[node_groups.NodeGroup]:
        """Return the node groups of all pools."""
        return [group for groups in self.groups.values() for group in groups]

    # --- events ---

    def observe(self, event: WatchEvent) -> bool:
        """Update the index from a watch event; return whether the event requires a scan."""
        if not self._is_live and event.key.kind not in _ALWAYS_OBSERVED_KINDS:
            return False
        return self._handlers[event.key.kind](event)

    def catch_up(self, reader: Reader) -> None:
        """Start to observe the kinds that `observe` ignored until now; do nothing in later calls.

        Read the existing objects of these kinds into the index.
        """
        if self._is_live:
            return
        self._is_live = True
        status = reader.get(BACKOFFS_CONFIG_MAP)
        objects = [obj for kind in _READ_ON_START for obj in reader.list(kind)] + ([] if status is None else [status])
        for obj in objects:
            key = key_of(obj)
            self._handlers[key.kind](WatchEvent(EventType.ADDED, key, obj, None, 0))

    def _observe_budget(self, event: WatchEvent) -> bool:
        if event.type is _DELETED:
            self.nodes.budgets.remove(event.key)
        else:
            self.nodes.budgets.set(event.obj)
        return True

    def _observe_cluster(self, event: WatchEvent) -> bool:
        self.cluster = None if event.type is _DELETED else event.obj
        self.settings = None if self.cluster is None else node_groups.settings_of(self.cluster)
        for name, pool in self.pools.items():
            self._set_groups(name, pool)
        return True

    def _observe_pool(self, event: WatchEvent) -> bool:
        name, old_pool = event.key.name, self.pools.get(event.key.name)
        if event.type is _DELETED:
            self.pools.pop(name, None)
            self.groups.pop(name, None)
            return True
        self.pools[name] = event.obj
        if (
            old_pool is not None
            and old_pool["spec"] is event.obj["spec"]
            and _is_being_deleted(old_pool) == _is_being_deleted(event.obj)
        ):
            return False
        self._set_groups(name, event.obj)
        return True

    def _set_groups(self, name: str, pool: Obj) -> None:
        is_pool_gone = self.cluster is None or _is_being_deleted(pool)
        self.groups[name] = [] if is_pool_gone or self.cluster is None else node_groups.groups_of(pool, self.cluster)

    def _observe_instance(self, event: WatchEvent) -> bool:
        is_changed = self.machines.observe_instance(event)
        node_record = self.node_records.get(event.key.name)
        if node_record is not None and not node_record.is_upcoming:
            self.machines.record_ready(event.key.name)
        frees_capacity = event.type is _DELETED and bool(self.pending_pods)
        return frees_capacity or (is_changed and self.is_pool_autoscaled(event.obj["spec"]["pool"]))

    def _observe_resize_request(self, event: WatchEvent) -> bool:
        resize_state = (event.obj.get("status") or {}).get("state") or ""
        if event.type is _DELETED or resize_state not in {"", "ACCEPTED"}:
            return self._pool_by_resize_request.pop(event.key.name, None) is not None
        self._pool_by_resize_request[event.key.name] = event.obj["spec"]["pool"]
        return False

    def _observe_node(self, event: WatchEvent) -> bool:
        name = event.key.name
        old_record = self.node_records.pop(name, None)
        self._draining_nodes.pop(name, None)
        if event.type is _DELETED:
            self.nodes.remove_node(name)
            return old_record is not None and self.is_pool_autoscaled(old_record.pool)
        node_record = self.node_records[name] = _node_record(event.obj)
        self.nodes.set_node(node_record.view)
        if node_record.draining_since is not None:
            self._draining_nodes[name] = None
        if not node_record.is_upcoming:
            self.machines.record_ready(name)
        if name in self.machines.upcoming_machines:
            return False  # its machine already counts as the future node
        return node_record != old_record and self.is_pool_autoscaled(node_record.pool)

    def _observe_pod(self, event: WatchEvent) -> bool:
        pod = pod_view(event.obj)
        if event.type is _DELETED or pod.is_terminal:
            return self._forget_pod(pod)
        if pod.node_name:
            return self._observe_bound_pod(pod, event.obj)
        return self._observe_unbound_pod(pod, event.obj)

    def _observe_bound_pod(self, pod: PodView, obj: Obj) -> bool:
        self.pending_pods.pop(pod.uid, None)
        old_pod = self.nodes.pod(pod.uid)
        if old_pod is not None and old_pod.shape is pod.shape and old_pod.labels == pod.labels:
            if old_pod.deleting == pod.deleting:
                return False
            self.nodes.update_pod(pod)
        else:
            self.nodes.withdraw_nomination(pod.uid)
            self.nodes.add_pod(pod, pod.node_name)
            if request_name := consumed_request_name(obj):
                key = Key(scheme.PROVISIONING_REQUEST, pod.namespace, request_name)
                self.consumers.setdefault(key, {})[pod.uid] = None
        return self._is_on_autoscaled_node(pod)

    def _observe_unbound_pod(self, pod: PodView, obj: Obj) -> bool:
        if pod.nominated_node != self.nodes.nominated_node_of(pod.uid):
            self.nodes.withdraw_nomination(pod.uid)
            if pod.nominated_node:
                self.nodes.nominate(pod, pod.nominated_node)
        is_unschedulable = pod.awaits_node and pod.unschedulable_message and not (pod.gated or pod.nominated_node)
        if not is_unschedulable or pod.priority < node_groups.EXPENDABLE_BELOW_PRIORITY or consumed_request_name(obj):
            self.pending_pods.pop(pod.uid, None)
            return False
        old_pod = self.pending_pods.get(pod.uid)
        self.pending_pods[pod.uid] = pod
        return old_pod is None or old_pod.shape is not pod.shape

    def _forget_pod(self, pod: PodView) -> bool:
        self.pending_pods.pop(pod.uid, None)
        self.nodes.withdraw_nomination(pod.uid)
        old_view = self.nodes.pod(pod.uid)
        if old_view is None:
            return False
        self.nodes.remove_pod(pod.uid)
        for uids in self.consumers.values():
            uids.pop(pod.uid, None)
        return self._is_on_autoscaled_node(old_view)

    def _is_on_autoscaled_node(self, pod: PodView) -> bool:
        node_record = self.node_records.get(pod.node_name)
        return node_record is not None and self.is_pool_autoscaled(node_record.pool)

    def _observe_namespace(self, event: WatchEvent) -> bool:
        if event.type is _DELETED:
            self.nodes.namespaces.pop(event.key.name, None)
        else:
            self.nodes.namespaces[event.key.name] = namespace_labels(event.obj)
        return False

    def _observe_config_map(self, event: WatchEvent) -> bool:
        if event.key == BACKOFFS_CONFIG_MAP:
            text = "" if event.type is _DELETED else (event.obj.get("data") or {}).get(BACKOFFS_FIELD, "")
            self.backoffs = expander.parse_backoffs(text)
        return False

    def _observe_provisioning_request(self, event: WatchEvent) -> bool:
        key = event.key
        is_queued = event.obj["spec"]["provisioningClassName"] == QUEUED_CLASS
        resize_request = resize_request_name(key.namespace, key.name)
        if event.type is _DELETED:
            self.requests.pop(key, None)
            self.request_by_resize_request.pop(resize_request, None)
            return True
        self.requests[key] = event.obj
        if is_queued:
            self.request_by_resize_request[resize_request] = key
        return event.old is None or state_of(event.old) is not state_of(event.obj)


def _node_record(node: Obj) -> NodeRecord:
    view = node_view(node)
    taint_values = {taint.key: taint.value for taint in view.taints}
    return NodeRecord(
        view=view,
        pool=label(node, well_known.NODE_POOL) or "",
        is_upcoming=awaits_drivers(node),
        is_scale_down_disabled=annotation(node, well_known.SCALE_DOWN_DISABLED) == "true",
        unneeded_since=_parse_taint_time(taint_values.get(well_known.DELETION_CANDIDATE)),
        draining_since=_parse_taint_time(taint_values.get(well_known.TO_BE_DELETED)),
    )


def _parse_taint_time(seconds_text: str | None) -> Instant | None:
    """Return the time in a taint's value; None without the taint, and 0 (long ago) if the value is invalid."""
    if seconds_text is None:
        return None
    return int(seconds_text) * SECOND if seconds_text.isdecimal() else 0


def _is_being_deleted(obj: Obj) -> bool:
    return "deletionTimestamp" in obj["metadata"]


# Detect machines that failed or do not become nodes in time: delete them, and put their groups into backoff.
#
# Sources: kubernetes-sigs/cluster-autoscaler, pkg/clusterstate and core/static_autoscaler.go
# (deleteCreatedNodesWithErrors, removeOldUnregisteredNodes).


_TIMEOUT_CODE: Final = "timeout"
_RESERVATION_NOT_READY: Final = "RESERVATION_NOT_READY"


class FailedMachines:
    """The failed machines that one scan deletes, the resulting backoffs of node groups, and the Events to record."""

    def __init__(self, index: ScalingIndex, reader: Reader, loop_context: LoopContext) -> None:
        self._index = index
        self._reader = reader
        self._loop_context = loop_context
        self._now = loop_context.now
        self._groups = {group.name: group for group in index.all_groups() if group.is_autoscaled}
        #: The failed machines to delete, by name.
        self.machines: dict[str, MachineRecord] = {}
        self.backoffs: dict[str, expander.Backoff] = dict(index.backoffs)
        self.events: list[EventRecord] = []
        self.requeue_at: Instant | None = None

    def detect(self) -> None:
        """Find the machines to delete because they failed or did not become nodes in time, and update the backoffs."""
        for machine in self._index.machines.failed_machines.values():
            self._record_failure(machine, self._machine_error(machine))
        for machine in self._index.machines.upcoming_machines.values():
            group = self._groups.get(machine.group)
            if group is None:
                continue
            time_limit = group.provision_time(self._loop_context.settings)
            if machine.created_at + time_limit > self._now:
                due_at = machine.created_at + time_limit
                self.requeue_at = due_at if self.requeue_at is None else min(due_at, self.requeue_at)
            else:
                message = f"Nodes added to group {group.id} failed to register within {_format_duration(time_limit)}"
                self._record_failure(machine, expander.ScaleUpFailure(_TIMEOUT_CODE, message))

    def failed_machine_count_in_size(self, group: node_groups.GroupName) -> int:
        """Return how many machines to delete in a node group are still included in its recorded size.

        These are the machines that did not become nodes in time. Failed machines are not included in the size.
        """
        return sum(machine.is_counted for machine in self.machines.values() if machine.group == group)

    def writes(self) -> list[Write]:
        """Return the writes that store backoffs and delete machines.

        Backoffs come first: otherwise a deleted machine would be requested again immediately.
        """
        deletions: list[Write] = [Delete(Key(scheme.INSTANCE, "", name)) for name in self.machines]
        return [*self._backoff_writes(), *deletions]

    def _record_failure(self, machine: MachineRecord, failure: expander.ScaleUpFailure) -> None:
        group = self._groups.get(machine.group)
        if group is None or machine.name in self.machines:
            return
        deleted_machines = self._machines_to_delete(group, machine)
        if len(deleted_machines) == group.hosts:
            self._back_off_group(group, failure)
        self.machines.update({each.name: each for each in deleted_machines})

    def _back_off_group(self, group: node_groups.NodeGroup, failure: expander.ScaleUpFailure) -> None:
        key = expander.backoff_key(group)
        old_backoff = self.backoffs.get(key)
        self.backoffs[key] = expander.backoff_after_failure(old_backoff, failure, self._now)
        if self.backoffs[key] is not old_backoff:
            self._record_failure_event(group, failure)

    def _machines_to_delete(self, group: node_groups.NodeGroup, machine: MachineRecord) -> Sequence[MachineRecord]:
        if group.hosts == 1:
            return (machine,)
        return [each for each in self._index.machines.machines_of(group.name).values() if not each.is_being_deleted]

    def _machine_error(self, machine: MachineRecord) -> expander.ScaleUpFailure:
        instance = self._reader.get(Key(scheme.INSTANCE, "", machine.name))
        error = ((instance or {}).get("status") or {}).get("error") or {}
        code = error.get("code") or "OTHER"
        group = self._groups.get(machine.group)
        available_at = (
            self._reservation_start(group.reservation_name)
            if group is not None and code == _RESERVATION_NOT_READY
            else None
        )
        return expander.ScaleUpFailure(code, error.get("message") or "", available_at)

    def _reservation_start(self, name: str | None) -> Instant | None:
        cluster = self._loop_context.cluster
        reservation = None if name is None else find_reservation(cluster, name)
        return None if reservation is None else reservation_start(cluster, reservation)

    def _record_failure_event(self, group: node_groups.NodeGroup, failure: expander.ScaleUpFailure) -> None:
        is_timeout = failure.code == _TIMEOUT_CODE
        reason = "ScaleUpTimedOut" if is_timeout else "FailedToScaleUpGroup"
        message = failure.message if is_timeout else f"Scale-up failed for group {group.id}: {failure.message}"
        self.events.append(EventRecord(Key(scheme.NODE_POOL, "", group.name.pool), "Warning", reason, message))

    def _backoff_writes(self) -> list[Write]:
        if self.backoffs == self._index.backoffs:
            return []
        text, config_map = expander.serialize_backoffs(self.backoffs, self._now), self._reader.get(BACKOFFS_CONFIG_MAP)
        if config_map is not None:
            return [Update(with_path(config_map, ("data", BACKOFFS_FIELD), text))]
        return [Create(_backoffs_config_map(text))]


def _backoffs_config_map(text: str) -> Obj:
    metadata = {"name": BACKOFFS_CONFIG_MAP.name, "namespace": BACKOFFS_CONFIG_MAP.namespace}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {BACKOFFS_FIELD: text}}


def _format_duration(duration: Duration) -> str:
    """Format a duration as Go does, such as 15m0s."""
    minutes, seconds = divmod(duration // SECOND, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes}m{seconds}s" if hours else f"{minutes}m{seconds}s"
