"""The primary's side of replication: the lease, the gate of acknowledgments, and the stream to the standby.

While a standby may take over, the platform serves only while it has a lease: an answer of the standby to a beat that
was sent less than LEASE_SECONDS ago. The standby waits longer than that before it takes over. With StandbyMode.SYNC,
a change is published only after the standby has stored it, so a change that a client saw is never lost.
"""

import asyncio
import logging
import os
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from tempfile import mkstemp
from typing import Any, BinaryIO, Final, NamedTuple

import msgspec

from batchyard.apiserver.auth.authorization import GROUP
from batchyard.apiserver.request import AnyResponse, ApiRequest, ProtocolUpgrade, ReplicationResponse, bad_request
from batchyard.client.local import LocalClient, create_or_replace
from batchyard.interfaces.client import WatchEvent, WriteResult
from batchyard.server.clocks.kernel import LiveKernel
from batchyard.server.clocks.wall import boot_seconds
from batchyard.server.platform.data_dir import JOURNAL_FILE, REPLICATION_PATH, STANDBY_USER, PlatformOptions
from batchyard.server.platform.group_commit import GroupCommit
from batchyard.server.replication import protocol, terms
from batchyard.server.replication.protocol import StandbyMode
from batchyard.server.replication.terms import TermClaim
from batchyard.server.streaming.upgraded_connection import UpgradedTransport
from batchyard.store.journal import RevisionJournal, copy_journal, encode_row
from batchyard.store.journal_file import JournalError, StandbyLostError, SupersededError
from batchyard.store.memory import ExpiredRevision, Store

_LOG: Final = logging.getLogger("batchyard")
#: The standby may take over once it lacks at most this many revisions, and has received those published before.
_LAG_MAX: Final = 1000
#: Maximum rows and bytes of one message of rows.
_BATCH_ROWS_MAX: Final = 500
_BATCH_BYTES_MAX: Final = 1024 * 1024
_SNAPSHOT_PART_SIZE: Final = 256 * 1024
_SNAPSHOT_PREFIX: Final = ".replication-snapshot."
#: Seconds to wait until the standby has all changes: at shutdown, and if the standby is promoted.
_RESIGNATION_SECONDS: Final = 2.0
_HANDOVER_SECONDS: Final = 30.0
_LOST: Final = "no answer of the standby, which may have taken over"


class ReplicatedPlatform(NamedTuple):
    """The components of a platform that replication uses."""

    options: PlatformOptions
    store: Store
    commit: GroupCommit
    journal: RevisionJournal
    kernel: LiveKernel
    client: LocalClient


class PrimaryReplication:
    """The replication of a running primary: its term, its lease, the held changes, and the connected standby."""

    def __init__(self, platform: ReplicatedPlatform, loop: asyncio.AbstractEventLoop) -> None:
        """Begin a term. Raise SupersededError if another node has claimed one, and OSError for files."""
        options = platform.options
        self.folder: Final = options.folder
        self.mode: Final = StandbyMode(options.standby)
        self.witness: Final = None if options.witness is None else terms.WitnessFolder(options.witness)
        self._platform, self._loop = platform, loop
        self.store, self.commit, self.identity = platform.store, platform.commit, platform.journal.identity
        state = terms.read_state(options.folder)
        self.state = terms.begin_term(state, self.witness, platform.store.revision)
        terms.write_state(options.folder, self.state)
        self._is_claiming, self._witness_problem = False, ""
        #: Held while a copy of the journal is made, so that a standby that reconnects often does not fill the disk.
        self.copy_lock: Final = asyncio.Lock()
        #: The changes that the journal holds and the standby lacks.
        self._held_changes: deque[Sequence[WatchEvent]] = deque()
        self._standby: StandbySession | None = None
        #: Whether changes wait for the standby, and whether the standby may take over.
        self._is_gated = self._needs_lease = self.state.is_shared
        if self._needs_lease:
            _LOG.warning("waits for its standby, which may have taken over; after its loss, run `batchyard promote`")
        self._lease_until = 0.0
        self._stopped_by: StandbyLostError | SupersededError | None = None
        self._write_stalled_at: tuple[int, float] | None = None
        self._is_stuck = False
        self._resignation_seconds = _RESIGNATION_SECONDS
        for path in options.folder.glob(f"{_SNAPSHOT_PREFIX}*"):  # of a killed process
            path.unlink(missing_ok=True)
        self._timer = loop.call_soon(self._tick)

    @property
    def history(self) -> list[terms.TermStart]:
        """The history of terms."""
        return list(self.state.history)

    # --- the gate of GroupCommit ---

    def refusal(self) -> StandbyLostError | SupersededError | None:
        """Return why the platform must not respond now; None if it may."""
        if self._stopped_by is not None or not self._needs_lease or boot_seconds() < self._lease_until:
            return self._stopped_by
        return StandbyLostError(_LOST)

    def process_written(self, changes: Sequence[WatchEvent]) -> None:
        """Publish changes that the journal holds, with StandbyMode.SYNC once the standby has them, and send them."""
        if self.commit.failure is not None:
            return
        if self._is_gated and self.mode is StandbyMode.SYNC:
            self._held_changes.append(changes)
        else:
            self.commit.publish(changes)
        if self._standby is not None:
            self._standby.send_rows()

    # --- events of the standby ---

    def respond(self, request: ApiRequest) -> AnyResponse:
        """Answer the upgrade request of a standby. Raise StatusError if it asks for another protocol."""
        if request.headers.get("upgrade", "").lower() != protocol.UPGRADE_PROTOCOL:
            raise bad_request(f"Upgrade request required, to {protocol.UPGRADE_PROTOCOL}")
        upgrade = ProtocolUpgrade(protocol.UPGRADE_PROTOCOL, str(protocol.PROTOCOL_VERSION))
        return ReplicationResponse(upgrade, partial(StandbySession, self, self._loop))

    def accept(self, session: "StandbySession", hello: protocol.StandbyHello) -> protocol.PrimaryRefusal | None:
        """Make a session the one of the standby; return the refusal if this is not possible."""
        if hello.version != protocol.PROTOCOL_VERSION:
            return protocol.PrimaryRefusal("the primary has another version; use the same version", is_temporary=False)
        if hello.has_witness != (self.witness is not None):
            return protocol.PrimaryRefusal("set the same --witness on both platforms", is_temporary=False)
        if self._stopped_by is not None:
            return protocol.PrimaryRefusal("the platform has stopped to serve", is_temporary=True)
        if self.state.is_shared and self.state.partner != hello.node:
            message = "the primary shares its data with another standby; if that one is lost, promote the primary"
            return protocol.PrimaryRefusal(message, is_temporary=True)
        old_session = self._standby
        if old_session is not None and old_session.node != hello.node and old_session.is_alive():
            return protocol.PrimaryRefusal("another standby is connected", is_temporary=True)
        if old_session is not None:
            old_session.close()
        if hello.identity == self.identity and hello.term > self.state.term:
            self._supersede(hello.term)
            return protocol.PrimaryRefusal("this platform is behind the standby", is_temporary=True)
        is_same_term = (hello.term, hello.owner) == (self.state.term, self.state.owner)
        has_lost_rows = is_same_term and hello.revision > self.commit.written_revision
        if self.state.is_shared and hello.identity == self.identity and has_lost_rows:
            # After a power loss with `--sync process`. A snapshot would remove acknowledged rows from the standby.
            message = "the standby has changes that the primary has lost; promote the standby"
            return protocol.PrimaryRefusal(message, is_temporary=True)
        self._standby = session
        return None

    def process_notice(self, notice: protocol.TermNotice) -> None:
        """Stop if another platform has taken over the same data in a later term."""
        if notice.identity == self.identity and terms.is_superseded(self.state, notice.term, notice.owner):
            self._supersede(notice.term)

    def process_ack(self, session: "StandbySession") -> None:
        """Publish the changes that the standby has, and extend the lease; share the data with a current standby."""
        if session is not self._standby:
            return
        while self._held_changes and self._held_changes[0][-1].revision <= session.stored_revision:
            self.commit.publish(self._held_changes.popleft())
        if session.may_take_over:
            self._lease_until = max(self._lease_until, session.answered_beat + protocol.LEASE_SECONDS)
        elif session.stored_revision >= self.commit.written_revision - _LAG_MAX:
            self._is_gated = True
            has_published = session.stored_revision >= self.commit.durable_revision
            if has_published or self.mode is StandbyMode.ASYNC:
                self._share(session)

    def forget(self, session: "StandbySession", *, has_left: bool) -> None:
        """Note the end of a session; if the standby `has_left`, it no longer takes over."""
        if session is not self._standby:
            return
        self._standby = None
        may_serve = not isinstance(self._stopped_by, SupersededError)
        if may_serve and (has_left or not (self._needs_lease or self._stopped_by)):
            self._serve_alone(self.state.alone())

    def hand_over(self, session: "StandbySession") -> None:
        """Stop to serve, and let the connected standby take over once it has all changes, unless it lacks many."""
        if session is not self._standby:
            return
        missing_count = self.commit.written_revision - session.stored_revision
        if not session.is_synchronized or missing_count > _LAG_MAX:
            message = f"the standby lacks {missing_count} revisions; promote it once it has received them"
            session.send(protocol.TakeoverRefusal(message))
            return
        self._resignation_seconds = _HANDOVER_SECONDS
        self._supersede(self.state.term + 1)

    async def resign(self) -> None:
        """Stop to serve, and wait until the standby has all changes, because the platform shuts down."""
        if self._stopped_by is None:
            self._stopped_by = StandbyLostError(_LOST)
        deadline, commit = self._loop.time() + self._resignation_seconds, self.commit
        while self._standby is not None and self._loop.time() < deadline:
            last_revision = self.store.revision if commit.failure is None else commit.written_revision
            if self._is_stuck or (not commit.is_writing() and self._standby.stored_revision >= last_revision):
                self._standby.send(protocol.PrimaryResignation(commit.written_revision))
                break
            self._standby.send_rows()
            step = asyncio.Event()
            self._loop.call_later(0.02, step.set)
            await step.wait()
        self.close()

    def close(self) -> None:
        """Stop the timer and close the connection of the standby."""
        self._timer.cancel()
        if self._standby is not None:
            self._standby.close()

    # --- terms ---

    def stop(self, error: StandbyLostError | SupersededError) -> None:
        """Stop to serve, and end the platform."""
        if self._stopped_by is None:
            self._stopped_by = error
            self._held_changes.clear()
            self.commit.fail(error)

    def _supersede(self, term: int) -> None:
        """Stop to serve because of a later term. After a restart, the platform waits for its standby."""
        partner = self.state.partner if self._standby is None else self._standby.node
        self._set_state(self.state._replace(is_shared=True, partner=partner))
        self.stop(terms.superseded_error(term))

    def _tick(self) -> None:
        self._timer = self._loop.call_later(protocol.BEAT_SECONDS, self._tick)
        now = boot_seconds()
        if self._stopped_by is not None:
            return
        if self._is_disk_stuck(now):
            self._is_stuck = True
            self.stop(StandbyLostError("the disk of the journal hangs, so the platform stops"))
            return
        if self._standby is not None:
            self._standby.send_beat(now)
            if self._is_gated and not self._needs_lease and not self._standby.is_alive():
                self._serve_alone(self.state)  # it stopped to answer before it may take over
        if terms.take_promotion_request(self.folder) and self.witness is None:
            self._serve_alone(self.state.with_term(self.state.term + 1, self.commit.written_revision))
        if self._needs_lease and now >= self._lease_until:
            self._process_lost_lease(now)
        elif self.witness is not None and not self._is_claiming:
            self._run_on_witness(self.witness.latest, self._check_latest_claim)

    def _process_lost_lease(self, now: float) -> None:
        if self.witness is not None:
            if not self._is_claiming:
                claim = TermClaim(self.state.term + 1, self.state.node)
                self._claim(claim)
        elif self._lease_until and now >= self._lease_until + protocol.TAKEOVER_SECONDS - protocol.LEASE_SECONDS:
            self.stop(StandbyLostError(_LOST))

    def _share(self, session: "StandbySession") -> None:
        """Let the standby take over from now on, and serve only with its answers."""
        if self.witness is None:
            if self.mode is StandbyMode.SYNC:
                state = self.state.with_term(self.state.term + 1, self.commit.written_revision)
                self._set_state(state._replace(is_shared=True, partner=session.node))
                self._begin_lease(session)
        elif not self._is_claiming:
            claim = TermClaim(self.state.term + 1, self.state.node, session.node)
            self._claim(claim)

    def _begin_lease(self, session: "StandbySession") -> None:
        self._needs_lease = self._is_gated = session.may_take_over = True
        self._lease_until = session.answered_beat + protocol.LEASE_SECONDS
        session.send_beat(boot_seconds())

    def _process_claim(self, claim: TermClaim, is_claimed: object) -> None:
        if is_claimed is False:
            self.stop(terms.superseded_error(claim.term))
        if is_claimed is not True or self._stopped_by is not None:
            return  # after an error of the folder, the next tick tries again
        if not claim.standby:
            self._serve_alone(self.state.with_term(claim.term, self.commit.written_revision))
            return
        self._set_state(self.state.with_term(claim.term, self.commit.written_revision))
        session = self._standby
        if session is not None and session.node == claim.standby:
            self._begin_lease(session)
        else:  # the standby was lost while the claim was written, and has no right without a beat
            self._serve_alone(self.state)

    def _check_latest_claim(self, claim: object) -> None:
        if isinstance(claim, TermClaim) and claim.term > self.state.term and claim.owner != self.state.node:
            self.stop(terms.superseded_error(claim.term))

    def _serve_alone(self, state: terms.ReplicationState) -> None:
        """Serve without a standby, which no longer takes over."""
        self._set_state(state)
        self._needs_lease = self._is_gated = False
        while self._held_changes:
            self.commit.publish(self._held_changes.popleft())
        session, self._standby = self._standby, None
        if session is not None:
            session.close()

    def _set_state(self, state: terms.ReplicationState) -> None:
        if state != self.state:
            terms.write_state(self.folder, state)
            self.state = state

    def _claim(self, claim: TermClaim) -> None:
        assert self.witness is not None, "a claim needs a witness"
        work = partial(self.witness.claim, claim, self.state.term)
        self._run_on_witness(work, partial(self._process_claim, claim))

    def _run_on_witness(self, work: Callable[[], object], on_done: Callable[[object], None]) -> None:
        def finish(future: "asyncio.Future[object]") -> None:
            self._is_claiming = False
            error = None if future.cancelled() else future.exception()
            problem, self._witness_problem = self._witness_problem, str(error or "")
            if isinstance(error, OSError):
                if problem != self._witness_problem:
                    _LOG.error("the witness folder cannot be used: %s", error)
            elif self._stopped_by is None and not future.cancelled():
                on_done(future.result())

        self._is_claiming = True
        self._loop.run_in_executor(None, work).add_done_callback(finish)

    def _is_disk_stuck(self, now: float) -> bool:
        """Return whether one transaction of the journal has been in progress for DISK_SECONDS."""
        if not self.commit.is_writing():
            self._write_stalled_at = None
        elif self._write_stalled_at is None or self._write_stalled_at[0] != self.commit.written_revision:
            self._write_stalled_at = self.commit.written_revision, now
        return self._write_stalled_at is not None and now - self._write_stalled_at[1] > protocol.DISK_SECONDS


class StandbySession:
    """The connection of a standby: parses its messages, and sends it a snapshot, rows and beats."""

    def __init__(
        self, primary: PrimaryReplication, loop: asyncio.AbstractEventLoop, transport: UpgradedTransport
    ) -> None:
        self._primary, self._loop, self._transport = primary, loop, transport
        self._parser = protocol.MessageParser(protocol.STANDBY_MESSAGE_BYTES_MAX)
        self._is_writable, self._is_open = True, True
        self._snapshot: BinaryIO | None = None
        self._snapshot_task: asyncio.Task[None] | None = None
        #: The last revision sent; None before the standby has a snapshot.
        self._sent_revision: int | None = None
        self._is_sending = False
        #: Whether a beat is due that the full write buffer delays.
        self._is_beat_due = False
        self.node = ""
        #: The last revision that the standby has stored, and the sending time of the last beat that it answered.
        self.stored_revision = 0
        self.answered_beat = 0.0
        #: Whether the last beat lets the standby take over, and whether the standby has acknowledged rows.
        self.may_take_over = self.is_synchronized = False
        self._heard_at = boot_seconds()

    def is_alive(self) -> bool:
        """Return whether the standby has answered recently."""
        return boot_seconds() - self._heard_at < protocol.TAKEOVER_SECONDS

    # --- callbacks of the connection ---

    def feed_bytes(self, data: bytes) -> None:
        """Process bytes received from the standby."""
        self._heard_at = boot_seconds()
        try:
            for message in self._parser.feed_bytes(data):
                self._process_message(protocol.standby_decoder.decode(message))
        except (protocol.ReplicationError, msgspec.MsgspecError) as error:
            _LOG.error("invalid message of the standby: %s", error)
            self.close()

    def set_writable(self, *, is_writable: bool) -> None:
        """Continue to send if the connection's write buffer has room again."""
        self._is_writable = is_writable
        if is_writable and self._is_beat_due:
            self.send_beat(boot_seconds())
        if is_writable:
            self._send_more()

    def shut_down(self) -> None:
        """Close the connection, because the platform shuts down."""
        self.close()

    def connection_closed(self) -> None:
        """Note that the standby is lost."""
        self._release()
        self._primary.forget(self, has_left=False)

    def close(self) -> None:
        """Close the connection."""
        self._release()
        self._transport.close(at_once=True)

    # --- sending ---

    def send(self, message: msgspec.Struct) -> None:
        """Send a message to the standby."""
        if self._is_open:
            self._transport.send(protocol.encode_message(message))

    def send_beat(self, now: float) -> None:
        """Send a beat, later if earlier data fills the connection's write buffer: its sending time begins a lease."""
        self._is_beat_due = not self._is_writable
        if self.node and self._is_writable:
            primary = self._primary
            may_take_over, revision = self.may_take_over, primary.commit.written_revision
            self.send(protocol.PrimaryBeat(now, primary.history, may_take_over, primary.state.is_shared, revision))

    def send_rows(self) -> None:
        """Send the rows of the journal that the standby lacks, soon."""
        if not self._is_sending and self._sent_revision is not None:
            self._is_sending = True
            self._loop.call_soon(self._send_more)

    def _process_message(self, message: protocol.StandbyMessage) -> None:
        if isinstance(message, protocol.StandbyHello):
            self._begin(message)
        elif isinstance(message, protocol.TermNotice):
            self._primary.process_notice(message)
            self.close()
        elif not self.node:
            raise protocol.ReplicationError("the first message must be a hello")
        elif isinstance(message, protocol.StandbyAck):
            if self._sent_revision is None or message.revision > self._primary.commit.written_revision:
                raise protocol.ReplicationError("the standby acknowledges rows that were not sent")
            self.stored_revision, self.is_synchronized = max(self.stored_revision, message.revision), True
            if 0 < message.beat <= boot_seconds():
                self.answered_beat = max(self.answered_beat, message.beat)
            self._primary.process_ack(self)
        elif isinstance(message, protocol.StandbyLeave):
            self._primary.forget(self, has_left=True)
            self.close()
        else:
            self._primary.hand_over(self)

    def _begin(self, hello: protocol.StandbyHello) -> None:
        if self.node:
            raise protocol.ReplicationError("a second hello")
        refusal = self._primary.accept(self, hello)
        if refusal is not None:
            self.send(refusal)
            self.close()
            return
        primary, self.node = self._primary, hello.node
        resumes = hello.identity == primary.identity and terms.can_resume(
            primary.history, primary.commit.written_revision, (hello.term, hello.owner), hello.revision
        )
        try:
            primary.store.changes_since(hello.revision if resumes else primary.store.revision)
        except ExpiredRevision:
            resumes = False
        has_witness = primary.witness is not None
        self.send(
            protocol.PrimaryWelcome(
                primary.state.node, primary.identity, primary.history, resumes, primary.mode, has_witness
            )
        )
        self.send_beat(boot_seconds())
        if resumes:
            self._sent_revision = self.stored_revision = hello.revision
            self.send_rows()
        else:
            self._snapshot_task = self._loop.create_task(self._begin_snapshot())

    async def _begin_snapshot(self) -> None:
        async with self._primary.copy_lock:
            if not self._is_open:
                return
            revision = self._primary.commit.written_revision
            try:
                file = await self._loop.run_in_executor(None, _open_copy, self._primary.folder)
            except (JournalError, OSError) as error:
                _LOG.error("cannot copy the journal for the standby: %s", error)
                self.close()
                return
        if self._is_open:
            self._snapshot, self._sent_revision = file, revision
            self._send_more()
        else:
            file.close()

    def _send_more(self) -> None:
        self._is_sending = False
        while self._is_open and self._is_writable and self._snapshot is not None:
            part = self._snapshot.read(_SNAPSHOT_PART_SIZE)
            self.send(protocol.SnapshotPart(part, is_last=not part))
            if not part:
                self._snapshot.close()
                self._snapshot = None
        if self._sent_revision is None or self._snapshot is not None:
            return
        try:
            changes = self._primary.store.changes_since(self._sent_revision)
        except ExpiredRevision:  # the standby is too slow; the next connection begins with a snapshot
            self.close()
            return
        written_revision, rows = self._primary.commit.written_revision, list[protocol.JournalRow]()
        row_bytes = 0
        for change in changes[:_BATCH_ROWS_MAX] if self._is_open and self._is_writable else ():
            if change.revision > written_revision or row_bytes > _BATCH_BYTES_MAX:
                break
            rows.append(encode_row(change))
            row_bytes += len(rows[-1][4] or b"")
        if rows:
            self._sent_revision = rows[-1][0]
            self.send(protocol.RowBatch(rows))
            if self._sent_revision < written_revision:
                self.send_rows()

    def _release(self) -> None:
        self._is_open = False
        if self._snapshot is not None:
            self._snapshot.close()
            self._snapshot = None


def connect_replication(platform: ReplicatedPlatform, server: Any) -> PrimaryReplication:
    """Connect replication to a platform that starts. Raise SupersededError if another platform has taken over."""
    replication = PrimaryReplication(platform, asyncio.get_running_loop())
    commit = platform.commit
    commit.replication = replication
    platform.kernel.must_pause = lambda: commit.is_behind() or replication.refusal() is not None
    server.add_get_handler(REPLICATION_PATH, replication.respond)
    platform.kernel.post(partial(create_or_replace, platform.client, _standby_role(), _ignore_result))
    return replication


def _standby_role() -> list[dict[str, Any]]:
    """Return the role of standbys, which permits only the replication endpoint, and its binding."""
    metadata = {"name": STANDBY_USER}
    rules = [{"verbs": ["get"], "nonResourceURLs": [REPLICATION_PATH]}]
    subject = {"kind": "User", "apiGroup": GROUP, "name": STANDBY_USER}
    role_ref = {"apiGroup": GROUP, "kind": "ClusterRole", "name": STANDBY_USER}
    api_version = f"{GROUP}/v1"
    return [
        {"apiVersion": api_version, "kind": "ClusterRole", "metadata": metadata, "rules": rules},
        {
            "apiVersion": api_version,
            "kind": "ClusterRoleBinding",
            "metadata": metadata,
            "roleRef": role_ref,
            "subjects": [subject],
        },
    ]


def _open_copy(folder: Path) -> BinaryIO:
    """Return the open copy of a journal, whose file is already removed."""
    fd, name = mkstemp(prefix=_SNAPSHOT_PREFIX, dir=folder)
    os.close(fd)
    path = Path(name)
    try:
        copy_journal(folder / JOURNAL_FILE, path)
        return path.open("rb")
    finally:
        path.unlink()


def _ignore_result(_result: WriteResult) -> None:
    pass
