"""An image's root filesystem as a folder: written from an archive, in a process that sees nothing but that folder.

So no link of the archive leads anywhere else. All files are those of whoever runs the node, whom containers see as the
user that they run as: they may be read, and folders be written to, by their owner in any case. Left out are devices,
owners, and the bits by which programs run as somebody else, which containers never do.
"""

import json
import os
import signal
import tarfile
from collections.abc import Iterator
from contextlib import suppress
from shutil import copyfileobj
from typing import Any

from batchyard.node import linux

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
