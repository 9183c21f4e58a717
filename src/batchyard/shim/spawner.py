"""Spawner: the process that forks a shim per container, sandbox or image pull, and a host process per exec session.

It is started as `python -I -m batchyard.shim.spawner NODE` and receives the paths of runs as datagrams. It ends on
SIGTERM or SIGINT, with its image helper, or when the node directory is removed; shims outlive it. The module also
contains the shim of pod sandboxes and the session host.
"""

import gc
import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from math import inf
from typing import Any

from batchyard.shim import container_exec, event_loop, launch, linux, process_container, shim, state_dir
from batchyard.shim import run as error_texts
from batchyard.shim.container_exec import ProcessUser
from batchyard.shim.event_loop import ShimEventLoop
from batchyard.shim.images import image_pull, rootfs_store
from batchyard.shim.isolation import bubblewrap, capabilities, cgroups, network
from batchyard.shim.isolation.capabilities import NodeIsolation
from batchyard.shim.isolation.cgroups import CgroupPaths
from batchyard.shim.isolation.users import create_pod_user_namespace
from batchyard.shim.run import ShimRun

# A session host runs an exec command in a running container, or sends sockets in the network of a pod.
#
# A client connects to the unix socket (SEQPACKET) `sessions` in the node directory and sends one of these messages:
#
# - `run`, `argv` and `tty`, with three descriptors for the standard streams, or none with a terminal. The host replies
#   `started`, then `exit_code` or `error`. With `started` it sends the master end of the terminal. The command ends
#   when the client closes the connection.
# - `sockets`, the path of a run. The host replies with two sockets in the network of that run, one IPv4 and one IPv6.


_REQUEST_BYTES_MAX = 1 << 20
_KILLED_EXIT_CODE = 128 + signal.SIGKILL


def host_exec_session(node_fd: int, isolation: NodeIsolation, connection: socket.socket) -> None:
    """Serve one request on a connection: execute a command in a container, or send sockets of a pod's network.

    `node_fd` is the open descriptor of the node's directory.
    """
    message, fds = state_dir.receive_fds(connection, _REQUEST_BYTES_MAX, 3)
    if not message:
        return
    request = json.loads(message)
    try:
        if "sockets" in request:
            _send_sockets(node_fd, request["sockets"], connection)
        else:
            _ExecSession(ShimRun(node_fd, request["run"]), isolation, request, fds, connection).run()
    except (OSError, ValueError) as failure:
        _send_reply(connection, [], error=str(failure))


class _ExecSession:
    def __init__(
        self, run: ShimRun, isolation: NodeIsolation, request: dict[str, Any], fds: list[int], connection: socket.socket
    ) -> None:
        self._run = run
        self._isolation = isolation
        self._seccomp_program: bytes | None = None
        self._run.spec = state_dir.read_json(self._run.folder_fd, "spec.json") or {}
        self._request = request
        self._fds = fds
        self._connection = connection
        self._loop = ShimEventLoop()
        self._status_data = b""
        self._subreaper = 0

    def run(self) -> None:
        pid = _read_first_pid(self._run)
        container_pidfd = os.pidfd_open(pid)
        group, container_environment = launch.control_group_of(self._run), launch.running_environment(self._run, pid)
        user = launch.exec_user(self._run, pid, is_enclosed=True)
        leaf_group = cgroups.find_leaf_group(group) if launch.runs_in_engine(self._run) else group
        launch.apply_limits(self._run.spec["limits"], leaf_group)
        self._seccomp_program = launch.seccomp_program_of(self._run, self._isolation)
        terminal_fds = list(os.openpty()) if self._request["tty"] else []
        launch.change_stream_owner(self._run, self._isolation, [*terminal_fds[1:], *self._fds])
        is_enclosed = container_exec.enter_container(pid)
        spec_user = self._run.spec["user"]
        client_fds = [] if self._request["tty"] else self._fds
        inherited_fds = [*terminal_fds, *self._fds]
        exec_command = process_container.ProcessCommand(
            self._request["argv"],
            container_environment | ({"TERM": "xterm"} if self._request["tty"] else {}),
            self._run.spec["workingDir"] or "/",
            (spec_user["uid"], spec_user["gid"]) if spec_user and not is_enclosed else None,
            has_terminal=bool(self._request["tty"]),
            format_start_error=error_texts.format_exec_error,
        )
        status_fd = self._fork_subreaper(
            exec_command, [*terminal_fds[1:] * 3, *client_fds], inherited_fds, user, is_enclosed=is_enclosed
        )
        _send_reply(self._connection, terminal_fds[:1], started=True)
        for fd in inherited_fds:
            os.close(fd)
        self._loop.when_readable(self._connection.fileno(), self._end_if_disconnected)
        self._loop.when_readable(container_pidfd, self._end_command)
        self._loop.when_readable(status_fd, lambda: self._read_status(status_fd))
        self._loop.run()
        self._reap_subreaper()

    def _fork_subreaper(
        self,
        command: process_container.ProcessCommand,
        standard_fds: list[int],
        inherited_fds: list[int],
        user: ProcessUser | None,
        *,
        is_enclosed: bool,
    ) -> int:
        status_reader, status_writer = os.pipe2(os.O_CLOEXEC)
        self._subreaper = os.fork()
        if self._subreaper == 0:
            self._connection.close()
            signal.set_wakeup_fd(-1)
            try:
                for target, source in enumerate(standard_fds):
                    os.dup2(source, target)
                for fd in inherited_fds:
                    os.close(fd)
                if user:
                    container_exec.change_user(user)
                if is_enclosed:
                    container_exec.drop_privileges_and_filter(self._seccomp_program)
                process_container.run_process_subreaper(command, status_writer, is_enclosed=is_enclosed)
            finally:
                os._exit(1)
        os.close(status_writer)
        return status_reader

    def _read_status(self, status_fd: int) -> None:
        data = os.read(status_fd, 4096)
        self._status_data += data
        *lines, self._status_data = self._status_data.split(b"\n")
        for line in lines:
            status_line = json.loads(line)
            if "exit-code" in status_line:
                self._send_reply_and_stop(exit_code=status_line["exit-code"])
            elif "error" in status_line:
                self._send_reply_and_stop(error=status_line["error"])
        if not data:  # the subreaper was killed
            self._send_reply_and_stop(exit_code=_KILLED_EXIT_CODE)

    def _end_if_disconnected(self) -> None:
        if not self._connection.recv(1):
            self._end_command()

    def _end_command(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self._subreaper, signal.SIGTERM)
        self._reap_subreaper()
        self._send_reply_and_stop(exit_code=_KILLED_EXIT_CODE)

    def _reap_subreaper(self) -> None:
        with suppress(ChildProcessError):
            os.waitpid(self._subreaper, 0)

    def _send_reply_and_stop(self, **reply: object) -> None:
        _send_reply(self._connection, [], **reply)
        self._loop.stop()


def _read_first_pid(run: ShimRun) -> int:
    state = state_dir.read_json(run.folder_fd, "state.json") or {}
    if state.get("phase") not in {"Running", "Ready"} or not state_dir.is_locked(run.folder_fd):
        raise ValueError(error_texts.format_not_running_error(state.get("phase", "")))
    pid: int = state["pid"]
    return pid


def _send_sockets(node_fd: int, path: str, connection: socket.socket) -> None:
    container_exec.enter_network(_read_first_pid(ShimRun(node_fd, path)))
    socket_type = socket.SOCK_STREAM | socket.SOCK_NONBLOCK
    with socket.socket(socket.AF_INET, socket_type) as ipv4, socket.socket(socket.AF_INET6, socket_type) as ipv6:
        _send_reply(connection, [ipv4.fileno(), ipv6.fileno()], sockets=2)


def _send_reply(connection: socket.socket, fds: list[int], **reply: object) -> None:
    with suppress(OSError):
        socket.send_fds(connection, [json.dumps(reply).encode()], fds)


# A sandbox shim creates and keeps what the containers of a pod share, like a pause container, until it is stopped.


#: The unit of st_blocks, in bytes.
_DISK_BLOCK_BYTES = 512


def measure_disk_usage(path: str) -> int:
    """Return the disk usage of a directory's contents in bytes; 0 if the directory is missing.

    A file with several hard links is counted once.
    """
    block_counts: dict[tuple[int, int], int] = {}
    with suppress(FileNotFoundError):
        for _, folders, files, folder_fd in os.fwalk(path, follow_symlinks=False):
            for file_status in filter(None, (_stat_counted_file(name, folder_fd) for name in (*folders, *files))):
                block_counts[file_status.st_dev, file_status.st_ino] = file_status.st_blocks
    return sum(block_counts.values()) * _DISK_BLOCK_BYTES


def _stat_counted_file(name: str, folder_fd: int) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=folder_fd, follow_symlinks=False)
    except OSError:
        return None


_FOLDER_CHECK_SECONDS = 2.0
_ANNOUNCE_SECONDS = 1.0
#: Volumes are measured at the start, after one second, and then at doubled intervals up to ten seconds, as in the
#: kubelet, or less often if measuring is slow.
_FIRST_MEASURE_SECONDS, _MEASURE_SECONDS, _MEASURE_INTERVAL_FACTOR = 1.0, 10.0, 20.0
#: How long the sandbox shim waits for the shims of killed containers, in seconds.
_SHIM_END_TIMEOUT_SECONDS = 10.0


def supervise_sandbox(run: ShimRun, isolation: NodeIsolation) -> None:
    """Supervise a pod sandbox, as its shim process, until it is stopped or its directory is removed.

    At the start, create the resources that the containers of the pod share. At the end, kill the containers.
    """
    run.write_state(keeper=os.getpid(), phase="Starting")
    group = _pod_group(run, isolation)
    try:
        user_namespace_fd = create_pod_user_namespace(run.path.split("/")[1]) if isolation.maps_users else None
        _create_shared_resources(run, isolation, group)
        _report_state(run, phase="Ready", pid=os.getpid(), startedAt=linux.now(), cgroup=group, users=user_namespace_fd)
        _wait_for_stop(run)
        _end_container_runs(run)
        failure_fields = {}
    except (OSError, ValueError) as failure:
        failure_fields = {"message": str(failure)}
    cgroups.remove_group(group, has_namesakes=isolation.container_engine is not None)
    _report_state(run, phase="Exited", finishedAt=linux.now(), **failure_fields)


def _wait_for_stop(run: ShimRun) -> None:
    loop = ShimEventLoop()

    def stop_if_requested() -> None:
        if run.is_gone() or run.read_stop_request():
            loop.stop()

    def check_folder_periodically() -> None:
        stop_if_requested()
        loop.call_later(_FOLDER_CHECK_SECONDS, check_folder_periodically)

    loop.when_signalled(signal.SIGTERM, stop_if_requested)
    check_folder_periodically()
    if run.spec.get("limited"):
        _measure_volumes(run, loop, _FIRST_MEASURE_SECONDS)
    loop.run()


def _measure_volumes(run: ShimRun, loop: ShimEventLoop, interval: float) -> None:
    start_time = linux.monotonic()
    pod = os.path.dirname(os.readlink(f"/proc/self/fd/{run.folder_fd}"))
    for limit in run.spec["limited"]:
        if measure_disk_usage(f"{pod}/volumes/{limit['volume']}") > limit["bytes"]:
            _report_state(run, exceeded={"volume": limit["volume"], "at": linux.now()})
            return
    measuring_seconds = linux.monotonic() - start_time
    next_interval_seconds = max(min(2 * interval, _MEASURE_SECONDS), _MEASURE_INTERVAL_FACTOR * measuring_seconds)
    loop.call_later(interval, lambda: _measure_volumes(run, loop, next_interval_seconds))


def _end_container_runs(run: ShimRun) -> None:
    deadline = linux.monotonic() + _SHIM_END_TIMEOUT_SECONDS
    pod_fd = state_dir.open_folder(os.path.dirname(run.path), run.node_fd)
    while (supervised_paths := image_pull.supervised_runs(pod_fd)) and linux.monotonic() < deadline:
        for path in supervised_paths:
            _kill_run(pod_fd, path)
        signal.sigtimedwait([], 0.005)


def _kill_run(pod_fd: int, path: str) -> None:
    with suppress(OSError):
        run_fd = state_dir.open_folder(path, pod_fd)
        state = state_dir.read_json(run_fd, "state.json") or {}
        os.close(run_fd)
        if "pid" in state and state["phase"] == "Running":
            os.kill(state["pid"], signal.SIGKILL)


def _report_state(run: ShimRun, **changed_fields: object) -> None:
    run.write_state(**changed_fields)
    run.announce(_ANNOUNCE_SECONDS)


def _pod_group(run: ShimRun, isolation: NodeIsolation) -> CgroupPaths:
    base_group = isolation.cgroups.base_group if isolation.cgroups else {}
    pod = run.path.split("/")[1]
    return {name: f"{path}/{image_pull.pod_group_prefix(run.node_fd)}{pod}" for name, path in base_group.items()}


def _create_shared_resources(run: ShimRun, isolation: NodeIsolation, group: CgroupPaths) -> None:
    for name, content in _sandbox_etc_files(run.spec).items():
        with open(os.open(name, os.O_WRONLY | os.O_CREAT, 0o644, dir_fd=run.folder_fd), "w", encoding="utf-8") as file:
            file.write(content)
    if isolation.cgroups:
        cgroups.create_group(group, {})
        cgroups.enable_controllers(isolation.cgroups.version, group)
    if isolation.has_namespaces:
        if run.spec["network"] == "pod" and isolation.network_fd is not None:
            network.enter_pod_network(run.spec, isolation.network_fd)
        linux.unshare(linux.NEWNS | linux.NEWIPC | linux.NEWUTS)
        linux.isolate_later_mounts()
        bubblewrap.mask_sys_paths(os.readlink(f"/proc/self/fd/{run.node_fd}") + f"/{bubblewrap.MASKS_FOLDER}")
        socket.sethostname(run.spec["hostname"])
        _mount_volumes(run)


def _sandbox_etc_files(spec: dict[str, Any]) -> dict[str, str]:
    dns_servers, search_domains = spec["resolvers"], spec["searches"]
    lines = [f"search {' '.join(search_domains)}"] if search_domains else []
    lines += [f"nameserver {resolver}" for resolver in dns_servers]
    resolv = "".join(f"{line}\n" for line in [*lines, "options ndots:5"]) if dns_servers else _read_etc("resolv.conf")
    return {"hosts": spec["hosts"], "hostname": f"{spec['hostname']}\n", "resolv.conf": resolv}


def _read_etc(name: str) -> str:
    try:
        with open(f"/etc/{name}", encoding="utf-8") as file:
            return file.read()
    except OSError:
        return ""


def _mount_volumes(run: ShimRun) -> None:
    pod = os.path.dirname(os.readlink(f"/proc/self/fd/{run.folder_fd}"))
    for volume in run.spec["tmpfs"]:
        tmpfs_options = f"mode=1777,size={volume['bytes']}" if volume["bytes"] is not None else "mode=1777"
        linux.mount("tmpfs", f"{pod}/volumes/{volume['volume']}", "tmpfs", tmpfs_options)


_FORK_RETRY_SECONDS = 0.2
_SUPERVISORS_BY_KIND = {"container": shim.supervise_container, "sandbox": supervise_sandbox}
_SESSION_SOCKET_BACKLOG = 256


def main(arguments: list[str]) -> int:
    """Run the spawner, which forks shims, for the node directory in `arguments[1]`; return the exit status.

    The exit status is 1 if another spawner runs in the node directory.
    """
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    node_fd = state_dir.open_folder(arguments[1])
    lock_fd = state_dir.acquire_lock(node_fd, "spawner.lock")
    if lock_fd is None:
        sys.stderr.write(f"{arguments[1]}: another spawner is running in this node directory; stop it first\n")
        return 1
    os.ftruncate(lock_fd, 0)
    os.write(lock_fd, str(os.getpid()).encode())
    Spawner(node_fd, lock_fd).serve()
    return 0


class Spawner:
    """The spawner of one node directory: forks shims and the hosts of exec sessions, and cleans up after shims."""

    def __init__(self, node_fd: int, lock_fd: int) -> None:
        self._node_fd = node_fd
        self._lock_fd = lock_fd
        disabled_names = capabilities.disabled_capabilities("BATCHYARD_NODE_WITHOUT")
        detect_engines = partial(image_pull.start_image_helper, node_fd, disabled_names)
        self._isolation = capabilities.detect_features(node_fd, disabled_names, detect_engines)
        self._shim_paths: dict[int, str] = {}
        self._loop = ShimEventLoop()
        self._requests = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._sessions = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def serve(self) -> None:
        """Clean up after an earlier spawner, then serve requests for shims and exec sessions.

        Return after SIGTERM or SIGINT, or when the image helper has ended or the node directory was removed.
        """
        image_pull.remove_leftover_groups(self._node_fd, self._isolation)
        for engine in () if self._isolation.image_helper else self._isolation.engines:
            clean_up_containers = partial(image_pull.remove_unsupervised_containers, self._node_fd, engine)
            self._run_in_child(f"containers of {engine.kind}", clean_up_containers)
        self._run_in_child("unpacked images", partial(rootfs_store.collect_garbage, self._node_fd, inf))
        if self._isolation.image_helper:
            self._loop.when_readable(self._isolation.image_helper.fileno(), self._loop.stop)
        if self._isolation.bubblewrap:
            node_path = os.readlink(f"/proc/self/fd/{self._node_fd}")
            state_dir.update_etc_copy(node_path)
            bubblewrap.create_masks(node_path)
        state_dir.remove_file(self._node_fd, "spawner")
        self._requests.bind(state_dir.socket_address(self._node_fd, "spawner"))
        self._loop.when_readable(self._requests.fileno(), self._receive_request)
        state_dir.remove_file(self._node_fd, "sessions")
        self._sessions.bind(state_dir.socket_address(self._node_fd, "sessions"))
        self._sessions.listen(_SESSION_SOCKET_BACKLOG)
        self._loop.when_readable(self._sessions.fileno(), self._accept_session)
        self._loop.when_signalled(signal.SIGCHLD, self._reap_children)
        for signal_number in (signal.SIGTERM, signal.SIGINT):
            self._loop.when_signalled(signal_number, self._loop.stop)
        gc.collect()
        gc.freeze()
        state_dir.write_json(self._node_fd, "features.json", capabilities.features_document(self._isolation))
        self._watch_node_folder()
        self._loop.run()

    def _watch_node_folder(self) -> None:
        if state_dir.is_removed(self._node_fd):
            self._loop.stop()
        self._loop.call_later(_FOLDER_CHECK_SECONDS, self._watch_node_folder)

    def _receive_request(self) -> None:
        path = self._requests.recv(4096).decode(errors="replace")
        if self._isolation.image_helper and image_pull.is_image_pull(path):
            self._isolation.image_helper.send(path.encode())
        else:
            self._fork_shim(path)

    def _fork_shim(self, path: str) -> None:
        try:
            shim_pid = os.fork()
        except OSError as failure:
            state_dir.log_error(self._node_fd, f"cannot fork the shim of run {path}: {failure.strerror}; retrying")
            self._loop.call_later(_FORK_RETRY_SECONDS, partial(self._fork_shim, path))
            return
        if shim_pid == 0:
            self._close_inherited_fds()
            event_loop.run_shim(self._node_fd, path, partial(_supervise_run, self._isolation))
        self._shim_paths[shim_pid] = path

    def _accept_session(self) -> None:
        client_connection, _ = self._sessions.accept()
        with client_connection:
            try:
                child_pid = os.fork()
            except OSError as failure:
                state_dir.log_error(self._node_fd, f"cannot fork the host of an exec session: {failure.strerror}")
                return  # the client sees the connection closed
            if child_pid == 0:
                self._close_inherited_fds()
                host_session_task = partial(host_exec_session, self._node_fd, self._isolation, client_connection)
                event_loop.run_child(self._node_fd, "exec session", host_session_task)

    def _clean_up_after_run(self, path: str) -> None:
        engine = self._isolation.container_engine
        if engine and image_pull.may_have_left_container(self._node_fd, path):
            self._run_in_child(path, partial(engine.remove_containers, engine.container_name(path)))
        image_pull.remove_groups_of_run(self._node_fd, self._isolation, path)

    def _run_in_child(self, name: str, task: Callable[[], None]) -> None:
        if os.fork() == 0:
            self._close_inherited_fds()
            event_loop.run_child(self._node_fd, name, task)

    def _close_inherited_fds(self) -> None:
        os.close(self._lock_fd)
        self._requests.close()
        self._sessions.close()

    def _reap_children(self) -> None:
        with suppress(ChildProcessError):
            while (pid := os.waitpid(-1, os.WNOHANG)[0]) != 0:
                path = self._shim_paths.pop(pid, None)
                if path is not None:
                    self._clean_up_after_run(path)


def _supervise_run(isolation: NodeIsolation, run: ShimRun) -> None:
    if run.spec["kind"] == "image":
        image_pull.supervise_pull(run, isolation.engines)
    else:
        _SUPERVISORS_BY_KIND[run.spec["kind"]](run, isolation)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
