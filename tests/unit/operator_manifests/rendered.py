"""Manifests as others render them, by what they mean: whoever renders them orders and labels as it likes."""

import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
_OF_HELM = ("app.kubernetes.io/managed-by", "helm.sh/chart")
Obj = Mapping[str, Any]


def printed(*command: str) -> list[Obj]:
    """The objects that a command prints."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return [obj for obj in yaml.safe_load_all(done.stdout) if obj]


def by_name(objects: Iterable[Obj]) -> dict[str, Any]:
    """Each object under its kind and name, in the form in which equal ones are equal."""
    return {f"{obj['kind']}/{obj['metadata']['name']}": _meaning(obj) for obj in objects}


def rules_of(role: Obj) -> set[tuple[str, ...]]:
    """What a role allows, one by one: group, resource, verb and name."""
    return {
        (group, resource, verb, name)
        for rule in role.get("rules") or ()
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        for name in rule.get("resourceNames") or [""]
    }


def _meaning(obj: Obj) -> Any:
    metadata = {**obj["metadata"]}
    labels = {name: value for name, value in (metadata.pop("labels", None) or {}).items() if name not in _OF_HELM}
    metadata.pop("annotations", None)
    whole = {**obj, "metadata": metadata | ({"labels": labels} if labels else {})}
    if obj["kind"] in {"Role", "ClusterRole"}:
        whole["rules"] = sorted(rules_of(obj))
    return _sorted(whole)


def _sorted(value: Any) -> Any:
    """With lists of webhooks by name, and defaults that one side writes and the other does not left out."""
    if isinstance(value, Mapping):
        found = {name: _sorted(each) for name, each in value.items() if each not in ({}, [], None)}
        found.pop("imagePullPolicy", None)
        if "webhooks" in found:
            found["webhooks"] = sorted(found["webhooks"], key=lambda hook: hook["name"])
        return found
    return [_sorted(each) for each in value] if isinstance(value, Sequence) and not isinstance(value, str) else value
