"""The machine that a platform is on, as one that runs containers.

Folders hold the wishes and what became of them, programs of the node act. Those outlive the platform: one that starts
again finds the folders, and goes on with what runs. Whatever changes is told as changes of run objects
(batchyard.interfaces.containers), each as a piece of work from outside.
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
from batchyard.server.local_node.network import Addresses
from batchyard.server.local_node.run_dirs import VOLUMES, RunFolders, empty
from batchyard.server.local_node.spawner_client import Spawner, is_kept
from batchyard.server.local_node.times import NodeTimes
from batchyard.server.local_node.volumes import make_volume, mount_source

_HOSTS: Final = Path("/etc/hosts")
_DATAGRAM_MAX: Final = 4096
_TAKEN_AT_ONCE: Final = 256
_LOST: Final = {"exitCode": 137, "reason": "ContainerStatusUnknown"}
_LOST_WORDS: Final = "The container could not be located when the pod was terminated"
_CANNOT_START: Final = 128


class LocalMachine:
    """See the module. `node` is the node's folder."""

    def __init__(self, node: Path, kernel: LiveKernel, loop: asyncio.AbstractEventLoop, times: NodeTimes) -> None:
        self._kernel = kernel
        self._times = times
        self._loop = loop
        self.folders = RunFolders(node)
        self._node = node
        self._addresses = Addresses()
        self._listeners: list[Listener] = []
        self._events: list[WatchEvent] = []
        #: Runs by the uid of their pod, and their name.
        self._runs: dict[str, dict[str, Obj]] = {}
        #: What tells of the end of the keeper of a run.
        self._keepers: dict[Key, int] = {}
        self._socket = _bound(node / "events")
        self._spawner = Spawner(node, loop, self._ask_again)
        #: What this machine can do, as its spawner found.
        self.features = self._spawner.features
        self._loop.add_reader(self._socket, self._hear)
        self._find()

    def run(self, key: Key) -> Obj | None:
        """One run, as it was last seen."""
        return self._runs.get(key.namespace, {}).get(key.name)

    def runs(self, uid: str | None = None) -> Sequence[Obj]:
        """All runs, or those of a pod."""
        if uid is not None:
            return [*self._runs.get(uid, {}).values()]
        return [run for runs in self._runs.values() for run in runs.values()]

    @property
    def gateway(self) -> str:
        """The address that pods reach this machine at, where they have a network of their own."""
        return self._addresses.gateway

    def subscribe(self, listener: Listener) -> None:
        """Tell a listener of every later change."""
        self._listeners.append(listener)

    def do(self, write: Write) -> Obj:
        """Do what is wanted of a run."""
        if isinstance(write, Delete):
            return self._forget(write.key)
        if isinstance(write, Create):
            return self._start(write.obj)
        return self._refresh(write.obj) if "volumes" in write.obj else self._stop(write.obj)

    def close(self) -> None:
        """Look at it no more; what runs goes on."""
        self._loop.remove_reader(self._socket)
        self._socket.close()
        for key in list(self._keepers):
            self._let_go(key)
        self._spawner.close(is_needed=any(map(_is_alive, self.runs())))

    # --- what is wanted ---

    def _start(self, wish: Obj) -> Obj:
        key = key_of(wish)
        before = self.run(key)
        if before is not None:
            self._let_go(key)
            self._empty_later(self.folders.throw_away_sandbox(key))
        run = {field: value for field, value in wish.items() if field not in {"mounts", "volumes"}}
        try:
            run["spec"] = self._sandbox_spec(wish) if key.name == SANDBOX else _other_spec(self.folders, wish)
            self.folders.make(run, run["spec"])
            self._spawner.ask(self.folders.path(key))
            run["status"] = {}
        except (VolumeError, ContainerError) as error:
            run["status"] = _not_started(str(error), self._times.clock())
        except OSError as error:
            run["status"] = _not_started(f"{error.filename or self._node}: {error.strerror}", self._times.clock())
        return self._changed(EventType.ADDED if before is None else EventType.MODIFIED, run, before)

    def _sandbox_spec(self, wish: Obj) -> Mapping[str, Any]:
        """The wish for a sandbox as the programs of the node read it; makes the pod's volumes."""
        uid: str = wish["metadata"]["namespace"]
        for name, plan in wish["volumes"].items():
            make_volume(self.folders.pod(uid) / VOLUMES / name, name, plan, wall_clock())
        spec: Mapping[str, Any] = wish["spec"]
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

    def _refresh(self, wish: Obj) -> Obj:
        """Bring the files of a pod's volumes up to date. What cannot be written stays as it was."""
        run = self.run(key_of(wish))
        if run is None:
            return wish
        for name, plan in wish["volumes"].items():
            with suppress(VolumeError):
                make_volume(self.folders.pod(wish["metadata"]["namespace"]) / VOLUMES / name, name, plan, wall_clock())
        return self._changed(EventType.MODIFIED, {**run, "filesFrom": wish["filesFrom"]}, run)

    def _stop(self, wish: Obj) -> Obj:
        key = key_of(wish)
        run = self.run(key)
        if run is None:
            return wish
        after = {**run, "stop": wish["stop"]}
        self.folders.stop(self._times.stopped_there(after))
        self._changed(EventType.MODIFIED, after, run)
        self._hurry(key)
        return after

    def _hurry(self, key: Key) -> None:
        """Have the keeper of a run look at its folder."""
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
        self._let_go(key)
        self._empty_later(self.folders.throw_away(key))
        if key.name == SANDBOX:
            self._addresses.give_back(key.namespace)
        if run is None:
            return {"apiVersion": "", "kind": "", "metadata": {}}
        self._tell(WatchEvent(EventType.DELETED, key, run, run, 0))
        return run

    # --- what happens ---

    def _find(self) -> None:
        """Take up what ran before this process."""
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
        """Ask for the runs that nobody has begun with: their wishes may have been lost with a spawner.

        One that was claimed is never kept by another: where its keeper is gone before it said a word, it is lost.
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
        """Look at the folders in which something changed."""
        told: dict[bytes, None] = {}
        for _ in range(_TAKEN_AT_ONCE):
            try:
                told[self._socket.recv(_DATAGRAM_MAX)] = None
            except BlockingIOError:
                break
        for path in told:
            self._look(self.folders.key(Path(os.fsdecode(path))))

    def _look(self, key: Key) -> None:
        """See what became of a run."""
        run = self._take_in(key)
        if run is None or not run["status"]:
            return
        if not _is_alive(run):
            self._let_go(key)
        elif key not in self._keepers:
            self._watch(key, run)

    def _take_in(self, key: Key) -> Obj | None:
        """A run, with the state that its folder tells now."""
        run = self.run(key)
        state = {} if run is None else self._times.state(self.folders.state(key))
        if run is None or not state or state == run["status"]:
            return run
        return self._changed(EventType.MODIFIED, {**run, "status": state}, run)

    def _watch(self, key: Key, run: Obj) -> None:
        """Be told when the keeper of a run ends."""
        try:
            keeper = os.pidfd_open(run["status"]["keeper"])
        except ProcessLookupError:
            self._keeper_ended(key)
            return
        self._keepers[key] = keeper
        self._loop.add_reader(keeper, partial(self._keeper_ended, key))
        if not is_kept(self._node / self.folders.path(key)):
            self._keeper_ended(key)  # that process is another, of the same number
        elif "stop" in run:
            self._hurry(key)  # the wish may have come before the keeper could be told

    def _keeper_ended(self, key: Key) -> None:
        """Nobody keeps a run any more: if it did not end before, nobody knows what became of it."""
        self._let_go(key)
        run = self._take_in(key)
        if run is None or not _is_alive(run):
            return
        status = {**run["status"], **_LOST, "phase": EXITED, "finishedAt": self._times.clock(), "message": _LOST_WORDS}
        self._changed(EventType.MODIFIED, {**run, "status": status}, run)

    def _let_go(self, key: Key) -> None:
        keeper = self._keepers.pop(key, None)
        if keeper is not None:
            self._loop.remove_reader(keeper)
            os.close(keeper)

    def _changed(self, kind: EventType, run: Obj, old: Obj | None) -> Obj:
        key = key_of(run)
        self._runs.setdefault(key.namespace, {})[key.name] = run
        self._tell(WatchEvent(kind, key, run, old, 0))
        return run

    def _empty_later(self, gone: Path) -> None:
        self._loop.run_in_executor(None, empty, gone)

    def _tell(self, event: WatchEvent) -> None:
        """Tell of a change, with all that gather by then."""
        self._events.append(event)
        if len(self._events) == 1:
            self._kernel.post(self._deliver)

    def _deliver(self) -> None:
        events, self._events = self._events, []
        for listener in self._listeners:
            listener(events)


def _bound(path: Path) -> socket.socket:
    """The socket at which keepers tell what changed."""
    found = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    at_folder(path, found.bind)
    return found


def at_folder(path: Path, use: Callable[[str], None]) -> None:
    """Use the address of a socket whose path may be too long for one."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        use(f"/proc/self/fd/{folder}/{path.name}")
    finally:
        os.close(folder)


def _other_spec(folders: RunFolders, wish: Obj) -> Mapping[str, Any]:
    """The wish for a container as the programs of the node read it: its mounts are looked up; or for an image."""
    spec: Mapping[str, Any] = wish["spec"]
    if "mounts" not in wish:
        return spec
    pod, plans = folders.pod(wish["metadata"]["namespace"]), wish["volumes"]
    of_volumes = [each.row(mount_source(pod, each, plans[each.volume])) for each in wish["mounts"]]
    targets = {row["target"] for row in of_volumes}
    of_image = [row for row in spec["mounts"] if row["target"] not in targets]
    others = [{**row, "source": os.path.realpath(row["source"])} for row in of_image]
    return {**spec, "mounts": [*others, *of_volumes]}


def _not_started(why: str, now: Instant) -> Mapping[str, Any]:
    """The state of a run that could not even be asked for."""
    ended = {"exitCode": _CANNOT_START, "reason": "StartError", "message": why, "finishedAt": now}
    return {"phase": EXITED, **ended}


def _is_alive(run: Obj) -> bool:
    return (run.get("status") or {}).get("phase") != EXITED
