"""Values of wrong types: native kinds report the messages of Go's decoder."""

from typing import Any

import pytest

from batchyard.api.scheme import NATIVE, load_scope
from batchyard.apiserver.built_in import find_decoding_error, go_time_error
from unit.apiserver.api import Api

INTO = "json: cannot unmarshal {} into Go struct field {} of type {}"


@pytest.mark.parametrize(
    ("job", "reported"),
    [
        ({"spec": {"parallelism": "2"}}, INTO.format("string", "JobSpec.spec.parallelism", "int32")),
        ({"spec": {"parallelism": 1.5}}, INTO.format("number 1.5", "JobSpec.spec.parallelism", "int32")),
        ({"spec": {"parallelism": 1 << 40}}, INTO.format(f"number {1 << 40}", "JobSpec.spec.parallelism", "int32")),
        ({"spec": {"suspend": "yes"}}, INTO.format("string", "JobSpec.spec.suspend", "bool")),
        ({"spec": "x"}, INTO.format("string", "Job.spec", "v1.JobSpec")),
        ({"metadata": {"labels": {"a": 1}}}, INTO.format("number", "ObjectMeta.metadata.labels", "string")),
        ({"metadata": {"labels": []}}, INTO.format("array", "ObjectMeta.metadata.labels", "map[string]string")),
        (
            {"spec": {"template": {"spec": {"containers": {}}}}},
            INTO.format("object", "PodSpec.spec.template.spec.containers", "[]v1.Container"),
        ),
        (
            {"spec": {"template": {"spec": {"containers": [{"args": [1]}]}}}},
            INTO.format("number", "Container.spec.template.spec.containers.args", "string"),
        ),
        (
            {"metadata": {"creationTimestamp": "x"}},
            'parsing time "x" as "2006-01-02T15:04:05Z07:00": cannot parse "x" as "2006"',
        ),
        (
            {"spec": {"template": {"spec": {"containers": [{"resources": {"requests": {"cpu": "many"}}}]}}}},
            "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
        ),
        (
            {"spec": {"template": {"spec": {"containers": [{"resources": {"limits": []}}]}}}},
            INTO.format(
                "array", "ResourceRequirements.spec.template.spec.containers.resources.limits", "v1.ResourceList"
            ),
        ),
        ({"spec": {"parallelism": None, "unknown": 1}}, None),
    ],
)
def test_first_value_of_wrong_type_is_reported(job: dict[str, Any], reported: str | None) -> None:
    assert find_decoding_error(job, load_scope(NATIVE), "Job") == reported


SECONDS, MICROS = "2006-01-02T15:04:05Z07:00", "2006-01-02T15:04:05.000000Z07:00"


@pytest.mark.parametrize(
    ("text", "layout", "reported"),
    [
        ("2026-01-01T00:00:00Z", SECONDS, None),
        ("2026-01-01T00:00:00.5+01:00", SECONDS, None),
        ("2026-01-01 00:00:00Z", SECONDS, ' as "{}": cannot parse " 00:00:00Z" as "T"'),
        ("2026-01-01T00:00:00", SECONDS, ' as "{}": cannot parse "" as "Z07:00"'),
        ("2026-01-01T00:00:00Z!", SECONDS, ': extra text: "!"'),
        ("2026-13-01T00:00:00Z", SECONDS, ": month out of range"),
        ("2026-02-29T00:00:00Z", SECONDS, ": day out of range"),
        ("2026-01-01T00:00:60Z", SECONDS, ": second out of range"),
        ("2026-01-01T00:00:00.000001Z", MICROS, None),
        ("2026-01-01T00:00:00Z", MICROS, ' as "{}": cannot parse "Z" as ".000000"'),
        ("2026-01-01T00:00:00.1234567Z", MICROS, ' as "{}": cannot parse "7Z" as "Z07:00"'),
    ],
)
def test_invalid_time_is_reported_with_go_message(text: str, layout: str, reported: str | None) -> None:
    expected = None if reported is None else f'parsing time "{text}"{reported.format(layout)}'
    assert go_time_error(text, is_micro_time=layout == MICROS) == expected


def test_times_are_stored_in_utc_and_micro_times_with_six_digits() -> None:
    api, path = Api(), "/apis/coordination.k8s.io/v1/namespaces/team/leases"
    result = api.post(path, {"metadata": {"name": "a"}, "spec": {"renewTime": "2026-01-01T01:00:00.250000+01:00"}})
    assert result["spec"]["renewTime"] == "2026-01-01T00:00:00.250000Z"
    taint = {"key": "a", "effect": "NoSchedule", "timeAdded": "2026-01-01T01:00:00+01:00"}
    node = api.post("/api/v1/nodes", {"metadata": {"name": "a"}, "spec": {"taints": [taint]}})
    assert node["spec"]["taints"][0]["timeAdded"] == "2026-01-01T00:00:00Z"
    refused = api.ask("POST", path, {"metadata": {"name": "b"}, "spec": {"renewTime": "2026-01-01T00:00:00Z"}})
    assert refused.code == 400


def test_native_object_with_wrong_type_is_bad_request() -> None:
    api, path = Api(), "/apis/batch/v1/namespaces/team/jobs"
    answer = api.ask("POST", path, {"metadata": {"name": "a"}, "spec": {"parallelism": "2"}})
    reported = INTO.format("string", "JobSpec.spec.parallelism", "int32")
    assert answer.code == 400
    assert answer.body["message"] == f'Job in version "v1" cannot be handled as a Job: {reported}'


def test_custom_object_with_wrong_type_is_invalid() -> None:
    path = "/apis/kueue.x-k8s.io/v1beta2/resourceflavors"
    answer = Api().ask("POST", path, {"metadata": {"name": "a"}, "spec": {"nodeLabels": []}})
    assert (answer.code, answer.body["reason"]) == (422, "Invalid")


def test_empty_lists_and_maps_are_omitted() -> None:
    api, path = Api(), "/apis/batch/v1/namespaces/team/jobs"
    container = {"name": "c", "image": "i", "env": [], "args": [], "resources": {}}
    pod = {"restartPolicy": "Never", "containers": [container], "nodeSelector": {}, "affinity": {}}
    created = api.post(path, {"metadata": {"name": "a", "labels": {}}, "spec": {"template": {"spec": pod}}})
    result = created["spec"]["template"]["spec"]
    assert not {"env", "args"} & result["containers"][0].keys()
    assert "nodeSelector" not in result
    assert result["affinity"] == {}
    assert api.post("/api/v1/namespaces/team/configmaps", {"metadata": {"name": "a"}, "data": {}}).get("data") is None


@pytest.mark.parametrize(("kind", "body"), [("events", {"involvedObject": {"namespace": "team"}}), ("limitranges", {})])
def test_kinds_without_generation_in_kubernetes_have_none(kind: str, body: dict[str, Any]) -> None:
    created = Api().post(f"/api/v1/namespaces/team/{kind}", {"metadata": {"name": "a"}, **body})
    assert "generation" not in created["metadata"]
