"""Authorization by stored roles and bindings."""

import pytest

from batchyard.apiserver.request import AUTHENTICATED_GROUP, UserInfo, account_groups, service_account_username
from unit.apiserver.api import Api, config_map
from unit.apiserver.roles import GROUP, account, binding, group, role, rule, user

ROLES = f"/apis/{GROUP}/v1"
MAPS = "/api/v1/namespaces/team/configmaps"
ANNA = UserInfo("anna", ("team", AUTHENTICATED_GROUP))
ROBOT = UserInfo(service_account_username("team", "robot"), (*account_groups("team"), AUTHENTICATED_GROUP))


def api() -> Api:
    """A server with an unbound ClusterRole that reads ConfigMaps."""
    api = Api()
    api.post(f"{ROLES}/clusterroles", role("reads", rule("get list", "configmaps")))
    return api


def may_read(api: Api, who: UserInfo = ANNA, path: str = MAPS) -> bool:
    code = api.ask("GET", path, user=who).code
    assert code in (200, 403)
    return code == 200


@pytest.mark.parametrize("subject", [user("anna"), group("team"), group(AUTHENTICATED_GROUP)])
def test_role_binding_allows_in_its_namespace_only(subject: dict[str, str]) -> None:
    given = api()
    assert not may_read(given)
    given.post(f"{ROLES}/namespaces/team/rolebindings", binding("b", "ClusterRole/reads", subject, "team"))
    assert may_read(given)
    assert not may_read(given, path="/api/v1/namespaces/other/configmaps")
    assert not may_read(given, path="/api/v1/configmaps")


def test_cluster_role_binding_allows_in_all_namespaces() -> None:
    given = api()
    given.post(f"{ROLES}/clusterrolebindings", binding("b", "ClusterRole/reads", user("anna")))
    assert may_read(given)
    assert may_read(given, path="/api/v1/configmaps")


@pytest.mark.parametrize("subject", [account("robot"), account("robot", "team"), group("system:serviceaccounts:team")])
def test_role_binding_allows_service_account(subject: dict[str, str]) -> None:
    given = api()
    given.post(f"{ROLES}/namespaces/team/rolebindings", binding("b", "ClusterRole/reads", subject, "team"))
    assert may_read(given, ROBOT)
    assert not may_read(
        given, ROBOT._replace(name=service_account_username("other", "robot"), groups=account_groups("other"))
    )


def test_authorizer_follows_changes_of_roles_and_bindings() -> None:
    given = api()
    given.post(f"{ROLES}/namespaces/team/rolebindings", binding("b", "Role/reads", user("anna"), "team"))
    assert not may_read(given), "there is no such Role"
    place = f"{ROLES}/namespaces/team/roles"
    given.post(place, role("reads", rule("list", "configmaps"), namespace="team"))
    assert may_read(given)
    given.ask("PUT", f"{place}/reads", role("reads", rule("list", "secrets"), namespace="team"))
    assert not may_read(given)
    given.ask("PUT", f"{place}/reads", role("reads", rule("list", "configmaps"), namespace="team"))
    given.ask("DELETE", f"{ROLES}/namespaces/team/rolebindings/b")
    assert not may_read(given)


def test_role_binding_allows_get_of_its_namespace() -> None:
    given = api()
    given.post(f"{ROLES}/clusterroles", role("sees", rule("get", "namespaces")))
    given.post(f"{ROLES}/namespaces/team/rolebindings", binding("b", "ClusterRole/sees", user("anna"), "team"))
    assert may_read(given, path="/api/v1/namespaces/team")
    assert not may_read(given, path="/api/v1/namespaces/other")


def test_resource_names_allow_lists_with_matching_field_selector() -> None:
    given = Api()
    given.post(f"{ROLES}/clusterroles", role("one", rule("get list", "configmaps", names="mine")))
    given.post(f"{ROLES}/clusterrolebindings", binding("b", "ClusterRole/one", user("anna")))
    given.post(MAPS, config_map("mine"))
    assert may_read(given, path=f"{MAPS}/mine")
    assert may_read(given, path=f"{MAPS}?fieldSelector=metadata.name=mine")
    assert not may_read(given, path=f"{MAPS}?fieldSelector=metadata.name=other")
    assert not may_read(given)


def test_forbidden_message_names_user_verb_and_resource() -> None:
    reported = Api().ask("POST", f"{MAPS}", config_map("x"), user=ANNA).body
    why = 'User "anna" cannot create resource "configmaps" in API group "" in the namespace "team"'
    assert reported["message"] == f"configmaps is forbidden: {why}"
    assert (reported["reason"], reported["code"], reported["details"]) == ("Forbidden", 403, {"kind": "configmaps"})
    assert Api().ask("GET", "/metrics", user=ANNA).body["message"] == (
        'forbidden: User "anna" cannot get path "/metrics"'
    )


def test_apply_of_new_object_needs_create_right() -> None:
    given = Api()
    given.post(f"{ROLES}/clusterroles", role("patches", rule("patch", "configmaps")))
    given.post(f"{ROLES}/clusterrolebindings", binding("b", "ClusterRole/patches", user("anna")))
    given.post(MAPS, config_map("there"))
    headers = {"content-type": "application/apply-patch+yaml"}
    applied = [
        given.ask("PATCH", f"{MAPS}/{name}?fieldManager=me&force=true", config_map(name), headers=headers, user=ANNA)
        for name in ("there", "new")
    ]
    assert [response.code for response in applied] == [200, 403]
    assert 'cannot create resource "configmaps"' in applied[1].body["message"]


def test_apply_of_status_of_missing_object_is_not_found() -> None:
    given = Api()
    given.post(f"{ROLES}/clusterroles", role("patches", rule("patch", "jobs/status", "batch")))
    given.post(f"{ROLES}/clusterrolebindings", binding("b", "ClusterRole/patches", user("anna")))
    status = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "gone"}, "status": {"active": 1}}
    path = "/apis/batch/v1/namespaces/team/jobs/gone/status?fieldManager=me&force=true"
    headers = {"content-type": "application/apply-patch+yaml"}
    assert given.ask("PATCH", path, status, headers=headers, user=ANNA).code == 404
