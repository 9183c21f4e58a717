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
from batchyard.client.places import path_of_kind, received, revision_of
from batchyard.client.wire import HttpAnswer, HttpRequest
from batchyard.client.writes import decoded, trouble_of
from batchyard.live.real_time import passing
from batchyard.live.report import PATH as REPORT

PAGE: Final = 1000
#: How often a request is sent whose answer is none, or that the server be asked later.
TRIES_MAX: Final = 6
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
    #: Kinds that the server does not have.
    unserved: list[str] = field(default_factory=list)
    #: Kinds that were told as of another revision than the rest.
    loose: list[str] = field(default_factory=list)


Taking = Callable[[str, Sequence[Obj]], None]
"""Is given the objects of a kind, in their storage version, a page at a time."""


async def read_cluster(wire: Asking, kinds: Iterable[str], take: Taking) -> Reading:
    """Read these kinds; SnapshotError where the server does not answer."""
    told = await wire.ask(HttpRequest("GET", REPORT))
    reading = Reading(at=int(decoded(told.body).get("instant") or 0) if told.code == 200 else 0)
    for kind in kinds:
        await _read_kind(wire, kind_info(kind), take, reading)
    return reading


async def _read_kind(wire: Asking, info: ServedKind, take: Taking, reading: Reading) -> None:
    """All objects of a kind in the newest version that is served."""
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
            return
        if answer.code != _NOT_THERE:
            raise SnapshotError(trouble_of(answer))
    reading.unserved.append(info.constant)


async def _take_pages(
    wire: Asking, of: tuple[ServedKind, str], answer: HttpAnswer, take: Taking, reading: Reading
) -> None:
    """The first page and those after it. One that came too late goes on as things stand now, as the server offers."""
    info, version = of
    path = path_of_kind(info, version)
    while True:
        page = decoded(answer.body)
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
        if answer.code != 200:
            raise SnapshotError(trouble_of(answer))


def _next(page: Mapping[str, Any]) -> str:
    return (page.get("metadata") or {}).get("continue") or ""


async def _page(wire: Asking, path: str, query: str) -> HttpAnswer:
    """One page; asked again, later and later, where the server has no time."""
    answer = HttpAnswer(0)
    for tries in range(TRIES_MAX):
        answer = await wire.ask(HttpRequest("GET", f"{path}?limit={PAGE}{query}", within=MINUTE))
        if answer.code not in _LATER:
            break
        await passing(answer.retry_after or SECOND * min(1 << tries, 16) // 4)
    return answer
