"""Access to the containers of the local node's pods: logs, exec, attach, port-forward and usage.

Logs have the CRI format `TIME stdout|stderr F|P TEXT`, where P marks a partial line. They are rotated: the newest file
is `N.log`, older files are `N.log.1` and so on. Sources: k8s.io/cri-client pkg/logs, pkg/kubelet/logs.
"""

import asyncio
import os
import re
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

from batchyard.api.meta import Key, Obj
from batchyard.api.times import parse_time
from batchyard.interfaces.client import WatchEvent
from batchyard.interfaces.containers import (
    RUN,
    SANDBOX,
    ByteStream,
    ContainerLog,
    ContainerRuntime,
    Containers,
    LogLine,
    MeasuredUsage,
    ProcessSession,
    SessionClient,
    SessionEnd,
    Streams,
)
from batchyard.kubelet.local.runs import EXITED, RUNNING, ObservedRun, key_of_run, run_of
from batchyard.server.clocks.wall import ticks
from batchyard.server.local_node.run_dirs import NodeTimes, RunFolders
from batchyard.server.local_node.sessions import SESSIONS, FailedSession, HostConnection, LocalAttachment, LocalCommand
from batchyard.server.local_node.usage import LocalUsage

# --- port-forward ---
#
# Connections to ports of the local node's pods, made within their network namespaces.


_CONNECTED_WITHIN: Final = 10  # seconds
#: How long the connection waits for data of the port after the client has closed its input.
_ANSWERS_WITHIN: Final = 60  # seconds
_LOOPBACK: Final = ((4, "127.0.0.1", "127.0.0.1"), (6, "::1", "[::1]"))


class LocalPort(asyncio.Protocol):
    """A port-forward connection to a loopback port in the network namespace of a pod.

    `run` is the folder of a container run in the pod, relative to the node's folder.
    """

    def __init__(self, node: Path, run: Path, network: str, port: int, talker: SessionClient) -> None:
        self._loop = asyncio.get_running_loop()
        self._talker = talker
        self._port = port
        self._network = network
        self._transport: Any = None
        self._listens = True
        #: Data to send once the connection is established.
        self._early: list[bytes] = []
        self._is_ending = False
        self._is_closed = False
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._host = HostConnection(node / SESSIONS, self._loop, self._hear, self._lost)
        try:
            self._host.ask({"sockets": str(run)}, ())
        except OSError as error:
            self._loop.call_soon(self._fail, str(error.strerror))

    def write(self, data: bytes) -> None:
        """Send bytes to the port, or buffer them until the connection is established."""
        if self._transport is not None:
            self._transport.write(data)
        elif not self._is_closed:
            self._early.append(data)
            self._talker.wants_more(wants=False)

    def end_input(self) -> None:
        """Half-close the connection: the client sends no more data."""
        self._is_ending = True
        if self._transport is not None and self._transport.can_write_eof():
            self._transport.write_eof()
            self._await_answer()

    def listen(self, *, listens: bool) -> None:
        """Resume or pause reading from the port."""
        if listens != self._listens:
            self._listens = listens
            if self._transport is not None and not self._transport.is_closing():
                (self._transport.resume_reading if listens else self._transport.pause_reading)()

    def close(self) -> None:
        """Close the connection without notifying the client."""
        self._is_closed = True
        self._host.close()
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
        if self._transport is not None:
            self._transport.abort()

    # --- callbacks of asyncio ---

    def connection_made(self, transport: Any) -> None:
        """Send the buffered data on the established connection."""
        self._transport = transport
        if self._is_closed:
            transport.abort()
            return
        for data in self._early:
            transport.write(data)
        if self._early:
            self._talker.wants_more(wants=True)
        self._early.clear()
        if not self._listens:
            transport.pause_reading()
        if self._is_ending:
            self.end_input()

    def data_received(self, data: bytes) -> None:
        """Pass bytes from the port to the client."""
        if not self._is_closed:
            self._talker.received("stdout", data)
            if self._is_ending:
                self._await_answer()

    def pause_writing(self) -> None:
        """Notify the client that the port does not accept more data."""
        self._talker.wants_more(wants=False)

    def resume_writing(self) -> None:
        """Notify the client that the port accepts data again."""
        self._talker.wants_more(wants=True)

    def connection_lost(self, exc: Exception | None) -> None:
        """End the session after the port has closed the connection."""
        self._end(SessionEnd())

    # --- establishing the connection ---

    def _hear(self, message: Mapping[str, Any], files: Sequence[int]) -> None:
        """Receive the sockets that the host process created in the pod's network namespace, and connect them."""
        self._host.close()
        if "error" in message:
            for file in files:
                os.close(file)
            self._fail(message["error"])
        else:
            self._connect([socket.socket(fileno=file) for file in files])

    def _lost(self) -> None:
        self._fail("the connection to the host process in the pod was lost")

    def _connect(self, sockets: Sequence[socket.socket]) -> None:
        self._task = self._loop.create_task(self._try(sockets))

    async def _try(self, sockets: Sequence[socket.socket]) -> None:
        """Connect to the port over IPv4, or over IPv6 if that fails."""
        failures = []
        try:
            for opened, (version, address, shown) in zip(sockets, _LOOPBACK, strict=True):
                try:
                    async with asyncio.timeout(_CONNECTED_WITHIN):
                        await self._loop.sock_connect(opened, (address, self._port))
                except (OSError, TimeoutError) as error:
                    why = os.strerror(error.errno).lower() if error.errno else "i/o timeout"
                    failures.append(f"IPv{version}: dial tcp{version} {shown}:{self._port}: connect: {why}")
                    continue
                await self._loop.create_connection(lambda: self, sock=opened.dup())
                return
        finally:
            for opened in sockets:
                opened.close()
        self._fail(
            f'failed to connect to localhost:{self._port} inside namespace "{self._network}", {" ".join(failures)}'
        )

    def _fail(self, why: str) -> None:
        self._end(SessionEnd(failure=f'failed to execute portforward in network namespace "{self._network}": {why}'))

    def _end(self, ending: SessionEnd) -> None:
        if not self._is_closed:
            self.close()
            self._talker.ended(ending)

    def _await_answer(self) -> None:
        """Close the connection if the port sends no data for a while after the end of the input."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(_ANSWERS_WITHIN, self._transport.abort)


#: How often a followed log is checked for new lines.
_LOOKS_EVERY: Final = 0.1  # seconds
#: Maximum bytes of a log that are read at once.
_PIECE: Final = 64 * 1024
#: After reading, a log pauses for this multiple of the time that reading took, so that the thread does other work.
_RESTS: Final = 2
#: The limits of the search for the last lines from the end of a log: lines, and bytes.
_LAST_LINES_MAX, _LAST_BYTES_MAX = 10_000, 8 * 1024 * 1024
#: Maximum attempts to open the next part of a log while it is being rotated.
_RENAMED_MAX: Final = 10
_ENDED_LINE: Final = re.compile(rb"\n\S+ \S+ F")


class LocalContainers:
    """Access to the containers of the local node's pods: open logs, sessions, forwarded ports and usage."""

    def __init__(
        self, machine: ContainerRuntime, folders: RunFolders, loop: asyncio.AbstractEventLoop, times: NodeTimes
    ) -> None:
        self._machine = machine
        self._folders = folders
        self._loop = loop
        self._times = times
        self._usage = LocalUsage(machine, loop, times.clock)
        self._open: dict[LocalLog, None] = {}
        self._is_ending = False

    def log(self, pod: Obj, container: str, *, previous: bool) -> ContainerLog:
        """Return the log of the container's current or last run; with `previous`, that of the run before."""
        uid = pod["metadata"]["uid"]
        runs = [run for run in map(run_of, self._machine.runs(uid)) if run.container == container]
        run = (runs[-1:] if not previous else runs[-2:-1]) or runs[-1:]
        name = f"{container}/{run[0].attempt if run else 0}"
        key = Key(RUN, uid, name)
        log = LocalLog(self._folders.log(key), self._loop, lambda: self._is_over(key), self._open, self._times)
        if self._is_ending:
            log.close()
        return log

    def usage(self, pod: Obj) -> MeasuredUsage | None:
        """Return the measured usage of each container of a pod; None before it is known."""
        return self._usage.of_pod(pod["metadata"]["uid"])

    def node_usage(self, node: str) -> MeasuredUsage | None:
        """Return the measured usage of this machine; None before it is known."""
        return self._usage.of_node()

    def why_no_process(self, pod: Obj) -> str:
        """Return '': containers of the local node always have processes."""
        return ""

    def execute(
        self, pod: Obj, container: str, command: Sequence[str], streams: Streams, talker: SessionClient
    ) -> ProcessSession:
        """Start a command in a running container, and return the session with it."""
        run = self._running(pod, container)
        if run is None:
            return FailedSession(self._loop, talker, _not_found(container))
        return LocalCommand(self._folders.node, self._folders.path(key_of_run(run)), command, streams, talker)

    def attach(self, pod: Obj, container: str, streams: Streams, talker: SessionClient) -> ProcessSession:
        """Attach to the main process of a container; the container's spec decides whether it has a terminal."""
        run = self._running(pod, container)
        if run is None:
            return FailedSession(self._loop, talker, _not_found(container))
        spec = run.obj["spec"]
        streams = streams._replace(tty=spec["tty"], stderr=streams.stderr and not spec["tty"])
        folder = self._folders.node / self._folders.path(key_of_run(run))
        has_input, once = spec["stdin"], bool(spec.get("stdinOnce"))
        return LocalAttachment(folder, streams, talker, has_input=has_input, once=once)

    def connect(self, pod: Obj, port: int, talker: SessionClient) -> ByteStream:
        """Connect to a port of a pod, and return the byte stream."""
        uid: str = pod["metadata"]["uid"]
        runs = [run for run in map(run_of, self._machine.runs(uid)) if run.container and run.phase == RUNNING]
        key = key_of_run(runs[0]) if runs else Key(RUN, uid, SANDBOX)
        network = "host" if pod["spec"].get("hostNetwork") else uid
        return LocalPort(self._folders.node, self._folders.path(key), network, port, talker)

    def feed(self, changes: Iterable[WatchEvent]) -> None:
        """Ignore changes of objects: access to local containers does not depend on them."""

    def end(self) -> None:
        """End all open logs, and all logs that are opened later, at shutdown."""
        self._is_ending = True
        self._usage.close()
        for log in list(self._open):
            log.close()

    def _running(self, pod: Obj, container: str) -> ObservedRun | None:
        """Return the current run of a container if it is running, else None."""
        runs = [run_of(run) for run in self._machine.runs(pod["metadata"]["uid"])]
        return next((run for run in runs if run.container == container and run.phase == RUNNING), None)

    def _is_over(self, key: Key) -> bool:
        run = self._machine.run(key)
        return run is None or (run.get("status") or {}).get("phase") == EXITED


class LocalLog:
    """The log of one container run, which is read while it grows."""

    def __init__(
        self,
        path: Path,
        loop: asyncio.AbstractEventLoop,
        has_ended: Callable[[], bool],
        among: dict["LocalLog", None],
        times: NodeTimes,
    ) -> None:
        self._has_ended = has_ended
        self._loop = loop
        self._among = among
        self._times = times
        self._parts = _Parts(path)
        self._timer: asyncio.TimerHandle | None = None
        self.is_over = False
        self.is_behind = False
        self.on_news: Callable[[], None] = _ignore_news
        among[self] = None

    def skip_to_last(self, lines: int) -> None:
        """Skip to the last `lines` lines, if they begin within the limits of lines and bytes."""
        if lines <= _LAST_LINES_MAX:
            self._parts.skip_to_last(lines)

    def read(self) -> Sequence[LogLine]:
        """Return the new lines of the log; none while reading pauses for other work."""
        if self.is_over or (self.is_behind and self._timer is not None):
            return []
        has_ended = self._has_ended()  # checked before reading, so that no final line is missed
        began = ticks()
        lines = self._parts.read()
        self.is_behind = self._parts.has_more()
        if self.is_behind:
            waiting = sum(log.is_behind for log in self._among)
            self._begin_timer((ticks() - began) * _RESTS * waiting)
        elif has_ended:
            lines = [*lines, *self._parts.rest()]
            self._end()
        elif self._timer is None:
            self._begin_timer(_LOOKS_EVERY)
        return [line._replace(at=self._times.here(line.at)) for line in lines]

    def close(self) -> None:
        """Stop reading the log, and notify its reader."""
        was_over = self.is_over
        self._end()
        if not was_over:
            self.on_news()

    def _begin_timer(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(seconds, self._look)

    def _end(self) -> None:
        self.is_over, self.is_behind = True, False
        if self._timer is not None:
            self._timer.cancel()
        self._among.pop(self, None)
        self._parts.close()

    def _look(self) -> None:
        """Notify the reader if there are new lines, or check again later."""
        self._timer = None
        if self._has_ended() or self._parts.has_more():
            self.on_news()
        else:
            self._begin_timer(_LOOKS_EVERY)


class _Parts:
    """The files of a rotated log, read from the oldest to the newest."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None
        #: The partial lines (tag P) that were read of an incomplete line.
        self._begun: list[_LogLine] = []
        self._rest = b""

    def read(self) -> Sequence[LogLine]:
        """Read the next piece of the log, and return its complete lines."""
        *whole, self._rest = (self._rest + self._next_piece()).split(b"\n")
        return [line for raw in whole if (line := self._joined(raw)) is not None]

    def skip_to_last(self, lines: int) -> None:
        """Skip to the last `lines` lines of the log, searching from its end."""
        found, seen = 0, 0
        for part in [self._path, *map(self._part, self._numbers())]:
            try:
                file = part.open("rb")
            except FileNotFoundError:
                return
            end = file.seek(0, os.SEEK_END)
            while end and seen < _LAST_BYTES_MAX:
                begin = max(0, end - _PIECE)
                file.seek(begin)
                block = file.read(end - begin)
                found, seen, end = found + len(_ENDED_LINE.findall(block)), seen + len(block), begin
                if found > lines:
                    file.seek(begin + block.index(b"\n") + 1)
                    self._file = file
                    return
            file.close()
            if seen >= _LAST_BYTES_MAX:
                return

    def rest(self) -> Sequence[LogLine]:
        """Return the last line of an ended log if it is incomplete, else nothing."""
        parts, self._begun = self._begun, []
        return [_together(parts, is_whole=False)] if parts else []

    def has_more(self) -> bool:
        """Report whether the log has unread bytes."""
        if self._file is None:
            return self._path.exists()
        return self._path.exists() and (self._is_rotated() or self._file.tell() < self._path.stat().st_size)

    def close(self) -> None:
        """Close the open file of the log."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _next_piece(self) -> bytes:
        """Read the next piece of the log, beginning with the oldest file."""
        if self._file is None:
            numbers = self._numbers()
            self._open(self._part(numbers[-1]) if numbers else self._path)
        if self._file is None:
            return b""
        text = self._file.read(_PIECE)
        if not text and self._is_rotated():
            text = self._file.read(_PIECE)  # it may have grown before the rotation
            if not text:
                self._open_next_part()
                text = self._file.read(_PIECE) if self._file is not None else b""
        return text

    def _open_next_part(self) -> None:
        """Open the file after the current one, and retry if a rotation renames files at the same time."""
        assert self._file is not None, "a file of the log is open"
        with self._file as before:
            ours = os.fstat(before.fileno()).st_ino
            for _ in range(_RENAMED_MAX):
                part = self._part_after(ours)
                self._open(part)
                if part == self._part_after(ours):
                    return
                self.close()

    def _open(self, part: Path) -> None:
        self._file = None
        try:
            self._file = part.open("rb")
        except FileNotFoundError:
            return

    def _is_rotated(self) -> bool:
        """Report whether the open file is no longer the newest file of the log."""
        assert self._file is not None, "a file of the log is open"
        try:
            return os.fstat(self._file.fileno()).st_ino != self._path.stat().st_ino
        except FileNotFoundError:
            return False

    def _part_after(self, ours: int) -> Path:
        """Return the file after the file with this inode; the oldest file if that file was removed."""
        after = self._path
        for number in self._numbers():
            part = self._part(number)
            try:
                if part.stat().st_ino == ours:
                    return after
            except FileNotFoundError:
                continue  # the oldest file was removed
            after = part
        return after

    def _numbers(self) -> list[int]:
        """Return the numbers of the older files of the log, newest first."""
        return sorted(int(part.name.rpartition(".")[2]) for part in self._path.parent.glob(f"{self._path.name}.*"))

    def _part(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")

    def _joined(self, raw: bytes) -> LogLine | None:
        """Combine a raw line with the partial lines before it; return None if it is partial or malformed."""
        line = _line(raw)
        if line is None:
            return None
        self._begun.append(line)
        if line.is_part:
            return None
        parts, self._begun = self._begun, []
        return _together(parts, is_whole=True)


class _LogLine(NamedTuple):
    """A parsed line of a CRI log file: its time, whether it is partial, and its text."""

    time: str
    is_part: bool
    text: str


def _together(parts: Sequence[_LogLine], *, is_whole: bool) -> LogLine:
    return LogLine(parse_time(parts[0].time), "".join(part.text for part in parts), is_whole)


def _line(raw: bytes) -> _LogLine | None:
    """Parse a line of a CRI log file; return None if it is malformed."""
    time, _, rest = raw.decode(errors="replace").partition(" ")
    _, _, rest = rest.partition(" ")
    tag, space, text = rest.partition(" ")
    return _LogLine(time, tag == "P", text) if space or tag in {"F", "P"} else None


def _ignore_news() -> None:
    pass


def _not_found(container: str) -> str:
    """Return the API server's message for a container that is not running."""
    return f'unable to upgrade connection: container not found ("{container}")'


class BothContainers:
    """Access to the containers of simulated pods and of the local node's pods, chosen by the pod's node."""

    def __init__(self, simulated: Containers, local: Containers, node: str) -> None:
        self._simulated = simulated
        self._local = local
        self._node = node

    def log(self, pod: Obj, container: str, *, previous: bool) -> ContainerLog:
        """Return the log of the container's current or last run; with `previous`, that of the run before."""
        return self._of(pod).log(pod, container, previous=previous)

    def usage(self, pod: Obj) -> MeasuredUsage | None:
        """Return the measured usage of each container of a running pod, by name; None before it is known."""
        return self._of(pod).usage(pod)

    def node_usage(self, node: str) -> MeasuredUsage | None:
        """Return the usage of a node; None if it is the sum of its pods."""
        return (self._local if node == self._node else self._simulated).node_usage(node)

    def why_no_process(self, pod: Obj) -> str:
        """Return why the pod has no process for exec, attach and port-forward; '' if it has one."""
        return self._of(pod).why_no_process(pod)

    def execute(
        self, pod: Obj, container: str, command: Sequence[str], streams: Streams, talker: SessionClient
    ) -> ProcessSession:
        """Start a command in a running container, and return the session with it."""
        return self._of(pod).execute(pod, container, command, streams, talker)

    def attach(self, pod: Obj, container: str, streams: Streams, talker: SessionClient) -> ProcessSession:
        """Attach to the main process of a container, and return the session with it."""
        return self._of(pod).attach(pod, container, streams, talker)

    def connect(self, pod: Obj, port: int, talker: SessionClient) -> ByteStream:
        """Connect to a port of a pod, and return the byte stream."""
        return self._of(pod).connect(pod, port, talker)

    def _of(self, pod: Obj) -> Containers:
        return self._local if pod["spec"].get("nodeName") == self._node else self._simulated
