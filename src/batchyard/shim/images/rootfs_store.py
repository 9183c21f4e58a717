"""Store of unpacked images: root filesystems in the node directory, one directory per image.

`roots/ID/root` is the root filesystem, read-only once complete. `roots/ID/image.json` is the image's metadata.
Containers that use the image hold the file lock `roots/ID/lock`. Garbage collection removes the least recently used
images while the store is over its size limit. It skips images in use and images used within two minutes (the kubelet's
imageMinimumGCAge). A process that unpacks an image holds the image's lock in `pulls`, so each image is unpacked once.
Incomplete directories have the suffix `.new`.
"""

import fcntl
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from batchyard.shim import linux, state_dir

STORE_FOLDER = "roots"
#: The directory with the lock files of image pulls and unpackings.
PULL_LOCKS_FOLDER = "pulls"
_MINIMUM_AGE_SECONDS = 120
_INCOMPLETE_SUFFIX, _REMOVED_SUFFIX = ".new", ".gone"


def store_name(image: str) -> str:
    """Return the name of an unpacked image's directory in the store, derived from the image id."""
    return image.removeprefix("sha256:")


def root_path(node_folder: str, name: str) -> str:
    """Return the path of the unpacked root filesystem of image `name` in the node directory."""
    return f"{node_folder}/{STORE_FOLDER}/{name}/root"


def touch_image(node_fd: int, name: str) -> bool:
    """Mark an unpacked image as used now, for garbage collection; return whether the store has the image."""
    try:
        os.utime(f"{STORE_FOLDER}/{name}/lock", dir_fd=node_fd)
    except FileNotFoundError:
        return False
    return True


def add_image(
    node_fd: int, name: str, unpack: Callable[[str], Mapping[str, Any]], extra_metadata: Mapping[str, Any]
) -> None:
    """Add an image to the store; the caller has locked the image. Raises OSError on failure.

    `unpack` is called with the path of an empty directory; it unpacks the image there and returns the image's metadata,
    to which `extra_metadata` is added. `node_fd` is the open descriptor of the node's directory.
    """
    roots_fd = _open_store(node_fd)
    temporary_name = f"{name}{_INCOMPLETE_SUFFIX}"
    try:
        state_dir.remove_tree(roots_fd, temporary_name)
        os.makedirs(f"/proc/self/fd/{roots_fd}/{temporary_name}/root", 0o755)
        path = os.readlink(f"/proc/self/fd/{roots_fd}") + f"/{temporary_name}"
        metadata = unpack(f"{path}/root")
        image_fd = state_dir.open_folder(temporary_name, roots_fd)
        state_dir.write_json(image_fd, "image.json", {**metadata, **extra_metadata})
        os.close(os.open("lock", os.O_WRONLY | os.O_CREAT, 0o600, dir_fd=image_fd))
        os.close(image_fd)
        os.rename(temporary_name, name, src_dir_fd=roots_fd, dst_dir_fd=roots_fd)
    finally:
        state_dir.remove_tree(roots_fd, temporary_name)
        os.close(roots_fd)


def lock_image(node_fd: int, name: str) -> int:
    """Lock an unpacked image against removal until the returned descriptor is closed.

    `node_fd` is an open descriptor of the node's directory. Raises OSError if the image was removed.
    """
    with suppress(FileNotFoundError):
        lock_fd = os.open(f"{STORE_FOLDER}/{name}/lock", os.O_RDWR, dir_fd=node_fd)
        fcntl.flock(lock_fd, fcntl.LOCK_SH)
        os.utime(lock_fd)
        if os.fstat(lock_fd).st_nlink:
            return lock_fd
        os.close(lock_fd)
    raise OSError(f"unpacked image {name} was removed from the node's store; the next attempt unpacks it again")


def read_image_metadata(node_fd: int, name: str) -> dict[str, Any]:
    """Return the metadata of an unpacked image (`bytes`, `passwd`, `group`, `environment`); {} if it is unreadable.

    `node_fd` is the open descriptor of the node's directory.
    """
    with suppress(OSError):
        image_fd = state_dir.open_folder(f"{STORE_FOLDER}/{name}", node_fd)
        try:
            return state_dir.read_json(image_fd, "image.json") or {}
        finally:
            os.close(image_fd)
    return {}


def pull_lock_name(name: str) -> str:
    """Return the name of the file in the directory `pulls` that is locked while an image is unpacked."""
    return f"root-{name}"


def collect_garbage(node_fd: int, bytes_max: float) -> None:
    """Remove incomplete images, and the least recently used images while the image store exceeds `bytes_max`.

    `node_fd` is the open descriptor of the node's directory. Images that are being unpacked, are in use, or were used
    within two minutes are not removed.
    """
    roots_fd = _open_store(node_fd)
    images_by_use: list[tuple[float, str, int]] = []
    for name in os.listdir(roots_fd):
        if name.endswith((_INCOMPLETE_SUFFIX, _REMOVED_SUFFIX)):
            if not state_dir.is_locked(node_fd, f"{PULL_LOCKS_FOLDER}/{pull_lock_name(name.partition('.')[0])}"):
                state_dir.remove_tree(roots_fd, name)
            continue
        with suppress(FileNotFoundError):
            used_at = os.stat(f"{name}/lock", dir_fd=roots_fd).st_mtime
            images_by_use.append((used_at, name, int(read_image_metadata(node_fd, name).get("bytes") or 0)))
    total_bytes = sum(size for _, _, size in images_by_use)
    for used_at, name, size in sorted(images_by_use):
        if (
            total_bytes > bytes_max
            and used_at < linux.now() / 1e6 - _MINIMUM_AGE_SECONDS
            and _try_remove_image(roots_fd, name)
        ):
            total_bytes -= size
    os.close(roots_fd)


def _try_remove_image(roots_fd: int, name: str) -> bool:
    with suppress(FileNotFoundError):
        lock_fd = os.open(f"{name}/lock", os.O_RDWR, dir_fd=roots_fd)
        try:
            fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock_fd)
            return False
        state_dir.remove_file(roots_fd, f"{name}/lock")  # a process that waits for the lock sees that the file is gone
        os.rename(name, f"{name}{_REMOVED_SUFFIX}", src_dir_fd=roots_fd, dst_dir_fd=roots_fd)
        os.close(lock_fd)
    state_dir.remove_tree(roots_fd, f"{name}{_REMOVED_SUFFIX}")
    return True


def _open_store(node_fd: int) -> int:
    os.makedirs(os.readlink(f"/proc/self/fd/{node_fd}") + f"/{STORE_FOLDER}", 0o700, exist_ok=True)
    return state_dir.open_folder(STORE_FOLDER, node_fd)
