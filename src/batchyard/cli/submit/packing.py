"""Packs a folder as a reproducible archive, which a Job unpacks as its working directory."""

import gzip
import io
import os
import stat
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from batchyard.server.platform.data_dir import JOURNAL

#: The archive is stored in ConfigMaps, which API servers hold in memory: it is for programs, not for data.
PACKED_MAX: Final = 8 * 1024 * 1024
#: Larger folders are rejected before packing.
FILES_MAX: Final = 100 * 1024 * 1024
LEFT_OUT: Final = frozenset({".git", "__pycache__", ".venv", ".batchyard"})
#: Folders with one of these are virtual environments, or data directories with a platform's keys.
_MARKS: Final = ("pyvenv.cfg", JOURNAL)
_NAMED_MAX: Final = 5
#: The earliest time that zip files, such as wheels, can store.
_MODIFIED: Final = 315_532_800  # 1980-01-01


class PackingError(Exception):
    """A folder cannot be shipped; the message has the reason and the remedy."""


class PackedFolder(NamedTuple):
    """An archive (tar, gzip), its number of files, and the paths that were left out."""

    content: bytes
    files: int
    left_out: Sequence[str]


class _Found(NamedTuple):
    """A folder entry to ship: its relative name and its size."""

    name: str
    path: Path
    size: int


def pack(folder: Path) -> PackedFolder:
    """Return the archive of a folder; PackingError if it is too large, unreadable, or has links to outside."""
    root = folder.resolve()
    if not root.is_dir():
        raise PackingError(f"{folder}: folder not found")
    left_out: list[str] = []
    try:
        found = list(_found_in(root, root, left_out))
        size = sum(each.size for each in found)
        if size > FILES_MAX:
            raise PackingError(_too_large(folder, size, FILES_MAX, "", found))
        content = gzip.compress(_archive(found), mtime=0)
    except OSError as error:
        raise PackingError(f"{error.filename or folder}: {error.strerror}") from error
    if len(content) > PACKED_MAX:
        raise PackingError(_too_large(folder, len(content), PACKED_MAX, " packed", found))
    files = sum(not stat.S_ISDIR(each.path.lstat().st_mode) for each in found)
    return PackedFolder(content, files, left_out)


def _found_in(folder: Path, root: Path, left_out: list[str]) -> Iterator[_Found]:
    """The entries below a folder in order of their names; excluded ones are appended to `left_out`."""
    for path in sorted(folder.iterdir()):
        name = path.relative_to(root).as_posix()
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            _check_link(path, root)
            yield _Found(name, path, 0)
        elif stat.S_ISDIR(mode):
            if path.name in LEFT_OUT or any((path / mark).exists() for mark in _MARKS):
                left_out.append(f"{name}/")
                continue
            yield _Found(name, path, 0)
            yield from _found_in(path, root, left_out)
        elif stat.S_ISREG(mode):
            yield _Found(name, path, path.lstat().st_size)
        else:  # a socket, a pipe, a device
            left_out.append(name)


def _check_link(path: Path, root: Path) -> None:
    """PackingError unless a symbolic link is relative and stays within the folder; links are shipped as links."""
    target = path.readlink()
    if target.is_absolute() or not (path.parent / target).resolve().is_relative_to(root):
        message = f"it points to {target}, outside {root}" if not target.is_absolute() else f"it points to {target}"
        raise PackingError(f"{path}: {message}: links must be relative and stay within the folder")


def _archive(found: Sequence[_Found]) -> bytes:
    """The tar of the entries: only names, contents, links and the executable bit."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for each in found:
            mode = each.path.lstat().st_mode
            member = tarfile.TarInfo(each.name)
            member.mtime = _MODIFIED
            member.mode = 0o755 if stat.S_ISDIR(mode) or mode & stat.S_IXUSR else 0o644
            content = b""
            if stat.S_ISLNK(mode):
                member.type, member.linkname = tarfile.SYMTYPE, os.fspath(each.path.readlink())
            elif stat.S_ISDIR(mode):
                member.type = tarfile.DIRTYPE
            else:
                content = each.path.read_bytes()
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return file.getvalue()


def _too_large(folder: Path, size: int, most: int, how: str, found: Sequence[_Found]) -> str:
    largest = sorted(found, key=lambda each: (-each.size, each.name))[:_NAMED_MAX]
    named = ", ".join(f"{each.name} ({megabytes(each.size)})" for each in largest)
    message = f"{folder}: {megabytes(size)}{how}, more than the limit of {megabytes(most)}; the largest files: {named}"
    return f"{message}; keep large files on a volume, such as with --checkpoint-dir, or in the image"


def megabytes(size: int) -> str:
    """Format a size in bytes as MB, or kB if small (decimal)."""
    return f"{size / 1_000_000:.1f} MB" if size >= 100_000 else f"{size / 1000:.1f} kB"
