"""The tables of one run: totals, waits by group, quota usage, fairness, machines and costs.

A wait is the total time of a Workload without quota, after its creation and after each eviction. A Workload that has
not started waits until the end of the run, or of the longer run of a comparison, which is a lower bound of its wait.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean
from typing import Final, NamedTuple, TypeAlias

from batchyard.accounting.accounts import LOST, StatementLine
from batchyard.api import scheme
from batchyard.api.views.node import PodTemplate, flavor_view
from batchyard.api.views.workload import AdmittedPodSet, workload_view
from batchyard.base.instant import HOUR, SECOND, Instant, duration_seconds
from batchyard.interfaces.client import EventType, WatchEvent
from batchyard.scheduling.topology_nomination import usage_of_pod_set
from batchyard.sim.shrinkings import totals_by_name, totals_of
from batchyard.sim.summary.fairness import jain_index, shares_of
from batchyard.sim.summary.figure import GIBIBYTE, BetterDirection, Figure, Figures, FigureTable, Unit
from batchyard.sim.summary.run_watch import WatchedSimulation, held_pod_sets
from batchyard.sim.summary.workload_records import FlavorResource, WorkloadRecord
from batchyard.sim.time_series import Curve, Gauge
from batchyard.sim.trace_report import duration_statistics
from batchyard.sim.whatif import machine_hours
from batchyard.topology.counts import CountKey, pod_amounts
from batchyard.topology.state import TopologyState, TopologyUsage
from batchyard.topology.tree import PodAmounts

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
    Figure("partialPreemptions", "partial preemptions", Unit.COUNT, BetterDirection.LESS),
    Figure("lostPodHours", "pod hours lost to partial preemptions", Unit.HOURS, BetterDirection.LESS),
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

_TOPOLOGY_FIGURES: Final = (
    Figure("placements", "placements", Unit.COUNT),
    Figure("domains", "mean domains", Unit.COUNT, BetterDirection.LESS),
    Figure("oneDomain", "in one domain", Unit.SHARE, BetterDirection.MORE),
    Figure("distance", "mean distance", Unit.COUNT, BetterDirection.LESS),
    Figure("fragmentation", "fragmentation", Unit.SHARE, BetterDirection.LESS),
)
_SHRINKING_FIGURES: Final = (
    Figure("times", "times", Unit.COUNT, BetterDirection.LESS),
    Figure("podsLost", "pods lost", Unit.COUNT, BetterDirection.LESS),
    Figure("shrunk", "shrunk for", Unit.SECONDS, BetterDirection.LESS),
    Figure("lostPodTime", "lost pod time", Unit.SECONDS, BetterDirection.LESS),
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


def overall_figures(run: WatchedSimulation, *, with_shrinkings: bool = False) -> Figures:
    """Return the figures of one run that summarize all its Workloads, and its machines and costs if these are known.

    Partial preemptions are counted if they are possible in the run, or with `with_shrinkings`.
    """
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
    if run.result.shrinkings is not None or with_shrinkings:
        totals = totals_of(run.result.shrinkings or (), run.result.now)
        figure_values["partialPreemptions"] = 0 if totals is None else totals.shrink_count
        figure_values["lostPodHours"] = 0 if totals is None else totals.pod_seconds * SECOND / HOUR
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


def overall_table(run: WatchedSimulation, *, with_shrinkings: bool = False) -> FigureTable:
    """Return the totals of one run as a table of one row, with partial preemptions as in `overall_figures()`."""
    figure_values = overall_figures(run, with_shrinkings=with_shrinkings)
    known_figures = [figure for figure in OVERALL_FIGURES if figure.name in figure_values]
    return FigureTable("overall", "totals", "", known_figures, {"all": figure_values})


#: The name of the table of jobs that were preempted in part.
SHRINKING_TABLE: Final = "partialPreemptions"


def shrinking_table(run: WatchedSimulation) -> FigureTable:
    """Return a table with a row for each job that was preempted in part; the most lost pod time comes first."""
    totals_by_job = totals_by_name(run.result.shrinkings or (), run.result.now, by_job=True)
    rows: dict[str, Figures] = {
        job: {
            "times": totals.shrink_count,
            "podsLost": totals.pods_lost,
            "shrunk": totals.seconds,
            "lostPodTime": totals.pod_seconds,
        }
        for job, totals in sorted(totals_by_job.items(), key=lambda item: (-item[1].pod_seconds, item[0]))
    }
    return FigureTable(SHRINKING_TABLE, "jobs that were preempted in part", "job", _SHRINKING_FIGURES, rows)


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


# Topologies: how far the pods of a pod set are spread over domains, and how fragmented the free capacity is.


#: Fragmentation is evaluated at this many instants at most; others keep the previous value.
_EVALUATED_INSTANTS_MAX: Final = 5000
_ALL_LEVELS: Final = "all levels"
TOPOLOGY_TABLE: Final = "topology"


class _UsualRequest(NamedTuple):
    """The most frequent request of the pod sets placed in a flavor: the pod template, and the number of pods."""

    template: PodTemplate
    pod_count: int


@dataclass(slots=True)
class _LevelSpread:
    """The placements of pod sets at one level of a flavor's topology."""

    domain_counts: list[int] = field(default_factory=list)
    #: For each placement of several pods, the fraction of its pairs of pods that are in different domains.
    distances: list[float] = field(default_factory=list)


def topology_table(run: WatchedSimulation) -> FigureTable:
    """Return spread and fragmentation by flavor and topology level; without rows if no pod set got domains.

    A placement is a topology assignment that a pod set got. The distance at a level is the fraction of the pairs of
    pods of a placement that are in different domains of this level; over all levels, it is the number of levels that
    separate two pods. Both are means over placements of several pods.

    The fragmentation at a level is the fraction of the free room that no domain of the level can use for the usual
    request, as a mean over time. The usual request is the pod set that was placed most often in the flavor. The free
    room is the number of its pods that fit in all hosts (domains of the lowest level) together. Of a domain that has
    room for n pods, the usual request of c pods can use n - n mod c.
    """
    rows: dict[str, Figures] = {}
    if run.watch.topology is not None:
        replay = _TopologyReplay(run)
        replay.run()
        for flavor in sorted(replay.spread_by_flavor):
            rows |= replay.rows_of(flavor)
    note = "fragmentation: free room that no domain of the level can use for the usual request"
    return FigureTable(TOPOLOGY_TABLE, "topology", "flavor and level", _TOPOLOGY_FIGURES, rows, note)


class _TopologyReplay:
    """Replays the events of a simulation to compute spread and fragmentation."""

    def __init__(self, run: WatchedSimulation) -> None:
        assert run.watch.topology is not None
        self._run = run
        self._events = run.watch.topology.events
        self._state = TopologyState()
        self._state.enable({})
        self._usage_by_key: dict[str, TopologyUsage] = {}
        self._gauges: dict[tuple[str, str], Gauge] = {}
        self.spread_by_flavor: dict[str, dict[str, _LevelSpread]] = {}
        self._usual_requests = self._find_usual_requests()

    def run(self) -> None:
        """Replay all events."""
        instants = len({now for now, _ in self._events})
        stride, instant_count = 1 + instants // _EVALUATED_INSTANTS_MAX, 0
        for index, (now, event) in enumerate(self._events):
            self._apply(event)
            if index + 1 == len(self._events) or self._events[index + 1][0] != now:
                if instant_count % stride == 0:
                    self._evaluate(now)
                instant_count += 1

    def rows_of(self, flavor: str) -> dict[str, Figures]:
        """Return the figures of a flavor by level, and of all levels together."""
        spread = self.spread_by_flavor[flavor]
        rows: dict[str, Figures] = {}
        distances = {level: mean(each.distances) if each.distances else 0.0 for level, each in spread.items()}
        for level, each in spread.items():
            gauge = self._gauges.get((flavor, level))
            rows[f"{flavor}: {level}"] = {
                "placements": len(each.domain_counts),
                "domains": mean(each.domain_counts),
                "oneDomain": sum(count == 1 for count in each.domain_counts) / len(each.domain_counts),
                "distance": distances[level],
                "fragmentation": 0.0 if gauge is None else gauge.mean(self._run.result.now),
            }
        placements = max(len(each.domain_counts) for each in spread.values())
        rows[f"{flavor}: {_ALL_LEVELS}"] = {"placements": placements, "distance": sum(distances.values())}
        return rows

    def _find_usual_requests(self) -> dict[str, _UsualRequest]:
        counts: dict[str, dict[tuple[PodAmounts, int], int]] = {}
        templates: dict[PodAmounts, PodTemplate] = {}
        for _, event in self._events:
            if event.key.kind != scheme.WORKLOAD:
                continue
            template_by_name = {each.name: each.template for each in workload_view(event.obj).pod_sets}
            for held in held_pod_sets(event):
                template = template_by_name[held.name]
                amounts = pod_amounts(template)
                templates.setdefault(amounts, template)
                for flavor in dict.fromkeys(held.flavors.values()):
                    own_counts = counts.setdefault(flavor, {})
                    own_counts[amounts, held.pods] = own_counts.get((amounts, held.pods), 0) + 1
        usual: dict[str, _UsualRequest] = {}
        for flavor, own_counts in counts.items():
            usual_amounts, pod_count = max(own_counts, key=lambda each: (own_counts[each], each[1]))
            usual[flavor] = _UsualRequest(templates[usual_amounts], max(1, pod_count))
        return usual

    def _apply(self, event: WatchEvent) -> None:
        is_deleted, state, name = event.type is EventType.DELETED, self._state, event.key.name
        match event.key.kind:
            case scheme.TOPOLOGY if is_deleted:
                state.remove_topology(name)
            case scheme.TOPOLOGY:
                state.put_topology(name, [each["nodeLabel"] for each in event.obj["spec"].get("levels") or ()])
            case scheme.RESOURCE_FLAVOR if is_deleted:
                state.remove_flavor(name)
            case scheme.RESOURCE_FLAVOR:
                state.put_flavor(flavor_view(event.obj))
            case scheme.NODE:
                state.observe_node(event.obj, None, is_deleted=is_deleted)
            case scheme.POD:
                state.observe_pod(event.obj, is_deleted=is_deleted)
            case _:
                self._apply_workload(event)

    def _apply_workload(self, event: WatchEvent) -> None:
        key, view = str(event.key), workload_view(event.obj)
        self._state.add_usage(self._usage_by_key.pop(key, ()), -1)
        usage: TopologyUsage = ()
        for held in held_pod_sets(event):
            usage += usage_of_pod_set(view, held)
            for flavor in dict.fromkeys(held.flavors.values()):
                self._record_spread(flavor, held)
        self._state.add_usage(usage)
        self._usage_by_key[key] = usage

    def _record_spread(self, flavor: str, held: AdmittedPodSet) -> None:
        built = self._state.get(flavor)
        if built is None or held.topology is None:
            return
        tree = built.tree
        spread = self.spread_by_flavor.setdefault(flavor, {level: _LevelSpread() for level in tree.levels})
        leaves = {tree.leaf_by_values.get(domain.values): domain.pods for domain in held.topology.domains}
        if None in leaves:
            return  # a host of the assignment is gone
        for number, level in enumerate(tree.levels):
            pods: dict[int, int] = {}
            for leaf, count in leaves.items():
                assert leaf is not None
                domain = tree.ancestor(leaf, number)
                pods[domain] = pods.get(domain, 0) + count
            level_spread = spread.setdefault(level, _LevelSpread())
            level_spread.domain_counts.append(len(pods))
            total = sum(pods.values())
            if total > 1:
                together = sum(count * (count - 1) for count in pods.values())
                level_spread.distances.append(1 - together / (total * (total - 1)))

    def _evaluate(self, now: Instant) -> None:
        for flavor, request in self._usual_requests.items():
            built = self._state.get(flavor)
            if built is None or not built.tree.present_count:
                continue
            levels = built.tree.levels
            key = CountKey(
                pod_amounts(request.template),
                None,
                built.constraints_of(request.template),
                1,
                len(levels) - 1,
                (0,) * len(levels),
                False,
            )
            pods = built.count_cache(key).refresh().pods
            free = sum(pods[-1])
            for number, level in enumerate(levels):
                usable = sum(count - count % request.pod_count for count in pods[number])
                gauge = self._gauges.setdefault((flavor, level), Gauge(self._run.start_time))
                gauge.set(1 - usable / free if free else 0.0, now)
