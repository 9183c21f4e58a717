"""What the API server refuses, in its words."""

from unit.apiserver.api import Api, config_map


def test_what_comes_into_a_namespace_that_is_not_there_is_told_of_the_namespace() -> None:
    answer = Api().ask("POST", "/api/v1/namespaces/none/configmaps", config_map("a"))
    assert (answer.code, answer.body["reason"]) == (404, "NotFound")
    assert answer.body["message"] == 'namespaces "none" not found'
    assert answer.body["details"] == {"name": "none", "kind": "namespaces"}


def test_the_default_namespace_is_not_deleted() -> None:
    answer = Api().ask("DELETE", "/api/v1/namespaces/default")
    assert (answer.code, answer.body["reason"]) == (403, "Forbidden")
    assert answer.body["message"] == 'namespaces "default" is forbidden: this namespace may not be deleted'
