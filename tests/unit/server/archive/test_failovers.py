"""After failovers that lose rows, and with retention, a restore has only states that a primary acknowledged."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchyard.base.instant import HOUR
from batchyard.server.archive.epochs import RejectedArchiveError
from batchyard.server.archive.restoration import describe_archive
from unit.server.archive.archived_journal import ArchivedJournal, State, objects_of


def copied(primary: ArchivedJournal, name: str) -> ArchivedJournal:
    """Return a standby that has the rows of this moment."""
    primary.kept.journal.close()
    shutil.copytree(primary.data, primary.folder / name)
    primary.open()
    standby = ArchivedJournal(primary.folder, name, keep=primary.settings.keep, is_replicated=True)
    standby.states = dict(primary.states)
    return standby


def started(folder: Path, keep: int = 0) -> ArchivedJournal:
    primary = ArchivedJournal(folder, "a", keep=keep, is_replicated=True)
    for name in "ab":
        primary.commit(name)
        primary.archive()
    return primary


def test_base_of_lost_rows_is_not_common(tmp_path: Path) -> None:
    primary = started(tmp_path)
    standby = copied(primary, "b")
    primary.archive()
    primary.now += 25 * HOUR
    primary.commit("x", "y")
    primary.archiver.step(primary.now)
    standby.now = primary.now
    standby.commit("p", "q", "r")
    standby.archive()
    assert objects_of(standby.restore("new")) == standby.states[standby.kept.store.revision]


def test_equal_row_after_a_difference_is_not_common(tmp_path: Path) -> None:
    primary = started(tmp_path)
    standby = copied(primary, "b")
    for journal, name in ((primary, "x"), (standby, "p")):
        journal.commit(name)
        journal.write("b", deletes=True)
        journal.commit()
        journal.archive()
    assert objects_of(standby.restore("new")) == standby.states[standby.kept.store.revision]


def test_retention_keeps_the_claim_of_an_empty_epoch_within_the_history(tmp_path: Path) -> None:
    archived = started(tmp_path, keep=48 * HOUR)
    first = archived.archiver
    for _ in range(2):  # the first one ends after its claim
        archived.start_archiver()
        archived.archiver.step(archived.now)
    revision = archived.commit("c")
    archived.archive()
    archived.now += 25 * HOUR
    archived.commit("d")
    archived.archive()
    assert objects_of(archived.restore("new", revision)) == archived.states[revision]
    with pytest.raises(RejectedArchiveError, match="has taken over"):
        first.step(archived.now, is_flush=True)


def test_owner_of_a_deleted_epoch_is_fenced(tmp_path: Path) -> None:
    archived = started(tmp_path, keep=HOUR)
    first = archived.archiver
    for _ in range(4):
        archived.start_archiver()
        archived.now += 2 * HOUR
        archived.commit("c")
        archived.archive()
    assert not (tmp_path / "archive" / "00000002" / "claim.json").exists()
    archived.commit("d")
    with pytest.raises(RejectedArchiveError, match="has taken over"):
        first.step(archived.now, is_flush=True)


CHANGES = st.lists(st.tuples(st.booleans(), st.sampled_from("ab")), max_size=3)
ROUNDS = st.lists(st.tuples(CHANGES, CHANGES, st.booleans(), st.booleans()), min_size=1, max_size=4)


def change(primary: ArchivedJournal, changes: list[tuple[bool, str]]) -> None:
    for deletes, name in changes:
        primary.write(name, deletes=deletes)
        primary.commit()
    primary.archive()


@settings(max_examples=6, deadline=None)
@given(rounds=ROUNDS)
def test_restored_states_were_acknowledged(
    rounds: list[tuple[list[tuple[bool, str]], list[tuple[bool, str]], bool, bool]],
) -> None:
    with TemporaryDirectory() as folder:
        primary, acknowledged = started(Path(folder), keep=48 * HOUR), dict[int, list[State]]()
        for number, (common, lost, has_base, is_compacted) in enumerate(rounds):
            change(primary, common)
            standby = copied(primary, f"copy{number}")
            primary.now += 25 * HOUR * has_base
            change(primary, lost)
            note(acknowledged, primary)
            standby.now, primary = primary.now, standby
            if is_compacted:
                primary.kept.journal.compact(primary.kept.store.revision)
        change(primary, [(False, "c")])
        note(acknowledged, primary)
        assert objects_of(primary.restore("newest")) == primary.states[primary.kept.store.revision]
        for revision in restorable(primary):
            assert objects_of(primary.restore(f"at{revision}", revision)) in acknowledged[revision]


def note(acknowledged: dict[int, list[State]], primary: ArchivedJournal) -> None:
    for revision, state in primary.states.items():
        acknowledged.setdefault(revision, []).append(state)


def restorable(primary: ArchivedJournal) -> set[int]:
    spans = describe_archive(primary.storage)["restorable"]
    return {revision for span in spans for revision in range(span["fromRevision"], span["toRevision"] + 1)}


@pytest.mark.parametrize("last_input", [b"flush\n", b""])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_archiver_ends_only_with_its_platform(tmp_path: Path, number: signal.Signals, last_input: bytes) -> None:
    archived = ArchivedJournal(tmp_path)
    archived.commit("a")
    arguments = msgspec.structs.replace(archived.settings, url=str(tmp_path / "archive"))
    command = [sys.executable, "-m", "batchyard.server.archive.archiver", msgspec.json.encode(arguments).decode()]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        os.kill(process.pid, number)
        process.stdin.write(last_input)
        process.stdin.close()
        assert process.wait(30) == 0
    if last_input:
        assert json.loads((tmp_path / "archive" / "00000001" / "state.json").read_bytes())["is_ended"]
