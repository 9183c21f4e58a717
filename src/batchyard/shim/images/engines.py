"""Detection of container engines by trial runs, and the podman options of a container.

The trial container of podman has the settings of pod containers and the machine's own programs, so no image is pulled.
If podman cannot run containers in pod sandboxes, it only provides images, and bubblewrap runs the containers. docker
always only provides images, because it cannot join existing namespaces.
"""

import os
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from batchyard.shim import run as commands
from batchyard.shim import state_dir
from batchyard.shim.images import image_kinds
from batchyard.shim.images.engine import (
    DOCKER,
    PODMAN,
    ContainerEngine,
    extract_error_message,
    find_program,
    format_entrypoint,
)
from batchyard.shim.isolation import cgroups
from batchyard.shim.isolation.cgroups import CgroupPaths, Cgroups

_TRIAL_TIMEOUT_SECONDS = 20.0
#: Time limit in seconds for an engine's version: a remote engine may not answer, and the server waits.
_ANSWER_TIMEOUT_SECONDS = 4.0
#: The OCI runtimes to try, first the engine's default.
_OCI_RUNTIMES = ("", "runc", "crun")
#: Resource limits are inherited from the spawner, because the engine's defaults exceed the limits of many machines.
_PODMAN_SETTINGS = '[containers]\ndefault_ulimits = []\n[engine]\ncgroup_manager = "cgroupfs"\nevents_logger = "none"\n'


class EngineFailure(NamedTuple):
    """An installed container engine that cannot be used, with the reason."""

    engine: str
    reason: str


class EngineSearchResult(NamedTuple):
    """The usable container engines of this machine, the default first, and why other installed ones are unusable."""

    engines: tuple[ContainerEngine, ...] = ()
    failures: tuple[EngineFailure, ...] = ()
    #: Why podman only provides images; empty if it runs containers or was not asked to.
    run_failure: str = ""


def find_engines(
    node_fd: int,
    environment: Mapping[str, str],
    node_cgroups: Cgroups | None,
    disabled_names: Collection[str],
    *,
    may_run: bool,
) -> EngineSearchResult:
    """Detect this machine's usable container engines; `node_fd` is the open descriptor of the node's directory.

    If `may_run` is False, podman is not tried for running containers, and only pulls images.
    """
    engines, failures, run_failure = [], [], ""
    for kind in (PODMAN, DOCKER):
        path = None if kind in disabled_names else find_program(kind)
        if path is None:
            continue
        engine = (
            _detect_docker(path, environment, node_fd) if kind == DOCKER else _detect_podman(path, environment, node_fd)
        )
        if isinstance(engine, EngineFailure):
            failures.append(engine)
            continue
        if kind == PODMAN and may_run:
            trial_result = _find_working_runtime(node_fd, engine, node_cgroups)
            engine, run_failure = (engine, trial_result) if isinstance(trial_result, str) else (trial_result, "")
        engines.append(engine)
    return EngineSearchResult(tuple(engines), tuple(failures), run_failure)


def _detect_podman(path: str, environment: Mapping[str, str], node_fd: int) -> ContainerEngine | EngineFailure:
    result = commands.run_command([path, "--version"], environment, _ANSWER_TIMEOUT_SECONDS)
    name_and_version = result.output.strip().replace(" version", "") or PODMAN
    if result.exit_code == 0:
        podman_env = {**environment, "CONTAINERS_CONF": _write_podman_settings(node_fd)}
        engine = ContainerEngine(
            PODMAN,
            path,
            name_and_version.split()[-1],
            (),
            podman_env,
            state_dir.ensure_node_id(node_fd),
            runs_containers=False,
        )
        result = engine.run_command("info", "--format", "{{.Store.GraphRoot}}", seconds=2 * _ANSWER_TIMEOUT_SECONDS)
    return engine if result.exit_code == 0 else EngineFailure(name_and_version, extract_error_message(result.errors))


def _detect_docker(path: str, environment: Mapping[str, str], node_fd: int) -> ContainerEngine | EngineFailure:
    docker_environment = dict(environment)
    if "DOCKER_HOST" not in docker_environment:
        argv = [path, "context", "inspect", "--format", "{{.Endpoints.docker.Host}}"]
        result = commands.run_command(argv, docker_environment, _ANSWER_TIMEOUT_SECONDS)
        if result.exit_code is None:
            return EngineFailure(DOCKER, result.errors)
        docker_host = result.output.strip()
        docker_environment |= {"DOCKER_HOST": docker_host} if docker_host else {}
    engine = ContainerEngine(
        DOCKER, path, "", (), docker_environment, state_dir.ensure_node_id(node_fd), runs_containers=False
    )
    result = engine.run_command("version", "--format", "{{.Server.Version}}", seconds=_ANSWER_TIMEOUT_SECONDS)
    version = result.output.strip()
    if result.exit_code == 0 and version:
        return engine._replace(version=version)
    return EngineFailure(DOCKER, extract_error_message(result.errors))


def _write_podman_settings(node_fd: int) -> str:
    with open(os.open("containers.conf", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600, dir_fd=node_fd), "w") as file:
        file.write(_PODMAN_SETTINGS)
    return os.readlink(f"/proc/self/fd/{node_fd}") + "/containers.conf"


def _find_working_runtime(node_fd: int, engine: ContainerEngine, node_cgroups: Cgroups | None) -> ContainerEngine | str:
    if node_cgroups is not None and cgroups.engine_group_name(node_cgroups.base_group) is None:
        return "the control group of this process has different names for different controllers (cgroup v1)"
    node_path, first_failure = os.readlink(f"/proc/self/fd/{node_fd}"), ""
    for runtime in _OCI_RUNTIMES:
        candidate_engine = engine._replace(options=("--runtime", runtime) if runtime else (), runs_containers=True)
        trial_options = _test_container_options(node_path, node_cgroups)
        result = candidate_engine.run_command("run", "--rm", *trial_options, "true", seconds=_TRIAL_TIMEOUT_SECONDS)
        if result.exit_code == 0:
            return candidate_engine
        first_failure = first_failure or extract_error_message(result.errors)
    return first_failure


def _test_container_options(node_path: str, node_cgroups: Cgroups | None) -> list[str]:
    """Return the `podman run` options of a test container with the machine's own programs as root filesystem."""
    root = f"{node_path}/trial"
    os.makedirs(root, exist_ok=True)
    for link, target in image_kinds.program_links().items():
        if not os.path.islink(root + link):
            os.symlink(target, root + link)
    folders = [folder for folder in image_kinds.PROGRAM_FOLDERS if os.path.isdir(folder) and not os.path.islink(folder)]
    options = ["--network", f"ns:/proc/{os.getpid()}/ns/net", "--cap-drop", "all", "--log-driver", "none", "--no-hosts"]
    options += [
        "--security-opt",
        "no-new-privileges",
        *cgroup_options(f"{cgroups.engine_group_name(node_cgroups.base_group)}/trial" if node_cgroups else None),
    ]
    return [*options, *(option for path in folders for option in ("--volume", f"{path}:{path}:ro")), "--rootfs", root]


def cgroup_options(group: str | None) -> list[str]:
    """Return podman's options that put a container below the control group `group` (None: podman's default).

    They also prevent podman from creating a control group for its monitor process (conmon).
    """
    return ["--cgroups", "no-conmon", "--cgroup-parent", group] if group else ["--cgroups", "no-conmon"]


# The podman options of a container, which joins the namespaces of its pod's sandbox.


#: Names of variables that can be in an environment file, if the value is short and has one line.
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*", re.ASCII)
_LINE_BYTES = 32 * 1024


class EngineContainerPaths(NamedTuple):
    """The directories of a podman container's sandbox and run, and the pid of the sandbox's process."""

    sandbox: str
    run: str
    sandbox_pid: int
    #: The run's path relative to the node directory.
    path: str


def podman_run_options(
    spec: Mapping[str, Any],
    paths: EngineContainerPaths,
    engine: ContainerEngine,
    group: CgroupPaths,
    variables: tuple[int, Sequence[str]],
) -> list[str]:
    """Return the arguments of `podman run` for a container's spec; `variables` is the result of `write_env_file`."""
    environment_fd, other_variables = variables
    return [
        *("--pull", "never", "--name", engine.container_name(paths.path), *engine.label_options(paths.path)),
        *("--pidfile", f"{paths.run}/pid", "--no-healthcheck", "--http-proxy=false", "--systemd", "false"),
        *("--cap-drop", "all", "--security-opt", "no-new-privileges", "--no-hosts", "--image-volume", "ignore"),
        *_stream_options(spec),
        *_namespace_options(spec, paths.sandbox_pid),
        *_limit_options(spec, group),
        *_user_options(spec),
        *(["--read-only", "--read-only-tmpfs=false"] if spec["readOnlyRoot"] else []),
        *(option for device in spec["devices"] for option in ("--device", device)),
        *_mount_options(spec, paths),
        *("--env-file", f"/proc/self/fd/{environment_fd}", "--unsetenv", "container"),
        *(option for variable in other_variables for option in ("--env", variable)),
        *(["--workdir", spec["workingDir"]] if spec["workingDir"] else []),
        *("--entrypoint", format_entrypoint(spec["argv"][:1]), spec["image"]["id"], *spec["argv"][1:]),
    ]


def write_env_file(environment: Mapping[str, str]) -> tuple[int, list[str]]:
    """Write environment variables to an env-file in memory; return its descriptor and the other variables.

    The other variables, which an env-file cannot hold, are returned as `NAME=value`.
    """
    fd = os.memfd_create("environment", 0)
    other_variables = []
    for name, value in environment.items():
        assignment = f"{name}={value}"
        if _VARIABLE_NAME.fullmatch(name) and "\n" not in value and "\r" not in value and len(assignment) < _LINE_BYTES:
            os.write(fd, f"{assignment}\n".encode())
        else:
            other_variables.append(assignment)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd, other_variables


def _stream_options(spec: Mapping[str, Any]) -> list[str]:
    stdin_options = ["--interactive"] if spec["stdin"] else []
    if spec["tty"]:
        return ["--tty", "--log-driver", "none", *stdin_options]
    return ["--detach", "--log-driver", "passthrough", *stdin_options]


def _namespace_options(spec: Mapping[str, Any], sandbox_pid: int) -> list[str]:
    ns_options = [option for name in ("ipc", "uts") for option in (f"--{name}", f"ns:/proc/{sandbox_pid}/ns/{name}")]
    return [*ns_options, "--network", f"ns:/proc/{sandbox_pid}/ns/net" if spec["network"] == "pod" else "host"]


def _limit_options(spec: Mapping[str, Any], group: CgroupPaths) -> list[str]:
    """Return podman's options that limit resources: the parent control group `group` or, if it is empty, the limits."""
    if group:
        return [*cgroup_options(cgroups.engine_group_name(group)), "--pids-limit", "-1"]
    limits = spec["limits"]
    cpu = ["--cpus", f"{limits['cpu'] / 1000:g}"] if limits["cpu"] else []
    memory_options = ["--memory", f"{limits['memory']}b"] if limits["memory"] else []
    return [*cgroup_options(None), "--pids-limit", str(limits["pids"]), *cpu, *memory_options]


def _user_options(spec: Mapping[str, Any]) -> list[str]:
    group_options = [option for group in spec.get("groups") or () for option in ("--group-add", str(group))]
    return [*(["--user", spec["user"]] if spec["user"] else []), *group_options]


def _mount_options(spec: Mapping[str, Any], paths: EngineContainerPaths) -> list[str]:
    termination_path = spec["terminationMessagePath"]
    mount_fields = [(mount["source"], mount["target"], mount["readOnly"]) for mount in spec["mounts"]]
    targets = {target for _, target, _ in mount_fields}
    mount_fields += [
        (f"{paths.sandbox}/{name}", f"/etc/{name}", False)
        for name in state_dir.SANDBOX_FILES
        if f"/etc/{name}" not in targets
    ]
    mount_fields += [(f"{paths.run}/termination-log", termination_path, False)] if termination_path else []
    if spec["image"].get("lacksFolder") and not any(
        image_kinds.is_within(spec["workingDir"], target) for target in targets
    ):
        mount_fields.append((f"{paths.run}/root/folder", spec["workingDir"], False))
    return [option for entry in mount_fields for option in ("--mount", _format_mount(*entry))]


def _format_mount(source: str, target: str, is_read_only: bool) -> str:
    fields = ["type=bind", f"source={source}", f"target={target}", *(["readonly=true"] if is_read_only else [])]
    return ",".join('"' + field.replace('"', '""') + '"' if set(field) & {",", '"'} else field for field in fields)
