"""Upgraded connections: received data is fed in turns, and clients that read nothing are disconnected."""

import asyncio
import os
import socket
import tempfile
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from batchyard.server.http import connections as bounds
from batchyard.server.http.connections import Connections
from batchyard.server.local_node.sessions import HostConnection
from batchyard.server.streaming.upgraded_connection import (
    CHUNK_SIZE,
    UNPROCESSED_BYTES_MAX,
    UNREAD_BYTES_MAX,
    UpgradedConnection,
)


class StalledTransport:
    """A transport whose peer reads nothing."""

    def __init__(self) -> None:
        self.untaken = 0
        self.reads = True
        self.is_aborted = False

    def get_extra_info(self, name: str) -> None:
        """Return nothing."""

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Do nothing: the test calls the protocol."""

    def write(self, data: bytes) -> None:
        self.untaken += len(data)

    def get_write_buffer_size(self) -> int:
        return self.untaken

    def is_closing(self) -> bool:
        return self.is_aborted

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def abort(self) -> None:
        self.is_aborted = True


class DataRecorder:
    """Records received data."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []

    def feed_bytes(self, data: bytes) -> None:
        self.parts.append(data)

    def set_writable(self, *, is_writable: bool) -> None:
        """Do nothing."""

    def shut_down(self) -> None:
        """Do nothing."""

    def connection_closed(self) -> None:
        """Do nothing."""


def run_action(
    act: Callable[[UpgradedConnection, StalledTransport, DataRecorder, deque[Callable[[], None]]], None],
) -> None:
    """Run the action on a connection; the action executes the turns of the connection."""

    async def run() -> None:
        transport, speaker, turns = StalledTransport(), DataRecorder(), deque[Callable[[], None]]()
        connection = UpgradedConnection(transport, Connections(), None, "anna", turns.append)
        connection.start_handler(speaker, b"")
        act(connection, transport, speaker, turns)
        connection.connection_lost(None)

    asyncio.run(run())


def test_received_data_is_fed_in_turns_while_reading_is_paused() -> None:
    sent = bytes(range(256)) * (2 * UNPROCESSED_BYTES_MAX // 256)

    def act(
        connection: UpgradedConnection,
        transport: StalledTransport,
        speaker: DataRecorder,
        turns: deque[Callable[[], None]],
    ) -> None:
        connection.data_received(sent)
        assert (speaker.parts, len(turns), transport.reads) == ([], 1, False)
        turns.popleft()()
        assert speaker.parts == [sent[:CHUNK_SIZE]]
        connection.set_reading(is_reading=False)
        turns.popleft()()
        assert len(speaker.parts) == 1
        connection.set_reading(is_reading=True)
        while turns:
            turns.popleft()()
        assert b"".join(speaker.parts) == sent
        assert transport.reads

    run_action(act)


def test_client_that_reads_nothing_is_disconnected() -> None:
    def act(
        connection: UpgradedConnection,
        transport: StalledTransport,
        _speaker: DataRecorder,
        _turns: deque[Callable[[], None]],
    ) -> None:
        for _ in range(2 * UNREAD_BYTES_MAX // 1024):
            connection.send(b"x" * 1024)
        assert transport.is_aborted
        assert transport.untaken <= UNREAD_BYTES_MAX + 1024

    run_action(act)


def test_forwarded_ports_are_bounded_per_user_and_in_total(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "FORWARDED_PORTS_MAX", 5)
    monkeypatch.setattr(bounds, "USER_FORWARDED_PORTS_MAX", 2)
    connections = Connections()
    assert [connections.acquire_port_forward(holder) for holder in ("anna", "anna", "anna", "bert", "", "", "")] == [
        *(True, True, False),
        *(True, True, True, False),
    ]
    connections.release_port_forward("anna")
    assert connections.acquire_port_forward("anna")


async def answer(host: socket.socket, asked: bytes) -> None:
    """Accept the next connection to a host, and answer its request with one file."""
    accepted, _ = await asyncio.to_thread(host.accept)
    with accepted:
        stated, files, _, _ = socket.recv_fds(accepted, 100, 1)
        assert stated == asked
        os.close(*files)
        accepted.send(b'{"started": true}')


async def answers_of_a_busy_host(place: Path, number: int) -> list[Mapping[str, Any]]:
    """Send this many requests at once to a host with a backlog of one; return the answers."""
    received: list[Mapping[str, Any]] = []
    all_heard = asyncio.Event()

    def hear(stated: Mapping[str, Any], _files: Sequence[int]) -> None:
        received.append(stated)
        if len(received) == number:
            all_heard.set()

    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as host, Path(os.devnull).open("rb") as file:
        host.bind(str(place))
        host.listen(0)
        host.settimeout(10)
        asking = [HostConnection(place, asyncio.get_running_loop(), hear, lambda: None) for _ in range(number)]
        for each in asking:
            each.send_request({"run": "x"}, [file.fileno()])
        for _ in asking:
            await answer(host, b'{"run": "x"}')
        await all_heard.wait()
        for each in asking:
            each.close()
    return received


def test_busy_host_is_reached_after_backlog_clears() -> None:
    with tempfile.TemporaryDirectory() as folder:  # of a short path
        received = asyncio.run(asyncio.wait_for(answers_of_a_busy_host(Path(folder) / "sessions", 4), 20))
    assert received == [{"started": True}] * 4
