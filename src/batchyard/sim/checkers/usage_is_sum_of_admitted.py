"""The usage of every node of the scheduler's quota trees is what its Workloads hold by their status.

Of a Cohort, that is what its children use beyond what they keep to themselves. The trees are looked at whenever a
cycle has just admitted somebody: between cycles a tree may be out of date on purpose. Nor are they looked at while an
admission that was refused is still to be taken back, or while the platform is down.
"""

from collections.abc import Sequence

from batchyard.api import scheme
from batchyard.api.meta import Key
from batchyard.core.quota import QuotaNode
from batchyard.ports.client import WatchEvent
from batchyard.sim.checkers.law import Law
from batchyard.sim.checkers.ledger import is_reserved_by


class UsageIsSumOfAdmitted(Law):
    """See the module."""

    name = "usage_is_sum_of_admitted"

    def end(self, batch: Sequence[WatchEvent]) -> None:
        """Compare all nodes after a cycle that admitted."""
        platform = self.scene.world.platform
        if platform.runner.is_stopped or platform.index.book.assumes:
            return
        if any(event.key.kind == scheme.WORKLOAD and is_reserved_by(event) for event in batch):
            self._compare_trees()

    def settle(self) -> None:
        """Compare what ClusterQueues hold, which is always up to date."""
        for name, queue in self.scene.world.platform.index.snapshot.queues.items():
            self._compare(f"queue/{name}", queue.node)

    def _compare_trees(self) -> None:
        snapshot = self.scene.world.platform.index.snapshot
        for name, queue in snapshot.queues.items():
            quota = self.ledger.quota
            path = ["/".join(("queue" if n is queue.node else "cohort", n.name)) for n in queue.node.path]
            if path != quota.path(f"queue/{name}"):
                self.violate(f"{name} stands at {path}, and by its spec at {quota.path(f'queue/{name}')}")
            for place, node in zip(path, queue.node.path, strict=True):
                self._compare(place, node)

    def _compare(self, place: str, node: QuotaNode) -> None:
        quota, names = self.ledger.quota, self.scene.world.platform.index.snapshot.names
        for pair, used in zip(names, node.usage, strict=False):
            expected = quota.used(place, pair)
            if used != expected:
                holders = [Key(scheme.WORKLOAD, *key.split("/")) for key in quota.holders.get(place, {})]
                what = f"{place} uses {used} of {'/'.join(pair)}; its Workloads hold {expected}"
                self.violate(what, *holders)
