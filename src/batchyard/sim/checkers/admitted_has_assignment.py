"""Whoever gets quota gets it for every pod set: as many pods as allowed, from flavors of the queue that suit them."""

from collections.abc import Iterator, Sequence

from batchyard.api import quantity, scheme
from batchyard.api.meta import Obj
from batchyard.api.views.queues import ClusterQueueView, ResourceGroup
from batchyard.api.views.workload import Holding, PodSet, WorkloadView, workload_view
from batchyard.core.matching import find_obstacle
from batchyard.ports.client import WatchEvent
from batchyard.sim.checkers.law import Law
from batchyard.sim.checkers.ledger import is_reserved_by


class AdmittedHasAssignment(Law):
    """See the module."""

    name = "admitted_has_assignment"

    def look(self, event: WatchEvent) -> None:
        """Look at new reservations."""
        if event.key.kind == scheme.WORKLOAD and is_reserved_by(event):
            view = workload_view(event.obj)
            for fault in self._faults(view, _assignments(event.obj)):
                self.violate(f"{view.key}: {fault}", event.key)

    def _faults(self, view: WorkloadView, assigned: Sequence[Holding]) -> Iterator[str]:
        queue = self.ledger.queue_of(view)
        if queue is None or queue.name != view.cluster_queue:
            yield f"admitted by {view.cluster_queue}, but its LocalQueue {view.queue} belongs to another"
            return
        if queue.stop_policy != "None" or queue.name in self.ledger.terminating:
            yield f"{queue.name} is stopped"
        if [h.name for h in assigned] != [p.name for p in view.pod_sets]:
            yield f"assigned are {[h.name for h in assigned]}, wanted were {[p.name for p in view.pod_sets]}"
            return
        for pod_set, wanted, holding in zip(view.pod_sets, view.counts, assigned, strict=True):
            yield from self._pod_set_faults(queue, pod_set, wanted, holding)

    def _pod_set_faults(self, queue: ClusterQueueView, pod_set: PodSet, wanted: int, held: Holding) -> Iterator[str]:
        least = wanted if pod_set.min_count is None else min(wanted, pod_set.min_count)
        if not least <= held.pods <= wanted:
            yield f"{held.pods} pods of {pod_set.name}, allowed are {least} to {wanted}"
        requests = {resource: amount * held.pods for resource, amount in pod_set.template.requests}
        usage = dict(held.usage)
        if any("pods" in group.resources for group in queue.groups):
            requests["pods"] = held.pods
        for resource, amount in requests.items():
            if amount and usage.get(resource) != amount:
                yield f"{pod_set.name} uses {usage.get(resource)} of {resource}, not {amount}"
        for group in queue.groups:
            yield from self._group_faults(group, pod_set, held)
        covered = [resource for group in queue.groups for resource in group.resources]
        if any(resource not in covered for resource in held.flavors):
            yield f"{pod_set.name} has {sorted(held.flavors)}, the queue {sorted(covered)}"

    def _group_faults(self, group: ResourceGroup, pod_set: PodSet, held: Holding) -> Iterator[str]:
        flavors = sorted({held.flavors[resource] for resource in group.resources if resource in held.flavors})
        if len(flavors) > 1:
            yield f"{pod_set.name} has {flavors} in one group"
        for flavor in flavors:
            if flavor not in group.flavors:
                yield f"{pod_set.name} has flavor {flavor}, the group {group.flavors}"
            obstacle = find_obstacle(pod_set.template, flavor, self.ledger.flavors.get(flavor))
            if obstacle:
                yield f"{pod_set.name}: {obstacle}"


def _assignments(obj: Obj) -> list[Holding]:
    """What a Workload's status says it was given, word for word."""
    return [
        Holding(
            assigned["name"],
            assigned.get("count", 0),
            assigned.get("flavors") or {},
            tuple((r, quantity.amount(r, amount)) for r, amount in (assigned.get("resourceUsage") or {}).items()),
        )
        for assigned in obj["status"]["admission"].get("podSetAssignments") or ()
    ]
