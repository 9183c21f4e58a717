"""The kind CustomResourceDefinition: a custom kind with a structural schema and further validation."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from batchyard.api.custom_kinds import DEFINITION
from batchyard.api.decode import DecodedObject
from batchyard.api.errors import FieldError
from batchyard.api.meta import Obj
from batchyard.api.printing import Column
from batchyard.api.scheme import ServedKind
from batchyard.api.times import format_time, parse_time
from batchyard.api.wire_times import TimeLocations, times_of_metadata
from batchyard.apiserver.crd.definition_schema import DEFINITION_SCHEMA
from batchyard.apiserver.crd.definition_validation import (
    definition_faults,
    definition_update_faults,
    definition_warnings,
)
from batchyard.apiserver.crd.strategy import CustomStrategy
from batchyard.apiserver.resources import Resource
from batchyard.base.instant import SECOND, Instant

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
