"""The Workload pages of the dashboard: the list of Workloads; one Workload with history, pods, conditions, Events."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final
from urllib.parse import urlencode

from batchyard.api import scheme, well_known
from batchyard.api.meta import Key, Obj, annotation, event_count, event_last_time, label
from batchyard.api.views.pods import pod_view
from batchyard.api.views.workload import WorkloadView, workload_view
from batchyard.apiserver.dashboard import DASHBOARD_EVENTS_PATH
from batchyard.dashboard import data_source
from batchyard.dashboard.data_source import NamespaceAccess, Query, ViewInputs, ViewJson
from batchyard.dashboard.history import WorkloadHistory, WorkloadMark
from batchyard.dashboard.models.rows import format_timestamp, shadow_comparison, workload_row

PODS_MAX: Final = 200
EVENTS_MAX: Final = 100
#: The maximum number of objects whose Events are requested for one page: a Workload and its first owners.
INVOLVED_OBJECTS_MAX: Final = 4
_INTERNAL_LABELS: Final = (well_known.JOB_UID,)


def workload_document(inputs: ViewInputs, access: NamespaceAccess, query: Query) -> ViewJson | None:
    """Return the document of one Workload's page; None if the Workload does not exist or the user may not list it."""
    namespace, name = query.get("namespace", ""), query.get("name", "")
    if not access.may_list(scheme.WORKLOAD, namespace):
        return None
    obj = inputs.reader.get(Key(scheme.WORKLOAD, namespace, name))
    if obj is None:
        return None
    view = workload_view(obj)
    row = workload_row(inputs, view, obj)
    queue_position = None if view.quota_reserved else inputs.queue_source.count_ahead_of(row["clusterQueue"], view.key)
    pods = _pods_of_workload(inputs, obj) if access.may_list(scheme.POD, namespace) else None
    document: ViewJson = {
        **row,
        "priorityClass": (obj["spec"].get("priorityClassRef") or {}).get("name", ""),
        "labels": {k: v for k, v in (obj["metadata"].get("labels") or {}).items() if k not in _INTERNAL_LABELS},
        "life": list(_workload_events(inputs, access, view)),
        "podSets": [_pod_set_document(view, number) for number in range(len(view.pod_sets))],
        "checks": [_check_document(entry) for entry in (obj.get("status") or {}).get("admissionChecks") or ()],
        "conditions": [_condition_document(entry) for entry in (obj.get("status") or {}).get("conditions") or ()],
        "answers": dict(_extra_document_paths(inputs, access, view, obj)),
    }
    document |= shadow_comparison(inputs, access, view.key)
    if queue_position is not None:
        document["position"] = queue_position + 1
    if pods is not None:
        document |= {"podLines": [_pod_row(entry) for entry in pods[:PODS_MAX]], "podsCount": len(pods)}
    if data_source.EVENTS not in inputs.extra_documents and access.may_list(scheme.EVENT, namespace):
        document["events"] = _events_about(inputs, obj)
    return document


def _extra_document_paths(
    inputs: ViewInputs, access: NamespaceAccess, view: WorkloadView, obj: Obj
) -> Iterator[tuple[str, str]]:
    for name in inputs.extra_documents:
        if name == data_source.EVENTS:
            if access.may_list(scheme.EVENT, view.namespace):
                uids = [("uid", uid) for uid in _involved_uids(obj)[:INVOLVED_OBJECTS_MAX]]
                yield name, f"{DASHBOARD_EVENTS_PATH}?{urlencode([('namespace', view.namespace), *uids])}"
        elif name != data_source.ETA or not (view.quota_reserved or view.finished):
            yield name, f"{_api_path(view)}/{name}"


def _api_path(view: WorkloadView) -> str:
    info = scheme.kind_info(scheme.WORKLOAD)
    return f"/apis/{info.group}/{info.storage_version}/namespaces/{view.namespace}/{info.plural}/{view.name}"


def _workload_events(inputs: ViewInputs, access: NamespaceAccess, view: WorkloadView) -> Iterator[ViewJson]:
    history = inputs.history.workload_histories.get(view.uid)
    if history is None:
        yield {"what": "created", "at": format_timestamp(view.created)}
        return
    events: list[tuple[WorkloadMark, ViewJson]] = [
        (mark, _event_document(inputs, access, mark)) for mark in history.marks
    ]
    histories = inputs.history.workload_histories.values()
    visible_histories = [victim for victim in histories if access.may_list(scheme.WORKLOAD, victim.namespace)]
    marks = [(mark, victim) for victim in visible_histories for mark in victim.marks]
    events += [(mark, _preemption_event(mark, victim)) for mark, victim in marks if mark.preemptor_uid == view.uid]
    yield from (event for _, event in sorted(events, key=lambda time_and_event: time_and_event[0].at))


def _preemption_event(mark: WorkloadMark, victim: WorkloadHistory) -> ViewJson:
    return {"what": "preempts", "at": format_timestamp(mark.at), "workload": victim.key}


def _event_document(inputs: ViewInputs, access: NamespaceAccess, mark: WorkloadMark) -> ViewJson:
    event: ViewJson = {
        "what": mark.event,
        "at": format_timestamp(mark.at),
        "reason": mark.reason,
        "message": mark.message,
    }
    if mark.preemptor_uid:
        preemptor = inputs.history.workload_histories.get(mark.preemptor_uid)
        is_preemptor_visible = preemptor is not None and access.may_list(scheme.WORKLOAD, preemptor.namespace)
        event["by"] = preemptor.key if preemptor is not None and is_preemptor_visible else ""
        if not is_preemptor_visible:
            event["message"] = ""  # the message can name the hidden preemptor
    return event


def _pod_set_document(view: WorkloadView, pod_set_index: int) -> ViewJson:
    pod_set = view.pod_sets[pod_set_index]
    quota_holding = next(
        (each for each in view.admitted_pod_sets if each.name == pod_set.name and not view.finished), None
    )
    amounts = {resource: amount for resource, amount in pod_set.template.requests if resource != "pods"}
    requests_text = {resource: data_source.format_resource_amount(resource, amounts[resource]) for resource in amounts}
    document: ViewJson = {"name": pod_set.name, "count": pod_set.count, "requests": requests_text}
    if quota_holding is not None:
        document["flavors"] = [
            {
                "resource": resource,
                "flavor": flavor,
                "used": data_source.format_resource_amount(resource, dict(quota_holding.usage).get(resource, 0)),
            }
            for resource, flavor in sorted(quota_holding.flavors.items())
        ]
    return document


def _pods_of_workload(inputs: ViewInputs, workload: Obj) -> Sequence[Obj]:
    metadata = workload["metadata"]
    namespace, name = metadata["namespace"], metadata["name"]
    pods: list[Obj] = []
    for reference in metadata.get("ownerReferences") or ():
        pods += _pods_owned_below(inputs, (reference["uid"], namespace), 3)
    own_pods = [obj for obj in pods if (annotation(obj, well_known.WORKLOAD) or name) == name]
    return sorted(own_pods, key=lambda obj: str(obj["metadata"]["name"]))


def _pods_owned_below(inputs: ViewInputs, owner: tuple[str, str], depth: int) -> list[Obj]:
    """Return the pods that an object owns, directly or through at most `depth` levels of other objects."""
    pods: list[Obj] = []
    for obj in inputs.reader.owned_by(*owner):
        if obj["kind"] == "Pod":
            pods.append(obj)
        elif depth and obj["kind"] != "Workload":
            pods += _pods_owned_below(inputs, (obj["metadata"]["uid"], owner[1]), depth - 1)
    return pods


def _pod_row(obj: Obj) -> ViewJson:
    view = pod_view(obj)
    return {
        "name": view.name,
        "phase": "Terminating" if view.deleting else view.phase,
        "podSet": label(obj, well_known.POD_SET) or "",
        "node": view.node_name,
        "since": format_timestamp(view.started if view.started is not None else view.created),
        "why": "" if view.node_name or view.is_terminal else view.unschedulable_message,
    }


def _check_document(check: Mapping[str, Any]) -> ViewJson:
    return {"name": check["name"], "state": check["state"], "message": check.get("message", "")}


def _condition_document(condition: Mapping[str, Any]) -> ViewJson:
    field_names = {"type": "type", "status": "status", "reason": "reason", "message": "message"}
    field_names["since"] = "lastTransitionTime"
    return {name: condition.get(field, "") for name, field in field_names.items()}


def _involved_uids(workload: Obj) -> list[str]:
    """Return the uids of a Workload and its owners, about which its page shows Events."""
    metadata = workload["metadata"]
    return [metadata["uid"], *(owner["uid"] for owner in metadata.get("ownerReferences") or ())]


def _events_about(inputs: ViewInputs, obj: Obj) -> list[ViewJson]:
    involved_uids = frozenset(_involved_uids(obj))
    events = inputs.reader.list(scheme.EVENT, obj["metadata"]["namespace"])
    return event_rows(event for event in events if (event.get("involvedObject") or {}).get("uid") in involved_uids)


def event_rows(events: Iterable[Obj]) -> list[ViewJson]:
    """Return the rows of a page's table of Events: the latest first, at most EVENTS_MAX."""
    latest_events = sorted(events, key=_event_time, reverse=True)[:EVENTS_MAX]
    return [
        {
            "at": _event_time(event),
            "type": event.get("type", ""),
            "about": event["involvedObject"].get("kind", ""),
            "reason": event.get("reason", ""),
            "message": event.get("message", ""),
            "count": event_count(event),
        }
        for event in latest_events
    ]


def _event_time(event: Obj) -> str:
    return event_last_time(event) or str(event["metadata"].get("creationTimestamp", ""))


# The list of Workloads: filtered, searched, paginated.


_STATE_OF_ENTRY: Final = attrgetter("state")
_NAMESPACE_OF_ENTRY: Final = attrgetter("namespace")


def workloads_document(inputs: ViewInputs, access: NamespaceAccess, query: Query) -> ViewJson:
    """Return a page of the Workload list, and the numbers of Workloads by state.

    The numbers cover all pages, and all states even if the query selects one. The list is sorted as the query
    requests, by default newest first.
    """
    page_window = data_source.requested_page(inputs, query)
    visible_entries = inputs.workload_list.entries(inputs.reader, access.namespaces(scheme.WORKLOAD, inputs.reader))
    matching_entries = _filter_entries(inputs, visible_entries, query)
    state_counts = Counter(map(_STATE_OF_ENTRY, matching_entries))
    state_filter = query.get("state", "")
    if state_filter:
        matching_entries = [entry for entry in matching_entries if entry.state == state_filter]
    matching_entries = _sort_entries(matching_entries, query.get("sort", ""))
    page_entries = matching_entries[page_window.offset : page_window.offset + page_window.limit]
    return {
        "rows": [workload_row(inputs, entry.view, entry.obj) for entry in page_entries],
        "count": len(matching_entries),
        "offset": page_window.offset,
        "limit": page_window.limit,
        "states": {name: state_counts[name] for name in data_source.STATES if state_counts[name]},
        "namespaces": sorted(set(map(_NAMESPACE_OF_ENTRY, visible_entries))),
        "queues": sorted(inputs.queue_source.snapshot.queues) if access.may_list_all(scheme.CLUSTER_QUEUE) else [],
    }


_SORT_KEYS: Final[Mapping[str, Callable[[data_source.WorkloadListEntry], Any]]] = {
    "name": lambda entry: (data_source.first_owner(entry.obj) or entry.obj["metadata"])["name"],
    "queue": lambda entry: entry.view.queue,
    "priority": lambda entry: entry.view.priority,
    "created": lambda entry: entry.view.created,
    "state": _STATE_OF_ENTRY,
}


def _sort_entries(
    entries: Sequence[data_source.WorkloadListEntry], sort: str
) -> Sequence[data_source.WorkloadListEntry]:
    sort_key = _SORT_KEYS.get(sort.removeprefix("-"))
    return entries if sort_key is None else sorted(entries, key=sort_key, reverse=sort.startswith("-"))


def _filter_entries(
    inputs: ViewInputs, entries: Sequence[data_source.WorkloadListEntry], query: Query
) -> Sequence[data_source.WorkloadListEntry]:
    namespace, queue_name, text = query.get("namespace", ""), query.get("queue", ""), query.get("text", "").lower()
    if namespace:
        entries = [entry for entry in entries if entry.namespace == namespace]
    if text:
        entries = [entry for entry in entries if text in entry.search_text]
    if not queue_name:
        return entries
    names = dict.fromkeys(entry.view.queue for entry in entries)
    leads_to_queue = {name: _leads_to_queue(inputs, name, queue_name) for name in names}
    return [entry for entry in entries if entry.view.cluster_queue == queue_name or leads_to_queue[entry.view.queue]]


def _leads_to_queue(inputs: ViewInputs, local_queue: str, queue: str) -> bool:
    namespace, _, name = local_queue.partition("/")
    return queue in (name, inputs.queue_source.cluster_queue_of(namespace, name))
