"""Random worlds for tests: queues, loads and clusters by seed."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeVar

from batchyard.api import well_known
from batchyard.api.manifests import Manifest, Manifests, decode
from batchyard.base import invariant
from batchyard.sim.scenario import Scenario, make_scenario

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
        plan.objects.append(make_object(KUEUE, "WorkloadPriorityClass", name, value=value * 100))
    for number in range(plan.dice.many(bounds.workloads_max)):
        _make_work(plan, number)
    for _ in range(plan.dice.between(0, bounds.edits_max)):
        _make_edit(plan)
    return plan.fair_sharing, plan.objects


def make_object(api_version: str, kind: str, name: str, **fields: Any) -> ObjectDict:
    """Return an object with a name."""
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
        plan.objects.append(make_object(KUEUE, "ResourceFlavor", name, spec=spec))
    resources = dice.pick([["cpu"], ["cpu", "memory"], ["cpu", "pods"]])
    plan.groups = [(resources, names)]
    if dice.chance(25):
        plan.objects.append(make_object(KUEUE, "ResourceFlavor", "g0", spec={}))
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
            plan.objects.append(make_object(KUEUE, "Cohort", name, spec=spec))


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
    queue = make_object(KUEUE, "ClusterQueue", name, spec=spec)
    plan.queues.append(queue)
    plan.objects.append(queue)
    for local in range(dice.between(1, 2)):
        made = make_object(KUEUE, "LocalQueue", f"lq{number}-{local}", spec={"clusterQueue": name})
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
    return make_object(KUEUE, "Workload", name, spec=spec)


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
    job = make_object("batch/v1", "Job", name, spec=_job_spec(plan))
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
    job_set = make_object("jobset.x-k8s.io/v1alpha2", "JobSet", name, spec={"replicatedJobs": replicated})
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
    return _later(dice, make_object(KUEUE, "Cohort", name, spec={}), **spec)
