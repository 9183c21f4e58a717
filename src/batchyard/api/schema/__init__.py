"""Schemas of API objects: validates the structure of objects, and fills in the default values of their fields.

    validate                returns all structural errors of an object, in the version of its apiVersion
    with_defaults           returns the object with the defaults of its schema and without disallowed nulls
    validate_and_default    validates and fills in defaults in one pass, to decode manifests
    fill_defaults           returns a value of a Kubernetes type such as PodSpec with its defaults
    semantic_equality       returns the SemanticEquality of a kind, which compares values by meaning

Rules across fields are in batchyard.api.validation, defaults of webhooks in batchyard.api.defaults. A pod template is
validated by the schema of the CRD that contains it; in Jobs and PodTemplates, by Kubernetes's own schema.
"""

import marshal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, NamedTuple, Protocol

from batchyard.api import meta
from batchyard.api.errors import FieldError, InvalidObject
from batchyard.api.meta import Obj
from batchyard.api.schema.scalars import (
    COMPUTED_DEFAULTS,
    TYPE_DESCRIPTIONS,
    DefaultsComputer,
    ValueVisitor,
    VisitorOrType,
    scalar_visitor,
    string_or_boolean_violation,
)
from batchyard.api.schema.violations import (
    MapKey,
    SchemaViolation,
    SchemaViolations,
    format_path,
    format_value,
    single_violation,
    unknown_field_remedy,
    wrong_type_violation,
)
from batchyard.api.scheme import (
    NATIVE,
    NATIVE_PREFIX,
    Field,
    ServedKind,
    TypeScope,
    kind_info,
    load_scope,
    load_scope_for_kind,
)

#: Fills in the defaults of a value of a Kubernetes type; returns the value unchanged if its structure is invalid.
DefaultsFiller = Callable[[str, Any], Any]

_ABSENT_VALUE: Final = object()
#: Fields that Go stores without a pointer, so that 0 or false means the same as an absent field.
_ZERO_MEANS_ABSENT_FIELDS: Final = frozenset(
    {
        *("chapAuthDiscovery", "chapAuthSession", "hostIPC", "hostNetwork", "hostPID", "readOnly", "sslEnabled"),
        *("stdin", "stdinOnce", "tty", "hostPort", "initialDelaySeconds", "partition"),
    }
)
#: String fields whose empty text differs from an absent field.
_EMPTY_STRING_SIGNIFICANT_FIELDS: Final = frozenset({"storageClassName", "volumeAttributesClassName"})
#: Types whose empty object differs from an absent one: an empty selector selects everything, an absent one nothing.
_EMPTY_OBJECT_SIGNIFICANT_TYPES: Final = frozenset({"LabelSelector"})
_TYPE_WITH_DEFAULTS: Final = "PodSpec"


class SemanticEquality:
    """Compares API values by meaning: missing defaults, empty values and the notation of quantities do not matter."""

    def __init__(self, type_scope: TypeScope, fill_defaults: DefaultsFiller) -> None:
        self._scope = type_scope
        self._fill_defaults = fill_defaults

    def is_same(self, expression: str, value: Any, other_value: Any) -> bool:
        """Return whether two values of a type expression (`PodTemplateSpec`, `[Toleration]`) have the same meaning."""
        if value is other_value or value == other_value:
            return True
        field = Field(expression, False, {})
        return bool(self._normalize("", field, value) == self._normalize("", field, other_value))

    def is_same_field(self, type_name: str, name: str, obj: Obj, other_obj: Obj) -> bool:
        """Return whether two objects of a type have the same meaning in the named field."""
        value, other_value = obj.get(name), other_obj.get(name)
        if value is other_value or value == other_value:
            return True
        return self.is_same(self._scope.fields(type_name)[name].expression, value, other_value)

    def _normalize(self, name: str, field: Field, value: Any) -> Any:
        if value is None:
            return _ABSENT_VALUE
        if field.is_list and isinstance(value, list | tuple):
            return [self._normalize("", field.element, item) for item in value] or _ABSENT_VALUE
        if field.is_map and isinstance(value, Mapping):
            return {key: _normalize_entry(field.element, each) for key, each in value.items()} or _ABSENT_VALUE
        if field.is_object and isinstance(value, Mapping):
            return self._normalize_object(field.expression, value)
        if field.expression == "quantity":
            return _parse_quantity_or_keep(value)
        if value == "":
            return value if name in _EMPTY_STRING_SIGNIFICANT_FIELDS else _ABSENT_VALUE
        return _ABSENT_VALUE if name in _ZERO_MEANS_ABSENT_FIELDS and not value else value

    def _normalize_object(self, type_name: str, value: Mapping[str, Any]) -> Any:
        type_scope, name = self._scope.scope_of(type_name)
        if name == _TYPE_WITH_DEFAULTS:
            type_scope, value = load_scope(NATIVE), self._fill_defaults(name, value)
        scope_equality = self if type_scope is self._scope else SemanticEquality(type_scope, self._fill_defaults)
        return scope_equality._normalize_fields(name, value)

    def _normalize_fields(self, name: str, value: Mapping[str, Any]) -> Any:
        field_types = self._scope.fields(name)
        normal_fields = {
            field: normal_child
            for field, child in value.items()
            if (normal_child := self._normalize(field, field_types[field], child) if field in field_types else child)
            is not _ABSENT_VALUE
        }
        return normal_fields if normal_fields or name in _EMPTY_OBJECT_SIGNIFICANT_TYPES else _ABSENT_VALUE


def _normalize_entry(element: Field, value: Any) -> Any:
    """Return a mapping's value in a form for comparison: quantities become numbers; empty strings are kept."""
    return _parse_quantity_or_keep(value) if element.expression == "quantity" else value


def _parse_quantity_or_keep(value: Any) -> Any:
    try:
        return meta.parse_quantity(value)
    except (ValueError, TypeError):
        return value


# Validators of objects, lists and mappings, compiled once from the field tables.
#
# A visitor is a function that validates a value. It returns the same object if the value is valid and complete. It
# returns a new object if nulls were removed or defaults added; unchanged parts are shared. Else it returns
# SchemaViolations. So one pass validates and fills in defaults.


_REMOVED_VALUE: Final = object()
_EMPTY_VALUES: Final[Sequence[Any]] = ([], {})
#: Types whose null values in mappings of Kubernetes's own kinds are read as an empty string, as Go does.
_NULLABLE_TEXT_TYPES: Final = frozenset({"string", "bytes"})
#: The type whose valid values are cached, because equal pod templates are frequent.
_CACHED_VISITOR_TYPE: Final = "PodTemplateSpec"
CACHED_VALUES_MAX: Final = 4096
_MARSHAL_WITHOUT_REFERENCES: Final = 2


class SchemaCompiler:
    """Builds the validating functions (visitors) of the types in one TypeScope, each on first use."""

    def __init__(self, scope: TypeScope, compiler_for: "Callable[[TypeScope], SchemaCompiler]") -> None:
        self._scope = scope
        self._compiler_for = compiler_for
        self._visitors: dict[str, ValueVisitor] = {}

    def root_visitor(self, type_name: str) -> "RootVisitor":
        """Return the function that validates whole objects of a kind."""
        return self._compile_object_visitor(type_name)

    def object_visitor(self, type_name: str) -> ValueVisitor:
        """Return the function that validates objects of a type, which may belong to another TypeScope."""
        scope, name = self._scope.scope_of(type_name)
        if scope is not self._scope:
            return self._compiler_for(scope).object_visitor(name)
        if name not in self._visitors:
            visitor: ValueVisitor = self._compile_object_visitor(name)
            self._visitors[name] = _with_cached_results(visitor) if name == _CACHED_VISITOR_TYPE else visitor
        return self._visitors[name]

    def visitor(self, field: Field) -> VisitorOrType:
        """Return the function that validates a field; `str` or `bool` itself if every string or boolean is valid."""
        is_native = self._scope.name == NATIVE
        if field.is_list:
            visitor = _list_visitor(self._element_visitor(field.element), field)
            return _omit_empty_values(visitor) if is_native and _is_omitted_if_empty(field) else visitor
        if field.is_map:
            takes_null = is_native and field.element.expression in _NULLABLE_TEXT_TYPES
            visitor = _map_visitor(self._element_visitor(field.element), field, takes_null=takes_null)
            return _omit_empty_values(visitor) if is_native and _is_omitted_if_empty(field) else visitor
        if field.is_object:
            return self.object_visitor(field.expression)
        return scalar_visitor(field.expression, field.constraints)

    def _element_visitor(self, field: Field) -> ValueVisitor:
        """Return the function that validates a list item or mapping value; never `str` or `bool` as in `visitor()`."""
        visitor = self.visitor(field)
        if not isinstance(visitor, type):
            return visitor
        expected_type = visitor

        def visit(value: Any) -> Any:
            return value if type(value) is expected_type else string_or_boolean_violation(expected_type, value)

        return visit

    def _compile_object_visitor(self, type_name: str) -> "RootVisitor":
        fields = self._scope.fields(type_name)
        visitors: dict[str, VisitorOrType] = {}
        for name, field in fields.items():
            visitors[name] = self._lazy_visitor(visitors, name, field) if field.object_type else self.visitor(field)
        required_descriptions = {
            name: describe_field_values(field, self._scope) for name, field in fields.items() if field.required
        }
        defaults = {name: each.constraints["default"] for name, each in fields.items() if "default" in each.constraints}
        nullable_names = frozenset(name for name, field in fields.items() if field.constraints.get("nullable"))
        full_name = f"{NATIVE_PREFIX}{type_name}" if self._scope.name == NATIVE else f"{self._scope.name}/{type_name}"
        visitor = _object_visitor(
            visitors, _Completion(full_name, visitors, required_descriptions, defaults, nullable_names)
        )
        compute_defaults = COMPUTED_DEFAULTS.get(type_name) if self._scope.name == NATIVE else None
        return visitor if compute_defaults is None else _with_computed_defaults(visitor, compute_defaults)

    def _lazy_visitor(self, visitors: dict[str, VisitorOrType], name: str, field: Field) -> ValueVisitor:
        """Return a function that builds the field's validating function on its first call, and stores and calls it."""

        def visit(value: Any) -> Any:
            visitor = visitors[name] = self.visitor(field)
            assert not isinstance(visitor, type)
            return visitor(value)

        return visit


@dataclass(frozen=True, slots=True)
class _Completion:
    """The less frequent steps of validating an object: collects violations of its fields, or adds default values."""

    type_name: str
    visitors: Mapping[str, VisitorOrType]
    required_fields: Mapping[str, str]
    """The required fields, each with a description of its value for error messages."""
    defaults: Mapping[str, Any]
    nullable_fields: frozenset[str]

    def handle_exceptional_field(self, name: str, value: Any) -> Any:
        """Validate a field that is unknown, null, or not the text or boolean that its type requires.

        Return its violations; None for a null that the type allows; `_REMOVED_VALUE` for a field to drop.
        """
        visitor = self.visitors.get(name)
        if visitor is None:
            # client-go writes null for the zero time of embedded metadata, and CRDs have no such field.
            if value is None and name == "creationTimestamp":
                return _REMOVED_VALUE
            return SchemaViolations([SchemaViolation((), "unknown field", "", self.type_name, value)])
        if value is None:
            return None if name in self.nullable_fields else _REMOVED_VALUE
        assert isinstance(visitor, type)
        return string_or_boolean_violation(visitor, value)

    def complete_object(self, value: Mapping[str, Any], changed_fields: Mapping[str, Any]) -> Any:
        """Return an object with default values added, or the violations of its schema.

        `changed_fields` holds, by field name, the validation results that differ from the fields in `value`: a new
        value, violations, or `_REMOVED_VALUE`.
        """
        violations, new = SchemaViolations(), {**value, **changed_fields}
        for name, result in changed_fields.items():
            if result is _REMOVED_VALUE:
                del new[name]
            elif type(result) is SchemaViolations:
                violations += result.with_prefix(name)
        if not new.keys() >= self.required_fields.keys():
            violations += self._missing_field_violations(new)
        if violations:
            return violations
        for name, default in self.defaults.items():
            if name not in new:
                new[name] = self._complete_default(name, default)
        return new

    def _missing_field_violations(self, fields: Mapping[str, Any]) -> SchemaViolations:
        missing_names = [name for name in self.required_fields if name not in fields and name not in self.defaults]
        return SchemaViolations(
            SchemaViolation((name,), "Required value", f"set the field to {self.required_fields[name]}")
            for name in missing_names
        )

    def _complete_default(self, name: str, default: Any) -> Any:
        visitor = self.visitors[name]
        if not isinstance(visitor, type):
            default = visitor(default)
            assert type(default) is not SchemaViolations
        return default


class RootVisitor(Protocol):
    """A function that validates whole objects, and can skip the parts that an earlier validated object shares."""

    def __call__(self, value: Any, valid_obj: Mapping[str, Any] | None = None) -> Any:
        """Return the object with defaults, or its SchemaViolations; skip fields that are identical in `valid_obj`."""


def _object_visitor(visitors: Mapping[str, VisitorOrType], completion: _Completion) -> RootVisitor:
    expected_names = frozenset(completion.required_fields) | frozenset(completion.defaults)
    find_visitor, handle_exceptional_field = visitors.get, completion.handle_exceptional_field

    def visit(value: Any, valid_obj: Mapping[str, Any] | None = None) -> Any:
        if type(value) is not dict:
            return _not_an_object_violations(value, visitors)
        changed_fields: dict[str, Any] | None = None
        for name, child in value.items():
            visitor = find_visitor(name)
            if type(child) is visitor or (valid_obj is not None and child is not None and valid_obj.get(name) is child):
                continue
            if visitor is None or child is None or visitor is str or visitor is bool:
                result = handle_exceptional_field(name, child)
            else:
                result = visitor(child)
                if result is child:
                    continue
            if changed_fields is None:
                changed_fields = {}
            changed_fields[name] = result
        if changed_fields is None and value.keys() >= expected_names:
            return value
        return completion.complete_object(value, changed_fields or {})

    return visit


def _with_computed_defaults(visitor: RootVisitor, compute_defaults: DefaultsComputer) -> RootVisitor:
    def visit(value: Any, valid_obj: Mapping[str, Any] | None = None) -> Any:
        result = visitor(value, valid_obj)
        if type(result) is SchemaViolations:
            return result
        computed_fields = compute_defaults(result)
        return {**result, **computed_fields} if computed_fields else result

    return visit


def _not_an_object_violations(value: Any, visitors: Mapping[str, VisitorOrType]) -> SchemaViolations:
    names = ", ".join(list(visitors)[:6]) + (", ..." if len(visitors) > 6 else "")
    remedy = "write its fields below the name" + (", without '- '" if isinstance(value, list) else "")
    return wrong_type_violation(value, f"an object (fields: {names})", remedy)


def _list_visitor(visit_item: ValueVisitor, field: Field) -> ValueVisitor:
    constraints = field.constraints
    keys, minimum, maximum = (
        constraints.get("keys"),
        constraints.get("minItems", 0),
        constraints.get("maxItems", 1 << 62),
    )
    must_items_be_distinct = bool(keys) or constraints.get("set", False)

    def visit(value: Any) -> Any:
        if type(value) is not list:
            return wrong_type_violation(value, "a list", "write one item on each line, starting with '- '")
        changed_items: dict[int, Any] | None = None
        has_violations = not minimum <= len(value) <= maximum
        for index, item in enumerate(value):
            result = visit_item(item)
            if result is not item:
                changed_items = changed_items or {}
                changed_items[index] = result
                has_violations = has_violations or type(result) is SchemaViolations
        new = value if changed_items is None else [changed_items.get(index, item) for index, item in enumerate(value)]
        if not has_violations and (not must_items_be_distinct or len(new) < 2 or _are_items_distinct(new, keys)):
            return new
        return _list_violations(new, field) or new

    return visit


def _are_items_distinct(items: list[Any], key_fields: list[str] | None) -> bool:
    if key_fields is None:
        item_identities = set(items)
    elif len(key_fields) == 1:
        key = key_fields[0]
        item_identities = {item.get(key) for item in items}
    else:
        item_identities = {tuple([item.get(key) for key in key_fields]) for item in items}
    return len(item_identities) == len(items)


def _list_violations(items: list[Any], field: Field) -> SchemaViolations:
    violations, constraints = SchemaViolations(), field.constraints
    for index, item in enumerate(items):
        if type(item) is SchemaViolations:
            violations += item.with_prefix(index)
    if len(items) < constraints.get("minItems", 0):
        requirement = f"must have at least {_count_items(constraints['minItems'])}"
        violations += (
            single_violation(f"Invalid value: {requirement}", "add the missing items")
            if items
            else single_violation("Required value", f"the list {requirement}")
        )
    if len(items) > constraints.get("maxItems", len(items)):
        maximum = constraints["maxItems"]
        problem = f"Too many: {len(items)}: must have at most {_count_items(maximum)}"
        violations += single_violation(problem, f"remove {_count_items(len(items) - maximum)}")
    if "keys" in constraints or constraints.get("set"):
        violations += _duplicate_violations(items, constraints.get("keys"))
    return violations


def _count_items(count: int) -> str:
    return "1 item" if count == 1 else f"{count} items"


def _duplicate_violations(items: list[Any], key_fields: list[str] | None) -> SchemaViolations:
    violations, seen_identities = SchemaViolations(), set[Any]()
    for index, item in enumerate(items):
        if type(item) is SchemaViolations:
            continue
        identity = item if key_fields is None else tuple(item.get(key) for key in key_fields)
        if identity in seen_identities:
            problem = f"Duplicate value: {_item_identity_text(item, key_fields)}"
            violations.append(SchemaViolation((index,), problem, "remove or rename one of them"))
        seen_identities.add(identity)
    return violations


def _item_identity_text(item: Any, key_fields: list[str] | None) -> str:
    if key_fields is None:
        return format_value(item)
    return ", ".join(f"{key} {format_value(item.get(key))}" for key in key_fields)


def _map_visitor(visit_value: ValueVisitor, field: Field, *, takes_null: bool) -> ValueVisitor:
    maximum = field.constraints.get("maxProperties", 1 << 62)

    def visit(value: Any) -> Any:
        if type(value) is not dict:
            return wrong_type_violation(value, "an object", "write `name: value` pairs below the name")
        changes: dict[Any, Any] | None = None
        for name, child in value.items():
            result = visit_value(child)
            if result is not child or type(name) is not str:
                if takes_null and child is None:
                    result = ""
                changes = changes or {}
                changes[name] = result if type(name) is str else wrong_type_violation(name, "a string as its name")
        if changes is None and len(value) <= maximum:
            return value
        return _map_violations(value, changes or {}, field) or {**value, **(changes or {})}

    return visit


def _map_violations(value: Mapping[str, Any], changed_values: Mapping[Any, Any], field: Field) -> SchemaViolations:
    violations, constraints = SchemaViolations(), field.constraints
    for name, result in changed_values.items():
        if type(result) is SchemaViolations:
            violations += result.with_prefix(MapKey(name))
    if len(value) > constraints.get("maxProperties", len(value)):
        maximum = constraints["maxProperties"]
        problem = f"Too many: {len(value)}: must have at most {_count_items(maximum)}"
        violations += single_violation(problem, f"remove {_count_items(len(value) - maximum)}")
    return violations


def _is_omitted_if_empty(field: Field) -> bool:
    """Return whether Go omits an empty list or mapping in this field: the field is optional and not `managedFields`."""
    return not field.required and field.element.expression != "ManagedFieldsEntry"


def _omit_empty_values(visit: ValueVisitor) -> ValueVisitor:
    def visit_filled(value: Any) -> Any:
        return _REMOVED_VALUE if not value and value in _EMPTY_VALUES else visit(value)

    return visit_filled


def _with_cached_results(visit: ValueVisitor) -> ValueVisitor:
    cache: dict[bytes, Any] = {}

    def visit_once(value: Any) -> Any:
        try:
            cache_key = marshal.dumps(value, _MARSHAL_WITHOUT_REFERENCES)
        except ValueError:
            return visit(value)
        cached_result = cache.get(cache_key)
        if cached_result is not None:
            return cached_result
        result = visit(value)
        if type(result) is not SchemaViolations:
            if len(cache) >= CACHED_VALUES_MAX:
                cache.clear()
            cache[cache_key] = result
        return result

    return visit_once


def describe_field_values(field: Field, scope: TypeScope) -> str:
    """Describe the values that a field accepts, such as `a list of strings` or `an object with name`."""
    if field.is_list:
        return f"a list of {_plural_description(describe_field_values(field.element, scope))}"
    if field.is_map:
        return f"a mapping from names to {_plural_description(describe_field_values(field.element, scope))}"
    if not field.is_object:
        return " or ".join(field.constraints.get("enum", ())) or TYPE_DESCRIPTIONS[field.expression]
    type_scope, name = scope.scope_of(field.expression)
    required_names = [name for name, inner in type_scope.fields(name).items() if inner.required]
    return f"an object with {', '.join(required_names)}" if required_names else "an object"


def _plural_description(description: str) -> str:
    noun, space, other_words = description.removeprefix("an ").removeprefix("a ").partition(" ")
    return f"{noun[:-1]}ies{space}{other_words}" if noun.endswith("y") else f"{noun}s{space}{other_words}"


_REMEDIES_MAX: Final = 100


class SchemaResult(NamedTuple):
    """The result of validation against a schema: the object with defaults (None if there are errors) and the errors."""

    obj: dict[str, Any] | None
    faults: list[FieldError]


def validate_and_default(served_kind: ServedKind, version: str, obj: Obj, valid_obj: Obj | None = None) -> SchemaResult:
    """Validate an object in a version of its kind, and fill in the defaults of the schema, in one pass.

    Nulls are removed where the schema does not allow them. Returns the same object if nothing changes; unchanged parts
    are shared. The returned object may share pod templates with other objects: objects are never changed in place.
    Parts that are identical (the same Python objects) to parts of `valid_obj`, an object already validated in this
    version, are not validated again.
    """
    result = _root_visitor(served_kind.constant, version)(obj, valid_obj)
    if type(result) is not SchemaViolations:
        return SchemaResult(result, []) if "metadata" in result else SchemaResult(None, [_MISSING_METADATA])
    errors = _field_errors(result, load_scope_for_kind(served_kind, version), served_kind.kind)
    return SchemaResult(None, errors if obj.get("metadata") is not None else [*errors, _MISSING_METADATA])


def validate(kind_or_type: ServedKind | str, obj: Mapping[str, Any]) -> list[FieldError]:
    """Return all structural errors of an object, in the version of its `apiVersion` or else the storage version.

    If `kind_or_type` is the name of a Kubernetes type, such as `PodTemplateSpec`, `obj` is validated as that type.
    """
    if isinstance(kind_or_type, ServedKind):
        return validate_and_default(kind_or_type, _version_of(kind_or_type, obj), obj).faults
    result = _compiler(load_scope(NATIVE)).object_visitor(kind_or_type)(obj)
    return _field_errors(result, load_scope(NATIVE), kind_or_type) if type(result) is SchemaViolations else []


def with_defaults(served_kind: ServedKind, obj: Obj) -> dict[str, Any]:
    """Return the object with the defaults of its schema and without disallowed nulls; raise InvalidObject on errors."""
    result = validate_and_default(served_kind, _version_of(served_kind, obj), obj)
    if result.obj is None:
        raise InvalidObject(result.faults)
    return result.obj


def fill_defaults(type_name: str, value: Any) -> Any:
    """Return a value of a Kubernetes type such as PodSpec with the defaults of its schema; unchanged if invalid."""
    result = _compiler(load_scope(NATIVE)).object_visitor(type_name)(value)
    return value if type(result) is SchemaViolations else result


@cache
def semantic_equality(kind: str) -> SemanticEquality:
    """Return the SemanticEquality for values from objects of a kind, by the schema of its storage version."""
    served_kind = kind_info(kind)
    return SemanticEquality(load_scope_for_kind(served_kind, served_kind.storage_version), fill_defaults)


_MISSING_METADATA = FieldError("metadata", "Required value", "add metadata with a name to the object")


def _version_of(served_kind: ServedKind, obj: Obj) -> str:
    return served_kind.version_of(str(obj.get("apiVersion"))) or served_kind.storage_version


@cache
def _root_visitor(constant: str, version: str) -> RootVisitor:
    served_kind = kind_info(constant)
    return _compiler(load_scope_for_kind(served_kind, version)).root_visitor(served_kind.kind)


@cache
def _compiler(type_scope: TypeScope) -> SchemaCompiler:
    return SchemaCompiler(type_scope, _compiler)


def _field_errors(violations: SchemaViolations, type_scope: TypeScope, kind: str) -> list[FieldError]:
    """Convert schema violations to FieldErrors; only the first 100 get a remedy, because finding remedies is slow."""
    with_remedies = [
        FieldError(format_path(violation.path), violation.problem, _violation_remedy(violation, type_scope, kind))
        for violation in violations[:_REMEDIES_MAX]
    ]
    return [
        *with_remedies,
        *(FieldError(format_path(violation.path), violation.problem) for violation in violations[_REMEDIES_MAX:]),
    ]


def _violation_remedy(violation: SchemaViolation, type_scope: TypeScope, kind: str) -> str:
    return unknown_field_remedy(type_scope, kind, violation) if violation.owner else violation.remedy
