"""CostRecords: conversion from and to cost accounts, billing times of machines and pods, and cost reports.

A CostRecord holds the cost of one team during a time span, in the team's namespace. The record in kube-system holds
unused machine time and the total cost of the machines.

The record of the open hour is rewritten until the hour ends, and never afterwards. Amounts are integers: microseconds
of nodes and of accelerators, and millionths of dollars. The lines of an hour add up to the cost of its machines.

The time of a pod that still runs counts as running in closed hours. The record of the hour in which the pod ends holds
the correction in `settled`, each entry with the hour that it corrects.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar

from batchyard.accounting.accounts import (
    DONE,
    IDLE,
    RUNS,
    USES,
    WHOLE_MACHINE,
    AccountKey,
    CostAccount,
    round_preserving_sum,
)
from batchyard.api import scheme, well_known
from batchyard.api.meta import Key, Obj, annotation, find_condition, label
from batchyard.api.times import format_time, parse_time
from batchyard.api.views.workload import workload_view
from batchyard.base.instant import HOUR, Instant
from batchyard.cloud.catalog.instances import BOOTING, RUNNING, STOPPING, is_stopped, phase_of

_AmountKey = TypeVar("_AmountKey", bound=Hashable)


#: The namespace of the records of unused machine time and of the total cost of the machines.
PLATFORM_NAMESPACE: Final = "kube-system"
#: The checkpoint record of the open hour, from which a restarted process resumes.
CHECKPOINT: Final = Key(scheme.COST_RECORD, PLATFORM_NAMESPACE, "open")
#: The maximum number of lines that name a Workload; other lines are summed by queue and flavor.
NAMED_WORKLOADS_MAX: Final = 1000
_MICRODOLLAR: Final = HOUR * WHOLE_MACHINE
_AMOUNT_FIELDS: Final = ("nodeMicroseconds", "acceleratorMicroseconds", "microdollars")
_KEY_FIELDS: Final = ("pool", "provisioning", "namespace", "use", "flavor", "clusterQueue", "localQueue", "workload")


class RecordedAmount(NamedTuple):
    """An amount in a CostRecord: node and accelerator time in microseconds, and cost in millionths of a dollar."""

    node_time: int = 0
    accelerator_time: int = 0
    microdollars: int = 0

    def plus(self, addend: "RecordedAmount", factor: int = 1) -> "RecordedAmount":
        """Return the sum of this amount and `factor` times another amount."""
        return RecordedAmount(*(value + factor * other_value for value, other_value in zip(self, addend, strict=True)))

    def at_most(self, limits: "RecordedAmount") -> "RecordedAmount":
        """Return this amount with each field limited to that of `limits`."""
        return RecordedAmount(*map(min, self, limits))


class ParsedCostRecord(NamedTuple):
    """A parsed CostRecord: its time span, its lines by account, corrections of earlier hours, and machine costs."""

    namespace: str
    begin: Instant
    end: Instant
    through: Instant
    lines: Mapping[AccountKey, RecordedAmount]
    reclassified_usage: Mapping[tuple[Instant, AccountKey], RecordedAmount]
    #: The total machine costs by (pool, provisioning mode); only in the record in kube-system.
    machines: Mapping[tuple[str, str], RecordedAmount]
    unpriced_pools: frozenset[tuple[str, str]]
    revision: int


def amounts_of(accounts: Mapping[_AmountKey, CostAccount]) -> dict[_AmountKey, RecordedAmount]:
    """Return cost accounts in the units of CostRecords, rounded so that they add up to the rounded total."""
    node_times = round_preserving_sum({row: account.time for row, account in accounts.items()}, WHOLE_MACHINE)
    device_times = round_preserving_sum({row: account.accelerators for row, account in accounts.items()}, WHOLE_MACHINE)
    microdollars_by_row = round_preserving_sum({row: account.cost for row, account in accounts.items()}, _MICRODOLLAR)
    return {row: RecordedAmount(node_times[row], device_times[row], microdollars_by_row[row]) for row in accounts}


def accounts_of(lines: Mapping[AccountKey, RecordedAmount]) -> dict[AccountKey, CostAccount]:
    """Convert the recorded amount of each account to a CostAccount, which counts in finer units."""
    return {
        account_key: CostAccount(
            amount.node_time * WHOLE_MACHINE,
            amount.accelerator_time * WHOLE_MACHINE,
            amount.microdollars * _MICRODOLLAR,
        )
        for account_key, amount in lines.items()
    }


def limit_named_workloads(
    accounts: Mapping[AccountKey, CostAccount], named_max: int = NAMED_WORKLOADS_MAX
) -> dict[AccountKey, CostAccount]:
    """Return cost accounts of which only the `named_max` with the most machine time name a Workload.

    All other accounts are merged with those that differ from them only in the Workload.
    """
    if len(accounts) <= named_max:
        return dict(accounts)
    named_keys = set(sorted(accounts, key=lambda account_key: (-accounts[account_key].time, account_key))[:named_max])
    limited_accounts: dict[AccountKey, CostAccount] = {}
    for account_key, account in accounts.items():
        row = account_key if account_key in named_keys else account_key._replace(workload="")
        limited_accounts.setdefault(row, CostAccount()).add(account)
    return limited_accounts


def cost_record_specs(
    lines: Mapping[AccountKey, RecordedAmount],
    reclassified_usage: Mapping[tuple[Instant, AccountKey], RecordedAmount],
    unpriced_pools: Iterable[tuple[str, str]],
) -> dict[str, dict[str, Any]]:
    """Return the specs of the CostRecords by namespace: of each namespace with charges, and always of kube-system.
    `lines` become the field `lines`. `reclassified_usage`, which an earlier hour recorded otherwise, becomes `settled`.
    The spec of kube-system also has the totals of the machines; `unpriced_pools` are (node pool, provisioning mode)
    pairs.
    """
    specs: dict[str, Any] = {
        PLATFORM_NAMESPACE: {"lines": [], "machines": _machine_totals(lines, frozenset(unpriced_pools))}
    }
    for account_key, amount in sorted(lines.items()):
        if any(amount):
            _namespace_spec(specs, account_key).setdefault("lines", []).append(_record_line(account_key, amount))
    for (hour, account_key), amount in sorted(reclassified_usage.items()):
        settled_line = {"of": format_time(hour), **_record_line(account_key, amount)}
        _namespace_spec(specs, account_key).setdefault("settled", []).append(settled_line)
    return specs


def checkpoint_spec(spec_by_namespace: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the spec of the checkpoint record: the CostRecord specs of all namespaces (`spec_by_namespace`) merged."""
    merged_fields: dict[str, Any] = {
        field: [line for spec in spec_by_namespace.values() for line in spec.get(field) or ()]
        for field in ("lines", "settled")
    }
    return {**merged_fields, "machines": spec_by_namespace[PLATFORM_NAMESPACE]["machines"]}


def make_cost_record(namespace: str, name: str, time_span: tuple[Instant, Instant], through: Instant, spec: Obj) -> Obj:
    """Return a CostRecord object for a time span, in which charges are complete up to `through`."""
    time_fields = {"from": format_time(time_span[0]), "to": format_time(time_span[1]), "through": format_time(through)}
    return {
        "apiVersion": scheme.kind_info(scheme.COST_RECORD).api_version,
        "kind": "CostRecord",
        "metadata": {"namespace": namespace, "name": name},
        "spec": {**time_fields, "closed": through >= time_span[1], **spec},
    }


def hour_record_name(begin: Instant) -> str:
    """Return the name that all CostRecords of an hour have, such as `hour-2026-11-22-10`."""
    text = format_time(begin)
    return f"hour-{text[:10]}-{text[11:13]}"


def parse_cost_record(obj: Obj) -> ParsedCostRecord:
    """Return a parsed CostRecord; outside kube-system, all its lines belong to its own namespace."""
    spec, namespace = obj["spec"], obj["metadata"]["namespace"]
    record_team = None if namespace == PLATFORM_NAMESPACE else namespace
    reclassified_usage: dict[tuple[Instant, AccountKey], RecordedAmount] = {}
    for line in spec.get("settled") or ():
        reclassified_usage[parse_time(line["of"]), _account_key(line, record_team)] = _recorded_amount(line)
    machine_rows_by_pool = {(row["pool"], row["provisioning"]): row for row in spec.get("machines") or ()}
    return ParsedCostRecord(
        namespace,
        parse_time(spec["from"]),
        parse_time(spec["to"]),
        parse_time(spec["through"]),
        {_account_key(line, record_team): _recorded_amount(line) for line in spec.get("lines") or ()},
        reclassified_usage,
        {pool: _recorded_amount(row) for pool, row in machine_rows_by_pool.items()},
        frozenset(pool for pool, row in machine_rows_by_pool.items() if row.get("unpriced")),
        int(spec.get("revision") or 0),
    )


def is_checkpoint(obj: Obj) -> bool:
    """Return whether a CostRecord is the checkpoint `open`, whose lines other CostRecords also contain."""
    metadata = obj["metadata"]
    return bool(metadata["name"] == CHECKPOINT.name and metadata["namespace"] == PLATFORM_NAMESPACE)


def reclassify_lines(
    lines: Mapping[AccountKey, RecordedAmount], reclassified_usage: Iterable[tuple[AccountKey, RecordedAmount]]
) -> dict[AccountKey, RecordedAmount]:
    """Return CostRecord lines with the reclassified amounts moved from `running` to `done` or `lost`.

    An amount is moved only as far as the lines contain it as `running`.
    """
    adjusted_lines = dict(lines)
    for account_key, amount in reclassified_usage:
        running_key = account_key._replace(use=RUNS)
        if running_key not in adjusted_lines:
            running_key = running_key._replace(workload="")  #  the CostRecord does not name this Workload
        moved_amount = amount.at_most(adjusted_lines.get(running_key, RecordedAmount()))
        if any(moved_amount):
            adjusted_lines[running_key] = adjusted_lines[running_key].plus(moved_amount, -1)
            adjusted_lines[account_key] = adjusted_lines.get(account_key, RecordedAmount()).plus(moved_amount)
    return adjusted_lines


def merge_records(
    records: Sequence[ParsedCostRecord],
) -> tuple[dict[AccountKey, RecordedAmount], dict[tuple[Instant, AccountKey], RecordedAmount]]:
    """Return the total amounts of CostRecords by account, and the corrections of hours that no given record covers.

    Corrections of hours that a given record covers are already applied to the totals.
    """
    lines: dict[AccountKey, RecordedAmount] = {}
    for each in records:
        for key, amount in each.lines.items():
            lines[key] = lines.get(key, RecordedAmount()).plus(amount)
    own_reclassified_usage: list[tuple[AccountKey, RecordedAmount]] = []
    other_reclassified_usage: dict[tuple[Instant, AccountKey], RecordedAmount] = {}
    for each in records:
        for (hour, key), amount in each.reclassified_usage.items():
            if any(record.begin <= hour < record.end for record in records):
                own_reclassified_usage.append((key, amount))
            else:
                other_reclassified_usage[hour, key] = other_reclassified_usage.get((hour, key), RecordedAmount()).plus(
                    amount
                )
    return reclassify_lines(lines, own_reclassified_usage), other_reclassified_usage


def combined_spec(records: Sequence[ParsedCostRecord]) -> dict[str, Any]:
    """Return the spec of a CostRecord that replaces these CostRecords of one namespace."""
    lines, reclassified_usage = merge_records(records)
    named_accounts = limit_named_workloads({account_key: CostAccount(*amount) for account_key, amount in lines.items()})
    machine_amounts_by_pool: dict[tuple[str, str], RecordedAmount] = {}
    for each in records:
        for pool, amount in each.machines.items():
            machine_amounts_by_pool[pool] = machine_amounts_by_pool.get(pool, RecordedAmount()).plus(amount)
    unpriced_pools = frozenset(pool for each in records for pool in each.unpriced_pools)
    spec: dict[str, Any] = {
        "lines": [
            _record_line(account_key, RecordedAmount(a.time, a.accelerators, a.cost))
            for account_key, a in sorted(named_accounts.items())
        ]
    }
    if reclassified_usage:
        spec["settled"] = _settled_lines(reclassified_usage)
    if machine_amounts_by_pool:
        spec["machines"] = _machine_lines(machine_amounts_by_pool, unpriced_pools)
    return spec


def _settled_lines(reclassified_usage: Mapping[tuple[Instant, AccountKey], RecordedAmount]) -> list[dict[str, Any]]:
    return [
        {"of": format_time(hour), **_record_line(key, amount)}
        for (hour, key), amount in sorted(reclassified_usage.items())
    ]


def _namespace_spec(spec_by_namespace: dict[str, dict[str, Any]], account_key: AccountKey) -> dict[str, Any]:
    return spec_by_namespace.setdefault(account_key.team or PLATFORM_NAMESPACE, {})


def _machine_totals(
    lines: Mapping[AccountKey, RecordedAmount], unpriced_pools: frozenset[tuple[str, str]]
) -> list[Obj]:
    amounts_by_pool: dict[tuple[str, str], RecordedAmount] = {}
    for account_key, amount in lines.items():
        amounts_by_pool[account_key[:2]] = amounts_by_pool.get(account_key[:2], RecordedAmount()).plus(amount)
    return _machine_lines(amounts_by_pool, unpriced_pools)


def _machine_lines(
    amounts_by_pool: Mapping[tuple[str, str], RecordedAmount], unpriced_pools: frozenset[tuple[str, str]]
) -> list[Obj]:
    return [
        {
            "pool": pool[0],
            "provisioning": pool[1],
            **dict(zip(_AMOUNT_FIELDS, amount, strict=True)),
            **({"unpriced": True} if pool in unpriced_pools else {}),
        }
        for pool, amount in sorted(amounts_by_pool.items())
    ]


def _record_line(account_key: AccountKey, amount: RecordedAmount) -> dict[str, Any]:
    key_fields = {field: value for field, value in zip(_KEY_FIELDS, account_key, strict=True) if value}
    return {**key_fields, **dict(zip(_AMOUNT_FIELDS, amount, strict=True))}


def _account_key(line: Mapping[str, Any], team: str | None) -> AccountKey:
    account_key = AccountKey(*(line.get(field, "") for field in _KEY_FIELDS))
    return account_key if team is None else account_key._replace(team=team)


def _recorded_amount(line: Mapping[str, Any]) -> RecordedAmount:
    return RecordedAmount(*(line.get(field, 0) for field in _AMOUNT_FIELDS))


# When a machine is billed, when a pod occupies it, and which team and queue own the pod, as read from their objects.


_BILLED_PHASES = (BOOTING, RUNNING, STOPPING)


class PodOwner(NamedTuple):
    """The owner of a pod's cost: the pod's namespace, and its Workload's queues, flavor and name ('' if unknown)."""

    team: str
    flavor: str = ""
    cluster_queue: str = ""
    local_queue: str = ""
    workload: str = ""


def is_billed(instance: Obj) -> bool:
    """Return whether a cloud Instance is billed: it is booting, running or stopping, and not powered off."""
    return phase_of(instance) in _BILLED_PHASES and not is_stopped(instance)


def billing_start(instance: Obj) -> Instant | None:
    """Return the time from which a cloud Instance is billed; None if its status has no such time."""
    return _parse_optional_time((instance.get("status") or {}).get("startedAt"))


def billing_end(instance: Obj) -> Instant | None:
    """Return the time at which billing of a cloud Instance ended; None if it is still billed or has no such time."""
    status = instance.get("status") or {}
    return _parse_optional_time(status.get("stoppedAt") or (None if is_billed(instance) else status.get("since")))


def ready_since(node: Obj) -> Instant | None:
    """Return when the Ready condition of a Node last changed; None if that time is not recorded."""
    ready_condition = find_condition(node.get("status") or {}, "Ready")
    return None if ready_condition is None else _parse_optional_time(ready_condition.get("lastTransitionTime"))


def bound_at(pod: Obj) -> Instant | None:
    """Return when a pod was bound to its node, or else its startTime; None if its status has neither."""
    condition = find_condition(pod.get("status") or {}, "PodScheduled")
    if condition is not None and condition["status"] == "True" and condition.get("lastTransitionTime"):
        return _parse_optional_time(condition["lastTransitionTime"])
    return _parse_optional_time((pod.get("status") or {}).get("startTime"))


def ended_at(pod: Obj) -> Instant | None:
    """Return when the last container of a pod ended; None without containers, or if the end of one is not recorded."""
    container_states = [each.get("state") or {} for each in (pod.get("status") or {}).get("containerStatuses") or ()]
    end_times = [(state.get("terminated") or {}).get("finishedAt") for state in container_states]
    known_end_times = [end for end in end_times if end is not None]
    return max(map(parse_time, known_end_times)) if known_end_times and len(known_end_times) == len(end_times) else None


def owner_of(pod: Obj, workload: Obj | None, accelerator_resource: str) -> PodOwner:
    """Return the owner of a pod's cost: the pod's namespace, and the queues, flavor and name of its Workload.

    If the Workload is None, the queues and the name come from the pod's labels and annotations.
    """
    metadata = pod["metadata"]
    team, queue_name = metadata.get("namespace", ""), label(pod, well_known.LOCAL_QUEUE) or ""
    name = annotation(pod, well_known.WORKLOAD) or ""
    if workload is None:
        return PodOwner(team, "", label(pod, well_known.CLUSTER_QUEUE) or "", queue_name, name)
    view = workload_view(workload)
    pod_set_name = label(pod, well_known.POD_SET)
    flavors = next((each.flavors for each in view.admitted_pod_sets if each.name == pod_set_name), None) or {}
    flavor_name = flavors.get(accelerator_resource) or flavors.get("cpu") or next(iter(flavors.values()), "")
    return PodOwner(team, flavor_name, view.cluster_queue, queue_name or view.queue.partition("/")[2], name)


def _parse_optional_time(text: str | None) -> Instant | None:
    return None if text is None else parse_time(text)


# Cost reports: sums CostRecords by team, queue, Workload, flavor, pool or use, exact to the cent.
#
# The rows, including a row for unused time, add up to the cost of the machines. Records of a team may have been deleted
# with its namespace, or be unreadable for the user. The record in kube-system still holds the cost of the machines, so
# the difference becomes a separate row.


UNUSED: Final = "(unused)"
NO_RECORD: Final = "(no record)"
NOT_NAMED: Final = "(not named)"
REPORT_DIMENSIONS: Final = ("team", "queue", "clusterqueue", "workload", "flavor", "pool", "use")
_MICRODOLLARS_PER_CENT: Final = 10_000


@dataclass(frozen=True, slots=True)
class CostReportRow:
    """A row of a cost report: node hours, accelerator hours, and cents by use (such as idle or done)."""

    name: str
    node_hours: float
    accelerator_hours: float
    cents: Mapping[str, int]

    @property
    def total(self) -> int:
        """The cost of the row in cents, summed over its uses, such as idle or done."""
        return sum(self.cents.values())


@dataclass(frozen=True, slots=True)
class CostReport:
    """A cost report: its rows, its time span, and the node pools without prices."""

    #: The dimension of the rows, such as team or queue.
    dimension: str
    #: The time span of the included records; None without records.
    begin: Instant | None
    through: Instant | None
    rows: Sequence[CostReportRow]
    unpriced_pools: Sequence[str]
    #: Whether the records in kube-system, which hold the cost of the machines, are included.
    is_whole: bool

    @property
    def total(self) -> CostReportRow:
        """The sum of all rows of the report, as a row named `all`."""
        cents_by_use = {use: sum(row.cents.get(use, 0) for row in self.rows) for use in USES}
        nodes, devices = (sum(getattr(row, name) for row in self.rows) for name in ("node_hours", "accelerator_hours"))
        return CostReportRow("all", nodes, devices, cents_by_use)


def make_cost_report(objects: Iterable[Obj], dimension: str, begin: Instant, end: Instant) -> CostReport:
    """Return a cost report by team, queue or another dimension, from all CostRecords that overlap a time span."""
    unreplaced_cost_records = unreplaced_records([parse_cost_record(obj) for obj in objects if not is_checkpoint(obj)])
    chosen_records = [each for each in unreplaced_cost_records if each.begin < end and each.through > begin]
    lines = _add_unaccounted_cost(sum_corrected_records(unreplaced_cost_records, chosen_records), chosen_records)
    amount_by_row_and_use: dict[tuple[str, str], RecordedAmount] = {}
    for account_key, amount in lines.items():
        cell = _row_name(account_key, dimension), account_key.use
        amount_by_row_and_use[cell] = amount_by_row_and_use.get(cell, RecordedAmount()).plus(amount)
    unpriced_pools = {pool for each in chosen_records for pool, _ in each.unpriced_pools}
    return CostReport(
        dimension,
        min((each.begin for each in chosen_records), default=None),
        max((each.through for each in chosen_records), default=None),
        _make_report_rows(amount_by_row_and_use),
        sorted(unpriced_pools),
        any(each.namespace == PLATFORM_NAMESPACE for each in chosen_records),
    )


def unreplaced_records(records: Sequence[ParsedCostRecord]) -> Sequence[ParsedCostRecord]:
    """Return the CostRecords, by namespace, without those whose period another record of the namespace contains."""
    kept_records_by_namespace: dict[str, list[ParsedCostRecord]] = {}
    for each in sorted(records, key=lambda each: (each.begin, each.begin - each.end)):
        kept_records = kept_records_by_namespace.setdefault(each.namespace, [])
        if not kept_records or each.end > kept_records[-1].end:
            kept_records.append(each)
    return [each for kept_records in kept_records_by_namespace.values() for each in kept_records]


def sum_corrected_records(
    records: Iterable[ParsedCostRecord], chosen_records: Sequence[ParsedCostRecord]
) -> dict[AccountKey, RecordedAmount]:
    """Return `chosen_records` summed by account, corrected by the reclassified usage that any of `records` contains."""
    lines, _ = merge_records(chosen_records)
    chosen_spans = [(each.namespace, each.begin, each.end) for each in chosen_records]
    chosen_record_ids = {id(each) for each in chosen_records}
    other_reclassified_usage = [
        (account_key, amount)
        for each in records
        if each.reclassified_usage and id(each) not in chosen_record_ids
        for (hour, account_key), amount in each.reclassified_usage.items()
        if any(namespace == each.namespace and begin <= hour < end for namespace, begin, end in chosen_spans)
    ]
    return reclassify_lines(lines, other_reclassified_usage)


def cost_report_document(cost_report: CostReport) -> dict[str, Any]:
    """Return a cost report as a JSON document, with hours as numbers and dollars as strings exact to the cent."""
    return {
        "apiVersion": "cost.batchyard.dev/v1alpha1",
        "kind": "CostReport",
        "by": cost_report.dimension,
        "from": None if cost_report.begin is None else format_time(cost_report.begin),
        "through": None if cost_report.through is None else format_time(cost_report.through),
        "currency": "USD",
        "rows": [_report_row_document(row, cost_report.total.total) for row in cost_report.rows],
        "total": _report_row_document(cost_report.total, cost_report.total.total),
        "unpricedPools": list(cost_report.unpriced_pools),
    }


def format_dollars(cents: int) -> str:
    """Return cents as text in dollars, such as `12.05`."""
    sign, cents = ("-", -cents) if cents < 0 else ("", cents)
    return f"{sign}{cents // 100}.{cents % 100:02}"


def format_cost(cents: int) -> str:
    """Return cents as text with the currency, such as `$1,012.05`."""
    sign, cents = ("-", -cents) if cents < 0 else ("", cents)
    return f"{sign}${cents // 100:,}.{cents % 100:02}"


def percentage(part: int, total: int) -> float:
    """Return `part` as a percentage of `total`, with one decimal; 0 if the total is 0."""
    return round(100 * part / total, 1) if total else 0.0


def _report_row_document(row: CostReportRow, total_cents: int) -> dict[str, Any]:
    hours = {"nodeHours": round(row.node_hours, 6), "acceleratorHours": round(row.accelerator_hours, 6)}
    dollars_by_use = {use: format_dollars(row.cents.get(use, 0)) for use in USES}
    share = percentage(row.total, total_cents)
    return {"name": row.name, **hours, **dollars_by_use, "dollars": format_dollars(row.total), "sharePercent": share}


def _add_unaccounted_cost(
    lines: Mapping[AccountKey, RecordedAmount], chosen_records: Iterable[ParsedCostRecord]
) -> dict[AccountKey, RecordedAmount]:
    unaccounted_amounts: dict[tuple[str, str], RecordedAmount] = {}
    for each in chosen_records:
        for pool, amount in each.machines.items():
            unaccounted_amounts[pool] = unaccounted_amounts.get(pool, RecordedAmount()).plus(amount)
    if not unaccounted_amounts:
        return dict(lines)
    for account_key, amount in lines.items():
        unaccounted_amounts[account_key[:2]] = unaccounted_amounts.get(account_key[:2], RecordedAmount()).plus(
            amount, -1
        )
    completed_lines = dict(lines)
    for pool, amount in unaccounted_amounts.items():
        if any(amount):  #  less than a cent is a rounding difference, or a charge that is not recorded yet
            is_reportable = amount.microdollars >= _MICRODOLLARS_PER_CENT
            account_key = AccountKey(*pool, NO_RECORD, DONE) if is_reportable else AccountKey(*pool, "", IDLE)
            completed_lines[account_key] = completed_lines.get(account_key, RecordedAmount()).plus(amount)
    return completed_lines


def _row_name(key: AccountKey, dimension: str) -> str:
    if dimension == "pool":
        return key.pool if key.provisioning == "standard" else f"{key.pool} ({key.provisioning})"
    if dimension == "use":
        return key.use
    if not key.team:
        return UNUSED
    if dimension == "team" or key.team == NO_RECORD:
        return key.team
    if dimension == "workload":
        return f"{key.team}/{key.workload or NOT_NAMED}"
    if dimension == "queue":
        return f"{key.team}/{key.local_queue}" if key.local_queue else f"{key.team}/{NOT_NAMED}"
    return (key.cluster_queue if dimension == "clusterqueue" else key.flavor) or NOT_NAMED


def _make_report_rows(cells: Mapping[tuple[str, str], RecordedAmount]) -> list[CostReportRow]:
    cents = round_preserving_sum({cell: amount.microdollars for cell, amount in cells.items()}, _MICRODOLLARS_PER_CENT)
    cents_by_use_by_row: dict[str, dict[str, int]] = {}
    for (name, use), amount in cents.items():
        cents_by_use_by_row.setdefault(name, {})[use] = amount
    report_rows = []
    for name, cents_by_use in cents_by_use_by_row.items():
        amounts = [cells[name, use] for use in cents_by_use]
        node_time = sum(each.node_time for each in amounts)
        accelerator_time = sum(each.accelerator_time for each in amounts)
        report_rows.append(CostReportRow(name, node_time / HOUR, accelerator_time / HOUR, cents_by_use))
    order_of_special_rows = {UNUSED: 1, NO_RECORD: 2}
    return sorted(report_rows, key=lambda row: (order_of_special_rows.get(row.name, 0), -row.total, row.name))
