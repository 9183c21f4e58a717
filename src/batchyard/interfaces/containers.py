"""What a runtime offers of the containers that it runs, to those who look at them through the API."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol, TypeAlias

from batchyard.api.meta import Key, Obj
from batchyard.base.instant import Instant
from batchyard.interfaces.client import Listener, Write

Usage: TypeAlias = Mapping[str, int]
"""How much of cpu (in thousandths) and memory (in bytes) somebody uses."""


class Measured(NamedTuple):
    """What is used at present."""

    #: By container.
    usage: Mapping[str, Usage]
    #: Over how many microseconds cpu was measured; 0 where it is known.
    window: int = 0


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

    @property
    def is_behind(self) -> bool:
        """Whether more is there than was read: a long log is read by and by, and `on_news` says when to go on."""

    def skip_to_last(self, lines: int) -> None:
        """Leave out what comes before the last so many lines, or some of it; called before anything is read."""

    def read(self) -> Sequence[LogLine]:
        """The lines that came since they were read last, the oldest first; at first those that are kept."""

    def close(self) -> None:
        """Read no more."""


class Streams(NamedTuple):
    """What of a process somebody wants to talk to; a terminal has one output."""

    stdin: bool = False
    stdout: bool = False
    stderr: bool = False
    tty: bool = False


class Ending(NamedTuple):
    """How a conversation ended: with the exit code of a process, with nothing to say, or with why it failed."""

    exit_code: int = 0
    failure: str = ""


class Talker(Protocol):
    """Who talks to a process or a port, and is called back: of what came and of the end never from within his calls."""

    def received(self, output: str, data: bytes) -> None:
        """Take what came: from `stdout` (of a port too) or `stderr`."""

    def wants_more(self, *, wants: bool) -> None:
        """Whether there is room for more at the other end."""

    def ended(self, ending: Ending) -> None:
        """It is over, and all that came was told; nothing more is called."""


class ByteStream(Protocol):
    """A conversation with a port: bytes go both ways."""

    def write(self, data: bytes) -> None:
        """Send bytes; all are taken, but who goes on where no more is wanted lets them pile up."""

    def end_input(self) -> None:
        """Nothing more is sent."""

    def listen(self, *, listens: bool) -> None:
        """Whether the talker takes more; what comes meanwhile is left where it is."""

    def close(self) -> None:
        """Nobody talks any more: end it, without a word."""


class ProcessSession(ByteStream, Protocol):
    """A conversation with a process."""

    def resize(self, columns: int, rows: int) -> None:
        """The terminal has another size."""


class Containers(Protocol):
    """The containers of pods, as their runtime knows them."""

    def log(self, pod: Obj, container: str, *, previous: bool) -> ContainerLog:
        """The log of the container's run that is or was the last; with `previous`, of the one before.

        Whoever asks has seen in the pod's status that there is such a run.
        """

    def usage(self, pod: Obj) -> Measured | None:
        """What each container of a pod that runs uses, by its name; None before that is known."""

    def node_usage(self, node: str) -> Measured | None:
        """What a node uses, by the name '' of no container; None where it uses what its pods do."""

    def why_no_process(self, pod: Obj) -> str:
        """Why nobody can get at a process of the pod: to execute something beside it, to attach to it, to reach it.

        Empty where somebody can: only then may the following be called.
        """

    def execute(
        self, pod: Obj, container: str, command: Sequence[str], streams: Streams, talker: Talker
    ) -> ProcessSession:
        """One more process in a container."""

    def attach(self, pod: Obj, container: str, streams: Streams, talker: Talker) -> ProcessSession:
        """The process of a container, from now on."""

    def connect(self, pod: Obj, port: int, talker: Talker) -> ByteStream:
        """Who listens at a port of the pod."""


# --- machine ---
#
# A machine that runs containers, as controllers see it: its runs are objects, and what is wanted of them are writes.
#
# A run is one start of a container, the sandbox that holds what the containers of a pod share, or what is done to have
# the image of a container. Runs are known by the pod's uid and a name: `sandbox`, `CONTAINER/N` for the N-th start of a
# container, `images/CONTAINER/N` for the N-th time that its image is looked for. Create starts a run; a sandbox that
# has ended gives way to another one, and all else of its pod stays. Update with another `stop` stops it in its time,
# with
# `volumes` it brings the files of a sandbox's pod up to date. Delete lets a run and all that it left be forgotten. None
# of them waits, and none is refused: what goes wrong is told by the run's status.


RUN: Final = "Run.node.batchyard.dev"
SANDBOX: Final = "sandbox"
IMAGES: Final = "images"


class Machine(Protocol):
    """See the module."""

    def run(self, key: Key) -> Obj | None:
        """One run, as it was last seen."""

    def runs(self, uid: str | None = None) -> Sequence[Obj]:
        """All runs, or those of a pod: its sandbox, then the others in the order in which they were asked for."""

    def do(self, write: Write) -> Obj:
        """Do what is wanted of a run, and return it as it is then."""

    def subscribe(self, listener: Listener) -> None:
        """Tell a listener of every later change, in batches, through the kernel, never from within."""
