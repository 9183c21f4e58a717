"""The command `batchyard cost`: prints the costs that a platform's CostRecords contain."""

import csv
import io
import re
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Any, Final, NamedTuple
from urllib.parse import quote

import typer

from batchyard.accounting.accounts import BOOT, DONE, IDLE, LOST, RUNS
from batchyard.accounting.records import (
    CostReport,
    CostReportRow,
    cost_report_document,
    format_cost,
    make_cost_report,
    percentage,
)
from batchyard.api.meta import Obj
from batchyard.api.printing import format_table
from batchyard.api.times import format_second, format_time, parse_time
from batchyard.base.instant import HOUR, Instant, parse_duration
from batchyard.cli import output
from batchyard.cli.cluster_access import (
    REQUEST_ERRORS,
    ClusterTarget,
    UnreachableError,
    read_platform_time,
    request_document,
)
from batchyard.cli.options import DATA_DIR, Context, DataDir, Kubeconfig, select_kubeconfig
from batchyard.cli.output import render_document


class CostGrouping(StrEnum):
    """The fields by which `batchyard cost` can group its rows."""

    TEAM = "team"
    QUEUE = "queue"
    CLUSTERQUEUE = "clusterqueue"
    WORKLOAD = "workload"
    FLAVOR = "flavor"
    POOL = "pool"
    USE = "use"


class CostFormat(StrEnum):
    """The output formats of the cost report."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"
    CSV = "csv"


_COST_API: Final = "/apis/cost.batchyard.dev/v1alpha1"
_FORBIDDEN_CODE, _NOT_FOUND_CODE = 403, 404
#: The columns of the cost table: first the uses for jobs, then the idle uses.
_USE_COLUMNS: Final = (DONE, LOST, RUNS, IDLE, BOOT)
_DAYS_PATTERN: Final = re.compile(r"(\d{1,5})d", re.ASCII)
_NO_COSTS_MESSAGE: Final = "No costs are recorded for the requested time.\n"


class CostQuery(NamedTuple):
    """The arguments of `batchyard cost` that select and group CostRecords."""

    by: CostGrouping
    begin: str
    end: str
    namespace: str


def print_costs(target: ClusterTarget, query: CostQuery, output_format: CostFormat) -> None:
    """Print the costs that a platform's CostRecords contain; exit with 1 if they cannot be read."""
    try:
        now = read_platform_time(target)
        begin = _parse_instant("start", query.begin, now)
        end = _parse_instant("end", query.end, now) if query.end else now + HOUR
        cost_records, remark = _list_cost_records(target, query.namespace)
    except UnreachableError as error:
        remedy = "only clusters with batchyard's controller group costs have CostRecords: select one"
        output.fail(f"batchyard: {error}; {remedy}" if error.code == _NOT_FOUND_CODE else f"batchyard: {error}")
    except REQUEST_ERRORS as error:
        output.fail(f"batchyard: {error}")
    cost_report = make_cost_report(cost_records, query.by.value, begin, end)
    if output_format in (CostFormat.JSON, CostFormat.YAML):
        output.write(render_document(cost_report_document(cost_report), output_format))
    elif output_format is CostFormat.CSV:
        output.write(_format_csv(cost_report))
    else:
        output.write(_cost_table(cost_report))
        for line in (remark, *_report_remarks(cost_report)):
            if line:
                output.report_line(f"batchyard: {line}")


def _list_cost_records(target: ClusterTarget, namespace: str) -> tuple[Sequence[Obj], str]:
    """Return the CostRecords of a namespace ('' for all), and a remark if the user may list only some, else ''."""
    if namespace:
        return _cost_records_in_namespace(target, namespace), ""
    try:
        cost_records: Sequence[Obj] = request_document(target, lambda _: f"{_COST_API}/costrecords")["items"]
    except UnreachableError as error:
        if error.code != _FORBIDDEN_CODE:
            raise
        remark = "limited to your own namespace: no permission to list CostRecords in other namespaces"
        return _cost_records_in_namespace(target, ""), remark
    return cost_records, ""


def _cost_records_in_namespace(target: ClusterTarget, namespace: str) -> Sequence[Obj]:
    def path(default_namespace: str) -> str:
        return f"{_COST_API}/namespaces/{quote(namespace or default_namespace)}/costrecords"

    cost_records: Sequence[Obj] = request_document(target, path)["items"]
    return cost_records


def _parse_instant(name: str, text: str, now: Instant) -> Instant:
    days_match = _DAYS_PATTERN.fullmatch(text)
    if days_match is not None:
        return now - int(days_match[1]) * 24 * HOUR
    try:
        return parse_time(text)
    except ValueError:
        pass
    try:
        return now - parse_duration(text)
    except ValueError:
        output.fail(f"batchyard: the {name} {text!r} is not a time; use 2026-01-31T12:00:00Z, or 24h for a day ago")


def _report_remarks(cost_report: CostReport) -> Sequence[str]:
    if cost_report.begin is None or cost_report.through is None:
        return ()
    end_text = format_second(cost_report.through)
    remarks = [f"from {format_time(cost_report.begin)} until {end_text}; records cover whole hours, days and months"]
    if cost_report.unpriced_pools:
        names = ", ".join(cost_report.unpriced_pools)
        remarks.append(f"no price is known for machines of {names}: they count as free")
    return remarks


def _cost_table(report: CostReport) -> str:
    if not report.rows:
        return _NO_COSTS_MESSAGE
    use_columns = [use.upper() for use in _USE_COLUMNS]
    header = [report.dimension.upper(), "MACHINE-HOURS", "ACCELERATOR-HOURS", *use_columns, "COST", "SHARE"]
    total_cost = report.total.total
    rows = [[*_row_cells(row), f"{percentage(row.total, total_cost):.1f}%"] for row in (*report.rows, report.total)]
    return format_table([header, *rows])


def _row_cells(row: CostReportRow) -> list[str]:
    hours = f"{row.node_hours:,.2f}", f"{row.accelerator_hours:,.2f}"
    costs = (row.cents.get(use, 0) for use in _USE_COLUMNS)
    return [row.name, *hours, *(format_cost(cents) if cents else "" for cents in costs), format_cost(row.total)]


def _format_csv(cost_report: CostReport) -> str:
    csv_buffer = io.StringIO()
    report_document: dict[str, Any] = cost_report_document(cost_report)
    column_names = ["name", "nodeHours", "acceleratorHours", *_USE_COLUMNS, "dollars", "sharePercent"]
    csv_writer = csv.DictWriter(csv_buffer, column_names, lineterminator="\n")
    csv_writer.writeheader()
    csv_writer.writerows([*report_document["rows"], report_document["total"]])
    return csv_buffer.getvalue()


def cost(
    context: typer.Context,
    by: Annotated[CostGrouping, typer.Option(help="The grouping of the rows.")] = CostGrouping.TEAM,
    since: Annotated[
        str, typer.Option(metavar="WHEN", help="Start: a time, or how long ago, such as 24h or 7d.")
    ] = "24h",
    begin: Annotated[str, typer.Option("--from", metavar="WHEN", help="The same as --since.", show_default=False)] = "",
    end: Annotated[str, typer.Option("--to", metavar="WHEN", help="End: a time, or how long ago.")] = "",
    namespace: Annotated[
        str,
        typer.Option("--namespace", "-n", metavar="NS", help="Only this namespace; default: all that you can list."),
    ] = "",
    kubeconfig: Kubeconfig = "",
    kube_context: Context = "",
    data_dir: DataDir = None,
    output: Annotated[CostFormat, typer.Option("--output", "-o", help="How to print it.")] = CostFormat.TABLE,
) -> None:
    """Show the costs of machines by team, queue or Workload, with the lost and idle parts."""
    target = ClusterTarget(select_kubeconfig(context, kubeconfig, data_dir), kube_context, data_dir or DATA_DIR)
    print_costs(target, CostQuery(by, begin or since, end, namespace), output)
