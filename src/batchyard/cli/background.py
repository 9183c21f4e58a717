"""Platforms in the background: the process of a data directory, and the start of another."""

import fcntl
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple, NoReturn

from batchyard.base.instant import duration_text
from batchyard.cli import output
from batchyard.server.logging.logs import LogSettings
from batchyard.server.platform.data_dir import LOG, LOOPBACK, PlatformOptions, PlatformProcess, process_in

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


def process_of(folder: Path) -> PlatformProcess:
    """The process that serves a data directory; ends the command if there is none."""
    running = process_in(folder)
    if running is None:
        output.fail(f"batchyard: no platform runs in {folder}; start it with `batchyard up`, or name its --data-dir")
    return running
