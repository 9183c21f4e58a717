"""The journal of a platform's folder: one JSON line per event, synced to disk before the next event."""

import fcntl
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from threading import Event
from typing import IO, Any, Final, Self

from batchyard.api.times import format_time
from batchyard.server.clocks.wall import wall_clock

#: The folder for our own files, below the rendered folder.
OWN_FOLDER: Final = ".batchyard"
_FILE: Final = "steps.jsonl"


class StepJournal:
    """The journal of a rendered folder."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / OWN_FOLDER / _FILE

    def note(self, **fields: object) -> None:
        """Append a line; it survives a power failure once this returns."""
        line = json.dumps({"at": format_time(wall_clock()), **fields}) + "\n"
        is_new = not self._path.exists()
        with self._path.open("ab") as file:
            if file.tell() and not self._ends_whole():
                file.write(b"\n")  # an earlier write was cut off
            file.write(line.encode())
            file.flush()
            os.fsync(file.fileno())
        if is_new:
            _sync_folder(self._path.parent)

    def entries(self) -> Iterator[Mapping[str, Any]]:
        """All complete lines, oldest first."""
        if not self._path.exists():
            return
        for line in self._path.read_text("utf-8", "replace").splitlines():
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            if isinstance(entry, dict):
                yield entry

    def target(self) -> Mapping[str, Any] | None:
        """The cluster of this folder's platform.

        None before anything was created or found complete, and after the platform was destroyed.
        """
        meant = target = None
        for entry in self.entries():
            what = entry.get("event"), entry.get("verb")
            if what[0] == "target":
                meant = entry
            elif what[0] == "begun" or what == ("finished", "create"):
                target = target or meant
            elif what == ("finished", "destroy"):
                target = None
        return target

    def _ends_whole(self) -> bool:
        with self._path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read(1) == b"\n"


def _sync_folder(folder: Path) -> None:
    held = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(held)
    finally:
        os.close(held)


# --- lock ---
#
# The locks of a rendered folder: one is held by the driver, the other also by the commands that it starts.
#
# The commands inherit the second lock. If a driver is killed and its command survives, the next driver waits for the
# command to end before it runs the same steps.


_POLL_SECONDS: Final = 0.2


class BusyError(Exception):
    """Another process drives this folder; the message names it."""


class Lock:
    """The locks of a rendered folder, held within `with`."""

    def __init__(self, folder: Path, waiting: Callable[[str], None]) -> None:
        self._folder = folder / OWN_FOLDER
        self._waiting = waiting
        self._drive: IO[str] | None = None
        self._child: IO[str] | None = None

    @property
    def inherited(self) -> int:
        """The file descriptor that commands inherit."""
        assert self._child is not None, "the lock is held"
        return self._child.fileno()

    def started(self, pid: int, argv: tuple[str, ...]) -> None:
        """Record the running command in the lock file, for the message of a waiting process."""
        assert self._child is not None, "the lock is held"
        _leave(self._child, {"pid": pid, "command": " ".join(argv[:6])})

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._drive = (self._folder / "drive.lock").open("a+")
        if not _taken(self._drive):
            word = _word(self._drive)
            self._drive.close()
            raise BusyError(f"process {word.get('pid', '?')} is running the steps of this folder: wait until it ends")
        _leave(self._drive, {"pid": os.getpid()})
        self._child = (self._folder / "command.lock").open("a+")
        reported = False
        while not _taken(self._child):
            if not reported:
                word = _word(self._child)
                self._waiting(
                    f"`{word.get('command', '?')}` of an earlier run (process {word.get('pid', '?')}) is running: "
                    "waiting for its end"
                )
                reported = True
            Event().wait(_POLL_SECONDS)
        return self

    def __exit__(self, *_: object) -> None:
        for held in (self._child, self._drive):
            if held is not None:
                held.close()


def _taken(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _leave(file: IO[str], word: Mapping[str, object]) -> None:
    file.seek(0)
    file.truncate()
    file.write(json.dumps(word))
    file.flush()


def _word(file: IO[str]) -> Mapping[str, Any]:
    file.seek(0)
    try:
        word = json.loads(file.read())
    except ValueError:
        return {}
    return word if isinstance(word, dict) else {}
