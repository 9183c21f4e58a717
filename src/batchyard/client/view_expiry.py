"""Drops the cached views of deleted objects, to bound memory in a long-running process.

Later subscribers of the same batch, and watches that wait for the disk, read a deleted object once more. So its view
stays until enough other objects were deleted.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from batchyard.api import scheme
from batchyard.api.views.node import forget_node_view
from batchyard.api.views.pods import forget_pod_view
from batchyard.api.views.workload import forget_workload_view
from batchyard.interfaces.client import EventType, WatchEvent

#: The number of deleted objects whose views stay.
KEPT_MAX: Final = 256
_FORGET: Final[Mapping[str, Callable[[str], None]]] = {
    scheme.NODE: forget_node_view,
    scheme.POD: forget_pod_view,
    scheme.WORKLOAD: forget_workload_view,
}


class ViewExpiry:
    """The recently deleted objects whose views are still cached."""

    def __init__(self) -> None:
        self._deleted: deque[tuple[str, str]] = deque()

    def observe(self, events: Sequence[WatchEvent]) -> None:
        """Record deletions, and drop the views of the oldest."""
        for event in events:
            if event.type is EventType.DELETED and event.key.kind in _FORGET:
                self._deleted.append((event.key.kind, event.obj["metadata"].get("uid", "")))
        while len(self._deleted) > KEPT_MAX:
            kind, uid = self._deleted.popleft()
            _FORGET[kind](uid)
