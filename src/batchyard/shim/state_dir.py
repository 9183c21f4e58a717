"""The files by which the platform and the programs of the node talk: whole JSON files, locks, names of datagrams.

Folders are held open, and everything in them is reached through that: so who keeps a folder notices its removal, and
no path is too long for a socket's address.
"""

import fcntl
import json
import os
import socket
from contextlib import suppress
from typing import Any

from batchyard.shim import clock

_FOLDER = os.O_RDONLY | os.O_DIRECTORY


def open_folder(path: str, base: int | None = None) -> int:
    """A folder, held open. OSError where there is none."""
    return os.open(path, _FOLDER, dir_fd=base)


def take_files(connection: socket.socket, size: int, files_max: int) -> tuple[bytes, list[int]]:
    """What was sent, with the files: no program that is executed has them (socket.recv_fds leaves out that flag)."""
    said, files, _, _ = socket.recv_fds(connection, size, files_max)
    for file in files:
        os.set_inheritable(file, False)
    return said, files


def is_gone(folder: int) -> bool:
    """Whether a folder that is held open was removed."""
    return os.fstat(folder).st_nlink == 0


def address(folder: int, name: str) -> str:
    """The address of a unix socket in a folder, short however deep the folder lies."""
    return f"/proc/self/fd/{folder}/{name}"


def write_json(folder: int, name: str, value: object) -> None:
    """Put a file there, whole or not at all. OSError where that fails."""
    whole = f".{name}.{os.getpid()}"
    try:
        file = os.open(whole, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600, dir_fd=folder)
        with open(file, "wb") as opened:
            opened.write(json.dumps(value).encode())
        os.rename(whole, name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError:
        remove(folder, whole)
        raise


def read_json(folder: int, name: str) -> dict[str, Any] | None:
    """What a file holds; None where there is none, or none that can be read."""
    try:
        with open(os.open(name, os.O_RDONLY, dir_fd=folder), "rb") as opened:
            value = json.loads(opened.read())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def remove(folder: int, name: str) -> None:
    """Remove a file, if it is there."""
    try:
        os.unlink(name, dir_fd=folder)
    except OSError:
        return


def remove_tree(folder: int, name: str) -> None:
    """Remove a folder and all that is in it, as far as that can be done. No link is followed."""
    path = f"/proc/self/fd/{folder}/{name}"
    with suppress(FileNotFoundError):
        for _, folders, files, here in os.fwalk(path, topdown=False, follow_symlinks=False):
            for file in files:
                remove(here, file)
            for below in folders:
                _remove_folder(here, below)
    _remove_folder(folder, name)


def _remove_folder(base: int, name: str) -> None:
    try:
        os.rmdir(name, dir_fd=base)
    except NotADirectoryError:
        remove(base, name)
    except OSError:
        return


def identity(node: int) -> str:
    """What tells this node's folder from all others of the machine; made up when first asked for."""
    try:
        made = os.open("id", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=node)
    except FileExistsError:
        with open(os.open("id", os.O_RDONLY, dir_fd=node), encoding="utf-8") as file:
            return file.read()
    text = f"{clock.now():x}{os.getpid():x}"
    with open(made, "w", encoding="utf-8") as file:
        file.write(text)
    return text


def lock(folder: int, name: str) -> int | None:
    """Take the lock of that name: what holds it, as long as it is open. None where somebody else has it."""
    held = os.open(name, os.O_RDWR | os.O_CREAT, 0o600, dir_fd=folder)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(held)
        return None
    return held


def is_locked(folder: int, name: str = "lock") -> bool:
    """Whether somebody holds the lock of that name."""
    try:
        seen = os.open(name, os.O_RDWR, dir_fd=folder)
    except OSError:
        return False
    try:
        fcntl.flock(seen, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(seen)
    return False


_LOG_BYTES = 1 << 20


def complain(node: int, text: str) -> None:
    """Write into the node's log what went wrong in its programs. The log keeps its newest half when it is full."""
    line = f"{clock.now()} {os.getpid()} {text}\n".encode(errors="replace")
    try:
        with open(os.open("node.log", os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600, dir_fd=node), "rb+") as log:
            if log.seek(0, os.SEEK_END) + len(line) > _LOG_BYTES:
                log.seek(-_LOG_BYTES // 2, os.SEEK_END)
                kept = log.read().partition(b"\n")[2]
                log.truncate(0)
                log.write(kept)
            log.write(line)
    except OSError:
        return
