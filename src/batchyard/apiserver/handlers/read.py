"""Get, list and watch."""

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from batchyard.api.meta import Key
from batchyard.apiserver.content_negotiation import Representation
from batchyard.apiserver.handlers.list import ChangeHistory, PagedLists, check_not_ahead, revision_of
from batchyard.apiserver.handlers.watch import WatchStream
from batchyard.apiserver.objects import ApiObjectStore
from batchyard.apiserver.options import check_watch_options
from batchyard.apiserver.request import ApiRequest, Response, StatusError
from batchyard.apiserver.resources import ResourcePath
from batchyard.apiserver.selection import selection_of
from batchyard.apiserver.status_errors import not_found
from batchyard.base.instant import Instant
from batchyard.interfaces.client import WatchEvent
from batchyard.store.log import Expired

_NO_REVISION: Final = ("", "0")


class ChangeFeed(ChangeHistory, Protocol):
    """The change history, with a subscription to the durable changes."""

    def since(self, revision: int) -> Sequence[WatchEvent]:
        """Return the durable changes after a revision. Raises Expired if the history is too short."""

    def join(self, watch: WatchStream) -> None:
        """Subscribe a watch to all later changes."""


class ReadHandler:
    """The handlers of get, list and watch."""

    def __init__(self, objects: ApiObjectStore, feed: ChangeFeed, now: Callable[[], Instant]) -> None:
        self._objects = objects
        self._feed = feed
        self._now = now
        self._lists = PagedLists(objects, feed)

    def drop_expired(self) -> None:
        """Drop held lists that are too old to continue."""
        self._lists.drop_expired()

    def get(self, request: ApiRequest, path: ResourcePath) -> Response:
        """Return one object."""
        shown = Representation(request, path, self._now())
        check_not_ahead(revision_of(request.query.get("resourceVersion", "")), self._objects.revision)
        found = self._objects.get(Key(path.info.constant, path.namespace, path.name))
        if found is None:
            raise not_found(path)
        return Response(200, shown.one(found))

    def list(self, request: ApiRequest, path: ResourcePath) -> Response:
        """Return the objects of a resource, in pages if the request has a limit."""
        shown = Representation(request, path, self._now())
        page = self._lists.page(request, path)
        return Response(200, shown.many(page.items, page.metadata))

    def watch(self, request: ApiRequest, path: ResourcePath) -> WatchStream:
        """Start a watch at a revision; without one, the existing objects come first."""
        shown = Representation(request, path, self._now())
        shown.check_is_of_one()
        bookmarks = request.flag("allowWatchBookmarks")
        selection = selection_of(request, path.info)
        watch = WatchStream(path, selection, shown.one, shown.bookmark, with_bookmarks=bookmarks)
        version = request.query.get("resourceVersion", "")
        check_watch_options(request)
        wants_initial = request.flag("sendInitialEvents") if "sendInitialEvents" in request.query else None
        check_not_ahead(revision_of(version), self._objects.revision)
        if wants_initial or (version in _NO_REVISION and wants_initial is None):
            found = self._objects.list(path.info.constant, path.namespace or None)
            watch.begin(found, self._objects.revision)
            if wants_initial and bookmarks:
                watch.bookmark(self._objects.revision, initial=True)
        elif version in _NO_REVISION:
            watch.begin((), self._objects.revision)
        else:
            watch.begin((), int(version))
            watch.feed(self._durable_since(int(version)))
        self._feed.join(watch)
        return watch

    def _durable_since(self, revision: int) -> Sequence[WatchEvent]:
        try:
            return self._feed.since(revision)
        except Expired as expired:
            raise StatusError(410, "Expired", str(expired)) from expired
