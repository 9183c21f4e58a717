"""An interactive program on a pseudo-terminal, into which a test types as a user does."""

import os
import pty
import select
import signal
from collections.abc import Mapping
from typing import Self

#: The maximum time without output before a test fails, in seconds.
_SILENCE_MAX = 30


class Terminal:
    """A running program; a test reads and writes its terminal."""

    def __init__(self, command: list[str], environment: Mapping[str, str]) -> None:
        self._pid, self._descriptor = pty.fork()
        if not self._pid:
            os.execvpe(command[0], command, environment)
        self._unread = ""

    def send(self, text: str) -> None:
        """Type a text."""
        os.write(self._descriptor, text.encode())

    def read_until(self, expected: str) -> str:
        """Return the output of the program up to and including a text."""
        while expected not in self._unread:
            readable, _, _ = select.select([self._descriptor], [], [], _SILENCE_MAX)
            assert readable, f"{expected!r} was not printed: {self._unread!r}"
            self._unread += os.read(self._descriptor, 1 << 16).decode("utf-8", "replace")
        printed, _, self._unread = self._unread.partition(expected)
        return printed + expected

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        os.close(self._descriptor)
