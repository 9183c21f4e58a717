"""The command `batchyard down`: stops a platform and, on request, its pods on this machine."""

import os
import signal
from contextlib import suppress
from pathlib import Path
from shlex import quote
from types import FrameType
from typing import Annotated

import typer

from batchyard.base.counts import count_with_noun, select_verb
from batchyard.cli import output
from batchyard.cli.background import END_TIMEOUT_SECONDS, require_running_platform
from batchyard.cli.options import DATA_DIR, PlatformDir
from batchyard.server.platform.data_dir import JOURNAL_FILE, PlatformProcess, running_process_in
from batchyard.store.journal_file import wait_until_journal_closed


def stop_platform(folder: Path, *, end_pods: bool) -> None:
    """Stop a platform and wait for its end; with `end_pods`, also end its pods, even if only the pods still run.

    The command exits if there is nothing to end, or if the platform or a pod does not end in time.
    """
    if not (end_pods and _only_pods_run(folder)):
        _end_platform(require_running_platform(folder), folder)
    _end_or_report_pods(folder, end_pods=end_pods)


def _only_pods_run(folder: Path) -> bool:
    from batchyard.server.local_node.orphans import OrphanedPods  # noqa: PLC0415 - only for down

    return running_process_in(folder) is None and bool(OrphanedPods(folder).running_pod_uids())


def _end_platform(process: PlatformProcess, folder: Path) -> None:
    os.kill(process.pid, signal.SIGTERM)
    if process.guard > 0:
        with suppress(ProcessLookupError):
            os.kill(process.guard, signal.SIGTERM)
    if not _wait_until_ended(folder / JOURNAL_FILE):
        message = f"batchyard: {process.url}, pid {process.pid}, did not end within {END_TIMEOUT_SECONDS} s"
        output.fail(f"{message}; end it with kill -9 {process.pid}, which loses no acknowledged writes")
    output.report_line(f"batchyard: {process.url} has ended; its data is kept")


def _end_or_report_pods(folder: Path, *, end_pods: bool) -> None:
    from batchyard.server.local_node.orphans import GRACE_SECONDS, OrphanedPods  # noqa: PLC0415 - only for down

    orphaned_pods = OrphanedPods(folder)
    pod_count = len(orphaned_pods.running_pod_uids())
    if not pod_count and not end_pods:
        return
    pods_text = count_with_noun(pod_count, "pod")
    if not end_pods:
        verb = select_verb(pod_count, "keeps", "keep")
        message = f"batchyard: {pods_text} of this machine {verb} running: `batchyard up` adopts them"
        output.report_line(f"{message}, batchyard down --end-pods --data-dir {quote(str(folder))} ends them")
        return
    if pod_count:
        output.report_line(f"batchyard: ending {pods_text}, which can take up to {GRACE_SECONDS} s")
    if not orphaned_pods.end():
        remedy = f"run the command again, or kill the pids in the state.json files below {folder / 'node' / 'pods'}"
        output.fail(f"batchyard: some pods still run; {remedy}")


def _wait_until_ended(journal: Path) -> bool:
    """Wait until the platform process closes its journal file; return False after END_TIMEOUT_SECONDS."""

    def raise_timeout(_signal: int, _frame: FrameType | None) -> None:
        raise TimeoutError

    old_handler = signal.signal(signal.SIGALRM, raise_timeout)
    signal.alarm(END_TIMEOUT_SECONDS)
    try:
        wait_until_journal_closed(journal)
    except TimeoutError:
        return False
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, old_handler)
    return True


def down(
    data_dir: PlatformDir = DATA_DIR,
    end_pods: Annotated[
        bool, typer.Option("--end-pods", help="Also end the pods of this machine, which otherwise keep running.")
    ] = False,
) -> None:
    """Stop the platform of a data directory and wait for its end."""
    stop_platform(data_dir, end_pods=end_pods)
