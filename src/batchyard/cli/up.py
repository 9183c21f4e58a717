"""`batchyard up`, `status` and `down`: the embedded platform in the foreground, and what there is to say of it."""

import json
import os
import signal
from pathlib import Path
from typing import Any, Final, NamedTuple

import uvloop

from batchyard.api.manifests import read_manifests
from batchyard.api.meta import Obj
from batchyard.api.scheme import CLUSTER, kind_info
from batchyard.cli import output
from batchyard.live.platform import KUBECONFIG, LOOPBACK, Place, serve
from batchyard.store.journal import JournalError

STATE: Final = "up.json"
_ENDED_WITHIN: Final = 30  # seconds


class Wanted(NamedTuple):
    """What `up` was asked for."""

    folder: Path
    port: int
    is_insecure: bool
    cluster: Path | None
    speed: float
    address: str = LOOPBACK
    audit_log: Path | None = None


def up(wanted: Wanted) -> None:
    """Run the platform until it is told to end."""
    cluster = None if wanted.cluster is None else _cluster_of(wanted.cluster)
    folder = wanted.folder
    os.umask(0o077)  # what is made from here on is its owner's alone
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)

    def ready(url: str) -> None:
        state = {"pid": os.getpid(), "url": url}
        (folder / STATE).write_text(json.dumps(state), "utf-8")
        output.tell(f"batchyard: listening on {url}, its data in {folder}")
        if not wanted.is_insecure:
            output.tell(f"batchyard: export KUBECONFIG={(folder / KUBECONFIG).resolve()}")

    place = Place(folder, wanted.port, wanted.is_insecure, wanted.address, wanted.audit_log)
    try:
        uvloop.run(serve(place, cluster, wanted.speed, ready))
    except JournalError as error:
        output.fail(f"batchyard: {error}")
    except OSError as error:
        output.fail(f"batchyard: {folder}, port {wanted.port}: {error}")
    (folder / STATE).unlink(missing_ok=True)
    output.tell("batchyard: ended, all is kept")


def down(folder: Path) -> None:
    """Tell a platform to end."""
    state = _state(folder)
    if state is None:
        output.fail(f"batchyard: nothing runs in {folder}")
    os.kill(state["pid"], signal.SIGTERM)
    output.tell(f"batchyard: told {state['url']} to end")


def status(folder: Path) -> None:
    """Say whether a platform runs, and where."""
    state = _state(folder)
    if state is None:
        output.fail(f"batchyard: nothing runs in {folder}")
    output.write(f"running  {state['url']}  pid {state['pid']}\n")


def running_at(folder: Path) -> str | None:
    """The address of the platform of a data directory; None if none runs."""
    state = _state(folder)
    return None if state is None else str(state["url"])


def _state(folder: Path) -> dict[str, Any] | None:
    """What runs in a data directory; None if nothing does."""
    try:
        state: dict[str, Any] = json.loads((folder / STATE).read_text("utf-8"))
        os.kill(state["pid"], 0)
    except (OSError, ValueError):
        return None
    return state


def _cluster_of(path: Path) -> Obj:
    """The Cluster of a file; ends the command where there is none."""
    try:
        manifests = read_manifests([(str(path), path.read_text("utf-8"))])
    except (OSError, UnicodeDecodeError) as error:
        output.fail(f"batchyard: {path}: {error}")
    clusters = [manifest.obj for manifest in manifests.objects if manifest.obj["kind"] == kind_info(CLUSTER).kind]
    if manifests.faults:
        output.fail("\n".join(map(str, manifests.faults)))
    if len(clusters) != 1:
        output.fail(f"batchyard: {path}: holds {len(clusters)} Clusters; give a file with one")
    return clusters[0]
