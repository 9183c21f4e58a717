"""`batchyard up` and `down`: start and stop the embedded platform, in the foreground or the background."""

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from shlex import quote
from types import FrameType
from typing import Final, NamedTuple, NoReturn

from batchyard.base.instant import duration_text
from batchyard.cli import output
from batchyard.server.logging import logs
from batchyard.server.logging.logs import LogSettings
from batchyard.server.platform.data_dir import (
    JOURNAL,
    KUBECONFIG,
    LOG,
    LOOPBACK,
    DirectoryError,
    PlatformOptions,
    PlatformProcess,
    prepare,
    process_in,
)
from batchyard.store.commit_mark import wait_until_released

ENDED_WITHIN: Final = 30  # seconds
_LOOKS_EVERY: Final = 0.05  # seconds


class UpOptions(NamedTuple):
    """The options of `up`."""

    place: PlatformOptions
    cluster: Path | None
    speed: float
    #: Replacements of images on this machine, as NAME=DIR.
    images: Sequence[str] = ()
    #: The folders of this machine that pods may mount.
    host_paths: Sequence[Path] = ()
    logs: LogSettings = LogSettings()
    #: Kueue's Configuration.
    config: Path | None = None
    #: Whether pods may use this machine's network.
    host_network: bool = False


def up(wanted: UpOptions, *, detach: bool) -> None:
    """Run the platform until a termination signal; with `detach` in the background, returning once it listens."""
    if detach:
        _prepare(wanted.place.folder)
        _run_behind(wanted)
        return
    from batchyard.cli.up_here import cluster_of, configured, run  # noqa: PLC0415 - loads the platform

    cluster, place = cluster_of(wanted), configured(wanted)
    _prepare(wanted.place.folder)
    logs.begin(wanted.logs)
    run(place, cluster, wanted.speed, partial(_print_ready, wanted.place))


def down(folder: Path, *, end_pods: bool) -> None:
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


def process_of(folder: Path) -> PlatformProcess:
    """The process that serves a data directory; ends the command if there is none."""
    running = process_in(folder)
    if running is None:
        output.fail(f"batchyard: no platform runs in {folder}; start it with `batchyard up`, or name its --data-dir")
    return running


def _prepare(folder: Path) -> None:
    """Create a data directory; ends the command if that fails or a platform already runs in it."""
    try:
        prepare(folder)
    except DirectoryError as error:
        output.fail(f"batchyard: {error}")
    running = process_in(folder)
    if running is not None:
        message = f"batchyard: {folder}: a platform already runs here, pid {running.pid}, {running.url}"
        output.fail(f"{message}; end it with: batchyard down --data-dir {quote(str(folder))}")


def _run_behind(wanted: UpOptions) -> None:
    """Start the same command in the background, and wait until it listens or ends."""
    _, running = start_behind(wanted)
    _print_ready(wanted.place, running.url)
    output.report_line(f"batchyard: pid {running.pid}, in the background; log: {wanted.place.folder / LOG}")


def start_behind(wanted: UpOptions) -> tuple[subprocess.Popen[bytes], PlatformProcess]:
    """Start a platform in its own process and wait until it listens; ends the command if it fails to start."""
    place = wanted.place
    log = place.folder / LOG
    with _alone(log), log.open("ab") as reported:
        before = reported.tell()
        started = subprocess.Popen(  # noqa: S603 - this program
            [sys.executable, "-m", "batchyard", *_arguments(wanted)],
            stdin=subprocess.DEVNULL,
            stdout=reported,
            stderr=reported,
            start_new_session=True,
        )
        try:
            running = _listening(place.folder, started, before)
        except KeyboardInterrupt:  # its pid has not been printed, so the user could not end it
            started.terminate()
            started.wait(ENDED_WITHIN)
            raise
    return started, running


def _listening(folder: Path, started: subprocess.Popen[bytes], before: int) -> PlatformProcess:
    """The started process, once it listens; ends the command if it exits first."""
    while (running := process_in(folder)) is None or running.pid != started.pid:
        try:
            started.wait(_LOOKS_EVERY)
        except subprocess.TimeoutExpired:
            continue
        _fail_with_log(folder / LOG, before, started.returncode)
    return running


@contextmanager
def _alone(log: Path) -> Iterator[None]:
    """Lock the log, so that no other `up` starts a platform here: their outputs would mix."""
    try:
        with log.open("ab") as held:  # a file of its own: the process inherits the other and would keep its lock
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
    except BlockingIOError:
        output.fail(f"batchyard: {log.parent}: another `batchyard up --detach` is starting it; wait for that one")
    except OSError as error:
        output.fail(f"batchyard: {log}: {error.strerror}; check its permissions")


def _fail_with_log(log: Path, before: int, code: int) -> NoReturn:
    """End the command with the output of a process that exited before it listened."""
    message = log.read_bytes()[before:].decode("utf-8", "replace").strip()
    silent = f"batchyard: the platform exited with code {code} before it listened; {log} gives no reason"
    output.fail(message or f"{silent}; check the free disk space, or start it without --detach")


def _arguments(wanted: UpOptions) -> list[str]:
    """The equivalent command line, in the foreground."""
    place = wanted.place
    arguments = ["up", "--data-dir", str(place.folder), "--port", str(place.port), "--speed", f"{wanted.speed}x"]
    arguments += ["--sync", str(place.sync)]
    arguments += [] if wanted.cluster is None else ["--cluster", str(wanted.cluster)]
    arguments += [] if wanted.config is None else ["--config", str(wanted.config)]
    arguments += [word for image in wanted.images for word in ("--image", image)]
    arguments += [word for path in wanted.host_paths for word in ("--host-path", str(path))]
    arguments += ["--listen", place.address] if place.address != LOOPBACK else []
    arguments += ["--controllers", ",".join(place.controllers)]
    arguments += [] if place.audit_log is None else ["--audit-log", str(place.audit_log)]
    arguments += ["--log-level", wanted.logs.level, "--log-format", "json" if wanted.logs.is_json else "text"]
    arguments += [] if place.runtime is None else ["--runtime", duration_text(place.runtime)]
    arguments += ["--otlp", place.traces_to] if place.traces_to else []
    arguments += ["--host-network"] if wanted.host_network else []
    flags = {"--insecure-loopback": place.is_insecure, "--accept-loss": place.accept_loss}
    return arguments + [flag for flag, is_set in flags.items() if is_set]


def _print_ready(place: PlatformOptions, url: str) -> None:
    output.report_line(f"batchyard: listening on {url}, its data in {place.folder}")
    if not place.is_insecure:
        output.report_line(f"batchyard: export KUBECONFIG={quote(str((place.folder / KUBECONFIG).resolve()))}")


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
