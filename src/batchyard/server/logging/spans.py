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

from batchyard.base.counts import count_with_noun
from batchyard.base.instant import Instant
from batchyard.interfaces.controller import SpanEvent, TraceSpan
from batchyard.metrics.definitions import metric
from batchyard.metrics.registry import gauge_text

#: Maximum queued spans. If there are more, the oldest are dropped.
QUEUED_SPANS_MAX: Final = 10_000
_SPAN_BATCH_SIZE: Final = 512
_BATCH_INTERVAL: Final = 1.0  # seconds
_SEND_TIMEOUT: Final = aiohttp.ClientTimeout(total=5)
#: Backoff before each retry, in seconds.
_RETRY_DELAYS: Final = (1.0, 2.0, 4.0, 8.0)
_CLOSE_TIMEOUT: Final = 2.0  # seconds
#: Status codes after which a batch is retried.
_RETRIED_CODES: Final = (429, 502, 503, 504)
_TRACES_PATH: Final = "/v1/traces"
_SPAN_KIND_INTERNAL: Final = 1
_STATUS_CODE_ERROR: Final = 2
_LOG: Final = logging.getLogger("batchyard.traces")


class SpanExport:
    """Exports trace spans to a collector in batches. It must be created within the asyncio loop that runs it."""

    def __init__(self, url: str, loop: asyncio.AbstractEventLoop) -> None:
        self._url = url if urlsplit(url).path.strip("/") else url.rstrip("/") + _TRACES_PATH
        self._loop = loop
        self._queued_spans: deque[TraceSpan] = deque(maxlen=QUEUED_SPANS_MAX)
        #: The batch that is being sent.
        self._batch: Sequence[TraceSpan] = ()
        self._send_task: asyncio.Task[None] | None = None
        #: The number of queued spans so far, and the number of lost spans.
        self._emitted_count = 0
        self.lost_count = 0

    def emit(self, span: TraceSpan) -> None:
        """Queue a span for export; if the queue is full, the oldest span is dropped."""
        self._emitted_count += 1
        self.lost_count += len(self._queued_spans) == QUEUED_SPANS_MAX
        self._queued_spans.append(span)
        if self._send_task is None:
            self._send_task = self._loop.create_task(self._send_batches())

    def texts(self) -> Iterator[str]:
        """Yield the metrics of the trace export, as Prometheus text."""
        yield gauge_text(metric("batchyard_spans_total"), [((), self._emitted_count)])
        yield gauge_text(metric("batchyard_spans_lost_total"), [((), self.lost_count)])

    async def close(self) -> None:
        """Send the queued spans until _CLOSE_TIMEOUT seconds have passed or the connection fails; count lost spans."""
        if self._send_task is not None:
            self._send_task.cancel()
            await asyncio.gather(self._send_task, return_exceptions=True)
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT), aiohttp.ClientSession() as session:
                while self._batch or self._queued_spans:
                    spans = self._batch or self._take_batch()
                    self._count_rejected_spans(len(spans), await self._post_spans(session, spans))
                    self._batch = ()
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            self._count_lost_spans(len(self._batch) + len(self._queued_spans), error)

    async def _send_batches(self) -> None:
        try:
            async with aiohttp.ClientSession() as session:
                while self._queued_spans:
                    if len(self._queued_spans) < _SPAN_BATCH_SIZE:
                        await _sleep(_BATCH_INTERVAL, self._loop)
                    await self._send_spans(session, self._take_batch())
                    self._batch = ()
        finally:
            self._send_task = None

    def _take_batch(self) -> Sequence[TraceSpan]:
        self._batch = [self._queued_spans.popleft() for _ in range(min(_SPAN_BATCH_SIZE, len(self._queued_spans)))]
        return self._batch

    async def _send_spans(self, http_session: aiohttp.ClientSession, spans: Sequence[TraceSpan]) -> None:
        last_error: object = ""
        for delay in (*_RETRY_DELAYS, None):
            try:
                status_code = await self._post_spans(http_session, spans)
                if status_code not in _RETRIED_CODES:
                    self._count_rejected_spans(len(spans), status_code)
                    return
                last_error = f"HTTP status {status_code}"
            except TimeoutError:
                last_error = "no response in time"
            except (aiohttp.ClientError, OSError) as error:
                last_error = error
            if delay is not None:
                await _sleep(delay, self._loop)
        self._count_lost_spans(len(spans), last_error)

    async def _post_spans(self, http_session: aiohttp.ClientSession, spans: Sequence[TraceSpan]) -> int:
        encoded_spans = msgspec.json.encode(trace_request_document(spans))
        headers = {"content-type": "application/json"}
        async with http_session.post(self._url, data=encoded_spans, headers=headers, timeout=_SEND_TIMEOUT) as response:
            return response.status

    def _count_rejected_spans(self, count: int, status_code: int) -> None:
        if status_code >= 400:
            self._count_lost_spans(count, f"HTTP status {status_code}")

    def _count_lost_spans(self, count: int, reason: object) -> None:
        self.lost_count += count
        spans_text = count_with_noun(count, "trace span")
        problem = f"{spans_text} could not be sent to {self._url}: {reason}"
        _LOG.warning("%s; check that the collector runs and that --otlp has its address", problem)


async def _sleep(seconds: float, loop: asyncio.AbstractEventLoop) -> None:
    timer_future = loop.create_future()
    timer_handle = loop.call_later(seconds, timer_future.set_result, None)
    try:
        await timer_future
    finally:
        timer_handle.cancel()


def trace_request_document(spans: Sequence[TraceSpan]) -> Mapping[str, Any]:
    """Return the JSON document of an OTLP ExportTraceServiceRequest with these spans."""
    attributes = {"service.name": "batchyard", "service.version": version("batchyard")}
    instrumentation_scope = {"name": "batchyard", "version": attributes["service.version"]}
    scope_spans = {"scope": instrumentation_scope, "spans": [_span_document(span) for span in spans]}
    return {"resourceSpans": [{"resource": {"attributes": _attribute_list(attributes)}, "scopeSpans": [scope_spans]}]}


def _span_document(span: TraceSpan) -> Mapping[str, Any]:
    return {
        "traceId": span.trace_id,
        "spanId": span.id,
        **({"parentSpanId": span.parent} if span.parent else {}),
        "name": span.name,
        "kind": _SPAN_KIND_INTERNAL,
        "startTimeUnixNano": _nanoseconds(span.start),
        "endTimeUnixNano": _nanoseconds(span.end),
        "attributes": _attribute_list(span.attributes),
        "events": [_event_document(event) for event in span.events],
        "links": [{"traceId": trace, "spanId": id_} for trace, id_ in span.links],
        "status": {"code": _STATUS_CODE_ERROR, "message": span.error} if span.error else {},
    }


def _event_document(event: SpanEvent) -> Mapping[str, Any]:
    return {"timeUnixNano": _nanoseconds(event.at), "name": event.name, "attributes": _attribute_list(event.attributes)}


def _nanoseconds(instant: Instant) -> str:
    return str(instant * 1000)


def _attribute_list(values: Mapping[str, str | int]) -> list[Mapping[str, Any]]:
    return [
        {"key": key, "value": {"stringValue": value} if isinstance(value, str) else {"intValue": str(value)}}
        for key, value in values.items()
    ]
