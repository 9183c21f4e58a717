"""The subresource `scale`: desired and current replicas.

A write makes its field manager own the replicas field of the scaled object. Sources:
k8s.io/apiextensions-apiserver, pkg/registry/customresource/etcd.go; Kubernetes's pkg/registry/apps;
k8s.io/apimachinery, pkg/util/managedfields/scalehandler.go.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from batchyard.api import scheme
from batchyard.api.conversion import metadata_in_whole_seconds
from batchyard.api.errors import ApiError, FieldError, InvalidObject
from batchyard.api.meta import Key, Obj, with_path
from batchyard.api.printing.cells import format_selector
from batchyard.api.times import format_time
from batchyard.apiserver.apply import FieldManager, applied, updated, versions_of
from batchyard.apiserver.crd.json_path import path_of, values_at
from batchyard.apiserver.patch import FREE, check_media_type, patched
from batchyard.apiserver.request import (
    APPLY,
    ApiRequest,
    Response,
    StatusError,
    WriteOptions,
    bad_request,
    causes_of,
    write_options,
)
from batchyard.apiserver.resources import ApiObjectStore, EndpointHandlers, Resource
from batchyard.apiserver.serialization import content_type_of, read_body, read_json, read_yaml
from batchyard.base.instant import SECOND, Instant
from batchyard.interfaces.client import Update

_GROUP: Final = "autoscaling"
_REPLICAS: Final = "spec.replicas"
_SCALED: Final = (scheme.DEPLOYMENT, scheme.REPLICA_SET, scheme.STATEFUL_SET)
#: The replica paths of the native kinds.
_REPLICATED: Final = {
    "specReplicasPath": ".spec.replicas",
    "statusReplicasPath": ".status.replicas",
    "labelSelectorPath": ".spec.selector",
}


class ScaleHandler:
    """The `scale` handlers of one resource."""

    def __init__(
        self, objects: ApiObjectStore, resource: Resource, written: Mapping[str, str], now: Callable[[], Instant]
    ) -> None:
        self._objects = objects
        self._now = now
        self._info = resource.info
        self._strategy = resource.strategy
        self._resource = resource
        self._wanted_at = written["specReplicasPath"].strip(".").split(".")
        self._wanted = path_of(written["specReplicasPath"])
        self._present = path_of(written["statusReplicasPath"])
        self._selector = path_of(written["labelSelectorPath"]) if written.get("labelSelectorPath") else None

    def answer(self) -> EndpointHandlers:
        """Return the handlers of the subresource."""
        methods = {"GET": self._get, "PUT": self._update, "PATCH": self._patch}
        return EndpointHandlers(_GROUP, "v1", "Scale", methods)

    def _get(self, request: ApiRequest, namespace: str, name: str) -> Response:
        return Response(200, self._shown(self._found(namespace, name)))

    def _update(self, request: ApiRequest, namespace: str, name: str) -> Response:
        return self._scaled(read_body(request).value, self._found(namespace, name), write_options(request))

    def _patch(self, request: ApiRequest, namespace: str, name: str) -> Response:
        stored, content_type = self._found(namespace, name), content_type_of(request)
        check_media_type(content_type, strategic=self._resource.is_native)
        options = write_options(request, content_type)
        if content_type == APPLY:
            return self._scaled(read_yaml(request.body).value, stored, options, is_applied=True)
        sent = patched(self._shown(stored), content_type, read_json(request.body).value, FREE)
        return self._scaled(sent, stored, options)

    def _scaled(self, sent: Any, stored: Obj, options: WriteOptions, *, is_applied: bool = False) -> Response:
        """Store the desired number of replicas."""
        name, wanted = stored["metadata"]["name"], _wanted_of(sent, stored)
        asked = _part(sent, "metadata").get("resourceVersion") or stored["metadata"]["resourceVersion"]
        new = with_path(stored, self._wanted_at, wanted)
        decoded = self._strategy.decode(new, stored["metadata"].get("namespace", ""))
        faults = decoded.faults or self._strategy.check_update(decoded.obj or {}, stored)
        if faults:
            raise _invalid(name, *faults)
        entries = self._applied(stored, wanted, options) if is_applied else self._updated(stored, new, options)
        write = Update({**new, "metadata": {**new["metadata"], "resourceVersion": asked}}, entries)
        result = self._objects.attempt(write, dry_run=options.dry_run)
        if result.obj is None:
            raise self._refused(name, result.error)
        return Response(200, self._shown(result.obj))

    def _updated(self, stored: Obj, new: Obj, options: WriteOptions) -> list[dict[str, Any]]:
        """Return `managedFields` after an update of the replicas."""
        old, new = (self._strategy.in_version(obj, self._info.api_version) for obj in (stored, new))
        known = stored["metadata"].get("managedFields") or []
        versions = versions_of(self._resource, stored["metadata"].get("namespace", ""))
        return updated(old, new, known, self._author(options), versions)

    def _applied(self, stored: Obj, wanted: int, options: WriteOptions) -> list[dict[str, Any]]:
        """Return `managedFields` after an apply of the replicas. Raises Refused on a conflict."""
        live = self._strategy.in_version(stored, self._info.api_version)
        bare = {"apiVersion": live["apiVersion"], "kind": live["kind"]}
        versions = versions_of(self._resource, stored["metadata"].get("namespace", ""))
        config = with_path(bare, self._wanted_at, wanted)
        return applied(live, config, self._author(options), versions, force=options.force).entries

    def _author(self, options: WriteOptions) -> FieldManager:
        time = format_time(self._now() // SECOND * SECOND)
        return FieldManager(options.manager, self._info.api_version, "scale", time)

    def _found(self, namespace: str, name: str) -> Obj:
        found = self._objects.get(Key(self._info.constant, namespace, name))
        if found is None:
            message = f'{self._info.plural}.{self._info.group} "{name}" not found'
            raise StatusError(
                404, "NotFound", message, {"name": name, "group": self._info.group, "kind": self._info.plural}
            )
        return found

    def _refused(self, name: str, error: ApiError | None) -> StatusError:
        message = f'Operation cannot be fulfilled on {self._info.plural}.{self._info.group} "{name}": {error}'
        return StatusError(
            409, "Conflict", message, {"name": name, "group": self._info.group, "kind": self._info.plural}
        )

    def _shown(self, stored: Obj) -> dict[str, Any]:
        """Return the Scale of an object."""
        kept = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
        metadata = {field: stored["metadata"][field] for field in kept if field in stored["metadata"]}
        metadata = metadata_in_whole_seconds(metadata)
        wanted, present = values_at(stored, self._wanted), values_at(stored, self._present)
        status: dict[str, Any] = {"replicas": present[0] if present else 0}
        selector = values_at(stored, self._selector) if self._selector is not None else []
        status |= {"selector": _as_text(selector[0])} if selector else {}
        spec = {"replicas": wanted[0]} if wanted else {}
        return {
            "kind": "Scale",
            "apiVersion": f"{_GROUP}/v1",
            "metadata": metadata,
            "spec": spec,
            "status": status,
        }


def with_scale(
    resource: Resource, objects: ApiObjectStore, written: Mapping[str, str], now: Callable[[], Instant]
) -> Resource:
    """Return a resource with `scale`; `written` has the replica paths."""
    answer = ScaleHandler(objects, resource, written, now).answer()
    return resource._replace(answers={**resource.answers, "scale": answer})


def with_scales(resources: Iterable[Resource], objects: ApiObjectStore, now: Callable[[], Instant]) -> list[Resource]:
    """Return the resources, with `scale` on the native kinds that have replicas."""
    return [
        with_scale(each, objects, _REPLICATED, now) if each.info.constant in _SCALED else each for each in resources
    ]


def _wanted_of(sent: Any, stored: Obj) -> int:
    """Return the replicas of a Scale. Raises Refused if they are invalid."""
    if not isinstance(sent, Mapping) or sent.get("kind", "Scale") != "Scale":
        raise bad_request("the request body is not a Scale of autoscaling/v1")
    wanted = _part(sent, "spec").get("replicas", 0)
    if not isinstance(wanted, int) or isinstance(wanted, bool) or wanted < 0:
        problem = f"Invalid value: {wanted}: should be a non-negative integer"
        raise _invalid(stored["metadata"]["name"], FieldError(_REPLICAS, problem))
    return wanted


def _as_text(selector: Any) -> str:
    """Format a selector as kubectl's `--selector`; custom kinds store it as text."""
    return format_selector(selector) if isinstance(selector, Mapping) else str(selector)


def _part(sent: Mapping[str, Any], field: str) -> Mapping[str, Any]:
    """Return an object field of the body. Raises Refused if it is not an object."""
    part = sent.get(field) or {}
    if not isinstance(part, Mapping):
        raise bad_request(f"{field} must be an object")
    return part


def _invalid(name: str, *faults: FieldError) -> StatusError:
    error = InvalidObject(faults)
    details = {"name": name, "group": _GROUP, "kind": "Scale", "causes": causes_of(error.faults)}
    return StatusError(422, "Invalid", f'Scale.{_GROUP} "{name}" is invalid: {error}', details)
