"""The interfaces to the container runtime: logs, usage, exec, attach, port-forward, and starts of containers."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol, TypeAlias

from batchyard.api.meta import Key, Obj
from batchyard.base.instant import Instant
from batchyard.interfaces.client import Listener, Write

ResourceUsage: TypeAlias = Mapping[str, int]
"""CPU usage in thousandths of a core and memory usage in bytes, by resource name."""


class MeasuredUsage(NamedTuple):
    """The measured current usage of a pod's containers or of a node."""

    #: CPU and memory usage by container; by '' for a node.
    usage: Mapping[str, ResourceUsage]
    #: The interval of the CPU measurement in microseconds; 0 if the usage is known exactly.
    window_microseconds: int = 0


class LogLine(NamedTuple):
    """A line of a container log, with its time."""

    at: Instant
    text: str
    #: Whether the line ended with a newline; the last one may not.
    is_whole: bool = True


class ContainerLog(Protocol):
    """A reader of the retained log of one run (start) of a container."""

    on_new_data: Callable[[], None]
    """Called when lines are available or the log ends."""

    @property
    def is_over(self) -> bool:
        """Whether the log has ended, so that no more lines follow."""

    @property
    def is_behind(self) -> bool:
        """Whether the last `read` left lines unread; `on_new_data` is called when they can be read."""

    def skip_to_last(self, line_count: int) -> None:
        """Skip log lines before the last `line_count` ones; call this before the first `read`.

        An implementation may skip fewer lines or none.
        """

    def read(self) -> Sequence[LogLine]:
        """Return unread log lines, oldest first; before the first read, all retained lines are unread."""

    def close(self) -> None:
        """Stop reading the log."""


class Streams(NamedTuple):
    """The standard streams of a process that a client asks for; a terminal merges stdout and stderr."""

    stdin: bool = False
    stdout: bool = False
    stderr: bool = False
    tty: bool = False


class SessionEnd(NamedTuple):
    """The end of an exec, attach or port-forward session: the exit code of the process, or the failure."""

    exit_code: int = 0
    failure: str = ""


class SessionClient(Protocol):
    """The client of an exec, attach or port-forward session.

    Session methods may call `set_accepts_input` directly, but not the other callbacks.
    """

    def process_output(self, stream_name: str, data: bytes) -> None:
        """Handle data from the process or port; `stream_name` is `stdout` (also for a port) or `stderr`."""

    def set_accepts_input(self, *, accepts_input: bool) -> None:
        """Resume or pause the client's input, depending on whether the process or port accepts more."""

    def process_end(self, session_end: SessionEnd) -> None:
        """Handle the end of the session. All data was delivered before, and no other callback follows."""


class ByteStream(Protocol):
    """A bidirectional byte stream to a port of a pod or to a process."""

    def write(self, data: bytes) -> None:
        """Send bytes; bytes that the process or port does not accept yet are buffered."""

    def end_input(self) -> None:
        """Handle the end of the client's input: close the input of the process or port, or end the session."""

    def set_reading(self, *, is_reading: bool) -> None:
        """Resume or pause the delivery of output; while paused, the data stays with the process or port."""

    def close(self) -> None:
        """Abort the session. `process_output` and `process_end` are not called after that."""


class ProcessSession(ByteStream, Protocol):
    """A session with a process, which may have a terminal."""

    def resize(self, columns: int, rows: int) -> None:
        """Set the terminal size in characters."""


class Containers(Protocol):
    """Access to the containers of pods through the container runtime."""

    def log(self, pod: Obj, container: str, *, previous: bool) -> ContainerLog:
        """Return a reader of the log of a container's last run or, with `previous`, of the run in its `lastState`.

        While the container waits for its next run, its last run is the one that has ended. The caller has checked in
        the pod's status that this run exists.
        """

    def usage(self, pod: Obj) -> MeasuredUsage | None:
        """Return the measured usage of a pod by container; None if it is not known."""

    def node_usage(self, node: str) -> MeasuredUsage | None:
        """Return the measured usage of a node, under the key ''; None if it is not measured."""

    def no_process_reason(self, pod: Obj) -> str:
        """Return why exec, attach and port-forward cannot reach the pod; '' if they can.

        `execute`, `attach` and `connect` may be called only if the result is ''.
        """

    def execute(
        self, pod: Obj, container: str, command_line: Sequence[str], streams: Streams, session_client: SessionClient
    ) -> ProcessSession:
        """Start another process in a container, and send its output to a client."""

    def attach(self, pod: Obj, container: str, streams: Streams, session_client: SessionClient) -> ProcessSession:
        """Attach a client to the main process of a container."""

    def connect(self, pod: Obj, port: int, session_client: SessionClient) -> ByteStream:
        """Connect a client to a port of the pod."""


# The container runtime of a machine for controllers: runs are objects, and intended changes are writes.
#
# A run is one start of a container, the sandbox that the containers of a pod share, or one image pull. Runs are
# identified by the pod's uid and a name: `sandbox`, `CONTAINER/N` for the N-th start of a container,
# `images/CONTAINER/N` for the N-th pull of its image. Create starts a run. Creating a sandbox replaces an ended one and
# keeps the other runs of the pod. An Update with a changed `stop` requests the stop of the run. An Update with
# `volumes` refreshes the files of a sandbox's pod. Delete removes a run and its leftovers. If a run cannot be started,
# its status reports the failure.


RUN: Final = "Run.node.batchyard.dev"
SANDBOX: Final = "sandbox"
IMAGE_PULLS: Final = "images"


class ContainerRuntime(Protocol):
    """The container runtime of one machine. A run is a container start, a pod sandbox or an image pull."""

    def find_run(self, key: Key) -> Obj | None:
        """Return the last known state of a run (container start, sandbox or image pull); None if it does not exist."""

    def runs(self, uid: str | None = None) -> Sequence[Obj]:
        """Return all runs (container starts, sandboxes and image pulls), or those of the pod with the uid `uid`.

        The starts of one container are ordered by number.
        """

    def execute_write(self, write: Write) -> Obj:
        """Start (Create), change (Update) or remove (Delete) a run, and return its resulting state."""

    def subscribe(self, listener: Listener) -> None:
        """Register a listener. The event loop later calls it with each batch of changed runs."""
