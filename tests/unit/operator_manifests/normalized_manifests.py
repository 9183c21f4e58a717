"""Normalizes manifests of kustomize and helm, which differ only in order, labels and defaults."""

import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
_HELM_LABELS = ("app.kubernetes.io/managed-by", "helm.sh/chart")
Obj = Mapping[str, Any]


def objects_printed_by(*command: str) -> list[Obj]:
    """The objects that a command prints."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return [obj for obj in yaml.safe_load_all(done.stdout) if obj]


def by_name(objects: Iterable[Obj]) -> dict[str, Any]:
    """Map kind and name of each object to its normalized form."""
    return {f"{obj['kind']}/{obj['metadata']['name']}": _normalized(obj) for obj in objects}


def rules_of(role: Obj) -> set[tuple[str, ...]]:
    """Return the permissions of a role as tuples of group, resource, verb and name."""
    return {
        (group, resource, verb, name)
        for rule in role.get("rules") or ()
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        for name in rule.get("resourceNames") or [""]
    }


def _normalized(obj: Obj) -> Any:
    metadata = {**obj["metadata"]}
    labels = {name: value for name, value in (metadata.pop("labels", None) or {}).items() if name not in _HELM_LABELS}
    metadata.pop("annotations", None)
    whole = {**obj, "metadata": metadata | ({"labels": labels} if labels else {})}
    if obj["kind"] in {"Role", "ClusterRole"}:
        whole["rules"] = sorted(rules_of(obj))
    return _sorted(whole)


def _sorted(value: Any) -> Any:
    """Sort webhooks by name, and drop empty values and image pull policies."""
    if isinstance(value, Mapping):
        result = {name: _sorted(each) for name, each in value.items() if each not in ({}, [], None)}
        result.pop("imagePullPolicy", None)
        if "webhooks" in result:
            result["webhooks"] = sorted(result["webhooks"], key=lambda hook: hook["name"])
        return result
    return [_sorted(each) for each in value] if isinstance(value, Sequence) and not isinstance(value, str) else value
