"""Fairness of a run: the share of all quota that each team used while Workloads waited, against its fair share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from batchyard.api import scheme
from batchyard.api.views.workload import cluster_queue_view
from batchyard.sim.summary.run_watch import WatchedSimulation
from batchyard.sim.summary.workload_records import TeamUsage


@dataclass(frozen=True, slots=True)
class TeamShare:
    """A team's used and requested fractions of all quota while any Workload waited, and its due fraction.

    The due fraction follows from the nominal quotas or the weights of the team's ClusterQueues.
    """

    used: float
    requested: float
    due: float

    @property
    def used_to_due_ratio(self) -> float | None:
        """Return the used fraction divided by the due fraction; None if no quota is due to the team."""
        return self.used / self.due if self.due else None

    @property
    def used_to_requested_ratio(self) -> float | None:
        """Return the used fraction divided by the requested fraction; None if the team requested nothing."""
        return self.used / self.requested if self.requested else None


def jain_index(amounts: Sequence[float]) -> float | None:
    """Return Jain's fairness index of some amounts, up to 1 for equal amounts; None if there are none, or all are 0."""
    sum_of_squares = sum(amount * amount for amount in amounts)
    return sum(amounts) ** 2 / (len(amounts) * sum_of_squares) if sum_of_squares else None


def shares_of(run: WatchedSimulation) -> dict[str, TeamShare]:
    """Return each team's fractions of all quota while Workloads waited, by namespace.

    Teams that requested nothing in that time are omitted.
    """
    team_records = run.watch.workload_records
    total_quota = _total_quota(run)
    teams = {name: team for name, team in sorted(team_records.teams.items()) if any(team.requested_integral.values())}
    due = _due_fractions(run, total_quota, teams)
    return {
        name: TeamShare(
            _largest_fraction(team.held_integral, total_quota, team_records.shortage_duration),
            _largest_fraction(team.requested_integral, total_quota, team_records.shortage_duration),
            due.get(name, 0.0),
        )
        for name, team in teams.items()
    }


def _largest_fraction(integrals: Mapping[str, int], total: Mapping[str, int], duration: int) -> float:
    integral_by_name = {name: integral for name, integral in integrals.items() if total.get(name)}
    return max((integral / (total[name] * duration) for name, integral in integral_by_name.items()), default=0.0)


def _total_quota(run: WatchedSimulation) -> dict[str, int]:
    quota_by_resource: dict[str, int] = {}
    for (_, _, resource), curve in run.watch.nominal_quota.items():
        quota_by_resource[resource] = quota_by_resource.get(resource, 0) + curve.value
    return quota_by_resource


def _due_fractions(
    run: WatchedSimulation, total_quota: Mapping[str, int], teams: Mapping[str, TeamUsage]
) -> dict[str, float]:
    """Return the fraction of all quota that each team is due, by the nominal quotas of its ClusterQueues.

    If any team has no nominal quota, the fractions follow the weights of the ClusterQueues instead.
    """
    namespace_queues = dict.fromkeys((record.namespace, record.cluster_queue) for record in run.workload_records)
    teams_by_queue: dict[str, list[str]] = {}
    for name, queue in namespace_queues:
        if name in teams:
            teams_by_queue.setdefault(queue, []).append(name)
    queue_views = {obj["metadata"]["name"]: cluster_queue_view(obj) for obj in run.result.objects[scheme.CLUSTER_QUEUE]}
    nominal_fractions: dict[str, float] = dict.fromkeys(teams, 0.0)
    weight_by_team: dict[str, float] = dict.fromkeys(teams, 0.0)
    for queue, names in teams_by_queue.items():
        queue_view = queue_views.get(queue)
        if queue_view is None:
            continue
        queue_quota: dict[str, int] = {}
        for quota in (quota for group in queue_view.groups for quota in group.quotas):
            queue_quota[quota.resource] = queue_quota.get(quota.resource, 0) + quota.nominal
        largest_fraction = _largest_fraction(queue_quota, total_quota, 1)
        for name in names:
            nominal_fractions[name] += largest_fraction / len(names)
            weight_by_team[name] += queue_view.weight / len(names)
    due = nominal_fractions if all(nominal_fractions.values()) else weight_by_team
    total_due = sum(due.values())
    return {name: due_part / total_due for name, due_part in due.items()} if total_due else {}
