"""The Cluster as it is while machines are sold out, or take longer to boot: worked out from what it is otherwise.

Whatever begins or ends in whatever order, the Cluster is what users say, changed by all that lasts.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from batchyard.api.meta import Obj, with_path
from batchyard.core.machines.catalog import Catalog, MachineType, catalog_of
from batchyard.core.machines.times import spread_of
from batchyard.sim.faults import SlowBoot, Stockout

#: What takes longer: all from the machine until its node is ready.
_STEPS: Final = ("boot", "registration", "network", "drivers")


def with_shortages(cluster: Obj, stockouts: Iterable[Stockout], slow_boots: Iterable[SlowBoot]) -> Obj:
    """The Cluster under some stock-outs and slow boots."""
    sold_out = [row for stockout in stockouts for row in _rows(stockout, cluster)]
    if sold_out:
        cluster = with_path(cluster, ("spec", "capacity"), [*(cluster["spec"].get("capacity") or ()), *sold_out])
    catalog = catalog_of(cluster)
    for slow in slow_boots:
        if slow.machine in catalog.machines:
            times = _slowed(slow, catalog.machine(slow.machine), cluster, catalog)
            cluster = with_path(cluster, ("spec", "times", "byMachine", slow.machine), times)
    return cluster


def without_shortages(stored: Obj, calm: Obj, written: Obj) -> Obj:
    """The Cluster as users have it: `calm` was that when `written` was made of it; they may have changed it since."""
    times = (written["spec"].get("times") or {}).get("byMachine") or {}
    for path in [("spec", "capacity"), *(("spec", "times", "byMachine", name) for name in times)]:
        if _at(stored, path) == _at(written, path):
            stored = with_path(stored, path, _at(calm, path))
    return stored


def _at(obj: Any, path: Iterable[str]) -> Any:
    for field in path:
        obj = (obj or {}).get(field)
    return obj


def _rows(stockout: Stockout, cluster: Obj) -> Iterator[Mapping[str, Any]]:
    """Rows of capacity that leave nothing to whoever comes; those who have machines keep them."""
    model = {"provisioning": stockout.provisioning} if stockout.provisioning else {}
    for zone in [stockout.zone] if stockout.zone else _zones(cluster):
        yield {"machineType": stockout.machine, "zone": zone, **model, "count": 0}


def _zones(cluster: Obj) -> list[str]:
    """All zones in which the Cluster may have machines."""
    spec = cluster["spec"]
    pools = spec.get("nodePools") or ()
    return sorted({zone: None for rows in (spec, *pools) for zone in rows.get("zones") or ()})


def _slowed(slow: SlowBoot, machine: MachineType, cluster: Obj, catalog: Catalog) -> Mapping[str, Any]:
    """The times of a machine type, so many times as long as the Cluster has them now."""
    said = ((cluster["spec"].get("times") or {}).get("byMachine") or {}).get(machine.name) or {}
    longer = {}
    for step in _STEPS:
        spread = spread_of(step, machine, cluster, catalog)
        shortest, typical, longest = (f"{figure * slow.times}us" for figure in spread)
        longer[step] = {"min": shortest, "typical": typical, "max": longest}
    return {**said, **longer}
