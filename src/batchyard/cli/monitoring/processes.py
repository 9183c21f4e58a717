"""Local HTTP programs: start, readiness check and end, and a state file of those that run."""

import http.client
import json
import os
import select
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from batchyard.server.platform.data_dir import LOOPBACK, beginning_of, write_private

#: The time limits for a program to become ready, and to end.
ANSWERS_WITHIN: Final = 60  # seconds
ENDS_WITHIN: Final = 30  # seconds
_LOOKS_EVERY: Final = 0.1  # seconds
_TAIL: Final = 4  # lines of a log


class ProgramError(Exception):
    """A program failed; the message has the reason and the remedy."""


class Program(NamedTuple):
    """A program to start."""

    #: The display name.
    name: str
    command: Sequence[str]
    port: int
    #: The path that returns 200 once the program is ready.
    ready: str
    log: Path

    @property
    def url(self) -> str:
        """The URL that it serves."""
        return url_of(self.port)


class Served(NamedTuple):
    """A running process that serves HTTP."""

    pid: int
    url: str
    #: The start time of the process as recorded by the kernel.
    began: str


def url_of(port: int) -> str:
    """The URL of a loopback port."""
    return f"http://{LOOPBACK}:{port}"


def free_port(port: int, option: str) -> int:
    """The port, or a free one for 0; ProgramError if the port is in use."""
    try:
        with socket.create_server((LOOPBACK, port)) as listening:
            found: int = listening.getsockname()[1]
            return found
    except OSError as error:
        problem = f"cannot use port {port} of {LOOPBACK}: {error.strerror}"
        raise ProgramError(f"{problem}; choose another with {option} N, or 0 for any free port") from error


def start(program: Program) -> "subprocess.Popen[bytes]":
    """Start a program in its own session, so that Ctrl-C does not reach it."""
    with program.log.open("wb") as log:
        return subprocess.Popen(  # noqa: S603 - Prometheus or Grafana, with fixed arguments
            program.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )


def wait_until_ready(program: Program, process: "subprocess.Popen[bytes]") -> None:
    """Wait until a program is ready; ProgramError if it times out or ends."""
    for _ in range(round(ANSWERS_WITHIN / _LOOKS_EVERY)):
        if _is_ready(program):
            return
        try:
            process.wait(_LOOKS_EVERY)
        except subprocess.TimeoutExpired:
            continue
        raise ended_error(program, process.returncode)
    raise ProgramError(f"{program.name} was not ready within {ANSWERS_WITHIN} s; see {program.log}")


def ended_error(program: Program, code: int) -> ProgramError:
    """The error for a program that ended unexpectedly."""
    lines = program.log.read_text("utf-8", "replace").splitlines()[-_TAIL:]
    message = "".join(f"\n  {line}" for line in lines)
    return ProgramError(f"{program.name} ended with code {code}; see {program.log}{message}")


def _is_ready(program: Program) -> bool:
    connection = http.client.HTTPConnection(LOOPBACK, program.port, timeout=ENDS_WITHIN)
    try:
        connection.request("GET", program.ready)
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def end(process: "subprocess.Popen[bytes]") -> None:
    """Terminate a process; kill it if it does not end in time."""
    process.terminate()
    try:
        process.wait(ENDS_WITHIN)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def served(process: "subprocess.Popen[bytes]", program: Program) -> Served:
    """The state of a process that is ready."""
    return Served(process.pid, program.url, beginning_of(process.pid))


# --- across commands ---


def write_served(state: Path, found: Mapping[str, Served]) -> None:
    """Write the state file: the running processes by name."""
    write_private(state, json.dumps({name: each._asdict() for name, each in found.items()}).encode())


def served_in(state: Path) -> Mapping[str, Served]:
    """The processes of the state file that still run, by name."""
    try:
        rows: Mapping[str, Mapping[str, Any]] = json.loads(state.read_text("utf-8"))
        found = {name: Served(int(row["pid"]), str(row["url"]), str(row["began"])) for name, row in rows.items()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return {}
    return {name: each for name, each in found.items() if not _has_ended(each, 0)}


def end_served(each: Served) -> bool:
    """Terminate a process of another command; return whether it ended in time."""
    with suppress(ProcessLookupError):
        os.kill(each.pid, signal.SIGTERM)
    return _has_ended(each, ENDS_WITHIN)


def _has_ended(each: Served, within: float) -> bool:
    """Whether a process has ended, or ends within some seconds; a zombie counts as ended."""
    try:
        handle = os.pidfd_open(each.pid)
    except (ProcessLookupError, OverflowError, ValueError):
        return True
    try:
        is_another = beginning_of(each.pid) != each.began
        return is_another or bool(select.select([handle], [], [], within)[0])
    finally:
        os.close(handle)
