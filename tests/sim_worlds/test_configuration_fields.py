"""Each field of Kueue's Configuration that is obeyed changes what happens, not only the settings.

Most fields are changed in a small world, whose events and Workloads then differ. For the other fields, the table names
the test of their effect.
"""

import ast
from pathlib import Path
from typing import Any

import pytest

from batchyard.api import scheme
from batchyard.api.meta import Obj
from batchyard.base.instant import SECOND
from batchyard.scheduling.kueue_configuration import deployment_fields, parse_kueue_settings, unsupported_fields
from batchyard.sim.random_worlds import scenario_of
from batchyard.sim.world import World
from unit.scheduling.test_kueue_settings import FIELD_GATES, configuration, configuration_leaves, with_field

TESTS = Path(__file__).parents[1]
KUEUE = "kueue.x-k8s.io/v1beta2"
UNTIL = 7200
SELECTOR = "managedJobsNamespaceSelector"


def queues(*cluster_queues: Obj) -> list[Obj]:
    objects: list[Obj] = [{"apiVersion": KUEUE, "kind": "ResourceFlavor", "metadata": {"name": "spot"}}]
    for spec in cluster_queues:
        name = spec["name"]
        quota = [{"name": "cpu", "nominalQuota": spec.get("cpu", 4)}]
        quota += [{"name": "example.com/credits", "nominalQuota": 100}] if spec.get("credits") else []
        flavors = [{"name": "spot", "resources": quota}]
        group = {"coveredResources": [each["name"] for each in quota], "flavors": flavors}
        fields = {"namespaceSelector": {}, "resourceGroups": [group], **spec.get("fields", {})}
        objects.append({"apiVersion": KUEUE, "kind": "ClusterQueue", "metadata": {"name": name}, "spec": fields})
        for namespace in ("team", "other"):
            metadata = {"name": f"lq-{name}", "namespace": namespace}
            objects.append(
                {"apiVersion": KUEUE, "kind": "LocalQueue", "metadata": metadata, "spec": {"clusterQueue": name}}
            )
    return objects


def pod_template(**requests: str) -> Obj:
    amounts = requests or {"cpu": "1"}
    containers = [{"name": "main", "image": "i", "resources": {"requests": amounts, "limits": amounts}}]
    return {"spec": {"restartPolicy": "Never", "containers": containers}}


def metadata(name: str, at: int = 0, queue: str = "lq-cq", namespace: str = "team", **annotations: str) -> Obj:
    labels = {"tier": "gold", **({"kueue.x-k8s.io/queue-name": queue} if queue else {})}
    timing = {"batchyard.dev/submit-at": f"{at}s", "batchyard.dev/runtime": "60s"}
    return {"name": name, "namespace": namespace, "labels": labels, "annotations": {**timing, **annotations}}


def job(name: str, at: int = 0, queue: str = "lq-cq", namespace: str = "team", **requests: str) -> Obj:
    spec = {"parallelism": 1, "completions": 1, "template": pod_template(**requests)}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata(name, at, queue, namespace), "spec": spec}


def workload(name: str, at: int, priority: int = 0, ready: str = "") -> Obj:
    annotations = {"batchyard.dev/pods-ready": f'["{ready}"]'} if ready else {}
    spec = {
        "queueName": "lq-cq",
        "priority": priority,
        "podSets": [{"name": "main", "count": 1, "template": pod_template()}],
    }
    return {"apiVersion": KUEUE, "kind": "Workload", "metadata": metadata(name, at, "", **annotations), "spec": spec}


def job_set() -> Obj:
    inner = {"parallelism": 1, "completions": 1, "template": pod_template()}
    spec = {"replicatedJobs": [{"name": "a", "replicas": 1, "template": {"spec": inner}}]}
    return {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": metadata("set"), "spec": spec}


JOBS = [*queues({"name": "cq"}), job("plain"), job("unqueued", queue=""), job("there", namespace="other"), job_set()]
CREDITS = [
    *queues({"name": "cq", "credits": True}),
    job("nic", 0, "lq-cq", "team", cpu="1", **{"example.com/nic": "2"}),
]
#: `first` is never ready; it has the quota that `second` waits for.
UNREADY = [*queues({"name": "cq", "cpu": 1}), workload("first", 0, ready="never"), workload("second", 5)]
#: Both have quota at once, if `first` does not block the admission.
BLOCKED = [*queues({"name": "cq", "cpu": 2}), workload("first", 0, ready="never"), workload("second", 5)]
SHORT: Obj = {"timeout": "60s"}


def waits(**strategy: Any) -> Obj:
    return {"waitForPodsReady": {**SHORT, "requeuingStrategy": strategy}}


def resources(**fields: Any) -> Obj:
    return {"resources": fields}


def transformation(**fields: Any) -> Obj:
    charged = {"input": "example.com/nic", "strategy": "Replace", "outputs": {"example.com/credits": "7"}}
    return resources(transformations=[{**charged, **fields}])


#: By field: the objects of a world, and the Configurations between which only the field differs.
WORLDS: dict[str, tuple[list[Obj], Obj, Obj]] = {
    "manageJobsWithoutQueueName": (JOBS, {}, {"manageJobsWithoutQueueName": True}),
    SELECTOR: (JOBS, {}, {SELECTOR: {"matchLabels": {"kubernetes.io/metadata.name": "other"}}}),
    "namespace": (JOBS, {}, {"namespace": "other"}),
    "integrations.frameworks": (JOBS, {}, {"integrations": {"frameworks": ["batch/job"]}}),
    "integrations.labelKeysToCopy": (JOBS, {}, {"integrations": {"labelKeysToCopy": ["tier"]}}),
    "objectRetentionPolicies.workloads.afterFinished": (
        JOBS,
        {},
        {"objectRetentionPolicies": {"workloads": {"afterFinished": "7s"}}},
    ),
    "resources.excludeResourcePrefixes": (CREDITS, {}, resources(excludeResourcePrefixes=["example.com/nic"])),
    "resources.quotaCheckStrategy": (CREDITS, {}, resources(quotaCheckStrategy="IgnoreUndeclared")),
    "resources.transformations.input": (CREDITS, transformation(input="other"), transformation()),
    "resources.transformations.strategy": (CREDITS, transformation(strategy="Retain"), transformation()),
    "resources.transformations.outputs": (
        CREDITS,
        transformation(),
        transformation(outputs={"example.com/credits": "8"}),
    ),
    "resources.transformations.multiplyBy": (CREDITS, transformation(), transformation(multiplyBy="example.com/nic")),
    "waitForPodsReady.timeout": (UNREADY, {}, {"waitForPodsReady": SHORT}),
    "waitForPodsReady.blockAdmission": (
        BLOCKED,
        {"waitForPodsReady": SHORT},
        {"waitForPodsReady": {**SHORT, "blockAdmission": True}},
    ),
    "waitForPodsReady.requeuingStrategy.backoffLimitCount": (UNREADY, waits(), waits(backoffLimitCount=1)),
    "waitForPodsReady.requeuingStrategy.backoffBaseSeconds": (UNREADY, waits(), waits(backoffBaseSeconds=7)),
    "waitForPodsReady.requeuingStrategy.backoffMaxSeconds": (UNREADY, waits(), waits(backoffMaxSeconds=7)),
}
#: By field: the module and the test of its effect.
NAMED_TESTS: dict[str, tuple[str, str]] = {
    **dict.fromkeys(
        ["admissionFairSharing.usageHalfLifeTime"],
        ("scheduling/fair_sharing/test_usage_sampling.py", "test_half_life_of_zero_resets_usage_at_each_sample"),
    ),
    "admissionFairSharing.usageSamplingInterval": (
        "scheduling/fair_sharing/test_usage_sampling.py",
        "test_usage_is_sampled_in_each_interval",
    ),
    "admissionFairSharing.resourceWeights": (
        "scheduling/fair_sharing/test_admission_fair_sharing.py",
        "test_usage_is_weighted_by_resource_and_local_queue",
    ),
    "fairSharing.preemptionStrategies": ("scheduling/preemption/test_fair.py", "test_each_strategy_works_alone"),
    "integrations.externalFrameworks": (
        "jobframework/test_managed_jobs.py",
        "test_owner_of_unknown_kind_or_other_version_ends_search",
    ),
    "objectRetentionPolicies.workloads.afterDeactivatedByKueue": (
        "scheduling/workload/test_retention.py",
        "test_job_deactivated_by_kueue_is_deleted_after_retention_time",
    ),
    "metrics.enableClusterQueueResources": ("metrics/test_exposition.py", "test_configuration_selects_metrics"),
    "metrics.localQueueMetrics.enable": ("metrics/test_exposition.py", "test_configuration_selects_metrics"),
    "metrics.localQueueMetrics.localQueueSelector": (
        "metrics/test_exposition.py",
        "test_selector_selects_local_queues",
    ),
    **dict.fromkeys(
        [
            f"metrics.customLabels.{name}"
            for name in ("name", "sourceLabelKey", "sourceAnnotationKey", "sourceKind", "trackedValues")
        ],
        ("metrics/test_exposition.py", "test_custom_labels_come_from_objects_of_series"),
    ),
    "waitForPodsReady.recoveryTimeout": (
        "scheduling/workload/test_pods_ready.py",
        "test_recovery_timeout_evicts_workload",
    ),
    "waitForPodsReady.requeuingStrategy.timestamp": (
        "scheduling/workload/test_pods_ready.py",
        "test_timed_out_workload_is_requeued_by_eviction_or_creation_time",
    ),
    "waitForPodsReady.unscheduledTimeout": (
        "scheduling/workload/test_pods_scheduled.py",
        "test_workload_with_unscheduled_pod_is_evicted_after_unscheduled_timeout",
    ),
    "waitForPodsReady.maxTimeoutOnWorkload": (
        "scheduling/workload/test_pods_scheduled.py",
        "test_invalid_timeouts_of_job_are_rejected",
    ),
}


def obeyed_fields() -> list[str]:
    """The fields that are neither refused nor settings of Kueue's deployment."""
    gates = ", ".join(f"{name}: true" for name in FIELD_GATES)
    default = parse_kueue_settings(configuration(f"featureGates: {{{gates}}}"))
    fields = []
    for path, field_type in configuration_leaves():
        changed = with_field(path, field_type)
        is_deployment = any(f"{path}.".startswith(f"{field}.") for field in deployment_fields(changed))
        if not is_deployment and not list(unsupported_fields(changed)) and parse_kueue_settings(changed) != default:
            fields.append(path)
    return fields


def test_each_obeyed_field_has_a_test_of_its_effect() -> None:
    covered = [*WORLDS, *NAMED_TESTS]
    assert sorted(covered) == sorted(dict.fromkeys(covered))
    selector_fields = {path for path in obeyed_fields() if path.startswith(SELECTOR)}
    assert {*obeyed_fields()} - selector_fields - {*covered} == set()
    assert {*covered} - {*obeyed_fields(), SELECTOR} == set()


@pytest.mark.parametrize(("module", "name"), sorted({*NAMED_TESTS.values()}))
def test_named_test_exists(module: str, name: str) -> None:
    tree = ast.parse((TESTS / "unit" / module).read_text(encoding="utf-8"))
    assert name in [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]


def outcome(objects: list[Obj], fields: Obj) -> tuple[list[Any], list[Any]]:
    """The events of a world with a Configuration, and the labels and requests of its Workloads."""
    header = {"apiVersion": "config.kueue.x-k8s.io/v1beta2", "kind": "Configuration"}
    records: list[Any] = []
    world = World(scenario_of([{**header, **fields}, *objects]), sink=records.append)
    world.run_until(UNTIL * SECOND)
    workloads = [
        (each["metadata"]["name"], each["metadata"].get("labels"), (each.get("status") or {}).get("admission"))
        for each in world.objects(scheme.WORKLOAD)
    ]
    return records, workloads


@pytest.mark.parametrize("field", WORLDS)
def test_field_changes_what_happens(field: str) -> None:
    objects, default, changed = WORLDS[field]
    assert outcome(objects, default) == outcome(objects, default)
    assert outcome(objects, default) != outcome(objects, changed)
