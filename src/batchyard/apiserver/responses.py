"""Streaming and asynchronous responses, as the transport handles them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from batchyard.apiserver.request import Response
from batchyard.interfaces.containers import ByteStream, ProcessSession, SessionClient, SessionEnd, Streams


class StreamingResponse(Protocol):
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
class ProtocolUpgrade:
    """The protocol to which a connection is upgraded."""

    #: `websocket` or `SPDY/3.1`; `protocol` is the subprotocol.
    to: str
    protocol: str


@dataclass(frozen=True, eq=False, slots=True)
class ExecResponse:
    """A response that is a session with a process."""

    upgrade: ProtocolUpgrade
    streams: Streams
    open: Callable[[SessionClient], ProcessSession]
    #: Returns the Status for the end of the session.
    status: Callable[[SessionEnd], Mapping[str, Any]]


@dataclass(frozen=True, eq=False, slots=True)
class PortForwardResponse:
    """A response that forwards ports of a pod."""

    upgrade: ProtocolUpgrade
    #: The ports in the request, if its protocol requires them.
    ports: Sequence[int]
    connect: Callable[[int, SessionClient], ByteStream]
    #: Returns the error message for a port that cannot be reached.
    failure: Callable[[int, SessionEnd], str]


@dataclass(frozen=True, eq=False, slots=True)
class DeferredResponse:
    """A response that is computed asynchronously."""

    #: Registers a callback, which is called once with the response, never from within.
    then: Callable[[Callable[[Response], None]], None]


UpgradeResponse: TypeAlias = ExecResponse | PortForwardResponse
StartedResponse: TypeAlias = Response | StreamingResponse | UpgradeResponse
"""A response that can be sent immediately."""
AnyResponse: TypeAlias = StartedResponse | DeferredResponse
