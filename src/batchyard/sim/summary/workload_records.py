"""Histories of a simulation's Workloads, and the resources that teams held while Workloads waited, from watch events.

A Workload holds quota from its reservation until it is finished, evicted or deleted. An active, unfinished Workload
without quota waits. A team is a namespace.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from batchyard.api.meta import Obj
from batchyard.api.views.workload import WorkloadView, workload_view
from batchyard.base.instant import Duration, Instant
from batchyard.interfaces.client import EventType, WatchEvent
from batchyard.sim.time_series import Curve

#: The names of a ClusterQueue, a flavor and a resource.
FlavorResource = tuple[str, str, str]
_NO_AMOUNTS: Final[Mapping[FlavorResource, int]] = {}


@dataclass(slots=True)
class WorkloadRecord:
    """The history of a Workload in a simulation: when it was created, got quota and ended, and the quota it holds."""

    #: The latest version of the Workload.
    obj: Obj
    #: The time of its creation; for an earlier Workload, the start of the simulation.
    created_at: Instant
    cluster_queue: str = ""
    #: The time of the first quota reservation, and the start of the current reservation.
    first_start: Instant | None = None
    reserved_since: Instant | None = None
    finished_at: Instant | None = None
    deleted_at: Instant | None = None
    #: The total time of the quota reservations that ended in an eviction.
    evicted_duration: Duration = 0
    held_amounts: Mapping[FlavorResource, int] = field(default_factory=dict)
    #: The flavors of the last quota reservation, separated by `, `; '' before the first.
    flavors: str = ""
    is_waiting: bool = False

    @property
    def view(self) -> WorkloadView:
        """Return the scheduler's view of the Workload."""
        return workload_view(self.obj)

    @property
    def namespace(self) -> str:
        """Return the namespace of the Workload."""
        return str(self.obj["metadata"].get("namespace", ""))

    @property
    def requests(self) -> dict[str, int]:
        """Return the total requests of the Workload by resource, in the scheduler's integer units."""
        requests: dict[str, int] = {}
        for pod_set in self.view.pod_sets:
            for resource, amount in pod_set.template.requests:
                requests[resource] = requests.get(resource, 0) + amount * pod_set.count
        return requests


@dataclass(slots=True)
class TeamUsage:
    """The resource amounts that a namespace holds and requests, and their integrals while any Workload waited.

    The integrals are those up to the last change of an amount; `settle` extends them.
    """

    held_amounts: dict[str, int] = field(default_factory=dict)
    requested_amounts: dict[str, int] = field(default_factory=dict)
    #: Integrals: amounts times microseconds.
    held_integral: dict[str, int] = field(default_factory=dict)
    requested_integral: dict[str, int] = field(default_factory=dict)
    #: The shortage duration of the run up to which the integrals extend.
    settled_shortage: Duration = 0

    def settle(self, shortage_duration: Duration) -> None:
        """Extend the integrals to a shortage duration of the run; the amounts were constant since the last call."""
        duration, self.settled_shortage = shortage_duration - self.settled_shortage, shortage_duration
        if not duration:
            return
        for amounts, integral in (
            (self.held_amounts, self.held_integral),
            (self.requested_amounts, self.requested_integral),
        ):
            for resource, amount in amounts.items():
                integral[resource] = integral.get(resource, 0) + amount * duration


class WorkloadRecords:
    """The histories of a simulation's Workloads, the usage by namespace, and how many Workloads wait or hold quota."""

    def __init__(self, start_time: Instant, queue_of: Callable[[str, str], str | None]) -> None:
        self._queue_of = queue_of
        self._start_time = start_time
        self._advanced_to = start_time
        #: The histories by uid, in the order of creation.
        self.workload_records: dict[str, WorkloadRecord] = {}
        self._teams: dict[str, TeamUsage] = {}
        #: The numbers of Workloads that wait for quota, and that hold quota, over time.
        self.waiting_curve = Curve(start_time)
        self.quota_holder_curve = Curve(start_time)
        #: The quota in use over time, by ClusterQueue, flavor and resource.
        self.usage_curves: dict[FlavorResource, Curve] = {}
        #: The total time in which Workloads waited.
        self.shortage_duration: Duration = 0

    def advance(self, now: Instant) -> None:
        """Extend the time in which Workloads waited up to `now`."""
        duration, self._advanced_to = now - self._advanced_to, now
        if duration > 0 and self.waiting_curve.value:
            self.shortage_duration += duration

    @property
    def teams(self) -> Mapping[str, TeamUsage]:
        """Return the usage by namespace, with integrals up to the last call of `advance`."""
        for team in self._teams.values():
            team.settle(self.shortage_duration)
        return self._teams

    def observe(self, event: WatchEvent, now: Instant) -> None:
        """Update the history of a Workload after its watch event."""
        view = workload_view(event.obj)
        workload_record = self.workload_records.get(view.uid)
        if workload_record is None and view.finished:  #  it finished before the simulation
            return
        if workload_record is None:
            workload_record = self.workload_records[view.uid] = WorkloadRecord(event.obj, now)
        workload_record.obj = event.obj
        if event.type is EventType.DELETED:
            workload_record.deleted_at = now
        if view.finished and workload_record.finished_at is None:
            workload_record.finished_at = now
        is_over = view.finished or event.type is EventType.DELETED
        self._record_quota(workload_record, view.quota_reserved and not is_over, now)
        self._record_wait(workload_record, view.active and not view.quota_reserved and not is_over, now)

    def _record_quota(self, workload_record: WorkloadRecord, has_quota: bool, now: Instant) -> None:
        if has_quota and workload_record.reserved_since is None:
            workload_record.reserved_since = now
            workload_record.first_start = now if workload_record.first_start is None else workload_record.first_start
            self.quota_holder_curve.add(1, now)
        elif not has_quota and workload_record.reserved_since is not None:
            if workload_record.finished_at is None and workload_record.deleted_at is None:
                workload_record.evicted_duration += now - workload_record.reserved_since
            workload_record.reserved_since = None
            self.quota_holder_curve.add(-1, now)
        amounts_held = _held_amounts(workload_record.view) if has_quota else _NO_AMOUNTS
        if amounts_held == workload_record.held_amounts:
            return
        team = self._team(workload_record)
        for sign, amounts in ((-1, workload_record.held_amounts), (1, amounts_held)):
            for quota_key, amount in amounts.items():
                if quota_key not in self.usage_curves:
                    self.usage_curves[quota_key] = Curve(self._start_time)
                self.usage_curves[quota_key].add(sign * amount, now)
                team.held_amounts[quota_key[2]] = team.held_amounts.get(quota_key[2], 0) + sign * amount
                team.requested_amounts[quota_key[2]] = team.requested_amounts.get(quota_key[2], 0) + sign * amount
        workload_record.held_amounts = amounts_held
        if amounts_held:
            workload_record.flavors = ", ".join(sorted({flavor for _, flavor, _ in amounts_held}))

    def _record_wait(self, workload_record: WorkloadRecord, is_waiting: bool, now: Instant) -> None:
        view = workload_record.view
        workload_record.cluster_queue = view.cluster_queue or workload_record.cluster_queue
        if not workload_record.cluster_queue:
            namespace, _, name = view.queue.partition("/")
            workload_record.cluster_queue = self._queue_of(namespace, name) or ""
        if is_waiting == workload_record.is_waiting:
            return
        sign = 1 if is_waiting else -1
        workload_record.is_waiting = is_waiting
        self.waiting_curve.add(sign, now)
        team_requests = self._team(workload_record).requested_amounts
        for resource, amount in workload_record.requests.items():
            team_requests[resource] = team_requests.get(resource, 0) + sign * amount

    def _team(self, workload_record: WorkloadRecord) -> TeamUsage:
        """Return the usage of a Workload's namespace, settled, so that its amounts can change."""
        team = self._teams.get(workload_record.namespace)
        if team is None:
            team = self._teams[workload_record.namespace] = TeamUsage(settled_shortage=self.shortage_duration)
        team.settle(self.shortage_duration)
        return team


def _held_amounts(view: WorkloadView) -> dict[FlavorResource, int]:
    amounts_held: dict[FlavorResource, int] = {}
    for pod_set in view.admitted_pod_sets:
        for resource, amount in pod_set.usage:
            quota_key = view.cluster_queue, pod_set.flavors.get(resource, ""), resource
            amounts_held[quota_key] = amounts_held.get(quota_key, 0) + amount
    return amounts_held
