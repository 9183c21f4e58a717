"""Programs of the machine that are asked for something: what they write, and how they end, bounded in time."""

import os
import select
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from batchyard.node import clock, linux

_OUTPUT_BYTES = 1 << 20
_NOT_STARTED = 127


class Done(NamedTuple):
    """How a program ended: its exit code, None where it took too long; and the texts that it wrote."""

    code: int | None
    output: str
    errors: str


def run(argv: Sequence[str], environment: Mapping[str, str], seconds: float) -> Done:
    """Let a program run, with nothing to read, for so many seconds at most. It ends with this process."""
    outputs = [os.pipe2(os.O_CLOEXEC) for _ in range(2)]
    child = os.fork()
    if child == 0:
        try:
            linux.die_with_parent(signal.SIGKILL)
            os.setsid()
            signal.set_wakeup_fd(-1)
            linux.default_signals()
            for source, target in ((os.open("/dev/null", os.O_RDONLY), 0), (outputs[0][1], 1), (outputs[1][1], 2)):
                os.dup2(source, target)
            os.execve(argv[0], list(argv), dict(environment))
        finally:
            os._exit(_NOT_STARTED)
    for _, writes in outputs:
        os.close(writes)
    texts = read([reads for reads, _ in outputs], seconds)
    for reads, _ in outputs:
        os.close(reads)
    if texts is None:
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if texts is None:
        return Done(None, "", f"{os.path.basename(argv[0])} did not answer within {seconds:g} seconds")
    return Done(128 - status if status < 0 else status, *(text.decode(errors="replace") for text in texts))


def read(files: list[int], timeout: float | None) -> list[bytes] | None:
    """What is written to some files until all are closed; None where that takes too long."""
    end = None if timeout is None else clock.monotonic() + timeout
    texts = dict.fromkeys(files, b"")
    waiting = list(files)
    while waiting:
        ready, _, _ = select.select(waiting, [], [], None if end is None else max(0.0, end - clock.monotonic()))
        if not ready:
            return None
        for file in ready:
            data = os.read(file, 65536)
            if not data:
                waiting.remove(file)
            elif len(texts[file]) < _OUTPUT_BYTES:
                texts[file] += data
    return list(texts.values())
