"""Namespaces: finalizers, labels and the finalize subresource."""

from batchyard.api import scheme
from batchyard.api.meta import Key, Obj
from unit.apiserver.api import Api

PATH = "/api/v1/namespaces/team"
KEY = Key(scheme.NAMESPACE, "", "team")


def namespace_view(api: Api) -> Obj:
    """The Namespace as clients see it, with the finalizer `kubernetes`."""
    stored = api.stored.store.get(KEY)
    assert stored is not None
    api.stored.store.put(KEY, {**stored, "metadata": {**stored["metadata"], "finalizers": ["kubernetes"]}})
    result: Obj = api.get(PATH)
    return result


def test_namespace_finalizers_are_served_in_spec() -> None:
    result = namespace_view(Api())
    assert result["spec"] == {"finalizers": ["kubernetes"]}
    assert "finalizers" not in result["metadata"]


def test_namespace_update_keeps_finalizers() -> None:
    api = Api()
    result = namespace_view(api)
    answer = api.ask("PUT", PATH, {**result, "metadata": {**result["metadata"], "labels": {"a": "b"}}})
    assert (answer.code, answer.body["spec"]) == (200, {"finalizers": ["kubernetes"]})


def test_namespace_update_without_spec_keeps_finalizers() -> None:
    api = Api()
    namespace_view(api)
    answer = api.ask("PUT", PATH, {"metadata": {"name": "team"}})
    assert (answer.code, answer.body["spec"]) == (200, {"finalizers": ["kubernetes"]})


def test_finalize_subresource_removes_finalizers() -> None:
    api = Api()
    result = namespace_view(api)
    answer = api.ask("PUT", f"{PATH}/finalize", {**result, "spec": {"finalizers": []}})
    assert (answer.code, answer.body["spec"]) == (200, {})
    assert api.ask("DELETE", PATH).body["kind"] == "Namespace"
    assert api.ask("GET", PATH).code == 404


def test_finalize_rejects_other_name_old_revision_and_missing_namespace() -> None:
    api = Api()
    result = namespace_view(api)
    assert api.ask("PUT", f"{PATH}/finalize", {**result, "metadata": {"name": "other"}}).code == 400
    stale = {**result, "metadata": {**result["metadata"], "resourceVersion": "1"}}
    rejected = api.ask("PUT", f"{PATH}/finalize", stale)
    problem = "the object has been modified; please apply your changes to the latest version and try again"
    title = 'namespaces "team"'
    assert (rejected.code, rejected.body["message"]) == (409, f"Operation cannot be fulfilled on {title}: {problem}")
    assert api.ask("PUT", "/api/v1/namespaces/none/finalize", result).code == 404


def test_namespace_is_labelled_with_its_name() -> None:
    api, merge = Api(), {"content-type": "application/merge-patch+json"}
    api.post("/api/v1/namespaces", {"metadata": {"name": "named", "labels": {"a": "b"}}})
    result = api.get("/api/v1/namespaces?labelSelector=kubernetes.io/metadata.name=named")["items"]
    assert result[0]["metadata"]["labels"] == {"a": "b", "kubernetes.io/metadata.name": "named"}
    answer = api.ask("PATCH", "/api/v1/namespaces/named", {"metadata": {"labels": None}}, headers=merge)
    assert answer.body["metadata"]["labels"] == {"kubernetes.io/metadata.name": "named"}


def test_new_namespace_is_active() -> None:
    created = Api().post("/api/v1/namespaces", {"metadata": {"generateName": "made-"}})
    assert (created["spec"], created["status"]) == ({"finalizers": ["kubernetes"]}, {"phase": "Active"})
    assert created["metadata"]["labels"] == {"kubernetes.io/metadata.name": created["metadata"]["name"]}
    assert "f:spec" not in created["metadata"].get("managedFields", [{}])[0].get("fieldsV1", {})
