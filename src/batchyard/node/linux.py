"""Calls of Linux that Python 3.11 has no name for."""

import ctypes
import fcntl
import os
import signal
import termios

_LIBC = ctypes.CDLL(None, use_errno=True)

NEWNS = 0x00020000
NEWUTS = 0x04000000
NEWIPC = 0x08000000
NEWUSER = 0x10000000
NEWPID = 0x20000000
NEWNET = 0x40000000

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_CAPABILITY_VERSION = 0x20080522

_MS_BIND = 0x1000
_MS_REC = 0x4000
_MS_SLAVE = 0x80000


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


def own_terminal(file: int) -> None:
    """Lead a session whose terminal that is: so its keys send signals, and a shell can control jobs."""
    os.setsid()
    fcntl.ioctl(file, termios.TIOCSCTTY, 0)


def drop_privileges() -> None:
    """Have no capabilities, and get none by executing anything."""
    _checked(_LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    _checked(_LIBC.capset((ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0), (ctypes.c_uint32 * 6)()))


def default_signals() -> None:
    """Let signals do again what they do by default, before another program takes the place of this one."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGPIPE, signal.SIGCHLD, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)


def _checked(result: int) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
