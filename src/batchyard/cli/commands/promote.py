"""The command `batchyard promote`: lets a standby take over, or a primary serve without its standby."""

from pathlib import Path
from shlex import quote

from batchyard.cli import output
from batchyard.cli.options import DATA_DIR, PlatformDir
from batchyard.server.platform.data_dir import JOURNAL_FILE, running_process_in, write_private
from batchyard.server.replication import terms
from batchyard.store.journal_file import CommitMark, JournalError, SupersededError


def promote_platform(folder: Path) -> None:
    """Ask the process of a data directory to serve, or prepare a stopped one for it; exit with 1 on failure."""
    process = running_process_in(folder)
    if process is not None:
        write_private(folder / terms.PROMOTION_FILE, b"")
        output.report_line(f"batchyard: asked pid {process.pid} to serve without its partner")
        return
    if not (folder / JOURNAL_FILE).exists():
        output.fail(f"batchyard: {folder} contains no journal; set the data directory with --data-dir")
    try:
        commit_mark = CommitMark(folder / JOURNAL_FILE)  # locks the journal
        terms.write_state(folder, terms.read_state(folder).alone()._replace(has_claim=False))
        commit_mark.close()
    except (JournalError, SupersededError) as error:
        output.fail(f"batchyard: {error}")
    output.report_line(f"batchyard: {folder} serves alone from its next start")
    output.report_line(f"batchyard: start it with: batchyard up --standby sync --data-dir {quote(str(folder))}")


def promote(data_dir: PlatformDir = DATA_DIR) -> None:
    """Let a standby take over, or a primary serve without its standby. First make sure that the other one is stopped.

    If both are connected, the primary stops first, and no write is lost.
    """
    promote_platform(data_dir)
