"""What forks of the node's programs do first and last: let go of their parent's things, and write down what failed."""

import os
import signal
import sys
from collections.abc import Callable
from typing import NoReturn

from batchyard.node import folder, linux
from batchyard.node.run import Run


def keep(node: int, path: str, keeper: Callable[[Run], None]) -> NoReturn:
    """In a child: be the keeper of a run, until it has ended."""

    def act() -> None:
        # Whoever knows of the keeper may wake it, and it may not be listening yet: it looks for itself when it is.
        signal.signal(signal.SIGTERM, lambda *_: None)
        linux.adopt_orphans()
        run = Run(node, path)
        if run.claim():
            keeper(run)

    be(node, path, act)


def be(node: int, name: str, act: Callable[[], None]) -> NoReturn:
    """Do in a child what it is for, in a session of its own, and end; what fails is written down."""
    code = 1
    try:
        _begin()
        act()
        code = 0
    finally:
        failure = sys.exc_info()[1]
        if failure is not None:
            folder.complain(node, f"{name}: {_told(failure)}")
        os._exit(code)


def _begin() -> None:
    """Let go of what was the spawner's: its terminal and files, its signals."""
    os.setsid()
    nothing = os.open("/dev/null", os.O_RDWR)
    for file in range(3):
        os.dup2(nothing, file)
    os.close(nothing)
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)


def _told(failure: BaseException) -> str:
    """What went wrong, and where."""
    places, frame = [], failure.__traceback__
    while frame is not None:
        places.append(f"{os.path.basename(frame.tb_frame.f_code.co_filename)}:{frame.tb_lineno}")
        frame = frame.tb_next
    return f"{failure!r} at {' '.join(places)}"
