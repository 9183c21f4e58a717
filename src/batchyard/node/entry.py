"""Running one more command in a container that runs, as a kubelet does for probes and hooks."""

import os
import select
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple, NoReturn

from batchyard.node import cgroups, clock, linux
from batchyard.node.cgroups import Group

_NAMESPACES = (
    ("mnt", linux.NEWNS),
    ("uts", linux.NEWUTS),
    ("ipc", linux.NEWIPC),
    ("net", linux.NEWNET),
    ("pid", linux.NEWPID),
)
_OUTPUT_BYTES = 1 << 20
_NOT_STARTED = 127


class Container(NamedTuple):
    """A container that runs: what is to be known of it to enter it, or to reach it."""

    name: str
    #: Its first process, as the machine sees it.
    pid: int
    #: Whether it has namespaces of its own, or is a plain process.
    is_wrapped: bool
    group: Group
    environment: Mapping[str, str]
    folder: str
    user: tuple[int, int] | None
    #: Where the network of pods is seen from, held open; None for the machine's own.
    network: int | None
    address: str


def execute(argv: Sequence[str], container: Container, timeout: float | None) -> tuple[int | None, bytes]:
    """The exit code and the output of a command in a container; None for the code where it took too long.

    Of outputs the standard one comes first. This process cannot leave the container again. OSError where it cannot be
    entered.
    """
    cgroups.join(container.group)
    if container.is_wrapped:
        enter(container.pid)
    outputs = [os.pipe2(os.O_CLOEXEC) for _ in range(2)]
    child = os.fork()
    if child == 0:
        _become(argv, container, outputs[0][1], outputs[1][1])
    for _, writes in outputs:
        os.close(writes)
    texts = _read([reads for reads, _ in outputs], timeout)
    if texts is None:
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if texts is None:
        return None, b""
    return 128 - status if status < 0 else status, b"".join(texts)


def enter(pid: int) -> bool:
    """Enter all namespaces of a process that are others than one's own; whether that encloses what is forked now.

    Its user namespace comes last, for the others may belong to one around it.
    """
    process = os.pidfd_open(pid)
    others = [flag for name, flag in _NAMESPACES if _differs(name, pid)]
    is_of_another = _differs("user", pid)
    if others:
        linux.enter(process, sum(others))
    if is_of_another:
        with suppress(PermissionError):
            os.setgroups([])
        linux.enter(process, linux.NEWUSER)
    return linux.NEWPID in others


def enter_network(pid: int) -> None:
    """Enter the network namespace of a process, where it is another than one's own."""
    if _differs("net", pid):
        linux.enter(os.pidfd_open(pid), linux.NEWNET)


def _differs(name: str, pid: int) -> bool:
    return os.stat(f"/proc/self/ns/{name}").st_ino != os.stat(f"/proc/{pid}/ns/{name}").st_ino


def _become(argv: Sequence[str], container: Container, stdout: int, stderr: int) -> NoReturn:
    """Become the command."""
    try:
        linux.die_with_parent(signal.SIGKILL)
        os.setsid()
        for source, target in ((os.open("/dev/null", os.O_RDONLY), 0), (stdout, 1), (stderr, 2)):
            os.dup2(source, target)
        os.chdir(container.folder)
        if not container.is_wrapped and container.user:
            os.setgroups([])
            os.setgid(container.user[1])
            os.setuid(container.user[0])
        if container.is_wrapped:
            linux.drop_privileges()
        linux.default_signals()
        os.execvpe(argv[0], list(argv), dict(container.environment))
    except (OSError, IndexError) as failure:
        os.write(2, f"{failure}\n".encode())
    os._exit(_NOT_STARTED)


def _read(files: list[int], timeout: float | None) -> list[bytes] | None:
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
