"""The keeper of a sandbox: the pod's pause, that holds what its containers share until it is told to end."""

import os
import signal

from batchyard.node import clock
from batchyard.node.loop import Loop
from batchyard.node.run import Run

_GONE_SECONDS = 2.0


def keep(run: Run) -> None:
    """Keep a claimed sandbox until it is to end."""
    loop = Loop()

    def look() -> None:
        if run.is_gone() or run.stop_wish():
            loop.stop()
        else:
            loop.after(_GONE_SECONDS, look)

    run.tell(keeper=os.getpid(), phase="Starting")
    loop.when_signalled(signal.SIGTERM, look)
    run.tell(phase="Ready", pid=os.getpid(), startedAt=clock.now())
    look()
    loop.run()
    run.tell(phase="Exited", finishedAt=clock.now())
