"""Conversations with the processes of this machine's pods: a command beside a container's own."""

import asyncio
import fcntl
import os
import struct
import termios
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from batchyard.live.file_flow import Inflow, Outflow
from batchyard.live.host_connection import HostConnection
from batchyard.ports.containers import Ending, Streams, Talker

_FAILED: Final = "error executing command in container: failed to exec in container: "
_SIZE_MAX: Final = 65535


class LocalCommand:
    """One more command in the container of a run; `path` is the run's, relative to the node's folder."""

    def __init__(self, node: Path, path: Path, command: Sequence[str], streams: Streams, talker: Talker) -> None:
        self._loop = asyncio.get_running_loop()
        self._talker = talker
        self._streams = streams
        self._inflows: dict[str, Inflow] = {}
        self._outflow: Outflow | None = None
        self._terminal: int | None = None
        self._size: tuple[int, int] | None = None
        #: What was written before there was a terminal.
        self._early: list[bytes] = []
        self._listens = True
        self._is_closed = False
        self._ending: Ending | None = None
        self._host = HostConnection(node, self._loop, self._hear, self._lost)
        asked = {"run": str(path), "argv": list(command), "tty": streams.tty}
        given = self._pipes()
        try:
            self._host.ask(asked, given)
        except OSError as error:
            self._end_with(Ending(failure=f"{_FAILED}{error.strerror}"))
        finally:
            for file in given:
                os.close(file)

    def write(self, data: bytes) -> None:
        """Let the command read it."""
        if self._outflow is not None:
            self._outflow.write(data)
        elif self._streams.stdin:
            self._early.append(data)
            self._tell_wants(False)

    def end_input(self) -> None:
        """Let the command read no more; a terminal has no end."""
        if self._outflow is not None and not self._streams.tty:
            self._outflow.end()

    def listen(self, *, listens: bool) -> None:
        """Whether its outputs are read."""
        self._listens = listens
        for inflow in self._inflows.values():
            inflow.listen(listens=listens)

    def resize(self, columns: int, rows: int) -> None:
        """The terminal has another size; nothing is no size."""
        if 0 < columns <= _SIZE_MAX and 0 < rows <= _SIZE_MAX:
            self._size = (columns, rows)
            if self._terminal is not None:
                fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def close(self) -> None:
        """End the command: nobody talks to it."""
        self._is_closed = True
        self._host.close()
        for inflow in list(self._inflows.values()):
            inflow.close()
        self._inflows.clear()
        if self._outflow is not None:
            self._outflow.close()
        if self._terminal is not None:
            os.close(self._terminal)
            self._terminal = None

    def _pipes(self) -> list[int]:
        """The command's ends of its standard files; a terminal comes from its host."""
        if self._streams.tty:
            return []
        given = []
        if self._streams.stdin:
            reads, writes = os.pipe2(os.O_CLOEXEC)
            self._outflow = Outflow(writes, self._loop, self._tell_wants)
            given.append(reads)
        else:
            given.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        for name, is_wanted in (("stdout", self._streams.stdout), ("stderr", self._streams.stderr)):
            if is_wanted:
                reads, writes = os.pipe2(os.O_CLOEXEC)
                self._read_from(name, reads)
                given.append(writes)
            else:
                given.append(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC))
        return given

    def _read_from(self, name: str, file: int) -> None:
        take = partial(self._talker.received, name)
        self._inflows[name] = Inflow(file, self._loop, take, partial(self._ended_output, name))

    def _tell_wants(self, wants: bool) -> None:
        self._talker.wants_more(wants=wants)

    def _hear(self, said: Mapping[str, Any], files: Sequence[int]) -> None:
        """Take what the host says."""
        if files:
            self._take_terminal(files[0])
        if "error" in said:
            self._end_with(Ending(failure=f"{_FAILED}{said['error']}"))
        elif "exit_code" in said:
            self._end_with(Ending(said["exit_code"]))

    def _take_terminal(self, terminal: int) -> None:
        self._terminal = os.dup(terminal)
        if self._streams.stdin:
            written = os.dup(terminal)
            self._outflow = Outflow(written, self._loop, self._tell_wants)
            self._tell_wants(True)
            for data in self._early:
                self._outflow.write(data)
            self._early.clear()
        self._read_from("stdout", terminal)
        self._inflows["stdout"].listen(listens=self._listens)
        if self._size is not None:
            self.resize(*self._size)

    def _lost(self) -> None:
        if self._ending is None:
            self._end_with(Ending(failure=f"{_FAILED}its host was lost"))

    def _end_with(self, ending: Ending) -> None:
        """It is over, once its outputs have been read to their ends."""
        if self._ending is None:
            self._ending = ending
            self._loop.call_soon(self._end_if_over)

    def _ended_output(self, name: str) -> None:
        self._inflows.pop(name, None)
        self._end_if_over()

    def _end_if_over(self) -> None:
        if self._ending is not None and not self._is_closed and not self._inflows:
            self.close()
            self._talker.ended(self._ending)


class NoSession:
    """A conversation that ends before it begins."""

    def __init__(self, loop: asyncio.AbstractEventLoop, talker: Talker, why: str) -> None:
        self._end = loop.call_soon(talker.ended, Ending(failure=why))

    def write(self, data: bytes) -> None:
        """Nobody hears it."""

    def end_input(self) -> None:
        """There is none."""

    def listen(self, *, listens: bool) -> None:
        """There is nothing to be heard."""

    def resize(self, columns: int, rows: int) -> None:
        """There is no terminal."""

    def close(self) -> None:
        """Nobody needs to know why."""
        self._end.cancel()
