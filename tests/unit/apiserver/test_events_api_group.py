"""Events of `events.k8s.io` are the Events of the core group with other field names."""

from typing import Any

import pytest

from batchyard.api import scheme
from batchyard.api.meta import Key
from unit.apiserver.api import Api

CORE = "/api/v1/namespaces/team/events"
RENAMED = "/apis/events.k8s.io/v1/namespaces/team/events"
STRATEGIC = {"content-type": "application/strategic-merge-patch+json"}
#: An Event as the recorder of controller-runtime sends it.
SENT: dict[str, Any] = {
    "metadata": {"name": "train.1", "namespace": "team"},
    "eventTime": "2026-01-01T00:00:00.000001Z",
    "reportingController": "jobset",
    "reportingInstance": "jobset-0",
    "action": "Reconciling",
    "reason": "Started",
    "regarding": {"kind": "Job", "namespace": "team", "name": "train", "apiVersion": "batch/v1"},
    "note": "it began",
    "type": "Normal",
}


def test_event_is_served_in_both_groups() -> None:
    api = Api()
    created = api.post(RENAMED, SENT)
    assert (created["apiVersion"], created["note"], created["regarding"]["name"]) == (
        "events.k8s.io/v1",
        "it began",
        "train",
    )
    core = api.get(f"{CORE}/train.1")
    assert (core["apiVersion"], core["message"], core["involvedObject"]["name"]) == ("v1", "it began", "train")
    assert (core["reportingComponent"], core["reportingInstance"]) == ("jobset", "jobset-0")
    assert "note" not in core


def test_event_series_is_patched() -> None:
    api = Api()
    api.post(RENAMED, SENT)
    series = {"series": {"count": 2, "lastObservedTime": "2026-01-01T00:00:09.000000Z"}}
    assert api.ask("PATCH", f"{RENAMED}/train.1", series, headers=STRATEGIC).body["series"]["count"] == 2
    assert api.get(f"{CORE}/train.1")["series"]["count"] == 2


def test_event_times_are_served_in_seconds_and_stored_with_fractions() -> None:
    api, fine, whole = Api(), "2026-01-01T00:00:01.250000Z", "2026-01-01T00:00:01Z"
    api.post(RENAMED, SENT)
    key = Key(scheme.EVENT, "team", "train.1")
    created = api.stored.store.get(key)
    assert created is not None
    api.stored.store.put(
        key, {**created, "firstTimestamp": fine, "metadata": {**created["metadata"], "creationTimestamp": fine}}
    )
    result = api.get(f"{RENAMED}/train.1")
    assert (result["deprecatedFirstTimestamp"], result["metadata"]["creationTimestamp"]) == (whole, whole)
    reported = {**result["metadata"], "labels": {"a": "b"}}
    assert api.ask("PUT", f"{RENAMED}/train.1", {**result, "metadata": reported}).code == 200
    stored = api.stored.store.get(key)
    assert stored is not None
    assert (stored["firstTimestamp"], stored["metadata"]["labels"]) == (fine, {"a": "b"})


def test_watch_reports_events_of_core_group() -> None:
    api = Api()
    watch = api.watch(f"{RENAMED}?watch=1&resourceVersion={api.stored.revision}")
    core = {"metadata": {"name": "a"}, "involvedObject": {"kind": "Pod", "namespace": "team", "name": "p"}, "count": 3}
    api.post(CORE, core)
    (change,) = watch.take_buffered_data()
    assert (change["object"]["deprecatedCount"], change["object"]["apiVersion"]) == (3, "events.k8s.io/v1")
    assert [event["regarding"]["name"] for event in api.get(RENAMED)["items"]] == ["p"]


def test_unknown_fields_return_warnings() -> None:
    answer = Api().ask("POST", RENAMED, {**SENT, "message": "as the other group has it"})
    assert answer.code == 201
    assert answer.warnings == ('unknown field "message"',)


def test_openapi_schema_has_renamed_fields() -> None:
    schemas = Api().get("/openapi/v3/apis/events.k8s.io/v1")["components"]["schemas"]
    assert {"regarding", "note"} <= schemas["io.k8s.events.v1.Event"]["properties"].keys()


@pytest.mark.parametrize(
    ("path", "selector", "found"),
    [
        (RENAMED, "regarding.name=train,reason=Started", 1),
        (RENAMED, "regarding.kind=Pod", 0),
        (RENAMED, "reportingController=jobset", 1),
        (RENAMED, "source=jobset", 1),
        (CORE, "involvedObject.name=train,reportingComponent=jobset", 1),
        (CORE, "source=jobset", 1),
        (CORE, "source=other", 0),
    ],
)
def test_field_selector_uses_field_names_of_group(path: str, selector: str, found: int) -> None:
    api = Api()
    api.post(RENAMED, SENT)
    assert len(api.get(f"{path}?fieldSelector={selector}")["items"]) == found


@pytest.mark.parametrize(("path", "field"), [(RENAMED, "involvedObject.name"), (CORE, "regarding.name")])
def test_field_selector_rejects_field_names_of_other_group(path: str, field: str) -> None:
    refused = Api().ask("GET", f"{path}?fieldSelector={field}=train")
    assert (refused.code, refused.body["message"]) == (400, f"field label not supported: {field}")


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"eventTime": None}, "eventTime"),
        ({"type": "Odd"}, "type"),
        ({"type": None}, "type"),
        ({"deprecatedFirstTimestamp": "2026-01-01T00:00:00Z"}, "firstTimestamp"),
        ({"deprecatedCount": 2}, "count"),
        ({"deprecatedSource": {"component": "me"}}, "source"),
        ({"series": {"count": 1, "lastObservedTime": "2026-01-01T00:00:09.000000Z"}}, "series.count"),
        ({"series": {"count": 2, "lastObservedTime": None}}, "series.lastObservedTime"),
    ],
)
def test_create_rejects_deprecated_and_missing_fields(change: dict[str, Any], field: str) -> None:
    answer = Api().ask("POST", RENAMED, {**SENT, **change})
    assert answer.code == 422
    assert [cause["field"] for cause in answer.body["details"]["causes"]] == [field]


def test_update_changes_series_only() -> None:
    api = Api()
    api.post(RENAMED, SENT)
    answer = api.ask("PATCH", f"{RENAMED}/train.1", {"note": "more", "deprecatedCount": 3}, headers=STRATEGIC)
    causes = [
        (cause["field"], cause["message"].endswith("field is immutable")) for cause in answer.body["details"]["causes"]
    ]
    assert (answer.code, causes) == (422, [("message", True), ("count", True)])
    answer = api.ask("PATCH", f"{RENAMED}/train.1", {"series": {"count": 1}}, headers=STRATEGIC)
    assert answer.code == 422
    assert api.ask("PATCH", f"{CORE}/train.1", {"message": "more"}, headers=STRATEGIC).code == 200
