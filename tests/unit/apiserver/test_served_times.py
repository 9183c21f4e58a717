"""Times are served in whole seconds and stored with fractions."""

from typing import Any

import pytest

from batchyard.api import scheme
from batchyard.api.conversion import restore_stored_times
from batchyard.api.defaults import pod_defaults
from batchyard.api.meta import Key, key_of
from unit.apiserver.api import Api
from unit.nodes.node_make import pod

PATH = "/api/v1/namespaces/team/pods/pod"
FINE, WHOLE = "2026-01-01T00:00:01.250000Z", "2026-01-01T00:00:01Z"
CONDITION = {"type": "Ready", "status": "True"}


@pytest.fixture
def api() -> Api:
    """An API with a pod whose times have fractions."""
    api = Api()
    status = {"startTime": FINE, "conditions": [{**CONDITION, "lastTransitionTime": FINE}]}
    result = pod_defaults(pod(status=status, metadata={"creationTimestamp": FINE}))
    api.stored.store.put(key_of(result), result)
    return api


def times(obj: Any) -> set[str]:
    status = obj["status"]
    return {obj["metadata"]["creationTimestamp"], status["startTime"], status["conditions"][0]["lastTransitionTime"]}


def test_times_are_served_in_whole_seconds(api: Api) -> None:
    assert times(api.get(PATH)) == {WHOLE}
    assert times(api.get("/api/v1/pods")["items"][0]) == {WHOLE}
    part = api.get(PATH, accept="application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io")
    assert part["metadata"]["creationTimestamp"] == WHOLE


@pytest.mark.parametrize("part", ["", "/status"])
def test_unchanged_times_keep_fractions(api: Api, part: str) -> None:
    result = api.get(PATH)
    sent = {**result, "metadata": {**result["metadata"], "labels": {"a": "b"}}}
    sent["status"] = {**result["status"], "phase": "Running"}
    assert api.ask("PUT", PATH + part, sent).code == 200
    stored = api.stored.store.get(Key(scheme.POD, "team", "pod"))
    assert stored is not None
    assert times(stored) == {FINE}


def test_changed_time_is_stored_as_sent(api: Api) -> None:
    patch = {"status": {"startTime": "2026-01-01T00:00:02Z"}}
    merge = {"content-type": "application/merge-patch+json"}
    assert api.ask("PATCH", f"{PATH}/status", patch, headers=merge).code == 200
    stored = api.stored.store.get(Key(scheme.POD, "team", "pod"))
    assert stored is not None
    assert times(stored) == {FINE, "2026-01-01T00:00:02Z"}


def test_lease_times_keep_fractions() -> None:
    api, path = Api(), "/apis/coordination.k8s.io/v1/namespaces/team/leases"
    api.post(path, {"metadata": {"name": "a"}, "spec": {"renewTime": FINE}})
    assert api.get(f"{path}/a")["spec"]["renewTime"] == FINE


def test_grown_lists_are_stored_as_sent() -> None:
    assert restore_stored_times([WHOLE, WHOLE], [WHOLE], [FINE]) == [WHOLE, WHOLE]
    assert restore_stored_times({"a": [WHOLE], "b": 1}, {"a": [WHOLE]}, {"a": [FINE]}) == {"a": [FINE], "b": 1}
