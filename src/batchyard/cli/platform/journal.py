"""The step journal and the lock files in a rendered platform folder.

The journal has one JSON line per event of a step or run; each line is synced to disk before the next event.
"""

import fcntl
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from threading import Event
from typing import IO, Any, Final, Self

from batchyard.api.times import format_time
from batchyard.server.clocks.wall import wall_clock

#: The subfolder of the rendered folder for the journal, the locks and the logs.
OWN_FOLDER: Final = ".batchyard"
_JOURNAL_FILE: Final = "steps.jsonl"


class StepJournal:
    """The file that records which steps ran in the folder of a rendered Platform, and for which cluster."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / OWN_FOLDER / _JOURNAL_FILE

    def note(self, **fields: object) -> None:
        """Append an event with these fields and the current time; sync the file to disk."""
        line = json.dumps({"at": format_time(wall_clock()), **fields}) + "\n"
        is_new_file = not self._path.exists()
        with self._path.open("ab") as file:
            if file.tell() and not self._ends_with_newline():
                file.write(b"\n")  # an earlier write was cut off
            file.write(line.encode())
            file.flush()
            os.fsync(file.fileno())
        if is_new_file:
            _sync_folder(self._path.parent)

    def entries(self) -> Iterator[Mapping[str, Any]]:
        """Yield all complete journal entries, oldest first."""
        if not self._path.exists():
            return
        for line in self._path.read_text("utf-8", "replace").splitlines():
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if isinstance(event, dict):
                yield event

    def target(self) -> Mapping[str, Any] | None:
        """Return the journal's record of the cluster on which this folder's platform exists.

        Return None if, since the last finished `destroy`, no step has begun and no `create` has finished.
        """
        latest_target = target = None
        for entry in self.entries():
            event_and_verb = entry.get("event"), entry.get("verb")
            if event_and_verb[0] == "target":
                latest_target = entry
            elif event_and_verb[0] == "begun" or event_and_verb == ("finished", "create"):
                target = target or latest_target
            elif event_and_verb == ("finished", "destroy"):
                target = None
        return target

    def _ends_with_newline(self) -> bool:
        with self._path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read(1) == b"\n"


def _sync_folder(folder: Path) -> None:
    folder_fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(folder_fd)
    finally:
        os.close(folder_fd)


# The locks of a rendered folder: one is held by this process, the other also by the commands that it starts.
#
# The commands inherit the second lock. If this process is killed and its command survives, the next process waits for
# the command to end before it runs the same steps.


_POLL_SECONDS: Final = 0.2


class FolderBusyError(Exception):
    """Another process runs steps in the folder of a rendered Platform; the message contains its process id."""


class FolderLock:
    """Locks a rendered folder during a `with` block: against other batchyard commands, and children of killed ones."""

    def __init__(self, folder: Path, report_waiting: Callable[[str], None]) -> None:
        self._folder = folder / OWN_FOLDER
        self._report_waiting = report_waiting
        self._driver_lock: IO[str] | None = None
        self._command_lock: IO[str] | None = None

    @property
    def inherited_fd(self) -> int:
        """The file descriptor of the lock file that commands inherit, so that the lock lasts as long as they run."""
        assert self._command_lock is not None, "the folder must be locked first"
        return self._command_lock.fileno()

    def record_command(self, pid: int, argv: tuple[str, ...]) -> None:
        """Write the running command and its pid to the lock file, so that a waiting process can name the command."""
        assert self._command_lock is not None, "the folder must be locked first"
        _write_lock_holder(self._command_lock, {"pid": pid, "command": " ".join(argv[:6])})

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._driver_lock = (self._folder / "drive.lock").open("a+")
        if not _try_lock(self._driver_lock):
            holder = _read_lock_holder(self._driver_lock)
            self._driver_lock.close()
            process = f"process {holder['pid']}" if "pid" in holder else "another process"
            raise FolderBusyError(f"{self._folder.parent}: {process} is using this folder: wait until it ends")
        _write_lock_holder(self._driver_lock, {"pid": os.getpid()})
        self._command_lock = (self._folder / "command.lock").open("a+")
        is_holder_reported = False
        while not _try_lock(self._command_lock):
            if not is_holder_reported:
                holder = _read_lock_holder(self._command_lock)
                self._report_waiting(
                    f"`{holder.get('command', '?')}` of an earlier run (process {holder.get('pid', '?')}) still runs: "
                    "waiting until it ends"
                )
                is_holder_reported = True
            Event().wait(_POLL_SECONDS)
        return self

    def __exit__(self, *_: object) -> None:
        for lock_file in (self._command_lock, self._driver_lock):
            if lock_file is not None:
                lock_file.close()


def _try_lock(lock_file: IO[str]) -> bool:
    try:
        fcntl.flock(lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _write_lock_holder(lock_file: IO[str], holder: Mapping[str, object]) -> None:
    lock_file.seek(0)
    lock_file.truncate()
    lock_file.write(json.dumps(holder))
    lock_file.flush()


def _read_lock_holder(lock_file: IO[str]) -> Mapping[str, Any]:
    lock_file.seek(0)
    try:
        holder = json.loads(lock_file.read())
    except ValueError:
        return {}
    return holder if isinstance(holder, dict) else {}
