"""Nobody is admitted beyond what the tree can give, and no tree comes to hold more than it has.

Quota may be taken away under usage: then what is too much may stay, and must not grow. Whom a cycle preempts may be
counted as gone by what the same cycle admits.
"""

from collections.abc import Iterable, Iterator, Sequence

from batchyard.api import scheme
from batchyard.api.meta import Key
from batchyard.api.views.workload import WorkloadView, workload_view
from batchyard.ports.client import WatchEvent
from batchyard.sim.checkers.definition import Pair
from batchyard.sim.checkers.law import Law, Scene
from batchyard.sim.checkers.ledger import amounts_of, changes_quota, is_preempted_by, is_reserved_by


class QuotaNeverOversubscribed(Law):
    """See the module."""

    name = "quota_never_oversubscribed"

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._going: list[WorkloadView] = []
        self._excused: dict[tuple[str, Pair], int] = {}
        self._changed = False

    def begin(self, batch: Sequence[WatchEvent]) -> None:
        """Who is preempted with these changes."""
        self._going = [workload_view(event.obj) for event in batch if is_preempted_by(event)]

    def look(self, event: WatchEvent) -> None:
        """A new reservation must fit in what is free; another tree excuses what it leaves without quota."""
        if changes_quota(event):
            self._changed = True
        if event.key.kind != scheme.WORKLOAD or not is_reserved_by(event):
            return
        view = workload_view(event.obj)
        node = f"queue/{view.cluster_queue}"
        for pair, amount in amounts_of(view).items():
            free = self._free_without(self._going, node, pair)
            if amount > max(0, free):
                what = f"{view.key} was given {amount} of {'/'.join(pair)} in {node} where {free} was free"
                self.violate(what, event.key, Key(scheme.CLUSTER_QUEUE, "", view.cluster_queue))

    def settle(self) -> None:
        """What is short of quota now was short before, or quota was taken away."""
        short = dict(self._short())
        for (node, pair), amount in short.items():
            allowed = self._excused.get((node, pair), 0)
            if amount > allowed and not self._changed:
                holders = [Key(scheme.WORKLOAD, *key.split("/")) for key in self._held_in(node, pair)]
                what = f"{node} has {amount} of {'/'.join(pair)} too little, {allowed} before"
                self.violate(what, *holders)
        self._excused, self._changed = short, False

    def _free_without(self, going: Iterable[WorkloadView], node: str, pair: Pair) -> int:
        """What a node may use once some Workloads are gone."""
        quota = self.ledger.quota
        taken = {}
        for view in going:
            held = quota.holders.get(f"queue/{view.cluster_queue}", {})
            if view.key in held:
                taken[view.key] = held, held.pop(view.key)
        free = quota.available(node, pair)
        for key, (held, amounts) in taken.items():
            held[key] = amounts
        return free

    def _short(self) -> Iterator[tuple[tuple[str, Pair], int]]:
        quota = self.ledger.quota
        for root in [node for node in quota.nodes.values() if not node.parent]:
            for pair in quota.pairs(root.name):
                for node in quota.below(root.name):
                    free = quota.available(node, pair)
                    if free < 0:
                        yield (node, pair), -free

    def _held_in(self, node: str, pair: Pair) -> list[str]:
        holders = (self.ledger.quota.holders.get(name, {}) for name in self.ledger.quota.below(node))
        return [key for held in holders for key, amounts in held.items() if amounts.get(pair)]
