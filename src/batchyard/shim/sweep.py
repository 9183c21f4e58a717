"""Cleanup after killed shims: removes their control groups and containers."""

import os
from contextlib import suppress

from batchyard.shim import cgroups, images, state_dir
from batchyard.shim.capabilities import Features
from batchyard.shim.cgroups import Group
from batchyard.shim.engine import ContainerEngine


def name_of_pods(node: int) -> str:
    """Return the name prefix of this node's control groups; other nodes on the machine use other prefixes."""
    return f"batchyard-{state_dir.identity(node)}-"


def after(node: int, found: Features, path: str) -> None:
    """Remove the control groups of an ended run, unless another shim still supervises it."""
    if found.cgroups is None:
        return
    _, uid, *place = path.split("/")
    pod = {name: f"{base}/{name_of_pods(node)}{uid}" for name, base in found.cgroups.base.items()}
    has_namesakes = found.runner is not None
    if place[0] == "runs" and not _is_kept(node, path):
        group = {name: f"{base}/{place[1]}-{place[2]}" for name, base in pod.items()}
        cgroups.remove(group, has_namesakes=has_namesakes)
    _remove_if_left(node, uid, pod, has_namesakes=has_namesakes)


def all_pods(node: int, found: Features) -> None:
    """Remove the control groups that earlier spawners have left."""
    if found.cgroups is not None:
        for uid, group in cgroups.left_over(found.cgroups.base, name_of_pods(node)).items():
            _remove_if_left(node, uid, group, has_namesakes=found.runner is not None)


def is_of_image(path: str) -> bool:
    """Whether a run is an image pull, from its path."""
    return path.split("/")[2:3] == ["images"]


def leaves_container(node: int, path: str) -> bool:
    """Whether the shim of a run has ended and may have left a container of the engine."""
    with suppress(OSError):
        run = state_dir.open_folder(path, node)
        spec, state = (state_dir.read_json(run, name) or {} for name in ("spec.json", "state.json"))
        os.close(run)
        image = spec.get("image") or {} if spec.get("kind") == "container" else {}
        return images.is_run_by_engine(image) and state.get("phase") != "Exited" and not _is_kept(node, path)
    return False


def containers(node: int, engine: ContainerEngine) -> None:
    """Remove this node's containers that have no shim from the engine."""
    found = engine.containers()
    engine.forget(*(name for path, name in found.items() if not _is_kept(node, path)))


def kept_runs(pod: int) -> list[str]:
    """Return the container runs that have a shim, as paths relative to the pod's directory."""
    found = [f"runs/{name}/{attempt}" for name in _names(pod, "runs") for attempt in _names(pod, f"runs/{name}")]
    return [path for path in found if _is_kept(pod, path)]


def _remove_if_left(node: int, uid: str, group: Group, *, has_namesakes: bool) -> None:
    if not any(os.path.isdir(path) for path in group.values()):
        return
    try:
        pod = state_dir.open_folder(f"pods/{uid}", node)
    except OSError:
        cgroups.remove(group, has_namesakes=has_namesakes)
        return
    if not _is_kept(pod, "sandbox") and not kept_runs(pod):
        cgroups.remove(group, has_namesakes=has_namesakes)
    os.close(pod)


def _is_kept(pod: int, path: str) -> bool:
    with suppress(OSError):
        run = state_dir.open_folder(path, pod)
        try:
            return state_dir.is_locked(run)
        finally:
            os.close(run)
    return False


def _names(base: int, path: str) -> list[str]:
    with suppress(OSError):
        opened = state_dir.open_folder(path, base)
        try:
            return os.listdir(opened)
        finally:
            os.close(opened)
    return []
