"""An image's root filesystem as a folder: written from an archive, in a process that sees nothing but that folder.

So no link of the archive leads anywhere else. All files are those of whoever runs the node, whom containers see as the
user that they run as: they may be read, and folders be written to, by their owner in any case. Left out are devices,
owners, and the bits by which programs run as somebody else, which containers never do.
"""

import json
import os
import signal
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from shutil import copyfileobj
from typing import Any

from batchyard.shim import images, linux

_COPIED_BYTES = 1 << 20
_ACCOUNTS_BYTES = 1 << 20
_FOLDER_MODE, _FILE_MODE, _STICKY = 0o700, 0o400, 0o1777


def unpack(archive: int, place: str) -> dict[str, Any]:
    """Write an archive that can be read from a file into an empty folder: its bytes, and who its users are.

    `{"bytes": 123, "passwd": "...", "group": "..."}`; OSError where it cannot be written, or is none.
    """
    told, tells = os.pipe2(os.O_CLOEXEC)
    child = os.fork()
    if child == 0:
        os.close(told)
        _be(archive, place, tells)
    os.close(tells)
    os.close(archive)
    with open(told, "rb") as file:
        said = file.read()
    status = os.waitpid(child, 0)[1]
    found: dict[str, Any] = json.loads(said) if said else {"error": f"unpacking ended with status {status}"}
    if "error" in found:
        raise OSError(found["error"])
    return found


def _be(archive: int, place: str, tells: int) -> None:
    """In the child: unpack, and tell what came of it."""
    try:
        linux.die_with_parent(signal.SIGKILL)
        if os.geteuid() != 0:
            linux.become_root_of_a_user_namespace(None)
        os.chroot(place)
        os.chdir("/")
        os.umask(0)
        told: dict[str, Any] = {"bytes": _write_all(archive)}
        told |= {name: _text(f"/etc/{name}") for name in ("passwd", "group")}
    except (OSError, ValueError, tarfile.TarError) as failure:
        told = {"error": str(failure)}
    with suppress(OSError), open(tells, "wb") as file:
        file.write(json.dumps(told).encode())
    os._exit(0)


def _write_all(archive: int) -> int:
    """Write the members of an archive; the sum of the bytes of its files."""
    total, folders = 0, []
    with open(archive, "rb") as file, tarfile.open(fileobj=file, mode="r|", bufsize=_COPIED_BYTES) as opened:
        for member in _members(opened):
            path = os.path.normpath(f"/{member.name}")
            if member.isdir():
                _make_folder(path, member)
                folders.append((path, member.mtime))
                continue
            os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
            with suppress(FileNotFoundError):
                os.unlink(path)
            _write(opened, member, path)
            total += member.size if member.isreg() else 0
    for path, changed in reversed(folders):  # what was written into them has changed that
        os.utime(path, (changed, changed))
    return total


def _members(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """The members of an archive, none of which is kept."""
    for member in archive:
        yield member
        archive.members = []  # type: ignore[attr-defined]  # as an archive that is read once would keep them all


def _make_folder(path: str, member: tarfile.TarInfo) -> None:
    os.makedirs(path, 0o755, exist_ok=True)
    os.chmod(path, member.mode & _STICKY | _FOLDER_MODE)


def _write(archive: tarfile.TarFile, member: tarfile.TarInfo, path: str) -> None:
    """Write what is no folder."""
    if member.issym():
        os.symlink(member.linkname, path)
    elif member.islnk():
        os.link(os.path.normpath(f"/{member.linkname}"), path, follow_symlinks=False)
    elif member.isfifo():
        os.mkfifo(path, member.mode & 0o777)
    elif member.isreg():
        read = archive.extractfile(member)
        with open(path, "xb") as file:
            if read is not None:
                copyfileobj(read, file, _COPIED_BYTES)
            os.fchmod(file.fileno(), member.mode & 0o777 | _FILE_MODE)
        os.utime(path, (member.mtime, member.mtime))


def _text(path: str) -> str:
    """What a file says, as far as that is needed; nothing where there is none."""
    with suppress(OSError), open(path, "rb") as file:
        return file.read(_ACCOUNTS_BYTES).decode(errors="replace")
    return ""


# --- overlays ---
#
# Folders that a container sees with something added: places to mount at where an image has none, or all it writes.
#
# The folder itself stays as it is. What is added lies in the run's folder (overlayfs, which user namespaces have too).


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
