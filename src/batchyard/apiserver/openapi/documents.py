"""The OpenAPI documents of what is served. Source: k8s.io/kube-openapi, and what kubectl reads of them."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from batchyard.apiserver.openapi.message import message_of
from batchyard.apiserver.openapi.schemas import REFERENCE, schema_name
from batchyard.apiserver.patch import media_types
from batchyard.apiserver.resources import Resource, Resources

_ABOUT: Final = {"title": "Kubernetes", "version": "v1.32.0"}
_READS: Final = ("labelSelector", "fieldSelector", "limit", "continue", "resourceVersion", "resourceVersionMatch")
_ACTIONS: Final = {"GET": "get", "POST": "post", "PUT": "put", "PATCH": "patch", "DELETE": "delete"}
_WRITES: Final = ("dryRun", "fieldManager", "fieldValidation")


class OpenApi:
    """The documents of what is served at present."""

    def __init__(self, resources: Resources) -> None:
        self._resources = resources
        self._edition = -1
        self._documents: dict[str, Any] = {}
        #: The document of version 2, and the message that says the same.
        self._message: tuple[Any, bytes] = (None, b"")

    def document(self, path: str) -> Any:
        """The document at a path below `/openapi`; None if there is none."""
        if self._edition != self._resources.edition:
            self._edition = self._resources.edition
            self._documents = {}
        if path not in self._documents:
            made = self._made(path)
            if made is None:
                return None
            self._documents[path] = made
        return self._documents[path]

    def message(self) -> bytes:
        """The definitions of version 2 as a message."""
        document = self.document("v2")
        if self._message[0] is not document:
            self._message = (document, message_of(document))
        return self._message[1]

    def _made(self, path: str) -> Any:
        by_place = _by_place(self._resources.all())
        if path == "v2":
            return _v2(by_place)
        if path == "v3":
            edition = self._resources.edition
            return {"paths": {of: {"serverRelativeURL": f"/openapi/v3/{of}?hash={edition}"} for of in by_place}}
        of = path.removeprefix("v3/")
        return _v3(of, by_place[of]) if of != path and of in by_place else None


def _by_place(resources: Sequence[Resource]) -> dict[str, list[Resource]]:
    """The resources of each group and version, by the path of it."""
    found: dict[str, list[Resource]] = {}
    for resource in resources:
        info = resource.info
        for version in info.versions:
            place = f"apis/{info.group}/{version}" if info.group else f"api/{version}"
            found.setdefault(place, []).append(resource)
    return found


def _v3(place: str, resources: Sequence[Resource]) -> dict[str, Any]:
    paths: dict[str, Any] = {}
    schemas: dict[str, Any] = {}
    for resource in resources:
        paths |= _paths(place, resource)
        schemas |= resource.strategy.schemas(place.rpartition("/")[2])
    return {"openapi": "3.0.0", "info": _ABOUT, "paths": paths, "components": {"schemas": schemas}}


def _paths(place: str, resource: Resource) -> dict[str, Any]:
    """The paths of a resource, each with what may be done there."""
    info, version = resource.info, place.rpartition("/")[2]
    kind = {"group": info.group, "version": version, "kind": info.kind}
    body = {"schema": {"$ref": REFERENCE + schema_name(info, version)}}
    where = f"/{place}/namespaces/{{namespace}}/{info.plural}" if info.namespaced else f"/{place}/{info.plural}"
    parts = _answered(where, resource)
    if "" in resource.answers:
        return parts
    created = _operation("post", kind, _WRITES, {"application/json": body})
    in_all = {f"/{place}/{info.plural}": {"get": _operation("list", kind, _READS)}} if info.namespaced else {}
    within = [_in_path("namespace")] if info.namespaced else []
    many = {
        "parameters": within,
        "get": _operation("list", kind, _READS),
        "post": created,
        **({"delete": _operation("deletecollection", kind, _READS)} if resource.deletes_together else {}),
    }
    patches = {patch: {"schema": {"type": "object"}} for patch in media_types(strategic=resource.is_native)}
    one = {
        "parameters": [_in_path("name"), *within],
        "get": _operation("get", kind, ()),
        "put": _operation("put", kind, _WRITES, {"application/json": body}),
        "patch": _operation("patch", kind, _WRITES, patches),
        "delete": _operation("delete", kind, ("gracePeriodSeconds", "propagationPolicy")),
    }
    return {**in_all, where: many, f"{where}/{{name}}": one, **parts}


def _answered(where: str, resource: Resource) -> dict[str, Any]:
    """The paths at which functions answer: parts of objects, and resources of which nothing is stored."""
    within = [_in_path("namespace")] if resource.info.namespaced else []
    paths: dict[str, Any] = {}
    for part, answer in resource.answers.items():
        kind = {"group": answer.group, "version": answer.version, "kind": answer.kind}
        operations = {method.lower(): _operation(_ACTIONS[method], kind, ()) for method in answer.methods}
        if part:
            paths[f"{where}/{{name}}/{part}"] = {"parameters": [_in_path("name"), *within], **operations}
            continue
        if "get" in operations:
            paths[f"{where}/{{name}}"] = {"parameters": [_in_path("name"), *within], "get": operations["get"]}
            operations["get"] = _operation("list", kind, _READS)
        if operations:
            paths[where] = {"parameters": within, **operations}
    return paths


def _operation(
    action: str, kind: Mapping[str, str], query: Sequence[str], content: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "x-kubernetes-action": action,
        "x-kubernetes-group-version-kind": kind,
        "parameters": [{"name": name, "in": "query", "schema": {"type": "string"}} for name in query],
        "responses": {"200": {"description": "OK"}, "401": {"description": "Unauthorized"}},
    }
    return operation if content is None else {**operation, "requestBody": {"required": True, "content": content}}


def _in_path(name: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}


def _v2(by_place: Mapping[str, Sequence[Resource]]) -> dict[str, Any]:
    """All of it in one document of version 2, as far as its words reach: the definitions, and which paths there are."""
    definitions: dict[str, Any] = {}
    paths: dict[str, Any] = {}
    for place, resources in by_place.items():
        for resource in resources:
            definitions |= resource.strategy.schemas(place.rpartition("/")[2])
            paths |= {path: _operations_of_v2(operations) for path, operations in _paths(place, resource).items()}
    return {"swagger": "2.0", "info": _ABOUT, "paths": paths, "definitions": _referring_to_definitions(definitions)}


def _operations_of_v2(operations: Mapping[str, Any]) -> dict[str, Any]:
    kept = ("x-kubernetes-action", "x-kubernetes-group-version-kind", "responses")
    return {
        method: {word: operation[word] for word in kept}
        for method, operation in operations.items()
        if method != "parameters"
    }


def _referring_to_definitions(value: Any) -> Any:
    """A schema whose references are to `definitions`, without what version 2 has no word for."""
    if isinstance(value, Mapping):
        return {
            word: "#/definitions/" + each.removeprefix(REFERENCE) if word == "$ref" else _referring_to_definitions(each)
            for word, each in value.items()
            if word != "nullable"
        }
    return [_referring_to_definitions(each) for each in value] if isinstance(value, list) else value
