"""Retention merges hour records into days and day records into months; reports stay the same."""

from batchyard.accounting.accounts import DONE, AccountKey
from batchyard.accounting.controller import DAY, DAY_RECORD_RETENTION, HOUR_RECORD_RETENTION, retention_writes
from batchyard.accounting.records import (
    PLATFORM_NAMESPACE,
    RecordedAmount,
    cost_record_specs,
    hour_record_name,
    make_cost_record,
    make_cost_report,
)
from batchyard.api import scheme
from batchyard.api.meta import Obj, key_of
from batchyard.api.times import parse_time
from batchyard.base.instant import HOUR, Instant
from batchyard.client.local import LocalClient
from batchyard.controller_runtime.kernel import VirtualEventLoop
from batchyard.interfaces.client import Create, WriteResult
from batchyard.store.memory import Store

BEGIN = parse_time("2026-01-30T00:00:00Z")


def ignore(result: WriteResult) -> None:
    assert result.error is None


class HourlyRecords:
    """A store with one record per hour."""

    def __init__(self, hours: int) -> None:
        self.kernel = VirtualEventLoop(BEGIN)
        self.client = LocalClient(Store(), self.kernel)
        for number in range(hours):
            begin = BEGIN + number * HOUR
            lines = {
                AccountKey("p", "standard", "red", DONE, workload=f"w{number % 3}"): RecordedAmount(
                    HOUR, 0, 1_000_000 + number
                )
            }
            for namespace, spec in cost_record_specs(lines, {}, []).items():
                obj = make_cost_record(namespace, hour_record_name(begin), (begin, begin + HOUR), begin + HOUR, spec)
                self.client.submit([Create(obj)], ignore)
        self.kernel.run()

    def compact(self, now: Instant) -> None:
        """Apply the retention writes until none is due."""
        while writes := retention_writes(self.client, now):
            for write in writes:
                self.client.submit([write], ignore)
            self.kernel.run()

    def names(self, namespace: str) -> list[str]:
        return [key_of(obj).name for obj in self.objects() if key_of(obj).namespace == namespace]

    def objects(self) -> list[Obj]:
        return list(self.client.list(scheme.COST_RECORD))


def test_hour_records_are_kept_for_one_week() -> None:
    records = HourlyRecords(30)
    records.compact(BEGIN + DAY + HOUR_RECORD_RETENTION - 1)
    assert len(records.names("red")) == 30
    records.compact(BEGIN + DAY + HOUR_RECORD_RETENTION)
    assert records.names("red") == ["day-2026-01-30", *(f"hour-2026-01-31-{hour:02}" for hour in range(6))]


def test_day_records_merge_into_months_after_three_months() -> None:
    records = HourlyRecords(72)
    reported = [make_cost_report(records.objects(), by, 0, 1 << 62) for by in ("team", "workload")]
    records.compact(BEGIN + 3 * DAY + HOUR_RECORD_RETENTION)
    assert records.names("red") == ["day-2026-01-30", "day-2026-01-31", "day-2026-02-01"]
    records.compact(BEGIN + 40 * DAY + DAY_RECORD_RETENTION)
    for namespace in ("red", PLATFORM_NAMESPACE):
        assert records.names(namespace) == ["month-2026-01", "month-2026-02"]
    again = [make_cost_report(records.objects(), by, 0, 1 << 62) for by in ("team", "workload")]
    assert [each.rows for each in again] == [each.rows for each in reported]
