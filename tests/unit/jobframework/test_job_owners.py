"""Which Workloads and ancestors belong to a job, and which jobs Kueue leaves alone. Source: Kueue's jobframework."""

from typing import Any

import pytest

import make
from batchyard.admission_plugins.built_in import ManagedJobs, queue_job
from batchyard.api import scheme
from batchyard.api.meta import Key, Obj, controller_reference, label, parse_selector, with_metadata
from batchyard.jobframework.reconciler import JobReconciler
from batchyard.jobs.job.integration import JobIntegration
from batchyard.jobs.jobset.integration import JobSetIntegration
from stage import Stage

PRIORITY_CLASS, QUEUE = "kueue.x-k8s.io/priority-class", "kueue.x-k8s.io/queue-name"
#: Selects no Namespace of these tests.
EXCLUDED = parse_selector({"matchLabels": {"batch": "yes"}})

OTHER_CONTROLLER = {"apiVersion": "example.com/v1", "kind": "Other", "name": "o", "uid": "o", "controller": True}


def job_stage(*objects: Obj, managed: ManagedJobs | None = None) -> Stage:
    options: Any = {} if managed is None else {"managed_jobs": managed}
    stage = Stage(JobReconciler(JobIntegration(), **options), JobReconciler(JobSetIntegration(), **options))
    stage.put(make.namespace(), make.local_queue(), *objects)
    return stage


def reference_to(owner: Obj, **fields: Any) -> Obj:
    """A reference to an owner that is not the controller, unless the fields say so."""
    reference = {name: value for name, value in controller_reference(owner).items() if name != "controller"}
    return {**reference, **fields}


# Workloads of a job.


@pytest.mark.parametrize("is_controlled", [False, True])
def test_workload_that_only_refers_to_a_job_is_neither_changed_nor_deleted(*, is_controlled: bool) -> None:
    """A Workload belongs to its controller; other owner references do not count."""
    stage = job_stage(make.job())
    own_workload, job = stage.only_workload(), stage.get(scheme.JOB, "job")
    controllers = [OTHER_CONTROLLER] if is_controlled else []
    foreign = with_metadata(make.workload("foreign"), ownerReferences=[reference_to(job), *controllers])
    stage.put(foreign)
    before = stage.workload("foreign")
    stage.put(with_metadata(job, labels={**job["metadata"]["labels"], "changed": "yes"}))
    stage.put({**stage.get(scheme.JOB, "job"), "spec": {**job["spec"], "completions": 2, "parallelism": 2}})
    assert stage.workload("foreign") == before
    assert [each["metadata"]["name"] for each in stage.workloads()] == ["foreign", own_workload["metadata"]["name"]]


def test_job_does_not_adopt_an_equal_workload_of_another_controller() -> None:
    job = make.job()
    equal = make.workload("equal", pod_sets=[make.pod_set(template=make.pod_template())])
    stage = job_stage(with_metadata(equal, ownerReferences=[OTHER_CONTROLLER, reference_to(job)]), job)
    assert len(stage.workloads()) == 2
    assert "CreatedWorkload" in stage.reasons()


# Ancestors.


@pytest.mark.parametrize(("uid", "is_child"), [("uid-js", True), ("stale", False)])
def test_job_whose_owner_has_another_uid_is_queued_itself(*, uid: str, is_child: bool) -> None:
    jobset = make.jobset()
    child = with_metadata(make.job("child"), ownerReferences=[{**controller_reference(jobset), "uid": uid}])
    objects = {Key(scheme.JOB_SET, "team", jobset["metadata"]["name"]): jobset}
    assert queue_job(with_suspend(child, False), objects.get)["spec"]["suspend"] is not is_child
    stage = job_stage(jobset, child)
    owners = [each["metadata"]["ownerReferences"][0]["name"] for each in stage.workloads()]
    assert ("child" in owners) is not is_child


def with_suspend(job: Obj, is_suspended: bool) -> Obj:
    return {**job, "spec": {**job["spec"], "suspend": is_suspended}}


# Namespaces that Kueue does not manage.


@pytest.mark.parametrize("without_queue_name", [False, True])
@pytest.mark.parametrize("kind", ["Job", "JobSet"])
def test_job_in_an_excluded_namespace_gets_no_default_queue_and_is_not_suspended(
    kind: str, *, without_queue_name: bool
) -> None:
    job = make.job(queue=None, suspend=False) if kind == "Job" else make.jobset(queue=None, suspend=False)
    objects = {
        Key(scheme.LOCAL_QUEUE, "team", "default"): make.local_queue("default"),
        Key(scheme.NAMESPACE, "", "team"): make.namespace(),
    }
    excluded = ManagedJobs(EXCLUDED, without_queue_name)
    assert queue_job(job, objects.get, excluded) is job
    included = queue_job(job, objects.get, ManagedJobs(parse_selector({}), without_queue_name))
    assert (label(included, QUEUE), included["spec"]["suspend"]) == ("default", True)


def test_job_in_an_excluded_namespace_gets_no_workload() -> None:
    assert job_stage(make.job(), managed=ManagedJobs(EXCLUDED)).workloads() == []
    assert len(job_stage(make.job(), managed=ManagedJobs(parse_selector({}))).workloads()) == 1


# The WorkloadPriorityClass `default`, and missing classes.


def test_job_without_priority_class_gets_the_class_default_if_it_exists() -> None:
    default = make.workload_priority_class("default", 5)
    find = {Key(scheme.WORKLOAD_PRIORITY_CLASS, "", "default"): default}.get
    queued = queue_job(make.job(), find)
    assert label(queued, PRIORITY_CLASS) == "default"
    assert label(queue_job(make.job(labels={PRIORITY_CLASS: "own"}), find), PRIORITY_CLASS) == "own"
    assert label(queue_job(make.job(), lambda _: None), PRIORITY_CLASS) is None
    stage = job_stage(default, queued)
    assert stage.only_workload()["spec"]["priority"] == 5


@pytest.mark.parametrize("kind", ["Job", "JobSet"])
def test_missing_priority_class_of_a_job_is_reported_as_warning(kind: str) -> None:
    job = make.job() if kind == "Job" else make.jobset()
    stage = job_stage(with_metadata(job, labels={QUEUE: "lq", PRIORITY_CLASS: "gone"}))
    events = [(e.regarding.kind.partition(".")[0], e.type, e.message) for e in stage.events]
    assert (kind, "Warning", 'WorkloadPriorityClass "gone" not found') in events
    assert stage.workloads() == []
