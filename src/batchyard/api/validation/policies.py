"""Validation of LimitRanges, ResourceQuotas, PodDisruptionBudgets, and RBAC roles and role bindings."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from batchyard.api.errors import FieldError
from batchyard.api.meta import NANO
from batchyard.api.validation import rules
from batchyard.api.validation.rules import is_extended, resource_name_errors

# Rules of LimitRanges and ResourceQuotas. Source: Kubernetes's pkg/apis/core/validation.


_CLAIM_TYPE: Final = "PersistentVolumeClaim"
_LIMIT_TYPES: Final = ("Container", "Pod", _CLAIM_TYPE)
_LIMIT_RANGE_FIELDS: Final = ("max", "min", "default", "defaultRequest", "maxLimitRequestRatio")
#: Pairs of fields, the first of which must not exceed the second; the reported field; the names in the message.
_ORDERED_FIELD_PAIRS: Final = (
    ("min", "max", "min", "min value", "max value"),
    ("min", "defaultRequest", "defaultRequest", "min value", "default request value"),
    ("defaultRequest", "max", "defaultRequest", "default request value", "max value"),
    ("defaultRequest", "default", "defaultRequest", "default request value", "default limit value"),
    ("min", "default", "default", "min value", "default value"),
    ("default", "max", "default", "default value", "max value"),
)
#: The field whose value the message shows, for the pairs where it is not the reported one.
_REPORTED_FIELD_BY_PAIR: Final = {("min", "default"): "min", ("default", "max"): "max"}


def limit_range_errors(limit_range: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate a LimitRange: its limit types, resource names and amounts."""
    yield from rules.metadata_errors(limit_range)
    seen_limit_types: dict[str, None] = {}
    for i, limit in enumerate((limit_range.get("spec") or {}).get("limits") or ()):
        path, kind = f"spec.limits[{i}]", limit["type"]
        yield from _limit_type_errors(kind, f"{path}.type")
        if kind in seen_limit_types:
            yield rules.duplicate(f"{path}.type", kind, "merge the two limits")
        seen_limit_types[kind] = None
        yield from _limit_field_errors(limit, path)
        resource_names = {name: None for field in _LIMIT_RANGE_FIELDS for name in limit.get(field) or ()}
        for name in sorted(resource_names):
            yield from _limit_amount_errors(limit, name, path)


def _limit_type_errors(limit_type: str, path: str) -> Iterator[FieldError]:
    remedy, name_errors = f"use one of {', '.join(_LIMIT_TYPES)}", rules.qualified_name_errors(limit_type)
    for message in name_errors:
        yield rules.invalid(path, limit_type, message, remedy)
    if not name_errors and "/" not in limit_type and limit_type not in _LIMIT_TYPES:
        yield rules.invalid(path, limit_type, "must be a standard limit type or fully qualified", remedy)


def _limit_field_errors(limit: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    kind = limit["type"]
    for field in _LIMIT_RANGE_FIELDS:
        if kind == "Pod" and field.startswith("default"):
            if limit.get(field):
                message = "may not be specified when `type` is 'Pod'"
                yield rules.forbidden(f"{path}.{field}", message, "use a limit of type Container")
        elif kind in _LIMIT_TYPES[:2]:
            for name in limit.get(field) or ():
                yield from resource_name_errors(name, f"{path}.{field}[{name}]")
    if kind == _CLAIM_TYPE and not any("storage" in (limit.get(field) or ()) for field in ("min", "max")):
        message = "either minimum or maximum storage value is required, but neither was provided"
        yield rules.required(f"{path}.limits", message, "set min.storage or max.storage")


def _limit_amount_errors(limit: Mapping[str, Any], name: str, path: str) -> Iterator[FieldError]:
    amounts = {field: limit[field][name] for field in _LIMIT_RANGE_FIELDS if name in (limit.get(field) or ())}
    for smaller, larger, reported_field, smaller_name, larger_name in _ORDERED_FIELD_PAIRS:
        if smaller in amounts and larger in amounts and rules.exceeds_limit(amounts[smaller], amounts[larger]):
            minimum, maximum = (
                rules.canonical_quantity_or_text(amounts[smaller]),
                rules.canonical_quantity_or_text(amounts[larger]),
            )
            value = rules.canonical_quantity_or_text(
                amounts[_REPORTED_FIELD_BY_PAIR.get((smaller, larger), reported_field)]
            )
            message = f"{smaller_name} {minimum} is greater than {larger_name} {maximum}"
            yield rules.invalid(f"{path}.{reported_field}[{name}]", value, message, f"use at most {maximum}")
    yield from _limit_ratio_errors(amounts, name, path)
    can_overcommit = not is_extended(name) and not name.startswith("hugepages-")
    if not can_overcommit and "default" in amounts and "defaultRequest" in amounts:
        default, request = (rules.canonical_quantity_or_text(amounts[field]) for field in ("default", "defaultRequest"))
        if rules.parse_nano_amount(amounts["default"]) != rules.parse_nano_amount(amounts["defaultRequest"]):
            message = f"default value {default} must equal to defaultRequest value {request} in {name}"
            yield rules.invalid(f"{path}.defaultRequest[{name}]", request, message, f"use {default}")


def _limit_ratio_errors(amounts: Mapping[str, Any], name: str, path: str) -> Iterator[FieldError]:
    maximum_ratio = rules.parse_nano_amount(amounts.get("maxLimitRequestRatio", ""))
    if maximum_ratio is None:
        return
    ratio_path, text = (
        f"{path}.maxLimitRequestRatio[{name}]",
        rules.canonical_quantity_or_text(amounts["maxLimitRequestRatio"]),
    )
    if maximum_ratio < NANO:
        yield rules.invalid(ratio_path, text, f"ratio {text} is less than 1", "use 1 or more")
    minimum, maximum = rules.parse_nano_amount(amounts.get("min", "")), rules.parse_nano_amount(amounts.get("max", ""))
    if minimum and maximum is not None and maximum_ratio * minimum > maximum * NANO:
        message = f"ratio {text} is greater than max/min = {maximum / minimum:f}"
        yield rules.invalid(ratio_path, text, message, "reduce the ratio, or change min and max")


_COMPUTE_RESOURCES: Final = ("cpu", "memory", "limits.cpu", "limits.memory", "requests.cpu", "requests.memory")
_OBJECT_COUNT_RESOURCES: Final = frozenset(
    {
        *("pods", "services", "replicationcontrollers", "resourcequotas", "secrets", "configmaps"),
        *("persistentvolumeclaims", "services.nodeports", "services.loadbalancers"),
    }
)
_STORAGE: Final = ("ephemeral-storage", "requests.ephemeral-storage", "limits.ephemeral-storage", "requests.storage")
_STANDARD_RESOURCES: Final = frozenset({*_COMPUTE_RESOURCES, *_STORAGE, *_OBJECT_COUNT_RESOURCES})
_HUGE_PAGES_PREFIXES: Final = ("hugepages-", "requests.hugepages-")
_BEST_EFFORT: Final = "BestEffort"
_PRIORITY_CLASS_SCOPE: Final = "PriorityClass"
#: Scopes without values.
_VALUELESS_SCOPES: Final = ("Terminating", "NotTerminating", _BEST_EFFORT, "NotBestEffort", "CrossNamespacePodAffinity")
_SCOPES: Final = (*_VALUELESS_SCOPES, _PRIORITY_CLASS_SCOPE)
_CONFLICTING_SCOPES: Final = ((_BEST_EFFORT, "NotBestEffort"), ("Terminating", "NotTerminating"))
_MUST_EXIST_SCOPES: Final = (
    "must be 'Exist' when scope is any of ResourceQuotaScopeTerminating, ResourceQuotaScopeNotTerminating, "
    "ResourceQuotaScopeBestEffort, ResourceQuotaScopeNotBestEffort or ResourceQuotaScopeCrossNamespacePodAffinity"
)
_UNSUPPORTED_SCOPE: Final = "unsupported scope applied to resource"


def resource_quota_errors(quota: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate a ResourceQuota: its resource names, amounts and scopes."""
    yield from rules.metadata_errors(quota)
    spec = quota.get("spec") or {}
    hard_limits = spec.get("hard") or {}
    for name, value in hard_limits.items():
        path = f"spec.hard[{name}]"
        yield from _quota_resource_name_errors(name, path)
        yield from rules.amount_errors(value, path)
        if name in _OBJECT_COUNT_RESOURCES and (rules.parse_nano_amount(value) or 0) % 10**9:
            yield rules.invalid(path, rules.canonical_quantity_or_text(value), "must be an integer", "use an integer")
    standard_names = [name for name in sorted(hard_limits) if _is_standard_resource(name)]
    yield from _scopes_errors(spec.get("scopes") or (), standard_names)
    yield from _scope_selector_errors(spec.get("scopeSelector"), standard_names)


def resource_quota_update_errors(new: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate an update of a ResourceQuota: its scopes are immutable."""
    yield from resource_quota_errors(new)
    new_scopes, old_scopes = ((each.get("spec") or {}).get("scopes") or [] for each in (new, old))
    if sorted(new_scopes) != sorted(old_scopes):
        yield rules.immutable("spec.scopes", new_scopes)


def _is_standard_resource(name: str) -> bool:
    return name in _STANDARD_RESOURCES or name.startswith(_HUGE_PAGES_PREFIXES)


def _quota_resource_name_errors(name: str, path: str) -> Iterator[FieldError]:
    remedy = "use a name such as pods, requests.cpu, limits.memory, requests.nvidia.com/gpu or count/jobs.batch"
    name_errors = rules.qualified_name_errors(name)
    for message in name_errors:
        yield rules.invalid(path, name, message, remedy)
    if name_errors or "/" in name:
        return
    if not _is_standard_resource(name) and name != "storage":
        yield rules.invalid(path, name, "must be a standard resource type or fully qualified", remedy)
    if not _is_standard_resource(name):
        yield rules.invalid(path, name, "must be a standard resource for quota", remedy)


def _scope_applies_to_resource(scope: str, resource_name: str) -> bool:
    if scope == _BEST_EFFORT:
        return resource_name == "pods"
    return scope not in _SCOPES or resource_name == "pods" or resource_name in _COMPUTE_RESOURCES


def _scopes_errors(scopes: Sequence[str], resource_names: Sequence[str]) -> Iterator[FieldError]:
    remedy = f"use scopes from {', '.join(_VALUELESS_SCOPES)}, and only resources of Pods such as pods and requests.cpu"
    for scope in scopes:
        if scope not in _SCOPES:
            yield rules.invalid("spec.scopes", scopes, "unsupported scope", remedy)
        for name in resource_names:
            if not _scope_applies_to_resource(scope, name):
                yield rules.invalid("spec.scopes", scopes, _UNSUPPORTED_SCOPE, remedy)
    yield from _scope_conflict_errors(scopes, scopes, "spec.scopes")


def _scope_selector_errors(selector: Mapping[str, Any] | None, resource_names: Sequence[str]) -> Iterator[FieldError]:
    path, expressions = "spec.scopeSelector.matchExpressions", (selector or {}).get("matchExpressions") or ()
    for expression in expressions:
        scope = expression["scopeName"]
        if scope not in _SCOPES:
            yield rules.invalid(f"{path}.scopeName", scope, "unsupported scope", f"use one of {', '.join(_SCOPES)}")
        for name in resource_names:
            if not _scope_applies_to_resource(scope, name):
                yield rules.invalid(path, selector, _UNSUPPORTED_SCOPE, "use only resources of Pods, such as pods")
        yield from _scope_operator_errors(expression, path)
    yield from _scope_conflict_errors([each["scopeName"] for each in expressions], [], path)


def _scope_operator_errors(expression: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    operator, values = expression["operator"], expression.get("values") or ()
    if expression["scopeName"] in _VALUELESS_SCOPES and operator != "Exists":
        yield rules.invalid(f"{path}.operator", operator, _MUST_EXIST_SCOPES, "use Exists")
    match operator:
        case "In" | "NotIn":
            if not values:
                message = "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector"
                yield rules.required(f"{path}.values", message, "add the name of a PriorityClass")
        case "Exists" | "DoesNotExist":
            if values:
                message = "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector"
                yield rules.invalid(f"{path}.values", values, message, "remove the values")
        case _:
            remedy = "use In, NotIn, Exists or DoesNotExist"
            yield rules.invalid(f"{path}.operator", operator, "not a valid selector operator", remedy)


def _scope_conflict_errors(scopes: Sequence[str], shown_scopes: Sequence[str], path: str) -> Iterator[FieldError]:
    for pair in _CONFLICTING_SCOPES:
        if all(scope in scopes for scope in pair):
            yield rules.invalid(path, list(shown_scopes), "conflicting scopes", f"remove {pair[0]} or {pair[1]}")


# Rules of PodDisruptionBudgets. Source: Kubernetes's pkg/apis/policy/validation.


_PERCENT_PATTERN: Final = re.compile(r"([0-9]+)%", re.ASCII)
_PERCENT_MESSAGE: Final = (
    "a valid percent string must be a numeric string followed by an ending '%' "
    "(e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')"
)
_EVICTION_POLICIES: Final = ("AlwaysAllow", "IfHealthyBudget")
_PERCENT_REMEDY: Final = "use a number such as 2, or a percentage such as 50%"


def disruption_budget_errors(budget: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate a PodDisruptionBudget: metadata, minAvailable or maxUnavailable, eviction policy and selector."""
    yield from rules.metadata_errors(budget)
    spec = budget.get("spec") or {}
    fields = [field for field in ("minAvailable", "maxUnavailable") if spec.get(field) is not None]
    if len(fields) > 1:
        message = "minAvailable and maxUnavailable cannot be both set"
        yield rules.invalid("spec", spec, message, "remove minAvailable or maxUnavailable")
    for field in fields:
        yield from _pod_count_errors(spec[field], f"spec.{field}")
    eviction_policy = spec.get("unhealthyPodEvictionPolicy")
    if eviction_policy is not None and eviction_policy not in _EVICTION_POLICIES:
        yield rules.unsupported("spec.unhealthyPodEvictionPolicy", eviction_policy, _EVICTION_POLICIES)
    yield from rules.selector_errors(spec.get("selector"), "spec.selector")


def _pod_count_errors(value: Any, path: str) -> Iterator[FieldError]:
    if isinstance(value, int):
        if value < 0:
            yield rules.invalid(path, value, rules.NEGATIVE_MESSAGE, _PERCENT_REMEDY)
        return
    percent_match = _PERCENT_PATTERN.fullmatch(value)
    if percent_match is None:
        yield rules.invalid(path, value, _PERCENT_MESSAGE, _PERCENT_REMEDY)
    elif int(percent_match[1]) > 100:
        yield rules.invalid(path, value, "must not be greater than 100%", _PERCENT_REMEDY)


# Rules of roles and their bindings. Source: Kubernetes's pkg/apis/rbac/validation.


_RBAC_GROUP: Final = "rbac.authorization.k8s.io"
_SUBJECT_KINDS: Final = ("ServiceAccount", "User", "Group")


def role_errors(role: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate a Role or ClusterRole: its rules and aggregation selectors."""
    yield from rules.metadata_errors(role)
    for i, rule in enumerate(role.get("rules") or ()):
        yield from _policy_rule_errors(rule, f"rules[{i}]", is_namespaced=role["kind"] == "Role")
    role_selectors = (role.get("aggregationRule") or {}).get("clusterRoleSelectors") or ()
    if "aggregationRule" in role and not role_selectors:
        yield rules.required(
            "aggregationRule.clusterRoleSelectors",
            "at least one clusterRoleSelector required if aggregationRule is non-nil",
            "add a selector for the ClusterRoles whose rules are combined, or remove aggregationRule",
        )
    for i, selector in enumerate(role_selectors):
        yield from rules.selector_errors(selector, f"aggregationRule.clusterRoleSelectors[{i}]")


def binding_errors(binding: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate a RoleBinding or ClusterRoleBinding: its role reference and subjects."""
    yield from rules.metadata_errors(binding)
    is_namespaced, role_reference = binding["kind"] == "RoleBinding", binding["roleRef"]
    role_kinds = ("Role", "ClusterRole") if is_namespaced else ("ClusterRole",)
    if role_reference["apiGroup"] != _RBAC_GROUP:
        yield rules.unsupported("roleRef.apiGroup", role_reference["apiGroup"], (_RBAC_GROUP,))
    if role_reference["kind"] not in role_kinds:
        yield rules.unsupported("roleRef.kind", role_reference["kind"], role_kinds)
    if not role_reference["name"]:
        yield rules.required("roleRef.name", "", "specify the name of the role to bind")
    for message in rules.path_segment_errors(role_reference["name"]):
        yield rules.invalid("roleRef.name", role_reference["name"], message, "use the name of a role")
    for i, subject in enumerate(binding.get("subjects") or ()):
        yield from _subject_errors(subject, f"subjects[{i}]", is_namespaced=is_namespaced)


def binding_update_errors(new: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate an update of a RoleBinding or ClusterRoleBinding: its role is immutable."""
    yield from binding_errors(new)
    if new["roleRef"] != old["roleRef"]:
        remedy = "delete the binding and recreate it"
        yield rules.invalid("roleRef", new["roleRef"], "cannot change roleRef", remedy)


def _policy_rule_errors(rule: Mapping[str, Any], path: str, *, is_namespaced: bool) -> Iterator[FieldError]:
    if not rule["verbs"]:
        yield rules.required(f"{path}.verbs", "verbs must contain at least one value", "add verbs such as get and list")
    non_resource_urls, resources = rule.get("nonResourceURLs"), rule.get("resources")
    if non_resource_urls:
        urls_path = f"{path}.nonResourceURLs"
        if is_namespaced:
            message = "namespaced rules cannot apply to non-resource URLs"
            yield rules.invalid(urls_path, non_resource_urls, message, "use a ClusterRole and a ClusterRoleBinding")
        if rule.get("apiGroups") or resources or rule.get("resourceNames"):
            message = "rules cannot apply to both regular resources and non-resource URLs"
            yield rules.invalid(urls_path, non_resource_urls, message, "split the rule into two")
        return
    if not rule.get("apiGroups"):
        message = "resource rules must supply at least one api group"
        yield rules.required(f"{path}.apiGroups", message, 'add the API groups; "" is the core group')
    if not resources:
        message = "resource rules must supply at least one resource"
        yield rules.required(f"{path}.resources", message, "add the resources, such as jobs")


def _subject_errors(subject: Mapping[str, Any], path: str, *, is_namespaced: bool) -> Iterator[FieldError]:
    kind, name, group = subject["kind"], subject["name"], subject.get("apiGroup", "")
    if not name:
        yield rules.required(f"{path}.name", "", f"specify the name of the {kind}")
    if kind not in _SUBJECT_KINDS:
        yield rules.unsupported(f"{path}.kind", kind, _SUBJECT_KINDS)
    elif kind != "ServiceAccount":
        if group != _RBAC_GROUP:
            yield rules.unsupported(f"{path}.apiGroup", group, (_RBAC_GROUP,))
    else:
        for message in rules.dns_subdomain_errors(name) if name else ():
            yield rules.invalid(f"{path}.name", name, message, "use the name of a ServiceAccount")
        if group:
            yield rules.unsupported(f"{path}.apiGroup", group, ("",))
        if not is_namespaced and not subject.get("namespace"):
            yield rules.required(f"{path}.namespace", "", "specify the namespace of the ServiceAccount")
