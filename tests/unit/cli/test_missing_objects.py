"""Messages about objects that do not exist or may not be read."""

import pytest

from batchyard.api import scheme
from batchyard.api.scheme import kind_info
from batchyard.apiserver.auth.authorization import bootstrap_roles
from batchyard.cli.missing_objects import NamespacedName, missing_role_advice, not_found_text

EXISTING = [NamespacedName("team-b", "train"), NamespacedName("team-a", "train"), NamespacedName("default", "report")]


@pytest.mark.parametrize(
    ("namespace", "name", "text"),
    [
        ("default", "train", "job train not found in namespace default; found in team-a, team-b (use -n team-a)"),
        ("default", "repor", "job repor not found in namespace default; similar names: report"),
        ("default", "zzz", "job zzz not found in namespace default; existing: report"),
        ("", "trai", "job trai not found; similar names: train"),
    ],
)
def test_message_names_other_namespaces_or_similar_names(namespace: str, name: str, text: str) -> None:
    assert not_found_text(kind_info(scheme.JOB), NamespacedName(namespace, name), EXISTING) == text


def test_message_without_any_object_names_what_to_check() -> None:
    text = not_found_text(kind_info(scheme.JOB), NamespacedName("a", "x"), [])
    assert text == "job x not found in namespace a; no job found: check the namespace, and the cluster or file"


def test_message_shows_limited_number_of_namespaces() -> None:
    existing = [NamespacedName(f"n{number}", "x") for number in range(9)]
    text = not_found_text(kind_info(scheme.JOB), NamespacedName("a", "x"), existing)
    assert text.endswith("found in n0, n1, n2, n3, n4... (use -n n0)")


@pytest.mark.parametrize(
    ("kind", "namespace", "text"),
    [
        (scheme.JOB, "lab", "ask an administrator for the ClusterRole view in namespace lab"),
        (
            scheme.WORKLOAD,
            "lab",
            "ask an administrator for the ClusterRole kueue-workload-viewer-role in namespace lab",
        ),
        (
            scheme.CLUSTER_QUEUE,
            "",
            "ask an administrator for the ClusterRole kueue-clusterqueue-viewer-role by a ClusterRoleBinding",
        ),
    ],
)
def test_message_names_role_that_allows_reading(kind: str, namespace: str, text: str) -> None:
    assert missing_role_advice(kind_info(kind), namespace) == text


def test_named_roles_exist_and_allow_why() -> None:
    roles = {role["metadata"]["name"]: role for role in bootstrap_roles()}
    for kind in (scheme.WORKLOAD, scheme.JOB_SET, scheme.CLUSTER_QUEUE):
        info = kind_info(kind)
        rules = roles[f"kueue-{info.singular}-viewer-role"]["rules"]
        assert any(f"{info.plural}/why" in rule["resources"] for rule in rules)
    assert "view" in roles
