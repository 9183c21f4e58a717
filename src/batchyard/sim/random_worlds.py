"""Random worlds for tests: queues, loads and clusters by seed."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol, TypeVar

from batchyard.api import scheme, well_known
from batchyard.api.errors import FieldError
from batchyard.api.manifests import Manifest, Manifests, decode
from batchyard.base import invariant
from batchyard.sim.faults import read_faults
from batchyard.sim.scenario import Scenario, make_scenario
from batchyard.sim.world import World

# --- queues ---
#
# Random worlds: queues, Cohorts and flavors of every kind, and the actions of users, as a scenario.
#
# The random source is a parameter: a seed, or a property test that shrinks failures. Lower draws give simpler worlds:
# all zeros give one ClusterQueue and one Workload that fits.


T = TypeVar("T")
ObjectDict = dict[str, Any]

KUEUE: Final = "kueue.x-k8s.io/v1beta2"
NAMESPACES: Final = ("team", "other")
#: The time in seconds within which users act.
ACTIVE_SECONDS: Final = 90
_WITHIN_QUEUE: Final = ("Never", "LowerPriority", "LowerOrNewerEqualPriority")
_RECLAIM: Final = ("Never", "LowerPriority", "Any")
_SEARCH: Final = ("MayStopSearch", "TryNextFlavor")


class RandomSource(Protocol):
    """A source of random numbers."""

    def below(self, bound: int) -> int:
        """Return an integer from 0 up to, not including, the bound."""


class SeededDraws:
    """Random numbers that depend on the seed alone."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._drawn = 0

    def below(self, bound: int) -> int:
        """Return an integer from 0 up to, not including, the bound."""
        self._drawn += 1
        digest = hashlib.blake2b(f"{self._seed}/{self._drawn}".encode(), digest_size=8).digest()
        return int.from_bytes(digest) % bound


class RandomChoices:
    """Random choices. A draw of zero gives the first choice, or the smallest number."""

    def __init__(self, draws: RandomSource) -> None:
        self._draws = draws

    def between(self, low: int, high: int) -> int:
        """Return an integer, both ends included."""
        return low + self._draws.below(high - low + 1)

    def pick(self, choices: Sequence[T]) -> T:
        """Return one of several choices."""
        return choices[self._draws.below(len(choices))]

    def many(self, most: int) -> int:
        """Return an integer from 1 to `most`, with larger ones more likely."""
        return 1 + max(self._draws.below(most), self._draws.below(most))

    def chance(self, percent: int) -> bool:
        """Return True with a probability in percent."""
        return self._draws.below(100) >= 100 - percent


@dataclass(frozen=True, slots=True)
class WorldBounds:
    """The limits of a world's size."""

    queues_max: int = 5
    workloads_max: int = 24
    edits_max: int = 6
    #: None: random.
    fair_sharing: bool | None = None


@dataclass(slots=True)
class QueueWorldPlan:
    """The world under construction."""

    dice: RandomChoices
    fair_sharing: bool = False
    #: Resource groups: the resources, and the flavors that may provide them.
    groups: list[tuple[list[str], list[str]]] = field(default_factory=list)
    cohorts: list[str] = field(default_factory=list)
    queues: list[ObjectDict] = field(default_factory=list)
    local_queues: list[ObjectDict] = field(default_factory=list)
    work: list[ObjectDict] = field(default_factory=list)
    objects: list[ObjectDict] = field(default_factory=list)


def random_scenario(draws: RandomSource, bounds: WorldBounds | None = None) -> Scenario:
    """Return a whole world with its users."""
    fair_sharing, objects = random_objects(draws, bounds or WorldBounds())
    return scenario_of(objects, fair_sharing=fair_sharing)


def scenario_of(objects: Sequence[Mapping[str, Any]], *, fair_sharing: bool = False) -> Scenario:
    """Return the scenario of objects as in manifests."""
    manifests = Manifests()
    config = {"apiVersion": "sim.batchyard.dev/v1alpha1", "kind": "Scenario", "metadata": {"name": "random"}}
    for number, written in enumerate([{**config, "spec": {"fairSharing": fair_sharing}}, *objects]):
        decoded = decode(written)
        invariant(decoded.obj is not None, f"random objects are sound: {decoded.faults}")
        assert decoded.obj is not None
        manifests.objects.append(Manifest(decoded.obj, "random", number))
    return make_scenario(manifests)


def random_objects(draws: RandomSource, bounds: WorldBounds) -> tuple[bool, list[ObjectDict]]:
    """Return whether fair sharing is on, and all objects in manifest order."""
    plan = QueueWorldPlan(RandomChoices(draws))
    plan.fair_sharing = plan.dice.chance(35) if bounds.fair_sharing is None else bounds.fair_sharing
    _make_flavors(plan)
    _make_cohorts(plan)
    for number in range(plan.dice.many(bounds.queues_max)):
        _make_queue(plan, number)
    for value, name in enumerate(("low", "middle", "high")):
        plan.objects.append(_object(KUEUE, "WorkloadPriorityClass", name, value=value * 100))
    for number in range(plan.dice.many(bounds.workloads_max)):
        _make_work(plan, number)
    for _ in range(plan.dice.between(0, bounds.edits_max)):
        _make_edit(plan)
    return plan.fair_sharing, plan.objects


def _object(api_version: str, kind: str, name: str, **fields: Any) -> ObjectDict:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": name}, **fields}


# The platform.


def _make_flavors(plan: QueueWorldPlan) -> None:
    """Add flavors with labels and taints, and choose the resource groups."""
    dice = plan.dice
    names = [f"f{n}" for n in range(dice.between(1, 3))]
    for number, name in enumerate(names):
        spec: ObjectDict = {}
        if dice.chance(30):
            spec["nodeLabels"] = {"zone": "ab"[number % 2]}
        if dice.chance(15):
            spec["nodeTaints"] = [{"key": "spot", "value": "true", "effect": "NoSchedule"}]
        plan.objects.append(_object(KUEUE, "ResourceFlavor", name, spec=spec))
    resources = dice.pick([["cpu"], ["cpu", "memory"], ["cpu", "pods"]])
    plan.groups = [(resources, names)]
    if dice.chance(25):
        plan.objects.append(_object(KUEUE, "ResourceFlavor", "g0", spec={}))
        plan.groups.append((["example.com/gpu"], ["g0"]))


def _make_cohorts(plan: QueueWorldPlan) -> None:
    """Add a forest of Cohorts, some of them implicit."""
    dice = plan.dice
    for number in range(dice.pick([0, 1, 1, 1, 2, 3, 4])):
        name, spec = f"c{number}", dict[str, Any]()
        parent = dice.pick([*plan.cohorts, ""]) if plan.cohorts else ""
        if parent:
            spec["parentName"] = parent
        if dice.chance(40):
            spec["resourceGroups"] = _quotas(plan, limits=bool(parent), most=6)
        if dice.chance(25):
            spec["fairSharing"] = {"weight": dice.pick(["1", "2", "0.5", "0"])}
        plan.cohorts.append(name)
        if spec or dice.chance(50):
            plan.objects.append(_object(KUEUE, "Cohort", name, spec=spec))


def _quotas(plan: QueueWorldPlan, *, limits: bool, most: int, lends_own: bool = True) -> list[ObjectDict]:
    """Return resource groups with quotas; with `lends_own` the lending limit is at most the nominal quota."""
    dice, groups = plan.dice, []
    for resources, names in plan.groups:
        chosen = [name for name in names if not dice.chance(25)] or names[:1]
        if dice.chance(20):
            chosen.reverse()
        flavors = [
            {"name": name, "resources": [_quota(dice, r, limits=limits, most=most, own=lends_own) for r in resources]}
            for name in chosen
        ]
        groups.append({"coveredResources": resources, "flavors": flavors})
    return groups


def _quota(dice: RandomChoices, resource: str, *, limits: bool, most: int, own: bool) -> ObjectDict:
    nominal = dice.pick([most, dice.between(0, most)])
    quota: ObjectDict = {"name": resource, "nominalQuota": _amount(resource, nominal)}
    if limits and dice.chance(20):
        quota["borrowingLimit"] = _amount(resource, dice.between(0, 6))
    if limits and dice.chance(25):
        quota["lendingLimit"] = _amount(resource, dice.between(0, nominal if own else 8))
    return quota


def _amount(resource: str, units: int) -> str | int:
    return f"{units}Gi" if resource == "memory" else units


def _make_queue(plan: QueueWorldPlan, number: int) -> None:
    dice, name = plan.dice, f"q{number}"
    spec: ObjectDict = {"namespaceSelector": {}}
    cohort = dice.pick([*plan.cohorts, *plan.cohorts, *plan.cohorts, ""])
    if cohort:
        spec["cohortName"] = cohort
    spec["resourceGroups"] = _quotas(plan, limits=bool(cohort), most=10)
    if dice.chance(30):
        spec["queueingStrategy"] = "StrictFIFO"
    spec["preemption"] = _preemption(dice, fair_sharing=plan.fair_sharing)
    if dice.chance(50):
        spec["flavorFungibility"] = _fungibility(dice)
    if dice.chance(30):
        spec["fairSharing"] = {"weight": dice.pick(["2", "0.5", "3", "0"])}
    if dice.chance(5):
        spec["namespaceSelector"] = {"matchLabels": {"kubernetes.io/metadata.name": NAMESPACES[0]}}
    queue = _object(KUEUE, "ClusterQueue", name, spec=spec)
    plan.queues.append(queue)
    plan.objects.append(queue)
    for local in range(dice.between(1, 2)):
        made = _object(KUEUE, "LocalQueue", f"lq{number}-{local}", spec={"clusterQueue": name})
        made["metadata"]["namespace"] = dice.pick([NAMESPACES[0], *NAMESPACES])
        plan.local_queues.append(made)
        plan.objects.append(made)


def _preemption(dice: RandomChoices, *, fair_sharing: bool) -> ObjectDict:
    reclaim = dice.pick(_RECLAIM)
    policies: ObjectDict = {"withinClusterQueue": dice.pick(_WITHIN_QUEUE), "reclaimWithinCohort": reclaim}
    if reclaim != "Never" and not fair_sharing and dice.chance(60):
        borrow: ObjectDict = {"policy": "LowerPriority"}
        if dice.chance(50):
            borrow["maxPriorityThreshold"] = dice.pick([0, 100])
        policies["borrowWithinCohort"] = borrow
    return policies


def _fungibility(dice: RandomChoices) -> ObjectDict:
    rules: ObjectDict = {"whenCanBorrow": dice.pick(_SEARCH), "whenCanPreempt": dice.pick(_SEARCH)}
    if (rules["whenCanBorrow"], rules["whenCanPreempt"]) == ("TryNextFlavor", "TryNextFlavor") and dice.chance(50):
        rules["preference"] = dice.pick(["BorrowingOverPreemption", "PreemptionOverBorrowing"])
    return rules


# The users.


def _make_work(plan: QueueWorldPlan, number: int) -> None:
    dice = plan.dice
    kind = dice.pick(["Workload"] * 7 + ["Job"] * 2 + ["JobSet"])
    local = dice.pick(plan.local_queues)
    make = {"Workload": _workload, "Job": _job, "JobSet": _job_set}[kind]
    obj = make(plan, f"w{number:02}", local["metadata"]["name"])
    annotations = obj["metadata"].setdefault("annotations", {})
    annotations[well_known.SUBMIT_AT] = f"{dice.between(1, ACTIVE_SECONDS * 10) * 100}ms"
    if kind != "Workload" or dice.chance(85):
        annotations[well_known.RUNTIME] = f"{dice.between(1, 60)}s"
    if dice.chance(8):
        annotations[well_known.DELETE_AT] = f"{dice.between(1, ACTIVE_SECONDS)}.05s"
    obj["metadata"]["namespace"] = local["metadata"]["namespace"]
    plan.work.append(obj)
    plan.objects.append(obj)


def _workload(plan: QueueWorldPlan, name: str, queue: str) -> ObjectDict:
    dice = plan.dice
    pod_sets = []
    for number in range(dice.pick([1, 1, 1, 1, 2])):
        pod_set: ObjectDict = {"name": f"p{number}", "count": dice.pick([1, 1, 2, 3, 4]), "template": _template(plan)}
        if number == 0 and pod_set["count"] > 1 and dice.chance(25):
            pod_set["minCount"] = dice.between(1, pod_set["count"] - 1)
        pod_sets.append(pod_set)
    spec: ObjectDict = {"queueName": queue, "priority": dice.pick([0, 0, 100, 200]), "podSets": pod_sets}
    return _object(KUEUE, "Workload", name, spec=spec)


def _template(plan: QueueWorldPlan) -> ObjectDict:
    dice = plan.dice
    requests: ObjectDict = {}
    for resources, _ in plan.groups:
        for resource in resources:
            if resource != "pods" and not (requests and dice.chance(40)):
                requests[resource] = _amount(resource, dice.pick([1, 1, 2, 3, 5]))
    limits = {resource: amount for resource, amount in requests.items() if "/" in resource}
    container = {"name": "main", "image": "pause", "resources": {"requests": requests, "limits": limits}}
    spec: ObjectDict = {"restartPolicy": "Never", "containers": [container]}
    if dice.chance(15):
        spec["nodeSelector"] = {"zone": dice.pick(["a", "b"])}
    if dice.chance(30):
        spec["tolerations"] = [{"key": "spot", "operator": "Exists"}]
    return {"spec": spec}


def _job_spec(plan: QueueWorldPlan) -> ObjectDict:
    parallelism = plan.dice.between(1, 3)
    return {"parallelism": parallelism, "completions": parallelism, "template": _template(plan)}


def _job(plan: QueueWorldPlan, name: str, queue: str) -> ObjectDict:
    job = _object("batch/v1", "Job", name, spec=_job_spec(plan))
    job["metadata"]["labels"] = _labels(plan.dice, queue)
    if job["spec"]["parallelism"] > 1 and plan.dice.chance(30):
        job["metadata"]["annotations"] = {well_known.MIN_PARALLELISM: "1"}
    return job


def _job_set(plan: QueueWorldPlan, name: str, queue: str) -> ObjectDict:
    dice = plan.dice
    replicated = [
        {"name": f"r{n}", "replicas": dice.between(1, 2), "template": {"spec": _job_spec(plan)}}
        for n in range(dice.between(1, 2))
    ]
    job_set = _object("jobset.x-k8s.io/v1alpha2", "JobSet", name, spec={"replicatedJobs": replicated})
    job_set["metadata"]["labels"] = _labels(dice, queue)
    return job_set


def _labels(dice: RandomChoices, queue: str) -> dict[str, str]:
    return {well_known.QUEUE_NAME: queue, well_known.PRIORITY_CLASS: dice.pick(["low", "middle", "high"])}


# Changes during the run.


def _make_edit(plan: QueueWorldPlan) -> None:
    """Add a later version of an object, or its deletion."""
    dice = plan.dice
    edit = dice.pick([_edit_quota, _edit_quota, _stop_queue, _stop_local_queue, _deactivate, _edit_cohort])
    changed = edit(plan)
    if changed is not None:
        plan.objects.append(changed)


def _later(dice: RandomChoices, obj: ObjectDict, at: str = "", **spec: Any) -> ObjectDict:
    """Return a later version of an object, with changed fields in its spec."""
    metadata = obj["metadata"]
    moment = at or f"{dice.between(1, ACTIVE_SECONDS)}.07s"
    annotations = {**metadata.get("annotations", {}), well_known.SUBMIT_AT: moment}
    return {**obj, "metadata": {**metadata, "annotations": annotations}, "spec": {**obj["spec"], **spec}}


def _edit_quota(plan: QueueWorldPlan) -> ObjectDict:
    queue = plan.dice.pick(plan.queues)
    limits = "cohortName" in queue["spec"]
    return _later(plan.dice, queue, resourceGroups=_quotas(plan, limits=limits, most=10))


def _stop_queue(plan: QueueWorldPlan) -> ObjectDict:
    dice, queue = plan.dice, plan.dice.pick(plan.queues)
    if dice.chance(70):
        plan.objects.append(_later(dice, queue, f"{ACTIVE_SECONDS}.09s", stopPolicy="None"))
    return _later(dice, queue, stopPolicy=dice.pick(["Hold", "HoldAndDrain"]))


def _stop_local_queue(plan: QueueWorldPlan) -> ObjectDict:
    dice, local = plan.dice, plan.dice.pick(plan.local_queues)
    if dice.chance(30):
        local["metadata"]["annotations"] = {well_known.DELETE_AT: f"{dice.between(1, ACTIVE_SECONDS)}.03s"}
    elif dice.chance(60):
        plan.objects.append(_later(dice, local, f"{ACTIVE_SECONDS}.08s", stopPolicy="None"))
    return _later(dice, local, stopPolicy=dice.pick(["Hold", "HoldAndDrain"]))


def _deactivate(plan: QueueWorldPlan) -> ObjectDict | None:
    bare = [work for work in plan.work if work["kind"] == "Workload"]
    return _later(plan.dice, plan.dice.pick(bare), f"{ACTIVE_SECONDS}.1s", active=False) if bare else None


def _edit_cohort(plan: QueueWorldPlan) -> ObjectDict | None:
    """Return a Cohort with other quotas or another parent, which may close a cycle."""
    if not plan.cohorts:
        return None
    dice, name = plan.dice, plan.dice.pick(plan.cohorts)
    parent = dice.pick([*plan.cohorts, ""])
    spec: ObjectDict = {"resourceGroups": _quotas(plan, limits=bool(parent), most=6, lends_own=False)}
    if parent:
        spec["parentName"] = parent
    return _later(dice, _object(KUEUE, "Cohort", name, spec={}), **spec)


# --- cluster ---
#
# Random worlds with a cluster: pools of every kind, Jobs and JobSets that need their machines, and faults that end.
#
# Lower draws give simpler worlds: all zeros give one pool of fixed size and one Job.


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
        plan.objects.append(_object("scheduling.k8s.io/v1", "PriorityClass", name, value=value))
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
        _object(KUEUE, "AdmissionCheck", "dws", spec=check),
        _object(KUEUE, "ProvisioningRequestConfig", "dws", spec=config),
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
    local = _object(KUEUE, "LocalQueue", name, spec={"clusterQueue": name})
    local["metadata"]["namespace"] = NAMESPACE
    plan.objects += [
        _object(KUEUE, "ResourceFlavor", name, spec=flavor),
        _object(KUEUE, "ClusterQueue", name, spec=spec),
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
    return _object("cloud.batchyard.dev/v1alpha1", "Cluster", "c", spec=spec)


# The users.


def _work_for_cluster(plan: ClusterWorldPlan, number: int) -> None:
    dice = plan.dice
    target = dice.pick(plan.targets)
    is_set = bool(target.hosts) or dice.chance(30)
    name = f"w{number}"
    work = (
        _job_set_for_cluster(plan, name, target)
        if is_set
        else _object("batch/v1", "Job", name, spec=_spec_for_cluster(plan, target))
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
    job_set = _object("jobset.x-k8s.io/v1alpha2", "JobSet", name, spec=spec)
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
