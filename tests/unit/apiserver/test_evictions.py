"""Evictions: a pod is marked as disrupted, and deleted with its grace."""

import pytest

from batchyard.api import scheme
from batchyard.api.conditions import find_condition
from batchyard.api.meta import Key
from unit.apiserver.api import Api
from unit.core.node_make import pod, running

POD = Key(scheme.POD, "team", "pod")
PATH = "/api/v1/namespaces/team/pods/pod/eviction"


@pytest.fixture
def api() -> Api:
    """An API with a pod that runs."""
    api = Api()
    api.stored.store.put(POD, pod(status=running()))
    return api


def eviction(name: str = "pod", **options: object) -> dict[str, object]:
    metadata = {"name": name, "namespace": "team"}
    return {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata, "deleteOptions": options}


def test_an_evicted_pod_is_marked_and_has_its_grace(api: Api) -> None:
    assert api.ask("POST", PATH, eviction()).code == 201
    left = api.stored.store.get(POD)
    assert left is not None
    assert (find_condition(left, "DisruptionTarget") or {})["reason"] == "EvictionByEvictionAPI"
    assert left["metadata"]["deletionGracePeriodSeconds"] == 30


def test_a_dry_run_leaves_it_as_it_is(api: Api) -> None:
    assert api.ask("POST", PATH, eviction(dryRun=["All"])).code == 201
    assert "deletionTimestamp" not in api.stored.store.list(scheme.POD)[0]["metadata"]


def test_one_that_has_ended_goes_without_a_mark(api: Api) -> None:
    api.stored.store.put(POD, pod(status={"phase": "Succeeded"}))
    assert api.ask("POST", PATH, eviction()).code == 201
    assert api.stored.store.get(POD) is None


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (eviction("other"), 400),
        ({"kind": "Pod"}, 400),
        ([], 400),
        (eviction(preconditions={"uid": "another"}), 409),
        (eviction(dryRun=["Some"]), 422),
    ],
)
def test_what_is_no_eviction_of_that_pod_is_refused(api: Api, sent: object, code: int) -> None:
    assert api.ask("POST", PATH, sent).code == code
    assert api.ask("POST", PATH.replace("pods/pod", "pods/none"), eviction("none")).code == 404
