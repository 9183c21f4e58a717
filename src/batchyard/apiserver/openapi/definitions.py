"""CustomResourceDefinitions of built-in kinds, for installation in other API servers.

Only the storage version is included unless a conversion webhook is given, because another API server cannot convert
versions itself. The schema comes from the field tables and omits cross-field rules.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from batchyard.api import scheme, well_known
from batchyard.api.printing.cells import json_path
from batchyard.api.printing.kinds import TABLES
from batchyard.api.scheme import ServedKind
from batchyard.apiserver.openapi.schemas import REFERENCE, Schemas, schemas_of

_OF_PATCHES: Final = ("x-kubernetes-patch-strategy", "x-kubernetes-patch-merge-key", "x-kubernetes-group-version-kind")
#: Column paths that differ in an older version.
_OLDER_PATHS: Final = {(scheme.CLUSTER_QUEUE, "v1beta1"): {".spec.cohortName": ".spec.cohort"}}
_EITHER: Final = {"anyOf": [{"type": "integer"}, {"type": "string"}]}
_INT_OR_STRING: Final = "x-kubernetes-int-or-string"
_LIST_TYPE: Final = "x-kubernetes-list-type"
_LIST_KEYS: Final = "x-kubernetes-list-map-keys"


class Conversion(NamedTuple):
    """The Service of a conversion webhook."""

    service: str
    namespace: str
    path: str


def provided_definition(info: ServedKind) -> dict[str, Any]:
    """Return the definition of a kind that the platform provides, with all served versions."""
    definition = definition_of(info)
    metadata = {**definition["metadata"], "annotations": {well_known.PROVIDED: "true"}}
    versions = [_version(info, version) for version in info.versions]
    spec = {**definition["spec"], "versions": versions, "conversion": {"strategy": "None"}}
    return {**definition, "metadata": metadata, "spec": spec}


def definition_of(info: ServedKind, conversion: Conversion | None = None) -> dict[str, Any]:
    """Return the definition of a kind; with a conversion webhook it includes all versions."""
    versions = info.versions if conversion is not None else (info.storage_version,)
    names = {
        "kind": info.kind,
        "listKind": f"{info.kind}List",
        "plural": info.plural,
        "singular": info.singular,
        "shortNames": list(info.short_names),
    }
    scope = "Namespaced" if info.namespaced else "Cluster"
    served = [_version(info, version) for version in versions]
    spec: dict[str, Any] = {"group": info.group, "names": names, "scope": scope, "versions": served}
    if conversion is not None:
        service = {"name": conversion.service, "namespace": conversion.namespace, "path": conversion.path}
        webhook = {"clientConfig": {"service": service}, "conversionReviewVersions": ["v1"]}
        spec["conversion"] = {"strategy": "Webhook", "webhook": webhook}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{info.plural}.{info.group}"},
        "spec": spec,
    }


def _version(info: ServedKind, version: str) -> dict[str, Any]:
    schemas = schemas_of(info, version)
    schema = _structural(next(iter(schemas.values())), schemas)
    schema["properties"] = {**schema["properties"], "metadata": {"type": "object"}}
    reported: dict[str, Any] = {"name": version, "served": True, "storage": version == info.storage_version}
    if version in info.deprecated_versions:
        reported |= {"deprecated": True, "deprecationWarning": info.deprecation}
    reported["schema"] = {"openAPIV3Schema": schema}
    columns = _columns(info, version)
    reported |= {"additionalPrinterColumns": columns} if columns else {}
    return reported | ({"subresources": {"status": {}}} if info.has_status else {})


def _columns(info: ServedKind, version: str) -> list[dict[str, Any]]:
    """Return the printer columns whose cells are fields of the object; kubectl shows the age without any."""
    older = _OLDER_PATHS.get((info.constant, version), {})
    found = ((column, json_path(cell)) for column, cell in TABLES.get(info.constant, ()))
    return [
        {
            "name": column.name,
            "type": column.type,
            "jsonPath": older.get(path, path),
            **({"priority": column.priority} if column.priority else {}),
        }
        for column, path in found
        if path
    ]


def _structural(schema: Mapping[str, Any], schemas: Schemas) -> dict[str, Any]:
    """Inline all references of a schema."""
    whole = {word: value for word, value in schema.items() if word not in (*_OF_PATCHES, "$ref", "allOf")}
    for referred in (schema, *schema.get("allOf", ())):
        if "$ref" in referred:
            whole = {**schemas[referred["$ref"].removeprefix(REFERENCE)], **whole}
            whole.pop("x-kubernetes-group-version-kind", None)
    if "properties" in whole:
        whole["properties"] = {name: _structural(each, schemas) for name, each in whole["properties"].items()}
    for inner in ("items", "additionalProperties"):
        if inner in whole:
            whole[inner] = _structural(whole[inner], schemas)
    if _INT_OR_STRING in whole:
        whole |= _EITHER
    if not _has_keys(whole):
        whole.pop(_LIST_TYPE, None)
        whole.pop(_LIST_KEYS, None)
    return whole


def _has_keys(schema: Mapping[str, Any]) -> bool:
    """Report whether the keys of list items are required or have defaults."""
    items = schema.get("items", {})
    given = [name for name, each in items.get("properties", {}).items() if "default" in each]
    return set(schema.get(_LIST_KEYS, ())).issubset((*items.get("required", ()), *given))
