"""Random worlds with a cluster: pools of every kind, Jobs and JobSets that need their machines, and faults that end.

Lower draws give simpler worlds: all zeros give one pool of fixed size and one Job.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from batchyard.api import scheme, well_known
from batchyard.api.errors import FieldError
from batchyard.base import invariant
from batchyard.sim.faults import read_faults
from batchyard.sim.random_worlds import KUEUE, ObjectDict, RandomChoices, RandomSource, make_object, scenario_of
from batchyard.sim.scenario import Scenario
from batchyard.sim.world import World

NAMESPACE: Final = "team"
ZONES: Final = ("z-a", "z-b")
#: The time in minutes within which users act and faults begin; lasting faults take at most half of it.
ACTIVE_MINUTES: Final = 60
_L4: Final = "g2-standard-24"
_TPU: Final = "ct5lp-hightpu-4t"


@dataclass(frozen=True, slots=True)
class PodTarget:
    """Pods for certain machines: their requests, and their scheduling constraints."""

    queue: str
    requests: Mapping[str, Any]
    selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[str, ...] = ()
    #: The number of pods of a Job that must run on one slice.
    hosts: int = 0


@dataclass(slots=True)
class ClusterWorldPlan:
    """The world under construction."""

    dice: RandomChoices
    pools: list[ObjectDict] = field(default_factory=list)
    targets: list[PodTarget] = field(default_factory=list)
    #: All objects but the Cluster.
    objects: list[ObjectDict] = field(default_factory=list)
    job_sets: list[str] = field(default_factory=list)


def random_cluster_scenario(draws: RandomSource) -> Scenario:
    """Return a whole world with its users and its faults."""
    plan = ClusterWorldPlan(RandomChoices(draws))
    _make_pools(plan)
    cluster = _cluster(plan)
    for name, value in (("low", 100), ("high", 1000)):
        plan.objects.append(make_object("scheduling.k8s.io/v1", "PriorityClass", name, value=value))
    for number in range(plan.dice.many(8)):
        _work_for_cluster(plan, number)
    calm = scenario_of([cluster, *plan.objects])
    wrong: list[FieldError] = []
    faults = read_faults(_faults(plan, _first_nodes(calm)), wrong)
    invariant(not wrong, f"random faults are sound: {wrong}")
    return replace(calm, faults=tuple(faults), hotswap=plan.dice.chance(50))


def _first_nodes(scenario: Scenario) -> list[str]:
    """Return the names of the initial nodes."""
    world = World(scenario)
    world.run_until(0)
    return [node["metadata"]["name"] for node in world.objects(scheme.NODE)]


# The cluster and its queues.


def _make_pools(plan: ClusterWorldPlan) -> None:
    """Add a pool of fixed size, and some of other kinds, each with a queue for its pods."""
    dice = plan.dice
    plan.pools.append({"name": "fixed", "machineType": "e2-standard-4", "nodeCount": dice.between(1, 2)})
    _queue_of_cluster(plan, "fixed", {"cpu": dice.pick([12, 6, 3]), "memory": "64Gi"})
    plan.targets.append(PodTarget("fixed", {"cpu": "1"}, {well_known.NODE_POOL: "fixed"}))
    for make in (_make_elastic, _make_spot, _make_gpu, _make_slices, _make_queued):
        if dice.chance(50):
            make(plan)


def _make_elastic(plan: ClusterWorldPlan) -> None:
    dice = plan.dice
    bounds = {"totalMin": dice.pick([0, 0, 1]), "totalMax": dice.between(2, 6), "locationPolicy": "ANY"}
    plan.pools.append({"name": "elastic", "machineType": "n2-standard-4", "autoscaling": bounds})
    _queue_of_cluster(plan, "elastic", {"cpu": dice.pick([32, 8]), "memory": "256Gi"})
    pool = {well_known.NODE_POOL: "elastic"}
    plan.targets += [PodTarget("elastic", {"cpu": "2"}, pool), PodTarget("elastic", {"cpu": "1"})]


def _make_spot(plan: ClusterWorldPlan) -> None:
    dice = plan.dice
    taint = {"key": "spot", "value": "true", "effect": "NoSchedule"}
    pool: ObjectDict = {"name": "spot", "machineType": "n2-standard-4", "provisioning": "spot", "taints": [taint]}
    size: ObjectDict = {"autoscaling": {"min": 0, "max": dice.between(1, 3)}} if dice.chance(70) else {"nodeCount": 1}
    plan.pools.append({**pool, **size})
    _queue_of_cluster(plan, "spot", {"cpu": 16, "memory": "256Gi"}, nodeTaints=[taint])
    plan.targets.append(PodTarget("spot", {"cpu": "2"}, {well_known.NODE_POOL: "spot"}, ("spot",)))


def _make_gpu(plan: ClusterWorldPlan) -> None:
    dice = plan.dice
    bounds = {"totalMin": 0, "totalMax": dice.between(2, 6), "locationPolicy": dice.pick(["ANY", "BALANCED"])}
    plan.pools.append({"name": "gpu", "machineType": _L4, "autoscaling": bounds})
    _queue_of_cluster(plan, "gpu", {"cpu": 96, "nvidia.com/gpu": dice.pick([12, 12, 8, 4])})
    plan.targets += [
        PodTarget("gpu", {"cpu": "4", "nvidia.com/gpu": count}, {well_known.NODE_POOL: "gpu"}, ("nvidia.com/gpu",))
        for count in (1, 2)
    ]


def _make_slices(plan: ClusterWorldPlan) -> None:
    """Add slices of two machines, each a pool of its own."""
    dice = plan.dice
    size: ObjectDict = {"autoscaling": {"totalMin": 0, "totalMax": 2}} if dice.chance(40) else {"nodeCount": 2}
    for number in range(dice.between(1, 3)):
        pool = {"name": f"slice{number}", "machineType": _TPU, "tpuTopology": "2x4", "zones": [ZONES[0]], **size}
        plan.pools.append(pool)
    _queue_of_cluster(plan, "slices", {"cpu": 960, "google.com/tpu": dice.pick([24, 24, 16, 8])})
    selector = {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice",
        "cloud.google.com/gke-tpu-topology": "2x4",
    }
    plan.targets.append(PodTarget("slices", {"google.com/tpu": 4}, selector, ("google.com/tpu",), 2))


def _make_queued(plan: ClusterWorldPlan) -> None:
    """Add a pool with queued provisioning: all machines of a request are provided at once."""
    dice = plan.dice
    pool = {"name": "queued", "machineType": "n1-standard-4", "accelerator": {"type": "nvidia-tesla-t4", "count": 1}}
    bounds = {"totalMin": 0, "totalMax": dice.between(1, 4)}
    plan.pools.append({**pool, "zones": [ZONES[0]], "provisioning": "queued", "autoscaling": bounds})
    parameters = {"apiGroup": "kueue.x-k8s.io", "kind": "ProvisioningRequestConfig", "name": "dws"}
    check = {"controllerName": "kueue.x-k8s.io/provisioning-request", "parameters": parameters}
    config = {"provisioningClassName": "queued-provisioning.gke.io", "managedResources": ["nvidia.com/gpu"]}
    plan.objects += [
        make_object(KUEUE, "AdmissionCheck", "dws", spec=check),
        make_object(KUEUE, "ProvisioningRequestConfig", "dws", spec=config),
    ]
    _queue_of_cluster(plan, "queued", {"cpu": 64, "nvidia.com/gpu": dice.pick([6, 4, 2])}, checks=["dws"])
    requests = {"cpu": "1", "nvidia.com/gpu": 1}
    plan.targets.append(PodTarget("queued", requests, {well_known.NODE_POOL: "queued"}, ("nvidia.com/gpu",)))


def _queue_of_cluster(
    plan: ClusterWorldPlan, name: str, quotas: Mapping[str, Any], checks: Any = None, **flavor: Any
) -> None:
    resources = [{"name": resource, "nominalQuota": amount} for resource, amount in quotas.items()]
    group = {"coveredResources": list(quotas), "flavors": [{"name": name, "resources": resources}]}
    spec: ObjectDict = {"namespaceSelector": {}, "resourceGroups": [group]}
    spec["preemption"] = {"withinClusterQueue": plan.dice.pick(["Never", "LowerPriority"])}
    if checks:
        spec["admissionChecksStrategy"] = {"admissionChecks": [{"name": check} for check in checks]}
    local = make_object(KUEUE, "LocalQueue", name, spec={"clusterQueue": name})
    local["metadata"]["namespace"] = NAMESPACE
    plan.objects += [
        make_object(KUEUE, "ResourceFlavor", name, spec=flavor),
        make_object(KUEUE, "ClusterQueue", name, spec=spec),
        local,
    ]


def _cluster(plan: ClusterWorldPlan) -> ObjectDict:
    dice = plan.dice
    autoscaling: ObjectDict = {"profile": dice.pick(["balanced", "optimize-utilization"])}
    if dice.chance(40):
        most = {"cpu": 2000, "memory": 8000, "nvidia-l4": dice.pick([16, 8, 4])}
        limits = [{"resource": resource, "max": amount} for resource, amount in most.items()]
        autoscaling["autoProvisioning"] = {"limits": limits}
        requests = {"cpu": "4", "nvidia.com/gpu": 2}
        _queue_of_cluster(plan, "made", {"cpu": 64, "nvidia.com/gpu": 8})
        selector = {"cloud.google.com/gke-accelerator": "nvidia-l4"}
        plan.targets.append(PodTarget("made", requests, selector, ("nvidia.com/gpu",)))
    spec: ObjectDict = {"region": "z", "zones": list(ZONES), "nodePools": plan.pools, "autoscaling": autoscaling}
    if dice.chance(40):
        types = dict.fromkeys(pool["machineType"] for pool in plan.pools)
        spec["capacity"] = [{"machineType": name, "zone": ZONES[0], "count": dice.between(2, 8)} for name in types]
    if dice.chance(25):
        spec["quotas"] = [{"name": "nvidia-l4", "limit": dice.between(2, 6)}, {"name": "cpus", "limit": 2000}]
    return make_object("cloud.batchyard.dev/v1alpha1", "Cluster", "c", spec=spec)


# The users.


def _work_for_cluster(plan: ClusterWorldPlan, number: int) -> None:
    dice = plan.dice
    target = dice.pick(plan.targets)
    is_set = bool(target.hosts) or dice.chance(30)
    name = f"w{number}"
    work = (
        _job_set_for_cluster(plan, name, target)
        if is_set
        else make_object("batch/v1", "Job", name, spec=_spec_for_cluster(plan, target))
    )
    metadata = work["metadata"]
    metadata["namespace"] = NAMESPACE
    annotations = metadata.setdefault("annotations", {})
    annotations[well_known.SUBMIT_AT] = f"{dice.between(0, ACTIVE_MINUTES * 60)}s"
    annotations[well_known.RUNTIME] = f"{dice.pick([30, dice.between(1, 1800)])}s"
    if dice.chance(15):
        annotations[well_known.EXIT_CODE] = dice.pick(["1", "42"])
    if number % 2:
        annotations[well_known.CHECKPOINT_EVERY] = f"{60 + number}s"
    if dice.chance(5):
        annotations[well_known.DELETE_AT] = f"{dice.between(1, ACTIVE_MINUTES)}m500ms"
    if target.queue != "fixed" or dice.chance(80):
        metadata["labels"] = {well_known.QUEUE_NAME: target.queue}
    plan.objects.append(work)


def _spec_for_cluster(plan: ClusterWorldPlan, target: PodTarget) -> ObjectDict:
    """Return the spec of a Job. Those for slices have one pod on each machine."""
    dice = plan.dice
    parallelism = target.hosts or dice.between(1, 3)
    completions = parallelism if target.hosts else dice.between(parallelism, 4)
    spec: ObjectDict = {
        "parallelism": parallelism,
        "completions": completions,
        "template": _template_for_cluster(plan, target),
    }
    if dice.chance(50):
        spec["completionMode"] = "Indexed"
    if dice.chance(50):
        spec["backoffLimit"] = 0 if target.hosts else dice.between(0, 6)
    elif spec.get("completionMode") == "Indexed" and dice.chance(30):
        spec["backoffLimitPerIndex"] = dice.between(0, 2)
    if dice.chance(30):
        rules: list[ObjectDict] = [
            {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
        ]
        if dice.chance(50):
            rules.append({"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}})
        spec["podFailurePolicy"] = {"rules": rules}
    if dice.chance(15):
        spec["ttlSecondsAfterFinished"] = 60
    return spec


def _template_for_cluster(plan: ClusterWorldPlan, target: PodTarget) -> ObjectDict:
    requests = dict(target.requests)
    limits = {resource: amount for resource, amount in requests.items() if "/" in resource}
    container = {"name": "main", "image": "i", "resources": {"requests": requests, "limits": limits}}
    spec: ObjectDict = {"restartPolicy": "Never", "containers": [container], "nodeSelector": dict(target.selector)}
    if target.tolerations:
        spec["tolerations"] = [{"key": key, "operator": "Exists"} for key in target.tolerations]
    spec["priorityClassName"] = plan.dice.pick(["low", "low", "high"])
    return {"spec": spec}


def _job_set_for_cluster(plan: ClusterWorldPlan, name: str, target: PodTarget) -> ObjectDict:
    dice = plan.dice
    template = {"spec": _spec_for_cluster(plan, target)}
    spec: ObjectDict = {"replicatedJobs": [{"name": "r", "replicas": dice.between(1, 2), "template": template}]}
    if dice.chance(60):
        spec["failurePolicy"] = {"maxRestarts": dice.between(0, 3)}
    template["spec"].pop("ttlSecondsAfterFinished", None)
    job_set = make_object("jobset.x-k8s.io/v1alpha2", "JobSet", name, spec=spec)
    if target.hosts:
        job_set["metadata"]["annotations"] = {well_known.EXCLUSIVE_TOPOLOGY: well_known.NODE_POOL}
    plan.job_sets.append(f"{NAMESPACE}/{name}")
    return job_set


# Faults.


def _faults(plan: ClusterWorldPlan, nodes: list[str]) -> list[ObjectDict]:
    """Return faults of every kind, all of which end."""
    dice, faults = plan.dice, []
    for _ in range(dice.between(0, 5)):
        action = dice.pick([_failure, _failure, _reclaim, _stockout, _slow_boot, _drain, _conflicts, _restart])
        fault = action(plan, nodes)
        repeats = "restart" in fault or "fail" in fault
        if repeats and dice.chance(30):
            mean = f"{dice.between(2, 30)}m"
            fault["every"] = {"mean": mean, "seed": dice.between(0, 1000), "until": f"{ACTIVE_MINUTES}m"}
        else:
            fault["at"] = f"{dice.between(1, ACTIVE_MINUTES * 60)}s"
        faults.append(fault)
    return faults


def _failure(plan: ClusterWorldPlan, nodes: list[str]) -> ObjectDict:
    dice = plan.dice
    pool = dice.pick(plan.pools)["name"]
    choices: list[ObjectDict] = [
        {"pool": pool, "count": dice.between(1, 2)},
        {"slice": pool},
        {"node": dice.pick(nodes)},
    ]
    choices += [{"jobSet": name} for name in plan.job_sets[:2]]
    return {"fail": dice.pick(choices)}


def _reclaim(plan: ClusterWorldPlan, _: list[str]) -> ObjectDict:
    return {"reclaimSpot": {"pool": plan.pools[-1]["name"], "count": plan.dice.between(1, 2)}}


def _stockout(plan: ClusterWorldPlan, _: list[str]) -> ObjectDict:
    dice, pool = plan.dice, plan.dice.pick(plan.pools)
    stockout: ObjectDict = {"machine": pool["machineType"], "for": _a_while(dice)}
    if dice.chance(50):
        stockout["zone"] = dice.pick(ZONES)
    return {"stockout": stockout}


def _slow_boot(plan: ClusterWorldPlan, _: list[str]) -> ObjectDict:
    dice, pool = plan.dice, plan.dice.pick(plan.pools)
    return {"slowBoot": {"machine": pool["machineType"], "times": dice.between(2, 20), "for": _a_while(dice)}}


def _drain(plan: ClusterWorldPlan, nodes: list[str]) -> ObjectDict:
    return {"drain": {"node": plan.dice.pick(nodes), "for": _a_while(plan.dice)}}


def _conflicts(plan: ClusterWorldPlan, _: list[str]) -> ObjectDict:
    return {"conflicts": {"percent": plan.dice.between(1, 40), "for": _a_while(plan.dice)}}


def _restart(_plan: ClusterWorldPlan, _: list[str]) -> ObjectDict:
    return {"restart": True}


def _a_while(dice: RandomChoices) -> str:
    return f"{dice.between(1, ACTIVE_MINUTES // 2)}m"
