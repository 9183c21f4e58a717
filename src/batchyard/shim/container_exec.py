"""Running one more command in a container that runs, as a kubelet does for probes and hooks."""

import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple, NoReturn, TypeAlias

from batchyard.shim import cgroups, linux, run
from batchyard.shim.cgroups import Group

_NAMESPACES = (
    ("mnt", linux.NEWNS),
    ("uts", linux.NEWUTS),
    ("ipc", linux.NEWIPC),
    ("net", linux.NEWNET),
    ("pid", linux.NEWPID),
    ("cgroup", linux.NEWCGROUP),
)
_NOT_STARTED = 127


#: Uid, gid and groups.
User: TypeAlias = tuple[int, int, Sequence[int]]


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
    #: Who a command becomes that enters it: uid, gid and groups; None where who enters is he already.
    user: User | None
    #: The filter of its system calls, if it has one.
    rules: bytes | None
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
    texts = run.read([reads for reads, _ in outputs], timeout)
    if texts is None:
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if texts is None:
        return None, b""
    return 128 - status if status < 0 else status, b"".join(texts)


def enter(pid: int) -> bool:
    """Enter all namespaces of a process that are others than one's own; whether that encloses what is forked now.

    Its user namespace comes last, for the others may belong to one around it. This process becomes its one user.
    """
    process = os.pidfd_open(pid)
    others = [flag for name, flag in _NAMESPACES if _differs(name, pid)]
    users = (_first_id(pid, "uid_map"), _first_id(pid, "gid_map")) if _differs("user", pid) else None
    linux.leave_session_keyring()
    linux.hide()
    if others:
        linux.enter(process, sum(others))
    if users:
        linux.become_user_of(process, *users)
    return linux.NEWPID in others


def enter_network(pid: int) -> None:
    """Enter the network namespace of a process, where it is another than one's own."""
    if _differs("net", pid):
        linux.enter(os.pidfd_open(pid), linux.NEWNET)


def user_of(pid: int) -> User:
    """As whom a process runs: uid, gid and groups."""
    found: dict[str, list[int]] = {}
    with open(f"/proc/{pid}/status", encoding="utf-8") as file:
        for line in file:
            name, _, words = line.partition(":")
            if name in {"Uid", "Gid", "Groups"}:
                found[name] = [int(word) for word in words.split()]
    return found["Uid"][1], found["Gid"][1], found["Groups"]


def become(user: User) -> None:
    """Be somebody else, for ever."""
    uid, gid, groups = user
    os.setgroups(groups)
    os.setgid(gid)
    os.setuid(uid)


def _differs(name: str, pid: int) -> bool:
    return os.stat(f"/proc/self/ns/{name}").st_ino != os.stat(f"/proc/{pid}/ns/{name}").st_ino


def confine(rules: bytes | None) -> None:
    """Have no capabilities, get none, and make the system calls alone that a filter lets through."""
    linux.drop_privileges()
    if rules is not None:
        linux.filter_calls(rules)


def _first_id(pid: int, name: str) -> int:
    """Return the first id that a process's user namespace has, as it looks from inside."""
    with open(f"/proc/{pid}/{name}", encoding="utf-8") as file:
        return int(file.read().split()[0])


def _become(argv: Sequence[str], container: Container, stdout: int, stderr: int) -> NoReturn:
    """Become the command."""
    try:
        os.setsid()
        for source, target in ((os.open("/dev/null", os.O_RDONLY), 0), (stdout, 1), (stderr, 2)):
            os.dup2(source, target)
        linux.enter_folder(container.folder)
        if container.user:
            become(container.user)
        linux.die_with_parent(signal.SIGKILL)  # it is forgotten when a process changes its user
        if container.is_wrapped:
            confine(container.rules)
        linux.default_signals()
        os.execvpe(argv[0], list(argv), dict(container.environment))
    except (OSError, IndexError) as failure:
        os.write(2, f"{failure}\n".encode())
    os._exit(_NOT_STARTED)
