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
from batchyard.shim.images import store
from batchyard.shim.images.engine import DOCKER, PODMAN, ContainerEngine, last_line, program, quoted
from batchyard.shim.isolation import cgroups
from batchyard.shim.isolation.cgroups import Cgroups, Group

_TRIAL_SECONDS = 20.0
#: Time limit in seconds for an engine's version: a remote engine may not answer, and the platform waits.
_ANSWER_SECONDS = 4.0
#: The OCI runtimes to try, first the engine's default.
_RUNTIMES = ("", "runc", "crun")
#: Resource limits are inherited from the spawner, because the engine's defaults exceed the limits of many machines.
_SETTINGS = '[containers]\ndefault_ulimits = []\n[engine]\ncgroup_manager = "cgroupfs"\nevents_logger = "none"\n'


class EngineFailure(NamedTuple):
    """An installed container engine that cannot be used, and the reason."""

    what: str
    why: str


class EngineSearchResult(NamedTuple):
    """The usable container engines, the default first, and the failures of other installed engines."""

    engines: tuple[ContainerEngine, ...] = ()
    failures: tuple[EngineFailure, ...] = ()
    #: Why podman only provides images; empty if it runs containers or was not asked to.
    runs_none: str = ""


def find(
    node: int, environment: Mapping[str, str], made: Cgroups | None, without: Collection[str], *, may_run: bool
) -> EngineSearchResult:
    """Detect the container engines of this machine; `may_run`: podman may run containers in pod sandboxes."""
    engines, failures, runs_none = [], [], ""
    for kind in (PODMAN, DOCKER):
        path = None if kind in without else program(kind)
        if path is None:
            continue
        tried = _docker(path, environment, node) if kind == DOCKER else _podman(path, environment, node)
        if isinstance(tried, EngineFailure):
            failures.append(tried)
            continue
        if kind == PODMAN and may_run:
            ran = _running(node, tried, made)
            tried, runs_none = (tried, ran) if isinstance(ran, str) else (ran, "")
        engines.append(tried)
    return EngineSearchResult(tuple(engines), tuple(failures), runs_none)


def _podman(path: str, environment: Mapping[str, str], node: int) -> ContainerEngine | EngineFailure:
    result = commands.run([path, "--version"], environment, _ANSWER_SECONDS)
    what = result.output.strip().replace(" version", "") or PODMAN
    if result.code == 0:
        variables = {**environment, "CONTAINERS_CONF": _settings(node)}
        engine = ContainerEngine(PODMAN, path, what.split()[-1], (), variables, state_dir.identity(node), runs=False)
        result = engine.ask("info", "--format", "{{.Store.GraphRoot}}", seconds=2 * _ANSWER_SECONDS)
    return engine if result.code == 0 else EngineFailure(what, last_line(result.errors))


def _docker(path: str, environment: Mapping[str, str], node: int) -> ContainerEngine | EngineFailure:
    """Return docker if its daemon answers at the endpoint of the user's docker context, else the failure."""
    variables = dict(environment)
    if "DOCKER_HOST" not in variables:
        asked = [path, "context", "inspect", "--format", "{{.Endpoints.docker.Host}}"]
        result = commands.run(asked, variables, _ANSWER_SECONDS)
        if result.code is None:
            return EngineFailure(DOCKER, result.errors)
        place = result.output.strip()
        variables |= {"DOCKER_HOST": place} if place else {}
    engine = ContainerEngine(DOCKER, path, "", (), variables, state_dir.identity(node), runs=False)
    result = engine.ask("version", "--format", "{{.Server.Version}}", seconds=_ANSWER_SECONDS)
    version = result.output.strip()
    if result.code == 0 and version:
        return engine._replace(version=version)
    return EngineFailure(DOCKER, last_line(result.errors))


def _settings(node: int) -> str:
    """Write podman's configuration file to the node directory; return its path."""
    with open(os.open("containers.conf", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600, dir_fd=node), "w") as file:
        file.write(_SETTINGS)
    return os.readlink(f"/proc/self/fd/{node}") + "/containers.conf"


def _running(node: int, engine: ContainerEngine, made: Cgroups | None) -> ContainerEngine | str:
    """Return podman with the first OCI runtime that can run a trial container, or the reason if none can."""
    if made is not None and cgroups.parent(made.base) is None:
        return "the control group of this process has different names for different controllers (cgroup v1)"
    place, why = os.readlink(f"/proc/self/fd/{node}"), ""
    for runtime in _RUNTIMES:
        tried = engine._replace(options=("--runtime", runtime) if runtime else (), runs=True)
        result = tried.ask("run", "--rm", *_trial(place, made), "true", seconds=_TRIAL_SECONDS)
        if result.code == 0:
            return tried
        why = why or last_line(result.errors)
    return why


def _trial(place: str, made: Cgroups | None) -> list[str]:
    """Return the podman options of a trial container with the machine's own programs."""
    root = f"{place}/trial"
    os.makedirs(root, exist_ok=True)
    for link, target in store.links().items():
        if not os.path.islink(root + link):
            os.symlink(target, root + link)
    shown = [folder for folder in store.PROGRAMS if os.path.isdir(folder) and not os.path.islink(folder)]
    options = ["--network", f"ns:/proc/{os.getpid()}/ns/net", "--cap-drop", "all", "--log-driver", "none", "--no-hosts"]
    options += ["--security-opt", "no-new-privileges", *placed(f"{cgroups.parent(made.base)}/trial" if made else None)]
    return [*options, *(part for path in shown for part in ("--volume", f"{path}:{path}:ro")), "--rootfs", root]


def placed(group: str | None) -> list[str]:
    """Return podman's options that create a container's control group below a parent group, without one for conmon."""
    return ["--cgroups", "no-conmon", "--cgroup-parent", group] if group else ["--cgroups", "no-conmon"]


# --- podman ---
# The podman options of a container, which joins the namespaces of its pod's sandbox.


#: Names of variables that can be in an environment file, if the value is short and has one line.
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*", re.ASCII)
_LINE_BYTES = 32 * 1024


class EngineContainerPaths(NamedTuple):
    """The directories of a container's sandbox and run, and the pid of the sandbox's process."""

    sandbox: str
    run: str
    keeper: int
    #: The run's path relative to the node directory.
    path: str


def options(
    spec: Mapping[str, Any],
    places: EngineContainerPaths,
    engine: ContainerEngine,
    group: Group,
    variables: tuple[int, Sequence[str]],
) -> list[str]:
    """Return the arguments of `podman run`. The sources of the spec's mounts are absolute.

    `variables` are the result of the function `variables`.
    """
    file, others = variables
    return [
        *("--pull", "never", "--name", engine.name(places.path), *engine.labels(places.path)),
        *("--pidfile", f"{places.run}/pid", "--no-healthcheck", "--http-proxy=false", "--systemd", "false"),
        *("--cap-drop", "all", "--security-opt", "no-new-privileges", "--no-hosts", "--image-volume", "ignore"),
        *_streams(spec),
        *_namespaces(spec, places.keeper),
        *_limits(spec, group),
        *_user(spec),
        *(["--read-only", "--read-only-tmpfs=false"] if spec["readOnlyRoot"] else []),
        *(part for device in spec["devices"] for part in ("--device", device)),
        *_mounts(spec, places),
        *("--env-file", f"/proc/self/fd/{file}", "--unsetenv", "container"),
        *(part for variable in others for part in ("--env", variable)),
        *(["--workdir", spec["workingDir"]] if spec["workingDir"] else []),
        *("--entrypoint", quoted(spec["argv"][:1]), spec["image"]["id"], *spec["argv"][1:]),
    ]


def variables(environment: Mapping[str, str]) -> tuple[int, list[str]]:
    """Write a container's variables to a file in memory; return its descriptor and the variables that do not fit."""
    file = os.memfd_create("environment", 0)
    others = []
    for name, value in environment.items():
        text = f"{name}={value}"
        if _PLAIN_NAME.fullmatch(name) and "\n" not in value and "\r" not in value and len(text) < _LINE_BYTES:
            os.write(file, f"{text}\n".encode())
        else:
            others.append(text)
    os.lseek(file, 0, os.SEEK_SET)
    return file, others


def _streams(spec: Mapping[str, Any]) -> list[str]:
    """Return the options for the standard streams: passed to the container, or a terminal that the engine forwards."""
    reads = ["--interactive"] if spec["stdin"] else []
    if spec["tty"]:
        return ["--tty", "--log-driver", "none", *reads]
    return ["--detach", "--log-driver", "passthrough", *reads]


def _namespaces(spec: Mapping[str, Any], keeper: int) -> list[str]:
    """Return the options that join the namespaces of the pod's sandbox."""
    shared = [part for name in ("ipc", "uts") for part in (f"--{name}", f"ns:/proc/{keeper}/ns/{name}")]
    return [*shared, "--network", f"ns:/proc/{keeper}/ns/net" if spec["network"] == "pod" else "host"]


def _limits(spec: Mapping[str, Any], group: Group) -> list[str]:
    """Return the options for resource limits: a parent control group that has the limits, or else the limits."""
    if group:
        return [*placed(cgroups.parent(group)), "--pids-limit", "-1"]
    limits = spec["limits"]
    cpu = ["--cpus", f"{limits['cpu'] / 1000:g}"] if limits["cpu"] else []
    memory = ["--memory", f"{limits['memory']}b"] if limits["memory"] else []
    return [*placed(None), "--pids-limit", str(limits["pids"]), *cpu, *memory]


def _user(spec: Mapping[str, Any]) -> list[str]:
    """Return the options for the user, if it differs from the image's user, and for additional groups."""
    groups = [part for group in spec.get("groups") or () for part in ("--group-add", str(group))]
    return [*(["--user", spec["user"]] if spec["user"] else []), *groups]


def _mounts(spec: Mapping[str, Any], places: EngineContainerPaths) -> list[str]:
    """Return the options that mount volumes, the sandbox's files in /etc, and the termination-message file."""
    last = spec["terminationMessagePath"]
    rows = [(mount["source"], mount["target"], mount["readOnly"]) for mount in spec["mounts"]]
    taken = {target for _, target, _ in rows}
    rows += [
        (f"{places.sandbox}/{name}", f"/etc/{name}", False) for name in state_dir.NAMES if f"/etc/{name}" not in taken
    ]
    rows += [(f"{places.run}/termination-log", last, False)] if last else []
    if spec["image"].get("lacksFolder") and not any(store.is_within(spec["workingDir"], place) for place in taken):
        rows.append((f"{places.run}/root/folder", spec["workingDir"], False))
    return [part for row in rows for part in ("--mount", _mount(*row))]


def _mount(source: str, target: str, is_read_only: bool) -> str:
    """Format a bind mount as the value of podman's option `--mount` (comma-separated, quoted if needed)."""
    fields = ["type=bind", f"source={source}", f"target={target}", *(["readonly=true"] if is_read_only else [])]
    return ",".join('"' + field.replace('"', '""') + '"' if set(field) & {",", '"'} else field for field in fields)
