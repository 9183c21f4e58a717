"""Audit events."""

from batchyard.apiserver.request import UserInfo
from batchyard.apiserver.server import audit_event
from unit.apiserver.api import Api

SECRETS = "/api/v1/namespaces/team/secrets"


def test_audit_event_has_user_request_and_status_without_body() -> None:
    api = Api()
    api.ask("POST", SECRETS, {"metadata": {"name": "s"}, "data": {"word": "aHVzaA=="}}, headers={"user-agent": "k/1"})
    assert audit_event(api.audited[-1], 0, 7) == {
        "kind": "Event",
        "apiVersion": "audit.k8s.io/v1",
        "level": "Metadata",
        "auditID": "0-7",
        "stage": "ResponseComplete",
        "requestURI": SECRETS,
        "verb": "create",
        "user": {"username": "owner", "groups": ["system:masters"]},
        "sourceIPs": [""],
        "userAgent": "k/1",
        "objectRef": {"resource": "secrets", "namespace": "team", "apiVersion": "v1"},
        "responseStatus": {"code": 201},
        "stageTimestamp": "1970-01-01T00:00:00.000000Z",
    }


def test_audit_event_of_forbidden_request_has_reason() -> None:
    api = Api()
    api.ask("GET", f"{SECRETS}?limit=1", user=UserInfo("anna", ()))
    event = audit_event(api.audited[-1], 0, 1)
    assert (event["verb"], event["requestURI"]) == ("list", f"{SECRETS}?limit=1")
    assert (event["responseStatus"]["code"], event["responseStatus"]["reason"]) == (403, "Forbidden")


def test_watch_is_audited_at_response_started() -> None:
    api = Api()
    api.watch(f"{SECRETS}?watch=1")
    event = audit_event(api.audited[-1], 0, 1)
    assert (event["stage"], event["verb"], event["responseStatus"]) == ("ResponseStarted", "watch", {"code": 200})
