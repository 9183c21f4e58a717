"""Requests leave no reference cycles, because the platform seldom collects garbage."""

import gc
from collections.abc import Iterator
from typing import Any

import pytest

from batchyard.apiserver.request import UserInfo
from unit.apiserver.api import OWNER, Api

MAPS = "/api/v1/namespaces/default/configmaps"
JOBS = "/apis/batch/v1/namespaces/default/jobs"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
MERGE = "application/merge-patch+json"
APPLY = "application/apply-patch+yaml"
MAP: dict[str, Any] = {"apiVersion": "v1", "kind": "ConfigMap"}
ANNA = UserInfo("anna", ())


@pytest.fixture
def _no_automatic_collection() -> Iterator[None]:
    """Disable automatic garbage collection."""
    gc.disable()
    gc.freeze()  # a collection skips older objects: scanning them takes seconds
    yield
    gc.unfreeze()
    gc.enable()


@pytest.mark.usefixtures("_no_automatic_collection")
@pytest.mark.parametrize(
    ("asked", "code"),
    [
        (("POST", MAPS, {"metadata": {"name": "a"}}), 409),
        (("POST", MAPS, {"metadata": {"name": "A"}}), 422),
        (("POST", MAPS, {"metadata": {"generateName": "a"}}), 201),
        (("POST", "/api/v1/namespaces/nowhere/configmaps", {"metadata": {"name": "a"}}), 404),
        (("POST", JOBS, {"metadata": {"name": "a"}, "spec": {"parallelism": "x"}}), 400),
        (("POST", DEFINITIONS, {"metadata": {"name": "x"}, "spec": {}}), 422),
        (("GET", f"{MAPS}/b"), 404),
        (("GET", f"{MAPS}?labelSelector=a=,"), 400),
        (("GET", f"{MAPS}?watch=1&resourceVersion=999"), 504),
        (("PATCH", f"{MAPS}/a", {"data": {"x": "z"}}, MERGE), 422),
        (("PATCH", f"{MAPS}/a", {"metadata": {"resourceVersion": "1"}}, MERGE), 409),
        (("PATCH", f"{MAPS}/a?fieldManager=me", {**MAP, "data": {"x": "z"}}, APPLY), 409),
        (("DELETE", f"{MAPS}/a", {"preconditions": {"uid": "x"}}), 409),
        (("DELETE", "/api/v1/namespaces/default"), 403),
    ],
)
@pytest.mark.parametrize("user", [OWNER, ANNA], ids=lambda user: user.name)
def test_request_leaves_no_reference_cycles(asked: tuple[Any, ...], code: int, user: UserInfo) -> None:
    api = Api()
    api.post(MAPS, {"metadata": {"name": "a"}, "immutable": True, "data": {"x": "y"}})
    method, path, body, kind, *_ = (*asked, None, None)
    headers: dict[str, str] = {"content-type": kind} if kind else {}
    for _ in range(2):  # the first request fills caches
        gc.collect()
        assert api.ask(method, path, body, headers=headers, user=user).code == (code if user is OWNER else 403)
    assert gc.collect() == 0
