"""Webhook configurations: their webhooks in the order of calls, and which of them a write request matches.

Source: k8s.io/apiserver, pkg/admission/plugin/webhook/{generic,predicates,matchconditions,configuration}.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

from batchyard import controller_groups
from batchyard.api import scheme
from batchyard.api.meta import Key, Obj, Selector, parse_selector
from batchyard.apiserver.admission.attributes import (
    CONNECT,
    CREATE,
    DELETE,
    UPDATE,
    AdmissionAttributes,
    request_kind,
    review_fields,
)
from batchyard.apiserver.request import StatusError
from batchyard.apiserver.resources import ResourcePath, not_found_error
from batchyard.interfaces.client import ObjectReader

#: The kinds whose objects configure admission. Requests for them pass no webhook, so that a wrong configuration can be
#: corrected.
_CONFIGURATION_GROUP: Final = "admissionregistration.k8s.io"
#: The groups of the virtual review resources, such as TokenReview, with which webhooks check their callers.
_REVIEW_GROUPS: Final = ("authentication.k8s.io", "authorization.k8s.io")
_ALL: Final = "*"
_IGNORE: Final = "Ignore"
_EQUIVALENT: Final = "Equivalent"
#: The configurations that Kueue's and JobSet's manifests install. Their webhooks are not called if the controllers of
#: this group run here: they are built in, and nothing serves them.
_BUILT_IN_CONFIGURATIONS: Final[Mapping[str, Sequence[str]]] = {
    controller_groups.ADMISSION: ("kueue-mutating-webhook-configuration", "kueue-validating-webhook-configuration"),
    controller_groups.JOBSET: ("jobset-mutating-webhook-configuration", "jobset-validating-webhook-configuration"),
}
#: The text of the CEL library for a missing key, which Kubernetes words differently.
_MISSING_KEY: Final = re.compile(r'Key not found in map : "?([^"]*)"?')
CONFIGURATION_KINDS: Final = (scheme.MUTATING_WEBHOOKS, scheme.VALIDATING_WEBHOOKS)


class Webhook(NamedTuple):
    """One webhook of a configuration."""

    configuration: str
    name: str
    definition: Mapping[str, Any]
    is_mutating: bool
    namespace_selector: Selector
    object_selector: Selector

    @property
    def uid(self) -> str:
        """The identity of the webhook: its configuration and its name, which is unique in the configuration."""
        return f"{self.configuration}/{self.name}"

    @property
    def type(self) -> str:
        """The type of the webhook in metrics: `admit` or `validating`."""
        return "admit" if self.is_mutating else "validating"

    @property
    def ignores_failures(self) -> bool:
        """Whether a request continues without the webhook if the call fails."""
        return bool(self.definition.get("failurePolicy") == _IGNORE)

    @property
    def reinvokes(self) -> bool:
        """Whether the webhook is called again if a later step changes the object."""
        return bool(self.definition.get("reinvocationPolicy") == "IfNeeded")


def webhooks_of(configuration: Obj) -> Iterator[Webhook]:
    """Yield the webhooks of a configuration in their order."""
    is_mutating = configuration["kind"] == "MutatingWebhookConfiguration"
    for definition in configuration.get("webhooks") or ():
        yield Webhook(
            configuration["metadata"]["name"],
            definition["name"],
            definition,
            is_mutating,
            _selector(definition.get("namespaceSelector")),
            _selector(definition.get("objectSelector")),
        )


def _selector(value: Mapping[str, Any] | None) -> Selector:
    selector = parse_selector(value or {})
    assert selector is not None, "a selector that is not None can be parsed"
    return selector


class WebhookRegistry:
    """The webhooks of all stored configurations, sorted by the names of the configurations."""

    def __init__(self, objects: ObjectReader, built_in_groups: Collection[str] = ()) -> None:
        """Read the stored configurations, except those of webhooks that controllers of these groups have built in."""
        self._objects = objects
        self._built_in = {name for group in built_in_groups for name in _BUILT_IN_CONFIGURATIONS.get(group, ())}
        self.mutating: Sequence[Webhook] = ()
        self.validating: Sequence[Webhook] = ()
        self.refresh()

    def refresh(self) -> None:
        """Read the stored configurations again, after one of them has changed."""
        self.mutating, self.validating = (
            [
                webhook
                for configuration in self._objects.list(kind)
                if configuration["metadata"]["name"] not in self._built_in
                for webhook in webhooks_of(configuration)
            ]
            for kind in CONFIGURATION_KINDS
        )

    @property
    def is_empty(self) -> bool:
        """Whether no webhook is configured."""
        return not self.mutating and not self.validating

    def may_match(self, operation: str, path: ResourcePath) -> bool:
        """Return whether the rules of a webhook match an operation on a resource, before selectors are considered."""
        if is_exempt(path):
            return False
        return any(
            find_matching_version(webhook, operation, path) is not None
            for webhook in (*self.mutating, *self.validating)
        )


def is_exempt(path: ResourcePath) -> bool:
    """Return whether requests for a resource pass no webhook: configurations of admission, and virtual reviews."""
    group = request_kind(path)[0]
    return group == _CONFIGURATION_GROUP or (group in _REVIEW_GROUPS and not path.subresource)


# Rules: operations, groups, versions, resources and scope.


def find_matching_version(webhook: Webhook, operation: str, path: ResourcePath) -> str | None:
    """Return the version of the resource that matches a rule of the webhook; None if no rule matches.

    It is the requested version if a rule matches it. Otherwise, with matchPolicy Equivalent, it is another served
    version of the resource, and the object is converted to it.
    """
    rules: Sequence[Mapping[str, Any]] = webhook.definition.get("rules") or ()
    if any(_matches_rule(rule, operation, path, path.version) for rule in rules):
        return path.version
    if webhook.definition.get("matchPolicy", _EQUIVALENT) != _EQUIVALENT:
        return None
    other_versions = [version for version in path.served_kind.versions if version != path.version]
    return next(
        (version for rule in rules for version in other_versions if _matches_rule(rule, operation, path, version)), None
    )


def _matches_rule(rule: Mapping[str, Any], operation: str, path: ResourcePath, version: str) -> bool:
    return (
        _includes(rule.get("operations"), operation)
        and _includes(rule.get("apiGroups"), path.served_kind.group)
        and _includes(rule.get("apiVersions"), version)
        and any(_matches_resource(pattern, path) for pattern in rule.get("resources") or ())
        and _matches_scope(rule.get("scope", _ALL), path)
    )


def _includes(values: Sequence[str] | None, value: str) -> bool:
    return values is not None and (_ALL in values or value in values)


def _matches_resource(pattern: str, path: ResourcePath) -> bool:
    resource, _, subresource = pattern.partition("/")
    return resource in (_ALL, path.served_kind.plural) and subresource in (_ALL, path.subresource)


def _matches_scope(scope: str, path: ResourcePath) -> bool:
    is_namespaced = path.served_kind.namespaced
    return scope == _ALL or (scope == "Namespaced") == is_namespaced


# Selectors and match conditions.


class WebhookMatch(NamedTuple):
    """A webhook that must be called for a request, and the version of the object that it receives."""

    webhook: Webhook
    version: str


NamespaceLabels = Callable[[str], Mapping[str, str] | None]
"""Returns the labels of a Namespace; None if it does not exist."""


class WebhookMatcher:
    """Decides which webhooks match the attributes of a request."""

    def __init__(self, objects: ObjectReader, observe_condition: Callable[[Webhook, str, bool], None]) -> None:
        """`observe_condition` is called for each condition that fails (True) or excludes a request (False)."""
        self._objects = objects
        self._observe_condition = observe_condition

    def find_match(
        self, webhook: Webhook, attributes: AdmissionAttributes, convert: Callable[[str], AdmissionAttributes]
    ) -> WebhookMatch | None:
        """Return how a webhook matches a request; None if it does not match.

        `convert` returns the attributes with the objects in another version. Raises StatusError if the Namespace of
        the request does not exist, or if a match condition fails and the failure policy is Fail.
        """
        if not self._matches_object(webhook, attributes):
            return None
        version = find_matching_version(webhook, attributes.operation, attributes.path)
        if version is None or not self._matches_namespace(webhook, attributes):
            return None
        conditions = webhook.definition.get("matchConditions")
        if conditions and not self._meets_conditions(webhook, convert(version), version):
            return None
        return WebhookMatch(webhook, version)

    def _matches_object(self, webhook: Webhook, attributes: AdmissionAttributes) -> bool:
        selector = webhook.object_selector
        if not selector.requirements:
            return True
        objects = (attributes.obj, attributes.old_object)
        return any(selector.matches(_labels_of(obj)) for obj in objects if obj is not None)

    def _matches_namespace(self, webhook: Webhook, attributes: AdmissionAttributes) -> bool:
        path, selector = attributes.path, webhook.namespace_selector
        is_namespace = path.served_kind.constant == scheme.NAMESPACE
        if not selector.requirements or (not path.namespace and not is_namespace):
            return True
        if is_namespace and not path.subresource and attributes.operation in (CREATE, UPDATE):
            return selector.matches(_labels_of(attributes.obj or {}))
        name = path.name if is_namespace else path.namespace
        namespace = self._objects.get(Key(scheme.NAMESPACE, "", name))
        if namespace is None:
            raise not_found_error(scheme.kind_info(scheme.NAMESPACE), name)
        return selector.matches(_labels_of(namespace))

    def _meets_conditions(self, webhook: Webhook, attributes: AdmissionAttributes, version: str) -> bool:
        """Return whether all match conditions are true; one that is false takes precedence over failed ones."""
        errors = []
        variables = {
            "object": attributes.obj,
            "oldObject": attributes.old_object,
            "request": review_fields(attributes, version),
        }
        for condition in webhook.definition["matchConditions"]:
            result, error = _evaluate(condition["expression"], variables)
            if error:
                self._observe_condition(webhook, attributes.operation, True)
                errors.append(error)
            elif result is False:
                self._observe_condition(webhook, attributes.operation, False)
                return False
        if not errors:
            return True
        if webhook.ignores_failures:
            return False
        path = attributes.path
        resource, text = path.served_kind.group_resource, errors[0] if len(errors) == 1 else f"[{', '.join(errors)}]"
        details = {"name": path.name, "group": path.served_kind.group, "kind": path.served_kind.plural}
        raise StatusError(
            403,
            "Forbidden",
            f'{resource} "{path.name}" is forbidden: {text}',
            {field: value for field, value in details.items() if value},
        )


def _labels_of(obj: Mapping[str, Any]) -> Mapping[str, str]:
    metadata = obj.get("metadata")
    labels = metadata.get("labels") if isinstance(metadata, Mapping) else None
    return labels if isinstance(labels, Mapping) else {}


def _evaluate(expression: str, variables: Mapping[str, Any]) -> tuple[Any, str]:
    program, error = compile_condition(expression)
    if error:
        return None, error
    from batchyard.apiserver.crd.rules import evaluate_program  # noqa: PLC0415 - loading CEL takes 0.1 s

    result, error = evaluate_program(program, variables)
    error = _MISSING_KEY.sub(r"no such key: \1", error)
    return result, f"expression '{expression}' resulted in error: {error}" if error else ""


@lru_cache(maxsize=1024)
def compile_condition(expression: str) -> tuple[Any, str]:
    """Compile a match condition; return its program and '', or None and the error."""
    from batchyard.apiserver.cel_library import new_environment  # noqa: PLC0415 - loading CEL takes 0.1 s

    try:
        program = new_environment("object", "oldObject", "request", "authorizer").compile(expression)
    except RuntimeError as error:
        text = str(error).removeprefix("INVALID_ARGUMENT: ").removesuffix(" [INVALID_ARGUMENT]")
        return None, f"compilation failed: {text}"
    if program.return_type().name() not in {"BOOL", "DYN"}:
        return None, "must evaluate to bool"
    return program, ""


def operation_of(method: str, path: ResourcePath) -> str | None:
    """Return the admission operation of a request; None for requests that only read."""
    if path.subresource in {"exec", "attach", "portforward", "proxy"} and path.handlers is not None:
        return CONNECT
    return {"POST": CREATE, "PUT": UPDATE, "PATCH": UPDATE, "DELETE": DELETE}.get(method)
