"""The objects of the linted manifests, indexed for the rules: queues, flavors, jobs, and machines for their pods.

If the manifests define an object several times, rules that combine objects use the last definition. Some rules on
single objects check every definition.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice, product
from typing import Final, NamedTuple, Protocol, TypeAlias

from batchyard.admission_plugins.built_in import SYSTEM_NAMESPACES
from batchyard.api import scheme, well_known
from batchyard.api.manifests import Manifest
from batchyard.api.meta import Key, Obj, annotation, format_amount, group_kind, key_of
from batchyard.api.views import workload
from batchyard.api.views.node import FlavorView, NodeView, Taint, flavor_view, node_view
from batchyard.api.views.pods import PodView
from batchyard.autoscaler.auto_provisioning import NodeAutoProvisioner, node_pool
from batchyard.autoscaler.node_groups import NodeGroup, groups_of, settings_of
from batchyard.base.counts import count_with_noun
from batchyard.cloud.catalog.instances import find_reservation
from batchyard.cloud.catalog.nodes import location_label_names
from batchyard.cloud.catalog.pool_properties import zones_of
from batchyard.cloud.cluster_objects import NodeRequirements, is_system_label
from batchyard.lint.workloads import LintedJob, LintedPodSet, assign_flavors
from batchyard.placement.node_filters import selects, tolerates
from batchyard.scheduling.cluster_queue import ClusterQueue, flavor_mismatch
from batchyard.scheduling.quota import FlavorAssignmentMode
from batchyard.scheduling.resource_charging import ResourceCharging, ResourceRules, parse_resource_rules
from batchyard.scheduling.snapshot import Snapshot

# The possible machines: pools at their maximum size, existing nodes, and pools that the autoscaler could create.


_NAMES_SHOWN_MAX: Final = 3
#: Key prefixes of temporary taints, which node controllers and the autoscaler add and remove.
_TEMPORARY_TAINT_PREFIXES: Final = (
    *("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/"),
    *(well_known.TO_BE_DELETED, well_known.DELETION_CANDIDATE),
)


@dataclass(frozen=True, slots=True)
class MachineGroup:
    """The machines of one NodePool, or one Node: a node template per zone, maximum count and provisioning model."""

    name: str
    manifest: Manifest
    path: str
    #: Node templates, one per zone.
    templates: tuple[NodeView, ...]
    #: The maximum number of machines.
    max_count: int
    #: Whether an autoscaler sets the number of machines.
    is_autoscaled: bool
    #: The provisioning model: standard, spot, queued or flex-start.
    provisioning: str
    #: The number of machines that are created and deleted together.
    hosts: int
    #: The labels that each machine gets with a value of its own, and that the templates lack.
    own_labels: frozenset[str] = frozenset()

    def has_labels(self, labels: Mapping[str, str]) -> bool:
        """Return whether the node template of at least one zone has all of these labels."""
        return any(labels.items() <= template.labels.items() for template in self.templates)

    def total_allocatable(self, resource: str) -> int:
        """Return an upper bound of the allocatable amount of a resource, for the maximum number of machines."""
        return self.max_count * max(template.allocatable.get(resource, 0) for template in self.templates)


class MachineInventory:
    """The machines in the linted manifests: node pools, nodes, and pools that the autoscaler could create."""

    def __init__(self, clusters: Sequence[Manifest], pools: Sequence[Manifest], nodes: Sequence[Manifest]) -> None:
        self.cluster: Obj | None = clusters[0].obj if clusters else None
        pool_machine_groups = _pool_machines(self.cluster, clusters, pools)
        self.machines: tuple[MachineGroup, ...] = (*pool_machine_groups, *map(_node_as_machine, nodes))
        self.can_create_pools = False
        self._limits: Mapping[str, int] = {}
        if self.cluster is not None:
            settings = settings_of(self.cluster)
            self.can_create_pools = settings.makes_pools
            self._limits = {resource: limit.maximum for resource, limit in settings.limits.items()}

    @property
    def is_known(self) -> bool:
        """Whether the manifests contain a Cluster or a Node; NodePools count only together with a Cluster."""
        return self.cluster is not None or bool(self.machines)

    @property
    def pools(self) -> list[MachineGroup]:
        """The machine groups of node pools, without those of single Nodes."""
        return [machines for machines in self.machines if machines.path]

    def machines_for(self, flavor: FlavorView) -> list[MachineGroup]:
        """Return the machine groups whose node labels match a ResourceFlavor."""
        return [machines for machines in self.machines if machines.has_labels(flavor.labels)]

    def can_create_pool_for(self, pod: PodView) -> bool:
        """Return whether node auto-provisioning can create a node pool that satisfies a pod's node requirements."""
        if self.cluster is None or not self.can_create_pools:
            return False
        return isinstance(NodeAutoProvisioner(self.cluster, self._limits, ()).requirements(pod), NodeRequirements)

    def max_creatable_amount(self, resource: str, labels: Mapping[str, str]) -> int:
        """Return how much of a resource (cpu in millicores) node auto-provisioning can create for a flavor's labels.

        The amount is the sum of the Cluster's auto-provisioning limits that apply; 0 if this feature is disabled.
        """
        if not self.can_create_pools:
            return 0
        if resource in {"cpu", "memory"}:
            resource_limit = self._limits.get(resource, 0)
            return resource_limit * 1000 if resource == "cpu" else resource_limit
        accelerators = [name for name in self._limits if name not in {"cpu", "memory"}]
        selector = labels.get(well_known.ACCELERATOR) or labels.get(well_known.TPU_ACCELERATOR)
        usable_accelerators = [
            name for name in accelerators if selector in (None, name) and _requests_accelerator(resource, name)
        ]
        return sum(self._limits[name] for name in usable_accelerators)


def _requests_accelerator(resource: str, accelerator: str) -> bool:
    return resource == (well_known.TPU if accelerator.startswith("tpu") else well_known.GPU)


def _pool_machines(
    cluster: Obj | None, clusters: Sequence[Manifest], pools: Sequence[Manifest]
) -> Iterator[MachineGroup]:
    """Yield the machine group of each node pool of Clusters and NodePools; of pools with equal names, only the last."""
    if cluster is None:
        return
    pools_by_name: dict[str, tuple[Manifest, str, Obj]] = {}
    for manifest in clusters:
        for index, pool_spec in enumerate(manifest.obj["spec"].get("nodePools") or ()):
            spec = {field: value for field, value in pool_spec.items() if field != "name"}
            pools_by_name[pool_spec["name"]] = manifest, f"spec.nodePools[{index}]", node_pool(pool_spec["name"], spec)
    for manifest in pools:
        pools_by_name[manifest.obj["metadata"]["name"]] = manifest, "spec", manifest.obj
    for manifest, path, pool in pools_by_name.values():
        yield _machines_of_pool(pool, cluster, manifest, path)


def _machines_of_pool(pool: Obj, cluster: Obj, manifest: Manifest, path: str) -> MachineGroup:
    node_groups = groups_of(pool, cluster)
    return MachineGroup(
        name=pool["metadata"]["name"],
        manifest=manifest,
        path=path,
        templates=tuple(group.template for group in node_groups),
        max_count=_max_machine_count(pool, cluster, node_groups),
        is_autoscaled=node_groups[0].is_autoscaled,
        provisioning=node_groups[0].provisioning,
        hosts=node_groups[0].hosts,
        own_labels=location_label_names(pool, cluster) | {well_known.HOSTNAME},
    )


def _max_machine_count(pool: Obj, cluster: Obj, node_groups: Sequence[NodeGroup]) -> int:
    if node_groups[0].is_autoscaled:
        max_count = min(sum(group.size.maximum for group in node_groups), node_groups[0].total.maximum)
    else:
        zone_count = 1 if node_groups[0].hosts > 1 else len(zones_of(pool, cluster))
        max_count = pool["spec"].get("nodeCount", node_groups[0].hosts if node_groups[0].hosts > 1 else 0) * zone_count
    reservation = (
        find_reservation(cluster, node_groups[0].reservation_name) if node_groups[0].reservation_name else None
    )
    return max_count if reservation is None else min(max_count, reservation["count"])


def format_machine_names(machine_groups: Sequence[MachineGroup]) -> str:
    """Return the names of the first three machine groups as a text, with the number of further groups."""
    names = [group.name for group in machine_groups]
    return ", ".join(names[:_NAMES_SHOWN_MAX]) + (
        f" and {len(names) - _NAMES_SHOWN_MAX} more" if len(names) > _NAMES_SHOWN_MAX else ""
    )


def _node_as_machine(manifest: Manifest) -> MachineGroup:
    view = node_view(manifest.obj)
    taints = [taint for taint in view.taints if not taint.key.startswith(_TEMPORARY_TAINT_PREFIXES)]
    view = replace(view, taints=tuple(taints))
    provisioning = "spot" if view.labels.get(well_known.SPOT) == "true" else "standard"
    return MachineGroup(view.name, manifest, "", (view,), 1, is_autoscaled=False, provisioning=provisioning, hosts=1)


#: The kinds that describe machines.
MACHINE_KINDS = (scheme.CLUSTER, scheme.NODE_POOL, scheme.NODE)


# Whether the pods of queued jobs fit the nodes of their possible flavors, by the rules of kube-scheduler.


#: The maximum number of flavor combinations that are checked for a pod set with several resource groups.
_FLAVOR_COMBINATIONS_MAX: Final = 64


class LintContext(Protocol):
    """The machines, flavors and queues against which lint checks whether pods fit nodes."""

    @property
    def inventory(self) -> MachineInventory:
        """The machines that the linted manifests describe."""

    @property
    def flavors(self) -> Mapping[str, tuple[Manifest, FlavorView]]:
        """The ResourceFlavors by name, each with its manifest."""

    @property
    def snapshot(self) -> Snapshot:
        """The ClusterQueues and Cohorts as a scheduler snapshot."""


class NodeMismatch(NamedTuple):
    """Why the pods of a pod set fit no node in their flavors: the violated lint rule, the problem and how to fix it."""

    rule: str
    problem: str
    fix: str


NodeMismatches: TypeAlias = Mapping[tuple[str, ...], NodeMismatch | None]


def find_node_mismatches(
    pod_sets: Sequence[LintedPodSet], context: LintContext
) -> list[tuple[LintedPodSet, NodeMismatches]]:
    """Return each pod set that some flavors can admit, with its node mismatches by flavor combination.

    The mismatch is None if the pods fit a machine. At most 64 combinations of the flavors that the pod set may use are
    checked. Return [] if the manifests contain no machines.
    """
    if not context.inventory.is_known:
        return []
    admissible_pod_sets = [each for each in pod_sets if each.assignment.mode is not FlavorAssignmentMode.NO_FIT]
    return [(pod_set, _mismatches_by_flavors(pod_set, context)) for pod_set in admissible_pod_sets]


def _mismatches_by_flavors(pod_set: LintedPodSet, context: LintContext) -> NodeMismatches:
    usable_flavors = [_usable_flavors(pod_set, group, context) for group in range(len(pod_set.queue.view.groups))]
    combinations = islice(product(*[flavors for flavors in usable_flavors if flavors]), _FLAVOR_COMBINATIONS_MAX)
    return {combination: _find_mismatch(pod_set, combination, context) for combination in combinations}


def _usable_flavors(pod_set: LintedPodSet, group_index: int, context: LintContext) -> list[str]:
    resource_group, snapshot = pod_set.queue.view.groups[group_index], context.snapshot
    template = pod_set.job.view.pod_sets[pod_set.index].template
    count = pod_set.assignment.count
    total_requests = {r: amount * count for r, amount in template.requests if r in resource_group.resources and amount}
    if not total_requests:
        return []
    obstacles = snapshot.obstacles.mismatches_for(template, resource_group.flavors)
    max_quota = pod_set.queue.node.potential_quota
    return [
        flavor
        for flavor, obstacle in zip(resource_group.flavors, obstacles, strict=True)
        if not obstacle
        and all(amount <= max_quota[snapshot.flavor_resource_id(flavor, r)] for r, amount in total_requests.items())
    ]


def _find_mismatch(pod_set: LintedPodSet, flavor_names: Sequence[str], context: LintContext) -> NodeMismatch | None:
    flavors: list[FlavorView] = [context.flavors[name][1] for name in flavor_names]
    pod = pod_set.job.pod(
        pod_set.index, flavors, with_queued_toleration=True
    )  # the rule queued-pool-without-check covers machines on request
    machine_groups, rules = context.inventory.machines, pod.shape.rules
    groups = [group for group in machine_groups if any(selects(rules, template) for template in group.templates)]
    tolerated_groups = [group for group in groups if _pods_per_machine(pod, group, only_taints=True)]
    if context.inventory.can_create_pool_for(pod):
        return None
    if not groups:
        labels_text = ", ".join(f"{key}={value}" for key, value in pod.node_selector) or "of its node affinity"
        fix = "select labels that nodes have, or add a node pool with these labels"
        return NodeMismatch("no-such-node", f"no node pool or node has the labels {labels_text}", fix)
    if not tolerated_groups:
        taint = _first_untolerated_taint(pod, groups[0].templates)
        taint_text = f"{taint.key}={taint.value}:{taint.effect}"
        fix = f"tolerate {taint.key} in the pod template, or in spec.tolerations of the flavor"
        return NodeMismatch(
            "untolerated-taint",
            f"nodes of {format_machine_names(groups)} have the taint {taint_text}, which the pods do not tolerate",
            fix,
        )
    if not any(_pods_per_machine(pod, group) for group in tolerated_groups):
        return _oversized_pod_mismatch(pod, tolerated_groups)
    return _pod_count_mismatch(pod, pod_set.assignment.count, tolerated_groups)


def _pods_per_machine(pod: PodView, machine_group: MachineGroup, *, only_taints: bool = False) -> int:
    """Return how many pods like `pod` one machine of the group holds.

    With `only_taints`, return 1 if the labels and taints of the machine admit the pod, otherwise 0.
    """
    return max((_pods_on_template(pod, template, only_taints) for template in machine_group.templates), default=0)


def _pods_on_template(pod: PodView, node: NodeView, only_taints: bool) -> int:
    selector_rules = pod.shape.rules
    if not selects(selector_rules, node) or _first_untolerated_taint(pod, [node]).key:
        return 0
    if only_taints:
        return 1
    return min((node.allocatable.get(resource, 0) // amount for resource, amount in pod.requests), default=1)


def _first_untolerated_taint(pod: PodView, nodes: Sequence[NodeView]) -> Taint:
    for node in nodes:
        for taint in node.taints:
            if taint.effect != "PreferNoSchedule" and not tolerates(pod.tolerations, taint):
                return taint
    return Taint("", "", "")


def _oversized_pod_mismatch(pod: PodView, machine_groups: Sequence[MachineGroup]) -> NodeMismatch:
    closest_group = max(machine_groups, key=lambda group: sum(_fits_by_resource(pod, group.templates[0]).values()))
    node = closest_group.templates[0]
    insufficient_resources = [r for r, fits in _fits_by_resource(pod, node).items() if not fits]
    amounts_text = ", ".join(
        f"{format_amount(r, dict(pod.requests)[r])} {r} requested,"
        f" {format_amount(r, node.allocatable.get(r, 0))} allocatable"
        for r in insufficient_resources
    )
    problem = f"one pod requests more than the allocatable amount of any node; on {closest_group.name}: {amounts_text}"
    fix = "request at most the allocatable amount of one node, or add a pool of larger machines"
    return NodeMismatch("pod-larger-than-node", problem, fix)


def _fits_by_resource(pod: PodView, node: NodeView) -> dict[str, bool]:
    return {resource: amount <= node.allocatable.get(resource, 0) for resource, amount in pod.requests}


def _pod_count_mismatch(pod: PodView, count: int, machine_groups: Sequence[MachineGroup]) -> NodeMismatch | None:
    pod_capacity = sum(group.max_count * _pods_per_machine(pod, group) for group in machine_groups)
    if pod_capacity >= count:
        return None
    pods_text, capacity_text = count_with_noun(count, "pod"), count_with_noun(pod_capacity, "pod")
    fix = f"run at most {capacity_text} in parallel, or raise the pools' maximum size so that {pods_text} fit"
    return NodeMismatch(
        "too-few-nodes",
        f"the job runs {pods_text} in parallel, but the nodes of {format_machine_names(machine_groups)} hold at most"
        f" {pod_capacity}",
        fix,
    )


class LintedManifests:
    """The objects of the linted manifests, with indexes for the rules.

    The objects never change, so the indexes are cached.
    """

    def __init__(
        self,
        manifests: Sequence[Manifest],
        jobs: Sequence[LintedJob],
        *,
        fair_sharing: bool = False,
        existing_namespaces: Collection[str] = (),
    ) -> None:
        self.manifests = manifests
        #: The Namespaces that exist without a manifest.
        self.existing_namespaces = frozenset((*SYSTEM_NAMESPACES, *existing_namespaces))
        self.jobs = jobs
        self.fair_sharing = fair_sharing
        self._manifests_by_kind: dict[str, list[Manifest]] = {}
        self._latest_manifests: dict[Key, Manifest] = {}
        self._can_create_pools_for: dict[str, bool] = {}
        self._eligible_pod_sets: dict[str, list[tuple[LintedJob, int]]] = {}
        for manifest in manifests:
            self._manifests_by_kind.setdefault(group_kind(manifest.obj), []).append(manifest)
            if manifest.obj["metadata"].get("name"):
                self._latest_manifests[key_of(manifest.obj)] = manifest

    def all_versions(self, kind: str) -> Sequence[Manifest]:
        """Return every definition of every object of a kind, in the order of the manifests."""
        return self._manifests_by_kind.get(kind, ())

    def find(self, kind: str, name: str, namespace: str = "") -> Manifest | None:
        """Return the last manifest that defines an object; None if no manifest defines it."""
        return self._latest_manifests.get(Key(kind, namespace, name))

    def find_object(self, key: Key) -> Obj | None:
        """Return the object of the last manifest that defines it; None if no manifest defines it."""
        manifest = self._latest_manifests.get(key)
        return None if manifest is None else manifest.obj

    def has_kind(self, kind: str) -> bool:
        """Return whether the manifests contain objects of a kind; if so, rules assume that they contain all of them."""
        return kind in self._manifests_by_kind

    def latest_versions(self, kind: str) -> list[Manifest]:
        """Return the last definition of each object of a kind that has a name."""
        return [manifest for manifest in self.all_versions(kind) if self._is_latest(manifest)]

    def is_redefined_later(self, manifest: Manifest) -> bool:
        """Return whether the object's last definition in the manifests has another submission time than `manifest`.

        The submission time is the value of the annotation SUBMIT_AT.
        """
        latest_version = self._latest_manifests.get(key_of(manifest.obj), manifest)
        return annotation(latest_version.obj, well_known.SUBMIT_AT) != annotation(manifest.obj, well_known.SUBMIT_AT)

    def _is_latest(self, manifest: Manifest) -> bool:
        return self._latest_manifests.get(key_of(manifest.obj)) is manifest

    def node_selectors(self) -> Iterator[tuple[Manifest, str, Mapping[str, str]]]:
        """Yield the node labels that pod templates and flavors select, each with its manifest and field path."""
        for job in self.jobs:
            for path, template in zip(job.paths, job.templates, strict=True):
                yield job.manifest, f"{path}.spec.nodeSelector", (template.get("spec") or {}).get("nodeSelector") or {}
        for manifest, flavor in self.flavors.values():
            yield manifest, "spec.nodeLabels", flavor.labels

    # --- queues ---

    @cached_property
    def queue_versions(self) -> list[tuple[Manifest, workload.ClusterQueueView]]:
        """Every definition of every ClusterQueue, as pairs of manifest and view."""
        return [(each, workload.cluster_queue_view(each.obj)) for each in self.all_versions(scheme.CLUSTER_QUEUE)]

    @cached_property
    def queues(self) -> dict[str, tuple[Manifest, workload.ClusterQueueView]]:
        """The manifest and view of the last definition of each ClusterQueue, by name."""
        return {view.name: (manifest, view) for manifest, view in self.queue_versions if self._is_latest(manifest)}

    @cached_property
    def cohorts(self) -> dict[str, tuple[Manifest, workload.CohortView]]:
        """The manifest and view of each Cohort object, by name."""
        manifests = self.latest_versions(scheme.COHORT)
        return {m.obj["metadata"]["name"]: (m, workload.cohort_view(m.obj)) for m in manifests}

    @cached_property
    def resource_groups(self) -> list[tuple[Manifest, tuple[workload.ResourceGroup, ...]]]:
        """The resource groups of each ClusterQueue, then of each Cohort, each with the manifest of that object."""
        groups = [(manifest, view.groups) for manifest, view in self.queues.values()]
        return groups + [(manifest, view.groups) for manifest, view in self.cohorts.values()]

    @cached_property
    def local_queues(self) -> dict[str, tuple[Manifest, workload.LocalQueueView]]:
        """The manifest and view of each LocalQueue, by `namespace/name`."""
        views = [(each, workload.local_queue_view(each.obj)) for each in self.latest_versions(scheme.LOCAL_QUEUE)]
        return {view.key: (each, view) for each, view in views}

    def local_queues_in(self, namespace: str) -> list[str]:
        """Return the names of the LocalQueues in a namespace."""
        keys = (key.partition("/") for key in self.local_queues)
        return [name for queue_namespace, _, name in keys if queue_namespace == namespace]

    @cached_property
    def flavors(self) -> dict[str, tuple[Manifest, FlavorView]]:
        """The manifest and view of each ResourceFlavor, by name."""
        manifests = self.latest_versions(scheme.RESOURCE_FLAVOR)
        return {m.obj["metadata"]["name"]: (m, flavor_view(m.obj)) for m in manifests}

    @cached_property
    def snapshot(self) -> Snapshot:
        """The ClusterQueues, Cohorts and ResourceFlavors as a scheduler snapshot in which no quota is used."""
        snapshot = Snapshot(ignores_undeclared=self._resource_rules.ignores_undeclared)
        for _, flavor in self.flavors.values():
            snapshot.put_flavor(flavor)
        for _, cohort in self.cohorts.values():
            snapshot.put_cohort(cohort)
        for _, queue in self.queues.values():
            snapshot.put_queue(queue)
        snapshot.rebuild_if_changed()
        return snapshot

    @cached_property
    def _resource_rules(self) -> ResourceRules:
        configurations = self.all_versions(scheme.CONFIGURATION)
        return (
            parse_resource_rules(configurations[-1].obj.get("resources") or {}) if configurations else ResourceRules()
        )

    @cached_property
    def _charging(self) -> ResourceCharging:
        return ResourceCharging(self._resource_rules)

    def charged_pod_sets(self, job: LintedJob) -> Sequence[workload.PodSet]:
        """Return the parsed pod sets of a job, with the requests that quota is charged for."""
        pod_sets = job.view.pod_sets
        return self._charging.charge(job.workload, pod_sets) if self._resource_rules.changes_requests else pod_sets

    def cluster_queue_of(self, job: LintedJob) -> ClusterQueue | None:
        """Return the ClusterQueue of a job; None if the manifests lack its LocalQueue or ClusterQueue."""
        local_queue = self.local_queues.get(job.view.queue)
        return None if local_queue is None else self.snapshot.queues.get(local_queue[1].cluster_queue)

    @cached_property
    def jobs_by_queue(self) -> dict[str, list[LintedJob]]:
        """The Jobs, JobSets and bare Workloads of each ClusterQueue, by its name."""
        jobs_by_queue: dict[str, list[LintedJob]] = {name: [] for name in self.queues}
        for job in self.jobs:
            queue = self.cluster_queue_of(job)
            if queue is not None:
                jobs_by_queue[queue.name].append(job)
        return jobs_by_queue

    @cached_property
    def pod_sets(self) -> list[LintedPodSet]:
        """The pod sets of all Jobs, JobSets and Workloads whose ClusterQueue is in the manifests."""
        return list(assign_flavors(self.jobs, self.cluster_queue_of, self.snapshot, self.charged_pod_sets))

    @cached_property
    def node_mismatches(self) -> list[tuple[LintedPodSet, NodeMismatches]]:
        """Each admissible pod set, with why its pods fit no node in their flavors; see `find_node_mismatches`."""
        return find_node_mismatches(self.pod_sets, self)

    def queues_using(self, flavor: str) -> list[workload.ClusterQueueView]:
        """Return the views of the ClusterQueues that list a flavor in their resource groups."""
        return [view for _, view in self.queues.values() if flavor in view.flavors]

    # --- machines ---

    @cached_property
    def inventory(self) -> MachineInventory:
        """The machines that the linted manifests describe."""
        return MachineInventory(
            self.all_versions(scheme.CLUSTER), self.latest_versions(scheme.NODE_POOL), self.latest_versions(scheme.NODE)
        )

    def can_create_pools_for(self, name: str) -> bool:
        """Return whether node auto-provisioning can create node pools for the flavor `name`; False if it is disabled.

        If jobs can use the flavor, it must be able to create a pool for a pod of at least one of them. Otherwise, no
        machine may have the flavor's labels yet, or the flavor must have a taint for each of its labels.
        """
        can_create_pools = self._can_create_pools_for.get(name)
        if can_create_pools is None:
            flavor = self.flavors[name][1]
            pods = (
                [job.pod(index, [flavor]) for job, index in self.eligible_pod_sets(name)]
                if self.inventory.can_create_pools
                else []
            )
            can_create_labeled_pools = self.inventory.can_create_pools and (
                not self.inventory.machines_for(flavor) or _has_taint_per_label(flavor)
            )
            can_create_pools = self._can_create_pools_for[name] = (
                any(map(self.inventory.can_create_pool_for, pods)) if pods else can_create_labeled_pools
            )
        return can_create_pools

    def eligible_pod_sets(self, flavor: str) -> list[tuple[LintedJob, int]]:
        """Return the pod sets that can use a flavor, as pairs of job and pod set index.

        Their ClusterQueue has the flavor, and their tolerations and selectors allow it.
        """
        job_and_index_pairs = self._eligible_pod_sets.get(flavor)
        if job_and_index_pairs is None:
            flavor_view = self.flavors[flavor][1]
            job_and_index_pairs = self._eligible_pod_sets[flavor] = [
                (job, index)
                for queue in self.queues_using(flavor)
                for job in self.jobs_by_queue[queue.name]
                for index, pod_set in enumerate(job.view.pod_sets)
                if not flavor_mismatch(pod_set.template, flavor, flavor_view)
            ]
        return job_and_index_pairs

    # --- admission checks ---

    def creates_provisioning_requests(self, queue: workload.ClusterQueueView, flavor: str) -> bool:
        """Return whether an AdmissionCheck of a ClusterQueue creates ProvisioningRequests for Workloads in a flavor."""
        names = [rule.name for rule in queue.check_rules if flavor in rule.flavors]
        checks = [self.find(scheme.ADMISSION_CHECK, name) for name in names]
        return any(check and check.obj["spec"].get("controllerName") == PROVISIONING_CONTROLLER for check in checks)


def _has_taint_per_label(flavor: FlavorView) -> bool:
    """Return whether a flavor has a taint for each of its non-system labels, as node auto-provisioning requires."""
    keys = [taint.key for taint in flavor.taints]
    return all(is_system_label(key) or key in keys for key in flavor.labels)


#: The controllerName of AdmissionChecks that create ProvisioningRequests.
PROVISIONING_CONTROLLER = "kueue.x-k8s.io/provisioning-request"
