"""Conversations with the processes of this machine's pods: one more command in a container, or its own."""

import asyncio
import fcntl
import os
import struct
import termios
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

from batchyard.interfaces.containers import Ending, Streams, Talker
from batchyard.server.local_node.pipes import Inflow, Outflow
from batchyard.server.local_node.session_host import HostConnection

#: The socket in the node's folder at which sessions are hosted, and that in a run's folder at which one attaches.
SESSIONS: Final = "sessions"
_ATTACH: Final = "attach"
_STDIN: Final = "stdin"
_FAILED: Final = "error executing command in container: failed to exec in container: "
_NOT_ATTACHED: Final = "error attaching to container: "
_SIZE_MAX: Final = 65535


class _LocalSession:
    """What both have: files to the process, a host who says how it ends."""

    def __init__(self, host: Path, streams: Streams, talker: Talker, failed: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._talker = talker
        self._streams = streams
        #: What is said before why it failed.
        self._failed = failed
        self._inflows: dict[str, Inflow] = {}
        self._outflow: Outflow | None = None
        self._terminal: int | None = None
        self._size: tuple[int, int] | None = None
        #: What was written before there was a terminal.
        self._early: list[bytes] = []
        self._listens = True
        self._is_closed = False
        self._ending: Ending | None = None
        self._host = HostConnection(host, self._loop, self._hear, self._lost)

    def write(self, data: bytes) -> None:
        """Let the process read it."""
        if self._outflow is not None:
            self._outflow.write(data)
        elif self._streams.stdin and not self._is_closed:
            self._early.append(data)
            self._tell_wants(False)

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
        """Nobody talks to it."""
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

    def _ask(self, asked: Mapping[str, Any], given: Sequence[int]) -> None:
        """Ask the host, and give files away."""
        try:
            self._host.ask(asked, given)
        except OSError as error:
            self._end_with(Ending(failure=f"{self._failed}{error.strerror}"))
        finally:
            for file in given:
                os.close(file)

    def _output(self, name: str) -> int:
        """The end of a pipe to write an output to; what is read at the other is told."""
        reads, writes = os.pipe2(os.O_CLOEXEC)
        self._read_from(name, reads)
        return writes

    def _read_from(self, name: str, file: int) -> None:
        take = partial(self._talker.received, name)
        self._inflows[name] = Inflow(file, self._loop, take, partial(self._ended_output, name))
        self._inflows[name].listen(listens=self._listens)

    def _write_to(self, file: int) -> None:
        self._outflow = Outflow(file, self._loop, self._tell_wants)

    def _tell_wants(self, wants: bool) -> None:
        self._talker.wants_more(wants=wants)

    def _hear(self, said: Mapping[str, Any], files: Sequence[int]) -> None:
        """Take what the host says."""
        if files:
            self._take_terminal(files[0])
        if "error" in said:
            self._end_with(Ending(failure=f"{self._failed}{said['error']}"))
        elif "exit_code" in said:
            self._end_with(Ending(said["exit_code"]))

    def _take_terminal(self, terminal: int) -> None:
        self._terminal = terminal
        if self._streams.stdin:
            self._write_to(os.dup(terminal))
            self._write_early()
        if self._size is not None:
            self.resize(*self._size)

    def _write_early(self) -> None:
        """Write what could not be before."""
        early, self._early = self._early, []
        for data in early:
            self.write(data)
        self._tell_wants(True)

    def _lost(self) -> None:
        """The host says no more."""
        if self._ending is None:
            self._end_with(Ending(failure=f"{self._failed}its host was lost"))

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


class LocalCommand(_LocalSession):
    """One more command in the container of a run; `path` is the run's, relative to the node's folder."""

    def __init__(self, node: Path, path: Path, command: Sequence[str], streams: Streams, talker: Talker) -> None:
        super().__init__(node / SESSIONS, streams, talker, _FAILED)
        self._ask({"run": str(path), "argv": list(command), "tty": streams.tty}, [] if streams.tty else self._pipes())

    def end_input(self) -> None:
        """Let the command read no more; a terminal has no end."""
        if self._outflow is not None and not self._streams.tty:
            self._outflow.end()

    def _pipes(self) -> list[int]:
        """The command's ends of its standard files; a terminal comes from its host."""
        if self._streams.stdin:
            stdin, writes = os.pipe2(os.O_CLOEXEC)
            self._write_to(writes)
        else:
            stdin = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        outputs = (("stdout", self._streams.stdout), ("stderr", self._streams.stderr))
        nothing = os.O_WRONLY | os.O_CLOEXEC
        return [stdin, *(self._output(name) if has else os.open(os.devnull, nothing) for name, has in outputs)]

    def _take_terminal(self, terminal: int) -> None:
        super()._take_terminal(terminal)
        self._read_from("stdout", os.dup(terminal))


class LocalAttachment(_LocalSession):
    """The process of a run itself, from now on; `folder` is the run's.

    `has_input` says whether the container reads anything, `once` whether that ends with the first who talks to it.
    """

    def __init__(self, folder: Path, streams: Streams, talker: Talker, *, has_input: bool, once: bool) -> None:
        super().__init__(folder / _ATTACH, streams, talker, _NOT_ATTACHED)
        self._pipe = folder / _STDIN if has_input and not streams.tty else None
        self._once = once and streams.stdin and not streams.tty
        self._is_attached = False
        self._has_more = True
        names = [name for name, has in (("stdout", streams.stdout), ("stderr", streams.stderr)) if has]
        self._ask({"outputs": names}, [self._output(name) for name in names])

    def write(self, data: bytes) -> None:
        """Let the process read it, if it reads anything; once all it writes is heard."""
        if self._outflow is not None or not self._is_attached:
            super().write(data)

    def end_input(self) -> None:
        """Let the process read no more where that is its only input; else who has no more to say hears no more."""
        self._has_more = False
        if not self._is_attached:
            return
        if not self._once:
            self._end_with(Ending())
            for inflow in list(self._inflows.values()):
                inflow.close()
            self._inflows.clear()
            return
        self._once = False
        if self._outflow is not None:
            self._outflow.end()
        self._host.say({"end_input": True})

    def close(self) -> None:
        """Nobody talks to it; where it was told to read once only, nobody will."""
        if self._once and not self._is_closed:
            self._host.say({"end_input": True})
        super().close()

    def _hear(self, said: Mapping[str, Any], files: Sequence[int]) -> None:
        """It is attached: now it may be talked to."""
        self._is_attached = True
        if self._pipe is not None and self._streams.stdin:
            with suppress(OSError):  # nobody reads it any more
                self._write_to(os.open(self._pipe, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC))
        super()._hear(said, files)
        self._write_early()
        if not self._has_more:
            self.end_input()

    def _lost(self) -> None:
        """The container has ended."""
        self._end_with(Ending())


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
