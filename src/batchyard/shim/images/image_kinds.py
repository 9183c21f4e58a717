"""Kinds of images: for each kind, the files that a container sees and its environment variables.

machine       the programs of this machine, read-only
environment   the programs of this machine, and a Python virtual environment at its path
root          a directory with a root filesystem
unpacked      a root filesystem that was unpacked from an engine's image
engine        another image of an engine; the engine runs the container
"""

import os
from collections.abc import Mapping
from typing import Any

from batchyard.shim import state_dir
from batchyard.shim.images import rootfs_store

_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

#: Directories of the machine with programs. Symbolic links into /usr are also links in containers.
PROGRAM_FOLDERS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")


def is_run_by_engine(image: Mapping[str, Any]) -> bool:
    """Return whether podman, instead of bubblewrap, runs the containers of an image."""
    return "engine" in image and "unpacked" not in image


def root_filesystem(image: Mapping[str, Any], node_folder: str) -> str:
    """Return the path of an image's root filesystem, or '' if it has none; `node_folder` is the node's directory."""
    return rootfs_store.root_path(node_folder, image["unpacked"]) if "unpacked" in image else image.get("root") or ""


def image_environment(image: Mapping[str, Any]) -> dict[str, str]:
    """Return PATH in an image's containers, and VIRTUAL_ENV if the image is a virtual environment."""
    venv = image.get("environment")
    return {"PATH": f"{venv}/bin:{_DEFAULT_PATH}", "VIRTUAL_ENV": venv} if venv else {"PATH": _DEFAULT_PATH}


def visible_folders(image: Mapping[str, Any], node_folder: str) -> dict[str, str]:
    """Return the host's directories that the containers of an image see read-only, by mount point.

    `node_folder` is the path of the node's directory.
    """
    program_folders = [folder for folder in PROGRAM_FOLDERS if os.path.isdir(folder) and not os.path.islink(folder)]
    paths = [*program_folders, *_venv_folders(image.get("environment"))]
    return {"/etc": f"{node_folder}/{state_dir.ETC_COPY_FOLDER}"} | {folder: folder for folder in paths}


def program_links() -> dict[str, str]:
    """Return those of the machine's program directories that are symbolic links, such as /bin: the target by path."""
    return {folder: os.readlink(folder) for folder in PROGRAM_FOLDERS if os.path.islink(folder)}


def _venv_folders(venv: str | None) -> list[str]:
    if not venv:
        return []
    folders = [venv]
    for bin_folder in (_read_interpreter_home(venv), os.path.dirname(os.path.realpath(f"{venv}/bin/python"))):
        prefix = os.path.dirname(bin_folder) if bin_folder else ""
        if len(prefix) > 1 and not any(is_within(prefix, folder) for folder in (*PROGRAM_FOLDERS, *folders)):
            folders.append(prefix)
    return folders


def _read_interpreter_home(venv: str) -> str:
    try:
        with open(f"{venv}/pyvenv.cfg", encoding="utf-8") as file:
            for line in file:
                key, _, value = line.partition("=")
                if key.strip() == "home":
                    return value.strip()
    except (OSError, ValueError):
        return ""
    return ""


def is_within(path: str, folder: str) -> bool:
    """Return whether `path` is the directory `folder` or lies in it."""
    return path == folder or path.startswith(f"{folder}/")
