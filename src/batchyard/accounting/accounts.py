"""Accounts: machine time, accelerator time and cost as integers, and rounding that preserves sums.

A machine is counted in parts, so that the shares of its pods and its idle share add up to the whole machine.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias, TypeVar

from batchyard.base.instant import HOUR

#: The number of parts of a machine.
WHOLE: Final = 1 << 30

BOOT, IDLE, DONE, LOST, RUNS = "booting", "idle", "done", "lost", "running"
#: In order: the node is not ready; unused; work that succeeded or was saved; work that was lost; pods not ended.
USES: Final = (BOOT, IDLE, DONE, LOST, RUNS)

_Row = TypeVar("_Row", bound=Hashable)


class AccountKey(NamedTuple):
    """The key of an account. For unused time only the pool, the provisioning mode and the use are set."""

    pool: str
    provisioning: str
    #: The namespace of the pods.
    team: str
    use: str
    #: The flavor of the accelerators, else of cpu, that the Workload was admitted to.
    flavor: str = ""
    cluster_queue: str = ""
    local_queue: str = ""
    #: The name of the Workload; '' for pods without one, and for Workloads that are summed.
    workload: str = ""


@dataclass(slots=True)
class CostAccount:
    """The time and the cost of one use."""

    #: Microseconds times parts of a machine.
    time: int = 0
    #: Microseconds times parts of an accelerator.
    accelerators: int = 0
    #: Millionths of a dollar per hour, times microseconds, times parts of a machine.
    cost: int = 0

    def add(self, other: "CostAccount") -> None:
        """Add another account."""
        self.time += other.time
        self.accelerators += other.accelerators
        self.cost += other.cost

    def take(self, other: "CostAccount") -> None:
        """Subtract another account."""
        self.time -= other.time
        self.accelerators -= other.accelerators
        self.cost -= other.cost

    def split(self, time: int) -> tuple["CostAccount", "CostAccount"]:
        """Split off an amount of machine time with its cost; return this part and the rest."""
        accelerators = self.accelerators * time // self.time if time else 0
        cost = self.cost * time // self.time if time else 0
        return CostAccount(time, accelerators, cost), CostAccount(
            self.time - time, self.accelerators - accelerators, self.cost - cost
        )


class CostTotals(NamedTuple):
    """All charges, and the settlements of running time of closed hours."""

    accounts: dict[AccountKey, CostAccount]
    settled: dict[AccountKey, CostAccount]


def round_preserving_sum(amounts: Mapping[_Row, int], unit: int) -> dict[_Row, int]:
    """Round amounts to whole units that add up to the rounded sum: the largest remainders are rounded up.

    Equal remainders are rounded up in the order of their rows.
    """
    whole = {row: amount // unit for row, amount in amounts.items()}
    missing = (sum(amounts.values()) + unit // 2) // unit - sum(whole.values())
    by_remainder = sorted(amounts, key=lambda row: (-(amounts[row] % unit), row))
    for row in by_remainder[: max(0, missing)]:
        whole[row] += 1
    return whole


_CENT: Final = 10_000 * HOUR * WHOLE  # of millionths of a dollar per hour

#: Pool, provisioning mode, team, use.
_StatementRow: TypeAlias = tuple[str, str, str, str]


@dataclass(frozen=True, slots=True)
class StatementLine:
    """The time and cost of one use, of a pool's machines or by a team."""

    #: The pool; '' where all pools count together.
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
        """Return the cost in dollars, for display; sums are exact in cents."""
        return self.cents / 100


@dataclass(frozen=True, slots=True)
class Statement:
    """The lines of a statement, and their total."""

    by_pool: Sequence[StatementLine]
    by_team: Sequence[StatementLine]
    #: The sum of either side.
    cents: int

    @property
    def cost(self) -> float:
        """Return the total cost in dollars, for display."""
        return self.cents / 100


def statement_of(accounts: Mapping[AccountKey, CostAccount]) -> Statement:
    """Build the statement of all accounts."""
    spent: dict[_StatementRow, CostAccount] = {}
    for place, account in accounts.items():
        spent.setdefault(place[:4], CostAccount()).add(account)
    cents = round_preserving_sum({row: account.cost for row, account in spent.items()}, _CENT)
    pools: dict[_StatementRow, _StatementRow] = {row: (row[0], row[1], "", row[3]) for row in spent}
    teams: dict[_StatementRow, _StatementRow] = {row: ("", "", row[2], row[3]) for row in spent}
    return Statement(_lines(spent, cents, pools), _lines(spent, cents, teams), sum(cents.values()))


def _lines(
    spent: Mapping[_StatementRow, CostAccount],
    cents: Mapping[_StatementRow, int],
    rows: Mapping[_StatementRow, _StatementRow],
) -> list[StatementLine]:
    """Sum the accounts of each row."""
    sums: dict[_StatementRow, CostAccount] = {}
    costs: dict[_StatementRow, int] = {}
    for place, row in rows.items():
        sums.setdefault(row, CostAccount()).add(spent[place])
        costs[row] = costs.get(row, 0) + cents[place]
    hour = HOUR * WHOLE
    order = sorted(sums, key=lambda row: (*row[:3], USES.index(row[3])))
    return [StatementLine(*row, sums[row].time / hour, sums[row].accelerators / hour, costs[row]) for row in order]
