"""The node directory, shared by batchyard's server and the shims: JSON files, locks, sockets, log, and an /etc copy.

Directories are kept open, and their contents are accessed relative to the descriptor. So a process notices when its
directory is removed, and no path is too long for a socket address.
"""

import fcntl
import json
import os
import socket
import stat
from contextlib import suppress
from fnmatch import fnmatch
from typing import Any

from batchyard.shim import linux

_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY


def open_folder(path: str, base_fd: int | None = None) -> int:
    """Open a directory, relative to the open directory `base_fd` if given, and return its descriptor.

    Raises OSError on failure.
    """
    return os.open(path, _FOLDER_FLAGS, dir_fd=base_fd)


def receive_fds(connection: socket.socket, size: int, files_max: int) -> tuple[bytes, list[int]]:
    """Receive a message and at most `files_max` descriptors, which are made close-on-exec, from a unix socket."""
    message, fds, _, _ = socket.recv_fds(connection, size, files_max)
    for fd in fds:
        os.set_inheritable(fd, False)
    return message, fds


def is_removed(folder_fd: int) -> bool:
    """Return whether a directory, given as an open descriptor, was removed."""
    return os.fstat(folder_fd).st_nlink == 0


def socket_address(folder_fd: int, name: str) -> str:
    """Return a short address of the unix socket `name` in an open directory, whose own path may be too long."""
    return f"/proc/self/fd/{folder_fd}/{name}"


def write_json(folder_fd: int, name: str, value: object) -> None:
    """Write a value atomically as the JSON file `name` in the directory with the descriptor `folder_fd`.

    Raises OSError on failure.
    """
    temporary_name = f".{name}.{os.getpid()}"
    try:
        fd = os.open(temporary_name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600, dir_fd=folder_fd)
        with open(fd, "wb") as file:
            file.write(json.dumps(value).encode())
        os.rename(temporary_name, name, src_dir_fd=folder_fd, dst_dir_fd=folder_fd)
    except OSError:
        remove_file(folder_fd, temporary_name)
        raise


def read_json(folder_fd: int, name: str) -> dict[str, Any] | None:
    """Return the JSON object in a file of an open directory; None if it is unreadable or not a JSON object."""
    try:
        with open(os.open(name, os.O_RDONLY, dir_fd=folder_fd), "rb") as file:
            value = json.loads(file.read())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def remove_file(folder_fd: int, name: str) -> None:
    """Remove a file from an open directory; errors are ignored."""
    try:
        os.unlink(name, dir_fd=folder_fd)
    except OSError:
        return


def remove_tree(folder_fd: int, name: str) -> None:
    """Remove the subtree `name` of an open directory as far as possible, without following symbolic links."""
    path = f"/proc/self/fd/{folder_fd}/{name}"
    with suppress(FileNotFoundError):
        for _, folders, files, subtree_folder_fd in os.fwalk(path, topdown=False, follow_symlinks=False):
            for file in files:
                remove_file(subtree_folder_fd, file)
            for subfolder in folders:
                _remove_folder(subtree_folder_fd, subfolder)
    _remove_folder(folder_fd, name)


def _remove_folder(base_fd: int, name: str) -> None:
    try:
        os.rmdir(name, dir_fd=base_fd)
    except NotADirectoryError:
        remove_file(base_fd, name)
    except OSError:
        return


def ensure_node_id(node_fd: int) -> str:
    """Return a node's machine-wide unique id from the node's directory (an open descriptor); create it on first use."""
    try:
        fd = os.open("id", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=node_fd)
    except FileExistsError:
        with open(os.open("id", os.O_RDONLY, dir_fd=node_fd), encoding="utf-8") as file:
            return file.read()
    new_node_id = f"{linux.now():x}{os.getpid():x}"
    with open(fd, "w", encoding="utf-8") as file:
        file.write(new_node_id)
    return new_node_id


def acquire_lock(folder_fd: int, name: str) -> int | None:
    """Lock a file in an open directory without waiting; return the locked descriptor, or None if the file is locked."""
    lock_fd = os.open(name, os.O_RDWR | os.O_CREAT, 0o600, dir_fd=folder_fd)
    try:
        fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock_fd)
        return None
    return lock_fd


def is_locked(folder_fd: int, name: str = "lock") -> bool:
    """Return whether a process has locked a file in an open directory; False if the file cannot be opened."""
    try:
        lock_fd = os.open(name, os.O_RDWR, dir_fd=folder_fd)
    except OSError:
        return False
    try:
        fcntl.flock(lock_fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock_fd)
    return False


_LOG_BYTES_MAX = 1 << 20


def log_error(node_fd: int, text: str) -> None:
    """Append a message to `node.log` in a node's directory, whose open descriptor is `node_fd`.

    A log over 1 MiB is first cut to its newest 512 KiB. Errors are ignored.
    """
    line = f"{linux.now()} {os.getpid()} {text}\n".encode(errors="replace")
    try:
        with open(os.open("node.log", os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600, dir_fd=node_fd), "rb+") as log:
            if log.seek(0, os.SEEK_END) + len(line) > _LOG_BYTES_MAX:
                log.seek(-_LOG_BYTES_MAX // 2, os.SEEK_END)
                newest_lines = log.read().partition(b"\n")[2]
                log.truncate(0)
                log.write(newest_lines)
            log.write(line)
    except OSError:
        return


# Containers get a copy of those files of the machine's /etc that programs need, without secrets.
#
# The copy is the directory `etc` in the node directory, and is updated when a spawner starts. A container gets it with
# one mount. A mount per file would take longer than the rest of the container start.


#: The directory of the copy in the node directory.
ETC_COPY_FOLDER = "etc"
#: The files in /etc that the sandbox of a pod provides.
SANDBOX_FILES = ("hosts", "hostname", "resolv.conf")
_COPIED_NAME_PATTERNS = (
    *("OpenCL", "alternatives", "bash.bashrc", "ca-certificates*", "crypto-policies", "debian_version", "default"),
    *("fonts", "gai.conf", "glvnd", "gnutls", "group", "host.conf", "inputrc", "java*", "ld.so.*", "locale.*"),
    *("localtime", "magic*", "mime.types", "mtab", "networks", "nsswitch.conf", "os-release", "passwd", "perl", "pki"),
    *("profile", "profile.d", "protocols", "python3*", "redhat-release", "rpc", "services", "shells", "skel", "ssl"),
    *("terminfo", "timezone", "vulkan", "xattr.conf", "xdg"),
)
#: Name patterns of files in the copied directories that are not copied.
_SKIPPED_NAME_PATTERNS = ("private", "*.key", "*.pem.key")


def update_etc_copy(node_folder: str) -> None:
    """Copy those files of the machine's /etc that containers need to a node directory, if they are new or changed.

    Files that were removed from /etc stay in the copy. Empty files are created in place of SANDBOX_FILES.
    `node_folder` is the path of the node directory.
    """
    copy_path = f"{node_folder}/{ETC_COPY_FOLDER}"
    os.makedirs(copy_path, 0o755, exist_ok=True)
    for name in SANDBOX_FILES:
        with suppress(OSError):
            os.close(os.open(f"{copy_path}/{name}", os.O_WRONLY | os.O_CREAT, 0o644))
    for name in os.listdir("/etc"):
        if any(fnmatch(name, pattern) for pattern in _COPIED_NAME_PATTERNS):
            _copy_etc_entry(f"/etc/{name}", f"{copy_path}/{name}")


def _copy_etc_entry(source: str, target: str) -> None:
    """Copy a file, a symbolic link or a directory tree; files that are not world-readable are skipped."""
    with suppress(OSError):
        status = os.lstat(source)
        if stat.S_ISDIR(status.st_mode):
            os.makedirs(target, 0o755, exist_ok=True)
            for name in os.listdir(source):
                if not any(fnmatch(name, pattern) for pattern in _SKIPPED_NAME_PATTERNS):
                    _copy_etc_entry(f"{source}/{name}", f"{target}/{name}")
        elif stat.S_ISLNK(status.st_mode):
            _copy_symbolic_link(os.readlink(source), target)
        elif stat.S_ISREG(status.st_mode) and status.st_mode & stat.S_IROTH:
            _copy_file(source, target, status)


def _copy_symbolic_link(link_target: str, target: str) -> None:
    if not os.path.islink(target) or os.readlink(target) != link_target:
        os.symlink(link_target, f"{target}.new")
        os.rename(f"{target}.new", target)


def _copy_file(source: str, target: str, source_stat: os.stat_result) -> None:
    with suppress(FileNotFoundError):
        target_stat = os.stat(target)
        if (target_stat.st_size, target_stat.st_mtime_ns) == (source_stat.st_size, source_stat.st_mtime_ns):
            return
    with open(source, "rb") as source_file, open(f"{target}.new", "wb") as target_file:
        target_file.write(source_file.read())
    os.chmod(f"{target}.new", stat.S_IMODE(source_stat.st_mode))
    os.utime(f"{target}.new", ns=(source_stat.st_mtime_ns, source_stat.st_mtime_ns))
    os.rename(f"{target}.new", target)
