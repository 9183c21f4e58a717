"""Reading all of a cluster that decides about its queues, over HTTP: kind by kind, page by page.

Every kind is asked for as of one revision where the server can (`resourceVersionMatch=Exact`), so that all of it was
true at one moment; kinds that it cannot tell so are named. Only a page is held at a time. What may not be read, or
is not served, is named too. Source: Kubernetes API concepts, "Resource versions" and "Retrieving large results sets in
chunks".
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol
from urllib.parse import quote

from batchyard.api.meta import Obj
from batchyard.api.scheme import ServedKind, kind_info
from batchyard.base.instant import MINUTE, SECOND, Instant
from batchyard.client.resource_paths import path_of_kind, received, revision_of
from batchyard.client.transport import HttpAnswer, HttpRequest
from batchyard.client.writes import decoded, list_in, trouble_of
from batchyard.server.clocks.timers import passing
from batchyard.server.platform.status_report import PATH as REPORT

PAGE: Final = 1000
#: How often a request is sent whose answer is none, or that the server be asked later.
TRIES_MAX: Final = 6
#: However long a server asks to be left alone.
_WAIT_MAX: Final = MINUTE
_NOT_THERE, _FORBIDDEN, _GONE = 404, 403, 410
#: The server does not know how things stood at a revision, any more or at all.
_NOT_SO: Final = (400, 410, 504)
_LATER: Final = frozenset({0, 429, 500, 502, 503})


class SnapshotError(Exception):
    """A cluster cannot be read; says why and what to do."""


class Asking(Protocol):
    """Who carries requests."""

    async def ask(self, request: HttpRequest) -> HttpAnswer:
        """The answer to a request."""


@dataclass(slots=True)
class Reading:
    """What was read so far."""

    #: The server's own time where it tells it; 0 where the clock's counts.
    at: Instant = 0
    #: The revision that all is of, but for what is named in `loose`.
    revision: int = 0
    #: How many objects, by kind, of those that are served and may be read.
    counts: dict[str, int] = field(default_factory=dict)
    #: Kinds that may not be listed.
    forbidden: list[str] = field(default_factory=list)
    #: What was said when the first of them was refused.
    refusal: str = ""
    #: Kinds that the server does not have.
    unserved: list[str] = field(default_factory=list)
    #: Kinds that were told as of another revision than the rest.
    loose: list[str] = field(default_factory=list)
    #: Kueue's Configuration as the server itself tells it, or as it was found.
    configuration: Obj | None = None
    #: What is to be said of that; '' if it is not known, and nobody would expect it to be.
    of_configuration: str = ""
    #: What of it nobody here decides by.
    beside: list[str] = field(default_factory=list)


Taking = Callable[[str, Sequence[Obj]], None]
"""Is given the objects of a kind, in their storage version, a page at a time."""


async def read_cluster(wire: Asking, kinds: Iterable[str], take: Taking) -> Reading:
    """Read these kinds; SnapshotError where the server does not answer."""
    told = await _first(wire)
    own = decoded(told.body) if told.code == 200 else {}
    reading = Reading(at=int(own.get("instant") or told.told_at), configuration=own.get("configuration"))
    for kind in kinds:
        await _read_kind(wire, kind_info(kind), take, reading)
    return reading


async def _first(wire: Asking) -> HttpAnswer:
    """What the server tells of itself, if it is ours. One that cannot be reached is not asked again."""
    request = HttpRequest("GET", REPORT)
    answer = await wire.ask(request)
    if not answer.code:
        raise SnapshotError(trouble_of(answer))
    return answer if answer.code not in _LATER else await patiently(wire, request)


async def _read_kind(wire: Asking, info: ServedKind, take: Taking, reading: Reading) -> None:
    """All objects of a kind in the newest version that is served, and can be told."""
    unconverted: HttpAnswer | None = None
    for version in reversed(info.versions):
        path, exact = path_of_kind(info, version), ""
        if reading.revision:
            exact = f"&resourceVersion={reading.revision}&resourceVersionMatch=Exact"
        answer = await _page(wire, path, exact)
        if exact and answer.code in _NOT_SO:
            reading.loose.append(info.constant)
            answer = await _page(wire, path, "")
        if answer.code == 200:
            await _take_pages(wire, (info, version), answer, take, reading)
            return
        if answer.code == _FORBIDDEN:
            reading.forbidden.append(info.constant)
            reading.refusal = reading.refusal or trouble_of(answer)
            return
        if _is_unconverted(answer):
            unconverted = answer
        elif answer.code != _NOT_THERE:
            raise SnapshotError(trouble_of(answer))
    if unconverted is not None:
        raise SnapshotError(trouble_of(unconverted))
    reading.unserved.append(info.constant)


async def _take_pages(
    wire: Asking, of: tuple[ServedKind, str], answer: HttpAnswer, take: Taking, reading: Reading
) -> None:
    """The first page and those after it. One that came too late goes on as things stand now, as the server offers."""
    info, version = of
    path = path_of_kind(info, version)
    while True:
        page = list_in(answer)
        if page is None:
            raise SnapshotError(trouble_of(answer))
        reading.revision = reading.revision or revision_of(page)
        items: Sequence[Mapping[str, Any]] = page.get("items") or ()
        reading.counts[info.constant] = reading.counts.get(info.constant, 0) + len(items)
        take(info.constant, [received(info, version, item) for item in items])
        token = _next(page)
        if not token:
            return
        answer = await _page(wire, path, f"&continue={quote(token, safe='')}")
        if answer.code == _GONE and (token := _next(decoded(answer.body))):
            reading.loose.append(info.constant)
            answer = await _page(wire, path, f"&continue={quote(token, safe='')}")


def _next(page: Mapping[str, Any]) -> str:
    return (page.get("metadata") or {}).get("continue") or ""


async def _page(wire: Asking, path: str, query: str) -> HttpAnswer:
    """One page."""
    return await patiently(wire, HttpRequest("GET", f"{path}?limit={PAGE}{query}", within=MINUTE))


async def patiently(wire: Asking, request: HttpRequest) -> HttpAnswer:
    """The answer; asked for again, later and later, where the server has no time."""
    answer = await wire.ask(request)
    for tries in range(1, TRIES_MAX):
        if answer.code not in _LATER or _is_unconverted(answer):
            break
        await passing(min(answer.retry_after or (SECOND << tries) // 8, _WAIT_MAX))
        answer = await wire.ask(request)
    return answer


def _is_unconverted(answer: HttpAnswer) -> bool:
    """Whether a version cannot be told, since whoever converts to it is away. The one that is stored needs nobody."""
    return answer.code == 500 and "conversion webhook" in trouble_of(answer)
