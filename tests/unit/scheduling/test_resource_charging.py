"""Resources that quota is charged for: exclusions, transformations and undeclared resources.

The cases of `test_charged_requests` are those of TestNewInfo in pkg/workload/workload_test.go of Kueue.
"""

from typing import Any

import pytest

import make
from batchyard.scheduling.controller import Scheduler
from batchyard.scheduling.cycle import SchedulingPolicy
from batchyard.scheduling.resource_charging import charged_requests, parse_resource_rules
from batchyard.scheduling.scheduler_cache import SchedulerCache
from batchyard.scheduling.workload.controller import WorkloadLifecycle
from stage import Stage, condition_state

GPU, CREDIT, MEMORY_QUOTA = "example.com/gpu", "example.com/credit", "example.com/gpumem-quota"
OVERAGE = "quota.example.com/gpu-memory-overage"
INT64_MAX = 2**63 - 1


def conversion(name: str, strategy: str | None = "Replace", multiply_by: str = "", **outputs: Any) -> dict[str, Any]:
    """Return a transformation; `outputs` have the keys of `OUTPUT_NAMES`."""
    named_outputs = {OUTPUT_NAMES.get(key, key): value for key, value in outputs.items()}
    fields = {"input": name, "outputs": named_outputs}
    fields |= {"strategy": strategy} if strategy else {}
    return fields | ({"multiplyBy": multiply_by} if multiply_by else {})


OUTPUT_NAMES = {
    "credits": "example.com/credits",
    "memory": "example.com/accelerator-memory",
    "gpu": GPU,
    "quota": MEMORY_QUOTA,
    "overage": OVERAGE,
    "cores": "nvidia.com/total-vgpucores",
}
MIG = [
    conversion("nvidia.com/mig-1g.5gb", memory="5Ki", credits="10"),
    conversion("nvidia.com/mig-2g.10gb", memory="10Ki", credits="15"),
    conversion("nvidia.com/gpu", "Retain", memory="40Ki", credits="100"),
    conversion("nvidia.com/vgpucores", multiply_by="nvidia.com/vgpu", cores="1"),
]
ALLOWANCE = [
    conversion("nvidia.com/gpumem", multiply_by="nvidia.com/gpu", overage="1"),
    conversion("nvidia.com/gpu", "Retain", overage="-1024"),
]
MULTIPLIED = [conversion("example.com/gpumem", None, multiply_by="cpu", quota="1")]
ADDED_TO_REQUEST = [conversion(CREDIT, gpu="1")]
NEGATIVE = [conversion(CREDIT, gpu="-1")]
CPU_CREDITS = [conversion("cpu", credits="3000"), conversion("memory", memory="3m")]


@pytest.mark.parametrize(
    ("transformations", "requests", "charged"),
    [
        (
            MIG,
            {"nvidia.com/mig-1g.5gb": "2", "nvidia.com/mig-2g.10gb": "1", "cpu": "1"},
            {"cpu": 1000, "example.com/accelerator-memory": 20 * 1024, "example.com/credits": 35},
        ),
        (
            MIG,
            {"nvidia.com/gpu": "1", "cpu": "2"},
            {"cpu": 2000, "example.com/accelerator-memory": 40960, "example.com/credits": 100, "nvidia.com/gpu": 1},
        ),
        (
            MIG,
            {"nvidia.com/vgpu": "2", "nvidia.com/vgpucores": "20"},
            {"nvidia.com/vgpu": 2, "nvidia.com/total-vgpucores": 40},
        ),
        (ALLOWANCE, {"nvidia.com/gpumem": "2048", "nvidia.com/gpu": "2"}, {OVERAGE: 2048, "nvidia.com/gpu": 2}),
        (ALLOWANCE, {"nvidia.com/gpumem": "1024", "nvidia.com/gpu": "2"}, {OVERAGE: 0, "nvidia.com/gpu": 2}),
        (ALLOWANCE, {"nvidia.com/gpumem": "512", "nvidia.com/gpu": "2"}, {OVERAGE: 0, "nvidia.com/gpu": 2}),
        (NEGATIVE, {GPU: "8", CREDIT: "3"}, {GPU: 8}),
        (ADDED_TO_REQUEST, {GPU: "1", CREDIT: "1"}, {GPU: 2}),
        ([conversion(GPU, "Retain", gpu="5")], {GPU: "1"}, {GPU: 6}),
        (
            [conversion("example.com/gpumem", "Retain", multiply_by=GPU, quota="1")],
            {"example.com/gpumem": "1024", GPU: "2"},
            {"example.com/gpumem": 1024, MEMORY_QUOTA: 2048, GPU: 2},
        ),
        (
            MULTIPLIED,
            {"example.com/gpumem": "1024", "cpu": "500m"},
            {"example.com/gpumem": 1024, MEMORY_QUOTA: 512, "cpu": 500},
        ),
        (
            [conversion(GPU, "Retain", multiply_by="example.com/node", gpu="1")],
            {GPU: "1", "example.com/node": "2"},
            {GPU: 3, "example.com/node": 2},
        ),
        ([conversion(CREDIT, gpu="10000000000")], {CREDIT: "10000000000"}, {GPU: INT64_MAX}),
        (
            CPU_CREDITS,
            {"cpu": "100m", "memory": "100M"},
            {"example.com/credits": 300, "example.com/accelerator-memory": 300_000},
        ),
        ([conversion("networking.example.com/vpc1")], {"networking.example.com/vpc1": "1", "cpu": "10m"}, {"cpu": 10}),
    ],
)
def test_charged_requests(transformations: list[Any], requests: dict[str, str], charged: dict[str, int]) -> None:
    rules = parse_resource_rules({"transformations": transformations})
    assert dict(charged_requests(rules, pod(requests))) == charged


def pod(requests: dict[str, str]) -> dict[str, Any]:
    return {"containers": [{"name": "c", "resources": {"requests": requests}}]}


def test_resources_with_excluded_prefix_are_not_charged() -> None:
    rules = parse_resource_rules({"excludeResourcePrefixes": ["dummyPrefix", "networking.example.com/"]})
    requests = {"cpu": "10m", "memory": "512Ki", "networking.example.com/vpc1": "1"}
    assert dict(charged_requests(rules, pod(requests))) == {"cpu": 10, "memory": 512 * 1024}


def test_excluded_resource_still_multiplies() -> None:
    transformations = [conversion("example.com/gpumem", multiply_by="vendor.com/cards", quota="1")]
    rules = parse_resource_rules({"transformations": transformations, "excludeResourcePrefixes": ["vendor.com/"]})
    charged = charged_requests(rules, pod({"example.com/gpumem": "10", "vendor.com/cards": "2"}))
    assert dict(charged) == {MEMORY_QUOTA: 20}


@pytest.mark.parametrize("strategy", ["Retain", "Replace"])
def test_transformation_of_an_excluded_resource_is_charged(strategy: str) -> None:
    transformations = [conversion("vendor.com/cards", strategy, credits="10")]
    rules = parse_resource_rules({"transformations": transformations, "excludeResourcePrefixes": ["vendor.com/"]})
    charged = charged_requests(rules, pod({"vendor.com/cards": "2", "cpu": "1"}))
    assert dict(charged) == {"cpu": 1000, "example.com/credits": 20}


def test_fractions_are_added_before_rounding_up() -> None:
    rules = parse_resource_rules({"transformations": [conversion("a", credits="300m"), conversion("b", credits="1m")]})
    assert dict(charged_requests(rules, pod({"a": "2", "b": "1"}))) == {"example.com/credits": 1}


def open_stage(resources: dict[str, Any], quotas: dict[str, str]) -> Stage:
    cache = SchedulerCache(resource_rules=parse_resource_rules(resources))
    stage = Stage(Scheduler(cache, SchedulingPolicy()), WorkloadLifecycle())
    rows = [{"name": name, "nominalQuota": amount} for name, amount in quotas.items()]
    group = {"coveredResources": list(quotas), "flavors": [{"name": "spot", "resources": rows}]}
    stage.put(make.namespace(), make.flavor("spot"), make.cluster_queue("cq", resourceGroups=[group]))
    stage.put(make.local_queue("lq", cluster_queue="cq"))
    return stage


def requesting(name: str, count: int = 1, **requests: str) -> dict[str, Any]:
    created = make.workload(name, queue="lq")
    named = {RESOURCE_NAMES.get(key, key): value for key, value in requests.items()}
    pod_set = {"name": "main", "count": count, "template": {"spec": pod(named)}}
    return {**created, "spec": {**created["spec"], "podSets": [pod_set]}}


RESOURCE_NAMES = {"gpu": GPU}
CREDITS = {"transformations": [conversion(GPU, credits="100")]}


def usage(stage: Stage, name: str) -> Any:
    (assignment,) = stage.workload(name)["status"]["admission"]["podSetAssignments"]
    return assignment.get("resourceUsage")


def test_admission_records_transformed_usage() -> None:
    stage = open_stage(CREDITS, {"cpu": "9", "example.com/credits": "350"})
    stage.put(requesting("a", 2, cpu="1", gpu="1"), requesting("b", 2, cpu="1", gpu="1"))
    assert usage(stage, "a") == {"cpu": "2", "example.com/credits": "200"}
    stage.run(2)
    status, _, message = condition_state(stage.workload("b"), "QuotaReserved")
    assert (status, "insufficient unused quota for example.com/credits" in message) == ("False", True)


def test_pending_workload_reports_transformed_requests() -> None:
    stage = open_stage(CREDITS, {"cpu": "9", "example.com/credits": "100"})
    stage.put(requesting("a", 2, cpu="1", gpu="1"))
    stage.run(2)
    resources = {"cpu": "2", "example.com/credits": "200"}
    assert stage.workload("a")["status"]["resourceRequests"] == [{"name": "main", "resources": resources}]


def test_restart_with_other_rules_keeps_usage_of_admitted_workloads() -> None:
    stage = open_stage(CREDITS, {"cpu": "9", "example.com/credits": "350"})
    stage.put(requesting("a", cpu="1", gpu="1"))
    rules = parse_resource_rules({"transformations": [conversion(GPU, credits="300")]})
    cache = SchedulerCache(resource_rules=rules)
    stage.replace_controllers(Scheduler(cache, SchedulingPolicy()), WorkloadLifecycle())
    stage.put(requesting("b", cpu="1", gpu="1"))
    assert usage(stage, "a")["example.com/credits"] == "100"
    assert "admission" not in (stage.workload("b").get("status") or {})


def test_undeclared_resource_blocks_unless_ignored() -> None:
    for strategy, charged in (("BlockUndeclared", None), ("IgnoreUndeclared", {"cpu": "1"})):
        stage = open_stage({"quotaCheckStrategy": strategy}, {"cpu": "9"})
        stage.put(requesting("a", cpu="1", gpu="1"))
        stage.run(2)
        is_admitted = "admission" in stage.workload("a")["status"]
        assert (usage(stage, "a") if is_admitted else None) == charged


def test_workload_with_undeclared_resources_only_needs_no_quota() -> None:
    stage = open_stage({"quotaCheckStrategy": "IgnoreUndeclared"}, {"cpu": "9"})
    stage.put(requesting("a", gpu="1"))
    assert usage(stage, "a") is None


def test_gate_off_disables_quota_check_strategy() -> None:
    rules = parse_resource_rules({"quotaCheckStrategy": "IgnoreUndeclared"}, is_strategy_enabled=False)
    assert not rules.ignores_undeclared
