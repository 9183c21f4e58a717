"""The store on a simulated disk with faults, and the planted defects that this simulation must find."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import pytest

from batchyard.interfaces.client import WatchEvent
from batchyard.store import journal, journal_file
from batchyard.store.journal import RevisionJournal, SyncMode
from batchyard.store.journal_file import JournalError
from disk_faults.disk import Fault, SimulatedDisk
from disk_faults.runs import Step, StoreRun, draw_steps, play, shrink
from disk_faults.sqlite_files import is_supported

pytestmark = pytest.mark.skipif(
    not is_supported(), reason="this Python contains SQLite, and its files stay on the disk"
)

_Runs: TypeAlias = Iterable[tuple[object, list[Step]]]
_append: Final = RevisionJournal.append


def append_ignoring_errors(opened: RevisionJournal, changes: Sequence[WatchEvent]) -> int:
    try:
        return _append(opened, changes)
    except JournalError:
        return 0


def do_nothing(*_: Any, **__: Any) -> None:
    """Do nothing."""


def flush_folder_only(path: Path) -> None:
    journal_file.flush_folder(path)


def runs_of(*seeds: int) -> _Runs:
    return [(seed, draw_steps(seed)) for seed in seeds]


def rotting_runs() -> _Runs:
    steps = [Step("large write", 3), Step("large write", 4), Step("stop", 0), Step("bit rot", 0), Step("stop", 0)]
    return [(f"rot {number}", steps) for number in range(40)]


def failing_creations() -> _Runs:
    return [
        (1, [Step("start", 0, (Fault(call, number, "EIO"),))]) for call in ("write", "read") for number in range(20)
    ]


#: Planted defects: the object, its attribute, the defect, and runs of which one must find it.
PLANTED: Final = {
    "folder is not flushed": (journal_file, "flush_folder", do_nothing, runs_of(2)),
    "log is not flushed": (StoreRun, "sync", SyncMode.PROCESS, runs_of(2)),
    "log is not written again": (journal_file, "rewrite_log", flush_folder_only, runs_of(69, 72)),
    "mark is ignored": (journal, "_find_mark_mismatch", lambda *_: "", runs_of(11)),
    "failed writes are acknowledged": (RevisionJournal, "append", append_ignoring_errors, runs_of(6, 12)),
    "checksums of rows are ignored": (journal_file, "row_checksum", lambda *_: 0, rotting_runs()),
    "errors at the end of creation are ignored": (journal_file, "empty_log", do_nothing, failing_creations()),
}


@pytest.mark.parametrize("name", PLANTED)
def test_planted_defect_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    holder, attribute, defect, runs = PLANTED[name]
    monkeypatch.setattr(holder, attribute, defect)
    assert any(play(seed, steps).violation for seed, steps in runs)


@pytest.mark.parametrize("first_seed", [0, 15, 30])
def test_store_keeps_acknowledged_writes_or_refuses_to_start(first_seed: int) -> None:
    results = [(seed, play(seed)) for seed in range(first_seed, first_seed + 15)]
    assert [(seed, result.violation) for seed, result in results if result.violation] == []
    assert sum(result.acknowledged for _, result in results) > 100
    assert sum(result.effects.total() for _, result in results) > 20


def test_run_of_a_seed_is_repeatable() -> None:
    assert play(5) == play(5)


def test_failing_run_is_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StoreRun, "sync", SyncMode.PROCESS)
    fault = Fault("read", 90, "EIO")
    steps = [Step(action, 3, (fault,)) for action in ("evict", "write", "compact", "setting", "write")]
    shrunk = shrink(0, steps)
    assert [(step.action, step.faults) for step in shrunk] == [("write", ())]


@pytest.mark.parametrize(("seed", "expected"), [(1, b"kept, not flushed"), (2, b"kept")])
def test_power_loss_may_lose_what_is_not_flushed(seed: int, expected: bytes) -> None:
    disk = SimulatedDisk(seed)
    file = disk.open("/a/b", writes=True, creates=True)
    disk.write(file, 0, b"kept")
    disk.flush(file)
    disk.flush_folder("/a")
    disk.write(file, 4, b", not flushed")
    disk.halted = "power loss"
    disk.restart()
    assert bytes(disk.files["/a/b"].cache) == expected


#: Runs that found defects of the store, shrunk.
FOUND: Final = {
    "log after a failed flush": (69, None),
    "log of a new journal": (
        100012,
        [Step("start", 0, (Fault("flush", 0, "EIO clean"),)), Step("kill", 1), Step("write", 40941)],
    ),
    "error in a read of the mark": (57, [Step("power loss", 48342, (Fault("read", 0, "EIO"),))]),
    "bit rot before a power loss": (47, [Step("write", 20404), Step("bit rot", 10345)]),
    "damaged schema": (110541, [Step("bit rot", 34239)]),
}


@pytest.mark.parametrize("name", FOUND)
def test_found_defect_is_fixed(name: str) -> None:
    seed, steps = FOUND[name]
    assert play(seed, steps).violation == ""
