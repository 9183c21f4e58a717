"""A finished Workload holds no quota and waits in no queue, and never again will."""

from batchyard.api import scheme
from batchyard.api.meta import Key
from batchyard.api.views.workload import workload_view
from batchyard.ports.client import EventType, WatchEvent
from batchyard.sim.checkers.law import Law


class FinishedHoldsNothing(Law):
    """See the module."""

    name = "finished_holds_nothing"

    def look(self, event: WatchEvent) -> None:
        """The end is final."""
        if event.key.kind != scheme.WORKLOAD or event.old is None or event.type is EventType.DELETED:
            return
        before, after = workload_view(event.old), workload_view(event.obj)
        if before.finished and not after.finished:
            self.violate(f"{event.key} had finished and goes on", event.key)

    def settle(self) -> None:
        """Neither the quota nor the queues know it."""
        index = self.scene.world.platform.index
        for view in self.ledger.workloads.values():
            if not view.finished:
                continue
            key = Key(scheme.WORKLOAD, view.namespace, view.name)
            if index.snapshot.holder(view.key) is not None:
                self.violate(f"{view.key} has finished and holds quota", key)
            if any(queue.get(view.key) is not None for queue in index.line_up.pending.values()):
                self.violate(f"{view.key} has finished and waits", key)
