"""Recovery: how long a gang takes to run in full again after the loss of a machine, and the work lost.

A gang is the pods of a Workload, or of a JobSet without a queue. Its loss begins with the first machine under one of
its pods that crashes or is reclaimed by the cloud. It is whole again when as many pods run as its Workload holds quota
for, or without a Workload, as ran before. Pods that end unfinished meanwhile lose their work since the last checkpoint.
A gang that is preempted for it is a loss of the same kind, listed under the loss that caused it. All of it is computed
from watch events alone.
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
    checkpoint_interval,
    is_terminating,
    lost_work,
    node_of,
    phase,
    running_since,
)
from batchyard.api.views.workload import WorkloadView, workload_view
from batchyard.base.instant import Duration, Instant, seconds
from batchyard.client.local import LocalClient
from batchyard.cloud.catalog.instances import CRASHED, STOPPING, phase_of
from batchyard.interfaces.client import EventType, WatchEvent
from batchyard.interfaces.controller import Kernel
from batchyard.placement.hotswap import HOTSWAP, is_lost
from batchyard.scheduling.messages import preemptor_uid_of


@dataclass(slots=True)
class Loss:
    """The loss of a gang, until it is whole again."""

    #: `namespace/name` of its Workload, of its JobSet if that has no queue, or of a pod that belongs to neither.
    gang: str
    lost_at: Instant
    #: None: it is not whole yet, or ended before.
    whole_at: Instant | None = None
    #: The work lost, in pod time.
    lost_work: Duration = 0
    #: The gangs that were preempted for it.
    victims: list["Loss"] = field(default_factory=list)

    def document(self, start: Instant) -> dict[str, Any]:
        """Return the loss for JSON, with times in seconds from the start of the world."""
        whole_at = self.whole_at
        return {
            "gang": self.gang,
            "lostAt": seconds(self.lost_at - start),
            "wholeAt": None if whole_at is None else seconds(whole_at - start),
            "seconds": None if whole_at is None else seconds(whole_at - self.lost_at),
            "lostPodSeconds": seconds(self.lost_work),
            "victims": [victim.document(start) for victim in self.victims],
        }


@dataclass(slots=True)
class _Run:
    """A running pod."""

    node: str
    since: Instant
    interval: Duration | None
    #: Its machine is lost, though its status does not show it yet.
    is_lost: bool = False


@dataclass(slots=True)
class _Open:
    """An open loss, and by uid the work that pods lose unless they run to their end."""

    loss: Loss
    wanted: int
    at_risk: dict[str, Duration] = field(default_factory=dict)
    #: Whether pods have stopped running; preempted pods run until they are deleted.
    has_begun: bool = False


class Recoveries:
    """The losses of gangs, maintained from watch events."""

    def __init__(self) -> None:
        #: The losses caused by machines, in order of time.
        self.losses: list[Loss] = []
        self._open: dict[str, _Open] = {}
        #: The running pods, by gang and uid.
        self._runs: dict[str, dict[str, _Run]] = {}
        #: The gang of each Workload by its uid, and the pod count of each whole gang.
        self._gangs: dict[str, str] = {}
        self._wanted: dict[str, int] = {}
        #: Jobs and JobSets with a checkpoint interval, by uid.
        self._noted: dict[str, Obj] = {}
        #: The gang that was nominated last to each node.
        self._nominated: dict[str, str] = {}

    def observe(self, batch: Iterable[WatchEvent], now: Instant) -> None:
        """Apply watch events."""
        for event in batch:
            match event.key.kind:
                case scheme.POD:
                    self._on_pod(event, now)
                case scheme.WORKLOAD:
                    self._on_workload(event, now)
                case scheme.JOB | scheme.JOB_SET:
                    self._on_job(event)
                case scheme.INSTANCE | scheme.NODE:
                    if _is_gone(event):
                        self._lose(event.key.name, now)

    # --- watch events ---

    def _on_job(self, event: WatchEvent) -> None:
        if event.key.kind == scheme.JOB_SET and _has_ended(event):
            self._open.pop(f"{event.key.namespace}/{event.key.name}", None)
        uid = event.obj["metadata"]["uid"]
        if event.type is not EventType.DELETED and annotation(event.obj, well_known.CHECKPOINT_EVERY) is not None:
            self._noted[uid] = event.obj
        else:
            self._noted.pop(uid, None)

    def _on_workload(self, event: WatchEvent, now: Instant) -> None:
        view, gang = workload_view(event.obj), str(event.key)
        if event.type is EventType.DELETED or view.finished:
            self._wanted.pop(gang, None)
            self._gangs.pop(view.uid, None)
            self._open.pop(gang, None)
            return
        self._gangs[view.uid] = gang
        self._wanted[gang] = _pods_of(view)
        if _is_new(event, "Preempted", HOTSWAP):
            preempted = find_condition(event.obj, "Preempted")
            assert preempted is not None
            self._preempted(gang, self._gangs.get(preemptor_uid_of(preempted["message"]), ""), now)
        if gang in self._open:
            self._open[gang].wanted = self._wanted[gang]
            self._look(gang, now)

    def _on_pod(self, event: WatchEvent, now: Instant) -> None:
        pod, uid, gang = event.obj, event.obj["metadata"]["uid"], _gang_of(event)
        if _is_new(event, "DisruptionTarget", "PreemptionByScheduler"):
            self._pod_preempted(event, gang, now)
        if not gang:
            return
        nominated = (pod.get("status") or {}).get("nominatedNodeName")
        if nominated:
            self._nominated[nominated] = gang
        is_going = event.type is EventType.DELETED or is_terminating(pod)
        self._note_run(gang, uid, None if is_going else self._run_of(pod), now, is_done=phase(pod) == SUCCEEDED)
        self._look(gang, now)

    def _run_of(self, pod: Obj) -> _Run | None:
        since = running_since(pod)
        if since is None:
            return None
        owners = (label(pod, well_known.CONTROLLER_UID), label(pod, well_known.JOB_SET_UID))
        interval = checkpoint_interval([pod, *[self._noted.get(uid or "") for uid in owners]])
        return _Run(node_of(pod), since, interval)

    def _note_run(self, gang: str, uid: str, run: _Run | None, now: Instant, *, is_done: bool) -> None:
        """Record that a pod runs, or that it stopped (None); a restarted pod counts as stopped first."""
        runs = self._runs.setdefault(gang, {})
        known = runs.get(uid)
        if known is not None and (run is None or run.since != known.since):
            del runs[uid]
            open_loss = self._open.get(gang)
            risked = 0 if open_loss is None else open_loss.at_risk.pop(uid, 0)
            if open_loss is not None and not is_done:
                open_loss.loss.lost_work += min(risked, _lost_at_end(known, now))
        if run is not None:
            runs.setdefault(uid, run)
        if not runs:
            del self._runs[gang]

    # --- losses ---

    def _lose(self, node: str, now: Instant) -> None:
        """Record the loss of a machine for all gangs with pods on it."""
        for gang, runs in self._runs.items():
            here = [run for run in runs.values() if run.node == node and not run.is_lost]
            if not here:
                continue
            loss = self._interrupt(gang, now)
            if loss is not None:
                self.losses.append(loss)
            for run in here:
                run.is_lost = True
            self._look(gang, now)

    def _pod_preempted(self, event: WatchEvent, gang: str, now: Instant) -> None:
        """Record that a scheduler preempts a pod for the gang nominated to its node."""
        by = self._nominated.get(node_of(event.obj), "")
        if gang:
            self._preempted(gang, by, now)
        elif by in self._open:
            run = self._run_of(event.obj)
            work = 0 if run is None else lost_work(run.since, run.interval, now)
            self._open[by].loss.victims.append(Loss(str(event.key), now, lost_work=work))

    def _preempted(self, gang: str, by: str, now: Instant) -> None:
        """Record that a gang is preempted for another; it counts if the other one recovers from a loss."""
        cause = self._open.get(by)
        victim = None if cause is None else self._interrupt(gang, now)
        if cause is not None and victim is not None:
            cause.loss.victims.append(victim)

    def _interrupt(self, gang: str, now: Instant) -> Loss | None:
        """Open the loss of a gang; return it if it is new."""
        runs, known = self._runs.get(gang, {}), self._open.get(gang)
        current = known or _Open(Loss(gang, now), self._wanted.get(gang, len(runs)))
        self._open[gang] = current
        for uid, run in runs.items():
            current.at_risk.setdefault(uid, lost_work(run.since, run.interval, now))
        return current.loss if known is None else None

    def _look(self, gang: str, now: Instant) -> None:
        """Close the loss of a gang that is whole again."""
        current = self._open.get(gang)
        if current is None:
            return
        well = [run for run in self._runs.get(gang, {}).values() if not run.is_lost]
        if len(well) < max(1, current.wanted):
            current.has_begun = True
        elif current.has_begun:
            current.loss.whole_at = now
            del self._open[gang]


def _lost_at_end(run: _Run, now: Instant) -> Duration:
    """Return the work lost when a pod ends; on an intact machine it may have saved its work since the loss."""
    return max(0, now - run.since) if run.is_lost else lost_work(run.since, run.interval, now)


def _gang_of(event: WatchEvent) -> str:
    name = annotation(event.obj, well_known.WORKLOAD) or label(event.obj, well_known.JOB_SET_NAME)
    return f"{event.key.namespace}/{name}" if name else ""


def _has_ended(event: WatchEvent) -> bool:
    """Whether a JobSet is deleted, or in a terminal state."""
    return event.type is EventType.DELETED or bool((event.obj.get("status") or {}).get("terminalState"))


def _pods_of(workload: WorkloadView) -> int:
    """Return the pod count of a whole Workload."""
    if workload.quota_reserved:
        return sum(holding.pods for holding in workload.holdings)
    return sum(workload.counts)


def _is_new(event: WatchEvent, kind: str, reason: str) -> bool:
    """Whether a condition became true for that reason."""
    condition = find_condition(event.obj, kind)
    if condition is None or condition["status"] != "True" or condition.get("reason") != reason:
        return False
    return event.type is not EventType.DELETED and not (event.old is not None and is_true(event.old, kind))


def _is_gone(event: WatchEvent) -> bool:
    """Whether a machine is lost or shutting down, or its Node is deleted."""
    if event.type is EventType.DELETED:
        return event.key.kind == scheme.NODE
    return phase_of(event.obj) in {CRASHED, STOPPING} if event.key.kind == scheme.INSTANCE else is_lost(event.obj)


# --- accounting ---
#
# The books of a world with machines: costs, and the recovery times of gangs.


#: The kinds that the books depend on, each after the kinds that it refers to.
_RECALLED: Final = (scheme.JOB_SET, scheme.JOB, scheme.WORKLOAD, scheme.INSTANCE, scheme.NODE, scheme.POD)


class RunAccounting:
    """The cost ledger and the recoveries of a world, maintained from its start."""

    def __init__(self, client: LocalClient, kernel: Kernel) -> None:
        self._kernel = kernel
        self.ledger = CostLedger(client)
        self.recoveries = Recoveries()
        client.subscribe(self._keep)

    def recall(self, shown: Sequence[WatchEvent]) -> None:
        """Add the objects of the initial state, given as ADDED events; they count from now on."""
        for kind in _RECALLED:
            self._keep([event for event in shown if event.key.kind == kind])

    def statement(self, now: Instant) -> Statement:
        """Return the costs until now. Running pods count as running."""
        return statement_of(self.ledger.accounts(now))

    def _keep(self, batch: Sequence[WatchEvent]) -> None:
        now = self._kernel.now()
        self.ledger.observe(batch, now)
        self.recoveries.observe(batch, now)
