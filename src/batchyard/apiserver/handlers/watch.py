"""Watch streams: the changes after a revision that a client selects.

A watch receives durable changes in order and buffers them up to a limit; it ends if the client falls behind. An object
that starts to match the selectors is reported as ADDED, one that stops matching as DELETED. Source: k8s.io/apiserver,
pkg/storage/cacher/cache_watcher.go and pkg/endpoints/handlers/watch.go.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

from batchyard.api.meta import Obj
from batchyard.apiserver.content_negotiation import ShownItems
from batchyard.apiserver.request import JSON
from batchyard.apiserver.resources import ResourcePath
from batchyard.apiserver.selection import Selection
from batchyard.interfaces.client import EventType, WatchEvent

#: Maximum number of buffered events, in addition to the initial ones.
BACKLOG_MAX: Final = 100_000
_EXPIRED: Final = (
    "ERROR",
    {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": "the watch fell too far behind; list again",
        "reason": "Expired",
        "code": 410,
    },
)
_Event: TypeAlias = tuple[str, Mapping[str, Any]]
"""The type, and the stored object; for bookmarks and errors, the object as sent."""
_AS_IT_IS: Final = ("BOOKMARK", "ERROR")


class WatchStream:
    """The events of one watch that its client has not read yet."""

    content_type: Final = JSON
    times_out: Final = True

    def __init__(
        self,
        path: ResourcePath,
        selection: Selection,
        show: Callable[[Obj], Mapping[str, Any]],
        bookmark: Callable[[Mapping[str, Any]], Mapping[str, Any]],
        *,
        with_bookmarks: bool = False,
    ) -> None:
        self._kind = path.info.constant
        self._namespace = path.namespace
        self._selection = selection
        self._show = show
        #: Renders an object with metadata only, for bookmarks.
        self._bookmark = bookmark
        self._with_bookmarks = with_bookmarks
        self._waiting: list[_Event] = []
        self._begun_with = 0
        #: The last revision that the client has seen or skipped.
        self._revision = 0
        self.is_over = False
        #: Called when events are available.
        self.on_news: Callable[[], None] = _noop

    def take(self) -> Sequence[Mapping[str, Any]]:
        """Take all buffered events; each is converted when it is read."""
        taken, self._waiting, self._begun_with = self._waiting, [], 0
        return ShownItems(taken, partial(_shown, self._show))

    def feed(self, changes: Iterable[WatchEvent]) -> None:
        """Append the changes that the watch selects."""
        if self.is_over:
            return
        kind, namespace, known = self._kind, self._namespace, self._revision
        for change in changes:
            if change.revision > known:
                known = change.revision
                if change.key.kind == kind and namespace in ("", change.key.namespace):
                    self._add(change)
        self._revision = known
        if len(self._waiting) > self._begun_with + BACKLOG_MAX:
            self._waiting, self.is_over = [_EXPIRED], True
        if self._waiting:
            self.on_news()

    def end(self) -> None:
        """End the watch after the buffered events."""
        self.is_over = True
        self.on_news()

    def begin(self, objs: Iterable[Obj], revision: int) -> None:
        """Report the objects at a revision as ADDED; changes up to it are skipped."""
        self._waiting += [("ADDED", obj) for obj in objs if self._selection.accepts(obj)]
        self._begun_with = len(self._waiting)
        self._revision = revision

    def mark(self) -> None:
        """Send a bookmark at the current revision, if the client requested bookmarks."""
        if self._with_bookmarks and self._revision and not self.is_over:
            self.bookmark(self._revision)

    def bookmark(self, revision: int, *, initial: bool = False) -> None:
        """Send a bookmark at a revision."""
        metadata: dict[str, Any] = {"resourceVersion": str(revision)}
        if initial:
            metadata["annotations"] = {"k8s.io/initial-events-end": "true"}
        self._waiting.append(("BOOKMARK", self._bookmark(metadata)))
        self.on_news()

    def _add(self, change: WatchEvent) -> None:
        was = change.old is not None and self._selection.accepts(change.old)
        is_now = change.type is not EventType.DELETED and self._selection.accepts(change.obj)
        if is_now:
            self._waiting.append(("MODIFIED" if was else "ADDED", change.obj))
        elif was:
            # An object that no longer matches is reported in its last matching state.
            gone = change.obj if change.old is None or change.type is EventType.DELETED else change.old
            metadata = {**gone["metadata"], "resourceVersion": str(change.revision)}
            self._waiting.append(("DELETED", {**gone, "metadata": metadata}))


def _shown(show: Callable[[Obj], Mapping[str, Any]], event: _Event) -> dict[str, Any]:
    kind, obj = event
    return {"type": kind, "object": obj if kind in _AS_IT_IS else show(obj)}


def _noop() -> None:
    pass
