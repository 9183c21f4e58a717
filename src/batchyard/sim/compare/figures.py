"""The figures of a comparison: totals, waits by groups, utilisation, fairness, machines and costs.

A wait is all the time that a Workload was without quota, from its creation on, and again after each eviction. A
Workload that has not started waits until the later end of both runs, which is a lower bound of its wait. The size of a
Workload is relative to the largest request of the load, resource by resource. It is small up to a tenth of it, and
medium up to a half.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from batchyard.accounting.accounts import LOST, StatementLine
from batchyard.api import scheme
from batchyard.api.views.workload import cluster_queue_view
from batchyard.base.instant import HOUR, seconds
from batchyard.sim.compare.runs import ComparedRun, ComparedRuns
from batchyard.sim.compare.sections import (
    BetterDirection,
    Figure,
    Section,
    Unit,
    joined,
)
from batchyard.sim.compare.workload_records import FlavorResource, TeamUsage, WorkloadLife
from batchyard.sim.time_series import Curve
from batchyard.sim.trace_report import duration_statistics
from batchyard.sim.whatif import machine_hours


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


Figures = dict[str, float | None]
_PARTS: Final[Mapping[str, int]] = {"cpu": 1000, "memory": 1 << 30}
_NO_POOL: Final = "(no pool)"
SMALL, MEDIUM, LARGE = "small", "medium", "large"
_SIZES: Final = (SMALL, MEDIUM, LARGE)
_SMALL_MAX: Final = 0.1
_MEDIUM_MAX: Final = 0.5

_WAITS: Final = (
    Figure("workloads", "Workloads", Unit.COUNT),
    Figure("neverAdmitted", "never admitted", Unit.COUNT, BetterDirection.LESS),
    Figure("meanWait", "mean wait", Unit.SECONDS, BetterDirection.LESS),
    Figure("p50Wait", "p50 wait", Unit.SECONDS, BetterDirection.LESS),
    Figure("p90Wait", "p90 wait", Unit.SECONDS, BetterDirection.LESS),
    Figure("maxWait", "longest wait", Unit.SECONDS, BetterDirection.LESS),
)
OVERALL: Final = (
    Figure("workloads", "Workloads", Unit.COUNT),
    Figure("finished", "finished", Unit.COUNT, BetterDirection.MORE),
    Figure("admitted", "running at the end", Unit.COUNT),
    Figure("pending", "waiting at the end", Unit.COUNT, BetterDirection.LESS),
    *_WAITS[1:],
    Figure("makespan", "last one finished after", Unit.SECONDS, BetterDirection.LESS),
    Figure("teamSpread", "longest less shortest mean wait of teams", Unit.SECONDS, BetterDirection.LESS),
    Figure("fairness", "fairness: Jain's index of what teams got of their due", Unit.INDEX, BetterDirection.MORE),
    Figure("service", "fairness: Jain's index of what teams got of what they wanted", Unit.INDEX, BetterDirection.MORE),
    Figure("preemptions", "preemptions", Unit.COUNT, BetterDirection.LESS),
    Figure("evictions", "evictions, preemptions among them", Unit.COUNT, BetterDirection.LESS),
    Figure("cutShort", "time with quota that an eviction ended", Unit.HOURS, BetterDirection.LESS),
    Figure("nodes", "nodes on average", Unit.COUNT),
    Figure("machineHours", "machine hours", Unit.HOURS, BetterDirection.LESS),
    Figure("lostHours", "machine hours of work that was lost", Unit.HOURS, BetterDirection.LESS),
    Figure("cost", "cost", Unit.DOLLARS, BetterDirection.LESS),
)
_QUOTA: Final = (
    Figure("nominal", "quota on average", Unit.COUNT),
    Figure("used", "in use on average", Unit.COUNT),
    Figure("meanUse", "of it", Unit.SHARE, BetterDirection.MORE),
    Figure("peakUse", "at most", Unit.SHARE),
)
_QUEUES: Final = (
    Figure("nominal", "nominal quota on average", Unit.COUNT),
    Figure("used", "in use on average", Unit.COUNT),
    Figure("meanUse", "of its quota", Unit.SHARE),
    Figure("peakUse", "at most", Unit.SHARE),
)
_MACHINES: Final = (
    Figure("allocatable", "there on average", Unit.COUNT),
    Figure("meanUse", "asked for", Unit.SHARE, BetterDirection.MORE),
)
_FAIRNESS: Final = (
    Figure("got", "got of all quota", Unit.SHARE),
    Figure("due", "due", Unit.SHARE),
    Figure("gotOfDue", "got of its due", Unit.SHARE),
    Figure("gotOfWanted", "got of what it wanted", Unit.SHARE, BetterDirection.MORE),
)
_COSTS: Final = (
    Figure("machineHours", "machine hours", Unit.HOURS, BetterDirection.LESS),
    Figure("lostHours", "of lost work", Unit.HOURS, BetterDirection.LESS),
    Figure("cost", "cost", Unit.DOLLARS, BetterDirection.LESS),
)
_POOLS: Final = (
    Figure("nodes", "nodes on average", Unit.COUNT),
    Figure("peakNodes", "at most", Unit.COUNT),
    *_COSTS,
)


def sections_of(runs: ComparedRuns) -> list[Section]:
    """Return all sections; empty ones are left out."""
    size = _sizes(runs)
    found = [
        _overall(runs),
        _waits(runs, "team", "team", _team),
        _waits(runs, "clusterQueue", "ClusterQueue", lambda life: life.cluster_queue or "(none)"),
        _waits(runs, "priorityClass", "priority class", _priority_class),
        _waits(runs, "size", "size", lambda life: size.get(life.view.key, SMALL)),
        _fairness(runs),
        _quota_by_flavor(runs),
        _quota_by_queue(runs),
        _machines(runs),
        _pools(runs),
        _teams(runs),
    ]
    return [section for section in found if section.rows]


def overall(runs: ComparedRuns, run: ComparedRun) -> Figures:
    """Return the overall figures of one run."""
    counts, shares = run.result.counts, shares_of(run)
    teams = [_mean(runs, run, lives) for lives in _grouped(run, _team).values()]
    ended = [life.finished for life in run.lives if life.finished is not None]
    costs = run.result.costs
    totals: Figures = {
        **_waits_of(runs, run, run.lives),
        "workloads": len(run.lives),
        "finished": len(ended),
        "admitted": sum(life.since is not None for life in run.lives),
        "pending": sum(life.waits and life.gone is None for life in run.lives),
        "makespan": seconds(max(ended) - run.begun) if ended else None,
        "teamSpread": max(teams) - min(teams) if teams else None,
        "fairness": jain([each.of_due for each in shares.values() if each.of_due is not None]),
        "service": jain([each.of_wanted for each in shares.values() if each.of_wanted is not None]),
        "preemptions": counts.preemptions,
        "evictions": counts.evictions,
        "cutShort": sum(life.cut_short for life in run.lives) / HOUR,
    }
    if costs is not None:
        end = run.result.now
        totals["nodes"] = sum(curve.summed(end)[0] for curve in run.watch.machines.nodes.values())
        totals["machineHours"] = machine_hours(run.result)
        totals["lostHours"] = sum(line.machine_hours for line in costs.by_team if line.use == LOST)
        totals["cost"] = costs.cents / 100
    return totals


def _overall(runs: ComparedRuns) -> Section:
    rows = joined({"all": overall(runs, runs.a)}, {"all": overall(runs, runs.b)})
    there = [figure for figure in OVERALL if figure.name in rows[0].figures]
    return Section("overall", "all in all", "", there, rows)


def _waits(runs: ComparedRuns, name: str, about: str, group: Callable[[WorkloadLife], str]) -> Section:
    """Return the waits of Workloads by a common property."""
    a, b = [
        {key: _waits_of(runs, run, lives) for key, lives in _grouped(run, group).items()} for run in (runs.a, runs.b)
    ]
    rows = sorted(joined(a, b), key=lambda row: _SIZES.index(row.name) if row.name in _SIZES else 0)
    return Section(name, f"waits by {about}", about, _WAITS, rows)


def _waits_of(runs: ComparedRuns, run: ComparedRun, lives: Sequence[WorkloadLife]) -> Figures:
    spread = duration_statistics([runs.waited(run, life) for life in lives])
    counts: Figures = {"workloads": len(lives), "neverAdmitted": sum(life.started is None for life in lives)}
    waits = zip(
        ("meanWait", "p50Wait", "p90Wait", "maxWait"), (spread.mean, spread.p50, spread.p90, spread.max), strict=True
    )
    return {**counts, **{name: wait if lives else None for name, wait in waits}}


def _mean(runs: ComparedRuns, run: ComparedRun, lives: Sequence[WorkloadLife]) -> float:
    return duration_statistics([runs.waited(run, life) for life in lives]).mean


def _grouped(run: ComparedRun, group: Callable[[WorkloadLife], str]) -> dict[str, list[WorkloadLife]]:
    groups: dict[str, list[WorkloadLife]] = {}
    for life in run.lives:
        groups.setdefault(group(life), []).append(life)
    return groups


def _team(life: WorkloadLife) -> str:
    return life.view.namespace


def _priority_class(life: WorkloadLife) -> str:
    """Return its priority class, or its priority value without one."""
    named = life.obj["spec"].get("priorityClassRef") or {}
    return str(named.get("name") or f"(priority {life.view.priority})")


def _sizes(runs: ComparedRuns) -> dict[str, str]:
    """Return the size of each Workload by namespace and name."""
    asked: dict[str, dict[str, int]] = {}
    most: dict[str, int] = {}
    for life in (*runs.a.lives, *runs.b.lives):
        requests = asked.setdefault(life.view.key, {})
        for resource, amount in life.asked.items():
            requests[resource] = max(requests.get(resource, 0), amount)
            most[resource] = max(most.get(resource, 0), amount)
    return {name: _size(requests, most) for name, requests in asked.items()}


def _size(requests: Mapping[str, int], most: Mapping[str, int]) -> str:
    share = max((amount / most[resource] for resource, amount in requests.items() if most[resource]), default=0.0)
    return SMALL if share <= _SMALL_MAX else MEDIUM if share <= _MEDIUM_MAX else LARGE


def _fairness(runs: ComparedRuns) -> Section:
    note = "while some Workload waited; shares of all quota, the largest over resources"
    return Section(
        "fairness",
        "what teams got while Workloads waited",
        "team",
        _FAIRNESS,
        joined(_shares(runs.a), _shares(runs.b)),
        note,
    )


def _shares(run: ComparedRun) -> dict[str, Figures]:
    return {
        name: {"got": each.got, "due": each.due, "gotOfDue": each.of_due, "gotOfWanted": each.of_wanted}
        for name, each in shares_of(run).items()
    }


def _by_queue(at: FlavorResource) -> str:
    """Return '' for a Cohort's quota: its users are counted with their ClusterQueues."""
    return "" if at[0].startswith("Cohort/") else " ".join(at)


def _quota_by_flavor(runs: ComparedRuns) -> Section:
    a, b = [_quota_of(run, lambda at: f"{at[1]} {at[2]}") for run in (runs.a, runs.b)]
    return Section("quotaByFlavor", "quota in use by flavor", "quota", _QUOTA, joined(a, b))


def _quota_by_queue(runs: ComparedRuns) -> Section:
    a, b = [_quota_of(run, _by_queue) for run in (runs.a, runs.b)]
    title, note = "quota in use by ClusterQueue", "usage above its quota is borrowed"
    return Section("quotaByQueue", title, "quota", _QUEUES, joined(a, b), note)


def _quota_of(run: ComparedRun, group: Callable[[FlavorResource], str]) -> dict[str, Figures]:
    """Return the quota and its usage, summed by a group name, over the whole run."""
    nominal, used = together(run, run.watch.nominal, group), together(run, run.watch.lives.used, group)
    nothing, rows = Curve(run.begun), {}
    for name in sorted({**nominal, **used}):
        amount, most = nominal.get(name, nothing).summed(run.result.now)
        mean, peak = used.get(name, nothing).summed(run.result.now)
        if most or peak:
            share = mean / amount if amount else None
            nominal_mean, used_mean = (in_units(name.rpartition(" ")[2], each) for each in (amount, mean))
            most_share = peak / most if most else None
            rows[name] = {"nominal": nominal_mean, "used": used_mean, "meanUse": share, "peakUse": most_share}
    return rows


def together(
    run: ComparedRun, curves: Mapping[FlavorResource, Curve], group: Callable[[FlavorResource], str]
) -> dict[str, Curve]:
    """Return the sums of the curves with the same group name."""
    groups: dict[str, list[Curve]] = {}
    for at, curve in curves.items():
        groups.setdefault(group(at), []).append(curve)
    return {name: Curve.sum_of(found, run.begun) for name, found in groups.items() if name}


def _machines(runs: ComparedRuns) -> Section:
    title = "requests of pods on nodes, by pool"
    return Section("machines", title, "pool", _MACHINES, joined(_machine_use(runs.a), _machine_use(runs.b)))


def _machine_use(run: ComparedRun) -> dict[str, Figures]:
    machines, end, rows = run.watch.machines, run.result.now, {}
    for (pool, resource), curve in sorted(machines.total.items()):
        there, used = curve.summed(end)[0], machines.used.get((pool, resource))
        asked = 0.0 if used is None else used.summed(end)[0]
        rows[f"{pool or _NO_POOL} {resource}"] = {
            "allocatable": in_units(resource, there),
            "meanUse": asked / there if there else None,
        }
    return rows


def _pools(runs: ComparedRuns) -> Section:
    return Section("pools", "nodes and costs by pool", "pool", _POOLS, joined(_by_pool(runs.a), _by_pool(runs.b)))


def _by_pool(run: ComparedRun) -> dict[str, Figures]:
    costs = run.result.costs
    rows: dict[str, Figures] = {}
    for pool, curve in sorted(run.watch.machines.nodes.items()):
        mean, peak = curve.summed(run.result.now)
        lines = () if costs is None else [line for line in costs.by_pool if line.pool == pool]
        rows[pool or _NO_POOL] = {"nodes": mean, "peakNodes": peak, **_spent(lines)}
    return rows


def _teams(runs: ComparedRuns) -> Section:
    note = "unused time is idle, or booting until a node is ready"
    return Section("teams", "costs by team", "team", _COSTS, joined(_by_team(runs.a), _by_team(runs.b)), note)


def _by_team(run: ComparedRun) -> dict[str, Figures]:
    groups: dict[str, list[StatementLine]] = {}
    for line in () if run.result.costs is None else run.result.costs.by_team:
        groups.setdefault(line.team or f"({line.use})", []).append(line)
    return {name: _spent(lines) for name, lines in groups.items()}


def _spent(lines: Sequence[StatementLine]) -> Figures:
    return {
        "machineHours": sum(line.machine_hours for line in lines),
        "lostHours": sum(line.machine_hours for line in lines if line.use == LOST),
        "cost": sum(line.cents for line in lines) / 100,
    }


def in_units(resource: str, amount: float) -> float:
    """Convert an amount to its display unit: cpus instead of thousandths, memory in GiB."""
    return amount / _PARTS.get(resource, 1)
