"""The commands `batchyard backup` and `restore`: save the whole state of a platform, and restore it."""

from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import typer

from batchyard.api.printing import format_table
from batchyard.api.times import format_second, format_time, parse_time
from batchyard.base.counts import count_with_noun
from batchyard.base.instant import Instant
from batchyard.cli import output
from batchyard.cli.options import DATA_DIR, DocumentFormat, PlatformDir
from batchyard.server.platform.data_dir import JOURNAL_FILE, DirectoryError, prepare_data_dir
from batchyard.store import journal
from batchyard.store.journal_file import JournalContents, JournalError

if TYPE_CHECKING:
    from batchyard.server.archive.storage import ObjectStorage

_URL_SEPARATOR: Final = "://"


class RestoreTarget(NamedTuple):
    """The state of an archive to restore: at a revision, at a time, or the newest one."""

    revision: int | None = None
    time: Instant | None = None


def write_backup(target: str, folder: Path) -> None:
    """Write a backup of the data directory of a running or stopped platform; exit with 1 on failure."""
    try:
        if _URL_SEPARATOR in target:
            from batchyard.server.archive.backups import upload_backup  # noqa: PLC0415 - rarely used

            journal_contents = upload_backup(folder / JOURNAL_FILE, target)
        else:
            journal_contents = journal.back_up(folder / JOURNAL_FILE, Path(target))
    except JournalError as error:
        output.fail(f"batchyard: {error}")
    except OSError as error:
        message = f"batchyard: cannot write the backup: {error.filename or target}: {error.strerror}"
        output.fail(f"{message}; check its permissions and the free disk space, or choose another file")
    state = journal_contents.store
    objects_text = count_with_noun(len(state.objects), "object")
    output.report_line(f"batchyard: backup {target} written and verified: {objects_text} at revision {state.revision}")


def restore_backup(source: str, folder: Path, target: RestoreTarget) -> None:
    """Create a data directory from a backup or an archive; exit with 1 on failure."""
    storage = _archive_of(source)
    if storage is None and target != RestoreTarget():
        output.fail(f"batchyard: {source} is a backup of one revision; remove --to-revision and --to-time")
    try:
        prepare_data_dir(folder)
        if storage is not None:
            contents = _restore_archive(storage, folder / JOURNAL_FILE, target)
        elif _URL_SEPARATOR in source:
            from batchyard.server.archive.backups import restore_uploaded_backup  # noqa: PLC0415 - rarely used

            contents = restore_uploaded_backup(source, folder / JOURNAL_FILE)
        else:
            contents = journal.restore_backup(Path(source), folder / JOURNAL_FILE)
    except (DirectoryError, JournalError) as error:
        output.fail(f"batchyard: {error}")
    except OSError as error:
        message = f"batchyard: cannot restore the backup: {error.filename or folder}: {error.strerror}"
        output.fail(f"{message}; check its permissions and the free disk space")
    state = contents.store
    objects_text = count_with_noun(len(state.objects), "object")
    output.report_line(f"batchyard: {folder}: {objects_text} restored; revisions continue from {state.revision}")
    output.report_line(f"batchyard: start the platform with: batchyard up --data-dir {quote(str(folder))}")


def _archive_of(source: str) -> "ObjectStorage | None":
    """Return the storage of an archive; None if the source is a backup. The command exits if it cannot be reached."""
    if _URL_SEPARATOR not in source and not Path(source).is_dir():
        return None
    from batchyard.server.archive.backups import find_archive  # noqa: PLC0415 - rarely used
    from batchyard.server.archive.storage import StorageError  # noqa: PLC0415 - rarely used

    try:
        return find_archive(source)
    except StorageError as error:
        output.fail(f"batchyard: {error}")


def _restore_archive(storage: "ObjectStorage", path: Path, target: RestoreTarget) -> JournalContents:
    from batchyard.server.archive.history import ArchiveError  # noqa: PLC0415 - rarely used
    from batchyard.server.archive.restoration import restore_archive  # noqa: PLC0415 - rarely used
    from batchyard.server.archive.storage import StorageError  # noqa: PLC0415 - rarely used

    try:
        restored = restore_archive(storage, path, *target)
    except (ArchiveError, StorageError) as error:
        output.fail(f"batchyard: {error}")
    for remark in restored.remarks:
        output.report_line(f"batchyard: {remark}")
    committed_at = format_time(restored.time)
    output.report_line(f"batchyard: restored the state at revision {restored.revision}, committed at {committed_at}")
    return restored.contents


def list_archive(source: str, document_format: DocumentFormat | None) -> None:
    """Print the bases, segments and restorable ranges of an archive; exit with 1 if there is none."""
    from batchyard.server.archive.restoration import describe_archive  # noqa: PLC0415 - rarely used
    from batchyard.server.archive.storage import StorageError  # noqa: PLC0415 - rarely used

    storage = _archive_of(source)
    if storage is None:
        output.fail(f"batchyard: {source} is a backup and not an archive; `batchyard restore` restores it")
    try:
        document = describe_archive(storage)
    except StorageError as error:
        output.fail(f"batchyard: {error}")
    if document_format is not None:
        output.write(output.render_document(document, document_format))
        return
    rows = [("EPOCH", "REVISIONS", "FROM", "TO")]
    for span in document["restorable"]:
        revisions = f"{span['fromRevision']}-{span['toRevision']}"
        rows.append((str(span["epoch"]), revisions, span["fromTime"], span["toTime"]))
    output.write(format_table(rows))
    for epoch in document["epochs"]:
        bases = count_with_noun(len(epoch["bases"]), "base")
        segments = count_with_noun(len(epoch["segments"]), "segment")
        began = f"of {epoch['node']} since {format_second(parse_time(epoch['began']))}"
        output.write(f"epoch {epoch['epoch']} {began}: {bases}, {segments}, {epoch['bytes']} bytes\n")


def backup(
    target: Annotated[str, typer.Argument(metavar="FILE|URL", help="The file or object to write; it must not exist.")],
    data_dir: PlatformDir = DATA_DIR,
) -> None:
    """Write the whole state of a platform to a file or object storage; the platform may be running or stopped."""
    write_backup(target, data_dir)


def _parse_instant(text: str) -> Instant:
    try:
        return parse_time(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def restore(
    source: Annotated[
        str, typer.Argument(metavar="FILE|URL", help="A backup, or the folder or URL of an archive (`up --archive`).")
    ],
    data_dir: PlatformDir = DATA_DIR,
    to_revision: Annotated[
        int | None, typer.Option("--to-revision", metavar="N", min=0, help="Restore the archive at this revision.")
    ] = None,
    to_time: Annotated[
        Instant | None,
        typer.Option(
            "--to-time",
            metavar="TIME",
            parser=_parse_instant,
            help="Restore the archive at this time of the machine's clock, such as 2026-01-01T10:00:00Z.",
        ),
    ] = None,
    list_: Annotated[
        bool, typer.Option("--list", help="Print the states that an archive can restore, and restore none.")
    ] = False,
    output_format: Annotated[
        DocumentFormat | None, typer.Option("--output", "-o", help="Print --list as JSON or YAML.")
    ] = None,
) -> None:
    """Create a data directory from a backup or an archive; existing files are never overwritten."""
    if to_revision is not None and to_time is not None:
        raise typer.BadParameter("--to-revision and --to-time exclude each other; remove one of them")
    if output_format is not None and not list_:
        raise typer.BadParameter("--output requires --list")
    if list_:
        list_archive(source, output_format)
    else:
        restore_backup(source, data_dir, RestoreTarget(to_revision, to_time))
