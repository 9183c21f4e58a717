"""What is left of keepers that were killed: control groups that nobody removes any more."""

import os
from contextlib import suppress

from batchyard.node import cgroups, folder
from batchyard.node.cgroups import Cgroups, Group


def name_of_pods(node: int) -> str:
    """How the names of this node's groups begin: other nodes of the machine have theirs beside them."""
    return f"batchyard-{folder.identity(node)}-"


def after(node: int, made: Cgroups | None, path: str) -> None:
    """Tidy up after a keeper of a run; not where it had left that to one who keeps it still."""
    if made is None:
        return
    _, uid, *place = path.split("/")
    pod = {name: f"{base}/{name_of_pods(node)}{uid}" for name, base in made.base.items()}
    if place[0] == "runs" and not _is_kept(node, path):
        cgroups.remove({name: f"{base}/{place[1]}-{place[2]}" for name, base in pod.items()})
    _remove_if_left(node, uid, pod)


def all_pods(node: int, made: Cgroups | None) -> None:
    """Tidy up after spawners before."""
    if made is not None:
        for uid, group in cgroups.left_over(made.base, name_of_pods(node)).items():
            _remove_if_left(node, uid, group)


def kept_runs(pod: int) -> list[str]:
    """The runs of containers that have a keeper, as paths relative to the pod's folder."""
    found = [f"runs/{name}/{attempt}" for name in _names(pod, "runs") for attempt in _names(pod, f"runs/{name}")]
    return [path for path in found if _is_kept(pod, path)]


def _remove_if_left(node: int, uid: str, group: Group) -> None:
    if not any(os.path.isdir(path) for path in group.values()):
        return
    try:
        pod = folder.open_folder(f"pods/{uid}", node)
    except OSError:
        cgroups.remove(group)
        return
    if not _is_kept(pod, "sandbox") and not kept_runs(pod):
        cgroups.remove(group)
    os.close(pod)


def _is_kept(pod: int, path: str) -> bool:
    with suppress(OSError):
        run = folder.open_folder(path, pod)
        try:
            return folder.is_locked(run)
        finally:
            os.close(run)
    return False


def _names(base: int, path: str) -> list[str]:
    with suppress(OSError):
        opened = folder.open_folder(path, base)
        try:
            return os.listdir(opened)
        finally:
            os.close(opened)
    return []
