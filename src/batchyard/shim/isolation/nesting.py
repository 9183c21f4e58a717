"""Volume mounts inside other volume mounts, which are attached before bubblewrap starts.

bubblewrap resolves mount points by path while all files of the machine are still visible. A symbolic link that a
container created in the outer volume could redirect a mount outside of the container. Therefore mount points in a
volume are opened here from the volume's root, component by component, with the rights of the pod's user.
"""

import errno
import os
import posixpath
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from batchyard.shim import linux
from batchyard.shim.images import store, unpacking

# --- path traversal without links ---
#
# Containers can replace a checked directory by a symbolic link at any time. Each path component is therefore opened,
# and the next one is opened relative to that descriptor.


_PLACE = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def open_path(top: str | int, path: str) -> int:
    """Open a path below a directory with O_PATH. OSError if it does not exist, ELOOP if it contains a symbolic link."""
    return _walked(top, path, None)


def make_directories(top: str | int, path: str, mode: int) -> int:
    """Open a directory below a directory as `open_path` does; create missing directories with `mode`."""
    return _walked(top, path, mode)


def create_file(top: str | int, path: str, mode: int) -> int:
    """Open a file below a directory as `open_path` does; create it with `mode` if it is missing."""
    folder = open_path(top, os.path.dirname(path))
    name = os.path.basename(path)
    try:
        try:
            file = os.open(name, _NEW_FILE, mode, dir_fd=folder)
        except FileExistsError:
            return open_path(folder, name)
        os.fchmod(file, mode)
        os.close(file)
        return open_path(folder, name)
    finally:
        os.close(folder)


def _walked(top: str | int, path: str, mode: int | None) -> int:
    here = os.open(top, os.O_PATH | os.O_CLOEXEC) if isinstance(top, str) else os.dup(top)
    for step in (step for step in path.split("/") if step not in {"", "."}):
        try:
            below = _step(here, step, mode)
        finally:
            os.close(here)
        here = below
    return here


def _step(folder: int, name: str, mode: int | None) -> int:
    if name == "..":
        raise OSError(errno.EINVAL, "'..' is not allowed in this path", name)
    try:
        found = os.open(name, _PLACE, dir_fd=folder)
    except FileNotFoundError:
        if mode is None:
            raise
        return _made_folder(folder, name, mode)
    if stat.S_ISLNK(os.fstat(found).st_mode):
        os.close(found)
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), name)
    return found


def _made_folder(folder: int, name: str, mode: int) -> int:
    """Create a directory with exactly this mode, regardless of the umask; return its descriptor.

    If another process replaces the directory at the same time, the mode is set on that process's directory.
    """
    os.mkdir(name, mode, dir_fd=folder)
    file = os.open(name, _FOLDER, dir_fd=folder)
    os.fchmod(file, mode)
    return file


_FOLDER_MODE, _FILE_MODE = 0o755, 0o644


class _Row(NamedTuple):
    """A volume mount: its source, its mount point, and whether it is read-only."""

    source: str
    place: str
    is_read_only: bool


class _Tree:
    """The mounts of a container, outer ones first, with descriptors of the mounts that contain others."""

    def __init__(self, rows: list[_Row], own: str) -> None:
        self._rows = rows
        self._own = own
        self._outer = [self.enclosing(row.place, number) for number, row in enumerate(rows)]
        self._held: dict[int, int] = {}
        self._stages: dict[int, str] = {}

    def enclosing(self, place: str, before: int | None = None) -> int | None:
        """Return the index of the innermost mount that contains a path, among the first `before` mounts, or None."""
        found = [number for number, row in enumerate(self._rows[:before]) if store.is_within(place, row.place)]
        return found[-1] if found else None

    def attach(self) -> None:
        """Attach each mount whose mount point lies in another mount."""
        for number, outer in enumerate(self._outer):
            if outer is not None:
                self._attach(number, outer)

    def make_folder(self, place: str, outer: int) -> None:
        """Create the working directory in a mount; errors are ignored, since the container start reports them."""
        with suppress(OSError):
            os.close(make_directories(self._hold(outer), self._below(place, outer), _FOLDER_MODE))

    def outermost(self) -> list[dict[str, Any]]:
        """Return the outermost mounts in the format of a run's spec; attached mounts are part of them."""
        return [
            {"source": self._stages[number], "target": row.place, "readOnly": False}
            if number in self._stages
            else {"source": row.source, "target": row.place, "readOnly": row.is_read_only}
            for number, row in enumerate(self._rows)
            if self._outer[number] is None
        ]

    def _below(self, place: str, outer: int) -> str:
        return place.removeprefix(self._rows[outer].place)

    def _hold(self, number: int) -> int:
        """Return the descriptor of a mount; an outermost mount is first attached in the run's directory."""
        if number not in self._held:
            if not self._held:
                unpacking.unshare_mounts()
            row, stage = self._rows[number], f"{self._own}/stage-{number}"
            copy = self._copied(row)
            unpacking.make_place(stage, stat.S_ISDIR(os.fstat(copy).st_mode))
            linux.attach_mount(copy, stage)
            self._held[number], self._stages[number] = copy, stage
        return self._held[number]

    def _copied(self, row: _Row) -> int:
        copy = linux.clone_mount(row.source)
        if row.is_read_only:
            linux.make_read_only(copy)
        return copy

    def _attach(self, number: int, outer: int) -> None:
        top, row = self._hold(outer), self._rows[number]
        copy, below = self._copied(row), self._below(row.place, outer)
        try:
            if stat.S_ISDIR(os.fstat(copy).st_mode):
                point = make_directories(top, below, _FOLDER_MODE)
            else:
                point = create_file(top, below, _FILE_MODE)
        except OSError as failure:
            if failure.errno != errno.ELOOP:
                raise
            raise ValueError(f"the path of mount {row.place} contains a symbolic link in another volume") from failure
        linux.attach_mount_at(copy, point)
        os.close(point)
        self._held[number] = copy


def normal(path: str) -> str:
    """Normalize an absolute path: remove `.`, `..` and repeated slashes."""
    return posixpath.normpath("/" + path.lstrip("/"))


def nested(spec: Mapping[str, Any], place_of: Callable[[str], str], run: str) -> dict[str, Any]:
    """Attach the nested mounts of a run's spec; return the spec with only the outermost mounts.

    `place_of` resolves the symbolic links of a path in the container; `run` is the run's directory. ValueError if a
    mount point is not allowed.
    """
    rows = [_Row(mount["source"], place_of(normal(mount["target"])), mount["readOnly"]) for mount in spec["mounts"]]
    for row in rows:
        _check(row.place)
    rows.sort(key=lambda row: row.place.count("/"))
    last = place_of(normal(spec["terminationMessagePath"])) if spec["terminationMessagePath"] else ""
    tree = _Tree(rows, f"{run}/root")
    if last:
        _check(last)
        if tree.enclosing(last) is not None:
            tree = _Tree([*rows, _Row(f"{run}/termination-log", last, False)], f"{run}/root")
            last = ""
    tree.attach()
    folder = normal(spec["workingDir"] or "/")
    outer = tree.enclosing(place_of(folder))
    if outer is not None:
        tree.make_folder(place_of(folder), outer)
    return {**spec, "mounts": tree.outermost(), "terminationMessagePath": last, "workingDir": folder}


def _check(place: str) -> None:
    """Raise ValueError, with runc's message, if a mount point is / or in /proc."""
    if place == "/":
        raise ValueError("a volume cannot be mounted at /: use another mountPath")
    if store.is_within(place, "/proc"):
        raise ValueError(f'"{place}" cannot be mounted because it is inside /proc')
