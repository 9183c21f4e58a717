"""What a server says of one kind: a list, and then a watch from its revision on, for as long as that goes.

Nothing here sends anything: `following` says what to ask next, and `listed`, `told` and `ended` take in what came of
it. Every change is told once, with the object as it was before. A watch that breaks off goes on from the last revision
it has told. Where that is no longer known, or not yet, since the server was set back, all is listed again, and what is
different is told as changes. A server that does not serve the kind in one version is asked for the others; one that
serves none is asked again after a while.
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
from batchyard.client.writes import decoded, is_ahead, is_object, list_in, trouble_of
from batchyard.interfaces.client import EventType, WatchEvent

PAGE: Final = 500
#: A watch is asked to last so long, and up to twice as long.
WATCH_LASTS: Final = 300  # seconds
#: How long a page may take.
_PAGE_WITHIN: Final = 60 * SECOND
#: When to look whether a kind is served by now.
UNSERVED_FOR: Final = 30 * SECOND
_GONE: Final = 410
#: The metadata of objects, from servers that know that form; else all of them.
_NAMES: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
_ADDED, _MODIFIED, _DELETED = EventType.ADDED, EventType.MODIFIED, EventType.DELETED


class Following(NamedTuple):
    """What to ask next, and after which wait."""

    request: HttpRequest
    is_watch: bool
    wait: Duration


class Scope(NamedTuple):
    """Which objects of a kind: of which namespace ('': of all), and of those what a selector takes."""

    namespace: str = ""
    #: As it stands in a query, such as `fieldSelector=metadata.name%3Da`.
    selector: str = ""


_ALL: Final = Scope()


class Informer:
    """See the module."""

    def __init__(self, info: ServedKind, cache: Cache, seed: int, scope: Scope = _ALL) -> None:
        self.info = info
        self._scope = scope
        self._cache = cache
        self._seed = seed
        self._versions = [info.storage_version, *[v for v in reversed(info.versions) if v != info.storage_version]]
        #: Those that the server has said it does not serve, since it last served one.
        self._refused = 0
        self._token = ""
        self._is_paged = True
        self._page: dict[Key, Obj] = {}
        self._wait: Duration = 0
        self._failures = 0
        #: How often in a row a watch could not go on, with nothing told in between.
        self._expired = 0
        #: What was told reaches to this revision; None before the first list has come to its end.
        self.revision: int | None = None
        self._knows_where = False
        #: Whether the watch that goes on has told anything.
        self._has_told = False
        #: How often a list and how often a watch was begun.
        self.lists = 0
        self.watches = 0
        #: How often a list came to its end.
        self.listings = 0
        #: Which of the lists that were begun last came to its end.
        self.last_listed = 0
        #: What is wrong, in words; '' if nothing is.
        self.trouble = ""

    @property
    def version(self) -> str:
        """The version that is asked for."""
        return self._versions[self._refused % len(self._versions)]

    @property
    def is_served(self) -> bool:
        """Whether the server serves the kind, as far as is known."""
        return self._refused < len(self._versions)

    @property
    def is_synced(self) -> bool:
        """Whether all that is there has been told, or there can be nothing."""
        return self.revision is not None

    def following(self) -> Following:
        """What to ask next."""
        path = self._path()
        wait, self._wait = self._wait, 0
        if not self._knows_where:
            self.lists += not self._token
            return Following(HttpRequest("GET", f"{path}{self._page_query()}", within=_PAGE_WITHIN), False, wait)
        self.watches += 1
        self._has_told = False
        lasts = WATCH_LASTS + draw(self._seed, self.info.constant, str(self.watches)) % WATCH_LASTS
        query = f"watch=1&allowWatchBookmarks=true&resourceVersion={self.revision}&timeoutSeconds={lasts}"
        return Following(HttpRequest("GET", f"{path}?{query}{self._selected()}", within=lasts * SECOND), True, wait)

    def look(self, token: str) -> HttpRequest:
        """Ask for a page of what is there now, names and revisions alone; nothing is taken in of it."""
        query = f"?limit={PAGE}" + (f"&continue={quote(token, safe='')}" if token else "") + self._selected()
        return HttpRequest("GET", f"{self._path()}{query}", within=_PAGE_WITHIN, accept=_NAMES)

    def listed(self, answer: HttpAnswer) -> Sequence[WatchEvent]:
        """Take in a page of a list; with the last one comes what is different from before."""
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

    def told(self, lines: Sequence[bytes]) -> Sequence[WatchEvent]:
        """Take in lines of a watch; that there are none yet says that the server has answered."""
        self.trouble = ""
        self._has_told = self._has_told or bool(lines)
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
                    self._fail(_told_in(obj))
                case _:  # a line that was cut off, or one that is not the API's
                    self._fail(HttpAnswer(0, trouble="a watch told half a line"))
        return events

    def ended(self, answer: HttpAnswer) -> None:
        """The watch is over: by itself, by a broken connection, or it was refused."""
        if answer.code != 200 or answer.trouble:
            self._fail(answer)
        elif not self._has_told:  # however it came to that: not again and again at once
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
        """A change that a watch tells of; nothing where it is known already."""
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
        """An object as it is now. One of another uid has taken the place of one that went unseen."""
        old = self._cache.get(key)
        if old is not None and old["metadata"].get("uid") != obj["metadata"].get("uid"):
            self._note(WatchEvent(_DELETED, key, old, old, revision), events)
            old = None
        self._note(WatchEvent(_ADDED if old is None else _MODIFIED, key, obj, old, revision), events)

    def _note(self, event: WatchEvent, events: list[WatchEvent]) -> None:
        self._cache.note(event)
        events.append(event)

    def _differences(self, found: dict[Key, Obj], revision: int) -> Sequence[WatchEvent]:
        """What has to have happened since what was told last: who has gone, who has come, who is another."""
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
        """The server knows no such kind in this version: ask for the next; there are no objects where there is none."""
        self._refused += 1
        if self._refused % len(self._versions):
            return ()
        self._wait = UNSERVED_FOR
        self.trouble = f"{self.info.plural}.{self.info.group}".rstrip(".") + " are not served"
        self.revision = self.revision or 0
        return self._differences({}, self.revision)

    def _fail(self, answer: HttpAnswer) -> None:
        """Ask again later; from the beginning where what was known is known no more."""
        if answer.code == _GONE and self._token:
            self._is_paged = False  # a server that cannot hold a list for as long as it takes has to tell it at once
        if answer.code in {_GONE, 404} or self._token or is_ahead(answer):
            self.relist()
        if answer.code == _GONE:  # once is usual; again and again it is a server that nobody is to keep busy
            self._wait = backoff(self._expired, self._seed, self.info.constant)
            self._expired += 1
            return
        self._failures += 1
        wait = backoff(self._failures, self._seed, self.info.constant)
        self._wait = max(wait, answer.retry_after or 0)
        self.trouble = trouble_of(answer)

    def _recovered(self) -> None:
        self._failures, self._refused, self.trouble = 0, self._refused % len(self._versions), ""


def _told_in(status: Any) -> HttpAnswer:
    """The answer that an ERROR of a watch stands for."""
    known = status if isinstance(status, dict) else {}
    code = known.get("code")
    return HttpAnswer(code if isinstance(code, int) else 500, trouble=str(known.get("message") or ""))


def _version(obj: Obj) -> str | None:
    version: str | None = obj["metadata"].get("resourceVersion")
    return version
