"""The resource of CustomResourceDefinitions, and the resources of the custom kinds that they define."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, Protocol

from batchyard.api.conversion import TimeLocations, metadata_time_locations
from batchyard.api.custom_kinds import DEFINITION, is_definition_terminating, is_served, kind_from_definition
from batchyard.api.errors import FieldError
from batchyard.api.manifests import DecodedObject
from batchyard.api.meta import Obj
from batchyard.api.printing import Column
from batchyard.api.scheme import ServedKind
from batchyard.api.times import format_time, parse_time
from batchyard.apiserver.conversions import ObjectConverter
from batchyard.apiserver.crd import values
from batchyard.apiserver.crd.definition_validation import (
    definition_errors,
    definition_update_errors,
    definition_warnings,
)
from batchyard.apiserver.crd.strategy import CustomStrategy
from batchyard.apiserver.resources import ApiObjectStore, Resource, Resources
from batchyard.apiserver.subresources.scale import with_scale
from batchyard.base.instant import SECOND, Instant
from batchyard.interfaces.client import WatchEvent

# The structural schema of CustomResourceDefinitions, which are handled like custom objects.
#
# Source: k8s.io/apiextensions-apiserver, pkg/apis/apiextensions/v1/types.go.


_STRING: Final[values.Schema] = {"type": "string"}
_BOOLEAN_SCHEMA: Final[values.Schema] = {"type": "boolean"}
_STRING_LIST_SCHEMA: Final[values.Schema] = {"type": "array", "items": _STRING, values.LIST_TYPE: "atomic"}
_ANY_OBJECT: Final[values.Schema] = {"type": "object", values.PRESERVE_UNKNOWN_FIELDS: True}


def _object_schema(*required_names: str, summary: str = "", **fields: values.Schema) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object", "properties": fields}
    schema |= {"required": list(required_names)} if required_names else {}
    return schema | ({"description": summary} if summary else {})


def _list_schema(item_schema: values.Schema, *keys: str) -> dict[str, Any]:
    list_keywords: Mapping[str, Any] = (
        {values.LIST_TYPE: "map", values.MAP_KEYS: list(keys)} if keys else {values.LIST_TYPE: "atomic"}
    )
    return {"type": "array", "items": item_schema, **list_keywords}


_NAMES_SCHEMA: Final = _object_schema(
    "plural",
    "kind",
    summary="the names of the resource and the kind",
    plural=_STRING,
    singular=_STRING,
    shortNames=_STRING_LIST_SCHEMA,
    kind=_STRING,
    listKind=_STRING,
    categories=_STRING_LIST_SCHEMA,
)
_COLUMN_SCHEMA: Final = _object_schema(
    "name",
    "type",
    "jsonPath",
    summary="a column of the printed table",
    name=_STRING,
    type=_STRING,
    format=_STRING,
    description=_STRING,
    priority={"type": "integer", "format": "int32"},
    jsonPath=_STRING,
)
_SCALE_SCHEMA: Final = _object_schema(
    summary="the paths of desired and current replicas",
    specReplicasPath=_STRING,
    statusReplicasPath=_STRING,
    labelSelectorPath=_STRING,
)
_VERSION_SCHEMA: Final = _object_schema(
    "name",
    "served",
    "storage",
    name=_STRING,
    served=_BOOLEAN_SCHEMA,
    storage=_BOOLEAN_SCHEMA,
    deprecated=_BOOLEAN_SCHEMA,
    deprecationWarning=_STRING,
    schema=_object_schema(summary="the schema of the objects", openAPIV3Schema=_ANY_OBJECT),
    subresources=_object_schema(summary="the subresources of the objects", status=_ANY_OBJECT, scale=_SCALE_SCHEMA),
    additionalPrinterColumns=_list_schema(_COLUMN_SCHEMA),
    selectableFields=_list_schema(_object_schema("jsonPath", jsonPath=_STRING)),
)
_WEBHOOK_SERVICE_SCHEMA: Final = _object_schema(
    "namespace",
    "name",
    summary="the Service of the webhook",
    namespace=_STRING,
    name=_STRING,
    path=_STRING,
    port={"type": "integer", "format": "int32", "default": 443},
)
_CONVERSION_WEBHOOK_SCHEMA: Final = _object_schema(
    "conversionReviewVersions",
    summary="how the conversion webhook is called",
    clientConfig=_object_schema(
        summary="the address of the webhook",
        url=_STRING,
        service=_WEBHOOK_SERVICE_SCHEMA,
        caBundle={"type": "string", "format": "byte"},
    ),
    conversionReviewVersions=_STRING_LIST_SCHEMA,
)
_SPEC_SCHEMA: Final = _object_schema(
    "group",
    "names",
    "scope",
    "versions",
    summary="the desired state of the definition",
    group=_STRING,
    names=_NAMES_SCHEMA,
    scope={"type": "string", "enum": ["Cluster", "Namespaced"]},
    versions=_list_schema(_VERSION_SCHEMA),
    conversion=_object_schema("strategy", strategy=_STRING, webhook=_CONVERSION_WEBHOOK_SCHEMA)
    | {"default": {"strategy": "None"}},
    preserveUnknownFields=_BOOLEAN_SCHEMA,
)
_CONDITION_SCHEMA: Final = _object_schema(
    "type",
    "status",
    type=_STRING,
    status=_STRING,
    lastTransitionTime={"type": "string", "format": "date-time"},
    reason=_STRING,
    message=_STRING,
    observedGeneration={"type": "integer", "format": "int64"},
)
CONDITIONS_SCHEMA: Final = _list_schema(_CONDITION_SCHEMA, "type")
_STATUS_SCHEMA: Final = _object_schema(
    summary="the current state of the definition",
    conditions=CONDITIONS_SCHEMA,
    acceptedNames=_object_schema(**_NAMES_SCHEMA["properties"]),
    storedVersions=_STRING_LIST_SCHEMA,
    observedGeneration={"type": "integer", "format": "int64"},
)
DEFINITION_SCHEMA: Final = _object_schema("spec", spec=_SPEC_SCHEMA, status=_STATUS_SCHEMA)


_DEFINITION_INFO: Final = ServedKind(
    DEFINITION,
    "CustomResourceDefinition",
    "apiextensions.k8s.io",
    ("v1",),
    "v1",
    "customresourcedefinitions",
    "customresourcedefinition",
    ("crd", "crds"),
    has_status=True,
    categories=("api-extensions",),
)
_OWN_VERSION: Final = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": DEFINITION_SCHEMA}}
_COLUMNS: Final = (Column("Name", format="name"), Column("Created At", type="date"))


class DefinitionStrategy(CustomStrategy):
    """The kind-specific API logic of CustomResourceDefinitions: decoding, validation and table output."""

    def __init__(self, custom_groups: Collection[str] = ()) -> None:
        super().__init__(_DEFINITION_INFO, [_OWN_VERSION])
        self._custom_groups = custom_groups

    def decode(self, sent_object: Mapping[str, Any], namespace: str, valid_obj: Obj | None = None) -> DecodedObject:
        """Decode a CustomResourceDefinition with defaults, or return its errors."""
        decoded_object = super().decode(sent_object, namespace)
        if decoded_object.obj is None:
            return decoded_object
        crd = _with_all_names(decoded_object.obj)
        errors = list(definition_errors(crd))
        warnings = [] if errors else definition_warnings(crd, self._custom_groups)
        return DecodedObject(None if errors else crd, errors, warnings)

    def check_update(self, new: Obj, old: Obj) -> list[FieldError]:
        """Return the validation errors of an update of a CustomResourceDefinition."""
        return list(definition_update_errors(new, old))

    def check_status(self, new: Obj, old: Obj) -> list[FieldError]:
        """Return no errors: any status update of a CustomResourceDefinition is valid."""
        return []

    def _time_locations(self) -> TimeLocations:
        return {**metadata_time_locations(), "status": {"conditions": {"lastTransitionTime": {}}}}

    def columns(self, api_version: str) -> Sequence[Column]:
        """Return the table columns of CustomResourceDefinitions."""
        return _COLUMNS

    def cells(self, stored_object: Obj, now: Instant, api_version: str) -> list[str]:
        """Return the table cells of a CustomResourceDefinition."""
        created_at = parse_time(stored_object["metadata"]["creationTimestamp"])
        return [stored_object["metadata"]["name"], format_time(created_at // SECOND * SECOND)]


def definition_resource(custom_groups: Collection[str] = ()) -> Resource:
    """Return the resource `customresourcedefinitions` as the API server serves it.

    The API server does not serve the built-in kinds of the API groups `custom_groups`.
    """
    strategy = DefinitionStrategy(custom_groups)
    resource = Resource(_DEFINITION_INFO, strategy, ("status",), merge_schema=strategy.merge_schema, is_native=True)
    return resource._replace(prunes_unknown=True, is_adoptable=True)


def _with_all_names(definition: dict[str, Any]) -> dict[str, Any]:
    spec = definition["spec"]
    kind = spec["names"]["kind"]
    default_names = {"singular": kind.lower(), "listKind": f"{kind}List" if kind else ""}
    return {**definition, "spec": {**spec, "names": {**spec["names"], **_missing_names(default_names, spec["names"])}}}


def _missing_names(default_names: Mapping[str, str], names: Mapping[str, Any]) -> Mapping[str, str]:
    return {field: name for field, name in default_names.items() if not names.get(field)}


# Serving of custom kinds: the served resources follow the stored definitions.


class CustomObjectStore(ApiObjectStore, Protocol):
    """Read and write access to the API server's stored objects, with lists sorted by namespace and name."""

    def list(self, kind: str, namespace: str | None = None) -> Sequence[Obj]:
        """Return the objects of a kind, of one namespace or of all, sorted by namespace and name."""


def _ignore_conversion(*_measurement: Any) -> None:
    """Ignore the measurement of a conversion."""


class CustomResources:
    """Serves the kinds of all established CustomResourceDefinitions, and follows their changes."""

    def __init__(
        self,
        objects: CustomObjectStore,
        resources: Resources,
        now: Callable[[], Instant],
        observe_conversion: Callable[..., None] = _ignore_conversion,
    ) -> None:
        """Serve the stored definitions. `observe_conversion` is called for each call of a conversion webhook."""
        self._objects = objects
        self._now = now
        self._observe_conversion = observe_conversion
        self._resources = resources
        self._resources_by_key: Mapping[tuple[Any, ...], Resource] = {}
        self._refresh_served_resources()

    def observe(self, event: WatchEvent) -> None:
        """Refresh the served kinds after a change of a CustomResourceDefinition."""
        if event.key.kind == DEFINITION:
            self._refresh_served_resources()

    def _refresh_served_resources(self) -> None:
        definitions = [each for each in self._objects.list(DEFINITION) if is_served(each) and _serves_a_version(each)]
        served_resources = {
            key: self._resources_by_key.get(key) or self._create_resource(each)
            for each in definitions
            for key in [_resource_key(each)]
        }
        if served_resources.keys() != self._resources_by_key.keys():
            self._resources.serve_additional(served_resources.values())
        self._resources_by_key = served_resources

    def _create_resource(self, definition: Obj) -> Resource:
        served_kind, versions = kind_from_definition(definition), definition["spec"]["versions"]
        is_terminating, stored_subresources = (
            is_definition_terminating(definition),
            ("status",) * served_kind.has_status,
        )
        strategy = CustomStrategy(served_kind, versions, is_terminating=is_terminating)
        converter: ObjectConverter | None = None
        if (definition["spec"].get("conversion") or {}).get("strategy") == "Webhook":
            from batchyard.apiserver.crd.webhook_conversion import WebhookStrategy  # noqa: PLC0415 - rarely needed

            strategy = webhook_strategy = WebhookStrategy(
                served_kind, definition, self._observe_conversion, is_terminating=is_terminating
            )
            converter = webhook_strategy.webhook
        resource = Resource(
            *(served_kind, strategy, stored_subresources),
            merge_schema=strategy.merge_schema,
            prunes_unknown=True,
            converter=converter,
        )
        scales = {each["name"]: scale for each in versions if (scale := (each.get("subresources") or {}).get("scale"))}
        return with_scale(resource, self._objects, scales, self._now) if scales else resource


def _serves_a_version(definition: Obj) -> bool:
    return any(version["served"] for version in definition["spec"]["versions"])


def _resource_key(definition: Obj) -> tuple[Any, ...]:
    """Return a key that changes if a CustomResourceDefinition requires a new Resource."""
    metadata = definition["metadata"]
    return metadata["uid"], metadata.get("generation"), is_definition_terminating(definition)
