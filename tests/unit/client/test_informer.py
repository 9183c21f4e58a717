"""Requests of an informer with a scope, and invalid responses."""

import msgspec

import make
from batchyard.api import scheme
from batchyard.api.meta import with_metadata
from batchyard.api.scheme import kind_info
from batchyard.client.informer import Informer, InformerScope, ObjectCache
from batchyard.client.transport import HttpResponse

ONE = InformerScope("team", "fieldSelector=metadata.name%3Da")
EMPTY = HttpResponse(200, b'{"metadata": {"resourceVersion": "7"}, "items": []}')


def test_list_and_watch_requests_have_selector_of_scope() -> None:
    informer = Informer(kind_info(scheme.JOB), ObjectCache(), 0, ONE)
    path = "/apis/batch/v1/namespaces/team/jobs"
    assert informer.plan_request().request.path == f"{path}?limit=500&{ONE.selector}"
    informer.process_list_page(EMPTY)
    request = informer.plan_request().request.path
    assert request.startswith(f"{path}?watch=1")
    assert request.endswith(f"&{ONE.selector}")


def test_expired_page_is_followed_by_full_list() -> None:
    informer = Informer(kind_info(scheme.JOB), ObjectCache(), 0, ONE)
    informer.plan_request()
    informer.process_list_page(
        HttpResponse(200, b'{"metadata": {"resourceVersion": "7", "continue": "t"}, "items": []}')
    )
    informer.plan_request()
    informer.process_list_page(HttpResponse(410))
    assert informer.plan_request().request.path == f"/apis/batch/v1/namespaces/team/jobs?{ONE.selector}"


def test_invalid_list_response_is_trouble_and_keeps_cache() -> None:
    cache = ObjectCache()
    informer = Informer(kind_info(scheme.JOB), cache, 0)
    job = b'{"metadata": {"name": "a", "namespace": "team", "resourceVersion": "3", "uid": "u"}}'
    informer.process_list_page(HttpResponse(200, b'{"metadata": {"resourceVersion": "7"}, "items": [%s]}' % job))
    informer.relist()
    for body in (b"<html>Log in</html>", b"", b'{"metadata": {"resourceVersion": "8"}, "ite'):
        assert informer.process_list_page(HttpResponse(200, body)) == ()
        assert "not from the Kubernetes API" in informer.trouble
    assert len(cache.of_kind(scheme.JOB)) == 1


def test_listed_and_watched_objects_of_equal_spec_share_it() -> None:
    cache = ObjectCache()
    informer = Informer(kind_info(scheme.WORKLOAD), cache, 0)
    items = [with_metadata(make.workload(name), resourceVersion="3") for name in "ab"]
    page = {"metadata": {"resourceVersion": "7"}, "items": items}
    informer.process_list_page(HttpResponse(200, msgspec.json.encode(page)))
    change = {"type": "ADDED", "object": with_metadata(make.workload("c"), resourceVersion="8")}
    informer.process_watch_lines([msgspec.json.encode(change)])
    a, b, c = (obj["spec"] for obj in cache.list(scheme.WORKLOAD))
    assert a is b is c
