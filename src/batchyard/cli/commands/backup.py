"""The commands `batchyard backup` and `restore`: save the whole state of a platform in one file, and restore it."""

from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from batchyard.base.counts import count_with_noun
from batchyard.cli import output
from batchyard.cli.options import DATA_DIR, PlatformDir
from batchyard.server.platform.data_dir import JOURNAL_FILE, DirectoryError, prepare_data_dir
from batchyard.store import journal
from batchyard.store.journal_file import JournalError


def write_backup(file: Path, folder: Path) -> None:
    """Write a backup of the data directory of a running or stopped platform; exit with 1 on failure."""
    try:
        journal_contents = journal.back_up(folder / JOURNAL_FILE, file)
    except JournalError as error:
        output.fail(f"batchyard: {error}")
    except OSError as error:
        message = f"batchyard: cannot write the backup: {error.filename or file}: {error.strerror}"
        output.fail(f"{message}; check its permissions and the free disk space, or choose another file")
    state = journal_contents.store
    objects_text = count_with_noun(len(state.objects), "object")
    output.report_line(f"batchyard: backup {file} written and verified: {objects_text} at revision {state.revision}")


def restore_backup(file: Path, folder: Path) -> None:
    """Create a data directory from a backup; exit with 1 on failure."""
    try:
        prepare_data_dir(folder)
        journal_contents = journal.restore_backup(file, folder / JOURNAL_FILE)
    except (DirectoryError, JournalError) as error:
        output.fail(f"batchyard: {error}")
    except OSError as error:
        message = f"batchyard: cannot restore the backup: {error.filename or folder}: {error.strerror}"
        output.fail(f"{message}; check its permissions and the free disk space")
    state = journal_contents.store
    objects_text = count_with_noun(len(state.objects), "object")
    output.report_line(f"batchyard: {folder}: {objects_text} restored; revisions continue from {state.revision}")
    output.report_line(f"batchyard: start the platform with: batchyard up --data-dir {quote(str(folder))}")


def backup(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write; it must not exist.")],
    data_dir: PlatformDir = DATA_DIR,
) -> None:
    """Write the whole state of a platform to a file; the platform may be running or stopped."""
    write_backup(file, data_dir)


def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file that `batchyard backup` wrote.")],
    data_dir: PlatformDir = DATA_DIR,
) -> None:
    """Create a data directory from a backup; existing files are never overwritten."""
    restore_backup(file, data_dir)
