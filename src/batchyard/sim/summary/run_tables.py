"""The tables of one run: totals, waits by group, quota usage, fairness, machines and costs.

A wait is the total time of a Workload without quota, after its creation and after each eviction. A Workload that has
not started waits until the end of the run, or of the longer run of a comparison, which is a lower bound of its wait.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

from batchyard.accounting.accounts import LOST, StatementLine
from batchyard.base.instant import HOUR, SECOND, duration_seconds
from batchyard.sim.summary.fairness import jain_index, shares_of
from batchyard.sim.summary.figure import GIBIBYTE, BetterDirection, Figure, Figures, FigureTable, Unit
from batchyard.sim.summary.run_watch import WatchedSimulation
from batchyard.sim.summary.workload_records import FlavorResource, WorkloadRecord
from batchyard.sim.time_series import Curve
from batchyard.sim.trace_report import duration_statistics
from batchyard.sim.whatif import machine_hours

_DISPLAY_UNIT_SIZES: Final[Mapping[str, int]] = {"cpu": 1000, "memory": GIBIBYTE}
_NO_POOL: Final = "(no pool)"

_WAIT_FIGURES: Final = (
    Figure("workloads", "Workloads", Unit.COUNT),
    Figure("neverAdmitted", "never admitted", Unit.COUNT, BetterDirection.LESS),
    Figure("meanWait", "mean wait", Unit.SECONDS, BetterDirection.LESS),
    Figure("p50Wait", "p50 wait", Unit.SECONDS, BetterDirection.LESS),
    Figure("p90Wait", "p90 wait", Unit.SECONDS, BetterDirection.LESS),
    Figure("maxWait", "longest wait", Unit.SECONDS, BetterDirection.LESS),
)
OVERALL_FIGURES: Final = (
    Figure("workloads", "Workloads", Unit.COUNT),
    Figure("finished", "finished", Unit.COUNT, BetterDirection.MORE),
    Figure("admitted", "running at the end", Unit.COUNT),
    Figure("awaitingChecks", "with quota, waiting for admission checks at the end", Unit.COUNT),
    Figure("pending", "waiting at the end", Unit.COUNT, BetterDirection.LESS),
    *_WAIT_FIGURES[1:],
    Figure("makespan", "makespan", Unit.SECONDS, BetterDirection.LESS),
    Figure("teamSpread", "spread of the mean waits of teams", Unit.SECONDS, BetterDirection.LESS),
    Figure("fairness", "fairness: Jain's index of used over fair shares", Unit.INDEX, BetterDirection.MORE),
    Figure("service", "fairness: Jain's index of used over requested shares", Unit.INDEX, BetterDirection.MORE),
    Figure("preemptions", "preemptions", Unit.COUNT, BetterDirection.LESS),
    Figure("evictions", "evictions, with preemptions", Unit.COUNT, BetterDirection.LESS),
    Figure("cutShort", "time with quota before evictions", Unit.HOURS, BetterDirection.LESS),
    Figure("nodes", "mean nodes", Unit.COUNT),
    Figure("machineHours", "machine hours", Unit.HOURS, BetterDirection.LESS),
    Figure("lostHours", "machine hours of lost work", Unit.HOURS, BetterDirection.LESS),
    Figure("cost", "cost", Unit.DOLLARS, BetterDirection.LESS),
)
#: The time with quota that evictions ended, in seconds.
EVICTED_WORK_FIGURE: Final = Figure("evictedWork", "evicted work", Unit.SECONDS, BetterDirection.LESS)
_OUTCOME_FIGURES: Final = (
    Figure("workloads", "Workloads", Unit.COUNT),
    Figure("finished", "finished", Unit.COUNT, BetterDirection.MORE),
    Figure("admitted", "running", Unit.COUNT),
    Figure("awaitingChecks", "awaiting checks", Unit.COUNT),
    Figure("pending", "pending", Unit.COUNT, BetterDirection.LESS),
    *_WAIT_FIGURES[1:-1],
    Figure("maxWait", "max wait", Unit.SECONDS, BetterDirection.LESS),
    Figure("preemptions", "preemptions", Unit.COUNT, BetterDirection.LESS),
    EVICTED_WORK_FIGURE,
)
_QUOTA_USE_FIGURE: Final = Figure("meanUse", "quota in use", Unit.SHARE, BetterDirection.MORE)
_QUOTA_FIGURES: Final = (
    Figure("nominal", "mean quota", Unit.AMOUNT),
    Figure("used", "mean use", Unit.AMOUNT),
    Figure("meanUse", "utilization", Unit.SHARE, BetterDirection.MORE),
    Figure("peakUse", "peak", Unit.SHARE),
)
_QUEUE_FIGURES: Final = (
    Figure("nominal", "mean nominal quota", Unit.AMOUNT),
    Figure("used", "mean use", Unit.AMOUNT),
    Figure("meanUse", "utilization", Unit.SHARE),
    Figure("peakUse", "peak", Unit.SHARE),
)
_MACHINE_FIGURES: Final = (
    Figure("allocatable", "mean allocatable", Unit.AMOUNT),
    Figure("meanUse", "requested", Unit.SHARE, BetterDirection.MORE),
)
_FAIRNESS_FIGURES: Final = (
    Figure("got", "used share", Unit.SHARE),
    Figure("due", "fair share", Unit.SHARE),
    Figure("gotOfDue", "used of fair share", Unit.SHARE),
    Figure("gotOfWanted", "used of requested", Unit.SHARE, BetterDirection.MORE),
)
_COST_FIGURES: Final = (
    Figure("machineHours", "machine hours", Unit.HOURS, BetterDirection.LESS),
    Figure("lostHours", "hours of lost work", Unit.HOURS, BetterDirection.LESS),
    Figure("cost", "cost", Unit.DOLLARS, BetterDirection.LESS),
)
_POOL_FIGURES: Final = (
    Figure("nodes", "mean nodes", Unit.COUNT),
    Figure("peakNodes", "peak nodes", Unit.COUNT),
    *_COST_FIGURES,
)


Grouping: TypeAlias = Callable[[WorkloadRecord], str]


def team_of(workload_record: WorkloadRecord) -> str:
    """Return the team of a Workload: its namespace."""
    return workload_record.namespace


def queue_of(workload_record: WorkloadRecord) -> str:
    """Return the ClusterQueue of a Workload; `(none)` if it is unknown."""
    return workload_record.cluster_queue or "(none)"


def flavors_text_of(workload_record: WorkloadRecord) -> str:
    """Return the names of the flavors in which a Workload last held quota; `(never admitted)` if it never held any."""
    return workload_record.flavors or "(never admitted)"


def priority_of(workload_record: WorkloadRecord) -> str:
    """Return the priority class of a Workload, or `(priority VALUE)` if it has none."""
    class_ref = workload_record.obj["spec"].get("priorityClassRef") or {}
    return str(class_ref.get("name") or f"(priority {workload_record.view.priority})")


def overall_figures(run: WatchedSimulation) -> Figures:
    """Return the figures of one run that summarize all its Workloads, and its machines and costs if these are known."""
    workload_counts, team_shares = run.result.counts, shares_of(run)
    team_means = [_mean_wait(run, records_of_team) for records_of_team in _group_records(run, team_of).values()]
    finish_times = [record.finished_at for record in run.workload_records if record.finished_at is not None]
    costs = run.result.costs
    figure_values: Figures = {
        **_wait_figures(run, run.workload_records),
        **_outcome_figures(run.workload_records),
        "makespan": duration_seconds(max(finish_times) - run.start_time) if finish_times else None,
        "teamSpread": max(team_means) - min(team_means) if team_means else None,
        "fairness": jain_index(
            [each.used_to_due_ratio for each in team_shares.values() if each.used_to_due_ratio is not None]
        ),
        "service": jain_index(
            [each.used_to_requested_ratio for each in team_shares.values() if each.used_to_requested_ratio is not None]
        ),
        "preemptions": workload_counts.preemptions,
        "evictions": workload_counts.evictions,
    }
    figure_values["cutShort"] = sum(record.evicted_duration for record in run.workload_records) / HOUR
    if costs is not None:
        end = run.result.now
        figure_values["nodes"] = sum(curve.mean_and_peak(end)[0] for curve in run.watch.machines.node_curves.values())
        figure_values["machineHours"] = machine_hours(run.result)
        figure_values["lostHours"] = sum(line.machine_hours for line in costs.by_team if line.use == LOST)
        figure_values["cost"] = costs.cents / 100
    return figure_values


def _outcome_figures(records: Sequence[WorkloadRecord]) -> Figures:
    with_quota = [record for record in records if record.reserved_since is not None]
    admitted_count = sum(record.view.admitted for record in with_quota)
    return {
        "finished": sum(record.finished_at is not None for record in records),
        "admitted": admitted_count,
        "awaitingChecks": len(with_quota) - admitted_count,
        "pending": sum(record.is_waiting and record.deleted_at is None for record in records),
        "evictedWork": sum(record.evicted_duration for record in records) / SECOND,
    }


def overall_table(run: WatchedSimulation) -> FigureTable:
    """Return the totals of one run as a table of one row."""
    figure_values = overall_figures(run)
    known_figures = [figure for figure in OVERALL_FIGURES if figure.name in figure_values]
    return FigureTable("overall", "totals", "", known_figures, {"all": figure_values})


def waits_table(run: WatchedSimulation, name: str, row_subject: str, group_of: Grouping) -> FigureTable:
    """Return the waits of one run with one row for each group of Workloads; `group_of` returns a Workload's group."""
    rows = {group: _wait_figures(run, records) for group, records in _group_records(run, group_of).items()}
    return FigureTable(name, f"waits by {row_subject}", row_subject, _WAIT_FIGURES, rows)


def outcome_table(run: WatchedSimulation, name: str, row_subject: str, group_of: Grouping) -> FigureTable:
    """Return a table with one row for each group of Workloads: states at the end, waits, preemptions, evicted work.

    `group_of` returns a Workload's group. The tables named `queue` and `flavor` also contain the utilization of quota,
    if there is quota.
    """
    quota_use = {"queue": _mean_quota_usage_by_name(run, 0), "flavor": _mean_quota_usage_by_name(run, 1)}.get(name, {})
    rows = {
        group: {
            **_wait_figures(run, records),
            **_outcome_figures(records),
            "preemptions": sum(run.result.waits.preemption_count(record.obj) for record in records),
            **({"meanUse": quota_use.get(group)} if quota_use else {}),
        }
        for group, records in _group_records(run, group_of).items()
    }
    figures = [*_OUTCOME_FIGURES, *([_QUOTA_USE_FIGURE] if quota_use else [])]
    return FigureTable(name, f"Workloads by {row_subject}", row_subject, figures, dict(sorted(rows.items())))


def _mean_quota_usage_by_name(run: WatchedSimulation, quota_key_index: int) -> dict[str, float | None]:
    """Return the mean usage of quota in the most used resource by ClusterQueue (`quota_key_index` 0) or flavor (1)."""
    use_by_name: dict[str, float | None] = {}
    for row_name, figures in quota_figures(
        run, lambda quota_key: "" if _is_of_cohort(quota_key) else f"{quota_key[quota_key_index]} {quota_key[2]}"
    ).items():
        name, use = row_name.partition(" ")[0], figures["meanUse"]
        use_by_name[name] = use if use_by_name.get(name) is None else max(use or 0, use_by_name[name] or 0)
    return use_by_name


def _wait_figures(run: WatchedSimulation, records_of_group: Sequence[WorkloadRecord]) -> Figures:
    statistics = duration_statistics(map(run.wait_time, records_of_group))
    count_figures: Figures = {
        "workloads": len(records_of_group),
        "neverAdmitted": sum(workload_record.first_start is None for workload_record in records_of_group),
    }
    names = ("meanWait", "p50Wait", "p90Wait", "maxWait")
    wait_seconds = (statistics.mean, statistics.p50, statistics.p90, statistics.max)
    wait_by_name = zip(names, wait_seconds, strict=True)
    return {**count_figures, **{name: wait if records_of_group else None for name, wait in wait_by_name}}


def _mean_wait(run: WatchedSimulation, records_of_group: Sequence[WorkloadRecord]) -> float:
    return duration_statistics(map(run.wait_time, records_of_group)).mean


def _group_records(run: WatchedSimulation, group_of: Grouping) -> dict[str, list[WorkloadRecord]]:
    records_by_group: dict[str, list[WorkloadRecord]] = {}
    for workload_record in run.workload_records:
        records_by_group.setdefault(group_of(workload_record), []).append(workload_record)
    return records_by_group


def fairness_table(run: WatchedSimulation) -> FigureTable:
    """Return the share of all quota that each team used while Workloads waited, and its fair share."""
    note = "shares of all quota, the largest over resources, while a Workload waited"
    rows: dict[str, Figures] = {
        name: {
            "got": each.used,
            "due": each.due,
            "gotOfDue": each.used_to_due_ratio,
            "gotOfWanted": each.used_to_requested_ratio,
        }
        for name, each in shares_of(run).items()
    }
    return FigureTable("fairness", "shares of teams while Workloads waited", "team", _FAIRNESS_FIGURES, rows, note)


def _is_of_cohort(quota_key: FlavorResource) -> bool:
    return quota_key[0].startswith("Cohort/")


def flavor_quota_table(run: WatchedSimulation) -> FigureTable:
    """Return the quota of ClusterQueues and Cohorts, and the usage of it, by flavor and resource."""
    rows = quota_figures(run, lambda quota_key: f"{quota_key[1]} {quota_key[2]}")
    return FigureTable("quotaByFlavor", "quota in use by flavor", "quota", _QUOTA_FIGURES, rows)


def queue_quota_table(run: WatchedSimulation) -> FigureTable:
    """Return the quota and its usage by ClusterQueue, flavor and resource, without quotas that Cohorts define."""
    rows = quota_figures(run, lambda quota_key: "" if _is_of_cohort(quota_key) else " ".join(quota_key))
    title, note = "quota in use by ClusterQueue", "usage above its quota is borrowed"
    return FigureTable("quotaByQueue", title, "quota", _QUEUE_FIGURES, rows, note)


def quota_figures(run: WatchedSimulation, group_of: Callable[[FlavorResource], str]) -> dict[str, Figures]:
    """Return by group the mean nominal quota, the mean amount in use, and the mean and peak use as shares of the quota.

    `group_of` returns the group of a quota, '' to omit the quota. Amounts are in display units of a
    resource, which is the last word of the group's name. Groups with neither quota nor use are omitted.
    """
    nominal = sum_curves(run, run.watch.nominal_quota, group_of)
    used = sum_curves(run, run.watch.workload_records.usage_curves, group_of)
    empty_curve, rows = Curve(run.start_time), {}
    for name in sorted({**nominal, **used}):
        mean_nominal, nominal_peak = nominal.get(name, empty_curve).mean_and_peak(run.result.now)
        mean, used_peak = used.get(name, empty_curve).mean_and_peak(run.result.now)
        if nominal_peak or used_peak:
            mean_use = mean / mean_nominal if mean_nominal else None
            shown_nominal, shown_use = (
                to_display_units(name.rpartition(" ")[2], each) for each in (mean_nominal, mean)
            )
            peak_use = used_peak / nominal_peak if nominal_peak else None
            rows[name] = {"nominal": shown_nominal, "used": shown_use, "meanUse": mean_use, "peakUse": peak_use}
    return rows


def sum_curves(
    run: WatchedSimulation, curves: Mapping[FlavorResource, Curve], group_of: Callable[[FlavorResource], str]
) -> dict[str, Curve]:
    """Return sums of quota amounts over time, by group; `group_of` returns a quota's group, '' to omit the quota."""
    groups: dict[str, list[Curve]] = {}
    for quota_key, curve in curves.items():
        groups.setdefault(group_of(quota_key), []).append(curve)
    return {name: Curve.sum_of(curves_of_group, run.start_time) for name, curves_of_group in groups.items() if name}


def machines_table(run: WatchedSimulation) -> FigureTable:
    """Return the mean allocatable amounts of nodes, and the share that pods request, by pool and resource."""
    title = "requests of pods on nodes, by pool"
    return FigureTable("machines", title, "pool", _MACHINE_FIGURES, _machine_figures(run))


def _machine_figures(run: WatchedSimulation) -> dict[str, Figures]:
    machine_usage, end, figures_by_row = run.watch.machines, run.result.now, {}
    for (pool, resource), curve in sorted(machine_usage.allocatable_curves.items()):
        allocatable, used_curve = curve.mean_and_peak(end)[0], machine_usage.request_curves.get((pool, resource))
        mean_request = 0.0 if used_curve is None else used_curve.mean_and_peak(end)[0]
        figures_by_row[f"{pool or _NO_POOL} {resource}"] = {
            "allocatable": to_display_units(resource, allocatable),
            "meanUse": mean_request / allocatable if allocatable else None,
        }
    return figures_by_row


def pools_table(run: WatchedSimulation) -> FigureTable:
    """Return the nodes and their costs by pool."""
    return FigureTable("pools", "nodes and costs by pool", "pool", _POOL_FIGURES, _pool_figures(run))


def _pool_figures(run: WatchedSimulation) -> dict[str, Figures]:
    costs = run.result.costs
    figures_by_pool: dict[str, Figures] = {}
    for pool, curve in sorted(run.watch.machines.node_curves.items()):
        mean, peak = curve.mean_and_peak(run.result.now)
        lines = () if costs is None else [line for line in costs.by_pool if line.pool == pool]
        figures_by_pool[pool or _NO_POOL] = {"nodes": mean, "peakNodes": peak, **_cost_figures(lines)}
    return figures_by_pool


def teams_table(run: WatchedSimulation) -> FigureTable:
    """Return the costs by team."""
    note = "unused time is idle, or booting until a node is ready"
    return FigureTable("teams", "costs by team", "team", _COST_FIGURES, _team_figures(run), note)


def _team_figures(run: WatchedSimulation) -> dict[str, Figures]:
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
    """Return an amount in the unit in which it is shown: cpu in cores, memory in GiB, other resources unchanged."""
    return amount / _DISPLAY_UNIT_SIZES.get(resource, 1)
