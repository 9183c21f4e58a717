"""`why`: the document about a Workload, a job, a pod or a ClusterQueue, as things stand."""

from collections.abc import Callable
from typing import Final

from batchyard.api import scheme
from batchyard.api.meta import Key, Obj, key_of
from batchyard.base.instant import Instant
from batchyard.controllers.admission.index import AdmissionIndex
from batchyard.controllers.why.admitted import AdmittedWorkloads, ended, pod_part
from batchyard.controllers.why.capacity import Capacity
from batchyard.controllers.why.document import Asker, Part, explanation
from batchyard.controllers.why.evictions import eviction_part, summary_of
from batchyard.controllers.why.pending import PendingWorkloads
from batchyard.controllers.why.queues import Queues
from batchyard.controllers.why.refusals import last_refusal
from batchyard.controllers.why.subjects import workload_of
from batchyard.core.cycle import Policy
from batchyard.core.lifecycle import workload as lifecycle
from batchyard.core.lifecycle.pod import is_terminal, phase
from batchyard.ports.client import Reader

PENDING: Final = "Pending"
EVICTED: Final = "Evicted"
INACTIVE: Final = "Inactive"
UNMANAGED: Final = "Unmanaged"


def everywhere(_namespace: str) -> bool:
    """Who may read all."""
    return True


class Explainer:
    """See the module."""

    def __init__(self, index: AdmissionIndex, policy: Policy, reader: Reader, capacity: Capacity | None = None) -> None:
        self._index = index
        self._policy = policy
        self._reader = reader
        self._capacity = capacity
        self._pending = PendingWorkloads(index, policy, reader)
        self._admitted = AdmittedWorkloads(index, reader, capacity)
        self._queues = Queues(index, self._pending)

    def why(self, key: Key, now: Instant, may_read: Callable[[str], bool] = everywhere) -> Part | None:
        """The document about an object; None if there is no such object.

        Workloads of namespaces that may not be read are told without their names.
        """
        obj = self._reader.get(key)
        if obj is None:
            return None
        part = {**explanation(obj["kind"], key.namespace, key.name, now), **self._part(key, obj, now, Asker(may_read))}
        if refusal := last_refusal(obj, self._reader, now):
            part["facts"] = {**(part.get("facts") or {}), "refused": refusal}
        return part

    def _part(self, key: Key, obj: Obj, now: Instant, asker: Asker) -> Part:
        if key.kind == scheme.CLUSTER_QUEUE:
            return self._queues.explain(obj, now, asker)
        if key.kind == scheme.WORKLOAD:
            return self._workload(obj, now, asker)
        return self._led(obj, now, asker)

    def _led(self, obj: Obj, now: Instant, asker: Asker) -> Part:
        """A job or a pod: what is true of its Workload, and of itself."""
        found, own = workload_of(obj, self._reader), self._own(obj)
        if found.workload is None:
            return {
                "state": UNMANAGED,
                "summary": own.pop("summary", "") or found.why_not,
                **own,
                "facts": {"queue": found.why_not},
            }
        part = self._workload(found.workload, now, asker)
        summary = own.pop("summary", "")
        facts = {"workload": key_of(found.workload).name, **part.pop("facts", {})}
        return {**part, **({"summary": summary} if summary else {}), **own, "facts": facts}

    def _own(self, obj: Obj) -> Part:
        """What is to be said of a pod itself."""
        if obj["kind"] != "Pod":
            return {}
        part = pod_part(obj, self._capacity)
        own: Part = {"pod": part}
        if is_terminal(obj):
            own["summary"] = (
                f"the pod has ended: {phase(obj)}{'; ' + part['containers'] if part.get('containers') else ''}"
            )
        elif part.get("scheduler"):
            told = f"; the autoscaler: {part['autoscaler']}" if part.get("autoscaler") else ""
            own["summary"] = f"the pod has no node: {part['scheduler']}{told}"
        elif part.get("containers"):
            own["summary"] = f"the pod is on {part.get('node', 'no node')}; {part['containers']}"
        elif part.get("node"):
            own["summary"] = f"the pod is {part['phase'].lower()} on {part['node']}"
        return own

    def _workload(self, workload: Obj, now: Instant, asker: Asker) -> Part:
        if lifecycle.is_finished(workload):
            return ended(workload)
        if lifecycle.has_quota_reservation(workload):
            return self._admitted.explain(workload, now, asker)
        past = eviction_part(workload, self._index, self._reader, asker, fair_sharing=self._policy.fair_sharing)
        found = self._pending.explain(workload, now, asker)
        state = EVICTED if past else PENDING
        if not lifecycle.is_active(workload):
            state = INACTIVE
        summary = f"{summary_of(past)}it waits: {found['binding']['message']}"
        return {"state": state, "summary": summary, **past, **found}
