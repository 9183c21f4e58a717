"""The requests to which an admission policy or a binding applies: resource rules, exclusions, and selectors of labels.

With the match policy `Equivalent`, a rule also matches a request for another version of the same resource. The policy
then sees the object in the version of the rule. Source: k8s.io/apiserver,
pkg/admission/plugin/policy/matching/matching.go.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from batchyard.apiserver.admission.attributes import POLICY_KINDS, WEBHOOK_KINDS, AdmissionAttributes
from batchyard.apiserver.admission.matching import (
    find_matching_version,
    parse_optional_selector,
    selects_namespace,
    selects_object,
)
from batchyard.interfaces.client import ObjectReader

_EXACT: Final = "Exact"
#: The kinds that policies never see. Source: predicates/rules/rules.go (IsExemptAdmissionConfigurationResource).
EXEMPT_KINDS: Final = frozenset({*WEBHOOK_KINDS, *POLICY_KINDS})


def find_match(
    criteria: Mapping[str, Any] | None, attributes: AdmissionAttributes, objects: ObjectReader
) -> str | None:
    """Return the version in which match criteria (`matchConstraints`, `matchResources`) match a request, or None.

    Without criteria, every request matches. Raises StatusError if the namespace of the request does not exist.
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
