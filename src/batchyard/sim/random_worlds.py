"""Random scenarios for tests: queues, Cohorts, flavors, and users who change them, without nodes."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeVar

from batchyard.api import well_known
from batchyard.api.manifests import Manifest, Manifests, decode
from batchyard.base.primitives import invariant
from batchyard.sim.scenario import Scenario, make_scenario

# The source of random numbers is a parameter: a seed, or a property test that shrinks failures. Smaller numbers give
# simpler worlds: zeros alone give one ClusterQueue and one Workload that fits.


T = TypeVar("T")
ObjectDict = dict[str, Any]

KUEUE_API: Final = "kueue.x-k8s.io/v1beta2"
NAMESPACES: Final = ("team", "other")
#: The time in seconds within which users act.
ACTIVE_SECONDS: Final = 90
_WITHIN_QUEUE: Final = ("Never", "LowerPriority", "LowerOrNewerEqualPriority")
_RECLAIM_POLICIES: Final = ("Never", "LowerPriority", "Any")
_FUNGIBILITY_POLICIES: Final = ("MayStopSearch", "TryNextFlavor")


class RandomSource(Protocol):
    """A source of random numbers."""

    def draw_below(self, stop: int) -> int:
        """Return a random integer from 0 to `stop` - 1."""


class SeededDraws:
    """A source of reproducible random numbers, which depend on a seed alone."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._draw_count = 0

    def draw_below(self, stop: int) -> int:
        """Return a random integer from 0 to `stop` - 1."""
        self._draw_count += 1
        digest = hashlib.blake2b(f"{self._seed}/{self._draw_count}".encode(), digest_size=8).digest()
        return int.from_bytes(digest) % stop


class RandomChoices:
    """Makes random choices from the numbers of a RandomSource.

    The number 0 selects the first item, the smallest integer or False, so that property tests can shrink failures.
    """

    def __init__(self, draws: RandomSource) -> None:
        self._draws = draws

    def draw_integer(self, minimum: int, maximum: int) -> int:
        """Return a random integer between two bounds, both included."""
        return minimum + self._draws.draw_below(maximum - minimum + 1)

    def choose(self, choices: Sequence[T]) -> T:
        """Return a random one of several choices."""
        return choices[self._draws.draw_below(len(choices))]

    def draw_count(self, maximum: int) -> int:
        """Return a random integer from 1 to a maximum; larger integers are more likely."""
        return 1 + max(self._draws.draw_below(maximum), self._draws.draw_below(maximum))

    def draw_bool(self, percent: int) -> bool:
        """Return True with a probability of `percent` percent, else False."""
        return self._draws.draw_below(100) >= 100 - percent


@dataclass(frozen=True, slots=True)
class WorldBounds:
    """The maximum numbers of queues, Workloads and later changes in a random scenario."""

    queues_max: int = 5
    workloads_max: int = 24
    edits_max: int = 6
    #: Whether fair sharing is on; None: random.
    fair_sharing: bool | None = None


@dataclass(slots=True)
class QueueWorldPlan:
    """The objects of a random scenario while they are generated."""

    rng: RandomChoices
    fair_sharing: bool = False
    #: Resource groups: the resources, and the flavors that may provide them.
    groups: list[tuple[list[str], list[str]]] = field(default_factory=list)
    cohorts: list[str] = field(default_factory=list)
    queues: list[ObjectDict] = field(default_factory=list)
    local_queues: list[ObjectDict] = field(default_factory=list)
    work_objects: list[ObjectDict] = field(default_factory=list)
    objects: list[ObjectDict] = field(default_factory=list)


def random_scenario(draws: RandomSource, bounds: WorldBounds | None = None) -> Scenario:
    """Return a random scenario with queues, Workloads, and later changes by users."""
    fair_sharing, objects = random_objects(draws, bounds or WorldBounds())
    return scenario_of(objects, fair_sharing=fair_sharing)


def scenario_of(
    objects: Sequence[Mapping[str, Any]], *, fair_sharing: bool = False, settings: Mapping[str, Any] | None = None
) -> Scenario:
    """Return the scenario of the manifests `objects`; `settings` are further fields of the Scenario's spec.

    Raise InvariantError if a manifest is invalid, and InvalidScenario if the manifests do not form a valid scenario.
    """
    manifests = Manifests()
    config = {"apiVersion": "sim.batchyard.dev/v1alpha1", "kind": "Scenario", "metadata": {"name": "random"}}
    spec = {"fairSharing": fair_sharing, **(settings or {})}
    for number, manifest in enumerate([{**config, "spec": spec}, *objects]):
        decoded_object = decode(manifest)
        invariant(decoded_object.obj is not None, f"the random manifest is invalid: {decoded_object.faults}")
        assert decoded_object.obj is not None
        manifests.objects.append(Manifest(decoded_object.obj, "random", number))
    return make_scenario(manifests)


def random_objects(draws: RandomSource, bounds: WorldBounds) -> tuple[bool, list[ObjectDict]]:
    """Return whether fair sharing is on, and random manifests of queues, Workloads, jobs, and later changes."""
    plan = QueueWorldPlan(RandomChoices(draws))
    plan.fair_sharing = plan.rng.draw_bool(35) if bounds.fair_sharing is None else bounds.fair_sharing
    _make_flavors(plan)
    _make_cohorts(plan)
    for number in range(plan.rng.draw_count(bounds.queues_max)):
        _make_queue(plan, number)
    for index, name in enumerate(("low", "middle", "high")):
        plan.objects.append(make_object(KUEUE_API, "WorkloadPriorityClass", name, value=index * 100))
    for number in range(plan.rng.draw_count(bounds.workloads_max)):
        _make_work(plan, number)
    for _ in range(plan.rng.draw_integer(0, bounds.edits_max)):
        _make_edit(plan)
    return plan.fair_sharing, plan.objects


def make_object(api_version: str, kind: str, name: str, **fields: Any) -> ObjectDict:
    """Return a manifest with this kind and name, and with `fields` as further top-level fields."""
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": name}, **fields}


def _make_flavors(plan: QueueWorldPlan) -> None:
    rng = plan.rng
    names = [f"f{n}" for n in range(rng.draw_integer(1, 3))]
    for number, name in enumerate(names):
        spec: ObjectDict = {}
        if rng.draw_bool(30):
            spec["nodeLabels"] = {"zone": "ab"[number % 2]}
        if rng.draw_bool(15):
            spec["nodeTaints"] = [{"key": "spot", "value": "true", "effect": "NoSchedule"}]
        plan.objects.append(make_object(KUEUE_API, "ResourceFlavor", name, spec=spec))
    resources = rng.choose([["cpu"], ["cpu", "memory"], ["cpu", "pods"]])
    plan.groups = [(resources, names)]
    if rng.draw_bool(25):
        plan.objects.append(make_object(KUEUE_API, "ResourceFlavor", "g0", spec={}))
        plan.groups.append((["example.com/gpu"], ["g0"]))


def _make_cohorts(plan: QueueWorldPlan) -> None:
    """Add random trees of Cohorts; some Cohorts exist only by name, without an object."""
    rng = plan.rng
    for number in range(rng.choose([0, 1, 1, 1, 2, 3, 4])):
        name, spec = f"c{number}", dict[str, Any]()
        parent = rng.choose([*plan.cohorts, ""]) if plan.cohorts else ""
        if parent:
            spec["parentName"] = parent
        if rng.draw_bool(40):
            spec["resourceGroups"] = _resource_groups(plan, has_limits=bool(parent), quota_max=6)
        if rng.draw_bool(25):
            spec["fairSharing"] = {"weight": rng.choose(["1", "2", "0.5", "0"])}
        plan.cohorts.append(name)
        if spec or rng.draw_bool(50):
            plan.objects.append(make_object(KUEUE_API, "Cohort", name, spec=spec))


def _resource_groups(
    plan: QueueWorldPlan, *, has_limits: bool, quota_max: int, caps_lending: bool = True
) -> list[ObjectDict]:
    """Return random resource groups; with `has_limits`, some quotas have borrowing and lending limits.

    With `caps_lending`, no lending limit exceeds the nominal quota.
    """
    rng, groups = plan.rng, []
    for resources, names in plan.groups:
        chosen_names = [name for name in names if not rng.draw_bool(25)] or names[:1]
        if rng.draw_bool(20):
            chosen_names.reverse()
        flavors = [
            {
                "name": name,
                "resources": [
                    _resource_quota(rng, r, has_limits=has_limits, quota_max=quota_max, caps_lending=caps_lending)
                    for r in resources
                ],
            }
            for name in chosen_names
        ]
        groups.append({"coveredResources": resources, "flavors": flavors})
    return groups


def _resource_quota(
    rng: RandomChoices, resource: str, *, has_limits: bool, quota_max: int, caps_lending: bool
) -> ObjectDict:
    nominal_units = rng.choose([quota_max, rng.draw_integer(0, quota_max)])
    quota: ObjectDict = {"name": resource, "nominalQuota": _format_quantity(resource, nominal_units)}
    if has_limits and rng.draw_bool(20):
        quota["borrowingLimit"] = _format_quantity(resource, rng.draw_integer(0, 6))
    if has_limits and rng.draw_bool(25):
        quota["lendingLimit"] = _format_quantity(resource, rng.draw_integer(0, nominal_units if caps_lending else 8))
    return quota


def _format_quantity(resource: str, unit_count: int) -> str | int:
    return f"{unit_count}Gi" if resource == "memory" else unit_count


def _make_queue(plan: QueueWorldPlan, number: int) -> None:
    rng, name = plan.rng, f"q{number}"
    spec: ObjectDict = {"namespaceSelector": {}}
    cohort = rng.choose([*plan.cohorts, *plan.cohorts, *plan.cohorts, ""])
    if cohort:
        spec["cohortName"] = cohort
    spec["resourceGroups"] = _resource_groups(plan, has_limits=bool(cohort), quota_max=10)
    if rng.draw_bool(30):
        spec["queueingStrategy"] = "StrictFIFO"
    spec["preemption"] = _random_preemption(rng, fair_sharing=plan.fair_sharing)
    if rng.draw_bool(50):
        spec["flavorFungibility"] = _random_fungibility(rng)
    if rng.draw_bool(30):
        spec["fairSharing"] = {"weight": rng.choose(["2", "0.5", "3", "0"])}
    if rng.draw_bool(5):
        spec["namespaceSelector"] = {"matchLabels": {"kubernetes.io/metadata.name": NAMESPACES[0]}}
    queue = make_object(KUEUE_API, "ClusterQueue", name, spec=spec)
    plan.queues.append(queue)
    plan.objects.append(queue)
    for number_of_local in range(rng.draw_integer(1, 2)):
        local_queue = make_object(KUEUE_API, "LocalQueue", f"lq{number}-{number_of_local}", spec={"clusterQueue": name})
        local_queue["metadata"]["namespace"] = rng.choose([NAMESPACES[0], *NAMESPACES])
        plan.local_queues.append(local_queue)
        plan.objects.append(local_queue)


def _random_preemption(rng: RandomChoices, *, fair_sharing: bool) -> ObjectDict:
    reclaim_policy = rng.choose(_RECLAIM_POLICIES)
    policies: ObjectDict = {"withinClusterQueue": rng.choose(_WITHIN_QUEUE), "reclaimWithinCohort": reclaim_policy}
    if reclaim_policy != "Never" and not fair_sharing and rng.draw_bool(60):
        borrow_within_cohort: ObjectDict = {"policy": "LowerPriority"}
        if rng.draw_bool(50):
            borrow_within_cohort["maxPriorityThreshold"] = rng.choose([0, 100])
        policies["borrowWithinCohort"] = borrow_within_cohort
    return policies


def _random_fungibility(rng: RandomChoices) -> ObjectDict:
    borrow_policy, preempt_policy = rng.choose(_FUNGIBILITY_POLICIES), rng.choose(_FUNGIBILITY_POLICIES)
    rules: ObjectDict = {"whenCanBorrow": borrow_policy, "whenCanPreempt": preempt_policy}
    if (rules["whenCanBorrow"], rules["whenCanPreempt"]) == ("TryNextFlavor", "TryNextFlavor") and rng.draw_bool(50):
        rules["preference"] = rng.choose(["BorrowingOverPreemption", "PreemptionOverBorrowing"])
    return rules


def _make_work(plan: QueueWorldPlan, number: int) -> None:
    rng = plan.rng
    kind = rng.choose(["Workload"] * 7 + ["Job"] * 2 + ["JobSet"])
    local_queue = rng.choose(plan.local_queues)
    make_manifest = {"Workload": _random_workload, "Job": _random_job, "JobSet": _random_job_set}[kind]
    obj = make_manifest(plan, f"w{number:02}", local_queue["metadata"]["name"])
    annotations = obj["metadata"].setdefault("annotations", {})
    annotations[well_known.SUBMIT_AT] = f"{rng.draw_integer(1, ACTIVE_SECONDS * 10) * 100}ms"
    if kind != "Workload" or rng.draw_bool(85):
        annotations[well_known.RUNTIME] = f"{rng.draw_integer(1, 60)}s"
    if rng.draw_bool(8):
        annotations[well_known.DELETE_AT] = f"{rng.draw_integer(1, ACTIVE_SECONDS)}.05s"
    obj["metadata"]["namespace"] = local_queue["metadata"]["namespace"]
    plan.work_objects.append(obj)
    plan.objects.append(obj)


def _random_workload(plan: QueueWorldPlan, name: str, queue: str) -> ObjectDict:
    rng = plan.rng
    pod_sets = []
    for number in range(rng.choose([1, 1, 1, 1, 2])):
        pod_set: ObjectDict = {
            "name": f"p{number}",
            "count": rng.choose([1, 1, 2, 3, 4]),
            "template": _random_pod_template(plan),
        }
        if number == 0 and pod_set["count"] > 1 and rng.draw_bool(25):
            pod_set["minCount"] = rng.draw_integer(1, pod_set["count"] - 1)
        pod_sets.append(pod_set)
    spec: ObjectDict = {"queueName": queue, "priority": rng.choose([0, 0, 100, 200]), "podSets": pod_sets}
    return make_object(KUEUE_API, "Workload", name, spec=spec)


def _random_pod_template(plan: QueueWorldPlan) -> ObjectDict:
    rng = plan.rng
    requests: ObjectDict = {}
    for resources, _ in plan.groups:
        for resource in resources:
            if resource != "pods" and not (requests and rng.draw_bool(40)):
                requests[resource] = _format_quantity(resource, rng.choose([1, 1, 2, 3, 5]))
    limits = {resource: amount for resource, amount in requests.items() if "/" in resource}
    container = {"name": "main", "image": "pause", "resources": {"requests": requests, "limits": limits}}
    spec: ObjectDict = {"restartPolicy": "Never", "containers": [container]}
    if rng.draw_bool(15):
        spec["nodeSelector"] = {"zone": rng.choose(["a", "b"])}
    if rng.draw_bool(30):
        spec["tolerations"] = [{"key": "spot", "operator": "Exists"}]
    return {"spec": spec}


def _random_job_spec(plan: QueueWorldPlan) -> ObjectDict:
    parallelism = plan.rng.draw_integer(1, 3)
    return {"parallelism": parallelism, "completions": parallelism, "template": _random_pod_template(plan)}


def _random_job(plan: QueueWorldPlan, name: str, queue: str) -> ObjectDict:
    job = make_object("batch/v1", "Job", name, spec=_random_job_spec(plan))
    job["metadata"]["labels"] = _labels(plan.rng, queue)
    if job["spec"]["parallelism"] > 1 and plan.rng.draw_bool(30):
        job["metadata"]["annotations"] = {well_known.MIN_PARALLELISM: "1"}
    return job


def _random_job_set(plan: QueueWorldPlan, name: str, queue: str) -> ObjectDict:
    rng = plan.rng
    replicated_jobs = [
        {"name": f"r{n}", "replicas": rng.draw_integer(1, 2), "template": {"spec": _random_job_spec(plan)}}
        for n in range(rng.draw_integer(1, 2))
    ]
    job_set = make_object("jobset.x-k8s.io/v1alpha2", "JobSet", name, spec={"replicatedJobs": replicated_jobs})
    job_set["metadata"]["labels"] = _labels(rng, queue)
    return job_set


def _labels(rng: RandomChoices, queue: str) -> dict[str, str]:
    return {well_known.QUEUE_NAME: queue, well_known.PRIORITY_CLASS: rng.choose(["low", "middle", "high"])}


def _make_edit(plan: QueueWorldPlan) -> None:
    rng = plan.rng
    make_edit = rng.choose([_edit_quota, _edit_quota, _stop_queue, _stop_local_queue, _stop_workload, _edit_cohort])
    later_version = make_edit(plan)
    if later_version is not None:
        plan.objects.append(later_version)


def _later_version(rng: RandomChoices, obj: ObjectDict, at: str = "", **spec: Any) -> ObjectDict:
    metadata = obj["metadata"]
    submit_at = at or f"{rng.draw_integer(1, ACTIVE_SECONDS)}.07s"
    annotations = {**metadata.get("annotations", {}), well_known.SUBMIT_AT: submit_at}
    return {**obj, "metadata": {**metadata, "annotations": annotations}, "spec": {**obj["spec"], **spec}}


def _edit_quota(plan: QueueWorldPlan) -> ObjectDict:
    queue = plan.rng.choose(plan.queues)
    is_in_cohort = "cohortName" in queue["spec"]
    return _later_version(plan.rng, queue, resourceGroups=_resource_groups(plan, has_limits=is_in_cohort, quota_max=10))


def _stop_queue(plan: QueueWorldPlan) -> ObjectDict:
    rng, queue = plan.rng, plan.rng.choose(plan.queues)
    if rng.draw_bool(70):
        plan.objects.append(_later_version(rng, queue, f"{ACTIVE_SECONDS}.09s", stopPolicy="None"))
    return _later_version(rng, queue, stopPolicy=rng.choose(["Hold", "HoldAndDrain"]))


def _stop_local_queue(plan: QueueWorldPlan) -> ObjectDict:
    rng, local_queue = plan.rng, plan.rng.choose(plan.local_queues)
    if rng.draw_bool(30):
        local_queue["metadata"]["annotations"] = {well_known.DELETE_AT: f"{rng.draw_integer(1, ACTIVE_SECONDS)}.03s"}
    elif rng.draw_bool(60):
        plan.objects.append(_later_version(rng, local_queue, f"{ACTIVE_SECONDS}.08s", stopPolicy="None"))
    return _later_version(rng, local_queue, stopPolicy=rng.choose(["Hold", "HoldAndDrain"]))


def _stop_workload(plan: QueueWorldPlan) -> ObjectDict | None:
    workloads = [work for work in plan.work_objects if work["kind"] == "Workload"]
    if not workloads:
        return None
    return _later_version(plan.rng, plan.rng.choose(workloads), f"{ACTIVE_SECONDS}.1s", active=False)


def _edit_cohort(plan: QueueWorldPlan) -> ObjectDict | None:
    """Return a later manifest of a Cohort with new quotas and parent, which may close a cycle; None without Cohorts."""
    if not plan.cohorts:
        return None
    rng, name = plan.rng, plan.rng.choose(plan.cohorts)
    parent = rng.choose([*plan.cohorts, ""])
    groups = _resource_groups(plan, has_limits=bool(parent), quota_max=6, caps_lending=False)
    spec: ObjectDict = {"resourceGroups": groups}
    if parent:
        spec["parentName"] = parent
    return _later_version(rng, make_object(KUEUE_API, "Cohort", name, spec={}), **spec)
