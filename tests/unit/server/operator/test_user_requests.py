"""Requests with the token of a user are sent only as exactly this user, and few at once."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from aiohttp import web

from batchyard.apiserver.request import MASTERS_GROUP, StatusError, UserInfo
from batchyard.base.instant import Instant
from batchyard.client.transport import HttpRequest
from batchyard.server.kubeconfig.access import ApiServerAccess
from batchyard.server.operator import aiohttp_transport, user_requests
from batchyard.server.operator.aiohttp_transport import UserTransport
from batchyard.server.operator.token_review import CACHE_LIFETIME
from batchyard.server.operator.user_requests import REQUESTS_PER_FLOW_MAX, UserRequests
from tls_server import listening
from unit.server.operator.page_servers import wait_until

ANN = UserInfo("ann", ("team", "system:authenticated"), "uid-of-ann", (("scopes", ("a", "b")), ("node", ("n",))))
BOB = UserInfo("bob", ("system:authenticated",))
OWNER = UserInfo("owner", (MASTERS_GROUP,))
GET = HttpRequest("GET", "/version")
LOG = HttpRequest("GET", "/log")


class TokenServer:
    """An API server to which tokens are names of users. It answers requests once they are released."""

    def __init__(self) -> None:
        self.users = {user.name: user for user in (ANN, BOB, OWNER)}
        self.review_count = 0
        self.open_count = 0
        self.is_released = asyncio.Event()
        self.is_released.set()
        self.access = ApiServerAccess("", True, "", None, "", "default")
        self.now: Instant = 0
        self.transport = UserTransport(lambda: self.access)
        self.requests = UserRequests(self.transport, lambda: self.now)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer a SelfSubjectReview, or another request after its release."""
        user = self.users[request.headers["authorization"].removeprefix("Bearer ")]
        if request.path.endswith("/selfsubjectreviews"):
            self.review_count += 1
            return web.json_response({"kind": "SelfSubjectReview", "status": {"userInfo": user.to_json()}}, status=201)
        self.open_count += 1
        try:
            await self.is_released.wait()
        finally:
            self.open_count -= 1
        return web.json_response({"kind": "Version"})

    async def send(self, user: UserInfo) -> int:
        """Send a request as a user; return the code of the response."""
        try:
            await self.requests.send(user.name, user, GET)
        except StatusError as error:
            return error.code
        return 200

    async def open_log(self, user: UserInfo) -> int:
        """Open a log as a user, and read it to its end; return the code of the response."""

        async def deliver(_part: bytes) -> bool:
            return True

        try:
            await self.requests.stream_log(user.name, user, LOG, deliver)
        except StatusError as error:
            return error.code
        return 200


def run_server(act: Callable[[TokenServer], Awaitable[None]]) -> None:
    """Run a test against an API server."""

    async def whole() -> None:
        server = TokenServer()
        async with listening([web.route("*", "/{path:.*}", server.answer)]) as port:
            server.access = server.access._replace(url=f"http://127.0.0.1:{port}")
            try:
                await act(server)
            finally:
                server.is_released.set()
                await server.transport.close()

    asyncio.run(whole())


@pytest.mark.parametrize(
    "executing_user",
    [
        ANN._replace(name="bob"),
        ANN._replace(uid="other"),
        ANN._replace(groups=(*ANN.groups, MASTERS_GROUP)),
        ANN._replace(groups=("system:authenticated",)),
        ANN._replace(extra=()),
        ANN._replace(extra=(("scopes", ("a", "b", "c")), ("node", ("n",)))),
    ],
)
def test_nothing_is_sent_as_a_user_that_differs(executing_user: UserInfo) -> None:
    async def act(server: TokenServer) -> None:
        server.users["ann"] = executing_user
        with pytest.raises(StatusError) as rejected:
            await server.requests.send("ann", ANN, GET)
        assert rejected.value.code == 403
        assert f"with the token of ann as {executing_user.name}" in str(rejected.value)
        server.users["ann"] = ANN
        assert await server.send(ANN) == 200

    run_server(act)


def test_order_of_groups_and_attributes_does_not_matter() -> None:
    async def act(server: TokenServer) -> None:
        reversed_extra = tuple((key, values[::-1]) for key, values in ANN.extra[::-1])
        server.users["ann"] = ANN._replace(groups=ANN.groups[::-1], extra=reversed_extra)
        assert await server.send(ANN) == 200

    run_server(act)


def test_confirmed_user_is_checked_again_for_another_user_url_or_time() -> None:
    async def act(server: TokenServer) -> None:
        assert [await server.send(ANN), await server.send(ANN), server.review_count] == [200, 200, 1]
        server.users["ann"] = promoted = ANN._replace(groups=(*ANN.groups, MASTERS_GROUP))
        assert [await server.send(promoted), server.review_count] == [200, 2]
        server.access = server.access._replace(url=server.access.url.replace("127.0.0.1", "localhost"))
        assert [await server.send(promoted), server.review_count] == [200, 3]
        server.now = CACHE_LIFETIME
        assert [await server.send(promoted), server.review_count] == [200, 4]

    run_server(act)


def test_requests_in_flight_of_a_user_are_limited() -> None:
    async def act(server: TokenServer) -> None:
        server.is_released.clear()
        sent = [asyncio.create_task(server.send(ANN)) for _ in range(REQUESTS_PER_FLOW_MAX)]
        sent.append(asyncio.create_task(server.send(BOB)))
        await wait_until(lambda: server.open_count == REQUESTS_PER_FLOW_MAX + 1)
        with pytest.raises(StatusError) as rejected:
            await server.requests.send("ann", ANN, GET)
        assert (rejected.value.code, rejected.value.details) == (429, {"retryAfterSeconds": 1})
        server.is_released.set()
        assert await asyncio.gather(*sent) == [200] * len(sent)
        assert await server.send(ANN) == 200

    run_server(act)


def test_requests_in_flight_of_all_users_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_requests, "REQUESTS_MAX", 2)

    async def act(server: TokenServer) -> None:
        server.is_released.clear()
        sent = [asyncio.create_task(server.send(user)) for user in (ANN, BOB)]
        await wait_until(lambda: server.open_count == 2)
        assert await server.send(OWNER) == 429
        server.is_released.set()
        assert await asyncio.gather(*sent) == [200, 200]

    run_server(act)


def test_some_logs_are_reserved_for_the_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_requests, "DASHBOARD_STREAMS_MAX", 3)
    monkeypatch.setattr(user_requests, "DASHBOARD_STREAMS_FOR_OWNER", 2)

    async def act(server: TokenServer) -> None:
        server.is_released.clear()
        opened = [asyncio.create_task(server.open_log(ANN))]
        await wait_until(lambda: server.open_count == 1)
        assert await server.open_log(BOB) == 429
        opened += [asyncio.create_task(server.open_log(OWNER)) for _ in range(2)]
        await wait_until(lambda: server.open_count == 3)
        assert await server.open_log(OWNER) == 429
        server.is_released.set()
        assert await asyncio.gather(*opened) == [200] * 3

    run_server(act)


def test_log_ends_if_the_api_server_sends_no_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aiohttp_transport, "STREAM_START_TIMEOUT", 0.05)

    async def act(server: TokenServer) -> None:
        server.is_released.clear()
        with pytest.raises(StatusError, match=r"no response within 0[.]05 seconds"):
            async with asyncio.timeout(20):
                await server.requests.stream_log("ann", ANN, LOG, _unreachable)
        server.is_released.set()
        assert await server.send(ANN) == 200

    run_server(act)


async def _unreachable(_part: bytes) -> bool:
    raise AssertionError("no response has begun")
