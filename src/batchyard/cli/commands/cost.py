"""`batchyard cost`: totals of a platform's CostRecords."""

import csv
import io
import re
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Any, Final, NamedTuple
from urllib.parse import quote

import typer

from batchyard.accounting.accounts import BOOT, DONE, IDLE, LOST, RUNS
from batchyard.accounting.records import CostReport, CostReportRow, document, dollars, report, share
from batchyard.api.meta import Obj
from batchyard.api.printing import format_table
from batchyard.api.times import format_time, parse_time
from batchyard.base.instant import HOUR, SECOND, Instant, parse_duration
from batchyard.cli import output
from batchyard.cli.cluster_access import REFUSALS, ClusterTarget, UnreachableError, answered
from batchyard.cli.options import DATA_DIR, Context, DataDir, Kubeconfig, cluster
from batchyard.cli.output import render_json, render_yaml
from batchyard.server.clocks.wall import wall_clock
from batchyard.server.platform.status_report import STATUS_REPORT_PATH as REPORT


class CostGrouping(StrEnum):
    """The grouping of the rows."""

    TEAM = "team"
    QUEUE = "queue"
    CLUSTERQUEUE = "clusterqueue"
    WORKLOAD = "workload"
    FLAVOR = "flavor"
    POOL = "pool"
    USE = "use"


class CostFormat(StrEnum):
    """Output formats of the report."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"
    CSV = "csv"


_GROUP: Final = "/apis/cost.batchyard.dev/v1alpha1"
_FORBIDDEN, _NOT_FOUND = 403, 404
#: The columns in order: the uses for work first, then the idle ones.
_USES: Final = (DONE, LOST, RUNS, IDLE, BOOT)
_DAYS: Final = re.compile(r"(\d{1,5})d", re.ASCII)
_NOTHING: Final = "No costs are recorded for that time.\n"


class CostQuery(NamedTuple):
    """The query of the command."""

    by: CostGrouping
    begin: str
    end: str
    namespace: str


def print_costs(target: ClusterTarget, asked: CostQuery, form: CostFormat) -> None:
    """Print the totals; ends the command with 1 if no platform responds."""
    try:
        now = _now(target)
        begin, end = _instant(asked.begin, now), _instant(asked.end, now) if asked.end else now + HOUR
        records, reported = _records(target, asked.namespace)
    except UnreachableError as error:
        why = f"{error}; it has no CostRecords" if error.code == _NOT_FOUND else str(error)
        output.fail(f"batchyard: {why}")
    except REFUSALS as error:
        output.fail(f"batchyard: {error}")
    found = report(records, asked.by.value, begin, end)
    if form is CostFormat.JSON:
        output.write(render_json(document(found)))
    elif form is CostFormat.YAML:
        output.write(render_yaml(document(found)))
    elif form is CostFormat.CSV:
        output.write(_csv(found))
    else:
        output.write(_table(found))
        for line in (reported, *_remarks(found)):
            if line:
                output.report_line(f"batchyard: {line}")


def _records(target: ClusterTarget, namespace: str) -> tuple[Sequence[Obj], str]:
    """All CostRecords that the user may list, and a remark if these are not all."""
    if namespace:
        return _in(target, namespace), ""
    try:
        items: Sequence[Obj] = answered(target, lambda _: f"{_GROUP}/costrecords")["items"]
    except UnreachableError as error:
        if error.code != _FORBIDDEN:
            raise
        return _in(target, ""), "limited to your own namespace: you may not list the others' CostRecords"
    return items, ""


def _in(target: ClusterTarget, namespace: str) -> Sequence[Obj]:
    def path(own: str) -> str:
        return f"{_GROUP}/namespaces/{quote(namespace or own)}/costrecords"

    items: Sequence[Obj] = answered(target, path)["items"]
    return items


def _now(target: ClusterTarget) -> Instant:
    """The platform's own time; that of this machine if it reports none."""
    try:
        found: Instant = answered(target, lambda _: REPORT)["instant"]
    except UnreachableError:
        return wall_clock()
    return found


def _instant(text: str, now: Instant) -> Instant:
    """Parse a time, or a duration before `now`."""
    days = _DAYS.fullmatch(text)
    if days is not None:
        return now - int(days[1]) * 24 * HOUR
    try:
        return parse_time(text)
    except ValueError:
        pass
    try:
        return now - parse_duration(text)
    except ValueError:
        output.fail(f"batchyard: {text!r} is not a time; use 2026-01-31T12:00:00Z, or 24h for a day ago")


def _remarks(found: CostReport) -> Sequence[str]:
    """Remarks on the period, and on machines without a price."""
    if found.begin is None or found.through is None:
        return ()
    through = format_time(found.through // SECOND * SECOND)
    remarks = [f"from {format_time(found.begin)} until {through}; records cover whole hours, days and months"]
    if found.unpriced:
        names = ", ".join(found.unpriced)
        remarks.append(f"no price is known for machines of {names}: they count as free")
    return remarks


def _table(found: CostReport) -> str:
    if not found.rows:
        return _NOTHING
    header = [found.by.upper(), "NODE-HOURS", "ACCELERATOR-HOURS", *(use.upper() for use in _USES), "DOLLARS", "SHARE"]
    whole = found.total.total
    rows = [[*_cells(row), f"{share(row.total, whole):.1f}%"] for row in (*found.rows, found.total)]
    return format_table([header, *rows])


def _cells(row: CostReportRow) -> list[str]:
    hours = f"{row.node_hours:,.2f}", f"{row.accelerator_hours:,.2f}"
    uses = (row.cents.get(use, 0) for use in _USES)
    return [row.name, *hours, *(dollars(cents) if cents else "" for cents in uses), dollars(row.total)]


def _csv(found: CostReport) -> str:
    text = io.StringIO()
    reported: dict[str, Any] = document(found)
    fields = ["name", "nodeHours", "acceleratorHours", *_USES, "dollars", "sharePercent"]
    writer = csv.DictWriter(text, fields, lineterminator="\n")
    writer.writeheader()
    writer.writerows([*reported["rows"], reported["total"]])
    return text.getvalue()


# --- cost ---
#
# The options of `batchyard cost`.


def cost(
    context: typer.Context,
    by: Annotated[CostGrouping, typer.Option(help="The grouping of the rows.")] = CostGrouping.TEAM,
    since: Annotated[
        str, typer.Option(metavar="WHEN", help="Begin: a time, or a duration ago such as 24h or 7d.")
    ] = "24h",
    begin: Annotated[str, typer.Option("--from", metavar="WHEN", help="The same as --since.", show_default=False)] = "",
    end: Annotated[str, typer.Option("--to", metavar="WHEN", help="End: a time, or a duration ago.")] = "",
    namespace: Annotated[
        str,
        typer.Option("--namespace", "-n", metavar="NS", help="Only this namespace; default: all that you may list."),
    ] = "",
    kubeconfig: Kubeconfig = "",
    kube_context: Context = "",
    data_dir: DataDir = None,
    output: Annotated[CostFormat, typer.Option("--output", "-o", help="How to print it.")] = CostFormat.TABLE,
) -> None:
    """Show the costs of machines, for whom, and the lost and idle part."""
    target = ClusterTarget(cluster(context, kubeconfig, data_dir), kube_context, data_dir or DATA_DIR)
    print_costs(target, CostQuery(by, begin or since, end, namespace), output)
