"""Image-pull shim: a process that pulls one image according to its pull policy, and reports the image's metadata.

Pulls of the same image wait for each other, and the number of parallel pulls is limited. If the engine only provides
images, the root filesystem is unpacked too. The module also contains the cleanup after killed shims, and the image
helper process. Source of the policies and messages: pkg/kubelet/images/image_manager.go.
"""

import fcntl
import json
import os
import signal
import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from hashlib import sha256
from typing import Any

from batchyard.shim import event_loop, linux, state_dir
from batchyard.shim.images import engines, image_kinds, rootfs_store, unpacking
from batchyard.shim.images.engine import ContainerEngine, extract_error_message
from batchyard.shim.images.engines import EngineFailure, EngineSearchResult
from batchyard.shim.isolation import cgroups
from batchyard.shim.isolation.capabilities import NodeIsolation
from batchyard.shim.isolation.cgroups import CgroupPaths
from batchyard.shim.run import CommandResult, ShimRun

# To export an image's root filesystem, a container is created, exported without being started, and removed.


#: The command of the created container, which engines require; it is never run.
_PLACEHOLDER_COMMAND = "true"
_ERROR_TEXT_BYTES = 1 << 16


def export_image(engine: ContainerEngine, image: str, path: str, target: str) -> dict[str, Any]:
    """Export an image from a container engine and unpack it into the directory `target`; return its metadata.

    The metadata is that of `unpacking.unpack`. The export needs a temporary container. Its label contains `path`, the
    path of the image pull, so that the spawner can remove the container if this process is killed. Raises OSError if
    the export or the unpacking fails.
    """
    name = engine.container_name(path)
    create_options = ["--pull", "never", "--network", "none", "--name", name, *engine.label_options(path)]
    create_result = engine.run_command("create", *create_options, image, _PLACEHOLDER_COMMAND)
    if create_result.exit_code != 0:
        raise OSError(extract_error_message(create_result.errors))
    try:
        return _export_container(engine, name, target)
    finally:
        engine.remove_containers(name)


def _export_container(engine: ContainerEngine, name: str, target: str) -> dict[str, Any]:
    """Export a container's files and unpack them into `target`; return the size, /etc/passwd and /etc/group."""
    archive_reader, archive_writer = os.pipe2(os.O_CLOEXEC)
    error_fd = os.memfd_create("errors")
    child_pid = os.fork()
    if child_pid == 0:
        _execute_export_command(engine, name, archive_writer, error_fd)
    os.close(archive_writer)
    failure: OSError | None = None
    metadata: dict[str, Any] = {}
    try:
        metadata = unpacking.unpack(archive_reader, target)
    except OSError as unpack_error:
        failure = unpack_error
        with suppress(ProcessLookupError):
            os.kill(child_pid, signal.SIGKILL)
    exit_code = os.waitstatus_to_exitcode(os.waitpid(child_pid, 0)[1])
    error_text = os.pread(error_fd, _ERROR_TEXT_BYTES, 0).decode(errors="replace")
    os.close(error_fd)
    if exit_code != 0 and error_text.strip():  # the export failed, which is why the archive ended
        raise OSError(extract_error_message(error_text))
    if failure is not None or exit_code != 0:
        raise failure or OSError(f"the image export of {engine.kind} failed with exit code {exit_code}")
    return metadata


def _execute_export_command(engine: ContainerEngine, name: str, stdout: int, stderr: int) -> None:
    try:
        linux.die_with_parent(signal.SIGKILL)
        os.setsid()
        signal.set_wakeup_fd(-1)
        linux.reset_signal_handlers()
        for source, target in ((os.open("/dev/null", os.O_RDONLY), 0), (stdout, 1), (stderr, 2)):
            os.dup2(source, target)
        argv = [engine.program, *engine.options, "export", name]
        os.execve(argv[0], argv, dict(engine.environment))
    finally:
        os._exit(127)


_PARALLEL_PULLS_MAX = 3
_LOCK_POLL_SECONDS = 0.2
_ANNOUNCE_SECONDS = 1.0
_PULL_NEVER, _PULL_ALWAYS = "Never", "Always"


def supervise_pull(run: ShimRun, engines: Sequence[ContainerEngine]) -> None:
    """Pull an image with its container engine if needed; write its metadata or the failure to the state of `run`."""
    _report_state(run, keeper=os.getpid(), phase="Starting", warnings=[])
    engine = next((engine for engine in engines if engine.kind == run.spec["engine"]), None)
    if engine is None:
        _report_failure(
            run, "ErrImagePull", f"container engine {run.spec['engine']} is no longer on this node; install it again"
        )
        return
    signal.signal(signal.SIGTERM, lambda *_: _cancel_pull_if_stopped(run))
    try:
        _apply_pull_policy(run, engine)
    except _PullCancelled:
        _report_failure(run, "ErrImagePull", "context canceled")
    except (OSError, ValueError) as failure:
        _report_failure(run, "ErrImagePull", str(failure))


def _apply_pull_policy(run: ShimRun, engine: ContainerEngine) -> None:
    name, pull_policy = run.spec["image"], run.spec["policy"]
    engine_image = engine.inspect_image(run.spec["reference"]) or engine.inspect_image(run.spec["named"])
    if engine_image is not None and pull_policy != _PULL_ALWAYS:
        _complete_pull(run, engine, engine_image, f'Container image "{name}" already present on machine')
    elif pull_policy == _PULL_NEVER:
        message = f'Container image "{name}" is not present with pull policy of Never'
        _report_event(run, "Warning", "ErrImageNeverPull", message)
        _report_failure(run, "ErrImageNeverPull", message)
    else:
        _pull_if_needed(run, engine)


def _pull_if_needed(run: ShimRun, engine: ContainerEngine) -> None:
    """Pull an image, unless another shim has pulled the same image while this one waited for the lock."""
    name, started_at = run.spec["image"], linux.monotonic()
    requested_at = linux.now()
    _report_event(run, "Normal", "Pulling", f'Pulling image "{name}"')
    lock_name = f"{sha256(run.spec['reference'].encode()).hexdigest()}-{_hash_credentials(run.spec)}"
    with _FileLock(run, [lock_name]) as lock_fd:
        pulled_at = os.pread(lock_fd, 32, 0)
        is_pulled_by_other_run = pulled_at.isdigit() and int(pulled_at) > requested_at
        pull_started_at = linux.monotonic()
        if not is_pulled_by_other_run:
            with _FileLock(run, _SLOT_LOCK_NAMES):
                pull_started_at = linux.monotonic()
                pull_result = _run_pull(run, engine)
            if pull_result.exit_code != 0:
                _report_failure(run, "ErrImagePull", extract_error_message(pull_result.errors))
                return
            os.pwrite(lock_fd, str(linux.now()).encode(), 0)
    image = engine.inspect_image(run.spec["reference"])
    if image is None:
        raise ValueError(f"image {name} is missing after its pull; the next attempt pulls it again")
    _unpack_if_needed(run, engine, image)
    now = linux.monotonic()
    durations_text = f"{_format_seconds(now - pull_started_at)} ({_format_seconds(now - started_at)} including waiting)"
    size_text = f"Image size: {image['size']} bytes."
    _complete_pull(run, engine, image, f'Successfully pulled image "{name}" in {durations_text}. {size_text}')


def _run_pull(run: ShimRun, engine: ContainerEngine) -> CommandResult:
    return engine.pull(run.spec["reference"], run.spec.get("auth") or {}, os.readlink(f"/proc/self/fd/{run.folder_fd}"))


def _unpack_if_needed(run: ShimRun, engine: ContainerEngine, image: Mapping[str, Any]) -> dict[str, str]:
    if engine.runs_containers:
        return {}
    name = rootfs_store.store_name(image["id"])
    with _FileLock(run, [rootfs_store.pull_lock_name(name)]):
        if not rootfs_store.touch_image(run.node_fd, name):
            with _FileLock(run, _SLOT_LOCK_NAMES):
                maximum_bytes = max(0, run.spec["cacheBytes"] - image["size"])
                rootfs_store.collect_garbage(run.node_fd, maximum_bytes)
                unpack = partial(export_image, engine, image["id"], run.path)
                rootfs_store.add_image(run.node_fd, name, unpack, {"environment": image["environment"]})
    return {"unpacked": name}


def _hash_credentials(spec: Mapping[str, Any]) -> str:
    """Return a hash of a pull's registry credentials: a pull reuses only results of pulls with the same hash."""
    return sha256(json.dumps(spec.get("auth") or {}, sort_keys=True).encode()).hexdigest()[:16]


#: Names of the locks that limit the number of parallel pulls and unpackings.
_SLOT_LOCK_NAMES = [f"slot-{number}" for number in range(_PARALLEL_PULLS_MAX)]


class _PullCancelled(BaseException):
    """Raised when an image pull is cancelled, because no container needs the image any more."""


class _FileLock:
    """A context manager that waits until one of several files can be locked, and returns its descriptor."""

    def __init__(self, run: ShimRun, lock_names: list[str]) -> None:
        path = os.readlink(f"/proc/self/fd/{run.node_fd}") + f"/{rootfs_store.PULL_LOCKS_FOLDER}"
        os.makedirs(path, 0o700, exist_ok=True)
        self._fds = [os.open(f"{path}/{name}", os.O_RDWR | os.O_CREAT, 0o600) for name in lock_names]

    def __enter__(self) -> int:
        while True:
            for fd in self._fds:
                with suppress(BlockingIOError):
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return fd
            signal.sigtimedwait([], _LOCK_POLL_SECONDS)

    def __exit__(self, *_: object) -> None:
        for fd in self._fds:
            os.close(fd)


def _format_seconds(seconds: float) -> str:
    milliseconds = round(seconds * 1000)
    return f"{milliseconds}ms" if milliseconds < 1000 else f"{milliseconds / 1000:g}s"


def _cancel_pull_if_stopped(run: ShimRun) -> None:
    if run.is_gone() or run.read_stop_request():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # only once: the cleanup must not be interrupted
        raise _PullCancelled


def _report_event(run: ShimRun, event_type: str, reason: str, message: str) -> None:
    previous_warnings = run.state.get("warnings") or []
    warning = {"n": len(previous_warnings) + 1, "type": event_type, "reason": reason, "message": message}
    _report_state(run, phase="Running", startedAt=linux.now(), warnings=[*previous_warnings, warning])


def _complete_pull(run: ShimRun, engine: ContainerEngine, engine_image: Mapping[str, Any], message: str) -> None:
    unpacking_fields = _unpack_if_needed(run, engine, engine_image)
    _report_event(run, "Normal", "Pulled", message)
    image = {
        **engine_image,
        **unpacking_fields,
        "lacksFolder": _lacks_working_directory(engine, engine_image["id"], run.spec.get("workingDir") or ""),
    }
    _report_state(run, phase="Exited", finishedAt=linux.now(), exitCode=0, reason="Completed", message="", image=image)


def _lacks_working_directory(engine: ContainerEngine, image: str, path: str) -> bool:
    """Return whether podman's image lacks a container's working directory `path`, which podman would not create."""
    if path in {"", "/"} or not engine.runs_containers:
        return False
    mount_result = engine.run_command("image", "mount", image)
    is_missing = mount_result.exit_code == 0 and not os.path.lexists(mount_result.output.strip() + path)
    engine.run_command("image", "unmount", image)
    return is_missing


def _report_failure(run: ShimRun, reason: str, message: str) -> None:
    _report_state(run, phase="Exited", finishedAt=linux.now(), exitCode=1, reason=reason, message=message)


def _report_state(run: ShimRun, **changed_fields: object) -> None:
    run.write_state(**changed_fields)
    run.announce(_ANNOUNCE_SECONDS)


def pod_group_prefix(node_fd: int) -> str:
    """Return the prefix of the control group names of a node's pods, which is unique on this machine.

    `node_fd` is the open descriptor of the node's directory.
    """
    return f"batchyard-{state_dir.ensure_node_id(node_fd)}-"


def remove_groups_of_run(node_fd: int, isolation: NodeIsolation, path: str) -> None:
    """Remove the control groups of a container run and of its pod, unless a live shim uses them.

    `node_fd` is the open descriptor of the node's directory, and `path` is the path of the run in this directory.
    """
    if isolation.cgroups is None:
        return
    _, uid, *path_parts = path.split("/")
    pod_group = {
        name: f"{base}/{pod_group_prefix(node_fd)}{uid}" for name, base in isolation.cgroups.base_group.items()
    }
    has_namesakes = isolation.container_engine is not None
    if path_parts[0] == "runs" and not _is_supervised(node_fd, path):
        run_group = {name: f"{base}/{path_parts[1]}-{path_parts[2]}" for name, base in pod_group.items()}
        cgroups.remove_group(run_group, has_namesakes=has_namesakes)
    _remove_if_unsupervised(node_fd, uid, pod_group, has_namesakes=has_namesakes)


def remove_leftover_groups(node_fd: int, isolation: NodeIsolation) -> None:
    """Remove the cgroups of pods that ended while no spawner ran (`node_fd`: the node directory)."""
    if isolation.cgroups is not None:
        for uid, group in cgroups.find_leftover_groups(isolation.cgroups.base_group, pod_group_prefix(node_fd)).items():
            _remove_if_unsupervised(node_fd, uid, group, has_namesakes=isolation.container_engine is not None)


def is_image_pull(path: str) -> bool:
    """Return whether the path in a shim request is that of an image pull, not of a container or sandbox."""
    return path.split("/")[2:3] == ["images"]


def may_have_left_container(node_fd: int, path: str) -> bool:
    """Return whether a container start may have left a podman container because its shim was killed.

    `path` is the directory of the start, relative to the node's directory, of which `node_fd` is an open descriptor.
    """
    with suppress(OSError):
        run_fd = state_dir.open_folder(path, node_fd)
        spec, state = (state_dir.read_json(run_fd, name) or {} for name in ("spec.json", "state.json"))
        os.close(run_fd)
        image = spec.get("image") or {} if spec.get("kind") == "container" else {}
        return (
            image_kinds.is_run_by_engine(image) and state.get("phase") != "Exited" and not _is_supervised(node_fd, path)
        )
    return False


def remove_unsupervised_containers(node_fd: int, engine: ContainerEngine) -> None:
    """Remove an engine's containers that belong to this node and that no shim supervises.

    `node_fd` is an open descriptor of the node's directory.
    """
    run_containers = engine.list_containers()
    engine.remove_containers(*(name for path, name in run_containers.items() if not _is_supervised(node_fd, path)))


def supervised_runs(pod_fd: int) -> list[str]:
    """Return a pod's container starts that have a live shim, as paths relative to the pod's directory."""
    paths = [
        f"runs/{name}/{attempt}"
        for name in _list_folder(pod_fd, "runs")
        for attempt in _list_folder(pod_fd, f"runs/{name}")
    ]
    return [path for path in paths if _is_supervised(pod_fd, path)]


def _remove_if_unsupervised(node_fd: int, uid: str, group: CgroupPaths, *, has_namesakes: bool) -> None:
    if not any(os.path.isdir(path) for path in group.values()):
        return
    try:
        pod_fd = state_dir.open_folder(f"pods/{uid}", node_fd)
    except OSError:
        cgroups.remove_group(group, has_namesakes=has_namesakes)
        return
    if not _is_supervised(pod_fd, "sandbox") and not supervised_runs(pod_fd):
        cgroups.remove_group(group, has_namesakes=has_namesakes)
    os.close(pod_fd)


def _is_supervised(base_fd: int, path: str) -> bool:
    with suppress(OSError):
        run_fd = state_dir.open_folder(path, base_fd)
        try:
            return state_dir.is_locked(run_fd)
        finally:
            os.close(run_fd)
    return False


def _list_folder(base_fd: int, path: str) -> list[str]:
    with suppress(OSError):
        folder_fd = state_dir.open_folder(path, base_fd)
        try:
            return os.listdir(folder_fd)
        finally:
            os.close(folder_fd)
    return []


# A helper process pulls images outside of the spawner's user namespace.
#
# Rootless podman needs its own user namespace with several users, which cannot be created inside of the spawner's user
# namespace. So the helper is forked before the spawner enters its user namespace. The helper detects container engines,
# reports them, and forks the shims for image pulls. It ends with the spawner; its shims outlive it.


_PATH_BYTES = 4096
_RESULT_BYTES = 1 << 16
#: Time limit for detecting the engines.
_DETECTION_SECONDS = 60.0


def start_image_helper(
    node_fd: int, disabled_names: Collection[str], environment: Mapping[str, str]
) -> tuple[socket.socket, EngineSearchResult]:
    """Fork the image helper; return a socket for the paths of pull requests, and the engines that it detected."""
    own_socket, helper_socket = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with helper_socket:
        if os.fork() == 0:
            event_loop.run_child(
                node_fd,
                "image helper",
                partial(
                    _serve_requests,
                    node_fd,
                    helper_socket,
                    partial(engines.find_engines, node_fd, environment, None, disabled_names),
                ),
            )
    own_socket.settimeout(_DETECTION_SECONDS)
    result = _receive_result(own_socket)
    own_socket.settimeout(None)
    found_engines = tuple(ContainerEngine(**engine) for engine in result.get("engines") or ())
    return own_socket, EngineSearchResult(
        found_engines, tuple(EngineFailure(*failure) for failure in result["failures"])
    )


def _receive_result(connection: socket.socket) -> dict[str, Any]:
    try:
        result: dict[str, Any] = json.loads(connection.recv(_RESULT_BYTES))
    except TimeoutError:
        reason = f"the detection did not finish within {_DETECTION_SECONDS:.0f} seconds"
    except (OSError, ValueError):
        reason = "the image helper ended during the detection; its error is in node.log in the node directory"
    else:
        return result
    return {"failures": [["container engine", reason]]}


def _serve_requests(node_fd: int, connection: socket.socket, detect_engines: Callable[..., EngineSearchResult]) -> None:
    kept_fds = sorted({node_fd, connection.fileno()})
    for lower, upper in zip([2, *kept_fds], [*kept_fds, os.sysconf("SC_OPEN_MAX")], strict=True):
        os.closerange(lower + 1, upper)
    search_result = detect_engines(may_run=False)
    engine_documents = [engine._replace(environment={})._asdict() for engine in search_result.engines]
    connection.send(json.dumps({"engines": engine_documents, "failures": search_result.failures}).encode())
    for engine in search_result.engines:
        if os.fork() == 0:
            clean_up_containers = partial(remove_unsupervised_containers, node_fd, engine)
            event_loop.run_child(node_fd, f"containers of {engine.kind}", clean_up_containers)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps ended shims
    while path := connection.recv(_PATH_BYTES).decode(errors="replace"):
        if os.fork() == 0:
            connection.close()
            event_loop.run_shim(node_fd, path, partial(supervise_pull, engines=search_result.engines))
