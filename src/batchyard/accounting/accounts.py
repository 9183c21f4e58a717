"""Accounts: machine time, accelerator time and money, in whole numbers; and how whole sums are made of parts.

A machine is counted in parts, so that whatever pods take of it adds up to the machine, and its costs to what it costs.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias, TypeVar

from batchyard.base.instant import HOUR

#: A share of a machine is counted in so many parts.
WHOLE: Final = 1 << 30

BOOT, IDLE, DONE, LOST, RUNS = "booting", "idle", "done", "lost", "running"
#: The uses: its node is not ready; nobody took it; pods that succeeded, or kept what they did; all else; not ended yet.
USES: Final = (BOOT, IDLE, DONE, LOST, RUNS)

_Row = TypeVar("_Row", bound=Hashable)


class Place(NamedTuple):
    """What an account is about. Of what nobody took all is empty but the pool, the way of provisioning and the use."""

    pool: str
    provisioning: str
    #: The namespace of the pods.
    team: str
    use: str
    #: The flavor of the accelerators, else of cpu, that the Workload was admitted to.
    flavor: str = ""
    cluster_queue: str = ""
    local_queue: str = ""
    #: The name of the Workload; '' for pods without, and for those that are counted together.
    workload: str = ""


@dataclass(slots=True)
class Account:
    """What was spent for one use."""

    #: Microseconds times parts of a machine.
    time: int = 0
    #: Microseconds times parts of an accelerator.
    accelerators: int = 0
    #: Millionths of a dollar per hour, times microseconds, times parts of a machine.
    cost: int = 0

    def add(self, other: "Account") -> None:
        """Add what another account holds."""
        self.time += other.time
        self.accelerators += other.accelerators
        self.cost += other.cost

    def take(self, other: "Account") -> None:
        """Take away what another account holds."""
        self.time -= other.time
        self.accelerators -= other.accelerators
        self.cost -= other.cost

    def split(self, time: int) -> tuple["Account", "Account"]:
        """So much of the machine time with what it cost, and the rest."""
        accelerators = self.accelerators * time // self.time if time else 0
        cost = self.cost * time // self.time if time else 0
        return Account(time, accelerators, cost), Account(
            self.time - time, self.accelerators - accelerators, self.cost - cost
        )


class Totals(NamedTuple):
    """What was spent, and what of it became of running time of hours that are over."""

    accounts: dict[Place, Account]
    settled: dict[Place, Account]


def rounded(amounts: Mapping[_Row, int], unit: int) -> dict[_Row, int]:
    """Amounts in whole units that add up to the rounded sum: the largest remainders are rounded up.

    Of equal remainders the first in order is.
    """
    whole = {row: amount // unit for row, amount in amounts.items()}
    missing = (sum(amounts.values()) + unit // 2) // unit - sum(whole.values())
    by_remainder = sorted(amounts, key=lambda row: (-(amounts[row] % unit), row))
    for row in by_remainder[: max(0, missing)]:
        whole[row] += 1
    return whole


# --- statement ---
#
# What accounts came to, for reading: a line for each use of a pool, and of all machines by a team, in hours and cents.
#
# The lines of either side add up to the cent.


_CENT: Final = 10_000 * HOUR * WHOLE  # of millionths of a dollar per hour

#: Pool, way of provisioning, team, use.
_StatementRow: TypeAlias = tuple[str, str, str, str]


@dataclass(frozen=True, slots=True)
class Line:
    """What one use of a pool's machines, or of all machines by a team, came to."""

    #: The pool; '' where all pools count together.
    pool: str
    provisioning: str
    #: The namespace of the pods; '' for what no pod took.
    team: str
    use: str
    machine_hours: float
    accelerator_hours: float
    cents: int

    @property
    def cost(self) -> float:
        """Dollars, for reading; sums are exact in cents."""
        return self.cents / 100


@dataclass(frozen=True, slots=True)
class Statement:
    """What all of it came to."""

    by_pool: Sequence[Line]
    by_team: Sequence[Line]
    #: The sum of either side.
    cents: int

    @property
    def cost(self) -> float:
        """Dollars, for reading."""
        return self.cents / 100


def statement_of(accounts: Mapping[Place, Account]) -> Statement:
    """All of the accounts together."""
    spent: dict[_StatementRow, Account] = {}
    for place, account in accounts.items():
        spent.setdefault(place[:4], Account()).add(account)
    cents = rounded({row: account.cost for row, account in spent.items()}, _CENT)
    pools: dict[_StatementRow, _StatementRow] = {row: (row[0], row[1], "", row[3]) for row in spent}
    teams: dict[_StatementRow, _StatementRow] = {row: ("", "", row[2], row[3]) for row in spent}
    return Statement(_lines(spent, cents, pools), _lines(spent, cents, teams), sum(cents.values()))


def _lines(
    spent: Mapping[_StatementRow, Account],
    cents: Mapping[_StatementRow, int],
    rows: Mapping[_StatementRow, _StatementRow],
) -> list[Line]:
    """The accounts of each row together."""
    sums: dict[_StatementRow, Account] = {}
    costs: dict[_StatementRow, int] = {}
    for place, row in rows.items():
        sums.setdefault(row, Account()).add(spent[place])
        costs[row] = costs.get(row, 0) + cents[place]
    hour = HOUR * WHOLE
    order = sorted(sums, key=lambda row: (*row[:3], USES.index(row[3])))
    return [Line(*row, sums[row].time / hour, sums[row].accelerators / hour, costs[row]) for row in order]
