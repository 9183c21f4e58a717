"""What lies between a client and an API server elsewhere: requests and answers as values, and who carries them."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from batchyard.base.instant import SECOND, Duration, Instant


class HttpRequest(NamedTuple):
    """One request; its path with its query."""

    method: str
    path: str
    body: bytes = b""
    #: How long its answer may take.
    within: Duration = 30 * SECOND
    #: The form its answer is to have.
    accept: str = "application/json"
    #: The form of its body.
    content_type: str = "application/json"


class HttpAnswer(NamedTuple):
    """What became of a request. Without an answer its code is 0."""

    code: int
    body: bytes = b""
    #: What the server asks to wait before the next try.
    retry_after: Duration | None = None
    #: Why there is no answer, or why a watch broke off.
    trouble: str = ""
    #: Whether the server may have had the request.
    was_sent: bool = True
    #: What time it was for the server, in whole seconds; 0 where it does not say.
    told_at: Instant = 0


class Transport(Protocol):
    """Carries requests to one server, as one user. It calls back through the kernel, never from within."""

    def send(self, request: HttpRequest, answered: Callable[[HttpAnswer], None]) -> None:
        """Send a request; tell of its answer, once."""

    def watch(
        self,
        request: HttpRequest,
        told: Callable[[Sequence[bytes]], None],
        ended: Callable[[HttpAnswer], None],
    ) -> None:
        """Send a request whose answer goes on; tell of its lines as they come, first of none, and of its end, once."""
