"""Tokens of ServiceAccounts: TokenRequests issue them, TokenReviews check them."""

from typing import Any

import pytest

from batchyard.apiserver.auth.tokens import ISSUER
from unit.apiserver.api import Api

ACCOUNTS = "/api/v1/namespaces/team/serviceaccounts"
REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"


def with_account() -> Api:
    """A server with a ServiceAccount."""
    api = Api()
    api.post(ACCOUNTS, {"metadata": {"name": "robot"}})
    return api


def request_token(api: Api, **spec: Any) -> dict[str, Any]:
    created: dict[str, Any] = api.post(f"{ACCOUNTS}/robot/token", {"spec": spec})
    return created


def review_token(api: Api, token: str, *audiences: str) -> dict[str, Any]:
    status: dict[str, Any] = api.post(REVIEWS, {"spec": {"token": token, "audiences": list(audiences)}})["status"]
    return status


def is_valid(api: Api, token: str) -> bool:
    return bool(review_token(api, token).get("authenticated"))


def test_token_review_reports_service_account_of_token() -> None:
    api = with_account()
    uid = api.get(f"{ACCOUNTS}/robot")["metadata"]["uid"]
    status = review_token(api, request_token(api)["status"]["token"])
    groups = ["system:serviceaccounts", "system:serviceaccounts:team", "system:authenticated"]
    user = {"username": "system:serviceaccount:team:robot", "uid": uid, "groups": groups}
    assert status == {"authenticated": True, "user": user, "audiences": [ISSUER]}


def test_token_authenticates_request() -> None:
    api = with_account()
    headers = {"authorization": f"Bearer {request_token(api)['status']['token']}"}
    assert api.ask("GET", f"{ACCOUNTS}/robot", headers=headers, user=api.anybody).code == 403
    assert api.ask("GET", "/version", headers=headers, user=api.anybody).code == 200
    assert api.ask("GET", "/version", headers={"authorization": "Bearer x"}, user=api.anybody).code == 401
    assert api.ask("GET", f"{ACCOUNTS}/robot", user=api.anybody).code == 401


def test_token_expires_after_its_expiration_seconds() -> None:
    api = with_account()
    token = request_token(api, expirationSeconds=600)["status"]["token"]
    api.pass_time(599)
    assert is_valid(api, token)
    api.pass_time(1)
    assert not is_valid(api, token)


def test_token_is_valid_for_its_audiences_only() -> None:
    api = with_account()
    token = request_token(api, audiences=["vault", "registry"])["status"]["token"]
    assert not is_valid(api, token)
    assert review_token(api, token, "registry", "elsewhere")["audiences"] == ["registry"]


def test_token_is_invalid_after_deletion_of_its_service_account() -> None:
    api = with_account()
    token = request_token(api)["status"]["token"]
    assert is_valid(api, token)
    api.ask("DELETE", f"{ACCOUNTS}/robot")
    assert not is_valid(api, token)
    api.pass_time(1)
    api.post(ACCOUNTS, {"metadata": {"name": "robot"}})
    assert not is_valid(api, token), "it is another account of that name"


def test_token_is_invalid_after_deletion_of_its_bound_object() -> None:
    api = with_account()
    secrets = "/api/v1/namespaces/team/secrets"
    api.post(secrets, {"metadata": {"name": "s"}})
    token = request_token(api, boundObjectRef={"kind": "Secret", "apiVersion": "v1", "name": "s"})["status"]["token"]
    assert is_valid(api, token)
    api.ask("DELETE", f"{secrets}/s")
    assert not is_valid(api, token)


def test_changed_token_is_invalid() -> None:
    api = with_account()
    head, claims, signature = request_token(api)["status"]["token"].split(".")
    other = request_token(api, audiences=["other"])["status"]["token"].split(".")[1]
    for token in (f"{head}.{other}.{signature}", f"{head}.{claims}.", f"{head}.{claims}", "a.b.c", "é.b.c", "..."):
        assert not is_valid(api, token)


@pytest.mark.parametrize(
    ("spec", "code", "reported"),
    [
        ({"expirationSeconds": 599}, 422, "may not specify a duration less than 10 minutes"),
        ({"expirationSeconds": 1 << 33}, 422, "may not specify a duration larger than 2^32 seconds"),
        ({"expirationSeconds": "600"}, 400, "must be an integer"),
        ({"audiences": "all"}, 400, "must be a list"),
        ({"boundObjectRef": {"kind": "Node", "name": "n"}}, 400, "cannot bind token to object of type Node"),
        ({"boundObjectRef": {"kind": "Secret", "name": "none"}}, 404, 'secrets "none" not found'),
    ],
)
def test_invalid_token_request_is_rejected(spec: dict[str, Any], code: int, reported: str) -> None:
    answer = with_account().ask("POST", f"{ACCOUNTS}/robot/token", {"spec": spec})
    assert answer.code == code
    assert reported in answer.body["message"]


def test_token_request_limits_expiration_to_thirty_days() -> None:
    assert request_token(with_account(), expirationSeconds=10**9)["spec"]["expirationSeconds"] == 30 * 24 * 3600


def test_token_request_for_missing_service_account_is_not_found() -> None:
    answer = Api().ask("POST", f"{ACCOUNTS}/robot/token", {})
    assert (answer.code, answer.body["message"]) == (404, 'serviceaccounts "robot" not found')
    assert with_account().ask("GET", f"{ACCOUNTS}/robot/token").code == 405


@pytest.mark.parametrize(
    ("sent", "code", "reported"),
    [
        ({"metadata": {"name": "other"}}, 422, "must match the service account name if specified"),
        ({"metadata": {"namespace": "other"}}, 422, "must match the service account namespace if specified"),
        ({"apiVersion": "v1", "kind": "Pod"}, 400, "cannot be handled as a TokenRequest"),
        ({"metadata": {"name": "robot", "namespace": "team"}}, 201, ""),
        ({"metadata": "robot"}, 400, "metadata must be an object"),
    ],
)
def test_token_request_must_match_name_namespace_and_kind(sent: dict[str, Any], code: int, reported: str) -> None:
    answer = with_account().ask("POST", f"{ACCOUNTS}/robot/token", sent)
    assert (answer.code, reported in answer.body.get("message", "")) == (code, True)
