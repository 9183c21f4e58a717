"""A container engine of this machine, podman or docker: how it is spoken to, about containers and about images."""

import json
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from batchyard.shim import run as commands
from batchyard.shim.run import Done

PODMAN, DOCKER = "podman", "docker"
_LABEL = "batchyard.node"
RUN_LABEL = "batchyard.run"
_ASK_SECONDS = 60.0
_PULL_SECONDS = 3600.0
_REMOVALS = 3
#: What engines say of an image that they have not.
_NO_IMAGE = ("No such image", "image not known", "no such image")
#: What docker says of a container that is gone already.
_NO_CONTAINER = "No such container"


class Engine(NamedTuple):
    """An engine, as it works here."""

    #: `podman` or `docker`.
    kind: str
    program: str
    version: str
    #: What comes before each of its commands.
    options: tuple[str, ...]
    environment: Mapping[str, str]
    #: What tells this node's containers from others.
    identity: str
    #: Whether it runs containers in the sandboxes of pods; else it brings images alone.
    runs: bool

    def ask(self, *arguments: str, seconds: float = _ASK_SECONDS) -> Done:
        """Let it do something, for so many seconds at most."""
        return commands.run([self.program, *self.options, *arguments], self.environment, seconds)

    def labels(self, path: str) -> list[str]:
        """The options that tell whose a container is; `path` is its run's."""
        return ["--label", f"{_LABEL}={self.identity}", "--label", f"{RUN_LABEL}={path}"]

    def name(self, path: str) -> str:
        """The name of a run's container."""
        _, uid, kind, container, attempt = path.split("/")
        of_image = "" if kind == "runs" else "image-"
        return f"batchyard-{self.identity}-{uid}-{of_image}{container}-{attempt}"

    def forget(self, *names: str) -> None:
        """Kill containers, and remove all that is left of them; once more where that fails."""
        options = ["--ignore", "--time", "0"] if self.kind == PODMAN else []
        for _ in range(_REMOVALS if names else 0):
            told = self.ask("rm", "--force", *options, "--volumes", *names)
            if told.code == 0 or (told.code and all(_NO_CONTAINER in line for line in told.errors.splitlines())):
                return

    def containers(self) -> dict[str, str]:
        """The containers of this node: their runs' paths, and their names."""
        labelled = f'index .Labels "{RUN_LABEL}"' if self.kind == PODMAN else f'.Label "{RUN_LABEL}"'
        form = f"{{{{{labelled}}}}} {{{{.ID}}}}"
        told = self.ask("ps", "--all", "--filter", f"label={_LABEL}={self.identity}", "--format", form)
        rows = (line.split() for line in told.output.splitlines())
        return {row[0]: row[1] for row in rows if len(row) == 2 and row[0].count("/") == 4}

    def image(self, reference: str) -> dict[str, Any] | None:
        """What an image is; None where it is not here. OSError where the engine does not answer."""
        told = self.ask("image", "inspect", reference)
        if told.code != 0:
            if told.code is not None and any(text in told.errors for text in _NO_IMAGE):
                return None
            raise OSError(last_line(told.errors))
        return _told_of(json.loads(told.output)[0])

    def pull(self, reference: str, auth: Mapping[str, Any], own: str) -> Done:
        """What it says of a pull, for which it says who it is; `own` is a folder for what it reads meanwhile."""
        if not auth:
            return self.ask("pull", "--quiet", reference, seconds=_PULL_SECONDS)
        file = os.memfd_create("auth", 0)  # which others of the machine cannot see
        os.write(file, json.dumps(auth).encode())
        os.lseek(file, 0, os.SEEK_SET)
        place = f"/proc/self/fd/{file}"
        try:
            if self.kind == PODMAN:
                return self.ask("pull", "--quiet", "--authfile", place, reference, seconds=_PULL_SECONDS)
            os.symlink(place, f"{own}/config.json")
            known = self._replace(environment={**self.environment, "DOCKER_CONFIG": own})
            return known.ask("pull", "--quiet", reference, seconds=_PULL_SECONDS)
        finally:
            os.close(file)


def last_line(text: str) -> str:
    """Why an engine did not do something, as it says it."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("See '")]
    return lines[-1].removeprefix("Error: ") if lines else "it does not say why"


def quoted(words: list[str]) -> str:
    """A command as one of its options takes it."""
    return json.dumps(words)


def program(name: str) -> str | None:
    """Where a program lies."""
    paths = (f"{folder}/{name}" for folder in os.get_exec_path())
    return next((path for path in paths if os.access(path, os.X_OK)), None)


def _told_of(image: Mapping[str, Any]) -> dict[str, Any]:
    """An image, from what engines tell of it, which they do alike."""
    config = image.get("Config") or {}
    tags, digests = image.get("RepoTags") or (), image.get("RepoDigests") or ()
    plain = image["Id"].removeprefix("sha256:")
    return {
        "id": image["Id"],
        "name": tags[0] if tags else "",
        "digest": digests[0] if digests else f"sha256:{plain}",
        "size": image.get("Size") or 0,
        "entrypoint": config.get("Entrypoint") or [],
        "command": config.get("Cmd") or [],
        "environment": dict(pair.split("=", 1) for pair in config.get("Env") or () if "=" in pair),
        "workingDir": config.get("WorkingDir") or "",
        "user": config.get("User") or "",
        "stopSignal": config.get("StopSignal") or "",
    }
