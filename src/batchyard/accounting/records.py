"""CostRecords: the cost of a time span, per team in its namespace; unused machine time in the platform's record.

The record of the open hour is rewritten until the hour ends, and never afterwards. Amounts are integers: microseconds
of nodes and of accelerators, and millionths of dollars. The lines of an hour add up to the cost of its machines.

The time of a pod that still runs counts as running in the hours already closed. The record of the hour in which the
pod ends holds the correction: `settled`, each entry with the hour that it corrects.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar

from batchyard.accounting.accounts import DONE, IDLE, RUNS, USES, WHOLE, AccountKey, CostAccount, round_preserving_sum
from batchyard.api import scheme, well_known
from batchyard.api.meta import Key, Obj, annotation, find_condition, label
from batchyard.api.times import format_time, parse_time
from batchyard.api.views.workload import workload_view
from batchyard.base.instant import HOUR, Instant
from batchyard.cloud.catalog.instances import BOOTING, RUNNING, STOPPING, is_off, phase_of

_Row = TypeVar("_Row", bound=Hashable)


#: The namespace of the records of unused machine time and of the total cost of the machines.
PLATFORM: Final = "kube-system"
#: The record of the open hour, with everything that a restarted process needs.
OPEN: Final = Key(scheme.COST_RECORD, PLATFORM, "open")
#: At most this many lines name their Workloads; all others are summed by queue and flavor.
NAMED_MAX: Final = 1000
_MICRODOLLAR: Final = HOUR * WHOLE
_TOTAL: Final = ("nodeMicroseconds", "acceleratorMicroseconds", "microdollars")
_PLACE: Final = ("pool", "provisioning", "namespace", "use", "flavor", "clusterQueue", "localQueue", "workload")


class RecordedAmount(NamedTuple):
    """An amount of node time and accelerator time, in microseconds, and its cost in millionths of a dollar."""

    node: int = 0
    accelerators: int = 0
    microdollars: int = 0

    def plus(self, other: "RecordedAmount", times: int = 1) -> "RecordedAmount":
        """Return the sum with `times` times another amount."""
        return RecordedAmount(*(mine + times * theirs for mine, theirs in zip(self, other, strict=True)))

    def at_most(self, other: "RecordedAmount") -> "RecordedAmount":
        """Return the smaller value of each field."""
        return RecordedAmount(*map(min, self, other))


class ParsedCostRecord(NamedTuple):
    """A parsed CostRecord."""

    namespace: str
    begin: Instant
    end: Instant
    through: Instant
    lines: Mapping[AccountKey, RecordedAmount]
    settled: Mapping[tuple[Instant, AccountKey], RecordedAmount]
    #: By pool and way of provisioning, in the platform's record.
    machines: Mapping[tuple[str, str], RecordedAmount]
    unpriced: frozenset[tuple[str, str]]
    revision: int


def amounts_of(accounts: Mapping[_Row, CostAccount]) -> dict[_Row, RecordedAmount]:
    """Convert accounts to the units of records; the rounded parts add up to the rounded total."""
    nodes = round_preserving_sum({row: account.time for row, account in accounts.items()}, WHOLE)
    devices = round_preserving_sum({row: account.accelerators for row, account in accounts.items()}, WHOLE)
    money = round_preserving_sum({row: account.cost for row, account in accounts.items()}, _MICRODOLLAR)
    return {row: RecordedAmount(nodes[row], devices[row], money[row]) for row in accounts}


def accounts_of(lines: Mapping[AccountKey, RecordedAmount]) -> dict[AccountKey, CostAccount]:
    """Convert record lines back to accounts, at the precision of the records."""
    return {
        place: CostAccount(amount.node * WHOLE, amount.accelerators * WHOLE, amount.microdollars * _MICRODOLLAR)
        for place, amount in lines.items()
    }


def limit_named_workloads(
    accounts: Mapping[AccountKey, CostAccount], named_max: int = NAMED_MAX
) -> dict[AccountKey, CostAccount]:
    """Limit the accounts to `named_max` named Workloads, those with the most time; sum the others without a name."""
    if len(accounts) <= named_max:
        return dict(accounts)
    kept = set(sorted(accounts, key=lambda place: (-accounts[place].time, place))[:named_max])
    found: dict[AccountKey, CostAccount] = {}
    for place, account in accounts.items():
        row = place if place in kept else place._replace(workload="")
        found.setdefault(row, CostAccount()).add(account)
    return found


def specs_of(
    lines: Mapping[AccountKey, RecordedAmount],
    settled: Mapping[tuple[Instant, AccountKey], RecordedAmount],
    unpriced: Iterable[tuple[str, str]],
) -> dict[str, dict[str, Any]]:
    """Return the spec of each namespace's record; the platform's is always included."""
    specs: dict[str, dict[str, Any]] = {PLATFORM: {"lines": [], "machines": _machines(lines, frozenset(unpriced))}}
    for place, amount in sorted(lines.items()):
        if any(amount):
            _spec(specs, place).setdefault("lines", []).append(_line(place, amount))
    for (of, place), amount in sorted(settled.items()):
        entry = {"of": format_time(of), **_line(place, amount)}
        _spec(specs, place).setdefault("settled", []).append(entry)
    return specs


def checkpoint(specs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Merge the specs of all namespaces into one, from which a restarted process resumes."""
    together: dict[str, Any] = {
        field: [line for spec in specs.values() for line in spec.get(field) or ()] for field in ("lines", "settled")
    }
    return {**together, "machines": specs[PLATFORM]["machines"]}


def record(namespace: str, name: str, span: tuple[Instant, Instant], through: Instant, spec: Obj) -> dict[str, Any]:
    """Build a CostRecord."""
    times = {"from": format_time(span[0]), "to": format_time(span[1]), "through": format_time(through)}
    return {
        "apiVersion": scheme.kind_info(scheme.COST_RECORD).api_version,
        "kind": "CostRecord",
        "metadata": {"namespace": namespace, "name": name},
        "spec": {**times, "closed": through >= span[1], **spec},
    }


def hour_name(begin: Instant) -> str:
    """Return the name of the records of an hour: `hour-2026-11-22-10`."""
    text = format_time(begin)
    return f"hour-{text[:10]}-{text[11:13]}"


def read(obj: Obj) -> ParsedCostRecord:
    """Parse a CostRecord. The lines of a team's record always count for that team, whatever team they name."""
    spec, namespace = obj["spec"], obj["metadata"]["namespace"]
    own = None if namespace == PLATFORM else namespace
    settled: dict[tuple[Instant, AccountKey], RecordedAmount] = {}
    for line in spec.get("settled") or ():
        settled[parse_time(line["of"]), _place(line, own)] = _amount(line)
    machines = {(row["pool"], row["provisioning"]): row for row in spec.get("machines") or ()}
    return ParsedCostRecord(
        namespace,
        parse_time(spec["from"]),
        parse_time(spec["to"]),
        parse_time(spec["through"]),
        {_place(line, own): _amount(line) for line in spec.get("lines") or ()},
        settled,
        {pool: _amount(row) for pool, row in machines.items()},
        frozenset(pool for pool, row in machines.items() if row.get("unpriced")),
        int(spec.get("revision") or 0),
    )


def is_open(obj: Obj) -> bool:
    """Whether this is the checkpoint `open`, which only repeats the lines of other records."""
    metadata = obj["metadata"]
    return bool(metadata["name"] == OPEN.name and metadata["namespace"] == PLATFORM)


def settle(
    lines: Mapping[AccountKey, RecordedAmount], settled: Iterable[tuple[AccountKey, RecordedAmount]]
) -> dict[AccountKey, RecordedAmount]:
    """Move settled amounts from running to their final use, at most the running amount on record."""
    found = dict(lines)
    for place, amount in settled:
        before = place._replace(use=RUNS)
        if before not in found:
            before = before._replace(workload="")  #  the record does not name this Workload
        moved = amount.at_most(found.get(before, RecordedAmount()))
        if any(moved):
            found[before] = found[before].plus(moved, -1)
            found[place] = found.get(place, RecordedAmount()).plus(moved)
    return found


def merged(
    records: Sequence[ParsedCostRecord],
) -> tuple[dict[AccountKey, RecordedAmount], dict[tuple[Instant, AccountKey], RecordedAmount]]:
    """Merge records and apply their settlements of each other; return the lines, and the settlements of others."""
    lines: dict[AccountKey, RecordedAmount] = {}
    for each in records:
        for place, amount in each.lines.items():
            lines[place] = lines.get(place, RecordedAmount()).plus(amount)
    inner: list[tuple[AccountKey, RecordedAmount]] = []
    outer: dict[tuple[Instant, AccountKey], RecordedAmount] = {}
    for each in records:
        for (of, place), amount in each.settled.items():
            if any(other.begin <= of < other.end for other in records):
                inner.append((place, amount))
            else:
                outer[of, place] = outer.get((of, place), RecordedAmount()).plus(amount)
    return settle(lines, inner), outer


def combined(records: Sequence[ParsedCostRecord]) -> dict[str, Any]:
    """Build the spec of one record that replaces several records of one namespace."""
    lines, settled = merged(records)
    named = limit_named_workloads({place: CostAccount(*amount) for place, amount in lines.items()})
    machines: dict[tuple[str, str], RecordedAmount] = {}
    for each in records:
        for pool, amount in each.machines.items():
            machines[pool] = machines.get(pool, RecordedAmount()).plus(amount)
    unpriced = frozenset(pool for each in records for pool in each.unpriced)
    spec: dict[str, Any] = {
        "lines": [_line(place, RecordedAmount(a.time, a.accelerators, a.cost)) for place, a in sorted(named.items())]
    }
    if settled:
        spec["settled"] = _settled(settled)
    if machines:
        spec["machines"] = _totals(machines, unpriced)
    return spec


def _settled(settled: Mapping[tuple[Instant, AccountKey], RecordedAmount]) -> list[dict[str, Any]]:
    return [{"of": format_time(of), **_line(place, amount)} for (of, place), amount in sorted(settled.items())]


def _spec(specs: dict[str, dict[str, Any]], place: AccountKey) -> dict[str, Any]:
    return specs.setdefault(place.team or PLATFORM, {})


def _machines(lines: Mapping[AccountKey, RecordedAmount], unpriced: frozenset[tuple[str, str]]) -> list[dict[str, Any]]:
    """Return the total cost of the machines of each pool."""
    totals: dict[tuple[str, str], RecordedAmount] = {}
    for place, amount in lines.items():
        totals[place[:2]] = totals.get(place[:2], RecordedAmount()).plus(amount)
    return _totals(totals, unpriced)


def _totals(
    totals: Mapping[tuple[str, str], RecordedAmount], unpriced: frozenset[tuple[str, str]]
) -> list[dict[str, Any]]:
    return [
        {
            "pool": pool[0],
            "provisioning": pool[1],
            **dict(zip(_TOTAL, amount, strict=True)),
            **({"unpriced": True} if pool in unpriced else {}),
        }
        for pool, amount in sorted(totals.items())
    ]


def _line(place: AccountKey, amount: RecordedAmount) -> dict[str, Any]:
    fields = {field: value for field, value in zip(_PLACE, place, strict=True) if value}
    return {**fields, **dict(zip(_TOTAL, amount, strict=True))}


def _place(line: Mapping[str, Any], team: str | None) -> AccountKey:
    place = AccountKey(*(line.get(field, "") for field in _PLACE))
    return place if team is None else place._replace(team=team)


def _amount(line: Mapping[str, Any]) -> RecordedAmount:
    return RecordedAmount(*(line.get(field, 0) for field in _TOTAL))


# --- timestamps and owners ---
#
# When a machine is billed, when a pod occupies it and who owns the pod, as read from their objects.


_PAID = (BOOTING, RUNNING, STOPPING)


class PodOwner(NamedTuple):
    """The owner of a pod: its team and the queues and flavor of its Workload. All fields but the team may be empty."""

    team: str
    flavor: str = ""
    cluster_queue: str = ""
    local_queue: str = ""
    workload: str = ""


def is_paid(instance: Obj) -> bool:
    """Whether a machine is billed: from the moment the cloud provides it until it is gone."""
    return phase_of(instance) in _PAID and not is_off(instance)


def paid_from(instance: Obj) -> Instant | None:
    """Return the time from which an Instance is billed, or None if it is not recorded."""
    return _time((instance.get("status") or {}).get("startedAt"))


def paid_until(instance: Obj) -> Instant | None:
    """Return the time at which billing of an Instance ended, or None if it is not recorded."""
    status = instance.get("status") or {}
    return _time(status.get("stoppedAt") or (None if is_paid(instance) else status.get("since")))


def ready_since(node: Obj) -> Instant | None:
    """Return the time since which a Node is ready or not ready, or None if it is not recorded."""
    found = find_condition(node.get("status") or {}, "Ready")
    return None if found is None else _time(found.get("lastTransitionTime"))


def bound_at(pod: Obj) -> Instant | None:
    """Return the time at which a pod was bound to its node, or None if it is not recorded."""
    found = find_condition(pod.get("status") or {}, "PodScheduled")
    if found is not None and found["status"] == "True" and found.get("lastTransitionTime"):
        return _time(found["lastTransitionTime"])
    return _time((pod.get("status") or {}).get("startTime"))


def ended_at(pod: Obj) -> Instant | None:
    """Return the time at which the last container of a pod ended, or None if one of the times is not recorded."""
    states = [each.get("state") or {} for each in (pod.get("status") or {}).get("containerStatuses") or ()]
    ends = [(state.get("terminated") or {}).get("finishedAt") for state in states]
    known = [end for end in ends if end is not None]
    return max(map(parse_time, known)) if known and len(known) == len(ends) else None


def owner_of(pod: Obj, workload: Obj | None, device: str) -> PodOwner:
    """Return the owner of a pod, given the Workload that the pod names and the resource name of its accelerators."""
    metadata = pod["metadata"]
    team, queue = metadata.get("namespace", ""), label(pod, well_known.LOCAL_QUEUE) or ""
    name = annotation(pod, well_known.WORKLOAD) or ""
    if workload is None:
        return PodOwner(team, "", label(pod, well_known.CLUSTER_QUEUE) or "", queue, name)
    view = workload_view(workload)
    pod_set = label(pod, well_known.POD_SET)
    flavors = next((each.flavors for each in view.holdings if each.name == pod_set), None) or {}
    flavor = flavors.get(device) or flavors.get("cpu") or next(iter(flavors.values()), "")
    return PodOwner(team, flavor, view.cluster_queue, queue or view.queue.partition("/")[2], name)


def _time(text: str | None) -> Instant | None:
    return None if text is None else parse_time(text)


# --- report ---
#
# Cost reports: sums CostRecords by team, queue, Workload, flavor, pool or use, exact to the cent.
#
# The rows, with the one of unused time, add up to the cost of the machines. The records of a team may be deleted with
# its namespace or hidden from the reader. The platform's record still holds the cost of the machines, so the difference
# becomes a row of its own.


UNUSED: Final = "(nobody)"
NO_RECORD: Final = "(no record)"
NOT_NAMED: Final = "(not named)"
DIMENSIONS: Final = ("team", "queue", "clusterqueue", "workload", "flavor", "pool", "use")
_WHOLE_CENT: Final = 10_000


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
            place = (
                AccountKey(*pool, NO_RECORD, DONE)
                if amount.microdollars >= _WHOLE_CENT
                else AccountKey(*pool, "", IDLE)
            )
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
    cents = round_preserving_sum({cell: amount.microdollars for cell, amount in cells.items()}, _WHOLE_CENT)
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
