"""The requests to which an admission policy or a binding applies: resource rules, and selectors of labels.

With the match policy `Equivalent`, a rule also matches a request for another version or group of the same resource. The
policy then sees the object in the version of the rule. Source: k8s.io/apiserver,
pkg/admission/plugin/policy/matching/matching.go and pkg/admission/plugin/webhook/predicates.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from batchyard.api import scheme
from batchyard.api.meta import Key, Obj, parse_selector
from batchyard.apiserver.admission.attributes import (
    DELETE,
    POLICY_KINDS,
    WEBHOOK_KINDS,
    AdmissionAttributes,
    request_namespace,
)
from batchyard.apiserver.resources import not_found_error
from batchyard.interfaces.client import ObjectReader

ALL: Final = "*"
_EXACT: Final = "Exact"
#: The kinds that policies never see. Source: predicates/rules/rules.go (IsExemptAdmissionConfigurationResource).
EXEMPT_KINDS: Final = frozenset({*WEBHOOK_KINDS, *POLICY_KINDS})


class MatchedVersion(NamedTuple):
    """The group, version and plural name of the resource with which a rule matches a request."""

    group: str
    version: str
    plural: str

    @property
    def api_version(self) -> str:
        """The group and version as in `apiVersion`."""
        return f"{self.group}/{self.version}" if self.group else self.version


def find_match(
    criteria: Mapping[str, Any] | None, attributes: AdmissionAttributes, objects: ObjectReader
) -> MatchedVersion | None:
    """Return the version in which match criteria (`matchConstraints`, `matchResources`) match a request, or None.

    Without criteria, every request matches. Raises StatusError if the namespace of the request does not exist.
    """
    requested_version = _requested_version(attributes)
    if criteria is None:
        return requested_version
    if not _selects_object(criteria, attributes):
        return None
    if _match_rules(criteria.get("excludeResourceRules") or (), criteria, attributes) is not None:
        return None
    rules = criteria.get("resourceRules") or ()
    matched_version = _match_rules(rules, criteria, attributes) if rules else requested_version
    # The namespace is read last: a missing one is an error only for requests that the rules match.
    if matched_version is None or not _selects_namespace(criteria, attributes, objects):
        return None
    return matched_version


def _requested_version(attributes: AdmissionAttributes) -> MatchedVersion:
    path = attributes.path
    return MatchedVersion(path.served_kind.group, path.version, path.served_kind.plural)


def _selects_object(criteria: Mapping[str, Any], attributes: AdmissionAttributes) -> bool:
    selector = parse_selector(criteria.get("objectSelector") or {})
    assert selector is not None, "an empty selector selects all objects"
    candidates = [obj for obj in (attributes.obj, attributes.old_object) if obj is not None]
    return not selector.requirements or any(selector.matches(_labels_of(obj)) for obj in candidates)


def _selects_namespace(criteria: Mapping[str, Any], attributes: AdmissionAttributes, objects: ObjectReader) -> bool:
    selector = parse_selector(criteria.get("namespaceSelector") or {})
    assert selector is not None, "an empty selector selects all namespaces"
    path = attributes.path
    is_namespace = path.served_kind.constant == scheme.NAMESPACE
    namespace_name = request_namespace(path)
    if not selector.requirements or (not namespace_name and not is_namespace):
        return True
    if is_namespace and not path.subresource and attributes.operation != DELETE and attributes.obj is not None:
        return selector.matches(_labels_of(attributes.obj))
    namespace = objects.get(Key(scheme.NAMESPACE, "", namespace_name))
    if namespace is None:
        raise not_found_error(scheme.kind_info(scheme.NAMESPACE), namespace_name)
    return selector.matches(_labels_of(namespace))


def _labels_of(obj: Obj) -> Mapping[str, str]:
    labels: Mapping[str, str] = (obj.get("metadata") or {}).get("labels") or {}
    return labels


def _match_rules(
    rules: Sequence[Mapping[str, Any]], criteria: Mapping[str, Any], attributes: AdmissionAttributes
) -> MatchedVersion | None:
    requested_version = _requested_version(attributes)
    if any(_matches_rule(rule, requested_version, attributes) for rule in rules):
        return requested_version
    if criteria.get("matchPolicy", _EXACT) == _EXACT:
        return None
    equivalents = list(_equivalent_versions(attributes))
    for rule in rules:
        for version in equivalents:
            if _matches_rule(rule, version, attributes):
                return version
    return None


def _equivalent_versions(attributes: AdmissionAttributes) -> Iterator[MatchedVersion]:
    """Yield the other versions of the requested resource."""
    served_kind = attributes.path.served_kind
    for version in served_kind.versions:
        if version != attributes.path.version:
            yield MatchedVersion(served_kind.group, version, served_kind.plural)


def _matches_rule(rule: Mapping[str, Any], version: MatchedVersion, attributes: AdmissionAttributes) -> bool:
    path = attributes.path
    resource_names = rule.get("resourceNames") or ()
    return (
        _matches_scope(rule.get("scope", ALL), attributes)
        and _contains(rule.get("operations"), attributes.operation)
        and _contains(rule.get("apiGroups"), version.group)
        and _contains(rule.get("apiVersions"), version.version)
        and any(_matches_resource(each, version.plural, path.subresource) for each in rule.get("resources") or ())
        and (not resource_names or path.name in resource_names)
    )


def _matches_scope(scope: str, attributes: AdmissionAttributes) -> bool:
    is_namespaced = attributes.path.served_kind.namespaced
    return scope == ALL or (scope == "Namespaced") == is_namespaced


def _contains(values: Sequence[str] | None, value: str) -> bool:
    return any(each in (ALL, value) for each in values or ())


def _matches_resource(pattern: str, plural: str, subresource: str) -> bool:
    resource, _, pattern_subresource = pattern.partition("/")
    return resource in (ALL, plural) and pattern_subresource in (ALL, subresource)
