"""Image-pull shim: a process that pulls an image according to the pull policy, and reports the image's metadata.

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
from batchyard.shim.images import engines, rootfs_store, store, unpacking
from batchyard.shim.images.engine import ContainerEngine, last_line
from batchyard.shim.images.engines import EngineFailure, EngineSearchResult
from batchyard.shim.isolation import cgroups
from batchyard.shim.isolation.capabilities import Features
from batchyard.shim.isolation.cgroups import Group
from batchyard.shim.run import CommandResult, ShimRun

# --- image export ---
# To export an image's root filesystem, a container is created, exported without being started, and removed.


#: The command of the created container, which engines require; it is never run.
_COMMAND = "true"
_ERROR_BYTES = 1 << 16


def export_image(engine: ContainerEngine, image: str, path: str, place: str) -> dict[str, Any]:
    """Export an image from an engine and unpack it into a directory. OSError if that fails.

    If this process is killed, the spawner removes the created container, which is labeled with the run `path`.
    """
    name = engine.name(path)
    options = ["--pull", "never", "--network", "none", "--name", name, *engine.labels(path)]
    result = engine.ask("create", *options, image, _COMMAND)
    if result.code != 0:
        raise OSError(last_line(result.errors))
    try:
        return _exported(engine, name, place)
    finally:
        engine.forget(name)


def _exported(engine: ContainerEngine, name: str, place: str) -> dict[str, Any]:
    """Export a container from an engine and unpack the archive; return the size and account files."""
    archive, writes = os.pipe2(os.O_CLOEXEC)
    errors = os.memfd_create("errors")
    child = os.fork()
    if child == 0:
        _become_export(engine, name, writes, errors)
    os.close(writes)
    failure: OSError | None = None
    found: dict[str, Any] = {}
    try:
        found = unpacking.unpack(archive, place)
    except OSError as wrong:
        failure = wrong
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    error_text = os.pread(errors, _ERROR_BYTES, 0).decode(errors="replace")
    os.close(errors)
    if code != 0 and error_text.strip():  # the export failed, which is why the archive ended
        raise OSError(last_line(error_text))
    if failure is not None or code != 0:
        raise failure or OSError(f"the image export of {engine.kind} failed with exit code {code}")
    return found


def _become_export(engine: ContainerEngine, name: str, stdout: int, stderr: int) -> None:
    """In a child process: execute the engine's export command."""
    try:
        linux.die_with_parent(signal.SIGKILL)
        os.setsid()
        signal.set_wakeup_fd(-1)
        linux.default_signals()
        for source, target in ((os.open("/dev/null", os.O_RDONLY), 0), (stdout, 1), (stderr, 2)):
            os.dup2(source, target)
        argv = [engine.program, *engine.options, "export", name]
        os.execve(argv[0], argv, dict(engine.environment))
    finally:
        os._exit(127)


_AT_ONCE = 3
_LOOK_SECONDS = 0.2
_ANNOUNCE_SECONDS = 1.0
_NEVER, _ALWAYS = "Never", "Always"


def keep(run: ShimRun, engines: Sequence[ContainerEngine]) -> None:
    """Supervise a claimed image-pull run: pull the image if needed, and report the metadata or the failure."""
    _report_state(run, keeper=os.getpid(), phase="Starting", warnings=[])
    engine = next((engine for engine in engines if engine.kind == run.spec["engine"]), None)
    if engine is None:
        _end(run, "ErrImagePull", f"container engine {run.spec['engine']} is no longer available on this node")
        return
    signal.signal(signal.SIGTERM, lambda *_: _cancel_if_stopped(run))
    try:
        _see_to(run, engine)
    except _PullCancelled:
        _end(run, "ErrImagePull", "context canceled")
    except (OSError, ValueError) as failure:
        _end(run, "ErrImagePull", str(failure))


def _see_to(run: ShimRun, engine: ContainerEngine) -> None:
    name, policy = run.spec["image"], run.spec["policy"]
    found = engine.image(run.spec["reference"]) or engine.image(run.spec["named"])
    if found is not None and policy != _ALWAYS:
        _end_with(run, engine, found, f'Container image "{name}" already present on machine')
    elif policy == _NEVER:
        message = f'Container image "{name}" is not present with pull policy of Never'
        _warn(run, "Warning", "ErrImageNeverPull", message)
        _end(run, "ErrImageNeverPull", message)
    else:
        _pull(run, engine)


def _pull(run: ShimRun, engine: ContainerEngine) -> None:
    """Pull a run's image, unless another shim pulled it while this one waited for the lock."""
    name, began = run.spec["image"], linux.monotonic()
    asked = linux.now()
    _warn(run, "Normal", "Pulling", f'Pulling image "{name}"')
    own = f"{sha256(run.spec['reference'].encode()).hexdigest()}-{_whose(run.spec)}"
    with _FileLock(run, [own]) as done:
        pulled_at = os.pread(done, 32, 0)
        is_shared = pulled_at.isdigit() and int(pulled_at) > asked
        begins = linux.monotonic()
        if not is_shared:
            with _FileLock(run, _SLOTS):
                begins = linux.monotonic()
                result = _pulled(run, engine)
            if result.code != 0:
                _end(run, "ErrImagePull", last_line(result.errors))
                return
            os.pwrite(done, str(linux.now()).encode(), 0)
    found = engine.image(run.spec["reference"])
    if found is None:
        raise ValueError(f"image {name} was not found after the pull")
    _unpacked(run, engine, found)
    now = linux.monotonic()
    times = f"{_seconds(now - begins)} ({_seconds(now - began)} including waiting)"
    size = f"Image size: {found['size']} bytes."
    _end_with(run, engine, found, f'Successfully pulled image "{name}" in {times}. {size}')


def _pulled(run: ShimRun, engine: ContainerEngine) -> CommandResult:
    """Run the engine's pull command for a run's image; return its result."""
    return engine.pull(run.spec["reference"], run.spec.get("auth") or {}, os.readlink(f"/proc/self/fd/{run.folder}"))


def _unpacked(run: ShimRun, engine: ContainerEngine, found: Mapping[str, Any]) -> dict[str, str]:
    """Unpack an image into the store if the engine only provides images; other shims wait for the same image."""
    if engine.runs:
        return {}
    name = rootfs_store.name_of(found["id"])
    with _FileLock(run, [rootfs_store.lock_of(name)]):
        if not rootfs_store.has(run.node, name):
            with _FileLock(run, _SLOTS):
                most = max(0, run.spec["cacheBytes"] - found["size"])
                rootfs_store.trim(run.node, most)
                unpack = partial(export_image, engine, found["id"], run.path)
                rootfs_store.add(run.node, name, unpack, {"environment": found["environment"]})
    return {"unpacked": name}


def _whose(spec: Mapping[str, Any]) -> str:
    """Return a hash of the registry credentials, so that pulls with different credentials do not share results."""
    return sha256(json.dumps(spec.get("auth") or {}, sort_keys=True).encode()).hexdigest()[:16]


#: Names of the locks that limit the number of parallel pulls and unpackings.
_SLOTS = [f"slot-{number}" for number in range(_AT_ONCE)]


class _PullCancelled(BaseException):
    """Raised when an image pull is cancelled, because no container needs the image any more."""


class _FileLock:
    """A context manager that acquires one of several file locks and returns the descriptor of the locked file."""

    def __init__(self, run: ShimRun, names: list[str]) -> None:
        path = os.readlink(f"/proc/self/fd/{run.node}") + f"/{rootfs_store.PULLS}"
        os.makedirs(path, 0o700, exist_ok=True)
        self._files = [os.open(f"{path}/{name}", os.O_RDWR | os.O_CREAT, 0o600) for name in names]

    def __enter__(self) -> int:
        while True:
            for file in self._files:
                with suppress(BlockingIOError):
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return file
            signal.sigtimedwait([], _LOOK_SECONDS)

    def __exit__(self, *_: object) -> None:
        for file in self._files:
            os.close(file)


def _seconds(seconds: float) -> str:
    """Format seconds, rounded to milliseconds, as Go formats a duration (`350ms`, `1.5s`)."""
    milliseconds = round(seconds * 1000)
    return f"{milliseconds}ms" if milliseconds < 1000 else f"{milliseconds / 1000:g}s"


def _cancel_if_stopped(run: ShimRun) -> None:
    """Cancel the pull if a stop was requested or the run's directory was removed."""
    if run.is_gone() or run.stop_request():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # only once: the cleanup must not be interrupted
        raise _PullCancelled


def _warn(run: ShimRun, kind: str, reason: str, message: str) -> None:
    """Report a warning or message that the kubelet records as an Event."""
    before = run.state.get("warnings") or []
    warning = {"n": len(before) + 1, "type": kind, "reason": reason, "message": message}
    _report_state(run, phase="Running", startedAt=linux.now(), warnings=[*before, warning])


def _end_with(run: ShimRun, engine: ContainerEngine, found: Mapping[str, Any], message: str) -> None:
    unpacked = _unpacked(run, engine, found)
    _warn(run, "Normal", "Pulled", message)
    image = {**found, **unpacked, "lacksFolder": _lacks(engine, found["id"], run.spec.get("workingDir") or "")}
    _report_state(run, phase="Exited", finishedAt=linux.now(), exitCode=0, reason="Completed", message="", image=image)


def _lacks(engine: ContainerEngine, image: str, path: str) -> bool:
    """Report whether an image lacks the working directory, which its engine does not create."""
    if path in {"", "/"} or not engine.runs:
        return False
    result = engine.ask("image", "mount", image)
    lacks = result.code == 0 and not os.path.lexists(result.output.strip() + path)
    engine.ask("image", "unmount", image)
    return lacks


def _end(run: ShimRun, reason: str, message: str) -> None:
    _report_state(run, phase="Exited", finishedAt=linux.now(), exitCode=1, reason=reason, message=message)


def _report_state(run: ShimRun, **changes: object) -> None:
    run.write(**changes)
    run.announce(_ANNOUNCE_SECONDS)


# --- cleanup after killed shims ---


def name_of_pods(node: int) -> str:
    """Return the name prefix of the control groups of this node's pods; it is unique on the machine."""
    return f"batchyard-{state_dir.identity(node)}-"


def after(node: int, found: Features, path: str) -> None:
    """Remove the control groups of a run that has ended, unless another shim still supervises the run."""
    if found.cgroups is None:
        return
    _, uid, *place = path.split("/")
    pod = {name: f"{base}/{name_of_pods(node)}{uid}" for name, base in found.cgroups.base.items()}
    has_namesakes = found.runner is not None
    if place[0] == "runs" and not _is_kept(node, path):
        group = {name: f"{base}/{place[1]}-{place[2]}" for name, base in pod.items()}
        cgroups.remove(group, has_namesakes=has_namesakes)
    _remove_if_left(node, uid, pod, has_namesakes=has_namesakes)


def all_pods(node: int, found: Features) -> None:
    """Remove the control groups of pods that earlier spawners left behind."""
    if found.cgroups is not None:
        for uid, group in cgroups.left_over(found.cgroups.base, name_of_pods(node)).items():
            _remove_if_left(node, uid, group, has_namesakes=found.runner is not None)


def is_of_image(path: str) -> bool:
    """Report whether a run is an image pull, according to its path."""
    return path.split("/")[2:3] == ["images"]


def leaves_container(node: int, path: str) -> bool:
    """Report whether the shim of a run has ended and may have left a container in the engine."""
    with suppress(OSError):
        run = state_dir.open_folder(path, node)
        spec, state = (state_dir.read_json(run, name) or {} for name in ("spec.json", "state.json"))
        os.close(run)
        image = spec.get("image") or {} if spec.get("kind") == "container" else {}
        return store.is_run_by_engine(image) and state.get("phase") != "Exited" and not _is_kept(node, path)
    return False


def containers(node: int, engine: ContainerEngine) -> None:
    """Remove those containers of this node from an engine that no shim supervises."""
    found = engine.containers()
    engine.forget(*(name for path, name in found.items() if not _is_kept(node, path)))


def kept_runs(pod: int) -> list[str]:
    """Return the container runs of a pod that a shim supervises, as paths relative to the pod's directory."""
    found = [f"runs/{name}/{attempt}" for name in _names(pod, "runs") for attempt in _names(pod, f"runs/{name}")]
    return [path for path in found if _is_kept(pod, path)]


def _remove_if_left(node: int, uid: str, group: Group, *, has_namesakes: bool) -> None:
    if not any(os.path.isdir(path) for path in group.values()):
        return
    try:
        pod = state_dir.open_folder(f"pods/{uid}", node)
    except OSError:
        cgroups.remove(group, has_namesakes=has_namesakes)
        return
    if not _is_kept(pod, "sandbox") and not kept_runs(pod):
        cgroups.remove(group, has_namesakes=has_namesakes)
    os.close(pod)


def _is_kept(pod: int, path: str) -> bool:
    with suppress(OSError):
        run = state_dir.open_folder(path, pod)
        try:
            return state_dir.is_locked(run)
        finally:
            os.close(run)
    return False


def _names(base: int, path: str) -> list[str]:
    with suppress(OSError):
        opened = state_dir.open_folder(path, base)
        try:
            return os.listdir(opened)
        finally:
            os.close(opened)
    return []


# --- image helper ---
#
# A helper process pulls images outside of the spawner's user namespace.
#
# Rootless podman needs its own user namespace with several users, which cannot be created inside of the spawner's user
# namespace. So the helper is forked before the spawner enters its user namespace. The helper detects container engines,
# reports them, and forks the shims for image pulls. It ends with the spawner; its shims outlive it.


_PATH_BYTES = 4096
_RESULT_BYTES = 1 << 16
#: Time limit for detecting the engines.
_PATIENCE_SECONDS = 60.0


def start(
    node: int, without: Collection[str], environment: Mapping[str, str]
) -> tuple[socket.socket, EngineSearchResult]:
    """Fork the image helper; return the socket for paths of runs, and the engines that the helper detected."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with there:
        if os.fork() == 0:
            event_loop.run_child(
                node, "outside", partial(_serve, node, there, partial(engines.find, node, environment, None, without))
            )
    here.settimeout(_PATIENCE_SECONDS)
    result: dict[str, Any] = {"failures": [["container engine", "the detection did not finish within 60 seconds"]]}
    with suppress(OSError, ValueError):
        result = json.loads(here.recv(_RESULT_BYTES))
    here.settimeout(None)
    found = tuple(ContainerEngine(**engine) for engine in result.get("engines") or ())
    return here, EngineSearchResult(found, tuple(EngineFailure(*row) for row in result["failures"]))


def _serve(node: int, connection: socket.socket, find: Callable[..., EngineSearchResult]) -> None:
    """In the helper: detect engines, then fork a shim for each received path of a run, until the spawner has ended."""
    held = sorted({node, connection.fileno()})
    for first, last in zip([2, *held], [*held, os.sysconf("SC_OPEN_MAX")], strict=True):
        os.closerange(first + 1, last)
    found = find(may_run=False)
    engines_found = [engine._replace(environment={})._asdict() for engine in found.engines]
    connection.send(json.dumps({"engines": engines_found, "failures": found.failures}).encode())
    for engine in found.engines:
        if os.fork() == 0:
            event_loop.run_child(node, f"containers of {engine.kind}", partial(containers, node, engine))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # shims are not waited for
    while path := connection.recv(_PATH_BYTES).decode(errors="replace"):
        if os.fork() == 0:
            connection.close()
            event_loop.run_shim(node, path, partial(keep, engines=found.engines))
