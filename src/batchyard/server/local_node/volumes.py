"""Volumes of pods in their folders, updated atomically: a reader sees either the old or the new files.

    ..data                       -> ..2026_01_01_00_00_00.ab12cd34, in which the files are
    name                         -> ..data/name, for each file or folder at the top

A volume is updated by renaming `..data`. A container that mounts a single file (subPath) holds that file itself and
sees no update. The next update removes the leftovers of an interrupted one. There is only one writer.
Sources: pkg/volume/util (atomic_writer.go, nested_volumes.go, subpath); pkg/volume (volume_linux.go, hostpath).
"""

import os
import shutil
import stat
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from batchyard.api.times import format_time
from batchyard.base.instant import Instant
from batchyard.kubelet.local.errors import CONFIG, ContainerError, VolumeError, quoted
from batchyard.kubelet.local.volume_plans import EmptyDirPlan, HostPathPlan, Mount, Plan, VolumeFile, VolumeFiles
from batchyard.kubelet.local.volumes import lies_below
from batchyard.shim import straight

DATA: Final = "..data"
_NEXT: Final = "..data_tmp"
_RESERVED: Final = ".."
_FOLDER_MODE: Final = 0o755
_FILE_MODE: Final = 0o644
_VOLUME_MODE: Final = 0o777


def make_volume(folder: Path, name: str, plan: Plan, now: Instant) -> bool:
    """Create or update a volume in its folder. Return whether that changed its files.

    VolumeError if it cannot be created. For an emptyDir in memory only the folder is created; the sandbox mounts it.
    """
    try:
        match plan:
            case VolumeFiles():
                return write_files(folder, plan, now)
            case EmptyDirPlan():
                _make_folders(folder, folder, plan.mode)
            case HostPathPlan():
                _check_host_path(name, plan)
    except OSError as error:
        raise VolumeError(name, f"{error.filename or folder}: {error.strerror}") from error
    return False


# --- files ---


def write_files(folder: Path, plan: VolumeFiles, now: Instant) -> bool:
    """Make a folder hold exactly these files. Return whether that changed it. OSError if it fails."""
    is_new = not folder.exists()
    _make_folders(folder, folder, _VOLUME_MODE)
    for mount_point in plan.mount_points:
        _make_folders(folder, folder / mount_point, _FOLDER_MODE)
    current = None if is_new else _current(folder)
    is_news = current is None or _contents(current) != {path: file.content for path, file in plan.files.items()}
    written = _written(folder, plan, now) if is_news else None
    _link_names(folder, plan.files)
    if written is not None:
        draft = folder / _NEXT
        draft.unlink(missing_ok=True)
        draft.symlink_to(written.name)
        draft.replace(folder / DATA)
    if not is_new:
        _remove_leftovers(folder, plan.files)
    return is_news


def _current(folder: Path) -> Path | None:
    """Return the folder that holds the current files; None if there is none."""
    try:
        current = folder / (folder / DATA).readlink()
    except OSError:
        return None
    return current if current.is_dir() else None


def _contents(current: Path) -> dict[str, bytes]:
    return {str(path.relative_to(current)): path.read_bytes() for path in sorted(current.rglob("*")) if path.is_file()}


def _written(folder: Path, plan: VolumeFiles, now: Instant) -> Path:
    """Write the files to a new folder that is not visible yet."""
    stamp = format_time(now).translate(str.maketrans("-T:", "___")).removesuffix("Z")
    new = Path(tempfile.mkdtemp(prefix=f"{_RESERVED}{stamp}.", dir=folder))
    new.chmod(_FOLDER_MODE)
    for path, file in plan.files.items():
        if "/" in path:
            _make_folders(new, (new / path).parent, _FOLDER_MODE)
        (new / path).touch(mode=0o600)
        (new / path).write_bytes(file.content)
        if plan.group is not None:
            with suppress(PermissionError):  # an unprivileged user runs all containers under its own uid
                os.chown(new / path, -1, plan.group)
        (new / path).chmod(file.mode)
    return new


def _link_names(folder: Path, files: Mapping[str, VolumeFile]) -> None:
    """Create the missing links for top-level names."""
    for name in _names_at_top(files):
        with suppress(FileExistsError):
            (folder / name).symlink_to(f"{DATA}/{name}")


def _names_at_top(files: Mapping[str, VolumeFile]) -> list[str]:
    return list(dict.fromkeys(path.split("/")[0] for path in files))


def _remove_leftovers(folder: Path, files: Mapping[str, VolumeFile]) -> None:
    """Remove dangling names, old folders, and leftovers of interrupted updates."""
    kept = {DATA, str((folder / DATA).readlink()), *_names_at_top(files)}
    for path in sorted(folder.iterdir()):
        if path.name in kept:
            continue
        if path.is_symlink() and (path.name == _NEXT or str(path.readlink()).startswith(f"{DATA}/")):
            path.unlink()
        elif path.name.startswith(_RESERVED) and path.is_dir():
            shutil.rmtree(path)


# --- folders ---


def _make_folders(volume: Path, wanted: Path, mode: int) -> None:
    """Create the missing folders of a path in a volume, with this mode regardless of the umask."""
    missing: list[Path] = []
    folder = wanted
    while not folder.exists() and folder != volume.parent:
        missing.append(folder)
        folder = folder.parent
    for each in reversed(missing):
        each.mkdir(parents=True)
        each.chmod(mode)


def _check_host_path(name: str, plan: HostPathPlan) -> None:
    """Create the path if its type requires it, and check its type and location. Raises VolumeError."""
    path = Path(plan.path)
    real = os.path.realpath(path)
    if not _is_allowed(real, plan):
        raise VolumeError(name, f"hostPath {path} leads to {real}, which is not allowed here")
    if not path.exists() and plan.type in {"", "DirectoryOrCreate"}:
        os.close(straight.make_directories(path.anchor, real, _FOLDER_MODE))
    elif not path.exists() and plan.type == "FileOrCreate":
        os.close(straight.create_file(path.anchor, real, _FILE_MODE))
    wrong = _type_fault(path, plan.type)
    if wrong:
        raise VolumeError(name, f"hostPath type check failed: {path} is not a {wrong}")


def _is_allowed(real: str, plan: HostPathPlan) -> bool:
    """Whether pods may use a path, which must not contain links."""
    return lies_below(real, (os.path.realpath(folder) for folder in plan.allowed))


def _type_fault(path: Path, kind: str) -> str:
    """Return the expected file type if the path does not have it; else ''."""
    mode = path.stat().st_mode if path.exists() else 0
    match kind:
        case "Directory" | "DirectoryOrCreate":
            return "" if stat.S_ISDIR(mode) else "directory"
        case "File" | "FileOrCreate":
            return "" if mode and not stat.S_ISDIR(mode) else "file"
        case "Socket":
            return "" if stat.S_ISSOCK(mode) else "socket file"
        case "CharDevice":
            return "" if stat.S_ISCHR(mode) else "character device"
        case "BlockDevice":
            return "" if stat.S_ISBLK(mode) else "block device"
    return ""


# --- mount sources ---


def mount_source(pod_folder: Path, mount: Mount, plan: Plan) -> str:
    """Return the source of a mount for the spec of a run. A missing folder is created.

    ContainerError if it would lie outside of its volume or of the allowed paths. Containers can create links, and can
    replace folders by links at any time. Therefore no link is followed when a folder is created, nor when the result is
    mounted (batchyard.shim.launch).
    """
    if isinstance(plan, EmptyDirPlan) and plan.is_memory:
        return mount.source  # it is mounted only inside the pod's sandbox
    volume = Path(os.path.realpath(pod_folder / mount.folder))
    if isinstance(plan, HostPathPlan) and not _is_allowed(str(volume), plan):
        raise ContainerError(CONFIG, f"hostPath {mount.folder} leads outside of the allowed paths")
    if not mount.sub_path:
        return str(volume) if isinstance(plan, HostPathPlan) else mount.source
    wanted = Path(os.path.realpath(volume / mount.sub_path))
    if not lies_below(str(wanted), [str(volume)]):
        raise _sub_path_error("prepare subPath", mount)
    try:
        top = straight.open_path(volume.anchor, str(volume))
        try:
            os.close(
                straight.make_directories(top, str(wanted.relative_to(volume)), stat.S_IMODE(os.fstat(top).st_mode))
            )
        finally:
            os.close(top)
    except OSError as error:
        raise _sub_path_error("create subPath directory", mount) from error
    if isinstance(plan, VolumeFiles):
        return mount.source  # only the platform writes there, and the link follows later updates
    return str(wanted if isinstance(plan, HostPathPlan) else Path(mount.folder) / wanted.relative_to(volume))


def _sub_path_error(what: str, mount: Mount) -> ContainerError:
    """Return an error without details, which could disclose facts about the machine."""
    whose = f"for volumeMount {quoted(mount.volume)} of container {quoted(mount.container)}"
    return ContainerError(CONFIG, f"failed to {what} {whose}")
