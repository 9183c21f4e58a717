"""Exec and attach sessions with processes in this machine's pods, over pipes or a terminal.

A host process runs each session: for exec a fork of the spawner, for attach the shim that supervises the container.
"""

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

# Non-blocking reads and writes of pipes, terminals and sockets on the asyncio loop.


#: Maximum bytes read at once.
_READ_SIZE: Final = 64 * 1024
#: Watermarks in bytes: above the high one the producer must pause, at the low one it may resume.
_HIGH_WATERMARK: Final = 256 * 1024
_LOW_WATERMARK: Final = 64 * 1024


class PipeReader:
    """Reads a file descriptor until its end, and passes the data to a callback; reading can be paused."""

    def __init__(
        self, fd: int, loop: asyncio.AbstractEventLoop, on_data: Callable[[bytes], None], on_end: Callable[[], None]
    ) -> None:
        self._fd = fd
        self._loop = loop
        self._on_data = on_data
        self._on_end = on_end
        self._is_open = True
        self._is_reading = False
        os.set_blocking(fd, False)
        self.set_reading(is_reading=True)

    def set_reading(self, *, is_reading: bool) -> None:
        """Resume or pause reading the file descriptor."""
        if is_reading == self._is_reading or not self._is_open:
            return
        self._is_reading = is_reading
        if is_reading:
            self._loop.add_reader(self._fd, self._read_data)
        else:
            self._loop.remove_reader(self._fd)

    def close(self) -> None:
        """Stop reading, and close the file descriptor."""
        self.set_reading(is_reading=False)
        if self._is_open:
            self._is_open = False
            os.close(self._fd)

    def _read_data(self) -> None:
        try:
            data = os.read(self._fd, _READ_SIZE)
        except BlockingIOError:
            return
        except OSError:  # a terminal without open slaves, or a reset connection
            data = b""
        if data:
            self._on_data(data)
        else:
            self.close()
            self._on_end()


class PipeWriter:
    """Writes to a file descriptor without blocking, with a buffer.

    `set_accepts_input` is called with False when the buffer is full, and with True when it has room again.
    """

    def __init__(self, fd: int, loop: asyncio.AbstractEventLoop, set_accepts_input: Callable[[bool], None]) -> None:
        self._fd = fd
        self._loop = loop
        self._set_accepts_input = set_accepts_input
        self._buffer: deque[bytes] = deque()
        self._buffered_bytes = 0
        self._is_open = True
        self._is_ending = False
        self._is_full = False
        os.set_blocking(fd, False)

    def write(self, data: bytes) -> None:
        """Write data, or buffer it until the file descriptor accepts it. Drop it after `end` or `close`."""
        if not self._is_open or self._is_ending or not data:
            return
        self._buffer.append(data)
        self._buffered_bytes += len(data)
        if len(self._buffer) == 1:
            self._write()
        if self._buffered_bytes > _HIGH_WATERMARK and not self._is_full:
            self._is_full = True
            self._set_accepts_input(False)

    def end(self) -> None:
        """Close the file descriptor once all buffered data is written."""
        self._is_ending = True
        if not self._buffer:
            self.close()

    def close(self) -> None:
        """Close the file descriptor, and drop all buffered data."""
        if self._is_open:
            self._is_open = False
            self._loop.remove_writer(self._fd)
            os.close(self._fd)
            self._buffer.clear()
            self._buffered_bytes = 0
            self._report_free_space()

    def _write(self) -> None:
        try:
            while self._buffer:
                data = self._buffer[0]
                written_count = os.write(self._fd, data)
                self._buffered_bytes -= written_count
                if written_count < len(data):
                    self._buffer[0] = data[written_count:]
                    break
                self._buffer.popleft()
        except BlockingIOError:
            pass
        except OSError:  # the reader has closed
            self.close()
            return
        self._update_writer()

    def _update_writer(self) -> None:
        if self._buffer:
            self._loop.add_writer(self._fd, self._write)
        else:
            self._loop.remove_writer(self._fd)
            if self._is_ending:
                self.close()
        self._report_free_space()

    def _report_free_space(self) -> None:
        if self._is_full and self._buffered_bytes <= _LOW_WATERMARK:
            self._is_full = False
            self._set_accepts_input(True)


# Connection to the host process of a session. For exec, the spawner forks it; for attach, it is the container's shim.


#: The send buffer for a request: a command line fits into an HTTP head, but JSON may need more bytes for it.
_REQUEST_SIZE_MAX: Final = 1 << 20
_MESSAGE_SIZE_MAX: Final = 1 << 16
_FDS_MAX: Final = 2
#: Seconds between two attempts to connect to a busy host, and the maximum number of attempts.
_CONNECT_RETRY_DELAY: Final = 0.02
_CONNECT_ATTEMPTS_MAX: Final = 500


class HostConnection:
    """A connection over a Unix socket to the host process of an exec, attach or port-forward session.

    `on_message` is called with each message of the host and its file descriptors. `on_disconnect` is called when the
    host disconnects.
    """

    def __init__(
        self,
        path: Path,
        loop: asyncio.AbstractEventLoop,
        on_message: Callable[[Mapping[str, Any], Sequence[int]], None],
        on_disconnect: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._on_message = on_message
        self._on_disconnect = on_disconnect
        socket_type = socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
        self._socket = socket.socket(socket.AF_UNIX, socket_type)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _REQUEST_SIZE_MAX)
        self._path = path
        #: The message and file descriptors to send once the host accepts the connection, and the timer of the retry.
        self._message = b""
        self._queued_fds: list[int] = []
        self._retry_timer: asyncio.TimerHandle | None = None

    def send_request(self, request: Mapping[str, Any], fds: Sequence[int]) -> None:
        """Connect to the host process, and send a request with file descriptors.

        Raises OSError if the first attempt to connect fails. If the host is busy, the connection is retried later, and
        `on_disconnect` is called if all retries fail.
        """
        self._message = json.dumps(request).encode()
        try:
            self._connect(fds)
        except BlockingIOError:
            self._queued_fds = [os.dup(fd) for fd in fds]
            self._retry_timer = self._loop.call_later(_CONNECT_RETRY_DELAY, self._retry_connect, _CONNECT_ATTEMPTS_MAX)

    def _retry_connect(self, remaining_attempts: int) -> None:
        self._retry_timer = None
        try:
            self._connect(self._queued_fds)
        except BlockingIOError:
            if remaining_attempts:
                self._retry_timer = self._loop.call_later(
                    _CONNECT_RETRY_DELAY, self._retry_connect, remaining_attempts - 1
                )
                return
            self.close()
            self._on_disconnect()
        except OSError:
            self.close()
            self._on_disconnect()
        self._close_queued_fds()

    def _close_queued_fds(self) -> None:
        for fd in self._queued_fds:
            os.close(fd)
        self._queued_fds = []

    def _connect(self, fds: Sequence[int]) -> None:
        folder_fd = os.open(self._path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._socket.connect(f"/proc/self/fd/{folder_fd}/{self._path.name}")
            socket.send_fds(self._socket, [self._message], fds)
        finally:
            os.close(folder_fd)
        self._loop.add_reader(self._socket, self._read_data)

    def send_message(self, message: Mapping[str, Any]) -> None:
        """Send a message to the host process; ignore the error if the host process has disconnected."""
        with suppress(OSError):
            self._socket.send(json.dumps(message).encode())

    def close(self) -> None:
        """Disconnect from the host process, which then ends the session."""
        if self._retry_timer is not None:
            self._retry_timer.cancel()
            self._retry_timer = None
            self._close_queued_fds()
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket)
            self._socket.close()

    def _read_data(self) -> None:
        message = b""
        fds: Sequence[int] = ()
        try:
            message, fds, _, _ = socket.recv_fds(self._socket, _MESSAGE_SIZE_MAX, _FDS_MAX, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return
        except OSError:
            message = b""
        if message:
            self._on_message(json.loads(message), fds)
        else:
            self.close()
            self._on_disconnect()


#: The socket in the node's folder for exec sessions, and the socket in a run's folder for attach.
SESSIONS_SOCKET: Final = "sessions"
_ATTACH_SOCKET: Final = "attach"
_STDIN_PIPE: Final = "stdin"
_EXEC_ERROR_PREFIX: Final = "error executing command in container: failed to exec in container: "
_ATTACH_ERROR_PREFIX: Final = "error attaching to container: "
_TERMINAL_SIZE_MAX: Final = 65535


class _LocalSession:
    def __init__(self, host: Path, streams: Streams, session_client: SessionClient, error_prefix: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._session_client = session_client
        self._streams = streams
        #: The prefix of failure messages.
        self._error_prefix = error_prefix
        self._output_readers: dict[str, PipeReader] = {}
        self._input_writer: PipeWriter | None = None
        self._terminal: int | None = None
        self._size: tuple[int, int] | None = None
        #: Input that was received before the pipe or terminal was ready.
        self._early_input: list[bytes] = []
        self._is_reading = True
        self._is_closed = False
        self._session_end: SessionEnd | None = None
        self._host = HostConnection(host, self._loop, self._process_host_message, self._process_host_loss)

    def write(self, data: bytes) -> None:
        if self._input_writer is not None:
            self._input_writer.write(data)
        elif self._streams.stdin and not self._is_closed:
            self._early_input.append(data)
            self._report_accepts_input(False)

    def set_reading(self, *, is_reading: bool) -> None:
        self._is_reading = is_reading
        for output_reader in self._output_readers.values():
            output_reader.set_reading(is_reading=is_reading)

    def resize(self, columns: int, rows: int) -> None:
        if 0 < columns <= _TERMINAL_SIZE_MAX and 0 < rows <= _TERMINAL_SIZE_MAX:
            self._size = (columns, rows)
            if self._terminal is not None:
                fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def close(self) -> None:
        self._is_closed = True
        self._host.close()
        for output_reader in list(self._output_readers.values()):
            output_reader.close()
        self._output_readers.clear()
        if self._input_writer is not None:
            self._input_writer.close()
        if self._terminal is not None:
            os.close(self._terminal)
            self._terminal = None

    def _send_request(self, request: Mapping[str, Any], fds: Sequence[int]) -> None:
        """Send a request with file descriptors to the host process, and close these descriptors in this process."""
        try:
            self._host.send_request(request, fds)
        except OSError as error:
            self._end_with(SessionEnd(failure=f"{self._error_prefix}{error.strerror}"))
        finally:
            for fd in fds:
                os.close(fd)

    def _create_output_pipe(self, name: str) -> int:
        read_fd, write_fd = os.pipe2(os.O_CLOEXEC)
        self._read_output(name, read_fd)
        return write_fd

    def _read_output(self, name: str, fd: int) -> None:
        on_data = partial(self._session_client.process_output, name)
        self._output_readers[name] = PipeReader(fd, self._loop, on_data, partial(self._process_output_end, name))
        self._output_readers[name].set_reading(is_reading=self._is_reading)

    def _open_input(self, fd: int) -> None:
        self._input_writer = PipeWriter(fd, self._loop, self._report_accepts_input)

    def _report_accepts_input(self, accepts_input: bool) -> None:
        self._session_client.set_accepts_input(accepts_input=accepts_input)

    def _process_host_message(self, message: Mapping[str, Any], fds: Sequence[int]) -> None:
        if fds:
            self._use_terminal(fds[0])
        if "error" in message:
            self._end_with(SessionEnd(failure=f"{self._error_prefix}{message['error']}"))
        elif "exit_code" in message:
            self._end_with(SessionEnd(message["exit_code"]))

    def _use_terminal(self, terminal_fd: int) -> None:
        self._terminal = terminal_fd
        if self._streams.stdin:
            self._open_input(os.dup(terminal_fd))
            self._write_early_input()
        if self._size is not None:
            self.resize(*self._size)

    def _write_early_input(self) -> None:
        early_input, self._early_input = self._early_input, []
        for data in early_input:
            self.write(data)
        self._report_accepts_input(True)

    def _process_host_loss(self) -> None:
        if self._session_end is None:
            self._end_with(SessionEnd(failure=f"{self._error_prefix}the connection to its host process was lost"))

    def _end_with(self, session_end: SessionEnd) -> None:
        if self._session_end is None:
            self._session_end = session_end
            self._loop.call_soon(self._end_if_complete)

    def _process_output_end(self, name: str) -> None:
        self._output_readers.pop(name, None)
        self._end_if_complete()

    def _end_if_complete(self) -> None:
        if self._session_end is not None and not self._is_closed and not self._output_readers:
            self.close()
            self._session_client.process_end(self._session_end)


class LocalExecSession(_LocalSession):
    """An exec session, which runs a command in a container of this machine.

    `node` is the node's folder, and `path` the folder of the container run, relative to `node`.
    """

    def __init__(self, node: Path, path: Path, command: Sequence[str], streams: Streams, client: SessionClient) -> None:
        super().__init__(node / SESSIONS_SOCKET, streams, client, _EXEC_ERROR_PREFIX)
        self._send_request(
            {"run": str(path), "argv": list(command), "tty": streams.tty}, [] if streams.tty else self._create_pipes()
        )

    def end_input(self) -> None:
        """Close the command's stdin, unless it is a terminal."""
        if self._input_writer is not None and not self._streams.tty:
            self._input_writer.end()

    def _create_pipes(self) -> list[int]:
        if self._streams.stdin:
            stdin_fd, write_fd = os.pipe2(os.O_CLOEXEC)
            self._open_input(write_fd)
        else:
            stdin_fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        output_streams = (("stdout", self._streams.stdout), ("stderr", self._streams.stderr))
        null_flags = os.O_WRONLY | os.O_CLOEXEC
        return [
            stdin_fd,
            *(
                self._create_output_pipe(name) if is_requested else os.open(os.devnull, null_flags)
                for name, is_requested in output_streams
            ),
        ]

    def _use_terminal(self, terminal_fd: int) -> None:
        super()._use_terminal(terminal_fd)
        self._read_output("stdout", os.dup(terminal_fd))


class LocalAttachSession(_LocalSession):
    """An attach session with the main process of a container; `folder` is the folder of the container run.

    `has_input`: the container has a stdin. `is_stdin_once`: its stdin is closed after the first session (stdinOnce).
    """

    def __init__(
        self, folder: Path, streams: Streams, session_client: SessionClient, *, has_input: bool, is_stdin_once: bool
    ) -> None:
        super().__init__(folder / _ATTACH_SOCKET, streams, session_client, _ATTACH_ERROR_PREFIX)
        self._stdin_path = folder / _STDIN_PIPE if has_input and not streams.tty else None
        self._is_stdin_once = is_stdin_once and streams.stdin and not streams.tty
        self._is_attached = False
        self._has_more_input = True
        outputs = [name for name, requested in (("stdout", streams.stdout), ("stderr", streams.stderr)) if requested]
        self._send_request({"outputs": outputs}, [self._create_output_pipe(name) for name in outputs])

    def write(self, data: bytes) -> None:
        """Write input to the container's stdin once the session is attached; drop it if the container has no stdin."""
        if self._input_writer is not None or not self._is_attached:
            super().write(data)

    def end_input(self) -> None:
        """Process the end of the client's input, once the session is attached.

        If this session must close the container's stdin (stdinOnce, no terminal), do so; otherwise end the session.
        """
        self._has_more_input = False
        if not self._is_attached:
            return
        if not self._is_stdin_once:
            self._end_with(SessionEnd())
            for output_reader in list(self._output_readers.values()):
                output_reader.close()
            self._output_readers.clear()
            return
        self._is_stdin_once = False
        if self._input_writer is not None:
            self._input_writer.end()
        self._host.send_message({"end_input": True})

    def close(self) -> None:
        """Detach from the container's process.

        If the session has input, and the container has stdinOnce and no terminal, also close the container's stdin.
        """
        if self._is_stdin_once and not self._is_closed:
            self._host.send_message({"end_input": True})
        super().close()

    def _process_host_message(self, message: Mapping[str, Any], fds: Sequence[int]) -> None:
        """Start to forward input: any message of the host process confirms the attachment."""
        self._is_attached = True
        if self._stdin_path is not None and self._streams.stdin:
            with suppress(OSError):  # the container closed its stdin
                self._open_input(os.open(self._stdin_path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC))
        super()._process_host_message(message, fds)
        self._write_early_input()
        if not self._has_more_input:
            self.end_input()

    def _process_host_loss(self) -> None:
        """End the session without an error: the host process is the container's shim, so the container has exited."""
        self._end_with(SessionEnd())


class FailedSession:
    """An exec or attach session that could not be started: it only reports the failure to the client."""

    def __init__(self, loop: asyncio.AbstractEventLoop, session_client: SessionClient, reason: str) -> None:
        self._report_handle = loop.call_soon(session_client.process_end, SessionEnd(failure=reason))

    def write(self, data: bytes) -> None:
        """Do nothing, because the session has failed."""

    def end_input(self) -> None:
        """Do nothing, because the session has failed."""

    def set_reading(self, *, is_reading: bool) -> None:
        """Do nothing, because the session has failed."""

    def resize(self, columns: int, rows: int) -> None:
        """Do nothing, because the session has failed."""

    def close(self) -> None:
        """Cancel the pending report of the failure to the client."""
        self._report_handle.cancel()
