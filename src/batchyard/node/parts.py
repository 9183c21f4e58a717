"""Parts of volumes as they are mounted: held fast, for containers that run could exchange them for links meanwhile.

As a kubelet does it (subpath_linux.go): links are resolved, the result must lie in the volume and is opened without
following any, and what was opened is what is mounted. Folders of the machine come without links: containers that have a
folder above them could have put some there since.
"""

import errno
import os
import stat
from collections.abc import Mapping
from typing import Any

from batchyard.node import linux, overlays, straight


def hold_mounts(mounts: list[Mapping[str, Any]], pod: str, own: str) -> list[Mapping[str, Any]]:
    """The mounts, with absolute sources. ValueError where a part of a volume lies outside of it.

    `isOfMachine` says of each whether it is a file or folder of the machine, and none of the pod's own.
    """
    whole: list[Mapping[str, Any]] = [
        {**mount, "source": _absolute(mount["source"], pod), "isOfMachine": mount["source"].startswith("/")}
        for mount in mounts
    ]
    parts = {number: mount["source"] for number, mount in enumerate(mounts) if _is_part(mount["source"])}
    if parts:
        overlays.leave_mount_namespace()
    for number, source in parts.items():
        volume = "/" if whole[number]["isOfMachine"] else _absolute("/".join(source.split("/")[:2]), pod)
        _hold(volume, whole[number]["source"], f"{own}/part-{number}", source)
        whole[number] = {**whole[number], "source": f"{own}/part-{number}"}
    return whole


def _absolute(source: str, pod: str) -> str:
    return source if source.startswith("/") else f"{pod}/{source}"


def _is_part(source: str) -> bool:
    return source.startswith("/") or source.count("/") > 1


def _hold(volume: str, path: str, target: str, name: str) -> None:
    """Mount a part of a volume, or a folder of the machine, at a place of its own."""
    top, real = os.path.realpath(volume), path if volume == "/" else os.path.realpath(path)
    if volume != "/" and real != top and not real.startswith(f"{top}/"):
        raise ValueError(f"{name} leads out of its volume")
    try:
        file = straight.opened(top, real.removeprefix(top))
    except OSError as failure:
        if failure.errno != errno.ELOOP:
            raise
        raise ValueError(f"{name} leads out of its volume") from failure
    overlays.make_place(target, stat.S_ISDIR(os.fstat(file).st_mode))
    linux.bind(f"/proc/self/fd/{file}", target)
    os.close(file)
