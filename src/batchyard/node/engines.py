"""Which container engines of this machine work, and how far: tried, and not guessed.

podman is tried with a container of the machine's own programs, with the settings that pods' containers have; nothing is
pulled for that. Where it may not run containers in the sandboxes of pods, and for docker, which puts containers into no
namespaces but its own, the engine brings images and bubblewrap runs them.
"""

import os
from collections.abc import Collection, Mapping
from typing import NamedTuple

from batchyard.node import cgroups, commands, folder, images
from batchyard.node.cgroups import Cgroups
from batchyard.node.engine import DOCKER, PODMAN, Engine, last_line, program

_TRIAL_SECONDS = 20.0
#: How long an engine may take to say what it is: one elsewhere may not answer, and a platform waits for its spawner.
_ANSWER_SECONDS = 4.0
#: The engine's own choice first.
_RUNTIMES = ("", "runc", "crun")
#: Limits of processes are the spawner's: the engine's are more than every machine lets it set.
_SETTINGS = '[containers]\ndefault_ulimits = []\n[engine]\ncgroup_manager = "cgroupfs"\nevents_logger = "none"\n'


class Failure(NamedTuple):
    """An engine that is here and cannot be used, and why."""

    what: str
    why: str


class Found(NamedTuple):
    """The engines that work, the one first that is asked where nothing is said; and those that do not."""

    engines: tuple[Engine, ...] = ()
    failures: tuple[Failure, ...] = ()
    #: Why one that brings images does not run them too; empty where that is its nature.
    runs_none: str = ""


def find(
    node: int, environment: Mapping[str, str], made: Cgroups | None, without: Collection[str], *, may_run: bool
) -> Found:
    """The engines of this machine; `may_run` is who may put containers into the sandboxes of pods."""
    engines, failures, runs_none = [], [], ""
    for kind in (PODMAN, DOCKER):
        path = None if kind in without else program(kind)
        if path is None:
            continue
        tried = _docker(path, environment, node) if kind == DOCKER else _podman(path, environment, node)
        if isinstance(tried, Failure):
            failures.append(tried)
            continue
        if kind == PODMAN and may_run:
            ran = _running(node, tried, made)
            tried, runs_none = (tried, ran) if isinstance(ran, str) else (ran, "")
        engines.append(tried)
    return Found(tuple(engines), tuple(failures), runs_none)


def _podman(path: str, environment: Mapping[str, str], node: int) -> Engine | Failure:
    told = commands.run([path, "--version"], environment, _ANSWER_SECONDS)
    what = told.output.strip().replace(" version", "") or PODMAN
    if told.code == 0:
        variables = {**environment, "CONTAINERS_CONF": _settings(node)}
        engine = Engine(PODMAN, path, what.split()[-1], (), variables, folder.identity(node), runs=False)
        told = engine.ask("info", "--format", "{{.Store.GraphRoot}}", seconds=2 * _ANSWER_SECONDS)
    return engine if told.code == 0 else Failure(what, last_line(told.errors))


def _docker(path: str, environment: Mapping[str, str], node: int) -> Engine | Failure:
    """docker, whose daemon answers; it is asked where the user's own settings say that it is."""
    variables = dict(environment)
    if "DOCKER_HOST" not in variables:
        asked = [path, "context", "inspect", "--format", "{{.Endpoints.docker.Host}}"]
        told = commands.run(asked, variables, _ANSWER_SECONDS)
        if told.code is None:
            return Failure(DOCKER, told.errors)
        place = told.output.strip()
        variables |= {"DOCKER_HOST": place} if place else {}
    engine = Engine(DOCKER, path, "", (), variables, folder.identity(node), runs=False)
    told = engine.ask("version", "--format", "{{.Server.Version}}", seconds=_ANSWER_SECONDS)
    version = told.output.strip()
    if told.code == 0 and version:
        return engine._replace(version=version)
    return Failure(DOCKER, last_line(told.errors))


def _settings(node: int) -> str:
    """The path of podman's settings."""
    with open(os.open("containers.conf", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600, dir_fd=node), "w") as file:
        file.write(_SETTINGS)
    return os.readlink(f"/proc/self/fd/{node}") + "/containers.conf"


def _running(node: int, engine: Engine, made: Cgroups | None) -> Engine | str:
    """The same with the first runtime that works; or why it does not run containers."""
    if made is not None and cgroups.parent(made.base) is None:
        return "this machine's control groups are of different names for different resources"
    place, why = os.readlink(f"/proc/self/fd/{node}"), ""
    for runtime in _RUNTIMES:
        tried = engine._replace(options=("--runtime", runtime) if runtime else (), runs=True)
        told = tried.ask("run", "--rm", *_trial(place, made), "true", seconds=_TRIAL_SECONDS)
        if told.code == 0:
            return tried
        why = why or last_line(told.errors)
    return why


def _trial(place: str, made: Cgroups | None) -> list[str]:
    """The options of a container that shows the machine's own programs."""
    root = f"{place}/trial"
    os.makedirs(root, exist_ok=True)
    for link, target in images.links().items():
        if not os.path.islink(root + link):
            os.symlink(target, root + link)
    shown = [folder for folder in images.PROGRAMS if os.path.isdir(folder) and not os.path.islink(folder)]
    options = ["--network", f"ns:/proc/{os.getpid()}/ns/net", "--cap-drop", "all", "--log-driver", "none", "--no-hosts"]
    options += ["--security-opt", "no-new-privileges", *placed(f"{cgroups.parent(made.base)}/trial" if made else None)]
    return [*options, *(part for path in shown for part in ("--volume", f"{path}:{path}:ro")), "--rootfs", root]


def placed(group: str | None) -> list[str]:
    """The options by which a container's control group lies in another one, and what watches it in none."""
    return ["--cgroups", "no-conmon", "--cgroup-parent", group] if group else ["--cgroups", "no-conmon"]
