"""Random scenarios with nodes, for tests: node pools of every kind, Jobs and JobSets for them, and faults.

Smaller random numbers give simpler worlds: zeros alone give one pool of fixed size and one Job.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from batchyard.api import scheme, well_known
from batchyard.api.errors import FieldError
from batchyard.base.primitives import invariant
from batchyard.sim.faults import read_faults
from batchyard.sim.random_worlds import KUEUE_API, ObjectDict, RandomChoices, RandomSource, make_object, scenario_of
from batchyard.sim.scenario import Scenario
from batchyard.sim.world import World

NAMESPACE: Final = "team"
ZONES: Final = ("z-a", "z-b")
#: The time in minutes within which users act and faults begin; a fault lasts at most half of it.
ACTIVE_MINUTES: Final = 60
_L4: Final = "g2-standard-24"
_TPU: Final = "ct5lp-hightpu-4t"


@dataclass(frozen=True, slots=True)
class PodTarget:
    """A template of random pods that fit certain machines: their queue, requests and scheduling constraints."""

    queue: str
    requests: Mapping[str, Any]
    selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[str, ...] = ()
    #: The number of pods of a Job that must run on one slice.
    host_count: int = 0


@dataclass(slots=True)
class ClusterWorldPlan:
    """The objects of a random scenario with nodes while they are generated."""

    rng: RandomChoices
    pools: list[ObjectDict] = field(default_factory=list)
    targets: list[PodTarget] = field(default_factory=list)
    #: All objects except the Cluster.
    objects: list[ObjectDict] = field(default_factory=list)
    job_sets: list[str] = field(default_factory=list)


def random_cluster_scenario(random_source: RandomSource) -> Scenario:
    """Return a random scenario with node pools, changes of objects by users, and faults."""
    plan = ClusterWorldPlan(RandomChoices(random_source))
    _make_pools(plan)
    cluster = _random_cluster(plan)
    for name, value in (("low", 100), ("high", 1000)):
        plan.objects.append(make_object("scheduling.k8s.io/v1", "PriorityClass", name, value=value))
    for number in range(plan.rng.draw_count(8)):
        _add_work(plan, number)
    faultless_scenario = scenario_of([cluster, *plan.objects])
    field_errors: list[FieldError] = []
    faults = read_faults(_random_faults(plan, _first_nodes(faultless_scenario)), field_errors)
    invariant(not field_errors, f"the random faults are invalid: {field_errors}")
    return replace(faultless_scenario, faults=tuple(faults), hotswap=plan.rng.draw_bool(50))


def _first_nodes(scenario: Scenario) -> list[str]:
    world = World(scenario)
    world.run_until(0)
    return [node["metadata"]["name"] for node in world.objects(scheme.NODE)]


def _make_pools(plan: ClusterWorldPlan) -> None:
    rng = plan.rng
    plan.pools.append({"name": "fixed", "machineType": "e2-standard-4", "nodeCount": rng.draw_integer(1, 2)})
    _add_queue(plan, "fixed", {"cpu": rng.choose([12, 6, 3]), "memory": "64Gi"})
    plan.targets.append(PodTarget("fixed", {"cpu": "1"}, {well_known.NODE_POOL: "fixed"}))
    for make_pool in (_make_elastic_pool, _make_spot_pool, _make_gpu_pool, _make_slice_pools, _make_queued_pool):
        if rng.draw_bool(50):
            make_pool(plan)


def _make_elastic_pool(plan: ClusterWorldPlan) -> None:
    rng = plan.rng
    size_bounds = {"totalMin": rng.choose([0, 0, 1]), "totalMax": rng.draw_integer(2, 6), "locationPolicy": "ANY"}
    plan.pools.append({"name": "elastic", "machineType": "n2-standard-4", "autoscaling": size_bounds})
    _add_queue(plan, "elastic", {"cpu": rng.choose([32, 8]), "memory": "256Gi"})
    pool = {well_known.NODE_POOL: "elastic"}
    plan.targets += [PodTarget("elastic", {"cpu": "2"}, pool), PodTarget("elastic", {"cpu": "1"})]


def _make_spot_pool(plan: ClusterWorldPlan) -> None:
    rng = plan.rng
    taint = {"key": "spot", "value": "true", "effect": "NoSchedule"}
    pool: ObjectDict = {"name": "spot", "machineType": "n2-standard-4", "provisioning": "spot", "taints": [taint]}
    size_fields: ObjectDict = (
        {"autoscaling": {"min": 0, "max": rng.draw_integer(1, 3)}} if rng.draw_bool(70) else {"nodeCount": 1}
    )
    plan.pools.append({**pool, **size_fields})
    _add_queue(plan, "spot", {"cpu": 16, "memory": "256Gi"}, nodeTaints=[taint])
    plan.targets.append(PodTarget("spot", {"cpu": "2"}, {well_known.NODE_POOL: "spot"}, ("spot",)))


def _make_gpu_pool(plan: ClusterWorldPlan) -> None:
    rng = plan.rng
    size_bounds = {"totalMin": 0, "totalMax": rng.draw_integer(2, 6), "locationPolicy": rng.choose(["ANY", "BALANCED"])}
    plan.pools.append({"name": "gpu", "machineType": _L4, "autoscaling": size_bounds})
    _add_queue(plan, "gpu", {"cpu": 96, "nvidia.com/gpu": rng.choose([12, 12, 8, 4])})
    plan.targets += [
        PodTarget("gpu", {"cpu": "4", "nvidia.com/gpu": count}, {well_known.NODE_POOL: "gpu"}, ("nvidia.com/gpu",))
        for count in (1, 2)
    ]


def _make_slice_pools(plan: ClusterWorldPlan) -> None:
    rng = plan.rng
    size_fields: ObjectDict = {"autoscaling": {"totalMin": 0, "totalMax": 2}} if rng.draw_bool(40) else {"nodeCount": 2}
    for number in range(rng.draw_integer(1, 3)):
        pool = {"name": f"slice{number}", "machineType": _TPU, "tpuTopology": "2x4", "zones": [ZONES[0]], **size_fields}
        plan.pools.append(pool)
    _add_queue(plan, "slices", {"cpu": 960, "google.com/tpu": rng.choose([24, 24, 16, 8])})
    node_selector = {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice",
        "cloud.google.com/gke-tpu-topology": "2x4",
    }
    plan.targets.append(PodTarget("slices", {"google.com/tpu": 4}, node_selector, ("google.com/tpu",), 2))


def _make_queued_pool(plan: ClusterWorldPlan) -> None:
    rng = plan.rng
    pool = {"name": "queued", "machineType": "n1-standard-4", "accelerator": {"type": "nvidia-tesla-t4", "count": 1}}
    size_bounds = {"totalMin": 0, "totalMax": rng.draw_integer(1, 4)}
    plan.pools.append({**pool, "zones": [ZONES[0]], "provisioning": "queued", "autoscaling": size_bounds})
    parameters = {"apiGroup": "kueue.x-k8s.io", "kind": "ProvisioningRequestConfig", "name": "dws"}
    check_spec = {"controllerName": "kueue.x-k8s.io/provisioning-request", "parameters": parameters}
    config = {"provisioningClassName": "queued-provisioning.gke.io", "managedResources": ["nvidia.com/gpu"]}
    plan.objects.append(make_object(KUEUE_API, "AdmissionCheck", "dws", spec=check_spec))
    plan.objects.append(make_object(KUEUE_API, "ProvisioningRequestConfig", "dws", spec=config))
    _add_queue(plan, "queued", {"cpu": 64, "nvidia.com/gpu": rng.choose([6, 4, 2])}, checks=["dws"])
    requests = {"cpu": "1", "nvidia.com/gpu": 1}
    plan.targets.append(PodTarget("queued", requests, {well_known.NODE_POOL: "queued"}, ("nvidia.com/gpu",)))


def _add_queue(plan: ClusterWorldPlan, name: str, quotas: Mapping[str, Any], checks: Any = None, **flavor: Any) -> None:
    resources = [{"name": resource, "nominalQuota": amount} for resource, amount in quotas.items()]
    resource_group = {"coveredResources": list(quotas), "flavors": [{"name": name, "resources": resources}]}
    spec: ObjectDict = {"namespaceSelector": {}, "resourceGroups": [resource_group]}
    spec["preemption"] = {"withinClusterQueue": plan.rng.choose(["Never", "LowerPriority"])}
    if checks:
        spec["admissionChecksStrategy"] = {"admissionChecks": [{"name": check} for check in checks]}
    local_queue = make_object(KUEUE_API, "LocalQueue", name, spec={"clusterQueue": name})
    local_queue["metadata"]["namespace"] = NAMESPACE
    plan.objects.append(make_object(KUEUE_API, "ResourceFlavor", name, spec=flavor))
    plan.objects += [make_object(KUEUE_API, "ClusterQueue", name, spec=spec), local_queue]


def _random_cluster(plan: ClusterWorldPlan) -> ObjectDict:
    rng = plan.rng
    autoscaling: ObjectDict = {"profile": rng.choose(["balanced", "optimize-utilization"])}
    if rng.draw_bool(40):
        limit_by_resource = {"cpu": 2000, "memory": 8000, "nvidia-l4": rng.choose([16, 8, 4])}
        resource_limits = [{"resource": resource, "max": amount} for resource, amount in limit_by_resource.items()]
        autoscaling["autoProvisioning"] = {"limits": resource_limits}
        requests = {"cpu": "4", "nvidia.com/gpu": 2}
        _add_queue(plan, "made", {"cpu": 64, "nvidia.com/gpu": 8})
        node_selector = {"cloud.google.com/gke-accelerator": "nvidia-l4"}
        plan.targets.append(PodTarget("made", requests, node_selector, ("nvidia.com/gpu",)))
    spec: ObjectDict = {"region": "z", "zones": list(ZONES), "nodePools": plan.pools, "autoscaling": autoscaling}
    if rng.draw_bool(40):
        types = dict.fromkeys(pool["machineType"] for pool in plan.pools)
        spec["capacity"] = [{"machineType": name, "zone": ZONES[0], "count": rng.draw_integer(2, 8)} for name in types]
    if rng.draw_bool(25):
        spec["quotas"] = [{"name": "nvidia-l4", "limit": rng.draw_integer(2, 6)}, {"name": "cpus", "limit": 2000}]
    return make_object("cloud.batchyard.dev/v1alpha1", "Cluster", "c", spec=spec)


def _add_work(plan: ClusterWorldPlan, number: int) -> None:
    rng = plan.rng
    target = rng.choose(plan.targets)
    is_job_set = bool(target.host_count) or rng.draw_bool(30)
    name = f"w{number}"
    work_object = (
        _make_job_set(plan, name, target)
        if is_job_set
        else make_object("batch/v1", "Job", name, spec=_random_job_spec(plan, target))
    )
    metadata = work_object["metadata"]
    metadata["namespace"] = NAMESPACE
    annotations = metadata.setdefault("annotations", {})
    annotations[well_known.SUBMIT_AT] = f"{rng.draw_integer(0, ACTIVE_MINUTES * 60)}s"
    annotations[well_known.RUNTIME] = f"{rng.choose([30, rng.draw_integer(1, 1800)])}s"
    if rng.draw_bool(15):
        annotations[well_known.EXIT_CODE] = rng.choose(["1", "42"])
    if number % 2:
        annotations[well_known.CHECKPOINT_EVERY] = f"{60 + number}s"
    if rng.draw_bool(5):
        annotations[well_known.DELETE_AT] = f"{rng.draw_integer(1, ACTIVE_MINUTES)}m500ms"
    if target.queue != "fixed" or rng.draw_bool(80):
        metadata["labels"] = {well_known.QUEUE_NAME: target.queue}
    plan.objects.append(work_object)


def _random_job_spec(plan: ClusterWorldPlan, target: PodTarget) -> ObjectDict:
    rng = plan.rng
    parallelism = target.host_count or rng.draw_integer(1, 3)
    completions = parallelism if target.host_count else rng.draw_integer(parallelism, 4)
    template = _pod_template(plan, target)
    spec: ObjectDict = {"parallelism": parallelism, "completions": completions, "template": template}
    if rng.draw_bool(50):
        spec["completionMode"] = "Indexed"
    if rng.draw_bool(50):
        spec["backoffLimit"] = 0 if target.host_count else rng.draw_integer(0, 6)
    elif spec.get("completionMode") == "Indexed" and rng.draw_bool(30):
        spec["backoffLimitPerIndex"] = rng.draw_integer(0, 2)
    if rng.draw_bool(30):
        disruption = {"type": "DisruptionTarget", "status": "True"}
        failure_rules: list[ObjectDict] = [{"action": "Ignore", "onPodConditions": [disruption]}]
        if rng.draw_bool(50):
            failure_rules.append({"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}})
        spec["podFailurePolicy"] = {"rules": failure_rules}
    if rng.draw_bool(15):
        spec["ttlSecondsAfterFinished"] = 60
    return spec


def _pod_template(plan: ClusterWorldPlan, target: PodTarget) -> ObjectDict:
    requests = dict(target.requests)
    limits = {resource: amount for resource, amount in requests.items() if "/" in resource}
    container = {"name": "main", "image": "i", "resources": {"requests": requests, "limits": limits}}
    spec: ObjectDict = {"restartPolicy": "Never", "containers": [container], "nodeSelector": dict(target.selector)}
    if target.tolerations:
        spec["tolerations"] = [{"key": key, "operator": "Exists"} for key in target.tolerations]
    spec["priorityClassName"] = plan.rng.choose(["low", "low", "high"])
    return {"spec": spec}


def _make_job_set(plan: ClusterWorldPlan, name: str, target: PodTarget) -> ObjectDict:
    rng = plan.rng
    template = {"spec": _random_job_spec(plan, target)}
    spec: ObjectDict = {"replicatedJobs": [{"name": "r", "replicas": rng.draw_integer(1, 2), "template": template}]}
    if rng.draw_bool(60):
        spec["failurePolicy"] = {"maxRestarts": rng.draw_integer(0, 3)}
    template["spec"].pop("ttlSecondsAfterFinished", None)
    job_set = make_object("jobset.x-k8s.io/v1alpha2", "JobSet", name, spec=spec)
    if target.host_count:
        job_set["metadata"]["annotations"] = {well_known.EXCLUSIVE_TOPOLOGY: well_known.NODE_POOL}
    plan.job_sets.append(f"{NAMESPACE}/{name}")
    return job_set


def _random_faults(plan: ClusterWorldPlan, nodes: list[str]) -> list[ObjectDict]:
    rng, faults = plan.rng, []
    for _ in range(rng.draw_integer(0, 5)):
        make_fault = rng.choose(
            [
                _random_failure,
                _random_failure,
                _random_reclaim,
                _random_stockout,
                _random_slow_boot,
                _random_drain,
                _random_conflicts,
                _random_restart,
            ]
        )
        fault = make_fault(plan, nodes)
        is_repeatable = "restart" in fault or "fail" in fault
        if is_repeatable and rng.draw_bool(30):
            mean_interval = f"{rng.draw_integer(2, 30)}m"
            fault["every"] = {"mean": mean_interval, "seed": rng.draw_integer(0, 1000), "until": f"{ACTIVE_MINUTES}m"}
        else:
            fault["at"] = f"{rng.draw_integer(1, ACTIVE_MINUTES * 60)}s"
        faults.append(fault)
    return faults


def _random_failure(plan: ClusterWorldPlan, nodes: list[str]) -> ObjectDict:
    rng = plan.rng
    pool = rng.choose(plan.pools)["name"]
    count, node = rng.draw_integer(1, 2), rng.choose(nodes)
    failure_targets: list[ObjectDict] = [{"pool": pool, "count": count}, {"slice": pool}, {"node": node}]
    failure_targets += [{"jobSet": name} for name in plan.job_sets[:2]]
    return {"fail": rng.choose(failure_targets)}


def _random_reclaim(plan: ClusterWorldPlan, _: list[str]) -> ObjectDict:
    return {"reclaimSpot": {"pool": plan.pools[-1]["name"], "count": plan.rng.draw_integer(1, 2)}}


def _random_stockout(plan: ClusterWorldPlan, _: list[str]) -> ObjectDict:
    rng, pool = plan.rng, plan.rng.choose(plan.pools)
    stockout: ObjectDict = {"machine": pool["machineType"], "for": _random_duration(rng)}
    if rng.draw_bool(50):
        stockout["zone"] = rng.choose(ZONES)
    return {"stockout": stockout}


def _random_slow_boot(plan: ClusterWorldPlan, _: list[str]) -> ObjectDict:
    rng, pool = plan.rng, plan.rng.choose(plan.pools)
    slowdown_factor, duration = rng.draw_integer(2, 20), _random_duration(rng)
    return {"slowBoot": {"machine": pool["machineType"], "times": slowdown_factor, "for": duration}}


def _random_drain(plan: ClusterWorldPlan, nodes: list[str]) -> ObjectDict:
    return {"drain": {"node": plan.rng.choose(nodes), "for": _random_duration(plan.rng)}}


def _random_conflicts(plan: ClusterWorldPlan, _: list[str]) -> ObjectDict:
    return {"conflicts": {"percent": plan.rng.draw_integer(1, 40), "for": _random_duration(plan.rng)}}


def _random_restart(_plan: ClusterWorldPlan, _: list[str]) -> ObjectDict:
    return {"restart": True}


def _random_duration(rng: RandomChoices) -> str:
    return f"{rng.draw_integer(1, ACTIVE_MINUTES // 2)}m"
