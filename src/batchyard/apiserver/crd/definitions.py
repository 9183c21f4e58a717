"""The kind CustomResourceDefinition: a custom kind with a structural schema and further validation."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from batchyard.api.conversion import TimeLocations, times_of_metadata
from batchyard.api.custom_kinds import DEFINITION, is_leaving, is_served, kind_of
from batchyard.api.errors import FieldError
from batchyard.api.manifests import DecodedObject
from batchyard.api.meta import Obj
from batchyard.api.printing import Column
from batchyard.api.scheme import ServedKind
from batchyard.api.times import format_time, parse_time
from batchyard.apiserver.crd.definition_validation import (
    definition_faults,
    definition_update_faults,
    definition_warnings,
)
from batchyard.apiserver.crd.strategy import CustomStrategy
from batchyard.apiserver.crd.values import (
    LIST_TYPE,
    MAP_KEYS,
    PRESERVES,
    Schema,
)
from batchyard.apiserver.resources import ApiObjectStore, Resource, Resources
from batchyard.apiserver.subresources.scale import with_scale
from batchyard.base.instant import SECOND, Instant
from batchyard.interfaces.client import WatchEvent

# --- schema words ---
#
# The recursive schema of JSON schemas, which checks the types of their keywords.
#
# Source: k8s.io/apiextensions-apiserver, pkg/apis/apiextensions/v1/types_jsonschema.go.


_TEXT: Final[Schema] = {"type": "string"}
_TRUTH: Final[Schema] = {"type": "boolean"}


# --- definition schema ---
#
# The structural schema of CustomResourceDefinitions, which are handled like custom objects.
#
# Source: k8s.io/apiextensions-apiserver, pkg/apis/apiextensions/v1/types.go.


_PRINTED_TEXTS: Final[Schema] = {"type": "array", "items": _TEXT, LIST_TYPE: "atomic"}
_ANYTHING: Final[Schema] = {"type": "object", PRESERVES: True}


def _object(*required: str, about: str = "", **fields: Schema) -> dict[str, Any]:
    reported: dict[str, Any] = {"type": "object", "properties": fields}
    reported |= {"required": list(required)} if required else {}
    return reported | ({"description": about} if about else {})


def _list(of: Schema, *keys: str) -> dict[str, Any]:
    kind: Mapping[str, Any] = {LIST_TYPE: "map", MAP_KEYS: list(keys)} if keys else {LIST_TYPE: "atomic"}
    return {"type": "array", "items": of, **kind}


_NAMES: Final = _object(
    "plural",
    "kind",
    about="the names of the resource and the kind",
    plural=_TEXT,
    singular=_TEXT,
    shortNames=_PRINTED_TEXTS,
    kind=_TEXT,
    listKind=_TEXT,
    categories=_PRINTED_TEXTS,
)
_COLUMN: Final = _object(
    "name",
    "type",
    "jsonPath",
    about="a column of the printed table",
    name=_TEXT,
    type=_TEXT,
    format=_TEXT,
    description=_TEXT,
    priority={"type": "integer", "format": "int32"},
    jsonPath=_TEXT,
)
_SCALE: Final = _object(
    about="the paths of desired and current replicas",
    specReplicasPath=_TEXT,
    statusReplicasPath=_TEXT,
    labelSelectorPath=_TEXT,
)
_VERSION: Final = _object(
    "name",
    "served",
    "storage",
    name=_TEXT,
    served=_TRUTH,
    storage=_TRUTH,
    deprecated=_TRUTH,
    deprecationWarning=_TEXT,
    schema=_object(about="the schema of the objects", openAPIV3Schema=_ANYTHING),
    subresources=_object(about="the subresources of the objects", status=_ANYTHING, scale=_SCALE),
    additionalPrinterColumns=_list(_COLUMN),
    selectableFields=_list(_object("jsonPath", jsonPath=_TEXT)),
)
_SPEC: Final = _object(
    "group",
    "names",
    "scope",
    "versions",
    about="the desired state of the definition",
    group=_TEXT,
    names=_NAMES,
    scope={"type": "string", "enum": ["Cluster", "Namespaced"]},
    versions=_list(_VERSION),
    conversion=_object("strategy", strategy=_TEXT, webhook=_ANYTHING) | {"default": {"strategy": "None"}},
    preserveUnknownFields=_TRUTH,
)
_CONDITION: Final = _object(
    "type",
    "status",
    type=_TEXT,
    status=_TEXT,
    lastTransitionTime={"type": "string", "format": "date-time"},
    reason=_TEXT,
    message=_TEXT,
    observedGeneration={"type": "integer", "format": "int64"},
)
CONDITIONS: Final = _list(_CONDITION, "type")
_STATUS: Final = _object(
    about="the current state of the definition",
    conditions=CONDITIONS,
    acceptedNames=_object(**_NAMES["properties"]),
    storedVersions=_PRINTED_TEXTS,
    observedGeneration={"type": "integer", "format": "int64"},
)
DEFINITION_SCHEMA: Final = _object("spec", spec=_SPEC, status=_STATUS)


_INFO: Final = ServedKind(
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
    """The strategy of CustomResourceDefinitions."""

    def __init__(self) -> None:
        super().__init__(_INFO, [_OWN_VERSION])

    def decode(self, sent: Mapping[str, Any], namespace: str, sound: Obj | None = None) -> DecodedObject:
        """Decode a definition with defaults; or return its errors."""
        decoded = super().decode(sent, namespace)
        if decoded.obj is None:
            return decoded
        definition = _with_all_names(decoded.obj)
        faults = list(definition_faults(definition))
        return (
            DecodedObject(None, faults, [])
            if faults
            else DecodedObject(definition, [], definition_warnings(definition))
        )

    def check_update(self, new: Obj, old: Obj) -> list[FieldError]:
        """Return the validation errors of an update."""
        return list(definition_update_faults(new, old))

    def check_status(self, new: Obj, old: Obj) -> list[FieldError]:
        """Return no errors: any status update is valid."""
        return []

    def _times(self) -> TimeLocations:
        return {**times_of_metadata(), "status": {"conditions": {"lastTransitionTime": {}}}}

    def columns(self, api_version: str) -> Sequence[Column]:
        """Return the table columns."""
        return _COLUMNS

    def cells(self, stored: Obj, now: Instant, api_version: str) -> list[str]:
        """Return the table cells of a definition."""
        made_at = parse_time(stored["metadata"]["creationTimestamp"])
        return [stored["metadata"]["name"], format_time(made_at // SECOND * SECOND)]


def definition_resource() -> Resource:
    """Return the resource of CustomResourceDefinitions."""
    strategy = DefinitionStrategy()
    return Resource(
        _INFO, strategy, ("status",), shape=strategy.shape, is_native=True, drops_unknown=True, is_adoptable=True
    )


def _with_all_names(definition: dict[str, Any]) -> dict[str, Any]:
    """Return a definition with default names."""
    spec = definition["spec"]
    kind = spec["names"]["kind"]
    implied = {"singular": kind.lower(), "listKind": f"{kind}List" if kind else ""}
    return {**definition, "spec": {**spec, "names": {**spec["names"], **_missing(implied, spec["names"])}}}


def _missing(implied: Mapping[str, str], names: Mapping[str, Any]) -> Mapping[str, str]:
    return {field: name for field, name in implied.items() if not names.get(field)}


# --- serving ---
#
# Serving of custom kinds: the served resources follow the stored definitions.


class CustomObjectStore(ApiObjectStore, Protocol):
    """Access to the stored objects."""

    def list(self, kind: str, namespace: str | None = None) -> Sequence[Obj]:
        """Return all objects of a kind, sorted by namespace and name."""


class CustomResources:
    """Serves the kinds of all established definitions, and follows their changes."""

    def __init__(self, objects: CustomObjectStore, resources: Resources, now: Callable[[], Instant]) -> None:
        self._objects = objects
        self._now = now
        self._resources = resources
        self._served: Mapping[tuple[Any, ...], Resource] = {}
        self._refresh()

    def observe(self, event: WatchEvent) -> None:
        """Refresh the served kinds after a change of a definition."""
        if event.key.kind == DEFINITION:
            self._refresh()

    def _refresh(self) -> None:
        definitions = [each for each in self._objects.list(DEFINITION) if is_served(each) and _serves_a_version(each)]
        served = {
            key: self._served.get(key) or _resource(each, self._objects, self._now)
            for each in definitions
            for key in [_key_of(each)]
        }
        if served.keys() != self._served.keys():
            self._resources.serve_also(served.values())
        self._served = served


def _serves_a_version(definition: Obj) -> bool:
    """Report whether any version is served; without one the kind has no path and no discovery entry."""
    return any(version["served"] for version in definition["spec"]["versions"])


def _key_of(definition: Obj) -> tuple[Any, ...]:
    """Return what identifies the resource of a definition; a change requires a new resource."""
    metadata = definition["metadata"]
    return metadata["uid"], metadata.get("generation"), is_leaving(definition)


def _resource(definition: Obj, objects: ApiObjectStore, now: Callable[[], Instant]) -> Resource:
    """Return the resource of a definition."""
    info, versions = kind_of(definition), definition["spec"]["versions"]
    strategy = CustomStrategy(info, versions, is_leaving=is_leaving(definition))
    parts = ("status",) if info.has_status else ()
    scales = [(each.get("subresources") or {}).get("scale") for each in versions]
    scale = next(filter(None, scales), None)
    resource = Resource(info, strategy, parts, shape=strategy.shape, drops_unknown=True)
    return resource if scale is None else with_scale(resource, objects, scale, now)
