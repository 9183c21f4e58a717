"""How long the steps of a machine take: three figures each, from the Cluster, else from the catalogue."""

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from batchyard.api.meta import Obj
from batchyard.base.instant import Duration, parse_duration
from batchyard.core.machines.catalog import Catalog, MachineType, catalog_of

#: The step that takes as long on every machine.
POD_START: Final = "podStart"


class Spread(NamedTuple):
    """The shortest, the most likely and the longest duration of a step."""

    shortest: Duration
    typical: Duration
    longest: Duration


def spread_of(step: str, machine: MachineType, cluster: Obj, catalog: Catalog) -> Spread:
    """How long a step (`boot`, `drivers`, ...; see the catalogue) takes for a machine type."""
    row = _figures(step, machine, cluster, catalog)
    return Spread(parse_duration(row["min"]), parse_duration(row["typical"]), parse_duration(row["max"]))


def in_typical_times(cluster: Obj) -> Obj:
    """A Cluster of which every step of every machine takes its typical time, so that nothing hangs on chance."""
    catalog = catalog_of(cluster)
    spec = cluster.get("spec") or {}
    said: Mapping[str, Any] = spec.get("times") or {}
    steps = [step for step, row in catalog.times.items() if isinstance(row, Mapping)]

    def typical(machine: MachineType, steps: Iterable[str]) -> Mapping[str, Any]:
        texts = {step: _figures(step, machine, cluster, catalog)["typical"] for step in steps}
        return {step: {"min": text, "typical": text, "max": text} for step, text in texts.items()}

    its_own = [step for step in steps if step != POD_START]
    by_machine = dict(said.get("byMachine") or {})
    for name, machine in catalog.machines.items():
        by_machine[name] = {**by_machine.get(name, {}), **typical(machine, its_own)}
    times = {**said, **typical(catalog.machine(""), steps), "byMachine": by_machine}
    return {**cluster, "spec": {**spec, "times": times}}


def preparation(machine: MachineType, cluster: Obj, catalog: Catalog) -> Duration:
    """Return the longest time from the request of a machine until its node is ready."""
    last = "network" if machine.accelerator is None else "drivers"
    steps = ("provisioning", "boot", "registration", last)
    return sum(spread_of(step, machine, cluster, catalog).longest for step in steps)


def repair_time(machine: MachineType, cluster: Obj, catalog: Catalog) -> Duration:
    """How long after a crash a machine is replaced."""
    text: str = _figures("repair", machine, cluster, catalog)
    return parse_duration(text)


def _figures(step: str, machine: MachineType, cluster: Obj, catalog: Catalog) -> Any:
    """What is said of a step at the nearest place: for the type, its family, the cluster, else in the catalogue."""
    said: Mapping[str, Any] = (cluster.get("spec") or {}).get("times") or {}
    by_machine = said.get("byMachine") or {}
    places = (
        by_machine.get(machine.name) or {},
        by_machine.get(machine.family) or {},
        said,
        catalog.family(machine).times,
        catalog.times,
    )
    return next(place[step] for place in places if step in place)
