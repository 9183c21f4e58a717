"""Linux system calls that Python 3.11 does not wrap, and the clock that the node's processes use."""

import ctypes
import errno
import fcntl
import os
import signal
import struct
import termios
import time
from contextlib import suppress

from batchyard.shim.isolation import seccomp

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
_LINUX_CAPABILITY_VERSION_3 = 0x20080522

_PR_SET_DUMPABLE = 4
_PR_SET_SECCOMP = 22
_SECCOMP_MODE_FILTER = 2
_JOIN_SESSION_KEYRING = 1

#: These calls have the same numbers on all processors.
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


_BPF_INSTRUCTION_BYTES = 8


class _SeccompFilterProgram(ctypes.Structure):
    """The C structure sock_fprog of Linux: a BPF program for seccomp."""

    _fields_ = (("length", ctypes.c_ushort), ("steps", ctypes.c_void_p))


def adopt_orphans() -> None:
    """Make this process a subreaper, which adopts descendants whose parents have ended."""
    _raise_errno(_LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))


def die_with_parent(signal_number: int) -> None:
    """Let the kernel send a signal to this process when its parent process ends."""
    _raise_errno(_LIBC.prctl(_PR_SET_PDEATHSIG, signal_number, 0, 0, 0))


def unshare(namespace_flags: int) -> None:
    """Create new namespaces and move this process into them; `namespace_flags` are CLONE_NEW* flags."""
    _raise_errno(_LIBC.unshare(namespace_flags))


def enter_namespaces(fd: int, namespace_flags: int) -> None:
    """Enter one namespace, given as its descriptor, or a process's namespaces of these types, given as a pidfd."""
    _raise_errno(_LIBC.setns(fd, namespace_flags))


def mount(source: str, target: str, kind: str, options: str = "", flags: int = 0) -> None:
    """Mount a filesystem of type `kind` at the path `target`."""
    _raise_errno(_LIBC.mount(source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), options.encode()))


def bind_mount(source: str, target: str) -> None:
    """Bind-mount a file or directory at the path `target`, with nested mounts."""
    mount(source, target, "none", flags=_MS_BIND | _MS_REC)


def clone_mount(source: str) -> int:
    """Return a descriptor of a detached copy of the mount at path `source`, with nested mounts."""
    flags = _OPEN_TREE_CLONE | _AT_RECURSIVE | os.O_CLOEXEC
    return _raise_errno(_LIBC.syscall(_OPEN_TREE, _AT_FDCWD, source.encode(), flags))


def map_file_owners(mount_fd: int, user_namespace_fd: int) -> None:
    """Map the owners of files in a detached mount through a user namespace (an id-mapped mount).

    `mount_fd` and `user_namespace_fd` are open descriptors. Raises OSError if the filesystem does not support id-mapped
    mounts (mount_setattr(2), MOUNT_ATTR_IDMAP).
    """
    settings = struct.pack("=QQQQ", _MOUNT_ATTR_IDMAP, 0, 0, user_namespace_fd)
    _raise_errno(_LIBC.syscall(_MOUNT_SETATTR, mount_fd, b"", _AT_EMPTY_PATH, settings, ctypes.c_size_t(len(settings))))


def attach_mount(mount_fd: int, target: str) -> None:
    """Attach a detached mount, given as a descriptor, at a path."""
    _raise_errno(_LIBC.syscall(_MOVE_MOUNT, mount_fd, b"", _AT_FDCWD, target.encode(), _MOVE_MOUNT_F_EMPTY_PATH))


def attach_mount_at(mount_fd: int, mount_point_fd: int) -> None:
    """Attach a detached mount at a mount point; both are descriptors."""
    flags = _MOVE_MOUNT_F_EMPTY_PATH | _MOVE_MOUNT_T_EMPTY_PATH
    _raise_errno(_LIBC.syscall(_MOVE_MOUNT, mount_fd, b"", mount_point_fd, b"", flags))


def make_read_only(mount_fd: int) -> None:
    """Make a detached mount, given as a descriptor, read-only, with nested mounts."""
    attributes = struct.pack("=QQQQ", _MOUNT_ATTR_RDONLY, 0, 0, 0)
    flags = _AT_EMPTY_PATH | _AT_RECURSIVE
    _raise_errno(_LIBC.syscall(_MOUNT_SETATTR, mount_fd, b"", flags, attributes, ctypes.c_size_t(len(attributes))))


def change_folder(path: str) -> None:
    """Change the working directory. Raises OSError if the directory is not reachable from this process's root.

    A /proc link to an open file may lead to directories of the machine outside of that root.
    """
    os.chdir(path)
    os.getcwd()


def isolate_later_mounts() -> None:
    """Hide later mounts in this mount namespace from other mount namespaces."""
    mount("none", "/", "none", flags=_MS_REC | _MS_SLAVE)


def allow_unprivileged_ports() -> None:
    """Allow unprivileged processes to bind low ports in this network namespace, as containerd does for pods."""
    with open("/proc/sys/net/ipv4/ip_unprivileged_port_start", "w", encoding="utf-8") as file:
        file.write("0")


def become_user_namespace_root(user_namespace_fd: int | None) -> None:
    """Enter a user namespace (a descriptor) and a new mount namespace.

    If `user_namespace_fd` is None, create a user namespace that maps its root to the current user.
    """
    user, group = os.geteuid(), os.getegid()
    if user_namespace_fd is not None:
        enter_namespaces(user_namespace_fd, NEWUSER)
        unshare(NEWNS)
    else:
        unshare(NEWUSER | NEWNS)
        for name, content in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
            with open(f"/proc/self/{name}", "w", encoding="utf-8") as file:
                file.write(content)
    isolate_later_mounts()


def make_user_namespace(uid_map: str, gid_map: str) -> int:
    """Create a user namespace with these contents of uid_map and gid_map; return its descriptor. Requires root."""
    ready_reader, ready_writer = os.pipe2(os.O_CLOEXEC)
    exit_reader, exit_writer = os.pipe2(os.O_CLOEXEC)
    child_pid = os.fork()
    if child_pid == 0:
        try:
            os.close(exit_writer)
            unshare(NEWUSER)
            os.write(ready_writer, b"1")
            os.read(exit_reader, 1)
        finally:
            os._exit(0)
    os.close(ready_writer)
    try:
        if not os.read(ready_reader, 1):
            raise OSError(errno.EPERM, "a user namespace cannot be created: check sysctl user.max_user_namespaces")
        for name, content in (("uid_map", uid_map), ("gid_map", gid_map)):
            with open(f"/proc/{child_pid}/{name}", "w", encoding="utf-8") as map_file:
                map_file.write(content)
        return os.open(f"/proc/{child_pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        for fd in (ready_reader, exit_reader, exit_writer):
            os.close(fd)
        os.waitpid(child_pid, 0)


def become_user_of(user_namespace_fd: int, uid: int, gid: int) -> None:
    """Enter a user namespace, given as a descriptor, and become one of its users, without supplementary groups."""
    with suppress(PermissionError):  # denied in unprivileged user namespaces, which map no other groups
        os.setgroups([])
    enter_namespaces(user_namespace_fd, NEWUSER)
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)


def leave_session_keyring() -> None:
    """Replace this process's session keyring by a new, empty one.

    Do nothing if the kernel has no keyrings or if `seccomp` does not support the processor.
    """
    processor = seccomp.find_processor()
    if processor is not None and _LIBC.syscall(processor.call_numbers["keyctl"], _JOIN_SESSION_KEYRING, None) < 0:
        error_number = ctypes.get_errno()
        if error_number != errno.ENOSYS:
            raise OSError(error_number, os.strerror(error_number))


def set_controlling_terminal(fd: int) -> None:
    """Make this process the leader of a new session with the terminal `fd`, for Ctrl-C and job control."""
    os.setsid()
    fcntl.ioctl(fd, termios.TIOCSCTTY, 0)


def drop_privileges() -> None:
    """Drop all capabilities permanently, so that executed programs cannot gain any."""
    _raise_errno(_LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    _raise_errno(_LIBC.capset((ctypes.c_uint32 * 2)(_LINUX_CAPABILITY_VERSION_3, 0), (ctypes.c_uint32 * 6)()))


def forbid_tracing() -> None:
    """Forbid unprivileged processes to trace this process or to open its files through /proc, until execve."""
    _raise_errno(_LIBC.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0))


def install_seccomp_filter(program: bytes) -> None:
    """Install a seccomp BPF program for this process permanently (seccomp(2))."""
    instructions = ctypes.create_string_buffer(program, len(program))
    program_header = _SeccompFilterProgram(len(program) // _BPF_INSTRUCTION_BYTES, ctypes.addressof(instructions))
    _raise_errno(_LIBC.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(program_header), 0, 0))


def reset_signal_handlers() -> None:
    """Restore the default handlers of the signals that Python or a shim handles or ignores."""
    for signal_number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGPIPE, signal.SIGCHLD, signal.SIGXFSZ):
        signal.signal(signal_number, signal.SIG_DFL)


def _raise_errno(result: int) -> int:
    if result < 0:
        error_number = ctypes.get_errno()
        raise OSError(error_number, os.strerror(error_number))
    return result


# The node's programs always use real time.


def now() -> int:
    """Return the current wall clock time in microseconds since the epoch."""
    return time.time_ns() // 1000


def monotonic() -> float:
    """Return the time of the monotonic clock in seconds, for timeouts."""
    return time.monotonic()


def format_time(instant: int) -> str:
    """Format a time in microseconds since the epoch as RFC 3339 with nanoseconds."""
    seconds, microseconds = divmod(instant, 1_000_000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{microseconds:06d}000Z"
