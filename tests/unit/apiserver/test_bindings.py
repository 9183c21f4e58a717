"""Bindings assign a pod to a node."""

import pytest

from batchyard.api import scheme
from batchyard.api.meta import Key, Obj, is_true
from unit.apiserver.api import Api
from unit.nodes.node_make import pod

POD = Key(scheme.POD, "team", "pod")
PATH = "/api/v1/namespaces/team/pods/pod/binding"


@pytest.fixture
def api() -> Api:
    """An API with a pod that is on no node."""
    api = Api()
    api.stored.store.put(POD, pod(node=""))
    return api


def binding(name: str = "pod", node: str = "node-1", kind: str = "Node", **metadata: object) -> Obj:
    target = {"apiVersion": "v1", "kind": kind, "name": node}
    return {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name, **metadata}, "target": target}


@pytest.mark.parametrize("path", [PATH, "/api/v1/namespaces/team/bindings"])
def test_binding_sets_node_annotations_and_condition_of_pod(api: Api, path: str) -> None:
    answer = api.ask("POST", path, binding(annotations={"told": "yes"}))
    assert (answer.code, answer.body["status"]) == (201, "Success")
    bound = api.get(PATH.removesuffix("/binding"))
    assert bound["spec"]["nodeName"] == "node-1"
    assert bound["metadata"]["annotations"]["told"] == "yes"
    assert is_true(bound, "PodScheduled")


def test_binding_of_bound_pod_conflicts(api: Api) -> None:
    api.ask("POST", PATH, binding())
    answer = api.ask("POST", PATH, binding(node="node-2"))
    reported = 'Operation cannot be fulfilled on pods/binding "pod": pod pod is already assigned to node "node-1"'
    assert (answer.code, answer.body["message"]) == (409, reported)


def test_binding_as_dry_run_changes_nothing(api: Api) -> None:
    assert api.ask("POST", f"{PATH}?dryRun=All", binding()).code == 201
    assert "nodeName" not in api.get(PATH.removesuffix("/binding"))["spec"]


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (binding("other"), 400),
        (binding(kind="Pod"), 422),
        (binding(node=""), 422),
        (binding(uid="another"), 409),
        (binding(namespace="other"), 400),
        (binding(annotations={"a": 1}), 400),
        ({"kind": "Pod"}, 400),
        ([], 400),
    ],
)
def test_invalid_binding_is_rejected(api: Api, sent: object, code: int) -> None:
    assert api.ask("POST", PATH, sent).code == code


def test_binding_of_missing_pod_is_not_found(api: Api) -> None:
    assert api.ask("POST", PATH.replace("pods/pod", "pods/none"), binding("none")).code == 404
