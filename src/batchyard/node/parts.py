"""Parts of volumes as they are mounted: held fast, for containers that run could exchange them for links meanwhile.

As a kubelet does it (subpath_linux.go): links are resolved, the result must lie in the volume and is opened without
following any, and what was opened is what is mounted.
"""

import os
import stat
from collections.abc import Mapping
from typing import Any

from batchyard.node import linux, overlays

_PLACE = os.O_PATH | os.O_NOFOLLOW


def hold_mounts(mounts: list[Mapping[str, Any]], pod: str, own: str) -> list[Mapping[str, Any]]:
    """The mounts, with absolute sources. ValueError where a part of a volume lies outside of it."""
    whole: list[Mapping[str, Any]] = [{**mount, "source": _absolute(mount["source"], pod)} for mount in mounts]
    parts = {number: mount["source"] for number, mount in enumerate(mounts) if _is_part(mount["source"])}
    if parts:
        overlays.leave_mount_namespace()
    for number, source in parts.items():
        volume = _absolute("/".join(source.split("/")[:2]), pod)
        _hold(volume, whole[number]["source"], f"{own}/part-{number}", source)
        whole[number] = {**whole[number], "source": f"{own}/part-{number}"}
    return whole


def _absolute(source: str, pod: str) -> str:
    return source if source.startswith("/") else f"{pod}/{source}"


def _is_part(source: str) -> bool:
    return not source.startswith("/") and source.count("/") > 1


def _hold(volume: str, path: str, target: str, name: str) -> None:
    """Mount a part of a volume at a place of its own."""
    top, real = os.path.realpath(volume), os.path.realpath(path)
    if real != top and not real.startswith(f"{top}/"):
        raise ValueError(f"{name} leads out of its volume")
    file = os.open(top, _PLACE)
    for step in filter(None, real.removeprefix(top).split("/")):
        below = os.open(step, _PLACE, dir_fd=file)
        os.close(file)
        file = below
    if stat.S_ISLNK(os.fstat(file).st_mode):
        raise ValueError(f"{name} leads out of its volume")
    overlays.make_place(target, stat.S_ISDIR(os.fstat(file).st_mode))
    linux.bind(f"/proc/self/fd/{file}", target)
    os.close(file)
