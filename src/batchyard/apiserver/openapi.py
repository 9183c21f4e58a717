"""What clients read of the fields: OpenAPI v3, one document a group and version."""

from functools import cache
from typing import Any

from batchyard.api.scheme import ServedKind
from batchyard.apiserver.paths import SERVED


def openapi_document(path: str) -> Any:
    """The document at a path below `/openapi`; None if there is none."""
    if path == "v3":
        return {"paths": {of: {"serverRelativeURL": f"/openapi/v3/{of}"} for of in _group_versions()}}
    of = path.removeprefix("v3/")
    return _document(of) if of != path and of in _group_versions() else None


@cache
def _group_versions() -> dict[str, list[ServedKind]]:
    """The kinds of each group and version, by the path of it."""
    found: dict[str, list[ServedKind]] = {}
    for info in SERVED:
        for version in info.versions:
            path = f"apis/{info.group}/{version}" if info.group else f"api/{version}"
            found.setdefault(path, []).append(info)
    return found


@cache
def _document(of: str) -> dict[str, Any]:
    paths, schemas = {}, {}
    version = of.rpartition("/")[2]
    for info in _group_versions()[of]:
        kind = {"group": info.group, "version": version, "kind": info.kind}
        where = f"/{of}/namespaces/{{namespace}}/{info.plural}" if info.namespaced else f"/{of}/{info.plural}"
        paths[f"{where}/{{name}}"] = {"patch": _patch(kind)}
        name = ".".join([*reversed(info.group.split(".")), version, info.kind]).lstrip(".")
        schemas[name] = {"type": "object", "x-kubernetes-group-version-kind": [kind]}
    about = {"title": "Kubernetes", "version": "v1.32.0"}
    return {"openapi": "3.0.0", "info": about, "paths": paths, "components": {"schemas": schemas}}


def _patch(kind: dict[str, str]) -> dict[str, Any]:
    asked = [{"name": name, "in": "query", "schema": {"type": "string"}} for name in ("dryRun", "fieldValidation")]
    return {
        "parameters": asked,
        "x-kubernetes-action": "patch",
        "x-kubernetes-group-version-kind": kind,
        "responses": {},
    }
