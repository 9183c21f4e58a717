"""Requests to a command's cluster: the platform of a data directory, or the cluster of a kubeconfig.

The client for other clusters is slow to import; requests to the local platform need only the standard library.
"""

import asyncio
import http.client
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import msgspec

from batchyard.client.transport import HttpRequest
from batchyard.server.kubeconfig.access import (
    ApiServerAccess,
    KubeconfigError,
    KubeconfigSource,
    access_of_owner,
    tls_of_owner,
)
from batchyard.server.operator.aiohttp_transport import HttpTransport
from batchyard.server.platform.data_dir import PlatformProcess, process_in

# --- reaching others ---
#
# Requests to the cluster of a kubeconfig, with any of its credential types.


def answered_elsewhere(
    read: Callable[[], Awaitable[ApiServerAccess]], path_in: Callable[[str], str]
) -> tuple[str, int, bytes]:
    """The server's URL, and the status code and body at a path, which depends on the default namespace.

    Raises OSError if the server does not respond.
    """

    async def ask() -> tuple[str, int, bytes]:
        access = await read()
        wire = HttpTransport(access, read)
        try:
            answer = await wire.ask(HttpRequest("GET", path_in(access.namespace)))
        finally:
            await wire.close()
        if not answer.code:
            raise OSError(f"{access.url}: {answer.trouble or 'the server does not respond'}")
        return access.url, answer.code, answer.body

    return asyncio.run(ask())


_ANSWERS_WITHIN: Final = 60  # seconds


class UnreachableError(Exception):
    """The cluster cannot be reached or rejects the request; the message has the reason and the remedy."""

    def __init__(self, reported: str, code: int = 0) -> None:
        super().__init__(reported)
        #: The HTTP status code; 0 without a response.
        self.code = code


#: Errors that are reported to the user as one line.
REFUSALS: Final = (UnreachableError, KubeconfigError, OSError, http.client.HTTPException)


class ClusterTarget(NamedTuple):
    """The cluster by kubeconfig or context; both '' for the platform of the data directory."""

    kubeconfig: str
    context: str
    data_dir: Path

    @property
    def is_elsewhere(self) -> bool:
        """Whether it is another cluster than the platform of the data directory."""
        return bool(self.kubeconfig or self.context)


def reading(target: ClusterTarget) -> Callable[[], Awaitable[ApiServerAccess]]:
    """A function that reads the cluster's address and credentials, also again once they have expired."""
    if target.is_elsewhere:

        async def read() -> ApiServerAccess:
            from batchyard.server.kubeconfig.loading import read_access  # noqa: PLC0415 - slow to load

            return await read_access(KubeconfigSource(target.kubeconfig, target.context))

        return read
    running = _running(target.data_dir)

    async def own() -> ApiServerAccess:
        return access_of_owner(running, target.data_dir)

    return own


def answered(target: ClusterTarget, path_in: Callable[[str], str]) -> Mapping[str, Any]:
    """The document at a path, which depends on the default namespace; UnreachableError for an error status."""
    if target.is_elsewhere:
        url, code, body = answered_elsewhere(reading(target), path_in)
    else:
        url, code, body = _answered_here(_running(target.data_dir), target.data_dir, path_in("default"))
    if code != http.client.OK:
        raise UnreachableError(f"{url}: {_trouble(code, body)}", code)
    return _decoded(body)


def _running(folder: Path) -> PlatformProcess:
    running = process_in(folder)
    if running is None:
        message = "start a platform with `batchyard up`, give its --data-dir, or select a cluster with --kubeconfig"
        raise UnreachableError(f"no platform runs in {folder}: {message}")
    return running


def _answered_here(running: PlatformProcess, folder: Path, path: str) -> tuple[str, int, bytes]:
    place = urlsplit(running.url)
    assert place.hostname is not None, "the URL of a platform has a host"
    if place.scheme == "http":
        connection = http.client.HTTPConnection(place.hostname, place.port, timeout=_ANSWERS_WITHIN)
    else:
        secured = tls_of_owner(folder)
        connection = http.client.HTTPSConnection(place.hostname, place.port, timeout=_ANSWERS_WITHIN, context=secured)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return running.url, response.status, response.read()
    finally:
        connection.close()


def _trouble(code: int, body: bytes) -> str:
    """The error message of a response: that of its Status, else the status code."""
    try:
        message = _decoded(body).get("message") or ""
    except msgspec.DecodeError:
        message = body[:200].decode("utf-8", "replace").strip()
    return f"{code}: {message}" if message else f"{code}: {http.client.responses.get(code, 'no response')}"


def _decoded(body: bytes) -> Mapping[str, Any]:
    return msgspec.json.decode(body, type=dict[str, Any])
