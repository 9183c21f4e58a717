"""Impersonation headers."""

from typing import Any

import pytest

from batchyard.apiserver.request import UserInfo
from unit.apiserver.api import Api
from unit.apiserver.roles import GROUP, binding, role, rule, user

ROLES = f"/apis/{GROUP}/v1"
REVIEWS = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
ANNA = UserInfo("anna", ("system:authenticated",))


def impersonated_user(api: Api, who: UserInfo | None = None, **headers: str) -> Any:
    """The user that a SelfSubjectReview reports with impersonation headers, or the error message."""
    reported = {name.replace("_", "-"): value for name, value in headers.items()}
    answer = (
        api.ask("POST", REVIEWS, {}, headers=reported)
        if who is None
        else api.ask("POST", REVIEWS, {}, headers=reported, user=who)
    )
    return answer.body["status"]["userInfo"] if answer.code == 201 else answer.body["message"]


def server() -> Api:
    """A server where authenticated users may create SelfSubjectReviews."""
    api = Api()
    api.post(f"{ROLES}/clusterroles", role("who", rule("create", "selfsubjectreviews", "authentication.k8s.io")))
    for name in ("system:authenticated", "a", "b"):
        subject = {"kind": "Group", "name": name}
        api.post(f"{ROLES}/clusterrolebindings", binding(f"who-{name.replace(':', '-')}", "ClusterRole/who", subject))
    return api


def test_impersonated_user_is_authenticated() -> None:
    result = impersonated_user(server(), impersonate_user="carol")
    assert result == {"username": "carol", "groups": ["system:authenticated"]}


def test_impersonation_sets_groups_uid_and_extra() -> None:
    headers = {"impersonate_user": "carol", "impersonate_group": "a\nb", "impersonate_uid": "1"}
    result = impersonated_user(server(), None, **headers, **{"impersonate_extra_team%2fname": "x\ny"})
    assert result["groups"] == ["a", "b", "system:authenticated"]
    assert (result["uid"], result["extra"]) == ("1", {"team/name": ["x", "y"]})


def test_impersonated_service_account_has_its_groups() -> None:
    result = impersonated_user(server(), impersonate_user="system:serviceaccount:team:robot")
    assert result["groups"] == ["system:serviceaccounts", "system:serviceaccounts:team", "system:authenticated"]


@pytest.mark.parametrize(
    ("headers", "reported"),
    [
        ({"impersonate_user": "carol"}, 'users "carol" is forbidden: User "anna" cannot impersonate resource "users"'),
        ({"impersonate_user": "bob", "impersonate_group": "a"}, 'groups "a" is forbidden'),
        ({"impersonate_user": "bob", "impersonate_uid": "7"}, 'uids.authentication.k8s.io "7" is forbidden'),
        (
            {"impersonate_user": "bob", "impersonate_extra_scope": "all"},
            'cannot impersonate resource "userextras/scope" in API group "authentication.k8s.io"',
        ),
        ({"impersonate_user": "system:serviceaccount:t:r"}, 'serviceaccounts "r" is forbidden'),
        ({"impersonate_group": "a"}, "without impersonating a user"),
    ],
)
def test_impersonation_needs_right_for_each_attribute(headers: dict[str, str], reported: str) -> None:
    api = server()
    api.post(f"{ROLES}/clusterroles", role("as-bob", rule("impersonate", "users", names="bob")))
    api.post(f"{ROLES}/clusterrolebindings", binding("as-bob", "ClusterRole/as-bob", user("anna")))
    assert impersonated_user(api, ANNA, impersonate_user="bob")["username"] == "bob"
    assert reported in impersonated_user(api, ANNA, **headers)


def test_audit_has_real_and_impersonated_user() -> None:
    api = server()
    impersonated_user(api, impersonate_user="carol")
    last = api.audited[-1]
    assert (last.authenticated_request.user.name, last.effective_request.user.name) == ("owner", "carol")
