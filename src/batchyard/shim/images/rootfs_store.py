"""Store of unpacked images: root filesystems in the node directory, one directory per image.

`roots/ID/root` is the root filesystem, read-only once complete. `roots/ID/image.json` is the image's metadata. Runs
that use the image hold the file lock `roots/ID/lock`. Garbage collection removes the least recently used images while
the store is over its size limit. It skips images in use and images used within two minutes (the kubelet's
imageMinimumGCAge). A process that unpacks an image holds the image's lock in `pulls`, so each image is unpacked once.
Incomplete directories have the suffix `.new`.
"""

import fcntl
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from batchyard.shim import linux, state_dir

FOLDER = "roots"
#: The directory with the lock files of image pulls and unpackings.
PULLS = "pulls"
_KEPT_SECONDS = 120
_NEW, _GONE = ".new", ".gone"


def name_of(image: str) -> str:
    """Return the name of an image's directory in the store, given the image id."""
    return image.removeprefix("sha256:")


def place(node: str, name: str) -> str:
    """Return the path of an unpacked image's root filesystem; `node` is the path of the node directory."""
    return f"{node}/{FOLDER}/{name}/root"


def has(node: int, name: str) -> bool:
    """Report whether the store has an image, and record this as a use of the image."""
    try:
        os.utime(f"{FOLDER}/{name}/lock", dir_fd=node)
    except FileNotFoundError:
        return False
    return True


def add(node: int, name: str, unpack: Callable[[str], Mapping[str, Any]], more: Mapping[str, Any]) -> None:
    """Add an image to the store with the function `unpack`; the caller holds the image's lock. OSError on failure."""
    roots = _opened(node)
    new = f"{name}{_NEW}"
    try:
        state_dir.remove_tree(roots, new)
        os.makedirs(f"/proc/self/fd/{roots}/{new}/root", 0o755)
        path = os.readlink(f"/proc/self/fd/{roots}") + f"/{new}"
        metadata = unpack(f"{path}/root")
        own = state_dir.open_folder(new, roots)
        state_dir.write_json(own, "image.json", {**metadata, **more})
        os.close(os.open("lock", os.O_WRONLY | os.O_CREAT, 0o600, dir_fd=own))
        os.close(own)
        os.rename(new, name, src_dir_fd=roots, dst_dir_fd=roots)
    finally:
        state_dir.remove_tree(roots, new)
        os.close(roots)


def use(node: int, name: str) -> int:
    """Lock an image against removal while the returned descriptor is open. OSError if the image was removed."""
    with suppress(FileNotFoundError):
        held = os.open(f"{FOLDER}/{name}/lock", os.O_RDWR, dir_fd=node)
        fcntl.flock(held, fcntl.LOCK_SH)
        os.utime(held)
        if os.fstat(held).st_nlink:
            return held
        os.close(held)
    raise OSError(f"unpacked image {name} was removed from the node's store; the next attempt unpacks it again")


def image_metadata(node: int, name: str) -> dict[str, Any]:
    """Return the metadata of an unpacked image: `bytes`, `passwd`, `group`, `environment`; empty if unreadable."""
    with suppress(OSError):
        own = state_dir.open_folder(f"{FOLDER}/{name}", node)
        try:
            return state_dir.read_json(own, "image.json") or {}
        finally:
            os.close(own)
    return {}


def lock_of(name: str) -> str:
    """Return the name of the lock file, in the directory `pulls`, for unpacking an image."""
    return f"root-{name}"


def trim(node: int, most: float) -> None:
    """Remove incomplete directories, and the least recently used images while the total exceeds `maximum` bytes."""
    roots = _opened(node)
    found: list[tuple[float, str, int]] = []
    for name in os.listdir(roots):
        if name.endswith((_NEW, _GONE)):
            if not state_dir.is_locked(node, f"{PULLS}/{lock_of(name.partition('.')[0])}"):
                state_dir.remove_tree(roots, name)
            continue
        with suppress(FileNotFoundError):
            used = os.stat(f"{name}/lock", dir_fd=roots).st_mtime
            found.append((used, name, int(image_metadata(node, name).get("bytes") or 0)))
    total = sum(size for _, _, size in found)
    for used, name, size in sorted(found):
        if total > most and used < linux.now() / 1e6 - _KEPT_SECONDS and _removed(roots, name):
            total -= size
    os.close(roots)


def _removed(roots: int, name: str) -> bool:
    """Remove an image from the store; return False if the image is in use."""
    with suppress(FileNotFoundError):
        held = os.open(f"{name}/lock", os.O_RDWR, dir_fd=roots)
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(held)
            return False
        state_dir.remove(roots, f"{name}/lock")  # a process that waits for the lock sees that the file is gone
        os.rename(name, f"{name}{_GONE}", src_dir_fd=roots, dst_dir_fd=roots)
        os.close(held)
    state_dir.remove_tree(roots, f"{name}{_GONE}")
    return True


def _opened(node: int) -> int:
    os.makedirs(os.readlink(f"/proc/self/fd/{node}") + f"/{FOLDER}", 0o700, exist_ok=True)
    return state_dir.open_folder(FOLDER, node)
