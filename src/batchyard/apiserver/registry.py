"""One pipeline for every verb and every kind: read what was sent, complete it, check it, store it, answer.

Objects are stored in their storage version and answered in the version asked for. Who may do what is asked before
(authz); what happens to be true of one kind alone is not here but in that kind's schema, defaults, rules and
preparations. Source of the order of the steps: k8s.io/apiserver, pkg/registry/rest/{create,update}.go.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from batchyard.api.errors import InvalidObject
from batchyard.api.meta import Key, Obj, key_of, with_metadata
from batchyard.apiserver.patch import patched
from batchyard.apiserver.paths import ResourcePath
from batchyard.apiserver.protobuf import PROTOBUF, BadMessage, decoded
from batchyard.apiserver.refusals import conflict, details, invalid, not_found, refusal
from batchyard.apiserver.request import JSON, Refused, Request, Response, bad_request, method_not_allowed
from batchyard.apiserver.selection import selection_of
from batchyard.ports.client import Create, Delete, Propagation, Update, UpdateStatus, Write, WriteResult

#: How often a patch is tried again on the newer object where another write came between.
PATCHES_MAX: Final = 5
_decode_json = msgspec.json.Decoder(strict=True).decode


class Objects(Protocol):
    """Where the objects are."""

    @property
    def revision(self) -> int:
        """The revision of the last change."""

    def get(self, key: Key) -> Obj | None:
        """The object, or None."""

    def list(self, kind: str, namespace: str | None = None) -> Sequence[Obj]:
        """All objects of a kind, sorted by namespace and name."""

    def attempt(self, write: Write) -> WriteResult:
        """Do one write now."""


class Sent(NamedTuple):
    """An object as it was sent, complete and in the storage version, and what its sender is warned of."""

    obj: dict[str, Any]
    warnings: tuple[str, ...]


class Registry:
    """See the module."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    def handle(self, request: Request, path: ResourcePath) -> Response:
        """Answer a request for a resource; Refused where it cannot be done."""
        if path.info.namespaced and not path.namespace:
            raise method_not_allowed()  # nothing is written to all namespaces at once
        match request.method, bool(path.name):
            case "POST", False:
                return self._create(request, path)
            case "PUT", True:
                return self._update(request, path)
            case "PATCH", True:
                return self._patch(request, path)
            case "DELETE", True:
                return self._delete(request, path)
            case "DELETE", False:
                return self._delete_all(request, path)
        raise method_not_allowed()

    # --- writing ---

    def _create(self, request: Request, path: ResourcePath) -> Response:
        sent = self._read(request, path)
        obj = with_metadata(sent.obj, resourceVersion=None)
        if path.namespace and obj["metadata"].get("namespace") != path.namespace:
            raise bad_request("the namespace of the provided object does not match the namespace sent on the request")
        self._guard(obj, request, path)
        stored = self._write(Create(obj), path, obj["metadata"].get("name", ""))
        return Response(201, self._shown(stored, path), sent.warnings)

    def _update(self, request: Request, path: ResourcePath) -> Response:
        stored = self._objects.get(_key(path))
        if stored is None:
            raise not_found(path)
        sent = self._read(request, path)
        return self._replace(sent, stored, request, path)

    def _patch(self, request: Request, path: ResourcePath) -> Response:
        for attempt in range(PATCHES_MAX):
            stored = self._found(path)
            shown = self._shown(stored, path)
            wanted = patched(shown, request)
            sent = self._completed(wanted, path)
            try:
                return self._replace(sent, stored, request, path)
            except Refused as refused:
                named = wanted["metadata"].get("resourceVersion") != shown["metadata"]["resourceVersion"]
                if refused.reason != "Conflict" or named or attempt == PATCHES_MAX - 1:
                    raise
        raise AssertionError("unreachable: the last attempt answers or raises")

    def _replace(self, sent: Sent, stored: Obj, request: Request, path: ResourcePath) -> Response:
        """Put what was sent in the place of what is stored, or its status."""
        _check_place(sent.obj, path)
        if path.subresource == "status":
            write: Write = UpdateStatus({**stored, **sent.obj})
        else:
            faults = path.resource.strategy.check_update({**sent.obj, "status": stored.get("status", {})}, stored)
            if faults:
                raise invalid(InvalidObject(faults), path, path.name)
            self._guard(sent.obj, request, path)
            write = Update(sent.obj)
        done = self._write(write, path, path.name)
        return Response(200, self._shown(done, path), sent.warnings)

    def _delete(self, request: Request, path: ResourcePath) -> Response:
        options = _options(request)
        stored = self._found(path)
        wanted = (options.get("preconditions") or {}).get("resourceVersion")
        if wanted and wanted != stored["metadata"]["resourceVersion"]:
            raise conflict(path, path.name)
        self._write(_deletion(_key(path), options), path, path.name)
        left = self._objects.get(_key(path))
        if left is not None:
            return Response(200, self._shown(left, path))
        gone = {**details(path, path.name), "uid": stored["metadata"]["uid"]}
        done = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": gone}
        return Response(200, done)

    def _delete_all(self, request: Request, path: ResourcePath) -> Response:
        options = _options(request)
        selection = selection_of(request, path.info.constant)
        found = self._objects.list(path.info.constant, path.namespace or None)
        gone = [obj for obj in found if selection.accepts(obj)]
        for obj in gone:
            key = key_of(obj)
            self._write(_deletion(key, options), path, key.name)
        items = [self._shown(obj, path) for obj in gone]
        listed = {"kind": f"{path.info.kind}List", "apiVersion": path.api_version, "metadata": {}, "items": items}
        return Response(200, listed)

    # --- the steps ---

    def _read(self, request: Request, path: ResourcePath) -> Sent:
        return self._completed(body_of(request), path)

    def _completed(self, sent: Any, path: ResourcePath) -> Sent:
        """What was sent, complete and in the storage version."""
        if not isinstance(sent, Mapping):
            raise bad_request("the request's body is no object")
        kind, version = sent.get("kind") or path.info.kind, sent.get("apiVersion") or path.api_version
        if kind != path.info.kind or version != path.api_version:
            if kind != path.info.kind:
                raise bad_request(f'{kind} in version "{version}" cannot be handled as a {path.info.kind}')
            expected = f"the expected API version ({path.api_version})"
            raise bad_request(f"the API version in the data ({version}) does not match {expected}")
        decoded = path.resource.strategy.decode(
            {**sent, "kind": kind, "apiVersion": version}, path.namespace or "default"
        )
        if decoded.obj is None:
            name = str((sent.get("metadata") or {}).get("name", ""))
            raise invalid(InvalidObject(decoded.faults), path, name)
        return Sent(decoded.obj, tuple(decoded.warnings))

    def _guard(self, obj: Obj, request: Request, path: ResourcePath) -> None:
        """Refused if the user may not write what is in the object."""
        if path.resource.guard is not None:
            path.resource.guard(request.user, obj)

    def _write(self, write: Write, path: ResourcePath, name: str) -> Obj:
        result = self._objects.attempt(write)
        if result.error is not None:
            raise refusal(result.error, write, path, name) from result.error
        assert result.obj is not None, "a write that is done has an object"
        return result.obj

    def _found(self, path: ResourcePath) -> Obj:
        found = self._objects.get(_key(path))
        if found is None:
            raise not_found(path)
        return found

    def _shown(self, obj: Obj, path: ResourcePath) -> dict[str, Any]:
        """An object in the version asked for."""
        return path.resource.strategy.show(obj, path.api_version)


def body_of(request: Request) -> Any:
    """The body as it would be in JSON; Refused if it is nothing that can be read."""
    content_type = request.headers.get("content-type", JSON).partition(";")[0].strip()
    if request.body and content_type == PROTOBUF:
        try:
            return decoded(request.body)
        except BadMessage as error:
            raise bad_request(f"the request's body cannot be read: {error}") from error
    if request.body and content_type != JSON:
        told = f"the body of the request was in an unknown format - accepted media types include: {JSON}, {PROTOBUF}"
        raise Refused(415, "UnsupportedMediaType", told)
    try:
        return _decode_json(request.body) if request.body else {}
    except (msgspec.DecodeError, RecursionError) as error:
        raise bad_request(f"the request's body is no JSON: {error}") from error


def _check_place(obj: Obj, path: ResourcePath) -> None:
    """Refused unless an object is the one that the path names."""
    for field, wanted in (("name", path.name), ("namespace", path.namespace)):
        found = obj["metadata"].get(field) or ""
        if found != wanted:
            raise bad_request(f"the {field} of the object ({found}) does not match the {field} on the URL ({wanted})")


def _key(path: ResourcePath) -> Key:
    return Key(path.info.constant, path.namespace, path.name)


def _options(request: Request) -> Mapping[str, Any]:
    """The DeleteOptions of a request: its body, else its query."""
    options = body_of(request)
    if not isinstance(options, Mapping):
        raise bad_request("the request's body is no DeleteOptions")
    asked = {name: request.query[name] for name in ("gracePeriodSeconds", "propagationPolicy") if name in request.query}
    return {**asked, **options}


def _deletion(key: Key, options: Mapping[str, Any]) -> Delete:
    grace = options.get("gracePeriodSeconds")
    foreground = options.get("propagationPolicy") == "Foreground"
    return Delete(
        key,
        grace=None if grace is None else int(grace),
        propagation=Propagation.FOREGROUND if foreground else Propagation.BACKGROUND,
        uid=(options.get("preconditions") or {}).get("uid"),
    )
