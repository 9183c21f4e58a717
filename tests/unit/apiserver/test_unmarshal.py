"""What is said of values of wrong types: what Go's decoder says, for kinds of Kubernetes itself."""

from typing import Any

import pytest

from batchyard.api.schema.tables import NATIVE, scope
from batchyard.apiserver.unmarshal import misfit
from unit.apiserver.api import Api

INTO = "json: cannot unmarshal {} into Go struct field {} of type {}"


@pytest.mark.parametrize(
    ("job", "told"),
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
def test_the_first_value_of_a_wrong_type_is_told(job: dict[str, Any], told: str | None) -> None:
    assert misfit(job, scope(NATIVE), "Job") == told


def test_such_an_object_is_a_bad_request() -> None:
    api, path = Api(), "/apis/batch/v1/namespaces/team/jobs"
    answer = api.ask("POST", path, {"metadata": {"name": "a"}, "spec": {"parallelism": "2"}})
    told = INTO.format("string", "JobSpec.spec.parallelism", "int32")
    assert answer.code == 400
    assert answer.body["message"] == f'Job in version "v1" cannot be handled as a Job: {told}'


def test_of_a_kind_with_a_definition_it_is_invalid() -> None:
    path = "/apis/kueue.x-k8s.io/v1beta2/resourceflavors"
    answer = Api().ask("POST", path, {"metadata": {"name": "a"}, "spec": {"nodeLabels": []}})
    assert (answer.code, answer.body["reason"]) == (422, "Invalid")
