"""Access reviews."""

from collections.abc import Callable
from typing import Any

import pytest

from batchyard.apiserver.request import PENDING_USER, DeferredResponse, UserInfo
from unit.apiserver.api import Api
from unit.apiserver.roles import GROUP, binding, role, rule, user

ROLES = f"/apis/{GROUP}/v1"
REVIEWS = "/apis/authorization.k8s.io/v1"
ANNA = UserInfo("anna", ())
GETS_PODS = {"verb": "get", "resource": "pods", "namespace": "team"}


def server() -> Api:
    """A server where anna may get pods in one namespace, and create any review."""
    api = Api()
    api.post(f"{ROLES}/clusterroles", role("reads", rule("get", "pods")))
    api.post(f"{ROLES}/namespaces/team/rolebindings", binding("b", "ClusterRole/reads", user("anna"), "team"))
    api.post(f"{ROLES}/clusterroles", role("asks", rule("create", "*", "authorization.k8s.io")))
    api.post(f"{ROLES}/clusterrolebindings", binding("asks", "ClusterRole/asks", user("anna")))
    return api


def post_review(path: str, spec: dict[str, Any]) -> Any:
    return server().ask("POST", f"{REVIEWS}/{path}", {"spec": spec}, user=ANNA)


def test_self_subject_access_review_reports_decision_and_reason() -> None:
    source = 'RBAC: allowed by RoleBinding "b/team" of ClusterRole "reads" to User "anna"'
    answer = post_review("selfsubjectaccessreviews", {"resourceAttributes": GETS_PODS})
    assert (answer.code, answer.body["status"]) == (201, {"allowed": True, "reason": source})
    answer = post_review("selfsubjectaccessreviews", {"resourceAttributes": {**GETS_PODS, "verb": "list"}})
    assert answer.body["status"] == {"allowed": False}


def test_subject_access_review_reports_decision_for_another_user() -> None:
    spec = {"user": "carol", "groups": ["system:masters"], "resourceAttributes": GETS_PODS}
    assert post_review("subjectaccessreviews", spec).body["status"] == {"allowed": True}
    spec = {"user": "carol", "nonResourceAttributes": {"verb": "get", "path": "/metrics"}}
    assert post_review("subjectaccessreviews", spec).body["status"] == {"allowed": False}


def test_local_subject_access_review_is_limited_to_its_namespace() -> None:
    spec = {"user": "anna", "resourceAttributes": GETS_PODS}
    assert post_review("namespaces/team/localsubjectaccessreviews", spec).body["status"]["allowed"]
    assert post_review("namespaces/other/localsubjectaccessreviews", spec).code == 422


def test_self_subject_rules_review_lists_rules() -> None:
    status = post_review("selfsubjectrulesreviews", {"namespace": "team"}).body["status"]
    asks = {"verbs": ["create"], "apiGroups": ["authorization.k8s.io"], "resources": ["*"]}
    reads = {"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}
    assert status == {"resourceRules": [asks, reads], "nonResourceRules": [], "incomplete": False}


@pytest.mark.parametrize(
    ("path", "spec", "code"),
    [
        ("selfsubjectaccessreviews", {}, 422),
        ("selfsubjectaccessreviews", {"resourceAttributes": GETS_PODS, "nonResourceAttributes": {"path": "/"}}, 422),
        ("selfsubjectaccessreviews", {"resourceAttributes": "pods"}, 400),
        ("selfsubjectaccessreviews", {"resourceAttributes": {"verb": 7}}, 400),
        ("subjectaccessreviews", {"resourceAttributes": GETS_PODS}, 422),
        ("subjectaccessreviews", {"user": "a", "groups": "b", "resourceAttributes": GETS_PODS}, 400),
        ("selfsubjectrulesreviews", {}, 400),
    ],
)
def test_invalid_review_is_rejected(path: str, spec: dict[str, Any], code: int) -> None:
    assert post_review(path, spec).code == code


def test_reviews_support_create_only() -> None:
    api = Api()
    result = {each["name"]: each for each in api.get("/apis/authorization.k8s.io/v1")["resources"]}
    assert result["subjectaccessreviews"]["verbs"] == ["create"]
    for method, path in (
        ("GET", ""),
        ("GET", "?watch=1"),
        ("DELETE", ""),
        ("GET", "/a"),
        ("PUT", "/a"),
        ("POST", "/a"),
    ):
        assert api.ask(method, f"{REVIEWS}/subjectaccessreviews{path}", {}).code == 405


def test_discovery_lists_token_subresource_of_service_accounts() -> None:
    result = {each["name"]: each for each in Api().get("/api/v1")["resources"]}
    token = result["serviceaccounts/token"]
    assert (token["group"], token["kind"], token["verbs"]) == ("authentication.k8s.io", "TokenRequest", ["create"])


@pytest.mark.parametrize(
    ("sent", "field"),
    [
        ({"metadata": {"name": "x"}, "spec": {"resourceAttributes": {}}}, "metadata"),
        ({"spec": {"resourceAttributes": {}, "nonResourceAttributes": {}}}, "spec.nonResourceAttributes"),
        ({"metadata": {"name": ""}, "spec": {}}, "spec.resourceAttributes"),
    ],
)
def test_invalid_review_reports_field(sent: dict[str, Any], field: str) -> None:
    answer = Api().ask("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", sent)
    assert [cause["field"] for cause in answer.body["details"]["causes"]] == [field]
    empty: dict[str, Any] = {"spec": {"resourceAttributes": {}}}
    assert Api().ask("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", empty).code == 201


class OtherTokens:
    """Knows the token `good` at once, and `late` after `finish`."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[UserInfo | None], None]] = []

    def find_user(self, token: str) -> UserInfo | None:
        return {"good": UserInfo("ada", ("a",)), "late": PENDING_USER}.get(token)

    def finish(self, token: str, client_address: str, on_result: Callable[[UserInfo | None], None]) -> None:
        self.waiting.append(on_result)


def token_review(api: Api, token: str, **spec: Any) -> Any:
    """The answer to a review of a token."""
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token, **spec}}
    return api.answer("POST", "/apis/authentication.k8s.io/v1/tokenreviews", review)


def test_token_of_another_issuer_is_reviewed_for_the_audience_of_the_server() -> None:
    api, issuer = Api(), "https://kubernetes.default.svc"
    api.server.set_external_tokens(OtherTokens())
    status = token_review(api, "good").body["status"]
    assert status == {"authenticated": True, "user": {"username": "ada", "groups": ["a"]}, "audiences": [issuer]}
    assert "error" in token_review(api, "good", audiences=["other"]).body["status"]
    assert "error" in token_review(api, "bad").body["status"]


def test_review_of_a_token_waits_for_the_keys_of_its_issuer() -> None:
    api, tokens, answers = Api(), OtherTokens(), list[Any]()
    api.server.set_external_tokens(tokens)
    answer = token_review(api, "late")
    assert isinstance(answer, DeferredResponse)
    answer.then(answers.append)
    tokens.waiting[0](UserInfo("eve", ()))
    assert answers[0].body["status"]["user"] == {"username": "eve"}
