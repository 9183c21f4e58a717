"""The standby's side of replication: it stores the rows of a primary, and takes over when the primary is gone.

The standby may take over only in a term in which a beat of the primary allowed it. It takes over TAKEOVER_SECONDS after
the last such beat, or at once after a resignation, or if the primary's process on this machine has ended. With a
witness folder it must also claim the next term there.
"""

import asyncio
import logging
import os
import signal
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final
from urllib.parse import urlsplit

import msgspec

from batchyard.api.meta import Key, Obj
from batchyard.base.instant import MILLISECOND, SECOND
from batchyard.server.clocks.wall import boot_seconds, sleep_for
from batchyard.server.forecasting.service import ForecastFunctions
from batchyard.server.platform import data_dir
from batchyard.server.platform.data_dir import JOURNAL_FILE, PlatformOptions
from batchyard.server.platform.group_commit import HISTORY_REVISIONS
from batchyard.server.platform.serve import serve_platform
from batchyard.server.replication import protocol, terms
from batchyard.server.replication.connection import (
    announce_term,
    find_url,
    open_connection,
    prepare_keys,
    primary_folder,
)
from batchyard.server.replication.protocol import ReplicationError, StandbyMode
from batchyard.server.replication.terms import TermClaim, TermStart, WitnessFolder
from batchyard.store.journal import RevisionJournal, install_copy
from batchyard.store.journal_file import JournalError, StandbyLostError, commit_mark_path, is_journal_open, row_checksum

_LOG: Final = logging.getLogger("batchyard")
_RECEIVED_FILE: Final = "journal.db.received"
#: The pause between two connection attempts.
_RETRY: Final = 250 * MILLISECOND
#: How long a promoted standby waits after its claim, so that a primary that can read the witness stops before.
_CLAIM_PAUSE: Final = SECOND
#: Maximum messages that wait to be processed.
_WAITING_MESSAGES_MAX: Final = 64
_READ_SIZE: Final = 256 * 1024
#: Seconds to wait for the end of a killed process, and for the state file of a process that starts.
_KILL_SECONDS: Final = 1.0
_START_SECONDS: Final = 10.0


class StandbyJournal:
    """The journal of a standby, with the revision of each object's row."""

    def __init__(self, options: PlatformOptions) -> None:
        """Open the journal of the data directory, if it has one. Raises JournalError if it is damaged."""
        self._path, self._sync = options.folder / JOURNAL_FILE, options.sync
        self._revisions: dict[Key, int] = {}
        self._received: BinaryIO | None = None
        self._journal: RevisionJournal | None = None
        self.revision = self._flushed_revision = 0
        if self._path.exists():
            self._open()
        else:
            commit_mark_path(self._path).unlink(missing_ok=True)

    @property
    def identity(self) -> bytes:
        """The identity of the journal; empty without a journal."""
        return b"" if self._journal is None else self._journal.identity

    def append(self, rows: Sequence[protocol.JournalRow]) -> None:
        """Store the new rows. Raises ReplicationError if one is missing or damaged, and JournalError on failure."""
        assert self._journal is not None, "a standby has a journal before it receives rows"
        new_rows = [row for row in rows if row[0] > self.revision]
        replaced_rows: list[tuple[int, int]] = []
        for offset, (revision, kind, namespace, name, text, checksum) in enumerate(new_rows, 1):
            key = Key(kind, namespace, name)
            if revision != self.revision + offset or checksum != row_checksum(revision, key, text):
                raise ReplicationError(f"revision {self.revision + offset} is missing or damaged")
            old_revision = self._revisions.pop(key, None)
            if old_revision is not None:
                replaced_rows.append((revision, old_revision))
            if text is None:
                replaced_rows.append((revision, revision))
            else:
                self._revisions[key] = revision
        if new_rows:
            self._journal.append_rows(new_rows, replaced_rows)
            self.revision = new_rows[-1][0]
        if self.revision - self._journal.compacted_revision > 2 * HISTORY_REVISIONS:
            self._journal.compact(self.revision - HISTORY_REVISIONS)

    def flush_commit_mark(self) -> None:
        """Flush the commit mark if rows were stored since the last call, so that a loss of these rows is detected."""
        if self._journal is not None and self._flushed_revision != self.revision:
            self._flushed_revision = self.revision
            self._journal.flush_commit_mark()

    def store_snapshot_part(self, part: protocol.SnapshotPart) -> None:
        """Store a part of a snapshot; after the last one, replace the journal with the snapshot."""
        path = self._path.with_name(_RECEIVED_FILE)
        if self._received is None:
            path.unlink(missing_ok=True)
            self._received = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
        self._received.write(part.data)
        if part.is_last:
            self._received.flush()
            os.fsync(self._received.fileno())
            self.discard_snapshot()
            self.close()
            install_copy(path, self._path)
            self._open()

    def raise_revision(self) -> None:
        """Raise the revision, because the primary may have acknowledged rows that this journal lacks."""
        assert self._journal is not None, "a standby that takes over has a journal"
        self._journal.raise_revision(self.revision)

    def discard_snapshot(self) -> None:
        """Discard an incomplete snapshot."""
        if self._received is not None:
            self._received.close()
            self._received = None

    def close(self) -> None:
        """Close the journal."""
        if self._journal is not None:
            self._journal.close()
            self._journal = None

    def _open(self) -> None:
        self._journal = RevisionJournal(self._path, self._sync)
        contents = self._journal.recover()
        self.revision, self._revisions = contents.revision, {}
        for key, obj in contents.objects.items():
            self._revisions[key] = int(obj["metadata"]["resourceVersion"])


class StandbyFollower:
    """A standby that follows a primary until it takes over or ends."""

    def __init__(self, options: PlatformOptions) -> None:
        self._options, self._folder = options, options.folder
        self._primary_folder = primary_folder(options)
        self._state = terms.read_state(options.folder)
        terms.write_state(options.folder, self._state._replace(is_shared=True))
        self._journal = StandbyJournal(options)
        self._witness = None if options.witness is None else WitnessFolder(options.witness)
        #: The URL of the primary; '' before it is known.
        self.url = options.follow if self._primary_folder is None else ""
        self._writer: asyncio.StreamWriter | None = None
        self._messages: asyncio.Queue[protocol.PrimaryMessage | None] = asyncio.Queue(_WAITING_MESSAGES_MAX)
        #: The term in which the standby may take over, 0 for none; and when it does, by `boot_seconds`.
        self._right_term = 0
        self._takeover_at = 0.0
        self._last_beat = 0.0
        self._checked_at = boot_seconds()
        self._is_announced = False
        #: Whether the standby takes over although the primary may run, and whether it ends.
        self._is_promoted = False
        self.is_ending = False
        self._problem = ""
        #: The history of the connected primary, and whether the rows of the journal belong to it.
        self._primary_node = self._primary_mode = ""
        self._primary_history: Sequence[TermStart] = ()
        self._is_synchronized = False
        #: Whether the primary has stopped and the journal contains all its rows.
        self._has_all_rows = False

    # --- the loop ---

    async def follow(self) -> bool:
        """Follow the primary; return True after a takeover, and False if the standby ends.

        Raises JournalError if the standby cannot store rows, and ReplicationError if it cannot follow this primary.
        """
        reader = asyncio.get_running_loop().create_task(self._keep_connected())
        try:
            while not self.is_ending:
                if self._is_due() and await self._take_over():
                    return True
                with suppress(TimeoutError):
                    message = await asyncio.wait_for(self._messages.get(), protocol.BEAT_SECONDS)
                    await self._process_available(message)
            if self._writer is not None:
                self._send(protocol.StandbyLeave())
            return False
        finally:
            reader.cancel()
            self._disconnect()
            self._journal.discard_snapshot()
            self._journal.close()

    async def _process_available(self, message: protocol.PrimaryMessage | None) -> None:
        """Process a message, and the messages that wait; store their rows in one transaction."""
        rows: list[protocol.JournalRow] = []
        messages = [message]
        while not self._messages.empty():
            messages.append(self._messages.get_nowait())
        if self._is_promoted and messages[-1] is not None:  # the primary sends its last rows
            self._takeover_at = max(self._takeover_at, boot_seconds() + protocol.TAKEOVER_SECONDS)
        for each in messages:
            self._messages.task_done()
            if isinstance(each, protocol.RowBatch):
                rows += each.rows
            else:
                await self._store(rows)
                rows = []
                await self._process(each)
        await self._store(rows)

    async def _store(self, rows: list[protocol.JournalRow]) -> None:
        if rows:
            await self._run_disk_work(partial(self._journal.append, rows))
            self._send(protocol.StandbyAck(self._journal.revision, self._last_beat))

    async def _run_disk_work(self, work: Callable[[], None]) -> None:
        """Run work in a thread. A standby whose own disk hangs must not take over."""
        began_at = boot_seconds()
        await asyncio.get_running_loop().run_in_executor(None, work)
        if boot_seconds() - began_at > protocol.DISK_SECONDS:
            self._takeover_at = max(self._takeover_at, boot_seconds() + protocol.TAKEOVER_SECONDS)

    async def _process(self, message: protocol.PrimaryMessage | None) -> None:
        if message is None:  # the connection is lost
            self._journal.discard_snapshot()
        elif isinstance(message, protocol.PrimaryWelcome):
            self._process_welcome(message)
        elif isinstance(message, protocol.SnapshotPart):
            await self._run_disk_work(partial(self._journal.store_snapshot_part, message))
            if message.is_last:
                self._set_history(self._primary_history)
                self._send(protocol.StandbyAck(self._journal.revision, self._last_beat))
        elif isinstance(message, protocol.PrimaryBeat):
            self._process_beat(message)
            await self._run_disk_work(self._journal.flush_commit_mark)
        elif isinstance(message, protocol.PrimaryResignation):
            self._disconnect()
            self._takeover_at = 0.0
            is_due = bool(self._right_term) or self._is_promoted
            self._has_all_rows = is_due and self._is_synchronized and message.revision <= self._journal.revision
        elif isinstance(message, protocol.TakeoverRefusal):
            self._is_promoted = False
            _LOG.warning("does not take over: %s", message.message)
        elif isinstance(message, protocol.PrimaryRefusal):
            if not message.is_temporary:
                raise ReplicationError(message.message)
            self._report(message.message)

    def _process_welcome(self, welcome: protocol.PrimaryWelcome) -> None:
        self._primary_history, self._primary_mode = welcome.history, welcome.mode
        self._has_all_rows = False
        term = self._primary_history[-1].term
        if welcome.node == self._state.node:  # the data directory is a copy of that of the primary
            self._state = self._state._replace(node=terms.new_node())
            self._disconnect()
            return
        self._primary_node = welcome.node
        if self._witness is not None:
            latest = _read_latest_claim(self._witness, self._report)
            if latest is None or (latest.term, latest.owner) != (term, welcome.node):
                problem = f"the witness folder {self._options.witness} does not contain the claim of the primary"
                self._report(f"{problem}; set --witness to the folder that the primary uses")
                self._disconnect()
                return
        self._is_synchronized = welcome.resumes
        if welcome.resumes:
            self._set_history(self._primary_history)

    def _process_beat(self, beat: protocol.PrimaryBeat) -> None:
        self._last_beat = beat.sent_at
        if beat.history != self._primary_history:
            self._primary_history = beat.history
            if self._is_synchronized:
                self._set_history(beat.history)
        term = beat.history[-1].term
        if beat.may_take_over or (beat.is_shared and self._right_term):
            self._right_term = term
        elif self._right_term != term:
            self._right_term = 0
        if beat.may_take_over:
            self._announce()
        # Each answered beat extends the lease of the primary, also one that does not repeat the right of this term.
        self._takeover_at = max(self._takeover_at, boot_seconds() + protocol.TAKEOVER_SECONDS)
        if self._is_synchronized:
            self._send(protocol.StandbyAck(self._journal.revision, beat.sent_at))
            if beat.revision <= self._journal.revision:
                self._announce()

    def _set_history(self, history: Sequence[TermStart]) -> None:
        self._is_synchronized = True
        state = self._state._replace(history=tuple(history), is_shared=True, partner=self._primary_node)
        if state != self._state:
            self._state = state
            terms.write_state(self._folder, self._state)

    def _announce(self) -> None:
        """Write the state file once the standby has caught up, so that other commands find the process."""
        if not self._is_announced and self._journal.identity:
            self._is_announced = True
            data_dir.write_state(self._folder, self.url)
            _LOG.warning("follows %s, at revision %s", self.url, self._journal.revision)

    # --- takeover ---

    def _is_due(self) -> bool:
        now = boot_seconds()
        if now - self._checked_at > 1 + protocol.BEAT_SECONDS:  # this process was stopped: beats may wait in its socket
            self._takeover_at = max(self._takeover_at, now + 1)
        self._checked_at = now
        if terms.take_promotion_request(self._folder):
            self._process_promotion(now)
        if not self._messages.empty():
            return False  # they can contain rows, or a beat
        if self._is_promoted:
            return now >= self._takeover_at
        if not self._right_term:
            return False
        return now >= self._takeover_at or (self._writer is None and _has_ended(self._primary_folder))

    def _process_promotion(self, now: float) -> None:
        if not self._journal.identity:
            _LOG.warning("does not take over: it has not received the data of the primary")
            return
        self._is_promoted = True
        self._takeover_at = now
        if self._writer is not None:
            self._send(protocol.TakeoverRequest())
            self._takeover_at = now + protocol.TAKEOVER_SECONDS

    async def _take_over(self) -> bool:
        """Take over; return whether this succeeded. Without a right to take over, only after a promotion."""
        self._disconnect()
        # A primary that needs this standby is at most one term ahead of what this standby knows.
        term = (self._right_term or self._state.term) + 2
        if self._witness is not None:
            claimed_term = await self._claim(self._witness)
            if not claimed_term:
                return False
            term = claimed_term
        if self._primary_folder is not None:
            await _kill_primary(self._primary_folder)
        revision = self._journal.revision
        if not (self._has_all_rows or (self._right_term and self._primary_mode == StandbyMode.SYNC)):
            # The rows that this standby lacks have revisions that clients know.
            await self._run_disk_work(self._journal.raise_revision)
        has_claim = self._witness is not None
        self._state = self._state.with_term(term, revision)._replace(has_claim=has_claim)
        terms.write_state(self._folder, self._state)
        _LOG.warning("takes over in term %s, at revision %s", term, revision)
        return True

    async def _claim(self, witness: WitnessFolder) -> int:
        """Claim the next term; return it, or 0 if the primary serves or the folder cannot be used."""
        latest = _read_latest_claim(witness, self._report)
        previous_term = self._right_term
        if self._is_promoted:
            previous_term = 0 if latest is None else latest.term
        claim = TermClaim((previous_term or self._state.term) + 1, self._state.node)
        try:
            is_claimed = await asyncio.get_running_loop().run_in_executor(None, witness.claim, claim, previous_term)
        except OSError as error:
            self._report(f"the witness folder cannot be used: {error}")
            return 0
        if not is_claimed:
            self._right_term, self._is_promoted, self._has_all_rows = 0, False, False
            _LOG.warning("the primary serves alone in term %s; the standby follows it again", claim.term)
            return 0
        if self._is_promoted and not self._has_all_rows:
            await sleep_for(_CLAIM_PAUSE)
        return claim.term

    # --- the connection ---

    async def _keep_connected(self) -> None:
        while True:
            try:
                await self._receive()
            except (OSError, ssl.SSLError, TimeoutError, EOFError, msgspec.MsgspecError, ReplicationError) as error:
                self._report(str(error) or type(error).__name__)
            self._disconnect()
            await self._messages.put(None)
            await self._messages.join()  # so that no message of this connection is processed in the next one
            await sleep_for(_RETRY)

    async def _receive(self) -> None:
        self.url = find_url(self._options)
        reader, self._writer = await open_connection(self.url, self._folder)
        self._last_beat = 0.0
        self._is_synchronized = False
        self._send(_hello_of(self._state, self._journal, has_witness=self._witness is not None))
        parser = protocol.MessageParser(protocol.MESSAGE_BYTES_MAX)
        while data := await asyncio.wait_for(reader.read(_READ_SIZE), protocol.TAKEOVER_SECONDS + 1):
            for message in parser.feed_bytes(data):
                await self._messages.put(protocol.primary_decoder.decode(message))

    def _send(self, message: protocol.StandbyMessage) -> None:
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(protocol.encode_message(message))

    def _disconnect(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    def _report(self, problem: str) -> None:
        """Log why the standby cannot follow, once for each reason."""
        if problem != self._problem:
            self._problem = problem
            _LOG.warning("cannot follow %s: %s", self._options.follow, problem)


def _hello_of(state: terms.ReplicationState, journal: StandbyJournal, *, has_witness: bool) -> protocol.StandbyHello:
    last_term = state.term, state.owner
    version = protocol.PROTOCOL_VERSION
    return protocol.StandbyHello(version, state.node, journal.identity, *last_term, journal.revision, has_witness)


def _has_ended(primary: Path | None) -> bool:
    """Return whether the process of a primary on this machine has ended; False for another machine."""
    return primary is not None and not is_journal_open(primary / JOURNAL_FILE)


def _read_latest_claim(witness: WitnessFolder, report: Callable[[str], None]) -> TermClaim | None:
    try:
        return witness.latest()
    except OSError as error:
        report(f"the witness folder cannot be used: {error}")
        return None


async def _kill_primary(folder: Path) -> None:
    """Kill the primary's process if it runs on this machine, also one that starts again, so that its port is free."""
    deadline, is_killed = boot_seconds() + _START_SECONDS, False
    while is_journal_open(folder / JOURNAL_FILE) and boot_seconds() < deadline:
        process = data_dir.running_process_in(folder)
        for pid in () if process is None or is_killed else (process.pid, process.guard):
            is_killed, deadline = True, boot_seconds() + _KILL_SECONDS
            if pid > 0:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
        await sleep_for(10 * MILLISECOND)


async def follow_until_takeover(options: PlatformOptions) -> PlatformOptions | None:
    """Follow a primary; return the options to serve with after a takeover, and None if the standby ends before.

    On one machine, the standby takes the port of the primary, unless the options contain a port.
    Raises JournalError and CredentialsError if it cannot follow, and OSError for other files.
    """
    prepare_keys(options)
    data_dir.remove_state(options.folder)
    terms.take_promotion_request(options.folder)
    follower = StandbyFollower(options)
    loop = asyncio.get_running_loop()

    def end() -> None:
        follower.is_ending = True

    signals = (signal.SIGTERM, signal.SIGINT)
    for signal_number in signals:
        loop.add_signal_handler(signal_number, end)
    try:
        if not await follower.follow():
            return None
        primary_port = 0 if "://" in options.follow else urlsplit(follower.url).port or 0
        return replace(options, port=options.port or primary_port)
    except ReplicationError as error:
        raise JournalError(f"cannot follow {options.follow}: {error}") from error
    finally:
        for signal_number in signals:
            loop.remove_signal_handler(signal_number)
        data_dir.remove_state(options.folder)


async def serve_replicated(
    options: PlatformOptions,
    cluster: Obj | None,
    speed: float,
    on_ready: Callable[[str], None],
    forecast_functions: ForecastFunctions | None = None,
) -> None:
    """Run a platform with a standby. Raises the errors of `serve_platform`.

    A primary that loses its standby stops to serve, discards its memory, and waits for the standby with a new term.
    """
    port = options.port

    def note_port(url: str) -> None:
        nonlocal port
        port = urlsplit(url).port or 0
        on_ready(url)

    loop = asyncio.get_running_loop()
    notice = loop.create_task(announce_term(options)) if options.follow else None
    try:
        while True:
            try:
                await serve_platform(replace(options, port=port), cluster, speed, note_port, forecast_functions)
            except StandbyLostError as error:
                if error.is_final:
                    return
                _LOG.warning("%s; the platform waits for the standby", error)
            else:
                return
    finally:
        if notice is not None:
            notice.cancel()
