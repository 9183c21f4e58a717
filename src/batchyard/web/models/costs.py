"""What the machines cost, by team and by pool."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from batchyard.api import scheme
from batchyard.web.amounts import share
from batchyard.web.sight import Scope
from batchyard.web.source import CostLine, Model, Query, Source

_Name: TypeAlias = Callable[[CostLine], str]


def costs(source: Source, scope: Scope, _query: Query) -> Model:
    """See the module; without books it says so. Whoever does not see all Workloads does not see what all cost."""
    if not (scope.all_of(scheme.NODE) and scope.all_of(scheme.WORKLOAD)):
        return {"forbidden": "nodes and workloads"}
    if source.costs is None:
        return {"kept": False}
    found = source.costs
    return {
        "kept": True,
        "total": _dollars(found.cents),
        "teams": _parts(found.by_team, found.cents, lambda line: line.team or line.use),
        "pools": _parts(found.by_pool, found.cents, lambda line: line.pool),
    }


def _parts(lines: Sequence[CostLine], cents: int, name: _Name) -> list[Model]:
    """Lines of one name together, the dearest first, each with its uses."""
    by_name: dict[str, list[CostLine]] = {}
    for line in lines:
        by_name.setdefault(name(line), []).append(line)
    parts = [_part(title, some, cents) for title, some in by_name.items()]
    return sorted(parts, key=lambda part: (-part["cents"], part["name"]))


def _part(title: str, lines: Sequence[CostLine], cents: int) -> Model:
    total = sum(line.cents for line in lines)
    return {
        "name": title,
        "cents": total,
        "cost": _dollars(total),
        "share": share(total, cents),
        "machineHours": f"{sum(line.machine_hours for line in lines):,.1f}",
        "acceleratorHours": f"{sum(line.accelerator_hours for line in lines):,.1f}",
        "uses": [{"use": line.use, "cost": _dollars(line.cents), "share": share(line.cents, cents)} for line in lines],
    }


def _dollars(cents: int) -> str:
    return f"${cents / 100:,.2f}"
