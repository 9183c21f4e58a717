"""Paths that are walked from a folder that is held open, without following any link.

Containers write to their volumes while others look at them. So what was found to be a folder may be a link a moment
later: a path is not looked at and then used, but each step is opened, and the next one is reached from there.
"""

import errno
import os
import stat

_PLACE = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def opened(top: str | int, path: str) -> int:
    """Open a place below a folder, as O_PATH does. OSError where it is not there, and ELOOP where a link is."""
    return _walked(top, path, None)


def made(top: str | int, path: str, mode: int) -> int:
    """Open a place below a folder as `opened` does; folders that are not there are made, with that mode."""
    return _walked(top, path, mode)


def made_file(top: str | int, path: str, mode: int) -> int:
    """Open a file below a folder as `opened` does; it is made where it is not there, with that mode."""
    folder = opened(top, os.path.dirname(path))
    name = os.path.basename(path)
    try:
        try:
            file = os.open(name, _NEW_FILE, mode, dir_fd=folder)
        except FileExistsError:
            return opened(folder, name)
        os.fchmod(file, mode)
        os.close(file)
        return opened(folder, name)
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
        raise OSError(errno.EINVAL, "this is no name", name)
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
    """Make a folder with that mode, whatever the umask says: who exchanges it meanwhile, gets that for his own."""
    os.mkdir(name, mode, dir_fd=folder)
    file = os.open(name, _FOLDER, dir_fd=folder)
    os.fchmod(file, mode)
    return file
