"""The objects of a set of manifests, indexed for the rules.

Of several versions of an object the last counts where objects are checked together. Rules on single objects check every
version.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice, product
from typing import Final, NamedTuple, Protocol, TypeAlias

from batchyard.api import scheme, well_known
from batchyard.api.manifests import Manifest
from batchyard.api.meta import Key, Obj, annotation, format_amount, group_kind, key_of
from batchyard.api.views.node import NodeView, Taint, node_view
from batchyard.api.views.pods import PodView
from batchyard.api.views.workload import (
    ClusterQueueView,
    CohortView,
    FlavorView,
    LocalQueueView,
    ResourceGroup,
    cluster_queue_view,
    cohort_view,
    flavor_view,
    local_queue_view,
)
from batchyard.autoscaler.auto_provisioning import NodeAutoProvisioner, node_pool
from batchyard.autoscaler.node_groups import NodeGroup, groups_of, settings_of
from batchyard.cloud.catalog.instances import find_reservation
from batchyard.cloud.catalog.prices import zones_of
from batchyard.cloud.cluster_objects import NodeRequirements, is_system_label
from batchyard.lint.workloads import LintedPodSet, LintedWork, parts_of
from batchyard.placement.node_filters import selects, tolerates
from batchyard.scheduling.cluster_queue import ClusterQueue, flavor_mismatch
from batchyard.scheduling.quota import FlavorAssignmentMode
from batchyard.scheduling.snapshot import Snapshot

# --- machines ---
#
# The possible machines: pools at their maximum size, existing nodes, and pools that the autoscaler could create.


_NAMED_MAX: Final = 3
#: Prefixes of temporary taints.
_PASSING: Final = (
    *("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/"),
    *(well_known.TO_BE_DELETED, well_known.DELETION_CANDIDATE),
)


@dataclass(frozen=True, slots=True)
class MachineGroup:
    """The machines of a pool, or one node."""

    name: str
    manifest: Manifest
    path: str
    #: Node templates, one per zone.
    templates: tuple[NodeView, ...]
    #: The maximum number.
    most: int
    #: Whether an autoscaler sets the number.
    grows: bool
    #: The provisioning terms: standard, spot, queued, flex-start.
    terms: str
    #: The number of machines that are created and deleted together.
    hosts: int

    def selected_by(self, labels: Mapping[str, str]) -> bool:
        """Whether they have these labels."""
        return any(labels.items() <= template.labels.items() for template in self.templates)

    def amount(self, resource: str) -> int:
        """The total allocatable amount."""
        return self.most * max(template.allocatable.get(resource, 0) for template in self.templates)


class MachineInventory:
    """All machines of a set of manifests."""

    def __init__(self, clusters: Sequence[Manifest], pools: Sequence[Manifest], nodes: Sequence[Manifest]) -> None:
        self.cluster: Obj | None = clusters[0].obj if clusters else None
        self.machines: tuple[MachineGroup, ...] = (*_of_pools(self.cluster, clusters, pools), *map(_of_node, nodes))
        self.makes_pools = False
        self._limits: Mapping[str, int] = {}
        if self.cluster is not None:
            settings = settings_of(self.cluster)
            self.makes_pools = settings.makes_pools
            self._limits = {resource: limit.most for resource, limit in settings.limits.items()}

    @property
    def is_known(self) -> bool:
        """Whether the manifests describe machines."""
        return self.cluster is not None or bool(self.machines)

    @property
    def pools(self) -> list[MachineGroup]:
        """The machines of pools."""
        return [machines for machines in self.machines if machines.path]

    def of(self, flavor: FlavorView) -> list[MachineGroup]:
        """The machines that a flavor's labels select."""
        return [machines for machines in self.machines if machines.selected_by(flavor.labels)]

    def could_make(self, pod: PodView) -> bool:
        """Whether the autoscaler could create a pool for a pod."""
        if self.cluster is None or not self.makes_pools:
            return False
        return isinstance(NodeAutoProvisioner(self.cluster, self._limits, ()).needs(pod), NodeRequirements)

    def could_be_made(self, resource: str, labels: Mapping[str, str]) -> int:
        """The amount of a resource in pools that could be created for pods which select these labels."""
        if not self.makes_pools:
            return 0
        if resource in {"cpu", "memory"}:
            limit = self._limits.get(resource, 0)
            return limit * 1000 if resource == "cpu" else limit
        types = [name for name in self._limits if name not in {"cpu", "memory"}]
        asked = labels.get(well_known.ACCELERATOR) or labels.get(well_known.TPU_ACCELERATOR)
        return sum(self._limits[name] for name in types if asked in (None, name) and _has(resource, name))


def _has(resource: str, accelerator: str) -> bool:
    """Whether pods request accelerators of a type by this resource."""
    return resource == (well_known.TPU if accelerator.startswith("tpu") else well_known.GPU)


def _of_pools(cluster: Obj | None, clusters: Sequence[Manifest], pools: Sequence[Manifest]) -> Iterator[MachineGroup]:
    """Pools of all versions of the Cluster, and NodePool objects; the last of a name counts."""
    if cluster is None:
        return
    rows: dict[str, tuple[Manifest, str, Obj]] = {}
    for manifest in clusters:
        for index, row in enumerate(manifest.obj["spec"].get("nodePools") or ()):
            spec = {field: value for field, value in row.items() if field != "name"}
            rows[row["name"]] = manifest, f"spec.nodePools[{index}]", node_pool(row["name"], spec)
    for manifest in pools:
        rows[manifest.obj["metadata"]["name"]] = manifest, "spec", manifest.obj
    for manifest, path, pool in rows.values():
        yield _machines(pool, cluster, manifest, path)


def _machines(pool: Obj, cluster: Obj, manifest: Manifest, path: str) -> MachineGroup:
    groups = groups_of(pool, cluster)
    return MachineGroup(
        name=pool["metadata"]["name"],
        manifest=manifest,
        path=path,
        templates=tuple(group.template for group in groups),
        most=_most(pool, cluster, groups),
        grows=groups[0].is_autoscaled,
        terms=groups[0].provisioning,
        hosts=groups[0].hosts,
    )


def _most(pool: Obj, cluster: Obj, groups: Sequence[NodeGroup]) -> int:
    """The maximum number of machines of a pool, limited by its reservation."""
    if groups[0].is_autoscaled:
        most = min(sum(group.size.most for group in groups), groups[0].total.most)
    else:
        zones = 1 if groups[0].hosts > 1 else len(zones_of(pool, cluster))
        most = pool["spec"].get("nodeCount", groups[0].hosts if groups[0].hosts > 1 else 0) * zones
    reservation = find_reservation(cluster, groups[0].reservation) if groups[0].reservation else None
    return most if reservation is None else min(most, reservation["count"])


def named(machines: Sequence[MachineGroup]) -> str:
    """The first names, and the number of the others."""
    names = [each.name for each in machines]
    return ", ".join(names[:_NAMED_MAX]) + (f" and {len(names) - _NAMED_MAX} more" if len(names) > _NAMED_MAX else "")


def _of_node(manifest: Manifest) -> MachineGroup:
    """A node without its temporary taints."""
    view = node_view(manifest.obj)
    view = replace(view, taints=tuple(taint for taint in view.taints if not taint.key.startswith(_PASSING)))
    terms = "spot" if view.labels.get(well_known.SPOT) == "true" else "standard"
    return MachineGroup(view.name, manifest, "", (view,), 1, grows=False, terms=terms, hosts=1)


#: The kinds that describe machines.
KINDS = (scheme.CLUSTER, scheme.NODE_POOL, scheme.NODE)


# --- fits ---
#
# Whether the pods of queued work fit the nodes of their possible flavors, by the rules of scheduling.


#: The most combinations of flavors that are checked for a pod set of several resource groups.
_CHOICES_MAX: Final = 64


class LintContext(Protocol):
    """The cluster's machines, flavors and queues."""

    @property
    def park(self) -> MachineInventory:
        """The machines."""

    @property
    def flavors(self) -> Mapping[str, tuple[Manifest, FlavorView]]:
        """The flavors by name."""

    @property
    def snapshot(self) -> Snapshot:
        """The queues."""


class Fit(NamedTuple):
    """The reason why the pods of a pod set fit no node with certain flavors."""

    rule: str
    problem: str
    fix: str


Fits: TypeAlias = Mapping[tuple[str, ...], Fit | None]


def fits_of(parts: Sequence[LintedPodSet], places: LintContext) -> list[tuple[LintedPodSet, Fits]]:
    """For each pod set that can be admitted, by combination of flavors, why its pods fit no node; None if they fit."""
    if not places.park.is_known:
        return []
    return [(part, _fits(part, places)) for part in parts if part.assignment.mode is not FlavorAssignmentMode.NO_FIT]


def _fits(part: LintedPodSet, places: LintContext) -> Fits:
    usable = [_usable(part, group, places) for group in range(len(part.queue.view.groups))]
    choices = islice(product(*[flavors for flavors in usable if flavors]), _CHOICES_MAX)
    return {choice: _fit(part, choice, places) for choice in choices}


def _usable(part: LintedPodSet, number: int, places: LintContext) -> list[str]:
    """The flavors of a group that a pod set could get; none if it requests no resource of the group."""
    group, snapshot = part.queue.view.groups[number], places.snapshot
    template = part.work.view.pod_sets[part.index].template
    asked = {r: amount * part.assignment.count for r, amount in template.requests if r in group.resources and amount}
    if not asked:
        return []
    obstacles = snapshot.obstacles.of(template, group.flavors)
    potential = part.queue.node.potential
    return [
        flavor
        for flavor, obstacle in zip(group.flavors, obstacles, strict=True)
        if not obstacle and all(amount <= potential[snapshot.id_of(flavor, r)] for r, amount in asked.items())
    ]


def _fit(part: LintedPodSet, choice: Sequence[str], places: LintContext) -> Fit | None:
    flavors: list[FlavorView] = [places.flavors[name][1] for name in choice]
    pod = part.work.pod(part.index, flavors, queued=True)  # requested machines are checked by another rule
    matching = [each for each in places.park.machines if any(selects(pod.shape.rules, t) for t in each.templates)]
    open_to = [each for each in matching if _room(pod, each, only_taints=True)]
    if places.park.could_make(pod):
        return None
    if not matching:
        labels = ", ".join(f"{key}={value}" for key, value in pod.node_selector) or "the labels of its affinity"
        fix = "select labels that nodes have, or add a pool that has them"
        return Fit("no-such-node", f"no pool or node has {labels}", fix)
    if not open_to:
        taint = _untolerated(pod, matching[0].templates)
        shown = f"{taint.key}={taint.value}:{taint.effect}"
        fix = f"tolerate {taint.key} in the pod template, or in spec.tolerations of the flavor"
        return Fit("untolerated-taint", f"{named(matching)} has the taint {shown}, which its pods do not tolerate", fix)
    if not any(_room(pod, each) for each in open_to):
        return _too_large_for(pod, open_to)
    return _too_many(pod, part.assignment.count, open_to)


def _room(pod: PodView, machines: MachineGroup, *, only_taints: bool = False) -> int:
    """How many such pods one of the machines holds; with `only_taints` 1 if labels and taints match."""
    return max((_room_on(pod, template, only_taints) for template in machines.templates), default=0)


def _room_on(pod: PodView, node: NodeView, only_taints: bool) -> int:
    rules = pod.shape.rules
    if not selects(rules, node) or _untolerated(pod, [node]).key:
        return 0
    if only_taints:
        return 1
    return min((node.allocatable.get(resource, 0) // amount for resource, amount in pod.requests), default=1)


def _untolerated(pod: PodView, nodes: Sequence[NodeView]) -> Taint:
    """The first taint that repels the pod; an empty one if there is none."""
    for node in nodes:
        for taint in node.taints:
            if taint.effect != "PreferNoSchedule" and not tolerates(pod.tolerations, taint):
                return taint
    return Taint("", "", "")


def _too_large_for(pod: PodView, machines: Sequence[MachineGroup]) -> Fit:
    best = max(machines, key=lambda each: sum(_has_room(pod, each.templates[0]).values()))
    node = best.templates[0]
    short = [r for r, fits in _has_room(pod, node).items() if not fits]
    message = ", ".join(
        f"{format_amount(r, dict(pod.requests)[r])} {r} of {format_amount(r, node.allocatable.get(r, 0))}"
        for r in short
    )
    problem = f"one pod requests more than any node's allocatable; on {best.name}: {message}"
    fix = "request less than a node's allocatable, which is less than its capacity, or add a pool of larger machines"
    return Fit("pod-larger-than-node", problem, fix)


def _has_room(pod: PodView, node: NodeView) -> dict[str, bool]:
    return {resource: amount <= node.allocatable.get(resource, 0) for resource, amount in pod.requests}


def _too_many(pod: PodView, count: int, machines: Sequence[MachineGroup]) -> Fit | None:
    room = sum(each.most * _room(pod, each) for each in machines)
    if room >= count:
        return None
    fix = f"run at most {room} pods in parallel, or let the pools grow to hold {count}"
    return Fit("too-few-nodes", f"it has {count} parallel pods, and {named(machines)} hold at most {room} of them", fix)


class Configuration:
    """The objects and their indexes. It is immutable, so derived values are cached."""

    def __init__(
        self, manifests: Sequence[Manifest], works: Sequence[LintedWork], *, fair_sharing: bool = False
    ) -> None:
        self.manifests = manifests
        self.works = works
        self.fair_sharing = fair_sharing
        self._by_kind: dict[str, list[Manifest]] = {}
        self._last: dict[Key, Manifest] = {}
        self._makes_pools_for: dict[str, bool] = {}
        self._users_of: dict[str, list[tuple[LintedWork, int]]] = {}
        for manifest in manifests:
            self._by_kind.setdefault(group_kind(manifest.obj), []).append(manifest)
            if manifest.obj["metadata"].get("name"):
                self._last[key_of(manifest.obj)] = manifest

    def all(self, kind: str) -> Sequence[Manifest]:
        """Every version of every object of a kind, in order."""
        return self._by_kind.get(kind, ())

    def find(self, kind: str, name: str, namespace: str = "") -> Manifest | None:
        """The last version of an object."""
        return self._last.get(Key(kind, namespace, name))

    def knows(self, kind: str) -> bool:
        """Whether there is any object of a kind; then the manifests are taken as complete for it."""
        return kind in self._by_kind

    def last(self, kind: str) -> list[Manifest]:
        """The last version of each object of a kind."""
        return [manifest for manifest in self.all(kind) if self._is_last(manifest)]

    def is_changed_later(self, manifest: Manifest) -> bool:
        """Whether a later version is submitted at another instant."""
        last = self._last.get(key_of(manifest.obj), manifest)
        return annotation(last.obj, well_known.SUBMIT_AT) != annotation(manifest.obj, well_known.SUBMIT_AT)

    def _is_last(self, manifest: Manifest) -> bool:
        return self._last.get(key_of(manifest.obj)) is manifest

    # --- queues ---

    @cached_property
    def queue_versions(self) -> list[tuple[Manifest, ClusterQueueView]]:
        """Every version of every ClusterQueue."""
        return [(manifest, cluster_queue_view(manifest.obj)) for manifest in self.all(scheme.CLUSTER_QUEUE)]

    @cached_property
    def queues(self) -> dict[str, tuple[Manifest, ClusterQueueView]]:
        """The ClusterQueues by name."""
        return {view.name: (manifest, view) for manifest, view in self.queue_versions if self._is_last(manifest)}

    @cached_property
    def cohorts(self) -> dict[str, tuple[Manifest, CohortView]]:
        """The Cohorts with an object, by name."""
        return {m.obj["metadata"]["name"]: (m, cohort_view(m.obj)) for m in self.last(scheme.COHORT)}

    @cached_property
    def quotas(self) -> list[tuple[Manifest, tuple[ResourceGroup, ...]]]:
        """The quotas of all ClusterQueues, then of all Cohorts."""
        queues = [(manifest, view.groups) for manifest, view in self.queues.values()]
        return queues + [(manifest, view.groups) for manifest, view in self.cohorts.values()]

    @cached_property
    def local_queues(self) -> dict[str, tuple[Manifest, LocalQueueView]]:
        """The LocalQueues by `namespace/name`."""
        views = [(manifest, local_queue_view(manifest.obj)) for manifest in self.last(scheme.LOCAL_QUEUE)]
        return {view.key: (manifest, view) for manifest, view in views}

    def local_queues_in(self, namespace: str) -> list[str]:
        """The names of the LocalQueues of a namespace."""
        found = (key.partition("/") for key in self.local_queues)
        return [name for where, _, name in found if where == namespace]

    @cached_property
    def flavors(self) -> dict[str, tuple[Manifest, FlavorView]]:
        """The ResourceFlavors by name."""
        return {m.obj["metadata"]["name"]: (m, flavor_view(m.obj)) for m in self.last(scheme.RESOURCE_FLAVOR)}

    @cached_property
    def snapshot(self) -> Snapshot:
        """Queues, Cohorts and flavors as the scheduler's snapshot, with no usage."""
        snapshot = Snapshot()
        for _, flavor in self.flavors.values():
            snapshot.put_flavor(flavor)
        for _, cohort in self.cohorts.values():
            snapshot.put_cohort(cohort)
        for _, queue in self.queues.values():
            snapshot.put_queue(queue)
        snapshot.settle()
        return snapshot

    def cluster_queue_of(self, work: LintedWork) -> ClusterQueue | None:
        """The ClusterQueue of work, if the manifests contain it and the LocalQueue."""
        found = self.local_queues.get(work.view.queue)
        return None if found is None else self.snapshot.queues.get(found[1].cluster_queue)

    @cached_property
    def works_by_queue(self) -> dict[str, list[LintedWork]]:
        """The work of each ClusterQueue, by its name."""
        found: dict[str, list[LintedWork]] = {name: [] for name in self.queues}
        for work in self.works:
            queue = self.cluster_queue_of(work)
            if queue is not None:
                found[queue.name].append(work)
        return found

    @cached_property
    def parts(self) -> list[LintedPodSet]:
        """The pod sets of all work whose ClusterQueue is known."""
        return list(parts_of(self.works, self.cluster_queue_of, self.snapshot))

    @cached_property
    def fits(self) -> list[tuple[LintedPodSet, Fits]]:
        """Whether the pods of each part fit nodes."""
        return fits_of(self.parts, self)

    def queues_with(self, flavor: str) -> list[ClusterQueueView]:
        """The ClusterQueues that use a flavor."""
        return [view for _, view in self.queues.values() if flavor in view.flavors]

    # --- machines ---

    @cached_property
    def park(self) -> MachineInventory:
        """The machines."""
        return MachineInventory(self.all(scheme.CLUSTER), self.last(scheme.NODE_POOL), self.last(scheme.NODE))

    def makes_pools_for(self, name: str) -> bool:
        """Whether the autoscaler could create pools with the labels of a flavor; True without work to check.

        If pools with such labels exist, none is created for pods that tolerate only the flavor's own taints, unless
        these repel other pods.
        """
        known = self._makes_pools_for.get(name)
        if known is None:
            flavor = self.flavors[name][1]
            pods = [work.pod(index, [flavor]) for work, index in self.users_of(name)] if self.park.makes_pools else []
            assumed = self.park.makes_pools and (not self.park.of(flavor) or _separates(flavor))
            known = self._makes_pools_for[name] = any(map(self.park.could_make, pods)) if pods else assumed
        return known

    def users_of(self, flavor: str) -> list[tuple[LintedWork, int]]:
        """The pod sets that may get a flavor by taints and labels, by work and index."""
        known = self._users_of.get(flavor)
        if known is None:
            view = self.flavors[flavor][1]
            known = self._users_of[flavor] = [
                (work, index)
                for queue in self.queues_with(flavor)
                for work in self.works_by_queue[queue.name]
                for index, pod_set in enumerate(work.view.pod_sets)
                if not flavor_mismatch(pod_set.template, flavor, view)
            ]
        return known

    # --- admission checks ---

    def provisions(self, queue: ClusterQueueView, flavor: str) -> bool:
        """Whether an AdmissionCheck requests capacity for a flavor before admission."""
        names = [rule.name for rule in queue.check_rules if flavor in rule.flavors]
        checks = [self.find(scheme.ADMISSION_CHECK, name) for name in names]
        return any(c and c.obj["spec"].get("controllerName") == PROVISIONING for c in checks)


def _separates(flavor: FlavorView) -> bool:
    """Whether the flavor has a taint for each of its non-system labels, as auto-created pools require."""
    keys = [taint.key for taint in flavor.taints]
    return all(is_system_label(key) or key in keys for key in flavor.labels)


#: The controller of capacity checks.
PROVISIONING = "kueue.x-k8s.io/provisioning-request"
