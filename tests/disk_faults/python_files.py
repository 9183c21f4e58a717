"""The seam between the store and the disk: the file calls of its modules, replaced by a simulated disk.

The store calls SQLite, `os`, `fcntl.flock`, `tempfile.mkstemp` and methods of `Path`. SQLite's calls are replaced in
sqlite_files.py, the others here.
"""

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import PosixPath
from stat import S_IFREG
from types import SimpleNamespace
from typing import Any, ClassVar, Final
from unittest.mock import patch

from batchyard.store import journal, journal_file
from disk_faults.disk import SimulatedDisk, SimulatedFile
from disk_faults.sqlite_files import SqliteFiles, sqlite_on

_FOLDER_LENGTH: Final = 4096


class SimulatedPath(PosixPath):
    """A path on the current simulated disk. Paths without a suffix are folders, which always exist."""

    disk: ClassVar[SimulatedDisk]

    def exists(self, **_: Any) -> bool:
        """Return whether the file exists."""
        return str(self) in self.disk.files

    def is_file(self) -> bool:
        """Return whether the file exists."""
        return str(self) in self.disk.files

    def is_dir(self) -> bool:
        """Return whether this is a folder."""
        return not self.suffix

    def is_symlink(self) -> bool:
        """Return false: the disk has no links."""
        return False

    def stat(self, **_: Any) -> os.stat_result:
        """Return the length."""
        if str(self) not in self.disk.files:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory")
        return os.stat_result((S_IFREG | 0o600, 0, 0, 1, 0, 0, len(self.disk.files[str(self)].cache), 0, 0, 0))

    def unlink(self, missing_ok: bool = False) -> None:
        """Remove the file."""
        if not missing_ok or str(self) in self.disk.files:
            self.disk.unlink(str(self))

    def rename(self, target: Any) -> Any:
        """Rename the file."""
        self.disk.rename(str(self), str(target))
        return target

    def open(self, *_: Any, **__: Any) -> Any:
        """Open for reading."""
        return OpenForReading(self.disk, self.disk.open(str(self), writes=False, creates=False))


class OpenForReading:
    """A file object that reads from the start."""

    def __init__(self, disk: SimulatedDisk, file: SimulatedFile) -> None:
        self._disk, self._file = disk, file

    def __enter__(self) -> "OpenForReading":
        return self

    def __exit__(self, *_: object) -> None:
        """Close nothing."""

    def read(self, length: int) -> bytes:
        """Return the first bytes."""
        return self._disk.read(self._file, 0, length)


class PythonFiles:
    """File descriptors and locks of a program on a simulated disk; stands for `os`, `fcntl` and `tempfile`."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self._disk = disk
        self._descriptors: dict[int, SimulatedFile | str] = {}
        self._locks: dict[int, SimulatedFile] = {}
        self._last = 100

    def forget_processes(self) -> None:
        """Close the descriptors of programs that have ended."""
        self._descriptors.clear()
        self._locks.clear()

    def open(self, path: Any, flags: int, _mode: int = 0) -> int:
        """Open a file or a folder."""
        opened: SimulatedFile | str = str(path)
        if not isinstance(path, SimulatedPath) or not path.is_dir():
            writes, creates = bool(flags & (os.O_RDWR | os.O_WRONLY)), bool(flags & os.O_CREAT)
            opened = self._disk.open(str(path), writes=writes, creates=creates, is_exclusive=bool(flags & os.O_EXCL))
        self._last += 1
        self._descriptors[self._last] = opened
        return self._last

    def close(self, fd: int) -> None:
        """Close a descriptor, and release its lock."""
        self._descriptors.pop(fd, None)
        self._locks.pop(fd, None)

    def pread(self, fd: int, length: int, offset: int) -> bytes:
        """Read bytes."""
        return self._disk.read(self._file(fd), offset, length)

    def pwrite(self, fd: int, content: bytes, offset: int) -> int:
        """Write bytes; return their number."""
        return self._disk.write(self._file(fd), offset, bytes(content))

    def ftruncate(self, fd: int, length: int) -> None:
        """Set the length."""
        self._disk.truncate(self._file(fd), length)

    def fsync(self, fd: int) -> None:
        """Flush a file or a folder."""
        opened = self._descriptors[fd]
        if isinstance(opened, str):
            self._disk.flush_folder(opened)
        else:
            self._disk.flush(opened)

    def flock(self, fd: int, operation: int) -> None:
        """Lock a file exclusively, or raise."""
        file = self._file(fd)
        if any(other is file for held, other in self._locks.items() if held != fd):
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        if operation & fcntl.LOCK_EX:
            self._locks[fd] = file

    def mkstemp(self, prefix: str, suffix: str, dir: Any) -> tuple[int, str]:  # noqa: A002 - as in tempfile
        """Create a file with a new name."""
        self._last += 1
        path = SimulatedPath(dir) / f"{prefix}{self._last}{suffix}"
        return self.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL), str(path)

    def module(self) -> SimpleNamespace:
        """Return what stands for the module `os`."""
        calls = {name: getattr(self, name) for name in ("open", "close", "pread", "pwrite", "ftruncate", "fsync")}
        return SimpleNamespace(**{**vars(os), **calls})

    def _file(self, fd: int) -> SimulatedFile:
        opened = self._descriptors.get(fd)
        if not isinstance(opened, SimulatedFile):
            raise OSError(errno.EBADF, "Bad file descriptor")
        return opened


@contextmanager
def store_on(disk: SimulatedDisk) -> Iterator[tuple[PythonFiles, SqliteFiles]]:
    """Let the store use the simulated disk, within the context."""
    python_files, sqlite_files = PythonFiles(disk), SqliteFiles(disk)
    SimulatedPath.disk = disk
    simulated_os = python_files.module()
    locks = SimpleNamespace(**{**vars(fcntl), "flock": python_files.flock})
    with ExitStack() as stack:
        stack.enter_context(sqlite_on(sqlite_files))
        for module, name, value in (
            (journal, "os", simulated_os),
            (journal_file, "os", simulated_os),
            (journal_file, "fcntl", locks),
            (journal, "mkstemp", python_files.mkstemp),
            (journal, "Path", SimulatedPath),
        ):
            stack.enter_context(patch.object(module, name, value))
        yield python_files, sqlite_files
