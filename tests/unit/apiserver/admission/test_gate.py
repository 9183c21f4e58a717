"""Writes that pass webhooks."""

from typing import Any

from unit.apiserver.admission.hooked_api import HookedApi, annotate, configuration, deny, hook, message

PODS = "/api/v1/namespaces/team/pods"


def pod(name: str = "p", **metadata: Any) -> dict[str, Any]:
    """A pod as users send it."""
    container = {"name": "main", "image": "busybox"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, **metadata},
        "spec": {"containers": [container]},
    }


def test_mutating_webhook_changes_new_object() -> None:
    api = HookedApi(note=annotate("seen"))
    api.configure(configuration("a", hook("note")))
    assert api.post(PODS, pod())["metadata"]["annotations"] == {"seen": "yes"}
    [(_, request)] = api.asked
    assert request["operation"] == "CREATE"
    assert request["kind"] == {"group": "", "version": "v1", "kind": "Pod"}
    assert "uid" not in request["object"]["metadata"]
    assert request["object"]["spec"]["serviceAccountName"] == "default"


def test_denied_object_is_not_stored() -> None:
    api = HookedApi(no=deny("bad pod"))
    api.configure(configuration("a", hook("no"), kind="Validating"))
    response = api.ask("POST", PODS, pod())
    assert response.code == 403
    assert message(response) == 'admission webhook "no.example.com" denied the request: bad pod'
    assert api.get(PODS)["items"] == []


def test_object_is_stored_after_the_reply() -> None:
    api = HookedApi(note=annotate("seen"))
    api.configure(configuration("a", hook("note")))
    api.holds_replies = True
    responses = api.later("POST", PODS, pod())
    assert api.get(PODS)["items"] == []
    api.deliver()
    assert responses[0].code == 201
    assert [make_name(item) for item in api.get(PODS)["items"]] == ["p"]


def make_name(obj: Any) -> str:
    """The name of an object."""
    name: str = obj["metadata"]["name"]
    return name
