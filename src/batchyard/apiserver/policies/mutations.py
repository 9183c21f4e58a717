"""The mutations of MutatingAdmissionPolicies: apply configurations and JSON patches that CEL expressions construct.

Sources: k8s.io/apiserver, pkg/admission/plugin/policy/mutating/patch and pkg/cel/mutation/dynamic/objects.go.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from batchyard.api.meta import Obj
from batchyard.apiserver import field_sets
from batchyard.apiserver.apply import undeclared_paths
from batchyard.apiserver.json_patch import apply_json_patch
from batchyard.apiserver.patch import MergeSchema
from batchyard.apiserver.policies.expressions import (
    OBJECT_TYPE,
    PATCH_TYPE,
    TYPE_KEY,
    CompiledPolicyExpression,
    ExpressionScope,
    PolicyEvaluationError,
    PolicyInput,
)
from batchyard.apiserver.request import StatusError

APPLY_CONFIGURATION: Final = "ApplyConfiguration"
JSON_PATCH: Final = "JSONPatch"
#: The types that the expression of a mutation must have, by patch type.
RESULT_TYPES: Final = {APPLY_CONFIGURATION: (OBJECT_TYPE,), JSON_PATCH: (f"list({PATCH_TYPE})",)}
_PATCH_FIELDS: Final = ("op", "path", "from", "value")


class PolicyMutation(NamedTuple):
    """A compiled mutation of a policy: an apply configuration, or else a JSON patch."""

    expression: CompiledPolicyExpression
    is_apply: bool


def compile_mutation(mutation: Mapping[str, Any], scope: ExpressionScope) -> PolicyMutation:
    """Compile an item of `mutations`; errors are part of the compiled expression."""
    is_apply = mutation["patchType"] == APPLY_CONFIGURATION
    definition = mutation["applyConfiguration" if is_apply else "jsonPatch"]
    result_types = RESULT_TYPES[mutation["patchType"]]
    return PolicyMutation(scope.compile(definition["expression"], result_types, with_patch_types=True), is_apply)


def mutate_object(
    mutation: PolicyMutation, scope: ExpressionScope, policy_input: PolicyInput, obj: Obj, schema: MergeSchema
) -> Obj:
    """Return an object after a mutation. Raises ValueError if the expression or the change is invalid."""
    if mutation.expression.error:
        raise PolicyEvaluationError(mutation.expression.error)
    value = scope.evaluate(mutation.expression, policy_input)
    if not mutation.is_apply:
        return _apply_patch(obj, value)
    if not isinstance(value, Mapping) or TYPE_KEY not in value:
        raise ValueError(f"unsupported return type from ApplyConfiguration expression: {type(value).__name__}")
    _check_types(value, OBJECT_TYPE)
    return _apply_config(obj, _plain_value(value), schema)


def _check_types(value: Any, root_type: str) -> None:
    problems = list(_type_problems(value, root_type))
    if problems:
        raise ValueError("type mismatch: " + "\n".join(problems))


def _type_problems(value: Any, expected_type: str) -> Iterator[str]:
    """Yield the problems of object literals whose type differs from the path of the fields that contain them."""
    if isinstance(value, Mapping):
        type_name = value.get(TYPE_KEY)
        if type_name is not None and type_name != expected_type:
            expected = f'expected "{expected_type}", which matches field name path from root Object type'
            yield f'unexpected type name "{type_name}", {expected}'
        for name, child in value.items():
            if name != TYPE_KEY:
                yield from _type_problems(child, expected_type if type_name is None else f"{type_name}.{name}")
    elif isinstance(value, list):
        for item in value:
            yield from _type_problems(item, expected_type)


def _plain_value(value: Any) -> Any:
    """Return a value without the names of types in its object literals."""
    if isinstance(value, Mapping):
        return {name: _plain_value(child) for name, child in value.items() if name != TYPE_KEY}
    return [_plain_value(item) for item in value] if isinstance(value, list) else value


def _apply_config(obj: Obj, config: Mapping[str, Any], schema: MergeSchema) -> Obj:
    whole_config = {**config, "apiVersion": obj["apiVersion"], "kind": obj["kind"]}
    try:
        undeclared = [f"{path}: field not declared in schema" for path in undeclared_paths(whole_config, schema, "")]
        key_error = ""
    except StatusError as error:
        undeclared, key_error = [], str(error)
    if undeclared:
        text = undeclared[0] if len(undeclared) == 1 else "errors:\n" + "\n".join(f"  {line}" for line in undeclared)
        raise ValueError(f"error applying patch: failed to convert patch object to typed object: {text}")
    atomic_paths = ", ".join(_atomic_paths(whole_config, schema, ""))
    if atomic_paths:
        problem = f"may not mutate atomic arrays, maps or structs: {atomic_paths}"
        raise ValueError(f"error applying patch: invalid ApplyConfiguration: {problem}")
    if key_error:
        raise ValueError(f"error applying patch: failed to convert patch object to typed object: {key_error}")
    try:
        merged: Obj = field_sets.merge_applied(obj, whole_config, schema)
    except StatusError as error:
        raise ValueError(f"error applying patch: failed to merge patch: {error}") from error
    return merged


def _atomic_paths(value: Any, schema: MergeSchema, path: str) -> Iterator[str]:
    """Yield the paths of mappings and lists that have one owner as a whole, which a policy must not replace."""
    if isinstance(value, Mapping):
        if schema.is_atomic:
            yield path
        for name, child in value.items():
            if schema.allows_field(name):
                yield from _atomic_paths(child, schema.field_schema(name), f"{path}.{name}")
    elif isinstance(value, list):
        if schema.keys is None:
            yield path
        for index, item in enumerate(value):
            yield from _atomic_paths(item, schema.item_schema, f"{path}[{index}]")


def _apply_patch(obj: Obj, operations: Any) -> Obj:
    if not isinstance(operations, list) or not all(isinstance(each, Mapping) for each in operations):
        raise ValueError("type mismatch: JSONPatchType.expression should evaluate to array of JSONPatch")
    patch = [_patch_operation(each) for each in operations]
    try:
        patched: Obj = apply_json_patch(obj, patch)
    except StatusError as error:
        problem = str(error.__cause__ or error)
        if problem.endswith("test failed"):
            return obj
        raise ValueError(f"JSON Patch: {problem}") from error
    return patched


def _patch_operation(operation: Mapping[str, Any]) -> dict[str, Any]:
    if operation.get(TYPE_KEY) != PATCH_TYPE:
        raise ValueError("type mismatch: JSONPatchType.expression should evaluate to array of JSONPatch")
    fields = {field: operation[field] for field in _PATCH_FIELDS if field in operation}
    if isinstance(fields.get("value"), Mapping) and TYPE_KEY in fields["value"]:
        _check_types(fields["value"], fields["value"][TYPE_KEY])
    return {"path": "", **fields, **({"value": _plain_value(fields["value"])} if "value" in fields else {})}
