"""One at a time in a folder: whoever drives holds one lock, and what he has started holds another.

The second is inherited by the commands that are run. So it is known when one of them outlives a driver that was killed,
and the next driver waits for it to end, rather than doing beside it what it still does.
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
    """Somebody else drives in this folder; says who."""


class Lock:
    """The locks of a rendered folder, held from `with` to its end."""

    def __init__(self, folder: Path, waiting: Callable[[str], None]) -> None:
        self._folder = folder / OWN_FOLDER
        self._waiting = waiting
        self._drive: IO[str] | None = None
        self._child: IO[str] | None = None

    @property
    def inherited(self) -> int:
        """The descriptor that commands inherit."""
        assert self._child is not None, "it is held"
        return self._child.fileno()

    def started(self, pid: int, argv: tuple[str, ...]) -> None:
        """Leave word of what runs, for whoever finds it running."""
        assert self._child is not None, "it is held"
        _leave(self._child, {"pid": pid, "command": " ".join(argv[:6])})

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._drive = (self._folder / "drive.lock").open("a+")
        if not _taken(self._drive):
            word = _word(self._drive)
            self._drive.close()
            raise BusyError(f"process {word.get('pid', '?')} drives the steps of this folder: wait until it has ended")
        _leave(self._drive, {"pid": os.getpid()})
        self._child = (self._folder / "command.lock").open("a+")
        told = False
        while not _taken(self._child):
            if not told:
                word = _word(self._child)
                self._waiting(
                    f"`{word.get('command', '?')}` of an earlier run (process {word.get('pid', '?')}) still runs: "
                    "waiting until it has ended"
                )
                told = True
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
