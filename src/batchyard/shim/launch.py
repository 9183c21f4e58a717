"""Container start: prepares mounts, environment and control group, and forks the process that runs the command."""

import errno
import json
import os
import resource
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, NoReturn, TypeAlias

from batchyard.shim import linux, process_container, state_dir, stop
from batchyard.shim import run as error_texts
from batchyard.shim.container_exec import ProcessUser, RunningContainer, user_of
from batchyard.shim.images import engine as engine_container
from batchyard.shim.images import engines, image_kinds, rootfs_store, unpacking
from batchyard.shim.isolation import bubblewrap, cgroups, nesting, seccomp, users
from batchyard.shim.isolation.capabilities import NodeIsolation
from batchyard.shim.isolation.cgroups import CgroupPaths
from batchyard.shim.isolation.users import PodUsers, create_pod_user_namespace, pod_unix_id
from batchyard.shim.run import ShimRun

# Mount sources are opened before use, because running containers could replace them by symbolic links.
#
# As in the kubelet (subpath_linux.go), links are resolved, the result must lie in the volume, and it is opened without
# following links. The descriptor is mounted. Paths of the machine must contain no links, because containers with access
# to a parent directory could have created them.


def resolve_mounts(mounts: list[Mapping[str, Any]], pod_folder: str, run_root: str) -> list[Mapping[str, Any]]:
    """Return a container's mounts with absolute source paths.

    Raises ValueError if a subPath leads out of its volume, or if a path of the machine contains a symbolic link.

    `pod_folder` is the path of the pod's directory. Subpaths of volumes and paths of the machine are bind-mounted below
    `run_root` in a new mount namespace of this process. The added field `isOfMachine` is true for a path of the
    machine, and false for the pod's own volumes.
    """
    resolved: list[Mapping[str, Any]] = [
        {
            **mount,
            "source": _absolute_source(mount["source"], pod_folder),
            "isOfMachine": mount["source"].startswith("/"),
        }
        for mount in mounts
    ]
    sources = {number: mount["source"] for number, mount in enumerate(mounts) if _needs_bind_mount(mount["source"])}
    if sources:
        unpacking.unshare_mounts()
    for number, source in sources.items():
        volume_path = (
            "/" if resolved[number]["isOfMachine"] else _absolute_source("/".join(source.split("/")[:2]), pod_folder)
        )
        _bind_checked_source(volume_path, resolved[number]["source"], f"{run_root}/part-{number}", source)
        resolved[number] = {**resolved[number], "source": f"{run_root}/part-{number}"}
    return resolved


def _absolute_source(source: str, pod_folder: str) -> str:
    return source if source.startswith("/") else f"{pod_folder}/{source}"


def _needs_bind_mount(source: str) -> bool:
    return source.startswith("/") or source.count("/") > 1


def _bind_checked_source(volume: str, path: str, target: str, source_name: str) -> None:
    volume_root, real_path = os.path.realpath(volume), path if volume == "/" else os.path.realpath(path)
    if volume != "/" and real_path != volume_root and not real_path.startswith(f"{volume_root}/"):
        raise ValueError(
            f"mount source {source_name} leads out of its volume through a symbolic link; use a path without links"
        )
    try:
        fd = nesting.open_path(volume_root, real_path.removeprefix(volume_root))
    except OSError as failure:
        if failure.errno != errno.ELOOP:
            raise
        raise ValueError(
            f"mount source {source_name} leads out of its volume through a symbolic link; use a path without links"
        ) from failure
    unpacking.make_mount_point(target, stat.S_ISDIR(os.fstat(fd).st_mode))
    linux.bind_mount(f"/proc/self/fd/{fd}", target)
    os.close(fd)


_SHARED_NAMESPACES = linux.NEWNS | linux.NEWIPC | linux.NEWUTS


class LaunchedProcess(NamedTuple):
    """A forked child process that runs a container's command, and the descriptors that connect it to the shim."""

    pid: int
    #: The descriptors of the command's outputs, by name in the log (stdout, stderr); a terminal is stdout.
    outputs: Mapping[str, int]
    #: The pipe from which the shim reads the command's status, as JSON lines.
    status_pipe: int
    #: The pipe on which the command waits for permission to start; None if it does not wait.
    start_pipe: int | None
    #: A descriptor that keeps the command's input pipe open; None without an input pipe.
    stdin: int | None
    #: A descriptor that locks the unpacked image against removal; None for other images.
    image_lock: int | None

    def allow_start(self, child_pid: int, processes_max: int) -> None:
        """Let a command that waits for permission start; first limit its number of processes, by RLIMIT_NPROC.

        The command waits only if no control group has the limit. Linux counts a user's processes per user namespace, so
        the limit applies to this container only.
        """
        if self.start_pipe is not None:
            process_limit = processes_max + cgroups.EXTRA_PROCESSES
            with suppress(ProcessLookupError):
                resource.prlimit(child_pid, resource.RLIMIT_NPROC, (process_limit, process_limit))
            os.write(self.start_pipe, b"1")


class _ChildStreams(NamedTuple):
    stdin: int
    stdout: int
    stderr: int
    status: int
    start_pipe: int | None


def launch_container(run: ShimRun, isolation: NodeIsolation, group: CgroupPaths) -> LaunchedProcess:
    """Create a container's files and control group, and fork the process that runs its command.

    Raises OSError if a step before the fork fails. The forked process reports its own failures on the status pipe.
    """
    image_folder = run.spec["image"].get("unpacked")
    image_lock_fd = rootfs_store.lock_image(run.node_fd, image_folder) if image_folder else None
    _create_run_files(run)
    if isolation.cgroups:
        version = isolation.cgroups.version
        cgroups.create_group(group, cgroups.control_file_contents(version, run.spec["limits"], run.spec["requests"]))
    outputs, child_streams = _open_streams(run)
    start_pipe = None
    has_user_mapping = isolation.has_user_namespace or isolation.maps_users
    if runs_in_bubblewrap(run, isolation) and has_user_mapping and "pids" not in group:
        start_reader, start_pipe = os.pipe2(os.O_CLOEXEC)
        child_streams = child_streams._replace(start_pipe=start_reader)
    pid = os.fork()
    if pid == 0:
        for fd in outputs.values():
            os.close(fd)
        _execute_in_child(run, isolation, group, child_streams)
    for fd in dict.fromkeys(fd for fd in child_streams if fd is not None):
        os.close(fd)
    status_reader, stdin = outputs.pop("status"), outputs.pop("stdin", None)
    for fd in outputs.values():
        os.set_blocking(fd, False)
    return LaunchedProcess(pid, outputs, status_reader, start_pipe, stdin, image_lock_fd)


def control_group_of(run: ShimRun) -> CgroupPaths:
    """Return a container's control group, a child of its pod's group; empty if the pod has no control group."""
    pod_group = _read_sandbox_file(run, "state.json").get("cgroup") or {}
    return {name: f"{path}/{run.spec['container']}-{run.spec['attempt']}" for name, path in pod_group.items()}


def runs_in_engine(run: ShimRun) -> bool:
    """Return whether a container engine (podman) runs the container of `run`."""
    return image_kinds.is_run_by_engine(run.spec["image"])


def runs_in_bubblewrap(run: ShimRun, isolation: NodeIsolation) -> bool:
    """Return whether bubblewrap runs the container of `run` on a node with this isolation."""
    return isolation.bubblewrap is not None and not runs_in_engine(run)


def remove_engine_container(run: ShimRun, isolation: NodeIsolation) -> None:
    """Remove a container from podman, if podman runs it, after its supervising process was killed."""
    if runs_in_engine(run) and isolation.container_engine:
        isolation.container_engine.remove_containers(isolation.container_engine.container_name(run.path))


def has_command_started(bubblewrap_pid: int, child_pid: int) -> bool:
    """Return whether the container's first process, `child_pid`, has executed the command in a child process.

    Until then, the child has the command line of bubblewrap, which is process `bubblewrap_pid`.
    """
    bubblewrap_command = _read_command_line(bubblewrap_pid)
    return any(_read_command_line(pid) not in {b"", bubblewrap_command} for pid in stop.children_of(child_pid)[:1])


def describe_container(run: ShimRun, isolation: NodeIsolation, pid: int, group: CgroupPaths) -> RunningContainer:
    """Return what probes and lifecycle hooks need to enter a running container or to connect to it."""
    sandbox_spec = _read_sandbox_file(run, "spec.json")
    network_fd = isolation.network_fd if run.spec["network"] == "pod" else None
    pod_address = sandbox_spec.get("address") if network_fd is not None else None
    is_enclosed = isolation.bubblewrap is not None or runs_in_engine(run)
    return RunningContainer(
        name=run.spec["container"],
        pid=pid,
        has_own_namespaces=is_enclosed,
        group=cgroups.find_leaf_group(group) if runs_in_engine(run) else group,
        environment=running_environment(run, pid),
        folder=run.spec["workingDir"] or "/",
        user=exec_user(run, pid, is_enclosed=is_enclosed),
        seccomp_program=seccomp_program_of(run, isolation),
        network_fd=network_fd,
        address=pod_address.partition("/")[0] if pod_address else "127.0.0.1",
    )


def exec_user(run: ShimRun, pid: int, *, is_enclosed: bool) -> ProcessUser | None:
    """Return the user for a command that enters a container, given the pid of the container's first process.

    The result is None if the command needs no change of user, or if podman's container has ended.
    """
    if runs_in_engine(run):
        with suppress(OSError, KeyError):  # the container may have ended
            return user_of(pid)
        return None
    user = None if is_enclosed else _container_ids(run)
    return (*user, ()) if user else None


def running_environment(run: ShimRun, pid: int) -> dict[str, str]:
    """Return the environment variables of a running container; in podman, those of its first process, `pid`."""
    environment_block = b""
    if runs_in_engine(run):
        with suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
            environment_block = file.read()
    pairs = (entry.decode(errors="surrogateescape").partition("=") for entry in environment_block.split(b"\0") if entry)
    return {name: value for name, _, value in pairs} or container_environment(run)


def container_environment(run: ShimRun) -> dict[str, str]:
    """Return a container's environment variables: those of the spec override those of the sandbox and the image.

    Raises ValueError if the image's user is unknown.
    """
    sandbox = _read_sandbox_file(run, "spec.json")
    base_variables = {"HOSTNAME": sandbox["hostname"]} if sandbox else {}
    base_variables |= {"TERM": "xterm"} if run.spec["tty"] else {}
    spec_variables: Mapping[str, str] = run.spec["environment"]
    image = run.spec["image"]
    if "unpacked" in image:
        image_variables = rootfs_store.read_image_metadata(run.node_fd, image["unpacked"]).get("environment") or {}
        image_defaults = image_kinds.image_environment({}) | {"HOME": _image_account(run).home} | image_variables
    else:
        image_defaults = image_kinds.image_environment(image) | {"HOME": "/root"}
    return image_defaults | base_variables | dict(spec_variables)


def _image_account(run: ShimRun) -> users.ImageAccount:
    metadata = rootfs_store.read_image_metadata(run.node_fd, run.spec["image"]["unpacked"])
    return users.resolve_account(run.spec["user"] or "", metadata.get("passwd") or "", metadata.get("group") or "")


def _create_run_files(run: ShimRun) -> None:
    os.mkdir("root", 0o755, dir_fd=run.folder_fd)
    for name, mode in bubblewrap.WRITABLE_FOLDERS.items():
        os.mkdir(f"root/{name}", dir_fd=run.folder_fd)
        os.chmod(f"root/{name}", mode, dir_fd=run.folder_fd)
    termination_fd = os.open("termination-log", os.O_WRONLY | os.O_CREAT, 0o666, dir_fd=run.folder_fd)
    os.fchmod(termination_fd, 0o666)  # writable for any user of the container
    os.close(termination_fd)
    if run.spec["stdin"]:
        os.mkfifo("stdin", 0o600, dir_fd=run.folder_fd)


def _open_streams(run: ShimRun) -> tuple[dict[str, int], _ChildStreams]:
    status_reader, status_writer = os.pipe2(os.O_CLOEXEC)
    if run.spec["tty"]:
        terminal_master, terminal_slave = os.openpty()
        return {"stdout": terminal_master, "status": status_reader}, _ChildStreams(
            terminal_slave, terminal_slave, terminal_slave, status_writer, None
        )
    stdout_pipe, stderr_pipe = os.pipe2(os.O_CLOEXEC), os.pipe2(os.O_CLOEXEC)
    outputs = {"stdout": stdout_pipe[0], "stderr": stderr_pipe[0], "status": status_reader}
    stdin = os.open("stdin" if run.spec["stdin"] else "/dev/null", os.O_RDONLY | os.O_NONBLOCK, dir_fd=run.folder_fd)
    os.set_blocking(stdin, True)
    if run.spec["stdin"]:  # keep a writer open, else the command would read EOF before a client attaches
        outputs["stdin"] = os.open("stdin", os.O_WRONLY, dir_fd=run.folder_fd)
    return outputs, _ChildStreams(stdin, stdout_pipe[1], stderr_pipe[1], status_writer, None)


def _execute_in_child(
    run: ShimRun, isolation: NodeIsolation, group: CgroupPaths, child_streams: _ChildStreams
) -> NoReturn:
    try:
        run.close_lock()
        for source, target in ((child_streams.stdin, 0), (child_streams.stdout, 1), (child_streams.stderr, 2)):
            os.dup2(source, target)
        change_stream_owner(run, isolation, range(3))
        if run.spec["tty"] and (isolation.bubblewrap or runs_in_engine(run)):
            linux.set_controlling_terminal(0)
        if runs_in_engine(run):
            engine_container.run_engine_subreaper(
                _prepare_engine_container(run, isolation, group), child_streams.status
            )
        apply_limits(run.spec["limits"], group)
        if isolation.bubblewrap:
            _execute_bubblewrap(run, isolation.bubblewrap, isolation, child_streams)
        process_container.run_process_subreaper(_plain_process_command(run), child_streams.status)
    except (OSError, ValueError) as failure:
        status_line = {"error": error_texts.format_start_error(str(failure))}
        os.write(child_streams.status, json.dumps(status_line).encode() + b"\n")
    os._exit(1)


def change_stream_owner(run: ShimRun, isolation: NodeIsolation, fds: Sequence[int]) -> None:
    """Make the pod's Unix user, if it has its own, the owner of the pipes and terminals in `fds`.

    Containers can then reopen /dev/stdout, as with runc.
    """
    if isolation.maps_users and runs_in_bubblewrap(run, isolation):
        owner = pod_unix_id(run.path.split("/")[1])
        for fd in fds:
            if stat.S_ISFIFO(os.fstat(fd).st_mode) or os.isatty(fd):
                os.fchown(fd, owner, -1)


def apply_limits(limits: Mapping[str, Any], group: CgroupPaths) -> None:
    """Move this process into a container's control group.

    If the group cannot limit memory, set RLIMIT_DATA to the memory limit, if any.
    """
    cgroups.join_group(group)
    if "memory" not in group and limits["memory"]:
        resource.setrlimit(resource.RLIMIT_DATA, (limits["memory"], limits["memory"]))


def _execute_bubblewrap(run: ShimRun, program: str, isolation: NodeIsolation, child_streams: _ChildStreams) -> NoReturn:
    """Prepare the container and execute bubblewrap, opened first because its path later becomes inaccessible."""
    executable_fd = os.open(program, os.O_RDONLY)
    variables, user, seccomp_program = (
        container_environment(run),
        _container_user(run),
        seccomp_program_of(run, isolation),
    )
    has_pod_network = isolation.network_fd is not None and run.spec["network"] == "pod"
    sandbox_pid = _enter_pod(run, _SHARED_NAMESPACES | linux.NEWNET if has_pod_network else _SHARED_NAMESPACES)
    linux.leave_session_keyring()
    spec = run.spec | {"user": user}
    spec, container_view, paths = (
        _prepare_view_as_pod_user(run, spec, sandbox_pid) if isolation.maps_users else _prepare_view(run, spec)
    )
    option_list = bubblewrap.bubblewrap_options(spec, paths, container_view, variables)
    if child_streams.start_pipe is not None:
        option_list += ["--block-fd", str(child_streams.start_pipe), *bubblewrap.USER_NAMESPACE_OPTIONS]
    if seccomp_program is not None:
        option_list += ["--seccomp", str(_create_memory_file(seccomp_program, "seccomp"))]
    arguments_fd = _create_memory_file(b"\0".join(os.fsencode(option) for option in option_list) + b"\0", "arguments")
    for fd in (child_streams.status, child_streams.start_pipe):
        if fd is not None:
            os.set_inheritable(fd, True)
    linux.reset_signal_handlers()
    file_options = ["--args", str(arguments_fd), "--json-status-fd", str(child_streams.status)]
    os.execve(executable_fd, ["bwrap", *file_options, "--", *run.spec["argv"]], {})


def _create_memory_file(content: bytes, name: str) -> int:
    fd = os.memfd_create(name, 0)
    os.write(fd, content)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def seccomp_program_of(run: ShimRun, isolation: NodeIsolation) -> bytes | None:
    """Return a container's seccomp filter as a BPF program; None if unconfined or if the node does not support seccomp.

    Raises ValueError if the profile cannot be compiled, or is a Localhost profile on a node without seccomp support.
    """
    profile: Mapping[str, str] = run.spec.get("seccomp") or {}
    if not isolation.has_seccomp:
        if profile.get("type") == "Localhost":
            raise ValueError("this node does not support seccomp: set another seccompProfile type than Localhost")
        return None
    match profile.get("type"):
        case "Unconfined":
            return None
        case "Localhost":
            node = os.readlink(f"/proc/self/fd/{run.node_fd}")
            return seccomp.compile_profile_file(f"{node}/{seccomp.PROFILES_FOLDER}/{profile['profile']}")
    return seccomp.default_filter()


def _container_paths(run: ShimRun) -> bubblewrap.ContainerPaths:
    node = os.readlink(f"/proc/self/fd/{run.node_fd}")
    pod = f"{node}/{'/'.join(run.path.split('/')[:2])}"
    masks_folder = f"{node}/{bubblewrap.MASKS_FOLDER}"
    return bubblewrap.ContainerPaths(node, pod, f"{pod}/sandbox", f"{node}/{run.path}", masks_folder)


_SpecViewAndPaths: TypeAlias = tuple[dict[str, Any], bubblewrap.ContainerView, bubblewrap.ContainerPaths]


def _prepare_view(run: ShimRun, spec: dict[str, Any]) -> _SpecViewAndPaths:
    paths = _container_paths(run)
    spec = spec | {"mounts": resolve_mounts(spec["mounts"], paths.pod, f"{paths.run}/root")}
    root = image_kinds.root_filesystem(spec["image"], paths.node)
    folders = {} if root else image_kinds.visible_folders(spec["image"], paths.node)
    return *_build_view(spec, paths, root, folders), paths


def _prepare_view_as_pod_user(run: ShimRun, spec: dict[str, Any], sandbox_pid: int) -> _SpecViewAndPaths:
    paths = _container_paths(run)
    resolved_mounts = resolve_mounts(spec["mounts"], paths.pod, f"{paths.run}/root")
    pod, namespace_fd = run.path.split("/")[1], _read_sandbox_file(run, "state.json").get("users")
    namespace_path = f"/proc/{sandbox_pid}/fd/{namespace_fd}"
    namespace = create_pod_user_namespace(pod) if namespace_fd is None else os.open(namespace_path, os.O_RDONLY)
    pod_users = PodUsers(pod, namespace, paths.pod)
    sandbox, run_folder, masks = map(pod_users.copy_mount, (paths.sandbox, paths.run, paths.masks_folder))
    copied_paths = bubblewrap.ContainerPaths("", "", sandbox, run_folder, masks)
    root = image_kinds.root_filesystem(spec["image"], paths.node)
    folders = {} if root else image_kinds.visible_folders(spec["image"], paths.node)
    root = pod_users.copy_mount(root) if root else ""
    folders = {mount_point: pod_users.copy_mount(source) for mount_point, source in folders.items()}
    spec = spec | {"mounts": [{**mount, "source": _copy_source(mount, pod_users)} for mount in resolved_mounts]}
    pod_users.enter()
    return *_build_view(spec, copied_paths, root, folders), copied_paths


def _copy_source(mount: Mapping[str, Any], users: PodUsers) -> str:
    is_host_path: bool = mount["isOfMachine"]
    is_shared = is_host_path and not mount["readOnly"]
    return users.copy_mount(mount["source"], is_shared=is_shared, is_host_path=is_host_path)


def _prepare_engine_container(
    run: ShimRun, isolation: NodeIsolation, group: CgroupPaths
) -> engine_container.EngineContainer:
    engine, paths = isolation.container_engine, _container_paths(run)
    if engine is None:
        raise ValueError(
            f"container engine {run.spec['image']['engine']} is no longer available on this node; install it again"
        )
    sandbox_pid = _enter_pod(
        run, linux.NEWNS | linux.NEWUTS
    )  # the engine reads the hostname from its own UTS namespace
    spec = run.spec | {"mounts": resolve_mounts(run.spec["mounts"], paths.pod, f"{paths.run}/root")}
    engine_paths = engines.EngineContainerPaths(paths.sandbox, paths.run, sandbox_pid, run.path)
    environment_options = engines.write_env_file(run.spec["environment"])
    container_options = engines.podman_run_options(spec, engine_paths, engine, group, environment_options)
    return engine_container.EngineContainer(
        engine, engine.container_name(run.path), container_options, run.folder_fd, bool(run.spec["tty"]), group
    )


def _build_view(
    spec: Mapping[str, Any], paths: bubblewrap.ContainerPaths, root: str, folders: Mapping[str, str]
) -> tuple[dict[str, Any], bubblewrap.ContainerView]:
    """Attach nested volume mounts; return the container's changed spec, and what the container sees of the machine.

    `root` is the path of the image's root filesystem; if empty, the container sees the machine's `folders`.
    """
    run_root = f"{paths.run}/root"
    if root:
        _check_root_filesystem(root, spec["image"]["name"])
        resolve_path = partial(unpacking.resolve_in_root, root)
        spec = nesting.attach_nested_mounts(spec, resolve_path, paths.run)
        return spec, bubblewrap.ContainerView(
            {"/": unpacking.mount_writable_overlay(root, run_root)},
            {},
            lacks_working_directory=False,
            resolve_path=resolve_path,
        )
    resolve_path = partial(
        unpacking.resolve_in_folders, folders, image_kinds.program_links() | bubblewrap.CONTAINER_LINKS
    )
    spec = nesting.attach_nested_mounts(spec, resolve_path, paths.run)
    lacks_working_directory = bubblewrap.lacks_working_directory(spec, folders)
    folder_sources = unpacking.add_mount_points(folders, bubblewrap.list_mount_points(spec), run_root)
    return spec, bubblewrap.ContainerView(
        folder_sources, image_kinds.program_links(), lacks_working_directory, resolve_path
    )


def _check_root_filesystem(root: str, image: str) -> None:
    """Raise ValueError if /proc, /sys or /dev of an image is a symbolic link: containers get mounts at these paths."""
    for name in ("proc", "sys", "dev"):
        if os.path.islink(f"{root}/{name}"):
            raise ValueError(
                f"/{name} in the image {image} is a symbolic link: replace it by a directory, or remove it"
            )


def _enter_pod(run: ShimRun, namespace_flags: int) -> int:
    with suppress(OSError):
        sandbox_fd = state_dir.open_folder("../../../sandbox", run.folder_fd)
        sandbox_pid = (state_dir.read_json(sandbox_fd, "state.json") or {}).get("pid")
        sandbox_pidfd = sandbox_pid and os.pidfd_open(sandbox_pid)
        if sandbox_pidfd and state_dir.is_locked(sandbox_fd):
            linux.enter_namespaces(sandbox_pidfd, namespace_flags)
            return int(sandbox_pid or 0)
    raise ValueError("the pod's sandbox is not running")


def _plain_process_command(run: ShimRun) -> process_container.ProcessCommand:
    spec: Mapping[str, Any] = run.spec
    if image_kinds.root_filesystem(spec["image"], ""):
        raise ValueError(f"image {spec['image']['name']} requires bubblewrap: apt-get install bubblewrap")
    if spec["mounts"]:
        raise ValueError(f"the mount {spec['mounts'][0]['target']} requires bubblewrap: apt-get install bubblewrap")
    working_directory = spec["workingDir"] or "/"
    return process_container.ProcessCommand(
        spec["argv"], container_environment(run), working_directory, _container_ids(run)
    )


def _container_user(run: ShimRun) -> Mapping[str, int] | None:
    """Return the user inside the container; None for root, which is mapped to the user that runs the node."""
    if "unpacked" not in run.spec["image"]:
        spec_user: Mapping[str, int] | None = run.spec["user"]
        return spec_user
    image_account = _image_account(run)
    return {"uid": image_account.uid, "gid": image_account.gid} if image_account.uid or image_account.gid else None


def _container_ids(run: ShimRun) -> tuple[int, int] | None:
    user = _container_user(run)
    return (user["uid"], user["gid"]) if user else None


def _read_sandbox_file(run: ShimRun, name: str) -> dict[str, Any]:
    with suppress(OSError):
        sandbox_fd = state_dir.open_folder("../../../sandbox", run.folder_fd)
        try:
            return state_dir.read_json(sandbox_fd, name) or {}
        finally:
            os.close(sandbox_fd)
    return {}


def _read_command_line(pid: int) -> bytes:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read()
    except OSError:
        return b""
