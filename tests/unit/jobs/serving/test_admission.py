"""Kueue's webhooks of Deployments and StatefulSets: pod templates, and rules of updates."""

from dataclasses import replace
from typing import Any

import pytest

import make
from batchyard.admission_plugins.built_in import ALL_QUEUED_JOBS
from batchyard.api import scheme, well_known
from batchyard.api.errors import Forbidden
from batchyard.api.meta import Obj, controller_reference, parse_selector, with_metadata, with_path
from unit.jobs.serving.services import (
    DEFAULT_CLASS,
    DEFAULT_QUEUE,
    completed,
    elsewhere,
    errors,
    service,
    template_metadata,
)

QUEUE_PATH = "metadata.labels[kueue.x-k8s.io/queue-name]"
CLASS_PATH = "metadata.labels[kueue.x-k8s.io/priority-class]"
WITHOUT_QUEUE_NAME = replace(ALL_QUEUED_JOBS, without_queue_name=True)
CLASS = {well_known.PRIORITY_CLASS: "high"}
NEW_CLASS = {well_known.PRIORITY_CLASS: "low"}
KINDS = ("Deployment", "StatefulSet")
GATES = well_known.ADMISSION_GATED_BY


def queued_labels(**more: str) -> dict[str, str]:
    return {"app": "web", well_known.MANAGED: "true", well_known.QUEUE_NAME: "lq", **more}


def test_template_of_deployment_gets_queue_and_parent() -> None:
    labels, annotations = template_metadata(completed(service()))
    assert labels == queued_labels()
    assert annotations == {well_known.SUSPENDING_PARENT: "deployment"}


def test_template_of_deployment_gets_priority_class() -> None:
    assert template_metadata(completed(service(labels=CLASS)))[0] == queued_labels(**CLASS)


def test_queue_of_deployment_replaces_that_of_its_template() -> None:
    labels = {"app": "web", well_known.QUEUE_NAME: "other", **NEW_CLASS}
    given = with_path(service(labels=CLASS), ("spec", "template", "metadata", "labels"), labels)
    assert template_metadata(completed(given))[0] == queued_labels(**CLASS)


def test_template_of_stateful_set_gets_only_its_parent() -> None:
    labels, annotations = template_metadata(completed(service("StatefulSet", labels=CLASS)))
    assert labels == {"app": "web"}
    assert annotations == {well_known.SUSPENDING_PARENT: "statefulset"}


@pytest.mark.parametrize("kind", KINDS)
def test_service_without_queue_is_not_changed(kind: str) -> None:
    given = service(kind, queue=None)
    assert completed(given) is given


@pytest.mark.parametrize("kind", KINDS)
def test_completed_service_is_not_changed_again(kind: str) -> None:
    once = completed(service(kind, labels=CLASS))
    assert completed(once) is once


def test_service_without_queue_is_managed_if_configured() -> None:
    labels, annotations = template_metadata(completed(service(queue=None), managed_jobs=WITHOUT_QUEUE_NAME))
    assert labels == {"app": "web", well_known.MANAGED: "true"}
    assert annotations[well_known.SUSPENDING_PARENT] == "deployment"


def test_service_without_queue_in_other_namespace_is_not_managed() -> None:
    selector = parse_selector({"matchLabels": {"team": "a"}})
    managed_jobs = replace(WITHOUT_QUEUE_NAME, namespaces=selector)
    given = service(queue=None)
    assert completed(given, make.namespace("team", team="b"), managed_jobs=managed_jobs) is given
    assert completed(given, make.namespace("team", team="a"), managed_jobs=managed_jobs) is not given


@pytest.mark.parametrize("kind", KINDS)
def test_default_queue_and_class_are_set(kind: str) -> None:
    done = completed(service(kind, queue=None), DEFAULT_QUEUE, DEFAULT_CLASS)
    expected = {well_known.QUEUE_NAME: "default", well_known.PRIORITY_CLASS: "default"}
    assert done["metadata"]["labels"] == expected
    assert completed(service(kind), DEFAULT_QUEUE)["metadata"]["labels"] == {well_known.QUEUE_NAME: "lq"}


def test_kind_that_is_not_enabled_is_not_changed() -> None:
    given = service()
    assert completed(given, managed_jobs=replace(ALL_QUEUED_JOBS, kinds=(scheme.JOB,))) is given


def test_stateful_set_of_another_framework_is_not_changed() -> None:
    given = elsewhere(service("StatefulSet"))
    assert completed(given, DEFAULT_QUEUE) is given
    assert errors(given, elsewhere(service("StatefulSet", queue="old", replicas=1, ready=1))) == []


def owned_by(obj: Obj, owner: Obj) -> Obj:
    return with_metadata(obj, ownerReferences=[controller_reference(owner)])


def test_service_of_queued_job_is_not_managed() -> None:
    job = make.job(labels={well_known.QUEUE_NAME: "lq"})
    given = owned_by(service(queue=None), job)
    assert completed(given, job, DEFAULT_QUEUE) is given


def test_service_of_missing_owner_is_refused() -> None:
    with pytest.raises(
        Forbidden, match=r'admission webhook "mdeployment\.kb\.io" denied the request: Job\.batch "job"'
    ):
        completed(owned_by(service(), make.job()))


def test_deleted_service_is_not_changed() -> None:
    given = with_metadata(owned_by(service(), make.job()), deletionTimestamp=make.stamp())
    assert completed(given) is given


@pytest.mark.parametrize("kind", KINDS)
def test_settings_of_new_service(kind: str) -> None:
    assert errors(service(kind)) == errors(service(kind, queue=None)) == []
    (problem,) = errors(service(kind, queue="not valid"))
    assert problem.startswith(f'{QUEUE_PATH}: Invalid value: "not valid": a lowercase RFC 1123 subdomain')
    elastic = service(kind, annotations={well_known.ELASTIC_JOB: "true"})
    message = f'Forbidden: elastic job is not supported for "apps/v1, Kind={kind}"'
    assert errors(elastic) == errors(elastic, elastic) == [f"metadata.annotations[{well_known.ELASTIC_JOB}]: {message}"]


@pytest.mark.parametrize("kind", KINDS)
def test_admission_gates_can_only_be_removed(kind: str) -> None:
    both, one = (service(kind, annotations={GATES: value}) for value in ("a.io/x, a.io/y", "a.io/x"))
    assert errors(both) == errors(one, both) == []
    assert "duplicate gate name: a.io/x" in errors(service(kind, annotations={GATES: "a.io/x,a.io/x"}))[0]
    path = f"metadata.annotations[{GATES}]"
    assert errors(both, one) == [f"{path}: Forbidden: can only remove gates, not add new ones"]
    assert errors(one, service(kind)) == [f"{path}: Forbidden: cannot add admission gate after creation"]


IMMUTABLE_QUEUE = f'{QUEUE_PATH}: Invalid value: "%s": field is immutable'
CANNOT_ADD = f'{CLASS_PATH}: Invalid value: "high": WorkloadPriorityClass cannot be added to a non-suspended workload'
CANNOT_REMOVE = f'{CLASS_PATH}: Invalid value: "": WorkloadPriorityClass cannot be removed from a workload'


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("new", "old", "expected"),
    [
        ({"queue": "b"}, {"queue": "a"}, []),
        ({"queue": "b"}, {"queue": "a", "ready": 1}, [IMMUTABLE_QUEUE % "b"]),
        ({"queue": "b"}, {"queue": None}, []),
        ({"queue": "b"}, {"queue": None, "ready": 1}, [IMMUTABLE_QUEUE % "b"]),
        ({"queue": None}, {"queue": "a"}, [IMMUTABLE_QUEUE % ""]),
        ({"labels": NEW_CLASS}, {"labels": CLASS}, []),
        ({"labels": NEW_CLASS}, {"labels": CLASS, "ready": 1}, []),
        ({"labels": CLASS}, {}, []),
        ({"labels": CLASS}, {"ready": 1}, [CANNOT_ADD]),
        ({}, {"labels": CLASS}, [CANNOT_REMOVE]),
        ({}, {"labels": CLASS, "ready": 1}, [CANNOT_REMOVE]),
    ],
)
def test_change_of_queue_and_class(kind: str, new: dict[str, Any], old: dict[str, Any], expected: list[str]) -> None:
    assert errors(service(kind, **new), service(kind, **old)) == expected


def stateful_set(replicas: int | None = 3, **fields: Any) -> Obj:
    return service("StatefulSet", replicas=replicas, **fields)


IMMUTABLE_REPLICAS = "spec.replicas: Invalid value: 4: field is immutable"
SCALING_DOWN = "spec.replicas: Forbidden: scaling down is still in progress"


@pytest.mark.parametrize(
    ("new", "old", "expected"),
    [
        (stateful_set(0), stateful_set(3), []),
        (stateful_set(3), stateful_set(0), []),
        (stateful_set(4), stateful_set(3), [IMMUTABLE_REPLICAS]),
        (stateful_set(4), stateful_set(None), [IMMUTABLE_REPLICAS]),
        (stateful_set(4, queue=None), stateful_set(3, queue=None), []),
        (stateful_set(3, current=1), stateful_set(0), [SCALING_DOWN]),
        (stateful_set(3, current=1, queue=None), stateful_set(0, queue=None), []),
        (elsewhere(stateful_set(3, current=1)), elsewhere(stateful_set(0)), []),
        (elsewhere(stateful_set(4)), elsewhere(stateful_set(3)), []),
    ],
)
def test_replicas_of_stateful_set(new: Obj, old: Obj, expected: list[str]) -> None:
    assert errors(new, old) == expected


def test_replicas_of_deployment_are_free() -> None:
    assert errors(service(replicas=9, cpu="2"), service()) == []


def test_replicas_of_stateful_set_of_queued_job_are_free() -> None:
    job = make.job(labels={well_known.QUEUE_NAME: "lq"})
    assert errors(owned_by(stateful_set(4), job), owned_by(stateful_set(3), job), job) == []


@pytest.mark.parametrize("field", ["containers", "initContainers"])
def test_requests_of_stateful_set_are_fixed(field: str) -> None:
    old, new = (
        with_path(
            stateful_set(),
            ("spec", "template", "spec", field),
            stateful_set(cpu=cpu)["spec"]["template"]["spec"]["containers"],
        )
        for cpu in ("1", "2")
    )
    path = f"spec.template.spec.{field}[0].resources.requests"
    assert errors(new, old) == [f'{path}: Invalid value: {{"cpu":"2"}}: field is immutable']
    without = with_path(new, ("metadata", "labels"), {})
    assert errors(without, without) == []


def test_number_of_containers_of_stateful_set_is_fixed() -> None:
    old = stateful_set()
    new = with_path(old, ("spec", "template", "spec", "containers"), [])
    assert errors(new, old) == ["spec.template.spec.containers: Invalid value: null: field is immutable"]


def test_image_of_stateful_set_is_free() -> None:
    container = {**stateful_set()["spec"]["template"]["spec"]["containers"][0], "image": "other"}
    new = with_path(stateful_set(), ("spec", "template", "spec", "containers"), [container])
    assert errors(new, stateful_set()) == []
