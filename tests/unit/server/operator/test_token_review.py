"""Reviews of the tokens and permissions of page users: bounded, shared, and valid for a limited time."""

import asyncio
import json

import pytest
from aiohttp import web

from batchyard.api import scheme
from batchyard.api.meta import Key
from batchyard.apiserver.auth.authorization import RequestAttributes
from batchyard.apiserver.dashboard import DASHBOARD_MODELS_PATH
from batchyard.base.instant import SECOND
from batchyard.server.operator import dashboard, token_review
from batchyard.server.operator.token_review import CACHE_LIFETIME, TOKEN_REVIEWS_MAX, ReviewCache
from unit.apiserver.api import OWNER
from unit.server.operator.page_servers import OperatorPage, run_page, wait_until

OVERVIEW = f"{DASHBOARD_MODELS_PATH}overview"
WORKLOAD = f"{DASHBOARD_MODELS_PATH}workload?namespace=team&name=w"


def test_full_cache_drops_the_oldest_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_review, "CACHE_SIZE_MAX", 2)
    cache: ReviewCache[str, int] = ReviewCache(lambda: 0)
    for key, answer in (("a", 1), ("b", 2), ("a", 3), ("c", 4)):
        cache.put(key, answer, 0)
    assert [cache.get(key) for key in "abc"] == [(0, 3), None, (0, 4)]


def test_answer_expires() -> None:
    now = [0]
    cache: ReviewCache[str, int] = ReviewCache(lambda: now[0])
    cache.put("a", 1, 0)
    now[0] = CACHE_LIFETIME - 1
    assert cache.get("a") == (0, 1)
    now[0] = CACHE_LIFETIME
    assert cache.get("a") is None
    cache.put("b", 1, 0)
    assert cache.get("b") is None, "it is as old as its question"


def hold_token_reviews(page: OperatorPage) -> asyncio.Event:
    """Let TokenReviews wait for the returned event."""
    is_released = asyncio.Event()

    async def respond(request: web.Request) -> None:
        if request.path.endswith("/tokenreviews"):
            await is_released.wait()

    page.server.respond = respond
    return is_released


def test_token_reviews_in_flight_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_review, "_TOKEN_REVIEW_WAIT", 0.05)

    async def act(page: OperatorPage) -> None:
        is_released = hold_token_reviews(page)
        asked = [asyncio.create_task(page.ask("GET", OVERVIEW, f"x{i}")) for i in range(TOKEN_REVIEWS_MAX)]
        await wait_until(lambda: page.server.count_reviews("tokenreviews") == TOKEN_REVIEWS_MAX)
        code, status = await page.ask("GET", OVERVIEW, page.reader)
        assert (code, status["reason"], status["details"]["retryAfterSeconds"]) == (429, "TooManyRequests", 1)
        assert page.server.count_reviews("tokenreviews") == TOKEN_REVIEWS_MAX
        is_released.set()
        assert [code for code, _ in await asyncio.gather(*asked)] == [401] * TOKEN_REVIEWS_MAX
        assert (await page.ask("GET", OVERVIEW, page.reader))[0] == 200

    run_page(act)


def test_concurrent_requests_with_a_token_share_a_review() -> None:
    async def act(page: OperatorPage) -> None:
        is_released = hold_token_reviews(page)
        asked = [asyncio.create_task(page.ask("GET", OVERVIEW, page.reader)) for _ in range(20)]
        await wait_until(lambda: page.server.count_reviews("tokenreviews") == 1)
        is_released.set()
        assert [code for code, _ in await asyncio.gather(*asked)] == [200] * 20
        assert page.server.count_reviews("tokenreviews") == 1

    run_page(act)


def test_failed_token_review_is_not_an_invalid_token() -> None:
    async def act(page: OperatorPage) -> None:
        codes = iter([500, 403])

        async def respond(request: web.Request) -> web.Response | None:
            code = next(codes, None) if request.path.endswith("/tokenreviews") else None
            return None if code is None else web.json_response({"kind": "Status"}, status=code)

        page.server.respond = respond
        for code in (500, 403):
            answered, status = await page.ask("GET", OVERVIEW, page.reader)
            assert (answered, status["reason"]) == (503, "ServiceUnavailable")
            assert f"responded to the TokenReview with {code}" in status["message"]
        assert (await page.ask("GET", OVERVIEW, page.reader))[0] == 200

    run_page(act)


def test_token_that_is_not_printable_ascii_is_invalid() -> None:
    async def act(page: OperatorPage) -> None:
        port = int(page.url.rpartition(":")[2])
        for token in (b"\xff", b"\xc3\xa9", b"a\x01b"):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            request = b"GET " + OVERVIEW.encode() + b" HTTP/1.1\r\nHost: a\r\nConnection: close\r\n"
            writer.write(request + b"Authorization: Bearer " + token + b"\r\n\r\n")
            status_line = await reader.readline()
            writer.close()
            assert status_line.split()[1] in {b"400", b"401"}, token  # 400: not even a header
        assert page.server.received == []

    run_page(act)


def test_expired_decision_is_not_trusted() -> None:
    async def act(page: OperatorPage) -> None:
        assert (await page.ask("GET", WORKLOAD, page.reader))[0] == 200
        page.server.revoke("reader")
        page.now = CACHE_LIFETIME
        assert (await page.ask("GET", WORKLOAD, page.reader))[0] == 404
        assert (await page.ask("GET", WORKLOAD, page.editor))[0] == 200
        page.server.respond = no_access_reviews
        page.now += CACHE_LIFETIME
        assert (await page.ask("GET", WORKLOAD, page.editor))[0] == 404, "nothing is shown without a review"

    run_page(act)


def test_decision_is_denied_from_its_expiry_until_the_next_review() -> None:
    async def act(page: OperatorPage) -> None:
        attributes = RequestAttributes(OWNER, "list", resource="pods")
        assert not page.reviewer.decide(attributes).allowed
        for time in (0, CACHE_LIFETIME):
            page.now = time
            assert not page.reviewer.decide(attributes).allowed
            await page.reviewer.send_reviews()
            page.now = time + CACHE_LIFETIME - 1
            assert page.reviewer.decide(attributes).allowed

    run_page(act)


async def no_access_reviews(request: web.Request) -> web.Response | None:
    """Fail all SubjectAccessReviews."""
    return web.Response(status=500) if request.path.endswith("/subjectaccessreviews") else None


def test_stream_ends_when_another_request_learns_that_a_right_was_revoked() -> None:
    async def act(page: OperatorPage) -> None:
        async with page.open("GET", f"{WORKLOAD}&watch=true", page.reader) as response:
            assert "set" in json.loads(await response.content.readline())
            page.server.revoke("reader")
            page.now = CACHE_LIFETIME
            assert (await page.ask("GET", WORKLOAD, page.reader))[0] == 404
            async with asyncio.timeout(dashboard._ACCESS_RECHECK_INTERVAL / 2):
                assert await response.content.read() == b""

    run_page(act)


def test_stream_sends_nothing_that_was_computed_before_a_right_was_revoked() -> None:
    async def act(page: OperatorPage) -> None:
        async with page.open("GET", f"{WORKLOAD}&watch=true", page.reader) as response:
            assert "set" in json.loads(await response.content.readline())
            page.server.revoke("reader")
            page.now = CACHE_LIFETIME - SECOND
            changed = {**page.workload, "spec": {**page.workload["spec"], "active": False}}
            page.server.api.stored.store.put(Key(scheme.WORKLOAD, "team", "w"), changed)
            page.stream_hub.mark_streams_stale()
            async with asyncio.timeout(20):
                assert await response.content.read() == b""

    run_page(act)


def test_decisions_of_an_open_stream_are_renewed_before_they_expire(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dashboard, "_ACCESS_RECHECK_INTERVAL", 0.01)

    async def act(page: OperatorPage) -> None:
        async with page.open("GET", f"{WORKLOAD}&watch=true", page.reader) as response:
            assert "set" in json.loads(await response.content.readline())
            for _ in range(3):
                page.now += CACHE_LIFETIME - SECOND
                page.server.received.clear()
                await wait_until(lambda: page.server.count_reviews("subjectaccessreviews") > 0)
            page.server.revoke("reader")
            page.now += CACHE_LIFETIME - SECOND
            async with asyncio.timeout(20):
                later_lines = (await response.content.read()).splitlines()
            assert [sorted(json.loads(line)) for line in later_lines] == [["speed", "time"]] * len(later_lines)

    run_page(act)
