"""The pods that wait for a node: who is to be tried, who is parked until something changes that can help.

Parked pods that ask for the same are looked at once. A gang of which nothing runs is one unit: it is tried as a whole
as soon as one of its pods is to be tried.
"""

from collections.abc import Sequence
from typing import TypeAlias

from batchyard.api.views.pods import PodShape, PodView
from batchyard.core.placement.cluster import Nodes
from batchyard.core.placement.waking import is_concerned_by, is_helped_by, minds_others

Alike: TypeAlias = tuple[PodShape, int, bool]
"""What decides whether a change of a node can help: the shape, the priority, whether it may preempt."""


class WaitingPods:
    """See the module."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self._pods: dict[str, PodView] = {}
        #: Pods to be tried, and parked ones by what they ask for; all by uid.
        self._active: dict[str, None] = {}
        self._parked: dict[Alike, dict[str, None]] = {}
        #: Parked pods for which it matters where other pods are.
        self._minding: dict[str, None] = {}
        self._by_gang: dict[str, dict[str, None]] = {}
        #: Pods of gangs that have a node and are not going, by gang and uid.
        self._begun: dict[str, dict[str, None]] = {}
        #: Pods that came to a node or left one since the parked were last looked at, and up to when nodes were.
        self._moved: list[PodView] = []
        self._moment = 0

    def __contains__(self, uid: str) -> bool:
        """Whether a pod waits."""
        return uid in self._pods

    def get(self, uid: str) -> PodView | None:
        """A pod that waits."""
        return self._pods.get(uid)

    @property
    def has_work(self) -> bool:
        """Whether somebody is to be tried, or something happened that may help somebody."""
        return bool(self._active or (self._parked and (self._moved or self._moment != self._nodes.lasting.now)))

    def add(self, pod: PodView) -> None:
        """A pod waits, or waits for something else than before: it is to be tried."""
        self.drop(pod.uid)
        self._pods[pod.uid] = pod
        self._active[pod.uid] = None
        if pod.gang:
            self._by_gang.setdefault(pod.gang, {})[pod.uid] = None

    def refresh(self, pod: PodView) -> None:
        """A pod that waits is another revision now, and asks for the same."""
        self._pods[pod.uid] = pod

    def drop(self, uid: str) -> None:
        """A pod waits no more."""
        pod = self._pods.pop(uid, None)
        if pod is None:
            return
        self._unpark(pod)
        self._active.pop(uid, None)
        if pod.gang:
            members = self._by_gang[pod.gang]
            del members[uid]
            if not members:
                del self._by_gang[pod.gang]

    def park(self, pod: PodView) -> None:
        """A pod that waits is not to be tried before something changes that can help it."""
        if pod.uid not in self._active:
            return
        del self._active[pod.uid]
        self._parked.setdefault(_alike(pod), {})[pod.uid] = None
        if minds_others(pod):
            self._minding[pod.uid] = None

    def activate(self, uid: str) -> None:
        """A pod that waits is to be tried."""
        pod = self._pods.get(uid)
        if pod is not None:
            self._unpark(pod)
            self._active[uid] = None

    def note_moved(self, pod: PodView) -> None:
        """A pod came to a node, or left one."""
        if self._parked:
            self._moved.append(pod)

    def set_begun(self, pod: PodView, has_begun: bool) -> None:
        """A pod of a gang has a node, or has none any more. The rest of a gang that has begun is tried one by one."""
        if not pod.gang:
            return
        if has_begun:
            begun = self._begun.setdefault(pod.gang, {})
            if not begun:
                for uid in self._by_gang.get(pod.gang, ()):
                    self.activate(uid)
            begun[pod.uid] = None
        elif pod.uid in self._begun.get(pod.gang, ()):
            del self._begun[pod.gang][pod.uid]
            if not self._begun[pod.gang]:
                del self._begun[pod.gang]

    def units(self) -> list[Sequence[PodView]]:
        """What is to be tried, in order: pods alone, and gangs of which nothing runs as a whole."""
        self._wake()
        gangs: dict[str, None] = {}
        units: list[Sequence[PodView]] = []
        for uid in self._active:
            pod = self._pods[uid]
            if not pod.gang or pod.gang in self._begun:
                units.append((pod,))
            elif pod.gang not in gangs:
                gangs[pod.gang] = None
                units.append([self._pods[member] for member in self._by_gang[pod.gang]])
        return sorted(units, key=self._turn)

    def _turn(self, unit: Sequence[PodView]) -> tuple[int, bool, int, str]:
        """Priority, then gangs that have begun, then who waits longest, then the name."""
        priority = max(pod.priority for pod in unit)
        first = min(unit, key=lambda pod: (pod.created, pod.key))
        return -priority, first.gang not in self._begun, first.created, first.key

    def _wake(self) -> None:
        """Let those be tried whom the changes since the last look can help."""
        changed, moved = self._nodes.lasting.since(self._moment), self._moved
        self._moment, self._moved = self._nodes.lasting.now, []
        if not self._parked or not (changed or moved):
            return
        awake: list[str] = []
        for uids in self._parked.values():
            if is_helped_by(self._pods[next(iter(uids))], changed, self._nodes):
                awake += uids
        for other in moved:
            concerned = self._minding if not other.shape.anti_affinity else dict.fromkeys(self._parked_uids())
            awake += [uid for uid in concerned if is_concerned_by(self._pods[uid], other, self._nodes)]
        for uid in awake:
            self.activate(uid)

    def _parked_uids(self) -> list[str]:
        return [uid for uids in self._parked.values() for uid in uids]

    def _unpark(self, pod: PodView) -> None:
        uids = self._parked.get(_alike(pod))
        if uids is not None and pod.uid in uids:
            del uids[pod.uid]
            if not uids:
                del self._parked[_alike(pod)]
            self._minding.pop(pod.uid, None)


def _alike(pod: PodView) -> Alike:
    return pod.shape, pod.priority, pod.may_preempt
