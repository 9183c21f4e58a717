"""The seam between the framework and a kind of job: what the framework asks, and what it may have written.

Kueue's GenericJob (pkg/controller/jobframework/interface.go), as functions of an object. An integration remembers
nothing and knows nothing of Workloads.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from batchyard.api.meta import Obj
from batchyard.controllers.jobs.podsets import Injection
from batchyard.ports.client import Write


class Ending(NamedTuple):
    """How a job ended."""

    succeeded: bool
    message: str


class Integration(Protocol):
    """One kind of job."""

    kind: str

    def is_suspended(self, job: Obj) -> bool:
        """It has been stopped, and all that stopping takes is done."""

    def is_active(self, job: Obj) -> bool:
        """Pods of it are running."""

    def pods_ready(self, job: Obj) -> bool:
        """All its pods are ready, or are done."""

    def ending(self, job: Obj) -> Ending | None:
        """How it ended, if it did."""

    def templates(self, job: Obj) -> Sequence[Mapping[str, Any]]:
        """Its pod templates as they are."""

    def pod_sets(self, job: Obj) -> list[dict[str, Any]]:
        """The pod sets of its Workload."""

    def reclaimable_pods(self, job: Obj) -> list[dict[str, Any]]:
        """Pods per pod set that will not run again."""

    def started(self, job: Obj, injections: Sequence[Injection]) -> Obj:
        """The job let go, with what admission wants in its templates; InvalidInjection if that cannot be."""

    def stop(self, job: Obj, originals: Sequence[Injection]) -> Write | None:
        """The next write on the way to a stopped job with its original templates; None once it is there."""


def condition_true(job: Obj, *types: str) -> Mapping[str, Any] | None:
    """The first condition of these types that is True."""
    conditions = (job.get("status") or {}).get("conditions") or ()
    return next((c for c in conditions if c["type"] in types and c["status"] == "True"), None)
