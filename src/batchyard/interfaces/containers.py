"""The container runtime interface: logs, usage, exec, attach and port-forward of running containers."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol, TypeAlias

from batchyard.api.meta import Key, Obj
from batchyard.base.instant import Instant
from batchyard.interfaces.client import Listener, Write

Usage: TypeAlias = Mapping[str, int]
"""CPU usage in thousandths of a core and memory usage in bytes, by resource name."""


class MeasuredUsage(NamedTuple):
    """The measured current usage."""

    #: By container.
    usage: Mapping[str, Usage]
    #: The interval of the CPU measurement in microseconds; 0 if the usage is known exactly.
    window: int = 0


class LogLine(NamedTuple):
    """A line of a log, with its time."""

    at: Instant
    text: str
    #: Whether the line ended with a newline; the last one may not.
    is_whole: bool = True


class ContainerLog(Protocol):
    """The retained log of one container run."""

    on_news: Callable[[], None]
    """Called when lines are available or the log ends."""

    @property
    def is_over(self) -> bool:
        """Report whether no more lines will come."""

    @property
    def is_behind(self) -> bool:
        """Report whether existing lines remain unread. A long log is read in parts; `on_news` is called for each."""

    def skip_to_last(self, lines: int) -> None:
        """Skip existing lines before the last ones, at least in part; call it before the first read."""

    def read(self) -> Sequence[LogLine]:
        """Return the lines since the last read, oldest first; the first read starts with retained lines."""

    def close(self) -> None:
        """Stop reading."""


class Streams(NamedTuple):
    """The requested streams of a process; a terminal has a single output."""

    stdin: bool = False
    stdout: bool = False
    stderr: bool = False
    tty: bool = False


class SessionEnd(NamedTuple):
    """The end of a session: the exit code of a process, nothing, or the failure."""

    exit_code: int = 0
    failure: str = ""


class SessionClient(Protocol):
    """The client side of a session with a process or port. Its callbacks never run within its own calls."""

    def received(self, output: str, data: bytes) -> None:
        """Handle received data: from `stdout` (also of a port) or `stderr`."""

    def wants_more(self, *, wants: bool) -> None:
        """Report whether the other end accepts more input."""

    def ended(self, ending: SessionEnd) -> None:
        """The session ended after all data was delivered; no other callback follows."""


class ByteStream(Protocol):
    """A bidirectional byte stream to a port."""

    def write(self, data: bytes) -> None:
        """Send bytes. All are accepted, but they are buffered while the other end accepts no more."""

    def end_input(self) -> None:
        """Close the input."""

    def listen(self, *, listens: bool) -> None:
        """Resume or pause delivery; meanwhile data stays at its source."""

    def close(self) -> None:
        """Abort the session without further callbacks."""


class ProcessSession(ByteStream, Protocol):
    """A session with a process."""

    def resize(self, columns: int, rows: int) -> None:
        """Set the terminal size."""


class Containers(Protocol):
    """The containers of pods, as the container runtime reports them."""

    def log(self, pod: Obj, container: str, *, previous: bool) -> ContainerLog:
        """Return the log of the container's current or last run; with `previous`, of the run before.

        The caller has checked in the pod's status that the run exists.
        """

    def usage(self, pod: Obj) -> MeasuredUsage | None:
        """Return the usage by container of a running pod; None until it is measured."""

    def node_usage(self, node: str) -> MeasuredUsage | None:
        """Return the usage of a node under the key ''; None if it is the sum of its pods."""

    def why_no_process(self, pod: Obj) -> str:
        """Return why processes of the pod are not accessible by exec, attach or port-forward; '' if they are.

        The following methods may be called only in the latter case.
        """

    def execute(
        self, pod: Obj, container: str, command: Sequence[str], streams: Streams, talker: SessionClient
    ) -> ProcessSession:
        """Start another process in a container."""

    def attach(self, pod: Obj, container: str, streams: Streams, talker: SessionClient) -> ProcessSession:
        """Attach to the main process of a container."""

    def connect(self, pod: Obj, port: int, talker: SessionClient) -> ByteStream:
        """Connect to a port of the pod."""


# --- machine ---
#
# The container runtime of a machine for controllers: runs are objects, and intended changes are writes.
#
# A run is one start of a container, the sandbox that the containers of a pod share, or one image pull. Runs are
# identified by the pod's uid and a name: `sandbox`, `CONTAINER/N` for the N-th start of a container,
# `images/CONTAINER/N` for the N-th pull of its image. Create starts a run. Creating a sandbox replaces an ended one and
# keeps the other runs of the pod. Update with a changed `stop` stops the run in that time. Update with `volumes`
# refreshes the files of a sandbox's pod. Delete removes a run and its leftovers. No write blocks or is rejected: the
# status of the run reports failures.


RUN: Final = "Run.node.batchyard.dev"
SANDBOX: Final = "sandbox"
IMAGES: Final = "images"


class ContainerRuntime(Protocol):
    """The runs of containers on one machine."""

    def run(self, key: Key) -> Obj | None:
        """Return the last known state of a run."""

    def runs(self, uid: str | None = None) -> Sequence[Obj]:
        """Return all runs, or those of a pod: its sandbox, then the others in order of creation."""

    def do(self, write: Write) -> Obj:
        """Apply a write to a run, and return its resulting state."""

    def subscribe(self, listener: Listener) -> None:
        """Subscribe a listener to later changes, in batches, through the kernel, never from within."""
