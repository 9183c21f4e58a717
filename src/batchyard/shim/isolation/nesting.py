"""Volume mounts with mount points inside other volumes, which are attached before bubblewrap starts.

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
from batchyard.shim.images import image_kinds, unpacking

# Containers can replace a checked directory by a symbolic link at any time. Each path component is therefore opened,
# and the next one is opened relative to that descriptor.


_PATH_FLAGS = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def open_path(top: str | int, path: str) -> int:
    """Open `path` below the directory `top` with O_PATH; return the descriptor.

    Raises OSError if the path is missing or, with errno ELOOP, if it contains a symbolic link.
    """
    return _open_components(top, path, None)


def make_directories(top: str | int, path: str, mode: int) -> int:
    """Open the directory `path` below `top` without following links; return the descriptor.

    Missing directories are created with `mode`. Raises OSError with errno ELOOP if the path has a symbolic link.
    """
    return _open_components(top, path, mode)


def create_file(top: str | int, path: str, mode: int) -> int:
    """Open the file `path` below the directory `top` without following links; return an O_PATH descriptor.

    A missing file is created with `mode`. Raises OSError if its directory is missing, or with errno ELOOP if the
    path contains a symbolic link.
    """
    folder_fd = open_path(top, os.path.dirname(path))
    name = os.path.basename(path)
    try:
        try:
            fd = os.open(name, _NEW_FILE_FLAGS, mode, dir_fd=folder_fd)
        except FileExistsError:
            return open_path(folder_fd, name)
        os.fchmod(fd, mode)
        os.close(fd)
        return open_path(folder_fd, name)
    finally:
        os.close(folder_fd)


def _open_components(top: str | int, path: str, mode: int | None) -> int:
    current_fd = os.open(top, os.O_PATH | os.O_CLOEXEC) if isinstance(top, str) else os.dup(top)
    for component in (component for component in path.split("/") if component not in {"", "."}):
        try:
            next_fd = _open_component(current_fd, component, mode)
        finally:
            os.close(current_fd)
        current_fd = next_fd
    return current_fd


def _open_component(folder_fd: int, name: str, mode: int | None) -> int:
    if name == "..":
        raise OSError(errno.EINVAL, "'..' is not allowed in this path", name)
    try:
        fd = os.open(name, _PATH_FLAGS, dir_fd=folder_fd)
    except FileNotFoundError:
        if mode is None:
            raise
        return _create_folder(folder_fd, name, mode)
    if stat.S_ISLNK(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), name)
    return fd


def _create_folder(folder_fd: int, name: str, mode: int) -> int:
    """Create a directory with exactly this mode, regardless of the umask; return its descriptor.

    If another process replaces the directory at the same time, the mode is set on that process's directory.
    """
    os.mkdir(name, mode, dir_fd=folder_fd)
    fd = os.open(name, _FOLDER_FLAGS, dir_fd=folder_fd)
    os.fchmod(fd, mode)
    return fd


_FOLDER_MODE, _FILE_MODE = 0o755, 0o644


class _VolumeMount(NamedTuple):
    source: str
    target: str
    is_read_only: bool


class _MountTree:
    """The volume mounts of a container, outer ones first, with descriptors of the mounts that contain other mounts."""

    def __init__(self, volume_mounts: list[_VolumeMount], run_root: str) -> None:
        self._mounts = volume_mounts
        self._run_root = run_root
        self._outer_indexes = [self.find_enclosing(mount.target, index) for index, mount in enumerate(volume_mounts)]
        self._mount_fds: dict[int, int] = {}
        self._stage_paths: dict[int, str] = {}

    def find_enclosing(self, target: str, limit: int | None = None) -> int | None:
        """Return the index of the innermost mount that contains `target`, or None; search the first `limit` mounts."""
        indexes = [
            index for index, mount in enumerate(self._mounts[:limit]) if image_kinds.is_within(target, mount.target)
        ]
        return indexes[-1] if indexes else None

    def attach_nested_volumes(self) -> None:
        for index, outer_index in enumerate(self._outer_indexes):
            if outer_index is not None:
                self._attach_mount(index, outer_index)

    def make_folder(self, target: str, outer_index: int) -> None:
        """Create the working directory `target` in mount number `outer_index`; the container start reports failures."""
        with suppress(OSError):
            os.close(
                make_directories(self._open_mount(outer_index), self._relative_path(target, outer_index), _FOLDER_MODE)
            )

    def outermost_mounts(self) -> list[dict[str, Any]]:
        return [
            {"source": self._stage_paths[index], "target": volume_mount.target, "readOnly": False}
            if index in self._stage_paths
            else {"source": volume_mount.source, "target": volume_mount.target, "readOnly": volume_mount.is_read_only}
            for index, volume_mount in enumerate(self._mounts)
            if self._outer_indexes[index] is None
        ]

    def _relative_path(self, target: str, outer_index: int) -> str:
        return target.removeprefix(self._mounts[outer_index].target)

    def _open_mount(self, index: int) -> int:
        if index not in self._mount_fds:
            if not self._mount_fds:
                unpacking.unshare_mounts()
            volume_mount, stage_path = self._mounts[index], f"{self._run_root}/stage-{index}"
            mount_fd = self._copy_mount(volume_mount)
            unpacking.make_mount_point(stage_path, stat.S_ISDIR(os.fstat(mount_fd).st_mode))
            linux.attach_mount(mount_fd, stage_path)
            self._mount_fds[index], self._stage_paths[index] = mount_fd, stage_path
        return self._mount_fds[index]

    def _copy_mount(self, volume_mount: _VolumeMount) -> int:
        mount_fd = linux.clone_mount(volume_mount.source)
        if volume_mount.is_read_only:
            linux.make_read_only(mount_fd)
        return mount_fd

    def _attach_mount(self, index: int, outer_index: int) -> None:
        outer_fd, mount = self._open_mount(outer_index), self._mounts[index]
        mount_fd, relative_path = self._copy_mount(mount), self._relative_path(mount.target, outer_index)
        try:
            if stat.S_ISDIR(os.fstat(mount_fd).st_mode):
                mount_point_fd = make_directories(outer_fd, relative_path, _FOLDER_MODE)
            else:
                mount_point_fd = create_file(outer_fd, relative_path, _FILE_MODE)
        except OSError as failure:
            if failure.errno != errno.ELOOP:
                raise
            message = (
                f"the path of mount {mount.target} contains a symbolic link in another volume; use a path without links"
            )
            raise ValueError(message) from failure
        linux.attach_mount_at(mount_fd, mount_point_fd)
        os.close(mount_point_fd)
        self._mount_fds[index] = mount_fd


def normalize_path(path: str) -> str:
    """Normalize an absolute path: remove `.`, `..` and repeated slashes."""
    return posixpath.normpath("/" + path.lstrip("/"))


def attach_nested_mounts(
    spec: Mapping[str, Any], resolve_path: Callable[[str], str], run_folder: str
) -> dict[str, Any]:
    """Attach the mounts that lie in other mounts; return the container's spec with only the outermost ones.

    A termination log in a mount is attached too, and its path in the spec is then ''. A working directory in a mount is
    created. `resolve_path` resolves the symbolic links of a path in the container; `run_folder` is the run's directory.
    Raises ValueError if a mount point is `/`, is in /proc, or has a symbolic link in another mount.
    """
    mounts = [
        _VolumeMount(mount["source"], resolve_path(normalize_path(mount["target"])), mount["readOnly"])
        for mount in spec["mounts"]
    ]
    for volume_mount in mounts:
        _check_mount_point(volume_mount.target)
    mounts.sort(key=lambda volume_mount: volume_mount.target.count("/"))
    log_path = resolve_path(normalize_path(spec["terminationMessagePath"])) if spec["terminationMessagePath"] else ""
    mount_tree = _MountTree(mounts, f"{run_folder}/root")
    if log_path:
        _check_mount_point(log_path)
        if mount_tree.find_enclosing(log_path) is not None:
            mount_tree = _MountTree(
                [*mounts, _VolumeMount(f"{run_folder}/termination-log", log_path, False)], f"{run_folder}/root"
            )
            log_path = ""
    mount_tree.attach_nested_volumes()
    working_directory = normalize_path(spec["workingDir"] or "/")
    outer_index = mount_tree.find_enclosing(resolve_path(working_directory))
    if outer_index is not None:
        mount_tree.make_folder(resolve_path(working_directory), outer_index)
    return {
        **spec,
        "mounts": mount_tree.outermost_mounts(),
        "terminationMessagePath": log_path,
        "workingDir": working_directory,
    }


def _check_mount_point(target: str) -> None:
    if target == "/":
        raise ValueError("a volume cannot be mounted at /: use another mountPath")
    if image_kinds.is_within(target, "/proc"):
        raise ValueError(f'"{target}" cannot be mounted because it is inside /proc')
