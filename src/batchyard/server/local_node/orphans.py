"""Stops the pods of this machine that keep running after the platform process has exited."""

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
from batchyard.server.local_node.node import NODE_FOLDER
from batchyard.server.local_node.run_dirs import RunFolders
from batchyard.server.local_node.spawner_client import is_locked, is_supervised

#: The grace period of containers. Source: the default of a pod's own grace period.
GRACE_SECONDS: Final = 30  # seconds
#: Additional time after the grace period, for the shims of the containers.
_SHIM_TIMEOUT: Final = 10  # seconds


class OrphanedPods:
    """The running pods of a platform's data directory, whether or not the platform process runs."""

    def __init__(self, data_dir: Path) -> None:
        self._node = data_dir / NODE_FOLDER
        self._folders = RunFolders(self._node) if self._node.is_dir() else None

    def running_pod_uids(self) -> Sequence[str]:
        """Return the uids of the running pods, sorted."""
        return sorted({run["metadata"]["namespace"] for run in self._running_runs()})

    def end(self) -> bool:
        """Stop all containers, then all pod sandboxes, then the container spawner.

        Return False, without stopping the spawner, if containers or sandboxes still run after their grace period.
        """
        for is_sandbox in (False, True):
            runs_to_stop = [run for run in self._running_runs() if (key_of(run).name == SANDBOX) is is_sandbox]
            for shim_pidfd in [self._request_stop(run) for run in runs_to_stop]:
                select.select([shim_pidfd], [], [], GRACE_SECONDS + _SHIM_TIMEOUT)
                os.close(shim_pidfd)
        if self._running_runs():
            return False
        self._end_spawner()
        return True

    def _end_spawner(self) -> None:
        """Terminate the spawner, the process that starts containers; it does not end by itself."""
        lock_path = self._node / "spawner.lock"
        if not is_locked(lock_path):
            return
        with suppress(ProcessLookupError):
            spawner_pidfd = os.pidfd_open(int(lock_path.read_text("ascii")))
            try:
                if is_locked(lock_path):  # the pid still belongs to the spawner
                    signal.pidfd_send_signal(spawner_pidfd, signal.SIGTERM)
                    select.select([spawner_pidfd], [], [], _SHIM_TIMEOUT)
            finally:
                os.close(spawner_pidfd)

    def _running_runs(self) -> Sequence[Obj]:
        if self._folders is None:
            return []
        return [
            run
            for run in self._folders.all_runs()
            if run["status"] and run["status"]["phase"] != EXITED and is_supervised(self._run_folder(key_of(run)))
        ]

    def _request_stop(self, run: Obj) -> int:
        """Request the stop of a container or pod sandbox; return a pidfd of its shim (its supervisor process)."""
        assert self._folders is not None, "the folder of the node must exist"
        grace_seconds = 0 if key_of(run).name == SANDBOX else GRACE_SECONDS
        shim_pidfd = os.pidfd_open(run["status"]["keeper"])
        stop_request = {"at": wall_clock(), "grace": grace_seconds, "why": "the platform ends"}
        self._folders.request_stop({**run, "stop": stop_request})
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(shim_pidfd, signal.SIGTERM)
        return shim_pidfd

    def _run_folder(self, key: Key) -> Path:
        assert self._folders is not None, "the folder of the node must exist"
        return self._node / self._folders.path(key)
