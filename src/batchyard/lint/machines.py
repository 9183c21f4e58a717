"""The possible machines: pools at their maximum size, existing nodes, and pools that the autoscaler could create."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from batchyard.api import scheme, well_known
from batchyard.api.manifests import Manifest
from batchyard.api.meta import Obj
from batchyard.api.views.node import NodeView, node_view
from batchyard.api.views.pods import PodView
from batchyard.api.views.queues import FlavorView
from batchyard.autoscaler.auto_provisioning import NodeAutoProvisioner, node_pool
from batchyard.autoscaler.node_groups import NodeGroup, groups_of
from batchyard.autoscaler.settings import settings_of
from batchyard.cloud.catalog.instances import find_reservation
from batchyard.cloud.catalog.pools import zones_of
from batchyard.cloud.node_requirements import NodeRequirements

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
