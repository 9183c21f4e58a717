"""Container runtime of the local node: keeps run objects in step with their folders and shims.

Folders hold the spec and state of each run, and programs of the node act on them. Those programs outlive the platform,
so a restarted platform finds the folders and adopts the running containers. Changes are delivered as events of run
objects (batchyard.interfaces.containers), each as external work of the kernel.
"""

import asyncio
import os
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

from batchyard.api.meta import Key, Obj, key_of
from batchyard.base.instant import Instant
from batchyard.interfaces.client import Create, Delete, EventType, Listener, WatchEvent, Write
from batchyard.interfaces.containers import SANDBOX
from batchyard.kubelet.local.errors import ContainerError, VolumeError
from batchyard.kubelet.local.names import hosts_file
from batchyard.kubelet.local.runs import EXITED
from batchyard.server.clocks.kernel import LiveKernel
from batchyard.server.clocks.wall import wall_clock
from batchyard.server.local_node.network import PodAddresses
from batchyard.server.local_node.run_dirs import VOLUMES, RunFolders, empty
from batchyard.server.local_node.spawner_client import SpawnerClient, is_kept
from batchyard.server.local_node.times import NodeTimes
from batchyard.server.local_node.volumes import make_volume, mount_source

_HOSTS: Final = Path("/etc/hosts")
_DATAGRAM_MAX: Final = 4096
_TAKEN_AT_ONCE: Final = 256
_LOST: Final = {"exitCode": 137, "reason": "ContainerStatusUnknown"}
_LOST_WORDS: Final = "The container could not be located when the pod was terminated"
_CANNOT_START: Final = 128


class LocalMachine:
    """The runs of this machine, and the shims that supervise them. `node` is the node's folder."""

    def __init__(self, node: Path, kernel: LiveKernel, loop: asyncio.AbstractEventLoop, times: NodeTimes) -> None:
        self._kernel = kernel
        self._times = times
        self._loop = loop
        self.folders = RunFolders(node)
        self._node = node
        self._addresses = PodAddresses()
        self._listeners: list[Listener] = []
        self._events: list[WatchEvent] = []
        #: Runs by pod uid, then by name.
        self._runs: dict[str, dict[str, Obj]] = {}
        #: A pidfd of each run's shim.
        self._keepers: dict[Key, int] = {}
        self._socket = _bound(node / "events")
        self._spawner = SpawnerClient(node, loop, self._ask_again)
        #: The features of this machine, as detected by its spawner.
        self.features = self._spawner.features
        self._loop.add_reader(self._socket, self._hear)
        self._find()

    def run(self, key: Key) -> Obj | None:
        """Return a run as last observed, or None."""
        return self._runs.get(key.namespace, {}).get(key.name)

    def runs(self, uid: str | None = None) -> Sequence[Obj]:
        """Return all runs, or those of a pod."""
        if uid is not None:
            return [*self._runs.get(uid, {}).values()]
        return [run for runs in self._runs.values() for run in runs.values()]

    @property
    def gateway(self) -> str:
        """The address by which pods with their own network reach this machine."""
        return self._addresses.gateway

    def subscribe(self, listener: Listener) -> None:
        """Deliver all further changes to a listener."""
        self._listeners.append(listener)

    def do(self, write: Write) -> Obj:
        """Create, stop, refresh or delete a run."""
        if isinstance(write, Delete):
            return self._forget(write.key)
        if isinstance(write, Create):
            return self._start(write.obj)
        return self._refresh(write.obj) if "volumes" in write.obj else self._stop(write.obj)

    def close(self) -> None:
        """Stop observing. Running containers keep running."""
        self._loop.remove_reader(self._socket)
        self._socket.close()
        for key in list(self._keepers):
            self._close_pidfd(key)
        self._spawner.close(is_needed=any(map(_is_alive, self.runs())))

    # --- writes ---

    def _start(self, wanted: Obj) -> Obj:
        key = key_of(wanted)
        before = self.run(key)
        if before is not None:
            self._close_pidfd(key)
            self._empty_later(self.folders.throw_away_sandbox(key))
        run = {field: value for field, value in wanted.items() if field not in {"mounts", "volumes"}}
        try:
            run["spec"] = self._sandbox_spec(wanted) if key.name == SANDBOX else _other_spec(self.folders, wanted)
            self.folders.make(run, run["spec"])
            self._spawner.ask(self.folders.path(key))
            run["status"] = {}
        except (VolumeError, ContainerError) as error:
            run["status"] = _not_started(str(error), self._times.clock())
        except OSError as error:
            run["status"] = _not_started(f"{error.filename or self._node}: {error.strerror}", self._times.clock())
        return self._changed(EventType.ADDED if before is None else EventType.MODIFIED, run, before)

    def _sandbox_spec(self, wanted: Obj) -> Mapping[str, Any]:
        """Return the spec of a sandbox for the programs of the node, and create the pod's volumes."""
        uid: str = wanted["metadata"]["namespace"]
        for name, plan in wanted["volumes"].items():
            make_volume(self.folders.pod(uid) / VOLUMES / name, name, plan, wall_clock())
        spec: Mapping[str, Any] = wanted["spec"]
        address, gateway = None, None
        if self.features.get("podNetwork") and spec["network"] == "pod":
            address, gateway = self._addresses.take(uid), self._addresses.gateway
        own = "" if address is None else address.partition("/")[0]
        of_machine = _HOSTS.read_text("utf-8") if spec["network"] == "node" and _HOSTS.exists() else None
        hosts = hosts_file(spec["names"], own, spec["hostAliases"], of_machine)
        return {
            **spec,
            "address": address,
            "gateway": gateway,
            "resolvers": [gateway] if gateway else [],
            "hosts": hosts,
        }

    def _refresh(self, wanted: Obj) -> Obj:
        """Update the files of a pod's volumes. A volume that cannot be written keeps its content."""
        run = self.run(key_of(wanted))
        if run is None:
            return wanted
        for name, plan in wanted["volumes"].items():
            with suppress(VolumeError):
                make_volume(
                    self.folders.pod(wanted["metadata"]["namespace"]) / VOLUMES / name, name, plan, wall_clock()
                )
        return self._changed(EventType.MODIFIED, {**run, "filesFrom": wanted["filesFrom"]}, run)

    def _stop(self, wanted: Obj) -> Obj:
        key = key_of(wanted)
        run = self.run(key)
        if run is None:
            return wanted
        after = {**run, "stop": wanted["stop"]}
        self.folders.stop(self._times.stopped_there(after))
        self._changed(EventType.MODIFIED, after, run)
        self._hurry(key)
        return after

    def _hurry(self, key: Key) -> None:
        """Signal the shim of a run to read its folder."""
        keeper = self._keepers.get(key)
        if keeper is not None:
            try:
                signal.pidfd_send_signal(keeper, signal.SIGTERM)
            except ProcessLookupError:
                self._keeper_ended(key)

    def _forget(self, key: Key) -> Obj:
        of_pod = self._runs.get(key.namespace, {})
        run = of_pod.pop(key.name, None)
        if not of_pod:
            self._runs.pop(key.namespace, None)
        self._close_pidfd(key)
        self._empty_later(self.folders.throw_away(key))
        if key.name == SANDBOX:
            self._addresses.give_back(key.namespace)
        if run is None:
            return {"apiVersion": "", "kind": "", "metadata": {}}
        self._queue_event(WatchEvent(EventType.DELETED, key, run, run, 0))
        return run

    # --- observation ---

    def _find(self) -> None:
        """Adopt the runs that were started by an earlier process."""
        for gone in self.folders.trash():
            self._empty_later(gone)
        for run in map(self._times.run, self.folders.found()):
            key = key_of(run)
            if key.name == SANDBOX:
                self._addresses.keep(key.namespace, run["spec"].get("address"))
            self._changed(EventType.ADDED, run, None)
            if run["status"] and _is_alive(run):
                self._watch(key, run)
        self._ask_again()

    def _ask_again(self) -> None:
        """Request again the runs without a state: the requests may have been lost with a spawner.

        A claimed run is never started by another shim. If its shim died before it wrote a state, the run is lost.
        """
        for run in self.runs():
            path = self.folders.path(key_of(run))
            if run["status"]:
                continue
            if self.folders.is_claimed(path) and not is_kept(self._node / path):
                self._keeper_ended(key_of(run))
            else:
                self._spawner.ask(path)

    def _hear(self) -> None:
        """Read the folders that have changed."""
        changed: dict[bytes, None] = {}
        for _ in range(_TAKEN_AT_ONCE):
            try:
                changed[self._socket.recv(_DATAGRAM_MAX)] = None
            except BlockingIOError:
                break
        for path in changed:
            self._look(self.folders.key(Path(os.fsdecode(path))))

    def _look(self, key: Key) -> None:
        """Update a run from its folder."""
        run = self._take_in(key)
        if run is None or not run["status"]:
            return
        if not _is_alive(run):
            self._close_pidfd(key)
        elif key not in self._keepers:
            self._watch(key, run)

    def _take_in(self, key: Key) -> Obj | None:
        """Read the state of a run from its folder. Return the run, or None."""
        run = self.run(key)
        state = {} if run is None else self._times.state(self.folders.state(key))
        if run is None or not state or state == run["status"]:
            return run
        return self._changed(EventType.MODIFIED, {**run, "status": state}, run)

    def _watch(self, key: Key, run: Obj) -> None:
        """Watch the shim of a run for its exit."""
        try:
            keeper = os.pidfd_open(run["status"]["keeper"])
        except ProcessLookupError:
            self._keeper_ended(key)
            return
        self._keepers[key] = keeper
        self._loop.add_reader(keeper, partial(self._keeper_ended, key))
        if not is_kept(self._node / self.folders.path(key)):
            self._keeper_ended(key)  # the pid was reused by another process
        elif "stop" in run:
            self._hurry(key)  # the stop may precede the watch of the shim

    def _keeper_ended(self, key: Key) -> None:
        """Handle the exit of a shim. If the run did not end before, its outcome is unknown."""
        self._close_pidfd(key)
        run = self._take_in(key)
        if run is None or not _is_alive(run):
            return
        status = {**run["status"], **_LOST, "phase": EXITED, "finishedAt": self._times.clock(), "message": _LOST_WORDS}
        self._changed(EventType.MODIFIED, {**run, "status": status}, run)

    def _close_pidfd(self, key: Key) -> None:
        keeper = self._keepers.pop(key, None)
        if keeper is not None:
            self._loop.remove_reader(keeper)
            os.close(keeper)

    def _changed(self, kind: EventType, run: Obj, old: Obj | None) -> Obj:
        key = key_of(run)
        self._runs.setdefault(key.namespace, {})[key.name] = run
        self._queue_event(WatchEvent(kind, key, run, old, 0))
        return run

    def _empty_later(self, gone: Path) -> None:
        self._loop.run_in_executor(None, empty, gone)

    def _queue_event(self, event: WatchEvent) -> None:
        """Queue an event, to be delivered together with others of this loop iteration."""
        self._events.append(event)
        if len(self._events) == 1:
            self._kernel.post(self._deliver)

    def _deliver(self) -> None:
        events, self._events = self._events, []
        for listener in self._listeners:
            listener(events)


def _bound(path: Path) -> socket.socket:
    """Bind the datagram socket at which shims report changed folders."""
    found = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    at_folder(path, found.bind)
    return found


def at_folder(path: Path, use: Callable[[str], None]) -> None:
    """Call `use` with a short socket address, since the path may exceed the limit of Unix sockets."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        use(f"/proc/self/fd/{folder}/{path.name}")
    finally:
        os.close(folder)


def _other_spec(folders: RunFolders, wanted: Obj) -> Mapping[str, Any]:
    """Return the spec of a container or image run for the programs of the node, with resolved mount sources."""
    spec: Mapping[str, Any] = wanted["spec"]
    if "mounts" not in wanted:
        return spec
    pod, plans = folders.pod(wanted["metadata"]["namespace"]), wanted["volumes"]
    of_volumes = [each.row(mount_source(pod, each, plans[each.volume])) for each in wanted["mounts"]]
    targets = {row["target"] for row in of_volumes}
    of_image = [row for row in spec["mounts"] if row["target"] not in targets]
    others = [{**row, "source": os.path.realpath(row["source"])} for row in of_image]
    return {**spec, "mounts": [*others, *of_volumes]}


def _not_started(why: str, now: Instant) -> Mapping[str, Any]:
    """Return the state of a run that could not be requested."""
    ended = {"exitCode": _CANNOT_START, "reason": "StartError", "message": why, "finishedAt": now}
    return {"phase": EXITED, **ended}


def _is_alive(run: Obj) -> bool:
    return (run.get("status") or {}).get("phase") != EXITED
