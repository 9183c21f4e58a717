"""The commands `batchyard platform render` and `init`: write all files of a platform, or an example platform.yaml.

A record file beside the rendered files lists them, so that the next rendering replaces and removes only those. Files
that the user wrote or changed are kept, except with --overwrite.
"""

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec

from batchyard.base.counts import count_with_noun
from batchyard.cli import output
from batchyard.cli.platform.target import read_source, read_valid_platform
from batchyard.package_data import read_folder
from batchyard.provision.images import SOURCES_FILE, builds_operator_image, source_archive
from batchyard.provision.model import PlatformModel
from batchyard.provision.render import render

#: The name of the record file, which has the digests of the contents written to each path.
RECORD_FILE: Final = ".batchyard-rendered.json"
_PATHS_SHOWN_MAX: Final = 10


def run(file: str, out: Path, project: str, *, overwrite: bool) -> None:
    """Write all files of a platform; exit with 1 on failure. A user's file is replaced only with `overwrite`."""
    platform = read_valid_platform(read_source(file), project)
    if platform.google is not None and not platform.google.project:
        output.fail(f"batchyard: {file} sets no Google Cloud project; set spec.google.project, or use --project ID")
    try:
        file_contents = contents_by_path(platform)
        conflicting_paths, removed_count = write_platform_files(file_contents, out, overwrite=overwrite)
    except OSError as error:
        message = f"batchyard: cannot write {error.filename or out}: {error.strerror}"
        output.fail(f"{message}; check its permissions, or choose another folder with --out DIR")
    if conflicting_paths:
        path_lines = "".join(f"\n  {path}" for path in conflicting_paths[:_PATHS_SHOWN_MAX])
        omitted_count = len(conflicting_paths) - _PATHS_SHOWN_MAX
        omitted_note = f"\n  and {omitted_count} more" if omitted_count > 0 else ""
        message = f"rendering would overwrite files in {out} that it did not write:{path_lines}{omitted_note}"
        output.fail(f"batchyard: {message}\nnothing was written; move these files, or use --overwrite")
    removed_note = f"; {count_with_noun(removed_count, 'old file')} removed" if removed_count else ""
    output.report_line(f"batchyard: {count_with_noun(len(file_contents), 'file')} written to {out}{removed_note}")


def contents_by_path(platform: PlatformModel) -> Mapping[str, str | bytes]:
    """Return the content of every file by path: the rendered texts, and the sources of the operator's image.

    Raises FileNotFoundError if this installation lacks the sources.
    """
    source_files = {SOURCES_FILE: source_archive()} if builds_operator_image(platform) else {}
    return {**render(platform), **source_files}


def write_platform_files(files: Mapping[str, str | bytes], out: Path, *, overwrite: bool) -> tuple[list[str], int]:
    """Write the files; return the paths that would overwrite files of the user, and the number of removed old files.

    Without `overwrite`, nothing is written if there are such paths; with it, none are returned. Raises OSError. The
    record of the files is written first, so the next run recognizes the files of an interrupted run.
    """
    contents = {path: file if isinstance(file, bytes) else file.encode() for path, file in files.items()}
    old_digests = _read_digest_record(out)
    obsolete_paths = [path for path in old_digests if path not in contents]
    conflicts = [path for path in contents if _is_foreign_file(out / path, contents[path], old_digests.get(path, []))]
    if conflicts and not overwrite:
        return conflicts, 0
    new_digests = {path: [_digest(content)] for path, content in contents.items()}
    paths = [*old_digests, *new_digests]
    _write_digest_record(out, {path: [*old_digests.get(path, []), *new_digests.get(path, [])] for path in paths})
    for path, content in contents.items():
        target = out / path
        target.parent.mkdir(parents=True, exist_ok=True)
        _write_atomically(target, content)
    removed_count = sum(_remove_unchanged_file(out, path, old_digests[path]) for path in obsolete_paths)
    _write_digest_record(out, new_digests)
    return [], removed_count


def _read_digest_record(out: Path) -> dict[str, list[str]]:
    try:
        return msgspec.json.decode((out / RECORD_FILE).read_bytes(), type=dict[str, list[str]])
    except (FileNotFoundError, msgspec.DecodeError):
        return {}


def _write_digest_record(out: Path, digests_by_path: Mapping[str, list[str]]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    sorted_digests = {path: list(dict.fromkeys(digests_by_path[path])) for path in sorted(digests_by_path)}
    _write_atomically(out / RECORD_FILE, msgspec.json.format(msgspec.json.encode(sorted_digests), indent=2) + b"\n")


def _write_atomically(target: Path, content: bytes) -> None:
    """Write a file atomically, because a partly written file would later be mistaken for a file of the user."""
    temporary_path = target.with_name(f".{target.name}.new")
    try:
        temporary_path.write_bytes(content)
        temporary_path.replace(target)
    except OSError:
        temporary_path.unlink(missing_ok=True)
        raise


def _is_foreign_file(target: Path, content: bytes, digests: list[str]) -> bool:
    if not target.exists():
        return False
    return not target.is_file() or _digest(target.read_bytes()) not in {*digests, _digest(content)}


def _remove_unchanged_file(out: Path, path: str, digests: list[str]) -> bool:
    target = out / path
    if not target.is_file() or _digest(target.read_bytes()) not in digests:
        return False
    target.unlink()
    for folder in _parent_folders(target, out):
        if any(folder.iterdir()):
            break
        folder.rmdir()
    return True


def _parent_folders(target: Path, out: Path) -> Iterator[Path]:
    return (folder for folder in target.parents if out in folder.parents)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


EXAMPLES_FOLDER = "examples/platforms"


def write_example(example: str, file: Path) -> None:
    """Write an example platform.yaml; exit with 1 if the file exists or cannot be written."""
    try:
        text = read_folder(EXAMPLES_FOLDER, ".yaml")[f"{example}.yaml"]
        with file.open("x", encoding="utf-8", newline="\n") as opened_file:
            opened_file.write(text)
    except FileExistsError:
        output.fail(f"batchyard: {file} already exists and was not changed; choose another file")
    except OSError as error:
        output.fail(f"batchyard: cannot write {file}: {error.strerror or error}; choose another file")
    output.report_line(f"batchyard: wrote {file}; next: batchyard platform plan {file}")
