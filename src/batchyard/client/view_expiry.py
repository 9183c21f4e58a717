"""Drops the remembered views of deleted objects, so that a process that runs on keeps none of them.

Subscribers that come later in the same batch, and watches that wait for the disk, read a deleted object once more. So
its view stays until enough others have been deleted.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from batchyard.api import scheme
from batchyard.api.views.node import forget_node_view
from batchyard.api.views.pods import forget_pod_view
from batchyard.api.views.workload import forget_workload_view
from batchyard.interfaces.client import EventType, WatchEvent

#: The views of so many deleted objects stay.
KEPT_MAX: Final = 256
_FORGET: Final[Mapping[str, Callable[[str], None]]] = {
    scheme.NODE: forget_node_view,
    scheme.POD: forget_pod_view,
    scheme.WORKLOAD: forget_workload_view,
}


class ViewExpiry:
    """The objects deleted last whose views are still remembered."""

    def __init__(self) -> None:
        self._deleted: deque[tuple[str, str]] = deque()

    def observe(self, events: Sequence[WatchEvent]) -> None:
        """Take note of deletions, and drop the views of the oldest."""
        for event in events:
            if event.type is EventType.DELETED and event.key.kind in _FORGET:
                self._deleted.append((event.key.kind, event.obj["metadata"].get("uid", "")))
        while len(self._deleted) > KEPT_MAX:
            kind, uid = self._deleted.popleft()
            _FORGET[kind](uid)
