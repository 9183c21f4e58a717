"""Rules, defaults and tables of roles and bindings."""

from typing import Any

import pytest

from batchyard.api.manifests import decode
from batchyard.api.printing import row
from batchyard.api.validation import validate_update
from unit.apiserver.roles import GROUP, account, binding, group, role, rule, user


def problems(obj: dict[str, Any]) -> list[str]:
    return [f"{fault.path}: {fault.problem}" for fault in decode(obj).faults]


@pytest.mark.parametrize(
    ("obj", "reported"),
    [
        (role("a", {"verbs": [], "apiGroups": [""], "resources": ["pods"]}), "rules[0].verbs: Required value: verbs"),
        (role("a", {"verbs": ["get"], "resources": ["pods"]}), "rules[0].apiGroups: Required value: resource"),
        (role("a", {"verbs": ["get"], "apiGroups": [""]}), "rules[0].resources: Required value: resource rules must"),
        (role("a", {"verbs": ["get"], "nonResourceURLs": ["/"]}, namespace="n"), "rules[0].nonResourceURLs: Invalid"),
        (role("a", {**rule("get", "pods"), "nonResourceURLs": ["/"]}), "rules[0].nonResourceURLs: Invalid value"),
        (role("a", aggregationRule={}), "aggregationRule.clusterRoleSelectors: Required value"),
        (role("a/b"), "metadata.name: Invalid value: \"a/b\": may not contain '/'"),
        (binding("a", "Role/r", user("u")), 'roleRef.kind: Unsupported value: "Role"'),
        (binding("a", "ClusterRole/", user("u")), "roleRef.name: Required value"),
        (binding("a", "ClusterRole/r", account("s")), "subjects[0].namespace: Required value"),
        (binding("a", "ClusterRole/r", {"kind": "Robot", "name": "r"}), 'subjects[0].kind: Unsupported value: "Robot"'),
        (binding("a", "ClusterRole/r", {**user("u"), "apiGroup": "x"}), 'subjects[0].apiGroup: Unsupported value: "x"'),
        (binding("a", "ClusterRole/r", {**account("s", "n"), "apiGroup": GROUP}), "subjects[0].apiGroup: Unsupported"),
    ],
)
def test_invalid_role_or_binding_is_rejected(obj: dict[str, Any], reported: str) -> None:
    assert [problem[: len(reported)] for problem in problems(obj)] == [reported]


def test_role_name_with_colon_and_capitals_is_accepted() -> None:
    assert problems(role("system:Reads", rule("get", "pods"))) == []


def test_subject_api_group_gets_default() -> None:
    decoded = decode(binding("a", "ClusterRole/r", {"kind": "User", "name": "u"})).obj
    assert decoded is not None
    assert decoded["subjects"] == [{"kind": "User", "name": "u", "apiGroup": GROUP}]


def test_role_ref_of_binding_is_immutable() -> None:
    old, new = (binding("a", f"ClusterRole/{name}", user("u")) for name in ("one", "two"))
    assert [fault.path for fault in validate_update(new, old)] == ["roleRef"]


def test_role_and_binding_rows_match_kubectl() -> None:
    obj = binding("b", "ClusterRole/view", group("g"), "n")
    obj["subjects"] += [user("u"), user("v"), account("s", "n")]
    assert row(obj, now=0, wide=True) == ["b", "ClusterRole/view", "<unknown>", "u, v", "g", "n/s"]
    created = role("r", metadata={"creationTimestamp": "2026-01-01T00:00:00Z"})
    assert row(created, now=0, wide=False) == ["r", "2026-01-01T00:00:00Z"]
