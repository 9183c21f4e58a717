"""Requests to the cluster of a kubeconfig, with any of its credential types."""

import asyncio
from collections.abc import Awaitable, Callable

from batchyard.client.transport import HttpRequest
from batchyard.server.kubeconfig.access import ApiServerAccess
from batchyard.server.operator.aiohttp_transport import HttpTransport


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
