"""Folders that a container sees with something added: places to mount at where an image has none, or all it writes.

The folder itself stays as it is. What is added lies in the run's folder (overlayfs, which user namespaces have too).
"""

import os
from collections.abc import Callable, Mapping, Sequence

from batchyard.node import images, linux

#: As Linux has it.
_LINKS_MAX = 40


def with_points(shown: Mapping[str, str], targets: Sequence[tuple[str, bool]], own: str) -> dict[str, str]:
    """What is shown at which place, such that each target is there: its path, and whether it is a folder.

    Nothing else of the machine may be changed by the mounts, so the process leaves its mount namespace.
    """
    found = dict(shown)
    lacking: dict[str, list[tuple[str, bool]]] = {}
    for target, is_folder in targets:
        path = _straight(target)
        place = next((place for place in shown if images.is_within(path, place)), None)
        if place is not None and not os.path.lexists(shown[place] + path.removeprefix(place)):
            lacking.setdefault(place, []).append((path.removeprefix(place), is_folder))
    if lacking:
        leave_mount_namespace()
    for number, (place, points) in enumerate(lacking.items()):
        added, seen = f"{own}/added-{number}", f"{own}/seen-{number}"
        os.mkdir(seen)
        for path, is_folder in points:
            make_place(f"{added}{path}", is_folder)
        linux.mount("overlay", seen, "overlay", f"lowerdir={_named(added)}:{_named(shown[place])}")
        found[place] = seen
    return found


def writable(folder: str, own: str) -> str:
    """Where a folder is seen that may be written to, what is written being the run's own."""
    for name in ("written", "work", "image"):
        os.mkdir(f"{own}/{name}", 0o755)
    leave_mount_namespace()
    layers = f"lowerdir={_named(folder)},upperdir={_named(own)}/written,workdir={_named(own)}/work"
    try:
        linux.mount("overlay", f"{own}/image", "overlay", f"{layers},userxattr")
    except OSError:
        linux.mount("overlay", f"{own}/image", "overlay", layers)
    return f"{own}/image"


def inside(root: str, path: str) -> str:
    """A path as it is without the links of a root filesystem, which lead nowhere but into that; it need not be there.

    bubblewrap would follow them through the machine's own files.
    """
    return _without_links(path, lambda place: _link(f"{root}{place}"))


def inside_folders(folders: Mapping[str, str], links: Mapping[str, str], path: str) -> str:
    """The same where a container sees some folders of the machine, and links beside them."""

    def link_at(place: str) -> str | None:
        whole = next((whole for whole in folders if images.is_within(place, whole)), None)
        return links.get(place) if whole is None else _link(folders[whole] + place.removeprefix(whole))

    return _without_links(path, link_at)


def _link(path: str) -> str | None:
    return os.readlink(path) if os.path.islink(path) else None


def _without_links(path: str, link_at: Callable[[str], str | None]) -> str:
    steps, found, links = path.split("/")[::-1], "", 0
    while steps:
        step = steps.pop()
        if step in {"", "."}:
            continue
        if step == "..":
            found = found.rpartition("/")[0]
            continue
        target = link_at(f"{found}/{step}")
        if target is None:
            found = f"{found}/{step}"
            continue
        links += 1
        if links > _LINKS_MAX:
            raise ValueError(f"{path}: too many levels of symbolic links")
        found = "" if target.startswith("/") else found
        steps += target.split("/")[::-1]
    return found or "/"


def leave_mount_namespace() -> None:
    """Let what is mounted from now on be this process's own."""
    linux.unshare(linux.NEWNS)
    linux.keep_mounts_to_oneself()


def _named(path: str) -> str:
    """A path as an option of overlayfs takes it."""
    return path.replace("\\", "\\\\").replace(":", "\\:").replace(",", "\\,")


def _straight(path: str) -> str:
    """A path without the link that a folder of programs may be, such as /bin."""
    first, found, rest = path[1:].partition("/")
    return f"{os.path.realpath(f'/{first}')}{found}{rest}" if os.path.islink(f"/{first}") else path


def make_place(path: str, is_folder: bool) -> None:
    """Make what something can be mounted at, and the folders it lies in."""
    os.makedirs(path if is_folder else os.path.dirname(path), exist_ok=True)
    if not is_folder:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o644))
