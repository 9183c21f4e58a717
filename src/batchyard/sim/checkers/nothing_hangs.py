"""When nothing is left to happen, whoever has not ended waits for something that is not there.

No pod is on a node and never ends, so no gang is half placed. No Job or JobSet that may run is without pods that wait,
but for a Job alone in its domain whose first pod has succeeded: JobSet refuses it the pods that would follow that one.
No pod waits and is not told why, and none waits with its gang that the nodes there are could take, and those that a
pool may still have.
"""

from collections.abc import Iterator, Sequence

from batchyard.api import scheme, well_known
from batchyard.api.conditions import is_true
from batchyard.api.meta import Key, Obj, controller_of, key_of
from batchyard.api.views.node import NodeView, node_view
from batchyard.api.views.pods import PodView, pod_view
from batchyard.core.lifecycle.job.indexes import contains, parsed
from batchyard.core.machines.catalog import catalog_of
from batchyard.core.machines.instances import FAILED, phase_of
from batchyard.core.machines.nodes import node_template
from batchyard.core.machines.pools import hosts_of_slice, zones_of
from batchyard.sim.checkers.law import Law
from batchyard.sim.checkers.nodes_are_never_overfull import placed, requested
from batchyard.sim.checkers.pods_suit_their_nodes import unsuitable

_ENDS = ("Complete", "Completed", "Failed")


class NothingHangs(Law):
    """See the module."""

    name = "nothing_hangs"

    def finish(self) -> None:
        """Look at all that has not ended."""
        if self.is_at_rest:
            pods = [obj for obj in self.scene.world.objects(scheme.POD) if not pod_view(obj).is_terminal]
            self._look_at_jobs(pods)
            self._look_at_pods([pod_view(obj) for obj in pods])

    def _look_at_jobs(self, pods: Sequence[Obj]) -> None:
        """Whoever may run has something below it that waits."""
        world = self.scene.world
        jobs = [obj for kind in (scheme.JOB, scheme.JOB_SET) for obj in world.objects(kind) if not _has_ended(obj)]
        owners = [owner["uid"] for obj in (*pods, *jobs) if (owner := controller_of(obj)) is not None]
        for job in jobs:
            may_run = not job["spec"].get("suspend") and not _has_nobody_to_follow(job)
            if may_run and job["metadata"]["uid"] not in owners:
                self.violate(f"{key_of(job)} may run, and nothing of it waits", key_of(job))

    def _look_at_pods(self, pods: Sequence[PodView]) -> None:
        """Those that are placed would end; the others have no place."""
        gangs: dict[str, list[PodView]] = {}
        for pod in pods:
            if pod.node_name:
                self.violate(f"{pod.key} never ends on {pod.node_name}", _key(pod))
                continue
            if not pod.unscheduled:
                self.violate(f"{pod.key} waits for a node, and nobody says why", _key(pod))
            if not pod.gated:
                gangs.setdefault(pod.gang or pod.key, []).append(pod)
        nodes = _free_nodes(self.scene.world.objects(scheme.NODE), placed(pods))
        growth = self._nodes_to_come() if gangs else []
        for gang in gangs.values():
            if any(pod.shape.minds_pods for pod in gang):
                self._look_at_exclusive(gang, [*nodes, *(node for _, more in growth for node in more)])
                continue
            if _find_room(gang, nodes):
                self.violate(f"{len(gang)} pods wait though there is room", *map(_key, gang))
            for pool, more in growth:
                if _find_room(gang, [*nodes, *more]):
                    self.violate(f"{len(gang)} pods wait though {pool} may grow", *map(_key, gang))

    def _look_at_exclusive(self, gang: Sequence[PodView], nodes: Sequence["_Free"]) -> None:
        """Jobs that each want a pool of their own wait for pools; each has a first pod that waits for the others."""
        first = [pod for pod in gang if pod.shape.minds_pods]
        pools: dict[str, list[_Free]] = {}
        for node in nodes:
            pools.setdefault(node.node.labels.get(well_known.NODE_POOL, ""), []).append(node)
        fitting = [name for name, found in pools.items() if all(node.could_take(first[0]) for node in found)]
        if len(first) == len(gang) <= len(fitting) and _wants_pools(first):
            self.violate(f"{len(gang)} Jobs wait though they could have {', '.join(fitting)}", *map(_key, gang))

    def _nodes_to_come(self) -> list[tuple[str, list["_Free"]]]:
        """For each pool with an autoscaler, where nothing else bounds the nodes, those that it may still have."""
        world = self.scene.world
        cluster = next(iter(world.objects(scheme.CLUSTER)), None)
        if cluster is None or cluster["spec"].get("quotas") or _limits(cluster):
            return []
        sold_out = [row["machineType"] for row in cluster["spec"].get("capacity") or ()]
        found = []
        for pool in world.objects(scheme.NODE_POOL):
            spec, name = pool["spec"], pool["metadata"]["name"]
            is_bounded = spec.get("provisioning") == "queued" or spec.get("reservation") or spec.get("placementGroup")
            if "autoscaling" in spec and not is_bounded and spec["machineType"] not in sold_out:
                found.append((name, list(self._growth(pool, cluster))))
        return found

    def _growth(self, pool: Obj, cluster: Obj) -> Iterator["_Free"]:
        machines = [obj for obj in self.scene.world.objects(scheme.INSTANCE) if phase_of(obj) != FAILED]
        zones = [obj["spec"]["zone"] for obj in machines if obj["spec"]["pool"] == pool["metadata"]["name"]]
        bounds = pool["spec"]["autoscaling"]
        if hosts_of_slice(pool, catalog_of(cluster)) > 1 and zones:
            return
        left = bounds.get("totalMax", 1 << 30) - len(zones)
        for zone in zones_of(pool, cluster):
            for _ in range(min(left, bounds.get("max", left) - zones.count(zone))):
                left -= 1
                view = node_view(node_template(pool, zone, cluster))
                yield _Free(view, dict(view.allocatable))


class _Free:
    """A node, and what is free on it."""

    def __init__(self, node: NodeView, free: dict[str, int]) -> None:
        self.node = node
        self.free = free

    def could_take(self, pod: PodView) -> bool:
        """Whether a pod has room here."""
        return not unsuitable(pod, self.node) and all(self.free.get(r, 0) >= amount for r, amount in pod.requests)


def _free_nodes(nodes: Sequence[Obj], taken: dict[str, list[PodView]]) -> list[_Free]:
    found = []
    for view in map(node_view, nodes):
        used = requested(taken.get(view.name, ()))
        free = {resource: amount - used.get(resource, 0) for resource, amount in view.allocatable.items()}
        found.append(_Free(view, free))
    return found


def _find_room(gang: Sequence[PodView], nodes: Sequence[_Free]) -> bool:
    """Whether all pods of a gang find room, each on the first node that takes it."""
    trial = [_Free(node.node, dict(node.free)) for node in nodes]
    for pod in gang:
        node = next((node for node in trial if node.could_take(pod)), None)
        if node is None:
            return False
        for resource, amount in pod.requests:
            node.free[resource] -= amount
    return True


def _wants_pools(pods: Sequence[PodView]) -> bool:
    """Whether all that matters about other pods is whose pools they are in."""
    return all(term.topology_key == well_known.NODE_POOL for pod in pods for term in pod.shape.anti_affinity)


def _limits(cluster: Obj) -> object:
    """The bounds of the whole cluster."""
    scaling = cluster["spec"].get("autoscaling") or {}
    return (scaling.get("autoProvisioning") or {}).get("limits")


def _has_ended(job: Obj) -> bool:
    return any(is_true(job.get("status") or {}, end) for end in _ENDS)


def _has_nobody_to_follow(job: Obj) -> bool:
    """Whether new pods of a Job would follow its first one to its domain, which has succeeded."""
    annotations = ((job["spec"].get("template") or {}).get("metadata") or {}).get("annotations") or {}
    if well_known.EXCLUSIVE_TOPOLOGY not in annotations or well_known.NODE_SELECTOR_STRATEGY in annotations:
        return False
    return contains(parsed((job.get("status") or {}).get("completedIndexes"), 1), 0)


def _key(pod: PodView) -> Key:
    return Key(scheme.POD, pod.namespace, pod.name)
