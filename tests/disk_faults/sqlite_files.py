"""The files of SQLite on a simulated disk: a virtual file system (VFS) that is SQLite's default within a context.

It makes the same calls as SQLite's own one for Unix. In particular, the first flush of a new log also flushes its
folder, and an error of that flush is ignored.
"""

import _sqlite3
import ctypes
import errno
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import PurePath
from typing import Any, Final

from batchyard.base.primitives import collect_garbage
from disk_faults.disk import SimulatedDisk, SimulatedFile

_POINTER, _INT, _INT64, _TEXT = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_char_p
_OK, _BUSY, _READONLY, _NOT_FOUND, _FULL, _CANTOPEN = 0, 5, 8, 12, 13, 14
_IOERR_READ, _IOERR_SHORT_READ, _IOERR_WRITE, _IOERR_FSYNC = 266, 522, 778, 1034
_IOERR_LOCK = 3850
_IOERR_DIR_FSYNC, _IOERR_TRUNCATE, _IOERR_DELETE, _IOERR_DELETE_NOENT = 1290, 1546, 2570, 5898
_OPEN_READONLY, _OPEN_READWRITE, _OPEN_CREATE = 1, 2, 4
_OPEN_LOGS: Final = 0x00000800 | 0x00004000 | 0x00080000  # rollback journal, super-journal, write-ahead log
_SHM_UNLOCK, _SHM_EXCLUSIVE = 1, 8
_POWERSAFE_OVERWRITE: Final = 0x1000
_EXCLUSIVE: Final = 4
_SHARED: Final = 1

_METHODS: Final = (
    ("close", (_POINTER,)),
    ("read", (_POINTER, _POINTER, _INT, _INT64)),
    ("write", (_POINTER, _POINTER, _INT, _INT64)),
    ("truncate", (_POINTER, _INT64)),
    ("sync", (_POINTER, _INT)),
    ("file_size", (_POINTER, ctypes.POINTER(_INT64))),
    ("lock", (_POINTER, _INT)),
    ("unlock", (_POINTER, _INT)),
    ("check_reserved_lock", (_POINTER, ctypes.POINTER(_INT))),
    ("file_control", (_POINTER, _INT, _POINTER)),
    ("sector_size", (_POINTER,)),
    ("device_characteristics", (_POINTER,)),
    ("shm_map", (_POINTER, _INT, _INT, _INT, ctypes.POINTER(_POINTER))),
    ("shm_lock", (_POINTER, _INT, _INT, _INT)),
    ("shm_barrier", (_POINTER,)),
    ("shm_unmap", (_POINTER, _INT)),
)
_VFS_CALLS: Final = (
    ("open", (_POINTER, _TEXT, _POINTER, _INT, ctypes.POINTER(_INT))),
    ("delete", (_POINTER, _TEXT, _INT)),
    ("access", (_POINTER, _TEXT, _INT, ctypes.POINTER(_INT))),
    ("full_pathname", (_POINTER, _TEXT, _INT, _POINTER)),
    ("dl_open", ()),
    ("dl_error", ()),
    ("dl_sym", ()),
    ("dl_close", ()),
    ("randomness", (_POINTER, _INT, _POINTER)),
    ("sleep", (_POINTER, _INT)),
    ("current_time", (_POINTER, ctypes.POINTER(ctypes.c_double))),
    ("get_last_error", (_POINTER, _INT, _TEXT)),
    ("current_time_int64", (_POINTER, ctypes.POINTER(_INT64))),
)


class _FileMethods(ctypes.Structure):
    _fields_ = (("version", _INT), *((name, _POINTER) for name, _ in _METHODS))


class _SqliteFile(ctypes.Structure):
    _fields_ = (("methods", ctypes.POINTER(_FileMethods)), ("number", _INT64))


class _Vfs(ctypes.Structure):
    _fields_ = (
        ("version", _INT),
        ("file_size", _INT),
        ("path_max", _INT),
        ("next", _POINTER),
        ("name", _TEXT),
        ("data", _POINTER),
        *((name, _POINTER) for name, _ in _VFS_CALLS),
    )


class OpenSqliteFile:
    """An open file of a connection, and the locks that it holds."""

    def __init__(self, path: str, file: SimulatedFile, flags: int, *, is_new_log: bool) -> None:
        self.path = path
        self.file = file
        self.flags = flags
        self.flushes_folder = is_new_log
        self.lock = 0
        self.shared_slots: set[int] = set()
        self.exclusive_slots: set[int] = set()
        self.maps_memory = False


class SqliteFiles:
    """SQLite's view of a simulated disk: open files, locks, and shared memory of write-ahead logs."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self._disk = disk
        self._open: dict[int, OpenSqliteFile] = {}
        self._memory: dict[str, list[Any]] = {}
        self._last_number = 0

    def forget_processes(self) -> None:
        """Release the locks and the shared memory of programs that have ended."""
        self._open.clear()
        _retired_memory.extend(self._memory.values())
        self._memory.clear()

    # --- the VFS; each returns a result code of SQLite ---

    def open(self, _vfs: int, name: bytes | None, pointer: int, flags: int, flags_out: Any) -> int:
        """Open a file of a database. Temporary files have no name; the store uses none."""
        sqlite_file = ctypes.cast(pointer, ctypes.POINTER(_SqliteFile)).contents
        sqlite_file.methods = None
        if name is None:
            return _CANTOPEN
        path = name.decode("utf-8", "surrogateescape")
        creates, is_new = bool(flags & _OPEN_CREATE), path not in self._disk.files
        try:
            file = self._disk.open(path, writes=bool(flags & _OPEN_READWRITE), creates=creates)
        except OSError as error:
            if not flags & _OPEN_READWRITE or path not in self._disk.files or error.errno == errno.EMFILE:
                return _CANTOPEN
            try:
                file = self._disk.open(path, writes=False, creates=False)
            except OSError:
                return _CANTOPEN
            flags = flags & ~(_OPEN_READWRITE | _OPEN_CREATE) | _OPEN_READONLY
        self._last_number += 1
        self._open[self._last_number] = OpenSqliteFile(
            path, file, flags, is_new_log=creates and is_new and bool(flags & _OPEN_LOGS)
        )
        sqlite_file.number = self._last_number
        sqlite_file.methods = ctypes.pointer(_file_methods)
        if flags_out:
            flags_out[0] = flags
        return _OK

    def delete(self, _vfs: int, name: bytes, flushes_folder: int) -> int:
        """Delete a file."""
        path = name.decode("utf-8", "surrogateescape")
        try:
            self._disk.unlink(path)
        except FileNotFoundError:
            return _IOERR_DELETE_NOENT
        except OSError:
            return _IOERR_DELETE
        try:
            if flushes_folder:
                self._disk.flush_folder(str(PurePath(path).parent))
        except OSError:
            return _IOERR_DIR_FSYNC
        return _OK

    def access(self, _vfs: int, name: bytes, _flags: int, result: Any) -> int:
        """Find a file that is not empty."""
        file = self._disk.files.get(name.decode("utf-8", "surrogateescape"))
        result[0] = int(file is not None and len(file.cache) > 0)
        return _OK

    def full_pathname(self, _vfs: int, name: bytes, length: int, buffer: int) -> int:
        """Return the path, which is absolute."""
        if len(name) >= length:
            return _CANTOPEN
        ctypes.memmove(buffer, name + b"\0", len(name) + 1)
        return _OK

    def randomness(self, _vfs: int, length: int, buffer: int) -> int:
        """Return random bytes of the seed."""
        ctypes.memmove(buffer, self._disk.random.content(length), length)
        return length

    def sleep(self, _vfs: int, microseconds: int) -> int:
        """Return at once."""
        return microseconds

    def current_time(self, _vfs: int, result: Any) -> int:
        """Return a constant instant."""
        result[0] = 2460000.5
        return _OK

    def current_time_int64(self, _vfs: int, result: Any) -> int:
        """Return a constant instant."""
        result[0] = 212544043200000
        return _OK

    def get_last_error(self, _vfs: int, _length: int, _text: bytes) -> int:
        """Return no error number."""
        return 0

    # --- one file ---

    def close(self, opened: OpenSqliteFile) -> int:
        """Close a file."""
        for number, other in list(self._open.items()):
            if other is opened:
                del self._open[number]
        return _OK

    def read(self, opened: OpenSqliteFile, buffer: int, length: int, offset: int) -> int:
        """Read bytes; fill with zeros beyond the end."""
        try:
            content = self._disk.read(opened.file, offset, length)
        except OSError:
            return _IOERR_READ
        ctypes.memmove(buffer, content, len(content))
        if len(content) < length:
            ctypes.memset(buffer + len(content), 0, length - len(content))
            return _IOERR_SHORT_READ
        return _OK

    def write(self, opened: OpenSqliteFile, buffer: int, length: int, offset: int) -> int:
        """Write bytes; try again after a short write."""
        content = ctypes.string_at(buffer, length)
        try:
            while content:
                written = self._disk.write(opened.file, offset, content)
                if not written:
                    return _FULL
                content, offset = content[written:], offset + written
        except OSError as error:
            return _FULL if error.errno == errno.ENOSPC else _IOERR_WRITE
        return _OK

    def truncate(self, opened: OpenSqliteFile, length: int) -> int:
        """Set the length."""
        try:
            self._disk.truncate(opened.file, length)
        except OSError:
            return _IOERR_TRUNCATE
        return _OK

    def sync(self, opened: OpenSqliteFile, _flags: int) -> int:
        """Flush the file, and the folder of a new log."""
        try:
            self._disk.flush(opened.file)
        except OSError:
            return _IOERR_FSYNC
        if opened.flushes_folder:
            opened.flushes_folder = False
            try:
                self._disk.flush_folder(str(PurePath(opened.path).parent))
            except OSError:
                return _OK
        return _OK

    def file_size(self, opened: OpenSqliteFile, result: Any) -> int:
        """Return the length."""
        result[0] = len(opened.file.cache)
        return _OK

    def lock(self, opened: OpenSqliteFile, level: int) -> int:
        """Take a lock: shared, reserved, pending or exclusive (1 to 4)."""
        others = [other.lock for other in self._open.values() if other.file is opened.file and other is not opened]
        if level <= opened.lock:
            return _OK
        if level > _SHARED and opened.flags & _OPEN_READONLY:
            return _IOERR_LOCK
        limit = {_SHARED: 2, _EXCLUSIVE: 0}.get(level, 1)
        if any(other > limit for other in others):
            return _BUSY
        opened.lock = level
        return _OK

    def unlock(self, opened: OpenSqliteFile, level: int) -> int:
        """Lower a lock."""
        opened.lock = min(opened.lock, level)
        return _OK

    def check_reserved_lock(self, opened: OpenSqliteFile, result: Any) -> int:
        """Return whether a connection is about to write."""
        result[0] = int(any(other.lock > _SHARED for other in self._open.values() if other.file is opened.file))
        return _OK

    def file_control(self, _opened: OpenSqliteFile, _operation: int, _argument: int) -> int:
        """Know no operation."""
        return _NOT_FOUND

    def sector_size(self, _opened: OpenSqliteFile) -> int:
        """Return SQLite's default for Unix."""
        return 4096

    def device_characteristics(self, _opened: OpenSqliteFile) -> int:
        """Return SQLite's default for Unix."""
        return _POWERSAFE_OVERWRITE

    # --- shared memory ---

    def shm_map(self, opened: OpenSqliteFile, region: int, size: int, extends: int, result: Any) -> int:
        """Map a region."""
        regions = self._memory.setdefault(opened.path, [])
        opened.maps_memory = True
        while len(regions) <= region:
            if not extends:
                result[0] = None
                return _OK
            regions.append(ctypes.create_string_buffer(size))
        result[0] = ctypes.addressof(regions[region])
        return _OK

    def shm_lock(self, opened: OpenSqliteFile, first: int, count: int, flags: int) -> int:
        """Take or release locks."""
        slots = set(range(first, first + count))
        if flags & _SHM_UNLOCK:
            opened.shared_slots -= slots
            opened.exclusive_slots -= slots
            return _OK
        others = [other for other in self._open.values() if other.path == opened.path and other is not opened]
        if any(slots & other.exclusive_slots for other in others):
            return _BUSY
        if not flags & _SHM_EXCLUSIVE:
            opened.shared_slots |= slots
        elif any(slots & other.shared_slots for other in others):
            return _BUSY
        else:
            opened.exclusive_slots |= slots
        return _OK

    def shm_barrier(self, _opened: OpenSqliteFile) -> int:
        """Do nothing: there is one thread."""
        return _OK

    def shm_unmap(self, opened: OpenSqliteFile, _deletes: int) -> int:
        """Unmap; the last connection drops the memory."""
        opened.maps_memory = False
        if not any(other.maps_memory for other in self._open.values() if other.path == opened.path):
            _retired_memory.append(self._memory.pop(opened.path, []))
        return _OK

    def opened_file(self, number: int) -> OpenSqliteFile | None:
        """Return the open file with this number; None if its program has ended."""
        return self._open.get(number)


_library: Final = ctypes.CDLL(_sqlite3.__file__)
_library.sqlite3_vfs_find.restype = _POINTER
_library.sqlite3_libversion.restype = _TEXT
_file_methods: Final = _FileMethods()
_keep: Final[list[Any]] = []
_current: Final[list[SqliteFiles]] = []
#: Shared memory of ended programs, to which connections refer until they are collected as garbage.
_retired_memory: Final[list[list[Any]]] = []
_RETIRED_MAX: Final = 500


def _file_method(name: str) -> Callable[..., int]:
    method = getattr(SqliteFiles, name)
    number_offset = _SqliteFile.number.offset
    of_ended_program = {"close": _OK, "unlock": _OK, "shm_unmap": _OK, "shm_lock": _OK, "sector_size": 4096}

    def call(pointer: int, *arguments: Any) -> int:
        files = _current[0]
        opened = files.opened_file(_INT64.from_address(pointer + number_offset).value)
        if opened is None:
            return of_ended_program.get(name, _IOERR_READ)
        return int(method(files, opened, *arguments))

    return call


def _vfs_call(name: str) -> Callable[..., int]:
    method = getattr(SqliteFiles, name)
    return lambda *arguments: int(method(_current[0], *arguments))


def _make_vfs() -> _Vfs:
    for name, types in _METHODS:
        function = ctypes.CFUNCTYPE(_INT, *types)(_file_method(name))
        _keep.append(function)
        setattr(_file_methods, name, ctypes.cast(function, _POINTER))
    _file_methods.version = 2
    vfs = _Vfs(version=2, file_size=ctypes.sizeof(_SqliteFile), path_max=512, name=b"simulated-disk")
    for name, parameter_types in _VFS_CALLS:
        if parameter_types:
            function = ctypes.CFUNCTYPE(_INT, *parameter_types)(_vfs_call(name))
            _keep.append(function)
            setattr(vfs, name, ctypes.cast(function, _POINTER))
    return vfs


_vfs: Final = _make_vfs()


def is_supported() -> bool:
    """Whether this Python loads SQLite as a shared library, so that its file system can be replaced."""
    version = _library.sqlite3_libversion()
    return isinstance(version, bytes) and version.decode() == sqlite3.sqlite_version


@contextmanager
def sqlite_on(files: SqliteFiles) -> Iterator[None]:
    """Let all new connections use the simulated disk, within the context."""
    usual = _library.sqlite3_vfs_find(None)
    _current[:] = [files]
    _library.sqlite3_vfs_register(ctypes.byref(_vfs), 1)
    _library.sqlite3_randomness(0, None)
    try:
        yield
    finally:
        _library.sqlite3_vfs_unregister(ctypes.byref(_vfs))
        _library.sqlite3_vfs_register(ctypes.c_void_p(usual), 1)
        _library.sqlite3_randomness(0, None)
        if len(_retired_memory) > _RETIRED_MAX:
            collect_garbage()
            _retired_memory.clear()
