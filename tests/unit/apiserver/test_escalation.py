"""Users cannot grant rights that they do not have."""

from typing import Any

import pytest

from batchyard.apiserver.request import UserInfo
from unit.apiserver.api import Api
from unit.apiserver.roles import GROUP, binding, role, rule, user

ROLES = f"/apis/{GROUP}/v1"
BOB = UserInfo("bob", ("admins",))
PODS, SECRETS = rule("get", "pods"), rule("get", "secrets")
WRITES = rule("create update", "roles rolebindings clusterroles clusterrolebindings", GROUP)


def server_with_bob(*rules: dict[str, Any]) -> Api:
    """A server where bob may write roles and bindings, and has the rights of some rules."""
    api = Api()
    api.post(f"{ROLES}/clusterroles", role("of-bob", WRITES, *rules))
    api.post(f"{ROLES}/clusterrolebindings", binding("of-bob", "ClusterRole/of-bob", user("bob")))
    api.post(f"{ROLES}/clusterroles", role("reads-secrets", SECRETS))
    return api


def ask_as_bob(api: Api, plural: str, obj: dict[str, Any]) -> tuple[int, str]:
    where = "" if plural.startswith("cluster") else "/namespaces/team"
    answer = api.ask("POST", f"{ROLES}{where}/{plural}", obj, user=BOB)
    return answer.code, answer.body.get("message", "")


def test_role_cannot_grant_rights_that_its_writer_lacks() -> None:
    api = server_with_bob(PODS)
    assert ask_as_bob(api, "roles", role("less", PODS, namespace="team")) == (201, "")
    code, reported = ask_as_bob(api, "roles", role("more", SECRETS, PODS, namespace="team"))
    who = 'user "bob" (groups=["admins"]) is attempting to grant RBAC permissions not currently held:'
    missing = '{APIGroups:[""], Resources:["secrets"], Verbs:["get"]}'
    assert (code, reported) == (403, f'roles.{GROUP} "more" is forbidden: {who}\n{missing}')


def test_role_update_cannot_grant_rights_that_its_writer_lacks() -> None:
    api = server_with_bob(PODS)
    assert ask_as_bob(api, "roles", role("less", PODS, namespace="team"))[0] == 201
    grown = role("less", PODS, SECRETS, namespace="team")
    assert api.ask("PUT", f"{ROLES}/namespaces/team/roles/less", grown, user=BOB).code == 403


def test_cluster_role_label_needs_rights_of_role() -> None:
    api = server_with_bob(PODS)
    labeled = role("reads-secrets", SECRETS, metadata={"labels": {"to": "view"}})
    assert api.ask("PUT", f"{ROLES}/clusterroles/reads-secrets", labeled, user=BOB).code == 403


@pytest.mark.parametrize(("namespace", "plural"), [("team", "rolebindings"), ("", "clusterrolebindings")])
def test_binding_needs_rights_of_its_role(namespace: str, plural: str) -> None:
    expected = binding("more", "ClusterRole/reads-secrets", user("bob"), namespace)
    assert ask_as_bob(server_with_bob(PODS), plural, expected)[0] == 403
    assert ask_as_bob(server_with_bob(SECRETS), plural, expected)[0] == 201


def test_rights_of_one_namespace_allow_no_cluster_role_binding() -> None:
    api = server_with_bob()
    api.post(f"{ROLES}/namespaces/team/rolebindings", binding("s", "ClusterRole/reads-secrets", user("bob"), "team"))
    assert ask_as_bob(api, "rolebindings", binding("n", "ClusterRole/reads-secrets", user("c"), "team"))[0] == 201
    assert ask_as_bob(api, "clusterrolebindings", binding("n", "ClusterRole/reads-secrets", user("c")))[0] == 403


def test_verb_bind_allows_binding_of_role() -> None:
    api = server_with_bob(rule("bind", "clusterroles", GROUP, "reads-secrets"))
    assert ask_as_bob(api, "clusterrolebindings", binding("m", "ClusterRole/reads-secrets", user("bob")))[0] == 201
    assert ask_as_bob(api, "clusterrolebindings", binding("n", "ClusterRole/of-bob", user("c")))[0] == 201, "he has it"


def test_verb_escalate_allows_role_with_any_rights() -> None:
    api = server_with_bob(rule("escalate", "roles", GROUP))
    assert ask_as_bob(api, "roles", role("more", SECRETS, namespace="team"))[0] == 201
    assert ask_as_bob(api, "clusterroles", role("more", SECRETS))[0] == 403


def test_aggregated_role_needs_all_rights() -> None:
    any_role = role("any", aggregationRule={"clusterRoleSelectors": [{"matchLabels": {"a": "b"}}]})
    assert ask_as_bob(server_with_bob(PODS), "clusterroles", any_role)[0] == 403
    everything = ({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}, {"verbs": ["*"], "nonResourceURLs": ["*"]})
    assert ask_as_bob(server_with_bob(*everything), "clusterroles", any_role)[0] == 201


def test_binding_of_missing_role_is_not_found() -> None:
    code, reported = ask_as_bob(server_with_bob(), "clusterrolebindings", binding("b", "ClusterRole/none", user("bob")))
    assert (code, reported) == (404, f'clusterroles.{GROUP} "none" not found')


def test_aggregation_rule_cannot_be_removed_without_all_rights() -> None:
    api = server_with_bob(PODS)
    gathering = role("any", aggregationRule={"clusterRoleSelectors": [{"matchLabels": {"a": "b"}}]})
    api.post(f"{ROLES}/clusterroles", gathering)
    assert api.ask("PUT", f"{ROLES}/clusterroles/any", role("any", PODS), user=BOB).code == 403


@pytest.mark.parametrize("plural", ["roles", "rolebindings"])
def test_finalizer_is_removed_without_rights_of_role(plural: str) -> None:
    api, path = server_with_bob(rule("patch", "roles rolebindings", GROUP)), f"{ROLES}/namespaces/team/{plural}"
    held = {"finalizers": ["example.com/held"]}
    obj = role("more", SECRETS, namespace="team")
    if plural == "rolebindings":
        obj = binding("more", "ClusterRole/reads-secrets", user("carol"), "team")
    api.post(path, {**obj, "metadata": {**obj["metadata"], **held}})
    merge = {"content-type": "application/merge-patch+json"}
    labeled = {"metadata": {"labels": {"a": "b"}, "finalizers": None}}
    assert api.ask("PATCH", f"{path}/more", labeled, user=BOB, headers=merge).code == 403
    let_go = {"metadata": {"finalizers": None}}
    assert api.ask("PATCH", f"{path}/more", let_go, user=BOB, headers=merge).code == 200
