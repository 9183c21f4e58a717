"""Nobody gives more than he has."""

from typing import Any

import pytest

from batchyard.apiserver.request import UserInfo
from unit.apiserver.api import Api
from unit.apiserver.roles import GROUP, binding, role, rule, user

ROLES = f"/apis/{GROUP}/v1"
BOB = UserInfo("bob", ("admins",))
PODS, SECRETS = rule("get", "pods"), rule("get", "secrets")
WRITES = rule("create update", "roles rolebindings clusterroles clusterrolebindings", GROUP)


def held_by_bob(*rules: dict[str, Any]) -> Api:
    """A server where bob may write roles and bindings, and what else he has."""
    api = Api()
    api.post(f"{ROLES}/clusterroles", role("of-bob", WRITES, *rules))
    api.post(f"{ROLES}/clusterrolebindings", binding("of-bob", "ClusterRole/of-bob", user("bob")))
    api.post(f"{ROLES}/clusterroles", role("reads-secrets", SECRETS))
    return api


def by_bob(api: Api, plural: str, obj: dict[str, Any]) -> tuple[int, str]:
    where = "" if plural.startswith("cluster") else "/namespaces/team"
    answer = api.ask("POST", f"{ROLES}{where}/{plural}", obj, user=BOB)
    return answer.code, answer.body.get("message", "")


def test_a_role_holds_what_its_writer_has() -> None:
    api = held_by_bob(PODS)
    assert by_bob(api, "roles", role("less", PODS, namespace="team")) == (201, "")
    code, reported = by_bob(api, "roles", role("more", SECRETS, PODS, namespace="team"))
    who = 'user "bob" (groups=["admins"]) is attempting to grant RBAC permissions not currently held:'
    missing = '{APIGroups:[""], Resources:["secrets"], Verbs:["get"]}'
    assert (code, reported) == (403, f'roles.{GROUP} "more" is forbidden: {who}\n{missing}')


def test_a_role_does_not_grow_beyond_its_writer() -> None:
    api = held_by_bob(PODS)
    assert by_bob(api, "roles", role("less", PODS, namespace="team"))[0] == 201
    grown = role("less", PODS, SECRETS, namespace="team")
    assert api.ask("PUT", f"{ROLES}/namespaces/team/roles/less", grown, user=BOB).code == 403


def test_a_label_is_a_change_of_rights() -> None:
    api = held_by_bob(PODS)
    labelled = role("reads-secrets", SECRETS, metadata={"labels": {"to": "view"}})
    assert api.ask("PUT", f"{ROLES}/clusterroles/reads-secrets", labelled, user=BOB).code == 403


@pytest.mark.parametrize(("namespace", "plural"), [("team", "rolebindings"), ("", "clusterrolebindings")])
def test_a_role_is_bound_by_those_who_have_what_it_holds(namespace: str, plural: str) -> None:
    wanted = binding("more", "ClusterRole/reads-secrets", user("bob"), namespace)
    assert by_bob(held_by_bob(PODS), plural, wanted)[0] == 403
    assert by_bob(held_by_bob(SECRETS), plural, wanted)[0] == 201


def test_rights_in_a_namespace_are_not_rights_everywhere() -> None:
    api = held_by_bob()
    api.post(f"{ROLES}/namespaces/team/rolebindings", binding("s", "ClusterRole/reads-secrets", user("bob"), "team"))
    assert by_bob(api, "rolebindings", binding("n", "ClusterRole/reads-secrets", user("c"), "team"))[0] == 201
    assert by_bob(api, "clusterrolebindings", binding("n", "ClusterRole/reads-secrets", user("c")))[0] == 403


def test_the_verb_bind_lets_bind() -> None:
    api = held_by_bob(rule("bind", "clusterroles", GROUP, "reads-secrets"))
    assert by_bob(api, "clusterrolebindings", binding("m", "ClusterRole/reads-secrets", user("bob")))[0] == 201
    assert by_bob(api, "clusterrolebindings", binding("n", "ClusterRole/of-bob", user("c")))[0] == 201, "he has it"


def test_the_verb_escalate_lets_write_any_role() -> None:
    api = held_by_bob(rule("escalate", "roles", GROUP))
    assert by_bob(api, "roles", role("more", SECRETS, namespace="team"))[0] == 201
    assert by_bob(api, "clusterroles", role("more", SECRETS))[0] == 403


def test_what_is_made_of_other_roles_is_for_those_who_have_all() -> None:
    any_role = role("any", aggregationRule={"clusterRoleSelectors": [{"matchLabels": {"a": "b"}}]})
    assert by_bob(held_by_bob(PODS), "clusterroles", any_role)[0] == 403
    everything = ({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}, {"verbs": ["*"], "nonResourceURLs": ["*"]})
    assert by_bob(held_by_bob(*everything), "clusterroles", any_role)[0] == 201


def test_a_role_that_is_not_there_is_not_bound() -> None:
    code, reported = by_bob(held_by_bob(), "clusterrolebindings", binding("b", "ClusterRole/none", user("bob")))
    assert (code, reported) == (404, f'clusterroles.{GROUP} "none" not found')


def test_what_gathers_rules_is_not_made_one_that_does_not() -> None:
    api = held_by_bob(PODS)
    gathering = role("any", aggregationRule={"clusterRoleSelectors": [{"matchLabels": {"a": "b"}}]})
    api.post(f"{ROLES}/clusterroles", gathering)
    assert api.ask("PUT", f"{ROLES}/clusterroles/any", role("any", PODS), user=BOB).code == 403


@pytest.mark.parametrize("plural", ["roles", "rolebindings"])
def test_who_lets_go_gives_nothing(plural: str) -> None:
    api, path = held_by_bob(rule("patch", "roles rolebindings", GROUP)), f"{ROLES}/namespaces/team/{plural}"
    held = {"finalizers": ["example.com/held"]}
    obj = role("more", SECRETS, namespace="team")
    if plural == "rolebindings":
        obj = binding("more", "ClusterRole/reads-secrets", user("carol"), "team")
    api.post(path, {**obj, "metadata": {**obj["metadata"], **held}})
    merge = {"content-type": "application/merge-patch+json"}
    labelled = {"metadata": {"labels": {"a": "b"}, "finalizers": None}}
    assert api.ask("PATCH", f"{path}/more", labelled, user=BOB, headers=merge).code == 403
    let_go = {"metadata": {"finalizers": None}}
    assert api.ask("PATCH", f"{path}/more", let_go, user=BOB, headers=merge).code == 200
