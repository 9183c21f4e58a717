"""Image helper: pulls images from outside of the spawner's user namespace.

Rootless podman needs its own user namespace with several users, which cannot be created inside the spawner's. So a
helper process is forked before the spawner enters its user namespace. The helper detects container engines, reports
them, and forks the shims for image pulls. It ends with the spawner; its shims outlive it.
"""

import json
import os
import signal
import socket
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from batchyard.shim import engines, event_loop, image_pull, sweep
from batchyard.shim.engine import ContainerEngine
from batchyard.shim.engines import EngineFailure, EngineSearchResult

_PATH_BYTES = 4096
_RESULT_BYTES = 1 << 16
#: Time limit for detecting the engines.
_PATIENCE_SECONDS = 60.0


def start(
    node: int, without: Collection[str], environment: Mapping[str, str]
) -> tuple[socket.socket, EngineSearchResult]:
    """Fork the helper; return the socket that takes paths of runs, and the engines that the helper found."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with there:
        if os.fork() == 0:
            event_loop.run_child(
                node, "outside", partial(_serve, node, there, partial(engines.find, node, environment, None, without))
            )
    here.settimeout(_PATIENCE_SECONDS)
    result: dict[str, Any] = {"failures": [["container engine", "detection timed out"]]}
    with suppress(OSError, ValueError):
        result = json.loads(here.recv(_RESULT_BYTES))
    here.settimeout(None)
    found = tuple(ContainerEngine(**engine) for engine in result.get("engines") or ())
    return here, EngineSearchResult(found, tuple(EngineFailure(*row) for row in result["failures"]))


def _serve(node: int, connection: socket.socket, find: Callable[..., EngineSearchResult]) -> None:
    """Detect engines, then fork a shim for each received path of a run, until the spawner is gone."""
    held = sorted({node, connection.fileno()})
    for first, last in zip([2, *held], [*held, os.sysconf("SC_OPEN_MAX")], strict=True):
        os.closerange(first + 1, last)
    found = find(may_run=False)
    engines_found = [engine._replace(environment={})._asdict() for engine in found.engines]
    connection.send(json.dumps({"engines": engines_found, "failures": found.failures}).encode())
    for engine in found.engines:
        if os.fork() == 0:
            event_loop.run_child(node, f"containers of {engine.kind}", partial(sweep.containers, node, engine))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # shims are not waited for
    while path := connection.recv(_PATH_BYTES).decode(errors="replace"):
        if os.fork() == 0:
            connection.close()
            event_loop.run_shim(node, path, partial(image_pull.keep, engines=found.engines))
