"""Path traversal from an open directory without following links.

Containers modify their volumes while they are used, so a checked directory may be a link a moment later. Each path
component is therefore opened, and the next one is reached from the open file.
"""

import errno
import os
import stat

_PLACE = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def open_path(top: str | int, path: str) -> int:
    """Open a path below a directory with O_PATH. OSError if it does not exist, with ELOOP if it contains a link."""
    return _walked(top, path, None)


def make_directories(top: str | int, path: str, mode: int) -> int:
    """Open a path below a directory as `opened` does, creating missing directories with `mode`."""
    return _walked(top, path, mode)


def create_file(top: str | int, path: str, mode: int) -> int:
    """Open a file below a directory as `opened` does, creating it with `mode` if missing."""
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
        raise OSError(errno.EINVAL, "not a file name", name)
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
    """Create a directory with exactly that mode, regardless of the umask.

    If another process replaces the directory meanwhile, only its own directory gets the mode.
    """
    os.mkdir(name, mode, dir_fd=folder)
    file = os.open(name, _FOLDER, dir_fd=folder)
    os.fchmod(file, mode)
    return file
