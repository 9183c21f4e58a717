"""Validation rules of schemas in the Common Expression Language: `x-kubernetes-validations`.

The rules of a kind are compiled when an object is first checked. A transition rule (with `oldSelf`) runs only if an old
value exists and can be correlated: in fields, maps, and lists with keys. With `optionalOldSelf` it always runs.
Source: k8s.io/apiextensions-apiserver, pkg/apiserver/schema/cel/validation.go.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Final, NamedTuple

from batchyard.api.errors import FieldError
from batchyard.api.validation.rules import format_json
from batchyard.apiserver.cel_library import (
    BUDGET_EXCEEDED,
    RESERVED_WORDS,
    RuleBudget,
    evaluate_program,
    input_size,
    iteration_depth,
    new_environment,
)
from batchyard.apiserver.crd.values import (
    LIST_TYPE,
    MAP_KEYS,
    MAP_TYPE,
    PRESERVE_UNKNOWN_FIELDS,
    VALIDATION_RULES,
    Schema,
    additional_properties_schema,
    items_schema,
    list_item_identity,
    properties,
    uses_keyword,
)

# Compilation and evaluation of CEL expressions in rules of CustomResourceDefinitions.
#
# Sources: k8s.io/apiserver, pkg/cel/library, and k8s.io/apiextensions-apiserver, pkg/apiserver/schema/cel.


#: Kubernetes functions that are not implemented: a rule that calls one is accepted but not checked. `all`, `exists` and
#: `existsOne` are undeclared only with two variables.
UNIMPLEMENTED_FUNCTIONS: Final = frozenset(
    {
        *("authorizer", "format", "sortBy", "unwrap", "unwrapOpt"),
        *("all", "exists", "existsOne", "transformList", "transformMap", "transformMapEntry"),
    }
)
_UNKNOWN_FUNCTION: Final = re.compile(r"(?:undeclared reference to|no matching overload for) '([^']*)'")
_ALLOWED_RESULT_TYPES: Final = ("BOOL", "DYN")


class CompiledExpression(NamedTuple):
    """A compiled CEL expression, and whether it uses `oldSelf`."""

    program: Any
    #: Whether it uses `oldSelf`.
    uses_old_self: bool


class NotCompiled(ValueError):  # noqa: N818 - named after the condition
    """A CEL expression does not compile; `unimplemented_names` lists the unimplemented functions that it uses."""

    def __init__(self, message: str, unimplemented_names: str = "") -> None:
        super().__init__(message)
        self.unimplemented_names = unimplemented_names


def compile_cel_rule(text: str, *, is_old_self_optional: bool) -> CompiledExpression:
    """Compile a CEL validation rule. Raises NotCompiled if it is invalid or cannot evaluate to a bool.

    If `is_old_self_optional`, `oldSelf` is an optional value, as `optionalOldSelf` requires.
    """
    compiled_rule = compile_expression(text, is_old_self_optional=is_old_self_optional)
    if compiled_rule.program.return_type().name() not in _ALLOWED_RESULT_TYPES:
        raise NotCompiled("must evaluate to a bool")
    return compiled_rule


def compile_expression(text: str, *, is_old_self_optional: bool) -> CompiledExpression:
    """Compile a CEL expression over `self` and `oldSelf`. Raises NotCompiled if it is invalid.

    If `is_old_self_optional`, the program reads `oldSelf` as a list that holds the old value, or is empty without one.
    """
    try:
        return CompiledExpression(_cel_environment(with_old_self=False).compile(text), uses_old_self=False)
    except RuntimeError:
        pass
    environment = _cel_environment(with_old_self=True)
    try:
        program = environment.compile(text)
        if is_old_self_optional:
            program = environment.compile(_bind_optional_old_self(text))
        return CompiledExpression(program, uses_old_self=True)
    except RuntimeError as error:
        unknown_functions = dict.fromkeys(_UNKNOWN_FUNCTION.findall(str(error)))
        unimplemented_names = ", ".join(name for name in unknown_functions if name in UNIMPLEMENTED_FUNCTIONS)
        raise NotCompiled(f"compilation failed: {error}", unimplemented_names) from error


def _bind_optional_old_self(text: str) -> str:
    return f"cel.bind(oldSelf, oldSelf == [] ? optional.none() : optional.of(oldSelf[0]), {text}\n)"


@cache
def _cel_environment(*, with_old_self: bool) -> Any:
    return new_environment("self", "oldSelf") if with_old_self else new_environment("self")


# Conversion of values for CEL: escaped field names, and doubles for numbers.
#
# Source: k8s.io/apiserver, pkg/cel/escaping.go and k8s.io/apiextensions-apiserver, pkg/apiserver/schema/cel/values.go.


_FIELD_NAME_ESCAPES: Final = {"__": "__underscores__", ".": "__dot__", "-": "__dash__", "/": "__slash__"}
_ESCAPED_CHARACTERS: Final = re.compile(r"__|[.\-/]")


def cel_value(value: Any, schema: Schema) -> Any:
    """Convert a value to its CEL form: with escaped names of declared fields, and doubles where the type is `number`.

    Fields that the schema does not declare are left out, except in maps and in objects of unknown structure.
    """
    if not schema:
        return value
    if isinstance(value, Mapping):
        return _cel_object(value, schema)
    if isinstance(value, list):
        item_schema = items_schema(schema)
        return [cel_value(each, item_schema) for each in value]
    if schema.get("type") == "number" and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    return value


def escape_field_name(name: str) -> str:
    """Return a field name as CEL expressions write it, such as `a__dot__b` for `a.b`."""
    if name in RESERVED_WORDS:
        return f"__{name}__"
    return _ESCAPED_CHARACTERS.sub(lambda match: _FIELD_NAME_ESCAPES[match[0]], name)


def _cel_object(value: Mapping[str, Any], schema: Schema) -> dict[str, Any]:
    schemas, additional_schema = properties(schema), additional_properties_schema(schema)
    if additional_schema is not None or (not schemas and schema.get(PRESERVE_UNKNOWN_FIELDS)):
        return {name: cel_value(each, additional_schema or {}) for name, each in value.items()}
    return {escape_field_name(name): cel_value(each, schemas[name]) for name, each in value.items() if name in schemas}


NO_OLD_VALUE: Final = object()
"""Stands for the missing old value of a new object."""


class ValidationRule(NamedTuple):
    """A compiled CEL validation rule and its definition in the schema."""

    definition: Mapping[str, Any]
    program: Any
    uses_old_self: bool
    #: The program of messageExpression; None without one.
    message_program: Any
    #: The maximum nesting of iterations.
    depth: int

    @property
    def runs_without_old_value(self) -> bool:
        """Whether a transition rule also runs without an old value (`optionalOldSelf`)."""
        return _has_optional_old_self(self.definition)


class _BudgetExceeded(Exception):  # noqa: N818 - named after the condition
    """The CEL rules of an object exceed their cost budget; carries the error to report."""


class ValidationRules:
    """The CEL validation rules of a schema and of the schemas nested in it, as far as they compile."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._value_rules = [
            rule for definition in schema.get(VALIDATION_RULES) or () if (rule := _compile_rule(definition)) is not None
        ]
        self._iterates = any(rule.depth for rule in self._value_rules)
        self._field_rules = {
            name: ValidationRules(field_schema)
            for name, field_schema in properties(schema).items()
            if uses_keyword(field_schema, VALIDATION_RULES)
        }
        additional_schema, item_schema = additional_properties_schema(schema), items_schema(schema)
        self._additional_rules = (
            ValidationRules(additional_schema)
            if additional_schema and uses_keyword(additional_schema, VALIDATION_RULES)
            else None
        )
        self._item_rules = ValidationRules(item_schema) if uses_keyword(item_schema, VALIDATION_RULES) else None

    def rule_errors(self, value: Any, old: Any) -> Iterator[FieldError]:
        """Yield the errors that the CEL rules report for an object; `old` is its previous value, or NO_OLD_VALUE."""
        try:
            yield from self._value_errors(value, old, "", RuleBudget())
        except _BudgetExceeded as error:
            yield error.args[0]

    def _value_errors(self, value: Any, old: Any, path: str, budget: RuleBudget) -> Iterator[FieldError]:
        if value is None:
            return
        if self._value_rules:
            yield from self._rule_errors(value, old, path, budget)
        if isinstance(value, Mapping):
            yield from self._field_errors(value, old, path, budget)
        elif isinstance(value, list) and self._item_rules is not None:
            old_items = self._old_items_by_key(old)
            keys: Sequence[str] = self._schema.get(MAP_KEYS) or ()
            for i, each in enumerate(value):
                old_item = (
                    old_items.get(list_item_identity(each, keys, items_schema(self._schema)), NO_OLD_VALUE)
                    if old_items
                    else NO_OLD_VALUE
                )
                yield from self._item_rules._value_errors(each, old_item, f"{path}[{i}]", budget)

    def _field_errors(self, value: Mapping[str, Any], old: Any, path: str, budget: RuleBudget) -> Iterator[FieldError]:
        is_correlated = isinstance(old, Mapping) and self._schema.get(MAP_TYPE) != "atomic"
        for name, each in value.items():
            rules = self._field_rules.get(name, self._additional_rules)
            if rules is not None:
                old_field = old.get(name, NO_OLD_VALUE) if is_correlated else NO_OLD_VALUE
                yield from rules._value_errors(each, old_field, f"{path}.{name}" if path else name, budget)

    def _old_items_by_key(self, old: Any) -> dict[Any, Any]:
        if self._schema.get(LIST_TYPE) != "map" or not isinstance(old, list):
            return {}
        return {
            list_item_identity(each, self._schema.get(MAP_KEYS) or (), items_schema(self._schema)): each for each in old
        }

    def _rule_errors(self, value: Any, old: Any, path: str, budget: RuleBudget) -> Iterator[FieldError]:
        new_value, old_value = cel_value(value, self._schema), None
        optional_old_value = []
        if old is not NO_OLD_VALUE:
            old_value = cel_value(old, self._schema)
            optional_old_value = [old_value]
        size = input_size([value, old_value] if self._iterates else None)
        for rule in self._value_rules:
            if not rule.uses_old_self or rule.runs_without_old_value or old is not NO_OLD_VALUE:
                if not budget.spend(rule.depth, size):
                    problem = f"Invalid value: {self._quoted_type()}: {BUDGET_EXCEEDED}"
                    raise _BudgetExceeded(FieldError(path or "<nil>", problem))
                old_self = optional_old_value if rule.runs_without_old_value else old_value
                yield from self._evaluate_rule(rule, {"self": new_value, "oldSelf": old_self}, path)

    def _evaluate_rule(self, rule: ValidationRule, variables: Mapping[str, Any], path: str) -> Iterator[FieldError]:
        result, error = evaluate_program(rule.program, variables)
        if result is True:
            return
        quoted_type, reason = self._quoted_type(), rule.definition.get("reason", "FieldValueInvalid")
        field_path = f"{path}{rule.definition.get('fieldPath', '')}".removeprefix(".") or "<nil>"
        message = _rule_message(rule, variables)
        if error:
            yield FieldError(field_path, f"Invalid value: {quoted_type}: {error} evaluating rule: {message}")
            return
        message_prefix = {
            "FieldValueRequired": "Required value: ",
            "FieldValueForbidden": "Forbidden: ",
            "FieldValueDuplicate": "Duplicate value: ",
        }.get(reason, f"Invalid value: {quoted_type}: ")
        yield FieldError(field_path, message_prefix + message)

    def _quoted_type(self) -> str:
        return format_json(self._schema.get("type", "object"))


def _has_optional_old_self(definition: Mapping[str, Any]) -> bool:
    return bool(definition.get("optionalOldSelf"))


def find_compilation_problems(definition: Mapping[str, Any]) -> tuple[str, str]:
    """Return (compilation error, unimplemented functions used) for a CEL validation rule; ('', '') if it is valid."""
    try:
        compile_cel_rule(definition["rule"], is_old_self_optional=_has_optional_old_self(definition))
        if definition.get("messageExpression"):
            compile_expression(definition["messageExpression"], is_old_self_optional=_has_optional_old_self(definition))
    except NotCompiled as error:
        return ("", error.unimplemented_names) if error.unimplemented_names else (str(error), "")
    return "", ""


def _compile_rule(definition: Mapping[str, Any]) -> ValidationRule | None:
    """Compile a CEL validation rule; return None if that fails, for example if it calls an unimplemented function."""
    try:
        is_optional = _has_optional_old_self(definition)
        cel_rule = compile_cel_rule(definition["rule"], is_old_self_optional=is_optional)
        message_expression, message_program = definition.get("messageExpression"), None
        if message_expression:
            message_program = compile_expression(message_expression, is_old_self_optional=is_optional).program
    except NotCompiled:
        return None
    depth = iteration_depth(definition["rule"])
    return ValidationRule(definition, cel_rule.program, cel_rule.uses_old_self, message_program, depth)


def _rule_message(rule: ValidationRule, variables: Mapping[str, Any]) -> str:
    if rule.message_program is not None:
        evaluated_message, _ = evaluate_program(rule.message_program, variables)
        if isinstance(evaluated_message, str) and evaluated_message.strip() and "\n" not in evaluated_message:
            return evaluated_message.strip()
    default_message: str = rule.definition.get("message") or f"failed rule: {rule.definition['rule'].strip()}"
    return default_message
