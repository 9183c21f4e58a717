"""A copy of one cohort tree, to try changes on that the real one is never to see."""

from batchyard.core.queue import Admitted, ClusterQueue
from batchyard.core.quota import detach
from batchyard.core.snapshot import Snapshot


def tree_copy(snapshot: Snapshot, queue: ClusterQueue) -> Snapshot:
    """A snapshot of its own with the tree of a ClusterQueue and who holds quota there.

    Ids of flavor-resources are the same. Those evicted already hold nothing any more: they are on their way out.
    """
    copy = Snapshot()
    for flavor in snapshot.flavors.values():
        copy.put_flavor(flavor)
    for pair in snapshot.names:
        copy.id_of(*pair)
    for view in snapshot.forest.views.values():
        copy.put_cohort(view)
    below = snapshot.queues_below(queue.node.path[0])
    for each in below:
        copy.put_queue(each.view).active = each.active
    copy.settle()
    for each in below:
        for held in each.workloads.values():
            if not held.evicted:
                copy.hold(_copied(held, copy.queues[each.name]))
    return copy


def dismantle(copy: Snapshot) -> None:
    """Break the cycles of a copy that nobody looks at any more: a live platform looks for garbage but seldom."""
    for queue in copy.queues.values():
        queue.workloads.clear()
        queue.forget_ranks()
        detach(queue.node)
    for node in copy.cohorts.values():
        detach(node)


def _copied(held: Admitted, queue: ClusterQueue) -> Admitted:
    return Admitted(
        held.key,
        held.uid,
        queue,
        held.usage,
        held.flavor_resources,
        held.priority,
        held.queued,
        held.reserved_at,
        held.evicted,
        held.is_admitted,
        held.local_queue,
    )
