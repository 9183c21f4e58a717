"""A transport that carries no writes: whoever has it can change nothing, whatever he tries."""

from collections.abc import Callable, Sequence
from typing import Final

from batchyard.client.wire import HttpAnswer, HttpRequest, Transport

_READS: Final = "GET"


class WriteRefusedError(Exception):
    """Somebody who is to read only has tried to write: a defect."""


class ReadingOnly:
    """See the module. Carries requests over another transport."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def send(self, request: HttpRequest, answered: Callable[[HttpAnswer], None]) -> None:
        """Send a request that reads; WriteRefusedError for any other."""
        if request.method != _READS or request.body:
            raise WriteRefusedError(f"{request.method} {request.path}")
        self._transport.send(request, answered)

    def watch(
        self,
        request: HttpRequest,
        told: Callable[[Sequence[bytes]], None],
        ended: Callable[[HttpAnswer], None],
    ) -> None:
        """Send a request whose answer goes on; WriteRefusedError if it is none that reads."""
        if request.method != _READS or request.body:
            raise WriteRefusedError(f"{request.method} {request.path}")
        self._transport.watch(request, told, ended)
