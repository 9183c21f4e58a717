"""Watches: start revision, selectors, bookmarks and invalid queries."""

from typing import Any

import pytest

from batchyard.apiserver.handlers import read
from batchyard.apiserver.handlers.read import WatchStream
from batchyard.apiserver.request import ApiRequest, UserInfo
from unit.apiserver.api import Api, config_map
from unit.apiserver.roles import binding, role, rule, user

MAPS = "/api/v1/namespaces/default/configmaps"


def event_names(watch: WatchStream) -> list[tuple[str, str]]:
    return [(event["type"], event["object"]["metadata"].get("name", "")) for event in watch.take_buffered_data()]


def set_label(api: Api, name: str, colour: str) -> None:
    patch = {"metadata": {"labels": {"colour": colour}}}
    headers = {"content-type": "application/merge-patch+json"}
    assert api.ask("PATCH", f"{MAPS}/{name}", patch, headers=headers).code == 200


def test_watch_sends_existing_objects_first() -> None:
    api = Api()
    api.post(MAPS, config_map("a"))
    watch = api.watch(f"{MAPS}?watch=1")
    api.post(MAPS, config_map("b"))
    assert event_names(watch) == [("ADDED", "a"), ("ADDED", "b")]


def test_watch_resumes_from_revision() -> None:
    api = Api()
    version = api.post(MAPS, config_map("a"))["metadata"]["resourceVersion"]
    api.post(MAPS, config_map("b"))
    watch = api.watch(f"{MAPS}?watch=1&resourceVersion={version}")
    api.ask("DELETE", f"{MAPS}/a")
    assert event_names(watch) == [("ADDED", "b"), ("DELETED", "a")]


def test_watch_with_selector_reports_added_and_deleted_on_label_change() -> None:
    api = Api()
    api.post(MAPS, config_map("a", colour="red"))
    watch = api.watch(f"{MAPS}?watch=1&labelSelector=colour=green")
    set_label(api, "a", "green")
    set_label(api, "a", "blue")
    added, deleted = watch.take_buffered_data()
    assert (added["type"], deleted["type"]) == ("ADDED", "DELETED")
    assert deleted["object"]["metadata"]["labels"]["colour"] == "green"
    now = api.get(f"{MAPS}/a")["metadata"]["resourceVersion"]
    assert deleted["object"]["metadata"]["resourceVersion"] == now


def test_watch_marks_end_of_initial_events() -> None:
    api = Api()
    api.post(MAPS, config_map("a"))
    request = "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
    events = api.watch(f"{MAPS}?{request}").take_buffered_data()
    assert [event["type"] for event in events] == ["ADDED", "BOOKMARK"]
    marked: dict[str, Any] = events[1]["object"]["metadata"]
    assert marked["annotations"] == {"k8s.io/initial-events-end": "true"}


def test_watch_without_bookmarks_does_not_mark_end_of_initial_events() -> None:
    api = Api()
    api.post(MAPS, config_map("a"))
    request = "watch&sendInitialEvents=1&resourceVersionMatch=NotOlderThan&resourceVersion=2"
    assert [event["type"] for event in api.watch(f"{MAPS}?{request}").take_buffered_data()] == ["ADDED"]


def test_watch_expires_when_history_drops_buffered_change() -> None:
    api = Api()
    first = int(api.post(MAPS, config_map("a"))["metadata"]["resourceVersion"])
    slow, fast = api.watch(f"{MAPS}?watch=1"), api.watch(f"{MAPS}?watch=1")
    second = int(api.post(MAPS, config_map("b"))["metadata"]["resourceVersion"])
    fast.take_buffered_data()
    for watch in (slow, fast):
        watch.forget_changes(first)
    assert (slow.is_over, fast.is_over) == (False, False)
    for watch in (slow, fast):
        watch.forget_changes(second)
    assert (slow.is_over, fast.is_over) == (True, False)
    assert [event["object"]["code"] for event in slow.take_buffered_data()] == [410]


def test_watch_expires_above_limit_of_buffered_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read, "WATCH_BACKLOG_MAX", 2)
    api = Api()
    api.post(MAPS, config_map("a"))
    watch = api.watch(f"{MAPS}?watch=1")
    for name in "bc":
        api.post(MAPS, config_map(name))
    assert not watch.is_over
    api.post(MAPS, config_map("d"))
    assert [event["type"] for event in watch.take_buffered_data()] == ["ERROR"]


def test_watch_sends_bookmarks_on_request_only() -> None:
    api = Api()
    api.post(MAPS, config_map("a"))
    with_them, without = api.watch(f"{MAPS}?watch=1&allowWatchBookmarks=true"), api.watch(f"{MAPS}?watch=1")
    for watch in (with_them, without):
        watch.take_buffered_data()
        watch.send_keep_alive()
    assert ([kind for kind, _ in event_names(with_them)], event_names(without)) == (["BOOKMARK"], [])


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("resourceVersion=1", 410),
        ("resourceVersion=9999", 504),
        ("resourceVersion=x", 400),
        ("sendInitialEvents=true", 422),
        ("sendInitialEvents=true&resourceVersionMatch=Exact", 422),
        ("resourceVersionMatch=NotOlderThan", 422),
        ("timeoutSeconds=soon", 400),
    ],
)
def test_watch_rejects_invalid_query(query: str, code: int) -> None:
    api = Api(window=2)
    for number in range(5):
        api.post(MAPS, config_map(f"m{number}"))
    assert api.ask("GET", f"{MAPS}?watch=1&{query}").code == code


def test_watch_parameter_accepts_any_value_but_false() -> None:
    api = Api()
    for stated in ("yes", "TRUE", "", "1"):
        api.watch(f"{MAPS}?watch={stated}")
    for stated in ("0", "False"):
        assert api.get(f"{MAPS}?watch={stated}")["kind"] == "ConfigMapList"


@pytest.mark.parametrize(
    ("method", "path", "begins"),
    [("GET", MAPS, True), ("GET", f"{MAPS}/a", False), ("POST", MAPS, False), ("GET", "/x", False)],
)
def test_only_list_request_begins_watch(method: str, path: str, begins: bool) -> None:
    assert Api().server.begins_watch(ApiRequest(method, path, {"watch": "1"}, {})) == begins


def test_get_of_single_object_ignores_watch_parameter() -> None:
    api = Api()
    created = api.post(MAPS, config_map("a"))
    assert api.get(f"{MAPS}/a?watch=1") == created
    may_get = role("reader", rule("get", "configmaps"))
    for obj in (may_get, binding("reader", "ClusterRole/reader", user("reader"))):
        api.post(f"/apis/{obj['apiVersion']}/{obj['kind'].lower()}s", obj)
    assert api.ask("GET", f"{MAPS}/a?watch=1", user=UserInfo("reader", ())).code == 200
    assert api.ask("GET", f"{MAPS}?watch=1&fieldSelector=metadata.name=a", user=UserInfo("reader", ())).code == 403
