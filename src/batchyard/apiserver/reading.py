"""Get, list and watch."""

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from batchyard.api.errors import FieldError
from batchyard.api.meta import Key
from batchyard.apiserver.listing import History, Lists, check_not_ahead, revision_of
from batchyard.apiserver.objects import Objects
from batchyard.apiserver.paths import ResourcePath
from batchyard.apiserver.refusals import not_found
from batchyard.apiserver.representation import Representation
from batchyard.apiserver.request import Refused, Request, Response, causes_of
from batchyard.apiserver.selection import selection_of
from batchyard.apiserver.watching import WatchStream
from batchyard.base.instant import Instant
from batchyard.ports.client import WatchEvent
from batchyard.store.log import Expired

_NO_REVISION: Final = ("", "0")


class Feed(History, Protocol):
    """The changes, of which watches are told those that are durable."""

    def since(self, revision: int) -> Sequence[WatchEvent]:
        """The durable changes after a revision; Expired where they are no longer known."""

    def join(self, watch: WatchStream) -> None:
        """Feed a watch with all that comes."""


class Reading:
    """See the module."""

    def __init__(self, objects: Objects, feed: Feed, now: Callable[[], Instant]) -> None:
        self._objects = objects
        self._feed = feed
        self._now = now
        self._lists = Lists(objects, feed)

    def get(self, request: Request, path: ResourcePath) -> Response:
        """One object."""
        shown = Representation(request, path, self._now())
        check_not_ahead(revision_of(request.query.get("resourceVersion", "")), self._objects.revision)
        found = self._objects.get(Key(path.info.constant, path.namespace, path.name))
        if found is None:
            raise not_found(path)
        return Response(200, shown.one(found))

    def list(self, request: Request, path: ResourcePath) -> Response:
        """The objects of a resource, page by page where a limit is given."""
        shown = Representation(request, path, self._now())
        page = self._lists.page(request, path)
        return Response(200, shown.many(page.items, page.metadata))

    def watch(self, request: Request, path: ResourcePath) -> WatchStream:
        """What happens from a revision on; where none is given, what is there comes first."""
        shown = Representation(request, path, self._now())
        bookmarks = request.flag("allowWatchBookmarks")
        selection = selection_of(request, path.info)
        watch = WatchStream(path, selection, shown.one, shown.bookmark, with_bookmarks=bookmarks)
        version = request.query.get("resourceVersion", "")
        wants_initial = _wants_initial(request)
        check_not_ahead(revision_of(version), self._objects.revision)
        if wants_initial or (version in _NO_REVISION and wants_initial is None):
            found = self._objects.list(path.info.constant, path.namespace or None)
            watch.begin((o for o in found if path.name in ("", o["metadata"]["name"])), self._objects.revision)
            if wants_initial:
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
            raise Refused(410, "Expired", str(expired)) from expired


def _wants_initial(request: Request) -> bool | None:
    """What a request says of what is there already; None if nothing. Refused where it says it without saying all."""
    if "sendInitialEvents" not in request.query:
        return None
    match = request.query.get("resourceVersionMatch", "")
    if match != "NotOlderThan":
        field, problem = (
            "resourceVersionMatch",
            "Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
        )
    elif request.flag("sendInitialEvents") and not request.flag("allowWatchBookmarks"):
        field, problem = "allowWatchBookmarks", "Forbidden: sendInitialEvents requires allowWatchBookmarks"
    else:
        return request.flag("sendInitialEvents")
    details = {"kind": "ListOptions", "group": "meta.k8s.io", "causes": causes_of((FieldError(field, problem),))}
    raise Refused(422, "Invalid", f"ListOptions.meta.k8s.io is invalid: {field}: {problem}", details)
