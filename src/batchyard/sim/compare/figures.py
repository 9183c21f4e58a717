"""The figures of a comparison: totals, waits by group, quota usage, fairness, machines and costs.

A wait is the total time of a Workload without quota, after its creation and after each eviction. A Workload that has
not started waits until the later end of both runs, which is a lower bound of its wait. The size of a Workload is its
request relative to the largest request of the load, in the resource with the largest ratio. A ratio up to a tenth is
small, and up to a half is medium.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from batchyard.accounting.accounts import LOST, StatementLine
from batchyard.api import scheme
from batchyard.api.views.workload import cluster_queue_view
from batchyard.base.instant import HOUR, duration_seconds
from batchyard.sim.compare import sections
from batchyard.sim.compare.runs import ComparedRun, ComparedRuns
from batchyard.sim.compare.workload_records import FlavorResource, TeamUsage, WorkloadRecord
from batchyard.sim.time_series import Curve
from batchyard.sim.trace_report import duration_statistics
from batchyard.sim.whatif import machine_hours


@dataclass(frozen=True, slots=True)
class TeamShare:
    """A team's fractions of all quota while any Workload waited: used, requested, and due by its ClusterQueues."""

    used: float
    requested: float
    due: float

    @property
    def used_of_due(self) -> float | None:
        """Return the used fraction divided by the due fraction; None if the team was due nothing."""
        return self.used / self.due if self.due else None

    @property
    def used_of_requested(self) -> float | None:
        """Return the used fraction divided by the requested fraction; None if the team requested nothing."""
        return self.used / self.requested if self.requested else None


def jain_index(amounts: Sequence[float]) -> float | None:
    """Return Jain's fairness index of some amounts, up to 1 for equal amounts; None if there are none, or all are 0."""
    sum_of_squares = sum(amount * amount for amount in amounts)
    return sum(amounts) ** 2 / (len(amounts) * sum_of_squares) if sum_of_squares else None


def shares_of(run: ComparedRun) -> dict[str, TeamShare]:
    """Return by team (namespace) its fractions of all quota while Workloads waited, for teams that requested any."""
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


def _total_quota(run: ComparedRun) -> dict[str, int]:
    """Return the nominal quota of all ClusterQueues and Cohorts at the end of a run, by resource."""
    quota_by_resource: dict[str, int] = {}
    for (_, _, resource), curve in run.watch.nominal.items():
        quota_by_resource[resource] = quota_by_resource.get(resource, 0) + curve.value
    return quota_by_resource


def _due_fractions(
    run: ComparedRun, total_quota: Mapping[str, int], teams: Mapping[str, TeamUsage]
) -> dict[str, float]:
    """Return the fraction of all quota that each team is due, by the nominal quotas or weights of its ClusterQueues."""
    teams_by_queue: dict[str, list[str]] = {}
    for name in teams:
        team_records = [record for record in run.workload_records if record.view.namespace == name]
        for queue in dict.fromkeys(record.cluster_queue for record in team_records):
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


Figures = dict[str, float | None]
_DISPLAY_UNIT_SIZES: Final[Mapping[str, int]] = {"cpu": 1000, "memory": 1 << 30}
_NO_POOL: Final = "(no pool)"
SMALL, MEDIUM, LARGE = "small", "medium", "large"
_SIZES: Final = (SMALL, MEDIUM, LARGE)
_SMALL_FRACTION_MAX: Final = 0.1
_MEDIUM_FRACTION_MAX: Final = 0.5

_WAIT_FIGURES: Final = (
    sections.Figure("workloads", "Workloads", sections.Unit.COUNT),
    sections.Figure("neverAdmitted", "never admitted", sections.Unit.COUNT, sections.BetterDirection.LESS),
    sections.Figure("meanWait", "mean wait", sections.Unit.SECONDS, sections.BetterDirection.LESS),
    sections.Figure("p50Wait", "p50 wait", sections.Unit.SECONDS, sections.BetterDirection.LESS),
    sections.Figure("p90Wait", "p90 wait", sections.Unit.SECONDS, sections.BetterDirection.LESS),
    sections.Figure("maxWait", "longest wait", sections.Unit.SECONDS, sections.BetterDirection.LESS),
)
OVERALL_FIGURES: Final = (
    sections.Figure("workloads", "Workloads", sections.Unit.COUNT),
    sections.Figure("finished", "finished", sections.Unit.COUNT, sections.BetterDirection.MORE),
    sections.Figure("admitted", "running at the end", sections.Unit.COUNT),
    sections.Figure("pending", "waiting at the end", sections.Unit.COUNT, sections.BetterDirection.LESS),
    *_WAIT_FIGURES[1:],
    sections.Figure("makespan", "last one finished after", sections.Unit.SECONDS, sections.BetterDirection.LESS),
    sections.Figure(
        "teamSpread", "longest less shortest mean wait of teams", sections.Unit.SECONDS, sections.BetterDirection.LESS
    ),
    sections.Figure(
        "fairness",
        "fairness: Jain's index of what teams got of their due",
        sections.Unit.INDEX,
        sections.BetterDirection.MORE,
    ),
    sections.Figure(
        "service",
        "fairness: Jain's index of what teams got of what they wanted",
        sections.Unit.INDEX,
        sections.BetterDirection.MORE,
    ),
    sections.Figure("preemptions", "preemptions", sections.Unit.COUNT, sections.BetterDirection.LESS),
    sections.Figure(
        "evictions", "evictions, preemptions among them", sections.Unit.COUNT, sections.BetterDirection.LESS
    ),
    sections.Figure(
        "cutShort", "time with quota that an eviction ended", sections.Unit.HOURS, sections.BetterDirection.LESS
    ),
    sections.Figure("nodes", "nodes on average", sections.Unit.COUNT),
    sections.Figure("machineHours", "machine hours", sections.Unit.HOURS, sections.BetterDirection.LESS),
    sections.Figure(
        "lostHours", "machine hours of work that was lost", sections.Unit.HOURS, sections.BetterDirection.LESS
    ),
    sections.Figure("cost", "cost", sections.Unit.DOLLARS, sections.BetterDirection.LESS),
)
_QUOTA_FIGURES: Final = (
    sections.Figure("nominal", "quota on average", sections.Unit.COUNT),
    sections.Figure("used", "in use on average", sections.Unit.COUNT),
    sections.Figure("meanUse", "of it", sections.Unit.SHARE, sections.BetterDirection.MORE),
    sections.Figure("peakUse", "at most", sections.Unit.SHARE),
)
_QUEUE_FIGURES: Final = (
    sections.Figure("nominal", "nominal quota on average", sections.Unit.COUNT),
    sections.Figure("used", "in use on average", sections.Unit.COUNT),
    sections.Figure("meanUse", "of its quota", sections.Unit.SHARE),
    sections.Figure("peakUse", "at most", sections.Unit.SHARE),
)
_MACHINE_FIGURES: Final = (
    sections.Figure("allocatable", "there on average", sections.Unit.COUNT),
    sections.Figure("meanUse", "asked for", sections.Unit.SHARE, sections.BetterDirection.MORE),
)
_FAIRNESS_FIGURES: Final = (
    sections.Figure("got", "got of all quota", sections.Unit.SHARE),
    sections.Figure("due", "due", sections.Unit.SHARE),
    sections.Figure("gotOfDue", "got of its due", sections.Unit.SHARE),
    sections.Figure("gotOfWanted", "got of what it wanted", sections.Unit.SHARE, sections.BetterDirection.MORE),
)
_COST_FIGURES: Final = (
    sections.Figure("machineHours", "machine hours", sections.Unit.HOURS, sections.BetterDirection.LESS),
    sections.Figure("lostHours", "of lost work", sections.Unit.HOURS, sections.BetterDirection.LESS),
    sections.Figure("cost", "cost", sections.Unit.DOLLARS, sections.BetterDirection.LESS),
)
_POOL_FIGURES: Final = (
    sections.Figure("nodes", "nodes on average", sections.Unit.COUNT),
    sections.Figure("peakNodes", "at most", sections.Unit.COUNT),
    *_COST_FIGURES,
)


def sections_of(runs: ComparedRuns) -> list[sections.Section]:
    """Return all nonempty tables of a comparison."""
    size = _size_by_workload(runs)
    sections_found = [
        _overall_section(runs),
        _waits_section(runs, "team", "team", _team_of),
        _waits_section(
            runs, "clusterQueue", "ClusterQueue", lambda workload_record: workload_record.cluster_queue or "(none)"
        ),
        _waits_section(runs, "priorityClass", "priority class", _priority_class),
        _waits_section(runs, "size", "size", lambda workload_record: size.get(workload_record.view.key, SMALL)),
        _fairness_section(runs),
        _flavor_quota_section(runs),
        _queue_quota_section(runs),
        _machines_section(runs),
        _pools_section(runs),
        _teams_section(runs),
    ]
    return [section for section in sections_found if section.rows]


def overall_figures(runs: ComparedRuns, run: ComparedRun) -> Figures:
    """Return the figures of one run that summarize all its Workloads, machines and costs."""
    workload_counts, team_shares = run.result.counts, shares_of(run)
    team_means = [_mean_wait(runs, run, records_of_team) for records_of_team in _group_records(run, _team_of).values()]
    finish_times = [record.finished_at for record in run.workload_records if record.finished_at is not None]
    costs = run.result.costs
    figure_values: Figures = {
        **_wait_figures(runs, run, run.workload_records),
        "workloads": len(run.workload_records),
        "finished": len(finish_times),
        "admitted": sum(record.reserved_since is not None for record in run.workload_records),
        "pending": sum(record.is_waiting and record.deleted_at is None for record in run.workload_records),
        "makespan": duration_seconds(max(finish_times) - run.start_time) if finish_times else None,
        "teamSpread": max(team_means) - min(team_means) if team_means else None,
        "fairness": jain_index([each.used_of_due for each in team_shares.values() if each.used_of_due is not None]),
        "service": jain_index(
            [each.used_of_requested for each in team_shares.values() if each.used_of_requested is not None]
        ),
        "preemptions": workload_counts.preemptions,
        "evictions": workload_counts.evictions,
        "cutShort": sum(record.evicted_duration for record in run.workload_records) / HOUR,
    }
    if costs is not None:
        end = run.result.now
        figure_values["nodes"] = sum(curve.mean_and_peak(end)[0] for curve in run.watch.machines.nodes.values())
        figure_values["machineHours"] = machine_hours(run.result)
        figure_values["lostHours"] = sum(line.machine_hours for line in costs.by_team if line.use == LOST)
        figure_values["cost"] = costs.cents / 100
    return figure_values


def _overall_section(runs: ComparedRuns) -> sections.Section:
    section_rows = sections.merge_rows({"all": overall_figures(runs, runs.a)}, {"all": overall_figures(runs, runs.b)})
    known_figures = [figure for figure in OVERALL_FIGURES if figure.name in section_rows[0].figures]
    return sections.Section("overall", "all in all", "", known_figures, section_rows)


def _waits_section(
    runs: ComparedRuns, name: str, row_subject: str, group_of: Callable[[WorkloadRecord], str]
) -> sections.Section:
    """Return a table of waits with one row for each group of Workloads; `group` returns a Workload's group."""
    a, b = [
        {
            key: _wait_figures(runs, run, records_of_group)
            for key, records_of_group in _group_records(run, group_of).items()
        }
        for run in (runs.a, runs.b)
    ]
    rows = sorted(sections.merge_rows(a, b), key=lambda row: _SIZES.index(row.name) if row.name in _SIZES else 0)
    return sections.Section(name, f"waits by {row_subject}", row_subject, _WAIT_FIGURES, rows)


def _wait_figures(runs: ComparedRuns, run: ComparedRun, records_of_group: Sequence[WorkloadRecord]) -> Figures:
    statistics = duration_statistics([runs.wait_time(run, workload_record) for workload_record in records_of_group])
    count_figures: Figures = {
        "workloads": len(records_of_group),
        "neverAdmitted": sum(workload_record.first_start is None for workload_record in records_of_group),
    }
    names = ("meanWait", "p50Wait", "p90Wait", "maxWait")
    wait_seconds = (statistics.mean, statistics.p50, statistics.p90, statistics.max)
    wait_by_name = zip(names, wait_seconds, strict=True)
    return {**count_figures, **{name: wait if records_of_group else None for name, wait in wait_by_name}}


def _mean_wait(runs: ComparedRuns, run: ComparedRun, records_of_group: Sequence[WorkloadRecord]) -> float:
    return duration_statistics([runs.wait_time(run, workload_record) for workload_record in records_of_group]).mean


def _group_records(run: ComparedRun, group_of: Callable[[WorkloadRecord], str]) -> dict[str, list[WorkloadRecord]]:
    records_by_group: dict[str, list[WorkloadRecord]] = {}
    for workload_record in run.workload_records:
        records_by_group.setdefault(group_of(workload_record), []).append(workload_record)
    return records_by_group


def _team_of(workload_record: WorkloadRecord) -> str:
    return workload_record.view.namespace


def _priority_class(workload_record: WorkloadRecord) -> str:
    """Return the priority class of a Workload, or its priority value if it has none."""
    class_ref = workload_record.obj["spec"].get("priorityClassRef") or {}
    return str(class_ref.get("name") or f"(priority {workload_record.view.priority})")


def _size_by_workload(runs: ComparedRuns) -> dict[str, str]:
    """Return the size of each Workload (small, medium, large) by `namespace/name`."""
    requests_by_workload: dict[str, dict[str, int]] = {}
    largest_requests: dict[str, int] = {}
    for workload_record in (*runs.a.workload_records, *runs.b.workload_records):
        requests = requests_by_workload.setdefault(workload_record.view.key, {})
        for resource, amount in workload_record.requests.items():
            requests[resource] = max(requests.get(resource, 0), amount)
            largest_requests[resource] = max(largest_requests.get(resource, 0), amount)
    return {name: _size_of(requests, largest_requests) for name, requests in requests_by_workload.items()}


def _size_of(requests: Mapping[str, int], largest_requests: Mapping[str, int]) -> str:
    largest_ratio = max(
        (amount / largest_requests[resource] for resource, amount in requests.items() if largest_requests[resource]),
        default=0.0,
    )
    return SMALL if largest_ratio <= _SMALL_FRACTION_MAX else MEDIUM if largest_ratio <= _MEDIUM_FRACTION_MAX else LARGE


def _fairness_section(runs: ComparedRuns) -> sections.Section:
    note = "while some Workload waited; shares of all quota, the largest over resources"
    return sections.Section(
        "fairness",
        "what teams got while Workloads waited",
        "team",
        _FAIRNESS_FIGURES,
        sections.merge_rows(_fraction_figures(runs.a), _fraction_figures(runs.b)),
        note,
    )


def _fraction_figures(run: ComparedRun) -> dict[str, Figures]:
    return {
        name: {"got": each.used, "due": each.due, "gotOfDue": each.used_of_due, "gotOfWanted": each.used_of_requested}
        for name, each in shares_of(run).items()
    }


def _queue_row_name(at: FlavorResource) -> str:
    """Return the table row for the quota of a ClusterQueue; '' for a Cohort's own quota, which has no row."""
    return "" if at[0].startswith("Cohort/") else " ".join(at)


def _flavor_quota_section(runs: ComparedRuns) -> sections.Section:
    a, b = [_quota_figures(run, lambda at: f"{at[1]} {at[2]}") for run in (runs.a, runs.b)]
    return sections.Section(
        "quotaByFlavor", "quota in use by flavor", "quota", _QUOTA_FIGURES, sections.merge_rows(a, b)
    )


def _queue_quota_section(runs: ComparedRuns) -> sections.Section:
    a, b = [_quota_figures(run, _queue_row_name) for run in (runs.a, runs.b)]
    title, note = "quota in use by ClusterQueue", "usage above its quota is borrowed"
    return sections.Section("quotaByQueue", title, "quota", _QUEUE_FIGURES, sections.merge_rows(a, b), note)


def _quota_figures(run: ComparedRun, group: Callable[[FlavorResource], str]) -> dict[str, Figures]:
    """Return by group the mean nominal quota and its usage over a run; `group` returns a quota's group."""
    nominal, used = sum_curves(run, run.watch.nominal, group), sum_curves(run, run.watch.workload_records.used, group)
    empty_curve, rows = Curve(run.start_time), {}
    for name in sorted({**nominal, **used}):
        mean_nominal, nominal_peak = nominal.get(name, empty_curve).mean_and_peak(run.result.now)
        mean, used_peak = used.get(name, empty_curve).mean_and_peak(run.result.now)
        if nominal_peak or used_peak:
            mean_use = mean / mean_nominal if mean_nominal else None
            nominal_mean, used_mean = (to_display_units(name.rpartition(" ")[2], each) for each in (mean_nominal, mean))
            peak_use = used_peak / nominal_peak if nominal_peak else None
            rows[name] = {"nominal": nominal_mean, "used": used_mean, "meanUse": mean_use, "peakUse": peak_use}
    return rows


def sum_curves(
    run: ComparedRun, curves: Mapping[FlavorResource, Curve], group_of: Callable[[FlavorResource], str]
) -> dict[str, Curve]:
    """Return by group the sum of quota amounts over time; `group` returns a quota's group, '' to omit the quota."""
    groups: dict[str, list[Curve]] = {}
    for at, curve in curves.items():
        groups.setdefault(group_of(at), []).append(curve)
    return {name: Curve.sum_of(curves_of_group, run.start_time) for name, curves_of_group in groups.items() if name}


def _machines_section(runs: ComparedRuns) -> sections.Section:
    title = "requests of pods on nodes, by pool"
    section_rows = sections.merge_rows(_machine_figures(runs.a), _machine_figures(runs.b))
    return sections.Section("machines", title, "pool", _MACHINE_FIGURES, section_rows)


def _machine_figures(run: ComparedRun) -> dict[str, Figures]:
    machine_usage, end, figures_by_row = run.watch.machines, run.result.now, {}
    for (pool, resource), curve in sorted(machine_usage.total.items()):
        allocatable, used_curve = curve.mean_and_peak(end)[0], machine_usage.used.get((pool, resource))
        mean_request = 0.0 if used_curve is None else used_curve.mean_and_peak(end)[0]
        figures_by_row[f"{pool or _NO_POOL} {resource}"] = {
            "allocatable": to_display_units(resource, allocatable),
            "meanUse": mean_request / allocatable if allocatable else None,
        }
    return figures_by_row


def _pools_section(runs: ComparedRuns) -> sections.Section:
    section_rows = sections.merge_rows(_pool_figures(runs.a), _pool_figures(runs.b))
    return sections.Section("pools", "nodes and costs by pool", "pool", _POOL_FIGURES, section_rows)


def _pool_figures(run: ComparedRun) -> dict[str, Figures]:
    costs = run.result.costs
    figures_by_pool: dict[str, Figures] = {}
    for pool, curve in sorted(run.watch.machines.nodes.items()):
        mean, peak = curve.mean_and_peak(run.result.now)
        lines = () if costs is None else [line for line in costs.by_pool if line.pool == pool]
        figures_by_pool[pool or _NO_POOL] = {"nodes": mean, "peakNodes": peak, **_cost_figures(lines)}
    return figures_by_pool


def _teams_section(runs: ComparedRuns) -> sections.Section:
    note = "unused time is idle, or booting until a node is ready"
    section_rows = sections.merge_rows(_team_figures(runs.a), _team_figures(runs.b))
    return sections.Section("teams", "costs by team", "team", _COST_FIGURES, section_rows, note)


def _team_figures(run: ComparedRun) -> dict[str, Figures]:
    lines_by_team: dict[str, list[StatementLine]] = {}
    for line in () if run.result.costs is None else run.result.costs.by_team:
        lines_by_team.setdefault(line.team or f"({line.use})", []).append(line)
    return {name: _cost_figures(lines) for name, lines in lines_by_team.items()}


def _cost_figures(lines: Sequence[StatementLine]) -> Figures:
    return {
        "machineHours": sum(line.machine_hours for line in lines),
        "lostHours": sum(line.machine_hours for line in lines if line.use == LOST),
        "cost": sum(line.cents for line in lines) / 100,
    }


def to_display_units(resource: str, amount: float) -> float:
    """Return an amount in the unit in which it is shown: cpu in cores, memory in GiB, others unchanged."""
    return amount / _DISPLAY_UNIT_SIZES.get(resource, 1)
