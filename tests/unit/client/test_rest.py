"""A client of a server elsewhere sees every change once and says what became of writes, whatever the wire does."""

from collections.abc import Mapping
from typing import Any

from batchyard.api import scheme
from batchyard.api.errors import Conflict, InvalidObject, NotFound, RefusedForNow, Unanswered
from batchyard.api.meta import Key, Obj, with_path
from batchyard.base.instant import SECOND
from batchyard.client.transport import HttpAnswer, HttpRequest
from batchyard.interfaces.client import Create, Delete, EventType, Update, UpdateStatus, WatchEvent, Write, WriteResult
from unit.client.served import Served

PATH = "/api/v1/namespaces/team/configmaps"
KINDS = (scheme.CONFIG_MAP, scheme.JOB)
FINE, WHOLE = "2026-01-01T00:00:01.250000Z", "2026-01-01T00:00:01Z"
LOST = HttpAnswer(0, trouble="reset")


def config_map(name: str = "a", **data: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "team"}, "data": data}


def key(name: str = "a") -> Key:
    return Key(scheme.CONFIG_MAP, "team", name)


def served(**how: Any) -> Served:
    return Served(KINDS, **how).start()


def put(served: Served, name: str, **data: str) -> None:
    """Somebody else makes or changes an object."""
    code = served.api.ask("PUT", f"{PATH}/{name}", config_map(name, **data)).code
    if code == 404:
        served.api.post(PATH, config_map(name, **data))


def remove(served: Served, name: str) -> None:
    assert served.api.ask("DELETE", f"{PATH}/{name}").code == 200


def changes(served: Served) -> list[tuple[str, str, Any, Any]]:
    """What was told: how, of whom, what it holds, and what it held."""
    return [
        (event.type.value, event.key.name, event.obj.get("data"), event.old and event.old.get("data"))
        for event in served.reported
        if isinstance(event, WatchEvent)
    ]


def write(served: Served, *writes: Write) -> WriteResult:
    results: list[WriteResult] = []
    served.client.submit(writes, results.append)
    assert not results, "never from within"
    served.run()
    (result,) = results
    return result


def failing(*answers: HttpAnswer, methods: tuple[str, ...] = ("POST", "PUT", "PATCH", "DELETE")) -> Any:
    """The first requests fail like that."""
    left = list(answers)

    def trouble(request: HttpRequest) -> HttpAnswer | None:
        return left.pop(0) if left and request.method in methods else None

    return trouble


def test_changes_are_told_with_the_object_as_it_was() -> None:
    world = served()
    put(world, "a", x="1")
    put(world, "a", x="2")
    remove(world, "a")
    world.run(1)
    assert changes(world) == [
        ("ADDED", "a", {"x": "1"}, None),
        ("MODIFIED", "a", {"x": "2"}, {"x": "1"}),
        ("DELETED", "a", {"x": "2"}, {"x": "2"}),
    ]


def test_a_long_list_is_read_page_by_page() -> None:
    world = Served(KINDS)
    for number in range(1100):
        world.api.post(PATH, config_map(f"c-{number:04}"))
    world.start()
    assert len(world.client.list(scheme.CONFIG_MAP)) == 1100
    assert len([asked for asked in world.line.asked if "configmaps?limit=500" in asked]) == 3


def test_a_watch_that_breaks_off_goes_on_where_it_was() -> None:
    world = served()
    put(world, "a", x="1")
    world.run(1)
    world.line.cut()
    put(world, "a", x="2")
    put(world, "b", x="1")
    world.run(10)
    assert [change[:2] for change in changes(world)] == [("ADDED", "a"), ("MODIFIED", "a"), ("ADDED", "b")]
    assert not any("configmaps?limit" in asked for asked in world.line.asked[len(KINDS) :])


def test_what_happened_while_a_watch_was_away_for_too_long_is_worked_out() -> None:
    world = served(window=5)
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


def test_a_server_that_is_not_there_is_asked_again_less_and_less_often() -> None:
    world = served()
    world.line.trouble = lambda _request: HttpAnswer(0, trouble="refused", was_sent=False)
    world.line.asked.clear()
    world.line.cut()
    world.run(600)
    assert len(KINDS) * 20 < len(world.line.asked) < len(KINDS) * 50
    world.line.trouble = lambda _request: None
    put(world, "a")
    world.run(31)
    assert [change[:2] for change in changes(world)] == [("ADDED", "a")]


def test_a_write_is_answered_after_its_own_change_was_told() -> None:
    world = served()
    world.client.submit([Create(config_map())], world.reported.append)
    world.run()
    assert [type(reported) for reported in world.reported] == [WatchEvent, WriteResult]
    assert world.reported[1].obj == world.client.get(key())


def test_a_write_waits_for_a_watch_that_is_away() -> None:
    world = served()
    world.line.cut()
    world.line.trouble = lambda request: LOST if "watch=1" in request.path else None
    world.client.submit([Create(config_map())], world.reported.append)
    world.run()
    assert world.reported == []
    world.line.trouble = lambda _request: None
    world.run()
    assert [type(reported) for reported in world.reported] == [WatchEvent, WriteResult]


def test_writes_are_done_in_order_until_one_is_refused() -> None:
    world = served()
    result = write(world, Create(config_map()), Delete(key("b")), Create(config_map("c")))
    assert isinstance(result.error, NotFound)
    assert [change[:2] for change in changes(world)] == [("ADDED", "a")]


def test_writes_to_one_object_keep_their_order() -> None:
    world = served()
    done: list[Any] = []
    world.client.submit([Create(config_map(x="1"))], lambda result: done.append(result.error))
    world.client.submit([Update(config_map(x="2"))], lambda result: done.append(result.error))
    world.client.submit([Delete(key())], lambda result: done.append(result.error))
    world.run()
    assert done == [None, None, None]
    assert [change[0] for change in changes(world)] == ["ADDED", "MODIFIED", "DELETED"]


def test_whoever_wrote_upon_an_old_state_is_told_of_a_conflict() -> None:
    world = served()
    put(world, "a", x="1")
    world.run(1)
    read = world.client.get(key())
    assert read is not None
    put(world, "a", x="2")
    assert isinstance(write(world, Update(with_path(read, ("data", "x"), "3"))).error, Conflict)
    assert isinstance(write(world, Create(config_map())).error, Conflict)


def test_refusals_are_told_as_such() -> None:
    world = served()
    assert isinstance(write(world, Create(config_map("No Name"))).error, InvalidObject)
    world.line.trouble = failing(HttpAnswer(403, b'{"message": "no"}'))
    refused = write(world, Create(config_map())).error
    assert isinstance(refused, RefusedForNow), "rights may be given later"
    assert str(refused) == "no"


def test_what_may_not_be_done_is_said_once_until_it_may() -> None:
    world, reported = served(), list[str]()
    world.client.outbox.on_refused = reported.append
    refusal = HttpAnswer(403, b'{"message": "no"}')
    world.line.trouble = failing(refusal, refusal)
    for name in ("a", "b", "c"):
        write(world, Create(config_map(name)))
    assert reported == ["Create: no"]
    world.line.trouble = failing(refusal)
    write(world, Create(config_map("d")))
    assert reported == ["Create: no", "Create: no"]


def test_a_refusal_of_an_object_is_reported_less_and_less_often() -> None:
    world, reported = served(), list[str]()
    world.client.outbox.on_refused = reported.append
    put(world, "a", x="1")
    world.run(1)
    read = world.client.get(key())
    assert read is not None
    refusal = HttpAnswer(422, b'{"message": "spec.network: Value is immutable"}')
    world.line.trouble = failing(*[refusal] * 5)
    for _ in range(5):
        assert isinstance(write(world, Update(with_path(read, ("data", "x"), "2"))).error, InvalidObject)
    stated = "Update of ConfigMap team/a: spec.network: Value is immutable"
    assert reported == [stated, f"{stated} (2 times)", f"{stated} (4 times)"]


def test_a_busy_server_is_asked_again_when_it_says() -> None:
    world = served()
    world.line.trouble = failing(HttpAnswer(429, retry_after=7 * SECOND), HttpAnswer(503))
    begun = world.kernel.now()
    assert write(world, Create(config_map())).error is None
    assert [asked for asked in world.line.asked if asked.startswith("POST")] == [f"POST {PATH}"] * 3
    assert world.client.outbox.answers["POST", 429] == 1
    assert world.kernel.now() - begun >= 7 * SECOND


def test_a_server_that_never_answers_is_given_up() -> None:
    world = served()
    world.line.trouble = failing(*[HttpAnswer(503)] * 100)
    assert isinstance(write(world, Create(config_map())).error, Unanswered)


def test_a_create_that_was_done_unseen_counts_as_done() -> None:
    world = served()
    world.line.trouble, world.line.is_done_anyway = failing(LOST), True
    assert write(world, Create(config_map(x="1"))).error is None
    assert [change[0] for change in changes(world)] == ["ADDED"]


def test_a_create_in_whose_place_somebody_else_made_another_is_a_conflict() -> None:
    world = served()
    put(world, "a", x="2")
    world.line.trouble = failing(LOST)
    assert isinstance(write(world, Create(config_map(x="1"))).error, Conflict)


def test_what_the_server_is_to_name_is_not_made_twice() -> None:
    world = served()
    nameless = {**config_map(), "metadata": {"generateName": "c-", "namespace": "team"}}
    world.line.trouble, world.line.is_done_anyway = failing(LOST), True
    assert isinstance(write(world, Create(nameless)).error, Unanswered)
    assert len(world.client.list(scheme.CONFIG_MAP)) == 1


def test_an_update_and_a_delete_that_were_done_unseen_do_no_harm() -> None:
    world = served()
    put(world, "a", x="1")
    world.run(1)
    read = world.client.get(key())
    assert read is not None
    world.line.trouble, world.line.is_done_anyway = failing(LOST), True
    assert isinstance(write(world, Update(with_path(read, ("data", "x"), "2"))).error, Conflict)
    world.line.trouble = failing(LOST)
    assert write(world, Delete(key())).error is None
    assert [change[0] for change in changes(world)] == ["ADDED", "MODIFIED", "DELETED"]


def test_who_may_not_write_sends_nothing() -> None:
    world = served()
    world.is_open = False
    world.client.submit([Create(config_map())], world.reported.append)
    world.run()
    assert world.reported == []
    assert not any(asked.startswith("POST") for asked in world.line.asked)


def test_more_writes_than_are_allowed_wait_in_line() -> None:
    world = served(qps=10.0)
    done: list[int] = []
    for number in range(150):
        world.client.submit([Create(config_map(f"c-{number}"))], lambda _result: done.append(world.kernel.now()))
    begun = world.kernel.now()
    world.run()
    assert len(done) == 150
    assert 4 * SECOND < done[-1] - begun < 6 * SECOND


def test_a_kind_that_is_not_served_has_no_objects_until_it_is() -> None:
    world = Served(KINDS)
    world.line.trouble = lambda request: HttpAnswer(404) if "configmaps" in request.path else None
    world.start()
    informer = world.client.informers[scheme.CONFIG_MAP]
    assert not informer.is_served
    assert informer.trouble
    world.line.trouble = lambda _request: None
    put(world, "a")
    world.run(60)
    assert [change[:2] for change in changes(world)] == [("ADDED", "a")]
    assert informer.is_served


def test_an_older_server_is_spoken_to_in_its_version() -> None:
    world = Served([scheme.CLUSTER_QUEUE])
    world.line.trouble = lambda request: HttpAnswer(404) if "v1beta2" in request.path else None
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


def test_a_status_is_written_apart() -> None:
    world = Served([scheme.CLUSTER_QUEUE]).start()
    made = write(world, Create(queue("q", "v1beta2", {}))).obj
    assert made is not None
    assert write(world, UpdateStatus({**made, "status": {"pendingWorkloads": 3}})).error is None
    seen = world.client.get(Key(scheme.CLUSTER_QUEUE, "", "q"))
    assert seen is not None
    assert seen["status"]["pendingWorkloads"] == 3


def test_what_is_held_by_finalizers_is_answered_when_it_is_marked_and_when_it_goes() -> None:
    world = served()
    held = {**config_map(), "metadata": {**config_map()["metadata"], "finalizers": ["batchyard.dev/test"]}}
    assert write(world, Create(held)).error is None
    assert write(world, Delete(key())).error is None
    marked = world.client.get(key())
    assert marked is not None
    assert write(world, Update(with_path(marked, ("metadata", "finalizers"), None))).error is None
    assert world.client.get(key()) is None
    assert [change[0] for change in changes(world)] == ["ADDED", "MODIFIED", "DELETED"]


def test_what_is_not_watched_is_remembered_by_whoever_wrote_it() -> None:
    world = Served([scheme.JOB]).start()
    made = write(world, Create(config_map())).obj
    assert made is not None
    assert world.client.get(key()) == made
    remove(world, "a")
    assert isinstance(write(world, Update(made)).error, NotFound)
    assert world.client.get(key()) is None


def test_everything_is_what_came_to_be() -> None:
    world = served()
    put(world, "a")
    world.run(1)
    (event,) = world.client.everything()
    assert (event.type, event.key, event.old) == (EventType.ADDED, key(), None)


def test_times_are_sent_in_whole_seconds() -> None:
    world = served()
    job: dict[str, Any] = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "a", "namespace": "team"}}
    pod = {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}
    assert write(world, Create({**job, "spec": {"template": {"spec": pod}}})).error is None
    made = world.client.get(Key(scheme.JOB, "team", "a"))
    assert made is not None
    done = write(world, UpdateStatus({**made, "status": {"startTime": FINE}}))
    stored = world.api.stored.store.get(Key(scheme.JOB, "team", "a"))
    assert done.obj is not None
    assert stored is not None
    assert done.obj["status"]["startTime"] == stored["status"]["startTime"] == WHOLE


def test_one_that_was_made_by_a_try_that_was_lost_is_known_by_its_times_too() -> None:
    world = served()
    world.line.trouble, world.line.is_done_anyway = failing(LOST), True
    taint = {"key": "a", "effect": "NoSchedule", "timeAdded": FINE}
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a"}, "spec": {"taints": [taint]}}
    done = write(world, Create(node))
    assert done.error is None
    assert done.obj is not None
    assert done.obj["spec"]["taints"][0]["timeAdded"] == WHOLE
