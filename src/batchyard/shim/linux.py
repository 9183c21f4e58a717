"""Calls of Linux that Python 3.11 has no name for."""

import ctypes
import errno
import fcntl
import os
import signal
import struct
import termios
from contextlib import suppress

from batchyard.shim import seccomp

_LIBC = ctypes.CDLL(None, use_errno=True)

NEWNS = 0x00020000
NEWCGROUP = 0x02000000
NEWUTS = 0x04000000
NEWIPC = 0x08000000
NEWUSER = 0x10000000
NEWPID = 0x20000000
NEWNET = 0x40000000

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_CAPABILITY_VERSION = 0x20080522

_PR_SET_DUMPABLE = 4
_PR_SET_SECCOMP = 22
_SECCOMP_MODE_FILTER = 2
_JOIN_SESSION_KEYRING = 1

#: The numbers of these calls are the same on all processors.
_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442
_AT_FDCWD, _AT_EMPTY_PATH, _AT_RECURSIVE = -100, 0x1000, 0x8000
_OPEN_TREE_CLONE = 1
_MOVE_MOUNT_F_EMPTY_PATH = 0x4
_MOVE_MOUNT_T_EMPTY_PATH = 0x40
_MOUNT_ATTR_RDONLY = 0x00000001
_MOUNT_ATTR_IDMAP = 0x00100000

_MS_BIND = 0x1000
_MS_REC = 0x4000
_MS_SLAVE = 0x80000


_FILTER_STEP_BYTES = 8


class _FilterProgram(ctypes.Structure):
    """struct sock_fprog of Linux."""

    _fields_ = (("length", ctypes.c_ushort), ("steps", ctypes.c_void_p))


def adopt_orphans() -> None:
    """Be the one to whom children fall whose parents below this process have ended."""
    _checked(_LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))


def die_with_parent(number: int) -> None:
    """Be sent the signal when the process that forked this one ends."""
    _checked(_LIBC.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0))


def unshare(namespaces: int) -> None:
    """Enter new namespaces."""
    _checked(_LIBC.unshare(namespaces))


def enter(file: int, namespaces: int) -> None:
    """Enter a namespace that is held open, or those of a process that `os.pidfd_open` has opened."""
    _checked(_LIBC.setns(file, namespaces))


def mount(source: str, target: str, kind: str, options: str = "", flags: int = 0) -> None:
    """Mount a filesystem."""
    _checked(_LIBC.mount(source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), options.encode()))


def bind(source: str, target: str) -> None:
    """Show a file or a folder at another place too, with all that is mounted in it."""
    mount(source, target, "none", flags=_MS_BIND | _MS_REC)


def clone_mount(source: str) -> int:
    """Return a copy of what is mounted at a path, with all that is mounted in it, as a file. It is attached nowhere."""
    flags = _OPEN_TREE_CLONE | _AT_RECURSIVE | os.O_CLOEXEC
    return _checked(_LIBC.syscall(_OPEN_TREE, _AT_FDCWD, source.encode(), flags))


def map_owners(mount: int, user_namespace: int) -> None:
    """Show the files of a mount that is attached nowhere with the owners that a user namespace maps theirs to.

    OSError if its filesystem cannot do that (mount_setattr(2), MOUNT_ATTR_IDMAP).
    """
    attributes = struct.pack("=QQQQ", _MOUNT_ATTR_IDMAP, 0, 0, user_namespace)
    _checked(_LIBC.syscall(_MOUNT_SETATTR, mount, b"", _AT_EMPTY_PATH, attributes, ctypes.c_size_t(len(attributes))))


def attach_mount(mount: int, target: str) -> None:
    """Attach a mount at a path."""
    _checked(_LIBC.syscall(_MOVE_MOUNT, mount, b"", _AT_FDCWD, target.encode(), _MOVE_MOUNT_F_EMPTY_PATH))


def attach_mount_at(mount: int, place: int) -> None:
    """Attach a mount at a place that is held open."""
    flags = _MOVE_MOUNT_F_EMPTY_PATH | _MOVE_MOUNT_T_EMPTY_PATH
    _checked(_LIBC.syscall(_MOVE_MOUNT, mount, b"", place, b"", flags))


def make_read_only(mount: int) -> None:
    """Make a mount that is attached nowhere read-only, and all that is mounted in it."""
    attributes = struct.pack("=QQQQ", _MOUNT_ATTR_RDONLY, 0, 0, 0)
    flags = _AT_EMPTY_PATH | _AT_RECURSIVE
    _checked(_LIBC.syscall(_MOUNT_SETATTR, mount, b"", flags, attributes, ctypes.c_size_t(len(attributes))))


def enter_folder(path: str) -> None:
    """Have a folder as the working directory. OSError where it is none that this process sees below its root.

    A link of /proc to an open file leads to folders of the machine, from wherever it is followed.
    """
    os.chdir(path)
    os.getcwd()


def keep_mounts_to_oneself() -> None:
    """Let what is mounted from now on be seen in this mount namespace alone."""
    mount("none", "/", "none", flags=_MS_REC | _MS_SLAVE)


def let_anybody_serve_any_port() -> None:
    """Let processes without privileges serve low ports in this network namespace, as containerd does for pods."""
    with open("/proc/sys/net/ipv4/ip_unprivileged_port_start", "w", encoding="utf-8") as file:
        file.write("0")


def become_root_of_a_user_namespace(made: int | None) -> None:
    """Enter a user namespace, one that is held open or a new one, and be root there: outside still who one was."""
    user, group = os.geteuid(), os.getegid()
    if made is not None:
        enter(made, NEWUSER)
        unshare(NEWNS)
    else:
        unshare(NEWUSER | NEWNS)
        for name, text in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
            with open(f"/proc/self/{name}", "w", encoding="utf-8") as file:
                file.write(text)
    keep_mounts_to_oneself()


def make_user_namespace(uids: str, gids: str) -> int:
    """Return a new user namespace, held open, with these lines in its uid_map and gid_map. Root alone may do that."""
    ready, tells = os.pipe2(os.O_CLOEXEC)
    waits, ends = os.pipe2(os.O_CLOEXEC)
    child = os.fork()
    if child == 0:
        try:
            os.close(ends)
            unshare(NEWUSER)
            os.write(tells, b"1")
            os.read(waits, 1)
        finally:
            os._exit(0)
    os.close(tells)
    try:
        if not os.read(ready, 1):
            raise OSError(errno.EPERM, "a user namespace cannot be made")
        for name, text in (("uid_map", uids), ("gid_map", gids)):
            with open(f"/proc/{child}/{name}", "w", encoding="utf-8") as map_file:
                map_file.write(text)
        return os.open(f"/proc/{child}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        for file in (ready, waits, ends):
            os.close(file)
        os.waitpid(child, 0)


def become_user_of(user_namespace: int, uid: int, gid: int) -> None:
    """Enter a user namespace that is held open, and become one of its users, who is in no other groups."""
    with suppress(PermissionError):  # an ordinary user's namespace forbids it, and has no other groups
        os.setgroups([])
    enter(user_namespace, NEWUSER)
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)


def leave_session_keyring() -> None:
    """Have a session keyring of one's own, without the keys of the one before. Kernels without keyrings have none."""
    processor = seccomp.processor()
    if processor is not None and _LIBC.syscall(processor.numbers["keyctl"], _JOIN_SESSION_KEYRING, None) < 0:
        failure = ctypes.get_errno()
        if failure != errno.ENOSYS:
            raise OSError(failure, os.strerror(failure))


def own_terminal(file: int) -> None:
    """Lead a session whose terminal that is: so its keys send signals, and a shell can control jobs."""
    os.setsid()
    fcntl.ioctl(file, termios.TIOCSCTTY, 0)


def drop_privileges() -> None:
    """Have no capabilities, and get none by executing anything."""
    _checked(_LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    _checked(_LIBC.capset((ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0), (ctypes.c_uint32 * 6)()))


def hide() -> None:
    """Let no other process without privileges trace this one or open its files by /proc, until it executes another."""
    _checked(_LIBC.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0))


def filter_calls(program: bytes) -> None:
    """Have Linux run a program before each system call from now on (seccomp(2)). It cannot be taken back."""
    steps = ctypes.create_string_buffer(program, len(program))
    head = _FilterProgram(len(program) // _FILTER_STEP_BYTES, ctypes.addressof(steps))
    _checked(_LIBC.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(head), 0, 0))


def default_signals() -> None:
    """Let signals do again what they do by default, before another program takes the place of this one."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGPIPE, signal.SIGCHLD, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
