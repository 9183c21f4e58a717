"""Container runtime of this machine as a node: starts, stops and observes container runs, and creates volumes.

A run is a container start, a pod sandbox or an image pull; its spec and state are files in a folder. The spawner
process starts a shim process for each run, which supervises the run. These processes outlive the platform, so a
restarted platform adopts the running containers. The event loop delivers changes to the subscribed listeners as watch
events of run objects (batchyard.interfaces.containers).
"""

import asyncio
import os
import signal
import socket
import stat
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

from batchyard.api.meta import Key, Obj, key_of
from batchyard.api.times import format_time
from batchyard.base.instant import Instant
from batchyard.interfaces.client import Create, Delete, EventType, Listener, WatchEvent, Write
from batchyard.interfaces.containers import SANDBOX
from batchyard.kubelet.local import volumes
from batchyard.kubelet.local.errors import CONFIG_ERROR, ContainerError, VolumeError, quote_like_go
from batchyard.kubelet.local.names import hosts_file
from batchyard.kubelet.local.runs import EXITED
from batchyard.server.clocks.kernel import LiveKernel
from batchyard.server.clocks.wall import wall_clock
from batchyard.server.local_node.network import PodAddresses
from batchyard.server.local_node.run_dirs import VOLUMES_FOLDER, NodeTimes, RunFolders, delete_folder
from batchyard.server.local_node.spawner_client import SpawnerClient, is_supervised
from batchyard.shim.isolation import nesting

# Volumes of pods in their folders, updated atomically: a reader sees either the old or the new files.
#
#     ..data                       -> ..2026_01_01_00_00_00.ab12cd34, the folder that holds the files
#     name                         -> ..data/name, for each top-level file or folder
#
# A volume is updated by renaming `..data`. A container that mounts a single file (subPath) holds that file itself and
# sees no update. The next update removes the leftovers of an interrupted one. There is only one writer.
# Sources: pkg/volume/util (atomic_writer.go, nested_volumes.go, subpath); pkg/volume (volume_linux.go, hostpath).


DATA_LINK: Final = "..data"
_NEXT_LINK: Final = "..data_tmp"
_RESERVED_PREFIX: Final = ".."
_FOLDER_MODE: Final = 0o755
_FILE_MODE: Final = 0o644
_VOLUME_MODE: Final = 0o777


def make_volume(folder: Path, name: str, volume_plan: volumes.VolumePlan, now: Instant) -> bool:
    """Create or update a pod's volume in `folder`. Return whether the volume's files have changed.

    Raises VolumeError on failure. For an emptyDir in memory, only the folder is created; the sandbox mounts a tmpfs
    there. A hostPath is checked, and created if its type requires that.
    """
    try:
        match volume_plan:
            case volumes.VolumeFiles():
                return write_files(folder, volume_plan, now)
            case volumes.EmptyDirPlan():
                _make_folders(folder, folder, volume_plan.mode)
            case volumes.HostPathPlan():
                _check_host_path(name, volume_plan)
    except OSError as error:
        raise VolumeError(name, f"{error.filename or folder}: {error.strerror}") from error
    return False


def write_files(folder: Path, plan: volumes.VolumeFiles, now: Instant) -> bool:
    """Atomically replace the files of a volume by the files in the plan. Return whether the files have changed."""
    is_new_volume = not folder.exists()
    _make_folders(folder, folder, _VOLUME_MODE)
    for mount_point in plan.mount_points:
        _make_folders(folder, folder / mount_point, _FOLDER_MODE)
    current_data_folder = None if is_new_volume else _current_data_folder(folder)
    have_files_changed = current_data_folder is None or _read_file_contents(current_data_folder) != {
        path: file.content for path, file in plan.files.items()
    }
    new_data_folder = _write_new_data_folder(folder, plan, now) if have_files_changed else None
    _link_top_level_names_to_data(folder, plan.files)
    if new_data_folder is not None:
        next_link = folder / _NEXT_LINK
        next_link.unlink(missing_ok=True)
        next_link.symlink_to(new_data_folder.name)
        next_link.replace(folder / DATA_LINK)
    if not is_new_volume:
        _remove_leftovers(folder, plan.files)
    return have_files_changed


def _current_data_folder(folder: Path) -> Path | None:
    try:
        current_folder = folder / (folder / DATA_LINK).readlink()
    except OSError:
        return None
    return current_folder if current_folder.is_dir() else None


def _read_file_contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def _write_new_data_folder(folder: Path, plan: volumes.VolumeFiles, now: Instant) -> Path:
    """Write a volume's files to a new folder, to which `..data` does not point yet; return the folder's path."""
    timestamp = format_time(now).translate(str.maketrans("-T:", "___")).removesuffix("Z")
    new_data_folder = Path(tempfile.mkdtemp(prefix=f"{_RESERVED_PREFIX}{timestamp}.", dir=folder))
    new_data_folder.chmod(_FOLDER_MODE)
    for path, file in plan.files.items():
        if "/" in path:
            _make_folders(new_data_folder, (new_data_folder / path).parent, _FOLDER_MODE)
        (new_data_folder / path).touch(mode=0o600)
        (new_data_folder / path).write_bytes(file.content)
        if plan.group is not None:
            with suppress(PermissionError):  # an unprivileged user runs all containers under its own uid
                os.chown(new_data_folder / path, -1, plan.group)
        (new_data_folder / path).chmod(file.mode)
    return new_data_folder


def _link_top_level_names_to_data(folder: Path, files: Mapping[str, volumes.VolumeFile]) -> None:
    for name in _top_level_names(files):
        with suppress(FileExistsError):
            (folder / name).symlink_to(f"{DATA_LINK}/{name}")


def _top_level_names(files: Mapping[str, volumes.VolumeFile]) -> list[str]:
    return list(dict.fromkeys(path.split("/")[0] for path in files))


def _remove_leftovers(folder: Path, files: Mapping[str, volumes.VolumeFile]) -> None:
    current_names = {DATA_LINK, str((folder / DATA_LINK).readlink()), *_top_level_names(files)}
    for path in sorted(folder.iterdir()):
        if path.name in current_names:
            continue
        if path.is_symlink() and (path.name == _NEXT_LINK or str(path.readlink()).startswith(f"{DATA_LINK}/")):
            path.unlink()
        elif path.name.startswith(_RESERVED_PREFIX) and path.is_dir():
            delete_folder(path)


def _make_folders(volume_folder: Path, deepest_folder: Path, mode: int) -> None:
    """Create `deepest_folder` in a volume and its missing parent folders, with this mode whatever the umask is."""
    missing_folders: list[Path] = []
    folder = deepest_folder
    while not folder.exists() and folder != volume_folder.parent:
        missing_folders.append(folder)
        folder = folder.parent
    for missing_folder in reversed(missing_folders):
        missing_folder.mkdir(parents=True)
        missing_folder.chmod(mode)


def _check_host_path(name: str, plan: volumes.HostPathPlan) -> None:
    """Check a hostPath; if it is missing, create it where its type permits that. Raises VolumeError."""
    path = Path(plan.path)
    real_path = os.path.realpath(path)
    if not _is_host_path_allowed(real_path, plan):
        problem = f"hostPath {path} leads to {real_path}, which is outside the allowed host paths"
        raise VolumeError(name, f"{problem}: {volumes.HOST_PATH_REMEDY}")
    if not path.exists() and plan.type in {"", "DirectoryOrCreate"}:
        os.close(nesting.make_directories(path.anchor, real_path, plan.mode))
    elif not path.exists() and plan.type == "FileOrCreate":
        os.close(nesting.create_file(path.anchor, real_path, _FILE_MODE))
    type_fault = _host_path_type_fault(path, plan.type)
    if type_fault:
        raise VolumeError(name, f"hostPath type check failed: {path} is not a {type_fault}")


def _is_host_path_allowed(real_path: str, plan: volumes.HostPathPlan) -> bool:
    return volumes.is_within_any(real_path, (os.path.realpath(folder) for folder in plan.allowed_folders))


def _host_path_type_fault(path: Path, kind: str) -> str:
    file_mode = path.stat().st_mode if path.exists() else 0
    match kind:
        case "Directory" | "DirectoryOrCreate":
            return "" if stat.S_ISDIR(file_mode) else "directory"
        case "File" | "FileOrCreate":
            return "" if file_mode and not stat.S_ISDIR(file_mode) else "file"
        case "Socket":
            return "" if stat.S_ISSOCK(file_mode) else "socket file"
        case "CharDevice":
            return "" if stat.S_ISCHR(file_mode) else "character device"
        case "BlockDevice":
            return "" if stat.S_ISBLK(file_mode) else "block device"
    return ""


def mount_source(pod_folder: Path, mount: volumes.Mount, plan: volumes.VolumePlan) -> str:
    """Return the source path of a container's volume mount, and create the missing folder of a subPath.

    The path is absolute for a hostPath, and otherwise relative to `pod_folder`.

    Raises ContainerError if the path is outside its volume or the allowed host paths, or if the folder cannot be
    created. Containers can replace folders by symbolic links at any time. So no link is followed when a folder is
    created, nor when the result is mounted (batchyard.shim.launch).
    """
    if isinstance(plan, volumes.EmptyDirPlan) and plan.is_memory:
        return mount.source  # it is mounted only inside the pod's sandbox
    volume = Path(os.path.realpath(pod_folder / mount.folder))
    if isinstance(plan, volumes.HostPathPlan) and not _is_host_path_allowed(str(volume), plan):
        problem = f"hostPath {plan.path} leads outside the allowed host paths"
        raise ContainerError(CONFIG_ERROR, f"{problem}: {volumes.HOST_PATH_REMEDY}")
    if not mount.sub_path:
        return str(volume) if isinstance(plan, volumes.HostPathPlan) else mount.source
    target = Path(os.path.realpath(volume / mount.sub_path))
    if not volumes.is_within_any(str(target), [str(volume)]):
        raise _sub_path_error("prepare subPath", mount)
    try:
        volume_fd = nesting.open_path(volume.anchor, str(volume))
        try:
            folder_mode = stat.S_IMODE(os.fstat(volume_fd).st_mode)
            os.close(nesting.make_directories(volume_fd, str(target.relative_to(volume)), folder_mode))
        finally:
            os.close(volume_fd)
    except OSError as error:
        raise _sub_path_error("create subPath directory", mount) from error
    if isinstance(plan, volumes.VolumeFiles):
        return mount.source  # only the platform writes there, and the link follows later updates
    return str(target if isinstance(plan, volumes.HostPathPlan) else Path(mount.folder) / target.relative_to(volume))


def _sub_path_error(action: str, mount: volumes.Mount) -> ContainerError:
    """Return the error for a volume mount whose subPath is unusable, without details about this machine."""
    description = f"for volumeMount {quote_like_go(mount.volume)} of container {quote_like_go(mount.container)}"
    return ContainerError(CONFIG_ERROR, f"failed to {action} {description}")


_HOSTS_FILE: Final = Path("/etc/hosts")
_DATAGRAM_MAX: Final = 4096
_DATAGRAMS_PER_READ_MAX: Final = 256
_LOST_MESSAGE: Final = "The container could not be located when the pod was terminated"
_LOST_STATUS: Final = {"exitCode": 137, "reason": "ContainerStatusUnknown", "phase": EXITED, "message": _LOST_MESSAGE}
_START_ERROR_CODE: Final = 128


class LocalContainerRuntime:
    """The container runtime of this machine: its container runs, and the shim processes that supervise them.

    `node` is the node's folder.
    """

    def __init__(self, node: Path, kernel: LiveKernel, loop: asyncio.AbstractEventLoop, node_times: NodeTimes) -> None:
        self._kernel = kernel
        self._times = node_times
        self._loop = loop
        self.folders = RunFolders(node)
        self._node = node
        self._addresses = PodAddresses()
        self._listeners: list[Listener] = []
        self._events: list[WatchEvent] = []
        #: Runs by pod uid, then by name.
        self._runs: dict[str, dict[str, Obj]] = {}
        #: The pidfd of each run's shim.
        self._shim_pidfds: dict[Key, int] = {}
        self._socket = _create_event_socket(node / "events")
        self._spawner = SpawnerClient(node, loop, self._repeat_start_requests)
        #: The features of this machine, as detected by its spawner.
        self.features = self._spawner.features
        self._loop.add_reader(self._socket, self._receive_changes)
        self._adopt_runs()

    def find_run(self, key: Key) -> Obj | None:
        """Return the container run with this key as last observed, or None."""
        return self._runs.get(key.namespace, {}).get(key.name)

    def runs(self, uid: str | None = None) -> Sequence[Obj]:
        """Return all container runs, or those of the pod with this uid, as run objects."""
        if uid is not None:
            return [*self._runs.get(uid, {}).values()]
        return [run for runs in self._runs.values() for run in runs.values()]

    @property
    def gateway(self) -> str:
        """The IP address by which pods in the pod network reach this machine."""
        return self._addresses.gateway

    def subscribe(self, listener: Listener) -> None:
        """Register a listener, which is called with each later batch of changes of container runs."""
        self._listeners.append(listener)

    def execute_write(self, write: Write) -> Obj:
        """Start (Create), stop or delete a container run, or update the files of its volumes; return the run object.

        If a run cannot be started, the error becomes its status.
        """
        if isinstance(write, Delete):
            return self._delete_run(write.key)
        if isinstance(write, Create):
            return self._start_run(write.obj)
        return self._refresh_volumes(write.obj) if "volumes" in write.obj else self._request_stop(write.obj)

    def close(self) -> None:
        """Stop observing container runs, which keep running. If none is running, terminate the spawner process."""
        self._loop.remove_reader(self._socket)
        self._socket.close()
        for key in list(self._shim_pidfds):
            self._close_pidfd(key)
        self._spawner.close(is_needed=any(map(_is_run_alive, self.runs())))

    # --- writes ---

    def _start_run(self, new_run: Obj) -> Obj:
        key = key_of(new_run)
        previous_run = self.find_run(key)
        if previous_run is not None:
            self._close_pidfd(key)
            self._delete_folder_later(self.folders.move_sandbox_to_trash(key))
        run = {field: value for field, value in new_run.items() if field not in {"mounts", "volumes"}}
        try:
            run["spec"] = (
                self._prepare_sandbox_spec(new_run) if key.name == SANDBOX else _prepare_run_spec(self.folders, new_run)
            )
            self.folders.create(run, run["spec"])
            self._spawner.request_shim(self.folders.path(key))
            run["status"] = {}
        except (VolumeError, ContainerError) as error:
            run["status"] = _error_status(str(error), self._times.clock())
        except OSError as error:
            run["status"] = _error_status(f"{error.filename or self._node}: {error.strerror}", self._times.clock())
        return self._replace_run(EventType.ADDED if previous_run is None else EventType.MODIFIED, run, previous_run)

    def _prepare_sandbox_spec(self, requested_run: Obj) -> Mapping[str, Any]:
        uid: str = requested_run["metadata"]["namespace"]
        for name, plan in requested_run["volumes"].items():
            make_volume(self.folders.pod_folder(uid) / VOLUMES_FOLDER / name, name, plan, wall_clock())
        spec: Mapping[str, Any] = requested_run["spec"]
        address, gateway = None, None
        if self.features.get("podNetwork") and spec["network"] == "pod":
            address, gateway = self._addresses.allocate(uid), self._addresses.gateway
        pod_ip = "" if address is None else address.partition("/")[0]
        machine_hosts = _HOSTS_FILE.read_text("utf-8") if spec["network"] == "node" and _HOSTS_FILE.exists() else None
        hosts_text = hosts_file(spec["names"], pod_ip, spec["hostAliases"], machine_hosts)
        nameservers = [gateway] if gateway else []
        return {**spec, "address": address, "gateway": gateway, "resolvers": nameservers, "hosts": hosts_text}

    def _refresh_volumes(self, requested_run: Obj) -> Obj:
        run = self.find_run(key_of(requested_run))
        if run is None:
            return requested_run
        folder = self.folders.pod_folder(requested_run["metadata"]["namespace"]) / VOLUMES_FOLDER
        for name, plan in requested_run["volumes"].items():
            with suppress(VolumeError):
                make_volume(folder / name, name, plan, wall_clock())
        return self._replace_run(EventType.MODIFIED, {**run, "filesFrom": requested_run["filesFrom"]}, run)

    def _request_stop(self, requested_run: Obj) -> Obj:
        key = key_of(requested_run)
        run = self.find_run(key)
        if run is None:
            return requested_run
        stopping_run = {**run, "stop": requested_run["stop"]}
        self.folders.request_stop(self._times.with_machine_stop_time(stopping_run))
        self._replace_run(EventType.MODIFIED, stopping_run, run)
        self._signal_shim(key)
        return stopping_run

    def _signal_shim(self, key: Key) -> None:
        """Signal a container run's shim (supervisor process) to read the stop request in the run's folder."""
        shim_pidfd = self._shim_pidfds.get(key)
        if shim_pidfd is not None:
            try:
                signal.pidfd_send_signal(shim_pidfd, signal.SIGTERM)
            except ProcessLookupError:
                self._process_shim_exit(key)

    def _delete_run(self, key: Key) -> Obj:
        pod_runs = self._runs.get(key.namespace, {})
        run = pod_runs.pop(key.name, None)
        if not pod_runs:
            self._runs.pop(key.namespace, None)
        self._close_pidfd(key)
        self._delete_folder_later(self.folders.move_to_trash(key))
        if key.name == SANDBOX:
            self._addresses.release(key.namespace)
        if run is None:
            return {"apiVersion": "", "kind": "", "metadata": {}}
        self._queue_event(WatchEvent(EventType.DELETED, key, run, run, 0))
        return run

    # --- observation ---

    def _adopt_runs(self) -> None:
        for trashed in self.folders.trashed_paths():
            self._delete_folder_later(trashed)
        for run in map(self._times.convert_run, self.folders.all_runs()):
            key = key_of(run)
            if key.name == SANDBOX:
                self._addresses.restore(key.namespace, run["spec"].get("address"))
            self._replace_run(EventType.ADDED, run, None)
            if run["status"] and _is_run_alive(run):
                self._watch_shim(key, run)
        self._repeat_start_requests()

    def _repeat_start_requests(self) -> None:
        """Repeat the start requests of container runs without a state: a spawner that exited may have lost them.

        A run that a shim has claimed is not started again. If that shim has exited without a state, the run is lost.
        """
        for run in self.runs():
            path = self.folders.path(key_of(run))
            if run["status"]:
                continue
            if self.folders.is_claimed(path) and not is_supervised(self._node / path):
                self._process_shim_exit(key_of(run))
            else:
                self._spawner.request_shim(path)

    def _receive_changes(self) -> None:
        changed_paths: dict[bytes, None] = {}
        for _ in range(_DATAGRAMS_PER_READ_MAX):
            try:
                changed_paths[self._socket.recv(_DATAGRAM_MAX)] = None
            except BlockingIOError:
                break
        for path in changed_paths:
            self._process_state_change(self.folders.key(Path(os.fsdecode(path))))

    def _process_state_change(self, key: Key) -> None:
        run = self._read_run_state(key)
        if run is None or not run["status"]:
            return
        if not _is_run_alive(run):
            self._close_pidfd(key)
        elif key not in self._shim_pidfds:
            self._watch_shim(key, run)

    def _read_run_state(self, key: Key) -> Obj | None:
        run = self.find_run(key)
        state = {} if run is None else self._times.convert_state(self.folders.state(key))
        if run is None or not state or state == run["status"]:
            return run
        return self._replace_run(EventType.MODIFIED, {**run, "status": state}, run)

    def _watch_shim(self, key: Key, run: Obj) -> None:
        try:
            shim_pidfd = os.pidfd_open(run["status"]["keeper"])
        except ProcessLookupError:
            self._process_shim_exit(key)
            return
        self._shim_pidfds[key] = shim_pidfd
        self._loop.add_reader(shim_pidfd, partial(self._process_shim_exit, key))
        if not is_supervised(self._node / self.folders.path(key)):
            self._process_shim_exit(key)  # the pid was reused by another process
        elif "stop" in run:
            self._signal_shim(key)  # the stop may have been requested before the shim was watched

    def _process_shim_exit(self, key: Key) -> None:
        self._close_pidfd(key)
        run = self._read_run_state(key)
        if run is None or not _is_run_alive(run):
            return
        status = {**run["status"], **_LOST_STATUS, "finishedAt": self._times.clock()}
        self._replace_run(EventType.MODIFIED, {**run, "status": status}, run)

    def _close_pidfd(self, key: Key) -> None:
        shim_pidfd = self._shim_pidfds.pop(key, None)
        if shim_pidfd is not None:
            self._loop.remove_reader(shim_pidfd)
            os.close(shim_pidfd)

    def _replace_run(self, kind: EventType, run: Obj, old: Obj | None) -> Obj:
        key = key_of(run)
        self._runs.setdefault(key.namespace, {})[key.name] = run
        self._queue_event(WatchEvent(kind, key, run, old, 0))
        return run

    def _delete_folder_later(self, folder: Path) -> None:
        self._loop.run_in_executor(None, delete_folder, folder)

    def _queue_event(self, event: WatchEvent) -> None:
        self._events.append(event)
        if len(self._events) == 1:
            self._kernel.post(self._deliver_events)

    def _deliver_events(self) -> None:
        events, self._events = self._events, []
        for listener in self._listeners:
            listener(events)


def _create_event_socket(path: Path) -> socket.socket:
    event_socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    call_with_short_path(path, event_socket.bind)
    return event_socket


def call_with_short_path(path: Path, action: Callable[[str], None]) -> None:
    """Call `action` (such as bind) with a short path of a Unix socket, whose full path may exceed Linux's limit."""
    folder_fd = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        action(f"/proc/self/fd/{folder_fd}/{path.name}")
    finally:
        os.close(folder_fd)


def _prepare_run_spec(folders: RunFolders, requested_run: Obj) -> Mapping[str, Any]:
    spec: Mapping[str, Any] = requested_run["spec"]
    if "mounts" not in requested_run:
        return spec
    folder, plans = folders.pod_folder(requested_run["metadata"]["namespace"]), requested_run["volumes"]
    volume_mounts = [
        mount.to_spec(mount_source(folder, mount, plans[mount.volume])) for mount in requested_run["mounts"]
    ]
    volume_targets = {mount_row["target"] for mount_row in volume_mounts}
    image_mounts = [mount_row for mount_row in spec["mounts"] if mount_row["target"] not in volume_targets]
    other_mounts = [{**mount_row, "source": os.path.realpath(mount_row["source"])} for mount_row in image_mounts]
    return {**spec, "mounts": [*other_mounts, *volume_mounts]}


def _error_status(reason: str, now: Instant) -> Mapping[str, Any]:
    error_status = {"exitCode": _START_ERROR_CODE, "reason": "StartError", "message": reason, "finishedAt": now}
    return {"phase": EXITED, **error_status}


def _is_run_alive(run: Obj) -> bool:
    return (run.get("status") or {}).get("phase") != EXITED
