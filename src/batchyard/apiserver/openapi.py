"""What clients read of the fields: OpenAPI v3, one document a group and version."""

from collections.abc import Sequence
from typing import Any

from batchyard.apiserver.resources import Resource, Resources


class OpenApi:
    """The documents of what is served at present."""

    def __init__(self, resources: Resources) -> None:
        self._resources = resources
        self._edition = -1
        self._documents: dict[str, dict[str, Any]] = {}

    def document(self, path: str) -> Any:
        """The document at a path below `/openapi`; None if there is none."""
        if self._edition != self._resources.edition:
            self._edition = self._resources.edition
            self._documents = {}
        by_place = _by_place(self._resources.all())
        if path == "v3":
            return {"paths": {of: {"serverRelativeURL": f"/openapi/v3/{of}"} for of in by_place}}
        of = path.removeprefix("v3/")
        if of == path or of not in by_place:
            return None
        if of not in self._documents:
            self._documents[of] = _document(of, by_place[of])
        return self._documents[of]


def _by_place(resources: Sequence[Resource]) -> dict[str, list[Resource]]:
    """The resources of each group and version, by the path of it."""
    found: dict[str, list[Resource]] = {}
    for resource in resources:
        info = resource.info
        for version in info.versions:
            place = f"apis/{info.group}/{version}" if info.group else f"api/{version}"
            found.setdefault(place, []).append(resource)
    return found


def _document(of: str, resources: Sequence[Resource]) -> dict[str, Any]:
    paths, schemas = {}, {}
    version = of.rpartition("/")[2]
    for info in (resource.info for resource in resources):
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
