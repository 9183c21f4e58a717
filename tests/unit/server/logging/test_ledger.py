"""Metrics of the decision ledger of a running platform, also with disk errors."""

import asyncio
import sqlite3
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from batchyard.api.meta import Key
from batchyard.interfaces.controller import DecisionRecord, LedgerQuery
from batchyard.server.logging import ledger as module
from batchyard.server.logging.ledger import LedgerFile, LiveLedger


def entry(number: int) -> DecisionRecord:
    key = Key("Workload.kueue.x-k8s.io", "team", "job-a")
    return DecisionRecord(number, number, "kueue-admission", key, "Normal", "Admitted", f"no {number}", {})


def append_entries(folder: Path, count: int) -> tuple[dict[str, str], int]:
    """Append some entries; return the metrics and the number of stored entries."""

    async def run() -> str:
        ledger = LiveLedger(folder / "decisions.db", asyncio.get_running_loop())
        for number in range(1, count + 1):
            ledger.add_entry(entry(number))
        assert f"batchyard_ledger_waiting {count}" in "".join(ledger.texts())
        async with asyncio.timeout(60):
            while "batchyard_ledger_waiting 0" not in "".join(ledger.texts()):
                with suppress(TimeoutError):
                    await asyncio.wait_for(asyncio.Event().wait(), 0.01)
        reported = "".join(ledger.texts())
        ledger.close()
        return reported

    reported = dict(line.split(" ") for line in asyncio.run(run()).splitlines() if not line.startswith("#"))
    file = LedgerFile(folder / "decisions.db")
    result = len(file.find(LedgerQuery()))
    file.close()
    return {name.removeprefix("batchyard_ledger_"): value for name, value in reported.items()}, result


def test_ledger_counts_entries(tmp_path: Path) -> None:
    assert append_entries(tmp_path, 3) == ({"entries_total": "3", "lost_total": "0", "waiting": "0"}, 3)


def test_ledger_drops_and_counts_oldest_entries_above_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_UNWRITTEN_MAX", 4)
    assert append_entries(tmp_path, 10) == ({"entries_total": "10", "lost_total": "6", "waiting": "0"}, 4)


def test_ledger_counts_entries_lost_to_disk_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_file: LedgerFile, _records: Sequence[DecisionRecord]) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(LedgerFile, "append", refuse)
    assert append_entries(tmp_path, 2) == ({"entries_total": "2", "lost_total": "2", "waiting": "0"}, 0)
