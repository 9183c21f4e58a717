"""Writes through the API: stored objects, dry runs, rejections and their messages."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest

import make
from batchyard.api import scheme
from batchyard.api.meta import Key
from batchyard.apiserver.request import DeferredResponse, Response, StatusError, UserInfo
from unit.apiserver.api import Api, config_map

MAPS = "/api/v1/namespaces/team-a/configmaps"
JOBS = "/apis/batch/v1/namespaces/team-a/jobs"
DEPLOYMENTS = "/apis/apps/v1/namespaces/team-a/deployments"
FLOW_SCHEMAS = "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas"
QUEUES = "/apis/kueue.x-k8s.io/v1beta2/clusterqueues"
APPLY = {"content-type": "application/apply-patch+yaml"}
MERGE = {"content-type": "application/merge-patch+json"}
STRATEGIC = {"content-type": "application/strategic-merge-patch+json"}
JSON_PATCH = {"content-type": "application/json-patch+json"}


def job(name: str = "j", **spec: Any) -> dict[str, Any]:
    """A suspended Job."""
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}
    metadata = {"name": name, "namespace": "team-a"}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": {"template": template, **spec}}


def check_rejection(response: Response, code: int, reported: str) -> None:
    """Check the code and the message of a rejected request."""
    assert (response.code, response.body.get("message")) == (code, reported)


@pytest.fixture
def api() -> Api:
    """An API with one ConfigMap."""
    created = Api()
    created.post(f"{MAPS}?fieldManager=maker", config_map("a", x="1"))
    return created


def patch(api: Api, path: str, body: Any, headers: Mapping[str, str] = MERGE) -> Response:
    """The answer to a patch."""
    return api.ask("PATCH", path, body, headers=headers)


def test_create_owns_all_sent_fields(api: Api) -> None:
    [entry] = api.get(f"{MAPS}/a")["metadata"]["managedFields"]
    fields = {"f:data": {".": {}, "f:x": {}}, "f:metadata": {"f:labels": {".": {}, "f:x": {}}}}
    assert entry["fieldsV1"] == fields
    assert (entry["manager"], entry["operation"], entry["apiVersion"]) == ("maker", "Update", "v1")


def test_field_manager_defaults_to_user_agent(api: Api) -> None:
    api.ask("PUT", f"{MAPS}/a", config_map("a", x="2"), headers={"user-agent": "helm/v3.1 (linux)"})
    entries = api.get(f"{MAPS}/a")["metadata"]["managedFields"]
    assert [entry["manager"] for entry in entries] == ["helm", "maker"]


def test_update_clears_managed_fields(api: Api) -> None:
    api.ask("PUT", f"{MAPS}/a", {**config_map("a", x="1"), "metadata": {"name": "a", "managedFields": []}})
    assert [e["manager"] for e in api.get(f"{MAPS}/a")["metadata"].get("managedFields", [])] == []


@pytest.mark.parametrize(
    ("method", "path", "body", "headers", "code"),
    [
        ("POST", MAPS, config_map("b", y="2"), {}, 201),
        ("PUT", f"{MAPS}/a", config_map("a", y="2"), {}, 200),
        ("PATCH", f"{MAPS}/a", {"data": {"y": "2"}}, MERGE, 200),
        ("PATCH", f"{MAPS}/c", config_map("c", y="2"), APPLY, 201),
        ("DELETE", f"{MAPS}/a", {"dryRun": ["All"]}, {}, 200),
        ("DELETE", MAPS, None, {}, 200),
    ],
)
def test_dry_run_stores_nothing(
    api: Api, method: str, path: str, body: Any, headers: Mapping[str, str], code: int
) -> None:
    before = api.stored.revision
    answer = api.ask(method, f"{path}?dryRun=All{'&fieldManager=me' * bool(headers)}", body, headers=headers)
    assert answer.code == code
    assert "y" in answer.body.get("data", {"y": ""})
    assert api.stored.revision == before


def test_dry_run_is_validated(api: Api) -> None:
    check_rejection(api.ask("POST", f"{MAPS}?dryRun=All", config_map("a")), 409, 'configmaps "a" already exists')
    reported = 'CreateOptions.meta.k8s.io "" is invalid: dryRun: Unsupported value: "Some": supported values: "All"'
    check_rejection(api.ask("POST", f"{MAPS}?dryRun=Some", config_map("b")), 422, reported)


UNKNOWN = {**config_map("b"), "datas": {}, "metadata": {"name": "b", "lables": {}}}


def test_unknown_fields_are_dropped_with_warning(api: Api) -> None:
    answer = api.ask("POST", MAPS, UNKNOWN)
    assert answer.code == 201
    assert sorted(answer.warnings) == ['unknown field "datas"', 'unknown field "metadata.lables"']
    assert "datas" not in answer.body


def test_field_validation_ignore_drops_unknown_fields_without_warning(api: Api) -> None:
    assert api.ask("POST", f"{MAPS}?fieldValidation=Ignore", UNKNOWN).warnings == ()


def test_field_validation_strict_rejects_unknown_fields(api: Api) -> None:
    sent = job(parallelisms=1)
    sent["spec"]["template"]["spec"]["containers"][0]["images"] = "i"
    answer = api.ask("POST", f"{JOBS}?fieldValidation=Strict", sent)
    reported = 'strict decoding error: unknown field "spec.template.spec.containers[0].images", unknown field'
    message = f'Job in version "v1" cannot be handled as a Job: {reported} "spec.parallelisms"'
    check_rejection(answer, 400, message)


def test_duplicate_fields_are_reported(api: Api) -> None:
    twice = b'{"metadata": {"name": "b"}, "data": {"x": "1", "x": "2"}}'
    assert api.ask("POST", MAPS, twice).warnings == ('duplicate field "data.x"',)
    answer = api.ask("PUT", f"{MAPS}/b?fieldValidation=Strict", twice)
    message = 'ConfigMap in version "v1" cannot be handled as a ConfigMap: strict decoding error: duplicate field'
    check_rejection(answer, 400, f'{message} "data.x"')


def test_strict_patch_of_unknown_field_reports_patch(api: Api) -> None:
    answer = patch(api, f"{MAPS}/a?fieldValidation=Strict", {"datas": {}})
    assert (answer.code, answer.body["details"]["causes"][0]["field"]) == (422, "patch")
    assert answer.body["message"].endswith('strict decoding error: unknown field "datas"')


def test_create_accepts_yaml(api: Api) -> None:
    sent = b"metadata: {name: b}\ndata: {x: '1'}\n"
    assert api.ask("POST", MAPS, sent, headers={"content-type": "application/yaml"}).body["data"] == {"x": "1"}


@pytest.mark.parametrize(
    ("body", "reported"),
    [
        (b"{", "the request body is not valid JSON: Input data was truncated"),
        (b"[" * 5000 + b"]" * 5000, "the request body is nested more than 100 levels deep"),
        (b"[]", "the request body is not an object"),
        (b'{"kind": "Secret"}', 'Secret in version "v1" cannot be handled as a ConfigMap'),
        (b'{"apiVersion": "v2"}', "the API version in the data (v2) does not match the expected API version (v1)"),
        (
            b'{"metadata": {"name": "b", "resourceVersion": "1"}}',
            "resourceVersion should not be set on objects to be created",
        ),
        (
            b'{"metadata": {"name": "b", "namespace": "team-b"}}',
            "the namespace of the provided object does not match the namespace sent on the request",
        ),
    ],
)
def test_invalid_body_is_rejected(api: Api, body: bytes, reported: str) -> None:
    check_rejection(api.ask("POST", MAPS, body), 400, reported)


def test_unsupported_content_type_is_rejected(api: Api) -> None:
    assert api.ask("POST", MAPS, b"x", headers={"content-type": "text/html"}).code == 415
    assert patch(api, f"{MAPS}/a", b"{}", {"content-type": "application/json"}).code == 415
    queue = patch(api, f"{QUEUES}/q", {}, STRATEGIC)
    media = "application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml"
    check_rejection(
        queue, 415, f"the body of the request was in an unknown format - accepted media types include: {media}"
    )


def test_create_in_missing_namespace_is_not_found(api: Api) -> None:
    answer = api.ask("POST", MAPS.replace("team-a", "nowhere"), config_map("a"))
    check_rejection(answer, 404, 'namespaces "nowhere" not found')


def test_create_ignores_server_side_metadata_and_status(api: Api) -> None:
    sent = job()
    sent["metadata"] |= {"uid": "mine", "creationTimestamp": "2020-01-01T00:00:00Z", "generation": 9}
    created = api.post(JOBS, {**sent, "status": {"succeeded": 3}})
    assert created["metadata"]["uid"] != "mine"
    assert (created["metadata"]["generation"], created.get("status")) == (1, None)


@pytest.mark.parametrize(
    ("metadata", "code", "reported"),
    [
        ({"name": "b"}, 400, "the name of the object (b) does not match the name on the URL (a)"),
        ({"name": "a", "resourceVersion": "99"}, 409, "the object has been modified; please apply your changes to the"),
        ({"name": "a", "uid": "x"}, 409, "Precondition failed: UID in precondition: x, UID in object meta: "),
        ({"name": "a", "creationTimestamp": "2020-01-01T00:00:00Z"}, 422, "field is immutable"),
    ],
)
def test_update_checks_name_revision_uid_and_creation_time(
    api: Api, metadata: dict[str, str], code: int, reported: str
) -> None:
    answer = api.ask("PUT", f"{MAPS}/a", {"metadata": metadata})
    assert answer.code == code
    assert reported in answer.body["message"]


def test_null_as_name_is_reported_as_empty_name(api: Api) -> None:
    rejected = api.ask("POST", JOBS, {**job(parallelism=-1), "metadata": {"name": None}})
    assert rejected.body["message"].startswith('Job.batch "" is invalid: [spec.parallelism: ')


def test_update_of_missing_object_is_not_found(api: Api) -> None:
    check_rejection(api.ask("PUT", f"{MAPS}/z", config_map("z")), 404, 'configmaps "z" not found')


def test_update_of_custom_kind_needs_resource_version(api: Api) -> None:
    queue = {"metadata": {"name": "q"}, "spec": {}}
    created = api.post(QUEUES, queue)
    reported = "metadata.resourceVersion: Invalid value: 0x0: must be specified for an update"
    check_rejection(
        api.ask("PUT", f"{QUEUES}/q", queue), 422, f'ClusterQueue.kueue.x-k8s.io "q" is invalid: {reported}'
    )
    assert api.ask("PUT", f"{QUEUES}/q", created).code == 200


def test_status_subresource_does_not_write_spec(api: Api) -> None:
    api.post(JOBS, job())
    sent = {"spec": {"parallelism": 5}, "status": {"active": 2}}
    answer = patch(api, f"{JOBS}/j/status?fieldManager=me", sent)
    assert (answer.body["status"]["active"], answer.body["spec"]["parallelism"]) == (2, 1)
    mine = [entry for entry in answer.body["metadata"]["managedFields"] if entry["manager"] == "me"]
    assert [(entry["subresource"], list(entry["fieldsV1"])) for entry in mine] == [("status", ["f:status"])]


LABELED = {"metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}, "finalizers": ["e/f"]}}


@pytest.mark.parametrize(
    ("path", "new", "changed"),
    [
        (JOBS, job(), {"labels", "annotations", "finalizers"}),
        (DEPLOYMENTS, {**job(), "apiVersion": "apps/v1", "kind": "Deployment"}, {"annotations", "finalizers"}),
        (QUEUES, {"metadata": {"name": "j"}, "spec": {}}, set()),
        (FLOW_SCHEMAS, {"metadata": {"name": "j"}, "spec": {"priorityLevelConfiguration": {"name": "exempt"}}}, set()),
    ],
)
def test_metadata_in_status_write(api: Api, path: str, new: dict[str, Any], changed: set[str]) -> None:
    if path == DEPLOYMENTS:
        template = new["spec"]["template"]
        labeled = {
            **template,
            "spec": {"containers": template["spec"]["containers"]},
            "metadata": {"labels": {"x": "y"}},
        }
        new = {**new, "spec": {"selector": {"matchLabels": {"x": "y"}}, "template": labeled}}
    before = api.post(path, new)["metadata"]
    after = patch(api, f"{path}/j/status?fieldManager=me", LABELED).body["metadata"]
    assert {field for field in LABELED["metadata"] if after.get(field) != before.get(field)} == changed
    assert after.get("generation") == before.get("generation")


def test_native_object_without_spec_has_empty_spec(api: Api) -> None:
    node = api.post("/api/v1/nodes?fieldManager=me", {"metadata": {"name": "n", "labels": {"a": "b"}}})
    assert node["spec"] == {}
    assert [list(entry["fieldsV1"]) for entry in node["metadata"]["managedFields"]] == [["f:metadata"]]


def test_status_write_with_invalid_label_is_rejected(api: Api) -> None:
    api.post(JOBS, job())
    answer = patch(api, f"{JOBS}/j/status", {"metadata": {"labels": {"a": "b c"}}})
    assert answer.code == 422
    assert 'metadata.labels: Invalid value: "b c"' in answer.body["message"]


def test_status_write_removes_last_finalizer(api: Api) -> None:
    api.post(JOBS, {**job(), "metadata": {"name": "j", "finalizers": ["e/f"]}})
    assert api.ask("DELETE", f"{JOBS}/j?propagationPolicy=Background").body["metadata"]["deletionTimestamp"]
    assert patch(api, f"{JOBS}/j/status", {"metadata": {"finalizers": None}}).code == 200
    assert api.ask("GET", f"{JOBS}/j").code == 404


def test_apply_of_status_does_not_own_fixed_metadata(api: Api) -> None:
    api.post(QUEUES, {"metadata": {"name": "j"}, "spec": {}})
    sent = {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "ClusterQueue",
        **LABELED,
        "status": {"pendingWorkloads": 1},
    }
    answer = patch(api, f"{QUEUES}/j/status?fieldManager=me", sent, APPLY)
    mine = [entry for entry in answer.body["metadata"]["managedFields"] if entry["manager"] == "me"]
    assert [list(entry["fieldsV1"]) for entry in mine] == [["f:status"]]


def test_generation_counts_spec_changes(api: Api) -> None:
    api.post(JOBS, job())
    assert patch(api, f"{JOBS}/j", {"metadata": {"labels": {"a": "b"}}}).body["metadata"]["generation"] == 1
    assert patch(api, f"{JOBS}/j", {"spec": {"parallelism": 2}}).body["metadata"]["generation"] == 2


def test_some_kinds_have_no_generation(api: Api) -> None:
    assert "generation" not in api.ask("PUT", f"{MAPS}/a", config_map("a", x="9")).body["metadata"]


def test_apply_creates_or_merges_object(api: Api) -> None:
    path = f"{MAPS}/b?fieldManager=me"
    assert (
        patch(api, path, b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: b}\ndata: {x: '1'}\n", APPLY).code == 201
    )
    assert patch(api, f"{MAPS}/b?fieldManager=you", config_map("b", y="2"), APPLY).body["data"] == {"x": "1", "y": "2"}
    assert patch(api, path, config_map("b"), APPLY).body["data"] == {"y": "2"}


@pytest.mark.parametrize(("manager", "is_synced"), [("kubectl", True), ("me", False)])
def test_apply_of_kubectl_updates_last_applied_configuration(api: Api, manager: str, is_synced: bool) -> None:
    name = "kubectl.kubernetes.io/last-applied-configuration"
    before = config_map("b", x="1")
    api.post(MAPS, {**before, "metadata": {"name": "b", "annotations": {name: "{}"}}})
    sent = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "b"}, "data": {"y": "<2>"}}
    annotations = patch(api, f"{MAPS}/b?fieldManager={manager}", sent, APPLY).body["metadata"]["annotations"]
    text = '{"apiVersion":"v1","data":{"y":"\\u003c2\\u003e"},"kind":"ConfigMap","metadata":{"name":"b"}}\n'
    assert annotations[name] == (text if is_synced else "{}")


def test_apply_of_status_changes_status_only(api: Api) -> None:
    api.post(JOBS, job())
    path = f"{JOBS}/j/status?fieldManager=me"
    sent = {**job(parallelism=9), "status": {"active": 1}}
    answer = patch(api, path, sent, APPLY)
    assert (answer.body["status"], answer.body["spec"]["parallelism"]) == ({"active": 1}, 1)
    assert patch(api, f"{JOBS}/z/status?fieldManager=me", {**sent, "metadata": {"name": "z"}}, APPLY).code == 404


@pytest.mark.parametrize(
    ("query", "headers", "reported"),
    [
        ("", APPLY, "fieldManager: Required value: is required for apply patch"),
        ("force=true", MERGE, "force: Forbidden: may not be specified for non-apply patch"),
        (
            "fieldValidation=Some",
            MERGE,
            'fieldValidation: Unsupported value: "Some": supported values: "", "Ignore", "Strict", "Warn"',
        ),
        (f"fieldManager={'x' * 129}", MERGE, "fieldManager: Too long: may not be more than 128 bytes"),
        (f"fieldManager={'é' * 65}", MERGE, "fieldManager: Too long: may not be more than 128 bytes"),
        ("fieldManager=é\nb", MERGE, 'fieldManager: Invalid value: "é\\nb": invalid character U+000A (at position 2)'),
    ],
)
def test_invalid_patch_options_are_rejected(api: Api, query: str, headers: Mapping[str, str], reported: str) -> None:
    check_rejection(
        patch(api, f"{MAPS}/a?{query}", {}, headers), 422, f'PatchOptions.meta.k8s.io "" is invalid: {reported}'
    )


@pytest.mark.parametrize(
    "operation", [{"op": "replace", "path": "/metadata", "value": 5}, {"op": "remove", "path": ""}]
)
def test_patch_that_removes_object_structure_is_rejected(api: Api, operation: dict[str, Any]) -> None:
    assert patch(api, f"{MAPS}/a", [operation], JSON_PATCH).code in {400, 422}


@pytest.mark.parametrize(
    ("options", "code", "reported"),
    [
        ({"preconditions": {"uid": "x"}}, 409, "the UID in the precondition (x) does not match the UID in record"),
        ({"preconditions": {"resourceVersion": "99"}}, 409, "the ResourceVersion in the precondition (99) does not"),
        ({"propagationPolicy": "Some"}, 422, 'Unsupported value: "Some": supported values: "Foreground"'),
        ({"propagationPolicy": "Orphan", "orphanDependents": True}, 422, "cannot be both set"),
        (
            {"gracePeriodSeconds": "soon"},
            400,
            'gracePeriodSeconds is "soon": write a whole number of seconds, such as 30',
        ),
        ({"dryRun": "All"}, 400, 'dryRun of the DeleteOptions must be a list, such as ["All"]'),
        ({"preconditions": {"uid": ["x"]}}, 400, "uid and resourceVersion in preconditions"),
        ({"preconditions": {"resourceVersion": 99}}, 400, "uid and resourceVersion in preconditions"),
        ([], 400, "the request body must be an object of kind DeleteOptions"),
    ],
)
def test_invalid_delete_options_are_rejected(api: Api, options: Any, code: int, reported: str) -> None:
    answer = api.ask("DELETE", f"{MAPS}/a", options)
    assert answer.code == code
    assert reported in answer.body["message"]


@pytest.mark.parametrize(
    ("options", "is_left"),
    [
        ({"propagationPolicy": "Orphan"}, True),
        ({"orphanDependents": True}, True),
        ({"propagationPolicy": "Background"}, False),
        ({}, False),
    ],
)
def test_delete_propagation_policy_keeps_or_deletes_dependents(
    api: Api, options: dict[str, Any], is_left: bool
) -> None:
    owner = api.get(f"{MAPS}/a")
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "a", "uid": owner["metadata"]["uid"]}
    api.post(MAPS, {"metadata": {"name": "b", "ownerReferences": [reference]}})
    api.ask("DELETE", f"{MAPS}/a", options)
    left = api.ask("GET", f"{MAPS}/b")
    assert (left.code == 200) is is_left
    assert "ownerReferences" not in left.body.get("metadata", {})


def test_job_delete_without_propagation_policy_returns_warning(api: Api) -> None:
    api.post(JOBS, job())
    [warning] = api.ask("DELETE", f"{JOBS}/j").warnings
    assert warning.startswith("child pods are preserved by default when jobs are deleted")


def test_delete_collection_deletes_selected_objects(api: Api) -> None:
    api.post(MAPS, config_map("b", y="2"))
    assert [item["metadata"]["name"] for item in api.ask("DELETE", f"{MAPS}?labelSelector=x").body["items"]] == ["a"]
    assert api.ask("GET", f"{MAPS}/b").code == 200


def test_update_accepts_creation_time_in_seconds_and_with_zone() -> None:
    api, path = Api(), "/api/v1/namespaces/team/configmaps"
    created = api.post(path, config_map("a"))
    born = created["metadata"]["creationTimestamp"]
    for reported in (f"{born[:19]}Z", f"{born[:19]}+00:00"):
        assert (
            api.ask("PUT", f"{path}/a", {**created, "metadata": {"name": "a", "creationTimestamp": reported}}).code
            == 200
        )
    other = {"name": "a", "creationTimestamp": "2001-01-01T00:00:00Z"}
    assert api.ask("PUT", f"{path}/a", {**created, "metadata": other}).code == 422


def test_quantities_are_stored_in_canonical_form() -> None:
    resources = {"requests": {"cpu": 2, "memory": "1024Mi", "ephemeral-storage": "1e3"}}
    container = {"name": "c", "image": "i", "resources": resources}
    created = Api().post(
        "/api/v1/namespaces/team/pods", {"metadata": {"name": "a"}, "spec": {"containers": [container]}}
    )
    kept = created["spec"]["containers"][0]["resources"]["requests"]
    assert kept == {"cpu": "2", "memory": "1Gi", "ephemeral-storage": "1e3"}


class CountingExecutor:
    """An executor that executes work at once, counts it, and reports the result when the test calls `finish`."""

    def __init__(self) -> None:
        self.done = 0

    def submit(self, user: UserInfo, work: Callable[[], bytes], done: Callable[[bytes | StatusError], None]) -> None:
        del user
        self.done += 1
        self._later = partial(done, work())

    def finish(self) -> None:
        self._later()


@pytest.mark.parametrize("content_type", [MERGE, STRATEGIC, JSON_PATCH, APPLY])
def test_write_executor_patches_large_object(content_type: Mapping[str, str]) -> None:
    api, counting_executor = Api(), CountingExecutor()
    api.server.set_write_executor(counting_executor)
    api.post(MAPS, config_map("small"))
    large = Key(scheme.CONFIG_MAP, "team-a", "large")
    created: dict[str, Any] = config_map("large", **{f"key-{number}": "value" for number in range(2000)})
    api.stored.store.put(large, {**created, "metadata": {**make.metadata("large", "team-a")}})
    about = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"annotations": {"a": "b"}}}
    patch = [{"op": "add", "path": "/metadata/annotations", "value": {"a": "b"}}]
    body, query = (patch, "") if content_type == JSON_PATCH else (about, "?fieldManager=m")
    small = api.ask("PATCH", f"{MAPS}/small{query}", body, headers=content_type)
    assert (small.code, counting_executor.done) == (200, 0)
    later = api.answer("PATCH", f"{MAPS}/large{query}", body, content_type["content-type"])
    assert isinstance(later, DeferredResponse)
    reported: list[Any] = []
    later.then(reported.append)
    counting_executor.finish()
    assert (reported[0].code, counting_executor.done) == (200, 1)
    assert api.get(f"{MAPS}/large")["metadata"]["annotations"] == {"a": "b"}
