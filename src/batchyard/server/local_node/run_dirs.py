"""Run folders, shared with the programs of the node: the platform writes specs there and reads states.

Layout (below the node's folder): `pods/UID/sandbox`, `pods/UID/runs/CONTAINER/N`, `pods/UID/images/CONTAINER/N`,
`pods/UID/logs/CONTAINER/N.log`.
"""

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from batchyard.api.meta import Key, Obj, key_of
from batchyard.base.instant import SECOND, Duration, Instant
from batchyard.interfaces.containers import IMAGES, RUN, SANDBOX
from batchyard.kubelet.local.runs import API_VERSION
from batchyard.server.platform.data_dir import write_private

_PODS: Final = "pods"
_RUNS: Final = "runs"
_LOGS: Final = "logs"
VOLUMES: Final = "volumes"
_TRASH: Final = "trash"
SPEC: Final = "spec.json"
STATE: Final = "state.json"
STOP: Final = "stop.json"
CLAIMED: Final = "claimed"


class RunFolders:
    """The folders of all runs of a node."""

    def __init__(self, node: Path) -> None:
        self._node = self.node = node
        for name in (_PODS, _TRASH):
            (node / name).mkdir(mode=0o700, parents=True, exist_ok=True)
        #: The highest number in the trash folder.
        self._thrown = max((int(each.name) for each in self.trash()), default=0)

    def path(self, key: Key) -> Path:
        """Return the path of a run's folder, relative to the node's folder."""
        pod = Path(_PODS, key.namespace)
        return pod / key.name if key.name == SANDBOX or _is_image(key) else pod / _RUNS / key.name

    def key(self, path: Path) -> Key:
        """Return the key of the run with a relative path."""
        parts = path.parts
        return Key(RUN, parts[1], "/".join(parts[3:] if parts[2] == _RUNS else parts[2:]))

    def log(self, key: Key) -> Path:
        """Return the path of the log of a container's run."""
        return self._node / _PODS / key.namespace / _LOGS / f"{key.name}.log"

    def pod(self, uid: str) -> Path:
        """Return the folder of a pod."""
        return self._node / _PODS / uid

    def found(self) -> Iterator[Obj]:
        """Yield all runs from their folders; for each pod the sandbox first, then the runs by number."""
        for pod in sorted((self._node / _PODS).iterdir()):
            below = [path for name in (_RUNS, IMAGES) for path in (pod / name).glob("*/*")]
            runs = sorted(below, key=lambda path: (path.parent, int(path.name)))
            for path in (pod / SANDBOX, *runs):
                if (path / SPEC).exists():
                    yield self.read(self.key(path.relative_to(self._node)))

    def read(self, key: Key) -> Obj:
        """Read a run from its folder."""
        path = self._node / self.path(key)
        run: dict[str, Any] = {
            "apiVersion": API_VERSION,
            "kind": "Run",
            "metadata": {"namespace": key.namespace, "name": key.name},
            "spec": _read(path / SPEC),
            "status": self.state(key),
        }
        stop = _read(path / STOP)
        return {**run, "stop": stop} if stop else run

    def is_claimed(self, path: Path) -> bool:
        """Whether a shim has claimed a run. It held the lock of the run at that time."""
        return (self._node / path / CLAIMED).exists()

    def state(self, key: Key) -> Mapping[str, Any]:
        """Read the state of a run; empty before a shim has written one."""
        return _read(self._node / self.path(key) / STATE)

    def make(self, run: Obj, spec: Mapping[str, Any]) -> None:
        """Create the folder of a new run, and write its spec."""
        path = self._node / self.path(key_of(run))
        path.mkdir(mode=0o700, parents=True)
        if path.name != SANDBOX and not _is_image(key_of(run)):
            self.log(key_of(run)).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private(path / SPEC, json.dumps(spec).encode())

    def stop(self, run: Obj) -> None:
        """Write that a run must stop."""
        write_private(self._node / self.path(key_of(run)) / STOP, json.dumps(run["stop"]).encode())

    def throw_away(self, key: Key) -> Path:
        """Move a run's folder to the trash and delete its logs; for a sandbox move the whole pod. Return the path."""
        if key.name == SANDBOX:
            return self._trashed(self.pod(key.namespace))
        log = self.log(key)
        for part in () if _is_image(key) else log.parent.glob(f"{log.name}*"):
            part.unlink()
        return self._trashed(self._node / self.path(key))

    def throw_away_sandbox(self, key: Key) -> Path:
        """Move only a sandbox's folder to the trash. Return the new path."""
        return self._trashed(self._node / self.path(key))

    def trash(self) -> Iterator[Path]:
        """Yield the folders in the trash."""
        return (self._node / _TRASH).iterdir()

    def _trashed(self, path: Path) -> Path:
        self._thrown += 1
        there = self._node / _TRASH / str(self._thrown)
        if path.exists():
            path.rename(there)
        return there


def _is_image(key: Key) -> bool:
    return key.name.count("/") > 1


def empty(path: Path) -> None:
    """Delete a folder of the trash."""
    shutil.rmtree(path, ignore_errors=True)


def _read(path: Path) -> Mapping[str, Any]:
    try:
        found: Mapping[str, Any] = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    return found


# --- times ---
#
# Conversion between the platform's time and the machine's time, which the programs of the node use.
#
# The platform's time may be ahead: it does not go back when the machine's clock is set back, or after it was
# accelerated.


#: The tolerated difference of the clocks.
_DIFFERS: Final = 2 * SECOND
#: Maximum remembered conversions, so that a time keeps its converted value when a clock is set.
_REMEMBERED_MAX: Final = 65_536
_TIMES: Final = ("startedAt", "finishedAt")


class NodeTimes:
    """The difference of both clocks, and the converted times. `clock` returns the platform's time."""

    def __init__(self, clock: Callable[[], Instant], machine_clock: Callable[[], Instant]) -> None:
        self.clock = clock
        self._machine_clock = machine_clock
        self._ahead: Duration = 0
        self._remembered = lru_cache(maxsize=_REMEMBERED_MAX)(self.here)

    def here(self, recorded: Instant) -> Instant:
        """Convert machine time to platform time."""
        return recorded + self._platform_is_ahead()

    def there(self, instant: Instant) -> Instant:
        """Convert platform time to machine time."""
        return instant - self._platform_is_ahead()

    def state(self, recorded: Mapping[str, Any]) -> Mapping[str, Any]:
        """Convert the times of a run's state to platform time."""
        state = {**recorded, **{field: self._remembered(recorded[field]) for field in _TIMES if recorded.get(field)}}
        exceeded = recorded.get("exceeded")
        return {**state, "exceeded": {**exceeded, "at": self._remembered(exceeded["at"])}} if exceeded else state

    def run(self, recorded: Obj) -> Obj:
        """Convert the times of a run to platform time: those of its state and of its stop."""
        run = {**recorded, "status": self.state(recorded["status"])}
        return {**run, "stop": {**run["stop"], "at": self._remembered(run["stop"]["at"])}} if "stop" in run else run

    def stopped_there(self, run: Obj) -> Obj:
        """Convert the time of a run's stop to machine time."""
        return {**run, "stop": {**run["stop"], "at": self.there(run["stop"]["at"])}}

    def _platform_is_ahead(self) -> Duration:
        ahead = self.clock() - self._machine_clock()
        if abs(ahead - self._ahead) > _DIFFERS:
            self._ahead = ahead
        return self._ahead
