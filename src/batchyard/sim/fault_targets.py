"""What the faults of a scenario are aimed at, against the Cluster: what is not there would never go wrong."""

from collections.abc import Collection, Iterator, Sequence
from difflib import get_close_matches
from typing import Any, NamedTuple

from batchyard.api.errors import FieldError
from batchyard.api.meta import Obj
from batchyard.core.machines.catalog import catalog_of
from batchyard.sim.faults import Conflicts, Drain, Fail, ReclaimSpot, Restart, ScheduledFault, SlowBoot, Stockout


class Targets(NamedTuple):
    """What there is for faults to meet, at some time of the scenario."""

    #: All that is said of the Cluster: as it is from the start, and as it is changed later.
    clusters: Sequence[Obj]
    has_nodes: bool

    def pools(self) -> dict[str, Any]:
        """The pools by name; one of Spot machines if it ever is."""
        rows = [row for cluster in self.clusters for row in cluster["spec"].get("nodePools") or ()]
        return {row["name"]: row for row in sorted(rows, key=lambda row: row.get("provisioning") == "spot")}

    def makes_pools(self) -> bool:
        """Whether pools are made whose names are not known yet."""
        settings = [cluster["spec"].get("autoscaling") or {} for cluster in self.clusters]
        return any("autoProvisioning" in each for each in settings)


def target_faults(faults: Sequence[ScheduledFault], targets: Targets) -> Iterator[FieldError]:
    """All that faults are aimed at and that is not there, with its place."""
    for fault in faults:
        path, action = fault.path, fault.action
        if isinstance(action, Conflicts | Restart):
            continue
        if not targets.clusters:
            if not (isinstance(action, Drain) and targets.has_nodes):
                remedy = "add a document of kind Cluster, or drop the fault"
                yield FieldError(path, "there is no Cluster, so it would meet nobody", remedy)
            continue
        yield from _found_faults(action, path, targets)


def _found_faults(action: object, path: str, targets: Targets) -> Iterator[FieldError]:
    match action:
        case Fail(pool=pool, slice=whole) if pool or whole:
            yield from _pool_faults(pool or whole, f"{path}.fail.{'pool' if pool else 'slice'}", targets)
        case ReclaimSpot(pool=pool):
            yield from _pool_faults(pool, f"{path}.reclaimSpot.pool", targets)
            yield from _spot_faults(pool, f"{path}.reclaimSpot.pool", targets)
        case Stockout(machine=machine, zone=zone):
            yield from _machine_faults(machine, f"{path}.stockout.machine", targets)
            zones = {each: None for cluster in targets.clusters for each in cluster["spec"]["zones"]}
            if zone and zone not in zones:
                yield _unknown(f"{path}.stockout.zone", "zone", zone, zones)
        case SlowBoot(machine=machine):
            yield from _machine_faults(machine, f"{path}.slowBoot.machine", targets)


def _pool_faults(name: str, path: str, targets: Targets) -> Iterator[FieldError]:
    if name not in targets.pools() and not targets.makes_pools():
        yield _unknown(path, "node pool", name, targets.pools())


def _spot_faults(name: str, path: str, targets: Targets) -> Iterator[FieldError]:
    pool = targets.pools().get(name)
    if pool is not None and pool.get("provisioning") != "spot":
        provisioning = pool.get("provisioning", "standard")
        problem = f"the machines of {name!r} are {provisioning}, so nobody takes them back"
        yield FieldError(path, problem, "name a pool with `provisioning: spot`, or use fail")


def _machine_faults(name: str, path: str, targets: Targets) -> Iterator[FieldError]:
    known = {machine: None for cluster in targets.clusters for machine in catalog_of(cluster).machines}
    if name not in known:
        yield _unknown(path, "machine type", name, known)


def _unknown(path: str, what: str, name: str, known: Collection[str]) -> FieldError:
    close = get_close_matches(name, list(known), 1)
    hint = f"did you mean {close[0]!r}?" if close else f"name one that the Cluster has, such as {min(known)!r}"
    return FieldError(path, f"unknown {what} {name!r}", hint if known else "the Cluster has none")
