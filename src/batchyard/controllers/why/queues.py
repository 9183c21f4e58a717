"""A ClusterQueue: whether it admits, who is at its front and why that one waits, what it uses, borrows and lends."""

from typing import Final

from batchyard.api.meta import Obj
from batchyard.api.quantity import format_amount
from batchyard.base.instant import Instant
from batchyard.controllers.admission.index import AdmissionIndex
from batchyard.controllers.why.blockers import STOPPED
from batchyard.controllers.why.document import Asker, Binding, Part, slim
from batchyard.controllers.why.pending import PendingWorkloads
from batchyard.core.fairshare import share_of
from batchyard.core.queue import ClusterQueue
from batchyard.core.quota import available

_SHOWN_MAX: Final = 5


class Queues:
    """See the module."""

    def __init__(self, index: AdmissionIndex, pending: PendingWorkloads) -> None:
        self._index = index
        self._pending = pending

    def explain(self, obj: Obj, now: Instant, asker: Asker) -> Part:
        """The parts of the document."""
        name = obj["metadata"]["name"]
        queue, waiting = self._index.snapshot.queues.get(name), self._index.line_up.pending.get(name)
        if queue is None or waiting is None:
            return {"state": "Unknown", "summary": "it was made just now, and nobody has looked at it yet"}
        self._index.snapshot.settle()
        ready = self._index.readiness(name)
        part = slim(clusterQueue=name, cohort=queue.view.cohort, quotas=self._quotas(queue))
        held = len(queue.workloads)
        part["line"] = slim(of=len(waiting), strategy="StrictFIFO" if queue.view.strict_fifo else "BestEffortFIFO")
        share = share_of(queue.node, self._index.snapshot.names)
        part["facts"] = slim(
            waiting=f"{len(waiting)} Workloads", holding=f"{held} Workloads", share=_share(share.rounded, share.weight)
        )
        if not ready.active:
            binding = Binding(STOPPED, ready.message, "ClusterQueue", name)
            return {**part, "state": "Inactive", "summary": ready.message, "binding": binding.document()}
        front = waiting.front(1)
        if not front:
            told = f"it admits; {held} Workloads hold quota and nobody is in line"
            more = f", {len(waiting)} wait for a time or a condition of their own" if len(waiting) else ""
            return {**part, "state": "Active", "summary": told + more}
        head = asker.name_of(front[0].key)
        binding_of_head = self._pending.binding_in_line(front[0].key, queue, asker)
        why = binding_of_head.message if binding_of_head is not None else "it is looked at next"
        part["facts"] |= {"head": f"{head}: {why}"}
        part |= {"binding": binding_of_head.document()} if binding_of_head is not None else {}
        return {**part, "state": "Active", "summary": f"{len(waiting)} wait; at the front {head}: {why}"}

    def _quotas(self, queue: ClusterQueue) -> list[Part]:
        """What it has of each flavor and resource, uses, borrows, and has lent."""
        node, told = queue.node, []
        for fr in node.declared:
            flavor, resource = self._index.snapshot.names[fr]
            quota, used, free = node.subtree[fr], node.usage[fr], available(node, fr)
            lent = max(0, quota - used - max(0, free)) if node.parent is not None else 0
            figures = {
                "nominal": node.nominal.get(fr, 0),
                "used": used,
                "borrowed": max(0, used - quota),
                "lent": lent,
                "available": free,
            }
            amounts = {name: format_amount(resource, amount) for name, amount in figures.items()}
            told.append({"flavor": flavor, "resource": resource, **amounts})
        return told


def _share(share: int, weight: float) -> str:
    return f"{share} at weight {weight:g}" if share else ""
