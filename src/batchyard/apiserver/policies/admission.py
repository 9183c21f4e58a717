"""The admission policies of the API server: which of them apply to a request, and what they decide.

Policies are sorted by name, and the bindings of a policy too. Sources: k8s.io/apiserver,
pkg/admission/plugin/policy/{generic/policy_dispatcher.go,validating/dispatcher.go,mutating/dispatcher.go}.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from batchyard.api import scheme
from batchyard.api.meta import Key, Obj, parse_selector
from batchyard.apiserver.admission.attributes import (
    POLICY_KINDS,
    WEBHOOK_KINDS,
    AdmissionAttributes,
    PolicyVerdict,
    convert_object,
    request_namespace,
    review_fields,
)
from batchyard.apiserver.admission.matching import find_policy_match, policy_rules_match
from batchyard.apiserver.auth.authorization import Authorizer, RequestAttributes, forbidden_resource_error
from batchyard.apiserver.cel_library import RuleBudget
from batchyard.apiserver.patch import UNSTRUCTURED
from batchyard.apiserver.policies.authorizer import authorizer_value, request_resource_value
from batchyard.apiserver.policies.expressions import ExpressionScope, PolicyEvaluationError, PolicyInput
from batchyard.apiserver.policies.mutations import PolicyMutation, compile_mutation, mutate_object
from batchyard.apiserver.request import StatusError
from batchyard.apiserver.resources import Resource, ResourcePath, Resources
from batchyard.interfaces.client import ObjectReader, WatchEvent

_IGNORE: Final = "Ignore"
_ANNOTATION_LENGTH_MAX: Final = 10 * 1024
_MESSAGE_BYTES_MAX: Final = 5 * 1024
_FAILURE_ANNOTATION: Final = "validation.policy.admission.k8s.io/validation_failure"
_CODES: Final = {"Invalid": 422, "Forbidden": 403, "Unauthorized": 401, "RequestEntityTooLarge": 413}
_BOOL: Final = ("bool",)
_VALIDATING_KINDS: Final = (scheme.VALIDATING_POLICY, scheme.VALIDATING_POLICY_BINDING)
_MUTATING_KINDS: Final = (scheme.MUTATING_POLICY, scheme.MUTATING_POLICY_BINDING)
#: The kinds that policies never see. Source: predicates/rules/rules.go (IsExemptAdmissionConfigurationResource).
_EXEMPT_KINDS: Final = frozenset({*WEBHOOK_KINDS, *POLICY_KINDS})


class PolicyDecision(NamedTuple):
    """A failed validation of a policy, or an error in its evaluation."""

    message: str
    #: The reason of the Status; '' for an error in the evaluation.
    reason: str = ""
    validation_index: int = 0


class PolicyOutcome(NamedTuple):
    """The failed validations of a policy for one parameter object, and its audit annotations."""

    decisions: Sequence[PolicyDecision] = ()
    annotations: Sequence[tuple[str, str]] = ()
    #: The errors of audit annotations, which deny the request whatever the validation actions are.
    annotation_errors: Sequence[str] = ()


class _ConfigurationError(ValueError):
    """A policy or its binding cannot be applied to a request."""


class CompiledPolicy:
    """The compiled expressions of a ValidatingAdmissionPolicy or a MutatingAdmissionPolicy."""

    def __init__(self, policy: Obj, authorizer: Authorizer) -> None:
        self.policy = policy
        spec = policy["spec"]
        self.scope = ExpressionScope(authorizer, has_params=spec.get("paramKind") is not None)
        compile_expression = self.scope.compile
        for variable in spec.get("variables") or ():
            self.scope.add_variable(variable["name"], variable["expression"])
        self._conditions = [compile_expression(each["expression"], _BOOL) for each in spec.get("matchConditions") or ()]
        self._validations = [compile_expression(each["expression"], _BOOL) for each in spec.get("validations") or ()]
        self._messages = [
            compile_expression(each["messageExpression"], ("string",), with_authorizer=False)
            if each.get("messageExpression")
            else None
            for each in spec.get("validations") or ()
        ]
        self._annotations = [
            compile_expression(each["valueExpression"], ("string", "null_type"))
            for each in spec.get("auditAnnotations") or ()
        ]
        self.mutations: list[PolicyMutation] = [
            compile_mutation(each, self.scope) for each in spec.get("mutations") or ()
        ]

    @property
    def name(self) -> str:
        """The name of the policy."""
        return str(self.policy["metadata"]["name"])

    @property
    def ignores_errors(self) -> bool:
        """Whether errors in the evaluation are ignored (`failurePolicy: Ignore`)."""
        return bool(self.policy["spec"].get("failurePolicy") == _IGNORE)

    def meets_conditions(self, policy_input: PolicyInput) -> bool:
        """Return whether all match conditions are true. Raises PolicyEvaluationError if the policy fails on errors."""
        errors = []
        for condition in self._conditions:
            try:
                if self.scope.evaluate(condition, policy_input) is False:
                    return False
            except PolicyEvaluationError as error:
                errors.append(str(error))
                if error.is_over_budget:
                    break
        if errors and not self.ignores_errors:
            message = ", ".join(dict.fromkeys(errors))
            raise PolicyEvaluationError(message if len(errors) == 1 else f"[{message}]")
        return not errors

    def validate(self, policy_input: PolicyInput) -> PolicyOutcome:
        """Evaluate the validations and the audit annotations for one parameter object."""
        try:
            if not self.meets_conditions(policy_input.with_budget()):
                return PolicyOutcome()
            decisions = list(self._failed_validations(policy_input))
            annotations, errors = self._audit_annotations(policy_input.with_budget())
        except PolicyEvaluationError as error:
            return PolicyOutcome(() if self.ignores_errors else (PolicyDecision(str(error)),))
        return PolicyOutcome(decisions, annotations, errors)

    def _failed_validations(self, policy_input: PolicyInput) -> Iterator[PolicyDecision]:
        for index, expression in enumerate(self._validations):
            try:
                is_valid = self.scope.evaluate(expression, policy_input) is True
            except PolicyEvaluationError as error:
                if error.is_over_budget:
                    raise
                if not self.ignores_errors:
                    yield PolicyDecision(str(error), validation_index=index)
                continue
            if not is_valid:
                validation = self.policy["spec"]["validations"][index]
                message = self._failure_message(index, validation, policy_input)
                yield PolicyDecision(message, validation.get("reason") or "Invalid", index)

    def _failure_message(self, index: int, validation: Mapping[str, Any], policy_input: PolicyInput) -> str:
        expression, message = self._messages[index], ""
        if expression is not None:
            try:
                value = self.scope.evaluate(expression, policy_input)
            except PolicyEvaluationError as error:
                if error.is_over_budget:
                    raise PolicyEvaluationError(f"failed messageExpression: {error}", is_over_budget=True) from error
                value = ""
            message = value.strip() if isinstance(value, str) else ""
            if "\n" in message or len(message.encode()) > _MESSAGE_BYTES_MAX:
                message = ""
        return (
            message
            or str(validation.get("message") or "").strip()
            or f"failed expression: {validation['expression'].strip()}"
        )

    def _audit_annotations(self, policy_input: PolicyInput) -> tuple[list[tuple[str, str]], list[str]]:
        annotations, errors = [], []
        for definition, expression in zip(
            self.policy["spec"].get("auditAnnotations") or (), self._annotations, strict=True
        ):
            try:
                value = self.scope.evaluate(expression, policy_input)
            except PolicyEvaluationError as error:
                if error.is_over_budget:
                    raise
                errors += [] if self.ignores_errors else [str(error)]
                continue
            if isinstance(value, str) and value.strip():
                annotations.append((definition["key"], value.strip()[:_ANNOTATION_LENGTH_MAX]))
        return annotations, errors


class PolicyInvocation(NamedTuple):
    """A policy to evaluate for a request, with one of its bindings and one parameter object (or None)."""

    compiled: CompiledPolicy
    binding: Obj
    #: The version of the resource in which the policy sees the objects.
    version: str
    params: Sequence[Obj | None]


class PolicyAdmission:
    """The stored admission policies and bindings: `mutate` and `validate` apply them to write requests."""

    def __init__(self, objects: ObjectReader, resources: Resources, authorizer: Authorizer) -> None:
        self._objects = objects
        self._resources = resources
        self._authorizer = authorizer
        self._compiled: dict[str, CompiledPolicy] = {}

    def observe(self, event: WatchEvent) -> None:
        """Note the change of a policy, so that it is compiled again when it is needed next."""
        self._compiled.pop(f"{event.key.kind}/{event.key.name}", None)

    def may_match(self, operation: str, path: ResourcePath) -> bool:
        """Return whether the rules of a policy with a binding match an operation on a resource."""
        if path.served_kind.constant in _EXEMPT_KINDS:
            return False
        return any(
            policy_rules_match(policy["spec"].get("matchConstraints"), operation, path)
            for policy_kind, binding_kind in (_VALIDATING_KINDS, _MUTATING_KINDS)
            if self._objects.list(binding_kind)
            for policy in self._objects.list(policy_kind)
        )

    @property
    def mutates(self) -> bool:
        """Whether a MutatingAdmissionPolicy with a binding is stored."""
        return all(self._objects.list(kind) for kind in _MUTATING_KINDS)

    @property
    def validates(self) -> bool:
        """Whether a ValidatingAdmissionPolicy with a binding is stored."""
        return all(self._objects.list(kind) for kind in _VALIDATING_KINDS)

    def mutate(self, attributes: AdmissionAttributes) -> Mapping[str, Any] | None:
        """Return the object of a request as the MutatingAdmissionPolicies change it, in the version of the request.

        Raises StatusError if a policy fails.
        """
        if attributes.obj is None or attributes.path.served_kind.constant in _EXEMPT_KINDS:
            return attributes.obj
        first_round = _MutationRound(self, attributes, None)
        changed_object = first_round.run()
        if first_round.reinvoked:
            changed_object = _MutationRound(self, attributes._replace(obj=changed_object), first_round.reinvoked).run()
        return changed_object

    def validate(self, attributes: AdmissionAttributes) -> PolicyVerdict:
        """Return what the ValidatingAdmissionPolicies decide about a request.

        Raises StatusError if the namespace of the request does not exist.
        """
        if attributes.path.served_kind.constant in _EXEMPT_KINDS:
            return PolicyVerdict(None)
        return _ValidationRound(self, attributes).verdict()

    def invocations(
        self, policy_kind: str, binding_kind: str, attributes: AdmissionAttributes
    ) -> Iterator[PolicyInvocation | tuple[CompiledPolicy, Obj | None, str]]:
        """Yield the policies and bindings that apply to a request, or a policy, its binding (or None) and an error."""
        bindings: dict[str, list[Obj]] = {}
        for binding in self._objects.list(binding_kind):
            bindings.setdefault(binding["spec"].get("policyName", ""), []).append(binding)
        for policy in self._objects.list(policy_kind):
            policy_bindings = bindings.get(policy["metadata"]["name"])
            if not policy_bindings:
                continue
            version = find_policy_match(policy["spec"].get("matchConstraints"), attributes, self._objects)
            if version is None:
                continue
            compiled = self._compile(policy_kind, policy)
            yield from self._bound_invocations(compiled, policy_bindings, version, attributes)

    def _bound_invocations(
        self, compiled: CompiledPolicy, bindings: Sequence[Obj], version: str, attributes: AdmissionAttributes
    ) -> Iterator[PolicyInvocation | tuple[CompiledPolicy, Obj | None, str]]:
        param_kind = compiled.policy["spec"].get("paramKind")
        param_resource = None if param_kind is None else self._find_resource(param_kind)
        if param_kind is not None and param_resource is None:
            group_kind = f"{param_kind['apiVersion']}, Kind={param_kind['kind']}"
            message = f"failed to find resource referenced by paramKind: '{group_kind}'"
            yield compiled, None, f"failed to configure policy: {message}"
            return
        for binding in bindings:
            if find_policy_match(binding["spec"].get("matchResources"), attributes, self._objects) is None:
                continue
            try:
                params = self._collect_params(param_resource, param_kind, binding["spec"].get("paramRef"), attributes)
            except _ConfigurationError as error:
                yield compiled, binding, f"failed to configure binding: {error}"
                continue
            yield PolicyInvocation(compiled, binding, version, params)

    def _compile(self, kind: str, policy: Obj) -> CompiledPolicy:
        key = f"{kind}/{policy['metadata']['name']}"
        compiled = self._compiled.get(key)
        if compiled is None or compiled.policy["spec"] is not policy["spec"]:
            compiled = self._compiled[key] = CompiledPolicy(policy, self._authorizer)
        return compiled

    def _find_resource(self, param_kind: Mapping[str, Any]) -> Resource | None:
        for resource in self._resources.all():
            served_kind = resource.served_kind
            if served_kind.kind == param_kind["kind"] and served_kind.version_of(param_kind["apiVersion"]):
                return resource
        return None

    def _collect_params(
        self,
        resource: Resource | None,
        param_kind: Mapping[str, Any] | None,
        reference: Mapping[str, Any] | None,
        attributes: AdmissionAttributes,
    ) -> Sequence[Obj | None]:
        """Return the parameter objects of a binding, in the version that the policy names; [None] without parameters.

        Source: pkg/admission/plugin/policy/generic/policy_dispatcher.go (CollectParams).
        """
        if resource is None or param_kind is None or reference is None:
            return [None]
        served_kind, namespace = resource.served_kind, ""
        if served_kind.namespaced:
            namespace = reference.get("namespace") or request_namespace(attributes.path)
            if not namespace:
                raise _ConfigurationError(
                    "cannot use namespaced paramRef in policy binding that matches cluster-scoped resources"
                )
        elif reference.get("namespace"):
            raise _ConfigurationError("paramRef.namespace must not be provided for a cluster-scoped `paramKind`")
        if name := reference.get("name"):
            param = self._objects.get(Key(served_kind.constant, namespace, name))
            params = [] if param is None else [param]
        else:
            selector = parse_selector(reference.get("selector") or {})
            candidates = self._objects.list(served_kind.constant, namespace or None)
            params = [
                each for each in candidates if selector and selector.matches(each["metadata"].get("labels") or {})
            ]
        if not params and reference.get("parameterNotFoundAction") == "Deny":
            raise _ConfigurationError("no params found for policy binding with `Deny` parameterNotFoundAction")
        return [resource.strategy.render(each, param_kind["apiVersion"]) for each in params]

    def request_variables(self, attributes: AdmissionAttributes, version: str) -> dict[str, Any]:
        """Return the variables of expressions for a request, except `params`, with objects in the matched version."""
        path = attributes.path
        namespace_name = "" if path.served_kind.constant == scheme.NAMESPACE else path.namespace
        checked_resource = RequestAttributes(
            *(attributes.user, "", path.served_kind.group, path.served_kind.plural, path.subresource),
            *(request_namespace(path), path.name),
        )
        return {
            "object": convert_to_version(attributes.obj, attributes, version),
            "oldObject": convert_to_version(attributes.old_object, attributes, version),
            "request": review_fields(attributes, version),
            "namespaceObject": _namespace_value(self._objects, namespace_name),
            "authorizer": authorizer_value(attributes.user),
            "authorizer.requestResource": request_resource_value(attributes.user, checked_resource),
        }


def convert_to_version(
    obj: Mapping[str, Any] | None, attributes: AdmissionAttributes, version: str
) -> Mapping[str, Any] | None:
    """Return an object of a request in the version with which a policy matches; unchanged if conversion fails."""
    path = attributes.path
    if obj is None or path.handlers is not None or obj.get("apiVersion") == path.served_kind.api_version_for(version):
        return obj
    converted_object = convert_object(obj, path, version).obj
    return obj if converted_object is None else converted_object


_HIDDEN_NAMESPACE_FIELDS: Final = frozenset({"managedFields", "ownerReferences", "selfLink"})


def _namespace_value(objects: ObjectReader, name: str) -> Mapping[str, Any] | None:
    namespace = objects.get(Key(scheme.NAMESPACE, "", name)) if name else None
    if namespace is None:
        return None
    metadata = {field: each for field, each in namespace["metadata"].items() if field not in _HIDDEN_NAMESPACE_FIELDS}
    return {**namespace, "metadata": metadata}


class _ValidationRound:
    """The evaluation of all ValidatingAdmissionPolicies for one request."""

    def __init__(self, admission: PolicyAdmission, attributes: AdmissionAttributes) -> None:
        self._admission = admission
        self._attributes = attributes
        self._denials: list[tuple[str, str]] = []
        self._warnings: list[str] = []
        self._annotations: dict[str, str] = {}
        self._policy_annotations: dict[tuple[str, str], list[str]] = {}

    def verdict(self) -> PolicyVerdict:
        """Evaluate the policies and return the verdict."""
        for invocation in self._admission.invocations(*_VALIDATING_KINDS, self._attributes):
            if isinstance(invocation, PolicyInvocation):
                self._evaluate(invocation)
            elif not invocation[0].ignores_errors:
                compiled, binding, message = invocation
                self._deny(compiled.name, binding, message, "")
        for (name, key), values in self._policy_annotations.items():
            self._annotations[f"{name}/{key}"] = ", ".join(dict.fromkeys(values))
        error = self._error() if self._denials else None
        return PolicyVerdict(error, tuple(dict.fromkeys(self._warnings)), self._annotations)

    def _evaluate(self, invocation: PolicyInvocation) -> None:
        compiled, binding = invocation.compiled, invocation.binding
        variables = self._admission.request_variables(self._attributes, invocation.version)
        for param in invocation.params:
            policy_input = PolicyInput({**variables, "params": param}, RuleBudget(), {})
            outcome = compiled.validate(policy_input)
            for decision in outcome.decisions:
                self._take_actions(compiled, binding, decision)
            for key, value in outcome.annotations:
                self._policy_annotations.setdefault((compiled.name, key), []).append(value)
            for message in outcome.annotation_errors:
                self._deny(compiled.name, binding, message, "")

    def _take_actions(self, compiled: CompiledPolicy, binding: Obj, decision: PolicyDecision) -> None:
        name, binding_name, actions = compiled.name, binding["metadata"]["name"], binding["spec"]["validationActions"]
        if "Deny" in actions:
            self._deny(name, binding, decision.message, decision.reason)
        if "Audit" in actions:
            failure = {
                "message": decision.message,
                "policy": name,
                "binding": binding_name,
                "expressionIndex": decision.validation_index,
                "validationActions": actions,
            }
            self._annotations.setdefault(_FAILURE_ANNOTATION, msgspec.json.encode([failure]).decode())
        if "Warn" in actions:
            subject = f"ValidatingAdmissionPolicy '{name}' with binding '{binding_name}'"
            self._warnings.append(f"Validation failed for {subject}: {decision.message}")

    def _deny(self, name: str, binding: Obj | None, message: str, reason: str) -> None:
        with_binding = "" if binding is None else f" with binding '{binding['metadata']['name']}'"
        self._denials.append((f"ValidatingAdmissionPolicy '{name}'{with_binding} denied request: {message}", reason))

    def _error(self) -> StatusError:
        message, reason = self._denials[0]
        reason = reason or "Invalid"
        return denial_error(self._attributes, message, reason, _CODES.get(reason, 422))


class _MutationRound:
    """One round of all MutatingAdmissionPolicies for one request; `reinvoked` names those that must run once more."""

    def __init__(
        self, admission: PolicyAdmission, attributes: AdmissionAttributes, selected: frozenset[Any] | None
    ) -> None:
        self._admission = admission
        self._attributes = attributes
        self._selected = selected
        self._obj = attributes.obj
        #: The errors of policies with `failurePolicy: Fail`: message and reason.
        self._errors: list[tuple[str, str]] = []
        self._earlier: set[Any] = set()
        self.reinvoked: frozenset[Any] = frozenset()

    def run(self) -> Mapping[str, Any] | None:
        """Apply the policies in order and return the changed object. Raises StatusError if a policy fails."""
        # All policies are matched with the object as it was sent, before any of them changes it.
        is_changed = False
        for invocation in list(self._admission.invocations(*_MUTATING_KINDS, self._attributes)):
            if not isinstance(invocation, PolicyInvocation):
                self._note_error(*invocation, "")
                continue
            for param in invocation.params:
                is_changed |= self._apply(invocation, param)
        if is_changed:
            self.reinvoked |= self._earlier
        if self._errors:
            raise self._error()
        return self._obj

    def _apply(self, invocation: PolicyInvocation, param: Obj | None) -> bool:
        """Apply a policy for one parameter object; return whether one of its mutations ran."""
        compiled, binding = invocation.compiled, invocation.binding
        try:
            if not compiled.meets_conditions(self._input(invocation, param)):
                return False
        except PolicyEvaluationError as error:
            self._note_error(compiled, binding, str(error), "Invalid")
            return False
        param_metadata = (param or {}).get("metadata") or {}
        key = compiled.name, binding["metadata"]["name"], param_metadata.get("namespace"), param_metadata.get("name")
        if self._selected is not None and key not in self._selected:
            return False
        before, has_run = self._obj, False
        for mutation in compiled.mutations:
            try:
                self._mutate(mutation, invocation, param)
                has_run = True
            except ValueError as error:
                self._note_error(compiled, binding, str(error), "Invalid")
        if before != self._obj:
            self.reinvoked |= self._earlier
            self._earlier.clear()
        if compiled.policy["spec"].get("reinvocationPolicy") == "IfNeeded":
            self._earlier.add(key)
        return has_run

    def _mutate(self, mutation: PolicyMutation, invocation: PolicyInvocation, param: Obj | None) -> None:
        path, version = self._attributes.path, invocation.version
        policy_input = self._input(invocation, param)
        obj = policy_input.variables["object"]
        schema = UNSTRUCTURED if path.handlers is not None else path.resource.merge_schema(version)
        changed_object = mutate_object(mutation, invocation.compiled.scope, policy_input, obj, schema)
        self._obj = convert_to_version(changed_object, self._attributes, path.version)

    def _input(self, invocation: PolicyInvocation, param: Obj | None) -> PolicyInput:
        attributes = self._attributes._replace(obj=self._obj)
        variables = self._admission.request_variables(attributes, invocation.version)
        return PolicyInput({**variables, "params": param}, RuleBudget(), {})

    def _note_error(self, compiled: CompiledPolicy, binding: Obj | None, message: str, reason: str) -> None:
        if not compiled.ignores_errors:
            subject = (
                f'policy "{compiled.name}"'
                if binding is None
                else f"policy '{compiled.name}' with binding '{binding['metadata']['name']}'"
            )
            self._errors.append((f"{subject} denied request: {message}", reason))

    def _error(self) -> StatusError:
        message, reason = self._errors[0]
        error = denial_error(self._attributes, message, reason or "Forbidden", 403)
        causes = [{"message": each} for each, _ in self._errors]
        return StatusError(403, error.reason, message, {**error.details, "causes": causes})


def denial_error(attributes: AdmissionAttributes, message: str, reason: str, code: int) -> StatusError:
    """Return the error that denies a request, about the object of the request.

    Source: k8s.io/apiserver, pkg/admission/errors.go (NewForbidden).
    """
    served_kind, metadata = attributes.path.served_kind, (attributes.obj or {}).get("metadata") or {}
    name = attributes.path.name or metadata.get("name") or metadata.get("generateName") or "Unknown"
    error = forbidden_resource_error(served_kind.group, served_kind.plural, name, message)
    return StatusError(code, reason, str(error), {**error.details, "causes": [{"message": message}]})
