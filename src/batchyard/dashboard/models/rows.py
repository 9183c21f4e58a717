"""Parts of several dashboard pages: Workload rows, quota usage rows, the cost page, and shadow mode results."""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, Final

from batchyard.accounting.accounts import USES, StatementLine
from batchyard.accounting.records import UNUSED, CostReportRow, format_dollars, make_cost_report
from batchyard.accounting.records import percentage as share_of_costs
from batchyard.api import scheme
from batchyard.api.meta import Key, Obj, find_condition, format_amount
from batchyard.api.times import format_second
from batchyard.api.views.workload import WorkloadView, workload_view
from batchyard.base.instant import Instant
from batchyard.dashboard import data_source
from batchyard.dashboard.data_source import NamespaceAccess, Query, ViewInputs, ViewJson
from batchyard.dashboard.history import SchedulerDivergence
from batchyard.dashboard.models.charts import cost_trend
from batchyard.dashboard.models.reasons import MissingQuota, shorten_reason
from batchyard.scheduling.cluster_queue import PODS
from batchyard.scheduling.quota import QuotaNode, available
from batchyard.scheduling.snapshot import Snapshot


def workload_row(inputs: ViewInputs, view: WorkloadView, obj: Obj) -> ViewJson:
    """Return a Workload as a row of the dashboard's lists."""
    state = data_source.workload_state(view, obj)
    queue = view.cluster_queue or inputs.queue_source.cluster_queue_of(*view.queue.split("/", 1)) or ""
    state_reason, message = _state_reason(obj, state)
    return {
        "namespace": view.namespace,
        "name": view.name,
        "owner": data_source.first_owner(obj),
        "queue": view.queue.partition("/")[2],
        "clusterQueue": queue,
        "state": state,
        "priority": view.priority,
        "pods": sum(pod_set.count for pod_set in view.pod_sets),
        "created": format_timestamp(view.created),
        "since": _state_since(view, obj, state),
        "reason": state_reason,
        "why": message,
        **_short_reason(message, inputs.queue_source.snapshot, view, queue),
    }


def _short_reason(message: str, snapshot: Snapshot, view: WorkloadView, queue: str) -> ViewJson:
    cluster_queue = snapshot.queues.get(queue)
    missing_now: MissingQuota | None = None
    if cluster_queue is not None and len(view.pod_sets) == 1:
        missing_now = partial(_missing_quota, snapshot, cluster_queue.node, view)
    return reason_fields(message, missing_now)


def reason_fields(message: str, missing_now: MissingQuota | None = None) -> ViewJson:
    """Return a row's fields `brief` (the pending reason in a few words) and `scarce` (the resource that is missing)."""
    reason = shorten_reason(message, missing_now)
    return {"brief": reason.text, "scarce": reason.scarce}


def _missing_quota(snapshot: Snapshot, node: QuotaNode, view: WorkloadView, resource: str, flavor: str) -> str | None:
    """Return the quantity that a Workload with one pod set lacks; '' if nothing is missing.

    None if the queue `node` has no quota for the flavor and resource.
    """
    fr = next((each for each in node.declared_frs if snapshot.flavor_resource_names[each] == (flavor, resource)), None)
    if fr is None:
        return None
    requests = {**dict(view.pod_sets[0].template.requests), PODS: 1}
    missing_amount = requests.get(resource, 0) * view.counts[0] - available(node, fr)
    return format_amount(resource, missing_amount) if missing_amount > 0 else ""


class SharedPendingReasons:
    """Shares pending reasons among Workloads with equal requests and constraints in one namespace and ClusterQueue.

    The scheduler may write the reason to only one of several equal Workloads.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._reasons: dict[tuple[object, str, str], tuple[str, str]] = {}

    def with_reason(self, view: WorkloadView, row: ViewJson) -> ViewJson:
        """Return the row of a pending Workload; a missing reason is that of an equal Workload in an earlier call.

        Call this method in scheduling order.
        """
        reason_group = view.shape, view.namespace, row["clusterQueue"]
        if row["why"]:
            self._reasons.setdefault(reason_group, (row["reason"], row["why"]))
            return row
        reason, why = self._reasons.get(reason_group, ("", ""))
        return {**row, "reason": reason, "why": why, **_short_reason(why, self._snapshot, view, row["clusterQueue"])}


def workload_row_by_key(inputs: ViewInputs, key: str) -> ViewJson | None:
    """Return a Workload, given its key, as a row of the dashboard's lists; None if it no longer exists."""
    workload = inputs.reader.get(Key(scheme.WORKLOAD, *key.split("/", 1)))
    return None if workload is None else workload_row(inputs, workload_view(workload), workload)


def format_timestamp(instant: Instant) -> str:
    """Format an instant as an RFC 3339 timestamp in whole seconds."""
    return format_second(instant)


def _state_since(view: WorkloadView, obj: Obj, state: str) -> str:
    condition_types = {"Finished": "Finished", "Failed": "Finished", "Evicted": "Evicted", "Running": "PodsReady"}
    condition_types |= {"Admitted": "Admitted", "QuotaReserved": "QuotaReserved"}
    condition = find_condition(obj, condition_types[state]) if state in condition_types else None
    timestamp: Any = condition and condition.get("lastTransitionTime")
    return str(timestamp) if timestamp else format_timestamp(view.waiting_since)


def _state_reason(obj: Obj, state: str) -> tuple[str, str]:
    condition_types = {"Pending": "QuotaReserved", "Failed": "Finished", "Evicted": "Evicted", "Inactive": "Evicted"}
    condition = find_condition(obj, condition_types[state]) if state in condition_types else None
    if condition is None:
        return "", ""
    return condition.get("reason", ""), condition.get("message", "")


# Quota usage, borrowing and lending of a queue or Cohort, as amounts and bars.


def quota_usage_rows(snapshot: Snapshot, node: QuotaNode) -> list[ViewJson]:
    """Return a row for each flavor and resource of which a queue or Cohort has quota or usage.

    The rows are sorted by flavor, then resource.
    """
    ids = [
        fr
        for fr in range(len(snapshot.flavor_resource_names))
        if fr in node.nominal or _amount_of(node.subtree_quota, fr) or _amount_of(node.usage, fr)
    ]
    return sorted((_usage_row(snapshot, node, fr) for fr in ids), key=lambda line: (line["flavor"], line["resource"]))


def dominant_usage_rows(rows: Iterable[ViewJson]) -> list[ViewJson]:
    """Return one usage row for each flavor: that of its most used device, or else of its most used resource.

    Rows without quota and usage are ignored.
    """
    dominant_rows: dict[str, ViewJson] = {}
    for row in rows:
        if row["isIdle"]:
            continue
        current_row = dominant_rows.get(row["flavor"])
        if current_row is None or _usage_sort_key(row) > _usage_sort_key(current_row):
            dominant_rows[row["flavor"]] = row
    return list(dominant_rows.values())


def _usage_sort_key(usage_row: ViewJson) -> tuple[bool, float]:
    is_device = "/" in usage_row["resource"]
    return is_device, usage_row["filled"] + usage_row["over"]


def _usage_row(snapshot: Snapshot, node: QuotaNode, fr: int) -> ViewJson:
    flavor, resource = snapshot.flavor_resource_names[fr]
    nominal, quota, used_amount = (
        node.nominal.get(fr, 0),
        _amount_of(node.subtree_quota, fr),
        _amount_of(node.usage, fr),
    )
    borrowed_amount = max(0, used_amount - quota) if node.parent is not None else 0
    lent_amount = min(_lendable_amount(node, fr), _borrowed_by_siblings(node, fr))
    limit = node.borrowing_limit.get(fr)
    bar_scale = max(quota, used_amount, 1)
    row: ViewJson = {
        "flavor": flavor,
        "resource": resource,
        "nominal": data_source.format_resource_amount(resource, nominal),
        "quota": data_source.format_resource_amount(resource, quota),
        "used": data_source.format_resource_amount(resource, used_amount),
        "borrowed": data_source.format_resource_amount(resource, borrowed_amount),
        "lent": data_source.format_resource_amount(resource, lent_amount),
        "filled": data_source.usage_fraction(min(used_amount, quota), bar_scale),
        "over": data_source.usage_fraction(max(0, used_amount - quota), bar_scale),
        "lentShare": data_source.usage_fraction(min(lent_amount, max(0, bar_scale - used_amount)), bar_scale),
        "isIdle": not quota and not used_amount,
        "isBorrowing": borrowed_amount > 0,
        "isLending": lent_amount > 0,
    }
    borrowing_and_lending_limits = {"borrowingLimit": limit, "lendingLimit": node.lending_limit.get(fr)}
    known_limits = {name: value for name, value in borrowing_and_lending_limits.items() if value is not None}
    return row | {name: data_source.format_resource_amount(resource, value) for name, value in known_limits.items()}


def _lendable_amount(node: QuotaNode, flavor_resource: int) -> int:
    if node.parent is None:
        return 0
    local_quota, used_amount = _amount_of(node.local_quota, flavor_resource), _amount_of(node.usage, flavor_resource)
    return max(0, _amount_of(node.subtree_quota, flavor_resource) - local_quota - max(0, used_amount - local_quota))


def _borrowed_by_siblings(node: QuotaNode, fr: int) -> int:
    parent = node.parent
    if parent is None:
        return 0
    siblings = [child for child in parent.children.values() if child is not node]
    borrowed_amount = sum(max(0, _amount_of(each.usage, fr) - _amount_of(each.subtree_quota, fr)) for each in siblings)
    return max(0, borrowed_amount - parent.nominal.get(fr, 0))


def _amount_of(amounts: list[int], flavor_resource: int) -> int:
    return amounts[flavor_resource] if flavor_resource < len(amounts) else 0


# The cost view: machine costs by team, queue and pool, of a finished run or from CostRecords.


#: The maximum number of rows of each cost table.
COST_ROWS_MAX: Final = 200


def costs_document(inputs: ViewInputs, access: NamespaceAccess, _query: Query) -> ViewJson:
    """Return the document of the cost page with costs that the user may list; `{"kept": false}` if there are none."""
    if inputs.costs is not None:
        cost_statement = inputs.costs
        cost_tables = [
            ("team", _merge_statement_lines(cost_statement.by_team, by_team=True)),
            ("pool", _merge_statement_lines(cost_statement.by_pool, by_team=False)),
        ]
        return _cost_document(cost_tables, "", "") if access.may_list_all(scheme.WORKLOAD) else {"kept": False}
    namespaces = access.namespaces(scheme.COST_RECORD, inputs.reader)
    if namespaces is None:
        cost_records = list(inputs.reader.list(scheme.COST_RECORD))
    else:
        cost_records = [obj for name in namespaces for obj in inputs.reader.list(scheme.COST_RECORD, name)]
    end = inputs.now + 1
    cost_reports = {name: make_cost_report(cost_records, name, 0, end) for name in ("team", "clusterqueue", "pool")}
    team_report = cost_reports["team"]
    if team_report.begin is None or team_report.through is None:
        return {"kept": False}
    document = _cost_document(
        [(dimension, cost_report.rows) for dimension, cost_report in cost_reports.items()],
        format_timestamp(team_report.begin),
        format_timestamp(team_report.through),
    )
    return {**document, "trend": cost_trend(cost_records)}


def _cost_document(groups: Sequence[tuple[str, Sequence[CostReportRow]]], begin: str, through: str) -> ViewJson:
    tables = [{"by": dimension, "rows": _cost_table_rows(rows)} for dimension, rows in groups]
    total = sum(row.total for row in groups[0][1])
    return {"kept": True, "from": begin, "through": through, "total": f"${format_dollars(total)}", "tables": tables}


def _cost_table_rows(rows: Sequence[CostReportRow]) -> list[ViewJson]:
    total_cost = sum(row.total for row in rows)
    lines = [_cost_row(row, total_cost) for row in sorted(rows, key=lambda row: (-row.total, row.name))]
    return lines[:COST_ROWS_MAX]


def _cost_row(row: CostReportRow, total: int) -> ViewJson:
    return {
        "name": row.name,
        "cents": row.total,
        "cost": f"${format_dollars(row.total)}",
        "percent": share_of_costs(row.total, total),
        "nodeHours": f"{row.node_hours:,.1f}",
        "acceleratorHours": f"{row.accelerator_hours:,.1f}",
        "uses": [
            {"use": use, "cost": f"${format_dollars(row.cents[use])}", "percent": share_of_costs(row.cents[use], total)}
            for use in USES
            if row.cents.get(use)
        ],
    }


def _merge_statement_lines(lines: Iterable[StatementLine], *, by_team: bool) -> list[CostReportRow]:
    lines_by_name: dict[str, list[StatementLine]] = {}
    for line in lines:
        lines_by_name.setdefault((line.team or UNUSED) if by_team else line.pool, []).append(line)
    return [
        CostReportRow(
            name,
            sum(line.machine_hours for line in name_lines),
            sum(line.accelerator_hours for line in name_lines),
            {use: sum(line.cents for line in name_lines if line.use == use) for use in USES},
        )
        for name, name_lines in lines_by_name.items()
    ]


#: The maximum number of divergences from Kueue that the page of shadow mode shows; its output has all. Only users that
#: may list all Workloads see them: a divergence can name several Workloads.
DIVERGENCES_SHOWN_MAX: Final = 20


def shadow_comparison(inputs: ViewInputs, access: NamespaceAccess, workload_key: str = "") -> ViewJson:
    """Return the field `comparison`: how often Kueue and this scheduler agreed and differed, and recent divergences.

    With a Workload's key, only the divergences of this Workload are returned. The result is {} without shadow mode, or
    if the user may not list all Workloads.
    """
    results = inputs.history.comparison
    if results is None or not access.may_list_all(scheme.WORKLOAD):
        return {}
    divergences = [divergence for divergence in results.recent_divergences if workload_key in ("", divergence.workload)]
    comparison_fields = {
        "agreed": results.count_agreements(),
        "parted": results.count_divergences(),
        "partings": [_divergence_row(divergence) for divergence in divergences[:DIVERGENCES_SHOWN_MAX]],
    }
    return {"comparison": comparison_fields}


def _divergence_row(divergence: SchedulerDivergence) -> ViewJson:
    return {
        "at": format_timestamp(divergence.at),
        "since": format_timestamp(divergence.since),
        "type": divergence.kind,
        "workload": divergence.workload,
        "message": divergence.message,
        "why": divergence.why,
        "look": list(divergence.hints),
    }
