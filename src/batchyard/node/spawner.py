"""The spawner: it takes the names of runs as datagrams and forks a keeper for each.

`python -I -m batchyard.node.spawner NODE`. It ends at SIGTERM or SIGINT; keepers outlive it.
"""

import gc
import os
import signal
import socket
import sys
from typing import NoReturn

from batchyard.node import features, folder, keeper, linux, sandbox
from batchyard.node.features import Features
from batchyard.node.run import Run

_KEEPERS = {"container": keeper.keep, "sandbox": sandbox.keep}


def main(arguments: list[str]) -> int:
    """Serve the node in a folder; the exit status."""
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    node = folder.open_folder(arguments[1])
    held = folder.lock(node, "spawner.lock")
    if held is None:
        sys.stderr.write(f"{arguments[1]}: another spawner is at work here\n")
        return 1
    os.ftruncate(held, 0)
    os.write(held, str(os.getpid()).encode())
    found = features.look(node, features.named_in("BATCHYARD_NODE_WITHOUT"))
    wishes = _listen(node)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _end)
    folder.write_json(node, "features.json", features.told(found))
    gc.collect()
    gc.freeze()
    while True:
        path = wishes.recv(4096).decode()
        if os.fork() == 0:
            os.close(held)
            wishes.close()
            _keep(node, path, found)


def _listen(node: int) -> socket.socket:
    """The socket for wishes, in the place of one that a spawner before left behind."""
    folder.remove(node, "spawner")
    wishes = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    wishes.bind(folder.address(node, "spawner"))
    return wishes


def _end(*_: object) -> NoReturn:
    sys.exit(0)


def _keep(node: int, path: str, found: Features) -> NoReturn:
    """Be the keeper of a run, in a session of one's own, until it has ended."""
    code = 1
    try:
        os.setsid()
        nothing = os.open("/dev/null", os.O_RDWR)
        for file in range(3):
            os.dup2(nothing, file)
        os.close(nothing)
        for number in (signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        for number in (signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        linux.adopt_orphans()
        run = Run(node, path)
        if run.claim():
            _KEEPERS[run.spec["kind"]](run, found)
        code = 0
    except (OSError, KeyError, ValueError, TypeError) as failure:
        folder.complain(node, f"{path}: {failure!r}")
    finally:
        os._exit(code)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
