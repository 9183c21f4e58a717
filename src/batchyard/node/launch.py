"""What the child of a keeper does until it has become a container's command."""

import json
import os
from collections.abc import Mapping
from typing import Any, NamedTuple, NoReturn

from batchyard.node import bubblewrap, descendants, folder, images, linux, plain, words
from batchyard.node.features import Features
from batchyard.node.run import Run

_SHARED = linux.NEWNS | linux.NEWIPC | linux.NEWUTS


class Files(NamedTuple):
    """Files of the child: the command's own, and where is told what becomes of it."""

    stdin: int
    stdout: int
    stderr: int
    status: int


def become(run: Run, features: Features, files: Files) -> NoReturn:
    """Become what runs the command of a run: bubblewrap, or a warden with a plain process. Failures are told."""
    try:
        run.release()
        for source, target in ((files.stdin, 0), (files.stdout, 1), (files.stderr, 2)):
            os.dup2(source, target)
        if features.bubblewrap:
            _wrap(run, features, files.status)
        plain.warden(_plain_command(run), files.status)
    except (OSError, ValueError) as failure:
        told = {"error": words.start_error(str(failure))}
        os.write(files.status, json.dumps(told).encode() + b"\n")
    os._exit(1)


def has_started(outer: int, child: int) -> bool:
    """Whether the command has taken the place of bubblewrap, below the first process of the container."""
    told = _command_line(outer)
    return any(_command_line(pid) not in {b"", told} for pid in descendants.children(child)[:1])


def _command_line(pid: int) -> bytes:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read()
    except OSError:
        return b""


def environment(run: Run) -> dict[str, str]:
    """All the variables of a container: those of its image give way to its own."""
    pod = folder.read_json(run.folder, "../../../sandbox/spec.json") or {}
    named = {"HOSTNAME": pod["hostname"]} if "hostname" in pod else {}
    own: Mapping[str, str] = run.spec["environment"]
    return images.environment(run.spec["image"]) | {"HOME": "/root"} | named | dict(own)


def _wrap(run: Run, features: Features, status: int) -> NoReturn:
    node = os.readlink(f"/proc/self/fd/{run.node}")
    pod = f"{node}/{'/'.join(run.path.split('/')[:2])}"
    places = bubblewrap.Places(pod, f"{pod}/sandbox", f"{node}/{run.path}")
    _enter_pod(run, features)
    options = bubblewrap.options(run.spec, places, environment(run))
    arguments = os.memfd_create("arguments")
    os.write(arguments, b"\0".join(os.fsencode(option) for option in options) + b"\0")
    os.lseek(arguments, 0, os.SEEK_SET)
    for file in (arguments, status):
        os.set_inheritable(file, True)
    linux.default_signals()
    told = ["--args", str(arguments), "--json-status-fd", str(status)]
    os.execve(features.bubblewrap or "", ["bwrap", *told, "--", *run.spec["argv"]], {})


def _enter_pod(run: Run, features: Features) -> None:
    """Enter what the pod's containers share. ValueError where its sandbox is not there."""
    sandbox = folder.open_folder("../../../sandbox", run.folder)
    keeper = (folder.read_json(sandbox, "state.json") or {}).get("pid")
    entered = keeper and os.pidfd_open(keeper)
    if not entered or not folder.is_locked(sandbox):
        raise ValueError("the pod's sandbox is not running")
    is_plugged = run.spec["network"] == "pod" and features.network is not None
    linux.enter(entered, _SHARED | linux.NEWNET if is_plugged else _SHARED)


def _plain_command(run: Run) -> plain.Command:
    spec: Mapping[str, Any] = run.spec
    if spec["mounts"]:
        raise ValueError(f"{spec['mounts'][0]['target']} cannot be mounted without bubblewrap")
    user = spec["user"] and (spec["user"]["uid"], spec["user"]["gid"])
    return plain.Command(spec["argv"], environment(run), spec["workingDir"] or "/", user)
