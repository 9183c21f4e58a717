"""A standby takes over only with a right or after a promotion, with all rows that it received, and never with a gap."""

import asyncio
from contextlib import closing
from pathlib import Path

import pytest

from batchyard.api.meta import Key
from batchyard.server.clocks.wall import boot_seconds, wall_clock
from batchyard.server.platform.credentials import CertificateAuthority
from batchyard.server.platform.data_dir import JOURNAL_FILE, PlatformOptions
from batchyard.server.replication import protocol, terms
from batchyard.server.replication.protocol import ReplicationError
from batchyard.server.replication.standby import StandbyFollower, StandbyJournal
from batchyard.server.replication.terms import TermStart
from batchyard.store.journal import REVISION_LEAP, RevisionJournal
from batchyard.store.journal_file import row_checksum

HISTORY = [TermStart(4, 0, "primary")]
UNREACHABLE = "https://127.0.0.1:9"


def row(revision: int) -> protocol.JournalRow:
    key, text = Key("ConfigMap", "team", f"m{revision}"), b'{"metadata":{"resourceVersion":"%d"}}' % revision
    return revision, *key, text, row_checksum(revision, key, text)


def standby_of(folder: Path) -> StandbyFollower:
    with closing(RevisionJournal(folder / JOURNAL_FILE)):
        pass
    CertificateAuthority(folder, wall_clock())
    return StandbyFollower(PlatformOptions(folder, standby="sync", follow=UNREACHABLE))


def welcome(mode: str) -> protocol.PrimaryWelcome:
    return protocol.PrimaryWelcome("primary", b"", HISTORY, resumes=True, mode=mode, has_witness=False)


def beat(*, may_take_over: bool) -> protocol.PrimaryBeat:
    return protocol.PrimaryBeat(boot_seconds(), HISTORY, may_take_over, is_shared=may_take_over, revision=0)


def follow(standby: StandbyFollower, *messages: protocol.PrimaryMessage, seconds: float = 1) -> bool:
    """Follow a primary that has sent messages and is gone; return whether the standby takes over within `seconds`."""

    async def end() -> bool:
        for message in messages:
            standby._messages.put_nowait(message)
        asyncio.get_running_loop().call_later(seconds, setattr, standby, "is_ending", True)
        return await standby.follow()

    return asyncio.run(end())


def revision_in(folder: Path) -> int:
    with closing(RevisionJournal(folder / JOURNAL_FILE)) as journal:
        return journal.recover().revision


def test_rows_before_a_resignation_are_stored_before_the_takeover(tmp_path: Path) -> None:
    rows = [protocol.RowBatch([row(number)]) for number in range(1, 30)]
    end = protocol.PrimaryResignation(29)
    assert follow(standby_of(tmp_path), welcome("sync"), beat(may_take_over=True), *rows, end)
    assert revision_in(tmp_path) == 29
    assert terms.read_state(tmp_path).history[-1][:2] == (6, 29)


def test_standby_without_a_right_does_not_take_over(tmp_path: Path) -> None:
    standby = standby_of(tmp_path)
    assert not follow(standby, welcome("sync"), beat(may_take_over=False), protocol.PrimaryResignation(0))
    assert terms.read_state(tmp_path).is_shared


def test_beat_delays_the_takeover(tmp_path: Path) -> None:
    assert not follow(standby_of(tmp_path), welcome("sync"), beat(may_take_over=True))


@pytest.mark.parametrize(("mode", "sent_revision", "leap"), [("async", 2, REVISION_LEAP), ("sync", 1, 0)])
def test_takeover_without_all_acknowledged_rows_raises_the_revision(
    tmp_path: Path, mode: str, sent_revision: int, leap: int
) -> None:
    end = protocol.PrimaryResignation(sent_revision)
    messages = welcome(mode), beat(may_take_over=True), protocol.RowBatch([row(1)]), end
    assert follow(standby_of(tmp_path), *messages)
    assert revision_in(tmp_path) == 1 + leap
    assert terms.read_state(tmp_path).history[-1].revision == 1


def test_promoted_standby_with_all_rows_keeps_the_revision(tmp_path: Path) -> None:
    standby = standby_of(tmp_path)
    (tmp_path / terms.PROMOTION_FILE).touch()
    assert follow(standby, welcome("async"), protocol.RowBatch([row(1)]), protocol.PrimaryResignation(1), seconds=9)
    assert revision_in(tmp_path) == 1


def test_promotion_is_cancelled_if_the_primary_serves_on(tmp_path: Path) -> None:
    standby = standby_of(tmp_path)
    (tmp_path / terms.PROMOTION_FILE).touch()
    refusal = protocol.TakeoverRefusal("the standby lacks 5000 revisions")
    assert not follow(standby, welcome("async"), refusal)


def test_standby_without_data_cannot_be_promoted(tmp_path: Path) -> None:
    CertificateAuthority(tmp_path, wall_clock())
    standby = StandbyFollower(PlatformOptions(tmp_path, standby="sync", follow=UNREACHABLE))
    (tmp_path / terms.PROMOTION_FILE).touch()
    assert not follow(standby)


@pytest.mark.parametrize("rows", [[row(2)], [row(1), row(3)], [(*row(1)[:5], 7)]])
def test_missing_or_damaged_row_is_not_stored(tmp_path: Path, rows: list[protocol.JournalRow]) -> None:
    with closing(RevisionJournal(tmp_path / JOURNAL_FILE)):
        pass
    with closing(StandbyJournal(PlatformOptions(tmp_path))) as journal:
        with pytest.raises(ReplicationError, match="missing or damaged"):
            journal.append(rows)
        assert journal.revision == 0
        journal.append([row(1), row(2)])
        journal.append([row(2), row(3)])  # sent again
        assert journal.revision == 3
