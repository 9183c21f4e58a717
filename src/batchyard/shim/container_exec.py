"""Execution of commands in a running container, for probes, lifecycle hooks and exec sessions."""

import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple, NoReturn, TypeAlias

from batchyard.shim import linux, run
from batchyard.shim.isolation import cgroups
from batchyard.shim.isolation.cgroups import CgroupPaths

_NAMESPACE_FLAGS = (
    ("mnt", linux.NEWNS),
    ("uts", linux.NEWUTS),
    ("ipc", linux.NEWIPC),
    ("net", linux.NEWNET),
    ("pid", linux.NEWPID),
    ("cgroup", linux.NEWCGROUP),
)
_NOT_STARTED_EXIT_CODE = 127


#: The uid, gid and supplementary groups of a process.
ProcessUser: TypeAlias = tuple[int, int, Sequence[int]]


class RunningContainer(NamedTuple):
    """A running container, with the settings that other processes need to run commands in it or to connect to it."""

    name: str
    #: The pid of the container's first process in the machine's pid namespace.
    pid: int
    #: Whether the container has its own namespaces; False for a plain process.
    has_own_namespaces: bool
    group: CgroupPaths
    environment: Mapping[str, str]
    folder: str
    #: The user to change to before a command runs in the container; None for no change.
    user: ProcessUser | None
    #: The container's seccomp program; None if it has none.
    seccomp_program: bytes | None
    #: A descriptor of a network namespace from which pods are reachable; None for the machine's network.
    network_fd: int | None
    address: str


def execute(argv: Sequence[str], container: RunningContainer, timeout: float | None) -> tuple[int | None, bytes]:
    """Run a command inside a container; return its exit code, and its stdout followed by its stderr.

    After `timeout` seconds (None: never), the command is killed, and the result is `(None, b"")`. If signal N ends the
    command, its exit code is 128 + N. This process cannot leave the container again. Raises OSError if it cannot enter
    the container.
    """
    cgroups.join_group(container.group)
    if container.has_own_namespaces:
        enter_container(container.pid)
    output_pipes = [os.pipe2(os.O_CLOEXEC) for _ in range(2)]
    child_pid = os.fork()
    if child_pid == 0:
        _execute_command(argv, container, output_pipes[0][1], output_pipes[1][1])
    for _, write_end in output_pipes:
        os.close(write_end)
    output_data = run.read_all([read_end for read_end, _ in output_pipes], timeout)
    if output_data is None:
        with suppress(ProcessLookupError):
            os.killpg(child_pid, signal.SIGKILL)
    exit_status = os.waitstatus_to_exitcode(os.waitpid(child_pid, 0)[1])
    if output_data is None:
        return None, b""
    return 128 - exit_status if exit_status < 0 else exit_status, b"".join(output_data)


def enter_container(pid: int) -> bool:
    """Enter the namespaces of process `pid` that differ from this process's; return whether a pid namespace is entered.

    The user namespace is entered last, because the other namespaces may belong to its parent. In the user namespace,
    this process becomes the first mapped uid and gid. It also gets an empty session keyring, and `forbid_tracing`
    applies to it.
    """
    pidfd = os.pidfd_open(pid)
    namespace_flags = [flag for name, flag in _NAMESPACE_FLAGS if _is_other_namespace(name, pid)]
    first_ids = (
        (_read_first_id(pid, "uid_map"), _read_first_id(pid, "gid_map")) if _is_other_namespace("user", pid) else None
    )
    linux.leave_session_keyring()
    linux.forbid_tracing()
    if namespace_flags:
        linux.enter_namespaces(pidfd, sum(namespace_flags))
    if first_ids:
        linux.become_user_of(pidfd, *first_ids)
    return linux.NEWPID in namespace_flags


def enter_network(pid: int) -> None:
    """Enter the network namespace of process `pid` if it differs from this process's."""
    if _is_other_namespace("net", pid):
        linux.enter_namespaces(os.pidfd_open(pid), linux.NEWNET)


def user_of(pid: int) -> ProcessUser:
    """Return the effective uid and gid and the supplementary groups of process `pid`."""
    ids_by_field: dict[str, list[int]] = {}
    with open(f"/proc/{pid}/status", encoding="utf-8") as file:
        for line in file:
            name, _, id_list_text = line.partition(":")
            if name in {"Uid", "Gid", "Groups"}:
                ids_by_field[name] = [int(id_text) for id_text in id_list_text.split()]
    return ids_by_field["Uid"][1], ids_by_field["Gid"][1], ids_by_field["Groups"]


def change_user(user: ProcessUser) -> None:
    """Make this process run permanently as another user, given as uid, gid and supplementary groups."""
    uid, gid, supplementary_gids = user
    os.setgroups(supplementary_gids)
    os.setgid(gid)
    os.setuid(uid)


def _is_other_namespace(name: str, pid: int) -> bool:
    return os.stat(f"/proc/self/ns/{name}").st_ino != os.stat(f"/proc/{pid}/ns/{name}").st_ino


def drop_privileges_and_filter(seccomp_program: bytes | None) -> None:
    """Drop all capabilities permanently, and install a seccomp program (None for no filter)."""
    linux.drop_privileges()
    if seccomp_program is not None:
        linux.install_seccomp_filter(seccomp_program)


def _read_first_id(pid: int, name: str) -> int:
    """Return the first id (as seen inside the user namespace) in `name`, the uid_map or gid_map of process `pid`."""
    with open(f"/proc/{pid}/{name}", encoding="utf-8") as file:
        return int(file.read().split()[0])


def _execute_command(argv: Sequence[str], container: RunningContainer, stdout: int, stderr: int) -> NoReturn:
    try:
        os.setsid()
        for source, target in ((os.open("/dev/null", os.O_RDONLY), 0), (stdout, 1), (stderr, 2)):
            os.dup2(source, target)
        linux.change_folder(container.folder)
        if container.user:
            change_user(container.user)
        linux.die_with_parent(signal.SIGKILL)  # Linux clears this when the process changes its user
        if container.has_own_namespaces:
            drop_privileges_and_filter(container.seccomp_program)
        linux.reset_signal_handlers()
        os.execvpe(argv[0], list(argv), dict(container.environment))
    except (OSError, IndexError) as failure:
        os.write(2, f"{failure}\n".encode())
    os._exit(_NOT_STARTED_EXIT_CODE)
