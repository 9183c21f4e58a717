"""Attempts to escape from a container: a program that needs only the standard library of Python.

The tests prepend the numbers of system calls to its text, as `NUMBERS`. It prints one JSON object: the results by name.
"""

import ctypes
import errno
import json
import mmap
import os
import stat
import sys

NUMBERS: dict[str, int] = {}
DENIED = (errno.EPERM, errno.EACCES, errno.ENOSYS, errno.EROFS)
LIBC = ctypes.CDLL(None, use_errno=True)
ROOM = ctypes.create_string_buffer(4096)
NAMESPACES = {
    "cgroup": 0x02000000,
    "uts": 0x04000000,
    "ipc": 0x08000000,
    "user": 0x10000000,
    "pid": 0x20000000,
    "net": 0x40000000,
    "mnt": 0x00020000,
    "time": 0x00000080,
}
#: Dangerous calls with harmless arguments.
CALLS: dict[str, tuple[object, ...]] = {
    "acct": (b"/nowhere",),
    "add_key": (b"user", b"batchyard-test", b"x", 1, -1),
    "bpf": (0, ROOM, 128),
    "chroot": (b"/",),
    "clock_settime": (0, None),
    "clone": (0x10000000 | 17, 0, 0, 0, 0),
    "clone3": (ROOM, 0),
    "delete_module": (b"nothing", 0),
    "fanotify_init": (0, 0),
    "file_setattr": (-1, b"", ROOM, 0, 0),
    "finit_module": (-1, b"", 0),
    "fsconfig": (-1, 0, None, None, 0),
    "fsmount": (-1, 0, 0),
    "fsopen": (b"tmpfs", 0),
    "fspick": (-1, b"/", 0),
    "get_mempolicy": (None, None, 0, None, 0),
    "init_module": (None, 0, b""),
    "io_uring_enter": (-1, 0, 0, 0, None, 0),
    "io_uring_register": (-1, 0, None, 0),
    "io_uring_setup": (1, None),
    "ioperm": (0, 1, 1),
    "iopl": (3,),
    "kcmp": (1, 1, 0, 0, 0),
    "kexec_file_load": (-1, -1, 0, None, 0),
    "kexec_load": (0, 0, None, 0),
    "keyctl": (0, -3, 0),
    "lookup_dcookie": (0, None, 0),
    "mbind": (None, 0, 0, None, 0, 0),
    "migrate_pages": (0, 0, None, None),
    "mount": (b"none", b"/tmp", b"tmpfs", 0, None),
    "mount_setattr": (-100, b"/", 0, ROOM, 32),
    "move_mount": (-1, b"", -100, b"/tmp", 4),
    "move_pages": (0, 0, None, None, None, 0),
    "nfsservctl": (0, None, None),
    "open_by_handle_at": (-100, ROOM, 0),
    "open_tree": (-100, b"/", 1),
    "open_tree_attr": (-100, b"/", 1, ROOM, 32),
    "perf_event_open": (ROOM, 0, -1, -1, 0),
    "personality": (0x40000,),
    "pidfd_getfd": (-1, 0, 0),
    "pivot_root": (b"/", b"/"),
    "process_madvise": (-1, None, 0, 0, 0),
    "quotactl": (0, None, 0, None),
    "quotactl_fd": (-1, 0, 0, None),
    "reboot": (0, 0, 0, None),
    "request_key": (b"user", b"batchyard-test", None, 0),
    "set_mempolicy": (0, None, 0),
    "set_mempolicy_home_node": (0, 0, 0, 0),
    "setdomainname": (b"x", 1),
    "sethostname": (b"x", 1),
    "setns": (-1, 0),
    "settimeofday": (None, ROOM),
    "socket of AF_ALG": (38, 5, 0),
    "socket of AF_VSOCK": (40, 1, 0),
    "swapoff": (b"/nowhere",),
    "swapon": (b"/nowhere", 0),
    "syslog": (3, ROOM, 10),
    "umount2": (b"/tmp", 0),
    "unshare": (0x10000000,),
    "uselib": (b"/nowhere",),
    "userfaultfd": (0,),
    "ustat": (0, ROOM),
    "vhangup": (),
    "mknodat of a device": (-100, b"/tmp/device", stat.S_IFBLK | 0o600, 0xFE00),
}
MASKED = (
    "/proc/kcore",
    "/proc/keys",
    "/proc/timer_list",
    "/proc/acpi",
    "/proc/scsi",
    "/proc/interrupts",
    "/sys/firmware",
)


def call_error(number: int, *arguments: object) -> str:
    """The error name of a system call, or '' for success."""
    ctypes.set_errno(0)
    result = LIBC.syscall(ctypes.c_long(number), *(wide(argument) for argument in arguments))
    return errno.errorcode.get(ctypes.get_errno(), "?") if result == -1 else ""


def wide(argument: object) -> object:
    return ctypes.c_long(argument) if isinstance(argument, int) else argument


def calls() -> dict[str, str]:
    """The result of each dangerous call, in a child process."""
    result = {}
    for name, arguments in CALLS.items():
        number = NUMBERS.get(name.partition(" ")[0])
        if number is not None:
            result[name] = run_in_child(lambda number=number, arguments=arguments: call_error(number, *arguments))
    return result


def run_in_child(act: object) -> str:
    """The result of a function in a separate process, because a call may change its process."""
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writes, str(act()).encode())  # type: ignore[operator]
        finally:
            os._exit(0)
    os.close(writes)
    with os.fdopen(reads, "rb") as file:
        reported = file.read().decode()
    os.waitpid(child, 0)
    return reported


def foreign_calls() -> dict[str, str]:
    """The results of calls of other ABIs of an x86_64 machine: x32, and int 0x80 of i386 (its getpid)."""
    if os.uname().machine != "x86_64":
        return {}
    code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    code.write(bytes.fromhex("b814000000cd80c3"))
    entry = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))
    result = entry()
    return {
        "x32": call_error(0x40000000 | NUMBERS["getpid"]),
        "i386": errno.errorcode.get(-result, "?") if result < 0 else "",
    }


def new_namespaces() -> dict[str, str]:
    """The result of each unshare call."""
    flags = NAMESPACES.items()
    return {name: run_in_child(lambda flag=flag: call_error(NUMBERS["unshare"], flag)) for name, flag in flags}


def writable() -> list[str]:
    """The writable paths below /proc and /sys, except those of processes."""
    result = []
    for top in ("/proc", "/sys"):
        for folder, folders, files in os.walk(top):
            if folder == "/proc":
                folders[:] = [name for name in folders if not name.isdigit() and name not in {"self", "thread-self"}]
            for name in files:
                path = f"{folder}/{name}"
                if not os.path.islink(path) and can_open(path):
                    result.append(path)
            if can_create(f"{folder}/batchyard-test"):
                result.append(f"{folder}/")
    return result


def can_open(path: str) -> bool:
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def can_create(path: str) -> bool:
    try:
        os.mkdir(path)
    except OSError:
        return False
    return True


def masked_paths() -> dict[str, bool]:
    """Whether each masked path is hidden."""
    result = {}
    for path in MASKED:
        try:
            result[path] = not (os.listdir(path) if os.path.isdir(path) else os.read(os.open(path, os.O_RDONLY), 10))
        except OSError:
            result[path] = True
    return result


def handler() -> str:
    """Whether the core pattern of the machine can be set to a program in a volume."""
    with open("/proc/self/mountinfo", encoding="utf-8") as file:
        roots = [line.split()[3] for line in file if line.split()[4] == "/volume"]
    program = f"{roots[0] if roots else '/volume'}/handler"
    with open("/volume/handler", "w", encoding="utf-8") as file:
        file.write(f"#!/bin/sh\nid > {program}.ran\n")
    os.chmod("/volume/handler", 0o755)
    for path in ("/proc/sys/kernel/core_pattern", "/proc/self/root/proc/sys/kernel/core_pattern"):
        try:
            with open(path, "w", encoding="utf-8") as file:
                file.write(f"|{program}")
        except OSError:
            continue
        run_in_child(lambda: os.kill(os.getpid(), 11))
        return path
    return ""


def keys() -> dict[str, object]:
    """The visible keys, for a process with access to keyrings."""
    search = [
        call_error(NUMBERS["keyctl"], 10, keyring, b"user", b"batchyard-of-the-machine", 0) for keyring in (-3, -4, -5)
    ]
    with open("/proc/keys", encoding="utf-8") as file:
        seen = file.read()
    return {"search": search, "seen": "batchyard-of-the-machine" in seen}


def identity() -> dict[str, object]:
    """The user inside and outside of the container, and its namespaces."""
    with open("/proc/self/uid_map", encoding="utf-8") as file:
        rows = [line.split() for line in file]
    with open("/proc/self/status", encoding="utf-8") as file:
        status = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
    return {
        "uid": os.getuid(),
        "map": [[int(word) for word in row] for row in rows],
        "capabilities": [status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")],
        "seccomp": status["Seccomp"],
        "no_new_privs": status["NoNewPrivs"],
        "namespaces": {name: os.readlink(f"/proc/self/ns/{name}") for name in NAMESPACES},
    }


def attempts() -> dict[str, object]:
    """The results of all attempts."""
    return {
        "identity": identity(),
        "calls": calls(),
        "foreign": foreign_calls(),
        "unshare": new_namespaces(),
        "writable": writable(),
        "masked": masked_paths(),
        "handler": handler() if os.path.isdir("/volume") else "",
        "keys": keys(),
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(attempts()) + "\n")
