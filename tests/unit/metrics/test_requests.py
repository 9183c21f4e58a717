"""Requests are counted by resource and verb, also when the handler raises an exception."""

import re
from typing import Any, NoReturn

import pytest

from batchyard.apiserver.handlers.read import ReadHandler
from batchyard.apiserver.server import audit_event
from batchyard.metrics.controllers import RequestMetrics
from unit.apiserver.api import Api

SECRETS = "/api/v1/namespaces/team/secrets"


def raise_error(*_: Any) -> NoReturn:
    raise ZeroDivisionError("what was said")


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Api:
    """A server that has answered one request and raised an exception in the next one."""
    api = Api()
    api.ask("POST", SECRETS, {"metadata": {"name": "s"}})
    monkeypatch.setattr(ReadHandler, "list", raise_error)
    with pytest.raises(ZeroDivisionError):
        api.ask("GET", SECRETS)
    return api


def test_failed_request_is_counted_with_its_own_labels(api: Api) -> None:
    figures = RequestMetrics(lambda: 0)
    for audited in api.audited:
        figures.count_response(audited)
    figures.record_duration(figures.latest_labels, 0)
    reported = "".join(figures.texts())
    result = re.findall(r'_request_total{verb="(.*?)".*,resource="(.*?)".*scope="(.*?)".*code="(.*?)"} (\d)', reported)
    assert result == [("POST", "secrets", "resource", "201", "1"), ("LIST", "secrets", "namespace", "500", "1")]
    assert re.findall(r'_seconds_count{verb="(.*?)"', reported) == ["LIST"]


def test_panic_audit_event_omits_exception_text(api: Api) -> None:
    event = audit_event(api.audited[-1], 0, 1)
    assert (event["stage"], event["verb"], event["objectRef"]["resource"]) == ("Panic", "list", "secrets")
    stated = {"status": "Failure", "reason": "InternalError", "message": "APIServer panic'd: see the server log"}
    assert event["responseStatus"] == {**stated, "code": 500}
