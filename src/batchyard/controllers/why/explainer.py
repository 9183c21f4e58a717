"""`why`: the document about a Workload, a job, a pod or a ClusterQueue, as things stand."""

from collections.abc import Callable
from typing import Final

from batchyard.api.meta import Key, Obj
from batchyard.base.instant import Instant
from batchyard.controllers.admission.index import AdmissionIndex
from batchyard.controllers.why.document import Asker, Part, explanation
from batchyard.controllers.why.pending import PendingWorkloads
from batchyard.core.cycle import Policy
from batchyard.core.lifecycle import workload as lifecycle
from batchyard.ports.client import Reader

PENDING: Final = "Pending"


def everywhere(_namespace: str) -> bool:
    """Who may read all."""
    return True


class Explainer:
    """See the module."""

    def __init__(self, index: AdmissionIndex, policy: Policy, reader: Reader) -> None:
        self._reader = reader
        self._pending = PendingWorkloads(index, policy, reader)

    def why(self, key: Key, now: Instant, may_read: Callable[[str], bool] = everywhere) -> Part | None:
        """The document about an object; None if there is no such object.

        Workloads of namespaces that may not be read are told without their names.
        """
        obj = self._reader.get(key)
        return None if obj is None else self._workload(obj, now, Asker(may_read))

    def _workload(self, workload: Obj, now: Instant, asker: Asker) -> Part:
        metadata = workload["metadata"]
        part = explanation("Workload", metadata.get("namespace", ""), metadata["name"], now)
        if not lifecycle.has_quota_reservation(workload):
            found = self._pending.explain(workload, now, asker)
            summary = f"waits: {found['binding']['message']}"
            return {**part, "state": PENDING, "summary": summary, **found}
        return part
