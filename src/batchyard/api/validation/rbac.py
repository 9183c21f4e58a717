"""Rules of roles and their bindings. Source: Kubernetes's pkg/apis/rbac/validation."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from batchyard.api.errors import FieldError
from batchyard.api.validation import errors as faults
from batchyard.api.validation import metadata, names

GROUP: Final = "rbac.authorization.k8s.io"
_SUBJECT_KINDS: Final = ("ServiceAccount", "User", "Group")


def role_faults(role: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate a Role or a ClusterRole."""
    yield from metadata.metadata_faults(role)
    for i, rule in enumerate(role.get("rules") or ()):
        yield from _rule_faults(rule, f"rules[{i}]", is_namespaced=role["kind"] == "Role")
    selectors = (role.get("aggregationRule") or {}).get("clusterRoleSelectors") or ()
    if "aggregationRule" in role and not selectors:
        yield faults.required(
            "aggregationRule.clusterRoleSelectors",
            "at least one clusterRoleSelector required if aggregationRule is non-nil",
            "select the ClusterRoles to take rules from, or drop aggregationRule",
        )
    for i, selector in enumerate(selectors):
        yield from metadata.selector_faults(selector, f"aggregationRule.clusterRoleSelectors[{i}]")


def binding_faults(binding: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate a RoleBinding or a ClusterRoleBinding."""
    yield from metadata.metadata_faults(binding)
    is_namespaced, role = binding["kind"] == "RoleBinding", binding["roleRef"]
    kinds = ("Role", "ClusterRole") if is_namespaced else ("ClusterRole",)
    if role["apiGroup"] != GROUP:
        yield faults.unsupported("roleRef.apiGroup", role["apiGroup"], (GROUP,))
    if role["kind"] not in kinds:
        yield faults.unsupported("roleRef.kind", role["kind"], kinds)
    if not role["name"]:
        yield faults.required("roleRef.name", "", "name the role to bind")
    for message in names.path_segment(role["name"]):
        yield faults.invalid("roleRef.name", role["name"], message, "give the name of a role")
    for i, subject in enumerate(binding.get("subjects") or ()):
        yield from _subject_faults(subject, f"subjects[{i}]", is_namespaced=is_namespaced)


def binding_update_faults(new: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[FieldError]:
    """Validate an update of a binding: its role is immutable."""
    yield from binding_faults(new)
    if new["roleRef"] != old["roleRef"]:
        remedy = "delete the binding and recreate it"
        yield faults.invalid("roleRef", new["roleRef"], "cannot change roleRef", remedy)


def _rule_faults(rule: Mapping[str, Any], path: str, *, is_namespaced: bool) -> Iterator[FieldError]:
    """A rule is about resources or about non-resource URLs, and is complete."""
    if not rule["verbs"]:
        yield faults.required(f"{path}.verbs", "verbs must contain at least one value", "name the allowed verbs")
    urls, resources = rule.get("nonResourceURLs"), rule.get("resources")
    if urls:
        where = f"{path}.nonResourceURLs"
        if is_namespaced:
            message = "namespaced rules cannot apply to non-resource URLs"
            yield faults.invalid(where, urls, message, "use a ClusterRole and a ClusterRoleBinding")
        if rule.get("apiGroups") or resources or rule.get("resourceNames"):
            message = "rules cannot apply to both regular resources and non-resource URLs"
            yield faults.invalid(where, urls, message, "make two rules of it")
        return
    if not rule.get("apiGroups"):
        message = "resource rules must supply at least one api group"
        yield faults.required(f"{path}.apiGroups", message, 'name the groups; "" is the core group')
    if not resources:
        message = "resource rules must supply at least one resource"
        yield faults.required(f"{path}.resources", message, "name the resources, such as jobs")


def _subject_faults(subject: Mapping[str, Any], path: str, *, is_namespaced: bool) -> Iterator[FieldError]:
    """A subject is a ServiceAccount with its namespace, or a user or a group."""
    kind, name, group = subject["kind"], subject["name"], subject.get("apiGroup", "")
    if not name:
        yield faults.required(f"{path}.name", "", "name the subject")
    if kind not in _SUBJECT_KINDS:
        yield faults.unsupported(f"{path}.kind", kind, _SUBJECT_KINDS)
    elif kind != "ServiceAccount":
        if group != GROUP:
            yield faults.unsupported(f"{path}.apiGroup", group, (GROUP,))
    else:
        for message in names.dns_subdomain(name) if name else ():
            yield faults.invalid(f"{path}.name", name, message, "give the name of a ServiceAccount")
        if group:
            yield faults.unsupported(f"{path}.apiGroup", group, ("",))
        if not is_namespaced and not subject.get("namespace"):
            yield faults.required(f"{path}.namespace", "", "name the namespace of the ServiceAccount")
