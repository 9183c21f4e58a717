"""The accounting of a run: machine costs, gang recoveries, unscheduled pods; as tables, and as a document."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from batchyard.accounting.accounts import USES, Statement, StatementLine
from batchyard.api.meta import Obj
from batchyard.api.printing import Table, format_table
from batchyard.api.views.pods import pod_view
from batchyard.base.instant import Instant, format_age
from batchyard.sim.recovery import Loss
from batchyard.sim.result import Result
from batchyard.sim.world import EPOCH

_FIGURES: Final = ("MACHINE-HOURS", "ACCELERATOR-HOURS", *(use.upper() for use in USES), "COST")
#: The decimal places of hours: exact to a hundredth of a second.
_DIGITS: Final = 6


def costs_tables(statement: Statement) -> str:
    """The costs of each pool and then of each team, by use; hours that no team used are listed as (unused)."""
    pools = [["POOL", "PROVISIONING", *_FIGURES]]
    pools += [[line.pool, line.provisioning, *_figures(lines)] for line, lines in _grouped(statement.by_pool)]
    teams = [["TEAM", *_FIGURES]]
    teams += [[line.team or "(unused)", *_figures(lines)] for line, lines in _grouped(statement.by_team)]
    teams.append(["all", *_figures(statement.by_team)])
    return f"{_table(pools)}\n{_table(teams)}"


def losses_table(losses: Sequence[Loss], now: Instant) -> str:
    """The gangs that lost a machine: time to recovery, lost work, and preempted gangs."""
    header = ["GANG", "LOST AT", "RECOVERED IN", "LOST POD TIME", "PREEMPTED"]
    return format_table([header, *(_loss(loss, now) for loss in losses)])


def unplaced_table(pods: Iterable[Obj]) -> str:
    """The pods without a node and the reasons; empty if all have one."""
    views = [pod_view(pod) for pod in pods]
    rows = [[pod.namespace, pod.name, pod.unplaced] for pod in views if pod.awaits_node and pod.unplaced]
    return format_table([["NAMESPACE", "POD WITHOUT A NODE", "WHY"], *rows]) if rows else ""


def books_of(result: Result) -> dict[str, Any]:
    """The same as a document, if the world has machines: dollars as exact text, times in seconds."""
    if result.costs is None:
        return {}
    costs = {
        "currency": "USD",
        "total": _amount(result.costs.cents),
        "pools": [
            {"pool": line.pool, "provisioning": line.provisioning, **_use(line)} for line in result.costs.by_pool
        ],
        "teams": [{"team": line.team, **_use(line)} for line in result.costs.by_team],
    }
    return {"costs": costs, "recoveries": [loss.document(EPOCH) for loss in result.losses]}


def _use(line: StatementLine) -> dict[str, Any]:
    return {
        "use": line.use,
        "machineHours": round(line.machine_hours, _DIGITS),
        "acceleratorHours": round(line.accelerator_hours, _DIGITS),
        "cost": _amount(line.cents),
    }


def _amount(cents: int) -> str:
    return f"{cents // 100}.{cents % 100:02}"


def _table(rows: Table) -> str:
    """A table without its empty columns."""
    header, *body = rows
    kept = [index for index in range(len(header)) if any(row[index] for row in body)]
    return format_table([[row[index] for index in kept] for row in rows])


def _grouped(lines: Sequence[StatementLine]) -> list[tuple[StatementLine, list[StatementLine]]]:
    """The lines of each pool or team, with the first line of each."""
    groups: dict[tuple[str, str, str], list[StatementLine]] = {}
    for line in lines:
        groups.setdefault((line.pool, line.provisioning, line.team), []).append(line)
    return [(group[0], group) for group in groups.values()]


def _figures(lines: Sequence[StatementLine]) -> list[str]:
    """Total hours, then the cost of each use, then the sum."""
    hours = sum(line.machine_hours for line in lines), sum(line.accelerator_hours for line in lines)
    costs = [sum(line.cents for line in lines if line.use == use) for use in USES]
    return [
        *(f"{each:,.2f}" for each in hours),
        *(_dollars(cents) if cents else "" for cents in costs),
        _dollars(sum(costs)),
    ]


def _dollars(cents: int) -> str:
    return f"${cents // 100:,}.{cents % 100:02}"


def _loss(loss: Loss, now: Instant) -> list[str]:
    took = format_age((now if loss.whole_at is None else loss.whole_at) - loss.lost_at)
    victims = ", ".join(victim.gang for victim in loss.victims)
    return [
        loss.gang,
        format_age(loss.lost_at - EPOCH),
        took if loss.whole_at is not None else f"not after {took}",
        format_age(loss.lost_work),
        victims or "none",
    ]
