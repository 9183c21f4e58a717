"""The report on a replayed cluster trace as tables."""

from typing import Final

from batchyard.api.printing import Table, format_table
from batchyard.base.instant import SECOND, format_age
from batchyard.sim.trace_fill import FillReport
from batchyard.sim.trace_report import DurationStatistics, ResourceUtilization, TraceReport

#: The maximum number of reasons that are printed.
REASONS_SHOWN_MAX: Final = 20
#: Without `-o wide`, the table over time has only every tenth point.
_POINT_STRIDE: Final = 10
_UNKNOWN: Final = "-"


def report_tables(report: TraceReport, *, wide: bool) -> str:
    """Return the report on a replayed trace as titled tables, without those that have no rows.

    Without `wide`, the table over time has only every tenth point.
    """
    tables_by_title = {
        "pods" if report.load == 1 else f"pods, {report.load:g} times the arrival rate": _pods_table(report),
        "waits of pods scheduled in both, from creation to binding": _waits_table(report),
        "reasons of pods that were never scheduled": _reasons_table(report),
        "requested share of the allocatable resources": [_USAGE_HEADER, *map(_usage_row, report.usage)],
        "free GPU share that a typical pod cannot use": _fragmentation_table(report),
        "over time": _points_table(report, 1 if wide else _POINT_STRIDE),
    }
    return "\n".join(f"# {title}\n{format_table(rows)}" for title, rows in tables_by_title.items() if len(rows) > 1)


#: Without `-o wide`, the table of a fill has only every tenth percent of requested GPUs.
_FILL_PERCENT_STRIDE: Final = 10


def fill_table(report: FillReport, *, wide: bool) -> str:
    """Return a table, with a title, of a simulation that fills the nodes of a trace; `wide` shows all its points."""
    policy = report.policy or "kube-scheduler's scores"
    title = f"{report.pods} pods on {report.nodes} nodes with {report.gpus} GPUs, {policy}, seed {report.seed}"
    stride = 1 if wide else _FILL_PERCENT_STRIDE
    shown_points = [
        point for number, point in enumerate(report.points) if not number % stride or number == len(report.points) - 1
    ]
    rows = [
        [*map(_format_percent, (point.requested, point.allocated, point.fragmented)), str(point.unplaced_pods)]
        for point in shown_points
    ]
    return f"# {title}\n{format_table([['REQUESTED', 'ALLOCATED', 'FRAGMENTED', 'UNPLACED PODS'], *rows])}"


_USAGE_HEADER: Final = ["NODES WITH", "NODES", "RESOURCE", "MEAN", "PEAK", "PEAK AT", "MEAN THERE", "PEAK THERE"]


def _pods_table(report: TraceReport) -> Table:
    pods = report.pods
    header = ["PODS", "PLACED HERE", "PLACED THERE", "IN BOTH", "WAITING", "NOT CREATED"]
    pod_counts = pods.total, pods.placed_here, pods.placed_there, pods.placed_in_both, pods.waiting, pods.not_created
    return [header, list(map(str, pod_counts))]


def _waits_table(report: TraceReport) -> Table:
    comparison = report.waits
    pods_in_both = report.pods.placed_in_both
    rows = [
        ["", "PODS", "MEAN", "P50", "P90", "P99", "MAX"],
        ["here", str(pods_in_both), *_statistics_cells(comparison.here)],
        ["in the trace", str(pods_in_both), *_statistics_cells(comparison.there)],
        ["longer here, by", str(comparison.longer_here), *_statistics_cells(comparison.excess_here)],
        ["longer in the trace, by", str(comparison.longer_there), *_statistics_cells(comparison.excess_there)],
    ]
    return rows + [
        [f"alike within {agreement.within}s", str(agreement.pods), *[""] * 5] for agreement in comparison.agree
    ]


def _statistics_cells(statistics: DurationStatistics) -> list[str]:
    quantiles = (statistics.p50, statistics.p90, statistics.p99)
    return [f"{amount:.1f}s" for amount in (statistics.mean, *quantiles, statistics.max)]


def _reasons_table(report: TraceReport) -> Table:
    rows = [[str(row.pods), row.reason] for row in report.unplaced]
    return [["PODS", "REASON"], *rows[:REASONS_SHOWN_MAX]]


def _usage_row(row: ResourceUtilization) -> list[str]:
    cells = [_UNKNOWN if share is None else _format_percent(share) for share in (row.mean_there, row.peak_there)]
    mean, peak = _format_percent(row.mean), _format_percent(row.peak)
    return [row.model or "any GPU", str(row.nodes), row.resource, mean, peak, _format_seconds(row.peak_at), *cells]


def _fragmentation_table(report: TraceReport) -> Table:
    fragmentation = report.fragmentation
    share_cells = [_format_percent(share) for share in (fragmentation.mean, fragmentation.peak)]
    cells = [*share_cells, _format_seconds(fragmentation.peak_at), _format_percent(fragmentation.least)]
    return [["MEAN", "PEAK", "PEAK AT", "AT LEAST"], cells]


def _points_table(report: TraceReport, stride: int) -> Table:
    rows = [
        [
            _format_seconds(point.at),
            *map(_format_percent, (point.cpu, point.memory, point.gpu, point.fragmentation)),
            str(point.waiting),
        ]
        for point in report.points[::stride]
    ]
    return [["AFTER", "CPU", "MEMORY", "GPU", "FRAGMENTATION", "WAITING"], *rows]


def _format_percent(share: float) -> str:
    return f"{share:.3%}"


def _format_seconds(seconds: float) -> str:
    return format_age(round(seconds * SECOND))
