"""What names owners that are not there."""

from typing import Any

import pytest

from unit.apiserver.api import Api

MAPS = "/api/v1/namespaces/team/configmaps"
ROLES = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
MERGE = {"content-type": "application/merge-patch+json"}


def owner(name: str = "gone", uid: str = "nobody", kind: str = "ConfigMap", version: str = "v1") -> dict[str, Any]:
    return {"apiVersion": version, "kind": kind, "name": name, "uid": uid}


def stray(api: Api, *owners: dict[str, Any]) -> Any:
    """The answer to who asks for what was made with these owners."""
    api.post(MAPS, {"metadata": {"name": "a", "ownerReferences": [*owners]}})
    return api.ask("GET", f"{MAPS}/a")


@pytest.mark.parametrize(
    ("case", "named"),
    [
        ("nobody of the name", owner()),
        ("another of the name", owner("there")),
        ("one without a namespace", owner("n", kind="Namespace")),
        ("somebody in another namespace", owner("kube-root-ca.crt")),
    ],
)
def test_it_goes(case: str, named: dict[str, Any]) -> None:
    api = Api()
    api.post(MAPS, {"metadata": {"name": "there"}})
    assert stray(api, named).code == 404, case


def test_it_goes_when_it_comes_to_name_them_as_well() -> None:
    api = Api()
    api.post(MAPS, {"metadata": {"name": "a"}})
    api.ask("PATCH", f"{MAPS}/a", {"metadata": {"ownerReferences": [owner()]}}, headers=MERGE)
    assert api.ask("GET", f"{MAPS}/a").code == 404


def test_it_loses_them_where_another_is_there() -> None:
    api = Api()
    uid = api.post(MAPS, {"metadata": {"name": "there"}})["metadata"]["uid"]
    living = owner("there", uid)
    assert stray(api, owner(), living).body["metadata"]["ownerReferences"] == [living]


@pytest.mark.parametrize(
    "named",
    [owner(kind="Rocket", version="space.example.com/v1"), owner(kind="Job", version="batch/v3")],
)
def test_it_stays_where_nobody_knows_such_owners(named: dict[str, Any]) -> None:
    assert stray(Api(), named, owner()).body["metadata"]["ownerReferences"] == [named, owner()]


def test_what_has_no_namespace_has_no_owner_in_one() -> None:
    api = Api()
    api.post(ROLES, {"metadata": {"name": "a", "ownerReferences": [owner()]}, "rules": []})
    assert api.ask("GET", f"{ROLES}/a").code == 200
    api.post(ROLES, {"metadata": {"name": "b", "ownerReferences": [owner("n", kind="Namespace")]}, "rules": []})
    assert api.ask("GET", f"{ROLES}/b").code == 404


def test_what_has_no_namespace_stays_when_one_goes_that_it_names_in_one() -> None:
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


def test_what_may_not_be_deleted_stays_and_others_go() -> None:
    api = Api()
    uid = api.post(ROLES, {"metadata": {"name": "role"}, "rules": []})["metadata"]["uid"]
    named = owner("role", uid, "ClusterRole", "rbac.authorization.k8s.io/v1")
    api.ask("PATCH", "/api/v1/namespaces/default", {"metadata": {"ownerReferences": [named]}}, headers=MERGE)
    api.post(MAPS, {"metadata": {"name": "a", "ownerReferences": [named]}})
    assert api.ask("DELETE", f"{ROLES}/role").code == 200
    assert api.get("/api/v1/namespaces/default")["metadata"]["ownerReferences"] == [named]
    assert api.ask("GET", f"{MAPS}/a").code == 404
