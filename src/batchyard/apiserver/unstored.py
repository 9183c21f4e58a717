"""Resources of which nothing is stored: what is asked of them is answered by functions."""

from collections.abc import Mapping
from typing import Any

from batchyard.api.schema.descriptions import description
from batchyard.api.scheme import ServedKind
from batchyard.apiserver.built_in import BuiltIn
from batchyard.apiserver.openapi.schemas import schema_name
from batchyard.apiserver.resources import Answer, Resource


class Unstored(BuiltIn):
    """The strategy of a kind that has no objects: all there is to it is its schema."""

    def __init__(self, info: ServedKind) -> None:
        super().__init__(info.constant)
        self._info = info

    def schemas(self, version: str) -> Mapping[str, Any]:
        """Its schema in a version, as OpenAPI has it: fields are looked at when it is answered."""
        kind = {"group": self._info.group, "version": version, "kind": self._info.kind}
        schema = {
            "type": "object",
            "description": description(self._info.kind),
            "x-kubernetes-group-version-kind": [kind],
        }
        return {schema_name(self._info, version): schema}


def unstored(kind: ServedKind, answers: Mapping[str, Answer]) -> Resource:
    """A resource of one version that answers by functions; at '' for itself."""
    return Resource(kind, Unstored(kind), answers=answers)


def unstored_kind(group: str, version: str, kind: str, plural: str, singular: str, *, namespaced: bool) -> ServedKind:
    """The kind of such a resource."""
    constant = f"{kind}.{group}" if group else kind
    return ServedKind(constant, kind, group, (version,), version, plural, singular, namespaced=namespaced)
