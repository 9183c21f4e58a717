"""The data directory of an embedded platform: its file names, its permissions, and the state file of the process.

`Place` holds the options of a platform. It is importable without loading the platform.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from batchyard.base.instant import Duration
from batchyard.controller_groups import GROUPS
from batchyard.store.journal import SyncMode
from batchyard.store.journal_file import is_held, mark_of

JOURNAL: Final = "journal.db"
#: The ledger of scheduling decisions.
LEDGER: Final = "decisions.db"
#: The outcomes of forecasts.
FORECASTS: Final = "forecasts.json"
KUBECONFIG: Final = "kubeconfig"
#: The state file, written once the platform listens.
STATE: Final = "up.json"
#: The output of a platform that runs in the background.
LOG: Final = "up.log"
_OTHERS: Final = 0o077
#: Key in the state file: the start time of the process.
_BEGAN: Final = "began"
#: The index of `starttime` among the fields that follow the command name in /proc/PID/stat.
_BEGINNING: Final = 19


class DirectoryError(Exception):
    """A folder cannot be a data directory. The message says why and what to do."""


class PlatformProcess(NamedTuple):
    """The process of a listening platform."""

    pid: int
    url: str
    #: The watchdog process that kills this one when its event loop is blocked; 0 if it has none.
    guard: int = 0


def prepare(folder: Path) -> None:
    """Create a folder that only its owner can access, and set the umask so that all later files are private."""
    os.umask(_OTHERS)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.stat().st_mode & _OTHERS:
            _make_private(folder)
    except (FileExistsError, NotADirectoryError) as error:
        raise DirectoryError(f"{error.filename}: this is a file; name a folder with --data-dir") from error
    except OSError as error:
        raise DirectoryError(f"{error.filename}: {error.strerror}; name a folder that you may write") from error


def _make_private(folder: Path) -> None:
    """Make a folder private. Raises DirectoryError if it holds files of other programs."""
    if any(folder.iterdir()) and not mark_of(folder / JOURNAL).exists():
        fault = "other users can read it, and it holds files of other programs"
        raise DirectoryError(f"{folder}: {fault}; name a new folder with --data-dir, or run chmod 700 first")
    folder.chmod(0o700)


def write_state(folder: Path, url: str, guard: int = 0) -> None:
    """Write the URL of this process and the pid of its watchdog to the state file."""
    own = os.getpid()
    state = {**PlatformProcess(own, url, guard)._asdict(), _BEGAN: beginning_of(own)}
    write_private(folder / STATE, json.dumps(state).encode())


def forget_state(folder: Path) -> None:
    """Remove the state file, also that of an earlier process."""
    (folder / STATE).unlink(missing_ok=True)


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner can read, atomically."""
    draft = path.with_name(f".{path.name}.new")
    draft.unlink(missing_ok=True)
    draft.touch(mode=0o600)
    draft.write_bytes(content)
    draft.replace(path)


def process_in(folder: Path) -> PlatformProcess | None:
    """Return the platform process that listens in a data directory; None also if the state file is stale."""
    try:
        state: dict[str, Any] = json.loads((folder / STATE).read_text("utf-8"))
        found = PlatformProcess(int(state["pid"]), str(state["url"]), int(state.get("guard", 0)))
        if found.pid <= 0:  # kill(2) reads it as a process group
            return None
        os.kill(found.pid, 0)
    except (OSError, ValueError, LookupError, TypeError, OverflowError):
        return None
    is_another = state.get(_BEGAN, "") not in {"", beginning_of(found.pid)}
    return found if not is_another and is_held(folder / JOURNAL) else None


def beginning_of(pid: int) -> str:
    """Return the start time of a process as the kernel counts it, to detect reused pids; '' if it is unknown."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except OSError:
        return ""
    return stat.rpartition(")")[2].split()[_BEGINNING]


# --- options of a platform ---


LOOPBACK: Final = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class PlatformOptions:
    """The options of an embedded platform: its data directory, its port (0: any free one), and its address."""

    folder: Path
    port: int = 0
    #: Serve without TLS and credentials, to every process that can reach the loopback interface.
    is_insecure: bool = False
    #: The address to listen on; other machines can reach it unless it is the loopback.
    address: str = LOOPBACK
    #: The file of the audit log: which user did what.
    audit_log: Path | None = None
    sync: SyncMode = SyncMode.FULL
    #: Start although the journal has lost acknowledged changes.
    accept_loss: bool = False
    #: The controller groups that run. An operator beside the platform may run the others.
    controllers: Sequence[str] = GROUPS
    #: The URL of the OTLP/HTTP collector that receives traces; '' for none.
    traces_to: str = ""
    #: Kueue's Configuration, if one is given.
    configuration: Mapping[str, Any] | None = None
    #: The run time of simulated pods without one of their own; None uses the Cluster's.
    runtime: Duration | None = None
