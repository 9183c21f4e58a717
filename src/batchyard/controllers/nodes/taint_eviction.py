"""Pods that a taint of their node drives out: deleted when they tolerate it no longer.

First the pod is told why, then it is deleted. Source: pkg/controller/tainteviction; it counts from when it saw a taint,
here counts when the taint came (`timeAdded`), so that a restart does not begin anew.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from batchyard.api import scheme
from batchyard.api.meta import Key
from batchyard.base.instant import Instant
from batchyard.core.lifecycle import pod as lifecycle
from batchyard.core.lifecycle.node import Taint, execution_taints
from batchyard.core.lifecycle.pods_by_node import PodsByNode
from batchyard.ports.client import Delete, EventType, Reader, UpdateStatus, WatchEvent
from batchyard.ports.controller import EventRecord, Outcome

_DELETED: Final = EventType.DELETED  # a member is slow to look up by name


class TaintEviction:
    """See the module."""

    name = "taint-eviction"
    rank = 0
    kinds = (scheme.NODE, scheme.POD)

    def __init__(self) -> None:
        self._pods = PodsByNode()
        #: The NoExecute taints of the nodes that have some.
        self._taints: dict[str, Sequence[Taint]] = {}

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """The pods of a node whose taints change, and those that come to or change on a node with taints."""
        key, new = event.key, None if event.type is _DELETED else event.obj
        if key.kind == scheme.POD:
            self._pods.observe(key, event.old, new)
            return (key,) if new is not None and lifecycle.node_of(new) in self._taints else ()
        before = self._taints.pop(key.name, ())
        after = () if new is None else execution_taints(new)
        if after:
            self._taints[key.name] = after
        return self._pods.on(key.name) if list(before) != list(after) else ()

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> Outcome:
        """Delete a pod that may stay no longer, or wait until then."""
        pod = reader.get(key)
        taints = () if pod is None else self._taints.get(lifecycle.node_of(pod), ())
        if pod is None or not taints or lifecycle.is_terminating(pod):
            return Outcome()
        due = lifecycle.driven_out_at(pod, taints)
        if due is None or due > now:
            return Outcome(requeue_at=due)
        marked = lifecycle.disrupted(pod, lifecycle.BY_TAINT, now)
        if marked is not pod:
            return Outcome([UpdateStatus(marked)])
        event = EventRecord(key, "Normal", "TaintManagerEviction", f"Marking for deletion Pod {key}")
        return Outcome([Delete(key, uid=pod["metadata"]["uid"])], [event])
