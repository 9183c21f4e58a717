"""Hotswap, its second half: what a pass of placement looks up and writes so that a gang gets the place of others.

Who leaves is decided in batchyard.core.hotswap. A Workload leaves as Kueue preempts: it is evicted, so its job is
suspended, its pods stop, and it queues again.
"""

from collections.abc import Iterable, Mapping, Sequence

from batchyard.api import scheme, well_known
from batchyard.api.meta import Key, Obj, annotation, key_of
from batchyard.api.views.owners import jobs_above
from batchyard.api.views.pods import PodView
from batchyard.api.views.workload import workload_view
from batchyard.base.instant import Duration, Instant
from batchyard.controllers.placement.followers import HeldRoom, missing_followers
from batchyard.controllers.placement.index import pod_key
from batchyard.core.checkpoints import checkpoint_interval, lost_work, running_since
from batchyard.core.hotswap import HOTSWAP, Occupant, message
from batchyard.core.lifecycle import reasons as r
from batchyard.core.lifecycle import workload as lifecycle
from batchyard.core.lifecycle.jobset.exclusive import is_leader
from batchyard.core.placement.claims import Claim, stand_ins
from batchyard.core.placement.cluster import Nodes
from batchyard.ports.client import Reader, UpdateStatus
from batchyard.ports.controller import EventRecord, Outcome


class Swaps:
    """One pass of placement. Nobody is looked up twice in it."""

    def __init__(self, nodes: Nodes, held: HeldRoom, reader: Reader, now: Instant) -> None:
        held.refresh(reader)
        self._held = held
        self._nodes = nodes
        self._reader = reader
        self._now = now
        #: By gang, or by the uid of a pod without one.
        self._occupants: dict[str, Occupant | None] = {}
        self._gangs: dict[str, list[PodView]] = {}

    def claims_of(self, pods: Iterable[PodView]) -> list[Claim]:
        """What waiting pods claim: a leader a whole domain, for all pods of its Job that are not there yet."""
        return [self._claim_of(pod) for pod in pods]

    def hold(self, claims: Sequence[Claim], seats: Mapping[str, str]) -> None:
        """Hold room for all who will follow the leaders of claims; without seats, for nobody."""
        self._held.hold(claims, seats)

    def occupant_of(self, pod: PodView) -> Occupant | None:
        """With whom a pod leaves, and what that costs; None if it cannot be made to leave."""
        key = pod.gang or pod.uid
        if key not in self._occupants:
            self._occupants[key] = self._of_gang(pod) if pod.gang else self._occupant(pod.key, (pod,))
        return self._occupants[key]

    def evict(self, occupant: Occupant, preemptor: PodView, outcome: Outcome) -> Obj | None:
        """Evict the Workload of an occupant; None if it is a pod without one, which is to be deleted instead."""
        pod = occupant.pods[0]
        self._occupants[pod.gang or pod.uid] = occupant._replace(is_leaving=True)
        victim = self._workload_of(pod) if pod.gang else None
        if victim is None:
            return None
        by = self._workload_of(preemptor) if preemptor.gang else None
        name, uid, job_uid = preemptor.key, preemptor.uid, ""
        if by is not None:
            view = workload_view(by)
            name, uid, job_uid = view.key, view.uid, view.job_uid
        told = message(name, uid, job_uid, occupant)
        evicted = lifecycle.evict(
            victim, reason=r.EVICTED_BY_PREEMPTION, message=told, now=self._now, preempted=HOTSWAP
        )
        events = _events(key_of(victim), told, pod_key(preemptor) if by is None else key_of(by))
        outcome.add(UpdateStatus(evicted), events)
        return victim

    # --- what is looked up ---

    def _claim_of(self, pod: PodView) -> Claim:
        obj = self._reader.get(pod_key(pod)) if well_known.JOB_KEY in pod.labels else None
        topology_key = None if obj is None else annotation(obj, well_known.EXCLUSIVE_TOPOLOGY)
        if obj is None or not topology_key or not is_leader(obj) or annotation(obj, well_known.NODE_SELECTOR_STRATEGY):
            return Claim((pod,))
        return Claim((pod, *stand_ins(obj, missing_followers(obj, self._reader))), topology_key)

    def _of_gang(self, pod: PodView) -> Occupant | None:
        workload = self._workload_of(pod)
        if workload is None or lifecycle.is_finished(workload):
            return None
        if not self._gangs:
            for node in self._nodes:
                for other in node.pods.values():
                    self._gangs.setdefault(other.gang, []).append(other)
        pods = self._gangs.get(pod.gang)
        if pods is None:
            return None  # bound in this very pass
        return self._occupant(str(key_of(workload)), pods)._replace(is_leaving=lifecycle.is_evicted(workload))

    def _occupant(self, name: str, pods: Sequence[PodView]) -> Occupant:
        return Occupant(name, pods, sum(map(self._lost_work, pods)))

    def _lost_work(self, pod: PodView) -> Duration:
        obj = self._reader.get(pod_key(pod))
        started = None if obj is None else running_since(obj)
        if obj is None or started is None:
            return 0
        return lost_work(started, checkpoint_interval(self._with_owners(obj)), self._now)

    def _with_owners(self, pod: Obj) -> Iterable[Obj]:
        """A pod, its Job, and the JobSet above."""
        yield pod
        yield from jobs_above(pod, self._reader.get)

    def _workload_of(self, pod: PodView) -> Obj | None:
        """The Workload of a pod of a gang."""
        obj = self._reader.get(pod_key(pod))
        name = None if obj is None else annotation(obj, well_known.WORKLOAD)
        return None if not name else self._reader.get(Key(scheme.WORKLOAD, pod.namespace, name))


def _events(victim: Key, told: str, preemptor: Key) -> list[EventRecord]:
    """What both sides are told."""
    return [
        EventRecord(victim, "Normal", "EvictedDueToPreempted", told),
        EventRecord(victim, "Normal", "Preempted", told),
        EventRecord(preemptor, "Normal", "PreemptedWorkload", f"Preempted workload {victim}: {told}"),
    ]
