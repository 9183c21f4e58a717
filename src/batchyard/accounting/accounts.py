"""Cost accounts (machine time, accelerator time and cost as integers), and cost statements exact to the cent.

A machine is divided into 2**30 integer parts, so that the parts of its pods and the idle parts add up exactly.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias, TypeVar

from batchyard.base.instant import HOUR

#: The number of parts of a machine.
WHOLE_MACHINE: Final = 1 << 30

BOOT, IDLE, DONE, LOST, RUNS = "booting", "idle", "done", "lost", "running"
#: The uses of machine time: node not ready; unused; work succeeded or saved; work lost; pods still running.
USES: Final = (BOOT, IDLE, DONE, LOST, RUNS)

_AmountKey = TypeVar("_AmountKey", bound=Hashable)


class AccountKey(NamedTuple):
    """The key of a cost account; for unused machine time, only the node pool, provisioning mode and use are set."""

    pool: str
    provisioning: str
    #: The namespace of the pods.
    team: str
    use: str
    #: The flavor of the Workload's accelerators, or of its cpu if it has no accelerators.
    flavor: str = ""
    cluster_queue: str = ""
    local_queue: str = ""
    #: The name of the Workload; '' for pods without a Workload, and for the sum of unnamed Workloads.
    workload: str = ""


@dataclass(slots=True)
class CostAccount:
    """Machine time, accelerator time and cost that are charged to one account key."""

    #: Microseconds times parts of a machine.
    time: int = 0
    #: Microseconds times parts of an accelerator.
    accelerators: int = 0
    #: Millionths of a dollar per hour, times microseconds, times parts of a machine.
    cost: int = 0

    def add(self, account: "CostAccount") -> None:
        """Add the amounts of another account to this one."""
        self.time += account.time
        self.accelerators += account.accelerators
        self.cost += account.cost

    def subtract(self, account: "CostAccount") -> None:
        """Subtract the amounts of another account from this one."""
        self.time -= account.time
        self.accelerators -= account.accelerators
        self.cost -= account.cost

    def split(self, time: int) -> tuple["CostAccount", "CostAccount"]:
        """Return two accounts: one with machine time `time`, and one with the remainder.

        Accelerator time and cost are split in proportion to machine time.
        """
        split_accelerators = self.accelerators * time // self.time if time else 0
        split_cost = self.cost * time // self.time if time else 0
        return CostAccount(time, split_accelerators, split_cost), CostAccount(
            self.time - time, self.accelerators - split_accelerators, self.cost - split_cost
        )


class CostTotals(NamedTuple):
    """All charges by account, and the charges of closed hours later reclassified from running to done or lost."""

    accounts: dict[AccountKey, CostAccount]
    reclassified_usage: dict[AccountKey, CostAccount]


def round_preserving_sum(amounts: Mapping[_AmountKey, int], rounding_unit: int) -> dict[_AmountKey, int]:
    """Return each amount in units of `rounding_unit`, rounded so that the results add up to the rounded total.

    The amounts with the largest remainders are rounded up, all others down. Of equal remainders, the first keys in
    sorted order are rounded up.
    """
    rounded_amounts = {row: amount // rounding_unit for row, amount in amounts.items()}
    missing_count = (sum(amounts.values()) + rounding_unit // 2) // rounding_unit - sum(rounded_amounts.values())
    rows_by_remainder = sorted(amounts, key=lambda row: (-(amounts[row] % rounding_unit), row))
    for row in rows_by_remainder[: max(0, missing_count)]:
        rounded_amounts[row] += 1
    return rounded_amounts


_COST_PER_CENT: Final = 10_000 * HOUR * WHOLE_MACHINE  # of millionths of a dollar per hour

#: Pool, provisioning mode, team, use.
_StatementRow: TypeAlias = tuple[str, str, str, str]


@dataclass(frozen=True, slots=True)
class StatementLine:
    """One line of a cost statement: time and cost of one use (such as idle or done) of a node pool or by a team."""

    #: The node pool; '' in lines of teams, which sum all pools.
    pool: str
    provisioning: str
    #: The namespace of the pods; '' for unused time.
    team: str
    use: str
    machine_hours: float
    accelerator_hours: float
    cents: int

    @property
    def cost(self) -> float:
        """The cost of the line in dollars, for display; `cents` is exact."""
        return self.cents / 100


@dataclass(frozen=True, slots=True)
class Statement:
    """A cost statement: the same total cost by pool and by team."""

    by_pool: Sequence[StatementLine]
    by_team: Sequence[StatementLine]
    #: The sum of the lines by pool, which equals the sum by team.
    cents: int

    @property
    def cost(self) -> float:
        """The total cost of the statement in dollars, for display."""
        return self.cents / 100


def statement_of(accounts: Mapping[AccountKey, CostAccount]) -> Statement:
    """Return the cost statement of these accounts; its lines are whole cents that add up to the total."""
    accounts_by_row: dict[_StatementRow, CostAccount] = {}
    for account_key, account in accounts.items():
        accounts_by_row.setdefault(account_key[:4], CostAccount()).add(account)
    cents_by_row = round_preserving_sum({row: account.cost for row, account in accounts_by_row.items()}, _COST_PER_CENT)
    pool_line_by_row: dict[_StatementRow, _StatementRow] = {
        row: (row[0], row[1], "", row[3]) for row in accounts_by_row
    }
    team_line_by_row: dict[_StatementRow, _StatementRow] = {row: ("", "", row[2], row[3]) for row in accounts_by_row}
    by_pool, by_team = (
        _statement_lines(accounts_by_row, cents_by_row, line_by_row)
        for line_by_row in (pool_line_by_row, team_line_by_row)
    )
    return Statement(by_pool, by_team, sum(cents_by_row.values()))


def _statement_lines(
    accounts_by_row: Mapping[_StatementRow, CostAccount],
    cents_by_row: Mapping[_StatementRow, int],
    line_by_row: Mapping[_StatementRow, _StatementRow],
) -> list[StatementLine]:
    accounts_by_line: dict[_StatementRow, CostAccount] = {}
    cents_by_line: dict[_StatementRow, int] = {}
    for row, line in line_by_row.items():
        accounts_by_line.setdefault(line, CostAccount()).add(accounts_by_row[row])
        cents_by_line[line] = cents_by_line.get(line, 0) + cents_by_row[row]
    hour = HOUR * WHOLE_MACHINE
    return [
        StatementLine(*line, account.time / hour, account.accelerators / hour, cents_by_line[line])
        for line, account in sorted(accounts_by_line.items(), key=lambda item: (*item[0][:3], USES.index(item[0][3])))
    ]
