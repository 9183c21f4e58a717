"""A scheduler core for tests of decisions: queues and Workloads by keyword, and decisions as short lines."""

from collections.abc import Mapping, Sequence
from typing import Any

import make
from batchyard.api.meta import Obj, with_metadata
from batchyard.api.views.node import flavor_view
from batchyard.api.views.workload import ResourceGroup, cluster_queue_view, cohort_view, workload_view
from batchyard.scheduling.cluster_queue import AdmittedWorkload
from batchyard.scheduling.cycle import Cycle, SchedulingPolicy
from batchyard.scheduling.decisions import Admit, Decision, Head, Preempt, StayPending
from batchyard.scheduling.flavor_assigner import LastAssignment
from batchyard.scheduling.quota import QuotaNode, available
from batchyard.scheduling.snapshot import Snapshot


def quota(nominal: Any, borrowing: Any = None, lending: Any = None) -> dict[str, Any]:
    """A quota with its limits."""
    limits = {"nominalQuota": nominal, "borrowingLimit": borrowing, "lendingLimit": lending}
    return {field: value for field, value in limits.items() if value is not None}


def group(**flavors: Mapping[str, Any]) -> Obj:
    """A resource group: by flavor, the quota of each resource."""
    resources = list(dict.fromkeys(resource for amounts in flavors.values() for resource in amounts))
    return {
        "coveredResources": resources,
        "flavors": [
            {
                "name": flavor,
                "resources": [
                    {"name": r, **(q if isinstance(q, dict) else {"nominalQuota": q})} for r, q in amounts.items()
                ],
            }
            for flavor, amounts in flavors.items()
        ],
    }


def queue(name: str, cpu: Any = None, *, cohort: str = "", **spec: Any) -> Obj:
    """A ClusterQueue; `cpu` is its quota of flavor `spot`, unless resource groups are given."""
    groups = spec.pop("groups", None) or [group(spot={"cpu": 0 if cpu is None else cpu})]
    if cohort:
        spec["cohortName"] = cohort
    if "weight" in spec:
        spec["fairSharing"] = {"weight": spec.pop("weight")}
    return make.cluster_queue(name, resourceGroups=groups, **spec)


def cohort(name: str, cpu: Any = None, *, parent: str = "", **spec: Any) -> Obj:
    """A Cohort; `cpu` is its quota of flavor `spot`, if any."""
    groups = spec.pop("groups", None) or ([] if cpu is None else [group(spot={"cpu": cpu})])
    if "weight" in spec:
        spec["fairSharing"] = {"weight": spec.pop("weight")}
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Cohort",
        "metadata": make.metadata(name, None),
        "spec": {"resourceGroups": groups, **({"parentName": parent} if parent else {}), **spec},
    }


def preemption(within: str = "Never", reclaim: str = "Never", borrow: Mapping[str, Any] | None = None) -> Obj:
    """The preemption rules of a ClusterQueue; `borrow` is borrowWithinCohort."""
    rules: dict[str, Any] = {"withinClusterQueue": within, "reclaimWithinCohort": reclaim}
    return {**rules, **({"borrowWithinCohort": dict(borrow)} if borrow else {})}


def workload(name: str = "wl", cpu: Any = 1, *, queue: str = "cq", created: float = 0, **fields: Any) -> Obj:
    """A Workload, by default of one pod that requests `cpu`; its LocalQueue has the name of the ClusterQueue."""
    pod_sets = fields.pop("pod_sets", None) or [make.pod_set(requests={"cpu": str(cpu)})]
    obj = make.workload(name, queue=queue, pod_sets=pod_sets, **fields)
    return with_metadata(obj, creationTimestamp=make.stamp(created))


def head(name: str, cpu: Any = 1, **fields: Any) -> Obj:
    """A Workload of the queue with the first letter of its name: `a1` is pending in queue `a`."""
    return workload(name, cpu, queue=fields.pop("queue", name[0]), **fields)


class SchedulerBench:
    """A snapshot and a scheduling policy. Flavors that queues name exist without labels and taints."""

    def __init__(self, *objects: Obj, fair_sharing: bool = False) -> None:
        self.snapshot = Snapshot()
        self.namespaces: dict[str, Mapping[str, str]] = {"team": {"kubernetes.io/metadata.name": "team"}}
        self.policy = SchedulingPolicy(fair_sharing=fair_sharing)
        self.number = 0
        self.put(*objects)

    def put(self, *objects: Obj) -> None:
        """Add or change ClusterQueues, Cohorts and ResourceFlavors."""
        for obj in objects:
            if obj["kind"] == "ResourceFlavor":
                self.snapshot.put_flavor(flavor_view(obj))
            elif obj["kind"] == "Cohort":
                cohort_as_seen = cohort_view(obj)
                self._put_flavors(cohort_as_seen.groups)
                self.snapshot.put_cohort(cohort_as_seen)
            else:
                queue_as_seen = cluster_queue_view(obj)
                self._put_flavors(queue_as_seen.groups)
                self.snapshot.put_queue(queue_as_seen)
        self.snapshot.rebuild_if_changed()

    def hold(self, name: str, cpu: int, queue: str = "cq", **fields: Any) -> AdmittedWorkload:
        """Admit a Workload that uses whole CPUs of a flavor, or the amounts of `usage` by (flavor, resource)."""
        amounts = fields.pop("usage", {(fields.pop("flavor", "spot"), "cpu"): cpu * 1000})
        usage = tuple((self.snapshot.flavor_resource_id(*pair), amount) for pair, amount in amounts.items())
        self.snapshot.rebuild_if_changed()
        held = AdmittedWorkload(
            f"team/{name}",
            f"uid-{name}",
            self.snapshot.queues[queue],
            usage,
            priority=fields.get("priority", 0),
            queued=make.at(fields.get("created", 0)),
            reserved_at=make.at(fields.get("since", 0)),
            evicted=fields.get("evicted", False),
            is_admitted=fields.get("admitted", True),
            obj=fields.get("obj"),
        )
        self.snapshot.add_holder(held)
        return held

    def node(self, name: str) -> QuotaNode:
        """The node of a ClusterQueue or Cohort in the quota tree."""
        queue = self.snapshot.queues.get(name)
        return queue.node if queue is not None else self.snapshot.cohorts[name]

    def free(self, name: str, flavor: str = "spot", resource: str = "cpu") -> int:
        """The available quota of a node, in thousandths of a CPU."""
        return available(self.node(name), self.snapshot.flavor_resource_id(flavor, resource))

    def used(self, name: str, flavor: str = "spot", resource: str = "cpu") -> int:
        """The usage of a node, in thousandths of a CPU."""
        return self.node(name).usage[self.snapshot.flavor_resource_id(flavor, resource)]

    def cycle(self, *heads: Obj | Head) -> list[Decision]:
        """The decisions of one cycle."""
        self.number += 1
        cycle = Cycle(self.snapshot, self.policy, self.namespaces, self.number)
        return cycle.run([head_of(head) if isinstance(head, Mapping) else head for head in heads])

    def decide(self, *heads: Obj | Head) -> list[str]:
        """The decisions of one cycle as short lines."""
        return [line(decision) for decision in self.cycle(*heads)]

    def admission(self, head: Obj | Head) -> Admit:
        """The decision about one head, which must be an admission."""
        (decision,) = self.cycle(head)
        assert isinstance(decision, Admit), line(decision)
        return decision

    def wait(self, head: Obj | Head) -> StayPending:
        """The decision about one head, which must stay pending."""
        (decision,) = self.cycle(head)
        assert isinstance(decision, StayPending), line(decision)
        return decision

    def preemption(self, head: Obj | Head) -> Preempt:
        """The decision about one head, which must be a preemption."""
        (decision,) = self.cycle(head)
        assert isinstance(decision, Preempt), line(decision)
        return decision

    def victims(self, head: Obj | Head) -> list[str]:
        """The victims of one head, in order; empty without preemption."""
        (decision,) = self.cycle(head)
        targets = decision.targets if isinstance(decision, Preempt) else ()
        return [target.workload.key.removeprefix("team/") for target in targets]

    def _put_flavors(self, groups: Sequence[ResourceGroup]) -> None:
        for name in (flavor for one in groups for flavor in one.flavors):
            if name not in self.snapshot.flavors:
                self.snapshot.put_flavor(flavor_view(make.flavor(name)))


def head_of(obj: Obj, last: LastAssignment | None = None) -> Head:
    """A Workload as the head of the ClusterQueue with the name of its LocalQueue."""
    return Head(workload_view(obj), obj["spec"]["queueName"], last)


def line(decision: Decision) -> str:
    """A decision as a short line."""
    name = decision.head.workload.name
    match decision:
        case Admit():
            return f"{name}: {flavors_of(decision)}"
        case Preempt():
            targets = (f"{t.workload.key.removeprefix('team/')} ({t.reason})" for t in decision.targets)
            return f"{name} preempts {', '.join(targets)}"
        case StayPending():
            return f"{name} waits ({decision.why.reason}): {decision.why.message}"


def flavors_of(admit: Admit) -> str:
    """The pods and flavors of an admission: `main 3 cpu=spot`."""
    pod_sets = []
    for pod_set in admit.assignment.pod_sets:
        chosen = [f"{resource}={choice.flavor}" for resource, choice in sorted(pod_set.choices.items())]
        pod_sets.append(" ".join([pod_set.name, str(pod_set.count), *chosen]))
    return "; ".join(pod_sets)
