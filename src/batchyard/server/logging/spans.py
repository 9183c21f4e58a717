"""Trace export: sends trace spans in batches to a collector, as OTLP over HTTP in JSON.

A failed batch is retried a few times and then dropped, so that no other work waits for the collector. The queue is
bounded. Source: opentelemetry-proto, docs/specification.md (OTLP/HTTP) and its JSON mapping, where ids are hexadecimal.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp
import msgspec

from batchyard.base.instant import Instant
from batchyard.interfaces.controller import SpanEvent, TraceSpan
from batchyard.metrics.definitions import metric
from batchyard.metrics.registry import text_of

#: Maximum queued spans. If there are more, the oldest are dropped.
WAITING_MAX: Final = 10_000
_AT_ONCE: Final = 512
_EVERY: Final = 1.0  # seconds
_SENT_WITHIN: Final = aiohttp.ClientTimeout(total=5)
#: Backoff before each retry, in seconds.
_AGAIN_AFTER: Final = (1.0, 2.0, 4.0, 8.0)
_ENDS_WITHIN: Final = 2.0  # seconds
#: Status codes after which a batch is retried.
_LATER: Final = (429, 502, 503, 504)
_PATH: Final = "/v1/traces"
_INTERNAL: Final = 1
_ERROR: Final = 2
_LOG: Final = logging.getLogger("batchyard.traces")


class SpanExport:
    """Exports queued trace spans to a collector. It must be created within the asyncio loop that runs it."""

    def __init__(self, url: str, loop: asyncio.AbstractEventLoop) -> None:
        self._url = url if urlsplit(url).path.strip("/") else url.rstrip("/") + _PATH
        self._loop = loop
        self._waiting: deque[TraceSpan] = deque(maxlen=WAITING_MAX)
        #: The batch that is being sent.
        self._under_way: Sequence[TraceSpan] = ()
        self._sending: asyncio.Task[None] | None = None
        #: The number of queued spans so far, and the number of lost spans.
        self._emitted = 0
        self.lost = 0

    def emit(self, span: TraceSpan) -> None:
        """Queue a span for export; if the queue is full, the oldest span is dropped."""
        self._emitted += 1
        self.lost += len(self._waiting) == WAITING_MAX
        self._waiting.append(span)
        if self._sending is None:
            self._sending = self._loop.create_task(self._send_all())

    def texts(self) -> Iterator[str]:
        """Yield the metrics of the trace export."""
        yield text_of(metric("batchyard_spans_total"), [((), self._emitted)])
        yield text_of(metric("batchyard_spans_lost_total"), [((), self.lost)])

    async def close(self) -> None:
        """Send the queued spans, as far as possible within _ENDS_WITHIN seconds, and stop."""
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.gather(self._sending, return_exceptions=True)
        try:
            async with asyncio.timeout(_ENDS_WITHIN), aiohttp.ClientSession() as session:
                while self._under_way or self._waiting:
                    await self._post(session, self._under_way or self._take())
                    self._under_way = ()
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            self._lose(len(self._under_way) + len(self._waiting), error)

    async def _send_all(self) -> None:
        try:
            async with aiohttp.ClientSession() as session:
                while self._waiting:
                    if len(self._waiting) < _AT_ONCE:
                        await _pause(_EVERY, self._loop)
                    await self._send(session, self._take())
                    self._under_way = ()
        finally:
            self._sending = None

    def _take(self) -> Sequence[TraceSpan]:
        """Remove the next batch of spans from the queue, and return it."""
        self._under_way = [self._waiting.popleft() for _ in range(min(_AT_ONCE, len(self._waiting)))]
        return self._under_way

    async def _send(self, session: aiohttp.ClientSession, spans: Sequence[TraceSpan]) -> None:
        """Send a batch of spans, with retries. If all attempts fail, the batch is lost."""
        trouble: object = ""
        for pause in (*_AGAIN_AFTER, None):
            try:
                code = await self._post(session, spans)
                if code not in _LATER:
                    if code >= 400:
                        self._lose(len(spans), f"HTTP status {code}")
                    return
                trouble = f"HTTP status {code}"
            except (TimeoutError, aiohttp.ClientError, OSError) as error:
                trouble = error
            if pause is not None:
                await _pause(pause, self._loop)
        self._lose(len(spans), trouble)

    async def _post(self, session: aiohttp.ClientSession, spans: Sequence[TraceSpan]) -> int:
        body = msgspec.json.encode(document_of(spans))
        headers = {"content-type": "application/json"}
        async with session.post(self._url, data=body, headers=headers, timeout=_SENT_WITHIN) as answer:
            return answer.status

    def _lose(self, count: int, why: object) -> None:
        self.lost += count
        _LOG.warning("%d trace spans are lost, because they could not be sent to %s: %s", count, self._url, why)


async def _pause(seconds: float, loop: asyncio.AbstractEventLoop) -> None:
    done = loop.create_future()
    handle = loop.call_later(seconds, done.set_result, None)
    try:
        await done
    finally:
        handle.cancel()


def document_of(spans: Sequence[TraceSpan]) -> Mapping[str, Any]:
    """Convert spans to an OTLP ExportTraceServiceRequest document."""
    about = {"service.name": "batchyard", "service.version": version("batchyard")}
    scope = {"name": "batchyard", "version": about["service.version"]}
    within = {"scope": scope, "spans": [_span_document(span) for span in spans]}
    return {"resourceSpans": [{"resource": {"attributes": _attributes(about)}, "scopeSpans": [within]}]}


def _span_document(span: TraceSpan) -> Mapping[str, Any]:
    return {
        "traceId": span.trace,
        "spanId": span.id,
        **({"parentSpanId": span.parent} if span.parent else {}),
        "name": span.name,
        "kind": _INTERNAL,
        "startTimeUnixNano": _nanoseconds(span.start),
        "endTimeUnixNano": _nanoseconds(span.end),
        "attributes": _attributes(span.attributes),
        "events": [_event(event) for event in span.events],
        "links": [{"traceId": trace, "spanId": id_} for trace, id_ in span.links],
        "status": {"code": _ERROR, "message": span.error} if span.error else {},
    }


def _event(event: SpanEvent) -> Mapping[str, Any]:
    return {"timeUnixNano": _nanoseconds(event.at), "name": event.name, "attributes": _attributes(event.attributes)}


def _nanoseconds(instant: Instant) -> str:
    return str(instant * 1000)


def _attributes(values: Mapping[str, str | int]) -> list[Mapping[str, Any]]:
    return [
        {"key": key, "value": {"stringValue": value} if isinstance(value, str) else {"intValue": str(value)}}
        for key, value in values.items()
    ]
