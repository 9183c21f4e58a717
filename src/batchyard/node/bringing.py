"""The root filesystem of an image, had of an engine: a container that is never started is exported, and removed."""

import os
import signal
from contextlib import suppress
from typing import Any

from batchyard.node import linux, unpacking
from batchyard.node.engine import Engine, last_line

#: An image may name no command, and engines make no container without one.
_COMMAND = "true"
_ERROR_BYTES = 1 << 16


def bring(engine: Engine, image: str, path: str, place: str) -> dict[str, Any]:
    """Unpack an image into a folder, for the run of that path. OSError where that fails.

    What is left where this is cut short is removed by the label of the run (`batchyard.node.sweep`).
    """
    name = engine.name(path)
    options = ["--pull", "never", "--network", "none", "--name", name, *engine.labels(path)]
    told = engine.ask("create", *options, image, _COMMAND)
    if told.code != 0:
        raise OSError(last_line(told.errors))
    try:
        return _exported(engine, name, place)
    finally:
        engine.forget(name)


def _exported(engine: Engine, name: str, place: str) -> dict[str, Any]:
    """Unpack what the engine exports of a container."""
    archive, writes = os.pipe2(os.O_CLOEXEC)
    errors = os.memfd_create("errors")
    child = os.fork()
    if child == 0:
        _become_export(engine, name, writes, errors)
    os.close(writes)
    failure: OSError | None = None
    found: dict[str, Any] = {}
    try:
        found = unpacking.unpack(archive, place)
    except OSError as wrong:
        failure = wrong
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    said = os.pread(errors, _ERROR_BYTES, 0).decode(errors="replace")
    os.close(errors)
    if code != 0 and said.strip():  # which is why the archive ended
        raise OSError(last_line(said))
    if failure is not None or code != 0:
        raise failure or OSError(f"the export of the image ended with {code}")
    return found


def _become_export(engine: Engine, name: str, stdout: int, stderr: int) -> None:
    """In a child: be the engine, exporting."""
    try:
        linux.die_with_parent(signal.SIGKILL)
        os.setsid()
        signal.set_wakeup_fd(-1)
        linux.default_signals()
        for source, target in ((os.open("/dev/null", os.O_RDONLY), 0), (stdout, 1), (stderr, 2)):
            os.dup2(source, target)
        argv = [engine.program, *engine.options, "export", name]
        os.execve(argv[0], argv, dict(engine.environment))
    finally:
        os._exit(127)
