"""What the scheduler knows when an instant is over is what the objects would tell it anew: a restart loses nothing."""

from typing import Any, Final

from batchyard.api import scheme
from batchyard.api.meta import key_of
from batchyard.base.instant import Instant
from batchyard.controllers.admission.index import AdmissionIndex
from batchyard.controllers.admission.tally import Count
from batchyard.core.queue import Admitted
from batchyard.core.snapshot import Snapshot
from batchyard.ports.client import EventType, WatchEvent
from batchyard.sim.checkers.law import Law
from batchyard.sim.world import World

#: In the order in which a restart would see them.
KINDS: Final = (
    scheme.NAMESPACE,
    scheme.RESOURCE_FLAVOR,
    scheme.ADMISSION_CHECK,
    scheme.COHORT,
    scheme.CLUSTER_QUEUE,
    scheme.LOCAL_QUEUE,
    scheme.WORKLOAD,
)


class AssumedEqualsConfirmed(Law):
    """See the module."""

    name = "assumed_equals_confirmed"

    def settle(self) -> None:
        """Compare with an index that has seen nothing but the objects as they are."""
        world = self.scene.world
        kept, anew = _known(world.platform.index), _known(rebuilt(world, world.kernel.now()))
        for what in sorted({**kept, **anew}):
            if kept.get(what) != anew.get(what):
                self.violate(f"{what} is {kept.get(what)}, and by the objects {anew.get(what)}")


def rebuilt(world: World, now: Instant) -> AdmissionIndex:
    """An index made from the objects as they are."""
    index = AdmissionIndex()
    for kind in KINDS:
        for obj in world.objects(kind):
            index.observe(WatchEvent(EventType.ADDED, key_of(obj), obj, None, 0), now)
    index.snapshot.settle()
    return index


def _known(index: AdmissionIndex) -> dict[str, Any]:
    """All that decisions rest on, by name."""
    snapshot = index.snapshot
    known: dict[str, Any] = {
        f"local queue {key}": (view.cluster_queue, view.stop_policy) for key, view in index.book.local_queues.items()
    }
    for name, queue in snapshot.queues.items():
        known[f"queue {name}"] = queue.active
        known[f"tally of {name}"] = _figures(index.book.queue_tally.get(name), snapshot)
        known[f"waiting in {name}"] = sorted(view.key for view in index.line_up.pending[name].views())
        for held in queue.workloads.values():
            known[f"quota of {held.key}"] = _holding(held, snapshot)
    for key in index.book.local_queues:
        known[f"tally of {key}"] = _figures(index.book.local_tally.get(key), snapshot)
    return known


def _holding(held: Admitted, snapshot: Snapshot) -> tuple[Any, ...]:
    usage = sorted((snapshot.names[fr], amount) for fr, amount in held.usage if amount)
    flavors = sorted(snapshot.names[fr] for fr in held.flavor_resources)
    times = held.priority, held.queued, held.reserved_at
    return held.uid, held.queue.name, held.local_queue, usage, flavors, times, held.evicted, held.is_admitted


def _figures(count: Count, snapshot: Snapshot) -> tuple[Any, ...]:
    usages = count.reserved_usage, count.admitted_usage
    named = [sorted((snapshot.names[fr], amount) for fr, amount in usage.items() if amount) for usage in usages]
    return count.reserving, count.admitted, named
