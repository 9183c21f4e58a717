"""`batchyard up` and `down`: the embedded platform, in the foreground or behind it, and its end."""

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
    Place,
    Process,
    prepare,
    process_in,
)
from batchyard.store.commit_mark import wait_until_let_go

ENDED_WITHIN: Final = 30  # seconds
_LOOKS_EVERY: Final = 0.05  # seconds


class Wanted(NamedTuple):
    """What `up` was asked for."""

    place: Place
    cluster: Path | None
    speed: float
    #: What stands for images on this machine, as NAME=DIR.
    images: Sequence[str] = ()
    #: The folders of this machine that pods may have.
    host_paths: Sequence[Path] = ()
    logs: LogSettings = LogSettings()
    #: Kueue's Configuration.
    config: Path | None = None
    #: Whether pods may use this machine's network.
    host_network: bool = False


def up(wanted: Wanted, *, detach: bool) -> None:
    """Run the platform until it is told to end; `detach`: in the background, once it listens."""
    if detach:
        _prepare(wanted.place.folder)
        _run_behind(wanted)
        return
    from batchyard.cli.up_here import cluster_of, configured, run  # noqa: PLC0415 - loads the platform, for which others wait

    cluster, place = cluster_of(wanted), configured(wanted)
    _prepare(wanted.place.folder)
    logs.begin(wanted.logs)
    run(place, cluster, wanted.speed, partial(_tell_ready, wanted.place))


def down(folder: Path, *, end_pods: bool) -> None:
    """Tell a platform to end, and wait until it has; with `end_pods` its pods too, also where it has ended already."""
    if not (end_pods and _only_pods_run(folder)):
        _end(process_of(folder), folder)
    _see_to_pods(folder, end_pods=end_pods)


def _only_pods_run(folder: Path) -> bool:
    from batchyard.server.local_node.orphans import LeftRunning  # noqa: PLC0415 - only where a platform ends

    return process_in(folder) is None and bool(LeftRunning(folder).pods())


def _end(running: Process, folder: Path) -> None:
    os.kill(running.pid, signal.SIGTERM)
    if running.guard > 0:
        with suppress(ProcessLookupError):
            os.kill(running.guard, signal.SIGTERM)
    if not _has_ended(folder / JOURNAL):
        told = f"batchyard: {running.url}, pid {running.pid}, has not ended within {ENDED_WITHIN} s"
        output.fail(f"{told}; kill -9 {running.pid} ends it, and nothing that was answered is lost")
    output.tell(f"batchyard: {running.url} has ended, all is kept")


def _see_to_pods(folder: Path, *, end_pods: bool) -> None:
    """Tell which pods go on, or end them."""
    from batchyard.server.local_node.orphans import GRACE, LeftRunning  # noqa: PLC0415 - only where a platform ends

    left = LeftRunning(folder)
    count = len(left.pods())
    if not count and not end_pods:
        return
    pods = "1 pod" if count == 1 else f"{count} pods"
    if not end_pods:
        told = f"batchyard: {pods} of this machine still run: `batchyard up` takes them up again"
        output.tell(f"{told}, batchyard down --end-pods --data-dir {quote(str(folder))} ends them")
        return
    if count:
        output.tell(f"batchyard: ending {pods}, which may take {GRACE} s")
    if not left.end():
        output.fail(f"batchyard: pods still run; see {folder / 'node'}")


def process_of(folder: Path) -> Process:
    """What listens in a data directory; ends the command if nothing does."""
    running = process_in(folder)
    if running is None:
        output.fail(f"batchyard: nothing runs in {folder}; start it with `batchyard up`, or name its --data-dir")
    return running


def _prepare(folder: Path) -> None:
    """Make a data directory in which nothing runs; ends the command where that cannot be."""
    try:
        prepare(folder)
    except DirectoryError as error:
        output.fail(f"batchyard: {error}")
    running = process_in(folder)
    if running is not None:
        told = f"batchyard: {folder}: it runs already, pid {running.pid}, {running.url}"
        output.fail(f"{told}; end it with: batchyard down --data-dir {quote(str(folder))}")


def _run_behind(wanted: Wanted) -> None:
    """Start the same command in the background, and wait until it listens or ends."""
    _, running = start_behind(wanted)
    _tell_ready(wanted.place, running.url)
    output.tell(f"batchyard: pid {running.pid}, in the background; it tells more in {wanted.place.folder / LOG}")


def start_behind(wanted: Wanted) -> tuple[subprocess.Popen[bytes], Process]:
    """A platform in a process of its own that listens; ends the command where it does not come to that."""
    place = wanted.place
    log = place.folder / LOG
    with _alone(log), log.open("ab") as told:
        before = told.tell()
        started = subprocess.Popen(  # noqa: S603 - our own command
            [sys.executable, "-m", "batchyard", *_arguments(wanted)],
            stdin=subprocess.DEVNULL,
            stdout=told,
            stderr=told,
            start_new_session=True,
        )
        try:
            running = _listening(place.folder, started, before)
        except KeyboardInterrupt:  # nobody was told of it, so nobody would end it
            started.terminate()
            started.wait(ENDED_WITHIN)
            raise
    return started, running


def _listening(folder: Path, started: subprocess.Popen[bytes], before: int) -> Process:
    """The process that was started, once it listens; ends the command where it does not come to that."""
    while (running := process_in(folder)) is None or running.pid != started.pid:
        try:
            started.wait(_LOOKS_EVERY)
        except subprocess.TimeoutExpired:
            continue
        _fail_as_told(folder / LOG, before, started.returncode)
    return running


@contextmanager
def _alone(log: Path) -> Iterator[None]:
    """Let nobody else start a platform whose log this is meanwhile: what one tells would be taken for the other's."""
    try:
        with log.open("ab") as held:  # another file than the process writes to, which would hold the lock for good
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
    except BlockingIOError:
        output.fail(f"batchyard: {log.parent}: another `batchyard up --detach` is starting it; wait for that one")
    except OSError as error:
        output.fail(f"batchyard: {log}: {error.strerror}; see that it may be written")


def _fail_as_told(log: Path, before: int, code: int) -> NoReturn:
    """End with what a process told that ended before it listened."""
    told = log.read_bytes()[before:].decode("utf-8", "replace").strip()
    silent = f"batchyard: it ended before it listened, with code {code}, and {log} says nothing of it"
    output.fail(told or f"{silent}; see that there is room in its folder, or start it without --detach")


def _arguments(wanted: Wanted) -> list[str]:
    """The command line that asks for the same, in the foreground."""
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


def _tell_ready(place: Place, url: str) -> None:
    output.tell(f"batchyard: listening on {url}, its data in {place.folder}")
    if not place.is_insecure:
        output.tell(f"batchyard: export KUBECONFIG={quote(str((place.folder / KUBECONFIG).resolve()))}")


def _has_ended(journal: Path) -> bool:
    """Whether a process lets its journal go in time."""

    def late(_signal: int, _frame: FrameType | None) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(ENDED_WITHIN)
    try:
        wait_until_let_go(journal)
    except TimeoutError:
        return False
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    return True
