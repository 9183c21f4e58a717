"""Charts over time: quota and nodes by resource, counts of Workloads, and machine costs per hour."""

from collections.abc import Sequence
from typing import Final

from batchyard.accounting.records import PLATFORM_NAMESPACE, is_checkpoint, parse_cost_record, unreplaced_records
from batchyard.api import scheme
from batchyard.api.meta import Obj, is_unlimited
from batchyard.base.instant import HOUR, SECOND
from batchyard.dashboard.data_source import NamespaceAccess, ViewInputs, ViewJson
from batchyard.dashboard.usage_history import CAPACITY, QUOTA, REQUESTED, RecordedSeries

#: The maximum number of charts of accelerators.
_DEVICE_CHARTS_MAX: Final = 3
#: The maximum number of points of the cost trend.
_COST_POINTS_MAX: Final = 500
_GIB: Final = 1 << 30


def usage_charts(inputs: ViewInputs, access: NamespaceAccess) -> ViewJson:
    """Return the field `charts` of the overview's document, limited to what the user may list; {} without charts."""
    recorded_series = inputs.history.usage.series(inputs.now)
    sees_quota, sees_nodes = access.may_list_all(scheme.CLUSTER_QUEUE), access.may_list_all(scheme.NODE)
    charts = _workload_charts(recorded_series, access)
    for resource in _chart_resources(recorded_series):
        lines = []
        if sees_quota:
            lines.append(_chart_line(recorded_series, QUOTA, resource, "quota used", "used"))
            lines.append(_nominal_quota_line(inputs, resource, len(recorded_series.instants)))
        if sees_nodes:
            lines.append(_chart_line(recorded_series, REQUESTED, resource, "requested on nodes", "nodes"))
            lines.append(_chart_line(recorded_series, CAPACITY, resource, "capacity of nodes", "capacity"))
        shown_lines = [line for line in lines if line is not None]
        if shown_lines:
            charts.append({"name": resource, "unit": _unit_of(resource), "lines": shown_lines})
    if not charts:
        return {}
    return {"charts": {"times": [instant // SECOND for instant in recorded_series.instants], "charts": charts}}


def _workload_charts(recorded_series: RecordedSeries, access: NamespaceAccess) -> list[ViewJson]:
    names = (("pending", "pending"), ("running", "hold quota")) if access.may_list_all(scheme.WORKLOAD) else ()
    lines = [_chart_line(recorded_series, "workloads", name, title, name) for name, title in names]
    shown_lines = [line for line in lines if line is not None]
    return [{"name": "Workloads", "unit": "", "lines": shown_lines}] if shown_lines else []


def _chart_resources(recorded_series: RecordedSeries) -> Sequence[str]:
    resources = {resource for total_kind, resource in recorded_series.values if total_kind in {QUOTA, REQUESTED}}
    devices = sorted(resource for resource in resources if "/" in resource and not resource.startswith("hugepages"))
    main_resources = ("cpu",) if devices else ("cpu", "memory")
    return [*devices[:_DEVICE_CHARTS_MAX], *(resource for resource in main_resources if resource in resources)]


def _chart_line(recorded_series: RecordedSeries, total_kind: str, name: str, title: str, style: str) -> ViewJson | None:
    values = recorded_series.values.get((total_kind, name))
    return (
        None if values is None else {"name": title, "style": style, "values": [_to_chart_unit(name, v) for v in values]}
    )


def _nominal_quota_line(inputs: ViewInputs, resource: str, count: int) -> ViewJson | None:
    snapshot = inputs.queue_source.snapshot
    ids = [fr for fr, (_, name) in enumerate(snapshot.flavor_resource_names) if name == resource]
    nodes = [*snapshot.cohorts.values(), *(queue.node for queue in snapshot.queues.values())]
    amounts = [node.nominal[fr] for node in nodes for fr in ids if fr in node.nominal]
    total = sum(amounts)
    if not total or any(map(is_unlimited, amounts)):
        return None
    return {"name": "nominal quota now", "style": "quota", "values": [_to_chart_unit(resource, total)] * count}


def _to_chart_unit(resource: str, amount: int) -> float:
    """Convert millicores to cores and bytes to GiB; other amounts are unchanged."""
    if resource == "cpu":
        return round(amount / 1000, 2)
    return round(amount / _GIB, 2) if resource == "memory" else amount


def _unit_of(resource: str) -> str:
    return {"cpu": "cores", "memory": "GiB"}.get(resource, "")


def cost_trend(records: Sequence[Obj]) -> ViewJson | None:
    """Return the chart of the cost in dollars per hour, from closed CostRecords; None for fewer than two periods.

    The chart has at most the last _COST_POINTS_MAX periods.
    """
    parsed_records = unreplaced_records([parse_cost_record(obj) for obj in records if not is_checkpoint(obj)])
    begins_with_machines = {
        each.begin for each in parsed_records if each.namespace == PLATFORM_NAMESPACE and each.machines
    }
    microdollars: dict[int, int] = {}
    durations: dict[int, int] = {}
    for each in parsed_records:
        amounts = each.machines if each.namespace == PLATFORM_NAMESPACE and each.machines else each.lines
        if each.begin in begins_with_machines and each.namespace != PLATFORM_NAMESPACE:
            continue  # the machines of the period contain the cost of all namespaces
        microdollars[each.begin] = microdollars.get(each.begin, 0) + sum(a.microdollars for a in amounts.values())
        durations[each.begin] = max(durations.get(each.begin, 0), each.through - each.begin)
    begins = [begin for begin in sorted(microdollars) if durations[begin] > 0][-_COST_POINTS_MAX:]
    if len(begins) < 2:
        return None
    rates = [round(microdollars[begin] / 1e6 / (durations[begin] / HOUR), 2) for begin in begins]
    line = {"name": "machines", "style": "used", "values": rates}
    times = [begin // SECOND for begin in begins]
    return {"times": times, "charts": [{"name": "Cost per hour", "unit": "$/h", "lines": [line]}]}
