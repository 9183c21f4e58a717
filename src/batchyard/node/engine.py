"""The container engine of this machine, podman: whether it is there, whether it works, and how it is spoken to.

What is found is tried: a container of the machine's own programs, with the settings that pods' containers have. Nothing
is pulled for that. docker is told of, and not used: it puts containers into no namespaces but its own.
"""

import json
import os
from collections.abc import Mapping
from typing import NamedTuple

from batchyard.node import cgroups, commands, folder, images
from batchyard.node.cgroups import Cgroups
from batchyard.node.commands import Done

_LABEL = "batchyard.node"
RUN_LABEL = "batchyard.run"
_TRIAL_SECONDS = 20.0
_ASK_SECONDS = 60.0
_REMOVALS = 3
#: The engine's own choice first.
_RUNTIMES = ("", "runc", "crun")
#: Limits of processes are the spawner's: the engine's are more than every machine lets it set.
_SETTINGS = '[containers]\ndefault_ulimits = []\n[engine]\ncgroup_manager = "cgroupfs"\nevents_logger = "none"\n'


class Engine(NamedTuple):
    """podman, as it works here."""

    program: str
    version: str
    #: What comes before each of its commands.
    options: tuple[str, ...]
    environment: Mapping[str, str]
    #: What tells this node's containers from others.
    identity: str

    def ask(self, *arguments: str, seconds: float = _ASK_SECONDS) -> Done:
        """Let it do something, for so many seconds at most."""
        return commands.run([self.program, *self.options, *arguments], self.environment, seconds)

    def labels(self, path: str) -> list[str]:
        """The options that tell whose a container is; `path` is its run's."""
        return ["--label", f"{_LABEL}={self.identity}", "--label", f"{RUN_LABEL}={path}"]

    def name(self, path: str) -> str:
        """The name of a run's container."""
        _, uid, _, container, attempt = path.split("/")
        return f"batchyard-{self.identity}-{uid}-{container}-{attempt}"

    def forget(self, *names: str) -> None:
        """Kill containers, and remove all that is left of them; once more where that fails."""
        for _ in range(_REMOVALS if names else 0):
            if self.ask("rm", "--force", "--ignore", "--volumes", "--time", "0", *names).code == 0:
                return

    def containers(self) -> dict[str, str]:
        """The containers of this node: their runs' paths, and their names."""
        form = f'{{{{index .Labels "{RUN_LABEL}"}}}} {{{{.ID}}}}'
        told = self.ask("ps", "--all", "--filter", f"label={_LABEL}={self.identity}", "--format", form)
        rows = (line.split() for line in told.output.splitlines())
        return {row[0]: row[1] for row in rows if len(row) == 2 and row[0].count("/") == 4}


class Found(NamedTuple):
    """What there is of engines: one that works, or what is there and why it does not serve; empty texts for none."""

    engine: Engine | None
    what: str = ""
    why: str = ""


def find(node: int, environment: Mapping[str, str], made: Cgroups | None, *, is_root: bool) -> Found:
    """The engine that works here."""
    path = program("podman")
    if path is None:
        has_docker = program("docker")
        return (
            Found(None, "docker", "it cannot put containers into the network of a pod") if has_docker else Found(None)
        )
    told = commands.run([path, "--version"], environment, _TRIAL_SECONDS)
    what = told.output.strip().replace(" version", "") or "podman"
    if told.code != 0:
        return Found(None, what, last_line(told.errors))
    if not is_root:
        return Found(None, what, "only root may have it join the namespaces of pods")
    if made is not None and cgroups.parent(made.base) is None:
        return Found(None, what, "this machine's control groups are of different names for different resources")
    return _tried(node, Engine(path, what.split()[-1], (), environment, folder.identity(node)), what, made)


def _tried(node: int, engine: Engine, what: str, made: Cgroups | None) -> Found:
    """The engine with the first runtime that works; or why none does."""
    place = os.readlink(f"/proc/self/fd/{node}")
    with open(os.open("containers.conf", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600, dir_fd=node), "w") as file:
        file.write(_SETTINGS)
    variables = {**engine.environment, "CONTAINERS_CONF": f"{place}/containers.conf"}
    why = ""
    for runtime in _RUNTIMES:
        options = ("--runtime", runtime) if runtime else ()
        tried = engine._replace(options=options, environment=variables)
        told = tried.ask("run", "--rm", *_trial(place, made), "true", seconds=_TRIAL_SECONDS)
        if told.code == 0:
            return Found(tried, what)
        why = why or last_line(told.errors)
    return Found(None, what, why)


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


def last_line(text: str) -> str:
    """Why the engine did not do something, as it says it."""
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].removeprefix("Error: ") if lines else "it does not say why"


def quoted(words: list[str]) -> str:
    """A command as one of its options takes it."""
    return json.dumps(words)


def program(name: str) -> str | None:
    """Where a program lies."""
    paths = (f"{folder}/{name}" for folder in os.get_exec_path())
    return next((path for path in paths if os.access(path, os.X_OK)), None)
