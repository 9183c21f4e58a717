"""What would let the scheduler look at a Workload that it does not consider, and whether it would be admitted then."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final, NamedTuple

from batchyard.api.meta import Obj
from batchyard.api.selectors import selector
from batchyard.api.views.queues import ClusterQueueView
from batchyard.api.views.workload import WorkloadView
from batchyard.controllers.admission.index import AdmissionIndex
from batchyard.controllers.why.fork import Change, Fork, TooMuch
from batchyard.controllers.why.proposal import FIX, Patch, Proposal, json_patch, merge_patch
from batchyard.core.cycle import Policy
from batchyard.core.lifecycle import workload as lifecycle
from batchyard.core.queue import ClusterQueue

_NOT_STOPPED: Final = {"spec": {"stopPolicy": "None"}}


class _Remedy(NamedTuple):
    """Something to mend, and how its ClusterQueue is then."""

    text: str
    patch: Patch
    view: ClusterQueueView


def remedies(
    workload: Obj, view: WorkloadView, queue: ClusterQueue, index: AdmissionIndex, policy: Policy
) -> Iterator[Proposal]:
    """The one thing that would have to be mended, if it is one and the Workload would be admitted then."""
    found = list(_faults(workload, view, queue, index))
    if len(found) != 1:
        return
    remedy, fork = found[0], Fork(index, policy, view, queue)
    try:
        if fork.admits(Change(queues={queue.name: remedy.view}, opens=True)):
            yield Proposal(FIX, remedy.text, (remedy.patch,))
    except TooMuch:
        return
    finally:
        fork.close()


def _faults(workload: Obj, view: WorkloadView, queue: ClusterQueue, index: AdmissionIndex) -> Iterator[_Remedy]:
    """All that is in the way and can be mended by a field; nothing if something else is in the way too."""
    started, labels = replace(queue.view, stop_policy="None"), index.namespaces.get(view.namespace)
    if not index.readiness_with(started).active or queue.in_cycle or labels is None:
        return
    if not lifecycle.is_active(workload):
        patch = merge_patch("Workload", view.name, {"spec": {"active": True}}, view.namespace)
        yield _Remedy("set its spec.active to true", patch, started)
    local = index.book.local_queues.get(view.queue)
    if local is not None and local.stop_policy != "None":
        name = view.queue.partition("/")[2]
        patch = merge_patch("LocalQueue", name, _NOT_STOPPED, view.namespace)
        yield _Remedy(f"LocalQueue {name}: set stopPolicy to None", patch, started)
    if queue.view.stop_policy != "None":
        patch = merge_patch("ClusterQueue", queue.name, _NOT_STOPPED)
        yield _Remedy(f"ClusterQueue {queue.name}: set stopPolicy to None", patch, started)
    if queue.view.namespaces is None or not queue.view.namespaces.matches(labels):
        operation: dict[str, Any] = {"op": "add", "path": "/spec/namespaceSelector", "value": {}}
        text = f"ClusterQueue {queue.name}: let namespaceSelector select namespace {view.namespace}, such as by {{}}"
        wide = replace(started, namespaces=selector({}))
        yield _Remedy(text, json_patch("ClusterQueue", queue.name, [operation]), wide)
