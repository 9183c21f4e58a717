"""Session host: runs exec commands in running containers, and hands out sockets in the network of a pod.

A client connects to `sessions` in the node directory, a unix SEQPACKET socket, and sends one of these JSON messages:

- `run`, `argv` and `tty`, with three files for the standard streams, or none with a terminal. The host replies
  `started`, then `exit_code` or `error`. With `started` it sends the master end of the terminal. The command ends when
  the client closes the connection.
- `sockets`, the path of a run. The host replies with two sockets in the network of that run, one IPv4 and one IPv6.
"""

import json
import os
import signal
import socket
from contextlib import suppress
from typing import Any

from batchyard.shim import cgroups, container_exec, launch, process_container, state_dir
from batchyard.shim import run as words
from batchyard.shim.capabilities import Features
from batchyard.shim.container_exec import User
from batchyard.shim.event_loop import Loop
from batchyard.shim.run import ShimRun

_ASKED_BYTES = 1 << 20
_KILLED = 128 + signal.SIGKILL


def host(node: int, features: Features, connection: socket.socket) -> None:
    """Host the session that a client requests, until it ends."""
    message, files = state_dir.take_files(connection, _ASKED_BYTES, 3)
    if not message:
        return
    asked = json.loads(message)
    try:
        if "sockets" in asked:
            _give_sockets(node, asked["sockets"], connection)
        else:
            _Session(ShimRun(node, asked["run"]), features, asked, files, connection).host()
    except (OSError, ValueError) as failure:
        _send_reply(connection, [], error=str(failure))


class _Session:
    """One exec command and its client connection, from its start to its end."""

    def __init__(
        self, run: ShimRun, features: Features, asked: dict[str, Any], files: list[int], connection: socket.socket
    ) -> None:
        self._run = run
        self._features = features
        self._rules: bytes | None = None
        self._run.spec = state_dir.read_json(self._run.folder, "spec.json") or {}
        self._asked = asked
        self._files = files
        self._connection = connection
        self._loop = Loop()
        self._received = b""
        self._warden = 0

    def host(self) -> None:
        """Start the command and wait for its end."""
        pid = _first_process(self._run)
        container = os.pidfd_open(pid)
        group, variables = launch.pods_group(self._run), launch.variables(self._run, pid)
        user = launch.credentials(self._run, pid, is_enclosed=True)
        launch.bound(self._run.spec["limits"], cgroups.leaf(group) if launch.is_contained(self._run) else group)
        self._rules = launch.filter_of(self._run, self._features)
        ends = list(os.openpty()) if self._asked["tty"] else []
        launch.give_streams(self._run, self._features, [*ends[1:], *self._files])
        is_enclosed = container_exec.enter(pid)
        own = self._run.spec["user"]
        given = [] if self._asked["tty"] else self._files
        opened = [*ends, *self._files]
        command = process_container.ProcessCommand(
            self._asked["argv"],
            variables | ({"TERM": "xterm"} if self._asked["tty"] else {}),
            self._run.spec["workingDir"] or "/",
            (own["uid"], own["gid"]) if own and not is_enclosed else None,
            has_terminal=bool(self._asked["tty"]),
            start_error=words.exec_error,
        )
        status = self._fork(command, [*ends[1:] * 3, *given], opened, user, is_enclosed=is_enclosed)
        _send_reply(self._connection, ends[:1], started=True)
        for file in opened:
            os.close(file)
        self._loop.when_readable(self._connection.fileno(), self._end_if_gone)
        self._loop.when_readable(container, self._end)
        self._loop.when_readable(status, lambda: self._hear(status))
        self._loop.run()
        self._reap()

    def _fork(
        self,
        command: process_container.ProcessCommand,
        standard: list[int],
        opened: list[int],
        user: User | None,
        *,
        is_enclosed: bool,
    ) -> int:
        """Fork the command's warden with its standard streams; return the pipe with its status lines."""
        status, status_writer = os.pipe2(os.O_CLOEXEC)
        self._warden = os.fork()
        if self._warden == 0:
            self._connection.close()
            signal.set_wakeup_fd(-1)
            try:
                for target, source in enumerate(standard):
                    os.dup2(source, target)
                for file in opened:
                    os.close(file)
                if user:
                    container_exec.become(user)
                if is_enclosed:
                    container_exec.confine(self._rules)
                process_container.warden(command, status_writer, is_enclosed=is_enclosed)
            finally:
                os._exit(1)
        os.close(status_writer)
        return status

    def _hear(self, status: int) -> None:
        """Forward the command's exit code or error to the client."""
        data = os.read(status, 4096)
        self._received += data
        *lines, self._received = self._received.split(b"\n")
        for line in lines:
            status_line = json.loads(line)
            if "exit-code" in status_line:
                self._over(exit_code=status_line["exit-code"])
            elif "error" in status_line:
                self._over(error=status_line["error"])
        if not data:  # the warden was killed
            self._over(exit_code=_KILLED)

    def _end_if_gone(self) -> None:
        if not self._connection.recv(1):
            self._end()

    def _end(self) -> None:
        """End the command: the client has disconnected, or the container has ended."""
        with suppress(ProcessLookupError):
            os.kill(self._warden, signal.SIGTERM)
        self._reap()
        self._over(exit_code=_KILLED)

    def _reap(self) -> None:
        with suppress(ChildProcessError):
            os.waitpid(self._warden, 0)

    def _over(self, **reply: object) -> None:
        _send_reply(self._connection, [], **reply)
        self._loop.stop()


def _first_process(run: ShimRun) -> int:
    """Return the process that holds a container's namespaces. ValueError if the container does not run."""
    state = state_dir.read_json(run.folder, "state.json") or {}
    if state.get("phase") not in {"Running", "Ready"} or not state_dir.is_locked(run.folder):
        raise ValueError(words.not_running(state.get("phase", "")))
    pid: int = state["pid"]
    return pid


def _give_sockets(node: int, path: str, connection: socket.socket) -> None:
    """Send sockets in the network namespace of a run."""
    container_exec.enter_network(_first_process(ShimRun(node, path)))
    kinds = socket.SOCK_STREAM | socket.SOCK_NONBLOCK
    with socket.socket(socket.AF_INET, kinds) as old, socket.socket(socket.AF_INET6, kinds) as new:
        _send_reply(connection, [old.fileno(), new.fileno()], sockets=2)


def _send_reply(connection: socket.socket, files: list[int], **reply: object) -> None:
    """Send a message and files to the client; ignored if it has disconnected."""
    with suppress(OSError):
        socket.send_fds(connection, [json.dumps(reply).encode()], files)
