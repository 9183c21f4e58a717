"""Detection of a node's capabilities (namespaces, bubblewrap, cgroups, engines), and advice for missing ones."""

import os
import signal
import socket
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import NamedTuple, TypeAlias

from batchyard.shim import linux, run, state_dir
from batchyard.shim.images import engines, unpacking
from batchyard.shim.images.engine import DOCKER, PODMAN, ContainerEngine, find_program
from batchyard.shim.images.engines import EngineFailure, EngineSearchResult
from batchyard.shim.isolation import cgroups, seccomp
from batchyard.shim.isolation import network as switch
from batchyard.shim.isolation.cgroups import Cgroups
from batchyard.shim.isolation.users import PodUsers, create_pod_user_namespace

_EFFECTS_AND_REMEDIES = {
    "user namespaces": (
        "containers run as plain processes, and pods share the machine's network",
        "run as root, or allow them: sysctl user.max_user_namespaces and kernel.apparmor_restrict_unprivileged_userns",
    ),
    "bubblewrap": (
        "containers are plain processes without mounts, which can read your files: pods of other users are rejected",
        "apt-get install bubblewrap",
    ),
    "users of pods": (
        "root in a container is root on this machine, without capabilities: pods of other users are rejected",
        "allow user namespaces (sysctl user.max_user_namespaces), on Linux 5.12 or later; or run as an ordinary user",
    ),
    "seccomp": (
        "containers may make all system calls: pods of other users are rejected",
        "use a kernel with CONFIG_SECCOMP_FILTER, on x86_64 or aarch64",
    ),
    "pod network": (
        "pods share the machine's network, including its loopback: pods of other users are rejected",
        "run as root, or allow user namespaces; load the kernel modules bridge and veth",
    ),
    "cgroups": (
        "memory is limited per process instead of per container, and allocations fail at the limit; CPU is not limited",
        "run as root, or as a service of systemd's user manager: systemd-run --user --scope -p Delegate=yes",
    ),
    "container engine": (
        "no installed container engine is usable: only images mapped by --image are available",
        "check that podman info or docker version succeeds for the user of the node, and that bubblewrap is installed",
    ),
}


_TRIAL_TIMEOUT_SECONDS = 10.0
#: The directory in the node directory for the trial of id-mapped pod users.
_USER_MAPPING_TRIAL_FOLDER = "users-trial"
#: Starts the image helper with environment variables; returns its socket and the engines that it detected.
EngineDetector: TypeAlias = Callable[[Mapping[str, str]], tuple[socket.socket, EngineSearchResult]]


class NodeIsolation(NamedTuple):
    """The detected isolation capabilities of a node, which its spawner and shims use."""

    is_root: bool
    #: Whether namespaces can be created: as root, or in the spawner's own user namespace.
    has_namespaces: bool
    #: Whether the spawner has created its own user namespace.
    has_user_namespace: bool
    #: The connection to the network switch process, which ends when all connections are closed.
    switch: socket.socket | None
    #: A descriptor of the network namespace that pods are connected to; None if pods have no network of their own.
    network_fd: int | None
    #: Why the pod network failed; '' if it did not.
    network_failure: str
    #: The path of bubblewrap; None if it is missing, disabled or does not work.
    bubblewrap: str | None
    bubblewrap_version: str | None
    #: Whether the node runs as root and containers run with the ids of their pods.
    maps_users: bool
    #: Whether seccomp can filter the system calls of containers.
    has_seccomp: bool
    cgroups: Cgroups | None
    #: The usable container engines, the default first.
    engines: tuple[ContainerEngine, ...]
    #: The installed engines that are not usable, with the reason.
    engine_failures: tuple[EngineFailure, ...]
    #: Why podman could not run a trial container; '' if it could or no trial was made.
    run_failure: str
    #: The socket of the image helper process; None if the spawner itself uses the engines.
    image_helper: socket.socket | None

    @property
    def container_engine(self) -> ContainerEngine | None:
        """The container engine that runs containers; None if engines only provide images."""
        return next((engine for engine in self.engines if engine.runs_containers), None)


def detect_features(node_fd: int, disabled_names: Collection[str], detect_engines: EngineDetector) -> NodeIsolation:
    """Detect the isolation capabilities of a node; enter a user namespace if needed, and start a missing pod network.

    `node_fd` is the descriptor of the node directory. `detect_engines` detects container engines that must be used
    from outside of that user namespace.
    """
    is_root = os.geteuid() == 0
    switch_connection = switch.connect_to_switch(node_fd)
    has_namespaces = succeeds_in_child(_make_namespaces)
    needs_user_namespace = (
        not has_namespaces and "userns" not in disabled_names and succeeds_in_child(_make_user_namespace)
    )
    has_engines = any(kind not in disabled_names and find_program(kind) for kind in (PODMAN, DOCKER))
    may_run_engines = is_root and has_namespaces
    image_helper, engine_search = (
        detect_engines(dict(os.environ)) if has_engines and needs_user_namespace else (None, EngineSearchResult())
    )
    if needs_user_namespace:
        linux.become_user_namespace_root(switch_connection.user_namespace_fd if switch_connection else None)
        has_namespaces = True
    if has_namespaces and not switch_connection:
        switch_connection = switch.start_switch(node_fd)
    network_fd = switch_connection.network_fd if switch_connection and "network" not in disabled_names else None
    network_failure_reason = switch_connection.failure if switch_connection else "namespaces cannot be created"
    bubblewrap_path = None if "bubblewrap" in disabled_names or not has_namespaces else find_program("bwrap")
    may_map_users = is_root and not needs_user_namespace and "users" not in disabled_names
    maps_users = may_map_users and bubblewrap_path is not None and _can_map_users(node_fd, bubblewrap_path)
    version = _read_bubblewrap_version(bubblewrap_path, has_passed_test=maps_users) if bubblewrap_path else None
    has_seccomp = "seccomp" not in disabled_names and _can_filter_syscalls()
    node_cgroups = None if "cgroups" in disabled_names else cgroups.find_cgroups()
    if has_engines and may_run_engines:
        # podman would run a container's root as this machine's root, so it runs no containers when pods have their own
        # users.
        engine_search = engines.find_engines(
            node_fd, dict(os.environ), node_cgroups, disabled_names, may_run=not maps_users
        )
    engine_search = _drop_unusable_engines(node_fd, engine_search, has_bubblewrap=version is not None)
    return NodeIsolation(
        is_root=is_root,
        has_namespaces=has_namespaces,
        has_user_namespace=needs_user_namespace,
        switch=switch_connection.connection if switch_connection else None,
        network_fd=network_fd,
        network_failure=network_failure_reason,
        bubblewrap=bubblewrap_path if version else None,
        bubblewrap_version=version,
        maps_users=maps_users,
        has_seccomp=has_seccomp,
        cgroups=node_cgroups,
        engines=engine_search.engines,
        engine_failures=engine_search.failures,
        run_failure=engine_search.run_failure,
        image_helper=image_helper,
    )


def features_document(isolation: NodeIsolation) -> dict[str, object]:
    """Return the node's capabilities in the format of features.json."""
    return {
        "spawner": os.getpid(),
        "isRoot": isolation.is_root,
        "userNamespaces": isolation.has_user_namespace,
        "bubblewrap": isolation.bubblewrap_version,
        "isolated": is_isolated(isolation),
        "usersOfPods": isolation.maps_users,
        "seccomp": isolation.has_seccomp,
        "podNetwork": isolation.network_fd is not None,
        "cgroups": isolation.cgroups
        and {"version": isolation.cgroups.version, "controllers": sorted(isolation.cgroups.base_group)},
        "engines": [
            {"name": each.kind, "version": each.version, "runs": each.runs_containers} for each in isolation.engines
        ],
        "runsNone": isolation.run_failure,
        "missing": missing_capabilities(isolation),
    }


def is_isolated(isolation: NodeIsolation) -> bool:
    """Return whether containers are isolated from the machine's files, network and users.

    Without this isolation, only the owner of the node may run containers.
    """
    has_bubblewrap_and_network = isolation.bubblewrap is not None and isolation.network_fd is not None
    return has_bubblewrap_and_network and isolation.has_seccomp and (isolation.maps_users or not isolation.is_root)


def missing_capabilities(isolation: NodeIsolation) -> list[dict[str, str]]:
    """Return the missing capabilities of a node, each with the consequence and the advice for users."""
    is_available_by_name = {
        "user namespaces": isolation.has_namespaces or isolation.is_root,
        "bubblewrap": isolation.bubblewrap is not None,
        "users of pods": isolation.maps_users or not isolation.is_root or isolation.bubblewrap is None,
        "seccomp": isolation.has_seccomp,
        "pod network": isolation.network_fd is not None,
        "cgroups": isolation.cgroups is not None,
        "container engine": bool(isolation.engines) or not isolation.engine_failures,
    }
    engine_failure_text = "; ".join(
        f"{failure.engine}: {failure.reason}" for failure in isolation.engine_failures or ()
    )
    capability_details = {"pod network": isolation.network_failure, "container engine": engine_failure_text}
    return [
        {
            "what": capability,
            "means": effect + (f" ({capability_details[capability]})" if capability_details.get(capability) else ""),
            "remedy": remedy,
        }
        for capability, (effect, remedy) in _EFFECTS_AND_REMEDIES.items()
        if not is_available_by_name[capability]
    ]


def _drop_unusable_engines(
    node_fd: int, engine_search: EngineSearchResult, *, has_bubblewrap: bool
) -> EngineSearchResult:
    """Return the search result without engines that only provide images, if bubblewrap cannot run these images."""
    image_providers = [engine for engine in engine_search.engines if not engine.runs_containers]
    if not image_providers or (has_bubblewrap and _can_mount_overlayfs(node_fd)):
        return engine_search
    reason = "overlayfs cannot be mounted in the data directory: use a data directory on ext4 or xfs"
    reason = reason if has_bubblewrap else "bubblewrap is required to run its images: apt-get install bubblewrap"
    failures = [EngineFailure(f"{engine.kind} {engine.version}", reason) for engine in image_providers]
    return engine_search._replace(
        engines=tuple(engine for engine in engine_search.engines if engine.runs_containers),
        failures=(*failures, *engine_search.failures),
    )


def _can_mount_overlayfs(node_fd: int) -> bool:
    path = os.readlink(f"/proc/self/fd/{node_fd}") + "/layers"
    state_dir.remove_tree(node_fd, "layers")
    os.makedirs(f"{path}/lower")
    can_mount_overlay = succeeds_in_child(partial(_write_to_overlay, f"{path}/lower", path))
    state_dir.remove_tree(node_fd, "layers")
    return can_mount_overlay


def disabled_capabilities(variable_name: str) -> list[str]:
    """Return the names of capabilities, such as `seccomp` or `docker`, that the user disables in this variable.

    Commas or spaces separate the names. Unknown names are returned too.
    """
    return os.environ.get(variable_name, "").replace(",", " ").split()


def succeeds_in_child(trial: Callable[[], None]) -> bool:
    """Run `trial` in a forked child; return whether the child ended with exit status 0 within 10 seconds.

    The child's exit status is 0 if `trial` returns. If `trial` executes a program, it is that of the program.
    """
    child = os.fork()
    if child == 0:
        exit_code = 1
        try:
            signal.alarm(10)
            trial()
            exit_code = 0
        except OSError:
            exit_code = 1
        finally:
            os._exit(exit_code)
    return os.waitpid(child, 0)[1] == 0


def _make_namespaces() -> None:
    linux.unshare(linux.NEWNS | linux.NEWIPC | linux.NEWUTS)
    linux.isolate_later_mounts()


def _make_user_namespace() -> None:
    linux.become_user_namespace_root(None)
    _make_namespaces()


def _write_to_overlay(lower_folder: str, run_folder: str) -> None:
    os.close(os.open(f"{unpacking.mount_writable_overlay(lower_folder, run_folder)}/file", os.O_WRONLY | os.O_CREAT))


#: The bubblewrap options and command of a trial, with the features that containers need.
_TRIAL_COMMAND = (
    "--unshare-pid",
    "--ro-bind",
    "/",
    "/",
    "--proc",
    "/proc",
    "--dev",
    "/dev",
    "--cap-drop",
    "ALL",
    "true",
)


def _read_bubblewrap_version(bubblewrap_path: str, *, has_passed_test: bool) -> str | None:
    """Return bubblewrap's version; None if bubblewrap cannot run a test command with the options of containers.

    With `has_passed_test`, the test command has already succeeded and is not run again.
    """
    trial_command = [bubblewrap_path, "--die-with-parent", *_TRIAL_COMMAND]
    if not has_passed_test and run.run_command(trial_command, os.environ, _TRIAL_TIMEOUT_SECONDS).exit_code != 0:
        return None
    return run.run_command([bubblewrap_path, "--version"], os.environ, _TRIAL_TIMEOUT_SECONDS).output.split()[-1]


def _can_map_users(node_fd: int, bubblewrap_path: str) -> bool:
    os.makedirs(os.readlink(f"/proc/self/fd/{node_fd}") + f"/{_USER_MAPPING_TRIAL_FOLDER}", 0o700, exist_ok=True)
    can_map_users = succeeds_in_child(partial(_execute_as_pod_user, node_fd, bubblewrap_path))
    state_dir.remove_tree(node_fd, _USER_MAPPING_TRIAL_FOLDER)
    return can_map_users


def _execute_as_pod_user(node_fd: int, bubblewrap_path: str) -> None:
    trial_folder = os.readlink(f"/proc/self/fd/{node_fd}") + f"/{_USER_MAPPING_TRIAL_FOLDER}"
    executable_fd, null_fd = os.open(bubblewrap_path, os.O_RDONLY), os.open("/dev/null", os.O_RDWR)
    pod_users = PodUsers("", create_pod_user_namespace(""), trial_folder)
    copied_folder = pod_users.copy_mount(trial_folder)
    pod_users.enter()
    os.close(os.open(f"{copied_folder}/file", os.O_WRONLY | os.O_CREAT))
    for fd in (1, 2):
        os.dup2(null_fd, fd)
    os.execve(executable_fd, ["bwrap", *_TRIAL_COMMAND], dict(os.environ))


def _can_filter_syscalls() -> bool:
    """Return whether a seccomp filter can be installed; compile the default one, which forked shims inherit."""
    try:
        filter_program = seccomp.default_filter()
    except ValueError:
        return False
    return succeeds_in_child(partial(_install_trial_filter, filter_program))


def _install_trial_filter(filter_program: bytes) -> None:
    linux.drop_privileges()
    linux.install_seccomp_filter(filter_program)
