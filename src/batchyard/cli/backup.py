"""`batchyard backup` and `restore`: the whole state of a platform in one file."""

from pathlib import Path
from shlex import quote

from batchyard.cli import output
from batchyard.server.platform.data_dir import JOURNAL, DirectoryError, prepare
from batchyard.store import backup as backups
from batchyard.store.commit_mark import JournalError


def backup(file: Path, folder: Path) -> None:
    """Write a backup; the platform may run or not."""
    try:
        contents = backups.back_up(folder / JOURNAL, file)
    except JournalError as error:
        output.fail(f"batchyard: {error}")
    except OSError as error:
        output.fail(f"batchyard: {error.filename or file}: {error.strerror}")
    kept = contents.recovered
    output.report_line(f"batchyard: {file}: {len(kept.objects)} objects at revision {kept.revision}, verified")


def restore(file: Path, folder: Path) -> None:
    """Create a data directory from a backup."""
    try:
        prepare(folder)
        contents = backups.restore(file, folder / JOURNAL)
    except (DirectoryError, JournalError) as error:
        output.fail(f"batchyard: {error}")
    except OSError as error:
        output.fail(f"batchyard: {error.filename or folder}: {error.strerror}")
    kept = contents.recovered
    output.report_line(
        f"batchyard: {folder}: {len(kept.objects)} objects restored; it continues from revision {kept.revision}"
    )
    output.report_line(f"batchyard: start it with: batchyard up --data-dir {quote(str(folder))}")
