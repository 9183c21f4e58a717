"""Informer of one kind: lists it, then watches it from the revision of the list.

The informer sends nothing itself. `following` returns the next request; other methods process the responses. Every
change is reported once, with the previous object. A watch that breaks off resumes at the last reported revision. If the
server no longer has that revision, or not yet because it was restored from a backup, the informer lists again and
reports the differences as changes. If the server does not serve one version of the kind, the informer tries the others.
If it serves none, the informer retries after a while.
Sources: client-go, tools/cache/reflector.go; k8s.io/apimachinery, pkg/api/errors.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from batchyard.api.meta import Key, Obj
from batchyard.api.scheme import ServedKind
from batchyard.base.instant import SECOND, Duration
from batchyard.base.seeded_draws import draw
from batchyard.client.cache import Cache
from batchyard.client.resource_paths import key_in, path_of, path_of_kind, received, revision_of
from batchyard.client.transport import HttpAnswer, HttpRequest, backoff
from batchyard.client.writes import decoded, failure_reason, is_ahead, is_object, list_in
from batchyard.interfaces.client import EventType, WatchEvent

PAGE: Final = 500
#: The minimum timeout of a watch; the maximum is twice that.
WATCH_LASTS: Final = 300  # seconds
#: The timeout of a page.
_PAGE_WITHIN: Final = 60 * SECOND
#: The time after which a kind that is not served is tried again.
UNSERVED_FOR: Final = 30 * SECOND
_GONE: Final = 410
#: Asks for the metadata of objects only; servers that do not support it send the full objects.
_NAMES: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
_ADDED, _MODIFIED, _DELETED = EventType.ADDED, EventType.MODIFIED, EventType.DELETED


class NextRequest(NamedTuple):
    """The next request, and the wait before it."""

    request: HttpRequest
    is_watch: bool
    wait: Duration


class InformerScope(NamedTuple):
    """The objects of a kind to follow: a namespace ('' for all) and a selector."""

    namespace: str = ""
    #: In query form, such as `fieldSelector=metadata.name%3Da`.
    selector: str = ""


_ALL: Final = InformerScope()


class Informer:
    """The state of a list and a watch of one kind: the cache, the last revision, the backoff and the current error."""

    def __init__(self, info: ServedKind, cache: Cache, seed: int, scope: InformerScope = _ALL) -> None:
        self.info = info
        self._scope = scope
        self._cache = cache
        self._seed = seed
        self._versions = [info.storage_version, *[v for v in reversed(info.versions) if v != info.storage_version]]
        #: The number of versions that the server rejected since it last served one.
        self._refused = 0
        self._token = ""
        self._is_paged = True
        self._page: dict[Key, Obj] = {}
        self._wait: Duration = 0
        self._failures = 0
        #: How often in a row a watch expired without any event in between.
        self._expired = 0
        #: The revision up to which changes are reported; None before the first list is complete.
        self.revision: int | None = None
        self._knows_where = False
        #: Whether the current watch has sent anything.
        self._has_received = False
        #: The number of lists and of watches that were started.
        self.lists = 0
        self.watches = 0
        #: The number of completed lists.
        self.listings = 0
        #: The number of the last completed list, counted by `lists`.
        self.last_listed = 0
        #: The current error; '' if there is none.
        self.trouble = ""

    @property
    def version(self) -> str:
        """The version used in requests."""
        return self._versions[self._refused % len(self._versions)]

    @property
    def is_served(self) -> bool:
        """Whether the server serves the kind, as far as is known."""
        return self._refused < len(self._versions)

    @property
    def is_synced(self) -> bool:
        """Whether the initial list has been reported, or the kind is not served."""
        return self.revision is not None

    def following(self) -> NextRequest:
        """Return the next request."""
        path = self._path()
        wait, self._wait = self._wait, 0
        if not self._knows_where:
            self.lists += not self._token
            return NextRequest(HttpRequest("GET", f"{path}{self._page_query()}", within=_PAGE_WITHIN), False, wait)
        self.watches += 1
        self._has_received = False
        lasts = WATCH_LASTS + draw(self._seed, self.info.constant, str(self.watches)) % WATCH_LASTS
        query = f"watch=1&allowWatchBookmarks=true&resourceVersion={self.revision}&timeoutSeconds={lasts}"
        return NextRequest(HttpRequest("GET", f"{path}?{query}{self._selected()}", within=lasts * SECOND), True, wait)

    def look(self, token: str) -> HttpRequest:
        """Return the request for a page of the current names and revisions; its result does not change the informer."""
        query = f"?limit={PAGE}" + (f"&continue={quote(token, safe='')}" if token else "") + self._selected()
        return HttpRequest("GET", f"{self._path()}{query}", within=_PAGE_WITHIN, accept=_NAMES)

    def listed(self, answer: HttpAnswer) -> Sequence[WatchEvent]:
        """Process a page of a list; the last page returns the differences from the cache."""
        page = list_in(answer)
        if page is None:
            return self._list_failed(answer)
        metadata = page.get("metadata") or {}
        for item in page.get("items") or ():
            obj = received(self.info, self.version, item)
            self._page[key_in(self.info, obj)] = obj
        self._token = metadata.get("continue") or ""
        if self._token:
            return ()
        found, self._page = self._page, {}
        self.listings += 1
        self.last_listed = self.lists
        self._recovered()
        self._knows_where, self.revision = True, revision_of(page)
        return self._differences(found, self.revision)

    def watched(self, lines: Sequence[bytes]) -> Sequence[WatchEvent]:
        """Process lines of a watch; an empty sequence means that the server has responded."""
        self.trouble = ""
        self._has_received = self._has_received or bool(lines)
        events: list[WatchEvent] = []
        for line in lines:
            if not self._knows_where:
                break
            change = decoded(line)
            obj = change.get("object")
            match change.get("type"):
                case "ADDED" | "MODIFIED" | "DELETED" as verb if is_object(obj):
                    self._recovered()
                    self._expired = 0
                    self._take_in(verb == "DELETED", obj, events)
                case "BOOKMARK" if isinstance(obj, dict) and isinstance(obj.get("metadata"), dict):
                    self._recovered()
                    self._expired = 0
                    self._advance(revision_of(obj))
                case "ERROR":
                    self._fail(_response_of(obj))
                case _:  # a truncated line, or one that is not from the Kubernetes API
                    self._fail(HttpAnswer(0, trouble="a watch sent an incomplete line"))
        return events

    def ended(self, answer: HttpAnswer) -> None:
        """Process the end of a watch: regular, by a broken connection, or rejected by the server."""
        if answer.code != 200 or answer.trouble:
            self._fail(answer)
        elif not self._has_received:  # whatever the reason: do not retry in a tight loop
            self._failures += 1
            self._wait = backoff(self._failures, self._seed, self.info.constant)

    def relist(self) -> None:
        """List everything again."""
        self._knows_where, self._token = False, ""
        self._page.clear()

    def _path(self) -> str:
        namespace = self._scope.namespace
        return path_of(self.info, self.version, namespace) if namespace else path_of_kind(self.info, self.version)

    def _selected(self) -> str:
        return f"&{self._scope.selector}" if self._scope.selector else ""

    def _page_query(self) -> str:
        if not self._is_paged:
            return f"?{self._scope.selector}" if self._scope.selector else ""
        return f"?limit={PAGE}" + (f"&continue={quote(self._token, safe='')}" if self._token else "") + self._selected()

    def _take_in(self, is_gone: bool, sent: Any, events: list[WatchEvent]) -> None:
        """Process a change from a watch; skip it if it is already known."""
        obj = received(self.info, self.version, sent)
        key, revision = key_in(self.info, obj), revision_of(obj)
        old = self._cache.get(key)
        self._advance(revision)
        if old is not None and 0 < revision <= revision_of(old):
            return
        if is_gone and old is not None:
            self._note(WatchEvent(_DELETED, key, obj, old, revision), events)
        elif not is_gone:
            self._put(key, obj, revision, events)

    def _put(self, key: Key, obj: Obj, revision: int, events: list[WatchEvent]) -> None:
        """Store an object. If its uid differs from the known one, report the deletion of the known one first."""
        old = self._cache.get(key)
        if old is not None and old["metadata"].get("uid") != obj["metadata"].get("uid"):
            self._note(WatchEvent(_DELETED, key, old, old, revision), events)
            old = None
        self._note(WatchEvent(_ADDED if old is None else _MODIFIED, key, obj, old, revision), events)

    def _note(self, event: WatchEvent, events: list[WatchEvent]) -> None:
        self._cache.note(event)
        events.append(event)

    def _differences(self, found: dict[Key, Obj], revision: int) -> Sequence[WatchEvent]:
        """Return the changes since the last report: deleted, added and modified objects."""
        events: list[WatchEvent] = []
        known = self._cache.of_kind(self.info.constant)
        for key in sorted(key for key in known if key not in found):
            self._note(WatchEvent(_DELETED, key, known[key], known[key], revision), events)
        for key, obj in found.items():
            old = known.get(key)
            if (
                old is None
                or _version(old) != _version(obj)
                or old["metadata"].get("uid") != obj["metadata"].get("uid")
            ):
                self._put(key, obj, revision_of(obj), events)
        return events

    def _advance(self, revision: int) -> None:
        self.revision = max(self.revision or 0, revision)

    def _list_failed(self, answer: HttpAnswer) -> Sequence[WatchEvent]:
        if answer.code == 404:
            return self._not_served()
        self._fail(answer)
        return ()

    def _not_served(self) -> Sequence[WatchEvent]:
        """Try the next version of the kind; if no version is served, report all known objects as deleted."""
        self._refused += 1
        if self._refused % len(self._versions):
            return ()
        self._wait = UNSERVED_FOR
        self.trouble = f"{self.info.plural}.{self.info.group}".rstrip(".") + " are not served"
        self.revision = self.revision or 0
        return self._differences({}, self.revision)

    def _fail(self, answer: HttpAnswer) -> None:
        """Schedule a retry; list again if the revision is no longer valid."""
        if answer.code == _GONE and self._token:
            self._is_paged = False  # a server that expires the continue token must send the list at once
        if answer.code in {_GONE, 404} or self._token or is_ahead(answer):
            self.relist()
        if answer.code == _GONE:  # one expiry is normal; repeated ones must not load the server
            self._wait = backoff(self._expired, self._seed, self.info.constant)
            self._expired += 1
            return
        self._failures += 1
        wait = backoff(self._failures, self._seed, self.info.constant)
        self._wait = max(wait, answer.retry_after or 0)
        self.trouble = failure_reason(answer)

    def _recovered(self) -> None:
        self._failures, self._refused, self.trouble = 0, self._refused % len(self._versions), ""


def _response_of(status: Any) -> HttpAnswer:
    """Return the response that an ERROR event of a watch stands for."""
    known = status if isinstance(status, dict) else {}
    code = known.get("code")
    return HttpAnswer(code if isinstance(code, int) else 500, trouble=str(known.get("message") or ""))


def _version(obj: Obj) -> str | None:
    version: str | None = obj["metadata"].get("resourceVersion")
    return version
