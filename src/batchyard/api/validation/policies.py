"""Validation of LimitRanges, ResourceQuotas, PodDisruptionBudgets, RBAC roles and bindings, and webhooks."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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


# Rules of webhook configurations. Sources: Kubernetes's pkg/apis/admissionregistration/validation; k8s.io/apiserver,
# pkg/util/webhook/validation.go.


_REVIEW_VERSIONS: Final = ("v1", "v1beta1")
_OPERATIONS: Final = ("*", "CONNECT", "CREATE", "DELETE", "UPDATE")
_ALL: Final = "*"
_URL_FORM: Final = "; desired format: https://host[/path]"
_MATCH_CONDITIONS_MAX: Final = 64


def webhook_configuration_errors(configuration: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate a MutatingWebhookConfiguration or a ValidatingWebhookConfiguration."""
    yield from rules.metadata_errors(configuration)
    seen_names: dict[str, None] = {}
    for i, webhook in enumerate(configuration.get("webhooks") or ()):
        path, name = f"webhooks[{i}]", webhook["name"]
        yield from _webhook_errors(webhook, path)
        yield from _review_version_errors(webhook["admissionReviewVersions"], f"{path}.admissionReviewVersions")
        if name in seen_names:
            yield rules.duplicate(f"{path}.name", name, "give each webhook another name")
        seen_names[name] = None


def _webhook_errors(webhook: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    yield from _qualified_webhook_name_errors(webhook["name"], f"{path}.name")
    for i, rule in enumerate(webhook.get("rules") or ()):
        yield from admission_rule_errors(rule, f"{path}.rules[{i}]")
    for field in ("namespaceSelector", "objectSelector"):
        yield from rules.selector_errors(webhook.get(field), f"{path}.{field}")
    yield from webhook_client_errors(webhook["clientConfig"], f"{path}.clientConfig")
    yield from match_condition_errors(webhook.get("matchConditions") or (), f"{path}.matchConditions")


def _qualified_webhook_name_errors(name: str, path: str) -> Iterator[FieldError]:
    remedy = "use a name such as my-webhook.example.com"
    if not name:
        yield rules.required(path, "", remedy)
        return
    name_errors = rules.dns_subdomain_errors(name)
    if name_errors:
        yield rules.invalid(path, name, ",".join(name_errors), remedy)
    elif name.count(".") < 2:
        yield rules.invalid(path, name, "should be a domain with at least three segments separated by dots", remedy)


def admission_rule_errors(rule: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    """Validate the operations, groups, versions and resources of a rule of a webhook or an admission policy."""
    operations: Sequence[str] = rule.get("operations") or ()
    yield from _wildcard_errors(operations, f"{path}.operations", "operations")
    for i, operation in enumerate(operations):
        if operation not in _OPERATIONS:
            yield rules.unsupported(f"{path}.operations[{i}]", operation, _OPERATIONS)
    yield from _wildcard_errors(rule.get("apiGroups") or (), f"{path}.apiGroups", "API groups")
    versions: Sequence[str] = rule.get("apiVersions") or ()
    yield from _wildcard_errors(versions, f"{path}.apiVersions", "API versions")
    for i, version in enumerate(versions):
        if not version:
            yield rules.required(f"{path}.apiVersions[{i}]", "", "write a version such as v1")
    yield from _resource_pattern_errors(rule.get("resources") or (), f"{path}.resources")


def _wildcard_errors(values: Sequence[str], path: str, subject: str) -> Iterator[FieldError]:
    if not values:
        yield rules.required(path, "", "add at least one value, such as *")
    elif len(values) > 1 and _ALL in values:
        yield rules.invalid(path, list(values), f"if '*' is present, must not specify other {subject}", "remove *")


def _resource_pattern_errors(patterns: Sequence[str], path: str) -> Iterator[FieldError]:
    remedy = "remove the redundant resource"
    if not patterns:
        yield rules.required(path, "", "add at least one resource, such as pods")
    all_subresources_of: dict[str, None] = {}
    subresources_of_all: dict[str, None] = {}
    for i, pattern in enumerate(patterns):
        if not pattern:
            yield rules.required(f"{path}[{i}]", "", "write a resource such as pods")
            continue
        resource, slash, subresource = pattern.partition("/")
        if not slash:
            continue
        if resource in all_subresources_of:
            message = f"if '{resource}/*' is present, must not specify {pattern}"
            yield rules.invalid(f"{path}[{i}]", pattern, message, remedy)
        if subresource in subresources_of_all:
            message = f"if '*/{subresource}' is present, must not specify {pattern}"
            yield rules.invalid(f"{path}[{i}]", pattern, message, remedy)
        if subresource == _ALL:
            all_subresources_of[resource] = None
        if resource == _ALL:
            subresources_of_all[subresource] = None
    if len(patterns) > 1 and "*/*" in patterns:
        yield rules.invalid(path, list(patterns), "if '*/*' is present, must not specify other resources", remedy)
    last_plain_pattern = next((pattern for pattern in reversed(patterns) if pattern and "/" not in pattern), _ALL)
    if _ALL in patterns and last_plain_pattern != _ALL:  # as upstream, which only compares the last one
        message = "if '*' is present, must not specify other resources without subresources"
        yield rules.invalid(path, list(patterns), message, remedy)


def webhook_client_errors(client_config: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    """Validate the client configuration of a webhook: exactly one of an HTTPS URL and a Service."""
    url, service = client_config.get("url"), client_config.get("service")
    if (url is None) == (service is None):
        message = "exactly one of url or service is required"
        yield rules.required(path, message, "set url, or service with namespace and name")
    elif service is not None:
        yield from _webhook_service_errors(service, f"{path}.service")
    else:
        yield from _webhook_url_errors(str(url), f"{path}.url")


def _webhook_url_errors(url: str, path: str) -> Iterator[FieldError]:
    remedy = "write a URL such as https://127.0.0.1:9443/validate"
    match = _URL_PATTERN.fullmatch(url)
    scheme, authority, query, fragment = match.groups("") if match else ("", "", "", "")
    if scheme != "https":
        yield rules.invalid(path, scheme, f"'https' is the only allowed URL scheme{_URL_FORM}", remedy)
    user, at_sign, host = authority.rpartition("@")
    if not host:
        yield rules.invalid(path, host, f"host must be specified{_URL_FORM}", remedy)
    if at_sign:
        yield rules.invalid(path, user, "user information is not permitted in the URL", remedy)
    if fragment:
        yield rules.invalid(path, fragment, "fragments are not permitted in the URL", remedy)
    if query:
        yield rules.invalid(path, query, "query parameters are not permitted in the URL", remedy)


_URL_PATTERN: Final = re.compile(r"(?:([A-Za-z][A-Za-z0-9+.-]*):)?(?://([^/?#]*))?[^?#]*(?:\?([^#]*))?(?:#(.*))?")


def _webhook_service_errors(service: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    for field in ("name", "namespace"):
        if not service.get(field):
            yield rules.required(f"{path}.{field}", "", "name the Service of the webhook")
    url_path, remedy = service.get("path") or "", "write a path such as /validate"
    if url_path in ("", "/"):
        return
    if url_path == "//":
        yield rules.invalid(f"{path}.path", url_path, "segment[0] may not be empty", remedy)
        return
    if not url_path.startswith("/"):
        yield rules.invalid(f"{path}.path", url_path, "must start with a '/'", remedy)
    for i, segment in enumerate(url_path[1:].removesuffix("/").split("/")):
        messages = rules.dns_subdomain_errors(segment) if segment else ("may not be empty",)
        for message in messages:
            text = f"segment[{i}]: {message}" if segment else f"segment[{i}] {message}"
            yield rules.invalid(f"{path}.path", url_path, text, remedy)


def _review_version_errors(versions: Sequence[str], path: str) -> Iterator[FieldError]:
    accepted_text, remedy = ", ".join(_REVIEW_VERSIONS), "add v1"
    if not versions:
        yield rules.required(path, f"must specify one of {accepted_text}", remedy)
        return
    repeated_indexes = rules.repeated_indexes(versions)
    for i, version in enumerate(versions):
        if i in repeated_indexes:
            yield rules.invalid(f"{path}[{i}]", version, "duplicate version", "remove it")
            continue
        for message in rules.dns1035_label_errors(version):
            yield rules.invalid(f"{path}[{i}]", version, message, remedy)
    if not any(version in _REVIEW_VERSIONS for version in versions):
        yield rules.invalid(path, list(versions), f"must include at least one of {accepted_text}", remedy)


def match_condition_errors(
    conditions: Sequence[Mapping[str, Any]],
    path: str,
    find_expression_errors: Callable[[str, str], Iterable[FieldError]] = lambda _expression, _path: (),
) -> Iterator[FieldError]:
    """Validate the match conditions of a webhook or an admission policy.

    `find_expression_errors` returns the errors in an expression that is not empty, at a path.
    """
    if len(conditions) > _MATCH_CONDITIONS_MAX:
        yield rules.too_many_items_error(path, len(conditions), _MATCH_CONDITIONS_MAX, "")
    names = [condition.get("name") or "" for condition in conditions]
    repeated_indexes = rules.repeated_indexes(names)
    for i, (name, condition) in enumerate(zip(names, conditions, strict=True)):
        expression = (condition.get("expression") or "").strip()
        if expression:
            yield from find_expression_errors(expression, f"{path}[{i}].expression")
        else:
            yield rules.required(f"{path}[{i}].expression", "", "write a CEL expression")
        if not name:
            yield rules.required(f"{path}[{i}].name", "", "name the condition")
        for message in rules.qualified_name_errors(name) if name else ():
            yield rules.invalid(f"{path}[{i}].name", name, message, "use a name such as exclude-leases")
        if name and i in repeated_indexes:
            yield rules.duplicate(f"{path}[{i}].name", name, "give each condition another name")
