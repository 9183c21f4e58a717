"""Recovery of gangs from lost machines: the time until all pods of a gang run again, the lost work, and run costs.

A gang is the pods of a Workload, or of a JobSet without a queue. A loss begins when the first machine with a pod of the
gang is lost, for example because it crashes or is reclaimed. It ends when all pods for which the Workload has quota run
again. For a JobSet without a queue, it ends when as many pods run as before. Pods that end unfinished in between lose
their work since the last checkpoint. If other gangs are preempted for the recovery, their losses are listed under the
loss that caused them. Everything is computed from watch events.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from batchyard.accounting.accounts import Statement, statement_of
from batchyard.accounting.ledger import CostLedger
from batchyard.api import scheme, well_known
from batchyard.api.meta import Obj, annotation, find_condition, is_true, label
from batchyard.api.views.pods import (
    SUCCEEDED,
    bound_node,
    checkpoint_interval,
    is_terminating,
    lost_work,
    phase,
    running_since,
)
from batchyard.api.views.workload import WorkloadView, workload_view
from batchyard.base.instant import Duration, Instant, duration_seconds
from batchyard.client.local import LocalClient
from batchyard.cloud.catalog.instances import CRASHED, STOPPING, phase_of
from batchyard.interfaces.client import EventType, WatchEvent
from batchyard.interfaces.controller import Kernel
from batchyard.placement.hotswap import HOTSWAP, is_node_lost
from batchyard.scheduling.messages import parse_preemptor_uid


@dataclass(slots=True)
class GangLoss:
    """An incident in which a gang lost pods, by machine loss or preemption, and when all its pods run again."""

    #: `namespace/name` of the Workload, of the JobSet without a queue, or of the single pod.
    gang: str
    lost_at: Instant
    #: The end of the recovery; None: the gang does not run in full yet, or ended before.
    recovered_at: Instant | None = None
    #: The lost work, as the sum over the pods.
    lost_work: Duration = 0
    #: The losses of gangs that were preempted for this recovery.
    victims: list["GangLoss"] = field(default_factory=list)

    def document(self, start: Instant) -> dict[str, Any]:
        """Return the loss as a JSON document, with durations and times since `start` in seconds."""
        recovered_at = self.recovered_at
        return {
            "gang": self.gang,
            "lostAt": duration_seconds(self.lost_at - start),
            "wholeAt": None if recovered_at is None else duration_seconds(recovered_at - start),
            "seconds": None if recovered_at is None else duration_seconds(recovered_at - self.lost_at),
            "lostPodSeconds": duration_seconds(self.lost_work),
            "victims": [victim.document(start) for victim in self.victims],
        }


@dataclass(slots=True)
class _RunningPod:
    node: str
    started_at: Instant
    #: The time between checkpoints; None: the pod saves no work.
    interval: Duration | None
    #: Whether the machine is lost; the status of the pod may not show it yet.
    is_lost: bool = False


@dataclass(slots=True)
class _OpenLoss:
    """The loss of pods by a gang that does not run in full again yet, with the work that each pod (by uid) may lose."""

    loss: GangLoss
    full_count: int
    work_at_risk_by_pod: dict[str, Duration] = field(default_factory=dict)
    #: Whether any pod has stopped; preempted pods run until they are deleted.
    has_begun: bool = False


class RecoveryTracker:
    """Tracks the losses and recoveries of all gangs from watch events."""

    def __init__(self) -> None:
        #: The losses caused by machines, in order of time.
        self.losses: list[GangLoss] = []
        self._open_losses: dict[str, _OpenLoss] = {}
        #: The running pods, by gang and pod uid.
        self._running_pods: dict[str, dict[str, _RunningPod]] = {}
        #: The gang of each Workload by its uid, and the full pod count of each gang.
        self._gang_by_workload_uid: dict[str, str] = {}
        self._full_count_by_gang: dict[str, int] = {}
        #: The Jobs and JobSets with a checkpoint interval, by uid.
        self._checkpointed_jobs: dict[str, Obj] = {}
        #: By node, the gang whose pod was last nominated to it.
        self._nominated_gang_by_node: dict[str, str] = {}

    def observe(self, batch: Iterable[WatchEvent], now: Instant) -> None:
        """Update the losses and recoveries after a batch of watch events."""
        for event in batch:
            match event.key.kind:
                case scheme.POD:
                    self._on_pod(event, now)
                case scheme.WORKLOAD:
                    self._on_workload(event, now)
                case scheme.JOB | scheme.JOB_SET:
                    self._on_job(event)
                case scheme.INSTANCE | scheme.NODE:
                    if _is_machine_lost(event):
                        self._record_machine_loss(event.key.name, now)

    # --- watch events ---

    def _on_job(self, event: WatchEvent) -> None:
        if event.key.kind == scheme.JOB_SET and _has_ended(event):
            self._open_losses.pop(f"{event.key.namespace}/{event.key.name}", None)
        uid = event.obj["metadata"]["uid"]
        if event.type is not EventType.DELETED and annotation(event.obj, well_known.CHECKPOINT_EVERY) is not None:
            self._checkpointed_jobs[uid] = event.obj
        else:
            self._checkpointed_jobs.pop(uid, None)

    def _on_workload(self, event: WatchEvent, now: Instant) -> None:
        view, gang = workload_view(event.obj), str(event.key)
        if event.type is EventType.DELETED or view.finished:
            self._full_count_by_gang.pop(gang, None)
            self._gang_by_workload_uid.pop(view.uid, None)
            self._open_losses.pop(gang, None)
            return
        self._gang_by_workload_uid[view.uid] = gang
        self._full_count_by_gang[gang] = _full_pod_count(view)
        if _became_true(event, "Preempted", HOTSWAP):
            condition = find_condition(event.obj, "Preempted")
            assert condition is not None
            self._record_preemption(
                gang, self._gang_by_workload_uid.get(parse_preemptor_uid(condition["message"]), ""), now
            )
        if gang in self._open_losses:
            self._open_losses[gang].full_count = self._full_count_by_gang[gang]
            self._close_if_recovered(gang, now)

    def _on_pod(self, event: WatchEvent, now: Instant) -> None:
        pod, uid, gang = event.obj, event.obj["metadata"]["uid"], _gang_name(event)
        if _became_true(event, "DisruptionTarget", "PreemptionByScheduler"):
            self._record_pod_preemption(event, gang, now)
        if not gang:
            return
        node_name = (pod.get("status") or {}).get("nominatedNodeName")
        if node_name:
            self._nominated_gang_by_node[node_name] = gang
        is_pod_ending = event.type is EventType.DELETED or is_terminating(pod)
        self._record_run(gang, uid, None if is_pod_ending else self._run_of(pod), now, is_done=phase(pod) == SUCCEEDED)
        self._close_if_recovered(gang, now)

    def _run_of(self, pod: Obj) -> _RunningPod | None:
        start_time = running_since(pod)
        if start_time is None:
            return None
        owner_uids = (label(pod, well_known.CONTROLLER_UID), label(pod, well_known.JOB_SET_UID))
        interval = checkpoint_interval([pod, *[self._checkpointed_jobs.get(uid or "") for uid in owner_uids]])
        return _RunningPod(bound_node(pod), start_time, interval)

    def _record_run(self, gang: str, uid: str, run: _RunningPod | None, now: Instant, *, is_done: bool) -> None:
        """Record that a pod runs, or that it stopped (`run` is None); a restart is a stop and a new run."""
        run_by_uid = self._running_pods.setdefault(gang, {})
        known_run = run_by_uid.get(uid)
        if known_run is not None and (run is None or run.started_at != known_run.started_at):
            del run_by_uid[uid]
            open_loss = self._open_losses.get(gang)
            work_at_risk = 0 if open_loss is None else open_loss.work_at_risk_by_pod.pop(uid, 0)
            if open_loss is not None and not is_done:
                open_loss.loss.lost_work += min(work_at_risk, _work_lost_at_end(known_run, now))
        if run is not None:
            run_by_uid.setdefault(uid, run)
        if not run_by_uid:
            del self._running_pods[gang]

    # --- losses ---

    def _record_machine_loss(self, node: str, now: Instant) -> None:
        for gang, runs in self._running_pods.items():
            runs_on_node = [run for run in runs.values() if run.node == node and not run.is_lost]
            if not runs_on_node:
                continue
            loss = self._record_gang_loss(gang, now)
            if loss is not None:
                self.losses.append(loss)
            for run in runs_on_node:
                run.is_lost = True
            self._close_if_recovered(gang, now)

    def _record_pod_preemption(self, event: WatchEvent, gang: str, now: Instant) -> None:
        """Record that a pod is preempted for the gang whose pod is nominated to the same node."""
        preemptor_gang = self._nominated_gang_by_node.get(bound_node(event.obj), "")
        if gang:
            self._record_preemption(gang, preemptor_gang, now)
        elif preemptor_gang in self._open_losses:
            run = self._run_of(event.obj)
            lost_pod_work = 0 if run is None else lost_work(run.started_at, run.interval, now)
            self._open_losses[preemptor_gang].loss.victims.append(
                GangLoss(str(event.key), now, lost_work=lost_pod_work)
            )

    def _record_preemption(self, gang: str, preemptor_gang: str, now: Instant) -> None:
        causing_loss = self._open_losses.get(preemptor_gang)
        victim_loss = None if causing_loss is None else self._record_gang_loss(gang, now)
        if causing_loss is not None and victim_loss is not None:
            causing_loss.loss.victims.append(victim_loss)

    def _record_gang_loss(self, gang: str, now: Instant) -> GangLoss | None:
        """Record that a gang loses pods, and the work at risk; return the new loss, None if one is still open."""
        run_by_uid, known_loss = self._running_pods.get(gang, {}), self._open_losses.get(gang)
        open_loss = known_loss or _OpenLoss(GangLoss(gang, now), self._full_count_by_gang.get(gang, len(run_by_uid)))
        self._open_losses[gang] = open_loss
        for uid, run in run_by_uid.items():
            open_loss.work_at_risk_by_pod.setdefault(uid, lost_work(run.started_at, run.interval, now))
        return open_loss.loss if known_loss is None else None

    def _close_if_recovered(self, gang: str, now: Instant) -> None:
        open_loss = self._open_losses.get(gang)
        if open_loss is None:
            return
        intact_runs = [run for run in self._running_pods.get(gang, {}).values() if not run.is_lost]
        if len(intact_runs) < max(1, open_loss.full_count):
            open_loss.has_begun = True
        elif open_loss.has_begun:
            open_loss.loss.recovered_at = now
            del self._open_losses[gang]


def _work_lost_at_end(run: _RunningPod, now: Instant) -> Duration:
    return max(0, now - run.started_at) if run.is_lost else lost_work(run.started_at, run.interval, now)


def _gang_name(event: WatchEvent) -> str:
    name = annotation(event.obj, well_known.WORKLOAD) or label(event.obj, well_known.JOB_SET_NAME)
    return f"{event.key.namespace}/{name}" if name else ""


def _has_ended(event: WatchEvent) -> bool:
    return event.type is EventType.DELETED or bool((event.obj.get("status") or {}).get("terminalState"))


def _full_pod_count(workload: WorkloadView) -> int:
    if workload.quota_reserved:
        return sum(holding.pods for holding in workload.admitted_pod_sets)
    return sum(workload.counts)


def _became_true(event: WatchEvent, kind: str, reason: str) -> bool:
    condition = find_condition(event.obj, kind)
    if condition is None or condition["status"] != "True" or condition.get("reason") != reason:
        return False
    return event.type is not EventType.DELETED and not (event.old is not None and is_true(event.old, kind))


def _is_machine_lost(event: WatchEvent) -> bool:
    if event.type is EventType.DELETED:
        return event.key.kind == scheme.NODE
    return phase_of(event.obj) in {CRASHED, STOPPING} if event.key.kind == scheme.INSTANCE else is_node_lost(event.obj)


# Costs and recovery times of a world with machines.


#: The kinds that costs and recoveries depend on, each after the kinds that it refers to.
_INITIAL_KINDS: Final = (scheme.JOB_SET, scheme.JOB, scheme.WORKLOAD, scheme.INSTANCE, scheme.NODE, scheme.POD)


class RunAccounting:
    """The cost ledger and the recoveries from lost machines of a simulation, maintained from its start."""

    def __init__(self, client: LocalClient, kernel: Kernel) -> None:
        self._kernel = kernel
        self.ledger = CostLedger(client)
        self.recoveries = RecoveryTracker()
        client.subscribe(self._observe)

    def add_initial_objects(self, events: Sequence[WatchEvent]) -> None:
        """Add the objects with which a simulation starts, given as ADDED events; costs count from its start."""
        for kind in _INITIAL_KINDS:
            self._observe([event for event in events if event.key.kind == kind])

    def cost_statement(self, now: Instant) -> Statement:
        """Return the costs from the start of the simulation until `now`."""
        return statement_of(self.ledger.accounts_until_now(now))

    def _observe(self, batch: Sequence[WatchEvent]) -> None:
        now = self._kernel.now()
        self.ledger.observe(batch, now)
        self.recoveries.observe(batch, now)
