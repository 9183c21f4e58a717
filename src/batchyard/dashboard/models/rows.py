"""A Workload as a row of a list."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from batchyard.accounting.accounts import USES, StatementLine
from batchyard.accounting.records import UNUSED, CostReportRow, dollars, report
from batchyard.accounting.records import share as share_of_costs
from batchyard.api import scheme
from batchyard.api.meta import Key, Obj, find_condition
from batchyard.api.times import format_time
from batchyard.api.views.workload import WorkloadView, workload_view
from batchyard.base.instant import SECOND, Instant
from batchyard.dashboard.data_source import (
    Model,
    NamespaceAccess,
    Query,
    ViewInputs,
    in_words,
    owner_of,
    share,
    state_of,
)
from batchyard.dashboard.history import SchedulerDivergence
from batchyard.scheduling.quota import QuotaNode
from batchyard.scheduling.snapshot import Snapshot


def row_of(source: ViewInputs, view: WorkloadView, obj: Obj) -> Model:
    """Return the row of a Workload."""
    state = state_of(view, obj)
    queue = view.cluster_queue or source.standing.cluster_queue_of(*view.queue.split("/", 1)) or ""
    reason, message = _why(obj, state)
    return {
        "namespace": view.namespace,
        "name": view.name,
        "owner": owner_of(obj),
        "queue": view.queue.partition("/")[2],
        "clusterQueue": queue,
        "state": state,
        "priority": view.priority,
        "pods": sum(pod_set.count for pod_set in view.pod_sets),
        "created": time_of(view.created),
        "since": _since(view, obj, state),
        "reason": reason,
        "why": message,
    }


class Reasons:
    """Pending reasons, shared between Workloads of equal shape in one namespace and ClusterQueue.

    The scheduler decides equal Workloads alike, and writes the reason to one of them only.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[object, str, str], tuple[str, str]] = {}

    def reported(self, view: WorkloadView, row: Model) -> Model:
        """Return the row of a pending Workload with its reason. Call it in scheduling order."""
        place = view.shape, view.namespace, row["clusterQueue"]
        if row["why"]:
            self._known.setdefault(place, (row["reason"], row["why"]))
            return row
        reason, why = self._known.get(place, ("", ""))
        return {**row, "reason": reason, "why": why}


def row_at(source: ViewInputs, key: str) -> Model | None:
    """Return the row of the Workload with a key; None if it is gone."""
    found = source.reader.get(Key(scheme.WORKLOAD, *key.split("/", 1)))
    return None if found is None else row_of(source, workload_view(found), found)


def time_of(instant: Instant) -> str:
    """Format an instant in whole seconds."""
    return format_time(instant // SECOND * SECOND)


def _since(view: WorkloadView, obj: Obj, state: str) -> str:
    """Return since when the Workload has its state."""
    kinds = {"Finished": "Finished", "Failed": "Finished", "Evicted": "Evicted", "Running": "PodsReady"}
    kinds |= {"Admitted": "Admitted", "QuotaReserved": "QuotaReserved"}
    condition = find_condition(obj, kinds[state]) if state in kinds else None
    found: Any = condition and condition.get("lastTransitionTime")
    return str(found) if found else time_of(view.waiting_since)


def _why(obj: Obj, state: str) -> tuple[str, str]:
    """Return reason and message of the condition that explains the state; empty for normal states."""
    kinds = {"Pending": "QuotaReserved", "Failed": "Finished", "Evicted": "Evicted", "Inactive": "Evicted"}
    condition = find_condition(obj, kinds[state]) if state in kinds else None
    if condition is None:
        return "", ""
    return condition.get("reason", ""), condition.get("message", "")


# --- usage ---
#
# Quota usage, borrowing and lending of a queue or Cohort, as amounts and bars.


def usage_of(snapshot: Snapshot, node: QuotaNode) -> list[Model]:
    """Return a line for each flavor and resource with quota or usage, sorted by flavor."""
    ids = [
        fr for fr in range(len(snapshot.names)) if fr in node.nominal or _at(node.subtree, fr) or _at(node.usage, fr)
    ]
    return sorted((_line(snapshot, node, fr) for fr in ids), key=lambda line: (line["flavor"], line["resource"]))


def main_usage(lines: Iterable[Model]) -> list[Model]:
    """Return the line of the dominant resource of each flavor; idle flavors have none."""
    best: dict[str, Model] = {}
    for line in lines:
        if line["isIdle"]:
            continue
        known = best.get(line["flavor"])
        if known is None or _weight(line) > _weight(known):
            best[line["flavor"]] = line
    return list(best.values())


def _weight(line: Model) -> tuple[bool, float]:
    is_device = "/" in line["resource"]
    return is_device, line["filled"] + line["over"]


def _line(snapshot: Snapshot, node: QuotaNode, fr: int) -> Model:
    flavor, resource = snapshot.names[fr]
    nominal, quota, used = node.nominal.get(fr, 0), _at(node.subtree, fr), _at(node.usage, fr)
    borrowed = max(0, used - quota) if node.parent is not None else 0
    lent = min(_lendable(node, fr), _borrowed_beside(node, fr))
    limit = node.borrowing_limit.get(fr)
    scale = max(quota, used, 1)
    reported: Model = {
        "flavor": flavor,
        "resource": resource,
        "nominal": in_words(resource, nominal),
        "quota": in_words(resource, quota),
        "used": in_words(resource, used),
        "borrowed": in_words(resource, borrowed),
        "lent": in_words(resource, lent),
        "filled": share(min(used, quota), scale),
        "over": share(max(0, used - quota), scale),
        "lentShare": share(min(lent, max(0, scale - used)), scale),
        "isIdle": not quota and not used,
        "isBorrowing": borrowed > 0,
        "isLending": lent > 0,
    }
    limits = {"borrowingLimit": limit, "lendingLimit": node.lending_limit.get(fr)}
    return reported | {name: in_words(resource, value) for name, value in limits.items() if value is not None}


def _lendable(node: QuotaNode, fr: int) -> int:
    """Return the unused part of what a node may lend."""
    if node.parent is None:
        return 0
    local, used = _at(node.local, fr), _at(node.usage, fr)
    return max(0, _at(node.subtree, fr) - local - max(0, used - local))


def _borrowed_beside(node: QuotaNode, fr: int) -> int:
    """Return what the siblings use beyond their own quota and their parent's."""
    parent = node.parent
    if parent is None:
        return 0
    others = sum(max(0, _at(c.usage, fr) - _at(c.subtree, fr)) for c in parent.children.values() if c is not node)
    return max(0, others - parent.nominal.get(fr, 0))


def _at(amounts: list[int], fr: int) -> int:
    return amounts[fr] if fr < len(amounts) else 0


# --- costs ---
#
# The cost view: machine costs by team, queue and pool, of a finished run or from CostRecords.


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
    lines = [_cost_line(row, whole) for row in sorted(rows, key=lambda row: (-row.total, row.name))]
    return lines[:ROWS_MAX]


def _cost_line(row: CostReportRow, whole: int) -> Model:
    return {
        "name": row.name,
        "cents": row.total,
        "cost": f"${dollars(row.total)}",
        "percent": share_of_costs(row.total, whole),
        "nodeHours": f"{row.node_hours:,.1f}",
        "acceleratorHours": f"{row.accelerator_hours:,.1f}",
        "uses": [
            {"use": use, "cost": f"${dollars(row.cents[use])}", "percent": share_of_costs(row.cents[use], whole)}
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
