"""Sandbox shim: like the pause container, holds what the containers of a pod share until it is stopped."""

import os
import signal
import socket
from contextlib import suppress
from typing import Any

from batchyard.shim import cgroups, clock, linux, masks, network, state_dir, sweep
from batchyard.shim.capabilities import Features
from batchyard.shim.cgroups import Group
from batchyard.shim.event_loop import Loop
from batchyard.shim.run import ShimRun
from batchyard.shim.users import make_namespace

# --- usage ---
# Disk usage of a directory tree.


_BLOCK = 512


def disk(path: str) -> int:
    """Return the bytes on disk of a directory tree, counting a file with several links once."""
    blocks: dict[tuple[int, int], int] = {}
    with suppress(FileNotFoundError):
        for _, folders, files, here in os.fwalk(path, follow_symlinks=False):
            for found in filter(None, (_stat(name, here) for name in (*folders, *files))):
                blocks[found.st_dev, found.st_ino] = found.st_blocks
    return sum(blocks.values()) * _BLOCK


def _stat(name: str, folder: int) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except OSError:
        return None


_GONE_SECONDS = 2.0
_ANNOUNCE_SECONDS = 1.0
#: Volumes are first measured after one second, then every ten as the kubelet does; less often if measuring is slow.
_MEASURES_FIRST_SECONDS, _MEASURES_SECONDS, _MEASURES_SHARE = 1.0, 10.0, 20.0
#: How long the shims of a pod may take to report that their containers were killed.
_END_SECONDS = 10.0


def keep(run: ShimRun, features: Features) -> None:
    """Supervise a claimed sandbox until a stop is requested."""
    run.write(keeper=os.getpid(), phase="Starting")
    group = _pods_group(run, features)
    try:
        users = make_namespace(run.path.split("/")[1]) if features.maps_users else None
        _make(run, features, group)
        _report_state(run, phase="Ready", pid=os.getpid(), startedAt=clock.now(), cgroup=group, users=users)
        _wait(run)
        _end_runs(run)
        message = {}
    except (OSError, ValueError) as failure:
        message = {"message": str(failure)}
    cgroups.remove(group, has_namesakes=features.runner is not None)
    _report_state(run, phase="Exited", finishedAt=clock.now(), **message)


def _wait(run: ShimRun) -> None:
    """Wait until a stop is requested or the run's directory is removed."""
    loop = Loop()

    def look() -> None:
        if run.is_gone() or run.stop_request():
            loop.stop()

    def watch() -> None:
        look()
        loop.after(_GONE_SECONDS, watch)

    loop.when_signalled(signal.SIGTERM, look)
    watch()
    if run.spec.get("limited"):
        _measure(run, loop, _MEASURES_FIRST_SECONDS)
    loop.run()


def _measure(run: ShimRun, loop: Loop, patience: float) -> None:
    """Measure the volumes periodically; report the first one over its limit, which ends the pod."""
    began = clock.monotonic()
    pod = os.path.dirname(os.readlink(f"/proc/self/fd/{run.folder}"))
    for limit in run.spec["limited"]:
        if disk(f"{pod}/volumes/{limit['volume']}") > limit["bytes"]:
            _report_state(run, exceeded={"volume": limit["volume"], "at": clock.now()})
            return
    took = clock.monotonic() - began
    again = max(min(2 * patience, _MEASURES_SECONDS), _MEASURES_SHARE * took)
    loop.after(patience, lambda: _measure(run, loop, again))


def _end_runs(run: ShimRun) -> None:
    """Kill the pod's running containers, and wait until their shims have ended."""
    end = clock.monotonic() + _END_SECONDS
    pod = state_dir.open_folder(os.path.dirname(run.path), run.node)
    while (kept := sweep.kept_runs(pod)) and clock.monotonic() < end:
        for path in kept:
            _kill(pod, path)
        signal.sigtimedwait([], 0.005)


def _kill(pod: int, path: str) -> None:
    with suppress(OSError):
        opened = state_dir.open_folder(path, pod)
        state = state_dir.read_json(opened, "state.json") or {}
        os.close(opened)
        if "pid" in state and state["phase"] == "Running":
            os.kill(state["pid"], signal.SIGKILL)


def _report_state(run: ShimRun, **changes: object) -> None:
    run.write(**changes)
    run.announce(_ANNOUNCE_SECONDS)


def _pods_group(run: ShimRun, features: Features) -> Group:
    """Return the paths of the pod's control group, by controller; empty without control groups."""
    base = features.cgroups.base if features.cgroups else {}
    return {name: f"{path}/{sweep.name_of_pods(run.node)}{run.path.split('/')[1]}" for name, path in base.items()}


def _make(run: ShimRun, features: Features, group: Group) -> None:
    """Create what the containers of the pod share: files, control group, namespaces, volumes in memory."""
    for name, text in _files(run.spec).items():
        with open(os.open(name, os.O_WRONLY | os.O_CREAT, 0o644, dir_fd=run.folder), "w", encoding="utf-8") as file:
            file.write(text)
    if features.cgroups:
        cgroups.make(group, {})
        cgroups.share_out(features.cgroups.version, group)
    if features.namespaces:
        if run.spec["network"] == "pod" and features.network is not None:
            network.enter_new(run.spec, features.network)
        linux.unshare(linux.NEWNS | linux.NEWIPC | linux.NEWUTS)
        linux.make_mounts_private()
        masks.hide_in_sys(os.readlink(f"/proc/self/fd/{run.node}") + f"/{masks.FOLDER}")
        socket.sethostname(run.spec["hostname"])
        _mount_volumes(run)


def _files(spec: dict[str, Any]) -> dict[str, str]:
    """Return the contents of hosts, hostname and resolv.conf of the pod, by name."""
    resolvers, searches = spec["resolvers"], spec["searches"]
    lines = [f"search {' '.join(searches)}"] if searches else []
    lines += [f"nameserver {resolver}" for resolver in resolvers]
    resolv = "".join(f"{line}\n" for line in [*lines, "options ndots:5"]) if resolvers else _machines("resolv.conf")
    return {"hosts": spec["hosts"], "hostname": f"{spec['hostname']}\n", "resolv.conf": resolv}


def _machines(name: str) -> str:
    """Return the content of a file in the machine's /etc."""
    try:
        with open(f"/etc/{name}", encoding="utf-8") as file:
            return file.read()
    except OSError:
        return ""


def _mount_volumes(run: ShimRun) -> None:
    """Mount the volumes in memory (tmpfs) in the pod's mount namespace."""
    pod = os.path.dirname(os.readlink(f"/proc/self/fd/{run.folder}"))
    for volume in run.spec["tmpfs"]:
        size = f"mode=1777,size={volume['bytes']}" if volume["bytes"] is not None else "mode=1777"
        linux.mount("tmpfs", f"{pod}/volumes/{volume['volume']}", "tmpfs", size)
