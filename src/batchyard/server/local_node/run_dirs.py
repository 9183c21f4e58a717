"""Folders of container runs on disk: the platform writes the specs of runs there, and their shims write the states.

A run is one start of a container, the sandbox of a pod, or an image pull (batchyard.interfaces.containers). Layout
below the node's folder: `pods/UID/sandbox`, `pods/UID/runs/CONTAINER/N`, `pods/UID/images/CONTAINER/N`,
`pods/UID/logs/CONTAINER/N.log`.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from batchyard.api.meta import Key, Obj, key_of
from batchyard.base.instant import SECOND, Duration, Instant
from batchyard.interfaces.containers import IMAGE_PULLS, RUN, SANDBOX
from batchyard.kubelet.local.runs import API_VERSION
from batchyard.server.platform.data_dir import write_private

_PODS_FOLDER: Final = "pods"
_RUNS_FOLDER: Final = "runs"
_LOGS_FOLDER: Final = "logs"
VOLUMES_FOLDER: Final = "volumes"
#: The folder of the node that has a folder for each volume of a PersistentVolumeClaim.
CLAIMS_FOLDER: Final = "claims"
_TRASH_FOLDER: Final = "trash"
SPEC_FILE: Final = "spec.json"
RUN_STATE_FILE: Final = "state.json"
STOP_REQUEST_FILE: Final = "stop.json"
CLAIM_FILE: Final = "claimed"


class RunFolders:
    """The folders of this machine's container runs: starts of containers, sandboxes of pods, and image pulls."""

    def __init__(self, node: Path) -> None:
        self._node = self.node = node
        for name in (_PODS_FOLDER, _TRASH_FOLDER):
            (node / name).mkdir(mode=0o700, parents=True, exist_ok=True)
        #: The highest number in the trash folder.
        self._last_trash_number = max((int(path.name) for path in self.trashed_paths()), default=0)

    def path(self, key: Key) -> Path:
        """Return the path of a container run's folder, relative to the folder of the node."""
        pod = Path(_PODS_FOLDER, key.namespace)
        return pod / key.name if key.name == SANDBOX or _is_image_pull(key) else pod / _RUNS_FOLDER / key.name

    def key(self, path: Path) -> Key:
        """Return the key of a container run, given the path of its folder relative to the folder of the node."""
        path_parts = path.parts
        return Key(RUN, path_parts[1], "/".join(path_parts[3:] if path_parts[2] == _RUNS_FOLDER else path_parts[2:]))

    def log_path(self, key: Key) -> Path:
        """Return the path of the log file of a container run."""
        return self._node / _PODS_FOLDER / key.namespace / _LOGS_FOLDER / f"{key.name}.log"

    def pod_folder(self, uid: str) -> Path:
        """Return the folder of the pod with this uid."""
        return self._node / _PODS_FOLDER / uid

    def all_runs(self) -> Iterator[Obj]:
        """Read and yield all container runs: for each pod its sandbox, then its image pulls, then its container starts.

        Image pulls and container starts are ordered by container and number.
        """
        for pod in sorted((self._node / _PODS_FOLDER).iterdir()):
            run_paths = [path for name in (_RUNS_FOLDER, IMAGE_PULLS) for path in (pod / name).glob("*/*")]
            ordered_run_paths = sorted(run_paths, key=lambda path: (path.parent, int(path.name)))
            for path in (pod / SANDBOX, *ordered_run_paths):
                if (path / SPEC_FILE).exists():
                    yield self.read(self.key(path.relative_to(self._node)))

    def read(self, key: Key) -> Obj:
        """Read a container run from its folder, as an object with spec, status, and a stop request if there is one."""
        path = self._node / self.path(key)
        run: dict[str, Any] = {
            "apiVersion": API_VERSION,
            "kind": "Run",
            "metadata": {"namespace": key.namespace, "name": key.name},
            "spec": _read_json(path / SPEC_FILE),
            "status": self.state(key),
        }
        stop_request = _read_json(path / STOP_REQUEST_FILE)
        return {**run, "stop": stop_request} if stop_request else run

    def is_claimed(self, path: Path) -> bool:
        """Return whether a shim (supervisor process) has taken charge of the container run in this folder.

        `path` is relative to the folder of the node.
        """
        return (self._node / path / CLAIM_FILE).exists()

    def state(self, key: Key) -> Mapping[str, Any]:
        """Read the state of a container run from its folder; empty until its shim has written one."""
        return _read_json(self._node / self.path(key) / RUN_STATE_FILE)

    def create(self, run: Obj, spec: Mapping[str, Any]) -> None:
        """Create the folder of a new run with its spec and, for a container start, the folder of its log."""
        path = self._node / self.path(key_of(run))
        path.mkdir(mode=0o700, parents=True)
        if path.name != SANDBOX and not _is_image_pull(key_of(run)):
            self.log_path(key_of(run)).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private(path / SPEC_FILE, json.dumps(spec).encode())

    def request_stop(self, run: Obj) -> None:
        """Write the stop request of a container run into its folder, where the run's shim reads it."""
        write_private(self._node / self.path(key_of(run)) / STOP_REQUEST_FILE, json.dumps(run["stop"]).encode())

    def move_to_trash(self, key: Key) -> Path:
        """Move the folder of a run (for a sandbox, its pod's) to the trash and delete its logs. Return the new path."""
        if key.name == SANDBOX:
            return self._move_to_trash(self.pod_folder(key.namespace))
        log = self.log_path(key)
        for log_file in () if _is_image_pull(key) else log.parent.glob(f"{log.name}*"):
            log_file.unlink()
        return self._move_to_trash(self._node / self.path(key))

    def move_sandbox_to_trash(self, key: Key) -> Path:
        """Move the folder of a pod's sandbox, but not its parent folder, to the trash folder. Return the new path."""
        return self._move_to_trash(self._node / self.path(key))

    def trashed_paths(self) -> Iterator[Path]:
        """Yield the paths in the trash folder, which are to be deleted."""
        return (self._node / _TRASH_FOLDER).iterdir()

    def _move_to_trash(self, path: Path) -> Path:
        self._last_trash_number += 1
        trash_path = self._node / _TRASH_FOLDER / str(self._last_trash_number)
        if path.exists():
            path.rename(trash_path)
        return trash_path


def _is_image_pull(key: Key) -> bool:
    return key.name.count("/") > 1


# Deletion of folders that pods have filled.

_OPEN_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OWNER_MODE: Final = 0o700


def delete_folder(path: Path) -> None:
    """Delete a folder and its content, however deep, without following links and ignoring errors.

    Folders in it move to its top before they are emptied, so that at most a few files are open at once.
    """
    with suppress(OSError):
        top_fd = os.open(path, _OPEN_FOLDER)
        try:
            while _delete_entries(top_fd, top_fd):
                pass
        finally:
            os.close(top_fd)
        path.rmdir()


def _delete_entries(folder_fd: int, top_fd: int) -> bool:
    """Delete the entries of the top folder; of another folder, delete the files and move the folders to the top.

    Return whether an entry was deleted or moved.
    """
    is_changed = False
    with os.scandir(folder_fd) as entries:
        for entry in entries:
            with suppress(OSError):
                if not entry.is_dir(follow_symlinks=False):
                    os.unlink(entry.name, dir_fd=folder_fd)
                elif folder_fd != top_fd:
                    os.close(_open_writable(entry.name, folder_fd))
                    os.rename(entry.name, f"deleted-{entry.inode()}", src_dir_fd=folder_fd, dst_dir_fd=top_fd)
                else:
                    is_changed |= _delete_top_folder(entry.name, top_fd)
                    continue
                is_changed = True
    return is_changed


def _delete_top_folder(name: str, top_fd: int) -> bool:
    is_changed = False
    folder_fd = _open_writable(name, top_fd)
    try:
        is_changed = _delete_entries(folder_fd, top_fd)
    finally:
        os.close(folder_fd)
    with suppress(OSError):
        os.rmdir(name, dir_fd=top_fd)
        return True
    return is_changed


def _open_writable(name: str, parent_fd: int) -> int:
    """Open a folder whose entries can be deleted, if necessary with another mode; return its descriptor."""
    path_fd = os.open(name, _OPEN_FOLDER | os.O_PATH, dir_fd=parent_fd)
    try:
        if os.fstat(path_fd).st_mode & _OWNER_MODE != _OWNER_MODE:
            with suppress(OSError):  # another user may own it
                Path(f"/proc/self/fd/{path_fd}").chmod(_OWNER_MODE)
        return os.open(".", _OPEN_FOLDER, dir_fd=path_fd)
    finally:
        os.close(path_fd)


def _read_json(path: Path) -> Mapping[str, Any]:
    try:
        json_document: Mapping[str, Any] = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    return json_document


# Conversion between the platform's time and the machine's time, which the node's programs use.
#
# The platform's time may be ahead: it does not go back when the machine's clock is set back, or after it was
# accelerated.


#: The tolerated difference of the clocks.
_CLOCK_TOLERANCE: Final = 2 * SECOND
#: Maximum cached conversions, so that a time keeps its converted value after a clock is set.
_CACHED_CONVERSIONS_MAX: Final = 65_536
_TIME_FIELDS: Final = ("startedAt", "finishedAt")


class NodeTimes:
    """Converts between the times of this machine and of the platform, whose clock may be ahead of the machine's."""

    def __init__(self, clock: Callable[[], Instant], machine_clock: Callable[[], Instant]) -> None:
        self.clock = clock
        self._machine_clock = machine_clock
        self._clock_difference: Duration = 0
        self._convert = lru_cache(maxsize=_CACHED_CONVERSIONS_MAX)(self.to_platform_time)

    def to_platform_time(self, machine_time: Instant) -> Instant:
        """Convert an instant of this machine's clock to the platform's time."""
        return machine_time + self._current_difference()

    def to_machine_time(self, instant: Instant) -> Instant:
        """Convert an instant of the platform's time to this machine's time."""
        return instant - self._current_difference()

    def convert_state(self, raw_state: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a container run's state with its times converted from machine time to platform time."""
        state = {
            **raw_state,
            **{field: self._convert(raw_state[field]) for field in _TIME_FIELDS if raw_state.get(field)},
        }
        limit = raw_state.get("exceeded")
        return {**state, "exceeded": {**limit, "at": self._convert(limit["at"])}} if limit else state

    def convert_run(self, raw_run: Obj) -> Obj:
        """Return a container run with the times in its state and stop request converted to platform time."""
        run = {**raw_run, "status": self.convert_state(raw_run["status"])}
        return {**run, "stop": {**run["stop"], "at": self._convert(run["stop"]["at"])}} if "stop" in run else run

    def with_machine_stop_time(self, run: Obj) -> Obj:
        """Return a container run with the time of its stop request converted to machine time."""
        return {**run, "stop": {**run["stop"], "at": self.to_machine_time(run["stop"]["at"])}}

    def _current_difference(self) -> Duration:
        clock_difference = self.clock() - self._machine_clock()
        if abs(clock_difference - self._clock_difference) > _CLOCK_TOLERANCE:
            self._clock_difference = clock_difference
        return self._clock_difference
