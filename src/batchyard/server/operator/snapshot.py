"""Snapshots of the objects that matter to the scheduler, read from an API server kind by kind and page by page.

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
from batchyard.client import transport
from batchyard.server.clocks.wall import sleep_for
from batchyard.server.platform.status_report import STATUS_REPORT_PATH as REPORT

SNAPSHOT_PAGE_SIZE: Final = 1000
#: The maximum number of attempts for a request that fails with a retriable status.
REQUEST_ATTEMPTS_MAX: Final = 6
#: The longest Retry-After that is respected.
_RETRY_DELAY_MAX: Final = MINUTE
_NOT_FOUND, _FORBIDDEN, _GONE = 404, 403, 410
#: Status codes of a server that cannot list at a revision, because it is compacted or Exact is not supported.
_EXACT_LIST_REFUSED_CODES: Final = (400, 410, 504)
_RETRIED_CODES: Final = frozenset({0, 429, 500, 502, 503})


class SnapshotError(Exception):
    """The objects of the cluster cannot be read. The message contains the server's error."""


class RequestSender(Protocol):
    """Sends requests to an API server."""

    async def send_request(self, request: transport.HttpRequest) -> transport.HttpResponse:
        """Send a request and return the response."""


@dataclass(slots=True)
class SnapshotResult:
    """The outcome of reading a snapshot: its revision, object counts, and the kinds that could not be listed."""

    #: The server's time if it reports its time, else 0.
    at: Instant = 0
    #: The revision of all objects, except those of the kinds in `kinds_at_other_revision`.
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
    kinds_at_other_revision: list[str] = field(default_factory=list)
    #: Kueue's Configuration, as reported by a platform or read from a ConfigMap.
    configuration: Obj | None = None
    #: The version of Kueue whose decision rules a platform follows; '' if it is unknown.
    kueue_version: str = ""
    #: A message about that Configuration; '' if it is neither known nor expected.
    configuration_message: str = ""
    #: Messages about settings of that Configuration that batchyard does not support.
    unsupported_settings: list[str] = field(default_factory=list)


PageHandler = Callable[[str, Sequence[Obj]], None]
"""Called with the kind and the objects of each page, in their storage version."""


async def read_cluster(sender: RequestSender, kinds: Iterable[str], on_page: PageHandler) -> SnapshotResult:
    """List the objects of these kinds, and pass each page to `on_page`.

    The result records kinds that are forbidden or not served. Any other error raises SnapshotError.
    """
    response = await _request_status_document(sender)
    status_document = transport.decode_object(response.body) if response.code == 200 else {}
    snapshot_result = SnapshotResult(
        at=int(status_document.get("instant") or response.server_time),
        configuration=status_document.get("configuration"),
        kueue_version=status_document.get("kueueVersion") or "",
    )
    for kind in kinds:
        await _read_kind(sender, kind_info(kind), on_page, snapshot_result)
    return snapshot_result


async def _request_status_document(sender: RequestSender) -> transport.HttpResponse:
    request = transport.HttpRequest("GET", REPORT)
    response = await sender.send_request(request)
    if not response.code:
        raise SnapshotError(transport.failure_advice(response))
    return response if response.code not in _RETRIED_CODES else await send_with_retries(sender, request)


async def _read_kind(
    sender: RequestSender, served_kind: ServedKind, on_page: PageHandler, result: SnapshotResult
) -> None:
    """List all objects of a kind in the newest version that the server can serve; record the outcome in `result`."""
    unconverted_response: transport.HttpResponse | None = None
    for version in reversed(served_kind.versions):
        path, exact_query = transport.kind_path(served_kind, version), ""
        if result.revision:
            exact_query = f"&resourceVersion={result.revision}&resourceVersionMatch=Exact"
        response = await _fetch_page(sender, path, exact_query)
        if exact_query and response.code in _EXACT_LIST_REFUSED_CODES:
            result.kinds_at_other_revision.append(served_kind.constant)
            response = await _fetch_page(sender, path, "")
        if response.code == 200:
            await _read_pages(sender, (served_kind, version), response, on_page, result)
            return
        if response.code == _FORBIDDEN:
            result.forbidden.append(served_kind.constant)
            result.refusal = result.refusal or transport.failure_reason(response)
            return
        if _is_unconverted(response):
            unconverted_response = response
        elif response.code != _NOT_FOUND:
            raise SnapshotError(transport.failure_advice(response))
    if unconverted_response is not None:
        raise SnapshotError(transport.failure_advice(unconverted_response))
    result.unserved.append(served_kind.constant)


async def _read_pages(
    sender: RequestSender,
    kind_and_version: tuple[ServedKind, str],
    response: transport.HttpResponse,
    on_page: PageHandler,
    result: SnapshotResult,
) -> None:
    served_kind, version = kind_and_version
    path = transport.kind_path(served_kind, version)
    while True:
        list_page = transport.list_in_response(response)
        if list_page is None:
            raise SnapshotError(transport.failure_advice(response))
        result.revision = result.revision or transport.revision_of(list_page)
        items: Sequence[Mapping[str, Any]] = list_page.get("items") or ()
        result.counts[served_kind.constant] = result.counts.get(served_kind.constant, 0) + len(items)
        on_page(served_kind.constant, [transport.to_storage_version(served_kind, version, item) for item in items])
        continue_token = _continue_token(list_page)
        if not continue_token:
            return
        response = await _fetch_page(sender, path, f"&continue={quote(continue_token, safe='')}")
        if response.code == _GONE and (continue_token := _continue_token(transport.decode_object(response.body))):
            result.kinds_at_other_revision.append(served_kind.constant)
            response = await _fetch_page(sender, path, f"&continue={quote(continue_token, safe='')}")


def _continue_token(page: Mapping[str, Any]) -> str:
    return (page.get("metadata") or {}).get("continue") or ""


async def _fetch_page(sender: RequestSender, path: str, query: str) -> transport.HttpResponse:
    request = transport.HttpRequest("GET", f"{path}?limit={SNAPSHOT_PAGE_SIZE}{query}", timeout=MINUTE)
    return await send_with_retries(sender, request)


async def send_with_retries(sender: RequestSender, request: transport.HttpRequest) -> transport.HttpResponse:
    """Send a request, and return its response. Retry with backoff after a temporary error, such as 429.

    After REQUEST_ATTEMPTS_MAX attempts, return the last response.
    """
    response = await sender.send_request(request)
    for attempt in range(1, REQUEST_ATTEMPTS_MAX):
        if response.code not in _RETRIED_CODES or _is_unconverted(response):
            break
        await sleep_for(min(response.retry_after or (SECOND << attempt) // 8, _RETRY_DELAY_MAX))
        response = await sender.send_request(request)
    return response


def _is_unconverted(response: transport.HttpResponse) -> bool:
    return response.code == 500 and "conversion webhook" in transport.failure_reason(response)
