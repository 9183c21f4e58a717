"""What the machines of a run cost and how gangs recovered, as tables for people."""

from collections.abc import Sequence
from typing import Final

from batchyard.api.tables import Table, format_table
from batchyard.base.instant import Instant, format_age
from batchyard.sim.accounts import USES, Line, Statement
from batchyard.sim.recovery import Loss
from batchyard.sim.world import EPOCH

_FIGURES: Final = ("MACHINE-HOURS", "ACCELERATOR-HOURS", *(use.upper() for use in USES), "COST")


def costs_tables(statement: Statement) -> str:
    """What each pool cost and for what, then each team; what no team took is told of nobody."""
    pools = [["POOL", "PROVISIONING", *_FIGURES]]
    pools += [[line.pool, line.provisioning, *_figures(lines)] for line, lines in _grouped(statement.by_pool)]
    teams = [["TEAM", *_FIGURES]]
    teams += [[line.team or "(nobody)", *_figures(lines)] for line, lines in _grouped(statement.by_team)]
    teams.append(["all", *_figures(statement.by_team)])
    return f"{_table(pools)}\n{_table(teams)}"


def losses_table(losses: Sequence[Loss], now: Instant) -> str:
    """Who lost a machine, how long each took to be whole again, what was lost, and who left for it."""
    header = ["GANG", "LOST AT", "RECOVERED IN", "LOST POD TIME", "PREEMPTED"]
    return format_table([header, *(_loss(loss, now) for loss in losses)])


def _table(rows: Table) -> str:
    """A table without the columns in which nothing is told."""
    header, *body = rows
    kept = [index for index in range(len(header)) if any(row[index] for row in body)]
    return format_table([[row[index] for index in kept] for row in rows])


def _grouped(lines: Sequence[Line]) -> list[tuple[Line, list[Line]]]:
    """The lines of each pool or team, with the first of them."""
    groups: dict[tuple[str, str, str], list[Line]] = {}
    for line in lines:
        groups.setdefault((line.pool, line.provisioning, line.team), []).append(line)
    return [(group[0], group) for group in groups.values()]


def _figures(lines: Sequence[Line]) -> list[str]:
    """Hours in all, then what each use cost, then the sum."""
    hours = sum(line.machine_hours for line in lines), sum(line.accelerator_hours for line in lines)
    costs = [sum(line.cost for line in lines if line.use == use) for use in USES]
    return [*(f"{each:,.2f}" for each in hours), *(_dollars(cost) for cost in costs), f"${sum(costs):,.2f}"]


def _dollars(cost: float) -> str:
    return f"${cost:,.2f}" if cost else ""


def _loss(loss: Loss, now: Instant) -> list[str]:
    took = format_age((now if loss.whole_at is None else loss.whole_at) - loss.lost_at)
    victims = ", ".join(victim.gang for victim in loss.victims)
    return [
        loss.gang,
        format_age(loss.lost_at - EPOCH),
        took if loss.whole_at is not None else f"not after {took}",
        format_age(loss.lost_work),
        victims or "nobody",
    ]
