"""Rules of paths that become files and folders. Source: Kubernetes's pkg/apis/core/validation."""

from collections.abc import Iterator
from typing import Final

from batchyard.api.errors import FieldError
from batchyard.api.validation import faults

_MODE_MAX: Final = 0o777
_MODE_MESSAGE: Final = "must be a number between 0 and 0777 (octal), both inclusive"
_REMEDY: Final = "give a path below the folder"


def local_path_faults(path: str, at: str) -> Iterator[FieldError]:
    """Validate a path that stays below its folder."""
    if path.startswith("/"):
        yield faults.invalid(at, path, "must be a relative path", _REMEDY)
    yield from step_faults(path, at)


def step_faults(path: str, at: str) -> Iterator[FieldError]:
    """Validate a path that does not step back, and has no NUL, which no file system takes."""
    if ".." in path.split("/"):
        yield faults.invalid(at, path, "must not contain '..'", _REMEDY)
    if "\0" in path:
        yield faults.invalid(at, path, "must not contain NUL", "drop it")


def file_faults(path: str, at: str) -> Iterator[FieldError]:
    """Validate the path of a file of a volume."""
    yield from local_path_faults(path, at)
    if path.startswith("..") and not path.startswith("../"):
        yield faults.invalid(at, path, "must not start with '..'", "give another name")


def mode_faults(mode: int | None, at: str) -> Iterator[FieldError]:
    """Validate the permissions of a file."""
    if mode is not None and not 0 <= mode <= _MODE_MAX:
        yield faults.invalid(at, mode, _MODE_MESSAGE, "give 420, which is 0644, or another number up to 511")
