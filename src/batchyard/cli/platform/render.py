"""`batchyard platform render`: writes all files of a platform.

A record of the written files is stored beside them, so that rendering again replaces and removes only those. Files that
were written or changed otherwise are kept, except with --overwrite.
"""

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec

from batchyard.cli import output
from batchyard.cli.platform.target import read_source, sound_platform
from batchyard.package_data import read_folder
from batchyard.provision.images import SOURCES, builds_operator, source_archive
from batchyard.provision.model import PlatformModel
from batchyard.provision.render import render

#: The record file: the digests of the content written to each path.
RECORD: Final = ".batchyard-rendered.json"
_SHOWN_MAX: Final = 10


def run(file: str, out: Path, project: str, *, overwrite: bool) -> None:
    """Write the files; ends the command with 1 if the platform is invalid or other files are in the way."""
    platform = sound_platform(read_source(file), project)
    if platform.google is not None and not platform.google.project:
        output.fail(f"batchyard: {file} sets no Google Cloud project; set spec.google.project, or use --project ID")
    try:
        contents = contents_of(platform)
        kept, removed = write(contents, out, overwrite=overwrite)
    except OSError as wrong:
        output.fail(f"batchyard: cannot write {wrong.filename or out}: {wrong.strerror}; choose another folder")
    if kept:
        shown = "".join(f"\n  {path}" for path in kept[:_SHOWN_MAX])
        more = f"\n  and {len(kept) - _SHOWN_MAX} more" if len(kept) > _SHOWN_MAX else ""
        message = f"files in {out} that were not rendered are in the way:{shown}{more}"
        output.fail(f"batchyard: {message}\nnothing was written; move them, or use --overwrite")
    output.report_line(
        f"batchyard: {len(contents)} files written to {out}{f'; {removed} old files removed' if removed else ''}"
    )


def contents_of(platform: PlatformModel) -> Mapping[str, str | bytes]:
    """The content of every file by its path: the rendered texts, and the sources of the operator's image.

    Raises FileNotFoundError if this installation lacks the sources.
    """
    sources = {SOURCES: source_archive()} if builds_operator(platform) else {}
    return {**render(platform), **sources}


def write(files: Mapping[str, str | bytes], out: Path, *, overwrite: bool) -> tuple[list[str], int]:
    """Write the files; return the foreign files in the way (then nothing is written) and the number of removed files.

    Raises OSError. The record is written before the files, so an interrupted run still recognizes its own files.
    """
    contents = {path: file if isinstance(file, bytes) else file.encode() for path, file in files.items()}
    before = _record(out)
    gone = [path for path in before if path not in contents]
    in_the_way = [path for path in contents if _is_foreign(out / path, contents[path], before.get(path, []))]
    if in_the_way and not overwrite:
        return in_the_way, 0
    now = {path: [_digest(content)] for path, content in contents.items()}
    _remember(out, {path: [*before.get(path, []), *now.get(path, [])] for path in [*before, *now]})
    for path, content in contents.items():
        place = out / path
        place.parent.mkdir(parents=True, exist_ok=True)
        _put(place, content)
    removed = sum(_removed(out, path, before[path]) for path in gone)
    _remember(out, now)
    return [], removed


def _record(out: Path) -> dict[str, list[str]]:
    """The digests recorded by earlier runs, empty without a record."""
    try:
        return msgspec.json.decode((out / RECORD).read_bytes(), type=dict[str, list[str]])
    except (FileNotFoundError, msgspec.DecodeError):
        return {}


def _remember(out: Path, record: Mapping[str, list[str]]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    rows = {path: list(dict.fromkeys(record[path])) for path in sorted(record)}
    _put(out / RECORD, msgspec.json.format(msgspec.json.encode(rows), indent=2) + b"\n")


def _put(place: Path, content: bytes) -> None:
    """Write a file atomically: a partial file, for example on a full disk, would count as foreign."""
    new = place.with_name(f".{place.name}.new")
    try:
        new.write_bytes(content)
        new.replace(place)
    except OSError:
        new.unlink(missing_ok=True)
        raise


def _is_foreign(place: Path, content: bytes, digests: list[str]) -> bool:
    """Whether a file exists whose content was not rendered."""
    if not place.exists():
        return False
    return not place.is_file() or _digest(place.read_bytes()) not in {*digests, _digest(content)}


def _removed(out: Path, path: str, digests: list[str]) -> bool:
    """Remove a file that is no longer rendered, unless it was changed; also its folders if they are empty."""
    place = out / path
    if not place.is_file() or _digest(place.read_bytes()) not in digests:
        return False
    place.unlink()
    for folder in _folders(place, out):
        if any(folder.iterdir()):
            break
        folder.rmdir()
    return True


def _folders(place: Path, out: Path) -> Iterator[Path]:
    return (folder for folder in place.parents if out in folder.parents)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


# --- init ---
#
# `batchyard platform init`: writes an example platform.yaml.


FOLDER = "examples/platforms"


def write_example(example: str, file: Path) -> None:
    """Write the example; ends the command with 1 if the file exists."""
    try:
        text = read_folder(FOLDER, ".yaml")[f"{example}.yaml"]
        with file.open("x", encoding="utf-8", newline="\n") as opened:
            opened.write(text)
    except FileExistsError:
        output.fail(f"batchyard: {file} already exists and was not changed; choose another file")
    except OSError as wrong:
        output.fail(f"batchyard: cannot write {file}: {wrong.strerror or wrong}; choose another file")
    output.report_line(f"batchyard: wrote {file}; next: batchyard platform plan {file}")
