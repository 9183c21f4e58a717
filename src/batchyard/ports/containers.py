"""What a runtime offers of the containers that it runs, to those who look at them through the API."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from batchyard.api.meta import Obj
from batchyard.base.instant import Instant

Usage: TypeAlias = Mapping[str, int]
"""How much of cpu (in thousandths) and memory (in bytes) somebody uses."""


class LogLine(NamedTuple):
    """A line of a log, and when it was written."""

    at: Instant
    text: str
    #: Whether it was ended; the last one of a program need not be.
    is_whole: bool = True


class ContainerLog(Protocol):
    """What one run of a container writes, as far as it is kept."""

    on_news: Callable[[], None]
    """Called when there is something to read, or nothing will come any more."""

    @property
    def is_over(self) -> bool:
        """Whether nothing will come any more."""

    def read(self) -> Sequence[LogLine]:
        """The lines that came since they were read last, the oldest first; at first all that are kept."""

    def close(self) -> None:
        """Read no more."""


class Containers(Protocol):
    """The containers of pods, as their runtime knows them."""

    def log(self, pod: Obj, container: str, *, previous: bool) -> ContainerLog:
        """The log of the container's run that is or was the last; with `previous`, of the one before.

        Whoever asks has seen in the pod's status that there is such a run.
        """

    def usage(self, pod: Obj) -> Mapping[str, Usage]:
        """What each container of a pod that runs uses, by its name."""

    def why_no_process(self, pod: Obj) -> str:
        """Why nobody can get at a process of the pod: to execute something beside it, to attach to it, to reach it."""
