"""The root filesystems of images that an engine brought: folders of the node, named after the images.

`roots/ID/root` is what containers see, never written to again; `image.json` beside it says what there is to know of it,
and `lock` is held by whoever uses it. What was not used for longest goes first where there is more than there may be:
nothing that is used, or was within two minutes, as a kubelet's imageMinimumGCAge. Who unpacks an image holds its lock
in `pulls`, so that it is done once; what is not finished has another name.
"""

import fcntl
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from batchyard.shim import clock, state_dir

FOLDER = "roots"
#: The folder of locks for what is done once, by one who others wait for.
PULLS = "pulls"
_KEPT_SECONDS = 120
_NEW, _GONE = ".new", ".gone"


def name_of(image: str) -> str:
    """The name of an image's folder, from its id."""
    return image.removeprefix("sha256:")


def place(node: str, name: str) -> str:
    """Where the root filesystem lies, below the path of a node's folder."""
    return f"{node}/{FOLDER}/{name}/root"


def has(node: int, name: str) -> bool:
    """Whether an image is unpacked, which counts as a use."""
    try:
        os.utime(f"{FOLDER}/{name}/lock", dir_fd=node)
    except FileNotFoundError:
        return False
    return True


def add(node: int, name: str, unpack: Callable[[str], Mapping[str, Any]], more: Mapping[str, Any]) -> None:
    """Have an image unpacked into a folder, and keep it; who calls holds the image's lock. OSError where that fails."""
    roots = _opened(node)
    new = f"{name}{_NEW}"
    try:
        state_dir.remove_tree(roots, new)
        os.makedirs(f"/proc/self/fd/{roots}/{new}/root", 0o755)
        path = os.readlink(f"/proc/self/fd/{roots}") + f"/{new}"
        told = unpack(f"{path}/root")
        own = state_dir.open_folder(new, roots)
        state_dir.write_json(own, "image.json", {**told, **more})
        os.close(os.open("lock", os.O_WRONLY | os.O_CREAT, 0o600, dir_fd=own))
        os.close(own)
        os.rename(new, name, src_dir_fd=roots, dst_dir_fd=roots)
    finally:
        state_dir.remove_tree(roots, new)
        os.close(roots)


def use(node: int, name: str) -> int:
    """Keep an image from being removed, as long as what is returned is open. OSError where it is not there."""
    with suppress(FileNotFoundError):
        held = os.open(f"{FOLDER}/{name}/lock", os.O_RDWR, dir_fd=node)
        fcntl.flock(held, fcntl.LOCK_SH)
        os.utime(held)
        if os.fstat(held).st_nlink:
            return held
        os.close(held)
    raise OSError("the files of its image were removed meanwhile")


def told_of(node: int, name: str) -> dict[str, Any]:
    """What there is to know of an unpacked image: `bytes`, `passwd`, `group`, `environment`."""
    with suppress(OSError):
        own = state_dir.open_folder(f"{FOLDER}/{name}", node)
        try:
            return state_dir.read_json(own, "image.json") or {}
        finally:
            os.close(own)
    return {}


def lock_of(name: str) -> str:
    """The name of the lock of who unpacks an image, in the folder of those of pulls."""
    return f"root-{name}"


def trim(node: int, most: float) -> None:
    """Remove what is over so many bytes in all, and what was begun and is nobody's."""
    roots = _opened(node)
    found: list[tuple[float, str, int]] = []
    for name in os.listdir(roots):
        if name.endswith((_NEW, _GONE)):
            if not state_dir.is_locked(node, f"{PULLS}/{lock_of(name.partition('.')[0])}"):
                state_dir.remove_tree(roots, name)
            continue
        with suppress(FileNotFoundError):
            used = os.stat(f"{name}/lock", dir_fd=roots).st_mtime
            found.append((used, name, int(told_of(node, name).get("bytes") or 0)))
    total = sum(size for _, _, size in found)
    for used, name, size in sorted(found):
        if total > most and used < clock.now() / 1e6 - _KEPT_SECONDS and _removed(roots, name):
            total -= size
    os.close(roots)


def _removed(roots: int, name: str) -> bool:
    """Remove an image's folder; False where somebody uses it."""
    with suppress(FileNotFoundError):
        held = os.open(f"{name}/lock", os.O_RDWR, dir_fd=roots)
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(held)
            return False
        state_dir.remove(roots, f"{name}/lock")  # who waits for it sees that it is gone
        os.rename(name, f"{name}{_GONE}", src_dir_fd=roots, dst_dir_fd=roots)
        os.close(held)
    state_dir.remove_tree(roots, f"{name}{_GONE}")
    return True


def _opened(node: int) -> int:
    os.makedirs(os.readlink(f"/proc/self/fd/{node}") + f"/{FOLDER}", 0o700, exist_ok=True)
    return state_dir.open_folder(FOLDER, node)
