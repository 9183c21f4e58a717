"""A state read through the API of a cluster continues as the cluster does."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import unquote

import msgspec
import pytest

from batchyard.api import scheme
from batchyard.api.meta import Obj, key_of
from batchyard.base.instant import SECOND
from batchyard.cli.cluster_access import SNAPSHOT_KINDS
from batchyard.client.transport import HttpRequest, HttpResponse
from batchyard.server.operator import snapshot
from batchyard.server.operator.snapshot import SnapshotError, SnapshotResult, read_cluster
from batchyard.sim.guide import Guide, examples_folder, guide_steps_up_to
from batchyard.sim.scenario import Scenario
from batchyard.sim.state import State
from batchyard.sim.state_document import state_of
from batchyard.sim.world import World
from unit.apiserver.api import Api, body_bytes

#: An instant after the first step of the guide: some pods run, some machines boot, some pods wait.
MID_GUIDE = 290 * SECOND


class RecordingApi:
    """An API server in this process; `trouble` may answer in its place."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self.paths: list[str] = []
        self.trouble: Callable[[HttpRequest], HttpResponse | None] = lambda _: None

    async def send_request(self, request: HttpRequest) -> HttpResponse:
        self.paths.append(request.path)
        troubled = self.trouble(request)
        if troubled is not None:
            return troubled
        response = self.api.ask(request.method, request.path)
        return HttpResponse(response.code, body_bytes(response))


def serve_objects(objects: Sequence[Obj]) -> RecordingApi:
    """Return a server with these objects."""
    api = Api(window=100_000)
    for obj in sorted(objects, key=lambda obj: int(obj["metadata"]["resourceVersion"])):
        api.stored.store.put(key_of(obj), obj)
    return RecordingApi(api)


def read_objects(asked: RecordingApi, kinds: Sequence[str] = SNAPSHOT_KINDS) -> tuple[list[Obj], SnapshotResult]:
    objects: list[Obj] = []
    reading = asyncio.run(read_cluster(asked, kinds, lambda _, found: objects.extend(found)))
    return objects, reading


def queue(name: str) -> dict[str, Any]:
    return {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Cohort", "metadata": {"name": name}, "spec": {}}


def cohorts(count: int) -> RecordingApi:
    api = Api()
    for number in range(count):
        api.post("/apis/kueue.x-k8s.io/v1beta2/cohorts", queue(f"c{number}"))
    return RecordingApi(api)


def continue_from(scenario: Scenario, state: State) -> list[dict[str, Any]]:
    log: list[Any] = []
    World(scenario, sink=log.append, state=state).run_until(1200 * SECOND)
    return sorted((dict(record) for record in log), key=lambda record: (without_time(record), record["time"]))


def without_time(record: dict[str, Any]) -> str:
    return repr({field: value for field, value in record.items() if field != "time"})


def test_snapshot_of_platform_mid_guide_continues_like_platform() -> None:
    folder = examples_folder()
    assert folder is not None
    world = Guide(folder, guide_steps_up_to("low-priority")).world
    world.run_until(MID_GUIDE)
    own = world.state()
    objects, _ = read_objects(serve_objects(list(own.objects.values())))
    scenario = Scenario((), cluster=own.of_kind(scheme.CLUSTER)[0])
    expected, result = continue_from(scenario, own), continue_from(scenario, state_of(objects, own.at))
    assert list(map(without_time, result)) == list(map(without_time, expected))
    assert len(expected) > 20
    # The API has whole seconds.
    assert all(abs(one["time"] - other["time"]) <= 1 for one, other in zip(result, expected, strict=True))


def test_all_kinds_are_listed_at_same_revision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "SNAPSHOT_PAGE_SIZE", 2)
    request = cohorts(5)
    objects, reading = read_objects(request, (scheme.COHORT, scheme.CLUSTER_QUEUE))
    assert [obj["metadata"]["name"] for obj in objects] == ["c0", "c1", "c2", "c3", "c4"]
    assert sum("cohorts?limit=2" in path for path in request.paths) == 3
    assert request.paths[-1].endswith(f"limit=2&resourceVersion={reading.revision}&resourceVersionMatch=Exact")
    assert (reading.kinds_at_other_revision, reading.counts[scheme.COHORT]) == ([], 5)


def test_kind_with_expired_revision_is_reported_as_loose() -> None:
    asked = cohorts(1)
    asked.trouble = lambda request: HttpResponse(410) if "Exact" in request.path else None
    _, reading = read_objects(asked, (scheme.NAMESPACE, scheme.COHORT))
    assert (reading.kinds_at_other_revision, reading.counts[scheme.COHORT]) == ([scheme.COHORT], 1)


def test_older_api_version_is_listed_when_newer_is_not_served() -> None:
    asked = cohorts(1)
    asked.trouble = lambda request: HttpResponse(404) if "v1beta2" in request.path else None
    (result,), _ = read_objects(asked, (scheme.COHORT,))
    assert result["apiVersion"] == "kueue.x-k8s.io/v1beta2"


def test_forbidden_and_unserved_kinds_are_reported() -> None:
    asked = cohorts(1)
    codes = {"/pods": 403, "/jobsets": 404}
    asked.trouble = lambda request: next((HttpResponse(codes[each]) for each in codes if each in request.path), None)
    _, reading = read_objects(asked, (scheme.POD, scheme.JOB_SET, scheme.COHORT))
    assert (reading.forbidden, reading.unserved) == ([scheme.POD], [scheme.JOB_SET])


def test_busy_server_is_retried_and_failing_server_raises_error() -> None:
    asked = cohorts(1)
    answers = [HttpResponse(429, retry_after=1), HttpResponse(503, retry_after=1), None]
    asked.trouble = lambda request: answers.pop(0) if "cohorts" in request.path else None
    assert read_objects(asked, (scheme.COHORT,))[1].counts == {scheme.COHORT: 1}
    asked.trouble = lambda request: HttpResponse(401) if "cohorts" in request.path else None
    with pytest.raises(SnapshotError, match=r"401: .*; log in again"):
        read_objects(asked, (scheme.COHORT,))


def test_unreachable_server_is_not_retried() -> None:
    request = cohorts(1)
    request.trouble = lambda _: HttpResponse(0, trouble="a:1: Connection refused")
    with pytest.raises(SnapshotError, match="no response: a:1: Connection refused; check that the server runs"):
        read_objects(request, (scheme.COHORT,))
    assert len(request.paths) == 1


def test_response_that_is_no_list_is_rejected() -> None:
    request = cohorts(1)
    request.trouble = lambda _: HttpResponse(200, b"<html>Log in,\nplease</html>")
    with pytest.raises(SnapshotError, match="not from the Kubernetes API: <html>Log in, please"):
        read_objects(request, (scheme.COHORT,))


def test_version_without_conversion_webhook_falls_back_to_stored_version() -> None:
    asked = cohorts(1)
    reported = b'{"message": "conversion webhook for kueue.x-k8s.io/v1beta1, Kind=Cohort failed: no endpoints"}'
    asked.trouble = lambda request: HttpResponse(500, reported) if "v1beta2" in request.path else None
    assert read_objects(asked, (scheme.COHORT,))[1].counts == {scheme.COHORT: 1}
    asked.trouble = lambda request: HttpResponse(500, reported) if "cohorts" in request.path else None
    with pytest.raises(SnapshotError, match="no endpoints"):
        read_objects(asked, (scheme.COHORT,))
    assert sum("cohorts" in path for path in asked.paths) == 4  # there is no retry without a conversion webhook


def test_snapshot_time_is_server_time() -> None:
    asked = cohorts(0)
    asked.trouble = lambda request: HttpResponse(404, server_time=7 * SECOND) if "status" in request.path else None
    assert read_objects(asked, (scheme.COHORT,))[1].at == 7 * SECOND


def test_expired_continue_token_resumes_with_token_from_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "SNAPSHOT_PAGE_SIZE", 2)
    asked = cohorts(5)
    refused: list[str] = []

    def trouble(request: HttpRequest) -> HttpResponse | None:
        if "continue=" not in request.path or refused:
            return None
        refused.append(request.path)
        offered = {"metadata": {"continue": unquote(request.path.partition("continue=")[2])}}
        return HttpResponse(410, msgspec.json.encode(offered))

    asked.trouble = trouble
    objects, reading = read_objects(asked, (scheme.COHORT,))
    assert [obj["metadata"]["name"] for obj in objects] == ["c0", "c1", "c2", "c3", "c4"]
    assert reading.kinds_at_other_revision == [scheme.COHORT]
