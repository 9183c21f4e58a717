"""Spawner: receives paths of runs as datagrams, forks a shim for each run and a host for each exec session.

Started as `python -I -m batchyard.shim.spawner NODE`. It ends on SIGTERM or SIGINT, or when the node directory is
removed; shims outlive it.
"""

import gc
import os
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from math import inf

from batchyard.shim import (
    capabilities,
    event_loop,
    image_pull,
    masks,
    rootfs_store,
    rootless_images,
    sandbox,
    session,
    settings,
    shim,
    state_dir,
    sweep,
)
from batchyard.shim.capabilities import Features
from batchyard.shim.event_loop import Loop
from batchyard.shim.run import ShimRun

_FORK_AGAIN_SECONDS = 0.2
_KEEPERS = {"container": shim.keep, "sandbox": sandbox.keep}
_SESSIONS_WAITING = 256
_GONE_SECONDS = 2.0


def main(arguments: list[str]) -> int:
    """Serve a node directory; return the exit status."""
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    node = state_dir.open_folder(arguments[1])
    lock = state_dir.lock(node, "spawner.lock")
    if lock is None:
        sys.stderr.write(f"{arguments[1]}: another spawner is running in this directory\n")
        return 1
    os.ftruncate(lock, 0)
    os.write(lock, str(os.getpid()).encode())
    Spawner(node, lock).serve()
    return 0


class Spawner:
    """The spawner's sockets and shims; it cleans up after shims that were killed."""

    def __init__(self, node: int, lock: int) -> None:
        self._node = node
        self._lock = lock
        without = capabilities.named_in("BATCHYARD_NODE_WITHOUT")
        self._features = capabilities.detect_features(node, without, partial(rootless_images.start, node, without))
        self._keepers: dict[int, str] = {}
        self._loop = Loop()
        self._requests = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._sessions = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def serve(self) -> None:
        """Receive run requests until SIGTERM or SIGINT."""
        sweep.all_pods(self._node, self._features)
        for engine in () if self._features.outside else self._features.engines:
            self._fork_to(f"containers of {engine.kind}", partial(sweep.containers, self._node, engine))
        self._fork_to("unpacked images", partial(rootfs_store.trim, self._node, inf))
        if self._features.outside:
            self._loop.when_readable(self._features.outside.fileno(), self._loop.stop)
        if self._features.bubblewrap:
            place = os.readlink(f"/proc/self/fd/{self._node}")
            settings.refresh(place)
            masks.make(place)
        state_dir.remove(self._node, "spawner")
        self._requests.bind(state_dir.address(self._node, "spawner"))
        self._loop.when_readable(self._requests.fileno(), self._take)
        state_dir.remove(self._node, "sessions")
        self._sessions.bind(state_dir.address(self._node, "sessions"))
        self._sessions.listen(_SESSIONS_WAITING)
        self._loop.when_readable(self._sessions.fileno(), self._host)
        self._loop.when_signalled(signal.SIGCHLD, self._reap)
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.when_signalled(number, self._loop.stop)
        gc.collect()
        gc.freeze()
        state_dir.write_json(self._node, "features.json", capabilities.features_document(self._features))
        self._end_with_the_folder()
        self._loop.run()

    def _end_with_the_folder(self) -> None:
        """Stop when the node directory was removed; check periodically."""
        if state_dir.is_gone(self._node):
            self._loop.stop()
        self._loop.after(_GONE_SECONDS, self._end_with_the_folder)

    def _take(self) -> None:
        """Receive a run request; forward it to the image helper if that must pull the image, else fork a shim."""
        path = self._requests.recv(4096).decode(errors="replace")
        if self._features.outside and sweep.is_of_image(path):
            self._features.outside.send(path.encode())
        else:
            self._fork(path)

    def _fork(self, path: str) -> None:
        """Fork a shim; retry later if fork fails."""
        try:
            keeper = os.fork()
        except OSError as failure:
            state_dir.complain(self._node, f"{path}: {failure}")
            self._loop.after(_FORK_AGAIN_SECONDS, partial(self._fork, path))
            return
        if keeper == 0:
            self._close_inherited()
            event_loop.run_shim(self._node, path, partial(_keep, self._features))
        self._keepers[keeper] = path

    def _host(self) -> None:
        """Accept a client and fork a session host for it."""
        connection, _ = self._sessions.accept()
        with connection:
            try:
                child = os.fork()
            except OSError as failure:
                state_dir.complain(self._node, f"a session: {failure}")
                return  # the client sees the connection closed
            if child == 0:
                self._close_inherited()
                event_loop.run_child(
                    self._node, "a session", partial(session.host, self._node, self._features, connection)
                )

    def _tidy(self, path: str) -> None:
        """Clean up after a shim that has ended."""
        engine = self._features.runner
        if engine and sweep.leaves_container(self._node, path):
            self._fork_to(path, partial(engine.forget, engine.name(path)))
        sweep.after(self._node, self._features, path)

    def _fork_to(self, name: str, act: Callable[[], None]) -> None:
        """Run a slow task in a child process."""
        if os.fork() == 0:
            self._close_inherited()
            event_loop.run_child(self._node, name, act)

    def _close_inherited(self) -> None:
        """In a child: close the spawner's lock and sockets."""
        os.close(self._lock)
        self._requests.close()
        self._sessions.close()

    def _reap(self) -> None:
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG)[0]) != 0:
                path = self._keepers.pop(ended, None)
                if path is not None:
                    self._tidy(path)


def _keep(found: Features, run: ShimRun) -> None:
    if run.spec["kind"] == "image":
        image_pull.keep(run, found.engines)
    else:
        _KEEPERS[run.spec["kind"]](run, found)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
