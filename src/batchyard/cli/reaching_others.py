"""Asking a cluster elsewhere, with the credentials of a kubeconfig, whatever these are."""

import asyncio
from collections.abc import Awaitable, Callable

from batchyard.client.transport import HttpRequest
from batchyard.server.kubeconfig.access import Access
from batchyard.server.operator.aiohttp_transport import HttpTransport


def answered_elsewhere(read: Callable[[], Awaitable[Access]], path_in: Callable[[str], str]) -> tuple[str, int, bytes]:
    """Where it was asked, the code and the body of its answer at a path, given the namespace that we work in.

    A server that does not answer raises OSError.
    """

    async def ask() -> tuple[str, int, bytes]:
        access = await read()
        wire = HttpTransport(access, read)
        try:
            answer = await wire.ask(HttpRequest("GET", path_in(access.namespace)))
        finally:
            await wire.close()
        if not answer.code:
            raise OSError(f"{access.url}: {answer.trouble or 'it does not answer'}")
        return access.url, answer.code, answer.body

    return asyncio.run(ask())
