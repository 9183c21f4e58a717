"""The subresource `scale`: how many replicas of something are wanted, and how many there are.

Sources: k8s.io/apiextensions-apiserver, pkg/registry/customresource/etcd.go; Kubernetes's pkg/registry/apps.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from batchyard.api import scheme
from batchyard.api.errors import ApiError, FieldError, InvalidObject
from batchyard.api.meta import Key, Obj, with_path
from batchyard.api.scheme import ServedKind
from batchyard.api.tables.cells import format_selector
from batchyard.api.whole_seconds import in_whole_seconds, times_of_metadata
from batchyard.apiserver.bodies import content_type_of, read_body, read_json
from batchyard.apiserver.custom.json_path import found_at, path_of
from batchyard.apiserver.objects import Objects
from batchyard.apiserver.options import WriteOptions, write_options
from batchyard.apiserver.patch import check_media_type, patched
from batchyard.apiserver.request import Refused, Request, Response, bad_request, causes_of
from batchyard.apiserver.resources import Answer, Resource, Strategy
from batchyard.apiserver.shapes import FREE
from batchyard.ports.client import Update

_GROUP: Final = "autoscaling"
_REPLICAS: Final = "spec.replicas"
_SCALED: Final = (scheme.DEPLOYMENT, scheme.REPLICA_SET, scheme.STATEFUL_SET)
#: Where those have what a Scale tells.
_REPLICATED: Final = {
    "specReplicasPath": ".spec.replicas",
    "statusReplicasPath": ".status.replicas",
    "labelSelectorPath": ".spec.selector",
}


class Scale:
    """See the module."""

    def __init__(self, objects: Objects, info: ServedKind, strategy: Strategy, written: Mapping[str, str]) -> None:
        self._objects = objects
        self._info = info
        self._strategy = strategy
        self._wanted_at = written["specReplicasPath"].strip(".").split(".")
        self._wanted = path_of(written["specReplicasPath"])
        self._present = path_of(written["statusReplicasPath"])
        self._selector = path_of(written["labelSelectorPath"]) if written.get("labelSelectorPath") else None

    def answer(self) -> Answer:
        """Who answers for it."""
        methods = {"GET": self._get, "PUT": self._update, "PATCH": self._patch}
        return Answer(_GROUP, "v1", "Scale", methods)

    def _get(self, request: Request, namespace: str, name: str) -> Response:
        return Response(200, self._shown(self._found(namespace, name)))

    def _update(self, request: Request, namespace: str, name: str) -> Response:
        return self._scaled(read_body(request).value, self._found(namespace, name), write_options(request))

    def _patch(self, request: Request, namespace: str, name: str) -> Response:
        stored, content_type = self._found(namespace, name), content_type_of(request)
        check_media_type(content_type, strategic=False)
        sent = patched(self._shown(stored), content_type, read_json(request.body).value, FREE)
        return self._scaled(sent, stored, write_options(request, content_type))

    def _scaled(self, sent: Any, stored: Obj, options: WriteOptions) -> Response:
        """Store the number that is wanted."""
        if not isinstance(sent, Mapping) or sent.get("kind", "Scale") != "Scale":
            raise bad_request("the request's body is no Scale of autoscaling/v1")
        wanted = _part(sent, "spec").get("replicas", 0)
        name = stored["metadata"]["name"]
        if not isinstance(wanted, int) or isinstance(wanted, bool) or wanted < 0:
            raise _invalid(name, FieldError(_REPLICAS, f"Invalid value: {wanted}: should be a non-negative integer"))
        asked = _part(sent, "metadata").get("resourceVersion") or stored["metadata"]["resourceVersion"]
        new = with_path(stored, self._wanted_at, wanted)
        decoded = self._strategy.decode(new, stored["metadata"].get("namespace", ""))
        faults = decoded.faults or self._strategy.check_update(decoded.obj or {}, stored)
        if faults:
            raise _invalid(name, *faults)
        write = Update({**new, "metadata": {**new["metadata"], "resourceVersion": asked}})
        result = self._objects.attempt(write, dry_run=options.dry_run)
        if result.obj is None:
            raise self._refused(name, result.error)
        return Response(200, self._shown(result.obj))

    def _found(self, namespace: str, name: str) -> Obj:
        found = self._objects.get(Key(self._info.constant, namespace, name))
        if found is None:
            told = f'{self._info.plural}.{self._info.group} "{name}" not found'
            raise Refused(404, "NotFound", told, {"name": name, "group": self._info.group, "kind": self._info.plural})
        return found

    def _refused(self, name: str, error: ApiError | None) -> Refused:
        told = f'Operation cannot be fulfilled on {self._info.plural}.{self._info.group} "{name}": {error}'
        return Refused(409, "Conflict", told, {"name": name, "group": self._info.group, "kind": self._info.plural})

    def _shown(self, stored: Obj) -> dict[str, Any]:
        """The Scale of an object."""
        kept = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
        metadata = {field: stored["metadata"][field] for field in kept if field in stored["metadata"]}
        metadata = in_whole_seconds({"metadata": metadata}, times_of_metadata())["metadata"]
        wanted, present = found_at(stored, self._wanted), found_at(stored, self._present)
        status: dict[str, Any] = {"replicas": present[0] if present else 0}
        selector = found_at(stored, self._selector) if self._selector is not None else []
        status |= {"selector": _as_text(selector[0])} if selector else {}
        spec = {"replicas": wanted[0]} if wanted else {}
        return {"kind": "Scale", "apiVersion": f"{_GROUP}/v1", "metadata": metadata, "spec": spec, "status": status}


def with_scales(resources: Iterable[Resource], objects: Objects) -> list[Resource]:
    """The resources, of which those of Kubernetes that have replicas can be scaled."""
    return [
        each._replace(answers={**each.answers, "scale": Scale(objects, each.info, each.strategy, _REPLICATED).answer()})
        if each.info.constant in _SCALED
        else each
        for each in resources
    ]


def _as_text(selector: Any) -> str:
    """A selector in the words of kubectl's `--selector`; a custom kind says it so itself."""
    return format_selector(selector) if isinstance(selector, Mapping) else str(selector)


def _part(sent: Mapping[str, Any], field: str) -> Mapping[str, Any]:
    """A part of what was sent; Refused if it is no object."""
    part = sent.get(field) or {}
    if not isinstance(part, Mapping):
        raise bad_request(f"{field} must be an object")
    return part


def _invalid(name: str, *faults: FieldError) -> Refused:
    error = InvalidObject(faults)
    details = {"name": name, "group": _GROUP, "kind": "Scale", "causes": causes_of(error.faults)}
    return Refused(422, "Invalid", f'Scale.{_GROUP} "{name}" is invalid: {error}', details)
