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
        self.is_closed = False

    def send(self, data: bytes) -> None:
        parser = protocol.MessageParser(protocol.MESSAGE_BYTES_MAX)
        self.messages += map(protocol.primary_decoder.decode, parser.feed_bytes(data))

    def close(self, *, at_once: bool) -> None:
        assert at_once
        self.is_closed = True


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
        self.receive_bytes(protocol.encode_message(message))

    def receive_bytes(self, data: bytes) -> None:
        self._session.feed_bytes(data)

    def lose_connection(self) -> None:
        self._session.connection_closed()

    def set_writable(self, *, is_writable: bool) -> None:
        self._session.set_writable(is_writable=is_writable)

    def beat(self) -> None:
        self._session.send_beat(boot_seconds())

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


def test_superseded_primary_needs_its_standby_after_a_restart(pair: PrimaryWithAnswers, tmp_path: Path) -> None:
    pair.receive(protocol.TermNotice(pair.journal.identity, 3, PARTNER))
    state = terms.read_state(tmp_path)
    assert state.is_shared
    assert terms.begin_term(state, None, 0) == state


def test_notice_for_another_journal_is_ignored(pair: PrimaryWithAnswers) -> None:
    pair.greet()
    pair.ack()
    pair.receive(protocol.TermNotice(b"another", 9, PARTNER))
    assert pair.primary.refusal() is None


def test_standby_that_lacks_rows_gets_no_handover(pair: PrimaryWithAnswers) -> None:
    pair.greet()
    pair.receive(protocol.TakeoverRequest())
    assert isinstance(pair.sent.messages[-1], protocol.TakeoverRefusal)
    assert not isinstance(pair.primary.refusal(), SupersededError)
    pair.ack()
    pair.receive(protocol.TakeoverRequest())
    assert isinstance(pair.primary.refusal(), SupersededError)


def test_end_of_the_connection_after_a_handover_does_not_let_the_primary_serve(
    pair: PrimaryWithAnswers, tmp_path: Path
) -> None:
    pair.greet()
    pair.ack()
    pair.receive(protocol.TakeoverRequest())
    pair.lose_connection()
    assert terms.read_state(tmp_path).is_shared
    assert isinstance(pair.primary.refusal(), SupersededError)


def test_beat_waits_for_the_write_buffer(pair: PrimaryWithAnswers) -> None:
    pair.greet()
    pair.set_writable(is_writable=False)
    pair.sent.messages.clear()
    pair.beat()
    assert pair.sent.messages == []
    pair.set_writable(is_writable=True)
    assert [type(each) for each in pair.sent.messages] == [protocol.PrimaryBeat]


@pytest.mark.parametrize("message", [b"\xff" * 8, protocol.encode_message(protocol.StandbyAck(9, 1.0))])
def test_invalid_first_message_closes_the_connection(pair: PrimaryWithAnswers, message: bytes) -> None:
    pair.receive_bytes(message)
    assert pair.sent.is_closed


def test_ack_of_rows_that_do_not_exist_closes_the_connection(pair: PrimaryWithAnswers) -> None:
    pair.greet()
    pair.ack(revision=5)
    assert pair.sent.is_closed
    assert pair.primary.refusal() is not None
