"""Answers that go on: what the wire needs to know of them."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

from batchyard.apiserver.request import Response


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

    def take(self) -> Sequence[Any]:
        """All that waits: texts as bytes, and values, each of which is a line of JSON."""

    def mark(self) -> None:
        """Tell how far it has come, where its client wants to know; asked now and then."""

    def end(self) -> None:
        """Tell what waits, and no more."""


Reply: TypeAlias = Response | Ongoing
