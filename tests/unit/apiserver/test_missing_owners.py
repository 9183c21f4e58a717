"""Objects whose owners do not exist."""

from typing import Any

import pytest

from unit.apiserver.api import Api

MAPS = "/api/v1/namespaces/team/configmaps"
ROLES = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
MERGE = {"content-type": "application/merge-patch+json"}


def owner(name: str = "gone", uid: str = "nobody", kind: str = "ConfigMap", version: str = "v1") -> dict[str, Any]:
    return {"apiVersion": version, "kind": kind, "name": name, "uid": uid}


def object_with_owners(api: Api, *owners: dict[str, Any]) -> Any:
    """Create an object with these owners and get it; the response."""
    api.post(MAPS, {"metadata": {"name": "a", "ownerReferences": [*owners]}})
    return api.ask("GET", f"{MAPS}/a")


@pytest.mark.parametrize(
    ("case", "named"),
    [
        ("missing object", owner()),
        ("object with another uid", owner("there")),
        ("missing cluster object", owner("n", kind="Namespace")),
        ("object in another namespace", owner("kube-root-ca.crt")),
    ],
)
def test_object_with_missing_owner_is_deleted(case: str, named: dict[str, Any]) -> None:
    api = Api()
    api.post(MAPS, {"metadata": {"name": "there"}})
    assert object_with_owners(api, named).code == 404, case


def test_object_is_deleted_when_patched_to_missing_owner() -> None:
    api = Api()
    api.post(MAPS, {"metadata": {"name": "a"}})
    api.ask("PATCH", f"{MAPS}/a", {"metadata": {"ownerReferences": [owner()]}}, headers=MERGE)
    assert api.ask("GET", f"{MAPS}/a").code == 404


def test_missing_owner_is_removed_if_another_owner_exists() -> None:
    api = Api()
    uid = api.post(MAPS, {"metadata": {"name": "there"}})["metadata"]["uid"]
    living = owner("there", uid)
    assert object_with_owners(api, owner(), living).body["metadata"]["ownerReferences"] == [living]


@pytest.mark.parametrize(
    "named", [owner(kind="Rocket", version="space.example.com/v1"), owner(kind="Job", version="batch/v3")]
)
def test_object_with_owner_of_unknown_kind_is_kept(named: dict[str, Any]) -> None:
    assert object_with_owners(Api(), named, owner()).body["metadata"]["ownerReferences"] == [named, owner()]


def test_cluster_object_with_namespaced_owner_is_kept() -> None:
    api = Api()
    api.post(ROLES, {"metadata": {"name": "a", "ownerReferences": [owner()]}, "rules": []})
    assert api.ask("GET", f"{ROLES}/a").code == 200
    api.post(ROLES, {"metadata": {"name": "b", "ownerReferences": [owner("n", kind="Namespace")]}, "rules": []})
    assert api.ask("GET", f"{ROLES}/b").code == 404


def test_cluster_object_outlives_namespaced_owner() -> None:
    api = Api()
    uid = api.post(MAPS, {"metadata": {"name": "there"}})["metadata"]["uid"]
    api.post(ROLES, {"metadata": {"name": "a", "ownerReferences": [owner("there", uid)]}, "rules": []})
    role = api.get(f"{ROLES}/a")["metadata"]["uid"]
    named = owner("a", role, "ClusterRole", "rbac.authorization.k8s.io/v1")
    api.post(ROLES, {"metadata": {"name": "b", "ownerReferences": [named]}, "rules": []})
    api.ask("DELETE", f"{MAPS}/there")
    assert api.ask("GET", f"{ROLES}/a").code == 200
    api.ask("DELETE", f"{ROLES}/a")
    assert api.ask("GET", f"{ROLES}/b").code == 404


def test_undeletable_dependent_is_kept_and_others_deleted() -> None:
    api = Api()
    uid = api.post(ROLES, {"metadata": {"name": "role"}, "rules": []})["metadata"]["uid"]
    named = owner("role", uid, "ClusterRole", "rbac.authorization.k8s.io/v1")
    api.ask("PATCH", "/api/v1/namespaces/default", {"metadata": {"ownerReferences": [named]}}, headers=MERGE)
    api.post(MAPS, {"metadata": {"name": "a", "ownerReferences": [named]}})
    assert api.ask("DELETE", f"{ROLES}/role").code == 200
    assert api.get("/api/v1/namespaces/default")["metadata"]["ownerReferences"] == [named]
    assert api.ask("GET", f"{MAPS}/a").code == 404
