"""The data directory of a platform: its own, private, and what is said there of the process that runs in it."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from batchyard.base.instant import Duration
from batchyard.controller_groups import GROUPS
from batchyard.store.commit_mark import is_held, mark_of
from batchyard.store.journal import Sync

JOURNAL: Final = "journal.db"
#: What was decided, and why.
LEDGER: Final = "decisions.db"
#: What became of forecasts.
FORECASTS: Final = "forecasts.json"
KUBECONFIG: Final = "kubeconfig"
#: What a platform says of itself once it listens.
STATE: Final = "up.json"
#: What one in the background tells.
LOG: Final = "up.log"
_OTHERS: Final = 0o077
#: When the process began that says so.
_BEGAN: Final = "began"
#: Which of the fields that follow the name of a process, in /proc/PID/stat.
_BEGINNING: Final = 19


class DirectoryError(Exception):
    """A folder cannot be a data directory; says why and what to do."""


class Process(NamedTuple):
    """The process of a platform that listens."""

    pid: int
    url: str
    #: The process that ends this one if it is blocked; 0 where there is none.
    guard: int = 0


def prepare(folder: Path) -> None:
    """Make a folder ours alone, and let whatever this process makes from now on be private."""
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
    """Keep others out of a folder that holds nothing else than a platform's."""
    if any(folder.iterdir()) and not mark_of(folder / JOURNAL).exists():
        told = "others may look into it, and it holds other things"
        raise DirectoryError(f"{folder}: {told}; name a new folder with --data-dir, or say chmod 700 first")
    folder.chmod(0o700)


def write_state(folder: Path, url: str, guard: int = 0) -> None:
    """Write where this process listens, and which process is its guard."""
    own = os.getpid()
    state = {**Process(own, url, guard)._asdict(), _BEGAN: beginning_of(own)}
    write_private(folder / STATE, json.dumps(state).encode())


def forget_state(folder: Path) -> None:
    """Say so no more; nothing of an earlier process either."""
    (folder / STATE).unlink(missing_ok=True)


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner may read, whole or not at all."""
    draft = path.with_name(f".{path.name}.new")
    draft.unlink(missing_ok=True)
    draft.touch(mode=0o600)
    draft.write_bytes(content)
    draft.replace(path)


def process_in(folder: Path) -> Process | None:
    """What listens in a data directory; None if nothing does. What a process left that was killed does not count."""
    try:
        state: dict[str, Any] = json.loads((folder / STATE).read_text("utf-8"))
        found = Process(int(state["pid"]), str(state["url"]), int(state.get("guard", 0)))
        if found.pid <= 0:  # to a signal it would mean a group of processes
            return None
        os.kill(found.pid, 0)
    except (OSError, ValueError, LookupError, TypeError, OverflowError):
        return None
    is_another = state.get(_BEGAN, "") not in {"", beginning_of(found.pid)}
    return found if not is_another and is_held(folder / JOURNAL) else None


def beginning_of(pid: int) -> str:
    """When a process began, as the kernel counts: numbers of processes are given again. '' where that is not told."""
    try:
        told = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except OSError:
        return ""
    return told.rpartition(")")[2].split()[_BEGINNING]


# --- place ---
#
# Where an embedded platform lives. Known without loading it.


LOOPBACK: Final = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Place:
    """Where an embedded platform lives: its data directory, its port (0: any that is free), and how it is spoken to."""

    folder: Path
    port: int = 0
    #: Without TLS and credentials, for whoever can reach the loopback.
    is_insecure: bool = False
    #: The address it listens at, for others than this machine to reach it.
    address: str = LOOPBACK
    #: Where it is written down who did what.
    audit_log: Path | None = None
    sync: Sync = Sync.FULL
    #: Go on from a journal that has lost what was acknowledged.
    accept_loss: bool = False
    #: Which controllers run, by group; an operator beside it may do the rest.
    controllers: Sequence[str] = GROUPS
    #: The collector that traces are sent to, as OTLP over HTTP; '' for none.
    traces_to: str = ""
    #: Kueue's Configuration, where one is given.
    configuration: Mapping[str, Any] | None = None
    #: How long simulated pods run for which nothing else gives a run time; None: as the Cluster has it.
    runtime: Duration | None = None
