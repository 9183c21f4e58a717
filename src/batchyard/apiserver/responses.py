"""Answers that go on: what the wire needs to know of them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from batchyard.apiserver.request import Response
from batchyard.interfaces.containers import ByteStream, Ending, ProcessSession, Streams, Talker


class Ongoing(Protocol):
    """An answer that goes on until it is over, or its client goes."""

    is_over: bool
    on_news: Callable[[], None]
    """Called when there is something to take."""

    @property
    def content_type(self) -> str:
        """What it is made of."""

    @property
    def times_out(self) -> bool:
        """Whether its client comes again when it ends after a while."""

    def take(self) -> Iterable[Any]:
        """All that waits, false where nothing does: texts as bytes, and values, each of which is a line of JSON."""

    def mark(self) -> None:
        """Tell how far it has come, where its client wants to know; asked now and then."""

    def end(self) -> None:
        """Tell what waits, and no more."""


@dataclass(frozen=True, eq=False, slots=True)
class Upgrade:
    """What a connection is to be from now on."""

    #: `websocket` or `SPDY/3.1`, and what is spoken over it.
    to: str
    protocol: str


@dataclass(frozen=True, eq=False, slots=True)
class Command:
    """An answer that is a conversation with a process."""

    upgrade: Upgrade
    streams: Streams
    open: Callable[[Talker], ProcessSession]
    #: The Status that tells how it ended.
    status: Callable[[Ending], Mapping[str, Any]]


@dataclass(frozen=True, eq=False, slots=True)
class Forwarding:
    """An answer that is conversations with ports of a pod."""

    upgrade: Upgrade
    #: The ports that the request names, where its protocol wants that.
    ports: Sequence[int]
    connect: Callable[[int, Talker], ByteStream]
    #: Why there is none with a port, in the words for whoever wants it.
    failure: Callable[[int, Ending], str]


@dataclass(frozen=True, eq=False, slots=True)
class Later:
    """An answer that is worked out elsewhere, while others are answered."""

    #: Calls back once with the answer, never from within.
    then: Callable[[Callable[[Response], None]], None]


Conversation: TypeAlias = Command | Forwarding
Begun: TypeAlias = Response | Ongoing | Conversation
"""What a client can be sent now."""
Reply: TypeAlias = Begun | Later
