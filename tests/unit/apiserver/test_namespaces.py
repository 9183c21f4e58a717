"""Namespaces as clients see them, and how one that cannot go is let go."""

from batchyard.api import scheme
from batchyard.api.meta import Key, Obj
from unit.apiserver.api import Api

PATH = "/api/v1/namespaces/team"
KEY = Key(scheme.NAMESPACE, "", "team")


def held(api: Api) -> Obj:
    """The Namespace as clients see it, held until it is empty."""
    stored = api.stored.store.get(KEY)
    assert stored is not None
    api.stored.store.put(KEY, {**stored, "metadata": {**stored["metadata"], "finalizers": ["kubernetes"]}})
    found: Obj = api.get(PATH)
    return found


def test_what_holds_it_is_told_in_its_spec() -> None:
    found = held(Api())
    assert found["spec"] == {"finalizers": ["kubernetes"]}
    assert "finalizers" not in found["metadata"]


def test_one_that_is_sent_back_is_held_as_it_was() -> None:
    api = Api()
    found = held(api)
    answer = api.ask("PUT", PATH, {**found, "metadata": {**found["metadata"], "labels": {"a": "b"}}})
    assert (answer.code, answer.body["spec"]) == (200, {"finalizers": ["kubernetes"]})


def test_only_its_finalizing_lets_it_go() -> None:
    api = Api()
    held(api)
    answer = api.ask("PUT", PATH, {"metadata": {"name": "team"}})
    assert (answer.code, answer.body["spec"]) == (200, {"finalizers": ["kubernetes"]})


def test_finalized_it_is_held_no_more() -> None:
    api = Api()
    found = held(api)
    answer = api.ask("PUT", f"{PATH}/finalize", {**found, "spec": {"finalizers": []}})
    assert (answer.code, answer.body["spec"]) == (200, {})
    assert api.ask("DELETE", PATH).body["kind"] == "Namespace"
    assert api.ask("GET", PATH).code == 404


def test_only_the_namespace_itself_finalizes_it() -> None:
    api = Api()
    found = held(api)
    assert api.ask("PUT", f"{PATH}/finalize", {**found, "metadata": {"name": "other"}}).code == 400
    stale = {**found, "metadata": {**found["metadata"], "resourceVersion": "1"}}
    assert api.ask("PUT", f"{PATH}/finalize", stale).code == 409
    assert api.ask("PUT", "/api/v1/namespaces/none/finalize", found).code == 404


def test_each_is_labelled_with_its_name() -> None:
    api, merge = Api(), {"content-type": "application/merge-patch+json"}
    api.post("/api/v1/namespaces", {"metadata": {"name": "named", "labels": {"a": "b"}}})
    found = api.get("/api/v1/namespaces?labelSelector=kubernetes.io/metadata.name=named")["items"]
    assert found[0]["metadata"]["labels"] == {"a": "b", "kubernetes.io/metadata.name": "named"}
    answer = api.ask("PATCH", "/api/v1/namespaces/named", {"metadata": {"labels": None}}, headers=merge)
    assert answer.body["metadata"]["labels"] == {"kubernetes.io/metadata.name": "named"}


def test_a_new_one_is_active_at_once() -> None:
    made = Api().post("/api/v1/namespaces", {"metadata": {"generateName": "made-"}})
    assert (made["spec"], made["status"]) == ({"finalizers": ["kubernetes"]}, {"phase": "Active"})
    assert made["metadata"]["labels"] == {"kubernetes.io/metadata.name": made["metadata"]["name"]}
    assert "f:spec" not in made["metadata"].get("managedFields", [{}])[0].get("fieldsV1", {})
