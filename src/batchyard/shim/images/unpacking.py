"""Unpacking of image archives into root filesystems, and overlay mounts for directories that a container sees.

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
from batchyard.shim.images import image_kinds

_COPY_CHUNK_BYTES = 1 << 20
_ACCOUNT_FILE_BYTES_MAX = 1 << 20
_FOLDER_MODE, _FILE_MODE, _STICKY_MODE = 0o700, 0o400, 0o1777


def unpack(archive_fd: int, target: str) -> dict[str, Any]:
    """Unpack a tar archive into an empty directory, and close `archive_fd`. Raises OSError if unpacking fails.

    Return `{"bytes": 123, "passwd": "...", "group": "..."}`: the total size of regular files, and the contents of
    /etc/passwd and /etc/group.
    """
    result_reader, result_writer = os.pipe2(os.O_CLOEXEC)
    child_pid = os.fork()
    if child_pid == 0:
        os.close(result_reader)
        _unpack_in_child(archive_fd, target, result_writer)
    os.close(result_writer)
    os.close(archive_fd)
    with open(result_reader, "rb") as file:
        result_json = file.read()
    status = os.waitpid(child_pid, 0)[1]
    exit_code = os.waitstatus_to_exitcode(status)
    ending = f"signal {-exit_code}" if exit_code < 0 else f"exit code {exit_code}"
    failure_message = f"the process that unpacks the image ended with {ending}; the next attempt unpacks it again"
    result: dict[str, Any] = json.loads(result_json) if result_json else {"error": failure_message}
    if "error" in result:
        raise OSError(result["error"])
    return result


def _unpack_in_child(archive_fd: int, target: str, result_writer: int) -> None:
    try:
        linux.die_with_parent(signal.SIGKILL)
        if os.geteuid() != 0:
            linux.become_user_namespace_root(None)
        os.chroot(target)
        os.chdir("/")
        os.umask(0)
        result: dict[str, Any] = {"bytes": _write_members(archive_fd)}
        result |= {name: _read_text(f"/etc/{name}") for name in ("passwd", "group")}
    except (OSError, ValueError, tarfile.TarError) as failure:
        result = {"error": str(failure)}
    with suppress(OSError), open(result_writer, "wb") as file:
        file.write(json.dumps(result).encode())
    os._exit(0)


def _write_members(archive_fd: int) -> int:
    total_bytes, folder_times = 0, []
    with open(archive_fd, "rb") as file, tarfile.open(fileobj=file, mode="r|", bufsize=_COPY_CHUNK_BYTES) as tar:
        for member in _iterate_members(tar):
            path = os.path.normpath(f"/{member.name}")
            if member.isdir():
                _make_folder(path, member)
                folder_times.append((path, member.mtime))
                continue
            os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
            with suppress(FileNotFoundError):
                os.unlink(path)
            _write_member(tar, member, path)
            total_bytes += member.size if member.isreg() else 0
    for path, modified_at in reversed(folder_times):  # writing files into a directory has changed its time
        os.utime(path, (modified_at, modified_at))
    return total_bytes


def _iterate_members(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Yield the members of an archive without keeping them in memory."""
    for member in archive:
        yield member
        archive.members = []  # type: ignore[attr-defined] # tarfile keeps all members even in stream mode


def _make_folder(path: str, member: tarfile.TarInfo) -> None:
    os.makedirs(path, 0o755, exist_ok=True)
    os.chmod(path, member.mode & _STICKY_MODE | _FOLDER_MODE)


def _write_member(archive: tarfile.TarFile, member: tarfile.TarInfo, path: str) -> None:
    if member.issym():
        os.symlink(member.linkname, path)
    elif member.islnk():
        os.link(os.path.normpath(f"/{member.linkname}"), path, follow_symlinks=False)
    elif member.isfifo():
        os.mkfifo(path, member.mode & 0o777)
    elif member.isreg():
        member_file = archive.extractfile(member)
        with open(path, "xb") as file:
            if member_file is not None:
                copyfileobj(member_file, file, _COPY_CHUNK_BYTES)
            os.fchmod(file.fileno(), member.mode & 0o777 | _FILE_MODE)
        os.utime(path, (member.mtime, member.mtime))


def _read_text(path: str) -> str:
    with suppress(OSError), open(path, "rb") as file:
        return file.read(_ACCOUNT_FILE_BYTES_MAX).decode(errors="replace")
    return ""


# Overlays (overlayfs) add missing mount points or a writable layer to a read-only directory.
#
# The lower directory stays unchanged. The upper layer is in the run's directory.


#: The maximum number of symbolic links in a path, as in Linux.
_FOLLOWED_LINKS_MAX = 40


def add_mount_points(
    folders: Mapping[str, str], needed_paths: Sequence[tuple[str, bool]], run_root: str
) -> dict[str, str]:
    """Add missing mount points to read-only directories, by overlay mounts; return the source path by mount point.

    Each item of `needed_paths` is a path in the container, and whether a directory is needed there. The overlays are
    mounted below `run_root`, in a new mount namespace, so that no other process sees them.
    """
    sources_by_mount_point = dict(folders)
    missing_by_folder: dict[str, list[tuple[str, bool]]] = {}
    for target, is_folder in needed_paths:
        path = _resolve_first_component(target)
        mount_point = next((mount_point for mount_point in folders if image_kinds.is_within(path, mount_point)), None)
        if mount_point is not None and not os.path.lexists(folders[mount_point] + path.removeprefix(mount_point)):
            missing_by_folder.setdefault(mount_point, []).append((path.removeprefix(mount_point), is_folder))
    if missing_by_folder:
        unshare_mounts()
    for number, (mount_point, missing_paths) in enumerate(missing_by_folder.items()):
        added_folder, overlay = f"{run_root}/added-{number}", f"{run_root}/seen-{number}"
        os.mkdir(overlay)
        for path, is_folder in missing_paths:
            make_mount_point(f"{added_folder}{path}", is_folder)
        overlay_options = f"lowerdir={_escape_path(added_folder)}:{_escape_path(folders[mount_point])}"
        linux.mount("overlay", overlay, "overlay", overlay_options)
        sources_by_mount_point[mount_point] = overlay
    return sources_by_mount_point


def mount_writable_overlay(folder: str, run_folder: str) -> str:
    """Mount a writable overlay of a directory in a new mount namespace; return the path of the overlay.

    Changes are stored in `run_folder`.
    """
    for name in ("written", "work", "image"):
        os.mkdir(f"{run_folder}/{name}", 0o755)
    unshare_mounts()
    upper = _escape_path(run_folder)
    layer_options = f"lowerdir={_escape_path(folder)},upperdir={upper}/written,workdir={upper}/work"
    try:
        linux.mount("overlay", f"{run_folder}/image", "overlay", f"{layer_options},userxattr")
    except OSError:
        linux.mount("overlay", f"{run_folder}/image", "overlay", layer_options)
    return f"{run_folder}/image"


def resolve_in_root(root: str, path: str) -> str:
    """Resolve the symbolic links of a path within the root filesystem `root`; the path need not exist.

    bubblewrap itself would follow the links to the machine's own files. Raises ValueError after more than 40 links.
    """
    return _resolve_links(path, lambda link_path: _read_link(f"{root}{link_path}"))


def resolve_in_folders(folders: Mapping[str, str], link_targets: Mapping[str, str], path: str) -> str:
    """Return a path with its symbolic links resolved as inside a container.

    `folders` are the directories mounted in the container, by mount point. `link_targets` are the targets of the
    container's own links, by path. Raises ValueError after more than 40 links.
    """

    def read_link_at(link_path: str) -> str | None:
        mount_point = next(
            (mount_point for mount_point in folders if image_kinds.is_within(link_path, mount_point)), None
        )
        if mount_point is None:
            return link_targets.get(link_path)
        return _read_link(folders[mount_point] + link_path.removeprefix(mount_point))

    return _resolve_links(path, read_link_at)


def _read_link(path: str) -> str | None:
    return os.readlink(path) if os.path.islink(path) else None


def _resolve_links(path: str, read_link_at: Callable[[str], str | None]) -> str:
    components, resolved_path, link_count = path.split("/")[::-1], "", 0
    while components:
        component = components.pop()
        if component in {"", "."}:
            continue
        if component == "..":
            resolved_path = resolved_path.rpartition("/")[0]
            continue
        link_target = read_link_at(f"{resolved_path}/{component}")
        if link_target is None:
            resolved_path = f"{resolved_path}/{component}"
            continue
        link_count += 1
        if link_count > _FOLLOWED_LINKS_MAX:
            raise ValueError(f"{path}: too many levels of symbolic links (more than {_FOLLOWED_LINKS_MAX})")
        resolved_path = "" if link_target.startswith("/") else resolved_path
        components += link_target.split("/")[::-1]
    return resolved_path or "/"


def unshare_mounts() -> None:
    """Move this process into a new mount namespace, so that other processes do not see its later mounts."""
    linux.unshare(linux.NEWNS)
    linux.isolate_later_mounts()


def _escape_path(path: str) -> str:
    return path.replace("\\", "\\\\").replace(":", "\\:").replace(",", "\\,")


def _resolve_first_component(path: str) -> str:
    """Replace the first component of an absolute path by its target if it is a symbolic link, such as /bin."""
    component, separator, remainder = path[1:].partition("/")
    return f"{os.path.realpath(f'/{component}')}{separator}{remainder}" if os.path.islink(f"/{component}") else path


def make_mount_point(path: str, is_folder: bool) -> None:
    """Create a mount point (a directory or an empty file) and its parent directories."""
    os.makedirs(path if is_folder else os.path.dirname(path), exist_ok=True)
    if not is_folder:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o644))
