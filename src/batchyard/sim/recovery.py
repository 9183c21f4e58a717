"""Recovery: how long a gang takes to run as a whole again after a machine under it was lost, and what that costs.

A gang is the pods of a Workload, or of a JobSet without a queue. It is lost with the first machine under one of its
pods that crashes or that the cloud takes back. It is whole when as many pods run as its Workload holds quota for, or
without a Workload as ran before. Work that ends unfinished meanwhile is lost as far as it was done since the last
checkpoint. A gang that must leave for it is a loss of the same kind, listed with the loss that caused it. The watch
events alone show all of it.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from batchyard.api import scheme, well_known
from batchyard.api.conditions import find_condition, is_true
from batchyard.api.meta import Obj, annotation, label
from batchyard.api.views.checkpoints import checkpoint_interval, lost_work, running_since
from batchyard.api.views.pod_lifecycle import SUCCEEDED, is_terminating, node_of, phase
from batchyard.api.views.workload import WorkloadView, workload_view
from batchyard.base.instant import Duration, Instant, seconds
from batchyard.cloud.catalog.instances import CRASHED, STOPPING, phase_of
from batchyard.interfaces.client import EventType, WatchEvent
from batchyard.placement.gang_preemption import HOTSWAP
from batchyard.placement.hotswap import is_lost
from batchyard.scheduling.messages import preemptor_uid_of


@dataclass(slots=True)
class Loss:
    """What happened to a gang, from the loss until it is whole again."""

    #: `namespace/name` of its Workload, of its JobSet if that has no queue, or of a pod that belongs to neither.
    gang: str
    lost_at: Instant
    #: None: it is not whole yet, or ended before it was.
    whole_at: Instant | None = None
    #: The work lost, in time of pods.
    lost_work: Duration = 0
    #: Those who had to leave for it.
    victims: list["Loss"] = field(default_factory=list)

    def told(self, start: Instant) -> dict[str, Any]:
        """In seconds from the start of the world, for JSON."""
        whole_at = self.whole_at
        return {
            "gang": self.gang,
            "lostAt": seconds(self.lost_at - start),
            "wholeAt": None if whole_at is None else seconds(whole_at - start),
            "seconds": None if whole_at is None else seconds(whole_at - self.lost_at),
            "lostPodSeconds": seconds(self.lost_work),
            "victims": [victim.told(start) for victim in self.victims],
        }


@dataclass(slots=True)
class _Run:
    """A pod that runs."""

    node: str
    since: Instant
    interval: Duration | None
    #: Its machine is lost, though its status does not say so yet.
    is_lost: bool = False


@dataclass(slots=True)
class _Open:
    """A loss that is not over, and by uid what pods lose unless they go on to their end."""

    loss: Loss
    wanted: int
    at_risk: dict[str, Duration] = field(default_factory=dict)
    #: Who was told to leave goes on for a moment.
    has_begun: bool = False


class Recoveries:
    """Follows gangs and machines by their watch events."""

    def __init__(self) -> None:
        #: The losses by machines, in order of time.
        self.losses: list[Loss] = []
        self._open: dict[str, _Open] = {}
        #: The pods that run, by gang and uid.
        self._runs: dict[str, dict[str, _Run]] = {}
        #: The gang of a Workload by its uid, and how many pods a gang has when it is whole.
        self._gangs: dict[str, str] = {}
        self._wanted: dict[str, int] = {}
        #: Jobs and JobSets that say how often they save their work, by uid.
        self._noted: dict[str, Obj] = {}
        #: For which gang room was held last on a node.
        self._nominated: dict[str, str] = {}

    def observe(self, batch: Iterable[WatchEvent], now: Instant) -> None:
        """Take note of changes."""
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

    # --- what changes ---

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
        """A pod runs so now, or not any more; who starts anew has ended as well."""
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
        """A machine is lost, and with it what ran there."""
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
        """A scheduler makes a pod leave for those for whom room is held on its node."""
        by = self._nominated.get(node_of(event.obj), "")
        if gang:
            self._preempted(gang, by, now)
        elif by in self._open:
            run = self._run_of(event.obj)
            work = 0 if run is None else lost_work(run.since, run.interval, now)
            self._open[by].loss.victims.append(Loss(str(event.key), now, lost_work=work))

    def _preempted(self, gang: str, by: str, now: Instant) -> None:
        """A gang must leave for another one; that counts if the other one recovers from a loss."""
        cause = self._open.get(by)
        victim = None if cause is None else self._interrupt(gang, now)
        if cause is not None and victim is not None:
            cause.loss.victims.append(victim)

    def _interrupt(self, gang: str, now: Instant) -> Loss | None:
        """A gang is not whole from now on; its loss, if that is new."""
        runs, known = self._runs.get(gang, {}), self._open.get(gang)
        current = known or _Open(Loss(gang, now), self._wanted.get(gang, len(runs)))
        self._open[gang] = current
        for uid, run in runs.items():
            current.at_risk.setdefault(uid, lost_work(run.since, run.interval, now))
        return current.loss if known is None else None

    def _look(self, gang: str, now: Instant) -> None:
        """Close a loss that is over."""
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
    """What is lost of a run that ends: who was not lost himself may have saved his work since the loss."""
    return max(0, now - run.since) if run.is_lost else lost_work(run.since, run.interval, now)


def _gang_of(event: WatchEvent) -> str:
    name = annotation(event.obj, well_known.WORKLOAD) or label(event.obj, well_known.JOB_SET_NAME)
    return f"{event.key.namespace}/{name}" if name else ""


def _has_ended(event: WatchEvent) -> bool:
    """Whether a JobSet is gone, or at its end."""
    return event.type is EventType.DELETED or bool((event.obj.get("status") or {}).get("terminalState"))


def _pods_of(workload: WorkloadView) -> int:
    """How many pods a Workload has when it is whole."""
    if workload.quota_reserved:
        return sum(holding.pods for holding in workload.holdings)
    return sum(workload.counts)


def _is_new(event: WatchEvent, kind: str, reason: str) -> bool:
    """Whether a condition has come to hold for that reason."""
    condition = find_condition(event.obj, kind)
    if condition is None or condition["status"] != "True" or condition.get("reason") != reason:
        return False
    return event.type is not EventType.DELETED and not (event.old is not None and is_true(event.old, kind))


def _is_gone(event: WatchEvent) -> bool:
    """Whether a machine is lost or told to go off, or what is known of it is gone."""
    if event.type is EventType.DELETED:
        return event.key.kind == scheme.NODE
    return phase_of(event.obj) in {CRASHED, STOPPING} if event.key.kind == scheme.INSTANCE else is_lost(event.obj)
