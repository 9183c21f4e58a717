"""The fields of every kind: what they must be, and what they are when left out.

    validate(info, obj)         all structural faults of an object, in the version it is written in
    with_defaults(info, obj)    the object with nulls dropped and the defaults of its schema filled in
    settle(info, version, obj)  both in one walk, which is how manifests are read
    completed(type, value)      a value of a type of Kubernetes itself with its defaults
    meaning_of(kind)            compares values of a kind's types by meaning

Rules between fields are in batchyard.api.validation, defaults made by webhooks in batchyard.api.defaults. Where a
pod template stands in an object of a CRD it is checked as that CRD does; in Jobs and PodTemplates as Kubernetes does.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any, Final, NamedTuple

from batchyard.api.errors import FieldError, InvalidObject
from batchyard.api.meta import Obj
from batchyard.api.schema.compiled_checks import Compiler, RootVisitor
from batchyard.api.schema.field_locations import Meaning, unknown_field_remedy
from batchyard.api.schema.tables import NATIVE, Scope, scope, scope_for
from batchyard.api.schema.violations import Flaw, Flaws, path_text
from batchyard.api.scheme import ServedKind, kind_info

__all__ = ["Settled", "completed", "meaning_of", "settle", "validate", "with_defaults"]

_REMEDIES_MAX: Final = 100


class Settled(NamedTuple):
    """An object checked and completed; `obj` is None when there are faults."""

    obj: dict[str, Any] | None
    faults: list[FieldError]


def settle(info: ServedKind, version: str, obj: Obj, sound: Obj | None = None) -> Settled:
    """Check an object of a version of a kind, drop its nulls and fill in the defaults of its schema, in one walk.

    The result is the object itself where nothing is to change, and shares all that stays. It may share pod templates
    with other objects: objects are never changed in place. What is the very same in `sound`, an object of the version
    that was settled before, is not looked at again.
    """
    settled = _root_visitor(info.constant, version)(obj, sound)
    if type(settled) is not Flaws:
        return Settled(settled, []) if "metadata" in settled else Settled(None, [_NO_METADATA])
    faults = _faults(settled, scope_for(info, version), info.kind)
    return Settled(None, faults if obj.get("metadata") is not None else [*faults, _NO_METADATA])


def validate(info_or_type: ServedKind | str, obj: Mapping[str, Any]) -> list[FieldError]:
    """All structural faults of an object, by the version its `apiVersion` names (the storage version if none).

    Takes the name of a Kubernetes type as well, such as `PodTemplateSpec`, and then checks a value of that type.
    """
    if isinstance(info_or_type, ServedKind):
        return settle(info_or_type, _version(info_or_type, obj), obj).faults
    settled = _compiler(scope(NATIVE)).object_visitor(info_or_type)(obj)
    return _faults(settled, scope(NATIVE), info_or_type) if type(settled) is Flaws else []


def with_defaults(info: ServedKind, obj: Obj) -> dict[str, Any]:
    """The object with nulls dropped and structural defaults filled in; InvalidObject if its structure is not sound."""
    settled = settle(info, _version(info, obj), obj)
    if settled.obj is None:
        raise InvalidObject(settled.faults)
    return settled.obj


def completed(type_name: str, value: Any) -> Any:
    """A value of a type of Kubernetes itself with its defaults, or the value as it is if its structure is not sound."""
    settled = _compiler(scope(NATIVE)).object_visitor(type_name)(value)
    return value if type(settled) is Flaws else settled


@cache
def meaning_of(constant: str) -> Meaning:
    """What compares values of the types of a kind, in its storage version."""
    info = kind_info(constant)
    return Meaning(scope_for(info, info.storage_version), completed)


_NO_METADATA = FieldError("metadata", "Required value", "give the object metadata with a name")


def _version(info: ServedKind, obj: Obj) -> str:
    return info.version_of(str(obj.get("apiVersion"))) or info.storage_version


@cache
def _root_visitor(constant: str, version: str) -> RootVisitor:
    info = kind_info(constant)
    return _compiler(scope_for(info, version)).root_visitor(info.kind)


@cache
def _compiler(of: Scope) -> Compiler:
    return Compiler(of, _compiler)


def _faults(flaws: Flaws, of: Scope, kind: str) -> list[FieldError]:
    """The flaws of a whole object as the API words them; a remedy takes a search, and many flaws have one cause."""
    remedied = [
        FieldError(path_text(flaw.path), flaw.problem, _remedy(flaw, of, kind)) for flaw in flaws[:_REMEDIES_MAX]
    ]
    return [*remedied, *(FieldError(path_text(flaw.path), flaw.problem) for flaw in flaws[_REMEDIES_MAX:])]


def _remedy(flaw: Flaw, of: Scope, kind: str) -> str:
    return unknown_field_remedy(of, kind, flaw.path, flaw.owner) if flaw.owner else flaw.remedy
