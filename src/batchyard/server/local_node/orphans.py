"""Termination of the local node's pods that keep running after their platform has exited."""

import os
import select
import signal
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from batchyard.api.meta import Key, Obj, key_of
from batchyard.interfaces.containers import SANDBOX
from batchyard.kubelet.local.runs import EXITED
from batchyard.server.clocks.wall import wall_clock
from batchyard.server.local_node.node import FOLDER
from batchyard.server.local_node.run_dirs import RunFolders
from batchyard.server.local_node.spawner_client import is_kept, is_locked

#: The grace period of containers. Source: the default of a pod's own grace period.
GRACE: Final = 30  # seconds
#: Additional time after the grace period, for the shims of the containers.
_MORE: Final = 10  # seconds


class OrphanedPods:
    """The running pods of a data directory, whether or not its platform runs."""

    def __init__(self, data: Path) -> None:
        self._node = data / FOLDER
        self._folders = RunFolders(self._node) if self._node.is_dir() else None

    def pods(self) -> Sequence[str]:
        """Return the uids of the running pods, sorted."""
        return sorted({run["metadata"]["namespace"] for run in self._alive()})

    def end(self) -> bool:
        """Stop all containers, then all sandboxes, then the spawner. Return whether all containers have ended."""
        for is_sandbox in (False, True):
            keepers = [self._stop(run) for run in self._alive() if (key_of(run).name == SANDBOX) is is_sandbox]
            for keeper in keepers:
                select.select([keeper], [], [], GRACE + _MORE)
                os.close(keeper)
        if self._alive():
            return False
        self._end_spawner()
        return True

    def _end_spawner(self) -> None:
        """Terminate the spawner process, which runs as long as containers run."""
        lock = self._node / "spawner.lock"
        if not is_locked(lock):
            return
        with suppress(ProcessLookupError):
            spawner = os.pidfd_open(int(lock.read_text("ascii")))
            if is_locked(lock):  # the pid still belongs to the spawner
                signal.pidfd_send_signal(spawner, signal.SIGTERM)
                select.select([spawner], [], [], _MORE)
            os.close(spawner)

    def _alive(self) -> Sequence[Obj]:
        if self._folders is None:
            return []
        return [
            run
            for run in self._folders.found()
            if run["status"] and run["status"]["phase"] != EXITED and is_kept(self._path(key_of(run)))
        ]

    def _stop(self, run: Obj) -> int:
        """Request the stop of a run. Return a pidfd of its shim, the process that supervises it."""
        assert self._folders is not None, "the folder of the node must exist"
        grace = 0 if key_of(run).name == SANDBOX else GRACE
        keeper = os.pidfd_open(run["status"]["keeper"])
        self._folders.stop({**run, "stop": {"at": wall_clock(), "grace": grace, "why": "the platform ends"}})
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(keeper, signal.SIGTERM)
        return keeper

    def _path(self, key: Key) -> Path:
        assert self._folders is not None, "the folder of the node must exist"
        return self._node / self._folders.path(key)
