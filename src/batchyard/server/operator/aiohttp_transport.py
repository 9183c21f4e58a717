"""Requests to an API server elsewhere, over the network. No logic beyond carrying."""

import asyncio
import os
import socket
import ssl
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from email.utils import parsedate_to_datetime
from functools import partial
from importlib.metadata import version
from typing import Any, Final

import aiohttp

from batchyard.base.instant import SECOND, Duration, Instant
from batchyard.client.transport import HttpAnswer, HttpRequest
from batchyard.interfaces.controller import Work
from batchyard.server.clocks.timers import passing
from batchyard.server.clocks.wall import ticks
from batchyard.server.kubeconfig.access import Access, KubeconfigError

#: A watch that says nothing for so long is asked for anew: bookmarks come about every minute.
SILENCE_MAX: Final = 150  # seconds
_CONNECTS_WITHIN: Final = 10  # seconds
_UNAUTHORIZED: Final = 401
_BROKEN: Final = (aiohttp.ClientError, TimeoutError, OSError)
#: What a server says that has no time now, or does not answer; and when it is asked again unless it says so.
_NOT_NOW: Final = frozenset({0, 429, 503})
_AGAIN_AFTER: Final = SECOND // 5
#: The longest that a server may have us wait, however long it says.
_WAITS_MAX: Final = 3600  # seconds
_DIGITS_MAX: Final = 18


class HttpTransport:
    """Carries requests to one server. `renew` reads the credentials again when they are good no more."""

    def __init__(self, access: Access, renew: Callable[[], Awaitable[Access]]) -> None:
        self._renew = renew
        self._renewing: asyncio.Task[None] | None = None
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._access = access
        self._session = _session()

    def carrying_to(self, post: Callable[[Work], None]) -> "Carrier":
        """A transport whose answers become work of a kernel."""
        return Carrier(self, post)

    async def close(self) -> None:
        """Break off all that is under way."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._session.close()

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Let something run until it ends, or until this is closed."""
        task = asyncio.create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._ended)

    async def ask(self, request: HttpRequest) -> HttpAnswer:
        """The answer to a request; asked again with new credentials, once, where the old ones are not good."""
        answer = await self._asked(request)
        if answer.code == _UNAUTHORIZED and await self._has_renewed():
            answer = await self._asked(request)
        return answer

    async def ask_patiently(self, request: HttpRequest) -> HttpAnswer:
        """The answer; asked again where the server has no time or is not there, as long as the request may take."""
        until = ticks() + request.within / SECOND
        while (answer := await self.ask(request)).code in _NOT_NOW:
            wait = answer.retry_after or _AGAIN_AFTER
            if ticks() + wait / SECOND > until:
                break
            await passing(wait)
        return answer

    async def stream(
        self, request: HttpRequest, told: Callable[[Sequence[bytes]], None], *, to_the_end: bool = False
    ) -> HttpAnswer:
        """Tell of the lines of an answer as they come; `to_the_end` also of one without an end. How it ended."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECTS_WITHIN, sock_read=SILENCE_MAX)
        try:
            async with self._request(request, timeout) as response:
                if response.status != 200:
                    if response.status == _UNAUTHORIZED:
                        await self._has_renewed()
                    return await _answer(response)
                told(())
                rest = await _read_lines(response, told)
                if rest and to_the_end:
                    told([rest])
        except _BROKEN as error:
            return _broken(error)
        return HttpAnswer(200)

    async def _asked(self, request: HttpRequest) -> HttpAnswer:
        timeout = aiohttp.ClientTimeout(total=request.within / SECOND, sock_connect=_CONNECTS_WITHIN)
        try:
            async with self._request(request, timeout) as response:
                return await _answer(response)
        except _BROKEN as error:
            return _broken(error)

    def _request(self, request: HttpRequest, timeout: aiohttp.ClientTimeout) -> Any:
        access = self._access
        headers = [("content-type", request.content_type), ("accept", request.accept), *access.headers]
        if access.authorization:
            headers.append(("authorization", access.authorization))
        return self._session.request(
            request.method,
            access.url + request.path,
            data=request.body or None,
            headers=headers,
            timeout=timeout,
            ssl=access.tls,
            proxy=access.proxy,
            server_hostname=access.server_name or None,
        )

    async def _has_renewed(self) -> bool:
        """Read the credentials again, once for all who ask; whether they are others."""
        before = self._access
        if self._renewing is None:
            self._renewing = asyncio.ensure_future(self._read_again())
        await asyncio.shield(self._renewing)
        return self._access is not before

    async def _read_again(self) -> None:
        try:
            access = await self._renew()
            if access.authorization != self._access.authorization or not access.authorization:
                self._access = access
        except KubeconfigError:
            pass  # the server's refusal is told, and the next one is another occasion
        finally:
            self._renewing = None

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            asyncio.get_running_loop().call_exception_handler({"message": "a defect", "exception": error})


class Carrier:
    """A Transport (batchyard.client.transport) over one connection to a server, for one kernel."""

    def __init__(self, wire: HttpTransport, post: Callable[[Work], None]) -> None:
        self._wire = wire
        self._post = post

    def send(self, request: HttpRequest, answered: Callable[[HttpAnswer], None]) -> None:
        """Send a request; tell of its answer, once."""
        self._wire.start(self._send(request, answered))

    def watch(
        self,
        request: HttpRequest,
        told: Callable[[Sequence[bytes]], None],
        ended: Callable[[HttpAnswer], None],
    ) -> None:
        """Send a request whose answer goes on; tell of its lines as they come, and of its end, once."""
        self._wire.start(self._watch(request, told, ended))

    async def _send(self, request: HttpRequest, answered: Callable[[HttpAnswer], None]) -> None:
        answer = await self._wire.ask(request)
        self._post(partial(answered, answer))

    async def _watch(
        self,
        request: HttpRequest,
        told: Callable[[Sequence[bytes]], None],
        ended: Callable[[HttpAnswer], None],
    ) -> None:
        answer = await self._wire.stream(request, lambda lines: self._post(partial(told, lines)))
        self._post(partial(ended, answer))


def _session() -> aiohttp.ClientSession:
    # Watches hold connections for as long as they last, so their number must have no bound.
    connector = aiohttp.TCPConnector(limit=0)
    return aiohttp.ClientSession(
        connector=connector, headers={"user-agent": f"batchyard/{version('batchyard')}"}, auto_decompress=True
    )


async def _answer(response: aiohttp.ClientResponse) -> HttpAnswer:
    wait, date = response.headers.get("retry-after", ""), response.headers.get("date", "")
    return HttpAnswer(response.status, await response.read(), _seconds(wait), told_at=_instant(date))


async def _read_lines(response: aiohttp.ClientResponse, told: Callable[[Sequence[bytes]], None]) -> bytes:
    """Tell of whole lines; what came after the last."""
    rest: list[bytes] = []
    async for chunk in response.content.iter_any():
        first, *others = chunk.split(b"\n")
        rest.append(first)
        if others:
            lines = [b"".join(rest), *others[:-1]]
            rest = [others[-1]]
            told([line for line in lines if line])
    return b"".join(rest)


def _seconds(text: str) -> Duration | None:
    is_number = text.isdecimal() and len(text) <= _DIGITS_MAX
    return min(int(text), _WAITS_MAX) * SECOND if is_number else None


def _instant(date: str) -> Instant:
    """The instant of a header `Date`; 0 where it is none."""
    try:
        return int(parsedate_to_datetime(date).timestamp()) * SECOND
    except ValueError:
        return 0


def _broken(error: BaseException) -> HttpAnswer:
    """No answer; whether the request went out is known only where there was no connection."""
    was_sent = not isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError)
    told = str(error) or type(error).__name__
    if isinstance(error, aiohttp.ClientConnectorError):
        told = f"{error.host}:{error.port}: {_reason(error.os_error)}"
    elif isinstance(error, aiohttp.ClientPayloadError):  # it says so as if the server had refused something
        told = "the connection broke off within an answer"
    return HttpAnswer(0, trouble=told, was_sent=was_sent)


def _reason(error: OSError) -> str:
    """Why there is no connection. Of a call that failed asyncio tells which; the system knows why."""
    if error.errno and not isinstance(error, ssl.SSLError | socket.gaierror):
        return os.strerror(error.errno)
    return error.strerror or str(error)
