"""The cost view: machine costs by team, queue and pool, of a finished run or from CostRecords."""

from collections.abc import Iterable, Sequence
from typing import Final

from batchyard.accounting.accounts import USES, StatementLine
from batchyard.accounting.report import UNUSED, CostReportRow, dollars, report, share
from batchyard.api import scheme
from batchyard.dashboard.access import NamespaceAccess
from batchyard.dashboard.comparison import SchedulerDivergence
from batchyard.dashboard.data_source import Model, Query, ViewInputs
from batchyard.dashboard.models.rows import time_of

#: Maximum rows of each table.
ROWS_MAX: Final = 200


def costs(source: ViewInputs, scope: NamespaceAccess, _query: Query) -> Model:
    """Return the costs in the namespaces that the user may read; `kept` is False without records."""
    if source.costs is not None:
        found = source.costs
        parts = [("team", _rows(found.by_team, team=True)), ("pool", _rows(found.by_pool, team=False))]
        return _cost_model(parts, "", "") if scope.all_of(scheme.WORKLOAD) else {"kept": False}
    namespaces = scope.namespaces(scheme.COST_RECORD, source.reader)
    if namespaces is None:
        records = list(source.reader.list(scheme.COST_RECORD))
    else:
        records = [obj for name in namespaces for obj in source.reader.list(scheme.COST_RECORD, name)]
    reports = {by: report(records, by, 0, source.now + 1) for by in ("team", "clusterqueue", "pool")}
    team = reports["team"]
    if team.begin is None or team.through is None:
        return {"kept": False}
    return _cost_model([(by, each.rows) for by, each in reports.items()], time_of(team.begin), time_of(team.through))


def _cost_model(parts: Sequence[tuple[str, Sequence[CostReportRow]]], begin: str, through: str) -> Model:
    tables = [{"by": by, "rows": _lines(rows)} for by, rows in parts]
    total = sum(row.total for row in parts[0][1])
    return {"kept": True, "from": begin, "through": through, "total": f"${dollars(total)}", "tables": tables}


def _lines(rows: Sequence[CostReportRow]) -> list[Model]:
    """Return the rows as table lines, the most expensive first."""
    whole = sum(row.total for row in rows)
    lines = [_line(row, whole) for row in sorted(rows, key=lambda row: (-row.total, row.name))]
    return lines[:ROWS_MAX]


def _line(row: CostReportRow, whole: int) -> Model:
    return {
        "name": row.name,
        "cents": row.total,
        "cost": f"${dollars(row.total)}",
        "percent": share(row.total, whole),
        "nodeHours": f"{row.node_hours:,.1f}",
        "acceleratorHours": f"{row.accelerator_hours:,.1f}",
        "uses": [
            {"use": use, "cost": f"${dollars(row.cents[use])}", "percent": share(row.cents[use], whole)}
            for use in USES
            if row.cents.get(use)
        ],
    }


def _rows(lines: Iterable[StatementLine], *, team: bool) -> list[CostReportRow]:
    """Merge lines by team or by pool."""
    together: dict[str, list[StatementLine]] = {}
    for line in lines:
        together.setdefault((line.team or UNUSED) if team else line.pool, []).append(line)
    return [
        CostReportRow(
            name,
            sum(line.machine_hours for line in some),
            sum(line.accelerator_hours for line in some),
            {use: sum(line.cents for line in some if line.use == use) for use in USES},
        )
        for name, some in together.items()
    ]


# --- comparison ---
#
# Divergences from another scheduler, for users who see all Workloads, since a divergence can name several.


#: Maximum number of lines; the report of shadow mode has all.
LINES_MAX: Final = 20


def comparison(source: ViewInputs, scope: NamespaceAccess, workload: str = "") -> Model:
    """Return all divergences, or those of one Workload; empty without shadow mode or permission."""
    found = source.history.comparison
    if found is None or not scope.all_of(scheme.WORKLOAD):
        return {}
    of_it = [each for each in found.partings if workload in ("", each.workload)]
    reported = {
        "agreed": found.agreed(),
        "parted": found.parted(),
        "partings": [_comparison_line(each) for each in of_it[:LINES_MAX]],
    }
    return {"comparison": reported}


def _comparison_line(parted: SchedulerDivergence) -> Model:
    return {
        "at": time_of(parted.at),
        "since": time_of(parted.since),
        "type": parted.kind,
        "workload": parted.workload,
        "message": parted.message,
        "why": parted.why,
        "look": list(parted.look),
    }
