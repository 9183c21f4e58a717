"""Cost reports: sums CostRecords by team, queue, Workload, flavor, pool or use, exact to the cent.

The rows, with the one of unused time, add up to the cost of the machines. The records of a team may be deleted with
its namespace or hidden from the reader. The platform's record still holds the cost of the machines, so the difference
becomes a row of its own.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from batchyard.accounting.accounts import DONE, IDLE, USES, AccountKey, round_preserving_sum
from batchyard.accounting.records import PLATFORM, ParsedCostRecord, RecordedAmount, is_open, merged, read, settle
from batchyard.api.meta import Obj
from batchyard.api.times import format_time
from batchyard.base.instant import HOUR, Instant

UNUSED: Final = "(nobody)"
NO_RECORD: Final = "(no record)"
NOT_NAMED: Final = "(not named)"
DIMENSIONS: Final = ("team", "queue", "clusterqueue", "workload", "flavor", "pool", "use")
_CENT: Final = 10_000


@dataclass(frozen=True, slots=True)
class CostReportRow:
    """A row of a report: hours, and cents by use."""

    name: str
    node_hours: float
    accelerator_hours: float
    cents: Mapping[str, int]

    @property
    def total(self) -> int:
        """Return the sum of all uses in cents."""
        return sum(self.cents.values())


@dataclass(frozen=True, slots=True)
class CostReport:
    """The rows of a report, its time span, and the pools without prices."""

    by: str
    #: The time span of the records; None without any record.
    begin: Instant | None
    through: Instant | None
    rows: Sequence[CostReportRow]
    unpriced: Sequence[str]
    #: Whether the platform's own record, which holds the cost of the machines, is included.
    is_whole: bool

    @property
    def total(self) -> CostReportRow:
        """Return the sum of all rows."""
        cents = {use: sum(row.cents.get(use, 0) for row in self.rows) for use in USES}
        nodes, devices = (sum(getattr(row, what) for row in self.rows) for what in ("node_hours", "accelerator_hours"))
        return CostReportRow("all", nodes, devices, cents)


def report(objects: Iterable[Obj], by: str, begin: Instant, end: Instant) -> CostReport:
    """Build a report of the CostRecords that overlap a time span; each counts in full."""
    records = latest([read(obj) for obj in objects if not is_open(obj)])
    chosen = [each for each in records if each.begin < end and each.through > begin]
    lines = _with_missing(spent(records, chosen), chosen)
    cells: dict[tuple[str, str], RecordedAmount] = {}
    for place, amount in lines.items():
        cell = _name(place, by), place.use
        cells[cell] = cells.get(cell, RecordedAmount()).plus(amount)
    unpriced = {pool for each in chosen for pool, _ in each.unpriced}
    return CostReport(
        by,
        min((each.begin for each in chosen), default=None),
        max((each.through for each in chosen), default=None),
        _rows(cells),
        sorted(unpriced),
        any(each.namespace == PLATFORM for each in chosen),
    )


def latest(records: Sequence[ParsedCostRecord]) -> Sequence[ParsedCostRecord]:
    """Return the records without those that a longer record replaces."""
    longer: dict[str, list[ParsedCostRecord]] = {}
    for each in sorted(records, key=lambda each: (each.begin, each.begin - each.end)):
        kept = longer.setdefault(each.namespace, [])
        if not kept or each.end > kept[-1].end:
            kept.append(each)
    return [each for kept in longer.values() for each in kept]


def spent(records: Iterable[ParsedCostRecord], chosen: Sequence[ParsedCostRecord]) -> dict[AccountKey, RecordedAmount]:
    """Return the lines of the chosen records, with the settlements that other records hold for them."""
    lines, _ = merged(chosen)
    spans = [(each.namespace, each.begin, each.end) for each in chosen]
    inside = {id(each) for each in chosen}
    of_others = [
        (place, amount)
        for each in records
        if each.settled and id(each) not in inside
        for (of, place), amount in each.settled.items()
        if any(namespace == each.namespace and begin <= of < end for namespace, begin, end in spans)
    ]
    return settle(lines, of_others)


def document(found: CostReport) -> dict[str, Any]:
    """Return a report as a document for programs: hours, and dollars as strings exact to the cent."""
    return {
        "apiVersion": "cost.batchyard.dev/v1alpha1",
        "kind": "CostReport",
        "by": found.by,
        "from": None if found.begin is None else format_time(found.begin),
        "through": None if found.through is None else format_time(found.through),
        "currency": "USD",
        "rows": [_row_document(row, found.total.total) for row in found.rows],
        "total": _row_document(found.total, found.total.total),
        "unpricedPools": list(found.unpriced),
    }


def dollars(cents: int) -> str:
    """Format cents as dollars: `12.05`."""
    sign, cents = ("-", -cents) if cents < 0 else ("", cents)
    return f"{sign}{cents // 100}.{cents % 100:02}"


def share(part: int, whole: int) -> float:
    """Return a part as a percentage of the whole, with one decimal."""
    return round(100 * part / whole, 1) if whole else 0.0


def _row_document(row: CostReportRow, whole: int) -> dict[str, Any]:
    hours = {"nodeHours": round(row.node_hours, 6), "acceleratorHours": round(row.accelerator_hours, 6)}
    uses = {use: dollars(row.cents.get(use, 0)) for use in USES}
    return {"name": row.name, **hours, **uses, "dollars": dollars(row.total), "sharePercent": share(row.total, whole)}


def _with_missing(
    lines: Mapping[AccountKey, RecordedAmount], chosen: Iterable[ParsedCostRecord]
) -> dict[AccountKey, RecordedAmount]:
    """Return the lines, with the cost of the machines that no line accounts for."""
    missing: dict[tuple[str, str], RecordedAmount] = {}
    for each in chosen:
        for pool, amount in each.machines.items():
            missing[pool] = missing.get(pool, RecordedAmount()).plus(amount)
    if not missing:
        return dict(lines)
    for place, amount in lines.items():
        missing[place[:2]] = missing.get(place[:2], RecordedAmount()).plus(amount, -1)
    found = dict(lines)
    for pool, amount in missing.items():
        if any(amount):  #  less than a cent is a rounding difference, or not recorded yet
            place = AccountKey(*pool, NO_RECORD, DONE) if amount.microdollars >= _CENT else AccountKey(*pool, "", IDLE)
            found[place] = found.get(place, RecordedAmount()).plus(amount)
    return found


def _name(place: AccountKey, by: str) -> str:
    """Return the name of the row that a line belongs to."""
    if by == "pool":
        return place.pool if place.provisioning == "standard" else f"{place.pool} ({place.provisioning})"
    if by == "use":
        return place.use
    if not place.team:
        return UNUSED
    if by == "team" or place.team == NO_RECORD:
        return place.team
    if by == "workload":
        return f"{place.team}/{place.workload or NOT_NAMED}"
    if by == "queue":
        return f"{place.team}/{place.local_queue}" if place.local_queue else f"{place.team}/{NOT_NAMED}"
    return (place.cluster_queue if by == "clusterqueue" else place.flavor) or NOT_NAMED


def _rows(cells: Mapping[tuple[str, str], RecordedAmount]) -> list[CostReportRow]:
    """Return rows with whole cents that add up, the most expensive first and unused time last."""
    cents = round_preserving_sum({cell: amount.microdollars for cell, amount in cells.items()}, _CENT)
    rows: dict[str, dict[str, int]] = {}
    for (name, use), amount in cents.items():
        rows.setdefault(name, {})[use] = amount
    found = []
    for name, uses in rows.items():
        amounts = [cells[name, use] for use in uses]
        nodes, devices = sum(each.node for each in amounts), sum(each.accelerators for each in amounts)
        found.append(CostReportRow(name, nodes / HOUR, devices / HOUR, uses))
    last = {UNUSED: 1, NO_RECORD: 2}
    return sorted(found, key=lambda row: (last.get(row.name, 0), -row.total, row.name))
