"""Our scheduler as it would be in the place of another: it knows what it was shown, and decides, and writes nothing.

What it decides has no effect by itself. Who is left waiting goes back in line as after a cycle of ours; quota and
evictions count when they are shown, as the other one wrote them.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

from batchyard.api import scheme
from batchyard.api.conditions import find_condition
from batchyard.api.meta import Key, Obj
from batchyard.api.views.workload import WorkloadView, view_by_creation, workload_view
from batchyard.base.instant import Duration, Instant
from batchyard.interfaces.client import EventType, WatchEvent
from batchyard.scheduling.controller import IdleWatch
from batchyard.scheduling.cycle import Cycle, Policy
from batchyard.scheduling.decisions import Decision, Head, Preempt, Wait
from batchyard.scheduling.messages import RequeueReason
from batchyard.scheduling.pending_queue import PendingQueue
from batchyard.scheduling.scheduler_cache import AdmissionIndex
from batchyard.scheduling.workload import lifecycle as r
from batchyard.shadow.observed import is_effective, waits_for_victims


class Model:
    """See the module."""

    def __init__(self, policy: Policy, gathers: Duration, *, is_by_creation: bool = False) -> None:
        """`gathers`: how long the other gathers what may help those who are parked, before they are tried again.

        `is_by_creation`: whose pods were not ready has the place in line that he had at first.
        """
        self.index = AdmissionIndex(view_by_creation if is_by_creation else workload_view)
        self.index.line_up.gathers = gathers
        self.index.line_up.is_woken_from_outside = True
        self._policy = policy
        self._idle = IdleWatch(self.index)
        self._number = 0
        #: Whether the other says why somebody waits: then it says who waits for victims to go, and stands first.
        self._is_told_why = False
        #: All objects as they were shown last; Workloads by namespace, others in ''.
        self._shown: dict[str, dict[Key, WatchEvent]] = {}

    @property
    def shares_fairly(self) -> bool:
        """Whether it shares fairly."""
        return self._policy.fair_sharing

    # What it is shown.

    def show(self, event: WatchEvent, came: Instant) -> None:
        """Take note of a change that came then: from then on the other gathers what it may help."""
        is_workload = event.key.kind == scheme.WORKLOAD
        of_namespace = self._shown.setdefault(event.key.namespace if is_workload else "", {})
        before = of_namespace.pop(event.key, None)
        if event.type is not EventType.DELETED:
            # A Workload that is known holds its quota without a decision; of others nothing is known yet.
            old, kind = (event.obj, EventType.MODIFIED) if is_workload else (None, EventType.ADDED)
            of_namespace[event.key] = event._replace(type=kind, old=old)
        self.index.observe(event, came)
        if is_workload and event.type is not EventType.DELETED:
            self._heed(event, before, came)

    def _heed(self, event: WatchEvent, before: WatchEvent | None, came: Instant) -> None:
        """Heed what is said anew of why one waits: he was tried, and who waits for victims to go stands first."""
        said = waits_for_victims(event.obj)
        place = None if said is None else self._place_of(str(event.key))
        if place is None or (waiting := place[0].get(str(event.key))) is None:
            return
        self._is_told_why = True
        queue, name, said_before = place[0], str(event.key), None
        if before is not None:
            said_before = waits_for_victims(before.obj)
            if find_condition(before.obj, r.QUOTA_RESERVED) != find_condition(event.obj, r.QUOTA_RESERVED):
                queue.was_tried(name, came)
        if said and not said_before:
            self.index.line_up.requeue(queue.head_of(name), waiting.last, RequeueReason.PENDING_PREEMPTION)
        elif said_before is None:
            queue.let_go_of_preemptor(name)

    def shown(self) -> Iterator[WatchEvent]:
        """All objects as they were shown last, as changes that tell so."""
        return (event for events in self._shown.values() for event in events.values())

    def get(self, key: Key) -> Obj | None:
        """A Workload as it was shown last."""
        event = self._shown.get(key.namespace, {}).get(key)
        return None if event is None else event.obj

    def owned_by(self, uid: str, namespace: str) -> Sequence[Obj]:
        """Nobody asks."""
        del uid, namespace
        return ()

    # What it decides.

    def heads(self, now: Instant) -> list[Head]:
        """Whose turn it is."""
        self.index.look_anew(self, now)
        return self.index.heads(now)

    def wake(self, now: Instant, may_wake: Callable[[str], bool]) -> list[str]:
        """Wake the trees for which the other has gathered for long enough by then; which they are."""
        line_up = self.index.line_up
        return line_up.wake_marked(now - line_up.gathers, may_wake) if line_up.gathers else []

    def parked(self, workload: str, since: Instant) -> Head | None:
        """One that is parked, if it was parked since then; else None."""
        place = self._place_of(workload)
        if place is None or (parked_at := place[0].parked_at(workload)) is None or parked_at < since:
            return None
        return place[0].head_of(workload)

    def may_be_late(self, head: Head, since: Instant) -> bool:
        """Whether the other may yet be at those who are before one whose turn it is, and were parked since then."""
        return self.index.line_up.pending[head.queue].has_parked_before(head.workload.key, since)

    def bring_back(self, head: Head) -> None:
        """Let one that is parked stand in line again, alone."""
        self.index.line_up.pending[head.queue].bring_back(head.workload.key)
        self.index.line_up.show_new(head.queue)

    def wake_for(self, workload: str, now: Instant) -> str:
        """Wake the tree of one that is parked, if something may help it; the tree, '' if not."""
        place = self._place_of(workload)
        if place is None or place[0].parked_at(workload) is None:
            return ""
        return "".join(self.index.line_up.wake_marked(now, lambda tree: tree == place[1]))

    def _place_of(self, workload: str) -> tuple[PendingQueue, str] | None:
        """Where a Workload waits, with the tree."""
        view = self.index.book.view(workload)
        queue = None if view is None else self.queue_of(view)
        waiting = None if queue is None else self.index.line_up.pending.get(queue)
        tree = None if queue is None else self.tree_of_queue(queue)
        return None if waiting is None or tree is None else (waiting, tree)

    def decide(self, heads: Sequence[Head]) -> list[Decision]:
        """A cycle."""
        self._number += 1
        return self._cycle().run(heads)

    def opinion(self, workload: str) -> Decision | None:
        """What it would decide about one Workload if it were its turn, alone; None if it does not wait."""
        view = self.index.book.view(workload)
        queue = None if view is None else self.queue_of(view)
        if view is None or queue is None or self.index.snapshot.holder(workload) is not None:
            return None
        return self._cycle().run([Head(view, queue)])[0]

    def put_back(self, decisions: Iterable[Decision]) -> None:
        """Let those who wait, or wait for their victims to go, stand in line again as after a cycle."""
        looked: list[tuple[Decision, bool]] = []
        for decision in decisions:
            parked = False
            if isinstance(decision, Wait | Preempt):
                parked = self.index.line_up.requeue(decision.head, decision.last, self._reason(decision))
            looked.append((decision, parked))
        self._idle.look(looked)

    def _reason(self, decision: Wait | Preempt) -> RequeueReason:
        """Why one goes back: that he waits for victims of others to go is taken from what the other says."""
        reason = decision.requeue
        if reason is not RequeueReason.PENDING_PREEMPTION or is_effective(decision) or not self._is_told_why:
            return reason
        obj = self.get(Key(scheme.WORKLOAD, *decision.head.workload.key.split("/", 1)))
        is_said = obj is not None and waits_for_victims(obj)
        return reason if is_said else RequeueReason.FAILED_AFTER_NOMINATION

    def park(self, head: Head) -> bool:
        """Leave one waiting until something changes; whether its queue goes on without it."""
        return self.index.line_up.requeue(head, None, RequeueReason.NO_FIT)

    def take_up(self, workload: str) -> None:
        """Let one that was parked be tried again."""
        view = self.index.book.view(workload)
        queue = None if view is None else self.queue_of(view)
        waiting = None if queue is None else self.index.line_up.pending.get(queue)
        if view is not None and queue is not None and waiting is not None and waiting.remove(workload):
            waiting.put_in_line(view)
            self.index.line_up.show_new(queue)

    def rest(self, now: Instant) -> None:
        """Take it that all who wait have been looked at, and nothing came of it: they wait until something changes."""
        line_up = self.index.line_up
        while any(line_up.requeue(head, None, RequeueReason.GENERIC) for head in self.heads(now)):
            pass  # those of StrictFIFO queues are not parked, but rest with their trees
        for tree in dict.fromkeys(queue.node.tree for queue in self.index.snapshot.queues.values()):
            line_up.rest(tree)

    # Where things are.

    def queue_of(self, view: WorkloadView) -> str | None:
        """The ClusterQueue in which a Workload waits."""
        local = self.index.book.local_queues.get(view.queue)
        return None if local is None else local.cluster_queue

    def tree_of_queue(self, name: str) -> str | None:
        """The cohort tree of a ClusterQueue."""
        queue = self.index.snapshot.queues.get(name)
        return None if queue is None else queue.node.tree

    def tree_of(self, workload: str, obj: Obj) -> str | None:
        """The cohort tree that a Workload waits or holds quota in; None where it is in none."""
        held = self.index.snapshot.holder(workload)
        if held is not None:
            return held.queue.node.tree
        key = f"{obj['metadata'].get('namespace', '')}/{obj['spec'].get('queueName', '')}"
        local = self.index.book.local_queues.get(key)
        return None if local is None else self.tree_of_queue(local.cluster_queue)

    def _cycle(self) -> Cycle:
        return Cycle(self.index.snapshot, self._policy, self.index.namespaces, self._number)

    def list(self, kind: str, namespace: str | None = None) -> Sequence[Obj]:
        """All Workloads, as they were shown last."""
        found = self._shown.values() if namespace is None else [self._shown.get(namespace, {})]
        return [event.obj for events in found for event in events.values() if event.key.kind == kind]
