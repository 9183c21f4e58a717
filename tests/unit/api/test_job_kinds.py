"""Validation of JobKinds, and of jobs of custom kinds in manifests."""

from typing import Any

import pytest

from batchyard.api.manifests import decode, read_manifests
from batchyard.api.validation import validate_update

SPEC: dict[str, Any] = {
    "group": "ml.example.com",
    "version": "v1",
    "kind": "Training",
    "resource": "trainings",
    "suspend": "spec.suspend",
    "active": "false",
    "ready": "true",
    "podSets": [{"name": "workers", "path": "spec"}],
}


def job_kind(name: str = "trainings.ml.example.com", **fields: Any) -> dict[str, Any]:
    spec = {**SPEC, **fields}
    return {"apiVersion": "jobs.batchyard.dev/v1alpha1", "kind": "JobKind", "metadata": {"name": name}, "spec": spec}


def test_valid_job_kind_gets_defaults() -> None:
    decoded = decode(job_kind())
    assert decoded.faults == []
    assert decoded.obj is not None
    assert decoded.obj["spec"]["podSets"][0] == {
        "name": "workers",
        "path": "spec",
        "template": "template",
        "count": "1",
        "when": "true",
    }


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"suspend": "spec.suspend[0]"}, "spec.suspend"),
        ({"suspend": "spec..suspend"}, "spec.suspend"),
        ({"active": 1}, "spec.active"),
        ({"active": "x" * 4097}, "spec.active"),
        ({"podSets": []}, "spec.podSets"),
        ({"podSets": [{"path": "spec"}]}, "spec.podSets[0]"),
        ({"podSets": [{"name": "a", "nameExpression": "'a'", "path": "spec"}]}, "spec.podSets[0]"),
        ({"podSets": [{"name": "A", "path": "spec"}]}, "spec.podSets[0].name"),
        ({"podSets": [{"name": "a", "path": "spec", "size": "1"}]}, "spec.podSets[0].size"),
        ({"podSets": [{"name": "a", "path": "spec", "template": "a-b"}]}, "spec.podSets[0].template"),
        (
            {"validations": [{"rule": "true", "fieldPath": "a", "message": "a", "items": "a[0]"}]},
            "spec.validations[0].items",
        ),
        (
            {"validations": [{"rule": "true", "fieldPath": "a", "message": "a", "reason": "Bad"}]},
            "spec.validations[0].reason",
        ),
        ({"validations": [{"rule": "true", "fieldPath": "a"}]}, "spec.validations[0].message"),
        ({"resource": "others"}, "metadata.name"),
        ({"group": "example", "name": "trainings.example"}, "spec.group"),
        ({"version": "1"}, "spec.version"),
        ({"kind": "training"}, "spec.kind"),
        ({"group": "kubeflow.org", "kind": "TFJob", "resource": "tfjobs", "name": "tfjobs.kubeflow.org"}, "spec.kind"),
        (
            {"group": "jobset.x-k8s.io", "kind": "JobSet", "resource": "jobsets", "name": "jobsets.jobset.x-k8s.io"},
            "spec.kind",
        ),
    ],
)
def test_invalid_job_kind_names_field(fields: dict[str, Any], path: str) -> None:
    (error,) = decode(job_kind(**fields)).faults
    assert error.path == path
    assert error.remedy


def test_described_kind_of_job_kind_is_immutable() -> None:
    old, new = decode(job_kind()).obj, decode(job_kind(kind="Trainings")).obj
    assert old is not None
    assert new is not None
    assert [error.path for error in validate_update(new, old)] == ["spec.kind"]
    assert validate_update(old, old) == []


def test_manifests_may_have_jobs_of_kinds_that_job_kinds_describe() -> None:
    job = "{apiVersion: ml.example.com/v1, kind: Training, metadata: {name: a}, spec: {}}"
    assert [str(fault.error) for fault in read_manifests([("a", job)]).faults] != []
    manifests = read_manifests([("a", job), ("b", str(job_kind()))])
    assert manifests.faults == []
    assert manifests.objects[0].obj["metadata"] == {"name": "a", "namespace": "default"}


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("{apiVersion: kubeflow.org/v1, kind: TFJob, metadata: {name: a}}", "spec"),
        ("{apiVersion: kubeflow.org/v1, kind: TFJob, spec: {}}", "metadata"),
        ("{apiVersion: kubeflow.org/v1, kind: TFJob, metadata: {name: 1}, spec: {}}", "metadata.name"),
        ("{apiVersion: kubeflow.org/v2, kind: TFJob, metadata: {name: a}, spec: {}}", "kind"),
    ],
)
def test_invalid_custom_job_names_field(text: str, path: str) -> None:
    (fault,) = read_manifests([("a", text)]).faults
    assert fault.error.path == path
