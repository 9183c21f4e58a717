"""The REST client reports every change once and the result of every write, even with connection failures."""

from collections.abc import Mapping
from typing import Any

from batchyard.api import scheme
from batchyard.api.errors import Conflict, InvalidObject, NotFound, NoValidResponse, TemporarilyForbidden
from batchyard.api.meta import Key, Obj, with_path
from batchyard.api.scheme import kind_info
from batchyard.base.instant import SECOND
from batchyard.client.flow_control import EVENTS_WAITING_MAX
from batchyard.client.transport import HttpRequest, HttpResponse
from batchyard.interfaces.client import Create, Delete, EventType, Update, UpdateStatus, WatchEvent, Write, WriteResult
from unit.client.client_and_server import ClientAndServer

PATH = "/api/v1/namespaces/team/configmaps"
KINDS = (scheme.CONFIG_MAP, scheme.JOB)
FINE, WHOLE = "2026-01-01T00:00:01.250000Z", "2026-01-01T00:00:01Z"
LOST = HttpResponse(0, trouble="reset")


def config_map(name: str = "a", **data: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "team"}, "data": data}


def key(name: str = "a") -> Key:
    return Key(scheme.CONFIG_MAP, "team", name)


def synced_client(**how: Any) -> ClientAndServer:
    return ClientAndServer(KINDS, **how).start()


def put(served: ClientAndServer, name: str, **data: str) -> None:
    """Create or update an object as another client."""
    code = served.api.ask("PUT", f"{PATH}/{name}", config_map(name, **data)).code
    if code == 404:
        served.api.post(PATH, config_map(name, **data))


def remove(served: ClientAndServer, name: str) -> None:
    assert served.api.ask("DELETE", f"{PATH}/{name}").code == 200


def changes(served: ClientAndServer) -> list[tuple[str, str, Any, Any]]:
    """The reported events: type, name, data and old data."""
    return [
        (event.type.value, event.key.name, event.obj.get("data"), event.old and event.old.get("data"))
        for event in served.reported
        if isinstance(event, WatchEvent)
    ]


def write(served: ClientAndServer, *writes: Write) -> WriteResult:
    results: list[WriteResult] = []
    served.client.submit(writes, results.append)
    assert not results, "never from within"
    served.run()
    (result,) = results
    return result


def failing(*answers: HttpResponse, methods: tuple[str, ...] = ("POST", "PUT", "PATCH", "DELETE")) -> Any:
    """Fail the first requests with these answers."""
    left = list(answers)

    def trouble(request: HttpRequest) -> HttpResponse | None:
        return left.pop(0) if left and request.method in methods else None

    return trouble


def test_events_have_new_and_old_object() -> None:
    world = synced_client()
    put(world, "a", x="1")
    put(world, "a", x="2")
    remove(world, "a")
    world.run(1)
    assert changes(world) == [
        ("ADDED", "a", {"x": "1"}, None),
        ("MODIFIED", "a", {"x": "2"}, {"x": "1"}),
        ("DELETED", "a", {"x": "2"}, {"x": "2"}),
    ]


def test_long_list_is_read_in_pages() -> None:
    world = ClientAndServer(KINDS)
    for number in range(1100):
        world.api.post(PATH, config_map(f"c-{number:04}"))
    world.start()
    assert len(world.client.list(scheme.CONFIG_MAP)) == 1100
    assert len([request for request in world.line.asked if "configmaps?limit=500" in request]) == 3


def test_kind_that_is_added_later_is_listed_and_watched() -> None:
    world = ClientAndServer((scheme.JOB,)).start()
    put(world, "a", x="1")
    world.client.watch_kind(kind_info(scheme.CONFIG_MAP))
    assert not world.client.is_synced
    world.run(1)
    put(world, "b", x="1")
    world.run(1)
    assert [name for _, name, _, _ in changes(world)] == ["a", "b"]
    world.client.watch_kind(kind_info(scheme.CONFIG_MAP))
    assert world.client.is_synced


def test_interrupted_watch_resumes_from_last_revision() -> None:
    world = synced_client()
    put(world, "a", x="1")
    world.run(1)
    world.line.cut()
    put(world, "a", x="2")
    put(world, "b", x="1")
    world.run(10)
    assert [change[:2] for change in changes(world)] == [("ADDED", "a"), ("MODIFIED", "a"), ("ADDED", "b")]
    assert not any("configmaps?limit" in request for request in world.line.asked[len(KINDS) :])


def test_expired_watch_relists_and_reports_differences() -> None:
    world = synced_client(window=5)
    for name in ("changed", "gone", "left", "replaced"):
        put(world, name, x="1")
    world.run(1)
    world.reported.clear()
    world.line.cut()
    remove(world, "replaced")
    for name in ("replaced", "changed", "new"):
        put(world, name, x="2")
    remove(world, "gone")
    for number in range(6):
        world.api.post("/api/v1/namespaces", {"metadata": {"name": f"n-{number}"}})
    world.run(60)
    assert sorted(changes(world)) == [
        ("ADDED", "new", {"x": "2"}, None),
        ("ADDED", "replaced", {"x": "2"}, None),
        ("DELETED", "gone", {"x": "1"}, {"x": "1"}),
        ("DELETED", "replaced", {"x": "1"}, {"x": "1"}),
        ("MODIFIED", "changed", {"x": "2"}, {"x": "1"}),
    ]


def test_unreachable_server_is_retried_with_backoff() -> None:
    world = synced_client()
    world.line.trouble = lambda _request: HttpResponse(0, trouble="refused", was_sent=False)
    world.line.asked.clear()
    world.line.cut()
    world.run(600)
    assert len(KINDS) * 20 < len(world.line.asked) < len(KINDS) * 50
    world.line.trouble = lambda _request: None
    put(world, "a")
    world.run(31)
    assert [change[:2] for change in changes(world)] == [("ADDED", "a")]


def test_write_result_follows_its_event() -> None:
    world = synced_client()
    world.client.submit([Create(config_map())], world.reported.append)
    world.run()
    assert [type(reported) for reported in world.reported] == [WatchEvent, WriteResult]
    assert world.reported[1].obj == world.client.get(key())


def test_write_result_waits_for_interrupted_watch() -> None:
    world = synced_client()
    world.line.cut()
    world.line.trouble = lambda request: LOST if "watch=1" in request.path else None
    world.client.submit([Create(config_map())], world.reported.append)
    world.run()
    assert world.reported == []
    world.line.trouble = lambda _request: None
    world.run()
    assert [type(reported) for reported in world.reported] == [WatchEvent, WriteResult]


def test_writes_run_in_order_until_first_error() -> None:
    world = synced_client()
    result = write(world, Create(config_map()), Delete(key("b")), Create(config_map("c")))
    assert isinstance(result.error, NotFound)
    assert [change[:2] for change in changes(world)] == [("ADDED", "a")]


def test_writes_to_one_object_keep_their_order() -> None:
    world = synced_client()
    done: list[Any] = []
    world.client.submit([Create(config_map(x="1"))], lambda result: done.append(result.error))
    world.client.submit([Update(config_map(x="2"))], lambda result: done.append(result.error))
    world.client.submit([Delete(key())], lambda result: done.append(result.error))
    world.run()
    assert done == [None, None, None]
    assert [change[0] for change in changes(world)] == ["ADDED", "MODIFIED", "DELETED"]


def test_write_of_old_revision_returns_conflict() -> None:
    world = synced_client()
    put(world, "a", x="1")
    world.run(1)
    read = world.client.get(key())
    assert read is not None
    put(world, "a", x="2")
    assert isinstance(write(world, Update(with_path(read, ("data", "x"), "3"))).error, Conflict)
    assert isinstance(write(world, Create(config_map())).error, Conflict)


def test_conflict_is_reported_after_newer_version_is_cached() -> None:
    world = synced_client()
    put(world, "a", x="1")
    world.run(1)
    base = world.client.get(key())
    assert base is not None
    put(world, "a", x="2")  # its watch event is on its way
    world.client.submit([Update(with_path(base, ("data", "x"), "3"))], world.reported.append)
    world.run()
    event, result = world.reported[-2:]
    assert (event.obj["data"], type(result.error)) == ({"x": "2"}, Conflict)


def test_conflict_is_reported_after_a_second_without_newer_version() -> None:
    world = synced_client()
    put(world, "a", x="1")
    world.run(1)
    base = world.client.get(key())
    assert base is not None
    world.line.trouble = failing(HttpResponse(409, b'{"message": "for another reason"}'))
    world.reported.clear()
    world.client.submit([Update(with_path(base, ("data", "x"), "3"))], world.reported.append)
    world.kernel.run(end_time=world.kernel.now() + SECOND)
    assert world.reported == []
    world.run(1)
    assert [str(result.error) for result in world.reported] == ["for another reason"]


def test_rejected_writes_return_matching_errors() -> None:
    world = synced_client()
    assert isinstance(write(world, Create(config_map("No Name"))).error, InvalidObject)
    world.line.trouble = failing(HttpResponse(403, b'{"message": "no"}'))
    refused = write(world, Create(config_map())).error
    assert isinstance(refused, TemporarilyForbidden), "rights may be given later"
    assert str(refused) == "no"


def test_repeated_forbidden_write_is_reported_once() -> None:
    world, reported = synced_client(), list[str]()
    world.client.outbox.on_refused = reported.append
    refusal = HttpResponse(403, b'{"message": "no"}')
    world.line.trouble = failing(refusal, refusal)
    for name in ("a", "b", "c"):
        write(world, Create(config_map(name)))
    assert reported == ["Create: no"]
    world.line.trouble = failing(refusal)
    write(world, Create(config_map("d")))
    assert reported == ["Create: no", "Create: no"]


def test_repeated_rejection_of_object_is_reported_with_backoff() -> None:
    world, reported = synced_client(), list[str]()
    world.client.outbox.on_refused = reported.append
    put(world, "a", x="1")
    world.run(1)
    read = world.client.get(key())
    assert read is not None
    refusal = HttpResponse(422, b'{"message": "spec.network: Value is immutable"}')
    world.line.trouble = failing(*[refusal] * 5)
    for _ in range(5):
        assert isinstance(write(world, Update(with_path(read, ("data", "x"), "2"))).error, InvalidObject)
    stated = "Update of ConfigMap team/a: spec.network: Value is immutable"
    assert reported == [stated, f"{stated} (2 times)", f"{stated} (4 times)"]


def test_write_is_retried_after_retry_after_time() -> None:
    world = synced_client()
    world.line.trouble = failing(HttpResponse(429, retry_after=7 * SECOND), HttpResponse(503))
    begun = world.kernel.now()
    assert write(world, Create(config_map())).error is None
    assert [request for request in world.line.asked if request.startswith("POST")] == [f"POST {PATH}"] * 3
    assert world.client.outbox.response_counts["POST", 429] == 1
    assert world.kernel.now() - begun >= 7 * SECOND


def test_write_to_unavailable_server_gives_up() -> None:
    world = synced_client()
    world.line.trouble = failing(*[HttpResponse(503)] * 100)
    assert isinstance(write(world, Create(config_map())).error, NoValidResponse)


def test_create_with_lost_answer_succeeds() -> None:
    world = synced_client()
    world.line.trouble, world.line.is_done_anyway = failing(LOST), True
    assert write(world, Create(config_map(x="1"))).error is None
    assert [change[0] for change in changes(world)] == ["ADDED"]


def test_lost_create_of_object_with_other_content_conflicts() -> None:
    world = synced_client()
    put(world, "a", x="2")
    world.line.trouble = failing(LOST)
    assert isinstance(write(world, Create(config_map(x="1"))).error, Conflict)


def test_create_with_generated_name_is_not_retried() -> None:
    world = synced_client()
    nameless = {**config_map(), "metadata": {"generateName": "c-", "namespace": "team"}}
    world.line.trouble, world.line.is_done_anyway = failing(LOST), True
    assert isinstance(write(world, Create(nameless)).error, NoValidResponse)
    assert len(world.client.list(scheme.CONFIG_MAP)) == 1


def test_update_and_delete_with_lost_answers_are_safe() -> None:
    world = synced_client()
    put(world, "a", x="1")
    world.run(1)
    read = world.client.get(key())
    assert read is not None
    world.line.trouble, world.line.is_done_anyway = failing(LOST), True
    assert isinstance(write(world, Update(with_path(read, ("data", "x"), "2"))).error, Conflict)
    world.line.trouble = failing(LOST)
    assert write(world, Delete(key())).error is None
    assert [change[0] for change in changes(world)] == ["ADDED", "MODIFIED", "DELETED"]


def test_client_that_may_not_write_sends_no_writes() -> None:
    world = synced_client()
    world.is_open = False
    world.client.submit([Create(config_map())], world.reported.append)
    world.run()
    assert world.reported == []
    assert not any(request.startswith("POST") for request in world.line.asked)


def test_rate_limit_delays_writes() -> None:
    world = synced_client(qps=10.0)
    done: list[int] = []
    for number in range(150):
        world.client.submit([Create(config_map(f"c-{number}"))], lambda _result: done.append(world.kernel.now()))
    begun = world.kernel.now()
    world.run()
    assert len(done) == 150
    assert 4 * SECOND < done[-1] - begun < 6 * SECOND


def test_surplus_events_are_dropped_with_an_error() -> None:
    world = synced_client(qps=0.001)
    results: list[WriteResult] = []
    for number in range(EVENTS_WAITING_MAX + 110):
        event = {"apiVersion": "v1", "kind": "Event", "metadata": {"name": f"e-{number}", "namespace": "team"}}
        world.client.submit([Create(event)], results.append)
    world.run()
    dropped = [result for result in results if str(result.error) == "too many Events wait to be written"]
    assert world.client.outbox.dropped_event_count == len(dropped) > 0


def test_unserved_kind_has_no_objects_until_served() -> None:
    world = ClientAndServer(KINDS)
    world.line.trouble = lambda request: HttpResponse(404) if "configmaps" in request.path else None
    world.start()
    informer = world.client.informers[scheme.CONFIG_MAP]
    assert not informer.is_served
    assert informer.trouble
    world.line.trouble = lambda _request: None
    put(world, "a")
    world.run(60)
    assert [change[:2] for change in changes(world)] == [("ADDED", "a")]
    assert informer.is_served


def test_client_uses_older_api_version_of_server() -> None:
    world = ClientAndServer([scheme.CLUSTER_QUEUE])
    world.line.trouble = lambda request: HttpResponse(404) if "v1beta2" in request.path else None
    world.api.post("/apis/kueue.x-k8s.io/v1beta1/clusterqueues", queue("old", "v1beta1", {"cohort": "all"}))
    world.start()
    (seen,) = world.client.list(scheme.CLUSTER_QUEUE)
    assert (seen["apiVersion"], seen["spec"]["cohortName"]) == ("kueue.x-k8s.io/v1beta2", "all")
    assert write(world, Update(with_path(seen, ("spec", "cohortName"), "some"))).error is None
    assert world.line.asked[-1].startswith("PATCH /apis/kueue.x-k8s.io/v1beta1/")
    stored = world.api.get("/apis/kueue.x-k8s.io/v1beta2/clusterqueues/old")
    assert stored["spec"]["cohortName"] == "some"


def queue(name: str, version: str, spec: Mapping[str, Any]) -> Obj:
    kind = {"apiVersion": f"kueue.x-k8s.io/{version}", "kind": "ClusterQueue"}
    return {**kind, "metadata": {"name": name}, "spec": {"namespaceSelector": {}, **spec}}


def test_status_is_written_separately() -> None:
    world = ClientAndServer([scheme.CLUSTER_QUEUE]).start()
    created = write(world, Create(queue("q", "v1beta2", {}))).obj
    assert created is not None
    assert write(world, UpdateStatus({**created, "status": {"pendingWorkloads": 3}})).error is None
    seen = world.client.get(Key(scheme.CLUSTER_QUEUE, "", "q"))
    assert seen is not None
    assert seen["status"]["pendingWorkloads"] == 3


def test_delete_with_finalizers_is_answered_when_marked() -> None:
    world = synced_client()
    held = {**config_map(), "metadata": {**config_map()["metadata"], "finalizers": ["batchyard.dev/test"]}}
    assert write(world, Create(held)).error is None
    assert write(world, Delete(key())).error is None
    marked = world.client.get(key())
    assert marked is not None
    assert write(world, Update(with_path(marked, ("metadata", "finalizers"), None))).error is None
    assert world.client.get(key()) is None
    assert [change[0] for change in changes(world)] == ["ADDED", "MODIFIED", "DELETED"]


def test_client_caches_its_writes_of_unwatched_kinds() -> None:
    world = ClientAndServer([scheme.JOB]).start()
    created = write(world, Create(config_map())).obj
    assert created is not None
    assert world.client.get(key()) == created
    remove(world, "a")
    assert isinstance(write(world, Update(created)).error, NotFound)
    assert world.client.get(key()) is None


def test_everything_returns_added_events() -> None:
    world = synced_client()
    put(world, "a")
    world.run(1)
    (event,) = world.client.added_events()
    assert (event.type, event.key, event.old) == (EventType.ADDED, key(), None)


def test_times_are_sent_in_whole_seconds() -> None:
    world = synced_client()
    job: dict[str, Any] = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "a", "namespace": "team"}}
    pod = {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}
    assert write(world, Create({**job, "spec": {"template": {"spec": pod}}})).error is None
    created = world.client.get(Key(scheme.JOB, "team", "a"))
    assert created is not None
    done = write(world, UpdateStatus({**created, "status": {"startTime": FINE}}))
    stored = world.api.stored.store.get(Key(scheme.JOB, "team", "a"))
    assert done.obj is not None
    assert stored is not None
    assert done.obj["status"]["startTime"] == stored["status"]["startTime"] == WHOLE


def test_create_with_lost_answer_and_fractional_times_succeeds() -> None:
    world = synced_client()
    world.line.trouble, world.line.is_done_anyway = failing(LOST), True
    taint = {"key": "a", "effect": "NoSchedule", "timeAdded": FINE}
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a"}, "spec": {"taints": [taint]}}
    done = write(world, Create(node))
    assert done.error is None
    assert done.obj is not None
    assert done.obj["spec"]["taints"][0]["timeAdded"] == WHOLE
