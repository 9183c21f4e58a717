"""The locks of a rendered folder: one is held by the driver, the other also by the commands that it starts.

The commands inherit the second lock. If a driver is killed and its command survives, the next driver waits for the
command to end before it runs the same steps.
"""

import fcntl
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Event
from typing import IO, Any, Final, Self

from batchyard.cli.platform.journal import OWN_FOLDER

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
