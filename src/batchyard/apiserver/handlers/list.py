"""Lists: consistent pages with continue tokens, and lists at an earlier revision.

All pages of a list show one revision. The server keeps a bounded number of lists, as long as its history reaches back
to their revision. Other continue tokens have expired. A list at an earlier revision is reconstructed from the current
objects and the changes since. Sources:
k8s.io/apiserver, pkg/storage/continue.go, etcd3/store.go and etcd3/errors.go; k8s.io/apimachinery,
pkg/apis/meta/internalversion/validation.
"""

import base64
import binascii
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from operator import itemgetter, lt
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from batchyard.api.meta import Obj
from batchyard.apiserver.objects import ApiObjectStore
from batchyard.apiserver.options import check_list_options, limit_of
from batchyard.apiserver.request import ApiRequest, StatusError, bad_request
from batchyard.apiserver.resources import ResourcePath
from batchyard.apiserver.selection import Selection, selection_of
from batchyard.interfaces.client import WatchEvent
from batchyard.store.log import Expired

#: Maximum number of lists held for clients that have not read all pages.
HELD_MAX: Final = 64
#: Maximum age of a held list in changes. A list keeps its objects in memory, deleted ones too, like the history.
HELD_FOR: Final = 20_000
_FORMAT: Final = "meta.k8s.io/v1"
_TOO_OLD: Final = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new list without "
    "the continue parameter."
)
_EXPIRED: Final = "The resourceVersion for the provided list is too old."


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
            raise StatusError(410, "Expired", _EXPIRED) from expired
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
