"""Custom objects that a webhook converts: writes, reads, lists, watches and failures."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from batchyard.api.meta import Key
from batchyard.apiserver import conversions
from batchyard.apiserver.admission.calls import WebhookCallError
from batchyard.apiserver.crd import converted_requests
from batchyard.apiserver.request import Response
from unit.apiserver.crd.converting_api import (
    GROUP,
    NAME,
    V1,
    V2,
    ConvertingApi,
    convert_review,
    failure,
    screen,
    screens,
)
from unit.apiserver.crd.rockets import DEFINITIONS, DefinitionApi

MERGE = {"content-type": "application/merge-patch+json"}
APPLY = {"content-type": "application/apply-patch+yaml"}
Review = Mapping[str, Any]
FAILED = f"conversion webhook for {GROUP}/v1, Kind=Screen "


def stored_screen(api: ConvertingApi, name: str = "a") -> Any:
    """The stored object."""
    return api.stored.get(Key(f"Screen.{GROUP}", "default", name))


def test_object_is_stored_in_the_storage_version_and_read_in_both() -> None:
    api = ConvertingApi()
    created = api.post(V2, screen("v2"))
    assert created["apiVersion"] == f"{GROUP}/v2"
    assert created["spec"]["rows"] == 3
    assert (stored_screen(api)["apiVersion"], stored_screen(api)["spec"]["size"]) == (f"{GROUP}/v1", "3x4")
    assert api.get(f"{V1}/a")["spec"]["size"] == "3x4"
    assert api.get(f"{V2}/a")["spec"] == {"rows": 3, "columns": 4, "mood": "calm"}


def test_object_is_defaulted_in_the_version_of_the_request_and_of_the_store() -> None:
    api = ConvertingApi()
    api.post(V2, screen("v2"))
    assert api.asked[0]["objects"][0]["spec"] == {"rows": 3, "columns": 4, "tone": "low"}
    assert stored_screen(api)["spec"] == {"size": "3x4"}, (
        "v1 has no field `tone`, and its default is set when it is read"
    )
    assert api.get(f"{V1}/a")["spec"] == {"size": "3x4", "mood": "calm"}


def test_request_in_the_storage_version_calls_no_webhook() -> None:
    api = ConvertingApi()
    api.post(V1, screen())
    api.get(f"{V1}/a")
    api.get(V1)
    assert api.asked == []


def test_object_is_sent_with_whole_seconds_and_its_metadata_is_kept() -> None:
    api = ConvertingApi()

    def answer(review: Review) -> Any:
        response = convert_review(review)
        metadata = response["response"]["convertedObjects"][0]["metadata"]
        metadata |= {"labels": {"by": "hook"}, "resourceVersion": "7", "finalizers": ["lie.example.com/x"]}
        return response

    api.post(V1, screen())
    api.answer_review = answer
    read = api.get(f"{V2}/a")["metadata"]
    assert (read["labels"], "finalizers" in read) == ({"by": "hook"}, False)
    assert read["resourceVersion"] == stored_screen(api)["metadata"]["resourceVersion"]
    assert "." not in api.asked[0]["objects"][0]["metadata"]["creationTimestamp"]


def test_update_and_patch_change_the_stored_object() -> None:
    api = ConvertingApi()
    created = api.post(V2, screen("v2"))
    response = api.ask("PUT", f"{V2}/a", {**created, "spec": {"rows": 5, "columns": 6}})
    assert (response.code, stored_screen(api)["spec"]["size"]) == (200, "5x6")
    response = api.ask("PATCH", f"{V2}/a", {"spec": {"rows": 9}}, headers=MERGE)
    assert (response.code, response.body["spec"]["rows"]) == (200, 9)
    assert stored_screen(api)["spec"]["size"] == "9x6"
    response = api.ask("PATCH", f"{V2}/a/status", {"status": {"lit": True}}, headers=MERGE)
    assert (response.code, stored_screen(api)["status"]) == (200, {"lit": True})


def test_apply_owns_fields_in_its_version() -> None:
    api = ConvertingApi()
    response = api.ask("PATCH", f"{V2}/a?fieldManager=x", screen("v2"), headers=APPLY)
    assert response.code == 201, response
    entry = response.body["metadata"]["managedFields"][0]
    assert (entry["apiVersion"], entry["fieldsV1"]["f:spec"]) == (f"{GROUP}/v2", {"f:columns": {}, "f:rows": {}})
    response = api.ask("PATCH", f"{V1}/a?fieldManager=y", screen("v1", size="8x8"), headers=APPLY)
    assert response.code == 409, response
    response = api.ask("PATCH", f"{V2}/a?fieldManager=x", screen("v2", rows=7), headers=APPLY)
    assert response.code == 200, response
    assert stored_screen(api)["spec"]["size"] == "7x1"


def test_delete_needs_the_conversion_and_works_in_the_storage_version() -> None:
    api = ConvertingApi()
    api.post(V1, screen())
    api.answer_review = lambda _: WebhookCallError("dead")
    assert "dead" in failure(api.ask("DELETE", f"{V2}/a"))
    assert "dead" in failure(api.ask("DELETE", V2))
    assert api.ask("DELETE", f"{V1}/a").code == 200
    assert stored_screen(api) is None


def test_deletecollection_returns_converted_objects() -> None:
    api = ConvertingApi()
    for name in ("a", "b"):
        api.post(V1, screen("v1", name))
    response = api.ask("DELETE", V2)
    assert [item["spec"]["rows"] for item in response.body["items"]] == [3, 3]
    assert stored_screen(api) is None


def test_list_converts_in_batches_and_uses_the_cache() -> None:
    api = ConvertingApi()
    for number in range(600):
        api.post(V1, screen("v1", f"s{number}", size=f"{number}x1"))
    read = [item["spec"]["rows"] for item in api.get(V2)["items"]]
    assert sorted(read) == list(range(600))
    assert [len(request["objects"]) for request in api.asked] == [500, 100]
    api.get(V2)
    assert len(api.asked) == 2


def test_long_list_is_converted_in_several_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversions, "OBJECTS_MAX", 2)
    api = ConvertingApi()
    for number in range(5):
        api.post(V1, screen("v1", f"s{number}", size=f"{number}x1"))
    api.holds_replies = True
    responses, others = api.later("GET", V2), api.later("GET", V2)
    while api.held:
        api.deliver()
    for [response] in (responses, others):
        assert isinstance(response, Response)
        assert [item["spec"]["rows"] for item in response.body["items"]] == [0, 1, 2, 3, 4]
    assert [len(request["objects"]) for request in api.asked] == [2, 2, 1]


def test_list_selects_by_fields_of_its_version() -> None:
    api = ConvertingApi()
    for number in range(3):
        api.post(V1, screen("v1", f"s{number}", size=f"{number}x1"))
    assert [item["metadata"]["name"] for item in api.get(f"{V2}?fieldSelector=spec.rows=2")["items"]] == ["s2"]
    table = api.get(f"{V2}?limit=1", accept="application/json;as=Table;g=meta.k8s.io;v=v1")
    assert table["rows"][0]["cells"] == ["s0", 0]


def test_scale_uses_the_paths_of_its_version() -> None:
    api = ConvertingApi()
    api.post(V1, screen())
    assert api.get(f"{V2}/a/scale")["spec"] == {"replicas": 3}
    response = api.ask("PATCH", f"{V2}/a/scale", {"spec": {"replicas": 8}}, headers=MERGE)
    assert (response.code, response.body["spec"]) == (200, {"replicas": 8})
    assert stored_screen(api)["spec"]["size"] == "8x4"


def changed(**fields: Any) -> Callable[[Review], Any]:
    """A webhook whose first converted object has these fields."""

    def answer(review: Review) -> Any:
        response = convert_review(review)
        response["response"]["convertedObjects"][0] |= fields
        return response

    return answer


def responding(**fields: Any) -> Callable[[Review], Any]:
    """A webhook whose response has these fields."""

    def answer(review: Review) -> Any:
        response = convert_review(review)
        return {**response, "response": {**response["response"], **fields}}

    return answer


def with_metadata_of(**fields: Any) -> Callable[[Review], Any]:
    """A webhook that changes the metadata of an object."""
    return lambda review: changed(metadata={**review["request"]["objects"][0]["metadata"], **fields})(review)


FAILURES: list[tuple[Callable[[Review], Any], str]] = [
    (lambda _: WebhookCallError('Post "https://x/": EOF'), 'failed: Post "https://x/": EOF'),
    (lambda _: b"no JSON", "failed: couldn't get version/kind; json parse error: "),
    (lambda _: b"{}", "failed: Object 'Kind' is missing in '{}'"),
    (lambda _: b"[" * 100_000, "failed: the request body is nested more than 100 levels deep"),
    (
        lambda review: {**convert_review(review), "kind": "X"},
        "failed: expected webhook response of apiextensions.k8s.io",
    ),
    (lambda review: {**convert_review(review), "response": None}, "failed: no response provided"),
    (responding(uid="other"), 'failed: expected response.uid="'),
    (responding(result={"status": "Failure", "message": "not today"}), "failed: not today"),
    (responding(result={}), "failed: response.result.status was '', not 'Success'"),
    (responding(convertedObjects=[]), "returned 0 objects, expected 1"),
    (responding(convertedObjects=[7]), "returned invalid converted object at index 0: "),
    (
        changed(apiVersion=f"{GROUP}/v1"),
        f"returned invalid object at index 0: invalid groupVersion (expected {GROUP}/v2, received {GROUP}/v1)",
    ),
    (changed(kind="Other"), "returned invalid object at index 0: invalid kind (expected Screen, received Other)"),
    (with_metadata_of(name="b"), "returned invalid object: must have the same name: a != b"),
    (with_metadata_of(namespace="b"), "returned invalid object: must have the same namespace: default != b"),
    (with_metadata_of(uid="b"), "returned invalid object: must have the same UID: "),
    (
        with_metadata_of(labels={"a": 1}),
        "returned invalid metadata: metadata.labels[a] must be a string, but is int64 in converted object",
    ),
    (
        with_metadata_of(annotations=[]),
        "returned invalid metadata: invalid metadata.annotations of type []interface {} in converted object",
    ),
    (with_metadata_of(labels={"a b": "c"}), "returned invalid metadata: metadata.labels: Invalid value: "),
]


@pytest.mark.parametrize(("answer", "text"), FAILURES)
def test_failed_conversion_is_reported_as_by_kubernetes(answer: Callable[[Review], Any], text: str) -> None:
    api = ConvertingApi()
    api.post(V1, screen())
    api.answer_review = answer
    assert failure(api.ask("GET", f"{V2}/a")).startswith(FAILED + text)
    assert api.get(f"{V1}/a")["spec"]["size"] == "3x4"


def test_object_whose_conversion_fails_is_not_stored() -> None:
    api = ConvertingApi()
    api.answer_review = lambda _: WebhookCallError("dead")
    message = failure(api.ask("POST", V2, screen("v2")))
    assert message == f"conversion webhook for {GROUP}/v2, Kind=Screen failed: dead"
    assert stored_screen(api) is None


def test_failure_after_a_write_is_reported_and_the_write_is_not_repeated() -> None:
    api = ConvertingApi()
    dead = WebhookCallError("dead")
    api.answer_review = lambda review: dead if api.asked[1:] else convert_review(review)
    assert failure(api.ask("POST", V2, screen("v2"))).startswith(FAILED)
    assert stored_screen(api)["spec"]["size"] == "3x4"


def test_request_waits_without_blocking_others_and_sees_changes_meanwhile() -> None:
    api = ConvertingApi()
    api.post(V1, screen())
    api.holds_replies = True
    responses = api.later("PATCH", f"{V2}/a?fieldManager=x", {"spec": {"rows": 7}})
    changed_object = {**api.get(f"{V1}/a"), "spec": {"size": "1x9"}}
    assert api.ask("PUT", f"{V1}/a", changed_object).code == 200
    while api.held:
        api.deliver()
    [response] = responses
    assert isinstance(response, Response)
    assert (response.code, stored_screen(api)["spec"]["size"]) == (200, "7x9")


def test_watch_sends_converted_events_in_order() -> None:
    api = ConvertingApi()
    api.post(V1, screen())
    api.holds_replies = True
    watch = api.watch(
        f"{V2}?watch=true&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan"
    )
    api.post(V1, screen("v1", "b", size="5x5"))
    api.ask("DELETE", f"{V1}/b")
    assert list(watch.take_buffered_data()) == []
    while api.held:
        api.deliver()
    events: list[Any] = []
    while taken := list(watch.take_buffered_data()):
        events += taken
        while api.held:
            api.deliver()
    assert [event["type"] for event in events] == ["ADDED", "BOOKMARK", "ADDED", "DELETED"]
    assert [event["object"]["spec"]["rows"] for event in events if event["type"] != "BOOKMARK"] == [3, 5, 5]
    assert events[0]["object"]["apiVersion"] == f"{GROUP}/v2"


def test_watch_converts_further_events_when_the_client_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(converted_requests, "_EVENTS_MAX", 2)
    api = ConvertingApi()
    for number in range(5):
        api.post(V1, screen("v1", f"s{number}"))
    watch = api.watch(f"{V2}?watch=true")
    assert [len(request["objects"]) for request in api.asked] == [2]
    assert [len(watch.take_buffered_data()) for _ in range(4)] == [2, 2, 1, 0]


def test_watches_share_conversions_and_two_versions_are_watched() -> None:
    api = ConvertingApi()
    watches = [api.watch(f"{V2}?watch=true&resourceVersion=1") for _ in range(3)]
    plain = api.watch(f"{V1}?watch=true&resourceVersion=1")
    api.post(V1, screen())
    assert [[each["object"]["spec"]["rows"] for each in watch.take_buffered_data()] for watch in watches] == [[3]] * 3
    assert [each["object"]["spec"]["size"] for each in plain.take_buffered_data()] == ["3x4"]
    assert len(api.asked) == 1


def test_watch_ends_with_an_error_if_a_conversion_fails() -> None:
    api = ConvertingApi()
    watch = api.watch(f"{V2}?watch=true&resourceVersion=1")
    api.answer_review = lambda _: WebhookCallError("dead")
    api.post(V1, screen())
    [event] = watch.take_buffered_data()
    assert (event["type"], event["object"]["code"], event["object"]["reason"]) == ("ERROR", 500, "InternalError")
    assert event["object"]["message"] == f"Internal error occurred: {FAILED}failed: dead"
    assert watch.is_over


def test_old_objects_are_converted_after_a_change_of_the_storage_version() -> None:
    api = ConvertingApi()
    api.post(V1, screen())
    versions = [{**version, "storage": version["name"] == "v2"} for version in screens()["spec"]["versions"]]
    api.change_definition(versions=versions)
    definition = api.stored.get(Key("CustomResourceDefinition.apiextensions.k8s.io", "", NAME))
    assert definition is not None
    assert definition["status"]["storedVersions"] == ["v1", "v2"]
    assert api.get(f"{V2}/a")["spec"]["rows"] == 3
    api.ask("PATCH", f"{V2}/a", {"spec": {"rows": 4}}, headers=MERGE)
    assert (stored_screen(api)["apiVersion"], stored_screen(api)["spec"]["rows"]) == (f"{GROUP}/v2", 4)
    assert api.get(f"{V1}/a")["spec"]["size"] == "4x4"


def test_status_of_an_old_object_is_stored_with_its_spec_in_the_storage_version() -> None:
    api = ConvertingApi()
    api.post(V1, screen())
    versions = [{**version, "storage": version["name"] == "v2"} for version in screens()["spec"]["versions"]]
    api.change_definition(versions=versions)
    response = api.ask("PATCH", f"{V1}/a/status", {"status": {"lit": True}}, headers=MERGE)
    assert response.code == 200, response
    stored = stored_screen(api)
    assert (stored["apiVersion"], stored["spec"]["columns"], stored["status"]) == (f"{GROUP}/v2", 4, {"lit": True})


INVALID: list[tuple[dict[str, Any], str]] = [
    ({"clientConfig": {}}, "webhookClientConfig: Required value: exactly one of url or service is required"),
    ({"clientConfig": {"url": "http://a"}}, "webhookClientConfig.url: Invalid value"),
    ({"conversionReviewVersions": []}, "conversionReviewVersions: Required value"),
    ({"conversionReviewVersions": ["v7"]}, "must include at least one of v1, v1beta1"),
    ({"conversionReviewVersions": ["v1", "v1"]}, "duplicate version"),
]


@pytest.mark.parametrize(("conversion", "problem"), INVALID)
def test_invalid_conversion_is_rejected(conversion: dict[str, Any], problem: str) -> None:
    assert problem in "; ".join(DefinitionApi().faults(screens(**conversion), DEFINITIONS))


def test_definition_with_an_invalid_ca_bundle_is_not_established() -> None:
    api = DefinitionApi()
    config = {"url": "https://hooks.example.com/", "caBundle": "bm90IFBFTQ=="}
    [_, condition] = api.define(screens(clientConfig=config))["status"]["conditions"]
    assert (condition["type"], condition["status"], condition["reason"]) == ("Established", "False", "InvalidCABundle")
    assert condition["message"] == "The conversion webhook CABundle is invalid"
