"""Unpacking of image archives into root filesystems, and overlays on directories that a container sees.

A process that is chrooted into the target writes the files, so no link in the archive leads out of the target. All
files belong to the user that runs the node, which containers see as their own user. The owner can always read files and
write to directories. Devices, owners, and setuid and setgid bits are omitted, because containers never use them.
"""

import json
import os
import signal
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from shutil import copyfileobj
from typing import Any

from batchyard.shim import linux
from batchyard.shim.images import store

_COPIED_BYTES = 1 << 20
_ACCOUNTS_BYTES = 1 << 20
_FOLDER_MODE, _FILE_MODE, _STICKY = 0o700, 0o400, 0o1777


def unpack(archive: int, place: str) -> dict[str, Any]:
    """Unpack a tar archive (a descriptor) into an empty directory; return the total size and the account files.

    The result is `{"bytes": 123, "passwd": "...", "group": "..."}`. OSError if the archive is invalid or a write fails.
    """
    reads, writes = os.pipe2(os.O_CLOEXEC)
    child = os.fork()
    if child == 0:
        os.close(reads)
        _be(archive, place, writes)
    os.close(writes)
    os.close(archive)
    with open(reads, "rb") as file:
        message = file.read()
    status = os.waitpid(child, 0)[1]
    failure = f"unpacking the image ended with status {status}"
    found: dict[str, Any] = json.loads(message) if message else {"error": failure}
    if "error" in found:
        raise OSError(found["error"])
    return found


def _be(archive: int, place: str, writes: int) -> None:
    """In a child process: unpack the archive, and write the result to the pipe `writes`."""
    try:
        linux.die_with_parent(signal.SIGKILL)
        if os.geteuid() != 0:
            linux.become_root_of_a_user_namespace(None)
        os.chroot(place)
        os.chdir("/")
        os.umask(0)
        result: dict[str, Any] = {"bytes": _write_all(archive)}
        result |= {name: _text(f"/etc/{name}") for name in ("passwd", "group")}
    except (OSError, ValueError, tarfile.TarError) as failure:
        result = {"error": str(failure)}
    with suppress(OSError), open(writes, "wb") as file:
        file.write(json.dumps(result).encode())
    os._exit(0)


def _write_all(archive: int) -> int:
    """Write all members of an archive to the filesystem; return the total size of its files in bytes."""
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
    for path, changed in reversed(folders):  # writing into them has changed it
        os.utime(path, (changed, changed))
    return total


def _members(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Yield the members of an archive without keeping them in memory."""
    for member in archive:
        yield member
        archive.members = []  # type: ignore[attr-defined] # tarfile keeps all members even in stream mode


def _make_folder(path: str, member: tarfile.TarInfo) -> None:
    os.makedirs(path, 0o755, exist_ok=True)
    os.chmod(path, member.mode & _STICKY | _FOLDER_MODE)


def _write(archive: tarfile.TarFile, member: tarfile.TarInfo, path: str) -> None:
    """Write an archive member that is a file, a link or a FIFO."""
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
    """Return the text of a file, limited to 1 MiB; empty if it cannot be read."""
    with suppress(OSError), open(path, "rb") as file:
        return file.read(_ACCOUNTS_BYTES).decode(errors="replace")
    return ""


# --- overlays ---
# Overlays (overlayfs) add missing mount points or a writable layer to a read-only directory.
#
# The lower directory stays unchanged. The upper layer is in the run's directory.


#: The maximum number of symbolic links in a path, as in Linux.
_LINKS_MAX = 40


def add_mount_points(shown: Mapping[str, str], targets: Sequence[tuple[str, bool]], own: str) -> dict[str, str]:
    """Return the source directory of each mount point, replaced by an overlay if it lacks mount points in `targets`.

    A target is a path and whether it is a directory. This process enters a new mount namespace, so that no other
    process sees the overlays.
    """
    found = dict(shown)
    lacking: dict[str, list[tuple[str, bool]]] = {}
    for target, is_folder in targets:
        path = _straight(target)
        place = next((place for place in shown if store.is_within(path, place)), None)
        if place is not None and not os.path.lexists(shown[place] + path.removeprefix(place)):
            lacking.setdefault(place, []).append((path.removeprefix(place), is_folder))
    if lacking:
        unshare_mounts()
    for number, (place, points) in enumerate(lacking.items()):
        added, seen = f"{own}/added-{number}", f"{own}/seen-{number}"
        os.mkdir(seen)
        for path, is_folder in points:
            make_place(f"{added}{path}", is_folder)
        linux.mount("overlay", seen, "overlay", f"lowerdir={_named(added)}:{_named(shown[place])}")
        found[place] = seen
    return found


def writable(folder: str, own: str) -> str:
    """Mount a writable overlay of a directory, with its upper layer in the directory `own`; return its path."""
    for name in ("written", "work", "image"):
        os.mkdir(f"{own}/{name}", 0o755)
    unshare_mounts()
    layers = f"lowerdir={_named(folder)},upperdir={_named(own)}/written,workdir={_named(own)}/work"
    try:
        linux.mount("overlay", f"{own}/image", "overlay", f"{layers},userxattr")
    except OSError:
        linux.mount("overlay", f"{own}/image", "overlay", layers)
    return f"{own}/image"


def resolve_in_root(root: str, path: str) -> str:
    """Resolve the symbolic links of a path within a root filesystem; the path need not exist.

    Without this, bubblewrap would resolve the links against the machine's own files.
    """
    return _without_links(path, lambda place: _link(f"{root}{place}"))


def resolve_in_folders(folders: Mapping[str, str], links: Mapping[str, str], path: str) -> str:
    """Resolve the symbolic links of a path in a container that sees directories and links of the machine."""

    def link_at(place: str) -> str | None:
        whole = next((whole for whole in folders if store.is_within(place, whole)), None)
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
            raise ValueError(f"{path}: too many levels of symbolic links (more than {_LINKS_MAX})")
        found = "" if target.startswith("/") else found
        steps += target.split("/")[::-1]
    return found or "/"


def unshare_mounts() -> None:
    """Enter a new mount namespace, so that other processes do not see later mounts."""
    linux.unshare(linux.NEWNS)
    linux.make_mounts_private()


def _named(path: str) -> str:
    """Escape a path for the mount options of overlayfs."""
    return path.replace("\\", "\\\\").replace(":", "\\:").replace(",", "\\,")


def _straight(path: str) -> str:
    """Resolve the first component of a path if it is a symbolic link such as /bin."""
    first, found, rest = path[1:].partition("/")
    return f"{os.path.realpath(f'/{first}')}{found}{rest}" if os.path.islink(f"/{first}") else path


def make_place(path: str, is_folder: bool) -> None:
    """Create a mount point (a directory or an empty file) and its parent directories."""
    os.makedirs(path if is_folder else os.path.dirname(path), exist_ok=True)
    if not is_folder:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o644))
