"""Get, list and watch."""

import base64
import binascii
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from operator import itemgetter, lt
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import msgspec

from batchyard.api.meta import Key, Obj
from batchyard.apiserver.request import (
    JSON,
    ApiRequest,
    Response,
    StatusError,
    bad_request,
    check_list_options,
    check_watch_options,
    limit_of,
)
from batchyard.apiserver.resources import ApiObjectStore, ResourcePath, not_found
from batchyard.apiserver.selection import Selection, selection_of
from batchyard.apiserver.serialization import Representation, ShownItems
from batchyard.base.instant import Instant
from batchyard.interfaces.client import EventType, WatchEvent
from batchyard.store.memory import Expired

# --- watch ---
#
# Watch streams: the changes after a revision that a client selects.
#
# A watch receives durable changes in order and buffers them up to a limit; it ends if the client falls behind. An
# object that starts to match the selectors is reported as ADDED, one that stops matching as DELETED. Source:
# k8s.io/apiserver, pkg/storage/cacher/cache_watcher.go and pkg/endpoints/handlers/watch.go.


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


# --- list ---
#
# Lists: consistent pages with continue tokens, and lists at an earlier revision.
#
# All pages of a list show one revision. The server keeps a bounded number of lists, as long as its history reaches back
# to their revision. Other continue tokens have expired. A list at an earlier revision is reconstructed from the current
# objects and the changes since. Sources:
# k8s.io/apiserver, pkg/storage/continue.go, etcd3/store.go and etcd3/errors.go; k8s.io/apimachinery,
# pkg/apis/meta/internalversion/validation.


#: Maximum number of lists held for clients that have not read all pages.
HELD_MAX: Final = 64
#: Maximum age of a held list in changes. A list keeps its objects in memory, deleted ones too, like the history.
HELD_FOR: Final = 20_000
_FORMAT: Final = "meta.k8s.io/v1"
_TOO_OLD: Final = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new list without "
    "the continue parameter."
)
_LIST_EXPIRED: Final = "The resourceVersion for the provided list is too old."


class ChangeHistory(Protocol):
    """The change history."""

    def changes_since(self, revision: int) -> Sequence[WatchEvent]:
        """Return all changes after a revision, durable or not. Raises Expired if the history is too short."""


class Page(NamedTuple):
    """Some of the objects of a list, and the list metadata."""

    items: Sequence[Obj]
    metadata: dict[str, Any]


class _Token(msgspec.Struct):
    """A continue token: the revision of the list, and the key of the last returned object."""

    v: str
    rv: int
    start: str


_encode = msgspec.json.Encoder().encode
_decode_token = msgspec.json.Decoder(_Token).decode


class PagedLists:
    """Serves pages of lists, and holds the lists with remaining pages."""

    def __init__(self, objects: ApiObjectStore, history: ChangeHistory) -> None:
        self._objects = objects
        self._history = history
        self._held: OrderedDict[tuple[str, str, int], Sequence[Obj]] = OrderedDict()

    def page(self, request: ApiRequest, path: ResourcePath) -> Page:
        """Return the requested page. Raises Refused if it is not available."""
        check_list_options(request)
        selection = selection_of(request, path.info)
        limit = limit_of(request)
        token = request.query.get("continue", "")
        revision, found, after = self._goes_on(token, path) if token else self._begins(request, path)
        selected = _selected(found, selection, path.name)
        first = _first_after(selected, after)
        items = selected[first : first + limit] if limit else selected[first:]
        metadata: dict[str, Any] = {"resourceVersion": str(revision)}
        left = len(selected) - first - len(items)
        if left:
            self._hold(path, revision, found)
            metadata["continue"] = _token(revision, items[-1])
            if selection.is_all:
                metadata["remainingItemCount"] = left
        return Page(items, metadata)

    def _begins(self, request: ApiRequest, path: ResourcePath) -> tuple[int, Sequence[Obj], str]:
        """Return revision, objects and start key of a new list: the current one, or at an exact revision."""
        revision = self._objects.revision
        match, asked = request.query.get("resourceVersionMatch", ""), request.query.get("resourceVersion", "")
        wanted = revision_of(asked)
        check_not_ahead(wanted, revision)
        found = in_order_of_keys(self._objects.list(path.info.constant, path.namespace or None))
        if match == "Exact" and wanted != revision:
            return wanted, self._as_of(wanted, path, found), ""
        return revision, found, ""

    def _as_of(self, revision: int, path: ResourcePath, found: Sequence[Obj]) -> Sequence[Obj]:
        """Reconstruct a list at an earlier revision: undo every change since, the last one first."""
        try:
            changes = self._history.changes_since(revision)
        except Expired as expired:
            raise StatusError(410, "Expired", _LIST_EXPIRED) from expired
        was = {_place(obj): obj for obj in found}
        for change in reversed(changes):
            if change.key.kind != path.info.constant or path.namespace not in ("", change.key.namespace):
                continue
            if change.old is None:
                del was[_place(change.obj)]
            else:
                was[_place(change.old)] = change.old
        return [was[place] for place in sorted(was)]

    def _goes_on(self, text: str, path: ResourcePath) -> tuple[int, Sequence[Obj], str]:
        """Return revision, objects and start key for a continue token."""
        token = _read(text)
        held = self._held.get((path.info.constant, path.namespace, token.rv))
        if held is None:
            raise StatusError(410, "Expired", _TOO_OLD)
        return token.rv, held, token.start

    def _hold(self, path: ResourcePath, revision: int, found: Sequence[Obj]) -> None:
        key = (path.info.constant, path.namespace, revision)
        self._held[key] = found
        self._held.move_to_end(key)
        while len(self._held) > HELD_MAX:
            self._held.popitem(last=False)

    def drop_expired(self) -> None:
        """Drop the lists that are older than the history."""
        oldest = self._objects.revision - HELD_FOR
        while self._held and next(iter(self._held))[2] < oldest:
            self._held.popitem(last=False)


def revision_of(text: str) -> int:
    """Parse a resourceVersion. Raises Refused if it is not a number."""
    if not text:
        return 0
    if not text.isdecimal() or not text.isascii() or len(text) > 18:
        raise bad_request(f'invalid resource version "{text}": not a number')
    return int(text)


def check_not_ahead(wanted: int, revision: int) -> None:
    """Raise Refused if the requested revision is in the future."""
    if wanted > revision:
        message = f"Too large resource version: {wanted}, current: {revision}"
        cause = {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
        raise StatusError(504, "Timeout", message, {"causes": [cause], "retryAfterSeconds": 1})


def _selected(found: Sequence[Obj], selection: Selection, name: str) -> Sequence[Obj]:
    if selection.is_all and not name:
        return found
    return [obj for obj in found if name in ("", obj["metadata"]["name"]) and selection.accepts(obj)]


def _first_after(objs: Sequence[Obj], after: str) -> int:
    """Return the index of the first object after a key."""
    if not after:
        return 0
    return bisect_right(objs, after, key=_place)


def in_order_of_keys(objs: Sequence[Obj]) -> Sequence[Obj]:
    """Sort objects by their etcd key, which is namespace and name in one string; the input is sorted by both.

    In that order `team-a/x` precedes `team/x`. Most lists are in that order already.
    """
    parts = _by_namespace(objs)
    places = [f"{_namespace(part[0])}/" for part in parts]
    if all(map(lt, places, places[1:])):
        return objs
    return [obj for _, part in sorted(zip(places, parts, strict=True), key=itemgetter(0)) for obj in part]


def _by_namespace(objs: Sequence[Obj]) -> list[Sequence[Obj]]:
    """Split objects that are sorted by namespace into one sequence for each namespace."""
    parts, start = [], 0
    while start < len(objs):
        end = bisect_right(objs, _namespace(objs[start]), lo=start, key=_namespace)
        parts.append(objs[start:end])
        start = end
    return parts


def _namespace(obj: Obj) -> str:
    namespace: str = obj["metadata"].get("namespace", "")
    return namespace


def _place(obj: Obj) -> str:
    return f"{_namespace(obj)}/{obj['metadata']['name']}"


def _token(revision: int, last: Obj) -> str:
    token = _Token(_FORMAT, revision, _place(last))
    return base64.urlsafe_b64encode(_encode(token)).decode().rstrip("=")


def _read(text: str) -> _Token:
    try:
        token = _decode_token(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    except (binascii.Error, ValueError) as error:
        raise bad_request(f"continue key is not valid: {error}") from error
    if token.v != _FORMAT:
        raise bad_request("continue key is not valid: server does not recognize this encoded version")
    return token


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
