"""Container engine client: runs podman or docker for containers and images."""

import json
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from batchyard.shim import run as commands
from batchyard.shim.run import CommandResult

PODMAN, DOCKER = "podman", "docker"
_LABEL = "batchyard.node"
RUN_LABEL = "batchyard.run"
_ASK_SECONDS = 60.0
_PULL_SECONDS = 3600.0
_REMOVALS = 3
#: The engines' messages for a missing image.
_NO_IMAGE = ("No such image", "image not known", "no such image")
#: docker's message for a missing container.
_NO_CONTAINER = "No such container"


class ContainerEngine(NamedTuple):
    """A detected container engine, and how it is invoked."""

    #: `podman` or `docker`.
    kind: str
    program: str
    version: str
    #: Global options that precede each command.
    options: tuple[str, ...]
    environment: Mapping[str, str]
    #: The id of the node directory, which labels this node's containers.
    identity: str
    #: Whether it runs containers in pod sandboxes; otherwise it only provides images.
    runs: bool

    def ask(self, *arguments: str, seconds: float = _ASK_SECONDS) -> CommandResult:
        """Run a command of the engine for at most `seconds`."""
        return commands.run([self.program, *self.options, *arguments], self.environment, seconds)

    def labels(self, path: str) -> list[str]:
        """Return the options that label a container with its node and run; `path` is the run's."""
        return ["--label", f"{_LABEL}={self.identity}", "--label", f"{RUN_LABEL}={path}"]

    def name(self, path: str) -> str:
        """Return the name of a run's container."""
        _, uid, kind, container, attempt = path.split("/")
        of_image = "" if kind == "runs" else "image-"
        return f"batchyard-{self.identity}-{uid}-{of_image}{container}-{attempt}"

    def forget(self, *names: str) -> None:
        """Kill and remove containers; retry if that fails."""
        options = ["--ignore", "--time", "0"] if self.kind == PODMAN else []
        for _ in range(_REMOVALS if names else 0):
            result = self.ask("rm", "--force", *options, "--volumes", *names)
            if result.code == 0 or (result.code and all(_NO_CONTAINER in line for line in result.errors.splitlines())):
                return

    def containers(self) -> dict[str, str]:
        """Return this node's containers: their names by the paths of their runs."""
        labelled = f'index .Labels "{RUN_LABEL}"' if self.kind == PODMAN else f'.Label "{RUN_LABEL}"'
        form = f"{{{{{labelled}}}}} {{{{.ID}}}}"
        result = self.ask("ps", "--all", "--filter", f"label={_LABEL}={self.identity}", "--format", form)
        rows = (line.split() for line in result.output.splitlines())
        return {row[0]: row[1] for row in rows if len(row) == 2 and row[0].count("/") == 4}

    def image(self, reference: str) -> dict[str, Any] | None:
        """Return an image's metadata; None if the engine does not have it. OSError if the engine does not answer."""
        result = self.ask("image", "inspect", reference)
        if result.code != 0:
            if result.code is not None and any(text in result.errors for text in _NO_IMAGE):
                return None
            raise OSError(last_line(result.errors))
        return _parse_image(json.loads(result.output)[0])

    def pull(self, reference: str, auth: Mapping[str, Any], own: str) -> CommandResult:
        """Pull an image with credentials; return the result. `own` is a directory for docker's configuration."""
        if not auth:
            return self.ask("pull", "--quiet", reference, seconds=_PULL_SECONDS)
        file = os.memfd_create("auth", 0)  # not visible to other users of the machine
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
    """Return the engine's error message: the last line of its output."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("See '")]
    return lines[-1].removeprefix("Error: ") if lines else "no reason given"


def quoted(words: list[str]) -> str:
    """Format a command as an option value."""
    return json.dumps(words)


def program(name: str) -> str | None:
    """Return the path of a program; None if it is not installed."""
    paths = (f"{folder}/{name}" for folder in os.get_exec_path())
    return next((path for path in paths if os.access(path, os.X_OK)), None)


def _parse_image(image: Mapping[str, Any]) -> dict[str, Any]:
    """Return an image's metadata from `image inspect`, whose format the engines share."""
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
