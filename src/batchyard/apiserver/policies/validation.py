"""Validation of admission policies and their bindings, including the compilation of their CEL expressions.

Source: Kubernetes's pkg/apis/admissionregistration/validation/validation.go.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import msgspec

from batchyard.api.errors import FieldError
from batchyard.api.validation import rules
from batchyard.api.validation.policies import admission_rule_errors, match_condition_errors
from batchyard.api.validation.rules import duplicate, forbidden, required, unsupported
from batchyard.apiserver.cel_library import RESERVED_WORDS
from batchyard.apiserver.policies.expressions import ExpressionScope
from batchyard.apiserver.policies.mutations import APPLY_CONFIGURATION, JSON_PATCH, RESULT_TYPES

_MUTATING_OPERATIONS: Final = ("*", "CONNECT", "CREATE", "UPDATE")
_REASONS: Final = ("Forbidden", "Invalid", "RequestEntityTooLarge")
_ACTIONS: Final = ("Audit", "Deny", "Warn")
_REINVOCATION_POLICIES: Final = ("IfNeeded", "Never")
_NOT_FOUND_ACTIONS: Final = ("Deny", "Allow")
_AUDIT_ANNOTATIONS_MAX: Final = 20
_VALUE_EXPRESSION_BYTES_MAX: Final = 5 * 1024
_IDENTIFIER: Final = re.compile(r"[_a-zA-Z][_a-zA-Z0-9]*")
_NEWLINES: Final = re.compile(r"[\n\r]")
_BOTH_ACTIONS: Final = (
    "must not contain both Deny and Warn (repeating the same validation failure information in the API response and "
    "headers serves no purpose)"
)
_NO_ITEMS: Final = "validations or auditAnnotations must contain at least one item"


def policy_errors(obj: Mapping[str, Any]) -> list[FieldError]:
    """Return the errors in the spec of an admission policy or of a binding."""
    find_errors: Mapping[str, Callable[[Mapping[str, Any]], Iterator[FieldError]]] = {
        "ValidatingAdmissionPolicy": _validating_policy_errors,
        "MutatingAdmissionPolicy": _mutating_policy_errors,
        "ValidatingAdmissionPolicyBinding": _validating_binding_errors,
        "MutatingAdmissionPolicyBinding": _mutating_binding_errors,
    }
    return list(find_errors[obj["kind"]](obj))


def _invalid(path: str, value: Any, message: str) -> FieldError:
    """Return the error for an invalid value, which is shown in full, so that positions in expressions fit it."""
    return FieldError(path, f"Invalid value: {msgspec.json.encode(value).decode()}: {message}")


def _validating_policy_errors(policy: Mapping[str, Any]) -> Iterator[FieldError]:
    spec = policy["spec"]
    scope = ExpressionScope(None, has_params=spec.get("paramKind") is not None)
    yield from _common_errors(spec)
    yield from _variable_errors(spec, scope)
    validations, annotations = spec.get("validations") or (), spec.get("auditAnnotations") or ()
    if not validations and not annotations:
        yield required("spec.validations", _NO_ITEMS, "")
        yield required("spec.auditAnnotations", _NO_ITEMS, "")
    for index, validation in enumerate(validations):
        yield from _validation_errors(validation, scope, f"spec.validations[{index}]")
    if len(annotations) > _AUDIT_ANNOTATIONS_MAX:
        message = f"must not have more than {_AUDIT_ANNOTATIONS_MAX} auditAnnotations"
        yield _invalid("spec.auditAnnotations", annotations, message)
    repeated_indexes = rules.repeated_indexes([each.get("key", "") for each in annotations])
    for index, annotation in enumerate(annotations):
        path = f"spec.auditAnnotations[{index}]"
        yield from _annotation_errors(annotation, policy["metadata"].get("name", ""), scope, path)
        if index in repeated_indexes:
            yield duplicate(f"{path}.key", annotation.get("key", ""), "")


def _mutating_policy_errors(policy: Mapping[str, Any]) -> Iterator[FieldError]:
    spec = policy["spec"]
    scope = ExpressionScope(None, has_params=spec.get("paramKind") is not None)
    yield from _common_errors(spec, is_mutating=True)
    yield from _variable_errors(spec, scope)
    mutations = spec.get("mutations") or ()
    if not mutations:
        yield required("spec.mutations", "mutations must contain at least one item", "")
    for index, mutation in enumerate(mutations):
        yield from _mutation_errors(mutation, scope, f"spec.mutations[{index}]")
    reinvocation_policy = spec.get("reinvocationPolicy")
    if not reinvocation_policy:
        yield required("spec.reinvocationPolicy", "", "")
    elif reinvocation_policy not in _REINVOCATION_POLICIES:
        yield unsupported("spec.reinvocationPolicy", reinvocation_policy, _REINVOCATION_POLICIES)


def _common_errors(spec: Mapping[str, Any], *, is_mutating: bool = False) -> Iterator[FieldError]:
    """Yield the errors in the fields that both kinds of policies have, except variables."""
    param_kind, constraints = spec.get("paramKind"), spec.get("matchConstraints")
    if param_kind is not None:
        yield from _param_kind_errors(param_kind, "spec.paramKind")
    if constraints is None:
        yield required("spec.matchConstraints", "", "")
    else:
        yield from _match_errors(constraints, "spec.matchConstraints")
        if not constraints.get("resourceRules"):
            yield required("spec.matchConstraints.resourceRules", "", "")
        if is_mutating:
            yield from _mutating_operation_errors(constraints, "spec.matchConstraints")
    # Match conditions cannot read variables.
    scope = ExpressionScope(None, has_params=param_kind is not None)

    def find_expression_errors(expression: str, path: str) -> Iterator[FieldError]:
        if error := scope.compile(expression, ("bool",)).error:
            yield _invalid(path, expression, error)

    yield from match_condition_errors(spec.get("matchConditions") or (), "spec.matchConditions", find_expression_errors)


def _param_kind_errors(param_kind: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    api_version, kind = param_kind.get("apiVersion") or "", param_kind.get("kind") or ""
    group, _, version = api_version.rpartition("/")
    if not api_version:
        yield required(f"{path}.apiVersion", "", "")
    elif "/" in group:
        yield _invalid(f"{path}.apiVersion", api_version, f"unexpected GroupVersion string: {api_version}")
    else:
        if group and (messages := rules.dns_subdomain_errors(group)):
            yield _invalid(f"{path}.apiVersion", group, ",".join(messages))
        if not version:
            yield _invalid(f"{path}.apiVersion", api_version, "version must be specified")
        elif messages := rules.dns1035_label_errors(version):
            yield _invalid(f"{path}.apiVersion", version, ",".join(messages))
    if not kind:
        yield required(f"{path}.kind", "", "")
    elif messages := rules.dns1035_label_errors(kind.lower()):
        message = f"may have mixed case, but should otherwise match: {','.join(messages)}"
        yield _invalid(f"{path}.kind", kind, message)


def _match_errors(criteria: Mapping[str, Any] | None, path: str) -> Iterator[FieldError]:
    if criteria is None:
        return
    for field in ("namespaceSelector", "objectSelector"):
        yield from rules.selector_errors(criteria.get(field), f"{path}.{field}")
    for field in ("resourceRules", "excludeResourceRules"):
        for index, rule in enumerate(criteria.get(field) or ()):
            yield from _rule_errors(rule, f"{path}.{field}[{index}]")


def _rule_errors(rule: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    names = rule.get("resourceNames") or ()
    repeated_indexes = rules.repeated_indexes(names)
    for index, name in enumerate(names):
        for message in rules.path_segment_errors(name):
            yield _invalid(f"{path}.resourceNames[{index}]", name, message)
        if index in repeated_indexes:
            yield duplicate(f"{path}.resourceNames[{index}]", name, "")
    yield from admission_rule_errors(rule, path)


def _variable_errors(spec: Mapping[str, Any], scope: ExpressionScope) -> Iterator[FieldError]:
    for index, variable in enumerate(spec.get("variables") or ()):
        path, name, expression = (
            f"spec.variables[{index}]",
            variable.get("name") or "",
            variable.get("expression") or "",
        )
        if not name.strip():
            yield required(f"{path}.name", "name is not specified", "")
        elif _IDENTIFIER.fullmatch(name) is None or name in RESERVED_WORDS:
            yield _invalid(f"{path}.name", name, "must be a valid CEL identifier")
        if not expression.strip():
            yield required(f"{path}.expression", "expression is not specified", "")
        elif error := scope.add_variable(name, expression):
            yield _invalid(f"{path}.expression", expression, error)


def _validation_errors(validation: Mapping[str, Any], scope: ExpressionScope, path: str) -> Iterator[FieldError]:
    expression, message = validation.get("expression") or "", validation.get("message") or ""
    message_expression = validation.get("messageExpression") or ""
    if not expression.strip():
        yield required(f"{path}.expression", "expression is not specified", "")
    elif error := scope.compile(expression, ("bool",)).error:
        yield _invalid(f"{path}.expression", expression, error)
    if message_expression and not message_expression.strip():
        yield _invalid(f"{path}.messageExpression", message_expression, "must be non-empty if specified")
    elif message_expression and (error := scope.compile(message_expression, ("string",), with_authorizer=False).error):
        yield _invalid(f"{path}.messageExpression", message_expression, error)
    if message and not message.strip():
        yield _invalid(f"{path}.message", message, "must be non-empty if specified")
    elif _NEWLINES.search(message.strip()):
        yield _invalid(f"{path}.message", message, "must not contain line breaks")
    if (reason := validation.get("reason")) is not None and reason not in _REASONS:
        yield unsupported(f"{path}.reason", reason, _REASONS)


def _annotation_errors(
    annotation: Mapping[str, Any], policy_name: str, scope: ExpressionScope, path: str
) -> Iterator[FieldError]:
    key, expression = annotation.get("key") or "", str(annotation.get("valueExpression") or "")
    if not policy_name:
        yield _invalid(f"{path}.key", key, "requires metadata.name be non-empty")
    for message in rules.qualified_name_errors(f"{policy_name}/{key}") if policy_name else ():
        yield _invalid(f"{path}.key", f"{policy_name}/{key}", message)
    if not expression.strip():
        yield required(f"{path}.valueExpression", "valueExpression is not specified", "")
    elif len(expression.strip().encode()) > _VALUE_EXPRESSION_BYTES_MAX:
        yield required(f"{path}.valueExpression", f"must not exceed {_VALUE_EXPRESSION_BYTES_MAX} bytes in length", "")
    elif error := scope.compile(expression.strip(), ("string", "null_type")).error:
        yield _invalid(f"{path}.valueExpression", expression, error)


def _mutation_errors(mutation: Mapping[str, Any], scope: ExpressionScope, path: str) -> Iterator[FieldError]:
    patch_type = mutation.get("patchType")
    if not patch_type:
        yield required(f"{path}.patchType", "", "")
        return
    if patch_type not in RESULT_TYPES:
        yield unsupported(f"{path}.patchType", patch_type, tuple(RESULT_TYPES))
        return
    fields = {APPLY_CONFIGURATION: "applyConfiguration", JSON_PATCH: "jsonPatch"}
    field = fields.pop(patch_type)
    (other_field,) = fields.values()
    definition = mutation.get(field)
    if definition is None:
        yield required(f"{path}.{field}", f"must be specified when patchType is {patch_type}", "")
    else:
        expression = str(definition.get("expression") or "").strip()
        if not expression:
            yield required(f"{path}.{field}.expression", "", "")
        elif error := scope.compile(expression, RESULT_TYPES[patch_type], with_patch_types=True).error:
            yield _invalid(f"{path}.{field}.expression", expression, error)
    if mutation.get(other_field) is not None:
        message = f"must not be specified when patchType is {patch_type}"
        yield _invalid(f"{path}.{other_field}", f"{{{other_field}}}", message)


def _mutating_operation_errors(criteria: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    for rule in criteria.get("resourceRules") or ():
        for operation in rule.get("operations") or ():
            if operation not in _MUTATING_OPERATIONS:
                yield unsupported(f"{path}.resourceRules.operations", operation, _MUTATING_OPERATIONS)


def _validating_binding_errors(binding: Mapping[str, Any]) -> Iterator[FieldError]:
    yield from _binding_errors(binding["spec"])
    path, actions = "spec.validationActions", binding["spec"].get("validationActions") or ()
    repeated_indexes = rules.repeated_indexes(actions)
    for index, action in enumerate(actions):
        if action not in _ACTIONS:
            yield unsupported(f"{path}[{index}]", action, _ACTIONS)
        if index in repeated_indexes:
            yield duplicate(f"{path}[{index}]", action, "")
    if "Deny" in actions and "Warn" in actions:
        yield _invalid(path, actions, _BOTH_ACTIONS)
    if not actions:
        yield required(path, "at least one validation action is required", "")


def _mutating_binding_errors(binding: Mapping[str, Any]) -> Iterator[FieldError]:
    yield from _binding_errors(binding["spec"])
    yield from _mutating_operation_errors(binding["spec"].get("matchResources") or {}, "spec.matchResources")


def _binding_errors(spec: Mapping[str, Any]) -> Iterator[FieldError]:
    policy_name = spec.get("policyName") or ""
    if not policy_name:
        yield required("spec.policyName", "", "")
    for message in rules.dns_subdomain_errors(policy_name) if policy_name else ():
        yield _invalid("spec.policyName", policy_name, message)
    if (reference := spec.get("paramRef")) is not None:
        yield from _param_reference_errors(reference, "spec.paramRef")
    yield from _match_errors(spec.get("matchResources"), "spec.matchResources")


def _param_reference_errors(reference: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    name, selector = reference.get("name") or "", reference.get("selector")
    for message in rules.path_segment_errors(name):
        yield _invalid(f"{path}.name", name, message)
    if name and selector is not None:
        yield forbidden(f"{path}.name", "name and selector are mutually exclusive", "")
    yield from rules.selector_errors(selector, f"{path}.selector")
    if name and selector is not None:
        yield forbidden(f"{path}.selector", "name and selector are mutually exclusive", "")
    if not name and selector is None:
        yield required(path, "one of name or selector must be specified", "")
    action = reference.get("parameterNotFoundAction")
    if not action:
        yield required(f"{path}.parameterNotFoundAction", "", "")
    elif action not in _NOT_FOUND_ACTIONS:
        yield unsupported(f"{path}.parameterNotFoundAction", action, _NOT_FOUND_ACTIONS)
