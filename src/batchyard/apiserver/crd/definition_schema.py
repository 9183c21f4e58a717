"""The structural schema of CustomResourceDefinitions, which are handled like custom objects.

Source: k8s.io/apiextensions-apiserver, pkg/apis/apiextensions/v1/types.go.
"""

from collections.abc import Mapping
from typing import Any, Final

from batchyard.apiserver.crd.schemas import LIST_TYPE, MAP_KEYS, PRESERVES, Schema

_TEXT: Final[Schema] = {"type": "string"}
_TRUTH: Final[Schema] = {"type": "boolean"}
_TEXTS: Final[Schema] = {"type": "array", "items": _TEXT, LIST_TYPE: "atomic"}
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
    shortNames=_TEXTS,
    kind=_TEXT,
    listKind=_TEXT,
    categories=_TEXTS,
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
    storedVersions=_TEXTS,
    observedGeneration={"type": "integer", "format": "int64"},
)
DEFINITION_SCHEMA: Final = _object("spec", spec=_SPEC, status=_STATUS)
