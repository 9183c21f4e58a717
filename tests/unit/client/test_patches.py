"""Writes send the changed fields and the revision; the status of a Workload has Kueue's field managers."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import make
from batchyard.api import scheme, well_known
from batchyard.api.errors import Conflict
from batchyard.api.meta import Key, Obj, with_path
from batchyard.api.scheme import kind_info
from batchyard.apiserver.patch import apply_merge_patch
from batchyard.client.transport import HttpRequest, HttpResponse
from batchyard.client.write_queue import (
    ADMISSION_MANAGER,
    MERGE_PATCH,
    PODS_READY_MANAGER,
    RECLAIMABLE_PODS_MANAGER,
    merge_patch,
    write_requests,
)
from batchyard.interfaces.client import Update, UpdateStatus, Write, WriteResult
from batchyard.scheduling.workload.lifecycle import has_former_owner, transfer_field_ownership
from unit.client.client_and_server import ClientAndServer

KUEUE = "/apis/kueue.x-k8s.io/v1beta2/namespaces/team/workloads"
JOB_SETS = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/team/jobsets"
ASSIGNED = {"name": "main", "flavors": {"cpu": "all"}, "resourceUsage": {"cpu": "1"}, "count": 1}
GIVEN = {"clusterQueue": "all", "podSetAssignments": [ASSIGNED]}
POD_PATH = "/api/v1/namespaces/team/pods/p"
BINDING = f"{POD_PATH}/binding"
TIME = "2026-01-01T00:00:00Z"


def condition(kind: str, status: str = "True") -> dict[str, str]:
    return {"type": kind, "status": status, "reason": "Tested", "message": "", "lastTransitionTime": TIME}


ADMITTED = {"conditions": [condition("QuotaReserved"), condition("Admitted")], "admission": GIVEN}


class PatchRecorder(ClientAndServer):
    """A client of Workloads and JobSets, and the patches that it sent."""

    def __init__(self) -> None:
        super().__init__([scheme.WORKLOAD, scheme.JOB_SET])
        self.sent: list[tuple[str, dict[str, Any]]] = []
        self.line.trouble = self._note

    def _note(self, request: HttpRequest) -> None:
        if request.method == "PATCH":
            self.sent.append((request.path, msgspec.json.decode(request.body)))

    def write(self, write: Write) -> WriteResult:
        results: list[WriteResult] = []
        self.client.submit([write], results.append)
        self.run()
        return results[0]

    def workload(self) -> Obj:
        result = self.client.get(Key(scheme.WORKLOAD, "team", "w"))
        assert result is not None
        return result

    def set_status(self, status: Mapping[str, Any]) -> Mapping[str, Any]:
        """Write a status through the client; the stored status."""
        result = self.write(UpdateStatus({**self.workload(), "status": status}))
        assert result.error is None, result
        return self.workload().get("status") or {}

    def apply(self, manager: str, status: Mapping[str, Any]) -> None:
        """Apply a status as another client does."""
        document = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload", "metadata": {"name": "w"}}
        path = f"{KUEUE}/w/status?fieldManager={manager}&force=true"
        answer = self.api.answer("PATCH", path, {**document, "status": status}, "application/apply-patch+yaml")
        assert answer.code == 200, answer  # type: ignore[union-attr]
        self.run()

    def managers(self) -> list[tuple[str, str]]:
        """The managers of the status and their operations."""
        entries = self.workload()["metadata"]["managedFields"]
        return [(each["manager"], each["operation"]) for each in entries if each.get("subresource") == "status"]


@pytest.fixture
def world() -> PatchRecorder:
    world = PatchRecorder()
    obj = make.workload("w")
    obj["metadata"].pop("creationTimestamp", None)
    world.api.post(KUEUE, obj)
    world.start()
    return world


def test_update_sends_changed_fields_only(world: PatchRecorder) -> None:
    template = {"spec": {"template": {"spec": {"containers": [{"name": "c", "image": "i"}], "restartPolicy": "Never"}}}}
    spec = {"suspend": True, "replicatedJobs": [{"name": "a", "template": template}]}
    obj = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": "s"}, "spec": spec}
    world.api.post(JOB_SETS, obj)
    world.run()
    result = world.client.get(Key(scheme.JOB_SET, "team", "s"))
    assert result is not None
    assert "network" in result["spec"]
    assert world.write(Update(with_path(result, ("spec", "suspend"), False))).error is None
    revision = result["metadata"]["resourceVersion"]
    assert world.sent == [(f"{JOB_SETS}/s", {"spec": {"suspend": False}, "metadata": {"resourceVersion": revision}})]


def test_update_of_old_revision_conflicts(world: PatchRecorder) -> None:
    before = world.workload()
    world.set_status({"conditions": [condition("QuotaReserved", "False")]})
    assert isinstance(world.write(Update(with_path(before, ("spec", "active"), False))).error, Conflict)
    assert isinstance(world.write(UpdateStatus({**before, "status": ADMITTED})).error, Conflict)


def test_condition_of_a_partial_preemption_is_applied(world: PatchRecorder) -> None:
    stored = world.set_status({**ADMITTED, "conditions": [*ADMITTED["conditions"], condition("PartiallyPreempted")]})
    assert [each["type"] for each in stored["conditions"]] == ["QuotaReserved", "Admitted", "PartiallyPreempted"]


def test_kueue_removes_status_that_batchyard_applied(world: PatchRecorder) -> None:
    assert world.set_status(ADMITTED)["admission"] == GIVEN
    assert world.managers() == [(ADMISSION_MANAGER, "Apply")]
    world.apply(ADMISSION_MANAGER, {"conditions": [condition("QuotaReserved", "False")]})
    assert "admission" not in world.workload()["status"]


def test_batchyard_removes_status_that_kueue_applied(world: PatchRecorder) -> None:
    world.apply(ADMISSION_MANAGER, ADMITTED)
    world.apply(RECLAIMABLE_PODS_MANAGER, {"reclaimablePods": [{"name": "main", "count": 1}]})
    pending = {"conditions": [condition("QuotaReserved", "False"), condition("Admitted", "False")]}
    assert world.set_status(pending) == pending
    assert [path.partition("?")[2] for path, _ in world.sent] == [
        f"fieldManager={manager}&force=true" for manager in (ADMISSION_MANAGER, RECLAIMABLE_PODS_MANAGER)
    ]


def test_field_with_another_manager_is_removed(world: PatchRecorder) -> None:
    checks = [{"name": name, "state": "Ready", "message": "", "lastTransitionTime": TIME} for name in ("a", "b")]
    world.apply("somebody", {**ADMITTED, "admissionChecks": checks})
    pending = {"conditions": [condition("QuotaReserved", "False")], "admissionChecks": checks[1:]}
    assert world.set_status(pending) == pending


def test_kueue_removes_status_of_earlier_release(world: PatchRecorder) -> None:
    path = f"{KUEUE}/w/status?fieldManager=batchyard"
    world.api.answer("PATCH", path, {"status": ADMITTED}, "application/merge-patch+json")
    world.run()
    assert world.managers() == [("batchyard", "Update")]
    world.write(UpdateStatus(with_path(world.workload(), ("status", "requeueState"), {"count": 1})))
    assert has_former_owner(world.workload())
    world.write(Update(world.workload(), transfer_field_ownership(world.workload())))
    assert world.managers() == [(ADMISSION_MANAGER, "Apply")]
    world.apply(ADMISSION_MANAGER, {"conditions": [condition("QuotaReserved", "False")]})
    assert world.workload()["status"] == {"conditions": [condition("QuotaReserved", "False")]}


def test_each_part_of_status_has_its_field_manager(world: PatchRecorder) -> None:
    world.set_status(ADMITTED)
    ready = {**ADMITTED, "conditions": [*ADMITTED["conditions"], condition("PodsReady")]}
    world.set_status(ready)
    world.set_status({**ready, "reclaimablePods": [{"name": "main", "count": 1}]})
    assert [path.partition("=")[2].partition("&")[0] for path, _ in world.sent] == [
        ADMISSION_MANAGER,
        PODS_READY_MANAGER,
        RECLAIMABLE_PODS_MANAGER,
    ]
    foreign = {**ready, "conditions": [*ready["conditions"], condition("Watched")]}
    world.apply("somebody", {"conditions": [condition("Watched")]})
    world.sent.clear()
    world.set_status({**foreign, "reclaimablePods": [{"name": "main", "count": 1}], "requeueState": {"count": 1}})
    ((_, document),) = world.sent
    assert [each["type"] for each in document["status"]["conditions"]] == ["QuotaReserved", "Admitted", "PodsReady"]


_json = st.recursive(
    st.booleans() | st.integers(0, 3) | st.text("ab", max_size=2),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3) | st.lists(inner, max_size=2),
    max_leaves=12,
)
_documents = st.dictionaries(st.sampled_from("abc"), _json, max_size=3)


@given(_documents, _documents)
def test_merge_patch_turns_one_document_into_another(before: dict[str, Any], after: dict[str, Any]) -> None:
    patch = merge_patch(before, after)
    assert apply_merge_patch(before, patch) == after
    assert (patch == {}) == (before == after)


POD: Obj = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "p", "namespace": "team", "uid": "u", "resourceVersion": "7"},
    "spec": {"containers": [{"name": "c"}]},
}


def request_for(pod: Obj, base: Obj = POD) -> HttpRequest:
    return next(write_requests(Update(pod), base, kind_info(scheme.POD), "v1"))


def bound(pod: Obj) -> Obj:
    return with_path(pod, ("spec", "nodeName"), "n")


def test_pod_gets_its_node_by_a_binding_because_kubernetes_rejects_an_update() -> None:
    request = request_for(bound(POD))
    assert (request.method, request.path) == ("POST", BINDING)
    binding = msgspec.json.decode(request.body)
    assert (binding["kind"], binding["metadata"]["uid"], binding["target"]["name"]) == ("Binding", "u", "n")


def test_binding_sets_the_changed_annotations() -> None:
    base = with_path(POD, ("metadata", "annotations"), {"a": "1", "b": "1"})
    pod = with_path(bound(base), ("metadata", "annotations"), {"a": "1", "b": "2", "c": "3"})
    request = request_for(pod, base)
    assert (request.method, request.path) == ("POST", BINDING)
    assert msgspec.json.decode(request.body)["metadata"]["annotations"] == {"b": "2", "c": "3"}


@pytest.mark.parametrize(
    "metadata", [{"labels": {"a": "b"}}, {"annotations": {}}, {"annotations": None}], ids=["label", "removed", "all"]
)
def test_node_is_part_of_a_patch_if_a_binding_cannot_make_the_other_changes(metadata: Obj) -> None:
    base = with_path(POD, ("metadata", "annotations"), {"a": "1"})
    pod = bound(base)
    kept = {field: value for field, value in {**pod["metadata"], **metadata}.items() if value is not None}
    assert request_for({**pod, "metadata": kept}, base).method == "PATCH"


def binding_client(*names: str) -> ClientAndServer:
    """A client of a server with unbound pods."""
    served = ClientAndServer()
    for name in names:
        metadata = {"name": name, "namespace": "team", "labels": {"x": "1"}}
        spec = {"containers": [{"name": "c", "image": "i"}]}
        served.api.post("/api/v1/namespaces/team/pods", {**POD, "metadata": metadata, "spec": spec})
    return served.start()


def cached(served: ClientAndServer, name: str = "p") -> Obj:
    result = served.client.get(Key(scheme.POD, "team", name))
    assert result is not None
    return result


def nodes(served: ClientAndServer) -> list[str]:
    return [pod["spec"].get("nodeName", "") for pod in served.client.list(scheme.POD)]


def test_binding_succeeds_and_later_writes_of_its_submission_are_sent() -> None:
    served, results = binding_client("p", "q"), list[tuple[object, list[str]]]()
    writes = [Update(bound(cached(served, name))) for name in "pq"]
    served.client.submit(writes, lambda result: results.append((result.error, nodes(served))))
    served.run()
    assert results == [(None, ["n", "n"])]


@pytest.mark.parametrize("is_deleted", [False, True])
def test_result_of_binding_waits_for_the_pod_with_its_node_or_its_deletion(is_deleted: bool) -> None:
    served, results = binding_client("p"), list[tuple[object, list[str]]]()

    def interrupt_watches(request: HttpRequest) -> HttpResponse | None:
        if request.path == BINDING:
            served.line.cut()
        return HttpResponse(503) if "watch=1" in request.path else None

    served.line.trouble = interrupt_watches
    pod = bound(cached(served))
    served.api.answer("PATCH", POD_PATH, b'{"metadata": {"labels": {"x": "2"}}}', MERGE_PATCH)
    served.client.submit([Update(pod)], lambda result: results.append((result.error, nodes(served))))
    served.run(1)
    assert (cached(served)["metadata"]["labels"], results) == ({"x": "2"}, [])
    if is_deleted:
        served.api.ask("DELETE", f"{POD_PATH}?gracePeriodSeconds=0")
    served.line.trouble = lambda _request: None
    served.run()
    assert results == [(None, [] if is_deleted else ["n"])]


def test_html_response_to_a_binding_is_an_error() -> None:
    served, results = binding_client("p"), list[WriteResult]()
    served.line.trouble = lambda _request: HttpResponse(200, b"<html>Log in</html>")
    served.client.submit([Update(bound(cached(served)))], results.append)
    served.run()
    assert "not from the Kubernetes API" in str(results[0].error)


def test_binding_with_gpu_indices_is_accepted_by_the_server() -> None:
    served, results = binding_client("p"), list[WriteResult]()
    pod = with_path(bound(cached(served)), ("metadata", "annotations"), {well_known.GPU_INDEX: "0,1"})
    served.client.submit([Update(pod)], results.append)
    served.run()
    assert [result.error for result in results] == [None]
    assert cached(served)["metadata"]["annotations"] == {well_known.GPU_INDEX: "0,1"}


@pytest.mark.parametrize("node", ["n", "other"])
def test_binding_whose_response_is_lost_succeeds_unless_the_pod_is_on_another_node(node: str) -> None:
    served, results = binding_client("p"), list[WriteResult]()
    pod, lost = bound(cached(served)), [HttpResponse(0, trouble="reset")]
    target = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "p"},
        "target": {"kind": "Node", "name": node},
    }

    def lose_first_response(request: HttpRequest) -> HttpResponse | None:
        if request.path != BINDING or not lost:
            return None
        served.api.answer("POST", BINDING, msgspec.json.encode(target))
        return lost.pop()

    served.line.trouble = lose_first_response
    served.client.submit([Update(pod)], results.append)
    served.run()
    assert [isinstance(result.error, Conflict) for result in results] == [node != "n"]
