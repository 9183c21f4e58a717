"""Programs that serve HTTP on the loopback: started, waited for until they answer, ended; and what is known of them."""

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

#: How long a program may take until it answers, and until it ends.
ANSWERS_WITHIN: Final = 60  # seconds
ENDS_WITHIN: Final = 30  # seconds
_LOOKS_EVERY: Final = 0.1  # seconds
_TAIL: Final = 4  # lines of a log


class ProgramError(Exception):
    """A program does not run as it should; the text says why and what to do."""


class Program(NamedTuple):
    """What is started."""

    #: Its name for people.
    name: str
    command: Sequence[str]
    port: int
    #: The path that answers 200 when the program is ready.
    ready: str
    log: Path

    @property
    def url(self) -> str:
        """Where it listens."""
        return url_of(self.port)


class Served(NamedTuple):
    """A process that answers."""

    pid: int
    url: str
    #: When the process began, as the kernel counts.
    began: str


def url_of(port: int) -> str:
    """The URL of a port of the loopback."""
    return f"http://{LOOPBACK}:{port}"


def free_port(port: int, option: str) -> int:
    """The port, or for 0 one that is free; ProgramError if something else listens there."""
    try:
        with socket.create_server((LOOPBACK, port)) as listening:
            found: int = listening.getsockname()[1]
            return found
    except OSError as error:
        problem = f"port {port} of {LOOPBACK} cannot be used: {error.strerror}"
        raise ProgramError(f"{problem}; choose another with {option} N, or 0 for any that is free") from error


def start(program: Program) -> "subprocess.Popen[bytes]":
    """Start it in a session of its own, so that Ctrl-C reaches this command alone."""
    with program.log.open("wb") as log:
        return subprocess.Popen(  # noqa: S603 - Prometheus or Grafana, with words of ours
            program.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )


def wait_until_ready(program: Program, process: "subprocess.Popen[bytes]") -> None:
    """Wait until it answers; ProgramError if it does not in time, or ends."""
    for _ in range(round(ANSWERS_WITHIN / _LOOKS_EVERY)):
        if _is_ready(program):
            return
        try:
            process.wait(_LOOKS_EVERY)
        except subprocess.TimeoutExpired:
            continue
        raise ended_error(program, process.returncode)
    raise ProgramError(f"{program.name} does not answer within {ANSWERS_WITHIN} s; see {program.log}")


def ended_error(program: Program, code: int) -> ProgramError:
    """A program has ended that was to serve."""
    lines = program.log.read_text("utf-8", "replace").splitlines()[-_TAIL:]
    told = "".join(f"\n  {line}" for line in lines)
    return ProgramError(f"{program.name} ended with code {code}; see {program.log}{told}")


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
    """Ask a process to end, and wait; kill it if it does not."""
    process.terminate()
    try:
        process.wait(ENDS_WITHIN)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def served(process: "subprocess.Popen[bytes]", program: Program) -> Served:
    """A process that answers."""
    return Served(process.pid, program.url, beginning_of(process.pid))


# --- across commands ---


def write_served(state: Path, found: Mapping[str, Served]) -> None:
    """Write which processes run, by their names."""
    write_private(state, json.dumps({name: each._asdict() for name, each in found.items()}).encode())


def served_in(state: Path) -> Mapping[str, Served]:
    """The processes that run, by their names; those that ended are left out."""
    try:
        rows: Mapping[str, Mapping[str, Any]] = json.loads(state.read_text("utf-8"))
        found = {name: Served(int(row["pid"]), str(row["url"]), str(row["began"])) for name, row in rows.items()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return {}
    return {name: each for name, each in found.items() if not _has_ended(each, 0)}


def end_served(each: Served) -> bool:
    """Ask a process that another command started to end; whether it has ended in time."""
    with suppress(ProcessLookupError):
        os.kill(each.pid, signal.SIGTERM)
    return _has_ended(each, ENDS_WITHIN)


def _has_ended(each: Served, within: float) -> bool:
    """Whether a process has ended, or ends within so many seconds; one that nobody waits for (a zombie) has too."""
    try:
        handle = os.pidfd_open(each.pid)
    except (ProcessLookupError, OverflowError, ValueError):
        return True
    try:
        is_another = beginning_of(each.pid) != each.began
        return is_another or bool(select.select([handle], [], [], within)[0])
    finally:
        os.close(handle)
