"""Exec and attach sessions with processes of the local node's pods, over pipes, terminals and a host process."""

import asyncio
import fcntl
import json
import os
import socket
import struct
import termios
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

from batchyard.interfaces.containers import SessionClient, SessionEnd, Streams

# --- pipes ---
#
# Non-blocking reads and writes of pipes, terminals and sockets on the asyncio loop.


#: Maximum bytes read at once.
_PART: Final = 64 * 1024
#: Watermarks in bytes: above the high one the producer must pause, at the low one it may resume.
_HIGH: Final = 256 * 1024
_LOW: Final = 64 * 1024


class PipeReader:
    """Reads a file descriptor until its end, and passes the data on; reading can be paused."""

    def __init__(
        self, file: int, loop: asyncio.AbstractEventLoop, take: Callable[[bytes], None], over: Callable[[], None]
    ) -> None:
        self._file = file
        self._loop = loop
        self._take = take
        self._over = over
        self._is_open = True
        self._listens = False
        os.set_blocking(file, False)
        self.listen(listens=True)

    def listen(self, *, listens: bool) -> None:
        """Resume or pause reading."""
        if listens == self._listens or not self._is_open:
            return
        self._listens = listens
        if listens:
            self._loop.add_reader(self._file, self._read)
        else:
            self._loop.remove_reader(self._file)

    def close(self) -> None:
        """Stop reading, and close the file descriptor."""
        self.listen(listens=False)
        if self._is_open:
            self._is_open = False
            os.close(self._file)

    def _read(self) -> None:
        try:
            data = os.read(self._file, _PART)
        except BlockingIOError:
            return
        except OSError:  # a terminal without open slaves, or a reset connection
            data = b""
        if data:
            self._take(data)
        else:
            self.close()
            self._over()


class PipeWriter:
    """A buffered writer to a file descriptor.

    `wants_more` is called with False when the buffer is full, and with True when it has room again.
    """

    def __init__(self, file: int, loop: asyncio.AbstractEventLoop, wants_more: Callable[[bool], None]) -> None:
        self._file = file
        self._loop = loop
        self._wants_more = wants_more
        self._waiting: deque[bytes] = deque()
        self._bytes = 0
        self._is_open = True
        self._is_ending = False
        self._is_full = False
        os.set_blocking(file, False)

    def write(self, data: bytes) -> None:
        """Write data, or buffer it until it can be written. Data is dropped if the reader has closed."""
        if not self._is_open or self._is_ending or not data:
            return
        self._waiting.append(data)
        self._bytes += len(data)
        if len(self._waiting) == 1:
            self._write()
        if self._bytes > _HIGH and not self._is_full:
            self._is_full = True
            self._wants_more(False)

    def end(self) -> None:
        """Close the file descriptor once all buffered data is written."""
        self._is_ending = True
        if not self._waiting:
            self.close()

    def close(self) -> None:
        """Close the file descriptor, and drop all buffered data."""
        if self._is_open:
            self._is_open = False
            self._loop.remove_writer(self._file)
            os.close(self._file)
            self._waiting.clear()
            self._bytes = 0
            self._report_room()

    def _write(self) -> None:
        """Write as much buffered data as possible without blocking."""
        try:
            while self._waiting:
                data = self._waiting[0]
                written = os.write(self._file, data)
                self._bytes -= written
                if written < len(data):
                    self._waiting[0] = data[written:]
                    break
                self._waiting.popleft()
        except BlockingIOError:
            pass
        except OSError:  # the reader has closed
            self.close()
            return
        self._continue()

    def _continue(self) -> None:
        if self._waiting:
            self._loop.add_writer(self._file, self._write)
        else:
            self._loop.remove_writer(self._file)
            if self._is_ending:
                self.close()
        self._report_room()

    def _report_room(self) -> None:
        if self._is_full and self._bytes <= _LOW:
            self._is_full = False
            self._wants_more(True)


# --- session host ---
#
# Connection to the host process of a session. For exec, the spawner forks it; for attach, it is the container's shim.


#: The send buffer for a request: a command line fits into an HTTP head, but JSON may need more bytes for it.
_REQUEST_BYTES: Final = 1 << 20
_MESSAGE_BYTES: Final = 1 << 16
_FILES_MAX: Final = 2
#: Seconds between two attempts to connect to a busy host, and the maximum number of attempts.
_AGAIN_AFTER: Final = 0.02
_TRIES: Final = 500


class HostConnection:
    """A connection to the host process of a session, over a Unix socket.

    `hear` is called with each message of the host and its file descriptors, `lost` once when the host disconnects.
    """

    def __init__(
        self,
        path: Path,
        loop: asyncio.AbstractEventLoop,
        hear: Callable[[Mapping[str, Any], Sequence[int]], None],
        lost: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._hear = hear
        self._lost = lost
        kind = socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
        self._socket = socket.socket(socket.AF_UNIX, kind)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _REQUEST_BYTES)
        self._path = path
        #: The message and file descriptors to send once the host accepts the connection, and the timer of the retry.
        self._message = b""
        self._given: list[int] = []
        self._again: asyncio.TimerHandle | None = None

    def ask(self, asked: Mapping[str, Any], files: Sequence[int]) -> None:
        """Connect to the host, and send a request with file descriptors. Raises OSError if it is unreachable."""
        self._message = json.dumps(asked).encode()
        try:
            self._connect(files)
        except BlockingIOError:
            self._given = [os.dup(file) for file in files]
            self._again = self._loop.call_later(_AGAIN_AFTER, self._try_again, _TRIES)

    def _try_again(self, tries: int) -> None:
        self._again = None
        try:
            self._connect(self._given)
        except BlockingIOError:
            if tries:
                self._again = self._loop.call_later(_AGAIN_AFTER, self._try_again, tries - 1)
                return
            self.close()
            self._lost()
        except OSError:
            self.close()
            self._lost()
        self._drop_given()

    def _drop_given(self) -> None:
        for file in self._given:
            os.close(file)
        self._given = []

    def _connect(self, files: Sequence[int]) -> None:
        folder = os.open(self._path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._socket.connect(f"/proc/self/fd/{folder}/{self._path.name}")
            socket.send_fds(self._socket, [self._message], files)
        finally:
            os.close(folder)
        self._loop.add_reader(self._socket, self._read)

    def say(self, message: Mapping[str, Any]) -> None:
        """Send another message to the host; ignore errors if the host has disconnected."""
        with suppress(OSError):
            self._socket.send(json.dumps(message).encode())

    def close(self) -> None:
        """Disconnect from the host, which ends the session there."""
        if self._again is not None:
            self._again.cancel()
            self._again = None
            self._drop_given()
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket)
            self._socket.close()

    def _read(self) -> None:
        message = b""
        files: Sequence[int] = ()
        try:
            message, files, _, _ = socket.recv_fds(self._socket, _MESSAGE_BYTES, _FILES_MAX, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return
        except OSError:
            message = b""
        if message:
            self._hear(json.loads(message), files)
        else:
            self.close()
            self._lost()


#: The socket in the node's folder for exec sessions, and the socket in a run's folder for attach.
SESSIONS: Final = "sessions"
_ATTACH: Final = "attach"
_STDIN: Final = "stdin"
_FAILED: Final = "error executing command in container: failed to exec in container: "
_NOT_ATTACHED: Final = "error attaching to container: "
_SIZE_MAX: Final = 65535


class _LocalSession:
    """An exec or attach session: its pipes or terminal, and the connection to its host process."""

    def __init__(self, host: Path, streams: Streams, talker: SessionClient, failed: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._talker = talker
        self._streams = streams
        #: The prefix of failure messages.
        self._failed = failed
        self._inflows: dict[str, PipeReader] = {}
        self._outflow: PipeWriter | None = None
        self._terminal: int | None = None
        self._size: tuple[int, int] | None = None
        #: Input that was received before the pipe or terminal was ready.
        self._early: list[bytes] = []
        self._listens = True
        self._is_closed = False
        self._ending: SessionEnd | None = None
        self._host = HostConnection(host, self._loop, self._hear, self._lost)

    def write(self, data: bytes) -> None:
        """Write input to the process, or buffer it until the pipe or terminal is ready."""
        if self._outflow is not None:
            self._outflow.write(data)
        elif self._streams.stdin and not self._is_closed:
            self._early.append(data)
            self._report_wants(False)

    def listen(self, *, listens: bool) -> None:
        """Resume or pause reading the outputs of the process."""
        self._listens = listens
        for inflow in self._inflows.values():
            inflow.listen(listens=listens)

    def resize(self, columns: int, rows: int) -> None:
        """Set the size of the terminal; ignore sizes out of range."""
        if 0 < columns <= _SIZE_MAX and 0 < rows <= _SIZE_MAX:
            self._size = (columns, rows)
            if self._terminal is not None:
                fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def close(self) -> None:
        """Disconnect from the process without notifying the client."""
        self._is_closed = True
        self._host.close()
        for inflow in list(self._inflows.values()):
            inflow.close()
        self._inflows.clear()
        if self._outflow is not None:
            self._outflow.close()
        if self._terminal is not None:
            os.close(self._terminal)
            self._terminal = None

    def _ask(self, asked: Mapping[str, Any], given: Sequence[int]) -> None:
        """Send a request with file descriptors to the host process, and close these descriptors in this process."""
        try:
            self._host.ask(asked, given)
        except OSError as error:
            self._end_with(SessionEnd(failure=f"{self._failed}{error.strerror}"))
        finally:
            for file in given:
                os.close(file)

    def _output(self, name: str) -> int:
        """Create a pipe for an output of the process, and pass its data to the client. Return the write end."""
        reads, writes = os.pipe2(os.O_CLOEXEC)
        self._read_from(name, reads)
        return writes

    def _read_from(self, name: str, file: int) -> None:
        take = partial(self._talker.received, name)
        self._inflows[name] = PipeReader(file, self._loop, take, partial(self._ended_output, name))
        self._inflows[name].listen(listens=self._listens)

    def _write_to(self, file: int) -> None:
        self._outflow = PipeWriter(file, self._loop, self._report_wants)

    def _report_wants(self, wants: bool) -> None:
        self._talker.wants_more(wants=wants)

    def _hear(self, message: Mapping[str, Any], files: Sequence[int]) -> None:
        """Process a message of the host: a terminal, an error, or the exit code."""
        if files:
            self._take_terminal(files[0])
        if "error" in message:
            self._end_with(SessionEnd(failure=f"{self._failed}{message['error']}"))
        elif "exit_code" in message:
            self._end_with(SessionEnd(message["exit_code"]))

    def _take_terminal(self, terminal: int) -> None:
        self._terminal = terminal
        if self._streams.stdin:
            self._write_to(os.dup(terminal))
            self._write_early()
        if self._size is not None:
            self.resize(*self._size)

    def _write_early(self) -> None:
        """Write the input that was received before the pipe or terminal was ready."""
        early, self._early = self._early, []
        for data in early:
            self.write(data)
        self._report_wants(True)

    def _lost(self) -> None:
        """End the session with an error after the host has disconnected."""
        if self._ending is None:
            self._end_with(SessionEnd(failure=f"{self._failed}the connection to its host process was lost"))

    def _end_with(self, ending: SessionEnd) -> None:
        """End the session once all outputs of the process have been read completely."""
        if self._ending is None:
            self._ending = ending
            self._loop.call_soon(self._end_if_over)

    def _ended_output(self, name: str) -> None:
        self._inflows.pop(name, None)
        self._end_if_over()

    def _end_if_over(self) -> None:
        if self._ending is not None and not self._is_closed and not self._inflows:
            self.close()
            self._talker.ended(self._ending)


class LocalCommand(_LocalSession):
    """An exec session: a command in the container of a run, whose folder is `path` in the node's folder."""

    def __init__(self, node: Path, path: Path, command: Sequence[str], streams: Streams, talker: SessionClient) -> None:
        super().__init__(node / SESSIONS, streams, talker, _FAILED)
        self._ask({"run": str(path), "argv": list(command), "tty": streams.tty}, [] if streams.tty else self._pipes())

    def end_input(self) -> None:
        """Close the command's stdin, unless it is a terminal."""
        if self._outflow is not None and not self._streams.tty:
            self._outflow.end()

    def _pipes(self) -> list[int]:
        """Create pipes for the command's stdin, stdout and stderr. Return the command's ends."""
        if self._streams.stdin:
            stdin, writes = os.pipe2(os.O_CLOEXEC)
            self._write_to(writes)
        else:
            stdin = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        outputs = (("stdout", self._streams.stdout), ("stderr", self._streams.stderr))
        nothing = os.O_WRONLY | os.O_CLOEXEC
        return [stdin, *(self._output(name) if has else os.open(os.devnull, nothing) for name, has in outputs)]

    def _take_terminal(self, terminal: int) -> None:
        super()._take_terminal(terminal)
        self._read_from("stdout", os.dup(terminal))


class LocalAttachment(_LocalSession):
    """An attach session with the main process of a run, whose folder is `folder`.

    `has_input`: the container has a stdin. `once`: its stdin is closed after the first session (stdinOnce).
    """

    def __init__(self, folder: Path, streams: Streams, talker: SessionClient, *, has_input: bool, once: bool) -> None:
        super().__init__(folder / _ATTACH, streams, talker, _NOT_ATTACHED)
        self._pipe = folder / _STDIN if has_input and not streams.tty else None
        self._once = once and streams.stdin and not streams.tty
        self._is_attached = False
        self._has_more = True
        names = [name for name, has in (("stdout", streams.stdout), ("stderr", streams.stderr)) if has]
        self._ask({"outputs": names}, [self._output(name) for name in names])

    def write(self, data: bytes) -> None:
        """Write input to the container's stdin once the session is attached; drop it if there is no stdin."""
        if self._outflow is not None or not self._is_attached:
            super().write(data)

    def end_input(self) -> None:
        """Close the container's stdin with stdinOnce; otherwise detach the client."""
        self._has_more = False
        if not self._is_attached:
            return
        if not self._once:
            self._end_with(SessionEnd())
            for inflow in list(self._inflows.values()):
                inflow.close()
            self._inflows.clear()
            return
        self._once = False
        if self._outflow is not None:
            self._outflow.end()
        self._host.say({"end_input": True})

    def close(self) -> None:
        """Detach from the process; with stdinOnce, close the container's stdin."""
        if self._once and not self._is_closed:
            self._host.say({"end_input": True})
        super().close()

    def _hear(self, message: Mapping[str, Any], files: Sequence[int]) -> None:
        """Start to forward input after the first message of the host, which confirms the attachment."""
        self._is_attached = True
        if self._pipe is not None and self._streams.stdin:
            with suppress(OSError):  # the container closed its stdin
                self._write_to(os.open(self._pipe, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC))
        super()._hear(message, files)
        self._write_early()
        if not self._has_more:
            self.end_input()

    def _lost(self) -> None:
        """End the session without an error, because the container has exited."""
        self._end_with(SessionEnd())


class FailedSession:
    """A session that could not be started: it only reports its failure to the client."""

    def __init__(self, loop: asyncio.AbstractEventLoop, talker: SessionClient, why: str) -> None:
        self._end = loop.call_soon(talker.ended, SessionEnd(failure=why))

    def write(self, data: bytes) -> None:
        """Do nothing, because the session has failed."""

    def end_input(self) -> None:
        """Do nothing, because the session has failed."""

    def listen(self, *, listens: bool) -> None:
        """Do nothing, because the session has failed."""

    def resize(self, columns: int, rows: int) -> None:
        """Do nothing, because the session has failed."""

    def close(self) -> None:
        """Cancel the pending report of the failure to the client."""
        self._end.cancel()
