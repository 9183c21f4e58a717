"""Status document of an embedded platform, for its owner."""

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any, Final, Protocol

from batchyard.api import scheme
from batchyard.api.conditions import is_true
from batchyard.api.meta import Obj
from batchyard.api.times import format_time
from batchyard.base.instant import SECOND, Instant
from batchyard.server.platform.data_dir import JOURNAL, PlatformOptions

#: The URL path of the document.
PATH: Final = "/batchyard/status"


class StatusObjects(Protocol):
    """The stored objects."""

    @property
    def revision(self) -> int:
        """The revision of the last change."""

    def kinds(self) -> Sequence[str]:
        """Return the kinds that have objects, sorted."""

    def count(self, kind: str) -> int:
        """Return the number of objects of a kind."""

    def list(self, kind: str, namespace: str | None = None) -> Sequence[Obj]:
        """Return all objects of a kind, sorted by namespace and name."""


class StatusReport:
    """The sources of the status document. `started` is in wall-clock time; `speed` is how much faster time runs."""

    def __init__(self, objects: StatusObjects, place: PlatformOptions, started: Instant, speed: float) -> None:
        self._objects = objects
        self._journal = place.folder / JOURNAL
        self._started = started
        self._speed = speed
        self._sync = place.sync
        self._controllers = place.controllers
        self._configuration = place.configuration

    def document(self, *, wall: Instant, clock: Instant, local: Mapping[str, Any] | None) -> Mapping[str, Any]:
        """Return the document. `clock` is the platform's time, `local` the report of this machine if it is a node."""
        objects = self._objects
        nodes, queues = objects.list(scheme.NODE), objects.list(scheme.CLUSTER_QUEUE)
        return {
            "health": "ok",
            "version": version("batchyard"),
            "started": format_time(self._started // SECOND * SECOND),
            "uptimeSeconds": (wall - self._started) // SECOND,
            "time": format_time(clock // SECOND * SECOND),
            "instant": clock,
            "speed": self._speed,
            "controllers": list(self._controllers),
            "revision": objects.revision,
            "sync": str(self._sync),
            "journalBytes": self.journal_bytes(),
            "nodes": {"ready": sum(is_true(node, "Ready") for node in nodes), "all": len(nodes)},
            "workloads": {
                "pending": _total(queues, "pendingWorkloads"),
                "admitted": _total(queues, "admittedWorkloads"),
                "all": objects.count(scheme.WORKLOAD),
            },
            "objects": dict(self.counts()),
            **({} if self._configuration is None else {"configuration": self._configuration}),
            **({} if local is None else {"local": local}),
        }

    @property
    def revision(self) -> int:
        """The revision of the last change."""
        return self._objects.revision

    def counts(self) -> Sequence[tuple[str, int]]:
        """Return the number of objects of each kind."""
        return [(kind, self._objects.count(kind)) for kind in self._objects.kinds()]

    def journal_bytes(self) -> int:
        """Return the size of the journal in bytes, including its WAL."""
        files = [self._journal, self._journal.with_name(f"{self._journal.name}-wal")]
        return sum(file.stat().st_size for file in files if file.exists())


def _total(queues: Sequence[Obj], figure: str) -> int:
    return sum((queue.get("status") or {}).get(figure, 0) for queue in queues)
