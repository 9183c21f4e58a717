"""Which objects a list has: as of which revision, and page by page.

A list that goes on over several pages shows one revision. The API server holds some such lists, for as long as its
history reaches back to their revision. A continue token of any other list has expired. A list as of an earlier
revision is worked out from what is there and what has changed since, as long as that is known. Sources:
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
from batchyard.apiserver.objects import Objects
from batchyard.apiserver.options import check_list_options, limit_of
from batchyard.apiserver.request import Refused, Request, bad_request
from batchyard.apiserver.resources import ResourcePath
from batchyard.apiserver.selection import Selection, selection_of
from batchyard.interfaces.client import WatchEvent
from batchyard.store.log import Expired

#: How many lists are held for those who have not read them to their end.
HELD_MAX: Final = 64
#: And for how many changes: a list keeps its objects, deleted ones too, in memory, as history does for so many changes.
HELD_FOR: Final = 20_000
_FORMAT: Final = "meta.k8s.io/v1"
_TOO_OLD: Final = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new list without "
    "the continue parameter."
)
_EXPIRED: Final = "The resourceVersion for the provided list is too old."


class History(Protocol):
    """What has happened."""

    def changes_since(self, revision: int) -> Sequence[WatchEvent]:
        """All changes after a revision, durable or not; Expired where they are no longer known."""


class Page(NamedTuple):
    """Some of the objects of a list, and the metadata of the list."""

    items: Sequence[Obj]
    metadata: dict[str, Any]


class _Token(msgspec.Struct):
    """Where a list goes on: in what was listed at a revision, after a place."""

    v: str
    rv: int
    start: str


_encode = msgspec.json.Encoder().encode
_decode_token = msgspec.json.Decoder(_Token).decode


class Lists:
    """See the module."""

    def __init__(self, objects: Objects, history: History) -> None:
        self._objects = objects
        self._history = history
        self._held: OrderedDict[tuple[str, str, int], Sequence[Obj]] = OrderedDict()

    def page(self, request: Request, path: ResourcePath) -> Page:
        """The page that is asked for; Refused where it cannot be had."""
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

    def _begins(self, request: Request, path: ResourcePath) -> tuple[int, Sequence[Obj], str]:
        """The whole list as it is now, or as it was if that is what is asked for."""
        revision = self._objects.revision
        match, asked = request.query.get("resourceVersionMatch", ""), request.query.get("resourceVersion", "")
        wanted = revision_of(asked)
        check_not_ahead(wanted, revision)
        found = in_order_of_keys(self._objects.list(path.info.constant, path.namespace or None))
        if match == "Exact" and wanted != revision:
            return wanted, self._as_of(wanted, path, found), ""
        return revision, found, ""

    def _as_of(self, revision: int, path: ResourcePath, found: Sequence[Obj]) -> Sequence[Obj]:
        """What a list was at an earlier revision: every change since is undone, the last one first."""
        try:
            changes = self._history.changes_since(revision)
        except Expired as expired:
            raise Refused(410, "Expired", _EXPIRED) from expired
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
        """The list that a token goes on with."""
        token = _read(text)
        held = self._held.get((path.info.constant, path.namespace, token.rv))
        if held is None:
            raise Refused(410, "Expired", _TOO_OLD)
        return token.rv, held, token.start

    def _hold(self, path: ResourcePath, revision: int, found: Sequence[Obj]) -> None:
        key = (path.info.constant, path.namespace, revision)
        self._held[key] = found
        self._held.move_to_end(key)
        while len(self._held) > HELD_MAX:
            self._held.popitem(last=False)

    def let_expire(self) -> None:
        """Drop the lists that are older than history."""
        oldest = self._objects.revision - HELD_FOR
        while self._held and next(iter(self._held))[2] < oldest:
            self._held.popitem(last=False)


def revision_of(text: str) -> int:
    """A resourceVersion as the number it is; Refused if it is none."""
    if not text:
        return 0
    if not text.isdecimal() or not text.isascii() or len(text) > 18:
        raise bad_request(f'invalid resource version "{text}": it is no number')
    return int(text)


def check_not_ahead(wanted: int, revision: int) -> None:
    """Refused where a revision is asked for that is yet to come."""
    if wanted > revision:
        told = f"Too large resource version: {wanted}, current: {revision}"
        cause = {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
        raise Refused(504, "Timeout", told, {"causes": [cause], "retryAfterSeconds": 1})


def _selected(found: Sequence[Obj], selection: Selection, name: str) -> Sequence[Obj]:
    if selection.is_all and not name:
        return found
    return [obj for obj in found if name in ("", obj["metadata"]["name"]) and selection.accepts(obj)]


def _first_after(objs: Sequence[Obj], after: str) -> int:
    """The position of the first object beyond a place."""
    if not after:
        return 0
    return bisect_right(objs, after, key=_place)


def in_order_of_keys(objs: Sequence[Obj]) -> Sequence[Obj]:
    """Objects sorted by namespace and name in the order of their keys, which are one text of both, as in etcd.

    There `team-a/x` comes before `team/x`. Most lists are in that order as they are.
    """
    parts = _by_namespace(objs)
    places = [f"{_namespace(part[0])}/" for part in parts]
    if all(map(lt, places, places[1:])):
        return objs
    return [obj for _, part in sorted(zip(places, parts, strict=True), key=itemgetter(0)) for obj in part]


def _by_namespace(objs: Sequence[Obj]) -> list[Sequence[Obj]]:
    """Objects that are sorted by namespace, each namespace by itself."""
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
