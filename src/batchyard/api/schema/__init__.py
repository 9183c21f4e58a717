"""The fields of every kind: their types, constraints and defaults.

    validate(info, obj)         all structural faults of an object, in the version of its apiVersion
    with_defaults(info, obj)    the object without nulls and with the defaults of its schema
    settle(info, version, obj)  both in one walk, which is how manifests are decoded
    completed(type, value)      a value of a type of Kubernetes itself with its defaults
    meaning_of(kind)            compares values of a kind's types semantically

Rules between fields are in batchyard.api.validation, defaults of webhooks in batchyard.api.defaults. A pod template in
an object of a CRD is validated like that CRD does; in Jobs and PodTemplates like Kubernetes does.
"""

import marshal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, NamedTuple, Protocol

from batchyard.api import meta
from batchyard.api.errors import FieldError, InvalidObject
from batchyard.api.meta import Obj
from batchyard.api.schema.scalars import COMPUTED, WORDS, Computed, PlainVisitor, Visitor, plain_flaws, scalar_visitor
from batchyard.api.schema.violations import (
    Flaw,
    Flaws,
    MapKey,
    flaw,
    path_text,
    shown,
    unknown_field_remedy,
    wrong_type,
)
from batchyard.api.scheme import NATIVE, NATIVE_PREFIX, Field, ServedKind, TypeScope, kind_info, scope, scope_for

#: Completes a value of a type of Kubernetes itself; returns it unchanged if its structure is invalid.
Complete = Callable[[str, Any], Any]

_ABSENT: Final = object()
#: Go has no pointer for these numbers and booleans, so zero equals absence.
_ZERO_IS_ABSENT: Final = frozenset(
    {
        *("chapAuthDiscovery", "chapAuthSession", "hostIPC", "hostNetwork", "hostPID", "readOnly", "sslEnabled"),
        *("stdin", "stdinOnce", "tty", "hostPort", "initialDelaySeconds", "partition"),
    }
)
#: Strings of which an empty one differs from an absent one.
_EMPTY_TEXT_COUNTS: Final = frozenset({"storageClassName", "volumeAttributesClassName"})
#: An empty selector selects everything, an absent one nothing.
_EMPTY_COUNTS: Final = frozenset({"LabelSelector"})
_COMPLETED: Final = "PodSpec"


class SemanticEquality:
    """Compares values of the types of one scope."""

    def __init__(self, of: TypeScope, complete: Complete) -> None:
        self._scope = of
        self._complete = complete

    def is_same(self, expression: str, one: Any, other: Any) -> bool:
        """Report whether two values of a type, such as `PodTemplateSpec` or `[Toleration]`, are semantically equal."""
        if one is other or one == other:
            return True
        field = Field(expression, False, {})
        return bool(self._normal("", field, one) == self._normal("", field, other))

    def is_same_field(self, type_name: str, name: str, one: Obj, other: Obj) -> bool:
        """Report whether a field is semantically equal in two objects of a type."""
        before, after = one.get(name), other.get(name)
        if before is after or before == after:
            return True
        return self.is_same(self._scope.fields(type_name)[name].expression, before, after)

    def _normal(self, name: str, field: Field, value: Any) -> Any:
        if value is None:
            return _ABSENT
        if field.is_list and isinstance(value, list | tuple):
            return [self._normal("", field.element, item) for item in value] or _ABSENT
        if field.is_map and isinstance(value, Mapping):
            return {key: _entry(field.element, each) for key, each in value.items()} or _ABSENT
        if field.is_object and isinstance(value, Mapping):
            return self._normal_object(field.expression, value)
        if field.expression == "quantity":
            return _amount(value)
        if value == "":
            return value if name in _EMPTY_TEXT_COUNTS else _ABSENT
        return _ABSENT if name in _ZERO_IS_ABSENT and not value else value

    def _normal_object(self, type_name: str, value: Mapping[str, Any]) -> Any:
        home, name = self._scope.scope_of(type_name)
        if name == _COMPLETED:
            home, value = scope(NATIVE), self._complete(name, value)
        among = self if home is self._scope else SemanticEquality(home, self._complete)
        return among._normal_fields(name, value)

    def _normal_fields(self, name: str, value: Mapping[str, Any]) -> Any:
        known = self._scope.fields(name)
        normal = {
            field: done
            for field, child in value.items()
            if (done := self._normal(field, known[field], child) if field in known else child) is not _ABSENT
        }
        return normal if normal or name in _EMPTY_COUNTS else _ABSENT


def _entry(element: Field, value: Any) -> Any:
    """Normalize a value of a mapping, where an empty string counts as a value."""
    return _amount(value) if element.expression == "quantity" else value


def _amount(value: Any) -> Any:
    try:
        return meta.parse(value)
    except (ValueError, TypeError):
        return value


# --- compiled checks ---
#
# Validators of objects, lists and mappings, compiled once from the field tables.
#
# A visitor takes a value and returns the validated value: the same object if it is valid and complete; a new one if
# nulls are dropped or defaults added (unchanged parts are shared); or Flaws. So one walk validates and completes an
# object, and the common case costs one call for each node.


_DROPPED: Final = object()
_EMPTY: Final[Sequence[Any]] = ([], {})
#: Types whose null values in a mapping of a kind of Kubernetes itself are read as empty, as Go does.
_TEXTS: Final = frozenset({"string", "bytes"})
#: Equal pod templates are frequent; a valid one is validated once and then shared.
_REMEMBERED: Final = "PodTemplateSpec"
REMEMBERED_MAX: Final = 4096
_MARSHAL_WITHOUT_REFERENCES: Final = 2


class Compiler:
    """Compiles the visitors of one scope, each type on first use."""

    def __init__(self, scope: TypeScope, other: "Callable[[TypeScope], Compiler]") -> None:
        self._scope = scope
        self._other = other
        self._made: dict[str, Visitor] = {}

    def root_visitor(self, type_name: str) -> "RootVisitor":
        """Return the visitor of whole objects of a kind."""
        return self._object(type_name)

    def object_visitor(self, type_name: str) -> Visitor:
        """Return the visitor of an object type."""
        scope, name = self._scope.scope_of(type_name)
        if scope is not self._scope:
            return self._other(scope).object_visitor(name)
        if name not in self._made:
            visitor: Visitor = self._object(name)
            self._made[name] = _remembering(visitor) if name == _REMEMBERED else visitor
        return self._made[name]

    def visitor(self, field: Field) -> PlainVisitor:
        """Return the visitor of a field."""
        is_native = self._scope.name == NATIVE
        if field.is_list:
            visitor = _list(self._called(field.element), field)
            return _omitting(visitor) if is_native and _is_omitted(field) else visitor
        if field.is_map:
            takes_null = is_native and field.element.expression in _TEXTS
            visitor = _map(self._called(field.element), field, takes_null=takes_null)
            return _omitting(visitor) if is_native and _is_omitted(field) else visitor
        if field.is_object:
            return self.object_visitor(field.expression)
        return scalar_visitor(field.expression, field.facts)

    def _called(self, field: Field) -> Visitor:
        """Return the visitor of an element as a function, even if its type is plain."""
        visitor = self.visitor(field)
        if not isinstance(visitor, type):
            return visitor
        wanted = visitor

        def visit(value: Any) -> Any:
            return value if type(value) is wanted else plain_flaws(wanted, value)

        return visit

    def _object(self, type_name: str) -> "RootVisitor":
        """Return the visitor of an object's fields; those that hold objects are compiled on first use."""
        fields = self._scope.fields(type_name)
        visitors: dict[str, PlainVisitor] = {}
        for name, field in fields.items():
            visitors[name] = self._late(visitors, name, field) if field.object_type else self.visitor(field)
        required = {name: describe(field, self._scope) for name, field in fields.items() if field.required}
        defaults = {name: field.facts["default"] for name, field in fields.items() if "default" in field.facts}
        nullable = frozenset(name for name, field in fields.items() if field.facts.get("nullable"))
        qualified = f"{NATIVE_PREFIX}{type_name}" if self._scope.name == NATIVE else f"{self._scope.name}/{type_name}"
        visitor = _object(visitors, _Completion(qualified, visitors, required, defaults, nullable))
        computed = COMPUTED.get(type_name) if self._scope.name == NATIVE else None
        return visitor if computed is None else _computing(visitor, computed)

    def _late(self, visitors: dict[str, PlainVisitor], name: str, field: Field) -> Visitor:
        """Return a visitor that replaces itself by the compiled one on the first call."""

        def visit(value: Any) -> Any:
            visitor = visitors[name] = self.visitor(field)
            assert not isinstance(visitor, type)
            return visitor(value)

        return visit


@dataclass(frozen=True, slots=True)
class _Completion:
    """The handling of an object with unknown, null or missing fields."""

    type_name: str
    visitors: Mapping[str, PlainVisitor]
    required: Mapping[str, str]
    """The required fields, each with a description of its value."""
    defaults: Mapping[str, Any]
    nullable: frozenset[str]

    def strange(self, name: str, value: Any) -> Any:
        """Return the result for a field that is unknown, null, or not of its plain type."""
        visitor = self.visitors.get(name)
        if visitor is None:
            # client-go writes null for the zero time of embedded metadata, and CRDs have no such field.
            if value is None and name == "creationTimestamp":
                return _DROPPED
            return Flaws([Flaw((), "unknown field", "", self.type_name)])
        if value is None:
            return None if name in self.nullable else _DROPPED
        assert isinstance(visitor, type)
        return plain_flaws(visitor, value)

    def completed(self, value: Mapping[str, Any], odd: Mapping[str, Any]) -> Any:
        """Return the object with the odd fields replaced or dropped and defaults added; or all its flaws."""
        flaws, new = Flaws(), {**value, **odd}
        for name, settled in odd.items():
            if settled is _DROPPED:
                del new[name]
            elif type(settled) is Flaws:
                flaws += settled.below(name)
        if not new.keys() >= self.required.keys():
            flaws += self._missing(new)
        if flaws:
            return flaws
        for name, default in self.defaults.items():
            if name not in new:
                new[name] = self._settled_default(name, default)
        return new

    def _missing(self, fields: Mapping[str, Any]) -> Flaws:
        """Return the flaws of missing required fields."""
        missing = [name for name in self.required if name not in fields and name not in self.defaults]
        return Flaws(Flaw((name,), "Required value", f"set it to {self.required[name]}") for name in missing)

    def _settled_default(self, name: str, default: Any) -> Any:
        """Return a default with the defaults of its own fields, normalized like a sent value."""
        visitor = self.visitors[name]
        if not isinstance(visitor, type):
            default = visitor(default)
            assert type(default) is not Flaws
        return default


class RootVisitor(Protocol):
    """A visitor of whole objects: parts that are the same Python objects in a valid object are not validated again."""

    def __call__(self, value: Any, sound: Mapping[str, Any] | None = None) -> Any:
        """Return the result for the value, as any visitor does."""


def _object(visitors: Mapping[str, PlainVisitor], completion: _Completion) -> RootVisitor:
    must_have = frozenset(completion.required) | frozenset(completion.defaults)
    known, strange = visitors.get, completion.strange

    def visit(value: Any, sound: Mapping[str, Any] | None = None) -> Any:
        if type(value) is not dict:
            return _not_an_object(value, visitors)
        odd: dict[str, Any] | None = None
        for name, child in value.items():
            visitor = known(name)
            if type(child) is visitor or (sound is not None and child is not None and sound.get(name) is child):
                continue
            if visitor is None or child is None or visitor is str or visitor is bool:
                settled = strange(name, child)
            else:
                settled = visitor(child)
                if settled is child:
                    continue
            if odd is None:
                odd = {}
            odd[name] = settled
        if odd is None and value.keys() >= must_have:
            return value
        return completion.completed(value, odd or {})

    return visit


def _computing(visitor: RootVisitor, computed: Computed) -> RootVisitor:
    """Return the visitor extended by defaults that follow from other fields."""

    def visit(value: Any, sound: Mapping[str, Any] | None = None) -> Any:
        settled = visitor(value, sound)
        if type(settled) is Flaws:
            return settled
        added = computed(settled)
        return {**settled, **added} if added else settled

    return visit


def _not_an_object(value: Any, visitors: Mapping[str, PlainVisitor]) -> Flaws:
    names = ", ".join(list(visitors)[:6]) + (", ..." if len(visitors) > 6 else "")
    if isinstance(value, list):
        return wrong_type(value, f"an object (fields: {names})", "write its fields below it, without '- '")
    return wrong_type(value, f"an object (fields: {names})", "write its fields below it")


def _list(visit_item: Visitor, field: Field) -> Visitor:
    facts = field.facts
    keys, lowest, highest = facts.get("keys"), facts.get("minItems", 0), facts.get("maxItems", 1 << 62)
    unique = bool(keys) or facts.get("set", False)

    def visit(value: Any) -> Any:
        if type(value) is not list:
            return wrong_type(value, "a list", "start every item with '- '")
        odd: dict[int, Any] | None = None
        suspect = not lowest <= len(value) <= highest
        for index, item in enumerate(value):
            settled = visit_item(item)
            if settled is not item:
                odd = odd or {}
                odd[index] = settled
                suspect = suspect or type(settled) is Flaws
        new = value if odd is None else [odd.get(index, item) for index, item in enumerate(value)]
        if not suspect and (not unique or len(new) < 2 or _are_different(new, keys)):
            return new
        return _list_flaws(new, field) or new

    return visit


def _are_different(items: list[Any], keys: list[str] | None) -> bool:
    """Report whether the items of a valid list are distinct by their keys."""
    if keys is None:
        found = set(items)
    elif len(keys) == 1:
        key = keys[0]
        found = {item.get(key) for item in items}
    else:
        found = {tuple([item.get(key) for key in keys]) for item in items}
    return len(found) == len(items)


def _list_flaws(items: list[Any], field: Field) -> Flaws:
    flaws, facts = Flaws(), field.facts
    for index, item in enumerate(items):
        if type(item) is Flaws:
            flaws += item.below(index)
    if len(items) < facts.get("minItems", 0):
        wanted = f"must have at least {_counted(facts['minItems'])}"
        flaws += (
            flaw(f"Invalid value: {wanted}", "add the missing items")
            if items
            else flaw("Required value", f"it {wanted}")
        )
    if len(items) > facts.get("maxItems", len(items)):
        highest = facts["maxItems"]
        problem = f"Too many: {len(items)}: must have at most {_counted(highest)}"
        flaws += flaw(problem, f"remove {len(items) - highest}")
    if "keys" in facts or facts.get("set"):
        flaws += _duplicates(items, facts.get("keys"))
    return flaws


def _counted(count: int) -> str:
    return "1 item" if count == 1 else f"{count} items"


def _duplicates(items: list[Any], keys: list[str] | None) -> Flaws:
    flaws, seen = Flaws(), set[Any]()
    for index, item in enumerate(items):
        if type(item) is Flaws:
            continue
        identity = item if keys is None else tuple(item.get(key) for key in keys)
        if identity in seen:
            flaws.append(
                Flaw((index,), f"Duplicate value: {_identity_text(item, keys)}", "remove or rename one of them")
            )
        seen.add(identity)
    return flaws


def _identity_text(item: Any, keys: list[str] | None) -> str:
    if keys is None:
        return shown(item)
    return ", ".join(f"{key} {shown(item.get(key))}" for key in keys)


def _map(visit_value: Visitor, field: Field, *, takes_null: bool) -> Visitor:
    highest = field.facts.get("maxProperties", 1 << 62)

    def visit(value: Any) -> Any:
        if type(value) is not dict:
            return wrong_type(value, "an object", "write name: value pairs below it")
        odd: dict[Any, Any] | None = None
        for name, child in value.items():
            settled = visit_value(child)
            if settled is not child or type(name) is not str:
                if takes_null and child is None:
                    settled = ""
                odd = odd or {}
                odd[name] = settled if type(name) is str else wrong_type(name, "a string as its name")
        if odd is None and len(value) <= highest:
            return value
        return _map_flaws(value, odd or {}, field) or {**value, **(odd or {})}

    return visit


def _map_flaws(value: Mapping[str, Any], odd: Mapping[Any, Any], field: Field) -> Flaws:
    flaws, facts = Flaws(), field.facts
    for name, settled in odd.items():
        if type(settled) is Flaws:
            flaws += settled.below(MapKey(name))
    if len(value) > facts.get("maxProperties", len(value)):
        highest = facts["maxProperties"]
        problem = f"Too many: {len(value)}: must have at most {_counted(highest)}"
        flaws += flaw(problem, f"remove {len(value) - highest}")
    return flaws


def _is_omitted(field: Field) -> bool:
    """Report whether an empty list or mapping is omitted in the output. managedFields entries are an exception."""
    return not field.required and field.element.expression != "ManagedFieldsEntry"


def _omitting(visit: Visitor) -> Visitor:
    """Return the visitor of a list or mapping that drops an empty one, as Go's omitempty does."""

    def visit_filled(value: Any) -> Any:
        return _DROPPED if not value and value in _EMPTY else visit(value)

    return visit_filled


def _remembering(visit: Visitor) -> Visitor:
    """Return the visitor with a cache of valid values, by their serialized bytes."""
    memory: dict[bytes, Any] = {}

    def visit_once(value: Any) -> Any:
        try:
            encoded = marshal.dumps(value, _MARSHAL_WITHOUT_REFERENCES)
        except ValueError:
            return visit(value)
        known = memory.get(encoded)
        if known is not None:
            return known
        settled = visit(value)
        if type(settled) is not Flaws:
            if len(memory) >= REMEMBERED_MAX:
                memory.clear()
            memory[encoded] = settled
        return settled

    return visit_once


def describe(field: Field, scope: TypeScope) -> str:
    """Describe the value of a field: `a list of objects (name, resources)`."""
    if field.is_list:
        return f"a list of {_plural(describe(field.element, scope))}"
    if field.is_map:
        return f"a mapping from names to {_plural(describe(field.element, scope))}"
    if not field.is_object:
        return " or ".join(field.facts.get("enum", ())) or WORDS[field.expression]
    home, name = scope.scope_of(field.expression)
    needed = [name for name, inner in home.fields(name).items() if inner.required]
    return f"an object with {', '.join(needed)}" if needed else "an object"


def _plural(words: str) -> str:
    """Return the plural: `a string` as `strings`, `a quantity such as 2` as `quantities such as 2`."""
    first, space, rest = words.removeprefix("an ").removeprefix("a ").partition(" ")
    return f"{first[:-1]}ies{space}{rest}" if first.endswith("y") else f"{first}s{space}{rest}"


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
