"""The list of Workloads: filtered, searched, a window of it at a time."""

from collections import Counter
from collections.abc import Sequence
from operator import attrgetter
from typing import Final

from batchyard.api import scheme
from batchyard.web.models.rows import row_of
from batchyard.web.roster import Entry
from batchyard.web.sight import Scope
from batchyard.web.source import Model, Query, Source
from batchyard.web.states import STATES
from batchyard.web.window import window_of

_STATE: Final = attrgetter("state")
_NAMESPACE: Final = attrgetter("namespace")


def workloads(source: Source, scope: Scope, query: Query) -> Model:
    """The latest first. Besides the lines, how many there are in each state of what else was asked for."""
    window = window_of(source, query)
    seen = source.roster.entries(source.reader, scope.namespaces(scheme.WORKLOAD, source.reader))
    found = _meant(source, seen, query)
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


def _meant(source: Source, entries: Sequence[Entry], query: Query) -> Sequence[Entry]:
    """Those of a namespace, a queue, and with a text in their name or their owner's, as far as these are asked for."""
    namespace, queue, text = query.get("namespace", ""), query.get("queue", ""), query.get("text", "").lower()
    if namespace:
        entries = [each for each in entries if each.namespace == namespace]
    if text:
        entries = [each for each in entries if text in each.text]
    if not queue:
        return entries
    leads = {name: _leads_to(source, name, queue) for name in dict.fromkeys(each.view.queue for each in entries)}
    return [each for each in entries if each.view.cluster_queue == queue or leads[each.view.queue]]


def _leads_to(source: Source, local_queue: str, queue: str) -> bool:
    """Whether a LocalQueue is of that name, or leads to the ClusterQueue of that name."""
    namespace, _, name = local_queue.partition("/")
    return queue in (name, source.standing.cluster_queue_of(namespace, name))
