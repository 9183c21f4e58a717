"""Snapshots of a cluster's scheduling objects, read over HTTP kind by kind and page by page.

Every kind is listed at the same revision if the server supports it (`resourceVersionMatch=Exact`), so that the snapshot
is consistent. The result names the kinds that were listed at another revision, are forbidden, or are not served. Only
one page is held in memory at a time. Source: Kubernetes API concepts, "Resource versions" and "Retrieving large results
sets in chunks".
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol
from urllib.parse import quote

from batchyard.api.meta import Obj
from batchyard.api.scheme import ServedKind, kind_info
from batchyard.base.instant import MINUTE, SECOND, Instant
from batchyard.client.transport import (
    HttpAnswer,
    HttpRequest,
    decoded,
    failure_reason,
    list_in,
    path_of_kind,
    received,
    revision_of,
)
from batchyard.server.clocks.wall import sleep_for
from batchyard.server.platform.status_report import STATUS_REPORT_PATH as REPORT

PAGE: Final = 1000
#: The maximum number of attempts for a request that fails with a retriable status.
TRIES_MAX: Final = 6
#: The longest Retry-After that is respected.
_WAIT_MAX: Final = MINUTE
_NOT_THERE, _FORBIDDEN, _GONE = 404, 403, 410
#: Status codes of a server that cannot list at a revision, because it is compacted or Exact is not supported.
_NOT_SO: Final = (400, 410, 504)
_LATER: Final = frozenset({0, 429, 500, 502, 503})


class SnapshotError(Exception):
    """The cluster cannot be read. The message contains the server's error."""


class RequestSender(Protocol):
    """Sends requests to an API server."""

    async def ask(self, request: HttpRequest) -> HttpAnswer:
        """Send a request and return the response."""


@dataclass(slots=True)
class SnapshotResult:
    """The result of reading a snapshot: its revision, object counts, and the kinds that could not be listed."""

    #: The server's time if it reports its time, else 0.
    at: Instant = 0
    #: The revision of all objects, except those of the kinds in `loose`.
    revision: int = 0
    #: The number of objects of each kind that is served and may be listed.
    counts: dict[str, int] = field(default_factory=dict)
    #: Kinds that may not be listed (403).
    forbidden: list[str] = field(default_factory=list)
    #: The error message of the first forbidden list.
    refusal: str = ""
    #: Kinds that the server does not serve.
    unserved: list[str] = field(default_factory=list)
    #: Kinds that were listed at another revision.
    loose: list[str] = field(default_factory=list)
    #: Kueue's Configuration, as reported by a platform or read from a ConfigMap.
    configuration: Obj | None = None
    #: A message about that Configuration; '' if it is neither known nor expected.
    of_configuration: str = ""
    #: Messages about settings of that Configuration that batchyard does not support.
    beside: list[str] = field(default_factory=list)


PageHandler = Callable[[str, Sequence[Obj]], None]
"""Called with the kind and the objects of each page, in their storage version."""


async def read_cluster(wire: RequestSender, kinds: Iterable[str], take: PageHandler) -> SnapshotResult:
    """List all objects of these kinds, and pass each page to `take`. Raises SnapshotError if a list fails."""
    first = await _first(wire)
    own = decoded(first.body) if first.code == 200 else {}
    reading = SnapshotResult(at=int(own.get("instant") or first.server_time), configuration=own.get("configuration"))
    for kind in kinds:
        await _read_kind(wire, kind_info(kind), take, reading)
    return reading


async def _first(wire: RequestSender) -> HttpAnswer:
    """Request the status document of a batchyard platform. Raises SnapshotError if the server is unreachable."""
    request = HttpRequest("GET", REPORT)
    answer = await wire.ask(request)
    if not answer.code:
        raise SnapshotError(failure_reason(answer))
    return answer if answer.code not in _LATER else await send_with_retries(wire, request)


async def _read_kind(wire: RequestSender, info: ServedKind, take: PageHandler, reading: SnapshotResult) -> None:
    """List all objects of a kind, in the newest version that the server serves and can convert to."""
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
            reading.refusal = reading.refusal or failure_reason(answer)
            return
        if _is_unconverted(answer):
            unconverted = answer
        elif answer.code != _NOT_THERE:
            raise SnapshotError(failure_reason(answer))
    if unconverted is not None:
        raise SnapshotError(failure_reason(unconverted))
    reading.unserved.append(info.constant)


async def _take_pages(
    wire: RequestSender, of: tuple[ServedKind, str], answer: HttpAnswer, take: PageHandler, reading: SnapshotResult
) -> None:
    """Pass all pages to `take`, given the first one. If the continue token expires, use the one in the error."""
    info, version = of
    path = path_of_kind(info, version)
    while True:
        page = list_in(answer)
        if page is None:
            raise SnapshotError(failure_reason(answer))
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


async def _page(wire: RequestSender, path: str, query: str) -> HttpAnswer:
    """Fetch one page of a list, with retries."""
    return await send_with_retries(wire, HttpRequest("GET", f"{path}?limit={PAGE}{query}", within=MINUTE))


async def send_with_retries(wire: RequestSender, request: HttpRequest) -> HttpAnswer:
    """Send a request and return the response. Retry with exponential backoff while the server is overloaded."""
    answer = await wire.ask(request)
    for tries in range(1, TRIES_MAX):
        if answer.code not in _LATER or _is_unconverted(answer):
            break
        await sleep_for(min(answer.retry_after or (SECOND << tries) // 8, _WAIT_MAX))
        answer = await wire.ask(request)
    return answer


def _is_unconverted(answer: HttpAnswer) -> bool:
    """Report whether a list failed because the conversion webhook of its API version is unavailable."""
    return answer.code == 500 and "conversion webhook" in failure_reason(answer)
