"""Spans sent to a collector over a real socket: delivery, retries and losses."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web

from batchyard.interfaces.controller import SpanEvent, TraceSpan
from batchyard.server.logging import spans
from batchyard.server.logging.spans import SpanExport

SPAN = TraceSpan(
    *("4057ef" + "0" * 26, "79050000aaaa0001", "50dc0000bbbb0002", "queued", 1_000_000, 3_500_000),
    {"kueue.workload.priority": 7, "k8s.namespace.name": "team"},
    (SpanEvent(2_000_000, "evicted", {"reason": "Preempted"}),),
    (("a" * 32, "b" * 16),),
    "it failed",
)
Act = Callable[[SpanExport, "Collector"], Awaitable[None]]


class Collector:
    """A collector that accepts or rejects spans."""

    def __init__(self) -> None:
        self.taken: list[dict[str, Any]] = []
        self.codes: list[int] = []
        self.asked = asyncio.Event()

    async def answer(self, request: web.Request) -> web.Response:
        assert (request.path, request.content_type) == ("/v1/traces", "application/json")
        code = self.codes.pop(0) if self.codes else 200
        if code == 200:
            (resource,) = (await request.json())["resourceSpans"]
            self.taken += resource["scopeSpans"][0]["spans"]
        self.asked.set()
        return web.Response(status=code)


def with_collector(act: Act) -> Collector:
    async def run() -> Collector:
        collector = Collector()
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", collector.answer)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        export = SpanExport(f"http://127.0.0.1:{runner.addresses[0][1]}", asyncio.get_running_loop())
        await act(export, collector)
        await export.close()
        await runner.cleanup()
        return collector

    return asyncio.run(run())


def test_close_sends_pending_spans() -> None:
    async def act(export: SpanExport, _collector: Collector) -> None:
        export.emit(SPAN)

    (reported,) = with_collector(act).taken
    assert (reported["traceId"], reported["spanId"], reported["parentSpanId"]) == SPAN[:3]
    assert (reported["startTimeUnixNano"], reported["endTimeUnixNano"]) == ("1000000000", "3500000000")
    assert reported["attributes"][0] == {"key": "kueue.workload.priority", "value": {"intValue": "7"}}
    assert reported["events"][0]["timeUnixNano"] == "2000000000"
    assert reported["links"] == [{"traceId": "a" * 32, "spanId": "b" * 16}]
    assert reported["status"] == {"code": 2, "message": "it failed"}


def test_span_export_retries_busy_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spans, "_BATCH_INTERVAL", 0.001)
    monkeypatch.setattr(spans, "_RETRY_DELAYS", (0.001,) * 4)

    async def act(export: SpanExport, collector: Collector) -> None:
        collector.codes = [503, 429]
        export.emit(SPAN)
        while not collector.taken:
            collector.asked.clear()
            await asyncio.wait_for(collector.asked.wait(), 10)

    assert len(with_collector(act).taken) == 1


def test_undelivered_spans_are_counted_as_lost_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def lost() -> str:
        export = SpanExport("http://127.0.0.1:1", asyncio.get_running_loop())
        export.emit(SPAN)
        await export.close()
        return "".join(export.texts())

    with caplog.at_level(logging.WARNING):
        reported = asyncio.run(lost())
    assert "\nbatchyard_spans_total 1\n" in reported
    assert "\nbatchyard_spans_lost_total 1\n" in reported
    assert "1 trace span could not be sent" in caplog.text


def test_spans_that_collector_rejects_at_close_are_lost(caplog: pytest.LogCaptureFixture) -> None:
    exports = []

    async def act(export: SpanExport, collector: Collector) -> None:
        collector.codes = [503]
        export.emit(SPAN)
        exports.append(export)

    with caplog.at_level(logging.WARNING):
        assert with_collector(act).taken == []
    assert exports[0].lost_count == 1
    assert "1 trace span could not be sent" in caplog.text
    assert "HTTP status 503" in caplog.text


def test_pending_spans_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spans, "_BATCH_INTERVAL", 60)
    monkeypatch.setattr(spans, "QUEUED_SPANS_MAX", 600)  # more than are sent at once

    async def act(export: SpanExport, _collector: Collector) -> None:
        for _ in range(605):
            export.emit(SPAN)
        assert export.lost_count == 5

    assert len(with_collector(act).taken) == 600
