"""The keeper of an image for a container: it sees that the engine has it, as the policy says, and tells what it is.

Pulls of one image wait for each other, and only so many are under way at once. Source of the policies and of the words:
pkg/kubelet/images/image_manager.go.
"""

import fcntl
import json
import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from typing import Any

from batchyard.node import clock, folder
from batchyard.node.commands import Done
from batchyard.node.engine import Engine, last_line
from batchyard.node.features import Features
from batchyard.node.run import Run

_AT_ONCE = 3
_PULL_SECONDS = 3600.0
_LOOK_SECONDS = 0.2
_ANNOUNCE_SECONDS = 1.0
_PULLS = "pulls"
_NEVER, _ALWAYS = "Never", "Always"


def keep(run: Run, features: Features) -> None:
    """See to an image until it is there, or cannot be had."""
    signal.signal(signal.SIGTERM, lambda *_: _leave_if_told(run))
    _tell(run, keeper=os.getpid(), phase="Starting", warnings=[])
    engine = features.engine
    if engine is None:
        _end(run, "ErrImagePull", "the container engine that was here is not, or does not work any more")
        return
    try:
        _see_to(run, engine)
    except (OSError, ValueError) as failure:
        _end(run, "ErrImagePull", str(failure))


def _see_to(run: Run, engine: Engine) -> None:
    name, policy = run.spec["image"], run.spec["policy"]
    found = _inspected(engine, run.spec["reference"]) or _inspected(engine, run.spec["named"])
    if found is not None and policy != _ALWAYS:
        _end_with(run, engine, found, f'Container image "{name}" already present on machine')
    elif policy == _NEVER:
        message = f'Container image "{name}" is not present with pull policy of Never'
        _warn(run, "Warning", "ErrImageNeverPull", message)
        _end(run, "ErrImageNeverPull", message)
    else:
        _pull(run, engine)


def _pull(run: Run, engine: Engine) -> None:
    """Pull the image, unless somebody else did so while this one waited for him."""
    name, began = run.spec["image"], clock.monotonic()
    asked = clock.now()
    _warn(run, "Normal", "Pulling", f'Pulling image "{name}"')
    pulls = folder.open_folder(_made(run.node))
    own = f"{sha256(run.spec['reference'].encode()).hexdigest()}-{_whose(run.spec)}"
    with _Held(pulls, [own]) as done:
        pulled_at = os.pread(done, 32, 0)
        is_shared = pulled_at.isdigit() and int(pulled_at) > asked
        begins = clock.monotonic()
        if not is_shared:
            with _Held(pulls, [f"slot-{number}" for number in range(_AT_ONCE)]):
                begins = clock.monotonic()
                told = _pulled(run, engine)
            if told.code != 0:
                _end(run, "ErrImagePull", last_line(told.errors))
                return
            os.pwrite(done, str(clock.now()).encode(), 0)
    found = _inspected(engine, run.spec["reference"])
    if found is None:
        raise ValueError("the image was pulled, and is gone")
    now = clock.monotonic()
    times = f"{_seconds(now - begins)} ({_seconds(now - began)} including waiting)"
    size = f"Image size: {found['size']} bytes."
    _end_with(run, engine, found, f'Successfully pulled image "{name}" in {times}. {size}')


def _pulled(run: Run, engine: Engine) -> Done:
    """What the engine says of a pull."""
    options = ["--quiet"]
    if run.spec.get("auth"):
        auth = os.memfd_create("auth", 0)
        os.write(auth, json.dumps(run.spec["auth"]).encode())
        options += ["--authfile", f"/proc/self/fd/{auth}"]
    return engine.ask("pull", *options, run.spec["reference"], seconds=_PULL_SECONDS)


def _whose(spec: Mapping[str, Any]) -> str:
    """What tells pulls with other secrets apart: who may not have an image does not get what another pulls."""
    return sha256(json.dumps(spec.get("auth") or {}, sort_keys=True).encode()).hexdigest()[:16]


class _Held:
    """One of several locks, as long as it is wanted; the file of the one that is held."""

    def __init__(self, base: int, names: list[str]) -> None:
        self._files = [os.open(name, os.O_RDWR | os.O_CREAT, 0o600, dir_fd=base) for name in names]

    def __enter__(self) -> int:
        while True:
            for file in self._files:
                with suppress(BlockingIOError):
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return file
            signal.sigtimedwait([], _LOOK_SECONDS)

    def __exit__(self, *_: object) -> None:
        for file in self._files:
            os.close(file)


def _made(node: int) -> str:
    """The folder of the locks."""
    path = os.readlink(f"/proc/self/fd/{node}") + f"/{_PULLS}"
    os.makedirs(path, 0o700, exist_ok=True)
    return path


def _inspected(engine: Engine, reference: str) -> dict[str, Any] | None:
    """What an image is; None where it is not here."""
    told = engine.ask("image", "inspect", reference)
    if told.code != 0:
        if told.code is None:
            raise OSError(told.errors)
        return None
    image = json.loads(told.output)[0]
    config = image.get("Config") or {}
    tags, digests = image.get("RepoTags") or (), image.get("RepoDigests") or ()
    return {
        "id": image["Id"],
        "name": tags[0] if tags else "",
        "digest": digests[0] if digests else f"sha256:{image['Id']}",
        "size": image.get("Size") or 0,
        "entrypoint": config.get("Entrypoint") or [],
        "command": config.get("Cmd") or [],
        "workingDir": config.get("WorkingDir") or "",
        "user": config.get("User") or "",
        "stopSignal": config.get("StopSignal") or "",
    }


def _seconds(seconds: float) -> str:
    """Seconds as Go writes a duration that was cut to milliseconds."""
    milliseconds = round(seconds * 1000)
    return f"{milliseconds}ms" if milliseconds < 1000 else f"{milliseconds / 1000:g}s"


def _leave_if_told(run: Run) -> None:
    """End, and the pull with it, where nobody wants the image any more."""
    if run.is_gone() or run.stop_wish():
        _end(run, "ErrImagePull", "context canceled")
        os._exit(0)


def _warn(run: Run, kind: str, reason: str, message: str) -> None:
    """Tell what a kubelet would record as an event."""
    before = run.state.get("warnings") or []
    told = {"n": len(before) + 1, "type": kind, "reason": reason, "message": message}
    _tell(run, phase="Running", startedAt=clock.now(), warnings=[*before, told])


def _end_with(run: Run, engine: Engine, found: Mapping[str, Any], message: str) -> None:
    _warn(run, "Normal", "Pulled", message)
    image = {**found, "lacksFolder": _lacks(engine, found["id"], run.spec.get("workingDir") or "")}
    _tell(run, phase="Exited", finishedAt=clock.now(), exitCode=0, reason="Completed", message="", image=image)


def _lacks(engine: Engine, image: str, path: str) -> bool:
    """Whether a container is to begin in a folder that its image has not: the engine would not make it."""
    if path in {"", "/"}:
        return False
    told = engine.ask("image", "mount", image)
    lacks = told.code == 0 and not os.path.lexists(told.output.strip() + path)
    engine.ask("image", "unmount", image)
    return lacks


def _end(run: Run, reason: str, message: str) -> None:
    _tell(run, phase="Exited", finishedAt=clock.now(), exitCode=1, reason=reason, message=message)


def _tell(run: Run, **changes: object) -> None:
    run.write(**changes)
    run.announce(_ANNOUNCE_SECONDS)
