"""Fairness of a run, in the time in which Workloads waited.

A team held a share of the quota of each resource, as a mean over that time; the largest of these is what it got. Its
due is the same of the nominal quota of its ClusterQueues. If a team has none, all dues follow from the weights of the
ClusterQueues. Several teams of one ClusterQueue divide its due equally. Jain's index measures the equality of the
ratios of got to due: 1 if all are equal, 1/n if one of n teams got everything. Source: Jain, Chiu, Hawe, A Quantitative
Measure of Fairness and Discrimination (DEC TR-301, 1984).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from batchyard.api import scheme
from batchyard.api.views.queues import cluster_queue_view
from batchyard.sim.compare.runs import ComparedRun
from batchyard.sim.compare.workload_records import TeamUsage


@dataclass(frozen=True, slots=True)
class TeamShare:
    """The shares of a team while Workloads waited: got and wanted of all quota, and its part of all dues."""

    got: float
    wanted: float
    due: float

    @property
    def of_due(self) -> float | None:
        """Return the ratio of got to due; None if nothing was due."""
        return self.got / self.due if self.due else None

    @property
    def of_wanted(self) -> float | None:
        """Return the ratio of got to wanted."""
        return self.got / self.wanted if self.wanted else None


def jain(amounts: Sequence[float]) -> float | None:
    """Return Jain's index of some amounts; None if there are none, or all are 0."""
    squares = sum(amount * amount for amount in amounts)
    return sum(amounts) ** 2 / (len(amounts) * squares) if squares else None


def shares_of(run: ComparedRun) -> dict[str, TeamShare]:
    """Return the shares of the teams with requests while Workloads waited, by name; empty if none ever waited."""
    lives = run.watch.lives
    total = _total_quota(run)
    teams = {name: team for name, team in sorted(lives.teams.items()) if any(team.wanted_while_short.values())}
    due = _due(run, total, teams)
    return {
        name: TeamShare(
            _largest(team.held_while_short, total, lives.short_for),
            _largest(team.wanted_while_short, total, lives.short_for),
            due.get(name, 0.0),
        )
        for name, team in teams.items()
    }


def _largest(areas: Mapping[str, int], total: Mapping[str, int], lasted: int) -> float:
    shares = [area / (total[resource] * lasted) for resource, area in areas.items() if total.get(resource)]
    return max(shares, default=0.0)


def _total_quota(run: ComparedRun) -> dict[str, int]:
    """Return all nominal quota at the end by resource, including that of Cohorts."""
    total: dict[str, int] = {}
    for (_, _, resource), curve in run.watch.nominal.items():
        total[resource] = total.get(resource, 0) + curve.value
    return total


def _due(run: ComparedRun, total: Mapping[str, int], teams: Mapping[str, TeamUsage]) -> dict[str, float]:
    """Return each team's part of all dues."""
    users: dict[str, list[str]] = {}
    for name in teams:
        for queue in dict.fromkeys(life.cluster_queue for life in run.lives if life.view.namespace == name):
            users.setdefault(queue, []).append(name)
    views = {obj["metadata"]["name"]: cluster_queue_view(obj) for obj in run.result.objects[scheme.CLUSTER_QUEUE]}
    nominal: dict[str, float] = dict.fromkeys(teams, 0.0)
    weights: dict[str, float] = dict.fromkeys(teams, 0.0)
    for queue, names in users.items():
        view = views.get(queue)
        if view is None:
            continue
        own: dict[str, int] = {}
        for quota in (quota for group in view.groups for quota in group.quotas):
            own[quota.resource] = own.get(quota.resource, 0) + quota.nominal
        share = _largest(own, total, 1)
        for name in names:
            nominal[name] += share / len(names)
            weights[name] += view.weight / len(names)
    due = nominal if all(nominal.values()) else weights
    whole = sum(due.values())
    return {name: part / whole for name, part in due.items()} if whole else {}
