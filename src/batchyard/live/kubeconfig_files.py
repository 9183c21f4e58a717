"""What kubeconfigs say, one or several of them, and what they name for a context.

Of several files the first that names something counts; what is missing or empty says nothing. A path is relative to the
folder of the file it stands in. Source: client-go, tools/clientcmd/loader.go.
"""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

#: By list, what each entry of it holds.
_HOLDS: Final = {"clusters": "cluster", "users": "user", "contexts": "context"}
_PATHS: Final = ("certificate-authority", "client-certificate", "client-key", "tokenFile")


class FaultError(ValueError):
    """What is wrong with a kubeconfig."""


class Chosen(NamedTuple):
    """What there is for a context."""

    cluster: Mapping[str, Any]
    user: Mapping[str, Any]
    namespace: str


def chosen(files: str, context: str) -> Chosen:
    """What files, as KUBECONFIG names them, have for a context, '' for the present one; FaultError if they lack it."""
    found: dict[str, dict[str, Mapping[str, Any]]] = {kind: {} for kind in _HOLDS}
    present = ""
    for path in _existing(files):
        config = _read(path)
        present = present or config.get("current-context") or ""
        for kind, held in _HOLDS.items():
            for name, value in _entries(config, kind, held):
                found[kind].setdefault(name, _absolute(value, path))
    name = context or present
    if not name:
        raise FaultError("it says no current-context")
    named = found["contexts"].get(name)
    if named is None:
        known = ", ".join(map(repr, found["contexts"])) or "none"
        raise FaultError(f"it has no context {name!r}; it has {known}")
    cluster, user = named.get("cluster") or "", named.get("user") or ""
    if cluster not in found["clusters"]:
        raise FaultError(f"its context {name!r} names a cluster that is not in it: {cluster!r}")
    if user and user not in found["users"]:
        raise FaultError(f"its context {name!r} names a user who is not in it: {user!r}")
    namespace: str = named.get("namespace") or "default"
    return Chosen(found["clusters"][cluster], found["users"].get(user) or {}, namespace)


def _existing(files: str) -> list[Path]:
    paths = [Path(each).expanduser() for each in files.split(os.pathsep) if each]
    existing = [path for path in paths if path.is_file()]
    if not existing:
        raise FileNotFoundError("there is no such file")
    return existing


def _read(path: Path) -> Mapping[str, Any]:
    config = yaml.safe_load(path.read_text("utf-8"))
    if config is None:
        return {}
    if not isinstance(config, dict) or not isinstance(config.get("current-context") or "", str):
        raise FaultError(f"{path} is no kubeconfig")
    return config


def _entries(config: Mapping[str, Any], kind: str, held: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    entries = config.get(kind) or []
    if not isinstance(entries, list):
        raise FaultError(f"its {kind} are no list")
    for entry in entries:
        value = (entry.get(held) or {}) if isinstance(entry, dict) else None
        if not isinstance(value, dict) or "name" not in entry:
            raise FaultError(f"its {kind} are to have a name and a {held} each")
        yield str(entry["name"]), value


def _absolute(value: Mapping[str, Any], path: Path) -> Mapping[str, Any]:
    """An entry of a file, with whatever it names relative to that file; a command only if it names more than itself."""
    folder = path.absolute().parent
    named = {field: str(folder / value[field]) for field in _PATHS if value.get(field)}
    plugin = value.get("exec")
    if isinstance(plugin, dict) and os.sep in str(plugin.get("command") or ""):
        return {**value, **named, "exec": {**plugin, "command": str(folder / plugin["command"])}}
    return {**value, **named}
