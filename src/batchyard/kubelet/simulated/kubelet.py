"""Simulated kubelets: run the pods of the simulated nodes, or all pods of a cluster without nodes.

One controller acts as the kubelets of all nodes. The state of a pod is in its status alone, so the controller resumes
correctly after a restart (batchyard.kubelet.simulated.pod_timeline). The kubelet of a machine that is off writes
nothing.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from batchyard.api import scheme
from batchyard.api.meta import Key, Obj, with_status
from batchyard.api.views.checkpoints import running_since
from batchyard.api.views.pod_lifecycle import is_terminal, is_terminating, node_of
from batchyard.base.instant import Duration, Instant
from batchyard.base.seeded_draws import triangular
from batchyard.cloud.catalog.instances import CRASHED, phase_of, since
from batchyard.cloud.catalog.machine_types import catalog_of
from batchyard.cloud.catalog.prices import POD_START, step_duration
from batchyard.interfaces.client import Delete, EventType, Reader, UpdateStatus, WatchEvent, Write
from batchyard.interfaces.controller import EventRecord, ReconcileResult
from batchyard.kubelet.simulated.checkpointing import (
    is_held,
    remove_work_finalizer,
    resume_from_checkpoint,
    saved_at_end,
    saved_at_loss,
)
from batchyard.kubelet.simulated.durations import plan_of
from batchyard.kubelet.simulated.node_machine import ANYWHERE, NodeMachine, machine_of
from batchyard.kubelet.simulated.pod_timeline import (
    EXPIRED,
    REJECTED,
    ContainerDelays,
    PodEventKind,
    SimulatedPod,
    next_pod_event,
    status_after,
)
from batchyard.nodes.conditions import readiness
from batchyard.nodes.pods_by_node import PodsByNode

_DELETED: Final = EventType.DELETED  # accessing an Enum member by name is slow


class Kubelets:
    """The controller of pods that are bound to simulated nodes, or without nodes, of all ungated pods."""

    name = "kubelets"
    rank = 0

    def __init__(
        self,
        pace: ContainerDelays | None = None,
        *,
        with_nodes: bool = True,
        local: str = "",
        runtime: Duration | None = None,
    ) -> None:
        self.kinds: Sequence[str] = (scheme.POD, scheme.NODE, scheme.INSTANCE) if with_nodes else (scheme.POD,)
        self._pace = pace or ContainerDelays()
        self._with_nodes = with_nodes
        #: The node that is not simulated; empty if all are.
        self._local = local
        #: The run time of pods without another run time; None for the Cluster's default.
        self._runtime = runtime
        self._pods = PodsByNode()

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """Return the pod, except for status updates by the kubelet itself, or the pods of a node that changed."""
        key = event.key
        if key.kind != scheme.POD:
            is_ours = key.name != self._local
            return self._pods.on(key.name) if is_ours and _is_news_of_machine(event) else ()
        if self._with_nodes:
            self._pods.observe(key, event.old, None if event.type is _DELETED else event.obj)
        return (key,) if self._is_ours(event.obj) and _is_news_of_pod(event) else ()

    def _is_ours(self, pod: Obj) -> bool:
        """Whether a pod is on a simulated node, ungated in a cluster without nodes, or has the kubelet's finalizer."""
        node = node_of(pod)
        if node and node == self._local:
            return False
        is_let_go = bool(node) if self._with_nodes else not pod["spec"].get("schedulingGates")
        return is_let_go or is_held(pod)

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Apply the next event of a pod if it is due; otherwise requeue."""
        pod = reader.get(key)
        if pod is None:
            return ReconcileResult()
        machine = self._machine(pod, reader, now)
        if not machine.is_on:
            return ReconcileResult([*_saved_before_crash(pod, reader), *remove_work_finalizer(pod)])
        if is_terminal(pod) and is_held(pod):
            return ReconcileResult(remove_work_finalizer(pod))
        if is_terminal(pod):
            return ReconcileResult([Delete(key, grace=0, uid=pod["metadata"]["uid"])] if _is_waited_for(pod) else [])
        plan = plan_of(pod, reader, self._runtime)
        life = SimulatedPod(pod, machine, plan, self._pace)
        turn = next_pod_event(life, now)
        if turn is None or turn.at > now:
            return ReconcileResult(requeue_at=None if turn is None else turn.at)
        after: Obj = with_status(pod, status_after(life, turn, now))
        writes: list[Write] = []
        if plan.checkpoint_every is not None:
            writes += saved_at_end(pod, after, plan.checkpoint_every, reader)
            after = resume_from_checkpoint(pod, after, plan.checkpoint_every, reader, now)
        following = None if is_terminal(after) else next_pod_event(life._replace(pod=after), now)
        events = _events(key, turn.what, after)
        return ReconcileResult([*writes, UpdateStatus(after)], events, None if following is None else following.at)

    def _machine(self, pod: Obj, reader: Reader, now: Instant) -> NodeMachine:
        if not self._with_nodes:
            return ANYWHERE
        name = node_of(pod)
        return machine_of(reader.get(Key(scheme.NODE, "", name)), reader.get(Key(scheme.INSTANCE, "", name)), now)


def _saved_before_crash(pod: Obj, reader: Reader) -> list[Write]:
    """Return the writes that record the checkpointed work of a pod whose machine has crashed."""
    instance = reader.get(Key(scheme.INSTANCE, "", node_of(pod)))
    if instance is None or phase_of(instance) != CRASHED or running_since(pod) is None:
        return []
    every = plan_of(pod, reader).checkpoint_every
    return [] if every is None else saved_at_loss(pod, since(instance), every, reader)


def _is_news_of_pod(event: WatchEvent) -> bool:
    """Whether a pod is new, changed in more than its status, or ended."""
    pod, old = event.obj, event.old
    if event.type is _DELETED:
        return False
    if old is None or pod["spec"] is not old["spec"] or _is_waited_for(pod) or is_held(pod):
        return True
    new_mark, old_mark = pod["metadata"].get("deletionTimestamp"), old["metadata"].get("deletionTimestamp")
    return bool(new_mark != old_mark)


def _is_waited_for(pod: Obj) -> bool:
    """Whether a terminating pod with a grace period has ended: its kubelet then deletes it."""
    return is_terminating(pod) and is_terminal(pod) and bool(pod["metadata"].get("deletionGracePeriodSeconds"))


def _is_news_of_machine(event: WatchEvent) -> bool:
    """Whether a node is new or changed its readiness, or its machine changed its phase."""
    if event.type is _DELETED or event.old is None:
        return event.type is not _DELETED
    if event.key.kind == scheme.NODE:
        return readiness(event.obj) != readiness(event.old)
    return _fate(event.obj) != _fate(event.old)


def _fate(instance: Obj) -> tuple[Any, Any, bool]:
    """Return the fields of a machine that affect its pods."""
    status: Mapping[str, Any] = instance.get("status") or {}
    return status.get("phase"), status.get("stopAt"), "deletionTimestamp" in instance["metadata"]


def _events(key: Key, what: PodEventKind, after: Obj) -> list[EventRecord]:
    """Return the Events for a pod, only for problems."""
    if what is PodEventKind.EXPIRE:
        return [EventRecord(key, "Normal", "DeadlineExceeded", EXPIRED)]
    if what is PodEventKind.REJECT:
        return [EventRecord(key, "Warning", "NodeShutdown", REJECTED)]
    if (
        what is PodEventKind.EXIT
        and not is_terminal(after)
        and "waiting" in after["status"]["containerStatuses"][0]["state"]
    ):
        return [EventRecord(key, "Warning", "BackOff", f"Back-off restarting failed container {_name(after)}")]
    return []


def _name(pod: Obj) -> str:
    """Format a container and its pod as kubelets do."""
    metadata = pod["metadata"]
    container = pod["spec"]["containers"][0]["name"]
    return f"{container} in pod {metadata['name']}_{metadata.get('namespace') or ''}({metadata['uid']})"


# --- start delays ---
# Start delays of simulated containers: pulling, unpacking and starting.
#
# They are drawn per pod from the seed and its uid, with the distribution in the Cluster's `times.podStart`.


def container_delays_of(cluster: Obj | None, seed: int) -> ContainerDelays:
    """Return the delays of a cluster; without a Cluster object all containers start immediately."""
    return ContainerDelays() if cluster is None else ContainerDelays(_start_delay(cluster, seed))


def _start_delay(cluster: Obj, seed: int) -> Callable[[Obj], Duration]:
    catalog = catalog_of(cluster)
    spread = step_duration(POD_START, catalog.machine(""), cluster, catalog)  # the same on every machine

    def delay(pod: Obj) -> Duration:
        return triangular(*spread, seed, POD_START, pod["metadata"]["uid"])

    return delay
