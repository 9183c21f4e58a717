"""Deletes the followers of an exclusively placed Job that are bound to another topology domain than its leader's.

That happens when a leader is lost and its successor lands elsewhere while followers of the first are still there.
Like upstream it looks when the leader changes, not when a follower does.
Source: pkg/controllers/pod_controller.go of JobSet.
"""

from collections.abc import Iterable

from batchyard.api import scheme
from batchyard.api.meta import Key, controller_of, key_of
from batchyard.base.instant import Instant
from batchyard.core.lifecycle.jobset import exclusive
from batchyard.ports.client import Delete, EventType, Reader, UpdateStatus, WatchEvent, Write
from batchyard.ports.controller import Outcome


class ExclusivePlacement:
    """Keeps the pods of a Job in the domain of its leader."""

    name = "exclusive-placement"
    rank = 0
    kinds = (scheme.POD,)

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """A leader that has been scheduled."""
        return (event.key,) if event.type is not EventType.DELETED and exclusive.leads(event.obj) else ()

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> Outcome:
        """Mark and delete the followers that are misplaced."""
        leader = reader.get(key)
        owner = None if leader is None else controller_of(leader)
        if leader is None or owner is None or not exclusive.leads(leader):
            return Outcome()
        node = reader.get(Key(scheme.NODE, "", leader["spec"]["nodeName"]))
        writes: list[Write] = []
        for pod in exclusive.misplaced_followers(leader, node, reader.owned_by(owner["uid"], key.namespace)):
            marked = exclusive.disrupted(pod, now)
            if marked is not pod:
                writes.append(UpdateStatus(marked))
            writes.append(Delete(key_of(pod), uid=pod["metadata"]["uid"]))
        return Outcome(writes)
