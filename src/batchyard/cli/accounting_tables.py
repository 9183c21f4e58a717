"""The accounting of a run as tables and as a document: machine costs, gang recoveries, unscheduled pods."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from batchyard.accounting.accounts import USES, Statement, StatementLine
from batchyard.accounting.records import format_cost
from batchyard.api.meta import Obj
from batchyard.api.printing import Table, format_table
from batchyard.api.views.pods import pod_view
from batchyard.base.instant import Instant, format_age
from batchyard.cli.figure_tables import format_bounded_table
from batchyard.sim.recovery import GangLoss
from batchyard.sim.result import Result
from batchyard.sim.world import EPOCH

_COST_COLUMNS: Final = ("MACHINE-HOURS", "ACCELERATOR-HOURS", *(use.upper() for use in USES), "COST")
#: The decimal places of hours, which make them exact to a hundredth of a second.
_HOUR_DECIMAL_PLACES: Final = 6


def costs_tables(statement: Statement) -> str:
    """Return two tables of a run's costs: by pool and by team; the team row `(unused)` has the unused hours."""
    pools = [["POOL", "PROVISIONING", *_COST_COLUMNS]]
    pools += [[line.pool, line.provisioning, *_cost_cells(lines)] for line, lines in _group_lines(statement.by_pool)]
    team_rows = [["TEAM", *_COST_COLUMNS]]
    team_rows += [[line.team or "(unused)", *_cost_cells(lines)] for line, lines in _group_lines(statement.by_team)]
    team_rows.append(["all", *_cost_cells(statement.by_team)])
    return f"{_table_without_empty_columns(pools)}\n{_table_without_empty_columns(team_rows)}"


def losses_table(losses: Sequence[GangLoss], now: Instant, *, wide: bool = False) -> str:
    """Return the table of gangs (Workloads) that lost a machine: recovery time, lost pod time, preempted Workloads.

    Without `wide`, the table has at most its first ROWS_SHOWN_MAX rows. Unfinished recoveries are timed up to `now`.
    """
    header = ["GANG", "LOST AT", "RECOVERED IN", "LOST POD TIME", "PREEMPTED"]
    return format_bounded_table([header, *(_loss_row(loss, now) for loss in losses)], wide=wide, noun="gang")


def unschedulable_pods_table(pods: Iterable[Obj], *, wide: bool = False) -> str:
    """Return a table of the unschedulable pods among `pods`, with the reasons; '' if there are none.

    Without `wide`, the table has at most ROWS_SHOWN_MAX rows.
    """
    pod_views = [pod_view(pod) for pod in pods]
    pod_rows = [
        [pod.namespace, pod.name, pod.unschedulable_message]
        for pod in pod_views
        if pod.awaits_node and pod.unschedulable_message
    ]
    header = ["NAMESPACE", "POD WITHOUT A NODE", "WHY"]
    return format_bounded_table([header, *pod_rows], wide=wide, noun="pod") if pod_rows else ""


def accounting_document(result: Result) -> dict[str, Any]:
    """Return a run's costs (dollars as exact text) and recoveries from machine losses; {} if it has no costs."""
    if result.costs is None:
        return {}
    costs = {
        "currency": "USD",
        "total": _exact_dollars(result.costs.cents),
        "pools": [
            {"pool": line.pool, "provisioning": line.provisioning, **_use_fields(line)} for line in result.costs.by_pool
        ],
        "teams": [{"team": line.team, **_use_fields(line)} for line in result.costs.by_team],
    }
    return {"costs": costs, "recoveries": [loss.document(EPOCH) for loss in result.losses]}


def _use_fields(line: StatementLine) -> dict[str, Any]:
    return {
        "use": line.use,
        "machineHours": round(line.machine_hours, _HOUR_DECIMAL_PLACES),
        "acceleratorHours": round(line.accelerator_hours, _HOUR_DECIMAL_PLACES),
        "cost": _exact_dollars(line.cents),
    }


def _exact_dollars(cents: int) -> str:
    return f"{cents // 100}.{cents % 100:02}"


def _table_without_empty_columns(rows: Table) -> str:
    header, *body = rows
    used_columns = [index for index in range(len(header)) if any(row[index] for row in body)]
    return format_table([[row[index] for index in used_columns] for row in rows])


def _group_lines(lines: Sequence[StatementLine]) -> list[tuple[StatementLine, list[StatementLine]]]:
    lines_by_group: dict[tuple[str, str, str], list[StatementLine]] = {}
    for line in lines:
        lines_by_group.setdefault((line.pool, line.provisioning, line.team), []).append(line)
    return [(group[0], group) for group in lines_by_group.values()]


def _cost_cells(lines: Sequence[StatementLine]) -> list[str]:
    hours = sum(line.machine_hours for line in lines), sum(line.accelerator_hours for line in lines)
    cents_per_use = [sum(line.cents for line in lines if line.use == use) for use in USES]
    return [
        *(f"{hour_count:,.2f}" for hour_count in hours),
        *(format_cost(cents) if cents else "" for cents in cents_per_use),
        format_cost(sum(cents_per_use)),
    ]


def _loss_row(loss: GangLoss, now: Instant) -> list[str]:
    recovery_time = format_age((now if loss.recovered_at is None else loss.recovered_at) - loss.lost_at)
    victim_names = ", ".join(victim.gang for victim in loss.victims)
    return [
        loss.gang,
        format_age(loss.lost_at - EPOCH),
        recovery_time if loss.recovered_at is not None else f"not within {recovery_time}",
        format_age(loss.lost_work),
        victim_names or "none",
    ]
