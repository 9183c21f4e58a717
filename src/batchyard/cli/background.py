"""Background platforms: find the platform process of a data directory, or start one and wait until it listens."""

import fcntl
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple, NoReturn

from batchyard.base.instant import format_duration
from batchyard.cli import output
from batchyard.server.logging.logs import LogSettings
from batchyard.server.platform.data_dir import LOG_FILE, LOOPBACK, PlatformOptions, PlatformProcess, running_process_in

END_TIMEOUT_SECONDS: Final = 30
_POLL_SECONDS: Final = 0.05


class UpOptions(NamedTuple):
    """The options of `batchyard up`."""

    platform_options: PlatformOptions
    cluster: Path | None
    speed: float
    #: The values of `--image`, as NAME=DIR, NAME=podman: or NAME=docker:.
    images: Sequence[str] = ()
    #: The folders of this machine that pods may mount.
    host_paths: Sequence[Path] = ()
    logs: LogSettings = LogSettings()
    #: The file with Kueue's Configuration.
    config: Path | None = None
    #: Whether pods may use this machine's network.
    host_network: bool = False


def start_in_background(options: UpOptions) -> tuple[subprocess.Popen[bytes], PlatformProcess]:
    """Start a platform in a process of its own; return the process and its PlatformProcess once it listens.

    The command exits if the start fails.
    """
    platform_options = options.platform_options
    log = platform_options.folder / LOG_FILE
    with _lock_log(log), log.open("ab") as log_file:
        log_offset = log_file.tell()
        process = subprocess.Popen(  # noqa: S603 - this program
            [sys.executable, "-m", "batchyard", *_up_arguments(options)],
            stdin=subprocess.DEVNULL,
            stdout=log_file,
            stderr=log_file,
            start_new_session=True,
        )
        try:
            platform_process = _wait_until_listening(platform_options.folder, process, log_offset)
        except KeyboardInterrupt:  # its pid has not been printed, so the user could not end it
            process.terminate()
            process.wait(END_TIMEOUT_SECONDS)
            raise
    return process, platform_process


def _wait_until_listening(folder: Path, process: subprocess.Popen[bytes], log_offset: int) -> PlatformProcess:
    while (platform_process := running_process_in(folder)) is None or platform_process.pid != process.pid:
        try:
            process.wait(_POLL_SECONDS)
        except subprocess.TimeoutExpired:
            continue
        _fail_with_log(folder / LOG_FILE, log_offset, process.returncode)
    return platform_process


@contextmanager
def _lock_log(log: Path) -> Iterator[None]:
    try:
        with log.open(
            "ab"
        ) as lock_file:  # a separate file: the platform inherits the log file and would keep a lock on it
            fcntl.flock(lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
    except BlockingIOError:
        output.fail(f"batchyard: {log.parent}: another `batchyard up --detach` is starting a platform; wait for it")
    except OSError as error:
        output.fail(f"batchyard: {log}: {error.strerror}; check the path, its permissions and the free disk space")


def _fail_with_log(log: Path, log_offset: int, exit_code: int) -> NoReturn:
    message = log.read_bytes()[log_offset:].decode("utf-8", "replace").strip()
    no_output = f"batchyard: the platform exited with code {exit_code} before it listened; {log} contains no error"
    output.fail(message or f"{no_output}; check the free disk space, or start the platform without --detach")


def _up_arguments(options: UpOptions) -> list[str]:
    """Return the arguments of `batchyard up` for these options, without `--detach`."""
    platform_options = options.platform_options
    location_options = ("--data-dir", str(platform_options.folder), "--port", str(platform_options.port))
    arguments = ["up", *location_options, "--speed", f"{options.speed}x"]
    arguments += ["--sync", str(platform_options.sync)]
    arguments += [] if options.cluster is None else ["--cluster", str(options.cluster)]
    arguments += [] if options.config is None else ["--config", str(options.config)]
    arguments += ["--kueue-version", platform_options.kueue_version] if platform_options.kueue_version else []
    arguments += [argument for image in options.images for argument in ("--image", image)]
    arguments += [argument for path in options.host_paths for argument in ("--host-path", str(path))]
    arguments += ["--listen", platform_options.address] if platform_options.address != LOOPBACK else []
    arguments += ["--controllers", ",".join(platform_options.controllers)]
    arguments += ["--upstream", ",".join(platform_options.upstream)] if platform_options.upstream else []
    arguments += ["--service-cluster-ip-range", platform_options.service_cidr]
    for option, value in (
        ("--job-controllers", ",".join(platform_options.job_controllers) or None),
        ("--audit-log", platform_options.audit_log),
        ("--authentication-config", platform_options.authentication_config),
        ("--authentication-token-webhook-config-file", platform_options.token_webhook_config),
        ("--standby", platform_options.standby or None),
        ("--follow", platform_options.follow or None),
        ("--witness", platform_options.witness),
        ("--api-name", platform_options.api_name or None),
        ("--archive", platform_options.archive or None),
        ("--archive-keep", format_duration(platform_options.archive_keep) if platform_options.archive_keep else None),
    ):
        arguments += [] if value is None else [option, str(value)]
    arguments += ["--log-level", options.logs.level, "--log-format", "json" if options.logs.is_json else "text"]
    arguments += [] if platform_options.runtime is None else ["--runtime", format_duration(platform_options.runtime)]
    arguments += ["--otlp", platform_options.traces_to] if platform_options.traces_to else []
    arguments += ["--host-network"] if options.host_network else []
    flags = {"--insecure-loopback": platform_options.is_insecure, "--accept-loss": platform_options.accept_loss}
    return arguments + [flag for flag, is_set in flags.items() if is_set]


def require_running_platform(folder: Path) -> PlatformProcess:
    """Return the platform process of a data directory; the command exits if no platform runs there."""
    platform_process = running_process_in(folder)
    if platform_process is None:
        output.fail(f"batchyard: no platform runs in {folder}; start one with `batchyard up`, or set its --data-dir")
    return platform_process
