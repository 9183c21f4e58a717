"""Jobs with the annotation `batchyard.dev/after` wait until the jobs that it names finish as required."""

import base64
import json
import subprocess
import sys
from typing import Any

import pytest

import make
from batchyard import simulate
from batchyard.admission_plugins.built_in import ALL_QUEUED_JOBS
from batchyard.admission_plugins.job_annotations import gate_dependent_job
from batchyard.api import scheme
from batchyard.api.errors import Forbidden
from batchyard.api.job_dependencies import dependency_errors, has_gate, parse_dependencies, states_of, without_gate
from batchyard.api.meta import Key, Obj, with_path
from batchyard.controller_groups import GROUPS
from batchyard.interfaces.client import Delete, UpdateStatus
from batchyard.jobs.dependencies import JobDependencies
from batchyard.sim.event_log import Admitted
from batchyard.webhooks.hooks import FetchedObjects, ObjectQuery, review_mutation
from stage import Stage

AFTER = "batchyard.dev/after"
GATED_BY = "kueue.x-k8s.io/admission-gated-by"


def dependent(name: str, after: str, **spec: Any) -> Obj:
    job = make.job(name, annotations={AFTER: after}, **spec)
    return gate_dependent_job(job, lambda _: None, ALL_QUEUED_JOBS)


def ended(job: Obj, *, succeeded: bool) -> Obj:
    condition = {"type": "Complete" if succeeded else "Failed", "status": "True"}
    return {**job, "status": {"conditions": [condition]}}


def finish(stage: Stage, name: str, *, succeeded: bool = True) -> None:
    stage.put(ended(stage.get(scheme.JOB, name), succeeded=succeeded))


def new_stage(*jobs: Obj) -> Stage:
    stage = Stage(JobDependencies(ALL_QUEUED_JOBS))
    stage.put(*jobs)
    return stage


def waits(stage: Stage, name: str) -> bool:
    return has_gate(stage.get(scheme.JOB, name))


@pytest.mark.parametrize(
    ("outcome", "succeeded", "state"),
    [
        ("ok", True, "met"), ("ok", False, "never"), ("notok", True, "never"),
        ("notok", False, "met"), ("any", True, "met"), ("any", False, "met"),
    ],
)  # fmt: skip
def test_outcome_of_the_other_job_decides(outcome: str, succeeded: bool, state: str) -> None:
    stage = new_stage(make.job("a"), dependent("b", f"{outcome}:a"))
    assert waits(stage, "b")
    finish(stage, "a", succeeded=succeeded)
    assert states_of(stage.get(scheme.JOB, "b")) == {f"{outcome}:a": state}
    assert waits(stage, "b") == (state == "never")


def test_all_dependencies_must_be_met_and_other_gates_stay() -> None:
    job = with_path(dependent("c", "ok:a,any:b"), ("metadata", "annotations", GATED_BY), f"x.io/y,{AFTER}")
    stage = new_stage(make.job("a"), make.job("b"), job)
    finish(stage, "a")
    assert waits(stage, "c")
    finish(stage, "b", succeeded=False)
    assert stage.get(scheme.JOB, "c")["metadata"]["annotations"][GATED_BY] == "x.io/y"
    assert stage.reasons()[-1] == "DependenciesMet"


def test_met_dependency_stays_met_when_its_job_is_deleted() -> None:
    stage = new_stage(make.job("a"), make.job("b"), dependent("c", "ok:a,ok:b"))
    finish(stage, "a")
    stage.delete(scheme.JOB, "a")
    stage.replace_controllers(JobDependencies(ALL_QUEUED_JOBS))
    finish(stage, "b")
    assert not waits(stage, "c")


def test_job_that_is_deleted_right_after_its_end_counts_as_finished() -> None:
    stage = new_stage(make.job("a"), dependent("b", "ok:a"))
    finished = ended(stage.get(scheme.JOB, "a"), succeeded=True)
    stage.client.submit([UpdateStatus(finished), Delete(Key(scheme.JOB, "team", "a"))], lambda _: None)
    stage.settle()
    assert not waits(stage, "b")


def test_missing_job_is_awaited() -> None:
    stage = new_stage(dependent("b", "ok:a"))
    assert states_of(stage.get(scheme.JOB, "b")) == {"ok:a": "missing"}
    stage.put(make.job("a"))
    assert states_of(stage.get(scheme.JOB, "b")) == {"ok:a": "waits"}
    finish(stage, "a")
    assert not waits(stage, "b")


def test_failed_job_that_is_created_again_is_awaited_again() -> None:
    stage = new_stage(make.job("a"), dependent("b", "ok:a"))
    finish(stage, "a", succeeded=False)
    assert stage.events[-1].reason == "DependencyNeverSatisfied"
    assert stage.events[-1].message == "job/a failed, and must succeed"
    stage.delete(scheme.JOB, "a")
    stage.put(make.job("a"))
    assert states_of(stage.get(scheme.JOB, "b")) == {"ok:a": "waits"}


def test_cycle_is_reported_on_its_jobs_and_on_those_behind_it() -> None:
    stage = new_stage(dependent("a", "ok:c"), dependent("b", "ok:a"), dependent("d", "ok:a"), dependent("c", "ok:b"))
    states = {name: [*states_of(stage.get(scheme.JOB, name)).values()] for name in "abcd"}
    assert states == {"a": ["cycle"], "b": ["cycle"], "c": ["cycle"], "d": ["blocked"]}
    stage.put(without_gate(stage.get(scheme.JOB, "a")))  # a user starts one of them
    states = {name: [*states_of(stage.get(scheme.JOB, name)).values()] for name in "bcd"}
    assert states == {"b": ["waits"], "c": ["waits"], "d": ["waits"]}


def test_changed_annotation_counts_while_the_job_waits() -> None:
    stage = new_stage(make.job("a"), make.job("b"), dependent("c", "ok:a"))
    changed = with_path(stage.get(scheme.JOB, "c"), ("metadata", "annotations", AFTER), "ok:b")
    stage.put(changed)
    finish(stage, "b")
    assert not waits(stage, "c")


def test_removed_annotation_releases_the_job() -> None:
    stage = new_stage(dependent("c", "ok:a"))
    annotations = {k: v for k, v in stage.get(scheme.JOB, "c")["metadata"]["annotations"].items() if k != AFTER}
    stage.put(with_path(stage.get(scheme.JOB, "c"), ("metadata", "annotations"), annotations))
    assert not waits(stage, "c")


def test_long_chain_is_released_one_by_one() -> None:
    stage = new_stage(make.job("j0"), *(dependent(f"j{i}", f"ok:j{i - 1}") for i in range(1, 300)))
    for i in range(3):
        assert [waits(stage, f"j{k}") for k in (i, i + 1)] == [False, True]
        finish(stage, f"j{i}")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a", "must begin with ok:, any: or notok:"),
        ("ok:", "invalid job name"),
        ("ok:a,", "must begin with"),
        ("ok:A", "invalid job name"),
        ("ok:Job/a", "invalid kind"),
        ("ok:a,any:a", "named twice"),
        (",".join(f"ok:j{i}" for i in range(65)), "at most 64"),
    ],
)
def test_invalid_annotation_is_rejected(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        parse_dependencies(text)
    (error,) = dependency_errors(make.job(annotations={AFTER: text}), None)
    assert problem in str(error)


def test_dependencies_cannot_be_added_later() -> None:
    (error,) = dependency_errors(make.job(annotations={AFTER: "ok:a"}), make.job())
    assert "they cannot be added or changed" in str(error)
    assert list(dependency_errors(make.job(), make.job(annotations={AFTER: "ok:a"}))) == []


def test_job_cannot_depend_on_itself() -> None:
    (error,) = dependency_errors(make.job("a", annotations={AFTER: "ok:a"}), None)
    assert "cannot depend on itself" in str(error)


@pytest.mark.parametrize(
    ("after", "options", "problem"),
    [
        pytest.param("ok:a", {"queue": None}, "without a queue, it starts at once", id="no queue"),
        pytest.param("ok:deployment/a", {}, "'deployment' is not a kind of job", id="unknown kind"),
        pytest.param("ok:a", {"labels": {"kueue.x-k8s.io/pod-group-name": "g"}}, "a pod in a group", id="group"),
    ],
)
def test_job_that_cannot_wait_is_rejected(after: str, options: dict[str, Any], problem: str) -> None:
    with pytest.raises(Forbidden, match=problem):
        dependent("b", after, **options)


def test_job_set_and_described_jobs_can_be_awaited() -> None:
    stage = new_stage(make.jobset("s"), dependent("b", "ok:jobset/s"))
    succeeded = {"conditions": [{"type": "Completed", "status": "True"}]}
    stage.put({**stage.get(scheme.JOB_SET, "s"), "status": succeeded})
    assert not waits(stage, "b")


def test_example_runs_in_the_order_of_its_dependencies() -> None:
    result = simulate("examples/workflow")
    starts = {
        event.workload.split("/job-")[1][:-6]: event.time for event in result.events if isinstance(event, Admitted)
    }
    assert starts.keys() == {row.owner for row in result.workloads} - {"evaluate-large"}
    assert starts["tokenize"] == 6 * 60
    assert starts["report"] == starts["diagnose"] == 39 * 60
    (waiting,) = [row for row in result.workloads if row.status == "pending"]
    assert waiting.owner == "evaluate-large"


def test_controller_is_not_imported_without_dependencies() -> None:
    code = "import sys; from batchyard import simulate; simulate('examples/first-steps');"
    code += "sys.exit('batchyard.jobs.dependencies' in sys.modules or 'batchyard.api.job_dependencies' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_webhook_of_the_operator_adds_the_gate() -> None:
    request = {
        "uid": "1",
        "operation": "CREATE",
        "namespace": "team",
        "object": make.job("b", annotations={AFTER: "ok:a"}),
    }
    defaults: dict[ObjectQuery, list[Obj]] = {
        ObjectQuery(Key(kind, namespace, "default")): []
        for kind, namespace in ((scheme.LOCAL_QUEUE, "team"), (scheme.WORKLOAD_PRIORITY_CLASS, ""))
    }
    review = review_mutation({"request": request}, GROUPS, FetchedObjects(defaults))
    patch = json.loads(base64.b64decode(review["response"]["patch"]))
    assert {"op": "add", "path": "/metadata/annotations/kueue.x-k8s.io~1admission-gated-by", "value": AFTER} in patch


@pytest.mark.parametrize("kind", ["Pod", "PyTorchJob"])
def test_other_kinds_wait_and_are_awaited(kind: str) -> None:
    first, second = (with_path(queued(kind, name), ("metadata", "annotations", RUNTIME), "60s") for name in "ab")
    second = with_path(second, ("metadata", "annotations", AFTER), f"ok:{kind.lower()}/a")
    result = simulate("examples/first-steps/platform.yaml", first, second)
    assert [(row.owner, row.status, row.waited) for row in result.workloads] == [
        ("a", "finished", 0), ("b", "finished", 60)
    ]  # fmt: skip


RUNTIME = "batchyard.dev/runtime"
CONTAINER = {"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}}}
POD = {"restartPolicy": "Never", "containers": [CONTAINER]}


def queued(kind: str, name: str) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "team", "labels": {"kueue.x-k8s.io/queue-name": "jobs"}}
    if kind == "Pod":
        return {"apiVersion": "v1", "kind": kind, "metadata": metadata, "spec": POD}
    pod = {"restartPolicy": "Never", "containers": [{**CONTAINER, "name": "pytorch"}]}
    spec = {"pytorchReplicaSpecs": {"Master": {"replicas": 1, "restartPolicy": "Never", "template": {"spec": pod}}}}
    return {"apiVersion": "kubeflow.org/v1", "kind": kind, "metadata": metadata, "spec": spec}
