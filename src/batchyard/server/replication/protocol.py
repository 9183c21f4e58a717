"""The replication protocol between a primary and its standby: messages in MessagePack, each after its length.

The standby opens the connection with an HTTP upgrade on the API's port. The first message is its StandbyHello. The
primary answers with PrimaryWelcome, then a snapshot if the standby cannot resume, then rows and beats without end.
"""

import struct
from collections.abc import Iterator
from enum import StrEnum
from typing import Final, TypeAlias

import msgspec

from batchyard.server.replication.terms import TermStart

UPGRADE_PROTOCOL: Final = "batchyard-replication"
PROTOCOL_VERSION: Final = 1
#: Seconds between two beats of the primary.
BEAT_SECONDS: Final = 0.25
#: Seconds for which an answered beat lets the primary serve, counted from its sending by the primary's clock.
LEASE_SECONDS: Final = 2.0
#: Seconds without a beat after which the standby takes over, counted from its receipt by the standby's clock. The
#: difference from the lease covers clocks that differ in rate by up to a third.
TAKEOVER_SECONDS: Final = 3.0
#: Seconds after which a write of the journal that has not returned means that the disk hangs.
DISK_SECONDS: Final = 1.5
_LENGTH: Final = struct.Struct("<I")
#: Maximum bytes of a message of the primary; one row can be as large as the largest object.
MESSAGE_BYTES_MAX: Final = 64 * 1024 * 1024
#: Maximum bytes of a message of the standby.
STANDBY_MESSAGE_BYTES_MAX: Final = 4096

JournalRow: TypeAlias = tuple[int, str, str, str, bytes | None, int]


class StandbyMode(StrEnum):
    """Whether the primary acknowledges a write after the standby has stored it (SYNC), or before (ASYNC)."""

    SYNC = "sync"
    ASYNC = "async"


class ReplicationError(Exception):
    """A message of the other side is invalid, or the two sides cannot work together; the message has the reason."""


class StandbyHello(msgspec.Struct, tag="hello", array_like=True):
    """The first message of a standby: its node, and the term, its owner, and the revision of the last row."""

    version: int
    node: str
    identity: bytes
    term: int
    owner: str
    revision: int
    has_witness: bool


class StandbyAck(msgspec.Struct, tag="ack", array_like=True):
    """The revision up to which the standby has stored all rows, and the sending time of the last beat received."""

    revision: int
    beat: float


class StandbyLeave(msgspec.Struct, tag="leave", array_like=True):
    """The standby gives up its right to take over, because it ends."""


class TakeoverRequest(msgspec.Struct, tag="takeover", array_like=True):
    """The standby asks the primary to stop and to hand over, because an administrator promotes the standby."""


class TermNotice(msgspec.Struct, tag="term", array_like=True):
    """The first message of a new primary to the old one, which must stop: its journal, its term and its node."""

    identity: bytes
    term: int
    owner: str


class PrimaryWelcome(msgspec.Struct, tag="welcome", array_like=True):
    """The answer to a StandbyHello: the node and history of the primary, and whether the standby's rows are valid."""

    node: str
    identity: bytes
    history: list[TermStart]
    resumes: bool
    mode: str
    has_witness: bool


class PrimaryRefusal(msgspec.Struct, tag="refusal", array_like=True):
    """The primary does not accept the standby; the message contains the reason."""

    message: str
    #: Whether a later attempt can succeed.
    is_temporary: bool


class SnapshotPart(msgspec.Struct, tag="snapshot", array_like=True):
    """A part of a copy of the journal file."""

    data: bytes
    is_last: bool


class RowBatch(msgspec.Struct, tag="rows", array_like=True):
    """Rows of the journal in order of revision."""

    rows: list[JournalRow]


class PrimaryBeat(msgspec.Struct, tag="beat", array_like=True):
    """A sign of life: its sending time, the history of terms, and whether the standby may take over without another."""

    sent_at: float
    history: list[TermStart]
    may_take_over: bool
    #: Whether the primary serves only with answers of its standby, so that a standby with a right keeps it.
    is_shared: bool
    revision: int


class TakeoverRefusal(msgspec.Struct, tag="keep", array_like=True):
    """The answer to a TakeoverRequest of a standby that lacks too many rows; the message contains the reason."""

    message: str


class PrimaryResignation(msgspec.Struct, tag="resign", array_like=True):
    """The primary has stopped to serve: the standby may take over at once if it may take over at all."""

    #: The last revision that the primary has acknowledged or stored.
    revision: int


StandbyMessage: TypeAlias = StandbyHello | StandbyAck | StandbyLeave | TakeoverRequest | TermNotice
PrimaryMessage: TypeAlias = (
    PrimaryWelcome | PrimaryRefusal | SnapshotPart | RowBatch | PrimaryBeat | TakeoverRefusal | PrimaryResignation
)
_encoder: Final = msgspec.msgpack.Encoder()
standby_decoder: Final[msgspec.msgpack.Decoder[StandbyMessage]] = msgspec.msgpack.Decoder(StandbyMessage)
primary_decoder: Final[msgspec.msgpack.Decoder[PrimaryMessage]] = msgspec.msgpack.Decoder(PrimaryMessage)


def encode_message(message: msgspec.Struct) -> bytes:
    """Return a message with its length."""
    body = _encoder.encode(message)
    return _LENGTH.pack(len(body)) + body


class MessageParser:
    """Splits received bytes into messages."""

    def __init__(self, length_max: int) -> None:
        self._length_max = length_max
        self._data = bytearray()

    def feed_bytes(self, data: bytes) -> Iterator[bytes]:
        """Add received bytes, and yield the complete messages. Raise ReplicationError if a message is too long."""
        self._data += data
        while len(self._data) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._data)
            if length > self._length_max:
                raise ReplicationError(f"a message of {length} bytes is longer than {self._length_max} bytes")
            end = _LENGTH.size + length
            if len(self._data) < end:
                return
            message = bytes(self._data[_LENGTH.size : end])
            del self._data[:end]
            yield message
