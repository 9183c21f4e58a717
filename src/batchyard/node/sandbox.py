"""The keeper of a sandbox: the pod's pause, that holds what its containers share until it is told to end."""

import os
import signal
import socket
from typing import Any

from batchyard.node import clock, linux, network
from batchyard.node.features import Features
from batchyard.node.loop import Loop
from batchyard.node.run import Run

_GONE_SECONDS = 2.0
_ANNOUNCE_SECONDS = 1.0


def keep(run: Run, features: Features) -> None:
    """Keep a claimed sandbox until it is to end."""
    run.write(keeper=os.getpid(), phase="Starting")
    try:
        _make(run, features)
    except (OSError, ValueError) as failure:
        _tell(run, phase="Exited", finishedAt=clock.now(), message=str(failure))
        return
    loop = Loop()

    def look() -> None:
        if run.is_gone() or run.stop_wish():
            loop.stop()

    def watch() -> None:
        look()
        loop.after(_GONE_SECONDS, watch)

    loop.when_signalled(signal.SIGTERM, look)
    _tell(run, phase="Ready", pid=os.getpid(), startedAt=clock.now())
    watch()
    loop.run()
    _tell(run, phase="Exited", finishedAt=clock.now())


def _tell(run: Run, **changes: object) -> None:
    run.write(**changes)
    run.announce(_ANNOUNCE_SECONDS)


def _make(run: Run, features: Features) -> None:
    """Make what the containers of the pod share."""
    for name, text in _files(run.spec).items():
        with open(os.open(name, os.O_WRONLY | os.O_CREAT, 0o644, dir_fd=run.folder), "w", encoding="utf-8") as file:
            file.write(text)
    if features.namespaces:
        if run.spec["network"] == "pod" and features.network is not None:
            network.enter_new(run.spec, features.network)
        linux.unshare(linux.NEWNS | linux.NEWIPC | linux.NEWUTS)
        linux.keep_mounts_to_oneself()
        socket.sethostname(run.spec["hostname"])
        _mount_volumes(run)


def _files(spec: dict[str, Any]) -> dict[str, str]:
    """The files by which names are known in the pod, by their names in /etc."""
    resolvers, searches = spec["resolvers"], spec["searches"]
    lines = [f"search {' '.join(searches)}"] if searches else []
    lines += [f"nameserver {resolver}" for resolver in resolvers]
    resolv = "".join(f"{line}\n" for line in [*lines, "options ndots:5"]) if resolvers else _machines("resolv.conf")
    return {"hosts": spec["hosts"], "hostname": f"{spec['hostname']}\n", "resolv.conf": resolv}


def _machines(name: str) -> str:
    """What the machine itself has in /etc."""
    try:
        with open(f"/etc/{name}", encoding="utf-8") as file:
            return file.read()
    except OSError:
        return ""


def _mount_volumes(run: Run) -> None:
    """Mount the volumes that are in memory, where the pod alone sees them."""
    pod = os.path.dirname(os.readlink(f"/proc/self/fd/{run.folder}"))
    for volume in run.spec["tmpfs"]:
        size = f"mode=1777,size={volume['bytes']}" if volume["bytes"] is not None else "mode=1777"
        linux.mount("tmpfs", f"{pod}/volumes/{volume['volume']}", "tmpfs", size)
