"""Client of the spawner, the process that starts a shim (supervisor process) for each container run.

The client starts a spawner if none is running.
"""

import asyncio
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

_READY_TIMEOUT: Final = 20.0  # seconds
_POLL_INTERVAL: Final = 0.01  # seconds
_SPAWNER_MODULE: Final = "batchyard.shim.spawner"


class SpawnerError(Exception):
    """The spawner, the process that starts containers, could not be started. The message contains the remedy."""


class SpawnerClient:
    """A connection to the spawner process. If none is running, creating the connection starts it.

    Raises SpawnerError if the process cannot be started. If the process exits later, a new one is started and
    `on_restart` is called.
    """

    def __init__(self, node: Path, loop: asyncio.AbstractEventLoop, on_restart: Callable[[], None]) -> None:
        self._node = node
        self._loop = loop
        self._on_restart = on_restart
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._node_fd = os.open(node, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._pidfd = self._ensure_spawner()

    @property
    def features(self) -> Mapping[str, Any]:
        """The isolation features of this machine, as detected by the spawner process at its start."""
        feature_document: Mapping[str, Any] = json.loads((self._node / "features.json").read_bytes())
        return feature_document

    def request_shim(self, path: Path) -> None:
        """Request a shim for the container run in this folder; kill an unreachable spawner, so that it is replaced."""
        try:
            self._socket.sendto(os.fsencode(path), f"/proc/self/fd/{self._node_fd}/spawner")
        except (ConnectionRefusedError, FileNotFoundError):
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def close(self, *, is_needed: bool) -> None:
        """Disconnect from the spawner process; terminate it unless containers still need it."""
        self._loop.remove_reader(self._pidfd)
        if not is_needed:
            signal.pidfd_send_signal(self._pidfd, signal.SIGTERM)
        os.close(self._pidfd)
        os.close(self._node_fd)
        self._socket.close()

    def _ensure_spawner(self) -> int:
        if not is_locked(self._node / "spawner.lock"):
            (self._node / "features.json").unlink(missing_ok=True)
            with (self._node / "spawner.log").open("ab") as log:
                spawner_process = subprocess.Popen(  # noqa: S603 - a fixed command
                    [sys.executable, "-I", "-m", _SPAWNER_MODULE, str(self._node)],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            self._await_spawner(spawner_process)
        spawner_pidfd = os.pidfd_open(int((self._node / "spawner.lock").read_text("ascii")))
        self._loop.add_reader(spawner_pidfd, self._process_exit)
        return spawner_pidfd

    def _await_spawner(self, process: "subprocess.Popen[bytes]") -> None:
        for _ in range(int(_READY_TIMEOUT / _POLL_INTERVAL)):
            if (self._node / "features.json").exists():
                return
            try:
                process.wait(_POLL_INTERVAL)
            except subprocess.TimeoutExpired:
                continue
            break
        remedy = f"read the cause in {self._node / 'spawner.log'}, correct it, and start the platform again"
        raise SpawnerError(f"the spawner, the process that starts containers, did not start; {remedy}")

    def _process_exit(self) -> None:
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._pidfd = self._ensure_spawner()
        self._on_restart()


def is_supervised(run: Path) -> bool:
    """Return whether a running shim process supervises the container run in this folder."""
    return is_locked(run / "lock")


def is_locked(path: Path) -> bool:
    """Return whether another process holds an exclusive lock (flock) on a file; False if the file does not exist."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False
