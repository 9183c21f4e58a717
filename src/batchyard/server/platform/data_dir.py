"""The data directory of a platform (`batchyard up`): file names, permissions, state file; and the platform's options.

This module is separate from the platform, so that a command-line client can import it quickly.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from batchyard.api.well_known import DEFAULT_SERVICE_CIDR
from batchyard.base.instant import Duration
from batchyard.controller_groups import GROUPS, upstream_api_groups
from batchyard.store.journal import SyncMode
from batchyard.store.journal_file import commit_mark_path, is_journal_open

JOURNAL_FILE: Final = "journal.db"
#: The ledger of scheduling decisions.
LEDGER_FILE: Final = "decisions.db"
#: The calibration of forecasts.
FORECASTS_FILE: Final = "forecasts.json"
KUBECONFIG_FILE: Final = "kubeconfig"
#: The version of Kueue whose decision rules apply if neither an option nor the data directory selects one.
DEFAULT_KUEUE_VERSION: Final = "0.19"
#: The setting of the journal that records the version.
KUEUE_VERSION_SETTING: Final = "kueue-version"
#: The setting of the journal that records `--upstream`.
UPSTREAM_SETTING: Final = "upstream"
#: The state file, written once the platform listens.
STATE_FILE: Final = "up.json"
#: The terms that this platform and its standby have begun.
REPLICATION_FILE: Final = "replication.json"
#: The URL path at which a standby receives the changes of the journal.
REPLICATION_PATH: Final = "/batchyard/replication"
#: The user of the standby's certificate, and the role that may use this path.
STANDBY_USER: Final = "system:batchyard:standby"
#: The standard output and error of a platform that runs in the background.
LOG_FILE: Final = "up.log"
_OTHER_USERS_MODE_MASK: Final = 0o077
#: Key in the state file: the start time of the process.
_START_TIME_KEY: Final = "began"
#: The index of `starttime` among the fields that follow the command name in /proc/PID/stat.
_START_TIME_FIELD_INDEX: Final = 19


class DirectoryError(Exception):
    """A folder cannot be used as data directory. The message contains the reason and the remedy."""


class PlatformProcess(NamedTuple):
    """The running process of a platform: its pid, the URL of its API, and the pid of its watchdog."""

    pid: int
    url: str
    #: The pid of the watchdog, which kills the platform if its event loop is blocked; 0 without a watchdog.
    guard: int = 0


def prepare_data_dir(folder: Path) -> None:
    """Create the data directory if it is missing, restrict it to its owner, and set the umask for private files.

    Raises DirectoryError if the folder cannot be used.
    """
    os.umask(_OTHER_USERS_MODE_MASK)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.stat().st_mode & _OTHER_USERS_MODE_MASK:
            _make_folder_private(folder)
    except (FileExistsError, NotADirectoryError) as error:
        raise DirectoryError(f"{error.filename}: this is a file, not a folder; set a folder with --data-dir") from error
    except OSError as error:
        raise DirectoryError(f"{error.filename}: {error.strerror}; set a writable folder with --data-dir") from error


def _make_folder_private(folder: Path) -> None:
    if any(folder.iterdir()) and not commit_mark_path(folder / JOURNAL_FILE).exists():
        reason = "other users can read this folder, and it contains files of other programs"
        raise DirectoryError(
            f"{folder}: {reason}; set a new folder with --data-dir, or run chmod 700 on this folder first"
        )
    folder.chmod(0o700)


def write_state(folder: Path, url: str, watchdog_pid: int = 0) -> None:
    """Write this process's pid, start time and URL, and its watchdog process's pid (0: none), to the state file."""
    own_pid = os.getpid()
    process_state = {
        **PlatformProcess(own_pid, url, watchdog_pid)._asdict(),
        _START_TIME_KEY: process_start_time(own_pid),
    }
    write_private(folder / STATE_FILE, json.dumps(process_state).encode())


def remove_state(folder: Path) -> None:
    """Remove the state file that this or an earlier platform process wrote."""
    (folder / STATE_FILE).unlink(missing_ok=True)


def write_private(path: Path, content: bytes) -> None:
    """Write a file atomically, with permissions for its owner only."""
    temporary_path = path.with_name(f".{path.name}.new")
    temporary_path.unlink(missing_ok=True)
    temporary_path.touch(mode=0o600)
    temporary_path.write_bytes(content)
    temporary_path.replace(path)


def running_process_in(folder: Path) -> PlatformProcess | None:
    """Return the platform process that the state file names; None if the file is missing, invalid or stale."""
    try:
        state: dict[str, Any] = json.loads((folder / STATE_FILE).read_text("utf-8"))
        process = PlatformProcess(int(state["pid"]), str(state["url"]), int(state.get("guard", 0)))
        if process.pid <= 0:  # kill(2) reads it as a process group
            return None
        os.kill(process.pid, 0)
    except (OSError, ValueError, LookupError, TypeError, OverflowError):
        return None
    is_pid_reused = state.get(_START_TIME_KEY, "") not in {"", process_start_time(process.pid)}
    return process if not is_pid_reused and is_journal_open(folder / JOURNAL_FILE) else None


def process_start_time(pid: int) -> str:
    """Return a process's start time in clock ticks since boot, which reveals a reused pid; '' if it is unknown."""
    try:
        stat_text = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except OSError:
        return ""
    return stat_text.rpartition(")")[2].split()[_START_TIME_FIELD_INDEX]


LOOPBACK: Final = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class PlatformOptions:
    """The options of a platform (`batchyard up`), such as its data directory, address and port (0: any free port)."""

    folder: Path
    port: int = 0
    #: Whether to serve without TLS and authentication.
    is_insecure: bool = False
    #: The address to listen on; other machines can reach it unless it is the loopback.
    address: str = LOOPBACK
    #: The file of the audit log; None for none.
    audit_log: Path | None = None
    sync: SyncMode = SyncMode.FULL
    #: Whether to start even if the journal has lost acknowledged changes.
    accept_loss: bool = False
    #: The controller groups that run. An operator beside the platform may run the others.
    controllers: Sequence[str] = GROUPS
    #: The projects, such as `kueue`, whose own definitions, webhooks and controllers replace the built-in ones.
    upstream: Sequence[str] = ()
    #: The projects, such as `kubeflow`, whose kinds of jobs the platform defines and runs itself.
    job_controllers: Sequence[str] = ()
    #: The URL of the OTLP/HTTP collector that receives traces; '' for none.
    traces_to: str = ""
    #: Kueue's Configuration, if one is given.
    configuration: Mapping[str, Any] | None = None
    #: The run time of simulated pods that do not specify one; None uses that of the Cluster.
    runtime: Duration | None = None
    #: The version of Kueue whose decision rules apply; '' for the version of the last start, else the default.
    kueue_version: str = ""
    #: The file with the AuthenticationConfiguration, and the kubeconfig of the token webhook; None for none.
    authentication_config: Path | None = None
    token_webhook_config: Path | None = None
    #: How a standby is served: `sync` or `async`; '' if no standby may connect.
    standby: str = ""
    #: The URL or data directory of the primary that this platform follows until it takes over; '' for none.
    follow: str = ""
    #: The folder, shared with the standby, that decides which of both serves; None for none.
    witness: Path | None = None
    #: A further DNS name or address of the API, in the server certificate and the kubeconfig; '' for none.
    api_name: str = ""
    #: The range of the cluster IPs of Services, an IPv4 network.
    service_cidr: str = DEFAULT_SERVICE_CIDR
    #: The folder or URL of the archive, and how long its states stay restorable (0: forever); '' for no archive.
    archive: str = ""
    archive_keep: Duration = 0

    @property
    def custom_groups(self) -> frozenset[str]:
        """The API groups whose built-in kinds the platform leaves to CustomResourceDefinitions."""
        return upstream_api_groups(self.upstream)

    def serves(self, kind: str) -> bool:
        """Return whether the platform serves a built-in kind, such as WORKLOAD, itself."""
        return kind.partition(".")[2] not in self.custom_groups
