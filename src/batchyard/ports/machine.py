"""A machine that runs containers, as controllers see it: its runs are objects, and what is wanted of them are writes.

A run is one start of a container, the sandbox that holds what the containers of a pod share, or what is done to have
the image of a container. Runs are known by the pod's uid and a name: `sandbox`, `CONTAINER/N` for the N-th start of a
container, `images/CONTAINER/N` for the N-th time that its image is looked for. Create starts a run; a sandbox that
has ended gives way to another one, and all else of its pod stays. Update with another `stop` stops it in its time, with
`volumes` it brings the files of a sandbox's pod up to date. Delete lets a run and all that it left be forgotten. None
of them waits, and none is refused: what goes wrong is told by the run's status.
"""

from collections.abc import Sequence
from typing import Final, Protocol

from batchyard.api.meta import Key, Obj
from batchyard.ports.client import Listener, Write

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
