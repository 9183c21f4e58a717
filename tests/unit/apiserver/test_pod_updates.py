"""The fields of a Pod that an update may change, and the queue name of a Job."""

from typing import Any

import pytest

import make
from batchyard.api import scheme
from batchyard.api.meta import Key
from unit.apiserver.api import Api

PATH = "/api/v1/namespaces/team/pods/pod"
MERGE = {"content-type": "application/merge-patch+json"}
OTHER_FIELDS = "pod updates may not change fields other than"
TOLERATION = {"key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}


@pytest.fixture
def api() -> Api:
    """An API with a Pod."""
    api = Api()
    container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}}}
    spec = {"containers": [container], "activeDeadlineSeconds": 60, "tolerations": [TOLERATION]}
    api.post(PATH.removesuffix("/pod"), {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, "spec": spec})
    return api


def patch_pod(api: Api, change: Any, *, spec: bool = True) -> tuple[int, str]:
    """Patch the spec of the Pod, or the whole Pod; the code and the message."""
    response = api.ask("PATCH", PATH, {"spec": change} if spec else change, headers=MERGE)
    return response.code, str(response.body.get("message", ""))


@pytest.mark.parametrize(
    "change",
    [
        {"spec": {"containers": [{"name": "c", "image": "other", "resources": {"requests": {"cpu": "1"}}}]}},
        {"spec": {"activeDeadlineSeconds": 30}},
        {"metadata": {"labels": {"a": "b"}}},
    ],
)
def test_pod_update_changes_image_deadline_and_labels(api: Api, change: Any) -> None:
    pod = api.get(PATH)
    if "containers" in change.get("spec", {}):
        change["spec"]["containers"][0]["volumeMounts"] = pod["spec"]["containers"][0]["volumeMounts"]
    assert patch_pod(api, change, spec=False) == (200, "")


def test_pod_update_adds_tolerations_and_changes_toleration_seconds(api: Api) -> None:
    given = api.get(PATH)["spec"]["tolerations"]
    assert patch_pod(api, {"tolerations": [*given, {"operator": "Exists"}]})[0] == 200
    later = [{**each, "tolerationSeconds": 9} for each in given]
    assert patch_pod(api, {"tolerations": [*later, {"operator": "Exists"}]})[0] == 200
    code, reported = patch_pod(api, {"tolerations": later[1:]})
    assert (code, "existing toleration can not be modified except its tolerationSeconds" in reported) == (422, True)


@pytest.mark.parametrize(
    ("change", "reported"),
    [
        ({"priority": 5}, OTHER_FIELDS),
        ({"nodeSelector": {"a": "b"}}, OTHER_FIELDS),
        ({"restartPolicy": "Never"}, OTHER_FIELDS),
        ({"containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "2"}}}]}, OTHER_FIELDS),
        (
            {"containers": [{"name": name, "image": "i"} for name in "ab"]},
            "pod updates may not add or remove containers",
        ),
        ({"activeDeadlineSeconds": 90}, "must be less than or equal to previous value"),
        ({"activeDeadlineSeconds": None}, "must not update from a positive integer to nil value"),
        ({"schedulingGates": [{"name": "g"}]}, "only deletion is allowed, but found new scheduling gate 'g'"),
    ],
)
def test_pod_update_of_other_fields_is_rejected(api: Api, change: Any, reported: str) -> None:
    code, message = patch_pod(api, change)
    assert (code, reported in message) == (422, True)


def test_gated_pod_update_sets_node_selector(api: Api) -> None:
    path = PATH.removesuffix("/pod")
    spec = {"containers": [{"name": "c", "image": "i"}], "schedulingGates": [{"name": "g"}]}
    api.post(path, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "gated"}, "spec": spec})
    change = {"spec": {"nodeSelector": {"a": "b"}, "schedulingGates": []}}
    assert api.ask("PATCH", f"{path}/gated", change, headers=MERGE).code == 200


def test_job_cannot_leave_queue_in_namespace_with_default_queue() -> None:
    api = Api()
    created = make.job(queue="lq")
    api.post("/apis/batch/v1/namespaces/team/jobs", {**created, "metadata": {"name": "job", **labels(created)}})
    path, change = "/apis/batch/v1/namespaces/team/jobs/job", {"metadata": {"labels": None}}
    api.stored.store.put(Key(scheme.LOCAL_QUEUE, "team", "default"), make.local_queue("default"))
    response = api.ask("PATCH", path, change, headers=MERGE)
    why = "queue-name must not be empty in namespace with default queue"
    assert response.code == 403
    assert response.body["message"] == (
        'admission webhook "vjob.kb.io" denied the request: '
        f'metadata.labels[kueue.x-k8s.io/queue-name]: Invalid value: "": {why}'
    )


def labels(obj: Any) -> dict[str, Any]:
    return {"labels": obj["metadata"]["labels"]}
