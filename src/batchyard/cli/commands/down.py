"""`batchyard down`: stops a platform, and its pods on request."""

import os
import signal
from contextlib import suppress
from pathlib import Path
from shlex import quote
from types import FrameType
from typing import Annotated

import typer

from batchyard.cli import output
from batchyard.cli.background import ENDED_WITHIN, process_of
from batchyard.cli.options import DATA_DIR, PlatformDir
from batchyard.server.platform.data_dir import JOURNAL, PlatformProcess, process_in
from batchyard.store.journal_file import wait_until_released


def stop(folder: Path, *, end_pods: bool) -> None:
    """Stop a platform and wait for its end. `end_pods` also ends its pods, even if the platform has already ended."""
    if not (end_pods and _only_pods_run(folder)):
        _end(process_of(folder), folder)
    _see_to_pods(folder, end_pods=end_pods)


def _only_pods_run(folder: Path) -> bool:
    from batchyard.server.local_node.orphans import OrphanedPods  # noqa: PLC0415 - only for down

    return process_in(folder) is None and bool(OrphanedPods(folder).pods())


def _end(running: PlatformProcess, folder: Path) -> None:
    os.kill(running.pid, signal.SIGTERM)
    if running.guard > 0:
        with suppress(ProcessLookupError):
            os.kill(running.guard, signal.SIGTERM)
    if not _has_ended(folder / JOURNAL):
        message = f"batchyard: {running.url}, pid {running.pid}, did not end within {ENDED_WITHIN} s"
        output.fail(f"{message}; kill -9 {running.pid} ends it without losing acknowledged writes")
    output.report_line(f"batchyard: {running.url} has ended, its data is kept")


def _see_to_pods(folder: Path, *, end_pods: bool) -> None:
    """Report the pods that keep running, or end them."""
    from batchyard.server.local_node.orphans import GRACE, OrphanedPods  # noqa: PLC0415 - only for down

    left = OrphanedPods(folder)
    count = len(left.pods())
    if not count and not end_pods:
        return
    pods = "1 pod" if count == 1 else f"{count} pods"
    if not end_pods:
        message = f"batchyard: {pods} of this machine still run: `batchyard up` adopts them"
        output.report_line(f"{message}, batchyard down --end-pods --data-dir {quote(str(folder))} ends them")
        return
    if count:
        output.report_line(f"batchyard: ending {pods}, which can take up to {GRACE} s")
    if not left.end():
        output.fail(f"batchyard: some pods still run; see the files in {folder / 'node'}")


def _has_ended(journal: Path) -> bool:
    """Whether a process releases its journal within `ENDED_WITHIN`."""

    def late(_signal: int, _frame: FrameType | None) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(ENDED_WITHIN)
    try:
        wait_until_released(journal)
    except TimeoutError:
        return False
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    return True


def down(
    data_dir: PlatformDir = DATA_DIR,
    end_pods: Annotated[
        bool, typer.Option("--end-pods", help="Also end the pods of this machine, which otherwise keep running.")
    ] = False,
) -> None:
    """Stop the platform of a data directory and wait for its end."""
    stop(data_dir, end_pods=end_pods)
