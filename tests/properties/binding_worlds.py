"""Random worlds in which one known limit keeps a Workload pending. Amounts are in units of `quantity`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

from batchyard.api import well_known
from batchyard.sim.random_worlds import KUEUE_API, ObjectDict, RandomChoices, make_object, scenario_of
from batchyard.sim.scenario import Scenario

NAMESPACE: Final = "team"
QUEUE: Final = "own"
SUBJECT: Final = "asked"
RESOURCES: Final = ("cpu", "memory", "example.com/gpu")
#: Quota that is never used up.
PLENTY: Final = 400
#: The submit time of the holders of quota; the Workload in question follows later.
HOLDERS_AT: Final = "1s"
_SUBJECT_AT: Final = "10s"

Quota: TypeAlias = Mapping[str, int | None]
"""The fields nominalQuota, borrowingLimit and lendingLimit in units."""


class ExpectedLimit(NamedTuple):
    """The correct limits, and the objects that an answer may name with them."""

    limits: tuple[str, ...]
    places: tuple[str, ...]
    flavor: str = ""
    resource: str = ""


NOTHING: Final = ExpectedLimit((), ())


@dataclass(slots=True)
class BindingWorld:
    """The manifests of a world, and the binding limit of the Workload in question."""

    rng: RandomChoices
    objects: list[ObjectDict] = field(default_factory=list)
    expected: ExpectedLimit = NOTHING
    fair_sharing: bool = False
    #: Further fields of the Scenario's spec.
    settings: dict[str, Any] = field(default_factory=dict)
    #: The binding resource, and all requested resources.
    resource: str = "cpu"
    resources: tuple[str, ...] = ("cpu",)
    priorities: dict[int, None] = field(default_factory=dict)
    #: Whether some change can be applied as a patch.
    has_change: bool = True
    #: Whether the limit ends at a time that the answer has to state, because no change admits the Workload.
    ends_by_itself: bool = False
    #: The event of the Workload in question that a change causes.
    event: str = "QuotaReserved"

    def scenario(self) -> Scenario:
        """Return the scenario of the world."""
        return scenario_of(self.objects, fair_sharing=self.fair_sharing, settings=self.settings)

    # --- objects ---

    def add(self, kind: str, name: str, **spec: Any) -> ObjectDict:
        """Add an object of Kueue with these fields of its spec."""
        obj = make_object(KUEUE_API, kind, name, spec=spec)
        self.objects.append(obj)
        return obj

    def add_flavors(self, count: int) -> list[str]:
        """Add ResourceFlavors without labels and taints; return their names."""
        names = [f"f{number}" for number in range(count)]
        for name in names:
            self.add("ResourceFlavor", name)
        return names

    def add_queue(self, name: str, quotas: Mapping[str, Mapping[str, Quota]], **spec: Any) -> ObjectDict:
        """Add a ClusterQueue with these quotas by flavor and resource, and a LocalQueue of the same name."""
        fields = {"namespaceSelector": {}, "resourceGroups": [resource_group(quotas)], **spec}
        queue = self.add("ClusterQueue", name, **fields)
        local_queue = self.add("LocalQueue", name, clusterQueue=name)
        local_queue["metadata"]["namespace"] = NAMESPACE
        return queue

    def add_check(self, name: str = "manual") -> None:
        """Add an active AdmissionCheck whose state stays pending."""
        check = self.add("AdmissionCheck", name, controllerName="example.com/manual")
        active = {"type": "Active", "status": "True", "reason": "Active", "message": "ready"}
        check["status"] = {"conditions": [{**active, "lastTransitionTime": "2026-01-01T00:00:00Z"}]}

    def quotas(self, nominal: int, **limits: int) -> dict[str, Quota]:
        """Return the quotas of one flavor: `nominal` of the binding resource, and PLENTY of the others."""
        plenty: Quota = {"nominalQuota": PLENTY}
        return dict.fromkeys(self.resources, plenty) | {self.resource: {"nominalQuota": nominal, **limits}}

    def pods(self, amount: int) -> tuple[int, dict[str, int]]:
        """Return a number of pods and the requests of each; in total they request `amount` of the binding resource."""
        counts = [count for count in (1, 2, 3, 4, 5) if amount % count == 0]
        count = self.rng.choose(counts)
        others = {each: self.rng.draw_integer(1, 3) for each in self.resources}
        return count, {**others, self.resource: amount // count}

    def hold(self, name: str, amount: int, queue: str = QUEUE, priority: int = 0, **template: Any) -> None:
        """Add Workloads that together hold an amount of the binding resource in a queue, until the end."""
        first = self.rng.draw_integer(1, amount) if amount > 1 else amount
        for number, part in enumerate(filter(None, (first, amount - first))):
            count, requests = self.pods(part)
            self.submit(f"{name}-{number}", count, requests, queue=queue, priority=priority, at=HOLDERS_AT, **template)

    def ask(self, amount: int, *, priority: int = 0, queue: str = QUEUE, **template: Any) -> None:
        """Add the Workload, Job or JobSet in question, which requests an amount of the binding resource."""
        count, requests = self.pods(amount)
        kind = self.rng.choose(["Workload", "Job", "JobSet"])
        self.submit(SUBJECT, count, requests, kind=kind, queue=queue, priority=priority, at=_SUBJECT_AT, **template)

    def submit(
        self,
        name: str,
        count: int,
        requests: Mapping[str, int],
        *,
        kind: str = "Workload",
        queue: str = QUEUE,
        priority: int = 0,
        at: str = _SUBJECT_AT,
        **template: Any,
    ) -> ObjectDict:
        """Add a Workload, Job or JobSet of `count` equal pods."""
        amounts = {each: quantity(each, amount) for each, amount in requests.items()}
        limits = {each: amount for each, amount in amounts.items() if "/" in each}
        container = {"name": "main", "image": "pause", "resources": {"requests": amounts, "limits": limits}}
        pod = {"spec": {"restartPolicy": "Never", "containers": [container], **template}}
        self._add_priority(priority)
        if kind == "Workload":
            pod_sets = [{"name": "main", "count": count, "template": pod}]
            obj = self.add("Workload", name, queueName=queue, priority=priority, podSets=pod_sets)
        else:
            job = {"parallelism": count, "completions": count, "template": pod}
            if kind == "Job":
                obj = make_object("batch/v1", "Job", name, spec=job)
            else:
                job = {**job, "parallelism": 1, "completions": 1}
                row = {"name": "r", "replicas": count, "template": {"spec": job}}
                obj = make_object("jobset.x-k8s.io/v1alpha2", "JobSet", name, spec={"replicatedJobs": [row]})
            obj["metadata"]["labels"] = {well_known.QUEUE_NAME: queue, well_known.PRIORITY_CLASS: f"p{priority}"}
            self.objects.append(obj)
        annotations = {well_known.SUBMIT_AT: at, well_known.RUNTIME: "1000h"}
        obj["metadata"] |= {"namespace": NAMESPACE, "annotations": annotations}
        return obj

    def _add_priority(self, priority: int) -> None:
        if priority not in self.priorities:
            self.priorities[priority] = None
            self.objects.append(make_object(KUEUE_API, "WorkloadPriorityClass", f"p{priority}", value=priority))

    def expect(self, limit: str, *places: str, flavor: str = "", resource: str = "") -> None:
        """Set the binding limit, and the objects of which an answer has to name one."""
        self.expected = ExpectedLimit((limit,), places, flavor, resource)


def begin(rng: RandomChoices) -> tuple[BindingWorld, int, int]:
    """Return a world with 1 to 3 resources and maybe an unrelated queue, a free amount, and a missing amount."""
    world = BindingWorld(rng)
    world.resources = tuple(RESOURCES[: rng.draw_integer(1, 3)])
    world.resource = rng.choose(world.resources)
    if rng.draw_bool(30):
        world.add("ResourceFlavor", "aside")
        world.add_queue("aside", {"aside": world.quotas(3)})
        world.hold("bystander", 3, queue="aside")
    return world, rng.draw_integer(0, 4), rng.draw_integer(1, 5)


def quantity(resource: str, units: int) -> str | int:
    """Return an amount as a quantity. A unit is 250m of cpu, 100Mi of memory, or 1 of another resource."""
    return {"cpu": f"{units * 250}m", "memory": f"{units * 100}Mi"}.get(resource, units)


def resource_group(quotas: Mapping[str, Mapping[str, Quota]]) -> ObjectDict:
    """Return a resource group with these quotas by flavor and resource."""
    resources = list(next(iter(quotas.values())))
    flavors = []
    for flavor, quota_by_resource in quotas.items():
        rows = [
            {"name": each, **{field: quantity(each, units) for field, units in quota.items() if units is not None}}
            for each, quota in quota_by_resource.items()
        ]
        flavors.append({"name": flavor, "resources": rows})
    return {"coveredResources": resources, "flavors": flavors}
