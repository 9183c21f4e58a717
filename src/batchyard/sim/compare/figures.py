"""The tables of a comparison: the tables of both runs side by side, and waits by the size of Workloads.

The size of a Workload is its request relative to the largest request of the load, in the resource with the largest
ratio. A ratio up to a tenth is small, and up to a half is medium.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from batchyard.sim.compare.runs import ComparedRun, ComparedRuns
from batchyard.sim.compare.sections import Section, pair_tables
from batchyard.sim.summary import run_tables
from batchyard.sim.summary.figure import FigureTable

SMALL, MEDIUM, LARGE = "small", "medium", "large"
_SIZES: Final = (SMALL, MEDIUM, LARGE)
_SMALL_FRACTION_MAX: Final = 0.1
_MEDIUM_FRACTION_MAX: Final = 0.5
#: The tables that need one run each, in display order after those of waits.
_TABLES: Final[tuple[Callable[[ComparedRun], FigureTable], ...]] = (
    run_tables.fairness_table,
    run_tables.flavor_quota_table,
    run_tables.queue_quota_table,
    run_tables.machines_table,
    run_tables.pools_table,
    run_tables.teams_table,
    run_tables.topology_table,
)


def sections_of(runs: ComparedRuns) -> list[Section]:
    """Return all nonempty tables of a comparison."""
    size = _size_by_workload(runs)
    groupings = (
        ("team", "team", run_tables.team_of),
        ("clusterQueue", "ClusterQueue", run_tables.queue_of),
        ("priorityClass", "priority class", run_tables.priority_of),
        ("size", "size", lambda workload_record: size.get(workload_record.view.key, SMALL)),
    )
    tables: list[tuple[FigureTable, FigureTable]] = [
        (run_tables.overall_table(runs.a), run_tables.overall_table(runs.b))
    ]
    tables += [
        (run_tables.waits_table(runs.a, *grouping), run_tables.waits_table(runs.b, *grouping)) for grouping in groupings
    ]
    tables += [(table_of(runs.a), table_of(runs.b)) for table_of in _TABLES]
    sections = [_sort_rows(pair_tables(*pair), *pair) for pair in tables]
    return [section for section in sections if section.rows]


def _sort_rows(section: Section, a: FigureTable, b: FigureTable) -> Section:
    """Return a section with its rows by size, or for topologies, by level; other sections are sorted by name."""
    if section.name == run_tables.TOPOLOGY_TABLE:
        names = list({**a.rows, **b.rows})
        return replace(section, rows=sorted(section.rows, key=lambda row: names.index(row.name)))
    if section.name == "size":
        return replace(section, rows=sorted(section.rows, key=lambda row: _SIZES.index(row.name)))
    return section


def _size_by_workload(runs: ComparedRuns) -> dict[str, str]:
    requests_by_workload: dict[str, dict[str, int]] = {}
    largest_requests: dict[str, int] = {}
    for workload_record in (*runs.a.workload_records, *runs.b.workload_records):
        requests = requests_by_workload.setdefault(workload_record.view.key, {})
        for resource, amount in workload_record.requests.items():
            requests[resource] = max(requests.get(resource, 0), amount)
            largest_requests[resource] = max(largest_requests.get(resource, 0), amount)
    return {name: _size_class(requests, largest_requests) for name, requests in requests_by_workload.items()}


def _size_class(requests: Mapping[str, int], largest_requests: Mapping[str, int]) -> str:
    largest_ratio = max(
        (amount / largest_requests[resource] for resource, amount in requests.items() if largest_requests[resource]),
        default=0.0,
    )
    return SMALL if largest_ratio <= _SMALL_FRACTION_MAX else MEDIUM if largest_ratio <= _MEDIUM_FRACTION_MAX else LARGE
