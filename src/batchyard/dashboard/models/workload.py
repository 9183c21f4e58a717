"""The Workload views: one Workload with its history, pods, conditions and events; the list of Workloads."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final

from batchyard.api import scheme, well_known
from batchyard.api.meta import Key, Obj, annotation, event_count, event_last_time, label
from batchyard.api.views.pods import pod_view
from batchyard.api.views.workload import WorkloadView, workload_view
from batchyard.dashboard.data_source import (
    STATES,
    Model,
    NamespaceAccess,
    Query,
    ViewInputs,
    WorkloadListEntry,
    in_words,
    window_of,
)
from batchyard.dashboard.history import WorkloadHistory, WorkloadMark
from batchyard.dashboard.models.rows import comparison, row_of, time_of

PODS_MAX: Final = 200
EVENTS_MAX: Final = 100
_LABELS_OWN: Final = (well_known.JOB_UID,)


def workload(source: ViewInputs, scope: NamespaceAccess, query: Query) -> Model | None:
    """Return one Workload; None if it does not exist or the user may not see it."""
    namespace, name = query.get("namespace", ""), query.get("name", "")
    if not scope.sees(scheme.WORKLOAD, namespace):
        return None
    obj = source.reader.get(Key(scheme.WORKLOAD, namespace, name))
    if obj is None:
        return None
    view = workload_view(obj)
    row = row_of(source, view, obj)
    place = None if view.quota_reserved else source.standing.place_of(row["clusterQueue"], view.key)
    pods = _pods(source, obj) if scope.sees(scheme.POD, namespace) else None
    reported: Model = {
        **row,
        "priorityClass": (obj["spec"].get("priorityClassRef") or {}).get("name", ""),
        "labels": {k: v for k, v in (obj["metadata"].get("labels") or {}).items() if k not in _LABELS_OWN},
        "life": list(_life(source, scope, view)),
        "podSets": [_pod_set(view, number) for number in range(len(view.pod_sets))],
        "checks": [_check(each) for each in (obj.get("status") or {}).get("admissionChecks") or ()],
        "conditions": [_condition(each) for each in (obj.get("status") or {}).get("conditions") or ()],
        "answers": {part: f"{_path_of(view)}/{part}" for part in _answers(view)},
    }
    reported |= comparison(source, scope, view.key)
    if place is not None:
        reported["position"] = place + 1
    if pods is not None:
        reported |= {"podLines": [_pod(each) for each in pods[:PODS_MAX]], "podsCount": len(pods)}
    if scope.sees(scheme.EVENT, namespace):
        reported["events"] = _events(source, obj)
    return reported


def _answers(view: WorkloadView) -> Sequence[str]:
    """Return the subresources to query; a start forecast only before quota is reserved."""
    return ("why",) if view.quota_reserved or view.finished else ("why", "eta")


def _path_of(view: WorkloadView) -> str:
    info = scheme.kind_info(scheme.WORKLOAD)
    return f"/apis/{info.group}/{info.storage_version}/namespaces/{view.namespace}/{info.plural}/{view.name}"


def _life(source: ViewInputs, scope: NamespaceAccess, view: WorkloadView) -> Iterator[Model]:
    """Yield the history of a Workload, with its preemptors where visible, and the preemptions that it caused."""
    life = source.history.lives.get(view.uid)
    if life is None:
        yield {"what": "created", "at": time_of(view.created)}
        return
    done: list[tuple[WorkloadMark, Model]] = [(mark, _mark(source, scope, mark)) for mark in life.marks]
    others = (other for other in source.history.lives.values() if scope.sees(scheme.WORKLOAD, other.namespace))
    done += [(mark, _preempts(mark, other)) for other in others for mark in other.marks if mark.by == view.uid]
    yield from (reported for _, reported in sorted(done, key=lambda pair: pair[0].at))


def _preempts(mark: WorkloadMark, other: WorkloadHistory) -> Model:
    return {"what": "preempts", "at": time_of(mark.at), "workload": other.key}


def _mark(source: ViewInputs, scope: NamespaceAccess, mark: WorkloadMark) -> Model:
    reported: Model = {"what": mark.what, "at": time_of(mark.at), "reason": mark.reason, "message": mark.message}
    if mark.by:
        other = source.history.lives.get(mark.by)
        seen = other is not None and scope.sees(scheme.WORKLOAD, other.namespace)
        reported["by"] = other.key if other is not None and seen else ""
        if not seen:
            reported["message"] = ""  # it can name the hidden preemptor
    return reported


def _pod_set(view: WorkloadView, number: int) -> Model:
    pod_set = view.pod_sets[number]
    holding = next((each for each in view.holdings if each.name == pod_set.name and not view.finished), None)
    requests = {r: in_words(r, amount) for r, amount in pod_set.template.requests if r != "pods"}
    reported: Model = {"name": pod_set.name, "count": pod_set.count, "requests": requests}
    if holding is not None:
        reported["flavors"] = [
            {"resource": resource, "flavor": flavor, "used": in_words(resource, dict(holding.usage).get(resource, 0))}
            for resource, flavor in sorted(holding.flavors.items())
        ]
    return reported


def _pods(source: ViewInputs, workload: Obj) -> Sequence[Obj]:
    """Return the pods of the Workload's owners, including pods of the Jobs of a JobSet."""
    metadata = workload["metadata"]
    namespace, name = metadata["namespace"], metadata["name"]
    found: list[Obj] = []
    for reference in metadata.get("ownerReferences") or ():
        found += _below(source, (reference["uid"], namespace), 3)
    marked = [obj for obj in found if (annotation(obj, well_known.WORKLOAD) or name) == name]
    return sorted(marked, key=lambda obj: str(obj["metadata"]["name"]))


def _below(source: ViewInputs, owner: tuple[str, str], depth: int) -> list[Obj]:
    """Return the pods that an object owns, directly or through other objects."""
    found: list[Obj] = []
    for obj in source.reader.owned_by(*owner):
        if obj["kind"] == "Pod":
            found.append(obj)
        elif depth and obj["kind"] != "Workload":
            found += _below(source, (obj["metadata"]["uid"], owner[1]), depth - 1)
    return found


def _pod(obj: Obj) -> Model:
    view = pod_view(obj)
    return {
        "name": view.name,
        "phase": "Terminating" if view.deleting else view.phase,
        "podSet": label(obj, well_known.POD_SET) or "",
        "node": view.node_name,
        "since": time_of(view.started if view.started is not None else view.created),
        "why": "" if view.node_name or view.is_terminal else view.unplaced,
    }


def _check(check: Mapping[str, Any]) -> Model:
    return {"name": check["name"], "state": check["state"], "message": check.get("message", "")}


def _condition(condition: Mapping[str, Any]) -> Model:
    fields = {"type": "type", "status": "status", "reason": "reason", "message": "message"}
    return {
        **{name: condition.get(field, "") for name, field in fields.items()},
        "since": condition.get("lastTransitionTime", ""),
    }


def _events(source: ViewInputs, obj: Obj) -> list[Model]:
    """Return the Events of the Workload and its owners, the latest first."""
    metadata = obj["metadata"]
    about = {metadata["uid"], *(owner["uid"] for owner in metadata.get("ownerReferences") or ())}
    found = [
        event
        for event in source.reader.list(scheme.EVENT, metadata["namespace"])
        if (event.get("involvedObject") or {}).get("uid") in about
    ]
    found.sort(key=_event_time, reverse=True)
    return [
        {
            "at": _event_time(event),
            "type": event.get("type", ""),
            "about": event["involvedObject"].get("kind", ""),
            "reason": event.get("reason", ""),
            "message": event.get("message", ""),
            "count": event_count(event),
        }
        for event in found[:EVENTS_MAX]
    ]


def _event_time(event: Obj) -> str:
    return event_last_time(event) or str(event["metadata"].get("creationTimestamp", ""))


# --- workloads ---
#
# The list of Workloads: filtered, searched, paginated.


_STATE: Final = attrgetter("state")
_NAMESPACE: Final = attrgetter("namespace")


def workloads(source: ViewInputs, scope: NamespaceAccess, query: Query) -> Model:
    """Return a page of Workloads, the latest first, with the count by state before the state filter."""
    window = window_of(source, query)
    seen = source.workload_list.entries(source.reader, scope.namespaces(scheme.WORKLOAD, source.reader))
    found = _filtered(source, seen, query)
    states = Counter(map(_STATE, found))
    state = query.get("state", "")
    if state:
        found = [each for each in found if each.state == state]
    shown = found[window.offset : window.offset + window.limit]
    return {
        "rows": [row_of(source, each.view, each.obj) for each in shown],
        "count": len(found),
        "offset": window.offset,
        "limit": window.limit,
        "states": {name: states[name] for name in STATES if states[name]},
        "namespaces": sorted(set(map(_NAMESPACE, seen))),
        "queues": sorted(source.standing.snapshot.queues) if scope.all_of(scheme.CLUSTER_QUEUE) else [],
    }


def _filtered(source: ViewInputs, entries: Sequence[WorkloadListEntry], query: Query) -> Sequence[WorkloadListEntry]:
    """Filter by namespace, queue, and a text in the name or the owner's name."""
    namespace, queue, text = query.get("namespace", ""), query.get("queue", ""), query.get("text", "").lower()
    if namespace:
        entries = [each for each in entries if each.namespace == namespace]
    if text:
        entries = [each for each in entries if text in each.text]
    if not queue:
        return entries
    leads = {name: _leads_to(source, name, queue) for name in dict.fromkeys(each.view.queue for each in entries)}
    return [each for each in entries if each.view.cluster_queue == queue or leads[each.view.queue]]


def _leads_to(source: ViewInputs, local_queue: str, queue: str) -> bool:
    """Report whether a LocalQueue has the name, or points to a ClusterQueue of the name."""
    namespace, _, name = local_queue.partition("/")
    return queue in (name, source.standing.cluster_queue_of(namespace, name))
