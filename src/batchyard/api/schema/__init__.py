"""The fields of every kind: their types, constraints and defaults.

    validate(info, obj)         all structural faults of an object, in the version of its apiVersion
    with_defaults(info, obj)    the object without nulls and with the defaults of its schema
    settle(info, version, obj)  both in one walk, which is how manifests are decoded
    completed(type, value)      a value of a type of Kubernetes itself with its defaults
    meaning_of(kind)            compares values of a kind's types semantically

Rules between fields are in batchyard.api.validation, defaults of webhooks in batchyard.api.defaults. A pod template in
an object of a CRD is validated like that CRD does; in Jobs and PodTemplates like Kubernetes does.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any, Final, NamedTuple

from batchyard.api.errors import FieldError, InvalidObject
from batchyard.api.meta import Obj
from batchyard.api.schema.compiled_checks import Compiler, RootVisitor
from batchyard.api.schema.field_locations import SemanticEquality, unknown_field_remedy
from batchyard.api.schema.tables import NATIVE, TypeScope, scope, scope_for
from batchyard.api.schema.violations import Flaw, Flaws, path_text
from batchyard.api.scheme import ServedKind, kind_info

__all__ = ["SettledObject", "completed", "meaning_of", "settle", "validate", "with_defaults"]

_REMEDIES_MAX: Final = 100


class SettledObject(NamedTuple):
    """A validated object with defaults, or None and its faults."""

    obj: dict[str, Any] | None
    faults: list[FieldError]


def settle(info: ServedKind, version: str, obj: Obj, sound: Obj | None = None) -> SettledObject:
    """Validate an object of a version of a kind, drop its nulls and fill in the defaults of its schema, in one walk.

    The result is the object itself if nothing changes, and shares all unchanged parts. It may share pod templates with
    other objects: objects are never changed in place. Parts that are the same Python objects in `sound`, an object of
    the version that was settled before, are not validated again.
    """
    settled = _root_visitor(info.constant, version)(obj, sound)
    if type(settled) is not Flaws:
        return SettledObject(settled, []) if "metadata" in settled else SettledObject(None, [_NO_METADATA])
    faults = _faults(settled, scope_for(info, version), info.kind)
    return SettledObject(None, faults if obj.get("metadata") is not None else [*faults, _NO_METADATA])


def validate(info_or_type: ServedKind | str, obj: Mapping[str, Any]) -> list[FieldError]:
    """Return all structural faults of an object, in the version of its `apiVersion` (the storage version if it has
    none).

    Takes the name of a Kubernetes type as well, such as `PodTemplateSpec`, and then validates a value of that type.
    """
    if isinstance(info_or_type, ServedKind):
        return settle(info_or_type, _version(info_or_type, obj), obj).faults
    settled = _compiler(scope(NATIVE)).object_visitor(info_or_type)(obj)
    return _faults(settled, scope(NATIVE), info_or_type) if type(settled) is Flaws else []


def with_defaults(info: ServedKind, obj: Obj) -> dict[str, Any]:
    """Return the object without nulls and with structural defaults; InvalidObject if its structure is invalid."""
    settled = settle(info, _version(info, obj), obj)
    if settled.obj is None:
        raise InvalidObject(settled.faults)
    return settled.obj


def completed(type_name: str, value: Any) -> Any:
    """Return a value of a type of Kubernetes itself with its defaults; unchanged if its structure is invalid."""
    settled = _compiler(scope(NATIVE)).object_visitor(type_name)(value)
    return value if type(settled) is Flaws else settled


@cache
def meaning_of(constant: str) -> SemanticEquality:
    """Return the semantic comparison for the types of a kind, in its storage version."""
    info = kind_info(constant)
    return SemanticEquality(scope_for(info, info.storage_version), completed)


_NO_METADATA = FieldError("metadata", "Required value", "give the object metadata with a name")


def _version(info: ServedKind, obj: Obj) -> str:
    return info.version_of(str(obj.get("apiVersion"))) or info.storage_version


@cache
def _root_visitor(constant: str, version: str) -> RootVisitor:
    info = kind_info(constant)
    return _compiler(scope_for(info, version)).root_visitor(info.kind)


@cache
def _compiler(of: TypeScope) -> Compiler:
    return Compiler(of, _compiler)


def _faults(flaws: Flaws, of: TypeScope, kind: str) -> list[FieldError]:
    """Return the flaws as faults; only the first get remedies, because finding one is slow and many share a cause."""
    remedied = [
        FieldError(path_text(flaw.path), flaw.problem, _remedy(flaw, of, kind)) for flaw in flaws[:_REMEDIES_MAX]
    ]
    return [*remedied, *(FieldError(path_text(flaw.path), flaw.problem) for flaw in flaws[_REMEDIES_MAX:])]


def _remedy(flaw: Flaw, of: TypeScope, kind: str) -> str:
    return unknown_field_remedy(of, kind, flaw.path, flaw.owner) if flaw.owner else flaw.remedy
