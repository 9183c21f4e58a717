"""The page beside an operator acts, and reads logs and Events, with the token of its user, and sends nothing else."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from aiohttp import web

from batchyard.api import scheme
from batchyard.api.meta import Key
from batchyard.apiserver.dashboard import DASHBOARD_ACTIONS_PATH, DASHBOARD_EVENTS_PATH, DASHBOARD_STREAMS_PER_FLOW_MAX
from batchyard.apiserver.dashboard_actions import ACTION_BODY_MAX
from batchyard.apiserver.request import ApiRequest, StatusError
from batchyard.server.operator import aiohttp_transport, dashboard
from batchyard.server.operator.user_requests import LOG_BYTES_MAX, write_request
from unit.server.operator.page_servers import KUEUE, OperatorPage, pause, run_page

LOG_PATH = "/api/v1/namespaces/team/pods/train-0/log"


def test_action_is_sent_with_the_token_of_the_user_alone() -> None:
    async def act(page: OperatorPage) -> None:
        assert await page.offered(page.workload, page.editor) == ["suspend", "cancel"]
        browser_headers = {"Cookie": "session=1", "Impersonate-User": "admin", "X-Forwarded-For": "1.2.3.4"}
        code, document = await page.perform(page.workload, "suspend", page.editor, headers=browser_headers)
        assert (code, document) == (200, {"done": "suspend", "warnings": []})
        assert page.stored(page.workload)["spec"]["active"] is False
        (sent,) = page.server.requests_of(page.editor)
        path = f"/apis/{KUEUE}/v1beta2/namespaces/team/workloads/w?fieldManager=batchyard-page"
        assert (sent.method, sent.path) == ("PATCH", path)
        assert sent.headers["content-type"] == "application/merge-patch+json"
        assert sent.headers["user-agent"].startswith("batchyard-page/")
        expected = {"host", "authorization", "accept", "accept-encoding", "content-type", "content-length"}
        assert set(sent.headers) == {*expected, "user-agent"}
        audited = [each.effective_request for each in page.server.api.audited]
        writers = [each.user.name for each in audited if each.method == "PATCH"]
        assert writers == ["system:serviceaccount:team:editor"]

    run_page(act)


def test_queue_is_stopped_and_job_is_cancelled() -> None:
    async def act(page: OperatorPage) -> None:
        assert (await page.perform(page.queue, "stop", page.editor, "HoldAndDrain"))[0] == 200
        assert page.stored(page.queue)["spec"]["stopPolicy"] == "HoldAndDrain"
        assert await page.offered(page.stored(page.queue), page.editor) == ["resume"]
        assert (await page.perform(page.workload, "cancel", page.editor))[0] == 200
        assert page.stored(page.job) is None

    run_page(act)


def test_user_without_rights_gets_no_actions_and_the_status_of_the_api_server() -> None:
    async def act(page: OperatorPage) -> None:
        assert await page.offered(page.queue, page.reader) == []
        code, status = await page.perform(page.queue, "stop", page.reader, "Hold")
        assert (code, status["kind"], status["reason"]) == (403, "Status", "Forbidden")
        assert 'cannot patch resource "clusterqueues"' in status["message"]
        assert page.stored(page.queue) == page.queue
        stranger = page.server.grant("stranger")
        assert (await page.perform(page.queue, "stop", stranger, "Hold"))[0] == 404
        assert page.server.requests_of(stranger) == []

    run_page(act)


@pytest.mark.parametrize(
    ("headers", "other", "code"),
    [
        ({"Origin": "https://other.example"}, {}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, {}, 403),
        ({"Content-Type": "text/plain"}, {}, 415),
        ({}, {"uid": "another"}, 409),
        ({}, {"kind": "Secret"}, 404),
        ({}, {"name": "../../../../api/v1/namespaces/team/pods"}, 404),
        ({}, {"action": "delete"}, 409),
        ({}, {"value": "x" * ACTION_BODY_MAX}, 413),
    ],
)
def test_malformed_action_is_not_sent(headers: Mapping[str, str], other: Mapping[str, Any], code: int) -> None:
    async def act(page: OperatorPage) -> None:
        body: dict[str, Any] = {"action": "suspend", **other}
        assert (await page.perform(page.workload, token=page.editor, headers=headers, **body))[0] == code
        assert page.server.requests_of(page.editor) == []

    run_page(act)


@pytest.mark.parametrize("name", ["..", ".", "x/proxy/y", "..%2F.."])
def test_owner_with_an_invalid_name_is_not_sent(name: str) -> None:
    async def act(page: OperatorPage) -> None:
        metadata = {**page.workload["metadata"], "name": "owned", "uid": "owned"}
        metadata["ownerReferences"] = [{"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": "u"}]
        owned = {**page.workload, "metadata": metadata}
        page.server.api.stored.store.put(Key(scheme.WORKLOAD, "team", "owned"), owned)
        page.server.received.clear()
        code, status = await page.perform(owned, "cancel", page.editor)
        assert (code, status["reason"]) == (409, "Conflict")
        assert page.server.requests_of(page.editor) == []
        asked = [each.path for each in page.server.received if each.method == "DELETE"]
        assert asked == []

    run_page(act)


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/namespaces/team/pods/..",
        "/api/v1/namespaces/./pods/p",
        "/api/v1/namespaces//pods/p",
        "/api/v1/namespaces/team/pods/a%2Fb",
        "/api/v1/namespaces/team/pods/a?b",
        "/api/v1/namespaces/team/pods/a#b",
        "/api/v1/namespaces/team/pods/a\n",
        "/api/v1/namespaces/team/pods/",
        "api/v1",
    ],
)
def test_ambiguous_path_of_a_write_is_rejected(path: str) -> None:
    with pytest.raises(StatusError) as rejected:
        write_request(ApiRequest("DELETE", path, headers={"content-type": "application/json"}))
    assert rejected.value.code == 400


@pytest.mark.parametrize("token", ["", "wrong"])
def test_request_without_valid_token_is_not_sent(token: str) -> None:
    async def act(page: OperatorPage) -> None:
        events = f"{DASHBOARD_EVENTS_PATH}?namespace=team&uid={page.workload['metadata']['uid']}"
        codes = [(await page.ask("GET", path, token))[0] for path in (DASHBOARD_ACTIONS_PATH, events, LOG_PATH)]
        assert [*codes, (await page.perform(page.workload, "suspend", token))[0]] == [401] * 4
        assert all("reviews" in each.path for each in page.server.received)

    run_page(act)


def test_nothing_is_sent_if_the_api_server_takes_the_user_for_another() -> None:
    async def act(page: OperatorPage) -> None:
        page.server.ignores_tokens = True
        code, status = await page.perform(page.queue, "stop", page.reader, "Hold")
        assert code == 403
        assert "the token of system:serviceaccount:team:reader as owner" in status["message"]
        assert (await page.ask("GET", LOG_PATH, page.reader))[0] == 403
        assert page.server.requests_of(page.reader) == []
        assert page.stored(page.queue) == page.queue

    run_page(act)


def test_redirects_and_foreign_responses_are_errors() -> None:
    async def act(page: OperatorPage) -> None:
        responses = iter(
            [
                web.Response(status=307, headers={"location": f"{page.server.url}/elsewhere"}),
                web.Response(text="<html>log in</html>", content_type="text/html"),
                web.Response(status=503, text="<html>busy</html>", content_type="text/html"),
            ]
        )

        async def respond(request: web.Request) -> web.Response | None:
            return next(responses) if request.method == "PATCH" else None

        page.server.respond = respond
        codes = [(await page.perform(page.queue, "stop", page.editor, "Hold"))[0] for _ in range(3)]
        assert codes == [502, 502, 503]
        assert [each.path for each in page.server.received if "elsewhere" in each.path] == []

    run_page(act)


@pytest.mark.parametrize(
    ("method", "path", "code"),
    [
        ("PATCH", f"/apis/{KUEUE}/v1beta2/clusterqueues/gpus", 404),
        ("DELETE", "/apis/batch/v1/namespaces/team/jobs/train", 404),
        ("GET", "/api/v1/namespaces/team/secrets", 404),
        ("GET", "/api/v1/namespaces/team/pods/train-0", 404),
        ("GET", "/api/v1/namespaces/team/pods/train-0/exec?command=sh", 404),
        ("POST", LOG_PATH, 405),
        ("HEAD", LOG_PATH, 405),
        ("GET", LOG_PATH.replace("train-0", "..%2F..%2Fsecrets%2Fs%3F"), 400),
        ("GET", LOG_PATH.replace("train-0", "%2E%2E"), 400),
        ("GET", LOG_PATH.replace("team", "Team"), 400),
        ("GET", LOG_PATH.replace("team", "a" * 64), 400),
        ("GET", f"{LOG_PATH}?previous=true", 400),
        ("GET", f"{LOG_PATH}?container=a%26insecureSkipTLSVerifyBackend%3Dtrue", 400),
        ("GET", f"{LOG_PATH}?tailLines=5001", 400),
        ("GET", f"{LOG_PATH}?tailLines=-1", 400),
        ("GET", f"{LOG_PATH}?tailLines=1&tailLines=2", 400),
        ("GET", f"{LOG_PATH}?follow=1", 400),
        ("GET", f"{DASHBOARD_EVENTS_PATH}?namespace=team", 400),
        ("GET", f"{DASHBOARD_EVENTS_PATH}?uid=u", 400),
        ("GET", f"{DASHBOARD_EVENTS_PATH}?namespace=team&uid=u,metadata.name=x", 400),
        ("GET", f"{DASHBOARD_EVENTS_PATH}?namespace=team{'&uid=u' * 5}", 400),
        ("GET", f"{DASHBOARD_EVENTS_PATH}?namespace=team&uid=u&watch=true", 400),
    ],
)
def test_other_requests_are_not_sent(method: str, path: str, code: int) -> None:
    async def act(page: OperatorPage) -> None:
        assert (await page.ask(method, path, page.editor))[0] == code
        assert page.server.requests_of(page.editor) == []

    run_page(act)


def test_events_about_workload_and_its_job_are_listed_as_the_user() -> None:
    async def act(page: OperatorPage) -> None:
        for obj, reason in ((page.workload, "Pending"), (page.job, "Suspended"), (page.queue, "Other")):
            involved = {"kind": obj["kind"], "namespace": "team", **{k: obj["metadata"][k] for k in ("name", "uid")}}
            event = {"apiVersion": "v1", "kind": "Event", "metadata": {"name": reason.lower(), "namespace": "team"}}
            event |= {"involvedObject": involved, "reason": reason}
            page.server.api.post("/api/v1/namespaces/team/events", event)
        model_path = "/apis/ui.batchyard.dev/v1alpha1/workload?namespace=team&name=w"
        code, document = await page.ask("GET", model_path, page.editor)
        assert (code, list(document["model"]["answers"])) == (200, ["events"])
        assert "events" not in document["model"]
        page.server.received.clear()
        code, answer = await page.ask("GET", document["model"]["answers"]["events"], page.editor)
        assert code == 200
        assert sorted((each["about"], each["reason"]) for each in answer["events"]) == [
            ("Job", "Suspended"),
            ("Workload", "Pending"),
        ]
        assert ["limit=100" in each.path for each in page.server.requests_of(page.editor)] == [True, True]
        assert (await page.ask("GET", document["model"]["answers"]["events"], page.reader))[0] == 403
        code, document = await page.ask("GET", model_path, page.reader)
        assert document["model"]["answers"] == {}, "the reader may not list Events"

    run_page(act)


def test_log_is_streamed_as_the_user_within_bounds() -> None:
    async def act(page: OperatorPage) -> None:
        page.server.respond = follow_log
        query = "container=main&tailLines=100&follow=true"
        async with page.open("GET", f"{LOG_PATH}?{query}", page.reader) as response:
            assert response.headers["content-type"] == "text/plain; charset=utf-8"
            assert response.headers["x-content-type-options"] == "nosniff"
            assert await response.content.readline() == b"epoch 1\n"
        (sent,) = page.server.requests_of(page.reader)
        assert sent.path == f"{LOG_PATH}?{query}&limitBytes={LOG_BYTES_MAX}"

    run_page(act)


def test_error_of_a_log_is_passed_on() -> None:
    async def act(page: OperatorPage) -> None:
        code, status = await page.ask("GET", LOG_PATH, page.reader)
        assert (code, status["kind"]) == (403, "Status")
        assert "pods/log" in status["message"]

    run_page(act)


def test_open_logs_of_a_user_are_limited_until_the_browser_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aiohttp_transport, "STREAM_IDLE_INTERVAL", 0.01)
    monkeypatch.setattr(dashboard, "_ACCESS_RECHECK_INTERVAL", 0.0)

    async def act(page: OperatorPage) -> None:
        page.server.respond = follow_log
        opened = [
            page.open("GET", f"{LOG_PATH}?follow=true", page.reader) for _ in range(DASHBOARD_STREAMS_PER_FLOW_MAX)
        ]
        responses = [await each.__aenter__() for each in opened]
        assert [response.status for response in responses] == [200] * DASHBOARD_STREAMS_PER_FLOW_MAX
        code, status = await page.ask("GET", LOG_PATH, page.reader)
        assert (code, status["reason"]) == (429, "TooManyRequests")
        for response in responses:
            response.close()
        while True:
            async with page.open("GET", LOG_PATH, page.reader) as response:
                if response.status == 200:
                    return
            await pause()

    run_page(act)


def test_log_ends_if_the_browser_does_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dashboard, "_WRITE_TIMEOUT", 0.1)

    async def act(page: OperatorPage) -> None:
        has_ended = asyncio.Event()

        async def respond(request: web.Request) -> web.StreamResponse | None:
            if not request.path.endswith("/log"):
                return None
            response = web.StreamResponse()
            await response.prepare(request)
            try:
                while True:
                    await response.write(b"x" * 65536)
            finally:
                has_ended.set()

        page.server.respond = respond
        async with page.open("GET", LOG_PATH, page.reader) as response:
            assert response.status == 200
            async with asyncio.timeout(20):
                await has_ended.wait()

    run_page(act)


async def follow_log(request: web.Request) -> web.StreamResponse | None:
    """Send a line of a log, and then nothing for as long as the client is connected."""
    if not request.path.endswith("/log"):
        return None
    response = web.StreamResponse()
    await response.prepare(request)
    await response.write(b"epoch 1\n")
    while request.transport is not None and not request.transport.is_closing():
        await pause()
    return response
