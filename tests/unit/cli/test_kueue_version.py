"""The option --kueue-version, the command convert, and the rules of a version outside the scheduler."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import make
from batchyard.admission_chain import AdmissionChain
from batchyard.admission_plugins.built_in import find_managed_ancestor, queue_job
from batchyard.api import scheme
from batchyard.api.errors import InvalidObject
from batchyard.api.meta import Key, Obj, label, with_metadata, with_path
from batchyard.api.validation import validate
from batchyard.api.yaml_documents import read_documents
from batchyard.cli.app import app
from batchyard.jobframework.reconciler import JobReconciler
from batchyard.jobs.job.integration import JobIntegration
from batchyard.lint.registry import lint
from batchyard.scheduling.cycle import SchedulingPolicy
from batchyard.scheduling.decisions import DEFAULT_RULES, DecisionRules, KueueVersion, decision_rules
from batchyard.scheduling.kueue_configuration import SIMULATION_SETTINGS, parse_kueue_settings
from batchyard.scheduling.workload import evictions, lifecycle
from batchyard.scheduling.workload.controller import WorkloadLifecycle
from batchyard.sim.state_document import KUEUE_VERSION_ANNOTATION, TAKEN_AT_ANNOTATION, document_of, state_of_texts
from batchyard.webhooks.hooks import review_validation
from stage import Stage

RULES_0_20 = decision_rules(KueueVersion.V0_20, {})
BY_VERSION = pytest.mark.parametrize("rules", [DEFAULT_RULES, RULES_0_20], ids=["0.19", "0.20"])


def run(*arguments: str, code: int = 0) -> tuple[str, str]:
    """Run a command; return its standard output and standard error."""
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == code, result.output
    return result.stdout, result.stderr


# The option.

SCENARIO = """
apiVersion: kueue.x-k8s.io/v1beta2
kind: ResourceFlavor
metadata: {name: f}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {name: cq}
spec:
  namespaceSelector: {}
  preemption: {withinClusterQueue: LowerPriority}
  resourceGroups:
  - coveredResources: [cpu, pods]
    flavors: [{name: f, resources: [{name: cpu, nominalQuota: 4}, {name: pods, nominalQuota: 2}]}]
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata: {name: lq, namespace: default}
spec: {clusterQueue: cq}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: Workload
metadata: {name: low1, namespace: default}
spec:
  queueName: lq
  podSets:
  - name: main
    template:
      spec: {restartPolicy: Never, containers: [{name: c, image: i, resources: {requests: {cpu: 2}}}]}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: Workload
metadata: {name: low2, namespace: default}
spec:
  queueName: lq
  podSets:
  - name: main
    template:
      spec: {restartPolicy: Never, containers: [{name: c, image: i, resources: {requests: {cpu: 2}}}]}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: Workload
metadata: {name: high, namespace: default, annotations: {batchyard.dev/submit-at: 10s}}
spec:
  queueName: lq
  priority: 9
  podSets:
  - name: main
    count: 2
    template:
      spec: {restartPolicy: Never, containers: [{name: c, image: i, resources: {requests: {cpu: 1}}}]}
"""


def test_simulate_decides_by_the_rules_of_the_version(tmp_path: Path) -> None:
    file = tmp_path / "scenario.yaml"
    file.write_text(SCENARIO)
    logs = {}
    for version in ("", "0.19", "0.20"):
        events = tmp_path / f"events{version}"
        run("simulate", str(file), "--events", str(events), *(["--kueue-version", version] if version else []))
        logs[version] = events.read_text()
    assert '"event":"Preempted"' not in logs["0.19"]
    assert logs["0.20"].count('"event":"Preempted"') == 2
    assert logs[""] == logs["0.19"]


def test_gates_of_the_configuration_stay_set_with_a_version() -> None:
    gates = {"FairSharingRefill": True, "SchedulingEquivalenceHashingIgnorePodSetName": False}
    configuration = {"featureGates": gates, "waitForPodsReady": {}}
    with pytest.raises(KeyError):
        parse_kueue_settings(configuration)  # without defaults
    configuration["featureGates"] = {**gates, "DisableWaitForPodsReady": True}
    settings = parse_kueue_settings(configuration)
    assert settings.policy.rules.refills_heads
    rules = settings.with_version(KueueVersion.V0_20).policy.rules
    assert (rules.is_current, rules.refills_heads, rules.ignores_pod_set_names) == (True, True, False)


# The version in states.


def write_state(folder: Path, version: str) -> Path:
    """Write a snapshot of SCENARIO at its start, recorded with the rules of a version."""
    objects = [document.value for document in read_documents(SCENARIO)][:3]
    stored = [{**obj, "metadata": {**obj["metadata"], "resourceVersion": str(i)}} for i, obj in enumerate(objects, 1)]
    metadata = {"annotations": {TAKEN_AT_ANNOTATION: "2026-01-01T00:00:00Z", KUEUE_VERSION_ANNOTATION: version}}
    file = folder / f"state-{version}.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "metadata": metadata, "items": stored}))
    return file


def preemptions(folder: Path, state: Path, *options: str) -> tuple[int, str]:
    """Simulate the Workloads of SCENARIO after a state; return the number of preemptions, and the remarks."""
    workloads, events = folder / "workloads.yaml", folder / "events"
    workloads.write_text("---".join(SCENARIO.split("---")[3:]))
    _, remarks = run("simulate", str(state), str(workloads), "--events", str(events), *options)
    return events.read_text().count('"event":"Preempted"'), remarks


@pytest.mark.parametrize(("version", "count"), [("0.19", 0), ("0.20", 2), ("0.99", 0)])
def test_state_selects_the_recorded_version(tmp_path: Path, version: str, count: int) -> None:
    assert preemptions(tmp_path, write_state(tmp_path, version))[0] == count


def test_option_that_changes_the_recorded_version_is_reported(tmp_path: Path) -> None:
    state = write_state(tmp_path, "0.20")
    count, remarks = preemptions(tmp_path, state, "--kueue-version", "0.19")
    assert (count, "recorded with the rules of Kueue 0.20; --kueue-version 0.19 selects others" in remarks) == (0, True)
    assert "was recorded" not in preemptions(tmp_path, state, "--kueue-version", "0.20")[1]


def test_document_of_a_state_keeps_the_version(tmp_path: Path) -> None:
    state = state_of_texts([("s", write_state(tmp_path, "0.20").read_text())])
    assert document_of(state)["metadata"]["annotations"][KUEUE_VERSION_ANNOTATION] == "0.20"
    assert state_of_texts([("s", json.dumps(document_of(state)))]).kueue.recorded_version is KueueVersion.V0_20


# Convert.


def test_convert_prints_v1beta2_and_names_what_is_lost(tmp_path: Path) -> None:
    file = tmp_path / "old.yaml"
    file.write_text(
        "# lost\napiVersion: kueue.x-k8s.io/v1beta1\nkind: ClusterQueue\nmetadata: {name: cq}\n"
        "spec: {cohort: all, flavorFungibility: {whenCanBorrow: Borrow}}\n"
        "---\n# kept\napiVersion: v1\nkind: Namespace\nmetadata: {name: team}\n"
    )
    text, remarks = run("convert", str(file))
    new, unchanged = (document.value for document in read_documents(text))
    assert new["apiVersion"] == "kueue.x-k8s.io/v1beta2"
    assert new["spec"] == {"cohortName": "all", "flavorFungibility": {"whenCanBorrow": "MayStopSearch"}}
    assert unchanged["kind"] == "Namespace"
    assert "# kept" in text
    assert "# lost" not in text
    assert f"{file}:1: the comments of this document are lost" in remarks


def test_convert_converts_items_of_lists_and_configurations(tmp_path: Path) -> None:
    file = tmp_path / "old.yaml"
    file.write_text(
        "apiVersion: v1\nkind: List\nitems:\n"
        "- {apiVersion: kueue.x-k8s.io/v1beta1, kind: LocalQueue, metadata: {name: lq}, spec: {clusterQueue: cq}}\n"
        "- {apiVersion: config.kueue.x-k8s.io/v1beta1, kind: Configuration, queueVisibility: {}}\n"
    )
    text, remarks = run("convert", str(file))
    (document,) = read_documents(text)
    versions = [item["apiVersion"] for item in document.value["items"]]
    assert versions == ["kueue.x-k8s.io/v1beta2", "config.kueue.x-k8s.io/v1beta2"]
    assert "v1beta2 has no field queueVisibility: its value is lost" in remarks


def test_convert_reports_invalid_documents_and_keeps_their_text(tmp_path: Path) -> None:
    file = tmp_path / "old.yaml"
    file.write_text("apiVersion: kueue.x-k8s.io/v1beta1\nkind: ClusterQueue\nmetadata: {name: cq}\nspec: {cohrt: a}\n")
    text, errors = run("convert", str(file), code=1)
    assert "v1beta1" in text
    assert "spec.cohrt: unknown field" in errors


def test_lint_names_the_version_that_refuses_v1beta1(tmp_path: Path) -> None:
    file = tmp_path / "old.yaml"
    file.write_text("apiVersion: kueue.x-k8s.io/v1beta1\nkind: ResourceFlavor\nmetadata: {name: f}\n")
    (finding,) = [f for f in lint([str(file)], ["deprecated-version"]).findings if f.rule == "deprecated-version"]
    assert finding.problem == "this version is deprecated, and refused by Kueue 0.20"
    assert "batchyard convert FILE" in finding.fix


# Jobs.


def partial_job(succeeded: int, **spec: Any) -> Obj:
    return {**make.job(**spec), "status": {"succeeded": succeeded}}


def test_parallelism_above_completions_frees_no_quota_of_running_pods() -> None:
    integration = JobIntegration()
    assert integration.reclaimable_pods(partial_job(1, parallelism=5, completions=3)) == [{"name": "main", "count": 1}]
    assert integration.reclaimable_pods(partial_job(1, parallelism=3, completions=5)) == []
    assert integration.reclaimable_pods(partial_job(1, parallelism=4, completions=1)) == []


def test_failed_indexes_free_quota() -> None:
    job = make.job(parallelism=3, completions=3, completionMode="Indexed", backoffLimitPerIndex=0)
    job = {**job, "status": {"succeeded": 1, "completedIndexes": "0", "failedIndexes": "2"}}
    assert JobIntegration().reclaimable_pods(job) == [{"name": "main", "count": 2}]


@pytest.mark.parametrize("value", [str(2**31), str(2**32 + 1), "-1"])
def test_min_parallelism_outside_int32_is_refused(value: str) -> None:
    job = make.job(parallelism=4, completions=4, annotations={"kueue.x-k8s.io/job-min-parallelism": value})
    assert any("job-min-parallelism" in error.path for error in validate(job))


def reconciled_stage(rules: DecisionRules) -> Stage:
    stage = Stage(JobReconciler(JobIntegration(), rules=rules), WorkloadLifecycle(None, rules))
    stage.put(make.namespace(), make.local_queue())
    stage.put(with_metadata(make.job(), finalizers=["example.com/wait"]))
    return stage


@BY_VERSION
def test_workload_of_a_job_that_is_being_deleted_stays_since_0_20(rules: DecisionRules) -> None:
    stage = reconciled_stage(rules)
    assert len(stage.workloads()) == 1
    stage.delete(scheme.JOB, "job")
    assert len(stage.workloads()) == (1 if rules.is_current else 0)


def test_deleted_workload_of_a_job_that_is_being_deleted_is_released() -> None:
    stage = reconciled_stage(RULES_0_20)
    stage.delete(scheme.JOB, "job")
    stage.delete(scheme.WORKLOAD, stage.only_workload()["metadata"]["name"])
    assert stage.workloads() == []


def test_workload_is_deleted_once_its_owner_is_gone() -> None:
    stage = reconciled_stage(RULES_0_20)
    stage.delete(scheme.JOB, "job")
    stage.put(with_metadata(stage.get(scheme.JOB, "job"), finalizers=None))
    assert stage.workloads() == []


@pytest.mark.parametrize("gate", [True, False])
def test_orphaned_workload_is_finished_unless_the_gate_is_off(*, gate: bool) -> None:
    rules = decision_rules(KueueVersion.V0_20, {"FinishOrphanedWorkloads": gate})
    stage = Stage(WorkloadLifecycle(None, rules))
    stage.put(make.namespace(), with_metadata(make.workload(), labels={"kueue.x-k8s.io/job-uid": "gone"}))
    assert lifecycle.is_finished(stage.workload()) is gate


def test_workload_of_another_controller_is_not_matched() -> None:
    stage = Stage(JobReconciler(JobIntegration()))
    foreign_owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "job", "uid": "other"}
    stage.put(make.namespace(), make.local_queue())
    stage.put(with_metadata(make.workload("foreign"), ownerReferences=[foreign_owner]))
    stage.put(make.job())
    assert sorted(obj["metadata"]["name"] != "foreign" for obj in stage.workloads()) == [False, True]


def test_ancestor_is_matched_by_uid() -> None:
    parent = with_metadata(make.jobset("parent"), uid="new")
    reference = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "name": "parent", "controller": True}
    for uid, is_managed in (("new", True), ("old", False)):
        child = with_metadata(make.job("child", queue=None), ownerReferences=[{**reference, "uid": uid}])
        search = find_managed_ancestor(child, lambda key: parent if key.name == "parent" else None)
        assert (search.managed_key is not None) is is_managed


# Defaults and validation.


@pytest.mark.parametrize(
    ("version", "gate", "expected"),
    [("0.19", True, ["default", "default"]), ("0.20", True, ["default", None]), ("0.20", False, [None, None])],
)
def test_default_priority_class_applies_by_namespace_and_gate(
    version: str, gate: bool, expected: list[str | None]
) -> None:
    gates = {"DisableWaitForPodsReady": True, "WorkloadPriorityClassDefaulting": gate}
    managed = parse_kueue_settings({"featureGates": gates}).with_version(KueueVersion(version)).managed_jobs
    objects = {"default": make.workload_priority_class("default", 5)}

    def find(key: Key) -> Obj | None:
        return make.namespace(key.name) if key.kind == scheme.NAMESPACE else objects.get(key.name)

    jobs = [with_metadata(make.job(), namespace=name) for name in ("team", "kube-system")]
    queued = [queue_job(job, find, managed) for job in jobs]
    assert [label(job, "kueue.x-k8s.io/priority-class") for job in queued] == expected


def checked_queue(on_flavor: str, **spec: Any) -> Obj:
    checks = {"admissionChecks": [{"name": "check", "onFlavors": [on_flavor]}]}
    groups = [
        {"coveredResources": ["cpu"], "flavors": [{"name": "f", "resources": [{"name": "cpu", "nominalQuota": 1}]}]}
    ]
    return make.cluster_queue(resourceGroups=groups, admissionChecksStrategy=checks, **spec)


@BY_VERSION
def test_update_that_keeps_an_unknown_flavor_in_on_flavors_is_refused_since_0_20(rules: DecisionRules) -> None:
    old, new = checked_queue("gone"), checked_queue("gone", stopPolicy="Hold")
    kueue = replace(SIMULATION_SETTINGS, policy=SchedulingPolicy(rules=rules))
    check = AdmissionChain(with_nodes=False, with_api=True, kueue=kueue).hooks().checks.get(scheme.CLUSTER_QUEUE)
    review = {"request": {"uid": "1", "operation": "UPDATE", "object": new, "oldObject": old}}
    response = review_validation(review, [], lambda _: None, rules=rules)["response"]  # type: ignore[arg-type]
    assert response["allowed"] is not rules.is_current
    if check is None:
        assert not rules.is_current
        return
    with pytest.raises(InvalidObject, match="onFlavors"):
        check(new, old, None)  # type: ignore[arg-type]


def test_pod_set_metadata_and_negative_requests_are_refused() -> None:
    pods = make.pod_set(requests={"cpu": "-1"})
    pods = with_path(pods, ("template", "metadata"), {"labels": {"a b": "c"}})
    paths = [error.path for error in validate(make.workload(pod_sets=[pods]))]
    assert any(path.startswith("spec.podSets[0].template.metadata.labels") for path in paths)
    assert any(path.endswith("requests[cpu]") for path in paths)


@pytest.mark.parametrize(("count", "is_valid"), [(0, True), (2, True), (3, False)])
def test_min_count_may_be_zero(*, count: int, is_valid: bool) -> None:
    pods = make.pod_set(count=2, minCount=count, requests={"cpu": "1"})
    assert (not validate(make.workload(pod_sets=[pods]))) is is_valid


# The lifecycle of Workloads.


@pytest.mark.parametrize("cause", ["RequeuingLimitExceeded", "MaximumExecutionTimeExceeded"])
def test_workload_deactivated_for_a_cause_is_requeued_when_reactivated(cause: str) -> None:
    stage = Stage(WorkloadLifecycle())
    blocked = make.condition("Requeued", status=False, reason=f"DeactivatedDueTo{cause}")
    stage.put(make.namespace(), make.workload(conditions=[blocked]))
    (requeued,) = [c for c in stage.workload()["status"]["conditions"] if c["type"] == evictions.REQUEUED]
    assert (requeued["status"], requeued["reason"]) == ("True", lifecycle.REACTIVATED)


@BY_VERSION
def test_evicted_workload_with_rejected_check_is_not_admitted_since_0_20(rules: DecisionRules) -> None:
    conditions = [make.condition(kind) for kind in ("QuotaReserved", "Admitted", "Evicted")]
    checks = [{"name": "check", "state": "Rejected", "message": "", "lastTransitionTime": make.stamp()}]
    status = {"admission": make.admission(main=1), "admissionChecks": checks}
    stage = Stage(WorkloadLifecycle(None, rules))
    stage.put(make.namespace(), make.workload(conditions=conditions, status=status))
    assert lifecycle.is_admitted(stage.workload()) is not rules.is_current
