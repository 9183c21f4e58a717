"""What accounts came to, for reading: a line for each use of a pool, and of all machines by a team, in hours and cents.

The lines of either side add up to the cent.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from batchyard.base.instant import HOUR
from batchyard.core.costs.accounts import USES, WHOLE, Account, Place, rounded

_CENT: Final = 10_000 * HOUR * WHOLE  # of millionths of a dollar per hour

#: Pool, way of provisioning, team, use.
_Row: TypeAlias = tuple[str, str, str, str]


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
    spent: dict[_Row, Account] = {}
    for place, account in accounts.items():
        spent.setdefault(place[:4], Account()).add(account)
    cents = rounded({row: account.cost for row, account in spent.items()}, _CENT)
    pools: dict[_Row, _Row] = {row: (row[0], row[1], "", row[3]) for row in spent}
    teams: dict[_Row, _Row] = {row: ("", "", row[2], row[3]) for row in spent}
    return Statement(_lines(spent, cents, pools), _lines(spent, cents, teams), sum(cents.values()))


def _lines(spent: Mapping[_Row, Account], cents: Mapping[_Row, int], rows: Mapping[_Row, _Row]) -> list[Line]:
    """The accounts of each row together."""
    sums: dict[_Row, Account] = {}
    costs: dict[_Row, int] = {}
    for place, row in rows.items():
        sums.setdefault(row, Account()).add(spent[place])
        costs[row] = costs.get(row, 0) + cents[place]
    hour = HOUR * WHOLE
    order = sorted(sums, key=lambda row: (*row[:3], USES.index(row[3])))
    return [Line(*row, sums[row].time / hour, sums[row].accelerators / hour, costs[row]) for row in order]
