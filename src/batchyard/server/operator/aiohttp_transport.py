"""HTTP transport to a remote API server, based on aiohttp."""

import asyncio
import os
import re
import socket
import ssl
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from email.utils import parsedate_to_datetime
from functools import partial
from importlib.metadata import version
from typing import Any, Final

import aiohttp
import yarl

from batchyard.base.instant import SECOND, Duration, Instant
from batchyard.client.transport import HttpRequest, HttpResponse
from batchyard.interfaces.controller import Work
from batchyard.server.clocks.wall import monotonic_seconds, sleep_for
from batchyard.server.kubeconfig.access import ApiServerAccess, KubeconfigError

#: A watch that receives no data for this long is restarted, since bookmarks arrive about every minute.
SILENCE_MAX: Final = 150  # seconds
_CONNECT_TIMEOUT: Final = 10  # seconds
_UNAUTHORIZED: Final = 401
_CONNECTION_ERRORS: Final = (aiohttp.ClientError, TimeoutError, OSError)
#: The maximum size of a response to a request with a user's token, in bytes, except streams.
USER_RESPONSE_MAX: Final = 4 * 1024 * 1024
#: The maximum number of open connections for requests with the tokens of users.
USER_CONNECTIONS_MAX: Final = 100
#: The time in seconds within which the response to a stream's request must begin.
STREAM_START_TIMEOUT: Final = 60.0
#: The interval in seconds at which a stream without data is reported.
STREAM_IDLE_INTERVAL: Final = 20.0
#: Status codes of a server that is overloaded or unreachable (0), and the retry delay without a Retry-After header.
_RETRIED_CODES: Final = frozenset({0, 429, 503})
_RETRY_DELAY: Final = SECOND // 5
#: The longest Retry-After that is respected.
_RETRY_AFTER_MAX: Final = 3600  # seconds
_RETRY_AFTER_DIGITS_MAX: Final = 18
#: A request's path with its query, in which all other characters are percent-encoded.
_REQUEST_TARGET_PATTERN: Final = re.compile("/[!-~]*", re.ASCII)


class HttpTransport:
    """HTTP connections to one API server; `renew_access` loads the credentials again after a 401 response."""

    def __init__(self, access: ApiServerAccess, renew_access: Callable[[], Awaitable[ApiServerAccess]]) -> None:
        self._renew = renew_access
        self._renewal_task: asyncio.Task[None] | None = None
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._access = access
        self._http_session = _http_session()
        #: Sends requests with the tokens of users instead of the operator's credentials.
        self.user_transport = UserTransport(lambda: self._access)

    def kernel_transport(self, post: Callable[[Work], None]) -> "KernelTransport":
        """Return a Transport that delivers each response by passing a callback to `post`."""
        return KernelTransport(self, post)

    async def close(self) -> None:
        """Cancel the coroutines of `start`, and close the connections."""
        open_tasks = list(self._tasks)
        for task in open_tasks:
            task.cancel()
        await asyncio.gather(*open_tasks, return_exceptions=True)
        await self._http_session.close()
        await self.user_transport.close()

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine in the background until it completes; `close` cancels it."""
        request_task = asyncio.create_task(work)
        self._tasks[request_task] = None
        request_task.add_done_callback(self._process_task_end)

    async def send_request(self, request: HttpRequest) -> HttpResponse:
        """Send a request and return the response, with code 0 if the connection fails or the request times out.

        After a 401, load the credentials again, and retry once if there are new ones.
        """
        response = await self._send_request_once(request)
        if response.code == _UNAUTHORIZED and await self._renew_credentials():
            response = await self._send_request_once(request)
        return response

    async def send_request_with_retries(self, request: HttpRequest) -> HttpResponse:
        """Send a request and return the response; until the request's timeout, retry while the server is unavailable.

        The server is unavailable if it is overloaded (429, 503) or the connection fails.
        """
        deadline = monotonic_seconds() + request.timeout / SECOND
        while (response := await self.send_request(request)).code in _RETRIED_CODES:
            retry_delay = response.retry_after or _RETRY_DELAY
            if monotonic_seconds() + retry_delay / SECOND > deadline:
                break
            await sleep_for(retry_delay)
        return response

    async def stream(
        self, request: HttpRequest, deliver: Callable[[Sequence[bytes]], None], *, deliver_incomplete_line: bool = False
    ) -> HttpResponse:
        """Send a request, and pass the lines of a 200 response to `deliver` as they arrive. Return the outcome.

        The outcome is a 200 response without a body, a response with another status, or one with code 0 if the
        connection fails.

        `deliver` is first called without lines, when a response with status 200 begins. With `deliver_incomplete_line`,
        an incomplete last line is delivered too.
        """
        stream_timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_TIMEOUT, sock_read=SILENCE_MAX)
        try:
            async with self._open_request(request, stream_timeout) as response:
                if response.status != 200:
                    if response.status == _UNAUTHORIZED:
                        await self._renew_credentials()
                    return await _read_response(response)
                deliver(())
                incomplete_line = await _read_lines(response, deliver)
                if incomplete_line and deliver_incomplete_line:
                    deliver([incomplete_line])
        except _CONNECTION_ERRORS as error:
            return _failed_response(error)
        return HttpResponse(200)

    async def _send_request_once(self, request: HttpRequest) -> HttpResponse:
        request_timeout = aiohttp.ClientTimeout(total=request.timeout / SECOND, sock_connect=_CONNECT_TIMEOUT)
        try:
            async with self._open_request(request, request_timeout) as response:
                return await _read_response(response)
        except _CONNECTION_ERRORS as error:
            return _failed_response(error)

    def _open_request(self, request: HttpRequest, timeout: aiohttp.ClientTimeout) -> Any:
        return _open_request(self._http_session, self._access, request, timeout)

    async def _renew_credentials(self) -> bool:
        """Load the credentials again, once for all concurrent callers. Return whether new credentials are in use."""
        previous_access = self._access
        if self._renewal_task is None:
            self._renewal_task = asyncio.ensure_future(self._renew_access())
        await asyncio.shield(self._renewal_task)
        return self._access is not previous_access

    async def _renew_access(self) -> None:
        try:
            new_access = await self._renew()
            if new_access.authorization != self._access.authorization or not new_access.authorization:
                self._access = new_access
        except KubeconfigError:
            pass  # the caller gets the 401, and the next 401 triggers another attempt
        finally:
            self._renewal_task = None

    def _process_task_end(self, task: "asyncio.Task[None]") -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            asyncio.get_running_loop().call_exception_handler(
                {"message": "unexpected exception in an HTTP request of the operator", "exception": error}
            )


class UserTransport:
    """Connections to the API server on which requests carry the token of a user, and no credentials of the operator.

    Redirects are not followed, and cookies are not kept, since all users share the connections.
    """

    def __init__(self, current_access: Callable[[], ApiServerAccess]) -> None:
        self._current_access = current_access
        self._http_session: aiohttp.ClientSession | None = None

    @property
    def url(self) -> str:
        """The URL of the API server to which requests are sent now."""
        return self._current_access().url

    async def close(self) -> None:
        """Close the connections."""
        if self._http_session is not None:
            await self._http_session.close()

    async def send_request(self, token: str, request: HttpRequest) -> HttpResponse:
        """Send a request as the user of a bearer token, and return the response.

        The code is 0 if the connection fails, the request times out, or the body exceeds USER_RESPONSE_MAX.
        """
        seconds = request.timeout / SECOND
        request_timeout = aiohttp.ClientTimeout(total=seconds, connect=seconds, sock_connect=_CONNECT_TIMEOUT)
        try:
            async with self._open(token, request, request_timeout) as response:
                return await _read_limited_response(response)
        except _CONNECTION_ERRORS as error:
            return _failed_response(error)

    async def stream(
        self, token: str, request: HttpRequest, deliver: Callable[[bytes], Awaitable[bool]]
    ) -> HttpResponse:
        """Send a request as the user of a bearer token, and pass the body of a 200 response to `deliver` in parts.

        `deliver` also gets b"" when the response begins, and after each STREAM_IDLE_INTERVAL without data. The stream
        ends when `deliver` returns False, after the timeout of the request, or if no response begins within
        STREAM_START_TIMEOUT. The outcome is as for HttpTransport.stream.
        """
        stream_timeout = aiohttp.ClientTimeout(total=None, connect=_CONNECT_TIMEOUT, sock_connect=_CONNECT_TIMEOUT)
        try:
            async with asyncio.timeout(request.timeout / SECOND):
                async with await self._begin_stream(token, request, stream_timeout) as response:
                    if response.status != 200:
                        return await _read_limited_response(response)
                    part: bytes | None = b""
                    while part is not None and await deliver(part):
                        part = await _read_part(response)
        except _CONNECTION_ERRORS as error:
            return _failed_response(error)
        return HttpResponse(200)

    async def _begin_stream(self, token: str, request: HttpRequest, timeout: aiohttp.ClientTimeout) -> Any:
        """Send a request, and return the response as a context manager when its headers have arrived."""
        try:
            async with asyncio.timeout(STREAM_START_TIMEOUT) as time_limit:
                return await self._open(token, request, timeout)
        except TimeoutError as error:
            if not time_limit.expired():
                raise
            problem = f"no response within {STREAM_START_TIMEOUT:g} seconds"
            raise OSError(f"{problem}; a container that has not written anything may have no log yet") from error

    def _open(self, token: str, request: HttpRequest, timeout: aiohttp.ClientTimeout) -> Any:
        if self._http_session is None:
            self._http_session = _user_session()
        access = self._current_access().for_user(token)
        return _open_request(self._http_session, access, request, timeout, allow_redirects=False)


class KernelTransport:
    """A Transport over an HttpTransport, which delivers responses as callbacks on the controllers' event loop."""

    def __init__(self, http_transport: HttpTransport, post: Callable[[Work], None]) -> None:
        self._transport = http_transport
        self._post = post

    def send(self, request: HttpRequest, on_response: Callable[[HttpResponse], None]) -> None:
        """Send a request, and call `on_response` once with the response."""
        self._transport.start(self._send(request, on_response))

    def watch(
        self, request: HttpRequest, deliver: Callable[[Sequence[bytes]], None], on_end: Callable[[HttpResponse], None]
    ) -> None:
        """Send a watch request. Call `deliver` with the received lines as they arrive, and `on_end` once at the end."""
        self._transport.start(self._watch(request, deliver, on_end))

    async def _send(self, request: HttpRequest, on_response: Callable[[HttpResponse], None]) -> None:
        response = await self._transport.send_request(request)
        self._post(partial(on_response, response))

    async def _watch(
        self, request: HttpRequest, deliver: Callable[[Sequence[bytes]], None], on_end: Callable[[HttpResponse], None]
    ) -> None:
        response = await self._transport.stream(request, lambda lines: self._post(partial(deliver, lines)))
        self._post(partial(on_end, response))


def _http_session() -> aiohttp.ClientSession:
    # A watch occupies its connection, so the number of connections must not be limited.
    connector = aiohttp.TCPConnector(limit=0)
    return aiohttp.ClientSession(
        connector=connector, headers={"user-agent": f"batchyard/{version('batchyard')}"}, auto_decompress=True
    )


def _user_session() -> aiohttp.ClientSession:
    headers = {"user-agent": f"batchyard-page/{version('batchyard')}", "accept-encoding": "identity"}
    connector = aiohttp.TCPConnector(limit=USER_CONNECTIONS_MAX)
    return aiohttp.ClientSession(connector=connector, headers=headers, cookie_jar=aiohttp.DummyCookieJar())


def _open_request(
    http_session: aiohttp.ClientSession,
    access: ApiServerAccess,
    request: HttpRequest,
    timeout: aiohttp.ClientTimeout,
    *,
    allow_redirects: bool = True,
) -> Any:
    if not _REQUEST_TARGET_PATTERN.fullmatch(request.path):
        raise aiohttp.InvalidURL(request.path, "the path has characters that are not percent-encoded")
    headers = [("content-type", request.content_type), ("accept", request.accept), *access.headers]
    if access.authorization:
        headers.append(("authorization", access.authorization))
    return http_session.request(
        request.method,
        yarl.URL(access.url + request.path, encoded=True),  # must not be normalized: authorization is for this path
        data=request.body or None,
        headers=headers,
        timeout=timeout,
        ssl=access.tls,
        proxy=access.proxy,
        server_hostname=access.server_name or None,
        allow_redirects=allow_redirects,
    )


async def _read_response(response: aiohttp.ClientResponse) -> HttpResponse:
    wait, date = response.headers.get("retry-after", ""), response.headers.get("date", "")
    return HttpResponse(response.status, await response.read(), _parse_retry_after(wait), server_time=_parse_date(date))


async def _read_limited_response(response: aiohttp.ClientResponse) -> HttpResponse:
    """Read a response of at most USER_RESPONSE_MAX bytes; raise OSError if it is longer."""
    parts, size = list[bytes](), 0
    async for part in response.content.iter_any():
        size += len(part)
        if size > USER_RESPONSE_MAX:
            raise OSError(f"the response has more than {USER_RESPONSE_MAX} bytes")
        parts.append(part)
    return HttpResponse(response.status, b"".join(parts))


async def _read_part(response: aiohttp.ClientResponse) -> bytes | None:
    """Return the next part of a body, b"" if none arrives within STREAM_IDLE_INTERVAL, and None at the end."""
    try:
        async with asyncio.timeout(STREAM_IDLE_INTERVAL):
            part = await response.content.readany()
    except TimeoutError:
        return b""
    return part or None


async def _read_lines(response: aiohttp.ClientResponse, deliver_lines: Callable[[Sequence[bytes]], None]) -> bytes:
    """Pass the complete lines of a response to `deliver_lines` as they arrive, without empty ones.

    Return the incomplete last line.
    """
    incomplete_line_parts: list[bytes] = []
    async for chunk in response.content.iter_any():
        first_part, *later_parts = chunk.split(b"\n")
        incomplete_line_parts.append(first_part)
        if later_parts:
            lines = [b"".join(incomplete_line_parts), *later_parts[:-1]]
            incomplete_line_parts = [later_parts[-1]]
            deliver_lines([line for line in lines if line])
    return b"".join(incomplete_line_parts)


def _parse_retry_after(text: str) -> Duration | None:
    is_number = text.isdecimal() and len(text) <= _RETRY_AFTER_DIGITS_MAX
    return min(int(text), _RETRY_AFTER_MAX) * SECOND if is_number else None


def _parse_date(date: str) -> Instant:
    try:
        return int(parsedate_to_datetime(date).timestamp()) * SECOND
    except ValueError:
        return 0


def _failed_response(error: BaseException) -> HttpResponse:
    was_sent = not isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError)
    error_message = str(error) or type(error).__name__
    if isinstance(error, aiohttp.ClientConnectorError):
        error_message = f"{error.host}:{error.port}: {_connection_error_text(error.os_error)}"
    elif isinstance(error, aiohttp.ClientPayloadError):  # aiohttp's message blames the server
        error_message = "the connection was closed before the response was complete"
    return HttpResponse(0, trouble=error_message, was_sent=was_sent)


def _connection_error_text(error: OSError) -> str:
    """Return why a connection failed. The operating system's text replaces asyncio's, which names only the call."""
    if error.errno and not isinstance(error, ssl.SSLError | socket.gaierror):
        return os.strerror(error.errno)
    return error.strerror or str(error)
