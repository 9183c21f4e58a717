"""Tries of a container's handlers, each in a child of its own, so that the keeper goes on meanwhile."""

import json
import os
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn

from batchyard.node import linux
from batchyard.node.attempts import Outcome, attempt
from batchyard.node.entry import Container
from batchyard.node.loop import Loop
from batchyard.node.run import Run

#: How much longer than its timeout a try may take to tell that it took too long.
_SLACK_SECONDS = 5.0
_LOST = Outcome("unknown", "the attempt was ended")


class Tries:
    """The tries that are under way for one run."""

    def __init__(self, run: Run, loop: Loop) -> None:
        self._run = run
        self._loop = loop
        self._children: dict[int, int] = {}

    def start(
        self,
        container: Container,
        handler: Mapping[str, Any],
        timeout: float | None,
        done: Callable[[Outcome], None],
    ) -> None:
        """Try a handler; call back with what came of it."""
        reads, writes = os.pipe2(os.O_CLOEXEC)
        child = os.fork()
        if child == 0:
            self._be(container, handler, timeout, writes)
        os.close(writes)
        self._children[reads] = child
        self._loop.when_readable(reads, partial(self._take, reads, b"", done))
        if timeout is not None:
            self._loop.after(timeout + _SLACK_SECONDS, partial(self._kill, reads, child))

    def end(self) -> None:
        """End those that are under way."""
        for reads, child in list(self._children.items()):
            self._kill(reads, child)

    def _be(self, container: Container, handler: Mapping[str, Any], timeout: float | None, writes: int) -> NoReturn:
        """In the child: try, and tell."""
        try:
            linux.die_with_parent(signal.SIGKILL)
            linux.default_signals()
            self._run.release()
            outcome = attempt(handler, container, timeout)
            os.write(writes, json.dumps(outcome).encode())
        except (OSError, ValueError, KeyError) as failure:
            os.write(writes, json.dumps(Outcome("unknown", repr(failure))).encode())
        finally:
            os._exit(0)

    def _take(self, reads: int, before: bytes, done: Callable[[Outcome], None]) -> None:
        data = os.read(reads, 65536)
        if data:
            self._loop.when_readable(reads, partial(self._take, reads, before + data, done))
            return
        self._loop.forget(reads)
        os.close(reads)
        del self._children[reads]
        done(Outcome(*json.loads(before)) if before else _LOST)

    def _kill(self, reads: int, child: int) -> None:
        if self._children.get(reads) == child:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
