"""podman's command line for a container: the engine brings its image, the pod's sandbox what the pod shares."""

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from batchyard.node import cgroups, images, settings
from batchyard.node.cgroups import Group
from batchyard.node.engine import Engine, quoted
from batchyard.node.engines import placed

#: What a file of variables can hold: no name that begins oddly, no value of several lines, none that is too long.
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*", re.ASCII)
_LINE_BYTES = 32 * 1024


class Places(NamedTuple):
    """What a container is connected with: absolute paths of its sandbox and its run, and the sandbox's process."""

    sandbox: str
    run: str
    keeper: int
    #: The run's, relative to the node's folder.
    path: str


def options(
    spec: Mapping[str, Any], places: Places, engine: Engine, group: Group, variables: tuple[int, Sequence[str]]
) -> list[str]:
    """What comes after `podman run`. The sources of the spec's mounts are absolute.

    `variables` are a file with most of them, and those that no file can hold.
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
    """A file with a container's variables, which others of the machine cannot see; and those that no file can hold."""
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
    """The keeper's pipes are the container's own; a terminal stays with the engine, which passes on what is said."""
    reads = ["--interactive"] if spec["stdin"] else []
    if spec["tty"]:
        return ["--tty", "--log-driver", "none", *reads]
    return ["--detach", "--log-driver", "passthrough", *reads]


def _namespaces(spec: Mapping[str, Any], keeper: int) -> list[str]:
    """Those of the pod's sandbox."""
    shared = [part for name in ("ipc", "uts") for part in (f"--{name}", f"ns:/proc/{keeper}/ns/{name}")]
    return [*shared, "--network", f"ns:/proc/{keeper}/ns/net" if spec["network"] == "pod" else "host"]


def _limits(spec: Mapping[str, Any], group: Group) -> list[str]:
    """The container's control group lies in one that has its limits; without one the engine is told them."""
    if group:
        return [*placed(cgroups.parent(group)), "--pids-limit", "-1"]
    limits = spec["limits"]
    cpu = ["--cpus", f"{limits['cpu'] / 1000:g}"] if limits["cpu"] else []
    memory = ["--memory", f"{limits['memory']}b"] if limits["memory"] else []
    return [*placed(None), "--pids-limit", str(limits["pids"]), *cpu, *memory]


def _user(spec: Mapping[str, Any]) -> list[str]:
    """Somebody else than the image says, and the groups that he is in besides."""
    groups = [part for group in spec.get("groups") or () for part in ("--group-add", str(group))]
    return [*(["--user", spec["user"]] if spec["user"] else []), *groups]


def _mounts(spec: Mapping[str, Any], places: Places) -> list[str]:
    """Volumes, the names that the pod knows, and the file for last words."""
    last = spec["terminationMessagePath"]
    rows = [(mount["source"], mount["target"], mount["readOnly"]) for mount in spec["mounts"]]
    taken = {target for _, target, _ in rows}
    rows += [
        (f"{places.sandbox}/{name}", f"/etc/{name}", False) for name in settings.NAMES if f"/etc/{name}" not in taken
    ]
    rows += [(f"{places.run}/termination-log", last, False)] if last else []
    if spec["image"].get("lacksFolder") and not any(images.is_within(spec["workingDir"], place) for place in taken):
        rows.append((f"{places.run}/root/folder", spec["workingDir"], False))
    return [part for row in rows for part in ("--mount", _mount(*row))]


def _mount(source: str, target: str, is_read_only: bool) -> str:
    """A mount as a row of comma-separated values."""
    fields = ["type=bind", f"source={source}", f"target={target}", *(["readonly=true"] if is_read_only else [])]
    return ",".join('"' + field.replace('"', '""') + '"' if set(field) & {",", '"'} else field for field in fields)
