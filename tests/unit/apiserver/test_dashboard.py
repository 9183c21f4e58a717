"""The dashboard over HTTP: files for anonymous users, models for authenticated users, and limited streams."""

import json
from typing import Any

import pytest

from batchyard.api import scheme
from batchyard.api.meta import Key
from batchyard.apiserver.auth.authorization import AuthorizationDecision, RequestAttributes
from batchyard.apiserver.auth.security import AuthFilters
from batchyard.apiserver.auth.tokens import TokenIssuer, sign_dashboard_token
from batchyard.apiserver.dashboard import (
    DASHBOARD_ACTIONS_PATH,
    DASHBOARD_FILES_PATH,
    DASHBOARD_MODELS_PATH,
    DASHBOARD_STREAMS_FOR_OWNER,
    DASHBOARD_STREAMS_MAX,
    DASHBOARD_STREAMS_PER_FLOW_MAX,
    ModelHandler,
    ModelStream,
    StaticFileHandler,
)
from batchyard.apiserver.request import (
    ANONYMOUS,
    MASTERS_GROUP,
    ApiRequest,
    Response,
    StatusError,
    UserInfo,
    has_read_only_token,
)
from batchyard.base.instant import HOUR, SECOND
from batchyard.controller_runtime.kernel import VirtualEventLoop
from batchyard.dashboard.static_report import HEADERS, read_asset
from batchyard.interfaces.client import EventType, WatchEvent
from unit.apiserver.api import DigestSigner

OWNER = UserInfo("owner", (MASTERS_GROUP,))
ANN = UserInfo("ann", ())


class CountingPages:
    """Pages with one model. It contains how often it was computed, and whether its user may list pods."""

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
    """Ann may list pods; every user may get paths."""

    def decide(self, attributes: RequestAttributes) -> AuthorizationDecision:
        return AuthorizationDecision(
            not attributes.resource or (attributes.user.name, attributes.resource) == ("ann", "pods")
        )


class StreamCollector:
    """Collects streams, so that tests can feed them."""

    def __init__(self) -> None:
        self.joined: list[ModelStream] = []

    def subscribe(self, watch: ModelStream) -> None:
        self.joined.append(watch)


class Page:
    """The models of pages, in virtual time."""

    def __init__(self) -> None:
        self.pages, self.feeding, self.kernel = CountingPages(), StreamCollector(), VirtualEventLoop(0)
        self.models = ModelHandler(self.pages, Rights(), self.feeding, self.kernel)

    def ask(self, user: str, query: dict[str, str]) -> Response | ModelStream:
        return self.models.respond(
            ApiRequest("GET", f"{DASHBOARD_MODELS_PATH}counting", query, user=UserInfo(user, ()))
        )

    def watch(self, user: UserInfo = ANN) -> ModelStream:
        stream = self.models.respond(
            ApiRequest("GET", f"{DASHBOARD_MODELS_PATH}counting", {"watch": "true"}, user=user)
        )
        assert isinstance(stream, ModelStream)
        return stream

    def change(self, kind: str = scheme.POD) -> None:
        event = WatchEvent(EventType.ADDED, Key(kind, "team", "x"), {}, None, 1)
        for stream in self.feeding.joined:
            stream.process_changes([event])


def lines(stream: ModelStream) -> list[Any]:
    return [json.loads(line) for line in stream.take_buffered_data()]


def test_dashboard_model_depends_on_rights_of_user() -> None:
    page = Page()
    for user, sees in (("ann", True), ("bob", False)):
        answer = page.ask(user, {})
        assert isinstance(answer, Response)
        assert (answer.body["model"]["sees"], answer.body["time"]) == (sees, "now")
        assert ("cache-control", "no-store") in answer.headers


def test_unknown_dashboard_view_is_not_found() -> None:
    with pytest.raises(StatusError, match="not found, or not visible"):
        Page().models.respond(ApiRequest("GET", f"{DASHBOARD_MODELS_PATH}none"))


def test_stream_sends_changed_fields_at_limited_rate() -> None:
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


def test_discarded_data_of_stream_is_computed_again() -> None:
    page = Page()
    stream = page.watch()
    assert lines(stream)[0]["set"] == {"made": 1, "steady": "as it was", "sees": True}
    page.pages.steady = "hidden"
    page.change()
    page.kernel.run(end_time=page.kernel.now() + SECOND)
    stream.discard_buffered_data()
    assert lines(stream) == []
    page.pages.steady = "shown"
    page.kernel.run(end_time=page.kernel.now() + SECOND)
    assert [line["set"] for line in lines(stream)] == [{"made": 3, "steady": "shown"}]


def test_stream_builds_no_model_for_other_kinds_or_slow_client() -> None:
    page = Page()
    stream = page.watch()
    page.change()
    page.kernel.run()
    assert page.pages.made == 1  # the first line was not taken yet
    stream.take_buffered_data()
    page.kernel.run()
    assert page.pages.made == 2
    stream.take_buffered_data()
    page.change(scheme.LEASE)
    page.kernel.run()
    assert page.pages.made == 2


def test_stream_interval_grows_with_number_of_streams() -> None:
    page = Page()
    streams = [page.watch(OWNER) for _ in range(DASHBOARD_STREAMS_MAX)]
    with pytest.raises(StatusError, match="50 dashboard streams are open"):
        page.watch(OWNER)
    for stream in streams:
        stream.take_buffered_data()
    page.change()
    page.kernel.run()
    assert page.kernel.now() >= 2 * SECOND
    streams[0].end()
    assert page.watch(OWNER).is_over is False


def test_user_has_limited_number_of_streams() -> None:
    page = Page()
    streams = [page.watch() for _ in range(DASHBOARD_STREAMS_PER_FLOW_MAX)]
    with pytest.raises(StatusError, match="10 dashboard streams are open for ann") as refused:
        page.watch()
    assert (refused.value.code, refused.value.details) == (429, {"retryAfterSeconds": 1})
    assert page.watch(UserInfo("bob", ())).is_over is False
    streams[0].end()
    assert page.watch().is_over is False


def test_service_accounts_of_one_namespace_share_stream_limit() -> None:
    page = Page()
    for number in range(DASHBOARD_STREAMS_PER_FLOW_MAX):
        page.watch(UserInfo(f"system:serviceaccount:team-a:bot-{number}", ()))
    with pytest.raises(StatusError, match="are open for system:serviceaccounts:team-a"):
        page.watch(UserInfo("system:serviceaccount:team-a:another", ()))
    assert page.watch(UserInfo("system:serviceaccount:team-b:bot", ())).is_over is False


def test_some_streams_are_reserved_for_owner() -> None:
    page = Page()
    for number in range(DASHBOARD_STREAMS_MAX - DASHBOARD_STREAMS_FOR_OWNER):
        page.watch(UserInfo(f"user-{number}", ()))
    with pytest.raises(StatusError, match="40 dashboard streams are open"):
        page.watch()
    for _ in range(DASHBOARD_STREAMS_FOR_OWNER):
        page.watch(OWNER)


def test_exception_in_model_ends_stream_and_is_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> None:
        raise KeyError("gone")

    page = Page()
    stream = page.watch()
    stream.take_buffered_data()
    monkeypatch.setattr(page.pages, "model", fails)
    page.change()
    page.kernel.run()
    assert stream.is_over
    assert "cannot compute the model of a dashboard page" in caplog.text


def test_static_files_have_security_headers() -> None:
    files = StaticFileHandler(read_asset, HEADERS)
    answer = files.respond(ApiRequest("GET", f"{DASHBOARD_FILES_PATH}/"))
    reported = dict(answer.headers)
    assert "default-src 'none'" in reported["content-security-policy"]
    assert "frame-ancestors 'none'" in reported["content-security-policy"]
    assert "unsafe" not in reported["content-security-policy"]
    assert (reported["x-content-type-options"], reported["referrer-policy"]) == ("nosniff", "no-referrer")
    assert b"<script>" not in answer.body
    assert (
        dict(files.respond(ApiRequest("GET", DASHBOARD_FILES_PATH)).headers)["location"] == f"{DASHBOARD_FILES_PATH}/"
    )
    for name in ("/../pages.py", "/js/none.js", "x", "/static/index.html"):
        assert files.respond(ApiRequest("GET", f"{DASHBOARD_FILES_PATH}{name}")).code == 404


class PageAccess:
    """Authentication of a server in virtual time, and a token for ann that is valid for an hour."""

    def __init__(self) -> None:
        self.now = 10 * HOUR
        self.access = AuthFilters(Rights(), TokenIssuer(VirtualStore(), DigestSigner(), lambda: self.now))
        self.token = sign_dashboard_token(DigestSigner(), UserInfo("ann", ("team",)), self.now, self.now + HOUR)

    def user(self, method: str, path: str, **headers: str) -> UserInfo | None:
        reported = {"authorization": f"Bearer {self.token}", **headers}
        try:
            return self.access.authenticate(ApiRequest(method, path, headers=reported)).user
        except StatusError:
            return None


class VirtualStore:
    """A store without objects."""

    def get(self, key: Key) -> None:
        return None

    def list(self, kind: str, namespace: str | None = None) -> list[Any]:
        return []


def test_page_token_allows_dashboard_reads_until_expiry() -> None:
    page_access = PageAccess()
    result = page_access.user("GET", f"{DASHBOARD_MODELS_PATH}overview")
    assert result is not None
    assert (result.name, result.groups) == ("ann", ("team", "system:authenticated"))
    why = "/apis/kueue.x-k8s.io/v1beta2/namespaces/team/workloads/w/why"
    assert page_access.user("GET", why) == result
    for method, path in (
        ("GET", "/api/v1/secrets"),
        ("POST", why),
        ("POST", f"{DASHBOARD_MODELS_PATH}overview"),
        ("GET", "/metrics"),
    ):
        assert page_access.user(method, path) is None
    for name in ("why", "eta"):
        secret = f"/api/v1/namespaces/team/secrets/{name}"
        for path in (secret, f"/api/v1/namespaces/{name}", f"{why}/{name}", f"/{name}"):
            assert page_access.user("GET", path) is None, "a path that only ends like a subresource is not one"
    assert page_access.user("GET", "/api/v1/namespaces/team/pods/p/why") == result
    assert page_access.user("GET", "/api/v1/namespaces/team/pods/p/log") == result
    assert page_access.user("GET", f"{DASHBOARD_MODELS_PATH}overview", upgrade="websocket") is None
    page_access.now += HOUR
    assert page_access.user("GET", f"{DASHBOARD_MODELS_PATH}overview") is None


def test_only_token_with_actions_permits_an_action() -> None:
    page_access = PageAccess()
    request = ApiRequest("POST", DASHBOARD_ACTIONS_PATH, headers={"authorization": f"Bearer {page_access.token}"})
    with pytest.raises(StatusError, match="this link is read-only") as refused:
        page_access.access.authenticate(request)
    assert refused.value.code == 403
    assert page_access.user("POST", DASHBOARD_ACTIONS_PATH, **{"impersonate-user": "owner"}) is None
    user = UserInfo("ann", ("team",))
    page_access.token = sign_dashboard_token(
        DigestSigner(), user, page_access.now, page_access.now + HOUR, permits_actions=True
    )
    result = page_access.user("POST", DASHBOARD_ACTIONS_PATH)
    assert result is not None
    assert (result.name, has_read_only_token(result)) == ("ann", False)
    job = "/apis/batch/v1/namespaces/team/jobs/j"
    for method, path in (("POST", f"{DASHBOARD_ACTIONS_PATH}/x"), ("DELETE", DASHBOARD_ACTIONS_PATH), ("DELETE", job)):
        assert page_access.user(method, path) is None


def test_page_token_is_not_service_account_token_and_files_need_none() -> None:
    page_access = PageAccess()
    assert TokenIssuer(VirtualStore(), DigestSigner(), lambda: page_access.now).user_of(page_access.token) is None
    page_access.token = page_access.token[:-4] + "AAAA"
    assert page_access.user("GET", f"{DASHBOARD_MODELS_PATH}overview") is None
    assert page_access.access.authenticate(ApiRequest("GET", f"{DASHBOARD_FILES_PATH}/js/app.js")).user == ANONYMOUS
    with pytest.raises(StatusError):
        page_access.access.authenticate(ApiRequest("GET", f"{DASHBOARD_MODELS_PATH}overview"))
