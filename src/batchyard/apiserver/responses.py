"""Streaming and asynchronous responses, as the transport handles them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from batchyard.apiserver.request import Response
from batchyard.interfaces.containers import ByteStream, Ending, ProcessSession, Streams, Talker


class Ongoing(Protocol):
    """A streamed response, which ends by itself or when its client disconnects."""

    is_over: bool
    on_news: Callable[[], None]
    """Called when data is available."""

    @property
    def content_type(self) -> str:
        """The media type."""

    @property
    def times_out(self) -> bool:
        """Whether the client reconnects when the response ends after a timeout."""

    def take(self) -> Iterable[Any]:
        """Take the buffered data, empty if there is none: bytes as text, other values as lines of JSON."""

    def mark(self) -> None:
        """Send a bookmark or keep-alive if the client requested it; called periodically."""

    def end(self) -> None:
        """End the response after the buffered data."""


@dataclass(frozen=True, eq=False, slots=True)
class Upgrade:
    """The protocol to which a connection is upgraded."""

    #: `websocket` or `SPDY/3.1`; `protocol` is the subprotocol.
    to: str
    protocol: str


@dataclass(frozen=True, eq=False, slots=True)
class Command:
    """A response that is a session with a process."""

    upgrade: Upgrade
    streams: Streams
    open: Callable[[Talker], ProcessSession]
    #: Returns the Status for the end of the session.
    status: Callable[[Ending], Mapping[str, Any]]


@dataclass(frozen=True, eq=False, slots=True)
class Forwarding:
    """A response that forwards ports of a pod."""

    upgrade: Upgrade
    #: The ports in the request, if its protocol requires them.
    ports: Sequence[int]
    connect: Callable[[int, Talker], ByteStream]
    #: Returns the error message for a port that cannot be reached.
    failure: Callable[[int, Ending], str]


@dataclass(frozen=True, eq=False, slots=True)
class Later:
    """A response that is computed asynchronously."""

    #: Registers a callback, which is called once with the response, never from within.
    then: Callable[[Callable[[Response], None]], None]


Conversation: TypeAlias = Command | Forwarding
Begun: TypeAlias = Response | Ongoing | Conversation
"""A response that can be sent immediately."""
Reply: TypeAlias = Begun | Later
