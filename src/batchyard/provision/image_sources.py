"""Source archive for the operator's image.

The repository and an installed package produce the same archive: the package's files, and the files installed beside it
(see `shipped`).
"""

import errno
import gzip
import io
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from batchyard.package_data import find_file, find_folder

_FILES: Final = ("pyproject.toml", "README.md", "LICENSE", "requirements-runtime.lock")
_FOLDERS: Final = ("deploy/image", "deploy/monitoring", "examples/refarch", "examples/platforms")
#: Compiled files, possibly for another machine.
_LEFT_OUT: Final = frozenset({".pyc", ".so", ".pyd"})


def source_archive() -> bytes:
    """Return a reproducible, compressed tar archive. Raises FileNotFoundError if a part is not installed."""
    packed = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name, path in sorted(_members()):
            content = path.read_bytes()
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), 0o644
            archive.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def _members() -> Iterator[tuple[str, Path]]:
    """Yield the names in the archive, and the files."""
    for name in _FILES:
        yield name, _required(name, find_file(name))
    yield from _below("src/batchyard", Path(__file__).parents[1])
    for name in _FOLDERS:
        yield from _below(name, _required(name, find_folder(name)))


def _required(name: str, found: Path | None) -> Path:
    if found is None:
        raise FileNotFoundError(errno.ENOENT, "not installed with this version of batchyard", name)
    return found


def _below(name: str, folder: Path) -> Iterator[tuple[str, Path]]:
    for path in folder.rglob("*"):
        if path.is_file() and path.suffix not in _LEFT_OUT:
            yield f"{name}/{path.relative_to(folder).as_posix()}", path
