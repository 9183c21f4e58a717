"""CostRecords: records round-trip, amounts settled later move, and sums are exact to the cent."""

import hypothesis
from hypothesis import strategies as st

from batchyard.accounting.accounts import BOOT, DONE, IDLE, LOST, RUNS, WHOLE_MACHINE, AccountKey, CostAccount
from batchyard.accounting.records import (
    PLATFORM_NAMESPACE,
    CostReport,
    RecordedAmount,
    amounts_of,
    combined_spec,
    cost_record_specs,
    cost_report_document,
    hour_record_name,
    limit_named_workloads,
    make_cost_record,
    make_cost_report,
    parse_cost_record,
)
from batchyard.api.meta import Obj
from batchyard.api.times import parse_time
from batchyard.base.instant import HOUR

TEN = parse_time("2026-11-22T10:00:00Z")
FOREVER = 1 << 62


def account_key(use: str, team: str = "", workload: str = "", pool: str = "p") -> AccountKey:
    return AccountKey(
        pool, "standard", team, use, "l4" if team else "", "cq" if team else "", "lq" if team else "", workload
    )


def hour(
    lines: dict[AccountKey, RecordedAmount],
    at: int = 0,
    settled: dict[tuple[int, AccountKey], RecordedAmount] | None = None,
) -> list[Obj]:
    """Return the records of one hour; `at` counts hours after ten."""
    begin = TEN + at * HOUR
    specs = cost_record_specs(lines, settled or {}, [])
    return [
        make_cost_record(ns, hour_record_name(begin), (begin, begin + HOUR), begin + HOUR, spec)
        for ns, spec in specs.items()
    ]


def rows(found: CostReport) -> dict[str, dict[str, int]]:
    return {row.name: dict(row.cents) for row in found.rows}


def test_cost_records_round_trip() -> None:
    lines = {account_key(IDLE): RecordedAmount(5, 6, 7), account_key(DONE, "red", "w"): RecordedAmount(1, 2, 3)}
    result = {obj["metadata"]["namespace"]: parse_cost_record(obj) for obj in hour(lines)}
    assert result["red"].lines == {account_key(DONE, "red", "w"): RecordedAmount(1, 2, 3)}
    assert result[PLATFORM_NAMESPACE].lines == {account_key(IDLE): RecordedAmount(5, 6, 7)}
    assert result[PLATFORM_NAMESPACE].machines == {("p", "standard"): RecordedAmount(6, 8, 10)}


def test_settled_amount_replaces_running_amount_of_earlier_hour() -> None:
    ran = account_key(RUNS, "red", "w")
    first = hour({ran: RecordedAmount(HOUR, 0, 900_000)})
    settled = {
        (TEN, account_key(DONE, "red", "w")): RecordedAmount(0, 0, 600_000),
        (TEN, account_key(LOST, "red", "w")): RecordedAmount(0, 0, 300_000),
    }
    second = hour({account_key(DONE, "red", "w"): RecordedAmount(HOUR, 0, 100_000)}, 1, settled)
    alone = make_cost_report(first, "team", TEN, TEN + HOUR)
    assert rows(alone) == {"red": {RUNS: 90}}
    later = make_cost_report([*first, *second], "team", TEN, TEN + HOUR)
    assert {use: cents for use, cents in rows(later)["red"].items() if cents} == {DONE: 60, LOST: 30}
    assert make_cost_report([*first, *second], "team", 0, FOREVER).total.total == 100


def test_day_record_reports_same_rows_as_its_hours() -> None:
    ran = account_key(RUNS, "red", "w")
    first = hour({ran: RecordedAmount(HOUR, 0, 900_000), account_key(IDLE): RecordedAmount(HOUR, 0, 50_000)})
    second = hour(
        {account_key(LOST, "red", "w"): RecordedAmount(HOUR, 0, 100_000)},
        1,
        {(TEN, account_key(LOST, "red", "w")): RecordedAmount(0, 0, 900_000)},
    )
    day = []
    for namespace in ("red", PLATFORM_NAMESPACE):
        some = [parse_cost_record(obj) for obj in [*first, *second] if obj["metadata"]["namespace"] == namespace]
        span = TEN - 10 * HOUR, TEN + 14 * HOUR
        day.append(make_cost_record(namespace, "day-2026-11-22", span, span[1], combined_spec(some)))
    for by in ("team", "workload", "use"):
        reported = [
            cost_report_document(make_cost_report(some, by, 0, FOREVER))["rows"]
            for some in ([*first, *second], day, [*first, *second, *day])
        ]
        assert reported[0] == reported[1] == reported[2]


def test_limit_named_workloads_merges_smallest_workloads() -> None:
    accounts = {account_key(DONE, "red", f"w{number}"): CostAccount(number, 0, number) for number in range(10)}
    some = limit_named_workloads(accounts, 3)
    assert sorted(each.workload for each in some) == ["", "w7", "w8", "w9"]
    assert sum(account.cost for account in some.values()) == 45


def test_report_includes_cost_of_deleted_namespace() -> None:
    objects = hour(
        {
            account_key(DONE, "red"): RecordedAmount(HOUR, 0, 500_000),
            account_key(IDLE): RecordedAmount(HOUR, 0, 100_000),
        }
    )
    left = [obj for obj in objects if obj["metadata"]["namespace"] != "red"]
    assert rows(make_cost_report(left, "team", 0, FOREVER)) == {"(unused)": {IDLE: 10}, "(no record)": {DONE: 50}}


def test_team_record_contains_only_its_own_costs() -> None:
    objects = hour(
        {
            account_key(DONE, "red"): RecordedAmount(1, 0, 500_000),
            account_key(DONE, "blue"): RecordedAmount(1, 0, 100_000),
        }
    )
    own = [obj for obj in objects if obj["metadata"]["namespace"] == "red"]
    assert "blue" not in str(own)
    assert rows(make_cost_report(own, "team", 0, FOREVER)) == {"red": {DONE: 50}}


@hypothesis.given(
    st.dictionaries(
        st.builds(
            account_key, st.sampled_from([DONE, LOST, RUNS]), st.sampled_from(["red", "blue"]), st.sampled_from("ab")
        ),
        st.integers(0, HOUR * WHOLE_MACHINE),
        max_size=8,
    ),
    st.integers(0, HOUR * WHOLE_MACHINE),
    st.integers(0, 50_000_000),
)
def test_report_rows_sum_to_cost_of_machines(taken: dict[AccountKey, int], idle: int, price: int) -> None:
    times = {**taken, account_key(IDLE): idle, account_key(BOOT): idle // 3}
    lines = amounts_of({each: CostAccount(time, 0, time * price) for each, time in times.items()})
    objects = hour(lines)
    cost = sum(times.values()) * price
    total = next(
        parse_cost_record(obj) for obj in objects if obj["metadata"]["namespace"] == PLATFORM_NAMESPACE
    ).machines[("p", "standard")]
    assert abs(total.microdollars * HOUR * WHOLE_MACHINE - cost) <= HOUR * WHOLE_MACHINE // 2 + 1
    for by in ("team", "queue", "workload", "flavor", "pool", "use"):
        result = make_cost_report(objects, by, 0, FOREVER)
        assert sum(row.total for row in result.rows) == (total.microdollars + 5_000) // 10_000
