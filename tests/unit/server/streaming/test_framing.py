"""Protocols of upgraded connections: split frames, limits, and invalid input."""

import itertools
import json
import struct
import zlib
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wsproto.frame_protocol import FrameProtocol

from batchyard.apiserver.request import ExecResponse, PortForwardResponse, ProtocolUpgrade, UpgradeResponse
from batchyard.apiserver.subresources.pod_streams import SPDY, WEBSOCKET, session_status
from batchyard.interfaces.containers import SessionClient, SessionEnd, Streams
from batchyard.server.streaming.framing import (
    SpdyData,
    SpdyError,
    SpdyFrames,
    SpdyPing,
    SpdyReset,
    SpdyStreamOpened,
    WebSocket,
    compression_dictionary,
    encode_data,
    encode_ping,
    encode_reset,
    handshake_accept_key,
)
from batchyard.server.streaming.pod_streams import ExecSpdy, ExecWebSocket, TerminalSizeParser
from batchyard.server.streaming.portforward import TOO_MANY_CONNECTIONS, PortForwardSpdy, PortForwardWebSocket


class RecordedConnection:
    """A connection that records sent data."""

    def __init__(self) -> None:
        self.sent = b""
        self.listens = True
        self.is_closed = False
        self.room = 1000

    def acquire_port_forward(self) -> bool:
        self.room -= 1
        if self.room < 0:
            self.room = 0
            return False
        return True

    def release_port_forward(self) -> None:
        self.room += 1

    def send(self, data: bytes) -> None:
        self.sent += data

    def set_reading(self, *, is_reading: bool) -> None:
        self.listens = is_reading

    def close(self, *, at_once: bool = False) -> None:
        self.is_closed = True


class RecordedSession:
    """A process or a port that records its input."""

    def __init__(self, session_client: SessionClient) -> None:
        self.session_client = session_client
        self.reported: list[Any] = []
        self.is_open = True

    def write(self, data: bytes) -> None:
        self.reported.append(data)

    def end_input(self) -> None:
        self.reported.append("end")

    def set_reading(self, *, is_reading: bool) -> None:
        self.reported.append(is_reading)

    def resize(self, columns: int, rows: int) -> None:
        self.reported.append((columns, rows))

    def close(self) -> None:
        self.is_open = False


class SessionOpener:
    """Opens sessions, and records them."""

    def __init__(self) -> None:
        self.sessions: list[RecordedSession] = []

    def open(self, session_client: SessionClient) -> RecordedSession:
        self.sessions.append(RecordedSession(session_client))
        return self.sessions[-1]

    def command(self, to: str = WEBSOCKET, protocol: str = "v5.channel.k8s.io") -> ExecResponse:
        streams = Streams(stdin=True, stdout=True, stderr=True)
        return ExecResponse(
            ProtocolUpgrade(to, protocol), streams, self.open, lambda ending: session_status(["x"], ending)
        )

    def ports(self, to: str, *ports: int) -> PortForwardResponse:
        return PortForwardResponse(
            ProtocolUpgrade(to, ""),
            ports,
            lambda _port, session_client: self.open(session_client),
            lambda _, end: end.failure,
        )


def split(whole: bytes, cuts: Iterable[int]) -> list[bytes]:
    """Split bytes at the cuts."""
    places = [0, *sorted(cut % (len(whole) + 1) for cut in cuts), len(whole)]
    return [whole[start:end] for start, end in itertools.pairwise(places)]


def client_frames(*messages: bytes) -> bytes:
    """Return the frames that a client sends."""
    client = FrameProtocol(client=True, extensions=[])
    return b"".join(bytes(client.send_data(message, fin=True)) for message in messages)


CUTS = st.lists(st.integers(0, 100_000), max_size=8)


@given(CUTS)
def test_command_input_is_independent_of_packet_boundaries(cuts: list[int]) -> None:
    opening, wire = SessionOpener(), RecordedConnection()
    socket = WebSocket(wire)
    ExecWebSocket(socket, opening.command())
    for part in split(client_frames(b"\0abc", b'\4{"Width":80,"Height":24}\n', b"\0" + b"x" * 70_000, b"\xff\0"), cuts):
        socket.feed_bytes(part)
    reported = opening.sessions[0].reported
    assert b"".join(each for each in reported if isinstance(each, bytes)) == b"abc" + b"x" * 70_000
    assert [each for each in reported if not isinstance(each, bytes)] == [(80, 24), "end"]


def test_v4_channel_protocol_has_no_end_of_input() -> None:
    opening, wire = SessionOpener(), RecordedConnection()
    socket = WebSocket(wire)
    ExecWebSocket(socket, opening.command(protocol="v4.channel.k8s.io"))
    socket.feed_bytes(client_frames(b"\xff\0"))
    assert opening.sessions[0].reported == []


def test_end_of_command_sends_status_and_closes_connection() -> None:
    opening, wire = SessionOpener(), RecordedConnection()
    ExecWebSocket(WebSocket(wire), opening.command())
    opening.sessions[0].session_client.process_end(SessionEnd(3))
    client = FrameProtocol(client=True, extensions=[])
    client.receive_bytes(wire.sent)
    _, status, _ = client.received_frames()
    assert bytes(status.payload)[:1] == b"\3"  # type: ignore[arg-type]
    assert json.loads(bytes(status.payload)[1:])["details"] == {  # type: ignore[arg-type]
        "causes": [{"reason": "ExitCode", "message": "3"}]
    }
    assert wire.is_closed


def test_back_pressure_works_in_both_directions() -> None:
    opening, wire = SessionOpener(), RecordedConnection()
    socket = WebSocket(wire)
    ExecWebSocket(socket, opening.command())
    socket.set_writable(is_writable=False)
    assert opening.sessions[0].reported == [False]
    opening.sessions[0].session_client.set_accepts_input(accepts_input=False)
    assert not wire.listens


def test_only_last_of_delayed_pings_is_answered() -> None:
    wire = RecordedConnection()
    socket = WebSocket(wire)
    client = FrameProtocol(client=True, extensions=[])
    socket.set_writable(is_writable=False)
    for number in range(1000):
        socket.feed_bytes(bytes(client.ping(b"%d" % number)))
    assert wire.sent == b""
    socket.set_writable(is_writable=True)
    assert wire.sent == b"\x8a\x03999"


def test_websocket_accept_key_matches_rfc() -> None:
    assert handshake_accept_key("dGhlIHNhbXBsZSBub25jZQ==") == "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="


def test_unterminated_terminal_size_is_discarded() -> None:
    sizes = TerminalSizeParser()
    for _ in range(100):
        assert sizes.feed_bytes(b"x" * 1000) == []
    assert sizes.feed_bytes(b'\n{"Width":1,"Height":2}\n') == [(1, 2)]


def opened(stream: int, number: int, **headers: str) -> bytes:
    """Return a frame that opens a stream on a new connection."""
    return SpdyClient().opened(stream, list(headers.items()))


class SpdyClient:
    """A client that speaks SPDY."""

    def __init__(self) -> None:
        self._packed = zlib.compressobj(zdict=compression_dictionary())

    def opened(self, stream: int, headers: Sequence[tuple[str, str]]) -> bytes:
        """Return a frame that opens a stream."""
        pairs = [part.encode() for pair in headers for part in pair]
        text = struct.pack(">I", len(headers)) + b"".join(struct.pack(">I", len(part)) + part for part in pairs)
        body = struct.pack(">IIH", stream, 0, 0) + self._packed.compress(text) + self._packed.flush(zlib.Z_SYNC_FLUSH)
        return struct.pack(">II", 0x80030001, len(body)) + body

    def pair(self, number: int) -> bytes:
        """Return frames that open the two streams of a connection to a port."""
        about = [("port", "80"), ("requestID", str(number))]
        streams = {4 * number + 1: "error", 4 * number + 3: "data"}
        return b"".join(self.opened(stream, [("streamType", kind), *about]) for stream, kind in streams.items())


SPOKEN = (
    opened(1, 1, streamType="data", port="80")
    + encode_data(1, b"y" * 3000, is_last=True)
    + encode_ping(7)
    + encode_reset(1, 5)
)


@given(CUTS)
def test_spdy_frames_are_independent_of_packet_boundaries(cuts: list[int]) -> None:
    frames = SpdyFrames()
    events = [event for part in split(SPOKEN, cuts) for event in frames.feed_bytes(part)]
    parts = [event for event in events if isinstance(event, SpdyData)]
    assert [type(event) for event in events if not isinstance(event, SpdyData)] == [
        SpdyStreamOpened,
        SpdyPing,
        SpdyReset,
    ]
    assert b"".join(part.data for part in parts) == b"y" * 3000
    assert [part.is_last for part in parts] == [False] * (len(parts) - 1) + [True]


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(struct.pack(">II", 0x80030001, 0xFFFFFF), id="frame above the limit"),
        pytest.param(struct.pack(">II", 0x80020001, 10), id="another version"),
        pytest.param(opened(1, 1, streamType="d" * 70_000), id="unpacked headers above the limit"),
        pytest.param(SpdyClient().opened(1, [("", "")] * 1000), id="too many headers"),
        pytest.param(struct.pack(">II", 0x80030001, 14) + b"\0" * 14, id="uncompressed headers"),
    ],
)
def test_invalid_spdy_frame_closes_connection(sent: bytes) -> None:
    with pytest.raises(SpdyError):
        list(SpdyFrames().feed_bytes(sent))
    wire = RecordedConnection()
    speaker = PortForwardSpdy(wire, SessionOpener().ports(SPDY), wire)
    speaker.feed_bytes(sent)
    assert wire.is_closed
    speaker.feed_bytes(SPOKEN)
    assert wire.sent == b""


def speakers(opening: SessionOpener, wire: RecordedConnection) -> Sequence[Any]:
    """Return a speaker of each protocol."""
    tunnel, ports, command = WebSocket(wire), WebSocket(wire), WebSocket(wire)
    tunnel.set_handler(PortForwardSpdy(tunnel, opening.ports(WEBSOCKET), wire))
    PortForwardWebSocket(ports, opening.ports(WEBSOCKET, 80, 81), wire)
    ExecWebSocket(command, opening.command())
    spdy: list[Any] = [ExecSpdy(wire, opening.command(SPDY)), PortForwardSpdy(wire, opening.ports(SPDY), wire)]
    return [tunnel, ports, command, *spdy]


@given(st.lists(st.one_of(st.binary(max_size=200), st.binary(max_size=60).map(client_frames)), max_size=6))
def test_random_input_raises_no_error_and_leaves_no_session_open(sent: list[bytes]) -> None:
    opening, wire = SessionOpener(), RecordedConnection()
    for speaker in speakers(opening, wire):
        for part in sent:
            speaker.feed_bytes(part)
        speaker.connection_closed()
    assert not any(session.is_open for session in opening.sessions)
    assert wire.room == 1000


def test_session_opened_while_client_is_blocked_starts_paused() -> None:
    opening, wire, client = SessionOpener(), RecordedConnection(), SpdyClient()
    ports = PortForwardSpdy(wire, opening.ports(SPDY), wire)
    ports.set_writable(is_writable=False)
    ports.feed_bytes(client.pair(0))
    command = ExecSpdy(wire, opening.command(SPDY))
    command.set_writable(is_writable=False)
    streams = zip((1, 3, 5, 7), ("error", "stdin", "stdout", "stderr"), strict=True)
    client = SpdyClient()
    command.feed_bytes(b"".join(client.opened(stream, [("streamType", kind)]) for stream, kind in streams))
    assert [session.reported for session in opening.sessions] == [[False], [False]]


def test_port_forward_above_limit_is_rejected_over_spdy() -> None:
    opening, wire, client = SessionOpener(), RecordedConnection(), SpdyClient()
    wire.room = 2
    ports = PortForwardSpdy(wire, opening.ports(SPDY), wire)
    for number in range(3):
        ports.feed_bytes(client.pair(number))
    assert len(opening.sessions) == 2
    assert encode_data(9, TOO_MANY_CONNECTIONS.encode()) in wire.sent
    opening.sessions[0].session_client.process_end(SessionEnd())
    ports.feed_bytes(client.pair(3))
    assert len(opening.sessions) == 3
    ports.connection_closed()
    assert wire.room == 2


def test_port_forward_above_limit_is_rejected_over_websocket() -> None:
    opening, wire = SessionOpener(), RecordedConnection()
    wire.room = 1
    PortForwardWebSocket(WebSocket(wire), opening.ports(WEBSOCKET, 80, 81), wire)
    assert len(opening.sessions) == 1
    assert TOO_MANY_CONNECTIONS.encode() in wire.sent
    assert not wire.is_closed
    opening.sessions[0].session_client.process_end(SessionEnd())
    assert wire.is_closed
    assert wire.room == 1


def test_exec_and_port_forward_responses_are_upgrade_responses() -> None:
    assert isinstance(SessionOpener().command(), UpgradeResponse)
    assert isinstance(SessionOpener().ports(SPDY), UpgradeResponse)
