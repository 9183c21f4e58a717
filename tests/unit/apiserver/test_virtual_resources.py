"""Objects that describe the server: definitions, APIServices, component statuses and its own Service."""

from collections.abc import Mapping
from typing import Any

from batchyard.api.custom_kinds import DEFINITION
from batchyard.api.manifests import decode
from batchyard.api.meta import Key, is_true
from batchyard.api.printing import row
from batchyard.apiserver.api_services import kubernetes_service_objects
from batchyard.apiserver.auth.authorization import bootstrap_roles
from batchyard.apiserver.handlers.read import WatchStream
from batchyard.housekeeping.controllers import CustomResourceDefinitions
from batchyard.interfaces.client import Create
from batchyard.server.platform.provided_objects import ProvidedObjects, provided_role
from unit.apiserver.api import Api

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
QUEUES = "clusterqueues.kueue.x-k8s.io"
SERVICES = "/apis/apiregistration.k8s.io/v1/apiservices"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"


class ProvidedApi(Api):
    """An API with the objects that the platform provides."""

    def __init__(self) -> None:
        super().__init__()
        stored = self.stored
        self.provided = ProvidedObjects(stored.client, stored.kernel, self.resources.all)
        stored.store.listen(self.provided.observe)
        self.provided.begin()
        self.pass_time(1)

    def settle(self) -> None:
        """Let one second pass, so that the platform creates missing objects."""
        self.pass_time(1)


def manifest_of(definition: Mapping[str, Any]) -> dict[str, Any]:
    """A definition as in a release: without the fields that a server adds, with a conversion webhook."""
    service = {"name": "kueue-webhook-service", "namespace": "kueue-system", "path": "/convert"}
    webhook = {"clientConfig": {"service": service}, "conversionReviewVersions": ["v1"]}
    spec = {**definition["spec"], "conversion": {"strategy": "Webhook", "webhook": webhook}}
    head = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition"}
    return {**head, "metadata": {"name": definition["metadata"]["name"], "labels": {"a": "b"}}, "spec": spec}


def test_built_in_custom_kinds_have_established_definitions() -> None:
    result = {item["metadata"]["name"]: item for item in ProvidedApi().get(DEFINITIONS)["items"]}
    assert {QUEUES, "jobsets.jobset.x-k8s.io", "workloads.kueue.x-k8s.io"} <= result.keys()
    assert all(is_true(definition, "Established") for definition in result.values())
    versions = result[QUEUES]["spec"]["versions"]
    assert [(each["name"], each["storage"]) for each in versions] == [("v1beta1", False), ("v1beta2", True)]


def test_client_create_replaces_provided_definition_once() -> None:
    api = ProvidedApi()
    sent = manifest_of(api.get(f"{DEFINITIONS}/{QUEUES}"))
    created = api.post(DEFINITIONS, sent)
    assert created["spec"]["conversion"]["strategy"] == "Webhook"
    assert created["metadata"]["labels"] == {"a": "b"}
    assert "annotations" not in created["metadata"]
    assert is_true(created, "Established")
    assert api.ask("POST", DEFINITIONS, sent).code == 409
    assert api.ask("GET", "/apis/kueue.x-k8s.io/v1beta1/clusterqueues").code == 200


def test_client_apply_replaces_provided_definition_without_conflict() -> None:
    api = ProvidedApi()
    sent = manifest_of(api.get(f"{DEFINITIONS}/{QUEUES}"))
    headers = {"content-type": "application/apply-patch+yaml"}
    for _ in range(2):
        answer = api.ask("PATCH", f"{DEFINITIONS}/{QUEUES}?fieldManager=kubectl", sent, headers=headers)
        assert answer.code == 200, answer.body
    assert answer.body["spec"]["conversion"]["strategy"] == "Webhook"


def test_deleted_provided_object_is_created_again() -> None:
    api = ProvidedApi()
    controller = CustomResourceDefinitions()
    assert api.ask("DELETE", f"{DEFINITIONS}/{QUEUES}").code == 200
    for write in controller.reconcile(Key(DEFINITION, "", QUEUES), api.stored.client, api.stored.kernel.now()).writes:
        assert api.stored.attempt(write).error is None
    assert api.ask("DELETE", f"{SERVICES}/v1.batch").code == 200
    api.settle()
    assert is_true(api.get(f"{DEFINITIONS}/{QUEUES}"), "Established")
    assert api.get(f"{SERVICES}/v1.batch")["spec"]["group"] == "batch"


def test_client_create_replaces_provided_role_once() -> None:
    api, path = Api(), "/apis/rbac.authorization.k8s.io/v1/clusterroles"
    for role in map(provided_role, bootstrap_roles()):
        assert api.stored.attempt(Create(role)).error is None
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]
    head = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "rules": rules}
    sent = {**head, "metadata": {"name": "kueue-job-viewer-role"}}
    assert api.post(path, sent)["rules"] == rules
    assert api.ask("POST", path, sent).code == 409
    assert api.ask("POST", path, {**head, "metadata": {"name": "view"}}).code == 409


def test_api_service_with_service_is_stored() -> None:
    api = ProvidedApi()
    spec = {"group": "visibility.kueue.x-k8s.io", "version": "v1beta2", "groupPriorityMinimum": 100}
    spec |= {"versionPriority": 100, "service": {"name": "s", "namespace": "kueue-system"}}
    head = {"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService"}
    sent = {**head, "metadata": {"name": "v1beta2.visibility.kueue.x-k8s.io"}, "spec": spec}
    created = api.post(SERVICES, sent)
    assert created["spec"]["service"] == {"name": "s", "namespace": "kueue-system", "port": 443}
    assert is_true(created, "Available")
    other = {**sent, "metadata": {"name": "v1.example.com"}, "spec": {**spec, "group": "example.com", "version": "v1"}}
    api.post(SERVICES, other)
    api.settle()
    assert not api.get(f"{SERVICES}/v1.example.com").get("status")  # the checks of aggregated APIs write it
    unserved = {**spec, "group": "other.example.com", "version": "v1", "service": None}
    api.post(SERVICES, {**other, "metadata": {"name": "v1.other.example.com"}, "spec": unserved})
    api.settle()
    result = api.get(f"{SERVICES}/v1.other.example.com")
    assert [(each["status"], each["reason"]) for each in result["status"]["conditions"]] == [("False", "NotServed")]
    assert isinstance(api.watch(f"{SERVICES}?watch=true"), WatchStream)


def test_every_group_version_has_api_service() -> None:
    result = {item["metadata"]["name"]: item["spec"] for item in ProvidedApi().get(SERVICES)["items"]}
    assert {"v1.", "v1.batch", "v1beta2.kueue.x-k8s.io", "v1beta1.metrics.k8s.io"} <= result.keys()
    assert "group" not in result["v1."]
    newest, oldest = result["v1beta2.kueue.x-k8s.io"], result["v1beta1.kueue.x-k8s.io"]
    assert newest["versionPriority"] > oldest["versionPriority"]


def test_api_service_of_built_in_group_is_local_and_available() -> None:
    table = ProvidedApi().get(f"{SERVICES}/v1.batch", accept=TABLE)
    assert table["rows"][0]["cells"][:3] == ["v1.batch", "Local", "True"]
    assert Api().ask("GET", f"{SERVICES}/v9.batch").code == 404


def test_component_statuses_return_deprecation_warning() -> None:
    answer = Api().ask("GET", "/api/v1/componentstatuses")
    assert [item["metadata"]["name"] for item in answer.body["items"]] == ["controller-manager", "journal", "scheduler"]
    assert answer.warnings == ("v1 ComponentStatus is deprecated in v1.19+",)


def test_deprecated_api_version_returns_warning() -> None:
    answer = Api().ask("GET", "/apis/kueue.x-k8s.io/v1beta1/clusterqueues")
    assert answer.warnings == ("This version is deprecated. Use v1beta2 instead.",)
    assert Api().ask("GET", "/apis/kueue.x-k8s.io/v1beta2/clusterqueues").warnings == ()


def test_own_service_has_endpoints_of_listening_address() -> None:
    service, endpoints, result = (
        decode(obj).obj for obj in kubernetes_service_objects("127.0.0.1", 6443, is_https=True)
    )
    assert service is not None
    assert endpoints is not None
    assert result is not None
    assert row(service, now=0, wide=False)[:5] == ["kubernetes", "ClusterIP", "None", "<none>", "443/TCP"]
    assert row(endpoints, now=0, wide=False)[1] == "127.0.0.1:6443"
    assert row(result, now=0, wide=False)[1:4] == ["IPv4", "6443", "127.0.0.1"]


def test_own_service_supports_ipv6_address() -> None:
    assert kubernetes_service_objects("::1", 1, is_https=False)[2]["addressType"] == "IPv6"


def test_table_cell_of_count_is_number() -> None:
    api, path = Api(), "/api/v1/namespaces/team/configmaps"
    api.post(path, {"metadata": {"name": "a"}, "data": {"x": "1", "y": "2"}})
    assert api.get(path, accept=TABLE)["rows"][0]["cells"][:2] == ["a", 2]


def test_root_path_lists_api_paths() -> None:
    paths = Api().get("/")["paths"]
    assert paths == sorted(paths)
    assert {"/api/v1", "/apis", "/apis/batch", "/apis/batch/v1", "/openapi/v3", "/readyz", "/version"} <= {*paths}
