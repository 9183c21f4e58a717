"""Access to the containers of this machine's pods, for the API's logs, exec, attach, port-forward and metrics.

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
from batchyard.interfaces import containers
from batchyard.interfaces.client import WatchEvent
from batchyard.kubelet.local.pod_actions import statuses_by_name
from batchyard.kubelet.local.runs import EXITED, RUNNING, ObservedRun, container_id, key_of_run, run_of
from batchyard.server.clocks.wall import monotonic_seconds
from batchyard.server.local_node import sessions
from batchyard.server.local_node.run_dirs import NodeTimes, RunFolders
from batchyard.server.local_node.usage import LocalUsage

# Connections to ports of the local node's pods, made within their network namespaces.


_CONNECT_TIMEOUT: Final = 10  # seconds
#: How long the connection waits for data of the port after the client has closed its input.
_RESPONSE_TIMEOUT: Final = 60  # seconds
_LOOPBACK_ADDRESSES: Final = ((4, "127.0.0.1", "127.0.0.1"), (6, "::1", "[::1]"))


class LocalPortConnection(asyncio.Protocol):
    """A port-forward connection to a loopback port in the network namespace of a pod.

    `run` is the folder of a container run in the pod, relative to the node's folder. Error messages contain the name
    of the network namespace.
    """

    def __init__(
        self, node_folder: Path, run: Path, network_name: str, port: int, client: containers.SessionClient
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._session_client = client
        self._port = port
        self._network_name = network_name
        self._transport: Any = None
        self._is_reading = True
        #: Data to send once the connection is established.
        self._early_data: list[bytes] = []
        self._is_ending = False
        self._is_closed = False
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._host = sessions.HostConnection(
            node_folder / sessions.SESSIONS_SOCKET, self._loop, self._process_host_message, self._process_host_loss
        )
        try:
            self._host.send_request({"sockets": str(run)}, ())
        except OSError as error:
            self._loop.call_soon(self._fail, str(error.strerror))

    def write(self, data: bytes) -> None:
        """Send bytes of the client to the port, or buffer them until the connection is established."""
        if self._transport is not None:
            self._transport.write(data)
        elif not self._is_closed:
            self._early_data.append(data)
            self._session_client.set_accepts_input(accepts_input=False)

    def end_input(self) -> None:
        """Half-close the connection to the port, because the client sends no more data.

        If the port is then silent for _RESPONSE_TIMEOUT seconds, the connection is closed.
        """
        self._is_ending = True
        if self._transport is not None and self._transport.can_write_eof():
            self._transport.write_eof()
            self._start_response_timeout()

    def set_reading(self, *, is_reading: bool) -> None:
        """Resume or pause reading from the port."""
        if is_reading != self._is_reading:
            self._is_reading = is_reading
            if self._transport is not None and not self._transport.is_closing():
                (self._transport.resume_reading if is_reading else self._transport.pause_reading)()

    def close(self) -> None:
        """Close the connection to the port without notifying the client."""
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
        """Send the buffered data of the client to the port, which is now connected."""
        self._transport = transport
        if self._is_closed:
            transport.abort()
            return
        for data in self._early_data:
            transport.write(data)
        if self._early_data:
            self._session_client.set_accepts_input(accepts_input=True)
        self._early_data.clear()
        if not self._is_reading:
            transport.pause_reading()
        if self._is_ending:
            self.end_input()

    def data_received(self, data: bytes) -> None:
        """Pass bytes from the port to the client."""
        if not self._is_closed:
            self._session_client.process_output("stdout", data)
            if self._is_ending:
                self._start_response_timeout()

    def pause_writing(self) -> None:
        """Notify the client that the port does not accept more data."""
        self._session_client.set_accepts_input(accepts_input=False)

    def resume_writing(self) -> None:
        """Notify the client that the port accepts data again."""
        self._session_client.set_accepts_input(accepts_input=True)

    def connection_lost(self, exc: Exception | None) -> None:
        """Notify the client that the port has closed the connection."""
        self._end(containers.SessionEnd())

    # --- establishing the connection ---

    def _process_host_message(self, message: Mapping[str, Any], socket_fds: Sequence[int]) -> None:
        self._host.close()
        if "error" in message:
            for socket_fd in socket_fds:
                os.close(socket_fd)
            self._fail(message["error"])
        else:
            self._connect([socket.socket(fileno=socket_fd) for socket_fd in socket_fds])

    def _process_host_loss(self) -> None:
        self._fail("the connection to the host process in the pod was lost")

    def _connect(self, sockets: Sequence[socket.socket]) -> None:
        self._task = self._loop.create_task(self._connect_sockets(sockets))

    async def _connect_sockets(self, sockets: Sequence[socket.socket]) -> None:
        errors = []
        try:
            for loopback_socket, (version, address, shown_address) in zip(sockets, _LOOPBACK_ADDRESSES, strict=True):
                try:
                    async with asyncio.timeout(_CONNECT_TIMEOUT):
                        await self._loop.sock_connect(loopback_socket, (address, self._port))
                except (OSError, TimeoutError) as error:
                    reason = os.strerror(error.errno).lower() if error.errno else "i/o timeout"
                    errors.append(f"IPv{version}: dial tcp{version} {shown_address}:{self._port}: connect: {reason}")
                    continue
                await self._loop.create_connection(lambda: self, sock=loopback_socket.dup())
                return
        finally:
            for loopback_socket in sockets:
                loopback_socket.close()
        self._fail(
            f'failed to connect to localhost:{self._port} inside namespace "{self._network_name}", {" ".join(errors)}'
        )

    def _fail(self, reason: str) -> None:
        failure_message = f'failed to execute portforward in network namespace "{self._network_name}": {reason}'
        self._end(containers.SessionEnd(failure=failure_message))

    def _end(self, session_end: containers.SessionEnd) -> None:
        if not self._is_closed:
            self.close()
            self._session_client.process_end(session_end)

    def _start_response_timeout(self) -> None:
        """Restart the timeout that closes the connection if the port is silent after the end of the client's input."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(_RESPONSE_TIMEOUT, self._transport.abort)


#: How often a followed log is checked for new lines.
_POLL_INTERVAL: Final = 0.1  # seconds
#: Maximum bytes of a log that are read at once.
_CHUNK_SIZE: Final = 64 * 1024
#: After reading, a log pauses for this multiple of the time that reading took, so that the thread does other work.
_PAUSE_FACTOR: Final = 2
#: The limits of the search for the last lines from the end of a log: lines, and bytes.
_TAIL_LINES_MAX, _TAIL_BYTES_MAX = 10_000, 8 * 1024 * 1024
#: Maximum attempts to open the next part of a log while it is being rotated.
_LOG_OPEN_ATTEMPTS_MAX: Final = 10
_FULL_LINE_PATTERN: Final = re.compile(rb"\n\S+ \S+ F")


class LocalContainers:
    """Access to the containers of this machine's pods: logs, exec and attach sessions, forwarded ports and usage."""

    def __init__(
        self,
        container_runtime: containers.ContainerRuntime,
        run_folders: RunFolders,
        loop: asyncio.AbstractEventLoop,
        node_times: NodeTimes,
    ) -> None:
        self._runtime = container_runtime
        self._folders = run_folders
        self._loop = loop
        self._times = node_times
        self._usage = LocalUsage(container_runtime, loop, node_times.clock)
        self._open_logs: dict[LocalLog, None] = {}
        self._is_ending = False

    def log(self, pod: Obj, container: str, *, previous: bool) -> containers.ContainerLog:
        """Open the log of a container's last start in the pod's status or, with `previous`, of that in `lastState`."""
        uid, logged_id = pod["metadata"]["uid"], _logged_container_id(pod, container, previous=previous)
        logged_runs = [run for run in map(run_of, self._runtime.runs(uid)) if container_id(run) == logged_id]
        key = key_of_run(logged_runs[0]) if logged_runs else Key(containers.RUN, uid, f"{container}/0")
        log = LocalLog(
            self._folders.log_path(key), self._loop, lambda: self._has_exited(key), self._open_logs, self._times
        )
        if self._is_ending:
            log.close()
        return log

    def usage(self, pod: Obj) -> containers.MeasuredUsage | None:
        """Return the measured usage of each running container of a pod, by container name.

        Return None if no container is running, or if one is not measured yet.
        """
        return self._usage.pod_usage(pod["metadata"]["uid"])

    def node_usage(self, node: str) -> containers.MeasuredUsage | None:
        """Return the measured CPU and memory usage of this machine; None before it is known."""
        return self._usage.machine_usage()

    def no_process_reason(self, pod: Obj) -> str:
        """Return '': containers on this machine always have a process for exec, attach and port-forward."""
        return ""

    def execute(
        self,
        pod: Obj,
        container: str,
        command: Sequence[str],
        streams: containers.Streams,
        client: containers.SessionClient,
    ) -> containers.ProcessSession:
        """Start a command in a container (exec), and return the session.

        If the container is not running, the result is a FailedSession.
        """
        run = self._find_running_run(pod, container)
        if run is None:
            return sessions.FailedSession(self._loop, client, _container_not_found_message(container))
        return sessions.LocalExecSession(
            self._folders.node, self._folders.path(key_of_run(run)), command, streams, client
        )

    def attach(
        self, pod: Obj, container: str, streams: containers.Streams, client: containers.SessionClient
    ) -> containers.ProcessSession:
        """Attach to the main process of a container, and return the session.

        The container's spec decides whether the session has a terminal. If the container is not running, the result is
        a FailedSession.
        """
        run = self._find_running_run(pod, container)
        if run is None:
            return sessions.FailedSession(self._loop, client, _container_not_found_message(container))
        spec = run.obj["spec"]
        streams = streams._replace(tty=spec["tty"], stderr=streams.stderr and not spec["tty"])
        run_folder = self._folders.node / self._folders.path(key_of_run(run))
        has_input, is_stdin_once = spec["stdin"], bool(spec.get("stdinOnce"))
        return sessions.LocalAttachSession(
            run_folder, streams, client, has_input=has_input, is_stdin_once=is_stdin_once
        )

    def connect(self, pod: Obj, port: int, client: containers.SessionClient) -> containers.ByteStream:
        """Connect to a port of a pod for port-forward, and return the byte stream."""
        uid: str = pod["metadata"]["uid"]
        running_runs = [run for run in map(run_of, self._runtime.runs(uid)) if run.container and run.phase == RUNNING]
        key = key_of_run(running_runs[0]) if running_runs else Key(containers.RUN, uid, containers.SANDBOX)
        network_name = "host" if pod["spec"].get("hostNetwork") else uid
        return LocalPortConnection(self._folders.node, self._folders.path(key), network_name, port, client)

    def process_changes(self, changes: Iterable[WatchEvent]) -> None:
        """Ignore changes of objects: access to local containers does not depend on them."""

    def forget_changes(self, _revision: int) -> None:
        """Hold no changes."""

    def end(self) -> None:
        """End all logs that are open or will be opened, and stop measuring usage, because the platform shuts down."""
        self._is_ending = True
        self._usage.close()
        for log in list(self._open_logs):
            log.close()

    def _find_running_run(self, pod: Obj, container: str) -> ObservedRun | None:
        pod_runs = [run_of(run) for run in self._runtime.runs(pod["metadata"]["uid"])]
        return next((run for run in pod_runs if run.container == container and run.phase == RUNNING), None)

    def _has_exited(self, key: Key) -> bool:
        run = self._runtime.find_run(key)
        return run is None or (run.get("status") or {}).get("phase") == EXITED


class LocalLog:
    """The log of one container start, which is read while it grows."""

    def __init__(
        self,
        path: Path,
        loop: asyncio.AbstractEventLoop,
        has_ended: Callable[[], bool],
        open_logs: dict["LocalLog", None],
        times: NodeTimes,
    ) -> None:
        self._has_ended = has_ended
        self._loop = loop
        self._open_logs = open_logs
        self._times = times
        self._reader = _RotatedLogReader(path)
        self._timer: asyncio.TimerHandle | None = None
        self.is_over = False
        self.is_behind = False
        self.on_new_data: Callable[[], None] = _ignore_new_data
        open_logs[self] = None

    def skip_to_last(self, line_count: int) -> None:
        """Skip to the last `line_count` log lines. If these exceed the limits of lines or bytes, skip nothing."""
        if line_count <= _TAIL_LINES_MAX:
            self._reader.skip_to_last(line_count)

    def read(self) -> Sequence[containers.LogLine]:
        """Return the next lines of the log; an empty list while reading pauses so that the thread does other work."""
        if self.is_over or (self.is_behind and self._timer is not None):
            return []
        has_ended = self._has_ended()  # checked before reading, so that no final line is missed
        began_at = monotonic_seconds()
        lines = self._reader.read()
        self.is_behind = self._reader.has_more()
        if self.is_behind:
            behind_log_count = sum(log.is_behind for log in self._open_logs)
            self._begin_timer((monotonic_seconds() - began_at) * _PAUSE_FACTOR * behind_log_count)
        elif has_ended:
            lines = [*lines, *self._reader.read_incomplete_line()]
            self._end()
        elif self._timer is None:
            self._begin_timer(_POLL_INTERVAL)
        return [line._replace(at=self._times.to_platform_time(line.at)) for line in lines]

    def close(self) -> None:
        """Stop reading the log, and notify the log's reader that it has ended."""
        was_log_over = self.is_over
        self._end()
        if not was_log_over:
            self.on_new_data()

    def _begin_timer(self, delay: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(delay, self._check_for_log_lines)

    def _end(self) -> None:
        self.is_over, self.is_behind = True, False
        if self._timer is not None:
            self._timer.cancel()
        self._open_logs.pop(self, None)
        self._reader.close()

    def _check_for_log_lines(self) -> None:
        self._timer = None
        if self._has_ended() or self._reader.has_more():
            self.on_new_data()
        else:
            self._begin_timer(_POLL_INTERVAL)


class _RotatedLogReader:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None
        #: The partial lines (tag P) that were read of an incomplete line.
        self._partial_lines: list[_LogLine] = []
        self._incomplete_line = b""

    def read(self) -> Sequence[containers.LogLine]:
        *complete_lines, self._incomplete_line = (self._incomplete_line + self._read_chunk()).split(b"\n")
        return [line for raw_line in complete_lines if (line := self._complete_line(raw_line)) is not None]

    def skip_to_last(self, line_count: int) -> None:
        """Skip to the last `line_count` lines of the log; skip nothing if these exceed about _TAIL_BYTES_MAX bytes."""
        read_line_count, byte_count = 0, 0
        for path in [self._path, *map(self._rotated_log_path, self._rotation_numbers())]:
            try:
                log_file = path.open("rb")
            except FileNotFoundError:
                return
            block_end = log_file.seek(0, os.SEEK_END)
            while block_end and byte_count < _TAIL_BYTES_MAX:
                block_start = max(0, block_end - _CHUNK_SIZE)
                log_file.seek(block_start)
                file_block = log_file.read(block_end - block_start)
                read_line_count, byte_count, block_end = (
                    read_line_count + len(_FULL_LINE_PATTERN.findall(file_block)),
                    byte_count + len(file_block),
                    block_start,
                )
                if read_line_count > line_count:
                    log_file.seek(block_start + file_block.index(b"\n") + 1)
                    self._file = log_file
                    return
            log_file.close()
            if byte_count >= _TAIL_BYTES_MAX:
                return

    def read_incomplete_line(self) -> Sequence[containers.LogLine]:
        partial_lines, self._partial_lines = self._partial_lines, []
        return [_join_partial_lines(partial_lines, is_complete=False)] if partial_lines else []

    def has_more(self) -> bool:
        if self._file is None:
            return self._path.exists()
        return self._path.exists() and (self._is_log_rotated() or self._file.tell() < self._path.stat().st_size)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _read_chunk(self) -> bytes:
        if self._file is None:
            rotation_numbers = self._rotation_numbers()
            self._open(self._rotated_log_path(rotation_numbers[-1]) if rotation_numbers else self._path)
        if self._file is None:
            return b""
        text = self._file.read(_CHUNK_SIZE)
        if not text and self._is_log_rotated():
            text = self._file.read(_CHUNK_SIZE)  # it may have grown before the rotation
            if not text:
                self._open_next_log_file()
                text = self._file.read(_CHUNK_SIZE) if self._file is not None else b""
        return text

    def _open_next_log_file(self) -> None:
        """Open the log file that follows the open one; try again if a rotation renames files at the same time."""
        assert self._file is not None, "a file of the log is open"
        with self._file as previous_file:
            inode = os.fstat(previous_file.fileno()).st_ino
            for _ in range(_LOG_OPEN_ATTEMPTS_MAX):
                next_path = self._log_file_after(inode)
                self._open(next_path)
                if next_path == self._log_file_after(inode):
                    return
                self.close()

    def _open(self, path: Path) -> None:
        self._file = None
        try:
            self._file = path.open("rb")
        except FileNotFoundError:
            return

    def _is_log_rotated(self) -> bool:
        assert self._file is not None, "a file of the log is open"
        try:
            return os.fstat(self._file.fileno()).st_ino != self._path.stat().st_ino
        except FileNotFoundError:
            return False

    def _log_file_after(self, inode: int) -> Path:
        """Return the log file started after the one with this inode; the oldest log file if none has this inode."""
        following_path = self._path
        for number in self._rotation_numbers():
            path = self._rotated_log_path(number)
            try:
                if path.stat().st_ino == inode:
                    return following_path
            except FileNotFoundError:
                continue  # the oldest file was removed
            following_path = path
        return following_path

    def _rotation_numbers(self) -> list[int]:
        """Return the numbers N of the rotated files LOG.N, in ascending order: the newest file first."""
        return sorted(int(path.name.rpartition(".")[2]) for path in self._path.parent.glob(f"{self._path.name}.*"))

    def _rotated_log_path(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")

    def _complete_line(self, raw_line: bytes) -> containers.LogLine | None:
        line = _parse_log_line(raw_line)
        if line is None:
            return None
        self._partial_lines.append(line)
        if line.is_partial:
            return None
        partial_lines, self._partial_lines = self._partial_lines, []
        return _join_partial_lines(partial_lines, is_complete=True)


class _LogLine(NamedTuple):
    time: str
    is_partial: bool
    text: str


def _join_partial_lines(lines: Sequence[_LogLine], *, is_complete: bool) -> containers.LogLine:
    return containers.LogLine(parse_time(lines[0].time), "".join(line.text for line in lines), is_complete)


def _parse_log_line(raw_line: bytes) -> _LogLine | None:
    time, _, remaining_text = raw_line.decode(errors="replace").partition(" ")
    _, _, remaining_text = remaining_text.partition(" ")
    line_tag, separator, text = remaining_text.partition(" ")
    return _LogLine(time, line_tag == "P", text) if separator or line_tag in {"F", "P"} else None


def _ignore_new_data() -> None:
    pass


def _logged_container_id(pod: Obj, container: str, *, previous: bool) -> str:
    """Return the containerID of the start whose log is requested: a container that waits has that of its last start.

    Source: validateContainerLogStatus in Kubernetes's pkg/kubelet/kubelet_pods.go.
    """
    status = statuses_by_name(pod).get(container) or {}
    if not previous and "running" in status.get("state", {}):
        return status.get("containerID") or ""
    states = [status.get(field) or {} for field in (("lastState",) if previous else ("state", "lastState"))]
    ids = ((state.get("terminated") or {}).get("containerID") for state in states)
    return next(filter(None, ids), "")


def _container_not_found_message(container: str) -> str:
    return f'unable to upgrade connection: container not found ("{container}")'


class CombinedContainers:
    """Access to the containers of all pods: simulated pods, and pods of this machine, chosen by the pod's node."""

    def __init__(
        self, simulated_containers: containers.Containers, local_containers: containers.Containers, node: str
    ) -> None:
        self._simulated = simulated_containers
        self._local = local_containers
        self._node = node

    def log(self, pod: Obj, container: str, *, previous: bool) -> containers.ContainerLog:
        """Open the log of a container's last start in the pod's status or, with `previous`, of that in `lastState`."""
        return self._containers_of(pod).log(pod, container, previous=previous)

    def usage(self, pod: Obj) -> containers.MeasuredUsage | None:
        """Return the measured CPU and memory usage of each container of a pod, by name; None if it is not known."""
        return self._containers_of(pod).usage(pod)

    def node_usage(self, node: str) -> containers.MeasuredUsage | None:
        """Return the measured usage of a node; None if it is not known yet or the node is simulated."""
        return (self._local if node == self._node else self._simulated).node_usage(node)

    def no_process_reason(self, pod: Obj) -> str:
        """Return why a pod has no process for exec, attach and port-forward; '' if it has one."""
        return self._containers_of(pod).no_process_reason(pod)

    def execute(
        self,
        pod: Obj,
        container: str,
        command: Sequence[str],
        streams: containers.Streams,
        client: containers.SessionClient,
    ) -> containers.ProcessSession:
        """Start a command in a running container (exec), and return the session with the command."""
        return self._containers_of(pod).execute(pod, container, command, streams, client)

    def attach(
        self, pod: Obj, container: str, streams: containers.Streams, client: containers.SessionClient
    ) -> containers.ProcessSession:
        """Attach to the main process of a container, and return the session with this process."""
        return self._containers_of(pod).attach(pod, container, streams, client)

    def connect(self, pod: Obj, port: int, client: containers.SessionClient) -> containers.ByteStream:
        """Connect to a port of a pod for port-forward, and return the byte stream."""
        return self._containers_of(pod).connect(pod, port, client)

    def _containers_of(self, pod: Obj) -> containers.Containers:
        return self._local if pod["spec"].get("nodeName") == self._node else self._simulated
