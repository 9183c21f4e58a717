"""The lives of Workloads in a run, from watch events, and the resources that teams held while Workloads waited.

A Workload holds quota from its reservation until it is finished, evicted or deleted. An active, unfinished Workload
without quota waits. The team is the namespace.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from batchyard.api.meta import Obj
from batchyard.api.views.workload import WorkloadView, workload_view
from batchyard.base.instant import Duration, Instant
from batchyard.interfaces.client import EventType, WatchEvent
from batchyard.sim.time_series import Curve

#: ClusterQueue, flavor, resource.
FlavorResource = tuple[str, str, str]
_NONE: Final[Mapping[FlavorResource, int]] = {}


@dataclass(slots=True)
class WorkloadLife:
    """The life of a Workload."""

    #: The latest version.
    obj: Obj
    created: Instant
    cluster_queue: str = ""
    #: The time of the first reservation, and the begin of the current one.
    started: Instant | None = None
    since: Instant | None = None
    finished: Instant | None = None
    gone: Instant | None = None
    #: The time with quota that ended in an eviction.
    cut_short: Duration = 0
    holds: Mapping[FlavorResource, int] = field(default_factory=dict)
    waits: bool = False

    @property
    def view(self) -> WorkloadView:
        """Return its view, as used for scheduling."""
        return workload_view(self.obj)

    @property
    def asked(self) -> dict[str, int]:
        """Return its total requests by resource, in the integer units of views."""
        asked: dict[str, int] = {}
        for pod_set in self.view.pod_sets:
            for resource, amount in pod_set.template.requests:
                asked[resource] = asked.get(resource, 0) + amount * pod_set.count
        return asked


@dataclass(slots=True)
class TeamUsage:
    """A namespace: its held and requested amounts, and their integrals over the time in which Workloads waited."""

    held: dict[str, int] = field(default_factory=dict)
    wanted: dict[str, int] = field(default_factory=dict)
    #: Amounts times microseconds.
    held_while_short: dict[str, int] = field(default_factory=dict)
    wanted_while_short: dict[str, int] = field(default_factory=dict)

    def let_pass(self, lasted: Duration) -> None:
        """Add a span of time in which Workloads waited."""
        for now, area in ((self.held, self.held_while_short), (self.wanted, self.wanted_while_short)):
            for resource, amount in now.items():
                area[resource] = area.get(resource, 0) + amount * lasted


class WorkloadLives:
    """The lives of all Workloads, the amounts of each team, and the numbers of waiting and running Workloads."""

    def __init__(self, begun: Instant, queue_of: Callable[[str, str], str | None]) -> None:
        self._queue_of = queue_of
        self._begun = begun
        self._at = begun
        #: By uid, in the order of creation.
        self.lives: dict[str, WorkloadLife] = {}
        self.teams: dict[str, TeamUsage] = {}
        self.waiting = Curve(begun)
        self.running = Curve(begun)
        self.used: dict[FlavorResource, Curve] = {}
        #: The total time in which Workloads waited.
        self.short_for: Duration = 0

    def let_pass(self, now: Instant) -> None:
        """Advance to now, with nothing changed since the last event."""
        lasted, self._at = now - self._at, now
        if lasted > 0 and self.waiting.value:
            self.short_for += lasted
            for team in self.teams.values():
                team.let_pass(lasted)

    def observe(self, event: WatchEvent, now: Instant) -> None:
        """Apply a watch event of a Workload."""
        view = workload_view(event.obj)
        life = self.lives.get(view.uid)
        if life is None:
            life = self.lives[view.uid] = WorkloadLife(event.obj, now)
        life.obj = event.obj
        if event.type is EventType.DELETED:
            life.gone = now
        if view.finished and life.finished is None:
            life.finished = now
        is_over = view.finished or event.type is EventType.DELETED
        self._hold(life, view.quota_reserved and not is_over, now)
        self._wait(life, view.active and not view.quota_reserved and not is_over, now)

    def _hold(self, life: WorkloadLife, holds: bool, now: Instant) -> None:
        """Set the quota that a Workload holds from now on; none unless `holds`."""
        if holds and life.since is None:
            life.since = now
            life.started = now if life.started is None else life.started
            self.running.add(1, now)
        elif not holds and life.since is not None:
            if life.finished is None and life.gone is None:
                life.cut_short += now - life.since
            life.since = None
            self.running.add(-1, now)
        holding = _holding(life.view) if holds else _NONE
        if holding == life.holds:
            return
        team = self._team(life)
        for sign, amounts in ((-1, life.holds), (1, holding)):
            for at, amount in amounts.items():
                if at not in self.used:
                    self.used[at] = Curve(self._begun)
                self.used[at].add(sign * amount, now)
                team.held[at[2]] = team.held.get(at[2], 0) + sign * amount
                team.wanted[at[2]] = team.wanted.get(at[2], 0) + sign * amount
        life.holds = holding

    def _wait(self, life: WorkloadLife, waits: bool, now: Instant) -> None:
        view = life.view
        life.cluster_queue = view.cluster_queue or life.cluster_queue
        if not life.cluster_queue:
            namespace, _, name = view.queue.partition("/")
            life.cluster_queue = self._queue_of(namespace, name) or ""
        if waits == life.waits:
            return
        sign = 1 if waits else -1
        life.waits = waits
        self.waiting.add(sign, now)
        wanted = self._team(life).wanted
        for resource, amount in life.asked.items():
            wanted[resource] = wanted.get(resource, 0) + sign * amount

    def _team(self, life: WorkloadLife) -> TeamUsage:
        return self.teams.setdefault(life.view.namespace, TeamUsage())


def _holding(view: WorkloadView) -> dict[FlavorResource, int]:
    """Return what it holds, by ClusterQueue, flavor and resource."""
    held: dict[FlavorResource, int] = {}
    for pod_set in view.holdings:
        for resource, amount in pod_set.usage:
            at = view.cluster_queue, pod_set.flavors.get(resource, ""), resource
            held[at] = held.get(at, 0) + amount
    return held
