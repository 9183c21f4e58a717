"""Handlers of get, list and watch requests: paged lists, lists at earlier revisions, and watch streams."""

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
from batchyard.apiserver.conversions import convert_all
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
from batchyard.apiserver.resources import ApiObjectStore, ResourcePath, not_found_error
from batchyard.apiserver.selection import Selection, parse_selection
from batchyard.apiserver.serialization import ConvertedItems, Representation
from batchyard.base.instant import Instant
from batchyard.interfaces.client import EventType, WatchEvent
from batchyard.store.memory import ExpiredRevision

# Watch streams: the changes after a revision that a client selects.
#
# A watch receives changes in order, once they are on disk, and buffers them up to a limit; it ends if the client falls
# behind. An object that starts to match the selectors is reported as ADDED, one that stops matching as DELETED. Source:
# k8s.io/apiserver, pkg/storage/cacher/cache_watcher.go and pkg/endpoints/handlers/watch.go.


#: Maximum number of buffered events, in addition to the initial ones: as many as the history holds.
WATCH_BACKLOG_MAX: Final = 20_000
#: The Status that ends a watch whose client falls behind.
EXPIRED_STATUS: Final = {
    "kind": "Status",
    "apiVersion": "v1",
    "metadata": {},
    "status": "Failure",
    "message": "the watch fell too far behind; list again",
    "reason": "Expired",
    "code": 410,
}
_TypedObject: TypeAlias = tuple[str, Mapping[str, Any]]
"""The type and the object of a watch event: the stored object, or for bookmarks and errors the object as sent."""
_UNCONVERTED_EVENTS: Final = ("BOOKMARK", "ERROR")


class WatchStream:
    """A stream of the events of one watch; it buffers the events that the client has not read yet."""

    content_type: Final = JSON
    times_out: Final = True

    def __init__(
        self,
        path: ResourcePath,
        selection: Selection,
        render_object: Callable[[Obj], Mapping[str, Any]],
        render_bookmark: Callable[[Mapping[str, Any]], Mapping[str, Any]],
        *,
        with_bookmarks: bool = False,
    ) -> None:
        self._kind = path.served_kind.constant
        self._namespace = path.namespace
        self._selection = selection
        self._render_object = render_object
        #: Renders an object with metadata only, for bookmarks.
        self._render_bookmark = render_bookmark
        self._with_bookmarks = with_bookmarks
        self._buffered: list[_TypedObject] = []
        self._initial_count = 0
        #: The last revision that the client has seen or skipped.
        self._revision = 0
        self.is_over = False
        #: Called when events are available.
        self.on_new_data: Callable[[], None] = _do_nothing

    def take_buffered_data(self) -> Sequence[Mapping[str, Any]]:
        """Return and remove all buffered events; each is converted when it is read."""
        events, self._buffered, self._initial_count = self._buffered, [], 0
        return ConvertedItems(events, partial(_render_event, self._render_object))

    def process_changes(self, watch_events: Iterable[WatchEvent]) -> None:
        """Buffer the changes that match the watch; if too many are buffered, end the watch with an Expired error."""
        if self.is_over:
            return
        kind, namespace, last_revision = self._kind, self._namespace, self._revision
        for change in watch_events:
            if change.revision > last_revision:
                last_revision = change.revision
                if change.key.kind == kind and namespace in ("", change.key.namespace):
                    self._buffer_change(change)
        self._revision = last_revision
        if len(self._buffered) > self._initial_count + WATCH_BACKLOG_MAX:
            self._expire()
        elif self._buffered:
            self.on_new_data()

    def forget_changes(self, revision: int) -> None:
        """End the watch with an Expired error if it buffers a change up to a revision that the history dropped.

        Watches whose clients do not read then hold no objects that nothing else holds.
        """
        if not self.is_over and len(self._buffered) > self._initial_count:
            _, oldest_obj = self._buffered[self._initial_count]
            if int(oldest_obj["metadata"]["resourceVersion"]) <= revision:
                self._expire()

    def fail(self, status: Mapping[str, Any]) -> None:
        """End the watch with an ERROR event after the buffered events."""
        self._buffered.append(("ERROR", status))
        self.end()

    def end(self) -> None:
        """End the watch after the buffered events."""
        self.is_over = True
        self.on_new_data()

    def start(self, objs: Iterable[Obj], revision: int) -> None:
        """Buffer the selected objects as ADDED events.

        `revision` is theirs, and `process_changes` skips changes up to it.
        """
        self._buffered += [("ADDED", obj) for obj in objs if self._selection.accepts(obj)]
        self._initial_count = len(self._buffered)
        self._revision = revision

    def send_keep_alive(self) -> None:
        """Send a bookmark at the current revision, if the client requested bookmarks."""
        if self._with_bookmarks and self._revision and not self.is_over:
            self.send_bookmark(self._revision)

    def send_bookmark(self, revision: int, *, is_initial: bool = False) -> None:
        """Send a bookmark at a revision; with `is_initial`, it marks the end of the initial events."""
        metadata: dict[str, Any] = {"resourceVersion": str(revision)}
        if is_initial:
            metadata["annotations"] = {"k8s.io/initial-events-end": "true"}
        self._buffered.append(("BOOKMARK", self._render_bookmark(metadata)))
        self.on_new_data()

    def _expire(self) -> None:
        self._buffered, self._initial_count = [], 0
        self.fail(EXPIRED_STATUS)

    def _buffer_change(self, change: WatchEvent) -> None:
        matched_before = change.old is not None and self._selection.accepts(change.old)
        matches_now = change.type is not EventType.DELETED and self._selection.accepts(change.obj)
        if matches_now:
            self._buffered.append(("MODIFIED" if matched_before else "ADDED", change.obj))
        elif matched_before:
            # An object that no longer matches is reported in its last matching state.
            last_matching_object = change.obj if change.old is None or change.type is EventType.DELETED else change.old
            metadata = {**last_matching_object["metadata"], "resourceVersion": str(change.revision)}
            self._buffered.append(("DELETED", {**last_matching_object, "metadata": metadata}))


def _render_event(render_object: Callable[[Obj], Mapping[str, Any]], event: _TypedObject) -> dict[str, Any]:
    event_type, obj = event
    return {"type": event_type, "object": obj if event_type in _UNCONVERTED_EVENTS else render_object(obj)}


def _do_nothing() -> None:
    pass


# Lists: consistent pages with continue tokens, and lists at an earlier revision.
#
# All pages of a list show one revision. The server keeps a bounded number of lists, as long as its history reaches back
# to their revision. Other continue tokens have expired. A list at an earlier revision is reconstructed from the current
# objects and the changes since. Sources:
# k8s.io/apiserver, pkg/storage/continue.go, etcd3/store.go and etcd3/errors.go; k8s.io/apimachinery,
# pkg/apis/meta/internalversion/validation.


#: Maximum number of lists held for clients that have not read all pages.
HELD_LISTS_MAX: Final = 64
#: Maximum age of a list kept in memory, as a number of later changes. Such a list keeps its objects in memory, deleted
#: ones too, like the history.
HELD_LIST_AGE_MAX: Final = 20_000
_CONTINUE_FORMAT: Final = "meta.k8s.io/v1"
_TOO_OLD_MESSAGE: Final = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new list without "
    "the continue parameter."
)
_LIST_EXPIRED: Final = "The resourceVersion for the provided list is too old."


class ChangeHistory(Protocol):
    """The history of changes to the stored objects."""

    def changes_since(self, revision: int) -> Sequence[WatchEvent]:
        """Return all changes after a revision, even if not yet on disk. Raises ExpiredRevision if some are not kept."""


class ListPage(NamedTuple):
    """One page of a list: objects and list metadata."""

    items: Sequence[Obj]
    metadata: dict[str, Any]


class _ContinueToken(msgspec.Struct):
    """A continue token: the revision of the list, and the key of the last returned object."""

    v: str
    rv: int
    start: str


_encode = msgspec.json.Encoder().encode
_decode_token = msgspec.json.Decoder(_ContinueToken).decode


class PagedLists:
    """Serves lists in pages, and keeps up to HELD_LISTS_MAX lists of which clients may request more pages."""

    def __init__(self, objects: ApiObjectStore, history: ChangeHistory) -> None:
        self._objects = objects
        self._history = history
        self._held_lists: OrderedDict[tuple[str, str, int], Sequence[Obj]] = OrderedDict()

    def get_page(self, request: ApiRequest, path: ResourcePath) -> ListPage:
        """Return the requested page of a list. Raises StatusError for invalid options or an expired list."""
        check_list_options(request)
        selection = parse_selection(request, path.served_kind)
        limit = limit_of(request)
        token = request.query.get("continue", "")
        revision, objs, start_key = self._continue_list(token, path) if token else self._start_list(request, path)
        candidates = objs if selection.selects_all else _converted(objs, path)
        selected_objects = _filter_objects(candidates, selection, path.name)
        first_index = _first_index_after(selected_objects, start_key)
        items = selected_objects[first_index : first_index + limit] if limit else selected_objects[first_index:]
        metadata: dict[str, Any] = {"resourceVersion": str(revision)}
        remaining_count = len(selected_objects) - first_index - len(items)
        if remaining_count:
            self._hold_list(path, revision, objs)
            metadata["continue"] = _encode_token(revision, items[-1])
            if selection.selects_all:
                metadata["remainingItemCount"] = remaining_count
        return ListPage(items, metadata)

    def _start_list(self, request: ApiRequest, path: ResourcePath) -> tuple[int, Sequence[Obj], str]:
        revision = self._objects.revision
        match, revision_text = request.query.get("resourceVersionMatch", ""), request.query.get("resourceVersion", "")
        requested_revision = parse_resource_version(revision_text)
        check_revision_not_in_future(requested_revision, revision)
        objs = sort_by_etcd_key(self._objects.list(path.served_kind.constant, path.namespace or None))
        if match == "Exact" and requested_revision != revision:
            return requested_revision, self._list_at_revision(requested_revision, path, objs), ""
        return revision, objs, ""

    def _list_at_revision(self, revision: int, path: ResourcePath, objs: Sequence[Obj]) -> Sequence[Obj]:
        try:
            changes = self._history.changes_since(revision)
        except ExpiredRevision as expired:
            raise StatusError(410, "Expired", _LIST_EXPIRED) from expired
        objs_by_key = {_object_key(obj): obj for obj in objs}
        for change in reversed(changes):
            if change.key.kind != path.served_kind.constant or path.namespace not in ("", change.key.namespace):
                continue
            if change.old is None:
                del objs_by_key[_object_key(change.obj)]
            else:
                objs_by_key[_object_key(change.old)] = change.old
        return [objs_by_key[key] for key in sorted(objs_by_key)]

    def _continue_list(self, encoded_token: str, path: ResourcePath) -> tuple[int, Sequence[Obj], str]:
        token = _parse_token(encoded_token)
        held_list = self._held_lists.get((path.served_kind.constant, path.namespace, token.rv))
        if held_list is None:
            raise StatusError(410, "Expired", _TOO_OLD_MESSAGE)
        return token.rv, held_list, token.start

    def _hold_list(self, path: ResourcePath, revision: int, objs: Sequence[Obj]) -> None:
        key = (path.served_kind.constant, path.namespace, revision)
        self._held_lists[key] = objs
        self._held_lists.move_to_end(key)
        while len(self._held_lists) > HELD_LISTS_MAX:
            self._held_lists.popitem(last=False)

    def drop_expired(self) -> None:
        """Drop lists in memory that are more than HELD_LIST_AGE_MAX revisions old."""
        oldest_revision = self._objects.revision - HELD_LIST_AGE_MAX
        for key in [key for key in self._held_lists if key[2] < oldest_revision]:
            del self._held_lists[key]


def parse_resource_version(text: str) -> int:
    """Return a resourceVersion as a number, 0 for ''. Raises StatusError if it is not a number."""
    if not text:
        return 0
    if not text.isdecimal() or not text.isascii() or len(text) > 18:
        raise bad_request(f'invalid resource version "{text}": not a number')
    return int(text)


def check_revision_not_in_future(requested_revision: int, revision: int) -> None:
    """Raise StatusError if a requested revision is in the future."""
    if requested_revision > revision:
        message = f"Too large resource version: {requested_revision}, current: {revision}"
        cause = {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
        raise StatusError(504, "Timeout", message, {"causes": [cause], "retryAfterSeconds": 1})


def _filter_objects(objs: Sequence[Obj], selection: Selection, name: str) -> Sequence[Obj]:
    if selection.selects_all and not name:
        return objs
    return [obj for obj in objs if name in ("", obj["metadata"]["name"]) and selection.accepts(obj)]


def _converted(objs: Sequence[Obj], path: ResourcePath) -> Sequence[Obj]:
    """Return objects in the version of a request if a webhook converts them; others are converted when rendered."""
    if path.resource.converter is None:
        return objs
    return convert_all(path.resource.strategy.in_version, objs, path.api_version)


def _first_index_after(objs: Sequence[Obj], start_key: str) -> int:
    if not start_key:
        return 0
    return bisect_right(objs, start_key, key=_object_key)


def sort_by_etcd_key(objs: Sequence[Obj]) -> Sequence[Obj]:
    """Sort objects by their etcd key `namespace/name`; the input must be sorted by (namespace, name).

    By etcd key, `team-a/x` precedes `team/x`. Lists that are already sorted by etcd key are returned unchanged.
    """
    groups = _split_by_namespace(objs)
    key_prefixes = [f"{_namespace_of(group[0])}/" for group in groups]
    if all(map(lt, key_prefixes, key_prefixes[1:])):
        return objs
    return [obj for _, group in sorted(zip(key_prefixes, groups, strict=True), key=itemgetter(0)) for obj in group]


def _split_by_namespace(objs: Sequence[Obj]) -> list[Sequence[Obj]]:
    namespace_groups, group_start = [], 0
    while group_start < len(objs):
        end = bisect_right(objs, _namespace_of(objs[group_start]), lo=group_start, key=_namespace_of)
        namespace_groups.append(objs[group_start:end])
        group_start = end
    return namespace_groups


def _namespace_of(obj: Obj) -> str:
    namespace: str = obj["metadata"].get("namespace", "")
    return namespace


def _object_key(obj: Obj) -> str:
    return f"{_namespace_of(obj)}/{obj['metadata']['name']}"


def _encode_token(revision: int, last_obj: Obj) -> str:
    token = _ContinueToken(_CONTINUE_FORMAT, revision, _object_key(last_obj))
    return base64.urlsafe_b64encode(_encode(token)).decode().rstrip("=")


def _parse_token(text: str) -> _ContinueToken:
    try:
        token = _decode_token(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    except (binascii.Error, ValueError) as error:
        raise bad_request(f"continue key is not valid: {error}") from error
    if token.v != _CONTINUE_FORMAT:
        raise bad_request("continue key is not valid: server does not recognize this encoded version")
    return token


_UNSPECIFIC_VERSIONS: Final = ("", "0")


class ChangeFeed(ChangeHistory, Protocol):
    """The history of changes to stored objects, and a subscription to changes that are durable (written to disk)."""

    def events_since(self, revision: int) -> Sequence[WatchEvent]:
        """Return the changes after a revision that are on disk. Raises ExpiredRevision if some are no longer kept."""

    def subscribe(self, watch: WatchStream) -> None:
        """Subscribe a watch to all later changes that are on disk."""


class ReadHandler:
    """The handlers of get, list and watch requests."""

    def __init__(self, objects: ApiObjectStore, feed: ChangeFeed, now: Callable[[], Instant]) -> None:
        self._objects = objects
        self._feed = feed
        self._now = now
        self._lists = PagedLists(objects, feed)
        #: Creates the watches of kinds that a webhook converts.
        self.create_converted_watch: Callable[..., WatchStream] = WatchStream

    def drop_expired(self) -> None:
        """Drop the lists that are kept for requests of further pages, if they are too many revisions old."""
        self._lists.drop_expired()

    def get(self, request: ApiRequest, path: ResourcePath) -> Response:
        """Return one object. Raises StatusError if it does not exist or an option is invalid."""
        representation = Representation(request, path, self._now())
        revision = parse_resource_version(request.query.get("resourceVersion", ""))
        check_revision_not_in_future(revision, self._objects.revision)
        obj = self._objects.get(Key(path.served_kind.constant, path.namespace, path.name))
        if obj is None:
            raise not_found_error(path.served_kind, path.name)
        if path.resource.converter is not None:
            obj = path.resource.strategy.in_version(obj, path.api_version)
        return Response(200, representation.render_object(obj))

    def list(self, request: ApiRequest, path: ResourcePath) -> Response:
        """Return the objects of a resource, or one page of them if the request has a limit.

        Raises StatusError for invalid options or an expired list.
        """
        representation = Representation(request, path, self._now())
        page = self._lists.get_page(request, path)
        return Response(200, representation.render_list(_converted(page.items, path), page.metadata))

    def watch(self, request: ApiRequest, path: ResourcePath) -> WatchStream:
        """Start a watch at the requested resourceVersion, by default the current one.

        `sendInitialEvents` determines whether the existing objects are sent first; by default, they are sent if the
        resourceVersion is absent or 0. Raises StatusError if the watch cannot start.
        """
        representation = Representation(request, path, self._now())
        representation.check_accepts_single_object()
        with_bookmarks = request.has_flag("allowWatchBookmarks")
        selection = parse_selection(request, path.served_kind)
        create_watch = WatchStream if path.resource.converter is None else self.create_converted_watch
        watch = create_watch(
            path, selection, representation.render_object, representation.render_bookmark, with_bookmarks=with_bookmarks
        )
        resource_version = request.query.get("resourceVersion", "")
        check_watch_options(request)
        sends_initial_events = request.has_flag("sendInitialEvents") if "sendInitialEvents" in request.query else None
        check_revision_not_in_future(parse_resource_version(resource_version), self._objects.revision)
        if sends_initial_events or (resource_version in _UNSPECIFIC_VERSIONS and sends_initial_events is None):
            objs = self._objects.list(path.served_kind.constant, path.namespace or None)
            watch.start(objs, self._objects.revision)
            if sends_initial_events and with_bookmarks:
                watch.send_bookmark(self._objects.revision, is_initial=True)
        elif resource_version in _UNSPECIFIC_VERSIONS:
            watch.start((), self._objects.revision)
        else:
            watch.start((), int(resource_version))
            watch.process_changes(self._durable_events_since(int(resource_version)))
        self._feed.subscribe(watch)
        return watch

    def _durable_events_since(self, revision: int) -> Sequence[WatchEvent]:
        try:
            return self._feed.events_since(revision)
        except ExpiredRevision as expired:
            raise StatusError(410, "Expired", str(expired)) from expired
