"""The page on the wire: its files for everybody, its models for those who show who they are, its streams in measure."""

import json
from typing import Any

import pytest

from batchyard.api import scheme
from batchyard.api.meta import Key
from batchyard.apiserver.auth.authorization import Attributes, Decision
from batchyard.apiserver.auth.security import AuthFilters
from batchyard.apiserver.auth.tokens import Tokens, page_token
from batchyard.apiserver.dashboard import (
    FILES,
    MODELS,
    PAGE_STREAMS_FOR_OWNER,
    PAGE_STREAMS_MAX,
    PAGE_STREAMS_PER_FLOW_MAX,
    ModelHandler,
    ModelStream,
    StaticFileHandler,
)
from batchyard.apiserver.request import ANONYMOUS, MASTERS, ApiRequest, Response, StatusError, UserInfo
from batchyard.base.instant import HOUR, SECOND
from batchyard.controller_runtime.kernel import VirtualEventLoop
from batchyard.dashboard.static_report import HEADERS, asset
from batchyard.interfaces.client import EventType, WatchEvent
from unit.apiserver.api import Sealed

OWNER = UserInfo("owner", (MASTERS,))
ANN = UserInfo("ann", ())


class Counting:
    """Pages with a model that tells how often it was made, and what its asker may see."""

    def __init__(self) -> None:
        self.made = 0
        self.steady = "as it was"

    def model(self, view: str, query: Any, sight: Any) -> dict[str, Any] | None:
        self.made += 1
        seen = sight.may_list(scheme.POD, "team")
        return {"made": self.made, "steady": self.steady, "sees": seen} if view == "counting" else None

    def time(self) -> dict[str, Any]:
        return {"time": "now", "speed": 1.0}


class Rights:
    """Ann may list pods; everybody may get paths."""

    def decide(self, attributes: Attributes) -> Decision:
        return Decision(not attributes.resource or (attributes.user.name, attributes.resource) == ("ann", "pods"))


class Feeding:
    """Joins streams, to be fed by tests."""

    def __init__(self) -> None:
        self.joined: list[ModelStream] = []

    def join(self, watch: ModelStream) -> None:
        self.joined.append(watch)


class Page:
    """The models of pages, in virtual time."""

    def __init__(self) -> None:
        self.pages, self.feeding, self.kernel = Counting(), Feeding(), VirtualEventLoop(0)
        self.models = ModelHandler(self.pages, Rights(), self.feeding, self.kernel)

    def ask(self, user: str, query: dict[str, str]) -> Response | ModelStream:
        return self.models.answer(ApiRequest("GET", f"{MODELS}counting", query, user=UserInfo(user, ())))

    def watch(self, user: UserInfo = ANN) -> ModelStream:
        stream = self.models.answer(ApiRequest("GET", f"{MODELS}counting", {"watch": "true"}, user=user))
        assert isinstance(stream, ModelStream)
        return stream

    def change(self, kind: str = scheme.POD) -> None:
        event = WatchEvent(EventType.ADDED, Key(kind, "team", "x"), {}, None, 1)
        for stream in self.feeding.joined:
            stream.feed([event])


def lines(stream: ModelStream) -> list[Any]:
    return [json.loads(line) for line in stream.take()]


def test_a_model_is_for_its_asker() -> None:
    page = Page()
    for user, sees in (("ann", True), ("bob", False)):
        answer = page.ask(user, {})
        assert isinstance(answer, Response)
        assert (answer.body["model"]["sees"], answer.body["time"]) == (sees, "now")
        assert ("cache-control", "no-store") in answer.headers


def test_a_view_that_is_not_there_is_not_found() -> None:
    with pytest.raises(StatusError, match="not found, or not visible"):
        Page().models.answer(ApiRequest("GET", f"{MODELS}none"))


def test_a_stream_sends_what_has_changed_and_a_few_times_a_second() -> None:
    page = Page()
    stream = page.watch()
    assert lines(stream)[0]["set"] == {"made": 1, "steady": "as it was", "sees": True}
    for _ in range(100):
        page.change()
    assert lines(stream) == []
    page.kernel.run()
    assert [line["set"] for line in lines(stream)] == [{"made": 2}]
    assert page.kernel.now() >= SECOND // 5
    page.kernel.run()
    assert (lines(stream), page.pages.made) == ([], 2)


def test_nothing_is_made_for_what_no_model_holds_or_nobody_takes() -> None:
    page = Page()
    stream = page.watch()
    page.change()
    page.kernel.run()
    assert page.pages.made == 1  # the first line was not taken yet
    stream.take()
    page.kernel.run()
    assert page.pages.made == 2
    stream.take()
    page.change(scheme.LEASE)
    page.kernel.run()
    assert page.pages.made == 2


def test_the_more_streams_are_open_the_less_often_each_is_sent_changes() -> None:
    page = Page()
    streams = [page.watch(OWNER) for _ in range(PAGE_STREAMS_MAX)]
    with pytest.raises(StatusError, match="50 dashboard streams are open"):
        page.watch(OWNER)
    for stream in streams:
        stream.take()
    page.change()
    page.kernel.run()
    assert page.kernel.now() >= 2 * SECOND
    streams[0].end()
    assert page.watch(OWNER).is_over is False


def test_one_user_has_few_streams_and_locks_out_no_other() -> None:
    page = Page()
    streams = [page.watch() for _ in range(PAGE_STREAMS_PER_FLOW_MAX)]
    with pytest.raises(StatusError, match="10 dashboard streams are open for ann") as refused:
        page.watch()
    assert (refused.value.code, refused.value.details) == (429, {"retryAfterSeconds": 1})
    assert page.watch(UserInfo("bob", ())).is_over is False
    streams[0].end()
    assert page.watch().is_over is False


def test_service_accounts_of_one_namespace_are_one_user() -> None:
    page = Page()
    for number in range(PAGE_STREAMS_PER_FLOW_MAX):
        page.watch(UserInfo(f"system:serviceaccount:team-a:bot-{number}", ()))
    with pytest.raises(StatusError, match="are open for system:serviceaccounts:team-a"):
        page.watch(UserInfo("system:serviceaccount:team-a:another", ()))
    assert page.watch(UserInfo("system:serviceaccount:team-b:bot", ())).is_over is False


def test_some_streams_are_kept_for_the_owner() -> None:
    page = Page()
    for number in range(PAGE_STREAMS_MAX - PAGE_STREAMS_FOR_OWNER):
        page.watch(UserInfo(f"user-{number}", ()))
    with pytest.raises(StatusError, match="40 dashboard streams are open"):
        page.watch()
    for _ in range(PAGE_STREAMS_FOR_OWNER):
        page.watch(OWNER)


def test_a_defect_ends_the_stream_and_is_told_in_the_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> None:
        raise KeyError("gone")

    page = Page()
    stream = page.watch()
    stream.take()
    monkeypatch.setattr(page.pages, "model", fails)
    page.change()
    page.kernel.run()
    assert stream.is_over
    assert "dashboard model failed" in caplog.text


def test_files_are_told_to_be_used_here_alone() -> None:
    files = StaticFileHandler(asset, HEADERS)
    answer = files.answer(ApiRequest("GET", f"{FILES}/"))
    reported = dict(answer.headers)
    assert "default-src 'none'" in reported["content-security-policy"]
    assert "frame-ancestors 'none'" in reported["content-security-policy"]
    assert "unsafe" not in reported["content-security-policy"]
    assert (reported["x-content-type-options"], reported["referrer-policy"]) == ("nosniff", "no-referrer")
    assert b"<script>" not in answer.body
    assert dict(files.answer(ApiRequest("GET", FILES)).headers)["location"] == f"{FILES}/"
    for name in ("/../pages.py", "/js/none.js", "x", "/static/index.html"):
        assert files.answer(ApiRequest("GET", f"{FILES}{name}")).code == 404


class Door:
    """The door of a server at an hour, and a token for ann that is good for one."""

    def __init__(self) -> None:
        self.now = 10 * HOUR
        self.access = AuthFilters(Rights(), Tokens(VirtualStore(), Sealed(), lambda: self.now))
        self.token = page_token(Sealed(), "ann", ("team",), self.now, self.now + HOUR)

    def user(self, method: str, path: str, **headers: str) -> UserInfo | None:
        reported = {"authorization": f"Bearer {self.token}", **headers}
        try:
            return self.access.authenticated(ApiRequest(method, path, headers=reported)).user
        except StatusError:
            return None


class VirtualStore:
    """No objects."""

    def get(self, key: Key) -> None:
        return None

    def list(self, kind: str, namespace: str | None = None) -> list[Any]:
        return []


def test_a_token_for_the_page_is_good_for_looking_and_for_its_time() -> None:
    door = Door()
    found = door.user("GET", f"{MODELS}overview")
    assert found is not None
    assert (found.name, found.groups) == ("ann", ("team", "system:authenticated"))
    why = "/apis/kueue.x-k8s.io/v1beta2/namespaces/team/workloads/w/why"
    assert door.user("GET", why) == found
    for method, path in (("GET", "/api/v1/secrets"), ("POST", why), ("POST", f"{MODELS}overview"), ("GET", "/metrics")):
        assert door.user(method, path) is None
    for name in ("why", "eta"):
        for path in (
            f"/api/v1/namespaces/team/secrets/{name}",
            f"/api/v1/namespaces/{name}",
            f"{why}/{name}",
            f"/{name}",
        ):
            assert door.user("GET", path) is None, "what is called as the part is not the part"
    assert door.user("GET", "/api/v1/namespaces/team/pods/p/why") == found
    assert door.user("GET", f"{MODELS}overview", upgrade="websocket") is None
    door.now += HOUR
    assert door.user("GET", f"{MODELS}overview") is None


def test_such_a_token_is_no_account_s_and_files_need_none() -> None:
    door = Door()
    assert Tokens(VirtualStore(), Sealed(), lambda: door.now).user_of(door.token) is None
    door.token = door.token[:-4] + "AAAA"
    assert door.user("GET", f"{MODELS}overview") is None
    assert door.access.authenticated(ApiRequest("GET", f"{FILES}/js/app.js")).user == ANONYMOUS
    with pytest.raises(StatusError):
        door.access.authenticated(ApiRequest("GET", f"{MODELS}overview"))
