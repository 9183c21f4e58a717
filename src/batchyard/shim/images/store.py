"""Image types on this machine: the files that a container sees, and its environment variables.

- `machine`: the programs of this machine, read-only. - `environment`: the same, and a Python environment at its own
path. - `root`: a directory with a root filesystem. - `unpacked`: a root filesystem unpacked from an engine's image. -
`engine`: other images of an engine, which that engine runs.
"""

import os
from collections.abc import Mapping
from typing import Any

from batchyard.shim import state_dir
from batchyard.shim.images import rootfs_store

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

#: Directories of the machine with programs. Some are links into /usr, which containers get as links.
PROGRAMS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")


def is_run_by_engine(image: Mapping[str, Any]) -> bool:
    """Whether the engine itself runs the image's containers."""
    return "engine" in image and "unpacked" not in image


def root(image: Mapping[str, Any], node: str) -> str:
    """Return the path of an image's root filesystem; empty if it has none. `node` is the path of the node directory."""
    return rootfs_store.place(node, image["unpacked"]) if "unpacked" in image else image.get("root") or ""


def environment(image: Mapping[str, Any]) -> dict[str, str]:
    """Return the environment variables of an image."""
    venv = image.get("environment")
    return {"PATH": f"{venv}/bin:{_PATH}", "VIRTUAL_ENV": venv} if venv else {"PATH": _PATH}


def folders(image: Mapping[str, Any], node: str) -> dict[str, str]:
    """Return the machine's directories that a container sees read-only: their mount points and sources."""
    programs = [place for place in PROGRAMS if os.path.isdir(place) and not os.path.islink(place)]
    places = [*programs, *_environment_folders(image.get("environment"))]
    return {"/etc": f"{node}/{state_dir.FOLDER}"} | {place: place for place in places}


def links() -> dict[str, str]:
    """Return the links beside these directories, and their targets."""
    return {place: os.readlink(place) for place in PROGRAMS if os.path.islink(place)}


def _environment_folders(venv: str | None) -> list[str]:
    """Return a Python environment and its base interpreters, unless a container sees those anyway."""
    if not venv:
        return []
    folders = [venv]
    for program in (_home(venv), os.path.dirname(os.path.realpath(f"{venv}/bin/python"))):
        prefix = os.path.dirname(program) if program else ""
        if len(prefix) > 1 and not any(is_within(prefix, place) for place in (*PROGRAMS, *folders)):
            folders.append(prefix)
    return folders


def _home(venv: str) -> str:
    """Return the directory of an environment's interpreter, from its pyvenv.cfg."""
    try:
        with open(f"{venv}/pyvenv.cfg", encoding="utf-8") as file:
            for line in file:
                key, _, value = line.partition("=")
                if key.strip() == "home":
                    return value.strip()
    except (OSError, ValueError):
        return ""
    return ""


def is_within(path: str, place: str) -> bool:
    """Whether a path is `place` or lies in it."""
    return path == place or path.startswith(f"{place}/")
