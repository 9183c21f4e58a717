"""The subresource `scale`, which reads and writes the desired replicas of an object.

A write makes its field manager own the replicas field of the scaled object. Sources:
k8s.io/apiextensions-apiserver, pkg/registry/customresource/etcd.go; Kubernetes's pkg/registry/apps and
pkg/registry/core/replicationcontroller;
k8s.io/apimachinery, pkg/util/managedfields/scalehandler.go.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final

from batchyard.api import scheme
from batchyard.api.conversion import cut_metadata_times_to_seconds
from batchyard.api.errors import FieldError, InvalidObject
from batchyard.api.meta import Key, Obj, with_path
from batchyard.api.printing.cells import format_selector
from batchyard.api.times import format_time
from batchyard.api.validation.rules import format_json
from batchyard.apiserver.apply import (
    FieldManager,
    apply_configuration,
    managed_fields_after_update,
    version_accessors_of,
)
from batchyard.apiserver.crd.json_path import parse_json_path, values_at
from batchyard.apiserver.patch import UNSTRUCTURED, apply_patch, check_patch_media_type
from batchyard.apiserver.request import (
    APPLY_PATCH,
    AnyResponse,
    ApiRequest,
    Response,
    StatusError,
    WriteOptions,
    bad_request,
    causes_of,
    parse_write_options,
)
from batchyard.apiserver.resources import (
    ApiObjectStore,
    EndpointHandlers,
    Resource,
    execute_write,
    not_found_error,
    resumable,
)
from batchyard.apiserver.serialization import content_type_of, read_body, read_json, read_yaml
from batchyard.base.instant import SECOND, Instant
from batchyard.interfaces.client import Update

_GROUP: Final = "autoscaling"
_REPLICAS_PATH: Final = "spec.replicas"
#: The replica paths of the native kinds.
_NATIVE_REPLICA_PATHS: Final = {
    "specReplicasPath": ".spec.replicas",
    "statusReplicasPath": ".status.replicas",
    "labelSelectorPath": ".spec.selector",
}


class ScaleHandler:
    """The handlers of the subresource `scale` of one resource."""

    def __init__(
        self,
        objects: ApiObjectStore,
        resource: Resource,
        replica_paths: Mapping[str, str],
        now: Callable[[], Instant],
        version: str = "",
    ) -> None:
        """Create the handlers for a version; '' for the storage version."""
        self._objects = objects
        self._now = now
        self._served_kind = resource.served_kind
        self._api_version = self._served_kind.api_version_for(version or self._served_kind.storage_version)
        self._strategy = resource.strategy
        self._resource = resource
        self._spec_replicas_fields = replica_paths["specReplicasPath"].strip(".").split(".")
        self._spec_replicas_path = parse_json_path(replica_paths["specReplicasPath"])
        self._status_replicas_path = parse_json_path(replica_paths["statusReplicasPath"])
        selector_path = replica_paths.get("labelSelectorPath")
        self._selector_path = parse_json_path(selector_path) if selector_path else None
        self._selects_by_labels = resource.served_kind.constant == scheme.REPLICATION_CONTROLLER

    def handlers(self) -> EndpointHandlers:
        """Return the handlers of the subresource `scale`."""
        methods = {"GET": self._get, "PUT": self._update, "PATCH": self._patch}
        return EndpointHandlers(_GROUP, "v1", "Scale", methods)

    def _get(self, request: ApiRequest, namespace: str, name: str) -> Response:
        return Response(200, self._scale_of(self._get_object(namespace, name)))

    def _update(self, request: ApiRequest, namespace: str, name: str) -> Response:
        return self._store_scale(
            read_body(request).value, self._get_object(namespace, name), parse_write_options(request)
        )

    def _patch(self, request: ApiRequest, namespace: str, name: str) -> Response:
        stored_object, content_type = self._get_object(namespace, name), content_type_of(request)
        check_patch_media_type(content_type, allows_strategic=self._resource.is_native)
        options = parse_write_options(request, content_type)
        if content_type == APPLY_PATCH:
            return self._store_scale(read_yaml(request.body).value, stored_object, options, is_applied=True)
        scale = apply_patch(self._scale_of(stored_object), content_type, read_json(request.body).value, UNSTRUCTURED)
        return self._store_scale(scale, stored_object, options)

    def _store_scale(
        self, scale: Any, stored_object: Obj, options: WriteOptions, *, is_applied: bool = False
    ) -> Response:
        name, replicas = stored_object["metadata"]["name"], _desired_replicas(scale, stored_object)
        resource_version = (
            _object_field(scale, "metadata").get("resourceVersion") or stored_object["metadata"]["resourceVersion"]
        )
        scaled = with_path(self._in_own_version(stored_object), self._spec_replicas_fields, replicas)
        decoded_object = self._strategy.decode(scaled, stored_object["metadata"].get("namespace", ""))
        errors = decoded_object.faults or self._strategy.check_update(decoded_object.obj or {}, stored_object)
        if errors:
            raise _invalid_scale_error(name, *errors)
        new = scaled if self._api_version == self._served_kind.api_version else decoded_object.obj or {}
        managed_fields = (
            self._managed_fields_after_apply(stored_object, replicas, options)
            if is_applied
            else self._managed_fields_after_update(stored_object, scaled, options)
        )
        scaled_metadata = {**new["metadata"], "resourceVersion": resource_version}
        is_old_version = stored_object["apiVersion"] != self._served_kind.api_version
        write = Update({**new, "metadata": scaled_metadata}, managed_fields, is_whole=is_old_version)
        scaled_object = execute_write(self._objects, write, self._served_kind, name, dry_run=options.dry_run)
        return resumable(lambda: Response(200, self._scale_of(scaled_object)))

    def _managed_fields_after_update(self, stored_object: Obj, new: Obj, options: WriteOptions) -> list[dict[str, Any]]:
        old, new = (self._strategy.in_version(obj, self._api_version) for obj in (stored_object, new))
        old_entries = stored_object["metadata"].get("managedFields") or []
        accessors = version_accessors_of(self._resource, stored_object["metadata"].get("namespace", ""))
        return managed_fields_after_update(old, new, old_entries, self._field_manager(options), accessors)

    def _managed_fields_after_apply(
        self, stored_object: Obj, replicas: int, options: WriteOptions
    ) -> list[dict[str, Any]]:
        live_object = self._strategy.in_version(stored_object, self._api_version)
        type_meta = {"apiVersion": live_object["apiVersion"], "kind": live_object["kind"]}
        accessors = version_accessors_of(self._resource, stored_object["metadata"].get("namespace", ""))
        config = with_path(type_meta, self._spec_replicas_fields, replicas)
        return apply_configuration(
            live_object, config, self._field_manager(options), accessors, force=options.force
        ).managed_fields

    def _field_manager(self, options: WriteOptions) -> FieldManager:
        write_time = format_time(self._now() // SECOND * SECOND)
        return FieldManager(options.manager, self._api_version, "scale", write_time)

    def _get_object(self, namespace: str, name: str) -> Obj:
        obj = self._objects.get(Key(self._served_kind.constant, namespace, name))
        if obj is None:
            raise not_found_error(self._served_kind, name)
        return obj

    def _in_own_version(self, stored_object: Obj) -> Obj:
        if stored_object["apiVersion"] == self._api_version:
            return stored_object
        return self._strategy.in_version(stored_object, self._api_version)

    def _scale_of(self, stored_object: Obj) -> dict[str, Any]:
        stored_object = self._in_own_version(stored_object)
        copied_fields = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
        stored_metadata = stored_object["metadata"]
        metadata = {field: stored_metadata[field] for field in copied_fields if field in stored_metadata}
        metadata = cut_metadata_times_to_seconds(metadata)
        desired_replica_counts = values_at(stored_object, self._spec_replicas_path)
        current_replica_counts = values_at(stored_object, self._status_replicas_path)
        status: dict[str, Any] = {"replicas": current_replica_counts[0] if current_replica_counts else 0}
        selectors = values_at(stored_object, self._selector_path) if self._selector_path is not None else []
        status |= {"selector": self._selector_text(selectors[0])} if selectors else {}
        spec = {"replicas": desired_replica_counts[0]} if desired_replica_counts else {}
        return {"kind": "Scale", "apiVersion": f"{_GROUP}/v1", "metadata": metadata, "spec": spec, "status": status}

    def _selector_text(self, selector: Any) -> str:
        """Format a selector as for kubectl's `--selector`; a custom kind stores it in this form already.

        The selector of a ReplicationController is a mapping of labels, that of the other native kinds a LabelSelector.
        """
        if not isinstance(selector, Mapping):
            return str(selector)
        return format_selector({"matchLabels": selector} if self._selects_by_labels else selector)


def with_scale(
    resource: Resource, objects: ApiObjectStore, scales: Mapping[str, Mapping[str, str]], now: Callable[[], Instant]
) -> Resource:
    """Return a custom resource with the subresource `scale`; `scales` holds that of the definition, by version."""
    handlers = {
        version: ScaleHandler(objects, resource, paths, now, version).handlers() for version, paths in scales.items()
    }
    default = handlers.get(resource.served_kind.storage_version) or next(iter(handlers.values()))

    def handle(method: str, request: ApiRequest, namespace: str, name: str) -> AnyResponse:
        version = request.path.strip("/").split("/")[2]  # the path begins with apis/GROUP/VERSION
        return handlers.get(version, default).by_method[method](request, namespace, name)

    scale = default._replace(by_method={method: partial(handle, method) for method in default.by_method})
    return resource._replace(handlers={**resource.handlers, "scale": scale})


def with_scales(resources: Iterable[Resource], objects: ApiObjectStore, now: Callable[[], Instant]) -> list[Resource]:
    """Return the resources, with the subresource `scale` on the kinds of Kubernetes that have it."""
    return [
        resource._replace(
            handlers={
                **resource.handlers,
                "scale": ScaleHandler(objects, resource, _NATIVE_REPLICA_PATHS, now).handlers(),
            }
        )
        if resource.served_kind.constant in scheme.SCALABLE_KINDS
        else resource
        for resource in resources
    ]


def _desired_replicas(scale: Any, stored_object: Obj) -> int:
    if not isinstance(scale, Mapping) or scale.get("kind", "Scale") != "Scale":
        raise bad_request("the request body must be an object of kind Scale (autoscaling/v1)")
    replicas = _object_field(scale, "spec").get("replicas", 0)
    if not isinstance(replicas, int) or isinstance(replicas, bool) or replicas < 0:
        problem = f"Invalid value: {format_json(replicas)}: should be a non-negative integer"
        raise _invalid_scale_error(stored_object["metadata"]["name"], FieldError(_REPLICAS_PATH, problem))
    return replicas


def _object_field(scale: Mapping[str, Any], field: str) -> Mapping[str, Any]:
    value = scale.get(field) or {}
    if not isinstance(value, Mapping):
        raise bad_request(f"{field} must be an object")
    return value


def _invalid_scale_error(name: str, *errors: FieldError) -> StatusError:
    error = InvalidObject(errors)
    details = {"name": name, "group": _GROUP, "kind": "Scale", "causes": causes_of(error.faults)}
    return StatusError(422, "Invalid", f'Scale.{_GROUP} "{name}" is invalid: {error}', details)
