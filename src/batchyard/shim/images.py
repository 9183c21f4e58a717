"""What an image stands for on this machine: the files a container sees, and the environment it brings.

`machine`: the programs of this machine, read-only. `environment`: the same and a Python environment, at its own path.
`root`: a folder that holds a whole root filesystem. `unpacked`: one that an engine brought. Other images of an
`engine` are run by that.
"""

import os
from collections.abc import Mapping
from typing import Any

from batchyard.shim import rootfs_store, settings

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

#: Folders of the machine that are its programs. Some are links into /usr, and stay so.
PROGRAMS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")


def is_run_by_engine(image: Mapping[str, Any]) -> bool:
    """Whether an engine runs an image's containers itself."""
    return "engine" in image and "unpacked" not in image


def root(image: Mapping[str, Any], node: str) -> str:
    """Where the root filesystem of an image lies, below the path of a node's folder; empty where it has none."""
    return rootfs_store.place(node, image["unpacked"]) if "unpacked" in image else image.get("root") or ""


def environment(image: Mapping[str, Any]) -> dict[str, str]:
    """The variables that an image brings."""
    venv = image.get("environment")
    return {"PATH": f"{venv}/bin:{_PATH}", "VIRTUAL_ENV": venv} if venv else {"PATH": _PATH}


def folders(image: Mapping[str, Any], node: str) -> dict[str, str]:
    """The folders that a container sees of this machine, read-only: where it sees them, and where they lie."""
    programs = [place for place in PROGRAMS if os.path.isdir(place) and not os.path.islink(place)]
    places = [*programs, *_environment_folders(image.get("environment"))]
    return {"/etc": f"{node}/{settings.FOLDER}"} | {place: place for place in places}


def links() -> dict[str, str]:
    """The links beside them, and where they lead."""
    return {place: os.readlink(place) for place in PROGRAMS if os.path.islink(place)}


def _environment_folders(venv: str | None) -> list[str]:
    """An environment, and the interpreters that it rests on where they lie outside of what is seen anyway."""
    if not venv:
        return []
    folders = [venv]
    for program in (_home(venv), os.path.dirname(os.path.realpath(f"{venv}/bin/python"))):
        prefix = os.path.dirname(program) if program else ""
        if len(prefix) > 1 and not any(is_within(prefix, place) for place in (*PROGRAMS, *folders)):
            folders.append(prefix)
    return folders


def _home(venv: str) -> str:
    """Where the interpreter of an environment lies, as its pyvenv.cfg says."""
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
    """Whether a path is a folder, or lies in it."""
    return path == place or path.startswith(f"{place}/")
