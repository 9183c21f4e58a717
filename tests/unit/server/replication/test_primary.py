"""A primary that shares its data serves only with fresh answers of its standby, and holds changes until it has them."""

import asyncio
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest

from batchyard.server.clocks.wall import boot_seconds
from batchyard.server.platform.data_dir import JOURNAL_FILE, PlatformOptions
from batchyard.server.platform.group_commit import GroupCommit
from batchyard.server.replication import primary, protocol, terms
from batchyard.store.journal import RevisionJournal
from batchyard.store.journal_file import StandbyLostError, SupersededError
from batchyard.store.memory import Store

PARTNER = "partner"


class SentBytes:
    """The transport of a session, which keeps what it gets."""

    def __init__(self) -> None:
        self.messages: list[protocol.PrimaryMessage] = []

    def send(self, data: bytes) -> None:
        parser = protocol.MessageParser(protocol.MESSAGE_BYTES_MAX)
        self.messages += map(protocol.primary_decoder.decode, parser.feed_bytes(data))

    def close(self, *, at_once: bool) -> None:
        assert at_once


class PrimaryWithAnswers:
    """A primary that restarts with shared data, and the messages of its standby."""

    def __init__(self, folder: Path, loop: asyncio.AbstractEventLoop) -> None:
        state = terms.ReplicationState("node").with_term(1, 0)
        terms.write_state(folder, state._replace(is_shared=True, partner=PARTNER))
        self.journal = RevisionJournal(folder / JOURNAL_FILE)
        self.store = Store()
        self.commit = GroupCommit(self.store, self.journal, loop, lambda: None)
        options = PlatformOptions(folder, standby="sync")
        parts = options, self.store, self.commit, self.journal, cast("Any", None), cast("Any", None)
        self.primary = primary.PrimaryReplication(primary.ReplicatedPlatform(*parts), loop)
        self.commit.replication = self.primary
        self.sent = SentBytes()
        self._session = primary.StandbySession(self.primary, loop, cast("Any", self.sent))

    def receive(self, message: protocol.StandbyMessage) -> None:
        self._session.feed_bytes(protocol.encode_message(message))

    def greet(self, node: str = PARTNER, revision: int = 0) -> None:
        last_term = self.primary.state.term, self.primary.state.owner
        self.receive(protocol.StandbyHello(1, node, self.journal.identity, *last_term, revision, has_witness=False))

    def ack(self, revision: int = 0) -> None:
        self.receive(protocol.StandbyAck(revision, boot_seconds()))

    def close(self) -> None:
        self.primary.close()
        self.journal.close()


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    with closing(asyncio.new_event_loop()) as loop:
        yield loop


@pytest.fixture
def pair(tmp_path: Path, loop: asyncio.AbstractEventLoop) -> Iterator[PrimaryWithAnswers]:
    with closing(PrimaryWithAnswers(tmp_path, loop)) as pair:
        yield pair


def test_restarted_primary_serves_only_after_an_answer_in_a_new_term(pair: PrimaryWithAnswers) -> None:
    assert pair.primary.refusal() is not None
    pair.greet()
    assert pair.primary.refusal() is not None
    pair.ack()
    assert pair.primary.refusal() is None
    assert pair.primary.state.term == 2


def test_lease_ends_before_the_standby_takes_over(pair: PrimaryWithAnswers, monkeypatch: pytest.MonkeyPatch) -> None:
    pair.greet()
    pair.ack()
    assert protocol.LEASE_SECONDS < protocol.TAKEOVER_SECONDS
    monkeypatch.setattr(primary, "boot_seconds", lambda: boot_seconds() + protocol.LEASE_SECONDS)
    assert isinstance(pair.primary.refusal(), StandbyLostError)


def test_answer_of_an_old_beat_extends_no_lease(pair: PrimaryWithAnswers) -> None:
    pair.greet()
    pair.receive(protocol.StandbyAck(0, boot_seconds() - protocol.LEASE_SECONDS))
    assert pair.primary.refusal() is not None


def test_other_standby_is_refused(pair: PrimaryWithAnswers) -> None:
    pair.greet("stranger")
    pair.ack()
    assert [type(each) for each in pair.sent.messages] == [protocol.PrimaryRefusal]
    assert pair.primary.refusal() is not None


def test_standby_with_rows_that_the_primary_lost_is_not_overwritten(pair: PrimaryWithAnswers) -> None:
    pair.greet(revision=7)
    (refusal,) = pair.sent.messages
    assert isinstance(refusal, protocol.PrimaryRefusal)
    assert "promote the standby" in refusal.message
    assert pair.primary.refusal() is not None


def test_notice_of_a_later_term_stops_the_primary(pair: PrimaryWithAnswers) -> None:
    pair.receive(protocol.TermNotice(pair.journal.identity, 3, PARTNER))
    assert isinstance(pair.primary.refusal(), SupersededError)
    assert isinstance(pair.commit.failure, SupersededError)
