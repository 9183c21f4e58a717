"""The rules and selectors with which webhooks and admission policies choose write requests.

Source: k8s.io/apiserver, pkg/admission/plugin/webhook/predicates.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from batchyard.api import scheme
from batchyard.api.meta import Key, Selector, parse_selector
from batchyard.apiserver.admission.attributes import CREATE, UPDATE, AdmissionAttributes, request_namespace
from batchyard.apiserver.resources import ResourcePath, not_found_error
from batchyard.interfaces.client import ObjectReader

EQUIVALENT: Final = "Equivalent"
_EXACT: Final = "Exact"
_ALL: Final = "*"


def find_matching_version(
    rules: Sequence[Mapping[str, Any]], match_policy: str, operation: str, path: ResourcePath
) -> str | None:
    """Return the version of a requested resource that matches one of the rules; None if no rule matches.

    It is the requested version if a rule matches it. Otherwise, with the match policy Equivalent, it is another served
    version of the resource, and the object is converted to it.
    """
    if any(_matches_rule(rule, operation, path, path.version) for rule in rules):
        return path.version
    if match_policy != EQUIVALENT:
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


def parse_optional_selector(value: Mapping[str, Any] | None) -> Selector:
    """Parse the selector of a webhook or a policy; None selects everything."""
    selector = parse_selector(value or {})
    assert selector is not None, "a selector that is not None can be parsed"
    return selector


def selects_object(selector: Selector, attributes: AdmissionAttributes) -> bool:
    """Return whether a selector selects the labels of the new or of the old object of a request."""
    objects = (attributes.obj, attributes.old_object)
    return not selector.requirements or any(selector.matches(_labels_of(obj)) for obj in objects if obj is not None)


def selects_namespace(selector: Selector, attributes: AdmissionAttributes, objects: ObjectReader) -> bool:
    """Return whether a selector selects the labels of the Namespace of a request.

    Each selector selects cluster-scoped objects, except Namespaces. Raises StatusError (404) if the Namespace does not
    exist.
    """
    path = attributes.path
    is_namespace = path.served_kind.constant == scheme.NAMESPACE
    if not selector.requirements or (not path.namespace and not is_namespace):
        return True
    if is_namespace and not path.subresource and attributes.operation in (CREATE, UPDATE):
        return selector.matches(_labels_of(attributes.obj or {}))
    name = request_namespace(path)
    namespace = objects.get(Key(scheme.NAMESPACE, "", name))
    if namespace is None:
        raise not_found_error(scheme.kind_info(scheme.NAMESPACE), name)
    return selector.matches(_labels_of(namespace))


def _labels_of(obj: Mapping[str, Any]) -> Mapping[str, str]:
    metadata = obj.get("metadata")
    labels = metadata.get("labels") if isinstance(metadata, Mapping) else None
    return labels if isinstance(labels, Mapping) else {}


# Match criteria of policies: they also have exclusions and names of objects, and by default match exactly.


def find_policy_match(
    criteria: Mapping[str, Any] | None, attributes: AdmissionAttributes, objects: ObjectReader
) -> str | None:
    """Return the version in which the criteria of a policy or a binding match a request; None if they do not match.

    Without criteria, every request matches. Raises StatusError (404) if the Namespace of the request does not exist.
    Source: k8s.io/apiserver, pkg/admission/plugin/policy/matching/matching.go.
    """
    requested_version = attributes.path.version
    if criteria is None:
        return requested_version
    if not selects_object(parse_optional_selector(criteria.get("objectSelector")), attributes):
        return None
    if _match_rules(criteria.get("excludeResourceRules") or (), criteria, attributes) is not None:
        return None
    rules = criteria.get("resourceRules") or ()
    matched_version = _match_rules(rules, criteria, attributes) if rules else requested_version
    namespace_selector = parse_optional_selector(criteria.get("namespaceSelector"))
    # The namespace is read last: a missing one is an error only for requests that the rules match.
    if matched_version is None or not selects_namespace(namespace_selector, attributes, objects):
        return None
    return matched_version


def _match_rules(
    rules: Sequence[Mapping[str, Any]], criteria: Mapping[str, Any], attributes: AdmissionAttributes
) -> str | None:
    operation, path = attributes.operation, attributes.path
    named_rules = [rule for rule in rules if not rule.get("resourceNames") or path.name in rule["resourceNames"]]
    return find_matching_version(named_rules, criteria.get("matchPolicy", _EXACT), operation, path)


def policy_rules_match(criteria: Mapping[str, Any] | None, operation: str, path: ResourcePath) -> bool:
    """Return whether the rules of a policy match an operation on a resource, except names and selectors."""
    rules = (criteria or {}).get("resourceRules") or ()
    policy = (criteria or {}).get("matchPolicy", _EXACT)
    return not rules or find_matching_version(rules, policy, operation, path) is not None
