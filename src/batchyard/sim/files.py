"""Reads the user's manifests: files, whole folders, standard input. The only place where the simulator reads files.

All unreadable sources are reported at once, in the same form as errors in readable ones.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from os import SEEK_END
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec

from batchyard.api.errors import FieldError
from batchyard.sim.scenario import FileFault

SUFFIXES: Final = frozenset({".yaml", ".yml", ".json"})
STANDARD_INPUT: Final = "-"
#: The number of bytes at either end of a file that are read to detect its type.
_END: Final = 4096
_AS_TEXT: Final = "save it as UTF-8, or leave it out"

#: A path, the text of manifests, or one object.
Source: TypeAlias = str | Path | Mapping[str, Any]


def read_sources(sources: Iterable[Source], faults: list[FileFault]) -> Iterator[tuple[str, str]]:
    """Yield every text with its display name, read on demand; sources that cannot be read are added to the faults."""
    for number, source in enumerate(sources, 1):
        if isinstance(source, Mapping):
            yield f"<object {number}>", msgspec.json.encode(source).decode()
        elif isinstance(source, str) and is_text(source):
            yield f"<text {number}>", source
        elif source == STANDARD_INPUT:
            yield from _read("<stdin>", None, faults)
        else:
            for path in _files(Path(source), faults):
                yield from _read(str(path), path, faults)


def read_folder(folder: Path, suffix: str, faults: list[FileFault]) -> list[tuple[str, str]]:
    """Return the texts of all files of a folder with that suffix, each with its name, sorted by name."""
    try:
        paths = sorted(path for path in folder.iterdir() if path.suffix == suffix and path.is_file())
    except (OSError, ValueError) as wrong:
        faults.append(_unreadable(str(folder), wrong))
        return []
    return [text for path in paths for text in _read(str(path), path, faults)]


def is_text(source: str) -> bool:
    """Whether a string holds manifests rather than a file name: it has several lines, or is JSON."""
    return "\n" in source or source.lstrip().startswith("{")


def ends_of(path: Path) -> Sequence[str]:
    """Return the beginning and the end of a file's text; nothing if it cannot be read."""
    try:
        with path.open("rb") as file:
            first = file.read(_END)
            file.seek(0, SEEK_END)
            file.seek(max(0, file.tell() - _END))
            return first.decode(errors="replace"), file.read().decode(errors="replace")
    except (OSError, ValueError):
        return ()


def files_below(folder: Path) -> list[Path]:
    """Return the manifests in a folder and its subfolders, sorted by path; hidden ones are left out."""
    found = (path for path in folder.rglob("*") if path.suffix in SUFFIXES and path.is_file())
    return sorted(path for path in found if not any(part.startswith(".") for part in path.relative_to(folder).parts))


def _files(path: Path, faults: list[FileFault]) -> list[Path]:
    """Return the file, or all manifests of the folder."""
    try:
        if not path.is_dir():
            return [path]
        found = files_below(path)
    except (OSError, ValueError) as wrong:
        faults.append(_unreadable(str(path), wrong))
        return []
    if not found:
        names = ", ".join(f"*{suffix}" for suffix in sorted(SUFFIXES))
        faults.append(FileFault(str(path), FieldError("", f"no manifests in this folder ({names})", "name another")))
    return found


def _read(name: str, path: Path | None, faults: list[FileFault]) -> Iterator[tuple[str, str]]:
    """Yield the text of a file, or of standard input."""
    try:
        content = sys.stdin.buffer.read() if path is None else path.read_bytes()
        yield name, content.decode()
    except UnicodeDecodeError as wrong:
        faults.append(FileFault(name, FieldError("", f"not a text: byte {wrong.start} is not UTF-8", _AS_TEXT)))
    except (OSError, ValueError) as wrong:
        faults.append(_unreadable(name, wrong))


def _unreadable(name: str, wrong: OSError | ValueError) -> FileFault:
    problem = wrong.strerror if isinstance(wrong, OSError) and wrong.strerror else str(wrong)
    return FileFault(name, FieldError("", f"cannot be read: {problem}", "check the name and the permissions"))
